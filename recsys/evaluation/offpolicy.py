"""Value of another model's lists, from a log of lists and the clicks on them.

The value of lists is the mean number of clicked items in a list. It is assumed that a click depends
on the user, the item and its rank, and not on the other items. With p the probability with which
the logged item was shown at its rank, w = 1 / p where the other model has the same item there, and
w = 0 elsewhere::

    IPS    sum of w click / number of lists
    SNIPS  mean length of the other model's lists * (sum of w click) / (sum of w)
    DR     (sum of r(other item)) / number of lists
           + mean length * (sum of w (click - r(logged item))) / (sum of w)

The click rate r of an item at a rank is the rate of the rank times a factor of the item: its clicks
divided by the clicks that the rates of its ranks predict, each plus one. All rates are then scaled
so that their sum over the logged items equals the number of clicks. Rates of a user come from the
other half of the users.

References
----------
Dudik, Langford and Li (2011), "Doubly robust policy evaluation and learning".
Thomas and Brunskill (2016), "Data-efficient off-policy policy evaluation for reinforcement
learning", for the normalised weights in DR.
Swaminathan and Joachims (2015), "The self-normalized estimator for counterfactual learning".
Li et al. (2018), "Offline evaluation of ranking policies with click models".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl

from recsys.errors import DataError
from recsys.evaluation.monitoring import attributed_clicks
from recsys.evaluation.propensity import LEAST, effective_sample_size
from recsys.evaluation.statistics import Ratio, estimates

_PRIOR = 1.0  # clicks that pull the factor of an item towards 1
_SUPPORT = 0.7  # smallest share of the other lists that the log may have shown
_RESAMPLES = 2000
ESTIMATORS = {
    "logged": "Clicks per list of the log.",
    "ips": "Clicks on the items that the other model has at the same rank, each divided by the "
    "probability with which it was shown, per list.",
    "snips": "The same, divided by the sum of 1 / probability of such items instead of the number "
    "of lists, times the mean length of the lists.",
    "dr": "Click rates of the other model's items by item and rank, corrected by the errors of "
    "these rates on the same items, weighted as in snips.",
}


@dataclass(frozen=True, slots=True)
class OffPolicyValue:
    """Value of a model's lists.

    `values` has a row for each of `ESTIMATORS`: estimator, value, low, high (its interval by the
    bootstrap over users). `effective_sample_size` is of the weights w, and `support` the share of
    the model's lists that the log may have shown. `counts` has the lists and users that were used,
    and the lists that were left out.
    """

    values: pl.DataFrame
    effective_sample_size: float
    support: float
    counts: dict[str, int]


def off_policy_value(
    lists: pl.DataFrame,
    clicks: Mapping[str, pl.Series],
    target: pl.DataFrame,
    *,
    confidence: float = 0.95,
    random_state: int = 0,
) -> OffPolicyValue:
    """Estimate the clicks per list that other lists would have had.

    Parameters
    ----------
    lists, clicks
        As in `online_test`; `lists` has the probability of each item.
    target : polars DataFrame
        Lists of the other model, with the columns user, item and rank, as of
        `Recommender.recommend`.
    confidence : float
    random_state : int
        Seed of the halves of the users and of the bootstrap.

    Raises
    ------
    DataError
        If the log has no probabilities or wrong ones, or if it has shown too little of the other
        lists: an effective sample size below 50, or less than 70% of their items.
    """
    shown = lists.drop_nulls(["probability", "user"])
    if shown.is_empty():
        raise DataError(
            "The log has no probabilities of the items that it shows; `recsys serve --model-b "
            "OTHER --log FILE` writes them for lists of known users."
        )
    wrong = shown.filter(~pl.col("probability").is_between(0, 1, closed="right"))
    for row in wrong.to_dicts():
        raise DataError(
            f"List {row['list'] + 1} of the log, item {row['item']!r}: the probability must be in "
            f"(0, 1]; got {row['probability']}."
        )
    others = target.select(
        pl.col("user", "item").cast(pl.String), pl.col("rank").cast(pl.Int64)
    )
    n_known = shown["list"].n_unique()
    shown = shown.join(others, on="user", how="semi")
    if shown.is_empty():
        raise DataError("The other model has no lists for the users of the log.")
    clicked = attributed_clicks(shown, clicks).select("list", "item", click=pl.lit(1.0))
    shown = shown.join(
        others.rename({"item": "other"}), on=["user", "rank"], how="left"
    ).join(clicked, on=["list", "item"], how="left")
    matches = pl.col("item") == pl.col("other")
    weight = pl.when(matches).then(1 / pl.col("probability")).otherwise(0.0)
    shown = shown.with_columns(pl.col("click").fill_null(0.0), weight=weight)
    shown = _with_rates(shown.sort("user", "list"), random_state)
    size = effective_sample_size(shown["weight"].to_numpy())
    length = float(shown["other"].count())
    # The mean of the weights is 1 if each of the items may have been shown.
    support = float(shown["weight"].sum()) / length
    if size < LEAST or support < _SUPPORT:
        raise DataError(
            f"The log supports no estimate: it shows the other model's items with an effective "
            f"sample size of {size:.1f} (at least {LEAST} is needed), and may have shown "
            f"{min(support, 1):.0%} of them (at least {_SUPPORT:.0%})."
        )
    n_lists = shown["list"].n_unique()
    counts = {
        "lists": n_lists,
        "users": shown["user"].n_unique(),
        "clicks_on_lists": len(clicked),
        "lists_without_probabilities": lists["list"].n_unique() - n_known,
        "lists_of_other_users": n_known - n_lists,
    }
    values = _estimated(shown, length / n_lists, confidence, random_state)
    return OffPolicyValue(values, size, support, counts)


def _with_rates(shown: pl.DataFrame, random_state: int) -> pl.DataFrame:
    """Add the click rates of the logged and the other items, from the other half of the users."""
    users = shown.select("user").unique().sort("user")
    order = np.random.default_rng(random_state).permutation(len(users))
    shown = shown.join(users.with_columns(half=order % 2), on="user")
    halves = shown.partition_by("half")
    # One user has no other half.
    parts = zip(halves, reversed(halves), strict=True)
    rated = [_rated(part, fitted) for part, fitted in parts]
    return pl.concat(rated).sort("user", "list", "rank")


def _rated(part: pl.DataFrame, fitted: pl.DataFrame) -> pl.DataFrame:
    """Add click rates as columns rate and of_other, by rank and item of the `fitted` lists."""
    click = pl.col("click")
    factor = pl.col("factor")
    of_rank = pl.col("of_rank")
    ranks = fitted.group_by("rank").agg(of_rank=click.mean())
    fitted = fitted.join(ranks, on="rank")
    n_clicks = click.sum() + _PRIOR
    expected = of_rank.sum() + _PRIOR
    items = fitted.group_by("item").agg(factor=n_clicks / expected)
    rates = fitted.join(items, on="item").select((factor * of_rank).clip(0, 1))
    predicted = float(rates.to_numpy().sum())
    scale = float(fitted["click"].sum()) / (predicted or 1.0)
    part = part.join(ranks, on="rank", how="left")
    for column, name in (("item", "rate"), ("other", "of_other")):
        # An item that was never shown has the rate of its rank.
        rate = scale * factor.fill_null(1.0) * of_rank.fill_null(0.0)
        has_item = pl.col(column).is_not_null()
        rate = pl.when(has_item).then(rate.clip(0, 1)).otherwise(0.0)
        factors = items.rename({"item": column})
        part = part.join(factors, on=column, how="left")
        part = part.with_columns(rate.alias(name)).drop("factor")
    return part


def _estimated(
    shown: pl.DataFrame,
    length: float,
    confidence: float,
    random_state: int,
) -> pl.DataFrame:
    """Return the values of the estimators; `length` is the mean length of the other lists."""
    click = pl.col("click")
    weight = pl.col("weight")
    by_user = shown.group_by("user", maintain_order=True).agg(
        pl.col("list").n_unique(),
        weight.sum(),
        click.sum(),
        pl.col("of_other").sum(),
        clicks=(weight * click).sum(),
        errors=(weight * (click - pl.col("rate"))).sum(),
    )
    sums = by_user.drop("user").cast(pl.Float64).to_numpy()
    lists, weights, logged, model, clicks, errors = sums.T
    ratios = [
        Ratio(logged, lists),
        Ratio(clicks, lists),
        Ratio(length * clicks, weights),
        Ratio(model, lists),
        Ratio(length * errors, weights),
    ]
    values = estimates(
        [
            lambda *of_ratios: of_ratios[0],
            lambda *of_ratios: of_ratios[1],
            lambda *of_ratios: of_ratios[2],
            # The value by the model, corrected by its errors.
            lambda *of_ratios: of_ratios[3] + of_ratios[4],
        ],
        ratios,
        _RESAMPLES,
        confidence,
        random_state,
    )
    frame = pl.DataFrame(values, ["value", "low", "high"], orient="row")
    return frame.select(pl.Series("estimator", [*ESTIMATORS]), pl.all())

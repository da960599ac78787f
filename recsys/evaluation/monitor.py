"""Monitoring: new ratings next to those of a model: unknown ids, drift, coverage and errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from recsys.data.ratings import Ratings, has_items, has_ratings
from recsys.drift import Stability, latest, popularity_stability, rating_stability
from recsys.errors import DataError
from recsys.evaluation.experiment import evaluate
from recsys.evaluation.results import Evaluation
from recsys.evaluation.split_files import shared_test, unknown_and_known

if TYPE_CHECKING:
    from recsys.recommender import Recommender

_METRICS = {
    "rmse": "root mean squared error of the predictions",
    "mae": "mean absolute error of the predictions",
    "recall": "share of a user's new items that are recommended",
    "ndcg": "quality of the ranking, 1 at best",
    "coverage": "share of the known items that are recommended",
}
_SCHEMA = {
    "name": pl.String,
    "value": pl.Float64,
    "low": pl.Float64,
    "high": pl.Float64,
    "reference": pl.Float64,
    "description": pl.String,
}


@dataclass(frozen=True, slots=True)
class Monitoring:
    """New ratings next to those that a model was fitted to.

    Attributes
    ----------
    table : polars DataFrame
        Columns name, value, low and high (the confidence interval), reference (the same of the
        model's own ratings, or what chance alone gives), description.
    drift : dict of str to Stability
        Of "ratings" and "popularity", as far as they are known.
    evaluation : Evaluation or None
        Metrics on the new ratings; None if no new rating has both a known user and a known item.
    """

    table: pl.DataFrame
    drift: dict[str, Stability]
    evaluation: Evaluation | None

    @property
    def values(self) -> dict[str, float]:
        """The values by name, those that there are."""
        rows = self.table.drop_nulls("value").select("name", "value").iter_rows()
        return {str(name): float(value) for name, value in rows}

    @property
    def groups(self) -> pl.DataFrame:
        """Shares of the groups that drift is measured on: drift, group, before, now."""
        parts = [
            pl.DataFrame({"group": each.groups, "before": each.before, "now": each.now}).select(
                pl.lit(name).alias("drift"), pl.all()
            )
            for name, each in self.drift.items()
        ]
        empty = {"drift": pl.String, "group": pl.String, "before": pl.Float64, "now": pl.Float64}
        return pl.concat(parts) if parts else pl.DataFrame(schema=empty)


def monitor(
    recommender: Recommender,
    new: Ratings,
    n: int | Sequence[int] = 10,
    *,
    reference: Mapping[str, float] | None = None,
    resamples: int = 1000,
    confidence: float = 0.95,
    random_state: int = 0,
) -> Monitoring:
    """Compare new ratings with those of a model, and measure the model on them.

    Unknown users and items are those without ratings in the model; they are counted once each, and
    "unknown_ratings" are the ratings of them. Drift is measured against the newest ratings of the
    model, see `recsys.drift`. Metrics are over new ratings of known users and items that the model
    was not fitted to.

    Parameters
    ----------
    recommender : Recommender
        Fitted.
    new : Ratings
    n : int or sequence of int
        Lengths of the recommendations.
    reference : mapping of str to float, optional
        Metrics as measured before, by name, such as "ndcg@10".
    resamples, confidence, random_state
        As in `evaluate`.

    Raises
    ------
    DataError
        If there are no new ratings, or they are implicit and the model's are not.

    Examples
    --------
    >>> import recsys
    >>> split = recsys.time_split(recsys.read_ratings(recsys.sample_path()))
    >>> found = monitor(recsys.Recommender("bias").fit(split.train), split.test, resamples=100)
    >>> 0 < found.values["unknown_users"] < 1
    True
    """
    known = recommender.ratings
    if not new.n_ratings:
        raise DataError("There are no new ratings to monitor.")
    if new.implicit and not known.implicit:
        raise DataError("The model was fitted to ratings, and the new data have none.")
    rows = [_row("new_ratings", new.n_ratings, None, "ratings in the new data")]
    rows += _unknown(known, new, confidence)
    drift = {
        "ratings": rating_stability(known, new),
        "popularity": popularity_stability(known, new),
    }
    found_drift = {name: each for name, each in drift.items() if each is not None}
    for name, each in found_drift.items():
        rows.append(_row(f"{name}_drift", each.index, each.chance, each.verdict))
    if not known.implicit:
        rows.append(_means(known, new, confidence))
    rated = new.items.take(np.flatnonzero(has_items(new)))
    of_known = known.items.find(rated)
    covered = has_items(known)[of_known[of_known >= 0]].sum() / max(1, has_items(known).sum())
    rows.append(_row("catalogue_used", covered, None, "share of the known items with new ratings"))
    try:
        splits = shared_test({recommender.model.name: known}, new).splits
    except DataError:  # nothing that can be measured
        return Monitoring(_table(rows), found_drift, None)
    found = evaluate(
        {recommender.model.name: recommender},
        splits,
        n,
        resamples=resamples,
        confidence=confidence,
        random_state=random_state,
    )
    before = {"rmse": recommender.training.get("train_rmse")} | dict(reference or {})
    for row in found.metrics.filter(pl.col("kind").is_in(list(_METRICS))).to_dicts():
        said, earlier = _METRICS[row["kind"]], before.get(row["metric"])
        rows.append(_row(row["metric"], row["value"], earlier, said, row["low"], row["high"]))
    return Monitoring(_table(rows), found_drift, found)


def _row(
    name: str,
    value: float,
    reference: float | None,
    description: str,
    low: float | None = None,
    high: float | None = None,
) -> dict[str, Any]:
    found = locals()
    return {column: found[column] for column in _SCHEMA}


def _table(rows: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
    return pl.DataFrame([tuple(row.values()) for row in rows], schema=_SCHEMA, orient="row")


def _unknown(known: Ratings, new: Ratings, confidence: float) -> list[dict[str, Any]]:
    """Return the shares of unknown users, items and ratings, and of ratings that are known."""
    from scipy.stats import binomtest  # slow to import

    rows = []
    for kind, code, there in (
        ("user", new.user_index_of_nonzeros(), has_ratings(known)),
        ("item", new.indices, has_items(known)),
    ):
        rated = np.unique(code)
        place = getattr(known, f"{kind}s").find(getattr(new, f"{kind}s").values)
        is_known = (place >= 0) & there[place]
        missing = int((~is_known[rated]).sum())
        low, high = binomtest(missing, len(rated)).proportion_ci(confidence, "wilson")
        said = f"share of the {len(rated):,} {kind}s that the model has no ratings of"
        rows.append(_row(f"unknown_{kind}s", missing / len(rated), None, said, low, high))
    unknown, repeated = unknown_and_known(known, new)
    said = "share of the new ratings that are of unknown users or items"
    rows.append(_row("unknown_ratings", float(unknown.mean()), None, said))
    said = "share of the new ratings whose pair of user and item the model was fitted to"
    rows.append(_row("repeated_ratings", float(repeated.mean()), None, said))
    return rows


def _means(known: Ratings, new: Ratings, confidence: float) -> dict[str, Any]:
    """Return the mean of the new ratings, and that of the newest ones of the model."""
    places = latest(known, new.n_ratings)
    before = known.values if places is None else known.values_at(places)
    mean, half = float(new.values.mean(dtype=np.float64)), 0.0
    if new.n_ratings > 1:
        error = float(new.values.std(dtype=np.float64, ddof=1)) / sqrt(new.n_ratings)
        half = NormalDist().inv_cdf((1 + confidence) / 2) * error
    earlier = float(before.mean(dtype=np.float64))
    return _row("mean_rating", mean, earlier, "mean of the new ratings", mean - half, mean + half)

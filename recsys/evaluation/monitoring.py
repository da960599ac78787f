"""Monitoring of models: new ratings compared with a fit, and online A/B tests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec
import numpy as np
import polars as pl

from recsys.data.ratings import Ratings, has_items
from recsys.data.times import unix_seconds
from recsys.drift import Stability, latest, popularity_stability, rating_stability
from recsys.errors import DataError
from recsys.evaluation.experiment import evaluate
from recsys.evaluation.results import Evaluation, verdict
from recsys.evaluation.slices import SLICE_NAME, groupings
from recsys.evaluation.split_files import shared_test, unknown_and_known
from recsys.evaluation.splits import Split
from recsys.evaluation.statistics import (
    Ratio,
    at_any_time,
    bca,
    bootstrap,
    shuffled_groups,
)
from recsys.messages import counted, shortened, worded

if TYPE_CHECKING:
    from recsys.recommender import Recommender

_METRICS = {
    "rmse": "root mean squared error of the predictions",
    "mae": "mean absolute error of the predictions",
    "recall": "share of a user's new items that are recommended",
    "ndcg": "quality of the ranking, at most 1",
    "coverage": "share of the known items that are recommended",
}
_DRIFTS = {
    "ratings": "change of the distribution of ratings",
    "popularity": "change of the popularity of items",
}
_SCHEMA = {
    "name": pl.String,
    "value": pl.Float64,
    "description": pl.String,
    **dict.fromkeys(("low", "high", "reference"), pl.Float64),
}


class _Row(NamedTuple):
    """Row of the table of a monitoring."""

    name: str
    value: float | None
    description: str
    low: float | None = None
    high: float | None = None
    reference: float | None = None


CLICKS = {
    "click rate": "Share of lists with a click.",
    "clicks per list": "Mean number of clicked items in a list.",
    "first click": "Mean of 1 / rank of the first click of a list, 0 without one.",
    "users who click": "Share of users with a click.",
}
"""Metrics of an online test, with definitions."""

_RESAMPLES = 2000
_COMPARED = {"metric": pl.String} | dict.fromkeys(
    (
        "a",
        "b",
        "difference",
        "low",
        "high",
        "p_value",
        "always_low",
        "always_high",
        "always_p_value",
    ),
    pl.Float64,
)


@dataclass(frozen=True, slots=True)
class Monitoring:
    """Result of `monitor`.

    Attributes
    ----------
    table : polars DataFrame
        Columns name, value, low and high (the confidence interval), reference (the value for the
        model's own ratings, or that expected by chance), description.
    drift : dict of str to Stability
        Drift of "ratings" and "popularity", where it can be measured.
    evaluation : Evaluation or None
        Metrics on the new ratings; None if no new rating has both a known user and a known item.
    """

    table: pl.DataFrame
    drift: dict[str, Stability]
    evaluation: Evaluation | None

    @property
    def values(self) -> dict[str, float]:
        """Values by name, without missing ones."""
        rows = self.table.drop_nulls("value").select("name", "value").iter_rows()
        return {str(name): float(value) for name, value in rows}

    @property
    def groups(self) -> pl.DataFrame:
        """Shares of the groups that define the drift: drift, group, before, now."""
        shares = dict.fromkeys(("before", "now"), pl.Float64)
        rows = [
            (name, *group)
            for name, shift in self.drift.items()
            for group in zip(shift.groups, shift.before, shift.now, strict=True)
        ]
        schema = {"drift": pl.String, "group": pl.String, **shares}
        return pl.DataFrame(rows, schema, orient="row")


def monitor(
    recommender: Recommender,
    new: Ratings,
    n: int | Sequence[int] = 10,
    *,
    reference: Mapping[str, float] | None = None,
    by: str | Sequence[str] = (),
    by_user: str | Sequence[str] = (),
    resamples: int = 1000,
    confidence: float = 0.95,
    random_state: int = 0,
) -> Monitoring:
    """Compare new ratings with the ratings of a model, and evaluate the model on them.

    Unknown users and items are those without ratings in the model. Each is counted once;
    "unknown_ratings" counts their ratings. Drift is measured against the newest ratings of the
    model (see `recsys.drift`). Metrics use the new ratings of known users and items, except those
    that the model was fitted to.

    Parameters
    ----------
    recommender : Recommender
        Fitted recommender.
    new : Ratings
    n : int or sequence of int
        Lengths of the recommendations.
    reference : mapping of str to float, optional
        Earlier values of metrics by name, such as "ndcg@10" or "ndcg@10[age=under 25]".
    by, by_user : str or sequence of str
        Columns of the tables of the model by whose groups of items and users the ranking metrics
        are listed, too, as in `evaluate`.
    resamples, confidence, random_state
        As in `evaluate`.

    Raises
    ------
    DataError
        If there are no new ratings, they are implicit and the ratings of the model are not, or
        no user with new ratings is in a group.

    Examples
    --------
    >>> import recsys
    >>> split = recsys.time_split(recsys.read_ratings(recsys.sample_path()))
    >>> found = monitor(recsys.Recommender("bias").fit(split.train), split.test, resamples=100)
    >>> 0 < found.values["unknown_users"] < 1
    True
    """
    train = recommender.ratings
    if not new.n_ratings:
        raise DataError("There are no new ratings to monitor.")
    if new.implicit and train.rule.graded:
        new = new.with_dislikes_as_grades()
    if new.implicit and not train.implicit:
        raise DataError("The model was fitted to ratings, and the new data have none.")
    groupings(train, by, by_user)  # a column that a table lacks is an early error
    drift = _drifts(train, new)
    rows = [_Row("new_ratings", new.n_ratings, "ratings in the new data")]
    rows += _unknown(train, new, confidence)
    for name, shift in drift.items():
        text = f"{_DRIFTS[name]}: {shift.verdict}"
        rows.append(_Row(f"{name}_drift", shift.index, text, reference=shift.chance))
    if not train.implicit:
        rows.append(_means(train, new, confidence))
    used = _share_of_catalogue(train, new)
    rows.append(
        _Row("catalogue_used", used, "share of the known items with new ratings")
    )
    label = recommender.model.name
    result = None
    splits: dict[str, Split] = {}
    with suppress(DataError):  # no usable test rating
        splits = shared_test({label: train}, new).splits
    if splits:
        result = evaluate(
            {label: recommender},
            splits,
            n,
            by=by,
            by_user=by_user,
            resamples=resamples,
            confidence=confidence,
            random_state=random_state,
        )
        # An error can be compared with the training error even without earlier values.
        before = {"rmse": recommender.training.get("train_rmse")}
        rows += _measured(result, before | dict(reference or {}))
    table = pl.DataFrame(
        [
            row._replace(description=worded(row.description, implicit=train.implicit))
            for row in rows
        ],
        _SCHEMA,
        orient="row",
    ).select("name", "value", "low", "high", "reference", "description")
    return Monitoring(table, drift, result)


def _drifts(known: Ratings, new: Ratings) -> dict[str, Stability]:
    """Return the drifts that can be measured, by name."""
    drifts = {
        "ratings": rating_stability(known, new),
        "popularity": popularity_stability(known, new),
    }
    return {name: shift for name, shift in drifts.items() if shift is not None}


def _share_of_catalogue(known: Ratings, new: Ratings) -> float:
    """Return the share of the items with ratings in the model that have new ones."""
    is_rated = has_items(known)
    indices = known.items.find(new.items.take(np.flatnonzero(has_items(new))))
    n_rated_again = int(is_rated[indices[indices >= 0]].sum())
    return n_rated_again / max(1, int(is_rated.sum()))


def _measured(
    result: Evaluation,
    before: Mapping[str, float | None],
) -> list[_Row]:
    """Return the metrics on the new ratings, also of groups, next to earlier values."""
    rows = []
    columns = ["name", "metric", "value", "low", "high"]
    for frame in (
        result.metrics.with_columns(name="metric"),
        result.slices.with_columns(SLICE_NAME),
    ):
        for name, metric, value, low, high in frame.select(columns).iter_rows():
            kind = metric.partition("@")[0]
            if kind in _METRICS:
                text = _METRICS[kind]
                rows.append(_Row(name, value, text, low, high, before.get(name)))
    return rows


def _unknown(
    known: Ratings,
    new: Ratings,
    confidence: float,
) -> list[_Row]:
    """Return the shares of unknown users, items and ratings, and of repeated ratings."""
    from scipy.stats import binomtest  # slow to import

    rows = []
    for kind in ("user", "item"):
        rated = np.flatnonzero(new.counts(kind))
        indices = known.axis(kind).ids.find(new.axis(kind).ids.values)
        is_known = (indices >= 0) & (known.counts(kind) > 0)[indices]
        missing = int((~is_known[rated]).sum())
        # Wilson's interval stays within 0 and 1, also for shares near them.
        low, high = binomtest(missing, len(rated)).proportion_ci(confidence, "wilson")
        text = f"share of the {len(rated):,} {kind}s that the model has no ratings of"
        share = missing / len(rated)
        rows.append(_Row(f"unknown_{kind}s", share, text, low, high))
    unknown, repeated = unknown_and_known(known, new)
    for name, mask, said in (
        ("unknown", unknown, "that are of unknown users or items"),
        ("repeated", repeated, "whose pair of user and item the model was fitted to"),
    ):
        text = f"share of the new ratings {said}"
        rows.append(_Row(f"{name}_ratings", float(mask.mean()), text))
    return rows


def _means(
    known: Ratings,
    new: Ratings,
    confidence: float,
) -> _Row:
    """Return the means of the new ratings and of the newest ratings of the model."""
    positions = latest(known, new.n_ratings)
    before = known.values if positions is None else known.values_at(positions)
    mean = float(new.values.mean(dtype=np.float64))
    half = 0.0
    if new.n_ratings > 1:
        # mean +- z s / sqrt(n)
        error = float(new.values.std(dtype=np.float64, ddof=1)) / sqrt(new.n_ratings)
        half = NormalDist().inv_cdf((1 + confidence) / 2) * error
    reference = float(before.mean(dtype=np.float64))
    text = "mean of the new ratings"
    return _Row("mean_rating", mean, text, mean - half, mean + half, reference)


class _Item(msgspec.Struct):
    item: int | str


class _List(msgspec.Struct):
    """Line of the log, with the fields in use."""

    time: str
    user: int | str | None
    items: list[_Item]
    model: str = ""
    variant: Literal["a", "b"] | None = None
    probabilities: list[float] | None = None


@dataclass(frozen=True, slots=True)
class OnlineTest:
    """Result of `online_test`.

    `metrics` has a row for each of `CLICKS`: metric, a, b, difference (b minus a), low, high (its
    interval by the bootstrap over users), p_value (of a randomization test over users), always_low,
    always_high and always_p_value (that hold however often one looks; null for fewer than 20 users
    or no clicks of a variant), verdict ("better" or "worse" if b is so significantly, else null).
    `counts` has the lists, users and models of both variants, and the lists and clicks that were
    left out.
    """

    metrics: pl.DataFrame
    counts: dict[str, Any]
    confidence: float


def read_lists(path: str | Path) -> pl.DataFrame:
    """Read the log of `recsys serve --log`; return one row per recommended item.

    The columns are list (a number), user (String, null if unnamed), variant (null without a test),
    model, time (Int64, milliseconds since 1970), item (String), probability (of the item at this
    rank, null if unknown) and rank. A line that the log has twice counts once.

    Raises
    ------
    DataError
        If the file is missing, or a line does not belong to such a log.
    """
    rows: list[tuple[Any, ...]] = []
    for line in _lines(Path(path)):
        user = None if line.user is None else str(line.user)
        items = [str(entry.item) for entry in line.items]
        probabilities: list[Any] = line.probabilities or [None] * len(items)
        if len(probabilities) != len(items):
            raise DataError(
                f"{path}, list {len(rows) + 1}: there must be a probability for each of "
                f"{counted(len(items), 'item')}; got {len(probabilities)}."
            )
        rows.append((user, line.variant, line.model, line.time, items, probabilities))
    if not rows:
        raise DataError(f"{path} has no recommendations.")
    texts = dict.fromkeys(("user", "variant", "model", "time"), pl.String)
    schema: dict[str, Any] = {
        **texts,
        "item": pl.List(pl.String),
        "probability": pl.List(pl.Float64),
    }
    times = pl.col("time").str.to_datetime(time_zone="UTC", strict=False)
    frame = pl.DataFrame(rows, schema, orient="row")
    # A log that is read twice, such as a copy of it, has shown its lists once.
    frame = frame.unique(maintain_order=True)
    frame = frame.with_columns(milliseconds=times.dt.epoch("ms"))
    unread = frame.filter(pl.col("milliseconds").is_null())["time"]
    if len(unread):
        raise DataError(
            f"{path}: {shortened(unread[0])!r} is not a time, such as 2026-01-31T12:00:00Z."
        )
    # A click on such an item would have two ranks.
    n_items = pl.col("item").list.len()
    for row in frame.filter(pl.col("item").list.n_unique() < n_items).to_dicts():
        raise DataError(
            f"{path}: the list of user {row['user']!r} at {row['time']} has an item twice."
        )
    lists = frame.select(
        "user",
        "variant",
        "model",
        pl.col("milliseconds").alias("time"),
        "item",
        "probability",
        rank=pl.int_ranges(1, n_items + 1),
    )
    return lists.with_row_index("list").explode("item", "rank", "probability")


def _lines(path: Path) -> Iterator[_List]:
    """Yield the lines of a log, without blank ones, which were erased."""
    decoder = msgspec.json.Decoder(_List)
    try:
        stream = path.open("rb")
    except OSError as error:
        reason = (error.strerror or "").lower()
        raise DataError(f"{path} cannot be read: {reason}.") from None
    with stream:
        for number, line in enumerate(stream, start=1):
            if line.isspace():
                continue
            try:
                yield decoder.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                reason = str(error).rstrip(".")
                raise DataError(
                    f"{path}, line {number}: this is not a line of a log of "
                    f"recommendations (recsys serve --log): {reason}."
                ) from None


def online_test(
    lists: pl.DataFrame,
    clicks: Mapping[str, pl.Series],
    *,
    confidence: float = 0.95,
    random_state: int = 0,
) -> OnlineTest:
    """Test whether users click more on the lists of model b than on lists of model a.

    A click is attributed to the last list before it with this user and item. The test is over
    users; unnamed users, and users with lists of both models, are left out. `lists` is the result
    of `read_lists`; `clicks` has the columns user and item, and optionally timestamp.

    Raises
    ------
    DataError
        If a model has no lists to users who can be included.
    """
    is_assigned = pl.col("user").is_not_null() & pl.col("variant").is_not_null()
    assigned = lists.filter(is_assigned)
    n_variants = assigned.group_by("user").agg(n=pl.col("variant").n_unique())
    both = n_variants.filter(pl.col("n") > 1)["user"]
    used = assigned.filter(~pl.col("user").is_in(both.implode()))
    if used["variant"].n_unique() < 2:
        raise DataError(
            "The log has no lists of two models to different users; `recsys serve --model-b OTHER "
            "--log FILE` makes such a log."
        )
    clicked = attributed_clicks(used, clicks)
    counts: dict[str, Any] = {}
    for name in ("a", "b"):
        part = used.filter(variant=name)
        counts[name] = {
            "lists": part["list"].n_unique(),
            "users": part["user"].n_unique(),
            "models": sorted(part["model"].unique()),
        }
    counts["lists_of_strangers"] = lists.filter(~is_assigned)["list"].n_unique()
    counts["users_of_both"] = len(both)
    counts["clicks"] = len(clicks["user"])
    counts["clicks_on_lists"] = len(clicked)
    table = _compared(clicks_of_users(used, clicked), confidence, random_state)
    return OnlineTest(table, counts, confidence)


def attributed_clicks(
    lists: pl.DataFrame, clicks: Mapping[str, pl.Series]
) -> pl.DataFrame:
    """Return the distinct clicks on lists: list, item and rank.

    Raises
    ------
    DataError
        If there are clicks, but none is on a list.
    """
    columns = {name: clicks[name].cast(pl.String) for name in ("user", "item")}
    # A click without a time is taken to be later than all lists.
    frame = pl.DataFrame(columns).with_columns(time=pl.lit(2**62, pl.Int64))
    if "timestamp" in clicks:
        # Use the end of the second, because a list in the same second may precede the click.
        milliseconds = unix_seconds(clicks["timestamp"]).cast(pl.Int64) * 1000 + 999
        frame = frame.with_columns(time=milliseconds)
    # Polars does not check the order within groups, but warns; both are sorted.
    matches = frame.sort("time").join_asof(
        lists.select("user", "item", "list", "rank", "time").sort("time"),
        on="time",
        by=["user", "item"],
        check_sortedness=False,
    )
    clicked = matches.drop_nulls("list").select("list", "item", "rank").unique()
    if len(frame) and clicked.is_empty():
        raise DataError(
            f"None of {counted(len(frame), 'click')} is on an item of a list before it; the clicks "
            "and the log must have the same users, items and times."
        )
    return clicked


def clicks_of_users(lists: pl.DataFrame, clicked: pl.DataFrame) -> pl.DataFrame:
    """Return sums for each user: lists, lists with a click, clicks, 1 / rank of first clicks."""
    by_list = clicked.group_by("list").agg(
        clicks=pl.len(), first=1 / pl.col("rank").min()
    )
    shown = lists.select("list", "user", "variant").unique()
    shown = shown.join(by_list, on="list", how="left").fill_null(0)
    by_user = shown.group_by("user", "variant").agg(
        lists=pl.len(),
        with_click=(pl.col("clicks") > 0).sum(),
        clicks=pl.col("clicks").sum(),
        first=pl.col("first").sum(),
    )
    return by_user.sort("user")  # so that the same seed draws the same users


def click_ratios(per_user: pl.DataFrame) -> list[Ratio]:
    """Return each of the metrics `CLICKS` as a ratio over users."""
    metrics = pl.DataFrame(
        {
            "click rate": per_user["with_click"],
            "clicks per list": per_user["clicks"],
            "first click": per_user["first"],
            "users who click": per_user["clicks"] > 0,
        }
    )
    above = metrics.to_numpy().astype(np.float64)
    below = np.repeat(per_user["lists"].to_numpy()[:, None], len(CLICKS), axis=1)
    below = below.astype(np.float64)
    # The share of users who click is per user, the other metrics are per list.
    below[:, -1] = 1.0
    return [Ratio(*columns) for columns in zip(above.T, below.T, strict=True)]


def _compared(
    per_user: pl.DataFrame,
    confidence: float,
    random_state: int,
) -> pl.DataFrame:
    """Return the table of metrics."""
    a, b = (click_ratios(per_user.filter(variant=variant)) for variant in ("a", "b"))
    sampled_a = bootstrap(a, _RESAMPLES, random_state)
    # The groups are independent; one seed would draw the same positions in both.
    sampled_b = bootstrap(b, _RESAMPLES, random_state + 1)
    second = (per_user["variant"] == "b").to_numpy()
    p_values = shuffled_groups(
        click_ratios(per_user), second, random_state=random_state
    )
    rows = []
    for name, old, new, sampled, p_value in zip(
        CLICKS, a, b, (sampled_b - sampled_a).T, p_values.tolist(), strict=True
    ):
        difference = new.value - old.value
        # Without a user of one group, the value of the other remains.
        without_old = new.value - old.leave_one_out()
        without_new = new.leave_one_out() - old.value
        left_out = np.concatenate([without_old, without_new])
        ends = bca(sampled, difference, left_out, confidence)
        always = at_any_time(old, new, confidence)
        rows.append((name, old.value, new.value, difference, *ends, p_value, *always))
    return pl.DataFrame(rows, _COMPARED, orient="row").with_columns(
        # More clicks, and earlier ones, are better.
        verdict=verdict(pl.col("difference"), pl.col("p_value") < 1 - confidence)
    )

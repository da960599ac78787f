"""Monitoring of models: new ratings compared with a fit, and online A/B tests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np
import polars as pl

from recsys.data.ratings import Ratings, has_items
from recsys.data.times import unix_seconds
from recsys.drift import Stability, latest, popularity_stability, rating_stability
from recsys.errors import DataError
from recsys.evaluation.experiment import evaluate
from recsys.evaluation.results import Evaluation
from recsys.evaluation.split_files import shared_test, unknown_and_known
from recsys.evaluation.statistics import Ratio, bootstrap, percentiles, shuffled_groups
from recsys.messages import shortened

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
    **dict.fromkeys(("value", "low", "high", "reference"), pl.Float64),
    "description": pl.String,
}
_Row = tuple[str, float, float | None, float | None, float | None, str]

CLICKS = {
    "click rate": "Share of lists with a click.",
    "clicks per list": "Mean number of clicked items in a list.",
    "first click": "Mean of 1 / rank of the first click of a list, 0 without one.",
    "users who click": "Share of users with a click.",
}
"""Metrics of an online test, with definitions."""

_RESAMPLES = 2000


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
        parts = [
            pl.DataFrame(
                {"group": shift.groups, "before": shift.before, "now": shift.now}
            ).select(pl.lit(name).alias("drift"), pl.all())
            for name, shift in self.drift.items()
        ]
        empty = {
            "drift": pl.String,
            "group": pl.String,
            "before": pl.Float64,
            "now": pl.Float64,
        }
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
        Earlier values of metrics by name, such as "ndcg@10".
    resamples, confidence, random_state
        As in `evaluate`.

    Raises
    ------
    DataError
        If there are no new ratings, or they are implicit and the ratings of the model are not.

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
    if new.implicit and not train.implicit:
        raise DataError("The model was fitted to ratings, and the new data have none.")
    rows: list[_Row] = [
        ("new_ratings", new.n_ratings, None, None, None, "ratings in the new data")
    ]
    rows += _unknown(train, new, confidence)
    drift = {
        "ratings": rating_stability(train, new),
        "popularity": popularity_stability(train, new),
    }
    found_drift = {name: shift for name, shift in drift.items() if shift is not None}
    for name, shift in found_drift.items():
        what = f"{_DRIFTS[name]}: {shift.verdict}"
        rows.append((f"{name}_drift", shift.index, None, None, shift.chance, what))
    if not train.implicit:
        rows.append(_means(train, new, confidence))
    rated = new.items.take(np.flatnonzero(has_items(new)))
    of_known = train.items.find(rated)
    in_train = has_items(train)
    n_covered = int(in_train[of_known[of_known >= 0]].sum())
    covered = n_covered / max(1, int(in_train.sum()))
    said = "share of the known items with new ratings"
    rows.append(("catalogue_used", covered, None, None, None, said))
    try:
        splits = shared_test({recommender.model.name: train}, new).splits
    except DataError:  # no usable test rating
        return Monitoring(pl.DataFrame(rows, _SCHEMA, orient="row"), found_drift, None)
    result = evaluate(
        {recommender.model.name: recommender},
        splits,
        n,
        resamples=resamples,
        confidence=confidence,
        random_state=random_state,
    )
    before = {"rmse": recommender.training.get("train_rmse")} | dict(reference or {})
    for row in result.metrics.filter(pl.col("kind").is_in(list(_METRICS))).to_dicts():
        said, earlier = _METRICS[row["kind"]], before.get(row["metric"])
        rows.append(
            (row["metric"], row["value"], row["low"], row["high"], earlier, said)
        )
    return Monitoring(pl.DataFrame(rows, _SCHEMA, orient="row"), found_drift, result)


def _unknown(known: Ratings, new: Ratings, confidence: float) -> list[_Row]:
    """Return the shares of unknown users, items and ratings, and of repeated ratings."""
    from scipy.stats import binomtest  # slow to import

    rows: list[_Row] = []
    for kind in ("user", "item"):
        rated = np.flatnonzero(new.counts(kind))
        indices = known.axis(kind).ids.find(new.axis(kind).ids.values)
        is_known = (indices >= 0) & (known.counts(kind) > 0)[indices]
        missing = int((~is_known[rated]).sum())
        low, high = binomtest(missing, len(rated)).proportion_ci(confidence, "wilson")
        said = f"share of the {len(rated):,} {kind}s that the model has no ratings of"
        rows.append((f"unknown_{kind}s", missing / len(rated), low, high, None, said))
    unknown, repeated = unknown_and_known(known, new)
    said = "share of the new ratings that are of unknown users or items"
    rows.append(("unknown_ratings", float(unknown.mean()), None, None, None, said))
    said = (
        "share of the new ratings whose pair of user and item the model was fitted to"
    )
    rows.append(("repeated_ratings", float(repeated.mean()), None, None, None, said))
    return rows


def _means(known: Ratings, new: Ratings, confidence: float) -> _Row:
    """Return the means of the new ratings and of the newest ratings of the model."""
    positions = latest(known, new.n_ratings)
    before = known.values if positions is None else known.values_at(positions)
    mean, half = float(new.values.mean(dtype=np.float64)), 0.0
    if new.n_ratings > 1:
        error = float(new.values.std(dtype=np.float64, ddof=1)) / sqrt(new.n_ratings)
        half = NormalDist().inv_cdf((1 + confidence) / 2) * error
    earlier = float(before.mean(dtype=np.float64))
    return (
        "mean_rating",
        mean,
        mean - half,
        mean + half,
        earlier,
        "mean of the new ratings",
    )


class _Item(msgspec.Struct):
    item: int | str


class _List(msgspec.Struct):
    """Line of the log, with the fields in use."""

    time: str
    user: int | str | None
    items: list[_Item]
    model: str = ""
    variant: Literal["a", "b"] | None = None


@dataclass(frozen=True, slots=True)
class OnlineTest:
    """Result of `online_test`.

    `metrics` has a row for each of `CLICKS`: metric, a, b, difference (b minus a), low, high (its
    interval by the bootstrap over users), p_value (of a randomization test over users). `counts`
    has the lists, users and models of both variants, and the lists and clicks that were left out.
    """

    metrics: pl.DataFrame
    counts: dict[str, Any]
    confidence: float


def read_lists(path: str | Path) -> pl.DataFrame:
    """Read the log of `recsys serve --log`; return one row per recommended item.

    The columns are list (a number), user (String, null if unnamed), variant (null without a test),
    model, time (Int64, milliseconds since 1970), item (String) and rank.

    Raises
    ------
    DataError
        If the file is missing, or a line does not belong to such a log.
    """
    columns: dict[str, list[Any]] = {
        name: [] for name in ("user", "variant", "model", "time")
    }
    items: list[list[str]] = []
    for line in _lines(Path(path)):
        columns["user"].append(None if line.user is None else str(line.user))
        columns["variant"].append(line.variant)
        columns["model"].append(line.model)
        columns["time"].append(line.time)
        items.append([str(one.item) for one in line.items])
    if not items:
        raise DataError(f"{path} has no recommendations.")
    types = dict.fromkeys(columns, pl.String)
    times = pl.col("time").str.to_datetime(time_zone="UTC", strict=False).dt.epoch("ms")
    frame = pl.DataFrame(
        {**columns, "item": items}, {**types, "item": pl.List(pl.String)}
    )
    frame = frame.with_columns(times).with_row_index("list")
    if frame["time"].null_count():
        bad = columns["time"][frame["time"].is_null().arg_max() or 0]
        raise DataError(
            f"{path}: {shortened(bad)!r} is not a time, such as 2026-01-31T12:00:00Z."
        )
    ranks = pl.int_ranges(1, pl.col("item").list.len() + 1).alias("rank")
    return frame.with_columns(ranks).explode("item", "rank")


def _lines(path: Path) -> Iterator[_List]:
    """Yield the lines of a log, without blank ones, which were erased."""
    decoder = msgspec.json.Decoder(_List)
    try:
        with path.open("rb") as stream:
            for number, line in enumerate(stream, start=1):
                if not line.isspace():
                    try:
                        yield decoder.decode(line)
                    except (msgspec.DecodeError, UnicodeDecodeError) as error:
                        reason = str(error).rstrip(".")
                        raise DataError(
                            f"{path}, line {number}: this is not a line of a log of "
                            f"recommendations (recsys serve --log): {reason}."
                        ) from None
    except OSError as error:
        raise DataError(
            f"{path} cannot be read: {(error.strerror or '').lower()}."
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
    assigned = lists.filter(
        pl.col("user").is_not_null() & pl.col("variant").is_not_null()
    )
    n_variants = assigned.group_by("user").agg(pl.col("variant").n_unique().alias("n"))
    both = n_variants.filter(pl.col("n") > 1)["user"]
    used = assigned.filter(~pl.col("user").is_in(both.implode()))
    if used["variant"].n_unique() < 2:
        raise DataError(
            "The log has no lists of two models to different users; `recsys serve --model-b OTHER "
            "--log FILE` makes such a log."
        )
    clicked = _clicked(used, clicks)
    per_user = _per_user(used, clicked)
    counts = {
        name: {
            "lists": part["list"].n_unique(),
            "users": part["user"].n_unique(),
            "models": sorted(part["model"].unique()),
        }
        for name, part in (
            ("a", used.filter(variant="a")),
            ("b", used.filter(variant="b")),
        )
    }
    unassigned = lists.filter(pl.col("user").is_null() | pl.col("variant").is_null())
    left_out = {
        "lists_of_strangers": unassigned["list"].n_unique(),
        "users_of_both": len(both),
        "clicks": len(clicks["user"]),
        "clicks_on_lists": len(clicked),
    }
    table = _compared(per_user, confidence, random_state)
    return OnlineTest(table, {**counts, **left_out}, confidence)


def _clicked(lists: pl.DataFrame, clicks: Mapping[str, pl.Series]) -> pl.DataFrame:
    """Return the distinct clicks on lists: list, item and rank."""
    click_frame = pl.DataFrame(
        [clicks[name].cast(pl.String).alias(name) for name in ("user", "item")]
    )
    if "timestamp" in clicks:
        seconds = unix_seconds(clicks["timestamp"])
        # Use the end of the second, because a list in the same second may precede the click.
        click_frame = click_frame.with_columns(
            (seconds.cast(pl.Int64) * 1000 + 999).alias("time")
        )
    else:
        click_frame = click_frame.with_columns(time=pl.lit(2**62, pl.Int64))
    recommended = lists.select("user", "item", "list", "rank", "time").sort("time")
    matches = click_frame.sort("time").join_asof(
        recommended,
        on="time",
        by=["user", "item"],
        strategy="backward",
        check_sortedness=False,
    )
    return matches.drop_nulls("list").select("list", "item", "rank").unique()


def _per_user(lists: pl.DataFrame, clicked: pl.DataFrame) -> pl.DataFrame:
    """Return sums for each user: lists, lists with a click, clicks, 1 / rank of first clicks."""
    by_list = clicked.group_by("list").agg(
        pl.len().alias("clicks"), (1 / pl.col("rank").min()).alias("first")
    )
    by_user_list = lists.group_by("list").agg(
        pl.col("user").first(), pl.col("variant").first()
    )
    joined = by_user_list.join(by_list, on="list", how="left").with_columns(
        pl.col("clicks", "first").fill_null(0)
    )
    return (
        joined.group_by("user", "variant")
        .agg(
            pl.len().alias("lists"),
            (pl.col("clicks") > 0).sum().alias("with_click"),
            pl.col("clicks").sum(),
            pl.col("first").sum(),
        )
        .sort("user")  # so that the same seed draws the same users
    )


def _compared(
    per_user: pl.DataFrame, confidence: float, random_state: int
) -> pl.DataFrame:
    """Return the table of metrics."""
    sums = {
        name: per_user[name].to_numpy().astype(float) for name in per_user.columns[2:]
    }
    one = np.ones(len(per_user))
    ratios = {
        "click rate": Ratio(sums["with_click"], sums["lists"]),
        "clicks per list": Ratio(sums["clicks"], sums["lists"]),
        "first click": Ratio(sums["first"], sums["lists"]),
        "users who click": Ratio((sums["clicks"] > 0).astype(float), one),
    }
    second = (per_user["variant"] == "b").to_numpy()
    groups = [
        [Ratio(ratio.above[users], ratio.below[users]) for ratio in ratios.values()]
        for users in (~second, second)
    ]
    drawn = [
        bootstrap(group, _RESAMPLES, random_state + number)
        for number, group in enumerate(groups)
    ]
    low, high = percentiles(drawn[1] - drawn[0], confidence)
    values = [[ratio.value for ratio in group] for group in groups]
    return pl.DataFrame(
        {
            "metric": list(ratios),
            "a": values[0],
            "b": values[1],
            "difference": np.subtract(values[1], values[0]),
            "low": low,
            "high": high,
            "p_value": shuffled_groups(
                [*ratios.values()], second, random_state=random_state
            ),
        }
    )

"""A/B tests: recommendations that a service has logged, and the clicks of their users."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import polars as pl

from recsys.data.times import unix_seconds
from recsys.errors import DataError
from recsys.evaluation.statistics import Ratio, bootstrap, percentiles, shuffled_groups
from recsys.messages import shortened

METRICS = {
    "click rate": "Lists with a click, as a share of all lists.",
    "clicks per list": "Items that were clicked, for each list.",
    "first click": "Mean of 1 / rank of the first click of a list, 0 without one.",
    "users who click": "Users with a click, as a share of all users.",
}
"""Names and definitions of what is measured."""

_RESAMPLES = 2000


class _Item(msgspec.Struct):
    item: int | str


class _List(msgspec.Struct):
    """A line of the log, as far as it counts."""

    time: str
    user: int | str | None
    items: list[_Item]
    model: str = ""
    variant: Literal["a", "b"] | None = None


@dataclass(frozen=True, slots=True)
class OnlineTest:
    """Clicks of users on the lists of two models.

    `metrics` has a row for each of `METRICS`: metric, a, b, difference (b minus a), low, high (of
    its interval, by the bootstrap over users), p_value (of random groups of users). `counts` has
    the lists, users and models of both variants, and the lists and clicks that do not count.
    """

    metrics: pl.DataFrame
    counts: dict[str, Any]
    confidence: float


def read_lists(path: str | Path) -> pl.DataFrame:
    """Read the log of `recsys serve --log`: one row per recommended item.

    The columns are list (a number), user (String, null for strangers), variant (null without a
    test), model, time (Int64, milliseconds since 1970), item (String) and rank.

    Raises
    ------
    DataError
        If the file is missing, or a line is not one of such a log.
    """
    columns: dict[str, list[Any]] = {name: [] for name in ("user", "variant", "model", "time")}
    items: list[list[str]] = []
    for each in _lines(Path(path)):
        columns["user"].append(None if each.user is None else str(each.user))
        columns["variant"].append(each.variant)
        columns["model"].append(each.model)
        columns["time"].append(each.time)
        items.append([str(one.item) for one in each.items])
    if not items:
        raise DataError(f"{path} has no recommendations.")
    types = dict.fromkeys(columns, pl.String)
    times = pl.col("time").str.to_datetime(time_zone="UTC", strict=False).dt.epoch("ms")
    frame = pl.DataFrame({**columns, "item": items}, {**types, "item": pl.List(pl.String)})
    frame = frame.with_columns(times).with_row_index("list")
    if frame["time"].null_count():
        bad = columns["time"][frame["time"].is_null().arg_max() or 0]
        raise DataError(f"{path}: {shortened(bad)!r} is not a time, such as 2026-01-31T12:00:00Z.")
    ranks = pl.int_ranges(1, pl.col("item").list.len() + 1).alias("rank")
    return frame.with_columns(ranks).explode("item", "rank")


def _lines(path: Path) -> Iterator[_List]:
    """Yield the lines of a log; those that are blank were erased."""
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
        raise DataError(f"{path} cannot be read: {(error.strerror or '').lower()}.") from None


def online_test(
    lists: pl.DataFrame,
    clicks: Mapping[str, pl.Series],
    *,
    confidence: float = 0.95,
    random_state: int = 0,
) -> OnlineTest:
    """Test whether users click more on the lists of model b than on those of model a.

    A click counts for the last list before it that its user got with the item. Users are the unit:
    those with lists of both models, and strangers, are left out. `lists` are those of `read_lists`,
    `clicks` the columns user and item, and timestamp if times count.

    Raises
    ------
    DataError
        If there are no lists of both models to users that are known.
    """
    known = lists.filter(pl.col("user").is_not_null() & pl.col("variant").is_not_null())
    n_variants = known.group_by("user").agg(pl.col("variant").n_unique().alias("n"))
    both = n_variants.filter(pl.col("n") > 1)["user"]
    used = known.filter(~pl.col("user").is_in(both.implode()))
    if used["variant"].n_unique() < 2:
        raise DataError(
            "The log has no lists of two models to users of their own; `recsys serve --model-b "
            "OTHER --log FILE` makes such a log."
        )
    clicked = _clicked(used, clicks)
    per_user = _per_user(used, clicked)
    counts = {
        name: {
            "lists": part["list"].n_unique(),
            "users": part["user"].n_unique(),
            "models": sorted(part["model"].unique()),
        }
        for name, part in (("a", used.filter(variant="a")), ("b", used.filter(variant="b")))
    }
    strangers = lists.filter(pl.col("user").is_null() | pl.col("variant").is_null())
    left_out = {
        "lists_of_strangers": strangers["list"].n_unique(),
        "users_of_both": len(both),
        "clicks": len(clicks["user"]),
        "clicks_on_lists": len(clicked),
    }
    table = _compared(per_user, confidence, random_state)
    return OnlineTest(table, {**counts, **left_out}, confidence)


def _clicked(lists: pl.DataFrame, clicks: Mapping[str, pl.Series]) -> pl.DataFrame:
    """Return the clicks that lists led to: list, item and rank, each once."""
    given = pl.DataFrame([clicks[name].cast(pl.String).alias(name) for name in ("user", "item")])
    if "timestamp" in clicks:
        seconds = unix_seconds(clicks["timestamp"])
        # The end of its second, as it may be after a list within it.
        given = given.with_columns((seconds.cast(pl.Int64) * 1000 + 999).alias("time"))
    else:
        given = given.with_columns(time=pl.lit(2**62, pl.Int64))
    shown = lists.select("user", "item", "list", "rank", "time").sort("time")
    found = given.sort("time").join_asof(
        shown, on="time", by=["user", "item"], strategy="backward", check_sortedness=False
    )
    return found.drop_nulls("list").select("list", "item", "rank").unique()


def _per_user(lists: pl.DataFrame, clicked: pl.DataFrame) -> pl.DataFrame:
    """Return sums for each user: lists, lists with a click, clicks, 1 / rank of first clicks."""
    by_list = clicked.group_by("list").agg(
        pl.len().alias("clicks"), (1 / pl.col("rank").min()).alias("first")
    )
    whole = lists.group_by("list").agg(pl.col("user").first(), pl.col("variant").first())
    joined = whole.join(by_list, on="list", how="left").with_columns(
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


def _compared(per_user: pl.DataFrame, confidence: float, random_state: int) -> pl.DataFrame:
    """Return the table of the metrics."""
    sums = {name: per_user[name].to_numpy().astype(float) for name in per_user.columns[2:]}
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
        bootstrap(group, _RESAMPLES, random_state + number) for number, group in enumerate(groups)
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
            "p_value": shuffled_groups([*ratios.values()], second, random_state=random_state),
        }
    )

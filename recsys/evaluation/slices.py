"""Slices: metrics of groups of users, and of groups of items.

Groups come from the columns of the tables, from the activity of users, and from the popularity of
items in the training part. Numbers and dates are cut at their quartiles. An item with several
values in a column, such as genres, is in several groups.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import polars as pl

from recsys.data.arrays import Doubles, Longs, Mask
from recsys.data.ids import Ids
from recsys.data.ratings import Ratings
from recsys.errors import DataError
from recsys.evaluation.settings import Settings
from recsys.evaluation.statistics import (
    ERRORS,
    Ratio,
    error_ratio,
    holm,
    intervals,
    shuffled_groups,
    sign_flip,
)
from recsys.messages import close_matches, did_you_mean

BUILT_IN = {"item": "popularity", "user": "activity"}
"""Groups without a column: by the number of ratings in the training part."""
_MOST_GROUPS = 20  # groups of a column; the rarer values are one more group
_OTHER = "other"
_NOTHING = pl.Series([], dtype=pl.Float64)
_OF_ERRORS = ("rmse", "mae")  # errors that are measured for groups
_POPULARITY = ("head", "middle", "tail")  # each with a third of the training ratings
_GROUP = dict.fromkeys(("side", "by", "group"), pl.String)
GROUP_VALUES: dict[str, Any] = {"model": pl.String, **_GROUP}
"""Columns of `Evaluation.per_group`, next to user, exposure, relevance and the metrics."""
SLICES: dict[str, Any] = {
    **GROUP_VALUES,
    "metric": pl.String,
    "users": pl.Int64,
    **dict.fromkeys(("value", "low", "high", "gap", "p_value"), pl.Float64),
    **dict.fromkeys(("adjusted", "exposure", "relevance"), pl.Float64),
}
"""Columns of `Evaluation.slices`."""
SLICE_NAME = pl.format("{}[{}={}]", "metric", "by", "group").alias("name")
"""Name of the metric of a group, such as ``ndcg@10[age=under 25]``."""


@dataclass(frozen=True, slots=True)
class Grouping:
    """Groups of users or items.

    Attributes
    ----------
    side : {"user", "item"}
    by : str
        Column of the table, "activity" or "popularity".
    names : list of str
    members : bool ndarray of shape (n_groups, n)
        Whether each user (or item) is in each group.
    ids : Ids
        The n users (or items).
    edges : list
        Lower ends of the ranges of numbers or dates but the first.
    """

    side: Literal["user", "item"]
    by: str
    names: list[str]
    members: Mask
    ids: Ids
    edges: list[Any] | None = None

    def aligned(self, ids: Ids) -> Grouping:
        """Return the same groups of other ids; ids that are new here are in none."""
        if ids is self.ids:
            return self
        indices = self.ids.find(ids.values)
        members = self.members[:, indices] & (indices >= 0)
        return replace(self, members=members, ids=ids)

    def keys(self, number: int) -> dict[str, str]:
        """Return the columns that name a group."""
        return {
            "side": self.side,
            "by": self.by,
            "group": self.names[number],
        }


def groupings(
    train: Ratings,
    by: Sequence[str],
    by_user: Sequence[str],
    like: Sequence[Grouping] = (),
) -> list[Grouping]:
    """Return the groups of items and users by the training part and its tables.

    Ranges are as in `like`, the groups of an earlier fold, if there are any.

    Raises
    ------
    DataError
        If a table lacks a column.
    """
    edges = {(earlier.side, earlier.by): earlier.edges for earlier in like}
    sides: list[tuple[Literal["user", "item"], Sequence[str]]] = [
        ("item", by),
        ("user", by_user),
    ]
    return [
        _grouping(train, side, name, edges.get((side, name)))
        for side, names in sides
        for name in dict.fromkeys(names)
    ]


def has_groups(
    train: Ratings,
    side: Literal["user", "item"],
    by: str,
) -> bool:
    """Return whether users (or items) have groups by this name."""
    return by == BUILT_IN[side] or by in _columns(train, side)


def _columns(train: Ratings, side: Literal["user", "item"]) -> list[str]:
    table = train.axis(side).table
    return [] if table is None else table.frame.columns[1:]


def _grouping(
    train: Ratings,
    side: Literal["user", "item"],
    by: str,
    edges: list[Any] | None,
) -> Grouping:
    axis = train.axis(side)
    columns = _columns(train, side)
    counts = train.counts(side)
    if axis.table is not None and by in columns:
        values = axis.table.aligned(axis.ids)[by]
    elif by != BUILT_IN[side]:
        raise _no_groups(side, by, [BUILT_IN[side], *columns])
    elif side == "user":
        values = pl.Series(counts)
    else:
        members = _groups_of_popularity(counts)
        return Grouping(side, by, [*_POPULARITY], members, axis.ids)
    if values.dtype.is_float():
        values = values.fill_nan(None)
    if values.dtype.is_numeric() or values.dtype.is_temporal():
        if edges is None:
            edges = _edges(values)
        names, members = _ranges(values, edges)
    else:
        names, members = _groups_of_values(values)
    return Grouping(side, by, names, members, axis.ids, edges)


def _no_groups(
    side: str,
    by: str,
    available: list[str],
) -> DataError:
    """Return the error for groups that do not exist."""
    hint = did_you_mean(close_matches(by, available, 1))
    return DataError(
        f"There are no groups of {side}s by {by!r}; there are groups by "
        f"{', '.join(available)}.{hint}"
    )


def _groups_of_popularity(counts: Longs) -> Mask:
    """Return the most popular items with a third of all ratings, the next ones, and the others."""
    order = np.argsort(-counts, kind="stable")
    cumulative = np.cumsum(counts[order])
    n_before = np.empty(len(counts), np.int64)
    n_before[order] = cumulative - counts[order]
    n_groups = len(_POPULARITY)
    # Integers: a sum of floats may put an item on the other side of a third.
    groups = n_before * n_groups // max(1, cumulative[-1])
    groups = np.minimum(groups, n_groups - 1)
    return np.asarray(groups == np.arange(n_groups)[:, None])


def _groups_of_values(values: pl.Series) -> tuple[list[str], Mask]:
    """Return the names of groups by values, and the members of each; nulls are in none."""
    rows = pl.Series("row", np.arange(len(values)))
    table = pl.DataFrame([rows, values.alias("value")])
    # A film has several genres.
    if isinstance(values.dtype, pl.List):
        table = table.explode("value")
    table = table.drop_nulls()
    table = table.with_columns(pl.col("value").cast(pl.String))
    sizes = table.group_by("value").len()
    sizes = sizes.sort(["len", "value"], descending=[True, False])
    names = sizes["value"].to_list()
    # Rare values have too few users for an interval.
    if len(names) > _MOST_GROUPS:
        rare = names[_MOST_GROUPS:]
        names = [*names[:_MOST_GROUPS], _OTHER]
        value = pl.col("value").replace(rare, [_OTHER] * len(rare))
        table = table.with_columns(value)
    members = np.zeros((len(names), len(values)), np.bool_)
    for number, name in enumerate(names):
        of_group = table.filter(value=name)
        members[number, of_group["row"]] = True
    return names, members


def _edges(values: pl.Series) -> list[Any]:
    """Return the quartiles that separate ranges of values."""
    present = values.drop_nulls().sort()
    n = len(present)
    quartiles = present
    if n:
        quartiles = present.gather([n // 4, n // 2, 3 * n // 4])
    # A quartile at the minimum would leave the range below it empty.
    is_above = quartiles > present.min()
    return quartiles.filter(is_above).unique(maintain_order=True).to_list()


def _ranges(values: pl.Series, edges: Sequence[Any]) -> tuple[list[str], Mask]:
    """Return the names of the ranges between edges, and the members of each."""
    groups = np.full(len(values), -1, np.int64)
    has_value = values.is_not_null().to_numpy()
    groups[has_value] = 0
    for edge in edges:
        groups += (values >= edge).fill_null(False).to_numpy()
    shown = [_shown(edge) for edge in edges]
    names = ["all"]
    if shown:
        between = [f"{low} to {high}" for low, high in pairwise(shown)]
        names = [f"under {shown[0]}", *between, f"{shown[-1]} and over"]
    numbers = np.arange(len(names))
    return names, groups == numbers[:, None]


def _shown(edge: Any) -> str:
    return f"{edge:g}" if isinstance(edge, float) else str(edge)


def pooled(parts: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Return the values of users in groups over several folds, by means over the folds."""
    keys = [*_GROUP, "user"]
    return pl.concat(parts).group_by(keys, maintain_order=True).mean()


def summarized(
    per_group: pl.DataFrame,
    names: Sequence[str],
    settings: Settings,
) -> pl.DataFrame:
    """Return `Evaluation.slices` from `Evaluation.per_group`.

    The gap is the mean of a group minus the mean of the other users, tested by shuffled groups.
    For items, it is the mean difference between a user's value for the group and the mean of the
    user's values for the other groups, tested by sign flips.
    """
    rows: list[dict[str, Any]] = []
    of_models = per_group.group_by("model", "side", "by", maintain_order=True)
    for (model, *_), of_grouping in of_models:
        of_model = [*names]
        # Other models may have no errors.
        if of_grouping.get_column("squared_error", default=_NOTHING).count():
            of_model = [*_OF_ERRORS, *names]
        slices = list(_slices(of_grouping, of_model, settings))
        _adjust(slices, of_model)
        for row in slices:
            row["model"] = model
        rows.extend(slices)
    return pl.DataFrame(rows, schema=SLICES)


def _adjust(
    slices: Sequence[dict[str, Any]],
    names: Sequence[str],
) -> None:
    """Add the p values that are adjusted over the groups of a grouping, for each metric."""
    for name in names:
        of_metric = [row for row in slices if row["metric"] == name]
        p_values = [row["p_value"] for row in of_metric]
        adjusted = holm(p_values)
        for row, p_value in zip(of_metric, adjusted, strict=True):
            row["adjusted"] = float(p_value)


def _slices(
    values: pl.DataFrame,
    names: Sequence[str],
    settings: Settings,
) -> Iterator[dict[str, Any]]:
    """Yield a row for each group of a grouping and each metric."""
    by_user = values["side"][0] == "user"
    groups = values.group_by(*_GROUP, maintain_order=True)
    for key, of_group in groups:
        ratios = [group_ratio(of_group, name) for name in names]
        gaps, p_values = _gaps(values, of_group, names, settings, by_user=by_user)
        exposure = relevance = None
        if not by_user:
            exposure = of_group["exposure"].mean()
            relevance = of_group["relevance"].mean()
        bounds = np.full((2, len(names)), np.nan)
        if settings.resamples:
            bounds = intervals(
                ratios, settings.resamples, settings.confidence, settings.random_state
            )
        for number, name in enumerate(names):
            yield {
                **dict(zip(_GROUP, key, strict=True)),
                "metric": name,
                "users": len(of_group),
                "value": ratios[number].value,
                "low": float(bounds[0, number]),
                "high": float(bounds[1, number]),
                "gap": float(gaps[number]),
                "p_value": float(p_values[number]),
                "exposure": exposure,
                "relevance": relevance,
            }


def group_ratio(values: pl.DataFrame, name: str) -> Ratio:
    """Return a metric of a group as a ratio over its users, of rows of `Evaluation.per_group`."""
    if name in ERRORS:
        return error_ratio(values, name)
    return Ratio.mean(values[name].to_numpy())


def _gaps(
    values: pl.DataFrame,
    of_group: pl.DataFrame,
    names: Sequence[str],
    settings: Settings,
    *,
    by_user: bool,
) -> tuple[Any, Any]:
    """Return how much better each metric is in a group, and the p values."""
    seed = settings.random_state
    unknown = np.full(len(names), np.nan)
    nothing = unknown, np.ones(len(names))
    if not by_user:
        # Paired, as a user has relevant items of several groups.
        differences, gaps = _to_other_groups(values, of_group, names)
        if not len(differences):
            return nothing
        if not settings.resamples:
            return gaps, unknown
        return gaps, sign_flip(differences, random_state=seed)
    # A user with several values in a column is in several groups.
    others = values.join(of_group, on="user", how="anti", maintain_order="left")
    others = others.unique("user", maintain_order=True)
    if others.is_empty():
        return nothing
    both = pl.concat([of_group, others])
    ratios = [group_ratio(both, name) for name in names]
    is_member = np.arange(len(of_group) + len(others)) < len(of_group)
    gaps = np.array([_difference(ratio, is_member) for ratio in ratios])
    if not settings.resamples:
        return gaps, unknown
    return gaps, shuffled_groups(ratios, is_member, random_state=seed)


def _to_other_groups(
    values: pl.DataFrame,
    of_group: pl.DataFrame,
    names: Sequence[str],
) -> tuple[Doubles, Doubles]:
    """Return the users' values for a group minus those for their other groups, and the gaps.

    The gap is the mean of the differences; of errors, it is the one between all their ratings.
    """
    columns = pl.col(pl.Float64)
    totals = values.group_by("user").agg(
        columns.sum().name.prefix("total "), n_groups=pl.len()
    )
    totals = totals.filter(pl.col("n_groups") > 1)
    # The signs of the test belong to users in one order, for the same p value each time.
    table = of_group.join(totals, on="user", maintain_order="left")
    others = table.select(
        (pl.col(f"total {name}") - pl.col(name)).alias(name)
        for name in of_group.select(columns).columns
    )
    n_others = table["n_groups"].to_numpy() - 1
    differences = np.empty((len(table), len(names)))
    gaps = np.empty(len(names))
    for number, name in enumerate(names):
        own, other = (group_ratio(frame, name) for frame in (table, others))
        if name in ERRORS:
            differences[:, number] = own.above / own.below - other.above / other.below
            gaps[number] = own.value - other.value
        else:
            differences[:, number] = own.above - other.above / n_others
            gaps[number] = differences[:, number].mean()
    return differences, gaps


def _difference(ratio: Ratio, is_member: Mask) -> float:
    """Return the value of the members minus the value of the others."""
    members = Ratio(ratio.above[is_member], ratio.below[is_member], ratio.transform)
    others = Ratio(ratio.above[~is_member], ratio.below[~is_member], ratio.transform)
    return members.value - others.value

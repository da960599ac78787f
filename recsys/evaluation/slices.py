"""Slices: metrics of groups of users, and of groups of items.

Groups come from the columns of the tables, from the activity of users, and from the popularity of
items in the training part. Numbers and dates are cut at their quartiles. An item with several
values in a column, such as genres, is in several groups.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import polars as pl

from recsys.data.arrays import Doubles, Longs, Mask
from recsys.data.ratings import Ratings
from recsys.errors import DataError
from recsys.evaluation.settings import Settings
from recsys.evaluation.statistics import (
    Ratio,
    bootstrap,
    holm,
    percentiles,
    shuffled_groups,
    sign_flip,
)
from recsys.messages import close_matches, did_you_mean

BUILT_IN = {"item": "popularity", "user": "activity"}
"""Groups without a column: by the number of ratings in the training part."""
_MOST_GROUPS = 20  # groups of a column; the rarer values are one more group
_OTHER = "other"
_POPULARITY = ("head", "middle", "tail")  # each with a third of the training ratings
_GROUP = {"side": pl.String, "by": pl.String, "group": pl.String}
SLICES: dict[str, Any] = {
    "model": pl.String,
    **_GROUP,
    "metric": pl.String,
    "users": pl.Int64,
    "value": pl.Float64,
    "low": pl.Float64,
    "high": pl.Float64,
    "gap": pl.Float64,
    "p_value": pl.Float64,
    "adjusted": pl.Float64,
    "exposure": pl.Float64,
    "relevance": pl.Float64,
}
"""Columns of `Evaluation.slices`."""


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
    """

    side: Literal["user", "item"]
    by: str
    names: list[str]
    members: Mask

    def keys(self, number: int) -> dict[str, str]:
        """Return the columns that name a group."""
        return {"side": self.side, "by": self.by, "group": self.names[number]}


def groupings(
    train: Ratings, by: Sequence[str], by_user: Sequence[str]
) -> list[Grouping]:
    """Return the groups of items and users by the training part and its tables.

    Raises
    ------
    DataError
        If a table lacks a column.
    """
    of_items = [_grouping(train, "item", name) for name in dict.fromkeys(by)]
    of_users = [_grouping(train, "user", name) for name in dict.fromkeys(by_user)]
    return of_items + of_users


def _grouping(train: Ratings, side: Literal["user", "item"], by: str) -> Grouping:
    axis = train.axis(side)
    columns = [] if axis.table is None else axis.table.frame.columns[1:]
    if axis.table is not None and by in columns:
        values = axis.table.aligned(axis.ids)[by]
        return Grouping(side, by, *_groups_of_values(values))
    counts = train.counts(side)
    if by == BUILT_IN["user"] and side == "user":
        return Grouping(side, by, *_groups_of_values(pl.Series(counts)))
    if by == BUILT_IN["item"] and side == "item":
        return Grouping(side, by, list(_POPULARITY), _groups_of_popularity(counts))
    available = [BUILT_IN[side], *columns]
    hint = did_you_mean(close_matches(by, available, 1))
    raise DataError(
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
    groups = n_before * n_groups // max(1, cumulative[-1])
    groups = np.minimum(groups, n_groups - 1)
    return np.asarray(groups == np.arange(n_groups)[:, None])


def _groups_of_values(values: pl.Series) -> tuple[list[str], Mask]:
    """Return the names of groups by values, and the members of each; nulls are in none."""
    is_ordered = values.dtype.is_numeric() or values.dtype.is_temporal()
    if is_ordered:
        names, groups = _ranges(values)
        members = groups == np.arange(len(names))[:, None]
        return names, members
    table = pl.DataFrame({"row": np.arange(len(values)), "value": values})
    if isinstance(values.dtype, pl.List):
        table = table.explode("value")
    table = table.drop_nulls().with_columns(pl.col("value").cast(pl.String))
    sizes = table.group_by("value").len()
    sizes = sizes.sort(["len", "value"], descending=[True, False])
    names = sizes["value"][:_MOST_GROUPS].to_list()
    numbers = {name: number for number, name in enumerate(names)}
    groups = np.array(
        [numbers.get(name, len(names)) for name in table["value"]], np.int64
    )
    members = np.zeros((len(names) + 1, len(values)), np.bool_)
    members[groups, table["row"].to_numpy()] = True
    if len(sizes) > len(names):
        return [*names, _OTHER], members
    return names, members[:-1]


def _ranges(values: pl.Series) -> tuple[list[str], Longs]:
    """Return the ranges between the quartiles, and the range of each value; -1 without one."""
    present = values.drop_nulls().sort()
    quartiles = [
        present[len(present) * part // 4] for part in (1, 2, 3) if len(present)
    ]
    # A quartile at the minimum would leave the range below it empty.
    edges = sorted({edge for edge in quartiles if edge > present[0]})
    groups = np.full(len(values), -1, np.int64)
    has_value = values.is_not_null().to_numpy()
    groups[has_value] = 0
    for edge in edges:
        groups += (values >= edge).fill_null(False).to_numpy()
    shown = [_shown(edge) for edge in edges]
    if not shown:
        return ["all"], groups
    between = [f"{low} to {high}" for low, high in pairwise(shown)]
    return [f"under {shown[0]}", *between, f"{shown[-1]} and over"], groups


def _shown(edge: Any) -> str:
    return f"{edge:g}" if isinstance(edge, int | float) else str(edge)


def pooled(parts: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Return the values of users in groups over several folds, by means over the folds."""
    keys = [*_GROUP, "user"]
    return pl.concat(parts).group_by(keys, maintain_order=True).mean()


def summarized(
    runs: Mapping[str, pl.DataFrame], names: Sequence[str], settings: Settings
) -> pl.DataFrame:
    """Return `Evaluation.slices` from the values of users in groups, by model.

    The gap is the mean of a group minus the mean of the other users, tested by shuffled groups.
    For items, it is the mean difference between a user's value for the group and the mean of the
    user's values for the other groups, tested by sign flips.
    """
    rows: list[dict[str, Any]] = []
    for model, values in runs.items():
        for _, of_grouping in values.group_by("side", "by", maintain_order=True):
            slices = list(_slices(of_grouping, names, settings))
            for name in names:
                of_metric = [part for part in slices if part["metric"] == name]
                adjusted = holm([part["p_value"] for part in of_metric])
                for part, p_value in zip(of_metric, adjusted, strict=True):
                    rows.append({"model": model, **part, "adjusted": float(p_value)})
    return pl.DataFrame(rows, schema=SLICES)


def _slices(
    values: pl.DataFrame, names: Sequence[str], settings: Settings
) -> Iterator[dict[str, Any]]:
    """Yield a row for each group of a grouping and each metric."""
    by_user = values["side"][0] == "user"
    for key, of_group in values.group_by(*_GROUP, maintain_order=True):
        ratios = [Ratio.mean(of_group[name].to_numpy()) for name in names]
        gaps, p_values = _gaps(values, of_group, names, settings, by_user=by_user)
        bounds = np.full((2, len(names)), np.nan)
        if settings.resamples:
            seed = settings.random_state
            samples = bootstrap(ratios, settings.resamples, seed)
            bounds = percentiles(samples, settings.confidence)
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
                "exposure": None if by_user else of_group["exposure"].mean(),
                "relevance": None if by_user else of_group["relevance"].mean(),
            }


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
    nothing = np.full(len(names), np.nan), np.ones(len(names))
    if not by_user:
        differences = _to_other_groups(values, of_group, names)
        if not len(differences):
            return nothing
        gaps = differences.mean(axis=0)
        if not settings.resamples:
            return gaps, nothing[0]
        return gaps, sign_flip(differences, random_state=seed)
    is_member = values["group"].to_numpy() == of_group["group"][0]
    if is_member.all():
        return nothing
    ratios = [Ratio.mean(values[name].to_numpy()) for name in names]
    gaps = np.array([_difference(ratio, is_member) for ratio in ratios])
    if not settings.resamples:
        return gaps, nothing[0]
    return gaps, shuffled_groups(ratios, is_member, random_state=seed)


def _to_other_groups(
    values: pl.DataFrame, of_group: pl.DataFrame, names: Sequence[str]
) -> Doubles:
    """Return the users' values for a group minus their means for their other groups."""
    total = pl.col(names).sum().name.prefix("total ")
    totals = values.group_by("user").agg(total, pl.len().alias("n_groups"))
    table = of_group.join(totals.filter(pl.col("n_groups") > 1), on="user")
    n_others = pl.col("n_groups") - 1
    differences = [
        pl.col(name) - (pl.col(f"total {name}") - pl.col(name)) / n_others
        for name in names
    ]
    return table.select(differences).to_numpy()


def _difference(ratio: Ratio, is_member: Mask) -> float:
    """Return the mean of the members minus the mean of the others."""
    means = [
        ratio.above[group].sum() / ratio.below[group].sum()
        for group in (is_member, ~is_member)
    ]
    return float(means[0] - means[1])

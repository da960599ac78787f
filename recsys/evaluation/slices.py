"""Slices: metrics of groups of users, and of groups of items.

Groups come from the columns of the tables, from the activity of users, and from the popularity of
items in the training part. Numbers and dates are cut at their quartiles. An item with several
values in a column, such as genres, is in several groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import polars as pl

from recsys.data.arrays import Doubles, Longs, Mask
from recsys.data.ids import Ids
from recsys.data.ratings import Ratings
from recsys.errors import DataError
from recsys.evaluation.settings import Settings, names_of
from recsys.evaluation.statistics import (
    ERRORS,
    FLIPS,
    Ratio,
    adjusted,
    intervals,
    ratio_of,
    shuffled_groups,
    sign_flip,
)
from recsys.messages import absent

BUILT_IN = {"item": "popularity", "user": "activity"}
"""Groups without a column: by the number of ratings in the training part."""
_MOST_GROUPS = 20  # groups of a column; the rarer values are one more group
_OTHER = "other"
_OF_ERRORS = ("rmse", "mae")  # errors that are measured for groups
_POPULARITY = ("head", "middle", "tail")  # each with a third of the training ratings
_GROUP = dict.fromkeys(("side", "by", "group"), pl.String)
GROUP_VALUES: dict[str, Any] = {"model": pl.String, **_GROUP}
"""Columns of `Evaluation.per_group`, next to user, exposure, relevance and the metrics."""
SLICES: dict[str, Any] = {
    **GROUP_VALUES,
    "metric": pl.String,
    "users": pl.Int64,
    **dict.fromkeys(
        ("value", "low", "high", "gap", "p_value", "adjusted", "exposure", "relevance"),
        pl.Float64,
    ),
}
"""Columns of `Evaluation.slices`."""
SLICE_NAME = pl.format("{}[{}={}]", "metric", "by", "group").alias("name")
"""Name of the metric of a group, such as ``ndcg@10[age=under 25]``."""
Side = Literal["user", "item"]


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
    edges : Series, optional
        Lower ends of the ranges of numbers or dates but the first.
    """

    side: Side
    by: str
    names: list[str]
    members: Mask
    ids: Ids
    edges: pl.Series | None = None

    def aligned(self, ids: Ids) -> Grouping:
        """Return the same groups of other ids; ids that are new here are in none."""
        indices = self.ids.find(ids.values)
        members = self.members[:, indices] & (indices >= 0)
        return replace(self, members=members, ids=ids)


def groupings(
    train: Ratings,
    by: str | Sequence[str],
    by_user: str | Sequence[str],
    like: Sequence[Grouping] = (),
) -> list[Grouping]:
    """Return the groups of items and users by the training part and its tables.

    Ranges are as in `like`, the groups of an earlier fold, if there are any.

    Raises
    ------
    DataError
        If a table lacks a column, or groups of items and of users would have the same name.
    """
    of_items = names_of(by)
    of_users = names_of(by_user)
    for name in of_items:
        if name in of_users:
            raise DataError(
                f"Groups of items and groups of users by {name!r} would have the same names; "
                "rename the column in one of the tables, or leave out one of them."
            )
    edges = {earlier.by: earlier.edges for earlier in like}
    sides: dict[str, Side] = {
        **dict.fromkeys(of_items, "item"),
        **dict.fromkeys(of_users, "user"),
    }
    return [
        _grouping(train, side, name, edges.get(name)) for name, side in sides.items()
    ]


def group_columns(train: Ratings, side: Side) -> list[str]:
    """Return the names by which users (or items) have groups."""
    table = train.axis(side).table
    return [BUILT_IN[side], *([] if table is None else table.kinds)]


def _grouping(
    train: Ratings,
    side: Side,
    by: str,
    edges: pl.Series | None,
) -> Grouping:
    """Return the groups by a column, or by the number of training ratings."""
    available = group_columns(train, side)
    if by not in available:
        raise DataError(absent("column", by, f"{side}s", available))
    axis = train.axis(side)
    column = axis.column(by)
    values = pl.Series(train.counts(side)) if column is None else column
    rows = pl.DataFrame({"value": values}).with_row_index("row")
    # A film has several genres.
    if isinstance(values.dtype, pl.List):
        rows = rows.explode("value")
    rows = rows.fill_nan(None).drop_nulls()
    values = rows["value"]
    if side == "item" and column is None:
        names = [*_POPULARITY]
        numbers = _thirds(values.to_numpy())
    elif values.dtype.is_numeric() or values.dtype.is_temporal():
        if edges is None:
            edges = _quartiles(values)
        names = _ranges(edges)
        numbers = edges.search_sorted(values, "right").to_numpy()
    else:
        names, numbers = _most_common(values.cast(pl.String))
    members = np.zeros((len(names), len(axis.ids)), np.bool_)
    members[numbers, rows["row"]] = True
    return Grouping(side, by, names, members, axis.ids, edges)


def _thirds(counts: Longs) -> Longs:
    """Return 0 for the most popular items with a third of all ratings, then 1, and 2."""
    order = np.argsort(-counts, kind="stable")
    sorted_counts = counts[order]
    n_before = np.cumsum(sorted_counts) - sorted_counts
    thirds = np.empty_like(order)
    # Integers: a sum of floats may put an item on the other side of a third.
    n_ratings = np.maximum(counts.sum(), 1)
    thirds[order] = np.minimum(n_before * 3 // n_ratings, 2)
    return thirds


def _quartiles(values: pl.Series) -> pl.Series:
    """Return the quartiles that separate ranges of values."""
    n = len(values)
    if not n:
        return values
    quartiles = values.sort().gather([n // 4, n // 2, 3 * n // 4])
    # A quartile at the minimum would leave the range below it empty.
    return quartiles.filter(quartiles > values.min()).unique(maintain_order=True)


def _ranges(edges: pl.Series) -> list[str]:
    """Return the names of the ranges between edges."""
    shown = [str(edge) for edge in edges]
    if edges.dtype.is_float():
        # All digits: ranges between other edges have other names.
        shown = [np.format_float_positional(edge, trim="-") for edge in edges]
    if not shown:
        return ["all"]
    between = [f"{low} to {high}" for low, high in pairwise(shown)]
    return [f"under {shown[0]}", *between, f"{shown[-1]} and over"]


def _most_common(texts: pl.Series) -> tuple[list[str], Longs]:
    """Return the most common texts, and the number of each text among them."""
    sizes = texts.value_counts(name="n")
    names = sizes.sort("n", "value", descending=[True, False])["value"].to_list()
    # Rare values have too few users for an interval.
    rare = names[_MOST_GROUPS:]
    if rare:
        texts = texts.replace(rare, _OTHER)
        # A value may have this name.
        names = [*dict.fromkeys([*names[:_MOST_GROUPS], _OTHER])]
    return names, texts.cast(pl.Enum(names)).to_physical().to_numpy()


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
    n_random = FLIPS if settings.resamples else 0
    frames = [pl.DataFrame(schema=SLICES)]
    groupings = per_group.group_by("model", "side", "by", maintain_order=True)
    for (model, side, by), values in groupings:
        measured = [*names]
        # Other models may have no errors.
        if "squared_error" in values.columns and values["squared_error"].count():
            measured = [*_OF_ERRORS, *names]
        for (group,), of_group in values.group_by("group", maintain_order=True):
            ratios = [ratio_of(of_group, name) for name in measured]
            compare = _to_other_users if side == "user" else _to_other_groups
            gaps, p_values = compare(
                values, of_group, measured, n_random, settings.random_state
            )
            low, high = intervals(
                ratios, settings.resamples, settings.confidence, settings.random_state
            )
            columns = {
                "model": model,
                "side": side,
                "by": by,
                "group": group,
                "metric": measured,
                "users": [np.count_nonzero(ratio.below) for ratio in ratios],
                "value": [ratio.value for ratio in ratios],
                "low": low,
                "high": high,
                "gap": gaps,
                "p_value": p_values if n_random else np.nan,
                "exposure": of_group["exposure"].mean(),
                "relevance": of_group["relevance"].mean(),
            }
            frames.append(pl.DataFrame(columns))
    slices = pl.concat(frames, how="diagonal_relaxed")
    return adjusted(slices, "model", "side", "by", "metric").fill_nan(None)


def _to_other_users(
    values: pl.DataFrame,
    of_group: pl.DataFrame,
    names: Sequence[str],
    n_random: int,
    random_state: int,
) -> tuple[Doubles, Doubles]:
    """Return how much better each metric is in a group of users, and the p values."""
    # A user with several values in a column is in several groups.
    both = pl.concat([of_group, values]).unique(
        "user", keep="first", maintain_order=True
    )
    is_member = np.arange(len(both)) < len(of_group)
    ratios = [ratio_of(both, name) for name in names]
    gaps = np.array(
        [ratio.take(is_member).value - ratio.take(~is_member).value for ratio in ratios]
    )
    return gaps, shuffled_groups(ratios, is_member, n_random, random_state)


def _to_other_groups(
    values: pl.DataFrame,
    of_group: pl.DataFrame,
    names: Sequence[str],
    n_random: int,
    random_state: int,
) -> tuple[Doubles, Doubles]:
    """Return how much better each metric is for a group of items, paired by user.

    A user without a value for the group or for other groups is left out.
    """
    users = values["user"].rank("dense").to_numpy() - 1
    is_paired = np.bincount(users)[users] > 1
    is_paired &= (values["group"] == of_group["group"][0]).to_numpy()
    gaps = np.empty(len(names))
    differences = np.zeros((len(values), len(names)))
    for number, name in enumerate(names):
        own = ratio_of(values, name)
        above = np.bincount(users, own.above)[users] - own.above
        below = np.bincount(users, own.below)[users] - own.below
        has_both = is_paired & (own.below > 0) & (below > 0)
        other = replace(own, above=above, below=below).take(has_both)
        own = own.take(has_both)
        by_user = own.above / own.below - other.above / other.below
        differences[has_both, number] = by_user
        # Errors are ratios of sums over users, the others means over users.
        if name not in ERRORS:
            other = Ratio.mean(other.above / other.below)
        gaps[number] = own.value - other.value
    return gaps, sign_flip(differences[is_paired], n_random, random_state)

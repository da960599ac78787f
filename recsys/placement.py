"""Why an item is not in the list of a user: what leaves it out, or its rank and what it lacks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import polars as pl

from recsys.errors import DataError
from recsys.ranking.lists import ListOptions

_OPTIONS = ("items", "block", "where", "where_user")
_SEEN = ("exclude_seen", "seen", "repeat_where")
_NAMED = 5  # what the first items have more of
_ROUNDING = 1e-5  # relative error of the mean of contributions


@dataclass(frozen=True, slots=True)
class Placement:
    """Place of an item among all items that a user can get.

    Attributes
    ----------
    rank : int or None
        Rank by the score, from 1; None if the item cannot be in the list.
    n_ranked : int
        Number of items that can be in the list.
    reasons : tuple of str
        Why the item cannot be in the list: "seen", the options of lists that leave it out ("items",
        "block", "where", "where_user"), "not offered" if a catalogue lacks it, or "no data" without
        ratings and features.
    lacks : polars DataFrame
        What the first n items have more of, the largest difference first: the columns part, item,
        feature, contribution (to the score of the item), of_first (mean contribution to the scores
        of the first items), and title if there are any. It is empty for an item among the first.
    """

    rank: int | None
    n_ranked: int
    reasons: tuple[str, ...]
    lacks: pl.DataFrame


def placement(
    item: int | str,
    n: int,
    options: ListOptions,
    is_offered: bool,
    listed: Callable[[ListOptions], pl.Series],
    explained: Callable[[int | str], pl.DataFrame],
) -> Placement:
    """Return the place of an item in the list of a user.

    `listed` gives all items of the user's list with some options, the best first; `explained`
    gives the explanation of the score of an item.
    """

    def ranked(names: tuple[str, ...]) -> pl.Series:
        values = {name: getattr(options, name) for name in names}
        return listed(ListOptions(**{"exclude_seen": False} | values))

    items = ranked((*_OPTIONS, *_SEEN))
    position = items.index_of(item)
    if position is not None:
        lacks = pl.DataFrame()
        if position >= n:
            lacks = _lacks(item, items.head(n), explained)
        return Placement(position + 1, len(items), (), lacks)
    reasons = []
    if ranked(()).index_of(item) is None:
        reasons.append("no data" if is_offered else "not offered")
    else:
        alone = {"seen": _SEEN} | {name: (name,) for name in _OPTIONS}
        for reason, names in alone.items():
            if ranked(names).index_of(item) is None:
                reasons.append(reason)
    return Placement(None, len(items), tuple(reasons), pl.DataFrame())


def _lacks(
    item: int | str,
    first: pl.Series,
    explained: Callable[[int | str], pl.DataFrame],
) -> pl.DataFrame:
    """Return what contributes more to the scores of the first items than to an item's."""
    try:
        of_item = explained(item)
    except DataError:  # a model that cannot explain its scores still ranks
        return pl.DataFrame()
    of_first = pl.concat(
        [explained(other) for other in first],
        how="diagonal_relaxed",
    )
    keys = [name for name in ("part", "item", "feature") if name in of_first.columns]
    means = of_first.group_by(keys, maintain_order=True).agg(
        of_first=pl.col("contribution").sum() / len(first)
    )
    both = means.join(of_item, on=keys, how="left", nulls_equal=True)
    both = both.with_columns(pl.col("contribution").fill_null(0))
    difference = pl.col("of_first") - pl.col("contribution")
    sizes = pl.max_horizontal(pl.col("of_first").abs(), pl.col("contribution").abs())
    more = both.filter(difference > _ROUNDING * sizes)
    more = more.sort(difference, descending=True, maintain_order=True)
    columns = [*keys, "contribution", "of_first"]
    if "title" in both.columns:
        columns.append("title")
    return more.select(columns).head(_NAMED)

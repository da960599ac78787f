"""Why an item is not in the list of a user: what leaves it out, or its rank and what it lacks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from recsys.errors import DataError
from recsys.ranking.lists import ListOptions

if TYPE_CHECKING:
    from recsys.recommender import IdLike, Recommender

_OPTIONS = ("items", "block", "where", "where_user")
_SEEN = ("exclude_seen", "seen", "repeat_where")
_NAMED = 5  # what the first items have more of


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
        "block", "where", "where_user"), or "no data" without ratings and features.
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
    recommender: Recommender, user: IdLike, item: IdLike, n: int, options: ListOptions
) -> Placement:
    """Return the place of an item; see `Recommender.placement`."""
    ratings = recommender.ratings
    (column,) = ratings.items.index([item]).tolist()

    def ranked(names: tuple[str, ...]) -> pl.Series:
        """Return all items of the user's list with some of the options, the best first."""
        values = {name: getattr(options, name) for name in names}
        chosen = ListOptions(**{"exclude_seen": False} | values)
        batches = recommender.list_batches([user], ratings.n_items, chosen)
        return pl.concat(batch["item"] for batch in batches)

    label = ratings.items.values[column]
    items = ranked((*_OPTIONS, *_SEEN))
    position = items.index_of(label)
    if position is not None:
        lacks = pl.DataFrame()
        if position >= n:
            lacks = _lacks(recommender, user, label, items.head(n))
        return Placement(position + 1, len(items), (), lacks)
    reasons = []
    if ranked(()).index_of(label) is None:
        reasons.append("no data")
    else:
        if ranked(_SEEN).index_of(label) is None:
            reasons.append("seen")
        reasons += [
            name for name in _OPTIONS if ranked((name,)).index_of(label) is None
        ]
    return Placement(None, len(items), tuple(reasons), pl.DataFrame())


def _lacks(
    recommender: Recommender, user: IdLike, item: IdLike, first: pl.Series
) -> pl.DataFrame:
    """Return what contributes more to the scores of the first items than to that of an item."""
    try:
        of_item = recommender.explain(user, item)
    except DataError:  # a model that cannot explain its scores still ranks
        return pl.DataFrame()
    of_first = pl.concat(
        [recommender.explain(user, other) for other in first],
        how="diagonal_relaxed",
    )
    keys = [name for name in ("part", "item", "feature") if name in of_first.columns]
    means = of_first.group_by(keys, maintain_order=True).agg(
        of_first=pl.col("contribution").sum() / len(first)
    )
    both = means.join(of_item, on=keys, how="left", nulls_equal=True)
    names = [name for name in ("feature", "title") if name in both.columns]
    difference = pl.col("of_first") - pl.col("contribution")
    both = both.with_columns(pl.col("contribution").fill_null(0))
    more = both.filter(difference > 0).sort(
        difference, descending=True, maintain_order=True
    )
    columns = dict.fromkeys([*keys, "contribution", "of_first", *names])
    return more.select([*columns]).head(_NAMED)

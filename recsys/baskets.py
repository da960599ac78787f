"""Items that are bought together: support, lift and an interval for each pair."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray

from lowrank import kernels
from lowrank.kernels.topk import Ties
from recsys.data.frames import FrameLike, listed
from recsys.data.ids import IdsLike
from recsys.data.ratings import Ratings
from recsys.errors import DataError
from recsys.models.parts import Doubles, Indices, Mask
from recsys.ranking.filters import blocked_pairs, candidate_mask
from recsys.ranking.lists import ListOptions
from recsys.ranking.rerank import best_items
from recsys.ranking.topn import TopN, best_entries
from recsys.readers import as_ratings

if TYPE_CHECKING:
    import scipy.sparse as sp

BasketsLike: TypeAlias = "Ratings | FrameLike | str | os.PathLike[str]"
Sparse: TypeAlias = "sp.csr_array[Any]"

_PRIOR = 0.5  # baskets; see the notes of `together`
_TAIL = 0.025  # probability on each side of an interval
_BLOCK = 2**22  # counts of pairs at once: 64 MB with their bounds
_DAY = 86400
_ROUNDING = 1e-6  # of the sum of the sizes of quantities that add up to zero


def together(
    ratings: BasketsLike,
    basket: str | None = None,
    n: int = 10,
    *,
    item: IdsLike | None = None,
    items: IdsLike | None = None,
    block: IdsLike | None = None,
    where: str | pl.Expr | None = None,
    at_most: int | None = None,
    per: str | None = None,
) -> pl.DataFrame:
    r"""List the n items that are most surely bought together with each item.

    Parameters
    ----------
    ratings : Ratings, frame or path
        Lines of orders. An item that is twice in a basket counts once.
    basket : str, optional
        Column of the ids of baskets. `Ratings` must have been read with it as the column of
        users (``user="order_id"``). By default, a basket is what a user has bought in a day
        (UTC); of `Ratings` without times, each user is a basket.
    n : int
    item : id or sequence of ids, optional
        Items to list others for; by default all that are bought together with another.
    items, block, where, at_most, per
        Items to list, as in `Recommender.recommend`.

    Returns
    -------
    polars DataFrame
        Columns item, other, both (number of baskets with both), lift, low, high, rank
        (from 1), and the title of the other item if titles are known. By default, the items
        with the surest pairs come first.

    Raises
    ------
    DataError
        If the column of baskets is missing, there are neither baskets nor times, or an option
        is wrong.

    Notes
    -----
    Let two items be in :math:`n_a` and :math:`n_b` of n baskets, and both in :math:`n_{ab}`.
    By chance, :math:`e = n_a n_b / n` baskets would have both. The lift is
    :math:`n_{ab} / e`. With :math:`n_{ab}` a Poisson variable of mean lift times e, `high` is
    the exact upper limit: if it were the lift, so few baskets would have a probability of
    2.5%. For `low`, half a basket is added as if expected and seen (a Gamma prior of mean 1),
    and `low` is the 2.5% quantile of the posterior. Therefore one basket proves nothing: its
    `low` is below 1, however rare the items. In simulations of 35,000 baskets with lifts from
    0.4 to 1,000, at least 96% of the intervals of listed pairs contain the lift.

    References
    ----------
    DuMouchel (1999), "Bayesian data mining in large frequency tables", for the prior.

    Examples
    --------
    >>> orders = {"order": [1, 1, 2, 2, 3, 4], "item": ["tea", "jam", "tea", "jam", "tea", "rye"]}
    >>> pairs = together(pl.DataFrame(orders), "order", item="jam")
    >>> pairs.select("item", "other", "both", "rank").rows()
    [('jam', 'tea', 2, 1)]
    """
    data = as_ratings(ratings, user=basket)
    by_day = basket is None
    if isinstance(ratings, Ratings):
        by_day &= data.seconds is not None
        users = "user" if data.source is None else data.source.options.get("user")
        if basket not in (None, "user", users):
            raise DataError(
                f"These ratings were not read with {basket!r} as the column of users "
                f"(user={basket!r}); give the frame or file itself, or read it so."
            )
    if by_day:
        baskets = Baskets.of_days(data)
    else:
        baskets = Baskets.of_users(data)
        remark = baskets.remark()
        if basket is not None and remark:
            warnings.warn(remark, stacklevel=2)
    options = ListOptions(
        items=items, block=block, where=where, at_most=at_most, per=per
    )
    return baskets.together(item, n, options)


@dataclass(frozen=True, slots=True)
class Baskets:
    """Baskets of items.

    Attributes
    ----------
    ratings : Ratings
        Ids and table of the items.
    matrix : csr_array of shape (n_baskets, n_items)
        Ones for the items in each basket.
    by_item : csr_array of shape (n_items, n_baskets)
        The transposed matrix.
    """

    ratings: Ratings
    matrix: Sparse
    by_item: Sparse

    @classmethod
    def of_users(cls, ratings: Ratings) -> Self:
        """Return the items of each user as a basket."""
        pairs = ratings.as_interactions()
        rows = pairs.user_index_of_nonzeros()
        return cls._of(pairs, rows, pairs.indices)

    @classmethod
    def of_days(cls, ratings: Ratings) -> Self:
        """Return the items of each user on a day (UTC) as a basket.

        Raises
        ------
        DataError
            If there are no times.
        """
        events = ratings.as_interactions().log
        if events.seconds is None:
            raise DataError(
                "Without times there are no baskets of a user's day; name the column of their "
                "ids with --basket-col (basket=), or of times with --timestamp-col (timestamp=)."
            )
        days = np.floor_divide(events.seconds, _DAY).astype(np.int64)
        days -= days.min(initial=0)
        keys = events.users * (days.max(initial=0) + 1) + days
        _, rows = np.unique(keys, return_inverse=True)
        quantities = None
        if ratings.implicit and events.values is not None:
            quantities = events.values.at().astype(np.float64)
        return cls._of(ratings, rows, events.items, quantities)

    @classmethod
    def _of(
        cls,
        ratings: Ratings,
        rows: NDArray[Any],
        items: NDArray[np.int32],
        quantities: NDArray[Any] | None = None,
    ) -> Self:
        from scipy.sparse import coo_array

        shape = int(rows.max(initial=-1)) + 1, ratings.n_items
        if quantities is None:
            quantities = np.ones(len(rows))
        # Entries of a pair are added: what came back as a whole was not bought.
        sums = coo_array((quantities, (rows, items)), shape=shape).tocsr()
        sizes = coo_array((np.abs(quantities), (rows, items)), shape=shape).tocsr()
        is_bought = sums > _ROUNDING * sizes
        matrix = is_bought.astype(np.int32)  # an item that was bought twice counts once
        return cls(ratings, matrix, matrix.T.tocsr())

    def remark(self) -> str:
        """Return a remark if most baskets of users have items of several days, else ""."""
        ratings = self.ratings
        if ratings.seconds is None:
            return ""
        sizes = np.diff(ratings.indptr)
        users = np.flatnonzero(sizes > 1)
        # Pairs are in the order of users; an empty user has no slice.
        starts = ratings.indptr[:-1][sizes > 0]
        seconds = ratings.seconds
        firsts = np.minimum.reduceat(seconds, starts)
        lasts = np.maximum.reduceat(seconds, starts)
        is_long = (lasts - firsts > _DAY)[sizes[sizes > 0] > 1]
        if 2 * is_long.sum() <= len(users):
            return ""
        example = ratings.users.values[int(users[is_long.argmax()])]
        return (
            f"most baskets have items of several days, such as {example!r}; if their ids start "
            "again for each user or day, write both into one column"
        )

    @property
    def counts(self) -> NDArray[np.integer[Any]]:
        """Number of baskets with each item."""
        return np.diff(self.by_item.indptr)

    def expected(self, one: Indices, other: Indices) -> Doubles:
        """Return the number of baskets with both items of pairs to expect by chance."""
        share = self.counts / max(1, self.count)
        return self.counts[one] * share[other]

    @property
    def count(self) -> int:
        """Number of baskets that are not empty."""
        return int(np.count_nonzero(np.diff(self.matrix.indptr)))

    def together(
        self,
        item: IdsLike | None,
        n: int,
        options: ListOptions,
    ) -> pl.DataFrame:
        """Return the frame of the function `together`."""
        ids = self.ratings.items
        queries = np.arange(len(ids))
        if item is not None:
            queries = ids.index(listed(item))
        top, both = self._best(queries, n, options)
        if item is None:
            order = _surest_first(top, ids.hashes)
            top = top.take(order)
            both = both[order]
        index = queries[top.rows]
        expected = self.expected(index, top.items)
        columns = [
            ids.take(index).alias("item"),
            ids.take(top.items).alias("other"),
            pl.Series("both", both),
            pl.Series("lift", both / expected, pl.Float32),
            pl.Series("low", _lower_limits(both, expected), pl.Float32),
            pl.Series("high", _quantiles(both, 1, 1 - _TAIL) / expected, pl.Float32),
            pl.Series("rank", top.ranks),
        ]
        titles = self.ratings.titles
        if titles is not None:
            columns.append(titles[top.items].alias("title"))
        return pl.DataFrame(columns)

    def _best(
        self,
        queries: Indices,
        n: int,
        options: ListOptions,
    ) -> tuple[TopN, NDArray[np.int64]]:
        """Return the items with the highest lower limits, and the baskets with both."""
        block, pairs = blocked_pairs(options.block)
        if pairs is not None:
            raise DataError("Items are blocked for all baskets; leave out the users.")
        allowed = candidate_mask(self.ratings, block, options)
        parts = []
        counts = [np.zeros(0, np.int64)]
        for part in self._blocks(queries):
            of_block = _Block.of(self, queries[part], allowed)
            rows = np.arange(part.stop - part.start)
            for top in best_items(of_block.search, rows, n, self.ratings, options):
                # Without indices, SciPy returns a sparse array.
                if len(top.rows):
                    counts.append(of_block.both[top.rows, top.items])
                parts.append(top.with_rows(top.rows + part.start))
        return TopN.joined(parts), np.concatenate(counts)

    def _blocks(self, queries: Indices) -> list[slice]:
        """Return slices of queries, of which each has few pairs; there is at least one."""
        sizes = np.diff(self.matrix.indptr).astype(np.int64)
        # For each item, the lines of all baskets that have it bound its number of pairs.
        n_lines = (self.by_item @ sizes)[queries]
        indptr = np.append(0, np.cumsum(n_lines))
        return [*kernels.row_blocks(indptr, _BLOCK)] or [slice(0, 0)]


@dataclass(frozen=True, slots=True)
class _Block:
    """Pairs of a block of items: baskets with both, rows, other items, and lower limits."""

    both: Sparse
    rows: Indices
    items: Indices
    low: Doubles
    ties: Ties

    @classmethod
    def of(
        cls,
        baskets: Baskets,
        queries: Indices,
        allowed: Mask | None,
    ) -> Self:
        """Count the baskets that have both items of each pair."""
        both = (baskets.by_item[queries] @ baskets.matrix).tocsr()
        rows, items = both.tocoo().coords
        is_listed = items != queries[rows]
        if allowed is not None:
            is_listed &= allowed[items]
        rows = rows[is_listed]
        items = items[is_listed]
        expected = baskets.expected(queries[rows], items)
        low = _lower_limits(both.data[is_listed], expected)
        ties = Ties(baskets.ratings.items.hashes)
        return cls(both, rows, items, low, ties)

    def search(self, rows: Indices, n: int) -> Iterator[TopN]:
        """Find the n best items of some rows, which are ascending."""
        is_row = np.isin(self.rows, rows)
        at = np.searchsorted(rows, self.rows[is_row])
        yield best_entries(at, self.items[is_row], self.low[is_row], n, self.ties)


def _lower_limits(both: NDArray[np.int64], expected: Doubles) -> Doubles:
    """Return quantiles of the lifts, with a Gamma prior of mean 1."""
    return _quantiles(both, _PRIOR, _TAIL) / (expected + _PRIOR)


def _quantiles(
    both: NDArray[np.int64],
    prior: float,
    probability: float,
) -> Doubles:
    """Return quantiles of Gamma distributions of shape both + prior and scale 1."""
    from scipy.special import gammaincinv

    # Few numbers occur, and their quantiles take long to compute.
    is_present = np.bincount(both) > 0
    numbers = np.flatnonzero(is_present)
    table = np.zeros(len(is_present))
    table[numbers] = gammaincinv(numbers + prior, probability)
    return table[both]


def _surest_first(top: TopN, hashes: NDArray[np.uint64]) -> Indices:
    """Return the order of lists by their best lower limits, ties at random."""
    n_rows = int(top.rows.max(initial=-1)) + 1
    best = np.zeros(n_rows, np.float32)
    is_first = top.ranks == 1
    best[top.rows[is_first]] = top.scores[is_first]
    # The last key counts most.
    keys = (top.ranks, hashes[top.rows], -best[top.rows])
    return np.lexsort(keys)

"""Order of the items in a top-k search and of ties, bounds of scores, and results."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from lowrank.kernels.arrays import Floats32, Hashes, Int32s, Int64s, Ints, Masks

# For fewer queries, sorting all items by length costs more than it saves.
_FEW_QUERIES = 256
_FIRST_STOP = 64  # number of columns before the first stop
_TINY = np.float32(2.0**-70)  # the squares of shorter lengths may underflow


class Seen(NamedTuple):
    """Int32s to leave out for each query q: row ``rows[q]`` of a CSR matrix."""

    rows: Int64s
    indptr: Int64s
    indices: Int32s


class Ties(NamedTuple):
    """Random order of equal scores: ascending ``mixed(items[i] ^ queries[q])``.

    The place of an item depends on its hash and the query's, and so neither on other items
    nor on the number of queries.

    Attributes
    ----------
    items : uint64 ndarray of shape (n_items,)
        Hash of each item.
    queries : uint64 ndarray of shape (n_queries,), optional
        Hash of each query. By default, all queries have the same order.
    """

    items: Hashes
    queries: Hashes | None = None

    def take(self, queries: Ints | slice) -> Ties:
        """Return the order for some of the queries."""
        if self.queries is None:
            return self
        return self._replace(queries=self.queries[queries])

    def places(
        self,
        rows: Ints,
        items: Ints,
    ) -> Hashes:
        """Return what orders equal scores, for pairs of a query and an item."""
        hashes = self.items[items]
        if self.queries is not None:
            hashes = hashes ^ self.queries[rows]
        return mixed(hashes)


def mixed(x: Hashes) -> Hashes:
    """Return a pseudo-random function of 64-bit integers (SplitMix64).

    References
    ----------
    Steele, Lea and Flood (2014), "Fast splittable pseudorandom number generators".
    """
    x = x + np.uint64(0x9E3779B97F4A7C15)  # arrays wrap around silently
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


class TopK(NamedTuple):
    """The best items of each query, best first, and their scores, of shape (n_queries, n).

    In row q, only the first ``counts[q]`` columns are valid.
    """

    items: Int32s
    scores: Floats32
    counts: Int64s


class Stops(NamedTuple):
    """Columns at which long products may stop, and bounds of the remaining products.

    Attributes
    ----------
    at : int64 ndarray of shape (n_stops,)
        Numbers of columns, ascending.
    user_rest, item_rest : float32 ndarrays of shape (n_stops, n_users) and (n_stops, n_order)
        ``user_rest[s, u] * item_rest[s, p]`` is an upper bound on the product of u and the item at
        position p over the columns from ``at[s]`` on, rounding of the kernel included.
    """

    at: Int64s = np.zeros(0, np.int64)
    user_rest: Floats32 = np.zeros((0, 0), np.float32)
    item_rest: Floats32 = np.zeros((0, 0), np.float32)


class SearchOrder(NamedTuple):
    """Int32s in the order of a top-k search, and bounds of the remaining scores.

    Attributes
    ----------
    items : int32 ndarray of shape (n,)
    user_size : float32 ndarray of shape (n_users,) or None
    size, lift : float32 ndarrays of shape (n,) or None
        For all items i from position p on, ``user_size[u] * size[p]`` is an upper bound on the
        product of the vectors of u and i, rounding of the kernel included, and ``lift[p]`` on the
        bias.
    """

    items: Int32s
    user_size: Floats32 | None = None
    size: Floats32 | None = None
    lift: Floats32 | None = None


def search_plan(
    users: Floats32,
    items: Floats32,
    bias: Floats32,
    weight: Floats32 | None,
    allowed: Masks | None,
    fixed: Int32s | None,
    n: int,
    prepared: SearchOrder | None = None,
) -> tuple[SearchOrder, Stops]:
    r"""Return the order of a search for n items, and the stops of products.

    The order is `fixed`, or `prepared` by `item_order`, if one of them is given. Otherwise items
    are in descending order of an upper bound of their score: bias plus length, by the
    Cauchy-Schwarz inequality :math:`x \cdot y \le \|x\| \|y\|`, or the weight of a weighted cosine.
    The lengths are increased by more than the rounding error of k + 3 operations (Higham 2002,
    section 3.1).

    References
    ----------
    Teflioudi, Gemulla and Mykytiuk (2015), "LEMP: Fast retrieval of large entries in a matrix
    product", section 3.
    """
    if prepared is not None:
        return prepared._replace(user_size=_bounds(users)), Stops()
    candidates = fixed
    if candidates is None:
        candidates = np.arange(len(items), dtype=np.int32)
        if allowed is not None:
            candidates = candidates[allowed]
    order = SearchOrder(candidates)
    # Bounds save nothing where a large part of the items is requested.
    if 4 * n > len(candidates) or len(users) < _FEW_QUERIES:
        return order, Stops()
    if fixed is None and weight is not None:
        # A weighted cosine is at most its weight, whatever the user.
        none = np.zeros(len(candidates), np.float32)
        largest = np.abs(weight[candidates])
        order = _by_reach(candidates, none, largest, np.float32(0))
        user_size = np.zeros(len(users), np.float32)
        return order._replace(user_size=user_size), Stops()
    if fixed is None:
        user_size = _bounds(users)
        typical = np.median(user_size)
        if not np.isfinite(typical):
            typical = np.float32(1)
        sizes = _bounds(items[candidates])
        order = _by_reach(candidates, sizes, bias[candidates], typical)
        order = order._replace(user_size=user_size)
    return order, product_stops(users, items, order.items)


def item_order(
    items: Floats32,
    bias: Floats32 | None = None,
    *,
    allowed: Masks | None = None,
    typical: float = 1.0,
) -> SearchOrder:
    """Return the order of `search_plan` for later queries, one or a few at a time.

    Parameters
    ----------
    items : float32 ndarray of shape (n_items, k)
    bias : float32 ndarray of shape (n_items,), optional
    allowed : bool ndarray of shape (n_items,), optional
    typical : float
        Typical length of the vector of a query.
    """
    candidates = np.arange(len(items), dtype=np.int32)
    if allowed is not None:
        candidates = candidates[allowed]
    if bias is None:
        bias = np.zeros(len(items), np.float32)
    sizes = _bounds(items[candidates])
    return _by_reach(candidates, sizes, bias[candidates], np.float32(typical))


def _by_reach(
    candidates: Int32s,
    size: Floats32,
    lift: Floats32,
    typical: np.float32,
) -> SearchOrder:
    """Return candidates in descending order of lift + size * typical, without `user_size`."""
    lift = np.where(np.isnan(lift), np.float32(-np.inf), lift)
    reach = lift + typical * size
    # Int32s without a bound come first.
    negative = np.where(np.isnan(reach), -np.inf, -reach)
    order = np.argsort(negative, kind="stable")
    return SearchOrder(
        items=candidates[order],
        size=_largest_from(size[order]),
        lift=_largest_from(lift[order]),
    )


def product_stops(
    users: Floats32,
    items: Floats32,
    order: Int32s,
) -> Stops:
    r"""Return stops of products with more than 128 columns: after 64, and after every doubling.

    The products of the remaining columns x' and y' are bounded as in `search_plan`. The rounding
    error of all k columns, at most :math:`\epsilon \|x\| \|y\|` with epsilon = (k + 8) 2^-23, is
    covered by

    .. math:: \|x'\| \|y'\| + \epsilon \|x\| \|y\| \le
              \sqrt{\|x'\|^2 + \epsilon \|x\|^2} \sqrt{\|y'\|^2 + \epsilon \|y\|^2}
    """
    k = users.shape[1]
    at = []
    columns = _FIRST_STOP
    while 2 * columns <= k:
        at.append(columns)
        columns *= 2
    if not at:
        return Stops()
    user_rest = _rests(users, at)
    item_rest = _rests(items, at)
    if not (np.isfinite(user_rest).all() and np.isfinite(item_rest).all()):
        return Stops()
    in_order = np.ascontiguousarray(item_rest[:, order])
    return Stops(np.array(at), user_rest, in_order)


def _rests(rows: Floats32, at: list[int]) -> Floats32:
    """Return bounds of the columns from each stop on, shape (n_stops, n_rows)."""
    k = rows.shape[1]
    rounding = np.float32((k + 8) * 2.0**-23)
    between = np.split(rows, at, axis=1)
    with np.errstate(over="ignore", invalid="ignore"):
        squares = [np.einsum("ij,ij->i", part, part) for part in between]
        after = np.cumsum(squares[::-1], axis=0)[::-1]  # of all columns from a stop on
        lengths = np.sqrt(after[1:] + rounding * after[0])
        bounds = _rounded_up(lengths, k, 8)
    return np.ascontiguousarray(bounds, np.float32)


def _bounds(rows: Floats32) -> Floats32:
    """Return the lengths of rows, rounded up; infinite where one is NaN or overflows."""
    k = rows.shape[1]
    with np.errstate(over="ignore", invalid="ignore"):
        lengths = np.sqrt(np.einsum("ij,ij->i", rows, rows))
        bounds = _rounded_up(lengths, k, 3)
    return np.where(np.isnan(bounds), np.float32(np.inf), bounds)


def _rounded_up(
    lengths: Floats32,
    k: int,
    operations: int,
) -> Floats32:
    """Return lengths of k numbers plus the rounding errors of so many more operations."""
    factor = np.float32(1 + (k + operations) * 2.0**-23)
    bounds: Floats32 = lengths * factor + np.float32(np.sqrt(k)) * _TINY
    return bounds


def _largest_from(values: Floats32) -> Floats32:
    """Return the maximum of each value and all after it."""
    from_the_end = np.maximum.accumulate(values[::-1])
    return np.ascontiguousarray(from_the_end[::-1])

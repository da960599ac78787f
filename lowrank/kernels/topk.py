"""Selection of the k best scores of each row."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

import lowrank.kernels as kernels
from lowrank.kernels.threads import resolve_threads

__all__ = [
    "SearchOrder",
    "Seen",
    "TopK",
    "in_given_order",
    "pair_dots",
    "search_order",
    "top_k",
    "weighted_order",
]

Floats = NDArray[np.float32]
Items = NDArray[np.int32]

_FEW_QUERIES = 256  # for fewer, measuring and sorting all items costs more than it saves
_TINY = np.float32(2.0**-70)  # lengths below it may be lost where squares underflow


class SearchOrder(NamedTuple):
    """Items in the order of a top-k search, and what bounds the scores still to come.

    Attributes
    ----------
    items : int32 ndarray of shape (n,)
    user_size : float32 ndarray of shape (n_users,) or None
    size, lift : float32 ndarrays of shape (n,) or None
        For all items i from place p on, ``user_size[u] * size[p]`` is not less than the product
        of the vectors of u and i as a kernel rounds it, and ``lift[p]`` not less than the bias.
    """

    items: Items
    user_size: Floats | None = None
    size: Floats | None = None
    lift: Floats | None = None


def in_given_order(items: Items) -> SearchOrder:
    """Return an order without bounds."""
    return SearchOrder(items)


def search_order(users: Floats, items: Floats, bias: Floats, candidates: Items) -> SearchOrder:
    r"""Order `candidates` by what they can reach, largest bias plus length first.

    By Cauchy and Schwarz :math:`x \cdot y \le \|x\| \|y\|`. The lengths are stretched by more
    than the rounding of k + 3 operations on either side (Higham 2002, section 3.1).

    References
    ----------
    Teflioudi, Gemulla and Mykytiuk (2015), "LEMP: Fast retrieval of large entries in a matrix
    product", section 3.
    """
    if len(users) < _FEW_QUERIES:
        return in_given_order(candidates)
    user_size, size = _bounds(users), _bounds(items[candidates])
    lift = bias[candidates]
    lift = np.where(np.isnan(lift), np.float32(-np.inf), lift)
    typical = np.median(user_size)
    reach = lift + (typical if np.isfinite(typical) else np.float32(1)) * size
    order = np.argsort(np.where(np.isnan(reach), -np.inf, -reach), kind="stable")
    return SearchOrder(
        candidates[order], user_size, _largest_from(size[order]), _largest_from(lift[order])
    )


def weighted_order(n_users: int, weight: Floats, candidates: Items) -> SearchOrder:
    """Order `candidates` by weight, which no weighted cosine exceeds in size."""
    if n_users < _FEW_QUERIES:
        return in_given_order(candidates)
    lift = np.abs(weight[candidates])
    lift = np.where(np.isnan(lift), np.float32(0), lift)
    order = np.argsort(-lift, kind="stable")
    nothing, user_size = np.zeros_like(lift), np.zeros(n_users, np.float32)
    return SearchOrder(candidates[order], user_size, nothing, _largest_from(lift[order]))


def _bounds(rows: Floats) -> Floats:
    """Return the lengths of rows, rounded up; infinite where one is NaN or overflows."""
    k = rows.shape[1]
    with np.errstate(over="ignore", invalid="ignore"):
        lengths = np.sqrt(np.einsum("ij,ij->i", rows, rows))
        lengths = lengths * np.float32(1 + (k + 3) * 2.0**-23) + np.float32(np.sqrt(k)) * _TINY
    return np.where(np.isnan(lengths), np.float32(np.inf), lengths)


def _largest_from(values: Floats) -> Floats:
    """Return the maximum of each value and all after it."""
    return np.ascontiguousarray(np.maximum.accumulate(values[::-1])[::-1])


class Seen(NamedTuple):
    """Items that a query must not get: row ``rows[q]`` of a CSR matrix."""

    rows: NDArray[np.int64]
    indptr: NDArray[np.int64]
    indices: NDArray[np.int32]


class TopK(NamedTuple):
    """The best items of each query, best first; the columns from ``counts[q]`` on hold nothing.

    Attributes
    ----------
    items : int32 ndarray of shape (n_queries, n)
    scores : float32 ndarray of shape (n_queries, n)
    counts : int64 ndarray of shape (n_queries,)
    """

    items: NDArray[np.int32]
    scores: NDArray[np.float32]
    counts: NDArray[np.int64]


def top_k(
    users: NDArray[np.float32],
    items: NDArray[np.float32],
    n: int,
    *,
    offset: NDArray[np.float32] | None = None,
    bias: NDArray[np.float32] | None = None,
    weight: NDArray[np.float32] | None = None,
    seen: Seen | None = None,
    allowed: NDArray[np.bool_] | None = None,
    prune: bool = True,
    threads: int | None = None,
) -> TopK:
    r"""Find the n items of largest score ``(offset_u + bias_i) + x_u . y_i`` for each user.

    Exact: of equal scores the lower item is better, and NaN and minus infinity are never found.
    A score has the same bits alone or among millions, on any number of threads, and as
    `pair_dots` computes it. The scores are not stored; beyond its result, the work takes some
    10 MB on each thread.

    Parameters
    ----------
    users : float32 ndarray of shape (n_queries, k)
        The vectors x_u.
    items : float32 ndarray of shape (n_items, k)
        The vectors y_i.
    n : int
        The most items for each query, at least 1; the result has no more columns than there are
        items to choose from.
    offset : float32 ndarray of shape (n_queries,), optional
        Zero by default.
    bias : float32 ndarray of shape (n_items,), optional
        Zero by default.
    weight : float32 ndarray of shape (n_items,), optional
        If given, scores are weighted cosines, ``weight_i clip((offset_u bias_i) (x_u . y_i), -1,
        1)``, where `offset` and `bias` hold the inverse lengths of the vectors.
    seen : Seen, optional
        Items to leave out, query by query.
    allowed : bool ndarray of shape (n_items,), optional
        False for items that no query gets.
    prune : bool
        Leave out items that cannot be among the n best by the lengths of their vectors. Only the
        time depends on it.
    threads : int, optional
        Number of threads; all available cores by default.

    Raises
    ------
    ValueError
        If n is below 1 or shapes disagree.

    Examples
    --------
    >>> import numpy as np
    >>> x, y = np.eye(2, dtype=np.float32), np.float32([[1, 4], [3, 3], [2, 5]])
    >>> top_k(x, y, 2).items
    array([[1, 2],
           [2, 0]], dtype=int32)
    """
    if n < 1:
        raise ValueError(f"n must be at least 1; got {n}.")
    x, y = _float32(users), _float32(items)
    offset = np.zeros(len(x), np.float32) if offset is None else _float32(offset)
    bias = np.zeros(len(y), np.float32) if bias is None else _float32(bias)
    weight = None if weight is None else _float32(weight)
    candidates = np.arange(len(y), dtype=np.int32)
    if allowed is not None:
        if allowed.shape != (len(y),):
            raise ValueError(f"allowed must have shape ({len(y)},); got {allowed.shape}.")
        candidates = candidates[allowed]
    if not prune or 4 * n > len(candidates):
        order = in_given_order(candidates)
    elif weight is None:
        order = search_order(x, y, bias, candidates)
    else:
        order = weighted_order(len(x), weight, candidates)
    shape = len(x), min(n, len(order.items))
    found = TopK(np.empty(shape, np.int32), np.empty(shape, np.float32), np.zeros(len(x), np.int64))
    if found.items.size:
        kernels._active.top_k(
            x,
            offset,
            y,
            bias,
            weight,
            *order,
            *(seen or (None, None, None)),
            *found,
            resolve_threads(threads),
        )
    return found


def _float32(array: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.ascontiguousarray(array, np.float32)


def pair_dots(
    left: NDArray[np.float32],
    right: NDArray[np.float32],
    rows: NDArray[np.int64],
    others: NDArray[np.int64],
    *,
    threads: int | None = None,
) -> NDArray[np.float32]:
    """Return the dot products of ``left[rows]`` with ``right[others]``, shape (n_pairs,).

    Each is summed in the same order whatever else is asked for, unlike in a matrix product.
    """
    dots = np.empty(len(rows), dtype=np.float32)
    kernels._active.pair_dots(
        _float32(left),
        _float32(right),
        np.ascontiguousarray(rows, np.int64),
        np.ascontiguousarray(others, np.int64),
        dots,
        resolve_threads(threads),
    )
    return dots

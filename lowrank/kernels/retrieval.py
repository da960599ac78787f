"""Searching the products of factors: the best items of each user, and the products of pairs."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

import lowrank.kernels as kernels  # for the kernels in use, which `kernels.use` may change
from lowrank.kernels.ordering import in_given_order, search_order, weighted_order
from lowrank.kernels.threads import resolve_threads

__all__ = ["Seen", "TopK", "pair_dots", "top_k"]


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

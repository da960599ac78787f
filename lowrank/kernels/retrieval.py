"""Retrieval: items with the largest scores, and products of sparse matrices.

For the form of the arguments see `lowrank.kernels`.
"""

from __future__ import annotations

import numpy as np

from lowrank.kernels import Csr, CsrArrays, SparsePart, backends, resolve_threads
from lowrank.kernels.arrays import Codes, Floats32, Hashes, Int32s, Int64s, Masks
from lowrank.kernels.topk import SearchOrder, Seen, Ties, TopK, search_plan


def top_k(
    users: Floats32,
    items: Floats32,
    n: int,
    *,
    offset: Floats32 | None = None,
    bias: Floats32 | None = None,
    weight: Floats32 | None = None,
    seen: Seen | None = None,
    allowed: Masks | None = None,
    sparse: SparsePart | None = None,
    prune: bool = True,
    order: SearchOrder | None = None,
    ties: Ties | None = None,
    threads: int | None = None,
) -> TopK:
    r"""Find the n items with the largest scores for each user.

    The score is ``((offset_u + bias_i) + x_u . y_i) + sum_j h_uj S_ji``, where the last term
    is a product of the matrices of `sparse`, if given.

    The result is exact; NaN and minus infinity are never found. A score is the same to the bit
    alone or among millions, and equal to `pair_dots` and `sparse_pairs`. Scores of all
    pairs are not stored: in addition to the result, each thread takes a few MB, and with `sparse`
    32 MB more for the sums of a block of users.

    Parameters
    ----------
    users, items : float32 ndarrays of shape (n_queries, k) and (n_items, k)
        The vectors x_u and y_i.
    n : int
        Maximum number of items for each query, at least 1. The result has at most as many columns
        as there are allowed items.
    offset, bias : float32 ndarrays of shapes (n_queries,) and (n_items,), optional
        Zero by default.
    weight : float32 ndarray of shape (n_items,), optional
        If given, scores are weighted cosines, ``weight_i clip((offset_u bias_i) (x_u . y_i), -1,
        1)``, where `offset` and `bias` hold the inverse lengths of the vectors.
    seen : Seen, optional
        Items to leave out for each query.
    allowed : bool ndarray of shape (n_items,), optional
        False for items to leave out for all queries.
    sparse : SparsePart, optional
        Sparse term of the scores, not together with `weight`.
    prune : bool
        Whether to skip items whose vectors are too short for the n best. It affects only the time.
    order : SearchOrder, optional
        Result of `topk.item_order` for the same items, bias and allowed; it saves time in a search
        for few queries without `sparse`.
    ties : Ties, optional
        Random order of equal scores. By default, the lower item comes first.

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
    users = _float32(users)
    items = _float32(items)
    n_users = len(users)
    n_items = len(items)
    offset = np.zeros(n_users, np.float32) if offset is None else _float32(offset)
    bias = np.zeros(n_items, np.float32) if bias is None else _float32(bias)
    weight = None if weight is None else _float32(weight)
    n_allowed = n_items
    if allowed is not None:
        n_allowed = int(np.count_nonzero(allowed))
        if allowed.shape != (n_items,):
            raise ValueError(
                f"allowed must have shape ({n_items},); got {allowed.shape}."
            )
    matrices = fixed = None
    if sparse is not None:
        matrices = sparse.history, sparse.weights
        fixed = sparse.order
        if fixed is None:
            fixed = np.arange(n_items, dtype=np.int32)
        if allowed is not None:  # the fixed order has all items; NaN is never found
            bias = np.where(allowed, bias, np.float32(np.nan))
    # A search for all items has no bounds.
    n_pruned = n if prune else n_items
    order, stops = search_plan(
        users, items, bias, weight, allowed, fixed, n_pruned, order
    )
    shape = n_users, min(n, n_allowed)
    top = TopK(
        items=np.empty(shape, np.int32),
        scores=np.empty(shape, np.float32),
        counts=np.zeros(n_users, np.int64),
    )
    if top.items.size:  # the kernel takes no empty arrays
        backends.active.best_items(
            users,
            items,
            offset,
            bias,
            weight,
            order,
            stops,
            matrices,
            seen,
            ties,
            top,
            resolve_threads(threads),
        )
    return top


def sparse_pairs(
    history: Csr,
    weights: Csr,
    rows: Int64s,
    columns: Int64s,
    *,
    threads: int | None = None,
) -> Floats32:
    """Return entries of the product of two sparse float32 matrices, at `rows` and `columns`.

    Rows must be in range, and the indices of `weights` sorted within each row. An entry is summed
    in the order of the history, so that it equals `top_k` and `sparse_rows` to the bit.
    """
    entries = np.empty(len(rows), np.float32)
    backends.active.sparse_pairs(
        *history,
        *weights,
        np.ascontiguousarray(rows, np.int64),
        np.ascontiguousarray(columns, np.int64),
        entries,
        resolve_threads(threads),
    )
    return entries


def sparse_rows(
    history: Csr,
    weights: Csr,
    n_columns: int,
    *,
    threads: int | None = None,
) -> Floats32:
    """Return the product of two sparse float32 matrices as a dense one."""
    product = np.empty((len(history[0]) - 1, n_columns), np.float32)
    backends.active.sparse_rows(*history, *weights, product, resolve_threads(threads))
    return product


def gram_rows(
    X: Csr,
    by_column: Csr,
    rows: slice,
    most: int,
    *,
    weight: Floats32,
    scale: Floats32,
    out: Floats32,
    threads: int | None = None,
) -> CsrArrays:
    r"""Return the largest entries of rows of ``diag(scale) C.T diag(weight) X diag(out)``.

    Parameters
    ----------
    X, by_column : CSR arrays of float32
        Matrices X and C' of shapes (n, m) and (p, n). C is usually X with columns in another order.
    rows : slice
        Rows of the result, r in number.
    most : int
        Number of entries to keep in each row: those with the largest absolute values, of equal ones
        those in lower columns.
    weight, scale, out : float32 ndarrays of shapes (n,), (p,) and (m,)

    Returns
    -------
    CsrArrays
        Matrix of shape (r, m), with sorted indices.
    """
    largest = _empty_rows(rows.stop - rows.start, most, len(out))
    backends.active.gram_rows(
        *X,
        *by_column,
        _float32(weight),
        _float32(scale),
        _float32(out),
        rows.start,
        *largest,
        resolve_threads(threads),
    )
    return _filled(*largest)


def pair_rows(
    items: Int32s,
    weights: Floats32,
    lags: Int32s,
    decay: Floats32,
    by_item: Csr,
    rows: Int64s,
    most: int,
    *,
    threads: int | None = None,
) -> CsrArrays:
    """Return the largest sums over pairs of an item and a later one of the same sequence.

    The sum of items i and j is over places p of i and p + lag of j, of the product of their
    weights and ``decay[lag]``.

    Parameters
    ----------
    items, weights, lags : int32, float32 and int32 ndarrays of shape (n_places,)
        Sequences one after the other; `lags` has the number of places from each to the end of its
        sequence, 1 for the last.
    decay : float32 ndarray
        The weight of each lag, from 0 to the largest that counts.
    by_item : CSR arrays of float32
        The places of each item with their weights, of shape (n_items, n_places).
    rows : int64 ndarray
        Items of the rows of the result.
    most : int
        Number of entries to keep in each row, as in `gram_rows`.
    """
    n_items = len(by_item[0]) - 1
    largest = _empty_rows(len(rows), most, n_items)
    backends.active.pair_rows(
        *by_item,
        items,
        weights,
        lags,
        _float32(decay),
        n_items,
        rows,
        *largest,
        resolve_threads(threads),
    )
    return _filled(*largest)


def _empty_rows(
    n: int,
    most: int,
    n_columns: int,
) -> tuple[Int32s, Floats32, Int64s]:
    """Return arrays for the columns, values and counts of the largest entries of n rows."""
    width = max(1, min(most, n_columns))
    columns = np.empty((n, width), np.int32)
    return columns, np.empty((n, width), np.float32), np.empty(n, np.int64)


def _filled(
    columns: Int32s,
    values: Floats32,
    counts: Int64s,
) -> CsrArrays:
    """Return the first entries of each row; rows with fewer than others are not filled up."""
    is_entry = np.arange(columns.shape[1]) < counts[:, None]
    indptr = np.append(0, np.cumsum(counts))
    return CsrArrays(indptr, columns[is_entry], values[is_entry])


def hash_texts(bytes: Codes, offsets: Int64s) -> Hashes:
    """Return a hash of each text, the same on any machine.

    Text i is ``bytes[offsets[i] : offsets[i + 1]]``.
    """
    hashes = np.empty(len(offsets) - 1, np.uint64)
    backends.active.hash_texts(bytes, offsets, hashes)
    return hashes


def sum_rows(
    matrix: Csr,
    rows: Int64s,
    factors: Floats32,
    n_cols: int,
    *,
    out: Floats32 | None = None,
) -> Floats32:
    """Return the sum of some rows of a float32 CSR matrix, each times its factor, shape (n_cols,).

    Only these rows of the matrix are read.
    """
    total = np.zeros(n_cols, np.float32) if out is None else out
    backends.active.sum_rows(*matrix, rows, factors, total)
    return total


def largest(scores: Floats32, n: int) -> Int64s:
    """Return the positions of the n largest float32 scores, best first; ties by lower position.

    NaN and minus infinity are left out.
    """
    positions = np.empty(min(n, len(scores)), np.int64)
    count = backends.active.largest(scores, positions)
    return positions[:count]


def _float32(array: Floats32) -> Floats32:
    return np.ascontiguousarray(array, np.float32)

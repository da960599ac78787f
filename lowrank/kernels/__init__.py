"""Inner loops, compiled where a compiler was found and in NumPy otherwise.

Both forms have the same signatures; the functions here prepare the arguments and call the active
one. `LOWRANK_KERNELS` in the environment forces a choice: one of the names that `supported` lists.
Sparse matrices are given as the arrays ``indptr, indices, data`` of their CSR form (`csr_arrays`),
matrices of zeros and ones without ``data``; sweeps and products with dense blocks also take a
`CodedMatrix`. `threads` is the number of threads, by default all available cores; no bit of a
result depends on it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray
from threadpoolctl import OpenBLASController, threadpool_limits

from lowrank.kernels import backends, reference
from lowrank.kernels.backends import Backend, backend, supported, use
from lowrank.kernels.entries import CodedMatrix, CsrArrays, SparsePart, csr_arrays
from lowrank.kernels.topk import SearchOrder, Seen, TopK, search_plan

__all__ = [
    "Backend",
    "CodedMatrix",
    "CsrArrays",
    "RowPosteriors",
    "Seen",
    "SparsePart",
    "TopK",
    "aligned_zeros",
    "als_half_sweep",
    "at_most",
    "available_cores",
    "backend",
    "best_codes",
    "coefficients",
    "csr_arrays",
    "csr_entries",
    "csr_matmat",
    "csr_rmatmat",
    "drift_evidence",
    "drift_smooth",
    "implicit_half_sweep",
    "multiply",
    "one_blas_thread",
    "pair_dots",
    "posterior_half_sweep",
    "resolve_threads",
    "subtract",
    "sum_rows",
    "supported",
    "top_k",
    "use",
]

Floats = NDArray[np.floating[Any]]
Floats32 = NDArray[np.float32]
Int64s = NDArray[np.int64]
Int32s = NDArray[np.int32]
Csr = tuple[Int64s, Int32s, Floats]
Coded = Csr | CodedMatrix

_MOST = 1024  # more than any machine makes use of; a wish for a billion is not one for a crash

_limit: ContextVar[int | None] = ContextVar("lowrank_threads", default=None)

_lock = Lock()
_users = 0  # threads inside `one_blas_thread`
_limits: Any = None  # restores the setting from before the first of them
# From threadpoolctl 3.8 on, the setting belongs to the thread that made it, unless it is released.
_release = getattr(OpenBLASController, "clear_controlling_thread", lambda force: None)


def _parts(matrix: Coded) -> tuple[Any, ...]:
    """Return a matrix as the active kernels take it."""
    if not isinstance(matrix, CodedMatrix):
        return matrix
    if backends.active is reference:
        return matrix.arrays
    none = matrix.levels[:0]
    shifts = (none if each is None else each for each in (matrix.row_shift, matrix.column_shift))
    return matrix.indptr, matrix.indices, (matrix.codes, matrix.levels, *shifts)


def aligned_zeros(shape: tuple[int, ...], dtype: DTypeLike) -> Floats:
    """Return a zero array that starts on a cache line, so that rows straddle as few as can be."""
    n_bytes = math.prod(shape) * np.dtype(dtype).itemsize
    memory = np.zeros(n_bytes + 64, dtype=np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + n_bytes].view(dtype).reshape(shape)


def als_half_sweep(
    matrix: Coded,
    other: Floats,
    *,
    penalty: Floats,
    factors: Floats,
    other_bias: Floats | None = None,
    shift: float = 0.0,
    bias_penalty: Floats | None = None,
    bias: Floats | None = None,
    threads: int | None = None,
) -> NDArray[np.float64]:
    r"""Solve the ridge regression of every row of a sparse matrix against fixed factors.

    For each row u with entries :math:`x_{ui}`, `factors` and `bias` receive the exact minimiser of

    .. math:: \sum_i (x_{ui} - \text{shift} - c_i - a_u \cdot m_i - b_u)^2
              + \lambda_u \|a_u\|^2 + \lambda^b_u b_u^2

    by a Cholesky factorisation of its normal equations. Rows without entries become zero. Each
    row's minimum, its penalties included, is returned in float64, shape (n_rows,).

    Parameters
    ----------
    matrix : tuple of ndarrays of int64, int32 and the working dtype, or CodedMatrix
        The matrix of shape (n_rows, n_cols) in CSR form.
    other : ndarray of shape (n_cols, k), float32 or float64
        The fixed factors m_i; their dtype is the working dtype.
    penalty : ndarray of shape (n_rows,)
        Positive ridge penalties lambda_u.
    factors, bias : ndarrays of shape (n_rows, k) and (n_rows,)
        Output: the factors a_u and the biases b_u.
    other_bias : ndarray of shape (n_cols,), optional
        The fixed biases c_i; zero by default.
    shift : float
        Subtracted from every entry.
    bias_penalty : ndarray of shape (n_rows,), optional
        Penalties of the row biases, which are fitted only when this is given.
    """
    dtype, n_rows = other.dtype, len(factors)
    objective = np.empty(n_rows)
    backends.active.als_half_sweep(
        *_parts(matrix),
        other,
        np.zeros(len(other), dtype) if other_bias is None else other_bias,
        float(shift),
        np.ascontiguousarray(penalty, dtype),
        np.ascontiguousarray(np.zeros(n_rows) if bias_penalty is None else bias_penalty, dtype),
        bias_penalty is not None,
        factors,
        np.empty(n_rows, dtype) if bias is None else bias,
        objective,
        resolve_threads(threads),
    )
    return objective


def implicit_half_sweep(
    weights: Coded,
    other: Floats,
    *,
    gram: Floats,
    penalty: Floats,
    factors: Floats,
    right: Floats | None = None,
    threads: int | None = None,
) -> NDArray[np.float64]:
    r"""Solve the least squares of every row of a matrix of interactions against fixed factors.

    For each row u with interactions of weights :math:`v_{ui} \ge 0`, `factors` receives the exact
    minimiser of

    .. math:: \sum_i v_{ui} (1 - a_u \cdot m_i)^2 + a_u' G a_u + \lambda_u \|a_u\|^2
              - 2 r_u \cdot a_u

    by a Cholesky factorisation of its normal equations. Each row's minimum is returned in float64,
    shape (n_rows,).

    Parameters
    ----------
    weights : tuple of ndarrays of int64, int32 and the working dtype, or CodedMatrix
        The matrix of shape (n_rows, n_cols) in CSR form.
    other : ndarray of shape (n_cols, k), float32 or float64
        The fixed factors m_i; their dtype is the working dtype.
    gram, penalty : ndarrays of shape (k, k) and (n_rows,)
        The symmetric, positive semidefinite matrix G, and the positive penalties lambda_u.
    factors : ndarray of shape (n_rows, k)
        Output: the factors a_u.
    right : ndarray of shape (n_rows, k), optional
        The vectors r_u, such as the penalty times a point that factors are pulled towards; zero by
        default.
    """
    objective = np.empty(len(factors))
    more = () if right is None else (np.ascontiguousarray(right, other.dtype),)
    backends.active.implicit_half_sweep(
        *_parts(weights),
        other,
        np.ascontiguousarray(gram, other.dtype),
        np.ascontiguousarray(penalty, other.dtype),
        factors,
        objective,
        resolve_threads(threads),
        *more,
    )
    return objective


class RowPosteriors(NamedTuple):
    """Results of `posterior_half_sweep`, one float64 number per row in each.

    `objective` is sum_i (x_ui - shift - c_i)^2 + C_cc - r' A^-1 r, the least penalised sum of
    squares up to the prior's constant term; `log_det` is log det A.
    """

    objective: NDArray[np.float64]
    log_det: NDArray[np.float64]


def posterior_half_sweep(
    matrix: Coded,
    other: Floats,
    *,
    prior: Floats,
    weight: Floats,
    prior_right: Floats,
    vectors: Floats,
    shift: float = 0.0,
    noise_variance: float = 1.0,
    covariance: Floats | None = None,
    draws: Floats | None = None,
    invert: bool = True,
    threads: int | None = None,
) -> RowPosteriors:
    r"""Solve the Gaussian posterior of every row of a sparse matrix against fixed columns.

    A vector has k factors followed by a bias. For each row u with entries :math:`x_{ui}`, columns
    :math:`(m_i, c_i)` and :math:`z_i = (m_i, 1)`, `vectors` receives :math:`w = A^{-1} r` with

    .. math:: A = \sum_i z_i z_i' + C^{mm}_u + \text{weight}_u P, \qquad
              r = \sum_i z_i (x_{ui} - \text{shift} - c_i) - C^{mc}_u + r^0_u

    where :math:`C_u` is the sum over the row's entries of the covariances of their columns'
    vectors.

    Parameters
    ----------
    matrix, shift
        As in `als_half_sweep`.
    other : ndarray of shape (n_cols, k + 1), float32 or float64
        The fixed vectors; their dtype is the working dtype.
    prior, weight : ndarrays of shape (k + 1, k + 1) and (n_rows,)
        The matrix P, the prior precision times the noise variance, and its factor for each row.
    prior_right : ndarray of shape (n_rows, k + 1)
        The prior's right-hand side r0: weight times P times the prior mean.
    vectors : ndarray of shape (n_rows, k + 1)
        Output: the posterior means w, or draws.
    noise_variance : float
        Factor of the covariances.
    covariance : ndarray of shape (n_rows, (k + 1)(k + 2) / 2), optional
        In: C_u as an upper triangle by rows. Out: ``noise_variance * inv(A)``, packed the same way.
        Without it C is zero and no inverse is computed.
    invert : bool
        If false, no inverse is computed either, and `covariance` stays as it is.
    draws : ndarray of shape (n_rows, k + 1), optional
        Standard normal numbers times the noise's standard deviation: with the Cholesky factor
        A = R'R, R^-1 times them is added to w, which makes it a draw from the posterior.
    """
    dtype, none = other.dtype, np.empty((0, 0), other.dtype)
    result = RowPosteriors(np.empty(len(vectors)), np.empty(len(vectors)))
    backends.active.posterior_half_sweep(
        *_parts(matrix),
        other,
        float(shift),
        np.ascontiguousarray(prior, dtype),
        np.ascontiguousarray(weight, dtype),
        np.ascontiguousarray(prior_right, dtype),
        float(noise_variance),
        none if draws is None else np.ascontiguousarray(draws, dtype),
        none if covariance is None else covariance,
        vectors,
        *result,
        resolve_threads(threads),
        invert,
    )
    return result


def drift_smooth(
    indptr: Int64s,
    gaps: Floats,
    data: Floats,
    *,
    noise: float,
    variance: float,
    scale: float,
    threads: int | None = None,
) -> tuple[Floats, Floats, float]:
    r"""Smooth one Ornstein-Uhlenbeck process for each row, observed with noise in order of time.

    Processes are independent, of mean zero, and at a distance t in time have the covariance
    :math:`v e^{-t / \ell}`.

    Parameters
    ----------
    indptr : int64 ndarray of shape (n_rows + 1,)
        The observations of row r are at positions indptr[r]:indptr[r + 1].
    gaps, data : ndarrays of shape (nnz,), float32 or float64
        Time since the row's observation before, and what was observed.
    noise, variance, scale : float
        Variance of an observation around the process, v and the positive l.

    Returns
    -------
    means, variances : ndarrays of shape (nnz,)
        Of the process at each observation, given all observations of the row.
    evidence : float
        Logarithm of the density of the data, without the constant
        :math:`-\tfrac12 \log 2 \pi \text{noise}` for each observation.
    """
    means, variances = np.empty_like(data), np.empty_like(data)
    evidence = np.empty(len(indptr) - 1)
    numbers = float(noise), float(variance), float(scale)
    out = means, variances, evidence
    backends.active.drift_smooth(indptr, gaps, data, *numbers, *out, resolve_threads(threads))
    return means, variances, math.fsum(evidence)


def drift_evidence(
    indptr: Int64s, gaps: Floats, data: Floats, *, threads: int | None = None, **process: float
) -> float:
    """Return the evidence of `drift_smooth` alone, which takes half of the time."""
    none, evidence = data[:0].copy(), np.empty(len(indptr) - 1)
    numbers = (float(process[name]) for name in ("noise", "variance", "scale"))
    out = none, none.copy(), evidence
    backends.active.drift_smooth(indptr, gaps, data, *numbers, *out, resolve_threads(threads))
    return math.fsum(evidence)


def top_k(
    users: Floats32,
    items: Floats32,
    n: int,
    *,
    offset: Floats32 | None = None,
    bias: Floats32 | None = None,
    weight: Floats32 | None = None,
    seen: Seen | None = None,
    allowed: NDArray[np.bool_] | None = None,
    sparse: SparsePart | None = None,
    prune: bool = True,
    order: SearchOrder | None = None,
    threads: int | None = None,
) -> TopK:
    r"""Find the n items of largest score for each user.

    The score is ``((offset_u + bias_i) + x_u . y_i) + sum_j h_uj S_ji``, where the last term is the
    `sparse` part, if any.

    Exact: of equal scores the lower item is better, and NaN and minus infinity are never found.
    A score has the same bits alone or among millions, and as `pair_dots` and `sparse_pairs` compute
    it. The scores are not stored; beyond its result, the work takes a few MB on each thread, and
    with a sparse part 32 MB more, for its sums of a block of users.

    Parameters
    ----------
    users, items : float32 ndarrays of shape (n_queries, k) and (n_items, k)
        The vectors x_u and y_i.
    n : int
        The most items for each query, at least 1; the result has no more columns than there are
        items to choose from.
    offset, bias : float32 ndarrays of shapes (n_queries,) and (n_items,), optional
        Zero by default.
    weight : float32 ndarray of shape (n_items,), optional
        If given, scores are weighted cosines, ``weight_i clip((offset_u bias_i) (x_u . y_i), -1,
        1)``, where `offset` and `bias` hold the inverse lengths of the vectors.
    seen : Seen, optional
        Items to leave out, query by query.
    allowed : bool ndarray of shape (n_items,), optional
        False for items that no query gets.
    sparse : SparsePart, optional
        Not together with `weight`.
    prune : bool
        Leave out items whose vectors are too short for the n best. Only the time depends on it.
    order : SearchOrder, optional
        `topk.item_order` of the same items, bias and allowed, for a small search of factors alone.

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
    if allowed is not None and allowed.shape != (len(y),):
        raise ValueError(f"allowed must have shape ({len(y)},); got {allowed.shape}.")
    fixed = None if sparse is None else sparse.order
    if sparse is not None and fixed is None:
        fixed = np.arange(len(y), dtype=np.int32)
    order, stops = search_plan(x, y, bias, weight, allowed, fixed, n if prune else len(y), order)
    if sparse is not None and allowed is not None:  # its places stay as they are
        bias = np.where(allowed, bias, np.float32(np.nan))
    n_found = len(order.items) if allowed is None else int(np.count_nonzero(allowed))
    shape = len(x), min(n, n_found)
    found = TopK(np.empty(shape, np.int32), np.empty(shape, np.float32), np.zeros(len(x), np.int64))
    if found.items.size:
        excluded = seen or (None, None, None)
        part = (None,) * 6 if sparse is None else (*sparse.history, *sparse.weights)
        threads = resolve_threads(threads)
        vectors = x, offset, y, bias, weight
        backends.active.top_k(*vectors, *order, *stops, *part, *excluded, *found, threads)
    return found


def sparse_pairs(
    history: Csr, weights: Csr, rows: Int64s, columns: Int64s, *, threads: int | None = None
) -> Floats32:
    """Return entries of the product of two sparse float32 matrices, at `rows` and `columns`.

    Rows must be in range, and the indices of `weights` sorted within each row. Each entry is summed
    in the order of the history's, to the same bits as in `top_k` and `sparse_rows`.
    """
    found = np.empty(len(rows), np.float32)
    pairs = np.ascontiguousarray(rows, np.int64), np.ascontiguousarray(columns, np.int64)
    backends.active.sparse_pairs(*history, *weights, *pairs, found, resolve_threads(threads))
    return found


def sparse_rows(
    history: Csr, weights: Csr, n_columns: int, *, threads: int | None = None
) -> Floats32:
    """Return the product of two sparse float32 matrices as a dense one."""
    found = np.empty((len(history[0]) - 1, n_columns), np.float32)
    backends.active.sparse_rows(*history, *weights, found, resolve_threads(threads))
    return found


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
    r"""Return rows of ``diag(scale) C.T diag(weight) X diag(out)``, with their largest entries.

    Parameters
    ----------
    X, by_column : CSR arrays of float32
        Matrices X and C' of shapes (n, m) and (p, n): C is X, as a rule, with columns in an order
        of its own.
    rows : slice
        Of the result, of length r.
    most : int
        Entries kept of each row, the largest in size: of equal ones those of lower columns.
    weight, scale, out : float32 ndarrays of shapes (n,), (p,) and (m,)

    Returns
    -------
    CsrArrays
        Of shape (r, m), with sorted indices.
    """
    n, most = rows.stop - rows.start, max(1, min(most, len(out)))
    columns, values = np.empty((n, most), np.int32), np.empty((n, most), np.float32)
    counts = np.empty(n, np.int64)
    scales, threads = (_float32(weight), _float32(scale), _float32(out)), resolve_threads(threads)
    found = columns, values, counts, threads
    backends.active.gram_rows(*X, *by_column, *scales, rows.start, *found)
    kept = (
        np.concatenate([row[:count] for row, count in zip(each, counts, strict=True)])
        for each in (columns, values)
    )
    return CsrArrays(np.append(0, np.cumsum(counts)), *kept)


def _float32(array: Floats32) -> Floats32:
    return np.ascontiguousarray(array, np.float32)


def pair_dots(
    left: Floats32, right: Floats32, rows: Int64s, others: Int64s, *, threads: int | None = None
) -> Floats32:
    """Return the dot products of ``left[rows]`` with ``right[others]``, shape (n_pairs,).

    Each is summed in the same order whatever the other pairs are, unlike in a matrix product.
    """
    dots = np.empty(len(rows), dtype=np.float32)
    pairs = np.ascontiguousarray(rows, np.int64), np.ascontiguousarray(others, np.int64)
    backends.active.pair_dots(
        _float32(left), _float32(right), *pairs, dots, resolve_threads(threads)
    )
    return dots


def sum_rows(
    matrix: Csr, rows: Int64s, factors: Floats32, n_cols: int, *, out: Floats32 | None = None
) -> Floats32:
    """Return the sum of some rows of a float32 CSR matrix, each times its factor, shape (n_cols,).

    Only these rows of the matrix are looked at, however large it is.
    """
    total = np.zeros(n_cols, np.float32) if out is None else out
    backends.active.sum_rows(*matrix, rows, factors, total)
    return total


def best_codes(
    codes: NDArray[np.int8],
    scale: Floats32,
    query: NDArray[np.int16],
    n: int,
    *,
    base: Floats32 | None = None,
    weight: float = 1.0,
    threads: int | None = None,
) -> tuple[Int32s, Floats32]:
    """Return the n rows with the largest ``weight * base + scale * (codes @ query)``, best first.

    The vectors are stored as integers, a quarter of the memory of float32, whose reading is what a
    product with one vector costs. Of equal scores the lower row comes first.

    Parameters
    ----------
    codes : int8 ndarray of shape (n_rows, k), C-ordered
    scale : float32 ndarray of shape (n_rows,)
    query : int16 ndarray of shape (k,)
        Of entries so small that no product exceeds 32 bits: 127 k max |q_j| < 2**31.
    n : int
        At most n_rows.
    base : float32 ndarray of shape (n_rows,), optional
    weight : float
    threads : int, optional

    Returns
    -------
    rows : int32 ndarray of shape (n,)
    scores : float32 ndarray of shape (n,)
    """
    found, scores = np.empty(1, np.int32), np.empty(1, np.float32)
    given = np.zeros(0, np.float32) if base is None else base
    out = np.empty(len(codes), np.float32)
    factor = float(np.float32(weight))  # the core takes no number that it would have to round
    backends.active.best_codes(
        codes, scale, query, given, factor, found, scores, out, resolve_threads(threads)
    )
    if n == 1:
        return found, scores
    # NumPy's selection is vectorised.
    best = np.argpartition(out, len(out) - n)[len(out) - n :]
    best = best[np.lexsort((best, -out[best]))]
    return best.astype(np.int32), out[best]


def csr_matmat(
    A: Coded, X: Floats, *, out: Floats | None = None, threads: int | None = None
) -> Floats:
    """Return A @ X for a sparse A of shape (n, m) and a dense block X; `out` is C-ordered."""
    X = np.ascontiguousarray(X, A.dtype if isinstance(A, CodedMatrix) else A[2].dtype)
    Y = np.empty((len(A[0]) - 1, X.shape[1]), dtype=X.dtype) if out is None else out
    backends.active.csr_matmat(*_parts(A), X, Y, resolve_threads(threads))
    return Y


def csr_rmatmat(
    A: Coded, X: Floats, n_cols: int, *, out: Floats | None = None, threads: int | None = None
) -> Floats:
    """Return A.T @ X for a sparse A with sorted rows, of shape (n, n_cols), and a dense block X."""
    X = np.ascontiguousarray(X, A.dtype if isinstance(A, CodedMatrix) else A[2].dtype)
    Y = np.empty((n_cols, X.shape[1]), dtype=X.dtype) if out is None else out
    backends.active.csr_rmatmat(*_parts(A), X, Y, resolve_threads(threads))
    return Y


def csr_entries(A: Csr, left: Floats, right: Floats, *, threads: int | None = None) -> Floats:
    """Return ``w . z + b + c`` for each stored entry of A, whose own values are of no account.

    The vectors (w, b) of the row and (z, c) of the column of an entry have a bias last; `left` has
    the shape (n_rows, k + 1), `right` (n_cols, k + 1). The result has the shape (nnz,).
    """
    out = np.empty_like(A[2])
    pair = np.ascontiguousarray(left, out.dtype), np.ascontiguousarray(right, out.dtype)
    backends.active.csr_entries(*A, *pair, out, resolve_threads(threads))
    return out


def coefficients(V: Floats, W: Floats, *, threads: int | None = None) -> Floats:
    """Return V.T @ W for a basis V of shape (n, c) and a block W of shape (n, width).

    V may be the first columns of a wider C-ordered array.
    """
    P = np.empty((V.shape[1], W.shape[1]), dtype=W.dtype)
    backends.active.coefficients(V, W, P, resolve_threads(threads))
    return P


def multiply(V: Floats, H: Floats, *, threads: int | None = None) -> Floats:
    """Return V @ H, C-ordered, in V's dtype; V as in `coefficients`."""
    W = np.empty((V.shape[0], H.shape[1]), dtype=V.dtype)
    backends.active.multiply(V, np.ascontiguousarray(H, V.dtype), W, resolve_threads(threads))
    return W


def subtract(V: Floats, H: Floats, W: Floats, *, threads: int | None = None) -> None:
    """Subtract V @ H from the C-ordered block W in place; V as in `coefficients`."""
    backends.active.subtract(V, H, W, resolve_threads(threads))


def available_cores() -> int:
    """Return the number of cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def resolve_threads(threads: int | None) -> int:
    """Return `threads`, at most 1,024; for None the limit of `at_most`, or the available cores.

    Raises
    ------
    ValueError
        If `threads` is below 1.
    """
    if threads is None:
        return _limit.get() or available_cores()
    if threads < 1:
        raise ValueError(f"threads must be at least 1, or None for all cores; got {threads}.")
    return min(int(threads), _MOST)


@contextmanager
def at_most(threads: int | None) -> Iterator[None]:
    """Set what None means to `resolve_threads` inside the block; None leaves it as it is."""
    token = _limit.set(resolve_threads(threads))
    try:
        yield
    finally:
        _limit.reset(token)


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Keep BLAS to one thread inside the block, for work that runs in threads of its own.

    The setting holds for the whole process and returns when the last thread leaves such a block.
    """
    global _users, _limits
    with _lock:
        if _users == 0:
            _release(force=True)
            _limits = threadpool_limits(limits=1, user_api="blas")
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                _release(force=True)
                _limits.restore_original_limits()
                _release(force=True)

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
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray
from threadpoolctl import OpenBLASController, ThreadpoolController

from lowrank.kernels import backends, reference
from lowrank.kernels.backends import Backend, backend, supported, use
from lowrank.kernels.entries import CodedMatrix, CsrArrays, SparsePart, csr_arrays
from lowrank.kernels.topk import Seen, TopK

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
    "coefficients",
    "csr_arrays",
    "csr_entries",
    "csr_matmat",
    "csr_rmatmat",
    "default_threads",
    "drift_evidence",
    "drift_smooth",
    "implicit_half_sweep",
    "multiply",
    "one_blas_thread",
    "pair_dots",
    "posterior_half_sweep",
    "resolve_threads",
    "subtract",
    "supported",
    "use",
]

Floats = NDArray[np.floating[Any]]
Floats32 = NDArray[np.float32]
Int64s = NDArray[np.int64]
Int32s = NDArray[np.int32]
Csr = tuple[Int64s, Int32s, Floats]
Coded = Csr | CodedMatrix


def available_cores() -> int:
    """Return the number of cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


_CORES = available_cores()
default_threads: ContextVar[int] = ContextVar("default_threads", default=_CORES)
"""Number of threads where none is given: that of `at_most`, or all available cores."""

_MOST = 1024  # more than any machine makes use of; a wish for a billion is not one for a crash

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
    array = _aligned(shape, dtype)
    array.fill(0)
    return array


def _aligned(shape: tuple[int, ...], dtype: DTypeLike) -> Floats:
    n_bytes = math.prod(shape) * np.dtype(dtype).itemsize
    memory = np.empty(n_bytes + 64, dtype=np.uint8)
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

    by a Cholesky factorisation of its normal equations, or of as many equations as it has entries
    if these are few. Rows without entries become zero. Each row's minimum, its penalties included,
    is returned in float64, shape (n_rows,).

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

    by a Cholesky factorisation of its normal equations; or, if G is diagonal and `right` not given,
    of as many equations as a row has entries, where that is faster. Each row's minimum is returned
    in float64, shape (n_rows,).

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


def pair_dots(
    left: Floats32, right: Floats32, rows: Int64s, others: Int64s, *, threads: int | None = None
) -> Floats32:
    """Return the dot products of ``left[rows]`` with ``right[others]``, shape (n_pairs,).

    Each is summed in the same order whatever the other pairs are, unlike in a matrix product.
    """
    dots = np.empty(len(rows), dtype=np.float32)
    pairs = np.ascontiguousarray(rows, np.int64), np.ascontiguousarray(others, np.int64)
    backends.active.pair_dots(
        np.ascontiguousarray(left, np.float32),
        np.ascontiguousarray(right, np.float32),
        *pairs,
        dots,
        resolve_threads(threads),
    )
    return dots


def csr_matmat(
    A: Coded, X: Floats, *, out: Floats | None = None, threads: int | None = None
) -> Floats:
    """Return A @ X for a sparse A of shape (n, m) and a dense block X; `out` is C-ordered."""
    X = np.ascontiguousarray(X, A.dtype if isinstance(A, CodedMatrix) else A[2].dtype)
    Y = _aligned((len(A[0]) - 1, X.shape[1]), X.dtype) if out is None else out
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
    W = _aligned((V.shape[0], H.shape[1]), V.dtype)
    backends.active.multiply(V, np.ascontiguousarray(H, V.dtype), W, resolve_threads(threads))
    return W


def subtract(V: Floats, H: Floats, W: Floats, *, threads: int | None = None) -> None:
    """Subtract V @ H from the C-ordered block W in place; V as in `coefficients`."""
    backends.active.subtract(V, H, W, resolve_threads(threads))


def resolve_threads(threads: int | None) -> int:
    """Return `threads`, at most 1,024; for None the `default_threads`.

    Raises
    ------
    ValueError
        If `threads` is below 1.
    """
    if threads is None:
        return default_threads.get()
    if threads < 1:
        raise ValueError(f"threads must be at least 1, or None for all cores; got {threads}.")
    return min(int(threads), _MOST)


@contextmanager
def at_most(threads: int | None) -> Iterator[None]:
    """Set what None means to `resolve_threads` inside the block; None leaves it as it is."""
    token = default_threads.set(resolve_threads(threads))
    try:
        yield
    finally:
        default_threads.reset(token)


@lru_cache(maxsize=1)
def _controller(n_modules: int) -> ThreadpoolController:
    """Find the libraries that are loaded, which takes milliseconds, if there are new modules."""
    return ThreadpoolController()


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Keep BLAS to one thread inside the block, for work that runs in threads of its own.

    The setting holds for the whole process and returns when the last thread leaves such a block.
    """
    global _users, _limits
    with _lock:
        if _users == 0:
            _release(force=True)
            _limits = _controller(len(sys.modules)).limit(limits=1, user_api="blas")
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

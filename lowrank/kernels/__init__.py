"""Inner loops, compiled or, if the extension was not built, in NumPy.

Both forms have the same signatures. The functions here prepare the arguments and call the active
form. The environment variable `LOWRANK_KERNELS` forces one of the names that `supported` lists.

Sparse matrices are passed as the arrays ``indptr, indices, data`` of their CSR form (`csr_arrays`),
0/1 matrices without ``data``. Sweeps and products with dense blocks also take a `CodedMatrix`.
`threads` is the number of threads, by default OMP_NUM_THREADS or all available cores. Results are
the same to the bit on any number of threads.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import lru_cache
from threading import Lock
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray
from threadpoolctl import OpenBLASController, ThreadpoolController

from lowrank.kernels import backends, reference
from lowrank.kernels.arrays import Codes, Float64s, Floats, Floats32, Int32s, Int64s
from lowrank.kernels.backends import backend as backend
from lowrank.kernels.backends import supported as supported
from lowrank.kernels.backends import use as use
from lowrank.kernels.topk import Seen as Seen

N_CODES = 256
"""Number of levels that a code of one byte distinguishes."""

FloatArray = TypeVar("FloatArray", Floats32, Float64s)

_LARGE = 1 << 20  # bytes from which an array starts on a huge page
_KEPT = 1 << 27  # bytes of a workspace that stay for the next one
_workspaces: list[Floats] = []  # at most one, which nobody uses
_CHUNK = 1 << 20  # codes counted at once, to limit temporary memory


class CsrArrays(NamedTuple):
    """The arrays of a CSR matrix, in the types that the kernels take.

    For `csr_matmat` and `transposed`, `data` may be one number, the value of all entries.
    """

    indptr: Int64s
    indices: Int32s
    data: Floats

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the values."""
        return self.data.dtype

    def bound(self) -> float:
        """Return the largest absolute value."""
        return float(np.abs(self.data).max(initial=0))

    def scaled(self, factor: float) -> Self:
        """Return the matrix times a number."""
        return self._replace(data=self.data * self.dtype.type(factor))

    def take(self, rows: Int64s) -> Self:
        """Return some of the rows, in the given order."""
        at, indptr = row_places(self.indptr, rows)
        return type(self)(indptr, self.indices[at], self.data[at])

    def compact(self) -> Self:
        """Return the arrays with one number for all values if they are equal."""
        is_constant = self.data.size > 1 and self.data.min() == self.data.max()
        return self._replace(data=self.data[:1]) if is_constant else self


class CodedMatrix(NamedTuple):
    """A CSR matrix with few distinct values (levels), each stored as a code of one byte.

    The value of an entry at (i, j) is ``levels[code] - row_shift[i] - column_shift[j]``.

    Attributes
    ----------
    indptr : int64 ndarray of shape (n + 1,)
    indices : int32 ndarray of shape (nnz,)
        Sorted within each row.
    codes : uint8 ndarray of shape (nnz,)
    levels : float32 or float64 ndarray of shape (256,)
        The result of `padded`, with the dtype of the matrix.
    n_columns : int
    row_shift, column_shift : ndarrays of shapes (n,) and (m,), optional
        Both or neither.
    """

    indptr: Int64s
    indices: Int32s
    codes: Codes
    levels: Floats
    n_columns: int
    row_shift: Floats | None = None
    column_shift: Floats | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the matrix, (n, m)."""
        return len(self.indptr) - 1, self.n_columns

    @property
    def nnz(self) -> int:
        """Number of entries."""
        return len(self.codes)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the values."""
        return self.levels.dtype

    @property
    def arrays(self) -> CsrArrays:
        """The arrays of the matrix with decoded values, which take at least four times as much."""
        data = self.levels[self.codes]
        if self.row_shift is not None and self.column_shift is not None:
            data -= np.repeat(self.row_shift, np.diff(self.indptr))
            data -= self.column_shift[self.indices]
        return CsrArrays(self.indptr, self.indices, data)

    def bound(self) -> float:
        """Return an upper bound on the absolute values."""
        bound = float(np.abs(self.levels).max(initial=0))
        for shift in (self.row_shift, self.column_shift):
            if shift is not None:
                bound += float(np.abs(shift).max(initial=0))
        return bound

    def scaled(self, factor: float) -> Self:
        """Return the matrix times a number."""
        number = self.dtype.type(factor)
        scaled = self._replace(levels=self.levels * number)
        if self.row_shift is None or self.column_shift is None:
            return scaled
        return scaled._replace(
            row_shift=self.row_shift * number,
            column_shift=self.column_shift * number,
        )


Stored = CsrArrays | CodedMatrix
Basis = Floats | list[Floats]


class SparsePart(NamedTuple):
    """A term ``sum_j h_uj S_ji`` of scores: the product of two sparse float32 matrices.

    Attributes
    ----------
    history : CsrArrays
        The h_uj, of shape (n_queries, n_known).
    weights : CsrArrays
        The S_ji, of shape (n_known, n_items), indices sorted within each row.
    order : int32 ndarray of shape (n_items,), optional
        The item of each column of `weights`; by default item j is column j. The search takes the
        items in this order; it ends sooner if items with long vectors come first.
    """

    history: CsrArrays
    weights: CsrArrays
    order: Int32s | None = None


def row_places(indptr: Int64s, rows: Int64s) -> tuple[Int64s, Int64s]:
    """Return the positions of the entries of some rows, and the indptr of these rows."""
    starts = indptr[rows]
    counts = indptr[rows + 1] - starts
    ends = np.append(np.zeros(1, np.int64), np.cumsum(counts))
    offsets = np.repeat(starts - ends[:-1], counts)
    return np.arange(ends[-1]) + offsets, ends


def csr_block(matrix: CsrArrays, rows: Int64s, columns: Int64s) -> Floats:
    """Return the entries at all `rows` and `columns`; indices increase within a row."""
    starts = matrix.indptr[rows][:, None]
    ends = matrix.indptr[rows + 1][:, None]
    most = int((ends - starts).max(initial=0))
    places = np.repeat(starts, len(columns), axis=1)
    if not most:
        return np.zeros(places.shape, matrix.data.dtype)
    # Binary searches in all rows together.
    for power in reversed(range(most.bit_length())):
        later = places + 2**power
        is_later = matrix.indices.take(later, mode="clip") <= columns
        is_later &= later < ends
        np.copyto(places, later, where=is_later)
    is_there = matrix.indices.take(places, mode="clip") == columns
    is_there &= places < ends
    entries = matrix.data.take(places, mode="clip")
    return np.where(is_there, entries, matrix.data.dtype.type(0))


def solve_positive(system: FloatArray, right: FloatArray) -> FloatArray:
    """Return the solution x of ``system @ x = b`` for each row b of `right`.

    The system is symmetric and positive definite. If it is only semidefinite, x is the shortest
    solution by least squares, unless `right` has solutions without residuals.
    """
    # The image of the service has no SciPy but its sparse matrices.
    with suppress(np.linalg.LinAlgError):
        solutions = np.asarray(np.linalg.solve(system, right.T).T, system.dtype)
        error = np.abs(solutions @ system - right).max(initial=0)
        largest = np.abs(right).max(initial=0)
        # False for NaN, too.
        if error <= math.sqrt(np.finfo(system.dtype).eps) * largest:
            return solutions
    inverse = np.linalg.pinv(system, hermitian=True)
    return np.asarray(right @ inverse, system.dtype)


def pieces(length: int, size: int) -> Iterator[slice]:
    """Split ``range(length)`` into slices of `size`; the last may be shorter."""
    return (slice(start, min(start + size, length)) for start in range(0, length, size))


def row_blocks(indptr: Int64s, most: int) -> Iterator[slice]:
    """Split rows into slices with at most `most` entries each, but at least one row."""
    last = len(indptr) - 1
    start = 0
    while start < last:
        end = int(np.searchsorted(indptr, indptr[start] + most, side="right")) - 1
        # At least one row, however long it is.
        end = min(max(end, start + 1), last)
        yield slice(start, end)
        start = end


def csr_arrays(matrix: Any) -> CsrArrays:
    """Return the arrays of a scipy CSR matrix or array, converted only if necessary."""
    return CsrArrays(
        np.ascontiguousarray(matrix.indptr, np.int64),
        np.ascontiguousarray(matrix.indices, np.int32),
        np.ascontiguousarray(matrix.data),
    )


def padded(levels: Floats) -> Floats:
    """Return levels as an array of length 256, so that all codes are valid indices."""
    table = np.zeros(N_CODES, levels.dtype)
    table[: len(levels)] = levels
    return table


def level_counts(codes: Codes) -> Int64s:
    """Return the number of occurrences of each of the 256 codes."""
    counts = np.zeros(N_CODES, np.int64)
    for part in pieces(len(codes), _CHUNK):
        counts += np.bincount(codes[part], minlength=N_CODES)
    return counts


def transposed(
    matrix: Stored,
    n_columns: int,
    threads: int | None = None,
) -> Stored:
    """Return the transpose of a matrix in the same form, faster if its rows are sorted."""
    values: NDArray[Any] = (
        matrix.codes if isinstance(matrix, CodedMatrix) else matrix.data
    )
    indptr = np.empty(n_columns + 1, np.int64)
    indices = np.empty_like(matrix.indices)
    data = np.empty_like(values)
    backends.active.transpose(
        matrix.indptr,
        matrix.indices,
        values,
        indptr,
        indices,
        data,
        resolve_threads(threads),
    )
    if not isinstance(matrix, CodedMatrix):
        return CsrArrays(indptr, indices, data)
    return CodedMatrix(
        indptr=indptr,
        indices=indices,
        codes=data,
        levels=matrix.levels,
        n_columns=len(matrix.indptr) - 1,
        row_shift=matrix.column_shift,
        column_shift=matrix.row_shift,
    )


Csr = tuple[Int64s, Int32s, Floats]
Coded = Csr | CodedMatrix


def available_cores() -> int:
    """Return the number of cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def usual_threads() -> int:
    """Return the number in OMP_NUM_THREADS, else the number of available cores."""
    # One number for each level of nested regions: the first counts.
    first = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    if first.isdecimal() and int(first):
        return min(int(first), _MOST)
    return available_cores()


_MOST = 1024  # maximum number of threads: a request for a billion must not crash the process
_CORES = usual_threads()
default_threads: ContextVar[int] = ContextVar("default_threads", default=_CORES)
"""Default number of threads: that set by `at_most`, else `usual_threads`."""

_lock = Lock()
_users = 0  # threads inside `one_blas_thread`
_limits: Any = None  # restores the setting that the first of them found
# Since threadpoolctl 3.8, a setting belongs to the thread that made it, unless it is released.
_release = getattr(OpenBLASController, "clear_controlling_thread", lambda force: None)


def parts(matrix: Coded) -> tuple[Any, ...]:
    """Return a matrix as the active kernels take it."""
    if not isinstance(matrix, CodedMatrix):
        return matrix
    if backends.active is reference:  # it knows no codes
        return matrix.arrays
    row_shift = column_shift = matrix.levels[:0]
    if matrix.row_shift is not None and matrix.column_shift is not None:
        row_shift = matrix.row_shift
        column_shift = matrix.column_shift
    values = matrix.codes, matrix.levels, row_shift, column_shift
    return matrix.indptr, matrix.indices, values


def aligned_zeros(shape: tuple[int, ...], dtype: DTypeLike) -> Floats:
    """Return a zero array that starts on a cache line."""
    array = aligned_empty(shape, dtype)
    array.fill(0)
    return array


def aligned_empty(shape: tuple[int, ...], dtype: DTypeLike) -> Floats:
    """Return an array that starts on a cache line, so that rows span as few lines as possible.

    An array of a megabyte or more starts on a huge page, where the system has them: reading its
    rows in any order then needs few translations of addresses.
    """
    n_bytes = math.prod(shape) * np.dtype(dtype).itemsize
    alignment = 64
    spare = 64
    if n_bytes >= _LARGE:
        alignment = 1 << 21
        # NumPy requests huge pages for 4 MB and more. What is not written takes no memory.
        spare = max(alignment, (1 << 22) - n_bytes)
    memory = np.empty(n_bytes + spare, dtype=np.uint8)
    start = -memory.ctypes.data % alignment
    return memory[start : start + n_bytes].view(dtype).reshape(shape)


@contextmanager
def workspace(numbers: int, dtype: DTypeLike) -> Iterator[Floats]:
    """Lend memory for a number of floats, which may be what an earlier block has left.

    The system clears memory before it lends it, and may have to take it from a host: a small
    decomposition would spend a fifth of its time on that. Up to 128 MB stay with the process.
    """
    n_bytes = numbers * np.dtype(dtype).itemsize
    memory: Floats = np.empty(0, np.uint8)
    # Taking the only entry is atomic, so that threads do not share it.
    with suppress(IndexError):
        memory = _workspaces.pop()
    if memory.nbytes < n_bytes:
        memory = aligned_empty((n_bytes,), np.uint8)
    yield memory[:n_bytes].view(dtype)
    if memory.nbytes <= _KEPT:
        _workspaces[:] = [memory]


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
    weights: Floats | None = None,
    nonnegative: bool = False,
    threads: int | None = None,
) -> Float64s:
    r"""Solve the ridge regression of every row of a sparse matrix against fixed factors.

    For each row u with entries :math:`x_{ui}` of weights :math:`w_{ui}`, `factors` and `bias`
    receive the exact minimiser of

    .. math:: \sum_i w_{ui} (x_{ui} - \text{shift} - c_i - a_u \cdot m_i - b_u)^2
              + \lambda_u \|a_u\|^2 + \lambda^b_u b_u^2

    by a Cholesky factorisation of the normal equations or, for a row with few entries, of the dual
    system, which has one equation per entry. With `nonnegative`, the minimum is over
    :math:`a_u \ge 0`, by block principal pivoting, or by coordinate descent where the normal
    equations are singular. Rows without entries become zero. Returns the minimum of each row,
    penalties included, in float64, shape (n_rows,).

    Parameters
    ----------
    matrix : tuple of ndarrays of int64, int32 and the working dtype, or CodedMatrix
        The matrix of shape (n_rows, n_cols) in CSR form.
    other : ndarray of shape (n_cols, k), float32 or float64
        The fixed factors m_i; their dtype is the working dtype.
    penalty : ndarray of shape (n_rows,)
        Positive ridge penalties lambda_u; with `nonnegative`, they may be zero.
    factors, bias : ndarrays of shape (n_rows, k) and (n_rows,)
        Output: the factors a_u and the biases b_u. With `nonnegative`, the search starts from the
        previous factors.
    other_bias : ndarray of shape (n_cols,), optional
        The fixed biases c_i; zero by default.
    shift : float
        Subtracted from every entry.
    bias_penalty : ndarray of shape (n_rows,), optional
        Penalties of the row biases; without them no biases are fitted.
    weights : ndarray of shape (nnz,), optional
        The weights of the entries, not negative; one by default.
    nonnegative : bool
        Whether the factors must not be negative. Biases are free.

    References
    ----------
    Kim and Park (2011), "Fast nonnegative matrix factorization: an active-set-like method and
    comparisons", section 4.
    """
    dtype = other.dtype
    n_rows = len(factors)
    if other_bias is None:
        other_bias = np.zeros(len(other), dtype)
    fit_bias = bias_penalty is not None
    if bias_penalty is None:  # the kernel takes no None here
        bias_penalty = np.zeros(n_rows, dtype)
    if bias is None:
        bias = np.empty(n_rows, dtype)
    objective = np.empty(n_rows)
    backends.active.als_half_sweep(
        *parts(matrix),
        other,
        other_bias,
        float(shift),
        np.ascontiguousarray(penalty, dtype),
        np.ascontiguousarray(bias_penalty, dtype),
        fit_bias,
        factors,
        bias,
        objective,
        resolve_threads(threads),
        None if weights is None else np.ascontiguousarray(weights, dtype),
        nonnegative,
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
    residual: Floats | None = None,
    nonnegative: bool = False,
    threads: int | None = None,
) -> Float64s:
    r"""Solve the least squares of every row of a matrix of interactions against fixed factors.

    For each row u with interactions of weights :math:`v_{ui} \ge 0`, `factors` receives the exact
    minimiser of

    .. math:: \sum_i v_{ui} (1 - a_u \cdot m_i)^2 + a_u' G a_u + \lambda_u \|a_u\|^2
              - 2 r_u \cdot a_u

    by a Cholesky factorisation of the normal equations. If G is diagonal and `right` not given, the
    dual system, with one equation per entry, is used for rows where that is faster. With
    `nonnegative`, the minimum is over :math:`a_u \ge 0`, as in `als_half_sweep`. Returns the
    minimum of each row in float64, shape (n_rows,).

    With `residual` the factors are one block of several. The errors of the other blocks then
    replace 1.

    Parameters
    ----------
    weights : tuple of ndarrays of int64, int32 and the working dtype, or CodedMatrix
        The matrix of shape (n_rows, n_cols) in CSR form.
    other : ndarray of shape (n_cols, k), float32 or float64
        The fixed factors m_i; their dtype is the working dtype.
    gram, penalty : ndarrays of shape (k, k) and (n_rows,)
        The symmetric, positive semidefinite matrix G, and the positive penalties lambda_u.
    factors : ndarray of shape (n_rows, k)
        Output: the factors a_u. With `residual` or `nonnegative`, also input: the previous factors.
    right : ndarray of shape (n_rows, k), optional
        The vectors r_u, such as the penalty times a prior mean; zero by default.
    residual : ndarray of shape (nnz,), optional
        The errors of the factors of all blocks, each times the square root of its weight. They are
        updated in place.
    nonnegative : bool
        Whether the factors must not be negative; without `residual` only.
    """
    objective = np.empty(len(factors))
    backends.active.implicit_half_sweep(
        *parts(weights),
        other,
        np.ascontiguousarray(gram, other.dtype),
        np.ascontiguousarray(penalty, other.dtype),
        factors,
        objective,
        resolve_threads(threads),
        None if right is None else np.ascontiguousarray(right, other.dtype),
        residual,
        nonnegative,
    )
    return objective


def nonnegative_descent(
    gram: Floats,
    products: Floats,
    factors: Floats,
    *,
    passes: int = 1,
    threads: int | None = None,
) -> None:
    r"""Improve non-negative least squares that share a Gram matrix by coordinate descent.

    For each row, passes over its unknowns lower :math:`x' G x - 2 p \cdot x` over one unknown
    :math:`x_i \ge 0` at a time.

    Parameters
    ----------
    gram : ndarray of shape (k, k), float32 or float64
        The symmetric, positive semidefinite matrix G.
    products : ndarray of shape (n_rows, k)
        The vectors p.
    factors : ndarray of shape (n_rows, k)
        The rows x, not negative. They are updated in place.
    passes : int
        Number of passes over all unknowns.

    References
    ----------
    Cichocki and Phan (2009), "Fast local algorithms for large scale nonnegative matrix and tensor
    factorizations".
    """
    backends.active.nonnegative_descent(
        np.ascontiguousarray(gram, factors.dtype),
        np.ascontiguousarray(products, factors.dtype),
        factors,
        passes,
        resolve_threads(threads),
    )


def pair_dots(
    left: Floats32,
    right: Floats32,
    rows: Int64s,
    others: Int64s,
    *,
    threads: int | None = None,
) -> Floats32:
    """Return the dot products of ``left[rows]`` with ``right[others]``, shape (n_pairs,).

    The summation order does not depend on the other pairs, unlike in a matrix product.
    """
    dots = np.empty(len(rows), dtype=np.float32)
    backends.active.pair_dots(
        np.ascontiguousarray(left, np.float32),
        np.ascontiguousarray(right, np.float32),
        np.ascontiguousarray(rows, np.int64),
        np.ascontiguousarray(others, np.int64),
        dots,
        resolve_threads(threads),
    )
    return dots


def csr_matmat(
    A: Coded,
    X: Floats,
    *,
    out: Floats | None = None,
    threads: int | None = None,
) -> Floats:
    """Return A @ X for a sparse A of shape (n, m) and a dense block X; `out` is C-ordered."""
    X = np.ascontiguousarray(X, A.dtype if isinstance(A, CodedMatrix) else A[2].dtype)
    Y = aligned_empty((len(A[0]) - 1, X.shape[1]), X.dtype) if out is None else out
    backends.active.csr_matmat(*parts(A), X, Y, resolve_threads(threads))
    return Y


def csr_rmatmat(
    A: Coded,
    X: Floats,
    n_cols: int,
    *,
    out: Floats | None = None,
    threads: int | None = None,
) -> Floats:
    """Return A.T @ X for a sparse A of shape (n, n_cols) and a dense block X.

    It is faster if the rows of A are sorted.
    """
    X = np.ascontiguousarray(X, A.dtype if isinstance(A, CodedMatrix) else A[2].dtype)
    Y = np.empty((n_cols, X.shape[1]), dtype=X.dtype) if out is None else out
    backends.active.csr_rmatmat(*parts(A), X, Y, resolve_threads(threads))
    return Y


def csr_entries(
    A: Csr,
    left: Floats,
    right: Floats,
    *,
    threads: int | None = None,
) -> Floats:
    """Return ``w . z + b + c`` at the position of each stored entry of A; its values are not used.

    The rows of `left`, shape (n_rows, k + 1), are vectors (w, b). The rows of `right`, shape
    (n_cols, k + 1), are (z, c). The result has the shape (nnz,).
    """
    out = np.empty_like(A[2])
    backends.active.csr_entries(
        *A,
        np.ascontiguousarray(left, out.dtype),
        np.ascontiguousarray(right, out.dtype),
        out,
        resolve_threads(threads),
    )
    return out


def coefficients(
    V: Floats,
    W: Floats,
    *,
    threads: int | None = None,
) -> Floats:
    """Return V.T @ W for a basis V of shape (n, c) and a block W of shape (n, width).

    V may be the first columns of a wider C-ordered array.
    """
    P = np.empty((V.shape[1], W.shape[1]), dtype=W.dtype)
    backends.active.coefficients(V, W, P, resolve_threads(threads))
    return P


def multiply(
    V: Basis,
    H: Floats,
    *,
    out: Floats | None = None,
    threads: int | None = None,
) -> Floats:
    """Return V @ H, C-ordered, in the dtype of V.

    V is a basis as in `coefficients`, or the panels of one: arrays of some of its columns. `out`
    must be C-ordered, or the first columns of V.
    """
    panels = _panels(V)
    dtype = panels[0].dtype
    W = out
    if W is None:
        W = aligned_empty((len(panels[0]), H.shape[1]), dtype)
    backends.active.multiply(
        panels, np.ascontiguousarray(H, dtype), W, resolve_threads(threads)
    )
    return W


def _panels(V: Basis) -> list[Floats]:
    """Return the panels of a basis."""
    return [V] if isinstance(V, np.ndarray) else V


def subtract(
    V: Floats,
    H: Floats,
    W: Floats,
    *,
    threads: int | None = None,
) -> None:
    """Subtract V @ H from the C-ordered block W in place; V as in `coefficients`."""
    backends.active.subtract(V, H, W, resolve_threads(threads))


def project(
    V: Basis,
    W: Floats,
    *,
    first: int = 0,
    again: bool = False,
    threads: int | None = None,
) -> tuple[Float64s, Float64s]:
    """Subtract from the C-ordered block W, in place, its projection on orthonormal columns V.

    V is as in `multiply`. Only its panels from `first` on are used; with `again`, a second pass
    uses all of them. Returns the coefficients H of the subtracted V @ H, with zeros before `first`,
    and W.T @ W of the result.
    """
    panels = _panels(V)
    width = W.shape[1]
    inside = np.empty((sum(panel.shape[1] for panel in panels), width))
    gram = np.empty((width, width))
    backends.active.project(
        panels, first, again, W, inside, gram, resolve_threads(threads)
    )
    return inside, gram


def squared_distances(
    P: Floats,
    V: Floats,
    s: Floats,
    *,
    threads: int | None = None,
) -> Float64s:
    """Return the squared norm of each column of P - V * s; P as V in `coefficients`."""
    squares = np.empty(len(s))
    backends.active.squared_distances(P, V, s, squares, resolve_threads(threads))
    return squares


def place(
    W: Floats,
    V: Floats,
    *,
    threads: int | None = None,
) -> None:
    """Write the C-ordered block W into V, an array of any strides."""
    backends.active.place(W, V, resolve_threads(threads))


def resolve_threads(threads: int | None) -> int:
    """Return `threads`, limited to 1,024, or `default_threads` for None.

    Raises
    ------
    ValueError
        If `threads` is below 1.
    """
    if threads is None:
        return default_threads.get()
    if threads < 1:
        raise ValueError(
            f"threads must be at least 1, or None for all cores; got {threads}."
        )
    return min(int(threads), _MOST)


@contextmanager
def at_most(threads: int | None) -> Iterator[None]:
    """Set the default number of threads inside the block; None does not change it."""
    # A context variable belongs to one thread or task: others keep their number.
    token = default_threads.set(resolve_threads(threads))
    try:
        yield
    finally:
        default_threads.reset(token)


@lru_cache(maxsize=1)
def _controller(n_modules: int) -> ThreadpoolController:
    """Return a controller of the loaded libraries; cached, since the search takes milliseconds."""
    return ThreadpoolController()


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limit BLAS to one thread inside the block, for work that runs in its own threads.

    The setting applies to the whole process. It is restored when the last thread leaves its block.
    """
    global _users, _limits
    with _lock:
        if _users == 0:
            _release(force=True)
            # A module that was imported since may have brought another BLAS.
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

"""Column selection and CUR decompositions."""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from lowrank import kernels
from lowrank.approximation import LowRank
from lowrank.arguments import as_operator, checked_generator, checked_rank
from lowrank.kernels import one_blas_thread
from lowrank.samples import negligible_value
from lowrank.svd import truncated_svd

__all__ = [
    "CUR",
    "ColumnSubset",
    "Columns",
    "DenseColumns",
    "SparseColumns",
    "columns_of",
    "cur",
    "eliminated",
    "greedy",
    "leverage_scores",
    "select_columns",
]

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lowrank.operators import Float64Array, FloatArray
    from lowrank.svd import SVD

    Indices = NDArray[np.int64]


_METHODS = ("qr", "leverage", "forward", "backward")
_SAFE_EXPONENT = 200  # entries outside 2**-x ... 2**x are rescaled: fourth powers are summed


@dataclass(frozen=True, eq=False)
class ColumnSubset:
    """Columns C of a matrix A, and how well they span it.

    Attributes
    ----------
    columns : ndarray of shape (k,), int64
        Which ones: in order of choice, for "backward" ascending.
    error : float
        ||A - C C^+ A||_F: the distance of A to its projection on their span.
    optimum : float
        The least error of any matrix of rank k (Eckart & Young 1936).
    """

    columns: Indices
    error: float
    optimum: float

    @property
    def ratio(self) -> float:
        """Error relative to the optimum, 1 or more; 1 if both are 0, inf if only the optimum is."""
        return _ratio(self.error, self.optimum)


@dataclass(frozen=True, eq=False, repr=False)
class CUR:
    """The approximation C U R of a matrix A by k of its columns and k of its rows.

    Attributes
    ----------
    columns, rows : ndarrays of shape (k,), int64
        Which ones.
    C : ndarray or scipy.sparse.csr_array of shape (n, k)
        The columns; sparse if A is.
    U : ndarray of shape (k, k)
        C^+ A R^+, which makes the error as small as it can be with these columns and rows.
    R : ndarray or scipy.sparse.csr_array of shape (k, m)
        The rows.
    error : float
        ||A - C U R||_F.
    optimum : float
        The least error of any matrix of rank k (Eckart & Young 1936).
    """

    columns: Indices
    rows: Indices
    C: Any
    U: FloatArray
    R: Any
    error: float
    optimum: float

    def __repr__(self) -> str:
        shape = (self.C.shape[0], self.R.shape[1])
        return (
            f"CUR(k={len(self.U)}, shape={shape}, error={self.error:.6g}, ratio={self.ratio:.4g})"
        )

    @property
    def ratio(self) -> float:
        """Error relative to the optimum, 1 or more; 1 if both are 0, inf if only the optimum is."""
        return _ratio(self.error, self.optimum)

    def lowrank(self) -> LowRank:
        """Return the product in factored form: ``C @ U`` and the rows, as dense factors."""
        R = self.R if isinstance(self.R, np.ndarray) else self.R.toarray()
        return LowRank(self.C @ self.U, R.T)

    def toarray(self) -> FloatArray:
        """Return the product as a dense array of shape (n, m)."""
        return self.lowrank().toarray()


@dataclass(frozen=True, eq=False)
class _Given:
    """The matrix of the user times 2**-exponent, in float64, and its k largest singular triplets.

    ``best`` is the Frobenius error of these, and ``rounding`` what an exact 0 may come out as.
    """

    matrix: Any
    dtype: np.dtype[Any]
    exponent: int
    svd: SVD
    best: float
    rounding: float

    def distance(self, left: Float64Array, right: Float64Array) -> float:
        """Return ||A - left right'||_F, in the units of the user."""
        error = LowRank(left, right).distance_to(self.matrix)
        return self.unscaled(max(error, self.best))

    def unscaled(self, error: float) -> float:
        return math.ldexp(error, self.exponent) if error > self.rounding else 0.0


def leverage_scores(A: Any, k: int, *, random_state: Any = None) -> FloatArray:
    """Compute the leverage of each column on the best rank-k approximation of a matrix.

    It is the squared length of a column's coordinates in the k leading right singular vectors:
    between 0 and 1, with sum k. Directions whose singular value is 0 to rounding do not count; the
    sum is then the rank of A. For rows pass ``A.T``.

    Parameters
    ----------
    A : array-like, scipy.sparse matrix or array, or LinearOperator, of shape (n, m)
        Real, finite matrix.
    k : int
        From 0 to min(n, m).
    random_state : int, Generator, RandomState or None
        Seed of the solver's start vectors.

    Returns
    -------
    ndarray of shape (m,)
        float32 if A is, else float64.

    Raises
    ------
    TypeError, ValueError
        As `truncated_svd`.

    References
    ----------
    Mahoney & Drineas (2009), "CUR matrix decompositions for improved data analysis".

    Examples
    --------
    >>> import numpy as np
    >>> leverage_scores(np.diag([3.0, 1.0, 2.0]), 2)
    array([1., 0., 1.])
    """
    return _leverage(truncated_svd(A, k, random_state=random_state), rows=False)


def select_columns(A: Any, k: int, *, method: str = "qr", random_state: Any = None) -> ColumnSubset:
    """Choose k columns of a matrix that span it well.

    Parameters
    ----------
    A : array-like or scipy.sparse matrix or array, of shape (n, m)
        Real, finite matrix. It is worked on in float64.
    k : int
        Number of columns, from 0 to m.
    method : {"qr", "leverage", "forward", "backward"}, default "qr"
        "qr" takes the column furthest from the span of those taken before, as QR with column
        pivoting: one product with A' per column. "forward" takes the column that leaves the
        smallest error: two products more per column, and A' A once, in pieces. Of columns that
        are equally good in either sense, to nine digits, the first is taken.
        "leverage" draws columns without replacement, with odds in proportion to their leverage on
        the best rank-k approximation. "backward" starts from all columns and drops the one
        whose loss raises the error the least, in time of order m^3: the most careful, and the only
        one that makes a sparse A dense, as a min(n, m) x m factor (refused above 1.1 GB).
    random_state : int, Generator, RandomState or None
        Seed of "leverage", and of the start vectors of the SVD behind the optimum.

    Returns
    -------
    ColumnSubset
        Frozen: columns, error, optimum, ratio. Errors are accumulated in float64, and 0 where they
        are within rounding (sparse A: 3e-8 of ||A||_F).

    Raises
    ------
    TypeError
        If A is a LinearOperator, complex or not numeric, or k is not an integer.
    ValueError
        If A is not two-dimensional or not finite, k or method is out of its range, or "backward"
        would need too much memory.

    References
    ----------
    Mahoney & Drineas (2009), "CUR matrix decompositions for improved data analysis"; Golub (1965),
    "Numerical methods for solving linear least squares problems", for pivoting; Farahat, Ghodsi
    & Kamel (2013), "Efficient greedy feature selection for unsupervised learning", for "forward".

    Examples
    --------
    >>> import numpy as np
    >>> A = np.array([[2.0, 2.0, 0.0, 2.0], [0.0, 0.0, 3.0, 0.0]])
    >>> select_columns(A, 1, method="qr").columns, select_columns(A, 1, method="forward").columns
    (array([2]), array([0]))
    >>> found = select_columns(A, 2)
    >>> found.error, found.ratio
    (0.0, 1.0)
    """
    _check_method(method)
    rng = checked_generator(random_state)
    shape = _checked_shape(A)
    count = checked_rank(k, shape[1], "columns of A")
    given = _given(A, min(count, *shape), rng)
    columns = columns_of(given.matrix)
    chosen = _chosen(columns, given.svd, count, method, rng, rows=False)
    basis, _ = _span(columns.block(chosen))
    error = given.distance(basis, columns.transposed_product(basis))
    return ColumnSubset(chosen, error, given.unscaled(given.best))


def cur(A: Any, k: int, *, method: str = "qr", random_state: Any = None) -> CUR:
    """Approximate a matrix by k of its columns and k of its rows.

    Parameters
    ----------
    A : array-like or scipy.sparse matrix or array, of shape (n, m)
        Real, finite matrix. It is worked on in float64; a sparse one stays sparse, beside dense
        arrays of shape (n, k) and (m, k).
    k : int
        From 0 to min(n, m).
    method : {"qr", "leverage", "forward", "backward"}, default "qr"
        How columns of A, and of A' for the rows, are chosen; see `select_columns`.
    random_state : int, Generator, RandomState or None
        Seed of "leverage", and of the start vectors of the SVD behind the optimum.

    Returns
    -------
    CUR
        Frozen: columns, rows, C, U, R, error, optimum, ratio; `CUR.lowrank` is the product in
        factored form.

    Raises
    ------
    TypeError, ValueError
        As `select_columns`.

    References
    ----------
    Mahoney & Drineas (2009), "CUR matrix decompositions for improved data analysis"; Stewart
    (1999), "Four algorithms for the efficient computation of truncated pivoted QR approximations to
    a sparse matrix", for U.

    Examples
    --------
    >>> import numpy as np
    >>> A = np.outer([1.0, 2.0, 3.0], [1.0, 0.0, 2.0])
    >>> found = cur(A, 1)
    >>> found.C.ravel(), found.R.ravel()
    (array([2., 4., 6.]), array([3., 0., 6.]))
    >>> bool(np.allclose(found.toarray(), A))
    True
    """
    _check_method(method)
    rng = checked_generator(random_state)
    shape = _checked_shape(A)
    count = checked_rank(k, min(shape))
    given = _given(A, count, rng)
    columns, rows = columns_of(given.matrix), columns_of(given.matrix.T)
    first = _chosen(columns, given.svd, count, method, rng, rows=False)
    second = _chosen(rows, given.svd, count, method, rng, rows=True)
    left, left_inverse = _span(columns.block(first))
    right, right_inverse = _span(rows.block(second))
    core = left.T @ columns.product(right)
    U = np.ldexp(left_inverse @ core @ right_inverse.T, -given.exponent)
    return CUR(
        columns=first,
        rows=second,
        C=_taken(A, given.dtype, columns=first),
        U=U.astype(given.dtype),
        R=_taken(A, given.dtype, rows=second),
        error=given.distance(left @ core, right),
        optimum=given.unscaled(given.best),
    )


def _chosen(
    columns: Columns, svd: SVD, k: int, method: str, rng: np.random.Generator, *, rows: bool
) -> Indices:
    if method == "backward":
        return eliminated(columns, k)
    if method != "leverage":
        return greedy(columns, k, by_error=method == "forward")
    # The first k of independent waiting times with these rates: draws without replacement.
    scores = _leverage(svd, rows=rows)
    times = np.full(scores.size, np.inf)
    np.divide(rng.exponential(size=scores.size), scores, out=times, where=scores > 0)
    return np.argsort(times, kind="stable")[:k]


def _leverage(svd: SVD, *, rows: bool) -> FloatArray:
    vectors = svd.U if rows else svd.Vt.T
    kept = svd.s > negligible_value(svd, np.zeros(svd.shape[1]))
    scores: FloatArray = (vectors[:, kept] ** 2).sum(axis=1)
    return scores


def _span(block: Float64Array) -> tuple[Float64Array, Float64Array]:
    """Return an orthonormal basis Q of the span of the columns of C, and C^+ Q."""
    if 0 in block.shape:
        return np.zeros((block.shape[0], 0)), np.zeros((block.shape[1], 0))
    norms = np.linalg.norm(block, axis=0)
    norms[norms == 0] = 1.0
    Q, s, Vt = np.linalg.svd(block / norms, full_matrices=False)
    rank = int(np.count_nonzero(s > max(block.shape) * np.finfo(np.float64).eps * s[0]))
    return Q[:, :rank], (Vt[:rank].T / s[:rank]) / norms[:, None]


def _given(A: Any, k: int, rng: np.random.Generator) -> _Given:
    from scipy import sparse

    wrapped = as_operator(A)
    exponent = math.frexp(wrapped.peak)[1]
    exponent = exponent if abs(exponent) > _SAFE_EXPONENT else 0
    matrix = _canonical(A) if sparse.issparse(A) else np.asarray(A, np.float64)
    if exponent:
        matrix = matrix * 2.0**-exponent
    svd = truncated_svd(matrix, k, random_state=rng)
    norm = svd.frobenius_norm or 0.0
    best = 0.0
    if k < min(wrapped.shape):
        best = LowRank(svd.U * svd.s, svd.Vt.T).distance_to(matrix)
    rounding = (3e-8 if sparse.issparse(A) else 1e-13) * norm
    return _Given(matrix, wrapped.dtype, exponent, svd, best, rounding)


def _canonical(A: Any) -> Any:
    """Return a sparse matrix as a canonical CSR array in float64, duplicates summed first."""
    from scipy import sparse

    csr = sparse.csr_array(A)
    if not csr.has_canonical_format:
        csr = csr.copy()
        csr.sum_duplicates()
    return csr.astype(np.float64, copy=False)


def _taken(A: Any, dtype: np.dtype[Any], *, columns: Any = slice(None), rows: Any = None) -> Any:
    """Return columns, or rows, of what the user gave; sparse in CSR form."""
    from scipy import sparse

    matrix = _canonical(A) if sparse.issparse(A) else np.asarray(A)
    taken = matrix[:, columns] if rows is None else matrix[rows]
    return taken.astype(dtype)


def _ratio(error: float, optimum: float) -> float:
    if optimum == 0:
        return 1.0 if error == 0 else math.inf
    return error / optimum


def _check_method(method: Any) -> None:
    if not isinstance(method, str) or method not in _METHODS:
        names = ", ".join(repr(name) for name in _METHODS)
        raise ValueError(f"method must be one of {names}; got {method!r}.")


def _checked_shape(A: Any) -> tuple[int, int]:
    from scipy.sparse.linalg import LinearOperator

    if isinstance(A, LinearOperator):
        raise TypeError("A must be an array or a sparse matrix; got a LinearOperator.")
    return as_operator(A).shape


if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from lowrank.operators import Float64Array

    Indices = NDArray[np.int64]


_CHUNK = 1 << 22  # numbers that a temporary block of columns may hold
_LARGEST_TRIANGLE = 1 << 27  # numbers in the dense factor of a sparse matrix: 1 GiB
_EPS = float(np.finfo(np.float64).eps)
_STALE = 1e-6  # share of its last exact value below which a downdated figure is computed anew
_TIE = 1e-9  # scores this close, relative to the best, count as equal: rounding must not decide


class DenseColumns:
    """The columns of a dense float64 array of shape (n, m)."""

    def __init__(self, matrix: Float64Array) -> None:
        self.shape = (matrix.shape[0], matrix.shape[1])
        self._matrix = matrix

    def block(self, columns: Indices) -> Float64Array:
        """Return some columns, shape (n, b)."""
        return self._matrix[:, columns]

    def product(self, X: Float64Array) -> Float64Array:
        """Return A X."""
        return self._matrix @ X

    def transposed_product(self, Y: Float64Array) -> Float64Array:
        """Return A' Y."""
        return self._matrix.T @ Y

    def squares(self) -> Float64Array:
        """Return the sum of squares of each column."""
        squares: Float64Array = np.einsum("ij,ij->j", self._matrix, self._matrix)
        return squares

    def gram_squares(self) -> Float64Array:
        """Return ||A' a_j||^2 for each column a_j."""
        return _by_blocks(
            self, np.arange(self.shape[1]), lambda block: self.transposed_product(block)
        )

    def triangle(self) -> Float64Array:
        """Return a matrix with at most m rows and the same products of columns, A' A."""
        rows, columns = self.shape
        return self._matrix if rows <= columns else _triangular_factor(self._matrix)


class SparseColumns:
    """The columns of a sparse matrix of shape (n, m).

    Parameters
    ----------
    csr : scipy.sparse.csr_array of shape (n, m)
        float64, canonical. A copy in order of the columns is made.
    """

    def __init__(self, csr: Any) -> None:
        self.shape = (csr.shape[0], csr.shape[1])
        self._csr = csr
        self._csc = csr.tocsc()
        self._rows = kernels.csr_arrays(csr)
        self._columns = kernels.csr_arrays(self._csc.T)

    def block(self, columns: Indices) -> Float64Array:
        """Return some columns as a dense array of shape (n, b)."""
        block: Float64Array = self._csc[:, columns].toarray()
        return block

    def product(self, X: Float64Array) -> Float64Array:
        """Return A X."""
        return _matmat(self._rows, X)

    def transposed_product(self, Y: Float64Array) -> Float64Array:
        """Return A' Y."""
        return _matmat(self._columns, Y)

    def squares(self) -> Float64Array:
        """Return the sum of squares of each column."""
        data, places = self._csr.data, self._csr.indices
        squares: Any = np.bincount(places, weights=data**2, minlength=self.shape[1])
        return np.asarray(squares, np.float64)

    def gram_squares(self) -> Float64Array:
        """Return ||A' a_j||^2 for each column a_j, from sparse products of some columns each."""
        work = self._csc.T.astype(bool) @ np.diff(self._csr.indptr)  # bounds the entries of A' a_j
        pieces = np.cumsum(work) // _CHUNK
        bounds = np.append(np.unique(pieces, return_index=True)[1], self.shape[1])
        squares = np.zeros(self.shape[1])
        for start, stop in pairwise(bounds):
            product = self._csc[:, start:stop].T @ self._csr
            squares[start:stop] = product.power(2).sum(axis=1)
        return squares

    def triangle(self) -> Float64Array:
        """Return a dense matrix with min(n, m) rows and the same products of columns, A' A.

        Rows become dense some at a time, and what they add to the factor at once.
        """
        rows, columns = self.shape
        self._require_room()
        if rows <= columns:
            dense: Float64Array = self._csr.toarray()
            return dense
        factor = np.zeros((0, columns))
        step = max(columns, _CHUNK // max(1, columns))
        for start in range(0, rows, step):
            part = self._csr[start : start + step].toarray()
            factor = _triangular_factor(np.vstack([factor, part]))
        return factor

    def _require_room(self) -> None:
        size, limit = (8e-9 * n for n in (min(self.shape) * self.shape[1], _LARGEST_TRIANGLE))
        if size > limit:
            raise ValueError(
                f"method='backward' needs a dense factor of at most {limit:.1f} GB; got sparse A "
                f"of shape {self.shape}, with one of {size:.1f} GB: use method='forward'."
            )


Columns = DenseColumns | SparseColumns


def columns_of(matrix: Any) -> Columns:
    """Wrap a float64 array, or a canonical sparse matrix in float64 of any format."""
    return DenseColumns(matrix) if isinstance(matrix, np.ndarray) else SparseColumns(matrix.tocsr())


def greedy(columns: Columns, k: int, *, by_error: bool) -> Indices:
    """Choose columns one by one.

    Parameters
    ----------
    columns : Columns of shape (n, m)
    k : int
        0 <= k <= m.
    by_error : bool
        Choose the column that leaves the smallest error ||A - C C^+ A||_F; else the one that is
        furthest from the span of those chosen, as QR with column pivoting does. The first
        of several columns that are equally good to nine digits is taken.

    Returns
    -------
    ndarray of shape (k,)
        In order of choice; once all columns are spanned, the first of those left.
    """
    # Compiled products alternate with small ones of BLAS, whose idle threads would spin on.
    with one_blas_thread() if isinstance(columns, SparseColumns) else nullcontext():
        found = _searched(columns, k, by_error=by_error)
    return _completed(found.chosen, k, columns.shape[1])


def _searched(columns: Columns, k: int, *, by_error: bool) -> _Residual:
    """Choose up to k columns, until none is left outside of their span."""
    residual = _Residual(columns, k, by_error)
    while residual.rank < min(k, columns.shape[0]):
        residual.renew()
        scores = residual.scores()
        best = scores.max(initial=0.0)
        if best <= 0:
            break
        residual.add(int(np.argmax(scores >= (1 - _TIE) * best)))
    return residual


class _Residual:
    """What is left of the columns outside the span of those chosen, E = A - Q R.

    ``squares`` are the ||e_j||^2, ``gains`` the ||E' e_j||^2: a column j that is added takes
    gains[j] / squares[j] off the squared error. Both are downdated with each choice. A figure that
    has become small beside what it was downdated from is computed anew, from the column itself.
    """

    def __init__(self, columns: Columns, k: int, by_error: bool) -> None:
        rows, count = columns.shape
        self.chosen: list[int] = []
        self.rank = 0
        self._columns = columns
        self._Q = np.zeros((rows, min(rows, k)), order="F")
        self._R = np.zeros((min(rows, k), count))
        self._squares = columns.squares()
        self._fresh_squares = self._squares.copy()
        self._negligible = (10 * _EPS) ** 2 * max(1, rows) * self._squares
        self._alive = self._squares > 0
        self._gains = columns.gram_squares() if by_error else None
        self._fresh_gains = None if self._gains is None else self._gains.copy()

    def products(self) -> Float64Array:
        """Return R, of shape (rank, m)."""
        return self._R[: self.rank]

    def scores(self) -> Float64Array:
        """Return what each column is worth; 0 for those that are spanned."""
        worth = self._squares
        if self._gains is not None:
            worth = np.divide(
                self._gains, self._squares, out=np.zeros_like(self._gains), where=self._alive
            )
        return np.where(self._alive, np.maximum(worth, np.finfo(np.float64).tiny), 0.0)

    def add(self, column: int) -> None:
        """Choose a column."""
        self.chosen.append(column)
        self._alive[column] = False
        vector = self._outside(self._columns.block(np.array([column])))
        q = vector / np.linalg.norm(vector)
        r = self._columns.transposed_product(q)[:, 0]
        if self._gains is not None:
            projected = self._columns.product(r[:, None])
            image = self._columns.transposed_product(self._outside(projected))[:, 0]
            self._gains += r * (r * (r @ r) - 2 * image)
        self._squares -= r**2
        self._Q[:, self.rank] = q[:, 0]
        self._R[self.rank] = r
        self.rank += 1

    def renew(self) -> None:
        """Compute anew the figures that downdating has worn out."""
        stale = self._squares < _STALE * self._fresh_squares
        if self._gains is not None and self._fresh_gains is not None:
            stale |= self._gains < _STALE * self._fresh_gains
        places = np.flatnonzero(stale & self._alive)
        if places.size == 0:
            return
        self._squares[places] = _by_blocks(self._columns, places, self._outside)
        self._fresh_squares[places] = self._squares[places]
        self._alive[places] = self._squares[places] > self._negligible[places]
        places = places[self._alive[places]]
        if self._gains is not None and self._fresh_gains is not None:
            self._gains[places] = _by_blocks(self._columns, places, self._gain_block)
            self._fresh_gains[places] = self._gains[places]

    def _outside(self, block: Float64Array) -> Float64Array:
        """Return the part of each vector outside the span, with the rounding errors of its size."""
        Q = self._Q[:, : self.rank]
        once = block - Q @ (Q.T @ block)
        return once - Q @ (Q.T @ once)

    def _gain_block(self, block: Float64Array) -> Float64Array:
        return self._columns.transposed_product(self._outside(block))


def eliminated(columns: Columns, k: int) -> Indices:
    """Drop columns one by one, each time the one whose loss raises ||A - C C^+ A||_F the least.

    Columns that depend on others cost nothing; of these the ones that pivoted QR puts last go
    first. Then, with the n x s columns C that are left, T T' = (C' C)^-1 and K = A' C T T', the
    squared error rises by ||K e_j||^2 / ||T' e_j||^2 without column j.

    Parameters
    ----------
    columns : Columns of shape (n, m)
    k : int
        0 <= k <= m.

    Returns
    -------
    ndarray of shape (k,)
        Ascending.

    Raises
    ------
    ValueError
        If a sparse matrix has a triangular factor that would not fit.
    """
    from scipy.linalg import solve_triangular

    if k == 0 or min(columns.shape) == 0:
        return np.arange(k)
    order, R = _ordered(DenseColumns(columns.triangle()))
    rank = R.shape[0]
    if k >= rank:
        return np.sort(_completed(order[:rank].tolist(), k, columns.shape[1]))
    T = np.asarray(solve_triangular(R[:, order], np.eye(rank), check_finite=False))
    return np.sort(_without_least(order, np.asfortranarray((T @ R).T), T, k))


def _ordered(columns: DenseColumns) -> tuple[Indices, Float64Array]:
    """Return as many columns as the rank, in order of pivoted QR, and its R, not reordered."""
    residual = _searched(columns, min(columns.shape), by_error=False)
    order, R = np.array(residual.chosen, np.int64), residual.products()
    diagonal = np.abs(R[np.arange(order.size), order])
    negligible = _EPS * max(columns.shape) * diagonal.max(initial=0.0)
    rank = int(np.count_nonzero(diagonal > negligible))
    return order[:rank], R[:rank]


def _without_least(left: Indices, K: Float64Array, T: Float64Array, k: int) -> Indices:
    """Drop columns until k of them are left; K and T are overwritten."""
    for size in range(left.size, k, -1):
        last = size - 1
        place = _cheapest(K[:, :size], T[:size, :size], left[:size])
        K[:, [place, last]] = K[:, [last, place]]
        T[[place, last], :size] = T[[last, place], :size]
        left[[place, last]] = left[[last, place]]
        row = T[last, :size].copy()
        share = T[:last, :size] @ row / (row @ row)
        K[:, :last] -= np.outer(K[:, last], share)
        # A reflection that brings the row to the last axis: T T' of the others, less its part.
        row[-1] += np.copysign(np.linalg.norm(row), row[-1])
        T[:last, :size] -= np.outer(T[:last, :size] @ row, row * (2 / (row @ row)))
    return left[:k]


def _cheapest(K: Float64Array, T: Float64Array, left: Indices) -> int:
    """Return the place of the column that costs least; of equal ones, of the last column of A."""
    costs = np.einsum("ij,ij->j", K, K) / np.einsum("ij,ij->i", T, T)
    equal = np.flatnonzero(costs <= (1 + _TIE) * costs.min())
    return int(equal[np.argmax(left[equal])])


def _completed(chosen: list[int], k: int, count: int) -> Indices:
    """Fill up a choice with the first columns that are not in it."""
    rest = np.setdiff1d(np.arange(count), chosen)[: k - len(chosen)]
    return np.concatenate([np.array(chosen, np.int64), rest])


def _by_blocks(columns: Columns, places: Indices, image: Any) -> Float64Array:
    """Return the sum of squares of each column of the image of some columns."""
    squares = np.zeros(places.size)
    for part in _parts(places.size, max(columns.shape)):
        block = image(columns.block(places[part]))
        squares[part] = np.einsum("ij,ij->j", block, block)
    return squares


def _parts(count: int, height: int) -> Iterator[slice]:
    step = max(1, _CHUNK // max(1, height))
    return (slice(start, start + step) for start in range(0, count, step))


def _triangular_factor(rows: Float64Array) -> Float64Array:
    factor: Any = np.linalg.qr(rows, mode="r")
    return np.asarray(factor, np.float64)


def _matmat(arrays: kernels.CsrArrays, X: Float64Array) -> Float64Array:
    return np.asarray(kernels.csr_matmat(*arrays, np.ascontiguousarray(X)), np.float64)

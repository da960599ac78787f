"""Column selection and CUR decompositions."""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.linalg
from scipy.sparse.linalg import LinearOperator

from lowrank.arguments import as_operator, checked_generator, checked_rank, entries_of
from lowrank.errors import check_choice, check_range
from lowrank.kernels import one_blas_thread, pieces
from lowrank.kernels.arrays import EPS, Int64s
from lowrank.low_rank import LowRank
from lowrank.operators import rescaled, safe_exponent
from lowrank.samples import rounding_limits, samples_of
from lowrank.svd import truncated_svd

if TYPE_CHECKING:
    from lowrank.arguments import MatrixLike, RandomStateLike
    from lowrank.operators import Float64Array, FloatArray, MatrixOperator
    from lowrank.samples import Samples
    from lowrank.svd import SVD

    Indices = Int64s

_METHODS = ("qr", "leverage")
_CHUNK = 1 << 22  # maximum size of a temporary block of columns, in numbers
_STALE = 1e-6  # recompute downdated numbers below this share of their last exact value
# Shares of the largest singular value that pseudo-inverses leave out, one after the other
_SHARES = 0.0, *10.0 ** -np.arange(14, 1, -1)
_NEAR = 1e-3  # relative excess of the error at which they end
_TIE = 1e-9  # relative difference up to which scores are ties, so that rounding does not decide


class _WithRatio:
    error: float
    optimum: float

    @property
    def ratio(self) -> float:
        """Error relative to the optimum, 1 or more; 1 if both are 0, inf if only the optimum is."""
        if self.optimum == 0:
            return 1.0 if self.error == 0 else math.inf
        return self.error / self.optimum


@dataclass(frozen=True, eq=False)
class ColumnSubset(_WithRatio):
    """Columns C of a matrix A, and the error of the projection of A on their span.

    Attributes
    ----------
    columns : ndarray of shape (k,), int64
        Indices of the columns, in the order of their choice.
    error : float
        ||A - C C^+ A||_F, the distance of A to its projection on the span of the columns.
    optimum : float
        The minimum error of all matrices of rank k (Eckart & Young 1936).
    matrix : LowRank
        The projection C C^+ A, in the dtype of A.
    """

    columns: Indices
    error: float
    optimum: float
    matrix: LowRank = field(repr=False)

    def toarray(self) -> FloatArray:
        """Return the projection of A on the span of the columns as a dense array."""
        return self.matrix.toarray()


@dataclass(
    frozen=True,
    eq=False,
    repr=False,
)
class CUR(_WithRatio):
    """The approximation C U R of a matrix A by k of its columns and k of its rows.

    Attributes
    ----------
    columns, rows : ndarrays of shape (k,), int64
        Indices of the columns and rows.
    C, R : ndarrays or scipy.sparse.csr_arrays of shape (n, k) and (k, m)
        The columns and the rows; sparse if A is sparse.
    U : ndarray of shape (k, k)
        C^+ A R^+, which minimises the error for these columns and rows. The pseudo-inverses leave
        out small singular values whose rounding errors would be larger than what they contribute.
    error, optimum : float
        ||A - C U R||_F of these arrays, and the minimum error of all matrices of rank k.
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
        errors = f"error={self.error:.6g}, ratio={self.ratio:.4g}"
        return f"CUR(k={len(self.U)}, shape={shape}, {errors})"

    @property
    def matrix(self) -> LowRank:
        """The product in factored form: ``C @ U`` and the rows, as dense factors."""
        R = self.R if isinstance(self.R, np.ndarray) else self.R.toarray()
        return LowRank(self.C @ self.U, R.T)

    def toarray(self) -> FloatArray:
        """Return the product as a dense array of shape (n, m)."""
        return self.matrix.toarray()


def leverage_scores(
    A: MatrixLike | LinearOperator,
    k: int,
    *,
    random_state: RandomStateLike = 0,
) -> FloatArray:
    """Compute the leverage score of each column in the best rank-k approximation, shape (m,).

    The score is the sum of the squared entries of a column in the k leading right singular vectors.
    Scores are between 0 and 1, and sum to k. Directions whose singular value is 0 up to rounding
    are left out, so that the sum is the rank of A if this is below k. For rows pass ``A.T``.

    Parameters
    ----------
    A : array-like, scipy.sparse matrix or array, or LinearOperator, of shape (n, m)
        Real, finite matrix.
    k : int
        From 0 to min(n, m).
    random_state : int, Generator, RandomState or None
        Seed of the solver's start vectors.

    References
    ----------
    Mahoney & Drineas (2009), "CUR matrix decompositions for improved data analysis".

    Examples
    --------
    >>> import numpy as np
    >>> leverage_scores(np.diag([3.0, 1.0, 2.0]), 2)
    array([1., 0., 1.])
    """
    # Scores do not depend on the scale, but squares of extreme entries overflow.
    matrix, _ = rescaled(as_operator(A))
    svd = truncated_svd(matrix, k, random_state=random_state)
    return _leverage(svd, matrix, matrix.dtype, svd.Vt.T)


def select_columns(
    A: MatrixLike,
    k: int,
    *,
    method: str = "qr",
    random_state: RandomStateLike = 0,
) -> ColumnSubset:
    """Select k columns whose span approximates a matrix well.

    Errors are accumulated in float64. They are 0 if they are below rounding error (for sparse A,
    3e-8 of ||A||_F).

    Parameters
    ----------
    A : array-like or scipy.sparse matrix or array, of shape (n, m)
        Real, finite matrix. Computations are in float64.
    k : int
        Number of columns, from 0 to m.
    method : {"qr", "leverage"}, default "qr"
        - "qr" adds the column furthest from the span of the selected ones, as QR with column
          pivoting does. It takes one product with A' per column.
        - "leverage" draws columns without replacement, with probabilities proportional to their
          leverage scores in the best rank-k approximation.

        "qr" breaks ties, to nine digits, by the first column.
    random_state : int, Generator, RandomState or None
        Seed of "leverage", and of the start vectors of the SVD that gives the optimum.

    Raises
    ------
    ArgumentTypeError
        If A is a LinearOperator, complex or not numeric, or k is not an integer.
    ArgumentError
        If A is not two-dimensional or not finite, or k or method is out of its range.

    References
    ----------
    Mahoney & Drineas (2009), "CUR matrix decompositions for improved data analysis".
    Golub (1965), "Numerical methods for solving linear least squares problems" ("qr").

    Examples
    --------
    >>> import numpy as np
    >>> A = np.array([[2.0, 2.0, 0.0, 2.0], [0.0, 0.0, 3.0, 0.0]])
    >>> select_columns(A, 1).columns
    array([2])
    >>> result = select_columns(A, 2)
    >>> result.error, result.ratio
    (0.0, 1.0)
    """
    selection = _Selection(A, k, method, random_state, only_columns=True)
    columns = selection.columns()
    basis = _basis(_dense(selection.matrix[:, columns]))
    coefficients = samples_of(selection.matrix).rmatmat(basis)
    return ColumnSubset(
        columns=columns,
        error=selection.distance(basis, coefficients),
        optimum=selection.optimum,
        matrix=LowRank(
            basis.astype(selection.dtype),
            np.ldexp(coefficients, selection.exponent).astype(selection.dtype),
        ),
    )


def cur(
    A: MatrixLike,
    k: int,
    *,
    method: str = "qr",
    random_state: RandomStateLike = 0,
) -> CUR:
    """Approximate a matrix by k of its columns and k of its rows.

    Parameters
    ----------
    A : array-like or scipy.sparse matrix or array, of shape (n, m)
        Real, finite matrix. Computations are in float64. A sparse matrix stays sparse; dense arrays
        have the shapes (n, k) and (m, k).
    k : int
        Number of columns and rows, from 0 to min(n, m).
    method : {"qr", "leverage"}, default "qr"
        Method that selects columns of A, and of A' for the rows; see `select_columns`.
    random_state
        As in `select_columns`.

    References
    ----------
    Mahoney & Drineas (2009), "CUR matrix decompositions for improved data analysis".
    Stewart (1999), "Four algorithms for the efficient computation of truncated pivoted QR
    approximations to a sparse matrix" (U).

    Examples
    --------
    >>> import numpy as np
    >>> A = np.outer([1.0, 2.0, 3.0], [1.0, 0.0, 2.0])
    >>> result = cur(A, 1)
    >>> result.C.ravel(), result.R.ravel()
    (array([2., 4., 6.]), array([3., 0., 6.]))
    >>> bool(np.allclose(result.toarray(), A))
    True
    """
    selection = _Selection(A, k, method, random_state)
    columns = selection.columns()
    rows = selection.rows()
    U, error = _best_middle(
        selection, selection.matrix[:, columns], _dense(selection.matrix[rows])
    )
    largest = float(np.abs(U).max(initial=0.0)) * 2.0**-selection.exponent
    check_range(largest, selection.dtype, "Entries of U")
    return CUR(
        columns=columns,
        rows=rows,
        C=selection.entries[:, columns],
        U=np.ldexp(U, -selection.exponent).astype(selection.dtype),
        R=selection.entries[rows],
        error=error,
        optimum=selection.optimum,
    )


class _Selection:
    """A matrix times 2**-exponent in float64, and the number of columns to choose."""

    def __init__(
        self,
        A: MatrixLike,
        k: int,
        method: str,
        random_state: RandomStateLike,
        *,
        only_columns: bool = False,
    ) -> None:
        check_choice(method, _METHODS)
        self._method = method
        self._rng = checked_generator(random_state)
        operator = as_operator(A)
        self.entries = entries_of(operator)
        self.dtype = operator.dtype
        smaller = min(operator.shape)
        if only_columns:
            self._k = checked_rank(k, operator.shape[1], "columns of A")
        else:
            self._k = checked_rank(k, smaller)
        # Squares must neither overflow nor vanish.
        self.exponent = safe_exponent(operator.peak, np.dtype(np.float64))
        self.matrix = self.entries.astype(np.float64, copy=False)
        if self.exponent:
            self.matrix = self.matrix * 2.0**-self.exponent
        self._svd = truncated_svd(
            self.matrix, min(self._k, smaller), random_state=self._rng
        )
        self._least_error = 0.0
        if self._k < smaller:
            U, s, Vt = self._svd
            self._least_error = LowRank(U * s, Vt.T).distance_to(self.matrix)
        precision = 3e-8 if operator.is_sparse else 1e-13
        self._rounding = precision * (self._svd.frobenius_norm or 0.0)
        self.optimum = self._unscaled(self._least_error)

    def columns(self) -> Indices:
        """Choose k columns."""
        return self._chosen(self.matrix, self._svd.Vt.T)

    def rows(self) -> Indices:
        """Choose k rows, as the columns of A'."""
        return self._chosen(self.matrix.T, self._svd.U)

    def _chosen(
        self,
        matrix: Any,
        vectors: FloatArray,
    ) -> Indices:
        samples = samples_of(matrix)
        if self._method == "qr":
            # Idle BLAS threads would spin during the compiled products between BLAS calls.
            with one_blas_thread() if samples.is_sparse else nullcontext():
                return _pivots(matrix, samples, self._k)
        scores = _leverage(self._svd, samples_of(self.matrix), self.dtype, vectors)
        waiting = np.full(scores.size, np.inf)
        draws = self._rng.exponential(size=scores.size)
        np.divide(draws, scores, out=waiting, where=scores > 0)
        # The k shortest exponential waiting times are draws without replacement.
        return np.argsort(waiting, kind="stable")[: self._k]

    def distance(
        self,
        left: FloatArray,
        right: FloatArray,
    ) -> float:
        """Return ||A - left right'||_F, in the units of the given matrix."""
        error = LowRank(left, right).distance_to(self.matrix)
        return self._unscaled(max(error, self._least_error))

    def _unscaled(self, error: float) -> float:
        """Return an error in the units of the given matrix, 0 if it may be rounding error."""
        return math.ldexp(error, self.exponent) if error > self._rounding else 0.0


def _leverage(
    svd: SVD,
    matrix: MatrixOperator,
    dtype: np.dtype[Any],
    vectors: FloatArray,
) -> FloatArray:
    """Return the leverage scores of the directions that are not rounding errors in `dtype`."""
    squares = matrix.column_squares(np.zeros(matrix.shape[1]))
    limits = rounding_limits(squares, matrix.shape, dtype, svd.s, svd.Vt)
    scores: FloatArray = (vectors[:, svd.s > limits] ** 2).sum(axis=1)
    return scores


def _pivots(
    matrix: Any,
    samples: Samples,
    k: int,
) -> Indices:
    """Return the first k pivots of QR with column pivoting, then columns in their span.

    LAPACK's routine takes dense matrices only, and computes all pivots.
    """
    n_rows, n_columns = samples.shape
    columns = matrix.tocsc() if samples.is_sparse else matrix
    basis = np.zeros((n_rows, min(n_rows, k)), order="F")
    squares = samples.column_squares(np.zeros(n_columns))
    # Numbers far below their last exact value have lost their digits by subtraction.
    exact = squares.copy()
    negligible = (10 * EPS) ** 2 * n_rows * squares
    step = max(1, _CHUNK // max(1, *samples.shape))
    chosen: list[int] = []
    while len(chosen) < basis.shape[1]:
        Q = basis[:, : len(chosen)]
        stale = np.flatnonzero(squares < _STALE * exact)
        for part in pieces(stale.size, step):
            at = stale[part]
            residual = _outside(Q, _dense(columns[:, at]))
            exact[at] = np.einsum("ij,ij->j", residual, residual)
        exact[exact <= negligible] = 0.0
        squares[stale] = exact[stale]
        largest = squares.max(initial=0.0)
        if largest == 0:
            break
        column = int(np.argmax(squares >= (1 - _TIE) * largest))
        residual = _outside(Q, _dense(columns[:, [column]]))
        direction = residual / np.linalg.norm(residual)
        basis[:, len(chosen)] = direction[:, 0]
        squares -= samples.rmatmat(direction)[:, 0] ** 2
        chosen.append(column)
        exact[column] = 0.0
        squares[exact == 0] = 0.0
    remaining = np.setdiff1d(np.arange(n_columns), chosen)
    pivots = np.array(chosen, np.int64)
    return np.append(pivots, remaining[: k - len(chosen)])


def _outside(Q: Float64Array, block: Float64Array) -> Float64Array:
    """Return each vector less its projection on orthonormal columns."""
    once = block - Q @ (Q.T @ block)
    # The second pass removes what rounding has left.
    twice: Float64Array = once - Q @ (Q.T @ once)
    return twice


def _dense(block: Any) -> Float64Array:
    if isinstance(block, np.ndarray):
        return block
    dense: Float64Array = block.toarray()
    return dense


def _best_middle(
    selection: _Selection,
    columns: Any,
    R: Float64Array,
) -> tuple[Float64Array, float]:
    """Return U, and the error ||A - C U R||_F of the product for the columns C.

    U = C^+ A R^+ has the smallest error in exact arithmetic. If C or R is nearly rank deficient, U
    has large entries, whose rounding spoils the product. The pseudo-inverses then leave out the
    smallest singular values, as many as make the error of the product smallest.
    """
    samples = samples_of(selection.matrix)
    C = _dense(columns)
    column_basis = _basis(C)
    row_basis = _basis(R.T)
    core = column_basis.T @ samples.matmat(row_basis)
    attainable = selection.distance(column_basis @ core, row_basis)
    best = np.zeros((C.shape[1], len(R)))
    least = math.inf
    for share in _SHARES:
        left = _inverse(C, share) @ column_basis
        right = _inverse(R.T, share) @ row_basis
        U = left @ core @ right.T
        rounded = U.astype(selection.dtype).astype(np.float64)
        # Multiplied as in the result: large entries of U have rounding errors of their own.
        error = selection.distance(columns @ rounded, R.T)
        if error < least:
            best = U
            least = error
        if error <= (1 + _NEAR) * attainable:
            break
    return best, least


def _basis(block: Float64Array) -> Float64Array:
    """Return an orthonormal basis of the span of columns, whatever their lengths."""
    basis: Float64Array = scipy.linalg.orth(block / _lengths(block))
    return basis


def _inverse(block: Float64Array, share: float) -> Float64Array:
    """Return the pseudo-inverse without singular values below a share of the largest."""
    lengths = _lengths(block)
    rounding = max(block.shape) * EPS
    inverse = np.linalg.pinv(block / lengths, rcond=max(share, rounding))
    return inverse / lengths[:, None]


def _lengths(block: Float64Array) -> Float64Array:
    """Return the lengths of columns, 1 for zeros."""
    lengths = np.linalg.norm(block, axis=0)
    return np.where(lengths > 0, lengths, 1.0)

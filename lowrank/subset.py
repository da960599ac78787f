"""Column selection and CUR decompositions."""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.sparse.linalg import LinearOperator

from lowrank.arguments import as_operator, checked_generator, checked_rank, entries_of
from lowrank.errors import check_choice
from lowrank.kernels import one_blas_thread, pieces
from lowrank.low_rank import LowRank
from lowrank.operators import safe_exponent
from lowrank.samples import rounding_limits, samples_of
from lowrank.svd import truncated_svd

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from lowrank.arguments import MatrixLike, RandomStateLike
    from lowrank.operators import Float64Array, FloatArray, MatrixOperator
    from lowrank.svd import SVD

    Indices = NDArray[np.int64]

_METHODS = ("qr", "leverage", "forward")
_CHUNK = 1 << 22  # maximum size of a temporary block of columns, in numbers
_EPS = float(np.finfo(np.float64).eps)
_STALE = 1e-6  # recompute downdated numbers below this share of their last exact value
# Shares of the largest singular value that pseudo-inverses leave out, until the product is accurate
# up to a small share of its error.
_SHARES, _NEAR = (0.0, *10.0 ** -np.arange(14, 1, -1)), 1e-3
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


@dataclass(frozen=True, eq=False, repr=False)
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
    A: MatrixLike | LinearOperator, k: int, *, random_state: RandomStateLike = 0
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
    matrix = as_operator(A)
    svd = truncated_svd(matrix, k, random_state=random_state)
    return _leverage(svd, matrix, matrix.dtype, rows=False)


def select_columns(
    A: MatrixLike, k: int, *, method: str = "qr", random_state: RandomStateLike = 0
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
    method : {"qr", "leverage", "forward"}, default "qr"
        - "qr" adds the column furthest from the span of the selected ones, as QR with column
          pivoting does. It takes one product with A' per column.
        - "forward" adds the column with the smallest remaining error. It takes two more products
          per column, and computes A' A once, in pieces.
        - "leverage" draws columns without replacement, with probabilities proportional to their
          leverage scores in the best rank-k approximation.

        "qr" and "forward" break ties, to nine digits, by the first column.
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
    Farahat, Ghodsi & Kamel (2013), "Efficient greedy feature selection for unsupervised learning"
    ("forward").

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
    target = _Target(A, k, method, random_state, only_columns=True)
    columns = _Columns(target.matrix)
    chosen = target.choose(columns, rows=False)
    basis = _Span(columns.block(chosen)).basis
    coefficients = columns.rmatmat(basis)
    return ColumnSubset(
        columns=chosen,
        error=target.distance(basis, coefficients),
        optimum=target.unscaled(target.best),
        matrix=LowRank(
            basis.astype(target.dtype),
            np.ldexp(coefficients, target.exponent).astype(target.dtype),
        ),
    )


def cur(
    A: MatrixLike, k: int, *, method: str = "qr", random_state: RandomStateLike = 0
) -> CUR:
    """Approximate a matrix by k of its columns and k of its rows.

    Parameters
    ----------
    A : array-like or scipy.sparse matrix or array, of shape (n, m)
        Real, finite matrix. Computations are in float64. A sparse matrix stays sparse; dense arrays
        have the shapes (n, k) and (m, k).
    k : int
        Number of columns and rows, from 0 to min(n, m).
    method : {"qr", "leverage", "forward"}, default "qr"
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
    >>> found = cur(A, 1)
    >>> found.C.ravel(), found.R.ravel()
    (array([2., 4., 6.]), array([3., 0., 6.]))
    >>> bool(np.allclose(found.toarray(), A))
    True
    """
    target = _Target(A, k, method, random_state)
    columns, rows = _Columns(target.matrix), _Columns(target.matrix.T)
    first = target.choose(columns, rows=False)
    second = target.choose(rows, rows=True)
    U, error = _best_middle(
        target, columns, _Span(columns.block(first)), _Span(rows.block(second))
    )
    return CUR(
        columns=first,
        rows=second,
        C=target.given[:, first],
        U=np.ldexp(U, -target.exponent).astype(target.dtype),
        R=target.given[second],
        error=error,
        optimum=target.unscaled(target.best),
    )


def _best_middle(
    target: _Target, columns: _Columns, left: _Span, right: _Span
) -> tuple[Float64Array, float]:
    """Return U, and the error ||A - C U R||_F of the product.

    U = C^+ A R^+ has the smallest error in exact arithmetic. If C or R is nearly rank deficient, U
    has large entries, whose rounding spoils the product. The pseudo-inverses then leave out the
    smallest singular values, as many as make the error of the product smallest.
    """
    core = left.basis.T @ columns.matmat(right.basis)
    attainable = target.distance(left.basis @ core, right.basis)
    best, least = np.zeros((len(left.norms), len(right.norms))), math.inf
    for share in _SHARES:
        first, second = left.rank_above(share), right.rank_above(share)
        U = left.inverse(first) @ core[:first, :second] @ right.inverse(second).T
        rounded = U.astype(target.dtype).astype(np.float64)
        error = target.distance(left.block @ rounded, right.block)
        if error < least:
            best, least = U, error
        if error <= (1 + _NEAR) * attainable:
            break
    return best, least


class _Target:
    """The given matrix times 2**-exponent in float64, and its best approximation."""

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
        self.method, self.rng = method, checked_generator(random_state)
        wrapped = as_operator(A)
        self.given = entries_of(wrapped)
        self.dtype, smaller = wrapped.dtype, min(wrapped.shape)
        largest = (wrapped.shape[1], "columns of A") if only_columns else (smaller,)
        self.k = checked_rank(k, *largest)
        self.exponent = safe_exponent(wrapped.peak, np.dtype(np.float64))
        self.matrix = self.given.astype(np.float64, copy=False)
        if self.exponent:
            self.matrix = self.matrix * 2.0**-self.exponent
        self.svd = truncated_svd(
            self.matrix, min(self.k, smaller), random_state=self.rng
        )
        self.best = 0.0  # Frobenius norm of the error of the best rank-k approximation
        if self.k < smaller:
            U, s, Vt = self.svd
            self.best = LowRank(U * s, Vt.T).distance_to(self.matrix)
        precision = 3e-8 if wrapped.is_sparse else 1e-13
        self.rounding = precision * (
            self.svd.frobenius_norm or 0.0
        )  # errors below it become 0

    def choose(self, columns: _Columns, *, rows: bool) -> Indices:
        """Choose k columns, or rows given as columns of A'."""
        k = self.k
        if self.method != "leverage":
            # Idle BLAS threads would spin during the compiled products between BLAS calls.
            with one_blas_thread() if columns.is_sparse else nullcontext():
                chosen = _PivotedQR(columns, k, self.method == "forward").chosen
            return _completed(chosen, k, columns.shape[1])
        # The k shortest exponential waiting times with these rates are draws without replacement.
        scores = _leverage(self.svd, samples_of(self.matrix), self.dtype, rows=rows)
        waiting = np.full(scores.size, np.inf)
        np.divide(
            self.rng.exponential(size=scores.size),
            scores,
            out=waiting,
            where=scores > 0,
        )
        return np.argsort(waiting, kind="stable")[:k]

    def distance(self, left: FloatArray, right: FloatArray) -> float:
        """Return ||A - left right'||_F, in the units of the given matrix."""
        error = LowRank(left, right).distance_to(self.matrix)
        return self.unscaled(max(error, self.best))

    def unscaled(self, error: float) -> float:
        """Return an error in the units of the given matrix, 0 if it may be rounding error."""
        return math.ldexp(error, self.exponent) if error > self.rounding else 0.0


def _leverage(
    svd: SVD, matrix: MatrixOperator, dtype: np.dtype[Any], *, rows: bool
) -> FloatArray:
    """Return the leverage scores of the directions that are not rounding errors in `dtype`."""
    squares = matrix.column_squares(np.zeros(matrix.shape[1]))
    limits = rounding_limits(squares, matrix.shape, dtype, svd.s, svd.Vt)
    vectors = svd.U if rows else svd.Vt.T
    scores: FloatArray = (vectors[:, svd.s > limits] ** 2).sum(axis=1)
    return scores


class _Span:
    """The span of the columns of a matrix C, and truncated pseudo-inverses of C.

    C divided by the lengths of its columns, `norms`, has the SVD ``basis diag(s) Vt``, of which
    values that are rounding errors are left out.
    """

    def __init__(self, block: Float64Array) -> None:
        self.block = block
        self.norms = np.linalg.norm(block, axis=0)
        self.norms[self.norms == 0] = 1.0
        if 0 in block.shape:
            self.basis, self._s = np.zeros((block.shape[0], 0)), np.zeros(0)
            self._Vt = np.zeros((0, block.shape[1]))
            return
        Q, s, Vt = np.linalg.svd(block / self.norms, full_matrices=False)
        rank = int(np.count_nonzero(s > max(block.shape) * _EPS * s[0]))
        self.basis = Q[:, :rank]
        self._s = s[:rank]
        self._Vt = Vt[:rank]

    def rank_above(self, share: float) -> int:
        """Return the number of singular values above a share of the largest."""
        return int(np.count_nonzero(self._s > share * self._s.max(initial=0.0)))

    def inverse(self, rank: int) -> Float64Array:
        """Return C^+ Q for the first `rank` singular values and columns Q of the basis."""
        scaled = self._Vt[:rank].T / self._s[:rank]
        inverse: Float64Array = scaled / self.norms[:, None]
        return inverse


class _Columns:
    """The columns of a dense array or a canonical CSR array of shape (n, m), in float64."""

    def __init__(self, matrix: Any) -> None:
        operator: Any = samples_of(matrix)
        self.shape, self.is_sparse = operator.shape, operator.is_sparse
        self._matrix = operator.csr if self.is_sparse else matrix
        self._csc = matrix.tocsc() if self.is_sparse else matrix
        self.matmat, self.rmatmat = operator.matmat, operator.rmatmat
        self.squares = operator.column_squares(np.zeros(self.shape[1]))

    def block(self, columns: Indices) -> Float64Array:
        """Return some columns as a dense array of shape (n, b)."""
        block = self._csc[:, columns]
        if self.is_sparse:
            block = block.toarray()
        return np.asarray(block)

    def gram_squares(self) -> Float64Array:
        """Return ||A' a_j||^2 for each column a_j."""
        if not self.is_sparse:
            return self.squares_of(np.arange(self.shape[1]), self.rmatmat)
        # An upper bound on the number of entries of A' A.
        work = self._csc.T.astype(bool) @ np.diff(self._matrix.indptr)
        chunks = np.cumsum(work) // _CHUNK
        _, starts = np.unique(chunks, return_index=True)
        bounds = np.append(starts, self.shape[1])
        squares = np.zeros(self.shape[1])
        for start, stop in pairwise(bounds):
            product = self._csc[:, start:stop].T @ self._matrix
            squares[start:stop] = product.power(2).sum(axis=1)
        return squares

    def squares_of(
        self, columns: Indices, image: Callable[[Float64Array], FloatArray]
    ) -> Float64Array:
        """Return the sum of squares of each column of the image of some columns."""
        squares = np.zeros(columns.size)
        step = max(1, _CHUNK // max(1, *self.shape))
        for part in pieces(columns.size, step):
            block = image(self.block(columns[part]))
            squares[part] = np.einsum("ij,ij->j", block, block)
        return squares


def _completed(chosen: list[int], k: int, count: int) -> Indices:
    """Fill up a choice with the first columns that are not yet in it."""
    rest = np.setdiff1d(np.arange(count), chosen)[: k - len(chosen)]
    return np.concatenate([np.array(chosen, np.int64), rest])


class _PivotedQR:
    """QR of up to k columns of a matrix A, chosen one by one until all others are in their span.

    For the residual E = A - Q R, ``squares`` are ||e_j||^2, and ``gains`` ||E' e_j||^2. Adding
    column j reduces the squared error by gains[j] / squares[j]. Both are downdated with each
    choice. Numbers that become small relative to their last exact value are computed again.
    """

    def __init__(self, columns: _Columns, k: int, by_error: bool) -> None:
        rows = columns.shape[0]
        self.chosen: list[int] = []
        self._k = min(rows, k)
        self._columns = columns
        self._Q = np.zeros((rows, self._k), order="F")
        self._squares = columns.squares
        self._fresh_squares = self._squares.copy()
        self._negligible = (10 * _EPS) ** 2 * max(1, rows) * self._squares
        self._alive = self._squares > 0
        self._gains = columns.gram_squares() if by_error else None
        self._fresh_gains = None if self._gains is None else self._gains.copy()
        while len(self.chosen) < self._k:
            column = self._best()
            if column is None:
                break
            self._add(column)

    def _best(self) -> int | None:
        """Return the column to choose next, None if all are in the span."""
        # Downdating has lost the precision of these.
        stale = self._squares < _STALE * self._fresh_squares
        if self._gains is not None and self._fresh_gains is not None:
            stale |= self._gains < _STALE * self._fresh_gains
        columns = np.flatnonzero(stale & self._alive)
        if columns.size:
            self._renew(columns)
        worth = self._squares
        if self._gains is not None:
            none = np.zeros_like(self._gains)
            worth = np.divide(self._gains, self._squares, out=none, where=self._alive)
        positive = np.maximum(worth, np.finfo(np.float64).tiny)
        scores = np.where(self._alive, positive, 0.0)  # 0 for columns in the span
        best = scores.max(initial=0.0)
        if best == 0:
            return None
        return int(np.argmax(scores >= (1 - _TIE) * best))

    def _renew(self, columns: Indices) -> None:
        """Compute the squares and gains of some columns again."""
        self._squares[columns] = self._columns.squares_of(columns, self._outside)
        self._fresh_squares[columns] = self._squares[columns]
        self._alive[columns] = self._squares[columns] > self._negligible[columns]
        if self._gains is None or self._fresh_gains is None:
            return
        columns = columns[self._alive[columns]]
        self._gains[columns] = self._columns.squares_of(
            columns, lambda block: self._columns.rmatmat(self._outside(block))
        )
        self._fresh_gains[columns] = self._gains[columns]

    def _add(self, column: int) -> None:
        """Choose a column."""
        self._alive[column] = False
        vector = self._outside(self._columns.block(np.array([column])))
        q = vector / np.linalg.norm(vector)
        r = self._columns.rmatmat(q)[:, 0]
        if self._gains is not None:
            projected = self._columns.matmat(r[:, None])
            image = self._columns.rmatmat(self._outside(projected))[:, 0]
            self._gains += r * (r * (r @ r) - 2 * image)
        self._squares -= r**2
        rank = len(self.chosen)
        self._Q[:, rank] = q[:, 0]
        self.chosen.append(column)

    def _outside(self, block: FloatArray) -> FloatArray:
        """Return each vector less its projection on the span, with relatively small errors."""
        Q = self._Q[:, : len(self.chosen)]
        once = block - Q @ (Q.T @ block)
        return once - Q @ (Q.T @ once)

"""Low-rank approximation by actual columns and rows: leverage scores, column subsets and CUR."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from lowrank.approximation import LowRank
from lowrank.arguments import as_operator, checked_generator, checked_rank
from lowrank.column_search import columns_of, eliminated, greedy
from lowrank.estimators import negligible_value
from lowrank.svd import truncated_svd

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lowrank.column_search import Columns
    from lowrank.estimators import Float64Array
    from lowrank.operators import FloatArray
    from lowrank.svd import SVD

    Indices = NDArray[np.int64]

__all__ = ["CUR", "ColumnSubset", "cur", "leverage_scores", "select_columns"]

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

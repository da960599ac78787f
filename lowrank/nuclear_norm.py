"""The solver of soft-impute: sweeps of alternating least squares between soft-thresholded SVDs.

Its door is `lowrank.soft_imputation`.
"""

from __future__ import annotations

import math
import operator
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from lowrank import kernels
from lowrank.approximation import LowRank
from lowrank.operators import SparseOperator
from lowrank.svd import ConvergenceWarning, truncated_svd

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from scipy.sparse import csr_array
    from scipy.sparse.linalg import LinearOperator

    from lowrank.operators import FloatArray

__all__ = [
    "MAX_ITER",
    "Problem",
    "SoftImputation",
    "check_positive",
    "root_mean_square",
    "solve",
    "spectral_norm",
]

MAX_ITER = 100

_MOST_COLUMNS = 100  # of the factors, unless the caller says otherwise
_ROUNDING = 8  # machine epsilons by which an objective may be off
_PATIENCE = 5  # iterations without a smaller gap, once the objective stands still
_NEW_COLUMNS = 20  # directions that an SVD looks for beyond the rank it starts from
_SWEEPS = 10  # of alternating least squares between two SVDs
_STEP_TOL = 1e-2  # of the SVDs: what they leave over is set right by the sweeps
_NORM_TOL = 1e-4  # of the spectral norm that a path starts from


@dataclass(frozen=True, eq=False, repr=False)
class SoftImputation:
    """The completed matrix ``U diag(s) Vt``, and how good a solution it is.

    Attributes
    ----------
    U, s, Vt : ndarrays of shape (n, r), (r,) and (r, m)
        Its singular value decomposition, values descending and positive.
    regularization : float
        The penalty lambda.
    objectives : ndarray of shape (iterations + 1,), float64
        The objective at the start and after each iteration; it never rises, but for rounding.
    rmse : float
        Root mean squared error over the known entries.
    gap : float
        Relative duality gap: the objective is above its minimum over all matrices by at most this
        share of itself. With a rank cap that binds it need not be small.
    """

    U: FloatArray
    s: FloatArray
    Vt: FloatArray
    regularization: float
    objectives: NDArray[np.float64]
    rmse: float
    gap: float

    def __repr__(self) -> str:
        return (
            f"SoftImputation(shape={self.shape}, rank={self.rank}, dtype={self.s.dtype}, "
            f"regularization={self.regularization:.6g}, gap={self.gap:.1e})"
        )

    @property
    def shape(self) -> tuple[int, int]:
        """Shape (n, m)."""
        return self.U.shape[0], self.Vt.shape[1]

    @property
    def rank(self) -> int:
        """Number of singular values."""
        return self.s.size

    @property
    def matrix(self) -> LowRank:
        """The completed matrix in factored form."""
        return LowRank(self.U * self.s, self.Vt.T)


@dataclass(frozen=True, eq=False)
class _Factors:
    """A matrix U diag(s) V' with orthonormal U and V."""

    U: FloatArray
    s: FloatArray
    V: FloatArray


@dataclass(frozen=True, eq=False)
class Problem:
    """Arguments of `soft_impute`, checked, and the entries sorted both ways."""

    X: csr_array
    rows: kernels.CsrArrays
    columns: kernels.CsrArrays
    row_of_entry: NDArray[np.intp]
    penalty: float
    max_rank: int
    random_state: Any

    @classmethod
    def of(
        cls, X: csr_array, regularization: float, max_rank: int | None, random_state: Any
    ) -> Problem:
        """Check the arguments, but for X, which comes from `observed_entries`."""
        check_positive(regularization, "regularization")
        return cls(
            X=X,
            rows=kernels.csr_arrays(X),
            columns=kernels.csr_arrays(X.T.tocsr()),
            row_of_entry=np.repeat(np.arange(X.shape[0]), np.diff(X.indptr)),
            penalty=float(regularization),
            max_rank=_checked_max_rank(max_rank, min(X.shape)),
            random_state=random_state,
        )

    def residual(self, Z: _Factors) -> csr_array:
        """Return X - Z at the known entries; it shares their positions."""
        from scipy import sparse

        fitted = LowRank(Z.U * Z.s, Z.V).entries(self.row_of_entry, self.X.indices)
        X = self.X
        return sparse.csr_array((X.data - fitted, X.indices, X.indptr), shape=X.shape)

    def objective(self, residual: csr_array, Z: _Factors) -> float:
        """Return half the squares of the residual plus the penalty on Z."""
        return _squares(residual.data) / 2 + self.penalty * float(Z.s.sum(dtype=np.float64))

    def is_capped(self, Z: _Factors) -> bool:
        """Say whether Z has all the columns it may have, and could have more otherwise."""
        return Z.s.size == self.max_rank < min(self.X.shape)


@dataclass(frozen=True, eq=False)
class _Point:
    """A matrix with its residual and the value of the objective."""

    Z: _Factors
    residual: csr_array
    objective: float

    @classmethod
    def of(cls, problem: Problem, Z: _Factors) -> _Point:
        residual = problem.residual(Z)
        return cls(Z, residual, problem.objective(residual, Z))


def solve(
    problem: Problem, start: SoftImputation | None, tol: float, max_iter: int
) -> SoftImputation:
    """Solve a problem, from zero or a start; `lowrank.soft_imputation` says what and how."""
    check_positive(tol, "tol")
    if max_iter < 1:
        raise ValueError(f"max_iter must be at least 1; got {max_iter}.")
    point = best = _Point.of(problem, _start(problem, start))
    objectives, gap, since = [point.objective], math.inf, 0
    for _ in range(max_iter):
        point = _iterated(problem, point)
        objectives.append(point.objective)
        since += 1
        if (found := _relative_gap(problem, point, tol)) < gap:
            best, gap, since = point, found, 0
        if gap <= tol or _is_stalled(problem, point, objectives, tol, since):
            break
    capped = problem.is_capped(point.Z)
    if capped:
        gap = found
    else:  # the last iterations may have been in vain
        point, objectives = best, objectives[: len(objectives) - since]
    if gap > tol and not (capped and len(objectives) <= max_iter):
        warnings.warn(
            f"The duality gap is {gap:.1e} of the objective, above tol={tol:.1e}, after "
            f"{len(objectives) - 1} iterations with regularization={problem.penalty:.6g}; ask for "
            "a larger tol or more iterations, or start from a larger regularization.",
            ConvergenceWarning,
            stacklevel=3,
        )
    return SoftImputation(
        U=point.Z.U,
        s=point.Z.s,
        Vt=point.Z.V.T,
        regularization=problem.penalty,
        objectives=np.array(objectives),
        rmse=root_mean_square(point.residual.data),
        gap=gap,
    )


def _start(problem: Problem, start: SoftImputation | None) -> _Factors:
    n, m = problem.X.shape
    dtype = problem.X.dtype
    if start is None:
        return _Factors(np.zeros((n, 0), dtype), np.zeros(0, dtype), np.zeros((m, 0), dtype))
    if start.shape != (n, m):
        raise ValueError(f"start must have shape {(n, m)}; got {start.shape}.")
    k = problem.max_rank
    arrays = (start.U[:, :k], start.s[:k], start.Vt[:k].T)
    return _Factors(*(array.astype(dtype, copy=False) for array in arrays))


def _iterated(problem: Problem, point: _Point) -> _Point:
    """Return a point that is no worse: sweeps, then the soft-impute step if that is no worse."""
    swept = point
    if point.Z.s.size:
        swept = _no_worse(_Point.of(problem, _swept(problem, point.Z)), point)
    return _no_worse(_Point.of(problem, _soft_step(problem, swept)), swept)


def _no_worse(found: _Point, before: _Point) -> _Point:
    """Return the point found, unless its objective is higher by more than rounding."""
    rounding = _ROUNDING * float(np.finfo(found.Z.s.dtype).eps)
    return found if found.objective <= (1 + rounding) * before.objective else before


def _swept(problem: Problem, Z: _Factors) -> _Factors:
    """Lower the squares at the known entries + lambda (||A||^2 + ||B||^2) over Z = A B'.

    Z itself where lambda is so small that the least squares are singular to rounding.
    """
    root = np.sqrt(Z.s)
    A = kernels.aligned_zeros(Z.U.shape, Z.U.dtype)
    B = kernels.aligned_zeros(Z.V.shape, Z.V.dtype)
    B[:] = Z.V * root
    row_penalty, column_penalty = (np.full(len(F), problem.penalty, F.dtype) for F in (A, B))
    for _ in range(_SWEEPS):
        kernels.als_half_sweep(*problem.rows, B, penalty=row_penalty, factors=A)
        kernels.als_half_sweep(*problem.columns, A, penalty=column_penalty, factors=B)
    return _balanced(A, B) if np.isfinite(A).all() and np.isfinite(B).all() else Z


def _balanced(A: FloatArray, B: FloatArray) -> _Factors:
    """Return the SVD of A B', for which (||A||^2 + ||B||^2) / 2 becomes the nuclear norm."""
    (Q, R), (P, S) = np.linalg.qr(A), np.linalg.qr(B)
    U, s, Vt = np.linalg.svd(R @ S.T)
    k = int(np.count_nonzero(s > s[0] * np.finfo(s.dtype).eps))
    return _Factors(Q @ U[:, :k], s[:k], P @ Vt[:k].T)


def _soft_step(problem: Problem, point: _Point) -> _Factors:
    """Return the SVD of Z with the known entries put in, its values lowered by lambda."""
    k = min(point.Z.s.size + _NEW_COLUMNS, problem.max_rank)
    filled = _sparse_plus_low_rank(point.residual, point.Z)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        svd = truncated_svd(filled, k, tol=_STEP_TOL, random_state=problem.random_state)
    penalty = svd.s.dtype.type(problem.penalty)
    kept = int(np.count_nonzero(svd.s > penalty))
    return _Factors(svd.U[:, :kept], svd.s[:kept] - penalty, svd.Vt[:kept].T)


def _sparse_plus_low_rank(residual: csr_array, Z: _Factors) -> LinearOperator:
    from scipy.sparse.linalg import LinearOperator

    sparse_part, low_rank = SparseOperator(residual), LowRank(Z.U * Z.s, Z.V)

    def matmat(Y: FloatArray) -> FloatArray:
        product: FloatArray = sparse_part.matmat(Y) + low_rank @ Y
        return product

    def rmatmat(Y: FloatArray) -> FloatArray:
        product: FloatArray = sparse_part.rmatmat(Y) + low_rank.T @ Y
        return product

    return LinearOperator(
        shape=residual.shape,
        dtype=residual.dtype,
        matvec=lambda y: matmat(y.reshape(-1, 1)),
        rmatvec=lambda y: rmatmat(y.reshape(-1, 1)),
        matmat=matmat,
        rmatmat=rmatmat,
    )


def _relative_gap(problem: Problem, point: _Point, tol: float) -> float:
    """Return how far the objective is above a lower bound, relative to itself.

    Any Y on the known entries of spectral norm at most lambda gives the bound
    <X, Y> - ||Y||_F^2 / 2; the best multiple of the residual is taken. An error of its norm moves
    the bound by no more, relatively; it is far below the tolerance of the SVD that computes it.
    """
    residual = point.residual.data.astype(np.float64)
    squares = _squares(residual)
    if point.objective == 0.0 or squares == 0.0:
        return float(point.objective > 0.0)
    product = float(problem.X.data.astype(np.float64) @ residual)
    accuracy = min(_STEP_TOL, max(math.sqrt(tol) / 10, 1e-6))
    norm = spectral_norm(point.residual, problem.random_state, accuracy)
    multiple = max(0.0, min(problem.penalty / norm, product / squares))
    bound = multiple * product - multiple**2 * squares / 2
    return max(0.0, 1.0 - bound / point.objective)


def _is_stalled(
    problem: Problem, point: _Point, objectives: Sequence[float], tol: float, since: int
) -> bool:
    """Say whether it is time to give up: `since` iterations ago the gap was last improved."""
    decrease = objectives[-2] - objectives[-1]
    if problem.is_capped(point.Z):
        return decrease <= max(0.01 * tol, float(np.finfo(problem.X.dtype).eps)) * objectives[-1]
    rounding = _ROUNDING * float(np.finfo(problem.X.dtype).eps)
    return since >= _PATIENCE and decrease <= rounding * objectives[-1]


def spectral_norm(X: csr_array, random_state: Any, tol: float = _NORM_TOL) -> float:
    """Return the largest singular value of a sparse matrix."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return float(truncated_svd(X, 1, tol=tol, random_state=random_state).s[0])


def _squares(values: FloatArray) -> float:
    wide = values.astype(np.float64, copy=False)
    return float(wide @ wide)


def root_mean_square(values: FloatArray) -> float:
    """Return the root of the mean of the squares, accumulated in float64."""
    return math.sqrt(_squares(values) / values.size)


def check_positive(value: float, name: str) -> None:
    """Raise ValueError, naming the argument, unless its value is positive and finite."""
    if not 0 < value < math.inf:
        raise ValueError(f"{name} must be positive and finite; got {value}.")


def _checked_max_rank(max_rank: Any, largest: int) -> int:
    if max_rank is None:
        return min(largest, _MOST_COLUMNS)
    try:
        rank = operator.index(max_rank)
    except TypeError:
        raise TypeError(f"max_rank must be an integer or None; got {max_rank!r}.") from None
    if not 1 <= rank <= largest:
        raise ValueError(f"max_rank must be between 1 and {largest} (min(X.shape)); got {rank}.")
    return rank

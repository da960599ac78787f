"""Soft-impute: matrix completion with a nuclear-norm penalty."""

from __future__ import annotations

import math
import operator
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from lowrank import kernels
from lowrank.approximation import LowRank
from lowrank.completion.observed import Entries, hold_out, observed_entries
from lowrank.operators import SparseOperator
from lowrank.svd import ConvergenceWarning, truncated_svd

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray
    from scipy.sparse import csr_array
    from scipy.sparse.linalg import LinearOperator

    from lowrank.operators import FloatArray

__all__ = [
    "MAX_ITER",
    "HeldOutPath",
    "Problem",
    "SoftImputation",
    "check_positive",
    "choose_regularization",
    "held_out_path",
    "largest_regularization",
    "penalties_to",
    "root_mean_square",
    "soft_impute",
    "soft_impute_path",
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
    """Solve a problem, from zero or a start; `lowrank.completion.nuclear_norm` says what and how."""
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


_GRID_SIZE = 20
_GRID_END = 0.01  # smallest regularization of a path, relative to the largest
_WARM_STEPS = 5  # penalties on the way to a single one
_PATH_PATIENCE = 2  # grid points without a lower held-out error that end a path
_CHOICE_TOL = 1e-2  # gap at which held-out errors are compared: it moves them by about 1e-4


@dataclass(frozen=True, eq=False)
class HeldOutPath:
    """A path of solutions and their errors on entries that none of them has seen.

    Attributes
    ----------
    regularizations : ndarray of shape (p,)
        Descending; where the errors rose for good the grid was not followed further.
    ranks : ndarray of shape (p,)
    rmses, held_out_rmses : ndarrays of shape (p,)
        Root mean squared errors over the entries fitted and the entries held out.
    """

    regularizations: NDArray[np.float64]
    ranks: NDArray[np.intp]
    rmses: NDArray[np.float64]
    held_out_rmses: NDArray[np.float64]

    @property
    def best(self) -> float:
        """The regularization with the lowest held-out error."""
        return float(self.regularizations[np.argmin(self.held_out_rmses)])


def soft_impute(
    X: Any,
    regularization: float,
    *,
    max_rank: int | None = None,
    start: SoftImputation | None = None,
    tol: float = 1e-3,
    max_iter: int = MAX_ITER,
    random_state: Any = 0,
) -> SoftImputation:
    r"""Complete a matrix under a nuclear-norm penalty.

    Minimises over Z of rank at most `max_rank`

    .. math:: \tfrac12 \sum_{(i,j) \text{ known}} (x_{ij} - z_{ij})^2 + \lambda \|Z\|_*

    Each iteration is some sweeps of alternating least squares on the factors of Z, and then the
    step of soft-impute: an SVD of Z with the known entries put in, whose values are lowered by
    lambda. For factors A, B of enough columns ``(||A||_F^2 + ||B||_F^2) / 2`` stands for the
    nuclear norm of ``A B'``, so that both lower the same objective; the sweeps converge faster, the
    SVD finds new directions and drops those that are not needed. What is decomposed is an operator:
    the residual at the known entries plus the factors of Z. `truncated_svd` makes it dense only
    where an iteration would take as much memory, that is, for small matrices.

    Parameters
    ----------
    X : scipy.sparse matrix or array, or array-like with NaN, of shape (n, m)
        Of a sparse matrix the stored entries are known, stored zeros too; of a dense one those that
        are not NaN. float32 is worked on in float32. Nothing is subtracted: centre X first where
        its mean is far from 0, or use `complete`.
    regularization : float
        Positive penalty lambda. From the largest singular value of X upwards Z is zero.
    max_rank : int, optional
        From 1 to min(n, m); by default no more than 100.
    start : SoftImputation, optional
        Where to begin, as a rule the solution for a larger lambda.
    tol : float
        Relative duality gap to reach; rounding allows about 1e-13 (1e-5 in float32). Where the rank
        cap binds there is no such bound, and the end is a decrease of less than a hundredth of
        `tol` in one iteration.
    max_iter : int
        Most iterations.
    random_state : int, Generator, RandomState or None
        Seed of the SVDs.

    Returns
    -------
    SoftImputation

    Raises
    ------
    TypeError
        If X is not real, or `max_rank` is not an integer.
    ValueError
        If X has no known entry, stores one twice, or has an infinity; if `regularization`,
        `max_rank`, `tol` or `max_iter` is out of its range; if `start` has another shape.

    Warns
    -----
    ConvergenceWarning
        If the gap is above `tol` and the rank cap does not explain it.

    References
    ----------
    Mazumder, Hastie & Tibshirani (2010), "Spectral regularization algorithms for learning large
    incomplete matrices", algorithm 1. Hastie, Mazumder, Lee & Zadeh (2015), "Matrix completion and
    low-rank SVD via fast alternating least squares", sections 2 to 4.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> Z = np.outer(rng.normal(size=30), rng.normal(size=20))
    >>> X = np.where(rng.random(Z.shape) < 0.7, Z, np.nan)
    >>> result = soft_impute(X, 0.01)
    >>> result.rank, bool(result.matrix.distance_to(Z) < 0.01 * np.linalg.norm(Z))
    (1, True)
    """
    problem = Problem.of(observed_entries(X), regularization, max_rank, random_state)
    return solve(problem, start, tol, max_iter)


def largest_regularization(X: Any, *, random_state: Any = 0) -> float:
    """Return the lambda from which on soft-impute gives zero: the spectral norm of X.

    Parameters
    ----------
    X, random_state
        As for `soft_impute`.

    Returns
    -------
    float
    """
    return spectral_norm(observed_entries(X), random_state)


def penalties_to(regularization: float, X: Any, *, random_state: Any = 0) -> NDArray[np.float64]:
    """Return a short grid that ends at one penalty: its path is faster than a cold start.

    Parameters
    ----------
    regularization : float
        Positive penalty lambda.
    X, random_state
        As for `soft_impute`.

    Returns
    -------
    ndarray of shape (p,)
        Descending from below `largest_regularization`; `regularization` alone if that is not less.
    """
    check_positive(regularization, "regularization")
    largest = largest_regularization(X, random_state=random_state)
    if regularization >= largest:
        return np.array([regularization])
    return np.geomspace(largest, regularization, _WARM_STEPS + 1)[1:]


def soft_impute_path(
    X: Any,
    regularizations: ArrayLike | None = None,
    *,
    max_rank: int | None = None,
    tol: float = 1e-3,
    random_state: Any = 0,
) -> Iterator[SoftImputation]:
    """Complete a matrix at each of several penalties, each solution the start of the next.

    Parameters
    ----------
    X, max_rank, tol, random_state
        As for `soft_impute`.
    regularizations : array-like of shape (p,), optional
        Positive; taken from the largest to the smallest. By default 20 in geometric progression
        from `largest_regularization` to a hundredth of it.

    Yields
    ------
    SoftImputation

    Raises
    ------
    TypeError, ValueError
        As `soft_impute`.

    Examples
    --------
    >>> X = [[3.0, float("nan")], [0.0, 1.0]]
    >>> [Z.rank for Z in soft_impute_path(X, [4.0, 2.0, 0.5])]
    [0, 1, 2]
    """
    known = observed_entries(X)
    return _path(known, _grid(known, regularizations, random_state), max_rank, tol, random_state)


def choose_regularization(
    X: Any,
    regularizations: ArrayLike | None = None,
    *,
    held_out: float = 0.1,
    max_rank: int | None = None,
    tol: float = _CHOICE_TOL,
    random_state: Any = 0,
) -> HeldOutPath:
    """Follow the path of solutions for a part of the entries, and predict the others.

    Parameters
    ----------
    X, max_rank
        As for `soft_impute`.
    regularizations : array-like of shape (p,), optional
        As for `soft_impute_path`. After two without a lower error the path ends.
    held_out : float
        Share of the known entries that is held out, between 0 and 1.
    tol : float
        Relative duality gap of each solution.
    random_state : int, Generator, RandomState or None
        Seed of their choice and of the SVDs.

    Returns
    -------
    HeldOutPath
        Its ``best`` is the regularization to use.

    Raises
    ------
    TypeError, ValueError
        As `soft_impute`; also if X has fewer than two known entries.
    """
    kept, others = hold_out(observed_entries(X), held_out, random_state)
    return held_out_path(
        kept, others, regularizations, max_rank=max_rank, tol=tol, random_state=random_state
    )


def held_out_path(
    X: Any,
    others: Entries,
    regularizations: ArrayLike | None = None,
    *,
    max_rank: int | None = None,
    tol: float = _CHOICE_TOL,
    random_state: Any = 0,
) -> HeldOutPath:
    """Follow the path of solutions for a matrix, and compare each with other known entries.

    Parameters
    ----------
    X, regularizations, max_rank, tol, random_state
        As for `choose_regularization`.
    others : Entries
        What the solutions are compared with.

    Returns
    -------
    HeldOutPath
    """
    points: list[tuple[float, int, float, float]] = []
    for solution in soft_impute_path(
        X, regularizations, max_rank=max_rank, tol=tol, random_state=random_state
    ):
        error = others.values - solution.matrix.entries(others.rows, others.columns)
        points.append(
            (solution.regularization, solution.rank, solution.rmse, root_mean_square(error))
        )
        errors = [point[3] for point in points]
        if len(errors) - 1 - int(np.argmin(errors)) >= _PATH_PATIENCE:
            break
    penalties, ranks, rmses, held_out_rmses = (np.array(x) for x in zip(*points, strict=True))
    return HeldOutPath(penalties, ranks, rmses, held_out_rmses)


def _path(
    X: csr_array, grid: NDArray[np.float64], max_rank: int | None, tol: float, random_state: Any
) -> Iterator[SoftImputation]:
    problem = Problem.of(X, grid[0], max_rank, random_state)
    solution = None
    for penalty in grid.tolist():
        solution = solve(replace(problem, penalty=penalty), solution, tol, MAX_ITER)
        yield solution


def _grid(
    X: csr_array, regularizations: ArrayLike | None, random_state: Any
) -> NDArray[np.float64]:
    """Return the penalties of a path, descending."""
    if regularizations is None:
        largest = spectral_norm(X, random_state) or 1.0  # zeros are fitted by zero at any penalty
        return np.geomspace(largest, largest * _GRID_END, _GRID_SIZE)
    grid = np.sort(np.asarray(regularizations, dtype=np.float64))[::-1]
    if grid.ndim != 1 or grid.size == 0:
        raise ValueError(f"regularizations must be a non-empty list; got shape {grid.shape}.")
    for penalty in grid:
        check_positive(penalty, "regularizations")
    return grid

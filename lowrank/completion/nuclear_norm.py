"""Soft-impute: matrix completion with a nuclear-norm penalty."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.sparse.linalg import LinearOperator

from lowrank import kernels
from lowrank.arguments import checked_rank
from lowrank.completion.observed import (
    Entries,
    hold_out,
    observed_entries,
)
from lowrank.errors import (
    ArgumentError,
    check_positive,
    check_range,
    checked_integer,
)
from lowrank.kernels.arrays import Float64s, epsilon
from lowrank.low_rank import LowRank
from lowrank.operators import SparseOperator, safe_exponent, with_data
from lowrank.sums import root_mean_square, sum_of_squares
from lowrank.svd import ConvergenceWarning, truncated_svd

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray
    from scipy.sparse import csr_array

    from lowrank.arguments import MatrixLike, RandomStateLike
    from lowrank.operators import FloatArray

_MAX_ITER = 100
# Exponent of the largest penalty, and minus the exponent of the smallest, in float32
_PENALTY_EXPONENT = 100
_MOST_COLUMNS = 100  # default maximum rank
_ROUNDING = 8  # rounding error of an objective, in machine epsilons
_PATIENCE = 5  # iterations without a smaller gap before the fit ends, if the objective is constant
_NEW_COLUMNS = 20  # additional directions that each SVD computes
_SWEEPS = 10  # sweeps of alternating least squares between two SVDs
_STEP_TOL = 1e-2  # tolerance of the SVDs; the sweeps correct the rest
_NORM_TOL = 1e-4  # tolerance of the spectral norm at which a path starts
_GRID_SIZE = 20
_GRID_END = 0.01  # smallest regularization of a path, relative to the largest
_WARM_STEPS = 5  # grid points of a path to a single penalty
# A path ends after this many grid points without a lower held-out error.
_PATH_PATIENCE = 2
# Gap at which held-out errors are compared; it changes them by about 1e-4.
_CHOICE_TOL = 1e-2


@dataclass(
    frozen=True,
    eq=False,
    repr=False,
)
class SoftImputation:
    """The completed matrix ``U diag(s) Vt`` and its distance from the optimum.

    Attributes
    ----------
    U, s, Vt : ndarrays of shape (n, r), (r,) and (r, m)
        Singular value decomposition, values positive and descending.
    regularization : float
        The penalty lambda.
    objectives : ndarray of shape (iterations + 1,), float64
        The objective at the start and after each iteration. It never rises.
    rmse : float
        Root mean squared error over the known entries.
    gap : float
        Relative duality gap: the objective exceeds its minimum over all matrices by at most this
        share of itself. The gap may stay large if `max_rank` is below the rank of the minimiser.
    """

    U: FloatArray
    s: FloatArray
    Vt: FloatArray
    regularization: float
    objectives: Float64s
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

    def toarray(self) -> FloatArray:
        """Return the completed matrix as a dense array of shape (n, m)."""
        return self.matrix.toarray()


@dataclass(frozen=True, eq=False)
class HeldOutPath:
    """A path of solutions and their errors on held-out entries.

    All arrays have shape (p,), in order of descending regularization. The path ends before the end
    of the grid if the held-out errors keep rising. ``rmses`` are errors over the fitted entries,
    ``held_out_rmses`` over the held-out entries.
    """

    regularizations: Float64s
    ranks: NDArray[np.intp]
    rmses: Float64s
    held_out_rmses: Float64s

    @property
    def best(self) -> float:
        """The regularization with the lowest held-out error."""
        return float(self.regularizations[np.argmin(self.held_out_rmses)])


def soft_impute(
    X: MatrixLike,
    regularization: float,
    *,
    max_rank: int | None = None,
    start: SoftImputation | None = None,
    tol: float = 1e-3,
    max_iter: int = _MAX_ITER,
    random_state: RandomStateLike = 0,
) -> SoftImputation:
    r"""Complete a matrix under a nuclear-norm penalty.

    Minimises over Z of rank at most `max_rank`

    .. math:: \tfrac12 \sum_{(i,j) \text{ known}} (x_{ij} - z_{ij})^2 + \lambda \|Z\|_*

    Each iteration makes some sweeps of alternating least squares on the factors of Z, then the step
    of soft-impute: replace the known entries of Z by X's, compute the SVD, and lower the
    singular values by lambda. Both lower the same objective, because the nuclear norm of ``A B'``
    is the minimum of ``(||A||_F^2 + ||B||_F^2) / 2`` over its factors. The sweeps converge faster;
    the SVD adds and removes directions. It works on a sparse residual plus the factors of Z.

    Parameters
    ----------
    X : scipy.sparse matrix or array, or array-like with NaN, of shape (n, m)
        As for `observed_entries`. The fit to float32 runs in float32. Nothing is subtracted: if the
        mean of X is far from 0, centre X first, or use `complete`.
    regularization : float
        Positive penalty lambda. If it is at least the largest singular value of X, Z is zero.
    max_rank : int, optional
        From 1 to min(n, m), by default at most 100.
    start : SoftImputation, optional
        Starting point, usually the solution for a larger lambda.
    tol : float
        Relative duality gap to reach; rounding limits it to about 1e-13 (1e-5 in float32). If Z
        reaches `max_rank`, iterations end when the relative decrease of the objective is below
        ``tol / 100``.
    max_iter : int
        Maximum number of iterations.
    random_state : int, Generator, RandomState or None
        Seed of the SVDs.

    Raises
    ------
    ArgumentTypeError
        If X is not real, or `max_rank` is not an integer.
    ArgumentError
        If X has no known entries, stores an entry twice, or has an infinity; or if another argument
        is out of its range or has the wrong shape.

    Warns
    -----
    ConvergenceWarning
        If the gap is above `tol` although the rank is below `max_rank`.

    References
    ----------
    Mazumder, Hastie & Tibshirani (2010), "Spectral regularization algorithms for learning large
    incomplete matrices", algorithm 1.
    Hastie, Mazumder, Lee & Zadeh (2015), "Matrix completion and low-rank SVD via fast alternating
    least squares", sections 2 to 4.

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
    problem = _Problem.of(observed_entries(X), regularization, max_rank, random_state)
    return _solve(problem, start, tol, max_iter)


def largest_regularization(X: MatrixLike) -> float:
    """Return the smallest lambda for which soft-impute gives zero: the spectral norm of X."""
    return _spectral_norm(observed_entries(X), 0)


def penalties_to(regularization: float, X: MatrixLike) -> Float64s:
    """Return a short grid that ends at `regularization`; its path is faster than a cold start."""
    check_positive(regularization, "regularization")
    largest = largest_regularization(X)
    if regularization >= largest:
        return np.array([regularization])
    return np.geomspace(largest, regularization, _WARM_STEPS + 1)[1:]


def soft_impute_path(
    X: MatrixLike,
    regularizations: ArrayLike | None = None,
    *,
    max_rank: int | None = None,
    tol: float = 1e-3,
    max_iter: int = _MAX_ITER,
    random_state: RandomStateLike = 0,
) -> Iterator[SoftImputation]:
    """Complete a matrix for several penalties, each fit starting from the previous solution.

    Parameters
    ----------
    X, max_rank, tol, max_iter, random_state
        As for `soft_impute`.
    regularizations : array-like of shape (p,), optional
        Positive penalties, used from the largest to the smallest. By default 20 in geometric
        progression from `largest_regularization` to a hundredth of it.

    Raises
    ------
    ArgumentTypeError, ArgumentError
        If `soft_impute` would raise it, or `regularizations` is empty.

    Examples
    --------
    >>> X = [[3.0, float("nan")], [0.0, 1.0]]
    >>> [Z.rank for Z in soft_impute_path(X, [4.0, 2.0, 0.5])]
    [0, 1, 2]
    """
    entries = observed_entries(X)
    if regularizations is None:
        # zeros are fitted by any penalty
        largest = _spectral_norm(entries, random_state) or 1.0
        grid = np.geomspace(largest, largest * _GRID_END, _GRID_SIZE)
    else:
        grid = np.sort(np.asarray(regularizations, dtype=np.float64))[::-1]
        if grid.ndim != 1 or grid.size == 0:
            raise ArgumentError(
                f"regularizations must be a non-empty list; got shape {grid.shape}."
            )
        for penalty in grid:
            check_positive(penalty, "regularizations")
    problem = _Problem.of(entries, grid[0], max_rank, random_state)

    def path() -> Iterator[SoftImputation]:
        solution = None
        for penalty in grid.tolist():
            solution = _solve(
                replace(problem, regularization=penalty), solution, tol, max_iter
            )
            yield solution

    return path()


def choose_regularization(
    X: MatrixLike,
    regularizations: ArrayLike | None = None,
    *,
    test_fraction: float = 0.1,
    held_out: Entries | None = None,
    max_rank: int | None = None,
    tol: float = _CHOICE_TOL,
    random_state: RandomStateLike = 0,
) -> HeldOutPath:
    """Compare penalties by their error on held-out entries.

    Fits a path of solutions to the other entries. The ``best`` of the result is the regularization
    with the lowest error.

    Parameters
    ----------
    X, max_rank
        As for `soft_impute`.
    regularizations : array-like of shape (p,), optional
        As for `soft_impute_path`. The path ends after two penalties without a lower error.
    test_fraction : float
        Share of the known entries to hold out, between 0 and 1.
    held_out : Entries, optional
        Held-out entries that are not in X. With them, no entries of X are held out.
    tol : float
        Relative duality gap of each solution.
    random_state : int, Generator, RandomState or None
        Seed of the held-out sample and of the SVDs.
    """
    if held_out is None:
        X, held_out = hold_out(observed_entries(X), test_fraction, random_state)
    rows, columns, values = held_out
    points: list[tuple[float, int, float, float]] = []
    for Z in soft_impute_path(
        X,
        regularizations,
        max_rank=max_rank,
        tol=tol,
        random_state=random_state,
    ):
        error = root_mean_square(values - Z.matrix.entries(rows, columns))
        points.append((Z.regularization, Z.rank, Z.rmse, error))
        errors = [point[3] for point in points]
        if len(errors) - 1 - int(np.argmin(errors)) >= _PATH_PATIENCE:
            break
    return HeldOutPath(*(np.array(x) for x in zip(*points, strict=True)))


@dataclass(frozen=True, eq=False)
class _Point:
    """A matrix Z = U diag(s) V' with orthonormal U and V, X - Z at the known entries, and f(Z)."""

    U: FloatArray
    s: FloatArray
    V: FloatArray
    residual: csr_array
    objective: float


@dataclass(frozen=True, eq=False)
class _Problem:
    """Checked arguments of `soft_impute`, and the entries by rows and by columns."""

    X: csr_array  # divided by 2**exponent, so that squares neither overflow nor vanish
    exponent: int
    rows: kernels.CsrArrays
    columns: kernels.CsrArrays
    row_of_entry: NDArray[np.intp]
    regularization: float
    max_rank: int
    random_state: RandomStateLike

    @classmethod
    def of(
        cls,
        X: csr_array,
        penalty: float,
        max_rank: int | None,
        random_state: RandomStateLike,
    ) -> _Problem:
        """Check the arguments except X, which comes from `observed_entries`."""
        check_positive(penalty, "regularization")
        largest = min(X.shape)
        cap = checked_rank(
            max_rank, largest, "min(X.shape)", name="max_rank", or_none=True
        )
        exponent = safe_exponent(float(np.abs(X.data).max()), X.dtype)
        if exponent:
            data = X.data.astype(np.float64) * 2.0**-exponent
            X = with_data(X, data.astype(X.dtype))
        return cls(
            X=X,
            exponent=exponent,
            rows=kernels.csr_arrays(X),
            columns=kernels.csr_arrays(X.T.tocsr()),
            row_of_entry=Entries.of(X).rows,
            regularization=float(penalty),
            max_rank=cap or min(largest, _MOST_COLUMNS),
            random_state=random_state,
        )

    @property
    def penalty(self) -> float:
        """The regularization in units of the divided entries, within the range of the type."""
        significand, exponent = math.frexp(self.regularization)
        exponent = min(exponent - self.exponent, _PENALTY_EXPONENT)
        return math.ldexp(significand, max(exponent, -_PENALTY_EXPONENT))

    def point(
        self,
        U: FloatArray,
        s: FloatArray,
        V: FloatArray,
    ) -> _Point:
        """Evaluate the objective: half the sum of squared residuals plus the penalty."""
        X = self.X
        error = X.data - LowRank(U * s, V).entries(self.row_of_entry, X.indices)
        objective = sum_of_squares(error) / 2
        objective += self.penalty * float(s.sum(dtype=np.float64))
        return _Point(U, s, V, with_data(X, error), objective)

    def start(self, solution: SoftImputation | None) -> _Point:
        """Return the starting point: an earlier solution, or zero."""
        n, m = self.X.shape
        k = self.max_rank
        dtype = self.X.dtype
        if solution is None:
            return self.point(
                np.zeros((n, 0), dtype), np.zeros(0, dtype), np.zeros((m, 0), dtype)
            )
        if solution.shape != (n, m):
            raise ArgumentError(
                f"start must have shape {(n, m)}; got {solution.shape}."
            )
        values = solution.s[:k].astype(np.float64) * 2.0**-self.exponent
        return self.point(
            solution.U[:, :k].astype(dtype, copy=False),
            values.astype(dtype),
            solution.Vt[:k].T.astype(dtype, copy=False),
        )

    def swept(self, Z: _Point) -> _Point:
        """Improve the factors of Z = A B' by sweeps of alternating least squares.

        They lower the sum of squares at the known entries + lambda (||A||^2 + ||B||^2). Returns Z
        itself if lambda is so small that a least squares problem is numerically singular.
        """
        A = kernels.aligned_zeros(Z.U.shape, Z.U.dtype)
        B = kernels.aligned_zeros(Z.V.shape, Z.V.dtype)
        B[:] = Z.V * np.sqrt(Z.s)
        row_penalty = np.full(len(A), self.penalty, A.dtype)
        column_penalty = np.full(len(B), self.penalty, B.dtype)
        for _ in range(_SWEEPS):
            kernels.als_half_sweep(self.rows, B, penalty=row_penalty, factors=A)
            kernels.als_half_sweep(self.columns, A, penalty=column_penalty, factors=B)
        if not (np.isfinite(A).all() and np.isfinite(B).all()):
            return Z
        Q, R = np.linalg.qr(A)
        P, S = np.linalg.qr(B)
        U, s, Vt = np.linalg.svd(R @ S.T)
        k = int(np.count_nonzero(s > s[0] * np.finfo(s.dtype).eps))
        return self.point(Q @ U[:, :k], s[:k], P @ Vt[:k].T)

    def soft_step(self, Z: _Point) -> _Point:
        """Return the SVD of Z with the known entries of X, its values lowered by lambda."""
        k = min(Z.s.size + _NEW_COLUMNS, self.max_rank)
        residual = SparseOperator(Z.residual)
        low_rank = LowRank(Z.U * Z.s, Z.V)

        def matmat(Y: FloatArray) -> Any:
            return residual.matmat(Y) + low_rank @ Y

        def rmatmat(Y: FloatArray) -> Any:
            return residual.rmatmat(Y) + low_rank.T @ Y

        filled = LinearOperator(
            self.X.shape,
            matmat,
            matmat=matmat,
            rmatmat=rmatmat,
            dtype=self.X.dtype,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            svd = truncated_svd(
                filled, k, tol=_STEP_TOL, random_state=self.random_state
            )
        penalty = svd.s.dtype.type(self.penalty)
        rank = int(np.count_nonzero(svd.s > penalty))
        return self.point(svd.U[:, :rank], svd.s[:rank] - penalty, svd.Vt[:rank].T)

    def relative_gap(
        self,
        Z: _Point,
        tol: float,
    ) -> float:
        """Return the difference of the objective and a lower bound, relative to the objective.

        Each Y that is zero off the known entries and has a spectral norm of at most lambda gives
        the bound <X, Y> - ||Y||_F^2 / 2. Y is the best multiple of the residual. An error in its
        computed norm changes the bound by at most as much.
        """
        residual = Z.residual.data.astype(np.float64)
        squares = sum_of_squares(residual)
        if Z.objective == 0.0 or squares == 0.0:
            return float(Z.objective > 0.0)
        product = float(self.X.data.astype(np.float64) @ residual)
        accuracy = min(_STEP_TOL, max(math.sqrt(tol) / 10, 1e-6))
        norm = _spectral_norm(Z.residual, self.random_state, accuracy)
        multiple = max(0.0, min(self.penalty / norm, product / squares))
        bound = multiple * product - multiple**2 * squares / 2
        return max(0.0, 1.0 - bound / Z.objective)


def _solve(
    problem: _Problem,
    start: SoftImputation | None,
    tol: float,
    max_iter: int,
) -> SoftImputation:
    """Iterate from zero or a start until the gap is at most `tol` or nothing improves."""
    check_positive(tol, "tol")
    checked_integer(max_iter, "max_iter", least=1)
    eps = epsilon(problem.X.dtype)
    point = best = problem.start(start)
    objectives = [point.objective]
    gap = math.inf
    since = 0  # iterations since the gap was last improved
    for _ in range(max_iter):
        steps = [problem.swept, problem.soft_step]
        if not point.s.size:  # there are no factors to sweep over
            steps = [problem.soft_step]
        for step in steps:
            candidate = step(point)
            if candidate.objective <= (1 + _ROUNDING * eps) * point.objective:
                point = candidate
        # What it rises is rounding.
        objectives.append(min(point.objective, objectives[-1]))
        decrease = objectives[-2] - objectives[-1]
        last_gap = problem.relative_gap(point, tol)
        since += 1
        if last_gap < gap:
            best = point
            gap = last_gap
            since = 0
        # With the rank limited by max_rank, the gap may never become small.
        is_capped = point.s.size == problem.max_rank < min(problem.X.shape)
        if is_capped:
            has_stalled = decrease <= max(0.01 * tol, eps) * objectives[-1]
        else:
            is_constant = decrease <= _ROUNDING * eps * objectives[-1]
            has_stalled = since >= _PATIENCE and is_constant
        if gap <= tol or has_stalled:
            break
    if is_capped:
        gap = last_gap
    else:  # drop the last iterations that did not lower the gap
        point = best
        objectives = objectives[: len(objectives) - since]
    if gap > tol and not (is_capped and len(objectives) <= max_iter):
        warnings.warn(
            f"The duality gap is {gap:.1e} of the objective, above tol={tol:.1e}, after "
            f"{len(objectives) - 1} iterations with regularization={problem.regularization:.6g}; "
            "choose a larger tol or more iterations, or start from a larger regularization.",
            ConvergenceWarning,
            stacklevel=3,
        )
    unit = 2.0**problem.exponent
    check_range(float(point.s.max(initial=0.0)) * unit, point.s.dtype)
    with np.errstate(over="ignore"):  # objectives are squares
        scaled = np.array(objectives) * unit * unit
    return SoftImputation(
        U=point.U,
        s=(point.s.astype(np.float64) * unit).astype(point.s.dtype),
        Vt=point.V.T,
        regularization=problem.regularization,
        objectives=scaled,
        rmse=root_mean_square(point.residual.data) * unit,
        gap=gap,
    )


def _spectral_norm(
    X: csr_array,
    random_state: RandomStateLike,
    tol: float = _NORM_TOL,
) -> float:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return float(truncated_svd(X, 1, tol=tol, random_state=random_state).s[0])

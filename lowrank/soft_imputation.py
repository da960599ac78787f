"""Soft-impute: completing a matrix under a nuclear-norm penalty, and its path of solutions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from lowrank.nuclear_norm import (
    MAX_ITER,
    Problem,
    SoftImputation,
    check_positive,
    root_mean_square,
    solve,
    spectral_norm,
)
from lowrank.observed import Entries, hold_out, observed_entries

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray
    from scipy.sparse import csr_array

__all__ = [
    "HeldOutPath",
    "SoftImputation",
    "choose_regularization",
    "held_out_path",
    "largest_regularization",
    "penalties_to",
    "soft_impute",
    "soft_impute_path",
]

_GRID_SIZE = 20
_GRID_END = 0.01  # smallest regularization of a path, relative to the largest
_WARM_STEPS = 5  # penalties on the way to a single one
_PATIENCE = 2  # grid points without a lower held-out error that end a path
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
        if len(errors) - 1 - int(np.argmin(errors)) >= _PATIENCE:
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

"""Matrix completion: one function for all methods."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy import sparse

from lowrank.acceleration import Acceleration
from lowrank.arguments import checked_rank
from lowrank.blocks import as_array
from lowrank.completion.als import BiasedFactors, Biases, als_sweeps, moments
from lowrank.completion.nuclear_norm import (
    choose_regularization,
    penalties_to,
    soft_impute,
)
from lowrank.completion.observed import (
    Entries,
    check_not_negative,
    entry_weights,
    hold_out,
    observed_entries,
    seed_of,
)
from lowrank.errors import (
    ArgumentError,
    ArgumentTypeError,
    check_choice,
    check_positive,
    checked_integer,
)
from lowrank.kernels.arrays import epsilon
from lowrank.low_rank import LowRank
from lowrank.operators import safe_exponent, with_data
from lowrank.sums import root_mean_square
from lowrank.svd import ConvergenceWarning

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import ArrayLike
    from scipy.sparse import csr_array

    from lowrank.arguments import MatrixLike, RandomStateLike
    from lowrank.operators import FloatArray

METHODS = ("als", "soft-impute")

_RANKS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
_PENALTIES = (10.0, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 0.001)
# A search ends after this many candidates with a clearly higher held-out error.
_PATIENCE = 2
_CLEARLY = 1.001  # ratio to the lowest error above which an error is clearly higher
_TEST_FRACTION = 0.1
_SETTLED_SWEEPS = 8  # the decrease of so many sweeps estimates what is left
_OBJECTIVE_ROUNDING = 8  # rounding error of an objective, in machine epsilons
# The error of a candidate that cannot be fitted
_HOPELESS = float(np.finfo(np.float64).max)


@dataclass(
    frozen=True,
    eq=False,
    repr=False,
)
class Completion:
    """A completed matrix ``mean + row_bias[:, None] + column_bias + factors``.

    Attributes
    ----------
    mean : float
    row_bias, column_bias : ndarrays of shape (n,) and (m,)
        Without biases, these and `mean` are zero.
    factors : LowRank
        With `nonnegative`, no number in them is negative.
    method : str
        "als" or "soft-impute".
    regularization : float
        The penalty lambda of the method.
    rmse : float
        Root mean squared error over the known entries, by their weights.
    held_out_rmse : float or None
        Root mean squared error over held-out entries, if the rank or the penalty was chosen by it.
        It is the minimum over all candidates, and therefore slightly optimistic.
    """

    mean: float
    row_bias: FloatArray
    column_bias: FloatArray
    factors: LowRank
    method: str
    regularization: float
    rmse: float
    held_out_rmse: float | None = None

    def __repr__(self) -> str:
        return (
            f"Completion(shape={self.shape}, method={self.method!r}, rank={self.rank}, "
            f"regularization={self.regularization:.6g}, rmse={self.rmse:.6g})"
        )

    @property
    def shape(self) -> tuple[int, int]:
        """Shape (n, m)."""
        return self.factors.shape

    @property
    def rank(self) -> int:
        """Number of columns of the factors, without biases."""
        return self.factors.rank

    @property
    def matrix(self) -> LowRank:
        """The completed matrix in factored form; two more columns hold the mean and the biases."""
        row_factors = self.factors.left
        column_factors = self.factors.right
        rows = (self.row_bias + row_factors.dtype.type(self.mean))[:, None]
        columns = self.column_bias[:, None]
        return LowRank(
            np.hstack([row_factors, rows, np.ones_like(rows)]),
            np.hstack([column_factors, np.ones_like(columns), columns]),
        )

    def predict(
        self,
        rows: ArrayLike,
        columns: ArrayLike,
    ) -> FloatArray:
        """Return the completed matrix at pairs of positions, shape (p,); see `LowRank.entries`."""
        return self.matrix.entries(rows, columns)

    def toarray(self) -> FloatArray:
        """Return the completed matrix as a dense array of shape (n, m)."""
        return self.matrix.toarray()

    def fill(self, X: ArrayLike) -> FloatArray:
        """Return a copy of a dense array of shape (n, m) with NaN and masked entries filled in.

        Raises
        ------
        ArgumentTypeError
            If X is sparse, because the result would be dense.
        ArgumentError
            If X has another shape.
        """
        if sparse.issparse(X):
            raise ArgumentTypeError(
                "X must be a dense array; a filled matrix is not sparse."
            )
        array, mask = as_array(X), np.ma.getmaskarray(np.ma.asarray(X))
        if array.shape != self.shape:
            raise ArgumentError(f"X must have shape {self.shape}; got {array.shape}.")
        filled: FloatArray = array.astype(np.result_type(array, self.factors.dtype))
        rows, columns = np.nonzero(np.isnan(filled) | mask)
        filled[rows, columns] = self.predict(rows, columns)
        return filled


def complete(
    X: MatrixLike,
    k: int | None = None,
    *,
    method: str = "als",
    weights: MatrixLike | None = None,
    nonnegative: bool = False,
    regularization: float | None = None,
    biases: bool | None = None,
    tol: float = 1e-4,
    max_iter: int = 500,
    random_state: RandomStateLike = 0,
) -> Completion:
    r"""Complete a matrix with missing entries.

    The completed matrix is a low-rank matrix plus, with `biases`, a mean, a bias for each row and a
    bias for each column.

    Parameters
    ----------
    X : scipy.sparse matrix or array, or array-like with NaN, of shape (n, m)
        The known entries of a sparse matrix are the stored ones, stored zeros included; in a dense
        array, NaN marks the unknown ones. The fit to float32 runs in float32. Sparse input never
        becomes dense.
    k : int, optional
        Rank for "als"; by default chosen from 1 to 32 by held-out error. The largest rank allowed
        for "soft-impute", by default 100.
    method : {"als", "soft-impute"}
        "als" fits factors with k columns and penalised squares by alternating least squares.
        "soft-impute" penalises the sum of the singular values, a convex problem whose solution
        determines the rank; the biases are fitted before and subtracted.
    weights : scipy.sparse matrix or array, or array-like, of shape (n, m), optional
        Weights of the known entries in the sum of squares, for "als": not negative, by default 1.
        A weight of 2 stands for an entry twice, a weight of 0 for an unknown entry.
    nonnegative : bool
        Whether the factors must not be negative, for "als". Without biases, no entry of X may then
        be negative either, and no entry of the completed matrix is.
    regularization : float, optional
        Positive penalty lambda in units of the standard deviation of the entries (without `biases`,
        of their root mean square), by default chosen by held-out error. "als" multiplies it by the
        square root of the number of entries (with weights, of their sum) of each row and column.
        "soft-impute" lowers the singular values by it. See `lowrank.completion.als.als_sweeps` and
        `lowrank.completion.nuclear_norm.soft_impute` for references.
    biases : bool, optional
        Whether to fit a mean and biases, by default unless `nonnegative`.
    tol : float, default 1e-4
        Largest accepted distance of the objective to its minimum, as a share of the objective.
        For "soft-impute" it is the duality gap. For "als" it is estimated by the decrease in the
        last eight accelerated sweeps, and the minimum is a local one, as the problem is not convex.
    max_iter : int, default 500
        Maximum number of sweeps, or of iterations of `soft_impute`.
    random_state : int, Generator, RandomState or None
        Seed of the held-out sample (a tenth of the known entries) and of the starting factors.

    Raises
    ------
    ArgumentTypeError
        If X is not real, or k is not an integer.
    ArgumentError
        If X has no known entries, stores an entry twice, or has an infinity; if `method` is
        unknown; if X or the weights are negative where they must not be, or `weights` have another
        shape; if `k` or `regularization` is out of its range, or cannot be chosen because X has
        only one entry; or if `tol` is not positive or `max_iter` is below 1.

    Warns
    -----
    ConvergenceWarning
        If `tol` is not reached in `max_iter` iterations.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> Z = 3 + np.outer(rng.normal(size=40), rng.normal(size=30))
    >>> X = np.where(rng.random(Z.shape) < 0.5, Z, np.nan)
    >>> result = complete(X, 1, regularization=0.001)
    >>> bool(np.abs(result.fill(X) - Z).max() < 0.05)
    True
    """
    check_choice(method, METHODS)
    if method != "als" and (weights is not None or nonnegative):
        name = "weights" if weights is not None else "nonnegative=True"
        raise ArgumentError(
            f"{name} must come with method='als'; got method={method!r}."
        )
    entries = observed_entries(X)
    nonnegative = bool(nonnegative)
    biases = not nonnegative if biases is None else bool(biases)
    if nonnegative and not biases:
        check_not_negative(entries, "X", " with nonnegative=True")
    of_entries = None
    if weights is not None:
        of_entries = entry_weights(weights, entries)
        entries, of_entries = _without_zero_weights(entries, of_entries)
    rank = checked_rank(k, min(entries.shape), "min(X.shape)", or_none=True) or None
    if regularization is not None:
        check_positive(regularization, "regularization")
    seed = seed_of(random_state)
    check_positive(tol, "tol")
    stop = _Stop(float(tol), checked_integer(max_iter, "max_iter", least=1))
    exponent = safe_exponent(float(np.abs(entries.data).max()), entries.dtype)
    unit = 2.0**exponent
    if exponent:
        entries = (entries.astype(np.float64) / unit).astype(entries.dtype)
    problem = _Problem(entries, of_entries, biases, nonnegative, seed)
    fit = _by_als if method == "als" else _by_soft_impute
    completion = fit(problem, rank, regularization, stop)
    scale = completion.factors.dtype.type(unit)
    half = exponent // 2  # split between the two factors: one alone might overflow
    row_factors = completion.factors.left
    column_factors = completion.factors.right
    return replace(
        completion,
        mean=completion.mean * unit,
        row_bias=completion.row_bias * scale,
        column_bias=completion.column_bias * scale,
        factors=LowRank(
            np.ldexp(row_factors, half), np.ldexp(column_factors, exponent - half)
        ),
        rmse=completion.rmse * unit,
        held_out_rmse=completion.held_out_rmse and completion.held_out_rmse * unit,
    )


class _Stop(NamedTuple):
    tol: float
    max_iter: int


_CANDIDATE = _Stop(tol=1e-3, max_iter=100)  # of the fits that are compared


class _Problem(NamedTuple):
    """The entries to fit with their weights, and the form of the model."""

    X: csr_array
    weights: FloatArray | None
    biases: bool
    nonnegative: bool
    seed: int

    def held_out(self) -> tuple[_Problem, Entries, FloatArray | None]:
        """Split into a problem of most entries, and the other entries with their weights."""
        X = self.X
        numbered = with_data(X, np.arange(X.nnz))
        training, test = hold_out(numbered, _TEST_FRACTION, self.seed)
        training_weights = test_weights = None
        if self.weights is not None:
            training_weights = self.weights[training.data]
            test_weights = self.weights[test.values]
        training.data = X.data[training.data]
        test = test._replace(values=X.data[test.values])
        problem = self._replace(X=training, weights=training_weights)
        return problem, test, test_weights


def _without_zero_weights(
    X: csr_array, weights: FloatArray
) -> tuple[csr_array, FloatArray]:
    """Return the entries of positive weight, and their weights in the type of X."""
    structure = X.indices.copy(), X.indptr.copy()
    positive = sparse.csr_array((weights.astype(X.dtype), *structure), shape=X.shape)
    positive.eliminate_zeros()
    values = X.data[weights > 0]
    X = sparse.csr_array((values, positive.indices, positive.indptr), shape=X.shape)
    return X, positive.data


def _by_als(
    problem: _Problem,
    k: int | None,
    regularization: float | None,
    stop: _Stop,
) -> Completion:
    X = problem.X
    error = None
    ranks = [rank for rank in _RANKS if rank <= min(X.shape)]
    if k is not None:
        ranks = [k]
    penalties = _PENALTIES if regularization is None else (regularization,)
    is_chosen = k is None or regularization is None
    fitted = None
    while fitted is None and ranks:
        best = _Candidate(0.0, ranks[0], penalties[0])
        if is_chosen:
            best = _lowest(_bests_of_ranks(problem, ranks, penalties))
            error = best.error
        fitted, decrease = _fitted_als(problem, best.k, best.regularization, stop)
        # The largest rank of a subset of the entries may be singular with all of them.
        ranks = [rank for rank in ranks if rank < best.k]
    if fitted is None:
        raise ArgumentError(
            f"regularization must be larger than {best.regularization:g} for k={best.k} columns: "
            f"with it the least squares problem is singular in {X.dtype}."
        )
    if decrease > stop.tol:
        shortfall = (
            f"The last sweeps lowered the objective by {decrease:.1e} of it, more than"
        )
        if math.isinf(decrease):  # too few accelerated sweeps to compare
            shortfall = "The decrease of the objective is not known to be below"
        warnings.warn(
            f"{shortfall} tol={stop.tol:.1e}, after max_iter={stop.max_iter} sweeps; "
            "increase max_iter or tol.",
            ConvergenceWarning,
            stacklevel=3,
        )
    return Completion(
        mean=fitted.mean,
        row_bias=fitted.row_bias,
        column_bias=fitted.column_bias,
        factors=LowRank(fitted.row_factors, fitted.column_factors),
        method="als",
        regularization=best.regularization,
        rmse=_error_at(fitted, Entries.of(X), problem.weights),
        held_out_rmse=error,
    )


def _fitted_als(
    problem: _Problem,
    k: int,
    regularization: float,
    stop: _Stop,
) -> tuple[BiasedFactors | None, float]:
    """Return the factors and the last decrease; None if the penalty is lost in rounding."""
    rounding = _OBJECTIVE_ROUNDING * epsilon(problem.X.dtype)
    size = problem.X.shape[1] * (k + 1) + 1
    acceleration = Acceleration(size, growth=1 + rounding)
    mean, deviation = moments(problem.X, problem.weights)
    unit = math.hypot(mean, deviation) or 1.0
    objectives: list[float] = []
    sweeps = als_sweeps(
        problem.X,
        k,
        regularization=regularization,
        biases=problem.biases,
        weights=problem.weights,
        nonnegative=problem.nonnegative,
        random_state=problem.seed,
    )
    sweep = next(sweeps)
    point: FloatArray | None = None  # where the last sweep started
    is_plain = True
    for iteration in count(1):
        if is_plain and not math.isfinite(sweep.objective):
            return None, math.inf
        image = _as_vector(sweep.factors, unit)
        is_plain = False
        if point is not None:
            is_plain = not acceleration.accepts(point, image, sweep.objective)
        if is_plain:  # the combined point failed: go on from the best one
            point = acceleration.best_image
        else:
            objectives.append(sweep.objective)
            decrease = _recent_decrease(objectives, rounding)
            if decrease <= stop.tol or iteration >= stop.max_iter:
                return sweep.factors, decrease
            point = image if point is None else acceleration.next_point()
        if regularization == 0:  # combined points would overfit
            sweep = next(sweeps)
        else:
            start = _as_factors(point, sweep.factors, unit)
            if problem.nonnegative:
                start.column_factors.clip(min=0, out=start.column_factors)
            sweep = sweeps.send(start)
    raise AssertionError("the loop above has no end")


def _recent_decrease(objectives: Sequence[float], rounding: float) -> float:
    """Return the decrease of the last accelerated sweeps, as a share of the objective.

    The decrease of a single sweep says little: plain sweeps may take thousands of small steps.
    """
    last = objectives[-1]
    if last <= 0:
        return 0.0
    if len(objectives) <= _SETTLED_SWEEPS:
        return math.inf
    decrease = objectives[-1 - _SETTLED_SWEEPS] / last - 1
    return decrease if decrease > rounding else 0.0


def _as_vector(factors: BiasedFactors, unit: float) -> FloatArray:
    """Return the factors and biases of the columns, and the mean, in units of the entries."""
    dtype = factors.column_factors.dtype
    biases = np.append(factors.column_bias, dtype.type(factors.mean)) / dtype.type(unit)
    scaled = factors.column_factors.ravel() / dtype.type(math.sqrt(unit))
    return np.concatenate([scaled, biases])


def _as_factors(
    vector: FloatArray,
    factors: BiasedFactors,
    unit: float,
) -> BiasedFactors:
    """Return factors with the columns and the mean of `_as_vector`."""
    size = factors.column_factors.size
    scaled = vector[:size] * vector.dtype.type(math.sqrt(unit))
    biases = vector[size:] * vector.dtype.type(unit)
    return replace(
        factors,
        mean=float(biases[-1]),
        column_bias=biases[:-1],
        column_factors=scaled.reshape(factors.column_factors.shape),
    )


def chosen_rank(
    X: csr_array,
    weights: FloatArray | None,
    regularization: float,
    seed: int,
) -> tuple[int, float]:
    """Choose the number of non-negative factors by held-out error; return it with the error."""
    problem = _Problem(
        X,
        weights,
        biases=False,
        nonnegative=True,
        seed=seed,
    )
    ranks = [rank for rank in _RANKS if rank <= min(X.shape)]
    chosen = _lowest(_bests_of_ranks(problem, ranks, (regularization,)))
    return chosen.k, chosen.error


class _Candidate(NamedTuple):
    error: float
    k: int
    regularization: float


def _bests_of_ranks(
    problem: _Problem,
    ranks: Sequence[int],
    penalties: Sequence[float],
) -> Iterator[_Candidate]:
    """Yield the best penalty of each rank.

    The first rank tries all penalties, each later rank those from the neighbour of the previous
    best downwards: the rank that fits without noise needs a much smaller penalty.
    """
    training, test, weights = problem.held_out()

    def candidate(k: int, penalty: float) -> _Candidate:
        fitted, _ = _fitted_als(training, k, penalty, _CANDIDATE)
        error = _HOPELESS if fitted is None else _error_at(fitted, test, weights)
        return _Candidate(error, k, penalty)

    tried, patience = penalties, _PATIENCE
    for k in ranks:
        best = _lowest((candidate(k, penalty) for penalty in tried), patience)
        yield best
        index = penalties.index(best.regularization)
        tried, patience = penalties[max(0, index - 1) :], 1


def _lowest(candidates: Iterable[_Candidate], patience: int = _PATIENCE) -> _Candidate:
    """Return the candidate with the lowest error; stop after `patience` clearly worse ones."""
    best, worse = _Candidate(math.inf, 0, math.inf), 0
    for candidate in candidates:
        worse += candidate.error > _CLEARLY * best.error
        if candidate.error < best.error:
            best, worse = candidate, 0
        if worse == patience:
            break
    return best


def _error_at(
    fitted: BiasedFactors,
    entries: Entries,
    weights: FloatArray | None,
) -> float:
    """Return the root mean squared error over the given entries, by their weights."""
    rows, columns, values = entries
    predicted = LowRank(fitted.row_factors, fitted.column_factors).entries(
        rows, columns
    )
    predicted += fitted.row_bias[rows] + fitted.column_bias[columns]
    return root_mean_square(values - predicted - fitted.mean, weights)


def _by_soft_impute(
    problem: _Problem,
    k: int | None,
    regularization: float | None,
    stop: _Stop,
) -> Completion:
    X = problem.X
    biases = problem.biases
    seed = problem.seed
    error = None
    mean, deviation = moments(X)
    unit = (deviation if biases else math.hypot(mean, deviation)) or 1.0
    if regularization is None:
        training, test = hold_out(X, _TEST_FRACTION, seed)
        fitted = Biases.of(training, biases)
        errors = test.values - fitted.at(test.rows, test.columns)
        path = choose_regularization(
            fitted.subtracted(training),
            held_out=test._replace(values=errors),
            max_rank=k,
            random_state=seed,
        )
        regularization = path.best / unit
        error = float(path.held_out_rmses.min())
    fitted = Biases.of(X, biases)
    residual = fitted.subtracted(X)
    *larger, last = penalties_to(regularization * unit, residual).tolist()
    solution = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        for penalty in larger:
            solution = soft_impute(
                residual,
                penalty,
                max_rank=k,
                start=solution,
                random_state=seed,
            )
    solution = soft_impute(
        residual,
        last,
        max_rank=k,
        start=solution,
        tol=stop.tol,
        max_iter=stop.max_iter,
        random_state=seed,
    )
    return Completion(
        *fitted,
        factors=solution.matrix,
        method="soft-impute",
        regularization=regularization,
        rmse=solution.rmse,
        held_out_rmse=error,
    )

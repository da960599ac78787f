"""Non-negative matrix factorisation with or without missing entries, as an estimator."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
from scipy import sparse
from sklearn.utils.validation import check_is_fitted

from lowrank import kernels
from lowrank.arguments import checked_rank
from lowrank.completion.als import als_sweeps, solve_rows
from lowrank.completion.completion import chosen_rank
from lowrank.completion.observed import (
    Entries,
    check_not_negative,
    observed_entries,
    seed_of,
)
from lowrank.errors import check_choice, check_positive, checked_integer
from lowrank.estimator import Estimator
from lowrank.kernels.arrays import epsilon
from lowrank.low_rank import LowRank
from lowrank.nonnegative import (
    FIRST_STEP,
    LONGER,
    SHORTER,
    best_fit,
    is_sparse,
    solve_nonnegative_rows,
)
from lowrank.operators import safe_exponent, with_data
from lowrank.samples import checked_scores, validated_array
from lowrank.sums import sum_of_squares
from lowrank.svd import ConvergenceWarning

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from scipy.sparse import csr_array

    from lowrank.arguments import MatrixLike, RandomStateLike
    from lowrank.operators import FloatArray

# Rounding error of an objective, in machine epsilons of the sum of squares
_ROUNDING = 8


class _State(NamedTuple):
    """The column factors after a sweep, shape (m, k), and the objectives of all sweeps."""

    column_factors: FloatArray
    objectives: list[float]


@dataclass(eq=False, repr=False)
class NMF(Estimator):
    r"""Non-negative matrix factorisation (NMF) of dense and sparse data.

    The data are approximated by a product :math:`W H` of matrices without negative numbers, such as
    topics H and their shares W. The factors minimise

    .. math:: \tfrac12 \sum_{(i,j)} (x_{ij} - w_i \cdot h_j)^2

    over the known entries. Without missing entries, this is the objective of
    `sklearn.decomposition.NMF` by default. No sweep of the fit raises it.

    Parameters
    ----------
    n_components : int, optional
        Number of components k, from 1 to min(n_samples, n_features); by default chosen from 1 to 32
        by the error on held-out entries, as in `lowrank.complete`. For sparse data whose zeros
        count, these entries are the stored ones and a sample of the others.
    unstored : {"zero", "missing"}, default "zero"
        Whether the entries that sparse data do not store are zero, or missing as in
        `lowrank.complete`. In dense data, NaN and masked entries are missing.
    regularization : float, default 0
        Penalty lambda of the squares of both factors, in the units of `lowrank.complete`: half of
        it times the root mean square of the known entries, and for each row and column times the
        square root of its number of known entries. With many missing entries, it keeps rows with
        few known ones from following their noise.
    tol : float, default 1e-7
        The fit ends after a sweep that lowers the objective by at most this share of it.
    max_iter : int, default 1000
        Maximum number of sweeps.
    random_state : int, Generator, RandomState or None
        Seed of the starting factors and of the held-out sample.

    Attributes
    ----------
    components_ : ndarray of shape (n_components_, n_features)
        The matrix H.
    n_components_ : int
        Number of components.
    objectives_ : ndarray of shape (n_iter_,)
        The objective after each sweep, penalties included.
    reconstruction_err_ : float
        Square root of the sum of squared errors over the known entries of the training data.
    held_out_rmse_ : float or None
        Root mean squared error over held-out entries, if the number of components was chosen by it.
    n_iter_, n_features_in_ : int
        Numbers of sweeps and of features.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Names of the features. Defined only if X has string column names.

    See Also
    --------
    lowrank.complete : Completion of a matrix, also with biases and weights.

    References
    ----------
    Cichocki and Phan (2009), "Fast local algorithms for large scale nonnegative matrix and tensor
    factorizations"; Kim and Park (2011), "Fast nonnegative matrix factorization: an active-set-like
    method and comparisons", for missing entries and for `transform`.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.array([[2.0, 4.0, 0.0], [1.0, 2.0, 0.0], [0.0, 0.0, 3.0], [1.0, np.nan, 3.0]])
    >>> nmf = NMF(2).fit(X)
    >>> filled = nmf.inverse_transform(nmf.transform(X))
    >>> filled.round(1)[3]
    array([1., 2., 3.])
    """

    n_components: int | None = None
    _: KW_ONLY
    unstored: str = "zero"
    regularization: float = 0.0
    tol: float = 1e-7
    max_iter: int = 1000
    random_state: RandomStateLike = 0

    def fit(
        self,
        X: MatrixLike,
        y: object = None,
    ) -> Self:
        """Find the components.

        Parameters
        ----------
        X : array-like or scipy.sparse matrix or array of shape (n_samples, n_features)
            Training data, without negative entries. Computations are float32 for float32 data, and
            float64 otherwise. Sparse data never become dense.
        y : ignored

        Raises
        ------
        ArgumentTypeError, ArgumentError, ValueError
            If X has a negative or infinite entry or no known ones, or a parameter is out of range.

        Warns
        -----
        ConvergenceWarning
            If `tol` is not reached in `max_iter` sweeps.
        """
        self.fit_transform(X)
        return self

    def fit_transform(
        self,
        X: MatrixLike,
        y: object = None,
    ) -> FloatArray:
        """Find the components and return the factors of X, as `transform` does."""
        check_choice(self.unstored, ("zero", "missing"), "unstored")
        check_positive(self.regularization, "regularization", or_zero=True)
        check_positive(self.tol, "tol")
        limit = checked_integer(self.max_iter, "max_iter", least=1)
        data = self._checked(X, reset=True)
        exponent = safe_exponent(_peak(data), data.dtype)
        self._exponents = exponent // 2, exponent - exponent // 2
        # Squares must neither overflow nor vanish; the two factors share the power of two.
        data = _times(data, -exponent)
        seed = seed_of(self.random_state)
        k = checked_rank(
            self.n_components,
            min(data.shape),
            "min(X.shape)",
            name="n_components",
            or_none=True,
        )
        self.held_out_rmse_ = None
        known_entries = self._known(data)
        if known_entries is not None:
            known_entries = observed_entries(known_entries)
        if k == 0:
            k, error = chosen_rank(
                *_entries_to_fit(data, known_entries, seed), self.regularization, seed
            )
            self.held_out_rmse_ = error * 2.0**exponent
        count = math.prod(data.shape)
        values = data.data if is_sparse(data) else data
        if known_entries is not None:
            count = known_entries.nnz
            values = known_entries.data
        squares = sum_of_squares(values)
        self._size = math.sqrt(squares / count) or 1.0
        rounding = _ROUNDING * epsilon(data.dtype) * squares
        if known_entries is None:
            states = self._sweeps_of_all(data, k, seed)
        else:
            states = self._sweeps_of_known(known_entries, k, seed)
        state = self._last_state(states, rounding, limit)
        objectives = state.objectives
        # The rows are solved exactly at the end, as `transform` does: the results are equal.
        self._columns = state.column_factors.copy()
        factors = self._solved(data)
        self.components_ = np.ldexp(self._columns.T, self._exponents[1])
        self.n_components_, self.n_iter_ = k, len(objectives)
        with np.errstate(over="ignore", under="ignore"):
            self.objectives_ = np.ldexp(objectives, 2 * exponent)
        fitted = LowRank(factors, self._columns)
        if known_entries is None:
            error = fitted.distance_to(data)
        else:
            rows, columns, values = Entries.of(known_entries)
            errors = values - fitted.entries(rows, columns)
            error = math.sqrt(sum_of_squares(errors))
        self.reconstruction_err_ = error * 2.0**exponent
        return np.ldexp(factors, self._exponents[0])

    def _last_state(
        self, states: Iterator[_State], rounding: float, limit: int
    ) -> _State:
        """Return the state after the last sweep, of `limit` at most."""
        for state in states:
            objectives = state.objectives
            if len(objectives) > 1:
                decrease = objectives[-2] - objectives[-1]
                if decrease <= max(self.tol * objectives[-1], rounding):
                    break
            if len(objectives) >= limit:
                warnings.warn(
                    f"The objective has not converged to tol={self.tol:.1e} after "
                    f"max_iter={limit} sweeps; increase max_iter or tol.",
                    ConvergenceWarning,
                    stacklevel=3,
                )
                break
        return state

    def transform(self, X: MatrixLike) -> FloatArray:
        """Return the best factors of samples for the components, shape (n_samples, n_components_).

        Each row is an exact non-negative least squares problem over its known entries; rows without
        one become zero.
        """
        check_is_fitted(self)
        data = _times(self._checked(X, reset=False), -sum(self._exponents))
        return np.ldexp(self._solved(data), self._exponents[0])

    def inverse_transform(self, X: ArrayLike) -> FloatArray:
        """Return the product of factors, shape (n_samples, n_components_), and the components."""
        check_is_fitted(self)
        samples: FloatArray = checked_scores(X, self.n_components_) @ self.components_
        return samples

    def _checked(
        self,
        X: Any,
        *,
        reset: bool,
    ) -> Any:
        """Check samples as scikit-learn does; return an array with NaN, or a CSR array."""
        data = validated_array(
            self,
            X,
            reset=reset,
            allow_nan=True,
            accept_sparse="csr",
        )
        check_not_negative(data, "Negative values in data: X")
        if not is_sparse(data):
            return np.ascontiguousarray(data)
        csr = sparse.csr_array(data)
        if not csr.has_canonical_format:  # entries that are stored twice add up
            csr = csr.copy()
            csr.sum_duplicates()
        return csr

    def _known(self, data: Any) -> csr_array | None:
        """Return the known entries; None if all are known."""
        if is_sparse(data):
            return data if self.unstored == "missing" else None
        is_known = ~np.isnan(data)
        if is_known.all():
            return None
        rows, columns = np.nonzero(is_known)
        values = data[rows, columns]
        return sparse.csr_array((values, (rows, columns)), shape=data.shape)

    def _sweeps_of_all(
        self,
        data: Any,
        k: int,
        seed: int,
    ) -> Iterator[_State]:
        fit = best_fit(
            data,
            k,
            regularization=self.regularization,
            max_iter=int(self.max_iter),
            random_state=seed,
        )
        while True:
            yield _State(fit.column_factors, fit.objectives)
            fit.sweep()

    def _sweeps_of_known(
        self,
        known: csr_array,
        k: int,
        seed: int,
    ) -> Iterator[_State]:
        """Extrapolate from sweep to sweep, and go back where the objective would rise."""
        sweeps = als_sweeps(
            known,
            k,
            regularization=self.regularization,
            biases=False,
            nonnegative=True,
            random_state=seed,
        )
        objectives: list[float] = []
        step = FIRST_STEP
        previous = best = np.zeros((known.shape[1], k), known.dtype)
        for sweep in sweeps:
            objective = max(sweep.objective / 2, 0.0)
            following = sweep.factors.column_factors  # where the next sweep starts
            is_plain = previous is best
            if objectives and objective > objectives[-1]:
                if not is_plain:
                    previous = best
                    following[:] = best
                    step *= SHORTER
                    continue
                objective = objectives[-1]  # it rose by rounding
            objectives.append(objective)
            previous, best = best, following.copy()
            yield _State(best, objectives)
            if len(objectives) > 1:
                following += following.dtype.type(step) * (best - previous)
                np.maximum(following, 0, out=following)
            step = min(1.0, step * LONGER)

    def _solved(self, data: Any) -> FloatArray:
        """Return the best factors of samples that are in the units of the fit."""
        H = self._columns.astype(data.dtype, copy=False)
        known_entries = self._known(data)
        if known_entries is None:
            penalty = self.regularization * self._size * math.sqrt(data.shape[1])
            return solve_nonnegative_rows(data, H, penalty)
        factors, _ = solve_rows(
            kernels.csr_arrays(known_entries),
            H,
            np.zeros(len(H), H.dtype),
            mean=0.0,
            regularization=self.regularization,
            scale=self._size,
            count_power=0.5,
            nonnegative=True,
            biases=False,
        )
        return factors

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.positive_only = True
        tags.input_tags.allow_nan = True
        return tags


def _peak(data: Any) -> float:
    """Return the largest known entry."""
    values = data.data if is_sparse(data) else data
    return float(np.fmax.reduce(values, axis=None, initial=0.0))


def _times(data: Any, exponent: int) -> Any:
    """Return data times a power of two."""
    if exponent == 0:
        return data
    if is_sparse(data):
        return with_data(data, np.ldexp(data.data, exponent))
    return np.ldexp(data, exponent)


def _entries_to_fit(
    data: Any,
    known: csr_array | None,
    seed: int,
) -> tuple[csr_array, FloatArray | None]:
    """Return entries by which the number of components is chosen, and their weights.

    Of a sparse matrix whose zeros count, these are the stored entries, and as many others with the
    weight of all others.
    """
    if known is not None:
        return known, None
    if not is_sparse(data):
        return observed_entries(data), None
    n, m = data.shape
    rng = np.random.default_rng(seed)
    rows, columns, values = Entries.of(data)
    stored = rows * m + columns
    drawn = rng.integers(0, n * m, size=max(data.nnz, 1))
    zeros = np.setdiff1d(drawn, stored)
    # The drawn zeros stand for all that are not stored.
    weight_of_zero = (n * m - stored.size) / max(zeros.size, 1)
    weights = np.append(np.ones(stored.size), np.full(zeros.size, weight_of_zero))
    values = np.append(values, np.zeros(zeros.size, data.dtype))
    positions = np.append(stored, zeros)
    order = np.argsort(positions)
    rows, columns = np.divmod(positions[order], m)
    indptr = np.searchsorted(rows, np.arange(n + 1))
    entries = sparse.csr_array((values[order], columns, indptr), shape=(n, m))
    return entries, weights[order].astype(data.dtype)

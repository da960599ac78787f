"""Alternating least squares over the observed entries of a matrix."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lowrank import kernels
from lowrank.errors import ArgumentError
from lowrank.kernels import CodedMatrix, CsrArrays, Stored, level_counts, transposed
from lowrank.kernels.arrays import Float64s, Floats
from lowrank.subspace import leading_directions
from lowrank.sums import row_dots

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Observed: TypeAlias = "csr_array | CodedMatrix"
"""Matrix whose stored entries are the known ones."""

# A row with this many entries gets half of its mean deviation as bias.
_BIAS_DAMPING = 5.0
_BIAS_ROUNDS = 20
_NOISE = 1e-6  # of the largest norm, for directions beyond the rank
_START_ROUNDS = 2  # rounds of alternating bias fits before the first sweep
# Steps and extra directions of the subspace iteration for the starting factors, which takes about
# the time of one sweep. Extra directions help as much as another step, and cost less.
_START_STEPS = 2
_START_EXTRA = 16


@dataclass(frozen=True, eq=False)
class BiasedFactors:
    """The matrix ``mean + row_bias[:, None] + column_bias + row_factors @ column_factors.T``."""

    mean: float
    row_bias: Floats
    column_bias: Floats
    row_factors: Floats
    column_factors: Floats


@dataclass(frozen=True, eq=False)
class AlsSweep:
    """The state after one sweep, which solves the rows, then the columns.

    The next sweep reuses the arrays. `half_objective` and `objective` are the penalised sums of
    squares after the rows and after the columns. `rmse`, the root mean squared error over the known
    entries, is computed as a difference of sums: below about 1e-8 of the entries (3e-4 in float32)
    it is rounding error.
    """

    factors: BiasedFactors
    half_objective: float
    objective: float
    rmse: float


class Biases(NamedTuple):
    """The matrix ``mean + row_bias[:, None] + column_bias``."""

    mean: float
    row_bias: Floats
    column_bias: Floats

    @classmethod
    def of(
        cls,
        X: Observed,
        wanted: bool,
        rounds: int = _BIAS_ROUNDS,
        by_column: Stored | None = None,
        weights: Floats | None = None,
    ) -> Self:
        """Fit a mean and damped biases by alternating exact solutions; zeros unless `wanted`."""
        n, m = X.shape
        if not wanted:
            return cls(0.0, np.zeros(n, X.dtype), np.zeros(m, X.dtype))
        by_row = stored(X)
        by_column = by_column or transposed(by_row, m)
        mean, _ = moments(X, weights)
        rows = _Deviations.of(by_row, m, mean, weights)
        columns = _Deviations.of(
            by_column, n, mean, _transposed_weights(by_row, weights, m)
        )
        row_bias = np.zeros((n, 1), X.dtype)
        for _ in range(rounds):
            column_bias = columns.damped_means(row_bias)
            row_bias = rows.damped_means(column_bias)
        return cls(mean, row_bias[:, 0], column_bias[:, 0])

    def at(
        self,
        rows: NDArray[Any],
        columns: NDArray[Any],
    ) -> Floats:
        """Return the entries at pairs of positions."""
        mean = self.row_bias.dtype.type(self.mean)
        entries: Floats = self.row_bias[rows] + self.column_bias[columns] + mean
        return entries

    def subtracted(self, X: csr_array) -> csr_array:
        """Return X minus this matrix at the known entries."""
        from lowrank.operators import row_of_entry, with_data

        residual = X.data - self.at(row_of_entry(X), X.indices)
        result: csr_array = with_data(X, residual)
        return result


class _Deviations(NamedTuple):
    """Sums of the deviations of entries from their mean in each row, shape (n, 1)."""

    sums: Floats
    pattern: Stored  # the weights of the entries
    totals: Floats  # weight of each row, damping included

    @classmethod
    def of(
        cls,
        entries: Stored,
        n_columns: int,
        mean: float,
        weights: Floats | None,
    ) -> Self:
        dtype = entries.dtype
        deviations = _with_values(entries, lambda values: values - dtype.type(mean))
        pattern = _with_values(entries, np.ones_like)
        if weights is not None:
            deviations = _multiplied(deviations, weights)
            pattern = _multiplied(pattern, weights)
        totals = _row_weights(entries, weights) + _BIAS_DAMPING
        return cls(
            sums=kernels.csr_matmat(deviations, np.ones((n_columns, 1), dtype)),
            pattern=pattern,
            totals=totals.astype(dtype)[:, None],
        )

    def damped_means(self, other_bias: Floats) -> Floats:
        """Return the biases that minimise the damped squares, given the other side's."""
        means: Floats = self.sums - kernels.csr_matmat(self.pattern, other_bias)
        means /= self.totals
        return means


class _Model(NamedTuple):
    """The form of the factors, and their penalties."""

    k: int
    regularization: float
    scale: float
    count_power: float
    biases: bool
    nonnegative: bool


@dataclass(eq=False)
class _Side:
    """Factors and biases of the rows (or, transposed, the columns), and the entries to fit."""

    entries: Stored
    factors: Floats
    bias: Floats
    penalty: Floats
    bias_penalty: Floats | None
    weights: Floats | None = None
    nonnegative: bool = False

    @classmethod
    def of(
        cls,
        entries: Stored,
        model: _Model,
        weights: Floats | None,
    ) -> Self:
        """Return a side with factors and biases of zero."""
        dtype = entries.dtype
        counts = _row_weights(entries, weights)
        # Rows without entries count as rows with one, so that no penalty is zero.
        counts = np.where(counts > 0, counts, 1)
        powers = counts.astype(dtype) ** dtype.type(model.count_power)
        penalty = dtype.type(model.regularization)
        return cls(
            entries=entries,
            factors=kernels.aligned_zeros((len(counts), model.k), dtype),
            bias=np.zeros(len(counts), dtype),
            penalty=dtype.type(model.regularization * model.scale) * powers,
            bias_penalty=penalty * powers if model.biases else None,
            weights=weights,
            nonnegative=model.nonnegative,
        )

    def solve(
        self,
        other_factors: Floats,
        other_bias: Floats,
        mean: float,
    ) -> float:
        """Solve for this side; return the minimum without the other side's penalties."""
        objective = kernels.als_half_sweep(
            self.entries,
            other_factors,
            other_bias=other_bias,
            shift=mean,
            penalty=self.penalty,
            bias_penalty=self.bias_penalty,
            factors=self.factors,
            bias=self.bias,
            weights=self.weights,
            nonnegative=self.nonnegative,
        )
        return math.fsum(objective)

    def penalties(self) -> float:
        """Return the penalty terms of this side's factors and biases."""
        squares = row_dots(self.factors, self.factors)
        total = float((squares * self.penalty).sum())
        if self.bias_penalty is not None:
            bias = self.bias.astype(np.float64)
            total += float((bias**2 * self.bias_penalty).sum())
        return total

    def mean_residual(self) -> float:
        """Return the mean residual after `solve`, where a row's residuals sum to penalty * b."""
        if self.bias_penalty is None:
            return 0.0
        errors = float((self.bias_penalty.astype(np.float64) * self.bias).sum())
        return errors / _total_weight(self.entries, self.weights)


def als_sweeps(
    X: Observed,
    k: int,
    *,
    regularization: float,
    count_power: float = 0.5,
    biases: bool = True,
    weights: Floats | None = None,
    nonnegative: bool = False,
    start: BiasedFactors | None = None,
    random_state: int | None = 0,
    threads: int | None = None,
) -> Generator[AlsSweep, BiasedFactors | None]:
    r"""Fit biased factors to the stored entries of a sparse matrix, one sweep at a time.

    Minimises over the mean :math:`\mu`, the biases and the factors

    .. math:: \sum_{(u,i)} w_{ui} (x_{ui} - \mu - b_u - c_i - a_u \cdot m_i)^2
              + \lambda \sum_u n_u^g (s |a_u|^2 + b_u^2) + \lambda \sum_i n_i^g (s |m_i|^2 + c_i^2)

    by solving exactly for all :math:`(a_u, b_u)`, then for all :math:`(m_i, c_i)`, and correcting
    the mean after each half-sweep. :math:`n` is the number of entries of a row or column, or with
    weights their sum: a weight of 2 stands for an entry twice. :math:`s` is the standard deviation
    of the entries; it makes the solution scale with the data, so that the same
    :math:`\lambda` suits any rating scale. The objective never rises.

    Parameters
    ----------
    X : csr_array or CodedMatrix of shape (n, m), float32 or float64
        All stored entries are fitted, zeros included. Indices must be sorted, without duplicates.
        For few distinct values, a `CodedMatrix` takes at most half the memory.
    k : int
        Number of factors.
    regularization : float
        Positive penalty lambda; with `nonnegative` and without biases, it may be zero.
    count_power : float
        The exponent g: 0 is plain ridge, 1 the weighting of Zhou et al.
    biases : bool
        With False, the mean and the biases stay zero, and s is the root mean square.
    weights : ndarray of shape (nnz,), optional
        The weights w of the stored entries, in their order; not negative, by default one.
    nonnegative : bool
        Whether the factors must not be negative. The mean and the biases are free.
    start : BiasedFactors, optional
        Starting point, by default `biased_start`. Only its mean and the factors and biases of the
        columns are used.
    random_state : int, optional
        Seed of the starting factors.
    threads : int, optional
        Number of threads, by default all available cores. The result does not depend on it.

    Yields
    ------
    AlsSweep
        After each sweep, without end. `BiasedFactors` that are sent to the generator replace the
        mean and the factors and biases of the columns before the next sweep.

    Raises
    ------
    ArgumentError
        If `check_problem` raises it, if `start` does not fit the shape of X, or if `weights` are
        not one number for each entry, or are negative, or all zero.

    References
    ----------
    Zhou, Wilkinson, Schreiber and Pan (2008), "Large-scale parallel collaborative filtering for
    the Netflix prize", section 3.
    Kim and Park (2011), "Fast nonnegative matrix factorization: an active-set-like method and
    comparisons".
    """
    if nonnegative and not biases and regularization == 0:
        check_problem(X, k)
    else:
        check_problem(X, k, regularization=regularization)
    if weights is not None:
        weights = _checked_weights(weights, X)
    if start is not None:
        _check_start(start, (X.shape[1], k))
    entries = stored(X)
    with kernels.at_most(threads):
        by_column = transposed(entries, X.shape[1])
        if start is None:
            start = biased_start(
                X,
                k,
                biases=biases,
                weights=weights,
                nonnegative=nonnegative,
                random_state=random_state,
                by_column=by_column,
            )
    mean, deviation = moments(X, weights)
    # The unit of the entries: a matrix of equal entries has no deviation.
    scale = (deviation if biases else math.hypot(mean, deviation)) or 1.0
    model = _Model(k, regularization, scale, count_power, biases, nonnegative)
    column_weights = _transposed_weights(entries, weights, X.shape[1])
    rows = _Side.of(entries, model, weights)
    columns = _Side.of(by_column, model, column_weights)
    total_weight = _total_weight(entries, weights)
    columns.factors[:] = start.column_factors
    mean = 0.0
    if biases:
        columns.bias[:] = start.column_bias
        mean = start.mean
    while True:
        with kernels.at_most(threads):
            half = rows.solve(columns.factors, columns.bias, mean)
            half += columns.penalties()
            shift = rows.mean_residual()
            # The best mean lowers the sum of squares by the square of its change.
            half -= total_weight * shift**2
            mean += shift
            fitted = columns.solve(rows.factors, rows.bias, mean)
            shift = columns.mean_residual()
            fitted -= total_weight * shift**2
            mean += shift
        squares = fitted - columns.penalties()  # `solve` includes its own penalties
        replaced = yield AlsSweep(
            BiasedFactors(mean, rows.bias, columns.bias, rows.factors, columns.factors),
            half_objective=half,
            objective=fitted + rows.penalties(),
            rmse=math.sqrt(max(squares, 0.0) / total_weight),
        )
        if replaced is not None:
            columns.factors[:] = replaced.column_factors
            if biases:
                columns.bias[:] = replaced.column_bias
                mean = replaced.mean


def moments(X: Observed, weights: Floats | None = None) -> tuple[float, float]:
    """Return the mean and the standard deviation of the known entries."""
    if isinstance(X, CodedMatrix) and weights is None:
        # Levels and their counts take no memory for the values of all entries.
        values = X.levels.astype(np.float64)
        weights = level_counts(X.codes).astype(np.float64)
    else:
        values = _values(stored(X)).astype(np.float64)
    mean = float(np.average(values, weights=weights))
    return mean, math.sqrt(np.average((values - mean) ** 2, weights=weights))


def stored(X: Observed) -> Stored:
    """Return a matrix in the form that the kernels take."""
    return X if isinstance(X, CodedMatrix) else kernels.csr_arrays(X)


def _row_weights(entries: Stored, weights: Floats | None) -> Float64s:
    """Return the total weight of the entries of each row."""
    if weights is None:
        return np.diff(entries.indptr).astype(np.float64)
    # Sums of each row's entries, not differences of sums over all: equal rows have equal sums.
    filled = np.flatnonzero(np.diff(entries.indptr))
    sums = np.zeros(len(entries.indptr) - 1)
    if filled.size:
        wide = weights.astype(np.float64)
        sums[filled] = np.add.reduceat(wide, entries.indptr[filled])
    return sums


def _total_weight(entries: Stored, weights: Floats | None) -> float:
    """Return the total weight of all entries."""
    if weights is None:
        return float(len(entries.indices))
    return float(weights.sum(dtype=np.float64))


def _transposed_weights(
    entries: Stored,
    weights: Floats | None,
    n_columns: int,
) -> Floats | None:
    """Return the weights of entries in the order of the transposed matrix."""
    if weights is None:
        return None
    matrix = CsrArrays(entries.indptr, entries.indices, weights)
    return _values(transposed(matrix, n_columns))


def _values(entries: Stored) -> Floats:
    return (entries.arrays if isinstance(entries, CodedMatrix) else entries).data


def _multiplied(entries: Stored, weights: Floats) -> CsrArrays:
    """Return a matrix with its values multiplied by weights."""
    products = _values(entries) * weights
    return CsrArrays(entries.indptr, entries.indices, products)


def _checked_weights(weights: Floats, X: Observed) -> Floats:
    """Return the weights of entries in the dtype of X."""
    if weights.shape != (X.nnz,):
        raise ArgumentError(
            f"weights must have one number for each entry, shape ({X.nnz},); got {weights.shape}."
        )
    bad = np.flatnonzero(~(weights >= 0) | ~np.isfinite(weights))
    if bad.size:
        raise ArgumentError(
            f"weights must be finite and not negative; got {weights[bad[0]]} at entry {bad[0]}."
        )
    if not weights.any():
        raise ArgumentError(
            "weights must have at least one positive number; all are 0."
        )
    return np.ascontiguousarray(weights, X.dtype)


def _with_values(entries: Stored, function: Callable[[Floats], Floats]) -> Stored:
    """Return a matrix with a function applied to its values."""
    if isinstance(entries, CodedMatrix):
        return entries._replace(levels=function(entries.levels))
    return entries._replace(data=function(entries.data))


def _check_start(start: BiasedFactors, shape: tuple[int, int]) -> None:
    """Check that a starting point has column factors of a shape."""
    if start.column_factors.shape != shape:
        raise ArgumentError(
            f"start must have column factors of shape {shape}; "
            f"got {start.column_factors.shape}."
        )


def check_problem(
    X: Observed,
    k: int,
    *,
    link_penalty: float = 0.0,
    **penalties: float,
) -> None:
    """Check the arguments that all fits share.

    Raises
    ------
    ArgumentError
        If `k` is below 1, a penalty is not positive, `link_penalty` is negative, or `X` has no
        entries.
    """
    if k < 1:
        raise ArgumentError(f"k must be at least 1; got {k}.")
    for name, value in penalties.items():
        if not 0 < value < math.inf:
            raise ArgumentError(f"{name} must be positive and finite; got {value}.")
    if X.nnz == 0:
        raise ArgumentError("X must have at least one stored entry; got none.")
    if not 0 <= link_penalty < math.inf:
        raise ArgumentError(f"link_penalty must be 0 or positive; got {link_penalty}.")


def biased_start(
    X: Observed,
    k: int,
    *,
    biases: bool = True,
    weights: Floats | None = None,
    nonnegative: bool = False,
    random_state: int | None = 0,
    by_column: Stored | None = None,
) -> BiasedFactors:
    """Return biases, and column factors ``V sqrt(s)`` from a rough SVD of their residual.

    From here, alternating fits take about half as many sweeps as from random factors. The row
    factors are zero. With weights, the residual is multiplied by them; with `nonnegative`, the
    columns of V are replaced by their `dominant_parts`. `by_column` is the transpose of X; passing
    it saves time.
    """
    n, m = X.shape
    fitted = Biases.of(X, biases, _START_ROUNDS, by_column, weights)
    transpose: Stored | None = None
    residual: Stored
    if isinstance(X, CodedMatrix):
        shift = fitted.row_bias + X.dtype.type(fitted.mean)
        residual = X._replace(row_shift=shift, column_shift=fitted.column_bias)
        if weights is None and isinstance(by_column, CodedMatrix):
            transpose = by_column._replace(
                row_shift=fitted.column_bias, column_shift=shift
            )
    else:
        residual = kernels.csr_arrays(fitted.subtracted(X))
    if weights is not None:
        residual = _multiplied(residual, weights / weights.mean())
    V, s = leading_directions(
        residual,
        m,
        k,
        steps=_START_STEPS,
        extra=_START_EXTRA,
        transpose=transpose,
        random_state=random_state,
    )
    V *= np.sqrt(s)
    if nonnegative:
        V = dominant_parts(V)
    return BiasedFactors(*fitted, np.zeros((n, k), X.dtype), V)


def rough_vectors(X: csr_array, k: int) -> tuple[Floats, Floats]:
    """Return vectors of the columns of X, and the weight of errors in each of their entries.

    The weight of a factor is its mean square on the other side, and the weight of a bias is 1.
    """
    k = min(k, *X.shape)
    if X.data.min() < X.data.max():
        start = biased_start(X, k)
        vectors = np.column_stack([start.column_factors, start.column_bias])
        squares = np.square(start.column_factors, dtype=np.float64).sum(axis=0)
        weight = np.append(squares / X.shape[0], 1)
    else:
        # Equal values: the vector of a column is the mean of its rows' vectors.
        counts = np.bincount(X.indices, minlength=X.shape[1])
        right, values = leading_directions(kernels.csr_arrays(X), X.shape[1], k)
        vectors = right * values / np.maximum(counts, 1).astype(X.dtype)[:, None]
        weight = np.ones(k)
    norms = np.linalg.norm(vectors, axis=0)
    # Directions beyond the rank are noise.
    is_signal = norms > _NOISE * norms.max()
    return vectors[:, is_signal], weight[is_signal]


def dominant_parts(V: Floats) -> Floats:
    """Return the positive or the negative part of each column, whichever is longer, as positive.

    References
    ----------
    Boutsidis and Gallopoulos (2008), "SVD based initialization: a head start for nonnegative matrix
    factorization".
    """
    positive = np.maximum(V, 0)
    negative = np.maximum(-V, 0)
    is_positive = (positive**2).sum(axis=0) >= (negative**2).sum(axis=0)
    return np.where(is_positive, positive, negative)


def solve_rows(
    entries: Stored,
    column_factors: Floats,
    column_bias: Floats,
    *,
    mean: float,
    regularization: float,
    scale: float,
    count_power: float,
    biases: bool = True,
    nonnegative: bool = False,
    threads: int | None = None,
) -> tuple[Floats, Floats]:
    r"""Solve the ridge regression of each row against fixed columns: a half-sweep, or a fold-in.

    For a row with n entries, minimises

    .. math:: \sum_i (x_i - \mu - c_i - b - a \cdot m_i)^2 + \lambda n^g (s |a|^2 + b^2)

    and returns the factors and biases of all rows, shapes (n_rows, k) and (n_rows,). The result of
    a row is the same to the bit whichever rows are solved with it, on any number of threads. The
    factors and biases of the columns have shapes (m, k) and (m,). `scale` is the standard deviation
    s of the entries that the columns were fitted to; for the other parameters see `als_sweeps`.
    """
    k = column_factors.shape[1]
    model = _Model(k, regularization, scale, count_power, biases, nonnegative)
    rows = _Side.of(entries, model, None)
    with kernels.at_most(threads):
        rows.solve(
            np.ascontiguousarray(column_factors),
            np.ascontiguousarray(column_bias),
            mean,
        )
    return rows.factors, rows.bias

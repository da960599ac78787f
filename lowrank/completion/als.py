"""Alternating least squares over the observed entries of a matrix."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lowrank import kernels

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from lowrank.operators import FloatArray

__all__ = ["AlsSweep", "BiasedFactors", "Biases", "als_sweeps", "rough_start"]

Floats = NDArray[np.floating[Any]]

_BIAS_ROUNDS = 5  # of alternating bias fits before the first sweep; each costs two passes
_START_TOL = 0.5  # accuracy of the SVD that the factors start from: sweeps do the rest


@dataclass(frozen=True, eq=False)
class BiasedFactors:
    """The matrix ``mean + row_bias[:, None] + column_bias + row_factors @ column_factors.T``.

    Attributes
    ----------
    mean : float
    row_bias, column_bias : ndarrays of shape (n,) and (m,)
    row_factors, column_factors : ndarrays of shape (n, k) and (m, k)
    """

    mean: float
    row_bias: Floats
    column_bias: Floats
    row_factors: Floats
    column_factors: Floats


@dataclass(frozen=True, eq=False)
class AlsSweep:
    """The state after one sweep: rows solved, then columns.

    Attributes
    ----------
    factors : BiasedFactors
        The current solution. Its arrays are reused by the next sweep.
    half_objective, objective : float
        The penalised sum of squares after the rows and after the columns were solved.
    rmse : float
        Root mean squared error over the known entries, as a difference of sums: below about 1e-8 of
        the entries (3e-4 in float32) it is rounding.
    """

    factors: BiasedFactors
    half_objective: float
    objective: float
    rmse: float


@dataclass(eq=False)
class _Side:
    """The unknowns of the rows (or, transposed, of the columns) and the entries they must fit."""

    indptr: NDArray[np.int64]
    indices: NDArray[np.int32]
    data: Floats
    factors: Floats
    bias: Floats
    penalty: Floats
    bias_penalty: Floats | None

    @classmethod
    def of(
        cls,
        X: csr_array,
        k: int,
        regularization: float,
        count_power: float,
        scale: float,
        biases: bool,
    ) -> _Side:
        indptr = X.indptr.astype(np.int64, copy=False)
        # Rows without entries have no penalty to speak of, and none that is zero.
        weight = np.maximum(np.diff(indptr), 1).astype(X.dtype) ** X.dtype.type(count_power)
        return cls(
            indptr=indptr,
            indices=X.indices.astype(np.int32, copy=False),
            data=X.data,
            factors=kernels.aligned_zeros((X.shape[0], k), X.dtype),
            bias=np.zeros(X.shape[0], X.dtype),
            penalty=X.dtype.type(regularization * scale) * weight,
            bias_penalty=X.dtype.type(regularization) * weight if biases else None,
        )

    def solve(self, other: _Side, mean: float, threads: int | None) -> float:
        """Minimise over this side; return the minimum without the other side's penalties."""
        objective = kernels.als_half_sweep(
            self.indptr,
            self.indices,
            self.data,
            other.factors,
            other_bias=other.bias,
            shift=mean,
            penalty=self.penalty,
            bias_penalty=self.bias_penalty,
            factors=self.factors,
            bias=self.bias,
            threads=threads,
        )
        return math.fsum(objective)

    def solve_biases(self, other: _Side, mean: float) -> None:
        """Minimise over this side's biases, with all factors taken as zero."""
        if self.bias_penalty is None:
            return
        residual = np.add.reduceat(
            np.append(self.data - self.data.dtype.type(mean) - other.bias[self.indices], 0),
            self.indptr[:-1],
        )
        counts = np.diff(self.indptr)
        self.bias[:] = np.where(counts > 0, residual, 0) / (counts + self.bias_penalty)

    def penalties(self) -> float:
        """Return the penalty terms of this side's factors and biases."""
        squares = np.einsum("ij,ij->i", self.factors, self.factors, dtype=np.float64)
        total = float(squares @ self.penalty)
        if self.bias_penalty is None:
            return total
        return total + float(self.bias.astype(np.float64) ** 2 @ self.bias_penalty)

    def mean_residual(self) -> float:
        """Return the mean residual right after `solve`: each bias then has sum e = penalty * b.

        It is what the mean is off by; without biases the mean stays 0.
        """
        if self.bias_penalty is None:
            return 0.0
        return float(self.bias_penalty.astype(np.float64) @ self.bias) / len(self.data)


def als_sweeps(
    X: csr_array,
    k: int,
    *,
    regularization: float,
    count_power: float = 0.5,
    biases: bool = True,
    start: BiasedFactors | None = None,
    random_state: int | None = 0,
    threads: int | None = None,
) -> Iterator[AlsSweep]:
    r"""Fit biased factors to the stored entries of a sparse matrix, one sweep at a time.

    Minimises over the mean :math:`\mu`, the biases and the factors

    .. math:: \sum_{(u,i)} (x_{ui} - \mu - b_u - c_i - a_u \cdot m_i)^2
              + \lambda \sum_u n_u^g (s |a_u|^2 + b_u^2) + \lambda \sum_i n_i^g (s |m_i|^2 + c_i^2)

    by solving for all :math:`(a_u, b_u)`, then for all :math:`(m_i, c_i)`, each exactly, with the
    mean corrected after each. :math:`n` counts the entries of a row or column, and :math:`s` is
    the standard deviation of the entries: with it the solution scales with the data, so that one
    :math:`\lambda` serves any rating scale. The objective never rises.

    The factors start from a rough truncated SVD of what the biases leave over, which saves about
    half of the sweeps that a random start takes.

    Parameters
    ----------
    X : csr_array of shape (n, m), float32 or float64
        The known entries; every stored entry counts, zeros too. Sorted indices, no duplicates.
    k : int
        Number of factors.
    regularization : float
        Positive penalty lambda.
    count_power : float
        The exponent g: 0 is plain ridge, 1 the weighting of Zhou et al.
    biases : bool
        False leaves the mean and the biases at zero, and takes for s the root mean square.
    start : BiasedFactors, optional
        Where to begin instead: only its mean and the columns' factors and biases matter.
    random_state : int, optional
        Seed of the starting SVD.
    threads : int, optional
        All available cores by default; the result is the same on any number.

    Yields
    ------
    AlsSweep
        After each sweep, without end: the caller decides when to stop.

    Raises
    ------
    ValueError
        If `regularization` is not positive, `k` is below 1, `X` has no entries, or `start` does
        not fit its shape.

    References
    ----------
    Zhou, Wilkinson, Schreiber and Pan (2008), "Large-scale parallel collaborative filtering for
    the Netflix prize", section 3. Koren, Bell and Volinsky (2009), "Matrix factorization
    techniques for recommender systems".
    """
    _check(X, k, regularization)
    mean = float(X.data.mean(dtype=np.float64)) if biases else 0.0
    scale = _spread(X.data, biases) or 1.0
    rows = _Side.of(X, k, regularization, count_power, scale, biases)
    columns = _Side.of(X.T.tocsr(), k, regularization, count_power, scale, biases)
    if start is None:
        with kernels.at_most(threads):
            _start_from_svd(rows, columns, mean, random_state)
    else:
        mean = _start_from(start, columns)
    n_entries = len(X.data)
    while True:
        half = rows.solve(columns, mean, threads) + columns.penalties()
        half -= n_entries * (shift := rows.mean_residual()) ** 2
        mean += shift
        fitted = columns.solve(rows, mean, threads)
        fitted -= n_entries * (shift := columns.mean_residual()) ** 2
        mean += shift
        squares = fitted - columns.penalties()
        yield AlsSweep(
            BiasedFactors(mean, rows.bias, columns.bias, rows.factors, columns.factors),
            half_objective=half,
            objective=fitted + rows.penalties(),
            rmse=math.sqrt(max(squares, 0.0) / n_entries),
        )


def rough_start(X: csr_array, k: int, *, random_state: int | None = 0) -> BiasedFactors:
    """Fit biases, and then column factors to what they leave over by a rough truncated SVD.

    Where alternating fits begin: the row factors are zero.
    """
    rows, columns = (_Side.of(each, k, 1.0, 0.5, 1.0, biases=True) for each in (X, X.T.tocsr()))
    mean = float(X.data.mean(dtype=np.float64))
    _start_from_svd(rows, columns, mean, random_state)
    return BiasedFactors(mean, rows.bias, columns.bias, rows.factors, columns.factors)


def _check(X: csr_array, k: int, regularization: float) -> None:
    if k < 1:
        raise ValueError(f"k must be at least 1; got {k}.")
    _check_regularization(regularization)
    if X.nnz == 0:
        raise ValueError("X must have at least one stored entry; got none.")


def _spread(values: Floats, centred: bool) -> float:
    if centred:
        return float(values.std(dtype=np.float64))
    return math.sqrt(float(np.mean(np.square(values, dtype=np.float64))))


def _check_regularization(regularization: float) -> None:
    if not 0 < regularization < math.inf:
        raise ValueError(f"regularization must be positive and finite; got {regularization}.")


def _start_from(start: BiasedFactors, columns: _Side) -> float:
    if start.column_factors.shape != columns.factors.shape:
        raise ValueError(
            f"start must have column factors of shape {columns.factors.shape}; "
            f"got {start.column_factors.shape}."
        )
    columns.factors[:] = start.column_factors
    if columns.bias_penalty is None:
        return 0.0
    columns.bias[:] = start.column_bias
    return start.mean


def _start_from_svd(rows: _Side, columns: _Side, mean: float, random_state: int | None) -> None:
    """Fit the biases alone, then set the column factors to V sqrt(s) of what they leave over."""
    import warnings

    from scipy.sparse import csr_array

    from lowrank.svd import ConvergenceWarning, truncated_svd

    for _ in range(_BIAS_ROUNDS):
        rows.solve_biases(columns, mean)
        columns.solve_biases(rows, mean)
    residual = rows.data - rows.data.dtype.type(mean) - columns.bias[rows.indices]
    residual -= np.repeat(rows.bias, np.diff(rows.indptr))
    shape = (len(rows.factors), len(columns.factors))
    left_over = csr_array((residual, rows.indices, rows.indptr), shape=shape)
    rank = min(columns.factors.shape[1], *shape)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        svd = truncated_svd(
            left_over, rank, method="lanczos", tol=_START_TOL, random_state=random_state
        )
    columns.factors[:, :rank] = svd.Vt.T * np.sqrt(svd.s)


_DAMPING = 5.0  # entries: with as many in a row, half of its mean deviation is its bias
_ROUNDS = 20


class Biases(NamedTuple):
    """The matrix ``mean + row_bias[:, None] + column_bias``."""

    mean: float
    row_bias: FloatArray
    column_bias: FloatArray

    @classmethod
    def of(cls, X: csr_array, wanted: bool) -> Biases:
        """Fit a mean and damped biases by alternating exact solutions; zeros if not wanted."""
        n, m = X.shape
        if not wanted:
            return cls(0.0, np.zeros(n, X.dtype), np.zeros(m, X.dtype))
        mean = float(X.data.mean(dtype=np.float64))
        deviations = X.data.astype(np.float64) - mean
        rows, columns = _row_of_each(X), X.indices
        row_weight = np.bincount(rows, minlength=n) + _DAMPING
        column_weight = np.bincount(columns, minlength=m) + _DAMPING
        row_bias = np.zeros(n)
        for _ in range(_ROUNDS):
            column_bias = np.bincount(columns, deviations - row_bias[rows], m) / column_weight
            row_bias = np.bincount(rows, deviations - column_bias[columns], n) / row_weight
        return cls(mean, row_bias.astype(X.dtype), column_bias.astype(X.dtype))

    def at(self, rows: NDArray[Any], columns: NDArray[Any]) -> FloatArray:
        """Return the entries at pairs of positions."""
        mean = self.row_bias.dtype.type(self.mean)
        entries: FloatArray = self.row_bias[rows] + self.column_bias[columns] + mean
        return entries

    def subtracted(self, X: csr_array) -> csr_array:
        """Return X minus this matrix at the known entries."""
        from scipy import sparse

        left_over = X.data - self.at(_row_of_each(X), X.indices)
        return sparse.csr_array((left_over, X.indices, X.indptr), shape=X.shape)


def _row_of_each(X: csr_array) -> NDArray[np.intp]:
    """Return the row of each stored entry."""
    return np.repeat(np.arange(X.shape[0]), np.diff(X.indptr))

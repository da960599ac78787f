r"""Drifts: changes of the bias of a row over time.

The drift of a row, such as the mood of a user or the fashion of an item, is an Ornstein-Uhlenbeck
process with :math:`\operatorname{cov}(x_s, x_t) = v e^{-|s - t| / \ell}`. Its mean is zero, also
at times far from any entry, where only the bias remains. Drifts are fitted to the residuals of a
model without times, which they do not change. The posterior is computed exactly by smoothing, in
time linear in the number of entries; variance and time scale maximise the evidence.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from lowrank.kernels import posteriors
from lowrank.kernels.arrays import Float64s, Floats, Floats32, Int64s, Ints
from lowrank.sums import sum_of_squares

if TYPE_CHECKING:
    from collections.abc import Sequence


_MOODS = 60.0, 600.0, 6e3, 6e4, 6e5  # seconds: starting time scales of rows
_FASHIONS = 3e7, 1e8  # seconds: starting time scales of columns
_FIRST_VARIANCE = 0.02  # starting variance of the drift, in variances of the data
_LEAST_VARIANCE = 1e-5  # minimum, likewise; a smaller one is set to zero
_MOST_VARIANCE = 0.8  # maximum, likewise
_ROUNDS = 3  # rounds of fitting rows, then columns, each to the residuals of the other
# Trials of variance and scale, relative to the best so far: in the first search, and later.
_FIRST_FACTORS = 0.25, 0.5, 2.0, 4.0, 8.0, 16.0
_FACTORS = 0.5, 0.7, 1.4, 2.0
_SPACING = 0.1  # distance of knots, in units of the time scale


class Knots(NamedTuple):
    """Drifts at some times (knots), and interpolation between them.

    Attributes
    ----------
    starts, counts : int64 ndarrays of shape (n_rows,)
        The knots of row r are at positions starts[r]:starts[r] + counts[r].
    times : int64 ndarray of shape (n_knots,)
        Ascending in each row.
    means, variances : float32 ndarrays of shape (n_knots,)
    variance, scale, noise : float
        Variance and time scale of the process, and variance of the data around it.
    """

    starts: Int64s
    counts: Int64s
    times: Int64s
    means: Floats32
    variances: Floats32
    variance: float
    scale: float
    noise: float

    def at(
        self,
        rows: Ints,
        times: Int64s,
    ) -> tuple[Floats32, Floats32]:
        """Return means and variances of the drifts of rows at times, each of shape (n,).

        Between two knots the process is a bridge. The posteriors of the two are taken as fully
        correlated, which gives an upper bound on the variance.
        """
        if not len(self.times):
            none = np.zeros(len(rows), np.float32)
            return none, np.full(len(rows), self.variance, np.float32)
        first = self.starts[rows]
        end = first + self.counts[rows]
        after = self._first_later(first, end, times)
        has_before = after > first
        has_after = after < end
        before = np.maximum(after - 1, 0)
        after = np.minimum(after, len(self.times) - 1)
        # Correlations with the knots before and after, 0 where there is none.
        p = self._correlation(times, before) * has_before
        q = self._correlation(times, after) * has_after
        # 1 - p^2 q^2, as p q is the correlation of the two knots
        uncorrelated = np.maximum(1 - (p * q) ** 2, 1e-12)
        a = p * (1 - q**2) / uncorrelated
        b = q * (1 - p**2) / uncorrelated
        means = a * self.means[before] + b * self.means[after]
        spread = a * np.sqrt(self.variances[before])
        spread += b * np.sqrt(self.variances[after])
        bridge = self.variance * (1 - p**2) * (1 - q**2) / uncorrelated
        return means.astype(np.float32), (bridge + spread**2).astype(np.float32)

    def _correlation(self, times: Int64s, knots: Int64s) -> Float64s:
        correlation: Float64s = np.exp(-np.abs(times - self.times[knots]) / self.scale)
        return correlation

    def take(self, rows: Ints) -> Self:
        """Return the drifts of some rows, in the given order; a row of -1 has no knots."""
        starts = np.append(self.starts, 0)[rows]
        counts = np.append(self.counts, 0)[rows]
        first = np.cumsum(counts) - counts
        at = np.arange(counts.sum()) + np.repeat(starts - first, counts)
        return self._replace(
            starts=first,
            counts=counts,
            times=self.times[at],
            means=self.means[at],
            variances=self.variances[at],
        )

    def replaced(
        self,
        rows: Ints,
        others: Knots,
    ) -> Self:
        """Return a copy in which some rows have the drifts of `others`."""
        both = self._replace(
            starts=np.append(self.starts, others.starts + len(self.times)),
            counts=np.append(self.counts, others.counts),
            times=np.append(self.times, others.times),
            means=np.append(self.means, others.means),
            variances=np.append(self.variances, others.variances),
        )
        order = np.arange(len(self.starts))
        order[rows] = len(order) + np.arange(len(rows))
        return both.take(order)

    def _first_later(
        self,
        low: Int64s,
        high: Int64s,
        times: Int64s,
    ) -> Int64s:
        """Return the first position in each low:high whose knot is later than a time."""
        for _ in range(int(self.counts.max(initial=0)).bit_length()):
            middle = np.minimum((low + high) // 2, len(self.times) - 1)
            is_open = low < high
            is_later = self.times[middle] > times
            high = np.where(is_open & is_later, middle, high)
            low = np.where(is_open & ~is_later, middle + 1, low)
        return low


@dataclass(eq=False)
class Drift:
    """The drifts of the rows (or the columns) of the entries of a matrix.

    Attributes
    ----------
    variance, scale, noise : float
        Variance and time scale of the processes, and variance of the data around them. With a
        variance of zero there is no drift.
    means : ndarray of shape (nnz,)
        Posterior means at the entries, in their order.
    """

    order: Int64s  # of the entries by row and time
    indptr: Int64s
    times: Int64s  # in that order, as are the gaps
    gaps: Floats
    means: Floats
    variances: Floats | None = None
    variance: float = 0.0
    scale: float = 0.0
    noise: float = 1.0

    @classmethod
    def of(
        cls,
        rows: Ints,
        n_rows: int,
        times: Ints,
        dtype: Any,
    ) -> Self:
        """Return drifts of zero."""
        order = np.lexsort((times, rows))
        indptr = np.append(0, np.cumsum(np.bincount(rows, minlength=n_rows)))
        ordered = times[order].astype(np.int64, copy=False)
        gaps = np.diff(ordered, prepend=ordered[:1]).astype(dtype)
        return cls(order, indptr, ordered, gaps, np.zeros(len(rows), dtype))

    def learn(
        self,
        residual: Floats,
        scales: Sequence[float],
    ) -> None:
        """Improve variance, scale and noise by evidence, first from the best of `scales`.

        Variance and noise sum to the mean square of the residuals, so that the evidence depends
        only on how similar residuals are that are close in time.
        """
        data = np.ascontiguousarray(residual[self.order])
        total = sum_of_squares(data) / max(1, len(data))

        def evidence(variance: float, scale: float) -> float:
            if not 0 < variance <= _MOST_VARIANCE * total:
                return -math.inf
            noise = total - variance
            log_evidence = posteriors.drift_evidence(
                self.indptr,
                self.gaps,
                data,
                noise=noise,
                variance=variance,
                scale=scale,
            )
            return log_evidence - 0.5 * len(data) * math.log(noise / total)

        factors: Sequence[float] = _FACTORS
        trials = [(self.variance, self.scale)]
        if not self.variance:  # the first search
            factors = _FIRST_FACTORS
            trials = [(_FIRST_VARIANCE * total, scale) for scale in scales]
        best = max((evidence(*trial), trial) for trial in trials)
        variance, scale = best[1]
        # One step along each axis: later rounds go on from here.
        trials = [(variance * factor, scale) for factor in factors]
        best = max(best, *((evidence(*trial), trial) for trial in trials))
        variance, scale = best[1]
        trials = [(variance, scale * factor) for factor in factors]
        best = max(best, *((evidence(*trial), trial) for trial in trials))
        height, (self.variance, self.scale) = best
        # A drift has two more parameters, variance and scale: see Schwarz (1978).
        least = -0.5 * len(data) + math.log(max(1, len(data)))
        if height <= least or self.variance < _LEAST_VARIANCE * total:
            self.variance = 0.0
        self.noise = total - self.variance

    def fit(self, residual: Floats) -> None:
        """Set the posterior given residuals."""
        if not self.variance:
            self.means, self.variances = np.zeros_like(self.means), None
            return
        data = np.ascontiguousarray(residual[self.order])
        means, self.variances, _ = posteriors.drift_smooth(
            self.indptr,
            self.gaps,
            data,
            noise=self.noise,
            variance=self.variance,
            scale=self.scale,
        )
        self.means = np.empty_like(means)
        self.means[self.order] = means

    def knots(self) -> Knots:
        """Return the drifts at knots, one for several entries that are close in time.

        The first and the last entry of a row have their own knots.
        """
        n_rows = len(self.indptr) - 1
        row = np.repeat(np.arange(n_rows), np.diff(self.indptr))
        at = np.zeros(0, np.int64)
        variances = self.gaps[:0]
        if self.variances is not None:
            slot = self.times // max(1, math.floor(_SPACING * self.scale))
            new_row = np.diff(row, prepend=-1, append=-1) != 0
            is_last = np.append(np.diff(slot) != 0, True)  # of the entries in its slot
            at = np.flatnonzero(new_row[:-1] | new_row[1:] | is_last)
            variances = self.variances[at]
        counts = np.bincount(row[at], minlength=n_rows)
        return Knots(
            starts=np.cumsum(counts) - counts,
            counts=counts,
            times=self.times[at],
            means=self.means[self.order[at]].astype(np.float32),
            variances=variances.astype(np.float32),
            variance=float(self.variance),
            scale=float(self.scale),
            noise=float(self.noise),
        )


def fit_drifts(
    residual: Floats,
    rows: Ints,
    columns: Ints,
    shape: tuple[int, int],
    times: Int64s,
) -> tuple[Drift, Drift]:
    """Fit the drifts of rows and of columns to residuals of entries, each of shape (nnz,)."""
    of_rows = Drift.of(rows, shape[0], times, residual.dtype)
    of_columns = Drift.of(columns, shape[1], times, residual.dtype)
    for _ in range(_ROUNDS):
        remainder = residual - of_columns.means
        of_rows.learn(remainder, _MOODS)
        of_rows.fit(remainder)
        remainder = residual - of_rows.means
        of_columns.learn(remainder, _FASHIONS)
        of_columns.fit(remainder)
    of_rows.fit(residual - of_columns.means)
    return of_rows, of_columns

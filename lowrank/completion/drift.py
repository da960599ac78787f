r"""Drifts: what is added to the bias of a row by the time of an entry.

The drift of a row is an Ornstein-Uhlenbeck process, :math:`\operatorname{cov}(x_s, x_t) =
v e^{-|s - t| / \ell}`: the mood of a user, or the fashion of an item. It is zero on average, and
far from any entry it is zero again, so that the bias is that of all times. Given what the rest of a
model leaves of the entries, the posterior is exact by smoothing, linear in the number of entries;
variance and time scale maximise the evidence.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from lowrank import kernels

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["MOOD", "TREND", "Drift", "Knots"]

Floats = NDArray[np.floating[Any]]
Ints = NDArray[np.integer[Any]]

MOOD = 600.0, 86_400.0
"""Time scales in seconds at which the search for that of users' moods begins."""
TREND = 3e7, 1e8
"""And for that of items' fashions."""

_FIRST_VARIANCE = 0.02  # of the drift, in units of that of the entries
_LEAST_VARIANCE = 1e-5  # likewise; a smaller one counts as none
_FIRST_FACTORS = 0.25, 0.5, 2.0, 4.0, 8.0  # of variance and scale, in the first search for evidence
_FACTORS = 0.5, 0.7, 1.4, 2.0  # and in those that follow
_SPACING = 0.1  # of knots, in units of the time scale


class Knots(NamedTuple):
    """Drifts at some times, between which they are interpolated.

    Attributes
    ----------
    starts, counts : int64 ndarrays of shape (n_rows,)
        The knots of row r are at positions starts[r]:starts[r] + counts[r].
    times : int64 ndarray of shape (n_knots,)
        Ascending in each row.
    means, variances : float32 ndarrays of shape (n_knots,)
    variance, scale : float
        Of the process.
    """

    starts: NDArray[np.int64]
    counts: NDArray[np.int64]
    times: NDArray[np.int64]
    means: NDArray[np.float32]
    variances: NDArray[np.float32]
    variance: float
    scale: float

    def at(
        self, rows: Ints, times: NDArray[np.int64]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return means and variances of the drifts of rows at times, each of shape (n,).

        Between two knots the process is a bridge; of the two as they are known, the correlation
        counts as one, which is on the safe side.
        """
        if not len(self.times):
            return np.zeros(len(rows), np.float32), np.full(len(rows), self.variance, np.float32)
        first, end = self.starts[rows], self.starts[rows] + self.counts[rows]
        after = self._place(first, end, times)
        has_before, has_after = after > first, after < end
        before = np.maximum(after - 1, 0)
        after = np.minimum(after, len(self.times) - 1)
        left, right = (
            np.exp(-np.abs(times - self.times[at]) / self.scale) * there
            for at, there in ((before, has_before), (after, has_after))
        )
        rest = np.maximum(1 - (left * right) ** 2, 1e-12)
        a, b = left * (1 - right**2) / rest, right * (1 - left**2) / rest
        means = a * self.means[before] + b * self.means[after]
        spread = a * np.sqrt(self.variances[before]) + b * np.sqrt(self.variances[after])
        bridge = self.variance * (1 - left**2) * (1 - right**2) / rest
        return means.astype(np.float32), (bridge + spread**2).astype(np.float32)

    def take(self, rows: Ints) -> Self:
        """Return the drifts of some rows, in the given order; -1 stands for one without knots."""
        starts, counts = np.append(self.starts, 0)[rows], np.append(self.counts, 0)[rows]
        first = np.cumsum(counts) - counts
        at = np.arange(counts.sum()) + np.repeat(starts - first, counts)
        times, means, variances = self.times[at], self.means[at], self.variances[at]
        return self._replace(
            starts=first, counts=counts, times=times, means=means, variances=variances
        )

    def replaced(self, rows: Ints, others: Knots) -> Self:
        """Return the drifts, of which those of some rows are `others`; the process stays."""
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

    def _place(
        self, low: NDArray[np.int64], high: NDArray[np.int64], times: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return the first position in each low:high whose knot is later than a time."""
        for _ in range(int(self.counts.max(initial=0)).bit_length()):
            middle = np.minimum((low + high) // 2, len(self.times) - 1)
            later = self.times[middle] > times
            open_ = low < high
            low, high = (
                np.where(open_ & ~later, middle + 1, low),
                np.where(open_ & later, middle, high),
            )
        return low


@dataclass(eq=False)
class Drift:
    """The drifts of the rows (or the columns) of the entries of a matrix.

    Attributes
    ----------
    variance, scale : float
        Of the processes; nothing drifts with a variance of zero.
    means : ndarray of shape (nnz,)
        Posterior means at the entries, in their order.
    spread : float
        Sum of the posterior variances at the entries.
    divergence : float
        Of the posterior from the prior, in nats.
    """

    order: NDArray[np.int64]  # of the entries by row and time
    indptr: NDArray[np.int64]
    times: NDArray[np.int64]  # in that order, as the following
    gaps: Floats
    least: float
    variance: float
    scale: float
    means: Floats
    spread: float = 0.0
    divergence: float = 0.0
    variances: Floats | None = None

    @classmethod
    def of(
        cls, rows: Ints, n_rows: int, times: NDArray[np.int64], variance: float, dtype: Any
    ) -> Self:
        """Return drifts of zero; `variance` is that of the entries."""
        order = np.lexsort((times, rows))
        indptr = np.append(0, np.cumsum(np.bincount(rows, minlength=n_rows)))
        ordered = times[order]
        gaps = np.diff(ordered, prepend=ordered[:1]).astype(dtype)
        numbers = _LEAST_VARIANCE * variance, _FIRST_VARIANCE * variance, 0.0
        return cls(order, indptr, ordered, gaps, *numbers, np.zeros(len(rows), dtype))

    def learn(self, residual: Floats, noise: float, scales: Sequence[float]) -> None:
        """Improve variance and scale by evidence; begin with one of `scales`.

        `residual` is what the rest of the model leaves of the entries, `noise` its variance.
        """
        data = np.ascontiguousarray(residual[self.order])

        def evidence(variance: float, scale: float) -> float:
            arrays = self.indptr, self.gaps, data
            return kernels.drift_evidence(*arrays, noise=noise, variance=variance, scale=scale)

        start, is_first = max(self.variance, self.least), not self.scale
        trials = [(start, scale) for scale in (scales if is_first else (self.scale,))]
        best = max((evidence(*each), each) for each in trials)
        for axis in (0, 1):
            variance, scale = best[1]
            for factor in _FIRST_FACTORS if is_first else _FACTORS:
                each = (variance * factor, scale) if axis == 0 else (variance, scale * factor)
                best = max(best, (evidence(*each), each))
        height, (self.variance, self.scale) = best
        without = -float(np.einsum("i,i->", data, data, dtype=np.float64)) / (2 * noise)
        if height <= without or self.variance < self.least:
            self.variance = 0.0

    def fit(self, residual: Floats, noise: float) -> None:
        """Set the posterior given residuals with this noise variance."""
        if not self.variance:
            self.means, self.variances = np.zeros_like(self.means), None
            self.spread = self.divergence = 0.0
            return
        data = np.ascontiguousarray(residual[self.order])
        found, self.variances, evidence = kernels.drift_smooth(
            self.indptr, self.gaps, data, noise=noise, variance=self.variance, scale=self.scale
        )
        self.means = np.empty_like(found)
        self.means[self.order] = found
        self.spread = float(self.variances.sum(dtype=np.float64))
        off = (data - found).astype(np.float64)
        self.divergence = -evidence - (float(off @ off) + self.spread) / (2 * noise)

    def knots(self) -> Knots:
        """Return the drifts as they are kept: one knot for entries that are close in time.

        The first and the last entry of a row have their own.
        """
        kept = np.zeros(0, np.int64)
        if self.variances is not None:
            row = np.repeat(np.arange(len(self.indptr) - 1), np.diff(self.indptr))
            slot = self.times // max(1, math.floor(_SPACING * self.scale))
            of_row, of_slot = np.diff(row, prepend=-1, append=-1) != 0, np.diff(slot) != 0
            kept = np.flatnonzero(of_row[:-1] | of_row[1:] | np.append(of_slot, True))
            counts = np.bincount(row[kept], minlength=len(self.indptr) - 1)
        else:
            counts = np.zeros(len(self.indptr) - 1, np.int64)
        variances = self.gaps[:0] if self.variances is None else self.variances[kept]
        return Knots(
            np.cumsum(counts) - counts,
            counts,
            self.times[kept],
            self.means[self.order[kept]].astype(np.float32),
            variances.astype(np.float32),
            float(self.variance),
            float(self.scale),
        )

    def copy(self) -> Self:
        """Return drifts that further fits leave alone."""
        return replace(self)

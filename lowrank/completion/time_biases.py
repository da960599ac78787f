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
from numpy.typing import NDArray

from lowrank.kernels import Floats, posteriors

if TYPE_CHECKING:
    from collections.abc import Sequence

Ints = NDArray[np.integer[Any]]

_MOODS = 60.0, 600.0, 6e3, 6e4, 6e5  # seconds: starting time scales of rows
_FASHIONS = 3e7, 1e8  # seconds: starting time scales of columns
_FIRST_VARIANCE = 0.02  # starting variance of the drift, relative to that of the data
_LEAST_VARIANCE = 1e-5  # minimum, likewise; a smaller one is set to zero
_MOST_VARIANCE = 0.8  # maximum, likewise
_ROUNDS = 3  # rounds of fitting rows, then columns, each to the residuals of the other
_FIRST_FACTORS = (
    0.25,
    0.5,
    2.0,
    4.0,
    8.0,
    16.0,
)  # trials of variance and scale, first search
_FACTORS = 0.5, 0.7, 1.4, 2.0  # trials of variance and scale, later searches
_SPACING = 0.1  # distance of knots, in units of the time scale
_OF_KNOTS = "times", "means", "variances"  # arrays of `Knots` with one number for each


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

    starts: NDArray[np.int64]
    counts: NDArray[np.int64]
    times: NDArray[np.int64]
    means: NDArray[np.float32]
    variances: NDArray[np.float32]
    variance: float
    scale: float
    noise: float

    def at(
        self, rows: Ints, times: NDArray[np.int64]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return means and variances of the drifts of rows at times, each of shape (n,).

        Between two knots the process is a bridge. The posteriors of the two are taken as fully
        correlated, which gives an upper bound on the variance.
        """
        if not len(self.times):
            return np.zeros(len(rows), np.float32), np.full(
                len(rows), self.variance, np.float32
            )
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
        spread = a * np.sqrt(self.variances[before]) + b * np.sqrt(
            self.variances[after]
        )
        bridge = self.variance * (1 - left**2) * (1 - right**2) / rest
        return means.astype(np.float32), (bridge + spread**2).astype(np.float32)

    def take(self, rows: Ints) -> Self:
        """Return the drifts of some rows, in the given order; a row of -1 has no knots."""
        starts, counts = (
            np.append(self.starts, 0)[rows],
            np.append(self.counts, 0)[rows],
        )
        first = np.cumsum(counts) - counts
        at = np.arange(counts.sum()) + np.repeat(starts - first, counts)
        taken: Any = {name: getattr(self, name)[at] for name in _OF_KNOTS}
        return self._replace(starts=first, counts=counts, **taken)

    def replaced(self, rows: Ints, others: Knots) -> Self:
        """Return the drifts with those of some rows replaced by `others`, and the same process."""
        names = ("counts", *_OF_KNOTS)
        joined: Any = {
            each: np.append(getattr(self, each), getattr(others, each))
            for each in names
        }
        starts = np.append(self.starts, others.starts + len(self.times))
        both = self._replace(starts=starts, **joined)
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
    variance, scale, noise : float
        Variance and time scale of the processes, and variance of the data around them. With a
        variance of zero there is no drift.
    means : ndarray of shape (nnz,)
        Posterior means at the entries, in their order.
    """

    order: NDArray[np.int64]  # of the entries by row and time
    indptr: NDArray[np.int64]
    times: NDArray[np.int64]  # in that order, as are the gaps
    gaps: Floats
    means: Floats
    variances: Floats | None = None
    variance: float = 0.0
    scale: float = 0.0
    noise: float = 1.0

    @classmethod
    def of(
        cls, rows: Ints, n_rows: int, times: NDArray[np.integer[Any]], dtype: Any
    ) -> Self:
        """Return drifts of zero."""
        order = np.lexsort((times, rows))
        indptr = np.append(0, np.cumsum(np.bincount(rows, minlength=n_rows)))
        ordered = times[order].astype(np.int64, copy=False)
        gaps = np.diff(ordered, prepend=ordered[:1]).astype(dtype)
        return cls(order, indptr, ordered, gaps, np.zeros(len(rows), dtype))

    def learn(self, residual: Floats, scales: Sequence[float]) -> None:
        """Improve variance, scale and noise by evidence, first from the best of `scales`.

        Variance and noise sum to the mean square of the residuals, so that the evidence depends
        only on how similar residuals are that are close in time.
        """
        data = np.ascontiguousarray(residual[self.order])
        total = float(np.einsum("i,i->", data, data, dtype=np.float64)) / max(
            1, len(data)
        )

        def evidence(variance: float, scale: float) -> float:
            if not 0 < variance <= _MOST_VARIANCE * total:
                return -math.inf
            arrays, noise = (self.indptr, self.gaps, data), total - variance
            found = posteriors.drift_evidence(
                *arrays, noise=noise, variance=variance, scale=scale
            )
            return found - 0.5 * len(data) * math.log(noise / total)

        is_first = not self.variance
        start = _FIRST_VARIANCE * total if is_first else self.variance
        trials = [(start, scale) for scale in (scales if is_first else (self.scale,))]
        best = max((evidence(*each), each) for each in trials)
        for axis in (0, 1):
            variance, scale = best[1]
            for factor in _FIRST_FACTORS if is_first else _FACTORS:
                each = (
                    (variance * factor, scale)
                    if axis == 0
                    else (variance, scale * factor)
                )
                best = max(best, (evidence(*each), each))
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
        process: Any = {
            name: getattr(self, name) for name in ("noise", "variance", "scale")
        }
        found, self.variances, _ = posteriors.drift_smooth(
            self.indptr, self.gaps, data, **process
        )
        self.means = np.empty_like(found)
        self.means[self.order] = found

    def knots(self) -> Knots:
        """Return the drifts at knots, one for several entries that are close in time.

        The first and the last entry of a row have their own knots.
        """
        n_rows, kept, variances = (
            len(self.indptr) - 1,
            np.zeros(0, np.int64),
            self.gaps[:0],
        )
        row = np.repeat(np.arange(n_rows), np.diff(self.indptr))
        if self.variances is not None:
            slot = self.times // max(1, math.floor(_SPACING * self.scale))
            of_row, of_slot = (
                np.diff(row, prepend=-1, append=-1) != 0,
                np.diff(slot) != 0,
            )
            kept = np.flatnonzero(of_row[:-1] | of_row[1:] | np.append(of_slot, True))
            variances = self.variances[kept]
        counts = np.bincount(row[kept], minlength=n_rows)
        return Knots(
            np.cumsum(counts) - counts,
            counts,
            self.times[kept],
            self.means[self.order[kept]].astype(np.float32),
            variances.astype(np.float32),
            float(self.variance),
            float(self.scale),
            float(self.noise),
        )


def fit_drifts(
    residual: Floats,
    rows: Ints,
    columns: Ints,
    shape: tuple[int, int],
    times: NDArray[np.int64],
) -> tuple[Drift, Drift]:
    """Fit the drifts of rows and of columns to residuals of entries, each of shape (nnz,)."""
    of_rows = Drift.of(rows, shape[0], times, residual.dtype)
    of_columns = Drift.of(columns, shape[1], times, residual.dtype)
    for _ in range(_ROUNDS):
        for drift, other, scales in (
            (of_rows, of_columns, _MOODS),
            (of_columns, of_rows, _FASHIONS),
        ):
            left = residual - other.means
            drift.learn(left, scales)
            drift.fit(left)
    of_rows.fit(residual - of_columns.means)
    return of_rows, of_columns

r"""Ordered probit model of entries that are levels of a scale, such as stars.

A latent number is the score of the row and column plus Gaussian noise. The cut points between which
it is determine the level of the entry, so :math:`P(x \le l) = \Phi((c_l - s) / \sigma)`. Two of the
cut points are fixed half way between levels, which puts scores on the scale of the entries; the
others and the noise are learned.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from lowrank.errors import ArgumentError
from lowrank.kernels import Floats, pieces

Doubles = NDArray[np.float64]

_BLOCK = 2**14  # entries at once; their intermediate results fit in the cache
# approximate maximum number of entries for learning cut points and noise
_LEARNED_FROM = 2**20
_CELLS = 256  # bins of scores; entries of a level in the same bin are treated alike
_STEPS = 4  # quasi-Newton steps per call
_ANCHORS = (
    0.16,
    0.84,
)  # approximate shares of the entries below the two fixed cut points
_LEAST = 1e-300  # minimum probability of a level
_LOW, _HIGH, _PER_UNIT = -38, 9, 1024  # range of the normal table, and points per unit
_POINTS = 2048  # points of a table by score; interpolation errors are below 1e-5 noise deviations
_MARGIN = 6.0  # margin of a table beyond the outer cut points, in noise deviations


class Latent(NamedTuple):
    """Statistics of the latent numbers, given levels and scores.

    Attributes
    ----------
    means : ndarray of shape (n,)
        The expected latent numbers.
    log_likelihood : float
        Log likelihood of the levels.
    squares : float
        Sum of squared differences of the levels and their expectations given the scores.
    """

    means: Floats
    log_likelihood: float = math.nan
    squares: float = math.nan


@dataclass(frozen=True, eq=False)
class OrdinalScale:
    """The levels of a scale and the cut points between them.

    Attributes
    ----------
    levels : float64 ndarray of shape (L,)
        Ascending.
    cuts : float64 ndarray of shape (L - 1,)
    anchors : tuple of two int
        The cut points that are not learned.
    """

    levels: Doubles
    cuts: Doubles
    anchors: tuple[int, int]

    @classmethod
    def of(cls, values: Floats) -> Self:
        """Return the scale of all distinct values, with cut points half way between neighbours.

        Raises
        ------
        ArgumentError
            If all values are equal.
        """
        levels, counts = np.unique(values, return_counts=True)
        if len(levels) < 2:
            raise ArgumentError(
                f"An ordinal scale needs 2 different values; got {len(levels)}."
            )
        below = np.cumsum(counts)[:-1] / len(values)
        low, high = (int(np.argmin(np.abs(below - share))) for share in _ANCHORS)
        if low == high:
            low, high = (
                (low, low + 1) if low + 1 < len(below) else (max(low - 1, 0), low)
            )
        scale = cls(levels.astype(np.float64), np.zeros(0), (low, high))
        return replace(scale, cuts=scale.between)

    @property
    def between(self) -> Doubles:
        """Numbers half way between levels, shape (L - 1,)."""
        return (self.levels[1:] + self.levels[:-1]) / 2

    def codes(self, values: Floats) -> NDArray[np.uint16]:
        """Return the index of the level nearest to each value."""
        return np.searchsorted(self.between, values, side="right").astype(np.uint16)

    def latent(
        self,
        codes: NDArray[np.integer[Any]],
        scores: Floats,
        noise: float,
        spread: float = 0.0,
        *,
        only_means: bool = False,
    ) -> Latent:
        """Return the means of normal distributions around scores, truncated to the level intervals.

        `spread` is the variance of the scores, which affects only the squares. Statistics are
        interpolated in tables by level and score; for scores far outside the scale they are
        computed.
        """
        means, totals = np.empty_like(scores), np.zeros(2)
        scale = (a.tobytes() for a in (self.levels, self.cuts))
        low, step, tables = _tables(*scale, noise, spread, scores.dtype.char)
        tables = tables[:1] if only_means else tables
        for part in pieces(len(scores), _BLOCK):
            share = (scores[part] - low) / step
            inside = (share >= 0) & (share < _POINTS - 1)
            outside = None if inside.all() else np.flatnonzero(~inside)
            if outside is not None:
                share[outside] = 0
            at = share.astype(np.int32)
            share -= at
            at += codes[part] * np.int32(_POINTS)
            found = [table[at] for table in tables]
            for each, table in zip(found, tables, strict=True):
                each += share * (table[at + 1] - each)
            if outside is not None:
                given = codes[part][outside], scores[part][outside].astype(np.float64)
                for each, exact in zip(
                    found, self._exact(*given, noise, spread), strict=False
                ):
                    each[outside] = exact
            means[part] = found[0]
            if not only_means:
                totals += [each.sum(dtype=np.float64) for each in found[1:]]
        return Latent(means) if only_means else Latent(means, *totals.tolist())

    def _exact(
        self,
        codes: NDArray[np.integer[Any]],
        scores: Doubles,
        noise: float,
        spread: float,
    ) -> tuple[Doubles, Doubles, Doubles]:
        """Return latent means, log likelihoods and squared errors of the levels at the scores."""
        deviation = math.sqrt(noise)
        lower, upper, turned = self._interval(codes, scores, deviation)
        mass = _mass(lower, upper)
        means = scores + deviation * turned * (_density(lower) - _density(upper)) / mass
        off = self.expected(scores, noise + spread) - self.levels[codes]
        return means, np.log(mass), off**2

    def drawn(
        self,
        codes: NDArray[np.uint16],
        scores: Floats,
        noise: float,
        rng: np.random.Generator,
    ) -> Floats:
        """Return draws from the truncated normal distributions."""
        from scipy.special import ndtri

        draws, deviation = np.empty_like(scores), math.sqrt(noise)
        for part in pieces(len(scores), _BLOCK):
            at = scores[part].astype(np.float64)
            lower, upper, turned = self._interval(codes[part], at, deviation)
            low, high = normal_cdf(lower), normal_cdf(upper)
            inside = ndtri(np.maximum(low + rng.random(len(at)) * (high - low), _LEAST))
            draws[part] = at + deviation * turned * np.clip(inside, lower, upper)
        return draws

    def expected(self, scores: Floats, variance: Floats | float) -> Floats:
        """Return expected entries, given means and variances of the latent numbers."""
        deviation = np.sqrt(np.broadcast_to(variance, scores.shape))
        expected, steps = np.empty_like(scores), np.diff(self.levels)
        for part in pieces(len(scores), _BLOCK):
            total = np.full(scores[part].shape, self.levels[-1])
            for cut, step in zip(self.cuts, steps, strict=True):
                total -= step * normal_cdf((cut - scores[part]) / deviation[part])
            expected[part] = total
        return expected

    def probabilities(self, scores: Floats, variance: Floats | float) -> Doubles:
        """Return the probability of each level, shape (n, L)."""
        deviation = np.sqrt(np.broadcast_to(variance, scores.shape)).astype(np.float64)
        below = normal_cdf(
            (self.cuts - scores[:, None].astype(np.float64)) / deviation[:, None]
        )
        ends = np.zeros((len(scores), 1)), np.ones((len(scores), 1))
        return np.diff(np.hstack([ends[0], below, ends[1]]), axis=1)

    def variances(self, scores: Floats, variance: Floats | float) -> Doubles:
        """Return the variance of each entry, given means and variances of the latent numbers."""
        chances = self.probabilities(scores, variance)
        found: Doubles = chances @ self.levels**2 - (chances @ self.levels) ** 2
        return np.maximum(found, 0)

    def quantile(
        self, scores: Floats, variance: Floats | float, share: float
    ) -> Doubles:
        """Return the quantile of each entry at the probability `share`.

        The probability of a level is spread evenly over the numbers nearest to that level.
        """
        below = np.cumsum(self.probabilities(scores, variance), axis=1)
        below = np.column_stack([np.zeros(len(below)), below])
        between = self.between
        ends = 2 * self.levels[0] - between[0], 2 * self.levels[-1] - between[-1]
        edges = np.concatenate([ends[:1], between, ends[1:]])
        at, rows = (
            np.clip((below < share).sum(axis=1), 1, len(self.levels)),
            np.arange(len(below)),
        )
        low, high = below[rows, at - 1], below[rows, at]
        inside = np.divide(
            share - low, high - low, out=np.ones_like(low), where=high > low
        )
        found: Doubles = edges[at - 1] + inside.clip(0, 1) * np.diff(edges)[at - 1]
        return found

    def outside(self, scores: Floats, variance: float, level: float) -> float:
        """Return the nominal tail probability for which intervals cover a share `level` of entries.

        An interval between two quantiles contains a level if it contains the middle of its
        probability, so that the coverage differs from the nominal one. The result is exact on
        average over entries with these scores, if the model is true.
        """
        chances = self.probabilities(scores, variance)
        middle = np.cumsum(chances, axis=1) - chances / 2
        tails = 2 * np.minimum(middle, 1 - middle).ravel()
        order = np.argsort(tails)
        mass = np.cumsum(chances.ravel()[order]) / len(scores)
        return float(tails[order][np.searchsorted(mass[:-1], 1 - level)])

    def learned(
        self, codes: NDArray[np.uint16], scores: Floats, noise: float, spread: float
    ) -> tuple[Self, float]:
        """Return a scale and a noise variance under which the levels are more likely.

        `spread` is the mean variance of the scores. Close scores of entries of a level are replaced
        by their mean. For very many entries, only a sample is used.
        """
        from scipy.optimize import minimize

        low, high, size = float(scores.min()), float(scores.max()), len(self.levels)
        if len(self.cuts) < 2 or not math.isfinite(high - low):
            return self, noise  # there is nothing to learn, not even the noise
        some = slice(None, None, -(-len(codes) // _LEARNED_FROM))
        places = ((scores[some] - low) / ((high - low) / _CELLS or 1.0)).astype(
            np.int32
        )
        places = places * np.int32(size) + codes[some].astype(np.int32)
        counts, totals = np.bincount(places), np.bincount(places, scores[some])
        cells = np.flatnonzero(counts)
        at, shares = totals[cells] / counts[cells], counts[cells] / counts.sum()
        of_cells = cells % size

        def loss(parameters: Doubles) -> tuple[float, Doubles]:
            scale, deviation = self._with(parameters[:-1]), math.exp(parameters[-1])
            lower, upper, turned = scale._interval(of_cells, at, deviation)
            mass, turns = _mass(lower, upper), turned < 0
            of_lower, of_upper = (_density(z) / mass * shares for z in (lower, upper))
            slopes = np.bincount(of_cells, np.where(turns, of_lower, of_upper), size)[
                :-1
            ]
            slopes -= np.bincount(of_cells, np.where(turns, of_upper, of_lower), size)[
                1:
            ]
            finite = [np.where(np.isfinite(z), z, 0) for z in (lower, upper)]
            by_width = float(np.sum(finite[1] * of_upper - finite[0] * of_lower))
            value = -float(shares @ np.log(mass)) + spread / (2 * deviation**2)
            free = scale._by_gaps(parameters[:-1], slopes / deviation)
            return value, np.append(-free, by_width - spread / deviation**2)

        start = np.append(np.log(np.diff(self.cuts)), 0.5 * math.log(noise))
        found = minimize(
            loss, start, jac=True, method="L-BFGS-B", options={"maxiter": _STEPS}
        )
        if not (np.isfinite(found.x).all() and found.fun <= loss(start)[0]):
            return self, noise
        return self._with(found.x[:-1]), math.exp(2 * found.x[-1])

    def _interval(
        self, codes: NDArray[np.integer[Any]], scores: Doubles, deviation: float
    ) -> tuple[Doubles, Doubles, Doubles]:
        """Return standardised ends of the levels' intervals, with intervals above zero mirrored.

        The third array is -1 for mirrored intervals, otherwise 1. Mirroring keeps the precision of
        small probabilities.
        """
        ends = np.concatenate([[-np.inf], self.cuts, [np.inf]])
        lower, upper = (
            (ends[codes] - scores) / deviation,
            (ends[codes + 1] - scores) / deviation,
        )
        turns = lower > 0
        return (
            np.where(turns, -upper, lower),
            np.where(turns, -lower, upper),
            np.where(turns, -1.0, 1.0),
        )

    def _with(self, log_gaps: Doubles) -> Self:
        """Return the scale with gaps between cut points in these ratios."""
        places = np.append(0, np.cumsum(np.exp(log_gaps)))
        low, high = self.anchors
        width = (self.cuts[high] - self.cuts[low]) / (places[high] - places[low])
        return replace(self, cuts=self.cuts[low] + (places - places[low]) * width)

    def _by_gaps(self, log_gaps: Doubles, by_cuts: Doubles) -> Doubles:
        """Return the derivatives by the logarithms of gaps, given those by the cut points."""
        low, high = self.anchors
        gaps, size = np.diff(self.cuts), len(log_gaps)
        after = np.arange(size + 1)[:, None] > np.arange(size)
        moved = (
            after * 1.0 - after[low]
        ) * gaps  # of cut points, before the width is restored
        share = (
            (after[high] * 1.0 - after[low]) * gaps / (self.cuts[high] - self.cuts[low])
        )
        moved -= np.outer(self.cuts - self.cuts[low], share)
        slopes: Doubles = by_cuts @ moved
        return slopes


@lru_cache(
    maxsize=4
)  # learned scales change with each sweep; the final one is used again
def _tables(
    levels: bytes, cuts: bytes, noise: float, spread: float, kind: str
) -> tuple[float, float, list[Floats]]:
    """Return the first score, the step, and tables of `OrdinalScale._exact`, level by level."""
    scale = OrdinalScale(np.frombuffer(levels), np.frombuffer(cuts), (0, 0))
    margin = _MARGIN * math.sqrt(noise)
    places, step = np.linspace(
        scale.cuts[0] - margin, scale.cuts[-1] + margin, _POINTS, retstep=True
    )
    codes = np.arange(len(scale.levels))[:, None]
    tables = scale._exact(codes, places, noise, spread)
    # Interpolation at the last point also reads the entry after it, with the weight 0.
    return (
        float(places[0]),
        float(step),
        [np.append(each, 0).astype(kind) for each in tables],
    )


@cache
def _table() -> tuple[Doubles, Doubles, Doubles]:
    """Return points of the normal distribution, its function and its density at each."""
    at = np.arange(_LOW * _PER_UNIT, _HIGH * _PER_UNIT + 1) / _PER_UNIT
    below = [0.5 * math.erfc(-z / math.sqrt(2)) for z in at.tolist()]
    return at, np.array(below), _density(at)


def normal_cdf(z: Floats) -> Doubles:
    """Return the distribution function of the standard normal; 0 or 1 beyond -38 and 9.

    Uses a third-order expansion around the nearest point of a table. It is as fast as SciPy's
    function, whose import loads a second BLAS. The relative error is 1e-14 near 0 and at most 1e-8.
    """
    z = np.clip(z, _LOW, _HIGH).astype(np.float64)
    at, below, density = _table()
    nearest = np.rint((z - _LOW) * _PER_UNIT).astype(np.intp)
    x = at[nearest]
    d = z - x
    found: Doubles = below[nearest] + density[nearest] * d * (
        1 - d * (x / 2 + d * (1 - x * x) / 6)
    )
    return found


def _density(z: Doubles) -> Doubles:
    return np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)


def _mass(lower: Doubles, upper: Doubles) -> Doubles:
    mass: Doubles = np.maximum(normal_cdf(upper) - normal_cdf(lower), _LEAST)
    return mass

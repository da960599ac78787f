"""Confidence intervals and paired tests over users."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

Doubles = NDArray[np.float64]

FLIPS = 9999
"""Number of random sign flips; the smallest possible p value is 1 / 10,000."""

_BLOCK = 2**20  # weights or signs drawn together: 8 MB
_SHUFFLED, _FEWEST = 10**9, 999  # most random numbers for shuffles, fewest shuffles
_SURE = 9.0  # standard deviations that a sum of random signs does not reach (p < 6e-18)
_ROUNDING = 1e-5  # tolerance for rounding errors of sums in single precision


@dataclass(frozen=True, slots=True, eq=False)
class Ratio:
    """Metric of the form ``transform(sum(above) / sum(below))``, with an increasing transform.

    Both arrays have shape (n_users,), and are 0 for users without the metric.
    """

    above: Doubles
    below: Doubles
    transform: Callable[[Doubles], Doubles] | None = None

    @classmethod
    def mean(cls, values: Doubles) -> Ratio:
        """Return the mean over the users whose value is not NaN."""
        is_known = ~np.isnan(values)
        return cls(np.where(is_known, values, 0.0), is_known.astype(np.float64))

    @property
    def value(self) -> float:
        """Value of the metric; NaN if no user has it."""
        total = float(self.below.sum())
        return (
            float(self.of(self.above.sum(keepdims=True) / total)[0])
            if total
            else float("nan")
        )

    def of(self, ratios: Doubles) -> Doubles:
        """Return the transformed ratios."""
        return ratios if self.transform is None else self.transform(ratios)


def bootstrap(ratios: list[Ratio], resamples: int, random_state: int = 0) -> Doubles:
    """Return metrics on bootstrap samples of users, shape (resamples, n_ratios).

    All metrics share the same samples.
    """
    n_users = len(ratios[0].above)
    above = np.column_stack([ratio.above for ratio in ratios])
    below, inverse = np.unique(
        [ratio.below for ratio in ratios], axis=0, return_inverse=True
    )
    rng = np.random.default_rng(random_state)
    samples = np.empty((resamples, len(ratios)))
    step = max(1, _BLOCK // n_users)
    for start in range(0, resamples, step):
        n = min(step, resamples - start)
        drawn = rng.integers(0, n_users, (n, n_users)) + np.arange(n)[:, None] * n_users
        counts = np.bincount(drawn.ravel(), minlength=n * n_users)
        weights = counts.reshape(n, n_users).astype(np.float64)
        totals = (weights @ below.T)[:, inverse.ravel()]
        nothing = np.full(totals.shape, np.nan)
        samples[start : start + n] = np.divide(
            weights @ above, totals, out=nothing, where=totals > 0
        )
    return np.column_stack([ratio.of(samples[:, j]) for j, ratio in enumerate(ratios)])


def percentiles(replicates: Doubles, confidence: float) -> Doubles:
    """Return the bounds of the percentile interval of each column, shape (2, n_columns)."""
    tail = 50 * (1 - confidence)
    return np.asarray(np.nanpercentile(replicates, [tail, 100 - tail], axis=0))


def jackknife(
    value: float, influence: Doubles, confidence: float
) -> tuple[float, float]:
    """Return the interval of a metric from its changes when each user is left out.

    ``value -+ z se``, with ``se^2 = (n - 1) / n sum (d_u - mean d)^2``, where the influence d_u,
    shape (n_users,), is the metric without the user minus the metric.
    """
    n = len(influence)
    if n < 2:
        return float("nan"), float("nan")
    error = float(np.sqrt((n - 1) * np.var(influence)))
    half = NormalDist().inv_cdf((1 + confidence) / 2) * error
    return value - half, value + half


def sign_flip(
    differences: Doubles, flips: int = FLIPS, random_state: int = 0
) -> Doubles:
    """Return the two-sided p value of each column of differences of two models, paired by user.

    The p value is ``(1 + number of flips with |sum +-d| >= |sum d|) / (1 + flips)``. This is the
    paired permutation test ``scipy.stats.permutation_test(permutation_type="samples")``, with the
    same signs for all columns. A sum of random signs times d_u exceeds ``t |d|`` with a probability
    of at most ``2 exp(-t^2 / 2)`` (Hoeffding), so columns with t > 9 need no flips.

    Examples
    --------
    >>> sign_flip(np.array([[1.0, 0.0], [2.0, 0.0], [3.0, 0.0], [4.0, 0.0]])).round(1)
    array([0.1, 1. ])
    """
    observed = np.abs(differences.sum(axis=0))
    scale = np.sqrt(np.square(differences).sum(axis=0))
    p_values = np.full(differences.shape[1], 1 / (flips + 1))
    p_values[scale == 0] = 1.0
    undecided = np.flatnonzero((scale > 0) & (observed < _SURE * scale))
    if not len(undecided):
        return p_values
    units = (differences[:, undecided] / scale[undecided]).astype(np.float32)
    limit = observed[undecided] / scale[undecided] - _ROUNDING
    n_users, totals = len(units), units.sum(axis=0)
    rng = np.random.default_rng(random_state)
    n_extreme = np.zeros(len(undecided), dtype=np.int64)
    row = 4 * math.ceil(n_users / 32)  # bytes are drawn in fours
    step = max(1, _BLOCK // n_users)
    for start in range(0, flips, step):
        n = min(step, flips - start)
        bits = np.frombuffer(rng.bytes(n * row), dtype=np.uint8).reshape(n, row)
        positive = np.unpackbits(bits, axis=1, count=n_users).astype(np.float32)
        sums = 2 * (positive @ units) - totals
        n_extreme += np.count_nonzero(np.abs(sums) >= limit, axis=0)
    p_values[undecided] = (1 + n_extreme) / (1 + flips)
    return p_values


def shuffled_groups(
    ratios: list[Ratio],
    second: NDArray[np.bool_],
    shuffles: int = FLIPS,
    random_state: int = 0,
) -> Doubles:
    """Return the two-sided p value of the difference of each metric between two groups of users.

    The p value of this randomization test is ``(1 + number of shuffles with |difference| >=
    |observed|) / (1 + shuffles)``. Each shuffle assigns every user to a group at random, as the
    hash of the user's id does in a test of two models. With more than 100,000 users, the number of
    shuffles is reduced. `second` marks the users of the second group, shape (n_users,).

    Examples
    --------
    >>> clicks = Ratio(np.array([0.0, 1, 0, 1, 5, 6, 7, 6]), np.ones(8))
    >>> shuffled_groups([clicks], np.arange(8) >= 4).round(2)
    array([0.02])
    """
    above = np.column_stack([ratio.above for ratio in ratios])
    below = np.column_stack([ratio.below for ratio in ratios])
    totals = above.sum(axis=0), below.sum(axis=0)

    def difference(weights: NDArray[np.floating]) -> Doubles:
        sum_above, of_ours = weights @ above, weights @ below
        with np.errstate(invalid="ignore", divide="ignore"):  # an empty group
            return np.asarray(
                sum_above / of_ours - (totals[0] - sum_above) / (totals[1] - of_ours)
            )

    n_users, share = len(second), float(second.mean())
    observed = np.abs(difference(second.astype(np.float64)))
    shuffles = min(shuffles, max(_FEWEST, _SHUFFLED // n_users))
    rng = np.random.default_rng(random_state)
    n_extreme = np.zeros(len(ratios), dtype=np.int64)
    step = max(1, _BLOCK // n_users)
    for start in range(0, shuffles, step):
        drawn = (
            rng.random((min(step, shuffles - start), n_users), dtype=np.float32) < share
        )
        differences = np.abs(difference(drawn.astype(np.float64)))
        n_extreme += np.count_nonzero(
            ~(differences < observed * (1 - _ROUNDING)), axis=0
        )
    return np.asarray((1 + n_extreme) / (1 + shuffles))


def holm(p_values: ArrayLike) -> Doubles:
    """Adjust p values for multiple tests by Holm's method, which bounds the family-wise error rate.

    The i-th smallest of m p values becomes ``max over j <= i of min(1, (m - j + 1) p_(j))``.

    Examples
    --------
    >>> holm([0.01, 0.04, 0.03])
    array([0.03, 0.06, 0.06])
    """
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p, kind="stable")
    steps = np.minimum(1.0, (len(p) - np.arange(len(p))) * p[order])
    adjusted = np.empty_like(p)
    adjusted[order] = np.maximum.accumulate(steps)
    return adjusted

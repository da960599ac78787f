"""Confidence intervals and paired tests over users."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np
import polars as pl
from numpy.typing import ArrayLike
from scipy.special import ndtr, ndtri, stdtrit

from recsys.data.arrays import Array, Doubles, Mask

ERRORS = {
    "rmse": ("squared_error", "ratings"),
    "mae": ("absolute_error", "ratings"),
    # If whole items or users are held out:
    "rmse_warm": ("warm_squared_error", "warm_ratings"),
    "rmse_cold": ("cold_squared_error", "cold_ratings"),
}
"""Error metrics by name: the columns of the values of users whose ratio they are."""

FLIPS = 9999
"""Number of random sign flips; the smallest possible p value is 1 / 10,000."""

_BLOCK = 2**20  # weights or signs drawn together: 8 MB
_MOST_RANDOM = 10**9  # maximum number of random numbers for shuffles
_FEWEST_SHUFFLES = 999
_SURE = 9.0  # standard deviations that a sum of random signs does not reach (p < 6e-18)
_SHORTEST = 5000  # users of both groups at which intervals at any time are shortest
_FEWEST_USERS = 20  # of each group, for an interval at any time
_FLATTEST = 1e-3  # of the BCa transform, whose quantiles tend to 1 there
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
    def mean(cls, values: Doubles, weights: Array | None = None) -> Ratio:
        """Return the (weighted) mean over the users whose value is not NaN."""
        has_value = ~np.isnan(values)
        below = has_value.astype(np.float64)
        if weights is not None:
            below *= weights
        above = np.where(below > 0, values * below, 0.0)
        return cls(above, below)

    @property
    def value(self) -> float:
        """Value of the metric; NaN if no user has it."""
        total = float(self.below.sum())
        if not total:
            return math.nan
        ratio = self.above.sum(keepdims=True) / total
        return float(self.of(ratio)[0])

    def of(self, ratios: Doubles) -> Doubles:
        """Return the transformed ratios."""
        return ratios if self.transform is None else self.transform(ratios)

    def take(self, users: Mask) -> Ratio:
        """Return the ratio over some users."""
        return replace(self, above=self.above[users], below=self.below[users])

    def leave_one_out(self) -> Doubles:
        """Return the metric without each user, shape (n_users,); NaN for users who lack it."""
        above = self.above.sum() - self.above
        below = self.below.sum() - self.below
        ratios = np.full(len(above), np.nan)
        has_value = (self.below > 0) & (below > 0)
        np.divide(above, below, out=ratios, where=has_value)
        with np.errstate(invalid="ignore"):  # a sum of squares that rounds below zero
            return self.of(ratios)


def ratio_of(
    values: pl.DataFrame,
    name: str,
    weights: str | None = None,
) -> Ratio:
    """Return a metric as a ratio over users, of columns of their values.

    It is an error, or the mean of a column, weighted by the column `weights` if there is one.
    """
    if name not in ERRORS:
        column = values[name].to_numpy().astype(np.float64)
        return Ratio.mean(column, values[weights].to_numpy() if weights else None)
    above, below = (
        values[column].to_numpy().astype(np.float64) for column in ERRORS[name]
    )
    # rmse = sqrt(sum of squared errors / number of ratings)
    return Ratio(above, below, np.sqrt if name.startswith("rmse") else None)


def bootstrap(
    ratios: list[Ratio],
    resamples: int,
    random_state: int = 0,
) -> Doubles:
    """Return metrics on bootstrap samples of users, shape (resamples, n_ratios).

    All metrics share the same samples.
    """
    n_users = len(ratios[0].above)
    above = np.column_stack([ratio.above for ratio in ratios])
    # Most metrics have the same users, so their sums below the line are computed once.
    below, column_of = np.unique(
        [ratio.below for ratio in ratios], axis=0, return_inverse=True
    )
    rng = np.random.default_rng(random_state)
    blocks = []
    for n in _block_sizes(resamples, n_users):
        drawn = rng.integers(0, n_users, (n, n_users))
        # Number the users of each sample apart, to count all samples at once.
        drawn += np.arange(n)[:, None] * n_users
        counts = np.bincount(drawn.ravel(), minlength=n * n_users)
        weights = counts.reshape(n, n_users).astype(np.float64)
        sums = weights @ above
        totals = weights @ below.T
        totals = totals[:, column_of.ravel()]
        values = np.full(sums.shape, np.nan)
        np.divide(sums, totals, out=values, where=totals > 0)
        blocks.append(values)
    samples = np.concatenate(blocks)
    for column, ratio in enumerate(ratios):
        samples[:, column] = ratio.of(samples[:, column])
    return samples


def _block_sizes(n: int, n_users: int) -> Iterator[int]:
    """Yield numbers of rows of n_users that take little memory, n in all."""
    step = max(1, _BLOCK // n_users)
    while n > 0:
        size = min(step, n)
        yield size
        n -= size


def bca(
    samples: Doubles,
    value: float,
    leave_one_out: Doubles,
    confidence: float,
) -> tuple[float, float]:
    """Return the bias-corrected and accelerated (BCa) bootstrap interval of a metric.

    The ends are the quantiles ``F(z0 + (z0 + z) / (1 - a (z0 + z)))`` of the samples, where F is
    the standard normal distribution and ``z0 = F^-1(share of samples below the value)`` corrects
    the bias. With the changes ``d_u = mean - value without user u``, the acceleration
    ``a = sum d_u^3 / (6 (sum d_u^2)^(3/2))`` corrects the skewness. z is the quantile of
    Student's t times ``sqrt(n / (n - 1))``, because samples of few users scatter too little.

    Parameters
    ----------
    samples : ndarray of shape (n_samples,)
        Values of the metric on bootstrap samples; NaN if a sample has no value.
    leave_one_out : ndarray of shape (n_users,)
        Values without each user; NaN for users without the metric.

    References
    ----------
    Efron (1987), "Better bootstrap confidence intervals"; Hesterberg (2015), "What teachers should
    know about the bootstrap".

    Examples
    --------
    >>> clicks = Ratio.mean(np.array([0.0, 0, 0, 0, 1, 1, 2, 9]))
    >>> samples = bootstrap([clicks], 1000)[:, 0]
    >>> low, high = bca(samples, clicks.value, clicks.leave_one_out(), 0.95)
    >>> bool(0.2 < low < clicks.value < np.percentile(samples, 97.5) < high)
    True
    """
    samples = samples[~np.isnan(samples)]
    left_out = leave_one_out[~np.isnan(leave_one_out)]
    n_users = len(left_out)
    if n_users < 2 or not len(samples):
        return math.nan, math.nan
    changes = left_out.mean() - left_out
    variance = np.square(changes).sum()
    acceleration = 0.0
    if variance > 0:
        acceleration = np.power(changes, 3).sum() / (6 * variance**1.5)
    # Half of the ties count as below, and one sample is on each side.
    n_below = np.count_nonzero(samples < value) + np.count_nonzero(samples <= value)
    bias = ndtri((n_below + 1) / (2 * len(samples) + 2))
    tails = np.array([1 - confidence, 1 + confidence]) / 2
    quantiles = math.sqrt(n_users / (n_users - 1)) * stdtrit(n_users - 1, tails)
    shifted = bias + quantiles
    slope = np.maximum(1 - acceleration * shifted, _FLATTEST)
    low, high = np.quantile(samples, ndtr(bias + shifted / slope))
    return float(low), float(high)


def intervals(
    ratios: list[Ratio],
    resamples: int,
    confidence: float,
    random_state: int = 0,
) -> Doubles:
    """Return the BCa interval of each metric, shape (2, n_ratios); all share their samples.

    Without samples, it is NaN.
    """
    if not resamples:
        return np.full((2, len(ratios)), np.nan)
    samples = bootstrap(ratios, resamples, random_state)
    ends = [
        bca(column, ratio.value, ratio.leave_one_out(), confidence)
        for ratio, column in zip(ratios, samples.T, strict=True)
    ]
    return np.array(ends).T


def estimates(
    functions: Sequence[Callable[..., Doubles]],
    ratios: list[Ratio],
    resamples: int,
    confidence: float,
    random_state: int = 0,
) -> list[tuple[float, float, float]]:
    """Return functions of all the metrics with BCa intervals, which share their samples."""
    values = [np.array(ratio.value) for ratio in ratios]
    left_out = [ratio.leave_one_out() for ratio in ratios]
    samples = None
    if resamples:
        samples = bootstrap(ratios, resamples, random_state).T
    estimated = []
    for function in functions:
        value = float(function(*values))
        low = high = math.nan
        if samples is not None:
            sampled = function(*samples)
            low, high = bca(sampled, value, function(*left_out), confidence)
        estimated.append((value, low, high))
    return estimated


def jackknife(
    value: float,
    influence: Doubles,
    confidence: float,
) -> tuple[float, float]:
    """Return the interval of a metric from its changes when each user is left out.

    ``value -+ z se``, with ``se^2 = (n - 1) / n sum (d_u - mean d)^2``, where the influence d_u,
    shape (n_users,), is the metric without the user minus the metric.
    """
    n = len(influence)
    if n < 2:
        return math.nan, math.nan
    variance = (n - 1) * np.var(influence)
    quantile = NormalDist().inv_cdf((1 + confidence) / 2)
    half = quantile * float(np.sqrt(variance))
    return value - half, value + half


def standard_error(ratio: Ratio) -> float:
    """Return the standard error of a ratio of sums over users, by the delta method.

    For ``R = sum(a) / sum(b)``, it is ``sqrt(n / (n - 1) sum((a_u - R b_u)^2)) / sum(b)``.
    """
    n_users = len(ratio.above)
    if n_users < 2:
        return math.nan
    total = ratio.below.sum()
    residuals = ratio.above - ratio.above.sum() / total * ratio.below
    variance = np.square(residuals).sum() * n_users / (n_users - 1)
    return float(np.sqrt(variance) / total)


def always_factor(n_users: float, confidence: float) -> float:
    """Return how many standard errors a difference does not exceed at any number of users.

    With v = n rho^2, the difference of two groups of n users together stays within
    ``sqrt(2 (v + 1) / v log(sqrt(v + 1) / alpha))`` standard errors of the true one for all n at
    once, with a probability of at least ``1 - alpha`` (asymptotically). So a test may be looked at
    every day. rho is chosen for the shortest interval at 5,000 users.

    References
    ----------
    Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas (2024), "Time-uniform central limit theory and
    asymptotic confidence sequences".
    """
    alpha = 1 - confidence
    v = n_users / _SHORTEST * _scale(alpha)
    logarithm = math.log(math.sqrt(v + 1) / alpha)
    return math.sqrt(2 * (v + 1) / v * logarithm)


def at_any_time(
    a: Ratio,
    b: Ratio,
    confidence: float,
) -> tuple[float | None, float | None, float | None]:
    """Return the interval and p value of ``b - a`` that hold however often one looks.

    None for fewer than 20 users, or no events, in a group: the variance is unknown then. The
    p value is the level at which 0 is at the end of the interval, with rho as for the confidence.
    """
    few = False
    for ratio in (a, b):
        few |= len(ratio.above) < _FEWEST_USERS
        few |= not ratio.above.any()
    error = math.hypot(standard_error(a), standard_error(b))
    if few or not error:
        return None, None, None
    n_users = len(a.above) + len(b.above)
    difference = b.value - a.value
    half = always_factor(n_users, confidence) * error
    v = n_users / _SHORTEST * _scale(1 - confidence)
    # The level at which `always_factor` is this number of standard errors.
    squared = (difference / error) ** 2
    tail = math.exp(-squared * v / (2 * (v + 1)))
    p_value = min(1.0, math.sqrt(v + 1) * tail)
    return difference - half, difference + half, p_value


def _scale(alpha: float) -> float:
    """Return n rho^2 at the number of users with the shortest interval."""
    logarithm = -2 * math.log(alpha)
    return logarithm + math.log(1 + logarithm)


def sign_flip(
    differences: Doubles,
    flips: int = FLIPS,
    random_state: int = 0,
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
    n_users, n_columns = differences.shape
    observed = np.abs(differences.sum(axis=0))
    squares = np.square(differences)
    scale = np.sqrt(squares.sum(axis=0))
    p_values = np.full(n_columns, 1 / (flips + 1))
    p_values[scale == 0] = 1.0
    is_open = observed < _SURE * scale
    undecided = np.flatnonzero(is_open & (scale > 0))
    if not len(undecided):
        return p_values
    scale = scale[undecided]
    units = differences[:, undecided] / scale
    units = units.astype(np.float32)
    limit = observed[undecided] / scale - _ROUNDING
    totals = units.sum(axis=0)
    rng = np.random.default_rng(random_state)
    n_undecided = len(undecided)
    n_extreme = np.zeros(n_undecided, dtype=np.int64)
    n_bytes = 4 * math.ceil(n_users / 32)  # bytes are drawn in fours
    for n in _block_sizes(flips, n_users):
        random_bytes = rng.bytes(n * n_bytes)
        drawn = np.frombuffer(random_bytes, dtype=np.uint8)
        rows = drawn.reshape(n, n_bytes)
        bits = np.unpackbits(rows, axis=1, count=n_users)
        # With signs 2 b - 1 of bits b, the sum is 2 sum(b d) - sum(d).
        sums = bits.astype(np.float32) @ units
        is_extreme = np.abs(2 * sums - totals) >= limit
        n_extreme += np.count_nonzero(is_extreme, axis=0)
    p_values[undecided] = (1 + n_extreme) / (1 + flips)
    return p_values


def shuffled_groups(
    ratios: list[Ratio],
    second: Mask,
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

    total_above = above.sum(axis=0)
    total_below = below.sum(axis=0)

    def difference(is_second: Mask) -> Doubles:
        weights = is_second.astype(np.float64)
        above_second = weights @ above
        below_second = weights @ below
        above_first = total_above - above_second
        below_first = total_below - below_second
        with np.errstate(invalid="ignore", divide="ignore"):  # an empty group
            of_second = above_second / below_second
            of_first = above_first / below_first
        return np.asarray(np.abs(of_second - of_first))

    n_users = len(second)
    share = float(second.mean())
    limit = difference(second) * (1 - _ROUNDING)
    most = max(_FEWEST_SHUFFLES, _MOST_RANDOM // n_users)
    shuffles = min(shuffles, most)
    rng = np.random.default_rng(random_state)
    n_extreme = np.zeros(len(ratios), dtype=np.int64)
    for n in _block_sizes(shuffles, n_users):
        drawn = rng.random((n, n_users), dtype=np.float32)
        # Undefined differences count as extreme.
        is_extreme = ~(difference(drawn < share) < limit)
        n_extreme += np.count_nonzero(is_extreme, axis=0)
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
    n = len(p)
    order = np.argsort(p, kind="stable")
    n_left = np.arange(n, 0, -1)
    steps = np.minimum(1.0, n_left * p[order])
    adjusted = np.empty_like(p)
    adjusted[order] = np.maximum.accumulate(steps)
    return adjusted


def adjusted(frame: pl.DataFrame, *keys: str) -> pl.DataFrame:
    """Add the column `adjusted` to p values, by Holm's method over the rows with equal keys."""
    p_value = pl.col("p_value").map_batches(holm, return_dtype=pl.Float64)
    return frame.with_columns(adjusted=p_value.over(keys))

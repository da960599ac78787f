"""Confidence intervals and paired tests."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recsys.evaluation.metrics import Counts, Doubles, Lists, gini_of_counts

__all__ = [
    "FLIPS",
    "Ratio",
    "bootstrap",
    "coverage_without",
    "gini_without",
    "holm",
    "jackknife",
    "percentiles",
    "sign_flip",
]

_BLOCK = 2**20  # weights of users at a time: 8 MB


@dataclass(frozen=True, slots=True, eq=False)
class Ratio:
    """A metric as ``transform(sum above / sum below)``.

    Attributes
    ----------
    above : float64 ndarray of shape (n_users,)
        0 for a user whom the metric leaves out.
    below : float64 ndarray of shape (n_users,)
        As well.
    transform : callable, optional
        Of an array; increasing.
    """

    above: Doubles
    below: Doubles
    transform: Callable[[Doubles], Doubles] | None = None

    @classmethod
    def mean(cls, values: Doubles) -> Ratio:
        """Return the mean over the users whose value is not NaN."""
        known = ~np.isnan(values)
        return cls(np.where(known, values, 0.0), known.astype(np.float64))

    @property
    def value(self) -> float:
        """The metric; NaN if it leaves everybody out."""
        total = float(self.below.sum())
        return float(self.of(self.above.sum(keepdims=True) / total)[0]) if total else float("nan")

    def of(self, ratios: Doubles) -> Doubles:
        """Return the metric of ratios."""
        return ratios if self.transform is None else self.transform(ratios)


def bootstrap(ratios: list[Ratio], resamples: int, random_state: int = 0) -> Doubles:
    """Resample users; what each metric would have been.

    Parameters
    ----------
    ratios : list of Ratio
        Of the same users.
    resamples : int
    random_state : int

    Returns
    -------
    float64 ndarray of shape (resamples, n_ratios)
        NaN where a sample has nobody whom the metric counts.
    """
    n_users = len(ratios[0].above)
    above = np.column_stack([ratio.above for ratio in ratios])
    below, place = _distinct([ratio.below for ratio in ratios])
    rng = np.random.default_rng(random_state)
    found = np.empty((resamples, len(ratios)))
    step = max(1, _BLOCK // n_users)
    for start in range(0, resamples, step):
        weights = _weights(rng, min(step, resamples - start), n_users)
        totals = (weights @ below)[:, place]
        nothing = np.full(totals.shape, np.nan)
        found[start : start + step] = np.divide(
            weights @ above, totals, out=nothing, where=totals > 0
        )
    return np.column_stack([ratio.of(found[:, j]) for j, ratio in enumerate(ratios)])


def percentiles(replicates: Doubles, confidence: float) -> Doubles:
    """Return the bounds of the percentile interval of each column, shape (2, n_columns)."""
    tail = 50 * (1 - confidence)
    bounds: Doubles = np.nanpercentile(replicates, [tail, 100 - tail], axis=0)
    return bounds


def jackknife(value: float, without: Doubles, confidence: float) -> tuple[float, float]:
    """Return the interval of a metric from what it changes by without each user in turn.

    ``value -+ z se``, with ``se^2 = (n - 1) / n sum (d_u - mean d)^2``.

    Parameters
    ----------
    value : float
    without : float64 ndarray of shape (n_users,)
        d_u, the metric without the user minus the metric.
    confidence : float
    """
    n = len(without)
    if n < 2:
        return float("nan"), float("nan")
    error = float(np.sqrt((n - 1) * np.var(without)))
    half = NormalDist().inv_cdf((1 + confidence) / 2) * error
    return value - half, value + half


def coverage_without(lists: Lists, counts: Counts) -> Doubles:
    """How coverage changes without each user: minus the items that nobody else is recommended.

    Parameters
    ----------
    lists : int32 ndarray of shape (n_users, N)
        Of some or all users.
    counts : int ndarray of shape (n_items,)
        How often each item is recommended, to all users.
    """
    alone = (counts == 1)[lists] & (lists >= 0)
    changes: Doubles = -np.count_nonzero(alone, axis=1) / len(counts)
    return changes


def gini_without(lists: Lists, counts: Counts) -> Doubles:
    """How the Gini index changes without each user.

    Without a user, each count of the user's items is one less. Sorted, a count that falls below
    its equals becomes the first of them: of the t items of a list with the same count, which begins
    at rank a, the weighted sum loses ``a + (a + 1) + ... + (a + t - 1)``.

    Parameters
    ----------
    lists, counts
        As in `coverage_without`.
    """
    n_items = len(counts)
    before = gini_of_counts(counts)
    ascending = np.sort(counts)
    weighted = float(np.dot(np.arange(1, n_items + 1, dtype=np.float64), ascending))
    given = lists >= 0
    rank_of = (np.searchsorted(ascending, counts) + 1).astype(np.int32)
    first = np.where(given, rank_of[lists], np.int32(0))
    first.sort(axis=1)
    lost = (first + _place_among_equals(first)) * (first > 0)
    total = ascending.sum() - np.count_nonzero(given, axis=1)
    rest = 2 * (weighted - lost.sum(axis=1)) - (n_items + 1) * total
    after: NDArray[np.float64] = np.divide(
        rest, n_items * total, out=np.zeros(len(lists)), where=total > 0
    )
    return after - before


def _place_among_equals(rows: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return the place of each number among its equals, in rows that are sorted."""
    columns = np.arange(rows.shape[1], dtype=np.int32)
    is_first = np.ones(rows.shape, dtype=np.bool_)
    is_first[:, 1:] = rows[:, 1:] != rows[:, :-1]
    starts = np.maximum.accumulate(np.where(is_first, columns, 0), axis=1)
    return columns - starts


def _weights(rng: np.random.Generator, n_samples: int, n_users: int) -> Doubles:
    """Return how often each user is drawn in each sample, shape (n_samples, n_users)."""
    drawn = rng.integers(0, n_users, (n_samples, n_users))
    drawn += np.arange(n_samples)[:, None] * n_users
    counts = np.bincount(drawn.ravel(), minlength=n_samples * n_users)
    return counts.reshape(n_samples, n_users).astype(np.float64)


def _distinct(columns: list[Doubles]) -> tuple[Doubles, list[int]]:
    """Return the different columns, and for each column which of them it is."""
    kept: list[Doubles] = []
    places = []
    for column in columns:
        same = (i for i, other in enumerate(kept) if np.array_equal(other, column))
        place = next(same, len(kept))
        if place == len(kept):
            kept.append(column)
        places.append(place)
    return np.column_stack(kept), places


FLIPS = 9999
"""Random choices of signs; the least p value is one in 10,000."""

_BLOCK = 2**20  # signs at a time
_SURE = 9.0  # standard deviations that no sum of random signs reaches (below 6e-18)
_ROUNDING = 1e-5  # of a sum in single precision


def sign_flip(differences: Doubles, flips: int = FLIPS, random_state: int = 0) -> Doubles:
    """Return the two-sided p value of each column of differences between two models.

    ``(1 + number of flips with |sum +-d| >= |sum d|) / (1 + flips)``.

    Parameters
    ----------
    differences : float64 ndarray of shape (n_users, n_tests)
        Paired: user by user, the same signs are flipped in all columns. 0 for a user to be left
        out.
    flips : int
    random_state : int

    Returns
    -------
    float64 ndarray of shape (n_tests,)

    Notes
    -----
    A sum of n random signs times d_u exceeds ``t |d|`` with a probability of at most
    ``2 exp(-t^2 / 2)`` (Hoeffding), so beyond 9 no flips are tried.

    Examples
    --------
    >>> sign_flip(np.array([[1.0, 0.0], [2.0, 0.0], [3.0, 0.0], [4.0, 0.0]])).round(1)
    array([0.1, 1. ])
    """
    observed = np.abs(differences.sum(axis=0))
    scale = np.sqrt(np.square(differences).sum(axis=0))
    p_values = np.full(differences.shape[1], 1 / (flips + 1))
    p_values[scale == 0] = 1.0
    open_ones = np.flatnonzero((scale > 0) & (observed < _SURE * scale))
    if len(open_ones):
        units = (differences[:, open_ones] / scale[open_ones]).astype(np.float32)
        limit = observed[open_ones] / scale[open_ones] - _ROUNDING
        reached = _count_flips(units, limit, flips, random_state)
        p_values[open_ones] = (1 + reached) / (1 + flips)
    return p_values


def holm(p_values: ArrayLike) -> Doubles:
    """Adjust p values of several tests, so that the chance of any false finding stays at the level.

    The i-th smallest of m becomes ``max over j <= i of min(1, (m - j + 1) p_(j))``.

    Parameters
    ----------
    p_values : array_like of shape (n_tests,)

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


def _count_flips(
    units: NDArray[np.float32], limit: Doubles, flips: int, random_state: int
) -> NDArray[np.int64]:
    """Count the random signs under which a column's sum reaches its limit."""
    n_users = len(units)
    whole = units.sum(axis=0)
    rng = np.random.default_rng(random_state)
    reached = np.zeros(units.shape[1], dtype=np.int64)
    row = 4 * math.ceil(n_users / 32)  # bytes are drawn in fours
    step = max(1, _BLOCK // n_users)
    for start in range(0, flips, step):
        n = min(step, flips - start)
        bits = np.frombuffer(rng.bytes(n * row), dtype=np.uint8).reshape(n, row)
        kept = np.unpackbits(bits, axis=1, count=n_users).astype(np.float32)
        sums = 2 * (kept @ units) - whole
        reached += np.count_nonzero(np.abs(sums) >= limit, axis=0)
    return reached

"""Confidence intervals over users: who else might have been asked.

Most metrics are ratios of sums over users: a mean over users has a value each above and a one
below; the mean squared error has a user's squared errors above and the number of the user's
ratings below. Those get percentile bootstrap intervals: users are drawn with repetition, as many as
there are, the same ones for all metrics and models, so that differences have intervals as well.

Coverage and Gini are not such ratios. A bootstrap would mislead, since fewer different users are
recommended fewer different items; they get jackknife intervals: the metric without each user in
turn gives the standard error.

References
----------
Efron and Tibshirani (1993), "An introduction to the bootstrap", chapters 11 and 13.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from recsys.evaluation.beyond import gini_of_counts
from recsys.evaluation.metrics import Counts, Doubles, Lists

__all__ = ["Ratio", "bootstrap", "coverage_without", "gini_without", "jackknife", "percentiles"]

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


def bootstrap(ratios: list[Ratio], resamples: int, seed: int = 0) -> Doubles:
    """Resample users; what each metric would have been.

    Parameters
    ----------
    ratios : list of Ratio
        Of the same users.
    resamples : int
    seed : int

    Returns
    -------
    float64 ndarray of shape (resamples, n_ratios)
        NaN where a sample has nobody whom the metric counts.
    """
    n_users = len(ratios[0].above)
    above = np.column_stack([ratio.above for ratio in ratios])
    below, place = _distinct([ratio.below for ratio in ratios])
    rng = np.random.default_rng(seed)
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

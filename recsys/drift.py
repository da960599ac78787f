"""Drift of ratings: differences between new and known ratings in their values and items."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from recsys.data.ratings import Ratings
from recsys.errors import DataError

SHIFT = 0.25
"""Stability index above which two distributions are usually considered different."""

Doubles = npt.NDArray[np.float64]

_GROUPS = 10
_LEAST = 10_000  # minimum number of known ratings to compare with
_TIMES = 10  # minimum ratio of known to new ratings
_QUANTILE = 2.3263  # 99% quantile of the normal distribution


@dataclass(frozen=True, slots=True)
class Stability:
    """Population stability index of two samples, and its 99% quantile without a change.

    The index is the Jeffreys divergence, the sum of ``(q - p) ln(q / p)`` over groups with the
    shares p before and q now. If both samples have the same distribution,
    ``index / (1 / n + 1 / m)`` has a chi-squared distribution with ``n_groups - 1`` degrees of
    freedom.

    Attributes
    ----------
    index : float
        The population stability index. An empty group counts as half a rating.
    chance : float
        The 99% quantile of the index for samples of this size from the same distribution.
    before, now : float64 ndarrays of shape (n_groups,)
        Shares of the groups.
    groups : tuple of str
        Names of the groups.

    References
    ----------
    Siddiqi (2006), "Credit risk scorecards", for the index and its bounds. Yurdakul and Naranjo
    (2020), "Statistical properties of the population stability index", for its distribution.
    """

    index: float
    chance: float
    before: Doubles
    now: Doubles
    groups: tuple[str, ...]

    @property
    def is_shift(self) -> bool:
        """True if the index is at least `SHIFT` and larger than `chance`."""
        return self.index >= SHIFT and self.index > self.chance

    @property
    def verdict(self) -> str:
        """The difference in words."""
        if self.is_shift:
            described = "a shift"
        elif self.index <= self.chance:
            described = "no more than by chance"
        else:
            described = "a little" if self.index < SHIFT / 2 else "some"
        return f"{described} ({SHIFT:g} or more is a shift)"


def stability(
    before: npt.ArrayLike,
    now: npt.ArrayLike,
    groups: tuple[str, ...] | None = None,
) -> Stability:
    """Compute the stability index of two samples from their counts in the same groups.

    Parameters
    ----------
    before, now : array_like of shape (n_groups,)
        Counts of the groups.
    groups : tuple of str, optional
        Names of the groups.

    Raises
    ------
    DataError
        If the counts have different shapes, or a sample is empty.

    Examples
    --------
    >>> same, other = stability([50, 50], [500, 500]), stability([50, 50], [900, 100])
    >>> round(same.index, 2), round(other.index, 2), same.is_shift, other.is_shift
    (0.0, 0.88, False, True)
    """
    earlier = np.asarray(before, np.float64)
    later = np.asarray(now, np.float64)
    if earlier.shape != later.shape or earlier.ndim != 1:
        raise DataError("The counts of both samples must be of the same groups.")
    n = float(earlier.sum())
    m = float(later.sum())
    if not (n and m):
        raise DataError("There is nothing to compare: a sample is empty.")
    is_filled = (earlier + later) > 0
    # An empty group counts as half a rating, so that the logarithm is finite.
    p = np.maximum(earlier[is_filled], 0.5) / n
    q = np.maximum(later[is_filled], 0.5) / m
    divergences = (q - p) * np.log(q / p)
    index = float(divergences.sum())
    freedom = max(1, len(p) - 1)
    # Wilson and Hilferty's approximation of the quantile of chi-squared.
    spread = 2 / (9 * freedom)
    quantile = freedom * (1 - spread + _QUANTILE * spread**0.5) ** 3
    chance = quantile * (1 / n + 1 / m)
    if groups is None:
        numbers = range(1, len(earlier) + 1)
        groups = tuple(map(str, numbers))
    return Stability(index, chance, earlier / n, later / m, groups)


def latest(known: Ratings, n_new: int) -> npt.NDArray[np.int64] | None:
    """Return the positions of the known ratings to compare with new ones, or None for all.

    They are the newest ones: ten times the number of new ratings, and at least 10,000.
    """
    n = max(_LEAST, _TIMES * n_new)
    if known.seconds is None or n >= known.n_ratings:
        return None
    return np.argpartition(known.seconds, -n)[-n:]


def rating_stability(known: Ratings, new: Ratings) -> Stability | None:
    """Return the stability of the values of ratings, or None for implicit feedback.

    The groups are the distinct values, or the deciles of the known values if there are more than
    20.
    """
    if known.implicit or new.implicit or not new.n_ratings:
        return None
    recent = latest(known, new.n_ratings)
    values, before = known.distribution()
    if recent is not None:
        values, before = np.unique(known.values_at(recent), return_counts=True)
    new_values, now = new.distribution()
    grades = np.union1d(values, new_values)
    if len(grades) > 2 * _GROUPS:
        share = np.cumsum(before) / before.sum()
        tenths = np.searchsorted(share, np.arange(1, _GROUPS) / _GROUPS)
        deciles = values[np.minimum(tenths, len(values) - 1)]
        edges = np.unique(deciles).astype(np.float64)
        ends = [f"{edge:.3g}" for edge in edges]
        names = (*(f"to {end}" for end in ends), f"above {ends[-1]}")
    else:
        edges = (grades[:-1] + grades[1:]) / 2
        names = tuple(f"{grade:g}" for grade in grades)
    n_groups = len(names)
    groups = np.searchsorted(edges, values)
    new_groups = np.searchsorted(edges, new_values)
    earlier = np.bincount(groups, weights=before, minlength=n_groups)
    later = np.bincount(new_groups, weights=now, minlength=n_groups)
    return stability(earlier, later, names)


def popularity_stability(known: Ratings, new: Ratings) -> Stability | None:
    """Return the stability of the popularity of rated items, or None if all of them are new.

    Each group of items has a tenth of all known ratings, from the most popular to the least popular
    items. Ratings of new items are ignored.
    """
    index_of = known.items.find(new.items.values)
    item_indices = index_of[new.indices]
    item_indices = item_indices[item_indices >= 0]
    counts = known.counts("item")
    item_indices = item_indices[counts[item_indices] > 0]
    if not len(item_indices):
        return None
    order = np.argsort(-counts, kind="stable")
    sorted_counts = counts[order]
    share = (np.cumsum(sorted_counts) - sorted_counts / 2) / counts.sum()
    tenth = (share * _GROUPS).astype(np.int64)
    group = np.empty(known.n_items, np.int64)
    group[order] = np.minimum(tenth, _GROUPS - 1)
    recent = latest(known, new.n_ratings)
    indices = known.indices
    if recent is not None:
        indices = indices[recent]
    before = np.bincount(group[indices], minlength=_GROUPS)
    now = np.bincount(group[item_indices], minlength=_GROUPS)
    sizes = np.bincount(group[counts > 0], minlength=_GROUPS)
    names = tuple(
        f"tenth {n} ({size:,} items)" for n, size in enumerate(sizes, start=1)
    )
    return stability(before, now, names)

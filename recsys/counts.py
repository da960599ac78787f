"""Counts and amounts that stand where ratings could: plays, pieces bought, hours."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from recsys.ratings import Ratings

__all__ = ["are_counts", "as_contacts"]

_HIGHEST_GRADE = 10
_TAIL = 5


def are_counts(values: npt.NDArray[np.floating]) -> bool:
    """Return whether values can only be counts or amounts: positive, with a long tail.

    Grades gather in the upper half of their scale. Of counts most are small, and a few are many
    times as large: the highest is above 10, and at least half are no more than a fifth of it.

    Parameters
    ----------
    values : ndarray of shape (n_ratings,)

    Examples
    --------
    >>> are_counts(np.array([1.0, 2.0, 1.0, 5.0, 210.0]))
    True
    >>> are_counts(np.array([70.0, 85.0, 20.0, 100.0]))
    False
    """
    highest = values.max(initial=0)
    if highest <= _HIGHEST_GRADE or values.min(initial=1) <= 0:
        return False
    return bool(2 * np.count_nonzero(values <= highest / _TAIL) >= len(values))


def as_contacts(ratings: Ratings) -> Ratings:
    """Return the ratings as implicit feedback: there was contact, and nothing more is known."""
    return replace(ratings, implicit=True, values=np.ones_like(ratings.values))

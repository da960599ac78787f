"""The choice of a model from the data."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from recsys.data.ratings import Ratings
from recsys.messages import counted
from recsys.models.registry import model_class

__all__ = ["Choice", "are_counts", "as_implicit", "choose_model", "default_factors"]

_FOR_RATINGS = "als"
_FOR_INTERACTIONS = "spectral"
_PRODUCTS = 1.5e12  # of factors, for the scores of all items for all users
_PRODUCTS_EACH = 2e5  # the same for each interaction, where these are many
_HIGHEST_GRADE = 10
_TAIL = 5


@dataclass(frozen=True, slots=True)
class Choice:
    """A model by name, with the parameters that the size of the ratings suggests.

    `ratings` are implicit feedback where their values say nothing. `str()` has model and reason.
    """

    model: str
    ratings: Ratings
    reason: str
    params: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        sizes = [counted(value, name.removesuffix("s")) for name, value in self.params.items()]
        return f"{', '.join([self.model, *sizes])}: {self.reason}"


def choose_model(ratings: Ratings) -> Choice:
    """Choose a model, and its size, by the data.

    ===========================================  ==================================================
    data                                         choice
    ===========================================  ==================================================
    no ratings, or all the same (and more than   implicit feedback: `spectral`, whose number of
    one)                                         singular vectors follows the numbers of users
                                                 and items
    counts or amounts: positive, and few of      the same; the amounts are not used
    them large
    ratings of different values                  `als`, with its default number of factors, but no
                                                 more than there are users or items
    ===========================================  ==================================================

    The regularisation of `als` needs no rule: it is in units of the ratings' standard deviation
    and grows with the number of ratings, so that its default serves any size and scale.

    Examples
    --------
    >>> import polars as pl
    >>> likes = pl.DataFrame({"user": [1, 1, 2], "item": [7, 8, 7], "rating": [1, 1, 1]})
    >>> choice = choose_model(Ratings.from_frame(likes))
    >>> choice.model, choice.reason, choice.ratings.implicit
    ('spectral', 'all ratings are 1, which makes them implicit feedback', True)
    """
    if ratings.implicit:
        weighted = bool((ratings.values != 1).any())
        kind = "weighted interactions" if weighted else "interactions"
        return _for_interactions(ratings, f"there are no ratings, only {kind}")
    low, high = ratings.values.min(initial=np.inf), ratings.values.max(initial=-np.inf)
    if low == high and ratings.n_ratings > 1:
        reason = f"all ratings are {low:g}, which makes them implicit feedback"
        return _for_interactions(as_implicit(ratings), reason)
    if are_counts(ratings.values):
        reason = f"the ratings look like counts or amounts, from {low:g} to {high:g}"
        return _for_interactions(as_implicit(ratings), f"{reason}: implicit feedback")
    factors = min(model_class(_FOR_RATINGS)().get_params()["factors"], *ratings.shape)
    reason = f"the ratings are between {low:g} and {high:g}"
    return Choice(_FOR_RATINGS, ratings, reason, {"factors": factors})


def _for_interactions(ratings: Ratings, reason: str) -> Choice:
    factors = default_factors(*ratings.shape, ratings.n_ratings)
    return Choice(_FOR_INTERACTIONS, ratings, reason, {"factors": factors})


def default_factors(n_users: int, n_items: int, n_interactions: int) -> int:
    """Return the number of singular vectors for data of this size.

    It is a sixteenth of the users or items, at most 1,024, and fewer where the scores of all items
    for all users would take too long.

    Examples
    --------
    >>> default_factors(610, 9724, 100_000), default_factors(29858, 40981, 810_128)
    (38, 1024)
    >>> default_factors(162541, 59047, 25_000_000)
    520
    """
    within_time = max(_PRODUCTS, _PRODUCTS_EACH * n_interactions) / (n_users * n_items)
    return min(1024, max(1, min(n_users, n_items) // 16), max(64, int(within_time)))


def are_counts(values: npt.NDArray[np.floating]) -> bool:
    """Return whether values can only be counts or amounts: positive, with a long tail.

    Grades gather in the upper half of their scale. Of counts most are small, and a few are many
    times as large: the highest is above 10, and at least half are no more than a fifth of it.

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


def as_implicit(ratings: Ratings) -> Ratings:
    """Return the ratings as implicit feedback, with ones as values."""
    return replace(ratings, implicit=True, values=np.ones_like(ratings.values))

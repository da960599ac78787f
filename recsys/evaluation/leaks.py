"""Test data in what a model learns from, caught before anything is measured."""

from __future__ import annotations

from typing import Any

import numpy as np

from recsys.errors import DataError
from recsys.evaluation.parts import Mask, has_ratings, pair_keys, times_of
from recsys.ratings import Ratings

__all__ = ["refuse_future", "refuse_known_users", "refuse_overlap"]


def refuse_overlap(seen: Ratings, test: Ratings) -> None:
    """Refuse test pairs that are among the seen ones; both have the same indices.

    Raises
    ------
    DataError
        Naming the first such pair and how many there are.
    """
    known, asked = pair_keys(seen), pair_keys(test)
    if not len(known):
        return
    places = np.minimum(np.searchsorted(known, asked), len(known) - 1)
    common = np.flatnonzero(known[places] == asked)
    if not len(common):
        return
    user = test.users.take(test.user_index_of_nonzeros()[common[:1]])[0]
    item = test.items.take(test.indices[common[:1]])[0]
    raise DataError(
        f"{_some(len(common), 'test ratings', 'a training rating', 'training ratings')} as well, "
        f"the first of user {user!r} for item {item!r}; what is tested must not have been learnt."
    )


def refuse_known_users(train: Ratings, test: Ratings) -> None:
    """Refuse training ratings of users who are folded in for the test.

    Raises
    ------
    DataError
        Naming the first such user and how many there are.
    """
    places = train.users.find(test.users.values)
    both = np.flatnonzero((places >= 0) & has_ratings(train)[places])
    if len(both):
        raise DataError(
            f"{len(both):,} of the held-out users {'has' if len(both) == 1 else 'have'} training "
            "ratings, the first "
            f"{test.users.take(both[:1])[0]!r}; who is folded in must not have been learnt from."
        )


def refuse_future(train: Ratings, test: Ratings, cut: int) -> None:
    """Refuse training ratings from the time of the cut on, and test ratings before it.

    Raises
    ------
    DataError
        With the first such time and how many ratings there are.
    """
    what = "a split at a point in time"
    for part, wrong in ((train, times_of(train, what) >= cut), (test, times_of(test, what) < cut)):
        if wrong.any():
            raise DataError(_on_the_wrong_side(part, wrong, cut, is_training=part is train))


def _on_the_wrong_side(part: Ratings, wrong: Mask, cut: int, *, is_training: bool) -> str:
    name, right = ("training", "before then") if is_training else ("test", "from then on")
    first = times_of(part, name)[wrong][0]
    place = "on the wrong side of the cut"
    return (
        f"{_some(np.count_nonzero(wrong), f'{name} ratings', place, place)} at "
        f"{cut}, the first at {first}; they must be {right}."
    )


def _some(n: int | np.integer[Any], of: str, one: str, several: str) -> str:
    return f"{n:,} of the {of} {f'is {one}' if n == 1 else f'are {several}'}"

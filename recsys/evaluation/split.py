"""Ratings in two parts: one to learn from, one to be tested on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recsys.errors import DataError
from recsys.ratings import Ratings

__all__ = ["Split", "random_split", "split_from_pair"]


@dataclass(frozen=True, slots=True)
class Split:
    """Training and test ratings with the same users and items; unpacks as ``train, test``.

    Attributes
    ----------
    train, test : Ratings
        A user or item has the same index in both.
    unknown_users, unknown_items : int
        Users and items of the test data that the training data do not have.
    unknown_ratings : int
        Test ratings that were left out because their user or item is unknown.
    """

    train: Ratings
    test: Ratings
    unknown_users: int = 0
    unknown_items: int = 0
    unknown_ratings: int = 0

    def __iter__(self) -> Iterator[Ratings]:
        return iter((self.train, self.test))

    @property
    def cold_users(self) -> int:
        """Number of users who have ratings in the test part only."""
        in_train, in_test = (np.diff(part.indptr) > 0 for part in self)
        return int(np.count_nonzero(in_test & ~in_train))

    @property
    def cold_items(self) -> int:
        """Number of items that have ratings in the test part only."""
        in_train, in_test = (np.bincount(part.indices, minlength=part.n_items) > 0 for part in self)
        return int(np.count_nonzero(in_test & ~in_train))


def random_split(ratings: Ratings, test_fraction: float = 0.1, seed: int = 0) -> Split:
    """Hold out a random part of the ratings.

    The test part is the first ``round(n * test_fraction)`` entries of
    ``numpy.random.default_rng(seed).permutation(n)``, as positions among the n ratings in CSR
    order (by user, then item). Both parts keep all users and items, those too that are left
    without ratings.

    Raises
    ------
    DataError
        If either part would be empty.
    """
    n = ratings.n_ratings
    n_test = round(n * test_fraction) if 0 < test_fraction < 1 else 0
    if not 0 < n_test < n:
        raise DataError(
            "test_fraction must lie between 0 and 1 and leave ratings for both parts; "
            f"got {test_fraction} of {n:,} ratings."
        )
    held_out = np.zeros(n, dtype=np.bool_)
    held_out[np.random.default_rng(seed).permutation(n)[:n_test]] = True
    return Split(ratings.take(~held_out), ratings.take(held_out))


def split_from_pair(train: Ratings, test: Ratings) -> Split:
    """Make a split of two data sets that were read separately.

    Test ratings get the indices of the training data; those with an unknown user or item are
    left out, and counted.

    Raises
    ------
    DataError
        If a pair of user and item is in both, or no test rating is left.
    """
    users, items = train.users.find(test.users.values), train.items.find(test.items.values)
    rows, columns = users[test.user_index_of_nonzeros()], items[test.indices]
    known = np.flatnonzero((rows >= 0) & (columns >= 0))
    if not len(known):
        raise DataError("No test rating has both a user and an item of the training ratings.")
    aligned = _aligned(train, test, rows[known], columns[known], known)
    _refuse_overlap(train, aligned)
    return Split(
        train,
        aligned,
        unknown_users=int(np.count_nonzero(users < 0)),
        unknown_items=int(np.count_nonzero(items < 0)),
        unknown_ratings=test.n_ratings - len(known),
    )


def _aligned(
    train: Ratings,
    test: Ratings,
    rows: NDArray[np.int64],
    columns: NDArray[np.int64],
    positions: NDArray[np.int64],
) -> Ratings:
    """Return the ratings at `positions` of `test`, under the given indices of `train`."""
    order = np.lexsort((columns, rows))
    indptr = np.zeros(train.n_users + 1, dtype=np.int64)
    np.cumsum(np.bincount(rows, minlength=train.n_users), out=indptr[1:])
    taken = positions[order]
    return replace(
        train,
        indptr=indptr,
        indices=columns[order].astype(np.int32),
        values=test.values[taken],
        timestamps=None if test.timestamps is None else test.timestamps[taken],
        implicit=test.implicit,
        n_duplicates=test.n_duplicates,
    )


def _refuse_overlap(train: Ratings, test: Ratings) -> None:
    common = np.flatnonzero(np.isin(_keys(test), _keys(train), assume_unique=True))
    if not len(common):
        return
    user = train.users.take(test.user_index_of_nonzeros()[common[:1]])[0]
    item = train.items.take(test.indices[common[:1]])[0]
    raise DataError(
        f"{len(common):,} of the test ratings are training ratings as well, the first of user "
        f"{user!r} for item {item!r}; what is tested must not have been learnt."
    )


def _keys(ratings: Ratings) -> NDArray[Any]:
    """Return one number for each pair of user and item."""
    return ratings.user_index_of_nonzeros() * np.int64(ratings.n_items) + ratings.indices

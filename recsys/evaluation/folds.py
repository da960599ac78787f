"""Cross-validation: every rating is tested once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

import numpy as np
from numpy.typing import NDArray

from recsys.errors import DataError
from recsys.evaluation.split import Split, parted
from recsys.fitted import check_ratings
from recsys.ratings import Ratings

__all__ = ["Folds", "k_fold"]

FOLDS = 5


class Folds(Sequence[Split]):
    """The splits of `k_fold`, each made when it is asked for."""

    def __init__(self, ratings: Ratings, parts: list[NDArray[np.int64]], seed: int) -> None:
        self._ratings = ratings
        self._parts = parts
        self._seed = seed

    def __len__(self) -> int:
        return len(self._parts)

    @overload
    def __getitem__(self, place: int) -> Split: ...

    @overload
    def __getitem__(self, place: slice) -> list[Split]: ...

    def __getitem__(self, place: int | slice) -> Split | list[Split]:
        if isinstance(place, slice):
            return [self[each] for each in range(len(self))[place]]
        held_out = np.zeros(self._ratings.n_ratings, dtype=np.bool_)
        held_out[self._parts[place]] = True
        number = range(1, len(self) + 1)[place]
        parameters = {"fold": number, "folds": len(self), "seed": self._seed}
        return parted(self._ratings, held_out, "k-fold", **parameters)


def k_fold(ratings: Ratings, folds: int = FOLDS, seed: int = 0) -> Folds:
    """Part the ratings at random into folds, each of which is the test part of one split.

    The folds are consecutive parts of ``numpy.random.default_rng(seed).permutation(n)``, the first
    n modulo `folds` of them one rating longer.

    Returns
    -------
    sequence of Split
        Each is made when it is asked for, so that one at a time is in memory.

    Raises
    ------
    DataError
        If folds is below 2 or above the number of ratings.

    Examples
    --------
    >>> import polars as pl
    >>> rows = {"user": [1, 1, 2, 2, 3], "item": [7, 8, 7, 8, 7]}
    >>> [split.test.n_ratings for split in k_fold(Ratings.from_frame(pl.DataFrame(rows)), 3)]
    [2, 2, 1]
    """
    check_ratings(ratings)
    n = ratings.n_ratings
    if not 2 <= folds <= n:
        raise DataError(f"folds must be between 2 and the number of ratings, {n:,}; got {folds}.")
    order = np.random.default_rng(seed).permutation(n)
    return Folds(ratings, np.array_split(order, folds), seed)

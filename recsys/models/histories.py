"""Histories of users (or items) as rows of a sparse matrix, and scores explained by them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lowrank import kernels
from lowrank.kernels import row_places

if TYPE_CHECKING:
    from recsys.data.ratings import Ratings

Floats = NDArray[np.float32]
Indices = NDArray[np.int64]

_HIGHEST_GRADE = 10
_TAIL = 5


@dataclass(frozen=True, slots=True, eq=False)
class Histories:
    """Ratings of some users (or of some items), as the rows of a CSR matrix.

    `indices` are those of items (of users, in the histories of items), increasing within a row, and
    `values` the ratings, ones for implicit feedback; `times` are seconds since 1970-01-01 UTC,
    where they are known.
    """

    indptr: NDArray[np.int64]
    indices: NDArray[np.int32]
    values: Floats
    times: NDArray[np.integer[Any]] | None = None

    @classmethod
    def of(cls, ratings: Ratings) -> Histories:
        """Return the histories of the users of `ratings`, without a copy."""
        return Histories(ratings.indptr, ratings.indices, ratings.values, ratings.seconds)

    @property
    def csr(self) -> kernels.CsrArrays:
        """The arrays as the kernels take them."""
        return kernels.CsrArrays(self.indptr, self.indices, self.values)

    @property
    def n_rows(self) -> int:
        """Number of users (or items)."""
        return len(self.indptr) - 1

    @property
    def counts(self) -> NDArray[np.int64]:
        """Number of ratings of each row."""
        return np.diff(self.indptr)

    @property
    def rows(self) -> Indices:
        """Row of each rating."""
        return np.repeat(np.arange(self.n_rows), self.counts)

    def take(self, rows: Indices) -> Histories:
        """Return some of the rows, in the given order."""
        at, indptr = row_places(self.indptr, rows)
        times = None if self.times is None else self.times[at]
        return Histories(indptr, self.indices[at], self.values[at], times)


class Explanation(NamedTuple):
    """Scores of one user as sums: ``base + terms.sum(axis=1)``, to rounding.

    The base, shape (n_items,), is the score without any history; the terms, (n_items, n_ratings),
    are what each rating of the history adds, and those of features, (n_items, n_features), what
    each feature of the item, and of the user, adds. All of these are a prediction, from which a
    score may differ by `popularity`, (n_items,): what lists take off for few ratings.
    """

    base: Floats
    terms: Floats
    item_features: Floats | None = None
    user_features: Floats | None = None
    popularity: Floats | None = None


def are_counts(values: NDArray[np.floating]) -> bool:
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

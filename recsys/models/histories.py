"""Histories of users (or items) as rows of a sparse matrix, and explanations of scores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np

from lowrank import kernels
from lowrank.kernels import CsrArrays, row_places
from recsys.data.arrays import Floats, Ints, Longs, Times, positions_of
from recsys.data.kinds import EventRule

if TYPE_CHECKING:
    from lowrank.completion.feature_ridge import GroupedFeatures
    from recsys.data.csr import CSR, Events
    from recsys.data.ratings import Ratings


@dataclass(frozen=True, slots=True, eq=False)
class Histories:
    """Ratings of some users (or items) as rows of a CSR matrix.

    In histories of users, `indices` are items; in histories of items, they are users. They
    increase within a row. `values` are ratings, or ones for implicit feedback, and `times` are
    seconds since 1970-01-01 UTC, if known. `features` describe the users (or items), if there are
    any. `events` are those behind the ratings of users by a `rule`, if some pairs have several.
    `zeros` are pairs that are disliked or were only shown, with their confidences.
    """

    indptr: Longs
    indices: Ints
    values: Floats
    times: Times | None = None
    features: CsrArrays | None = None
    events: Events | None = None
    rule: EventRule | None = None
    zeros: CsrArrays | None = None

    @classmethod
    def of(cls, ratings: Ratings, features: GroupedFeatures | None = None) -> Histories:
        """Return the histories of the users of `ratings`, without a copy."""
        return Histories(
            ratings.indptr,
            ratings.indices,
            ratings.values,
            ratings.seconds,
            csr_rows(features),
            ratings.events,
            ratings.rule,
            zeros_arrays(ratings.zeros),
        )

    @classmethod
    def of_items(cls, ratings: Ratings, items: Longs) -> Histories:
        """Return the histories of some items of `ratings`, without features."""
        from scipy.sparse import csr_array  # needed by updates only

        numbered = np.arange(ratings.nnz), ratings.indices, ratings.indptr
        positions = csr_array(numbered, shape=ratings.shape)[:, items].T.tocsr()
        at = positions.data
        zeros = ratings.zeros
        of_items = None
        if zeros is not None:
            arrays = zeros.values.at(), zeros.indices, zeros.indptr
            of_items = kernels.csr_arrays(
                csr_array(arrays, shape=ratings.shape)[:, items].T.tocsr()
            )
        times = None if ratings.seconds is None else ratings.seconds[at]
        return Histories(
            positions.indptr.astype(np.int64),
            positions.indices.astype(np.int32),
            ratings.values_at(at),
            times,
            zeros=of_items,
        )

    @property
    def csr(self) -> CsrArrays:
        """CSR arrays without the times, for the kernels."""
        return CsrArrays(self.indptr, self.indices, self.values)

    @property
    def n_rows(self) -> int:
        """Number of users (or items)."""
        return len(self.indptr) - 1

    @property
    def counts(self) -> Longs:
        """Number of ratings of each row."""
        return np.diff(self.indptr)

    @property
    def rows(self) -> Longs:
        """Row of each rating."""
        return np.repeat(np.arange(self.n_rows), self.counts)

    def pairs_of(self, events: Events) -> Longs:
        """Return the number of each event's pair of row and index; -1 for other pairs."""
        most = max(events.items.max(initial=0), self.indices.max(initial=0))
        width = np.int64(most) + 1
        of_events = events.users * width + events.items
        return positions_of(of_events, self.rows * width + self.indices)

    def take(self, rows: Longs) -> Histories:
        """Return some of the rows, in the given order."""
        # Rows are gathered, not sliced: they may be in any order, and repeated.
        at, indptr = row_places(self.indptr, rows)
        times = None if self.times is None else self.times[at]
        features = self.features
        if features is not None:
            features = _rows_taken(features, rows)
        zeros = self.zeros
        if zeros is not None:
            zeros = _rows_taken(zeros, rows)
        return Histories(
            indptr,
            self.indices[at],
            self.values[at],
            times,
            features,
            None if self.events is None else self.events.of_users(rows),
            self.rule,
            zeros,
        )

    @classmethod
    def joined(cls, rows: Sequence[Histories]) -> Histories:
        """Return ratings and features of several histories as one."""
        if len(rows) == 1:
            return rows[0]
        features = None
        if rows[0].features is not None:
            features = _joined([cast(CsrArrays, row.features) for row in rows])
        return cls(*_joined([row.csr for row in rows]), features=features)

    def row(self, number: int) -> Histories:
        """Return a single row."""
        return self.take(np.array([number]))


def zeros_arrays(zeros: CSR | None) -> CsrArrays | None:
    """Return the arrays of `Ratings.zeros` for the kernels."""
    if zeros is None:
        return None
    return CsrArrays(zeros.indptr, zeros.indices, zeros.values.at())


def csr_rows(
    features: GroupedFeatures | None, rows: Longs | None = None
) -> CsrArrays | None:
    """Return features, or some rows of them, as CSR arrays; None if there are none."""
    # Encoders leave no columns if no feature varies.
    if features is None or not features.matrix.shape[1]:
        return None
    matrix = features.matrix
    if rows is None:
        return kernels.csr_arrays(matrix.astype(np.float32, copy=False))
    # Some rows are taken before types are changed, which would copy all.
    arrays = CsrArrays(
        cast(Longs, matrix.indptr),
        matrix.indices,
        matrix.data,
    )
    taken = _rows_taken(arrays, rows)
    return CsrArrays(
        taken.indptr,
        taken.indices.astype(np.int32, copy=False),
        taken.data.astype(np.float32, copy=False),
    )


def _rows_taken(arrays: CsrArrays, rows: Longs) -> CsrArrays:
    """Return some rows of CSR arrays."""
    at, indptr = row_places(arrays.indptr, rows)
    return CsrArrays(indptr, arrays.indices[at], arrays.data[at])


def _joined(matrices: Sequence[CsrArrays]) -> CsrArrays:
    """Return the rows of several CSR matrices as one."""
    counts = np.concatenate([np.diff(matrix.indptr) for matrix in matrices])
    return CsrArrays(
        np.append(0, np.cumsum(counts)),
        np.concatenate([matrix.indices for matrix in matrices]),
        np.concatenate([matrix.data for matrix in matrices]),
    )


def rows_of(matrix: CsrArrays) -> Iterator[tuple[Ints, Floats]]:
    """Yield the columns and values of each row of a CSR matrix."""
    for start, end in pairwise(matrix.indptr):
        yield matrix.indices[start:end], matrix.data[start:end]


def sampled_rows(
    counts: Longs,
    most: int,
    generator: np.random.Generator,
) -> Longs:
    """Return random rows in ascending order, with at most `most` entries in total, at least one."""
    order = generator.permutation(len(counts))
    totals = counts[order].cumsum()
    n_sampled = max(1, int(np.searchsorted(totals, most, "right")))
    rows: Longs = np.sort(order[:n_sampled])
    return rows


class Explanation(NamedTuple):
    """Explanation of the scores of one user as sums, up to rounding.

    Attributes
    ----------
    base : ndarray of shape (n_items,)
        Score without any history.
    terms : ndarray of shape (n_items, n_ratings)
        Contribution of each rating of the history.
    item_features, user_features : ndarrays of shape (n_items, n_features) or None
        Contribution of each feature of the item, and of the user.
    popularity : ndarray of shape (n_items,) or None
        Difference between the ranking score and the prediction (the sum of the others), due to
        few ratings of the item.
    """

    base: Floats
    terms: Floats
    item_features: Floats | None = None
    user_features: Floats | None = None
    popularity: Floats | None = None

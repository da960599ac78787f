"""Sequences: the items of users in the order of time, and sums over their pairs."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lowrank import kernels
from lowrank.kernels import CsrArrays
from lowrank.kernels.retrieval import pair_rows, sparse_rows
from recsys.data.arrays import Floats, Ints, Longs, Mask
from recsys.data.csr import Events
from recsys.data.events import event_weights, repeated
from recsys.models.histories import Histories

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from recsys.data.ratings import Ratings

    Sparse = csr_array[np.float32]

LEAST_WEIGHT = 0.01  # items further back count less than this, and are left out


class Sequences(NamedTuple):
    """Items of users in the order of time, the oldest first, with their weights."""

    indptr: Longs
    items: Ints
    weights: Floats

    @property
    def n_users(self) -> int:
        """Number of users."""
        return len(self.indptr) - 1

    @property
    def lengths(self) -> Longs:
        """Number of items of each user."""
        return np.diff(self.indptr)

    @property
    def users(self) -> Ints:
        """User of each item."""
        users = np.arange(self.n_users, dtype=np.int32)
        return np.repeat(users, self.lengths)

    @property
    def lags(self) -> Longs:
        """Place of each item from the end of its sequence; the latest item has 1."""
        ends = np.repeat(self.indptr[1:], self.lengths)
        positions = np.arange(len(self.items))
        return ends - positions

    def without_last(self, which: Mask) -> Sequences:
        """Return the sequences without the last item of some users."""
        is_left_out = which[self.users] & (self.lags == 1)
        remaining = np.flatnonzero(~is_left_out)
        n_left_out = np.append(0, np.cumsum(which))
        return Sequences(
            indptr=self.indptr - n_left_out,
            items=self.items[remaining],
            weights=self.weights[remaining],
        )


def sequences_of_events(ratings: Ratings) -> Sequences:
    """Return the events of the users in the order of time; an item may come again later.

    The mean weight is 1. Grades do not count as weights: disliked items come next, too.
    """
    events = ratings.log
    # Two events of an item in the same second are one visit.
    visits = Events(events.indptr, events.items, seconds=events.seconds)
    weights = np.ones(len(events), np.float32)
    if ratings.implicit and len(events):
        weights = event_weights(events, ratings.rule)
    if ratings.events is not None:
        is_visit = Histories.of(ratings).pairs_of(events) >= 0
        is_visit &= weights > 0  # what was returned does not come next
        is_visit &= ~repeated(visits)
        visits = visits.take(is_visit)
        weights = weights[is_visit]
    weights /= weights.mean(dtype=np.float64) if len(weights) else 1
    order = _shuffled_ties(visits, ratings.in_time_order)
    return Sequences(visits.indptr, visits.items[order], weights[order])


def _shuffled_ties(events: Events, in_time_order: Mask | None) -> Longs:
    """Return an order in which events of one second are shuffled, where rows have none.

    Otherwise, the regressions would learn the order of the ids.
    """
    order = np.arange(len(events))
    if events.seconds is None or in_time_order is None or in_time_order.all():
        return order
    users = events.users
    is_same = (users[1:] == users[:-1]) & (events.seconds[1:] == events.seconds[:-1])
    is_first = np.append(True, ~is_same)[: len(order)]
    is_tied = ~is_first
    is_tied[:-1] |= is_same
    tied = np.flatnonzero(is_tied & ~in_time_order[users])
    groups = np.cumsum(is_first)[tied]
    draws = np.random.default_rng(0).random(len(tied))
    order[tied] = tied[np.lexsort((draws, groups))]
    return order


def latest_places(sequences: Sequences) -> Longs:
    """Return the last place of each item of each user, in the order of users and items."""
    n_items = int(sequences.items.max(initial=0)) + 1
    keys = sequences.users.astype(np.int64) * n_items + sequences.items
    _, from_end = np.unique(keys[::-1], return_index=True)
    places: Longs = len(keys) - 1 - from_end
    return places


def order_of_time(histories: Histories) -> Longs:
    """Return the order in which the items of each user came; as they are without times."""
    events = histories.events
    if histories.times is None:
        return np.arange(len(histories.indices))
    if events is None:
        return np.lexsort((histories.times, histories.rows))
    # Events of the same second may have an order, which their ratings have not.
    pairs = histories.pairs_of(events)
    rule = histories.rule
    if rule is not None and (events.kinds is not None or rule.policy == "sum"):
        # What was returned is not the latest.
        pairs[event_weights(events, rule.without_age()) <= 0] = -1
    is_event = np.flatnonzero(pairs >= 0)
    latest = np.zeros(len(histories.indices), np.int64)
    np.maximum.at(latest, pairs[is_event], is_event)
    return np.lexsort((latest, histories.rows))


def reach(gamma: float) -> int:
    """Return how many places back an item still counts, if its weight is ``gamma**lag``.

    Examples
    --------
    >>> reach(math.exp(-1)), reach(math.exp(-1 / 3))
    (4, 13)
    """
    if gamma == 1:  # the whole history
        return sys.maxsize
    places = math.log(LEAST_WEIGHT) / math.log(gamma)
    return max(1, int(places))


def sources(
    sequences: Sequences,
    n_items: int,
    gamma: float,
) -> Sparse:
    """Return a row for each user, in which an item j places back adds gamma^j times its weight."""
    from scipy.sparse import coo_array

    weights = recency(sequences, gamma)
    recent = np.flatnonzero(weights)
    users = sequences.users[recent]
    items = sequences.items[recent]
    shape = (sequences.n_users, n_items)
    matrix = coo_array((weights[recent], (users, items)), shape=shape)
    return matrix.tocsr()


def recency(sequences: Sequences, gamma: float) -> Floats:
    """Return the weight of each item times ``gamma**lag``, or 0 far back."""
    lags = sequences.lags.astype(np.float32)
    weights = sequences.weights * np.float32(gamma) ** lags
    weights[lags > reach(gamma)] = 0
    return weights


class PairSums(NamedTuple):
    """Sums of ``gamma**lag`` over pairs of an item and a later one of the same sequence.

    Attributes
    ----------
    sequences : Sequences
    lags : int32 ndarray
        Place of each item from the end of its sequence.
    places : CsrArrays
        The places of each item in all sequences, and their weights, shape (n_items, n_places).
    """

    sequences: Sequences
    lags: Ints
    places: CsrArrays

    @property
    def n_items(self) -> int:
        """Number of items."""
        return len(self.places.indptr) - 1

    @classmethod
    def of(cls, sequences: Sequences, n_items: int) -> PairSums:
        """Find the places of each item."""
        starts = np.arange(len(sequences.items) + 1)
        by_place = CsrArrays(starts, sequences.items, sequences.weights)
        places = kernels.transposed(by_place, n_items)
        assert isinstance(places, CsrArrays)
        return cls(sequences, sequences.lags.astype(np.int32), places)

    def rows(
        self,
        items: Longs,
        gamma: float,
        most: int,
    ) -> Sparse:
        """Return the `most` largest sums of some items with the items after them.

        The entry (i, j) of the result is of the pairs in which j comes after ``items[i]``.
        """
        from scipy.sparse import csr_array

        sequences = self.sequences
        longest = min(reach(gamma), int(sequences.lengths.max(initial=0)))
        decay = gamma ** np.arange(longest + 1)
        largest = pair_rows(
            sequences.items,
            sequences.weights,
            self.lags,
            decay.astype(np.float32),
            self.places,
            items,
            most,
        )
        arrays = (largest.data, largest.indices, largest.indptr)
        return csr_array(arrays, shape=(len(items), self.n_items))


def gram(matrix: Sparse) -> Floats:
    """Return M'M as a dense matrix."""
    rows = kernels.csr_arrays(matrix)
    n_columns = matrix.shape[1]
    columns = kernels.transposed(rows, n_columns)
    assert isinstance(columns, CsrArrays)
    return sparse_rows(columns, rows, n_columns)

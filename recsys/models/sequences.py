"""Sequences: the items of users in the order of time, and sums over their pairs."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lowrank import kernels
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

    def take(self, users: Longs) -> Sequences:
        """Return the sequences of some users."""
        places, indptr = kernels.row_places(self.indptr, users)
        return Sequences(
            indptr=indptr,
            items=self.items[places],
            weights=self.weights[places],
        )

    def matrix(self, n_items: int) -> Sparse:
        """Return the weights of the items of each user that are not 0, in their order."""
        from scipy.sparse import csr_array

        arrays = (self.weights, self.items, self.indptr)
        matrix = csr_array(arrays, shape=(self.n_users, n_items), copy=True)
        matrix.eliminate_zeros()
        return matrix

    def latest_of_each(self) -> Sequences:
        """Return the sequences with the latest place of each item alone."""
        n_items = int(self.items.max(initial=0)) + 1
        keys = self.users.astype(np.int64) * n_items + self.items
        from_end = keys[::-1]
        _, first = np.unique(from_end, return_index=True)
        last = len(keys) - 1 - first
        is_latest = np.zeros(len(keys), np.bool_)
        is_latest[last] = True
        return self._of(is_latest)

    def without_last(self, which: Mask) -> Sequences:
        """Return the sequences without the last item of some users."""
        is_of_others = ~which[self.users]
        is_earlier = self.lags > 1
        return self._of(is_of_others | is_earlier)

    def _of(self, which: Mask) -> Sequences:
        """Return some of the items."""
        n_before = np.append(0, np.cumsum(which))
        return Sequences(
            indptr=n_before[self.indptr],
            items=self.items[which],
            weights=self.weights[which],
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
    seconds = events.seconds
    if seconds is None or in_time_order is None or in_time_order.all():
        return np.arange(len(events))
    users = events.users
    draws = np.random.default_rng(0).random(len(events))
    draws[in_time_order[users]] = 0
    return np.lexsort((draws, seconds, users))


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
    weights = recency(sequences, gamma)
    return sequences._replace(weights=weights).matrix(n_items)


def recency(sequences: Sequences, gamma: float) -> Floats:
    """Return the weight of each item times ``gamma**lag``, or 0 far back."""
    lags = sequences.lags.astype(np.float32)
    weights = sequences.weights * np.float32(gamma) ** lags
    weights[lags > reach(gamma)] = 0
    return weights

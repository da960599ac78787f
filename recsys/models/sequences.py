"""Sequences: the items of users in the order of time, and sums over their pairs."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from recsys.data.arrays import Doubles, Floats, Ints, Longs, Mask
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
    events = events.take(~repeated(visits))
    weights = np.ones(len(events), np.float32)
    if ratings.implicit and len(events):
        weights = event_weights(events, ratings.rule)
        weights /= weights.mean(dtype=np.float64) or 1
    return Sequences(events.indptr, events.items, weights)


def order_of_time(histories: Histories) -> Longs:
    """Return the order in which the items of each user came; as they are without times."""
    if histories.times is None:
        return np.arange(len(histories.indices))
    return np.lexsort((histories.times, histories.rows))


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


def sources(sequences: Sequences, n_items: int, gamma: float) -> Sparse:
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


def transitions(sequences: Sequences, n_items: int, gammas: Doubles) -> list[Sparse]:
    """Return for each gamma the sums of ``gamma**lag`` over pairs of an item and a later one.

    The entry (i, j) sums the pairs in which j comes `lag` places after i.
    """
    longest = [reach(gamma) for gamma in gammas]
    pairs = _pairs_apart(sequences, n_items, 1)
    sums = [pairs * np.float32(gamma) for gamma in gammas]
    for lag in range(2, max(longest) + 1):
        pairs = _pairs_apart(sequences, n_items, lag)
        for at, gamma in enumerate(gammas):
            if lag > longest[at]:
                continue
            weight = np.float32(gamma**lag)
            sums[at] = sums[at] + pairs * weight
    return sums


def _pairs_apart(sequences: Sequences, n_items: int, lag: int) -> Sparse:
    """Return the sums of weights over pairs of an item and the one `lag` places after it."""
    from scipy.sparse import coo_array

    # An item is followed by another one after `lag` places if more places are left.
    earlier = np.flatnonzero(sequences.lags > lag)
    later = earlier + lag
    weights = sequences.weights[earlier] * sequences.weights[later]
    rows = sequences.items[earlier]
    columns = sequences.items[later]
    shape = (n_items, n_items)
    matrix = coo_array((weights, (rows, columns)), shape=shape)
    return matrix.tocsr()

"""Sequences: the items of users in the order of time, and sums over their pairs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from recsys.data.csr import Events
from recsys.data.events import event_weights
from recsys.models.histories import Histories
from recsys.models.parts import Floats, Indices

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from recsys.data.ratings import Ratings

    Sparse = csr_array[np.float32]

LEAST_WEIGHT = 0.01  # items further back count less than this, and are left out


class Sequences(NamedTuple):
    """Items of users in the order of time, the oldest first, with their weights."""

    indptr: NDArray[np.int64]
    items: NDArray[np.int32]
    weights: Floats

    @property
    def n_users(self) -> int:
        """Number of users."""
        return len(self.indptr) - 1

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Number of items of each user."""
        return np.diff(self.indptr)

    @property
    def users(self) -> NDArray[np.int32]:
        """User of each item."""
        users = np.arange(self.n_users, dtype=np.int32)
        return np.repeat(users, self.lengths)

    @property
    def lags(self) -> NDArray[np.int64]:
        """Place of each item from the end of its sequence; the latest item has 1."""
        ends = np.repeat(self.indptr[1:], self.lengths)
        return ends - np.arange(len(self.items))

    def without_last(self, which: NDArray[np.bool_]) -> Sequences:
        """Return the sequences without the last item of some users."""
        remaining = (self.lags > 1) | ~which[self.users]
        indptr = self.indptr - np.append(0, np.cumsum(which))
        return Sequences(indptr, self.items[remaining], self.weights[remaining])


def sequences_of_events(ratings: Ratings) -> Sequences:
    """Return the events of the users in the order of time; an item may come again later.

    The mean weight is 1. Grades do not count as weights: disliked items come next, too.
    """
    events = ratings.log
    events = events.take(~_come_twice(events))
    weights = np.ones(len(events), np.float32)
    if ratings.implicit and len(events):
        weights = event_weights(events, ratings.rule)
        weights /= weights.mean(dtype=np.float64) or 1
    return Sequences(events.indptr, events.items, weights)


def _come_twice(events: Events) -> NDArray[np.bool_]:
    """Return which events repeat another one of the same user, item and second."""
    repeat = np.zeros(len(events), np.bool_)
    if events.seconds is None:
        return repeat
    # Only events next to one of the same user and second are compared: they are few.
    is_tied = np.diff(events.users) == 0
    is_tied &= np.diff(events.seconds) == 0
    first = np.append(is_tied, False)
    second = np.append(False, is_tied)
    tied = np.flatnonzero(first | second)
    if not len(tied):
        return repeat
    items = events.items[tied]
    seconds = events.seconds[tied]
    users = events.users[tied]
    order = np.lexsort((items, seconds, users))
    is_same = np.ones(len(tied) - 1, np.bool_)
    for key in (items, seconds, users):
        is_same &= np.diff(key[order]) == 0
    later = order[1:]
    repeat[tied[later[is_same]]] = True
    return repeat


def order_of_time(histories: Histories) -> Indices:
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
    places = math.log(LEAST_WEIGHT) / math.log(gamma)
    return max(1, int(places))


def sources(sequences: Sequences, n_items: int, gamma: float) -> Sparse:
    """Return a row for each user, in which an item j places back adds gamma^j times its weight."""
    from scipy.sparse import coo_array

    values = recency(sequences, gamma)
    recent = np.flatnonzero(values)
    entries = (sequences.users[recent], sequences.items[recent])
    shape = (sequences.n_users, n_items)
    return coo_array((values[recent], entries), shape=shape).tocsr()


def recency(sequences: Sequences, gamma: float) -> Floats:
    """Return the weight of each item times ``gamma**lag``, or 0 far back."""
    lags = sequences.lags.astype(np.float32)
    weights = sequences.weights * np.float32(gamma) ** lags
    weights[lags > reach(gamma)] = 0
    return weights


def transitions(
    sequences: Sequences, n_items: int, gammas: NDArray[np.float64]
) -> list[Sparse]:
    """Return for each gamma the sums of ``gamma**lag`` over pairs of an item and a later one.

    The entry (i, j) sums the pairs in which j comes `lag` places after i.
    """
    longest = [reach(gamma) for gamma in gammas]
    pairs = _pairs_apart(sequences, n_items, 1)
    sums = [pairs * np.float32(gamma) for gamma in gammas]
    for lag in range(2, max(longest) + 1):
        pairs = _pairs_apart(sequences, n_items, lag)
        for at, gamma in enumerate(gammas):
            if lag <= longest[at]:
                sums[at] = sums[at] + pairs * np.float32(gamma**lag)
    return sums


def _pairs_apart(sequences: Sequences, n_items: int, lag: int) -> Sparse:
    """Return the sums of weights over pairs of an item and the one `lag` places after it."""
    from scipy.sparse import coo_array

    # An item is followed by another one after `lag` places if more places are left.
    earlier = np.flatnonzero(sequences.lags > lag)
    later = earlier + lag
    weights = sequences.weights[earlier] * sequences.weights[later]
    pairs = (sequences.items[earlier], sequences.items[later])
    return coo_array((weights, pairs), shape=(n_items, n_items)).tocsr()

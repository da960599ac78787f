"""Habits: decayed shares of a user's baskets, by which items come again."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from lowrank.kernels import CsrArrays
from recsys.data.arrays import Doubles, Floats, Times
from recsys.data.csr import Events
from recsys.data.events import event_weights
from recsys.models.parameters import parameter

if TYPE_CHECKING:
    from recsys.models.histories import Histories

_DECAY = math.exp(-1 / 10)  # of a basket that is one further back


def habit_parameter() -> Any:
    """Declare the parameter `habit`."""
    return parameter(
        0.0,
        "Share of the user's own repeats in a score, below 1, for lists with seen items.",
        minimum=0,
        below=1,
    )


def habits(histories: Histories, *, weighted: bool) -> Floats:
    r"""Return a share for each entry of histories: of the user's baskets, those with the item.

    A basket is what a user has at one time. One that is j places back counts
    :math:`e^{-j / 10}`; the order within a basket does not count. Without times, a share
    is relative to the item that the user has most often.

    Parameters
    ----------
    histories : Histories
    weighted : bool
        Whether values are weights, which multiply the shares.

    References
    ----------
    Hu et al. (2020), "Modeling personalized item frequency information for next-basket
    recommendation" (TIFU-KNN).
    """
    events = histories.events
    if events is None:
        events = Events(histories.indptr, histories.indices, seconds=histories.times)
        weights = histories.values if weighted else np.ones(len(events), np.float32)
    elif weighted and histories.rule is not None:
        # Habits have a decay of their own.
        weights = event_weights(events, histories.rule.without_age())
    else:
        weights = np.ones(len(events), np.float32)
    totals = np.ones(histories.n_rows)
    counts = weights.astype(np.float64)
    if events.seconds is not None:
        recency, totals = _recency(events, events.seconds)
        counts *= recency
    n_items = (
        int(max(events.items.max(initial=0), histories.indices.max(initial=0))) + 1
    )
    # Events of other pairs, such as returned ones, are left out.
    pairs = histories.rows * n_items + histories.indices
    of_events = events.users * np.int64(n_items) + events.items
    places = np.searchsorted(pairs, of_events)
    places[places == len(pairs)] = 0
    is_entry = pairs[places] == of_events if len(pairs) else np.zeros(0, np.bool_)
    sums = np.bincount(places[is_entry], counts[is_entry], len(pairs))
    if events.seconds is None:
        np.maximum.at(totals, histories.rows, sums)
    shares = np.maximum(sums, 0) / totals[histories.rows]
    return shares.astype(np.float32)


def _recency(events: Events, times: Times) -> tuple[Doubles, Doubles]:
    """Return what the basket of each event counts, and the total of each user's baskets."""
    users = events.users
    order = np.lexsort((times, users))
    seconds = times[order]
    ordered = users[order]
    is_first = np.ones(len(order), np.bool_)
    is_first[1:] = (ordered[1:] != ordered[:-1]) | (seconds[1:] != seconds[:-1])
    baskets = np.cumsum(is_first)
    n_users = len(events.indptr) - 1
    last = np.zeros(n_users, np.int64)
    np.maximum.at(last, ordered, baskets)
    recency = np.empty(len(order))
    recency[order] = _DECAY ** (last[ordered] - baskets)
    totals = np.bincount(users[order[is_first]], recency[order[is_first]], n_users)
    return recency, np.where(totals > 0, totals, 1)


@lru_cache(maxsize=4)
def own_items(n_items: int) -> CsrArrays:
    """Return the identity matrix: a habit of an item is for this item."""
    numbers = np.arange(n_items + 1)
    ones = np.ones(n_items, np.float32)
    return CsrArrays(numbers, numbers[:-1].astype(np.int32), ones)

"""Habits: decayed shares of a user's baskets, by which items come again."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

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
        # Each entry is one event.
        events = Events(histories.indptr, histories.indices, seconds=histories.times)
        weights = histories.values
    elif histories.rule is not None:
        # Habits have a decay of their own.
        weights = event_weights(events, histories.rule.without_age())
    counts = np.ones(len(events))
    if weighted:
        counts *= weights
    if events.seconds is not None:
        recency, totals = _recency(events, events.seconds)
        counts *= recency
    # Events of other pairs, such as returned ones, are left out.
    pairs = histories.pairs_of(events)
    is_entry = pairs >= 0
    sums = np.bincount(pairs[is_entry], counts[is_entry], len(histories.indices))
    sums = np.maximum(sums, 0)
    if events.seconds is None:
        totals = np.zeros(histories.n_rows)
        np.maximum.at(totals, histories.rows, sums)
    # Users without a total have no entry above 0.
    totals[totals == 0] = 1
    shares = sums / totals[histories.rows]
    return shares.astype(np.float32)


def _recency(events: Events, times: Times) -> tuple[Doubles, Doubles]:
    """Return what the basket of each event counts, and all baskets of each user.

    A basket counts by the number of later ones of the same user.
    """
    place = pl.col("time").rank("dense", descending=True).over("user")
    baskets = pl.DataFrame({"user": events.users, "time": times})
    baskets = baskets.with_columns(count=_DECAY ** (place - 1))
    # A basket of several events is one in the total.
    distinct = baskets.unique(["user", "time"], maintain_order=True)
    users = distinct["user"].to_numpy()
    counts = distinct["count"].to_numpy()
    totals = np.bincount(users, counts, len(events.indptr) - 1)
    return baskets["count"].to_numpy(), totals.astype(np.float64)


@lru_cache(maxsize=4)
def own_items(n_items: int) -> CsrArrays:
    """Return the identity matrix: a habit of an item is for this item."""
    numbers = np.arange(n_items + 1)
    ones = np.ones(n_items, np.float32)
    return CsrArrays(numbers, numbers[:-1].astype(np.int32), ones)

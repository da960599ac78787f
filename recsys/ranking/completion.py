"""Full lists: places reserved for items that meet a condition, popular items where one is short."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from lowrank import kernels
from lowrank.kernels.arrays import Hashes
from lowrank.kernels.topk import mixed
from recsys.data.age import present
from recsys.errors import DataError
from recsys.models.parts import Indices
from recsys.ranking.topn import FILL, MODEL, SLOT, TopN

Search = Callable[[Indices, int], Iterator[TopN]]
"""Search for the n best items of some users; `rows` of the result are positions of the users."""

_CHOICE = 10  # items for each reserved place, of which one is drawn
_ENTRIES = 2**20  # of the lists of a block of users
_DAY = 86_400
_SLOT = re.compile(r"\s*([1-9]\d{0,5})\s*:\s*(\S.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Slot:
    """Number of places of a list, and the condition on the items in them."""

    count: int
    condition: str


def parsed_slots(texts: str | Sequence[str], n: int) -> list[Slot]:
    """Return the reserved places in texts such as "2:new", for lists of n items.

    Raises
    ------
    DataError
        If a text is not of this form, or more than n places are reserved.
    """
    slots = []
    for text in [texts] if isinstance(texts, str) else texts:
        parts = _SLOT.fullmatch(str(text))
        if parts is None:
            raise DataError(
                "slots are a number of places and a condition on items, such as '2:new'; got "
                f"{text!r}."
            )
        slots.append(Slot(int(parts[1]), parts[2]))
    n_reserved = sum(slot.count for slot in slots)
    if n_reserved > n:
        raise DataError(f"slots reserve {n_reserved:,} places of lists of {n:,} items.")
    return slots


@dataclass(frozen=True, slots=True)
class FullLists:
    """Lists of a search in which some places are reserved, and that are completed.

    The reserved places are the last ones of a list. For each, an item is drawn among the ten best
    that meet the condition and are not in the list yet. The draw depends on the user and the day,
    and so a list is the same all day. Places for which there is no such item go to the search.
    Lists that are shorter than n get the best items of the search `fill`.

    Attributes
    ----------
    search : Search
    slots : sequence of pairs
        Number of reserved places, and the search for their items.
    fill : Search, optional
    hashes : ndarray of shape (n_items,)
        Hashes of the ids of the items.
    """

    search: Search
    slots: Sequence[tuple[int, Search]]
    fill: Search | None
    hashes: Hashes

    def blocks(self, users: Indices, labels: Hashes, n: int) -> Iterator[TopN]:
        """Yield the lists of users, whose ids have the hashes `labels`."""
        n_drawn = n + _CHOICE * sum(count for count, _ in self.slots)
        size = max(1, _ENTRIES // n_drawn)
        for part in kernels.pieces(len(users), size):
            lists = self._lists(users[part], labels[part], n)
            yield lists.with_rows(lists.rows + part.start)

    def _lists(self, users: Indices, labels: Hashes, n: int) -> TopN:
        best = TopN.joined(self.search(users, n)).with_source(MODEL)
        n_reserved = sum(count for count, _ in self.slots)
        lists = best.take(best.ranks <= n - n_reserved)
        day = np.array([present() // _DAY], np.uint64)
        seeds = mixed(labels ^ mixed(day))
        for count, search in self.slots:
            candidates = TopN.joined(search(users, n + _CHOICE * count))
            candidates = _without(candidates, lists)
            n_best = _CHOICE * count
            candidates = candidates.take(_positions(candidates.rows) < n_best)
            hashes = self.hashes[candidates.items]
            order = np.lexsort(
                (mixed(seeds[candidates.rows] ^ hashes), candidates.rows)
            )
            drawn = candidates.take(order)
            drawn = drawn.take(_positions(drawn.rows) < count)
            lists = TopN.joined([lists, drawn.with_source(SLOT)])
        lists = _appended(lists, best, n, len(users))
        if self.fill is not None:
            candidates = TopN.joined(self.fill(users, 2 * n)).with_source(FILL)
            lists = _appended(lists, candidates, n, len(users))
        return _ranked(lists)


def _without(candidates: TopN, lists: TopN) -> TopN:
    """Return the candidates that are not in the lists."""
    n_items = 1 + max(candidates.items.max(initial=0), lists.items.max(initial=0))
    pairs = candidates.rows * n_items + candidates.items
    is_listed = np.isin(pairs, lists.rows * n_items + lists.items)
    return candidates.take(~is_listed)


def _appended(lists: TopN, candidates: TopN, n: int, n_users: int) -> TopN:
    """Return the lists with as many candidates as they lack to n items."""
    candidates = _without(candidates, lists)
    room = n - np.bincount(lists.rows, minlength=n_users)
    fits = _positions(candidates.rows) < room[candidates.rows]
    return TopN.joined([lists, candidates.take(fits)])


def _positions(rows: Indices) -> Indices:
    """Return the position of each entry among the entries of its row; `rows` are ascending."""
    counts = np.bincount(rows)
    starts = np.cumsum(counts) - counts
    return np.arange(len(rows)) - np.repeat(starts, counts)


def _ranked(lists: TopN) -> TopN:
    """Return lists by row: items of the model, then those that complete it, then reserved ones."""
    assert lists.sources is not None
    order = np.lexsort((np.arange(len(lists)), lists.sources, lists.rows))
    ordered = lists.take(order)
    return ordered.with_ranks(_positions(ordered.rows) + 1)

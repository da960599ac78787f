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
    if isinstance(texts, str):
        texts = [texts]
    slots = []
    for text in texts:
        parts = _SLOT.fullmatch(str(text))
        if parts is None:
            raise DataError(
                "slots are a number of places and a condition on items, such as '2:new'; got "
                f"{text!r}."
            )
        count = int(parts[1])
        slots.append(Slot(count, parts[2]))
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

    def blocks(
        self,
        users: Indices,
        labels: Hashes,
        n: int,
    ) -> Iterator[TopN]:
        """Yield the lists of users, whose ids have the hashes `labels`."""
        n_candidates = n + _CHOICE * self._n_reserved
        size = max(1, _ENTRIES // n_candidates)
        for part in kernels.pieces(len(users), size):
            lists = self._lists(users[part], labels[part], n)
            # Rows are positions among all users.
            rows = lists.rows + part.start
            yield lists.with_rows(rows)

    @property
    def _n_reserved(self) -> int:
        return sum(count for count, _ in self.slots)

    def _lists(
        self,
        users: Indices,
        labels: Hashes,
        n: int,
    ) -> TopN:
        n_users = len(users)
        best = TopN.joined(self.search(users, n))
        best = best.with_source(MODEL)
        lists = best.take(best.ranks <= n - self._n_reserved)
        # One seed for each user and day, so that a page shows the same items all day.
        day = np.array([present() // _DAY], np.uint64)
        seeds = mixed(labels ^ mixed(day))
        for count, search in self.slots:
            n_best = _CHOICE * count
            # Up to n of the best ones may be in the list already.
            candidates = TopN.joined(search(users, n + n_best))
            candidates = _without(candidates, lists)
            is_best = _positions(candidates.rows) < n_best
            drawn = self._drawn(candidates.take(is_best), seeds, count)
            lists = TopN.joined([lists, drawn])
        # Reserved places for which there was no item.
        lists = _appended(lists, best, n, n_users)
        if self.fill is not None:
            popular = TopN.joined(self.fill(users, 2 * n))
            popular = popular.with_source(FILL)
            lists = _appended(lists, popular, n, n_users)
        return _ranked(lists)

    def _drawn(
        self,
        candidates: TopN,
        seeds: Hashes,
        count: int,
    ) -> TopN:
        """Return some of the candidates of each user, drawn by the user's seed."""
        hashes = self.hashes[candidates.items]
        draws = mixed(seeds[candidates.rows] ^ hashes)
        # The last key is the first to count.
        order = np.lexsort((draws, candidates.rows))
        ordered = candidates.take(order)
        is_drawn = _positions(ordered.rows) < count
        drawn = ordered.take(is_drawn)
        return drawn.with_source(SLOT)


def _without(candidates: TopN, lists: TopN) -> TopN:
    """Return the candidates that are not in the lists."""
    items = np.append(candidates.items, lists.items)
    n_items = 1 + items.max(initial=0)
    # One number for each pair of a user and an item.
    pairs = candidates.rows * n_items + candidates.items
    listed_pairs = lists.rows * n_items + lists.items
    is_listed = np.isin(pairs, listed_pairs)
    return candidates.take(~is_listed)


def _appended(
    lists: TopN,
    candidates: TopN,
    n: int,
    n_users: int,
) -> TopN:
    """Return the lists with as many candidates as they lack to n items."""
    candidates = _without(candidates, lists)
    lengths = np.bincount(lists.rows, minlength=n_users)
    room = n - lengths
    fits = _positions(candidates.rows) < room[candidates.rows]
    added = candidates.take(fits)
    return TopN.joined([lists, added])


def _positions(rows: Indices) -> Indices:
    """Return the position of each entry among the entries of its row; `rows` are ascending."""
    counts = np.bincount(rows)
    starts = np.cumsum(counts) - counts
    first = np.repeat(starts, counts)
    return np.arange(len(rows)) - first


def _ranked(lists: TopN) -> TopN:
    """Return lists by row: items of the model, then popular ones, then reserved places."""
    assert lists.sources is not None
    # The numbers of the sources are in this order, and the sort is stable.
    order = np.lexsort((lists.sources, lists.rows))
    return lists.take(order).renumbered()

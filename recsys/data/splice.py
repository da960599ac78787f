"""Replacement of the ratings of some users, with their events, in time proportional to a copy."""

from __future__ import annotations

from typing import Any

import numpy as np

from recsys.data.arrays import Longs, Mask
from recsys.data.csr import CSR, Events, Values, compact_times, in_common, is_all_ones
from recsys.data.events import (
    Collected,
    ratings_tell,
    with_used_kinds,
)
from recsys.data.ratings import Ratings, with_collected


def with_rows(
    ratings: Ratings,
    part: Collected,
    users: Mask,
) -> Ratings:
    """Return ratings in which some users have other ratings and events.

    `part` has ratings of these users only, with the users and items of `ratings`, and was made by
    the rule that made `ratings`. The result has the arrays of one reading of all events.
    """
    rows = _Rows(ratings.indptr, part.csr.indptr, users)
    old_values = Values(ratings.data, ratings.levels)
    csr = CSR(
        ratings.shape,
        rows.indptr,
        rows.mixed(ratings.indices, part.csr.indices),
        _mixed_values(rows, old_values, part.csr.values),
        _mixed_times(rows, ratings.seconds, part.csr.seconds),
    )
    in_time_order = ratings.in_time_order
    if in_time_order is not None and part.in_time_order is not None:
        in_time_order = np.where(users, part.in_time_order, in_time_order)
    events = None
    if ratings.events is not None or part.events is not None:
        events = _mixed_events(ratings, part, users)
    # Removed events may have been all that the ratings did not tell.
    if events is not None and ratings_tell(csr, events, part.rule, in_time_order):
        events = None
    spliced = Collected(csr, events, part.rule, in_time_order, part.n_same)
    return with_collected(ratings, with_used_kinds(spliced))


class _Rows:
    """Rows of two sets of arrays by user: rows of marked users from the second set."""

    def __init__(
        self,
        old: Longs,
        new: Longs,
        users: Mask,
    ) -> None:
        old_counts = np.diff(old)
        counts = np.where(users, np.diff(new), old_counts)
        self.indptr = np.append(0, np.cumsum(counts))
        self.n_old = int(old[-1])
        self.n_new = int(new[-1])
        self._is_new = np.repeat(users, counts)
        self._stays = np.repeat(~users, old_counts)

    def mixed(self, old: Any, new: Any) -> Any:
        """Return an array of the entries of both; `new` has entries of marked users only.

        A missing array stands for zeros; the result is None if both are missing.
        """
        if old is None and new is None:
            return None
        if old is None:
            old = np.zeros(self.n_old, new.dtype)
        if new is None:
            new = np.zeros(self.n_new, old.dtype)
        dtype = np.result_type(old, new)
        array = np.empty(len(self._is_new), dtype)
        # Both sets are in the order of the users, and so is each part of the result.
        array[self._is_new] = new
        array[~self._is_new] = old[self._stays]
        return array


def _mixed_values(
    rows: _Rows,
    old: Values,
    new: Values,
) -> Values:
    """Mix values, as codes of the levels that occur if they are few."""
    # Codes of the two sets stand for different levels.
    old, new = in_common(old, new)
    data = rows.mixed(old.data, new.data)
    return Values(data, old.levels).compact()


def _mixed_times(
    rows: _Rows,
    old: Any,
    new: Any,
) -> Any:
    """Mix times, which both have or neither."""
    if old is None or new is None:
        return None
    return compact_times(rows.mixed(old, new))


def _mixed_events(
    ratings: Ratings,
    part: Collected,
    users: Mask,
) -> Events:
    """Mix the logs of both."""
    old = ratings.log
    new = part.log
    rows = _Rows(old.indptr, new.indptr, users)
    values = None
    if old.values is not None or new.values is not None:
        old_values = old.values or Values.ones(len(old))
        new_values = new.values or Values.ones(len(new))
        values = _mixed_values(rows, old_values, new_values)
        if is_all_ones(values):
            values = None
    return Events(
        rows.indptr,
        rows.mixed(old.items, new.items),
        values,
        _mixed_times(rows, old.seconds, new.seconds),
        rows.mixed(old.kinds, new.kinds),
        rows.mixed(old.keys, new.keys),
    )

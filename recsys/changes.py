"""Changes of the ratings of a model: new ratings, a time window, and users to forget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from recsys.data.age import DAY, FADED, check_reach, present, reference_time
from recsys.data.axis import Axis
from recsys.data.csr import CSR, Entries, Values
from recsys.data.events import (
    EventRule,
    Events,
    collect,
    common_kinds,
    joined_entries,
    set_kinds,
)
from recsys.data.features import Features
from recsys.data.ids import Ids, IdsLike, Spot
from recsys.data.ratings import Ratings, restricted, table_of
from recsys.data.splice import with_rows
from recsys.data.times import duration
from recsys.errors import DataError
from recsys.models.parts import Indices

if TYPE_CHECKING:
    from lowrank.completion.feature_ridge import GroupedFeatures

_SCALES = ((1.0, 5.0), (0.5, 5.0), (0.0, 5.0), (1.0, 10.0), (0.5, 10.0), (0.0, 10.0))
"""Usual scales of grades, the narrowest first."""

_GRADES = 20  # maximum number of distinct grades; more values suggest an open range
_GROWTH = (
    0.02  # relative growth of an item's ratings after which its vector is recomputed
)


@dataclass(frozen=True)
class Change:
    """Ratings before and after an update, and their differences.

    Attributes
    ----------
    before, after : Ratings
    users, items : int64 ndarrays of shape (before.n_users,) and (before.n_items,)
        New index of each old user and item; -1 if it was removed.
    changed_users, changed_items : int64 ndarrays
        New indices, in increasing order, of users and items whose ratings differ.
    touches : int64 ndarray of shape (n_changed_items,)
        Number of added and removed ratings of each changed item.
    n_added, n_removed : int
        Number of new events, and of old events that were removed.
    n_late : int
        Number of events that were removed because they are later than the present time.
    n_repeated : int
        Number of new rows left out because their events are known already.
    """

    before: Ratings
    after: Ratings
    users: Indices
    items: Indices
    changed_users: Indices
    changed_items: Indices
    touches: Indices
    n_added: int = 0
    n_removed: int = 0
    n_late: int = 0
    n_repeated: int = 0

    @property
    def is_empty(self) -> bool:
        """Return whether the ratings are the same as before."""
        has_changed = len(self.changed_users) or len(self.changed_items)
        return not (self.n_added or self.n_removed or has_changed)

    @property
    def n_new(self) -> tuple[int, int]:
        """Numbers of new users and new items."""
        n_known = (self.users >= 0).sum(), (self.items >= 0).sum()
        return self.after.n_users - int(n_known[0]), self.after.n_items - int(
            n_known[1]
        )

    @cached_property
    def outdated(self) -> Indices:
        """Items to recompute: new items, and those whose ratings have grown by more than 2%.

        Over many small updates, an item is recomputed once per such growth: each time the logarithm
        of its number of ratings passes a multiple of `_GROWTH`.
        """
        counts = self.after.counts("item")
        counts = counts[self.changed_items].astype(np.float64)
        earlier = np.maximum(counts - self.touches, 0)
        steps = [
            np.floor(np.log1p(n_ratings) / np.log1p(_GROWTH))
            for n_ratings in (earlier, counts)
        ]
        grown = (steps[0] != steps[1]) | (self.touches >= _GROWTH * counts)
        return np.asarray(self.changed_items[grown])


def like_old(
    new: Ratings, old: Ratings, reading: Mapping[str, Any]
) -> tuple[Ratings, Ratings]:
    """Return old and new ratings of the same kind: both with grades, or both without.

    The old ratings have taken grades that were all the same as interactions. If the new ones have
    other grades, too, all are grades. Otherwise, values are taken as the old ones were.

    Parameters
    ----------
    new, old : Ratings
    reading : mapping
        Reading options of the old ratings.

    Raises
    ------
    DataError
        If only one of them has grades, and nothing tells how to read the others.
    """
    new = new.as_interactions()
    limit, common = old.rule.above, reading.get("common")
    if old.implicit == new.implicit:
        if limit is None and new.rule.above is not None:
            new = new.without_values()
        elif limit is not None and common is not None and new.rule.above is None:
            new = new.with_grade(common).interactions_above(limit)
        return old, new
    if old.implicit and limit is not None and common is not None:
        if (new.values == common).all():
            return old, new.interactions_above(limit)
        return old.with_own_values(), new
    if old.implicit and reading.get("feedback") in ("counts", "likes"):
        new = new.interactions_above(0.0)
        return old, new if limit is not None else new.without_values()
    if new.feedback is not None and new.feedback.kind == "counts":
        raise DataError(f"The model has grades, and {new.feedback.reason}.")
    kinds = ["implicit" if ratings.implicit else "explicit" for ratings in (old, new)]
    raise DataError(
        f"The new ratings must be {kinds[0]}, as those of the model are; got {kinds[1]} ones."
    )


def wider_range(new: Ratings, old: Ratings, training: Mapping[str, Any]) -> str | None:
    """Return how new grades exceed the range of the old ones, or None if they do not.

    `training` is the summary of the fit, which has the range of the grades.

    Raises
    ------
    DataError
        If the range was given as a scale.
    """
    ends = training["rating_min"], training["rating_max"]
    low, high = old.value_range() if None in ends else ends
    values = new.values
    outside = np.flatnonzero((values < low) | (values > high))
    if new.implicit or not len(outside) or not has_grades(old):
        return None
    if old.scale is None:
        lowest, highest = min(low, float(values.min())), max(high, float(values.max()))
        before = f"all were {low:g}" if low == high else f"from {low:g} to {high:g}"
        return f"grades are from {lowest:g} to {highest:g}, at the last fit {before}"
    user, item = new.user_index_of_nonzeros()[outside[0]], new.indices[outside[0]]
    raise DataError(
        f"Rating {values[outside[0]]:g} of item {new.items.values[int(item)]!r} by "
        f"user {new.users.values[int(user)]!r} is outside of the scale of the model, "
        f"{low:g} to {high:g}."
    )


def check_range(values: npt.NDArray[Any], known: Ratings) -> None:
    """Check that grades of new users or items are plausible; see `plausible_range`.

    Raises
    ------
    DataError
    """
    lowest, highest = plausible_range(known)
    outside = values[(values < lowest) | (values > highest)]
    if len(outside):
        low, high = usual_scale(known)
        raise DataError(
            f"Rating {outside[0]:g} is outside of the range of the model's ratings, "
            f"{low:g} to {high:g}."
        )


def plausible_range(known: Ratings) -> tuple[float, float]:
    """Return the ends between which a grade can be on the scale of the known ratings.

    They are the ends of the scale if it was given, and otherwise of the usual scale that has all
    known grades; a scale from 1 may also begin with half a star. Weights of interactions and
    ratings with many values have no ends.
    """
    if known.implicit or not has_grades(known):
        return -np.inf, np.inf
    low, high = usual_scale(known)
    if known.scale is None and low == 1:
        low = 0.5
    return low, high


def usual_scale(ratings: Ratings) -> tuple[float, float]:
    """Return the ends of the given scale, or of the smallest usual one that has all grades.

    Examples
    --------
    >>> import polars as pl
    >>> stars = pl.DataFrame({"user": [1, 1], "item": [7, 8], "rating": [5, 3]})
    >>> usual_scale(Ratings.from_frame(stars))
    (1.0, 5.0)
    """
    if ratings.scale is not None:
        return ratings.scale
    levels = ratings.distribution()[0]
    low, high = float(levels[0]), float(levels[-1])
    for lowest, highest in _SCALES:
        if lowest <= low and high <= highest:
            return lowest, highest
    return low, high


def has_grades(ratings: Ratings) -> bool:
    """Return whether ratings are grades, with at most 20 distinct values."""
    return not ratings.implicit and len(ratings.distribution()[0]) <= _GRADES


def change_of(
    old: Ratings,
    new: Ratings | None = None,
    *,
    window: str | float | None = None,
    forget: IdsLike | None = None,
    now: int | None = None,
) -> Change:
    """Return the change of the ratings by an update.

    The ratings afterwards equal one reading of all events: the old ones, then the new ones
    that are not known yet, by the rule of the old ratings. Times are kept if both have them. Tables
    are merged: all columns are kept, and new rows replace old ones.

    Events older than the `window`, such as "180d", before the newest one are removed, and so are
    users and items without remaining events, unless their table describes them and those without
    ratings were requested as well. The users to `forget` are removed with their events and their
    rows of the table. Events more than a day after the present time `now` are removed.

    Raises
    ------
    DataError
        If a window is given without timestamps, the types of ids do not match, all events are later
        than `now`, or the window or the half-life would leave nothing but a few events far from the
        others.
    UnknownIdError
        If a user to forget is unknown.
    """
    length = None if window is None else duration(window, "window")
    forgotten = None if forget is None else Ids(forget, "user")
    before, newer = old, new
    if forgotten is not None:
        _check_known(forgotten, old, new)
        before = _without_rows(old, forgotten)
        newer = None if new is None else _without_rows(new, forgotten)
    if newer is not None:
        before = _with_ids_of(before, newer)
        newer = newer.renumbered(before.users, before.items)
    leaving = np.zeros(before.n_users, np.bool_)
    if forgotten is not None:
        leaving = forgotten.find(before.users.values) >= 0
    parts = [before] if newer is None else [before, newer]
    rule = _common_rule(parts)
    if length is not None or rule.half_life is not None:
        _check_times(parts, "A window" if length is not None else "A half-life")
    present_time = present() if now is None else now
    reach = _reach(parts, leaving, length, present_time)
    if length is not None:
        _check_reach(parts, leaving, reach, f"--window {window}")
    if rule.half_life is not None and new is not None:
        fading = replace(reach, first=reach.last - FADED * rule.half_life)
        _check_reach(parts, leaving, fading, f"--half-life {rule.half_life / DAY:g}d")
    users = _touched_users(parts, rule, leaving, reach)
    parts[0] = _of_users(before, users)
    entries = _joined_events(parts, rule)
    selected = ~leaving[entries.rows]
    n_late = 0
    if entries.seconds is not None:
        late = entries.seconds > reach.last
        n_late = int(np.count_nonzero(late & selected))
        selected &= ~late & (entries.seconds >= reach.first)
    n_old = _n_events(parts[0])
    n_removed = int(np.count_nonzero(~selected[:n_old]))
    n_selected = int(np.count_nonzero(selected))
    removed_rows, removed_columns = entries.rows[~selected], entries.columns[~selected]
    if n_selected < len(selected):
        entries = entries.take(selected)
    collected = collect(
        entries,
        before.shape,
        rule,
        implicit=old.implicit,
        known_order=_common_order(parts),
    )
    _check_unrepeated(collected.csr, before)
    n_added = n_selected - collected.n_same - (n_old - n_removed)
    after = before
    if n_added or n_removed or not _is_same_rule(old.rule, rule):
        after = with_rows(before, collected, users)
    if new is not None and new.source is not None:
        name = f"{new.source.name} and earlier ratings"
        after = replace(after, source=replace(new.source, name=name, options={}))
    has_users, has_items = _with_events(after)
    lost_users = (_mask_of(removed_rows, before.n_users) & ~has_users) & ~described(
        before, "user"
    )
    lost_items = (_mask_of(removed_columns, before.n_items) & ~has_items) & ~described(
        before, "item"
    )
    after = restricted(after, ~(lost_users | leaving), ~lost_items)
    return replace(
        _compared(old, after),
        n_added=n_added,
        n_removed=n_removed,
        n_late=n_late,
        n_repeated=collected.n_same,
    )


def _check_unrepeated(csr: CSR, ratings: Ratings) -> None:
    """Check that no pair has several events, if these are an error.

    Raises
    ------
    DataError
    """
    if csr.repeat is None:
        return
    entry = csr.repeat[2]
    user = ratings.users.values[
        int(np.searchsorted(csr.indptr, entry, side="right")) - 1
    ]
    item = ratings.items.values[int(csr.indices[entry])]
    raise DataError(
        f"User {user!r} has rated item {item!r} already, and the model was fitted with "
        "--duplicates error; give --duplicates last, first, mean or sum to add such ratings."
    )


@dataclass(frozen=True)
class _Reach:
    """Times of the first and the last event that stay, in seconds."""

    first: float = -np.inf
    last: float = np.inf


def _reach(
    parts: Sequence[Ratings],
    leaving: npt.NDArray[np.bool_],
    length: float | None,
    now: int,
) -> _Reach:
    """Return the times within a window, or since ever, before the newest event of the past."""
    if any(part.seconds is None for part in parts):
        return _Reach()
    seconds = np.concatenate([_staying(part, leaving).seconds for part in parts])
    if not len(seconds):
        return _Reach()
    last = reference_time(seconds, now)
    return _Reach(-np.inf if length is None else last - length, last)


class _Timed(NamedTuple):
    """Users, items and times of events, in any order."""

    users: npt.NDArray[np.int32]
    items: npt.NDArray[np.int32]
    seconds: npt.NDArray[Any]


def _timed(ratings: Ratings) -> _Timed:
    """Return the users, items and times of the events of ratings with times."""
    events = ratings.events
    if events is None:
        users = ratings.user_index_of_nonzeros()
        return _Timed(users, ratings.indices, np.asarray(ratings.seconds))
    return _Timed(events.users, events.items, np.asarray(events.seconds))


def _staying(ratings: Ratings, leaving: npt.NDArray[np.bool_]) -> _Timed:
    """Return the events of the users who are not forgotten."""
    events = _timed(ratings)
    if not leaving.any():
        return events
    stays = ~leaving[events.users]
    return _Timed(events.users[stays], events.items[stays], events.seconds[stays])


def _check_reach(
    parts: Sequence[Ratings], leaving: npt.NDArray[np.bool_], reach: _Reach, what: str
) -> None:
    """Check that not a few events of the past decide that the others are dropped."""
    events = [_staying(part, leaving) for part in parts]
    users, items, seconds = (
        np.concatenate(arrays) for arrays in zip(*events, strict=True)
    )
    past = np.flatnonzero(seconds <= reach.last)
    ratings = parts[0]

    def location(row: int) -> Spot:
        event = int(past[row])
        user = ratings.users.values[int(users[event])]
        item = ratings.items.values[int(items[event])]
        return Spot((event,), f"user {user!r}, item {item!r}")

    check_reach(seconds[past], reach.first, what, location)


def _touched_users(
    parts: Sequence[Ratings],
    rule: EventRule,
    leaving: npt.NDArray[np.bool_],
    reach: _Reach,
) -> npt.NDArray[np.bool_]:
    """Mark the users whose ratings may change, so that only their events are read again."""
    old = parts[0]
    touched = leaving.copy()
    if old.rule != rule or len({part.seconds is None for part in parts}) > 1:
        return np.ones_like(touched)
    if old.seconds is not None:
        events = _timed(old)
        leaves = (events.seconds < reach.first) | (events.seconds > reach.last)
        touched[events.users[leaves]] = True
    for new in parts[1:]:
        has_events, _ = _with_events(new)
        touched |= has_events
        touched |= _with_keys_of(old.events, new.events)
    if rule.half_life is not None and touched.any():  # the age of all events may change
        touched[:] = True
    return touched


def _with_keys_of(
    old: Events | None, new: Events | None
) -> npt.NDArray[np.bool_] | bool:
    """Mark the users of old events whose ids new events have, perhaps with another user."""
    if old is None or new is None or old.keys is None or new.keys is None:
        return False
    same = np.isin(old.keys, new.keys[new.keys > 0])
    return _mask_of(old.users[same], len(old.indptr) - 1)


def _of_users(ratings: Ratings, users: npt.NDArray[np.bool_]) -> Ratings:
    """Return the ratings and events of some users, with the same users and items."""
    if users.all():
        return ratings
    part = ratings.take(users[ratings.user_index_of_nonzeros()])
    events = ratings.events
    if events is not None:
        events = events.take(users[events.users])
    return replace(part, events=events, rule=ratings.rule)


def _n_events(ratings: Ratings) -> int:
    return ratings.n_ratings if ratings.events is None else len(ratings.events)


def _with_events(
    ratings: Ratings,
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Return which users and which items have events."""
    events = ratings.events
    items = ratings.indices if events is None else events.items
    indptr = ratings.indptr if events is None else events.indptr
    return np.diff(indptr) > 0, _mask_of(items, ratings.n_items)


def _mask_of(indices: npt.NDArray[np.int32], n: int) -> npt.NDArray[np.bool_]:
    """Return n flags, True at the given indices."""
    mask = np.zeros(n, np.bool_)
    mask[indices] = True
    return mask


def _is_same_rule(one: EventRule, other: EventRule) -> bool:
    """Return whether two rules make the same ratings of the events that the first one knows."""
    weights = dict(zip(other.kinds, other.weights, strict=True))
    same_kinds = all(
        weights[kind] == weight
        for kind, weight in zip(one.kinds, one.weights, strict=True)
    )
    return same_kinds and (one.policy, one.half_life) == (other.policy, other.half_life)


def _common_rule(parts: Sequence[Ratings]) -> EventRule:
    """Return the rule for the events of all parts.

    Options that were given with the last ratings decide, and otherwise the first rule.
    """
    first, last = parts[0].rule, parts[-1].rule
    source = parts[-1].source
    options = {} if source is None else source.options
    policy, half_life = first.policy, first.half_life
    if "duplicates" in options:
        policy = last.policy
    elif parts[0].implicit and last.policy == "sum":
        policy = "sum"
    if "half_life" in options:
        half_life = last.half_life
    kinds, weights = common_kinds([part.rule for part in parts])
    return EventRule(policy, half_life, kinds, weights, first.above)


def _joined_events(parts: Sequence[Ratings], rule: EventRule) -> Entries:
    """Return the events of ratings with the same ids, one part after the other."""
    entries = []
    for part in parts:
        events = _entries_of(part)
        if rule.kinds:
            set_kinds(events, part.rule.kinds, rule.kinds)
        entries.append(events)
    return joined_entries(entries)


def _common_order(parts: Sequence[Ratings]) -> npt.NDArray[np.bool_] | None:
    """Return the users whose rows were in the order of time in all ratings."""
    orders = [part.in_time_order for part in parts if part.in_time_order is not None]
    if len(orders) < len(parts):
        return None
    return np.asarray(np.all(orders, axis=0), np.bool_)


def _entries_of(ratings: Ratings) -> Entries:
    """Return the events of ratings as entries; by item if their order in time does not matter."""
    in_order = ratings.in_time_order
    if ratings.events is not None or (in_order is not None and in_order.any()):
        return ratings.log.entries()
    values = Values(ratings.data.copy(), ratings.levels)
    seconds = None if ratings.seconds is None else ratings.seconds.copy()
    return Entries(
        ratings.user_index_of_nonzeros(), ratings.indices.copy(), values, seconds
    )


def described(ratings: Ratings, side: str) -> npt.NDArray[np.bool_]:
    """Mark the users (or items) that the ratings have even without a rating, for their features."""
    request = ratings.feature_request
    axis = ratings.axis(side)
    if request is None or not request.unrated:
        return np.zeros(len(axis.ids), np.bool_)
    return axis.in_table


def _check_times(parts: Sequence[Ratings], what: str) -> None:
    """Check that the ratings of the model, and new ones, have times.

    Raises
    ------
    DataError
    """
    for part, which in zip(parts, ("the model's", "the new"), strict=False):
        if part.seconds is None:
            raise DataError(f"{what} needs timestamps, and {which} ratings have none.")


def _compared(old: Ratings, after: Ratings) -> Change:
    """Return the change from old ratings to new ones; new ids include the remaining old ones."""
    users = after.users.find(old.users.values)
    items = after.items.find(old.items.values)
    counts = np.diff(after.indptr)
    old_counts = np.zeros(after.n_users, np.int64)
    old_counts[users[users >= 0]] = np.diff(old.indptr)[users >= 0]
    is_old = np.zeros(after.n_users, np.bool_)
    is_old[users[users >= 0]] = True
    same_count = is_old & (counts == old_counts)
    changed = ~same_count
    stays = np.zeros(old.n_users, np.bool_)
    stays[users >= 0] = same_count[users[users >= 0]]
    mine = np.flatnonzero(np.repeat(stays, np.diff(old.indptr)))
    positions_after = np.flatnonzero(np.repeat(same_count, counts))
    differs = items[old.indices[mine]] != after.indices[positions_after]
    differs |= old.values_at(mine) != after.values_at(positions_after)
    if old.seconds is not None and after.seconds is not None:
        differs |= old.seconds[mine] != after.seconds[positions_after]
    rows = np.searchsorted(after.indptr, positions_after[differs], side="right") - 1
    changed[rows] = True
    touches = _touches(old, after, users, items, changed)
    is_new_item = np.ones(after.n_items, np.bool_)
    is_new_item[items[items >= 0]] = False
    touched = np.flatnonzero((touches > 0) | is_new_item)
    return Change(
        old, after, users, items, np.flatnonzero(changed), touched, touches[touched]
    )


def _touches(
    old: Ratings,
    after: Ratings,
    users: Indices,
    items: Indices,
    changed: npt.NDArray[np.bool_],
) -> Indices:
    """Return how many ratings of each item were added, removed or changed."""
    was_changed = users < 0
    was_changed[users >= 0] = changed[users[users >= 0]]
    mine = np.flatnonzero(np.repeat(was_changed, np.diff(old.indptr)))
    positions_after = np.flatnonzero(np.repeat(changed, np.diff(after.indptr)))
    n_items = np.int64(max(after.n_items, 1))
    old_rows = users[np.searchsorted(old.indptr, mine, side="right") - 1]
    old_items = items[old.indices[mine]]
    rows = np.searchsorted(after.indptr, positions_after, side="right") - 1
    pairs = rows * n_items + after.indices[positions_after]
    old_pairs = np.where(
        (old_rows < 0) | (old_items < 0), -1, old_rows * n_items + old_items
    )
    touches = np.bincount(after.indices[positions_after], minlength=after.n_items)
    # An unchanged rating of a changed user does not touch its item; a removed one does.
    positions = np.minimum(np.searchsorted(pairs, old_pairs), max(len(pairs) - 1, 0))
    remains = np.zeros(len(old_pairs), np.bool_)
    if len(pairs):
        remains = pairs[positions] == old_pairs
    is_same = remains.copy()
    is_same[remains] = _are_equal(
        old, mine[remains], after, positions_after[positions[remains]]
    )
    touches -= np.bincount(old_items[is_same], minlength=after.n_items)
    removed = old_items[~remains]
    touches += np.bincount(removed[removed >= 0], minlength=after.n_items)
    return np.asarray(touches)


def _are_equal(
    old: Ratings, positions: Indices, after: Ratings, others: Indices
) -> npt.NDArray[np.bool_]:
    """Return which ratings have the same value, and the same time if both have times."""
    equal = old.values_at(positions) == after.values_at(others)
    if old.seconds is not None and after.seconds is not None:
        equal &= old.seconds[positions] == after.seconds[others]
    return np.asarray(equal)


def _check_known(users: Ids, old: Ratings, new: Ratings | None) -> None:
    """Check that users are in some of the ratings, or in their tables.

    Raises
    ------
    UnknownIdError
        The message names the closest ids.
    """
    mask = are_known(users, *(part for part in (old, new) if part is not None))
    if not mask.all():
        old.users.index(users.values.filter(~mask))


def _without_rows(ratings: Ratings, users: Ids) -> Ratings:
    """Return ratings without the rows of users in their table."""
    if (table := ratings.user_table) is None:
        return ratings
    return replace(ratings, user_table=table.without(users))


def are_known(users: Ids, *parts: Ratings) -> npt.NDArray[np.bool_]:
    """Return which users are in some of the ratings, or in their tables of users."""
    mask = np.zeros(len(users), np.bool_)
    for part in parts:
        tables = [part.users.values]
        if part.user_table is not None:
            tables.append(part.user_table.frame["user"])
        for ids in tables:
            indices = users.find(ids)
            mask[indices[indices >= 0]] = True
    return mask


def _with_ids_of(old: Ratings, new: Ratings) -> Ratings:
    """Return the old ratings with the ids, tables and features of both."""
    users = _united(old.users, new.users)
    items = _united(old.items, new.items)
    axes = []
    for axis, newer, ids in zip(old.axes, new.axes, (users, items), strict=True):
        table = newer.table if axis.table is None else axis.table.updated(newer.table)
        table = table_of(table, ids)
        features = encoded_rows(axis, table, newer.table, ids)
        axes.append(Axis(ids, table, features))
    return old.renumbered(users, items).with_axes(*axes)


def _united(known: Ids, others: Ids) -> Ids:
    """Return the union of ids, in the type of the known ones."""
    converted = known.like(others.values)
    if converted.null_count():
        first = others.values.filter(converted.is_null())[0]
        raise DataError(
            f"The model has integer {known.kind} ids; {first!r} cannot be among them."
        )
    return known.union(converted)


def encoded_rows(
    axis: Axis, table: Features | None, new: Features | None, ids: Ids
) -> GroupedFeatures | None:
    """Return features for all `ids`, encoding those that are new or have a new row."""
    features = axis.features
    encoder = axis.encoder
    if features is None or encoder is None or table is None:
        return None
    indices = axis.ids.find(ids.values)
    is_updated = indices < 0
    if new is not None:
        is_updated |= new.rows_of(ids) >= 0
    if not is_updated.any():
        return features
    from scipy.sparse import vstack

    updated_ids = Ids(ids.values.filter(is_updated), ids.kind)
    stacked = vstack(
        [features.matrix, encoder.transform(table, updated_ids).matrix], format="csr"
    )
    rows = indices.copy()
    rows[is_updated] = len(axis.ids) + np.arange(len(updated_ids))
    encoded: GroupedFeatures = replace(cast(Any, features), matrix=stacked[rows])
    return encoded

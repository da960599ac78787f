"""Changes of the ratings of a model: new ratings, a time window, and users to forget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import polars as pl

from recsys.data.age import DAY, FADED, check_reach, present, reference_time
from recsys.data.arrays import distinct
from recsys.data.axis import Axis
from recsys.data.csr import Entries, Events, Values, first_repeat
from recsys.data.events import (
    collect,
    common_kinds,
    joined_entries,
    set_kinds,
)
from recsys.data.features import Features
from recsys.data.feedback import is_code
from recsys.data.ids import Ids, IdsLike, Spot
from recsys.data.kinds import EventRule
from recsys.data.ratings import (
    Ratings,
    restricted,
    stored_log,
    table_of,
    without_events,
)
from recsys.data.splice import with_rows
from recsys.data.times import duration
from recsys.errors import DataError
from recsys.messages import counted
from recsys.models.parts import Indices, Mask

if TYPE_CHECKING:
    from lowrank.completion.feature_ridge import GroupedFeatures

_SCALES = ((1.0, 5.0), (0.5, 5.0), (0.0, 5.0), (1.0, 10.0), (0.5, 10.0), (0.0, 10.0))
"""Usual scales of grades, the narrowest first."""

_GRADES = 20  # maximum number of distinct grades; more values suggest an open range
_TEXT_IDS = "fit all sources together to have text ids"
_MANY_WEIGHTS = 20  # of events that tell their unit
_GROWTH = 0.02  # of an item's ratings, after which its vector is recomputed


@dataclass(frozen=True)
class Change:
    """Ratings before and after an update, and their differences.

    Attributes
    ----------
    before, after : Ratings
    users, items : int64 ndarrays of shape (before.n_users,) and (before.n_items,)
        New index of each old user and item; -1 if it was removed.
    changed_users : int64 ndarray
        New indices, in increasing order, of users whose ratings differ.
    outdated : int64 ndarray
        New indices, in increasing order, of items to recompute: new items, and those whose ratings
        have grown by more than 2%.
    n_added, n_removed : int
        Number of new events, and of old events that were removed.
    n_late : int
        Number of events that were removed because they are later than the present time.
    n_repeated : int
        Number of new rows left out because their events are known already.
    n_conflicts : int
        Number of these that have the id of an event, but are not like it.
    """

    before: Ratings
    after: Ratings
    users: Indices
    items: Indices
    changed_users: Indices
    outdated: Indices
    n_added: int = 0
    n_removed: int = 0
    n_late: int = 0
    n_repeated: int = 0
    n_conflicts: int = 0

    @property
    def is_empty(self) -> bool:
        """Return whether the ratings are the same as before."""
        has_changed = len(self.changed_users) or len(self.outdated)
        return not (self.n_added or self.n_removed or has_changed)

    @property
    def n_new(self) -> tuple[int, int]:
        """Numbers of new users and new items."""
        n_old_users = int(np.count_nonzero(self.users >= 0))
        n_old_items = int(np.count_nonzero(self.items >= 0))
        n_users, n_items = self.after.shape
        return n_users - n_old_users, n_items - n_old_items


def like_old(
    new: Ratings,
    old: Ratings,
    reading: Mapping[str, Any],
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
    if old.rule.graded and new.implicit:
        return old, new.with_dislikes_as_grades()
    if old.implicit == new.implicit:
        if limit is None and new.rule.above is not None:
            new = new.without_values()
        elif limit is not None and common is not None and new.rule.above is None:
            new = new.with_grade(common).interactions_above(limit)
        return old, new
    # All grades were the same, so they were taken as likes.
    if old.implicit and limit is not None and common is not None:
        if (new.values == common).all():
            return old, new.interactions_above(limit)
        return old.with_own_values(), new
    if old.implicit and reading.get("feedback") in ("counts", "likes"):
        new = new.interactions_above(0.0)
        return old, new if limit is not None else new.without_values()
    if new.feedback is not None and new.feedback.kind == "counts":
        raise DataError(f"The model has grades, and {new.feedback.reason}.")
    expected, got = "explicit", "implicit"
    if old.implicit:
        expected, got = got, expected
    raise DataError(
        f"The new ratings must be {expected}, as those of the model are; got {got} ones."
    )


def without_visitors(new: Ratings, old: Ratings) -> tuple[Ratings, str | None]:
    """Leave out users whose ids cannot be among old ones, and return a remark on them.

    Such users of a journal are visitors, for example by a cookie, among customers with numbers. If
    all users are of this kind, the ids are of another type, and none are left out.
    """
    users = new.users.values
    is_visitor = old.users.like(users).is_null().to_numpy()
    if not is_visitor.any() or is_visitor.all():
        return new, None
    log = new.log
    is_of_visitor = is_visitor[log.users]
    n_of_items = np.bincount(log.items, minlength=new.n_items)
    n_staying = np.bincount(log.items[~is_of_visitor], minlength=new.n_items)
    # Items without any event are in a table.
    part = restricted(new, ~is_visitor, (n_staying > 0) | (n_of_items == 0))
    n_events = counted(int(is_of_visitor.sum()), "event")
    n_visitors = counted(int(is_visitor.sum()), "visitor")
    example = users.filter(is_visitor)[0]
    return part, (
        f"{n_events} of {n_visitors} left out, because the model has integer user ids and "
        f"{example!r} cannot be among them ({_TEXT_IDS})"
    )


def wider_range(
    new: Ratings,
    old: Ratings,
    training: Mapping[str, Any],
) -> str | None:
    """Return how new grades exceed the range of the old ones, or None if they do not.

    `training` is the summary of the fit, which has the range of the grades.

    Raises
    ------
    DataError
        If the range was given as a scale, or a grade far outside of it may stand for none.
    """
    ends = training["rating_min"], training["rating_max"]
    low, high = old.value_range() if None in ends else ends
    values = new.values
    outside = np.flatnonzero((values < low) | (values > high))
    if new.implicit or not len(outside) or not has_grades(old):
        return None
    is_far = (values < 2 * low - high) | (values > 2 * high - low)
    codes = [row for row in np.flatnonzero(is_far) if is_code(values[row])]
    # A range that was not given is only what has been seen so far.
    if old.scale is None and not codes:
        lowest = min(low, float(values.min()))
        highest = max(high, float(values.max()))
        before = f"all were {low:g}" if low == high else f"from {low:g} to {high:g}"
        return f"grades are from {lowest:g} to {highest:g}, at the last fit {before}"
    first = codes[:1] or outside[:1]
    item = new.items.take(new.indices[first])[0]
    user = new.users.take(new.user_index_of_nonzeros()[first])[0]
    rating = f"{values[first[0]]:.15g}"
    cure = ""
    if codes:
        cure = f"; if it stands for none, --missing {rating} (missing=) leaves it out"
    raise DataError(
        f"Rating {rating} of item {item!r} by user {user!r} is outside of the scale "
        f"of the model, {low:g} to {high:g}{cure}."
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


def other_unit(new: Ratings, old: Ratings) -> str | None:
    """Describe weights of new events that seem to be in another unit, or return None.

    Most are larger than all earlier ones, or all are smaller than most earlier ones.
    """
    if not (new.implicit and old.implicit):
        return None
    new_values = new.log.values
    old_values = old.log.values
    if new_values is None or old_values is None:
        return None
    new_weights = np.abs(new_values.at())
    old_weights = np.abs(old_values.at())
    if min(len(new_weights), len(old_weights)) < _MANY_WEIGHTS:
        return None
    new_median = float(np.median(new_weights))
    old_median = float(np.median(old_weights))
    is_larger = new_median > old_weights.max()
    is_smaller = new_weights.max() < old_median
    if not (is_larger or is_smaller):
        return None
    return (
        f"the new weights seem to be in another unit: their median is {new_median:g}, and that "
        f"of the earlier ones {old_median:g}"
    )


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
    before, newer = old, new
    leaving = None
    if forget is not None:
        leaving = _leaving(forget, old, new)
        before = _without_rows(old, leaving)
        if new is not None:
            newer = _without_rows(new, leaving)
    parts = [before]
    if newer is not None:
        before = _with_ids_of(before, newer)
        parts = [before, newer.renumbered(before.users, before.items)]
    forgotten = np.zeros(before.n_users, np.bool_)
    if leaving is not None:
        forgotten = leaving.find(before.users.values) >= 0
    rule = _common_rule(parts)
    reach = _checked_reach(parts, rule, forgotten, window, now)
    # Only their events are sorted and merged again.
    touched = _touched_users(parts, rule, forgotten, reach)
    parts[0] = _of_users(before, touched)
    entries = _joined_events(parts, rule)
    stays, n_late = _staying(entries, forgotten, reach)
    n_old = len(stored_log(parts[0]))
    n_removed = int(np.count_nonzero(~stays[:n_old]))
    # New rows may be events that are known already, with another user or item.
    may_leave = ~stays
    may_leave[n_old:] = True
    candidates = {"user": entries.rows[may_leave], "item": entries.items[may_leave]}
    if not stays.all():
        entries = entries.take(stays)
    n_staying = len(entries.rows)
    # The order of rows tells the order of events of the same time, if all were in order.
    came = entries.rows[n_old - n_removed :]
    order = _common_order(parts, came)
    collected = collect(
        entries, before.shape, rule, implicit=old.implicit, known_order=order
    )
    if rule.policy == "error" and collected.csr.n_duplicates:
        raise _repeated_error(collected.log, before)
    # Events that came twice count once.
    n_added = n_staying - collected.n_same - (n_old - n_removed)
    after = before
    if n_added or n_removed or not _is_same_rule(old.rule, rule):
        after = with_rows(before, collected, touched)
    if new is not None and new.source is not None:
        name = f"{new.source.name} and earlier ratings"
        source = replace(new.source, name=name, options={})
        after = replace(after, source=source)
    # Users of whom nothing is left are removed, unless a table describes them.
    lost = without_events(after, candidates)
    after = restricted(after, ~(lost["user"] | forgotten), ~lost["item"])
    touched_ids = before.users.take(np.flatnonzero(touched))
    return replace(
        _compared(old, after, touched_ids),
        n_added=n_added,
        n_removed=n_removed,
        n_late=n_late,
        n_repeated=collected.n_same,
        n_conflicts=collected.n_conflicts,
    )


def _leaving(forget: IdsLike, old: Ratings, new: Ratings | None) -> Ids:
    """Return the ids of users to forget; raise an error if one is unknown."""
    leaving = Ids(forget, "user")
    parts = [old] if new is None else [old, new]
    unknown = leaving.take(np.flatnonzero(~are_known(leaving, *parts)))
    old.users.index(unknown)  # raises if there are any
    return leaving


def _staying(entries: Entries, forgotten: Mask, reach: _Reach) -> tuple[Mask, int]:
    """Mark the events of other users within the reach; return also how many are too late."""
    stays = ~forgotten[entries.rows]
    if entries.seconds is None:
        return stays, 0
    is_late = entries.seconds > reach.last
    n_late = int(np.count_nonzero(is_late & stays))
    stays &= ~is_late & (entries.seconds >= reach.first)
    return stays, n_late


def _repeated_error(log: Events, ratings: Ratings) -> DataError:
    """Return the error on a pair that has several events, if these are an error."""
    event, _ = first_repeat(log.users, log.items) or (0, 0)
    user = ratings.users.values[int(log.users[event])]
    item = ratings.items.values[int(log.items[event])]
    return DataError(
        f"User {user!r} has rated item {item!r} already, and the model was fitted with "
        "--duplicates error; give --duplicates last, first, mean or sum to add such ratings."
    )


class _Reach(NamedTuple):
    """Times of the first and the last event that stay, in seconds."""

    first: float = -np.inf
    last: float = np.inf


def _checked_reach(
    parts: Sequence[Ratings],
    rule: EventRule,
    forgotten: Mask,
    window: str | float | None,
    now: int | None,
) -> _Reach:
    """Return the times within a window, or since ever, before the newest event of the past.

    Raises
    ------
    DataError
        If times are missing, or a few events decide that the others hardly count.
    """
    if window is not None or rule.half_life is not None:
        what = "A half-life" if window is None else "A window"
        for part, which in zip(parts, ("the model's", "the new"), strict=False):
            if part.seconds is None:
                raise DataError(
                    f"{what} needs timestamps, and {which} ratings have none."
                )
    if any(part.seconds is None for part in parts):
        return _Reach()
    logs = [stored_log(part) for part in parts]
    if forgotten.any():
        logs = [log.take(~forgotten[log.users]) for log in logs]
    seconds = np.concatenate([np.asarray(log.seconds) for log in logs])
    if not len(seconds):
        return _Reach()
    last = reference_time(seconds, present() if now is None else now)
    past = np.flatnonzero(seconds <= last)

    def location(row: int) -> Spot:
        event = int(past[row])
        users = np.concatenate([log.users for log in logs])
        items = np.concatenate([log.items for log in logs])
        user = parts[0].users.values[int(users[event])]
        item = parts[0].items.values[int(items[event])]
        return Spot((event,), f"user {user!r}, item {item!r}")

    first = -np.inf
    if window is not None:
        first = last - duration(window, "window")
        check_reach(seconds[past], first, f"--window {window}", location)
    if rule.half_life is not None and len(parts) > 1:
        fading = last - FADED * rule.half_life
        option = f"--half-life {rule.half_life / DAY:g}d"
        check_reach(seconds[past], fading, option, location)
    return _Reach(first, last)


def _touched_users(
    parts: Sequence[Ratings],
    rule: EventRule,
    forgotten: Mask,
    reach: _Reach,
) -> Mask:
    """Mark the users whose ratings may change, so that only their events are read again."""
    old = parts[0]
    touched = forgotten.copy()
    have_times = {part.seconds is not None for part in parts}
    if old.rule != rule or len(have_times) > 1:
        return np.ones_like(touched)
    log = stored_log(old)
    if log.seconds is not None:
        leaves = log.seconds < reach.first
        leaves |= log.seconds > reach.last
        touched[log.users[leaves]] = True
    for new in parts[1:]:
        events = stored_log(new)
        touched |= np.diff(events.indptr) > 0
        if log.keys is not None and events.keys is not None:
            # An event may come again with another user.
            is_known = np.isin(log.keys, events.keys[events.keys > 0])
            touched[log.users[is_known]] = True
    if rule.half_life is not None and touched.any():  # the age of all events may change
        touched[:] = True
    return touched


def _of_users(ratings: Ratings, users: Mask) -> Ratings:
    """Return the ratings and events of some users, with the same users and items."""
    if users.all():
        return ratings
    part = ratings.take(users[ratings.user_index_of_nonzeros()])
    events = ratings.events
    if events is not None:
        events = events.take(users[events.users])
    return replace(part, events=events, rule=ratings.rule)


def _is_same_rule(one: EventRule, other: EventRule) -> bool:
    """Return whether two rules make the same ratings of the events that the first one knows."""
    weights = dict(zip(one.kinds, one.weights, strict=True))
    other_weights = dict(zip(other.kinds, other.weights, strict=True))
    same_kinds = weights.items() <= other_weights.items()
    same_policy = one.policy == other.policy
    return same_kinds and same_policy and one.half_life == other.half_life


def _common_rule(parts: Sequence[Ratings]) -> EventRule:
    """Return the rule for the events of all parts.

    Options that were given with the last ratings decide, and otherwise the first rule.
    """
    first = parts[0].rule
    last = parts[-1].rule
    source = parts[-1].source
    options = {} if source is None else source.options
    # Options of the last reading decide only if they were given.
    policy, half_life = first.policy, first.half_life
    if "duplicates" in options:
        policy = last.policy
    elif parts[0].implicit and last.policy == "sum":
        policy = "sum"
    if "half_life" in options:
        half_life = last.half_life
    kinds, weights = common_kinds([part.rule for part in parts])
    return replace(
        first, policy=policy, half_life=half_life, kinds=kinds, weights=weights
    )


def _joined_events(parts: Sequence[Ratings], rule: EventRule) -> Entries:
    """Return the events of ratings with the same ids, one part after the other."""
    entries = []
    for part in parts:
        in_order = part.in_time_order
        if part.events is not None or (in_order is not None and in_order.any()):
            events = part.log.entries()
        else:  # without the sorting of a log, which would not matter
            values = Values(part.data, part.levels)
            events = replace(stored_log(part), values=values).entries()
        if rule.kinds:
            set_kinds(events, part.rule.kinds, rule.kinds)
        entries.append(events)
    return joined_entries(entries)


def _common_order(parts: Sequence[Ratings], came: npt.NDArray[np.int32]) -> Mask | None:
    """Return the users whose rows were in the order of time in all ratings.

    Of later ratings, rows count for the users who `came`, with a row that stays.
    """
    orders = [part.in_time_order for part in parts if part.in_time_order is not None]
    if len(orders) < len(parts):
        return None
    common = orders[0].copy()
    for order in orders[1:]:
        common[came] &= order[came]
    return common


def _compared(
    old: Ratings,
    after: Ratings,
    touched: pl.Series,
) -> Change:
    """Return the change from old ratings to new ones, which differ for `touched` users only.

    New ids include the remaining old ones.
    """
    users = after.users.find(old.users.values)
    items = after.items.find(old.items.values)
    has_changed = ~_marked(users, after.n_users)
    is_new_item = ~_marked(items, after.n_items)
    changed = _changed_pairs(old, after, users, items, touched)
    # Dislikes and impressions change vectors, too.
    zeros = _zero_pairs(after, touched)
    old_zeros = _zero_pairs(old, touched)
    old_zeros = _Pairs(users[old_zeros.users], items[old_zeros.items])
    for pairs in (changed, zeros, old_zeros):
        has_changed |= _marked(pairs.users, after.n_users)
    n_items = max(after.n_items, 1)
    remaining = old_zeros.numbers(n_items)[old_zeros.items >= 0]
    differing = np.setxor1d(
        distinct(remaining), zeros.numbers(n_items), assume_unique=True
    )
    columns = np.append(changed.items, differing % n_items)
    touches = np.bincount(columns[columns >= 0], minlength=after.n_items)
    is_outdated = is_new_item | _has_grown(after.counts("item"), touches)
    return Change(
        old,
        after,
        users,
        items,
        changed_users=np.flatnonzero(has_changed),
        outdated=np.flatnonzero(is_outdated),
    )


class _Pairs(NamedTuple):
    """Users and items of pairs."""

    users: Indices
    items: Indices

    def numbers(self, n_items: int) -> Indices:
        """Return one number for each pair."""
        return self.users * np.int64(n_items) + self.items


def _changed_pairs(
    old: Ratings,
    after: Ratings,
    users: Indices,
    items: Indices,
    touched: pl.Series,
) -> _Pairs:
    """Return pairs that were added, removed, or have another value or time, in new indices.

    `users` and `items` have the new index of each old one, -1 if it was removed.
    """
    n_items = max(after.n_items, 1)
    positions, rows = _ratings_of(after, touched)
    new = _Pairs(rows, after.indices[positions].astype(np.int64))
    old_positions, old_rows = _ratings_of(old, touched)
    earlier = _Pairs(users[old_rows], items[old.indices[old_positions]])
    numbers = earlier.numbers(n_items)
    # Removed users or items have no pair any more, but a number for each rating.
    is_gone = (earlier.users < 0) | (earlier.items < 0)
    numbers[is_gone] = -1 - np.flatnonzero(is_gone)
    _, at, old_at = np.intersect1d(
        new.numbers(n_items), numbers, assume_unique=True, return_indices=True
    )
    is_removed = np.ones(len(numbers), np.bool_)
    is_removed[old_at] = False
    old_at = old_positions[old_at]
    new_at = positions[at]
    is_same = old.values_at(old_at) == after.values_at(new_at)
    if old.seconds is not None and after.seconds is not None:
        is_same &= old.seconds[old_at] == after.seconds[new_at]
    # A rating with another value counts once, as a removed or an added one does.
    differs = np.ones(len(rows), np.bool_)
    differs[at[is_same]] = False
    return _Pairs(
        np.append(new.users[differs], earlier.users[is_removed]),
        np.append(new.items[differs], earlier.items[is_removed]),
    )


def _zero_pairs(ratings: Ratings, users: pl.Series) -> _Pairs:
    """Return the pairs of some users that are disliked or were only shown."""
    zeros = ratings.zeros
    if zeros is None:
        return _Pairs(np.zeros(0, np.int64), np.zeros(0, np.int64))
    rows = np.repeat(np.arange(ratings.n_users), np.diff(zeros.indptr))
    is_chosen = np.isin(rows, ratings.users.find(users))
    return _Pairs(rows[is_chosen], zeros.indices[is_chosen].astype(np.int64))


def _has_grown(counts: Indices, touches: Indices) -> Mask:
    """Return whether the number of ratings of each item has grown by more than 2%.

    Over many small updates, an item is recomputed once per such growth: each time the logarithm
    of its number of ratings passes a multiple of `_GROWTH`.
    """
    earlier = np.maximum(counts - touches, 0)
    logarithms = np.log1p([earlier, counts]) / np.log1p(_GROWTH)
    before, now = np.floor(logarithms)
    has_grown: Mask = (before != now) | (touches >= _GROWTH * counts)
    return has_grown & (touches > 0)


def _ratings_of(ratings: Ratings, users: pl.Series) -> tuple[Indices, Indices]:
    """Return the positions of the ratings of some users, and the index of each user."""
    is_chosen = _marked(ratings.users.find(users), ratings.n_users)
    positions = np.flatnonzero(np.repeat(is_chosen, np.diff(ratings.indptr)))
    rows = np.searchsorted(ratings.indptr, positions, side="right") - 1
    return positions, rows


def _marked(indices: Indices, n: int) -> Mask:
    """Mark which of `n` positions the indices have, leaving out negative indices."""
    mask = np.zeros(n, np.bool_)
    mask[indices[indices >= 0]] = True
    return mask


def _without_rows(ratings: Ratings, users: Ids) -> Ratings:
    """Return ratings without the rows of users in their table."""
    if ratings.user_table is None:
        return ratings
    return replace(ratings, user_table=ratings.user_table.without(users))


def are_known(users: Ids, *parts: Ratings) -> Mask:
    """Return which users are in some of the ratings, or in their tables of users."""
    mask = np.zeros(len(users), np.bool_)
    for part in parts:
        tables = [part.users.values]
        if part.user_table is not None:
            tables.append(part.user_table.frame["user"])
        for ids in tables:
            mask |= _marked(users.find(ids), len(users))
    return mask


def _with_ids_of(old: Ratings, new: Ratings) -> Ratings:
    """Return the old ratings with the ids, tables and features of both."""
    users = _united(old.users, new.users)
    items = _united(old.items, new.items)
    axes = []
    for axis, newer, ids in zip(old.axes, new.axes, (users, items), strict=True):
        table = newer.table
        if axis.table is not None:
            table = axis.table.updated(table)
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
            f"The model has integer {known.kind} ids; {first!r} cannot be among them "
            f"({_TEXT_IDS})."
        )
    return known.union(converted)


def encoded_rows(
    axis: Axis,
    table: Features | None,
    new: Features | None,
    ids: Ids,
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

    # Rows that stay are not encoded again, so that they keep their bits.
    updated_ids = Ids(ids.values.filter(is_updated), ids.kind)
    updated = encoder.transform(table, updated_ids)
    stacked = vstack([features.matrix, updated.matrix], format="csr")
    rows = indices.copy()
    rows[is_updated] = np.arange(len(axis.ids), stacked.shape[0])
    encoded: GroupedFeatures = replace(cast(Any, features), matrix=stacked[rows])
    return encoded

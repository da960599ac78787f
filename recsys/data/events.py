"""Events: the log behind ratings, and the rule by which a pair's events become its rating."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from lowrank.kernels import pieces
from recsys.data.arrays import Array, Doubles, Floats, Longs, Mask, positions_of
from recsys.data.csr import (
    CSR,
    Entries,
    Events,
    Values,
    are_repeats,
    arrays_of,
    compact_times,
    group_rows,
    in_common,
    merged,
    sort_rows,
    sort_rows_by,
    to_csr,
)
from recsys.data.kinds import IMPRESSION, EventRule
from recsys.data.rows import ANY_EVENT, NO_EVENT, with_few_kinds

_CHUNK = 1 << 18  # events compared at once, to limit temporary memory
# Of an old interaction, so that it does not underflow.
_LEAST_WEIGHT = np.float32(1e-12)


class Collected(NamedTuple):
    """Ratings made of events.

    `events` is None if the ratings tell everything: each pair has one event, and its
    value and time are in the rating. `in_time_order` tells for each user whether the
    rows were in the order of time; None without times. `n_same` events were left out as
    repetitions of others, `n_conflicts` of them with the id of an event that differs, and
    `n_returned` pairs because their weight is not positive.
    """

    csr: CSR
    events: Events | None
    rule: EventRule
    in_time_order: Mask | None = None
    n_same: int = 0
    n_returned: int = 0
    n_conflicts: int = 0

    @property
    def log(self) -> Events:
        """The events behind the ratings."""
        return implied_events(self.csr) if self.events is None else self.events


def collect(
    entries: Entries,
    shape: tuple[int, int],
    rule: EventRule,
    *,
    implicit: bool,
    known_order: Mask | None = None,
) -> Collected:
    """Make ratings of events, given as entries in the order of their rows.

    An event is known by its id where it has one, and otherwise by its user, item, time,
    kind and value. A repetition of a known event is left out. Without times, a
    repetition cannot be told. `known_order` marks the users whose earlier rows were in
    the order of time; by default, all.
    """
    # Ids tell repetitions of any user and item, before events are grouped by user.
    entries, n_same, n_conflicts = _without_known_keys(entries)
    events = group_rows(entries, shape[0])
    order = _order_of_time(events, known_order)
    has_details = _have_details(events, rule) or rule.above is not None
    if not has_details and not order.has_ties:
        csr, events = _if_plain(events, shape, rule, implicit=implicit)
        if csr is not None:
            return Collected(
                csr, None, rule, order.in_time_order, n_same, n_conflicts=n_conflicts
            )
    if events.seconds is not None:
        is_repeated = repeated(events)
        n_same += int(is_repeated.sum())
        if is_repeated.any():
            events = events.take(~is_repeated)
            order = _order_of_time(events, known_order)
    events = _sorted_by_time(events, order.in_time_order).compact()
    csr, n_returned = aggregate(events, shape, rule, implicit=implicit)
    is_told = ratings_tell(csr, events, rule, order.in_time_order)
    stored = None if is_told else events
    return Collected(
        csr, stored, rule, order.in_time_order, n_same, n_returned, n_conflicts
    )


def with_used_kinds(collected: Collected) -> Collected:
    """Renumber the kinds of events without those that do not occur."""
    events, rule = collected.events, collected.rule
    if events is None or events.kinds is None:
        return collected
    used = np.flatnonzero(np.bincount(events.kinds, minlength=len(rule.kinds)))
    if len(used) == len(rule.kinds):
        return collected
    table = np.zeros(len(rule.kinds), np.uint8)
    table[used] = np.arange(len(used))
    kinds = tuple(rule.kinds[code] for code in used)
    weights = tuple(rule.weights[code] for code in used)
    return collected._replace(
        events=replace(events, kinds=table[events.kinds]),
        rule=replace(rule, kinds=kinds, weights=weights),
    )


def ratings_tell(
    csr: CSR,
    events: Events,
    rule: EventRule,
    in_time_order: Mask | None,
) -> bool:
    """Return whether ratings tell all that is known of the events behind them."""
    if _have_details(events, rule):
        return False
    if rule.above is not None and events.values is not None:
        return False
    has_several = len(events) != len(csr.indices)
    are_merged = rule.policy in ("last", "first") and events.seconds is None
    if has_several and not are_merged:
        return False
    return not _order_of_time(events, in_time_order).has_ties


def _have_details(events: Events, rule: EventRule) -> bool:
    """Return whether events have kinds, ids or ages that ratings made of them do not tell."""
    are_labelled = events.kinds is not None or events.keys is not None
    return are_labelled or rule.half_life is not None or rule.graded


def aggregate(
    events: Events,
    shape: tuple[int, int],
    rule: EventRule,
    *,
    implicit: bool,
) -> tuple[CSR, int]:
    """Return one rating per pair, and the number of pairs left out with no positive weight."""
    csr = _totals(events, shape, rule)
    if rule.graded:
        # Impressions say less than a grade.
        grades = (csr.values.at() > 0).astype(np.float32)
        return replace(csr, values=Values.of(grades)), 0
    if rule.above is not None:
        return _interactions(csr, rule.above)
    return without_returned(csr, implicit=implicit)


def _totals(
    events: Events,
    shape: tuple[int, int],
    rule: EventRule,
) -> CSR:
    """Return one value per pair, without the pairs that were only shown."""
    entries = events.entries()
    if rule.half_life is not None or events.kinds is not None:
        # Ages count from the newest of all events, impressions included.
        entries.values = Values.of(event_weights(events, rule))
    if events.kinds is not None and 0.0 in rule.weights:
        entries = entries.take(np.asarray(rule.weights)[events.kinds] != 0)
    # A rating has neither; its weight has the weight of the kind.
    entries.kinds = entries.keys = None
    return to_csr(entries, shape, rule.policy)


def zeros_of(
    events: Events | None,
    shape: tuple[int, int],
    rule: EventRule,
) -> CSR | None:
    """Return the pairs that are disliked or were only shown, with confidences as values.

    A disliked pair has a confidence above `IMPRESSION`, the confidence of a pair that was only
    shown, which is the lowest one. None without such kinds.
    """
    if events is None or events.kinds is None or not rule.has_zeros:
        return None
    weights = np.asarray(rule.weights)[events.kinds]
    against = events.take(weights <= 0).entries()
    against.values = Values.of((weights[weights <= 0] < 0).astype(np.float32))
    against.kinds = against.keys = None
    pairs = to_csr(against, shape, "sum")
    totals = _totals(events, shape, rule)
    positions = positions_of(_keys(pairs), _keys(totals))
    # Impressions alone have no total.
    values = np.append(totals.values.at(), 0.0)[positions]
    is_disliked = pairs.values.at() > 0
    confidence = np.full(len(values), IMPRESSION, np.float32)
    least = np.nextafter(np.float32(IMPRESSION), np.float32(1))
    confidence[is_disliked] = np.maximum(-values[is_disliked], least)
    pairs = replace(pairs, values=Values.of(confidence))
    return selected_pairs(pairs, values <= 0)


def _keys(csr: CSR) -> Longs:
    """Return an increasing number for each pair."""
    users = np.repeat(np.arange(csr.shape[0]), np.diff(csr.indptr))
    return users * np.int64(csr.shape[1]) + csr.indices


def _interactions(csr: CSR, above: float) -> tuple[CSR, int]:
    """Take pairs with a rating above a limit as interactions of weight 1."""
    selected = csr.values.at() > above
    csr = selected_pairs(csr, selected)
    return replace(csr, values=Values.ones(len(csr.indices))), int(
        np.count_nonzero(~selected)
    )


def event_weights(events: Events, rule: EventRule) -> Floats:
    """Return the weight of each event times the weights of its kind and its age."""
    weights = np.empty(len(events), np.float32)
    newest = None if events.seconds is None or not len(events) else events.seconds.max()
    for part in pieces(len(events), _CHUNK):
        weights[part] = _weights_of(events, part, rule, newest)
    return weights


def _weights_of(
    events: Events,
    part: slice,
    rule: EventRule,
    newest: np.number[Any] | None,
) -> Doubles:
    """Return the weights of some events; `newest` is the time of the newest of all events."""
    weights = np.ones(len(events.items[part]))
    if events.values is not None:
        weights *= events.values.at(part)
    if events.kinds is not None:
        weights *= np.asarray(rule.weights)[events.kinds[part]]
    if rule.half_life is not None and events.seconds is not None and newest is not None:
        ages = newest - events.seconds[part].astype(np.float64)
        weights *= np.exp2(-ages / rule.half_life)
        positive = weights > 0
        weights[positive] = np.maximum(weights[positive], _LEAST_WEIGHT)
    return weights


def implied_events(csr: CSR) -> Events:
    """Return the events behind ratings that tell everything, in the order of time."""
    events = Events(csr.indptr, csr.indices, csr.values, csr.seconds)
    return _sorted_by_time(events, None).compact()


def joined_entries(parts: Sequence[Entries]) -> Entries:
    """Concatenate entries; times are kept if all parts have them."""
    if len(parts) == 1:
        return parts[0]
    values = None
    if any(part.values is not None for part in parts):
        every = [part.values or Values.ones(len(part.rows)) for part in parts]
        one, other = in_common(*every)
        values = Values(np.concatenate([one.data, other.data]), one.levels)
    seconds = None
    times = [part.seconds for part in parts if part.seconds is not None]
    if len(times) == len(parts):
        seconds = compact_times(np.concatenate(times))
    return Entries(
        np.concatenate([part.rows for part in parts]),
        np.concatenate([part.items for part in parts]),
        values,
        seconds,
        _joined(parts, "kinds", np.uint8),
        _joined(parts, "keys", np.uint64),
    )


def common_kinds(
    rules: Sequence[EventRule],
) -> tuple[tuple[str, ...], tuple[float, ...]]:
    """Return the kinds of all rules, and the weight that the last rule with a kind gives it.

    If some rules have kinds, the others are of events without a kind, which weigh 1.

    Raises
    ------
    DataError
        If there are more than 256 kinds.
    """
    if not any(rule.kinds for rule in rules):
        return (), ()
    weights: dict[str, float] = {}
    for rule in rules:
        if not rule.kinds:
            weights.setdefault(NO_EVENT, 1.0)
        weights |= dict(zip(rule.kinds, rule.weights, strict=True))
    weights = with_few_kinds(weights)
    kinds = tuple(sorted(weights))
    return kinds, tuple(weights[kind] for kind in kinds)


def set_kinds(
    entries: Entries,
    own: tuple[str, ...],
    kinds: tuple[str, ...],
) -> None:
    """Replace codes of `own` kinds by codes of `kinds`; entries without one get a code, too."""
    codes = {kind: code for code, kind in enumerate(kinds)}
    other_code = codes.get(ANY_EVENT, 0)
    if entries.kinds is None:
        code = codes.get(NO_EVENT, other_code)
        entries.kinds = np.full(len(entries.rows), code, np.uint8)
    elif own != kinds:
        table = np.array([codes.get(kind, other_code) for kind in own], np.uint8)
        entries.kinds = table[entries.kinds]


def _joined(
    parts: Sequence[Entries],
    name: str,
    dtype: Any,
) -> Array | None:
    """Concatenate an array of several parts, with zeros for a part without it."""
    if all(getattr(part, name) is None for part in parts):
        return None
    arrays = []
    for part in parts:
        array = getattr(part, name)
        arrays.append(np.zeros(len(part.rows), dtype) if array is None else array)
    return np.concatenate(arrays)


def _without_known_keys(entries: Entries) -> tuple[Entries, int, int]:
    """Leave out entries whose id occurred before.

    Return also their number, and how many of them differ from the first one with the id.
    """
    if entries.keys is None:
        return entries, 0, 0
    keys = entries.keys
    # Of several events with an id, the first one counts; 0 stands for none.
    distinct, first_rows = np.unique(keys, return_index=True)
    first = np.zeros(len(keys), np.bool_)
    first[first_rows] = True
    first |= keys == 0
    repeats = np.flatnonzero(~first)
    if not len(repeats):
        return entries, 0, 0
    originals = first_rows[np.searchsorted(distinct, keys[repeats])]
    differs = entries.rows[repeats] != entries.rows[originals]
    for array in arrays_of(entries).values():
        differs |= array[repeats] != array[originals]
    return entries.take(first), len(repeats), int(np.count_nonzero(differs))


class _Order(NamedTuple):
    """Users whose rows are in the order of time, and whether some of these have equal times."""

    in_time_order: Mask | None
    has_ties: bool


def _order_of_time(events: Events, known_order: Mask | None) -> _Order:
    """Compare the time of each row with the next one of the same user."""
    seconds = events.seconds
    if seconds is None:
        return _Order(None, False)
    indptr = events.indptr
    in_order = np.ones(len(indptr) - 1, np.bool_)
    if known_order is not None:
        in_order &= known_order
    with_ties = np.zeros(len(indptr) - 1, np.bool_)
    for start in range(0, len(seconds) - 1, _CHUNK):
        here = seconds[start : start + _CHUNK]
        after = seconds[start + 1 : start + 1 + _CHUNK]
        here = here[: len(after)]
        # Few events are not later than the one before, so only these are looked up.
        candidates = np.flatnonzero(after <= here)
        users = np.searchsorted(indptr, start + candidates, side="right") - 1
        same_user = start + candidates + 1 < indptr[users + 1]
        users = users[same_user]
        candidates = candidates[same_user]
        falls = after[candidates] < here[candidates]
        in_order[users[falls]] = False
        with_ties[users[~falls]] = True
    return _Order(in_order, bool((in_order & with_ties).any()))


def _if_plain(
    events: Events,
    shape: tuple[int, int],
    rule: EventRule,
    *,
    implicit: bool,
) -> tuple[CSR | None, Events]:
    """Return the ratings if they tell everything; else None, and the events as they were."""
    needs_events = events.seconds is not None or rule.policy not in ("last", "first")
    if not needs_events:
        sort_rows(events)
        if implicit and _has_returns(events.values):
            return None, events
        return merged(events, shape, rule.policy), events
    fits = len(events) < np.iinfo(np.int32).max
    positions = np.arange(len(events), dtype=np.int32 if fits else np.int64)
    sort_rows(events, positions)
    if are_repeats(events).any() or (implicit and _has_returns(events.values)):
        # The inverse permutation restores the order of the rows.
        before = np.empty_like(positions)
        before[positions] = np.arange(len(positions), dtype=positions.dtype)
        return None, events.reordered(before)
    del positions  # to free its memory
    return merged(events, shape, rule.policy), events


def _has_returns(values: Values | None) -> bool:
    """Return whether some weight is not positive."""
    if values is None:
        return False
    numbers = values.data if values.levels is None else values.levels
    return bool(float(numbers.min(initial=np.inf)) <= 0)


def repeated(events: Events) -> Mask:
    """Mark the events that an earlier row of the same user has told already."""
    repeated = np.zeros(len(events), np.bool_)
    arrays = arrays_of(events)
    for block in _user_blocks(events.indptr):
        positions = np.arange(block.start, block.stop)
        users = np.searchsorted(events.indptr, positions, side="right")
        rows = pl.DataFrame({name: array[block] for name, array in arrays.items()})
        is_first = rows.with_columns(user=users).to_struct().is_first_distinct()
        repeated[block] = ~is_first.to_numpy()
    return repeated


def _user_blocks(indptr: Longs) -> Iterator[slice]:
    """Yield the positions of the events of some users at a time, to limit temporary memory."""
    n_events = int(indptr[-1])
    begin = 0
    while begin < n_events:
        last_user = np.searchsorted(indptr, min(begin + _CHUNK, n_events))
        end = int(indptr[last_user])
        yield slice(begin, end)
        begin = end


def _sorted_by_time(events: Events, in_time_order: Mask | None) -> Events:
    """Sort the events of each user by time, and ties by item unless the rows are in order."""
    items = events.items
    if events.seconds is None:
        return sort_rows_by(events, items)
    if in_time_order is not None:
        if in_time_order.all():
            return events
        # Equal keys keep the order of the rows.
        items = np.where(in_time_order[events.users], np.int32(0), items)
    events = sort_rows_by(events, items)
    return sort_rows_by(events, np.asarray(events.seconds))


def without_returned(csr: CSR, *, implicit: bool) -> tuple[CSR, int]:
    """Leave out interactions with no positive weight, such as returned purchases."""
    if not (implicit and _has_returns(csr.values)):
        return csr, 0
    positive = csr.values.at() > 0
    return selected_pairs(csr, positive), int(np.count_nonzero(~positive))


def selected_pairs(csr: CSR, mask: Mask) -> CSR:
    """Return the selected entries."""
    before = np.append(0, np.cumsum(mask))
    return replace(
        csr,
        indptr=before[csr.indptr],
        indices=csr.indices[mask],
        values=Values.of(csr.values.at(mask)),
        seconds=None if csr.seconds is None else csr.seconds[mask],
    )

"""Canonical CSR form: compact storage of rows that are read, and sorted entries."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
import polars as pl

from lowrank.kernels import (
    N_CODES,
    backends,
    default_threads,
    level_counts,
    pieces,
    row_places,
)
from recsys.data.arrays import (
    Array,
    Codes,
    Doubles,
    Floats,
    Hashes,
    Ints,
    Longs,
    Mask,
    Times,
)
from recsys.data.ids import MISSING_IDS, Ids, id_hashes, id_problem, is_bad_id
from recsys.data.kinds import Policy
from recsys.data.rows import Rows
from recsys.data.times import epoch_seconds
from recsys.errors import DataError

_CHUNK = 1 << 20  # number of entries processed at once, to limit temporary memory
_INT32 = np.iinfo(np.int32)
_FEWEST = 1 << 16  # minimum number of rows to allocate
_IDS = ("user", "item")
_NUMBERS = (*_IDS, "timestamp")
# Limits on the range of ids that is counted directly.
_FEW_PLACES = 2**12
_ROWS_PER_PLACE = 8
_MOST_IDS = 2**31 - 1
_FEWEST_KEYS = 1 << 12  # minimum number of keys to allocate
# Maximum mean number of pairs for each id of an event, unless there are few.
_PAIRS_OF_AN_ID = 2
_FEWEST_EVENTS = 20
_LARGEST = float(np.finfo(np.float32).max)
# Two arrays at a time, so that few are in memory twice.
_MOVED_TOGETHER = (
    ("items", "data"),
    ("seconds", "kinds"),
    ("keys",),
)
_ROUNDING = 1e-6  # share of the sum of absolute weights that is a rounding error

Data: TypeAlias = Codes | Floats
Column: TypeAlias = "pl.Series | Array"
"""Column of a batch; an array is of int64 or float32."""


class Levels:
    """Set of at most 256 distinct values, in order of first occurrence."""

    def __init__(self) -> None:
        self.table = np.zeros(N_CODES, np.float32)
        self.count = 0

    @property
    def values(self) -> Floats:
        """The values."""
        return self.table[: self.count]

    def code(self, values: Floats, codes: Codes) -> bool:
        """Write the code of each value, adding new ones; return False if too many."""
        values = np.ascontiguousarray(values, np.float32)
        count = backends.active.code_levels(values, codes, self.table, self.count)
        levels = self.table[: max(count, 0)]
        if np.signbit(levels[levels == 0]).any():  # -0 is 0
            values = values + np.float32(0)
            count = backends.active.code_levels(values, codes, self.table, self.count)
        self.count = max(count, self.count)
        return bool(count >= 0)


class Keys:
    """Set of distinct integers, in order of first occurrence."""

    def __init__(self) -> None:
        self.count = 0
        self._make(_FEWEST_KEYS)

    @property
    def values(self) -> Longs:
        """The integers."""
        return self._distinct[: self.count]

    def codes(self, keys: Ints | Longs) -> Ints:
        """Return the code of each key, adding new keys."""
        remaining: Array = np.ascontiguousarray(keys)
        all_codes = np.empty(len(remaining), np.int32)
        codes = all_codes
        while True:
            done, self.count = backends.active.code_keys(
                remaining, codes, self._distinct, self.count, self._slots
            )
            if done == len(remaining):
                return all_codes
            remaining = remaining[done:]
            codes = codes[done:]
            self._enlarge()

    def _enlarge(self) -> None:
        """Double the room, and enter the keys again, with the same codes."""
        keys = self.values
        codes = np.empty(len(keys), np.int32)
        self._make(2 * len(self._distinct))
        backends.active.code_keys(keys, codes, self._distinct, 0, self._slots)

    def _make(self, room: int) -> None:
        self._distinct = np.empty(room, np.int64)
        self._slots = np.full(2 * room, -1, np.int32)


class Values(NamedTuple):
    """Values of entries: float32 numbers, or uint8 codes of at most 256 levels."""

    data: Data
    levels: Floats | None = None  # increasing

    @classmethod
    def of(cls, values: Floats) -> Values:
        """Return values as codes if they have at most 256 levels, else unchanged."""
        levels = Levels()
        codes = np.empty(len(values), np.uint8)
        if levels.code(values, codes):
            return cls.ordered(codes, levels.values)
        return cls(values)

    @classmethod
    def ordered(cls, codes: Codes, levels: Floats) -> Values:
        """Sort the levels, and renumber the codes in place."""
        order = np.argsort(levels, kind="stable")
        is_sorted = (order[1:] > order[:-1]).all()
        if not is_sorted:
            ranks = np.empty(len(order), np.uint8)
            ranks[order] = np.arange(len(order), dtype=np.uint8)
            for part in pieces(len(codes), _CHUNK):
                codes[part] = ranks[codes[part]]
        return cls(codes, levels[order])

    @classmethod
    def ones(cls, n: int) -> Values:
        """Return `n` values of 1."""
        codes = np.zeros(n, np.uint8)
        return cls(codes, levels=np.ones(1, np.float32))

    def compact(self) -> Values:
        """Return the values as codes of the levels that occur, if at most 256."""
        if self.levels is None:
            return Values.of(cast(Floats, self.data))
        counts = level_counts(cast(Codes, self.data))
        occurs = counts[: len(self.levels)] > 0
        if occurs.all():
            return self
        # The code of a level that occurs is the number of such levels below it.
        new_codes = (np.cumsum(occurs) - 1).astype(np.uint8)
        return Values(new_codes[self.data], self.levels[occurs])

    def at(self, which: Any = slice(None)) -> Floats:
        """Return the values, or some of them, as numbers."""
        part = self.data[which]
        if self.levels is not None:
            part = self.levels[part]
        return cast(Floats, part)


def in_common(one: Values, other: Values) -> tuple[Values, Values]:
    """Return both with common levels, or as numbers if there are too many levels."""
    if one.levels is not None and other.levels is not None:
        levels = np.union1d(one.levels, other.levels)
        if len(levels) <= N_CODES:
            return _in_levels(one, levels), _in_levels(other, levels)
    return Values(one.at()), Values(other.at())


def _in_levels(values: Values, levels: Floats) -> Values:
    """Return the codes of values in other levels, which must include theirs."""
    if values.levels is None or np.array_equal(values.levels, levels):
        return values
    new_codes = np.searchsorted(levels, values.levels).astype(np.uint8)
    return Values(new_codes[values.data], levels)


class Batches:
    """Columns of rows, collected batch by batch in few bytes.

    Ids that fit are 32-bit numbers, texts are codes of categories, ratings are codes of
    at most 256 levels, and dates are seconds. Columns that have other types, or missing
    values, are kept as polars series.
    """

    def __init__(self, n_expected: int = _FEWEST) -> None:
        self._n_expected = n_expected
        # Arrays, because polars returns memory to the system later than NumPy.
        self._arrays: dict[str, _GrowingArray] = {}
        self._parts: dict[str, list[pl.Series]] = {}
        # Categories live as long as a series has them.
        self._texts: dict[str, pl.Series] = {}
        self._levels: Levels | None = Levels()
        self._in_seconds = False

    def add(self, batch: Mapping[str, Column]) -> None:
        """Add rows, given as columns by role; arrays are of int64 or float32."""
        for role, column in batch.items():
            series = pl.Series(role, column)
            if role == "timestamp" and isinstance(series.dtype, pl.Date | pl.Datetime):
                series = epoch_seconds(series)
                self._in_seconds = True
            numbers = None if role in self._parts else self._numbers(role, series)
            if numbers is not None:
                if role not in self._arrays:
                    self._arrays[role] = _GrowingArray(self._n_expected)
                self._arrays[role].append(numbers)
                continue
            parts = self._parts.setdefault(role, [])
            if role in self._arrays:
                rows = self._rows_of_arrays(role).decode()
                parts.append(rows.columns[role])
            parts.append(series)

    def rows(self) -> Rows:
        """Return all rows, and release their columns."""
        rows = self._rows_of_arrays(*self._arrays)
        # The parts of each column are freed before the next one is concatenated.
        for role in tuple(self._parts):
            rows.columns[role] = concatenated(self._parts.pop(role))
        return rows

    def _rows_of_arrays(self, *roles: str) -> Rows:
        """Return columns that are arrays, without a copy, and release them."""
        rows = Rows({}, in_seconds=self._in_seconds)
        for role in roles:
            numbers = self._arrays.pop(role).numbers
            column = pl.Series(role, numbers)
            rows.memory[role] = numbers
            if role in self._texts:
                column = column.cat.to(self._texts[role].dtype)
            elif role == "rating" and self._levels is not None:
                rows.levels = self._levels.values
            rows.columns[role] = column
        return rows

    def _numbers(self, role: str, column: pl.Series) -> Array | None:
        """Return a column as numbers; None if it has to be kept as it is."""
        dtype = column.dtype
        if column.null_count():
            return None
        if role == "rating":
            is_plain = dtype.is_numeric() and _fits_in_floats(column)
            return self._codes(column) if is_plain else None
        is_text = isinstance(dtype, pl.String | pl.Categorical | pl.Enum)
        if role in self._arrays and is_text != (role in self._texts):
            return None
        if is_text and role in _IDS:
            categories = self._as_categories(role, column)
            return categories.to_physical().to_numpy()
        if not dtype.is_integer() or dtype == pl.UInt64 or role not in _NUMBERS:
            return None
        integers = column.to_numpy()
        return integers.astype(np.int32 if _fits_in_ints(integers) else np.int64)

    def _codes(self, ratings: pl.Series) -> Array:
        """Return ratings as codes while they have few levels, else as numbers."""
        values: Floats = ratings.cast(pl.Float32).to_numpy()
        if self._levels is None:
            return values
        codes = np.empty(len(values), np.uint8)
        if self._levels.code(values, codes):
            return codes
        if "rating" in self._arrays:
            earlier_codes = self._arrays["rating"].numbers
            self._arrays["rating"] = _GrowingArray(self._n_expected)
            self._arrays["rating"].append(self._levels.values[earlier_codes])
        self._levels = None
        return values

    def _as_categories(self, role: str, column: pl.Series) -> pl.Series:
        """Return texts with the categories of the earlier texts of a role."""
        if role not in self._texts:
            first = column.head(1).cast(pl.String)
            self._texts[role] = first.cast(pl.Categorical(pl.Categories.random()))
        target = self._texts[role].dtype
        if not isinstance(column.dtype, pl.Categorical):
            return column.cast(pl.String).cast(target)
        # This looks up each category, not each value.
        dtype: Any = column.dtype
        categories: pl.Series = dtype.categories.to_series()
        return categories.cast(target).gather(column.to_physical())


class _GrowingArray:
    """Numbers to which others are appended; unused space takes no memory."""

    def __init__(self, n_expected: int) -> None:
        self._n_expected = n_expected
        self._space: Array = np.empty(0, np.uint8)
        self._n = 0

    @property
    def numbers(self) -> Array:
        """The numbers."""
        return self._space[: self._n]

    def append(self, numbers: Array) -> None:
        """Append numbers, in twice the space or as a wider type if necessary."""
        end = self._n + len(numbers)
        dtype = numbers.dtype
        if self._n:
            dtype = np.result_type(self._space, numbers)
        if end > len(self._space) or dtype != self._space.dtype:
            # Not by `resize`, which writes zeros.
            size = max(2 * self._n, end, self._n_expected)
            space = np.empty(size, dtype)
            space[: self._n] = self.numbers
            self._space = space
        self._space[self._n : end] = numbers
        self._n = end


def _fits_in_ints(numbers: Array) -> bool:
    """Return whether all integers are in the range of int32."""
    if not len(numbers):
        return True
    low = numbers.min()
    high = numbers.max()
    return bool(low >= _INT32.min and high <= _INT32.max)


def _fits_in_floats(numbers: pl.Series) -> bool:
    """Return whether all numbers are in the range of float32."""
    if numbers.dtype != pl.Float64:
        return True
    ends: list[Any] = [numbers.min(), numbers.max()]
    return all(abs(end or 0.0) <= _LARGEST for end in ends)


def concatenated(series: list[pl.Series]) -> pl.Series:
    """Concatenate columns, as numbers if all are numbers and else as strings."""
    types = {column.dtype for column in series}
    if len(types) == 1:
        return pl.concat(series, rechunk=True)
    if all(isinstance(dtype, pl.Categorical) for dtype in types):
        shared = pl.Categorical(pl.Categories.random())
        texts = [column.cast(pl.String) for column in series]
        return pl.concat([column.cast(shared) for column in texts])
    target: type[pl.DataType] = pl.String
    if all(dtype.is_integer() for dtype in types):
        target = pl.Int64
    elif all(dtype.is_numeric() for dtype in types):
        target = pl.Float64
    return pl.concat([column.cast(target) for column in series])


@dataclass(slots=True)
class Entries:
    """Events in any order: arrays of one number per event, used again when they are grouped."""

    rows: Ints
    items: Ints
    values: Values | None = None  # None if all are 1
    seconds: Times | None = None
    kinds: Codes | None = None
    keys: Hashes | None = None  # hashes of the ids of events; 0 if missing

    def take(self, selected: Mask) -> Entries:
        """Return the events selected by a mask."""
        fields = _changed(self, lambda array: array[selected])
        return Entries(self.rows[selected], **fields)


@dataclass(frozen=True, slots=True, eq=False)
class Events:
    """Events by user; in `Ratings`, in the order of time; without times, by item.

    Events of a user at the same time are in the order of the rows if these were in the
    order of time (see `Ratings.in_time_order`), and otherwise ordered by item.

    Attributes
    ----------
    indptr : int64 ndarray of shape (n_users + 1,)
        User u's events are at positions indptr[u]:indptr[u + 1].
    items : int32 ndarray of shape (n_events,)
    values : Values or None
        Grades, or weights before the kind and the age count; None if all are 1.
    seconds : int32, int64 or float64 ndarray of shape (n_events,), or None
        Seconds since 1970-01-01 UTC.
    kinds : uint8 ndarray of shape (n_events,), or None
        Codes of the kinds in `EventRule.kinds`.
    keys : uint64 ndarray of shape (n_events,), or None
        Hashes of the ids of events; 0 where an event has none.
    """

    indptr: Longs
    items: Ints
    values: Values | None = None
    seconds: Times | None = None
    kinds: Codes | None = None
    keys: Hashes | None = None

    def __len__(self) -> int:
        return len(self.items)

    @property
    def users(self) -> Ints:
        """User of each event, a new array."""
        counts = np.diff(self.indptr)
        users = np.arange(len(counts), dtype=np.int32)
        return np.repeat(users, counts)

    def saved_arrays(self) -> dict[str, Array]:
        """Return the arrays by name, as they are saved."""
        arrays = {"indptr": self.indptr, **arrays_of(self)}
        levels = levels_of(self)
        if levels is not None:
            arrays["levels"] = levels
        return arrays

    def take(self, selected: Mask) -> Events:
        """Return the events selected by a mask."""
        before = np.append(0, np.cumsum(selected))
        part = self.reordered(selected)
        return replace(part, indptr=before[self.indptr]).compact()

    def of_users(self, users: Longs) -> Events:
        """Return the events of some users, who get the indices 0, 1, ..."""
        places, indptr = row_places(self.indptr, users)
        return replace(self.reordered(places), indptr=indptr)

    def reordered(self, order: Array) -> Events:
        """Return the events in another order that keeps them with their users."""
        return Events(self.indptr, **_changed(self, lambda array: array[order]))

    def renumbered(
        self,
        users: Longs,
        n_users: int,
        items: Longs,
    ) -> Events:
        """Return the events with other indices; increasing, so that their order stays.

        `users` and `items` have the new index of each old one. Those without events may
        be -1.
        """
        counts = np.zeros(n_users, np.int64)
        remaining = users >= 0
        counts[users[remaining]] = np.diff(self.indptr)[remaining]
        indptr = np.append(0, np.cumsum(counts))
        new_items = items[self.items].astype(np.int32)
        return replace(self, indptr=indptr, items=new_items)

    def entries(self) -> Entries:
        """Return copies of the arrays as entries, which may be moved and merged."""
        return Entries(self.users, **_changed(self, np.copy))

    def compact(self) -> Events:
        """Return the events with read-only arrays of few bytes, and no values of 1."""
        values = None if self.values is None else self.values.compact()
        if values is not None and is_all_ones(values):
            values = None
        seconds = None if self.seconds is None else compact_times(self.seconds)
        events = replace(self, values=values, seconds=seconds)
        for array in (self.indptr, *arrays_of(events).values()):
            array.flags.writeable = False
        return events


def is_all_ones(values: Values) -> bool:
    """Return whether every value is 1."""
    return values.levels is not None and values.levels.tolist() == [1.0]


def arrays_of(events: Entries | Events) -> dict[str, Array]:
    """Return the arrays of one number per event by name; "data" are the values."""
    data = None if events.values is None else events.values.data
    arrays = {
        "items": events.items,
        "data": data,
        "seconds": events.seconds,
        "kinds": events.kinds,
        "keys": events.keys,
    }
    return {name: array for name, array in arrays.items() if array is not None}


def levels_of(events: Entries | Events) -> Floats | None:
    """Return the levels of the values, if the values are coded."""
    return None if events.values is None else events.values.levels


def _changed(
    events: Entries | Events,
    change: Callable[[Array], Array],
) -> dict[str, Any]:
    """Return the fields of events with a function of each array."""
    arrays = {name: change(array) for name, array in arrays_of(events).items()}
    return _fields(arrays, levels_of(events))


def _fields(
    arrays: dict[str, Array],
    levels: Floats | None,
) -> dict[str, Any]:
    """Return the fields of events for arrays as `arrays_of` returns them."""
    fields: dict[str, Any] = {**arrays}
    if "data" in fields:
        fields["values"] = Values(fields.pop("data"), levels)
    return fields


def encoded(rows: Rows) -> tuple[Ids, Ids, Entries]:
    """Return the users, items and entries of prepared rows, and remove their columns.

    Raises
    ------
    DataError
        If an id of an event is a rounded number, or these are not ids of single events.
    """
    # Each column is removed, so that its memory is free when it has been encoded.
    columns: Any = rows.columns
    memory = rows.memory
    users, user_codes = encode(
        columns.pop("user"), "user", rows.idle_users, memory.pop("user", None)
    )
    items, item_codes = encode(
        columns.pop("item"), "item", memory=memory.pop("item", None)
    )
    entries = Entries(user_codes, item_codes)
    if "timestamp" in columns:
        times = columns.pop("timestamp")
        entries.seconds = compact_times(_array_of(times, memory.get("timestamp")))
    if "event" in columns:
        entries.kinds = columns.pop("event").to_numpy(writable=True)
    if "event_id" in columns:
        entries.keys = _checked_keys(columns.pop("event_id"), rows)
        _check_events(entries)
    if rows.levels is not None:
        codes = _array_of(columns.pop("rating"), memory.get("rating"))
        entries.values = Values.ordered(codes, rows.levels)
    elif "rating" in columns:
        entries.values = Values.of(columns.pop("rating").to_numpy())
    memory.clear()
    return users, items, entries


def _array_of(column: pl.Series, memory: Array | None) -> Array:
    """Return the numbers of a column, in an array to write to.

    This is `memory` if the column is still a view of it, and else a copy.
    """
    if memory is None or len(memory) != len(column):
        return column.to_numpy(writable=True)
    is_view = memory.ctypes.data == column.to_numpy().ctypes.data
    return memory if is_view else column.to_numpy(writable=True)


def _checked_keys(events: pl.Series, rows: Rows) -> Hashes:
    """Return the hashes of ids of events, or raise an error for a rounded number."""
    if events.dtype.is_float():
        numbers = events.fill_nan(None)
        rounded = is_bad_id(numbers) & (numbers == numbers.floor())
    else:
        texts = events.cast(pl.String)
        rounded = is_bad_id(texts) & ~texts.is_in(MISSING_IDS)
    if rounded.any():
        row = rounded.arg_max() or 0
        problem = id_problem(events[row], "event", events.dtype)
        raise DataError(f"{rows.place(row)}: {problem}")
    return event_keys(events)


def event_keys(ids: pl.Series) -> Hashes:
    """Return a hash of the text of each id of an event, 0 where the id is missing.

    A whole number that was stored as a float, 17.0, has the hash of the integer.
    """
    keys = np.empty(len(ids), np.uint64)
    for part in pieces(len(ids), _CHUNK):
        texts = _texts_of_events(ids[part])
        is_missing = texts.is_null() | texts.is_in(MISSING_IDS)
        hashes = np.maximum(id_hashes(texts.fill_null("")), 1)
        hashes[is_missing.fill_null(True).to_numpy()] = 0
        keys[part] = hashes
    return keys


def _check_events(entries: Entries) -> None:
    """Raise an error if most ids of events have several pairs, as kinds have."""
    assert entries.keys is not None
    sorted_keys = np.sort(entries.keys[entries.keys != 0])
    is_new = np.diff(sorted_keys) != 0
    n_ids = int(np.count_nonzero(is_new)) + 1
    limit = max(_FEWEST_EVENTS, _PAIRS_OF_AN_ID * n_ids)
    if len(sorted_keys) <= limit:
        return
    frame = pl.DataFrame(
        {
            "key": entries.keys,
            "user": entries.rows,
            "item": entries.items,
        }
    )
    n_pairs = frame.filter(pl.col("key") != 0).n_unique()
    if n_pairs > limit:
        raise DataError(
            f"The column of ids of events has {n_ids:,} different ids for {n_pairs:,} rows of "
            "different users or items, so that these are not ids of single events; name another "
            "column with --event-id-col (event_id=), or rename this one."
        )


def _texts_of_events(ids: pl.Series) -> pl.Series:
    """Convert ids of events to texts, and whole numbers to the texts of integers."""
    if not ids.dtype.is_float():
        return ids.cast(pl.String).str.replace(r"^(-?[0-9]+)\.0+$", "$1")
    integers = ids.cast(pl.Int64, strict=False)
    is_whole = integers == ids
    return integers.cast(pl.String).zip_with(is_whole, ids.cast(pl.String))


def encode(
    values: pl.Series,
    kind: str,
    idle: pl.Series | None = None,
    memory: Array | None = None,
) -> tuple[Ids, Ints]:
    """Return the distinct ids (with the idle ones), and the index of each row's id.

    `memory` may be the array of which the values are a view; it is overwritten.

    Raises
    ------
    DataError
        If the number of ids exceeds the range of int32.
    """
    if values.dtype == pl.String:
        values = values.cast(pl.Categorical(pl.Categories.random()))
    codes, used_codes, distinct_keys = _coded(_array_of(values.to_physical(), memory))
    distinct = pl.Series(kind, distinct_keys)
    if isinstance(values.dtype, pl.Categorical):
        dtype: Any = values.dtype
        distinct = dtype.categories.to_series().gather(distinct).alias(kind)
    dtype_of_ids = pl.Int64 if distinct.dtype.is_integer() else pl.String
    distinct = distinct.cast(dtype_of_ids)
    all_ids = distinct
    if idle is not None:
        all_ids = pl.concat([distinct, idle.alias(kind)])
    ids = Ids(all_ids, kind)
    if len(ids) > _MOST_IDS:
        raise DataError(
            f"There may be at most {_MOST_IDS:,} {kind}s; got {len(ids):,}."
        )
    n_codes = int(used_codes.max(initial=-1)) + 1
    indices = np.zeros(n_codes, np.int32)
    indices[used_codes] = ids.find(distinct)
    backends.active.look_up(codes, indices, codes, default_threads.get())
    return ids, codes


def _coded(keys: Array) -> tuple[Ints, Longs, Longs]:
    """Return a code of each key, the codes that occur, and their keys.

    Keys of a small range are counted directly, without a table of hashes. 32-bit keys
    are overwritten by their codes.
    """
    low = 0
    span = 1
    if len(keys):
        low = int(keys.min())
        span = int(keys.max()) - low + 1
    if keys.dtype == np.uint32:  # codes of categories
        keys = keys.view(np.int32)
    if span > _FEW_PLACES + len(keys) // _ROWS_PER_PLACE:
        coded = Keys()
        codes = coded.codes(keys.astype(np.int64, copy=False))
        return codes, np.arange(coded.count), coded.values
    codes = keys
    if keys.dtype != np.int32:
        codes = np.empty(len(keys), np.int32)
    np.subtract(keys, low, out=codes, casting="unsafe")
    offsets = np.empty(span + 1, np.int64)
    backends.active.row_offsets(codes, offsets)
    used_codes = np.flatnonzero(np.diff(offsets))
    return codes, used_codes, used_codes + low


@dataclass(frozen=True, slots=True)
class CSR:
    """Canonical CSR arrays, as in `Ratings`, and repeated (user, item) pairs.

    `n_duplicates` entries were merged or dropped.
    """

    shape: tuple[int, int]
    indptr: Longs
    indices: Ints
    values: Values
    seconds: Times | None = None
    n_duplicates: int = 0


def to_csr(
    entries: Entries,
    shape: tuple[int, int],
    policy: Policy = "last",
) -> CSR:
    """Return entries in canonical CSR form; the arrays of the entries are reused.

    First and last of a repeated pair refer to the order of the entries, which is the order of the
    times of each user. "mean" and "sum" keep the last time, and "error" is as "last".
    """
    events = group_rows(entries, shape[0])
    sort_rows(events)
    return merged(events, shape, policy)


def group_rows(entries: Entries, n_rows: int) -> Events:
    """Move entries to their rows, in their order there; the entries are released."""
    rows = entries.rows
    indptr = np.empty(n_rows + 1, np.int64)
    is_grouped = backends.active.row_offsets(rows, indptr)
    arrays = arrays_of(entries)
    levels = levels_of(entries)
    # No reference to an array is kept, so that each is freed before the next is moved.
    entries.rows = entries.items = np.empty(0, np.int32)
    entries.values = None
    entries.seconds = None
    entries.kinds = None
    entries.keys = None
    if is_grouped:
        for name, array in arrays.items():
            if not array.flags.writeable:
                arrays[name] = array.copy()
        return Events(indptr, **_fields(arrays, levels))
    for names in _MOVED_TOGETHER:
        moved = [name for name in names if name in arrays]
        sources = [arrays.pop(name) for name in moved]
        targets: list[Array] = [np.empty_like(source) for source in sources]
        threads = default_threads.get()
        backends.active.scatter(rows, indptr, sources, targets, threads)
        del sources
        arrays |= dict(zip(moved, targets, strict=True))
    return Events(indptr, **_fields(arrays, levels))


def sort_rows(events: Events, *others: Array) -> None:
    """Sort the events of each user by item in place, and other arrays with them.

    Repeats keep their order.
    """
    arrays = arrays_of(events)
    items = arrays.pop("items")
    moved = [*arrays.values(), *others]
    backends.active.sort_rows(events.indptr, items, moved, default_threads.get())


def sort_rows_by(events: Events, keys: Array) -> Events:
    """Sort the events of each user by keys; events with the same key keep their order.

    Returns copies of the arrays. The compiled sort takes 32-bit keys, and others are
    sorted by NumPy.
    """
    if not len(keys):
        return events
    low = keys.min()
    # Python's integers, because 32-bit ones would overflow.
    if keys.dtype.kind == "f" or int(keys.max()) - int(low) > _INT32.max:
        return events.reordered(np.lexsort((keys, events.users)))
    copies = Events(events.indptr, **_changed(events, np.copy))
    shifted = (keys - low).astype(np.int32)
    moved = [*arrays_of(copies).values()]
    backends.active.sort_rows(events.indptr, shifted, moved, default_threads.get())
    return copies


def first_repeat(users: Ints, items: Ints) -> tuple[int, int] | None:
    """Return the position of the first event of a pair that has another one before it.

    The second number is the position of the earlier one.
    """
    pairs = pl.Series(users.astype(np.int64) << 32 | items)
    is_first = pairs.is_first_distinct()
    if is_first.all():
        return None
    position = is_first.arg_min() or 0
    return position, (pairs == pairs[position]).arg_max() or 0


def are_repeats(events: Events) -> Mask:
    """Return which events of sorted rows have the item of the next event."""
    items = events.items
    repeats = items[1:] == items[:-1]
    # The last event of a user is followed by one of another user.
    starts = events.indptr[1:-1]
    is_between = (starts > 0) & (starts < len(items))
    repeats[starts[is_between] - 1] = False
    return np.asarray(repeats)


def merged(
    events: Events,
    shape: tuple[int, int],
    policy: Policy,
) -> CSR:
    """Merge sorted events to one per pair, in place."""
    repeats = are_repeats(events)
    n_repeats = int(np.count_nonzero(repeats))
    if not n_repeats:
        return _as_csr(events, shape)
    is_first = np.append(True, ~repeats)
    is_last = np.append(~repeats, True)
    arrays = arrays_of(events)
    totals = None
    if policy in ("mean", "sum"):
        totals = _totals(events, np.flatnonzero(is_first), policy)
    selected = is_first if policy == "first" else is_last
    for name in arrays:
        arrays[name] = _moved_to_front(arrays[name], selected)
    # The positions have no name, so that they are released before values are coded.
    n_removed = np.searchsorted(np.flatnonzero(~selected), events.indptr)
    indptr = events.indptr - n_removed
    pairs = Events(indptr, **_fields(arrays, levels_of(events)))
    if totals is not None:
        pairs = replace(pairs, values=Values.of(totals))
    return replace(_as_csr(pairs, shape), n_duplicates=n_repeats)


def _as_csr(events: Events, shape: tuple[int, int]) -> CSR:
    """Return sorted events without repeats, with values as codes if they are few."""
    values = Values.ones(len(events))
    if events.values is not None:
        values = events.values.compact()
    seconds = None if events.seconds is None else compact_times(events.seconds)
    return CSR(shape, events.indptr, events.items, values, seconds)


def _totals(
    events: Events,
    firsts: Longs,
    policy: Policy,
) -> Floats:
    """Return the sum or mean of each pair, whose first events are given.

    Raises
    ------
    DataError
        If a sum exceeds single precision.
    """
    totals = np.empty(len(firsts), np.float32)
    for part in pieces(len(firsts), _CHUNK):
        end = len(events)
        if part.stop < len(firsts):
            end = int(firsts[part.stop])
        sums = _sums(events, firsts[part], end)
        if policy == "mean":
            sums /= np.diff(firsts[part], append=end)
        largest = float(np.abs(sums).max(initial=0))
        if largest > float(np.finfo(np.float32).max):
            raise DataError(
                f"The weights of a pair of user and item add up to {largest:.3g}, and "
                "single precision ends at 3.4e+38; scale the weights to about 1."
            )
        totals[part] = sums
    return totals


def _sums(
    events: Events,
    firsts: Longs,
    end: int,
) -> Doubles:
    """Return the sum of each of some pairs, whose events are next to one another."""
    begin = int(firsts[0])
    starts = firsts - begin
    if events.values is None:
        return np.diff(starts, append=end - begin).astype(np.float64)
    numbers = events.values.at(slice(begin, end))
    sums: Doubles = np.add.reduceat(numbers, starts, dtype=np.float64)
    if numbers.min() < 0:
        # A purchase that is returned as a whole leaves no rounding error.
        sizes = np.add.reduceat(np.abs(numbers), starts, dtype=np.float64)
        is_rounding = np.abs(sums) <= _ROUNDING * sizes
        sums[is_rounding] = 0
    return sums


def compact_times(seconds: Array) -> Times:
    """Return times in four bytes each if they fit: whole seconds from 1902 to 2037."""
    if seconds.dtype == np.int32:
        return seconds
    if seconds.dtype == np.float64:
        rounded = np.floor(seconds)
        if not np.array_equal(rounded, seconds):
            return seconds
        seconds = rounded.astype(np.int64)
    if _fits_in_ints(seconds):
        return seconds.astype(np.int32)
    return seconds


def _moved_to_front(array: Array, mask: Mask) -> Array:
    """Move the selected entries to the front of the array; return a view of them."""
    end = 0
    for part in pieces(len(array), _CHUNK):
        selected = array[part][mask[part]]
        array[end : end + len(selected)] = selected
        end += len(selected)
    return array[:end]

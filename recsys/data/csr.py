"""Canonical CSR form: entries in the order of users and items, and their values as codes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from lowrank.kernels import resolve_threads
from lowrank.kernels.entries import N_CODES, Levels, row_offsets, scatter, sort_rows
from recsys.data.ids import Ids, encode, in_order
from recsys.data.rows import Policy, Rows
from recsys.errors import DataError

__all__ = ["CSR", "Entries", "Times", "Values", "compact_times", "encoded", "in_common", "to_csr"]

_CHUNK = 1 << 20  # entries at once: bounds the scratch memory
_KEY_BITS = 63  # an int64 key must stay non-negative
_INT32 = np.iinfo(np.int32)

Data = npt.NDArray[np.uint8] | npt.NDArray[np.float32]
Times = npt.NDArray[np.int32] | npt.NDArray[np.int64]


class Values(NamedTuple):
    """Values of entries: float32 numbers, or the places of each among at most 256 levels.

    Attributes
    ----------
    data : float32 or uint8 ndarray of shape (nnz,)
    levels : float32 ndarray of shape (n_levels,), or None
        Increasing.
    """

    data: Data
    levels: npt.NDArray[np.float32] | None = None

    @classmethod
    def of(cls, values: npt.NDArray[np.float32]) -> Values:
        """Return values as codes if they have few levels, else as they are."""
        levels, codes = Levels(), np.empty(len(values), np.uint8)
        for part in _parts(len(values)):
            if not levels.code(values[part], codes[part]):
                return cls(values)
        return cls.ordered(codes, levels.values)

    @classmethod
    def ordered(cls, codes: npt.NDArray[np.uint8], levels: npt.NDArray[np.float32]) -> Values:
        """Return codes of levels in any order as those of increasing ones, in place."""
        order = np.argsort(levels, kind="stable")
        if not (order[1:] > order[:-1]).all():
            places = np.empty(len(order), np.uint8)
            places[order] = np.arange(len(order), dtype=np.uint8)
            for part in _parts(len(codes)):
                codes[part] = places[codes[part]]
        return cls(codes, levels[order])

    @classmethod
    def ones(cls, n: int) -> Values:
        """Return as many ones."""
        return cls(np.zeros(n, np.uint8), np.ones(1, np.float32))

    def at(self, which: Any = slice(None)) -> npt.NDArray[np.float32]:
        """Return the values, or some of them, as numbers."""
        part = self.data[which]
        return cast("npt.NDArray[np.float32]", part if self.levels is None else self.levels[part])


def in_common(one: Values, other: Values) -> tuple[Values, Values]:
    """Return both with the same levels, or both as numbers where the levels are too many."""
    if one.levels is not None and other.levels is not None:
        levels = np.union1d(one.levels, other.levels)
        if len(levels) <= N_CODES:
            return _in_levels(one, levels), _in_levels(other, levels)
    return Values(one.at()), Values(other.at())


def _in_levels(values: Values, levels: npt.NDArray[np.float32]) -> Values:
    """Return codes among other levels, which have all of theirs."""
    if values.levels is None or np.array_equal(values.levels, levels):
        return values
    return Values(np.searchsorted(levels, values.levels).astype(np.uint8)[values.data], levels)


@dataclass(slots=True)
class Entries:
    """Entries of a matrix in any order, in arrays of one number for each, which are overwritten.

    Attributes
    ----------
    rows, columns : int32 ndarrays
    values : Values or None
        None for ones.
    seconds : int32 or int64 ndarray, or None
        Times.
    """

    rows: npt.NDArray[np.int32]
    columns: npt.NDArray[np.int32]
    values: Values | None = None
    seconds: Times | None = None


def encoded(rows: Rows) -> tuple[Ids, Ids, Entries]:
    """Return users, items and entries of prepared rows, whose columns are removed.

    Raises
    ------
    DataError
        If an id is a text that stands for a missing one.
    """
    columns, arrays = rows.columns, rows.arrays
    if arrays:
        user_codes, item_codes = arrays.pop("user"), arrays.pop("item")
        users = in_order(user_codes, rows.distinct["user"], "user")
        items = in_order(item_codes, rows.distinct["item"], "item")
    else:
        users, user_codes = encode(columns.pop("user"), "user", rows.idle_users)
        items, item_codes = encode(columns.pop("item"), "item", None)
    for ids, codes in ((users, user_codes), (items, item_codes)):
        if len(missing := ids.missing()):
            row = int(np.isin(codes, missing).argmax())
            text = ids.values[int(codes[row])]
            raise DataError(f"{rows.place(row)}: the {ids.kind} id is missing ({text!r}).")
    entries = Entries(user_codes, item_codes, seconds=arrays.pop("timestamp", None))
    if (times := columns.pop("timestamp", None)) is not None:
        entries.seconds = compact_times(times.to_numpy())
    if "rating" in arrays:
        data, levels = arrays.pop("rating"), rows.levels
        entries.values = Values(data) if levels is None else Values.ordered(data, levels)
    elif (given := columns.pop("rating", None)) is not None and rows.levels is not None:
        entries.values = Values.ordered(given.to_numpy(writable=True), rows.levels)
    elif given is not None:
        entries.values = Values.of(given.to_numpy())
    return users, items, entries


@dataclass(frozen=True, slots=True)
class CSR:
    """Canonical CSR arrays, as in `Ratings`, and repeated (user, item) pairs.

    `n_duplicates` entries were merged or dropped; `repeat` has the places of the first repeated
    pair among the entries as they were given, and its place in the arrays.
    """

    shape: tuple[int, int]
    indptr: npt.NDArray[np.int64]
    indices: npt.NDArray[np.int32]
    values: Values
    seconds: Times | None = None
    n_duplicates: int = 0
    repeat: tuple[int, int, int] | None = None


def to_csr(entries: Entries, shape: tuple[int, int], policy: Policy = "last") -> CSR:
    """Return entries in canonical CSR form.

    Of repeated pairs the times decide what is first and last; ties, and data without them, go by
    the order of the entries. "mean" and "sum" keep the latest time. With "error" nothing is merged:
    the caller looks at `repeat`.

    Entries are counted by row and put in place, and then sorted within each row.
    """
    threads = resolve_threads(None)
    rows, n = entries.rows, len(entries.rows)
    indptr, is_grouped = row_offsets(rows, shape[0])
    arrays: dict[str, npt.NDArray[Any]] = {"columns": entries.columns}
    levels = None
    if entries.values is not None:
        arrays["data"], levels = entries.values
    if entries.seconds is not None:
        arrays["seconds"] = entries.seconds
    if policy == "error":
        arrays["place"] = np.arange(n, dtype=np.int64)
    # Nothing here keeps an array that is not in order, so that they are freed before the others.
    entries.values = entries.seconds = None
    entries.rows = entries.columns = np.empty(0, np.int32)
    if is_grouped:
        arrays = {n: each if each.flags.writeable else each.copy() for n, each in arrays.items()}
    else:
        for some in (arrays.keys() & {"columns", "data"}, arrays.keys() & {"seconds", "place"}):
            found = scatter(rows, indptr, [arrays.pop(name) for name in some], threads)
            arrays |= dict(zip(some, found, strict=True))
    del rows
    others = [array for name, array in arrays.items() if name != "columns"]
    sort_rows(indptr, arrays["columns"], others, threads)
    return _merged(arrays, indptr, shape, levels, policy)


def _merged(
    arrays: dict[str, npt.NDArray[Any]],
    indptr: npt.NDArray[np.int64],
    shape: tuple[int, int],
    levels: npt.NDArray[np.float32] | None,
    policy: Policy,
) -> CSR:
    """Return sorted entries with one for each pair."""
    columns = arrays["columns"]
    repeats = columns[1:] == columns[:-1]
    starts = indptr[1:-1]
    repeats[starts[(starts > 0) & (starts < len(columns))] - 1] = False
    n_duplicates, repeat = int(np.count_nonzero(repeats)), None
    if n_duplicates and policy == "error":  # the pair whose second entry was given first
        place, at = arrays["place"], np.flatnonzero(repeats)
        first = int(at[np.argmin(place[at + 1])])
        repeat = int(place[first]), int(place[first + 1]), first
    elif n_duplicates:
        is_first, is_last = np.append(True, ~repeats), np.append(~repeats, True)
        if "seconds" in arrays:
            members = np.flatnonzero(~(is_first & is_last))
            order = members[_by_time(np.cumsum(is_first[members]), arrays["seconds"][members])]
            for name in arrays.keys() & {"data", "seconds"}:
                arrays[name][members] = arrays[name][order]
        if policy in ("mean", "sum"):
            firsts = np.flatnonzero(is_first)
            ones = np.broadcast_to(np.float32(1), len(columns))  # which take no memory
            given = Values(arrays["data"], levels).at() if "data" in arrays else ones
            totals = np.add.reduceat(given, firsts, dtype=np.float64)
            totals /= np.diff(firsts, append=len(columns)) if policy == "mean" else 1
        kept = is_first if policy == "first" else is_last
        for name in arrays:
            arrays[name] = _kept_in_place(arrays[name], kept)
        indptr -= np.searchsorted(np.flatnonzero(~kept), indptr)
        if policy in ("mean", "sum"):
            arrays["data"], levels = Values.of(totals.astype(np.float32))
    n = len(arrays["columns"])
    values = Values(arrays["data"], levels) if "data" in arrays else Values.ones(n)
    if values.levels is None:
        values = Values.of(values.data)  # type: ignore[arg-type]
    seconds = arrays.get("seconds")
    return CSR(shape, indptr, arrays["columns"], values, seconds, n_duplicates, repeat)


def compact_times(seconds: npt.NDArray[np.int64]) -> Times:
    """Return times in four bytes each if they fit, as those from 1902 to 2037 do."""
    fits = not len(seconds) or (seconds.min() >= _INT32.min and seconds.max() <= _INT32.max)
    return seconds.astype(np.int32) if fits else seconds


def _parts(n: int) -> Iterator[slice]:
    return (slice(start, start + _CHUNK) for start in range(0, n, _CHUNK))


def _kept_in_place(array: npt.NDArray[Any], mask: npt.NDArray[np.bool_]) -> npt.NDArray[Any]:
    """Return the entries of a mask, moved to the front of the array: without another copy."""
    end = 0
    for part in _parts(len(array)):
        kept = array[part][mask[part]]
        array[end : end + len(kept)] = kept
        end += len(kept)
    return array[:end]


def _by_time(groups: npt.NDArray[np.int64], seconds: Times) -> npt.NDArray[np.int64]:
    """Return the order in which the members of each group, all in order, are in that of time."""
    first, last = int(seconds.min()), int(seconds.max())
    span = last - first + 1
    if (int(groups[-1]) + 1) * span >= 2**_KEY_BITS:
        return np.lexsort((seconds, groups))
    # Nearly in order, which a stable sort is quick with.
    keys = groups * np.int64(span)
    keys += seconds
    keys -= first
    return np.argsort(keys, kind="stable")

"""Ids: an immutable map between ids (of users, items, documents, terms) and indices 0..n-1."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import polars as pl

from recsys.errors import DataError, UnknownIdError
from recsys.messages import close_matches, enumerated, shortened

IdsLike: TypeAlias = (
    "pl.Series | Sequence[int] | Sequence[str] | Sequence[int | str] | npt.NDArray[Any] | int | str"
)
"""A single id, or any sequence of ids: integers or strings."""


class Spot(NamedTuple):
    """Place of a row for messages; it sorts by the number of the file and then of the row."""

    order: tuple[int, ...]
    text: str

    def __str__(self) -> str:
        return self.text


Place: TypeAlias = Callable[[int], Spot]
"""Function that gives the place of a row (counted from 0), such as "ratings.csv, line 17"."""

MISSING_IDS = ("", "NULL", "null", "nan", "NaN", "None", "<NA>", r"\N")
"""Texts that programs write for a missing id, and that are never ids of users or items."""

CANONICAL_INTEGER = re.compile(r"^(?:0|-?[1-9][0-9]{0,18})$")
"""Canonical form of an integer: "7", not "007", "+7" or "7.0"."""

_INT64_LIMIT = 2**63
_TABLE_PAYS_FROM = 100_000  # number of queries for which a table is faster than a binary search
_FEW = 2**16  # number of string ids up to which a dict is faster than starting polars' threads
_JOIN_PAYS_FROM = 10  # a join is faster than a search for more than one query per this many ids
_QUOTED = 200  # maximum number of characters of an id in a message
_LEAST_PART = 2  # minimum length of an unknown id that is searched for within other ids
_NAMED = 3  # maximum number of ids named in an error message
_CLOSE_MATCH_POOL = 5_000  # string ids compared with an unknown one, on each side in sorted order


class Ids:
    """Immutable map between ids and the indices 0..n-1.

    Integers are sorted numerically, strings by code point, and repeated values are merged. With
    ``sort=False``, distinct ids keep the given order.

    Parameters
    ----------
    values : polars Series, sequence or ndarray
        Integers (also floats without a fractional part) or strings; no nulls.
    kind : str
        Kind of the ids, such as "user", used as the name of `values` and in messages.
    sort : bool
        If False, ids keep their order and must be distinct; mixed types become strings.

    Attributes
    ----------
    values : polars Series
        The ids in index order, named after `kind`, of dtype Int64 or String.
    kind : str

    Raises
    ------
    DataError
        If a value is null, a boolean, a fraction, or neither an integer nor a string; or, with
        ``sort=False``, if a value occurs twice.

    Examples
    --------
    >>> ids = Ids([30, 10, 20], "user")
    >>> ids.index([10, "30"])
    array([0, 2])
    >>> ids.take(np.array([2, 0])).to_list()
    [30, 10]
    """

    __slots__ = ("_numbers", "_order", "_sorted", "kind", "values")

    def __init__(self, values: IdsLike, kind: str, *, sort: bool = True) -> None:
        if isinstance(values, int | str):
            values = [values]
        series = as_id_series(values if sort else _uniform(values, kind), kind).rechunk()
        self.kind = kind
        self._order: npt.NDArray[np.int64] | None = None  # index of each id in sorted order
        self.values = self._sorted = series
        if not (series.head(-1) < series.tail(-1)).all():
            self._sorted = series.unique().sort()
            if sort:
                self.values = self._sorted
            elif len(self._sorted) < len(series):
                twice = series.filter(series.is_duplicated())[0]
                raise DataError(f"Each {kind} needs a distinct id; {twice!r} occurs twice.")
            else:
                self._order = series.arg_sort().to_numpy().astype(np.int64)
        numbers = self._sorted.to_numpy() if series.dtype == pl.Int64 else None
        self._numbers: npt.NDArray[np.int64] | None = numbers

    @property
    def dtype(self) -> pl.DataType:
        """Int64 or String."""
        return self.values.dtype

    def __len__(self) -> int:
        return len(self.values)

    def __repr__(self) -> str:
        shown = _listed(self.values.head(_NAMED))
        more = ", ..." if len(self) > _NAMED else ""
        return f"Ids({self.kind}: {len(self):,} of {self.dtype}: {shown}{more})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Ids):
            return NotImplemented
        return self.kind == other.kind and self.values.equals(other.values, check_dtypes=True)

    def __hash__(self) -> int:
        return hash((self.kind, len(self), self.dtype))

    def missing(self) -> npt.NDArray[np.int64]:
        """Return the indices of texts that mark a missing id, such as "NULL"."""
        if self.dtype != pl.String:
            return np.zeros(0, np.int64)
        found = self.find(MISSING_IDS)
        return found[found >= 0]

    def take(self, indices: npt.NDArray[np.integer[Any]]) -> pl.Series:
        """Return the ids at `indices`, ints in 0..n-1.

        Raises
        ------
        IndexError
            If an index is outside 0..n-1.
        """
        indices = np.asarray(indices)
        if indices.size and (indices.min() < 0 or indices.max() >= len(self)):
            bad = indices[(indices < 0) | (indices >= len(self))][0]
            raise IndexError(
                f"{self.kind} indices must be between 0 and {len(self) - 1}; got {bad}."
            )
        if self._numbers is not None and self._order is None:
            return pl.Series(self.kind, self._numbers[indices])
        return self.values[indices]

    def like(self, values: IdsLike) -> pl.Series:
        """Convert ids to the type of these; null if impossible, as for "007" among integers."""
        series = as_id_series(_uniform(values, self.kind), self.kind)
        found = series.cast(self.dtype, strict=False)
        return found.set((found.cast(series.dtype) != series).fill_null(True), None)

    def union(self, values: IdsLike) -> Ids:
        """Return the union of both; all become strings if some id is not an integer."""
        series = as_id_series(_uniform(values, self.kind), self.kind)
        new = series.filter(self.find(series) < 0)
        if not len(new):
            return self
        both = [self.values, self.like(new)]
        if both[1].null_count():
            both = [each.cast(pl.String) for each in (self.values, new)]
        return Ids(pl.concat(both), self.kind)

    def find(self, queries: IdsLike) -> npt.NDArray[np.int64]:
        """Return the index of each id, and -1 for an unknown id.

        Integers match string ids in their canonical form, and vice versa: 42 matches "42", and "42"
        matches 42, but "042" does not match 42. A query that is null, a boolean or a fraction
        raises `DataError`.
        """
        series = as_id_series(_uniform(queries, self.kind), self.kind)
        if self._numbers is None:
            texts = series.cast(pl.String)
            if len(texts) * _JOIN_PAYS_FROM < len(self):
                places = self._sorted.search_sorted(texts).to_numpy().astype(np.int64)
                places = np.minimum(places, len(self) - 1)
                found = np.where((self._sorted[places] == texts).to_numpy(), places, -1)
            elif len(self) <= _FEW:
                known = dict(zip(self._sorted, range(len(self)), strict=True))
                found = np.array([known.get(text, -1) for text in texts], np.int64)
            else:
                table = pl.DataFrame({"id": self._sorted, "index": np.arange(len(self))})
                requested = texts.alias("id").to_frame()
                joined = requested.join(table, on="id", how="left", maintain_order="left")
                found = joined["index"].fill_null(-1).to_numpy(writable=True)
        elif series.dtype == pl.Int64:
            found = self._find_integers(series.to_numpy())
        else:
            canonical = series.str.contains(CANONICAL_INTEGER.pattern)
            numbers = series.set(~canonical, None).cast(pl.Int64, strict=False)
            found = self._find_integers(numbers.fill_null(0).to_numpy())
            found = np.where(numbers.is_null().to_numpy(), -1, found)
        if self._order is None or not len(found):
            return found
        return np.where(found < 0, -1, self._order[found])

    def place(self, query: int | str) -> int:
        """Return the index of one id, or -1 if it is unknown; faster than `find` for one id.

        Examples
        --------
        >>> ids = Ids([30, 10, 20], "user")
        >>> ids.place("20"), ids.place(42)
        (1, -1)
        """
        if self._numbers is None:
            text = str(query)
            place = bisect_left(self._sorted, text)
            is_there = place < len(self) and self._sorted[place] == text
        else:
            number = query if type(query) is int else _INT64_LIMIT
            if isinstance(query, str) and CANONICAL_INTEGER.fullmatch(query):
                number = int(query)
            if not -_INT64_LIMIT <= number < _INT64_LIMIT:
                return -1
            place = int(self._numbers.searchsorted(number))
            is_there = place < len(self) and int(self._numbers[place]) == number
        if not is_there:
            return -1
        return place if self._order is None else int(self._order[place])

    def index(self, queries: IdsLike) -> npt.NDArray[np.int64]:
        """Return the index of each id; every id must be known.

        Raises
        ------
        UnknownIdError
            If an id is unknown; the message names the closest ids that exist.
        DataError
            If a query is null, a boolean or a fraction.
        """
        found = self.find(queries)
        missing = np.flatnonzero(found < 0)
        if not len(missing):
            return found
        series = as_id_series(_uniform(queries, self.kind), self.kind)
        unknown: list[int | str] = series.gather(missing).unique(maintain_order=True).to_list()
        if self._numbers is not None:
            unknown = [int(e) if CANONICAL_INTEGER.fullmatch(str(e)) else e for e in unknown]
        several = len(unknown) > 1
        to_which = f" to {_quoted(unknown[0])}" * several
        raise UnknownIdError(
            f"Unknown {self.kind}{'s' * several} {enumerated(unknown, _NAMED, _quoted)}; "
            f"{self._nearest(unknown[0], to_which)}."
        )

    def _find_integers(self, queries: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        numbers = self._numbers
        assert numbers is not None
        if not len(numbers):
            return np.full(len(queries), -1, dtype=np.int64)
        span = int(numbers[-1]) - int(numbers[0]) + 1
        if len(queries) >= _TABLE_PAYS_FROM and span <= 8 * len(queries):
            table = np.full(span, -1, dtype=np.int64)
            table[numbers - numbers[0]] = np.arange(len(numbers))
            inside = (queries >= numbers[0]) & (queries <= numbers[-1])
            found: npt.NDArray[np.int64] = table[np.where(inside, queries - numbers[0], 0)]
            found[~inside] = -1
            return found
        places = np.minimum(np.searchsorted(numbers, queries), len(numbers) - 1)
        places[numbers[places] != queries] = -1
        return places

    def _nearest(self, unknown: int | str, to_which: str) -> str:
        """Return a hint with the ids closest to an unknown one, or with examples of ids."""
        if not len(self):
            return f"there are no {self.kind}s"
        near: Sequence[int | str] = []
        if self._numbers is None:
            text, values = str(unknown), self._sorted
            place = values.search_sorted(text)
            low = max(place - _CLOSE_MATCH_POOL, 0)
            pool = values.slice(low, 2 * _CLOSE_MATCH_POOL).to_list()
            around = sorted(range(len(pool)), key=lambda index: abs(low + index - place))
            close = close_matches(text, (pool[index] for index in around), _NAMED)
            lower = values.str.to_lowercase()
            same = lower.str.strip_chars_start("0") == text.lower().lstrip("0")  # 7 for 007
            near = [*dict.fromkeys([*values.filter(same), *close])][:_NAMED]
            if not near and len(text) >= _LEAST_PART:
                within = values.filter(lower.str.contains(text.lower(), literal=True)).to_frame(
                    "id"
                )
                within = within.sort(pl.col("id").str.len_chars(), "id")
                near = within["id"].head(_NAMED).to_list()
        elif isinstance(unknown, int):
            clipped = min(max(unknown, -_INT64_LIMIT), _INT64_LIMIT - 1)
            place = int(np.searchsorted(self._numbers, clipped))
            numbers = self._numbers[max(place - _NAMED, 0) : place + _NAMED].tolist()
            near = sorted(numbers, key=lambda each: (abs(each - unknown), each))[:_NAMED]
        if not near:
            return f"ids look like {_listed(self.values.head(_NAMED))}"
        ids_are = "ids{} are" if len(near) > 1 else "id{} is"
        return f"the nearest {ids_are.format(to_which)} {_listed(near)}"


def row_place(row: int) -> Spot:
    """Return the place of a row (counted from 0) for messages, which count from 1."""
    return Spot((row + 1,), f"Row {row + 1}")


def as_id_series(values: object, kind: str, place: Place = row_place) -> pl.Series:
    """Convert ids to a Series named `kind`, of dtype Int64 or String, in the given order.

    Raises
    ------
    DataError
        If a value is null, a boolean, a fraction, or neither an integer nor a string; the
        message begins with the `place` of its row.
    """
    if isinstance(values, pl.Series):
        series = values.alias(kind)
    elif isinstance(values, np.ndarray) and values.dtype.kind in "iuf":
        series = pl.Series(kind, np.ascontiguousarray(values))
    else:
        listed = list(cast("Iterable[Any]", values))
        truth = next((value for value in listed if isinstance(value, bool | np.bool_)), None)
        if truth is not None:
            raise DataError(f"{kind.capitalize()} ids must be integers or strings; got {truth}.")
        try:
            series = pl.Series(kind, listed, strict=True)
        except (TypeError, ValueError, OverflowError, pl.exceptions.PolarsError):
            raise DataError(
                f"{kind.capitalize()} ids must be all integers or all strings; got a mixture."
            ) from None
    dtype = series.dtype
    if series.null_count():
        raise DataError(f"{place(series.is_null().arg_max() or 0)}: the {kind} id is missing.")
    if dtype in (pl.Int64, pl.String):
        return series
    if isinstance(dtype, pl.Categorical | pl.Enum):
        return series.cast(pl.String)
    if dtype.is_float() or dtype.is_decimal():
        numbers = series.cast(pl.Float64)
        good = numbers.is_finite() & (numbers.floor() == numbers) & (numbers.abs() < _INT64_LIMIT)
        if not good.all():
            row = (~good).arg_max() or 0
            raise DataError(f"{place(row)}: {kind} id {series[row]} is neither integer nor string.")
        return series.cast(pl.Int64)
    if dtype.is_integer():
        converted = series.cast(pl.Int64, strict=False)
        return series.cast(pl.String) if converted.null_count() else converted  # such as hashes
    if dtype == pl.Null:
        return series.cast(pl.Int64)
    raise DataError(f"{kind.capitalize()} ids must be integers or strings; got {dtype} values.")


def integers_if_canonical(texts: pl.Series) -> pl.Series:
    """Convert texts to Int64 if all are in the canonical form of an integer; nulls stay."""
    if isinstance(texts.dtype, pl.Categorical):
        known = texts.unique().cast(pl.String)
        if integers_if_canonical(known) is known:
            return texts
        texts = texts.cast(pl.String)
    if not texts.str.contains(CANONICAL_INTEGER.pattern).all():
        return texts
    numbers = texts.cast(pl.Int64, strict=False)
    return texts if numbers.null_count() > texts.null_count() else numbers


def _uniform(values: Any, kind: str) -> Any:
    """Return a single id as a list of one, and a list of mixed types as strings."""
    if isinstance(values, pl.Series | np.ndarray):
        return values
    listed = [values] if isinstance(values, int | str) else list(values)
    large = (isinstance(each, int) and not -_INT64_LIMIT <= each < _INT64_LIMIT for each in listed)
    if not any(large) and not any(isinstance(each, str) for each in listed):
        return listed
    for place, each in enumerate(listed):
        if not isinstance(each, str | None):
            listed[place] = str(each if type(each) is int else as_id_series([each], kind)[0])
    return listed


def _quoted(value: int | str) -> str:
    return repr(shortened(value, _QUOTED)) if isinstance(value, str) else str(value)


def _listed(values: Iterable[int | str]) -> str:
    return ", ".join(_quoted(value) for value in values)

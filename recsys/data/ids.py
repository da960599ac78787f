"""Ids: an immutable map between ids (of users, items, documents, terms) and indices 0..n-1."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import date
from numbers import Integral
from typing import Any, NamedTuple, TypeAlias, cast
from unicodedata import normalize
from uuid import UUID

import numpy as np
import numpy.typing as npt
import polars as pl

from lowrank.kernels.retrieval import hash_texts
from recsys.data.arrays import Array, Codes, Hashes, Longs
from recsys.errors import DataError, UnknownIdError
from recsys.messages import close_matches, counted, enumerated, shortened

IdsLike: TypeAlias = (
    "pl.Series | Sequence[int] | Sequence[str] | Sequence[int | str] | Array"
    " | int | str"
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

MISSING_IDS = (
    "",
    "NULL",
    "null",
    "nan",
    "NaN",
    "NaT",
    "None",
    "<NA>",
    r"\N",
    "N/A",
    "n/a",
    "#N/A",
    "undefined",
)
"""Texts that programs write for a missing id, and that are never ids of users or items."""

CANONICAL_INTEGER = re.compile(r"^(?:0|-?[1-9][0-9]{0,18})$")
"""Canonical form of an integer: "7", not "007", "+7" or "7.0"."""
WHOLE_NUMBER = re.compile(r"^(?:0|-?[1-9][0-9]{0,18})(?:\.0+)?$")
"""Canonical form of an integer, or of a whole number that was stored as a float: "7" or "7.0"."""

_INT64_LIMIT = 2**63
# Larger floats are not all of the whole numbers, so that different ids may have become one.
_EXACT_FLOAT64 = 2**53
_EXACT_FLOATS: dict[object, int] = {pl.Float32: 2**24, pl.Float16: 2**11}
ROUNDED_ID = r"^-?[0-9](?:\.[0-9]+)?[eE]\+[0-9]{2,}$"
"""Pattern of a long number as a spreadsheet writes it, rounded."""
_INEXACT = r"^-?[1-9][0-9]{15,}\.0+$"
_FEW = 1000  # a dict is faster than a query of polars for fewer texts
_JOIN_PAYS_FROM = (
    10  # a join is faster than a search for more than one query per this many ids
)
# blanks, marks without width, quotes that do not match, and the = of spreadsheets before them
_UNSEEN = r"[\s\p{Cf}\"'=]+"
_UUID_DIGITS = 32
# The first byte of a letter in UTF-8, and another one.
_MISREAD = "[\u00c2-\u00f4][^\x00-\x7f]"
_UUID = r"^\{?([0-9a-f]{8})-?([0-9a-f]{4})-?([0-9a-f]{4})-?([0-9a-f]{4})-?([0-9a-f]{12})\}?$"
_QUOTED = 200  # maximum number of characters of an id in a message
_LEAST_PART = 2  # minimum length of an unknown id that is searched for within other ids
_NAMED = 3  # maximum number of ids named in an error message
_LAST_NUMBER = re.compile(r"(?:^|\D)0*([0-9]{1,18})(?:\.0+)?$")
_CLOSE_MATCH_POOL = (
    5_000  # string ids compared with an unknown one, on each side in sorted order
)


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

    __slots__ = ("_hashes", "_numbers", "_order", "_sorted", "kind", "values")

    def __init__(
        self,
        values: IdsLike,
        kind: str,
        *,
        sort: bool = True,
    ) -> None:
        if isinstance(values, int | str):
            values = [values]
        series = as_id_series(
            values if sort else _uniform(values, kind), kind
        ).rechunk()
        self.kind = kind
        self._order: Longs | None = None  # index of each id in sorted order
        self.values = self._sorted = series
        if not (series.head(-1) < series.tail(-1)).all():
            self._sorted = series.unique().sort()
            if sort:
                self.values = self._sorted
            elif len(self._sorted) < len(series):
                twice = series.filter(series.is_duplicated())[0]
                raise DataError(
                    f"Each {kind} needs a distinct id; {twice!r} occurs twice."
                )
            else:
                self._order = series.arg_sort().to_numpy().astype(np.int64)
        numbers = self._sorted.to_numpy() if series.dtype == pl.Int64 else None
        self._numbers: Longs | None = numbers
        self._hashes: Hashes | None = None

    @property
    def dtype(self) -> pl.DataType:
        """Int64 or String."""
        return self.values.dtype

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.values)

    def __contains__(self, query: object) -> bool:
        if isinstance(query, Integral) and not isinstance(query, bool):
            return self.place(int(query)) >= 0
        return isinstance(query, str) and self.place(query) >= 0

    def __repr__(self) -> str:
        listed_ids = _listed(self.values.head(_NAMED))
        ellipsis = ", ..." if len(self) > _NAMED else ""
        return (
            f"Ids({self.kind}: {len(self):,} of {self.dtype}: {listed_ids}{ellipsis})"
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Ids):
            return NotImplemented
        return self.kind == other.kind and self.values.equals(
            other.values, check_dtypes=True
        )

    def __hash__(self) -> int:
        return hash((self.kind, len(self), self.dtype))

    @property
    def hashes(self) -> Hashes:
        """Hash of each id; see `id_hashes`."""
        if self._hashes is None:
            self._hashes = id_hashes(self.values)
        return self._hashes

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
        series = query_series(values, self.kind)
        converted = series.cast(self.dtype, strict=False)
        return converted.set(
            (converted.cast(series.dtype) != series).fill_null(True), None
        )

    def union(self, values: IdsLike) -> Ids:
        """Return the union of both; all become strings if some id is not an integer."""
        series = query_series(values, self.kind)
        new = series.filter(self.find(series) < 0)
        if not len(new):
            return self
        both = [self.values, self.like(new)]
        if both[1].null_count():
            both = [part.cast(pl.String) for part in (self.values, new)]
        return Ids(pl.concat(both), self.kind)

    def find(self, queries: IdsLike) -> Longs:
        """Return the index of each id, and -1 for an unknown id.

        Integers match string ids in their canonical form, and vice versa: 42 matches "42", and "42"
        matches 42, but "042" does not match 42. A query that is null, a boolean or a fraction
        raises `DataError`.
        """
        series = query_series(queries, self.kind)
        if self._numbers is None:
            texts = series.cast(pl.String)
            if len(texts) + len(self) < _FEW:
                ranks_of_texts = {text: rank for rank, text in enumerate(self._sorted)}
                text_ranks = [ranks_of_texts.get(text, -1) for text in texts]
                indices = np.array(text_ranks, dtype=np.int64)
            elif len(texts) * _JOIN_PAYS_FROM < len(self):
                ranks = self._sorted.search_sorted(texts).to_numpy().astype(np.int64)
                ranks = np.minimum(ranks, len(self) - 1)
                indices = np.where((self._sorted[ranks] == texts).to_numpy(), ranks, -1)
            else:
                table = pl.DataFrame(
                    {"id": self._sorted, "index": np.arange(len(self))}
                )
                requested = texts.alias("id").to_frame()
                joined = requested.join(
                    table, on="id", how="left", maintain_order="left"
                )
                indices = joined["index"].fill_null(-1).to_numpy(writable=True)
        elif series.dtype == pl.Int64:
            indices = self._find_integers(series.to_numpy())
        else:
            canonical = series.str.contains(CANONICAL_INTEGER.pattern)
            numbers = series.set(~canonical, None).cast(pl.Int64, strict=False)
            indices = self._find_integers(numbers.fill_null(0).to_numpy())
            indices = np.where(numbers.is_null().to_numpy(), -1, indices)
        if self._order is None or not len(indices):
            return indices
        return np.where(indices < 0, -1, self._order[indices])

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
            rank = bisect_left(self._sorted, text)
            is_there = rank < len(self) and self._sorted[rank] == text
        else:
            number = query if type(query) is int else _INT64_LIMIT
            if isinstance(query, str) and CANONICAL_INTEGER.fullmatch(query):
                number = int(query)
            if not -_INT64_LIMIT <= number < _INT64_LIMIT:
                return -1
            rank = int(self._numbers.searchsorted(number))
            is_there = rank < len(self) and int(self._numbers[rank]) == number
        if not is_there:
            return -1
        return rank if self._order is None else int(self._order[rank])

    def index(self, queries: IdsLike) -> Longs:
        """Return the index of each id; every id must be known.

        Raises
        ------
        UnknownIdError
            If an id is unknown; the message names the closest ids that exist.
        DataError
            If a query is null, a boolean or a fraction.
        """
        indices = self.find(queries)
        missing = np.flatnonzero(indices < 0)
        if not len(missing):
            return indices
        series = query_series(queries, self.kind)
        unknown: list[int | str] = (
            series.gather(missing).unique(maintain_order=True).to_list()
        )
        if self._numbers is not None:
            unknown = [
                int(e) if CANONICAL_INTEGER.fullmatch(str(e)) else e for e in unknown
            ]
        several = len(unknown) > 1
        to_which = f" to {_quoted(unknown[0])}" * several
        raise UnknownIdError(
            f"Unknown {self.kind}{'s' * several} {enumerated(unknown, _NAMED, _quoted)}; "
            f"{self._nearest(unknown[0], to_which)}."
        )

    def _find_integers(self, queries: Longs) -> Longs:
        numbers = self._numbers
        assert numbers is not None
        if not len(numbers):
            return np.full(len(queries), -1, dtype=np.int64)
        ranks = np.minimum(np.searchsorted(numbers, queries), len(numbers) - 1)
        ranks[numbers[ranks] != queries] = -1
        return ranks

    def _nearest(self, unknown: int | str, to_which: str) -> str:
        """Return a hint with the ids closest to an unknown one, or with examples of ids."""
        if not len(self):
            return f"there are no {self.kind}s"
        nearest: Sequence[int | str] = []
        if self._numbers is None:
            text, values = str(unknown), self._sorted
            rank = values.search_sorted(text)
            low = max(rank - _CLOSE_MATCH_POOL, 0)
            pool = values.slice(low, 2 * _CLOSE_MATCH_POOL).to_list()
            around = sorted(range(len(pool)), key=lambda index: abs(low + index - rank))
            close = close_matches(text, (pool[index] for index in around), _NAMED)
            lower = values.str.to_lowercase()
            same = lower.str.strip_chars_start("0") == text.lower().lstrip(
                "0"
            )  # 7 for 007
            nearest = [*dict.fromkeys([*values.filter(same), *close])][:_NAMED]
            if not nearest and len(text) >= _LEAST_PART:
                within = values.filter(
                    lower.str.contains(text.lower(), literal=True)
                ).to_frame("id")
                within = within.sort(pl.col("id").str.len_chars(), "id")
                nearest = within["id"].head(_NAMED).to_list()
        elif isinstance(unknown, int):
            clipped = min(max(unknown, -_INT64_LIMIT), _INT64_LIMIT - 1)
            rank = int(np.searchsorted(self._numbers, clipped))
            numbers = self._numbers[max(rank - _NAMED, 0) : rank + _NAMED].tolist()
            nearest = sorted(numbers, key=lambda each: (abs(each - unknown), each))[
                :_NAMED
            ]
        elif match := _LAST_NUMBER.search(unknown):  # 17 for "visitor-17" and "17.0"
            number = int(match[1])
            nearest = [number] if self.place(number) >= 0 else []
        if not nearest:
            return f"ids look like {_listed(self.values.head(_NAMED))}"
        ids_are = "ids{} are" if len(nearest) > 1 else "id{} is"
        return f"the nearest {ids_are.format(to_which)} {_listed(nearest)}"


def decoded(ids: pl.Series) -> pl.Series:
    """Return ids as they were before UTF-8 was read as Latin-1 or in the code of Windows."""
    rows = ids.str.contains(_MISREAD).arg_true()
    # The few with such letters, because each is a call of Python.
    texts = [ids[row] for row in rows]
    for n, text in enumerate(texts):
        for encoding in ("cp1252", "latin-1"):
            with suppress(UnicodeError):
                texts[n] = text.encode(encoding).decode()
                break
    return ids.clone().scatter(rows, pl.Series(texts, dtype=pl.String))


def alike_remark(ids: Ids) -> str:
    """Return a remark on ids that are written like others, which may be meant; "" for none.

    Examples
    --------
    >>> alike_remark(Ids(["u1", "U1", "u2"], "user"))
    "1 user id differs from another one only in writing ('U1' and 'u1')"
    """
    if ids.dtype != pl.String:
        return ""
    texts = ids.values
    longest = texts.str.len_bytes().max() or 0
    if (texts.str.len_bytes() != texts.str.len_chars()).any():
        texts = decoded(texts).str.normalize("NFKC")
    form = pl.lit(texts).str.to_lowercase()
    form = form.str.replace_all(_UNSEEN, "").str.strip_suffix(".0")
    if cast("int", longest) >= _UUID_DIGITS:
        form = form.str.replace(_UUID, "$1$2$3$4$5")
    form = form.str.strip_chars_start("+0")
    forms = pl.select(form).to_series()
    n_alike = len(forms) - forms.n_unique()
    if not n_alike:
        return ""
    repeated = forms.filter(forms.is_duplicated())[0]
    first, second = ids.values.filter(forms == repeated).head(2)
    # Letters and accents may be coded in two ways that look the same.
    looks_same = normalize("NFKC", first) == normalize("NFKC", second)
    shown = ascii if looks_same else repr
    differ = "differs" if n_alike == 1 else "differ"
    return (
        f"{counted(n_alike, f'{ids.kind} id')} {differ} from another one only in "
        f"writing ({shown(first)} and {shown(second)})"
    )


def prefix_remark(ids: Ids) -> str:
    """Return a remark on ids that are numbers, some of which have a prefix; "" for others.

    Examples
    --------
    >>> prefix_remark(Ids(["u1", "1", "2"], "user"))
    "1 user id has the prefix 'u' and 2 have none ('u1' and '1')"
    """
    if ids.dtype != pl.String:
        return ""
    is_number = ids.values.str.contains(r"^\d+$")
    plain = ids.values.filter(is_number)
    others = ids.values.filter(~is_number)
    prefixes = others.str.extract(r"^(\D+)\d+$")
    if prefixes.null_count() or prefixes.n_unique() != 1 or not len(plain):
        return ""
    prefix = prefixes[0]
    both = plain.filter(plain.is_in(others.str.strip_prefix(prefix).implode()))
    first, second = others[0], plain[0]
    if len(both):
        first, second = f"{prefix}{both[0]}", both[0]
    has = "has" if len(others) == 1 else "have"
    have = "has" if len(plain) == 1 else "have"
    return (
        f"{counted(len(others), f'{ids.kind} id')} {has} the prefix {prefix!r} and "
        f"{len(plain):,} {have} none ({first!r} and {second!r})"
    )


def id_hashes(ids: pl.Series) -> Hashes:
    """Return a hash of the text of each id, the same in any data and on any machine."""
    return hash_texts(*joined_texts(ids.cast(pl.String)))


def joined_texts(
    texts: pl.Series,
) -> tuple[Codes, Longs]:
    """Return the UTF-8 bytes of texts, one after the other, and their n + 1 offsets."""
    lengths = np.append(0, texts.str.len_bytes().to_numpy())
    joined = texts.str.join().item() or ""
    return np.frombuffer(joined.encode(), np.uint8), np.cumsum(lengths, dtype=np.int64)


def row_place(row: int) -> Spot:
    """Return the place of a row (counted from 0) for messages, which count from 1."""
    return Spot((row + 1,), f"Row {row + 1}")


def as_id_series(values: object, kind: str) -> pl.Series:
    """Convert ids to a Series named `kind`, of dtype Int64 or String, in the given order.

    Raises
    ------
    DataError
        If a value is null, a boolean, a fraction, or neither an integer nor a string.
    """
    if isinstance(values, np.ma.MaskedArray):
        values = values.tolist()  # None where a value is masked
    if isinstance(values, pl.Series):
        series = values.alias(kind)
    elif isinstance(values, np.ndarray) and values.dtype.kind in "iuf":
        series = pl.Series(kind, np.ascontiguousarray(values))
    else:
        listed = [
            None if type(value).__name__ == "NAType" else value  # pandas.NA
            for value in cast("Iterable[Any]", values)
        ]
        truth = next(
            (value for value in listed if isinstance(value, bool | np.bool_)), None
        )
        if truth is not None:
            raise DataError(
                f"{kind.capitalize()} ids must be integers or strings; got {truth}."
            )
        try:
            series = pl.Series(kind, listed, strict=True)
        except (TypeError, ValueError, OverflowError, pl.exceptions.PolarsError):
            raise DataError(
                f"{kind.capitalize()} ids must be all integers or all strings; got a mixture."
            ) from None
    dtype = series.dtype
    if series.null_count():
        raise DataError(
            f"{row_place(series.is_null().arg_max() or 0)}: the {kind} id is missing."
        )
    if dtype in (pl.Int64, pl.String):
        return series
    if isinstance(dtype, pl.Categorical | pl.Enum):
        return series.cast(pl.String)
    if dtype.is_float() or dtype.is_decimal():
        bad = is_bad_id(series)
        if bad.any():
            row = bad.arg_max() or 0
            raise DataError(f"{row_place(row)}: {id_problem(series[row], kind, dtype)}")
        converted = series.cast(pl.Int64, strict=False)
        if converted.null_count():  # a decimal of more than 64 bits
            converted = series.cast(pl.String).str.replace(r"\.0+$", "")
        return converted
    if dtype.is_integer():
        converted = series.cast(pl.Int64, strict=False)
        # such as hashes
        return series.cast(pl.String) if converted.null_count() else converted
    if dtype == pl.Null:
        return series.cast(pl.Int64)
    raise DataError(
        f"{kind.capitalize()} ids must be integers or strings; got {dtype} values."
    )


def is_bad_id(series: pl.Series) -> pl.Series:
    """Return which values of a column cannot be ids; `id_problem` says why."""
    dtype = series.dtype
    if dtype == pl.String:
        text = pl.lit(series)
        missing = text.str.strip_chars().is_in(MISSING_IDS)
        rounded = text.str.contains(ROUNDED_ID)
        bad, inexact = pl.select(
            bad=(missing | rounded).fill_null(True),
            inexact=text.str.contains(_INEXACT),
        )
        if inexact.any():
            numbers = series.str.replace(r"\.0+$", "").cast(pl.Float64, strict=False)
            bad |= inexact & (numbers.abs() > _EXACT_FLOAT64)
        return bad
    if dtype.is_decimal():
        return (series.floor() != series).fill_null(True)
    if dtype.is_float():
        numbers = series.cast(pl.Float64)
        good = numbers.is_finite() & (numbers.floor() == numbers)
        return ~(good & (numbers.abs() <= _exact(dtype))).fill_null(False)
    return series.is_null()


def id_problem(
    value: object,
    kind: str,
    dtype: pl.DataType | None = None,
) -> str | None:
    """Return a sentence on why a value of a column cannot be an id, or None if it can.

    Examples
    --------
    >>> id_problem("NULL", "user")
    "the user id is missing ('NULL')."
    >>> id_problem(1.5, "item")
    'item id 1.5 is neither integer nor string.'
    """
    if value is None or value == "":
        return f"the {kind} id is missing."
    if isinstance(value, int) and not isinstance(value, bool):
        return None
    if not isinstance(value, str):
        if isinstance(value, float) and value.is_integer():
            limit = _exact(dtype)
            if abs(value) <= limit:
                return None
            return (
                f"{kind} id {value} may be rounded, because floats are exact up to {limit:,} only; "
                f"read the column as integers or texts, so that no two {kind}s become one."
            )
        return f"{kind} id {value} is neither integer nor string."
    if value.strip() in MISSING_IDS:
        return f"the {kind} id is missing ({value!r})."
    if is_bad_id(pl.Series([value]))[0]:
        return (
            f"{kind} id {value!r} is a rounded number, as spreadsheets write long ones, so that it "
            f"may stand for several {kind}s; export the column as text."
        )
    return None


def _exact(dtype: pl.DataType | None) -> int:
    """Return the number up to which floats of a type are exact."""
    return _EXACT_FLOATS.get(dtype, _EXACT_FLOAT64)


def integers_if_whole(texts: pl.Series) -> pl.Series:
    """Convert texts to Int64 if all have the form of whole numbers, 7 or 7.0; nulls stay."""
    if isinstance(texts.dtype, pl.Categorical):
        distinct = texts.unique().cast(pl.String)
        if integers_if_whole(distinct) is distinct:
            return texts
        categories: Any = texts.dtype
        labels: pl.Series = categories.categories.to_series()
        numbers = labels.str.replace(r"\.0+$", "").cast(pl.Int64, strict=False)
        return numbers.gather(texts.to_physical()).alias(texts.name)
    if not texts.str.contains(WHOLE_NUMBER.pattern).all():
        return texts
    if texts.str.contains(_INEXACT).any() and is_bad_id(texts.drop_nulls()).any():
        return texts  # they may be rounded
    numbers = texts.str.replace(r"\.0+$", "").cast(pl.Int64, strict=False)
    return texts if numbers.null_count() > texts.null_count() else numbers


def as_written(text: str, ids: Ids) -> str:
    """Return a text of an id as ids are printed: "17" for "17.0" among integers.

    Examples
    --------
    >>> as_written("17.0", Ids([17], "user")), as_written("17.0", Ids(["a"], "user"))
    ('17', '17.0')
    """
    is_whole = ids.dtype == pl.Int64 and WHOLE_NUMBER.match(text) is not None
    return text.partition(".")[0] if is_whole else text


def query_series(values: IdsLike, kind: str) -> pl.Series:
    """Convert requested ids to a Series as `as_id_series`; a mixture becomes strings."""
    return as_id_series(_uniform(values, kind), kind)


def _uniform(values: Any, kind: str) -> Any:
    """Return a single id as a list of one, and a list of mixed types as strings."""
    if isinstance(values, pl.Series) and values.dtype.is_temporal():
        return values.cast(pl.String)
    if isinstance(values, pl.Series) and values.dtype == pl.Object:
        values = values.to_list()
    if isinstance(values, np.ndarray) and values.dtype.kind == "M":
        return values.astype(str)
    if isinstance(values, pl.Series | np.ndarray) and values.dtype != object:
        return values
    listed = [values] if isinstance(values, int | str) else list(values)
    # A database returns UUIDs as objects; as texts they are ids, as they are in files.
    listed = [
        str(value) if isinstance(value, UUID | date) else value for value in listed
    ]
    large = (
        isinstance(value, int) and not -_INT64_LIMIT <= value < _INT64_LIMIT
        for value in listed
    )
    if not any(large) and not any(isinstance(value, str) for value in listed):
        return listed
    for position, value in enumerate(listed):
        if not isinstance(value, str | None):
            listed[position] = str(
                value if type(value) is int else as_id_series([value], kind)[0]
            )
    return listed


def _quoted(value: int | str) -> str:
    return repr(shortened(value, _QUOTED)) if isinstance(value, str) else str(value)


def _listed(values: Iterable[int | str]) -> str:
    return ", ".join(_quoted(value) for value in values)

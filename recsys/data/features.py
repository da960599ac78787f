"""Features: a table of items or users with typed columns."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TypeAlias

import numpy as np
import polars as pl

from recsys.data.arrays import Longs
from recsys.data.columns import id_column, plain_name, title_column
from recsys.data.feedback import isolated_end, marks_unrated
from recsys.data.frames import FrameLike, to_polars
from recsys.data.ids import Ids, as_id_series
from recsys.data.kinds import FeatureKind, ReadAs
from recsys.data.markup import plain_text
from recsys.data.numerals import number_texts
from recsys.data.times import seconds_or_null
from recsys.errors import DataError
from recsys.messages import counted, enumerated

_NAMED = 8  # maximum number of columns named in a summary
_AMOUNTS = 0.5  # minimum share of numbers in a column of which other texts are named
_SAMPLE = 500
_INTEGER = r"^[-+]?\d{1,18}$"
_NUMBER = r"^[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d{1,3})?$"
# Commas of thousands. 1,299 alone may mean 1.299, and 101,202,303 a list of numbers.
_GROUPED = r"^[-+]?(?:\d+|\d{1,3}(?:,\d{3})+)(?:\.\d+)?$"
_SURELY_GROUPED = r"^[-+]?\d{1,3}(?:,\d{3})+\.\d"
_INFINITE = r"^[-+]?(?i:inf|infinity)$"
_PADDED = r"^[-+]?0\d"  # leading zeros, as in "007" or zip codes: these stay strings
# Databases have dates that mean always or never (infinity), which have no text.
_FIRST_DAY = datetime(1, 1, 1)
_LAST_DAY = datetime(9999, 12, 31)
# A number with a currency, a unit or a decimal comma: no category, but no number either.
_AMOUNT = r"^(?:\p{Sc}|[A-Z]{3} )?\s?[-+]?(?:[1-9]\d*|0)(?:[.,]\d+)*\s?(?:\p{Sc}|%|[A-Za-z]{1,3})?$"
# Dates that mean none, also with the year at the end.
_NEVER = (
    r"^(?:0000-00-00|2999-12-31|[3-9]\d{3}-\d\d-\d\d"
    r"|31[./]12[./]2999|\d\d?[./]\d\d?[./][3-9]\d{3})"
)
_MISSING = ("null", "nan", "na", "n/a", "#n/a", "none", "\\n", "nat")
_BOOLEANS = (("true", "false"), ("yes", "no"), ("t", "f"), ("y", "n"))
# Integers under these names are codes, not amounts.
_CODE = re.compile(
    r"(?:id|ids|code|zip|zipcode|postcode|postalcode|plz|ean|isbn|gtin|upc|phone)$"
)
_DATES = (
    "%Y-%m-%d",
    "%Y/%m/%d",
    "%Y.%m.%d",
    "%d.%m.%Y",
    "%d-%b-%Y",
    "%d %b %Y",
    "%d %B %Y",
    "%b %d, %Y",
    "%B %d, %Y",
    "%d/%m/%Y",
    "%m/%d/%Y",
)
_BASIC_DATE = r"^(?:19|20)\d\d(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])$"
_MOMENT = r"^\d{4}-\d\d-\d\d[T ]\d\d:\d\d"
_YEARS = (1000, 2999)
_LONGEST_PART = 3  # maximum mean number of words in an element of a list
_WORDS = 5  # minimum mean number of words in a text, if most values are distinct
_MANY_WORDS = 12
_FEW_NUMBERS = 3  # fewer different numbers are rather codes of categories
_NOTHING = "(no genres listed)"  # empty list in MovieLens


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Features:
    """Table of features of items or users, with one row per id.

    Build one with `of`, or let `recsys.read_ratings` read one. Rows of ids without ratings are
    kept, as new items and users.

    Attributes
    ----------
    frame : polars DataFrame
        The first column, "item" or "user", has distinct ids; missing values are null.
    kinds : mapping of str to {"number", "boolean", "date", "category", "list", "text"}
        Kind of each other column. Numbers are Int64 or floats, dates Date or Datetime (UTC), lists
        are of strings, categories strings or integer codes.
    left_out : tuple of str
        Columns of types without a kind, such as "embedding (lists of numbers)".
    read_as : mapping of str to {"string", "text"}
        Columns of the source that were strings, and columns of a text file. Their values have
        decided their kinds.
    empty : tuple of str
        Columns without values, which are left out.
    is_catalogue : bool
        Whether the items without a row are not to be recommended.
    n_repeated : int
        Number of rows of the source that are left out, because their id is that of an earlier row.
    remarks : tuple of str
        Further remarks on the reading of the source.

    Examples
    --------
    >>> films = {"item": [1, 2], "name": ["Up", "Heat"], "genres": ["Comedy|Family", "Crime"]}
    >>> features = Features.of(pl.DataFrame(films), "item")
    >>> print(features)
    name (title), genres (list of 3)
    >>> features.frame["genres"].to_list()
    [['Comedy', 'Family'], ['Crime']]
    """

    frame: pl.DataFrame
    kinds: Mapping[str, FeatureKind]
    left_out: tuple[str, ...] = ()
    read_as: Mapping[str, ReadAs] = field(default_factory=dict)
    empty: tuple[str, ...] = ()
    is_catalogue: bool = False
    n_repeated: int = 0
    remarks: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        table: TableLike,
        kind: str,
        *,
        column: str | None = None,
        untyped: bool = False,
    ) -> Features:
        """Build features from a frame: determine the kind of each column.

        String columns become dates, lists (elements separated by ``|``), texts or categories,
        depending on their values. Columns without values, and of types without a kind, are left
        out. The first row of a repeated id is kept.

        Parameters
        ----------
        table : frame, or Features
        kind : {"item", "user"}
        column : str, optional
            Name of the column of ids. The usual names are tried if it is missing or not given.
        untyped : bool
            True if all columns are strings, as in a text file, and numbers and booleans are to be
            recognised: "7.5" is a number, "007" and "$7" are categories, "yes" and "no" booleans.

        Raises
        ------
        DataError
            If the column of ids is missing, or an id is missing or neither integer nor string.
        """
        if isinstance(table, Features):
            return table
        frame = table if isinstance(table, pl.DataFrame) else to_polars(table)
        requested, column = column, id_column(frame.columns, kind, column, "The table")
        if column is None:
            listed = ", ".join(frame.columns)
            raise DataError(
                f"The table has no column {requested or kind!r} of {kind}s; it has {listed}."
            )
        values = frame[column]
        ids = as_id_series(
            values.fill_nan(None) if values.dtype.is_float() else values, kind
        )
        first = ids.is_first_distinct()
        columns = [ids.filter(first)]
        kinds: dict[str, FeatureKind] = {}
        read_as: dict[str, ReadAs] = {}
        left_out: list[str] = []
        empty: list[str] = []
        remarks: list[str] = []
        title = title_column(frame.columns)
        for series in frame.get_columns():
            if series.name == column:
                continue
            values = series.filter(first)
            while values.name in (kind, *kinds):
                values = values.alias(f"{values.name}_")
            typed = _typed(values, untyped=untyped, is_title=series.name == title)
            if typed is not None and typed[0].null_count() < len(typed[0]):
                columns.append(typed[0])
                kinds[values.name] = typed[1]
                n_infinite = 0
                if typed[1] == "number":
                    n_infinite = int(_is_infinite(values).sum())
                if n_infinite:
                    infinite = counted(n_infinite, "infinite value")
                    remarks.append(f"{infinite} of {values.name} left out")
                if series.dtype == pl.String:
                    read_as[values.name] = "text" if untyped else "string"
            elif typed is None and series.dtype != pl.Null:
                left_out.append(f"{series.name} ({_noun(series.dtype)})")
            else:
                empty.append(values.name)
        frame = pl.DataFrame(columns)
        return cls(
            frame,
            kinds,
            tuple(left_out),
            read_as,
            tuple(empty),
            n_repeated=len(first) - len(frame),
            remarks=tuple(remarks),
        )

    def without(self, ids: Ids) -> Features:
        """Return the table without the rows of some ids, with the kinds of columns as before."""
        return replace(
            self, frame=self.frame.filter(ids.find(self.frame[self.kind]) < 0)
        )

    def typed_again(self) -> Features:
        """Determine the kinds again of columns that were strings, from the remaining rows.

        Numbers, dates and booleans stay: their texts are not known any more. Columns without values
        are left out.
        """
        columns = [self.frame[self.kind]]
        kinds: dict[str, FeatureKind] = {}
        for name, kind in self.kinds.items():
            values = self.frame[name]
            if name in self.read_as and values.dtype in (pl.String, pl.List(pl.String)):
                is_untyped = self.read_as[name] == "text"
                is_title = name == self.title
                values, kind = _typed_strings(_as_texts(values), is_untyped, is_title)
            if values.null_count() < len(values):
                columns.append(values)
                kinds[name] = kind
        read_as = {name: form for name, form in self.read_as.items() if name in kinds}
        return Features(
            pl.DataFrame(columns),
            kinds,
            self.left_out,
            read_as,
            is_catalogue=self.is_catalogue,
        )

    @property
    def kind(self) -> str:
        """Kind of the rows: "item" or "user"."""
        return self.frame.columns[0]

    @property
    def title(self) -> str | None:
        """Name of the column of titles, or None."""
        return title_column(
            [name for name, kind in self.kinds.items() if kind == "text"]
        )

    def __len__(self) -> int:
        return len(self.frame)

    def rows_of(self, ids: Ids) -> Longs:
        """Return the row number of each id in index order, or -1 if it has no row."""
        rows = np.full(len(ids), -1, dtype=np.int64)
        indices = ids.find(self.frame[self.kind])
        table_rows = np.flatnonzero(indices >= 0)
        rows[indices[table_rows]] = table_rows
        return rows

    def aligned(self, ids: Ids) -> pl.DataFrame:
        """Return one row per id, in index order; ids without a row get nulls."""
        rows = pl.Series(self.rows_of(ids), dtype=pl.Int64)
        gathered = self.frame.select(pl.all().gather(rows.set(rows < 0, None)))
        return gathered.with_columns(ids.values.alias(self.kind))

    def matching(self, ids: Ids) -> Features:
        """Return the table with its ids converted to the type of `ids`, if all can be converted."""
        converted = ids.like(self.frame[self.kind])
        if converted.null_count():
            return self  # an id such as "007" has no integer form
        return replace(self, frame=self.frame.with_columns(converted.alias(self.kind)))

    def select(self, columns: Sequence[str]) -> Features:
        """Return the ids and the selected columns.

        Raises
        ------
        DataError
            If a column does not exist.
        """
        for name in columns:
            if name not in self.kinds:
                listed = ", ".join(self.kinds) or "none"
                raise DataError(
                    f"There is no column {name!r} of {self.kind}s; there are {listed}."
                )
        kinds = {name: self.kinds[name] for name in columns}
        read_as = {name: self.read_as[name] for name in columns if name in self.read_as}
        return Features(self.frame.select(self.kind, *kinds), kinds, read_as=read_as)

    def updated(self, newer: Features | None) -> Features:
        """Return these rows and the newer ones, which replace rows with the same ids.

        If the kinds of a column differ, it becomes a list if one of them is a list, else a
        category.
        """
        if newer is None:
            return self
        both, kinds = [newer, self], dict(self.kinds)
        for name, kind in newer.kinds.items():
            if kinds.setdefault(name, kind) != kind:
                kinds[name] = "list" if "list" in (kind, kinds[name]) else "category"
                both = [part._as(name, kinds[name]) for part in both]
        frames = [part.frame for part in both]
        if frames[0].schema[self.kind] != frames[1].schema[self.kind]:
            frames = [part.cast({self.kind: pl.String}) for part in frames]
        frame = pl.concat(frames, how="diagonal_relaxed").unique(
            self.kind, keep="first", maintain_order=True
        )
        read_as = {**newer.read_as, **self.read_as}
        return Features(
            frame.select(self.kind, *kinds),
            kinds,
            read_as=read_as,
            is_catalogue=self.is_catalogue,
        )

    def continuing(
        self,
        earlier: Features,
        needed: Collection[str],
        *,
        whole: bool,
    ) -> Features:
        """Return the table with the kinds of columns that an earlier one had.

        Strings of a text file have their kinds by their values, and so may get others.

        Parameters
        ----------
        earlier : Features
        needed : collection of str
            Columns that must have values of the same type; others may change or go.
        whole : bool
            Whether a column that is needed may not be missing.

        Raises
        ------
        DataError
            If a column that is needed is missing, or has values of another type.
        """
        frame = self.frame
        kinds = {**self.kinds}
        for name, kind in earlier.kinds.items():
            dtype = earlier.frame.schema[name]
            if name in self.empty:
                frame = frame.with_columns(pl.lit(None, dtype).alias(name))
            elif name in kinds:
                values = _of_type(frame[name], dtype, is_text=name in self.read_as)
                if values is not None:
                    frame = frame.with_columns(values)
                elif name in needed:
                    change = f"from {_noun(dtype)} to {_noun(frame.schema[name])}"
                    odd_text = _odd_text(frame[name])
                    if odd_text is not None:
                        row = frame.filter(pl.col(name) == odd_text)
                        change += f": {odd_text!r} of {self.kind} {row.item(0, 0)!r}"
                    raise DataError(
                        f"The column {name!r} of {self.kind}s has changed {change}."
                    )
                else:
                    continue
            elif whole and name in needed:
                raise DataError(
                    f"The column {name!r} of {self.kind}s is missing; there are "
                    f"{', '.join(kinds) or 'none'}."
                )
            else:
                continue
            kinds[name] = kind
        return replace(self, frame=frame, kinds=kinds)

    def _as(self, name: str, kind: FeatureKind) -> Features:
        """Return these features with a column converted to strings, or to lists of strings."""
        if self.kinds.get(name, "list") == "list":  # a list already, or no such column
            return self
        values = self.frame[name].cast(pl.String)
        if kind == "list":
            values = values.to_frame().select(pl.concat_list(name)).to_series()
            values = values.zip_with(
                self.frame[name].is_not_null(), values.clear(len(values))
            )
        kinds: dict[str, FeatureKind] = {**self.kinds, name: kind}
        return replace(self, frame=self.frame.with_columns(values), kinds=kinds)

    def described(self) -> dict[str, str]:
        """Return a short description of each column, such as "list of 19" or "5 values"."""
        descriptions: dict[str, str] = {**self.kinds}
        for name, kind in self.kinds.items():
            if kind == "category":
                values = self.frame[name].drop_nulls()
                descriptions[name] = counted(values.n_unique(), "value")
                odd_text = _odd_text(values)
                if odd_text is not None and self.read_as.get(name) == "text":
                    reason = f"because {odd_text!r} is not a number"
                    descriptions[name] += f", {reason}"
            elif kind == "list":
                descriptions[name] = (
                    f"list of {self.frame[name].explode().drop_nulls().n_unique():,}"
                )
            elif name == self.title:
                descriptions[name] = "title"
            elif kind in ("number", "date"):
                descriptions[name] += _mark_remark(self.frame[name])
        return descriptions

    def __str__(self) -> str:
        described = self.described().items()
        parts = [
            name if name == what else f"{name} ({what})" for name, what in described
        ]
        listed = enumerated(parts, _NAMED)
        return f"{listed} columns" if len(parts) > _NAMED else listed

    def __repr__(self) -> str:
        return f"<Features of {len(self):,} {self.kind}s: {self}>"


TableLike: TypeAlias = "Features | FrameLike"
"""Table of items or users, as accepted by all public functions."""


def _as_texts(values: pl.Series) -> pl.Series:
    """Return strings, or lists of strings as they are written in a text file."""
    if values.dtype == pl.String:
        return values
    if values.dtype != pl.List:
        return values.cast(pl.String)
    texts = values.list.join("|")
    return texts.set(values.list.len() == 0, _NOTHING)


def _of_type(
    values: pl.Series,
    dtype: pl.DataType,
    *,
    is_text: bool,
) -> pl.Series | None:
    """Return values in the type of an earlier column; None if they are of another one.

    Values that were strings (`is_text`) become strings again, or lists of them.
    """
    if values.dtype == dtype:
        return values
    if (values.dtype.is_numeric() and dtype.is_numeric()) or (
        values.dtype.is_temporal() and dtype.is_temporal()
    ):
        return values
    # Databases without truth values have 0 and 1.
    if dtype == pl.Boolean and values.dtype.is_integer():
        return values == 1 if values.is_in([0, 1]).all() else None
    if not is_text or dtype not in (pl.String, pl.List(pl.String)):
        return None
    texts = _as_texts(values)
    return texts if dtype == pl.String else texts.str.split("|")


def _noun(dtype: pl.DataType) -> str:
    """Return a name for the type of a column."""
    if isinstance(dtype, pl.List | pl.Array):
        if dtype.inner == pl.String:
            return "lists"
        return "lists of numbers" if dtype.inner.is_numeric() else "nested lists"
    if dtype.is_numeric():
        return "numbers"
    if dtype.is_temporal():
        return "dates"
    nouns = {"Struct": "nested", "Binary": "bytes", "String": "texts"}
    return nouns.get(str(dtype.base_type()), str(dtype))


def _typed(
    values: pl.Series,
    *,
    untyped: bool,
    is_title: bool,
) -> tuple[pl.Series, FeatureKind] | None:
    """Return a column converted to the type of its kind, and the kind; None if it has no kind."""
    dtype = values.dtype
    if isinstance(dtype, pl.Categorical | pl.Enum):
        return values.cast(pl.String), "category"
    if dtype == pl.Boolean:
        return values, "boolean"
    if dtype == pl.Date:
        return values.clip(_FIRST_DAY, _LAST_DAY), "date"
    if isinstance(dtype, pl.Datetime):
        utc = values.dt.convert_time_zone("UTC").dt.replace_time_zone(None)
        if dtype.time_unit == "ns":  # which has no such days
            utc = utc.dt.cast_time_unit("us")
        return utc.clip(_FIRST_DAY, _LAST_DAY).dt.cast_time_unit("us"), "date"
    if dtype.is_integer():
        small = values.cast(pl.Int64, strict=False)
        if small.null_count() == values.null_count():
            return small, "category" if _CODE.search(
                plain_name(values.name)
            ) else "number"
    if dtype.is_numeric():
        numbers = values if dtype.is_float() else values.cast(pl.Float64)
        return numbers.set(~numbers.is_finite(), None), "number"
    if isinstance(dtype, pl.List | pl.Array):
        inner = dtype.inner
        if (
            isinstance(inner, pl.String | pl.Categorical | pl.Enum | pl.Null)
            or inner.is_integer()
        ):
            return values.cast(pl.List(pl.String)), "list"
    return _typed_strings(values, untyped, is_title) if dtype == pl.String else None


def _typed_strings(
    values: pl.Series,
    untyped: bool,
    is_title: bool,
) -> tuple[pl.Series, FeatureKind]:
    texts = values.str.strip_chars()
    texts = texts.set(texts == "", None)
    if is_title:
        return _plain_titles(texts), "text"
    present = texts.set(texts.str.to_lowercase().is_in(_MISSING), None)
    if present.null_count() < len(present):
        dates = _dates(present)
        if dates is not None:
            return dates, "date"
        typed = _plain_values(present) if untyped else None
        if untyped and typed is None and not present.str.contains(":").any():
            typed = _plain_values(number_texts(present)[0])
        if untyped and typed is None:
            finite = _plain_values(present.set(_is_infinite(present), None))
            if finite is not None and finite.dtype.is_numeric():
                typed = finite
        if typed is not None:
            return _typed(typed, untyped=False, is_title=False) or (texts, "category")
    lists = _lists(texts)
    if lists is not None:
        return lists, "list"
    filled = texts.drop_nulls()
    words = float(filled.str.count_matches(r"\S+").mean() or 0)  # type: ignore[arg-type]
    mostly_distinct = 2 * filled.n_unique() > len(filled)
    is_text = words >= _MANY_WORDS or (words >= _WORDS and mostly_distinct)
    return texts, "text" if is_text else "category"


def _is_infinite(values: pl.Series) -> pl.Series:
    """Return which numbers, or texts of numbers, are infinite; null for missing ones."""
    if values.dtype == pl.String:
        return values.str.strip_chars().str.contains(_INFINITE)
    if values.dtype.is_float():
        return values.is_infinite()
    return pl.repeat(False, len(values), eager=True)


def _plain_titles(texts: pl.Series) -> pl.Series:
    """Return titles as people see them, without the tags and entities of HTML."""
    is_marked = texts.str.contains("[<&]").fill_null(False)
    # The few with such a sign, because each is a call of Python.
    titles = [" ".join(plain_text(title).split()) for title in texts.filter(is_marked)]
    plain = pl.Series(titles, dtype=pl.String)
    return texts.scatter(is_marked.arg_true(), plain.set(plain == "", None))


def _plain_values(texts: pl.Series) -> pl.Series | None:
    """Return strings as numbers or booleans, None if they are neither."""
    if texts.str.contains(_SURELY_GROUPED).any():
        is_grouped = bool(texts.str.contains(_GROUPED).all())
        return _plain_values(texts.str.replace_all(",", "")) if is_grouped else None
    head = texts.drop_nulls().head(_SAMPLE)
    if head.str.contains(_NUMBER).all() and texts.str.contains(_NUMBER).all():
        if texts.str.contains(_PADDED).any():
            return None
        kind = pl.Int64 if texts.str.contains(_INTEGER).all() else pl.Float64
        numbers = texts.str.strip_prefix("+").cast(kind)
        return numbers if numbers.is_finite().all() else None
    lower = texts.str.to_lowercase()
    distinct = set(lower.head(_SAMPLE).unique().drop_nulls())
    for true, false in _BOOLEANS:
        pair = {true, false}
        if distinct <= pair and set(lower.unique().drop_nulls()) <= pair:
            # A single letter alone is ambiguous: F may also mean female.
            return lower == true if len(true) > 1 or distinct == pair else None
    return None


def _mark_remark(values: pl.Series) -> str:
    """Return a remark on a number or date that may stand for none; "" for none.

    Such are the repeated value of `isolated_end`, and -1 among numbers from 0.
    """
    table = values.drop_nulls().value_counts(name="n").sort(values.name)
    numbers = table[values.name].to_physical().cast(pl.Float64).to_numpy()
    end = None
    if marks_unrated(numbers):
        end = 0
    elif len(numbers) > _FEW_NUMBERS:
        end = isolated_end(numbers, table["n"].to_numpy())
    if end is None:
        return ""
    mark, n = table.row(end)
    shown = f"{mark:g}" if values.dtype.is_numeric() else str(mark)
    return f", {shown} {n:,} times: if this means none, leave it empty"


def _odd_text(values: pl.Series) -> str | None:
    """Return the first text that is not a number where most are amounts, or None."""
    if values.dtype != pl.String or values.str.contains(_PADDED).any():
        return None
    odd = values.filter(~values.str.contains(_NUMBER))
    n_amounts = int(values.str.contains(_AMOUNT).sum())
    return odd[0] if len(odd) and n_amounts > _AMOUNTS * len(values) else None


def _dates(texts: pl.Series) -> pl.Series | None:
    """Return strings as dates, or as datetimes if they have a time of day; None if neither."""
    texts = texts.set(texts.str.contains(_NEVER), None)
    filled = texts.drop_nulls()
    is_dated = filled.head(_SAMPLE).str.contains(r"^.?\d|\d{4}$").all()
    if not len(filled) or not is_dated:
        return None
    if filled.str.contains(_BASIC_DATE).all():
        dates = texts.str.to_date("%Y%m%d", strict=False)
        return dates if dates.null_count() == texts.null_count() else None
    if filled.str.contains(_MOMENT).all():
        seconds = seconds_or_null(texts)
        is_read = seconds.null_count() == texts.null_count()
        return (seconds * 10**6).cast(pl.Datetime("us")) if is_read else None
    fitting = []
    for form in _DATES:
        if not filled.head(_SAMPLE).str.to_date(form, strict=False).null_count():
            dates = texts.str.to_date(form, strict=False)
            is_usual = dates.dt.year().is_between(*_YEARS).all()
            if is_usual and dates.null_count() == texts.null_count():
                fitting.append(dates)
    # 01/02/2024 is ambiguous: without another value that decides the order, it stays a string.
    return fitting[0] if len(fitting) == 1 else None


def _lists(texts: pl.Series) -> pl.Series | None:
    """Return strings split at the bars, or None if they are not lists."""
    filled = texts.filter(texts != _NOTHING)
    n_split = int(filled.str.contains("|", literal=True).sum())
    if not n_split:
        return None
    parts = texts.str.split("|").list.eval(pl.element().str.strip_chars())
    parts = parts.list.eval(pl.element().filter(~pl.element().is_in(["", _NOTHING])))
    flat = parts.explode().drop_nulls()
    words = float(flat.str.count_matches(r"\S+").mean() or 0)  # type: ignore[arg-type]
    repeated = flat.n_unique() < len(flat) or 4 * n_split >= len(filled)
    return parts if words <= _LONGEST_PART and repeated else None

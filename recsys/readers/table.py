"""Tables: delimited text and Parquet."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import polars as pl

from recsys.data.frames import rating_problem, unix_seconds
from recsys.data.ids import as_strings
from recsys.errors import DataError
from recsys.messages import shortened
from recsys.readers.layout import (
    Layout,
    Request,
    Roles,
    choose_columns,
    fields_of_line,
    is_known_name,
    separator_name,
    without_returns,
)
from recsys.readers.sources import DataFile

__all__ = [
    "RawRatings",
    "decoded_lines",
    "describe_roles",
    "integers_if_canonical",
    "line_of_row",
    "read_carefully",
    "read_delimited",
    "read_parquet",
    "reading_parquet",
    "without_foreign_time",
]

Kind = Literal["id", "integer", "float", "text"]

_BLOCK = 1 << 22
_CANONICAL = re.compile(r"0|-?[1-9][0-9]{0,18}")
_INTEGER = re.compile(r"-?\d{1,18}")


def read_delimited(data: DataFile, layout: Layout, request: Request) -> RawRatings:
    """Read a delimited file.

    Raises
    ------
    DataError
        Naming file and line, if a row is ragged, an id is missing, a rating is not a finite
        number, or the text is not UTF-8; also if columns are missing or ambiguous, or there are
        no rows.
    """
    roles = _roles_of(layout, request, data.name)
    if not layout.sample:
        raise DataError(f"{data.name} has a header but no rows.")
    times = [] if roles.timestamp is None else _sampled(layout, roles.timestamp)
    roles, remarks = without_foreign_time(roles, layout.names, times, request)
    columns = _read_fast(data, layout, roles)
    if columns is None:
        columns = read_carefully(data, layout, roles)
    said = [separator_name(layout.separator), describe_roles(roles, layout.names, remarks)]
    if not layout.has_header:
        said.insert(1, "no header")

    def place(row: int) -> str:
        return f"{data.name}, line {line_of_row(data, layout, row)}"

    return RawRatings(columns, ", ".join(said), place)


def _roles_of(layout: Layout, request: Request, where: str) -> Roles:
    """Choose the columns; if no name is a usual one, say that it may be no header."""
    try:
        return choose_columns(layout.names, request, where)
    except DataError as error:
        if not layout.has_header or request.asked or any(map(is_known_name, layout.names)):
            raise
        hint = "If these are no names, but the first row: by number, such as --user-col 1."
        raise DataError(f"{error} {hint}") from None


def _read_fast(data: DataFile, layout: Layout, roles: Roles) -> dict[str, pl.Series] | None:
    """Read with polars; None if it fails, or something is null that should not be."""
    if any('"' in name or "\ufffd" in name for name in layout.names):
        return None  # a stray quote or another encoding: what follows cannot be trusted either
    kinds = {role: _kind_of(role, _sampled(layout, place)) for role, place in roles.items()}
    survey = _survey(data.path, layout.separator[:1].encode())
    columns = _scan(data, layout, roles, kinds, survey)
    if columns is None:
        return None
    strings = [r for r in ("user", "item") if kinds[r] == "id" and columns[r].null_count()]
    if strings:
        kinds |= dict.fromkeys(strings, "text")
        columns = _scan(data, layout, roles, kinds, survey)
    if columns is None or any(column.null_count() for column in columns.values()):
        return None
    return columns | {role: integers_if_canonical(columns[role]) for role in strings}


class _Survey(NamedTuple):
    """What a file has: lines, separators (characters, in quotes too), and any quotes."""

    lines: int
    separators: int
    quoted: bool


def _survey(path: Path, separator: bytes) -> _Survey:
    """Count the lines and separators of a file, at the speed of reading it."""
    lines, separators, quoted, last = 0, 0, False, b"\n"
    with path.open("rb") as stream:
        while block := stream.read(_BLOCK):
            lines += block.count(b"\n")
            separators += block.count(separator)
            quoted = quoted or b'"' in block
            last = block[-1:]
    return _Survey(lines + (last != b"\n"), separators, quoted)


def _scan(
    data: DataFile, layout: Layout, roles: Roles, kinds: dict[str, Kind], survey: _Survey
) -> dict[str, pl.Series] | None:
    """Read the columns as the given kinds; null where a value is of another kind.

    All columns are touched, so that polars notices rows that are too long; `_is_whole` notices
    the rest.
    """
    step = len(layout.separator)  # "::" reads as ":" with an empty column between each two
    every = [pl.col(str(column)) for column in range((len(layout.names) - 1) * step + 1)]
    texts = {role: every[place * step] for role, place in roles.items()}
    if "rating" in texts and layout.decimal_comma:
        texts["rating"] = texts["rating"].str.replace(",", ".", literal=True)
    casts = [_cast(text, kinds[role]).alias(role) for role, text in texts.items()]
    between = [column for number, column in enumerate(every) if number % step]
    try:
        frame = (
            pl.scan_csv(
                data.path,
                has_header=False,
                separator=layout.separator[0],
                quote_char='"' if step == 1 and survey.quoted else None,
                skip_rows=layout.skip,
                schema={str(column): pl.String for column in range(len(every))},
                glob=False,
            )
            .select(
                *casts,
                pl.all_horizontal(column.is_null() for column in every).alias("blank"),
                pl.any_horizontal(pl.lit(False), *(c.is_not_null() for c in between)).alias("odd"),
            )
            .collect(engine="streaming")
        )
    except pl.exceptions.PolarsError:
        return None
    if frame["odd"].any() or not _is_whole(frame, layout, len(every), survey):
        return None
    frame = frame.filter(~frame["blank"]) if frame["blank"].any() else frame
    return {role: frame[role] for role, _ in roles.items()} if len(frame) else None


def _is_whole(frame: pl.DataFrame, layout: Layout, width: int, survey: _Survey) -> bool:
    """Return whether there are as many rows as lines, and as many separators as they need.

    polars lets a stray quote swallow line ends, and takes missing fields for null, in silence.
    (A file with line ends inside quotes is left to the careful reader by this, in vain.)
    """
    if len(frame) != survey.lines - layout.skip:
        return False
    rows = len(frame) - int(frame["blank"].sum()) + layout.has_header
    return survey.quoted or survey.separators == rows * (width - 1)


def _cast(text: pl.Expr, kind: Kind) -> pl.Expr:
    if kind == "text":
        stripped = text.str.strip_chars()
        return pl.when(stripped.str.len_bytes() > 0).then(stripped)
    if kind == "float":
        return text.cast(pl.Float32, strict=False)
    number = text.cast(pl.Int64, strict=False)
    return number if kind == "integer" else pl.when(_is_as_printed(text)).then(number)


def _is_as_printed(integer: pl.Expr) -> pl.Expr:
    """Return whether an integer is written as it would be printed: "7", not "007" or "+7"."""
    text = integer.str
    padded = text.starts_with("0") & (text.len_bytes() > 1)
    return ~(padded | text.starts_with("+") | text.starts_with("-0"))


def _kind_of(role: str, texts: Sequence[str]) -> Kind:
    """Return what a column looks like in the sample."""
    if role == "rating":
        return "float"
    if role == "timestamp":
        return "integer" if all(_INTEGER.fullmatch(text) for text in texts) else "text"
    return "id" if all(_CANONICAL.fullmatch(text) for text in texts) else "text"


def _sampled(layout: Layout, place: int) -> list[str]:
    """Return the values of a column in the sample, as far as rows have it."""
    return [row[place].strip() for row in layout.sample if place < len(row)]


_CHUNK = 1 << 10  # records at once; with more live objects garbage collection doubles the time


def read_carefully(data: DataFile, layout: Layout, roles: Roles) -> dict[str, pl.Series]:
    """Read a delimited file in Python.

    Returns
    -------
    dict of Series
        "user" and "item" as Int64 or String, "rating" as Float64, "timestamp" as String.

    Raises
    ------
    DataError
        Naming file and line, at the first record that is ragged, has no user or item, or a
        rating that is not a finite number; or at a byte that is not UTF-8.
    """
    found = records(data, layout)
    chunks: dict[str, list[pl.Series]] = {role: [] for role, _ in roles.items()}
    while block := list(islice(found, _CHUNK)):
        columns = _columns_of([fields for _, fields in block], layout, roles)
        if columns is None:
            raise DataError(_first_problem(data, block, layout, roles))
        for role, column in columns.items():
            chunks[role].append(column)
    whole = {role: pl.concat(parts) for role, parts in chunks.items()}
    for role in ("user", "item"):
        whole[role] = integers_if_canonical(whole[role])
    return whole


def line_of_row(data: DataFile, layout: Layout, row: int) -> int:
    """Return the line (counted from 1) on which row `row` (counted from 0) begins."""
    return next(islice(records(data, layout), row, None))[0]


def records(data: DataFile, layout: Layout) -> Iterator[tuple[int, list[str]]]:
    """Yield the line and the fields of each record; header and blank ones are left out."""
    filled = (found for found in _split(data, layout.separator) if "".join(found[1]).strip())
    return islice(filled, int(layout.has_header), None)


def decoded_lines(path: Path, name: str) -> Iterator[str]:
    """Yield the lines of a UTF-8 file, with their ends.

    Raises
    ------
    DataError
        At the first byte that is not UTF-8.
    """
    offset = 0
    with path.open("rb") as stream:
        for number, raw in enumerate(stream, 1):
            try:
                yield raw.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise DataError(
                    f"{name}, line {number}: byte 0x{raw[error.start]:02x} (byte "
                    f"{offset + error.start} of the file) is not valid UTF-8; if the text is in "
                    "Latin-1, say --encoding latin-1."
                ) from None
            offset += len(raw)


def _split(data: DataFile, separator: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the line on which each record begins, and its fields."""
    lines = decoded_lines(data.path, data.name)
    if separator == "::":
        for number, line in enumerate(lines, 1):
            yield number, fields_of_line(line)
        return
    reader = csv.reader(map(without_returns, lines), delimiter=separator, strict=True)
    begin = 1
    try:
        for fields in reader:
            yield begin, fields
            begin = reader.line_num + 1
    except csv.Error as error:
        raise DataError(f"{data.name}, line {begin}: the quotes don't match ({error}).") from None


def _columns_of(rows: list[list[str]], layout: Layout, roles: Roles) -> dict[str, pl.Series] | None:
    """Return the columns that play a role, or None if any row is bad."""
    if set(map(len, rows)) != {len(layout.names)}:
        return None
    fields = list(zip(*rows, strict=True))
    columns = {}
    for role, place in roles.items():
        texts = list(map(str.strip, fields[place]))
        if role in ("user", "item") and "" in texts:
            return None
        if role == "rating" and layout.decimal_comma:
            texts = list(map(_pointed, texts))
        column = _numbers(texts) if role == "rating" else pl.Series(role, texts)
        if column is None:
            return None
        columns[role] = column
    return columns


def _numbers(texts: list[str]) -> pl.Series | None:
    """Return ratings as Float64, or None if one of them has a problem."""
    try:
        numbers = np.array(list(map(float, texts)))
    except ValueError:
        return None
    fit = (np.abs(numbers) <= np.finfo(np.float32).max).all()
    return pl.Series("rating", numbers) if fit and "_" not in "".join(texts) else None


def _first_problem(
    data: DataFile, block: list[tuple[int, list[str]]], layout: Layout, roles: Roles
) -> str:
    """Return a sentence on the first bad record of a block that has one."""
    problems = ((line, _problem(fields, layout, roles)) for line, fields in block)
    line, problem = next((line, problem) for line, problem in problems if problem is not None)
    if line == layout.skip + 1 and not layout.has_header and problem.startswith("rating "):
        problem = (
            f"{problem.removesuffix('.')}. There is no header; say by number which columns are "
            "which, such as --user-col 1 --item-col 2 --rating-col 3."
        )
    return f"{data.name}, line {line}: {problem}"


def _problem(fields: list[str], layout: Layout, roles: Roles) -> str | None:
    """Say what is wrong with a record, or None."""
    width = len(layout.names)
    if len(fields) != width:
        unclosed = any("\n" in field for field in fields)
        return f"found {len(fields)} field{'s' * (len(fields) > 1)}, expected {width}" + (
            "; a quote may be unclosed." if unclosed else "."
        )
    for role, place in roles.items():
        text = fields[place].strip()
        if role in ("user", "item") and not text:
            return f"the {role} id is missing."
        if role == "rating" and layout.decimal_comma and rating_problem(_pointed(text)) is None:
            continue
        if role == "rating" and (problem := rating_problem(text)) is not None:
            return problem
    return None


def _pointed(text: str) -> str:
    return text.replace(",", ".", 1)


_NAMED = 5  # columns that are not used
_CANONICAL_INTEGER = r"^(?:0|-?[1-9][0-9]{0,18})$"


@dataclass(frozen=True, slots=True)
class RawRatings:
    """The columns of a file, before ids become indices.

    Attributes
    ----------
    columns : dict of Series
        "user", "item", and possibly "rating" and "timestamp".
    decision : str
        The layout and what was taken for what, such as "comma-separated, user = userId, ...".
    place : callable
        Names the place of a row (counted from 0), such as "ratings.csv, line 17".
    idle_users : Series or None
        Users who are there without any item.
    """

    columns: dict[str, pl.Series]
    decision: str
    place: Callable[[int], str]
    idle_users: pl.Series | None = None


def integers_if_canonical(texts: pl.Series) -> pl.Series:
    """Return ids as Int64 if each is written as an integer is printed, else as they are.

    So "7" is an integer, but one "007" or "7.0" makes the whole column strings.
    """
    if not texts.str.contains(_CANONICAL_INTEGER).all():
        return texts
    numbers = texts.cast(pl.Int64, strict=False)
    return texts if numbers.null_count() else numbers


def describe_roles(roles: Roles, names: Sequence[str], remarks: Sequence[str] = ()) -> str:
    """Say which column was taken for what, and which for nothing if ratings or times are missing.

    `remarks` are said as well; a column that one begins with is not named twice.
    """
    labels = [("user", roles.user), ("item", roles.item), ("rating", roles.rating)]
    labels.append(("timestamp", roles.timestamp))
    said = [f"{label} = {names[place]}" for label, place in labels if place is not None]
    if roles.rating is None:
        said.append("no rating: implicit feedback")
    said += remarks
    used = {place for _, place in roles.items()}
    unused = [name for place, name in enumerate(names) if place not in used and name]
    unused = [name for name in unused if not any(r.startswith(f"{name} ") for r in remarks)]
    if unused and (roles.rating is None or roles.timestamp is None):
        more = f" and {len(unused) - _NAMED:,} more" if len(unused) > _NAMED else ""
        said.append(f"not used: {', '.join(unused[:_NAMED])}{more}")
    return ", ".join(said)


def without_foreign_time(
    roles: Roles, names: Sequence[str], sample: Sequence[Any], request: Request
) -> tuple[Roles, list[str]]:
    """Leave a time column alone that nobody asked for and that holds no times we can read.

    Parameters
    ----------
    roles : Roles
    names : sequence of str
    sample : sequence
        Values of the time column.
    request : Request

    Returns
    -------
    Roles
        Without the time column if it is left alone.
    list of str
        What to say about it, if anything.
    """
    if roles.timestamp is None or request.timestamp is not None or any(map(_is_time, sample)):
        return roles, []
    value = next((value for value in sample if value not in (None, "")), "")
    shown = repr(shortened(value)) if isinstance(value, str) else repr(value)
    remark = f"{names[roles.timestamp]} not used ({shown} is no time that can be read)"
    return replace(roles, timestamp=None), [remark]


def _is_time(value: object) -> bool:
    try:
        unix_seconds(pl.Series([value]))
    except (DataError, TypeError, OverflowError):
        return False
    return True


_SAMPLE = 100


@contextmanager
def reading_parquet(name: str) -> Iterator[None]:
    """Turn whatever is wrong with a Parquet file into one sentence.

    Raises
    ------
    DataError
        If polars or the system cannot read it.
    """
    try:
        yield
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise DataError(f"{name} is a damaged Parquet file: {reason}.") from None


def read_parquet(data: DataFile, request: Request) -> RawRatings:
    """Read a Parquet file; only the columns that play a role are read.

    Raises
    ------
    DataError
        If the file is damaged or has no rows, or columns are missing or ambiguous.
    """
    with reading_parquet(data.name):
        names = pl.scan_parquet(data.path, glob=False).collect_schema().names()
        roles = choose_columns(names, request, data.name)
        scan = pl.scan_parquet(data.path, glob=False)
        times = [] if roles.timestamp is None else _head(scan, names[roles.timestamp])
        roles, remarks = without_foreign_time(roles, names, times, request)
        chosen = {role: names[place] for role, place in roles.items()}
        frame = scan.select(pl.col(name).alias(role) for role, name in chosen.items())
        read = frame.collect(engine="streaming")
    if not len(read):
        raise DataError(f"{data.name} has no rows.")
    said = ["Parquet", describe_roles(roles, names, remarks)]

    def place(row: int) -> str:
        return f"{data.name}, row {row + 1}"

    return RawRatings({role: read[role] for role in chosen}, ", ".join(said), place)


def _head(scan: pl.LazyFrame, name: str) -> list[object]:
    head = scan.select(name).head(_SAMPLE).collect()[name]
    if head.dtype in (pl.String, pl.Categorical, pl.Enum):
        # Equal texts are held once in a column, and each by itself in a list.
        head = as_strings(head.drop_nulls()).str.head(_SAMPLE)
    elif head.dtype == pl.Date or isinstance(head.dtype, pl.Datetime):
        head = head.dt.epoch("s")  # of years, too, that Python does not know
    elif not head.dtype.is_numeric():
        return [str(head.dtype)]
    return head.to_list()

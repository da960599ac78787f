"""Tables: delimited text and Parquet, for ratings, lists of ids, histories and documents."""

from __future__ import annotations

import csv
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate, islice
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import polars as pl

from recsys.data.columns import Request, Roles, assign_roles, is_known_name
from recsys.data.ids import MISSING_IDS
from recsys.data.rows import BadRows
from recsys.data.times import YEAR_1000, iso_format
from recsys.data.values import is_truth, rating_problem
from recsys.errors import DataError
from recsys.messages import shortened
from recsys.readers.layout import Layout, separator_name, without_returns
from recsys.readers.sources import DataFile, NoRowsError

__all__ = [
    "RawRatings",
    "decoded_lines",
    "joined",
    "parquet_columns",
    "read_carefully",
    "read_columns",
    "read_delimited",
    "read_parquet",
    "read_texts",
    "reading_parquet",
    "records",
]

Kind: TypeAlias = 'Literal["id", "name", "integer", "float", "text"] | str'
"""Kind of a column: a name is an id but not an integer, a format with % is of times."""

_BLOCK = 1 << 22
_CHUNK = 1 << 10  # records at once; with more live objects garbage collection doubles the time
_SAMPLE = 100
_BAD_SHOWN = 3
_COMMA_WITH = ";"  # separator with which decimals may have a comma, as spreadsheets write them
_CANONICAL = r"^(?:0|-?[1-9][0-9]{0,18})$"
_MISSING = frozenset(MISSING_IDS)
_LINE = "line"
_WIDEST = 10_000  # columns of a table
_CANONICAL_ID = re.compile(_CANONICAL)
_INTEGER = re.compile(r"-?\d{1,18}")


@dataclass(frozen=True, slots=True)
class RawRatings:
    """The columns of a file by role, before ids become indices.

    `layout` describes format and columns; `place` names the place of a row (counted from 0), such
    as "ratings.csv, line 17"; idle users are there without any item, and
    `bad` counts the rows that are left out already.
    """

    columns: dict[str, pl.Series]
    layout: str
    place: Callable[[int], str]
    idle_users: pl.Series | None = None
    bad: BadRows = field(default_factory=BadRows)


def joined(parts: Sequence[tuple[str, RawRatings]]) -> RawRatings:
    """Return the rows of several files, which are named, as one table.

    Raises
    ------
    DataError
        If not all files have the same roles.
    """
    first_name, first = parts[0]
    for name, raw in parts:
        if odd := sorted(set(raw.columns) ^ set(first.columns)):
            has, lacks = (first_name, name) if odd[0] in first.columns else (name, first_name)
            raise DataError(
                f"{has} has a {odd[0]} column and {lacks} has none; read together, all files need "
                "the same ones."
            )
    ends = list(accumulate(len(raw.columns["item"]) for _, raw in parts))
    columns = {
        role: _concatenated([raw.columns.pop(role) for _, raw in parts])
        for role in tuple(first.columns)
    }
    idle = [raw.idle_users for _, raw in parts if raw.idle_users is not None]
    bad = BadRows(first.bad.limit, sum(raw.bad.count for _, raw in parts))
    bad.first = [each for _, raw in parts for each in raw.bad.first][:_BAD_SHOWN]

    def place(row: int) -> str:
        part = bisect_right(ends, row)
        return parts[part][1].place(row - (ends[part - 1] if part else 0))

    return RawRatings(columns, first.layout, place, _concatenated(idle) if idle else None, bad)


def _concatenated(series: list[pl.Series]) -> pl.Series:
    """Return columns below each other: as numbers if all are, else as texts."""
    types = {each.dtype for each in series}
    if len(types) > 1:
        target: type[pl.DataType] = pl.String
        if all(each.is_integer() for each in types):
            target = pl.Int64
        elif all(each.is_numeric() for each in types):
            target = pl.Float64
        series = [each.cast(target) for each in series]
    return pl.concat(series)


def read_delimited(
    data: DataFile, layout: Layout, request: Request, required: Sequence[str] = ("user", "item")
) -> RawRatings:
    """Read a delimited file.

    Raises
    ------
    DataError
        As `read_carefully`; also if columns are missing or ambiguous, or there are no rows.
    """
    try:
        roles, description = assign_roles(
            layout.names, request, data.name, required, lambda place: _sampled(layout, place)
        )
    except DataError as error:
        if not layout.has_header or request.columns or any(map(is_known_name, layout.names)):
            raise
        hint = "If these are values of the first row: by number, such as --user-col 1."
        raise DataError(f"{error} {hint}") from None
    if not layout.sample:
        raise NoRowsError(f"{data.name} has a header but no rows.")
    bad = BadRows(request.rules.bad_rows)
    columns = read_columns(data, layout, roles, bad, request.rules.time_format)
    form = separator_name(layout.separator) + ("" if layout.has_header else ", no header")

    lines = columns.pop(_LINE, None)

    def place(row: int) -> str:
        known = None if lines is None else lines[row]
        line = next(islice(records(data, layout), row, None))[0] if known is None else known
        return f"{data.name}, line {line}"

    return RawRatings(columns, f"{form}, {description}", place, bad=bad)


def read_columns(
    data: DataFile,
    layout: Layout,
    roles: Roles,
    bad: BadRows | None = None,
    time_format: str | None = None,
) -> dict[str, pl.Series]:
    """Read columns of a delimited file: with polars, and in Python where that is in doubt."""
    columns = _read_fast(data, layout, roles, time_format)
    return columns or read_carefully(data, layout, roles, bad)


def _read_fast(
    data: DataFile, layout: Layout, roles: Roles, time_format: str | None
) -> dict[str, pl.Series] | None:
    """Read with polars; None if it fails, or something is null that should not be."""
    if any('"' in name or "\ufffd" in name for name in layout.names):
        return None  # a stray quote or another encoding: what follows cannot be trusted either
    kinds = {role: _kind(role, place, layout, time_format) for role, place in roles.items()}
    survey = _survey(data, layout)
    columns = _scan(data, layout, roles, kinds, survey)
    if columns is None:
        return None
    doubtful = [role for role in roles if _is_doubtful(columns[role], kinds[role])]
    strings = [role for role in doubtful if kinds[role] == "id"]
    if doubtful:
        kinds |= {role: "name" if role in strings else "text" for role in doubtful}
        columns = _scan(data, layout, roles, kinds, survey)
    needed = [role for role in roles if role != "event"]
    if columns is None or any(columns[role].null_count() for role in needed):
        return None
    return columns | {role: _integers_if_canonical(columns[role]) for role in strings}


def read_texts(data: DataFile, layout: Layout) -> pl.DataFrame:
    """Read all columns of a delimited file as strings, null where a field is empty or missing.

    Names of columns are made distinct.

    Raises
    ------
    DataError
        Naming file and line, if a row has more fields than the header; also if there are more than
        10,000 columns; or as `records`.
    """
    width = len(layout.names)
    if width > _WIDEST:
        raise DataError(f"{data.name} has {width:,} columns; expected at most {_WIDEST:,}.")
    names: dict[str, None] = {}  # as a set that keeps its order
    for place, name in enumerate(layout.names):
        plain = name if name and name not in names else f"column_{place + 1}"
        while plain in names:
            plain += "_"
        names[plain] = None
    roles = {str(place): place for place in range(len(names))}
    columns = None
    if not any('"' in name or "\ufffd" in name for name in names):
        columns = _scan(data, layout, roles, dict.fromkeys(roles, "text"), _survey(data, layout))
    if columns is not None:
        return pl.DataFrame(columns).rename(dict(zip(columns, names, strict=True)))
    schema, found = dict.fromkeys(names, pl.String), records(data, layout)
    frames = [pl.DataFrame(schema=schema)]
    while block := list(islice(found, _CHUNK)):
        for line, fields in block:
            if any(map(str.strip, fields[width:])):
                raise DataError(
                    f"{data.name}, line {line}: found {len(fields)} fields, expected {width}."
                )
        rows = [(fields + [""] * (width - len(fields)))[:width] for _, fields in block]
        texts = pl.DataFrame(rows, schema, orient="row").with_columns(pl.all().str.strip_chars())
        frames.append(texts)
    return pl.concat(frames).with_columns(pl.when(pl.all().str.len_bytes() > 0).then(pl.all()))


def _survey(data: DataFile, layout: Layout) -> tuple[int, int, bool]:
    """Count the lines and the separators (in quotes too), and tell whether there are quotes."""
    n_lines, n_separators, quoted, last = 0, 0, False, b"\n"
    with data.path.open("rb") as stream:
        while block := stream.read(_BLOCK):
            n_lines += block.count(b"\n")
            n_separators += block.count(layout.separator[:1].encode())
            quoted = quoted or b'"' in block
            last = block[-1:]
    return n_lines + (last != b"\n"), n_separators, quoted


def _kind(role: str, place: int, layout: Layout, time_format: str | None) -> Kind:
    """Return the kind of a column by its sample: of times, the format that they have."""
    texts = _sampled(layout, place)
    if role == "rating":
        return "text" if _has_truths(layout, place) else "float"
    if role == "timestamp" and time_format is not None:
        return time_format if "%" in time_format else "text"
    if role == "timestamp":
        if all(map(_INTEGER.fullmatch, texts)):
            return "integer"
        return iso_format(texts) or "text"
    if role == "event":
        return "text"
    return "id" if all(map(_CANONICAL_ID.match, texts)) else "name"


def _is_doubtful(column: pl.Series, kind: Kind) -> bool:
    """Return whether a column has to be read as text, because values are of another kind."""
    if kind == "id":
        return column.null_count() > 0
    if "%" not in kind:
        return False
    return column.null_count() > 0 or bool((column.dt.epoch("s") < YEAR_1000).any())


def _scan(
    data: DataFile,
    layout: Layout,
    roles: Roles,
    kinds: dict[str, Kind],
    survey: tuple[int, int, bool],
) -> dict[str, pl.Series] | None:
    """Read the columns as the given kinds; null where a value is of another kind.

    All columns are read, so that polars notices rows that are too long. The counts of lines and
    separators show the rest: it lets a stray quote swallow line ends, and takes missing fields
    for null. (A file with line ends inside quotes is left to the careful reader by this.)
    """
    n_lines, n_separators, quoted = survey
    step = len(layout.separator)  # "::" reads as ":" with an empty column between each two
    every = [pl.col(str(column)) for column in range((len(layout.names) - 1) * step + 1)]
    texts = {role: every[place * step] for role, place in roles.items()}
    if "rating" in texts and layout.separator == _COMMA_WITH:
        texts["rating"] = texts["rating"].str.replace(",", ".", literal=True)
    casts = [_cast(text, kinds[role]).alias(role) for role, text in texts.items()]
    between = [column for number, column in enumerate(every) if number % step]
    plan = pl.scan_csv(
        data.path,
        has_header=False,
        separator=layout.separator[0],
        quote_char='"' if step == 1 and quoted else None,
        skip_rows=layout.skip,
        schema={str(column): pl.String for column in range(len(every))},
        glob=False,
    ).select(
        *casts,
        pl.all_horizontal(column.is_null() for column in every).alias("blank"),
        pl.any_horizontal(pl.lit(False), *(c.is_not_null() for c in between)).alias("odd"),
    )
    batches, n_rows = [], 0
    try:
        for batch in plan.collect_batches(engine="streaming"):
            batches.append(batch)
            n_rows += len(batch)
            if data.on_rows is not None:
                data.on_rows(n_rows, n_lines - layout.skip)
    except pl.exceptions.PolarsError:
        return None
    if not batches:
        return None
    frame = pl.concat(batches)
    if frame["odd"].any() or len(frame) != n_lines - layout.skip:
        return None
    rows = len(frame) - int(frame["blank"].sum()) + layout.has_header
    if not quoted and n_separators != rows * (len(every) - 1):
        return None
    frame = frame.filter(~frame["blank"]) if frame["blank"].any() else frame
    return {role: frame[role] for role in roles} if len(frame) else None


def _cast(text: pl.Expr, kind: Kind) -> pl.Expr:
    stripped = text.str.strip_chars()
    if kind == "text":
        return pl.when(stripped.str.len_bytes() > 0).then(stripped)
    if kind == "name":
        return pl.when(~stripped.is_in(MISSING_IDS)).then(stripped)
    if kind == "float":
        return text.cast(pl.Float32, strict=False)
    if "%" in kind:
        return stripped.str.to_datetime(kind, time_unit="us", strict=False)
    number = text.cast(pl.Int64, strict=False)
    if kind == "integer":
        return number
    # An id is an integer only if it is written as it would be printed: "7", not "007" or "+7".
    padded = text.str.starts_with("0") & (text.str.len_bytes() > 1)
    return pl.when(~(padded | text.str.starts_with("+") | text.str.starts_with("-0"))).then(number)


def _sampled(layout: Layout, place: int) -> list[str]:
    """Return the values of a column in the sample, as far as rows have it."""
    return [row[place].strip() for row in layout.sample if place < len(row)]


def read_carefully(
    data: DataFile, layout: Layout, roles: Roles, bad: BadRows | None = None
) -> dict[str, pl.Series]:
    """Read columns of a delimited file in Python: ids as Int64 or String, times as String.

    Where bad rows are left out, there is a further column of the rows' lines.

    Raises
    ------
    DataError
        Naming file and line, at the first record that is ragged, has no user or item, or a
        rating that is not a finite number; or as `records`.
    """
    bad = BadRows() if bad is None else bad
    found = records(data, layout, bad)
    names = [*roles] if bad.limit is None else [*roles, _LINE]
    chunks: dict[str, list[pl.Series]] = {name: [] for name in names}
    while block := list(islice(found, _CHUNK)):
        columns = _columns_of(block, layout, roles)
        if columns is None:
            problems = [_problem(line, fields, layout, roles) for line, fields in block]
            for (line, _), problem in zip(block, problems, strict=True):
                if problem is not None:
                    bad.add(f"{data.name}, line {line}: {problem}")
            good = [each for each, problem in zip(block, problems, strict=True) if problem is None]
            columns = _columns_of(good, layout, roles) if good else None
        if columns is not None:
            for name in names:
                chunks[name].append(columns[name])
    if not chunks[names[0]]:
        bad.check(0)
    whole = {name: pl.concat(columns) for name, columns in chunks.items()}
    ids = {role: _integers_if_canonical(whole[role]) for role in ("user", "item") if role in whole}
    return whole | ids


def _columns_of(
    block: list[tuple[int, list[str]]], layout: Layout, roles: Roles
) -> dict[str, pl.Series] | None:
    """Return the columns that have a role, and the lines; None if any row has a problem."""
    rows = [fields for _, fields in block]
    if set(map(len, rows)) != {len(layout.names)}:
        return None
    fields = list(zip(*rows, strict=True))
    columns = {_LINE: pl.Series(_LINE, [line for line, _ in block], dtype=pl.Int64)}
    for role, place in roles.items():
        texts = list(map(str.strip, fields[place]))
        if role in ("user", "item") and not _MISSING.isdisjoint(texts):
            return None
        if role != "rating" or _has_truths(layout, place):
            columns[role] = pl.Series(role, texts)
            if role == "rating" and not all(map(is_truth, texts)):
                return None
            continue
        try:
            numbers = np.array([float(_pointed(text, layout)) for text in texts])
        except ValueError:
            return None
        if "_" in "".join(texts) or not (np.abs(numbers) <= np.finfo(np.float32).max).all():
            return None
        columns[role] = pl.Series(role, numbers)
    return columns


def _problem(line: int, fields: list[str], layout: Layout, roles: Roles) -> str | None:
    """Say what is wrong with a record, or None."""
    width = len(layout.names)
    if len(fields) != width:
        unclosed = any("\n" in field for field in fields)
        return f"found {len(fields)} field{'s' * (len(fields) > 1)}, expected {width}" + (
            "; a quote may be unclosed." if unclosed else "."
        )
    for role, place in roles.items():
        text = fields[place].strip()
        if role in ("user", "item") and text in _MISSING:
            return f"the {role} id is missing{f' ({text!r})' * bool(text)}."
        if role != "rating":
            continue
        if _has_truths(layout, place):
            if not is_truth(text):
                return f"rating {shortened(text)!r} is neither true nor false."
        elif rating_problem(_pointed(text, layout)) is not None:
            problem = str(rating_problem(text))
            if line == layout.skip + 1 and not layout.has_header and problem.startswith("rating "):
                problem = (
                    f"{problem.removesuffix('.')}. There is no header; say by number which columns "
                    "are which, such as --user-col 1 --item-col 2 --rating-col 3."
                )
            return problem
    return None


def _has_truths(layout: Layout, place: int) -> bool:
    """Return whether the sample of a column has true and false for ratings."""
    texts = _sampled(layout, place)
    return bool(texts) and is_truth(texts[0]) and all(map(is_truth, texts))


def _pointed(text: str, layout: Layout) -> str:
    return text.replace(",", ".", 1) if layout.separator == _COMMA_WITH else text


def records(
    data: DataFile, layout: Layout, bad: BadRows | None = None
) -> Iterator[tuple[int, list[str]]]:
    """Yield the first line and the fields of each record; header and blank ones are left out.

    Raises
    ------
    DataError
        Naming file and line, where quotes don't match or a byte is not UTF-8, unless bad rows are
        left out.
    """
    bad = BadRows() if bad is None else bad
    lines = decoded_lines(data.path, data.name, bad)
    reader: Iterator[list[str]]
    if layout.separator == "::":
        reader = (line.rstrip("\r\n").split("::") for line in lines)
    else:
        returned = map(without_returns, lines)
        reader = csv.reader(returned, delimiter=layout.separator, strict=True)
    begin, is_header = 1, layout.has_header
    while True:
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            problem = f"{data.name}, line {begin}: the quotes don't match ({error})."
            bad.add(problem, getattr(reader, "line_num", begin) - begin + 1)
            fields = []
        if "".join(fields).strip():
            if not is_header:
                yield begin, fields
            is_header = False
        begin = getattr(reader, "line_num", begin) + 1


def decoded_lines(path: Path, name: str, bad: BadRows | None = None) -> Iterator[str]:
    """Yield the lines of a UTF-8 file, with their ends.

    Raises
    ------
    DataError
        At the first byte that is not UTF-8, unless bad rows are left out.
    """
    bad, offset = BadRows() if bad is None else bad, 0
    with path.open("rb") as stream:
        for number, raw in enumerate(stream, 1):
            try:
                yield raw.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                bad.add(
                    f"{name}, line {number}: byte 0x{raw[error.start]:02x} (byte "
                    f"{offset + error.start} of the file) is not valid UTF-8; if the text is in "
                    "Latin-1, say --encoding latin-1."
                )
                yield "\n"
            offset += len(raw)


def _integers_if_canonical(texts: pl.Series) -> pl.Series:
    """Return ids as Int64 unless one is not written as an integer is printed: "007" or "7.0"."""
    if not texts.str.contains(_CANONICAL).all():
        return texts
    numbers = texts.cast(pl.Int64, strict=False)
    return texts if numbers.null_count() else numbers


@contextmanager
def reading_parquet(name: str) -> Iterator[None]:
    """Turn any problem with a Parquet file into one sentence.

    Raises
    ------
    DataError
        If polars or the system cannot read it.
    """
    try:
        yield
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, MemoryError, OSError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise DataError(f"{name} is a damaged Parquet file: {reason}.") from None


def parquet_columns(data: DataFile) -> dict[str, pl.DataType]:
    """Return the names and types of the columns of a Parquet file."""
    with reading_parquet(data.name):
        return dict(pl.scan_parquet(data.path, glob=False).collect_schema())


def read_parquet(
    data: DataFile, request: Request, required: Sequence[str] = ("user", "item")
) -> RawRatings:
    """Read a Parquet file; only the columns that have a role are read.

    Raises
    ------
    DataError
        If the file is damaged or has no rows, or columns are missing or ambiguous.
    """
    types = parquet_columns(data)
    names = list(data.columns or types)
    scan = pl.scan_parquet(data.path, glob=False)

    def times(place: int) -> list[Any]:
        head = scan.select(names[place]).head(_SAMPLE).collect()[names[place]]
        if head.dtype == pl.Date or isinstance(head.dtype, pl.Datetime):
            head = head.dt.epoch("s")  # of years, too, that Python does not know
        is_plain = head.dtype.is_numeric() or head.dtype == pl.String
        return head.to_list() if is_plain else [str(head.dtype)]

    with reading_parquet(data.name):
        roles, description = assign_roles(names, request, data.name, required, times)
        chosen = {role: pl.col(names[place]) for role, place in roles.items()}
        if "rating" in roles and types[names[roles["rating"]]] == pl.Float64:
            # Half the memory; numbers beyond it become infinite, and have an error of their own.
            single = pl.col(names[roles["rating"]]).cast(pl.Float32)
            overflows = scan.select(single.is_infinite().any()).collect(engine="streaming").item()
            chosen["rating"] = chosen["rating"] if overflows else single
        read = scan.select(**chosen).collect(engine="streaming")
    if not len(read):
        raise NoRowsError(f"{data.name} has no rows.")
    columns = {role: read[role] for role in roles}
    if data.columns:  # of a database, where numbers are often kept as texts
        for role in {"user", "item"}.intersection(columns):
            if columns[role].dtype == pl.String and not columns[role].null_count():
                columns[role] = _integers_if_canonical(columns[role])
    return RawRatings(
        columns,
        f"{data.form}, {description}",
        lambda row: f"{data.name}, row {row + 1}",
        bad=BadRows(request.rules.bad_rows),
    )

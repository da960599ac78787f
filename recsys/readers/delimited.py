"""Text files: detection of the layout, and parsing by polars or by record.

`detect` determines the layout and the columns of a file; `read_delimited` reads the columns that
have a role.
"""

from __future__ import annotations

import csv
import io
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TypeVar

import numpy as np
import polars as pl

from lowrank.kernels import backends, default_threads
from recsys.data.columns import (
    BY_NUMBER,
    BY_PLACE,
    Request,
    Roles,
    assign_roles,
    is_known_name,
    names_without_header,
    usual_column,
    without_types,
)
from recsys.data.csr import Batches, Column
from recsys.data.ids import (
    CANONICAL_INTEGER,
    MISSING_IDS,
    Spot,
    integers_if_whole,
    is_bad_id,
)
from recsys.data.numerals import decimal_points, have_groups
from recsys.data.rows import (
    STRICT,
    BadRows,
    Rows,
    is_truth,
)
from recsys.data.times import YEAR_1000, iso_format
from recsys.errors import DataError
from recsys.messages import counted
from recsys.readers.formats import PARQUET, Format, recognised
from recsys.readers.sources import DataFile, NoRowsError

_HEAD = 1 << 16  # bytes to inspect, extended to at least two lines
_SAMPLE_ROWS = 200
DOUBLE_COLON = "::"
"""Separator of MovieLens."""
_SEPARATORS = {"\t": "tab", ";": "semicolon", ",": "comma", "|": "bar", " ": "space"}
_NAMED_SEPARATORS = {r"\t": "\t", "tab": "\t", "space": " "}
# The id of a product, then of a reviewer: read in the usual order, they would be swapped.
_OF_AMAZON = re.compile(r"(B0|\d\d)[0-9A-Z]{8}A[0-9A-Z]{9,}")
_LABEL = "label"  # of RecBole: 1 for an interaction, 0 for none

_TAB = "\t"  # in such files, quotes that do not enclose a field are part of it
# records per chunk; more live objects double the time by garbage collection
_CHUNK = 1 << 10
LINE = "line"
"""Column with the line number of each row, if known."""
_INTEGER = re.compile(r"-?\d{1,18}")
_FORMULA = r'^="([^"]*)"$'  # as exports for Excel write 007, to keep its zeros
_COMMA_WITH = ";"  # separator of spreadsheets that use decimal commas
_BLOCK = 1 << 20  # bytes to parse at once
_NUMBERS: dict[str, type[np.number]] = {
    "user": np.int64,
    "item": np.int64,
    "rating": np.float32,
    "timestamp": np.int64,
}
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


@dataclass(frozen=True, slots=True)
class Layout:
    """Layout of a text with delimited columns.

    `separator` is one character, or "::"; `names` are from the header, or given by position; `skip`
    counts the lines before the first row: blank ones, and the header; `sample` has the first rows;
    `types` are the types of columns in an atomic file of RecBole.
    """

    separator: str
    names: tuple[str, ...] = ()
    has_header: bool = True
    skip: int = 0
    sample: tuple[list[str], ...] = ()
    types: tuple[str, ...] = ()


def detect(data: DataFile, request: Request) -> Layout | Format:
    """Detect the format of a file, or the layout of its columns if it is delimited text.

    Raises
    ------
    DataError
        If the file is empty or binary, has the suffix of Parquet but another format, is a JSON
        array of other values than objects, or has no separator between columns.
    """
    if data.is_parquet:
        return PARQUET
    lines = _first_lines(data)
    blank = next((n for n, line in enumerate(lines) if line.strip()), len(lines))
    lines = lines[blank:]
    if not lines:
        raise NoRowsError(f"{data.name} is empty.")
    if request.options.get("sep") is None:
        format = recognised(lines, data)
        if format is not None:
            return format
    return _delimited(lines, blank, data, request)


def _first_lines(data: DataFile) -> list[str]:
    """Return the first whole lines of a text file."""
    with data.path.open("rb") as stream:
        head = stream.read(_HEAD)
        # Two lines are needed to tell a header from a first row.
        while head.lstrip().count(b"\n") < 2 and (block := stream.read(len(head))):
            head += block
        # The last line of a longer file is cut anywhere.
        is_whole = not stream.read(1)
    data.check_text(head)
    lines = list(io.StringIO(head.decode("utf-8-sig", errors="replace")))
    return lines if is_whole else lines[:-1]


def _delimited(
    lines: list[str],
    blank: int,
    data: DataFile,
    request: Request,
) -> Layout:
    """Return the layout of delimited lines, which follow after `blank` others."""
    sep = request.options.get("sep")
    separator = None if sep is None else _separator_of(sep)
    begin = lines[0].strip()
    # Excel reads its separator from a line of its own.
    excel = re.fullmatch(r'"?sep=(.)"?', begin)
    if excel and len(lines) > 1:
        request = request.changed(sep=separator or excel[1])
        return _delimited(lines[1:], blank + 1, data, request)
    n_comments = _n_comments(lines, separator)
    if n_comments:
        return _delimited(lines[n_comments:], blank + n_comments, data, request)
    separator = separator or sniff_separator(lines)
    rows = split_rows(lines, separator) if separator else []
    if separator is None or not rows or len(rows[0]) < 2:
        tried = "tab, semicolon, comma, bar or space"
        if sep:
            tried = f"separator {sep!r}"
        raise DataError(
            f"{data.name} has only one column ({begin[:40]!r}): found no {tried}; "
            "name the separator with --sep."
        )
    first = [field.strip() for field in rows[0]]
    # Some programs end all rows but the header with a separator.
    endings = {"".join(row[len(first) :]).strip() for row in rows[1:]}
    widths = set(map(len, rows[1:]))
    if len(rows) > 2 and endings == {""} and widths == {len(first) + 1}:
        first.append("")
    names = names_without_header(first, rows, separator, data.name, request)
    if names is not None:
        pairs = ("".join(row[:2]) for row in rows)
        if names == BY_PLACE and all(map(_OF_AMAZON.fullmatch, pairs)):
            names = ("item (first)", "user (second)", *names[2:])
        return Layout(separator, names, False, blank, tuple(rows))
    untyped_names, types = without_types(first)
    return Layout(
        separator,
        names=tuple(untyped_names),
        skip=blank + 1,
        sample=tuple(rows[1:]),
        types=types,
    )


def _separator_of(sep: str) -> str:
    """Return the separator that an option names."""
    separator = _NAMED_SEPARATORS.get(sep, sep)
    is_character = len(separator) == 1 and separator.isascii()
    if separator != DOUBLE_COLON and (not is_character or separator in '"\r\n'):
        raise DataError(
            f'--sep must be one ASCII character, "tab" or "::"; got {sep!r}.'
        )
    return separator


def _n_comments(lines: list[str], separator: str | None) -> int:
    """Return the number of lines before the header that begin with # or %.

    A first line with as many fields as the next one is a header, not a comment.
    """
    sign = lines[0].lstrip()[0]
    if sign not in "#%" or sign == separator:
        return 0
    filled = (n for n, line in enumerate(lines) if line.strip())
    positions = [n for n in filled if lines[n].lstrip()[0] != sign]
    if not positions:
        return 0
    data_lines = [lines[n] for n in positions]
    mark = separator or sniff_separator(data_lines) or ","
    first = split_rows(lines[:1], mark)[0]
    next_rows = split_rows(data_lines, mark)[:1]
    is_header = all(len(row) == len(first) for row in next_rows)
    if is_header and first[0].strip() != sign:
        return 0
    return positions[0]


def sniff_separator(
    lines: list[str], separators: Sequence[str] = tuple(_SEPARATORS)
) -> str | None:
    """Return the separator that splits all lines into equally many fields, the most.

    If no separator gives equal numbers, because a row is ragged, only the first line is used.
    Spaces next to tabs are part of the fields. The result is None if there is only one column.
    """
    if DOUBLE_COLON in lines[0] and tuple(separators) == tuple(_SEPARATORS):
        return DOUBLE_COLON
    even: dict[str, int] = {}
    widest: dict[str, int] = {}
    for separator in separators:
        rows = split_rows(lines, separator)
        widest[separator] = len(rows[0]) if rows else 0
        if len(set(map(len, rows))) == 1:
            even[separator] = widest[separator]
    if even.get("\t", 1) > 1:
        even.pop(" ", None)
    # Words have spaces between them, too, so a space counts last.
    for widths in (even, {s: n for s, n in widest.items() if s != " "}, widest):
        best = max(widths, key=widths.__getitem__, default=None)
        if best is not None and widths[best] > 1:
            return best
    return None


def split_rows(lines: list[str], separator: str) -> list[list[str]]:
    """Return the fields of the first 200 rows, without blank rows."""
    if separator == DOUBLE_COLON:
        rows: Iterable[list[str]] = (
            line.rstrip("\r\n").split(DOUBLE_COLON) for line in lines
        )
    else:
        rows = csv_rows(lines, separator, strict=False)
    return list(islice((row for row in rows if any(map(str.strip, row))), _SAMPLE_ROWS))


def csv_rows(
    lines: Iterable[str],
    separator: str,
    *,
    strict: bool = True,
) -> Iterator[list[str]]:
    """Yield the fields of records; several spaces are one separator.

    Carriage returns inside lines, which csv rejects, become spaces. Quotes after a backslash are
    part of the field.
    """

    def plain() -> Iterator[str]:
        for line in lines:
            if "\r" in line:
                line = line.replace("\r\n", "\n").replace("\r", " ")
            yield _with_doubled_quotes(line, separator) if '\\"' in line else line

    with_spaces = separator == " "
    return csv.reader(
        plain(), delimiter=separator, strict=strict, skipinitialspace=with_spaces
    )


def _with_doubled_quotes(line: str, separator: str) -> str:
    """Double escaped quotes, if the line is a valid record only then."""
    for variant in (line, line.replace('\\"', '""')):
        with suppress(csv.Error):
            list(csv.reader([variant], delimiter=separator, strict=True))
            return variant
    return line


def separator_name(separator: str) -> str:
    """Return the name of a separator for `Source`, such as "comma-separated"."""
    return f"{_SEPARATORS.get(separator, repr(separator))}-separated"


def read_delimited(data: DataFile, layout: Layout, request: Request) -> Rows:
    """Read a delimited file.

    Raises
    ------
    DataError
        As `read_carefully`; also if columns are missing or ambiguous, or there are no rows.
    """
    if request.rules.bad_rows is None and any("\ufffd" in n for n in layout.names):
        # Names in another encoding would be missed, and others taken in their place.
        deque(data.lines(), maxlen=0)  # raises, with the place of the byte
    roles, description = _assigned_roles(data, layout, request)
    if not layout.sample:
        raise NoRowsError(f"{data.name} has a header but no rows.")
    bad = BadRows(request.rules.bad_rows)
    if not layout.has_header and "rating" in roles and bad.limit is None:
        _check_first_rating(data, layout, layout.sample[0][roles["rating"]].strip())
    rows = read_fast(data, layout, roles, request.rules.time_format)
    lines = None
    if rows is None:
        rows, lines = _read_slowly(data, layout, roles, bad)
    if layout.types and layout.names[roles.get("rating", 0)] == _LABEL:
        ratings = rows.decode().columns["rating"].cast(pl.Float64, strict=False)
        # As truth values, zeros mean no interaction, in place of low ratings.
        if ratings.fill_null(2).is_in([0.0, 1.0]).all():
            rows.columns["rating"] = ratings == 1
    n_rows = len(next(iter(rows.columns.values())))

    def place(row: int) -> Spot:
        if lines is not None:
            return data.at(lines[row])
        return data.at_row(row, n_rows, records(data, layout), layout.skip)

    form = separator_name(layout.separator)
    if not layout.has_header:
        form += ", no header"
    elif "rating" in roles:
        rows.name = layout.names[roles["rating"]]
    rows.layout = f"{form}, {description}"
    rows.place = place
    rows.bad = bad
    rows.untyped = frozenset(("user", "item"))
    return rows


def _assigned_roles(
    data: DataFile, layout: Layout, request: Request
) -> tuple[Roles, str]:
    """Return the columns of the roles, and how they were found; labels may be ratings."""
    has_label = layout.types and _LABEL in layout.names
    is_labelled = has_label and "rating" not in request.columns
    if is_labelled and usual_column(layout.names, "rating", data.name) is None:
        request = request.changed(rating=_LABEL)
    try:
        return assign_roles(
            layout.names,
            request,
            data.name,
            lambda position: _sampled(layout, position),
        )
    except DataError as error:
        # A first row of values has no name that is known.
        is_sure = request.columns or any(map(is_known_name, layout.names))
        if not layout.has_header or is_sure:
            raise
        hint = f"If these are values of the first row, use column numbers, {BY_NUMBER}."
        raise DataError(f"{error} {hint}") from None


def _check_first_rating(data: DataFile, layout: Layout, first: str) -> None:
    """Check that the first rating of a file without a header is not the name of a column."""
    if first[:1].isalpha() and not is_truth(first) and first not in MISSING_IDS:
        raise DataError(
            f"{data.name}, line {layout.skip + 1}: rating {first!r} is not a number. "
            f"There is no header; name the columns by number, {BY_NUMBER}."
        )


def _read_slowly(
    data: DataFile,
    layout: Layout,
    roles: Roles,
    bad: BadRows,
) -> tuple[Rows, pl.Series]:
    """Read a file that polars may read wrongly; return its rows, and the line of each."""
    frame, n_headers = read_carefully(data, layout, roles, bad)
    rows = Rows(frame.to_dict())
    lines = rows.columns.pop(LINE)
    for role in roles.keys() & {"user", "item"}:
        rows.columns[role] = integers_if_whole(rows.columns[role])
    if "rating" in roles and layout.separator == _COMMA_WITH:
        numbers, remark = decimal_points(rows.columns["rating"], commas=True)
        rows.columns["rating"] = numbers
        if remark:
            rows.remarks.append(remark)
    if n_headers:
        rows.remarks.append(f"{counted(n_headers, 'repeated header')} left out")
    return rows, lines


class UnreliableError(Exception):
    """Polars cannot read a file, or may have read it wrongly."""


def read_fast(
    data: DataFile,
    layout: Layout,
    roles: Roles,
    time_format: str | None = None,
) -> Rows | None:
    """Read with polars; return None if a record or a value needs a closer look."""
    form = time_format
    if "timestamp" in roles and form is None:
        times = _sampled(layout, roles["timestamp"])
        if not all(map(_INTEGER.fullmatch, times)):
            form = iso_format(times)
    if form is None or "%" not in form:
        return _read_blocks(data, layout, roles, None)
    try:
        return _read_blocks(data, layout, roles, form)
    except pl.exceptions.InvalidOperationError:
        # Some times have another format than the sample: read them as texts.
        return _read_blocks(data, layout, roles, None)


def _read_blocks(
    data: DataFile,
    layout: Layout,
    roles: Roles,
    form: str | None,
) -> Rows | None:
    """Read with polars, times by a format of polars or as texts."""
    samples = {role: _sampled(layout, position) for role, position in roles.items()}
    ratings = samples.get("rating", [])
    likes = all(text in MISSING_IDS or is_truth(text) for text in ratings)
    if decimal_points(pl.Series(ratings, dtype=pl.String), commas=False)[1]:
        return None
    numeric = []
    for role in _NUMBERS.keys() & samples.keys():
        if role == "rating" and layout.separator == _COMMA_WITH:
            continue  # a later point may be between thousands
        pattern = _NUMBER if role == "rating" else _INTEGER
        is_date = role == "timestamp" and form is not None
        if not is_date and all(map(pattern.fullmatch, samples[role])):
            numeric.append(role)

    def converted(texts: Mapping[str, pl.Series]) -> dict[str, pl.Series]:
        columns = {role: stripped(column) for role, column in texts.items()}
        for role in columns.keys() & {"user", "item"}:
            columns[role] = _ids(columns[role])
        if "rating" in columns and not likes:
            columns["rating"] = _finite_numbers(columns["rating"], layout)
        if "timestamp" in columns:
            columns["timestamp"] = _times(columns["timestamp"], form)
        return columns

    batches = Batches()
    try:
        for columns in parsed_blocks(data, layout, roles, converted, numeric):
            batches.add(columns)
    except UnreliableError:
        return None
    rows = batches.rows()
    if not rows.columns or rows.lacks_values:
        return None
    header = layout.names if layout.has_header else ()
    for role in rows.columns.keys() & {"user", "item"}:
        column = rows.columns[role]
        if not column.dtype.is_integer():
            column = integers_if_whole(column)
            rows.columns[role] = column
        if not column.dtype.is_integer():
            texts = column.unique().cast(pl.String)
            name = header[roles[role]] if header else ""
            # Such as "1.23457E+11", or a header in the middle.
            if (
                is_bad_id(texts).any()
                or (texts.str.to_lowercase() == name.lower()).any()
            ):
                return None
    return rows


def _ids(texts: pl.Series) -> pl.Series:
    """Return ids as integers if all are in canonical form, else as texts."""
    # All or none, as 007 and 7 are two users where there is one such id.
    if texts.str.contains(CANONICAL_INTEGER.pattern).all():
        numbers = texts.cast(pl.Int64, strict=False)
        if numbers.null_count() == texts.null_count():
            return numbers
    return texts.set(texts.is_in(MISSING_IDS), None)


def _finite_numbers(texts: pl.Series, layout: Layout) -> pl.Series:
    """Return texts as numbers.

    Raises
    ------
    UnreliableError
        If one is missing, infinite or not a number.
    """
    if layout.separator == _COMMA_WITH:
        if have_groups(texts):
            raise UnreliableError  # other blocks tell what the points mean
        texts, _ = decimal_points(texts, commas=True)
    numbers = texts.cast(pl.Float32, strict=False)
    if numbers.null_count() or not numbers.is_finite().all():
        raise UnreliableError
    return numbers


def _times(texts: pl.Series, form: str | None) -> pl.Series:
    """Return times by their format, or as integers if all are, or as texts."""
    if form is not None:
        times = texts.str.to_datetime(form, time_unit="us")
        # A year of two digits has matched the place of four.
        if (times.to_physical() < YEAR_1000 * 10**6).any():
            raise pl.exceptions.InvalidOperationError(form)
        return times
    numbers = texts.cast(pl.Int64, strict=False)
    return texts if numbers.null_count() else numbers


def stripped(texts: pl.Series) -> pl.Series:
    """Return texts without spaces and formulas around them, null where they are empty."""
    texts = texts.str.strip_chars()
    if texts.str.starts_with("=").any():
        texts = texts.str.replace(_FORMULA, "$1")
    return texts.set(texts.str.len_bytes() == 0, None)


def _sampled(layout: Layout, position: int) -> list[str]:
    """Return the values of a column in the rows of the sample that have it."""
    rows = (row for row in layout.sample if position < len(row))
    return [row[position].strip() for row in rows]


def read_carefully(
    data: DataFile,
    layout: Layout,
    roles: Roles,
    bad: BadRows = STRICT,
    *,
    pad: bool = False,
) -> tuple[pl.DataFrame, int]:
    """Read columns as texts, and the line numbers of the rows, in Python.

    With `pad`, short records are filled with empty fields, and long ones may end in empty fields.
    Also return how often the header is repeated, as in joined files.
    """
    width = len(layout.names)
    schema = {**dict.fromkeys(roles, pl.String), LINE: pl.Int64}
    frames = [pl.DataFrame(schema=schema)]
    rows: list[tuple[str | int, ...]] = []
    for line, fields in records(data, layout, bad):
        if pad and not any(map(str.strip, fields[width:])):
            fields = [*fields, *[""] * width][:width]
        if len(fields) != width:
            problem = f"found {counted(len(fields), 'field')}, expected {width}"
            if any("\n" in field for field in fields):
                problem += "; a quote may be unclosed"
            bad.add(data.at(line), f"{problem}.")
            continue
        rows.append((*(fields[position] for position in roles.values()), line))
        if len(rows) == _CHUNK:
            frames.append(pl.DataFrame(rows, schema, orient="row"))
            rows = []
    frames.append(pl.DataFrame(rows, schema, orient="row"))
    plain = pl.col(pl.String).str.strip_chars().str.replace(_FORMULA, "$1")
    frame = pl.concat(frames).with_columns(plain)
    if not layout.has_header:
        return frame, 0
    selected = frame.filter(~repeats_header(layout, roles))
    return selected, len(frame) - len(selected)


def repeats_header(layout: Layout, roles: Roles) -> pl.Expr:
    """Return which rows of texts are the header again, where files were joined."""
    # Each of the joined files may begin with a byte order mark.
    return pl.all_horizontal(
        pl.col(role)
        .str.strip_chars('\ufeff"')
        .str.to_lowercase()
        .eq_missing(layout.names[position].lower())
        for role, position in roles.items()
        if layout.names[position]
    )


def records(
    data: DataFile,
    layout: Layout,
    bad: BadRows = STRICT,
) -> Iterator[tuple[int, list[str]]]:
    """Yield the first line number and the fields of each record after the header.

    Raises
    ------
    DataError
        If quotes do not match or a byte is not UTF-8, unless bad rows are left out. The message has
        the file and line.
    """
    record: list[str] = []  # lines of the record

    def lines() -> Iterator[str]:
        for line in data.lines(bad):
            record.append(line)
            yield line

    reader: Iterator[list[str]]
    if layout.separator == DOUBLE_COLON:
        reader = (line.rstrip("\r\n").split(DOUBLE_COLON) for line in lines())
    else:
        reader = csv_rows(lines(), layout.separator)
    begin = 1
    is_header = layout.has_header
    while True:
        record.clear()
        rows: list[list[str]] = []
        problem = ""
        try:
            rows = [next(reader)]
        except StopIteration:
            return
        except csv.Error as error:
            problem = str(error)
        if problem or (len(record) > 1 and len(rows[0]) != len(layout.names)):
            rows = _otherwise_quoted(record, layout) or rows
        if not rows:
            bad.add(data.at(begin), f"the quotes don't match ({problem}).", len(record))
        for line, fields in enumerate(rows, begin):
            if any(map(str.strip, fields)):
                if not is_header:
                    yield line, fields
                is_header = False
        begin += len(record)


def _otherwise_quoted(lines: Sequence[str], layout: Layout) -> list[list[str]]:
    """Split lines at tabs if quotes do not match; return no rows if they are ragged.

    Quotes around a field enclose it; other quotes are part of the text.
    """
    rows = [line.rstrip("\r\n").split(_TAB) for line in lines]
    # With commas or semicolons, a quote that does not match is an error of the file.
    if layout.separator != _TAB or {*map(len, rows)} != {len(layout.names)}:
        return []
    for row in rows:
        for position, field in enumerate(row):
            if re.fullmatch('".*"', field) and len(field) > 1:
                row[position] = field[1:-1].replace('""', '"')
    return rows


def parsed_blocks(
    data: DataFile,
    layout: Layout,
    roles: Roles,
    convert: Callable[[dict[str, pl.Series]], dict[str, pl.Series]],
    numeric: Sequence[str] = (),
) -> Iterator[Mapping[str, Column]]:
    """Yield the columns of each block of a file, without blank rows.

    Blocks of numbers in canonical form are parsed directly, which takes a third of the time and of
    the memory of polars. Other columns are read as texts, null if empty, and converted.

    Raises
    ------
    UnreliableError
        If polars fails, or has read another number of rows than the lines and separators of a
        block give: it lets a stray quote include line ends, and reads missing fields as null. (A
        file with line ends inside quotes is therefore always unreliable.)
    """
    if any('"' in name or "\ufffd" in name for name in layout.names):
        # A stray quote or another encoding also affects later blocks.
        raise UnreliableError

    def parsed(block: bytes) -> tuple[dict[str, Column], int]:
        size = len(block)
        # polars does not count blank lines at the beginning.
        block = block.lstrip(b"\r\n")
        columns: dict[str, Column] = {}
        if not block:
            return columns, size
        n_rows = block.count(b"\n") + (not block.endswith(b"\n"))
        if numeric:
            columns = _numbers(block, layout, roles, numeric, n_rows)
        positions = {role: roles[role] for role in roles if role not in columns}
        if positions:
            columns |= convert(_texts(block, layout, positions, n_rows))
        return columns, size

    size = data.path.stat().st_size
    n_bytes = 0
    n_rows = 0
    for columns, n_read in _in_turns(parsed, _blocks(data.path, layout.skip)):
        n_bytes += n_read
        if columns:
            n_rows += len(next(iter(columns.values())))
            yield columns
        if data.on_rows is not None:
            data.on_rows(n_rows, n_rows * size // n_bytes)
    if n_rows and data.on_rows is not None:
        data.on_rows(n_rows, n_rows)


def _blocks(path: Path, skip: int) -> Iterator[bytes]:
    """Yield a file in blocks of whole lines, after the first `skip` lines."""
    with path.open("rb") as stream:
        for _ in range(skip):
            stream.readline()
        while block := stream.read(_BLOCK):
            yield block + stream.readline()


_Parsed = TypeVar("_Parsed")


def _in_turns(
    work: Callable[[bytes], _Parsed], blocks: Iterator[bytes]
) -> Iterator[_Parsed]:
    """Process a few blocks in parallel, and yield their results in order."""
    waiting: deque[Future[_Parsed]] = deque()
    threads = default_threads.get()
    with ThreadPoolExecutor(threads) as pool:
        for block in blocks:
            waiting.append(pool.submit(work, block))
            if len(waiting) > threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _numbers(
    block: bytes,
    layout: Layout,
    roles: Roles,
    numeric: Sequence[str],
    n_rows: int,
) -> dict[str, Column]:
    """Return the columns of numbers if all are in canonical form, else none."""
    ordered = sorted(numeric, key=roles.__getitem__)
    arrays = [np.empty(n_rows, _NUMBERS[role]) for role in ordered]
    n_filled = backends.active.read_rows(
        np.frombuffer(block, np.uint8),
        layout.separator,
        len(layout.names),
        [roles[role] for role in ordered],
        arrays,
    )
    if n_filled < 0:
        return {}
    return {role: array[:n_filled] for role, array in zip(ordered, arrays, strict=True)}


def _texts(
    block: bytes,
    layout: Layout,
    positions: Mapping[str, int],
    n_rows: int,
) -> dict[str, pl.Series]:
    """Return columns that polars has read as texts."""
    is_quoted = b'"' in block
    # The separator of polars is one character: "::" has an empty column in the middle.
    step = len(layout.separator)
    # Between tabs and double colons, quotes that do not enclose a field are part of it.
    is_literal = layout.separator in (_TAB, DOUBLE_COLON)
    if is_quoted and not is_literal and b'\\"' in block:
        raise UnreliableError
    n_separators = step * (len(layout.names) - 1)
    # All columns are read, so that polars detects long rows.
    names = [str(number) for number in range(n_separators + 1)]
    values = {role: pl.col(names[step * n]) for role, n in positions.items()}
    if is_quoted and layout.separator == _TAB:
        values = {role: _unquoted(text) for role, text in values.items()}
    plan = pl.scan_csv(
        block,
        has_header=False,
        separator=layout.separator[0],
        quote_char='"' if is_quoted and not is_literal else None,
        schema=dict.fromkeys(names, pl.String),
    )
    blank = pl.all_horizontal(pl.all().is_null())
    try:
        frame = plan.select(**values, blank=blank).collect()
    except pl.exceptions.PolarsError:
        raise UnreliableError from None
    n_filled = n_rows - int(frame["blank"].sum())
    is_whole = is_literal or not is_quoted  # no separator is inside quotes
    n_marks = block.count(layout.separator[0].encode())
    if len(frame) != n_rows or (is_whole and n_marks != n_filled * n_separators):
        raise UnreliableError
    frame = frame.filter(~frame["blank"]).drop("blank")
    return frame.to_dict()


def _unquoted(text: pl.Expr) -> pl.Expr:
    """Remove the quotes around fields; other quotes are part of the text."""
    inside = text.str.head(-1).str.tail(-1).str.replace_all('""', '"', literal=True)
    begins = text.str.starts_with('"')
    ends = text.str.ends_with('"')
    is_quoted = begins & ends & (text.str.len_bytes() > 1)
    return pl.when(is_quoted).then(inside).otherwise(text)

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
from typing import Any, Literal, TypeAlias

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
    WHOLE_NUMBER,
    Spot,
    integers_if_whole,
    is_bad_id,
)
from recsys.data.rows import (
    OPTIONAL_ROLES,
    STRICT,
    BadRows,
    Rows,
    is_truth,
    rating_problem,
)
from recsys.data.times import YEAR_1000, iso_format
from recsys.errors import DataError
from recsys.messages import counted
from recsys.readers.sources import DataFile, NoRowsError

_HEAD = 1 << 16  # bytes to inspect, extended to at least two lines
_SAMPLE_ROWS = 200
DOUBLE_COLON = "::"
"""Separator of MovieLens."""
_SEPARATORS = {"\t": "tab", ";": "semicolon", ",": "comma", "|": "bar", " ": "space"}
_NAMED_SEPARATORS = {r"\t": "\t", "tab": "\t", "space": " "}
_INTEGERS = re.compile(r"\s*-?\d+( +-?\d+)*\s*")
# The id of a product, then of a reviewer: read in the usual order, they would be swapped.
_OF_AMAZON = re.compile(r"(B0|\d\d)[0-9A-Z]{8}A[0-9A-Z]{9,}")
_LABEL = "label"  # of RecBole: 1 for an interaction, 0 for none

_MARK = "\x1f"  # replaces "::" for polars; not possible if the text contains it
_TAB = "\t"  # in such files, quotes that do not enclose a field are part of it
# records per chunk; more live objects double the time by garbage collection
_CHUNK = 1 << 10
LINE = "line"
"""Column with the line number of each row, if known."""
_INTEGER = re.compile(r"-?\d{1,18}")
Kind: TypeAlias = str
"""Kind of a column: id, name (any id), integer, float, text, or a format of times."""

_COMMA_WITH = ";"  # separator of spreadsheets that use decimal commas
_COMMA = r"^([-+]?\d*),(\d+)$"
_BLOCK = 1 << 20  # bytes to parse at once
_NUMBERS: dict[Kind, type[np.number]] = {
    "id": np.int64,
    "integer": np.int64,
    "float": np.float32,
}
FileKind: TypeAlias = Literal[
    "delimited", "jsonl", "parquet", "lightgcn", "counted", "netflix"
]
_Columns: TypeAlias = Mapping[str, Column]


@dataclass(frozen=True, slots=True)
class Layout:
    """Layout of a file; all attributes except `kind` apply to delimited files.

    `separator` is one character, or "::"; `names` are from the header, or given by position; `skip`
    counts the lines before the first row: blank ones, and the header; `sample` has the first rows;
    `types` are the types of columns in an atomic file of RecBole.
    """

    kind: FileKind
    separator: str = ""
    names: tuple[str, ...] = ()
    has_header: bool = True
    skip: int = 0
    sample: tuple[list[str], ...] = ()
    types: tuple[str, ...] = ()


def detect(data: DataFile, request: Request) -> Layout:
    """Detect the layout of a file.

    Raises
    ------
    DataError
        If the file is empty or binary, has the suffix of Parquet but another format, is a JSON
        array of other values than objects, or has no separator between columns.
    """
    if data.is_parquet:
        return Layout("parquet")
    lines = _first_lines(data)
    blank = next((n for n, line in enumerate(lines) if line.strip()), len(lines))
    lines = lines[blank:]
    if not lines:
        raise NoRowsError(f"{data.name} is empty.")
    if request.options.get("sep") is None:
        kind = _kind_without_columns(lines, data)
        if kind is not None:
            return Layout(kind)
    return _delimited(lines, blank, data, request)


def _first_lines(data: DataFile) -> list[str]:
    """Return the first whole lines of a text file."""
    with data.path.open("rb") as stream:
        head = stream.read(_HEAD)
        while head.lstrip().count(b"\n") < 2 and (block := stream.read(len(head))):
            head += block
        is_whole = not stream.read(1)
    data.check_text(head)
    lines = list(io.StringIO(head.decode("utf-8-sig", errors="replace")))
    return lines if is_whole else lines[:-1]


def _kind_without_columns(lines: list[str], data: DataFile) -> FileKind | None:
    """Return the kind of a file that is not delimited; None for other files."""
    begin = lines[0].lstrip()[:1]
    if begin == "{" or data.suffix in (".jsonl", ".ndjson"):
        return "jsonl"
    if begin == "[":
        raise DataError(
            f"{data.name} is a JSON array, and its elements are not objects."
        )
    if re.fullmatch(r"\d+:\s*", lines[0]):
        return "netflix"
    filled = [line for line in lines if line.strip()]
    if not all(map(_INTEGERS.fullmatch, filled)):
        return None
    rows = [line.split() for line in filled]
    widths = set(map(len, rows))
    if len(widths) > 1 and all(int(row[0]) == len(row) - 1 for row in rows):
        return "counted"
    # Users come back in a table of integers with spaces, but not in LightGCN lines.
    users = {row[0] for row in rows}
    if len(users) == len(rows) and widths not in ({1}, {2}):
        return "lightgcn"
    return None


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
    if len(rows) > 2 and all(_ends_empty(row, len(first)) for row in rows[1:]):
        first.append("")
    names = names_without_header(first, rows, separator, data.name, request)
    if names is not None:
        if names == BY_PLACE and all(map(_is_of_amazon, rows)):
            names = ("item (first)", "user (second)", *names[2:])
        return Layout("delimited", separator, names, False, blank, tuple(rows))
    untyped_names, types = without_types(first)
    return Layout(
        "delimited",
        separator,
        names=tuple(untyped_names),
        skip=blank + 1,
        sample=tuple(rows[1:]),
        types=types,
    )


def _is_of_amazon(row: Sequence[str]) -> bool:
    """Return whether a row of Amazon reviews has the product before the reviewer."""
    return _OF_AMAZON.fullmatch("".join(row[:2])) is not None


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


def _ends_empty(row: list[str], width: int) -> bool:
    """Return whether a row has one field more than the header, which is empty."""
    return len(row) == width + 1 and not row[-1].strip()


def sniff_separator(
    lines: list[str], separators: Sequence[str] = tuple(_SEPARATORS)
) -> str | None:
    """Return the separator that splits all lines into equally many fields, the most.

    If no separator gives equal numbers, because a row is ragged, only the first line is used.
    Spaces next to tabs are part of the fields. The result is None if there is only one column.
    """
    if DOUBLE_COLON in lines[0] and tuple(separators) == tuple(_SEPARATORS):
        return DOUBLE_COLON
    even, widest = {}, {}
    for separator in separators:
        rows = split_rows(lines, separator)
        widest[separator] = len(rows[0]) if rows else 0
        if len(set(map(len, rows))) == 1:
            even[separator] = widest[separator]
    if even.get("\t", 1) > 1:
        even.pop(" ", None)
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


def read_delimited(
    data: DataFile,
    layout: Layout,
    request: Request,
    required: Sequence[str] = ("user", "item"),
) -> Rows:
    """Read a delimited file.

    Raises
    ------
    DataError
        As `read_carefully`; also if columns are missing or ambiguous, or there are no rows.
    """
    if request.rules.bad_rows is None:
        _check_encoding(data, layout)
    is_labelled = (
        layout.types and _LABEL in layout.names and "rating" not in request.columns
    )
    if is_labelled and usual_column(layout.names, "rating", data.name) is None:
        request = request.changed(rating=_LABEL)
    try:
        roles, description = assign_roles(
            layout.names,
            request,
            data.name,
            required,
            lambda position: _sampled(layout, position),
        )
    except DataError as error:
        is_sure = request.columns or any(map(is_known_name, layout.names))
        if not layout.has_header or is_sure:
            raise
        hint = f"If these are values of the first row, use column numbers, {BY_NUMBER}."
        raise DataError(f"{error} {hint}") from None
    if not layout.sample:
        raise NoRowsError(f"{data.name} has a header but no rows.")
    bad = BadRows(request.rules.bad_rows)
    if not layout.has_header and "rating" in roles and bad.limit is None:
        _check_first_rating(data, layout, roles["rating"])
    rows = read_fast(data, layout, roles, request.rules.time_format)
    lines = None
    if rows is None:
        headers: list[int] = []
        rows = Rows(read_carefully(data, layout, roles, bad, headers=headers))
        lines = rows.columns.pop(LINE)
        if headers:
            rows.remarks.append(f"{counted(len(headers), 'repeated header')} left out")
    if layout.types and layout.names[roles.get("rating", 0)] == _LABEL:
        ratings = rows.decode().columns["rating"].cast(pl.Float64, strict=False)
        if ratings.fill_null(2).is_in([0.0, 1.0]).all():
            rows.columns["rating"] = ratings == 1
    n_rows = len(next(iter(rows.columns.values())))

    def place(row: int) -> Spot:
        if lines is not None:
            return data.at(lines[row])
        if layout.skip + n_rows == data.n_lines:  # there are no blank lines
            return data.at(layout.skip + row + 1)
        return data.at(next(islice(records(data, layout), row, None))[0])

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


def _check_encoding(data: DataFile, layout: Layout) -> None:
    """Raise an error with the place of the byte if the header is not UTF-8."""
    if not any("\ufffd" in name for name in layout.names):
        return
    try:
        deque(data.lines(), maxlen=0)
    except DataError as error:
        reason = str(error).rstrip(".")
        raise DataError(f"{reason}; the header cannot be read without.") from None


def _check_first_rating(
    data: DataFile,
    layout: Layout,
    position: int,
) -> None:
    """Raise an error if the first rating of a file without header is a word."""
    first = layout.sample[0][position].strip()
    if is_truth(first):
        return
    if layout.separator == _COMMA_WITH:
        first = re.sub(_COMMA, r"\1.\2", first)
    problem = rating_problem(first)
    if problem is not None and problem.startswith("rating "):
        raise DataError(
            f"{data.name}, line {layout.skip + 1}: {problem.removesuffix('.')}. "
            f"There is no header; name the columns by number, {BY_NUMBER}."
        )


def read_fast(
    data: DataFile,
    layout: Layout,
    roles: Roles,
    time_format: str | None = None,
) -> Rows | None:
    """Read with polars; return None if this fails or gives unexpected nulls."""
    kinds = {
        role: _kind(role, position, layout, time_format)
        for role, position in roles.items()
    }

    rows = _parsed(data, layout, roles, kinds)
    if rows is None:
        return None
    # Some values may have another type than the sample.
    missing = [role for role, column in rows.columns.items() if column.null_count()]
    changed: dict[str, Kind] = {}
    for role in missing:
        if kinds[role] == "id":
            changed[role] = "name"
    number_roles = [*changed, *_whole_numbers(layout, roles, kinds)]
    if "%" in kinds.get("timestamp", ""):
        times: Any = rows.columns["timestamp"]
        if "timestamp" in missing or times.min() < YEAR_1000:
            changed["timestamp"] = "text"
    if changed:
        kinds |= changed
        rows = _parsed(data, layout, roles, kinds)
    if rows is None or rows.lacks_values:
        return None
    if kinds.get("rating") == "float" and not _are_finite(rows):
        return None
    for role in number_roles:
        rows.columns[role] = integers_if_whole(rows.columns[role])
    header = layout.names if layout.has_header else ()
    for role in ("user", "item"):
        if kinds.get(role) == "name":
            name = header[roles[role]] if header else None
            if _has_bad_ids(rows, role, name):
                return None
    return rows


def _parsed(
    data: DataFile,
    layout: Layout,
    roles: Roles,
    kinds: Mapping[str, Kind],
) -> Rows | None:
    """Return columns as the given kinds; None if this is unreliable."""
    batches = Batches()
    if parse(data, layout, roles, kinds, batches.add):
        return batches.rows()
    return None


def _are_finite(rows: Rows) -> bool:
    """Return whether all ratings are finite."""
    numbers = rows.columns["rating"] if rows.levels is None else rows.levels
    return bool(np.isfinite(np.asarray(numbers)).all())


def _has_bad_ids(rows: Rows, role: str, name: str | None) -> bool:
    """Return whether texts are not ids ("1.23457E+11"), or the name of the column."""
    column = rows.columns.get(role)
    if column is None or column.dtype.is_integer():
        return False
    texts = column.unique().cast(pl.String)
    if is_bad_id(texts).any():
        return True
    return name is not None and bool((texts == name).any())


def _whole_numbers(
    layout: Layout,
    roles: Roles,
    kinds: Mapping[str, Kind],
) -> list[str]:
    """Return the roles of ids that seem to be whole numbers, some like "17.0"."""
    names = [role for role in roles if kinds[role] == "name"]
    return [
        role
        for role in names
        if all(map(WHOLE_NUMBER.match, _sampled(layout, roles[role])))
    ]


def _kind(
    role: str,
    place: int,
    layout: Layout,
    time_format: str | None,
) -> Kind:
    """Return the kind of a column from its sample; for times, their format."""
    texts = _sampled(layout, place)
    if role == "rating":
        return "text" if texts and all(map(is_truth, texts)) else "float"
    if role == "timestamp" and time_format is not None and "%" in time_format:
        return time_format
    if role == "timestamp" and all(map(_INTEGER.fullmatch, texts)):
        return "integer"
    if role == "timestamp":
        return (iso_format(texts) if time_format is None else None) or "text"
    if role in OPTIONAL_ROLES:
        return "text"
    return "id" if all(map(CANONICAL_INTEGER.match, texts)) else "name"


def _sampled(layout: Layout, place: int) -> list[str]:
    """Return the values of a column in the rows of the sample that have it."""
    return [row[place].strip() for row in layout.sample if place < len(row)]


def read_carefully(
    data: DataFile,
    layout: Layout,
    roles: Roles,
    bad: BadRows = STRICT,
    *,
    pad: bool = False,
    headers: list[int] | None = None,
) -> dict[str, pl.Series]:
    """Read columns of a delimited file, and the line numbers of its rows, in Python.

    With `pad`, short records are filled with empty fields, and long ones may end in empty fields.
    The line numbers of repeated headers are appended to `headers`.
    """
    width = len(layout.names)
    schema = dict.fromkeys(roles, pl.String) | {LINE: pl.Int64}
    numbered = records(data, layout, bad, headers)
    frames = [pl.DataFrame(schema=schema)]
    while block := list(islice(numbered, _CHUNK)):
        rows = []
        for line, fields in block:
            if pad and not any(map(str.strip, fields[width:])):
                fields = [*fields, *[""] * width][:width]
            if len(fields) == width:
                rows.append((*fields, line))
                continue
            hint = "; a quote may be unclosed" * any("\n" in field for field in fields)
            count = counted(len(fields), "field")
            bad.add(data.at(line), f"found {count}, expected {width}{hint}.")
        if rows:
            columns = list(zip(*rows, strict=True))
            chosen = (columns[position] for position in (*roles.values(), width))
            frames.append(pl.DataFrame(dict(zip(schema, chosen, strict=True)), schema))
    columns_by_role = pl.concat(frames).to_dict()
    columns_by_role |= {role: columns_by_role[role].str.strip_chars() for role in roles}
    for role in (side for side in ("user", "item") if side in roles):
        columns_by_role[role] = integers_if_whole(columns_by_role[role])
    if "rating" in roles and layout.separator == _COMMA_WITH:
        columns_by_role["rating"] = columns_by_role["rating"].str.replace(
            _COMMA, "$1.$2"
        )
    return columns_by_role


def records(
    data: DataFile,
    layout: Layout,
    bad: BadRows = STRICT,
    headers: list[int] | None = None,
) -> Iterator[tuple[int, list[str]]]:
    """Yield the first line number and the fields of each record, but no header.

    Joined files have their header again in the middle. Its line numbers are appended to `headers`.

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
    begin, is_header = 1, layout.has_header
    while True:
        record.clear()
        rows, problem = [], ""
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
            if "".join(fields).strip():
                if not is_header and _is_header(fields, layout):
                    if headers is not None:
                        headers.append(line)
                elif not is_header:
                    yield line, fields
                is_header = False
        begin += len(record)


def _is_header(fields: Sequence[str], layout: Layout) -> bool:
    """Return whether a record repeats the names of the columns."""
    if not layout.has_header or len(fields) != len(layout.names):
        return False
    return all(
        field.strip() == name for field, name in zip(fields, layout.names, strict=True)
    )


def _otherwise_quoted(lines: Sequence[str], layout: Layout) -> list[list[str]]:
    """Split lines at tabs if quotes do not match; return no rows if they are ragged.

    Quotes around a field enclose it; other quotes are part of the text.
    """
    rows = [line.rstrip("\r\n").split(_TAB) for line in lines]
    if layout.separator != _TAB or any(
        len(fields) != len(layout.names) for fields in rows
    ):
        return []
    quoted, pair = re.compile('"(.*)"'), '""'
    matched = [[(field, quoted.fullmatch(field)) for field in row] for row in rows]
    return [
        [match[1].replace(pair, '"') if match else field for field, match in row]
        for row in matched
    ]


def parse(
    data: DataFile,
    layout: Layout,
    roles: Roles,
    kinds: Mapping[str, Kind],
    take: Callable[[_Columns], object],
) -> bool:
    """Read columns as their kinds, with null for other values, if this is reliable.

    `take` is called with the columns of each block, in the order of the file, without blank rows.
    The result is unreliable if polars fails, or its number of rows differs from that given by the
    lines and separators of a block: polars lets a stray quote include line ends, and reads missing
    fields as null. (A file with line ends inside quotes is therefore always unreliable.)
    """
    if any('"' in name or "\ufffd" in name for name in layout.names):
        # A stray quote or another encoding also affects later blocks.
        return False
    parser = _Parser(layout, roles, kinds)
    size = data.path.stat().st_size
    n_bytes = 0
    n_rows = 0
    for parsed in _in_turns(parser.parsed, _blocks(data.path, layout.skip)):
        if parsed is None:
            return False
        columns, n_read = parsed
        n_bytes += n_read
        if n_filled := len(next(iter(columns.values()), ())):
            take(columns)
        n_rows += n_filled
        if data.on_rows is not None:
            data.on_rows(n_rows, n_rows * size // n_bytes)
    if n_rows and data.on_rows is not None:
        data.on_rows(n_rows, n_rows)
    return n_rows > 0


def _blocks(path: Path, skip: int) -> Iterator[bytes]:
    """Yield a file in blocks of whole lines, after the first `skip` lines."""
    with path.open("rb") as stream:
        for _ in range(skip):
            stream.readline()
        while block := stream.read(_BLOCK):
            yield block + stream.readline()


_Found: TypeAlias = "tuple[_Columns, int] | None"


def _in_turns(
    work: Callable[[bytes], _Found], blocks: Iterator[bytes]
) -> Iterator[_Found]:
    """Process a few blocks in parallel, and yield their results in order."""
    waiting: deque[Future[_Found]] = deque()
    threads = default_threads.get()
    with ThreadPoolExecutor(threads) as pool:
        for block in blocks:
            waiting.append(pool.submit(work, block))
            if len(waiting) > threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


@dataclass(frozen=True)
class _Parser:
    """Parser of the blocks of a file."""

    layout: Layout
    roles: Roles
    kinds: Mapping[str, Kind]

    def parsed(self, block: bytes) -> _Found:
        """Return the columns of a block, and its size in bytes; None if unreliable."""
        size = len(block)
        # polars does not count blank lines at the beginning.
        block = block.lstrip(b"\r\n")
        if not block:
            return {}, size
        n_rows = block.count(b"\n")
        if not block.endswith(b"\n"):
            n_rows += 1
        columns = self._numbers(block, n_rows)
        roles = [role for role in self.roles if role not in columns]
        if roles:
            texts = self._texts(block, n_rows, roles)
            if texts is None:
                return None
            columns |= texts
        return columns, size

    def _numbers(self, block: bytes, n_rows: int) -> dict[str, Column]:
        """Return the columns of numbers if all are in canonical form, else none.

        They are parsed directly, and are always reliable.
        """
        roles = [role for role in self.roles if self.kinds[role] in _NUMBERS]
        roles.sort(key=self.roles.__getitem__)
        arrays = [np.empty(n_rows, _NUMBERS[self.kinds[role]]) for role in roles]
        filled = backends.active.read_rows(
            np.frombuffer(block, np.uint8),
            self.layout.separator,
            len(self.layout.names),
            [self.roles[role] for role in roles],
            arrays,
        )
        if filled < 0:
            return {}
        filled_arrays = (array[:filled] for array in arrays)
        return dict(zip(roles, filled_arrays, strict=True))

    def _texts(
        self,
        block: bytes,
        n_rows: int,
        roles: list[str],
    ) -> dict[str, pl.Series] | None:
        """Return columns that polars has read; None if unreliable."""
        mark = self.layout.separator
        is_quoted = b'"' in block
        if mark == DOUBLE_COLON:  # polars needs a single character
            mark = _MARK
            is_quoted = False
            block = block.replace(b"::", _MARK.encode())
        elif is_quoted and mark != _TAB and b'\\"' in block:
            return None  # a quote after a backslash
        frame = self._frame(block, mark, is_quoted, roles)
        if frame is None or len(frame) != n_rows:
            return None
        n_filled = n_rows - int(frame["blank"].sum())
        # Separators in quotes are part of a field.
        if mark == _TAB or not is_quoted:
            n_separators = n_filled * (len(self.layout.names) - 1)
            if block.count(mark.encode()) != n_separators:
                return None
        if n_filled < n_rows:
            frame = frame.filter(~frame["blank"])
        return {role: frame[role] for role in roles}

    def _frame(
        self,
        block: bytes,
        mark: str,
        is_quoted: bool,
        roles: list[str],
    ) -> pl.DataFrame | None:
        """Read all columns, so that polars detects long rows; None if it fails."""
        names = [str(position) for position in range(len(self.layout.names))]
        # Between tabs, quotes that do not enclose a field are part of it.
        is_literal = is_quoted and mark == _TAB
        with_commas = self.layout.separator == _COMMA_WITH
        values = {}
        for role in roles:
            text = pl.col(names[self.roles[role]])
            if is_literal:
                text = _unquoted(text)
            values[role] = _cast(text, self.kinds[role], with_commas)
        plan = pl.scan_csv(
            block,
            has_header=False,
            separator=mark,
            quote_char='"' if is_quoted and not is_literal else None,
            schema=dict.fromkeys(names, pl.String),
        )
        blank = pl.all_horizontal(pl.col(name).is_null() for name in names)
        try:
            return plan.select(**values, blank=blank).collect()
        except pl.exceptions.PolarsError:
            return None


def _unquoted(text: pl.Expr) -> pl.Expr:
    """Remove the quotes around fields; other quotes are part of the text."""
    inside = text.str.head(-1).str.tail(-1).str.replace_all('""', '"', literal=True)
    begins = text.str.starts_with('"')
    ends = text.str.ends_with('"')
    is_quoted = begins & ends & (text.str.len_bytes() > 1)
    return pl.when(is_quoted).then(inside).otherwise(text)


def _cast(
    text: pl.Expr,
    kind: Kind,
    with_commas: bool,
) -> pl.Expr:
    stripped = text.str.strip_chars()
    if kind == "text":
        return pl.when(stripped.str.len_bytes() > 0).then(stripped)
    if kind == "name":
        return pl.when(~stripped.is_in(MISSING_IDS)).then(stripped)
    if kind == "float":
        pointed = text.str.replace(_COMMA, "$1.$2") if with_commas else text
        return pointed.cast(pl.Float32, strict=False)
    if "%" in kind:
        return stripped.str.to_datetime(kind, time_unit="us", strict=False)
    number = text.cast(pl.Int64, strict=False)
    if kind == "integer":
        return number
    # An id is an integer only in its canonical form: "7", not "007" or "+7".
    is_padded = text.str.starts_with("0") & (text.str.len_bytes() > 1)
    is_signed = text.str.starts_with("+") | text.str.starts_with("-0")
    return pl.when(~(is_padded | is_signed)).then(number)

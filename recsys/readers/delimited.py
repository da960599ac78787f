"""Delimited text: its columns, parsed by polars in blocks, or record by record where in doubt."""

from __future__ import annotations

import csv
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
import polars as pl

from lowrank.kernels import backends, default_threads
from recsys.data.columns import Request, Roles, assign_roles, is_known_name
from recsys.data.csr import Batches, Column
from recsys.data.ids import CANONICAL_INTEGER, MISSING_IDS, Spot, integers_if_canonical
from recsys.data.rows import BadRows, Rows, is_truth, rating_problem
from recsys.data.times import YEAR_1000, iso_format
from recsys.errors import DataError
from recsys.messages import counted
from recsys.readers.layout import DOUBLE_COLON, Layout, by_number, csv_rows, separator_name
from recsys.readers.sources import DataFile, NoRowsError

_MARK = "\x1f"  # in its place for polars; a text that has one is in doubt
_TAB = "\t"  # between tabs, quotes that don't enclose a field are part of it
_CHUNK = 1 << 10  # records at once; with more live objects garbage collection doubles the time
LINE = "line"
"""Column of the lines of rows, where they are known."""
_INTEGER = re.compile(r"-?\d{1,18}")
Kind: TypeAlias = 'Literal["id", "name", "integer", "float", "text"] | str'
"""Kind of a column: a name is an id but not an integer, a format with % is of times."""

_COMMA_WITH = ";"  # separator with which decimals may have a comma, as spreadsheets write them
_COMMA = r"^([-+]?\d*),(\d+)$"
_BLOCK = 1 << 20  # bytes that are parsed at once
_NUMBERS: dict[Kind, type[np.number]] = {"id": np.int64, "integer": np.int64, "float": np.float32}
_Columns: TypeAlias = Mapping[str, Column]


def read_delimited(
    data: DataFile, layout: Layout, request: Request, required: Sequence[str] = ("user", "item")
) -> Rows:
    """Read a delimited file.

    Raises
    ------
    DataError
        As `read_carefully`; also if columns are missing or ambiguous, or there are no rows.
    """
    if request.rules.bad_rows is None and any("\ufffd" in name for name in layout.names):
        try:
            deque(data.lines(), maxlen=0)
        except DataError as error:
            reason = str(error).rstrip(".")
            raise DataError(f"{reason}; the header cannot be read without.") from None
    try:
        roles, description = assign_roles(
            layout.names, request, data.name, required, lambda place: _sampled(layout, place)
        )
    except DataError as error:
        if not layout.has_header or request.columns or any(map(is_known_name, layout.names)):
            raise
        hint = "If these are values of the first row: by number, such as"
        such = by_number([layout.names, *layout.sample])
        raise DataError(f"{error} {hint} {such}.") from None
    if not layout.sample:
        raise NoRowsError(f"{data.name} has a header but no rows.")
    bad = BadRows(request.rules.bad_rows)
    if not layout.has_header and "rating" in roles and bad.limit is None:
        row = [field.strip() for field in layout.sample[0]]
        first = row[roles["rating"]]
        pointed = re.sub(_COMMA, r"\1.\2", first) if layout.separator == _COMMA_WITH else first
        problem = None if is_truth(first) else rating_problem(pointed)
        if problem is not None and problem.startswith("rating "):
            raise DataError(
                f"{data.name}, line {layout.skip + 1}: {problem.removesuffix('.')}. There is no "
                "header; say by number which columns are which, such as "
                f"{by_number(layout.sample)}."
            )
    rows = read_columns(data, layout, roles, bad, request.rules.time_format)
    form = separator_name(layout.separator) + ("" if layout.has_header else ", no header")
    lines = rows.columns.pop(LINE, None)

    def place(row: int) -> Spot:
        if lines is None:
            return data.at(next(islice(records(data, layout), row, None))[0])
        return data.at(lines[row])

    return replace(rows, layout=f"{form}, {description}", place=place, bad=bad)


def read_columns(
    data: DataFile,
    layout: Layout,
    roles: Roles,
    bad: BadRows | None = None,
    time_format: str | None = None,
) -> Rows:
    """Read columns of a delimited file: with polars, and in Python where that is in doubt.

    In Python, the rows have a column of their lines.
    """
    rows = _read_fast(data, layout, roles, time_format)
    return rows or Rows(read_carefully(data, layout, roles, bad))


def _read_fast(
    data: DataFile, layout: Layout, roles: Roles, time_format: str | None
) -> Rows | None:
    """Read with polars; None if it fails, or something is null that should not be."""
    if any('"' in name or "\ufffd" in name for name in layout.names):
        return None  # a stray quote or another encoding: what follows cannot be trusted either
    kinds = {role: _kind(role, place, layout, time_format) for role, place in roles.items()}

    def read() -> Rows | None:
        batches = Batches()
        return batches.rows() if parse(data, layout, roles, kinds, batches.add) else None

    rows = read()
    if rows is None:
        return None
    strings: list[str] = []
    if "timestamp" in rows.arrays and rows.arrays["timestamp"].dtype == np.int64:
        rows.spread()
    if not rows.arrays:  # something is missing, or of another type than most of its kind
        columns = rows.columns
        strings = [role for role in roles if kinds[role] == "id" and columns[role].null_count()]
        times = columns["timestamp"] if "%" in kinds.get("timestamp", "") else None
        is_odd = times is not None and (
            times.null_count() > 0 or bool((times.cast(pl.Int64) < YEAR_1000).any())
        )
        kinds |= {"timestamp": "text"} if is_odd else {}
        if strings or is_odd:
            kinds |= dict.fromkeys(strings, "name")
            rows = read()
    if rows is None:
        return None
    if any(rows.columns[role].null_count() for role in rows.columns if role != "event"):
        return None
    if kinds.get("rating") == "float":
        floats = rows.arrays.get("rating", rows.columns.get("rating"))
        floats = rows.levels if rows.levels is not None else floats
        if floats is not None and not pl.Series(floats, dtype=pl.Float32).is_finite().all():
            return None
    for role in strings:
        rows.columns[role] = integers_if_canonical(rows.spread().columns[role])
    return rows


def _kind(role: str, place: int, layout: Layout, time_format: str | None) -> Kind:
    """Return the kind of a column by its sample: of times, the format that they have."""
    texts = _sampled(layout, place)
    if role == "rating":
        return "text" if texts and all(map(is_truth, texts)) else "float"
    if role == "timestamp" and time_format is not None:
        return time_format if "%" in time_format else "text"
    if role == "timestamp":
        if all(map(_INTEGER.fullmatch, texts)):
            return "integer"
        return iso_format(texts) or "text"
    if role == "event":
        return "text"
    return "id" if all(map(CANONICAL_INTEGER.match, texts)) else "name"


def _sampled(layout: Layout, place: int) -> list[str]:
    """Return the values of a column in the sample, as far as rows have it."""
    return [row[place].strip() for row in layout.sample if place < len(row)]


def read_carefully(
    data: DataFile, layout: Layout, roles: Roles, bad: BadRows | None = None
) -> dict[str, pl.Series]:
    """Read columns of a delimited file, and the lines of its rows, in Python.

    Raises
    ------
    DataError
        Naming file and line, at the first record that is ragged, unless bad rows are left out; or
        as `records`.
    """
    bad, width = BadRows() if bad is None else bad, len(layout.names)
    found, places = records(data, layout, bad), {**roles, LINE: width}
    chunks: dict[str, list[pl.Series]] = {name: [] for name in places}
    while block := list(islice(found, _CHUNK)):
        for line, fields in block:
            if len(fields) != width:
                hint = "; a quote may be unclosed" * any("\n" in field for field in fields)
                count = counted(len(fields), "field")
                bad.add(data.at(line), f"found {count}, expected {width}{hint}.")
        rows = [(*fields, line) for line, fields in block if len(fields) == width]
        columns = list(zip(*rows, strict=True)) or [()] * (width + 1)
        for name, place in places.items():
            chunks[name].append(
                pl.Series(name, columns[place], pl.Int64 if place == width else pl.String)
            )
    whole = {name: pl.concat(series) for name, series in chunks.items()}
    whole |= {role: whole[role].str.strip_chars() for role in roles}

    for role in (role for role in ("user", "item") if role in roles):
        missing = whole[role].is_in(MISSING_IDS)
        whole[role] = integers_if_canonical(whole[role].set(missing, None))
    if "rating" in roles and layout.separator == _COMMA_WITH:
        whole["rating"] = whole["rating"].str.replace(_COMMA, "$1.$2")
    return whole


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
    seen: list[str] = []  # lines of the record

    def lines() -> Iterator[str]:
        for line in data.lines(bad):
            seen.append(line)
            yield line

    reader: Iterator[list[str]]
    if layout.separator == DOUBLE_COLON:
        reader = (line.rstrip("\r\n").split(DOUBLE_COLON) for line in lines())
    else:
        reader = csv_rows(lines(), layout.separator)
    begin, is_header = 1, layout.has_header
    while True:
        seen.clear()
        rows, problem = [], ""
        try:
            rows = [next(reader)]
        except StopIteration:
            return
        except csv.Error as error:
            problem = str(error)
        if problem or (len(seen) > 1 and len(rows[0]) != len(layout.names)):
            rows = _otherwise_quoted(seen, layout) or rows
        if not rows:
            bad.add(data.at(begin), f"the quotes don't match ({problem}).", len(seen))
        for line, fields in enumerate(rows, begin):
            if "".join(fields).strip():
                if not is_header:
                    yield line, fields
                is_header = False
        begin += len(seen)


def _otherwise_quoted(lines: Sequence[str], layout: Layout) -> list[list[str]]:
    """Return the rows of lines with tabs whose quotes don't match; none if they are ragged then.

    Quotes around a field enclose it, others are part of the text.
    """
    rows = [line.rstrip("\r\n").split(_TAB) for line in lines]
    if layout.separator != _TAB or any(len(fields) != len(layout.names) for fields in rows):
        return []
    quoted, pair = re.compile('"(.*)"'), '""'
    found = [[(field, quoted.fullmatch(field)) for field in row] for row in rows]
    return [[each[1].replace(pair, '"') if each else field for field, each in row] for row in found]


def parse(
    data: DataFile,
    layout: Layout,
    roles: Roles,
    kinds: Mapping[str, Kind],
    take: Callable[[_Columns], object],
) -> bool:
    """Read columns as the given kinds, null where a value is of another; False if in doubt.

    `take` gets the columns of each block, in the order of the file, without blank rows. There is
    doubt where polars fails, or its rows are not as many as the lines and separators of a block
    tell: it lets a stray quote swallow line ends, and takes missing fields for null. (So a file
    with line ends inside quotes is always in doubt.)
    """
    parser = _Parser(layout, roles, dict(kinds))
    size, n_bytes, n_rows, n_filled = data.path.stat().st_size, 0, 0, 0
    for found in _in_turns(parser.parsed, _blocks(data.path, layout.skip)):
        if found is None:
            return False
        columns, length = found
        n_bytes += length[0]
        n_rows += length[1]
        if filled := len(next(iter(columns.values()), ())):
            take(columns)
        n_filled += filled
        if data.on_rows is not None:
            data.on_rows(n_rows, n_rows * size // max(n_bytes, 1))
    if n_filled and data.on_rows is not None:
        data.on_rows(n_rows, n_rows)
    return n_filled > 0


def _blocks(path: Path, skip: int) -> Iterator[bytes]:
    """Yield a file in blocks of whole lines, after the first ones."""
    with path.open("rb") as stream:
        for _ in range(skip):
            stream.readline()
        begun: list[bytes] = []
        while block := stream.read(_BLOCK):
            end = block.rfind(b"\n") + 1
            if end:
                yield b"".join([*begun, block[:end]])
                begun = []
            begun.append(block[end:])
        if last := b"".join(begun):
            yield last


_Found: TypeAlias = "tuple[_Columns, tuple[int, int]] | None"


def _in_turns(work: Callable[[bytes], _Found], blocks: Iterator[bytes]) -> Iterator[_Found]:
    """Yield the results of a few blocks at a time, in their order."""
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
    """Settings of a file."""

    layout: Layout
    roles: Roles
    kinds: dict[str, Kind]

    def parsed(self, block: bytes) -> _Found:
        """Return the columns of a block, and its bytes and rows; None if in doubt."""
        length = len(block), block.count(b"\n") + (not block.endswith(b"\n"))
        block = block.lstrip(b"\r\n")  # blank lines, which polars does not count at the beginning
        if not block:
            return {}, length
        n_rows = block.count(b"\n") + (not block.endswith(b"\n"))
        # Numbers as a program writes them are read at once; none is in doubt then.
        places = self.roles
        numeric = sorted((r for r in places if self.kinds[r] in _NUMBERS), key=places.__getitem__)
        arrays = [np.empty(n_rows, _NUMBERS[self.kinds[role]]) for role in numeric]
        form = self.layout.separator, len(self.layout.names), [places[role] for role in numeric]
        filled = backends.active.read_rows(np.frombuffer(block, np.uint8), *form, arrays)
        columns: dict[str, Column] = {}
        if filled >= 0:
            columns = {r: each[:filled] for r, each in zip(numeric, arrays, strict=True)}
        roles = [role for role in self.roles if role not in columns]
        if not roles:
            return columns, length
        mark, is_quoted = self.layout.separator, b'"' in block
        if is_quoted and mark not in (_TAB, DOUBLE_COLON) and b'\\"' in block:
            return None  # a quote after a backslash
        if mark == DOUBLE_COLON:  # polars takes one character
            mark, is_quoted, block = _MARK, False, block.replace(b"::", _MARK.encode())
        frame = self._frame(block, mark, is_quoted, roles)
        if frame is None or len(frame) != n_rows:
            return None
        n_blank = int(frame["blank"].sum())
        n_separators = (n_rows - n_blank) * (len(self.layout.names) - 1)
        if not (is_quoted and mark != _TAB) and block.count(mark.encode()) != n_separators:
            return None
        frame = frame.filter(~frame["blank"]) if n_blank else frame
        return columns | {role: frame[role] for role in roles}, length

    def _frame(
        self, block: bytes, mark: str, is_quoted: bool, roles: list[str]
    ) -> pl.DataFrame | None:
        """Read all columns, so that polars notices rows that are too long; None if it fails."""
        every = [pl.col(str(place)) for place in range(len(self.layout.names))]
        with_commas, is_literal = self.layout.separator == _COMMA_WITH, is_quoted and mark == _TAB
        texts = {role: every[self.roles[role]] for role in roles}
        if is_literal:
            texts = {role: _unquoted(text) for role, text in texts.items()}
        values = {role: _cast(texts[role], self.kinds[role], with_commas) for role in roles}
        blank = pl.all_horizontal(column.is_null() for column in every)
        plan = pl.scan_csv(
            block,
            has_header=False,
            separator=mark,
            quote_char='"' if is_quoted and not is_literal else None,
            schema=dict.fromkeys(map(str, range(len(every))), pl.String),
        ).select(**values, blank=blank)
        try:
            return plan.collect()
        except pl.exceptions.PolarsError:
            return None


def _unquoted(text: pl.Expr) -> pl.Expr:
    """Return fields without the quotes around them; others are part of the text."""
    inside = text.str.head(-1).str.tail(-1).str.replace_all('""', '"', literal=True)
    is_quoted = text.str.starts_with('"') & text.str.ends_with('"') & (text.str.len_bytes() > 1)
    return pl.when(is_quoted).then(inside).otherwise(text)


def _cast(text: pl.Expr, kind: Kind, with_commas: bool) -> pl.Expr:
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
    # An id is an integer only if it is written as it would be printed: "7", not "007" or "+7".
    padded = text.str.starts_with("0") & (text.str.len_bytes() > 1)
    return pl.when(~(padded | text.str.starts_with("+") | text.str.starts_with("-0"))).then(number)

"""Documents in rows: CSV, TSV, JSON lines and Parquet, read a row or a few at a time."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from recsys.errors import DataError
from recsys.long_fields import long_fields
from recsys.memory import absurd, available_memory, over_memory, refuse_absurd
from recsys.readers.careful import decoded_lines
from recsys.readers.detect import separator_name, without_returns
from recsys.readers.sources import DataFile

if TYPE_CHECKING:
    import polars as pl

__all__ = ["ColumnNames", "Table", "open_table"]

_TEXT = ("text", "body", "content", "contents", "abstract", "document", "description", "review")
_ID = ("id", "_id", "doc_id", "docid", "docno", "document_id", "documentid", "key")
_TITLE = ("title", "name", "headline", "subject")
_SAMPLE = 100
_ROWS = 1000  # of a Parquet file, read at a time,
_TEXTS = 2**30  # if their texts have no more bytes than this
_DOCUMENT = 64  # bytes that are kept of each, however short: its id, places for it in lists

_SEPARATORS = ",;\t|"

Row = tuple[int, dict[str, Any]]
Opened = tuple[str, list[str], Callable[["ColumnNames"], Iterator[Row]]]
"""The layout in words, the names of the columns, and what reads the chosen ones."""


@dataclass(frozen=True)
class ColumnNames:
    """Which columns hold what; None where it is to be found out, or is not there."""

    text: str | None = None
    id: str | None = None
    title: str | None = None


@dataclass(frozen=True)
class Table:
    """Rows with their numbers (of lines or rows), the chosen columns, and the layout in words."""

    layout: str
    unit: str
    columns: ColumnNames
    rows: Iterator[Row]


@contextmanager
def open_table(data: DataFile, kind: str, wanted: ColumnNames) -> Iterator[Table]:
    """Open a table of the kind "csv", "tsv", "jsonl" or "parquet".

    Raises
    ------
    DataError
        If a column that was asked for is not there, none is evidently the text, or a Parquet file
        has more rows than memory could hold.
    """
    with long_fields():
        layout, names, rows_of = _READERS[kind](data)
        unit = "row" if kind == "parquet" else "line"
        columns = _chosen(names, wanted, data.name)
        yield Table(layout, unit, columns, rows_of(columns))


def _delimited(data: DataFile, usual: str) -> Opened:
    separator = _separator(data, usual)
    lines = map(without_returns, decoded_lines(data.path, data.name))
    reader = csv.reader(lines, delimiter=separator, strict=True)
    names = [name.strip() for name in _next_record(reader, data) or []]
    if not any(names):
        raise DataError(f"{data.name} is empty.")
    return separator_name(separator), names, lambda _: _delimited_rows(reader, names, data)


def _separator(data: DataFile, usual: str) -> str:
    """Return the separator of the header: the usual one, unless it has only others."""
    header = next(decoded_lines(data.path, data.name), "")
    best = max(_SEPARATORS, key=header.count)
    return usual if usual in header or best not in header else best


def _delimited_rows(reader: Any, names: list[str], data: DataFile) -> Iterator[Row]:
    before = reader.line_num
    while (fields := _next_record(reader, data)) is not None:
        line, before = before + 1, reader.line_num
        if not any(fields):
            continue
        if len(fields) != len(names):
            raise DataError(
                f"{data.name}, line {line}: {len(fields)} fields, and the header has {len(names)}."
            )
        yield line, dict(zip(names, fields, strict=True))


def _next_record(reader: Any, data: DataFile) -> list[str] | None:
    try:
        record: list[str] | None = next(reader, None)
    except csv.Error as error:
        raise DataError(f"{data.name}, line {reader.line_num}: {error}.") from None
    return record


def _json_lines(data: DataFile) -> Opened:
    rows = _json_rows(data)
    sample = list(islice(rows, _SAMPLE))
    names = list(dict.fromkeys(name for _, fields in sample for name in fields))
    return "JSON lines", names, lambda _: chain(sample, rows)


def _json_rows(data: DataFile) -> Iterator[Row]:
    for number, line in enumerate(decoded_lines(data.path, data.name), 1):
        if not line.strip():
            continue
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError):
            raise DataError(f"{data.name}, line {number}: not JSON.") from None
        if not isinstance(fields, dict):
            raise DataError(
                f"{data.name}, line {number}: expected a JSON object; got {line.strip()[:40]!r}."
            )
        if "\\u" in line:
            _check_escapes(fields, f"{data.name}, line {number}")
        yield number, fields


def _check_escapes(fields: dict[str, Any], place: str) -> None:
    try:
        json.dumps(fields, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        code = ord(error.object[error.start])
        raise DataError(f"{place}: \\u{code:04x} is half of a character.") from None


def _parquet(data: DataFile) -> Opened:
    from recsys.panics import reading_parquet
    from recsys.parquet.size import columns_of

    with reading_parquet(data.name):
        names = columns_of(data.path)
    return "Parquet", names, lambda columns: _parquet_rows(data, columns)


def _parquet_rows(data: DataFile, columns: ColumnNames) -> Iterator[Row]:
    names = [name for name in (columns.text, columns.id, columns.title) if name is not None]
    from recsys.parquet.size import unpacked_size

    start = length = 0
    for frame in _parquet_frames(data, list(dict.fromkeys(names))):
        length += unpacked_size(frame)
        refuse_absurd(length, data.path.stat().st_size, data.name)
        yield from enumerate(frame.iter_rows(named=True), start + 1)
        start += len(frame)


def _parquet_frames(data: DataFile, names: list[str]) -> Iterator[pl.DataFrame]:
    """Read so few rows at a time that their texts fit, of which each is shorter than its page."""
    import polars as pl

    from recsys.panics import reading_parquet
    from recsys.parquet.size import check_pages, pages_of

    with reading_parquet(data.name):
        pages = pages_of(data.path, names)
        needed = pages.rows * _DOCUMENT + 2 * pages.largest  # as it is packed, and unpacked
        reason = over_memory(pages.rows, needed, available_memory())
        reason = reason or absurd(pages.largest, data.path.stat().st_size)
        if reason is not None:
            raise DataError(f"{data.name} {reason}")
        check_pages(data.path, pages)
    scan = pl.scan_parquet(data.path, glob=False).select(names)
    for name, dtype in scan.collect_schema().items():
        if dtype.is_nested():  # and may make much out of little, as an object of Python
            raise DataError(f"{data.name}: column {name} must be of texts; got {dtype} values.")
    step = max(1, min(_ROWS, _TEXTS // max(1, pages.largest)))
    for start in range(0, pages.rows, step):
        with reading_parquet(data.name):
            frame = scan.slice(start, step).collect()
            _check_times(frame)
        yield frame


def _check_times(frame: pl.DataFrame) -> None:
    """Let what Python does not know, such as the year 10,000, be an error of polars."""
    import polars as pl
    import polars.selectors as cs

    try:
        frame.select(cs.temporal()).rows()
    except (ValueError, OverflowError) as error:
        raise pl.exceptions.ComputeError(str(error)) from None


_READERS = {
    "csv": lambda data: _delimited(data, ","),
    "tsv": lambda data: _delimited(data, "\t"),
    "jsonl": _json_lines,
    "parquet": _parquet,
}


def _chosen(names: list[str], wanted: ColumnNames, place: str) -> ColumnNames:
    """Choose the columns: as asked for, else by their names; a single one is the text."""
    listed = ", ".join(names)
    for asked in (wanted.text, wanted.id, wanted.title):
        if asked is not None and asked not in names:
            raise DataError(f"{place} has no column {asked!r}; it has {listed}.")
    text = wanted.text or _first(names, _TEXT) or (names[0] if len(names) == 1 else None)
    if text is None:
        raise DataError(
            f"{place} has no column that is evidently the text; it has {listed}. Say which it is "
            "with --text-col (text_col)."
        )
    rest = [name for name in names if name != text]
    chosen = ColumnNames(text, wanted.id or _first(rest, _ID), wanted.title or _first(rest, _TITLE))
    for name in (chosen.text, chosen.id, chosen.title):
        if name is not None and names.count(name) > 1:
            raise DataError(f"{place} has {names.count(name)} columns named {name!r}.")
    return chosen


def _first(names: Sequence[str], known: Sequence[str]) -> str | None:
    lower = {name.lower(): name for name in reversed(names)}
    return next((lower[each] for each in known if each in lower), None)

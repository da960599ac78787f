"""Documents in rows: CSV, TSV, JSON lines and Parquet, read a row or a few at a time."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

from recsys.errors import DataError
from recsys.readers.careful import decoded_lines
from recsys.readers.detect import separator_name, without_returns
from recsys.readers.sources import DataFile

__all__ = ["ColumnNames", "Table", "open_table"]

_TEXT = ("text", "body", "content", "contents", "abstract", "document", "description", "review")
_ID = ("id", "_id", "doc_id", "docid", "docno", "document_id", "documentid", "key")
_TITLE = ("title", "name", "headline", "subject")
_SAMPLE = 100
_ROWS = 1000  # of a Parquet file, read at a time
_DOCUMENT = 64  # bytes that are kept of each, however short: its id, places for it in lists

_SEPARATORS = ",;\t|"

Row = tuple[int, dict[str, Any]]
Opened = tuple[str, list[str], Iterator[Row]]
"""The layout in words, the names of the columns, and the rows."""


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
    limit = csv.field_size_limit(sys.maxsize)  # a text may be longer than csv expects of a field
    try:
        layout, names, rows = _READERS[kind](data)
        unit = "row" if kind == "parquet" else "line"
        yield Table(layout, unit, _chosen(names, wanted, data.name), rows)
    finally:
        csv.field_size_limit(limit)


def _delimited(data: DataFile, usual: str) -> Opened:
    separator = _separator(data, usual)
    lines = map(without_returns, decoded_lines(data.path, data.name))
    reader = csv.reader(lines, delimiter=separator, strict=True)
    names = [name.strip() for name in _next_record(reader, data) or []]
    if not any(names):
        raise DataError(f"{data.name} is empty.")
    return separator_name(separator), names, _delimited_rows(reader, names, data)


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
    return "JSON lines", names, chain(sample, rows)


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
    import polars as pl

    from recsys.panics import panics_as_errors
    from recsys.parquet_size import too_large

    try:
        with panics_as_errors():
            scan = pl.scan_parquet(data.path, glob=False)
            names, reason = scan.collect_schema().names(), too_large(scan, (), _DOCUMENT)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise _damaged(data, error) from None
    if reason is not None:
        raise DataError(f"{data.name} {reason}")
    return "Parquet", names, _parquet_rows(scan, data)


def _parquet_rows(scan: Any, data: DataFile) -> Iterator[Row]:
    import polars as pl

    from recsys.panics import panics_as_errors

    start = 0
    while True:
        try:
            with panics_as_errors():
                frame = scan.slice(start, _ROWS).collect()
        except (pl.exceptions.PolarsError, OSError) as error:
            raise _damaged(data, error) from None
        if not len(frame):
            return
        yield from enumerate(frame.iter_rows(named=True), start + 1)
        start += _ROWS


def _damaged(data: DataFile, error: Exception) -> DataError:
    return DataError(f"{data.name} is a damaged Parquet file: {str(error).partition(chr(10))[0]}.")


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
        raise DataError(f"{place} has no column that is evidently the text; it has {listed}.")
    rest = [name for name in names if name != text]
    chosen = ColumnNames(text, wanted.id or _first(rest, _ID), wanted.title or _first(rest, _TITLE))
    for name in (chosen.text, chosen.id, chosen.title):
        if name is not None and names.count(name) > 1:
            raise DataError(f"{place} has {names.count(name)} columns named {name!r}.")
    return chosen


def _first(names: Sequence[str], known: Sequence[str]) -> str | None:
    lower = {name.lower(): name for name in reversed(names)}
    return next((lower[each] for each in known if each in lower), None)

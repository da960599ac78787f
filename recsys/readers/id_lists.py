"""Lists of users or items: from options, and from files with one id per line or a named column."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from recsys.errors import DataError

__all__ = ["column_of", "first_row", "read_ids", "separator_of"]

_LONGEST = 2**28  # bytes of a list in text, of which each line takes some 60 more in memory


def read_ids(path: str, kind: str) -> Sequence[Any]:
    """Read the ids of a file; `kind` ("user" or "item") names the column where there are several.

    Text is one id per line, or CSV or TSV with a header that has a column for `kind`; a Parquet
    file has such a column, or a single one.

    Raises
    ------
    DataError
        If the file is not there, is no text, or has no ids or no such column.
    """
    # A pipe that is open already, as in <(command); others might be waited for without end.
    is_open = path == "-" or path.startswith("/dev/fd/")
    if not (is_open or Path(path).is_file()):
        one = f" For one user, say --user {path}." if kind == "user" else ""
        raise DataError(f"There is no file {path} with a list of {kind}s.{one}")
    ids: Sequence[Any]
    ids = _from_parquet(path, kind) if path.endswith(".parquet") else _from_text(path, kind)
    if not len(ids):
        raise DataError(f"{path} lists no {kind}s; one id per line is expected.")
    return ids


def _from_parquet(path: str, kind: str) -> Sequence[Any]:
    import polars as pl

    from recsys.data.ids import as_id_series
    from recsys.readers.table import reading_parquet

    columns = first_row(path)
    if columns is None:
        raise DataError(f"{path} is not a Parquet file.")
    column = column_of(columns, kind) or (columns[0] if len(columns) == 1 else None)
    if column is None:
        raise DataError(f"{path} has no column {kind}; it has {', '.join(columns)}.")
    with reading_parquet(path):
        ids = pl.scan_parquet(path, glob=False).select(column).collect()[column].drop_nulls()
        return as_id_series(ids, "user" if kind == "user" else "item").to_list()


def _from_text(path: str, kind: str) -> list[str]:
    # Not splitlines, which takes some characters of ids for the end of a line.
    text = io.StringIO(_text(path, kind), newline=None)
    lines = [line.rstrip("\n") for line in text if line.strip()]
    if not lines:
        return []
    rows = csv.reader(lines, delimiter=separator_of(lines[0]))
    header = next(rows)
    column = column_of(header, kind)
    if column is None:
        return [line.strip() for line in lines]
    return list(_cells(path, rows, header.index(column)))


def _cells(path: str, rows: Iterator[list[str]], position: int) -> Iterator[str]:
    for number, row in enumerate(rows, start=2):
        if position >= len(row):
            raise DataError(f"{path}, line {number}: there is no column {position + 1}.")
        yield row[position].strip()


def _text(path: str, kind: str) -> str:
    try:
        content = _start_of(path)
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not a list of {kind}s in UTF-8 text.") from error
    if len(content) > _LONGEST:
        name = "standard input" if path == "-" else path
        raise DataError(
            f"{name} is longer than {_LONGEST:,} bytes, the most that a list of {kind}s in text "
            "may have; write it as Parquet."
        )
    return text


def _start_of(path: str) -> bytes:
    if path == "-":
        return sys.stdin.buffer.read(_LONGEST + 1)
    with Path(path).open("rb") as file:
        return file.read(_LONGEST + 1)


def first_row(path: str) -> list[str] | None:
    """Return the cells of the first row of a file of text, or the columns of a Parquet file.

    None if it is neither.
    """
    if path.endswith(".parquet"):
        import polars as pl

        with suppress(pl.exceptions.PolarsError, pl.exceptions.PanicException):
            return pl.scan_parquet(path, glob=False).collect_schema().names()
        return None
    with suppress(UnicodeDecodeError, OSError), Path(path).open(encoding="utf-8-sig") as file:
        line = next((line for line in file if line.strip()), "")
        return next(csv.reader([line], delimiter=separator_of(line)), None)
    return None


def column_of(names: Sequence[str], kind: str, asked: str | None = None) -> str | None:
    """Find the column of the "user", "item" or "rating": the one asked for, else by usual names.

    A single name is a header only if it is very plain: it might be the first id of a list.
    """
    if asked is not None:
        return asked if asked in names else None
    if len(names) == 1:
        plain = {kind, f"{kind}id", f"{kind}_id"} | ({"movieid"} if kind == "item" else set())
        return names[0] if names[0].strip().lower() in plain else None
    from recsys.readers.layout import usual_column

    return usual_column(names, kind, "the list")


def separator_of(line: str) -> str:
    """Return what separates the columns of a line: tab, semicolon or comma."""
    return next((mark for mark in "\t;" if mark in line), ",")

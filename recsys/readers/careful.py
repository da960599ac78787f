"""Delimited text record by record: slow, but it knows the line and says what is wrong there."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import polars as pl

from recsys.errors import DataError
from recsys.frames import rating_problem
from recsys.readers.columns import Roles
from recsys.readers.detect import Layout, parse_line, without_returns
from recsys.readers.raw import integers_if_canonical
from recsys.readers.sources import DataFile

__all__ = ["decoded_lines", "line_of_row", "read_carefully"]

_CHUNK = 1 << 16  # records held as Python objects


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
        rating that is not a finite number; at a byte that is not UTF-8; or without any row.
    """
    rows = (_checked(data, line, fields, layout, roles) for line, fields in records(data, layout))
    chunks: dict[str, list[pl.Series]] = {role: [] for role, _ in roles.items()}
    while block := list(islice(rows, _CHUNK)):
        for (role, _), values in zip(roles.items(), zip(*block, strict=True), strict=True):
            chunks[role].append(pl.Series(role, values))
    if not chunks["user"]:
        raise DataError(f"{data.name} has a header but no rows.")
    columns = {role: pl.concat(parts) for role, parts in chunks.items()}
    for role in ("user", "item"):
        columns[role] = integers_if_canonical(columns[role])
    return columns


def line_of_row(data: DataFile, layout: Layout, row: int) -> int:
    """Return the line (counted from 1) on which row `row` (counted from 0) begins."""
    return next(islice(records(data, layout), row, None))[0]


def records(data: DataFile, layout: Layout) -> Iterator[tuple[int, list[str]]]:
    """Yield the line and the fields, stripped, of each record; header and blank ones left out."""
    header = layout.has_header
    for line, fields in _split(data, layout.separator):
        stripped = [field.strip() for field in fields]
        if not any(stripped):
            continue
        if header:
            header = False
            continue
        yield line, stripped


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
            yield number, parse_line(line, separator)
        return
    reader = csv.reader(map(without_returns, lines), delimiter=separator, strict=True)
    begin = 1
    try:
        for fields in reader:
            yield begin, fields
            begin = reader.line_num + 1
    except csv.Error as error:
        raise DataError(f"{data.name}, line {begin}: the quotes don't match ({error}).") from None


def _checked(
    data: DataFile, line: int, fields: list[str], layout: Layout, roles: Roles
) -> list[str | float]:
    """Return the fields that play a role, the rating as a number; raise at the first bad one."""
    width = len(layout.names)
    if len(fields) != width:
        unclosed = any("\n" in field for field in fields)
        raise DataError(
            f"{data.name}, line {line}: found {len(fields)} field{'s' * (len(fields) > 1)}, "
            f"expected {width}" + ("; a quote may be unclosed." if unclosed else ".")
        )
    for role, place in roles.items():
        missing = role in ("user", "item") and not fields[place]
        problem = f"the {role} id is missing." if missing else None
        if role == "rating":
            problem = rating_problem(fields[place])
        if problem is not None:
            raise DataError(f"{data.name}, line {line}: {problem}")
    return [
        float(fields[place]) if role == "rating" else fields[place] for role, place in roles.items()
    ]

"""Delimited text record by record: slow, but it knows the line and says what is wrong there."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import polars as pl

from recsys.errors import DataError
from recsys.frames import rating_problem
from recsys.long_fields import long_fields
from recsys.readers.columns import Roles
from recsys.readers.detect import Layout, fields_of_line, without_returns
from recsys.readers.raw import integers_if_canonical
from recsys.readers.sources import DataFile

__all__ = ["decoded_lines", "line_of_row", "read_carefully"]

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
        with long_fields():
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

"""Conversions: sheets of workbooks into Parquet, arrays of JSON into lines."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import polars as pl

from recsys.errors import DataError
from recsys.messages import close_matches, missing_extra, shortened

__all__ = ["is_json_array", "write_lines", "write_sheet"]

_BLOCK = 1 << 20  # characters
_SPACE = re.compile(r"[\s,]*")


def write_sheet(path: Path, name: str, sheet: str | None, target: Path) -> str:
    """Write the rows of a sheet of a workbook to a Parquet file, and return the sheet's name.

    Raises
    ------
    DataError
        If fastexcel is not installed, the workbook is damaged, there is no such sheet, or several
        with rows and none is named.
    """
    try:
        fastexcel: Any = import_module("fastexcel")
    except ImportError:
        needed = missing_extra("fastexcel", "excel")
        raise DataError(f"{name} is a workbook; reading it {needed}") from None
    try:
        book = fastexcel.read_excel(path)
        names = list(book.sheet_names)
        filled = [each for each in names if book.load_sheet(each, n_rows=1).height]
    except fastexcel.FastExcelError as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise DataError(f"{name} is a damaged workbook: {reason}.") from None
    if sheet is not None and sheet not in names:
        near = close_matches(sheet, names, 1)
        hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(names)}."
        raise DataError(f"{name} has no sheet {sheet!r}; {hint}")
    if sheet is None and len(filled) > 1:
        raise DataError(
            f"{name} holds the sheets {', '.join(filled)}; name one: {name}::{filled[0]}, or "
            f"--table {filled[0]}."
        )
    chosen = sheet or (filled or names)[0]
    frame: pl.DataFrame = book.load_sheet(chosen).to_polars()
    frame = frame.filter(~pl.all_horizontal(pl.all().is_null()))
    if frame.is_empty():
        raise DataError(f"{name}::{chosen} has no rows.")
    frame.write_parquet(target, compression="uncompressed")
    return chosen


def is_json_array(path: Path) -> bool:
    """Return whether a file begins as an array of JSON objects does."""
    with path.open("rb") as stream:
        return re.match(rb"(\xef\xbb\xbf)?\s*\[\s*(\{|$)", stream.read(4096)) is not None


def write_lines(path: Path, name: str, target: Path) -> None:
    """Write the objects of a JSON array to a file, one per line.

    Raises
    ------
    DataError
        If something is not JSON, or the array ends early; the message counts the objects.
    """
    with target.open("w", encoding="utf-8", errors="surrogateescape") as sink:
        for text in _objects(path, name):
            sink.write(re.sub(r"[\r\n]+", " ", text) + "\n")


def _objects(path: Path, name: str) -> Iterator[str]:
    """Yield the text of each object of an array, with little of the file in memory."""
    decoder, buffer, count = json.JSONDecoder(), "", 0
    with path.open(encoding="utf-8-sig", errors="surrogateescape") as stream:
        place = -1
        while True:
            more = stream.read(max(_BLOCK, len(buffer)))
            buffer, place = buffer[max(place, 0) :] + more, 0
            if count == 0 and buffer.lstrip().startswith("["):
                place = buffer.index("[") + 1
            while True:
                match = _SPACE.match(buffer, place)
                begin = place if match is None else match.end()
                if buffer[begin : begin + 1] == "]":
                    return
                try:
                    _, end = decoder.raw_decode(buffer, begin)
                except json.JSONDecodeError as error:
                    if more and error.pos >= begin:
                        break  # perhaps it goes on in the next block
                    raise DataError(
                        f"{name}, object {count + 1}: not JSON ({error.msg.lower()}); got "
                        f"{shortened(buffer[begin : begin + 60])!r}."
                    ) from None
                except RecursionError:
                    raise DataError(
                        f"{name}, object {count + 1}: brackets are nested too deeply."
                    ) from None
                yield buffer[begin:end]
                count, place = count + 1, end

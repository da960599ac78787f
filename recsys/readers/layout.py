"""Layout of a file of ratings: its format, separator, header and columns."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from recsys.data.columns import Request, is_known_name, wide_hint
from recsys.errors import DataError
from recsys.readers.sources import DataFile, NoRowsError

__all__ = ["Layout", "detect", "separator_name", "sniff_separator", "split_rows", "without_returns"]

_HEAD = 1 << 16  # bytes looked at, and more where they are less than two lines
_SAMPLE_ROWS = 200
_DOUBLE_COLON = "::"
_SEPARATORS = {"\t": "tab", ";": "semicolon", ",": "comma", "|": "bar", " ": "space"}
_ROLES = ("user", "item", "rating", "timestamp")  # of a file without header, by position
_WEB_PAGE = "a web page, perhaps in place of the file that was to be downloaded."
_FOREIGN = {
    b"SQLite format 3\0": "an SQLite database in an archive or a folder; name the file itself.",
    b"%%MatrixMarket": "in Matrix Market; in Python, scipy.io.mmread and Ratings.from_matrix "
    "read it.",
    b"<!doctype html": _WEB_PAGE,
    b"<html": _WEB_PAGE,
    b"version https://git-lfs": "a pointer of Git LFS; `git lfs pull` gets the file itself.",
}
_INTEGERS = re.compile(r"\s*-?\d+( +-?\d+)*\s*")
_NUMBER = re.compile(r"[-+]?(\d+[.,]?\d*|\.\d+)([eE][-+]?\d+)?")


@dataclass(frozen=True, slots=True)
class Layout:
    """How a file is to be read; all but `kind` is of a delimited file.

    `separator` is one character, or "::"; `names` are from the header, or given by position; `skip`
    counts the lines before the first row: blank ones, and the header; `sample` has the first rows.
    """

    kind: Literal["delimited", "jsonl", "parquet", "lightgcn"]
    separator: str = ""
    names: tuple[str, ...] = ()
    has_header: bool = True
    skip: int = 0
    sample: tuple[list[str], ...] = ()


def detect(data: DataFile, request: Request) -> Layout:
    """Tell the layout of a file.

    Raises
    ------
    DataError
        If the file is empty or binary, not a Parquet file though it is called so, one JSON array,
        or has no separator between columns.
    """
    if data.is_parquet:
        return Layout("parquet")
    with data.path.open("rb") as stream:
        head = stream.read(_HEAD)
        while head.lstrip().count(b"\n") < 2 and (more := stream.read(len(head))):
            head += more
        is_whole = not stream.read(1)
    _check_text(head, data)
    lines = list(io.StringIO(head.decode("utf-8-sig", errors="replace")))
    lines = lines if is_whole else lines[:-1]
    blank = next((n for n, line in enumerate(lines) if line.strip()), len(lines))
    lines = lines[blank:]
    if not lines:
        raise NoRowsError(f"{data.name} is empty.")
    if request.sep is None:
        begin = lines[0].lstrip()[:1]
        if begin == "{" or data.suffix in (".jsonl", ".ndjson"):
            return Layout("jsonl")
        if begin == "[":
            raise DataError(f"{data.name} is a JSON array, and its elements are not objects.")
        filled = [line for line in lines if line.strip()]
        rows = [line.split() for line in filled]
        # In a table of integers with spaces users come back; in LightGCN lines each has one.
        is_lightgcn = len({row[0] for row in rows}) == len(rows) and all(
            map(_INTEGERS.fullmatch, filled)
        )
        if is_lightgcn and set(map(len, rows)) not in ({1}, {2}):
            return Layout("lightgcn")
    return _delimited(lines, blank, data, request)


def _check_text(head: bytes, data: DataFile) -> None:
    """Raise if a file is binary, in UTF-16 or of a known foreign format."""
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise DataError(f"{data.name} is in UTF-16; say so with --encoding utf-16.")
    for beginning, description in _FOREIGN.items():
        if head.lstrip()[:40].lower().startswith(beginning.lower()):
            raise DataError(f"{data.name} is {description}")
    if b"\r" in head and b"\n" not in head:
        raise DataError(
            f"{data.name} ends its lines with carriage returns alone; write them as newlines."
        )
    if b"\0" in head:
        raise DataError(
            f"{data.name} is a binary file (byte {head.index(0)} is zero); expected text (CSV, "
            "TSV, JSON lines, MovieLens, LightGCN) or Parquet, as it is or in gz, xz, zst or zip."
        )


def _delimited(lines: list[str], blank: int, data: DataFile, request: Request) -> Layout:
    separator = request.sep
    if separator is not None:
        separator = {r"\t": "\t", "tab": "\t", "space": " "}.get(separator, separator)
        is_character = len(separator) == 1 and separator.isascii() and separator not in '"\r\n'
        if separator != _DOUBLE_COLON and not is_character:
            raise DataError(
                f'--sep must be one ASCII character, "tab" or "::"; got {request.sep!r}.'
            )
    begin = lines[0].strip()
    if re.fullmatch(r'"?sep=.?"?', begin):
        raise DataError(f"{data.name} begins with {begin!r} for Excel; leave it out.")
    sign = begin[0]
    others = [line for line in lines[1:] if line.strip() and line.lstrip()[0] != sign]
    if sign in "#%" and sign != separator and others:
        mark = separator or sniff_separator(others) or ","
        first, rows = split_rows(lines[:1], mark)[0], split_rows(others, mark)
        if first[0].strip() == sign or len({len(first), *map(len, rows[:1])}) > 1:
            raise DataError(
                f"{data.name} begins with a comment ({begin[:40]!r}); leave out the lines that "
                f"begin with {sign}."
            )
    separator = separator or sniff_separator(lines)
    rows = split_rows(lines, separator) if separator else []
    if separator is None or not rows or len(rows[0]) < 2:
        tried = "tab, semicolon, comma, bar or space"
        tried = f"separator {request.sep!r}" if request.sep else tried
        raise DataError(
            f"{data.name} has only one column ({begin[:40]!r}): found no {tried}; name the "
            "separator with --sep."
        )
    first = [field.strip() for field in rows[0]]
    names = _names_without_header(first, data, request)
    if names is None:
        return Layout("delimited", separator, tuple(first), True, blank + 1, tuple(rows[1:]))
    return Layout("delimited", separator, names, False, blank, tuple(rows))


def sniff_separator(lines: list[str], separators: Sequence[str] = tuple(_SEPARATORS)) -> str | None:
    """Return the separator that splits the lines into equal, most fields; None for one column.

    Where none splits them equally, because a row is ragged, the first line decides alone.
    """
    if _DOUBLE_COLON in lines[0] and tuple(separators) == tuple(_SEPARATORS):
        return _DOUBLE_COLON
    even, widest = {}, {}
    for separator in separators:
        rows = split_rows(lines, separator)
        widest[separator] = len(rows[0]) if rows else 0
        if len(set(map(len, rows))) == 1:
            even[separator] = widest[separator]
    for widths in (even, {s: n for s, n in widest.items() if s != " "}, widest):
        best = max(widths, key=widths.__getitem__, default=None)
        if best is not None and widths[best] > 1:
            return best
    return None


def split_rows(lines: list[str], separator: str) -> list[list[str]]:
    """Return the fields of the first 200 rows, blank ones left out."""
    if separator == _DOUBLE_COLON:
        rows: Iterable[list[str]] = (line.rstrip("\r\n").split(_DOUBLE_COLON) for line in lines)
    else:
        rows = csv.reader(map(without_returns, lines), delimiter=separator)
    return list(islice((row for row in rows if any(map(str.strip, row))), _SAMPLE_ROWS))


def without_returns(line: str) -> str:
    """Return a line with the carriage returns inside it, which csv rejects, as spaces."""
    return line.replace("\r\n", "\n").replace("\r", " ")


def _names_without_header(
    first: list[str], data: DataFile, request: Request
) -> tuple[str, ...] | None:
    """Return roles, or numbers from 1, as names of columns; None if the first row is a header.

    It is one if a field is a usual or requested name, or if none is a number and columns are not
    requested by number. A column has its number if that, or its role elsewhere, is requested.
    """
    requested = request.columns
    named = set(requested.values())
    filled = [field for field in first if field]
    words = [field for field in filled if not _NUMBER.fullmatch(field)]
    by_number = named and all(name.isdecimal() for name in named)
    known = any(is_known_name(word) or word in named for word in words)
    if known or (not by_number and words == filled):
        return None
    width = len(first)
    numbers = [str(number + 1) for number in range(width)]
    if width > len(_ROLES):
        if requested:
            return tuple(numbers)
        raise DataError(
            f"{data.name} has no header and {width} columns; say by number which are which, "
            f"such as --user-col 1 --item-col 2 --rating-col 3.{wide_hint(width)}"
        )
    return tuple(
        number if role not in named and (role in requested or number in named) else role
        for number, role in zip(numbers, _ROLES, strict=False)
    )


def separator_name(separator: str) -> str:
    """Return how `Source` calls a separator, such as "comma-separated"."""
    return f"{_SEPARATORS.get(separator, repr(separator))}-separated"

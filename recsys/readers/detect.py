"""What a file is, told from its first bytes and lines."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from recsys.errors import DataError
from recsys.long_fields import long_fields
from recsys.readers.columns import Request, is_known_name, wide_hint
from recsys.readers.sources import DataFile

__all__ = ["Layout", "detect", "fields_of_line", "separator_name", "without_returns"]

_HEAD = 1 << 16  # bytes looked at,
_LONG_HEAD = 1 << 24  # if they have two lines; else up to this
_SAMPLE_ROWS = 200
_DOUBLE_COLON = "::"
_SEPARATORS = {"\t": "tab", ";": "semicolon", ",": "comma", "|": "bar", " ": "space"}
_POSITIONAL = ("user", "item", "rating", "timestamp")
_FOREIGN = {
    b"SQLite format 3\0": "an SQLite database; write its table as CSV first.",
    b"%%MatrixMarket": "in Matrix Market; in Python, scipy.io.mmread and Ratings.from_matrix "
    "read it.",
    b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1": "an old Excel workbook; save its sheet as CSV first.",
    b"<!doctype html": "a web page, perhaps in place of what was to be downloaded.",
    b"<html": "a web page, perhaps in place of what was to be downloaded.",
    b"version https://git-lfs": "a pointer of Git LFS; `git lfs pull` gets the file itself.",
}
_INTEGERS = re.compile(r"\s*-?\d+( +-?\d+)*\s*")


@dataclass(frozen=True, slots=True)
class Layout:
    """How a file is to be read.

    Attributes
    ----------
    kind : {"delimited", "jsonl", "parquet", "lightgcn"}
    separator : str
        Of a delimited file: one character, or "::".
    names : tuple of str
        Its columns: from the header, or given by position.
    has_header : bool
    skip : int
        Lines before the first row: blank ones, and the header.
    sample : list of lists of str
        Its first rows.
    """

    kind: Literal["delimited", "jsonl", "parquet", "lightgcn"]
    separator: str = ""
    names: tuple[str, ...] = ()
    has_header: bool = True
    skip: int = 0
    sample: tuple[list[str], ...] = ()

    @property
    def decimal_comma(self) -> bool:
        """Whether decimals may have a comma: they do where spreadsheets put semicolons."""
        return self.separator == ";"


def detect(data: DataFile, request: Request) -> Layout:
    """Tell the layout of a file.

    Raises
    ------
    DataError
        If the file is empty or binary, is no Parquet file though it is called so, is one JSON
        array, has no separator between columns, or a first or second line of absurd length.
    """
    head, is_whole = _read_head(data)
    if head.startswith(b"PAR1"):
        return Layout("parquet")
    _check_text(head, data)
    if not is_whole and _has_few_lines(head):
        which = "second" if b"\n" in head.lstrip() else "first"
        raise DataError(
            f"{data.name} has no ratings: its {which} line is longer than {_LONG_HEAD:,} bytes."
        )
    lines = _first_lines(head, is_whole)
    blank = next((n for n, line in enumerate(lines) if line.strip()), len(lines))
    lines = lines[blank:]
    if not lines:
        raise DataError(f"{data.name} is empty.")
    if request.sep is None and (json := _as_json(lines[0], data)):
        return json
    if request.sep is None and _looks_like_lightgcn(lines):
        return Layout("lightgcn")
    return _delimited(lines, blank, data, request)


def fields_of_line(line: str) -> list[str]:
    """Return the fields of a line that are separated by "::"."""
    return line.rstrip("\r\n").split(_DOUBLE_COLON)


def without_returns(line: str) -> str:
    """Return a line that ends as lines do, other carriage returns taken for spaces.

    csv refuses them within a line, and a space behind a closing quote.
    """
    if "\r" not in line:
        return line
    if line.endswith("\r\n"):
        line = f"{line[:-2]}\n"
    return line.replace("\r", " ")


def separator_name(separator: str) -> str:
    """Return how the decision line calls a separator, such as "comma-separated"."""
    return f"{_SEPARATORS.get(separator, repr(separator))}-separated"


def _check_text(head: bytes, data: DataFile) -> None:
    """Refuse a file that is empty, binary, or in UTF-16."""
    if not head.strip():
        raise DataError(f"{data.name} is empty.")
    if data.suffix == ".parquet":
        raise DataError(f"{data.name} is no Parquet file, or damaged: it does not begin with PAR1.")
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise DataError(f"{data.name} is in UTF-16; say so with --encoding utf-16.")
    for beginning, said in _FOREIGN.items():
        if head.lstrip()[:40].lower().startswith(beginning.lower()):
            raise DataError(f"{data.name} is {said}")
    if b"\r" in head and b"\n" not in head:
        raise DataError(
            f"{data.name} ends its lines with carriage returns alone; write them as newlines."
        )
    if b"\0" in head:
        raise DataError(
            f"{data.name} is a binary file (byte {head.index(0)} is zero); expected text (CSV, "
            "TSV, JSON lines, MovieLens, LightGCN) or Parquet, as it is or in gz, zst or zip."
        )


def _read_head(data: DataFile) -> tuple[bytes, bool]:
    """Return the beginning of a file, and whether that is all of it."""
    with data.path.open("rb") as stream:
        head = stream.read(_HEAD)
        while _has_few_lines(head) and len(head) < _LONG_HEAD and (more := stream.read(len(head))):
            head += more
        return head, not stream.read(1)


def _has_few_lines(head: bytes) -> bool:
    return head.lstrip().count(b"\n") < 2


def _first_lines(head: bytes, is_whole: bool) -> list[str]:
    """Return the complete lines at the beginning of a file."""
    lines = list(io.StringIO(head.decode("utf-8-sig", errors="replace")))
    return lines if is_whole else lines[:-1]


def _as_json(line: str, data: DataFile) -> Layout | None:
    begin = line.lstrip()[:1]
    if begin == "{" or data.suffix in (".jsonl", ".ndjson"):
        return Layout("jsonl")
    if begin == "[":
        raise DataError(f"{data.name} is one JSON array; expected one JSON object per line.")
    return None


def _looks_like_lightgcn(lines: Sequence[str]) -> bool:
    """Return whether each line is a user and the user's items, not a row of a table.

    In a table of integers with spaces users come back; here each has one line.
    """
    filled = [line for line in lines if line.strip()]
    if not all(_INTEGERS.fullmatch(line) for line in filled):
        return False
    rows = [line.split() for line in filled]
    distinct = len({row[0] for row in rows}) == len(rows)
    return distinct and {len(row) for row in rows} not in ({1}, {2})


def _delimited(lines: list[str], blank: int, data: DataFile, request: Request) -> Layout:
    _check_no_comment(lines, data, request)
    separator = _asked_separator(request) or _sniff_separator(lines)
    rows = _rows(lines, separator) if separator else []
    if separator is None or not rows or len(rows[0]) < 2:
        asked = f"separator {request.sep!r}"
        tried = asked if request.sep else "tab, semicolon, comma, bar or space"
        raise DataError(
            f"{data.name} has only one column ({lines[0].strip()[:40]!r}): found no {tried}; "
            "say what separates the columns with --sep."
        )
    first = [field.strip() for field in rows[0]]
    if _is_header(first, request):
        return Layout("delimited", separator, tuple(first), True, blank + 1, tuple(rows[1:]))
    names = _positional_names(len(first), data, request)
    return Layout("delimited", separator, names, False, blank, tuple(rows))


def _check_no_comment(lines: list[str], data: DataFile, request: Request) -> None:
    """Refuse a first line that is a comment: it begins as one, and is cut otherwise than others."""
    if re.fullmatch(r'"?sep=.?"?', lines[0].strip()):
        raise DataError(f"{data.name} begins with {lines[0].strip()!r} for Excel; leave it out.")
    sign = lines[0].lstrip()[:1]
    if sign not in ("#", "%") or sign == request.sep:
        return
    others = [line for line in lines[1:] if line.strip() and line.lstrip()[0] != sign]
    if not others:
        return
    separator = _asked_separator(request) or _sniff_separator(others) or ","
    first, rows = _rows(lines[:1], separator)[0], _rows(others, separator)
    if first[0].strip() == sign or len({len(first), *map(len, rows[:1])}) > 1:
        raise DataError(
            f"{data.name} begins with a comment ({lines[0].strip()[:40]!r}); leave out the lines "
            f"that begin with {sign}."
        )


def _asked_separator(request: Request) -> str | None:
    if request.sep is None:
        return None
    separator = {r"\t": "\t", "tab": "\t", "space": " "}.get(request.sep, request.sep)
    if separator != _DOUBLE_COLON and (
        len(separator) != 1 or not separator.isascii() or separator in '"\r\n'
    ):
        raise DataError(f'--sep must be one ASCII character, "tab" or "::"; got {request.sep!r}.')
    return separator


def _sniff_separator(lines: list[str]) -> str | None:
    """Return the separator that cuts all sampled rows into the same, largest number of fields.

    Where none does, because a row is ragged, the first line decides alone.
    """
    if _DOUBLE_COLON in lines[0]:
        return _DOUBLE_COLON
    even, widest = {}, {}
    for separator in _SEPARATORS:
        rows = _rows(lines, separator)
        widths = {len(row) for row in rows}
        widest[separator] = len(rows[0]) if rows else 0
        if len(widths) == 1:
            even[separator] = widest[separator]
    for widths_of in (even, {s: n for s, n in widest.items() if s != " "}, widest):
        best = max(widths_of, key=widths_of.__getitem__, default=None)
        if best is not None and widths_of[best] > 1:
            return best
    return None


def _rows(lines: list[str], separator: str) -> list[list[str]]:
    """Return the first rows, blank ones left out."""
    if separator == _DOUBLE_COLON:
        cut = map(fields_of_line, lines[:_SAMPLE_ROWS])
        return [row for row in cut if any(map(str.strip, row))]
    rows = csv.reader(map(without_returns, lines), delimiter=separator)
    with long_fields():
        return list(islice((row for row in rows if any(map(str.strip, row))), _SAMPLE_ROWS))


def _is_header(first: list[str], request: Request) -> bool:
    """Return whether the first row names the columns.

    It does if a field is a usual or requested name, or if none is a number and columns are not
    asked for by number.
    """
    words = [field for field in first if field and not _is_number(field)]
    if any(is_known_name(word) or word in request.asked for word in words):
        return True
    by_number = request.asked and all(name.isdecimal() for name in request.asked)
    return not by_number and len(words) == len([field for field in first if field])


def _positional_names(width: int, data: DataFile, request: Request) -> tuple[str, ...]:
    """Return names for the columns of a file without header: roles, or numbers from 1."""
    numbers = [str(number + 1) for number in range(width)]
    if width <= len(_POSITIONAL):
        roles = zip(numbers, _POSITIONAL, strict=False)
        return tuple(_positional_name(number, role, request) for number, role in roles)
    if not request.asked:
        raise DataError(
            f"{data.name} has no header and {width} columns; say by number which are which, "
            f"such as --user-col 1 --item-col 2 --rating-col 3.{wide_hint(width)}"
        )
    return tuple(numbers)


def _positional_name(number: str, role: str, request: Request) -> str:
    """Return a column's role, or its number if it was asked for so, or another for the role."""
    if role in request.asked:
        return role
    elsewhere = request.column_for("time" if role == "timestamp" else role) is not None
    return number if elsewhere or number in request.asked else role


def _is_number(field: str) -> bool:
    return re.fullmatch(r"[-+]?(\d+[.,]?\d*|\.\d+)([eE][-+]?\d+)?", field) is not None

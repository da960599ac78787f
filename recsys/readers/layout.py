"""Layouts of text: what a file is, its separator, its header, and the numbers of its columns."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice, zip_longest
from typing import Literal

from recsys.data.columns import Request, is_known_name, wide_hint
from recsys.data.times import is_time
from recsys.errors import DataError
from recsys.readers.sources import DataFile, NoRowsError

_HEAD = 1 << 16  # bytes looked at, and more where they are less than two lines
_SAMPLE_ROWS = 200
DOUBLE_COLON = "::"
"""Separator of MovieLens."""
_SEPARATORS = {"\t": "tab", ";": "semicolon", ",": "comma", "|": "bar", " ": "space"}
_ROLES = ("user", "item", "rating", "timestamp")  # of a file without header, by position
_RULE = re.compile(r"[ |+:=-]*-{3}[ |+:=-]*")
_INTEGERS = re.compile(r"\s*-?\d+( +-?\d+)*\s*")
_OF_AMAZON = re.compile(r"(B0|\d\d)[0-9A-Z]{8}A[0-9A-Z]{9,}")  # a product, then a reviewer
_NUMBER = re.compile(r"[-+]?(\d+[.,]?\d*|\.\d+)([eE][-+]?\d+)?")
_TYPED = re.compile(r"(\w+):(?:token|float)(?:_seq)?")  # a name of an atomic file of RecBole
_DATE = re.compile(r"\d{1,4}([/.-])\d\d?\1\d{1,4}(?!\d)")
_FRACTION = re.compile(r"[-+]?\d*\.\d+")
_SECONDS = re.compile(r"\d{9,10}|\d{13}")  # or milliseconds
_KIND = re.compile(r"[A-Za-z][\w-]*")
_MOST_KINDS = 20
_GRADES = 10  # the highest one
_LARGE = 1e5  # counts are mostly less, and numbers that are ids more
_COUNTED = 10


@dataclass(frozen=True, slots=True)
class Layout:
    """How a file is to be read; all but `kind` is of a delimited file.

    `separator` is one character, or "::"; `names` are from the header, or given by position; `skip`
    counts the lines before the first row: blank ones, and the header; `sample` has the first rows.
    """

    kind: Literal["delimited", "jsonl", "parquet", "lightgcn", "counted", "netflix"]
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
    data.check_text(head)
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
        if any(_RULE.fullmatch(line.strip()) for line in filled[:3]):
            raise DataError(
                f"{data.name} is a table with lines drawn around its cells; write it as CSV, as "
                "`psql --csv` and `mysql --batch` do."
            )
        if re.fullmatch(r"\d+:\s*", filled[0]):
            return Layout("netflix")
        rows, widths = [line.split() for line in filled], {len(line.split()) for line in filled}
        if all(map(_INTEGERS.fullmatch, filled)):
            # In a table of integers with spaces users come back; in LightGCN lines each has one.
            if len({row[0] for row in rows}) == len(rows) and widths not in ({1}, {2}):
                return Layout("lightgcn")
            if len(widths) > 1 and all(int(row[0]) == len(row) - 1 for row in rows):
                return Layout("counted")
    return _delimited(lines, blank, data, request)


def _delimited(lines: list[str], blank: int, data: DataFile, request: Request) -> Layout:
    separator = request.sep
    if separator is not None:
        separator = {r"\t": "\t", "tab": "\t", "space": " "}.get(separator, separator)
        is_character = len(separator) == 1 and separator.isascii() and separator not in '"\r\n'
        if separator != DOUBLE_COLON and not is_character:
            raise DataError(
                f'--sep must be one ASCII character, "tab" or "::"; got {request.sep!r}.'
            )
    begin = lines[0].strip()
    if (excel := re.fullmatch(r'"?sep=(.)"?', begin)) and lines[1:]:
        return _delimited(lines[1:], blank + 1, data, replace(request, sep=separator or excel[1]))
    sign = begin[0]
    others = [line for line in lines[1:] if line.strip() and line.lstrip()[0] != sign]
    if sign in "#%" and sign != separator and others:
        mark = separator or sniff_separator(others) or ","
        first, rows = split_rows(lines[:1], mark)[0], split_rows(others, mark)
        if first[0].strip() == sign or len({len(first), *map(len, rows[:1])}) > 1:
            n_lines = next(n for n, line in enumerate(lines) if line in others)
            return _delimited(lines[n_lines:], blank + n_lines, data, request)
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
    # R does not name its names of rows; other programs end all rows with a separator.
    if len(rows) > 2 and {len(row) for row in rows[1:]} == {len(first) + 1}:
        first = ["", *first] if any(row[-1].strip() for row in rows[1:]) else [*first, ""]
    names = _names_without_header(first, rows, separator, data, request)
    if names is None:
        typed = list(map(_TYPED.fullmatch, first))
        if all(typed) and not {*first}.intersection(request.columns.values()):
            first = [found[1] for found in typed if found]
        return Layout("delimited", separator, tuple(first), True, blank + 1, tuple(rows[1:]))
    if names == _ROLES and all(_OF_AMAZON.fullmatch("".join(row[:2])) for row in rows):
        names = ("item (first)", "user (second)", *names[2:])
    return Layout("delimited", separator, names, False, blank, tuple(rows))


def sniff_separator(lines: list[str], separators: Sequence[str] = tuple(_SEPARATORS)) -> str | None:
    """Return the separator that splits the lines into equal, most fields; None for one column.

    Where none splits them equally, because a row is ragged, the first line decides alone. Spaces
    next to tabs are part of the fields.
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
    """Return the fields of the first 200 rows, blank ones left out."""
    if separator == DOUBLE_COLON:
        rows: Iterable[list[str]] = (line.rstrip("\r\n").split(DOUBLE_COLON) for line in lines)
    else:
        rows = csv_rows(lines, separator, strict=False)
    return list(islice((row for row in rows if any(map(str.strip, row))), _SAMPLE_ROWS))


def csv_rows(lines: Iterable[str], separator: str, *, strict: bool = True) -> Iterator[list[str]]:
    """Return the fields of records; several spaces are one separator.

    Carriage returns inside lines, which csv rejects, are spaces, and quotes after a backslash part
    of the field.
    """

    def plain() -> Iterator[str]:
        for line in lines:
            if "\r" in line:
                line = line.replace("\r\n", "\n").replace("\r", " ")
            yield _with_doubled_quotes(line, separator) if '\\"' in line else line

    with_spaces = separator == " "
    return csv.reader(plain(), delimiter=separator, strict=strict, skipinitialspace=with_spaces)


def _with_doubled_quotes(line: str, separator: str) -> str:
    """Return a line with doubled quotes in place of escaped ones, if only that is a record."""
    for each in (line, line.replace('\\"', '""')):
        with suppress(csv.Error):
            list(csv.reader([each], delimiter=separator, strict=True))
            return each
    return line


def _names_without_header(
    first: list[str], rows: list[list[str]], separator: str, data: DataFile, request: Request
) -> tuple[str, ...] | None:
    """Return roles, or numbers from 1, as names of columns; None if the first row is a header.

    It is one if a field is a usual or requested name, or if none is a number and columns are not
    requested by number. A column has its number if that, or its role elsewhere, is requested. It
    has no name if it is empty because there are two tabs in place of one, or one ends the lines.
    """
    requested = request.columns
    named = set(requested.values())
    filled = [field for field in first if field]
    words = [field for field in filled if not _NUMBER.fullmatch(field)]
    is_numbered = named and all(name.isdecimal() for name in named)
    known = any(is_known_name(word) or word in named for word in words)
    if known or (not is_numbered and words == filled):
        return None
    places = [
        place
        for place in range(len(first))
        if separator.strip() or any("".join(row[place : place + 1]).strip() for row in rows)
    ]
    called = dict.fromkeys(range(len(first)), "") | {place: str(place + 1) for place in places}
    if len(places) > len(_ROLES):
        if requested:
            return tuple(called.values())
        such, hint = by_number(rows), wide_hint(len(places))
        such = f"; say by number which are which, such as {such}" * ("item" in such or not hint)
        raise DataError(f"{data.name} has no header and {len(places)} columns{such}.{hint}")
    if not requested and is_time(first[1]) and not first[1].isdecimal():
        raise DataError(
            f"{data.name} has no header, and its second column has times ({first[1]!r}); say by "
            f"number which are which, such as {by_number(rows)}."
        )
    for place, role in zip(places, _ROLES, strict=False):
        if role in named or (role not in requested and called[place] not in named):
            called[place] = role
    return tuple(called.values())


def by_number(rows: Sequence[Sequence[str]]) -> str:
    """Return options that name the columns of rows without header, as far as the values tell.

    Ids are neither dates nor fractions, and none is missing. Columns of a single value, or of the
    numbers of rows, tell nothing.
    """
    stripped = ([text.strip() for text in each] for each in zip_longest(*rows, fillvalue=""))
    columns = dict(enumerate(stripped, 1))
    telling = {n: each for n, each in columns.items() if len({*each}) > 1 and not _is_counter(each)}
    if len(telling) > 1:
        columns = telling

    def where(fits: Callable[[str], object], taken: Collection[int]) -> list[int]:
        return [n for n, each in columns.items() if n not in taken and all(map(fits, each))]

    dates = where(lambda text: not text or _is_date(text), ())
    ids = where(lambda text: text and not _FRACTION.fullmatch(text), dates)[:2]
    times = dates or where(_SECONDS.fullmatch, ids)[-1:]
    taken = [*ids, *times]
    grades = where(lambda text: 0 <= _number(text) <= _GRADES, taken)
    numbers = where(lambda text: _number(text) < _LARGE, taken)
    rated = grades or numbers * (len(numbers) == 1)
    kinds = where(_KIND.fullmatch, taken) * (not rated)
    events = [n for n in kinds if len({*columns[n]}) <= _MOST_KINDS]
    found = {"--user-col": ids, "--item-col": ids[1:], "--rating-col": rated}
    found |= {"--timestamp-col": times, "--event-col": events}
    return " ".join(f"{option} {places[0]}" for option, places in found.items() if places)


def _is_date(text: str) -> bool:
    return bool(_DATE.match(text)) or (not _NUMBER.fullmatch(text) and is_time(text))


def _is_counter(texts: Sequence[str]) -> bool:
    """Return whether texts are the numbers of their rows."""
    first = int(texts[0]) if texts[0].isdecimal() else 0
    return len(texts) >= _COUNTED and texts == [str(first + n) for n in range(len(texts))]


def _number(text: str) -> float:
    """Return a number, NaN for other texts."""
    return float(text.replace(",", ".")) if _NUMBER.fullmatch(text) else math.nan


def separator_name(separator: str) -> str:
    """Return how `Source` calls a separator, such as "comma-separated"."""
    return f"{_SEPARATORS.get(separator, repr(separator))}-separated"

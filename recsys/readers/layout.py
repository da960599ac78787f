"""Layout of a file of ratings: its format, separator, header and columns."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from recsys.errors import DataError
from recsys.messages import shortened
from recsys.readers.sources import DataFile

__all__ = ["Layout", "Request", "Roles", "choose_columns", "detect", "is_known_name"]
__all__ += ["separator_name", "sniff_separator", "split_rows", "title_columns", "usual_column"]
__all__ += ["without_returns"]

Roles = dict[str, int]
"""Positions of the columns by role: "user", "item", "rating", "timestamp"."""

_HEAD = 1 << 16  # bytes looked at, and more where they are less than two lines
_SAMPLE_ROWS = 200
_LISTED = 20
_DOUBLE_COLON = "::"
_SEPARATORS = {"\t": "tab", ";": "semicolon", ",": "comma", "|": "bar", " ": "space"}
_OPTIONS = {
    "user": "--user-col",
    "item": "--item-col",
    "rating": "--rating-col",
    "timestamp": "--timestamp-col",
}
_WEB_PAGE = "a web page, perhaps in place of the file that was to be downloaded."
_FOREIGN = {
    b"SQLite format 3\0": "an SQLite database; write its table as CSV first.",
    b"%%MatrixMarket": "in Matrix Market; in Python, scipy.io.mmread and Ratings.from_matrix "
    "read it.",
    b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1": "an old Excel workbook; save its sheet as CSV first.",
    b"<!doctype html": _WEB_PAGE,
    b"<html": _WEB_PAGE,
    b"version https://git-lfs": "a pointer of Git LFS; `git lfs pull` gets the file itself.",
}
_INTEGERS = re.compile(r"\s*-?\d+( +-?\d+)*\s*")
_NUMBER = re.compile(r"[-+]?(\d+[.,]?\d*|\.\d+)([eE][-+]?\d+)?")

# Names in tiers: one of an earlier tier wins over those of later ones; two of one tier are
# ambiguous. Compared in lower case, without anything but letters and digits.
_ALIASES: dict[str, tuple[str, ...]] = {
    "user": (
        "user userid uid useridx users",
        "reviewerid customerid customer memberid accountid visitorid",
        "reviewer member account visitor username client clientid",
    ),
    "item": (
        "item itemid iid itemidx items",
        "movieid productid asin isbn bookid trackid artistid songid albumid gameid animeid "
        "businessid articleid filmid recipeid sku stockcode",
        "parentasin",
        "movie product book track artist song album game film",
    ),
    "rating": (
        "rating ratings score stars overall bookrating movierating",
        "value count plays playcount weight listens clicks",
    ),
    "timestamp": (
        "timestamp ts unixreviewtime unixtime",
        "time datetime",
        "date createdat eventtime",
        "purchasedate orderdate invoicedate reviewdate tdat",
    ),
    "title": ("title", "name movietitle booktitle itemname"),
}


@dataclass(frozen=True, slots=True)
class Request:
    """Wishes of the caller: names (or numbers) of columns, separator, encoding."""

    user: str | None = None
    item: str | None = None
    rating: str | None = None
    timestamp: str | None = None
    sep: str | None = None
    encoding: str | None = None
    implicit: bool = False

    @property
    def columns(self) -> dict[str, str]:
        """Requested columns by role."""
        return {r: name for r in _OPTIONS if (name := getattr(self, r)) is not None}


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
        raise DataError(f"{data.name} is empty.")
    if request.sep is None:
        begin = lines[0].lstrip()[:1]
        if begin == "{" or data.suffix in (".jsonl", ".ndjson"):
            return Layout("jsonl")
        if begin == "[":
            raise DataError(f"{data.name} is one JSON array; expected one JSON object per line.")
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
    if width > len(_OPTIONS):
        if requested:
            return tuple(numbers)
        raise DataError(
            f"{data.name} has no header and {width} columns; say by number which are which, "
            f"such as --user-col 1 --item-col 2 --rating-col 3.{_wide_hint(width)}"
        )
    return tuple(
        number if role not in named and (role in requested or number in named) else role
        for number, role in zip(numbers, _OPTIONS, strict=False)
    )


def separator_name(separator: str) -> str:
    """Return how `Source` calls a separator, such as "comma-separated"."""
    return f"{_SEPARATORS.get(separator, repr(separator))}-separated"


def choose_columns(
    names: Sequence[str],
    request: Request,
    where: str,
    required: Sequence[str] = ("user", "item"),
) -> Roles:
    """Choose the positions of the columns by role: those requested, and by usual names the rest.

    Raises
    ------
    DataError
        If a requested column is missing, two have an equal claim to a role, two roles are given
        the same column, or there is no column for a `required` role. It names the file: `where`.
    """
    chosen: dict[str, int | None] = {}
    for role, wanted in request.columns.items():
        exact = [place for place, name in enumerate(names) if name == wanted]
        plain = _normalised(wanted)
        found = exact or [p for p, name in enumerate(names) if _normalised(name) == plain]
        if not found:
            raise DataError(f"{where} has no column {wanted!r}; its columns are {_quoted(names)}.")
        if len(found) > 1:
            raise DataError(
                f"{where} has {len(found)} columns named {wanted!r}; rename one of them."
            )
        other = next((each for each, taken in chosen.items() if taken == found[0]), None)
        if other is not None:
            raise DataError(
                f"{where}: column {names[found[0]]!r} cannot be both {other} and {role}."
            )
        chosen[role] = found[0]
    for role in _OPTIONS:
        if role not in chosen:
            chosen[role] = usual_column(names, role, where, set(chosen.values()))
    missing = [role for role in required if chosen[role] is None]
    if missing:
        raise DataError(_missing_columns(missing, chosen["rating"] is None, names, where))
    if request.implicit:
        chosen["rating"] = None
    return {role: place for role in _OPTIONS if (place := chosen[role]) is not None}


def _missing_columns(missing: list[str], no_rating: bool, names: Sequence[str], where: str) -> str:
    if not names:
        return f"{where} has no columns."
    options = [_OPTIONS[role] for role in missing]
    if len(missing) > 1 and no_rating and len(names) > len(missing):
        options.append(_OPTIONS["rating"])
    listed = " and ".join(filter(None, [", ".join(options[:-1]), options[-1]]))
    sentence = (
        f"{where} has no {' and no '.join(missing)} column; its columns are {_quoted(names)}. "
        f"Say which {'it is' if len(missing) == 1 else 'they are'} with {listed}."
    )
    titles = " (It looks like a table of titles, which is read along with a file of ratings.)"
    return sentence + titles * (title_columns(names) is not None) + _wide_hint(len(names))


def _wide_hint(width: int) -> str:
    """Return a hint on a table with more columns than ratings have: it may be a matrix."""
    if width <= _LISTED:
        return ""
    return (
        " If it has a column for each item, make a row for each rating of it first, with a user, "
        "an item and the rating (`melt` in pandas, `unpivot` in polars)."
    )


def is_known_name(name: str) -> bool:
    """Return whether a name is one of the usual column names."""
    plain = _normalised(name)
    return any(plain in tier.split() for tiers in _ALIASES.values() for tier in tiers)


def title_columns(names: Sequence[str]) -> tuple[int, int] | None:
    """Return the positions of the item and title columns of a file of titles, if it has both."""
    try:
        item = usual_column(names, "item")
        title = usual_column(names, "title", taken={item})
    except DataError:
        return None
    return None if item is None or title is None else (item, title)


def usual_column(
    names: Sequence[str], role: str, where: str = "", taken: Collection[int | None] = ()
) -> int | None:
    """Return the position of the column whose name has the best claim to a role, if there is one.

    Raises
    ------
    DataError
        If two have an equal claim.
    """
    for tier in _ALIASES[role]:
        known = tier.split()
        found = [p for p, name in enumerate(names) if p not in taken and _normalised(name) in known]
        if len(found) == 1:
            return found[0]
        if found:
            either = " and ".join(repr(names[place]) for place in found)
            raise DataError(
                f"{where} has several columns that may be the {role}: {either}; say which it is "
                f"with {_OPTIONS.get(role, '')}."
            )
    return None


def _normalised(name: str) -> str:
    return re.sub(r"[\W_]+", "", name.casefold())


def _quoted(names: Sequence[str]) -> str:
    more = f" and {len(names) - _LISTED:,} more" if len(names) > _LISTED else ""
    return ", ".join(repr(shortened(name)) for name in names[:_LISTED]) + more

"""Layout of a ratings file: its format, separator, header and columns."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from recsys.errors import DataError
from recsys.messages import shortened
from recsys.readers.sources import DataFile

__all__ = [
    "Layout",
    "Request",
    "Roles",
    "choose_columns",
    "detect",
    "fields_of_line",
    "is_known_name",
    "separator_name",
    "title_columns",
    "usual_column",
    "wide_hint",
    "without_returns",
]

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
    elsewhere = request.column_for(role) is not None
    return number if elsewhere or number in request.asked else role


def _is_number(field: str) -> bool:
    return re.fullmatch(r"[-+]?(\d+[.,]?\d*|\.\d+)([eE][-+]?\d+)?", field) is not None


# Names in tiers: one of an earlier tier wins over those of later ones; two of one tier are
# ambiguous. Compared in lower case, without anything but letters and digits.
_ALIASES: dict[str, tuple[frozenset[str], ...]] = {
    "user": (
        frozenset({"user", "userid", "uid", "useridx", "users"}),
        frozenset({"reviewerid", "customerid", "customer", "memberid", "accountid", "visitorid"}),
        frozenset({"reviewer", "member", "account", "visitor", "username", "client", "clientid"}),
    ),
    "item": (
        frozenset({"item", "itemid", "iid", "itemidx", "items"}),
        frozenset(
            {"movieid", "productid", "asin", "isbn", "bookid", "trackid", "artistid", "songid"}
            | {"albumid", "gameid", "animeid", "businessid", "articleid", "filmid", "recipeid"}
            | {"sku", "stockcode"}
        ),
        frozenset({"parentasin"}),
        frozenset({"movie", "product", "book", "track", "artist", "song", "album", "game", "film"}),
    ),
    "rating": (
        frozenset({"rating", "ratings", "score", "stars", "overall", "bookrating", "movierating"}),
        frozenset({"value", "count", "plays", "playcount", "weight", "listens", "clicks"}),
    ),
    "timestamp": (
        frozenset({"timestamp", "ts", "unixreviewtime", "unixtime"}),
        frozenset({"time", "datetime"}),
        frozenset({"date", "createdat", "eventtime"}),
        frozenset({"purchasedate", "orderdate", "invoicedate", "reviewdate", "tdat"}),
    ),
    "title": (frozenset({"title"}), frozenset({"name", "movietitle", "booktitle", "itemname"})),
}
_LISTED = 20
_OPTIONS = {
    "user": "--user-col",
    "item": "--item-col",
    "rating": "--rating-col",
    "timestamp": "--time-col",
}


@dataclass(frozen=True, slots=True)
class Request:
    """What the caller said about the file: names of columns, and how to take it."""

    user: str | None = None
    item: str | None = None
    rating: str | None = None
    timestamp: str | None = None
    sep: str | None = None
    encoding: str | None = None
    implicit: bool = False

    def column_for(self, role: str) -> str | None:
        """Return the column that was asked for in a role."""
        named: dict[str, str | None] = {
            "user": self.user,
            "item": self.item,
            "rating": self.rating,
            "timestamp": self.timestamp,
        }
        return named[role]

    @property
    def asked(self) -> frozenset[str]:
        """The columns that were asked for."""
        named = (self.column_for(role) for role in _OPTIONS)
        return frozenset(name for name in named if name is not None)


@dataclass(frozen=True, slots=True)
class Roles:
    """Positions of the columns that were chosen."""

    user: int
    item: int
    rating: int | None
    timestamp: int | None

    def items(self) -> list[tuple[str, int]]:
        """Return (role, position) for each role that is filled."""
        pairs = [("user", self.user), ("item", self.item)]
        pairs += [("rating", self.rating)] if self.rating is not None else []
        pairs += [("timestamp", self.timestamp)] if self.timestamp is not None else []
        return pairs


def choose_columns(names: Sequence[str], request: Request, where: str) -> Roles:
    """Choose the columns by what was asked for, and by the usual names for the rest.

    Parameters
    ----------
    names : sequence of str
        Column names; may repeat.
    request : Request
    where : str
        What messages call the file.

    Raises
    ------
    DataError
        If a column that was asked for is missing, two have an equal claim to a role, two roles
        are given the same column, or there is no user or item column.
    """
    chosen: dict[str, int | None] = {}
    for role in _OPTIONS:
        wanted = request.column_for(role)
        if wanted is not None:
            chosen[role] = _find_named(wanted, names, where)
    _check_distinct(chosen, names, where)
    for role in _OPTIONS:
        if role not in chosen:
            chosen[role] = _find_usual(role, names, set(chosen.values()), where)
    user, item = chosen["user"], chosen["item"]
    if user is None or item is None:
        raise DataError(_what_is_missing(chosen, names, where))
    return Roles(user, item, None if request.implicit else chosen["rating"], chosen["timestamp"])


def _what_is_missing(chosen: dict[str, int | None], names: Sequence[str], where: str) -> str:
    missing = [role for role in ("user", "item") if chosen[role] is None]
    which = "it is" if len(missing) == 1 else "they are"
    if len(missing) > 1 and chosen["rating"] is None and len(names) > len(missing):
        missing.append("rating")
    columns = " and no ".join(missing[:2])
    options = [_OPTIONS[role] for role in missing]
    listed = " and ".join(filter(None, [", ".join(options[:-1]), options[-1]]))
    said = (
        f"{where} has no {columns} column; its columns are {_quoted(names)}. Say which {which} "
        f"with {listed}."
    )
    if not names:
        return f"{where} has no columns."
    if title_columns(names):
        said += " (It looks like a table of titles, which is read along with a file of ratings.)"
    return said + wide_hint(len(names))


def wide_hint(width: int) -> str:
    """Return what to say of a table with more columns than ratings have: it may be a matrix."""
    if width <= _LISTED:
        return ""
    return (
        " If it has a column for each item, make a row for each rating of it first, with a user, "
        "an item and the rating (`melt` in pandas, `unpivot` in polars)."
    )


def usual_column(names: Sequence[str], role: str, where: str) -> str | None:
    """Return the column whose name has the best claim to a role, if there is one.

    Raises
    ------
    DataError
        If two have an equal claim.
    """
    place = _find_usual(role, names, set(), where)
    return None if place is None else names[place]


def is_known_name(name: str) -> bool:
    """Return whether a name is one of the usual column names."""
    plain = _normalised(name)
    return any(plain in tier for tiers in _ALIASES.values() for tier in tiers)


def title_columns(names: Sequence[str]) -> tuple[int, int] | None:
    """Return the positions of the item and title columns of a file of titles, if it has both."""
    try:
        item = _find_usual("item", names, set(), "")
        title = _find_usual("title", names, {item}, "")
    except DataError:
        return None
    return None if item is None or title is None else (item, title)


def _find_named(wanted: str, names: Sequence[str], where: str) -> int:
    exact = [place for place, name in enumerate(names) if name == wanted]
    alike = [place for place, name in enumerate(names) if _normalised(name) == _normalised(wanted)]
    found = exact or alike
    if len(found) == 1:
        return found[0]
    if not found:
        raise DataError(f"{where} has no column {wanted!r}; its columns are {_quoted(names)}.")
    raise DataError(f"{where} has {len(found)} columns named {wanted!r}; rename one of them.")


def _find_usual(role: str, names: Sequence[str], taken: set[int | None], where: str) -> int | None:
    """Return the position of the column whose name has the best claim to a role."""
    for tier in _ALIASES[role]:
        found = [p for p, name in enumerate(names) if p not in taken and _normalised(name) in tier]
        if len(found) == 1:
            return found[0]
        if found:
            either = " and ".join(repr(names[place]) for place in found)
            raise DataError(
                f"{where} has several columns that may be the {role}: {either}; say which it is "
                f"with {_OPTIONS.get(role, '')}."
            )
    return None


def _check_distinct(chosen: dict[str, int | None], names: Sequence[str], where: str) -> None:
    taken: dict[int | None, str] = {}
    for role, place in chosen.items():
        if place in taken:
            name = names[place] if place is not None else ""
            raise DataError(f"{where}: column {name!r} cannot be both {taken[place]} and {role}.")
        taken[place] = role


def _normalised(name: str) -> str:
    return re.sub(r"[\W_]+", "", name.casefold())


def _quoted(names: Sequence[str]) -> str:
    more = f" and {len(names) - _LISTED:,} more" if len(names) > _LISTED else ""
    return ", ".join(repr(shortened(name)) for name in names[:_LISTED]) + more

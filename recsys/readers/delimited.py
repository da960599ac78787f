"""Delimited text, read at once by polars, and carefully in Python where something is wrong.

polars takes all columns as text and casts them in the same streaming pass, so that only numbers
are kept in memory. Whatever it cannot read, or reads as null, is read again record by record:
that finds the first bad line, or shows that there is none.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import polars as pl

from recsys.errors import DataError
from recsys.memory import available_memory, over_memory
from recsys.readers.careful import line_of_row, read_carefully
from recsys.readers.columns import Request, Roles, choose_columns, is_known_name
from recsys.readers.detect import Layout, separator_name
from recsys.readers.raw import (
    RawRatings,
    describe_roles,
    integers_if_canonical,
    without_foreign_time,
)
from recsys.readers.sources import DataFile

__all__ = ["read_delimited"]

Kind = Literal["id", "integer", "float", "text"]

_BLOCK = 1 << 22
_ROW = 32  # bytes: two ids, and an index and a value in the matrix, with room to sort them
_CANONICAL = re.compile(r"0|-?[1-9][0-9]{0,18}")
_INTEGER = re.compile(r"-?\d{1,18}")


def read_delimited(data: DataFile, layout: Layout, request: Request) -> RawRatings:
    """Read a delimited file.

    Raises
    ------
    DataError
        Naming file and line, if a row is ragged, an id is missing, a rating is not a finite
        number, or the text is not UTF-8; also if columns are missing or ambiguous, or there are
        no rows.
    """
    roles = _roles_of(layout, request, data.name)
    if not layout.sample:
        raise DataError(f"{data.name} has a header but no rows.")
    times = [] if roles.time is None else _sampled(layout, roles.time)
    roles, remarks = without_foreign_time(roles, layout.names, times, request)
    columns = _read_fast(data, layout, roles)
    if columns is None:
        columns = read_carefully(data, layout, roles)
    said = [separator_name(layout.separator), describe_roles(roles, layout.names, remarks)]
    if not layout.has_header:
        said.insert(1, "no header")

    def place(row: int) -> str:
        return f"{data.name}, line {line_of_row(data, layout, row)}"

    return RawRatings(columns, ", ".join(said), place)


def _roles_of(layout: Layout, request: Request, where: str) -> Roles:
    """Choose the columns; if no name is a usual one, say that it may be no header."""
    try:
        return choose_columns(layout.names, request, where)
    except DataError as error:
        if not layout.has_header or request.asked or any(map(is_known_name, layout.names)):
            raise
        hint = "If these are no names, but the first row: by number, such as --user-col 1."
        raise DataError(f"{error} {hint}") from None


def _read_fast(data: DataFile, layout: Layout, roles: Roles) -> dict[str, pl.Series] | None:
    """Read with polars; None if it fails, or something is null that should not be."""
    if any('"' in name or "\ufffd" in name for name in layout.names):
        return None  # a stray quote or another encoding: what follows cannot be trusted either
    kinds = {role: _kind_of(role, _sampled(layout, place)) for role, place in roles.items()}
    survey = _survey(data.path, layout.separator[:1].encode())
    reason = over_memory(survey.lines, survey.lines * _ROW, available_memory())
    if reason is not None:
        raise DataError(f"{data.name} {reason}")
    columns = _scan(data, layout, roles, kinds, survey)
    if columns is None:
        return None
    strings = [r for r in ("user", "item") if kinds[r] == "id" and columns[r].null_count()]
    if strings:
        kinds |= dict.fromkeys(strings, "text")
        columns = _scan(data, layout, roles, kinds, survey)
    if columns is None or any(column.null_count() for column in columns.values()):
        return None
    return columns | {role: integers_if_canonical(columns[role]) for role in strings}


class _Survey(NamedTuple):
    """What a file has: lines, separators (characters, in quotes too), and any quotes."""

    lines: int
    separators: int
    quoted: bool


def _survey(path: Path, separator: bytes) -> _Survey:
    """Count the lines and separators of a file, at the speed of reading it."""
    lines, separators, quoted, last = 0, 0, False, b"\n"
    with path.open("rb") as stream:
        while block := stream.read(_BLOCK):
            lines += block.count(b"\n")
            separators += block.count(separator)
            quoted = quoted or b'"' in block
            last = block[-1:]
    return _Survey(lines + (last != b"\n"), separators, quoted)


def _scan(
    data: DataFile, layout: Layout, roles: Roles, kinds: dict[str, Kind], survey: _Survey
) -> dict[str, pl.Series] | None:
    """Read the columns as the given kinds; null where a value is of another kind.

    All columns are touched, so that polars notices rows that are too long; `_is_whole` notices
    the rest.
    """
    step = len(layout.separator)  # "::" reads as ":" with an empty column between each two
    every = [pl.col(str(column)) for column in range((len(layout.names) - 1) * step + 1)]
    texts = {role: every[place * step] for role, place in roles.items()}
    if "rating" in texts and layout.decimal_comma:
        texts["rating"] = texts["rating"].str.replace(",", ".", literal=True)
    casts = [_cast(text, kinds[role]).alias(role) for role, text in texts.items()]
    between = [column for number, column in enumerate(every) if number % step]
    try:
        frame = (
            pl.scan_csv(
                data.path,
                has_header=False,
                separator=layout.separator[0],
                quote_char='"' if step == 1 and survey.quoted else None,
                skip_rows=layout.skip,
                schema={str(column): pl.String for column in range(len(every))},
                glob=False,
            )
            .select(
                *casts,
                pl.all_horizontal(column.is_null() for column in every).alias("blank"),
                pl.any_horizontal(pl.lit(False), *(c.is_not_null() for c in between)).alias("odd"),
            )
            .collect(engine="streaming")
        )
    except pl.exceptions.PolarsError:
        return None
    if frame["odd"].any() or not _is_whole(frame, layout, len(every), survey):
        return None
    frame = frame.filter(~frame["blank"]) if frame["blank"].any() else frame
    return {role: frame[role] for role, _ in roles.items()} if len(frame) else None


def _is_whole(frame: pl.DataFrame, layout: Layout, width: int, survey: _Survey) -> bool:
    """Return whether there are as many rows as lines, and as many separators as they need.

    polars lets a stray quote swallow line ends, and takes missing fields for null, in silence.
    (A file with line ends inside quotes is left to the careful reader by this, in vain.)
    """
    if len(frame) != survey.lines - layout.skip:
        return False
    rows = len(frame) - int(frame["blank"].sum()) + layout.has_header
    return survey.quoted or survey.separators == rows * (width - 1)


def _cast(text: pl.Expr, kind: Kind) -> pl.Expr:
    if kind == "text":
        stripped = text.str.strip_chars()
        return pl.when(stripped.str.len_bytes() > 0).then(stripped)
    if kind == "float":
        return text.cast(pl.Float32, strict=False)
    number = text.cast(pl.Int64, strict=False)
    return number if kind == "integer" else pl.when(_is_as_printed(text)).then(number)


def _is_as_printed(integer: pl.Expr) -> pl.Expr:
    """Return whether an integer is written as it would be printed: "7", not "007" or "+7"."""
    text = integer.str
    padded = text.starts_with("0") & (text.len_bytes() > 1)
    return ~(padded | text.starts_with("+") | text.starts_with("-0"))


def _kind_of(role: str, texts: Sequence[str]) -> Kind:
    """Return what a column looks like in the sample."""
    if role == "rating":
        return "float"
    if role == "timestamp":
        return "integer" if all(_INTEGER.fullmatch(text) for text in texts) else "text"
    return "id" if all(_CANONICAL.fullmatch(text) for text in texts) else "text"


def _sampled(layout: Layout, place: int) -> list[str]:
    """Return the values of a column in the sample, as far as rows have it."""
    return [row[place].strip() for row in layout.sample if place < len(row)]

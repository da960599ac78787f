"""LightGCN lines: a user and the user's items, all integers, with spaces between."""

from __future__ import annotations

from itertools import accumulate

import polars as pl

from recsys.errors import DataError
from recsys.readers.sources import DataFile
from recsys.readers.table import RawRatings, decoded_lines

__all__ = ["read_lightgcn"]

_NO_SEPARATOR = "\x1f"  # polars reads whole lines when its separator does not occur


def read_lightgcn(data: DataFile) -> RawRatings:
    """Read implicit feedback; a line with a user alone is a user without items.

    Raises
    ------
    DataError
        Naming file and line, if something is not an integer or not UTF-8.
    """
    try:
        frame = pl.read_csv(
            data.path,
            has_header=False,
            separator=_NO_SEPARATOR,
            quote_char=None,
            schema={"line": pl.String},
            glob=False,
        )
    except pl.exceptions.PolarsError:
        raise DataError(_first_problem(data)) from None
    lines = frame["line"].str.strip_chars()
    tokens = lines.filter(lines.str.len_bytes() > 0).str.replace_all(r"\s+", " ").str.split(" ")
    numbers = tokens.cast(pl.List(pl.Int64), strict=False)
    if numbers.list.eval(pl.element().is_null()).list.any().any():
        raise DataError(_first_problem(data))
    user, items = numbers.list.first(), numbers.list.slice(1)
    busy = items.list.len() > 0
    pairs = pl.DataFrame({"user": user, "item": items}).filter(busy).explode("item")
    idle = user.filter(~busy)
    layout = "LightGCN lines (user item item ...): implicit feedback"
    if len(idle):
        layout += f", {len(idle):,} user{'s' * (len(idle) > 1)} without items"

    def place(row: int) -> str:
        lengths = (max(len(line.split()) - 1, 0) for line in decoded_lines(data.path, data.name))
        line = next(number for number, end in enumerate(accumulate(lengths), 1) if row < end)
        return f"{data.name}, line {line}"

    return RawRatings({"user": pairs["user"], "item": pairs["item"]}, layout, place, idle)


def _first_problem(data: DataFile) -> str:
    """Return a sentence on the first token that is not an integer."""
    for number, line in enumerate(decoded_lines(data.path, data.name), 1):
        for token in line.split():
            if not token.isascii() or not token.removeprefix("-").isdecimal() or len(token) > 18:
                return (
                    f"{data.name}, line {number}: {token[:40]!r} is not an integer; in LightGCN "
                    "lines a user and its items are integers."
                )
    return f"{data.name} cannot be read as LightGCN lines."

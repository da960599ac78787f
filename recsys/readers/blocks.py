"""Blocks of delimited text: parsed by polars, several at once, and checked by their counts."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np
import polars as pl

from lowrank.kernels import resolve_threads
from lowrank.kernels.entries import numbers_in_text
from recsys.data.batches import Column
from recsys.data.columns import Roles
from recsys.data.ids import MISSING_IDS

if TYPE_CHECKING:
    from recsys.readers.delimited import Layout
    from recsys.readers.sources import DataFile

__all__ = ["COMMA", "COMMA_WITH", "Kind", "parse"]

Kind: TypeAlias = 'Literal["id", "name", "integer", "float", "text"] | str'
"""Kind of a column: a name is an id but not an integer, a format with % is of times."""

COMMA_WITH = ";"
"""Separator with which decimals may have a comma, as spreadsheets write them."""

COMMA = r"^([-+]?\d*),(\d+)$"
"""A number with a decimal comma."""

_BLOCK = 1 << 22  # bytes of text that are parsed at once
_NUMBERS: dict[Kind, type[np.number]] = {
    "id": np.int64,
    "integer": np.int64,
    "float": np.float32,
}
_Columns: TypeAlias = Mapping[str, Column]


def parse(
    data: DataFile,
    layout: Layout,
    roles: Roles,
    kinds: Mapping[str, Kind],
    take: Callable[[_Columns], object],
) -> bool:
    """Read columns as the given kinds, null where a value is of another; False if in doubt.

    `take` gets the columns of each block, in the order of the file, without blank rows. There is
    doubt where polars fails, or its rows are not as many as the lines and separators of a block
    tell: it lets a stray quote swallow line ends, and takes missing fields for null. (So a file
    with line ends inside quotes is always in doubt.)
    """
    parser = _Parser(layout, roles, dict(kinds))
    size, n_bytes, n_rows, n_filled = data.path.stat().st_size, 0, 0, 0
    for found in _in_turns(parser.parsed, _blocks(data.path, layout.skip)):
        if found is None:
            return False
        columns, length = found
        n_bytes += length[0]
        n_rows += length[1]
        if filled := len(next(iter(columns.values()), ())):
            take(columns)
        n_filled += filled
        if data.on_rows is not None:
            data.on_rows(n_rows, n_rows * size // max(n_bytes, 1))
    if n_filled and data.on_rows is not None:
        data.on_rows(n_rows, n_rows)
    return n_filled > 0


def _blocks(path: Path, skip: int) -> Iterator[bytes]:
    """Yield a file in blocks of whole lines, after the first ones."""
    with path.open("rb") as stream:
        for _ in range(skip):
            stream.readline()
        begun: list[bytes] = []
        while block := stream.read(_BLOCK):
            end = block.rfind(b"\n") + 1
            if end:
                yield b"".join([*begun, block[:end]])
                begun = []
            begun.append(block[end:])
        if last := b"".join(begun):
            yield last


_Found: TypeAlias = "tuple[_Columns, tuple[int, int]] | None"


def _in_turns(work: Callable[[bytes], _Found], blocks: Iterator[bytes]) -> Iterator[_Found]:
    """Yield the results of a few blocks at a time, in their order."""
    waiting: deque[Future[_Found]] = deque()
    threads = resolve_threads(None)
    with ThreadPoolExecutor(threads) as pool:
        for block in blocks:
            waiting.append(pool.submit(work, block))
            if len(waiting) > threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


@dataclass(frozen=True)
class _Parser:
    """Settings of a file. A separator "::" is ":" with an empty column between each two others."""

    layout: Layout
    roles: Roles
    kinds: dict[str, Kind]

    def parsed(self, block: bytes) -> _Found:
        """Return the columns of a block, and its bytes and rows; None if in doubt."""
        length = len(block), block.count(b"\n") + (not block.endswith(b"\n"))
        block = block.lstrip(b"\r\n")  # blank lines, which polars does not count at the beginning
        if not block:
            return {}, length
        n_rows = block.count(b"\n") + (not block.endswith(b"\n"))
        columns = self._plain_numbers(block, n_rows)
        roles = [role for role in self.roles if role not in columns]
        if not roles:
            return columns, length
        mark, is_quoted = self.layout.separator[0].encode(), b'"' in block
        frame = self._frame(block, is_quoted, roles)
        if frame is None or len(frame) != n_rows or frame["odd"].any():
            return None
        n_blank = int(frame["blank"].sum())
        step = len(self.layout.separator)
        n_separators = (n_rows - n_blank) * (len(self.layout.names) - 1) * step
        if not is_quoted and block.count(mark) != n_separators:
            return None
        frame = frame.filter(~frame["blank"]) if n_blank else frame
        return columns | {role: frame[role] for role in roles}, length

    def _plain_numbers(self, block: bytes, n_rows: int) -> dict[str, Column]:
        """Return the columns of numbers, if all are plain."""
        places = {place: role for role, place in self.roles.items() if self.kinds[role] in _NUMBERS}
        kinds = {place: _NUMBERS[self.kinds[places[place]]] for place in sorted(places)}
        layout = self.layout
        found = numbers_in_text(block, layout.separator, len(layout.names), kinds, n_rows)
        named = [places[place] for place in kinds]
        return {} if found is None else dict(zip(named, found, strict=True))

    def _frame(self, block: bytes, is_quoted: bool, roles: list[str]) -> pl.DataFrame | None:
        """Read all columns, so that polars notices rows that are too long; None if it fails."""
        layout, step = self.layout, len(self.layout.separator)
        every = [pl.col(str(column)) for column in range((len(layout.names) - 1) * step + 1)]
        with_commas = layout.separator == COMMA_WITH
        values = {
            role: _cast(every[self.roles[role] * step], self.kinds[role], with_commas)
            for role in roles
        }
        between = [column.is_not_null() for n, column in enumerate(every) if n % step]
        plan = pl.scan_csv(
            block,
            has_header=False,
            separator=layout.separator[0],
            quote_char='"' if step == 1 and is_quoted else None,
            schema=dict.fromkeys(map(str, range(len(every))), pl.String),
        ).select(
            *(value.alias(role) for role, value in values.items()),
            pl.all_horizontal(column.is_null() for column in every).alias("blank"),
            pl.any_horizontal(pl.lit(False), *between).alias("odd"),
        )
        try:
            return plan.collect()
        except pl.exceptions.PolarsError:
            return None


def _cast(text: pl.Expr, kind: Kind, with_commas: bool) -> pl.Expr:
    stripped = text.str.strip_chars()
    if kind == "text":
        return pl.when(stripped.str.len_bytes() > 0).then(stripped)
    if kind == "name":
        return pl.when(~stripped.is_in(MISSING_IDS)).then(stripped)
    if kind == "float":
        pointed = text.str.replace(COMMA, "$1.$2") if with_commas else text
        return pointed.cast(pl.Float32, strict=False)
    if "%" in kind:
        return stripped.str.to_datetime(kind, time_unit="us", strict=False)
    number = text.cast(pl.Int64, strict=False)
    if kind == "integer":
        return number
    # An id is an integer only if it is written as it would be printed: "7", not "007" or "+7".
    padded = text.str.starts_with("0") & (text.str.len_bytes() > 1)
    return pl.when(~(padded | text.str.starts_with("+") | text.str.starts_with("-0"))).then(number)

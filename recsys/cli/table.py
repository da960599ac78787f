"""Frames as tables for the terminal, drawn by rich."""

from __future__ import annotations

import io
import math
import shutil
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import polars as pl
    from rich.text import Text

__all__ = ["render"]

_CONTROL = dict.fromkeys([*range(32), *range(127, 160)], "\ufffd")


def render(frame: pl.DataFrame) -> str:
    """Draw `frame` to the width of the terminal: numbers to the right, long texts cut with "…"."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1), show_edge=False)
    columns = []
    for series in frame.get_columns():
        numeric = series.dtype.is_numeric()
        table.add_column(
            series.name,
            justify="right" if numeric else "left",
            no_wrap=numeric,  # texts make room for numbers
        )
        columns.append(_cells(series))
    for row in zip(*columns, strict=True):
        table.add_row(*row)
    page = io.StringIO()
    width = shutil.get_terminal_size((80, 24)).columns
    Console(file=page, width=width, color_system=None, legacy_windows=False).print(table)
    return "".join(f"{line.rstrip()}\n" for line in page.getvalue().splitlines())


def _cells(series: pl.Series) -> list[Text]:
    from rich.text import Text

    values = series.to_list()
    if series.dtype.is_float():
        decimals = _decimals(values)
        return [Text(_number(value, decimals)) for value in values]
    return [Text(_plain(value), no_wrap=True, overflow="ellipsis") for value in values]


def _decimals(values: list[float | None]) -> int:
    """No decimals for whole numbers, else as many as keep four digits or so of the largest."""
    finite = [value for value in values if value is not None and math.isfinite(value)]
    if all(value == round(value) for value in finite):
        return 0
    largest = max(map(abs, finite))
    return 1 if largest >= 1000 else 2 if largest >= 100 else 4


def _number(value: float | None, decimals: int) -> str:
    return "-" if value is None or math.isnan(value) else f"{value:.{decimals}f}"


def _plain(value: Any) -> str:
    """Text in which nothing moves the cursor of the terminal."""
    return "" if value is None else str(value).translate(_CONTROL)

"""An evaluation as tables for the terminal: a row per metric, a column per model."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import polars as pl

    from recsys.evaluation import Evaluation

__all__ = ["differences", "legend", "legend_of_differences", "tables"]

_GAP = 3  # between columns
_DECIMALS = (4, 3)  # of intervals: the most that fit
_MARK = "*"
_MEGABYTE = 2**20


def tables(found: Evaluation) -> list[pl.DataFrame]:
    """Return the table, with intervals if they fit the terminal, or parts of it that fit."""
    import polars as pl

    width = _terminal()
    labels = found.table["model"].to_list()
    for decimals in _DECIMALS if found.settings.resamples else ():
        whole = _columns(found, decimals)
        if _width(whole, labels) <= width:
            return [pl.DataFrame({name: whole[name] for name in ["metric", *labels]})]
    plain = _columns(found, None)
    parts: list[list[str]] = [[]]
    for label in labels:
        if parts[-1] and _width(plain, [*parts[-1], label]) > width:
            parts.append([])
        parts[-1].append(label)
    return [pl.DataFrame({name: plain[name] for name in ["metric", *part]}) for part in parts]


def legend(found: Evaluation) -> str:
    """Explain the table in one line."""
    level = 1 - found.settings.confidence
    needed = _width(_columns(found, _DECIMALS[-1]), found.table["model"].to_list())
    said = f"[{found.settings.confidence:.0%} interval over users]"
    if needed > _terminal():
        said = f"(intervals need {needed} columns, or --json)"
    if found.comparisons.height:
        said += (
            f"  {_MARK} worse than the best of its row (paired sign-flip test, Holm, "
            f"p < {level:.2g})"
        )
    return said if found.settings.resamples else ""


def differences(found: Evaluation) -> pl.DataFrame:
    """Return the comparisons as people read them: all that fits the terminal."""
    import polars as pl

    whole = _differences(found)
    interval = next(name for name in whole if name.endswith("interval"))
    for left_out in ((), ("p",), (interval,), ("p", interval)):
        fitting = {name: cells for name, cells in whole.items() if name not in left_out}
        if _table_width(fitting) <= _terminal():
            break
    return pl.DataFrame(fitting)


def legend_of_differences(found: Evaluation) -> str:
    """Explain the table of differences in one line."""
    level = 1 - found.settings.confidence
    said = (
        f"p: paired sign-flip test over users; adjusted by Holm's method over the pairs; "
        f"{_MARK} below {level:.2g}"
    )
    needed = _table_width(_differences(found))
    return said if needed <= _terminal() else f"{said} (all columns need {needed}, or --json)"


def _differences(found: Evaluation) -> dict[str, list[str]]:
    """Return the texts of the table of differences by column."""
    from recsys.evaluation.reading import named

    level = 1 - found.settings.confidence
    rows = found.comparisons.to_dicts()
    return {
        "metric": [named(row["metric"], found) for row in rows],
        "model - other": [f"{row['model']} - {row['other']}" for row in rows],
        "difference": [f"{row['difference']:+.4f}" for row in rows],
        f"{found.settings.confidence:.0%} interval": [
            f"[{row['low']:+.4f}, {row['high']:+.4f}]" for row in rows
        ],
        "p": [_p(row["p_value"]) for row in rows],
        "adjusted": [_p(row["adjusted"]) + f" {_MARK}" * (row["adjusted"] < level) for row in rows],
    }


def _columns(found: Evaluation, decimals: int | None) -> dict[str, list[str]]:
    """Return the texts of the table by column; `decimals` are those of the intervals, if any."""
    from recsys.evaluation.reading import named, significantly_worse

    names = found.metrics.select("metric", "n").unique(maintain_order=True).rows()
    names.sort(key=lambda name: found.table.columns.index(name[0]))
    worse = significantly_worse(found)
    cells = {
        (row["model"], row["metric"]): _cell(row, decimals) for row in found.metrics.to_dicts()
    }
    columns = {"metric": [named(name, found) for name, _ in names]}
    columns["metric"] += ["fit, seconds", "recommend, seconds", "memory, MB"]
    for row in found.table.to_dicts():
        label = row["model"]
        columns[label] = [
            cells.get((label, name), "-") + _MARK * ((label, name) in worse) for name, _ in names
        ]
        memory = row["peak_memory"]
        columns[label] += [
            f"{row['fit_seconds']:.4f}",
            f"{row['recommend_seconds']:.4f}",
            "-" if memory is None else f"{memory / _MEGABYTE:.1f}",
        ]
    return columns


def _cell(row: dict[str, float], decimals: int | None) -> str:
    value, low, high = row["value"], row["low"], row["high"]
    fewer = int(abs(value) >= 10)
    text = f"{value:.{4 - fewer}f}"
    if decimals is None or low is None or high is None:
        return text
    return f"{text} [{low:.{decimals - fewer}f}, {high:.{decimals - fewer}f}]"


def _terminal() -> int:
    return shutil.get_terminal_size((80, 24)).columns


def _p(value: float) -> str:
    return f"{value:.4f}"


def _width(columns: dict[str, list[str]], labels: list[str]) -> int:
    return _table_width({name: columns[name] for name in ["metric", *labels]})


def _table_width(columns: dict[str, list[str]]) -> int:
    widest = (max(len(name), *map(len, cells)) for name, cells in columns.items())
    return sum(widest) + _GAP * (len(columns) - 1)

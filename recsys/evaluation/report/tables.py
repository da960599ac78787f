"""The tables of a report, as HTML; every text from outside is escaped here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import polars as pl

from recsys.evaluation.results import named

if TYPE_CHECKING:
    from recsys.evaluation.results import Evaluation

__all__ = ["comparison_table", "facts_table", "metric_table", "plain", "table", "values_table"]

_ARROWS = {1: "↑", -1: "↓", 0: ""}


def table(head: Sequence[str], rows: Iterable[Sequence[str]], numbers: int = 0) -> str:
    """Return a table of cells that are HTML already; the last `numbers` columns are numbers.

    A cell that begins with ``<td`` is taken as it is.
    """
    left = len(head) - numbers

    def cell(place: int, text: str) -> str:
        if text.startswith("<td"):
            return text
        tag = "th" if place == 0 else "td"
        kind = ' class="number"' if place >= left else ""
        return f"<{tag}{kind}>{text}</{tag}>"

    heads = "".join(
        f'<th class="number">{name}</th>' if place >= left else f"<th>{name}</th>"
        for place, name in enumerate(head)
    )
    lines = "".join(
        f"<tr>{''.join(cell(place, text) for place, text in enumerate(row))}</tr>" for row in rows
    )
    return (
        f'<div class="scroll"><table><thead><tr>{heads}</tr></thead>'
        f"<tbody>{lines}</tbody></table></div>"
    )


def facts_table(facts: Mapping[str, int | str]) -> str:
    """Return names and values."""
    rows = "".join(
        f"<tr><th>{escape(name)}</th><td>{escape(_fact(value))}</td></tr>"
        for name, value in facts.items()
    )
    return f'<div class="scroll"><table><tbody>{rows}</tbody></table></div>'


def metric_table(found: Evaluation, metrics: Sequence[str], worse: set[tuple[str, str]]) -> str:
    """Return a row per metric and a column per model; the best of a row is marked."""
    labels = found.table["model"].to_list()
    cells = {(row["model"], row["metric"]): row for row in found.metrics.to_dicts()}
    rows = []
    for metric in metrics:
        direction = found.measured[metric.partition("@")[0]].direction
        mine = {label: cells[label, metric] for label in labels if (label, metric) in cells}
        best = max((row["value"] * direction for row in mine.values()), default=0.0)
        row = [f'{escape(named(metric, found))} <span class="arrow">{_ARROWS[direction]}</span>']
        for label in labels:
            if label not in mine:
                row.append("–")
                continue
            value = mine[label]
            is_best = direction and len(mine) > 1 and value["value"] * direction == best
            kind = "number best" if is_best else "number"
            row.append(f'<td class="{kind}">{_value(value, (label, metric) in worse)}</td>')
        rows.append(row)
    for name, column in (
        ("fit, seconds", "fit_seconds"),
        ("recommend, seconds", "recommend_seconds"),
    ):
        rows.append([name, *(f"{value:.3f}" for value in found.table[column])])
    return table(["", *map(escape, labels)], rows, len(labels))


def comparison_table(found: Evaluation, metrics: Sequence[str]) -> str:
    """Return a row per pair of models and metric."""
    level = 1 - found.settings.confidence
    rows = []
    for row in found.comparisons.filter(pl.col("metric").is_in(list(metrics))).to_dicts():
        kind = "number best" if row["adjusted"] < level else "number"
        verdict = f'<td class="{kind}">{"yes" if row["adjusted"] < level else "no"}</td>'
        rows.append(
            [
                escape(named(row["metric"], found)),
                f"{escape(row['model'])} − {escape(row['other'])}",
                plain(row["difference"], sign=True),
                f"{plain(row['low'], sign=True)} to {plain(row['high'], sign=True)}",
                _p(row["p_value"]),
                _p(row["adjusted"]),
                verdict,
            ]
        )
    interval = f"{found.settings.confidence:.0%} interval"
    head = ["metric", "models", "difference", interval, "p", "adjusted p", "significant"]
    return table(head, rows, 5)


def values_table(found: Evaluation) -> str:
    """Return all values there are, a row each."""
    rows = [
        [
            escape(named(row["metric"], found)),
            escape(row["model"]),
            plain(row["value"]),
            _ends(row) or "–",
            f"{row['users']:,}",
        ]
        for row in found.metrics.sort("kind", "n", maintain_order=True).to_dicts()
    ]
    return table(["metric", "model", "value", "interval", "users"], rows, 3)


def plain(value: float, *, sign: bool = False) -> str:
    """Return a number with four decimals, fewer if it is large."""
    decimals = 4 if abs(value) < 10 else 2 if abs(value) < 1000 else 0
    text = f"{value:{'+' if sign else ''},.{decimals}f}"
    return text.replace("-", "−")


def _value(row: Mapping[str, Any], is_worse: bool) -> str:
    ends = _ends(row)
    interval = f'<span class="interval">{ends}</span>' if ends else ""
    return f"{plain(row['value'])}{'*' * is_worse}{interval}"


def _ends(row: Mapping[str, Any]) -> str:
    if row["low"] is None or row["high"] is None:
        return ""
    return f"{plain(row['low'])} to {plain(row['high'])}"


def _p(value: float) -> str:
    return f"{value:.4f}" if value >= 0.0001 else "< 0.0001"


def _fact(value: int | str) -> str:
    return f"{value:,}" if isinstance(value, int) else value

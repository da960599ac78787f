"""Facts by section, for `info` and `data inspect`: one nested dict, shown as rows or as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from recsys.cli.output import Output

__all__ = ["Facts", "write_facts"]

Facts = Mapping[str, Mapping[str, Any]]
"""Section -> name -> value."""


def write_facts(facts: Facts, output: Output, document: Mapping[str, Any] | None = None) -> None:
    """Write `facts` as rows section, name, value, or `document` (else the facts) as JSON."""
    import polars as pl

    rows = list(_rows(facts, with_all_sections=output.resolved_format != "table"))
    frame = pl.DataFrame(
        rows, schema=dict.fromkeys(("section", "name", "value"), pl.String), orient="row"
    )
    output.write_document(document or facts, frame)


def _rows(facts: Facts, *, with_all_sections: bool) -> Iterator[tuple[str, str, str]]:
    """Yield the rows; a table for people names a section once."""
    for section, values in facts.items():
        for position, (name, value) in enumerate(values.items()):
            shown = section if with_all_sections or position == 0 else ""
            yield shown, str(name), _text(value)


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return _number(value) if isinstance(value, float) else str(value)


def _number(value: float) -> str:
    if value == round(value):
        return f"{value:,.0f}"
    return f"{value:,.1f}" if abs(value) >= 1000 else f"{value:.4g}"

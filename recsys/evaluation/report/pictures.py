"""The charts of the page, section by section."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import polars as pl

from recsys.evaluation.report.charts import (
    Interval,
    Point,
    Spot,
    colour,
    interval_chart,
    line_chart,
    scatter_chart,
)
from recsys.evaluation.results import ERRORS, named

if TYPE_CHECKING:
    from recsys.evaluation.results import Evaluation

__all__ = [
    "activity",
    "intervals",
    "learning",
    "lengths",
    "popularity",
    "residuals",
    "shown_metrics",
]

_NOTHING = 0.001  # of the test ratings: tails of the residuals that are not drawn
_AGAINST = {
    "novelty": "bits; to the right: less known items",
    "coverage": "share of all items that are recommended",
    "popularity_bias": "above 0: more popular than what users rate",
}


def intervals(found: Evaluation) -> Iterator[str]:
    """Show each metric with its interval, a row per model."""
    charts, places = [], _places(found)
    for metric in shown_metrics(found):
        mine = found.metrics.filter(pl.col("metric") == metric).to_dicts()
        rows = [
            Interval(r["model"], places[r["model"]], r["value"], r["low"], r["high"]) for r in mine
        ]
        charts.append(interval_chart(f"{named(metric, found)}{_hint(found, metric)}", rows))
    yield from _section("Intervals", charts)


def lengths(found: Evaluation) -> Iterator[str]:
    """Show metrics against N, where there are several."""
    if len(found.settings.ns) < 2:
        return
    charts = []
    for kind in _ranked_kinds(found):
        series = {
            label: [Point(r["n"], r["value"], r["low"], r["high"]) for r in rows]
            for label, rows in _rows_by_model(
                found, found.metrics.filter(pl.col("kind") == kind).sort("n", maintain_order=True)
            ).items()
        }
        title = f"{named(kind.replace('_', ' '), found)}{_hint(found, kind)}"
        charts.append(
            line_chart(title, series, "N", from_zero=found.measured[kind].direction > 0, log=True)
        )
    yield from _section("By length of the recommendations", charts, found)


def popularity(found: Evaluation) -> Iterator[str]:
    """Show accuracy against what it may be bought with."""
    n = found.settings.ns[-1]
    accuracy = f"ndcg@{n}"
    values = {(r["model"], r["metric"]): r["value"] for r in found.metrics.to_dicts()}
    charts = []
    for kind, label in _AGAINST.items():
        other = f"{kind}@{n}"
        spots = [
            Spot(model, place, values[model, other], values[model, accuracy])
            for model, place in _places(found).items()
            if (model, other) in values and (model, accuracy) in values
        ]
        if spots:
            title = f"{named(accuracy, found)} against {other.replace('_', ' ')}"
            charts.append(scatter_chart(title, spots, label))
    yield from _section(
        "Accuracy and popularity",
        charts,
        found,
        said="A model that recommends what everybody knows can be accurate and of little use. Of "
        "models that are as accurate, the more novel and more varied one is the better.",
    )


def residuals(found: Evaluation) -> Iterator[str]:
    """Show how the errors of predicted ratings are distributed."""
    series = {}
    for label, rows in _rows_by_model(found, found.residuals).items():
        whole = sum(row["count"] for row in rows) or 1
        series[label] = [
            Point((row["low"] + row["high"]) / 2, row["count"] / whole) for row in rows
        ]
    far = max((abs(p.x) for each in series.values() for p in each if p.y >= _NOTHING), default=0.0)
    near = {label: [p for p in each if abs(p.x) <= far] for label, each in series.items()}
    if not any(near.values()):
        return
    title, axis = "Share of the test ratings", "predicted minus actual rating"
    chart = line_chart(title, near, axis, from_zero=True, marks=False)
    yield from _section("Rating residuals", [chart], found, present=near)


def learning(found: Evaluation) -> Iterator[str]:
    """Show what the models said of themselves after each sweep."""
    errors, objectives = {}, {}
    for label, steps in found.steps.items():
        known = [Point(s.step, s.train_rmse) for s in steps if s.train_rmse is not None]
        errors[label] = known
        values = [(s.step, s.objective) for s in steps if s.objective is not None]
        first = values[0][1] if values else 0.0
        objectives[label] = [Point(step, value / first) for step, value in values if first > 0]
    charts = [
        line_chart(title, each, "sweep")
        for title, each in (
            ("RMSE on the training ratings", errors),
            ("Objective, 1 after the first sweep", objectives),
        )
        if any(each.values())
    ]
    present = {label: [*errors[label], *objectives[label]] for label in errors}
    said = "Of the first fold." if len(found.splits) > 1 else ""
    yield from _section("Learning curves", charts, found, said=said, present=present)


def activity(found: Evaluation) -> Iterator[str]:
    """Show how many test ratings users have."""
    one = found.per_user.filter(pl.col("model") == found.per_user["model"][0])
    counts = one["ratings"].drop_nulls().sort().to_list()
    if len(counts) < 2 or counts[0] == counts[-1]:
        return
    marks = [round(i * (len(counts) - 1) / 60) for i in range(61)]
    points = [Point(i / (len(counts) - 1) * 100, counts[i]) for i in dict.fromkeys(marks)]
    axis = "users in percent, from the least active"
    chart = line_chart(
        "Test ratings of each user", {"users": points}, axis, from_zero=True, marks=False
    )
    yield f'<div class="charts"><figure>{chart}</figure></div>'


def shown_metrics(found: Evaluation) -> list[str]:
    """Return the metrics of ratings, and those of the longest recommendations."""
    n = found.settings.ns[-1]
    known = set(found.metrics["metric"])
    names = [*ERRORS, *(f"{kind}@{n}" for kind in found.measured if kind not in ERRORS)]
    return [name for name in names if name in known]


def _section(
    title: str,
    charts: Sequence[str],
    found: Evaluation | None = None,
    *,
    said: str = "",
    present: Mapping[str, Sequence[Point]] | None = None,
) -> Iterator[str]:
    """Yield charts under a heading, with a legend of the models that are present."""
    if not charts:
        return
    yield f"<h2>{escape(title)}</h2>"
    if said:
        yield f'<p class="note">{escape(said)}</p>'
    if found is not None:
        places = _places(found)
        yield _legend({m: place for m, place in places.items() if not present or present[m]})
    figures = "".join(f"<figure>{chart}</figure>" for chart in charts)
    yield f'<div class="charts">{figures}</div>'


def _legend(places: Mapping[str, int]) -> str:
    entries = "".join(
        f'<span><i class="{colour(place)}"></i>{escape(label)}</span>'
        for label, place in places.items()
    )
    return f'<div class="legend">{entries}</div>'


def _ranked_kinds(found: Evaluation) -> list[str]:
    known = set(found.metrics["kind"])
    return [kind for kind in found.measured if kind in known and kind not in ERRORS]


def _places(found: Evaluation) -> dict[str, int]:
    """Return the place of each model, which tells its colour."""
    return {label: place for place, label in enumerate(found.table["model"])}


def _rows_by_model(found: Evaluation, frame: pl.DataFrame) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of each model; all models in their order, so that colours agree."""
    rows: dict[str, list[dict[str, Any]]] = {label: [] for label in found.table["model"]}
    for row in frame.to_dicts():
        rows[row["model"]].append(row)
    return rows


def _hint(found: Evaluation, metric: str) -> str:
    return {1: " ↑", -1: " ↓", 0: ""}[found.measured[metric.partition("@")[0]].direction]

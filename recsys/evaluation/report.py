"""An evaluation as one HTML page that needs no other file: tables, charts, how to repeat it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from recsys.evaluation.results import (
    ERRORS,
    INTERVALS,
    TESTS,
    Evaluation,
    best_model,
    named,
    ranking,
    significantly_worse,
)

__all__ = ["html_report"]

_WIDTH, _HEIGHT = 420, 250  # of a chart
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 14, 34, 44  # margins
_NAMES, _ROW = 108, 24  # width of the names, and height of a row, of a chart of intervals
_CHARACTER = 6.7  # average width
_NEGLIGIBLE = 0.001  # share of the test ratings: tails of the residuals that are not drawn
_AGAINST = {
    "novelty": "bits; to the right: less known items",
    "coverage": "share of all items that are recommended",
    "popularity_bias": "above 0: more popular than the items that users rate",
}


def html_report(
    found: Evaluation,
    *,
    parameters: Mapping[str, Mapping[str, Any]] | None = None,
    command: str | None = None,
    versions: Mapping[str, str] | None = None,
) -> str:
    """Return an evaluation as an HTML page that needs no other file and no network.

    Parameters
    ----------
    found : Evaluation
        What `recsys.evaluation.evaluate` returned.
    parameters : mapping of str to mapping, optional
        The parameters of each model, by label.
    command : str, optional
        The command that repeats the evaluation.
    versions : mapping of str to str, optional
        Of programs and libraries.

    Returns
    -------
    str
        HTML, with all labels escaped.

    Raises
    ------
    ImportError
        If Jinja2 is not installed.

    Examples
    --------
    >>> import recsys
    >>> from recsys.evaluation import evaluate, random_split
    >>> ratings = recsys.read_ratings(recsys.sample_path())
    >>> found = evaluate(["popular", "bias"], random_split(ratings), n=[1, 10], resamples=100)
    >>> html_report(found)[:15]
    '<!doctype html>'
    """
    try:
        import jinja2
    except ImportError as error:
        raise ImportError(
            "A report needs Jinja2; install it with pip install 'lowrank-recsys[report]', or in a "
            "clone with pip install -e '.[report]'."
        ) from error
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("recsys.evaluation", "."),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {"plain": plain, "number": number, "cut": _cut}
    models = found.table["model"].to_list()
    last = found.settings.ns[-1]
    compared = set(found.comparisons["metric"])
    known = found.metrics["metric"].to_list()
    names = [n for n in dict.fromkeys(known) if n in ERRORS or n.endswith(f"@{last}")]
    headline = [n for n in ("rmse", f"recall@{last}", f"ndcg@{last}") if n in known]
    level = 1 - found.settings.confidence
    return environment.get_template("report.html.j2").render(
        found=found,
        settings=found.settings,
        models=models,
        title=f"Evaluation of {_listed(models) if len(models) <= 5 else f'{len(models)} models'}",
        held_out=f"{len(found.splits)} folds, each in turn"
        if len(found.splits) > 1
        else found.splits[0].description,
        verdicts=[v for v in (_verdict(found, metric) for metric in headline) if v],
        cells={(row["metric"], row["model"]): row for row in found.metrics.to_dicts()},
        values=found.metrics.sort("kind", "n", maintain_order=True).to_dicts(),
        names=names,
        best={name: best_model(found, name) for name in names},
        worse=significantly_worse(found),
        level=level,
        sections=_sections(found, names),
        activity=_activity(found),
        tests=TESTS[0].upper() + TESTS[1:],
        comparisons=found.comparisons.to_dicts(),
        headline=[name for name in headline if name in compared],
        rest=[name for name in names if name in compared and name not in headline],
        ranking=ranking(found),
        named=lambda metric: named(metric, found),
        arrow=lambda metric: {1: "↑", -1: "↓", 0: ""}[
            found.measured[metric.partition("@")[0]].direction
        ],
        intervals=INTERVALS,
        command=command,
        versions=dict(versions or {}),
        parameters={
            label: json.dumps(dict(values), ensure_ascii=False)
            for label, values in (parameters or {}).items()
        },
    )


def _verdict(found: Evaluation, metric: str) -> dict[str, Any] | None:
    """Return which model is best by a metric, and which are not significantly worse."""
    best = best_model(found, metric)
    values = found.metrics.filter(pl.col("metric") == metric)
    labels = values["model"].to_list()
    if best is None or len(labels) < 2:
        return None
    value = values.filter(pl.col("model") == best)["value"][0]
    verdict = ""
    if metric in set(found.comparisons["metric"]):
        worse = significantly_worse(found)
        close = [label for label in labels if label != best and (label, metric) not in worse]
        others = "the others" if len(labels) > 2 else "the other"
        verdict = (
            f"; not significantly better than {_listed(close)}"
            if close
            else f"; significantly better than {others}"
        )
    return {"metric": metric, "best": best, "value": value, "verdict": verdict}


def _sections(found: Evaluation, names: Sequence[str]) -> list[dict[str, Any]]:
    """Return the charts under their headings, those with content."""
    models = found.table["model"].to_list()
    rows = found.metrics.to_dicts()
    accuracy = f"ndcg@{found.settings.ns[-1]}"
    by_name = {(row["model"], row["metric"]): row for row in rows}

    def title(metric: str, text: str | None = None) -> str:
        direction = found.measured[metric.partition("@")[0]].direction
        return named(text or metric, found) + {1: " ↑", -1: " ↓", 0: ""}[direction]

    intervals = [
        _interval_chart(title(name), [(m, by_name.get((m, name))) for m in models])
        for name in names
    ]
    lengths = []
    for kind, metric in found.measured.items():
        curves = {
            model: [
                (row["n"], row["value"], row["low"], row["high"])
                for row in sorted(rows, key=lambda row: row["n"] or 0)
                if (row["model"], row["kind"]) == (model, kind)
            ]
            for model in models
        }
        if kind not in ERRORS and any(curves.values()) and len(found.settings.ns) > 1:
            name = title(kind, kind.replace("_", " "))
            lengths.append(_line_chart(name, curves, "N", metric.direction > 0, log=True))
    against = []
    for kind, label in _AGAINST.items():
        other = f"{kind}@{found.settings.ns[-1]}"
        spots = [
            (m, by_name[m, other]["value"], by_name[m, accuracy]["value"])
            for m in models
            if (m, other) in by_name and (m, accuracy) in by_name
        ]
        if spots:
            name = f"{named(accuracy, found)} against {other.replace('_', ' ')}"
            against.append(_scatter_chart(name, spots, label, models))
    shares: dict[str, list[tuple[float, ...]]] = {}
    for model in models:
        bins = found.residuals.filter(pl.col("model") == model)
        whole = bins["count"].sum() or 1
        shares[model] = [((b["low"] + b["high"]) / 2, b["count"] / whole) for b in bins.to_dicts()]
    far = max((abs(x) for s in shares.values() for x, y in s if y >= _NEGLIGIBLE), default=0.0)
    shares = {model: [p for p in points if abs(p[0]) <= far] for model, points in shares.items()}
    errors: dict[str, list[tuple[float, ...]]] = {}
    objectives: dict[str, list[tuple[float, ...]]] = {}
    for model, steps in found.steps.items():
        errors[model] = [(s.step, s.train_rmse) for s in steps if s.train_rmse is not None]
        values = [(s.step, s.objective) for s in steps if s.objective is not None]
        first = values[0][1] if values else 0.0
        objectives[model] = [(step, value / first) for step, value in values if first > 0]
    learning = {
        "RMSE on the training ratings": errors,
        "Objective, 1 after the first iteration": objectives,
    }
    sections: list[dict[str, Any]] = [
        {"title": "Intervals", "charts": intervals, "legend": []},
        {"title": "By length of the recommendations", "charts": lengths, "legend": models},
        {
            "title": "Accuracy and popularity",
            "charts": against,
            "legend": models,
            "note": "A model that recommends what everybody knows can be accurate and of little "
            "use. Of models that are as accurate, the more novel and more varied one is the "
            "better.",
        },
        {
            "title": "Rating residuals",
            "charts": [
                _line_chart(
                    "Share of the test ratings",
                    shares,
                    "predicted minus actual rating",
                    marks=False,
                )
            ]
            if any(shares.values())
            else [],
            "legend": [model for model in models if shares[model]],
        },
        {
            "title": "Learning curves",
            "charts": [
                _line_chart(name, each, "iteration", from_zero=False)
                for name, each in learning.items()
                if any(each.values())
            ],
            "legend": [m for m in models if errors[m] or objectives[m]],
            "note": "Of the first fold." if len(found.splits) > 1 else "",
        },
    ]
    places = {model: place for place, model in enumerate(models)}
    for section in sections:
        section["legend"] = [(model, places[model]) for model in section["legend"]]
    return [section for section in sections if section["charts"]]


def _activity(found: Evaluation) -> dict[str, Any] | None:
    """Return the chart of the number of test ratings per user."""
    one = found.per_user.filter(pl.col("model") == found.per_user["model"][0])
    counts = one["ratings"].drop_nulls().sort().to_list()
    if len(counts) < 2 or counts[0] == counts[-1]:
        return None
    marks = dict.fromkeys(round(i * (len(counts) - 1) / 60) for i in range(61))
    points = [(i / (len(counts) - 1) * 100, counts[i]) for i in marks]
    axis = "users in percent, from the least active"
    return _line_chart("Test ratings of each user", {"users": points}, axis, marks=False)


@dataclass(frozen=True)
class _Axis:
    """A map from values to pixels, with round numbers for its marks."""

    low: float
    high: float
    start: float
    end: float
    marks: Sequence[float]
    log: bool = False

    @classmethod
    def of(
        cls,
        values: Iterable[float | None],
        start: float,
        end: float,
        padding: float = 0.06,
        *,
        log: bool = False,
    ) -> _Axis:
        """Return the axis that shows all values, with some room at both ends."""
        known = [value for value in values if value is not None]
        low, high = min(known), max(known)
        room = (high - low) * padding
        if high - low <= 1e-9 * max(abs(low), abs(high), 1e-9):
            room = abs(low) * 0.1 or 1.0
        marks = sorted(set(known)) if log else None
        low, high = low if low == 0 or log else low - room, high + room
        return cls(low, high, start, end, ticks(low, high) if marks is None else marks, log)

    def __call__(self, value: float) -> float:
        if self.log:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 1)


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Return round numbers within an interval, about `most` of them and at least two.

    Examples
    --------
    >>> ticks(0.81, 0.97)
    [0.85, 0.9, 0.95]
    """
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = min(s for s in (power, 2 * power, 5 * power, 10 * power) if s >= rough * 0.8)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    decimals = max(0, 1 - math.floor(math.log10(step)))
    return [round(i * step, decimals) + 0.0 for i in range(first, last + 1)]


def _line_chart(
    title: str,
    series: Mapping[str, Sequence[Sequence[float | None]]],
    x_label: str,
    from_zero: bool = True,
    *,
    log: bool = False,
    marks: bool = True,
) -> dict[str, Any]:
    """Return a chart of one line per series of (x, y) or (x, y, low, high)."""
    points: list[Any] = [point for each in series.values() for point in each]
    ys = [value for point in points for value in point[1:]]
    x = _Axis.of((p[0] for p in points), _LEFT, _WIDTH - _RIGHT, 0.0, log=log)
    y = _Axis.of([0.0, *ys] if from_zero else ys, _HEIGHT - _BOTTOM, _TOP)
    chart = {"kind": "line", "title": title, "width": _WIDTH, "height": _HEIGHT, "x": x, "y": y}
    return chart | {"series": series, "x_label": x_label, "dots": marks}


def _interval_chart(title: str, rows: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Return a chart of a row per model, with a dot and the line of its interval."""
    places = [(place, model, row) for place, (model, row) in enumerate(rows) if row is not None]
    ends = [row[key] for _, _, row in places for key in ("value", "low", "high")]
    bottom = _TOP + _ROW * len(places)
    x = _Axis.of(ends, _NAMES, _WIDTH - _RIGHT - 6)
    chart = {"kind": "interval", "title": title, "width": _WIDTH, "height": bottom + 26, "x": x}
    return chart | {"rows": places, "top": _TOP, "bottom": bottom, "row": _ROW, "room": _NAMES}


def _scatter_chart(
    title: str, spots: Sequence[tuple[str, float, float]], x_label: str, models: Sequence[str]
) -> dict[str, Any]:
    """Return a chart of points, with their names where there is room for them."""
    x = _Axis.of((spot[1] for spot in spots), _LEFT, _WIDTH - _RIGHT, 0.18)
    y = _Axis.of((spot[2] for spot in spots), _HEIGHT - _BOTTOM, _TOP, 0.12)
    taken = [(x(a) - 5, y(b) - 5, x(a) + 5, y(b) + 5) for _, a, b in spots]
    shown = []
    for name, a, b in spots:
        text = _cut(name, 120)
        width = len(text) * _CHARACTER
        corners = ((8, -7), (-8 - width, -7), (-width / 2, -19), (-width / 2, 5))
        boxes = [(x(a) + dx, y(b) + dy, x(a) + dx + width, y(b) + dy + 14) for dx, dy in corners]
        box = next(
            (
                (left, top, right, bottom)
                for left, top, right, bottom in boxes
                if left > _LEFT
                and right < _WIDTH
                and top > 20
                and not any(
                    left < r and o < right and top < q and p < bottom for o, p, r, q in taken
                )
            ),
            None,
        )
        taken += [] if box is None else [box]
        shown.append((models.index(name), name, text, a, b, box))
    chart = {"kind": "scatter", "title": title, "width": _WIDTH, "height": _HEIGHT, "x": x, "y": y}
    return chart | {"spots": shown, "x_label": x_label}


def number(value: float) -> str:
    """Return a number as short as four significant digits allow."""
    if value and not 1e-4 <= abs(value) < 1e6:
        text = f"{value:.3g}"
    else:
        text = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return text.replace("-", "−")


def plain(value: float, *, sign: bool = False) -> str:
    """Return a number with four decimals, fewer if it is large."""
    decimals = 4 if abs(value) < 10 else 2 if abs(value) < 1000 else 0
    return f"{value:{'+' if sign else ''},.{decimals}f}".replace("-", "−")


def _cut(text: str, room: float) -> str:
    most = max(1, int(room / _CHARACTER))
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _listed(names: Sequence[str]) -> str:
    """Return "a", "a and b", "a, b and c"."""
    return " and ".join(part for part in (", ".join(names[:-1]), names[-1]) if part)

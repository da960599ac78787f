"""HTML report of an evaluation: one page, laid out and drawn by the template."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import polars as pl

from recsys.evaluation.results import (
    INTERVALS,
    TESTS,
    Evaluation,
    best_model,
    named,
    ranking,
    significantly_worse,
)
from recsys.evaluation.statistics import ERRORS
from recsys.messages import missing_extra

if TYPE_CHECKING:
    from recsys.evaluation.monitoring import Monitoring

_CHARACTER = 6.7  # average width of a character in pixels
_NEGLIGIBLE = (
    0.001  # share of test ratings below which tails of residuals are not drawn
)

Curves = dict[str, list[tuple[float, ...]]]
"""Points (x, y) or (x, y, low, high) of each model, by label."""


def html_report(
    found: Evaluation,
    *,
    parameters: Mapping[str, Mapping[str, Any]] | None = None,
    command: str | None = None,
    versions: Mapping[str, str] | None = None,
    monitoring: Monitoring | None = None,
) -> str:
    """Return an evaluation as a self-contained HTML page; labels are escaped.

    The page also shows the `parameters` of each model, by label, the `command` that repeats the
    evaluation, the `versions` of programs and libraries, and the result of `monitor`.

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
        raise ImportError(f"A report {missing_extra('Jinja2', 'report')}") from error
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("recsys.evaluation", "."),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        # A misspelt name in the template is an error, not an empty text.
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {
        "plain": plain,
        "number": number,
        "cut": _cut,
        "worded": found.worded,
        "json": partial(json.dumps, ensure_ascii=False),
    }
    environment.globals["axis"] = Axis.of
    # Shares of the groups of each drift, by number of the group.
    shares: dict[str, Curves] = {}
    for name, shift in (monitoring.drift if monitoring else {}).items():
        if len(shift.groups) > 1:
            shares[name] = {
                "before": [*enumerate(shift.before, start=1)],
                "now": [*enumerate(shift.now, start=1)],
            }
    cells: dict[str, dict[str, Any]] = {}
    for row in found.metrics.to_dicts():
        cells.setdefault(row["metric"], {})[row["model"]] = row
    last = found.settings.ns[-1]
    names = [name for name in cells if name in ERRORS or name.endswith(f"@{last}")]
    headline = ("rmse", f"recall@{last}", f"ndcg@{last}")
    return environment.get_template("report.html.j2").render(
        _curves(found),
        found=found,
        settings=found.settings,
        errors=ERRORS,
        intervals=INTERVALS,
        tests=TESTS,
        ranking=ranking(found),
        models=found.table["model"].to_list(),
        cells=cells,
        values=found.metrics.sort("kind", "n", maintain_order=True).to_dicts(),
        names=names,
        headline=[name for name in headline if name in names],
        best={name: best_model(found, name) for name in names},
        worse=significantly_worse(found),
        comparisons=found.comparisons.to_dicts(),
        compared=set(found.comparisons["metric"]),
        named=lambda metric: named(metric, found),
        command=command,
        monitoring=None if monitoring is None else monitoring.table.to_dicts(),
        shares=shares,
        versions=versions or {},
        parameters=parameters or found.parameters,
    )


def _curves(found: Evaluation) -> dict[str, Any]:
    """Return the points of the charts by name."""
    models = found.table["model"].to_list()
    longest = found.settings.ns[-1]
    series = partial(_series, models)
    lengths = {
        str(kind): series(of_kind.sort("n"), "n", "value", "low", "high")
        for (kind,), of_kind in found.metrics.drop_nulls("n").group_by(
            "kind", maintain_order=True
        )
    }
    in_time = {
        str(metric): series(of_metric, "fold", "value")
        for (metric,), of_metric in found.cuts.group_by("metric", maintain_order=True)
    }
    stale = found.staleness.filter(n=longest).drop_nulls()
    stale = stale.with_columns(age=pl.col("fold") - 1)
    ends = {
        kind: {model: curve[-1][1] for model, curve in curves.items() if curve}
        for kind, curves in lengths.items()
    }
    best = ends.get("ndcg", {})
    counts = found.per_user.filter(model=models[0])["ratings"].drop_nulls().sort()
    end = len(counts) - 1
    activity = []
    if end > 0 and counts[0] != counts[-1]:
        # 61 quantiles, so that the page does not grow with the number of users.
        positions = dict.fromkeys(round(i * end / 60) for i in range(61))
        activity = [(i / end * 100, counts[i]) for i in positions]
    return {
        "lengths": lengths,
        "in_time": in_time,
        "stale": series(stale, "age", "loss", "low", "high"),
        "reliable": series(found.reliability, "chance", "taken", "low", "high"),
        "against": {
            kind: [(model, x, best[model], model) for model, x in of_kind.items()]
            for kind, of_kind in ends.items()
            if best
        },
        "residuals": _residuals(found, models),
        "activity": activity,
        **_groups(found, longest),
        **_learning(found),
    }


def _series(
    models: Sequence[str],
    frame: pl.DataFrame,
    *columns: str,
) -> Curves:
    """Return the rows of each model as points."""
    curves: Curves = {model: [] for model in models}
    for model, *point in frame.select("model", *columns).iter_rows():
        curves[model].append(tuple(point))
    return curves


def _residuals(found: Evaluation, models: Sequence[str]) -> Curves:
    """Return the share of the test ratings in each bin of residuals."""
    residuals: Curves = {}
    for model in models:
        bins = found.residuals.filter(model=model)
        n_ratings = bins["count"].sum() or 1
        middles = (bins["low"] + bins["high"]) / 2
        residuals[model] = [*zip(middles, bins["count"] / n_ratings, strict=True)]
    points = [point for curve in residuals.values() for point in curve]
    far = max((abs(x) for x, y in points if y >= _NEGLIGIBLE), default=0.0)
    return {
        model: [point for point in curve if abs(point[0]) <= far]
        for model, curve in residuals.items()
    }


def _learning(found: Evaluation) -> dict[str, Any]:
    """Return the training errors and the objectives after each iteration."""
    errors: Curves = {}
    objectives: Curves = {}
    for model, steps in found.steps.items():
        errors[model] = [
            (step.step, step.train_rmse)
            for step in steps
            if step.train_rmse is not None
        ]
        values = [
            (step.step, step.objective) for step in steps if step.objective is not None
        ]
        first = values[0][1] if values else 0.0
        # Objectives of different models have different scales, so curves begin at 1.
        objectives[model] = [(step, x / first) for step, x in values if first > 0]
    return {
        "learning": {
            "RMSE on the training ratings": errors,
            "Objective, 1 after the first iteration": objectives,
        },
        "learned": {model: errors[model] + objectives[model] for model in errors},
    }


def _groups(found: Evaluation, n: int) -> dict[str, Any]:
    """Return the values of groups by metric and column, and their exposure by column."""
    names = found.slices["metric"].unique(maintain_order=True).to_list()
    shown = f"ndcg@{n}" if f"ndcg@{n}" in names else next(iter(names), "")
    groups: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    exposure: dict[str, list[tuple[str, float, float, str]]] = {}
    # The models of a group are next to each other, and groups stay in their order.
    of_metric = found.slices.filter(metric=shown).drop_nulls("value")
    by_group = of_metric.group_by("side", "by", "group", maintain_order=True)
    for (_, by, group), rows in by_group:
        for row in rows.to_dicts():
            groups.setdefault(f"{shown} by {by}", []).append((str(group), row))
            if row["exposure"] is not None:
                spot = (str(group), row["relevance"], row["exposure"], row["model"])
                exposure.setdefault(str(by), []).append(spot)
    return {"groups": groups, "exposure": exposure}


@dataclass(frozen=True)
class Axis:
    """Axis that maps values to pixels, with round numbers as marks."""

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
        log: bool = False,
    ) -> Axis:
        """Return the axis that shows all values except None, with some room at both ends."""
        present = [value for value in values if value is not None]
        low = min(present)
        high = max(present)
        room = (high - low) * padding
        # Positions are divided by the length, which must not be 0.
        if high - low <= 1e-9 * max(abs(low), abs(high), 1e-9):
            room = abs(low) * 0.1 or 1.0
        if log:
            return cls(low, high + room, start, end, sorted(set(present)), log)
        # No room below 0: counts and shares are not negative.
        if low != 0:
            low -= room
        high += room
        return cls(low, high, start, end, ticks(low, high))

    def __call__(self, value: float) -> float:
        """Return the position of a value in pixels."""
        if self.log:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 1)


def ticks(
    low: float,
    high: float,
    most: int = 5,
) -> list[float]:
    """Return round numbers within an interval, about `most` of them and at least two.

    Examples
    --------
    >>> ticks(0.81, 0.97)
    [0.85, 0.9, 0.95]
    """
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = min(s * power for s in (1, 2, 5, 10) if s * power >= rough * 0.8)
    # Rounding must not drop a mark at an end of the axis.
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    decimals = max(0, 1 - math.floor(math.log10(step)))
    # -0.0 + 0.0 is 0.0, which is written without a sign.
    return [round(i * step, decimals) + 0.0 for i in range(first, last + 1)]


def number(value: float) -> str:
    """Format a number with at most four significant digits."""
    if value and not 1e-4 <= abs(value) < 1e6:
        text = f"{value:.3g}"
    else:
        text = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return text.replace("-", "−")


def plain(value: float, *, sign: bool = False) -> str:
    """Format a number with four decimals, or fewer if it is large."""
    decimals = 4 if abs(value) < 10 else 2 if abs(value) < 1000 else 0
    return f"{value:{'+' if sign else ''},.{decimals}f}".replace("-", "−")


def _cut(text: str, room: float) -> str:
    n_characters = max(1, int(room / _CHARACTER))
    return text if len(text) <= n_characters else f"{text[: n_characters - 1]}…"

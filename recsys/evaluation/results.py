"""Results of an evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from recsys.evaluation.measuring import CATALOGUE, MEANS, RATING, Asked, Run
from recsys.evaluation.metrics import DIRECTIONS, Doubles
from recsys.evaluation.statistics import Ratio, bootstrap, holm, jackknife, percentiles, sign_flip

if TYPE_CHECKING:
    from recsys.evaluation.experiment import Evaluation, Settings

__all__ = [
    "INTERVALS",
    "TESTS",
    "Summary",
    "best_model",
    "joined",
    "named",
    "only",
    "ranking",
    "significantly_worse",
]

_ERRORS = {"rmse": "squared_error", "mae": "absolute_error"}
_SUMS = ("relevant", "ratings", *_ERRORS.values())
_COMPARED = {
    "metric": pl.String,
    "kind": pl.String,
    "n": pl.Int64,
    "model": pl.String,
    "other": pl.String,
    "difference": pl.Float64,
    "low": pl.Float64,
    "high": pl.Float64,
    "p_value": pl.Float64,
    "adjusted": pl.Float64,
}
_MEASURED = {
    "model": pl.String,
    "metric": pl.String,
    "kind": pl.String,
    "n": pl.Int64,
    "value": pl.Float64,
    "low": pl.Float64,
    "high": pl.Float64,
    "users": pl.Int64,
}


def joined(runs: Sequence[Run]) -> Run:
    """Make one run of those on several folds, which a user may be in several times.

    Numbers and sums of errors are summed, metrics are means over the user's folds. What a metric
    over all recommendations changes by is the mean over all folds, as the metric is.
    """
    first = runs[0]
    if len(runs) == 1:
        return first
    changes = [name for name in first.values.columns if name.split("@")[0] in CATALOGUE]
    rest = [
        name
        for name in first.values.columns
        if name not in ("user", *_SUMS) and name not in changes
    ]
    sums = [pl.when(pl.col(s).count() > 0).then(pl.col(s).sum()).alias(s) for s in _SUMS]
    values = (
        pl.concat([each.values for each in runs])
        .group_by("user")
        .agg(*sums, pl.col(rest).mean(), pl.col(changes).sum() / len(runs))
        .sort("user")
        .select(first.values.columns)
    )
    return Run(
        values,
        {name: _mean([each.overall[name] for each in runs]) for name in first.overall},
        _joined_residuals([each.residuals for each in runs]),
        first.steps,
        _mean([each.fit_seconds for each in runs]),
        _mean([each.recommend_seconds for each in runs]),
    )


@dataclass(frozen=True, slots=True)
class Summary:
    """The frames of an `Evaluation`."""

    table: pl.DataFrame
    metrics: pl.DataFrame
    comparisons: pl.DataFrame
    per_user: pl.DataFrame
    residuals: pl.DataFrame

    @classmethod
    def of(cls, runs: Mapping[str, Run], asked: Asked, settings: Settings) -> Summary:
        """Summarise one run per model."""
        ratios = {
            (label, metric): ratio
            for label, run in runs.items()
            for metric, ratio in _ratios(run.values, asked).items()
        }
        sampled = _sampled(ratios, settings)
        metrics = _metrics(runs, ratios, sampled, asked, settings)
        return cls(
            _table(runs, metrics, asked),
            metrics,
            _comparisons(list(runs), ratios, sampled, asked, settings),
            _per_user(runs),
            _residuals(runs),
        )


Key = tuple[str, str]  # model, metric


@dataclass(frozen=True, slots=True)
class _Sampled:
    """Bootstrap replicates of all metrics of all models."""

    replicates: Doubles
    place: dict[Key, int]

    def of(self, key: Key) -> Doubles:
        found: Doubles = self.replicates[:, self.place[key]]
        return found


def _ratios(values: pl.DataFrame, asked: Asked) -> dict[str, Ratio]:
    """Return the metrics that are ratios of sums over users, but for those nobody has."""
    ratios = {}
    for kind in RATING:
        if kind in asked.kinds and values[_ERRORS[kind]].count():
            above = values[_ERRORS[kind]].to_numpy().astype(np.float64)
            below = values["ratings"].to_numpy().astype(np.float64)
            ratios[kind] = Ratio(above, below, np.sqrt if kind == "rmse" else None)
    for metric in asked.labels(MEANS):
        if values[metric].count():
            ratios[metric] = Ratio.mean(values[metric].to_numpy().astype(np.float64))
    return ratios


def _sampled(ratios: Mapping[Key, Ratio], settings: Settings) -> _Sampled | None:
    if not settings.resamples or not ratios or len(next(iter(ratios.values())).above) < 2:
        return None
    replicates = bootstrap(list(ratios.values()), settings.resamples, settings.random_state)
    return _Sampled(replicates, {key: place for place, key in enumerate(ratios)})


def _metrics(
    runs: Mapping[str, Run],
    ratios: Mapping[Key, Ratio],
    sampled: _Sampled | None,
    asked: Asked,
    settings: Settings,
) -> pl.DataFrame:
    rows = []
    bounds = None if sampled is None else percentiles(sampled.replicates, settings.confidence)
    for label, run in runs.items():
        for kind, n, metric in _named(asked):
            users = run.values[metric].count() if n else run.values.height
            row: dict[str, Any] = {"model": label, "metric": metric, "kind": kind, "n": n}
            if metric in run.overall:
                value, low, high = run.overall[metric], None, None
                if settings.resamples and users > 1:
                    without = run.values[metric].drop_nulls().to_numpy()
                    low, high = np.clip(jackknife(value, without, settings.confidence), 0, 1)
            elif (label, metric) in ratios:
                value, low, high = ratios[label, metric].value, None, None
                if sampled is not None and bounds is not None:
                    low, high = (float(x) for x in bounds[:, sampled.place[label, metric]])
            else:
                continue
            rows.append({**row, "value": value, "low": low, "high": high, "users": users})
    return pl.DataFrame(rows, schema=_MEASURED)


def _comparisons(
    labels: list[str],
    ratios: Mapping[Key, Ratio],
    sampled: _Sampled | None,
    asked: Asked,
    settings: Settings,
) -> pl.DataFrame:
    if sampled is None:
        return pl.DataFrame(schema=_COMPARED)
    tests = [
        (kind, n, metric, one, other)
        for kind, n, metric in _named(asked)
        for one, other in combinations(labels, 2)
        if (one, metric) in ratios and (other, metric) in ratios
    ]
    if not tests:
        return pl.DataFrame(schema=_COMPARED)
    differences = [_paired(ratios[one, m], ratios[other, m]) for _, _, m, one, other in tests]
    p_values = sign_flip(np.column_stack(differences), random_state=settings.random_state)
    tail = (1 - settings.confidence) / 2
    rows = []
    for (kind, n, metric, one, other), p_value in zip(tests, p_values, strict=True):
        replicates = sampled.of((one, metric)) - sampled.of((other, metric))
        low, high = np.nanquantile(replicates, [tail, 1 - tail])
        difference = ratios[one, metric].value - ratios[other, metric].value
        rows.append((metric, kind, n, one, other, difference, low, high, p_value, None))
    frame = pl.DataFrame(rows, schema=_COMPARED, orient="row")
    parts = frame.partition_by("metric", maintain_order=True)
    return pl.concat(
        part.with_columns(pl.Series("adjusted", holm(part["p_value"].to_numpy()))) for part in parts
    )


def _paired(one: Ratio, other: Ratio) -> Doubles:
    """Return the difference of each user; 0 for users whom either metric leaves out."""
    both = (one.below > 0) & (other.below > 0)
    return np.where(both, one.above - other.above, 0.0)


def _table(runs: Mapping[str, Run], metrics: pl.DataFrame, asked: Asked) -> pl.DataFrame:
    rows = []
    for label, run in runs.items():
        mine = metrics.filter(pl.col("model") == label)
        values = dict(zip(mine["metric"], mine["value"], strict=True))
        times = {
            "fit_seconds": run.fit_seconds,
            "recommend_seconds": run.recommend_seconds,
            "users": int((run.values["relevant"] > 0).sum()),
        }
        rows.append({"model": label, **values, **times})
    names = [metric for _, _, metric in _named(asked)]
    schema: dict[str, Any] = {
        "model": pl.String,
        **dict.fromkeys([*names, "fit_seconds", "recommend_seconds"], pl.Float64),
        "users": pl.Int64,
    }
    return pl.DataFrame(rows, schema=schema)


def _per_user(runs: Mapping[str, Run]) -> pl.DataFrame:
    return pl.concat(
        run.values.select(
            pl.lit(label).alias("model"),
            *(name for name in run.values.columns if name.split("@")[0] not in CATALOGUE),
        )
        for label, run in runs.items()
    )


def _residuals(runs: Mapping[str, Run]) -> pl.DataFrame:
    schema = {"model": pl.String, "low": pl.Float64, "high": pl.Float64, "count": pl.Int64}
    found = [
        run.residuals.select(pl.lit(label).alias("model"), pl.all())
        for label, run in runs.items()
        if run.residuals is not None
    ]
    return pl.concat(found) if found else pl.DataFrame(schema=schema)


def _joined_residuals(parts: Sequence[pl.DataFrame | None]) -> pl.DataFrame | None:
    """Add up the counts of the same bins; folds may have different ranges of ratings."""
    known = [part for part in parts if part is not None]
    if not known:
        return None
    together = pl.concat(known).group_by("low", "high").agg(pl.col("count").sum())
    return together.sort("low", "high")


def _named(asked: Asked) -> list[tuple[str, int | None, str]]:
    """Return kind, N and name of everything that is asked for."""
    rating = [(kind, None, kind) for kind in asked.kinds if kind in RATING]
    ranked = [
        (kind, n, f"{kind}@{n}") for kind in asked.kinds if kind not in RATING for n in asked.ns
    ]
    return [*rating, *ranked]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


INTERVALS = (
    "percentile bootstrap over users; coverage and gini: jackknife over users, normal quantiles"
)
TESTS = (
    "paired sign-flip test over users, two-sided; adjusted by Holm's method over the pairs of "
    "models of each metric"
)


def ranking(found: Evaluation) -> str:
    """Say what recommendations are chosen from."""
    if found.settings.candidates is None:
        return "all items that the user has not rated in the training part"
    return (
        f"SAMPLED: each user's relevant items among {found.settings.candidates:,} random others; "
        "not comparable with metrics over all items (Krichene and Rendle 2020)"
    )


def named(metric: str, found: Evaluation) -> str:
    """Return the name of a metric, marked if it is over sampled candidates."""
    is_sampled = found.settings.candidates is not None and metric not in ("rmse", "mae")
    return f"{metric} (sampled)" if is_sampled else metric


def best_model(found: Evaluation, metric: str) -> str | None:
    """Return the model with the best value; None if neither more nor less is better."""
    direction = DIRECTIONS[metric.partition("@")[0]]
    values = found.metrics.filter(pl.col("metric") == metric)
    place = (values["value"] * direction).arg_max() if direction else None
    return None if place is None else str(values["model"][place])


def significantly_worse(found: Evaluation) -> set[tuple[str, str]]:
    """Return the (model, metric) pairs that differ significantly from the metric's best model."""
    level = 1 - found.settings.confidence
    worse = set()
    for row in found.comparisons.filter(pl.col("adjusted") < level).to_dicts():
        best = best_model(found, row["metric"])
        if best in (row["model"], row["other"]):
            worse.add((row["other"] if row["model"] == best else row["model"], row["metric"]))
    return worse


def only(found: Evaluation, ns: Sequence[int]) -> Evaluation:
    """Return the evaluation without recommendations of other lengths than `ns`."""
    ns = tuple(sorted(set(ns)))
    others = [f"@{n}" for n in found.settings.ns if n not in ns]

    def without(frame: pl.DataFrame) -> pl.DataFrame:
        return frame.select(c for c in frame.columns if f"@{c.partition('@')[2]}" not in others)

    kept = pl.col("n").is_null() | pl.col("n").is_in(ns)
    return replace(
        found,
        table=without(found.table),
        metrics=found.metrics.filter(kept),
        comparisons=found.comparisons.filter(kept),
        per_user=without(found.per_user),
        settings=replace(found.settings, ns=ns),
    )

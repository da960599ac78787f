"""Reading an evaluation: which models are behind, and in words how was measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl

from recsys.evaluation.metrics import DIRECTIONS

if TYPE_CHECKING:
    from recsys.evaluation.experiment import Evaluation

__all__ = ["INTERVALS", "TESTS", "best_model", "named", "only", "ranking", "significantly_worse"]

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

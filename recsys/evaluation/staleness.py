"""Loss of models that are not fitted again, in later windows of a backtest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from recsys.evaluation.settings import Settings, SplitInfo
from recsys.evaluation.statistics import Ratio, bootstrap, percentiles

if TYPE_CHECKING:
    from recsys.evaluation.results import Measurement

STALENESS = {
    "model": pl.String,
    "metric": pl.String,
    "n": pl.Int64,
    "fold": pl.Int64,
    "cut": pl.Int64,
    "age": pl.Int64,
    "users": pl.Int64,
    "refit": pl.Float64,
    "stale": pl.Float64,
    "loss": pl.Float64,
    "low": pl.Float64,
    "high": pl.Float64,
}


def stale_values(
    runs: Mapping[str, Sequence[Measurement]],
    splits: Sequence[SplitInfo],
    settings: Settings,
) -> pl.DataFrame:
    """Return the loss of the first model of each label in later windows.

    See `Evaluation.staleness`.
    """
    rows: list[dict[str, Any]] = []
    for label, of_folds in runs.items():
        for number, run in enumerate(of_folds):
            if run.stale is None or run.stale.is_empty():
                continue
            cut = splits[number].parameters["cut"]
            of_window = {
                "model": label,
                "fold": number + 1,
                "cut": cut,
                "age": cut - splits[0].parameters["cut"],
                "users": len(run.stale),
            }
            # Both have the same users, so that the difference is paired.
            pairs = run.stale.join(run.values, on="user", suffix=" refit")
            for n in settings.ns:
                loss = _loss(pairs, f"ndcg@{n}", settings)
                rows.append({**of_window, "metric": f"ndcg@{n}", "n": n, **loss})
    return pl.DataFrame(rows, schema=STALENESS)


def _loss(
    pairs: pl.DataFrame, name: str, settings: Settings
) -> dict[str, float | None]:
    """Return both values of a metric, and the relative loss with its interval."""
    stale = Ratio.mean(pairs[name].to_numpy())
    refit = Ratio.mean(pairs[f"{name} refit"].to_numpy())
    values: dict[str, float | None] = {"refit": refit.value, "stale": stale.value}
    if not refit.value:
        return values
    values["loss"] = 1 - stale.value / refit.value
    if settings.resamples and len(pairs) > 1:
        samples = bootstrap([stale, refit], settings.resamples, settings.random_state)
        of_stale, of_refit = samples.T
        losses = np.full(len(samples), np.nan)
        np.divide(of_stale, of_refit, out=losses, where=of_refit > 0)
        low, high = percentiles(1 - losses, settings.confidence)
        values |= {"low": float(low), "high": float(high)}
    return values


def refit_periods(staleness: pl.DataFrame) -> pl.DataFrame:
    """Return the loss per window, and the time after which a refit gains; see `Evaluation`."""
    windows = pl.col("fold") - 1
    loss = pl.col("loss")
    half_width = (pl.col("high") - pl.col("low")) / 2
    # One window in forty exceeds its half-width by chance, so all together must, too.
    of_all = half_width.pow(2).sum().sqrt() / half_width.count()
    gains = (loss > half_width) & (loss.mean() > of_all)
    return staleness.group_by("model", "metric", "n", maintain_order=True).agg(
        loss_per_window=loss.sum() / windows.sum(),
        refit_windows=windows.filter(gains).min(),
        refit_seconds=pl.col("age").filter(gains).min(),
    )

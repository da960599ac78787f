"""Loss of models that are not fitted again, in later windows of a backtest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from recsys.data.arrays import Doubles
from recsys.evaluation.settings import Settings, SplitInfo
from recsys.evaluation.statistics import Ratio, bca, bootstrap

STALENESS = {
    "model": pl.String,
    "metric": pl.String,
    **dict.fromkeys(("n", "fold", "cut", "age", "users"), pl.Int64),
    **dict.fromkeys(("refit", "stale", "loss", "low", "high"), pl.Float64),
}


def stale_values(
    pairs: Mapping[str, Sequence[pl.DataFrame | None]],
    splits: Sequence[SplitInfo],
    settings: Settings,
) -> pl.DataFrame:
    """Return `Evaluation.staleness` from the values of users in each window, by model.

    Both models have the same users, so that their difference is paired.
    """
    rows: list[dict[str, Any]] = []
    for label, of_windows in pairs.items():
        for number, values in enumerate(of_windows):
            if values is None or values.is_empty():
                continue
            cut = splits[number].parameters["cut"]
            of_window = {
                "model": label,
                "fold": number + 1,
                "cut": cut,
                "age": cut - splits[0].parameters["cut"],
                "users": len(values),
            }
            for n in settings.ns:
                metric = f"ndcg@{n}"
                loss = _loss(values, metric, settings)
                rows.append({**of_window, "metric": metric, "n": n, **loss})
    return pl.DataFrame(rows, schema=STALENESS)


def _loss(
    values: pl.DataFrame,
    name: str,
    settings: Settings,
) -> dict[str, float | None]:
    """Return both values of a metric, and the relative loss with its interval."""
    stale = Ratio.mean(values[name].to_numpy())
    refit = Ratio.mean(values[f"{name} refit"].to_numpy())
    loss: dict[str, float | None] = {"refit": refit.value, "stale": stale.value}
    if not refit.value:
        return loss
    value = 1 - stale.value / refit.value
    loss["loss"] = value
    if settings.resamples and len(values) > 1:
        samples = bootstrap([stale, refit], settings.resamples, settings.random_state)
        losses = _losses(*samples.T)
        left_out = _losses(stale.leave_one_out(), refit.leave_one_out())
        low, high = bca(losses, value, left_out, settings.confidence)
        loss |= {"low": low, "high": high}
    return loss


def _losses(stale: Doubles, refit: Doubles) -> Doubles:
    """Return relative losses; NaN where the refit model has none of the metric to lose."""
    shares = np.full(len(stale), np.nan)
    np.divide(stale, refit, out=shares, where=refit > 0)
    return 1 - shares


def refit_periods(staleness: pl.DataFrame) -> pl.DataFrame:
    """Return the loss per window, and the time after which a refit gains; see `Evaluation`."""
    windows = pl.col("fold") - 1
    loss = pl.col("loss")
    width = pl.col("high") - pl.col("low")
    half_width = width / 2
    # One window in forty exceeds its half-width by chance, so all together must, too.
    of_all = half_width.pow(2).sum().sqrt() / half_width.count()
    gains = (loss > half_width) & (loss.mean() > of_all)
    age = pl.col("age")
    series = staleness.group_by("model", "metric", "n", maintain_order=True)
    return series.agg(
        loss_per_window=loss.sum() / windows.sum(),
        refit_windows=windows.filter(gains).min(),
        refit_seconds=age.filter(gains).min(),
    )

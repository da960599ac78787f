"""Loss of models that are not fitted again, in later windows of a backtest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

from recsys.data.arrays import Doubles
from recsys.evaluation.settings import Settings, SplitInfo
from recsys.evaluation.statistics import estimates, ratio_of

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
    rows = []
    for label, of_windows in pairs.items():
        for number, values in enumerate(of_windows):
            if values is None or values.is_empty():
                continue
            cut = splits[number].parameters["cut"]
            age = cut - splits[0].parameters["cut"]
            for n in settings.ns:
                metric = f"ndcg@{n}"
                stale = ratio_of(values, metric)
                refit = ratio_of(values, f"{metric} refit")
                [loss] = estimates(
                    [_loss],
                    [stale, refit],
                    settings.resamples,
                    settings.confidence,
                    settings.random_state,
                )
                window = (number + 1, cut, age, len(values))
                rows.append(
                    (label, metric, n, *window, refit.value, stale.value, *loss)
                )
    return pl.DataFrame(rows, schema=STALENESS, orient="row").fill_nan(None)


def _loss(stale: Doubles, refit: Doubles) -> Doubles:
    """Return relative losses; NaN where the refit model has none of the metric to lose."""
    shares = np.full_like(refit, np.nan)
    np.divide(stale, refit, out=shares, where=refit > 0)
    return 1 - shares


def refit_periods(staleness: pl.DataFrame) -> pl.DataFrame:
    """Return the loss per window, and the time after which a refit gains; see `Evaluation`."""
    windows = pl.col("fold") - 1
    loss = pl.col("loss")
    half_width = (pl.col("high") - pl.col("low")) / 2
    # One window in forty exceeds its half-width by chance, so all together must, too.
    of_all = half_width.pow(2).sum().sqrt() / half_width.count()
    gains = (loss > half_width) & (loss.mean() > of_all)
    series = staleness.group_by("model", "metric", "n", maintain_order=True)
    return series.agg(
        loss_per_window=loss.sum() / windows.sum(),
        refit_windows=windows.filter(gains).min(),
        refit_seconds=pl.col("age").filter(gains).min(),
    )

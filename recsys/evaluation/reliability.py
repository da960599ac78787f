"""Reliability of chances: how often items are taken that have a chance."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
import polars as pl

from recsys.data.arrays import Mask
from recsys.evaluation.statistics import Ratio, standard_error
from recsys.models.parts import Floats
from recsys.ranking.chance import crossed

RELIABILITY = {
    "model": pl.String,
    **dict.fromkeys(("chance", "taken", "low", "high"), pl.Float64),
    "count": pl.Int64,
    "brier": pl.Float64,
}
"""Columns of `Evaluation.reliability`."""
_BINS = 10


def reliability(
    scores: Floats,
    hits: Mask,
    confidence: float,
) -> pl.DataFrame:
    """Return how often items are taken, by their chances: a row for each of ten equal bins.

    The chances of half of the lists are calibrated on the other half. The columns are as in
    `RELIABILITY`, without the model: the mean chance, the share of items that are taken, its
    interval (by the standard error over users), the number of items, and the mean squared error.
    """
    _, chances = crossed(scores, hits)
    is_listed = ~np.isnan(chances)
    users, _ = np.nonzero(is_listed)
    chance = chances[is_listed]
    order = np.argsort(chance, kind="stable")
    taken = hits[is_listed]
    quantile = NormalDist().inv_cdf((1 + confidence) / 2)
    rows = []
    # A single list has none that could calibrate it.
    parts = [part for part in np.array_split(order, _BINS) if len(part)]
    for part in parts:
        # Items of one user are alike, so that users are the units.
        _, of_user = np.unique(users[part], return_inverse=True)
        n_taken = np.bincount(of_user, taken[part])
        n_items = np.bincount(of_user).astype(np.float64)
        ratio = Ratio(n_taken.astype(np.float64), n_items)
        # The share of a single user may be any.
        error = np.nan_to_num(standard_error(ratio), nan=1.0)
        half = quantile * error
        squares = np.square(chance[part] - taken[part])
        rows.append(
            {
                "chance": chance[part].mean(),
                "taken": ratio.value,
                "low": max(0.0, ratio.value - half),
                "high": min(1.0, ratio.value + half),
                "count": len(part),
                "brier": squares.mean(),
            }
        )
    return pl.DataFrame(rows, schema=RELIABILITY).drop("model")

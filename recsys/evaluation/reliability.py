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
    "chance": pl.Float64,
    "taken": pl.Float64,
    "low": pl.Float64,
    "high": pl.Float64,
    "count": pl.Int64,
    "brier": pl.Float64,
}
"""Columns of `Evaluation.reliability`."""
_BINS = 10


def reliability(scores: Floats, hits: Mask, confidence: float) -> pl.DataFrame:
    """Return how often items are taken, by their chances: a row for each of ten equal bins.

    The chances of half of the lists are calibrated on the other half. The columns are those of
    `RELIABILITY` but the model: the mean chance, the share of items that are taken, its interval
    (by the standard error over users), the number of items, and the mean squared error.
    """
    _, chances = crossed(scores, hits)
    is_listed = ~np.isnan(chances)
    users, _ = np.nonzero(is_listed)
    chance = chances[is_listed]
    order = np.argsort(chance, kind="stable")
    taken = hits[is_listed].astype(np.float64)
    rows = []
    # A single list has none that could calibrate it.
    parts = [part for part in np.array_split(order, _BINS) if len(part)]
    for part in parts:
        # Items of one user are alike, so that users are the units.
        _, of_user = np.unique(users[part], return_inverse=True)
        n_taken = np.bincount(of_user, taken[part])
        n_items = np.bincount(of_user)
        ratio = Ratio(n_taken.astype(np.float64), n_items.astype(np.float64))
        half = NormalDist().inv_cdf((1 + confidence) / 2) * standard_error(ratio)
        low, high = np.clip([ratio.value - half, ratio.value + half], 0, 1)
        error = np.square(chance[part] - taken[part]).mean()
        rows.append(
            (chance[part].mean(), ratio.value, low, high, len(part), float(error))
        )
    schema = {name: RELIABILITY[name] for name in RELIABILITY if name != "model"}
    return pl.DataFrame(rows, schema=schema, orient="row")

"""Exposure: metrics as if all items had been shown equally often.

Feedback is seen for items that were shown, and popular ones are shown more often. A relevant item
that was seen with probability p stands for 1 / p relevant ones. With v_u the sum of d_ui / p_ui
over the relevant items of a user's list, divided by n_u, and b_u the mean of 1 / p_ui over the n_u
relevant items, a corrected metric is sum_u v_u / sum_u b_u, where d_ui is what an item adds to n_u
times the ordinary metric. With equal probabilities, it is the ordinary metric.

References
----------
Saito (2020), "Unbiased pairwise learning from biased implicit feedback".
Yang et al. (2018), "Unbiased offline recommender evaluation for missing-not-at-random implicit
feedback".
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np
import polars as pl

from recsys.data.arrays import Doubles
from recsys.data.ratings import Ratings
from recsys.errors import DataError
from recsys.evaluation.metrics import CORRECTED, Counts, Lists, Metric, grades_of

LEAST = 50
"""Smallest effective sample size from which something is claimed."""
WEIGHT = "inverse_propensity"
"""Column of `Evaluation.per_user` with the mean of 1 / p over a user's relevant items."""
_POPULARITY = re.compile(r"popularity:(\d+|\d*\.\d+)")
# Metrics that are sums over the relevant items of a list.
_SUMS = ("precision", "recall", "ndcg", "rbp")

Propensity: TypeAlias = str | Ratings


def effective_sample_size(inverse_propensities: Doubles) -> float:
    """Return ``(sum w)^2 / sum w^2``: how many equally weighted observations say as much.

    Examples
    --------
    >>> effective_sample_size(np.array([1.0, 1.0, 0.0]))
    2.0
    """
    squares = float(np.square(inverse_propensities).sum())
    return float(inverse_propensities.sum()) ** 2 / squares if squares else 0.0


SAMPLE_SIZE = Metric(
    "effective_sample_size",
    effective_sample_size,
    "(sum of w)^2 / (sum of w^2) over the relevant test items, w = 1 / propensity",
    0,
)


def corrected(metrics: Sequence[Metric]) -> list[Metric]:
    """Return the corrected variants of the metrics that have one."""
    return [
        replace(
            metric,
            name=metric.name + CORRECTED,
            definition=f"{metric.definition}; relevant items weighted by 1 / propensity",
        )
        for metric in metrics
        if metric.name in _SUMS
    ]


def inverse_propensities(
    propensity: Propensity,
    train: Ratings,
    relevant: Ratings,
) -> Ratings:
    """Return the relevant test ratings with 1 / p as values.

    Raises
    ------
    DataError
        If a probability is missing or not in (0, 1], or there is no such column.
    """
    if isinstance(propensity, Ratings):
        values = _of_pairs(propensity, relevant)
    elif isinstance(propensity, str):
        values = _of_items(propensity, train)[relevant.indices]
    else:
        raise DataError(
            f"propensity must be a text or Ratings; got {type(propensity).__name__}."
        )
    is_probability = (values > 0) & (values <= 1)  # NaN, for none, is not
    for position in np.flatnonzero(~is_probability).tolist():
        user, item, *_ = relevant.to_frame().row(position)
        value = values[position]
        raise DataError(
            f"The propensity of user {user!r} and item {item!r} must be a probability in (0, 1]; "
            f"got {'none' if math.isnan(value) else value}."
        )
    return relevant.with_values((1 / values).astype(np.float32))


def _of_items(propensity: str, train: Ratings) -> Doubles:
    """Return the propensities of all items, by popularity or in a column of their table."""
    power = _POPULARITY.fullmatch(propensity)
    if power is not None:
        counts = np.maximum(train.counts("item"), 1)
        return np.asarray((counts / counts.max()) ** float(power[1]))
    values = train.axis("item").column(propensity)
    if values is not None and values.dtype.is_numeric():
        return values.cast(pl.Float64).to_numpy()
    raise DataError(
        "propensity must be a column of numbers in the table of items, or popularity:POWER with "
        f"a power from 0, such as popularity:0.5; got {propensity!r}."
    )


def _of_pairs(pairs: Ratings, relevant: Ratings) -> Doubles:
    """Return the propensities of pairs of a user and an item, NaN for none."""
    # Ids may be integers in one of both only.
    ids = pl.col("user", "item").cast(pl.String)
    propensity = pl.Series("propensity", pairs.values, pl.Float64)
    known = pairs.to_frame().select(ids, propensity)
    keys = relevant.to_frame().select(ids)
    joined = keys.join(known, on=["user", "item"], how="left", maintain_order="left")
    return joined["propensity"].to_numpy()


def corrected_values(
    lists: Lists,
    users: Counts,
    inverse: Ratings,
    ns: Sequence[int],
    metrics: Sequence[Metric],
) -> dict[str, Doubles]:
    """Return the corrected metrics of each list, and its `WEIGHT` in a mean over users."""
    n_relevant = inverse.counts("user")[users]
    rows = inverse.user_index_of_nonzeros()
    sums = np.bincount(rows, inverse.values, inverse.n_users)[users]
    weights = sums / n_relevant
    values: dict[str, Doubles] = {WEIGHT: weights}
    for n in ns:
        # The metrics are linear in the hits, which may be weights.
        hits = grades_of(lists[:, :n], users, inverse)
        arrays = {"hits": hits, "n_relevant": n_relevant}
        for metric in metrics:
            values[f"{metric.name}@{n}"] = metric._of_users(arrays) / weights
    return values

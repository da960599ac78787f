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
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np
import polars as pl

from recsys.data.arrays import Doubles, Floats, Mask
from recsys.data.csr import positions_of
from recsys.data.frames import FrameLike
from recsys.data.ratings import Ratings, pair_keys
from recsys.errors import DataError
from recsys.evaluation.metrics import CORRECTED, Counts, Lists, Metric, grades_of
from recsys.messages import close_matches, did_you_mean

LEAST = 50
"""Smallest effective sample size from which something is claimed."""
WEIGHT = "inverse_propensity"
"""Column of `Evaluation.per_user` with the mean of 1 / p over a user's relevant items."""
POPULARITY = "popularity"
# Metrics that are sums over the relevant items of a list.
_SUMS = ("precision", "recall", "ndcg", "rbp")

Propensity: TypeAlias = "str | Ratings | FrameLike"


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
    if isinstance(propensity, str):
        name, _, power = propensity.partition(":")
        if name == POPULARITY and power:
            of_items = _of_popularity(train, propensity, power)
        else:
            of_items = _of_column(train, propensity, relevant.counts("item") > 0)
        values = of_items[relevant.indices]
    else:
        values = _of_pairs(propensity, relevant)
    return relevant.with_values((1 / values).astype(np.float32))


def _of_popularity(
    train: Ratings,
    text: str,
    power: str,
) -> Doubles:
    """Return a power of the training ratings of each item, relative to the most popular one."""
    try:
        exponent = float(power)
    except ValueError:
        exponent = math.nan
    if not 0 <= exponent < math.inf:
        raise DataError(
            f"propensity must be a column, or popularity:POWER with a power from 0, such as "
            f"popularity:0.5; got {text!r}."
        )
    counts = np.maximum(train.counts("item"), 1)
    return np.asarray((counts / counts.max()) ** exponent)


def _of_column(
    train: Ratings,
    column: str,
    is_needed: Mask,
) -> Doubles:
    """Return the propensities in a column of the table of items."""
    table = train.item_table
    columns = [] if table is None else table.frame.columns[1:]
    if table is None or column not in columns:
        hint = did_you_mean(close_matches(column, columns, 1))
        raise DataError(
            f"The propensity must be popularity:POWER or a column of the table of items; got "
            f"{column!r}.{hint}"
        )
    numbers = table.frame[column].cast(pl.Float64, strict=False).to_numpy()
    rows = table.rows_of(train.items)
    is_given = rows >= 0
    # All rows are checked, also of items that are not tested.
    rows_to_check = np.flatnonzero(~_is_probability(numbers))
    for row in rows_to_check:
        value = table.frame[column][int(row)]
        if value is not None:
            raise DataError(
                f"Row {row + 1} of the table of items, item "
                f"{table.frame[table.kind][int(row)]!r}: {_wrong(column, value)}"
            )
    of_items = np.where(is_given, numbers[rows], np.nan)
    for index in np.flatnonzero(is_needed & np.isnan(of_items)):
        item = train.items.values[int(index)]
        row = rows[index]
        where = f"row {row + 1} of" if row >= 0 else "no row in"
        raise DataError(
            f"Item {item!r} has no {column} ({where} the table of items); a propensity is a "
            "probability in (0, 1]."
        )
    return np.asarray(of_items)


def _of_pairs(propensity: Ratings | FrameLike, relevant: Ratings) -> Doubles:
    """Return the propensities of pairs of a user and an item."""
    pairs = propensity
    if not isinstance(pairs, Ratings):
        pairs = Ratings.from_frame(pairs, rating="propensity", scale=(0, 1))
    is_wrong = ~_is_probability(pairs.values)
    for position in np.flatnonzero(is_wrong):
        raise DataError(
            f"{_named(pairs, int(position))}: "
            f"{_wrong('propensity', pairs.values[position])}"
        )
    users = pairs.users.find(relevant.users.values)
    items = pairs.items.find(relevant.items.values)
    rows = users[relevant.user_index_of_nonzeros()]
    columns = items[relevant.indices]
    keys = np.where((rows >= 0) & (columns >= 0), rows * pairs.n_items + columns, -1)
    positions = positions_of(keys, pair_keys(pairs))
    for position in np.flatnonzero(positions < 0):
        raise DataError(f"{_named(relevant, int(position))} has no propensity.")
    return pairs.values[positions].astype(np.float64)


def _is_probability(values: Doubles | Floats) -> Mask:
    """Mark the values in (0, 1]; NaN is not."""
    return np.asarray((values > 0) & (values <= 1))


def _wrong(name: str, value: object) -> str:
    return f"{name} must be a probability in (0, 1]; got {value}."


def _named(ratings: Ratings, position: int) -> str:
    """Return the user and the item of a rating."""
    user = int(np.searchsorted(ratings.indptr, position, side="right")) - 1
    item = int(ratings.indices[position])
    return f"User {ratings.users.values[user]!r}, item {ratings.items.values[item]!r}"


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


def too_small(size: float) -> str:
    """Return the reason why corrected metrics have no value."""
    return (
        f"the effective sample size is {size:.1f}, below {LEAST}: a few rare items decide the "
        "corrected metrics, which have no value"
    )

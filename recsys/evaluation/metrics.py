"""What is measured, and how it is defined.

Ranking metrics take a matrix of hits, one row per user and one column per rank: whether the item
at that rank is relevant. A user with fewer recommendations than ranks has misses in the rest.
They return one value per user.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recsys.errors import DataError
from recsys.ratings import Ratings
from recsys.topn import TopN

__all__ = ["DEFINITIONS", "hit_matrix", "mae", "ndcg", "precision", "recall", "rmse"]

Floats = NDArray[np.floating[Any]]
Doubles = NDArray[np.float64]
Hits = NDArray[np.bool_]
Counts = NDArray[np.integer[Any]]

DEFINITIONS = {
    "rmse": "square root of the mean squared difference of predicted and actual rating",
    "mae": "mean absolute difference of predicted and actual rating",
    "precision": "relevant items among the N recommended, divided by N",
    "recall": "relevant items among the N recommended, divided by the user's relevant items",
    "ndcg": "sum of 1 / log2(rank + 1) over relevant recommended items, divided by that sum over "
    "the ranks 1 to min(N, number of the user's relevant items)",
}
"""Each metric in words."""


def rmse(predicted: Floats, actual: Floats) -> float:
    """Root mean squared error, ``sqrt(mean((p - x)^2))``.

    Raises
    ------
    DataError
        If there is nothing to compare, or the shapes differ.
    """
    return float(np.sqrt(np.mean(np.square(_errors(predicted, actual)))))


def mae(predicted: Floats, actual: Floats) -> float:
    """Mean absolute error, ``mean(|p - x|)``.

    Raises
    ------
    DataError
        If there is nothing to compare, or the shapes differ.
    """
    return float(np.mean(np.abs(_errors(predicted, actual))))


def hit_matrix(tops: Iterable[TopN], users: Counts, relevant: Ratings, n: int) -> Hits:
    """Mark which recommendations are relevant.

    Parameters
    ----------
    tops : iterable of TopN
        Recommendations, block by block.
    users : int ndarray of shape (n_users,)
        The users who were asked for, in the order that `TopN.rows` counts.
    relevant : Ratings
        Its pairs are the relevant ones.
    n : int
        Number of ranks.

    Returns
    -------
    bool ndarray of shape (n_users, n)
    """
    pairs = relevant.user_index_of_nonzeros() * np.int64(relevant.n_items) + relevant.indices
    hits = np.zeros((len(users), n), dtype=np.bool_)
    for top in tops:
        asked = users[top.rows] * np.int64(relevant.n_items) + top.items
        places = np.minimum(np.searchsorted(pairs, asked), len(pairs) - 1)
        found = pairs[places] == asked
        hits[top.rows[found], top.ranks[found] - 1] = True
    return hits


def precision(hits: Hits) -> Doubles:
    """Precision at N, ``hits / N``: always divided by N, whatever was recommended or is relevant.

    Parameters
    ----------
    hits : bool ndarray of shape (n_users, N)
    """
    shares: Doubles = hits.sum(axis=1) / hits.shape[1]
    return shares


def recall(hits: Hits, n_relevant: Counts) -> Doubles:
    """Recall at N, ``hits / n_relevant``.

    Parameters
    ----------
    hits : bool ndarray of shape (n_users, N)
    n_relevant : int ndarray of shape (n_users,)
        Number of relevant items of each user, at least 1.
    """
    shares: Doubles = hits.sum(axis=1) / n_relevant
    return shares


def ndcg(hits: Hits, n_relevant: Counts) -> Doubles:
    """Normalised discounted cumulative gain at N with gains of 0 and 1.

    ``DCG = sum over hits of 1 / log2(rank + 1)``, divided by the DCG of the best possible list,
    which has min(N, n_relevant) hits in front.

    Parameters
    ----------
    hits : bool ndarray of shape (n_users, N)
    n_relevant : int ndarray of shape (n_users,)
        Number of relevant items of each user, at least 1.

    References
    ----------
    Järvelin and Kekäläinen (2002), "Cumulated gain-based evaluation of IR techniques".
    """
    n = hits.shape[1]
    discounts = 1 / np.log2(np.arange(2, n + 2))
    ideal = np.cumsum(discounts)[np.minimum(n, n_relevant) - 1]
    gains: Doubles = hits @ discounts / ideal
    return gains


def _errors(predicted: Floats, actual: Floats) -> Doubles:
    if predicted.shape != actual.shape or not predicted.size:
        raise DataError(
            "Predicted and actual ratings must be as many, and some; "
            f"got shapes {predicted.shape} and {actual.shape}."
        )
    return np.subtract(predicted, actual, dtype=np.float64)

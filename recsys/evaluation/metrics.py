"""Accuracy: what is measured, and how it is defined.

Ranking metrics take a matrix of hits, one row per user and one column per rank: whether the item
at that rank is relevant, which the user's test items are (or those rated highly enough). They
return one value per user. The same holds for all of them:

- N is the number of columns, whatever was recommended: a user with fewer recommendations than N
  has misses in the rest.
- Ranks are what the model says: equal scores go by the lower item index, so none are shared.
- Users without relevant items have no value. They are not asked for, and no mean counts them.

`recsys.evaluation.beyond` has what is measured besides accuracy.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from recsys.errors import DataError
from recsys.evaluation.parts import pair_keys
from recsys.ratings import Ratings

__all__ = [
    "DEFINITIONS",
    "DIRECTIONS",
    "Hits",
    "Lists",
    "average_precision",
    "hit_matrix",
    "hit_rate",
    "mae",
    "ndcg",
    "precision",
    "recall",
    "reciprocal_rank",
    "rmse",
]

Floats = NDArray[np.floating[Any]]
Doubles = NDArray[np.float64]
Hits = NDArray[np.bool_]
Counts = NDArray[np.integer[Any]]
Lists = NDArray[np.int32]
"""Recommended items, shape (n_users, N), best first; -1 where a list is shorter than N."""

DEFINITIONS = {
    "rmse": "square root of the mean squared difference of predicted and actual rating",
    "mae": "mean absolute difference of predicted and actual rating",
    "precision": "relevant items among the N recommended, divided by N",
    "recall": "relevant items among the N recommended, divided by the user's relevant items",
    "hit_rate": "1 if any of the N recommended items is relevant, else 0",
    "map": "sum of the precision at the rank of each relevant recommended item, divided by "
    "min(N, number of the user's relevant items)",
    "mrr": "1 / rank of the first relevant item among the N recommended, 0 if there is none",
    "ndcg": "sum of 1 / log2(rank + 1) over relevant recommended items, divided by that sum over "
    "the ranks 1 to min(N, number of the user's relevant items)",
    "coverage": "share of the items with training ratings that are recommended to anyone",
    "novelty": "mean over the recommended items of -log2(share of the users who have rated the "
    "item in the training part)",
    "diversity": "mean over the pairs of recommended items of 1 - cosine of who has rated them, "
    "in the best approximation of rank 32 of the training matrix of ones",
    "gini": "Gini index of how often each item is recommended: 0 if all are equally often, near 1 "
    "if a few are always",
    "popularity_bias": "mean share of users who have rated the recommended items, minus the same "
    "mean over the items that the user has rated in the training part",
}
"""Each metric in words. Values are means over users, but for rmse, mae, coverage and gini."""

DIRECTIONS = {
    **dict.fromkeys(["rmse", "mae"], -1),
    **dict.fromkeys(["precision", "recall", "hit_rate", "map", "mrr", "ndcg"], 1),
    **dict.fromkeys(["coverage", "novelty", "diversity", "gini", "popularity_bias"], 0),
}
"""1 where more is better, -1 where less is, 0 where it depends on what is wanted."""


def rmse(predicted: Floats, actual: Floats) -> float:
    """Root mean squared error, ``sqrt(mean((p - x)^2))``, over ratings and not over users.

    There are no ranks and so no ties; a user without test ratings adds nothing.

    Raises
    ------
    DataError
        If there is nothing to compare, or the shapes differ.
    """
    return float(np.sqrt(np.mean(np.square(_errors(predicted, actual)))))


def mae(predicted: Floats, actual: Floats) -> float:
    """Mean absolute error, ``mean(|p - x|)``, over ratings and not over users.

    There are no ranks and so no ties; a user without test ratings adds nothing.

    Raises
    ------
    DataError
        If there is nothing to compare, or the shapes differ.
    """
    return float(np.mean(np.abs(_errors(predicted, actual))))


def hit_matrix(lists: Lists, users: Counts, relevant: Ratings) -> Hits:
    """Mark which recommendations are relevant.

    Parameters
    ----------
    lists : int32 ndarray of shape (n_users, N)
        Recommended items, -1 where there is none.
    users : int ndarray of shape (n_users,)
        Whose they are.
    relevant : Ratings
        Its pairs are the relevant ones.

    Returns
    -------
    bool ndarray of shape (n_users, N)

    Examples
    --------
    >>> relevant = Ratings.from_matrix(np.array([[np.nan, 1, 1], [1, np.nan, np.nan]]))
    >>> hit_matrix(np.array([[2, 0], [0, -1]], dtype=np.int32), np.array([0, 1]), relevant)
    array([[ True, False],
           [ True, False]])
    """
    known = pair_keys(relevant)
    if not len(known):
        return np.zeros(lists.shape, dtype=np.bool_)
    asked = users[:, None] * np.int64(relevant.n_items) + lists
    places = np.minimum(np.searchsorted(known, asked), len(known) - 1)
    hits: Hits = (known[places] == asked) & (lists >= 0)
    return hits


def precision(hits: Hits) -> Doubles:
    """Precision at N, ``hits / N``: always divided by N, whatever was recommended or is relevant.

    Ties: of equal scores the lower item index has the better rank, so no rank is shared. Users
    without relevant items have no value: they are not asked for, and no mean counts them.

    Parameters
    ----------
    hits : bool ndarray of shape (n_users, N)

    Examples
    --------
    >>> precision(np.array([[True, False, True, False]]))
    array([0.5])
    """
    shares: Doubles = hits.sum(axis=1) / hits.shape[1]
    return shares


def recall(hits: Hits, n_relevant: Counts) -> Doubles:
    """Recall at N, ``hits / n_relevant``; it cannot reach 1 where more than N are relevant.

    Ties: of equal scores the lower item index has the better rank, so no rank is shared. Users
    without relevant items have no value: they are not asked for, and no mean counts them.

    Parameters
    ----------
    hits : bool ndarray of shape (n_users, N)
    n_relevant : int ndarray of shape (n_users,)
        Number of relevant items of each user, at least 1.

    Examples
    --------
    >>> recall(np.array([[True, False, True, False]]), np.array([8]))
    array([0.25])
    """
    shares: Doubles = hits.sum(axis=1) / n_relevant
    return shares


def hit_rate(hits: Hits) -> Doubles:
    """Hit rate at N: 1 for a user with a hit, 0 for a user without.

    Ties: of equal scores the lower item index has the better rank, so no rank is shared. Users
    without relevant items have no value: they are not asked for, and no mean counts them.

    Parameters
    ----------
    hits : bool ndarray of shape (n_users, N)

    Examples
    --------
    >>> hit_rate(np.array([[True, False], [False, False]]))
    array([1., 0.])
    """
    found: Doubles = np.asarray(hits.any(axis=1), dtype=np.float64)
    return found


def average_precision(hits: Hits, n_relevant: Counts) -> Doubles:
    """Average precision at N, whose mean over users is MAP.

    ``sum over hits of precision at the hit's rank / min(N, n_relevant)``. So a list with as many
    hits in front as there can be has 1. (trec_eval and ranx divide by n_relevant also where that
    is more than N.)

    Ties: of equal scores the lower item index has the better rank, so no rank is shared. Users
    without relevant items have no value: they are not asked for, and no mean counts them.

    Parameters
    ----------
    hits : bool ndarray of shape (n_users, N)
    n_relevant : int ndarray of shape (n_users,)
        Number of relevant items of each user, at least 1.

    Examples
    --------
    >>> average_precision(np.array([[True, False, True, False]]), np.array([2]))
    array([0.83333333])
    """
    n = hits.shape[1]
    precisions = np.cumsum(hits, axis=1) / np.arange(1, n + 1)
    sums = np.where(hits, precisions, 0.0).sum(axis=1)
    average: Doubles = sums / np.minimum(n, n_relevant)
    return average


def reciprocal_rank(hits: Hits) -> Doubles:
    """Reciprocal rank at N, whose mean over users is MRR: ``1 / rank of the first hit``, or 0.

    Ties: of equal scores the lower item index has the better rank, so no rank is shared. Users
    without relevant items have no value: they are not asked for, and no mean counts them.

    Parameters
    ----------
    hits : bool ndarray of shape (n_users, N)

    Examples
    --------
    >>> reciprocal_rank(np.array([[False, True, True], [False, False, False]]))
    array([0.5, 0. ])
    """
    ranks: Doubles = np.where(hits.any(axis=1), 1 / (1.0 + hits.argmax(axis=1)), 0.0)
    return ranks


def ndcg(hits: Hits, n_relevant: Counts) -> Doubles:
    """Normalised discounted cumulative gain at N with gains of 0 and 1.

    ``DCG = sum over hits of 1 / log2(rank + 1)``, divided by the DCG of the best possible list,
    which has min(N, n_relevant) hits in front.

    Ties: of equal scores the lower item index has the better rank, so no rank is shared. Users
    without relevant items have no value: they are not asked for, and no mean counts them.

    Parameters
    ----------
    hits : bool ndarray of shape (n_users, N)
    n_relevant : int ndarray of shape (n_users,)
        Number of relevant items of each user, at least 1.

    References
    ----------
    Järvelin and Kekäläinen (2002), "Cumulated gain-based evaluation of IR techniques".

    Examples
    --------
    >>> ndcg(np.array([[True, False, True]]), np.array([2]))
    array([0.91972079])
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

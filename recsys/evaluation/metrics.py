"""Metrics of predictions and of lists."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recsys.data.ratings import Ratings
from recsys.errors import DataError
from recsys.evaluation.splits import has_ratings, pair_keys

__all__ = [
    "Catalogue",
    "DEFINITIONS",
    "DIRECTIONS",
    "Hits",
    "Lists",
    "RANK",
    "average_precision",
    "coverage",
    "diversity",
    "gini",
    "gini_of_counts",
    "hit_matrix",
    "hit_rate",
    "item_directions",
    "mae",
    "ndcg",
    "novelty",
    "popularity_bias",
    "precision",
    "recall",
    "reciprocal_rank",
    "recommended_counts",
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


RANK = 32
"""Rank of the approximation of who rated what, in which likeness of items is measured."""

_TOL = 1e-3  # residual of its singular vectors: no digit of a mean that is shown depends on it


@dataclass(frozen=True, slots=True)
class Catalogue:
    """What is known of the items from the training part.

    Attributes
    ----------
    popularity : float64 ndarray of shape (n_items,)
        Share of the users with training ratings who have rated the item.
    information : float64 ndarray of shape (n_items,)
        ``-log2(popularity)``; an item that nobody has rated counts as rated by one.
    directions : float64 ndarray of shape (n_items, k)
        As `item_directions` makes them.
    """

    popularity: Doubles
    information: Doubles
    directions: Doubles

    @classmethod
    def of(cls, train: Ratings) -> Catalogue:
        """Count and factorise the training ratings."""
        counts = np.bincount(train.indices, minlength=train.n_items)
        n_users = max(1, int(np.count_nonzero(has_ratings(train))))
        information = np.log2(n_users / np.maximum(counts, 1))
        return cls(counts / n_users, information, item_directions(train))

    def profile(self, seen: Ratings, users: Counts) -> Doubles:
        """Return the mean popularity of what users have rated, shape (n_users,).

        For a user who has rated nothing, it is the mean over all ratings.
        """
        counts = np.diff(seen.indptr)
        sums = np.bincount(
            seen.user_index_of_nonzeros(), self.popularity[seen.indices], minlength=seen.n_users
        )
        everybody = float(sums.sum() / max(1, seen.n_ratings))
        means = np.divide(sums, counts, out=np.full(seen.n_users, everybody), where=counts > 0)
        of_users: Doubles = means[users]
        return of_users


def coverage(lists: Lists, n_items: int) -> float:
    """Catalogue coverage: the share of the n_items that is recommended to anyone.

    Ties matter only at the cut, where of equal scores the lower item index gets in; users without
    relevant test items are not asked for.

    Examples
    --------
    >>> coverage(np.array([[0, 1], [0, -1]], dtype=np.int32), 4)
    0.5
    """
    return float(np.count_nonzero(recommended_counts(lists, n_items)) / n_items)


def gini(lists: Lists, n_items: int) -> float:
    """Gini index of the numbers of times that items are recommended.

    With c_1 <= ... <= c_m, the times that each of the m items is, those never included::

        sum_j (2 j - m - 1) c_j / (m sum_j c_j)

    0 if all items are recommended equally often, ``1 - 1 / m`` if one alone is.

    Ties matter only at the cut, where of equal scores the lower item index gets in; users without
    relevant test items are not asked for.

    Examples
    --------
    >>> gini(np.array([[0], [0]], dtype=np.int32), 4)
    0.75
    """
    return gini_of_counts(recommended_counts(lists, n_items))


def gini_of_counts(counts: Counts) -> float:
    """Gini index of counts; 0 where all are 0."""
    m, total = len(counts), int(counts.sum())
    if not total:
        return 0.0
    weights = 2 * np.arange(1, m + 1, dtype=np.int64) - m - 1
    return float(np.dot(weights, np.sort(counts)) / (m * total))


def novelty(lists: Lists, information: Doubles) -> Doubles:
    """Mean self-information of each user's recommendations, ``mean(-log2 p_i)``.

    ``p_i`` is the share of users who have rated item i in the training part. NaN for a user
    without recommendations.

    Ties matter only at the cut, where of equal scores the lower item index gets in; users without
    relevant test items are not asked for.

    Parameters
    ----------
    lists : int32 ndarray of shape (n_users, N)
    information : float64 ndarray of shape (n_items,)

    References
    ----------
    Zhou et al. (2010), "Solving the apparent diversity-accuracy dilemma of recommender systems".
    """
    return _list_means(lists, information)


def popularity_bias(lists: Lists, popularity: Doubles, profile: Doubles) -> Doubles:
    """How much more popular each user's recommendations are than what the user has rated.

    ``mean over recommended items of p_i - mean over the user's training items of p_i``, where
    ``p_i`` is the share of users who have rated item i in the training part: 0 is no bias, 0.1
    that a recommended item has been rated by a tenth of all users more. NaN for a user without
    recommendations.

    Ties matter only at the cut, where of equal scores the lower item index gets in; users without
    relevant test items are not asked for.

    Parameters
    ----------
    lists : int32 ndarray of shape (n_users, N)
    popularity : float64 ndarray of shape (n_items,)
    profile : float64 ndarray of shape (n_users,)
        The second mean; see `Catalogue.profile`.

    References
    ----------
    Abdollahpouri et al. (2019), "The unfairness of popularity bias in recommendation", section 3,
    who divide by the second mean where this subtracts it, so that few-rated tastes do not dominate.
    """
    return _list_means(lists, popularity) - profile


def diversity(lists: Lists, directions: Doubles) -> Doubles:
    """Intra-list diversity: the mean of ``1 - cosine`` over the pairs of recommended items.

    NaN for a user with fewer than two recommendations. In a formula, over the items i and j of a
    list of length m, ``sum over i != j of (1 - cos(v_i, v_j)) / (m (m - 1))``.

    Ties matter only at the cut, where of equal scores the lower item index gets in; users without
    relevant test items are not asked for.

    Parameters
    ----------
    lists : int32 ndarray of shape (n_users, N)
    directions : float64 ndarray of shape (n_items, k)
        Unit vectors of the items, or zeros, whose cosine with anything is 0.

    Notes
    -----
    The sum over the ordered pairs of different items is ``|sum v|^2 - sum |v|^2``, so no pair is
    looked at.

    References
    ----------
    Ziegler et al. (2005), "Improving recommendation lists through topic diversification".
    """
    lengths = np.count_nonzero(lists >= 0, axis=1)
    sizes = np.einsum("ij,ij->i", directions, directions)
    sums = _list_sums(lists, directions)
    likeness = np.einsum("ij,ij->i", sums, sums) - _list_sums(lists, sizes[:, None])[:, 0]
    pairs = lengths * (lengths - 1)
    nothing = np.full(len(lists), np.nan)
    means: Doubles = 1 - np.divide(likeness, pairs, out=nothing, where=pairs > 0)
    return means


def item_directions(train: Ratings, k: int = RANK) -> Doubles:
    """Return unit vectors of the items whose cosines say who is rated by the same users.

    The cosine of the columns of the matrix that is 1 where a user has rated an item, in its best
    approximation of rank k, which leaves out chance meetings. Where k is the rank or more, it is
    the plain cosine of co-occurrence, ``|U_i & U_j| / sqrt(|U_i| |U_j|)``.

    Returns
    -------
    float64 ndarray of shape (n_items, min(k, n_users, n_items))
        A row of zeros for an item that nobody has rated.
    """
    import scipy.sparse as sp

    from lowrank import truncated_svd

    ones = np.ones(train.n_ratings, dtype=np.float32)
    who = sp.csr_array((ones, train.indices, train.indptr), shape=train.shape)
    found = truncated_svd(who, min(k, *train.shape), tol=_TOL, random_state=0)
    vectors = found.Vt.T.astype(np.float64) * found.s
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    rated = np.bincount(train.indices, minlength=train.n_items) > 0
    directions: Doubles = np.divide(
        vectors, lengths, out=np.zeros_like(vectors), where=(lengths > 0) & rated[:, None]
    )
    return directions


def recommended_counts(lists: Lists, n_items: int) -> NDArray[np.int64]:
    """Return how often each item is recommended, shape (n_items,)."""
    return np.bincount(lists[lists >= 0], minlength=n_items)


def _list_means(lists: Lists, values: Doubles) -> Doubles:
    lengths = np.count_nonzero(lists >= 0, axis=1)
    sums = _list_sums(lists, values[:, None])[:, 0]
    nothing = np.full(len(lists), np.nan)
    means: Doubles = np.divide(sums, lengths, out=nothing, where=lengths > 0)
    return means


def _list_sums(lists: Lists, values: Doubles) -> Doubles:
    """Sum the rows of `values` over each list, shape (n_users, k)."""
    import scipy.sparse as sp

    given = lists >= 0
    indptr = np.zeros(len(lists) + 1, dtype=np.int64)
    np.cumsum(np.count_nonzero(given, axis=1), out=indptr[1:])
    items = lists[given]
    chosen: Any = sp.csr_array(
        (np.ones(len(items)), items, indptr), shape=(len(lists), len(values))
    )
    sums: Doubles = chosen @ values
    return sums

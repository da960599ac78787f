"""Beyond accuracy: how varied, how new and how popular recommendations are, and for whom.

All take lists of recommended items, -1 where a list is shorter than N. The rank of an item in its
list plays no part, and test items don't either; still, only users with relevant test items are
asked for, as for accuracy, so that all means are over the same users.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recsys.evaluation.metrics import Counts, Doubles, Lists
from recsys.evaluation.parts import has_ratings
from recsys.ratings import Ratings

__all__ = [
    "RANK",
    "Catalogue",
    "coverage",
    "diversity",
    "gini",
    "gini_of_counts",
    "item_directions",
    "novelty",
    "popularity_bias",
    "recommended_counts",
]

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

"""Neighbours: training users with the same latest items."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from lowrank import kernels
from lowrank.kernels.retrieval import sparse_rows
from recsys.models.parts import Doubles, Floats, Indices

if TYPE_CHECKING:
    from recsys.models.sequences import Sparse

NEIGHBOR_GAMMA = math.exp(-1)
"""Weight of an item one place back: neighbours share the latest items, not any."""

_ROUNDING = 1e-5  # of sums of weights
_NEWNESS = 1e-6  # far below the differences between sums of weights
_SEARCHED = 2048  # users whose neighbours are sought at a time
_CANDIDATES = 500  # newest users of an item that may be neighbours


class Neighborhood(NamedTuple):
    """Training users that share the latest items of some users.

    Attributes
    ----------
    latest : csr_array of shape (n_users, n_items)
        The latest items of the users, by which neighbours are sought.
    common : csr_array of shape (n_users, n_training_users)
        Sums of the weights in `latest` over the items that neighbours have, too.
    histories : csr_array of shape (n_training_users, n_items)
    """

    latest: Sparse
    common: Sparse
    histories: Sparse

    @property
    def shares(self) -> Sparse:
        """Shares of the neighbours in a score: the squares of what they share, of sum 1."""
        shares = self.common.copy()
        rows = shares.tocoo().coords[0]
        totals = self._totals()
        shares.data **= 2
        shares.data /= totals[rows]
        return shares

    def scores(self) -> Floats:
        """Return the mean of the histories of the neighbours, weighted by squares."""
        histories = kernels.csr_arrays(self.histories)
        shares = kernels.csr_arrays(self.shares)
        return sparse_rows(shares, histories, self.histories.shape[1])

    def terms(self, rated: NDArray[np.int32], items: Indices) -> Floats:
        """Return the contributions of rated items of a single user to the scores of items.

        A square is the common sum times the weights of the rated items in it.
        """
        common = self.common.toarray()[0]
        neighbors = np.flatnonzero(common)
        have = self.histories[neighbors]
        of_neighbors = common[neighbors]
        shared = have[:, rated].toarray()
        shared *= of_neighbors[:, None]
        recommended = have[:, items].toarray()
        terms: Floats = shared.T @ recommended
        latest = self.latest.toarray()
        weights = latest[0, rated]
        weights /= self._totals()
        terms *= weights[:, None]
        return terms

    def _totals(self) -> Floats:
        """Return the total weight of the neighbours of each user, or 1 without any."""
        squares = np.square(self.common.data, dtype=np.float64)
        rows = self.common.tocoo().coords[0]
        n_users = self.common.shape[0]
        totals = np.bincount(rows, squares, n_users)
        totals[totals == 0] = 1
        return totals.astype(np.float32)


class TrainingUsers(NamedTuple):
    """Users among whom neighbours are sought.

    Attributes
    ----------
    histories : csr_array of shape (n_users, n_items)
        Ones for the items of each user.
    newest : csr_array of shape (n_items, n_users)
        Ones for the newest users of each item.
    newness : float64 ndarray of shape (n_users,)
        Place of each user in the order of the latest times, from 0 to 1.
    """

    histories: Sparse
    newest: Sparse
    newness: Doubles

    @classmethod
    def of(cls, histories: Sparse, ranks: Indices) -> Self:
        """Find the newest users of each item, by their place in the order of time."""
        histories = histories.copy()
        histories.sort_indices()
        newest = _newest_users(histories, ranks)
        n_users = max(1, len(ranks))
        return cls(
            histories,
            newest,
            newness=ranks / n_users,
        )

    def neighborhood(self, latest: Sparse, lengths: Indices, n: int) -> Neighborhood:
        """Return the n nearest users of each row of latest items, from histories of some length."""
        from scipy.sparse import vstack

        n_users = max(1, len(lengths))
        parts = []
        for rows in kernels.pieces(n_users, _SEARCHED):
            nearest = self._nearest(latest[rows], lengths[rows], n)
            parts.append(nearest)
        common = vstack(parts, format="csr")
        return Neighborhood(
            latest,
            common,
            self.histories,
        )

    def _nearest(self, latest: Sparse, lengths: Indices, n: int) -> Sparse:
        """Return the sums of the weights that the nearest users share."""
        from scipy.sparse import csr_array

        common = (latest @ self.newest).tocsr()
        rows = common.tocoo().coords[0]
        # Who has the same items, such as the user in the training data, tells nothing new.
        all_lengths = np.diff(self.histories.indptr)
        lengths_of_neighbors = all_lengths[common.indices]
        totals: Floats = latest.sum(axis=1)
        smallest = (1 - _ROUNDING) * totals
        is_other = lengths_of_neighbors != lengths[rows]
        is_other |= common.data < smallest[rows]
        # Of users who share as much, the newest are nearer.
        nearness = common.data.astype(np.float64)
        nearness += _NEWNESS * self.newness[common.indices]
        nearness[~is_other] = 0
        n_candidates = np.diff(common.indptr)
        most = int(n_candidates.max(initial=0))
        width = max(n, most)
        n_users = len(lengths)
        padded = np.zeros((n_users, width))
        starts = np.repeat(common.indptr[:-1], n_candidates)
        places = np.arange(len(rows)) - starts
        padded[rows, places] = nearness
        padded.partition(width - n, axis=1)
        cuts = padded[:, width - n]
        is_near = is_other & (nearness >= cuts[rows])
        counts = np.bincount(rows[is_near], minlength=n_users)
        ends = np.cumsum(counts)
        arrays = (
            common.data[is_near],
            common.indices[is_near],
            np.append(0, ends),
        )
        return csr_array(arrays, shape=common.shape)


def _newest_users(histories: Sparse, ranks: Indices) -> Sparse:
    """Return the newest users of each item, as a matrix of shape (n_items, n_users)."""
    from scipy.sparse import csr_array

    # With the newest users first, so are the users of each item.
    newest_first = np.argsort(-ranks)
    by_item = histories[newest_first].T.tocsr()
    lengths = np.diff(by_item.indptr)
    starts = np.repeat(by_item.indptr[:-1], lengths)
    places = np.arange(by_item.nnz) - starts
    is_new = places < _CANDIDATES
    users = newest_first[by_item.indices[is_new]]
    counts = np.minimum(lengths, _CANDIDATES)
    ends = np.cumsum(counts)
    arrays = (
        np.ones(len(users), np.float32),
        users,
        np.append(0, ends),
    )
    return csr_array(arrays, shape=by_item.shape)

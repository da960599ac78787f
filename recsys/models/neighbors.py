"""Neighbours: training users with the same latest items."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from lowrank import kernels
from recsys.models.parts import Doubles, Floats, Indices

if TYPE_CHECKING:
    from recsys.models.sequences import Sparse

NEIGHBOR_GAMMA = math.exp(-1)
"""Weight of an item one place back: neighbours share the latest items, not any."""

_ROUNDING = 1e-5  # of sums of weights
_NEWNESS = 1e-6  # far below the differences between sums of weights
_SEARCHED = 2048  # users whose neighbours are sought at a time
_CANDIDATES = 500  # newest users of an item that may be neighbours
_SUMMED = 256  # users whose neighbours are summed at a time
_DISTANCE = 2.0  # places from the latest shared item after which an item counts a third


class Neighborhood(NamedTuple):
    """Training users that share the latest items of some users.

    A pair is a user with a neighbour.

    Attributes
    ----------
    latest : csr_array of shape (n_users, n_items)
        The latest items of the users, by which neighbours are sought.
    common : csr_array of shape (n_users, n_training_users)
        Sums of the weights in `latest` over the items that neighbours have, too.
    histories : csr_array of shape (n_training_users, n_items)
        Places of the items of each training user, from 1.
    """

    latest: Sparse
    common: Sparse
    histories: Sparse

    def scores(self) -> Sparse:
        """Return the mean of the histories of the neighbours, weighted by squares.

        A square is that of what a neighbour shares. In its history, an item counts less
        with its distance from the latest shared one.
        """
        from scipy.sparse import csr_array, vstack

        n_users = max(1, self.latest.shape[0])
        totals = self._totals()
        scores = []
        for rows in kernels.pieces(n_users, _SUMMED):
            common = self.common[rows]
            pairs = np.arange(common.nnz)
            squares = common.data**2
            shape = (common.shape[0], common.nnz)
            of_pairs = csr_array((squares, pairs, common.indptr), shape=shape)
            of_users = of_pairs @ self._near(rows)
            of_users.data /= np.repeat(totals[rows], np.diff(of_users.indptr))
            scores.append(of_users)
        summed: Sparse = vstack(scores, format="csr")
        return summed

    def terms(self, rated: NDArray[np.int32], items: Indices) -> Floats:
        """Return the contributions of rated items of a single user to the scores of items.

        A square is the common sum times the weights of the rated items in it.
        """
        neighbors = self.common.indices
        shared = (self.histories[neighbors][:, rated] > 0).astype(np.float32).toarray()
        shared *= self.common.data[:, None]
        recommended = self._near(slice(0, 1))[:, items].toarray()
        terms: Floats = shared.T @ recommended
        latest = self.latest.toarray()
        weights = latest[0, rated]
        weights /= self._totals()
        terms *= weights[:, None]
        return terms

    def _near(self, rows: slice) -> Sparse:
        """Return a history for each pair, in which items near the latest shared one count."""
        common = self.common[rows]
        near = self.histories[common.indices].astype(np.float32)
        users = np.repeat(np.arange(common.shape[0]), np.diff(common.indptr))
        lengths = np.diff(near.indptr)
        latest = self.latest[rows].toarray()
        weights = latest[np.repeat(users, lengths), near.indices]
        # Each neighbour shares an item, so that no history is empty.
        starts = near.indptr[:-1]
        if len(starts):
            most = np.maximum.reduceat(weights, starts)
            is_latest = weights == np.repeat(most, lengths)
            shared_places = np.where(is_latest, near.data, 0)
            place = np.maximum.reduceat(shared_places, starts)
            distances = np.abs(near.data - np.repeat(place, lengths))
            near.data = np.exp(-distances / np.float32(_DISTANCE))
        return near

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
        Places of the items of each user, from 1.
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
        """Find the newest users of each item, by their place in the order of time.

        The items of each user are in the order of time, too.
        """
        starts = np.repeat(histories.indptr[:-1], np.diff(histories.indptr))
        places = histories.copy()
        places.data = (np.arange(places.nnz) - starts + 1).astype(np.float32)
        places.sort_indices()
        newest = _newest_users(places, ranks)
        n_users = max(1, len(ranks))
        return cls(
            places,
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

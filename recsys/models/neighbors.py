"""Neighbours: training users with the same latest items."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from lowrank import kernels
from recsys.models.parts import Floats, Indices
from recsys.models.sequences import reach

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
_REACH = reach(math.exp(-1 / _DISTANCE))  # places from it within which an item counts


class Neighborhood(NamedTuple):
    """Training users that share the latest items of some users.

    A pair is a user with a neighbour.

    Attributes
    ----------
    latest : csr_array of shape (n_users, n_items)
        The latest items of the users, by which neighbours are sought.
    common : csr_array of shape (n_users, n_training_users)
        Sums of the weights in `latest` over the items that neighbours have, too.
    training_users : TrainingUsers
        All training users.
    """

    latest: Sparse
    common: Sparse
    training_users: TrainingUsers

    def scores(self) -> Sparse:
        """Return the mean of the histories of the neighbours, weighted by squares.

        What a neighbour shares is squared. In its history, an item counts less with its
        distance from the latest shared one.
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
            n_scored = np.diff(of_users.indptr)
            of_users.data /= np.repeat(totals[rows], n_scored)
            scores.append(of_users)
        summed: Sparse = vstack(scores, format="csr")
        return summed

    def terms(self, rated: NDArray[np.int32], items: Indices) -> Floats:
        """Return the contributions of rated items of a single user to the scores of items.

        A square is the common sum times the weights of the rated items in it.
        """
        neighbors = self.common.indices
        places = self.training_users.places[neighbors]
        is_shared = places[:, rated] > 0
        shared = is_shared.astype(np.float32).toarray()
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
        from scipy.sparse import csr_array

        histories = self.training_users.histories
        neighbors = self.common[rows].indices
        shared_places = self._shared_places(rows)
        starts = histories.indptr[neighbors]
        ends = histories.indptr[neighbors + 1]
        shared = starts + shared_places - 1
        first = shared - _REACH
        last = shared + _REACH
        near_starts = np.maximum(first, starts)
        near_ends = np.minimum(last + 1, ends)
        # With the bounds as row pointers, every second row is a part of a history.
        bounds = np.stack([near_starts, near_ends], axis=1)
        bounds = bounds.astype(np.int64).ravel()
        pairs = np.arange(0, len(bounds), 2)
        entries, indptr = kernels.row_places(bounds, pairs)
        lengths = np.diff(indptr)
        shared_entries = np.repeat(shared, lengths)
        distances = np.abs(entries - shared_entries)
        nearness = np.exp(-distances / np.float32(_DISTANCE))
        nearness = nearness.astype(np.float32)
        near_items = histories.indices[entries]
        shape = (len(neighbors), histories.shape[1])
        return csr_array((nearness, near_items, indptr), shape=shape)

    def _shared_places(self, rows: slice) -> Indices:
        """Return the place of the latest shared item in the history of each pair."""
        common = self.common[rows]
        if not common.nnz:
            return np.zeros(0, np.int64)
        latest = self.latest[rows]
        n_neighbors = np.diff(common.indptr)
        users = np.repeat(np.arange(len(n_neighbors)), n_neighbors)
        starts = latest.indptr.astype(np.int64)
        entries, indptr = kernels.row_places(starts, users)
        n_latest = np.diff(indptr)
        neighbors = np.repeat(common.indices, n_latest)
        items = latest.indices[entries]
        places = self.training_users.places[neighbors, items]
        weights = np.where(places > 0, latest.data[entries], 0)
        # Each neighbour shares an item with the largest weight.
        most = np.maximum.reduceat(weights, indptr[:-1])
        is_latest = weights == np.repeat(most, n_latest)
        shared_places = np.where(is_latest, places, 0)
        latest_places = np.maximum.reduceat(shared_places, indptr[:-1])
        return latest_places.astype(np.int64)

    def _totals(self) -> Floats:
        """Return the total weight of the neighbours of each user, or 1 without any."""
        squares = np.square(self.common.data, dtype=np.float64)
        rows = self.common.tocoo().coords[0]
        n_users = self.common.shape[0]
        totals = np.bincount(rows, squares, n_users)
        has_no_neighbors = totals == 0
        totals[has_no_neighbors] = 1
        return totals.astype(np.float32)


class TrainingUsers(NamedTuple):
    """Users among whom neighbours are sought, the newest last.

    Attributes
    ----------
    histories : csr_array of shape (n_users, n_items)
        Ones for the items of each user, in the order of time.
    places : csr_array of shape (n_users, n_items)
        Places of the items of each user, from 1.
    newest : csr_array of shape (n_items, n_users)
        Ones for the newest users of each item.
    """

    histories: Sparse
    places: Sparse
    newest: Sparse

    @classmethod
    def of(cls, histories: Sparse, ranks: Indices) -> Self:
        """Put the users in their order of time, and find the newest of each item.

        The items of each user are in the order of time, too.
        """
        in_order = np.argsort(ranks)
        histories = histories[in_order]
        lengths = np.diff(histories.indptr)
        starts = np.repeat(histories.indptr[:-1], lengths)
        places = histories.copy()
        place = np.arange(1, histories.nnz + 1) - starts
        places.data = place.astype(np.float32)
        places.sort_indices()
        newest = histories.T.tocsr()
        n_users_of_items = np.diff(newest.indptr)
        ends = np.repeat(newest.indptr[1:], n_users_of_items)
        n_newer = ends - np.arange(newest.nnz)
        is_new = n_newer <= _CANDIDATES
        newest.data = is_new.astype(np.float32)
        newest.eliminate_zeros()
        return cls(histories, places, newest)

    def neighborhood(self, latest: Sparse, lengths: Indices, n: int) -> Neighborhood:
        """Return the n nearest users of each row of latest items, from histories of some length."""
        from scipy.sparse import vstack

        n_users = max(1, len(lengths))
        parts = [
            self._nearest(latest[rows], lengths[rows], n)
            for rows in kernels.pieces(n_users, _SEARCHED)
        ]
        return Neighborhood(latest, vstack(parts, format="csr"), self)

    def _nearest(self, latest: Sparse, lengths: Indices, n: int) -> Sparse:
        """Return the sums of the weights that the nearest users share."""
        common: Sparse = (latest @ self.newest).tocsr()
        rows = common.tocoo().coords[0]
        # Who has the same items, such as the user in the training data, tells nothing new.
        all_lengths = np.diff(self.histories.indptr)
        lengths_of_neighbors = all_lengths[common.indices]
        totals: Floats = latest.sum(axis=1)
        smallest = (1 - _ROUNDING) * totals
        is_other = lengths_of_neighbors != lengths[rows]
        is_other |= common.data < smallest[rows]
        # Of users who share as much, the newest are nearer.
        n_training_users = max(1, len(all_lengths))
        newness = common.indices / n_training_users
        nearness = common.data + _NEWNESS * newness
        nearness[~is_other] = 0
        n_candidates = np.diff(common.indptr)
        width = max(n, int(n_candidates.max(initial=0)))
        starts = np.repeat(common.indptr[:-1], n_candidates)
        places = np.arange(len(rows)) - starts
        shape = (len(lengths), width)
        padded = np.zeros(shape)
        padded[rows, places] = nearness
        # The n-th largest value of each user.
        cut = width - n
        padded.partition(cut, axis=1)
        cuts = padded[:, cut]
        is_near = is_other & (nearness >= cuts[rows])
        common.data[~is_near] = 0
        common.eliminate_zeros()
        return common

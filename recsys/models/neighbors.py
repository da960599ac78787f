"""Neighbours: training users with the same latest items."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np

from lowrank import kernels
from recsys.data.arrays import Floats, Ints, Longs
from recsys.models.sequences import Sequences, sources
from recsys.ranking.topn import best_entries

if TYPE_CHECKING:
    from recsys.models.sequences import Sparse

_GAMMA = math.exp(-1)  # neighbours share the latest items, not any
_ROUNDING = 1e-5  # of sums of weights
_CANDIDATES = 500  # newest users of an item that may be neighbours
_BLOCK = 256  # users whose neighbours are sought at a time
_DISTANCE = 2.0  # places from the latest shared item after which an item counts a third


class TrainingUsers(NamedTuple):
    """Users among whom neighbours are sought, the newest first.

    Attributes
    ----------
    histories : csr_array of shape (n_users, n_items)
        Ones for the items of each user, in the order of time.
    newest : csr_array of shape (n_items, n_users)
        Ones for the newest users of each item.
    """

    histories: Sparse
    newest: Sparse

    @classmethod
    def of(cls, histories: Sparse, ranks: Longs) -> Self:
        """Order the users by their ranks in time, and find the newest of each item.

        The items of each user are in the order of time, too.
        """
        histories = histories[np.argsort(-ranks)]
        newest = histories.T.tocsr()
        starts = np.repeat(newest.indptr[:-1], np.diff(newest.indptr))
        is_new = np.arange(newest.nnz) - starts < _CANDIDATES
        newest.data = is_new.astype(np.float32)
        newest.eliminate_zeros()
        return cls(histories, newest)

    def scores(self, sequences: Sequences, n: int) -> Sparse:
        """Return the sums of the histories of the n neighbours of each sequence."""
        from scipy.sparse import vstack

        scores = []
        for rows in kernels.pieces(max(1, sequences.n_users), _BLOCK):
            users = np.arange(sequences.n_users)[rows]
            pairs = self.pairs(sequences.take(users), n)
            scores.append(pairs.common @ pairs.near)
        summed: Sparse = vstack(scores, format="csr")
        return summed

    def pairs(self, sequences: Sequences, n: int) -> Pairs:
        """Find the n nearest users of each sequence."""
        from scipy.sparse import csr_array

        n_items = self.histories.shape[1]
        latest = sources(sequences, n_items, _GAMMA)
        common_sums = latest @ self.newest
        common_sums.sort_indices()  # of users who share as much, the newest are nearer
        users, neighbors = common_sums.tocoo().coords
        common = common_sums.data
        # Who has the same items, such as the user in the training data, tells nothing new.
        lengths = np.diff(self.histories.indptr)
        is_other = lengths[neighbors] != sequences.lengths[users]
        smallest = (1 - _ROUNDING) * latest.sum(axis=1)
        is_other |= common < smallest[users]
        nearest = best_entries(
            users[is_other], neighbors[is_other], common[is_other], n, None
        )
        pair_users = nearest.rows
        common = nearest.scores
        totals = np.bincount(pair_users, common**2, sequences.n_users)

        entries, indptr = kernels.row_places(
            self.histories.indptr.astype(np.int64), nearest.items
        )
        items = self.histories.indices[entries]
        pair_numbers = np.arange(len(pair_users))
        pair_of_entries = np.repeat(pair_numbers, np.diff(indptr))
        users_of_entries = pair_users[pair_of_entries]
        weights = latest.toarray()[users_of_entries, items]
        # Each neighbour shares an item with the largest weight.
        most = np.maximum.reduceat(weights, indptr[:-1])
        is_latest = weights == most[pair_of_entries]
        latest_places = np.where(is_latest, entries, 0)
        shared_places = np.maximum.reduceat(latest_places, indptr[:-1])
        distances = np.abs(entries - shared_places[pair_of_entries])
        nearness = np.exp(-distances / _DISTANCE)
        of_pairs = common / totals[pair_users]
        nearness *= of_pairs[pair_of_entries]

        shape = (len(pair_users), n_items)
        by_user = np.searchsorted(pair_users, np.arange(sequences.n_users + 1))
        return Pairs(
            common=csr_array(
                (common, pair_numbers, by_user),
                shape=(sequences.n_users, len(pair_users)),
            ),
            shared=csr_array((weights, items, indptr), shape=shape),
            near=csr_array((nearness.astype(np.float32), items, indptr), shape=shape),
        )


class Pairs(NamedTuple):
    """Pairs of a user and a neighbour. The scores are ``common @ near``.

    Attributes
    ----------
    common : csr_array of shape (n_users, n_pairs)
        Sums of the weights of the latest items that a neighbour has, too.
    shared : csr_array of shape (n_pairs, n_items)
        These weights.
    near : csr_array of shape (n_pairs, n_items)
        Histories of the neighbours, in which an item counts less with its distance from the
        latest shared one, times `common` divided by the sum of its squares of the user.
    """

    common: Sparse
    shared: Sparse
    near: Sparse

    def terms(self, rated: Ints, items: Longs) -> Sparse:
        """Return the contributions of rated items of a single user to scores of distinct items."""
        from scipy.sparse import csr_array

        of_rated = self.shared[:, rated].T
        of_items = self.near[:, items]
        terms = (of_rated @ of_items).tocsr()
        columns = items[terms.indices]
        arrays = (terms.data, columns, terms.indptr)
        shape = (len(rated), self.near.shape[1])
        return csr_array(arrays, shape=shape)

    def products(self, rated: Ints, loadings: Floats) -> Floats:
        """Return the contributions of rated items of a single user, times loadings of items."""
        of_rated = self.shared[:, rated].T
        of_neighbors = self.near @ loadings
        products: Floats = of_rated @ of_neighbors
        return products

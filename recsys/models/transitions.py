"""Transitions: ridge regressions from the latest items of a history to the item after them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lowrank import kernels
from lowrank.subspace import Directions, leading_directions
from recsys.errors import DataError
from recsys.models.ease import default_penalty, invert
from recsys.models.linear_filter import power
from recsys.models.parts import Floats, Indices
from recsys.models.sequences import PairSums, gram, sources

if TYPE_CHECKING:
    from recsys.models.sequences import Sparse

_DENSE = 4096  # items with an exact Gram matrix; of the others, only its diagonal
_MOST_SOLVED = 2**27  # entries of the solution of a regression: 512 MB
_DIRECTIONS = 256  # whose items come next, if the user has had one of them
_POWER = 0.5  # by which long histories and frequent items count less in directions
_SAMPLED = 2**22  # interactions that tell directions
_ROWS = 256  # rows of items with all other items at a time


class Regression(NamedTuple):
    """The ridge regression of one decay.

    Attributes
    ----------
    pairs : PairSums
        The sums S'T over pairs of an item and a later one.
    gamma : float
        Weight of an item one place back.
    item_power : float
        Exponent by which frequent items are weighted down as sources.
    dislikes : csr_array of shape (n_items, n_users), or None
        Confidences of dislikes.
    """

    pairs: PairSums
    gamma: float
    item_power: float
    dislikes: Sparse | None = None

    def weights(self, penalty: float, n_kept: int) -> Sparse:
        """Return the n_kept largest weights of each item with the items after it."""
        from scipy.sparse import vstack

        n_items = self.pairs.n_items
        counts = np.diff(self.pairs.places.indptr)
        scale = power(counts, -self.item_power)
        n_dense = min(_DENSE, _MOST_SOLVED // max(1, n_items) + 1)
        by_count = np.argsort(-counts, kind="stable")
        frequent = np.sort(by_count[:n_dense])
        rare = np.sort(by_count[n_dense:])
        latest = sources(self.pairs.sequences, n_items, self.gamma)
        solved = self._solved(frequent, latest, scale[frequent], penalty)
        quotients = self._quotients(rare, latest, scale[rare], penalty, n_kept)
        largest = _largest(solved, n_kept)
        if not len(rare):
            return largest
        order = np.argsort(np.concatenate([frequent, rare]))
        return vstack([largest, quotients], format="csr")[order]

    def _solved(
        self,
        items: Indices,
        latest: Sparse,
        scale: Floats,
        penalty: float,
    ) -> Floats:
        """Solve (D S'S D + penalty I) X = D S'T for the sources `items`; return D X.

        `latest` has the source after the last item of each user.
        """
        from scipy.linalg import blas, lapack

        n_items = self.pairs.n_items
        targets = np.empty((len(items), n_items), np.float32)
        for rows in kernels.pieces(len(items), _ROWS):
            pairs = self.pairs.rows(items[rows], self.gamma, n_items)
            pairs.toarray(out=targets[rows])
        # S'S = (gamma^2 (S'T + T'S + T'T) - Z'Z) / (1 - gamma^2), Z being `latest`.
        square = self.gamma**2
        pairs_of_sources = targets[:, items]
        system = square * (pairs_of_sources + pairs_of_sources.T)
        diagonal = np.diag_indices_from(system)
        system[diagonal] += square * self._target_squares[items]
        system -= gram(latest[:, items])
        system /= 1 - square
        # D S'S D + penalty I
        system *= scale[:, None] * scale
        system[diagonal] += penalty
        system = system.astype(np.float32, copy=False)
        factor, failed = lapack.spotrf(system.T, overwrite_a=True, clean=False)
        if failed:
            raise DataError(
                "The Gram matrix of the items is singular in single precision; try a larger "
                "regularization."
            )
        targets *= scale[:, None]
        # X' U'U = T'D, in the memory of the targets.
        for transposed in (0, 1):
            blas.strsm(
                1.0,
                factor,
                targets.T,
                side=1,
                trans_a=transposed,
                overwrite_b=True,
            )
        if self.dislikes is not None:
            disliked_sources = latest[:, items].multiply(scale).tocsr()
            _with_dislikes(targets, factor, disliked_sources, self.dislikes)
        targets *= scale[:, None]
        return targets

    def _quotients(
        self,
        items: Indices,
        latest: Sparse,
        scale: Floats,
        penalty: float,
        n_kept: int,
    ) -> Sparse:
        """Return the weights of sources whose Gram matrix is taken to be diagonal."""
        square = self.gamma**2
        pairs = self.pairs.rows(items, self.gamma, n_kept)
        rows = np.arange(len(items))
        repeats = np.asarray(pairs[rows, items]).ravel()
        squares = latest.data**2
        ends = np.bincount(latest.indices, squares, latest.shape[1])
        sums = 2 * repeats + self._target_squares[items]
        diagonal = (square * sums - ends[items]) / (1 - square)
        quotient = scale**2 / (diagonal * scale**2 + penalty)
        of_entries = quotient[pairs.tocoo().coords[0]]
        pairs.data *= of_entries.astype(np.float32)
        return pairs

    @property
    def _target_squares(self) -> NDArray[np.float64]:
        """The diagonal of T'T."""
        sequences = self.pairs.sequences
        squares = sequences.weights.astype(np.float64) ** 2
        sums = np.bincount(sequences.items, squares, self.pairs.n_items)
        return sums.astype(np.float64)


def _with_dislikes(
    solution: Floats,
    factor: Floats,
    latest: Sparse,
    dislikes: Sparse,
) -> None:
    """Add ``C = diag(c)`` times squared scores of users to the system of each disliked item.

    With the sources Z of the users who dislike the item and the system A = U'U, Woodbury's identity
    has one equation for each dislike: x - A^-1 Z' (C^-1 + Z A^-1 Z')^-1 Z x.
    """
    from scipy.linalg import cho_solve

    for item in np.flatnonzero(np.diff(dislikes.indptr)):
        of_item = slice(dislikes.indptr[item], dislikes.indptr[item + 1])
        Z = latest[dislikes.indices[of_item]].toarray()
        # Users without a source say nothing.
        has_source = Z.any(axis=1)
        Z = Z[has_source]
        confidence = dislikes.data[of_item][has_source]
        inverse = cho_solve((factor, False), Z.T)
        small = Z @ inverse
        small[np.diag_indices_from(small)] += 1 / confidence
        errors = np.linalg.solve(small, Z @ solution[:, item])
        solution[:, item] -= inverse @ errors


def unordered_weights(histories: Sparse, n_kept: int) -> Sparse:
    """Return the weights of EASE between the most frequent items; others have none."""
    counts = np.bincount(histories.indices, minlength=histories.shape[1])
    items = _frequent(counts)
    P = gram(histories[:, items])
    P[np.diag_indices_from(P)] += np.float32(default_penalty(counts))
    invert(P)
    P /= -np.diagonal(P).copy()
    np.fill_diagonal(P, 0)
    return _between(items, P, len(counts), n_kept)


def direction_weights(histories: Sparse, repeats: float, n_kept: int) -> Sparse:
    """Return weights from an item to those of similar histories, and `repeats` to itself.

    With the `main_directions` V and their singular values s, they are V diag(s) V' between
    different items, of the most frequent ones.
    """
    from scipy.sparse import eye_array

    n_items = histories.shape[1]
    counts = np.bincount(histories.indices, minlength=n_items)
    items = _frequent(counts)
    sampled = histories[:: 1 + histories.nnz // _SAMPLED]
    directions = main_directions(sampled, _DIRECTIONS)
    V = directions.vectors[items]
    products = (V * directions.values) @ V.T
    np.fill_diagonal(products, 0)
    weights = _between(items, products.astype(np.float32), n_items, n_kept)
    same_item = eye_array(n_items, dtype=np.float32, format="csr")
    return (weights + np.float32(repeats) * same_item).tocsr()


def main_directions(histories: Sparse, k: int) -> Directions:
    """Return directions of histories in which long ones and frequent items count less."""
    counts = np.bincount(histories.indices, minlength=histories.shape[1])
    lengths = np.diff(histories.indptr)
    of_items = power(counts, -_POWER)
    of_users = power(lengths, -_POWER)
    scaled = of_items[histories.indices]
    scaled *= np.repeat(of_users, lengths)
    rows = kernels.csr_arrays(histories)._replace(data=scaled)
    return leading_directions(rows, len(counts), min(k, *histories.shape))


def _frequent(counts: Indices) -> Indices:
    """Return the items with the highest counts."""
    by_count = np.argsort(-counts, kind="stable")
    return np.sort(by_count[:_DENSE])


def _between(items: Indices, weights: Floats, n_items: int, n_kept: int) -> Sparse:
    """Return the largest weights between some of all items."""
    from scipy.sparse import csr_array

    largest = _largest(weights, n_kept)
    lengths = np.zeros(n_items, np.int64)
    lengths[items] = np.diff(largest.indptr)
    indptr = np.append(0, np.cumsum(lengths))
    arrays = (largest.data, items[largest.indices], indptr)
    return csr_array(arrays, shape=(n_items, n_items))


def _largest(matrix: Floats, n: int) -> Sparse:
    """Return the n entries of each row that are largest in size."""
    from scipy.sparse import csr_array

    n_rows, n_columns = matrix.shape
    n = min(n, n_columns)
    columns = np.empty((n_rows, n), np.int32)
    columns[:] = np.arange(n)
    values = matrix
    if n < n_columns:
        for rows in kernels.pieces(n_rows, _ROWS):
            sizes = np.abs(matrix[rows])
            order = np.argpartition(-sizes, n, axis=1)
            columns[rows] = np.sort(order[:, :n], axis=1)
        values = np.take_along_axis(matrix, columns, axis=1)
    indptr = np.arange(n_rows + 1) * n
    arrays = (values.ravel(), columns.ravel(), indptr)
    return csr_array(arrays, shape=matrix.shape)

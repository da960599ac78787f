"""Transitions: ridge regressions from the latest items of a history to the item after them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np

from lowrank import kernels
from lowrank.kernels import CsrArrays
from lowrank.kernels.retrieval import pair_rows, sparse_rows
from lowrank.subspace import Directions, leading_directions
from recsys.errors import DataError
from recsys.models.ease import default_penalty, invert
from recsys.models.linear_filter import power
from recsys.models.parts import Doubles, Floats, Indices, Ints, Longs
from recsys.models.sequences import Sequences, reach, sources

if TYPE_CHECKING:
    from recsys.models.sequences import Sparse

_DENSE = 4096  # items with an exact Gram matrix; of the others, only its diagonal
_MOST_SOLVED = 2**27  # entries of the solution of a regression: 512 MB
_DIRECTIONS = 256  # whose items come next, if the user has had one of them
_POWER = 0.5  # by which long histories and frequent items count less in directions
_SAMPLED = 2**22  # interactions that tell directions
_ROWS = 256  # rows of items with all other items at a time


class Regression(NamedTuple):
    """The ridge regressions from the latest items to the next, for any decay.

    Attributes
    ----------
    sequences : Sequences
    lags : int32 ndarray
        Place of each item from the end of its sequence.
    places : CsrArrays of shape (n_items, n_places)
        The places of each item in all sequences, and their weights.
    scale : float32 ndarray of shape (n_items,)
        Factors of items as sources, which are smaller for frequent items.
    dislikes : csr_array of shape (n_items, n_users), or None
        Confidences of dislikes.
    """

    sequences: Sequences
    lags: Ints
    places: CsrArrays
    scale: Floats
    dislikes: Sparse | None = None

    @classmethod
    def of(
        cls,
        sequences: Sequences,
        n_items: int,
        item_power: float,
        dislikes: Sparse | None = None,
    ) -> Self:
        """Find the places of each item, and weight frequent items down by a power."""
        starts = np.arange(len(sequences.items) + 1)
        by_place = CsrArrays(starts, sequences.items, sequences.weights)
        places = kernels.transposed(by_place, n_items)
        assert isinstance(places, CsrArrays)
        scale = power(np.diff(places.indptr), -item_power)
        lags = sequences.lags.astype(np.int32)
        return cls(sequences, lags, places, scale, dislikes)

    def weights(self, gamma: float, penalty: float, n_kept: int) -> Sparse:
        """Return the n_kept largest weights of each item with the items after it.

        `gamma` is the weight of an item one place back.
        """
        from scipy.sparse import vstack

        counts = np.diff(self.places.indptr)
        n_items = len(counts)
        n_dense = min(_DENSE, _MOST_SOLVED // max(1, n_items) + 1)
        by_count = np.argsort(-counts, kind="stable")
        frequent = np.sort(by_count[:n_dense])
        rare = np.sort(by_count[n_dense:])
        latest = sources(self.sequences, n_items, gamma)
        latest.sum_duplicates()
        largest = _largest(self._solved(frequent, latest, gamma, penalty), n_kept)
        if not len(rare):
            return largest
        quotients = self._quotients(rare, latest, gamma, penalty, n_kept)
        order = np.argsort(np.concatenate([frequent, rare]))
        return vstack([largest, quotients], format="csr")[order]

    def sums(self, items: Longs, gamma: float, most: int) -> Sparse:
        """Return the `most` largest sums of ``gamma**lag`` of some items with later items.

        The entry (i, j) of the result is of the pairs in which j comes after ``items[i]``.
        """
        from scipy.sparse import csr_array

        longest = min(reach(gamma), int(self.sequences.lengths.max(initial=0)))
        decay = gamma ** np.arange(longest + 1)
        largest = pair_rows(
            self.sequences.items,
            self.sequences.weights,
            self.lags,
            decay.astype(np.float32),
            self.places,
            items,
            most,
        )
        arrays = (largest.data, largest.indices, largest.indptr)
        return csr_array(arrays, shape=(len(items), len(self.scale)))

    def _solved(
        self,
        items: Longs,
        latest: Sparse,
        gamma: float,
        penalty: float,
    ) -> Floats:
        """Solve (D S'S D + penalty I) X = D S'T for the sources `items`; return D X.

        `latest` has the source after the last item of each user.
        """
        from scipy.linalg import blas, lapack

        n_items = len(self.scale)
        scale = self.scale[items]
        targets = np.empty((len(items), n_items), np.float32)
        for rows in kernels.pieces(len(items), _ROWS):
            sums = self.sums(items[rows], gamma, n_items)
            sums.toarray(out=targets[rows])
        # S'S = (gamma^2 (S'T + T'S + T'T) - Z'Z) / (1 - gamma^2), Z being `latest`.
        square = gamma**2
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
        if self.dislikes is not None:
            # A dislike is a target of a negative weight, after the latest items of the user.
            products = (self.dislikes @ latest[:, items]).T.tocoo()
            targets[products.coords] -= products.data
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
        targets *= scale[:, None]
        return targets

    def _quotients(
        self,
        items: Longs,
        latest: Sparse,
        gamma: float,
        penalty: float,
        n_kept: int,
    ) -> Sparse:
        """Return the weights of sources whose Gram matrix is taken to be diagonal."""
        square = gamma**2
        sums = self.sums(items, gamma, n_kept)
        repeats = np.asarray(sums[np.arange(len(items)), items]).ravel()
        ends = np.bincount(latest.indices, latest.data**2, len(self.scale))
        diagonal = square * (2 * repeats + self._target_squares[items]) - ends[items]
        diagonal /= 1 - square
        squares = self.scale[items] ** 2
        quotients = squares / (diagonal * squares + penalty)
        sums.data *= np.repeat(quotients, np.diff(sums.indptr)).astype(np.float32)
        return sums

    @property
    def _target_squares(self) -> Doubles:
        """The diagonal of T'T."""
        squares = self.sequences.weights.astype(np.float64) ** 2
        sums = np.bincount(self.sequences.items, squares, len(self.scale))
        return sums.astype(np.float64)


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
    from scipy.sparse import csr_array

    counts = np.bincount(histories.indices, minlength=histories.shape[1])
    lengths = np.diff(histories.indptr)
    of_items = power(counts, -_POWER)
    of_users = power(lengths, -_POWER)
    scaled = of_items[histories.indices]
    scaled *= np.repeat(of_users, lengths)
    k = min(k, *histories.shape)
    if len(counts) <= _DIRECTIONS:
        # All directions of few items are exact; iterations would lose the last ones.
        arrays = (scaled.astype(np.float64), histories.indices, histories.indptr)
        exact = csr_array(arrays, shape=histories.shape)
        squares, vectors = np.linalg.eigh((exact.T @ exact).toarray())
        values = np.sqrt(np.maximum(squares, 0))
        largest = slice(None, -k - 1, -1)
        return Directions(
            vectors[:, largest].astype(scaled.dtype),
            values[largest].astype(scaled.dtype),
        )
    rows = kernels.csr_arrays(histories)._replace(data=scaled)
    return leading_directions(rows, len(counts), k)


def gram(matrix: Sparse) -> Floats:
    """Return M'M as a dense matrix."""
    rows = kernels.csr_arrays(matrix)
    n_columns = matrix.shape[1]
    columns = kernels.transposed(rows, n_columns)
    assert isinstance(columns, CsrArrays)
    return sparse_rows(columns, rows, n_columns)


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
    for rows in kernels.pieces(n_rows, _ROWS):
        sizes = np.abs(matrix[rows])
        order = np.argpartition(-sizes, n - 1, axis=1)
        columns[rows] = np.sort(order[:, :n], axis=1)
    values = np.take_along_axis(matrix, columns, axis=1)
    indptr = np.arange(n_rows + 1) * n
    arrays = (values.ravel(), columns.ravel(), indptr)
    return csr_array(arrays, shape=matrix.shape)

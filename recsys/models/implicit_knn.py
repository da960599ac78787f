"""Nearest neighbours of items, by the library `implicit`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lowrank import kernels
from lowrank.kernels.retrieval import sparse_pairs, sparse_rows
from recsys.models.base import Floats, Indices, OnStep, check_indices, fitted, model
from recsys.models.factor_form import FactorForm
from recsys.models.histories import Histories
from recsys.models.implicit_factors import library, library_class, library_matrix
from recsys.models.item_item import ItemItemModel, weighted_matrix
from recsys.models.parameters import parameter, threads_parameter
from recsys.saved_arrays import check_rows

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from recsys.data.ratings import Ratings

_BM25_K1, _BM25_B = 1.2, 0.75
_ROUNDING = 1e-6  # of a similarity, so that an item as similar as the last neighbour is one


@model
class ImplicitKNN(ItemItemModel):
    """Score an item by its similarity to the items of the user, by the library `implicit`.

    Two items are similar if the same users have them. Only the most similar ones of each item
    count. A rating counts in proportion to the highest one, a count to the mean.

    The similarities are the rows of a CSR matrix; an item is its own neighbour.

    References
    ----------
    Deshpande and Karypis (2004), "Item-based top-N recommendation algorithms", section 4.
    """

    name = "implicit-knn"
    summary = "Implicit feedback, by similar items: easy to explain."

    weighting: str = parameter(
        "tfidf",
        "Similarity of items: cosine, cosine of TF-IDF, or product of BM25 weights.",
        choices=("cosine", "tfidf", "bm25"),
    )
    neighbors: int = parameter(
        300, "Number of most similar items kept of each item.", low=10, high=1000, log=True
    )
    threads: int | None = threads_parameter()

    neighbor_indptr: NDArray[np.int64] = fitted("n_items + 1")
    neighbor_items: NDArray[np.int32] = fitted("n_neighbors")
    neighbor_weights: Floats = fitted("n_neighbors")

    @property
    def n_items(self) -> int:
        """Number of items."""
        n: int = vars(self).get("_n_new", len(self.neighbor_indptr) - 1)
        return n

    def _fit(self, ratings: Ratings, on_step: OnStep, validation: Ratings | None) -> None:
        """Find the neighbours of every item."""
        all_pairs_knn = library_class("nearest_neighbours", "all_pairs_knn")
        self._take_histories(ratings)
        weights = weighted_matrix(Histories.of(ratings), ratings.n_items, self.unit)
        weighted = library_matrix(self._weighted(weights).T)
        threads = kernels.resolve_threads(self.threads)
        k = min(self.neighbors, ratings.n_items)
        with library(self.name):
            found = all_pairs_knn(weighted, k, num_threads=threads, show_progress=False).tocsr()
        found.eliminate_zeros()  # rows with fewer neighbours are padded with zeros at item 0
        self._set_neighbors(found)

    def item_similarity(self, confidence: Floats) -> Neighbors:
        """Return a scorer of items for items; `DataError` if the model has folded in items."""
        self._require_items_of_the_fit()
        return Neighbors(self, confidence)

    @classmethod
    def _from_arrays(cls, params: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Self:
        result = super()._from_arrays(params, arrays)
        check_rows("neighbours", result.neighbor_indptr, result.neighbor_items, result.n_items)
        return result

    def _set_items(self, histories: Histories) -> None:
        """Make new items neighbours of those to which they are as similar as the last neighbour."""
        n_items = self.n_items
        mine = Histories(self.history_indptr, self.history_items, self.history_weights)
        known = weighted_matrix(mine, n_items, 1)
        new = weighted_matrix(histories, self.n_users, self.unit)
        similar = (self._weighted(known) @ self._weighted(known, new).T).tocsr().astype(np.float32)
        counts = np.diff(self.neighbor_indptr)
        least = np.full(n_items, np.inf, np.float32)
        np.minimum.at(least, np.repeat(np.arange(n_items), counts), self.neighbor_weights)
        least[counts < self.neighbors] = 0
        least = np.maximum(least * np.float32(1 - _ROUNDING), np.finfo(np.float32).tiny)
        similar.data[similar.data < np.repeat(least, np.diff(similar.indptr))] = 0
        similar.eliminate_zeros()
        self._set_neighbors(similar)
        vars(self)["_n_new"] = histories.n_rows

    def predict(self, users: ArrayLike, items: ArrayLike) -> Floats:
        """Scores of pairs, shape (n_pairs,), the same bits as in `scores`."""
        u = check_indices(users, self.n_users, "user")
        i = check_indices(items, self.n_items, "item")
        distinct, rows = np.unique(u, return_inverse=True)
        part = self._sparse_part(distinct)
        return sparse_pairs(part.history, part.weights, rows, i, threads=self.threads)

    def _factor_form(self, users: ArrayLike) -> FactorForm:
        """Return scores without factors: the similarities are the sparse part."""
        u = check_indices(users, self.n_users, "user")
        users, items = np.zeros((len(u), 0), np.float32), np.zeros((self.n_items, 0), np.float32)
        return FactorForm(users, items, sparse=self._sparse_part(u))

    def _sparse_part(self, users: Indices) -> kernels.SparsePart:
        mine = Histories(self.history_indptr, self.history_items, self.history_weights).take(users)
        return kernels.SparsePart(mine.csr, self._weights())

    def _weights(self) -> kernels.CsrArrays:
        return kernels.CsrArrays(self.neighbor_indptr, self.neighbor_items, self.neighbor_weights)

    def _set_neighbors(self, similarities: Any) -> None:
        similarities.sort_indices()
        self.neighbor_indptr = similarities.indptr.astype(np.int64)
        self.neighbor_items = similarities.indices.astype(np.int32)
        self.neighbor_weights = similarities.data.astype(np.float32)

    def _weighted(
        self, known: csr_array[np.float32], new: csr_array[np.float32] | None = None
    ) -> csr_array[np.float64]:
        """Return rows of items x users whose dot products are the library's similarities.

        Those of `new` rows have the statistics of users and items of the known ones.
        """
        weighted = (known.T.tocsr() if new is None else new).astype(np.float64)
        rows = np.repeat(np.arange(weighted.shape[0]), np.diff(weighted.indptr))
        idf = (np.log(known.shape[1]) - np.log1p(np.diff(known.indptr)))[weighted.indices]
        values = weighted.data
        with np.errstate(all="ignore"):
            if self.weighting == "bm25":
                average = known.sum(dtype=np.float64) / known.shape[1]
                norm = 1 - _BM25_B + _BM25_B * np.bincount(rows, values)[rows] / average
                values = values * (_BM25_K1 + 1) / (_BM25_K1 * norm + values) * idf
            else:
                if self.weighting == "tfidf":
                    values = np.sqrt(values) * idf
                values = values / np.sqrt(np.bincount(rows, values**2))[rows]
        # An item without weight, as of users who have everything, has no direction.
        weighted.data = np.nan_to_num(values, nan=0, posinf=0, neginf=0)
        return weighted

    def _products(self, histories: Histories) -> Floats:
        weights = self._weights()
        return sparse_rows(histories.csr, weights, self.n_items, threads=self.threads)

    def _entries(self, rows: Indices, columns: Indices) -> Floats:
        from scipy.sparse import csr_array

        neighbors = (self.neighbor_weights, self.neighbor_items, self.neighbor_indptr)
        similarities = csr_array(neighbors, shape=(len(self.neighbor_indptr) - 1, self.n_items))
        return similarities[rows][:, columns].toarray()


class Neighbors:
    """Similarities of items times the confidence of the neighbour; others are -infinity."""

    def __init__(self, model: ImplicitKNN, confidence: Floats) -> None:
        self._model, self._confidence = model, confidence

    @property
    def n_items(self) -> int:
        """Number of items."""
        return self._model.n_items

    def predict(self, users: Indices, items: Indices) -> Floats:
        """Similarities of pairs of items, shape (n_pairs,)."""
        return self.scores(users)[np.arange(len(users)), items]

    def scores(self, users: Indices) -> Floats:
        """Similarities of some items to all, shape (n_block, n_items)."""
        block = np.full((len(users), self.n_items), -np.inf, dtype=np.float32)
        model = self._model
        similarities = model.neighbor_indptr, model.neighbor_items, model.neighbor_weights
        found = Histories(*similarities).take(users)
        block[found.rows, found.indices] = found.values * self._confidence[found.indices]
        return block

    def _score_error(self, users: Indices) -> None:
        """Return None: scores are the same bits in any block, and not products of factors."""

    _factor_form = _score_error

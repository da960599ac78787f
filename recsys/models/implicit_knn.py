"""Item neighbours, by the library implicit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array

from lowrank import kernels
from recsys.errors import DataError
from recsys.models.base import (
    Floats,
    Histories,
    Indices,
    Step,
    check_indices,
    fitted,
    model,
    parameter,
    threads_parameter,
)
from recsys.models.implicit_factors import library, library_matrix, silence
from recsys.models.item_item import HistoryModel, check_rows, rows_of, weighted_matrix

if TYPE_CHECKING:
    from recsys.data.ratings import Ratings

__all__ = ["FoldedItems", "ImplicitKNN", "Neighbors", "fold_in_items"]

BM25_K1, BM25_B = 1.2, 0.75


@model
class ImplicitKNN(HistoryModel):
    """Score an item by its likeness to the items the user has, by the library `implicit`.

    Two items are alike if the same users have them. Of each item only the most similar ones count.
    A rating counts in proportion to the highest one, a count to the mean.

    Attributes
    ----------
    neighbor_indptr : int64 ndarray of shape (n_items + 1,)
    neighbor_items : int32 ndarray of shape (n_neighbors,)
    neighbor_weights : float32 ndarray of shape (n_neighbors,)
        The likenesses, as the rows of a CSR matrix; an item is its own neighbour.

    References
    ----------
    Deshpande and Karypis (2004), "Item-based top-N recommendation algorithms", section 4.
    """

    name: ClassVar[str] = "implicit-knn"
    summary: ClassVar[str] = "Implicit feedback, by similar items: easy to explain."

    weighting: str = parameter(
        "tfidf",
        "Similarity of items: cosine, cosine of TF-IDF, or product of BM25 weights.",
        choices=("cosine", "tfidf", "bm25"),
    )
    neighbors: int = parameter(
        300, "Number of most similar items kept of each item.", low=10, high=1000, log=True
    )
    threads: int | None = threads_parameter()

    neighbor_indptr: NDArray[np.int64] = fitted("n_items_and_1")
    neighbor_items: NDArray[np.int32] = fitted("n_neighbors")
    neighbor_weights: Floats = fitted("n_neighbors")

    @property
    def n_items(self) -> int:
        """Number of items of the training ratings."""
        return len(self.neighbor_indptr) - 1

    def fit(
        self,
        ratings: Ratings,
        *,
        on_step: Callable[[Step], None] | None = None,
        validation: Ratings | None = None,
    ) -> Self:
        """Find the neighbours of every item."""
        with silence():
            from implicit.nearest_neighbours import all_pairs_knn
        self._take_histories(ratings)
        weighted = self._weighted(weighted_matrix(ratings))
        threads = kernels.resolve_threads(self.threads)
        k = min(self.neighbors, ratings.n_items)
        with library(self.name):
            found = all_pairs_knn(weighted, k, num_threads=threads, show_progress=False).tocsr()
        found.eliminate_zeros()  # rows with fewer neighbours are padded with zeros at item 0
        self.neighbor_indptr = found.indptr.astype(np.int64)
        self.neighbor_items = found.indices.astype(np.int32)
        self.neighbor_weights = found.data.astype(np.float32)
        return self

    @classmethod
    def _from_arrays(cls, params: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Rebuild a fitted model, sharing memory with `arrays`.

        Raises
        ------
        DataError
            If an array is missing, its shape does not agree with the others, or histories or
            neighbours name items that there are not.
        """
        model = super()._from_arrays(params, arrays)
        check_rows(model.neighbor_indptr, model.neighbor_items, model.n_items, "neighbours")
        return model

    def with_items(self, histories: Histories) -> ImplicitKNN:
        """Return the model whose items are these: neighbours of the old ones they are most like."""
        return fold_in_items(self, histories)

    def item_similarity(self, confidence: Floats) -> Neighbors:
        """Return what finds the neighbours of items; see `recsys.topn.top_n`."""
        return Neighbors(self, confidence)

    def _weighted(self, contacts: csr_array[np.float32]) -> Any:
        """Return the matrix of users x items whose columns' products are the likenesses."""
        from implicit import nearest_neighbours as peer

        by_item = library_matrix(contacts.T).astype(np.float64)
        with library(self.name), np.errstate(all="ignore"):
            if self.weighting == "bm25":
                weighted = peer.bm25_weight(by_item, K1=BM25_K1, B=BM25_B)
            elif self.weighting == "tfidf":
                weighted = peer.normalize(peer.tfidf_weight(by_item))
            else:
                weighted = peer.normalize(by_item)
        # An item without weight, as of users who have everything, has no direction.
        weighted.data = np.nan_to_num(weighted.data, nan=0, posinf=0, neginf=0)
        return library_matrix(weighted.T.tocsr())

    def _products(self, histories: Histories) -> Floats:
        from scipy.sparse import csr_array

        likenesses = (self.neighbor_weights, self.neighbor_items, self.neighbor_indptr)
        n_known = len(self.neighbor_indptr) - 1
        S = csr_array(likenesses, shape=(n_known, self.n_items))
        return (rows_of(histories, n_known, 1) @ S).toarray()

    def _entries(self, rows: Indices, columns: Indices) -> Floats:
        distinct, inverse = np.unique(columns, return_inverse=True)
        place = np.full(self.n_items, -1)
        place[distinct] = np.arange(len(distinct))
        of, at = self.neighbors_of(rows)
        found = np.zeros((len(rows), len(distinct)), dtype=np.float32)
        wanted = place[self.neighbor_items[at]] >= 0
        of, at = of[wanted], at[wanted]
        found[of, place[self.neighbor_items[at]]] = self.neighbor_weights[at]
        return found[:, inverse]

    def neighbors_of(self, items: NDArray[np.integer]) -> tuple[Indices, Indices]:
        """Return, for each neighbour of each of `items`, the place of the item and of the entry."""
        starts = self.neighbor_indptr[items]
        counts = self.neighbor_indptr[items + 1] - starts
        of = np.repeat(np.arange(len(items)), counts)
        return of, np.arange(len(of)) + np.repeat(starts - (np.cumsum(counts) - counts), counts)


class Neighbors:
    """Scores of items for items: their likeness, a `recsys.topn.Scorer`.

    An item is like its neighbours alone; all others are minus infinity, which is never found.

    Parameters
    ----------
    model : ImplicitKNN
    confidence : float32 ndarray of shape (n_items,)
        What the likeness to an item is multiplied by.
    """

    def __init__(self, model: ImplicitKNN, confidence: Floats) -> None:
        self._model = model
        self._confidence = confidence

    @property
    def n_items(self) -> int:
        """Number of items."""
        return self._model.n_items

    def predict(self, users: Indices, items: Indices) -> Floats:
        """Likeness of pairs of items, shape (n_pairs,)."""
        return self.scores(users)[np.arange(len(users)), items]

    def scores(self, users: Indices) -> Floats:
        """Likeness of some items to all, shape (n_block, n_items)."""
        block = np.full((len(users), self.n_items), -np.inf, dtype=np.float32)
        of, at = self._model.neighbors_of(users)
        found = self._model.neighbor_items[at]
        block[of, found] = self._model.neighbor_weights[at] * self._confidence[found]
        return block

    def _score_error(self, users: Indices) -> None:
        """Return None: scores are the same bits in any block."""

    def _factor_form(self, users: Indices) -> None:
        """Return None: scores are not products of factors."""


_ROUNDING = 1e-6  # of a likeness, so that an item as like as the last neighbour is one


def fold_in_items(model: ImplicitKNN, contacts: Histories) -> FoldedItems:
    """Return `model` with the items of `contacts`, a row of users for each, in place of its own.

    A new item is a neighbour of an old one where it is at least as much like it as the last of its
    neighbours. How much a user weighs is what it was without the new items.
    """
    check_indices(contacts.indices, model.n_users, "user")
    rows = model._rows(np.arange(model.n_users))
    known = rows_of(rows, model.n_items, 1)
    new = _weighted(model, known, rows_of(contacts, model.n_users, model.unit))
    alike = csr_array(model._weighted(known).T @ new.T, dtype=np.float32)
    least = np.repeat(_least(model), np.diff(alike.indptr))
    alike.data[alike.data < least] = 0
    alike.eliminate_zeros()
    alike.sort_indices()
    folded = FoldedItems(**model.get_params())
    vars(folded).update(vars(model))
    folded.source, folded.n_new = model, contacts.n_rows
    folded.neighbor_indptr = alike.indptr.astype(np.int64)
    folded.neighbor_items = alike.indices.astype(np.int32)
    folded.neighbor_weights = alike.data
    return folded


class FoldedItems(ImplicitKNN):
    """What `ImplicitKNN.with_items` gives: new items as neighbours of those of `source`."""

    source: ImplicitKNN
    n_new: int

    @property
    def n_items(self) -> int:
        """Number of items folded in."""
        return self.n_new

    def with_items(self, histories: Histories) -> ImplicitKNN:
        """Return the model whose items are these; those folded in before have no part in it."""
        return fold_in_items(self.source, histories)

    def with_users(self, histories: Histories) -> NoReturn:
        """Refuse: the new items are no neighbours of one another."""
        raise _no_neighbours()

    def contributions(self, history: Histories, items: ArrayLike) -> NoReturn:
        """Refuse: the new items are no neighbours of one another."""
        raise _no_neighbours()

    def item_similarity(self, confidence: Floats) -> Neighbors:
        """Refuse: the new items are no neighbours of one another."""
        raise _no_neighbours()


def _no_neighbours() -> DataError:
    return DataError(
        "The items that an implicit-knn model has folded in are no neighbours of one another; "
        "fold in new users first, then the items, or fit to all ratings."
    )


def _least(model: ImplicitKNN) -> Floats:
    """Return how much like each old item its neighbours are at least; 0 where there is room."""
    counts = np.diff(model.neighbor_indptr)
    least = np.full(model.n_items, np.inf, np.float32)
    np.minimum.at(least, np.repeat(np.arange(model.n_items), counts), model.neighbor_weights)
    least[counts < model.neighbors] = 0
    cut: Floats = np.maximum(least * np.float32(1 - _ROUNDING), np.finfo(np.float32).tiny)
    return cut


def _weighted(
    model: ImplicitKNN, known: csr_array[np.float32], new: csr_array[np.float32]
) -> csr_array[np.float64]:
    """Return the rows of new items as `ImplicitKNN` weights those of its own."""
    weighted = new.astype(np.float64)
    rows = np.repeat(np.arange(new.shape[0]), np.diff(new.indptr))
    idf = np.log(model.n_items) - np.log1p(np.diff(known.indptr))
    if model.weighting == "bm25":
        average = known.sum(dtype=np.float64) / model.n_items
        length = np.bincount(rows, weighted.data, minlength=new.shape[0]) / average
        damping = BM25_K1 * (1 - BM25_B + BM25_B * length[rows])
        weighted.data *= (BM25_K1 + 1) / (damping + weighted.data) * idf[new.indices]
        return weighted
    if model.weighting == "tfidf":
        with np.errstate(invalid="ignore"):  # with a negative rating: like none
            weighted.data = np.sqrt(weighted.data) * idf[new.indices]
    size = np.sqrt(np.bincount(rows, weighted.data**2, minlength=new.shape[0]))[rows]
    weighted.data = np.divide(weighted.data, size, out=np.zeros_like(size), where=size > 0)
    return weighted

"""Items that a neighbourhood model has not seen: their likeness to those that it has."""

from __future__ import annotations

from typing import NoReturn

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import csr_array

from recsys.errors import DataError
from recsys.models.base import Floats, Histories, check_indices
from recsys.models.history import rows_of
from recsys.models.implicit_knn import BM25_B, BM25_K1, ImplicitKNN, Neighbors

__all__ = ["FoldedItems", "fold_in_items"]

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
    folded = FoldedItems(**model.params())
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

    def item_likeness(self, confidence: Floats) -> Neighbors:
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

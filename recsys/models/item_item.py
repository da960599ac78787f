"""Models that score items by what else a user has: a sum over the user's history.

Such a model keeps the histories of its users, so that folding in users is to exchange them.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recsys.auto import are_counts
from recsys.errors import DataError
from recsys.models.base import (
    Explanation,
    Floats,
    Histories,
    Indices,
    Model,
    check_indices,
    fitted,
    model,
)

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from recsys.data.ratings import Ratings

__all__ = ["HistoryModel", "check_rows", "rows_of", "weight_unit", "weighted_matrix", "weights_of"]

_BLOCK_SCORES = 2**22  # scores of the users of pairs that are computed at a time: 16 MB


@model
class HistoryModel(Model):
    """A model whose scores are ``sum over j in history(u) of w_uj S_ji``.

    A subclass has the matrix S, and says what the scores of some histories are (`_products`) and
    which entries of S they are made of (`_entries`). For the weights w_uj see `weight_unit`.

    Attributes
    ----------
    unit : float
        The rating or count that weighs 1.
    history_indptr : int64 ndarray of shape (n_users + 1,)
    history_items : int32 ndarray of shape (n_contacts,)
    history_weights : float32 ndarray of shape (n_contacts,)
        The histories of the users, as the rows of a CSR matrix.
    """

    predicts_ratings: ClassVar[bool] = False

    unit: float = fitted()
    history_indptr: NDArray[np.int64] = fitted("n_users_and_1")
    history_items: NDArray[np.int32] = fitted("n_contacts")
    history_weights: Floats = fitted("n_contacts")

    @property
    def n_users(self) -> int:
        """Number of users of the training ratings."""
        return len(self.history_indptr) - 1

    @property
    @abstractmethod
    def n_items(self) -> int:
        """Number of items of the training ratings."""

    @abstractmethod
    def _products(self, histories: Histories) -> Floats:
        """Return the scores of all items for each history, whose values are weights.

        Shape (n_rows, n_items), in memory the caller may change; the same bits for a row in any
        company.
        """

    @abstractmethod
    def _entries(self, rows: Indices, columns: Indices) -> Floats:
        """Return the entries of S at all `rows` and `columns`, shape (n_rows, n_columns)."""

    @classmethod
    def _from_arrays(cls, params: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Rebuild a fitted model, sharing memory with `arrays`.

        Raises
        ------
        DataError
            If an array is missing, its shape does not agree with the others, or the histories
            name items that there are not.
        """
        model = super()._from_arrays(params, arrays)
        check_rows(model.history_indptr, model.history_items, model.n_items, "history")
        return model

    def with_users(self, histories: Histories) -> Self:
        """Return the model whose users are these; scores depend on nothing else of a user."""
        return self._with_arrays(
            history_indptr=histories.indptr,
            history_items=histories.indices,
            history_weights=weights_of(histories.values, self.unit),
        )

    def contributions(self, history: Histories, items: ArrayLike) -> Explanation:
        """Take the scores of `items` apart: what each item of the history adds; the base is 0."""
        asked = check_indices(items, self.n_items, "item")
        known = check_indices(history.indices, self.n_items, "item")
        terms = self._entries(known, asked) * weights_of(history.values, self.unit)[:, None]
        return Explanation(np.zeros(len(asked), np.float32), np.ascontiguousarray(terms.T))

    def predict(self, users: ArrayLike, items: ArrayLike) -> Floats:
        """Scores of pairs, shape (n_pairs,), the same bits as in `scores`.

        All items of a user are scored for the few that are asked for.
        """
        u = check_indices(users, self.n_users, "user")
        i = check_indices(items, self.n_items, "item")
        distinct, places = np.unique(u, return_inverse=True)
        order = np.argsort(places, kind="stable")
        found = np.empty(len(u), dtype=np.float32)
        size = max(1, _BLOCK_SCORES // max(1, self.n_items))
        starts = range(0, len(distinct), size)
        edges = np.searchsorted(places[order], [*starts, len(distinct)])
        for start, first, last in zip(starts, edges, edges[1:], strict=False):
            pairs = order[first:last]
            block = self.scores(distinct[start : start + size])
            found[pairs] = block[places[pairs] - start, i[pairs]]
        return found

    def scores(self, users: ArrayLike) -> Floats:
        """Scores of all items for each user, shape (n_block, n_items)."""
        return self._products(self._rows(check_indices(users, self.n_users, "user")))

    def _take_histories(self, ratings: Ratings) -> None:
        self.unit = weight_unit(ratings)
        self.history_indptr, self.history_items = ratings.indptr, ratings.indices
        self.history_weights = weights_of(ratings.values, self.unit)

    def _rows(self, users: Indices) -> Histories:
        """Return the histories of some users."""
        mine = Histories(self.history_indptr, self.history_items, self.history_weights)
        return mine.take(users)


def weight_unit(ratings: Ratings) -> float:
    """Return the value that weighs 1, for models of who has what.

    To have rated an item is a contact, and the more of one the better the rating: it weighs its
    share of the highest one. Implicit feedback weighs in proportion to its counts, 1 on average,
    and so do ratings that look like counts or amounts.
    """
    values = ratings.values
    counts = ratings.implicit or are_counts(values)
    unit = values.mean(dtype=np.float64) if counts else values.max(initial=0)
    return float(unit) if unit > 0 else 1.0


def weights_of(values: Floats, unit: float) -> Floats:
    """Return what ratings or counts weigh."""
    return values / np.float32(unit)


def rows_of(histories: Histories, n_columns: int, unit: float) -> csr_array[np.float32]:
    """Return what the entries of some histories weigh, as a sparse matrix."""
    from scipy.sparse import csr_array

    weights = weights_of(histories.values, unit)
    shape = (histories.n_rows, n_columns)
    return csr_array((weights, histories.indices, histories.indptr), shape=shape)


def weighted_matrix(ratings: Ratings) -> csr_array[np.float32]:
    """Return what the ratings weigh, as a sparse matrix of users x items."""
    return rows_of(Histories.of(ratings), ratings.n_items, weight_unit(ratings))


def check_rows(
    indptr: NDArray[np.integer[Any]], indices: NDArray[np.integer[Any]], n_columns: int, what: str
) -> None:
    """Check that two arrays are rows of a CSR matrix with `n_columns` columns.

    Raises
    ------
    DataError
        If the row starts do not rise from 0 to the number of entries, or an index is out of range.
    """
    if not len(indptr) or indptr[0] != 0 or indptr[-1] != len(indices):
        raise DataError(f"The rows of the {what} must run from 0 to {len(indices)}.")
    if (np.diff(indptr) < 0).any():
        raise DataError(f"The row starts of the {what} must not fall.")
    if len(indices) and not 0 <= indices.min() <= indices.max() < n_columns:
        raise DataError(
            f"The indices of the {what} must be between 0 and {n_columns - 1}; "
            f"got {indices.min()} to {indices.max()}."
        )

"""Item-item models: the score of an item is a sum over the items of the user's history."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recsys.errors import DataError
from recsys.models.base import Model, check_indices
from recsys.models.histories import Explanation, Histories, are_counts
from recsys.models.parameters import fitted, model
from recsys.models.parts import Floats, Indices
from recsys.saved_arrays import check_rows

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from recsys.data.ratings import Ratings


@model
class HistoryModel(Model):
    """A model that represents a user by the history only, a row of a CSR matrix."""

    predicts_ratings = False

    history_indptr: NDArray[np.int64] = fitted("n_users + 1")
    history_items: NDArray[np.int32] = fitted("n_interactions")

    @property
    def n_users(self) -> int:
        """Number of users."""
        return len(self.history_indptr) - 1

    def with_users(self, histories: Histories) -> Self:
        """Return the model with these users instead of its own.

        Raises
        ------
        DataError
            If items were folded into the model.
        """
        self._require_items_of_the_fit()
        check_indices(histories.indices, self.n_items, "item")
        # The weights of items stay; only the histories are others.
        result = copy.copy(self)
        result._take_histories(histories)
        result._take_features("user", histories)
        return result

    def with_items(self, histories: Histories) -> Self:
        """Return the model with these items; items folded in before are dropped."""
        source = self._source
        check_indices(histories.indices, source.n_users, "user")
        folded = copy.copy(source)
        vars(folded)["_source_model"] = source
        folded._set_items(histories)
        folded._take_features("item", histories)
        return folded

    def _take_features(self, side: str, histories: Histories) -> None:
        """Set what the features of other users (or items) predict, if the model uses features."""

    @abstractmethod
    def _take_histories(self, histories: Histories) -> None:
        """Set the arrays of the users' histories."""

    def _require_items_of_the_fit(self) -> None:
        if self._source is not self:
            raise DataError(
                f"Items folded into a model of {self.name} have no weights for one another; fold "
                "in new users first, then the items, or fit to all ratings."
            )

    @abstractmethod
    def _set_items(self, histories: Histories) -> None:
        """Replace the scored items by new ones, given by their users."""

    @abstractmethod
    def _terms(self, history: Histories, items: Indices) -> Floats:
        """Return the contributions of a history's items to scores, shape (n_items, n_history)."""

    @classmethod
    def _from_arrays(
        cls, params: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]
    ) -> Self:
        result = super()._from_arrays(params, arrays)
        check_rows(
            "history", result.history_indptr, result.history_items, result.n_items
        )
        return result


@model
class ItemItemModel(HistoryModel):
    """A model with scores ``sum w_uj S_ji`` over the items j of the history of user u.

    The weights w_uj are ratings or counts divided by `unit` (see `weight_unit`).
    """

    unit: float = fitted()
    history_weights: Floats = fitted("n_interactions")

    @abstractmethod
    def _entries(self, rows: Indices, columns: Indices) -> Floats:
        """Return the entries of S at all `rows` and `columns`, shape (n_rows, n_columns)."""

    def contributions(
        self, history: Histories, items: ArrayLike, raters: Histories | None = None
    ) -> Explanation:
        """Return the scores of `items` as sums over the items of the history; the base is 0."""
        columns = check_indices(items, self.n_items, "item")
        base = np.zeros(len(columns), np.float32)
        return Explanation(base, self._terms(history, columns))

    def _terms(self, history: Histories, items: Indices) -> Floats:
        self._require_items_of_the_fit()
        rated = check_indices(history.indices, self.n_items, "item")
        weights = history.values / np.float32(self.unit)
        terms = self._entries(rated, items) * weights[:, None]
        return np.ascontiguousarray(terms.T)

    def _all_histories(self) -> Histories:
        """Return the histories of all users, with weights as values."""
        return Histories(self.history_indptr, self.history_items, self.history_weights)

    def _take_histories(self, histories: Histories) -> None:
        self.history_indptr, self.history_items = histories.indptr, histories.indices
        self.history_weights = histories.values / np.float32(self.unit)


def weight_unit(ratings: Ratings) -> float:
    """Return the value of weight 1: the highest rating, or the mean of counts."""
    values = ratings.values
    counts = ratings.implicit or are_counts(values)
    if ratings.scale is not None:
        unit = ratings.scale[1]
    elif counts:
        unit = float(values.mean(dtype=np.float64))
    else:
        unit = float(values.max(initial=0))
    return unit if unit > 0 else 1.0


def weighted_matrix(
    histories: Histories, n_columns: int, unit: float
) -> csr_array[np.float32]:
    """Return histories as a sparse matrix, with values divided by `unit`."""
    from scipy.sparse import csr_array

    weights = histories.values / np.float32(unit)
    shape = (histories.n_rows, n_columns)
    return csr_array((weights, histories.indices, histories.indptr), shape=shape)

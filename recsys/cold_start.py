"""Scores and predictions for users and items that the model has never seen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from recsys.errors import DataError, UnknownIdError
from recsys.models.base import BiasedModel, FactorForm, Floats, Indices, Model
from recsys.models.baselines import Popular

if TYPE_CHECKING:
    from recsys.data.ids import Ids

__all__ = ["WithNewUser", "labels_of", "predict_cold"]


class WithNewUser:
    """A model that knows one more user, of index ``n_users``, who gets the most rated items.

    That index stands for all unknown users. The scores of the others are the model's own; see
    `recsys.topn.Scorer`.
    """

    def __init__(self, model: Model, popular: Popular) -> None:
        self._model = model
        self._counts = popular.item_counts
        self._new = model.n_users

    @property
    def n_items(self) -> int:
        """Number of items."""
        return len(self._counts)

    def predict(self, users: Indices, items: Indices) -> Floats:
        """Scores of pairs, shape (n_pairs,)."""
        found = self._counts[items]
        known = users < self._new
        found[known] = self._model.predict(users[known], items[known])
        return found

    def scores(self, users: Indices) -> Floats:
        """Scores of all items, shape (n_block, n_items)."""
        known = users < self._new
        if known.all():
            return self._model.scores(users)
        block = np.empty((len(users), self.n_items), dtype=np.float32)
        block[known] = self._model.scores(users[known])
        block[~known] = self._counts
        return block

    def _score_error(self, users: Indices) -> Floats | None:
        """Bound on the rounding of the model's scores; counts have none."""
        known = users < self._new
        of_known = self._model._score_error(users[known])
        if of_known is None:
            return None
        error = np.zeros(len(users), dtype=np.float32)
        error[known] = of_known
        return error

    def _factor_form(self, users: Indices) -> FactorForm | None:
        """Return the factors of the model, where all these users are its own."""
        return self._model._factor_form(users) if (users < self._new).all() else None


def predict_cold(model: Model, popular: Popular | None, users: Indices, items: Indices) -> Floats:
    """Predict ratings of pairs where -1 stands for an unknown user or item.

    Where one is unknown, `popular` predicts the item's damped mean or, for an unknown item, the
    mean of all ratings; without it, the biases of `model` do.

    Raises
    ------
    DataError
        If `popular` is None and the model has no biases.
    """
    if popular is not None:
        means = popular.item_means[items]
        predicted: Floats = np.where(items >= 0, means, np.float32(popular.global_mean))
    elif isinstance(model, BiasedModel):
        predicted = model._predict_partly_known(users, items)
    else:
        raise DataError(f"The {model.name} model has no biases; use cold_start='popular' instead.")
    known = (users >= 0) & (items >= 0)
    predicted[known] = model.predict(users[known], items[known])
    return predicted


def labels_of(ids: Ids, queries: Any, found: Indices) -> pl.Series:
    """Return the requested ids in the dtype of `ids`; `found` are their indices, -1 if unknown.

    Raises
    ------
    UnknownIdError
        If an unknown id cannot be one of these, being text among integers.
    """
    labels = ids.values.gather(np.maximum(found, 0))
    unknown = np.flatnonzero(found < 0)
    if not len(unknown):
        return labels
    named = pl.Series([str(queries[place]) for place in unknown]).cast(ids.dtype, strict=False)
    if named.null_count():
        first = queries[unknown[named.is_null().arg_max() or 0]]
        raise UnknownIdError(
            f"Unknown {ids.kind} {first!r}, which cannot be among integer ids; "
            f"ids look like {ids.values[0]}."
        )
    return labels.scatter(unknown, named)

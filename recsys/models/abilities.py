"""Protocols for abilities of some models, beyond fitting and scoring.

A model has an ability if it has its methods: ``isinstance(model, FoldsInUsers)``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike

from recsys.errors import DataError
from recsys.models.base import Model
from recsys.models.histories import Explanation, Histories, csr_rows
from recsys.models.parts import Floats, Indices
from recsys.models.registry import MODELS, model_class

if TYPE_CHECKING:
    from lowrank.completion.feature_ridge import GroupedFeatures
    from recsys.data.ratings import Ratings
    from recsys.ranking.topn import Scorer

_ROUNDING = 1e-3  # of the sum of the sizes of contributions that must add up to a score


@runtime_checkable
class FoldsInUsers(Protocol):
    """A model that can fold in new users for the fitted items."""

    def with_users(self, histories: Histories) -> Model:
        """Return the model with these users, of index 0..n-1; training users keep their scores."""


@runtime_checkable
class FoldsInItems(Protocol):
    """A model that can fold in new items for the fitted users."""

    def with_items(self, histories: Histories) -> Model:
        """Return the model with these items, of index 0..n-1, given as rows of user indices."""


@runtime_checkable
class Explains(Protocol):
    """A model whose scores are sums over the items of the user's history."""

    def contributions(
        self,
        history: Histories,
        items: ArrayLike,
        fitted: Ratings | None = None,
    ) -> Explanation:
        """Return the scores of `items` for the user of `history` as sums, before clipping.

        `fitted` are the training ratings, with the features of the items. A model without features
        needs none.
        """


@runtime_checkable
class HasItemVectors(Protocol):
    """A model that represents items by vectors."""

    def item_vectors(self) -> Floats:
        """Return vectors whose cosine is the similarity of two items, shape (n_items, k)."""


@runtime_checkable
class HasItemSimilarity(Protocol):
    """A model with its own similarity of items."""

    def item_similarity(self, confidence: Floats) -> Scorer:
        """Return a scorer of items for items: similarity times the confidence of the result."""


@runtime_checkable
class HasUserVectors(Protocol):
    """A model that represents users by vectors."""

    def user_vectors(self) -> Floats:
        """Return vectors whose cosine is the similarity of two users, shape (n_users, k)."""


@runtime_checkable
class HasUncertainty(Protocol):
    """A model that estimates the uncertainty of its predictions."""

    def predict_std(self, users: ArrayLike, items: ArrayLike) -> Floats:
        """Return the standard deviation of each prediction, shape (n_pairs,)."""


@runtime_checkable
class KnowsFeatures(Protocol):
    """A model that represents users or items without ratings by their features."""

    def knows(self, side: str) -> bool:
        """Return whether the model uses features of `side`, "item" or "user"."""

    def comparable(self, side: str) -> tuple[Floats, Floats]:
        """Return the vectors of `side`, and the reliability of their features, shape (n,).

        The reliability is the expected cosine of a vector with its prediction from features.
        """

    def widened(
        self,
        side: str,
        order: Indices,
        features: GroupedFeatures,
    ) -> Model:
        """Return the model with additional items (or users) that have no ratings.

        The existing rows do not change. `order` sorts the existing rows followed by the new ones.
        """


def folded_in(
    model: Model,
    side: str,
    histories: Histories,
    features: GroupedFeatures | None,
) -> Model:
    """Return the model with these users (or items), and their features if it uses any."""
    return fold(model, side, replace(histories, features=csr_rows(features)))


def fold(
    model: Any,
    side: str,
    histories: Histories,
) -> Model:
    """Return the model with these users (or items) instead of its own.

    Raises
    ------
    DataError
        If a model of one's own changes itself, or returns something else.
    """
    # A protocol cannot narrow a model by the name of a side, hence Any.
    method = model.with_users if side == "user" else model.with_items
    folded = method(histories)
    if isinstance(folded, Model) and folded is not model:
        size = folded.n_users if side == "user" else folded.n_items
        if size == histories.n_rows:
            return folded
    raise DataError(
        f"with_{side}s of the {model.name} model must return a copy of the model, with n_{side}s = "
        f"{histories.n_rows}, the number of histories; got {type(folded).__name__}."
    )


def vectors_of(model: Any, side: str) -> Floats:
    """Return the vectors of the items (or users) of a model that has them.

    Raises
    ------
    DataError
        If a model of one's own returns something else than finite numbers, a row for each.
    """
    vectors: Floats = model.user_vectors() if side == "user" else model.item_vectors()
    n_rows = model.n_users if side == "user" else model.n_items
    n_columns = np.shape(vectors)[1] if np.ndim(vectors) == 2 else 0
    if _is_finite(vectors, (n_rows, n_columns)):
        return vectors
    raise DataError(
        f"{side}_vectors of the {model.name} model must return an array of finite numbers of shape "
        f"({n_rows}, k), a row for each {side}; got {type(vectors).__name__} of shape "
        f"{np.shape(vectors)}."
    )


def contributions_of(
    model: Any,
    history: Histories,
    items: ArrayLike,
    fitted: Ratings | None,
) -> Explanation:
    """Return the scores of items as sums over the history of a user; see `Explains`.

    Raises
    ------
    DataError
        If a model of one's own returns something else than finite numbers of these shapes.
    """
    explanation: Explanation = model.contributions(history, items, fitted)
    n_items = np.size(items)
    shapes = ((n_items,), (n_items, len(history.indices)))
    is_explanation = isinstance(explanation, Explanation)
    if is_explanation and all(map(_is_finite, explanation[:2], shapes)):
        return explanation
    raise DataError(
        f"contributions of the {model.name} model must return an Explanation of finite arrays: "
        f"base of shape {shapes[0]} and terms of shape {shapes[1]}; got "
        f"{type(explanation).__name__}."
    )


def check_sum(model: Model, explanation: Explanation, score: float) -> None:
    """Check that the contributions to the score of one item add up to it.

    Raises
    ------
    DataError
        If they do not, as in a model of one's own.
    """
    total = 0.0
    size = abs(score)
    for part in explanation:
        if part is not None:
            total += float(part.sum(dtype=np.float64))
            size += float(np.abs(part).sum(dtype=np.float64))
    if abs(total - score) > _ROUNDING * size:
        raise DataError(
            f"contributions of the {model.name} model must add up to the score; they add up to "
            f"{total:g}, and the score is {score:g}."
        )


def _is_finite(part: object, shape: tuple[int, ...]) -> bool:
    """Return whether a part of an explanation has finite numbers in an array of this shape."""
    if not isinstance(part, np.ndarray) or part.dtype.kind not in "iuf":
        return False
    return part.shape == shape and bool(np.isfinite(part).all())


def unsupported(
    model: Model,
    ability: Any,
    action: str,
) -> DataError:
    """Return the error for a model that lacks an ability; it names the models that have it."""
    names = ", ".join(
        name for name in sorted(MODELS) if issubclass(model_class(name), ability)
    )
    return DataError(
        f"The {model.name} model cannot {action}; these models can: {names or 'none'}."
    )

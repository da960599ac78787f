"""Abilities that only some models have, beyond fitting and scoring.

A model has an ability by having its method: ``isinstance(model, FoldsInUsers)``.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from numpy.typing import ArrayLike

from recsys.models.base import Floats, Indices, Model
from recsys.models.histories import Explanation, Histories

if TYPE_CHECKING:
    from lowrank.completion.design import GroupedFeatures
    from recsys.topn import Scorer


@runtime_checkable
class FoldsInUsers(Protocol):
    """A model that can represent new users, with the items as fitted."""

    def with_users(self, histories: Histories) -> Model:
        """Return the model of these users, of index 0..n-1; one of the fit gets its own scores."""


@runtime_checkable
class FoldsInItems(Protocol):
    """A model that can represent new items, with the users as fitted."""

    def with_items(self, histories: Histories) -> Model:
        """Return the model of these items, of index 0..n-1: rows of user indices."""


@runtime_checkable
class Explains(Protocol):
    """A model whose scores are sums over the items of the user's history."""

    def contributions(self, history: Histories, items: ArrayLike) -> Explanation:
        """Return the scores of `items` for the one user of `history` as sums, before clipping."""


@runtime_checkable
class HasItemVectors(Protocol):
    """A model that represents items by vectors."""

    def item_vectors(self) -> Floats:
        """Return vectors whose cosine is the similarity of two items, shape (n_items, k)."""


@runtime_checkable
class HasItemSimilarity(Protocol):
    """A model that holds similarities of items."""

    def item_similarity(self, confidence: Floats) -> Scorer:
        """Return a scorer of items for items: similarity times the confidence of the found item."""


@runtime_checkable
class HasUserVectors(Protocol):
    """A model that represents users by vectors."""

    def user_vectors(self) -> Floats:
        """Return vectors whose cosine is the similarity of two users, shape (n_users, k)."""


@runtime_checkable
class HasUncertainty(Protocol):
    """A model that knows the uncertainty of its predictions."""

    def predict_std(self, users: ArrayLike, items: ArrayLike) -> Floats:
        """Return the standard deviation of each prediction, shape (n_pairs,)."""


@runtime_checkable
class KnowsFeatures(Protocol):
    """A model that knows users and items without ratings by their features."""

    def knows(self, side: str) -> bool:
        """Return whether the model has features of a side, "item" or "user"."""

    def comparable(self, side: str) -> tuple[Floats, Floats]:
        """Return vectors of a side, and how far features tell each, shape (n,).

        The latter is the expected cosine of a vector with the one that its features predict.
        """

    def widened(self, side: str, order: Indices, features: GroupedFeatures) -> Model:
        """Return the model with more items, or users, that nobody rated.

        What it knows stays, bit for bit; `order` sorts what it has, and then the new.
        """


def folded_in(
    model: Any, side: str, histories: Histories, features: GroupedFeatures | None
) -> Model:
    """Return the model of these users, or items, whose features count where it uses any."""
    known = (features,) if model.uses_features else ()
    folded: Model = getattr(model, f"with_{side}s")(histories, *known)
    return folded


def takes_start(model: Model) -> bool:
    """Return whether `model.fit` can begin where another fit ended."""
    return "start" in inspect.signature(model._fit).parameters

"""What a model is asked to do: what every model does, and what some can do besides.

`Model` is what `Recommender`, `storage` and `evaluation` need of any model. The rest are abilities:
a model has one by having the method, and lacks it by not having it.

==================  ====================  ====================================================
ability             method                what it is for
==================  ====================  ====================================================
`FoldsInUsers`      ``with_users``        recommending to users that the fit has not seen
`FoldsInItems`      ``with_items``        recommending items that the fit has not seen
`Explains`          ``contributions``     taking a score apart, one term per rated item
`HasItemVectors`    ``item_vectors``      similar items
`HasItemLikeness`   ``item_likeness``     similar items, of a model without vectors
`HasUserVectors`    ``user_vectors``      similar users
`HasUncertainty`    ``predict_std``       the standard deviation of a prediction
                    ``fit(..., start=)``  refitting from an earlier fit of the same users and items
==================  ====================  ====================================================
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

if TYPE_CHECKING:
    from recsys.data.ratings import Ratings
    from recsys.models.base import Parameter
    from recsys.topn import Scorer

__all__ = [
    "Explains",
    "Explanation",
    "FactorForm",
    "Floats",
    "FoldsInItems",
    "FoldsInUsers",
    "HasItemLikeness",
    "HasItemVectors",
    "HasUncertainty",
    "HasUserVectors",
    "Histories",
    "Indices",
    "Model",
    "Step",
]

Floats = NDArray[np.float32]
Indices = NDArray[np.int64]


class Histories(NamedTuple):
    """What some users have rated (or what some items were rated), as the rows of a CSR matrix.

    Attributes
    ----------
    indptr : int64 ndarray of shape (n + 1,)
        The ratings of row r are at positions indptr[r]:indptr[r + 1].
    indices : int32 ndarray of shape (nnz,)
        Item indices (user indices, in the histories of items), increasing within a row.
    values : float32 ndarray of shape (nnz,)
        Ratings; ones for implicit feedback.
    """

    indptr: NDArray[np.int64]
    indices: NDArray[np.int32]
    values: Floats

    @property
    def n_rows(self) -> int:
        """Number of users (or items)."""
        return len(self.indptr) - 1

    @property
    def counts(self) -> NDArray[np.int64]:
        """Number of ratings of each row."""
        return np.diff(self.indptr)

    @property
    def rows(self) -> Indices:
        """Row of each rating."""
        return np.repeat(np.arange(self.n_rows), self.counts)

    def take(self, rows: Indices) -> Histories:
        """Return some of the rows, in the order asked for."""
        starts = self.indptr[rows]
        counts = self.indptr[rows + 1] - starts
        indptr = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
        at = np.arange(indptr[-1]) + np.repeat(starts - indptr[:-1], counts)
        return Histories(indptr, self.indices[at], self.values[at])

    @classmethod
    def of(cls, ratings: Ratings) -> Self:
        """Return the histories of the users of `ratings`, without a copy."""
        return cls(ratings.indptr, ratings.indices, ratings.values)


class Explanation(NamedTuple):
    """Scores of one user taken apart: ``base + terms.sum(axis=1)``, to rounding.

    Attributes
    ----------
    base : float32 ndarray of shape (n_items_asked,)
        What the score would be without any history.
    terms : float32 ndarray of shape (n_items_asked, n_ratings)
        What each rating of the user's history adds.
    """

    base: Floats
    terms: Floats


class FactorForm(NamedTuple):
    """Scores of some users as ``(offset_u + bias_i) + x_u . y_i``, for the compiled top-N search.

    Attributes
    ----------
    users : float32 ndarray of shape (n_block, k)
        The vectors x_u.
    offset : float32 ndarray of shape (n_block,)
    items : float32 ndarray of shape (n_items, k)
        The vectors y_i.
    bias : float32 ndarray of shape (n_items,)
    weight : float32 ndarray of shape (n_items,), optional
        Makes the scores ``weight_i clip((offset_u bias_i) (x_u . y_i), -1, 1)``: cosines.
    """

    users: Floats
    offset: Floats
    items: Floats
    bias: Floats
    weight: Floats | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """Where an iterative fit stands; given to ``on_step`` after each sweep.

    Attributes
    ----------
    step, total : int
        Sweeps done and the most there will be; ``step`` counts from 1.
    objective : float or None
        The penalised sum of squares that is being minimised.
    train_rmse, validation_rmse : float or None
        Root mean squared error on the training and on the validation ratings.
    """

    step: int
    total: int
    objective: float | None = None
    train_rmse: float | None = None
    validation_rmse: float | None = None


class Model(Protocol):
    """What `Recommender`, `storage` and `evaluation` ask of a model.

    Attributes
    ----------
    name : str
        The name in `recsys.models.registry.MODELS`.
    needs_values : bool
        Whether implicit feedback (no rating column) is refused by `fit`.
    predicts_ratings : bool
        Whether `predict` estimates the rating itself, so that RMSE and MAE mean something.
    summary : str
        When to use the model, in one line.
    keeps_best_sweep : bool
        Whether `fit` with validation ratings ends with the sweep that predicts them best, as if
        the parameter ``iterations`` had been the number of that sweep.
    scores_between_sweeps : bool
        Whether ``on_step`` may ask the model, as it stands after that sweep.
    """

    name: ClassVar[str]
    needs_values: ClassVar[bool]
    predicts_ratings: ClassVar[bool]
    summary: ClassVar[str]
    scores_between_sweeps: ClassVar[bool]

    @property
    def keeps_best_sweep(self) -> bool:
        """Whether validation ratings choose the number of sweeps."""
        ...

    @property
    def n_users(self) -> int:
        """Number of users of the training ratings."""
        ...

    @property
    def n_items(self) -> int:
        """Number of items of the training ratings."""
        ...

    def fit(
        self,
        ratings: Ratings,
        *,
        on_step: Callable[[Step], None] | None = None,
        validation: Ratings | None = None,
    ) -> Self:
        """Learn from `ratings`; `validation` must share their users and items."""
        ...

    def predict(self, users: ArrayLike, items: ArrayLike) -> Floats:
        """Predicted ratings of pairs, shape (n_pairs,)."""
        ...

    def scores(self, users: ArrayLike) -> Floats:
        """Ranking scores of all items, (n_block, n_items), in memory the caller may change."""
        ...

    def score_error(self, users: ArrayLike) -> Floats | None:
        """Bound on ``|scores - predict|`` by rounding, per user.

        None says that a user's scores are the same bits in any block; otherwise the top-N search
        widens its cut by the bound and takes the final scores from `predict`.
        """
        ...

    def factor_form(self, users: ArrayLike) -> FactorForm | None:
        """Return the factors whose products are the scores, if that is what they are."""
        ...

    @classmethod
    def parameters(cls) -> tuple[Parameter, ...]:
        """Return the parameters that the model declares."""
        ...

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the values of the parameters, as JSON can hold them."""
        ...

    def set_params(self, **params: Any) -> Self:
        """Set some of the parameters, for the next `fit`."""
        ...

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return what was fitted, as arrays (scalars have shape ())."""
        ...

    @classmethod
    def from_arrays(cls, params: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Return the fitted model that `params` and `arrays` describe."""
        ...


@runtime_checkable
class FoldsInUsers(Protocol):
    """A model that takes new users in with what it knows of the items."""

    def with_users(self, histories: Histories) -> Model:
        """Return the model of the same items whose users are these, of index 0..n-1.

        A user of the training ratings gets what it got in the fit, to rounding.
        """
        ...


@runtime_checkable
class FoldsInItems(Protocol):
    """A model that takes new items in with what it knows of the users."""

    def with_items(self, histories: Histories) -> Model:
        """Return the model of the same users whose items are these, of index 0..n-1.

        Each row of `histories` is an item; its indices are users.
        """
        ...


@runtime_checkable
class Explains(Protocol):
    """A model whose scores are sums over the items of the user's history."""

    def contributions(self, history: Histories, items: ArrayLike) -> Explanation:
        """Take the scores of `items` for the one user of `history` apart, before clipping."""
        ...


@runtime_checkable
class HasItemVectors(Protocol):
    """A model that places items in a space."""

    def item_vectors(self) -> Floats:
        """Return the vectors whose cosine says how alike two items are, shape (n_items, k)."""
        ...


@runtime_checkable
class HasItemLikeness(Protocol):
    """A model that knows directly how alike items are."""

    def item_likeness(self, confidence: Floats) -> Scorer:
        """Return what scores items for items; the score of a found item times its confidence."""
        ...


@runtime_checkable
class HasUserVectors(Protocol):
    """A model that places users in a space."""

    def user_vectors(self) -> Floats:
        """Return the vectors whose cosine says how alike two users are, shape (n_users, k)."""
        ...


@runtime_checkable
class HasUncertainty(Protocol):
    """A model that knows how far off its predictions may be."""

    def predict_std(self, users: ArrayLike, items: ArrayLike) -> Floats:
        """Return the standard deviation of each prediction, shape (n_pairs,)."""
        ...

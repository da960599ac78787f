"""Prior means of factors that are linear in the features of users and items."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from lowrank.completion.feature_ridge import FeatureMap
from lowrank.kernels import CsrArrays
from recsys.models.base import FoldingModel
from recsys.models.histories import Histories, csr_rows
from recsys.models.parts import Floats, Indices, Part, Sides, record, saved

if TYPE_CHECKING:
    from lowrank.completion.feature_ridge import GroupedFeatures

LEAST_VARIANCE = 1e-12
"""Least variance of vectors around their predictions, which divides."""

F = TypeVar("F", bound=FoldingModel)


def widened(model: F, side: str, order: Indices, features: GroupedFeatures) -> F:
    """Return a model with additional items (or users) without ratings, sorted by `order`."""
    n_new = features.matrix.shape[0]
    n_fitted = len(order) - n_new
    # New rows are zero first, and then set to what their features predict.
    rows = np.where(order < n_fitted, order, -1)
    result = model._rearranged(**{side: rows})
    histories = without_ratings(n_new, features)
    fold = model.with_items if side == "item" else model.with_users
    result._put(fold(histories), side, np.argsort(order)[n_fitted:])
    return result


def without_ratings(n_rows: int, features: GroupedFeatures | None) -> Histories:
    """Return histories of users (or items) that have features only."""
    none = np.zeros(0, np.int32), np.zeros(0, np.float32)
    starts = np.zeros(n_rows + 1, np.int64)
    return Histories(starts, *none, features=csr_rows(features))


def reliability(
    offsets: Floats, variance: NDArray[np.floating[Any]] | np.floating[Any]
) -> Floats:
    """Return the expected cosine of each vector with its prediction, shape (n,).

    `offsets` are the predictions minus the mean vector, and `variance` is that of the vectors
    around the predictions.
    """
    squares = np.einsum("ij,ij->i", offsets, offsets)
    cosines: Floats = np.sqrt(squares / (squares + variance)).astype(np.float32)
    return cosines


@record
class AxisFeaturePrior(Part):
    """Factors that features predict, for users or for items.

    Attributes
    ----------
    mean, weights : float32 ndarrays of shapes (k,) and (n_features, k)
        The predicted factors are ``mean + features @ weights``.
    centre : float32 ndarray of shape (k,)
        Mean factors of rows with ratings.
    variance : float
        Mean squared distance of factors and their predictions.
    has_ratings, reliability : float32 ndarrays of shape (n,)
        1 for rows with ratings, 0 for others; and the reliability of the features of each row.
    """

    mean: Floats = saved("k")
    weights: Floats = saved("n_{side}_features", "k")
    centre: Floats = saved("k")
    variance: float = saved()
    has_ratings: Floats = saved("n_{side}s")
    reliability: Floats = saved("n_{side}s")

    @classmethod
    def fit(
        cls,
        prior: FeatureMap,
        factors: Floats,
        features: CsrArrays | None,
        counts: NDArray[np.int64],
    ) -> Self:
        """Return the prior of a fit; zero factors mean no ratings."""
        # The fit leaves rows without interactions at zero.
        is_rated = factors.any(axis=1)
        predicted = prior.vectors(features, len(factors))
        residual = (factors - predicted)[is_rated]
        squares = np.einsum("ij,ij->", residual, residual, dtype=np.float64)
        none = np.zeros(len(factors), np.float32)
        axis = cls(
            mean=prior.mean,
            weights=prior.coefficients,
            centre=factors[is_rated].mean(axis=0, dtype=np.float64).astype(np.float32),
            variance=float(squares) / max(1, len(residual)),
            has_ratings=none,
            reliability=none,
        )
        return axis.of_rows(predicted, counts)

    @property
    def prior(self) -> FeatureMap:
        """The map from features to factors."""
        return FeatureMap(self.mean, self.weights)

    def of_rows(self, predicted: Floats, counts: NDArray[np.int64]) -> Self:
        """Return the prior with other rows, for which features predict these factors."""
        variance = np.float32(self.variance + LEAST_VARIANCE)
        return replace(
            self,
            has_ratings=(counts > 0).astype(np.float32),
            reliability=reliability(predicted - self.centre, variance),
        )


@record
class FeaturePriors(Sides[AxisFeaturePrior | None]):
    """The priors of users and of items, for those with features.

    A user or item without ratings has exactly the predicted factors.
    """

    kind = AxisFeaturePrior

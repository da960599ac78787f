"""Vectors of users and items without ratings, from their features.

The fit of each model shifts the prior means of vectors by features. This module adds the cold
start. An item without ratings gets the vector that its features predict. In addition, each user has
slopes on the main directions of the item features, which are used for items without ratings only.
They are fitted to the user's ratings, with all items represented by their features. The same holds
with users and items exchanged.

The slopes are additional columns of the user factors. In these columns, items without ratings have
their positions on the directions and a one; items with ratings have zeros. Predictions and top-N
search remain products of factors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

import numpy as np

from lowrank import kernels
from lowrank.completion.feature_ridge import FeatureMap
from lowrank.completion.links import Posterior, RowPrior, Terms, sampled_rows
from lowrank.kernels import CsrArrays
from recsys.models.base import FoldingModel, Model
from recsys.models.histories import Histories, csr_rows
from recsys.models.parts import (
    OTHER,
    AnyFloats,
    Doubles,
    Floats,
    Indices,
    Ints,
    Longs,
    Part,
    Sides,
    record,
    saved,
)

if TYPE_CHECKING:
    from lowrank.completion.cold_start import ColdMap
    from lowrank.completion.feature_ridge import GroupedFeatures

_STORED = 2**24  # numbers in the parts of items that are kept for explanations
_LEAST_SHARE = 0.1  # of the covariance of rows without ratings, after its calibration


LEAST_VARIANCE = 1e-12
"""Least variance of vectors around their predictions, which divides."""

F = TypeVar("F", bound=FoldingModel)
T = TypeVar("T")


def widened(
    model: F,
    side: str,
    order: Indices,
    features: GroupedFeatures,
) -> F:
    """Return a model with additional items (or users) without ratings, sorted by `order`."""
    n_new = features.matrix.shape[0]
    n_fitted = len(order) - n_new
    # New rows are zero first, and then set to what their features predict.
    rows = np.where(order < n_fitted, order, -1)
    result = model._rearranged(**{side: rows})
    histories = without_ratings(n_new, features)
    fold = model.with_items if side == "item" else model.with_users
    result._put(
        fold(histories),
        side,
        np.argsort(order)[n_fitted:],
    )
    return result


def without_ratings(n_rows: int, features: GroupedFeatures | None) -> Histories:
    """Return histories of users (or items) that have features only."""
    none = np.zeros(0, np.int32), np.zeros(0, np.float32)
    starts = np.zeros(n_rows + 1, np.int64)
    return Histories(starts, *none, features=csr_rows(features))


def reliability(offsets: Floats, variance: AnyFloats | np.floating[Any]) -> Floats:
    """Return the expected cosine of each vector with its prediction, shape (n,).

    `offsets` are the predictions minus the mean vector, and `variance` is the variance of the
    vectors around the predictions.
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
        counts: Longs,
    ) -> Self:
        """Return the prior of a fit; zero factors mean no ratings."""
        # The fit leaves rows without interactions at zero.
        is_rated = factors.any(axis=1)
        predicted = prior.vectors(features, len(factors))
        residual = (factors - predicted)[is_rated]
        squares = np.einsum(
            "ij,ij->",
            residual,
            residual,
            dtype=np.float64,
        )
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

    def of_rows(self, predicted: Floats, counts: Longs) -> Self:
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


@record
class AxisFeatures(Part):
    """The map from features to vectors for one side, and what it predicts for its rows.

    Attributes
    ----------
    mean, covariance, coefficients, draws, centre : ndarrays
        The fields of `ColdMap`.
    directions : float32 ndarray of shape (n_features, r)
    slope_mean, slope_precision, slope_noise : ndarrays and float
        The distribution of the slopes of the other side on the directions.
    vectors, positions : float32 ndarrays of shapes (n, d) and (n, r)
        Predicted vectors of the rows, with the bias last, and their positions on the directions.
    spread : float32 ndarray of shape (n,)
        Factors of the covariance of rows without ratings; 0 for other rows.
    """

    mean: Floats = saved("d")
    covariance: Floats = saved("d", "d")
    coefficients: Floats = saved("n_{side}_features", "d")
    draws: Floats = saved("n_{side}_features", "n_draws")
    centre: Floats = saved("n_{side}_features")
    directions: Floats = saved("n_{side}_features", "n_{side}_directions")
    slope_mean: Floats = saved("n_{side}_slopes")
    slope_precision: Floats = saved("n_{side}_slopes", "n_{side}_slopes")
    slope_noise: float = saved()
    vectors: Floats = saved("n_{side}s", "d")
    positions: Floats = saved("n_{side}s", "n_{side}_directions")
    spread: Floats = saved("n_{side}s")

    @classmethod
    def fit(
        cls,
        own: Posterior,
        others: Posterior,
        histories: Histories,
        other_histories: Histories,
        features: GroupedFeatures,
        *,
        covariance: Doubles,
        global_mean: float,
    ) -> Self:
        """Fit the map to the vectors of the `own` side, and slopes of the `others` to ratings.

        `covariance` is the mean covariance of the own vectors.
        """
        from lowrank.completion import cold_start

        counts = histories.counts
        cold = cold_start.fit_cold_map(
            own.mean,
            counts,
            features,
            covariance,
        )
        directions = cold_start.main_directions(
            features,
            counts,
            np.dtype(np.float32),
        )
        matrix = histories.features
        assert matrix is not None
        vectors = cold.vectors(matrix).mean.astype(np.float32, copy=False)
        # The distribution of slopes is learned from a sample of the other side.
        sample = sampled_rows(other_histories.counts)
        entries = other_histories.take(sample).csr
        positions = kernels.csr_matmat(matrix, directions)
        residuals = _residuals(
            entries,
            others.mean[sample],
            vectors,
            global_mean,
        )
        slopes = cold_start.fit_slopes(residuals, positions)
        return cls(
            mean=cold.mean,
            covariance=cold.covariance,
            coefficients=cold.coefficients,
            draws=cold.draws,
            centre=cold.centre,
            directions=directions,
            slope_mean=slopes.prior.mean,
            slope_precision=slopes.prior.precision,
            slope_noise=float(slopes.noise),
            vectors=vectors,
            positions=positions,
            spread=np.where(counts == 0, cold.spread(matrix), 0).astype(np.float32),
        )

    def calibrated(
        self,
        others: Posterior,
        counts: Longs,
        noise: float,
    ) -> Self:
        """Return the map with the covariance scaled to the variance of residuals.

        `others` are the vectors of the other side, with these counts of ratings. `noise` is the
        noise variance of predictions.
        """
        w = others.mean.astype(np.float64)
        # The variance of a score is w'Cw, in which the own bias has the factor one.
        w[:, -1] = 1
        spread = np.einsum("ni,ij,nj->n", w, self.covariance, w)
        expected = self.slope_noise - noise
        share = np.clip(
            expected * counts.sum() / (spread @ counts),
            _LEAST_SHARE,
            1,
        )
        return replace(self, covariance=self.covariance * np.float32(share))

    @property
    def map(self) -> ColdMap:
        """The map from features to vectors."""
        from lowrank.completion.cold_start import ColdMap

        return ColdMap(
            mean=self.mean,
            covariance=self.covariance,
            coefficients=self.coefficients,
            draws=self.draws,
            centre=self.centre,
        )

    def slopes(
        self,
        others: Floats,
        entries: CsrArrays,
        global_mean: float,
    ) -> Floats:
        """Return the slopes of rows of the other side, given their vectors and ratings."""
        from lowrank.completion.cold_start import Slopes

        none = np.zeros((0, len(self.slope_mean)), np.float32)
        prior = RowPrior(
            self.slope_mean,
            self.slope_precision,
            none,
            0.0,
        )
        residuals = _residuals(
            entries,
            others,
            self.vectors,
            global_mean,
        )
        return Slopes(prior, self.slope_noise).of(residuals, self.positions)

    def of_rows(self, rows: Posterior, histories: Histories) -> tuple[Self, Posterior]:
        """Return the features of other rows, and these rows with predicted vectors.

        Only rows without ratings get them.
        """
        features = histories.features
        if features is None:
            starts = np.zeros(histories.n_rows + 1, np.int64)
            features = CsrArrays(
                starts,
                np.zeros(0, np.int32),
                np.zeros(0, np.float32),
            )
        # Only rows without ratings take the predicted vector: ratings say more than features.
        is_cold = histories.counts == 0
        predicted = self.map.vectors(features)
        axis = replace(
            self,
            vectors=predicted.mean.astype(np.float32, copy=False),
            positions=kernels.csr_matmat(features, self.directions),
            spread=np.where(is_cold, self.map.spread(features), 0).astype(np.float32),
        )
        mean = np.where(
            is_cold[:, None],
            predicted.mean,
            rows.mean,
        )
        covariance = rows.covariance
        if covariance.shape[1]:
            covariance = np.where(
                is_cold[:, None],
                predicted.covariance,
                covariance,
            )
        return axis, Posterior(mean, covariance.astype(np.float32, copy=False))

    def terms(self, features: CsrArrays | None) -> Terms:
        """Return the vector of a row without ratings as a sum over its features."""
        none = np.zeros((0, len(self.mean)))
        of_features = none
        if features is not None:
            of_features = self.coefficients[features.indices].astype(np.float64)
            of_features *= features.data[:, None]
        mean = self.mean.astype(np.float64)
        precision = np.eye(len(mean))
        return Terms(precision, mean, none, of_features, none, precision)

    def comparable(self, vectors: Floats) -> tuple[Floats, Floats]:
        """Return centred `vectors` of the rows, and the reliability of their features.

        The mean is removed because prior means of features shift all vectors in one direction. The
        reliability is the expected cosine of a vector with its prediction.
        """
        centre = (self.mean + self.centre @ self.coefficients)[:-1]
        total = float(np.trace(self.covariance[:-1, :-1]))
        variance = np.maximum(self.spread, 1) * total
        offsets = self.vectors[:, :-1] - centre
        return (vectors - centre).astype(np.float32), reliability(offsets, variance)


class FeaturePart(NamedTuple):
    """The exact part of the vector of an item that is due to its features.

    Attributes
    ----------
    indices : int32 ndarray of shape (n_entries,)
        Features of the item.
    terms : float64 ndarray of shape (n_entries, d)
        What each feature adds to the vector.
    total : float64 ndarray of shape (d,)
        Sum of the terms.
    is_cold : bool
        True without ratings.
    """

    indices: Ints
    terms: Doubles
    total: Doubles
    is_cold: bool


def kept_parts(
    owner: Model,
    factors: Floats,
    features: GroupedFeatures | None,
    items: Indices,
    solved: Callable[[Indices], Iterable[T]],
) -> list[T]:
    """Return what explanations of items have in common for all users, kept in a model.

    It depends on the factors of items and on their features; `solved` computes what is missing.
    """
    key, parts = vars(owner).get("_kept_parts", ((None, None), {}))
    if key[0] is not factors or key[1] is not features:
        parts = {}
    missing = [item for item in items.tolist() if item not in parts]
    if missing:
        n_rows = 1
        if features is not None:
            n_rows += features.matrix.nnz // features.matrix.shape[0]
        if len(parts) * n_rows * factors.shape[1] > _STORED:
            parts = {item: parts[item] for item in items.tolist() if item in parts}
        # Other threads keep what they have read.
        parts = parts | dict(zip(missing, solved(np.array(missing)), strict=True))
        vars(owner)["_kept_parts"] = (factors, features), parts
    return [parts[item] for item in items.tolist()]


@record
class FeatureFactors(Sides[AxisFeatures | None]):
    """The features of users and items, for those that have any."""

    kind = AxisFeatures

    def completed(
        self,
        side: str,
        rows: Posterior,
        histories: Histories,
        global_mean: float,
    ) -> tuple[Self, Posterior, Floats]:
        """Return the features of other rows of a side, their vectors, and columns of factors.

        The columns are the slopes on features of the other side, and the positions of rows without
        ratings; first those for features of items, then those for features of users.
        """
        result = self
        columns = []
        # Slopes are fitted to the ratings given the solved vectors, before features replace any.
        solved = rows.mean
        axis = self.of(side)
        if axis is not None:
            axis, rows = axis.of_rows(rows, histories)
            result = self.with_side(side, axis)
            flags = np.ones((histories.n_rows, 1), np.float32)
            is_cold = histories.counts == 0
            columns.append(np.hstack([axis.positions, flags]) * is_cold[:, None])
        other = self.of(OTHER[side])
        if other is not None:
            columns.append(other.slopes(solved, histories.csr, global_mean))
        # Columns for features of items come first on both sides, so that products match them.
        if side == "user":
            columns.reverse()
        return result, rows, np.hstack(columns).astype(np.float32, copy=False)

    def explain_cold(
        self,
        side: str,
        user_columns: Floats,
        item_columns: Floats,
        features: CsrArrays | None,
        base: Doubles,
        shares: Floats,
    ) -> None:
        """Add the products with positions of rows without ratings to `base` and `shares`.

        The columns are the additional factors of the user and of each item. `shares` has a row for
        each item and a column for each feature of `side`. `features` are the user's, or the items'.
        """
        axis = self.of(side)
        assert axis is not None
        start = 0
        if side == "user" and self.items is not None:
            start = self.items.directions.shape[1] + 1
        part = slice(start, start + axis.directions.shape[1] + 1)
        for number, item in enumerate(item_columns):
            slopes, positions = user_columns[part], item[part]
            if side == "user":
                slopes, positions = positions, slopes
            base[number] += slopes[-1] * positions[-1]
            is_cold = positions[-1] > 0  # 1 without ratings, else 0
            if is_cold and features is not None:
                row = number if side == "item" else 0
                of_row = slice(features.indptr[row], features.indptr[row + 1])
                indices = features.indices[of_row]
                terms = features.data[of_row] * (axis.directions[indices] @ slopes[:-1])
                np.add.at(shares[number], indices, terms)
            else:
                base[number] += slopes[:-1] @ positions[:-1]


def _residuals(
    entries: CsrArrays,
    rows: Floats,
    columns: Floats,
    global_mean: float,
) -> CsrArrays:
    """Return ratings minus products of vectors."""
    predicted = kernels.csr_entries(
        entries,
        np.ascontiguousarray(rows),
        columns,
    )
    return entries._replace(data=entries.data - predicted - np.float32(global_mean))

r"""Models with scores that are sums over the items of the user's history, and their features.

The scores of a history model are linear in the history, ``h S``. Ridge regression on the main
directions of the item features predicts the column of S of an item without users from the other
columns. Let T be the positions of the training items on these directions, with an intercept, and
``Z = T (T'T + rho I)^-1``. The predicted column for an item at position t is ``S Z t``, so its
score is the *profile* of the user, ``h S Z``, times t. Likewise, histories are regressed on the
features of users, and the scores of a user without a history are ``t Z'H S``. Items with users and
users with a history are not affected.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike

from lowrank import kernels
from lowrank.completion.feature_ridge import FeatureMap
from lowrank.completion.implicit import FEATURE_PENALTY
from lowrank.kernels import CsrArrays
from lowrank.subspace import leading_directions
from recsys.data.feedback import judge_values
from recsys.errors import DataError
from recsys.models.base import Model, check_indices
from recsys.models.feature_factors import LEAST_VARIANCE, reliability
from recsys.models.histories import Explanation, Histories, csr_rows
from recsys.models.parameters import fitted, model
from recsys.models.parts import (
    SIDES,
    Floats,
    Indices,
    Ints,
    Longs,
    Mask,
    Part,
    Sides,
    missing_array,
    part,
    record,
    rows_taken,
    saved,
    side_part,
    values_of,
)
from recsys.saving.arrays import check_rows

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from lowrank.completion.feature_ridge import GroupedFeatures
    from recsys.data.ratings import Ratings

_DIRECTIONS = 192  # maximum number of directions of the features
_EXTRA = 32  # oversampling: columns of the random subspace beyond the directions


@model
class HistoryModel(Model):
    """A model that represents a user by the history only, a row of a CSR matrix."""

    predicts_ratings = False

    history_indptr: Longs = fitted("n_users + 1")
    history_items: Ints = fitted("n_interactions")

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
    def _terms(self, history: Histories, items: Indices) -> Floats:
        """Return the contributions of a history's items to scores, shape (n_items, n_history)."""

    def _check_arrays(self) -> None:
        check_rows(
            "history",
            self.history_indptr,
            self.history_items,
            self.n_items,
        )


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
        self,
        history: Histories,
        items: ArrayLike,
        fitted: Ratings | None = None,
    ) -> Explanation:
        """Return the scores of `items` as sums over the items of the history; the base is 0."""
        columns = check_indices(items, self.n_items, "item")
        base = np.zeros(len(columns), np.float32)
        return Explanation(base, self._terms(history, columns))

    def _terms(self, history: Histories, items: Indices) -> Floats:
        self._require_items_of_the_fit()
        rated = check_indices(
            history.indices,
            self.n_items,
            "item",
        )
        weights = history.values / np.float32(self.unit)
        terms = self._entries(rated, items) * weights[:, None]
        return np.ascontiguousarray(terms.T)

    def _all_histories(self) -> Histories:
        """Return the histories of all users, with weights as values."""
        return Histories(
            self.history_indptr,
            self.history_items,
            self.history_weights,
        )

    def _take_histories(self, histories: Histories) -> None:
        self.history_indptr, self.history_items = histories.indptr, histories.indices
        self.history_weights = histories.values / np.float32(self.unit)


@record
class VectorMap(Part):
    """Prediction of the vectors for similarity, from positions on the directions."""

    weights: Floats = saved("{side}_width", "d_{side}s")
    variance: float = saved()

    def comparable(self, vectors: Floats, positions: Floats) -> tuple[Floats, Floats]:
        """Return centred vectors, predicted where there are positions, and their reliability."""
        predicted = positions[:, :-1] @ self.weights[:-1]  # the intercept is the mean
        variance = np.float32(self.variance + LEAST_VARIANCE)
        centred = vectors - self.weights[-1]
        compared = np.where(
            positions[:, -1:] > 0,
            predicted,
            centred,
        )
        return compared, reliability(predicted, variance)


@record
class AxisProfiles(Part):
    """Features of users, or of items.

    Attributes
    ----------
    centre : float32 ndarray of shape (n_features,)
        Mean features.
    directions : float32 ndarray of shape (n_features, r)
    loadings : float32 ndarray of shape (n_items, r + 1)
        ``S Z`` for items, and ``H'Z`` for users.
    positions : float32 ndarray of shape (n, r + 1)
        Positions on the directions, and a one for the intercept; zeros for rows with ratings.
    columns : float32 ndarray of shape (n_items, r + 1)
        Columns of items that score users without a history; None in features of items.
    """

    centre: Floats = saved("n_{side}_features")
    directions: Floats = saved("n_{side}_features", "n_{side}_directions")
    loadings: Floats = saved("n_items", "{side}_width")
    positions: Floats = saved("n_{side}s", "{side}_width")
    similarity: VectorMap | None = side_part(VectorMap)
    columns: Floats | None = saved(
        "n_items",
        "user_width",
        default=None,
    )

    def all_positions(self, features: CsrArrays | None, n_rows: int) -> Floats:
        """Return the positions of rows, with or without ratings."""
        position_map = FeatureMap(-(self.centre @ self.directions), self.directions)
        positions = position_map.vectors(features, n_rows)
        return np.column_stack([positions, np.ones(n_rows, np.float32)])

    @property
    def has_cold_rows(self) -> bool:
        """True if there are rows without ratings."""
        return bool(self.positions[:, -1].any())


@record
class Profiles(Sides[AxisProfiles | None]):
    """Features of users and items, for those that have any."""

    kind = AxisProfiles


def _directions(features: GroupedFeatures, counts: Longs) -> tuple[Floats, Floats]:
    """Return the mean features of rows with ratings, and their main directions.

    Rows are weighted by the square roots of their counts.
    """
    is_rated = (counts > 0).astype(np.float32)
    matrix = features.matrix
    # The square root of this weight is in both factors of the Gram matrix.
    weight = (counts ** np.float32(0.25)).astype(np.float32)
    scaled = matrix.multiply(weight[:, None]).tocsr().astype(np.float32)
    k = min(_DIRECTIONS, *matrix.shape)
    directions, _ = leading_directions(
        kernels.csr_arrays(scaled), matrix.shape[1], k, extra=_EXTRA, random_state=0
    )
    return (matrix.T @ is_rated / is_rated.sum()).astype(np.float32), directions


def _regression(positions: Floats, is_rated: Mask) -> Floats:
    """Return Z = T (T'T + rho I)^-1, with zeros for rows without ratings."""
    T = positions * is_rated[:, None]
    system = kernels.coefficients(T, T).astype(np.float64)
    # There is no penalty for the intercept.
    system[np.diag_indices(len(system) - 1)] += FEATURE_PENALTY
    return np.ascontiguousarray(np.linalg.solve(system, T.T).T, np.float32)


def fitted_axis(
    features: GroupedFeatures,
    counts: Longs,
    vectors: Floats | None,
) -> AxisProfiles | None:
    """Return the regression on the features of items (or users), with Z as `loadings`.

    `vectors` are compared for similarity, if there are any. None without features that vary.
    """
    rows = csr_rows(features)
    if rows is None:
        return None
    # Ridge regression on the main directions costs the same for 20 and 20,000
    # features.
    centre, directions = _directions(features, counts)
    none = np.zeros((0, directions.shape[1] + 1), np.float32)
    axis = AxisProfiles(
        centre=centre,
        directions=directions,
        loadings=none,
        positions=none,
        similarity=None,
    )
    positions = axis.all_positions(rows, len(counts))
    is_rated = counts > 0
    Z = _regression(positions, is_rated)
    similarity = None
    if vectors is not None:
        weights = kernels.coefficients(Z, np.ascontiguousarray(vectors))
        residual = (vectors - positions @ weights)[is_rated]
        # The scatter around predictions tells how far features determine a vector.
        squares = float(np.einsum("ij,ij->", residual, residual, dtype=np.float64))
        variance = squares / max(1, len(residual))
        similarity = VectorMap(weights=weights, variance=variance)
    return replace(
        axis,
        loadings=Z,
        positions=positions * ~is_rated[:, None],
        similarity=similarity,
    )


@model
class ProfileModel(Model):
    """A history model with features for items without users and users without a history."""

    uses_features = True
    # Score of a new item, relative to the mean of items with its features.
    _new_item_share: ClassVar[float] = 1.0
    profiles: Profiles | None = part(Profiles)

    if TYPE_CHECKING:
        history_items: Ints

        def _terms(self, history: Histories, items: Indices) -> Floats: ...

    @abstractmethod
    def _filter(self, Z: Floats) -> Floats:
        """Return S @ Z: the scores of single-item histories, multiplied by Z."""

    @abstractmethod
    def _scored(self, Q: Floats) -> Floats:
        """Return S' @ Q: the scores of all items for the histories in the columns of Q."""

    @abstractmethod
    def _counting(self, histories: Histories) -> Floats:
        """Return the weights of histories, in which scores are linear."""

    def _check_arrays(self) -> None:
        super()._check_arrays()
        users = self._features_of("user")
        if users is not None and users.columns is None:
            raise missing_array(self.name, "profiles_users_columns")
        for name, side in SIDES.items():
            axis = self._features_of(side)
            is_compared = hasattr(self, f"{side}_vectors")
            if axis is not None and is_compared and axis.similarity is None:
                raise missing_array(self.name, f"profiles_{name}_similarity_weights")

    def _features_of(self, side: str) -> AxisProfiles | None:
        return None if self.profiles is None else self.profiles.of(side)

    def _cold(self, side: str) -> AxisProfiles | None:
        """Return the features of users (or items), if there are any without ratings."""
        axis = self._features_of(side)
        return axis if axis is not None and axis.has_cold_rows else None

    def _fit_profiles(self, ratings: Ratings) -> None:
        """Fit the regressions on the features of `ratings`, after S is set."""
        histories = Histories.of(ratings)
        counts = ratings.counts("item")
        items = self._fitted_profiles(
            "item",
            histories,
            counts,
            ratings.item_features,
        )
        users = self._fitted_profiles(
            "user", histories, histories.counts, ratings.user_features
        )
        if users is not None or items is not None:
            self.profiles = Profiles(users=users, items=items)
        self._set_columns()

    def _fitted_profiles(
        self,
        side: str,
        histories: Histories,
        counts: Longs,
        features: GroupedFeatures | None,
    ) -> AxisProfiles | None:
        if features is None:
            return None
        axis = fitted_axis(features, counts, self._compared(side))
        if axis is None:
            return None
        Z = axis.loadings
        # The regression on features is multiplied by S once, so that a score is a product.
        if side == "item":
            loadings = self._filter(Z) * np.float32(self._new_item_share)
        else:
            weighted = histories.csr._replace(data=self._counting(histories))
            loadings = kernels.csr_rmatmat(
                weighted,
                Z,
                self.n_items,
            )
        return replace(axis, loadings=loadings)

    def _set_columns(self) -> None:
        """Set the item columns that score users without a history."""
        vars(self).pop("_item_columns_cache", None)
        fitted_users = self._source._features_of("user")
        users = self._features_of("user")
        if self.profiles is None or users is None or fitted_users is None:
            return
        # t Z'H S for all items at once: users at t need the products with t only.
        columns = self._scored(fitted_users.loadings)
        columns += self._cold_columns(fitted_users.loadings)
        users = replace(users, columns=columns)
        self.profiles = self.profiles.with_side("user", users)

    def _cold_columns(self, loadings: Floats) -> Floats | float:
        """Return what `_scored` lacks: the scores of items without users."""
        items = self._features_of("item")
        fitted_items = self._source._features_of("item")
        if items is None or fitted_items is None:
            return 0.0
        columns: Floats = items.positions @ (fitted_items.loadings.T @ loadings)
        return columns

    def _user_columns(
        self,
        vectors: Floats,
        history: CsrArrays,
        users: Indices,
    ) -> Floats:
        """Return vectors of users, extended by their profiles and positions."""
        columns = [vectors]
        fitted_items = self._source._features_of("item")
        if self._cold("item") is not None and fitted_items is not None:
            columns.append(kernels.csr_matmat(history, fitted_items.loadings))
        cold_users = self._cold("user")
        if cold_users is not None:
            columns.append(cold_users.positions[users])
        return np.hstack(columns) if len(columns) > 1 else vectors

    def _item_columns(self, vectors: Floats) -> Floats:
        """Return vectors of items, extended by the factors of profiles and positions; cached."""
        cached: Floats | None = vars(self).get("_item_columns_cache")
        if cached is not None:
            return cached
        columns = [vectors]
        items, users = self._cold("item"), self._cold("user")
        if items is not None:
            columns.append(items.positions)
        if users is not None and users.columns is not None:
            columns.append(users.columns)
        extended = np.hstack(columns) if len(columns) > 1 else vectors
        vars(self)["_item_columns_cache"] = extended
        return extended

    def _compared(self, side: str) -> Floats | None:
        """Return the vectors of `side` for similarity, if the model has any."""
        name = "user_vectors" if side == "user" else "item_vectors"
        vectors = getattr(self, name, None)
        return None if vectors is None else vectors()

    def comparable(self, side: str) -> tuple[Floats, Floats]:
        """Return centred vectors of `side`, and the reliability of their features."""
        vectors, axis = self._compared(side), self._features_of(side)
        assert vectors is not None
        assert axis is not None
        assert axis.similarity is not None
        return axis.similarity.comparable(vectors, axis.positions)

    def with_items(self, histories: Histories) -> Self:
        """Return the model with these items; items folded in before are dropped."""
        source = self._source
        check_indices(histories.indices, source.n_users, "user")
        folded = copy.copy(source)
        vars(folded)["_source_model"] = source
        folded._set_items(histories)
        folded._take_features("item", histories)
        return folded

    @abstractmethod
    def _set_items(self, histories: Histories) -> None:
        """Replace the scored items by new ones, given by their users."""

    def _take_features(self, side: str, histories: Histories) -> None:
        """Set the positions of other users (or items); features represent those without ratings."""
        vars(self).pop("_item_columns_cache", None)
        axis = self._features_of(side)
        if self.profiles is not None and axis is not None:
            positions = axis.all_positions(histories.features, histories.n_rows)
            positions *= (histories.counts == 0)[:, None]
            axis = replace(axis, positions=positions)
            self.profiles = self.profiles.with_side(side, axis)
        if side == "item":
            self._set_columns()

    def widened(
        self,
        side: str,
        order: Indices,
        features: GroupedFeatures,
    ) -> Self:
        """Return the model with additional items (or users) without ratings, sorted by `order`."""
        n_new = features.matrix.shape[0]
        # The new rows are sorted in among the fitted ones, so that ids stay in order.
        new_index = np.argsort(order)
        rows = np.where(order < len(order) - n_new, order, -1)
        changes = rows_taken(self, {side: rows})
        for declared, value in values_of(self):
            if declared.metadata.get("axes") == (f"n_{side}s + 1",):
                counts = np.append(np.diff(value), 0)[rows]
                changes[declared.name] = np.append(0, np.cumsum(counts))
        if side == "item":
            changes["history_items"] = new_index[self.history_items].astype(np.int32)
        self._renumber(changes, side, new_index)
        result = self._with(**changes)
        axis = result._features_of(side)
        assert axis is not None
        positions = axis.all_positions(csr_rows(features), n_new)
        axis.positions[new_index[-n_new:]] = positions
        result._set_columns()
        return result

    def _renumber(
        self,
        changes: dict[str, Any],
        side: str,
        new_index: Indices,
    ) -> None:
        """Update indices of items in the arrays of a subclass to their new places."""

    def contributions(
        self,
        history: Histories,
        items: ArrayLike,
        fitted: Ratings | None = None,
    ) -> Explanation:
        """Return the scores of `items` as sums over the history, and over features, if known.

        Features contribute only for items without users and for users without a history.
        """
        columns = check_indices(items, self.n_items, "item")
        base = np.zeros(len(columns), np.float32)
        terms = self._terms(history, columns)
        item_features = user_features = None
        item_rows = None
        if fitted is not None:
            item_rows = csr_rows(fitted.item_features, columns)
        if item_rows is not None and self.knows("item"):
            item_features = self._explain_items(history, columns, item_rows, terms)
        axis = self._features_of("user")
        if axis is not None and axis.columns is not None and not len(history.indices):
            weights = axis.columns[columns]
            base += weights @ axis.all_positions(history.features, 1)[0]
            if (features := history.features) is not None:
                positions = axis.directions[features.indices] * features.data[:, None]
                shares = weights[:, :-1] @ positions.T
                user_features = np.zeros((len(columns), len(axis.centre)), np.float32)
                user_features[:, features.indices] = shares
                base -= shares.sum(axis=1)
        return Explanation(
            base,
            terms,
            item_features,
            user_features,
        )

    def _explain_items(
        self,
        history: Histories,
        columns: Indices,
        features: CsrArrays,
        terms: Floats,
    ) -> Floats:
        """Return the contributions of features of items without users; they leave `terms`."""
        axis = self._features_of("item")
        assert axis is not None
        shares = np.zeros((len(columns), len(axis.centre)), np.float32)
        cold = np.flatnonzero(axis.positions[columns, -1])
        if not len(cold):
            return shares
        # The profile of a user is a sum over the history, so that each item has a
        # share.
        profiles = axis.loadings[history.indices, :-1]
        profiles *= self._counting(history)[:, None]
        for number in cold:
            of_item = slice(features.indptr[number], features.indptr[number + 1])
            indices = features.indices[of_item]
            positions = axis.directions[indices] * features.data[of_item, None]
            shares[number, indices] = positions @ profiles.sum(axis=0)
            terms[number] -= profiles @ positions.sum(axis=0)
        return shares


def weight_unit(ratings: Ratings) -> float:
    """Return the value of weight 1: the highest rating, or the mean of counts."""
    values = ratings.values
    if ratings.scale is not None:
        unit = ratings.scale[1]
    elif ratings.implicit or judge_values(values).kind == "counts":
        unit = float(values.mean(dtype=np.float64))
    else:
        unit = float(values.max(initial=0))
    return unit if unit > 0 else 1.0


def weighted_matrix(
    histories: Histories,
    n_columns: int,
    unit: float,
) -> csr_array[np.float32]:
    """Return histories as a sparse matrix, with values divided by `unit`."""
    from scipy.sparse import csr_array

    weights = histories.values / np.float32(unit)
    shape = (histories.n_rows, n_columns)
    return csr_array((weights, histories.indices, histories.indptr), shape=shape)

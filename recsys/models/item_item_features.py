r"""Features in history models, for items without users and users without a history.

The scores of a history model are linear in the history, ``h S``. Ridge regression on the main
directions of the item features predicts the column of S of an item without users from the other
columns. Let T be the positions of the training items on these directions, with an intercept, and
``Z = T (T'T + rho I)^-1``. The predicted column for an item at position t is ``S Z t``, so its
score is the *profile* of the user, ``h S Z``, times t. Likewise, histories are regressed on the
features of users, and the scores of a user without a history are ``t Z'H S``. Items with users and
users with a history are not affected.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lowrank import kernels
from lowrank.completion.feature_ridge import FeatureMap
from lowrank.completion.implicit import FEATURE_PENALTY
from lowrank.kernels import CsrArrays
from lowrank.subspace import leading_directions
from recsys.models.base import Model, check_indices
from recsys.models.histories import Context, Explanation, Histories, csr_rows, row_of
from recsys.models.parameters import model
from recsys.models.parts import (
    Floats,
    Indices,
    Part,
    axes_of,
    part,
    record,
    saved,
    side_part,
)

if TYPE_CHECKING:
    from lowrank.completion.feature_ridge import GroupedFeatures
    from recsys.data.ratings import Ratings

_DIRECTIONS = 192  # maximum number of directions of the features
_EXTRA = 32  # oversampling: columns of the random subspace beyond the directions
_LEAST_VARIANCE = 1e-12  # of vectors around their predictions, which divides


@record
class VectorMap(Part):
    """Prediction of the vectors for similarity, from positions on the directions."""

    weights: Floats = saved("{side}_width", "d_{side}s")
    variance: float = saved()

    def comparable(self, vectors: Floats, positions: Floats) -> tuple[Floats, Floats]:
        """Return centred vectors, predicted where there are positions, and their reliability."""
        predicted = positions[:, :-1] @ self.weights[:-1]  # the intercept is the mean
        squares = np.einsum("ij,ij->i", predicted, predicted)
        variance = np.float32(self.variance + _LEAST_VARIANCE)
        reliability = np.sqrt(squares / (squares + variance))
        centred = vectors - self.weights[-1]
        return np.where(positions[:, -1:] > 0, predicted, centred), reliability


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
    """

    centre: Floats = saved("n_{side}_features")
    directions: Floats = saved("n_{side}_features", "n_{side}_directions")
    loadings: Floats = saved("n_items", "{side}_width")
    positions: Floats = saved("n_{side}s", "{side}_width")
    similarity: VectorMap | None = side_part(VectorMap)

    def all_positions(self, features: CsrArrays | None, n_rows: int) -> Floats:
        """Return the positions of rows, with or without ratings."""
        position_map = FeatureMap(-(self.centre @ self.directions), self.directions)
        positions = position_map.vectors(features, n_rows)
        return np.column_stack([positions, np.ones(n_rows, np.float32)])

    def of_rows(self, features: CsrArrays | None, counts: NDArray[np.int64]) -> Self:
        """Return the profiles with the positions of other rows."""
        positions = self.all_positions(features, len(counts))
        return replace(self, positions=positions * (counts == 0)[:, None])

    @property
    def has_cold_rows(self) -> bool:
        """True if there are rows without ratings."""
        return bool(self.positions[:, -1].any())


@record
class UserProfiles(AxisProfiles):
    """Features of users, with the item columns that score users without a history."""

    columns: Floats = saved("n_items", "user_width")


@record
class Profiles(Part):
    """Features of users and items, for those that have any."""

    users: UserProfiles | None = side_part(UserProfiles)
    items: AxisProfiles | None = side_part(AxisProfiles)

    def of(self, side: str) -> AxisProfiles | None:
        """Return the features of one side."""
        return self.users if side == "user" else self.items

    def with_rows(
        self, side: str, features: CsrArrays | None, counts: NDArray[np.int64]
    ) -> Self:
        """Return the profiles with the positions of other users (or items)."""
        if side == "user" and self.users is not None:
            return replace(self, users=self.users.of_rows(features, counts))
        if side == "item" and self.items is not None:
            return replace(self, items=self.items.of_rows(features, counts))
        return self

    def with_user_columns(self, columns: Floats) -> Self:
        """Return the profiles with other item columns that score users without a history."""
        if self.users is None:
            return self
        return replace(self, users=replace(self.users, columns=columns))


def _directions(
    features: GroupedFeatures, counts: NDArray[np.int64]
) -> tuple[Floats, Floats]:
    """Return the mean features of rows with ratings, and their main directions.

    Rows are weighted by the square roots of their counts.
    """
    is_rated = (counts > 0).astype(np.float32)
    matrix = features.matrix
    weight = (counts ** np.float32(0.25)).astype(
        np.float32
    )  # sqrt(count) in the Gram matrix
    scaled = matrix.multiply(weight[:, None]).tocsr().astype(np.float32)
    k = min(_DIRECTIONS, *matrix.shape)
    directions, _ = leading_directions(
        kernels.csr_arrays(scaled), matrix.shape[1], k, extra=_EXTRA, random_state=0
    )
    return (matrix.T @ is_rated / is_rated.sum()).astype(np.float32), directions


def _regression(positions: Floats, is_rated: NDArray[np.bool_]) -> Floats:
    """Return Z, with zeros for rows without ratings, shape (n_rows, r + 1)."""
    T = positions * is_rated[:, None]
    system = kernels.coefficients(T, T).astype(np.float64)
    system[np.diag_indices(len(system) - 1)] += (
        FEATURE_PENALTY  # none for the intercept
    )
    return np.ascontiguousarray(np.linalg.solve(system, T.T).T, np.float32)


@model
class ProfileModel(Model):
    """A history model with features for items without users and users without a history."""

    uses_features = True
    # Score of a new item, relative to the mean of items with its features.
    _new_item_share: ClassVar[float] = 1.0
    profiles: Profiles | None = part(Profiles)

    if TYPE_CHECKING:
        history_items: NDArray[np.int32]

        def _terms(
            self, history: Histories, items: Indices
        ) -> Floats: ...  # of `HistoryModel`

    @abstractmethod
    def _filter(self, Z: Floats) -> Floats:
        """Return S @ Z: the scores of single-item histories, multiplied by Z."""

    @abstractmethod
    def _scored(self, Q: Floats) -> Floats:
        """Return S' @ Q: the scores of all items for the histories in the columns of Q."""

    @abstractmethod
    def _counting(self, histories: Histories) -> Floats:
        """Return the weights of histories, in which scores are linear."""

    def _axis_profiles(self, side: str) -> AxisProfiles | None:
        return None if self.profiles is None else self.profiles.of(side)

    def knows(self, side: str) -> bool:
        """Return whether the model uses features of `side`, "item" or "user"."""
        return self._axis_profiles(side) is not None

    def _fit_profiles(self, ratings: Ratings) -> None:
        """Fit the regressions on the features of `ratings`, after S is set."""
        histories = Histories.of(ratings)
        counts = np.bincount(ratings.indices, minlength=ratings.n_items)
        items = self._fitted_profiles("item", histories, counts, ratings.item_features)
        users = self._fitted_profiles(
            "user", histories, histories.counts, ratings.user_features
        )
        if users is not None or items is not None:
            with_columns = None
            if users is not None:
                with_columns = UserProfiles(**vars(users), columns=users.loadings)
            self.profiles = Profiles(users=with_columns, items=items)
        self._set_columns()

    def _fitted_profiles(
        self,
        side: str,
        histories: Histories,
        counts: NDArray[np.int64],
        features: GroupedFeatures | None,
    ) -> AxisProfiles | None:
        rows = csr_rows(features)
        if features is None or rows is None:
            return None
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
        # The regression on features is multiplied by S once, so that a score is a product.
        if side == "item":
            loadings = self._filter(Z) * np.float32(self._new_item_share)
        else:
            weighted = histories.csr._replace(data=self._counting(histories))
            loadings = kernels.csr_rmatmat(weighted, Z, self.n_items)
        similarity = None
        vectors = self._compared(side)
        if vectors is not None:
            weights = kernels.coefficients(Z, np.ascontiguousarray(vectors))
            residual = (vectors - positions @ weights)[is_rated]
            squares = float(np.einsum("ij,ij->", residual, residual, dtype=np.float64))
            similarity = VectorMap(
                weights=weights, variance=squares / max(1, len(residual))
            )
        return replace(
            axis,
            loadings=loadings,
            positions=positions * ~is_rated[:, None],
            similarity=similarity,
        )

    def _set_columns(self) -> None:
        """Set the item columns that score users without a history."""
        vars(self).pop("_item_columns_cache", None)
        users = self._source._axis_profiles("user")
        if self.profiles is None or users is None:
            return
        columns = self._scored(users.loadings)
        items = self.profiles.items
        fitted_items = self._source._axis_profiles("item")
        if items is not None and fitted_items is not None:
            columns += items.positions @ (fitted_items.loadings.T @ users.loadings)
        self.profiles = self.profiles.with_user_columns(columns)

    def _user_columns(
        self, vectors: Floats, history: CsrArrays, users: Indices
    ) -> Floats:
        """Return vectors of users, extended by their profiles and positions."""
        columns = [vectors]
        item_profiles = self._axis_profiles("item")
        if item_profiles is not None and item_profiles.has_cold_rows:
            fitted_items = self._source._axis_profiles("item")
            assert fitted_items is not None
            columns.append(kernels.csr_matmat(history, fitted_items.loadings))
        user_profiles = self._axis_profiles("user")
        if user_profiles is not None and user_profiles.has_cold_rows:
            columns.append(user_profiles.positions[users])
        return np.hstack(columns) if len(columns) > 1 else vectors

    def _item_columns(self, vectors: Floats) -> Floats:
        """Return vectors of items, extended by the factors of profiles and positions; cached."""
        cached: Floats | None = vars(self).get("_item_columns_cache")
        if cached is not None:
            return cached
        columns = [vectors]
        if self.profiles is not None:
            items, users = self.profiles.items, self.profiles.users
            if items is not None and items.has_cold_rows:
                columns.append(items.positions)
            if users is not None and users.has_cold_rows:
                columns.append(users.columns)
        extended = np.hstack(columns) if len(columns) > 1 else vectors
        vars(self)["_item_columns_cache"] = extended
        return extended

    def _compared(self, side: str) -> Floats | None:
        """Return the vectors of `side` for similarity, if the model has any."""
        vectors = getattr(
            self, "user_vectors" if side == "user" else "item_vectors", None
        )
        return None if vectors is None else vectors()

    def comparable(self, side: str) -> tuple[Floats, Floats]:
        """Return centred vectors of `side`, and the reliability of their features."""
        vectors, axis = self._compared(side), self._axis_profiles(side)
        assert vectors is not None
        assert axis is not None
        assert axis.similarity is not None
        return axis.similarity.comparable(vectors, axis.positions)

    def _take_features(
        self, side: str, histories: Histories, features: GroupedFeatures | None
    ) -> None:
        """Set the positions of other users (or items); features represent those without ratings."""
        vars(self).pop("_item_columns_cache", None)
        if self.profiles is not None:
            rows = csr_rows(features)
            self.profiles = self.profiles.with_rows(side, rows, histories.counts)
        if side == "item":
            self._set_columns()

    def widened(self, side: str, order: Indices, features: GroupedFeatures) -> Self:
        """Return the model with additional items (or users) without ratings, sorted by `order`."""
        n_new = features.matrix.shape[0]
        # The new rows are sorted in among the fitted ones, so that ids stay in order.
        new_index = np.argsort(order)
        rows = np.where(order < len(order) - n_new, order, -1)
        arrays = self._rearranged(**{side: rows})
        for declared in self._declared_arrays():
            if axes_of(declared) == (f"n_{side}s + 1",):
                counts = np.append(np.diff(arrays[declared.name]), 0)[rows]
                arrays[declared.name] = np.append(0, np.cumsum(counts))
        if side == "item":
            arrays["history_items"] = new_index[self.history_items].astype(np.int32)
        self._renumber(arrays, side, new_index)
        result = self._from_arrays(self.get_params(), arrays)
        axis = result._axis_profiles(side)
        assert axis is not None
        positions = axis.all_positions(csr_rows(features), n_new)
        axis.positions[new_index[-n_new:]] = positions
        result._set_columns()
        return result

    def _renumber(
        self, arrays: dict[str, NDArray[Any]], side: str, new_index: Indices
    ) -> None:
        """Update item indices in the arrays of a subclass to their new places."""

    def contributions(
        self, history: Histories, items: ArrayLike, context: Context | None = None
    ) -> Explanation:
        """Return the scores of `items` as sums over the history, and over features, if known.

        Features contribute only for items without users and for users without a history.
        """
        columns = check_indices(items, self.n_items, "item")
        context = context or Context()
        base = np.zeros(len(columns), np.float32)
        terms = self._terms(history, columns)
        by_side: dict[str, Floats] = {}
        if context.items is not None and self.knows("item"):
            by_side["item_features"] = self._explain_items(
                history, columns, context.items, terms
            )
        if self.knows("user") and not len(history.indices):
            shares = self._explain_user(columns, context.user, base)
            if shares is not None:
                by_side["user_features"] = shares
        return Explanation(base, terms, **by_side)

    def _explain_items(
        self, history: Histories, columns: Indices, features: CsrArrays, terms: Floats
    ) -> Floats:
        """Return the contributions of features of items without users; they leave `terms`."""
        axis = self._axis_profiles("item")
        assert axis is not None
        shares = np.zeros((len(columns), len(axis.centre)), np.float32)
        profiles = axis.loadings[history.indices, :-1]
        profiles *= self._counting(history)[:, None]
        for number in np.flatnonzero(axis.positions[columns, -1]):
            row = row_of(features, int(number))
            positions = axis.directions[row.indices] * row.data[:, None]
            shares[number, row.indices] = positions @ profiles.sum(axis=0)
            terms[number] -= profiles @ positions.sum(axis=0)
        return shares

    def _explain_user(
        self, columns: Indices, features: CsrArrays | None, base: Floats
    ) -> Floats | None:
        """Return the contributions of features of a user without a history; add the rest."""
        axis = None if self.profiles is None else self.profiles.users
        assert axis is not None
        weights = axis.columns[columns]
        base += weights @ axis.all_positions(features, 1)[0]
        if features is None:
            return None
        positions = axis.directions[features.indices] * features.data[:, None]
        contributions = weights[:, :-1] @ positions.T
        shares = np.zeros((len(columns), len(axis.centre)), np.float32)
        shares[:, features.indices] = contributions
        base -= contributions.sum(axis=1)
        return shares

r"""History models that use features for items without users and users without a history.

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
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lowrank import kernels
from lowrank.completion.implicit import FEATURE_PENALTY
from lowrank.kernels import CsrArrays
from lowrank.subspace import leading_directions
from recsys.models.base import Floats, Indices, check_indices
from recsys.models.histories import Explanation, Histories
from recsys.models.item_item import HistoryModel
from recsys.models.parameters import fitted, model
from recsys.models.priors import Known, csr_rows, row_of

if TYPE_CHECKING:
    from lowrank.completion.design import GroupedFeatures
    from recsys.data.ratings import Ratings

_DIRECTIONS = 192  # maximum number of directions of the features
_EXTRA = 32  # oversampling: columns of the random subspace beyond the directions


class Frame(NamedTuple):
    """Orthogonal directions of features and their mean, which define positions of rows."""

    centre: Floats
    directions: Floats

    @classmethod
    def of(cls, features: GroupedFeatures, counts: NDArray[np.int64]) -> Frame:
        """Compute the directions, with rows weighted by the square roots of their counts."""
        known, rows = (counts > 0).astype(np.float32), features.matrix
        weight = (counts ** np.float32(0.25)).astype(
            np.float32
        )  # sqrt(count) in the Gram matrix
        scaled = rows.multiply(weight[:, None]).tocsr().astype(np.float32)
        k, entries = min(_DIRECTIONS, *rows.shape), kernels.csr_arrays(scaled)
        directions, _ = leading_directions(
            entries, rows.shape[1], k, extra=_EXTRA, random_state=0
        )
        return cls((rows.T @ known / known.sum()).astype(np.float32), directions)

    def positions(self, features: CsrArrays | None, n_rows: int) -> Floats:
        """Return positions and a one for the intercept, shape (n_rows, r + 1)."""
        found = np.zeros((n_rows, self.directions.shape[1]), np.float32)
        if features is not None:
            found += kernels.csr_matmat(features, self.directions)
        found -= self.centre @ self.directions
        return np.column_stack([found, np.ones(n_rows, np.float32)])

    def regression(
        self, features: CsrArrays | None, known: NDArray[np.bool_]
    ) -> Floats:
        """Return Z, with zeros for rows that are not known, shape (n_rows, r + 1)."""
        T = self.positions(features, len(known)) * known[:, None]
        system = kernels.coefficients(T, T).astype(np.float64)
        system[np.diag_indices(len(system) - 1)] += FEATURE_PENALTY
        return np.ascontiguousarray(np.linalg.solve(system, T.T).T, np.float32)


@model
class ProfileModel(HistoryModel):
    """A history model with features for items without users and users without a history."""

    uses_features = True

    item_centre: Floats = fitted("n_item_features", group="item profiles")
    item_directions: Floats = fitted(
        "n_item_features", "n_item_directions", group="item profiles"
    )
    item_profiles: Floats = fitted("n_items", "item_width", group="item profiles")
    item_positions: Floats = fitted("n_items", "item_width", group="item profiles")
    item_vector_map: Floats = fitted("item_width", "d_items", group="item vectors")
    item_variance: float = fitted(group="item vectors")

    user_centre: Floats = fitted("n_user_features", group="user profiles")
    user_directions: Floats = fitted(
        "n_user_features", "n_user_directions", group="user profiles"
    )
    user_histories: Floats = fitted("n_items", "user_width", group="user profiles")
    user_columns: Floats = fitted("n_items", "user_width", group="user profiles")
    user_positions: Floats = fitted("n_users", "user_width", group="user profiles")
    user_vector_map: Floats = fitted("user_width", "d_users", group="user vectors")
    user_variance: float = fitted(group="user vectors")

    @abstractmethod
    def _filter(self, Z: Floats) -> Floats:
        """Return S @ Z: the scores of single-item histories, multiplied by Z."""

    @abstractmethod
    def _scored(self, Q: Floats) -> Floats:
        """Return S' @ Q: the scores of all items for the histories in the columns of Q."""

    @abstractmethod
    def _counting(self, histories: Histories) -> Floats:
        """Return the weights of histories, in which scores are linear."""

    def knows(self, side: str) -> bool:
        """Return whether the model uses features of `side`, "item" or "user"."""
        return f"{side}_centre" in vars(self)

    def _frame(self, side: str) -> Frame:
        return Frame(
            getattr(self, f"{side}_centre"), getattr(self, f"{side}_directions")
        )

    def _fit_profiles(self, ratings: Ratings) -> None:
        """Fit the regressions on the features of `ratings`, after S is set."""
        everyone = Histories.of(ratings)
        counts = {
            "item": np.bincount(ratings.indices, minlength=ratings.n_items),
            "user": everyone.counts,
        }
        features = {"item": ratings.item_features, "user": ratings.user_features}
        for side, each in features.items():
            rows = csr_rows(each)
            if each is None or rows is None:
                continue
            frame, known = Frame.of(each, counts[side]), counts[side] > 0
            setattr(self, f"{side}_centre", frame.centre)
            setattr(self, f"{side}_directions", frame.directions)
            Z = frame.regression(rows, known)
            if side == "item":
                self.item_profiles = self._filter(Z)
            else:
                weighted = everyone.csr._replace(data=self._counting(everyone))
                self.user_histories = kernels.csr_rmatmat(weighted, Z, self.n_items)
            positions = frame.positions(rows, len(known))
            vectors = self._compared(side)
            if (
                vectors is not None
            ):  # vectors for similarity are predicted from features too
                found = kernels.coefficients(Z, np.ascontiguousarray(vectors))
                off = (vectors - positions @ found)[known]
                square = float(np.einsum("ij,ij->", off, off, dtype=np.float64))
                setattr(self, f"{side}_vector_map", found)
                setattr(self, f"{side}_variance", square / max(1, len(off)))
            setattr(self, f"{side}_positions", positions * ~known[:, None])
        self._set_columns()

    def _set_columns(self) -> None:
        """Set the item columns that score users without a history."""
        vars(self).pop("_extra", None)
        if self.knows("user"):
            self.user_columns = self._scored(self._source.user_histories)
            if self.knows("item"):
                both = self._source.item_profiles.T @ self._source.user_histories
                self.user_columns += self.item_positions @ both

    @property
    def _new(self) -> tuple[bool, bool]:
        """Existence of items without users, and of users without a history, with features."""
        return (
            self.knows("item") and bool(self.item_positions[:, -1].any()),
            self.knows("user") and bool(self.user_positions[:, -1].any()),
        )

    def _user_columns(self, own: Floats, history: CsrArrays, users: Indices) -> Floats:
        """Return `own` vectors of users, extended by their profiles and positions."""
        items, of_users = self._new
        parts = [own]
        if items:
            parts.append(kernels.csr_matmat(history, self._source.item_profiles))
        if of_users:
            parts.append(self.user_positions[users])
        return np.hstack(parts) if len(parts) > 1 else own

    def _item_columns(self, own: Floats) -> Floats:
        """Return `own` vectors of items, extended by the factors of profiles and positions."""
        if "_extra" not in vars(self):
            arrays = zip(self._new, ("item_positions", "user_columns"), strict=True)
            parts = [own, *(getattr(self, name) for new, name in arrays if new)]
            vars(self)["_extra"] = np.hstack(parts) if len(parts) > 1 else own
        found: Floats = vars(self)["_extra"]
        return found

    def _compared(self, side: str) -> Floats | None:
        vectors = getattr(self, f"{side}_vectors", None)
        return None if vectors is None else vectors()

    def comparable(self, side: str) -> tuple[Floats, Floats]:
        """Return centred vectors of `side`, and the reliability of their features."""
        vectors = self._compared(side)
        assert vectors is not None
        positions: Floats = getattr(self, f"{side}_positions")
        found: Floats = getattr(self, f"{side}_vector_map")
        predicted = positions[:, :-1] @ found[:-1]  # the intercept is the mean
        square = np.einsum("ij,ij->i", predicted, predicted)
        variance = np.float32(getattr(self, f"{side}_variance") + 1e-12)
        reliability = np.sqrt(square / (square + variance))
        return np.where(
            positions[:, -1:] > 0, predicted, vectors - found[-1]
        ), reliability

    def with_users(
        self, histories: Histories, features: GroupedFeatures | None = None
    ) -> Self:
        """Return the model with these users; features represent those without a history."""
        result = super().with_users(histories)
        vars(result).pop("_extra", None)
        if self.knows("user"):
            positions = self._frame("user").positions(
                csr_rows(features), histories.n_rows
            )
            result.user_positions = positions * (histories.counts == 0)[:, None]
        return result

    def with_items(
        self, histories: Histories, features: GroupedFeatures | None = None
    ) -> Self:
        """Return the model with these items; items folded in before are dropped."""
        result = super().with_items(histories)
        if self.knows("item"):
            positions = self._frame("item").positions(
                csr_rows(features), histories.n_rows
            )
            result.item_positions = positions * (histories.counts == 0)[:, None]
        result._set_columns()
        return result

    def widened(self, side: str, order: Indices, features: GroupedFeatures) -> Self:
        """Return the model with additional items (or users) without ratings, sorted by `order`."""
        n_new, place = features.matrix.shape[0], np.argsort(order)
        rows = np.where(order < len(order) - n_new, order, -1)
        arrays = self._rearranged(**{side: rows})
        for field in self._declared_arrays(arrays):
            if field.metadata["axes"] == (f"n_{side}s + 1",):
                counts = np.append(np.diff(arrays[field.name]), 0)[rows]
                arrays[field.name] = np.append(0, np.cumsum(counts))
        if side == "item":
            arrays["history_items"] = place[self.history_items].astype(np.int32)
        self._renumber(arrays, side, place)
        result = self._from_arrays(self.get_params(), arrays)
        positions = self._frame(side).positions(csr_rows(features), n_new)
        getattr(result, f"{side}_positions")[place[-n_new:]] = positions
        result._set_columns()
        return result

    def _renumber(
        self, arrays: dict[str, NDArray[Any]], side: str, place: Indices
    ) -> None:
        """Update item indices in the arrays of a subclass to their new places."""

    def contributions(
        self, history: Histories, items: ArrayLike, known: Known | None = None
    ) -> Explanation:
        """Return the scores of `items` as sums over the history, and over features if `known`.

        Features contribute only for items without users and for users without a history.
        """
        columns, known = check_indices(items, self.n_items, "item"), known or Known()
        base, terms = np.zeros(len(columns), np.float32), self._terms(history, columns)
        parts: dict[str, Floats] = {}
        if self.knows("item") and known.items is not None:
            shape = len(columns), len(self.item_centre)
            parts["item_features"] = np.zeros(shape, np.float32)
            profiles = self.item_profiles[history.indices, :-1]
            profiles *= self._counting(history)[:, None]
            for at in np.flatnonzero(self.item_positions[columns, -1]):
                row = row_of(known.items, int(at))
                each = self.item_directions[row.indices] * row.data[:, None]
                parts["item_features"][at, row.indices] = each @ profiles.sum(axis=0)
                terms[at] -= profiles @ each.sum(axis=0)
        if self.knows("user") and not len(history.indices):
            position, W = (
                self._frame("user").positions(known.user, 1),
                self.user_columns[columns],
            )
            base += W @ position[0]
            if known.user is not None:
                features, values = known.user.indices, known.user.data
                shares = (
                    W[:, :-1] @ (self.user_directions[features] * values[:, None]).T
                )
                parts["user_features"] = np.zeros(
                    (len(columns), len(self.user_centre)), np.float32
                )
                parts["user_features"][:, features] = shares
                base -= shares.sum(axis=1)
        return Explanation(base, terms, **parts)

"""Rating models that use features of items and users.

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

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lowrank import kernels
from lowrank.completion.cold import (
    ColdMap,
    Slopes,
    fit_cold_map,
    fit_slopes,
    main_directions,
)
from lowrank.completion.design import GroupedFeatures
from lowrank.completion.links import (
    Posterior,
    RowPrior,
    Terms,
    posterior_terms,
    sampled_rows,
)
from lowrank.kernels import CsrArrays, transposed
from recsys.models.base import Floats, Indices, RatingModel, check_indices
from recsys.models.histories import Explanation, Histories
from recsys.models.parameters import fitted, model
from recsys.models.priors import FeaturedModel, Known, csr_rows, row_of

if TYPE_CHECKING:
    from recsys.data.ratings import Ratings


@model
class ContentModel(RatingModel, FeaturedModel):
    """A factor model that uses the features of the ratings for items and users, if any."""

    factors: int

    item_feature_weights: Floats = fitted(
        "S", "n_item_features", "d", group="item content"
    )
    item_cold_mean: Floats = fitted("S", "d", group="item content")
    item_cold_covariance: Floats = fitted("S", "d", "d", group="item content")
    item_cold_weights: Floats = fitted(
        "S", "n_item_features", "d", group="item content"
    )
    item_cold_draws: Floats = fitted(
        "S", "n_item_features", "n_draws", group="item content"
    )
    item_feature_centre: Floats = fitted("n_item_features", group="item content")
    item_directions: Floats = fitted(
        "n_item_features", "n_item_directions", group="item content"
    )
    item_slope_mean: Floats = fitted("n_item_slopes", group="item content")
    item_slope_precision: Floats = fitted(
        "n_item_slopes", "n_item_slopes", group="item content"
    )
    item_slope_noise: float = fitted(group="item content")
    item_content: Floats = fitted("n_items", "item_content_width", group="item content")
    item_spread: Floats = fitted("n_items", group="item content")

    user_feature_weights: Floats = fitted(
        "S", "n_user_features", "d", group="user content"
    )
    user_cold_mean: Floats = fitted("S", "d", group="user content")
    user_cold_covariance: Floats = fitted("S", "d", "d", group="user content")
    user_cold_weights: Floats = fitted(
        "S", "n_user_features", "d", group="user content"
    )
    user_cold_draws: Floats = fitted(
        "S", "n_user_features", "n_draws", group="user content"
    )
    user_feature_centre: Floats = fitted("n_user_features", group="user content")
    user_directions: Floats = fitted(
        "n_user_features", "n_user_directions", group="user content"
    )
    user_slope_mean: Floats = fitted("n_user_slopes", group="user content")
    user_slope_precision: Floats = fitted(
        "n_user_slopes", "n_user_slopes", group="user content"
    )
    user_slope_noise: float = fitted(group="user content")
    user_content: Floats = fitted("n_users", "user_content_width", group="user content")
    user_spread: Floats = fitted("n_users", group="user content")

    @property
    def _n_samples(self) -> int:
        return 1

    @property
    def _base_width(self) -> int:
        """Number of columns of the factors before those of slopes and directions."""
        return self._n_samples * self.factors

    @abstractmethod
    def _solved_rows(
        self, histories: Histories, features: CsrArrays | None, *, of_users: bool
    ) -> dict[str, Floats]:
        """Return the arrays of users given items, or items given users, without slopes."""

    @abstractmethod
    def _side(self, vectors: Sequence[Posterior], of_users: bool) -> dict[str, Floats]:
        """Return the fitted arrays of users (or items) from their vectors in each sample."""

    @abstractmethod
    def _vectors(self, sample: int, *, of_users: bool) -> Posterior:
        """Return the vectors of all users (or items) in a sample, with their covariances."""

    @abstractmethod
    def _prior(self, sample: int, *, of_users: bool) -> RowPrior:
        """Return the prior of users (or items) in a sample."""

    def _noise(self, sample: int) -> float:
        """Return the noise variance of a rating in a sample."""
        return 1.0

    @abstractmethod
    def _mean_covariance(
        self,
        sample: int,
        histories: Histories,
        features: CsrArrays | None,
        *,
        of_users: bool,
    ) -> NDArray[np.float64]:
        """Return the mean covariance of the vectors in a sample, given all histories."""

    def item_vectors(self) -> Floats:
        """Return vectors whose cosine is the similarity of two items, shape (n_items, S k)."""
        return self.item_factors[:, : self._base_width]

    def user_vectors(self) -> Floats:
        """Return vectors whose cosine is the similarity of two users, shape (n_users, S k)."""
        return self.user_factors[:, : self._base_width]

    def knows(self, side: str) -> bool:
        """Return whether the model uses features of `side`, "item" or "user"."""
        return f"{side}_cold_mean" in vars(self)

    def comparable(self, side: str) -> tuple[Floats, Floats]:
        """Return centred vectors of `side`, and the reliability of their features.

        The mean is removed because prior means of features shift all vectors in one direction. The
        reliability is the expected cosine of a vector with its prediction.
        """
        n, k = self._n_samples, self._base_width
        maps = [self._map(side, s) for s in range(n)]
        share = n if side == "user" else 1
        centre = (
            np.hstack([(m.mean + m.centre @ m.coefficients)[:-1] for m in maps]) / share
        )
        variance = sum(float(np.trace(m.covariance[:-1, :-1])) for m in maps) / share**2
        content: Floats = getattr(self, f"{side}_content")
        predicted = content[:, :k] - centre
        square = np.einsum("ij,ij->i", predicted, predicted)
        spread = np.maximum(
            getattr(self, f"{side}_spread"), 1
        )  # zero where there are ratings
        vectors = self.user_vectors() if side == "user" else self.item_vectors()
        reliability = np.sqrt(square / (square + spread * variance))
        return (vectors - centre).astype(np.float32), reliability.astype(np.float32)

    def contributions(
        self, history: Histories, items: ArrayLike, known: Known | None = None
    ) -> Explanation:
        """Return the scores of `items` as sums over the history, and over features if `known`.

        A score is the product w.z of the vectors of user and item. The part of z predicted by
        features is attributed to the features of the item. For the rest of z, the terms of w are
        attributed to the features of the user and to the ratings of the history (their values, and
        the fact that they exist).
        """
        wanted = check_indices(items, self.n_items, "item")
        check_indices(history.indices, self.n_items, "item")
        known, n = known or Known(), self._n_samples
        base = np.full(len(wanted), self.global_mean)
        terms = np.zeros((len(wanted), len(history.indices)))
        found = {
            side: np.zeros(
                (len(wanted), getattr(self, f"{side}_feature_weights").shape[1])
            )
            for side in ("item", "user")
            if f"{side}_feature_weights" in vars(self)
        }
        entries = self._settled(history, known.user)
        for s in range(n):
            row = self._row_terms(s, entries, known.user, "user")
            w = row.base + row.entries.sum(axis=0) + row.features.sum(axis=0)
            columns = self._vectors(s, of_users=False).mean
            for at, item in enumerate(wanted):
                z = columns[item].astype(np.float64)
                if known.items is not None and known.raters is not None:
                    features = row_of(known.items, at)
                    raters = row_of(known.raters.csr, at)
                    of_item = self._row_terms(s, raters, features, "item").features
                    share = of_item[:, :-1] @ w[:-1] + of_item[:, -1]
                    np.add.at(found["item"][at], features.indices, share / n)
                    z -= of_item.sum(axis=0)
                base[at] += z[-1] / n
                z[-1] = 1
                base[at] += row.base @ z / n
                terms[at] += row.entries @ z / n
                if known.user is not None and len(row.features):
                    np.add.at(
                        found["user"][at], known.user.indices, row.features @ z / n
                    )
        self._add_slopes(history, wanted, known, base, found)
        parts = {
            f"{side}_features": each.astype(np.float32) for side, each in found.items()
        }
        return self._explanation(base, terms, wanted, **parts)

    def _add_slopes(
        self,
        history: Histories,
        wanted: Indices,
        known: Known,
        base: NDArray[np.float64],
        found: dict[str, NDArray[np.float64]],
    ) -> None:
        """Add the contributions of slopes for items or users without ratings."""
        start = self._base_width
        user = self._solved(history, known.user, of_users=True)["user_factors"][0]
        for side, rows in (("item", known.items), ("user", known.user)):
            if not self.knows(side):
                continue
            directions: Floats = getattr(self, f"{side}_directions")
            part = slice(start, start + directions.shape[1] + 1)
            start = part.stop
            for at, item in enumerate(wanted):
                pair = user[part], self.item_factors[item, part]
                slopes, own = pair if side == "item" else pair[::-1]
                base[at] += slopes[-1] * own[-1]
                if rows is not None and own[-1]:  # 1 without ratings, else 0
                    row = row_of(rows, at if side == "item" else 0)
                    each = row.data * (directions[row.indices] @ slopes[:-1])
                    np.add.at(found[side][at], row.indices, each)
                else:
                    base[at] += slopes[:-1] @ own[:-1]

    def _settled(self, history: Histories, features: CsrArrays | None) -> CsrArrays:
        """Return the values that the vector of a user is fitted to: here, the ratings."""
        return history.csr

    def _row_terms(
        self, sample: int, entries: CsrArrays, features: CsrArrays | None, side: str
    ) -> Terms:
        """Return the vector of a user or item as a sum over its entries and features."""
        if not len(entries.indices) and self.knows(side):
            mean, weights = (
                getattr(self, f"{side}_cold_{name}")[sample].astype(np.float64)
                for name in ("mean", "weights")
            )
            stored = np.zeros((0, len(mean)))
            if features is not None:
                stored = weights[features.indices] * features.data[:, None]
            return Terms(mean, np.zeros((0, len(mean))), stored)
        of_users = side == "user"
        return posterior_terms(
            entries,
            self._source._vectors(sample, of_users=not of_users),
            self._source._prior(sample, of_users=of_users),
            mean=self.global_mean,
            noise=self._noise(sample),
            features=features,
        )

    def _fit_content(self, ratings: Ratings) -> None:
        """Fit the maps from features to vectors, and the slopes, if there are features."""
        features = {"user": ratings.user_features, "item": ratings.item_features}
        rows = {side: csr_rows(each) for side, each in features.items()}
        if not any(rows.values()):
            return
        by_user = Histories.of(ratings)
        turned = transposed(by_user.csr, ratings.n_items, kernels.resolve_threads(None))
        histories = {"user": by_user, "item": Histories(*turned)}
        for side, each in features.items():
            if each is not None and rows[side] is not None:
                self._fit_map(side, histories[side], each)
                self._fit_slopes(side, histories["user" if side == "item" else "item"])
        completed: dict[str, Floats] = {}
        for side in ("user", "item"):
            names = (
                f"{side}_{each}"
                for each in ("factors", "biases", "bias", "covariance", "draws")
            )
            base = {name: vars(self)[name] for name in names if name in vars(self)}
            completed |= self._completed(side, base, histories[side], rows[side])
        vars(self).update(completed)

    def _fit_map(
        self, side: str, histories: Histories, features: GroupedFeatures
    ) -> None:
        """Fit the map from features to vectors, and the directions of the slopes."""
        rows, counts, of_users = csr_rows(features), histories.counts, side == "user"
        maps = [
            fit_cold_map(
                self._vectors(s, of_users=of_users).mean,
                counts,
                features,
                self._mean_covariance(s, histories, rows, of_users=of_users),
            )
            for s in range(self._n_samples)
        ]
        arrays = {
            "cold_mean": np.array([each.mean for each in maps]),
            "cold_covariance": np.array([each.covariance for each in maps]),
            "cold_weights": np.array([each.coefficients for each in maps]),
            "cold_draws": np.array([each.draws for each in maps]),
            "feature_centre": maps[0].centre,
            "directions": main_directions(features, counts, np.dtype(np.float32)),
        }
        vars(self).update({f"{side}_{name}": array for name, array in arrays.items()})
        _, content = self._content(side, histories.n_rows, rows)
        setattr(self, f"{side}_content", content)

    def _fit_slopes(self, side: str, histories: Histories) -> None:
        """Fit the prior of slopes on the features of `side`."""
        rows, other = (
            sampled_rows(histories.counts),
            "item" if side == "user" else "user",
        )
        given = (
            getattr(self, f"{other}_factors")[rows],
            getattr(self, f"{other}_bias")[rows],
        )
        slopes = fit_slopes(
            self._residuals(side, *given, histories.take(rows).csr),
            self._directions(side),
        )
        setattr(self, f"{side}_slope_mean", slopes.prior.mean)
        setattr(self, f"{side}_slope_precision", slopes.prior.precision)
        setattr(self, f"{side}_slope_noise", float(slopes.noise))

    def _solved(
        self, histories: Histories, features: CsrArrays | None = None, *, of_users: bool
    ) -> dict[str, Floats]:
        arrays = self._solved_rows(histories, features, of_users=of_users)
        return self._completed(
            "user" if of_users else "item", arrays, histories, features
        )

    def _completed(
        self,
        side: str,
        arrays: dict[str, Floats],
        histories: Histories,
        features: CsrArrays | None,
    ) -> dict[str, Floats]:
        """Return the arrays with slopes added, and rows without ratings set from features."""
        columns, result = [], dict(arrays)
        for of in ("item", "user"):
            if not self.knows(of):
                continue
            if of != side:
                given = arrays[f"{side}_factors"], arrays[f"{side}_bias"]
                entries = self._residuals(of, *given, histories.csr)
                names = (
                    f"{of}_slope_{name}" for name in ("mean", "precision", "noise")
                )
                mean, precision, noise = (getattr(self, name) for name in names)
                none = np.zeros((0, len(mean)), np.float32)
                slopes = Slopes(RowPrior(mean, precision, none, 0.0), noise)
                columns.append(slopes.of(entries, self._directions(of)))
                continue
            cold = histories.counts == 0
            found, content = self._content(side, len(cold), features)
            result[f"{side}_spread"] = np.zeros(len(cold), np.float32)
            for name, array in found.items():
                result[name] = np.where(
                    cold[:, None] if array.ndim > 1 else cold, array, result[name]
                )
            directions = content[:, self._base_width + 1 :]
            columns.append(
                np.column_stack([directions, np.ones(len(cold))]) * cold[:, None]
            )
            result[f"{side}_content"] = content
        if columns:
            whole = np.hstack([result[f"{side}_factors"], *columns])
            result[f"{side}_factors"] = whole.astype(np.float32, copy=False)
        return result

    def _content(
        self, side: str, n: int, features: CsrArrays | None
    ) -> tuple[dict[str, Floats], Floats]:
        """Return the arrays predicted from features, and factors, bias and directions stacked."""
        if features is None:
            none = (
                np.zeros(n + 1, np.int64),
                np.zeros(0, np.int32),
                np.zeros(0, np.float32),
            )
            features = CsrArrays(*none)
        maps = [self._map(side, s) for s in range(self._n_samples)]
        vectors = [each.vectors(features) for each in maps]
        arrays = self._side(vectors, side == "user")
        arrays[f"{side}_spread"] = np.mean(
            [each.spread(features) for each in maps], axis=0
        )
        directions = kernels.csr_matmat(features, getattr(self, f"{side}_directions"))
        content = [arrays[f"{side}_factors"], arrays[f"{side}_bias"], directions]
        return arrays, np.column_stack(content).astype(np.float32, copy=False)

    def _map(self, side: str, sample: int) -> ColdMap:
        return ColdMap(
            mean=getattr(self, f"{side}_cold_mean")[sample],
            covariance=getattr(self, f"{side}_cold_covariance")[sample],
            coefficients=getattr(self, f"{side}_cold_weights")[sample],
            draws=getattr(self, f"{side}_cold_draws")[sample],
            centre=getattr(self, f"{side}_feature_centre"),
        )

    def _directions(self, side: str) -> Floats:
        content: Floats = getattr(self, f"{side}_content")
        return content[:, self._base_width + 1 :]

    def _residuals(
        self, side: str, factors: Floats, bias: Floats, entries: CsrArrays
    ) -> CsrArrays:
        """Return ratings minus predictions in which rows of `side` have no ratings."""
        content: Floats = getattr(self, f"{side}_content")
        k = self._base_width
        vectors = np.column_stack([factors[:, :k], bias])
        predicted = kernels.csr_entries(entries, vectors, content[:, : k + 1])
        return entries._replace(
            data=entries.data - predicted - np.float32(self.global_mean)
        )

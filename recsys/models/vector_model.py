"""Models of ratings whose vectors have Gaussian priors, predicted from links and features."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lowrank import kernels
from lowrank.completion.links import Posterior, RowPrior, Terms, posterior_terms
from lowrank.kernels import CsrArrays, transposed
from recsys.errors import DataError
from recsys.models.base import FactorModel, FoldingModel, RatingModel, check_indices
from recsys.models.feature_factors import AxisFeatures, FeatureFactors
from recsys.models.feature_priors import widened
from recsys.models.histories import Context, Explanation, Histories, csr_rows, row_of
from recsys.models.parameters import model
from recsys.models.parts import (
    OTHER,
    SIDES,
    Floats,
    Indices,
    Part,
    part,
    record,
    saved,
    side_part,
)

if TYPE_CHECKING:
    from lowrank.completion.feature_ridge import GroupedFeatures
    from recsys.data.ratings import Ratings

_ALL = slice(None)


@record
class AxisPrior(Part):
    """The prior of the vectors of users, or of items: the fields of `RowPrior`."""

    mean: Floats = saved("d")
    precision: Floats = saved("d", "d")
    link: Floats | None = saved("linked_{other}s", "d", default=None)
    weights: Floats | None = saved("n_{side}_features", "d", default=None)

    @classmethod
    def from_prior(cls, prior: RowPrior) -> Self:
        """Return the arrays of a prior."""
        link = prior.link if len(prior.link) else None
        return cls(
            mean=prior.mean,
            precision=prior.precision,
            link=link,
            weights=prior.features,
        )

    def row_prior(self, count_power: float) -> RowPrior:
        """Return the prior with a power of the number of ratings in its precision."""
        link = (
            np.zeros((0, len(self.mean)), np.float32)
            if self.link is None
            else self.link
        )
        return RowPrior(self.mean, self.precision, link, count_power, self.weights)


@record
class Priors(Part):
    """The priors of users and items."""

    users: AxisPrior = side_part(AxisPrior)
    items: AxisPrior = side_part(AxisPrior)

    def of(self, side: str) -> AxisPrior:
        """Return the prior of one side."""
        return self.users if side == "user" else self.items

    def without_links_to(self, side: str, n_rows: int) -> Self:
        """Return the priors for other users (or items), which do not contribute to links."""
        linked = self.of(OTHER[side])
        if linked.link is None:
            return self
        link = np.zeros((n_rows, linked.link.shape[1]), np.float32)
        return replace(self, **{f"{OTHER[side]}s": replace(linked, link=link)})


@model
class VectorModel(RatingModel, FoldingModel, FactorModel):
    """A factor model that uses the features of the ratings for items and users, if any.

    The first `factors` columns of the factors belong to the model; with features, the others
    are described in `recsys.models.feature_factors`.
    """

    uses_features = True

    if TYPE_CHECKING:
        factors: int
        count_power: float
        linked: bool
        threads: int | None

    priors: Priors | None = part(Priors)
    features: FeatureFactors | None = part(FeatureFactors)

    @classmethod
    def _from_arrays(
        cls, params: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]
    ) -> Self:
        # Optional arrays of a part are None where they are missing: the model knows which it needs.
        result = super()._from_arrays(params, arrays)
        if result.priors is None:
            return result
        for side in SIDES:
            needed = {"link": result.linked}
            needed["weights"] = result.knows(SIDES[side])
            for name, is_needed in needed.items():
                array = f"priors_{side}_{name}"
                if is_needed and array not in arrays:
                    raise DataError(
                        f"The {cls.name} model needs an array {array!r}, which is missing."
                    )
        return result

    @property
    def _noise(self) -> float:
        """Noise variance of a rating, times the temperature."""
        return 1.0

    @abstractmethod
    def _solved_rows(
        self, side: str, histories: Histories, features: CsrArrays | None
    ) -> Posterior:
        """Return the vectors of users given items, or of items given users."""

    @abstractmethod
    def _mean_covariance(
        self, side: str, histories: Histories, features: CsrArrays | None
    ) -> NDArray[np.float64]:
        """Return the mean covariance of the vectors of users (or items)."""

    def _posterior(self, side: str, rows: Indices | slice = _ALL) -> Posterior:
        """Return the vectors of users (or items), with the bias last."""
        return Posterior.exactly(self._means(side, rows))

    def _means(self, side: str, rows: Indices | slice) -> Floats:
        """Return the factors and biases of users (or items) side by side."""
        factors, bias = self.user_factors, self.user_bias
        if side == "item":
            factors, bias = self.item_factors, self.item_bias
        return np.column_stack([factors[rows, : self.factors], bias[rows]])

    def _prior(self, side: str) -> RowPrior:
        """Return the prior of the vectors of users (or items)."""
        assert self.priors is not None
        return self.priors.of(side).row_prior(self.count_power)

    def item_vectors(self) -> Floats:
        """Return vectors whose cosine is the similarity of two items, shape (n_items, factors)."""
        return self.item_factors[:, : self.factors]

    def user_vectors(self) -> Floats:
        """Return vectors whose cosine is the similarity of two users, shape (n_users, factors)."""
        return self.user_factors[:, : self.factors]

    def _axis_features(self, side: str) -> AxisFeatures | None:
        return None if self.features is None else self.features.of(side)

    def knows(self, side: str) -> bool:
        """Return whether the model uses features of `side`, "item" or "user"."""
        return self._axis_features(side) is not None

    def comparable(self, side: str) -> tuple[Floats, Floats]:
        """Return centred vectors of `side`, and the reliability of their features."""
        axis = self._axis_features(side)
        assert axis is not None
        return axis.comparable(
            self.user_vectors() if side == "user" else self.item_vectors()
        )

    def widened(self, side: str, order: Indices, features: GroupedFeatures) -> Self:
        """Return the model with additional items (or users) without ratings, sorted by `order`."""
        return widened(self, side, order, features)

    def _side(self, side: str, rows: Posterior) -> dict[str, Any]:
        """Return the fitted arrays of users (or items) without features."""
        return {
            f"{side}_factors": rows.mean[:, :-1].copy(),
            f"{side}_bias": rows.mean[:, -1].copy(),
        }

    def _solved(
        self, side: str, histories: Histories, features: CsrArrays | None
    ) -> dict[str, Any]:
        rows = self._solved_rows(side, histories, features)
        # Leverages and drifts are those of the solved vectors, also where features replace them.
        changes = self._of_rows(side, rows, histories)
        if self.priors is not None:
            # Links are learned in the fit: rows that are folded in later do not take part in them.
            changes["priors"] = self.priors.without_links_to(side, histories.n_rows)
        if self.features is None:
            return changes | self._side(side, rows)
        changes["features"], rows, columns = self.features.completed(
            side, rows, histories, features, self.global_mean
        )
        changes |= self._side(side, rows)
        factors = [changes[f"{side}_factors"], columns]
        changes[f"{side}_factors"] = np.hstack(factors).astype(np.float32, copy=False)
        return changes

    def _of_rows(
        self, side: str, rows: Posterior, histories: Histories
    ) -> dict[str, Any]:
        """Return the other parts of the model for solved users (or items)."""
        return {}

    def _fit_features(self, ratings: Ratings) -> None:
        """Fit the maps from features to vectors, and the slopes, if there are features."""
        if (
            csr_rows(ratings.user_features) is None
            and csr_rows(ratings.item_features) is None
        ):
            return
        by_user = Histories.of(ratings)
        # The slopes of items on features of users need the ratings by item.
        turned = transposed(by_user.csr, ratings.n_items, kernels.resolve_threads(None))
        by_item = Histories(*turned)
        users = self._fitted_features("user", by_user, by_item, ratings.user_features)
        items = self._fitted_features("item", by_item, by_user, ratings.item_features)
        self.features = FeatureFactors(users=users, items=items)
        both = (
            ("user", by_user, ratings.user_features),
            ("item", by_item, ratings.item_features),
        )
        # Both sides are completed from the vectors of the fit, not from each other's result.
        completed: dict[str, Any] = {}
        for side, histories, features in both:
            rows = self._posterior(side)
            _, rows, columns = self.features.completed(
                side, rows, histories, csr_rows(features), self.global_mean
            )
            completed |= self._side(side, rows)
            completed[f"{side}_factors"] = np.hstack(
                [completed[f"{side}_factors"], columns]
            )
        vars(self).update(completed)

    def _fitted_features(
        self,
        side: str,
        histories: Histories,
        other_histories: Histories,
        features: GroupedFeatures | None,
    ) -> AxisFeatures | None:
        rows = csr_rows(features)
        if features is None or rows is None:
            return None
        return AxisFeatures.fit(
            self._posterior(side),
            self._posterior(OTHER[side]),
            histories,
            other_histories,
            features,
            covariance=self._mean_covariance(side, histories, rows),
            global_mean=self.global_mean,
        )

    def _row_terms(
        self, side: str, entries: CsrArrays, features: CsrArrays | None
    ) -> Terms:
        """Return the vector of a user or item as a sum over its entries and features."""
        axis = self._axis_features(side)
        # Without ratings, the vector is exactly what the features predict.
        if axis is not None and not len(entries.indices):
            return axis.terms(features)
        return posterior_terms(
            entries,
            self._source._posterior(OTHER[side]),
            self._source._prior(side),
            mean=self.global_mean,
            noise=self._noise,
            features=features,
        )

    def contributions(
        self, history: Histories, items: ArrayLike, context: Context | None = None
    ) -> Explanation:
        """Return the scores of `items` as sums over the history, and over features, if known.

        A score is the product w.z of the vectors of user and item. The part of z predicted by
        features is attributed to the features of the item. For the rest of z, the terms of w are
        attributed to the features of the user and to the ratings of the history (their values, and
        the fact that they exist).
        """
        columns = check_indices(items, self.n_items, "item")
        check_indices(history.indices, self.n_items, "item")
        context = context or Context()
        base = np.full(len(columns), self.global_mean)
        terms = np.zeros((len(columns), len(history.indices)))
        shares = self._no_shares(len(columns))
        user = self._row_terms("user", history.csr, context.user)
        w = user.total
        for number, mean in enumerate(self._posterior("item", columns).mean):
            z = mean.astype(np.float64)
            if context.items is not None and context.raters is not None:
                features = row_of(context.items, number)
                raters = row_of(context.raters.csr, number)
                # The features of an item act through its own prior, given the ratings of others.
                predicted = self._row_terms("item", raters, features).features
                scores = predicted[:, :-1] @ w[:-1] + predicted[:, -1]
                np.add.at(shares["item"][number], features.indices, scores)
                z -= predicted.sum(axis=0)
            base[number] += z[-1]
            # The bias of the item is in the base; the user's bias is multiplied by one.
            z[-1] = 1
            base[number] += user.base @ z
            terms[number] += user.entries @ z
            if context.user is not None and len(user.features):
                np.add.at(
                    shares["user"][number], context.user.indices, user.features @ z
                )
        self._explain_cold(history, columns, context, base, shares)
        by_feature = {
            f"{side}_features": sums.astype(np.float32) for side, sums in shares.items()
        }
        return self._explanation(base, terms, columns, **by_feature)

    def _no_shares(self, n: int) -> dict[str, NDArray[np.float64]]:
        """Return zeros for each item and each feature of a side, if it has any."""
        shares = {}
        for side in ("item", "user"):
            weights = None if self.priors is None else self.priors.of(side).weights
            if weights is not None:
                shares[side] = np.zeros((n, len(weights)))
        return shares

    def _explain_cold(
        self,
        history: Histories,
        columns: Indices,
        context: Context,
        base: NDArray[np.float64],
        shares: dict[str, NDArray[np.float64]],
    ) -> None:
        """Add the contributions of slopes for items or users without ratings."""
        if self.features is None:
            return
        user = self._solved("user", history, context.user)["user_factors"][
            0, self.factors :
        ]
        items = self.item_factors[columns, self.factors :]
        for side, features in (("item", context.items), ("user", context.user)):
            if self.knows(side):
                self.features.explain_cold(
                    side, user, items, features, base, shares[side]
                )

"""Models of ratings whose vectors have Gaussian priors, predicted from links and features."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike

from lowrank import kernels
from lowrank.completion.links import (
    Posterior,
    RowPrior,
    Terms,
    posterior_terms,
    unpack,
)
from lowrank.kernels import transposed
from recsys.models.base import FactorModel, FoldingModel, RatingModel, check_indices
from recsys.models.feature_factors import (
    AxisFeatures,
    FeatureFactors,
    FeaturePart,
    kept_parts,
    widened,
)
from recsys.models.histories import Explanation, Histories, csr_rows, rows_of
from recsys.models.parameters import model
from recsys.models.parts import (
    OTHER,
    SIDES,
    Doubles,
    Floats,
    Indices,
    Part,
    Sides,
    missing_array,
    part,
    record,
    saved,
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

    def row_prior(self, count_power: float) -> RowPrior:
        """Return the prior with a power of the number of ratings in its precision."""
        link = self.link
        if link is None:
            link = np.zeros((0, len(self.mean)), np.float32)
        return RowPrior(self.mean, self.precision, link, count_power, self.weights)


@record
class Priors(Sides[AxisPrior]):
    """The priors of users and items."""

    kind = AxisPrior

    @classmethod
    def from_priors(cls, users: RowPrior, items: RowPrior) -> Self:
        """Return the arrays of the priors of a fit."""
        axes = []
        for prior in (users, items):
            axis = AxisPrior(
                mean=prior.mean,
                precision=prior.precision,
                link=prior.link if len(prior.link) else None,
                weights=prior.features,
            )
            axes.append(axis)
        return cls(users=axes[0], items=axes[1])

    def without_links_to(self, side: str, n_rows: int) -> Self:
        """Return the priors for other users (or items), which do not contribute to links."""
        other = self.of(OTHER[side])
        if other.link is None:
            return self
        link = np.zeros((n_rows, other.link.shape[1]), np.float32)
        return self.with_side(OTHER[side], replace(other, link=link))


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

    def _check_arrays(self) -> None:
        # Optional arrays of a part are None where they are missing: the model knows its own.
        if self.priors is None:
            return
        for name, side in SIDES.items():
            prior = self.priors.of(side)
            if self.linked and prior.link is None:
                raise missing_array(self.name, f"priors_{name}_link")
            if self.knows(side) and prior.weights is None:
                raise missing_array(self.name, f"priors_{name}_weights")

    @property
    def _noise(self) -> float:
        """Noise variance of a rating, times the temperature."""
        return 1.0

    @abstractmethod
    def _solved_rows(self, side: str, histories: Histories) -> Posterior:
        """Return the vectors of users given items, or of items given users."""

    @abstractmethod
    def _mean_covariance(self, side: str, histories: Histories) -> Doubles:
        """Return the mean covariance of the vectors of users (or items)."""

    def _posterior(self, side: str, rows: Indices | slice = _ALL) -> Posterior:
        """Return the vectors of users (or items), with the bias last."""
        return Posterior.exactly(self._means(side, rows))

    def _covariance_of(self, side: str) -> Floats:
        """Return the covariances of the vectors as in a `Posterior`."""
        return np.empty((0, 0), np.float32)

    def _means(self, side: str, rows: Indices | slice) -> Floats:
        """Return the factors and biases of users (or items) side by side."""
        # The first `factors` columns: slopes on features follow them.
        factors, bias = self._vectors_of(side)
        columns = factors[rows][:, : self.factors], bias[rows, None]
        # Faster than `column_stack`.
        return np.concatenate(columns, axis=1)

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

    def comparable(self, side: str) -> tuple[Floats, Floats]:
        """Return centred vectors of `side`, and the reliability of their features."""
        axis: AxisFeatures = self._features_of(side)
        vectors, _ = self._vectors_of(side)
        return axis.comparable(vectors[:, : self.factors])

    def widened(
        self,
        side: str,
        order: Indices,
        features: GroupedFeatures,
    ) -> Self:
        """Return the model with additional items (or users) without ratings, sorted by `order`."""
        return widened(self, side, order, features)

    def _side(self, side: str, rows: Posterior) -> dict[str, Any]:
        """Return the fitted arrays of users (or items) without features."""
        return {
            f"{side}_factors": rows.mean[:, :-1].copy(),
            f"{side}_bias": rows.mean[:, -1].copy(),
        }

    def _solved(self, side: str, histories: Histories) -> dict[str, Any]:
        rows = self._solved_rows(side, histories)
        # Leverages and drifts are those of the solved vectors, also where features replace them.
        changes = self._of_rows(side, rows, histories)
        if self.priors is not None:
            # Links are learned in the fit: rows that are folded in later do not take part in them.
            changes["priors"] = self.priors.without_links_to(side, histories.n_rows)
        return changes | self._completed(side, rows, histories)

    def _completed(
        self,
        side: str,
        rows: Posterior,
        histories: Histories,
    ) -> dict[str, Any]:
        """Return the arrays of solved users (or items), with what features add to them."""
        if self.features is None:
            return self._side(side, rows)
        features, rows, columns = self.features.completed(
            side, rows, histories, self.global_mean
        )
        changes = self._side(side, rows) | {"features": features}
        factors = np.hstack([changes[f"{side}_factors"], columns])
        changes[f"{side}_factors"] = factors.astype(np.float32, copy=False)
        return changes

    def _of_rows(
        self,
        side: str,
        rows: Posterior,
        histories: Histories,
    ) -> dict[str, Any]:
        """Return the other parts of the model for solved users (or items)."""
        return {}

    def _fit_features(self, ratings: Ratings) -> None:
        """Fit the maps from features to vectors, and the slopes, if there are features."""
        by_user = Histories.of(ratings, ratings.user_features)
        item_rows = csr_rows(ratings.item_features)
        if by_user.features is None and item_rows is None:
            return
        # The slopes of items on features of users need the ratings by item.
        turned = transposed(by_user.csr, ratings.n_items, kernels.resolve_threads(None))
        by_item = replace(Histories(*turned), features=item_rows)
        self.features = FeatureFactors(
            users=self._fitted_features(
                "user", by_user, by_item, ratings.user_features
            ),
            items=self._fitted_features(
                "item", by_item, by_user, ratings.item_features
            ),
        )
        # Both sides are completed from the vectors of the fit, not from each other's result.
        users = self._completed("user", self._posterior("user"), by_user)
        items = self._completed("item", self._posterior("item"), by_item)
        vars(self).update(users | items | {"features": self.features})

    def _fitted_features(
        self,
        side: str,
        histories: Histories,
        other_histories: Histories,
        features: GroupedFeatures | None,
    ) -> AxisFeatures | None:
        if features is None or histories.features is None:
            return None
        return AxisFeatures.fit(
            self._posterior(side),
            self._posterior(OTHER[side]),
            histories,
            other_histories,
            features,
            covariance=self._mean_covariance(side, histories),
            global_mean=self.global_mean,
        )

    def _user_terms(self, histories: Sequence[Histories]) -> list[Terms]:
        """Return the vector of each user as a sum over the entries and features."""
        source = self._source
        joined = Histories.joined(histories)
        terms = posterior_terms(
            joined.csr,
            source._means("item", joined.indices.astype(np.int64)),
            source._covariance_of("item"),
            source._prior("user"),
            mean=self.global_mean,
            noise=self._noise,
            features=joined.features,
        )
        axis: AxisFeatures | None = self._features_of("user")
        for number, history in enumerate(histories):
            # Without ratings, the vector is exactly what the features predict.
            if axis is not None and not len(history.indices):
                terms[number] = axis.terms(history.features)
        return terms

    def contributions(
        self,
        history: Histories,
        items: ArrayLike,
        fitted: Ratings | None = None,
    ) -> Explanation:
        """Return the scores of `items` as sums over the history, and over features, if known."""
        return self.contributions_of_lists(
            [history], [np.atleast_1d(np.asarray(items))], fitted
        )[0]

    def contributions_of_lists(
        self,
        histories: Sequence[Histories],
        lists: Sequence[Indices],
        fitted: Ratings | None = None,
    ) -> list[Explanation]:
        """Return the scores of a list of items for each history as sums, faster than one by one.

        A score is the product w.z of the vectors of user and item. The part of z predicted by
        features is attributed to the features of the item. For the rest of z, the terms of w are
        attributed to the features of the user and to the ratings of the history (their values, and
        the fact that they exist).
        """
        columns = check_indices(np.concatenate(lists), self.n_items, "item")
        for history in histories:
            check_indices(history.indices, self.n_items, "item")
        vectors = self._means("item", columns).astype(np.float64)
        parts: list[FeaturePart] = []
        if fitted is not None:
            parts = self._feature_parts(columns, fitted)
        if parts:
            vectors -= np.array([part.total for part in parts])
        base = self.global_mean + vectors[:, -1]
        # The bias of the item is in the base; the user's bias is multiplied by one.
        vectors[:, -1] = 1
        shares = self._no_shares(len(columns))
        ends = accumulate([len(items) for items in lists], initial=0)
        of_lists = [slice(start, end) for start, end in pairwise(ends)]
        users = self._user_terms(histories)
        terms_of_lists = []
        for history, rows, user in zip(histories, of_lists, users, strict=True):
            solutions, w = user.solved(vectors[rows])
            w[-1] = 1
            base[rows] += solutions @ user.base
            terms_of_lists.append(user.of_entries(solutions))
            if history.features is not None and len(user.features):
                of_user = solutions @ user.features.T
                shares["user"][rows, history.features.indices] = of_user
            if of_items := parts[rows]:
                counts = [len(part.indices) for part in of_items]
                places = np.repeat(np.arange(rows.start, rows.stop), counts)
                indices = np.concatenate([part.indices for part in of_items])
                terms = np.concatenate([part.terms for part in of_items])
                shares["item"][places, indices] = terms @ w
        explanations = []
        for history, rows, terms in zip(
            histories, of_lists, terms_of_lists, strict=True
        ):
            of_list = {side: sums[rows] for side, sums in shares.items()}
            has_cold = self.knows("item")
            if parts:
                has_cold &= any(part.is_cold for part in parts[rows])
            if self.features is not None and (has_cold or not len(history.indices)):
                self._explain_cold(history, columns[rows], fitted, base[rows], of_list)
            by_feature = {f"{side}_features": sums for side, sums in of_list.items()}
            explanation = self._explanation(
                base[rows], terms, columns[rows], **by_feature
            )
            explanations.append(explanation)
        return explanations

    def _explain_cold(
        self,
        history: Histories,
        items: Indices,
        fitted: Ratings | None,
        base: Doubles,
        shares: Mapping[str, Floats],
    ) -> None:
        """Add the contributions of slopes for items or users without ratings."""
        assert self.features is not None
        factors = self._solved("user", history)["user_factors"][0, self.factors :]
        item_columns = self.item_factors[items, self.factors :]
        item_rows = None
        if fitted is not None:
            item_rows = csr_rows(fitted.item_features, items)
        sides = {"item": item_rows, "user": history.features}
        for side, features in sides.items():
            if self.knows(side):
                self.features.explain_cold(
                    side, factors, item_columns, features, base, shares[side]
                )

    def _feature_parts(self, items: Indices, fitted: Ratings) -> list[FeaturePart]:
        """Return the parts of the vectors of items that are due to their features, if any.

        They are the same for all users, and kept.
        """
        features = fitted.item_features
        if features is None or not features.matrix.shape[1]:
            return []
        source = self._source
        solved = partial(self._solved_parts, fitted=fitted)
        return kept_parts(source, source.item_factors, features, items, solved)

    def _solved_parts(self, items: Indices, fitted: Ratings) -> Iterator[FeaturePart]:
        """Yield the parts of the vectors of items, S^-1 P p of a prediction p with precision P."""
        prior = self._source._prior("item")
        axis: AxisFeatures = self._features_of("item")
        counts = self._item_totals(fitted)[0][items]
        weights = prior.weights(counts).tolist()
        packed = self._item_covariance(items, fitted)
        covariances = unpack(packed, len(prior.mean)).astype(np.float64)
        features = csr_rows(fitted.item_features, items)
        assert prior.features is not None
        assert features is not None
        for number, (indices, values) in enumerate(rows_of(features)):
            is_cold = bool(counts[number] == 0)
            coefficients = axis.coefficients if is_cold else prior.features
            terms = coefficients[indices].astype(np.float64) * values[:, None]
            if not is_cold:
                pull = prior.precision * weights[number]
                terms = terms @ pull @ covariances[number]
            yield FeaturePart(indices, terms, terms.sum(axis=0), is_cold)

    @abstractmethod
    def _item_covariance(self, items: Indices, fitted: Ratings) -> Floats:
        """Return the covariances of vectors of items that have ratings in a fit."""

    def _no_shares(self, n: int) -> dict[str, Floats]:
        """Return zeros for each item and each feature of a side, if it has any."""
        shares = {}
        for side in ("item", "user"):
            weights = None if self.priors is None else self.priors.of(side).weights
            if weights is not None:
                shares[side] = np.zeros((n, len(weights)), np.float32)
        return shares

"""Implicit alternating least squares: a factorization of all interactions and their absence."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from lowrank import kernels
from lowrank.completion.implicit import (
    ImplicitSweep,
    implicit_sweeps,
    in_principal_axes,
    solve_interactions,
)
from lowrank.kernels.retrieval import top_k
from lowrank.kernels.topk import Ties, mixed
from recsys.accuracy import ndcg
from recsys.data.arrays import positions_of
from recsys.models.base import FactorModel, FoldingModel, Progress
from recsys.models.feature_factors import (
    AxisFeaturePrior,
    FeaturePriors,
    kept_parts,
    widened,
)
from recsys.models.histories import (
    Explanation,
    Histories,
    csr_rows,
    rows_of,
    sampled_rows,
)
from recsys.models.holdout import FEW
from recsys.models.item_item import weight_unit, weighted_matrix
from recsys.models.nonnegative import strongest_first
from recsys.models.parameters import (
    fitted,
    model,
    overflow_error,
    parameter,
    random_state_parameter,
    threads_parameter,
)
from recsys.models.parts import OTHER, Doubles, Floats, Indices, Ints, Mask, part

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from lowrank.completion.feature_ridge import GroupedFeatures
    from lowrank.kernels import CsrArrays
    from recsys.data.ratings import Ratings

# Search for the penalties.
INTERACTIONS = 500_000
"""Maximum number of interactions of the search; larger data are sampled by user."""

FIRST_INTERACTIONS = 250_000
"""The same for trials with few factors, which come first."""

FOLDS, REPEATED = 5, 30_000
"""Number of folds, of which one is held out, or several in turn below some interactions."""

_TOP = 20  # length of the ranked lists
_FACTORS = 32  # of these fits
# Size of the last fits, enough to see the penalty that still more factors would need, and of
# trials of few interactions.
_MORE_FACTORS = 128
# With fewer sweeps, large penalties would seem worse than they are.
_SWEEPS = 6
# Maximum number of sweeps of a fit that is only compared.
_TRIAL_SWEEPS = 6
_JUDGES = 5_000  # maximum number of users whose lists are judged
_FIRST_WEIGHT, _FIRST_PENALTY = 0.03, 2.0  # starting point
_STEP = 10**0.25  # factor between neighbouring values
_TRIALS = 30  # maximum number of fits

# Number of non-negative factors: more take much time, and are hard to read.
_TOPICS = 64
# Explanations: length of a history from which a system is solved by iteration, the largest number
# of iterations, and the size of a residual that is negligible in single precision.
_SHORT_HISTORY, _ITERATIONS, _TOLERANCE = 256, 40, 1e-6
_TINY = 1e-30  # smallest divisor

# Number of interactions above which fits with 256 factors take too long.
_MANY_INTERACTIONS = 3_000_000
# Numbers of users and items, and of interactions of each, for 512 factors.
_MANY_ROWS, _SHORT = 10_000, 50

GridPoint = tuple[int, int]
"""Steps of unobserved_weight and of regularization."""

Fold: TypeAlias = "tuple[csr_array[np.float32], csr_array[np.float32]]"
"""Training and held-out interactions of some users."""


class Penalties(NamedTuple):
    """Weight of all pairs, and ridge penalty."""

    unobserved_weight: float
    regularization: float


class Basis(NamedTuple):
    """Arrays for explanations, along the eigenvectors of the Gram matrix of the items.

    Attributes
    ----------
    eigenvalues : float64 ndarray of shape (k,)
        Of the Gram matrix of the items, whose eigenvectors make it diagonal.
    axes : float64 ndarray of shape (k, k)
        The eigenvectors, in columns.
    items : float32 ndarray of shape (n_items, k)
        The factors of the items with interactions, and zeros.
    mean, user_weights : float64 ndarrays of shapes (k,) and (n_features, k)
        The prediction of a user's factors by features.
    user_eigenvalues : float64 ndarray of shape (k,)
        Of the Gram matrix of the users.
    item_weights : float32 ndarray of shape (n_features, k)
        The prediction of an item's factors, along the eigenvectors of the users.
    turn : float32 ndarray of shape (k, k)
        What turns factors along the eigenvectors of the users.
    """

    eigenvalues: Doubles
    axes: Doubles
    items: Floats
    mean: Doubles
    user_weights: Doubles
    user_eigenvalues: Doubles
    item_weights: Floats
    turn: Floats


class ItemPart(NamedTuple):
    """Part of the explanations of an item that all users share, along a basis.

    Attributes
    ----------
    rest : float64 ndarray of shape (k,)
        The factors without what the features predict.
    indices : int32 ndarray of shape (n,)
        Features of the item.
    terms : float32 ndarray of shape (n, k)
        What each feature adds to the factors.
    """

    rest: Doubles
    indices: Ints
    terms: Floats


class UserEquations(NamedTuple):
    """The normal equations ``(F'WF + S) x = F'w + mean + predicted`` of a user, along a basis.

    Attributes
    ----------
    rated, weights : float32 and float64 ndarrays of shape (n, k) and (n,)
        The factors F of the user's items, and the weights w of the interactions.
    penalty : float
        Of S, which also has the Gram matrix of all items.
    mean, predicted : float64 ndarrays of shape (k,) and (n_features, k)
        Terms of the mean and of features, times the penalty.
    zeros : float32 ndarray of shape (n_zeros, k)
        The factors of items with the target 0, times the roots of their weights.
    """

    rated: Floats
    weights: Doubles
    penalty: float
    mean: Doubles
    predicted: Doubles
    zeros: Floats

    @property
    def right(self) -> Floats:
        """The right-hand side, whose solution has the factors of the user."""
        right: Doubles = self.weights @ self.rated + self.mean
        right += self.predicted.sum(axis=0)
        return right.astype(np.float32)


class Products(NamedTuple):
    """Products with the solutions for several items, and the solution of a user.

    Attributes
    ----------
    of_entries : float32 ndarray of shape (n_items, n)
        Products with the terms of the interactions.
    of_others : float32 ndarray of shape (n_items, 1 + n_features)
        Products with the terms of the mean and of features.
    factors : float32 ndarray of shape (k,)
        The factors of the user.
    """

    of_entries: Floats
    of_others: Floats
    factors: Floats


@model
class IALS(FoldingModel, FactorModel):
    """Score an item by ``a_u . m_i``, with target 1 for interactions and 0 for all pairs.

    Minimises the sum of three terms by alternating least squares: ``w_ui (1 - a_u . m_i)^2`` over
    the interactions; ``unobserved_weight * (a_u . m_i)^2`` over all pairs; and a ridge penalty of
    ``regularization * (w_u + unobserved_weight * n_items)**count_power`` for a user of total
    weight w_u, and likewise for an item. The weight w_ui is 1 for plain interactions, a rating
    divided by the highest rating, or a count divided by the mean count. Dislikes and impressions
    add ``w_ui (a_u . m_i)^2``, and count in w_u.

    Each sweep solves rows exactly, or in blocks of 64 factors if there are many factors and long
    histories (see `lowrank.completion.implicit`); the users are solved exactly at the end. By
    default, `unobserved_weight` and `regularization` are those with the highest NDCG on a held-out
    fifth of the interactions. This search uses fewer factors and, for large data, fewer users.

    With features of items or users, the penalty pulls factors towards a linear function of the
    features, a ridge regression of the factors (see `lowrank.completion.implicit`). Features alone
    determine an item or user without interactions, whose pairs are left out of the fit.

    With `nonnegative`, no number in the factors is negative: each factor is a topic of items (see
    `recsys.Recommender.topics`), and scores are sums over topics. Features are then not used.

    Attributes
    ----------
    penalty, pair_weight : float
        The regularization and the unobserved_weight, as given or as found by the search.
    unit : float
        The rating or count of weight 1.

    References
    ----------
    Hu, Koren and Volinsky (2008), "Collaborative filtering for implicit feedback datasets".
    Rendle, Krichene, Zhang and Koren (2022), "Revisiting the performance of iALS on item
    recommendation benchmarks".
    """

    name = "ials"
    summary = (
        "Interactions of many users and items: latent factors, any size, any threads."
    )
    predicts_ratings = False
    uses_zeros = True
    _needs_values = False
    _scores_between_sweeps = True

    factors: int | None = parameter(
        None,
        "Number of latent factors; by default 256, 128 for more than 3 million interactions, "
        "512 for many users and items with few interactions each, and 64 with nonnegative.",
        low=16,
        high=512,
        log=True,
    )
    regularization: float | None = parameter(
        None, "Ridge penalty; by default chosen on held-out interactions."
    )
    unobserved_weight: float | None = parameter(
        None, "Weight of all pairs; by default chosen on held-out interactions."
    )
    count_power: float = parameter(
        1.0,
        "Power of the total weight in the penalty: 0 is plain ridge.",
        low=0.0,
        high=1.0,
    )
    nonnegative: bool = parameter(
        False, "Keep the factors non-negative, so that each is a topic of items."
    )
    iterations: int = parameter(16, "Maximum number of sweeps (users, then items).")
    tol: float = parameter(
        1e-3,
        "Stop when a sweep lowers the objective by less than this fraction of it.",
        minimum=0,
    )
    random_state: int = random_state_parameter()
    threads: int | None = threads_parameter()

    unit: float = fitted()
    penalty: float = fitted()
    pair_weight: float = fitted()
    features: FeaturePriors | None = part(FeaturePriors)

    @property
    def uses_features(self) -> bool:  # type: ignore[override]
        """True unless the factors are non-negative."""
        return not self.nonnegative

    def _fit(self, ratings: Ratings, progress: Progress) -> None:
        self.unit = weight_unit(ratings)
        uses = self.uses_features
        users = Histories.of(ratings, ratings.user_features if uses else None)
        item_features = csr_rows(ratings.item_features if uses else None)
        weights = self._weights(users, ratings.n_items)
        zeros = self._zeros(users, ratings.n_items)
        # Parameters that are None, 0 here, are searched for.
        fixed = Penalties(self.unobserved_weight or 0.0, self.regularization or 0.0)
        self.pair_weight, self.penalty = self.chosen_penalties(
            weights, fixed, deadline=progress.deadline
        )
        self.global_mean = 0.0
        self.user_bias = np.zeros(ratings.n_users, np.float32)
        self.item_bias = np.zeros(ratings.n_items, np.float32)
        has_features = users.features is not None or item_features is not None
        trial = progress.trials.get(self.name)
        sweeps = implicit_sweeps(
            weights,
            self._n_factors(ratings),
            zeros=zeros,
            row_features=None if users.features is None else ratings.user_features,
            column_features=None if item_features is None else ratings.item_features,
            start=trial.item_factors if isinstance(trial, IALS) else None,
            random_state=self.random_state,
            **self._options(),
        )
        sweep = self._last(sweeps, progress)
        if has_features:
            self._set_features(sweep, users, item_features)
        elif self.nonnegative:
            self.item_factors = strongest_first(self.item_factors)
        else:  # so that users are fast to fold in
            self.item_factors = in_principal_axes(self.item_factors)
        # Solve the users again, so that folding in a training user returns the same vector.
        vars(self).update(self._solved("user", users))

    def _set_features(
        self,
        sweep: ImplicitSweep,
        users: Histories,
        item_features: CsrArrays | None,
    ) -> None:
        """Set the priors of factors, and the factors of items without interactions."""
        user_prior = item_prior = None
        if sweep.row_prior is not None:
            user_prior = AxisFeaturePrior.fit(
                sweep.row_prior, sweep.row_factors, users.features, users.counts
            )
        if sweep.column_prior is not None:
            counts = np.bincount(users.indices, minlength=self.n_items)
            item_prior = AxisFeaturePrior.fit(
                sweep.column_prior, sweep.column_factors, item_features, counts
            )
            predicted = sweep.column_prior.vectors(item_features, self.n_items)
            self.item_factors = np.where(
                (counts > 0)[:, None], self.item_factors, predicted
            )
        self.features = FeaturePriors(users=user_prior, items=item_prior)

    def _last(
        self, sweeps: Iterator[ImplicitSweep], progress: Progress
    ) -> ImplicitSweep:
        """Set the factors sweep by sweep until the objective settles; return the last sweep."""
        previous = math.inf
        for number, sweep in enumerate(islice(sweeps, self.iterations), start=1):
            if not math.isfinite(sweep.objective):
                raise overflow_error(self, "count_power")
            self.user_factors = sweep.row_factors
            self.item_factors = sweep.column_factors
            progress.report(self, number, self.iterations, sweep.objective)
            # With features, the objective may rise in the first sweeps.
            is_settled = abs(previous - sweep.objective) <= self.tol * sweep.objective
            if is_settled or progress.is_late:
                break
            previous = sweep.objective
        return sweep

    @property
    def remarks(self) -> tuple[str, ...]:  # type: ignore[override]
        """The penalties that the fit has chosen."""
        if self.unobserved_weight and self.regularization:
            return ()
        penalties = self._found_params().items()
        texts = ", ".join(f"{name}={value:.4g}" for name, value in penalties)
        return (f"penalties: {texts}",)

    def _trial_params(self, ratings: Ratings) -> dict[str, Any]:
        # The fit to all interactions goes on from the factors of the trial.
        k = self._n_factors(ratings)
        if ratings.n_ratings <= FEW:
            k = min(k, _MORE_FACTORS)
        sweeps = min(self.iterations, _TRIAL_SWEEPS)
        return {**self.get_params(), "factors": k, "iterations": sweeps}

    def _n_factors(self, ratings: Ratings) -> int:
        """Return the number of factors, by default from the size of the data."""
        if self.factors:
            return self.factors
        if self.nonnegative:
            return min(*ratings.shape, _TOPICS)
        features = ratings.user_features, ratings.item_features
        has_features = self.uses_features and any(f is not None for f in features)
        return default_factors(*ratings.shape, ratings.n_ratings, dual=not has_features)

    def _found_params(self) -> dict[str, Any]:
        """Return the penalties."""
        return Penalties(self.pair_weight, self.penalty)._asdict()

    def contributions(
        self,
        history: Histories,
        items: ArrayLike,
        fitted: Ratings | None = None,
    ) -> Explanation:
        """Return the scores of `items` as sums over the history, and over features, if known.

        The factors of an item are the sum of a part predicted by its features and a rest. The score
        by the first part is attributed to the features of the item, the score by the rest to the
        history and the features of the user.
        """
        columns, _ = self._checked_history(history, items)
        basis = self._source._basis
        parts = self._item_parts(columns, fitted)
        vectors = np.array([part.rest for part in parts], np.float32)
        user = self._user_equations(history)
        # One system gives the products of the user's terms with all items.
        products = self._products(history, user, vectors)
        item_features = user_features = None
        if any(len(part.indices) for part in parts):
            n_features = len(basis.item_weights)
            item_features = np.zeros((len(columns), n_features), np.float32)
            for sums, part in zip(item_features, parts, strict=True):
                sums[part.indices] = part.terms @ products.factors
        if history.features is not None and len(basis.user_weights):
            n_features = len(basis.user_weights)
            user_features = np.zeros((len(columns), n_features), np.float32)
            user_features[:, history.features.indices] = products.of_others[:, 1:]
        return Explanation(
            np.ascontiguousarray(products.of_others[:, 0]),
            products.of_entries,
            item_features,
            user_features,
        )

    def _item_parts(self, items: Indices, fitted: Ratings | None) -> list[ItemPart]:
        """Return the parts of the factors of items that are due to features, and the rest."""
        features = None if fitted is None else fitted.item_features
        solved = partial(self._solved_parts, fitted=fitted)
        return kept_parts(self._source, self.item_factors, features, items, solved)

    def _solved_parts(
        self, items: Indices, fitted: Ratings | None
    ) -> Iterator[ItemPart]:
        basis = self._source._basis
        # Items without interactions are not among those of the equations.
        vectors = self.item_factors[items] @ basis.axes
        features = None
        if fitted is not None and len(basis.item_weights):
            features = csr_rows(fitted.item_features, items)
        if fitted is None or features is None:
            none = np.zeros(0, np.int32)
            for vector in vectors:
                yield ItemPart(vector, none, basis.item_weights[none])
            return
        shares = self._feature_shares(items, fitted)
        rows = zip(vectors, shares, rows_of(features), strict=True)
        for vector, share, (indices, values) in rows:
            predictions = basis.item_weights[indices] * values[:, None]
            terms = (predictions * share) @ basis.turn
            yield ItemPart(vector - terms.sum(axis=0), indices, terms)

    def _user_equations(self, history: Histories) -> UserEquations:
        """Return the normal equations of the factors of a user."""
        basis = self._source._basis
        rated = basis.items[history.indices]
        relative = history.values / np.float32(self.unit)
        weights = np.maximum(relative, 0).astype(np.float64)
        zeros = np.zeros((0, rated.shape[1]), np.float32)
        confidence = np.zeros(0)
        if history.zeros is not None:
            confidence = history.zeros.data.astype(np.float64) / self.unit
            roots = np.sqrt(confidence).astype(np.float32)
            zeros = basis.items[history.zeros.indices] * roots[:, None]
        penalty = 1.0  # without a history, the factors are the prediction
        if len(rated):
            total = weights.sum() + confidence.sum()
            total += self.pair_weight * self._source._pairs("item")[2]
            penalty = self.penalty * total**self.count_power
        predicted = np.zeros((0, rated.shape[1]))
        if history.features is not None and len(basis.user_weights):
            coefficients = basis.user_weights[history.features.indices]
            predicted = penalty * coefficients * history.features.data[:, None]
        mean = penalty * basis.mean
        return UserEquations(rated, weights, penalty, mean, predicted, zeros)

    def _products(
        self,
        history: Histories,
        user: UserEquations,
        vectors: Floats,
    ) -> Products:
        """Return products with the solutions of a user's normal equations for `vectors`."""
        others = np.vstack([user.mean, user.predicted]).astype(np.float32)
        diagonal = self.pair_weight * self._source._basis.eigenvalues + user.penalty
        # Targets of 0 add to the system, and not to the right-hand sides.
        roots = np.sqrt(user.weights).astype(np.float32)
        rows = np.vstack([user.rated * roots[:, None], user.zeros])
        if len(user.rated) > 0 and len(rows) < _SHORT_HISTORY and not self.nonnegative:
            return _dual_products(rows, diagonal, roots, vectors, user.right, others)
        right = np.vstack([vectors, user.right])
        if not len(user.rated):
            solutions = right
        elif self.nonnegative:
            solutions = self._nonnegative_solutions(history, user, rows, right)
        else:
            solutions = _solutions(rows, diagonal, right)
        of_items = solutions[:-1]
        weights = user.weights.astype(np.float32)
        return Products(
            of_items @ user.rated.T * weights, of_items @ others.T, solutions[-1]
        )

    def _nonnegative_solutions(
        self,
        history: Histories,
        user: UserEquations,
        rows: Floats,
        right: Floats,
    ) -> Floats:
        """Return the solutions for factors without eigenvectors, of which zeros stay zero."""
        factors = self._source._solved("user", history)["user_factors"]
        support = np.flatnonzero(factors[0] > 0)
        _, gram, _ = self._source._pairs("item")
        system = self.pair_weight * gram + user.penalty * np.eye(len(gram))
        exact_rows = rows.astype(np.float64)
        system += exact_rows.T @ exact_rows
        solutions = np.zeros_like(right)
        solutions[:, support] = kernels.solve_positive(
            system[np.ix_(support, support)], right[:, support].astype(np.float64)
        )
        return solutions

    def _feature_shares(self, items: Indices, fitted: Ratings) -> Floats:
        """Return the shares of predictions by features in the factors of items.

        The exact part of a prediction needs the solution of a system for each item. With the second
        moment of an average user in place of the item's own, all systems have the same
        eigenvectors, and the shares are numbers along these: 1 without interactions, and little
        with many.
        """
        _, _, n_users = self._source._pairs("user")
        counts, sums_of_values = self._item_totals(fitted)
        sums = sums_of_values[items, None] / self.unit
        total = sums + self.pair_weight * n_users
        penalty = self.penalty * total**self.count_power
        data = self.pair_weight + sums / max(n_users, 1)
        eigenvalues = self._source._basis.user_eigenvalues
        shares = penalty / (penalty + data * eigenvalues)
        # Without interactions, the factors are the prediction.
        shares[counts[items] == 0] = 1
        return shares.astype(np.float32)

    @property
    def _basis(self) -> Basis:
        """The factors along eigenvectors; cached."""
        gram = self._pairs("item")[1]
        cached = vars(self).get("_cached_basis")
        if cached is not None and cached[0] is gram:
            basis: Basis = cached[1]
            return basis
        factors = self._pairs("item")[0]
        k = factors.shape[1]
        values, axes = np.linalg.eigh(gram)
        user_values, user_axes = np.zeros(k), np.eye(k)
        mean = np.zeros(k)
        user_weights = item_weights = np.zeros((0, k))
        if self.nonnegative:
            axes = np.eye(k)
        of_users = self._axis_features("user")
        if of_users is not None:
            mean = of_users.mean @ axes
            user_weights = of_users.weights @ axes
        of_items = self._axis_features("item")
        if of_items is not None:
            user_values, user_axes = np.linalg.eigh(self._pairs("user")[1])
            item_weights = of_items.weights @ user_axes
        basis = Basis(
            np.maximum(values, 0),
            axes,
            factors @ axes.astype(np.float32),
            mean,
            user_weights,
            np.maximum(user_values, 0),
            item_weights.astype(np.float32),
            (user_axes.T @ axes).astype(np.float32),
        )
        vars(self)["_cached_basis"] = gram, basis
        return basis

    def _axis_features(self, side: str) -> AxisFeaturePrior | None:
        axis: AxisFeaturePrior | None = self._features_of(side)
        return axis

    def comparable(self, side: str) -> tuple[Floats, Floats]:
        """Return centred factors of `side`, and the reliability of their features."""
        axis = self._axis_features(side)
        assert axis is not None
        return self._vectors_of(side)[0] - axis.centre, axis.reliability

    def widened(
        self,
        side: str,
        order: Indices,
        features: GroupedFeatures,
    ) -> Self:
        """Return the model with additional items (or users) without ratings, sorted by `order`."""
        return widened(self, side, order, features)

    def known(self, side: str) -> Mask:
        """Return which rows of `side` have ratings; all rows if there are no features."""
        axis = self._axis_features(side)
        if axis is None:
            return np.ones(len(self._vectors_of(side)[1]), np.bool_)
        is_known: Mask = axis.has_ratings > 0
        return is_known

    def _solved(self, side: str, histories: Histories) -> dict[str, Any]:
        factors_of_others, gram, n_known = self._pairs(OTHER[side])
        n_others = len(factors_of_others)
        weights = self._weights(histories, n_others)
        zeros = self._zeros(histories, n_others)
        if zeros is not None:
            weights = (weights + zeros).tocsr()
        axis = self._axis_features(side)
        predicted = None
        if axis is not None:
            predicted = axis.prior.vectors(histories.features, histories.n_rows)
        factors = solve_interactions(
            kernels.csr_arrays(weights),
            factors_of_others,
            points=predicted,
            zeros=None if zeros is None else kernels.csr_arrays(zeros),
            whole=(gram, n_known),
            **self._options(),
        )
        changes: dict[str, Any] = {f"{side}_bias": np.zeros(len(factors), np.float32)}
        if axis is not None and predicted is not None and self.features is not None:
            is_rated = (histories.counts > 0)[:, None]
            factors = np.where(is_rated, factors, predicted)
            of_rows = axis.of_rows(predicted, histories.counts)
            changes["features"] = self.features.with_side(side, of_rows)
        return changes | {f"{side}_factors": factors}

    def _pairs(self, side: str) -> tuple[Floats, Doubles, int]:
        """Return the factors (zero for unknown rows), their Gram matrix, the number of known rows.

        The result is cached, and shared by all rows that are folded in.
        """
        factors, _ = self._vectors_of(side)
        cache: dict[str, Any] = vars(self).setdefault("_pairs_of", {})
        if side not in cache or cache[side][0] is not factors:
            is_known = self.known(side)
            used = factors if is_known.all() else factors * is_known[:, None]
            gram = kernels.coefficients(used, used, threads=self.threads)
            n_known = int(np.count_nonzero(is_known))
            cache[side] = factors, (used, gram.astype(np.float64), n_known)
        pairs: tuple[Floats, Doubles, int] = cache[side][1]
        return pairs

    def _weights(self, histories: Histories, n_columns: int) -> csr_array[np.float32]:
        """Return the weights of interactions, 0 for negative ratings."""
        weights = weighted_matrix(histories, n_columns, self.unit)
        np.maximum(weights.data, 0, out=weights.data)
        return weights

    def _zeros(
        self, histories: Histories, n_columns: int
    ) -> csr_array[np.float32] | None:
        """Return the weights of dislikes and impressions, None if there are none."""
        zeros = histories.zeros
        if zeros is None or not len(zeros.indices):
            return None
        unweighted = Histories(zeros.indptr, zeros.indices, zeros.data)
        return weighted_matrix(unweighted, n_columns, self.unit)

    def _options(self, penalties: Penalties | None = None) -> dict[str, Any]:
        """Return the keyword arguments that fits and fold-ins share."""
        penalties = penalties or Penalties(self.pair_weight, self.penalty)
        return {
            **penalties._asdict(),
            "count_power": self.count_power,
            "nonnegative": self.nonnegative,
            "threads": self.threads,
        }

    def chosen_penalties(
        self,
        weights: csr_array[np.float32],
        given: Penalties,
        n_rows: int | None = None,
        deadline: float = math.inf,
    ) -> Penalties:
        """Return the penalties; where `given` has 0, search for the highest held-out NDCG.

        The rows of `weights` may be a sample of `n_rows` rows. After the deadline, the search
        ends with the best penalties so far.
        """
        if all(given):
            return given
        n, m = n_rows or weights.shape[0], weights.shape[1]
        density = weights.nnz / math.prod(weights.shape)

        def penalties_at(point: GridPoint) -> Penalties:
            weight = given.unobserved_weight or _FIRST_WEIGHT * _STEP ** point[0]
            # A step of the weight alone leaves the mean penalties of users and items unchanged.
            mean = _FIRST_PENALTY * _STEP ** point[1] / math.sqrt(n * m)
            return Penalties(weight, given.regularization or mean / (density + weight))

        steps: list[GridPoint] = []
        if not given.regularization:
            steps += [(0, 1), (0, -1)]
        if not given.unobserved_weight:
            steps += [(1, 0), (-1, 0)]
        usual = _TOPICS if self.nonnegative else _MORE_FACTORS
        most_factors = min(self.factors or usual, _MORE_FACTORS, n, m)
        n_factors = min(_FACTORS, most_factors)

        def height(point: GridPoint) -> float:
            # Once for hundreds of sweeps, each of which would spend a quarter of its time on it.
            with kernels.one_blas_thread():
                return self._trial_ndcg(folds, penalties_at(point), n_factors)

        folds = self._trial_folds(weights, FIRST_INTERACTIONS)
        best = (0, 0)
        heights: dict[GridPoint, float] = {}
        for size in (2, 1):
            wide_steps = [(size * i, size * j) for i, j in steps]
            best = _climbed(best, wide_steps, height, heights, deadline)
        if n_factors < most_factors and not given.regularization:
            # More factors may need a larger penalty or, with short histories, a smaller one.
            n_factors = most_factors
            if weights.nnz > FIRST_INTERACTIONS:
                folds = self._trial_folds(weights, INTERACTIONS)
            best = _climbed(best, steps[:2], height, {}, deadline)
        return penalties_at(best)

    def _trial_folds(self, weights: csr_array[np.float32], most: int) -> list[Fold]:
        """Hold out a fifth of `most` interactions; for small data, several fifths in turn."""
        from scipy.sparse import csr_array

        generator = np.random.default_rng(self.random_state)
        users = sampled_rows(np.diff(weights.indptr), most, generator)
        sample = weights[users].tocoo()
        fold_of = generator.integers(FOLDS, size=sample.nnz)
        n_folds = min(FOLDS, 1 + REPEATED // max(sample.nnz, 1))

        def part(is_chosen: Mask) -> csr_array[np.float32]:
            rows, columns = sample.coords
            coords = rows[is_chosen], columns[is_chosen]
            return csr_array((sample.data[is_chosen], coords), shape=sample.shape)

        folds = [(part(fold_of != n), part(fold_of == n)) for n in range(n_folds)]
        return [(train, test) for train, test in folds if train.nnz and test.nnz]

    def _trial_ndcg(
        self,
        folds: list[Fold],
        penalties: Penalties,
        factors: int,
    ) -> float:
        """Return the NDCG@20 of short fits, summed over folds and averaged over users."""
        total = 0.0
        for train, test in folds:
            sweeps = implicit_sweeps(
                train,
                factors,
                random_state=self.random_state,
                **self._options(penalties),
            )
            *_, last = islice(sweeps, _SWEEPS)
            n_users, n_items = train.shape
            n_relevant = np.diff(test.indptr)
            users = np.flatnonzero(n_relevant)
            step = max(1, -(-len(users) // _JUDGES))
            users = users[::step].copy()  # contiguous, for the kernels
            user_hashes = mixed(np.arange(n_users, dtype=np.uint64))
            item_hashes = mixed(np.arange(n_items, dtype=np.uint64))
            top = top_k(
                last.row_factors[users],
                last.column_factors,
                max(1, min(_TOP, n_items // 5)),  # shorter lists for small catalogues
                seen=kernels.Seen(users, *kernels.csr_arrays(train)[:2]),
                ties=Ties(item_hashes, mixed(user_hashes[users])),
            )
            rows, columns = test.tocoo().coords
            keys = rows.astype(np.int64) * n_items + columns
            listed = users[:, None] * n_items + top.items
            hits = positions_of(listed, np.sort(keys)) >= 0
            hits &= top.items >= 0
            total += float(np.sum(ndcg(hits, n_relevant[users]))) / max(len(users), 1)
        return total


def default_factors(
    n_users: int,
    n_items: int,
    n_interactions: int,
    *,
    dual: bool = False,
) -> int:
    """Return the number of factors for data of this size.

    Many users and items need many factors. They take little time with short histories if these are
    solved in the `dual` form, with one equation per interaction.

    Examples
    --------
    >>> default_factors(610, 9724, 100_000), default_factors(162541, 59047, 25_000_000)
    (256, 128)
    >>> default_factors(29858, 40981, 810_128, dual=True)
    512
    """
    rows, k = min(n_users, n_items), 256
    if n_interactions > _MANY_INTERACTIONS:
        k = 128
    elif dual and rows >= _MANY_ROWS and n_interactions <= _SHORT * rows:
        k = 512
    return min(rows, k)


def _climbed(
    start: GridPoint,
    steps: list[GridPoint],
    height: Callable[[GridPoint], float],
    heights: dict[GridPoint, float],
    deadline: float,
) -> GridPoint:
    """Return a local maximum of `height` by hill climbing; `heights` caches the values.

    After the deadline, it is the best point so far.
    """
    point = start
    while time.perf_counter() < deadline:
        neighbors = [(point[0] + i, point[1] + j) for i, j in steps]
        for neighbor in (point, *neighbors):
            if neighbor not in heights and time.perf_counter() < deadline:
                heights[neighbor] = height(neighbor)
        highest = max(heights, key=heights.__getitem__, default=point)
        if highest == point or len(heights) > _TRIALS:
            return highest
        point = highest
    return point


def _dual_products(
    rows: Floats,
    diagonal: Doubles,
    roots: Floats,
    vectors: Floats,
    right: Floats,
    others: Floats,
) -> Products:
    """Return the products with one equation for each interaction, by Woodbury's identity.

    The first `rows` belong to the interactions, and are scaled by the `roots` of their weights.
    """
    scale = (1 / np.sqrt(diagonal)).astype(np.float32)
    K = rows * scale
    scaled = np.vstack([vectors, right]) * scale
    system = K @ K.T
    system.flat[:: len(system) + 1] += 1
    # (I + K'K)^-1 = I - K'(I + KK')^-1 K, and K(I + K'K)^-1 = (I + KK')^-1 K.
    solutions = kernels.solve_positive(system, scaled @ K.T)
    of_items = solutions[:-1]
    scaled_others = others * scale
    of_others = scaled[:-1] @ scaled_others.T - of_items @ (K @ scaled_others.T)
    factors = (scaled[-1] - solutions[-1] @ K) * scale
    return Products(of_items[:, : len(roots)] * roots, of_others, factors)


def _solutions(rows: Floats, diagonal: Doubles, right: Floats) -> Floats:
    """Solve ``(rows.T @ rows + diag(diagonal)) x = b`` for each row b of `right`.

    Conjugate gradients need few iterations, because the system is nearly diagonal along the
    eigenvectors of the Gram matrix of all items.
    """
    squares = np.einsum("ij,ij->j", rows, rows)
    scale = (1 / np.sqrt(diagonal + squares)).astype(np.float32)
    K = rows * scale
    scaled_diagonal = (diagonal * scale.astype(np.float64) ** 2).astype(np.float32)
    residuals = right * scale
    solutions = np.zeros_like(residuals)
    directions = residuals.copy()
    lengths = np.einsum("ij,ij->i", residuals, residuals)
    enough = lengths * _TOLERANCE**2
    for _ in range(_ITERATIONS):
        images = directions * scaled_diagonal + (directions @ K.T) @ K
        curvatures = np.einsum("ij,ij->i", directions, images)
        steps = lengths / np.maximum(curvatures, _TINY)
        solutions += steps[:, None] * directions
        residuals -= steps[:, None] * images
        new_lengths = np.einsum("ij,ij->i", residuals, residuals)
        if (new_lengths <= enough).all():
            return np.asarray(solutions * scale, np.float32)
        ratios = new_lengths / np.maximum(lengths, _TINY)
        directions = residuals + ratios[:, None] * directions
        lengths = new_lengths
    exact_rows = rows.astype(np.float64)
    system = exact_rows.T @ exact_rows
    system.flat[:: len(system) + 1] += diagonal
    exact = kernels.solve_positive(system, right.astype(np.float64))
    return np.asarray(exact, np.float32)

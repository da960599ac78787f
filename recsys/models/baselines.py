"""Baseline models: biases, popularity, clusters of items, random scores."""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

import lowrank
from lowrank import kernels
from lowrank.kernels.topk import mixed
from recsys.errors import DataError
from recsys.models.base import (
    FactorModel,
    FoldingModel,
    Model,
    Progress,
    RatingModel,
    check_indices,
    validation_rmse,
)
from recsys.models.factor_form import FactorForm
from recsys.models.habits import habit_parameter, habits, own_items
from recsys.models.histories import Explanation, Histories
from recsys.models.parameters import fitted, model, parameter, random_state_parameter
from recsys.models.parts import OTHER, Array, Doubles, Floats, Indices, Ints, Longs
from recsys.saving.arrays import DamageError, check_rows

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from recsys.data.ratings import Ratings

_RANK = 16  # number of singular vectors for clustering items
# ratings summed at a time, for temporary arrays of a few tens of megabytes
_BLOCK = 2**20


def damping_parameter(side: str) -> Any:
    """Declare the damping of the biases of users (or items)."""
    return parameter(
        5.0,
        f"Ridge penalty of {side} biases, in ratings.",
        low=0.1,
        high=100.0,
        log=True,
        minimum=0,
    )


@model
class Bias(RatingModel, FoldingModel):
    """Predict a rating as ``mu + b_u + c_i``: global mean, user bias and item bias.

    ``mu`` is the mean of the ratings; the biases minimise ::

        sum (x_ui - mu - b_u - c_i)^2 + user_damping sum b_u^2 + item_damping sum c_i^2

    by alternating exact solutions. The damping keeps users with few ratings close to the mean.

    References
    ----------
    Koren (2010), "Factor in the neighbors: scalable and accurate collaborative filtering",
    section 2.1.
    """

    name = "bias"
    summary = "The baseline of rating prediction."

    user_damping: float = damping_parameter("user")
    item_damping: float = damping_parameter("item")
    iterations: int = parameter(50, "Maximum number of sweeps (items, then users).")
    tol: float = parameter(
        1e-4,
        "Stop when no bias changes by more than this fraction of the ratings' standard deviation.",
        minimum=0,
    )

    global_mean: float = fitted()
    user_bias: Floats = fitted("n_users")
    item_bias: Floats = fitted("n_items")

    def _fit(self, ratings: Ratings, progress: Progress) -> None:
        rows, columns = ratings.user_index_of_nonzeros(), ratings.indices
        user_counts, item_counts = ratings.counts("user"), ratings.counts("item")
        n_users, n_items = ratings.shape
        mean, deviation = ratings.mean_and_std()
        user_sums = _sums(rows, ratings.values, n_users) - user_counts * mean
        item_sums = _sums(columns, ratings.values, n_items) - item_counts * mean
        user_bias = np.zeros(n_users)
        item_bias = np.zeros(n_items)
        for step in range(1, self.iterations + 1):
            before = user_bias, item_bias
            of_users = _sums(columns, user_bias, n_items, of=rows)
            item_bias = _shrunken(item_sums - of_users, item_counts, self.item_damping)
            of_items = _sums(rows, item_bias, n_users, of=columns)
            user_bias = _shrunken(user_sums - of_items, user_counts, self.user_damping)
            self.global_mean = mean
            self.user_bias = user_bias.astype(np.float32)
            self.item_bias = item_bias.astype(np.float32)
            if progress.on_step is not None:
                # Compute the squared error without a pass over the ratings. With X_u and X_i the
                # sums of x - mu, and s_u the sum of c_i over the items of user u, it is
                # sum (x - mu)^2 + sum n_u b_u^2 + sum n_i c_i^2
                #     - 2 (sum b_u (X_u - s_u) + sum c_i X_i)
                cross = user_bias @ (user_sums - of_items) + item_bias @ item_sums
                squares = user_counts @ user_bias**2 + item_counts @ item_bias**2
                error = float(deviation**2 * ratings.n_ratings + squares - 2 * cross)
                penalty = self.user_damping * (user_bias @ user_bias)
                penalty += self.item_damping * (item_bias @ item_bias)
                rmse = math.sqrt(max(error, 0) / ratings.n_ratings)
                objective = error + float(penalty)
                progress.report(self, step, self.iterations, objective, rmse)
            change = max(
                np.abs(new - old).max(initial=0)
                for new, old in zip((user_bias, item_bias), before, strict=True)
            )
            if change <= self.tol * deviation:
                break

    def residuals(self, ratings: Ratings) -> csr_array[np.float32]:
        """Return ratings minus their predictions, shape (n_users, n_items)."""
        from scipy.sparse import csr_array

        predicted = self.predict(ratings.user_index_of_nonzeros(), ratings.indices)
        entries = ratings.values - predicted, ratings.indices, ratings.indptr
        return csr_array(entries, shape=ratings.shape)

    def contributions(
        self,
        history: Histories,
        items: ArrayLike,
        fitted: Ratings | None = None,
    ) -> Explanation:
        """Return the scores of `items` as sums; ratings contribute by the user's bias."""
        columns, rated = self._checked_history(history, items)
        mean = np.float32(self.global_mean)
        residuals = history.values - mean - self.item_bias[rated]
        # b_u = sum (x - mu - c_i) / (n + damping): each rating has an equal share.
        terms = residuals / np.float32(max(1, len(residuals)) + self.user_damping)
        base = self.item_bias[columns] + mean
        return self._explanation(
            base,
            np.tile(terms, (len(columns), 1)),
            columns,
        )

    @property
    def n_users(self) -> int:
        """Number of users of the training ratings."""
        return len(self.user_bias)

    @property
    def n_items(self) -> int:
        """Number of items of the training ratings."""
        return len(self.item_bias)

    def predict(self, users: ArrayLike, items: ArrayLike) -> Floats:
        """Predict the ratings of pairs, shape (n_pairs,); independent of the other pairs."""
        u, i = self._checked_pairs(users, items)
        return self.user_bias[u] + self.global_mean + self.item_bias[i]

    def _factor_form(self, users: ArrayLike) -> FactorForm:
        """Return predictions with `_list_bias`."""
        offset = self.user_bias[check_indices(users, self.n_users, "user")]
        return FactorForm.of_biases(self._list_bias, offset + self.global_mean)

    def _solved(self, side: str, histories: Histories) -> dict[str, Any]:
        other_bias, damping = self.item_bias, self.user_damping
        if side == "item":
            other_bias, damping = self.user_bias, self.item_damping
        _, bias = damped_biases(
            histories,
            self.global_mean,
            other_bias,
            damping,
        )
        return {f"{side}_bias": bias.astype(np.float32)}


@model
class Popular(Model):
    """Rank items by their number of ratings, or total weight of interactions, for all users.

    A predicted rating is the mean rating of the item, shrunk towards the global mean:
    ``(sum of ratings + damping * mu) / (number of ratings + damping)``. For implicit feedback,
    predictions are the number or total weight of interactions.

    With dislikes or impressions, the score of an item is its weight per exposure: ``(weight +
    damping * mu) / (number of pairs + damping)``, over pairs with an interaction, a dislike or an
    impression, with the same ratio mu of all items. Items without interactions have the score 0.

    With `habit`, the score of an item is ``habit * own + (1 - habit) * mean``: `own` is the
    share of the user's baskets that have the item, late ones counting more (see
    `recsys.models.habits`), and `mean` the mean of these shares over all users.
    """

    name = "popular"
    summary = (
        "The baseline of top-N recommendation, and the fallback for unknown users."
    )

    uses_zeros = True

    damping: float = parameter(
        10.0,
        "Ratings (or exposures) at the global mean added to each item.",
        low=0.1,
        high=1e3,
        log=True,
        minimum=0,
    )
    habit: float = habit_parameter()
    n_users: int = fitted()
    counts_only: bool = fitted()
    global_mean: float = fitted()
    item_counts: Floats = fitted("n_items")
    item_means: Floats = fitted("n_items")
    item_habits: Floats = fitted("n_items", when="habit")
    habit_indptr: Longs = fitted("n_users + 1", when="habit")
    habit_items: Ints = fitted("n_habits", when="habit")
    habit_values: Floats = fitted("n_habits", when="habit")

    def _check_arrays(self) -> None:
        if self.habit:
            check_rows("habit", self.habit_indptr, self.habit_items, self.n_items)
            if len(self.habit_indptr) != self.n_users + 1:
                raise DamageError("habit_indptr is not of the users")

    @property
    def n_items(self) -> int:
        """Number of items of the training ratings."""
        return len(self.item_counts)

    def _fit(self, ratings: Ratings, progress: Progress) -> None:
        """Count the ratings of each item and average them."""
        self.n_users, self.counts_only = ratings.n_users, ratings.implicit
        self.global_mean = 0.0 if ratings.implicit else ratings.mean_and_std()[0]
        counts = ratings.counts("item")
        sums = _sums(
            ratings.indices,
            ratings.values,
            ratings.n_items,
        )
        zeros = ratings.zeros
        n_against = None
        if zeros is not None and ratings.implicit:
            n_against = np.bincount(zeros.indices, minlength=ratings.n_items)
            n_pairs = ratings.nnz + len(zeros.indices)
            self.global_mean = float(sums.sum()) / max(1, n_pairs)
        vars(self).update(self._counted(counts, sums, n_against))
        if self.habit:
            of_users = self._habits(Histories.of(ratings))
            vars(self).update(of_users)
            totals = np.bincount(
                self.habit_items, self.habit_values, minlength=ratings.n_items
            )
            self.item_habits = (totals / max(1, self.n_users)).astype(np.float32)

    def _habits(self, histories: Histories) -> dict[str, Any]:
        """Return the arrays of the habits of users."""
        return {
            "habit_indptr": histories.indptr,
            "habit_items": histories.indices,
            "habit_values": habits(histories, weighted=self.counts_only),
        }

    def with_users(self, histories: Histories) -> Self:
        """Return the model with these users, whose scores differ by their habits only."""
        of_users = self._habits(histories) if self.habit else {}
        return self._with(n_users=histories.n_rows, **of_users)

    def with_items(self, histories: Histories) -> Self:
        """Return the model with these items, their counts and damped means.

        Raises
        ------
        DataError
            If habits are a part of the scores.
        """
        if self.habit:
            raise DataError("New items have no habits; fit the model again.")
        sums = _sums(
            histories.rows,
            histories.values,
            histories.n_rows,
        )
        zeros = histories.zeros
        n_against = None if zeros is None else np.diff(zeros.indptr)
        return self._with(**self._counted(histories.counts, sums, n_against))

    def contributions(
        self,
        history: Histories,
        items: ArrayLike,
        fitted: Ratings | None = None,
    ) -> Explanation:
        """Return the popularity of each item as base; the history contributes habits only."""
        columns = check_indices(items, self.n_items, "item")
        if not self.habit:
            nothing = np.zeros((len(columns), len(history.indices)), dtype=np.float32)
            return Explanation(self.item_counts[columns], nothing)
        own = np.float32(self.habit) * habits(history, weighted=self.counts_only)
        is_own = columns[:, None] == history.indices
        return Explanation(self._shared[columns], np.where(is_own, own, np.float32(0)))

    @property
    def _shared(self) -> Floats:
        """The part of the scores that all users have."""
        if not self.habit:
            return self.item_counts
        return np.float32(1 - self.habit) * self.item_habits

    def _counted(
        self,
        n_ratings: Longs,
        sums: Doubles,
        n_against: Longs | None,
    ) -> dict[str, Floats]:
        """Return counts and means; for implicit feedback, both are sums of weights (or ones).

        With numbers of pairs against an item, they are weights per exposure.
        """
        counts: Array = sums
        if n_against is not None and self.counts_only:
            exposures = n_ratings + n_against + self.damping
            rates = (sums + self.damping * self.global_mean) / np.maximum(exposures, 1)
            counts = np.where(sums > 0, rates, 0)
            sums = counts
        means = sums
        if not self.counts_only:
            counts = n_ratings
            deviations = sums - counts * self.global_mean
            means = self.global_mean + _shrunken(
                deviations,
                counts,
                self.damping,
            )
        return {
            "item_counts": counts.astype(np.float32),
            "item_means": means.astype(np.float32),
        }

    def predict(self, users: ArrayLike, items: ArrayLike) -> Floats:
        """Return the damped mean rating of each pair's item, shape (n_pairs,)."""
        return self.item_means[self._checked_pairs(users, items)[1]]

    def _factor_form(self, users: ArrayLike) -> FactorForm:
        """Return the number of ratings of each item, or its mean habit with the user's own."""
        u = check_indices(users, self.n_users, "user")
        form = FactorForm.of_biases(self._shared, np.zeros(len(u), np.float32))
        if not self.habit:
            return form
        places, indptr = kernels.row_places(self.habit_indptr, u)
        own = np.float32(self.habit) * self.habit_values[places]
        history = kernels.CsrArrays(indptr, self.habit_items[places], own)
        sparse = kernels.SparsePart(history, own_items(self.n_items))
        return form._replace(sparse=sparse)


@model
class Random(Model):
    """Score pairs uniformly at random over the range of the training ratings.

    The score depends on the seed, the user and the item only.

    References
    ----------
    Steele, Lea and Flood (2014), "Fast splittable pseudorandom number generators" (SplitMix64).
    """

    name = "random"
    summary = "The lower bound that any model should exceed."
    predicts_ratings = False
    uses_weights = False

    random_state: int = random_state_parameter()
    n_users: int = fitted()
    n_items: int = fitted()
    low: float = fitted()
    high: float = fitted()

    def _fit(self, ratings: Ratings, progress: Progress) -> None:
        """Store the shape and the range of the ratings (0 to 1 for implicit feedback)."""
        self.n_users, self.n_items = ratings.n_users, ratings.n_items
        self.low, self.high = 0.0, 1.0
        if not ratings.implicit:
            self.low, self.high = ratings.grade_range()

    def predict(self, users: ArrayLike, items: ArrayLike) -> Floats:
        """Return scores of pairs, shape (n_pairs,)."""
        return self._scores(*self._checked_pairs(users, items))

    def scores(self, users: ArrayLike) -> Floats:
        """Return scores of all items for each user, shape (n_block, n_items)."""
        u = check_indices(users, self.n_users, "user")
        block = np.empty((len(u), self.n_items), dtype=np.float32)
        # Fill row by row, because the 64-bit states would take four times the size of the block.
        for row in range(len(u)):
            block[row] = self._scores(u[row : row + 1], np.arange(self.n_items))
        return block

    def _scores(self, users: Longs, items: Longs) -> Floats:
        # Hashes of the pair instead of a stream: a score depends on no other pair.
        seed = mixed(np.array([self.random_state], np.uint64))
        pair = mixed(users.astype(np.uint64) + seed)
        bits = mixed(pair + items.astype(np.uint64)) >> np.uint64(40)
        evenly = bits.astype(np.float32) * np.float32(2**-24)
        return np.float32(self.low) + np.float32(self.high - self.low) * evenly


@model
class Clusters(RatingModel, FoldingModel, FactorModel):
    """Predict a rating as ``mu + b_u + c_i + d_u,g(i)``, with a mean for each user and cluster.

    The biases are the same as in `Bias`. Items are clustered by k-means of their vectors in the
    truncated singular value decomposition of the residuals. ``d_ug`` is the mean of the residuals
    of the user's ratings in cluster g, shrunk towards 0.

    References
    ----------
    Sarwar, Karypis, Konstan and Riedl (2002), "Recommender systems for large-scale e-commerce:
    scalable neighborhood formation using clustering", with items instead of users.
    """

    name = "clusters"
    summary = "A baseline between biases and latent factors."

    clusters: int = parameter(
        40, "Number of clusters of items.", low=5, high=200, log=True
    )
    damping: float = parameter(
        15.0,
        "Ratings at 0 added to each cluster mean.",
        low=1.0,
        high=100.0,
        log=True,
        minimum=0,
    )
    random_state: int = random_state_parameter()

    def _fit(self, ratings: Ratings, progress: Progress) -> None:
        from sklearn.cluster import KMeans
        from sklearn.exceptions import ConvergenceWarning
        from threadpoolctl import threadpool_limits

        bias = Bias().fit(ratings)
        self.global_mean = bias.global_mean
        self.user_bias, self.item_bias = bias.user_bias, bias.item_bias
        # Items with the same taste of users have similar vectors of residuals.
        k, seed = min(_RANK, *ratings.shape), self.random_state
        _, s, Vt = lowrank.truncated_svd(
            bias.residuals(ratings),
            k,
            random_state=seed,
        )
        k_means = KMeans(
            min(self.clusters, ratings.n_items),
            n_init=1,
            random_state=seed % 2**32,  # which takes no larger seeds
        )
        # With several threads, the order of summation would be random.
        with threadpool_limits(limits=1), warnings.catch_warnings():
            # There may be fewer distinct vectors than clusters.
            warnings.simplefilter("ignore", ConvergenceWarning)
            labels = k_means.fit(Vt.T * s).labels_
        groups = np.unique(labels, return_inverse=True)[1]
        self.item_factors = np.eye(groups.max() + 1, dtype=np.float32)[groups]
        vars(self).update(self._solved("user", Histories.of(ratings)))
        if progress.on_step is not None:
            progress.report(
                self,
                1,
                1,
                None,
                validation_rmse(self, ratings),
            )

    def contributions(
        self,
        history: Histories,
        items: ArrayLike,
        fitted: Ratings | None = None,
    ) -> Explanation:
        """Return the scores of `items` as sums of shares in the user's bias and cluster means."""
        columns, rated = self._checked_history(history, items)
        deviations = (
            history.values - np.float64(self.global_mean) - self.item_bias[rated]
        )
        # A rating acts on the bias, and on the mean of its own cluster after the bias.
        shares = deviations / max(1.0, len(rated) + Bias.user_damping)
        same = self._group_of(columns)[:, None] == self._group_of(rated)
        counts = same.sum(axis=1)[:, None]
        divisors = np.maximum(counts + self.damping, 1e-300)
        terms = shares * (1 - counts / divisors) + same * deviations / divisors
        base = self.item_bias[columns] + np.float32(self.global_mean)
        return self._explanation(base, terms, columns)

    def _solved(self, side: str, histories: Histories) -> dict[str, Any]:
        """Return biases, with the cluster means of users, or the clusters of items.

        An item is assigned to the cluster whose means are nearest to its residuals; an item without
        ratings has no cluster.
        """
        n_groups = self.item_factors.shape[1]
        rows = histories.rows
        _, other_bias = self._vectors_of(OTHER[side])
        deviations, bias = damped_biases(
            histories, self.global_mean, other_bias, Bias.user_damping
        )
        residuals = (deviations - bias[rows]).astype(np.float32)
        bias = bias.astype(np.float32)
        if side == "user":
            cells = rows * n_groups + self._group_of(histories.indices)
            size = histories.n_rows * n_groups
            counts = np.bincount(cells, minlength=size) + self.damping
            sums = np.bincount(cells, residuals, minlength=size)
            means = np.divide(
                sums,
                counts,
                out=np.zeros(size),
                where=counts > 0,
            )
            means = means.reshape(-1, n_groups).astype(np.float32)
            return {"user_bias": bias, "user_factors": means}
        # sum (r - d_g)^2 is least where sum (2 r d_g - d_g^2) is largest.
        doubled = histories.csr._replace(data=2 * residuals)
        ones = histories.csr._replace(data=np.ones_like(residuals))
        gain = kernels.csr_matmat(doubled, self.user_factors)
        gain -= kernels.csr_matmat(ones, self.user_factors**2)
        groups = np.eye(n_groups, dtype=np.float32)[gain.argmax(axis=1)]
        # Zero factors: without ratings, only the bias predicts.
        groups[histories.counts == 0] = 0
        return {"item_bias": bias, "item_factors": groups}

    def _group_of(self, items: NDArray[np.integer]) -> Indices:
        groups: Indices = self.item_factors[items].argmax(axis=1)
        return groups


def _sums(
    indices: NDArray[np.integer[Any]],
    values: Array,
    n: int,
    of: NDArray[np.integer[Any]] | None = None,
) -> Doubles:
    """Sum `values` (or ``values[of]``) by user or item, in blocks that take little memory."""
    total = np.zeros(n)
    for block in kernels.pieces(len(indices), _BLOCK):
        weights = values[block] if of is None else values[of[block]]
        total += np.bincount(
            indices[block],
            weights,
            minlength=n,
        )
    return total


def _shrunken(
    sums: Doubles,
    counts: Longs,
    damping: float,
) -> Doubles:
    """Divide by count plus damping; the result is zero where both are zero."""
    divisor = counts + damping
    shrunken: Doubles = np.divide(
        sums, divisor, out=np.zeros_like(sums), where=divisor > 0
    )
    return shrunken


def damped_biases(
    histories: Histories,
    mean: float,
    other_bias: Floats,
    damping: float,
) -> tuple[Doubles, Doubles]:
    """Return ratings minus `mean` and `other_bias`, and the biases of the rows.

    `other_bias` are item biases in histories of users, and user biases in histories of items.
    """
    residuals = histories.values - np.float64(mean) - other_bias[histories.indices]
    sums = np.bincount(
        histories.rows,
        residuals,
        minlength=histories.n_rows,
    )
    return residuals, _shrunken(
        sums.astype(float),
        histories.counts,
        damping,
    )

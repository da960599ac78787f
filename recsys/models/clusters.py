"""Clusters of items: a baseline between biases and latent factors."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

import lowrank
from lowrank import kernels
from recsys.models.base import (
    FactorModel,
    Floats,
    FoldingModel,
    Indices,
    OnStep,
    Step,
    check_indices,
    model,
    validation_rmse,
)
from recsys.models.baselines import Bias
from recsys.models.histories import Explanation, Histories
from recsys.models.parameters import parameter, random_state_parameter

if TYPE_CHECKING:
    from recsys.data.ratings import Ratings

_RANK = 16  # singular vectors by which items are clustered


@model
class Clusters(FoldingModel, FactorModel):
    """Predict a rating as ``mu + b_u + c_i + d_u,g(i)``: biases, and the user's mean of a cluster.

    The biases are those of the model bias. Items are clustered by k-means of their vectors in the
    truncated singular value decomposition of the residuals. ``d_ug`` is the mean of the residuals
    of the user's ratings in cluster g, shrunk towards 0.

    References
    ----------
    Sarwar, Karypis, Konstan and Riedl (2002), "Recommender systems for large-scale e-commerce:
    scalable neighborhood formation using clustering", with items instead of users.
    """

    name = "clusters"
    summary = "A baseline between biases and latent factors."

    clusters: int = parameter(40, "Number of clusters of items.", low=5, high=200, log=True)
    damping: float = parameter(
        15.0, "Ratings at 0 added to each cluster mean.", low=1.0, high=100.0, log=True, minimum=0
    )
    random_state: int = random_state_parameter()

    def _fit(self, ratings: Ratings, on_step: OnStep, validation: Ratings | None) -> None:
        from sklearn.cluster import KMeans
        from sklearn.exceptions import ConvergenceWarning
        from threadpoolctl import threadpool_limits

        bias = Bias().fit(ratings)
        self.global_mean = bias.global_mean
        self.user_bias, self.item_bias = bias.user_bias, bias.item_bias
        k, seed = min(_RANK, *ratings.shape), self.random_state
        _, s, Vt = lowrank.truncated_svd(bias.residuals(ratings), k, random_state=seed)
        k_means = KMeans(min(self.clusters, ratings.n_items), n_init=1, random_state=seed)
        # One thread, since with more the order of summing is random.
        with threadpool_limits(limits=1), warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # of fewer different vectors
            labels = k_means.fit(Vt.T * s).labels_
        groups = np.unique(labels, return_inverse=True)[1]
        self.item_factors = np.eye(groups.max() + 1, dtype=np.float32)[groups]
        vars(self).update(self._solved(Histories.of(ratings), of_users=True))
        if on_step is not None:
            on_step(Step(1, 1, None, *(validation_rmse(self, x) for x in (ratings, validation))))

    def contributions(self, history: Histories, items: ArrayLike) -> Explanation:
        """Return the scores of `items`: shares in the user's bias and in the cluster's mean."""
        columns = check_indices(items, self.n_items, "item")
        known = check_indices(history.indices, self.n_items, "item")
        deviations = history.values - np.float64(self.global_mean) - self.item_bias[known]
        shares = deviations / max(1.0, len(known) + Bias().user_damping)
        same = self._group_of(columns)[:, None] == self._group_of(known)
        counts = same.sum(axis=1)[:, None]
        divisors = np.maximum(counts + self.damping, 1e-300)
        terms = shares * (1 - counts / divisors) + same * deviations / divisors
        base = self.item_bias[columns] + np.float32(self.global_mean)
        return Explanation(base, terms.astype(np.float32))

    def _solved(self, histories: Histories, *, of_users: bool) -> dict[str, Floats]:
        """Return the biases of some users and their means of each cluster.

        Of items: the biases, and the clusters whose means have the smallest squared distance from
        the residuals of the item; an item without ratings is in none.
        """
        names = ("global_mean", "user_bias", "item_bias")
        bias = Bias._from_arrays({}, {name: np.asarray(getattr(self, name)) for name in names})
        rows, n_groups = histories.rows, self.item_factors.shape[1]
        if of_users:
            bias = bias.with_users(histories)
            residuals = histories.values - bias.predict(rows, histories.indices)
            cells = rows * n_groups + self._group_of(histories.indices)
            size = histories.n_rows * n_groups
            counts = np.bincount(cells, minlength=size) + self.damping
            sums = np.bincount(cells, residuals, minlength=size)
            means = np.divide(sums, counts, out=np.zeros(size), where=counts > 0)
            means = means.reshape(-1, n_groups).astype(np.float32)
            return {"user_bias": bias.user_bias, "user_factors": means}
        bias = bias.with_items(histories)
        residuals = histories.values - bias.predict(histories.indices, rows)
        gain = kernels.csr_matmat(histories.csr._replace(data=2 * residuals), self.user_factors)
        ones = histories.csr._replace(data=np.ones_like(residuals))
        gain -= kernels.csr_matmat(ones, self.user_factors**2)
        groups = np.eye(n_groups, dtype=np.float32)[gain.argmax(axis=1)]
        groups[histories.counts == 0] = 0
        return {"item_bias": bias.item_bias, "item_factors": groups}

    def _group_of(self, items: NDArray[np.integer]) -> Indices:
        groups: Indices = self.item_factors.argmax(axis=1)[items]
        return groups

"""Alternating least squares: a matrix factorization of the observed ratings, with biases."""

from __future__ import annotations

import copy
import math
from collections.abc import Generator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lowrank.completion import linked_als, links
from lowrank.completion.als import AlsSweep, als_sweeps, solve_rows
from lowrank.completion.cold import mean_covariance
from lowrank.kernels import CsrArrays, Stored, at_most
from recsys.models.base import Floats, OnStep, Step, ValidationWatch, validation_rmse
from recsys.models.content import ContentModel
from recsys.models.histories import Histories
from recsys.models.parameters import (
    breakdown,
    fitted,
    model,
    parameter,
    random_state_parameter,
    threads_parameter,
)
from recsys.models.priors import csr_rows

if TYPE_CHECKING:
    from recsys.data.ratings import Ratings


_PRIOR_ARRAYS = {
    f"{side}_{name}"
    for side in ("user", "item")
    for name in ("prior_mean", "link", "feature_weights")
}


@model
class ALS(ContentModel):
    """Predict a rating as ``mu + b_u + c_i + a_u . m_i``, fitted by alternating least squares.

    The ridge penalty of a user or item with n ratings is ``regularization * n**count_power``, for
    ratings scaled to standard deviation 1. With features of items or users (`with_features`), the
    vectors are shrunk towards a prediction from the features instead of zero.

    References
    ----------
    Zhou, Wilkinson, Schreiber and Pan (2008), "Large-scale parallel collaborative filtering for
    the Netflix prize", section 3. Koren, Bell and Volinsky (2009), "Matrix factorization
    techniques for recommender systems".
    """

    name = "als"
    summary = "Ratings of many users and items: accurate, fast, any number of threads."
    _scores_between_sweeps = True

    factors: int = parameter(32, "Number of latent factors.", low=4, high=128, log=True)
    regularization: float = parameter(
        1.3,
        "Ridge penalty, for ratings of standard deviation 1.",
        low=0.1,
        high=10.0,
        log=True,
    )
    count_power: float = parameter(
        0.5,
        "Power of the number of ratings in the penalty: 0 is plain ridge.",
        low=0.0,
        high=1.0,
    )
    linked: bool = parameter(
        False, "Learn also from which items a user rated: slower, more accurate."
    )
    link_penalty: float = parameter(
        10.0, "Ridge penalty on the implicit-feedback (who rated what) term."
    )
    iterations: int = parameter(20, "Maximum number of sweeps (users, then items).")
    tol: float = parameter(
        1e-4,
        "Stop when a sweep lowers the objective by less than this fraction of it.",
        minimum=0,
    )
    random_state: int = random_state_parameter()
    threads: int | None = threads_parameter()

    user_prior_mean: Floats = fitted("d", group="priors")
    item_prior_mean: Floats = fitted("d", group="priors")
    user_link: Floats = fitted("linked_items", "d", when="linked")
    item_link: Floats = fitted("linked_users", "d", when="linked")

    _keeps_best_sweep = True

    def _fit(
        self,
        ratings: Ratings,
        on_step: OnStep,
        validation: Ratings | None,
    ) -> None:
        # The best sweep is kept without users, which follow from the items and the mean.
        kept = {"global_mean", "item_bias", "item_factors", *_PRIOR_ARRAYS}
        previous, watch, sweeps = math.inf, ValidationWatch(), self._sweeps(ratings)
        for number, sweep in enumerate(islice(sweeps, self.iterations), start=1):
            if not math.isfinite(sweep.objective):
                raise breakdown(self, "regularization", "count_power")
            found = sweep.factors
            self.global_mean = found.mean
            self.user_bias, self.item_bias = found.row_bias, found.column_bias
            self.user_factors, self.item_factors = (
                found.row_factors,
                found.column_factors,
            )
            if isinstance(sweep, linked_als.LinkedSweep):
                self._take("user", sweep.row_prior)
                self._take("item", sweep.column_prior)
            reached = validation_rmse(self, validation)
            if on_step is not None:
                on_step(
                    Step(number, self.iterations, sweep.objective, sweep.rmse, reached)
                )
            if watch.is_best(reached):
                best = {
                    name: array for name, array in vars(self).items() if name in kept
                }
                if validation is not None:  # the next sweep writes to the same arrays
                    best = copy.deepcopy(best)
            if watch.over or previous - sweep.objective <= self.tol * sweep.objective:
                break
            previous = sweep.objective
        del sweeps  # frees the transpose of the ratings
        vars(self).update(best)
        # Solve the users again, so that folding in a training user returns the same vector.
        is_plain = "user_prior_mean" not in vars(self)  # without links and features
        entries = (ratings.coded if is_plain else None) or Histories.of(ratings)
        rows = None if is_plain else csr_rows(ratings.user_features)
        vars(self).update(self._solved_rows(entries, rows, of_users=True))
        if not is_plain:
            with at_most(self.threads):
                self._fit_content(ratings)

    def _sweeps(self, ratings: Ratings) -> Generator[AlsSweep]:
        names = "regularization", "count_power", "random_state", "threads"
        options: dict[str, Any] = {name: getattr(self, name) for name in names}
        features, matrix = (ratings.user_features, ratings.item_features), ratings.coded
        if not self.linked and not any(features):
            return als_sweeps(matrix or ratings.matrix, self.factors, **options)
        options["link_penalty"] = self.link_penalty if self.linked else 0.0
        options["row_features"], options["column_features"] = features
        return linked_als.linked_als_sweeps(
            matrix or ratings.matrix, self.factors, **options
        )

    def _take(self, side: str, prior: links.RowPrior) -> None:
        """Set the fitted arrays of a prior."""
        setattr(self, f"{side}_prior_mean", prior.mean)
        if self.linked:
            setattr(self, f"{side}_link", prior.link)
        if prior.features is not None:
            setattr(self, f"{side}_feature_weights", prior.features[None])

    def _solved_rows(
        self,
        histories: Histories | Stored,
        features: CsrArrays | None,
        *,
        of_users: bool,
    ) -> dict[str, Floats]:
        entries: Any = histories.csr if isinstance(histories, Histories) else histories
        if "user_prior_mean" in vars(self):
            with at_most(self.threads):
                known = self._vectors(0, of_users=not of_users)
                prior, mean = self._prior(0, of_users=of_users), self.global_mean
                found = links.posterior_rows(
                    entries, known, prior, mean=mean, features=features
                )
            return self._side([found], of_users)
        factors, bias = solve_rows(
            entries,
            self.item_factors if of_users else self.user_factors,
            self.item_bias if of_users else self.user_bias,
            mean=self.global_mean,
            regularization=self.regularization,
            scale=self.rating_std,
            count_power=self.count_power,
            threads=self.threads,
        )
        side = "user" if of_users else "item"
        return {f"{side}_factors": factors, f"{side}_bias": bias}

    def _side(
        self, vectors: Sequence[links.Posterior], of_users: bool
    ) -> dict[str, Floats]:
        side, found = "user" if of_users else "item", vectors[0].mean
        return {
            f"{side}_factors": found[:, :-1].copy(),
            f"{side}_bias": found[:, -1].copy(),
        }

    def _mean_covariance(
        self,
        sample: int,
        histories: Histories,
        features: CsrArrays | None,
        *,
        of_users: bool,
    ) -> NDArray[np.float64]:
        rows = links.sampled_rows(histories.counts)
        some, prior = histories.take(rows), self._prior(0, of_users=of_users)
        known, own = (
            self._vectors(0, of_users=side).mean for side in (not of_users, of_users)
        )
        found = links.exact_posterior(
            some.csr, known, prior, own[rows], self.global_mean
        )
        return mean_covariance(found, some.counts)

    def _vectors(self, sample: int, *, of_users: bool) -> links.Posterior:
        factors = self.user_vectors() if of_users else self.item_vectors()
        bias = self.user_bias if of_users else self.item_bias
        return links.Posterior.exactly(np.column_stack([factors, bias]))

    def _prior(self, sample: int, *, of_users: bool) -> links.RowPrior:
        side, given = "user" if of_users else "item", vars(self)
        pulled = "user_prior_mean" in given
        d, dtype = self.factors + 1, np.float32 if pulled else float
        mean = given.get(f"{side}_prior_mean", np.zeros(d, dtype))
        link = given.get(f"{side}_link", np.zeros((0, d), dtype))
        weights = given.get(f"{side}_feature_weights")
        precision = links.ridge_precision(
            d - 1, self.regularization, self.rating_std, dtype
        )
        features = None if weights is None else weights[0]
        return links.RowPrior(mean, precision, link, self.count_power, features)

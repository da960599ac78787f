"""Alternating least squares: a matrix factorization of the observed ratings, with biases."""

from __future__ import annotations

import copy
import math
from collections.abc import Generator
from itertools import islice
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from lowrank.completion import linked_als, links
from lowrank.completion.als import AlsSweep, als_sweeps, solve_rows
from lowrank.completion.cold_start import mean_covariance
from lowrank.kernels import CsrArrays, Stored, at_most
from recsys.models.base import OnStep, Step, ValidationWatch, validation_rmse
from recsys.models.histories import Histories, csr_rows
from recsys.models.parameters import (
    model,
    overflow_error,
    parameter,
    random_state_parameter,
    threads_parameter,
)
from recsys.models.parts import OTHER, Floats
from recsys.models.vector_model import AxisPrior, Priors, VectorModel

if TYPE_CHECKING:
    from recsys.data.ratings import Ratings


@model
class ALS(VectorModel):
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
    _scores_between_sweeps: ClassVar[bool] = True
    _keeps_best_sweep = True

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

    def _fit(
        self, ratings: Ratings, on_step: OnStep, validation: Ratings | None
    ) -> None:
        sweeps = self._sweeps(ratings)
        self._take_best(sweeps, on_step, validation)
        del sweeps  # frees the transpose of the ratings
        # Solve the users again, so that folding in a training user returns the same vector.
        histories = Histories.of(ratings)
        if self.priors is None:  # without links and features
            entries = ratings.coded or histories.csr
            self.user_factors, self.user_bias = self._plain_rows("user", entries)
            return
        users = self._solved_rows("user", histories, csr_rows(ratings.user_features))
        vars(self).update(self._side("user", users))
        with at_most(self.threads):
            self._fit_features(ratings)

    def _take_best(
        self, sweeps: Generator[AlsSweep], on_step: OnStep, validation: Ratings | None
    ) -> None:
        """Set the arrays of the last sweep, or of the one with the lowest validation RMSE."""
        # The best sweep is kept without users, which follow from the items and the mean.
        names = ("global_mean", "item_bias", "item_factors", "priors")
        best = {}
        previous = math.inf
        watch = ValidationWatch()
        for number, sweep in enumerate(islice(sweeps, self.iterations), start=1):
            if not math.isfinite(sweep.objective):
                raise overflow_error(self, "regularization", "count_power")
            self._take(sweep)
            rmse = validation_rmse(self, validation)
            if on_step is not None:
                on_step(
                    Step(number, self.iterations, sweep.objective, sweep.rmse, rmse)
                )
            if watch.is_best(rmse):
                best = {name: getattr(self, name) for name in names}
                if validation is not None:  # the next sweep writes to the same arrays
                    best = copy.deepcopy(best)
            if watch.over or previous - sweep.objective <= self.tol * sweep.objective:
                break
            previous = sweep.objective
        vars(self).update(best)

    def _sweeps(self, ratings: Ratings) -> Generator[AlsSweep]:
        matrix = ratings.coded or ratings.matrix
        if not self.linked and ratings.user_features is ratings.item_features is None:
            return als_sweeps(
                matrix,
                self.factors,
                regularization=self.regularization,
                count_power=self.count_power,
                random_state=self.random_state,
                threads=self.threads,
            )
        return linked_als.linked_als_sweeps(
            matrix,
            self.factors,
            regularization=self.regularization,
            link_penalty=self.link_penalty if self.linked else 0.0,
            row_features=ratings.user_features,
            column_features=ratings.item_features,
            count_power=self.count_power,
            random_state=self.random_state,
            threads=self.threads,
        )

    def _take(self, sweep: AlsSweep) -> None:
        """Set the fitted arrays from a sweep."""
        factors = sweep.factors
        self.global_mean = factors.mean
        self.user_bias, self.item_bias = factors.row_bias, factors.column_bias
        self.user_factors, self.item_factors = (
            factors.row_factors,
            factors.column_factors,
        )
        if isinstance(sweep, linked_als.LinkedSweep):
            self.priors = Priors(
                users=self._axis_prior(sweep.row_prior),
                items=self._axis_prior(sweep.column_prior),
            )

    def _axis_prior(self, prior: links.RowPrior) -> AxisPrior:
        return AxisPrior(
            mean=prior.mean,
            precision=self._precision(np.float32),
            link=prior.link if self.linked else None,
            weights=prior.features,
        )

    def _precision(self, dtype: type) -> NDArray[np.floating]:
        return links.ridge_precision(
            self.factors, self.regularization, self.rating_std, dtype
        )

    def _prior(self, side: str) -> links.RowPrior:
        """Return the prior of the vectors of users (or items)."""
        if self.priors is not None:
            return super()._prior(side)
        d = self.factors + 1
        return links.RowPrior(
            np.zeros(d), self._precision(float), np.zeros((0, d)), self.count_power
        )

    def _plain_rows(self, side: str, entries: Stored) -> tuple[Floats, Floats]:
        """Return the factors and biases of users (or items) without links and features."""
        factors, bias = self.item_factors, self.item_bias
        if side == "item":
            factors, bias = self.user_factors, self.user_bias
        return solve_rows(
            entries,
            factors,
            bias,
            mean=self.global_mean,
            regularization=self.regularization,
            scale=self.rating_std,
            count_power=self.count_power,
            threads=self.threads,
        )

    def _solved_rows(
        self, side: str, histories: Histories, features: CsrArrays | None
    ) -> links.Posterior:
        if self.priors is None:
            factors, bias = self._plain_rows(side, histories.csr)
            return links.Posterior.exactly(np.column_stack([factors, bias]))
        with at_most(self.threads):
            return links.posterior_rows(
                histories.csr,
                self._posterior(OTHER[side]),
                self._prior(side),
                mean=self.global_mean,
                features=features,
            )

    def _mean_covariance(
        self, side: str, histories: Histories, features: CsrArrays | None
    ) -> NDArray[np.float64]:
        sample = links.sampled_rows(histories.counts)
        sampled = histories.take(sample)
        posterior = links.exact_posterior(
            sampled.csr,
            self._posterior(OTHER[side]).mean,
            self._prior(side),
            self._posterior(side, sample).mean,
            self.global_mean,
        )
        return mean_covariance(posterior, sampled.counts)

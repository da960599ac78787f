"""Bayesian matrix factorization of ratings."""

from __future__ import annotations

import math
from itertools import islice
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from lowrank import kernels
from lowrank.completion.bayes import (
    VariationalSweep,
    predictive_variance,
    variational_sweeps,
)
from lowrank.completion.cold_start import mean_covariance
from lowrank.completion.links import Posterior, posterior_rows
from lowrank.kernels import at_most
from recsys.errors import DataError
from recsys.models.base import Progress
from recsys.models.calibration import Calibration, calibrated
from recsys.models.feature_factors import AxisFeatures
from recsys.models.histories import Histories
from recsys.models.parameters import (
    fitted,
    model,
    overflow_error,
    parameter,
    random_state_parameter,
    threads_parameter,
)
from recsys.models.parts import OTHER, Doubles, Floats, Indices, Longs, part
from recsys.models.time_biases import TimeBiases, fit_time_biases
from recsys.models.vector_model import Priors, VectorModel

if TYPE_CHECKING:
    from lowrank.completion.feature_ridge import GroupedFeatures
    from recsys.data.ratings import Ratings

_ALL = slice(None)
_PAIRS = 2**13  # pairs whose covariances are unpacked at a time
_MOST_DRIFT = 0.8  # maximum share of the noise variance that drifts explain


@model
class Bayes(VectorModel):
    """Predict a rating as ``mu + b_u + c_i + a_u . m_i`` with learned priors.

    The vectors (a_u, b_u) and (m_i, c_i) have Gaussian posteriors under Gaussian priors with full
    covariances. With `linked`, the prior mean of a user is a linear function of the set of items
    that the user rated, with any value; likewise for an item and the set of its users. With
    features (`with_features`), the prior means are also linear in the features, with a learned
    precision for each group. Features predict items and users without ratings.

    If ratings have timestamps, biases drift: the users' over minutes or days, the items' over
    longer times, with time scales learned from the ratings. Predictions for a given time use the
    drifts at that time. Other predictions, and recommendations, do not depend on times.

    Attributes
    ----------
    user_factors, item_factors : float32 ndarrays of shape (n_users, k) and (n_items, k)
    user_covariance, item_covariance : float32 ndarrays of shape (n_users, p) and (n_items, p)
        Posterior covariances of (a_u, b_u) and (m_i, c_i): upper triangles by rows,
        p = (k + 1)(k + 2) / 2 numbers each (2.2 kB with 32 factors).
    noise_variance : float
        Variance of a rating, given all vectors.
    calibration : Calibration
        The noise of predictions that exclude the predicted rating, and the shares of ratings in
        their own predictions.
    time_biases : TimeBiases or None

    References
    ----------
    Lim and Teh (2007), "Variational Bayesian approach to movie rating prediction". Koren (2008),
    "Factorization meets the neighborhood", section 4, for sets of rated items. Simm et al. (2017),
    "Macau: scalable Bayesian factorization with high-dimensional side information using MCMC".
    Koren (2009), "Collaborative filtering with temporal dynamics", for drifts of biases.
    """

    name = "bayes"
    summary = "The most accurate ratings, with standard deviations; slower than als."
    _scores_between_sweeps: ClassVar[bool] = True
    _keeps_best_sweep: ClassVar[bool] = True

    factors: int = parameter(32, "Number of latent factors.", low=4, high=128, log=True)
    linked: bool = parameter(
        True, "Learn also from which items a user rated, whatever the ratings."
    )
    link_penalty: float = parameter(
        2.0, "Ridge penalty on the who-rated-what term.", low=0.2, high=20.0, log=True
    )
    temperature: float = parameter(
        1.3,
        "Temperature; values above 1 widen the posterior.",
        low=1.0,
        high=3.0,
        minimum=1,
    )
    count_power: float = parameter(
        0.3, "Power of the number of ratings in the prior precision.", low=0.0, high=1.0
    )
    iterations: int = parameter(20, "Maximum number of sweeps.")
    tol: float = parameter(
        7.5e-3,
        "Stop when a sweep raises the free energy by less than this per rating.",
        minimum=0,
    )
    time: bool = parameter(
        True, "Let the biases of users and items drift, if times are known."
    )
    random_state: int = random_state_parameter()
    threads: int | None = threads_parameter()

    user_covariance: Floats = fitted("n_users", "p")
    item_covariance: Floats = fitted("n_items", "p")
    noise_variance: float = fitted()
    calibration: Calibration | None = part(Calibration)
    time_biases: TimeBiases | None = part(TimeBiases)

    @property
    def uses_times(self) -> bool:  # type: ignore[override]
        """Return whether biases drift, so that predictions depend on the time."""
        return self.time_biases is not None

    @property
    def _noise(self) -> float:
        return self.temperature * self.noise_variance

    def _fit(self, ratings: Ratings, progress: Progress) -> None:
        """Minimise minus the free energy, which is the objective in each `Step`."""
        self._take(self._best_sweep(ratings, progress))
        histories = Histories.of(ratings, ratings.user_features)
        # Solve the users again, so that folding in a training user returns the same vector.
        users = self._solved_rows("user", histories)
        vars(self).update(self._side("user", users))
        with at_most(self.threads):
            self.calibration = calibrated(
                users,
                self._posterior("item"),
                (self._prior("user"), self._prior("item")),
                histories,
                self.global_mean,
                self.noise_variance,
            )
            self._fit_features(ratings)
        # Times that are all the same say nothing of drifts.
        if self.time and ratings.timestamps is not None and np.ptp(ratings.timestamps):
            residual = self._residual(
                self.calibration, "user", self._posterior("user"), histories
            )
            with at_most(self.threads):
                self.time_biases, remark = fit_time_biases(ratings, residual)
            vars(self)["remarks"] = (remark,)

    def _best_sweep(self, ratings: Ratings, progress: Progress) -> VariationalSweep:
        """Return the last sweep, or the one with the lowest RMSE of the validation ratings."""
        sweeps = variational_sweeps(
            ratings.matrix,
            self.factors,
            link_penalty=self.link_penalty if self.linked else 0.0,
            row_features=ratings.user_features,
            column_features=ratings.item_features,
            count_power=self.count_power,
            temperature=self.temperature,
            random_state=self.random_state,
            threads=self.threads,
        )
        best = None
        previous = -math.inf
        for number, sweep in enumerate(islice(sweeps, self.iterations), start=1):
            energy = sweep.free_energy
            if not math.isfinite(energy):
                raise overflow_error(self, "temperature", "count_power")
            # Setting the arrays copies factors; nobody sees them otherwise.
            if progress.validation is not None or progress.on_step is not None:
                self._take(sweep)
                progress.report(self, number, self.iterations, -energy, sweep.rmse)
            if progress.is_best or best is None:
                best = sweep
            gain = energy - previous
            if progress.is_over or gain <= self.tol * ratings.n_ratings:
                break
            previous = energy
        assert best is not None
        return best

    def _take(self, sweep: VariationalSweep) -> None:
        """Set the fitted arrays from a sweep."""
        self.global_mean = sweep.mean
        self.noise_variance = sweep.noise_variance
        self.priors = Priors.from_priors(sweep.row_prior, sweep.column_prior)
        rows = self._side("user", sweep.rows)
        vars(self).update(rows | self._side("item", sweep.columns))

    def predict(
        self,
        users: ArrayLike,
        items: ArrayLike,
        times: Longs | None = None,
    ) -> Floats:
        """Predict the ratings of pairs, shape (n_pairs,); independent of the other pairs.

        Parameters
        ----------
        users, items : array_like of int
        times : array_like of int, optional
            Times of the predicted ratings, or one time for all, in seconds since 1970-01-01 UTC.
            They are ignored if the biases do not drift.
        """
        predicted = super().predict(users, items)
        if times is None or self.time_biases is None:
            return predicted
        u, i = self._checked_pairs(users, items)
        return predicted + self.time_biases.at(u, i, _times_of_pairs(times, len(u)))[0]

    def predict_interval(
        self,
        users: ArrayLike,
        items: ArrayLike,
        level: float = 0.9,
        times: Longs | None = None,
    ) -> tuple[Floats, Floats]:
        """Return the ends of prediction intervals of probability `level`, each of shape (n_pairs,).

        Raises
        ------
        DataError
            If `level` is not between 0 and 1.
        """
        if not 0 < level < 1:
            raise DataError(f"level must be between 0 and 1; got {level}.")
        # Predictions are Gaussian: the interval is symmetric around the prediction.
        quantile = np.float32(NormalDist().inv_cdf((1 + level) / 2))
        half_width = quantile * self.predict_std(users, items, times)
        predicted = self.predict(users, items, times)
        return predicted - half_width, predicted + half_width

    def predict_std(
        self,
        users: ArrayLike,
        items: ArrayLike,
        times: Longs | None = None,
    ) -> Floats:
        """Return predictive standard deviations, including the noise, shape (n_pairs,)."""
        assert self.calibration is not None
        u, i = self._checked_pairs(users, items)
        noise = self.calibration.noise
        variance = np.empty(len(u), np.float32)
        for block in kernels.pieces(len(u), _PAIRS):
            rows = self._posterior("user", u[block])
            variance[block] = predictive_variance(
                rows, self._posterior("item", i[block])
            )
        # The posterior has the uncertainty of the mean; a rating scatters around it.
        variance += np.float32(noise)
        if self.time_biases is not None and times is not None:
            # The noise includes the variance of drifts.
            reduction = self.time_biases.at(u, i, _times_of_pairs(times, len(u)))[1]
            variance -= np.minimum(reduction, np.float32(_MOST_DRIFT * noise))
        return np.sqrt(variance)

    def _posterior(self, side: str, rows: Indices | slice = _ALL) -> Posterior:
        """Return the vectors of users (or items), with the bias last, and their covariances."""
        return Posterior(self._means(side, rows), self._covariance_of(side)[rows])

    def _covariance_of(self, side: str) -> Floats:
        return self.user_covariance if side == "user" else self.item_covariance

    def _item_covariance(self, items: Indices, fitted: Ratings) -> Floats:
        return self.item_covariance[items]

    def _side(self, side: str, rows: Posterior) -> dict[str, Any]:
        covariance = rows.covariance.astype(np.float32, copy=False)
        return super()._side(side, rows) | {f"{side}_covariance": covariance}

    def _solved_rows(self, side: str, histories: Histories) -> Posterior:
        with at_most(self.threads):
            return posterior_rows(
                histories.csr,
                self._posterior(OTHER[side]),
                self._prior(side),
                mean=self.global_mean,
                noise=self._noise,
                features=histories.features,
            )

    def _of_rows(
        self,
        side: str,
        rows: Posterior,
        histories: Histories,
    ) -> dict[str, Any]:
        assert self.calibration is not None
        calibration = self.calibration.with_rows(
            side, rows, histories.counts, self._prior(side)
        )
        changes: dict[str, Any] = {"calibration": calibration}
        if self.time_biases is not None:
            residual = self._residual(calibration, side, rows, histories)
            changes["time_biases"] = self.time_biases.folded(side, histories, residual)
        return changes

    def _residual(
        self,
        calibration: Calibration,
        side: str,
        rows: Posterior,
        histories: Histories,
    ) -> Floats:
        """Return ratings minus their leave-one-out predictions."""
        # With its own rating, a prediction would explain the drift away.
        columns = self._posterior(OTHER[side])
        predicted = calibration.held_out(
            side, rows, columns, histories, self.global_mean
        )
        return histories.values - predicted

    def _fitted_features(
        self,
        side: str,
        histories: Histories,
        other_histories: Histories,
        features: GroupedFeatures | None,
    ) -> AxisFeatures | None:
        """Fit the map, and scale covariances of rows without ratings to the residual variance."""
        assert self.calibration is not None
        axis = super()._fitted_features(side, histories, other_histories, features)
        if axis is None:
            return None
        columns = self._posterior(OTHER[side])
        return axis.calibrated(columns, other_histories.counts, self.calibration.noise)

    def _mean_covariance(self, side: str, histories: Histories) -> Doubles:
        return mean_covariance(self._posterior(side), histories.counts)


def _times_of_pairs(times: ArrayLike, n: int) -> Longs:
    return np.broadcast_to(np.asarray(times, np.int64), (n,))

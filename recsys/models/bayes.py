"""Bayesian matrix factorization of ratings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import islice
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lowrank.completion import links
from lowrank.completion.bayes import VariationalSweep, variational_sweeps
from lowrank.completion.cold import mean_covariance
from lowrank.completion.gibbs import GibbsSweep, gibbs_sweeps
from lowrank.completion.ordinal import OrdinalScale
from lowrank.completion.targets import Observed, settled
from lowrank.kernels import CsrArrays, at_most
from recsys.errors import DataError
from recsys.models.base import Floats, OnStep, Step, ValidationWatch, validation_rmse
from recsys.models.calibration import calibrate, leverage, pair_variances, unseen
from recsys.models.content import ContentModel
from recsys.models.drifts import DriftingModel
from recsys.models.factor_form import FactorForm
from recsys.models.histories import Explanation, Histories
from recsys.models.parameters import (
    breakdown,
    fitted,
    model,
    parameter,
    random_state_parameter,
    threads_parameter,
)
from recsys.models.priors import Known, csr_rows
from recsys.models.validation import HeldOut

if TYPE_CHECKING:
    from recsys.data.ratings import Ratings

    Watched = tuple[Ratings, OnStep, Ratings | None]

_LEVELS = range(
    3, 21
)  # numbers of distinct ratings for which an ordinal scale is tried
_MOST_DRIFT = 0.8  # maximum share of the noise variance that drifts explain
_COMPARED = 100_000  # maximum number of ratings for the comparison of likelihoods
_COMPARED_FACTORS = 8  # its number of factors
_COMPARED_SWEEPS = 2  # its number of sweeps: cut points have not settled after one
_FIRST_SWEEPS = 1  # Gaussian sweeps before an ordinal fit


@model
class Bayes(DriftingModel, ContentModel):
    """Predict a rating as ``mu + b_u + c_i + a_u . m_i`` with learned priors.

    The vectors (a_u, b_u) and (m_i, c_i) have Gaussian posteriors under Gaussian priors with full
    covariances. With `linked`, the prior mean of a user is a linear function of the set of items
    that the user rated, with any value; likewise for an item and the set of its users. With
    features (`with_features`), the prior means are also linear in the features, with a learned
    precision for each group. Features predict items and users without ratings.

    If ratings have timestamps, biases drift: those of users over minutes or days, those of items
    over longer times, with time scales learned from the ratings. Predictions for a given time use
    the drifts at that time. Other predictions, and recommendations, do not depend on times.

    With the ordinal likelihood, cut points divide a latent scale into one interval for each level
    of the ratings. The sum above is then the mean of a latent variable, and the rating is the level
    of its interval. Predictions are expected ratings; explanations are on the latent scale.

    Attributes
    ----------
    user_factors, item_factors : float32 ndarrays of shape (n_users, S k) and (n_items, S k)
        Factors of the S kept samples side by side. Those of users are divided by S, so that a dot
        product averages over the samples. S is 1 under variational inference.
    user_covariance, item_covariance : float32 ndarrays of shape (n_users, p) and (n_items, p)
        Posterior covariances of (a_u, b_u) and (m_i, c_i) under variational inference: upper
        triangles by rows, p = (k + 1)(k + 2) / 2 numbers each (2.2 kB with 32 factors).
    user_draws : float32 ndarray of shape (n_users, S (k + 1))
        Draws of (a_u, b_u) under Gibbs sampling, for standard deviations.
    user_leverage, item_leverage : float32 ndarrays of shape (n_users,) and (n_items,)
        Shares of ratings in their own predictions, zero under Gibbs sampling.
    noise_variances : float64 ndarray of shape (S,)
        Variance of a rating, or of its latent variable, given all vectors.
    predictive_noise : float
        The same variance, calibrated on predictions that exclude the predicted rating, because
        variational posteriors are slightly too wide.
    levels, cut_points : float64 ndarrays of shape (L,) and (L - 1,)
        The ordinal scale, if the likelihood is ordinal.
    score_quantiles : float64 ndarray of shape (n_quantiles,)
        Quantiles of predictions on the latent scale, if the likelihood is ordinal.

    References
    ----------
    Lim and Teh (2007), "Variational Bayesian approach to movie rating prediction". Salakhutdinov
    and Mnih (2008), "Bayesian probabilistic matrix factorization using Markov chain Monte Carlo".
    Koren (2008), "Factorization meets the neighborhood", section 4, for sets of rated items. Simm
    et al. (2017), "Macau: scalable Bayesian factorization with high-dimensional side information
    using MCMC". Albert and Chib (1993), "Bayesian analysis of binary and polychotomous response
    data", section 4, for the ordinal likelihood. Koren (2009), "Collaborative filtering with
    temporal dynamics", for drifts of biases.
    """

    name = "bayes"
    summary = "The most accurate ratings, with standard deviations; slower than als."
    _scores_between_sweeps = True

    factors: int = parameter(32, "Number of latent factors.", low=4, high=128, log=True)
    inference: str = parameter(
        "variational",
        "How the posterior is computed: variational is fast, gibbs samples it.",
        choices=("variational", "gibbs"),
    )
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
    iterations: int = parameter(
        20,
        "Maximum number of sweeps of variational inference, from which Gibbs sampling starts.",
    )
    tol: float = parameter(
        7.5e-3,
        "Stop when a sweep raises the free energy by less than this per rating.",
        minimum=0,
    )
    samples: int = parameter(16, "Number of samples that Gibbs sampling keeps.")
    thinning: int = parameter(4, "Number of Gibbs sweeps per kept sample.")
    burn_in: int = parameter(
        20, "Number of initial Gibbs sweeps to discard.", minimum=0
    )
    likelihood: str = parameter(
        "auto",
        "Distribution of a rating: gaussian, ordinal, or what predicts held-out ratings better.",
        choices=("auto", "gaussian", "ordinal"),
    )
    time: bool = parameter(
        True, "Let the biases of users and items drift, if times are known."
    )
    random_state: int = random_state_parameter()
    threads: int | None = threads_parameter()

    user_biases: Floats = fitted("n_users", "S")
    item_biases: Floats = fitted("n_items", "S")
    user_covariance: Floats = fitted("n_users", "p", when="_keeps_best_sweep")
    item_covariance: Floats = fitted("n_items", "p", when="_keeps_best_sweep")
    user_draws: Floats = fitted("n_users", "drawn", when="_sampled")
    user_leverage: Floats = fitted("n_users")
    item_leverage: Floats = fitted("n_items")
    noise_variances: NDArray[np.float64] = fitted("S")
    user_prior_mean: Floats = fitted("S", "d")
    item_prior_mean: Floats = fitted("S", "d")
    user_prior_precision: Floats = fitted("S", "d", "d")
    item_prior_precision: Floats = fitted("S", "d", "d")
    user_link: Floats = fitted("S", "linked_items", "d", when="linked")
    item_link: Floats = fitted("S", "linked_users", "d", when="linked")
    levels: NDArray[np.float64] = fitted("n_cut_points + 1", group="ordinal")
    cut_points: NDArray[np.float64] = fitted("n_cut_points", group="ordinal")
    score_variance: float = fitted(group="ordinal")
    score_quantiles: NDArray[np.float64] = fitted("n_quantiles", group="ordinal")
    predictive_noise: float = fitted()

    @property
    def _sampled(self) -> bool:
        return self.inference == "gibbs"

    @property
    def _keeps_best_sweep(self) -> bool:
        return not self._sampled

    @classmethod
    def _from_arrays(
        cls, params: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]
    ) -> Self:
        result = super()._from_arrays(params, arrays)
        result._check_knots()
        return result

    @property
    def is_ordinal(self) -> bool:
        """Return whether the fitted likelihood is ordinal."""
        return "cut_points" in vars(self)

    def _fit(
        self, ratings: Ratings, on_step: OnStep, validation: Ratings | None
    ) -> None:
        """Minimise minus the free energy, which is the objective in each `Step`."""
        likelihood, remarks, levels = (
            self.likelihood,
            [],
            len(ratings.distribution()[0]),
        )
        if likelihood == "auto":
            likelihood = "gaussian"
            if levels in _LEVELS:
                likelihood, finding = self._compare(ratings)
                remarks.append(finding)
        elif likelihood == "ordinal" and levels < 2:
            raise DataError(
                "The ordinal likelihood needs different ratings; all are the same."
            )
        is_ordinal, watched = likelihood == "ordinal", (ratings, on_step, validation)
        options = self._options(False)
        options |= {"link_penalty": self.link_penalty if self.linked else 0.0}
        options |= {
            "row_features": ratings.user_features,
            "column_features": ratings.item_features,
        }
        most = _FIRST_SWEEPS if is_ordinal else self.iterations
        best, number = self._variational(watched, most=most, **options)
        options |= self._options(is_ordinal)
        if is_ordinal:
            begun: Any = {"start": best, "ordinal": True, "number": number}
            best, number = self._variational(watched, **begun, **options)
        self._take([best], best.observed)
        if self._sampled:
            self._sample(watched, best, number, **options)
        # Solve the users again, so that folding in a training user returns the same vector.
        histories, rows = Histories.of(ratings), csr_rows(ratings.user_features)
        with at_most(self.threads):
            vars(self).update(self._solved_rows(histories, rows, of_users=True))
            calibrate(self, histories)
            self._fit_content(ratings)
        if self.time and ratings.timestamps is not None and np.ptp(ratings.timestamps):
            values, scores = unseen(self, histories, vars(self), "user")
            with at_most(self.threads):
                remarks.append(self._fit_drifts(ratings, values - scores))
        vars(self)["remarks"] = tuple(remarks)

    def _options(self, ordinal: bool) -> dict[str, Any]:
        """Return the options of any fit; ordinal fits have a lower temperature."""
        temperature = (1 + self.temperature) / 2 if ordinal else self.temperature
        given = {"random_state": self.random_state, "threads": self.threads}
        return {"temperature": temperature, **given}

    def _variational(
        self,
        watched: Watched,
        *,
        most: int | None = None,
        number: int = 0,
        **options: Any,
    ) -> tuple[VariationalSweep, int]:
        """Return the best of at most `most` sweeps, and the total number of sweeps."""
        ratings, on_step, validation = watched
        given = ratings.matrix, self.factors
        sweeps = variational_sweeps(*given, count_power=self.count_power, **options)
        before, watch, best = -math.inf, ValidationWatch(), None
        for sweep in islice(sweeps, most or self.iterations):
            number += 1
            if not math.isfinite(sweep.free_energy):
                raise breakdown(self, "temperature", "count_power")
            reached = None
            if validation is not None or on_step is not None:
                self._take([sweep], sweep.observed)
                reached = validation_rmse(self, validation)
            if on_step is not None:
                on_step(Step(number, number, -sweep.free_energy, sweep.rmse, reached))
            if watch.is_best(reached) or best is None:
                best = sweep
            if watch.over or sweep.free_energy - before <= self.tol * ratings.n_ratings:
                break
            before = sweep.free_energy
        assert best is not None
        return best, number

    def _sample(
        self, watched: Watched, start: VariationalSweep, number: int, **options: Any
    ) -> None:
        """Set the arrays to the samples of a Markov chain that begins at `start`."""
        ratings, on_step, validation = watched
        total, kept = self.burn_in + self.samples * self.thinning, list[GibbsSweep]()
        samplings = gibbs_sweeps(ratings.matrix, start, **options)
        for drawn, sampling in enumerate(islice(samplings, total), start=1):
            if drawn > self.burn_in and (drawn - self.burn_in) % self.thinning == 0:
                kept.append(sampling)
                self._take(kept, start.observed)
            if on_step is not None:
                reached = validation_rmse(self, validation)
                on_step(
                    Step(number + drawn, number + total, None, sampling.rmse, reached)
                )

    def _compare(self, ratings: Ratings) -> tuple[str, str]:
        """Return the likelihood that predicts held-out ratings better, and the figures.

        A tenth of at most 100,000 ratings is held out. Each likelihood is fitted with a few
        variational sweeps and few factors, without links and features.
        """
        train, test = HeldOut.of(ratings, self.random_state, most=_COMPARED)
        X, pair = train.matrix, (test.user_index_of_nonzeros(), test.indices)
        rated = np.diff(X.indptr) > 0, np.bincount(X.indices, minlength=X.shape[1]) > 0
        both = rated[0][pair[0]] & rated[1][pair[1]]
        values = test.values[both].astype(np.float64)
        if not len(values) or len(train.distribution()[0]) < 2:
            return (
                "gaussian",
                "likelihood: gaussian, of too few ratings for a comparison",
            )
        X = X[rated[0]][:, rated[1]]
        rows, columns = (
            np.cumsum(r)[p[both]] - 1 for r, p in zip(rated, pair, strict=True)
        )
        k = min(self.factors, _COMPARED_FACTORS)
        given: dict[str, Any] = {"k": k, "count_power": self.count_power}
        fits = [variational_sweeps(X, **given, **self._options(False))]
        start = next(fits[0])
        if not math.isfinite(start.free_energy):
            return "gaussian", "likelihood: gaussian, of numbers that are not finite"
        given |= {"start": start, "ordinal": True}
        fits.append(variational_sweeps(X, **given, **self._options(True)))
        errors = []
        for fit, name in zip(fits, ("gaussian", "ordinal"), strict=True):
            *_, last = islice(fit, _COMPARED_SWEEPS)
            errors.append(
                (math.sqrt(np.mean((last.expected(rows, columns) - values) ** 2)), name)
            )
        (least, best), (error, other) = sorted(errors)
        figures = (
            f"RMSE {least:.4f} of {len(values):,} held-out ratings, {other} {error:.4f}"
        )
        return best, f"likelihood: {best} ({figures})"

    def predict(
        self, users: ArrayLike, items: ArrayLike, times: NDArray[np.int64] | None = None
    ) -> Floats:
        """Predict the ratings of pairs, shape (n_pairs,); independent of the other pairs.

        Parameters
        ----------
        users, items : array_like of int
        times : array_like of int, optional
            Times of the predicted ratings, or one time for all, in seconds since 1970-01-01 UTC.
            They are ignored if the biases do not drift.
        """
        if times is not None:
            times = np.broadcast_to(
                np.asarray(times, np.int64), np.atleast_1d(users).shape
            )
        return self._expected(self._latent(users, items, times))

    def _latent(
        self, users: ArrayLike, items: ArrayLike, times: NDArray[np.int64] | None = None
    ) -> Floats:
        """Return predictions on the latent scale (the ratings' own if they are Gaussian)."""
        predicted = super().predict(users, items)
        if times is None or not self.uses_times:
            return predicted
        return predicted + self._drifts_at(*self._checked_pairs(users, items), times)[0]

    def _expected(self, latent: Floats) -> Floats:
        """Return the expected ratings given the means of the latent variables."""
        if not self.is_ordinal:
            return latent
        variance = float(self.noise_variances.mean()) + self.score_variance
        return self._scale.expected(latent, variance).astype(np.float32, copy=False)

    def pair_scores(self, users: ArrayLike, items: ArrayLike) -> Floats:
        """Return ranking scores of pairs: expected ratings, discounted on the latent scale."""
        return self._expected(super().pair_scores(users, items))

    def scores(self, users: ArrayLike) -> Floats:
        """Return ranking scores of all items; rounding depends on the block (`_score_error`)."""
        return self._expected(super().scores(users))

    def _score_error(self, users: ArrayLike) -> Floats:
        error = super()._score_error(
            users
        )  # the slope of the expected rating is below 4
        return 4 * error + np.float32(1e-5) if self.is_ordinal else error

    def _factor_form(self, users: ArrayLike) -> FactorForm:
        form = super()._factor_form(users)
        return form._replace(link=self._expected) if self.is_ordinal else form

    @property
    def _scale(self) -> OrdinalScale:
        return OrdinalScale(self.levels, self.cut_points, (0, len(self.cut_points) - 1))

    def predict_interval(
        self,
        users: ArrayLike,
        items: ArrayLike,
        level: float = 0.9,
        times: NDArray[np.int64] | None = None,
    ) -> tuple[Floats, Floats]:
        """Return the ends of prediction intervals of probability `level`, each of shape (n_pairs,).

        On an ordinal scale, a rating is treated as uniformly distributed over the numbers nearest
        to its level, so the ends may be between levels. With few levels, the coverage is right on
        average over pairs but not for each pair.

        Raises
        ------
        DataError
            If `level` is not between 0 and 1.
        """
        if not 0 < level < 1:
            raise DataError(f"level must be between 0 and 1; got {level}.")
        latent, variance = (
            self._latent(users, items, times),
            self._variance(users, items, times),
        )
        shares = (1 - level) / 2, (1 + level) / 2
        if self.is_ordinal:
            typical = self.predictive_noise + self.score_variance
            outside = self._scale.outside(self.score_quantiles, typical, level)
            shares = outside / 2, 1 - outside / 2
            low, high = (
                self._scale.quantile(latent, variance, share) for share in shares
            )
            return low.astype(np.float32), high.astype(np.float32)
        half = np.float32(NormalDist().inv_cdf(shares[1])) * np.sqrt(variance)
        return latent - half, latent + half

    def predict_std(
        self, users: ArrayLike, items: ArrayLike, times: NDArray[np.int64] | None = None
    ) -> Floats:
        """Return predictive standard deviations, including the noise, shape (n_pairs,)."""
        variance = self._variance(users, items, times)
        if self.is_ordinal:
            latent = self._latent(users, items, times)
            variance = self._scale.variances(latent, variance).astype(np.float32)
        return np.sqrt(variance)

    def _variance(
        self, users: ArrayLike, items: ArrayLike, times: NDArray[np.int64] | None
    ) -> Floats:
        """Return the variances of ratings, or of their latent variables, shape (n_pairs,)."""
        u, i = self._checked_pairs(users, items)
        noise = self.predictive_noise
        variance = pair_variances(self, u, i) + np.float32(noise)
        if (
            self.uses_times and times is not None
        ):  # the noise includes the variance of drifts
            known = self._drifts_at(u, i, times)[1]
            variance -= np.minimum(known, np.float32(_MOST_DRIFT * noise))
        return variance

    @property
    def _n_samples(self) -> int:
        return len(self.noise_variances)

    def _take(
        self, states: Sequence[VariationalSweep | GibbsSweep], seen: Observed
    ) -> None:
        """Set the fitted arrays from one variational sweep or several Gibbs samples."""
        if seen.scale is not None:
            self.levels, self.cut_points = seen.scale.levels, seen.scale.cuts
            self.score_variance = float(seen.score_variance)
        self.global_mean = states[0].mean
        self.noise_variances = np.array([state.noise_variance for state in states])
        for side, axis in (("user", "row"), ("item", "column")):
            priors = [getattr(state, f"{axis}_prior") for state in states]
            kept = {"mean": "prior_mean", "precision": "prior_precision"}
            kept |= {"link": "link"} if self.linked else {}
            kept |= (
                {"features": "feature_weights"}
                if priors[0].features is not None
                else {}
            )
            for field, name in kept.items():
                setattr(
                    self,
                    f"{side}_{name}",
                    np.array([getattr(p, field) for p in priors]),
                )
            vectors = [getattr(state, f"{axis}s") for state in states]
            vars(self).update(self._side(vectors, side == "user"))

    def _side(
        self, vectors: Sequence[links.Posterior], of_users: bool
    ) -> dict[str, Floats]:
        """Return the fitted arrays of users (or items) from their vectors in each sample."""
        factors: Floats = np.hstack([v.mean[:, :-1] for v in vectors])
        biases: Floats = np.column_stack([v.mean[:, -1] for v in vectors])
        arrays = {
            "factors": factors / np.float32(len(vectors) if of_users else 1),
            "biases": biases,
            "bias": biases.mean(axis=1, dtype=np.float64).astype(np.float32),
        }
        if not self._sampled:
            arrays["covariance"] = vectors[0].covariance.astype(np.float32, copy=False)
        side = "user" if of_users else "item"
        return {f"{side}_{name}": array for name, array in arrays.items()}

    def _solved_rows(
        self, histories: Histories, features: CsrArrays | None, *, of_users: bool
    ) -> dict[str, Floats]:
        """Return the arrays of users given each sample of the items, or of items given users.

        Under Gibbs sampling, users have posterior means, and draws for standard deviations; items
        have draws only.
        """
        drawn = [False, True] if self._sampled and of_users else [self._sampled]
        with at_most(self.threads):
            others = [
                self._vectors(s, of_users=not of_users) for s in range(self._n_samples)
            ]
            sums = links.covariance_sums(histories.csr, others[0])
            entries = self._settled(histories, features, of_users=of_users, sums=sums)
            given: Any = {"mean": self.global_mean, "features": features, "sums": sums}
            first, *more = (
                [
                    links.posterior_rows(
                        *(entries, vectors, self._prior(sample, of_users=of_users)),
                        noise=self._noise(sample),
                        draw_seed=(self.random_state, sample) if draw else None,
                        **given,
                    )
                    for sample, vectors in enumerate(others)
                ]
                for draw in drawn
            )
        arrays = self._side(first, of_users)
        if more:
            arrays["user_draws"] = np.hstack([vectors.mean for vectors in more[0]])
        side, other = ("user", "item") if of_users else ("item", "user")
        if f"{other}_leverage" in vars(self):
            arrays[f"{side}_leverage"] = leverage(self, side, arrays, histories.counts)
        if self.uses_times:
            values, scores = unseen(self, histories, arrays, side)
            arrays |= self._folded_drifts(side, histories, values - scores)
        return arrays

    def _settled(
        self,
        history: Histories,
        features: CsrArrays | None,
        *,
        of_users: bool = True,
        sums: Floats | None = None,
    ) -> CsrArrays:
        """Return ratings of some users (or items), or their latent variables if ordinal."""
        if not self.is_ordinal:
            return history.csr
        with at_most(self.threads):
            data = settled(
                history.csr,
                self._vectors(0, of_users=not of_users),
                self._prior(0, of_users=of_users),
                self._scale,
                mean=self.global_mean,
                noise=self._noise(0),
                latent_noise=float(self.noise_variances[0]),
                features=features,
                sums=sums,
            )
        return history.csr._replace(data=data)

    def contributions(
        self, history: Histories, items: ArrayLike, known: Known | None = None
    ) -> Explanation:
        """Return the scores of `items` as sums, as `ContentModel.contributions`.

        With the ordinal likelihood, contributions are on the latent scale, and the base includes
        the difference between their sum and the expected rating.
        """
        found = super().contributions(history, items, known)
        if not self.is_ordinal:
            return found
        parts = (
            found.base[:, None],
            found.terms,
            found.item_features,
            found.user_features,
        )
        total = np.sum([part.sum(axis=1) for part in parts if part is not None], axis=0)
        expected, discount = self._expected(total), found.popularity
        if discount is not None:
            discount = self._expected(total + discount) - expected
        return found._replace(base=found.base + expected - total, popularity=discount)

    def _vectors(self, sample: int, *, of_users: bool) -> links.Posterior:
        side, k = "user" if of_users else "item", self.factors
        factors, biases = (
            getattr(self, f"{side}_{name}") for name in ("factors", "biases")
        )
        vectors = np.column_stack(
            [factors[:, sample * k : (sample + 1) * k], biases[:, sample]]
        )
        if of_users:
            vectors[:, :-1] *= np.float32(self._n_samples)
        if self._sampled:
            return links.Posterior.exactly(vectors)
        return links.Posterior(vectors, getattr(self, f"{side}_covariance"))

    def _prior(self, sample: int, *, of_users: bool) -> links.RowPrior:
        side = "user" if of_users else "item"
        mean, precision = (
            getattr(self, f"{side}_prior_{name}")[sample]
            for name in ("mean", "precision")
        )
        given, d = vars(self), self.factors + 1
        link = (
            given[f"{side}_link"][sample]
            if self.linked
            else np.zeros((0, d), np.float32)
        )
        weights = given.get(f"{side}_feature_weights")
        features = None if weights is None else weights[sample]
        return links.RowPrior(mean, precision, link, self.count_power, features)

    def _fit_slopes(self, side: str, histories: Histories) -> None:
        """Fit slopes, and scale covariances of rows without ratings to the residual variance."""
        super()._fit_slopes(side, histories)
        covariances = getattr(self, f"{side}_cold_covariance")
        spread, counts = np.zeros(histories.n_rows), histories.counts
        for sample, covariance in enumerate(covariances):
            w = self._vectors(sample, of_users=side == "item").mean.astype(np.float64)
            w[:, -1] = 1
            spread += np.einsum("ni,ij,nj->n", w, covariance, w) / self._n_samples
        total: float = getattr(self, f"{side}_slope_noise")
        if (
            self.is_ordinal
        ):  # convert the variance of ratings to that of latent variables
            typical = self.predictive_noise + self.score_variance
            total *= typical / float(
                self._scale.variances(self.score_quantiles, typical).mean()
            )
        left = total - self.predictive_noise
        share = np.clip(left * counts.sum() / (spread @ counts), 0.1, 1)
        setattr(self, f"{side}_cold_covariance", covariances * np.float32(share))

    def _completed(
        self,
        side: str,
        arrays: dict[str, Floats],
        histories: Histories,
        features: CsrArrays | None,
    ) -> dict[str, Floats]:
        result = super()._completed(side, arrays, histories, features)
        if side == "user" and self._sampled and self.knows(side):
            cold, n, d = result["user_spread"] > 0, self._n_samples, self.factors + 1
            means = np.float32(n) * result["user_factors"][:, : self._base_width]
            means = np.dstack([means.reshape(-1, n, d - 1), result["user_biases"]])[
                cold
            ]
            noise = links.normal_draws((self.random_state, n), means.shape, np.float32)
            noise *= np.sqrt(result["user_spread"][cold])[:, None, None]
            roots = np.linalg.cholesky(self.user_cold_covariance)
            draws = result["user_draws"].copy()
            draws[cold] = (means + np.einsum("sij,nsj->nsi", roots, noise)).reshape(
                -1, n * d
            )
            result["user_draws"] = draws
        return result

    def _noise(self, sample: int) -> float:
        temperature: float = self._options(self.is_ordinal)["temperature"]
        return temperature * float(self.noise_variances[sample])

    def _mean_covariance(
        self,
        sample: int,
        histories: Histories,
        features: CsrArrays | None,
        *,
        of_users: bool,
    ) -> NDArray[np.float64]:
        return mean_covariance(
            self._vectors(sample, of_users=of_users), histories.counts
        )

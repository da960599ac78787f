"""Bayesian matrix factorization of ratings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lowrank.completion.bayes import VariationalSweep, predictive_variance, variational_sweeps
from lowrank.completion.gibbs import GibbsSweep, gibbs_sweeps
from lowrank.completion.links import Posterior, RowPrior, normal_draws, posterior_rows
from lowrank.kernels import CsrArrays, at_most
from recsys.models.base import (
    Floats,
    Histories,
    OnStep,
    Step,
    ValidationWatch,
    breakdown,
    check_indices,
    fitted,
    model,
    validation_rmse,
)
from recsys.models.content import ContentModel
from recsys.models.parameters import parameter, random_state_parameter, threads_parameter

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from recsys.data.ratings import Ratings

_PAIRS = 2**13  # pairs whose covariances are unpacked at a time


@model
class Bayes(ContentModel):
    """Predict a rating as ``mu + b_u + c_i + a_u . m_i`` with learned priors.

    The vectors (a_u, b_u) and (m_i, c_i) have Gaussian posteriors under Gaussian priors with full
    covariances. With links, the prior mean of a user is moreover a linear function of the set of
    items that the user rated, and that of an item of the set of its users, whatever the ratings.
    With features (`with_features`) it is linear in these, too, with a precision for each group of
    them that is learned; items and users without ratings are predicted from theirs.

    Attributes
    ----------
    user_factors, item_factors : float32 ndarrays of shape (n_users, S k) and (n_items, S k)
        Side by side, those of the S kept samples, so that a dot product averages over them (the
        users' are divided by S); S is 1 under variational inference.
    user_covariance, item_covariance : float32 ndarrays of shape (n_users, p) and (n_items, p)
        Under variational inference, posterior covariances of (a_u, b_u) and (m_i, c_i) as upper
        triangles by rows, p = (k + 1)(k + 2) / 2 numbers each: 2.2 kB with 32 factors.
    user_draws : float32 ndarray of shape (n_users, S (k + 1))
        Under Gibbs sampling, draws of (a_u, b_u), from which standard deviations follow.
    noise_variances : float64 ndarray of shape (S,)
        Of a rating around its prediction, if all vectors were known.

    References
    ----------
    Lim and Teh (2007), "Variational Bayesian approach to movie rating prediction". Salakhutdinov
    and Mnih (2008), "Bayesian probabilistic matrix factorization using Markov chain Monte Carlo".
    Koren (2008), "Factorization meets the neighborhood", section 4, for sets of rated items. Simm
    et al. (2017), "Macau: scalable Bayesian factorization with high-dimensional side information
    using MCMC".
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
        1.3, "Temperature; values above 1 widen the posterior.", low=1.0, high=3.0, minimum=1
    )
    count_power: float = parameter(
        0.3, "Power of the number of ratings in the prior precision.", low=0.0, high=1.0
    )
    iterations: int = parameter(
        20, "Maximum number of sweeps of variational inference, from which Gibbs sampling starts."
    )
    tol: float = parameter(
        5e-3, "Stop when a sweep raises the free energy by less than this per rating.", minimum=0
    )
    samples: int = parameter(16, "Number of samples that Gibbs sampling keeps.")
    thinning: int = parameter(4, "Number of Gibbs sweeps per kept sample.")
    burn_in: int = parameter(20, "Number of initial Gibbs sweeps to discard.", minimum=0)
    random_state: int = random_state_parameter()
    threads: int | None = threads_parameter()

    user_biases: Floats = fitted("n_users", "S")
    item_biases: Floats = fitted("n_items", "S")
    user_covariance: Floats = fitted("n_users", "p", when="_keeps_best_sweep")
    item_covariance: Floats = fitted("n_items", "p", when="_keeps_best_sweep")
    user_draws: Floats = fitted("n_users", "drawn", when="_sampled")
    noise_variances: NDArray[np.float64] = fitted("S")
    user_prior_mean: Floats = fitted("S", "d")
    item_prior_mean: Floats = fitted("S", "d")
    user_prior_precision: Floats = fitted("S", "d", "d")
    item_prior_precision: Floats = fitted("S", "d", "d")
    user_link: Floats = fitted("S", "linked_items", "d", when="linked")
    item_link: Floats = fitted("S", "linked_users", "d", when="linked")

    @property
    def _sampled(self) -> bool:
        return self.inference == "gibbs"

    @property
    def _keeps_best_sweep(self) -> bool:
        return not self._sampled

    def _fit(self, ratings: Ratings, on_step: OnStep, validation: Ratings | None) -> None:
        """Minimise minus the free energy, which is the objective in each `Step`."""
        n_samplings = self.burn_in + self.samples * self.thinning
        total = self.iterations + (n_samplings if self._sampled else 0)
        options: dict[str, Any] = {
            "link_penalty": self.link_penalty if self.linked else 0.0,
            "row_features": ratings.user_features,
            "column_features": ratings.item_features,
            "temperature": self.temperature,
            "random_state": self.random_state,
            "threads": self.threads,
        }

        def report(number: int, sweep: VariationalSweep | GibbsSweep) -> float | None:
            objective = -sweep.free_energy if isinstance(sweep, VariationalSweep) else None
            reached = validation_rmse(self, validation)
            if on_step is not None:
                on_step(Step(number, total, objective, sweep.rmse, reached))
            return reached

        sweeps = variational_sweeps(
            ratings.matrix, self.factors, count_power=self.count_power, **options
        )
        before, watch = -math.inf, ValidationWatch()
        for number, sweep in enumerate(islice(sweeps, self.iterations), start=1):
            if not math.isfinite(sweep.free_energy):
                raise breakdown(self, "temperature", "count_power")
            if validation is not None or on_step is not None:
                self._take([sweep])
            if watch.is_best(report(number, sweep)):
                best = sweep
            if watch.over or sweep.free_energy - before <= self.tol * ratings.n_ratings:
                break
            before = sweep.free_energy
        self._take([best])
        if self._sampled:
            kept: list[GibbsSweep] = []
            samplings = gibbs_sweeps(ratings.matrix, best, **options)
            for drawn, sampling in enumerate(islice(samplings, n_samplings), start=1):
                if drawn > self.burn_in and (drawn - self.burn_in) % self.thinning == 0:
                    kept.append(sampling)
                    self._take(kept)
                report(number + drawn, sampling)
        # The users once more, so that a user folded in later gets the very same vector.
        with at_most(self.threads):
            self._fit_content(ratings)

    def predict_std(self, users: ArrayLike, items: ArrayLike) -> Floats:
        """Predictive standard deviations, with the noise of a rating, shape (n_pairs,)."""
        u = check_indices(users, self.n_users, "user")
        i = check_indices(items, self.n_items, "item")
        variance, n = np.empty(len(u), dtype=np.float32), self._n_samples
        for start in range(0, len(u), _PAIRS):
            part = slice(start, start + _PAIRS)
            rows, others = u[part], i[part]
            if self._sampled:
                drawn = self.user_draws[rows].reshape(len(rows), n, -1)
                factors = self.item_vectors()[others].reshape(len(others), n, -1)
                predicted = np.einsum("nsk,nsk->ns", drawn[:, :, :-1], factors)
                predicted += drawn[:, :, -1] + self.item_biases[others]
                variance[part] = predicted.var(axis=1, ddof=1 if n > 1 else 0)
                if self.knows("item"):  # those without ratings are means, not draws
                    drawn[:, :, -1] = 1
                    own = np.einsum("nsi,sij,nsj->n", drawn, self.item_cold_covariance, drawn)
                    variance[part] += self.item_spread[others] * own / n
            else:
                w = np.column_stack([self.user_vectors()[rows], self.user_bias[rows]])
                z = np.column_stack([self.item_vectors()[others], self.item_bias[others]])
                variance[part] = predictive_variance(
                    Posterior(w, self.user_covariance[rows]),
                    Posterior(z, self.item_covariance[others]),
                )
        std: Floats = np.sqrt(variance + np.float32(self.noise_variances.mean()))
        return std

    @property
    def _n_samples(self) -> int:
        return len(self.noise_variances)

    def _take(self, states: Sequence[VariationalSweep | GibbsSweep]) -> None:
        """Set the fitted arrays from one variational sweep or some Gibbs samples."""
        self.global_mean = states[0].mean
        self.noise_variances = np.array([state.noise_variance for state in states])
        for side, axis in (("user", "row"), ("item", "column")):
            priors = [getattr(state, f"{axis}_prior") for state in states]
            setattr(self, f"{side}_prior_mean", np.array([p.mean for p in priors]))
            setattr(self, f"{side}_prior_precision", np.array([p.precision for p in priors]))
            if self.linked:
                setattr(self, f"{side}_link", np.array([p.link for p in priors]))
            if priors[0].features is not None:
                weights = np.array([p.features for p in priors])
                setattr(self, f"{side}_feature_weights", weights)
            vectors = [getattr(state, f"{axis}s") for state in states]
            vars(self).update(self._side(vectors, side == "user"))

    def _side(self, vectors: Sequence[Posterior], of_users: bool) -> dict[str, Floats]:
        """Return the arrays of all users (or items) from their vectors in each sample."""
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
        """Return the arrays that follow from the posterior given each sample of the other side.

        With samples, users have its means, and draws for standard deviations; items have draws.
        """
        drawn = [False, True] if self._sampled and of_users else [self._sampled]
        with at_most(self.threads):
            first, *more = (
                [
                    posterior_rows(
                        CsrArrays(*histories),
                        self._vectors(sample, of_users=not of_users),
                        self._prior(sample, of_users=of_users),
                        mean=self.global_mean,
                        noise=self._noise(sample),
                        features=features,
                        draw_seed=(self.random_state, sample) if draw else None,
                    )
                    for sample in range(self._n_samples)
                ]
                for draw in drawn
            )
        arrays = self._side(first, of_users)
        if more:
            arrays["user_draws"] = np.hstack([vectors.mean for vectors in more[0]])
        return arrays

    def _vectors(self, sample: int, *, of_users: bool) -> Posterior:
        factors = self.user_factors if of_users else self.item_factors
        biases = self.user_biases if of_users else self.item_biases
        k = self.factors
        of_sample = factors[:, sample * k : (sample + 1) * k]
        if of_users:
            of_sample = of_sample * np.float32(self._n_samples)
        vectors = np.column_stack([of_sample, biases[:, sample]])
        if self._sampled:
            return Posterior.exactly(vectors)
        return Posterior(vectors, self.user_covariance if of_users else self.item_covariance)

    def _prior(self, sample: int, *, of_users: bool) -> RowPrior:
        side = "user" if of_users else "item"
        mean, precision = (
            getattr(self, f"{side}_prior_{name}")[sample] for name in ("mean", "precision")
        )
        link = np.zeros((0, len(mean)), np.float32)
        if self.linked:
            link = getattr(self, f"{side}_link")[sample]
        weights = vars(self).get(f"{side}_feature_weights")
        features = None if weights is None else weights[sample]
        return RowPrior(mean, precision, link, self.count_power, features)

    def _fit_slopes(self, side: str, X: csr_array) -> None:
        """Fit slopes; then scale the covariances of rows without ratings to what slopes leave."""
        super()._fit_slopes(side, X)
        covariances = getattr(self, f"{side}_cold_covariance")
        spread, counts = np.zeros(X.shape[0]), np.diff(X.indptr)
        for sample, covariance in enumerate(covariances):
            w = self._vectors(sample, of_users=side == "item").mean.astype(np.float64)
            w[:, -1] = 1
            spread += np.einsum("ni,ij,nj->n", w, covariance, w) / self._n_samples
        left = getattr(self, f"{side}_slope_noise") - float(self.noise_variances.mean())
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
            draws = result["user_draws"].reshape(-1, n, d).copy()
            factors = result["user_factors"][cold, : self._base_width].reshape(-1, n, d - 1)
            noise = normal_draws((self.random_state, n), (len(factors), n, d), np.float32)
            roots = np.linalg.cholesky(self.user_cold_covariance)
            drawn = np.einsum("sij,nsj->nsi", roots, noise)
            drawn *= np.sqrt(result["user_spread"][cold])[:, None, None]
            drawn[:, :, :-1] += factors * np.float32(n)
            drawn[:, :, -1] += result["user_biases"][cold]
            draws[cold] = drawn
            result["user_draws"] = draws.reshape(-1, n * d)
        return result

    def _noise(self, sample: int) -> float:
        return self.temperature * float(self.noise_variances[sample])

    def _uncertain_vectors(
        self, sample: int, histories: Histories, features: CsrArrays | None, *, of_users: bool
    ) -> Posterior:
        return self._vectors(sample, of_users=of_users)

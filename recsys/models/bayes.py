"""Bayesian matrix factorisation of ratings."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lowrank.completion.bayes import VariationalSweep, predictive_variance, variational_sweeps
from lowrank.completion.gibbs import GibbsSweep, gibbs_sweeps
from lowrank.completion.links import Posterior, RowPrior, posterior_rows, posterior_terms
from lowrank.kernels import CsrArrays, at_most
from recsys.models.base import (
    Explanation,
    FactorModel,
    Floats,
    Histories,
    Indices,
    Step,
    check_indices,
    fitted,
    model,
    parameter,
    random_state_parameter,
    threads_parameter,
)
from recsys.models.early_stopping import ValidationWatch, breakdown, validation_rmse

if TYPE_CHECKING:
    from recsys.data.ratings import Ratings

__all__ = ["Bayes", "PosteriorModel"]

_PAIRS = 2**13  # pairs whose covariances are unpacked at a time


@model
class PosteriorModel(FactorModel):
    """A factor model whose vectors have posteriors: Gaussians, or S samples.

    Attributes
    ----------
    user_factors, item_factors : float32 ndarrays of shape (n_users, S k) and (n_items, S k)
        Side by side, those of the S kept samples, so that a dot product averages over them (the
        users' are divided by S); S is 1 under variational inference.
    user_covariance, item_covariance : float32 ndarrays of shape (n_users, p) and (n_items, p)
        Posterior covariances of (a_u, b_u) and (m_i, c_i) as upper triangles by rows, p = (k + 1)
        (k + 2) / 2 numbers each: 2.2 kB with 32 factors. Gibbs sampling has none (p = 0).
    user_draws : float32 ndarray of shape (n_users, S (k + 1))
        Under Gibbs sampling, draws of (a_u, b_u), from which standard deviations follow.
    noise_variances : float64 ndarray of shape (S,)
        Of a rating around its prediction, if all vectors were known.
    """

    if TYPE_CHECKING:  # parameters of the model, which order them as they like
        temperature: float
        count_power: float
        random_state: int
        threads: int | None

    user_biases: Floats = fitted("n_users", "S")
    item_biases: Floats = fitted("n_items", "S")
    user_covariance: Floats = fitted("n_users", "p")
    item_covariance: Floats = fitted("n_items", "p")
    user_draws: Floats = fitted("n_users", "drawn")
    noise_variances: NDArray[np.float64] = fitted("S")
    user_prior_mean: Floats = fitted("S", "d")
    item_prior_mean: Floats = fitted("S", "d")
    user_prior_precision: Floats = fitted("S", "d", "d")
    item_prior_precision: Floats = fitted("S", "d", "d")
    user_link: Floats = fitted("S", "linked_items", "d")
    item_link: Floats = fitted("S", "linked_users", "d")

    def with_users(self, histories: Histories) -> Self:
        """Return the model with other users, folded in from their ratings; the items stay.

        A user of the training ratings with the same ratings gets the very same vector.
        """
        model = copy.copy(self)
        model._set_users(histories)
        model.item_link = _no_link(self.item_link, model.n_users)
        return model

    def with_items(self, histories: Histories) -> Self:
        """Return the model with other items, folded in from their ratings; the users stay."""
        model = copy.copy(self)
        solved = [
            self._solve(s, histories, of_users=False, draw=self._drawn)
            for s in range(self._n_samples)
        ]
        model._set_vectors(solved, of_users=False)
        model.user_link = _no_link(self.user_link, model.n_items)
        return model

    def contributions(self, history: Histories, items: ArrayLike) -> Explanation:
        """Return the scores of `items` for the user with this history, as sums over the history.

        A rated item contributes through its rating and, with links, by having been rated.
        """
        asked = check_indices(items, self.n_items, "item")
        check_indices(history.indices, self.n_items, "item")
        base = np.full(len(asked), self.global_mean) + self.item_bias[asked]
        terms = np.zeros((len(asked), len(history.indices)))
        for s in range(self._n_samples):
            columns = self._vectors(s, of_users=False)
            start, each = posterior_terms(
                CsrArrays(*history),
                columns,
                self._prior(s, of_users=True),
                mean=self.global_mean,
                noise=self.temperature * float(self.noise_variances[s]),
            )
            design = columns.mean[asked].astype(np.float64)
            design[:, -1] = 1
            base += design @ start / self._n_samples
            terms += design @ each.T / self._n_samples
        return Explanation(base.astype(np.float32), terms.astype(np.float32))

    def predict_std(self, users: ArrayLike, items: ArrayLike) -> Floats:
        """Predictive standard deviations of ratings, shape (n_pairs,).

        The uncertainty of the vectors and the noise of a rating together.
        """
        u = check_indices(users, self.n_users, "user")
        i = check_indices(items, self.n_items, "item")
        variance = np.empty(len(u), dtype=np.float32)
        of_pairs = self._spread if self._drawn else self._variance
        for start in range(0, len(u), _PAIRS):
            part = slice(start, start + _PAIRS)
            variance[part] = of_pairs(u[part], i[part])
        std: Floats = np.sqrt(variance + np.float32(self.noise_variances.mean()))
        return std

    @property
    def _n_samples(self) -> int:
        return len(self.noise_variances)

    @property
    def _drawn(self) -> bool:
        """Whether the vectors are samples, without covariances."""
        return not self.item_covariance.size

    def _take(self, states: Sequence[VariationalSweep | GibbsSweep]) -> None:
        """Set what was fitted from one variational sweep or some Gibbs samples."""
        self.global_mean = states[0].mean
        self.noise_variances = np.array([state.noise_variance for state in states])
        for side in ("user", "item"):
            of_users = side == "user"
            priors = [state.row_prior if of_users else state.column_prior for state in states]
            setattr(self, f"{side}_prior_mean", np.array([p.mean for p in priors]))
            setattr(self, f"{side}_prior_precision", np.array([p.precision for p in priors]))
            setattr(self, f"{side}_link", np.array([p.link for p in priors]))
        self._set_vectors([state.rows for state in states], of_users=True)
        self._set_vectors([state.columns for state in states], of_users=False)
        self.user_draws = np.empty((self.n_users, 0), dtype=np.float32)

    def _set_vectors(self, vectors: Sequence[Posterior], *, of_users: bool) -> None:
        n = len(vectors)
        factors: Floats = np.hstack([v.mean[:, :-1] for v in vectors])
        biases: Floats = np.column_stack([v.mean[:, -1] for v in vectors])
        bias = biases.mean(axis=1, dtype=np.float64).astype(np.float32)
        covariance = vectors[0].covariance.astype(np.float32, copy=False)
        if of_users:
            self.user_factors = factors / np.float32(n)
            self.user_biases, self.user_bias = biases, bias
            self.user_covariance = covariance
        else:
            self.item_factors, self.item_biases, self.item_bias = factors, biases, bias
            self.item_covariance = covariance

    def _set_users(self, histories: Histories) -> None:
        """Solve for users given the items as they are."""
        samples = range(self._n_samples)
        self._set_vectors([self._solve(s, histories) for s in samples], of_users=True)
        draws = np.empty((self.n_users, 0), dtype=np.float32)
        if self._drawn:
            draws = np.hstack([self._solve(s, histories, draw=True).mean for s in samples])
        self.user_draws = draws

    def _solve(
        self, sample: int, histories: Histories, *, of_users: bool = True, draw: bool = False
    ) -> Posterior:
        """Return the posterior of users given the items (or the other way round)."""
        n = len(self.item_bias) if of_users else len(self.user_bias)
        check_indices(histories.indices, n, "item" if of_users else "user")
        with at_most(self.threads):
            return posterior_rows(
                CsrArrays(*histories),
                self._vectors(sample, of_users=not of_users),
                self._prior(sample, of_users=of_users),
                mean=self.global_mean,
                noise=self.temperature * float(self.noise_variances[sample]),
                draw_seed=(self.random_state, sample) if draw else None,
            )

    def _vectors(self, sample: int, *, of_users: bool) -> Posterior:
        factors = self.user_factors if of_users else self.item_factors
        biases = self.user_biases if of_users else self.item_biases
        k = factors.shape[1] // self._n_samples
        part = factors[:, sample * k : (sample + 1) * k]
        if of_users:
            part = part * np.float32(self._n_samples)
        covariance = self.user_covariance if of_users else self.item_covariance
        return Posterior(np.column_stack([part, biases[:, sample]]), covariance)

    def _prior(self, sample: int, *, of_users: bool) -> RowPrior:
        side = "user" if of_users else "item"
        mean, precision, link = (
            getattr(self, f"{side}_{what}")[sample]
            for what in ("prior_mean", "prior_precision", "link")
        )
        return RowPrior(mean, precision, link, self.count_power)

    def _variance(self, users: Indices, items: Indices) -> Floats:
        """Variances of pairs under the posterior covariances."""
        of_users = np.column_stack([self.user_factors[users], self.user_bias[users]])
        of_items = np.column_stack([self.item_factors[items], self.item_bias[items]])
        return predictive_variance(
            Posterior(of_users, self.user_covariance[users]),
            Posterior(of_items, self.item_covariance[items]),
        )

    def _spread(self, users: Indices, items: Indices) -> Floats:
        """Variances of pairs over the draws that Gibbs sampling kept."""
        n = self._n_samples
        drawn = self.user_draws[users].reshape(len(users), n, -1)
        factors = self.item_factors[items].reshape(len(items), n, -1)
        predicted = np.einsum("nsk,nsk->ns", drawn[:, :, :-1], factors)
        predicted += drawn[:, :, -1] + self.item_biases[items]
        spread: Floats = predicted.var(axis=1, ddof=1 if n > 1 else 0)
        return spread


def _no_link(link: Floats, n: int) -> Floats:
    """Return the link of rows that are not those of the fit: nothing is known of them."""
    return np.zeros((len(link), n if link.shape[1] else 0, link.shape[2]), link.dtype)


@model
class Bayes(PosteriorModel):
    """Predict a rating as ``mu + b_u + c_i + a_u . m_i`` with learned priors.

    The vectors (a_u, b_u) and (m_i, c_i) have Gaussian posteriors under Gaussian priors with full
    covariances. With links, the prior mean of a user is moreover a linear function of which items
    he rated, and that of an item of which users rated it, whatever the ratings were.

    References
    ----------
    Lim and Teh (2007), "Variational Bayesian approach to movie rating prediction". Salakhutdinov
    and Mnih (2008), "Bayesian probabilistic matrix factorization using Markov chain Monte Carlo".
    Koren (2008), "Factorization meets the neighborhood", section 4, for what a set of rated items
    says. Simm et al. (2017), "Macau: scalable Bayesian factorization with high-dimensional side
    information using MCMC".
    """

    name: ClassVar[str] = "bayes"
    summary: ClassVar[str] = "The most accurate ratings, with standard deviations; slower than als."
    _scores_between_sweeps: ClassVar[bool] = True

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
        2.0,
        "Ridge penalty on the implicit-feedback (who rated what) term.",
        low=0.2,
        high=20.0,
        log=True,
    )
    temperature: float = parameter(
        1.3,
        "Likelihood temperature; values above 1 widen the posterior.",
        low=1.0,
        high=3.0,
        minimum=1,
    )
    count_power: float = parameter(
        0.3,
        "Exponent of the number of ratings that the prior precision grows with.",
        low=0.0,
        high=1.0,
        minimum=0,
    )
    iterations: int = parameter(
        30, "Maximum number of sweeps of variational inference, from which Gibbs sampling starts."
    )
    tol: float = parameter(
        3e-4, "Stop when a sweep raises the free energy by less than this per rating.", minimum=0
    )
    samples: int = parameter(16, "Number of samples that Gibbs sampling keeps.")
    thinning: int = parameter(4, "Number of Gibbs sweeps per kept sample.")
    burn_in: int = parameter(20, "Number of initial Gibbs sweeps to discard.", minimum=0)
    random_state: int = random_state_parameter()
    threads: int | None = threads_parameter()

    @property
    def _keeps_best_sweep(self) -> bool:
        """Whether validation ratings choose the number of sweeps: not those of Gibbs sampling."""
        return self.inference == "variational"

    def fit(
        self,
        ratings: Ratings,
        *,
        on_step: Callable[[Step], None] | None = None,
        validation: Ratings | None = None,
    ) -> Self:
        """Fit to `ratings`.

        Parameters
        ----------
        ratings : Ratings
            With values; not implicit feedback.
        on_step : callable, optional
            Called with a `Step` after each sweep; its objective is minus the free energy.
        validation : Ratings, optional
            Held-out ratings of the same users and items: variational inference stops when their
            RMSE no longer falls, and keeps its best sweep.

        Raises
        ------
        DataError
            If `ratings` are implicit, or the fit breaks down in single precision with these
            parameters.
        """
        self._require_values(ratings)
        history = Histories(ratings.indptr, ratings.indices, ratings.values)
        kept, steps = self._variational(ratings, on_step, validation)
        self._take([kept])
        if self.inference == "gibbs":
            self._take(self._gibbs(ratings, kept, steps, on_step, validation))
        # The users once more, so that a user folded in later gets the very same vector.
        self._set_users(history)
        return self

    def _variational(
        self,
        ratings: Ratings,
        on_step: Callable[[Step], None] | None,
        validation: Ratings | None,
    ) -> tuple[VariationalSweep, int]:
        sweeps = variational_sweeps(
            ratings.matrix,
            self.factors,
            link_penalty=self.link_penalty if self.linked else 0.0,
            count_power=self.count_power,
            temperature=self.temperature,
            random_state=self.random_state,
            threads=self.threads,
        )
        before, watch = -math.inf, ValidationWatch()
        for number, sweep in enumerate(islice(sweeps, self.iterations), start=1):
            if not math.isfinite(sweep.free_energy):
                raise breakdown(self, "temperature", "count_power")
            if validation is not None or on_step is not None:
                self._take([sweep])
            step = self._step(number, sweep, validation)
            if on_step is not None:
                on_step(step)
            if watch.is_best(step.validation_rmse):
                kept = sweep
            if watch.over or sweep.free_energy - before <= self.tol * ratings.n_ratings:
                break
            before = sweep.free_energy
        return kept, number

    def _step(self, number: int, sweep: VariationalSweep, validation: Ratings | None) -> Step:
        return Step(
            step=number,
            total=self._total_steps,
            objective=-sweep.free_energy,
            train_rmse=sweep.rmse,
            validation_rmse=validation_rmse(self, validation),
        )

    def _gibbs(
        self,
        ratings: Ratings,
        start: VariationalSweep,
        first: int,
        on_step: Callable[[Step], None] | None,
        validation: Ratings | None,
    ) -> list[GibbsSweep]:
        sweeps = gibbs_sweeps(
            ratings.matrix,
            start,
            link_penalty=self.link_penalty if self.linked else 0.0,
            temperature=self.temperature,
            random_state=self.random_state,
            threads=self.threads,
        )
        kept: list[GibbsSweep] = []
        total = self.burn_in + self.samples * self.thinning
        for number, sweep in enumerate(islice(sweeps, total), start=1):
            if number > self.burn_in and (number - self.burn_in) % self.thinning == 0:
                kept.append(sweep)
                self._take(kept)
            if on_step is not None:
                on_step(
                    Step(
                        step=first + number,
                        total=self._total_steps,
                        train_rmse=sweep.rmse,
                        validation_rmse=validation_rmse(self, validation),
                    )
                )
        return kept

    @property
    def _total_steps(self) -> int:
        sampling = self.burn_in + self.samples * self.thinning
        return self.iterations + (sampling if self.inference == "gibbs" else 0)

"""Bayesian matrix factorisation: the most accurate ratings, with a standard deviation for each."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, ClassVar, Self

from recsys.errors import DataError
from recsys.models.base import Histories, Range, Step
from recsys.models.posterior import PosteriorModel
from recsys.models.stopping import ValidationWatch, breakdown, validation_rmse

if TYPE_CHECKING:
    from lowrank.gibbs import GibbsSweep
    from lowrank.variational import VariationalSweep
    from recsys.ratings import Ratings

__all__ = ["Bayes"]


@dataclass(kw_only=True, eq=False)
class Bayes(PosteriorModel):
    """Predict a rating as ``mu + b_u + c_i + a_u . m_i`` with learned priors.

    The vectors (a_u, b_u) and (m_i, c_i) have Gaussian posteriors under Gaussian priors with full
    covariances. With links, the prior mean of a user is moreover a linear function of which items
    he rated, and that of an item of which users rated it, whatever the ratings were.

    Parameters
    ----------
    factors : int
        Length k of the vectors a_u and m_i.
    inference : {"variational", "gibbs"}
        Variational Bayes is deterministic, and costs little more than least squares. Gibbs
        sampling makes no assumption of independence; it takes many sweeps and its model is
        `samples` times as large.
    linked : bool
        Whether the priors depend on who rated what.
    link_penalty : float
        Ridge penalty of the links, in units of the prior precision.
    temperature : float
        A rating counts as ``1 / temperature`` of one, at least 1. Above 1 the posterior is less
        sure of itself, which guards against what the model does not know about real ratings.
    count_power : float
        Exponent of the rating count in the prior precision of a user or item.
    iterations : int
        The most sweeps (users, then items) of variational inference. Gibbs sampling starts from
        its result.
    tol : float
        Stop when a sweep raises the free energy by less than this much per rating.
    samples, thinning, burn_in : int
        Gibbs sampling keeps every `thinning`-th sweep after the first `burn_in`, `samples` in all.
    random_state : int
        Seed of the starting point and of the draws. The same seed gives the same result on any
        number of threads.
    threads : int, optional
        All available cores by default.

    References
    ----------
    Lim and Teh (2007), "Variational Bayesian approach to movie rating prediction". Salakhutdinov
    and Mnih (2008), "Bayesian probabilistic matrix factorization using Markov chain Monte Carlo".
    Koren (2008), "Factorization meets the neighborhood", section 4, for what a set of rated items
    says. Simm et al. (2017), "Macau: scalable Bayesian factorization with high-dimensional side
    information using MCMC".
    """

    name: ClassVar[str] = "bayes"
    ranges: ClassVar[Mapping[str, Range]] = {
        "factors": Range(4, 128, log=True),
        "link_penalty": Range(0.2, 20.0, log=True),
        "temperature": Range(1.0, 3.0),
        "count_power": Range(0.0, 1.0),
    }
    scores_between_sweeps: ClassVar[bool] = True

    factors: int = 32
    inference: str = "variational"
    linked: bool = True
    link_penalty: float = 2.0
    temperature: float = 1.3
    count_power: float = 0.3
    iterations: int = 30
    tol: float = 3e-4
    samples: int = 16
    thinning: int = 4
    burn_in: int = 20
    random_state: int = 0
    threads: int | None = None

    def __post_init__(self) -> None:
        for name in ("factors", "iterations", "samples", "thinning"):
            if getattr(self, name) < 1:
                raise DataError(f"{name} must be at least 1; got {getattr(self, name)}.")
        for name in ("tol", "burn_in"):
            if getattr(self, name) < 0:
                raise DataError(f"{name} must not be negative; got {getattr(self, name)}.")
        if self.inference not in ("variational", "gibbs"):
            raise DataError(f"inference must be variational or gibbs; got {self.inference!r}.")
        if not 0 < self.link_penalty < math.inf:
            raise DataError(f"link_penalty must be positive; got {self.link_penalty}.")
        if not 1 <= self.temperature < math.inf:
            raise DataError(f"temperature must be at least 1; got {self.temperature}.")

    @property
    def keeps_best_sweep(self) -> bool:
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
        self.require_values(ratings)
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
        from lowrank.variational import variational_sweeps

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
        from lowrank.gibbs import gibbs_sweeps

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

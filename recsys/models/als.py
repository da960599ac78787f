"""Explicit alternating least squares: a biased matrix factorization of the observed ratings."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from lowrank.completion import links
from lowrank.completion.als import BiasedFactors, als_sweeps, solve_rows
from lowrank.kernels import CsrArrays, at_most
from recsys.models.base import (
    Explanation,
    FactorModel,
    Floats,
    FoldingModel,
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
from recsys.models.parameters import parameter, random_state_parameter, threads_parameter

if TYPE_CHECKING:
    from recsys.data.ratings import Ratings


@model
class ALS(FoldingModel, FactorModel):
    """Predict a rating as ``mu + b_u + c_i + a_u . m_i``, fitted by alternating least squares.

    The ridge penalty of a user or item with n ratings is ``regularization * n**count_power``, in
    units in which the ratings have standard deviation 1.

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
        1.3, "Ridge penalty, for ratings of standard deviation 1.", low=0.1, high=10.0, log=True
    )
    count_power: float = parameter(
        0.5, "Power of the number of ratings in the penalty: 0 is plain ridge.", low=0.0, high=1.0
    )
    linked: bool = parameter(
        False, "Learn also from which items a user rated: slower, more accurate."
    )
    link_penalty: float = parameter(
        10.0, "Ridge penalty on the implicit-feedback (who rated what) term."
    )
    iterations: int = parameter(20, "Maximum number of sweeps (users, then items).")
    tol: float = parameter(
        1e-4, "Stop when a sweep lowers the objective by less than this fraction of it.", minimum=0
    )
    random_state: int = random_state_parameter()
    threads: int | None = threads_parameter()

    rating_std: float = fitted()
    user_prior_mean: Floats = fitted("d", when="linked")
    item_prior_mean: Floats = fitted("d", when="linked")
    user_link: Floats = fitted("linked_items", "d", when="linked")
    item_link: Floats = fitted("linked_users", "d", when="linked")

    _keeps_best_sweep = True

    def _fit(
        self,
        ratings: Ratings,
        on_step: OnStep,
        validation: Ratings | None,
        start: FactorModel | None = None,
    ) -> None:
        self.rating_std = float(ratings.values.std(dtype=np.float64)) or 1.0
        names = "regularization", "count_power", "random_state", "threads"
        options: dict[str, Any] = {name: getattr(self, name) for name in names}
        if start is not None:
            of_users, of_items = start.user_factors, start.item_factors
            options["start"] = BiasedFactors(
                start.global_mean, start.user_bias, start.item_bias, of_users, of_items
            )
        # Only the items and the mean are kept of the best sweep: the users follow from them.
        kept = ["global_mean", "item_bias", "item_factors"]
        if self.linked:
            kept += ["user_prior_mean", "item_prior_mean", "user_link", "item_link"]
            options["link_penalty"] = self.link_penalty
        previous, watch = math.inf, ValidationWatch()
        solver = links.linked_als_sweeps if self.linked else als_sweeps
        sweeps = solver(ratings.matrix, self.factors, **options)
        for number, sweep in enumerate(islice(sweeps, self.iterations), start=1):
            if not math.isfinite(sweep.objective):
                raise breakdown(self, "regularization", "count_power")
            found = sweep.factors
            self.global_mean = found.mean
            self.user_bias, self.item_bias = found.row_bias, found.column_bias
            self.user_factors, self.item_factors = found.row_factors, found.column_factors
            if isinstance(sweep, links.LinkedSweep):
                rows, columns = sweep.row_prior, sweep.column_prior
                self.user_prior_mean, self.item_prior_mean = rows.mean, columns.mean
                self.user_link, self.item_link = rows.link, columns.link
            reached = validation_rmse(self, validation)
            if on_step is not None:
                on_step(Step(number, self.iterations, sweep.objective, sweep.rmse, reached))
            if watch.is_best(reached):
                best = {name: getattr(self, name) for name in kept}
                if validation is not None:  # the next sweep writes to the same arrays
                    best = copy.deepcopy(best)
            if watch.over or previous - sweep.objective <= self.tol * sweep.objective:
                break
            previous = sweep.objective
        for name, value in best.items():
            setattr(self, name, value)
        # The users once more, so that a user folded in later gets the very same vector.
        vars(self).update(self._solved(Histories.of(ratings), of_users=True))

    def contributions(self, history: Histories, items: ArrayLike) -> Explanation:
        """Return the scores of `items` as sums over the history: of ratings and, if any, links."""
        wanted = check_indices(items, self.n_items, "item")
        check_indices(history.indices, self.n_items, "item")
        known, prior = self._vectors(of_users=False), self._prior(of_users=True)
        entries, design = CsrArrays(*history), known.mean[wanted].astype(np.float64)
        design[:, -1] = 1
        start, terms = links.posterior_terms(entries, known, prior, mean=self.global_mean)
        base = self.global_mean + self.item_bias[wanted].astype(np.float64) + design @ start
        return Explanation(base.astype(np.float32), (design @ terms.T).astype(np.float32))

    def _solved(self, histories: Histories, *, of_users: bool) -> dict[str, Floats]:
        entries = CsrArrays(*histories)
        if self.linked:
            with at_most(self.threads):
                known, prior = self._vectors(of_users=not of_users), self._prior(of_users=of_users)
                solved = links.posterior_rows(entries, known, prior, mean=self.global_mean).mean
            factors, bias = solved[:, :-1].copy(), solved[:, -1].copy()
        else:
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

    def _vectors(self, *, of_users: bool) -> links.Posterior:
        factors = self.user_factors if of_users else self.item_factors
        bias = self.user_bias if of_users else self.item_bias
        return links.Posterior.exactly(np.column_stack([factors, bias]))

    def _prior(self, *, of_users: bool) -> links.RowPrior:
        d, scale, dtype = self.factors + 1, self.rating_std, np.float32 if self.linked else float
        mean, link = np.zeros(d, dtype), np.zeros((0, d), dtype)
        if self.linked:
            mean = self.user_prior_mean if of_users else self.item_prior_mean
            link = self.user_link if of_users else self.item_link
        precision = links.ridge_precision(d - 1, self.regularization, scale, dtype)
        return links.RowPrior(mean, precision, link, self.count_power)


class PathPoint(NamedTuple):
    """A model of a regularisation path and its RMSE on the validation ratings."""

    model: ALS
    validation_rmse: float


def regularization_path(
    ratings: Ratings, values: Iterable[float], validation: Ratings, **params: Any
) -> list[PathPoint]:
    """Fit `ALS` for several penalties, from the largest down, each starting from the one before.

    Parameters
    ----------
    ratings, validation : Ratings
        As in `ALS.fit`.
    values : iterable of float
        Values of `regularization`.
    **params
        Other parameters of `ALS`.
    """
    path: list[PathPoint] = []
    for value in sorted(values, reverse=True):
        start = path[-1].model if path else None
        model = ALS(regularization=value, **params).fit(ratings, validation=validation, start=start)
        path.append(PathPoint(model, validation_rmse(model, validation) or 0.0))
    return path

"""Explicit alternating least squares: a biased matrix factorisation of the observed ratings."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike

from recsys.models.base import (
    Explanation,
    FactorModel,
    Floats,
    Histories,
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
    from lowrank.completion.als import AlsSweep, BiasedFactors
    from lowrank.completion.posterior import Posterior, RowPrior
    from recsys.data.ratings import Ratings

__all__ = ["ALS", "PathPoint", "regularization_path"]


@model
class ALS(FactorModel):
    """Predict a rating as ``mu + b_u + c_i + a_u . m_i``, fitted by alternating least squares.

    The ridge penalty of a user or item with n ratings is ``regularization * n**count_power``, in
    units in which the ratings have standard deviation 1.

    References
    ----------
    Zhou, Wilkinson, Schreiber and Pan (2008), "Large-scale parallel collaborative filtering for
    the Netflix prize", section 3. Koren, Bell and Volinsky (2009), "Matrix factorization
    techniques for recommender systems".
    """

    name: ClassVar[str] = "als"
    summary: ClassVar[str] = (
        "Ratings of many users and items: accurate, fast, any number of threads."
    )
    _scores_between_sweeps: ClassVar[bool] = True

    factors: int = parameter(32, "Number of latent factors.", low=4, high=128, log=True)
    regularization: float = parameter(
        1.3,
        "Ridge penalty of the factors, for ratings of standard deviation 1.",
        low=0.1,
        high=10.0,
        log=True,
    )
    count_power: float = parameter(
        0.5,
        "Exponent of the number of ratings that the penalty grows with: 0 is plain ridge.",
        low=0.0,
        high=1.0,
        minimum=0,
    )
    linked: bool = parameter(
        False,
        "Learn also from which items a user rated, whatever the ratings: slower, more accurate.",
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
    user_prior_mean: Floats = fitted("d")
    item_prior_mean: Floats = fitted("d")
    user_link: Floats = fitted("linked_items", "d")
    item_link: Floats = fitted("linked_users", "d")

    @property
    def _keeps_best_sweep(self) -> bool:
        """True: validation ratings choose the number of sweeps."""
        return True

    def fit(
        self,
        ratings: Ratings,
        *,
        on_step: Callable[[Step], None] | None = None,
        validation: Ratings | None = None,
        start: FactorModel | None = None,
    ) -> Self:
        """Fit to `ratings`.

        Parameters
        ----------
        ratings : Ratings
            With values; not implicit feedback.
        on_step : callable, optional
            Called with a `Step` after each sweep.
        validation : Ratings, optional
            Held-out ratings of the same users and items, for the RMSE in each `Step`: the fit
            stops when it no longer falls, and keeps its best sweep.
        start : FactorModel, optional
            A fitted model of the same items and number of factors to begin from.

        Raises
        ------
        DataError
            If `ratings` are implicit, or the fit breaks down in single precision with these
            parameters.
        """
        self._require_values(ratings)
        # Only the items and the mean are kept of the best sweep: the users follow from them.
        self.rating_std = float(ratings.values.std(dtype=np.float64)) or 1.0
        previous, watch = math.inf, ValidationWatch()
        for number, sweep in enumerate(islice(self._sweeps(ratings, start), self.iterations), 1):
            if not math.isfinite(sweep.objective):
                raise breakdown(self, "regularization", "count_power")
            self._take(sweep)
            step = self._step(number, sweep, validation)
            if on_step is not None:
                on_step(step)
            if watch.is_best(step.validation_rmse):
                best = self._state(copy_arrays=validation is not None)
            if watch.over or previous - sweep.objective <= self.tol * sweep.objective:
                break
            previous = sweep.objective
        for name, value in best.items():
            setattr(self, name, value)
        # The users once more, so that a user folded in later gets the very same vector.
        self._set_users(Histories(ratings.indptr, ratings.indices, ratings.values))
        return self

    def with_users(self, histories: Histories) -> Self:
        """Return the model with other users, folded in from their ratings; the items stay.

        A user of the training ratings with the same ratings gets the very same vector.
        """
        model = copy.copy(self)
        model._set_users(histories)
        linked = model.n_users if len(self.item_link) else 0
        model.item_link = np.zeros((linked, self.item_link.shape[1]), np.float32)
        return model

    def with_items(self, histories: Histories) -> Self:
        """Return the model with other items, folded in from their ratings; the users stay."""
        model = copy.copy(self)
        solved = self._solve(histories, of_users=False)
        model.item_factors, model.item_bias = solved[:, :-1].copy(), solved[:, -1].copy()
        linked = model.n_items if len(self.user_link) else 0
        model.user_link = np.zeros((linked, self.user_link.shape[1]), np.float32)
        return model

    def contributions(self, history: Histories, items: ArrayLike) -> Explanation:
        """Return the scores of `items` for the user with this history, as sums over the history.

        A rated item contributes through its rating and, with links, by having been rated.
        """
        from lowrank.completion.posterior import row_terms

        asked = check_indices(items, self.n_items, "item")
        check_indices(history.indices, self.n_items, "item")
        start, each = row_terms(
            history.indices,
            history.values,
            self._vectors(of_users=False),
            self._prior(of_users=True),
            mean=self.global_mean,
            noise=1.0,
        )
        design = np.ones((len(asked), len(start)))
        design[:, :-1] = self.item_factors[asked]
        base = self.global_mean + self.item_bias[asked] + design @ start
        return Explanation(base.astype(np.float32), (design @ each.T).astype(np.float32))

    def _sweeps(self, ratings: Ratings, start: FactorModel | None) -> Iterator[AlsSweep]:
        from lowrank.completion.als import als_sweeps
        from lowrank.completion.linked import linked_als_sweeps

        options: dict[str, Any] = {
            "regularization": self.regularization,
            "count_power": self.count_power,
            "start": None if start is None else _as_start(start),
            "random_state": self.random_state,
            "threads": self.threads,
        }
        if not self.linked:
            return als_sweeps(ratings.matrix, self.factors, **options)
        options["link_penalty"] = self.link_penalty
        return linked_als_sweeps(ratings.matrix, self.factors, **options)

    def _take(self, sweep: AlsSweep) -> None:
        from lowrank.completion.linked import LinkedSweep

        fitted, d = sweep.factors, self.factors + 1
        self.global_mean = fitted.mean
        self.user_bias, self.item_bias = fitted.row_bias, fitted.column_bias
        self.user_factors, self.item_factors = fitted.row_factors, fitted.column_factors
        self.user_prior_mean = self.item_prior_mean = np.zeros(d, np.float32)
        self.user_link = self.item_link = np.zeros((0, d), np.float32)
        if isinstance(sweep, LinkedSweep):
            rows, columns = sweep.row_prior, sweep.column_prior
            self.user_prior_mean, self.item_prior_mean = rows.mean, columns.mean
            self.user_link, self.item_link = rows.link, columns.link

    def _state(self, *, copy_arrays: bool) -> dict[str, Any]:
        """Return what was fitted; the next sweep changes it unless `copy_arrays`."""
        names = ("global_mean", "item_bias", "item_factors", "user_prior_mean", "item_prior_mean")
        state = {name: getattr(self, name) for name in (*names, "user_link", "item_link")}
        return copy.deepcopy(state) if copy_arrays else state

    def _step(self, number: int, sweep: AlsSweep, validation: Ratings | None) -> Step:
        return Step(
            step=number,
            total=self.iterations,
            objective=sweep.objective,
            train_rmse=sweep.rmse,
            validation_rmse=validation_rmse(self, validation),
        )

    def _set_users(self, histories: Histories) -> None:
        solved = self._solve(histories, of_users=True)
        self.user_factors, self.user_bias = solved[:, :-1].copy(), solved[:, -1].copy()

    def _solve(self, histories: Histories, *, of_users: bool) -> Floats:
        """Return the vectors of users given the items (or the other way round)."""
        from lowrank.completion.posterior import solve_rows
        from lowrank.kernels import CsrArrays, at_most

        n = len(self.item_bias) if of_users else len(self.user_bias)
        check_indices(histories.indices, n, "item" if of_users else "user")
        with at_most(self.threads):
            solved: Floats = solve_rows(
                CsrArrays(*histories),
                self._vectors(of_users=not of_users),
                self._prior(of_users=of_users),
                mean=self.global_mean,
                noise=1.0,
            ).mean
        return solved

    def _vectors(self, *, of_users: bool) -> Posterior:
        from lowrank.completion.posterior import Posterior

        factors = self.user_factors if of_users else self.item_factors
        vectors = np.column_stack([factors, self.user_bias if of_users else self.item_bias])
        return Posterior(vectors, np.empty((len(vectors), 0), np.float32))

    def _prior(self, *, of_users: bool) -> RowPrior:
        from dataclasses import replace

        from lowrank.completion.linked import ridge_prior

        ridge = ridge_prior(
            self.factors + 1,
            regularization=self.regularization,
            scale=self.rating_std,
            count_power=self.count_power,
            dtype=np.dtype(np.float32),
        )
        mean = self.user_prior_mean if of_users else self.item_prior_mean
        return replace(ridge, mean=mean, link=self.user_link if of_users else self.item_link)


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

    Returns
    -------
    list of PathPoint
        In the order of falling penalties.
    """
    path: list[PathPoint] = []
    for value in sorted(values, reverse=True):
        start = path[-1].model if path else None
        model = ALS(regularization=value, **params).fit(ratings, validation=validation, start=start)
        reached = validation_rmse(model, validation)
        path.append(PathPoint(model, math.nan if reached is None else reached))
    return path


def _as_start(model: FactorModel) -> BiasedFactors:
    from lowrank.completion.als import BiasedFactors

    return BiasedFactors(
        model.global_mean,
        model.user_bias,
        model.item_bias,
        model.user_factors,
        model.item_factors,
    )

"""Explicit alternating least squares: a biased matrix factorisation of the observed ratings."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike

from recsys.errors import DataError
from recsys.models.base import (
    Explanation,
    FactorModel,
    Floats,
    Histories,
    Step,
    axes,
    check_indices,
)

if TYPE_CHECKING:
    from lowrank.completion import AlsSweep, BiasedFactors
    from recsys.ratings import Ratings

__all__ = ["ALS"]


@dataclass(kw_only=True, eq=False)
class ALS(FactorModel):
    """Predict a rating as ``mu + b_u + c_i + a_u . m_i``, fitted by alternating least squares.

    The ridge penalty of a user or item with n ratings is ``regularization * n**count_power``, in
    units in which the ratings have standard deviation 1.

    Parameters
    ----------
    factors : int
        Length k of the vectors a_u and m_i.
    regularization : float
        Ridge penalty lambda.
    count_power : float
        Exponent g of the rating count: 0 is plain ridge, 1 grows with the count (Zhou et al.
        2008). One half did best on validation data.
    iterations : int
        The most sweeps (users, then items).
    tol : float
        Stop when a sweep lowers the objective by less than this fraction of it.
    random_state : int
        Seed of the starting point. The same seed gives the same result on any number of threads.
    threads : int, optional
        All available cores by default.

    Attributes
    ----------
    scale : float
        Standard deviation of the training ratings, 1 if they are constant.

    References
    ----------
    Zhou, Wilkinson, Schreiber and Pan (2008), "Large-scale parallel collaborative filtering for
    the Netflix prize", section 3. Koren, Bell and Volinsky (2009), "Matrix factorization
    techniques for recommender systems".
    """

    name: ClassVar[str] = "als"

    factors: int = 32
    regularization: float = 1.3
    count_power: float = 0.5
    iterations: int = 20
    tol: float = 1e-4
    random_state: int = 0
    threads: int | None = None
    scale: float = field(init=False, repr=False, metadata=axes())

    def __post_init__(self) -> None:
        if self.factors < 1:
            raise DataError(f"factors must be at least 1; got {self.factors}.")
        if not 0 < self.regularization < math.inf:
            raise DataError(f"regularization must be positive; got {self.regularization}.")
        if self.iterations < 1:
            raise DataError(f"iterations must be at least 1; got {self.iterations}.")
        if self.tol < 0:
            raise DataError(f"tol must not be negative; got {self.tol}.")

    def fit(
        self,
        ratings: Ratings,
        *,
        on_step: Callable[[Step], None] | None = None,
        validation: Ratings | None = None,
        start: FactorModel | None = None,
    ) -> Self:
        """Fit to `ratings`: whole sweeps, then the users once more.

        So the users are exactly what `with_users` makes of their ratings.

        Parameters
        ----------
        ratings : Ratings
            With values; not implicit feedback.
        on_step : callable, optional
            Called with a `Step` after each sweep.
        validation : Ratings, optional
            Held-out ratings of the same users and items, for the RMSE in each `Step`.
        start : FactorModel, optional
            A fitted model of the same items and number of factors to begin from.

        Raises
        ------
        DataError
            If `ratings` are implicit.
        """
        from lowrank.completion import als_sweeps

        self.require_values(ratings)
        sweeps = als_sweeps(
            ratings.matrix,
            self.factors,
            regularization=self.regularization,
            count_power=self.count_power,
            start=None if start is None else _fitted(start),
            random_state=self.random_state,
            threads=self.threads,
        )
        self.scale = float(ratings.values.std(dtype=np.float64)) or 1.0
        previous = math.inf
        for number, sweep in enumerate(islice(sweeps, self.iterations), start=1):
            self._take(sweep.factors)
            if on_step is not None:
                on_step(self._step(number, sweep, validation))
            if previous - sweep.objective <= self.tol * sweep.objective:
                break
            previous = sweep.objective
        self.user_factors, self.user_bias = self._solve(_fitted(self), Histories.of(ratings))
        return self

    def with_users(self, histories: Histories) -> Self:
        """Return the model whose users are these, each by one ridge solve with the items fixed."""
        factors, bias = self._solve(_fitted(self), histories)
        return self.with_arrays(user_factors=factors, user_bias=bias)

    def with_items(self, histories: Histories) -> Self:
        """Return the model whose items are these, each by one ridge solve with the users fixed."""
        factors, bias = self._solve(_transposed(_fitted(self)), histories)
        return self.with_arrays(item_factors=factors, item_bias=bias)

    def contributions(self, history: Histories, items: ArrayLike) -> Explanation:
        """Take the scores of `items` apart into mean and item bias, and what each rating adds.

        With the items fixed, the factors and the bias of a user are linear in what its ratings
        leave over after the mean and the items' biases.
        """
        from recsys.models.folding import ridge_terms

        asked = check_indices(items, self.n_items, "item")
        weight = max(1, len(history.indices)) ** self.count_power * self.regularization
        terms = ridge_terms(
            self.item_factors[history.indices],
            history.values - self.global_mean - self.item_bias[history.indices],
            self.item_factors[asked],
            penalty=weight * self.scale,
            bias_penalty=weight,
        )
        return Explanation(self.item_bias[asked] + np.float32(self.global_mean), terms)

    def _solve(self, fitted: BiasedFactors, rows: Histories) -> tuple[Floats, Floats]:
        from lowrank.completion import solve_rows

        return solve_rows(
            *rows,
            fitted,
            regularization=self.regularization,
            count_power=self.count_power,
            scale=self.scale,
            threads=self.threads,
        )

    def _take(self, fitted: BiasedFactors) -> None:
        self.global_mean = fitted.mean
        self.user_bias, self.item_bias = fitted.row_bias, fitted.column_bias
        self.user_factors, self.item_factors = fitted.row_factors, fitted.column_factors

    def _step(self, number: int, sweep: AlsSweep, validation: Ratings | None) -> Step:
        return Step(
            step=number,
            total=self.iterations,
            objective=sweep.objective,
            train_rmse=sweep.rmse,
            validation_rmse=None if validation is None else self._rmse(validation),
        )

    def _rmse(self, held_out: Ratings) -> float:
        predicted = self.predict(held_out.user_index_of_nonzeros(), held_out.indices)
        return float(np.sqrt(np.mean((predicted - held_out.values) ** 2, dtype=np.float64)))


def _fitted(model: FactorModel) -> BiasedFactors:
    from lowrank.completion import BiasedFactors

    return BiasedFactors(
        model.global_mean,
        model.user_bias,
        model.item_bias,
        model.user_factors,
        model.item_factors,
    )


def _transposed(fitted: BiasedFactors) -> BiasedFactors:
    return replace(
        fitted,
        row_bias=fitted.column_bias,
        column_bias=fitted.row_bias,
        row_factors=fitted.column_factors,
        column_factors=fitted.row_factors,
    )

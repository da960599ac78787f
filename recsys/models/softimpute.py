"""Soft-impute: biases, and what they leave over completed under a nuclear-norm penalty."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

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
from recsys.models.baselines import Bias

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from lowrank import SoftImputation
    from recsys.data.ratings import Ratings

__all__ = ["SoftImpute"]

_HELD_OUT = 0.1  # of the ratings, to choose the regularization
_FEWEST = 20  # ratings below which none are held out


@model
class SoftImpute(FactorModel):
    """Predict a rating as ``mu + b_u + c_i + a_u . m_i``, the last term by soft-impute.

    The biases are those of the model bias. What they leave over is completed by the matrix Z that
    minimises ``sum (r_ui - z_ui)^2 / 2 + regularization * (sum of the singular values of Z)``: a
    convex problem whose solution has a rank of its own.

    Attributes
    ----------
    penalty : float
        The regularization given or chosen.

    References
    ----------
    Mazumder, Hastie and Tibshirani (2010), "Spectral regularization algorithms for learning large
    incomplete matrices". Hastie, Mazumder, Lee and Zadeh (2015), "Matrix completion and low-rank
    SVD via fast alternating least squares".
    """

    name: ClassVar[str] = "softimpute"
    summary: ClassVar[str] = (
        "Ratings of small or medium data, with a rank that follows from one penalty."
    )
    _scores_between_sweeps: ClassVar[bool] = True

    regularization: float | None = parameter(
        None,
        "Nuclear-norm penalty; by default the best of a path on a tenth of the ratings, held out.",
    )
    max_rank: int = parameter(100, "Maximum number of latent factors.")
    user_damping: float = parameter(
        5.0,
        "Ridge penalty of the user biases, in ratings.",
        low=0.1,
        high=100.0,
        log=True,
        minimum=0,
    )
    item_damping: float = parameter(
        5.0,
        "Ridge penalty of the item biases, in ratings.",
        low=0.1,
        high=100.0,
        log=True,
        minimum=0,
    )
    tol: float = parameter(0.01, "Relative duality gap at which to stop.")
    random_state: int = random_state_parameter()
    threads: int | None = threads_parameter()

    penalty: float = fitted()

    def fit(
        self,
        ratings: Ratings,
        *,
        on_step: Callable[[Step], None] | None = None,
        validation: Ratings | None = None,
    ) -> Self:
        """Fit to `ratings`, by way of a few larger penalties.

        Parameters
        ----------
        ratings : Ratings
            With values; not implicit feedback.
        on_step : callable, optional
            Called with a `Step` after each penalty.
        validation : Ratings, optional
            Held-out ratings of the same users and items, for the RMSE in each `Step`.

        Raises
        ------
        DataError
            If `ratings` are implicit.
        """
        from lowrank import kernels
        from lowrank.completion.nuclear_norm import penalties_to, soft_impute_path

        self._require_values(ratings)
        with kernels.at_most(self.threads):
            bias = self._bias_model().fit(ratings)
            self.global_mean = bias.global_mean
            self.user_bias, self.item_bias = bias.user_bias, bias.item_bias
            left_over = _left_over(ratings, bias)
            self.penalty = self.regularization or self._chosen(ratings) or _largest(left_over)
            grid = penalties_to(self.penalty, left_over)
            path = soft_impute_path(left_over, grid, **self._options(ratings), tol=self.tol)
            for number, solution in enumerate(path, start=1):
                self._take(solution)
                if on_step is not None:
                    on_step(self._step(number, len(grid), solution, validation))
            self.user_bias, self.user_factors = self._users(Histories.of(ratings))
        return self

    def with_users(self, histories: Histories) -> Self:
        """Return the model whose users are these: a bias and a ridge solve, the items fixed.

        The factors of Z, taken so that Z is ``A M'`` and its penalty ``(|A|^2 + |M|^2) / 2``, are
        each other's ridge regressions.
        """
        check_indices(histories.indices, self.n_items, "item")
        bias, factors = self._users(histories)
        return self._with_arrays(user_bias=bias, user_factors=factors)

    def with_items(self, histories: Histories) -> Self:
        """Return the model whose items are these: a bias and a ridge solve, the users fixed."""
        check_indices(histories.indices, self.n_users, "user")
        bias, factors = self._solved(
            histories, self.user_bias, self.user_factors, self.item_damping
        )
        return self._with_arrays(item_bias=bias, item_factors=factors)

    def contributions(self, history: Histories, items: ArrayLike) -> Explanation:
        """Take the scores of `items` for the one user of `history` apart, a term per rating.

        A rating has its share in the user's bias and, by what the biases leave of it, in the
        user's factors, which are linear in it. ``base`` is the mean and the bias of the item.
        """
        asked = check_indices(items, self.n_items, "item")
        rated = check_indices(history.indices, self.n_items, "item")
        M = self.item_factors[rated].astype(np.float64)
        deviation = history.values - np.float64(self.global_mean) - self.item_bias[rated]
        divisor = len(rated) + self.user_damping
        shares = deviation / divisor if divisor else deviation
        ridge = M.T @ M + self.penalty * np.eye(M.shape[1])
        weights = self.item_factors[asked] @ np.linalg.solve(ridge, M.T)
        terms = shares + weights * (deviation - shares.sum())
        base = self.item_bias[asked] + np.float32(self.global_mean)
        return Explanation(base, terms.astype(np.float32))

    def _bias_model(self) -> Bias:
        return Bias(user_damping=self.user_damping, item_damping=self.item_damping)

    def _options(self, ratings: Ratings) -> dict[str, int]:
        rank = min(self.max_rank, ratings.n_users, ratings.n_items)
        return {"max_rank": rank, "random_state": self.random_state}

    def _chosen(self, ratings: Ratings) -> float | None:
        """Return the penalty that predicts held-out ratings best; None if there are too few."""
        from lowrank.completion.nuclear_norm import held_out_path
        from lowrank.completion.observed import hold_out

        if ratings.n_ratings < _FEWEST:
            return None
        kept, others = hold_out(ratings.matrix, _HELD_OUT, self.random_state)
        rest = replace(
            ratings,
            indptr=kept.indptr.astype(np.int64),
            indices=kept.indices.astype(np.int32),
            values=kept.data,
            timestamps=None,
        )
        bias = self._bias_model().fit(rest)
        others = others._replace(values=others.values - bias.predict(others.rows, others.columns))
        return held_out_path(_left_over(rest, bias), others, **self._options(ratings)).best

    def _take(self, solution: SoftImputation) -> None:
        root = np.sqrt(solution.s)
        self.user_factors = _with_a_column(solution.U * root)
        self.item_factors = _with_a_column(solution.Vt.T * root)

    def _step(
        self, number: int, total: int, solution: SoftImputation, validation: Ratings | None
    ) -> Step:
        rmse = None
        if validation is not None:
            predicted = self.predict(validation.user_index_of_nonzeros(), validation.indices)
            squares = np.square(predicted - validation.values, dtype=np.float64)
            rmse = math.sqrt(squares.mean()) if len(squares) else None
        return Step(number, total, float(solution.objectives[-1]), solution.rmse, rmse)

    def _users(self, histories: Histories) -> tuple[Floats, Floats]:
        return self._solved(histories, self.item_bias, self.item_factors, self.user_damping)

    def _solved(
        self, rows: Histories, other_bias: Floats, other_factors: Floats, damping: float
    ) -> tuple[Floats, Floats]:
        """Return bias and factors of some rows, with the other side fixed."""
        from lowrank import kernels

        counts = np.diff(rows.indptr)
        row_of_each = np.repeat(np.arange(len(counts)), counts)
        deviations = rows.values - np.float64(self.global_mean) - other_bias[rows.indices]
        sums = np.bincount(row_of_each, deviations, minlength=len(counts))
        divisors = counts + damping
        bias = np.divide(sums, divisors, out=np.zeros(len(counts)), where=divisors > 0)
        left_over = (deviations - bias[row_of_each]).astype(np.float32)
        factors = kernels.aligned_zeros((len(counts), other_factors.shape[1]), np.float32)
        kernels.als_half_sweep(
            rows.indptr,
            rows.indices,
            left_over,
            np.ascontiguousarray(other_factors),
            penalty=np.full(len(counts), self.penalty, np.float32),
            factors=factors,
            threads=self.threads,
        )
        return bias.astype(np.float32), factors


def _left_over(ratings: Ratings, bias: Bias) -> csr_array:
    """Return the ratings minus their biases; the matrix shares the structure of the ratings."""
    from scipy import sparse

    values = ratings.values - bias.predict(ratings.user_index_of_nonzeros(), ratings.indices)
    return sparse.csr_array((values, ratings.indices, ratings.indptr), shape=ratings.shape)


def _largest(left_over: csr_array) -> float:
    """Return the penalty from which on nothing but the biases is left; any, if they are exact."""
    from lowrank.completion.nuclear_norm import largest_regularization

    return largest_regularization(left_over) or 1.0


def _with_a_column(factors: NDArray[np.floating]) -> Floats:
    """Return the factors, or one column of zeros if there is none: a saved array is never empty."""
    if factors.shape[1] == 0:
        return np.zeros((len(factors), 1), np.float32)
    return np.ascontiguousarray(factors, np.float32)

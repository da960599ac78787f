"""Soft-impute: biases, and nuclear-norm regularized completion of their residuals."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from lowrank import kernels
from recsys.models.base import FactorModel, FoldingModel, Progress, RatingModel
from recsys.models.baselines import Bias, damped_biases, damping_parameter
from recsys.models.histories import Explanation, Histories
from recsys.models.parameters import (
    fitted,
    model,
    parameter,
    random_state_parameter,
    threads_parameter,
)
from recsys.models.parts import OTHER, AnyFloats, Floats

if TYPE_CHECKING:
    from recsys.data.ratings import Ratings

_TEST_FRACTION = 0.1  # share of the ratings held out to choose the regularization
_FEWEST = 20  # minimum number of ratings for holding some out


@model
class SoftImpute(RatingModel, FoldingModel, FactorModel):
    """Predict a rating as ``mu + b_u + c_i + a_u . m_i``, with the last term by soft-impute.

    The biases are the same as in `Bias`. Their residuals r are completed by the matrix Z that
    minimises ``sum (r_ui - z_ui)^2 / 2 + regularization * (sum of the singular values of Z)``. The
    problem is convex, and the penalty determines the rank of its solution.

    Attributes
    ----------
    penalty : float
        The regularization, as given or as chosen on held-out ratings.

    References
    ----------
    Mazumder, Hastie and Tibshirani (2010), "Spectral regularization algorithms for learning large
    incomplete matrices". Hastie, Mazumder, Lee and Zadeh (2015), "Matrix completion and low-rank
    SVD via fast alternating least squares".
    """

    name = "softimpute"
    summary = (
        "Ratings of small or medium data, with a rank that follows from one penalty."
    )
    _scores_between_sweeps = True

    regularization: float | None = parameter(
        None,
        "Nuclear-norm penalty; by default the best of a path on a tenth of the ratings, held out.",
    )
    factors: int = parameter(100, "Maximum number of latent factors.")
    user_damping: float = damping_parameter("user")
    item_damping: float = damping_parameter("item")
    tol: float = parameter(0.01, "Relative duality gap at which to stop.")
    random_state: int = random_state_parameter()
    threads: int | None = threads_parameter()

    penalty: float = fitted()

    def _fit(self, ratings: Ratings, progress: Progress) -> None:
        """Fit a decreasing sequence of penalties with warm starts; each is a `Step`."""
        # Importing the solvers, which only a fit needs, takes longer than loading a saved model.
        from lowrank.completion import nuclear_norm

        rank = min(self.factors, *ratings.shape)
        with kernels.at_most(self.threads):
            bias = self._bias().fit(ratings)
            residual = bias.residuals(ratings)
            self.global_mean = bias.global_mean
            self.user_bias, self.item_bias = bias.user_bias, bias.item_bias
            if self.regularization is not None:
                self.penalty = self.regularization
            elif ratings.n_ratings >= _FEWEST:
                self.penalty = self._chosen_penalty(ratings, rank)
            else:  # biases only; any penalty will do if they are exact
                self.penalty = nuclear_norm.largest_regularization(residual) or 1.0
            # Warm starts from larger penalties take less time than one fit from zero.
            grid = nuclear_norm.penalties_to(self.penalty, residual)
            path = nuclear_norm.soft_impute_path(
                residual,
                grid,
                max_rank=rank,
                random_state=self.random_state,
                tol=self.tol,
            )
            for number, solution in enumerate(path, start=1):
                # U s^(1/2) and V s^(1/2) have the same penalty, which folding in uses.
                root = np.sqrt(solution.s)
                self.user_factors = _with_a_column(solution.U * root)
                self.item_factors = _with_a_column(solution.Vt.T * root)
                objective = float(solution.objectives[-1])
                progress.report(self, number, len(grid), objective, solution.rmse)
            vars(self).update(self._solved("user", Histories.of(ratings)))

    def _bias(self) -> Bias:
        return Bias(user_damping=self.user_damping, item_damping=self.item_damping)

    def _chosen_penalty(self, ratings: Ratings, rank: int) -> float:
        """Return the penalty with the smallest error on held-out ratings."""
        from lowrank.completion import nuclear_norm
        from lowrank.completion.observed import hold_out

        training, test = hold_out(ratings.matrix, _TEST_FRACTION, self.random_state)
        training_ratings = replace(
            ratings,
            indptr=training.indptr.astype(np.int64),
            indices=training.indices.astype(np.int32),
            data=training.data,
            levels=None,
            seconds=None,
        )
        bias = self._bias().fit(training_ratings)
        errors = test.values - bias.predict(test.rows, test.columns)
        return nuclear_norm.choose_regularization(
            bias.residuals(training_ratings),
            held_out=test._replace(values=errors),
            max_rank=rank,
            random_state=self.random_state,
        ).best

    def contributions(
        self,
        history: Histories,
        items: ArrayLike,
        fitted: Ratings | None = None,
    ) -> Explanation:
        """Return the scores of `items` as sums over the history.

        A rating contributes to the user's bias and, by its residual, to the user's factors.
        """
        columns, rated = self._checked_history(history, items)
        M = self.item_factors.take(rated, axis=0).astype(np.float64)
        deviation = (
            history.values - np.float64(self.global_mean) - self.item_bias[rated]
        )
        divisor = len(rated) + self.user_damping
        shares = deviation / divisor if divisor else deviation
        listed = self.item_factors.take(columns, axis=0).astype(np.float64)
        # M (M'M + penalty)^-1 = (MM' + penalty)^-1 M: the smaller system is solved.
        n, k = M.shape
        is_short = 0 < n < k
        system = M @ M.T if is_short else M.T @ M
        system.flat[:: len(system) + 1] += self.penalty
        right = listed @ M.T if is_short else listed
        weights = kernels.solve_positive(system, right)
        if not is_short:
            weights = weights @ M.T
        terms = shares + weights * (deviation - shares.sum())
        base = self.item_bias[columns] + np.float32(self.global_mean)
        return self._explanation(base, terms, columns)

    def _solved(self, side: str, histories: Histories) -> dict[str, Any]:
        """Compute biases, then factors by ridge regression."""
        other_factors, other_bias = self._vectors_of(OTHER[side])
        damping = self.user_damping if side == "user" else self.item_damping
        deviations, bias = damped_biases(
            histories, self.global_mean, other_bias, damping
        )
        # The vector explains what the biases leave.
        left_over = (deviations - bias[histories.rows]).astype(np.float32)
        factors = kernels.aligned_zeros((len(bias), other_factors.shape[1]), np.float32)
        kernels.als_half_sweep(
            (histories.indptr, histories.indices, left_over),
            np.ascontiguousarray(other_factors),
            penalty=np.full(len(bias), self.penalty, np.float32),
            factors=factors,
            threads=self.threads,
        )
        return {f"{side}_bias": bias.astype(np.float32), f"{side}_factors": factors}


def _with_a_column(factors: AnyFloats) -> Floats:
    """Return the factors, or a column of zeros for rank 0, since saved arrays are never empty."""
    columns = factors if factors.shape[1] else np.zeros((len(factors), 1))
    return np.ascontiguousarray(columns, np.float32)

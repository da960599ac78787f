"""Implicit ALS as Spark fits it, to be opened and used on one machine."""

from __future__ import annotations

from typing import Any, ClassVar, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recsys.errors import DataError
from recsys.models.base import (
    Explanation,
    FactorModel,
    Floats,
    FoldingModel,
    Histories,
    check_indices,
    model,
)
from recsys.models.parameters import parameter, random_state_parameter


@model
class ImplicitALS(FoldingModel, FactorModel):
    """Scores ``x_u . y_i`` of interactions, fitted by Spark's implicit alternating least squares.

    A pair without an interaction has the target 0 and the weight 1; a pair with the value r has the
    target 1 (0 if r is not positive) and the weight ``1 + alpha |r|``. The ridge penalty of a user
    or item with n interactions is ``regularization * n``.

    References
    ----------
    Hu, Koren and Volinsky (2008), "Collaborative filtering for implicit feedback datasets",
    section 4.
    """

    name: ClassVar[str] = "spark-implicit-als"
    summary: ClassVar[str] = "Implicit alternating least squares, fitted on a Spark cluster."
    _needs_values: ClassVar[bool] = False
    predicts_ratings: ClassVar[bool] = False

    factors: int = parameter(32, "Number of latent factors.")
    regularization: float = parameter(0.1, "Ridge penalty.")
    alpha: float = parameter(10.0, "Additional weight of an interaction per unit of its value.")
    iterations: int = parameter(15, "Number of sweeps over items and users.")
    random_state: int = random_state_parameter()

    def fit(self, ratings: Any, **_options: Any) -> NoReturn:
        """Raise an error: this model is fitted on Spark only.

        Raises
        ------
        DataError
            Always.
        """
        raise DataError(
            "The spark-implicit-als model is fitted on Spark; use recsys fit --engine spark."
        )

    def contributions(self, history: Histories, items: ArrayLike) -> Explanation:
        """Return the scores of `items` for the user with this history, as sums over the history."""
        wanted = check_indices(items, self.n_items, "item")
        check_indices(history.indices, self.n_items, "item")
        vectors = self.item_factors.astype(np.float64)
        system, right = self._system(vectors.T @ vectors, vectors[history.indices], history.values)
        terms = vectors[wanted] @ np.linalg.solve(system, right.T)
        return Explanation(np.zeros(len(wanted), np.float32), terms.astype(np.float32))

    def _solved(self, histories: Histories, *, of_users: bool) -> dict[str, Floats]:
        side, others = ("user", self.item_factors) if of_users else ("item", self.user_factors)
        vectors = others.astype(np.float64)
        gram = vectors.T @ vectors
        solved = np.zeros((histories.n_rows, others.shape[1]), np.float32)
        for row in np.flatnonzero(histories.counts):
            own = slice(histories.indptr[row], histories.indptr[row + 1])
            chosen = vectors[histories.indices[own]]
            system, right = self._system(gram, chosen, histories.values[own])
            solved[row] = np.linalg.solve(system, right.sum(axis=0))
        return {f"{side}_factors": solved, f"{side}_bias": np.zeros_like(solved[:, 0])}

    def _system(
        self, gram: NDArray[np.float64], chosen: NDArray[np.float64], values: Floats
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the normal matrix, and each interaction's share of the right-hand side."""
        extra = self.alpha * np.abs(values.astype(np.float64))
        liked = values > 0
        system = gram + (chosen * extra[:, None]).T @ chosen
        system[np.diag_indices_from(system)] += self.regularization * max(1, liked.sum())
        return system, chosen * np.where(liked, 1 + extra, 0.0)[:, None]

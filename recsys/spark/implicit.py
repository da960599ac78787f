"""Implicit ALS as MLlib fits it, and the model that it leaves."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recsys.errors import DataError
from recsys.models.base import Explanation, FactorModel, Floats, Histories, check_indices

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from recsys.spark.fitting import FitJob, Fitted

__all__ = ["ImplicitALS", "fit_implicit"]


@dataclass(kw_only=True, eq=False)
class ImplicitALS(FactorModel):
    """Score contacts as ``x_u . y_i``, fitted by Spark's implicit alternating least squares.

    A pair without contact has the target 0 and the weight 1; a pair with the value r has the target
    1 (0 if r is not positive) and the weight ``1 + alpha |r|``. The ridge penalty of a user or item
    with n contacts is ``regularization * n``.

    Parameters
    ----------
    factors : int
        Length of the vectors x_u and y_i.
    regularization : float
        Ridge penalty lambda.
    alpha : float
        How much surer a contact is than none.
    iterations : int
        Number of sweeps (items, then users).
    random_state : int
        Seed of the starting point.

    References
    ----------
    Hu, Koren and Volinsky (2008), "Collaborative filtering for implicit feedback datasets",
    section 4.
    """

    name: ClassVar[str] = "spark-implicit-als"
    needs_values: ClassVar[bool] = False
    predicts_ratings: ClassVar[bool] = False

    factors: int = 32
    regularization: float = 0.1
    alpha: float = 10.0
    iterations: int = 15
    random_state: int = 0

    def __post_init__(self) -> None:
        for name in ("factors", "iterations"):
            if getattr(self, name) < 1:
                raise DataError(f"{name} must be at least 1; got {getattr(self, name)}.")
        for name in ("regularization", "alpha"):
            if not 0 < getattr(self, name) < math.inf:
                raise DataError(f"{name} must be positive; got {getattr(self, name)}.")

    def fit(self, ratings: Any, **_options: Any) -> NoReturn:
        """Refuse: this model is fitted on Spark only.

        Raises
        ------
        DataError
            Always.
        """
        raise DataError(
            "The spark-implicit-als model is fitted on Spark; use recsys fit --engine spark."
        )

    def with_users(self, histories: Histories) -> Self:
        """Return the model with other users, folded in from their contacts; the items stay."""
        check_indices(histories.indices, self.n_items, "item")
        model = copy.copy(self)
        model.user_factors = self._solve(histories, self.item_factors)
        model.user_bias = np.zeros(histories.n_rows, np.float32)
        return model

    def with_items(self, histories: Histories) -> Self:
        """Return the model with other items, folded in from their contacts; the users stay."""
        check_indices(histories.indices, self.n_users, "user")
        model = copy.copy(self)
        model.item_factors = self._solve(histories, self.user_factors)
        model.item_bias = np.zeros(histories.n_rows, np.float32)
        return model

    def contributions(self, history: Histories, items: ArrayLike) -> Explanation:
        """Return the scores of `items` for the user with this history, as sums over the history."""
        asked = check_indices(items, self.n_items, "item")
        check_indices(history.indices, self.n_items, "item")
        vectors = self.item_factors.astype(np.float64)
        gram = vectors.T @ vectors
        chosen = vectors[history.indices]
        system, right = self._system(gram, chosen, history.values)
        terms = vectors[asked] @ np.linalg.solve(system, right.T)
        return Explanation(np.zeros(len(asked), np.float32), terms.astype(np.float32))

    def _solve(self, rows: Histories, others: Floats) -> Floats:
        vectors = others.astype(np.float64)
        gram = vectors.T @ vectors
        solved = np.zeros((rows.n_rows, others.shape[1]), np.float32)
        for row in np.flatnonzero(rows.counts):
            part = slice(rows.indptr[row], rows.indptr[row + 1])
            system, right = self._system(gram, vectors[rows.indices[part]], rows.values[part])
            solved[row] = np.linalg.solve(system, right.sum(axis=0))
        return solved

    def _system(
        self, gram: NDArray[np.float64], chosen: NDArray[np.float64], values: Floats
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the normal matrix, and what each contact adds to the right-hand side."""
        extra = self.alpha * np.abs(values.astype(np.float64))
        liked = values > 0
        system = gram + (chosen * extra[:, None]).T @ chosen
        system[np.diag_indices_from(system)] += self.regularization * max(1, liked.sum())
        return system, chosen * np.where(liked, 1 + extra, 0.0)[:, None]


def fit_implicit(job: FitJob) -> Fitted:
    """Fit implicit ALS: MLlib does all of it and ends with the users, as `with_users` solves."""
    from recsys.spark.fitting import Fitted
    from recsys.spark.indexing import pairs_of
    from recsys.spark.mllib import MLlibSettings, blocks_for, mllib_factors
    from recsys.spark.watching import watching

    settings = MLlibSettings(
        factors=job.parameters["factors"],
        iterations=job.parameters["iterations"],
        seed=job.parameters["random_state"],
        penalty=job.parameters["regularization"],
        blocks=blocks_for(job.summary.ratings),
        alpha=job.parameters["alpha"],
    )
    with watching(job.spark, f"{settings.iterations} sweeps of MLlib", job.say):
        ratings = pairs_of(job.users).toDF("user", "item", "rating")
        users, items = mllib_factors(ratings, settings, job.scratch)
        users = _written(job, users, job.users, "users")
        items = _written(job, items, job.items, "items")
    return Fitted(users, items, {"global_mean": 0.0}, settings.iterations)


def _written(job: FitJob, factors: DataFrame, rows: DataFrame, name: str) -> DataFrame:
    """Write factors as vectors without biases, and return them."""
    from pyspark.sql import functions as sql

    from recsys.spark.files import written

    counts = rows.select("index", sql.size("others").alias("count"))
    bias = sql.lit(0.0).cast("float").alias("bias")
    vectors = factors.join(counts, "index").select("index", "count", bias, "factors")
    return written(vectors, job.scratch.child(name))

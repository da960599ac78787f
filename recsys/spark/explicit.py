"""`als` on Spark: biases, MLlib's sweeps on what they leave over, and some sweeps of our own.

MLlib knows no biases and multiplies its penalty by the number of ratings, which predicts worse.
Its item vectors are where a few sweeps in the objective of `als` itself begin, with the biases
among the unknowns. They end with the users, so that the result is the model of
`recsys.models.als.ALS` in every respect.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from recsys.models.base import Floats, Step
from recsys.models.stopping import breakdown
from recsys.spark.biases import Biases, damped_biases, residuals
from recsys.spark.files import written
from recsys.spark.fitting import FitJob, Fitted
from recsys.spark.measuring import rating_errors
from recsys.spark.mllib import MLlibSettings, blocks_for, mllib_factors, mllib_penalty
from recsys.spark.sweeps import Solver, dense_vectors, half_sweep
from recsys.spark.watching import watching

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["OWN_SWEEPS", "fit_als"]

OWN_SWEEPS = 5
"""Sweeps after those of MLlib, or half of all sweeps where these are fewer than twice as many."""


def fit_als(job: FitJob) -> Fitted:
    """Fit the model; see the module's docstring."""
    with watching(job.spark, "fitting biases", job.say):
        biases = damped_biases(job.spark, job.users, job.summary.mean, job.summary.items)
    total = max(2, int(job.parameters["iterations"]))
    own = min(OWN_SWEEPS, total // 2)
    sweeps = total - own
    with watching(job.spark, f"{sweeps} sweeps of MLlib", job.say):
        items = _begin(job, biases, sweeps)
    mean, rmse = job.summary.mean, None
    for sweep in range(1, own + 1):
        with watching(job.spark, f"sweep {sweeps + sweep}", job.say):
            users = _solve(job, items, mean, of_users=True, name=f"users-{sweep}")
            mean += _mean_residual(job, users)
            items = _solve(job, users, mean, of_users=False, name=f"items-{sweep}")
            mean += _mean_residual(job, items)
            if sweep == own:
                users = _solve(job, items, mean, of_users=True, name="users")
            rmse = _held_out(job, users, items, mean)
        if job.on_step is not None and rmse is not None:
            job.on_step(Step(step=sweeps + sweep, total=total, validation_rmse=rmse))
    numbers = {"global_mean": mean, "rating_std": _rating_std(job)}
    return Fitted(users, items, numbers, total, rmse)


def _begin(job: FitJob, biases: Biases, sweeps: int) -> DataFrame:
    """Run MLlib on what the biases leave over, and write its item vectors with the biases."""
    settings = MLlibSettings(
        factors=job.parameters["factors"],
        iterations=sweeps,
        seed=job.parameters["random_state"],
        penalty=_penalty(job),
        blocks=blocks_for(job.summary.ratings),
    )
    left_over = residuals(job.spark, job.users, biases)
    _, items = mllib_factors(left_over, settings, job.scratch)
    from pyspark.sql import functions as sql

    known = [(index, float(bias)) for index, bias in enumerate(biases.items)]
    table = job.spark.createDataFrame(known, "index int, bias float")
    joined = items.join(table, "index").select(
        "index", sql.lit(0).alias("count"), "bias", "factors"
    )
    return written(joined, job.scratch.child("items-0"))


def _solve(job: FitJob, others: DataFrame, mean: float, *, of_users: bool, name: str) -> DataFrame:
    solver = Solver(job.parameters, mean, _rating_std(job))
    k = int(job.parameters["factors"])
    n_others = job.summary.items if of_users else job.summary.users
    known: DataFrame | Floats = others
    if 4 * n_others * (k + 1) <= job.broadcast_limit:
        known = dense_vectors(others, n_others, k)
    rows = job.users if of_users else job.items
    return half_sweep(job.spark, rows, known, solver, job.parts, job.scratch.child(name))


def _mean_residual(job: FitJob, solved: DataFrame) -> float:
    """Return what the mean is off by: each bias has sum e = penalty * b (see `als_sweeps`).

    Raises
    ------
    DataError
        If it is no number, since the sweep broke down in single precision.
    """
    from pyspark.sql import functions as sql

    power, regularization = (job.parameters[name] for name in ("count_power", "regularization"))
    weight = sql.pow(sql.greatest("count", sql.lit(1)).cast("double"), sql.lit(float(power)))
    total = solved.agg(sql.sum(weight * sql.col("bias"))).first()[0]
    residual = float(regularization * total / job.summary.ratings)
    if not math.isfinite(residual):
        from recsys.models.als import ALS

        raise breakdown(ALS(**job.parameters), "regularization", "count_power")
    return residual


def _penalty(job: FitJob) -> float:
    """Return MLlib's penalty for the one of `als`."""
    from pyspark.sql import functions as sql

    power = float(job.parameters["count_power"])
    weights = []
    for rows in (job.users, job.items):
        count = sql.size("others").cast("double")
        total = rows.agg(sql.sum(sql.pow(count, sql.lit(power)))).first()[0]
        weights.append(float(total) / job.summary.ratings)
    return mllib_penalty(job.parameters["regularization"], _rating_std(job), *weights)


def _rating_std(job: FitJob) -> float:
    return job.summary.std or 1.0


def _held_out(job: FitJob, users: DataFrame, items: DataFrame, mean: float) -> float | None:
    if job.held is None:
        return None
    return rating_errors(job.held, users, items, mean).rmse

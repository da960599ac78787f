"""Models fitted on a cluster."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recsys.errors import DataError
from recsys.models.base import (
    Explanation,
    FactorModel,
    Floats,
    Histories,
    Step,
    check_indices,
)
from recsys.models.early_stopping import breakdown
from recsys.readers.layout import Request
from recsys.spark.arrow import (
    as_histories,
    cogroup_in_arrow,
    column,
    map_in_arrow,
    matrix,
    table_of,
)
from recsys.spark.measuring import rating_errors
from recsys.spark.reading import (
    Encoded,
    Place,
    RatingsTable,
    encode,
    group_rows,
    read_ratings,
    staged,
    written,
)
from recsys.spark.results import MANIFEST, MODELS, SparkModel, is_result, model_class
from recsys.spark.session import spark_session, watching

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from recsys.models.base import Step
    from recsys.spark.reading import Place

__all__ = [
    "OWN_SWEEPS",
    "SOLVED",
    "Biases",
    "FitJob",
    "ImplicitALS",
    "MLlibSettings",
    "Solver",
    "Summary",
    "blocks_for",
    "damped_biases",
    "dense_vectors",
    "fit",
    "fit_als",
    "fit_implicit",
    "half_sweep",
    "mllib_factors",
    "mllib_penalty",
    "residuals",
]

_ITERATIONS = 15  # of `als` on Spark, where tol does not stop it
_RATINGS_PER_PART = 1_000_000
BROADCAST_LIMIT = 2**29  # bytes of vectors that are sent to each worker whole


@dataclass(frozen=True, slots=True)
class Summary:
    """Counts and moments of the training ratings."""

    users: int
    items: int
    ratings: int
    mean: float
    std: float
    low: float
    high: float


@dataclass(frozen=True)
class FitJob:
    """What the parts of a fit share.

    Attributes
    ----------
    spark : SparkSession
    scratch : Place
        Folder for what is written down on the way.
    parameters : dict
        Of the model.
    users, items : DataFrame
        One row per user (item): index, others, values; without the held-out ratings.
    held : DataFrame or None
        Held-out pairs: user, item, value.
    summary : Summary
    parts : int
        Number of blocks of rows.
    broadcast_limit : int
        Bytes of vectors that may be sent to each worker whole.
    say : callable or None
        Is told what is being done.
    on_step : callable or None
        Is given a `Step` after each sweep whose error was measured.
    """

    spark: SparkSession
    scratch: Place
    parameters: dict[str, Any]
    users: DataFrame
    items: DataFrame
    held: DataFrame | None
    summary: Summary
    parts: int
    broadcast_limit: int
    say: Callable[[str], None] | None
    on_step: Callable[[Step], None] | None


@dataclass(frozen=True)
class Fitted:
    """What came out: vectors of users and items (see `recsys.spark.fitting.SOLVED`)."""

    users: DataFrame
    items: DataFrame
    numbers: dict[str, float]
    sweeps: int
    validation_rmse: float | None = None


def fit(
    ratings: str | DataFrame,
    out: str,
    *,
    model: str | None = None,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    columns: Request | None = None,
    duplicates: str = "last",
    holdout: float | None = None,
    overwrite: bool = False,
    broadcast_limit: int = BROADCAST_LIMIT,
    on_step: Callable[[Step], None] | None = None,
    say: Callable[[str], None] | None = None,
    **parameters: Any,
) -> SparkModel:
    """Fit a model on Spark and write it to a folder.

    Parameters
    ----------
    ratings : str or DataFrame
        Parquet, CSV or TSV on any file system that Spark can read, or a table of Spark.
    out : str
        Folder for the result, which appears when it is complete. `recsys.Recommender.load` opens it
        if it is, or was copied, on a local disk.
    model : {"als", "spark-implicit-als"}, optional
        By default `als` if there are ratings, and `spark-implicit-als` if there are none.
    master, conf
        As `recsys.spark.spark_session` takes them.
    columns : Request, optional
        Names of columns, where they are not the usual ones.
    duplicates : {"last", "first", "mean", "sum", "error"}
        Which rating counts when a user rated an item more than once; the first two need times.
    holdout : float, optional
        Share of the ratings to keep out of the fit and to measure it on.
    overwrite : bool
        Replace a result of the Spark engine at `out`.
    broadcast_limit : int
        Bytes up to which the vectors of all items (or users) are sent to every Python worker; more
        are joined block by block.
    on_step : callable, optional
        Called with a `Step` whenever the held-out ratings were measured.
    say : callable, optional
        Called with a few words on what is being done.
    **parameters
        Of the model, such as factors, regularization, count_power, iterations, random_state.

    Returns
    -------
    SparkModel

    Raises
    ------
    DataError
        If the ratings cannot be used, or a parameter is out of range.
    EngineError
        If Spark is missing, cannot be reached or fails. Nothing is written then.
    ModelFileError
        If something is in the way at `out`.
    """
    if holdout is not None and not 0 < holdout < 1:
        raise DataError(f"holdout must be between 0 and 1; got {holdout}.")
    if duplicates not in ("last", "first", "mean", "sum", "error"):
        raise DataError(
            f"duplicates must be 'last', 'first', 'mean', 'sum' or 'error'; got {duplicates!r}."
        )
    start = time.perf_counter()
    with (
        spark_session(master, conf) as spark,
        staged(spark, out, is_result, overwrite=overwrite) as folder,
    ):
        scratch = folder.child("_scratch")
        with watching(spark, "reading ratings", say):
            table = _table(spark, ratings, columns or Request())
            name = _chosen_model(model, table)
            settings = _parameters(name, parameters)
            coded = encode(
                spark,
                table,
                scratch,
                duplicates=duplicates,
                holdout=holdout or 0.0,
                seed=settings["random_state"],
            )
            job = _job(spark, scratch, coded, settings, broadcast_limit, say, on_step)
        fitted = fit_als(job) if name == "als" else fit_implicit(job)
        with watching(spark, "writing", say):
            result = _write(folder, out, name, job, coded, fitted, start)
        scratch.delete()
    return result


def _table(spark: SparkSession, ratings: str | DataFrame, columns: Request) -> RatingsTable:
    if isinstance(ratings, str):
        return read_ratings(spark, ratings, columns)
    from recsys.spark.reading import checked_ratings

    return checked_ratings(ratings, columns, "the table")


def _chosen_model(model: str | None, table: RatingsTable) -> str:
    chosen = model or ("spark-implicit-als" if table.implicit else "als")
    if chosen not in MODELS:
        raise DataError(
            f"On Spark the models are {' and '.join(MODELS)}; got {chosen!r}, which is fitted on "
            "one machine only."
        )
    if chosen == "als" and table.implicit:
        raise DataError(
            "The als model needs ratings with values, but these have no rating column; "
            "leave the model out to fit implicit ALS."
        )
    return chosen


def _parameters(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return all parameters of a model, checked by its own class."""
    cls = model_class(name)
    known = cls().get_params()
    for each in given:
        if each not in known:
            raise DataError(
                f"The {name} model has no parameter {each!r}; it has {', '.join(known)}."
            )
    settings: dict[str, Any] = cls(**({"iterations": _ITERATIONS} | dict(given))).get_params()
    if settings.get("linked"):
        raise DataError("The als model is not linked on Spark; leave linked out.")
    return settings


def _job(
    spark: SparkSession,
    scratch: Place,
    coded: Encoded,
    settings: dict[str, Any],
    broadcast_limit: int,
    say: Callable[[str], None] | None,
    on_step: Callable[[Step], None] | None,
) -> FitJob:
    from pyspark.sql import functions as sql

    held, pairs = coded.pairs.where("held"), coded.pairs.where(~sql.col("held"))
    summary, n_held = _summary(coded)
    parts = max(spark.sparkContext.defaultParallelism, -(-summary.ratings // _RATINGS_PER_PART))
    by_user = group_rows(pairs, "user", "item", parts, scratch.child("by-user"))
    by_item = group_rows(pairs, "item", "user", parts, scratch.child("by-item"))
    return FitJob(
        spark=spark,
        scratch=scratch,
        parameters=settings,
        users=by_user,
        items=by_item,
        held=held.select("user", "item", "value") if n_held else None,
        summary=summary,
        parts=parts,
        broadcast_limit=broadcast_limit,
        say=say,
        on_step=on_step,
    )


def _summary(coded: Encoded) -> tuple[Summary, int]:
    """Return what is to be known of the training ratings, and how many are held out."""
    from pyspark.sql import functions as sql

    value = sql.col("value").cast("double")
    moments = (sql.avg(value), sql.stddev_pop(value), sql.min(value), sql.max(value))
    rows = coded.pairs.groupBy("held").agg(sql.count(sql.lit(1)), *moments).collect()
    found = {bool(row[0]): row[1:] for row in rows}
    if False not in found:
        raise DataError("No rating is left to fit to: all were held out; lower the holdout.")
    count, *numbers = found[False]
    summary = Summary(coded.n_users, coded.n_items, int(count), *map(float, numbers))
    return summary, int(found[True][0]) if True in found else 0


def _write(
    folder: Place,
    out: str,
    name: str,
    job: FitJob,
    coded: Encoded,
    fitted: Fitted,
    start: float,
) -> SparkModel:
    """Write the tables, then the manifest."""
    histories = job.users.select("index", "others", "values")
    users = _complete(coded.users, fitted.users, job).join(histories, "index", "left")
    empty = {"others": "array<int>", "values": "array<float>"}
    _write_sorted(users, folder.child("users"), job.parts, empty)
    _write_sorted(_complete(coded.items, fitted.items, job), folder.child("items"), job.parts, {})
    summary = job.summary
    training = {
        "users": summary.users,
        "items": summary.items,
        "ratings": summary.ratings,
        "implicit": name != "als",
        "rating_min": summary.low if name == "als" else None,
        "rating_max": summary.high if name == "als" else None,
        "seconds": round(time.perf_counter() - start, 3),
        "sweeps": fitted.sweeps,
        "train_rmse": None,
        "validation_rmse": fitted.validation_rmse,
    }
    tables = (folder.child("users"), folder.child("items"))
    files = {
        f"{place.name}/{file}": size for place in tables for file, size in place.sizes().items()
    }
    result = SparkModel(
        path=str(out).rstrip("/"),
        model=name,
        parameters=job.parameters,
        fitted=fitted.numbers,
        training=training,
        files=files,
        package_version=_package_version(),
        versions=_versions(job.spark),
    )
    folder.child(MANIFEST).write_text(result.to_json())
    return result


def _complete(ids: DataFrame, vectors: DataFrame, job: FitJob) -> DataFrame:
    """Join ids and vectors; those of whom no rating is left to learn from have zeros."""
    from pyspark.sql import functions as sql

    zeros = sql.array_repeat(sql.lit(0.0).cast("float"), int(job.parameters["factors"]))
    return ids.join(vectors, "index", "left").select(
        "index",
        "id",
        sql.coalesce("count", sql.lit(0)).alias("count"),
        sql.coalesce("bias", sql.lit(0.0).cast("float")).alias("bias"),
        sql.coalesce("factors", zeros).alias("factors"),
    )


def _write_sorted(frame: DataFrame, place: Place, parts: int, empty: Mapping[str, str]) -> None:
    from pyspark.sql import functions as sql

    for name, kind in empty.items():
        frame = frame.withColumn(name, sql.coalesce(name, sql.array().cast(kind)))
    ordered = frame.repartitionByRange(parts, "index").sortWithinPartitions("index")
    ordered.write.parquet(place.uri)


def _package_version() -> str:
    from recsys import __version__

    return __version__


def _versions(spark: SparkSession) -> dict[str, str]:
    import platform

    import numpy as np

    return {"python": platform.python_version(), "numpy": np.__version__, "spark": spark.version}


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
    _needs_values: ClassVar[bool] = False
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
    from recsys.spark.reading import pairs_of
    from recsys.spark.session import watching

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

    from recsys.spark.reading import written

    counts = rows.select("index", sql.size("others").alias("count"))
    bias = sql.lit(0.0).cast("float").alias("bias")
    vectors = factors.join(counts, "index").select("index", "count", bias, "factors")
    return written(vectors, job.scratch.child(name))


SOLVED = "index int, count int, bias float, factors array<float>"
"""Schema of the vectors of users or items."""


@dataclass(frozen=True)
class Solver:
    """What a row is solved with, besides the vectors of the other side.

    Attributes
    ----------
    parameters : dict
        Of `recsys.models.als.ALS`.
    mean, rating_std : float
        Of the training ratings, the mean as corrected by the fit.
    """

    parameters: dict[str, Any]
    mean: float
    rating_std: float

    def solve(self, rows: Histories, others: Floats) -> Floats:
        """Return the vectors of `rows` with their biases last, shape (n, k + 1).

        On one thread: Spark runs a task on each core.

        Parameters
        ----------
        rows : Histories
        others : float32 ndarray of shape (n_others, k + 1)
            Vectors of the other side, their biases last.
        """
        from lowrank.completion.als import solve_rows
        from lowrank.kernels import CsrArrays

        factors, bias = solve_rows(
            CsrArrays(*rows),
            others[:, :-1],
            others[:, -1],
            mean=self.mean,
            regularization=self.parameters["regularization"],
            scale=self.rating_std,
            count_power=self.parameters["count_power"],
            threads=1,
        )
        return np.column_stack([factors, bias])


def half_sweep(
    spark: SparkSession,
    rows: DataFrame,
    others: DataFrame | Floats,
    solver: Solver,
    parts: int,
    place: Place,
) -> DataFrame:
    """Solve for the vectors of all rows, write them to `place` and return them.

    Parameters
    ----------
    spark : SparkSession
    rows : DataFrame
        Columns index, others and values.
    others : DataFrame or ndarray of shape (n_others, k + 1)
        Of the other side: a table with the schema `SOLVED`, or, if they fit every worker's memory,
        an array with the biases last.
    solver : Solver
    parts : int
        Number of blocks of rows.
    place : Place
    """
    rows = rows.repartition(parts, "index")
    if isinstance(others, np.ndarray):
        shared = spark.sparkContext.broadcast(others)
        solved = map_in_arrow(rows, _solving(shared, solver), SOLVED)
        solved = written(solved, place)
        shared.destroy()
        return solved
    return written(_blocked(rows, others, solver, parts), place)


def dense_vectors(solved: DataFrame, n: int, k: int) -> Floats:
    """Collect vectors as an array with the biases last; rows that are not there are zero."""
    whole = table_of(solved.select("index", "bias", "factors"))
    vectors = np.zeros((n, k + 1), np.float32)
    if whole.num_rows:
        vectors[column(whole, "index")] = _with_bias(whole)
    return vectors


def _with_bias(table: Any) -> Floats:
    return np.column_stack([matrix(table, "factors"), column(table, "bias")])


def _solving(shared: Any, solver: Solver) -> Callable[[Iterator[Any]], Iterator[Any]]:
    def solve(batches: Iterator[Any]) -> Iterator[Any]:
        others: Floats = shared.value
        for batch in batches:
            rows = as_histories(batch)
            yield from _batch(batch, rows, solver.solve(rows, others)).to_batches()

    return solve


def _blocked(rows: DataFrame, others: DataFrame, solver: Solver, parts: int) -> DataFrame:
    """Bring to each block of rows the vectors that it needs, and no others."""
    from pyspark.sql import functions as sql

    block = sql.pmod(sql.hash("index"), parts).alias("block")
    blocks = rows.select(block, "index", "others", "values")
    needed = blocks.select("block", sql.explode("others").alias("index")).distinct()
    to = sql.col("block").alias("to")
    sent = needed.join(others, "index").select(to, "index", "bias", "factors")

    def solve(left: pa.Table, right: pa.Table) -> pa.Table:
        known = column(right, "index")
        order = np.argsort(known)
        vectors = _with_bias(right)[order]
        given = as_histories(left)
        places = np.searchsorted(known[order], given.indices).astype(np.int32)
        found = Histories(given.indptr, places, given.values)
        return _batch(left, given, solver.solve(found, vectors))

    return cogroup_in_arrow(blocks, sent, ["block"], ["to"], solve, SOLVED)


def _batch(given: Any, rows: Histories, solved: Floats) -> pa.Table:
    import pyarrow as pa

    n, k = len(solved), solved.shape[1] - 1
    offsets = pa.array(np.arange(n + 1, dtype=np.int32) * k)
    columns = [
        pa.array(column(given, "index").astype(np.int32)),
        pa.array(rows.counts.astype(np.int32)),
        pa.array(solved[:, -1].copy()),
        pa.ListArray.from_arrays(offsets, pa.array(solved[:, :-1].ravel())),
    ]
    return pa.Table.from_arrays(columns, ["index", "count", "bias", "factors"])


Doubles = NDArray[np.float64]

_DAMPING = 5.0  # ratings without a bias that are added to each user and item, as in `Bias`
_ROUNDS = 3


@dataclass(frozen=True, eq=False)
class Biases:
    """The predictions ``mean + b_u + c_i``, of which b_u follows from the user's ratings.

    Attributes
    ----------
    mean : float
    items : float64 ndarray of shape (n_items,)
        The biases c_i.
    """

    mean: float
    items: Doubles

    def left_over(self, rows: Histories) -> Doubles:
        """Return what mean and biases leave over of the ratings of some users, shape (nnz,)."""
        left: Doubles = rows.values - self.mean - self.items[rows.indices]
        sums = np.add.reduceat(np.append(left, 0.0), rows.indptr[:-1])
        user = np.where(rows.counts > 0, sums, 0.0) / (rows.counts + _DAMPING)
        left -= np.repeat(user, rows.counts)
        return left


def damped_biases(spark: SparkSession, users: DataFrame, mean: float, n_items: int) -> Biases:
    """Fit the biases of users and items in turns, each the mean of what the other leaves over.

    Parameters
    ----------
    spark : SparkSession
    users : DataFrame
        Columns index, others and values: one row per user.
    mean : float
        Of all ratings.
    n_items : int
        The biases of all items come to the driver: 8 bytes each.

    References
    ----------
    Koren (2008), "Factorization meets the neighborhood", section 2.1.
    """
    biases = Biases(mean, np.zeros(n_items))
    for _ in range(_ROUNDS):
        shared = spark.sparkContext.broadcast(biases)
        sums = map_in_arrow(users, _summing(shared), "item int, total double, count bigint")
        whole = table_of(sums.groupBy("item").sum("total", "count"))
        found = np.zeros(n_items)
        totals, counts = column(whole, "sum(total)"), column(whole, "sum(count)")
        found[column(whole, "item")] = totals / (counts + _DAMPING)
        shared.destroy()
        biases = Biases(mean, found)
    return biases


def residuals(spark: SparkSession, users: DataFrame, biases: Biases) -> DataFrame:
    """Return a long table of user, item and what the biases leave over of the rating."""
    shared = spark.sparkContext.broadcast(biases)
    return map_in_arrow(users, _leaving(shared), "user int, item int, rating float")


def _summing(shared: Any) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Sum, over the users of a partition, what is left of each item's ratings without its bias."""

    def sums(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        biases: Biases = shared.value
        total, count = np.zeros_like(biases.items), np.zeros(len(biases.items), np.int64)
        for batch in batches:
            rows = as_histories(batch)
            left = biases.left_over(rows) + biases.items[rows.indices]
            total += np.bincount(rows.indices, left, len(total))
            count += np.bincount(rows.indices, minlength=len(total))
        items = np.flatnonzero(count)
        columns = [items.astype(np.int32), total[items], count[items]]
        yield pa.RecordBatch.from_arrays(
            [pa.array(each) for each in columns], ["item", "total", "count"]
        )

    return sums


def _leaving(shared: Any) -> Callable[[Iterator[Any]], Iterator[Any]]:
    def left(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        biases: Biases = shared.value
        for batch in batches:
            rows = as_histories(batch)
            users = np.repeat(column(batch, "index").astype(np.int32), rows.counts)
            columns = [users, rows.indices, biases.left_over(rows).astype(np.float32)]
            yield pa.RecordBatch.from_arrays(
                [pa.array(each) for each in columns], ["user", "item", "rating"]
            )

    return left


_RATINGS_PER_BLOCK = 2_000_000
_LEAST_BLOCKS, _MOST_BLOCKS = 4, 2000
_CHECKPOINT_EVERY = 5  # sweeps; a lost executor costs at most so many again


@dataclass(frozen=True)
class MLlibSettings:
    """Parameters of MLlib's ALS.

    Attributes
    ----------
    factors, iterations, seed : int
    penalty : float
        MLlib multiplies it by the number of ratings of a user or item (Zhou et al. 2008).
    blocks : int
        Number of blocks of users, and of items.
    alpha : float or None
        Implicit feedback, with confidence 1 + alpha times the value; None for ratings.
    """

    factors: int
    iterations: int
    seed: int
    penalty: float
    blocks: int
    alpha: float | None = None


def mllib_factors(
    ratings: DataFrame, settings: MLlibSettings, scratch: Place
) -> tuple[DataFrame, DataFrame]:
    """Run MLlib's ALS.

    Parameters
    ----------
    ratings : DataFrame
        Columns user, item and rating.
    settings : MLlibSettings
    scratch : Place
        Where the checkpoints go.

    Returns
    -------
    users, items : DataFrame
        Columns index and factors.
    """
    from pyspark.ml.recommendation import ALS

    ratings.sparkSession.sparkContext.setCheckpointDir(scratch.child("checkpoints").uri)
    als = ALS(
        rank=settings.factors,
        maxIter=settings.iterations,
        regParam=settings.penalty,
        numUserBlocks=settings.blocks,
        numItemBlocks=settings.blocks,
        implicitPrefs=settings.alpha is not None,
        alpha=1.0 if settings.alpha is None else settings.alpha,
        userCol="user",
        itemCol="item",
        ratingCol="rating",
        nonnegative=False,
        coldStartStrategy="drop",
        checkpointInterval=_CHECKPOINT_EVERY,
        seed=settings.seed,
    )
    fitted: Any = als.fit(ratings)
    users, items = fitted.userFactors, fitted.itemFactors
    return users.toDF("index", "factors"), items.toDF("index", "factors")


def blocks_for(n_ratings: int) -> int:
    """Return the number of blocks for so many ratings.

    It depends on nothing else, so that the same seed gives the same result on any cluster: MLlib
    draws its starting point block by block.
    """
    return max(_LEAST_BLOCKS, min(_MOST_BLOCKS, -(-n_ratings // _RATINGS_PER_BLOCK)))


def mllib_penalty(
    regularization: float, rating_std: float, user_weight: float, item_weight: float
) -> float:
    """Return MLlib's penalty, lambda times n, that is nearest to that of `als`, lambda s n^g.

    With a scaled by t and m by 1/t the model is the same, so that only the product of the two
    sides' penalties counts: the geometric mean is taken. For g = 1 they are the same penalties.

    Parameters
    ----------
    regularization, rating_std : float
        lambda and s.
    user_weight, item_weight : float
        n^(g - 1), averaged over the ratings, for users and for items.
    """
    return float(regularization * rating_std * (user_weight * item_weight) ** 0.5)

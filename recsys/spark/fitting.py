"""Models fitted on a cluster: `als` by our own half-sweeps, implicit ALS by Spark's MLlib.

Each half-sweep solves every user (or item) by the kernel of the local engine, so that a fitted user
has the vector that folding in gives. The vectors of the other side are sent to each worker whole
where they fit, and otherwise joined block by block.
"""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from lowrank.completion.als import solve_rows
from lowrank.kernels import CsrArrays
from lowrank.spark.rows import cogroup_in_arrow, column, lists, map_in_arrow, matrix, table_of
from recsys.errors import DataError
from recsys.models.als import ALS
from recsys.models.base import Floats, Histories, Step
from recsys.models.early_stopping import breakdown
from recsys.readers.layout import Request
from recsys.spark.evaluation import rating_errors
from recsys.spark.files import Place, staged, written
from recsys.spark.reading import (
    Encoded,
    RatingsTable,
    checked_ratings,
    encode,
    group_rows,
    pairs_of,
    read_ratings,
)
from recsys.spark.results import MODELS, SparkModel, is_result, model_class
from recsys.spark.session import BROADCAST_LIMIT, spark_session, watching
from recsys.storage import MANIFEST

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["SOLVED", "Solver", "blocks_for", "dense_vectors", "fit", "half_sweep"]

_ITERATIONS = 15  # default of `als` on Spark
_RATINGS_PER_BLOCK = 1_000_000
_START_WIDTH = 0.1  # standard deviation of the random item vectors at the start
_MLLIB_RATINGS_PER_BLOCK = 2_000_000
_LEAST_BLOCKS, _MOST_BLOCKS = 4, 2000
_CHECKPOINT_EVERY = 5  # sweeps; a lost executor costs at most so many again

SOLVED = "index int, count int, bias float, factors array<float>"
"""Schema of the vectors of users or items."""


@dataclass(frozen=True)
class _Job:
    """Settings and data of a fit.

    `users` and `items` have the columns index, others and values, without held-out ratings; `held`
    has the held-out pairs: user, item, value.
    """

    spark: SparkSession
    scratch: Place
    parameters: dict[str, Any]
    coded: Encoded
    users: DataFrame
    items: DataFrame
    held: DataFrame | None
    n_ratings: int
    mean: float
    std: float
    limits: tuple[float, float]
    blocks: int
    broadcast_limit: int
    say: Callable[[str], None] | None
    on_step: Callable[[Step], None] | None


@dataclass(frozen=True)
class _Fitted:
    """Vectors of users and items with the schema `SOLVED`, and numbers of the model."""

    users: DataFrame
    items: DataFrame
    numbers: dict[str, float]
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
    test_fraction: float | None = None,
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
        By default `als` for ratings and `spark-implicit-als` for implicit feedback.
    master, conf
        As for `recsys.spark.spark_session`.
    columns : Request, optional
        Names of columns that are not the usual ones.
    duplicates : {"last", "first", "mean", "sum", "error"}
        Which rating of a repeated pair counts; the first two need timestamps.
    test_fraction : float, optional
        Share of the ratings to hold out of the fit and to measure it on.
    overwrite : bool
        Replace a result of the Spark engine at `out`.
    broadcast_limit : int
        Bytes up to which the vectors of all items (or users) are sent to every Python worker; more
        are joined block by block.
    on_step : callable, optional
        Called with a `Step` after each sweep of `als`.
    say : callable, optional
        Called with a few words on the progress.
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
        If `out` exists and is not replaced.
    """
    if test_fraction is not None and not 0 < test_fraction < 1:
        raise DataError(f"test_fraction must be between 0 and 1; got {test_fraction}.")
    if duplicates not in ("last", "first", "mean", "sum", "error"):
        raise DataError(
            f"duplicates must be 'last', 'first', 'mean', 'sum' or 'error'; got {duplicates!r}."
        )
    start = time.perf_counter()
    request = columns or Request()
    with (
        spark_session(master, conf) as spark,
        staged(spark, out, is_result, overwrite=overwrite) as folder,
    ):
        scratch = folder.child("_scratch")
        with watching(spark, "reading ratings", say):
            if isinstance(ratings, str):
                table = read_ratings(spark, ratings, request)
            else:
                table = checked_ratings(ratings, request, "the table")
            name = _chosen_model(model, table)
            settings = _settings(name, parameters)
            coded = encode(
                spark,
                table,
                scratch,
                duplicates=duplicates,
                test_fraction=test_fraction or 0.0,
                random_state=settings["random_state"],
            )
            job = _job(spark, scratch, coded, settings, broadcast_limit, say, on_step)
        found = _fit_als(job) if name == "als" else _fit_implicit(job)
        with watching(spark, "writing", say):
            result = _write(folder, out, name, job, found, start)
        scratch.delete()
    return result


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


def _settings(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return all parameters of a model, checked by its own class."""
    unfitted = model_class(name)()
    unfitted.set_params(**({"iterations": _ITERATIONS} | dict(given)))
    settings = unfitted.get_params()
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
) -> _Job:
    from pyspark.sql import functions as sql

    value = sql.col("value").cast("double")
    moments = (sql.avg(value), sql.stddev_pop(value), sql.min(value), sql.max(value))
    rows = coded.pairs.groupBy("held").agg(sql.count(sql.lit(1)), *moments).collect()
    found = {bool(row[0]): [float(each) for each in row[1:]] for row in rows}
    if False not in found:
        raise DataError("No rating is left to fit to: all are held out; lower test_fraction.")
    count, mean, std, low, high = found[False]
    blocks = max(spark.sparkContext.defaultParallelism, -(-int(count) // _RATINGS_PER_BLOCK))
    held, pairs = coded.pairs.where("held"), coded.pairs.where(~sql.col("held"))
    return _Job(
        spark=spark,
        scratch=scratch,
        parameters=settings,
        coded=coded,
        users=group_rows(pairs, "user", "item", blocks, scratch.child("by-user")),
        items=group_rows(pairs, "item", "user", blocks, scratch.child("by-item")),
        held=held.select("user", "item", "value") if True in found else None,
        n_ratings=int(count),
        mean=mean,
        std=std or 1.0,
        limits=(low, high),
        blocks=blocks,
        broadcast_limit=broadcast_limit,
        say=say,
        on_step=on_step,
    )


def _fit_als(job: _Job) -> _Fitted:
    """Sweep over users and items from random item vectors; the users are solved last."""
    mean, rmse, total = job.mean, None, int(job.parameters["iterations"])
    items = _random_vectors(job)
    for sweep in range(1, total + 1):
        with watching(job.spark, f"sweep {sweep} of {total}", job.say):
            users = _solve(job, items, mean, f"users-{sweep}", of_users=True)
            items = _solve(job, users, mean, f"items-{sweep}", of_users=False)
            mean += _mean_residual(job, items)
            if sweep == total:
                users = _solve(job, items, mean, "users", of_users=True)
            if job.held is not None:
                rmse = rating_errors(job.held, users, items, mean).rmse
        if job.on_step is not None:
            job.on_step(Step(step=sweep, total=total, validation_rmse=rmse))
    return _Fitted(users, items, {"global_mean": mean, "rating_std": job.std}, rmse)


def _random_vectors(job: _Job) -> DataFrame:
    """Write random item vectors, each drawn from the seed and the index of the item alone."""
    k, seed = int(job.parameters["factors"]), int(job.parameters["random_state"])

    def draw(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            indices = column(batch, "index").astype(np.int32)
            drawn = np.zeros((len(indices), k + 1), np.float32)
            for row, index in enumerate(indices):
                drawn[row, :-1] = np.random.default_rng((seed, index)).normal(0, _START_WIDTH, k)
            yield from _solved_table(indices, np.zeros(len(indices), np.int32), drawn).to_batches()

    start = map_in_arrow(job.items.select("index"), draw, SOLVED)
    return written(start, job.scratch.child("items-0"))


def _solve(job: _Job, others: DataFrame, mean: float, name: str, *, of_users: bool) -> DataFrame:
    solver = Solver(job.parameters, mean, job.std)
    n_others = job.coded.n_items if of_users else job.coded.n_users
    k = int(job.parameters["factors"])
    known: DataFrame | Floats = others
    if 4 * n_others * (k + 1) <= job.broadcast_limit:
        known = dense_vectors(others, n_others, k)
    rows = job.users if of_users else job.items
    return half_sweep(job.spark, rows, known, solver, job.blocks, job.scratch.child(name))


def _mean_residual(job: _Job, solved: DataFrame) -> float:
    """Return the error of the mean: each bias has sum e = penalty * b (see `als_sweeps`).

    Raises
    ------
    DataError
        If it is not finite, since the sweep broke down in single precision.
    """
    from pyspark.sql import functions as sql

    power, regularization = (job.parameters[name] for name in ("count_power", "regularization"))
    weight = sql.pow(sql.greatest("count", sql.lit(1)).cast("double"), sql.lit(float(power)))
    total = solved.agg(sql.sum(weight * sql.col("bias"))).first()[0]
    residual = float(regularization * total / job.n_ratings)
    if not math.isfinite(residual):
        raise breakdown(ALS(**job.parameters), "regularization", "count_power")
    return residual


@dataclass(frozen=True)
class Solver:
    """Parameters of the ridge problem of each row.

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

        On one thread, since Spark runs a task on each core. `others` are the vectors of the other
        side with their biases last, shape (n_others, k + 1).
        """
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
    blocks: int,
    place: Place,
) -> DataFrame:
    """Solve for the vectors of all rows, write them to `place` and return them.

    Parameters
    ----------
    spark : SparkSession
    rows : DataFrame
        Columns index, others and values.
    others : DataFrame or ndarray of shape (n_others, k + 1)
        Vectors of the other side: a table with the schema `SOLVED`, or, if they fit every worker's
        memory, an array with the biases last.
    solver : Solver
    blocks : int
        Number of blocks of rows.
    place : Place
    """
    rows = rows.repartition(blocks, "index")
    if not isinstance(others, np.ndarray):
        return written(_blocked(rows, others, solver, blocks), place)
    shared: Any = spark.sparkContext.broadcast(others)

    def solve(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            given = _histories(batch)
            yield from _batch(batch, given, solver.solve(given, shared.value)).to_batches()

    solved = written(map_in_arrow(rows, solve, SOLVED), place)
    shared.destroy()
    return solved


def _blocked(rows: DataFrame, others: DataFrame, solver: Solver, blocks: int) -> DataFrame:
    """Join to each block of rows the vectors that it needs, and no others."""
    from pyspark.sql import functions as sql

    numbered = rows.select(
        sql.pmod(sql.hash("index"), blocks).alias("block"), "index", "others", "values"
    )
    needed = numbered.select("block", sql.explode("others").alias("index")).distinct()
    to = sql.col("block").alias("to")
    sent = needed.join(others, "index").select(to, "index", "bias", "factors")

    def solve(left: pa.Table, right: pa.Table) -> pa.Table:
        known = column(right, "index")
        order = np.argsort(known)
        vectors = _with_bias(right)[order]
        given = _histories(left)
        places = np.searchsorted(known[order], given.indices).astype(np.int32)
        return _batch(left, given, solver.solve(given._replace(indices=places), vectors))

    return cogroup_in_arrow(numbered, sent, ["block"], ["to"], solve, SOLVED)


def dense_vectors(solved: DataFrame, n: int, k: int) -> Floats:
    """Collect vectors as an array with the biases last; missing rows are zero."""
    whole = table_of(solved.select("index", "bias", "factors"))
    vectors = np.zeros((n, k + 1), np.float32)
    if whole.num_rows:
        vectors[column(whole, "index")] = _with_bias(whole)
    return vectors


def _histories(batch: Any) -> Histories:
    """Return the columns others and values of a batch in CSR form."""
    indptr, indices = lists(batch, "others")
    _, values = lists(batch, "values")
    return Histories(
        indptr, indices.astype(np.int32, copy=False), values.astype(np.float32, copy=False)
    )


def _with_bias(table: Any) -> Floats:
    return np.column_stack([matrix(table, "factors"), column(table, "bias")])


def _batch(given: Any, rows: Histories, solved: Floats) -> pa.Table:
    return _solved_table(column(given, "index").astype(np.int32), rows.counts, solved)


def _solved_table(indices: Any, counts: Any, solved: Floats) -> pa.Table:
    """Return vectors, their biases last, as a table with the schema `SOLVED`."""
    import pyarrow as pa

    n, k = len(solved), solved.shape[1] - 1
    offsets = pa.array(np.arange(n + 1, dtype=np.int32) * k)
    columns = [
        pa.array(indices),
        pa.array(counts.astype(np.int32)),
        pa.array(solved[:, -1].copy()),
        pa.ListArray.from_arrays(offsets, pa.array(solved[:, :-1].ravel())),
    ]
    return pa.Table.from_arrays(columns, ["index", "count", "bias", "factors"])


def _fit_implicit(job: _Job) -> _Fitted:
    """Fit implicit ALS by MLlib, which ends with the users, as `ImplicitALS.with_users` solves."""
    from pyspark.ml import recommendation
    from pyspark.sql import functions as sql

    settings = job.parameters
    blocks = blocks_for(job.n_ratings)
    job.spark.sparkContext.setCheckpointDir(job.scratch.child("checkpoints").uri)
    als = recommendation.ALS(
        rank=settings["factors"],
        maxIter=settings["iterations"],
        regParam=settings["regularization"],
        alpha=settings["alpha"],
        seed=settings["random_state"],
        implicitPrefs=True,
        numUserBlocks=blocks,
        numItemBlocks=blocks,
        userCol="user",
        itemCol="item",
        ratingCol="rating",
        checkpointInterval=_CHECKPOINT_EVERY,
    )
    with watching(job.spark, f"{settings['iterations']} sweeps of MLlib", job.say):
        found: Any = als.fit(pairs_of(job.users).toDF("user", "item", "rating"))
        vectors: list[DataFrame] = []
        for factors, rows in ((found.userFactors, job.users), (found.itemFactors, job.items)):
            counts = rows.select("index", sql.size("others").alias("count"))
            bias = sql.lit(0.0).cast("float").alias("bias")
            joined = factors.toDF("index", "factors").join(counts, "index")
            place = job.scratch.child(f"vectors-{len(vectors)}")
            vectors.append(written(joined.select("index", "count", bias, "factors"), place))
    users, items = vectors
    return _Fitted(users, items, {"global_mean": 0.0})


def blocks_for(n_ratings: int) -> int:
    """Return MLlib's number of blocks, which depends on the number of ratings alone.

    MLlib draws its starting point block by block, so the same seed gives the same result on any
    cluster.
    """
    return max(_LEAST_BLOCKS, min(_MOST_BLOCKS, -(-n_ratings // _MLLIB_RATINGS_PER_BLOCK)))


def _write(
    folder: Place, out: str, name: str, job: _Job, found: _Fitted, start: float
) -> SparkModel:
    """Write the tables, then the manifest."""
    from pyspark.sql import functions as sql

    from recsys import __version__

    histories = job.users.select("index", "others", "values")
    users = _complete(job.coded.users, found.users, job).join(histories, "index", "left")
    for lists_of, kind in (("others", "array<int>"), ("values", "array<float>")):
        users = users.withColumn(lists_of, sql.coalesce(lists_of, sql.array().cast(kind)))
    items = _complete(job.coded.items, found.items, job)
    files: dict[str, int] = {}
    for side, table in (("users", users), ("items", items)):
        place = folder.child(side)
        ordered = table.repartitionByRange(job.blocks, "index").sortWithinPartitions("index")
        ordered.write.parquet(place.uri)
        files |= {f"{side}/{file}": size for file, size in place.sizes().items()}
    is_explicit = name == "als"
    training = {
        "users": job.coded.n_users,
        "items": job.coded.n_items,
        "ratings": job.n_ratings,
        "implicit": not is_explicit,
        "rating_min": job.limits[0] if is_explicit else None,
        "rating_max": job.limits[1] if is_explicit else None,
        "seconds": round(time.perf_counter() - start, 3),
        "sweeps": int(job.parameters["iterations"]),
        "train_rmse": None,
        "validation_rmse": found.validation_rmse,
    }
    versions = {"python": platform.python_version(), "numpy": np.__version__}
    result = SparkModel(
        path=str(out).rstrip("/"),
        model=name,
        parameters=job.parameters,
        fitted=found.numbers,
        training=training,
        files=files,
        package_version=__version__,
        versions=versions | {"spark": job.spark.version},
    )
    folder.child(MANIFEST).write_text(result.to_json())
    return result


def _complete(ids: DataFrame, vectors: DataFrame, job: _Job) -> DataFrame:
    """Join ids and vectors; ids without training ratings get zeros."""
    from pyspark.sql import functions as sql

    zeros = sql.array_repeat(sql.lit(0.0).cast("float"), int(job.parameters["factors"]))
    return ids.join(vectors, "index", "left").select(
        "index",
        "id",
        sql.coalesce("count", sql.lit(0)).alias("count"),
        sql.coalesce("bias", sql.lit(0.0).cast("float")).alias("bias"),
        sql.coalesce("factors", zeros).alias("factors"),
    )

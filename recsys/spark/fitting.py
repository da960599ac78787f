"""Fitting `als` and implicit ALS on Spark, from a table of ratings to a folder of Parquet."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from recsys.errors import DataError
from recsys.readers.columns import Request
from recsys.spark.files import Place, staged
from recsys.spark.indexing import Encoded, encode, group_rows
from recsys.spark.reading import RatingsTable, read_ratings
from recsys.spark.results import MANIFEST, MODELS, SparkModel, is_result, model_class
from recsys.spark.session import spark_session
from recsys.spark.watching import watching

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from recsys.models.base import Step

__all__ = ["FitJob", "Summary", "fit"]

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
    """What came out: vectors of users and items (see `recsys.spark.sweeps.SOLVED`)."""

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
        if name == "als":
            from recsys.spark.explicit import fit_als as fit_model
        else:
            from recsys.spark.implicit import fit_implicit as fit_model
        fitted = fit_model(job)
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
    known = cls().params()
    for each in given:
        if each not in known:
            raise DataError(
                f"The {name} model has no parameter {each!r}; it has {', '.join(known)}."
            )
    settings: dict[str, Any] = cls(**({"iterations": _ITERATIONS} | dict(given))).params()
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

"""Fit of models by Spark's ALS: `als` for ratings and `ials` for implicit feedback.

Spark fits the vectors of the items. The users are then solved by the model of one machine, so that
folding in a training user gives the same vector.
"""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import polars as pl

from lowrank.kernels import at_most
from lowrank.spark.arrow import list_array, lists, map_in_arrow, table_of
from recsys import __version__
from recsys.data.age import iso_time
from recsys.data.columns import Request
from recsys.data.rows import check_policy
from recsys.errors import DataError
from recsys.models.histories import Histories
from recsys.models.ials import INTERACTIONS, Penalties, default_factors
from recsys.models.registry import make_model
from recsys.saving.arrays import MANIFEST
from recsys.spark.evaluation import measure
from recsys.spark.files import SparkPath, staged
from recsys.spark.reading import Encoded, encode, read_ratings
from recsys.spark.results import (
    MODELS,
    VERSION,
    SparkModel,
    is_result,
    item_table,
    ordinary_model,
)
from recsys.spark.session import Say, spark_session

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# The regularization has the lowest RMSE on a held-out tenth of the sample's ratings.
_DEFAULTS = {"als": {"regularization": 0.09}, "ials": {}}
_ITERATIONS = 15
_SWEEPS_PER_CHECKPOINT = 5
# Each sweep has a task for each block: of few ratings, starting them would take most of the time.
_RATINGS_PER_BLOCK = 100_000
_MOST_BLOCKS = 10  # Spark's default
# Ratings of the mean that are added to those of each user and item. Biases that are fitted before
# the vectors would else take what the vectors explain better.
_BIAS_PENALTY = 100.0
_NO_USERS = pl.DataFrame(
    schema={"count": pl.Int32, "bias": pl.Float32, "factors": pl.List(pl.Float32)}
)


def fit(
    ratings: str | DataFrame,
    out: str,
    *,
    model: str | None = None,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    columns: Request | None = None,
    duplicates: str | None = None,
    test_fraction: float | None = None,
    overwrite: bool = False,
    say: Say | None = None,
    **parameters: Any,
) -> SparkModel:
    """Fit a model by Spark's ALS and write it to a folder.

    Parameters
    ----------
    ratings : str or DataFrame
        Parquet, CSV or TSV on any file system that Spark can read, or a Spark table.
    out : str
        Folder for the result, which is created when the fit is complete. On a local
        disk, `recsys.Recommender.load` opens it.
    model : {"als", "ials"}, optional
        By default `als` for ratings and `ials` for implicit feedback.
    master, conf
        As for `spark_session`.
    columns : Request, optional
        Names of columns, if they are not the usual ones.
    duplicates : {"last", "first", "mean", "sum", "error"}, optional
        Rating of a repeated pair of user and item; "last" and "first" need timestamps.
        By default the last, and the sum of weights.
    test_fraction : float, optional
        Share of the ratings to hold out and to evaluate the model on.
    overwrite : bool
        Whether to replace a result of the Spark engine at `out`.
    say : callable, optional
        Called with a short text when a step begins.
    **parameters
        Parameters of the model, such as factors, regularization, iterations or
        random_state.

    Raises
    ------
    DataError
        If the ratings cannot be used, or a parameter is out of range.
    EngineError
        If Spark is missing, cannot be reached or fails; nothing is written.
    ModelFileError
        If `out` exists and is not replaced.
    """
    start = time.perf_counter()
    if test_fraction is not None and not 0 < test_fraction < 1:
        raise DataError(f"test_fraction must be between 0 and 1; got {test_fraction}.")
    check_policy(duplicates)
    begin = say or (lambda step: None)
    request = columns or Request()
    with (
        spark_session(master, conf) as spark,
        staged(spark, out, is_result, overwrite=overwrite) as folder,
    ):
        begin("reading")
        table = read_ratings(spark, ratings, request)
        name, settings = _chosen_model(model, parameters, implicit=table.implicit)
        scratch = folder.child("_scratch")
        coded = encode(
            table,
            scratch,
            duplicates=duplicates,
            test_fraction=test_fraction or 0.0,
            random_state=settings["random_state"],
        )
        summary = _summary(coded, is_rated=name == "als")
        if settings["factors"] is None:
            sizes = (coded.n_users, coded.n_items, summary["ratings"])
            settings["factors"] = default_factors(*sizes)
        begin("fitting")
        # Without checkpoints, the lineage of many sweeps overflows the stack of Java.
        spark.sparkContext.setCheckpointDir(scratch.child("checkpoints").uri)
        fit_vectors = _fit_als if name == "als" else _fit_ials
        items, scalars = fit_vectors(coded, summary, settings)
        result = SparkModel(
            format_version=VERSION,
            package_version=__version__,
            model=name,
            parameters=settings,
            fitted=scalars,
            training={
                "implicit": name != "als",
                "sweeps": settings["iterations"],
                "remarks": "; ".join(table.remarks) or None,
                "as_of": iso_time(request.rules.now),
                **_facts(coded, summary),
            },
            versions={
                "python": platform.python_version(),
                "numpy": np.__version__,
                "spark": spark.version,
            },
            files={},
            path=folder.uri,
        )
        begin("writing")
        _write(_items(coded, items, settings["factors"]), result, "items", folder)
        _write(_users(coded, result), result, "users", folder)
        if name == "als" and test_fraction is not None and not coded.held.isEmpty():
            errors = measure(result, coded.held).agg({"squares": "sum", "pairs": "sum"})
            squares, n_held = errors.select("sum(squares)", "sum(pairs)").first()
            result.training["validation_rmse"] = math.sqrt(squares / n_held)
        result.training["seconds"] = round(time.perf_counter() - start, 3)
        result = msgspec.structs.replace(result, path="")
        text = msgspec.json.format(msgspec.json.encode(result), indent=2).decode()
        folder.child(MANIFEST).write_text(f"{text}\n")
        scratch.delete()
    return msgspec.structs.replace(result, path=str(out).rstrip("/"))


def _facts(coded: Encoded, summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the training ratings tell of themselves; errors are not known yet."""
    return {
        "users": coded.n_users,
        "items": coded.n_items,
        "ratings": summary["ratings"],
        "rating_min": summary["low"],
        "rating_max": summary["high"],
        "train_rmse": None,
        "validation_rmse": None,
    }


def _chosen_model(
    model: str | None,
    parameters: Mapping[str, Any],
    *,
    implicit: bool,
) -> tuple[str, dict[str, Any]]:
    """Return the name of the model and its parameters."""
    name = model or ("ials" if implicit else "als")
    if name not in MODELS:
        raise DataError(
            f"On Spark the models are {' and '.join(MODELS)}; got {name!r}."
        )
    if name == "als" and implicit:
        raise DataError(
            "The als model needs ratings with values, but these have no rating column; use ials."
        )
    defaults = {"iterations": _ITERATIONS, "count_power": 1.0, **_DEFAULTS[name]}
    settings = make_model(name, **{**defaults, **parameters}).get_params()
    for option, noun in (("linked", "links"), ("nonnegative", "non-negative factors")):
        if settings.get(option):
            raise DataError(
                f"The {name} model has no {noun} on Spark; leave out {option}."
            )
    if settings["count_power"] != 1:
        raise DataError(
            "The penalty of Spark's ALS grows with the count; count_power must be 1."
        )
    return name, settings


def _summary(coded: Encoded, *, is_rated: bool) -> dict[str, Any]:
    """Return the number of ratings, their mean, standard deviation and range."""
    from pyspark.sql import functions as sql

    value = sql.col("value").cast("double")
    nothing = sql.lit(None)
    row: Any = coded.pairs.agg(
        sql.count("*").alias("ratings"),
        sql.avg(value).alias("mean"),
        sql.stddev_pop(value).alias("std"),
        (sql.min(value) if is_rated else nothing).alias("low"),
        (sql.max(value) if is_rated else nothing).alias("high"),
    ).first()
    if not row["ratings"]:
        raise DataError(
            "No ratings remain to fit to: all are held out; lower test_fraction."
        )
    summary: dict[str, Any] = row.asDict()
    summary["std"] = summary["std"] or 1.0
    return summary


def _fit_als(
    coded: Encoded,
    summary: dict[str, Any],
    settings: dict[str, Any],
) -> tuple[DataFrame, dict[str, float]]:
    """Fit biases of items and users, then vectors to the residuals.

    The result has the items (index, bias, factors), and the scalars of the model.
    """
    from pyspark.sql import functions as sql

    def bias(
        pairs: DataFrame,
        side: str,
        residual: Column,
    ) -> DataFrame:
        shrunk = sql.sum(residual) / (sql.count(residual) + _BIAS_PENALTY)
        return pairs.groupBy(side).agg(shrunk.cast("float").alias(f"{side}_bias"))

    residual = sql.col("value") - summary["mean"]
    item_bias = bias(coded.pairs, "item", residual)
    pairs = coded.pairs.join(item_bias, "item")
    residual = residual - sql.col("item_bias")
    pairs = pairs.join(bias(pairs, "user", residual), "user")
    residual = (residual - sql.col("user_bias")).cast("float")
    factors = _item_factors(
        pairs.select("user", "item", residual.alias("value")),
        summary["ratings"],
        settings,
        # The model of one machine has the penalty lambda n s |a|^2, Spark lambda n |a|^2.
        regParam=settings["regularization"] * summary["std"],
    )
    items = item_bias.toDF("index", "bias").join(factors, "index", "left")
    return items, {"global_mean": summary["mean"], "rating_std": summary["std"]}


def _fit_ials(
    coded: Encoded,
    summary: dict[str, Any],
    settings: dict[str, Any],
) -> tuple[DataFrame, dict[str, float]]:
    """Fit vectors to the interactions and their absence; the result is as of `_fit_als`."""
    from pyspark.sql import functions as sql

    unit = summary["mean"] if summary["mean"] > 0 else 1.0
    weight = sql.greatest(sql.col("value") / unit, sql.lit(0.0)).cast("float")
    pairs = coded.pairs.select("user", "item", weight.alias("value"))
    n = summary["ratings"]
    penalties = _penalties(pairs, coded, n, settings)
    alpha = 1 / penalties.unobserved_weight
    # Spark gives the weight 1 to all pairs, and 1 + alpha w to interactions: the weights
    # of `ials`, unobserved_weight and about w, are the same up to the factor alpha. Its
    # penalty has the number of interactions of a row where `ials` adds the weight of all
    # pairs of the row, so it is larger by what this makes on average.
    density = n / (coded.n_users * coded.n_items)
    factors = _item_factors(
        pairs,
        n,
        settings,
        regParam=penalties.regularization * (alpha + 1 / density),
        alpha=alpha,
        implicitPrefs=True,
    )
    scalars = {
        "global_mean": 0.0,
        "unit": unit,
        "penalty": penalties.regularization,
        "pair_weight": penalties.unobserved_weight,
    }
    return factors.withColumn("bias", sql.lit(0.0).cast("float")), scalars


def _penalties(
    pairs: DataFrame,
    coded: Encoded,
    n: int,
    settings: dict[str, Any],
) -> Penalties:
    """Return the given penalties, or the best ones for a sample of the users."""
    from pyspark.sql import functions as sql
    from scipy.sparse import coo_array

    unfitted: Any = make_model("ials", **settings)
    penalties = Penalties(
        unfitted.unobserved_weight or 0.0, unfitted.regularization or 0.0
    )
    if all(penalties):
        return penalties
    n_parts = -(-n // INTERACTIONS)
    draw = sql.pmod(sql.xxhash64("user", sql.lit(unfitted.random_state)), n_parts)
    sample: Any = pl.from_arrow(table_of(pairs.where(draw == 0).sort("user", "item")))
    users, rows = np.unique(sample["user"].to_numpy(), return_inverse=True)
    entries = (sample["value"].to_numpy(), (rows, sample["item"].to_numpy()))
    weights = coo_array(entries, shape=(len(users), coded.n_items)).tocsr()
    chosen: Penalties = unfitted.chosen_penalties(weights, penalties, coded.n_users)
    return chosen


def _item_factors(
    pairs: DataFrame,
    n_ratings: int,
    settings: dict[str, Any],
    **options: Any,
) -> DataFrame:
    """Return the vectors of items that Spark's ALS fits: index and factors."""
    from pyspark.ml.recommendation import ALS

    n_blocks = min(_MOST_BLOCKS, 1 + n_ratings // _RATINGS_PER_BLOCK)
    als = ALS(
        numUserBlocks=n_blocks,
        numItemBlocks=n_blocks,
        rank=settings["factors"],
        maxIter=settings["iterations"],
        seed=settings["random_state"],
        checkpointInterval=_SWEEPS_PER_CHECKPOINT,
        userCol="user",
        itemCol="item",
        ratingCol="value",
        **options,
    )
    return als.fit(pairs).itemFactors.toDF("index", "factors")


def _items(
    coded: Encoded,
    vectors: DataFrame,
    factors: int,
) -> DataFrame:
    """Return all items with their vectors, zero without training ratings."""
    from pyspark.sql import functions as sql

    counts = coded.pairs.groupBy(sql.col("item").alias("index"))
    count = sql.count("*").cast("int").alias("count")
    table = coded.items.join(vectors, "index", "left")
    table = table.join(counts.agg(count), "index", "left")
    zero = sql.lit(0.0).cast("float")
    items = table.select(
        "index",
        "id",
        sql.coalesce("count", sql.lit(0)).alias("count"),
        sql.coalesce("bias", zero).alias("bias"),
        sql.coalesce("factors", sql.array_repeat(zero, factors)).alias("factors"),
    )
    return _ordered(items)


def _users(coded: Encoded, result: SparkModel) -> DataFrame:
    """Return all users with their training ratings, and vectors that the model folds in."""
    from pyspark.sql import functions as sql

    entry = sql.struct(
        sql.col("item").alias("others"), sql.col("value").alias("values")
    )
    entries = sql.sort_array(sql.collect_list(entry)).alias("entries")
    histories = coded.pairs.groupBy(sql.col("user").alias("index")).agg(entries)
    columns = [sql.col("index"), sql.col("id")]
    for name, kind in (("others", "int"), ("values", "float")):
        nothing = sql.array().cast(f"array<{kind}>")
        columns.append(sql.coalesce(f"entries.{name}", nothing).alias(name))
    # Before the solution, not after it: Spark computes a table twice to divide it by ranges.
    rows = _ordered(coded.users.join(histories, "index", "left").select(*columns))
    spark = rows.sparkSession
    model = ordinary_model(result, _NO_USERS, item_table(result, spark))
    shared: Any = spark.sparkContext.broadcast(model)

    def solve(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        for batch in batches:
            indptr, indices = lists(batch.column("others"))
            histories = Histories(indptr, indices, lists(batch.column("values"))[1])
            with at_most(1):  # Spark runs a task on each core
                solved = shared.value.with_users(histories)
            # Not as a frame of polars, whose lists Spark does not take.
            solution = {
                "count": pa.array(np.diff(indptr).astype(np.int32)),
                "bias": pa.array(solved.user_bias),
                "factors": list_array(solved.user_factors),
            }
            by_name = dict(zip(batch.schema.names, batch.columns, strict=True))
            yield pa.RecordBatch.from_pydict(by_name | solution)

    types = dict(rows.dtypes)
    types |= {"count": "int", "bias": "float", "factors": "array<float>"}
    schema = ", ".join(f"{name} {kind}" for name, kind in types.items())
    return map_in_arrow(rows, solve, schema)


def _ordered(table: DataFrame) -> DataFrame:
    """Return users or items in the order of their indices, in one part for each core."""
    n_parts = table.sparkSession.sparkContext.defaultParallelism
    return table.repartitionByRange(n_parts, "index").sortWithinPartitions("index")


def _write(
    table: DataFrame,
    result: SparkModel,
    side: str,
    folder: SparkPath,
) -> None:
    """Write users or items, and record their files."""
    table.write.parquet(folder.child(side).uri)
    for file, size in folder.child(side).sizes().items():
        result.files[f"{side}/{file}"] = size

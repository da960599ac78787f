"""Fit of models by Spark's ALS: `als` for ratings and `ials` for implicit feedback.

Spark fits the vectors of the items. The users are then solved by the model of one machine, so that
folding in a training user gives the same vector.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

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
from recsys.models.ials import IALS, INTERACTIONS, Penalties, default_factors
from recsys.models.registry import make_model
from recsys.saved_arrays import MANIFEST
from recsys.spark.evaluation import rating_errors
from recsys.spark.files import SparkPath, staged, written
from recsys.spark.reading import Encoded, encode, read_ratings
from recsys.spark.results import MODELS, VERSION, SparkModel, is_result, ordinary_model
from recsys.spark.session import Say, spark_session

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_DEFAULTS = {
    "als": {"regularization": 0.05, "count_power": 1.0},
    "ials": {"count_power": 1.0},
}
_ITERATIONS = 15
_SWEEPS_PER_CHECKPOINT = 5
_BIAS_PENALTY = 5.0  # ratings of the mean that are added to those of each user and item
_SOLVED = "others array<int>, values array<float>, count int, bias float, factors array<float>"
_NOBODY = pl.DataFrame(
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
        Folder for the result, which is created when the fit is complete. On a local disk,
        `recsys.Recommender.load` opens it.
    model : {"als", "ials"}, optional
        By default `als` for ratings and `ials` for implicit feedback.
    master, conf
        As for `spark_session`.
    columns : Request, optional
        Names of columns, if they are not the usual ones.
    duplicates : {"last", "first", "mean", "sum", "error"}, optional
        Rating of a repeated pair of user and item; "last" and "first" need timestamps. By default
        the last, and the sum of weights.
    test_fraction : float, optional
        Share of the ratings to hold out and to evaluate the model on.
    overwrite : bool
        Whether to replace a result of the Spark engine at `out`.
    say : callable, optional
        Called with a short text when a step begins.
    **parameters
        Parameters of the model, such as factors, regularization, iterations or random_state.

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
            table.frame,
            scratch,
            duplicates=duplicates or ("sum" if table.weighted else "last"),
            test_fraction=test_fraction or 0.0,
            random_state=settings["random_state"],
            weighted=table.weighted,
        )
        summary = _summary(coded.pairs)
        if settings["factors"] is None:
            settings["factors"] = default_factors(
                coded.n_users, coded.n_items, summary.n
            )
        begin("fitting")
        # Without checkpoints, the lineage of many sweeps overflows the stack of Java.
        spark.sparkContext.setCheckpointDir(scratch.child("checkpoints").uri)
        fitted = (_fit_als if name == "als" else _fit_ials)(coded, summary, settings)
        result = SparkModel(
            format_version=VERSION,
            package_version=__version__,
            model=name,
            parameters=settings,
            fitted=fitted.scalars,
            training={
                "users": coded.n_users,
                "items": coded.n_items,
                "ratings": summary.n,
                "implicit": name != "als",
                "rating_min": summary.low if name == "als" else None,
                "rating_max": summary.high if name == "als" else None,
                "sweeps": settings["iterations"],
                "train_rmse": None,
                "remarks": "; ".join(table.remarks) or None,
                "as_of": iso_time(request.rules.now),
            },
            versions={
                "python": platform.python_version(),
                "numpy": np.__version__,
                "spark": spark.version,
            },
            files={},
        )
        begin("writing")
        items = _items(coded, fitted.items, settings["factors"])
        items = _written_side(items, folder, "items")
        users = _written_side(_users(coded, items, result), folder, "users")
        error = None
        if name == "als" and test_fraction is not None and not coded.held.isEmpty():
            error = rating_errors(coded.held, users, items, summary.mean)[0]
        result.training["validation_rmse"] = error
        result.training["seconds"] = round(time.perf_counter() - start, 3)
        for side in ("users", "items"):
            for file, size in folder.child(side).sizes().items():
                result.files[f"{side}/{file}"] = size
        text = msgspec.json.format(msgspec.json.encode(result), indent=2).decode()
        folder.child(MANIFEST).write_text(f"{text}\n")
        scratch.delete()
    return msgspec.structs.replace(result, path=str(out).rstrip("/"))


def _chosen_model(
    model: str | None, parameters: Mapping[str, Any], *, implicit: bool
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
    defaults = {"iterations": _ITERATIONS, **_DEFAULTS[name]}
    settings = make_model(name, **{**defaults, **parameters}).get_params()
    if settings.get("linked"):
        raise DataError("The als model has no links on Spark; leave out linked.")
    if settings["nonnegative"]:
        raise DataError(
            f"The {name} model has no non-negative factors on Spark; leave out nonnegative."
        )
    if settings["count_power"] != 1:
        raise DataError(
            "The penalty of Spark's ALS grows with the count; count_power must be 1."
        )
    return name, settings


class _Summary(NamedTuple):
    """Number, mean, standard deviation and range of the ratings."""

    n: int
    mean: float
    std: float
    low: float
    high: float


def _summary(pairs: DataFrame) -> _Summary:
    from pyspark.sql import functions as sql

    value = sql.col("value").cast("double")
    row = pairs.agg(
        sql.count("*"),
        sql.avg(value),
        sql.stddev_pop(value),
        sql.min(value),
        sql.max(value),
    ).first()
    if row is None or not row[0]:
        raise DataError(
            "No ratings remain to fit to: all are held out; lower test_fraction."
        )
    return _Summary(row[0], row[1], row[2] or 1.0, row[3], row[4])


class _Fitted(NamedTuple):
    """Vectors of the items (index, bias, factors), and scalars of the model."""

    items: DataFrame
    scalars: dict[str, float]


def _fit_als(coded: Encoded, summary: _Summary, settings: dict[str, Any]) -> _Fitted:
    """Fit biases of items and users, then vectors to the residuals."""
    from pyspark.sql import functions as sql

    item_bias = _bias(coded.pairs, "item", sql.col("value") - summary.mean)
    pairs = coded.pairs.join(item_bias, "item")
    residual = sql.col("value") - summary.mean - sql.col("item_bias")
    pairs = pairs.join(_bias(pairs, "user", residual), "user")
    residual = (residual - sql.col("user_bias")).cast("float")
    factors = _item_factors(
        pairs.select("user", "item", residual.alias("value")),
        settings,
        # `solve_rows` has the penalty lambda n s |a|^2, Spark lambda n |a|^2.
        regParam=settings["regularization"] * summary.std,
    )
    items = item_bias.toDF("index", "bias").join(factors, "index", "left")
    return _Fitted(items, {"global_mean": summary.mean, "rating_std": summary.std})


def _bias(pairs: DataFrame, side: str, residual: Column) -> DataFrame:
    """Return the mean residual of each user or item, shrunk towards 0."""
    from pyspark.sql import functions as sql

    shrunk = sql.sum(residual) / (sql.count(residual) + _BIAS_PENALTY)
    return pairs.groupBy(side).agg(shrunk.cast("float").alias(f"{side}_bias"))


def _fit_ials(coded: Encoded, summary: _Summary, settings: dict[str, Any]) -> _Fitted:
    """Fit vectors to the interactions and their absence."""
    from pyspark.sql import functions as sql

    unit = summary.mean if summary.mean > 0 else 1.0
    weight = sql.greatest(sql.col("value") / unit, sql.lit(0.0)).cast("float")
    pairs = coded.pairs.select("user", "item", weight.alias("value"))
    penalties = _penalties(pairs, coded, summary.n, IALS(**settings))
    # Spark gives the weight 1 to all pairs, and 1 + alpha w to interactions: the weights of
    # `ials`, unobserved_weight and about w, are the same up to a factor.
    factors = _item_factors(
        pairs,
        settings,
        regParam=penalties.regularization / penalties.unobserved_weight,
        alpha=1 / penalties.unobserved_weight,
        implicitPrefs=True,
    )
    scalars = {
        "global_mean": 0.0,
        "unit": unit,
        "penalty": penalties.regularization,
        "pair_weight": penalties.unobserved_weight,
    }
    return _Fitted(factors.withColumn("bias", sql.lit(0.0).cast("float")), scalars)


def _penalties(pairs: DataFrame, coded: Encoded, n: int, unfitted: IALS) -> Penalties:
    """Return the given penalties, or the best ones for a sample of the users."""
    from pyspark.sql import functions as sql
    from scipy.sparse import coo_array

    penalties = Penalties(
        unfitted.unobserved_weight or 0.0, unfitted.regularization or 0.0
    )
    if all(penalties):
        return penalties
    n_parts = -(-n // INTERACTIONS)
    draw = sql.pmod(sql.xxhash64("user", sql.lit(unfitted.random_state)), n_parts)
    sample: Any = pl.from_arrow(table_of(pairs.where(draw == 0).sort("user", "item")))
    _, rows = np.unique(sample["user"].to_numpy(), return_inverse=True)
    entries = sample["value"].to_numpy(), (rows, sample["item"].to_numpy())
    weights = coo_array(entries, shape=(int(rows.max()) + 1, coded.n_items)).tocsr()
    return unfitted.chosen_penalties(weights, penalties, coded.n_users)


def _item_factors(
    pairs: DataFrame, settings: dict[str, Any], **options: Any
) -> DataFrame:
    """Return the vectors of items that Spark's ALS fits: index and factors."""
    from pyspark.ml.recommendation import ALS

    als = ALS(
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


def _items(coded: Encoded, vectors: DataFrame, factors: int) -> DataFrame:
    """Return all items with their vectors, zero without training ratings."""
    from pyspark.sql import functions as sql

    counts = coded.pairs.groupBy("item").agg(sql.count("*").cast("int").alias("count"))
    table = coded.items.join(vectors, "index", "left")
    table = table.join(counts.withColumnRenamed("item", "index"), "index", "left")
    zero = sql.lit(0.0).cast("float")
    return table.select(
        "index",
        "id",
        sql.coalesce("count", sql.lit(0)).alias("count"),
        sql.coalesce("bias", zero).alias("bias"),
        sql.coalesce("factors", sql.array_repeat(zero, factors)).alias("factors"),
    )


def _users(coded: Encoded, items: DataFrame, result: SparkModel) -> DataFrame:
    """Return all users with their training ratings, and vectors that the model folds in."""
    from pyspark.sql import functions as sql

    entry = sql.struct(
        sql.col("item").alias("others"), sql.col("value").alias("values")
    )
    entries = sql.sort_array(sql.collect_list(entry)).alias("entries")
    histories = coded.pairs.groupBy(sql.col("user").alias("index")).agg(entries)
    rows = coded.users.join(histories, "index", "left").select(
        "index",
        "id",
        sql.coalesce("entries.others", sql.array().cast("array<int>")).alias("others"),
        sql.coalesce("entries.values", sql.array().cast("array<float>")).alias(
            "values"
        ),
    )
    item_table: Any = pl.from_arrow(table_of(items.sort("index")))
    model = ordinary_model(result, _NOBODY, item_table)
    shared: Any = rows.sparkSession.sparkContext.broadcast(model)

    def solve(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        for batch in batches:
            indptr, indices = lists(batch, "others")
            histories = Histories(indptr, indices, lists(batch, "values")[1])
            with at_most(1):  # Spark runs a task on each core
                solved = shared.value.with_users(histories)
            columns = {
                name: batch.column(name) for name in ("index", "id", "others", "values")
            }
            columns["count"] = pa.array(np.diff(indptr).astype(np.int32))
            columns["bias"] = pa.array(solved.user_bias)
            columns["factors"] = list_array(solved.user_factors)
            yield pa.RecordBatch.from_pydict(columns)

    kind = dict(coded.users.dtypes)["id"]
    return map_in_arrow(rows, solve, f"index int, id {kind}, {_SOLVED}")


def _written_side(table: DataFrame, folder: SparkPath, side: str) -> DataFrame:
    """Write users or items in the order of their indices, and return the table that reads them."""
    n_parts = table.sparkSession.sparkContext.defaultParallelism
    ordered = table.repartitionByRange(n_parts, "index").sortWithinPartitions("index")
    return written(ordered, folder.child(side))

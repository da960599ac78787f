"""Evaluation on a cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from recsys.errors import DataError
from recsys.readers.layout import Request
from recsys.spark.fitting import BROADCAST_LIMIT
from recsys.spark.measuring import ranking_metrics, rating_errors
from recsys.spark.reading import read_ratings
from recsys.spark.results import SparkModel
from recsys.spark.session import spark_session, watching
from recsys.spark.topn import top_items

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "Metric",
    "SparkEvaluation",
    "evaluate",
]

_NORMAL_95 = 1.96


@dataclass(frozen=True, slots=True)
class Metric:
    """A mean over users, with its 95% interval by the normal approximation.

    The interval is None where there is one user, and for errors over all ratings.
    """

    value: float
    interval: tuple[float, float] | None
    count: int


@dataclass(frozen=True, slots=True)
class SparkEvaluation:
    """What `evaluate` found.

    Attributes
    ----------
    metrics : dict of str to Metric
        rmse and mae (unless the feedback is implicit), precision@n, recall@n, ndcg@n, defined as in
        `recsys.evaluation`.
    n : int
        Length of the recommendations.
    counts : dict of str to int
        test_ratings; users_evaluated; unknown_ratings (their user or item is not in the model; left
        out).
    """

    metrics: dict[str, Metric]
    n: int
    counts: dict[str, int]


def evaluate(
    model: str,
    test: str,
    n: int = 10,
    *,
    relevant_from: float | None = None,
    columns: Request | None = None,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    broadcast_limit: int = BROADCAST_LIMIT,
    say: Callable[[str], None] | None = None,
) -> SparkEvaluation:
    """Measure a model of the Spark engine on ratings that it was not fitted to.

    Predictions are clipped to the range of the training ratings. Recommendations are made to every
    user with relevant test items, out of all items that the user has not rated in the training
    part. Only sums come to the driver.

    Parameters
    ----------
    model : str
        Path of a model that `fit` wrote.
    test : str
        Ratings in Parquet, CSV or TSV.
    n : int
        Length of the recommendations.
    relevant_from : float, optional
        Test items rated at least this are relevant; all are by default.
    columns, master, conf, broadcast_limit, say
        As in `recsys.spark.fit`.

    Raises
    ------
    DataError
        If n is below 1, no test rating is of a known user and item, one is a training rating as
        well, or none is relevant.
    EngineError
        If Spark is missing, cannot be reached or fails.
    """
    if n < 1:
        raise DataError(f"n must be at least 1; got {n}.")
    with spark_session(master, conf) as spark, watching(spark, "evaluating", say):
        fitted = SparkModel.open(spark, model)
        table = read_ratings(spark, test, columns or Request())
        users, items = fitted.users(spark), fitted.items(spark)
        pairs, unknown = _known_pairs(table.frame, users, items)
        pairs = pairs.cache()
        try:
            return _measured(spark, fitted, pairs, n, relevant_from, unknown, broadcast_limit)
        finally:
            pairs.unpersist()


def _measured(
    spark: SparkSession,
    fitted: SparkModel,
    pairs: DataFrame,
    n: int,
    relevant_from: float | None,
    unknown: int,
    broadcast_limit: int,
) -> SparkEvaluation:
    from pyspark.sql import functions as sql

    users, items = fitted.users(spark), fitted.items(spark)
    count = pairs.count()
    if not count:
        raise DataError("No test rating has both a user and an item of the model.")
    _refuse_overlap(pairs, users)
    metrics: dict[str, Metric] = {}
    if not fitted.implicit:
        limits = (fitted.training["rating_min"], fitted.training["rating_max"])
        errors = rating_errors(pairs, users, items, fitted.global_mean, limits)
        metrics["rmse"] = Metric(errors.rmse, None, errors.count)
        metrics["mae"] = Metric(errors.mae, None, errors.count)
    relevant = pairs if relevant_from is None else pairs.where(sql.col("value") >= relevant_from)
    asked = users.join(relevant.select(sql.col("user").alias("index")), "index", "left_semi")
    top = top_items(spark, fitted, n, users=asked, broadcast_limit=broadcast_limit)
    found = top.select(
        sql.col("user_index").alias("user"), sql.col("item_index").alias("item"), "rank"
    )
    metrics |= _means(ranking_metrics(found, relevant.select("user", "item"), n), n)
    counts = {
        "test_ratings": count,
        "users_evaluated": metrics[f"ndcg@{n}"].count,
        "unknown_ratings": unknown,
    }
    return SparkEvaluation(metrics, n, counts)


def _known_pairs(test: DataFrame, users: DataFrame, items: DataFrame) -> tuple[DataFrame, int]:
    """Return test ratings by index, repeated ones as their mean, and how many are unknown."""
    from pyspark.sql import functions as sql

    coded = test
    for ids, side in ((users, "user"), (items, "item")):
        known = ids.select(sql.col("id").cast("string").alias(side), sql.col("index"))
        coded = (
            coded.withColumn(side, sql.col(side).cast("string"))
            .join(known, side, "left")
            .drop(side)
            .withColumnRenamed("index", side)
        )
    merged = coded.groupBy("user", "item").agg(
        sql.avg("value").alias("value"), sql.count(sql.lit(1)).alias("rows")
    )
    is_known = sql.col("user").isNotNull() & sql.col("item").isNotNull()
    unknown = merged.where(~is_known).agg(sql.sum("rows")).first()[0]
    return merged.where(is_known).select("user", "item", "value"), int(unknown or 0)


def _refuse_overlap(pairs: DataFrame, users: DataFrame) -> None:
    from pyspark.sql import functions as sql

    seen = users.select(sql.col("index").alias("user"), sql.explode("others").alias("item"))
    common = pairs.join(seen, ["user", "item"], "left_semi").count()
    if common:
        raise DataError(
            f"{common:,} of the test ratings are training ratings of the model as well; what is "
            "tested must not have been learnt."
        )


def _means(per_user: DataFrame, n: int) -> dict[str, Metric]:
    from pyspark.sql import functions as sql

    names = ("precision", "recall", "ndcg")
    sums = [each for name in names for each in (sql.avg(name), sql.stddev_samp(name))]
    found = per_user.agg(sql.count(sql.lit(1)), *sums).first()
    count = int(found[0])
    if not count:
        raise DataError("No test rating is high enough to be relevant; lower relevant_from.")
    metrics = {}
    for place, name in enumerate(names):
        mean, spread = found[1 + 2 * place], found[2 + 2 * place]
        half = None if count < 2 else _NORMAL_95 * float(spread) / count**0.5
        interval = None if half is None else (float(mean) - half, float(mean) + half)
        metrics[f"{name}@{n}"] = Metric(float(mean), interval, count)
    return metrics

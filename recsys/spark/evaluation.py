"""Evaluation on a cluster."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from recsys.errors import DataError
from recsys.readers.layout import Request
from recsys.spark.reading import read_ratings
from recsys.spark.results import SparkModel
from recsys.spark.session import BROADCAST_LIMIT, spark_session, watching
from recsys.spark.topn import top_items

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = [
    "Metric",
    "RatingErrors",
    "SparkEvaluation",
    "evaluate",
    "ranking_metrics",
    "rating_errors",
]

_NORMAL_95 = 1.96


@dataclass(frozen=True, slots=True)
class Metric:
    """A mean over users, with its 95% interval by the normal approximation.

    The interval is None for a single user, and for errors over all ratings.
    """

    value: float
    interval: tuple[float, float] | None
    count: int


@dataclass(frozen=True, slots=True)
class SparkEvaluation:
    """Result of `evaluate`.

    Attributes
    ----------
    metrics : dict of str to Metric
        rmse and mae (unless the feedback is implicit), precision@n, recall@n, ndcg@n, defined as in
        `recsys.evaluation`.
    n : int
        Length of the recommendations.
    counts : dict of str to int
        test_ratings; users_evaluated; unknown_ratings (left out, since their user or item is not
        in the model).
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

    Predictions are clipped to the range of the training ratings. Every user with relevant test
    items gets recommendations out of all items that are not among the user's training ratings.
    Only sums come to the driver.

    Parameters
    ----------
    model : str
        Path of a model that `fit` wrote.
    test : str
        Ratings in Parquet, CSV or TSV.
    n : int
        Length of the recommendations.
    relevant_from : float, optional
        Minimum rating of relevant test items; by default all are relevant.
    columns, master, conf, broadcast_limit, say
        As in `recsys.spark.fit`.

    Raises
    ------
    DataError
        If n is below 1, no test rating has a known user and item, one is also a training rating,
        or none is relevant.
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
            found = _measured(spark, fitted, pairs, n, relevant_from, broadcast_limit)
        finally:
            pairs.unpersist()
    found.counts["unknown_ratings"] = unknown
    return found


def _measured(
    spark: SparkSession,
    fitted: SparkModel,
    pairs: DataFrame,
    n: int,
    relevant_from: float | None,
    broadcast_limit: int,
) -> SparkEvaluation:
    from pyspark.sql import functions as sql

    users, items = fitted.users(spark), fitted.items(spark)
    count = pairs.count()
    if not count:
        raise DataError("No test rating has both a user and an item of the model.")
    seen = users.select(sql.col("index").alias("user"), sql.explode("others").alias("item"))
    common = pairs.join(seen, ["user", "item"], "left_semi").count()
    if common:
        raise DataError(
            f"{common:,} of the test ratings are also training ratings of the model; test on "
            "ratings that it was not fitted to."
        )
    metrics: dict[str, Metric] = {}
    if not fitted.implicit:
        limits = (fitted.training["rating_min"], fitted.training["rating_max"])
        errors = rating_errors(pairs, users, items, fitted.global_mean, limits)
        metrics["rmse"] = Metric(errors.rmse, None, errors.count)
        metrics["mae"] = Metric(errors.mae, None, errors.count)
    relevant = pairs if relevant_from is None else pairs.where(sql.col("value") >= relevant_from)
    chosen = users.join(relevant.select(sql.col("user").alias("index")), "index", "left_semi")
    top = top_items(spark, fitted, n, users=chosen, broadcast_limit=broadcast_limit)
    found = top.select(
        sql.col("user_index").alias("user"), sql.col("item_index").alias("item"), "rank"
    )
    metrics |= _means(ranking_metrics(found, relevant.select("user", "item"), n), n)
    counts = {"test_ratings": count, "users_evaluated": metrics[f"ndcg@{n}"].count}
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


@dataclass(frozen=True, slots=True)
class RatingErrors:
    """RMSE and MAE of predicted ratings, and their number."""

    rmse: float
    mae: float
    count: int


def rating_errors(
    pairs: DataFrame,
    users: DataFrame,
    items: DataFrame,
    mean: float,
    limits: tuple[float, float] | None = None,
) -> RatingErrors:
    """Return the errors of the predicted ratings of pairs.

    Parameters
    ----------
    pairs : DataFrame
        Columns user, item (indices) and value; one row at least.
    users, items : DataFrame
        Columns index, bias and factors; a missing row counts as zeros.
    mean : float
    limits : pair of float, optional
        Range that predictions are clipped to.
    """
    from pyspark.sql import functions as sql

    known = pairs
    for vectors, side in ((users, "user"), (items, "item")):
        renamed = vectors.select(
            sql.col("index").alias(side),
            sql.col("bias").alias(f"{side}_bias"),
            sql.col("factors").alias(f"{side}_factors"),
        )
        known = known.join(renamed, side, "left")
    products = sql.zip_with("user_factors", "item_factors", lambda a, b: a.cast("double") * b)
    dot = sql.aggregate(products, sql.lit(0.0), lambda total, each: total + each)
    terms = [sql.col("user_bias"), sql.col("item_bias"), dot]
    predicted: Column = sql.lit(mean)
    for term in terms:
        predicted = predicted + sql.coalesce(term, sql.lit(0.0))
    if limits is not None:
        low, high = (sql.lit(float(limit)) for limit in limits)
        predicted = sql.greatest(low, sql.least(high, predicted))
    error = predicted - sql.col("value")
    found = known.agg(
        sql.avg(error * error).alias("square"),
        sql.avg(sql.abs(error)).alias("size"),
        sql.count(sql.lit(1)).alias("count"),
    ).first()
    return RatingErrors(math.sqrt(found["square"]), float(found["size"]), int(found["count"]))


def ranking_metrics(recommended: DataFrame, relevant: DataFrame, n: int) -> DataFrame:
    """Return precision, recall and NDCG at n of each user with relevant items.

    They are defined as in `recsys.evaluation.metrics`.

    Parameters
    ----------
    recommended : DataFrame
        Columns user, item (indices) and rank.
    relevant : DataFrame
        Columns user and item: the right answers.
    n : int

    Returns
    -------
    DataFrame
        Columns user, precision, recall and ndcg.
    """
    from pyspark.sql import functions as sql

    gain = sql.lit(math.log(2)) / sql.log(sql.col("rank") + 1.0)
    hits = relevant.join(recommended, ["user", "item"], "left").groupBy("user")
    counted = hits.agg(
        sql.count("rank").alias("hits"),
        sql.sum(gain).alias("gain"),
        sql.count(sql.lit(1)).alias("relevant"),
    )
    best, ideals = 0.0, []
    for rank in range(1, n + 1):
        best += math.log(2) / math.log(rank + 1)
        ideals.append(best)
    table = sql.array(*(sql.lit(each) for each in ideals))
    ideal = sql.element_at(table, sql.least(sql.col("relevant"), sql.lit(n)).cast("int"))
    return counted.select(
        "user",
        (sql.col("hits") / n).alias("precision"),
        (sql.col("hits") / sql.col("relevant")).alias("recall"),
        (sql.coalesce("gain", sql.lit(0.0)) / ideal).alias("ndcg"),
    )

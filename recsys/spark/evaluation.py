"""Evaluation of models of the Spark engine on a cluster."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from recsys.data.columns import Request
from recsys.errors import DataError
from recsys.spark.reading import RatingsTable, read_ratings
from recsys.spark.results import SparkModel
from recsys.spark.session import Say, spark_session
from recsys.spark.topn import top_items

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_NORMAL_95 = 1.96


@dataclass(frozen=True, slots=True)
class Metric:
    """A mean over users with its 95% interval, None for errors and for a single user."""

    value: float
    interval: tuple[float, float] | None
    count: int


@dataclass(frozen=True, slots=True)
class SparkEvaluation:
    """Result of `evaluate`.

    Attributes
    ----------
    metrics : dict of str to Metric
        rmse, mae (unless the feedback is implicit), precision@n, recall@n, ndcg@n.
    counts : dict of str to int
        test_ratings, users_evaluated, unknown_ratings (of users or items not in the model) and
        known_pairs (left out because the training data have them).
    remarks : tuple of str
        Test rows that were left out because of their times, and the like.
    """

    metrics: dict[str, Metric]
    counts: dict[str, int]
    remarks: tuple[str, ...] = ()


def evaluate(
    model: str,
    test: str,
    n: int = 10,
    *,
    relevant_from: float | None = None,
    columns: Request | None = None,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    say: Say | None = None,
) -> SparkEvaluation:
    """Evaluate a model of the Spark engine on test ratings.

    Predictions are clipped to the range of the training ratings. For each user with relevant test
    items, n items are recommended out of all that the user has not rated in the training data.

    Parameters
    ----------
    model, test : str
        Paths of a model that `fit` wrote, and of ratings in Parquet, CSV or TSV.
    n : int
        Length of the recommendations.
    relevant_from : float, optional
        Minimum rating of relevant test items; by default all are relevant.
    columns, master, conf, say
        As for `fit`.

    Raises
    ------
    DataError
        If n is below 1, no test rating has a known user and item, all test ratings are also
        training ratings, or none is relevant.
    EngineError
        If Spark is missing, cannot be reached or fails.
    """
    from pyspark.sql import functions as sql

    if n < 1:
        raise DataError(f"n must be at least 1; got {n}.")
    begin = say or (lambda step: None)
    with spark_session(master, conf) as spark:
        fitted = SparkModel.open(spark, model)
        begin("reading")
        table = read_ratings(spark, test, columns or Request())
        users = fitted.table(spark, "users")
        items = fitted.table(spark, "items")
        pairs, n_unknown = _known_pairs(table, users, items)
        pairs, n_pairs, n_known = _new_pairs(pairs, users)
        metrics: dict[str, Metric] = {}
        if not fitted.implicit:
            begin("predicting")
            limits = (fitted.training["rating_min"], fitted.training["rating_max"])
            mean = fitted.fitted["global_mean"]
            rmse, mae = rating_errors(pairs, users, items, mean, limits)
            metrics["rmse"] = Metric(rmse, None, n_pairs)
            metrics["mae"] = Metric(mae, None, n_pairs)
        begin("recommending")
        relevant = (
            pairs
            if relevant_from is None
            else pairs.where(pairs.value >= relevant_from)
        )
        tested = relevant.select(sql.col("user").alias("index"))
        chosen = users.join(tested, "index", "left_semi")
        top = top_items(spark, fitted, n, users=chosen, by_user=True)
        lists = top.select("user_index", "item_index", "rank").toDF(
            "user", "item", "rank"
        )
        metrics |= _ranking_metrics(lists, relevant, n)
    counts = {
        "test_ratings": n_pairs,
        "users_evaluated": metrics[f"ndcg@{n}"].count,
        "unknown_ratings": n_unknown,
        "known_pairs": n_known,
    }
    return SparkEvaluation(metrics, counts, table.remarks)


def _known_pairs(
    test: RatingsTable, users: DataFrame, items: DataFrame
) -> tuple[DataFrame, int]:
    """Return test ratings by index, and the number of unknown ones.

    Duplicates have their mean; weights are added, and sums of zero or less are left out.
    """
    from pyspark.sql import functions as sql

    coded = test.frame
    for ids, side in ((users, "user"), (items, "item")):
        index = ids.select(sql.col("id").cast("string").alias(side), "index")
        texts = coded.withColumn(side, sql.col(side).cast("string"))
        coded = texts.join(index, side, "left").drop(side)
        coded = coded.withColumnRenamed("index", side)
    inside = coded.dropna(subset=["user", "item"])
    value = sql.sum("value") if test.weighted else sql.avg("value")
    pairs = inside.groupBy("user", "item").agg(value.alias("value"))
    if test.weighted:
        pairs = pairs.where("value > 0")
    return pairs, coded.count() - inside.count()


def _new_pairs(pairs: DataFrame, users: DataFrame) -> tuple[DataFrame, int, int]:
    """Return the test ratings that are not in the training data, their number and the others'."""
    from pyspark.sql import functions as sql

    total = pairs.count()
    if not total:
        raise DataError("No test rating has both a user and an item of the model.")
    seen = users.select(
        sql.col("index").alias("user"), sql.explode("others").alias("item")
    )
    new = pairs.join(seen, ["user", "item"], "left_anti").cache()
    count = new.count()
    if not count:
        raise DataError(
            f"All {total:,} test ratings are also training ratings of the model; test on "
            "ratings that it was not fitted to."
        )
    return new, count, total - count


def rating_errors(
    pairs: DataFrame,
    users: DataFrame,
    items: DataFrame,
    mean: float,
    limits: tuple[float, float] | None = None,
) -> tuple[float, float]:
    """Return RMSE and MAE of predicted ratings; vectors of missing users and items are zero."""
    from pyspark.sql import functions as sql

    joined = pairs
    for vectors, side in ((users, "user"), (items, "item")):
        columns = vectors.select("index", "bias", "factors")
        joined = joined.join(
            columns.toDF(side, f"{side}_bias", f"{side}_factors"), side
        )
    products = sql.zip_with(
        "user_factors", "item_factors", lambda a, b: a.cast("double") * b
    )
    dot = sql.aggregate(products, sql.lit(0.0), lambda total, product: total + product)
    predicted: Column = (
        sql.lit(mean) + sql.col("user_bias") + sql.col("item_bias") + dot
    )
    if limits is not None:
        low, high = (sql.lit(float(limit)) for limit in limits)
        predicted = sql.greatest(low, sql.least(high, predicted))
    error = predicted - sql.col("value")
    square, absolute = joined.agg(
        sql.avg(error * error), sql.avg(sql.abs(error))
    ).first() or (0, 0)
    return math.sqrt(square), float(absolute)


def _ranking_metrics(
    recommended: DataFrame, relevant: DataFrame, n: int
) -> dict[str, Metric]:
    """Return the means over users of precision, recall and NDCG at n."""
    from pyspark.sql import functions as sql

    gain = sql.sum(1 / sql.log2(sql.col("rank") + 1.0))
    per_user = (
        relevant.join(recommended, ["user", "item"], "left")
        .groupBy("user")
        .agg(
            sql.count("rank").alias("hits"),
            sql.coalesce(gain, sql.lit(0.0)).alias("gain"),
            sql.count("*").alias("relevant"),
        )
    )
    ideals = accumulate(1 / math.log2(rank + 1) for rank in range(1, n + 1))
    n_ideal = sql.least(sql.col("relevant"), sql.lit(n)).cast("int")
    values = {
        "precision": sql.col("hits") / n,
        "recall": sql.col("hits") / sql.col("relevant"),
        "ndcg": sql.col("gain")
        / sql.element_at(sql.array(*map(sql.lit, ideals)), n_ideal),
    }
    metrics = {}
    for name, value in values.items():
        moments = (sql.count("*"), sql.avg(value), sql.stddev_samp(value))
        count, mean, spread = per_user.agg(*moments).first() or (0, 0, 0)
        if not count:
            raise DataError(
                "No test rating is high enough to be relevant; lower relevant_from."
            )
        half = _NORMAL_95 * (spread or 0.0) / math.sqrt(count)
        interval = (mean - half, mean + half) if count > 1 else None
        metrics[f"{name}@{n}"] = Metric(mean, interval, count)
    return metrics

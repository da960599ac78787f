"""Evaluation of models of the Spark engine on a cluster."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from recsys.data.columns import Request
from recsys.errors import DataError
from recsys.evaluation.metrics import ndcg, precision, recall
from recsys.predictions import clip_to_range
from recsys.spark import topn
from recsys.spark.reading import read_ratings
from recsys.spark.results import SparkModel, item_table
from recsys.spark.session import Say, spark_session
from recsys.spark.workers import map_frames

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_NORMAL_95 = 1.96
# Columns of the measurement of a user, with their types in Spark.
_SUMS = {
    "pairs": "bigint",
    "known": "bigint",
    "squares": "double",
    "absolutes": "double",
}
_MEANS = dict.fromkeys(("precision", "recall", "ndcg"), "double")


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
        test_ratings, users_evaluated, unknown_ratings (of users or items not in the
        model) and known_pairs (left out because the training data have them).
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

    Predictions are clipped to the range of the training ratings. For each user with
    relevant test items, n items are recommended out of all that the user has not rated
    in the training data. Repeated test ratings have their mean; weights are added, and
    sums of zero or less are left out.

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
        If n is below 1, no test rating has a known user and item, all test ratings are
        also training ratings, or none is relevant.
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
        coded = table.frame
        for side in ("user", "item"):
            ids = fitted.table(spark, f"{side}s").select(
                sql.col("id").cast("string").alias(side), "index"
            )
            coded = coded.withColumn(side, sql.col(side).cast("string"))
            coded = coded.join(ids, side, "left").drop(side)
            coded = coded.withColumnRenamed("index", side)
        inside = coded.dropna(subset=["user", "item"])
        n_unknown = coded.count() - inside.count()
        value = sql.sum("value") if table.weighted else sql.avg("value")
        pairs = inside.groupBy("user", "item").agg(value.alias("value"))
        if table.weighted:
            pairs = pairs.where("value > 0")
        begin("recommending")
        measured = measure(fitted, pairs, n, relevant_from)
        row: Any = measured.agg(
            *(sql.sum(name).alias(name) for name in _SUMS),
            *(sql.avg(name).alias(name) for name in _MEANS),
            *(sql.stddev_samp(name).alias(f"{name}_std") for name in _MEANS),
            sql.count("ndcg").alias("users"),
        ).first()
    if row["pairs"] is None:
        raise DataError("No test rating has both a user and an item of the model.")
    if not row["pairs"]:
        raise DataError(
            f"All {row['known']:,} test ratings are also training ratings of the model; test on "
            "ratings that it was not fitted to."
        )
    if not row["users"]:
        raise DataError(
            "No test rating is high enough to be relevant; lower relevant_from."
        )
    metrics = {}
    if not fitted.implicit:
        rmse = math.sqrt(row["squares"] / row["pairs"])
        metrics["rmse"] = Metric(rmse, None, row["pairs"])
        metrics["mae"] = Metric(row["absolutes"] / row["pairs"], None, row["pairs"])
    for name in _MEANS:
        mean = row[name]
        # The interval of a mean over independent users, by the normal distribution.
        half = _NORMAL_95 * (row[f"{name}_std"] or 0.0) / math.sqrt(row["users"])
        interval = (mean - half, mean + half) if row["users"] > 1 else None
        metrics[f"{name}@{n}"] = Metric(mean, interval, row["users"])
    counts = {
        "test_ratings": row["pairs"],
        "users_evaluated": row["users"],
        "unknown_ratings": n_unknown,
        "known_pairs": row["known"],
    }
    return SparkEvaluation(metrics, counts, table.remarks)


def measure(
    model: SparkModel,
    pairs: DataFrame,
    n: int = 0,
    relevant_from: float | None = None,
) -> DataFrame:
    """Return the errors, and the metrics of lists of n, of each user with test pairs.

    `pairs` has the columns user, item and value, the first two as indices. Those that
    the user has in the training data are only counted, as `known`. Errors are sums over
    the other `pairs`. The metrics are null without relevant pairs, or if n is 0.
    """
    from pyspark.sql import functions as sql

    spark = pairs.sparkSession
    values = sql.collect_list(sql.col("value").cast("double")).alias("values")
    tested = sql.collect_list("item").alias("tested")
    index = sql.col("user").alias("index")
    by_user = pairs.groupBy(index).agg(tested, values)
    # The training ratings of the users have the name values, too.
    users = model.table(spark, "users").drop("values").join(by_user, "index")
    shared: Any = spark.sparkContext.broadcast(item_table(model, spark))
    # The workers get the function itself with the closure.
    ordinary_model = topn.ordinary_model
    lowest = -math.inf if relevant_from is None else relevant_from

    def measured(table: pl.DataFrame) -> pl.DataFrame:
        fitted = ordinary_model(model, table, shared.value)
        numbered = table.with_row_index("row").with_columns(pl.col("row").cast(int))
        pairs = numbered.select("row", "tested", "values").explode("tested", "values")
        seen = numbered.select("row", tested="others").explode("tested")
        pairs = pairs.join(
            seen, on=["row", "tested"], how="anti", maintain_order="left"
        )
        rows, items, actual = (column.to_numpy() for column in pairs)
        errors = np.zeros(len(items))
        if not model.implicit:
            predicted = fitted.predict(rows, items)
            if n:  # while fitting, predictions are not clipped
                predicted = clip_to_range(predicted, model.training)
            errors = predicted - actual
        n_users = len(table)
        n_new = np.bincount(rows, minlength=n_users)
        lists = np.full((n_users, max(n, 1)), -1)
        if n:
            top = topn.top_items(fitted, table, shared.value["id"], n, by_user=True)
            lists[top.rows, top.ranks - 1] = top.items
        n_items = len(shared.value)
        is_relevant = actual >= lowest
        relevant = (rows * n_items + items)[is_relevant]
        keys = np.arange(n_users)[:, None] * n_items + lists
        hits = np.isin(keys, relevant) & (lists >= 0)
        n_relevant = np.bincount(rows[is_relevant], minlength=n_users)
        # Users without relevant pairs have no metrics.
        divisors = np.maximum(n_relevant, 1)
        columns = {
            "pairs": n_new,
            "known": table["tested"].list.len().cast(int) - n_new,
            "squares": np.bincount(rows, errors**2, n_users),
            "absolutes": np.bincount(rows, np.abs(errors), n_users),
            "precision": precision(hits),
            "recall": recall(hits, divisors),
            "ndcg": ndcg(hits, divisors),
        }
        has_metrics = pl.lit(pl.Series(n_relevant > 0)) & (n > 0)
        means = pl.when(has_metrics).then(pl.col(*_MEANS))
        # Sums over no pairs at all are integers.
        sums = pl.col("squares", "absolutes").cast(float)
        return pl.DataFrame(columns).with_columns(sums, means)

    return map_frames(users, measured, _SUMS | _MEANS)

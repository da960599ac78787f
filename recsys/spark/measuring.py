"""Errors of predicted ratings and hits of recommendations, counted on the cluster."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["RatingErrors", "ranking_metrics", "rating_errors"]


@dataclass(frozen=True, slots=True)
class RatingErrors:
    """RMSE and MAE of some predicted ratings, and how many they were."""

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
    """Predict the ratings of pairs and compare.

    Parameters
    ----------
    pairs : DataFrame
        Columns user, item (indices) and value; one row at least.
    users, items : DataFrame
        Columns index, bias and factors; one that is not there has zeros.
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
        Columns user and item: what would have been right.
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

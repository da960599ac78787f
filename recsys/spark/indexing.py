"""From ids to dense indices, and from a long table to one row of ratings per user or item.

Nothing here brings ids to the driver. What is numbered once is written down before it is used, so
that a task that runs twice finds the same numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from recsys.errors import DataError
from recsys.spark.files import Place, written

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from recsys.spark.reading import RatingsTable

__all__ = ["Encoded", "encode", "group_rows", "number", "pairs_of"]

MOST_IDS = 2**31 - 1  # MLlib's ids and our indices are signed 32-bit integers

_ROW_BITS = (1 << 33) - 1  # monotonically_increasing_id is partition * 2**33 + row
_HOLDOUT_STEPS = 1 << 20


@dataclass(frozen=True, slots=True)
class Encoded:
    """Ratings by index.

    Attributes
    ----------
    users, items : DataFrame
        Columns id and index: 0, 1, ... in the sorted order of the ids.
    n_users, n_items : int
    pairs : DataFrame
        Columns user, item (int), value (float) and held (boolean): no pair twice.
    """

    users: DataFrame
    items: DataFrame
    n_users: int
    n_items: int
    pairs: DataFrame


def encode(
    spark: SparkSession,
    table: RatingsTable,
    scratch: Place,
    *,
    duplicates: str,
    holdout: float,
    seed: int,
) -> Encoded:
    """Index users and items, merge repeated pairs, and mark the ratings that are held out.

    Parameters
    ----------
    spark : SparkSession
    table : RatingsTable
    scratch : Place
        Folder for what is written down on the way.
    duplicates : {"last", "first", "mean", "sum", "error"}
        Which rating counts when a pair is there more than once. Last and first go by time; rows on
        a cluster have no order.
    holdout : float
        Share of the ratings that is held out, 0 for none: which ones depends on user, item and
        `seed` alone.
    seed : int

    Raises
    ------
    DataError
        If there are more than 2**31 - 1 users or items, a pair is repeated with ``"error"``, or is
        repeated with different ratings and nothing says which is the last.
    """
    from pyspark.sql import functions as sql

    frame = table.frame
    users, n_users = number(
        spark, frame.select(sql.col("user").alias("id")), scratch.child("user-ids")
    )
    items, n_items = number(
        spark, frame.select(sql.col("item").alias("id")), scratch.child("item-ids")
    )
    coded = frame
    for ids, role in ((users, "user"), (items, "item")):
        found = ids.select(sql.col("id").alias(role), sql.col("index").alias(f"{role}_index"))
        coded = coded.join(found, role).drop(role)
    merged = coded.groupBy("user_index", "item_index").agg(*_merging(table, duplicates))
    draw = sql.pmod(sql.xxhash64("user_index", "item_index", sql.lit(seed)), _HOLDOUT_STEPS)
    marked = merged.select(
        sql.col("user_index").alias("user"),
        sql.col("item_index").alias("item"),
        sql.col("value").cast("float").alias("value"),
        (draw < round(holdout * _HOLDOUT_STEPS)).alias("held"),
        "rows",
        "differ",
    )
    pairs = written(marked, scratch.child("pairs"))
    _check_duplicates(pairs, table, duplicates)
    return Encoded(users, items, n_users, n_items, pairs.select("user", "item", "value", "held"))


def number(spark: SparkSession, ids: DataFrame, place: Place) -> tuple[DataFrame, int]:
    """Index the distinct ids of a frame 0, 1, ... in sorted order.

    They are sorted across partitions and written down with their row within the partition; only
    the lengths of the partitions come to the driver.

    Returns
    -------
    frame : DataFrame
        Columns id and index.
    count : int
        Number of ids.

    Raises
    ------
    DataError
        If there are more than 2**31 - 1.
    """
    from pyspark.sql import functions as sql

    ordered = ids.distinct().sort("id")
    row = sql.monotonically_increasing_id()
    placed = ordered.select(
        "id",
        sql.shiftright(row, 33).cast("int").alias("part"),
        row.bitwiseAND(sql.lit(_ROW_BITS)).alias("row"),
    )
    rows = written(placed, place)
    counts = sorted((row["part"], row["count"]) for row in rows.groupBy("part").count().collect())
    starts = list(accumulate((count for _, count in counts), initial=0))
    if starts[-1] > MOST_IDS:
        raise DataError(
            f"There may be up to {MOST_IDS:,} users and as many items; got {starts[-1]:,} of one."
        )
    offsets = spark.createDataFrame(
        [(part, start) for (part, _), start in zip(counts, starts, strict=False)],
        "part int, start bigint",
    )
    index = (sql.col("start") + sql.col("row")).cast("int").alias("index")
    return rows.join(sql.broadcast(offsets), "part").select("id", index), starts[-1]


def pairs_of(rows: DataFrame) -> DataFrame:
    """Return rows of lists as a long table with the columns index, other and value."""
    from pyspark.sql import functions as sql

    each = sql.explode(sql.arrays_zip("others", "values")).alias("each")
    long = rows.select("index", each)
    return long.select("index", sql.col("each.others").alias("other"), "each.values").toDF(
        "index", "other", "value"
    )


def group_rows(pairs: DataFrame, by: str, other: str, parts: int, place: Place) -> DataFrame:
    """Write one row per user (or item): index, others (ascending) and values; return the table."""
    from pyspark.sql import functions as sql

    entry = sql.struct(sql.col(other).alias("other"), sql.col("value"))
    sorted_entries = sql.sort_array(sql.collect_list(entry)).alias("entries")
    grouped = pairs.repartition(parts, by).groupBy(by).agg(sorted_entries)
    rows = grouped.select(
        sql.col(by).alias("index"),
        sql.col("entries.other").alias("others"),
        sql.col("entries.value").alias("values"),
    )
    return written(rows, place)


def _merging(table: RatingsTable, duplicates: str) -> list[Column]:
    """Return what to compute for each pair: value, rows, and whether its ratings differ."""
    from pyspark.sql import functions as sql

    value = sql.col("value")
    merged = {
        "mean": sql.avg(value.cast("double")),
        "sum": sql.sum(value.cast("double")),
        "error": sql.max(value),
        "last": sql.max(value),
        "first": sql.max(value),
    }
    if table.has_times and duplicates in ("last", "first"):
        by_time = sql.struct("time", "value")
        chosen = sql.max(by_time) if duplicates == "last" else sql.min(by_time)
        merged[duplicates] = chosen["value"]
    return [
        merged[duplicates].alias("value"),
        sql.count(sql.lit(1)).alias("rows"),
        (sql.max(value) > sql.min(value)).alias("differ"),
    ]


def _check_duplicates(pairs: DataFrame, table: RatingsTable, duplicates: str) -> None:
    from pyspark.sql import functions as sql

    if duplicates == "error":
        repeated = pairs.where(sql.col("rows") > 1).count()
        if repeated:
            raise DataError(
                f"{repeated:,} pairs of user and item are there more than once; "
                "choose what counts: last, first, mean or sum."
            )
    elif duplicates in ("last", "first") and not table.has_times:
        unclear = pairs.where("differ").count()
        if unclear:
            raise DataError(
                f"{unclear:,} pairs of user and item have several ratings, and rows on a cluster "
                f"have no order that says which is the {duplicates}; name a column of times, or "
                "choose mean or sum."
            )

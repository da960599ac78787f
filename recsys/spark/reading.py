"""Ratings on a cluster: columns, types, ids to indices, repeated pairs."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from recsys.errors import DataError
from recsys.readers.layout import Request, choose_columns
from recsys.spark.files import Place, written

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = [
    "Encoded",
    "RatingsTable",
    "checked_ratings",
    "encode",
    "number",
    "pairs_of",
    "read_ratings",
]

_SEPARATORS = {"csv": ",", "tsv": "\t", "txt": ","}
_COMPRESSED = ("gz", "bz2", "zst", "lz4", "snappy", "deflate")
_WHOLE = ("tinyint", "smallint", "int", "bigint")
_FRACTIONAL = ("float", "double")
_NUMBERS = (*_WHOLE, *_FRACTIONAL, "decimal")
_NESTED = ("array", "map", "struct", "variant")

MOST_IDS = 2**31 - 1  # MLlib's ids and our indices are signed 32-bit integers

_ROW_BITS = (1 << 33) - 1  # monotonically_increasing_id is partition * 2**33 + row
_STEPS = 1 << 20  # of the share that is held out
_RATINGS_PER_BLOCK = 1_000_000
_ROW = ("index", "others", "values")


@dataclass(frozen=True, slots=True)
class RatingsTable:
    """Ratings on the cluster.

    `frame` has the columns user and item (bigint or string), value (float; ones if `implicit`) and,
    if it `has_times`, time (double).
    """

    frame: DataFrame
    implicit: bool
    has_times: bool


def read_ratings(spark: SparkSession, path: str, request: Request) -> RatingsTable:
    """Read ratings and check them in one pass.

    They are CSV or TSV with a header, plain or compressed, by the suffix of the file or of those in
    the folder; else Parquet.

    Raises
    ------
    DataError
        If there is nothing at `path`, or the table is not one that `checked_ratings` takes.
    """
    place = Place(spark, path)
    if not place.exists():
        raise DataError(f"There is no file or folder {path} that Spark can see.")
    if place.child("ratings.csv").exists():  # a MovieLens folder
        place = place.child("ratings.csv")
    kind = _suffix(place.name)
    if place.is_folder() and kind not in _SEPARATORS:
        files = [each for each in place.names() if not each.startswith((".", "_"))]
        kind = _suffix(files[0]) if files else kind
    if kind not in _SEPARATORS:
        return checked_ratings(spark.read.parquet(place.uri), request, path)
    frame = spark.read.csv(
        place.uri,
        header=True,
        inferSchema=True,
        mode="FAILFAST",
        sep=request.sep or _SEPARATORS[kind],
        encoding=request.encoding or "UTF-8",
    )
    return checked_ratings(frame, request, path)


def _suffix(name: str) -> str:
    parts = name.lower().split(".")[1:]
    return next((part for part in reversed(parts) if part not in _COMPRESSED), "")


def checked_ratings(frame: DataFrame, request: Request, path: str) -> RatingsTable:
    """Choose and check the columns of a table of ratings, whose `path` is for messages.

    Raises
    ------
    DataError
        If there is no column for users or items, a column has an unsuitable type, an id is missing,
        a rating is missing or not finite, or there are no rows.
    """
    from pyspark.sql import functions as sql

    roles = dict(choose_columns(frame.columns, request, path).items())
    names = {role: frame.columns[place] for role, place in roles.items()}
    types = dict(frame.dtypes)
    columns = [_ids(names[role], types[names[role]], role) for role in ("user", "item")]
    value = _given(names["rating"]).try_cast("float") if "rating" in names else sql.lit(1.0)
    columns.append(value.cast("float").alias("value"))
    if "timestamp" in names:
        time, kind = _given(names["timestamp"]), types[names["timestamp"]]
        if kind.partition("(")[0] not in _NUMBERS:
            time = time.try_cast("timestamp")
        columns.append(time.cast("double").alias("time"))
    table, value = frame.select(*columns), sql.col("value")
    wrong = {
        "user": sql.col("user").isNull(),
        "item": sql.col("item").isNull(),
        "rating": value.isNull() | sql.isnan(value) | (sql.abs(value) == float("inf")),
    }
    counts = (sql.count_if(each).alias(role) for role, each in wrong.items())
    found = table.agg(sql.count(sql.lit(1)).alias("rows"), *counts).first()
    if not found["rows"]:
        raise DataError("There are no ratings: the data have no rows.")
    for role in wrong:
        if found[role]:
            needed = "a finite number" if role == "rating" else "an integer or text as id"
            raise DataError(
                f"The column {names[role]!r} must have {needed} in each row; "
                f"{found[role]:,} of {found['rows']:,} rows do not."
            )
    return RatingsTable(table, "rating" not in names, "timestamp" in names)


def _ids(name: str, kind: str, role: str) -> Column:
    """Return a column of ids as bigint or string, null for fractions."""
    from pyspark.sql import functions as sql

    given = _given(name)
    if kind.startswith(_NESTED):
        raise DataError(
            f"The {role} column {name!r} is of type {kind}; ids are numbers, text or dates."
        )
    if kind in _FRACTIONAL:
        given = sql.when(given == sql.floor(given), given)
    if kind in (*_WHOLE, *_FRACTIONAL):
        return given.cast("bigint").alias(role)
    return (sql.hex(given) if kind == "binary" else given.cast("string")).alias(role)


def _given(name: str) -> Column:
    """Return a column by its name, in which a dot would otherwise mean a field of a struct."""
    from pyspark.sql import functions as sql

    escaped = name.replace("`", "``")
    return sql.col(f"`{escaped}`")


@dataclass(frozen=True, slots=True)
class Encoded:
    """Ratings by index.

    `users` and `items` have the columns id and index: 0, 1, ... in the sorted order of the ids;
    `by_user` and `by_item` index, others (ascending) and values, without held-out ratings; `held`
    user, item and value. The numbers are those of the ratings that are not held out.
    """

    users: DataFrame
    items: DataFrame
    n_users: int
    n_items: int
    by_user: DataFrame
    by_item: DataFrame
    held: DataFrame | None
    n_ratings: int
    mean: float
    std: float
    limits: tuple[float, float]
    blocks: int


def encode(
    table: RatingsTable, scratch: Place, *, duplicates: str, test_fraction: float, random_state: int
) -> Encoded:
    """Index users and items, merge repeated pairs, and mark the ratings that are held out.

    Intermediate tables are in the folder `scratch`. The last and first of `duplicates` are by
    timestamp, since rows on a cluster have no order. Which ratings are held out depends on user,
    item and `random_state` alone.

    Raises
    ------
    DataError
        If there are more than 2**31 - 1 users or items, or a repeated pair has several ratings and
        neither timestamps nor `duplicates` decide between them.
    """
    from pyspark.sql import functions as sql

    coded, sides = table.frame, []
    for role in ("user", "item"):
        ids, count = number(table.frame.select(sql.col(role).alias("id")), scratch.child(role))
        found = ids.select(sql.col("id").alias(role), sql.col("index").alias(f"{role}_index"))
        coded = coded.join(found, role).drop(role)
        sides.append((ids, count))
    draw = sql.pmod(sql.xxhash64("user_index", "item_index", sql.lit(random_state)), _STEPS)
    merged = _merged(coded, duplicates, has_times=table.has_times)
    marked = merged.withColumn("held", draw < round(test_fraction * _STEPS))
    marked = marked.withColumnsRenamed({"user_index": "user", "item_index": "item"})
    pairs = written(marked, scratch.child("pairs"))
    if pairs.where("undecided").take(1):
        raise DataError(
            f"{pairs.where('undecided').count():,} pairs of user and item are repeated, and rows "
            "on a cluster have no order that decides which one counts; choose mean or sum, or last "
            "or first if there is a column of timestamps."
        )
    value = sql.col("value").cast("double")
    moments = (sql.avg(value), sql.stddev_pop(value), sql.min(value), sql.max(value))
    rows = pairs.groupBy("held").agg(sql.count(sql.lit(1)), *moments).collect()
    found = {bool(row[0]): [float(each) for each in row[1:]] for row in rows}
    if False not in found:
        raise DataError("No rating is left to fit to: all are held out; lower test_fraction.")
    count, mean, std, low, high = found[False]
    cores = pairs.sparkSession.sparkContext.defaultParallelism
    blocks = max(cores, -(-int(count) // _RATINGS_PER_BLOCK))
    kept, held = pairs.where(~sql.col("held")), pairs.where("held").select("user", "item", "value")
    (users, n_users), (items, n_items) = sides
    return Encoded(
        users=users,
        items=items,
        n_users=n_users,
        n_items=n_items,
        by_user=_grouped(kept, "user", "item", blocks, scratch.child("by-user")),
        by_item=_grouped(kept, "item", "user", blocks, scratch.child("by-item")),
        held=held if True in found else None,
        n_ratings=int(count),
        mean=mean,
        std=std or 1.0,
        limits=(low, high),
        blocks=blocks,
    )


def _merged(coded: DataFrame, duplicates: str, *, has_times: bool) -> DataFrame:
    """Return one row per pair with its value, and whether it is undecided which one counts."""
    from pyspark.sql import functions as sql

    value, undecided = sql.col("value"), sql.lit(False)
    merged: Any = sql.max(value)
    if duplicates in ("mean", "sum"):
        merged = (sql.avg if duplicates == "mean" else sql.sum)(value.cast("double"))
    elif duplicates == "error":
        undecided = sql.count(value) > 1
    elif has_times:
        chosen = sql.max if duplicates == "last" else sql.min
        merged = chosen(sql.struct("time", "value"))["value"]
    else:
        undecided = sql.max(value) > sql.min(value)
    pairs = coded.groupBy("user_index", "item_index")
    return pairs.agg(merged.cast("float").alias("value"), undecided.alias("undecided"))


def number(ids: DataFrame, place: Place) -> tuple[DataFrame, int]:
    """Index the distinct ids of a frame 0, 1, ... in sorted order; return them and their number.

    They are sorted across partitions and written to `place` with their row within the partition;
    only the lengths of the partitions come to the driver.

    Raises
    ------
    DataError
        If there are more than 2**31 - 1.
    """
    from pyspark.sql import functions as sql

    row = sql.monotonically_increasing_id()
    placed = (
        ids.distinct()
        .sort("id")
        .select(
            "id",
            sql.shiftright(row, 33).cast("int").alias("part"),
            row.bitwiseAND(sql.lit(_ROW_BITS)).alias("row"),
        )
    )
    rows = written(placed, place)
    counts = sorted((row["part"], row["count"]) for row in rows.groupBy("part").count().collect())
    *starts, total = accumulate((count for _, count in counts), initial=0)
    if total > MOST_IDS:
        raise DataError(
            f"There must be at most {MOST_IDS:,} users and as many items; got {total:,}."
        )
    offsets = ids.sparkSession.createDataFrame(
        [(part, start) for (part, _), start in zip(counts, starts, strict=True)],
        "part int, start bigint",
    )
    index = (sql.col("start") + sql.col("row")).cast("int").alias("index")
    return rows.join(sql.broadcast(offsets), "part").select("id", index), total


def _grouped(pairs: DataFrame, by: str, other: str, parts: int, place: Place) -> DataFrame:
    """Write one row per user (or item): index, others (ascending) and values; return the table."""
    from pyspark.sql import functions as sql

    entry = sql.struct(sql.col(other).alias("other"), sql.col("value"))
    entries = sql.sort_array(sql.collect_list(entry)).alias("entries")
    rows = pairs.repartition(parts, by).groupBy(by).agg(entries)
    return written(rows.select(by, "entries.other", "entries.value").toDF(*_ROW), place)


def pairs_of(rows: DataFrame) -> DataFrame:
    """Return the rows of lists as a long table with the columns index, other and value."""
    from pyspark.sql import functions as sql

    each = sql.explode(sql.arrays_zip("others", "values")).alias("each")
    return rows.select("index", each).select("index", "each.*").toDF("index", "other", "value")

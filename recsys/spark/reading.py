"""Ratings on a cluster."""

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
    "group_rows",
    "id_column",
    "number",
    "pairs_of",
    "read_frame",
    "read_ratings",
]

_SEPARATORS = {"csv": ",", "tsv": "\t", "txt": ","}
_COMPRESSED = ("gz", "bz2", "zst", "lz4", "snappy", "deflate")
_WHOLE = ("tinyint", "smallint", "int", "bigint")
_FRACTIONAL = ("float", "double")
_NESTED = ("array", "map", "struct", "variant")


@dataclass(frozen=True, slots=True)
class RatingsTable:
    """Ratings on the cluster.

    Attributes
    ----------
    frame : DataFrame
        Columns user and item (bigint or string), value (float) and, if there are timestamps, time
        (double).
    implicit : bool
        Whether there is no column of ratings; the values are ones.
    has_times : bool
    decision : str
        How the columns were understood, in one line.
    """

    frame: DataFrame
    implicit: bool
    has_times: bool
    decision: str


def read_ratings(spark: SparkSession, path: str, request: Request) -> RatingsTable:
    """Read ratings and check them in one pass.

    Parameters
    ----------
    spark : SparkSession
    path : str
        Parquet, or CSV or TSV with a header, plain or compressed: a file or a folder of files.
    request : Request
        Names of columns where they are not the usual ones.

    Raises
    ------
    DataError
        If there is nothing at `path`, no column for users or items, a column has an unsuitable
        type, or an id is missing, or a rating is missing or not finite.
    """
    return checked_ratings(read_frame(spark, path, request), request, path)


def checked_ratings(frame: DataFrame, request: Request, path: str) -> RatingsTable:
    """Choose and check the columns of a table of ratings, as `read_ratings` does.

    Raises
    ------
    DataError
        If a column is missing or has an unsuitable type, or a value is missing or not finite.
    """
    roles = dict(choose_columns(frame.columns, request, path).items())
    names = {role: frame.columns[place] for role, place in roles.items()}
    types = dict(frame.dtypes)
    columns = [id_column(frame, names[role], types[names[role]], role) for role in ("user", "item")]
    columns.append(_value_column(frame, names.get("rating"), types))
    if "timestamp" in names:
        columns.append(_time_column(names["timestamp"], types[names["timestamp"]]))
    table = RatingsTable(
        frame.select(*columns), "rating" not in names, "timestamp" in names, _decision(path, names)
    )
    _check(table, names)
    return table


def read_frame(spark: SparkSession, path: str, request: Request) -> DataFrame:
    """Read a table: CSV or TSV by the suffix of the file or of those in the folder, else Parquet.

    Raises
    ------
    DataError
        If there is nothing at `path`.
    """
    place = Place(spark, path)
    if not place.exists():
        raise DataError(f"There is no file or folder {path} that Spark can see.")
    if place.child("ratings.csv").exists():  # a MovieLens folder
        place = place.child("ratings.csv")
    kind = _kind(place)
    if kind == "parquet":
        return spark.read.parquet(place.uri)
    return spark.read.csv(
        place.uri,
        header=True,
        inferSchema=True,
        mode="FAILFAST",
        sep=request.sep or _SEPARATORS[kind],
        encoding=request.encoding or "UTF-8",
    )


def id_column(frame: DataFrame, name: str, kind: str, role: str) -> Column:
    """Return a column of ids as bigint or string; fractional types count if they hold integers.

    Raises
    ------
    DataError
        If the column is nested, or holds fractions.
    """
    from pyspark.sql import functions as sql

    given = sql.col(_quoted(name))
    if kind.startswith(_NESTED):
        raise DataError(
            f"The {role} column {name!r} is of type {kind}; ids are numbers, text or dates."
        )
    if kind in _WHOLE:
        return given.cast("bigint").alias(role)
    if kind in _FRACTIONAL:
        fractions = frame.where(given != sql.floor(given)).select(given).take(1)
        if fractions:
            raise DataError(
                f"The {role} column {name!r} holds fractions such as {fractions[0][0]}; "
                "ids are integers or text."
            )
        return given.cast("bigint").alias(role)
    if kind == "binary":
        return sql.hex(given).alias(role)
    return given.cast("string").alias(role)


def _value_column(frame: DataFrame, name: str | None, types: dict[str, str]) -> Column:
    from pyspark.sql import functions as sql

    if name is None:
        return sql.lit(1.0).cast("float").alias("value")
    kind, given = types[name], sql.col(_quoted(name))
    if kind in (*_WHOLE, *_FRACTIONAL) or kind.startswith("decimal"):
        return given.cast("float").alias("value")
    example = ""
    if kind == "string":
        bad = frame.where(given.isNotNull() & given.try_cast("double").isNull()).select(given)
        rows = bad.take(1)
        if not rows:
            return given.cast("float").alias("value")
        example = f" ({rows[0][0]!r} is not one)"
    raise DataError(f"The rating column {name!r} must hold numbers; it is of type {kind}{example}.")


def _time_column(name: str, kind: str) -> Column:
    from pyspark.sql import functions as sql

    given = sql.col(_quoted(name))
    if kind in (*_WHOLE, *_FRACTIONAL) or kind.startswith("decimal"):
        return given.cast("double").alias("time")
    if kind == "date" or kind.startswith("timestamp"):
        return given.cast("timestamp").cast("double").alias("time")
    if kind == "string":
        return given.try_cast("timestamp").cast("double").alias("time")
    raise DataError(f"The time column {name!r} must hold numbers or times; it is of type {kind}.")


def _check(table: RatingsTable, names: dict[str, str]) -> None:
    """Raise an error for missing ids and ratings that are missing or not finite."""
    from pyspark.sql import functions as sql

    frame = table.frame
    bad: dict[str, Any] = {role: sql.col(role).isNull() for role in ("user", "item")}
    value = sql.col("value")
    bad["rating"] = value.isNull() | sql.isnan(value) | (sql.abs(value) == float("inf"))
    counts = frame.agg(
        sql.count(sql.lit(1)).alias("rows"),
        *(sql.count_if(wrong).alias(role) for role, wrong in bad.items()),
    ).first()
    if not counts["rows"]:
        raise DataError("There are no ratings: the data have no rows.")
    for role in bad:
        if counts[role]:
            what = "a finite number" if role == "rating" else "an id"
            raise DataError(
                f"The column {names[role]!r} must have {what} in each row; "
                f"{counts[role]:,} of {counts['rows']:,} rows do not."
            )


def _kind(place: Place) -> str:
    """Return csv, tsv or txt by a suffix, else parquet."""
    name = place.name
    if place.is_folder() and _suffix(name) not in _SEPARATORS:
        files = [each for each in place.names() if not each.startswith((".", "_"))]
        name = files[0] if files else name
    suffix = _suffix(name)
    return suffix if suffix in _SEPARATORS else "parquet"


def _suffix(name: str) -> str:
    parts = name.lower().split(".")[1:]
    return next((part for part in reversed(parts) if part not in _COMPRESSED), "")


def _quoted(name: str) -> str:
    """Quote a column name, in which a dot would otherwise mean a field of a struct."""
    escaped = name.replace("`", "``")
    return f"`{escaped}`"


def _decision(path: str, names: dict[str, str]) -> str:
    listed = ", ".join(f"{role}={name}" for role, name in names.items())
    return f"{path}: {listed}" + ("" if "rating" in names else "; no ratings: implicit feedback")


MOST_IDS = 2**31 - 1  # MLlib's ids and our indices are signed 32-bit integers

_ROW_BITS = (1 << 33) - 1  # monotonically_increasing_id is partition * 2**33 + row
_STEPS = 1 << 20  # of the share that is held out


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
    test_fraction: float,
    random_state: int,
) -> Encoded:
    """Index users and items, merge repeated pairs, and mark the ratings that are held out.

    Parameters
    ----------
    spark : SparkSession
    table : RatingsTable
    scratch : Place
        Folder for intermediate tables.
    duplicates : {"last", "first", "mean", "sum", "error"}
        Which rating of a repeated pair counts. Last and first are by timestamp; rows on a cluster
        have no order.
    test_fraction : float
        Share of the ratings to hold out, 0 for none; which ones depends on user, item and
        `random_state` alone.
    random_state : int

    Raises
    ------
    DataError
        If there are more than 2**31 - 1 users or items, or a repeated pair has several ratings and
        neither timestamps nor `duplicates` decide between them.
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
    draw = sql.pmod(sql.xxhash64("user_index", "item_index", sql.lit(random_state)), _STEPS)
    marked = merged.select(
        sql.col("user_index").alias("user"),
        sql.col("item_index").alias("item"),
        sql.col("value").cast("float").alias("value"),
        (draw < round(test_fraction * _STEPS)).alias("held"),
        "rows",
        "differ",
    )
    pairs = written(marked, scratch.child("pairs"))
    _check_duplicates(pairs, table, duplicates)
    return Encoded(users, items, n_users, n_items, pairs.select("user", "item", "value", "held"))


def number(spark: SparkSession, ids: DataFrame, place: Place) -> tuple[DataFrame, int]:
    """Index the distinct ids of a frame 0, 1, ... in sorted order.

    They are sorted across partitions and written with their row within the partition; only the
    lengths of the partitions come to the driver.

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
            f"There must be at most {MOST_IDS:,} users and as many items; got {starts[-1]:,}."
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
    """Return the columns value, rows, and whether the ratings of a pair differ."""
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
                f"{repeated:,} pairs of user and item are repeated; choose the rating that counts: "
                "last, first, mean or sum."
            )
    elif duplicates in ("last", "first") and not table.has_times:
        unclear = pairs.where("differ").count()
        if unclear:
            raise DataError(
                f"{unclear:,} pairs of user and item have several ratings, and rows on a cluster "
                f"have no order, so none is the {duplicates}; name a column of timestamps, or "
                "choose mean or sum."
            )

"""Ratings on a cluster: columns, types, indices of ids, and duplicates."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from recsys.data.columns import Request, choose_columns
from recsys.data.feedback import Feedback, judge
from recsys.data.ids import MISSING_IDS, ROUNDED_ID, id_problem
from recsys.data.rows import check_as_of
from recsys.data.split_parts import reading_of_parts
from recsys.errors import DataError
from recsys.spark.files import SparkPath, written
from recsys.spark.times import with_seconds

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_TEXT = re.compile(
    r"\.(csv|tsv|txt)(\.(gz|bz2|zst|lz4|snappy|deflate))?$", re.IGNORECASE
)
_NUMBERS = ("tinyint", "smallint", "int", "bigint", "float", "double", "decimal")
_NO_IDS = ("array", "map", "struct", "variant", "binary")
_EXACT = {"float": 2**24, "double": 2**53}  # numbers up to which floats are exact
_JUDGED = 200_000  # rows from which counts are told from grades
_STEPS = 1 << 20  # resolution of the held-out share

MOST_IDS = 2**31 - 1  # maximum number of ids: indices are signed 32-bit integers


class RatingsTable(NamedTuple):
    """Columns user, item (bigint or string), value and optionally time.

    The value is a float: a rating, a weight if `weighted`, else 1. `remarks` tell of rows that are
    left out because of their times, and the like.
    """

    frame: DataFrame
    implicit: bool
    remarks: tuple[str, ...] = ()
    weighted: bool = False


def read_ratings(
    spark: SparkSession, path: str | DataFrame, request: Request
) -> RatingsTable:
    """Read ratings from files or a Spark table, and check them in one pass.

    The suffix of the file, or of one in the folder, determines the format: CSV or TSV with a
    header, plain or compressed, else Parquet.

    Raises
    ------
    DataError
        If there is nothing at `path`, or `checked_ratings` rejects the table.
    """
    if not isinstance(path, str):
        return checked_ratings(path, request, "the table")
    decided = {"weight", "rating"} & request.columns.keys()
    if not decided and not request.implicit:
        request = request.changed(weight=reading_of_parts([path]).get("weight"))
    place = SparkPath(spark, path)
    if not place.exists():
        raise DataError(f"There is no file or folder {path} that Spark can see.")
    if place.child("ratings.csv").exists():  # a MovieLens folder
        place = place.child("ratings.csv")
    kind = _kind(place)
    if kind is None:
        return checked_ratings(spark.read.parquet(place.uri), request, path)
    reader = spark.read.options(
        sep=request.options.get("sep") or ("\t" if kind == "tsv" else ","),
        encoding=request.options.get("encoding") or "UTF-8",
        header=True,
        mode="FAILFAST",
    )
    frame = reader.csv(place.uri, inferSchema=True)
    # Spark takes texts such as 1.23457E+11 for floats, so the texts are read, too.
    texts = reader.csv(place.uri, inferSchema=False)
    texts = texts.toDF(*map(str, range(len(texts.columns))))
    positions = choose_columns(frame.columns, request, path)
    for role in ("user", "item"):
        name, dtype = frame.dtypes[positions[role]]
        if dtype in _EXACT:
            column = texts.select(str(positions[role]))
            _check_rounded(column.toDF(role), role, name)
    return checked_ratings(frame, request, path)


def _kind(place: SparkPath) -> str | None:
    """Return the suffix of a text file, or of one in the folder; None for Parquet."""
    names = [place.name]
    if place.is_folder():
        names += place.sizes()
    for name in names:
        match = _TEXT.search(name)
        if match is not None:
            return match[1].lower()
    return None


def _check_rounded(table: DataFrame, role: str, name: str) -> None:
    """Check that a spreadsheet has not rounded ids.

    Raises
    ------
    DataError
    """
    from pyspark.sql import functions as sql

    text = sql.trim(sql.col(role).cast("string"))
    rounded = sql.when(text.rlike(ROUNDED_ID), text)
    row = table.agg(sql.max(rounded)).first()
    if row is not None and row[0] is not None:
        raise DataError(f"The column {name!r}: {id_problem(row[0], role)}")


def checked_ratings(frame: DataFrame, request: Request, path: str) -> RatingsTable:
    """Select and check the columns of a table of ratings; `path` is for messages.

    Raises
    ------
    DataError
        If a column or an id is missing or invalid, a rating is not finite, or there are no rows.
    """
    from pyspark.sql import functions as sql

    positions = choose_columns(frame.columns, request, path)
    check_as_of(request.rules, positions)
    if request.rules.scale is not None and "weight" in request.columns:
        raise DataError("scale applies to ratings, and these data have no ratings.")
    names = {role: frame.columns[position] for role, position in positions.items()}
    kinds = {role: frame.dtypes[position][1] for role, position in positions.items()}
    # Rename columns, since a dot in a name would mean a field of a struct.
    frame = frame.toDF(*map(str, range(len(frame.columns))))
    columns = {role: sql.col(str(position)) for role, position in positions.items()}
    value = sql.lit(1.0).cast("float")
    if "rating" in columns:
        value = columns["rating"].try_cast("float")
    chosen = [
        _ids(columns["user"], kinds["user"], "user", names["user"]),
        _ids(columns["item"], kinds["item"], "item", names["item"]),
        value.alias("value"),
    ]
    if "timestamp" in columns:
        chosen.append(columns["timestamp"].alias("time"))
    table = frame.select(*chosen)
    for role in ("user", "item"):
        if kinds[role] == "string":
            _check_rounded(table, role, names[role])
    n_rows = _check_rows(table, names, request.rules.scale)
    remarks: tuple[str, ...] = ()
    if "timestamp" in columns:
        is_guessed = "timestamp" not in request.columns
        table, remarks = with_seconds(
            table, n_rows, names["timestamp"], request.rules, is_guessed=is_guessed
        )
    if "rating" not in columns:
        return RatingsTable(table, True, remarks)
    if "weight" in request.columns:
        return RatingsTable(table, True, remarks, weighted=True)
    feedback = _feedback(table, n_rows, names["rating"])
    if request.rules.scale is None and feedback.kind == "counts":
        ones = sql.lit(1.0).cast("float")
        table = table.where(sql.col("value") > 0).withColumn("value", ones)
        return RatingsTable(
            table, True, (*remarks, f"{feedback.reason} ({names['rating']})")
        )
    return RatingsTable(table, False, remarks)


def _ids(column: Column, kind: str, role: str, name: str) -> Column:
    """Return a column of ids as bigint or string, null for fractions."""
    from pyspark.sql import functions as sql

    if kind.startswith(_NO_IDS):
        raise DataError(
            f"The {role} column {name!r} is of type {kind}; ids are numbers, text or dates."
        )
    kind = kind.partition("(")[0]
    if kind not in _NUMBERS:
        return column.cast("string").alias(role)
    integers = column.try_cast("bigint")
    is_whole = integers == column
    if kind in _EXACT:  # larger floats may be several ids
        is_whole &= sql.abs(column) <= _EXACT[kind]
    return sql.when(is_whole, integers).alias(role)


def _check_rows(
    table: DataFrame, names: dict[str, str], scale: tuple[float, float] | None
) -> int:
    """Check that all rows have ids and finite ratings; return their number.

    Raises
    ------
    DataError
    """
    from pyspark.sql import functions as sql

    value = sql.col("value")
    is_off = value.isNull() | sql.isnan(value) | (sql.abs(value) == float("inf"))
    rating = "a finite number"
    if scale is not None and "rating" in names:
        is_off |= ~value.between(*scale)
        rating = f"a grade of the scale {scale}"
    wrong = {"rating": (is_off, rating)}
    for role in ("item", "user"):
        texts = sql.col(role).cast("string")
        is_missing = texts.isNull() | texts.isin(*MISSING_IDS)
        wrong = {role: (is_missing, "an integer or text as id"), **wrong}
    counts = [sql.count_if(is_wrong) for is_wrong, _ in wrong.values()]
    n_rows, *n_wrong = table.agg(sql.count("*"), *counts).first() or [0]
    if not n_rows:
        raise DataError("There are no ratings: the data have no rows.")
    for (role, (_, needed)), count in zip(wrong.items(), n_wrong, strict=True):
        if count:
            raise DataError(
                f"The column {names[role]!r} must have {needed} in each row; "
                f"{count:,} of {n_rows:,} rows do not."
            )
    return int(n_rows)


def _feedback(table: DataFrame, n_rows: int, name: str) -> Feedback:
    """Decide whether the column value has grades or counts, by a sample of the rows."""
    values = table.select("value")
    if n_rows > _JUDGED:
        values = values.sample(fraction=_JUDGED / n_rows, seed=0)
    levels = np.array(
        values.groupBy("value").count().sort("value").collect(), np.float64
    )
    levels = levels.reshape(-1, 2)
    return judge(levels[:, 0], levels[:, 1].astype(np.int64), name)


class Encoded(NamedTuple):
    """Ratings by index: 0, 1, ... in the sorted order of ids.

    `users` and `items` have the columns id and index, `pairs` and `held` (not to be fitted to) the
    columns user, item and value.
    """

    users: DataFrame
    items: DataFrame
    pairs: DataFrame
    held: DataFrame
    n_users: int
    n_items: int


def encode(
    table: DataFrame,
    scratch: SparkPath,
    *,
    duplicates: str,
    test_fraction: float,
    random_state: int,
    weighted: bool = False,
) -> Encoded:
    """Index users and items, merge duplicates, and hold out ratings.

    The choice of held-out ratings depends only on user, item and `random_state`. Of weights, pairs
    at zero or below, such as returned purchases, are left out.

    Raises
    ------
    DataError
        If there are too many ids, or the choice between duplicates is undecided.
    """
    from pyspark.sql import functions as sql

    users = numbered(table.select(sql.col("user").alias("id")), scratch.child("user"))
    items = numbered(table.select(sql.col("item").alias("id")), scratch.child("item"))
    for role, ids in (("user", users), ("item", items)):
        table = table.join(ids.toDF(role, "index"), role).drop(role)
        table = table.withColumnRenamed("index", role)
    draw = sql.pmod(sql.xxhash64("user", "item", sql.lit(random_state)), _STEPS)
    is_held = (draw < round(test_fraction * _STEPS)).alias("held")
    pairs = written(
        merged(table, duplicates).select("*", is_held), scratch.child("pairs")
    )
    n_undecided = pairs.where("undecided").count()
    if n_undecided:
        raise DataError(
            f"{n_undecided:,} pairs of user and item are repeated, and rows on a cluster have no "
            "order that decides which one to use; choose mean or sum, or last or first if there "
            "is a column of timestamps."
        )
    values = pairs.select("user", "item", "value", "held")
    if weighted:
        values = values.where("value > 0")
        if values.isEmpty():
            raise DataError("No pair has a weight above 0, so nothing can be fitted.")
    return Encoded(
        users,
        items,
        pairs=values.where("not held").drop("held"),
        held=values.where("held").drop("held"),
        n_users=users.count(),
        n_items=items.count(),
    )


def merged(coded: DataFrame, duplicates: str) -> DataFrame:
    """Return one row per pair with its value, and whether its choice is undecided."""
    from pyspark.sql import functions as sql

    value = sql.col("value")
    undecided = sql.lit(False)
    choice: Any = sql.max(value)
    if (
        "time" in coded.columns
    ):  # an event that is repeated, as in overlapping files, counts once
        coded = coded.dropDuplicates(["user", "item", "time", "value"])
    if duplicates == "mean":
        choice = sql.avg(value.cast("double"))
    elif duplicates == "sum":
        choice = sql.sum(value.cast("double"))
    elif duplicates == "error":
        undecided = sql.count(value) > 1
    elif "time" not in coded.columns:
        undecided = sql.max(value) > sql.min(value)
    elif duplicates == "last":
        choice = sql.max(sql.struct("time", value))["value"]
    else:
        choice = sql.min(sql.struct("time", value))["value"]
    choice = choice.cast("float").alias("value")
    return coded.groupBy("user", "item").agg(choice, undecided.alias("undecided"))


def numbered(ids: DataFrame, place: SparkPath) -> DataFrame:
    """Index the distinct ids of a frame 0, 1, ... in sorted order.

    Raises
    ------
    DataError
        If there are too many.
    """
    kind = dict(ids.dtypes)["id"]
    rows = ids.distinct().sort("id").rdd.zipWithIndex()
    pairs = rows.map(lambda row: (row[0]["id"], row[1]))
    frame = ids.sparkSession.createDataFrame(pairs, f"id {kind}, index bigint")
    table = written(frame, place)
    n = table.count()
    if n > MOST_IDS:
        raise DataError(f"There may be at most {MOST_IDS:,} users or items; got {n:,}.")
    return table.selectExpr("id", "cast(index as int) as index")

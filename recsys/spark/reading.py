"""Ratings on a cluster: columns, types, indices of ids, and duplicates."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from recsys.data.columns import Request, choose_columns
from recsys.data.feedback import Feedback, judge
from recsys.data.ids import MISSING_IDS, ROUNDED_ID, id_problem
from recsys.data.rows import check_as_of
from recsys.data.split_parts import reading_of_parts
from recsys.errors import DataError
from recsys.spark.results import Place, written
from recsys.spark.times import timed

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_TEXT = re.compile(
    r"\.(csv|tsv|txt)(\.(gz|bz2|zst|lz4|snappy|deflate))?$", re.IGNORECASE
)
_NUMBERS = ("tinyint", "smallint", "int", "bigint", "float", "double", "decimal")
_EXACT = {"float": 2**24, "double": 2**53}  # numbers up to which floats are exact

MOST_IDS = 2**31 - 1  # maximum number of ids: indices are signed 32-bit integers

_ROW_BITS = (1 << 33) - 1  # monotonically_increasing_id is partition * 2**33 + row
_JUDGED = 200_000  # rows from which counts are told from grades
_STEPS = 1 << 20  # resolution of the held-out share
_RATINGS_PER_BLOCK = 1_000_000


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
    if request.weight is None and request.rating is None and not request.implicit:
        request = replace(request, weight=reading_of_parts([path]).get("weight"))
    place = Place(spark, path)
    if not place.exists():
        raise DataError(f"There is no file or folder {path} that Spark can see.")
    if place.child("ratings.csv").exists():  # a MovieLens folder
        place = place.child("ratings.csv")
    names = [place.name, *(place.sizes() if place.is_folder() else ())]
    kind = next(
        (found[1].lower() for name in names if (found := _TEXT.search(name))), None
    )
    if kind is None:
        return checked_ratings(spark.read.parquet(place.uri), request, path)
    encoding = request.encoding or "UTF-8"
    reader = spark.read.options(
        header=True, inferSchema=True, mode="FAILFAST", encoding=encoding
    )
    separator = request.sep or ("\t" if kind == "tsv" else ",")
    frame = reader.csv(place.uri, sep=separator)
    texts = reader.options(inferSchema=False).csv(place.uri, sep=separator)
    _check_rounded_ids(frame, texts, request, path)
    return checked_ratings(frame, request, path)


def _check_rounded_ids(
    frame: DataFrame, texts: DataFrame, request: Request, path: str
) -> None:
    """Check the texts of ids that Spark takes for floats, such as 1.23457E+11.

    Raises
    ------
    DataError
        If a spreadsheet may have rounded an id.
    """
    from pyspark.sql import functions as sql

    numbered = texts.toDF(*map(str, range(len(texts.columns))))
    for role, place in choose_columns(frame.columns, request, path).items():
        name, kind = frame.dtypes[place]
        if role not in ("user", "item") or kind not in _EXACT:
            continue
        column = sql.trim(sql.col(str(place)))
        text = numbered.agg(_first_rounded(column)).first()[0]
        if text is not None:
            raise DataError(f"The column {name!r}: {id_problem(text, role)}")


def _first_rounded(texts: Column) -> Column:
    """Return one of the texts that are numbers as a spreadsheet rounds them, or null."""
    from pyspark.sql import functions as sql

    return sql.max(sql.when(texts.rlike(ROUNDED_ID), texts))


def checked_ratings(frame: DataFrame, request: Request, path: str) -> RatingsTable:
    """Select and check the columns of a table of ratings; `path` is for messages.

    Raises
    ------
    DataError
        If a column or an id is missing or invalid, a rating is not finite, or there are no rows.
    """
    from pyspark.sql import functions as sql

    roles = choose_columns(frame.columns, request, path)
    check_as_of(request.rules, roles)
    names = {role: frame.columns[place] for role, place in roles.items()}
    kinds = {role: frame.dtypes[place][1] for role, place in roles.items()}
    # Rename columns, since a dot in a name would mean a field of a struct.
    named = frame.toDF(*map(str, range(len(frame.columns))))
    given = {role: sql.col(str(place)) for role, place in roles.items()}
    chosen: dict[str, Column] = {"value": sql.lit(1.0).cast("float")}
    for role in ("user", "item"):
        kind, chosen[role] = kinds[role].partition("(")[0], given[role].cast("string")
        if kind.startswith(("array", "map", "struct", "variant", "binary")):
            found = f"The {role} column {names[role]!r} is of type {kinds[role]}"
            raise DataError(f"{found}; ids are numbers, text or dates.")
        if kind in _NUMBERS:  # null for fractions
            whole = given[role].try_cast("bigint")
            is_whole = whole == given[role]
            if kind in _EXACT:  # larger floats may be several ids
                is_whole &= sql.abs(given[role]) <= _EXACT[kind]
            chosen[role] = sql.when(is_whole, whole)
    if "rating" in roles:
        chosen["value"] = given["rating"].try_cast("float")
    if "timestamp" in roles:
        chosen["time"] = given["timestamp"]
    order = [role for role in ("user", "item", "value", "time") if role in chosen]
    table, value = (
        named.select(*(chosen[role].alias(role) for role in order)),
        sql.col("value"),
    )
    wrong = {role: sql.col(role).isNull() for role in ("user", "item")}
    rounded = []
    for role in wrong:
        if kinds[role] == "string":
            wrong[role] |= sql.col(role).isin(*MISSING_IDS)
        rounded.append(_first_rounded(sql.col(role).cast("string")))
    wrong["rating"] = (
        value.isNull() | sql.isnan(value) | (sql.abs(value) == float("inf"))
    )
    scale = request.rules.scale
    if scale is not None and request.weight is not None:
        raise DataError("scale applies to ratings, and these data have no ratings.")
    if scale is not None and "rating" in roles:
        wrong["rating"] |= (value < scale[0]) | (value > scale[1])
    rows, user, item, *counts = table.agg(
        sql.count("*"), *rounded, *map(sql.count_if, wrong.values())
    ).first()
    if not rows:
        raise DataError("There are no ratings: the data have no rows.")
    for role, text in (("user", user), ("item", item)):
        if text is not None:
            raise DataError(f"The column {names[role]!r}: {id_problem(text, role)}")
    for role, count in zip(wrong, counts, strict=True):
        if count:
            needed = "an integer or text as id"
            if role == "rating":
                needed = (
                    "a finite number"
                    if scale is None
                    else f"a grade of the scale {scale}"
                )
            reason = (
                f"must have {needed} in each row; {count:,} of {rows:,} rows do not."
            )
            raise DataError(f"The column {names[role]!r} {reason}")
    remarks: tuple[str, ...] = ()
    if "timestamp" in roles:
        is_guessed = request.timestamp is None
        table, remarks = timed(
            table, names["timestamp"], request.rules, guessed=is_guessed
        )
    if "rating" not in roles:
        return RatingsTable(table, True, remarks)
    if request.weight is not None:
        return RatingsTable(table, True, remarks, weighted=True)
    feedback = judged(table, rows, names["rating"])
    if request.rules.scale is None and feedback.kind == "counts":
        table = table.where(value > 0).withColumn("value", sql.lit(1.0).cast("float"))
        return RatingsTable(
            table, True, (*remarks, f"{feedback.reason} ({names['rating']})")
        )
    return RatingsTable(table, False, remarks)


def judged(table: DataFrame, n_rows: int, name: str) -> Feedback:
    """Decide whether the column value has grades or counts, by a sample of the rows."""
    sample = table.select("value")
    if n_rows > _JUDGED:
        sample = sample.sample(fraction=_JUDGED / n_rows, seed=0)
    found = sorted(
        (row[0], row[1]) for row in sample.groupBy("value").count().collect()
    )
    levels = np.array([level for level, _ in found], np.float64)
    counts = np.array([count for _, count in found], np.int64)
    return judge(levels, counts, name)


@dataclass(frozen=True, slots=True)
class Encoded:
    """Ratings by index: 0, 1, ... in the sorted order of ids.

    `users` and `items` have the columns id and index. `by_user` and `by_item` have the columns
    index, others (ascending) and values. `held` has user, item and value of held-out ratings, which
    are not in the other tables.
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
    table: DataFrame,
    scratch: Place,
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
        If there are too many ids, all ratings are held out, or the choice between duplicates is
        undecided.
    """
    from pyspark.sql import functions as sql

    users, n_users = _number(
        table.select(sql.col("user").alias("id")), scratch.child("user")
    )
    items, n_items = _number(
        table.select(sql.col("item").alias("id")), scratch.child("item")
    )
    for role, ids in (("user", users), ("item", items)):
        table = table.join(ids.toDF(role, "index"), role).drop(role)
        table = table.withColumnRenamed("index", role)
    draw = sql.pmod(sql.xxhash64("user", "item", sql.lit(random_state)), _STEPS)
    merged = _merged(table, duplicates).withColumn(
        "held", draw < round(test_fraction * _STEPS)
    )
    if weighted:
        merged = merged.where("value > 0 OR undecided")
    pairs = written(merged, scratch.child("pairs"))
    value = sql.col("value").cast("double")
    moments = (sql.avg(value), sql.stddev_pop(value), sql.min(value), sql.max(value))
    counts = (sql.count("*"), sql.count_if("undecided"))
    found = {
        row[0]: row[1:]
        for row in pairs.groupBy("held").agg(*counts, *moments).collect()
    }
    if undecided := sum(row[1] for row in found.values()):
        raise DataError(
            f"{undecided:,} pairs of user and item are repeated, and rows on a cluster have no "
            "order that decides which one to use; choose mean or sum, or last or first if there "
            "is a column of timestamps."
        )
    if not found:
        raise DataError("No pair has a weight above 0, so nothing can be fitted.")
    if False not in found:
        raise DataError(
            "No ratings remain to fit to: all are held out; lower test_fraction."
        )
    count, _, mean, std, low, high = found[False]
    cores = pairs.sparkSession.sparkContext.defaultParallelism
    blocks = max(cores, -(-count // _RATINGS_PER_BLOCK))
    kept = pairs.where(~sql.col("held"))
    return Encoded(
        users=users,
        items=items,
        n_users=n_users,
        n_items=n_items,
        by_user=_grouped(kept, "user", "item", blocks, scratch.child("by-user")),
        by_item=_grouped(kept, "item", "user", blocks, scratch.child("by-item")),
        held=pairs.where("held").select("user", "item", "value")
        if True in found
        else None,
        n_ratings=count,
        mean=mean,
        std=std or 1.0,
        limits=(low, high),
        blocks=blocks,
    )


def _merged(coded: DataFrame, duplicates: str) -> DataFrame:
    """Return one row per pair with its value, and whether its choice is undecided."""
    from pyspark.sql import functions as sql

    value, undecided = sql.col("value"), sql.lit(False)
    merged: Any = sql.max(value)
    if (
        "time" in coded.columns
    ):  # an event that is repeated, as in overlapping files, counts once
        coded = coded.dropDuplicates(["user", "item", "time", "value"])
    if duplicates in ("mean", "sum"):
        merged = (sql.avg if duplicates == "mean" else sql.sum)(value.cast("double"))
    elif duplicates == "error":
        undecided = sql.count(value) > 1
    elif "time" in coded.columns:
        merged = (sql.max if duplicates == "last" else sql.min)(
            sql.struct("time", value)
        )["value"]
    else:
        undecided = sql.max(value) > sql.min(value)
    merged = merged.cast("float").alias("value")
    return coded.groupBy("user", "item").agg(merged, undecided.alias("undecided"))


def _number(ids: DataFrame, place: Place) -> tuple[DataFrame, int]:
    """Index the distinct ids of a frame 0, 1, ... in sorted order; return them and their number."""
    from pyspark.sql import functions as sql

    row = sql.monotonically_increasing_id()
    part = sql.shiftright(row, 33).cast("int").alias("part")
    placed = ids.distinct().sort("id")
    rows = written(
        placed.select("id", part, row.bitwiseAND(_ROW_BITS).alias("row")), place
    )
    counts = sorted(rows.groupBy("part").count().collect())
    *starts, total = accumulate((count for _, count in counts), initial=0)
    if total > MOST_IDS:
        raise DataError(
            f"There may be at most {MOST_IDS:,} users or items; got {total:,}."
        )
    first = [(part, start) for (part, _), start in zip(counts, starts, strict=True)]
    offsets = ids.sparkSession.createDataFrame(first, "part int, start bigint")
    index = (sql.col("start") + sql.col("row")).cast("int").alias("index")
    return rows.join(sql.broadcast(offsets), "part").select("id", index), total


def _grouped(
    pairs: DataFrame, by: str, other: str, parts: int, place: Place
) -> DataFrame:
    """Write one row per user (or item): index, others (ascending) and values; return the table."""
    from pyspark.sql import functions as sql

    entry = sql.struct(sql.col(other).alias("others"), sql.col("value").alias("values"))
    entries = sql.sort_array(sql.collect_list(entry)).alias("entries")
    rows = pairs.repartition(parts, by).groupBy(sql.col(by).alias("index")).agg(entries)
    return written(rows.select("index", "entries.others", "entries.values"), place)

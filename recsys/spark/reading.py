"""Ratings in Parquet or CSV, on any file system that Spark reads, with their columns checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from recsys.errors import DataError
from recsys.readers.columns import Request, choose_columns
from recsys.spark.files import Place

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["RatingsTable", "checked_ratings", "id_column", "read_frame", "read_ratings"]

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
        Columns user and item (bigint or string), value (float) and, where there are times, time
        (double).
    implicit : bool
        There is no column of ratings; the values are ones.
    has_times : bool
    decision : str
        In one line, how the columns were understood.
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
        If there is nothing at `path`, no column for users or items, a column is of a type that
        cannot serve, or an id is missing, a rating missing or not finite.
    """
    return checked_ratings(read_frame(spark, path, request), request, path)


def checked_ratings(frame: DataFrame, request: Request, path: str) -> RatingsTable:
    """Choose and check the columns of a table of ratings, as `read_ratings` does.

    Raises
    ------
    DataError
        As `read_ratings`.
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
    """Read a table as it is: CSV by the suffix of its file or of the files in the folder."""
    place = Place(spark, path)
    if not place.exists():
        raise DataError(f"There is no file or folder {path} that Spark can see.")
    if place.child("ratings.csv").exists():  # a directory of MovieLens
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
        example = f" ({rows[0][0]!r} is none)"
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
    """Count what is missing, and refuse it."""
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
                f"{counts[role]:,} of {counts['rows']:,} rows have no {role} in the column "
                f"{names[role]!r} that is {what}."
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
    """Quote a column name, in which a dot would otherwise ask for a field of a struct."""
    escaped = name.replace("`", "``")
    return f"`{escaped}`"


def _decision(path: str, names: dict[str, str]) -> str:
    listed = ", ".join(f"{role}={name}" for role, name in names.items())
    return f"{path}: {listed}" + ("" if "rating" in names else "; no ratings, only contacts")

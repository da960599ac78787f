"""Ratings on a cluster."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from recsys.errors import DataError, ModelFileError
from recsys.readers.layout import Request, choose_columns

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = [
    "Encoded",
    "Place",
    "RatingsTable",
    "checked_ratings",
    "encode",
    "group_rows",
    "id_column",
    "number",
    "pairs_of",
    "read_frame",
    "read_ratings",
    "staged",
    "written",
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


_WITH_FOLDERS = ("file", "hdfs", "viewfs")


class Place:
    """A file or folder by its path or URI.

    Parameters
    ----------
    spark : SparkSession
    path : str
        Without a scheme, a path of the file system that is the cluster's default: the local one,
        unless the cluster says otherwise.
    """

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._spark = spark
        jvm: Any = spark._jvm
        given = jvm.org.apache.hadoop.fs.Path(str(path))
        self._files = given.getFileSystem(spark._jsc.hadoopConfiguration())
        self._path = self._files.makeQualified(given)

    @property
    def uri(self) -> str:
        """The full URI, which Spark reads and writes."""
        return str(self._path.toString())

    @property
    def name(self) -> str:
        """The last part of the path."""
        return str(self._path.getName())

    def child(self, name: str) -> Place:
        """Return the place `name` within this folder."""
        return Place(self._spark, f"{self.uri}/{name}")

    def sibling(self, name: str) -> Place:
        """Return the place `name` beside this one."""
        return Place(self._spark, f"{self._path.getParent().toString()}/{name}")

    @property
    def parent_exists(self) -> bool:
        """Whether there is a folder to be put in; object stores have no folders to ask for."""
        if self.uri.partition(":")[0] not in _WITH_FOLDERS:
            return True
        return bool(self._files.exists(self._path.getParent()))

    def exists(self) -> bool:
        """Whether something is here."""
        return bool(self._files.exists(self._path))

    def is_folder(self) -> bool:
        """Whether a folder is here."""
        return self.exists() and bool(self._files.getFileStatus(self._path).isDirectory())

    def names(self) -> list[str]:
        """Return the names of what is in the folder, sorted."""
        return sorted(str(each.getPath().getName()) for each in self._files.listStatus(self._path))

    def sizes(self) -> dict[str, int]:
        """Return the bytes of all files below, hidden ones left out, by path within the folder."""
        found, root = {}, len(self.uri) + 1
        each = self._files.listFiles(self._path, True)
        while each.hasNext():
            status = each.next()
            name = str(status.getPath().toString())[root:]
            if not any(part.startswith((".", "_")) for part in name.split("/")):
                found[name] = int(status.getLen())
        return dict(sorted(found.items()))

    def read_text(self) -> str:
        """Return the contents of a text file."""
        stream = self._files.open(self._path)
        try:
            return bytes(stream.readAllBytes()).decode()
        finally:
            stream.close()

    def write_text(self, text: str) -> None:
        """Write a new text file."""
        stream = self._files.create(self._path, False)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()

    def make_folder(self) -> None:
        """Make the folder and those above it."""
        self._files.mkdirs(self._path)

    def move_to(self, other: Place) -> None:
        """Rename to `other`, where nothing may be."""
        if not self._files.rename(self._path, other._path):
            raise ModelFileError(f"{self.uri} cannot be renamed to {other.uri}.")

    def delete(self) -> None:
        """Remove the file or folder if it is there."""
        self._files.delete(self._path, True)


def written(frame: DataFrame, place: Place) -> DataFrame:
    """Write a table down as Parquet and return it as read from there.

    Its schema is known: Spark would start a job to find it in the files.
    """
    frame.write.parquet(place.uri)
    return frame.sparkSession.read.schema(frame.schema).parquet(place.uri)


@contextmanager
def staged(
    spark: SparkSession, out: str, replaceable: Callable[[Place], bool], *, overwrite: bool
) -> Iterator[Place]:
    """Yield a new folder beside `out` that takes its place, or vanishes on an exception.

    Parameters
    ----------
    spark : SparkSession
    out : str
        Path or URI.
    replaceable : callable
        Whether what is at `out` is of a kind that `overwrite` may replace.
    overwrite : bool
        Replace it.

    Raises
    ------
    ModelFileError
        If something is in the way, or there is no folder to write in.
    """
    target = Place(spark, out)
    _check_target(target, out, replaceable, overwrite)
    mark = os.urandom(4).hex()
    folder = target.sibling(f".{target.name}.{mark}.tmp")
    try:
        folder.make_folder()
        yield folder
        _put_in_place(folder, target, target.sibling(f".{target.name}.{mark}.old"))
    except BaseException:
        with suppress(Exception):  # Spark may be gone; what is to be said is the failure before
            folder.delete()
        raise


def _check_target(
    target: Place, out: str, replaceable: Callable[[Place], bool], overwrite: bool
) -> None:
    if not target.exists():
        if not target.parent_exists:
            raise ModelFileError(f"Cannot write {out}: there is no folder to put it in.")
        return
    if not replaceable(target):
        raise ModelFileError(
            f"{out} exists and was not written by the Spark engine, so it is not replaced; "
            "choose another path."
        )
    if not overwrite:
        raise ModelFileError(
            f"There is a result of the Spark engine in {out} already; "
            "choose another path or ask to overwrite it."
        )


def _put_in_place(new: Place, target: Place, aside: Place) -> None:
    """Rename `new` to `target`; what is there is moved aside first, and back on failure."""
    if not target.exists():
        new.move_to(target)
        return
    target.move_to(aside)
    try:
        new.move_to(target)
    except BaseException:
        aside.move_to(target)
        raise
    aside.delete()


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

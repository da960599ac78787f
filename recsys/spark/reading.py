"""Ratings on a cluster: columns, types, times, indices of ids, and duplicates."""

from __future__ import annotations

import re
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl

from lowrank.spark.arrow import table_of
from recsys.data import age
from recsys.data.columns import SAMPLE, Request, choose_columns, with_outcome
from recsys.data.feedback import (
    check_spread,
    judge,
    sampled_levels,
    usual_range,
)
from recsys.data.ids import MISSING_IDS, ROUNDED_ID, WHOLE_NUMBER, id_problem
from recsys.data.numerals import number_texts
from recsys.data.rows import TRUTHS, are_truths, check_as_of
from recsys.data.split_parts import reading_of_parts
from recsys.data.times import order_problem, seconds_or_null, time_problem, timed
from recsys.errors import DataError
from recsys.messages import counted
from recsys.spark.files import SparkPath, written
from recsys.spark.workers import map_frames

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

_TEXT = re.compile(
    r"\.(csv|tsv|txt)(\.(gz|bz2|zst|lz4|snappy|deflate))?$", re.IGNORECASE
)
_NUMBERS = ("tinyint", "smallint", "int", "bigint", "float", "double", "decimal")
_NO_IDS = ("array", "map", "struct", "variant", "binary")
_EXACT = {"float": 2**24, "double": 2**53}  # numbers up to which floats are exact
_SAMPLE = 200_000  # rows that tell counts from grades, and how times are written
_EXAMPLES = 1000  # times sent along, which tell the order of day and month
_STEPS = 1 << 20  # resolution of the held-out share

# Kinds of times, next to those of `recsys.data.age`.
_EARLY_NEVER = "before 1990, and perhaps never"
_UNREAD = "cannot be read"

_OF_WEIGHTS = ("event_weights", "impressions", "half_life")
WEIGHTS_ON_SPARK = (
    "write the weight of each event into a column, below 0 for a dislike, and name it with "
    "--weight-col (pairs with 0 or less in all are left out), or fit on one machine, without "
    "--engine spark, where models fit dislikes and impressions"
)
"""How to fit to events of several kinds or ages."""

MOST_IDS = 2**31 - 1  # maximum number of ids: indices are signed 32-bit integers


class RatingsTable(NamedTuple):
    """Columns user, item (bigint or string), value and optionally time.

    The value is a float: a rating, a weight if `weighted`, else 1. `remarks` tell of
    rows that are left out because of their times, and the like.
    """

    frame: DataFrame
    implicit: bool
    remarks: tuple[str, ...] = ()
    weighted: bool = False


def read_ratings(
    spark: SparkSession,
    path: str | DataFrame,
    request: Request,
) -> RatingsTable:
    """Read ratings from files or a Spark table, and check them in one pass.

    The suffix of the file, or of one in the folder, determines the format: CSV or TSV
    with a header, plain or compressed, else Parquet.

    Raises
    ------
    DataError
        If there is nothing at `path`, or `checked_ratings` rejects the table.
    """
    if not isinstance(path, str):
        return checked_ratings(path, request, "the table")
    decided = {"weight", "rating"} & request.columns.keys()
    if not decided and not request.implicit:
        reading = reading_of_parts([path])
        if not reading.keys().isdisjoint(_OF_WEIGHTS):
            raise DataError(
                f"{path} has events whose weights depend on their kind or age, and --engine "
                f"spark reads weights only; {WEIGHTS_ON_SPARK}."
            )
        request = request.changed(weight=reading.get("weight"))
    source = SparkPath(spark, path)
    if not source.exists():
        raise DataError(f"There is no file or folder {path} that Spark can see.")
    if source.child("ratings.csv").exists():  # a MovieLens folder
        source = source.child("ratings.csv")
    names = [source.name]
    if source.is_folder():
        names += source.sizes()
    match = next(filter(None, map(_TEXT.search, names)), None)
    if match is None:
        return checked_ratings(spark.read.parquet(source.uri), request, path)
    frame = spark.read.csv(
        source.uri,
        header=True,
        sep=request.options.get("sep") or ("\t" if match[1].lower() == "tsv" else ","),
        encoding=request.options.get("encoding") or "UTF-8",
        mode="FAILFAST",
        ignoreLeadingWhiteSpace=True,
        ignoreTrailingWhiteSpace=True,
    )
    return checked_ratings(frame, request, path, untyped=True)


def checked_ratings(
    frame: DataFrame,
    request: Request,
    path: str,
    *,
    untyped: bool = False,
) -> RatingsTable:
    """Select and check the columns of a table of ratings; `path` is for messages.

    `untyped` ids are of a text file: integers if all are whole numbers.

    Raises
    ------
    DataError
        If a column or an id is missing or invalid, a rating is not finite, or there are
        no rows.
    """
    from pyspark.sql import functions as sql

    rules = request.rules
    positions = choose_columns(frame.columns, request, path)
    check_as_of(rules, positions)
    if rules.scale is not None and "weight" in request.columns:
        raise DataError("scale applies to ratings, and these data have no ratings.")
    all_names = frame.columns
    # Rename columns, since a dot in a name would mean a field of a struct.
    frame = frame.toDF(*map(str, range(len(all_names))))
    if untyped:
        frame = frame.where(~_repeats_header(all_names))

    def first_values(position: int) -> list[Any]:
        return [row[0] for row in frame.select(str(position)).head(SAMPLE)]

    positions = with_outcome(all_names, positions, request, first_values)
    names = {role: all_names[position] for role, position in positions.items()}
    columns = {role: sql.col(str(position)) for role, position in positions.items()}
    types = [kind for _, kind in frame.dtypes]
    is_weighted = "weight" in request.columns
    one = sql.lit(1.0).cast("float")
    value = one
    is_truth = False
    examples = None
    if "rating" in columns:
        value = columns["rating"].try_cast("float")
        is_truth = types[positions["rating"]] == "boolean"
        if types[positions["rating"]] == "string" and not is_weighted:
            first = [text for text in first_values(positions["rating"]) if text]
            is_truth = are_truths(first)
        if is_truth:
            value = _truths(columns["rating"])
        elif types[positions["rating"]] == "string":
            odd_texts = frame.where(value.isNull()).select(columns["rating"])
            examples = [row[0] for row in odd_texts.head(SAMPLE)]
            if any(examples):
                examples += first_values(positions["rating"])
                value = columns["rating"]
    selected = [value.alias("value")]
    if "timestamp" in columns:
        selected.append(columns["timestamp"].alias("time"))
    if "event_id" in columns:
        selected.append(_event_ids(columns["event_id"]).alias("event_id"))
    for role in ("item", "user"):
        ids = _ids(columns[role], types[positions[role]], role, names[role])
        selected.insert(0, ids.alias(role))
    table = frame.select(*selected)
    remarks: list[str] = []
    if examples is not None and any(examples):
        table = _with_numbers(table, examples, remarks)
    summary = _checked_summary(table, names, rules.scale, is_truth=is_truth)
    if untyped:
        for role in ("user", "item"):
            if not summary[f"{role}_words"]:
                table = table.withColumn(role, _whole(sql.col(role)))
    n_rows = summary["n"]
    if "timestamp" in columns:
        table = _with_seconds(table, n_rows, names["timestamp"], request, remarks)
    if "event_id" in columns:
        table = _once(table, names["event_id"])
    implicit = is_weighted or "rating" not in columns
    if not implicit and rules.scale is None:
        values = _sample(table, "value", n_rows)
        levels, counts = sampled_levels(values.to_numpy())
        feedback = judge(levels, counts, names["rating"])
        code = feedback.missing if rules.feedback is None else None
        if code is not None:
            remarks.append(f"rows left out whose rating is {code:.15g} (not rated)")
            table = table.where(sql.col("value") != code)
            is_rated = levels != code
            levels, counts = levels[is_rated], counts[is_rated]
        if is_truth or feedback.kind in ("counts", "likes"):
            implicit = True
            table = table.where(sql.col("value") > 0).withColumn("value", one)
            reason = feedback.reason if feedback.kind == "counts" else "likes"
            remarks.append(f"{reason} ({names['rating']})")
        elif len(levels):
            check_spread(float(levels[0]), float(levels[-1]))
            usual = usual_range(levels, counts)
            if usual is not None:
                low, high = usual
                far = levels[(levels < low) | (levels > high)][0]
                remarks.append(
                    f"some ratings are far from the usual {low:g} to {high:g}: {far:g}"
                )
    return RatingsTable(table, implicit, tuple(remarks), weighted=is_weighted)


def _truths(column: Column) -> Column:
    """Return likes, Booleans or words for them, as 1 and 0, null for other words."""
    from pyspark.sql import functions as sql

    words = sql.lower(sql.trim(column.cast("string")))
    likes = [word for word, is_like in TRUTHS.items() if is_like]
    others = TRUTHS.keys() - likes
    value = sql.when(words.isin(*likes), 1.0).when(words.isin(*others), 0.0)
    return value.cast("float")


def _with_numbers(
    table: DataFrame,
    examples: Sequence[str | None],
    remarks: list[str],
) -> DataFrame:
    """Convert values from texts, whose meaning examples tell to each batch alike."""
    first_texts = pl.Series(examples, dtype=pl.String)
    remarks += number_texts(first_texts)[1]

    def with_numbers(frame: pl.DataFrame) -> pl.DataFrame:
        texts, _ = number_texts(pl.concat([first_texts, frame["value"]]))
        numbers = texts[len(first_texts) :].cast(pl.Float32, strict=False)
        return frame.with_columns(value=numbers)

    return map_frames(table, with_numbers, {**dict(table.dtypes), "value": "float"})


def _event_ids(column: Column) -> Column:
    """Return ids of events as texts, null where one is missing."""
    from pyspark.sql import functions as sql

    texts = sql.regexp_replace(column.cast("string"), r"^(-?[0-9]+)\.0+$", "$1")
    return sql.when(~texts.isin(*MISSING_IDS), texts)


def _once(table: DataFrame, name: str) -> DataFrame:
    """Return each event once; `name` is the column of their ids in the data.

    Raises
    ------
    DataError
        If rows with one id differ.
    """
    # Rows without an id may repeat an event only by all that is known of it.
    has_id = "event_id IS NOT NULL"
    events = table.where(has_id).distinct()
    n_disputed = events.groupBy("event_id").count().where("count > 1").count()
    if n_disputed:
        raise DataError(
            f"{counted(n_disputed, 'id')} of events in the column {name!r} "
            f"{'has' if n_disputed == 1 else 'have'} rows with another user, item, value or time, "
            "and rows on a cluster have no order that decides which one counts; write each event "
            "once."
        )
    return events.union(table.where(f"NOT ({has_id})"))


def _repeats_header(names: Sequence[str]) -> Column:
    """Return which rows of texts are the header again, where files were joined."""
    from pyspark.sql import functions as sql

    fields = [
        sql.lower(sql.col(str(n))).eqNullSafe(name.lower())
        for n, name in enumerate(names)
    ]
    return reduce(and_, fields)


def _sample(
    table: DataFrame,
    name: str,
    n_rows: int,
) -> pl.Series:
    """Return a column, or a sample of its rows."""
    rows = table.select(name)
    if n_rows > _SAMPLE:
        rows = rows.sample(fraction=_SAMPLE / n_rows, seed=0)
    sample: Any = pl.from_arrow(table_of(rows))
    return pl.Series(sample[name])


def _ids(
    column: Column,
    kind: str,
    role: str,
    name: str,
) -> Column:
    """Return a column of ids as bigint or string, null for fractions."""
    from pyspark.sql import functions as sql

    if kind.startswith(_NO_IDS):
        raise DataError(
            f"The {role} column {name!r} is of type {kind}; ids are numbers, text or dates."
        )
    kind = kind.partition("(")[0]
    if kind not in _NUMBERS:
        return column.cast("string")
    integers = column.try_cast("bigint")
    is_id = column == integers
    if kind in _EXACT:
        # Larger floats may stand for several ids.
        size = sql.abs(column)
        is_id &= size <= _EXACT[kind]
    return sql.when(is_id, integers)


def _whole(texts: Column) -> Column:
    """Return texts of whole numbers, 7 or 7.0, as bigint, and null for others."""
    from pyspark.sql import functions as sql

    digits = sql.regexp_replace(texts, r"\.0+$", "")
    return sql.when(texts.rlike(WHOLE_NUMBER.pattern), digits.try_cast("bigint"))


def _checked_summary(
    table: DataFrame,
    names: dict[str, str],
    scale: tuple[float, float] | None,
    *,
    is_truth: bool,
) -> dict[str, Any]:
    """Check in one pass that all rows have ids and finite ratings; return counts.

    Raises
    ------
    DataError
    """
    from pyspark.sql import functions as sql

    value = sql.col("value")
    is_infinite = sql.abs(value) == float("inf")
    is_off = value.isNull() | sql.isnan(value) | is_infinite
    rating = "true or false" if is_truth else "a finite number"
    if scale is not None and "rating" in names:
        is_off |= ~value.between(*scale)
        rating = f"a grade of the scale {scale}"
    totals = [sql.count("*").alias("n"), sql.count_if(is_off).alias("rating")]
    for role in ("user", "item"):
        text = sql.trim(sql.col(role).cast("string"))
        is_missing = text.isNull() | text.isin(*MISSING_IDS)
        # A spreadsheet writes long numbers as 1.23457E+11, which may be several ids.
        is_rounded = text.rlike(ROUNDED_ID)
        rounded = sql.max(sql.when(is_rounded, text))
        totals += [
            sql.count_if(is_missing).alias(role),
            sql.count_if(_whole(text).isNull()).alias(f"{role}_words"),
            rounded.alias(f"{role}_rounded"),
        ]
    row: Any = table.agg(*totals).first()
    summary: dict[str, Any] = row.asDict()
    n_rows = summary["n"]
    if not n_rows:
        raise DataError("There are no ratings: the data have no rows.")
    needed_by_role = {
        "user": "an integer or text as id",
        "item": "an integer or text as id",
        "rating": rating,
    }
    for role, needed in needed_by_role.items():
        rounded_id = summary.get(f"{role}_rounded")
        if rounded_id is not None:
            raise DataError(
                f"The column {names[role]!r}: {id_problem(rounded_id, role)}"
            )
        if summary[role]:
            raise DataError(
                f"The column {names[role]!r} must have {needed} in each row; "
                f"{summary[role]:,} of {n_rows:,} rows do not."
            )
    return summary


def _with_seconds(
    frame: DataFrame,
    n_rows: int,
    name: str,
    request: Request,
    remarks: list[str],
) -> DataFrame:
    """Convert times to seconds, and leave out rows of the future and of "never".

    `name` is the column in the data. A column that nobody has named is not used if the
    order of its days and months is not known. `remarks` on the rows are added.

    Raises
    ------
    DataError
        If a time is missing or cannot be read, numbers are of two units, or nearly all
        rows would be left out.
    """
    from pyspark.sql import functions as sql

    form = request.rules.time_format
    now = request.rules.now
    if dict(frame.dtypes)["time"].startswith("decimal"):
        frame = frame.withColumn("time", sql.col("time").cast("double"))
    sample = _sample(frame, "time", n_rows)
    if "timestamp" not in request.columns and form is None:
        problem = order_problem(sample)
        if problem is not None:
            remarks.append(f"{name} not used ({problem})")
            return frame.drop("time")
    readable = sample.filter(seconds_or_null(sample, form).is_not_null())
    unit = timed(readable, form=form).unit if len(readable) else None
    if unit is not None and unit.name != "s" and form is None:
        remarks.append(f"times in {unit.noun}")
    # The first rows of a sorted file may all be of the first days of a month.
    examples = readable.sample(min(len(readable), _EXAMPLES), seed=0)
    sampled_seconds = seconds_or_null(readable, form).to_numpy()
    if midnight := age.midnight_remark(sampled_seconds):
        remarks.append(midnight)

    def seconds_of(times: pl.Series) -> pl.Series:
        if unit is None:
            # The examples tell the order of day and month to each batch alike.
            together = pl.concat([examples, times])
            return seconds_or_null(together, form, exact=True)[len(examples) :]
        if times.dtype == pl.String:
            times = times.str.strip_chars().cast(pl.Float64, strict=False)
        return unit.seconds(times)

    def with_kinds(table: pl.DataFrame) -> pl.DataFrame:
        seconds = seconds_of(table["time"]).cast(pl.Float64).fill_nan(None)
        return table.with_columns(
            time=seconds,
            kind=_kinds(seconds, now),
            text=table["time"].cast(pl.String),
        )

    types = dict(frame.dtypes)
    types |= {"time": "double", "kind": "string", "text": "string"}
    dated = map_frames(frame, with_kinds, types)
    totals = dated.groupBy("kind").agg(
        sql.count("*").alias("n"),
        sql.min("time").alias("first"),
        sql.max("time").alias("last"),
        sql.min("text").alias("text"),
    )
    groups = {group["kind"]: group for group in totals.collect()}
    if _UNREAD in groups:
        unread = groups[_UNREAD]
        raise DataError(
            f"The column {name!r} must have a time in each row; {unread['n']:,} of {n_rows:,} "
            f"rows do not: {time_problem(unread['text'], form)}"
        )
    left_out = _left_out(groups, n_rows, now, remarks)
    return dated.where(~sql.col("kind").isin(*left_out)).drop("kind", "text")


def _kinds(seconds: pl.Series, now: int) -> pl.Series:
    """Return whether times are of the future, of "never" or early; else empty texts."""
    numbers = seconds.fill_null(now).to_numpy()
    kinds = np.full(len(numbers), "", dtype=object)
    kinds[numbers < age.MODERN] = age.EARLY
    kinds[numbers > now + age.TOLERANCE] = age.FUTURE
    kinds[age.means_never(numbers)] = _EARLY_NEVER
    kinds[(numbers < age.INFINITE) | (numbers >= age.YEAR_2999)] = age.MEANT_NEVER
    kinds[seconds.is_null().to_numpy()] = _UNREAD
    return pl.Series("kind", kinds, dtype=pl.String)


def _left_out(
    groups: dict[str, Any],
    n_rows: int,
    now: int,
    remarks: list[str],
) -> list[str]:
    """Return the kinds of times to leave out, and add remarks on them and early ones.

    Raises
    ------
    DataError
        If nearly all rows are left out.
    """
    n = {kind: group["n"] for kind, group in groups.items()}
    n_modern = n.get("", 0)
    n_never = n.get(_EARLY_NEVER, 0) + n.get(age.MEANT_NEVER, 0)
    n_past = n_rows - n.get(age.FUTURE, 0) - n_never
    members = {
        age.FUTURE: [age.FUTURE],
        age.MEANT_NEVER: [age.MEANT_NEVER],
        age.EARLY: [age.EARLY],
    }
    if not n_modern or 2 * n_modern < n_past:
        # In data of 1970, 1970-01-01 is a date like others.
        members[age.EARLY].append(_EARLY_NEVER)
    else:
        members[age.MEANT_NEVER].append(_EARLY_NEVER)
    left_out = members[age.FUTURE] + members[age.MEANT_NEVER]
    n_left_out = sum(n.get(kind, 0) for kind in left_out)
    for noun, kinds in members.items():
        rows = [groups[kind] for kind in kinds if kind in groups]
        count = sum(row["n"] for row in rows)
        if not count:
            continue
        first = min(row["first"] for row in rows)
        last = max(row["last"] for row in rows)
        if noun == age.EARLY and count == n_rows - n_left_out:
            remarks.append(age.all_early(int(first), int(last)))
            continue
        ends = dict.fromkeys(map(age.short_time, (first, last)))
        remarks.append(f"{counted(count, 'row')} {noun} ({' to '.join(ends)})")
    age.check_left_out(n_left_out, n_rows, remarks, now)
    return left_out


class Encoded(NamedTuple):
    """Ratings by index: 0, 1, ... in the sorted order of ids.

    `users` and `items` have the columns id and index, `pairs` and `held` (not to be
    fitted to) the columns user, item and value.
    """

    users: DataFrame
    items: DataFrame
    pairs: DataFrame
    held: DataFrame
    n_users: int
    n_items: int


def encode(
    ratings: RatingsTable,
    scratch: SparkPath,
    *,
    duplicates: str | None = None,
    test_fraction: float = 0.0,
    random_state: int = 0,
) -> Encoded:
    """Index users and items, merge duplicates, and hold out ratings.

    The choice of held-out ratings depends only on user, item and `random_state`. Of
    weights, pairs at zero or below, such as returned purchases, are left out.

    Raises
    ------
    DataError
        If there are too many ids, or the choice between duplicates is undecided.
    """
    from pyspark.sql import functions as sql

    table = ratings.frame
    numbered_ids = {}
    for role in ("user", "item"):
        ids = numbered(table.select(sql.col(role).alias("id")), scratch.child(role))
        table = table.join(ids.toDF(role, "index"), role).drop(role)
        table = table.withColumnRenamed("index", role)
        numbered_ids[role] = ids
    # A hash of the pair decides alike, however the rows are distributed.
    pair_hash = sql.xxhash64("user", "item", sql.lit(random_state))
    draw = sql.pmod(pair_hash, _STEPS)
    is_held = (draw < round(test_fraction * _STEPS)).alias("held")
    policy = duplicates or ("sum" if ratings.weighted else "last")
    pairs = merged(table, policy).select("*", is_held)
    pairs = written(pairs, scratch.child("pairs"))
    # A lost executor then costs some work, and does not change the result.
    n_undecided = pairs.where("undecided").count()
    if n_undecided:
        raise DataError(
            f"{n_undecided:,} pairs of user and item are repeated, and rows on a cluster have no "
            "order that decides which one to use; choose mean or sum, or last or first if there "
            "is a column of timestamps."
        )
    pairs = pairs.drop("undecided")
    if ratings.weighted:
        pairs = pairs.where("value > 0")
        if pairs.isEmpty():
            raise DataError("No pair has a weight above 0, so nothing can be fitted.")
    return Encoded(
        users=numbered_ids["user"],
        items=numbered_ids["item"],
        pairs=pairs.where("not held").drop("held"),
        held=pairs.where("held").drop("held"),
        n_users=numbered_ids["user"].count(),
        n_items=numbered_ids["item"].count(),
    )


def merged(coded: DataFrame, duplicates: str) -> DataFrame:
    """Return one row per pair with its value, and whether its choice is undecided."""
    from pyspark.sql import functions as sql

    value = sql.col("value")
    choices = {
        "mean": sql.avg(value.cast("double")),
        "sum": sql.sum(value.cast("double")),
        "error": sql.max(value),
    }
    undecided = sql.count(value) > 1 if duplicates == "error" else sql.lit(False)
    if "time" in coded.columns:
        # An event that is repeated, as in overlapping files, counts once.
        coded = coded.distinct()
        dated = sql.struct("time", value)
        choices["last"] = sql.max(dated)["value"]
        choices["first"] = sql.min(dated)["value"]
    elif duplicates in ("last", "first"):
        choices[duplicates] = sql.max(value)
        undecided = sql.max(value) > sql.min(value)
    choice = choices[duplicates].cast("float").alias("value")
    return coded.groupBy("user", "item").agg(choice, undecided.alias("undecided"))


def numbered(ids: DataFrame, path: SparkPath) -> DataFrame:
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
    table = written(frame, path)
    n = table.count()
    if n > MOST_IDS:
        raise DataError(f"There may be at most {MOST_IDS:,} users or items; got {n:,}.")
    return table.selectExpr("id", "cast(index as int) as index")

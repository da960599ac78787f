"""Times of rows on a cluster, by the functions of the ordinary readers.

A sample tells the unit or the form of the times; the workers convert them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl

from lowrank.spark.arrow import map_in_arrow, table_of
from recsys.data.age import (
    EARLY,
    FUTURE,
    INFINITE,
    MEANT_NEVER,
    MODERN,
    TOLERANCE,
    YEAR_2999,
    all_early,
    check_left_out,
    means_never,
    short_time,
)
from recsys.data.rows import RowRules
from recsys.data.time_units import Unit
from recsys.data.times import order_problem, seconds_or_null, time_problem, timed
from recsys.errors import DataError
from recsys.messages import counted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SAMPLE = 100_000  # rows that tell the form of the times
_EXAMPLES = (
    1000  # rows of the sample that go along, as they tell the order of day and month
)
_EARLY_NEVER = "before 1990, and perhaps never"
_UNREAD = "cannot be read"


class DatedTable(NamedTuple):
    """Table with its times in seconds since 1970, or without them, and remarks on them."""

    frame: DataFrame
    remarks: tuple[str, ...]


class TimeForm(NamedTuple):
    """How the times of a column are written: a format, a unit of numbers, or as the examples."""

    form: str | None
    unit: Unit | None
    examples: pl.Series

    @classmethod
    def from_sample(cls, sample: pl.Series, form: str | None) -> TimeForm:
        """Learn the unit of a sample.

        Raises
        ------
        DataError
            If numbers are of two units.
        """
        readable = sample.filter(seconds_or_null(sample, form).is_not_null())
        if not len(readable):
            return cls(form, None, readable)
        unit = timed(readable, form=form).unit
        # The first rows of a sorted file may all be of the first days of a month.
        examples = readable.sample(min(len(readable), _EXAMPLES), seed=0)
        return cls(form, unit, examples)

    def seconds(self, times: pl.Series) -> pl.Series:
        """Return times as seconds, null where one is missing or unreadable."""
        if self.unit is None:
            # The examples tell the order of day and month to each batch alike.
            together = pl.concat([self.examples, times])
            seconds = seconds_or_null(together, self.form, exact=True)
            return seconds[len(self.examples) :].cast(pl.Float64)
        numbers = times
        if times.dtype == pl.String:
            texts = times.str.strip_chars()
            numbers = texts.cast(pl.Int64, strict=False)
            if numbers.null_count() > texts.null_count():
                numbers = texts.cast(pl.Float64, strict=False)
        seconds = self.unit.seconds(numbers).cast(pl.Float64)
        return seconds.fill_nan(None)


def with_seconds(
    frame: DataFrame, n_rows: int, name: str, rules: RowRules, *, is_guessed: bool
) -> DatedTable:
    """Convert the column time to seconds, and leave out rows of the future and of "never".

    `name` is the column in the data. A guessed column, which nobody has named, is not used if the
    order of its days and months is not known.

    Raises
    ------
    DataError
        If a time is missing or cannot be read, numbers are of two units, or nearly all rows would
        be left out.
    """
    from pyspark.sql import functions as sql

    if dict(frame.dtypes)["time"].startswith("decimal"):
        frame = frame.withColumn("time", sql.col("time").cast("double"))
    share = min(1.0, _SAMPLE / n_rows)
    rows = frame.select("time") if share == 1 else frame.select("time").sample(share, 0)
    sample: Any = pl.from_arrow(table_of(rows))
    problem = None
    if is_guessed and rules.time_format is None:
        problem = order_problem(sample["time"])
    if problem is not None:
        return DatedTable(frame.drop("time"), (f"{name} not used ({problem})",))
    form = TimeForm.from_sample(sample["time"], rules.time_format)
    remarks = []
    if form.unit is not None and form.unit.name != "s" and rules.time_format is None:
        remarks.append(f"times in {form.unit.noun}")
    dated = _converted(frame, form, rules.now)
    groups = {row["kind"]: row for row in _summary(dated)}
    if _UNREAD in groups:
        unread = groups[_UNREAD]
        raise DataError(
            f"The column {name!r} must have a time in each row; {unread['n']:,} of {n_rows:,} "
            f"rows do not: {time_problem(unread['text'], rules.time_format)}"
        )
    if _is_early(groups, n_rows):
        dated = dated.replace({_EARLY_NEVER: EARLY}, subset=["kind"])
    else:
        dated = dated.replace({_EARLY_NEVER: MEANT_NEVER}, subset=["kind"])
    remarks += _remarks(dated, n_rows, rules.now)
    past = dated.where(~sql.col("kind").isin(FUTURE, MEANT_NEVER))
    return DatedTable(past.drop("kind", "text"), tuple(remarks))


def _converted(frame: DataFrame, form: TimeForm, now: int) -> DataFrame:
    """Return the table with times as seconds, their kind, and their text."""
    names = [name for name in frame.columns if name != "time"]
    types = dict(frame.dtypes)
    schema = "".join(f"{name} {types[name]}, " for name in names)

    def convert(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            table: Any = pl.from_arrow(batch)
            seconds = form.seconds(table["time"])
            columns = [
                *table.select(names),
                seconds.alias("time"),
                _kinds(seconds, now),
            ]
            columns.append(table["time"].cast(pl.String).alias("text"))
            converted = pl.DataFrame(columns)
            yield from converted.to_arrow(
                compat_level=pl.CompatLevel.oldest()
            ).to_batches()

    return map_in_arrow(
        frame, convert, f"{schema}time double, kind string, text string"
    )


def _kinds(seconds: pl.Series, now: int) -> pl.Series:
    """Return whether times are of the future, of "never" or early; empty for all others."""
    numbers = seconds.fill_null(now).to_numpy()
    kinds = np.full(len(numbers), "", dtype=object)
    kinds[numbers < MODERN] = EARLY
    kinds[numbers > now + TOLERANCE] = FUTURE
    kinds[means_never(numbers)] = _EARLY_NEVER
    kinds[(numbers < INFINITE) | (numbers >= YEAR_2999)] = MEANT_NEVER
    kinds[seconds.is_null().to_numpy()] = _UNREAD
    return pl.Series("kind", kinds, dtype=pl.String)


def _summary(dated: DataFrame) -> list[Any]:
    """Return number, first and last time, and least text of the rows of each kind."""
    from pyspark.sql import functions as sql

    columns = [
        sql.count("*").alias("n"),
        sql.min("time"),
        sql.max("time"),
        sql.min("text"),
    ]
    groups = dated.groupBy("kind").agg(*columns)
    return list(groups.toDF("kind", "n", "first", "last", "text").collect())


def _is_early(groups: dict[str, Any], n_rows: int) -> bool:
    """Return whether so few times are modern that 1970-01-01 is a date like others."""
    counts = {kind: group["n"] for kind, group in groups.items()}
    n_never = counts.get(_EARLY_NEVER, 0) + counts.get(MEANT_NEVER, 0)
    n_modern = counts.get("", 0)
    return not n_modern or 2 * n_modern < n_rows - counts.get(FUTURE, 0) - n_never


def _remarks(dated: DataFrame, n_rows: int, now: int) -> list[str]:
    """Return remarks on rows that are left out or early.

    Raises
    ------
    DataError
        If nearly all rows are left out.
    """
    groups = {row["kind"]: row for row in _summary(dated)}
    n_left_out = sum(
        groups[kind]["n"] for kind in (FUTURE, MEANT_NEVER) if kind in groups
    )
    remarks = []
    for kind in (FUTURE, MEANT_NEVER, EARLY):
        if kind not in groups:
            continue
        group = groups[kind]
        if kind == EARLY and group["n"] == n_rows - n_left_out:
            remarks.append(all_early(int(group["first"]), int(group["last"])))
            continue
        ends = dict.fromkeys(map(short_time, (group["first"], group["last"])))
        remarks.append(f"{counted(group['n'], 'row')} {kind} ({' to '.join(ends)})")
    check_left_out(n_left_out, n_rows, remarks, now)
    return remarks

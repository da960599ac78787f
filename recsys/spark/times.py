"""Times of rows on a cluster, by the rules of the local readers."""

from __future__ import annotations

import re
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any, NamedTuple

from recsys.data.age import (
    DAY,
    EARLY,
    FUTURE,
    INFINITE,
    LIMITS,
    MEANT_NEVER,
    MODERN,
    NEVER,
    QUARTER,
    TOLERANCE,
    YEAR_1,
    YEAR_2999,
    ZONES,
    all_early,
    check_left_out,
    short_time,
)
from recsys.data.rows import RowRules
from recsys.data.time_units import (
    BAND,
    END_OF_CALENDAR,
    FOREVER,
    RANGES,
    SAME_SECOND,
    UNITS,
    Unit,
    range_of,
    units_of,
    usual_unit,
)
from recsys.data.times import time_problem, two_units_problem
from recsys.errors import DataError
from recsys.messages import counted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_NUMBERS = ("tinyint", "smallint", "int", "bigint", "float", "double", "decimal")
_NUMBER = r"^\s*[-+]?\d+(\.\d+)?\s*$"
_ENDLESS = r"(?i)^\s*[-+]?inf(inity)?\s*$|^\s*0000-00-00"
_EARLY_ENDLESS = r"(?i)^\s*-inf|^\s*0000-00-00"
_JAVA = {
    "Y": "yyyy",
    "m": "M",
    "d": "d",
    "H": "H",
    "I": "h",
    "M": "m",
    "S": "s",
    "p": "a",
}
_DIGITS = {
    "%Y%m%d": "yyyyMMdd",
    "%Y%m%d%H%M": "yyyyMMddHHmm",
    "%Y%m%d%H%M%S": "yyyyMMddHHmmss",
}
_NAMED_MONTHS = ("d-MMM-yyyy", "d MMM yyyy", "MMM d, yyyy")
_CLOCKS = ("[ H:mm[:ss]]", " h:mm[:ss] a")
_MONTHS = 12
_FEW_DATES = 0.01  # share of dates that may contradict the others


class Timed(NamedTuple):
    """Table with its times in seconds since 1970, or without them, and remarks on them."""

    table: DataFrame
    remarks: tuple[str, ...]


def timed(table: DataFrame, name: str, rules: RowRules, *, guessed: bool) -> Timed:
    """Convert the column time to seconds, and leave out rows of the future and of "never".

    `name` is that of the column in the data. A `guessed` column, which nobody has named, is not
    used if no time in it can be read.

    Raises
    ------
    DataError
        If a time is missing or cannot be read, numbers are of two units, or nearly all rows would
        be left out.
    """
    from pyspark.sql import functions as sql

    remarks = []
    seconds, unit = _seconds(table, rules.time_format)
    if unit is not None and unit.name != "s" and rules.time_format is None:
        remarks.append(f"times in {unit.noun}")
    given = sql.col("time").cast("string")
    seconds = sql.when(~sql.isnan(seconds), seconds)
    unread = seconds.isNull()
    n, n_unread, example = _first(
        table, sql.count("*"), sql.count_if(unread), _least(unread, given)
    )
    if n_unread == n and guessed:
        problem = time_problem(example).rstrip(".")
        return Timed(table.drop("time"), (f"{name} not used ({problem})",))
    if n_unread:
        raise DataError(
            f"The column {name!r} must have a time in each row; {n_unread:,} of {n:,} rows do "
            f"not: {time_problem(example, rules.time_format)}"
        )
    judged = _judged(table.withColumn("time", seconds), rules.now)
    return Timed(judged.table, (*remarks, *judged.remarks))


def _first(table: DataFrame, *columns: Column) -> Any:
    """Return the only row of aggregates of a table."""
    return table.agg(*columns).first()


def _least(condition: Column, value: Column) -> Column:
    """Return the least value of the rows that meet a condition."""
    from pyspark.sql import functions as sql

    return sql.min(sql.when(condition, value))


def _seconds(table: DataFrame, form: str | None) -> tuple[Column, Unit | None]:
    """Return the column time in seconds, null where it cannot be read, and the unit of numbers.

    Raises
    ------
    DataError
        If times are of two units, or some are numbers and others are not.
    """
    from pyspark.sql import functions as sql

    time = sql.col("time")
    kind = dict(table.dtypes)["time"].partition("(")[0]
    if kind in _NUMBERS:
        unit = _unit(table) if form is None else UNITS.get(form)
        if unit is None:
            return _parsed(time.cast("string"), [_java_format(str(form))]), None
        return _in_unit(time, unit), unit
    if kind != "string":
        return time.try_cast("timestamp").cast("double"), None
    if form is not None and form not in UNITS:
        return _parsed(time, [_java_format(form)]), None
    n_numbers, n_texts = _first(
        table, sql.count_if(time.rlike(_NUMBER)), sql.count_if(~time.rlike(_NUMBER))
    )
    if n_numbers and n_texts:
        raise DataError(
            f"{n_numbers:,} times are numbers, and {n_texts:,} are texts; choose one form."
        )
    if n_numbers:
        return _seconds(table.withColumn("time", time.try_cast("double")), form)
    return _parsed(time, _formats(table)), None


def _parsed(texts: Column, formats: list[str]) -> Column:
    """Return texts of ISO 8601 or in one of several formats as seconds; null for other texts."""
    from pyspark.sql import functions as sql

    stripped = sql.trim(texts)
    moments = [sql.try_to_timestamp(stripped, sql.lit(form)) for form in formats]
    far = sql.when(stripped.rlike(_EARLY_ENDLESS), -float(FOREVER)).when(
        stripped.rlike(_ENDLESS), float(FOREVER)
    )
    times = (
        moment.cast("double") for moment in (stripped.try_cast("timestamp"), *moments)
    )
    return sql.coalesce(*times, far)


def _java_format(form: str) -> str:
    """Return a format of polars in the notation of Java.

    Raises
    ------
    DataError
        If a part of the format has no counterpart.
    """
    parts = re.split(r"%(.)", form.replace("%.f", ""))
    written = [re.sub("[A-Za-z]+", r"'\g<0>'", text) for text in parts[::2]]
    for directive in parts[1::2]:
        if directive not in _JAVA:
            raise DataError(
                f"--time-format {form} does not work with --engine spark, which reads "
                f"{', '.join(f'%{name}' for name in _JAVA)}; write times as ISO 8601."
            )
    names = [_JAVA[directive] for directive in parts[1::2]] + [""]
    return "".join(f"{text}{name}" for text, name in zip(written, names, strict=True))


def _formats(table: DataFrame) -> list[str]:
    """Return the formats of dates with the year at the end, as days above 12 tell their order."""
    from pyspark.sql import functions as sql

    counts = []
    for mark in "./-":
        pattern = rf"^\s*(\d\d?)\{mark}(\d\d?)\{mark}\d{{4}}"
        first, last = (
            sql.regexp_extract("time", pattern, group).try_cast("int") > _MONTHS
            for group in (1, 2)
        )
        counts += [sql.count_if(first & ~last), sql.count_if(last & ~first)]
    found = _first(table, *counts)
    formats = [f"{days}{_CLOCKS[0]}" for days in _NAMED_MONTHS]
    for position, mark in enumerate("./-"):
        n_day_first, n_month_first = found[2 * position : 2 * position + 2]
        few = _FEW_DATES * (n_day_first + n_month_first)
        orders = (("d", "M", n_month_first), ("M", "d", n_day_first))
        possible = [
            (one, other) for one, other, n_against in orders if n_against <= few
        ]
        if len(possible) == 1:
            days = f"{possible[0][0]}{mark}{possible[0][1]}{mark}yyyy"
            formats += [f"{days}{clock}" for clock in _CLOCKS]
    return formats


def _in_unit(numbers: Column, unit: Unit) -> Column:
    """Return numeric times as seconds; zero and -1 stay, and so does infinity."""
    from pyspark.sql import functions as sql

    if unit.form:
        digits = numbers.try_cast("bigint").cast("string")
        form = _DIGITS[unit.form.removesuffix("%3f")]
        moments = sql.try_to_timestamp(
            sql.substring(digits, 1, len(form)), sql.lit(form)
        )
        seconds = moments.cast("double")
        if unit.form.endswith("%3f"):
            seconds += sql.substring(digits, len(form) + 1, 3).cast("double") / 1000
    elif unit.per_second < 1:
        exact = numbers * DAY + unit.origin
        whole = sql.round(exact)
        is_whole = sql.abs(exact - whole) < SAME_SECOND
        seconds = sql.when(is_whole, whole).otherwise(sql.round(exact, 3))
    else:
        seconds = numbers / unit.per_second + unit.origin
    bare = (numbers == 0) | (numbers == -1) | (sql.abs(numbers) == float("inf"))
    return sql.when(bare, numbers).otherwise(seconds).cast("double")


def _unit(table: DataFrame) -> Unit:
    """Return the unit of numeric times.

    Raises
    ------
    DataError
        If some are modern times in one unit, and some in another.
    """
    from pyspark.sql import functions as sql

    numbers = sql.col("time").cast("double")
    sizes = sql.abs(numbers)
    untold = (numbers == 0) | (numbers == -1) | sql.isnan(numbers)
    untold = reduce(or_, (sizes.between(*ends) for ends in END_OF_CALENDAR), untold)
    told = ~untold
    within = [told & (sizes > first) & (sizes <= last) for first, last, _ in RANGES]
    small = told & (sizes < BAND) & ~reduce(or_, within[:2])
    groups = [*within, small]
    columns = [sql.count_if(group) for group in groups]
    examples = [_least(group, sql.col("time")) for group in groups]
    largest, *found = _first(table, sql.max(sql.when(told, sizes)), *columns, *examples)
    counts = [*found[: len(groups)], 0]

    def valid(unit: Unit) -> float:
        hits = sizes.between(*range_of(unit))
        dates = _in_unit(sql.col("time"), unit).isNotNull()
        n_hits, n_valid = _first(table, sql.count_if(hits), sql.count_if(hits & dates))
        return int(n_valid) / max(1, int(n_hits))

    units = units_of(counts, valid)
    if len(units) > 1:
        shown = []
        for unit, members in [*units.items()][:2]:
            number = found[len(groups) + members[0]]
            number = int(number) if number == int(number) else number
            shown.append(f"{number} in {unit.noun}")
        raise DataError(two_units_problem(units, shown))
    return next(iter(units), usual_unit(largest or 0.0))


def _judged(table: DataFrame, now: int) -> Timed:
    """Leave out rows with a time in the future or that means "never", with remarks."""
    from pyspark.sql import functions as sql

    time = sql.col("time")
    late = time > now + TOLERANCE
    distances = (sql.abs(time - date) for date in NEVER)
    stored = [(distance <= ZONES) & (distance % QUARTER == 0) for distance in distances]
    stored += [sql.abs(time - limit) < 0.5 for limit in LIMITS]
    never = (time < MODERN) & reduce(or_, stored, time < YEAR_1)
    n, n_late, n_never, n_modern = _first(
        table,
        sql.count("*"),
        sql.count_if(late),
        sql.count_if(never),
        sql.count_if((time >= MODERN) & ~late),
    )
    if not n_modern or 2 * n_modern < n - n_late - n_never:
        never = time < INFINITE
    never |= time >= YEAR_2999
    kinds = {
        FUTURE: late & ~never,
        MEANT_NEVER: never,
        EARLY: (time < MODERN) & ~never,
    }
    found = _first(
        table,
        *(
            aggregate
            for rows in kinds.values()
            for times in [sql.when(rows, time)]
            for aggregate in (sql.count(times), sql.min(times), sql.max(times))
        ),
    )
    remarks = []
    n_left_out = found[0] + found[3]
    for position, noun in enumerate(kinds):
        count, first, last = found[3 * position : 3 * position + 3]
        if count and noun == EARLY and count == n - n_left_out:
            remarks.append(all_early(int(first), int(last)))
        elif count:
            ends = dict.fromkeys(map(short_time, (first, last)))
            remarks.append(f"{counted(count, 'row')} {noun} ({' to '.join(ends)})")
    check_left_out(n_left_out, n, remarks, now)
    kept = table.where(~(kinds[FUTURE] | kinds[MEANT_NEVER])) if n_left_out else table
    return Timed(kept, tuple(remarks))

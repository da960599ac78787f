"""Times in seconds: columns of times, points in time and durations."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import date, datetime, timedelta
from typing import TypeAlias

import polars as pl

from recsys.data.ids import MISSING_IDS, Place, row_place
from recsys.errors import DataError
from recsys.messages import shortened

Moment: TypeAlias = "str | int | date | datetime"
"""A point in time: a date or datetime, also as a string, or seconds since 1970."""

# Magnitudes above which a column of times is interpreted as milli-, micro- or nanoseconds:
# 1e11 seconds after 1970 is in the year 5138.
_UNITS = ((1e17, 10**9), (1e14, 10**6), (1e11, 10**3))
_TICKS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
# With %#z, an offset may be written +02, +0200 or +02:00.
_ISO_FORMATS = (
    *("%Y-%m-%d", "%Y-%m-%d %H:%M:%S%.f", "%Y-%m-%d %H:%M:%S%.f%#z", "%Y-%m-%d %H:%M"),
    *("%Y-%m-%d %H:%M%#z", "%Y%m%d", "%Y%m%d %H%M%S%.f", "%Y%m%d %H%M%S%.f%#z"),
    "%a %b %d %H:%M:%S %z %Y",  # Twitter and Goodreads, with the month as a word
)
_LOGGED = "%Y-%m-%dT%H:%M:%S%.fZ"  # of events of `recsys serve`, whatever the format of others
# Ranges of numbers that are written as dates: 20250609, and 20250609035205 with a time. As
# seconds and milliseconds they would be some days of 1970, and the years 2572 to 2635.
_BASIC = ((19000101, 20991231, "%Y%m%d"), (19000101000000, 20991231235959, "%Y%m%d%H%M%S"))
SECONDS = (_BASIC[0][1] + 1, int(_UNITS[-1][0]))
"""Range of the integers that are seconds in every column; it begins on 1970-08-31."""

_MOSTLY = 0.5  # minimum share of numbers that are valid dates; 4% are by chance
_SAMPLE = 100
YEAR_1000 = -30_610_224_000
"""Start of the year 1000. Earlier times are doubtful: polars reads "31-12-24" as the year 31."""

_DAY = 86400
_MONTHS = 12
_DURATIONS = {"s": 1.0, "h": 3600.0, "d": _DAY, "w": 7.0 * _DAY, "y": 365.25 * _DAY}
_DAY_AND_MONTH = re.compile(
    r"(\d{1,2})([/.-])(\d{1,2})\2(\d{4}|\d{2})(?:[ T](\d\d?:\d\d)(:\d\d)?( [AP]M)?)?"
)


def unix_seconds(
    series: pl.Series, place: Place = row_place, form: str | None = None, *, exact: bool = False
) -> pl.Series:
    """Return times as a column of Int64: seconds since 1970-01-01 UTC.

    Dates and datetimes are converted; without an offset they are in UTC. Texts are ISO 8601 dates
    and times, also as databases write them (``2025-06-09 03:52:05.123+02``, ``... UTC``,
    ``20250609``), or numbers. Numbers are seconds, or milli-, micro- or nanoseconds where the
    column's largest is above 1e11, 1e14 or 1e17; numbers such as 20250609 are dates. Fractions of a
    second are dropped; with `exact`, a column that has some is of Float64. A `form` says how all
    are written: "%m/%d/%Y %H:%M", or the unit of numbers, one of "s", "ms", "us" and "ns"; times
    such as 2025-06-09T03:52:05Z are read next to any.

    Raises
    ------
    DataError
        If a time is missing or cannot be read.
    """
    seconds = seconds_or_null(series, form, exact=exact)
    if seconds.null_count():
        row = seconds.is_null().arg_max() or 0
        raise DataError(f"{place(row)}: {time_problem(series[row], form)}")
    return seconds


def seconds_or_null(
    series: pl.Series, form: str | None = None, *, exact: bool = False
) -> pl.Series:
    """Return a column of times as Int64 seconds, null where a time is missing or unreadable.

    With `exact`, a column with fractions of a second is of Float64.

    Raises
    ------
    DataError
        If times cannot have the type of the column.
    """
    seconds = _exact_seconds(series, form)
    return seconds if exact or not seconds.dtype.is_float() else seconds.floor().cast(pl.Int64)


def epoch_seconds(times: pl.Series) -> pl.Series:
    """Return dates or datetimes as Int64 seconds, or Float64 if there are fractions of a second."""
    if isinstance(times.dtype, pl.Datetime):
        return _divided(times.to_physical(), _TICKS[times.dtype.time_unit])
    return times.dt.epoch("s")


def _divided(ticks: pl.Series, per_second: int) -> pl.Series:
    """Return ticks as Int64 seconds, or Float64 if there are fractions of a second."""
    if per_second == 1 and not ticks.dtype.is_float():
        return ticks.cast(pl.Int64, strict=False)
    whole = ticks // per_second
    rest = ticks - whole * per_second
    whole = whole.cast(pl.Int64, strict=False)
    return whole + rest / per_second if (rest != 0).any() else whole


def _exact_seconds(series: pl.Series, form: str | None) -> pl.Series:
    dtype = series.dtype
    if dtype == pl.Date or isinstance(dtype, pl.Datetime):
        return epoch_seconds(series)
    if not (dtype.is_numeric() or dtype in (pl.String, pl.Null)):
        raise DataError(f"Times must be numbers, dates or ISO 8601 strings; got {dtype} values.")
    if form is not None and form not in _TICKS:
        texts = series.cast(pl.String).str.strip_chars()
        try:
            seconds = epoch_seconds(texts.str.to_datetime(form, time_unit="us", strict=False))
        except pl.exceptions.PolarsError:  # such as a format without a year
            seconds = pl.Series(series.name, [None], dtype=pl.Int64).new_from_index(0, len(series))
        if seconds.null_count():
            logged = epoch_seconds(texts.str.to_datetime(_LOGGED, time_unit="us", strict=False))
            seconds = pl.select(pl.coalesce(seconds, logged)).to_series()
        return seconds
    if dtype == pl.String:
        numbers = series.str.strip_chars().cast(pl.Float64, strict=False).fill_nan(None)
        n_numbers = len(numbers) - numbers.null_count()
        if not n_numbers or 2 * n_numbers < len(series) - int((series.fill_null("") == "").sum()):
            return _iso_seconds(series)
        exact = series.str.strip_chars().cast(pl.Int64, strict=False)
        series = exact if exact.null_count() == numbers.null_count() else numbers
    return _number_seconds(series, form)


def _iso_seconds(texts: pl.Series) -> pl.Series:
    """Return ISO 8601 dates and times as seconds, null where a text is none."""

    def parsed(texts: pl.Series) -> pl.Series:
        found = pl.Series(texts.name, [None], dtype=pl.Int64).new_from_index(0, len(texts))
        likely = iso_format(texts.head(1).to_list())
        for form in sorted(_ISO_FORMATS, key=lambda form: form != likely):
            if found.null_count() == texts.null_count():
                break
            times = texts.str.to_datetime(form, time_unit="us", strict=False)
            found = found.zip_with(found.is_not_null(), times.to_physical())
        early = (found < YEAR_1000 * 10**6).fill_null(False)
        if early.any():
            found = found.set(early & ~texts.str.contains(r"^\d{4}").fill_null(True), None)
        return _divided(found, 10**6)

    texts = texts.str.strip_chars()
    if not parsed(texts.head(_SAMPLE)).null_count():
        seconds = parsed(texts)
        if not seconds.null_count():
            return seconds
    plain = (
        texts.str.replace(r"^(\d{4})/(\d\d?)/(\d\d?)", "$1-$2-$3")
        .str.replace(r"^([\d-]+)[Tt]", "$1 ")
        .str.replace(r"\s*(?:UTC|GMT|[Zz])$", "+00")
        .str.replace(r"(:\d\d),(\d+)", "$1.$2")
        .str.replace(r"\s+([+-]\d\d:?(?:\d\d)?)$", "$1")
    )
    return parsed(plain)


def iso_format(texts: Sequence[str | None]) -> str | None:
    """Return an ISO 8601 format that fits all texts, in the notation of polars, or None.

    Examples
    --------
    >>> iso_format(["2025-06-09 03:52:05+00", "2025-06-10 00:00:00+00"])
    '%Y-%m-%d %H:%M:%S%.f%#z'
    """
    column = pl.Series(texts, dtype=pl.String)
    for form in _ISO_FORMATS:
        times = column.str.to_datetime(form, time_unit="us", strict=False)
        if len(times) and not times.null_count():
            return form
    return None


def _number_seconds(numbers: pl.Series, unit: str | None = None) -> pl.Series:
    """Return numeric times as seconds; the largest magnitude tells the unit."""
    if numbers.dtype.is_decimal():
        numbers = numbers.cast(pl.Float64)
    if numbers.dtype.is_float():
        numbers = numbers.set(~numbers.is_finite(), None)
    low, high = float(numbers.min() or 0), float(numbers.max() or 0)  # type: ignore[arg-type]
    if unit is None:
        for first, last, form in _BASIC:
            if first <= low and high <= last:
                dates = seconds_or_null(numbers.cast(pl.Int64), form)
                if len(dates) - dates.null_count() >= _MOSTLY * (len(dates) - numbers.null_count()):
                    return dates
        largest = max(abs(low), abs(high))
        per_second = next((ticks for limit, ticks in _UNITS if largest > limit), 1)
    else:
        per_second = _TICKS[unit]
    return _divided(numbers, per_second)


def time_problem(value: object, form: str | None = None) -> str:
    """Return a sentence on why a value cannot be read as a time, and how to give its format."""
    shown = repr(shortened(value)) if isinstance(value, str) else repr(value)
    if value is None or str(value).strip() in MISSING_IDS:
        return "the time is missing."
    if form is not None:
        return f"time {shown} does not have the format {form!r}."
    if isinstance(value, str) and is_time(value):
        is_number = re.fullmatch(r"\s*[-+.\d]+\s*", value) and "-" not in value.strip()[1:]
        kinds = ("number", "dates") if is_number else ("date", "numbers")
        return f"time {shown} is a {kinds[0]}, but other times are {kinds[1]}; choose one form."
    if found := _DAY_AND_MONTH.match(str(value).strip()):
        first, mark, second, year, minutes, seconds, half = found.groups()
        rest = f"{mark}{'%Y' if len(year) == 4 else '%y'}"
        rest += (" %I:%M" if half else " %H:%M") * bool(minutes)
        rest += ":%S" * bool(seconds) + " %p" * bool(half)
        pairs = ((f"%m{mark}%d", first), (f"%d{mark}%m", second))
        forms = [f"'{days}{rest}'" for days, month in pairs if int(month) <= _MONTHS]
        both = "may be of either order of day and month" if len(forms) > 1 else "is not ISO 8601"
        return f"time {shown} {both}; add --time-format {' or '.join(forms)}."
    return (
        f"time {shown} is neither a number nor an ISO 8601 date, such as 2024-01-31; "
        "--time-format reads others."
    )


def is_time(value: object, form: str | None = None) -> bool:
    """Return whether a single value can be read as a time."""
    try:
        return not seconds_or_null(pl.Series([value]), form).null_count()
    except (DataError, TypeError, OverflowError, pl.exceptions.PolarsError):
        return False


def check_time_format(form: str) -> str:
    """Return a format of times in the notation of polars.

    Raises
    ------
    DataError
        If `form` is neither a unit nor contains a %.
    """
    if form in _TICKS:
        return form
    if "%" not in form:
        raise DataError(
            "The format of times must be s, ms, us or ns, or have the parts of a date, such as "
            f"%m/%d/%Y %H:%M; got {form!r}."
        )
    return form.replace(".%f", "%.f")  # Python's notation of fractions of a second


def shown_time(seconds: int, *, day: bool = False) -> str:
    """Format a time, or its day, in UTC; in seconds if the year is out of Python's range.

    Examples
    --------
    >>> shown_time(86400), shown_time(86400, day=True), shown_time(10**17)
    ('1970-01-02 00:00:00 UTC', '1970-01-02', '100000000000000000 s after 1970')
    """
    try:
        found = datetime(1970, 1, 1) + timedelta(seconds=int(seconds))
    except OverflowError:
        return f"{seconds} s after 1970"
    return found.date().isoformat() if day else f"{found} UTC"


def moment(value: Moment, what: str) -> int:
    """Convert a point in time to seconds since 1970; `what` is its name in messages.

    A date, month or year means its beginning in UTC.

    Examples
    --------
    >>> moment("2024-02", "since") == moment("2024-02-01T00:00Z", "since")
    True

    Raises
    ------
    DataError
        If the value cannot be read.
    """
    text = str(value).strip()
    if re.fullmatch(r"\d{4}(-\d\d)?", text) and isinstance(value, str):
        value = f"{text}-01" if "-" in text else f"{text}-01-01"
    if isinstance(value, bool) or not is_time(value):
        raise DataError(f"{what} must be a date or time, such as 2024-01-31; got {value!r}.")
    return int(seconds_or_null(pl.Series([value]))[0])


def duration(value: str | float, what: str) -> float:
    """Convert a duration to seconds; `what` is its name in messages.

    Examples
    --------
    >>> duration("2w", "half_life") == duration("14d", "half_life") == 14 * 86400
    True

    Raises
    ------
    DataError
        If the value is not a positive number of seconds (s), hours (h), days (d), weeks (w) or
        years (y).
    """
    found = re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*([shdwy])\s*", str(value))
    seconds = 0.0
    if found:
        seconds = float(found[1]) * _DURATIONS[found[2]]
    elif isinstance(value, int | float) and not isinstance(value, bool):
        seconds = float(value)
    if not 0 < seconds < float("inf"):
        raise DataError(
            f"{what} must be a duration in s, h, d, w or y, such as 30d; got {value!r}."
        )
    return seconds

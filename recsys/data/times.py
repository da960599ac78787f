"""Times in seconds: columns of times, points in time and durations."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import date, datetime, timedelta
from typing import NamedTuple, TypeAlias

import numpy as np
import polars as pl

from recsys.data.ids import MISSING_IDS, Place, row_place
from recsys.data.time_units import (
    FOREVER,
    UNITS,
    Tally,
    Unit,
    divided,
    range_of,
    sure_unit,
    units_of,
    usual_unit,
)
from recsys.errors import DataError, is_number
from recsys.messages import shortened

Moment: TypeAlias = "str | int | date | datetime"
"""A point in time: a date or datetime, also as a string, or seconds since 1970."""

# With %#z, an offset may be written +02, +0200 or +02:00.
_ISO_FORMATS = (
    "%Y-%m-%d",
    "%Y-%m-%d %H:%M:%S%.f",
    "%Y-%m-%d %H:%M:%S%.f%#z",
    "%Y-%m-%d %H:%M",
    "%Y-%m-%d %H:%M%#z",
    "%Y%m%d",
    "%Y%m%d %H%M%S%.f",
    "%Y%m%d %H%M%S%.f%#z",
    "%a %b %d %H:%M:%S %z %Y",  # Twitter and Goodreads, with the month as a word
)
_LOGGED = "%Y-%m-%dT%H:%M:%S%.fZ"  # of events of `recsys serve`, whatever the format of others
_SAMPLE = 100
YEAR_1000 = -30_610_224_000
"""Start of the year 1000. Earlier: polars reads "31-12-24" as the year 31."""

_DAY = 86400
_YEAR_DIGITS = 4
_FEW_DATES = 0.01  # share of dates that may contradict the others
_DAYS = 100_000  # smaller integers would be days of Excel in a column of times
_DURATIONS = {
    "s": 1.0,
    "min": 60.0,
    "h": 3600.0,
    "d": _DAY,
    "w": 7.0 * _DAY,
    "y": 365.25 * _DAY,
}
_ISO_FORM = re.compile(r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d[\d:.]*(?:Z|[+-]\d\d:?\d\d)?)?")
_DAY_AND_MONTH = re.compile(r"\d\d?([/.-])\d\d?\1(\d{4}|\d\d)(?!\d)")
_YEAR_LAST = r"^\d\d?[./-]\d\d?[./-]\d{4}"
_CLOCKS = (
    "",
    " %H:%M",
    " %H:%M:%S%.f",
    " %I:%M %p",
    " %I:%M:%S %p",
    ", %H:%M",
    ", %H:%M:%S",
    ", %I:%M:%S %p",  # of browsers
)
_NAMED_MONTHS = (
    "%d-%b-%Y",
    "%d %b %Y",
    "%d %B %Y",
    "%b %d, %Y",
    "%B %d, %Y",
    "%d-%b-%y",
    "%d %b %y",  # of Oracle
)
# Each format starts with a digit, or with a day or month in words, and has three digits.
_LIKE_TIME = (
    r"(?is)^[+-]?(?:inf|(?:\d|mon|tue|wed|thu|fri|sat|sun"
    r"|jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec).*\d.*\d)"
)
_ENDLESS = r"(?i)^[+-]?inf(?:inity)?$"  # of PostgreSQL
_NO_DATE = r"^0000-00-00"  # of MySQL


def unix_seconds(
    series: pl.Series, form: str | None = None, *, exact: bool = False
) -> pl.Series:
    """Return times as a column of Int64: seconds since 1970-01-01 UTC.

    Dates and datetimes are converted; without an offset they are in UTC. Texts are ISO 8601 dates
    and times, also as databases write them (``2025-06-09 03:52:05.123+02``, ``... UTC``,
    ``20250609``); dates such as ``18.10.2025`` if some day above 12 tells the order of days and
    months; or numbers. The unit of numbers follows from their size: seconds, milli-, micro- or
    nanoseconds, days of Excel, ticks of .NET, file times of Windows, or dates such as 20250609.
    Fractions of a second are dropped; with `exact`, a column that has some is of Float64. A `form`
    says how all are written: "%m/%d/%Y %H:%M", or the unit of numbers, one of "s", "ms", "us",
    "ns", "min", "h" and "d" (since 1970), "excel", "ticks" and "filetime"; times such
    as 2025-06-09T03:52:05Z are read next to any.

    Raises
    ------
    DataError
        If a time is missing or cannot be read, or numbers are of two units.
    """
    seconds = seconds_or_null(series, form, exact=exact)
    if seconds.null_count():
        row = seconds.is_null().arg_max() or 0
        raise DataError(f"{row_place(row)}: {time_problem(series[row], form, series)}")
    return seconds


class Timed(NamedTuple):
    """Times in exact seconds, and the unit of the numbers they were; None for dates."""

    seconds: pl.Series
    unit: Unit | None = None


def seconds_or_null(
    series: pl.Series, form: str | None = None, *, exact: bool = False
) -> pl.Series:
    """Return times as Int64 seconds, null where one is missing or unreadable.

    With `exact`, a column with fractions of a second is of Float64.

    Raises
    ------
    DataError
        If times cannot have the type of the column, or numbers are of two units.
    """
    seconds = timed(series, form=form).seconds
    if exact or not seconds.dtype.is_float():
        return seconds
    return seconds.floor().cast(pl.Int64)


def epoch_seconds(times: pl.Series) -> pl.Series:
    """Return dates or datetimes as Int64 seconds, or Float64 if some have fractions."""
    if isinstance(times.dtype, pl.Datetime):
        per_second = UNITS[times.dtype.time_unit].per_second
        return divided(times.to_physical(), int(per_second))
    return times.to_physical().cast(pl.Int64) * _DAY


def timed(
    series: pl.Series,
    place: Place = row_place,
    form: str | None = None,
) -> Timed:
    """Return times in exact seconds, null if missing or unreadable, and their unit.

    Raises
    ------
    DataError
        As `seconds_or_null`.
    """
    dtype = series.dtype
    if dtype == pl.Date or isinstance(dtype, pl.Datetime):
        return Timed(epoch_seconds(series))
    if not (dtype.is_numeric() or dtype in (pl.String, pl.Null)):
        raise DataError(
            f"Times must be numbers, dates or ISO 8601 strings; got {dtype} values."
        )
    if form is not None and form not in UNITS:
        return Timed(_formatted_seconds(series, form))
    if dtype == pl.String:
        numbers = series.str.strip_chars().cast(pl.Float64, strict=False).fill_nan(None)
        n_numbers = int(numbers.is_finite().sum())
        # "infinity" is a number, and a time of PostgreSQL, so it does not decide.
        n_others = len(series) - int(numbers.is_infinite().sum()) - n_numbers
        n_others -= int((series.fill_null("") == "").sum())
        if n_numbers < max(n_others, 1):
            return Timed(_iso_seconds(series))
        # Float64 has 53 bits: nanoseconds since 1970 would be rounded.
        integers = series.str.strip_chars().cast(pl.Int64, strict=False)
        series = integers if integers.null_count() == numbers.null_count() else numbers
    numbers = _plain_numbers(series)
    unit = _unit(numbers, place) if form is None else UNITS[form]
    return Timed(unit.seconds(numbers), unit)


def _formatted_seconds(series: pl.Series, form: str) -> pl.Series:
    """Return times in a format as seconds, null where a text has another one."""
    texts = series.cast(pl.String).str.strip_chars()
    try:
        seconds = epoch_seconds(
            texts.str.to_datetime(form, time_unit="us", strict=False)
        )
    except pl.exceptions.PolarsError:  # such as a format without a year
        seconds = _nulls(series)
    if seconds.null_count():
        logged = epoch_seconds(
            texts.str.to_datetime(_LOGGED, time_unit="us", strict=False)
        )
        seconds = pl.select(
            pl.coalesce(seconds, logged, _endless_seconds(texts))
        ).to_series()
    return seconds


def _nulls(series: pl.Series) -> pl.Series:
    """Return as many nulls, as Int64."""
    return pl.Series(series.name, [None], dtype=pl.Int64).new_from_index(0, len(series))


def _iso_seconds(texts: pl.Series) -> pl.Series:
    """Return dates and times in words as seconds, null where a text cannot be read."""

    def parsed(texts: pl.Series) -> pl.Series:
        microseconds = _nulls(texts)
        # Most columns have one format: tried first, it saves parsing with the others.
        likely = iso_format(texts.head(1).to_list())
        for form in sorted(_ISO_FORMATS, key=lambda form: form != likely):
            if microseconds.null_count() == texts.null_count():
                break
            times = texts.str.to_datetime(form, time_unit="us", strict=False)
            microseconds = microseconds.zip_with(
                microseconds.is_not_null(), times.to_physical()
            )
        early = (microseconds < YEAR_1000 * 10**6).fill_null(False)
        if early.any():
            microseconds = microseconds.set(
                early & ~texts.str.contains(r"^\d{4}").fill_null(True), None
            )
        return divided(microseconds, 10**6)

    texts = texts.str.strip_chars()
    # Trying all formats takes fifty times as long as seeing that words fit none.
    if not texts.str.contains(_LIKE_TIME).any():
        return _nulls(texts)
    # A few texts tell whether the column can do without the slower cleaning.
    if not parsed(texts.head(_SAMPLE)).null_count():
        seconds = parsed(texts)
        if not seconds.null_count():
            return seconds
    cleaned = (
        texts.str.replace(r"^(\d{4})/(\d\d?)/(\d\d?)", "$1-$2-$3")
        .str.replace(r"^([\d-]+)[Tt]", "$1 ")
        .str.replace(r"\s*(?:UTC|GMT|[Zz])$", "+00")
        # ISO 8601 also allows a comma before the fraction.
        .str.replace(r"(:\d\d),(\d+)", "$1.$2")
        .str.replace(r"\s+([+-]\d\d:?(?:\d\d)?)$", "$1")
    )
    seconds = parsed(cleaned)
    if seconds.null_count() > texts.null_count():
        unread = texts.set(seconds.is_not_null(), None)
        ordered = _ordered_seconds(unread)
        endless = _endless_seconds(unread)
        seconds = pl.select(pl.coalesce(seconds, ordered, endless)).to_series()
    return seconds


def _ordered_seconds(texts: pl.Series) -> pl.Series:
    """Return dates with the year at the end as seconds, null without an order.

    A day above 12 tells the order of days and months of all dates with the same mark.
    Months may also be names.
    """
    dates: list[str] = []
    if texts.str.contains("[A-Za-z]{3}").any():
        dates += _NAMED_MONTHS
    for mark in ".-/":
        if texts.str.contains(mark, literal=True).any():
            orders = _orders(texts, mark)
            if len(orders) == 1:
                dates += orders
    parsed = [_seconds_of(texts, date) for date in dates]
    return pl.select(pl.coalesce(_nulls(texts), *parsed)).to_series()


def _orders(texts: pl.Series, mark: str) -> list[str]:
    """Return the formats in which dates with a mark and the year at the end can be read.

    There is none if the days above 12 of more than a few dates contradict the others.
    """
    texts = texts.set(~texts.str.contains(_YEAR_LAST), None)
    forms = (f"%d{mark}%m{mark}%Y", f"%m{mark}%d{mark}%Y")
    day_first, month_first = (_seconds_of(texts, form).is_not_null() for form in forms)
    n_day_first = int((day_first & ~month_first).sum())
    n_month_first = int((month_first & ~day_first).sum())
    if not (day_first | month_first).any():
        return []
    few = _FEW_DATES * (n_day_first + n_month_first)
    against = (n_month_first, n_day_first)
    return [form for form, n in zip(forms, against, strict=True) if n <= few]


def _seconds_of(texts: pl.Series, date: str) -> pl.Series:
    """Return texts of a form of dates, perhaps with a time of day, as seconds, else null."""
    seconds = _nulls(texts)
    for clock in _CLOCKS:
        if seconds.null_count() > texts.null_count():
            times = texts.str.to_datetime(date + clock, time_unit="us", strict=False)
            parsed = divided(times.to_physical(), 10**6)
            parsed = parsed.set(parsed < YEAR_1000, None)
            seconds = pl.select(pl.coalesce(seconds, parsed)).to_series()
    return seconds


def _endless_seconds(texts: pl.Series) -> pl.Series:
    """Return infinity and dates of zeros as `FOREVER` or `-FOREVER`, else null."""
    early = texts.str.starts_with("-") | texts.str.contains(_NO_DATE)
    endless = texts.str.contains(_ENDLESS) | texts.str.contains(_NO_DATE)
    seconds = pl.select(
        pl.when(early).then(-FOREVER).when(endless).then(FOREVER)
    ).to_series()
    return seconds.set(~endless.fill_null(False), None)


def order_problem(times: pl.Series) -> str | None:
    """Return a sentence on dates whose order of day and month is not known, or None."""
    if times.dtype != pl.String:
        return None
    texts = times.str.strip_chars()
    dates = texts.filter(texts.str.contains(_YEAR_LAST).fill_null(False))
    for mark in "./-":
        marked = dates.filter(dates.str.contains(mark, literal=True))
        if len(marked) and len(_orders(marked, mark)) != 1:
            return time_problem(marked[0], None, marked).rstrip(".")
    return None


def may_be_time(value: object, form: str | None = None) -> bool:
    """Return whether a value is a time, or is one if its column tells the order."""
    has_order = form is None and _DAY_AND_MONTH.match(str(value).strip())
    return bool(has_order) or is_time(value, form)


def iso_format(texts: Sequence[str | None]) -> str | None:
    """Return an ISO 8601 format of polars that fits all texts, or None.

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


def _plain_numbers(numbers: pl.Series) -> pl.Series:
    """Return numeric times as Int64 or Float64, null where a number is none of them."""
    if numbers.dtype.is_integer():
        return numbers.cast(pl.Int64, strict=False)
    return numbers.cast(pl.Float64).fill_nan(None)


def _unit(numbers: pl.Series, place: Place) -> Unit:
    """Return the unit of numeric times.

    Raises
    ------
    DataError
        If some are modern times in one unit, and some in another.
    """
    low, high = float(numbers.min() or 0), float(numbers.max() or 0)  # type: ignore[arg-type]
    if (unit := sure_unit(low, high)) is not None:
        return unit
    tally = Tally.of(numbers)

    def valid(unit: Unit) -> float:
        within = numbers.filter(numbers.is_between(*range_of(unit)))
        return 1 - unit.seconds(within).null_count() / len(within)

    units = units_of(tally.counts, valid)
    if len(units) < 2:
        return next(iter(units), usual_unit(max(abs(low), abs(high))))
    rows = {unit: min(tally.rows[group] for group in units[unit]) for unit in units}
    examples = [
        _shown_number(numbers, rows[unit], unit, place) for unit in [*units][:2]
    ]
    raise DataError(two_units_problem(units, examples))


def _shown_number(
    numbers: pl.Series,
    row: int,
    unit: Unit,
    place: Place,
) -> str:
    """Return a number with its meaning in a unit and its place."""
    seconds = int(unit.seconds(numbers.slice(row, 1)).floor().cast(pl.Int64)[0])
    number = numbers[row]
    number = int(number) if number == int(number) else number
    return f"{number} in {unit.noun} ({place(row)}: {shown_time(seconds)})"


def two_units_problem(units: Iterable[Unit], shown: Sequence[str]) -> str:
    """Return a sentence on numeric times of two units, and how to give one."""
    names = [unit.name or unit.form for unit in units]
    cure = f"--time-format {' or '.join(names)} reads all as one of them"
    return (
        f"The times are numbers of two units: {shown[1]}, and {shown[0]}. Write all in one unit; "
        f"{cure}."
    )


def time_problem(
    value: object,
    form: str | None = None,
    times: pl.Series | None = None,
) -> str:
    """Return why a value cannot be read as a time, and how to give its format.

    `times` is the column that has the value.
    """
    quoted_value = repr(shortened(value)) if isinstance(value, str) else repr(value)
    if value is None or str(value).strip() in MISSING_IDS:
        return "the time is missing."
    if form is not None:
        return f"time {quoted_value} does not have the format {form!r}."
    if isinstance(value, str):
        text = value.strip()
        problem = _date_problem(text, times)
        if problem is not None:
            return f"time {quoted_value} {problem}"
        if is_time(text):
            is_number = re.fullmatch(r"[-+.\d]+", text) and "-" not in text[1:]
            kinds = ("number", "dates") if is_number else ("date", "numbers")
            return (
                f"time {quoted_value} is a {kinds[0]}, but other times are {kinds[1]}; "
                "choose one form."
            )
        if _ISO_FORM.fullmatch(text):
            return f"time {quoted_value} does not exist."
    return (
        f"time {quoted_value} is neither a number nor an ISO 8601 date, such as 2024-01-31; "
        "--time-format reads others."
    )


def _date_problem(text: str, times: pl.Series | None) -> str | None:
    """Return why a date with its year at the end cannot be read, or None if it is none."""
    match = _DAY_AND_MONTH.match(text)
    if match is None:
        return None
    mark, year = match.groups()
    column = pl.Series([text])
    if times is not None and times.dtype == pl.String and len(year) == _YEAR_DIGITS:
        orders_of_text = _orders(column, mark)
        orders = _orders(times.str.strip_chars(), mark)
        if orders_of_text and not set(orders_of_text) & set(orders):
            return (
                "has another order of day and month than other times; choose one form."
            )
        if orders_of_text and len(orders) == 1:
            return "is a date, but other times are numbers; choose one form."
    year_form = "%Y" if len(year) == _YEAR_DIGITS else "%y"
    dates = [f"%m{mark}%d{mark}{year_form}", f"%d{mark}%m{mark}{year_form}"]
    # Years of the future are days.
    may_be_year = text.split(mark)[0] <= f"{datetime.now():%y}"
    if mark == "-" and year_form == "%y" and may_be_year:
        dates.append("%y-%m-%d")
    forms = [
        f"'{date}{clock}'"
        for date in dates
        for clock in _CLOCKS
        if is_time(text, f"{date}{clock}")
    ]
    if not forms:
        return None
    both = "is not ISO 8601"
    if len(forms) > 1:
        both = "may be of either order of day and month"
    listed = " or ".join(forms).replace("%.f", "")
    return f"{both}; add --time-format {listed}."


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
    if form in UNITS:
        return form
    if "%" not in form:
        raise DataError(
            f"The format of times must be {', '.join(UNITS)}, or have the parts of a date, such "
            f"as %m/%d/%Y %H:%M; got {form!r}."
        )
    return form.replace(".%f", "%.f")  # Python's notation of fractions of a second


def shown_time(seconds: int, *, day: bool = False) -> str:
    """Format a time, or its day, in UTC; in seconds for years that Python lacks.

    Examples
    --------
    >>> shown_time(86400), shown_time(86400, day=True), shown_time(10**17)
    ('1970-01-02 00:00:00 UTC', '1970-01-02', '100000000000000000 s after 1970')
    """
    try:
        moment = datetime(1970, 1, 1) + timedelta(seconds=int(seconds))
    except OverflowError:
        return f"{seconds} s after 1970"
    return moment.date().isoformat() if day else f"{moment} UTC"


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
    if isinstance(value, np.generic):
        value = value.item()
    text = str(value).strip()
    if re.fullmatch(r"\d{4}(-\d\d)?", text) and isinstance(value, str):
        value = f"{text}-01" if "-" in text else f"{text}-01-01"
    is_small = isinstance(value, int) and abs(value) < _DAYS
    form = "s" if is_small else None
    if isinstance(value, bool) or not is_time(value, form):
        raise DataError(
            f"{what} must be a date or time, such as 2024-01-31; got {value!r}."
        )
    return int(seconds_or_null(pl.Series([value]), form)[0])


def duration(value: str | float, what: str) -> float:
    """Convert a duration to seconds; `what` is its name in messages.

    Examples
    --------
    >>> duration("2w", "half_life") == duration("14d", "half_life") == 14 * 86400
    True

    Raises
    ------
    DataError
        If the value is not a positive number of seconds (s), minutes (min), hours (h), days
        (d), weeks (w) or years (y).
    """
    if isinstance(value, np.generic):
        value = value.item()
    match = re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*(s|min|h|d|w|y)\s*", str(value))
    seconds = 0.0
    if match:
        seconds = float(match[1]) * _DURATIONS[match[2]]
    elif is_number(value):
        seconds = float(value)
    if not 0 < seconds < float("inf"):
        raise DataError(
            f"{what} must be a duration in s, min, h, d, w or y, such as 30d; got {value!r}."
        )
    return seconds

"""Age of events: the present time, and dates in the future or that mean "never"."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray

from recsys.data.arrays import Mask
from recsys.data.ids import Place
from recsys.data.time_units import UNITS, sure_unit
from recsys.data.times import Moment, is_time, moment, shown_time
from recsys.errors import DataError
from recsys.messages import counted

Seconds: TypeAlias = NDArray[np.number]
DAY = 86400
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FADED = 10
"""Number of half-lives after which an interaction hardly counts: a thousandth."""
TOLERANCE = DAY
"""Seconds after the present time that an event may have, for clocks and time zones."""

_NAMED = 3  # maximum number of rows to name
NEARLY_ALL = 0.95
"""Share of the rows that may not be left out because of their times."""
FUTURE = "after the present time left out"
MEANT_NEVER = 'left out whose time means "never"'
EARLY = "before 1990"
_YEARS = 1900, 2100
_MONTHS = 12
_FEW_EVENTS = 10
_RARE = 12  # of so many times of day, at most one is midnight
_MOST_SAMPLED = 1 << 20
_BULK = (0.05, 0.95)  # quantiles between which events are counted as usual
_SPARSE = 0.1  # of the usual number of events in a time of the same length
# largest offset of a time zone: midnight may be written in any of them
ZONES = 14 * 3600
QUARTER = 900  # offsets of time zones are multiples of a quarter of an hour


def _midnight(
    year: int,
    month: int,
    day: int,
) -> int:
    """Return the seconds at which a date begins in UTC."""
    return int(datetime(year, month, day, tzinfo=UTC).timestamp())


# Dates that programs store for "none" or "never", all earlier than the present.
NEVER = (
    _midnight(1, 1, 1),  # .NET, Java, Go
    _midnight(1601, 1, 1),  # zero of Windows
    _midnight(1753, 1, 1),  # the first of SQL Server
    _midnight(1899, 12, 30),  # zero of Excel, Access and Delphi
    _midnight(1899, 12, 31),
    _midnight(1900, 1, 1),  # zero of SQL Server
    0,  # 1970-01-01
)
YEAR_1 = NEVER[0] - ZONES
_YEAR_10000 = _midnight(9999, 12, 31) + DAY
_YEAR_2100 = _midnight(2100, 1, 1)
YEAR_2999 = _midnight(2999, 1, 1)  # later times mean "never", too
MODERN = _midnight(1990, 1, 1)
INFINITE = -9e12  # -infinity of PostgreSQL, which has microseconds, is earlier
# What functions of C return for an error, and the least times in 32 bits and in nanoseconds.
LIMITS = (-1.0, -(2.0**31), -9_223_372_036.85)


def means_never(seconds: Seconds) -> Mask:
    """Return which times are dates of the past that programs store for "never".

    Such a date may be midnight in another time zone: 1970-01-01 01:00:00 is one, too.
    """
    early = np.flatnonzero(seconds < MODERN)
    times = seconds[early].astype(np.float64)
    stored = times < YEAR_1
    for limit in LIMITS:
        stored |= np.abs(times - limit) < 0.5
    for date in NEVER:
        distance = np.abs(times - date)
        stored |= (distance <= ZONES) & (distance % QUARTER == 0)
    never = np.zeros(len(seconds), np.bool_)
    never[early] = stored
    return never


def present(as_of: Moment | None = None) -> int:
    """Return the present time, or the one in its place, in seconds since 1970.

    Raises
    ------
    DataError
        If `as_of` is not a time of the years 1 to 9999.
    """
    if as_of is None:
        return int(time.time())
    seconds = moment(as_of, "as_of")
    if not NEVER[0] <= seconds < _YEAR_10000:
        raise DataError(
            f"as_of must be a date or time, such as 2024-01-31; got {as_of!r}."
        )
    return seconds


def iso_time(seconds: int) -> str:
    """Return a time of the years 1 to 9999 in ISO 8601, which `present` reads."""
    return (_EPOCH + timedelta(seconds=seconds)).isoformat(timespec="seconds")


def event_time_problem(seconds: float, now: float | None = None) -> str | None:
    """Return a sentence on why an event cannot have a time, or None if it can.

    `now` is the present time if it is None. Readers leave such events out.

    Examples
    --------
    >>> event_time_problem(1_749_441_125)
    >>> event_time_problem(1_749_441_125, now=1_698_796_800)
    'the time 2025-06-09 03:52:05 UTC is more than a day after the present time, 2023-11-01.'
    >>> event_time_problem(0)
    'the time 1970-01-01 means "never"; leave it out if the time is unknown.'
    """
    reference = present() if now is None else now
    if np.isnan(seconds):
        return "the time is not a number."
    if seconds > reference + TOLERANCE:
        return (
            f"the time {short_time(seconds)} is more than a day after the present time, "
            f"{short_time(reference)}."
        )
    if means_never(np.array([seconds], np.float64))[0]:
        return f'the time {short_time(seconds)} means "never"; leave it out if the time is unknown.'
    return None


@dataclass(frozen=True, slots=True)
class Dated:
    """Times of events, judged: the rows to keep (None: all), and remarks."""

    kept: Mask | None
    remarks: list[str]


def are_times(values: Iterable[object]) -> bool:
    """Return whether values are dates, or whole numbers that are times since 1990.

    Examples
    --------
    >>> are_times(["1700000000", "1700086400"]), are_times(["2025-06-09"])
    (True, True)
    >>> are_times([1700000000, 4])
    False
    """
    cells = (str(value).strip() for value in values if value is not None)
    texts = [cell for cell in cells if cell]
    numbers = pl.Series(texts, dtype=pl.String).cast(pl.Float64, strict=False)
    if numbers.null_count() or not texts:
        return bool(texts) and all(map(is_time, texts))
    times = numbers.to_numpy()
    low = float(times.min())
    unit = sure_unit(low, float(times.max()))
    if unit is None or unit.per_second < 1 or low < MODERN * unit.per_second:
        return False
    return bool((times == np.floor(times)).all())


def are_recent(seconds: Seconds, now: int) -> bool:
    """Return whether all times are from 1990 to the present."""
    return not len(seconds) or bool(
        seconds.min() >= MODERN and seconds.max() <= now + TOLERANCE
    )


def dated(
    seconds: Seconds,
    now: int,
    place: Place,
) -> Dated:
    """Leave out times after the present, and dates that mean "never".

    Times before 1990 are kept, with a remark. `place` returns the place of a row.

    Raises
    ------
    DataError
        If nearly all rows would be left out.
    """
    if are_recent(seconds, now):
        return Dated(None, [])
    late = seconds > now + TOLERANCE
    never = means_never(seconds)
    n_modern = np.count_nonzero(seconds >= MODERN) - np.count_nonzero(late)
    n_others = len(seconds) - np.count_nonzero(late) - np.count_nonzero(never)
    if not n_modern or 2 * n_modern < n_others:
        never[:] = seconds < INFINITE  # in data of 1970, 1970-01-01 is a date
    never |= seconds >= YEAR_2999
    future = late & ~never
    early = (seconds < MODERN) & ~never
    remarks = []
    for rows, noun in ((future, FUTURE), (never, MEANT_NEVER)):
        if rows.any():
            described = _places(np.flatnonzero(rows), seconds, place)
            remarks.append(
                f"{counted(int(np.count_nonzero(rows)), 'row')} {noun} ({described})"
            )
    left_out = future | never
    n_left_out = int(np.count_nonzero(left_out))
    check_left_out(n_left_out, len(seconds), remarks, now)
    if early.any():
        early_rows = np.flatnonzero(early)
        if len(early_rows) < len(seconds) - n_left_out:
            described = _places(early_rows, seconds, place)
            remarks.append(f"{counted(len(early_rows), 'row')} {EARLY} ({described})")
        else:
            remarks.append(
                all_early(
                    int(seconds[early_rows].min()), int(seconds[early_rows].max())
                )
            )
    return Dated(~left_out if n_left_out else None, remarks)


def midnight_remark(seconds: Seconds) -> str:
    """Return a remark on times some of which are dates without a time of day; "" for others.

    Midnight is rare among times of day: of whole hours, it is one in 24.

    Examples
    --------
    >>> midnight_remark(np.array([0, 14 * 3600]))[:29]
    '50% of the times are midnight'
    >>> midnight_remark(np.array([0, 86400]))
    ''
    """
    sample = seconds[:: max(1, len(seconds) // _MOST_SAMPLED)]
    n = len(sample)
    n_midnight = int(np.count_nonzero(sample % DAY == 0))
    if n_midnight == n or n_midnight * _RARE <= n:
        return ""
    return (
        f"{100 * n_midnight / n:.2g}% of the times are midnight, as a date without a time of day "
        "is read: these events come first in their day"
    )


def check_left_out(
    n_left_out: int,
    n: int,
    remarks: Sequence[str],
    now: int,
) -> None:
    """Check that not nearly all rows are left out because of their times.

    Raises
    ------
    DataError
    """
    if n_left_out > NEARLY_ALL * n:
        raise DataError(
            f"{n_left_out:,} of {n:,} rows have no time of the past: {'; '.join(remarks)}. The "
            f"present time is {shown_time(now)}: --as-of DATE (as_of=) sets another one, "
            "--time-format (time_format=) the unit of numbers, and --timestamp-col (timestamp=) "
            "names another column."
        )


def all_early(first: int, last: int) -> str:
    """Return the remark on times that are all before 1990, perhaps by their unit."""
    days = [shown_time(end, day=True) for end in (first, last)]
    period = f"on {days[0]}" if days[0] == days[1] else f"from {days[0]} to {days[1]}"
    advice = "--time-format gives another unit"
    if _YEARS[0] <= first <= last <= _YEARS[1]:
        advice = "--time-format %Y reads the numbers as years"
    for name in ("d", "h", "min"):
        size = round(1 / UNITS[name].per_second)
        if MODERN <= first * size <= last * size < _YEAR_2100:
            noun = UNITS[name].noun
            since = shown_time(first * size, day=True)
            advice = f"--time-format {name} reads the numbers as {noun}, from {since}"
    if _are_months(first, last):
        advice = "--time-format %Y%m reads the numbers as months"
    return f"all times are before 1990, {period}; {advice}"


def _are_months(*numbers: int) -> bool:
    """Return whether numbers may be a year and a month, such as 202403."""
    return all(
        _YEARS[0] <= number // 100 <= _YEARS[1] and 1 <= number % 100 <= _MONTHS
        for number in numbers
    )


def _places(
    rows: NDArray[np.integer],
    seconds: Seconds,
    place: Place,
) -> str:
    """Return the places and times of the first rows."""
    first = [f"{place(int(row))}: {short_time(seconds[row])}" for row in rows[:_NAMED]]
    remainder = [f"and {len(rows) - _NAMED:,} more"] if len(rows) > _NAMED else []
    return "; ".join([*first, *remainder])


def reference_time(seconds: Seconds, now: int) -> float:
    """Return the time from which age counts: the newest up to a day from now.

    Raises
    ------
    DataError
        If nearly all events are later.
    """
    past = seconds[seconds <= now + TOLERANCE]
    n_late = len(seconds) - len(past)
    if n_late > NEARLY_ALL * len(seconds):
        raise DataError(
            f"{n_late:,} of {len(seconds):,} events are later than the present time, "
            f"{shown_time(now)}; --as-of DATE (as_of=) sets another one."
        )
    return float(past.max())


def check_reach(
    seconds: Seconds,
    start: float,
    what: str,
    place: Place,
    *,
    is_fixed: bool = False,
) -> None:
    """Check that a few events far from the others do not drop nearly all.

    Events before `start` are dropped or have hardly any weight, because of `what`, such as
    "--window 180d", which counts from the newest event, or "--since 2025-01-01", which `is_fixed`.
    `place` returns the place of an event.

    Raises
    ------
    DataError
        If nearly all events are dropped, and the others are few (see `_last_dropped`). The message
        names the newest event, and the option that leaves it out.
    """
    last = _last_dropped(seconds, start)
    if last is None:
        return
    newest = int(seconds.argmax())
    event = f"{place(newest)}: {short_time(seconds[newest])}"
    n_left = np.count_nonzero(seconds >= start)
    left = f"{n_left:,} of {counted(len(seconds), 'event')}"
    others = f"the others end at {short_time(last)}"
    if is_fixed:
        raise DataError(
            f"{what} leaves {left} ({event}); {others}. Set an earlier time."
        )
    raise DataError(
        f"{what} counts from the newest event ({event}), and leaves {left}; {others}. If the "
        f"newest event is wrong, --as-of {shown_time(int(last) + DAY, day=True)} (as_of=) leaves "
        "it out; if not, a longer time keeps the others."
    )


def _last_dropped(seconds: Seconds, start: float) -> float | None:
    """Return the time of the last event before `start`, if too few are later.

    They are if they are less than 5% of all, and either ten or less, or less than a tenth of the
    usual number in a time of the same length.
    """
    stays = seconds >= start
    n_stay = int(np.count_nonzero(stays))
    if not n_stay or n_stay > (1 - NEARLY_ALL) * len(seconds):
        return None
    leaving = seconds[~stays]
    if n_stay > _FEW_EVENTS:
        low, high = np.quantile(leaving, _BULK)
        span = max(float(high - low) / (_BULK[1] - _BULK[0]), 1.0)
        share = min(1.0, (float(seconds.max()) - start) / span)
        if n_stay > _SPARSE * share * len(leaving):
            return None
    return float(leaving.max())


def faded_remark(n_users: int, half_life: float) -> str:
    """Return a remark on users whose events are all older than `FADED` half-lives."""
    have = "has" if n_users == 1 else "have"
    days = FADED * half_life / DAY
    return (
        f"{counted(n_users, 'user')} {have} only interactions older than {days:g} days, which "
        "hardly count"
    )


def short_time(seconds: float | np.number) -> str:
    """Format a time in UTC, without midnight; it may be infinite."""
    if seconds >= _YEAR_10000:
        return "after the year 9999"
    if seconds < NEVER[0]:
        return "before the year 1"
    return shown_time(int(np.floor(seconds))).removesuffix(" 00:00:00 UTC")

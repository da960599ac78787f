"""Age of events: the present time, and dates in the future or that mean "never"."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import numpy as np
import numpy.typing as npt

from recsys.data.times import shown_time

DAY = 86400
TOLERANCE = DAY
"""Seconds after the present time that an event may have, for clocks and time zones."""

_ZONES = 14 * 3600  # largest offset of a time zone: midnight may be written in any of them
_QUARTER = 900  # offsets of time zones are multiples of a quarter of an hour


def _midnight(year: int, month: int, day: int) -> int:
    """Return the seconds at which a date begins in UTC."""
    return int(datetime(year, month, day, tzinfo=UTC).timestamp())


# Dates that programs store for "none" or "never", all earlier than the present.
_NEVER = (
    _midnight(1, 1, 1),  # .NET, Java, Go
    _midnight(1601, 1, 1),  # zero of Windows
    _midnight(1753, 1, 1),  # the first of SQL Server
    _midnight(1899, 12, 30),  # zero of Excel, Access and Delphi
    _midnight(1899, 12, 31),
    _midnight(1900, 1, 1),  # zero of SQL Server
    0,  # 1970-01-01
)
_YEAR_1 = _NEVER[0] - _ZONES
_ERROR = -1  # what functions of C return for a time that they cannot tell


def means_never(seconds: npt.NDArray[np.number]) -> npt.NDArray[np.bool_]:
    """Return which times are dates of the past that programs store for "never".

    Such a date may be midnight in another time zone: 1970-01-01 01:00:00 is one, too.
    """
    times = seconds.astype(np.float64)
    never = (times < _YEAR_1) | (times == _ERROR)
    for date in _NEVER:
        distance = np.abs(times - date)
        never |= (distance <= _ZONES) & (distance % _QUARTER == 0)
    return never


def present() -> int:
    """Return the present time in seconds since 1970-01-01 UTC."""
    return int(time.time())


def event_time_problem(seconds: float, now: float | None = None) -> str | None:
    """Return a sentence on why an event cannot have a time, or None if it can.

    `now` is the present time if it is None. Events of which this is said are left out when ratings
    are read.

    Examples
    --------
    >>> event_time_problem(1_749_441_125)
    >>> event_time_problem(1_749_441_125, now=1_700_000_000)  # doctest: +ELLIPSIS
    'the time 2025-06-09 03:52:05 UTC is more than a day after the present time, 2023-11-14 ...'
    >>> event_time_problem(0)
    'the time 1970-01-01 00:00:00 UTC means "never"; leave it out if the time is unknown.'
    """
    reference = present() if now is None else now
    if not seconds <= reference + TOLERANCE:  # not a number, too
        return (
            f"the time {_shown(seconds)} is more than a day after the present time, "
            f"{_shown(reference)}."
        )
    if means_never(np.array([seconds], np.float64))[0]:
        return f'the time {_shown(seconds)} means "never"; leave it out if the time is unknown.'
    return None


def _shown(seconds: float) -> str:
    """Format a time in UTC, without a fraction of a second."""
    return shown_time(int(np.floor(seconds))) if np.isfinite(seconds) else str(seconds)

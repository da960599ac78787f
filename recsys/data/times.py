"""Times: columns of them as seconds since 1970."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

from recsys.data.ids import Place, row_place
from recsys.errors import DataError
from recsys.messages import shortened

__all__ = ["unix_seconds"]

# Magnitudes beyond which a whole column of times is taken for milli-, micro- or nanoseconds:
# in seconds, 1e11 is the year 5138.
_UNITS = ((1e17, 10**9), (1e14, 10**6), (1e11, 10**3))
_FORMATS = ("%Y-%m-%d", "%Y-%m-%d %H:%M:%S%.f", "%Y-%m-%d %H:%M", "%Y-%m-%d %H:%M:%S%.f%z")


def unix_seconds(series: pl.Series, place: Place = row_place) -> npt.NDArray[np.int64]:
    """Return times as int64 seconds since 1970-01-01 UTC.

    Integers are seconds, or milli-, micro- or nanoseconds where the column's largest is above
    1e11, 1e14 or 1e17; strings are such numbers or ISO 8601 dates and times (UTC unless they
    name an offset); dates and datetimes are converted. Fractions of a second are dropped.

    Raises
    ------
    DataError
        If a time is missing or cannot be read.
    """
    seconds = _seconds(series)
    if seconds.null_count():
        row = seconds.is_null().arg_max() or 0
        value = series[row]
        shown = repr(shortened(value)) if isinstance(value, str) else repr(value)
        if value is None or value == "" or value != value:  # NaN
            problem = "the time is missing."
        elif isinstance(value, str) and not _seconds(pl.Series([value])).null_count():
            problem = f"time {shown} is a date, but other times are numbers; choose one form."
        else:
            problem = f"time {shown} is neither a number nor an ISO 8601 date, such as 2024-01-31."
        raise DataError(f"{place(row)}: {problem}")
    return seconds.to_numpy()


def _seconds(series: pl.Series) -> pl.Series:
    """Return a column of times as Int64 seconds, null where it cannot be read."""
    dtype = series.dtype
    if dtype == pl.Date or isinstance(dtype, pl.Datetime):
        return series.dt.epoch("s")
    if dtype == pl.String:
        numbers = series.cast(pl.Float64, strict=False)
        if numbers.null_count() < len(numbers):
            exact = series.cast(pl.Int64, strict=False)
            return _in_seconds(exact if exact.null_count() == numbers.null_count() else numbers)
        text = series.str.strip_chars().str.replace(r"[Tt]", " ").str.replace(r"[Zz]$", "+00:00")
        seconds = pl.Series(series.name, [None], dtype=pl.Int64).new_from_index(0, len(series))
        for form in _FORMATS:
            parsed = text.str.to_datetime(form, time_unit="us", strict=False)
            seconds = seconds.zip_with(seconds.is_not_null(), parsed.dt.epoch("s"))
        return seconds
    if dtype.is_numeric() or dtype == pl.Null:
        return _in_seconds(series)
    raise DataError(f"Times must be numbers, dates or ISO 8601 strings; got {dtype} values.")


def _in_seconds(numbers: pl.Series) -> pl.Series:
    """Return numeric times as Int64 seconds, the unit told by the largest magnitude."""
    if numbers.dtype.is_float():
        numbers = numbers.set(~numbers.is_finite(), None)
    largest = max(abs(float(numbers.max() or 0)), abs(float(numbers.min() or 0)))  # type: ignore[arg-type]
    per_second = next((ticks for limit, ticks in _UNITS if largest > limit), None)
    numbers = numbers if per_second is None else numbers // per_second
    return (numbers.floor() if numbers.dtype.is_float() else numbers).cast(pl.Int64, strict=False)

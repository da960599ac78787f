"""Columns of polars, pandas and Arrow frames as the plain columns that `Ratings` is built of."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl

from recsys.data.ids import Ids, Kind, row_place
from recsys.errors import DataError
from recsys.messages import shortened

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "FrameLike",
    "column",
    "column_names",
    "encode",
    "is_pandas",
    "known_rows",
    "listed",
    "rating_problem",
    "rating_values",
    "to_polars",
    "unix_seconds",
]

Place = Callable[[int], str]


class ArrowStream(Protocol):
    """Any object with the Arrow C stream interface: tables of pyarrow, DuckDB, pandas 2.2, ..."""

    def __arrow_c_stream__(self, requested_schema: object | None = None, /) -> object:
        """Return a capsule with the stream."""
        ...


FrameLike: TypeAlias = "pl.DataFrame | pl.LazyFrame | pd.DataFrame | ArrowStream"
"""Frames that every door takes."""

# Magnitudes beyond which a whole column of times is taken for milli-, micro- or nanoseconds:
# in seconds, 1e11 is the year 5138.
_UNITS = ((1e17, 10**9), (1e14, 10**6), (1e11, 10**3))
_FORMATS = ("%Y-%m-%d", "%Y-%m-%d %H:%M:%S%.f", "%Y-%m-%d %H:%M", "%Y-%m-%d %H:%M:%S%.f%z")
_CHUNK = 1 << 21  # rows encoded at once: bounds the scratch memory of looking ids up
_INT32_LIMIT = 2**31 - 1
_LARGEST = float(np.finfo(np.float32).max)
_DECIMAL_COMMA = re.compile(r"-?\d+,\d+")
_LONGEST_NUMBER = _LONGEST_TIME = 100  # bytes of one as text; what is longer is none


def to_polars(frame: object) -> Any:
    """Return a frame as polars, or a pandas frame as it is (its columns are converted singly).

    Raises
    ------
    DataError
        If it is none of polars, pandas, or an object with the Arrow C stream interface.
    """
    if isinstance(frame, pl.DataFrame) or is_pandas(frame):
        return frame
    if isinstance(frame, pl.LazyFrame):
        return frame.collect()
    if hasattr(frame, "__arrow_c_stream__") and not hasattr(frame, "dtype"):  # no Series
        return pl.DataFrame(frame)
    raise DataError(
        "Expected a polars or pandas frame, or an object with __arrow_c_stream__; "
        f"got {type(frame).__name__}."
    )


def column_names(frame: Any) -> list[str]:
    """Return the names of the columns of a polars or pandas frame."""
    return [str(name) for name in frame.columns]


def column(frame: Any, name: str) -> pl.Series:
    """Return one column of a polars or pandas frame as a polars Series.

    Raises
    ------
    DataError
        If there is no such column, or several.
    """
    if name not in column_names(frame):
        listed = ", ".join(column_names(frame))
        inside = is_pandas(frame) and name in frame.index.names
        hint = " It is in the index; reset_index() makes it a column." * inside
        raise DataError(f"The frame has no column {name!r}; its columns are {listed}.{hint}")
    if isinstance(frame, pl.DataFrame):
        return frame[name]
    if column_names(frame).count(name) > 1:
        raise DataError(f"The frame has several columns {name!r}; rename all but one.")
    return _pandas_column(frame[name])


def rating_values(series: pl.Series, place: Place = row_place) -> npt.NDArray[np.float32]:
    """Return ratings as float32; each must be a finite number.

    Raises
    ------
    DataError
        If a rating is missing, no number, NaN, infinite or beyond float32.
    """
    dtype = series.dtype
    if not (dtype.is_numeric() or dtype in (pl.Boolean, pl.String, pl.Null)):
        raise DataError(f"Ratings must be numbers; got a column of {dtype} values.")
    if dtype == pl.String and (series.str.len_bytes() > _LONGEST_NUMBER).any():
        row = (series.str.len_bytes() > _LONGEST_NUMBER).arg_max() or 0
        raise DataError(f"{place(row)}: rating {shortened(series[row])!r} is not a number.")
    numbers = series.cast(pl.Float32, strict=False)
    bad = numbers.is_null() | ~numbers.is_finite()
    if bad.any():
        row = bad.arg_max() or 0
        raise DataError(f"{place(row)}: {rating_problem(series[row])}")
    return numbers.to_numpy()


def rating_problem(value: object) -> str | None:
    """Say in words why a value cannot be a rating, or return None if it can."""
    if value is None or value == "":
        return "the rating is missing."
    text = str(value)
    try:
        number = float(text.replace("_", "?"))  # Python reads 1_000 as a number, files don't
    except ValueError:
        point = "; decimals need a point" if _DECIMAL_COMMA.fullmatch(text) else ""
        return f"rating {shortened(text)!r} is not a number{point}."
    if not math.isfinite(number):
        return f"rating {text} is not a finite number."
    return f"rating {text} does not fit in float32." if abs(number) > _LARGEST else None


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
        raise DataError(f"{place(row)}: {_time_problem(value)}")
    return seconds.to_numpy()


def _time_problem(value: object) -> str:
    """Say what is wrong with a time that could not be read."""
    if value is None or value == "" or value != value:  # NaN
        return "the time is missing."
    if isinstance(value, str) and not _seconds(pl.Series([value])).null_count():
        return f"time {_shown(value)} is a date, but other times are numbers; write all alike."
    return f"time {_shown(value)} is neither a number nor an ISO 8601 date, such as 2024-01-31."


def _shown(value: object) -> str:
    return repr(shortened(value)) if isinstance(value, str) else repr(value)


def _seconds(series: pl.Series) -> pl.Series:
    """Return a column of times as Int64 seconds, null where it cannot be read."""
    dtype = series.dtype
    if dtype == pl.Date or isinstance(dtype, pl.Datetime):
        return series.dt.epoch("s")
    if dtype == pl.String:
        series = series.set(series.str.len_bytes() > _LONGEST_TIME, None)
        numbers = series.cast(pl.Float64, strict=False)
        if numbers.null_count() < len(numbers):
            return _in_seconds(_exact_integers(series, numbers))
        return _parsed_dates(series)
    if dtype.is_numeric() or dtype == pl.Null:
        return _in_seconds(series)
    raise DataError(f"Times must be numbers, dates or ISO 8601 strings; got {dtype} values.")


def _exact_integers(series: pl.Series, numbers: pl.Series) -> pl.Series:
    """Return strings as Int64 where all are integers, else as the given floats."""
    exact = series.cast(pl.Int64, strict=False)
    return exact if exact.null_count() == numbers.null_count() else numbers


def _in_seconds(numbers: pl.Series) -> pl.Series:
    """Return numeric times as Int64 seconds, the unit told by the largest magnitude."""
    if numbers.dtype.is_float():
        numbers = numbers.set(~numbers.is_finite(), None)
    largest = max(abs(float(numbers.max() or 0)), abs(float(numbers.min() or 0)))  # type: ignore[arg-type]
    for limit, per_second in _UNITS:
        if largest > limit:
            numbers = numbers // per_second
            break
    if numbers.dtype.is_float():
        numbers = numbers.floor()
    return numbers.cast(pl.Int64, strict=False)


def _parsed_dates(series: pl.Series) -> pl.Series:
    """Return ISO 8601 strings as Int64 seconds; null where no format fits."""
    text = series.str.strip_chars().str.replace(r"[Tt]", " ").str.replace(r"[Zz]$", "+00:00")
    seconds = pl.Series(series.name, [None], dtype=pl.Int64).new_from_index(0, len(series))
    for form in _FORMATS:
        parsed = text.str.to_datetime(form, time_unit="us", strict=False)
        seconds = seconds.zip_with(seconds.is_not_null(), parsed.dt.epoch("s"))
        if not seconds.null_count():
            break
    return seconds


def encode(
    series: pl.Series, kind: Kind, idle: pl.Series | None = None
) -> tuple[Ids, npt.NDArray[np.int32]]:
    """Return the ids that occur (and idle ones), and the index of each row's id.

    Parameters
    ----------
    series : Series of Int64 or String, of length n_rows
    kind : {"user", "item"}
    idle : Series, optional
        Further ids, of the same dtype.

    Returns
    -------
    Ids
    int32 ndarray of shape (n_rows,)

    Raises
    ------
    DataError
        If there are more ids than int32 can count.
    """
    distinct = series.unique()
    ids = Ids(distinct if idle is None else pl.concat([distinct, idle]), kind)
    if len(ids) > _INT32_LIMIT:
        raise DataError(f"There may be at most {_INT32_LIMIT:,} {kind}s; got {len(ids):,}.")
    codes = np.empty(len(series), dtype=np.int32)
    for start in range(0, len(series), _CHUNK):
        codes[start : start + _CHUNK] = ids.find(series.slice(start, _CHUNK))
    return ids, codes


def known_rows(info: object | None, ids: Ids) -> pl.DataFrame | None:
    """Return the rows of a metadata frame whose ids are known, the first of each id."""
    if info is None:
        return None
    frame = to_polars(info)
    names = column_names(frame)
    found = ids.find(column(frame, ids.kind))
    others = [column(frame, name).alias(name) for name in names if name != ids.kind]
    known = pl.DataFrame([pl.Series(ids.kind, found), *others])
    known = known.filter(pl.col(ids.kind) >= 0).unique(ids.kind, keep="first", maintain_order=True)
    return known.with_columns(ids.take(known[ids.kind].to_numpy()))


def listed(ids: Any) -> Any:
    """Return a single id as a list of one, and a Series or array as it is.

    Raises
    ------
    DataError
        If it is a mapping or a frame.
    """
    if isinstance(ids, Mapping) or hasattr(ids, "columns"):
        hint = "; what a user has rated is given as history=" * isinstance(ids, Mapping)
        raise DataError(f"Expected an id or a sequence of ids; got a {type(ids).__name__}{hint}.")
    single = isinstance(ids, str | int | np.integer | float)
    return [ids] if single else ids if isinstance(ids, pl.Series | np.ndarray) else list(ids)


def is_pandas(frame: object) -> bool:
    """Return whether it is a pandas frame; pandas need not be there."""
    return type(frame).__module__.partition(".")[0] == "pandas" and hasattr(frame, "columns")


def _pandas_column(series: Any) -> pl.Series:
    """Return a pandas column; nothing here needs pyarrow."""
    name = str(series.name)
    kind = getattr(series.dtype, "kind", "O")
    if isinstance(series.dtype, np.dtype) and kind in "iuf":
        return pl.Series(name, np.ascontiguousarray(series.to_numpy()))
    if kind == "M":
        return pl.Series(name, series.to_numpy(dtype="datetime64[us]"))
    values = [None if _is_missing(value) else value for value in series.tolist()]
    try:
        return pl.Series(name, values, strict=True)
    except (TypeError, ValueError, pl.exceptions.PolarsError):
        raise DataError(f"Column {name!r} mixes values of several types.") from None


def _is_missing(value: object) -> bool:
    """Return whether a pandas value is None, NaN, NaT or NA."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, float) and math.isnan(value)

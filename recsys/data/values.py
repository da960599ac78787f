"""Values: the ratings of rows as numbers, or as likes that are true or false."""

from __future__ import annotations

import math
import re

import numpy as np
import polars as pl

from recsys.data.ids import Place, row_place
from recsys.errors import DataError
from recsys.messages import shortened

__all__ = ["is_truth", "rating_problem", "rating_values", "readable_ratings", "truths"]

_LARGEST = float(np.finfo(np.float32).max)
_DECIMAL_COMMA = re.compile(r"-?\d+,\d+")
_TRUTHS = {"true": True, "false": False, "t": True, "f": False, "yes": True, "no": False}


def rating_values(series: pl.Series, place: Place = row_place) -> pl.Series:
    """Return ratings as a column of Float32.

    Raises
    ------
    DataError
        If one is not a finite number.
    """
    dtype = series.dtype
    if not (dtype.is_numeric() or dtype in (pl.Boolean, pl.String, pl.Null)):
        raise DataError(f"Ratings must be numbers; got a column of {dtype} values.")
    numbers = series.cast(pl.Float32, strict=False)
    bad = ~readable_ratings(numbers)
    if bad.any():
        row = bad.arg_max() or 0
        raise DataError(f"{place(row)}: {rating_problem(series[row])}")
    return numbers


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


def readable_ratings(series: pl.Series) -> pl.Series:
    """Return a mask of the ratings that are finite numbers."""
    numbers = series.cast(pl.Float32, strict=False)
    return numbers.is_not_null() & numbers.is_finite().fill_null(False)


def is_truth(text: str) -> bool:
    """Return whether a text is true or false, as files write them."""
    return text.strip().lower() in _TRUTHS


def truths(series: pl.Series) -> pl.Series | None:
    """Return a column of likes as Booleans, null for other words; None if it is one of numbers."""
    if series.dtype == pl.Boolean:
        return series
    if series.dtype != pl.String or not any(map(is_truth, series.drop_nulls().head(1))):
        return None
    words = series.str.strip_chars().str.to_lowercase()
    return words.replace_strict(_TRUTHS, default=None, return_dtype=pl.Boolean)

"""What polars says in another way than Python does: panics, and errors of the system."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

import polars as pl

from recsys.errors import DataError

__all__ = ["panics_as_errors", "reading_parquet", "reason_of_system"]


@contextmanager
def panics_as_errors() -> Iterator[None]:
    """Turn a panic of polars, which is no `Exception`, into a `polars.exceptions.ComputeError`.

    Examples
    --------
    >>> with panics_as_errors():
    ...     raise pl.exceptions.PanicException("out of range")
    Traceback (most recent call last):
    ...
    polars.exceptions.ComputeError: out of range
    """
    try:
        yield
    except pl.exceptions.PanicException as error:
        raise pl.exceptions.ComputeError(str(error)) from None


@contextmanager
def reading_parquet(name: str) -> Iterator[None]:
    """Turn whatever is wrong with a Parquet file into one sentence.

    Raises
    ------
    DataError
        If polars or the system cannot read it.
    """
    try:
        with panics_as_errors():
            yield
    except (pl.exceptions.PolarsError, OSError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise DataError(f"{name} is a damaged Parquet file: {reason}.") from None


def reason_of_system(error: BaseException) -> str | None:
    """Return what the operating system said, if that is why `error` was raised.

    Examples
    --------
    >>> reason_of_system(pl.exceptions.ComputeError("writing: full (os error 28)"))
    'No space left on device'
    """
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    found = re.search(r"\(os error (\d+)\)", str(error))
    if found is not None:
        return os.strerror(int(found[1]))
    # NumPy says only how much could be written.
    return f"not all could be written ({error})" if isinstance(error, OSError) else None

"""Damaged Parquet files on which polars panics instead of raising an error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import polars as pl

__all__ = ["panics_as_errors"]


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

"""Fields of CSV files that are longer than Python's reader expects, such as a review in a table."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["long_fields"]


@contextmanager
def long_fields() -> Iterator[None]:
    """Let Python's csv read fields of any length; 131,072 characters are its limit otherwise.

    Examples
    --------
    >>> with long_fields():
    ...     [[field]] = csv.reader(["x" * 200_000])
    >>> len(field)
    200000
    """
    limit = csv.field_size_limit(sys.maxsize)
    try:
        yield
    finally:
        csv.field_size_limit(limit)

"""The names of documents and of terms, in index order."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from recsys.errors import DataError, UnknownIdError
from recsys.messages import close_matches

__all__ = ["Labels"]

_NEAR = 3
_LIMIT = 2**63


class Labels:
    """Distinct integers or strings, each with an index, in the order they were given.

    Parameters
    ----------
    values : polars Series or sequence
        Integers, or strings; a mixture becomes strings.
    noun : str
        What messages call one of them, such as "document".

    Raises
    ------
    DataError
        If a value is missing or occurs twice.
    """

    def __init__(self, values: pl.Series | Sequence[Any], noun: str) -> None:
        self.noun = noun
        self.values = _series(values, noun)
        if self.values.n_unique() < len(self.values):
            twice = self.values.filter(self.values.is_duplicated())[0]
            raise DataError(f"Each {noun} needs an id of its own; {twice!r} occurs more than once.")

    def __len__(self) -> int:
        return len(self.values)

    def __repr__(self) -> str:
        shown = ", ".join(repr(each) for each in self.values.head(_NEAR))
        more = ", ..." if len(self) > _NEAR else ""
        return f"Labels({self.noun}: {len(self):,} of {self.values.dtype}: {shown}{more})"

    @cached_property
    def _places(self) -> dict[Any, int]:
        return {value: place for place, value in enumerate(self.values.to_list())}

    def find(self, queries: Sequence[Any]) -> NDArray[np.int64]:
        """Return the index of each query, -1 for an unknown one; 1 and "1" are the same."""
        get = self._places.get
        return np.array([get(self._plain(query), -1) for query in queries], dtype=np.int64)

    def index(self, queries: Sequence[Any]) -> NDArray[np.int64]:
        """Return the index of each query.

        Raises
        ------
        UnknownIdError
            Naming the first unknown one, and the nearest there are.
        """
        places = self.find(queries)
        unknown = np.flatnonzero(places < 0)
        if unknown.size:
            query = queries[unknown[0]]
            raise UnknownIdError(f"Unknown {self.noun} {query!r}{self._nearest(query)}")
        return places

    def extended(self, values: pl.Series | Sequence[Any]) -> Labels:
        """Return these and further ones.

        Raises
        ------
        DataError
            If one of the further ones is there already.
        """
        more = _series(values, self.noun)
        if more.dtype != self.values.dtype:
            return Labels(pl.concat([self.values.cast(pl.String), more.cast(pl.String)]), self.noun)
        return Labels(pl.concat([self.values, more]), self.noun)

    def _plain(self, query: Any) -> Any:
        if self.values.dtype == pl.String:
            return str(query)
        try:
            number = int(query)
        except (OverflowError, TypeError, ValueError):
            return query
        return number if number == query or str(number) == query else query

    def _nearest(self, query: Any) -> str:
        names = map(str, self.values.to_list())
        near = close_matches(str(query), names, _NEAR)
        if near:
            return f"; the nearest {'is' if len(near) == 1 else 'are'} {', '.join(near)}."
        first = ", ".join(repr(each) for each in self.values.head(_NEAR))
        return f"; there are {len(self.values):,}, such as {first}."


def _is_ready(values: pl.Series) -> bool:
    """Whether values are a column as labels are kept."""
    return values.dtype in (pl.Int64, pl.String) and not values.null_count()


def _series(values: pl.Series | Sequence[Any], noun: str) -> pl.Series:
    """Return values as an Int64 or String column."""
    if isinstance(values, pl.Series) and _is_ready(values):
        return values.alias(noun)
    given = values.to_list() if isinstance(values, pl.Series) else list(values)
    if any(value is None for value in given):
        raise DataError(f"The id of {noun} {given.index(None)} is missing.")
    if all(isinstance(value, int | np.integer) and -_LIMIT <= value < _LIMIT for value in given):
        return pl.Series(noun, [int(value) for value in given], dtype=pl.Int64)
    return pl.Series(noun, [str(value) for value in given], dtype=pl.String)

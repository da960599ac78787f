"""Batches of rows: columns kept in as few bytes as their values take, as they are read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from lowrank.kernels.entries import Levels
from recsys.data.csr import Values
from recsys.data.rows import Rows

__all__ = ["Batches"]

_INT32 = np.iinfo(np.int32)
_FEWEST = 1 << 16  # numbers that an array begins with
_GROWTH = 16  # an array grows by this part of it: more would be memory that is not needed


class Batches:
    """Columns of rows, batch after batch.

    Integers take four bytes where all fit; texts of ids become categories, and ratings codes of
    their levels, up to 256. Dates become seconds. As long as all columns are of such types, and
    nothing is missing, they are arrays; else series.
    """

    def __init__(self) -> None:
        self.n_rows = 0
        # Categories are there as long as a series of them is.
        kinds = {role: pl.Categorical(pl.Categories.random()) for role in ("user", "item")}
        self._texts = {role: pl.Series(role, [""]).cast(kind) for role, kind in kinds.items()}
        self._levels: Levels | None = Levels()
        self._in_seconds = False
        self._arrays: dict[str, _Growing] | None = {}
        self._parts: dict[str, list[pl.Series]] = {}

    def add(self, batch: Mapping[str, pl.Series]) -> None:
        """Add rows; the columns are named by their roles."""
        columns = {role: self._narrow(role, column) for role, column in batch.items()}
        if self._arrays is not None and not all(map(self._is_compact, columns, columns.values())):
            self._spill()
        for role, column in columns.items():
            if self._arrays is None:
                self._parts.setdefault(role, []).append(column)
            else:
                numbers = column.to_physical().to_numpy()
                self._arrays.setdefault(role, _Growing(numbers.dtype)).add(numbers)
        self.n_rows += len(next(iter(columns.values())))

    def rows(self) -> Rows:
        """Return all rows; their columns are not kept here."""
        levels = None if self._levels is None or not self._levels.count else self._levels.values
        rows = Rows({}, levels=levels, in_seconds=self._in_seconds)
        if self._arrays is None:
            rows.columns = {role: _joined(self._parts.pop(role)) for role in tuple(self._parts)}
            return rows
        arrays = self._arrays
        rows.arrays = {role: arrays.pop(role).array() for role in tuple(arrays)}
        for role, known in self._texts.items():
            if role in rows.arrays and rows.arrays[role].dtype == np.uint32:
                rows.texts[role] = known
        return rows

    def _narrow(self, role: str, column: pl.Series) -> pl.Series:
        """Return a column in fewer bytes, if it fits."""
        dtype = column.dtype
        if role == "rating":
            return self._coded(column)
        if role in self._texts and isinstance(dtype, pl.String | pl.Categorical | pl.Enum):
            return column.cast(pl.String).cast(self._texts[role].dtype)
        if role == "timestamp" and isinstance(dtype, pl.Date | pl.Datetime):
            column, self._in_seconds = column.dt.epoch("s"), True
        if not column.dtype.is_integer():
            return column
        low, high = column.min(), column.max()
        fits = low is None or (low >= _INT32.min and high <= _INT32.max)  # type: ignore[operator]
        return column.cast(pl.Int32) if fits else column

    def _coded(self, ratings: pl.Series) -> pl.Series:
        """Return ratings as codes, if all so far have few levels."""
        if self._levels is None:
            return ratings
        if ratings.dtype.is_numeric() and not ratings.null_count():
            single = ratings.cast(pl.Float32)
            is_double = isinstance(ratings.dtype, pl.Float64)
            if not (is_double and (single.is_infinite() & ratings.is_finite()).any()):
                ratings = single
                if (codes := self._levels.codes(single.to_numpy())) is not None:
                    return pl.Series(ratings.name, codes)
        self._spill()
        known = Values(np.zeros(0, np.uint8), self._levels.values)
        self._parts["rating"] = [
            pl.Series(part.name, known._replace(data=part.to_numpy()).at())
            for part in self._parts.get("rating", [])
        ]
        self._levels = None
        return ratings

    def _is_compact(self, role: str, column: pl.Series) -> bool:
        """Return whether a column can be kept as an array."""
        kinds: dict[str, Any] = {"rating": pl.UInt8, "timestamp": pl.Int32, "event": ()}
        known = self._arrays.get(role) if self._arrays else None
        is_fit = isinstance(column.dtype, kinds.get(role, pl.Int32 | pl.Categorical))
        if not is_fit or column.null_count():
            return False
        return known is None or (known.dtype == np.uint32) == isinstance(
            column.dtype, pl.Categorical
        )

    def _spill(self) -> None:
        """Keep series instead of arrays from now on."""
        if self._arrays is not None:
            before = self.rows().spread().columns
            self._arrays, self._parts = None, {role: [part] for role, part in before.items()}


class _Growing:
    """An array of numbers that grows at its end, in place where the system can."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self.dtype = dtype
        self._numbers, self._n = np.empty(_FEWEST, dtype), 0

    def add(self, numbers: npt.NDArray[Any]) -> None:
        """Append numbers."""
        begin, self._n = self._n, self._n + len(numbers)
        if self._n > len(self._numbers):
            more = max(len(numbers), len(self._numbers) // _GROWTH)
            self._numbers.resize(len(self._numbers) + more, refcheck=False)
        self._numbers[begin : self._n] = numbers

    def array(self) -> npt.NDArray[Any]:
        """Return the numbers."""
        self._numbers.resize(self._n, refcheck=False)
        return self._numbers


def _joined(parts: list[pl.Series]) -> pl.Series:
    """Return parts as one column, of numbers wide enough for all of them."""
    types = {part.dtype for part in parts}
    if len(types) > 1 and all(each.is_numeric() for each in types):
        wide = pl.Int64 if all(each.is_integer() for each in types) else pl.Float64
        parts = [part.cast(wide) for part in parts]
    return pl.concat(parts)

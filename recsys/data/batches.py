"""Batches of rows: columns kept in as few bytes as their values take, as they are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl

from lowrank.kernels.entries import Keys, Levels
from recsys.data.rows import Rows

__all__ = ["Batches", "Column"]

Column: TypeAlias = "pl.Series | npt.NDArray[Any]"
"""Column of a batch; an array is of int64 or float32."""

_INT32 = np.iinfo(np.int32)
_FEWEST = 1 << 16  # rows that there is room for
_LARGEST = float(np.finfo(np.float32).max)


class Batches:
    """Columns of rows, batch after batch.

    As long as nothing is missing and all columns are of usual types, they are kept as arrays: ids
    as codes of four bytes, ratings as codes of their levels, up to 256, dates as seconds. Else
    they are series.
    """

    def __init__(self, expected: int | None = None) -> None:
        self.n_rows, self._expected = 0, expected or _FEWEST
        self._keys = {role: Keys() for role in ("user", "item")}
        self._texts: dict[str, pl.Series] = {}  # categories are there as long as a series of them
        self._levels: Levels | None = Levels()
        self._in_seconds = False
        self._arrays: dict[str, _Growing] | None = {}
        self._parts: dict[str, list[pl.Series]] = {}

    def add(self, batch: Mapping[str, Column]) -> None:
        """Add rows; the columns are named by their roles, arrays are of int64 or float32."""
        if self._arrays is not None and not all(map(self._is_plain, batch, batch.values())):
            before = self.rows().decode().columns
            self._levels = None
            self._arrays, self._parts = None, {role: [part] for role, part in before.items()}
        for role, column in batch.items():
            if self._arrays is not None:
                self._append(self._arrays.setdefault(role, _Growing(self._expected)), role, column)
            else:
                self._parts.setdefault(role, []).append(self._narrow(role, pl.Series(role, column)))
        self.n_rows += len(next(iter(batch.values())))

    def rows(self) -> Rows:
        """Return all rows; their columns are not kept here."""
        rows = Rows({}, in_seconds=self._in_seconds)
        if self._arrays is None:
            rows.columns = {role: _joined(self._parts.pop(role)) for role in tuple(self._parts)}
            return rows
        arrays = self._arrays
        rows.arrays = {role: arrays.pop(role).array() for role in tuple(arrays)}
        for role, keys in self._keys.items():
            if role in self._texts:
                dtype: Any = self._texts[role].dtype
                rows.distinct[role] = dtype.categories.to_series().cast(dtype)
            else:
                rows.distinct[role] = pl.Series(keys.values)
        if self._levels is not None and "rating" in rows.arrays:
            rows.levels = self._levels.values
        return rows

    def _is_plain(self, role: str, column: Column) -> bool:
        """Return whether a column can be kept as an array."""
        if isinstance(column, np.ndarray):
            return role not in self._texts
        dtype, is_begun = column.dtype, bool(self._arrays)
        is_integer = dtype.is_signed_integer() or dtype in (pl.UInt8, pl.UInt16, pl.UInt32)
        if column.null_count():
            return False
        if role in self._keys:
            is_text = isinstance(dtype, pl.String | pl.Categorical | pl.Enum)
            return (is_text or is_integer) and (not is_begun or is_text == (role in self._texts))
        if role == "rating":
            fits = not isinstance(dtype, pl.Float64) or _largest(column) <= _LARGEST
            return dtype.is_numeric() and fits
        return role == "timestamp" and (is_integer or isinstance(dtype, pl.Date | pl.Datetime))

    def _append(self, array: _Growing, role: str, column: Column) -> None:
        if role == "rating":
            self._append_ratings(array, column)
            return
        if isinstance(column, pl.Series):
            if role == "timestamp" and not column.dtype.is_integer():
                column, self._in_seconds = column.dt.epoch("s"), True
            elif not column.dtype.is_integer():
                column = self._as_categories(role, column)
                array.more(len(column), np.int32)[:] = column.to_physical().to_numpy()
                return
            narrow = isinstance(column.dtype, pl.Int32 | pl.Int64)
            column = (column if narrow else column.cast(pl.Int64)).to_numpy()
        if role in self._keys:
            self._keys[role].code(column, array.more(len(column), np.int32))
        else:
            fits = not len(column) or (column.min() >= _INT32.min and column.max() <= _INT32.max)
            array.more(len(column), np.int32 if fits else np.int64)[:] = column

    def _append_ratings(self, array: _Growing, column: Column) -> None:
        """Append ratings as codes, if all so far have few levels, else as numbers."""
        if isinstance(column, pl.Series):
            column = column.cast(pl.Float32).to_numpy()
        if self._levels is not None:
            if self._levels.code(column, array.more(len(column), np.uint8)):
                return
            array.drop(len(column))
            values = self._levels.values
            array.change(lambda codes: values[codes])
            self._levels = None
        array.more(len(column), np.float32)[:] = column

    def _as_categories(self, role: str, column: pl.Series) -> pl.Series:
        if role not in self._texts:
            dtype = pl.Categorical(pl.Categories.random())
            self._texts[role] = column.head(1).cast(pl.String).cast(dtype)
        return column.cast(pl.String).cast(self._texts[role].dtype)

    def _narrow(self, role: str, column: pl.Series) -> pl.Series:
        """Return a column in fewer bytes, if it fits."""
        dtype = column.dtype
        if role in self._keys and isinstance(dtype, pl.String | pl.Categorical | pl.Enum):
            return self._as_categories(role, column)
        if role == "rating" and dtype.is_float():
            return column.cast(pl.Float32) if _largest(column) <= _LARGEST else column
        if role == "timestamp" and isinstance(dtype, pl.Date | pl.Datetime):
            column, self._in_seconds = column.dt.epoch("s"), True
        if not column.dtype.is_integer():
            return column
        low, high = column.min(), column.max()
        fits = low is None or (low >= _INT32.min and high <= _INT32.max)  # type: ignore[operator]
        return column.cast(pl.Int32) if fits else column


class _Growing:
    """An array of numbers that grows at its end; the room that it has there takes no memory."""

    def __init__(self, expected: int) -> None:
        self._numbers, self._n, self._expected = np.empty(0, np.uint8), 0, expected

    def more(self, n: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Return room for more numbers at the end; all become as wide as they are."""
        if not self._n:
            self._numbers = np.empty(0, dtype)
        elif np.dtype(dtype).itemsize > self._numbers.itemsize:
            self.change(lambda numbers: numbers.astype(dtype))
        begin, self._n = self._n, self._n + n
        if self._n > len(self._numbers):
            before = self._numbers[:begin]  # and not `resize`, which writes zeros
            self._numbers = np.empty(max(2 * begin, self._n, self._expected), before.dtype)
            self._numbers[:begin] = before
        return self._numbers[begin : self._n]

    def drop(self, n: int) -> None:
        """Remove numbers at the end."""
        self._n -= n

    def change(self, function: Callable[[npt.NDArray[Any]], npt.NDArray[Any]]) -> None:
        """Replace all numbers."""
        self._numbers = function(self._numbers[: self._n])

    def array(self) -> npt.NDArray[Any]:
        """Return the numbers."""
        return self._numbers[: self._n]


def _largest(column: pl.Series) -> float:
    """Return the largest absolute value of a column, 0 for an empty one."""
    ends: list[Any] = [column.min(), column.max()]
    return float(max(abs(end or 0.0) for end in ends))


def _joined(parts: list[pl.Series]) -> pl.Series:
    """Return parts as one column, of numbers wide enough for all of them."""
    types = {part.dtype for part in parts}
    if len(types) > 1 and all(each.is_numeric() for each in types):
        wide = pl.Int64 if all(each.is_integer() for each in types) else pl.Float64
        parts = [part.cast(wide) for part in parts]
    return pl.concat(parts)

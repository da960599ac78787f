"""Batches of rows: columns kept in as few bytes as their values take, as they are read."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import polars as pl

from lowrank.kernels.entries import Levels
from recsys.data.csr import Values
from recsys.data.rows import Rows

__all__ = ["Batches"]

_INT32 = np.iinfo(np.int32)


class Batches:
    """Columns of rows, batch after batch.

    Integers take four bytes where all fit; texts of ids become categories, and ratings codes of
    their levels, up to 256. Dates become seconds. What all rows show in the end counts: a value
    that does not fit changes the columns read before it.

    Attributes
    ----------
    levels : float32 ndarray or None
        If ratings are codes.
    in_seconds : bool
        Timestamps were dates.
    """

    def __init__(self) -> None:
        self._parts: dict[str, list[pl.Series]] = {}
        self._texts = {role: pl.Categorical(pl.Categories.random()) for role in ("user", "item")}
        self._levels: Levels | None = Levels()
        self.in_seconds = False
        self.n_rows = 0

    @property
    def levels(self) -> npt.NDArray[np.float32] | None:
        """Levels of the ratings."""
        return None if self._levels is None or not self._levels.count else self._levels.values

    def add(self, batch: Mapping[str, pl.Series] | pl.DataFrame) -> None:
        """Add rows; the columns are named by their roles."""
        columns = {
            name: batch[name]
            for name in (batch.columns if isinstance(batch, pl.DataFrame) else batch)
        }
        for role, column in columns.items():
            if role == "rating":
                column = self._coded(column)
            elif role == "timestamp" and (
                column.dtype == pl.Date or isinstance(column.dtype, pl.Datetime)
            ):
                column, self.in_seconds = column.dt.epoch("s"), True
            elif role in self._texts and column.dtype in (pl.String, pl.Categorical, pl.Enum):
                column = column.cast(pl.String).cast(self._texts[role])
            self._parts.setdefault(role, []).append(_narrow(column))
        self.n_rows += len(column)

    def _coded(self, ratings: pl.Series) -> pl.Series:
        """Return ratings as codes, if all so far have few levels."""
        if self._levels is None:
            return ratings
        codes, dtype = None, ratings.dtype
        if dtype.is_numeric() and not ratings.null_count():
            single = ratings.cast(pl.Float32)
            if dtype != pl.Float64 or not (single.is_infinite() & ratings.is_finite()).any():
                codes, ratings = self._levels.codes(single.to_numpy()), single
        if codes is not None:
            return pl.Series(ratings.name, codes)
        known = Values(np.zeros(0, np.uint8), self._levels.values)
        self._parts["rating"] = [
            pl.Series(part.name, known._replace(data=part.to_numpy()).at())
            for part in self._parts.get("rating", [])
        ]
        self._levels = None
        return ratings

    def rows(self) -> Rows:
        """Return all rows; their columns are not kept here."""
        columns = {role: _joined(self._parts.pop(role)) for role in tuple(self._parts)}
        return Rows(columns, levels=self.levels, in_seconds=self.in_seconds)


def _narrow(column: pl.Series) -> pl.Series:
    """Return integers in four bytes, if they fit."""
    if column.dtype not in (pl.Int64, pl.UInt32, pl.Int16, pl.UInt16, pl.Int8):
        return column
    low, high = column.min(), column.max()
    fits = low is None or (low >= _INT32.min and high <= _INT32.max)  # type: ignore[operator]
    return column.cast(pl.Int32) if fits else column


def _joined(parts: list[pl.Series]) -> pl.Series:
    """Return parts as one column: of wide integers, if one part has them."""
    if {part.dtype for part in parts} == {pl.Int32(), pl.Int64()}:
        parts = [part.cast(pl.Int64) for part in parts]
    elif (
        any(part.dtype == pl.Float64 for part in parts) and len({part.dtype for part in parts}) > 1
    ):
        parts = [part.cast(pl.Float64) for part in parts]
    return pl.concat(parts)

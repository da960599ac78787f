"""Matrices whose rows are in a Spark table, and their Gram matrices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from lowrank.errors import ArgumentError, ArgumentTypeError, missing_extra
from lowrank.spark.arrow import lists, map_in_arrow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    Block = NDArray[np.float64] | sparse.csr_array

Doubles = NDArray[np.float64]

_WHOLE = ("int", "bigint", "smallint", "tinyint")
_NUMBERS = ("float", "double", *_WHOLE, "decimal")


class Gram(NamedTuple):
    """A'A and the column sums of A = X - 1 row', with the column means of X."""

    matrix: Doubles
    sums: Doubles
    means: Doubles
    row: Doubles


@dataclass(frozen=True)
class Rows:
    """A matrix whose rows are in a Spark table, minus a row.

    The `frame` has the columns values (array<double>), indices (array<int>, if sparse) and order
    (if given). With `is_single`, the given values were float32.
    """

    frame: DataFrame
    is_sparse: bool
    is_single: bool
    shape: tuple[int, int]
    row: Doubles

    def minus(self, row: Doubles) -> Self:
        """Return the matrix minus a row."""
        return replace(self, row=row)

    def column_means(self) -> Doubles:
        """Return the column means of the table, in one pass."""
        sums = self._summed(lambda block: np.asarray(block.sum(axis=0), np.float64))
        return sums / self.shape[0]

    def gram(self, means: Doubles) -> Gram:
        """Return A'A in one pass; sparse rows stay sparse."""
        m = self.shape[1]
        row = self.row

        def products(block: Block) -> Doubles:
            centered = (
                block if isinstance(block, np.ndarray) else block.toarray()
            ) - row
            return np.vstack([block.T @ centered, centered.sum(axis=0)])

        added = self._summed(products).reshape(m + 1, m)
        sums = added[m]
        # (X - 1 row')' A = X'A - row (A'1)'
        matrix = added[:m] - np.outer(row, sums)
        return Gram((matrix + matrix.T) / 2, sums, means, row)

    def _summed(self, function: Callable[[Block], Doubles]) -> Doubles:
        """Return the sum of `function` over blocks of rows, flat."""
        read = self.reader()

        def partial(batches: Iterator[Any]) -> Iterator[Any]:
            import pyarrow as pa

            total: Any = None
            for batch in batches:
                part = function(read(batch))
                total = part if total is None else total + part
            if total is not None:
                yield pa.RecordBatch.from_pydict({"sums": [total.tobytes()]})

        parts = map_in_arrow(self.frame, partial, "sums binary").rdd
        total: Doubles = parts.map(lambda part: np.frombuffer(part["sums"])).treeReduce(
            np.add
        )
        return total

    def reader(self) -> Callable[[Any], Block]:
        """Return a function that reads a block of rows from an Arrow record batch."""
        n_columns = self.shape[1]
        is_sparse = self.is_sparse

        def read(batch: Any) -> Block:
            indptr, values = lists(batch, "values")
            shape = (len(indptr) - 1, n_columns)
            values = values.astype(np.float64, copy=False)
            if not is_sparse:
                return values.reshape(shape)
            return sparse.csr_array(
                (values, lists(batch, "indices")[1], indptr), shape=shape
            )

        return read


def open_rows(
    rows: DataFrame | str,
    *,
    values: str,
    indices: str | None,
    order: str | None,
    n_columns: int | None,
) -> Rows:
    """Check a table of rows in one pass; for the parameters see `lowrank.spark.truncated_svd`.

    Raises
    ------
    ImportError, TypeError, ValueError
        If PySpark is not installed, or the table does not have the rows of a finite matrix.
    """
    try:
        from pyspark.sql import SparkSession
        from pyspark.sql import functions as sql
    except ImportError:
        raise ImportError(
            f"lowrank.spark {missing_extra('PySpark', 'spark')}"
        ) from None
    if isinstance(rows, str):
        session = SparkSession.getActiveSession()
        if session is None:
            raise ArgumentError(
                "There is no Spark session to read the rows with; start one first."
            )
        rows = session.read.parquet(rows)
    types = dict(rows.dtypes)
    columns = []
    for name, alias in ((values, "values"), (indices, "indices"), (order, "order")):
        if name is None:
            continue
        if name not in types:
            raise ArgumentError(
                f"The table has no column {name!r}; its columns are {', '.join(types)}."
            )
        column = sql.col(name)
        if alias != "order":
            allowed = _NUMBERS if alias == "values" else _WHOLE
            if not (
                types[name].startswith("array<") and types[name][6:].startswith(allowed)
            ):
                raise ArgumentTypeError(
                    f"The column {name!r} must hold arrays of {' or '.join(allowed[:2])}; "
                    f"it is of type {types[name]}."
                )
            column = column.cast("array<double>" if alias == "values" else "array<int>")
        columns.append(column.alias(alias))
    table = rows.select(*columns)
    is_sparse = indices is not None
    shape = _checked_shape(table, n_columns, is_sparse=is_sparse)
    is_single = types[values] == "array<float>"
    return Rows(table, is_sparse, is_single, shape, np.zeros(shape[1]))


def _checked_shape(
    table: DataFrame, n_columns: int | None, *, is_sparse: bool
) -> tuple[int, int]:
    """Check the rows in one pass and return the shape of their matrix."""
    from pyspark.sql import functions as sql

    values = sql.col("values")
    size = sql.size("values")
    is_bad = sql.exists(
        values, lambda x: x.isNull() | sql.isnan(x) | (sql.abs(x) == float("inf"))
    )
    wrong = {
        "have no values": values.isNull(),
        "have an entry that is missing or not finite": is_bad,
    }
    least, most = sql.min(size), sql.max(size)
    if is_sparse:
        indices = sql.col("indices")
        differs = indices.isNull() | (sql.size(indices) != size)
        wrong["have another number of indices than of values"] = differs
        wrong["name a column twice"] = sql.size(sql.array_distinct(indices)) != size
        least, most = sql.min(sql.array_min(indices)), sql.max(sql.array_max(indices))
    counts = map(sql.count_if, wrong.values())
    n_rows, low, high, *n_wrong = (
        table.agg(sql.count("*"), least, most, *counts).first() or [0] * 3
    )
    if not n_rows:
        raise ArgumentError(
            "The matrix must have at least one row; the table has none."
        )
    for problem, count in zip(wrong, n_wrong, strict=True):
        if count:
            raise ArgumentError(f"{count:,} of {n_rows:,} rows {problem}.")
    if is_sparse:
        return n_rows, _sparse_width(low, high, n_columns)
    if low != high:
        raise ArgumentError(f"Rows must be of one length; got {low} to {high}.")
    if n_columns not in (None, high):
        raise ArgumentError(
            f"n_columns must be {high}, the length of the rows; got {n_columns}."
        )
    return n_rows, high


def _sparse_width(low: int | None, high: int | None, n_columns: int | None) -> int:
    """Return the number of columns of sparse rows, given their least and largest index."""
    if low is None or high is None:  # all rows are empty
        return n_columns or 0
    if low < 0:
        raise ArgumentError(f"Indices must be 0 or more; got {low}.")
    if n_columns is None:
        return high + 1
    if high >= n_columns:
        raise ArgumentError(
            f"Indices must be below n_columns, {n_columns}; got {high}."
        )
    return n_columns

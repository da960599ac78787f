"""Matrices whose rows are in a Spark table, and their Gram matrices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

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
_MOST_COLUMNS = 4096  # A'A takes 134 MB on the driver for them


@dataclass(frozen=True)
class Rows:
    """A matrix whose rows are in a Spark table, minus a row.

    The `frame` has the columns values (array<double>), indices (array<int>, if sparse)
    and order (if given). With `dtype` float32, the given values were float32.
    """

    frame: DataFrame
    is_sparse: bool
    dtype: np.dtype[Any]
    shape: tuple[int, int]
    row: Doubles

    def column_means(self) -> Doubles:
        """Return the column means of the table, in one pass."""
        sums = self._summed(lambda block: np.asarray(block.sum(axis=0), np.float64))
        return sums / self.shape[0]

    def gram(self, means: Doubles) -> Doubles:
        """Return A'A for A = X - 1 row', in one pass; `means` are the means of X.

        Raises
        ------
        ArgumentError
            If the matrix has too many columns.
        """
        n, m = self.shape
        if m > _MOST_COLUMNS:
            raise ArgumentError(
                f"The matrix has {m:,} columns, and A'A on the driver may have up to "
                f"{_MOST_COLUMNS:,}; lowrank.truncated_svd takes more on one machine."
            )
        row = self.row

        def products(block: Block) -> Doubles:
            X = block if isinstance(block, np.ndarray) else block.toarray()
            return np.asarray(block.T @ (X - row))

        # A'A = X'A - row (A'1)', which keeps sparse rows sparse on one side.
        matrix = self._summed(products).reshape(m, m)
        matrix = matrix - np.outer(row, n * (means - row))
        return np.asarray((matrix + matrix.T) / 2)

    def _summed(self, function: Callable[[Block], Doubles]) -> Doubles:
        """Return the sum of `function` over blocks of rows, flat."""
        read = self.reader()

        def partial(batches: Iterator[Any]) -> Iterator[Any]:
            import pyarrow as pa

            total: Any = 0.0
            for batch in batches:
                total = total + function(read(batch))
            if np.ndim(total):
                yield pa.RecordBatch.from_pydict({"sums": [total.tobytes()]})

        parts = map_in_arrow(self.frame, partial, "sums binary").rdd
        sums = parts.map(lambda part: np.frombuffer(part["sums"]))
        return np.asarray(sums.treeReduce(np.add))

    def reader(self) -> Callable[[Any], Block]:
        """Return a function that reads a block of rows from an Arrow record batch."""
        n_columns = self.shape[1]
        is_sparse = self.is_sparse

        def read(batch: Any) -> Block:
            indptr, values = lists(batch.column("values"))
            shape = (len(indptr) - 1, n_columns)
            values = values.astype(np.float64, copy=False)
            if not is_sparse:
                return values.reshape(shape)
            columns = lists(batch.column("indices"))[1]
            return sparse.csr_array((values, columns, indptr), shape=shape)

        return read


def open_rows(
    rows: DataFrame | str,
    *,
    values: str,
    indices: str | None,
    order: str | None = None,
    n_columns: int | None,
) -> Rows:
    """Check a table of rows in one pass; see `lowrank.spark.truncated_svd`.

    Raises
    ------
    ImportError, TypeError, ValueError
        If PySpark is not installed, or the table is not a finite matrix.
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
    roles = [
        (values, "values", _NUMBERS, "double"),
        (indices, "indices", _WHOLE, "int"),
    ]
    columns = []
    for name, role, allowed, kind in roles:
        if name is None:
            continue
        _check_column(name, types)
        if not types[name].startswith(tuple(f"array<{number}" for number in allowed)):
            raise ArgumentTypeError(
                f"The column {name!r} must hold arrays of {' or '.join(allowed[:2])}; "
                f"it is of type {types[name]}."
            )
        columns.append(sql.col(name).cast(f"array<{kind}>").alias(role))
    if order is not None:
        _check_column(order, types)
        columns.append(sql.col(order).alias("order"))
    table = rows.select(*columns)
    is_sparse = indices is not None
    shape = _checked_shape(table, n_columns, is_sparse=is_sparse)
    is_single = types[values] == "array<float>"
    dtype = np.dtype(np.float32 if is_single else np.float64)
    return Rows(table, is_sparse, dtype, shape, np.zeros(shape[1]))


def _check_column(name: str, types: dict[str, str]) -> None:
    if name not in types:
        raise ArgumentError(
            f"The table has no column {name!r}; its columns are {', '.join(types)}."
        )


def _checked_shape(
    table: DataFrame,
    n_columns: int | None,
    *,
    is_sparse: bool,
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
    row: Any = table.agg(sql.count("*"), least, most, *counts).first()
    n_rows, low, high, *n_wrong = row
    if not n_rows:
        raise ArgumentError(
            "The matrix must have at least one row; the table has none."
        )
    for problem, count in zip(wrong, n_wrong, strict=True):
        if count:
            raise ArgumentError(f"{count:,} of {n_rows:,} rows {problem}.")
    if not is_sparse:
        if low != high:
            raise ArgumentError(f"Rows must be of one length; got {low} to {high}.")
        if n_columns not in (None, high):
            raise ArgumentError(
                f"n_columns must be {high}, the length of the rows; got {n_columns}."
            )
        return n_rows, high
    if high is None:  # all rows are empty
        return n_rows, n_columns or 0
    if low < 0:
        raise ArgumentError(f"Indices must be 0 or more; got {low}.")
    width = high + 1 if n_columns is None else n_columns
    if high >= width:
        raise ArgumentError(
            f"Indices must be below n_columns, {n_columns}; got {high}."
        )
    return n_rows, width

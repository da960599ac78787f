"""Matrices whose rows are in a Spark table."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from lowrank.errors import ArgumentError, ArgumentTypeError, missing_extra
from lowrank.solvers.lapack import triangular_factor
from lowrank.spark.arrow import lists, map_in_arrow, quiet_pandas, table_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    Block = NDArray[np.float64] | sparse.csr_array

Doubles = NDArray[np.float64]

# maximum size of all partial sums, in bytes, that are added on the driver
_COLLECTED = 2**26
# maximum size of all triangular factors, in bytes, that the driver collects
_TRIANGLES = 2**29
# size of a chunk of partial sums, in bytes, if they are added on the cluster
_CHUNK = 2**22
_SUMS = "part int, start bigint, sums binary"
_WHOLE = ("int", "bigint", "smallint", "tinyint")
_NUMBERS = ("float", "double", *_WHOLE, "decimal")


@dataclass(frozen=True)
class Rows:
    """A matrix whose rows are in a Spark table, minus a row (None for zeros).

    The `frame` has the columns values (array<double>), indices (array<int>, if sparse) and order
    (if given). With `is_single`, the given values were float32.
    """

    frame: DataFrame
    is_sparse: bool
    is_single: bool
    shape: tuple[int, int]
    row: Doubles | None = None

    def column_means(self) -> Doubles:
        """Return the column means of the table, in one pass."""
        m = self.shape[1]
        sums = self.summed(
            lambda A: np.asarray(A.sum(axis=0), np.float64)[:, None], (m, 1)
        )
        return np.asarray(sums[:, 0] / self.shape[0])

    def gram_product(self, X: Doubles) -> Doubles:
        """Return A'A X in one pass; the row is subtracted by a rank-one correction."""
        row, shared = self.row, self.frame.sparkSession.sparkContext.broadcast(X)

        def products(A: Block) -> Doubles:
            Y = product(A, shared.value, row)
            return np.vstack([A.T @ Y, Y.sum(axis=0)])

        found = self.summed(products, (self.shape[1] + 1, X.shape[1]))
        shared.destroy()
        return self.corrected(found)

    def triangle(self) -> Doubles | None:
        """Return R of a QR decomposition, in one pass; None if the driver has no space for it."""
        m, row, read = self.shape[1], self.row, self.reader()
        if self.frame.rdd.getNumPartitions() * 8 * m * m > _TRIANGLES:
            return None

        def partial(batches: Iterator[Any]) -> Iterator[Any]:
            from pyspark import TaskContext

            R = np.zeros((0, m))
            for batch in batches:
                block = read(batch)
                dense: Any = block if isinstance(block, np.ndarray) else block.toarray()
                R = triangular_factor(
                    np.vstack([R, dense if row is None else dense - row])
                )
            context = TaskContext.get()
            part = 0 if context is None else int(context.partitionId())
            yield from _sums(part, 0, R.ravel()).to_batches()

        parts = (
            table_of(map_in_arrow(self.frame, partial, _SUMS))
            .sort_by("part")
            .to_pylist()
        )
        factors = [np.frombuffer(part["sums"]).reshape(-1, m) for part in parts]
        return triangular_factor(np.vstack(factors))

    def corrected(self, found: Doubles) -> Doubles:
        """Correct A'Y for the row, given A'Y stacked on the column sums of Y."""
        product, sums = found[: self.shape[1]], found[self.shape[1]]
        return product if self.row is None else product - np.outer(self.row, sums)

    def summed(
        self, function: Callable[[Block], Doubles], shape: tuple[int, int]
    ) -> Doubles:
        """Return the sum of `function` over blocks of rows, of a given shape, in a fixed order.

        Large partial sums are added on the cluster, chunk by chunk.
        """
        size, length, read = shape[0] * shape[1], _CHUNK // 8, self.reader()

        def partial(batches: Iterator[Any]) -> Iterator[Any]:
            from pyspark import TaskContext

            total = np.zeros(shape)
            for batch in batches:
                if batch.num_rows:
                    total += function(read(batch))
            context, flat = TaskContext.get(), total.ravel()
            part = 0 if context is None else int(context.partitionId())
            for start in range(0, size, length):
                yield from _sums(part, start, flat[start : start + length]).to_batches()

        parts = map_in_arrow(self.frame, partial, _SUMS)
        if self.frame.rdd.getNumPartitions() * 8 * size > _COLLECTED:
            with quiet_pandas():
                parts = parts.groupBy("start").applyInArrow(_added, _SUMS)
        added = np.zeros(size)
        for row in table_of(parts).sort_by("part").to_pylist():
            values = np.frombuffer(row["sums"])
            added[row["start"] : row["start"] + len(values)] += values
        return added.reshape(shape)

    def reader(self) -> Callable[[Any], Block]:
        """Return a function that reads a block of rows from an Arrow record batch."""
        n_columns, is_sparse = self.shape[1], self.is_sparse

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


def product(A: Block, X: Doubles, row: Doubles | None) -> Doubles:
    """Return (A - 1 row') X."""
    Y: Doubles = A @ X
    return Y if row is None else Y - row @ X


def _sums(part: int, start: int, sums: Doubles) -> pa.Table:
    """Return a table with one row and the schema `_SUMS`."""
    import pyarrow as pa

    columns = [[part], [start], [sums.tobytes()]], (pa.int32(), pa.int64(), pa.binary())
    arrays = [pa.array(each, kind) for each, kind in zip(*columns, strict=True)]
    return pa.Table.from_arrays(arrays, ["part", "start", "sums"])


def _added(table: Any) -> pa.Table:
    """Add up the partial sums of one chunk in the order of their partitions."""
    rows = table.sort_by("part").to_pylist()
    total = sum(np.frombuffer(row["sums"]) for row in rows)
    return _sums(0, rows[0]["start"], np.asarray(total))


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
    types, chosen = dict(rows.dtypes), []
    for name, alias in ((values, "values"), (indices, "indices"), (order, "order")):
        if name is None:
            continue
        if name not in types:
            raise ArgumentError(
                f"The table has no column {name!r}; its columns are {', '.join(types)}."
            )
        given, kind = sql.col(name), types[name]
        if alias != "order":
            allowed = _NUMBERS if alias == "values" else _WHOLE
            if not (kind.startswith("array<") and kind[6:].startswith(allowed)):
                raise ArgumentTypeError(
                    f"The column {name!r} must hold arrays of {' or '.join(allowed[:2])}; "
                    f"it is of type {kind}."
                )
            given = given.cast("array<double>" if alias == "values" else "array<int>")
        chosen.append(given.alias(alias))
    table, is_sparse = rows.select(*chosen), indices is not None
    shape = _checked_shape(table, n_columns, is_sparse=is_sparse)
    return Rows(table, is_sparse, types[values] == "array<float>", shape)


def _checked_shape(
    table: DataFrame, n_columns: int | None, *, is_sparse: bool
) -> tuple[int, int]:
    """Check the rows in one pass and return the shape of their matrix."""
    from pyspark.sql import functions as sql

    size, values, at = sql.size("values"), sql.col("values"), sql.col("indices")
    is_bad = sql.exists(
        values, lambda x: x.isNull() | sql.isnan(x) | (sql.abs(x) == float("inf"))
    )
    wrong = {
        "have no values": values.isNull(),
        "have an entry that is missing or not finite": is_bad,
    }
    ends = (sql.min(size), sql.max(size))
    if is_sparse:
        other = at.isNull() | (sql.size(at) != size)
        wrong["have another number of indices than of values"] = other
        wrong["name a column twice"] = sql.size(sql.array_distinct(at)) != size
        ends = (sql.min(sql.array_min(at)), sql.max(sql.array_max(at)))
    counts = map(sql.count_if, wrong.values())
    n_rows, low, high, *bad = table.agg(sql.count("*"), *ends, *counts).first()
    if not n_rows:
        raise ArgumentError(
            "The matrix must have at least one row; the table has none."
        )
    for problem, count in zip(wrong, bad, strict=True):
        if count:
            raise ArgumentError(f"{count:,} of {n_rows:,} rows {problem}.")
    if is_sparse:
        low, high = (0, -1) if low is None else (low, high)
        if low < 0:
            raise ArgumentError(f"Indices must be 0 or more; got {low}.")
        if n_columns is not None and high >= n_columns:
            raise ArgumentError(
                f"Indices must be below n_columns, {n_columns}; got {high}."
            )
        return n_rows, high + 1 if n_columns is None else n_columns
    if low != high:
        raise ArgumentError(f"Rows must be of one length; got {low} to {high}.")
    if n_columns not in (None, high):
        raise ArgumentError(
            f"n_columns must be {high}, the length of the rows; got {n_columns}."
        )
    return n_rows, high

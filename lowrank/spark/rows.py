"""A matrix of rows on a cluster."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lowrank import kernels

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

__all__ = [
    "Centred",
    "Part",
    "Rows",
    "cogroup_in_arrow",
    "column",
    "column_means",
    "group_in_arrow",
    "lists",
    "map_in_arrow",
    "matrix",
    "open_rows",
    "product",
    "table_of",
    "without_word_of_pandas",
]

Doubles = NDArray[np.float64]

_COLLECTED = 2**26  # bytes of partial sums of all partitions that the driver may add up itself
_CHUNK = 2**22  # bytes of a chunk of partial sums, where the cluster adds them up
_NUMBERS = ("float", "double", "int", "bigint", "smallint", "tinyint", "decimal")


@dataclass(frozen=True, eq=False)
class Part:
    """Some rows of the matrix: a dense array, or the arrays of a CSR matrix of float64."""

    matrix: Doubles | kernels.CsrArrays
    n_columns: int

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        matrix = self.matrix
        return len(matrix) if isinstance(matrix, np.ndarray) else len(matrix.indptr) - 1

    def matmat(self, X: Doubles) -> Doubles:
        """Return A @ X, on one thread: Spark runs a task on each core."""
        if isinstance(self.matrix, np.ndarray):
            product: Doubles = self.matrix @ X
            return product
        return np.asarray(kernels.csr_matmat(*self.matrix, X, threads=1))

    def rmatmat(self, Y: Doubles) -> Doubles:
        """Return A.T @ Y."""
        if isinstance(self.matrix, np.ndarray):
            product: Doubles = self.matrix.T @ Y
            return product
        return np.asarray(kernels.csr_rmatmat(*self.matrix, Y, self.n_columns, threads=1))

    def squared_distances(self, row: Doubles) -> Doubles:
        """Return ||x - row||^2 of each row x, without cancellation where rows are whole."""
        if isinstance(self.matrix, np.ndarray):
            return np.asarray(np.square(self.matrix - row).sum(axis=1))
        indptr, indices, data = self.matrix
        # Where x has an entry, (x - r)^2 instead of the r^2 that is taken for all.
        gains = np.square(data - row[indices]) - np.square(row[indices])
        sums = np.add.reduceat(np.append(gains, 0.0), indptr[:-1])
        distances: Doubles = np.where(np.diff(indptr) > 0, sums, 0.0) + row @ row
        return distances


@dataclass(frozen=True)
class Rows:
    """A matrix whose rows lie in a table.

    Attributes
    ----------
    frame : DataFrame
        Columns values (array<double>), indices (array<int>, if sparse) and order (if there is one).
    is_sparse, is_ordered : bool
    is_single : bool
        The values were float32.
    shape : (int, int)
    """

    frame: DataFrame
    is_sparse: bool
    is_ordered: bool
    is_single: bool
    shape: tuple[int, int]

    def summed(self, function: Callable[[Part], Doubles], shape: tuple[int, int]) -> Doubles:
        """Return the sum of `function` over parts of the matrix, whose order does not matter.

        The partial sums of the partitions are added in the order of the partitions, by the driver
        or, where they are large, chunk by chunk on the cluster.

        Parameters
        ----------
        function : callable
            From a `Part` to a float64 ndarray of shape `shape`.
        shape : (int, int)
        """
        bytes_each = 8 * shape[0] * shape[1]
        partitions = self.frame.rdd.getNumPartitions()
        together = partitions * bytes_each <= _COLLECTED
        length = max(1, shape[0] * shape[1] if together else _CHUNK // 8)
        parts = map_in_arrow(
            self.frame, self._summing(function, shape, length), "part int, chunk int, sums binary"
        )
        if not together:
            parts = group_in_arrow(parts, "chunk", _add_chunks, "part int, chunk int, sums binary")
        total: Doubles = np.zeros(shape[0] * shape[1])
        collected = table_of(parts)
        chunks, order = column(collected, "chunk"), column(collected, "part")
        for row in np.lexsort((order, chunks)):
            start = int(chunks[row]) * length
            sums = np.frombuffer(collected.column("sums")[int(row)].as_py())
            total[start : start + len(sums)] += sums
        return total.reshape(shape)

    def mapped(self, function: Callable[[Part, Any], Iterator[Any]], schema: str) -> DataFrame:
        """Send each batch of rows through `function`, with its Arrow record batch."""
        read = self._reader()

        def run(batches: Iterator[Any]) -> Iterator[Any]:
            for batch in batches:
                yield from function(read(batch), batch)

        return map_in_arrow(self.frame, run, schema)

    def _summing(
        self, function: Callable[[Part], Doubles], shape: tuple[int, int], length: int
    ) -> Callable[[Iterator[Any]], Iterator[Any]]:
        read = self._reader()

        def run(batches: Iterator[Any]) -> Iterator[Any]:
            import pyarrow as pa
            from pyspark import TaskContext

            total = np.zeros(shape)
            for batch in batches:
                if batch.num_rows:
                    total += function(read(batch))
            context = TaskContext.get()
            part = 0 if context is None else int(context.partitionId())
            flat = total.ravel()
            for chunk, start in enumerate(range(0, len(flat), length)):
                yield pa.RecordBatch.from_arrays(
                    [
                        pa.array([part], pa.int32()),
                        pa.array([chunk], pa.int32()),
                        pa.array([flat[start : start + length].tobytes()], pa.binary()),
                    ],
                    ["part", "chunk", "sums"],
                )

        return run

    def _reader(self) -> Callable[[Any], Part]:
        n_columns, is_sparse = self.shape[1], self.is_sparse

        def read(batch: Any) -> Part:
            indptr, values = lists(batch, "values")
            values = values.astype(np.float64, copy=False)
            if not is_sparse:
                return Part(values.reshape(len(indptr) - 1, n_columns), n_columns)
            _, indices = lists(batch, "indices")
            return Part(_sorted_rows(indptr, indices, values, n_columns), n_columns)

        return read


def open_rows(
    rows: Any, *, values: str, indices: str | None, order: str | None, n_columns: int | None
) -> Rows:
    """Check a table of rows and find the shape of its matrix.

    Parameters
    ----------
    rows : DataFrame or str
        A table of Spark, or the path of one in Parquet.
    values : str
        Column of arrays of numbers: whole rows, or the entries at `indices`.
    indices : str or None
        Column of arrays of integers, the columns of the entries; None if rows are whole.
    order : str or None
        Column that the rows are ordered by.
    n_columns : int or None
        Number of columns; found if it is not given.

    Raises
    ------
    ImportError
        If PySpark is not installed.
    TypeError
        If a column is not of the type that it must be.
    ValueError
        If a column is missing, there are no rows, rows differ in length, an entry is missing or not
        finite, or an index is out of range or there twice in a row.
    """
    frame = _frame(rows)
    from pyspark.sql import functions as sql

    names = [name for name in (values, indices, order) if name is not None]
    types = dict(frame.dtypes)
    for name in names:
        if name not in types:
            raise ValueError(
                f"The table has no column {name!r}; its columns are {', '.join(types)}."
            )
    _check_array(values, types[values], _NUMBERS)
    if indices is not None:
        _check_array(indices, types[indices], ("int", "bigint", "smallint", "tinyint"))
    chosen = [sql.col(values).cast("array<double>").alias("values")]
    if indices is not None:
        chosen.append(sql.col(indices).cast("array<int>").alias("indices"))
    if order is not None:
        chosen.append(sql.col(order).alias("order"))
    table = frame.select(*chosen)
    shape = _shape(table, indices is not None, n_columns)
    single = types[values] == "array<float>"
    return Rows(table, indices is not None, order is not None, single, shape)


def _frame(rows: Any) -> DataFrame:
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise ImportError(
            "lowrank.spark needs PySpark, which is not installed; "
            "install it with: pip install 'lowrank-recsys[spark]'."
        ) from None
    if not isinstance(rows, str):
        return rows
    session = SparkSession.getActiveSession()
    if session is None:
        raise ValueError("There is no Spark session to read the rows with; start one first.")
    return session.read.parquet(rows)


def _check_array(name: str, kind: str, elements: tuple[str, ...]) -> None:
    if not (kind.startswith("array<") and kind[6:].startswith(elements)):
        raise TypeError(
            f"The column {name!r} must hold arrays of {' or '.join(elements[:2])}; "
            f"it is of type {kind}."
        )


def _shape(table: DataFrame, is_sparse: bool, n_columns: int | None) -> tuple[int, int]:
    """Check the rows in one pass and return the shape of their matrix."""
    from pyspark.sql import functions as sql

    size = sql.size("values")
    entry_is_bad = sql.exists(
        "values", lambda x: x.isNull() | sql.isnan(x) | (sql.abs(x) == float("inf"))
    )
    wanted = {
        "rows": sql.count(sql.lit(1)),
        "missing": sql.count_if(sql.col("values").isNull()),
        "bad": sql.count_if(entry_is_bad),
        "shortest": sql.min(size),
        "longest": sql.max(size),
    }
    if is_sparse:
        distinct = sql.size(sql.array_distinct("indices"))
        wanted |= {
            "unequal": sql.count_if(sql.col("indices").isNull() | (sql.size("indices") != size)),
            "repeated": sql.count_if(distinct != size),
            "least": sql.min(sql.array_min("indices")),
            "most": sql.max(sql.array_max("indices")),
        }
    found = table.agg(*(each.alias(name) for name, each in wanted.items())).first()
    if not found["rows"]:
        raise ValueError("The matrix must have at least one row; the table has none.")
    for name, what in (
        ("missing", "have no values"),
        ("bad", "have an entry that is missing or not finite"),
        ("unequal", "have not as many indices as values"),
        ("repeated", "name a column twice"),
    ):
        if name in wanted and found[name]:
            raise ValueError(f"{found[name]:,} of {found['rows']:,} rows {what}.")
    if is_sparse:
        return int(found["rows"]), _width(found["least"], found["most"], n_columns)
    if found["shortest"] != found["longest"]:
        raise ValueError(
            f"Rows must be of one length; got {found['shortest']} to {found['longest']}."
        )
    width = int(found["longest"])
    if n_columns is not None and n_columns != width:
        raise ValueError(f"n_columns must be {width}, the length of the rows; got {n_columns}.")
    return int(found["rows"]), width


def _width(least: int | None, most: int | None, n_columns: int | None) -> int:
    """Return the number of columns of a sparse matrix with these extreme indices."""
    highest = -1 if most is None else int(most)
    if least is not None and least < 0:
        raise ValueError(f"Indices must be 0 or more; got {least}.")
    if n_columns is None:
        return highest + 1
    if highest >= n_columns:
        raise ValueError(f"Indices must be below n_columns, {n_columns}; got {highest}.")
    return int(n_columns)


def _sorted_rows(
    indptr: NDArray[np.int64], indices: NDArray[Any], values: Doubles, n_columns: int
) -> kernels.CsrArrays:
    """Return CSR arrays with the indices of each row ascending, as the kernels want them."""
    rows = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    keys = rows * np.int64(n_columns) + indices
    if len(keys) and (np.diff(keys) < 0).any():
        order = np.argsort(keys)
        indices, values = indices[order], values[order]
    return kernels.CsrArrays(indptr, indices.astype(np.int32, copy=False), values)


def _add_chunks(table: Any) -> Any:
    """Add up the partial sums of one chunk in the order of their partitions."""
    import pyarrow as pa

    total = None
    for row in np.argsort(column(table, "part")):
        sums = np.frombuffer(table.column("sums")[int(row)].as_py())
        total = sums.copy() if total is None else total + sums
    chunk = table.column("chunk")[0].as_py()
    whole = b"" if total is None else total.tobytes()
    return pa.Table.from_arrays(
        [
            pa.array([0], pa.int32()),
            pa.array([chunk], pa.int32()),
            pa.array([whole], pa.binary()),
        ],
        ["part", "chunk", "sums"],
    )


Batches = Iterator[Any]


def map_in_arrow(
    frame: DataFrame, function: Callable[[Batches], Batches], schema: str
) -> DataFrame:
    """Send each partition of `frame` through `function` as Arrow record batches."""
    with without_word_of_pandas():
        return frame.mapInArrow(function, schema)


def group_in_arrow(
    frame: DataFrame, by: str, function: Callable[[pa.Table], pa.Table], schema: str
) -> DataFrame:
    """Send the rows of each key through `function` as one table."""
    with without_word_of_pandas():
        return frame.groupBy(by).applyInArrow(function, schema)


def cogroup_in_arrow(
    left: DataFrame,
    right: DataFrame,
    left_by: list[str],
    right_by: list[str],
    function: Callable[[pa.Table, pa.Table], pa.Table],
    schema: str,
) -> DataFrame:
    """Bring rows with the same key together and send each pair of tables through `function`.

    The columns of the two keys have different names, so that Spark can tell them apart.
    """
    with without_word_of_pandas():
        pairs = left.groupBy(*left_by).cogroup(right.groupBy(*right_by))
        return pairs.applyInArrow(function, schema)


@contextmanager
def without_word_of_pandas() -> Iterator[None]:
    """PySpark warns of new versions of pandas also where it uses none of it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*pandas", category=FutureWarning)
        warnings.filterwarnings("ignore", message=".*pandas", category=UserWarning)
        yield


def table_of(frame: DataFrame) -> pa.Table:
    """Collect a small frame as an Arrow table."""
    with without_word_of_pandas():
        return frame.toArrow()


def column(batch: Any, name: str) -> NDArray[Any]:
    """Return a column of numbers of a record batch or table."""
    array: NDArray[Any] = batch.column(name).to_numpy(**_may_copy(batch.column(name)))
    return array


def lists(batch: Any, name: str) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Return a column of lists as row pointers, shape (n + 1,), and the values of all lists."""
    array = _contiguous(batch.column(name))
    lengths = array.value_lengths().to_numpy(zero_copy_only=False)
    indptr = np.zeros(len(array) + 1, np.int64)
    np.cumsum(lengths, out=indptr[1:])
    return indptr, array.flatten().to_numpy(zero_copy_only=False)


def matrix(batch: Any, name: str) -> NDArray[np.float32]:
    """Return a column of lists of one length as the rows of a float32 matrix."""
    indptr, values = lists(batch, name)
    width = int(indptr[1]) if len(indptr) > 1 else 0
    return values.reshape(len(indptr) - 1, width).astype(np.float32, copy=False)


def _contiguous(array: Any) -> Any:
    import pyarrow as pa

    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


def _may_copy(array: Any) -> dict[str, bool]:
    import pyarrow as pa

    return {} if isinstance(array, pa.ChunkedArray) else {"zero_copy_only": False}


Doubles = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Centred:
    """The matrix on the cluster, minus a row (None for zeros)."""

    rows: Rows
    row: Doubles | None

    @property
    def n_columns(self) -> int:
        """Number of columns."""
        return self.rows.shape[1]

    def gram_product(self, X: Doubles) -> Doubles:
        """Return A'A X in one pass; A minus the row is a correction of rank one."""
        row, width = self.row, X.shape[1]
        shared = self.rows.frame.sparkSession.sparkContext.broadcast(X)

        def part(rows: Part) -> Doubles:
            Y = product(rows, shared.value, row)
            return np.vstack([rows.rmatmat(Y), Y.sum(axis=0)])

        found = self.rows.summed(part, (self.n_columns + 1, width))
        shared.destroy()
        return self.corrected(found)

    def corrected(self, found: Doubles) -> Doubles:
        """Subtract what the row takes from A'Y, given A'Y above the sums of the columns of Y."""
        product, sums = found[: self.n_columns], found[self.n_columns]
        return product if self.row is None else product - np.outer(self.row, sums)


def product(rows: Part, X: Doubles, row: Doubles | None) -> Doubles:
    """Return (A - 1 row') X for some rows of A."""
    Y = rows.matmat(X)
    return Y if row is None else Y - row @ X


def column_means(rows: Rows) -> Doubles:
    """Return the means of the columns, one pass."""
    sums = rows.summed(lambda part: part.rmatmat(np.ones((part.n_rows, 1))), (rows.shape[1], 1))
    means: Doubles = sums[:, 0] / rows.shape[0]
    return means

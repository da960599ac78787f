"""Rows of lists between Spark and NumPy, through Arrow and without pandas."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

__all__ = [
    "cogroup_in_arrow",
    "column",
    "group_in_arrow",
    "lists",
    "map_in_arrow",
    "matrix",
    "table_of",
    "without_word_of_pandas",
]

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

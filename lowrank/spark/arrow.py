"""Arrow tables between Spark and NumPy."""

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

    Batches = Iterator[pa.RecordBatch]


@contextmanager
def quiet_pandas() -> Iterator[None]:
    """Silence PySpark's warnings about versions of pandas, which is not used here."""
    with warnings.catch_warnings():
        for category in (FutureWarning, UserWarning):
            warnings.filterwarnings("ignore", message=".*pandas", category=category)
        yield


def map_in_arrow(
    frame: DataFrame,
    function: Callable[[Batches], Batches],
    schema: str,
) -> DataFrame:
    """Apply a function to the Arrow record batches of each partition."""
    with quiet_pandas():
        return frame.mapInArrow(function, schema)


def table_of(frame: DataFrame) -> pa.Table:
    """Collect a small frame as an Arrow table."""
    with quiet_pandas():
        return frame.toArrow()


def lists(column: Any) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Return a column of lists as row pointers, shape (n + 1,), and their values."""
    lengths = column.value_lengths().to_numpy(zero_copy_only=False)
    indptr = np.append(0, np.cumsum(lengths)).astype(np.int64)
    return indptr, column.flatten().to_numpy(zero_copy_only=False)


def list_array(rows: NDArray[Any]) -> pa.ListArray:
    """Return the rows of a matrix as a column of lists."""
    import pyarrow as pa

    offsets = np.arange(len(rows) + 1, dtype=np.int32) * np.int32(rows.shape[1])
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(rows.ravel()))

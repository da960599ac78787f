"""Data frames of polars, pandas and any library with Arrow streams, and matrices."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeGuard
from uuid import UUID

import numpy as np
import polars as pl

from recsys.data.arrays import Array, Floats
from recsys.data.ids import query_series
from recsys.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

    from recsys.data.ids import IdsLike


class ArrowStream(Protocol):
    """Object with the Arrow C stream interface: tables of pyarrow, DuckDB, pandas 2.2, ..."""

    def __arrow_c_stream__(self, requested_schema: object | None = None, /) -> object:
        """Return a capsule with the stream."""


class _Stream:
    """Wrapper of an Arrow stream, because polars keeps the type: DuckDB reports that as a leak."""

    def __init__(self, frame: ArrowStream) -> None:
        self.__arrow_c_stream__ = frame.__arrow_c_stream__


FrameLike: TypeAlias = "pl.DataFrame | pl.LazyFrame | pd.DataFrame | ArrowStream"
"""Data frame, as accepted by all public functions."""


def as_frame(frame: FrameLike) -> pl.DataFrame | pd.DataFrame:
    """Return a polars or pandas frame unchanged, and convert any other frame to polars.

    Raises
    ------
    DataError
        If it is neither a polars or pandas frame nor has the Arrow C stream interface.
    """
    if isinstance(frame, pl.DataFrame) or is_pandas(frame):
        return frame
    if isinstance(frame, pl.LazyFrame):
        return frame.collect()
    if hasattr(frame, "__arrow_c_stream__") and not hasattr(
        frame, "dtype"
    ):  # not a Series
        return pl.DataFrame(_Stream(frame))
    problem = (
        "Expected a polars or pandas frame, or an object with __arrow_c_stream__; got "
        f"{type(frame).__name__}."
    )
    if len(getattr(frame, "shape", ())) == 2:
        problem += " Ratings.from_matrix takes matrices."
    raise DataError(problem)


def to_polars(
    frame: FrameLike,
    names: Sequence[str] | None = None,
    *,
    mixed: Collection[str] = (),
) -> pl.DataFrame:
    """Convert a frame to polars, with all its columns or only the named ones.

    The values of `mixed` columns may be of several types, and are texts then.

    Raises
    ------
    DataError
        As `as_frame`; also if a named column is missing or occurs twice, or a pandas column mixes
        types.
    """
    frame = as_frame(frame)
    present = column_names(frame)
    chosen = list(dict.fromkeys(present if names is None else names))
    for name in chosen:
        if name not in present:
            inside = is_pandas(frame) and name in frame.index.names
            hint = " It is in the index; reset_index() makes it a column." * inside
            raise DataError(
                f"The frame has no column {name!r}; its columns are {', '.join(present)}.{hint}"
            )
        if present.count(name) > 1:
            raise DataError(
                f"The frame has several columns {name!r}; rename all but one."
            )
    if isinstance(frame, pl.DataFrame):
        return frame.select(chosen)
    positions = [present.index(name) for name in chosen]
    columns = [_pandas_column(frame.iloc[:, position], mixed) for position in positions]
    return pl.DataFrame(columns)


def column_names(frame: Any) -> list[str]:
    """Return the names of the columns of a polars or pandas frame."""
    return [str(name) for name in frame.columns]


def listed(ids: IdsLike) -> list[Any] | pl.Series | Array:
    """Return a single id as a list of one, and a Series or array unchanged.

    Raises
    ------
    DataError
        If `ids` is a mapping or a frame.
    """
    if isinstance(ids, Mapping) or hasattr(ids, "columns"):
        hint = "; pass the ratings of a user as history=" * isinstance(ids, Mapping)
        raise DataError(
            f"Expected an id or a sequence of ids; got a {type(ids).__name__}{hint}."
        )
    if isinstance(ids, str | bytes) or not isinstance(ids, Iterable):
        return [ids]
    return ids if isinstance(ids, pl.Series | np.ndarray) else list(ids)


def is_pandas(frame: object) -> TypeGuard[pd.DataFrame]:
    """Return whether an object is a pandas frame, without importing pandas."""
    return type(frame).__module__.partition(".")[0] == "pandas" and hasattr(
        frame, "columns"
    )


def _pandas_column(series: Any, mixed: Collection[str] = ()) -> pl.Series:
    """Convert a pandas column to polars, without pyarrow; types may differ in `mixed` columns."""
    name = str(series.name)
    kind = getattr(series.dtype, "kind", "O")
    if isinstance(series.dtype, np.dtype) and kind in "iuf":
        return pl.Series(name, np.ascontiguousarray(series.to_numpy()))
    if kind == "M":
        return pl.Series(name, series.to_numpy(dtype="datetime64[us]"))
    missing = ("NoneType", "NAType", "NaTType")
    values: list[Any] = [
        None
        if type(value).__name__ in missing or value != value
        else value  # NaN is not itself
        for value in series.tolist()
    ]
    if any(isinstance(value, UUID) for value in values[:1]):  # of database drivers
        values = [None if value is None else str(value) for value in values]
    try:
        return pl.Series(name, values, strict=True)
    except (TypeError, ValueError, pl.exceptions.PolarsError):
        if name in mixed:
            return query_series(values, name).alias(name)
        raise DataError(f"Column {name!r} mixes values of several types.") from None


def are_booleans(matrix: Any) -> bool:
    """Return whether an array, a sparse matrix or a frame has Booleans only."""
    if is_pandas(matrix):
        kinds = {dtype.kind for dtype in matrix.dtypes}
        return kinds == {"b"}
    return getattr(getattr(matrix, "dtype", None), "kind", None) == "b"


def matrix_entries(
    matrix: Any, *, zeros: bool = True
) -> tuple[Any, Array, Array, Floats]:
    """Return the shape, rows, columns and values of a sparse or dense matrix.

    If `zeros` is False, zeros are left out like missing values.

    Raises
    ------
    DataError
        If the matrix is not two-dimensional or not real, has no entries, or has one that is not
        finite.
    """
    import scipy.sparse as sp

    dtypes = set(matrix.dtypes) if is_pandas(matrix) else set()
    if dtypes and all(getattr(dtype, "fill_value", 1) == 0 for dtype in dtypes):
        matrix = matrix.sparse.to_coo()
    elif is_pandas(matrix) and all(dtype.kind in "biuf" for dtype in matrix.dtypes):
        matrix = matrix.to_numpy(
            np.float64, na_value=np.nan
        )  # also of nullable columns
    if isinstance(matrix, np.ma.MaskedArray) and matrix.dtype.kind in "biuf":
        matrix = np.ma.filled(matrix.astype(np.float64), np.nan)
    is_sparse = bool(sp.issparse(matrix))
    if not is_sparse:
        try:
            matrix = np.asarray(matrix)
        except ValueError:  # rows of different lengths
            raise DataError("The matrix must have rows of the same length.") from None
    if matrix.ndim != 2:
        raise DataError(
            f"The matrix must have 2 dimensions (users x items); got {matrix.ndim}."
        )
    if matrix.dtype.kind not in "biuf":
        raise DataError(f"The matrix must hold real numbers; got {matrix.dtype}.")
    if is_sparse:
        if matrix.dtype.kind in "iu" and matrix.dtype.itemsize < np.int64().itemsize:
            matrix = matrix.astype(np.int64)  # which holds sums of repeated entries
        csr = matrix.tocsr(copy=True)
        csr.sum_duplicates()
        rows, columns = csr.tocoo().coords
        data = csr.data
    else:
        rows, columns = np.nonzero(~np.isnan(matrix))
        data = matrix[rows, columns]
    if not zeros:
        is_entry = data != 0
        rows = rows[is_entry]
        columns = columns[is_entry]
        data = data[is_entry]
    with np.errstate(over="ignore"):
        values = data.astype(np.float32)
    finite = np.isfinite(values)
    if not finite.all():
        bad = int(np.argmin(finite))
        raise DataError(
            f"Row {rows[bad]}, column {columns[bad]} (from 0): rating {data[bad]} is not a finite "
            "number of type float32."
        )
    return matrix.shape, rows, columns, values

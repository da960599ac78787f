"""Matrices, sparse or dense, as the canonical CSR arrays that `Ratings` is built of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from recsys.duplicates import CSR, to_csr
from recsys.errors import DataError
from recsys.frames import is_pandas
from recsys.ids import Ids, as_id_series

__all__ = ["canonical_csr", "ids_of_axis", "labels_of", "permuted"]


class Axis(NamedTuple):
    """Ids of one axis of a matrix: sorted, and the new index of each row (or column)."""

    ids: Ids
    codes: npt.NDArray[np.int32] | None


class Labels(NamedTuple):
    """What the rows and columns of a matrix are called, if they are."""

    rows: Sequence[Any] | None
    columns: Sequence[Any] | None


def labels_of(matrix: Any) -> Labels:
    """Return the labels of a pandas frame; other matrices have none."""
    if not is_pandas(matrix):
        return Labels(None, None)
    return Labels(matrix.index.tolist(), matrix.columns.tolist())


def canonical_csr(matrix: Any) -> CSR:
    """Return a sparse or dense matrix as canonical CSR arrays, never writing to the input."""
    import scipy.sparse as sp

    if sp.issparse(matrix):
        return _from_sparse(matrix)
    dense = np.asarray(matrix)
    _check_real(dense.ndim, dense.dtype)
    given = ~np.isnan(dense)
    rows, columns = np.nonzero(given)
    values = _finite_float32(dense[given], rows, columns)
    indptr = np.concatenate([[0], np.cumsum(given.sum(axis=1))]).astype(np.int64)
    return CSR(dense.shape, indptr, columns.astype(np.int32), values, None)


def _from_sparse(matrix: Any) -> CSR:
    _check_real(matrix.ndim, matrix.dtype)
    csr = matrix.tocsr()
    if not csr.has_canonical_format:
        csr = csr.copy() if csr is matrix else csr
        csr.sum_duplicates()
    indptr = csr.indptr.astype(np.int64)
    rows = np.repeat(np.arange(csr.shape[0]), np.diff(indptr))
    values = _finite_float32(csr.data, rows, csr.indices)
    return CSR(csr.shape, indptr, csr.indices.astype(np.int32), values, None)


def _check_real(n_dimensions: int, dtype: np.dtype[Any]) -> None:
    if n_dimensions != 2:
        raise DataError(f"The matrix must have 2 dimensions (users x items); got {n_dimensions}.")
    if dtype.kind not in "biuf":
        raise DataError(f"The matrix must hold real numbers; got {dtype}.")


def _finite_float32(
    data: npt.NDArray[Any], rows: npt.NDArray[Any], columns: npt.NDArray[Any]
) -> npt.NDArray[np.float32]:
    """Return values as a float32 copy; the first that is not finite is an error."""
    with np.errstate(over="ignore"):
        values = data.astype(np.float32)
    if not len(values):
        raise DataError("There are no ratings: the matrix has no entries.")
    finite = np.isfinite(values)
    if not finite.all():
        bad = int(np.argmin(finite))
        raise DataError(
            f"Row {rows[bad]}, column {columns[bad]} (from 0): rating {data[bad]} is not a finite "
            "number of type float32."
        )
    return values


def ids_of_axis(
    given: Sequence[Any] | pl.Series | None, length: int, kind: Literal["user", "item"]
) -> Axis:
    """Return the sorted ids of an axis and where each of its rows (or columns) goes.

    Raises
    ------
    DataError
        If there are more or fewer ids than rows, or an id is there twice.
    """
    if given is None:
        return Axis(Ids(pl.Series(kind, np.arange(length)), kind), None)
    series = as_id_series(given, kind)
    if len(series) != length:
        raise DataError(f"The matrix has {length} {kind}s; got {len(series)} {kind} ids.")
    ids = Ids(series, kind)
    if len(ids) != length:
        repeated = series.filter(series.is_duplicated())[0]
        raise DataError(f"{kind.capitalize()} id {repeated!r} is given more than once.")
    return Axis(ids, ids.find(series).astype(np.int32))


def permuted(
    csr: CSR, row_codes: npt.NDArray[np.int32] | None, column_codes: npt.NDArray[np.int32] | None
) -> CSR:
    """Return the matrix with row r at row_codes[r] and column c at column_codes[c]."""
    if row_codes is None and column_codes is None:
        return csr
    rows = np.repeat(np.arange(csr.shape[0], dtype=np.int32), np.diff(csr.indptr))
    rows = rows if row_codes is None else row_codes[rows]
    columns = csr.indices if column_codes is None else column_codes[csr.indices]
    return to_csr(rows, columns, csr.values, None, csr.shape, "last")

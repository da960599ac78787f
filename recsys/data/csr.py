"""Canonical CSR matrices from triples, dense arrays and sparse matrices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt
import polars as pl

from recsys.data.ids import Ids, IdsLike, as_id_series
from recsys.errors import DataError

__all__ = [
    "CSR",
    "Policy",
    "canonical_csr",
    "check_policy",
    "ids_of_axis",
    "permuted",
    "to_csr",
]

Policy = Literal["last", "first", "mean", "sum", "error"]
Ints = npt.NDArray[np.integer[Any]]

_KEY_BITS = 63  # an int64 key must stay non-negative


@dataclass(frozen=True, slots=True)
class CSR:
    """Canonical CSR arrays, and what became of repeated (user, item) pairs.

    Attributes
    ----------
    shape : tuple (n_users, n_items)
    indptr : int64 ndarray of shape (n_users + 1,)
    indices : int32 ndarray of shape (nnz,)
        Item indices, strictly increasing within each user.
    values : float32 ndarray of shape (nnz,)
    timestamps : int64 ndarray of shape (nnz,) or None
    n_duplicates : int
        Rows that were merged into another one or dropped.
    repeat : tuple of two ints, or None
        Rows (counted from 0) of the first pair that is met again, with its second place.
    """

    shape: tuple[int, int]
    indptr: npt.NDArray[np.int64]
    indices: npt.NDArray[np.int32]
    values: npt.NDArray[np.float32]
    timestamps: npt.NDArray[np.int64] | None
    n_duplicates: int = 0
    repeat: tuple[int, int] | None = None


def check_policy(duplicates: str) -> Policy:
    """Return the policy for repeated pairs if it is one of the known ones.

    Raises
    ------
    DataError
        If it is unknown.
    """
    for policy in get_args(Policy):
        if policy == duplicates:
            return policy  # type: ignore[no-any-return]
    known = ", ".join(get_args(Policy))
    raise DataError(f"duplicates must be one of {known}; got {duplicates!r}.")


def to_csr(
    users: npt.NDArray[np.int32],
    items: npt.NDArray[np.int32],
    values: npt.NDArray[np.float32] | None,
    timestamps: npt.NDArray[np.int64] | None,
    shape: tuple[int, int],
    policy: Policy,
) -> CSR:
    """Return the triples in canonical CSR form, with repeated pairs merged.

    Parameters
    ----------
    users, items : int32 ndarrays of shape (n_rows,)
        Indices, in any order.
    values : float32 ndarray of shape (n_rows,), or None for ones
    timestamps : int64 ndarray of shape (n_rows,), or None
        Decides what is first and last; ties, and data without it, go by the order of rows.
    shape : tuple (n_users, n_items)
    policy : {"last", "first", "mean", "sum", "error"}
        "mean" and "sum" keep the latest timestamp. With "error" nothing is merged: the caller
        looks at `repeat`.
    """
    keys, order = _sorted_keys(users, items, shape[1], shape[0])
    repeats = keys[1:] == keys[:-1]
    del keys
    n_duplicates = int(np.count_nonzero(repeats))
    values = np.ones(len(users), dtype=np.float32) if values is None else values[order]
    timestamps = None if timestamps is None else timestamps[order]
    if n_duplicates == 0 or policy == "error":
        indptr = _indptr(users, shape[0])
        repeat = None
        if n_duplicates:  # the pair whose second place comes first among the rows
            places = np.flatnonzero(repeats)
            rows = np.arange(len(users)) if isinstance(order, slice) else order
            second = int(np.argmin(rows[places + 1]))
            repeat = int(rows[places[second]]), int(rows[places[second] + 1])
        return CSR(shape, indptr, items[order], values, timestamps, n_duplicates, repeat)
    runs = _Runs.of(repeats)
    chosen = runs.choose(timestamps, "first" if policy == "first" else "last")
    merged = runs.merge(values, policy) if policy in ("mean", "sum") else values[chosen]
    kept = chosen if isinstance(order, slice) else order[chosen]
    times = None if timestamps is None else timestamps[chosen]
    return CSR(shape, _indptr(users[kept], shape[0]), items[kept], merged, times, n_duplicates)


def _sorted_keys(
    users: npt.NDArray[np.int32], items: npt.NDArray[np.int32], n_items: int, n_users: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64] | slice]:
    """Return user * n_items + item in increasing order, and the stable order that sorts it.

    Where the key and the row number fit into 63 bits together, they are packed and sorted in
    place: that is stable by construction, several times as fast as a stable argsort, and needs
    no scratch memory.
    """
    keys = users * np.int64(n_items)
    keys += items
    if bool(np.all(keys[1:] >= keys[:-1])):
        return keys, slice(None)
    shift = len(keys).bit_length()
    if (n_users * n_items).bit_length() + shift > _KEY_BITS:
        order = np.argsort(keys, kind="stable")
        return keys[order], order
    keys <<= shift
    keys += np.arange(len(keys), dtype=np.int64)
    keys.sort()
    order = keys & ((1 << shift) - 1)
    keys >>= shift
    return keys, order


def _indptr(users: npt.NDArray[np.int32], n_users: int) -> npt.NDArray[np.int64]:
    indptr = np.zeros(n_users + 1, dtype=np.int64)
    np.cumsum(np.bincount(users, minlength=n_users), out=indptr[1:])
    return indptr


@dataclass(frozen=True, slots=True)
class _Runs:
    """Runs of equal pairs among the sorted rows; `long` are those of more than one row.

    `members` are the sorted rows in long runs, `offsets` where each long run begins among them.
    """

    starts: npt.NDArray[np.int64]
    long: npt.NDArray[np.int64]
    members: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]

    @classmethod
    def of(cls, repeats: npt.NDArray[np.bool_]) -> _Runs:
        starts = np.flatnonzero(np.concatenate([[True], ~repeats]))
        lengths = np.diff(starts, append=len(repeats) + 1)
        long = np.flatnonzero(lengths > 1)
        ends = np.cumsum(lengths[long])
        offsets = ends - lengths[long]
        within = np.arange(ends[-1]) - np.repeat(offsets, lengths[long])
        members = np.repeat(starts[long], lengths[long]) + within
        return cls(starts, long, members, offsets)

    def choose(
        self, timestamps: npt.NDArray[np.int64] | None, which: Literal["first", "last"]
    ) -> npt.NDArray[np.int64]:
        """Return the sorted row that stands for each run: the first or last one in time."""
        members = self.members
        if timestamps is not None:
            lengths = np.diff(self.offsets, append=len(members))
            run_of_member = np.repeat(np.arange(len(lengths)), lengths)
            members = members[np.lexsort((timestamps[members], run_of_member))]
        ends = np.append(self.offsets[1:], len(members)) - 1
        chosen = self.starts.copy()
        chosen[self.long] = members[self.offsets if which == "first" else ends]
        return chosen

    def merge(
        self, values: npt.NDArray[np.float32], policy: Literal["mean", "sum"]
    ) -> npt.NDArray[np.float32]:
        """Return one value per run: the mean or the sum of its rows, added in float64."""
        merged = values[self.starts]
        totals = np.add.reduceat(values[self.members].astype(np.float64), self.offsets)
        if policy == "mean":
            totals /= np.diff(self.offsets, append=len(self.members))
        merged[self.long] = totals
        return merged


class Axis(NamedTuple):
    """Ids of one axis of a matrix: sorted, and the new index of each row (or column)."""

    ids: Ids
    codes: npt.NDArray[np.int32] | None


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


def ids_of_axis(given: IdsLike | None, length: int, kind: str) -> Axis:
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

"""Canonical CSR matrices from triples, dense arrays and sparse matrices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import polars as pl

from recsys.data.ids import Ids, IdsLike, as_id_series
from recsys.errors import DataError

__all__ = ["CSR", "Policy", "check_policy", "csr_with_ids", "keys_to_csr", "pair_keys", "to_csr"]

Policy = Literal["last", "first", "mean", "sum", "error"]

_CHUNK = 1 << 20  # rows at once: bounds the scratch memory
_KEY_BITS = 63  # an int64 key must stay non-negative


@dataclass(frozen=True, slots=True)
class CSR:
    """Canonical CSR arrays, as in `Ratings`, and repeated (user, item) pairs.

    `n_duplicates` rows were merged or dropped; `repeat` has the rows of the first repeated pair,
    and its place in the arrays.
    """

    shape: tuple[int, int]
    indptr: npt.NDArray[np.int64]
    indices: npt.NDArray[np.int32]
    values: npt.NDArray[np.float32]
    timestamps: npt.NDArray[np.int64] | None
    n_duplicates: int = 0
    repeat: tuple[int, int, int] | None = None


def check_policy(duplicates: str | None) -> Policy | None:
    """Return the policy for repeated pairs if it is one of the known ones, or None.

    Raises
    ------
    DataError
        If it is unknown.
    """
    if duplicates is not None and duplicates not in get_args(Policy):
        known = ", ".join(get_args(Policy))
        raise DataError(f"duplicates must be one of {known}; got {duplicates!r}.")
    return duplicates  # type: ignore[return-value]


def to_csr(
    users: npt.NDArray[np.int32],
    items: npt.NDArray[np.int32],
    values: npt.NDArray[np.float32] | None,
    timestamps: npt.NDArray[np.int64] | None,
    shape: tuple[int, int],
    policy: Policy,
) -> CSR:
    """Return triples, in any order, in canonical CSR form, with repeated pairs merged.

    Values of None are ones. The timestamps decide what is first and last; ties, and data without
    them, go by the order of rows. "mean" and "sum" keep the latest timestamp. With "error"
    nothing is merged: the caller looks at `repeat`.
    """
    return keys_to_csr(pair_keys(users, items, shape), values, timestamps, shape, policy)


def pair_keys(
    users: npt.NDArray[np.int32], items: npt.NDArray[np.int32], shape: tuple[int, int]
) -> npt.NDArray[np.int64]:
    """Return user * n_items + item for each pair."""
    keys = users * np.int64(shape[1])
    keys += items
    return keys


def keys_to_csr(
    keys: npt.NDArray[np.int64],
    values: npt.NDArray[np.float32] | None,
    timestamps: npt.NDArray[np.int64] | None,
    shape: tuple[int, int],
    policy: Policy,
) -> CSR:
    """Return rows with the keys of `pair_keys`, which are overwritten, as `to_csr` does.

    Of millions of rows, this keeps only what is needed: 8 bytes for a key and 4 for its row.
    """
    keys, rows = _sorted_keys(keys, shape)
    repeats = keys[1:] == keys[:-1]
    n_duplicates = int(np.count_nonzero(repeats))
    repeat, merged = None, None
    if n_duplicates and policy == "error":  # the pair whose second place comes first among rows
        rows = np.arange(len(keys)) if rows is None else rows
        places = np.flatnonzero(repeats)
        at = int(places[np.argmin(rows[places + 1])])
        repeat = int(rows[at]), int(rows[at + 1]), at
    elif n_duplicates:
        rows = np.arange(len(keys)) if rows is None else rows
        if timestamps is not None:
            members = np.flatnonzero(np.append(False, repeats) | np.append(repeats, False))
            by_time = np.lexsort((timestamps[rows[members]], keys[members]))
            rows[members] = rows[members[by_time]]
        is_first, is_last = np.append(True, ~repeats), np.append(~repeats, True)
        if policy in ("mean", "sum"):
            starts = np.flatnonzero(is_first)
            given = np.ones(len(rows), np.float32) if values is None else values[rows]
            totals = np.add.reduceat(given, starts, dtype=np.float64)
            totals /= np.diff(starts, append=len(keys)) if policy == "mean" else 1
            merged = totals.astype(np.float32)
        kept = is_first if policy == "first" else is_last
        keys, rows = _kept_in_place(keys, kept), _kept_in_place(rows, kept)
    del repeats
    ends = np.arange(1, shape[0] + 1) * np.int64(shape[1])
    indptr = np.append(0, np.searchsorted(keys, ends)).astype(np.int64)
    indices = np.empty(len(keys), dtype=np.int32)
    for start in range(0, len(keys), _CHUNK):
        part = slice(start, start + _CHUNK)
        indices[part] = keys[part] % max(shape[1], 1)
    del keys  # before the others are put in order
    if merged is not None:
        values = merged
    elif values is None:
        values = np.ones(len(indices), dtype=np.float32)
    elif rows is not None:
        values = values[rows]
    if timestamps is not None and rows is not None:
        timestamps = timestamps[rows]
    return CSR(shape, indptr, indices, values, timestamps, n_duplicates, repeat)


def _kept_in_place(array: npt.NDArray[Any], mask: npt.NDArray[np.bool_]) -> npt.NDArray[Any]:
    """Return the entries of a mask, moved to the front of the array: without another copy."""
    end = 0
    for start in range(0, len(array), _CHUNK):
        part = array[start : start + _CHUNK][mask[start : start + _CHUNK]]
        array[end : end + len(part)] = part
        end += len(part)
    return array[:end]


def _sorted_keys(
    keys: npt.NDArray[np.int64], shape: tuple[int, int]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.integer[Any]] | None]:
    """Return the keys in increasing order, and their rows in it (None: it is theirs already).

    Where key and row number fit into 63 bits together, they are packed and sorted in place: stable,
    several times as fast as a stable argsort, and without scratch memory.
    """
    if bool(np.all(keys[1:] >= keys[:-1])):
        return keys, None
    shift = len(keys).bit_length()
    if (shape[0] * shape[1]).bit_length() + shift > _KEY_BITS:
        order = np.argsort(keys, kind="stable")
        return keys[order], order
    keys <<= shift
    for start in range(0, len(keys), _CHUNK):
        keys[start : start + _CHUNK] += np.arange(start, min(start + _CHUNK, len(keys)))
    keys.sort()
    mask = (1 << shift) - 1
    rows = np.empty(len(keys), dtype=np.uint32 if shift <= 32 else np.int64)
    for start in range(0, len(keys), _CHUNK):
        rows[start : start + _CHUNK] = keys[start : start + _CHUNK] & mask
    keys >>= shift
    return keys, rows


def csr_with_ids(matrix: Any, users: IdsLike | None, items: IdsLike | None) -> tuple[Ids, Ids, CSR]:
    """Return a sparse or dense matrix with its rows and columns in the order of sorted ids."""
    csr = _canonical(matrix)
    row_ids, row_codes = _axis(users, csr.shape[0], "user")
    column_ids, column_codes = _axis(items, csr.shape[1], "item")
    if row_codes is not None or column_codes is not None:
        rows = np.repeat(np.arange(csr.shape[0], dtype=np.int32), np.diff(csr.indptr))
        rows = rows if row_codes is None else row_codes[rows]
        columns = csr.indices if column_codes is None else column_codes[csr.indices]
        csr = to_csr(rows, columns, csr.values, None, csr.shape, "last")
    return row_ids, column_ids, csr


def _canonical(matrix: Any) -> CSR:
    """Return a sparse or dense matrix as canonical CSR arrays, never writing to the input."""
    import scipy.sparse as sp

    is_sparse = sp.issparse(matrix)
    matrix = matrix if is_sparse else np.asarray(matrix)
    if matrix.ndim != 2:
        raise DataError(f"The matrix must have 2 dimensions (users x items); got {matrix.ndim}.")
    if matrix.dtype.kind not in "biuf":
        raise DataError(f"The matrix must hold real numbers; got {matrix.dtype}.")
    if is_sparse:
        csr = matrix.tocsr()
        if not csr.has_canonical_format:
            csr = csr.copy() if csr is matrix else csr
            csr.sum_duplicates()
        indptr, columns, data = csr.indptr, csr.indices, csr.data
    else:
        given = ~np.isnan(matrix)
        indptr = np.append(0, np.cumsum(given.sum(axis=1)))
        columns, data = np.nonzero(given)[1], matrix[given]
    with np.errstate(over="ignore"):
        values = data.astype(np.float32)
    if not len(values):
        raise DataError("There are no ratings: the matrix has no entries.")
    finite = np.isfinite(values)
    if not finite.all():
        bad = int(np.argmin(finite))
        row = np.searchsorted(indptr, bad, side="right") - 1
        raise DataError(
            f"Row {row}, column {columns[bad]} (from 0): rating {data[bad]} is not a finite "
            "number of type float32."
        )
    return CSR(matrix.shape, indptr.astype(np.int64), columns.astype(np.int32), values, None)


def _axis(
    given: IdsLike | None, length: int, kind: str
) -> tuple[Ids, npt.NDArray[np.int32] | None]:
    """Return the sorted ids of an axis and the new index of each of its rows (or columns)."""
    if given is None:
        return Ids(pl.Series(kind, np.arange(length)), kind), None
    series = as_id_series(given, kind)
    if len(series) != length:
        raise DataError(f"The matrix has {length} {kind}s; got {len(series)} {kind} ids.")
    ids = Ids(series, kind)
    if len(ids) != length:
        repeated = series.filter(series.is_duplicated())[0]
        raise DataError(f"{kind.capitalize()} id {repeated!r} is given more than once.")
    return ids, ids.find(series).astype(np.int32)

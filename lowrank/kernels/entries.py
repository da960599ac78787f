"""Entries of sparse matrices: in CSR form, their values as numbers or as codes of one byte.

Arrays of one number for each entry are the largest that there are; the functions here make no
others of their size than those that they return.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from lowrank.kernels import backends

__all__ = [
    "N_CODES",
    "CodedMatrix",
    "CsrArrays",
    "SparsePart",
    "Stored",
    "csr_arrays",
    "level_counts",
    "padded",
    "row_places",
    "transposed",
]

N_CODES = 256
"""Levels that a code of one byte can tell apart."""

_CHUNK = 1 << 20  # codes at once: bounds the scratch memory

Floats = NDArray[np.floating[Any]]
Int64s = NDArray[np.int64]
Int32s = NDArray[np.int32]


class CsrArrays(NamedTuple):
    """The arrays of a CSR matrix, in the types that the kernels take."""

    indptr: Int64s
    indices: Int32s
    data: Floats

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the values."""
        return self.data.dtype

    def bound(self) -> float:
        """Return the size of the largest value."""
        return float(np.abs(self.data).max(initial=0))

    def scaled(self, factor: float) -> Self:
        """Return the matrix times a number."""
        return self._replace(data=self.data * self.dtype.type(factor))

    def take(self, rows: Int64s) -> Self:
        """Return some of the rows, in the given order."""
        at, indptr = row_places(self.indptr, rows)
        return type(self)(indptr, self.indices[at], self.data[at])


class CodedMatrix(NamedTuple):
    """A CSR matrix of few different values, each stored as one byte: its place among the levels.

    The value of an entry at (i, j) is ``levels[code] - row_shift[i] - column_shift[j]``.

    Attributes
    ----------
    indptr : int64 ndarray of shape (n + 1,)
    indices : int32 ndarray of shape (nnz,)
        Sorted within each row.
    codes : uint8 ndarray of shape (nnz,)
    levels : float32 or float64 ndarray of shape (256,)
        As `padded` makes it; its dtype is that of the matrix.
    n_columns : int
    row_shift, column_shift : ndarrays of shapes (n,) and (m,), optional
        Both or none.
    """

    indptr: Int64s
    indices: Int32s
    codes: NDArray[np.uint8]
    levels: Floats
    n_columns: int
    row_shift: Floats | None = None
    column_shift: Floats | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the matrix, (n, m)."""
        return len(self.indptr) - 1, self.n_columns

    @property
    def nnz(self) -> int:
        """Number of entries."""
        return len(self.codes)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the values."""
        return self.levels.dtype

    @property
    def arrays(self) -> CsrArrays:
        """The arrays of the matrix with its values, which take four times the memory."""
        data = self.levels[self.codes]
        if self.row_shift is not None and self.column_shift is not None:
            data -= np.repeat(self.row_shift, np.diff(self.indptr))
            data -= self.column_shift[self.indices]
        return CsrArrays(self.indptr, self.indices, data)

    def bound(self) -> float:
        """Return a number that no value exceeds in size."""
        parts = self.levels, self.row_shift, self.column_shift
        return sum(float(np.abs(each).max(initial=0)) for each in parts if each is not None)

    def scaled(self, factor: float) -> Self:
        """Return the matrix times a number."""
        parts = "levels", "row_shift", "column_shift"
        given = {name: getattr(self, name) for name in parts}
        number = self.dtype.type(factor)
        return self._replace(**{name: a * number for name, a in given.items() if a is not None})


Stored = CsrArrays | CodedMatrix


class SparsePart(NamedTuple):
    """A part ``sum_j h_uj S_ji`` of scores: the product of two sparse float32 matrices.

    Attributes
    ----------
    history : CsrArrays
        The h_uj, of shape (n_queries, n_known).
    weights : CsrArrays
        The S_ji, of shape (n_known, n_items), indices sorted within each row.
    order : int32 ndarray of shape (n_items,), optional
        Items at the columns of `weights`, the same by default. The search takes the items in this
        order: it is over sooner if long vectors come first.
    """

    history: CsrArrays
    weights: CsrArrays
    order: Int32s | None = None


def row_places(indptr: Int64s, rows: Int64s) -> tuple[Int64s, Int64s]:
    """Return the places of the entries of some rows, and the indptr of these rows."""
    starts, counts = indptr[rows], indptr[rows + 1] - indptr[rows]
    ends = np.append(np.zeros(1, np.int64), np.cumsum(counts))
    return np.arange(ends[-1]) + np.repeat(starts - ends[:-1], counts), ends


def csr_arrays(matrix: Any) -> CsrArrays:
    """Return the arrays of a scipy CSR matrix or array, converted only where they must be."""
    return CsrArrays(
        matrix.indptr.astype(np.int64, copy=False),
        matrix.indices.astype(np.int32, copy=False),
        matrix.data,
    )


def padded(levels: Floats) -> Floats:
    """Return levels as an array of 256, so that no code is outside of it."""
    table = np.zeros(N_CODES, levels.dtype)
    table[: len(levels)] = levels
    return table


def level_counts(codes: NDArray[np.uint8]) -> Int64s:
    """Return how often each of the 256 codes occurs."""
    counts = np.zeros(N_CODES, np.int64)
    for start in range(0, len(codes), _CHUNK):
        counts += np.bincount(codes[start : start + _CHUNK], minlength=N_CODES)
    return counts


def transposed(matrix: Stored, n_columns: int, threads: int) -> Stored:
    """Return the transpose of a matrix with sorted indices; of a coded one, as one."""
    values: NDArray[Any] = matrix.codes if isinstance(matrix, CodedMatrix) else matrix.data
    found = np.empty(n_columns + 1, np.int64), np.empty_like(matrix.indices), np.empty_like(values)
    backends.active.transpose(matrix.indptr, matrix.indices, values, *found, threads)
    if not isinstance(matrix, CodedMatrix):
        return CsrArrays(*found)
    n_rows, shifts = len(matrix.indptr) - 1, (matrix.column_shift, matrix.row_shift)
    return CodedMatrix(*found, matrix.levels, n_rows, *shifts)

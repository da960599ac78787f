"""A matrix minus a row vector, which is never formed as a whole.

`CentredOperator` corrects each product by a term of rank one, so that sparse matrices stay sparse.
`CentredDenseOperator` subtracts the row from blocks of an array where that would cancel.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from lowrank.operators import DenseOperator, MatrixOperator

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from lowrank.operators import FloatArray

__all__ = ["CentredDenseOperator", "CentredOperator"]

_CENTRED_BLOCK = 1 << 22  # entries that are centred at a time: BLAS at full speed, 32 MB at most


class CentredOperator(MatrixOperator):
    """A - 1 row' without ever forming it: each product is corrected by a rank-one term.

    Parameters
    ----------
    inner : MatrixOperator of shape (n_rows, n_columns)
        A.
    row : ndarray of shape (n_columns,)
        What is subtracted from each row of A, as a rule the column means.
    """

    def __init__(self, inner: MatrixOperator, row: FloatArray) -> None:
        super().__init__(inner.shape, inner.dtype, inner.peak)
        self._inner = inner
        self._exact_row = row
        self._row = row.astype(inner.dtype)

    def distance_to_row(self, row: FloatArray) -> float | None:
        """Return ||A - 1 (row of this operator + row)'||_F."""
        return self._inner.distance_to_row(self._exact_row + row)

    def column_means(self) -> NDArray[np.float64]:
        """Return the mean of each column."""
        means = self._inner.column_means() - self._exact_row
        return means.astype(np.float64, copy=False)

    def scaled(self, factor: float) -> CentredOperator:
        """Return the operator of factor * A."""
        return CentredOperator(self._inner.scaled(factor), self._exact_row * factor)

    def _matmat(self, X: FloatArray) -> FloatArray:
        return self._inner.matmat(X) - self._row @ X

    def _rmatmat(self, Y: FloatArray) -> FloatArray:
        return self._inner.rmatmat(Y) - np.outer(self._row, Y.sum(axis=0))

    def _toarray(self) -> FloatArray:
        difference = self._inner.toarray() - self._exact_row
        return difference.astype(self.dtype, copy=False)


class CentredDenseOperator(CentredOperator):
    """A dense array minus a row vector, which is subtracted block by block.

    Exact where the rank-one correction would cancel, without the memory of a centred copy, and
    for a few products faster than one. Products with a row that is small beside the array are
    corrected all the same: nothing cancels there.

    Parameters
    ----------
    inner : DenseOperator of shape (n_rows, n_columns)
        A.
    row : ndarray of shape (n_columns,)
        What is subtracted from each row of A.
    """

    stored_dense = True

    def __init__(self, inner: DenseOperator, row: FloatArray) -> None:
        super().__init__(inner, row)
        self._array = inner.toarray()
        # What rounding the row leaves: with it, float32 subtracts as well as float64.
        self._rest = (self._exact_row - self._row).astype(inner.dtype)

    def dense_blocks(self, axis: int) -> Iterator[FloatArray]:
        """Yield blocks of the centred rows, or columns."""
        self.passes += 1
        return (block for _, block in self._blocks(axis))

    def _blocks(self, axis: int) -> Iterator[tuple[slice, FloatArray]]:
        length, across = self.shape[axis], self.shape[1 - axis]
        step = max(1, min(length, _CENTRED_BLOCK // max(1, across)))
        buffer = np.empty((step, across), self.dtype)
        for start in range(0, length, step):
            part = slice(start, min(start + step, length))
            block = self._centred(buffer[: part.stop - start], axis, part)
            yield part, block if axis == 0 else block.T

    def _centred(self, block: FloatArray, axis: int, part: slice) -> FloatArray:
        """Fill a block of rows, or the transpose of one of columns."""
        given = self._array[part] if axis == 0 else self._array.T[part]
        np.subtract(given, self._row if axis == 0 else self._row[part, None], out=block)
        if self._rest.any():
            block -= self._rest if axis == 0 else self._rest[part, None]
        return block

    @cached_property
    def _cancels(self) -> bool:
        """Whether the row is not small: has more than a quarter of the sum of squares."""
        entries = self._array.ravel(order="K")
        return bool(4 * self.shape[0] * (self._row @ self._row) > entries @ entries)

    def _matmat(self, X: FloatArray) -> FloatArray:
        if not self._cancels:
            return super()._matmat(X)
        product = np.empty((self.shape[0], X.shape[1]), self.dtype)
        for part, block in self._blocks(0):
            np.matmul(block, X, out=product[part])
        return product

    def _rmatmat(self, Y: FloatArray) -> FloatArray:
        if not self._cancels:
            return super()._rmatmat(Y)
        product = np.zeros((self.shape[1], Y.shape[1]), self.dtype)
        for part, block in self._blocks(0):
            product += block.T @ Y[part]
        return product

    def _toarray(self) -> FloatArray:
        return self._centred(np.empty_like(self._array), 0, slice(None))

"""A mean with biases of rows and columns: what is subtracted before a low-rank matrix is sought."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from scipy.sparse import csr_array

    from lowrank.operators import FloatArray

__all__ = ["Biases"]

_DAMPING = 5.0  # entries: with as many in a row, half of its mean deviation is its bias
_ROUNDS = 20


class Biases(NamedTuple):
    """The matrix ``mean + row_bias[:, None] + column_bias``."""

    mean: float
    row_bias: FloatArray
    column_bias: FloatArray

    @classmethod
    def of(cls, X: csr_array, wanted: bool) -> Biases:
        """Fit a mean and damped biases by alternating exact solutions; zeros if not wanted."""
        n, m = X.shape
        if not wanted:
            return cls(0.0, np.zeros(n, X.dtype), np.zeros(m, X.dtype))
        mean = float(X.data.mean(dtype=np.float64))
        deviations = X.data.astype(np.float64) - mean
        rows, columns = _row_of_each(X), X.indices
        row_weight = np.bincount(rows, minlength=n) + _DAMPING
        column_weight = np.bincount(columns, minlength=m) + _DAMPING
        row_bias = np.zeros(n)
        for _ in range(_ROUNDS):
            column_bias = np.bincount(columns, deviations - row_bias[rows], m) / column_weight
            row_bias = np.bincount(rows, deviations - column_bias[columns], n) / row_weight
        return cls(mean, row_bias.astype(X.dtype), column_bias.astype(X.dtype))

    def at(self, rows: NDArray[Any], columns: NDArray[Any]) -> FloatArray:
        """Return the entries at pairs of positions."""
        mean = self.row_bias.dtype.type(self.mean)
        entries: FloatArray = self.row_bias[rows] + self.column_bias[columns] + mean
        return entries

    def subtracted(self, X: csr_array) -> csr_array:
        """Return X minus this matrix at the known entries."""
        from scipy import sparse

        left_over = X.data - self.at(_row_of_each(X), X.indices)
        return sparse.csr_array((left_over, X.indices, X.indptr), shape=X.shape)


def _row_of_each(X: csr_array) -> NDArray[np.intp]:
    """Return the row of each stored entry."""
    return np.repeat(np.arange(X.shape[0]), np.diff(X.indptr))

"""A sparse matrix less a matrix of rank one, as `PCA` analyses rows without their own means."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.sparse.linalg import LinearOperator

from lowrank.arguments import as_operator

if TYPE_CHECKING:
    from lowrank.estimators import Float64Array
    from lowrank.operators import FloatArray

__all__ = ["RowCentred"]


class RowCentred(LinearOperator):
    """The n x m matrix ``csr - offsets weights'``; as a LinearOperator, but its entries are known.

    Parameters
    ----------
    csr : scipy.sparse.csr_array of shape (n, m)
        float32 or float64, canonical.
    offsets : ndarray of shape (n,), float64
        What is subtracted from each row.
    weights : ndarray of shape (m,), float64
        Its factor for each column.
    """

    def __init__(self, csr: Any, offsets: Float64Array, weights: Float64Array) -> None:
        super().__init__(csr.dtype, csr.shape)  # type: ignore[call-arg]
        self.csr, self.offsets, self.weights = csr, offsets, weights
        self._sparse = as_operator(csr)

    def __getitem__(self, key: Any) -> RowCentred:
        rows, columns = key if isinstance(key, tuple) else (key, slice(None))
        return RowCentred(self.csr[rows][:, columns], self.offsets[rows], self.weights[columns])

    def with_entries(self, csr: Any, center: bool) -> RowCentred:
        """Return another sparse matrix less the means of its rows, with columns as long as these.

        They are brought to the length they have here, about their mean if `center` is set.
        """
        means = csr @ (1 / self.weights) / csr.shape[1]
        other = RowCentred(csr, means, self.weights)
        old, new = (matrix._column_squares(center) for matrix in (self, other))
        scale = np.sqrt(np.divide(old, new, out=np.zeros_like(old), where=new > 0))
        scaled = csr.copy()
        scaled.data *= scale[csr.indices].astype(csr.dtype)
        return RowCentred(scaled, means, self.weights * scale)

    def _column_squares(self, center: bool) -> Float64Array:
        from lowrank.estimators import SparseSamples

        samples = SparseSamples(self.csr, self.offsets, self.weights)
        return samples.column_squares(samples.means * center)

    def _matmat(self, X: FloatArray) -> FloatArray:
        product = self._sparse.matmat(np.ascontiguousarray(X, self.dtype))
        product -= np.outer(self.offsets, self.weights @ X).astype(self.dtype)
        return product

    def _rmatmat(self, Y: FloatArray) -> FloatArray:
        product = self._sparse.rmatmat(np.ascontiguousarray(Y, self.dtype))
        product -= np.outer(self.weights, self.offsets @ Y).astype(self.dtype)
        return product

    def _matvec(self, x: FloatArray) -> FloatArray:
        return self._matmat(x.reshape(-1, 1))[:, 0]

    def _rmatvec(self, y: FloatArray) -> FloatArray:
        return self._rmatmat(y.reshape(-1, 1))[:, 0]

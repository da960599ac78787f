"""Choosing the rank by predicting entries that were held out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from lowrank.arguments import as_operator, checked_generator
from lowrank.estimators import SparseSamples
from lowrank.row_centred import RowCentred
from lowrank.svd import truncated_svd

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Float64Array = NDArray[np.float64]

__all__ = ["bi_cross_validation"]

_FOLDS = 3  # parts that the rows and the columns are cut into: 9 held-out blocks


def bi_cross_validation(
    A: Any, max_rank: int = 50, *, center: bool | None = None, random_state: Any = 0
) -> Float64Array:
    """Mean squared error of held-out blocks, predicted from the others at each rank.

    Rows and columns are cut into three random parts each. A block A11 of one part of both is
    predicted by ``A12 (A22)_k^+ A21``, from the blocks beside, diagonal to and below it, where
    ``(A22)_k`` is the rank-k approximation. Unlike the training error, this one rises again when k
    is too large. Sparse blocks and their predictions are never made dense.

    Parameters
    ----------
    A : array-like or scipy.sparse matrix or array, of shape (n, m)
    max_rank : int
        The largest rank that is tried.
    center : bool, optional
        Whether the column means (of all rows) are subtracted first.
    random_state : int, Generator, RandomState or None
        Seed of the parts.

    Returns
    -------
    ndarray of shape (r + 1,), float64
        Errors at the ranks 0 to r, with r at most `max_rank` and as small as the blocks require.
        Its argmin is the rank to choose.

    Raises
    ------
    TypeError
        If A is a LinearOperator: its entries are not known.
    ValueError
        If A has fewer than three rows or columns.

    References
    ----------
    Owen & Perry (2009), "Bi-cross-validation of the SVD and the nonnegative matrix factorization",
    section 3.
    """
    matrix, mean = _indexable(A, center)
    rng = checked_generator(random_state)
    rows, columns = (np.array_split(rng.permutation(size), _FOLDS) for size in matrix.shape)
    kept = [
        size - max(len(part) for part in parts)
        for size, parts in zip(matrix.shape, (rows, columns), strict=True)
    ]
    k = min(max_rank, *kept)
    blocks = [_Blocks(matrix, mean, row, column) for row in rows for column in columns]
    errors = np.sum([block.squared_errors(k) for block in blocks], axis=0)
    result: Float64Array = errors / (matrix.shape[0] * matrix.shape[1])
    return result


def _indexable(A: Any, center: bool | None) -> tuple[Any, Float64Array]:
    """Return A as an array or CSR, checked, and the row vector to subtract from it."""
    from scipy import sparse
    from scipy.sparse.linalg import LinearOperator

    known = isinstance(A, RowCentred)
    if isinstance(A, LinearOperator) and not known:
        raise TypeError("A must be an array or a sparse matrix; got a LinearOperator.")
    operator = as_operator(A)
    if min(operator.shape) < _FOLDS:
        raise ValueError(
            f"A must have at least {_FOLDS} rows and columns to hold some out; "
            f"got shape {operator.shape}."
        )
    mean = operator.column_means() if center else np.zeros(operator.shape[1])
    matrix: Any = A  # of unknown type: scipy's stubs know no union of its formats
    if not known:
        matrix = sparse.csr_array(matrix) if sparse.issparse(A) else np.asarray(A)
    return matrix, mean


class _Blocks:
    """The four blocks of A - 1 mean' that one part of the rows and one of the columns cut out."""

    def __init__(
        self, A: Any, mean: Float64Array, rows: NDArray[np.intp], columns: NDArray[np.intp]
    ) -> None:
        other_rows = np.setdiff1d(np.arange(A.shape[0]), rows)
        other_columns = np.setdiff1d(np.arange(A.shape[1]), columns)
        upper, lower = A[rows], A[other_rows]
        self.held_out, self.beside = upper[:, columns], upper[:, other_columns]
        self.below, self.diagonal = lower[:, columns], lower[:, other_columns]
        self.mean, self.other_mean = mean[columns], mean[other_columns]

    def squared_errors(self, k: int) -> Float64Array:
        """Return ||A11 - A12 (A22)_j^+ A21||_F^2 for j = 0 ... k, from factors of rank k."""
        U, s, Vt = truncated_svd(self.diagonal, k, center=self.other_mean, random_state=0)
        inverse = np.divide(1, s, out=np.zeros_like(s), where=s > s.max(initial=0) * 1e-6)
        left = (self.beside @ Vt.T - self.other_mean @ Vt.T) * inverse
        right = self.below.T @ U - np.outer(self.mean, U.sum(axis=0))
        overlap = np.einsum("ij,ij->j", left, self.held_out @ right - self.mean @ right)
        gram = (left.T @ left) * (right.T @ right)
        squares = np.array([gram[:j, :j].sum() for j in range(k + 1)])
        total = _squares(self.held_out, self.mean)
        errors: Float64Array = total - 2 * np.append(0, np.cumsum(overlap)) + squares
        return errors


def _squares(A: Any, row: Float64Array) -> float:
    """Return ||A - 1 row'||_F^2."""
    if isinstance(A, RowCentred):
        return float(SparseSamples(A.csr, A.offsets, A.weights).column_squares(row).sum())
    return (as_operator(A).distance_to_row(row) or 0.0) ** 2

"""The eigenvectors of the Gram matrix A'A, of a dense array with one small side."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from lowrank.solvers.dense import lapack_svd

if TYPE_CHECKING:
    from lowrank.operators import FloatArray, MatrixOperator

__all__ = ["solve"]

_FEW = 3  # with fewer than one in so many eigenvectors, LAPACK is faster when asked for them alone


def solve(
    A: MatrixOperator, k: int, *, tol: float, rng: np.random.Generator
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Eigenvectors V of the Gram matrix of the smaller side, then the SVD of A V.

    Squaring loses half of the digits: the residual of a triplet is about
    ``eps * s[0]**2 / s[i]``, so that 1e-8 of s[0] is reached in float64 down to s[i] ~ 1e-7 s[0],
    and 1e-4 in float32 down to s[i] ~ 1e-2 s[0]. The SVD of A V mends what was lost among the k
    directions themselves. Where the tolerance is missed all the same, `truncated_svd` goes on to
    another solver.

    Parameters
    ----------
    A : MatrixOperator of shape (n_rows, n_columns)
        Is made a dense array.
    k : int
        1 <= k <= min(A.shape).
    tol, rng
        Not used.

    Returns
    -------
    U : ndarray of shape (n_rows, k)
    s : ndarray of shape (k,)
    Vt : ndarray of shape (k, n_columns)

    References
    ----------
    Golub & Van Loan (2013), "Matrix Computations", section 8.6.
    """
    array = A.toarray()
    if array.shape[0] < array.shape[1]:
        V, s, Ut = _solve_tall(array.T, k)
        return Ut.T, s, V.T
    return _solve_tall(array, k)


def _solve_tall(array: FloatArray, k: int) -> tuple[FloatArray, FloatArray, FloatArray]:
    V = _eigenvectors(array.T @ array, k)
    U, s, Wt = lapack_svd(array @ V)
    return U, s, Wt @ V.T


def _eigenvectors(gram: FloatArray, k: int) -> FloatArray:
    """Return the eigenvectors of the k largest eigenvalues as columns, largest first."""
    from scipy import linalg

    size = len(gram)
    few = {"driver": "evr", "subset_by_index": (size - k, size - 1)}
    wanted = few if k * _FEW < size else {"driver": "evd"}
    _, vectors = linalg.eigh(gram, overwrite_a=True, check_finite=False, **wanted)
    return np.ascontiguousarray(vectors[:, : -k - 1 : -1])

"""LAPACK on a dense copy: the whole spectrum, then the first k of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from lowrank.operators import FloatArray, MatrixOperator

__all__ = ["lapack_svd", "solve"]


def solve(
    A: MatrixOperator, k: int, *, tol: float, rng: np.random.Generator
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Divide and conquer (gesdd); where it does not converge, QR iteration (gesvd).

    Parameters
    ----------
    A : MatrixOperator of shape (n_rows, n_columns)
        Is made a dense array.
    k : int
        1 <= k <= min(A.shape).
    tol, rng
        Not used: LAPACK is deterministic and works to machine precision.

    Returns
    -------
    U : ndarray of shape (n_rows, k)
    s : ndarray of shape (k,)
    Vt : ndarray of shape (k, n_columns)

    Raises
    ------
    numpy.linalg.LinAlgError
        If both LAPACK drivers fail.
    """
    U, s, Vt = lapack_svd(A.toarray())
    return U[:, :k], s[:k], Vt[:k]


def lapack_svd(array: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the thin SVD of an array; QR iteration takes over where gesdd does not converge."""
    from scipy import linalg

    try:
        U, s, Vt = linalg.svd(array, full_matrices=False, check_finite=False)
    except linalg.LinAlgError:
        U, s, Vt = linalg.svd(array, full_matrices=False, check_finite=False, lapack_driver="gesvd")
    return U, s, Vt

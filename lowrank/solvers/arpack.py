"""ARPACK: implicitly restarted Lanczos on the smaller Gram operator, through SciPy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from lowrank.operators import FloatArray, MatrixOperator, Products

__all__ = ["solve"]


def solve(
    A: MatrixOperator, k: int, *, tol: float, rng: np.random.Generator
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Eigenvectors of A'A or AA', whichever is smaller, then Rayleigh-Ritz with A itself.

    The Gram operator is never formed, but working with it squares the singular values: those
    below about sqrt(eps) * s[0] are only as good as the last step, which takes them from A, leaves
    them. If ARPACK gives up, the vectors it has are completed at random: the residuals tell. What
    they do not tell: of a multiple singular value a single start vector may show fewer copies
    than there are, and smaller values stand in for them.

    Parameters
    ----------
    A : MatrixOperator of shape (n_rows, n_columns)
    k : int
        1 <= k < min(A.shape).
    tol : float
        Residual relative to the largest singular value.
    rng : numpy.random.Generator
        Draws the start vector.

    Returns
    -------
    U : ndarray of shape (n_rows, k)
    s : ndarray of shape (k,)
    Vt : ndarray of shape (k, n_columns)

    References
    ----------
    Lehoucq, Sorensen & Yang (1998), "ARPACK Users' Guide".
    """
    if A.shape[0] < A.shape[1]:
        V, s, Ut = _solve_tall(A.transposed(), k, tol, rng)
        return Ut.T, s, V.T
    return _solve_tall(A, k, tol, rng)


def _solve_tall(
    A: Products, k: int, tol: float, rng: np.random.Generator
) -> tuple[FloatArray, FloatArray, FloatArray]:
    V = _gram_eigenvectors(A, k, tol, rng)
    Q, R = np.linalg.qr(A.matmat(V))
    P, s, Tt = np.linalg.svd(R)
    return Q @ P, s, Tt @ V.T


def _gram_eigenvectors(A: Products, k: int, tol: float, rng: np.random.Generator) -> FloatArray:
    """Return k orthonormal vectors, shape (n_columns, k): what ARPACK found, then random ones."""
    from scipy.sparse.linalg import ArpackError, ArpackNoConvergence, LinearOperator, eigsh

    def gram(x: FloatArray) -> FloatArray:
        return A.rmatmat(A.matmat(x.reshape(-1, 1)))

    n = A.shape[1]
    start, spare = np.split(rng.standard_normal((n, k + 1)).astype(A.dtype), [1], axis=1)
    operator = LinearOperator((n, n), matvec=gram, dtype=A.dtype)
    try:
        found = eigsh(operator, k, which="LM", v0=start[:, 0], tol=tol)[1][:, ::-1]
    except ArpackNoConvergence as error:
        found = error.eigenvectors[:, ::-1]
    except ArpackError:  # as for a zero matrix, where its start vector vanishes
        found = spare[:, :0]
    return np.linalg.qr(np.hstack([found, spare])[:, :k])[0]

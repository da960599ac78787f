"""ARPACK: implicitly restarted Lanczos on the smaller Gram operator, through SciPy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.sparse.linalg import ArpackError, ArpackNoConvergence, LinearOperator, eigsh

if TYPE_CHECKING:
    from lowrank.operators import FloatArray, MatrixOperator, Products, Triplets

__all__ = ["solve"]


def solve(A: MatrixOperator, k: int, *, tol: float, rng: np.random.Generator) -> Triplets:
    """Eigenvectors of A'A or AA', whichever is smaller, then Rayleigh-Ritz with A itself.

    The Gram operator is never formed, but working with it squares the singular values: those
    below about sqrt(eps) * s[0] get their accuracy from the last step alone, which takes them from
    A. If ARPACK does not converge, the vectors it has are completed at random, which the residuals
    show. They do not show that of a multiple singular value a single start vector may find fewer
    copies than there are, with smaller values in their place.

    A is read twice in each step, and once more for the Rayleigh-Ritz step. ARPACK needs
    k < min(A.shape).

    References
    ----------
    Lehoucq, Sorensen & Yang (1998), "ARPACK Users' Guide".
    """
    if A.shape[0] < A.shape[1]:
        V, s, Ut = _solve_tall(A.transposed(), k, tol, rng)
        return Ut.T, s, V.T
    return _solve_tall(A, k, tol, rng)


def _solve_tall(A: Products, k: int, tol: float, rng: np.random.Generator) -> Triplets:
    V = _gram_eigenvectors(A, k, tol, rng)
    Q, R = np.linalg.qr(A.matmat(V))
    P, s, Tt = np.linalg.svd(R)
    return Q @ P, s, Tt @ V.T


def _gram_eigenvectors(A: Products, k: int, tol: float, rng: np.random.Generator) -> FloatArray:
    """Return k orthonormal vectors, shape (n_columns, k): what ARPACK found, then random ones."""

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

"""Solvers on LAPACK and ARPACK: a full SVD, and eigenvectors of the Gram matrix."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np
from scipy import linalg
from scipy.sparse.linalg import ArpackError, ArpackNoConvergence, LinearOperator, eigsh

from lowrank.kernels import at_most
from lowrank.solvers import lanczos

if TYPE_CHECKING:
    from lowrank.operators import FloatArray, MatrixOperator, Triplets

_ENTRIES = 1 << 22  # of the product of a matrix with some columns of the identity
# Few eigenvectors of a large Gram matrix are tried with Lanczos first, which is several times
# faster than LAPACK where the spectrum decays, and is abandoned soon where it does not.
_LANCZOS_SIDE, _LANCZOS_SHARE, _LANCZOS_STEPS = 1000, 16, 32


def solve_dense(A: MatrixOperator, k: int, *, tol: float, rng: np.random.Generator) -> Triplets:
    """Divide and conquer (gesdd); where it does not converge, QR iteration (gesvd).

    Raises
    ------
    numpy.linalg.LinAlgError
        If both LAPACK drivers fail.
    """
    U, s, Vt = lapack_svd(A.toarray())
    return U[:, :k], s[:k], Vt[:k]


def lapack_svd(array: FloatArray) -> Triplets:
    """Return the thin SVD of an array; QR iteration takes over where gesdd does not converge."""
    try:
        U, s, Vt = linalg.svd(array, full_matrices=False, check_finite=False)
    except linalg.LinAlgError:
        U, s, Vt = linalg.svd(array, full_matrices=False, check_finite=False, lapack_driver="gesvd")
    return U, s, Vt


def solve_gram(A: MatrixOperator, k: int, *, tol: float, rng: np.random.Generator) -> Triplets:
    """Eigenvectors V of the Gram matrix of the smaller side, then the SVD of A V.

    Squaring loses half of the digits: the residual of a triplet is about
    ``eps * s[0]**2 / s[i]``, so that 1e-8 of s[0] is reached in float64 down to s[i] ~ 1e-7 s[0],
    and 1e-4 in float32 down to s[i] ~ 1e-2 s[0]. The SVD of A V restores the digits lost among
    the k directions themselves. Where the tolerance is missed all the same, `truncated_svd` goes on
    to another solver.

    References
    ----------
    Golub & Van Loan (2013), "Matrix Computations", section 8.6.
    """
    is_wide = A.shape[0] < A.shape[1]
    tall = A.transposed() if is_wide else A
    # Only the upper triangle of the Gram matrix need be filled.
    has_blocks = A.stored_dense or (A.in_blocks and not is_wide)
    if has_blocks:
        gram = np.zeros((min(A.shape),) * 2, A.dtype, order="F")
        syrk = linalg.get_blas_funcs("syrk", (gram,))
        for block in A.dense_blocks(axis=1 if is_wide else 0):
            # BLAS sees the columns of C-ordered memory as rows: no copy in either order.
            turned = block.flags.c_contiguous
            across = block.T if turned else block
            gram = syrk(1.0, across, beta=1.0, c=gram, trans=is_wide == turned, overwrite_c=True)
    else:  # A'A times the columns of the identity, some at a time
        rows, columns = tall.shape
        step = max(16, min(256, _ENTRIES // rows))
        gram = np.empty((columns, columns), A.dtype, order="F")
        for start in range(0, columns, step):
            some = np.eye(columns, min(step, columns - start), -start, A.dtype)
            gram[:, start : start + step] = tall.rmatmat(tall.matmat(some))
    V = None
    if len(gram) >= _LANCZOS_SIDE and k * _LANCZOS_SHARE < len(gram):
        whole = np.triu(gram, 1)
        whole += whole.T
        np.fill_diagonal(whole, gram.diagonal())
        with at_most(1):  # compiled products are small ones next to those of BLAS
            found, converged = lanczos.leading_eigenvectors(
                whole.__matmul__, len(gram), gram.dtype, k, 0.0, rng, _LANCZOS_STEPS
            )
        s = np.sqrt(np.maximum(np.einsum("ij,ij->j", found, whole @ found), 0.0))
        if converged and not lanczos.has_wide_cluster(s):  # which may have missed copies
            V = found
    U, s, Vt = lanczos.triplets(tall, _by_lapack(gram, k) if V is None else V, rng)
    return (Vt.T, s, U.T) if is_wide else (U, s, Vt)


def _by_lapack(gram: FloatArray, k: int) -> FloatArray:
    """Return the eigenvectors of the k largest eigenvalues as columns, largest first."""
    size = len(gram)
    vectors = gram[:, :0]
    if 3 * k < size:
        few = (size - k, size - 1)
        with suppress(linalg.LinAlgError):
            _, vectors = linalg.eigh(
                gram, lower=False, check_finite=False, driver="evr", subset_by_index=few
            )
    if vectors.shape[1] < k:  # all are wanted, or evr has lost some of a cluster of eigenvalues
        _, vectors = linalg.eigh(gram, lower=False, check_finite=False, driver="evd")
    return np.array(vectors[:, : -k - 1 : -1], order="C")  # strides too, where k is 1


def solve_arpack(A: MatrixOperator, k: int, *, tol: float, rng: np.random.Generator) -> Triplets:
    """Eigenvectors of A'A or AA', whichever is smaller, by ARPACK; then Rayleigh-Ritz with A.

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
    is_wide = A.shape[0] < A.shape[1]
    tall, n = A.transposed() if is_wide else A, min(A.shape)

    def gram(x: FloatArray) -> FloatArray:
        return tall.rmatmat(tall.matmat(x.reshape(-1, 1)))

    start, spare = np.split(rng.standard_normal((n, k + 1)).astype(A.dtype), [1], axis=1)
    operator = LinearOperator((n, n), matvec=gram, dtype=A.dtype)
    try:
        found = eigsh(operator, k, which="LM", v0=start[:, 0], tol=tol)[1][:, ::-1]
    except ArpackNoConvergence as error:
        found = error.eigenvectors[:, ::-1]
    except ArpackError:  # as for a zero matrix, where its start vector vanishes
        found = spare[:, :0]
    V = np.linalg.qr(np.hstack([found, spare])[:, :k])[0]
    Q, R = np.linalg.qr(tall.matmat(V))
    P, s, Tt = np.linalg.svd(R)
    return (V @ Tt.T, s, (Q @ P).T) if is_wide else (Q @ P, s, Tt @ V.T)

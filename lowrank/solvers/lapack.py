"""Solvers based on LAPACK and ARPACK: full SVD, and eigenvectors of the Gram matrix."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np
from scipy import linalg
from scipy.sparse.linalg import ArpackError, ArpackNoConvergence, LinearOperator, eigsh

from lowrank.kernels import at_most, pieces
from lowrank.solvers import lanczos

if TYPE_CHECKING:
    from lowrank.operators import (
        Float64Array,
        FloatArray,
        MatrixOperator,
        Products,
        Triplets,
    )

# maximum size of a product with columns of the identity, or of rows for QR
_ENTRIES = 1 << 22
_SUMMED_ROWS = 1 << 12  # number of rows whose products are added up in float32
# For few eigenvectors of a large Gram matrix, Lanczos is tried first. If the spectrum decays, it is
# several times faster than LAPACK; if not, it is stopped early.
_LANCZOS_SIDE, _LANCZOS_SHARE, _LANCZOS_STEPS = 1000, 16, 32


def solve_dense(
    A: MatrixOperator,
    k: int,
    *,
    tol: float,
    rng: np.random.Generator,
) -> Triplets:
    """Compute a full SVD by divide and conquer (gesdd), or QR iteration (gesvd) if that fails.

    Raises
    ------
    numpy.linalg.LinAlgError
        If both LAPACK drivers fail.
    """
    U, s, Vt = lapack_svd(A.toarray())
    return U[:, :k], s[:k], Vt[:k]


def lapack_svd(array: FloatArray) -> Triplets:
    """Return the thin SVD of an array, by QR iteration if gesdd does not converge."""
    try:
        U, s, Vt = linalg.svd(array, full_matrices=False, check_finite=False)
    except linalg.LinAlgError:
        U, s, Vt = linalg.svd(
            array, full_matrices=False, check_finite=False, lapack_driver="gesvd"
        )
    return U, s, Vt


def solve_gram(
    A: MatrixOperator,
    k: int,
    *,
    tol: float,
    rng: np.random.Generator,
) -> Triplets:
    """Compute the eigenvectors V of the smaller Gram matrix, and then the SVD of A V.

    Squaring loses half of the digits: the residual of a triplet is some hundredths of
    ``eps * s[0]**2 / s[i]``. A residual of 1e-8 s[i] is reached in float64 for s[i] above about
    1e-5 s[0], and 1e-4 s[i] in float32 for s[i] > 0.01 s[0]. The SVD of A V restores the digits
    lost within the span of the k directions. If the tolerance is not reached, `truncated_svd`
    continues with another solver.

    References
    ----------
    Golub & Van Loan (2013), "Matrix Computations", section 8.6.
    """
    is_wide = A.shape[0] < A.shape[1]
    tall = A.transposed() if is_wide else A
    if A.stored_dense or (A.in_blocks and not is_wide):
        gram = _gram_of_blocks(A, is_wide)
    else:
        gram = _gram_of_products(tall)
    V = _leading_eigenvectors(gram, k, rng).astype(A.dtype, copy=False)
    return _turned(lanczos.triplets(tall, V, rng), is_wide)


def _turned(triplets: Triplets, is_transposed: bool) -> Triplets:
    """Return triplets of A for triplets of A', if they are of A'."""
    U, s, Vt = triplets
    if is_transposed:
        return Vt.T, s, U.T
    return U, s, Vt


def _gram_of_blocks(A: MatrixOperator, is_wide: bool) -> Float64Array:
    """Return the upper triangle of A A' or A'A, the sum over dense blocks of A."""
    size = min(A.shape)
    total = np.zeros((size, size), order="F")
    syrk = linalg.get_blas_funcs("syrk", dtype=A.dtype)
    # Sums of float32 products over few rows are added in float64.
    step = _SUMMED_ROWS if A.dtype == np.float32 else max(A.shape)
    for block in A.dense_blocks(axis=int(is_wide)):
        for part in pieces(block.shape[int(is_wide)], step):
            piece = block[:, part] if is_wide else block[part]
            # BLAS treats columns of C-ordered memory as rows, so neither order needs a copy.
            turned = piece.flags.c_contiguous
            across = piece.T if turned else piece
            if A.dtype == np.float64:
                total = syrk(
                    1.0,
                    across,
                    beta=1.0,
                    c=total,
                    trans=is_wide == turned,
                    overwrite_c=1,
                )
            else:
                total += syrk(1.0, across, trans=is_wide == turned)
    return total


def _gram_of_products(tall: Products) -> Float64Array:
    """Return A'A, by products of A'A with blocks of columns of the identity."""
    rows, columns = tall.shape
    step = max(16, min(256, _ENTRIES // rows))
    gram = np.empty((columns, columns), order="F")
    for start in range(0, columns, step):
        width = min(step, columns - start)
        identity = np.eye(columns, width, -start, tall.dtype)
        gram[:, start : start + step] = tall.gram_product(identity)
    return gram


def _leading_eigenvectors(
    gram: Float64Array,
    k: int,
    rng: np.random.Generator,
) -> Float64Array:
    """Return the eigenvectors of the k largest eigenvalues, from the upper triangle."""
    if len(gram) < _LANCZOS_SIDE or k * _LANCZOS_SHARE >= len(gram):
        return _by_lapack(gram, k)
    whole = np.triu(gram, 1)
    whole += whole.T
    np.fill_diagonal(whole, gram.diagonal())
    with at_most(1):  # compiled products are small compared to those of BLAS
        vectors, converged = lanczos.leading_eigenvectors(
            whole.__matmul__,
            len(gram),
            gram.dtype,
            k,
            tol=0.0,
            rng=rng,
            max_steps=_LANCZOS_STEPS,
        )
    values = np.einsum("ij,ij->j", vectors, whole @ vectors)
    s = np.sqrt(np.maximum(values, 0.0))
    if not converged or lanczos.has_wide_cluster(s):  # copies may be missing
        return _by_lapack(gram, k)
    return vectors.astype(np.float64, copy=False)


def solve_qr(
    A: MatrixOperator,
    k: int,
    *,
    tol: float,
    rng: np.random.Generator,
) -> Triplets:
    """Compute the triangular factor R of A = Q R, in one pass over blocks, and the SVD of R.

    Nothing is squared, so that this is as accurate as LAPACK's SVD of A, whose residuals are some
    ``eps * s[0]``. It takes several times as long as the Gram matrix.

    References
    ----------
    Chan (1982), "An improved algorithm for computing the singular value decomposition".
    """
    is_wide = A.shape[0] < A.shape[1]
    tall = A.transposed() if is_wide else A
    columns = min(A.shape)
    R: FloatArray = np.zeros((0, columns), A.dtype)
    step = max(4 * columns, _ENTRIES // max(1, columns))
    for block in A.dense_blocks(axis=int(is_wide)):
        rows = block.T if is_wide else block
        for part in pieces(len(rows), step):
            stack = np.vstack([R, rows[part]])
            R = np.asarray(np.linalg.qr(stack, mode="r"))
    _, _, Vt = lapack_svd(R)
    V = np.ascontiguousarray(Vt[:k].T)
    return _turned(lanczos.triplets(tall, V, rng), is_wide)


def _by_lapack(gram: Float64Array, k: int) -> Float64Array:
    """Return the eigenvectors of the k largest eigenvalues as columns, largest first."""
    size = len(gram)
    vectors = gram[:, :0]
    if 3 * k < size:
        with suppress(linalg.LinAlgError):
            _, vectors = linalg.eigh(
                gram,
                lower=False,
                check_finite=False,
                driver="evr",
                subset_by_index=(size - k, size - 1),
            )
    if vectors.shape[1] < k:  # all are requested, or evr has lost some of a cluster
        _, vectors = linalg.eigh(gram, lower=False, check_finite=False, driver="evd")
    largest_first = vectors[:, : -k - 1 : -1]
    return np.array(largest_first, order="C")  # also normalises the strides if k is 1


def solve_arpack(
    A: MatrixOperator,
    k: int,
    *,
    tol: float,
    rng: np.random.Generator,
) -> Triplets:
    """Compute eigenvectors of A'A or AA', whichever is smaller, by ARPACK, then Rayleigh-Ritz on A.

    The Gram operator is never formed, but its products square the singular values. Values below
    about sqrt(eps) * s[0] become accurate only in the Rayleigh-Ritz step. If ARPACK does not
    converge, its vectors are completed with random ones, which is visible in the residuals. With a
    single start vector, ARPACK may find only some copies of a multiple singular value, and return
    smaller values instead; this is not visible in the residuals.

    A is read twice per step, and once more for the Rayleigh-Ritz step. ARPACK needs
    k < min(A.shape).

    References
    ----------
    Lehoucq, Sorensen & Yang (1998), "ARPACK Users' Guide".
    """
    is_wide = A.shape[0] < A.shape[1]
    tall = A.transposed() if is_wide else A
    n = min(A.shape)

    def gram(x: FloatArray) -> FloatArray:
        return tall.gram_product(x.reshape(-1, 1))

    random = rng.standard_normal((n, k + 1)).astype(A.dtype)
    start = random[:, 0]
    spare = random[:, 1:]
    operator = LinearOperator((n, n), matvec=gram, dtype=A.dtype)
    try:
        _, vectors = eigsh(operator, k, which="LM", v0=start, tol=tol)
    except ArpackNoConvergence as error:
        vectors = error.eigenvectors
    except ArpackError:  # e.g. a zero matrix, where the start vector vanishes
        vectors = spare[:, :0]
    # The order of ARPACK is ascending.
    candidates = np.hstack([vectors[:, ::-1], spare])
    V, _ = np.linalg.qr(candidates[:, :k])
    Q, R = np.linalg.qr(tall.matmat(V))
    P, s, Tt = np.linalg.svd(R)
    return _turned((Q @ P, s, Tt @ V.T), is_wide)

"""Leading singular directions from a few steps of subspace iteration, rough and fast.

Where the directions are the start of an iteration, or a filter that needs no exact ones, this is
several times as fast as `truncated_svd`, and the space it finds holds more of a flat spectrum than
that of a loose tolerance does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lowrank import kernels

if TYPE_CHECKING:
    from lowrank.kernels import CsrArrays

__all__ = ["Directions", "leading_directions"]

Floats = NDArray[np.floating[Any]]


class Directions(NamedTuple):
    """Right singular directions of a matrix of m columns, and its singular values in their space.

    `vectors` has shape (m, k), `values` (k,), not increasing.
    """

    vectors: Floats
    values: Floats


@kernels.one_blas_thread()  # others would spin on after each call, and take cores from the kernels
def leading_directions(
    A: CsrArrays,
    n_columns: int,
    k: int,
    *,
    steps: int = 3,
    extra: int = 8,
    random_state: int | None = 0,
) -> Directions:
    """Find the largest k singular values of A, and their right vectors, in the range of (A'A)^q W.

    W is random, of k + `extra` columns, and q is `steps`; each step is orthonormalised through its
    Gram matrix. All k are returned: those beyond the rank are zeros.

    References
    ----------
    Halko, Martinsson and Tropp (2011), "Finding structure with randomness: probabilistic algorithms
    for constructing approximate matrix decompositions", algorithm 4.4.
    """
    n, dtype = len(A.indptr) - 1, A.data.dtype
    vectors, values = np.zeros((n_columns, k), dtype), np.zeros(k, dtype)
    size = np.abs(A.data).max(initial=0)
    if size == 0:
        return Directions(vectors, values)
    A = A._replace(data=A.data / size)  # so that the fourth powers do not overflow
    rng = np.random.default_rng(random_state)
    Q: Floats = rng.standard_normal((n_columns, min(k + extra, n, n_columns)), dtype)
    for _ in range(steps):
        Q = _orthonormal(kernels.csr_rmatmat(A, kernels.csr_matmat(A, Q), n_columns))
    image = kernels.csr_matmat(A, Q)
    squares, turn = np.linalg.eigh(kernels.coefficients(image, image).astype(np.float64))
    best = slice(None, -k - 1, -1)
    found = kernels.multiply(Q, turn[:, best])
    vectors[:, : found.shape[1]] = found
    values[: found.shape[1]] = np.sqrt(np.maximum(squares[best], 0)) * size
    return Directions(vectors, values)


def _orthonormal(Q: Floats) -> Floats:
    """Return an orthonormal basis of the range of Q, without directions that are rounding."""
    gram = kernels.coefficients(Q, Q).astype(np.float64)
    rounding = np.finfo(Q.dtype).eps
    try:
        lower = np.linalg.cholesky(gram)
        if (np.diagonal(lower) ** 2 > len(gram) * rounding * np.diagonal(gram)).all():
            return kernels.multiply(Q, np.linalg.inv(lower).T)
    except np.linalg.LinAlgError:
        pass
    squares, turn = np.linalg.eigh(gram)
    kept = squares > rounding * squares[-1]
    return kernels.multiply(Q, turn[:, kept] / np.sqrt(squares[kept]))

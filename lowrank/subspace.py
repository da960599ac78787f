"""Leading singular directions from a few steps of subspace iteration, rough and fast.

Where the directions are the start of an iteration, or a filter that needs no exact ones, this is
several times as fast as `truncated_svd`, and the space it finds holds more of a flat spectrum than
that of a loose tolerance does.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lowrank import kernels
from lowrank.kernels.entries import Stored

__all__ = ["Directions", "leading_directions"]

_WIDTH = 144  # columns of the blocks of a triangle

Floats = NDArray[np.floating[Any]]


class Directions(NamedTuple):
    """Right singular directions of a matrix of m columns, and its singular values in their space.

    `vectors` has shape (m, k), `values` (k,), not increasing.
    """

    vectors: Floats
    values: Floats


@kernels.one_blas_thread()  # others would spin on after each call, and take cores from the kernels
def leading_directions(
    A: Stored,
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
    n, dtype = len(A.indptr) - 1, A.dtype
    vectors, values = np.zeros((n_columns, k), dtype), np.zeros(k, dtype)
    if (size := A.bound()) == 0:
        return Directions(vectors, values)
    A = A.scaled(1 / size)  # so that the fourth powers do not overflow
    rng = np.random.default_rng(random_state)
    Q: Floats = rng.standard_normal((n_columns, min(k + extra, n, n_columns)), dtype)
    for _ in range(steps):
        Q = _orthonormal(kernels.csr_rmatmat(A, kernels.csr_matmat(A, Q), n_columns))
    image = kernels.csr_matmat(A, Q)
    squares, turn = np.linalg.eigh(_gram(image))
    best = slice(None, -k - 1, -1)
    found = kernels.multiply(Q, turn[:, best])
    vectors[:, : found.shape[1]] = found
    values[: found.shape[1]] = np.sqrt(np.maximum(squares[best], 0)) * size
    return Directions(vectors, values)


def _orthonormal(Q: Floats) -> Floats:
    """Return an orthonormal basis of the range of Q, without directions that are rounding."""
    gram, rounding = _gram(Q), np.finfo(Q.dtype).eps
    try:
        lower = np.linalg.cholesky(gram)
    except np.linalg.LinAlgError:
        lower = np.zeros_like(gram)
    if (np.diagonal(lower) ** 2 > len(gram) * rounding * np.diagonal(gram)).all():
        turn = np.linalg.inv(lower).T  # an upper triangle, so that half of the product is zero
        result = np.empty_like(Q)
        for b in _blocks(len(gram)):
            result[:, b] = kernels.multiply(Q[:, : b.stop], turn[: b.stop, b])
        return result
    squares, turn = np.linalg.eigh(gram)
    kept = squares > rounding * squares[-1]
    return kernels.multiply(Q, turn[:, kept] / np.sqrt(squares[kept]))


def _gram(Q: Floats) -> NDArray[np.float64]:
    """Return Q'Q, of which one triangle is computed."""
    gram = np.zeros((Q.shape[1], Q.shape[1]))
    for b in _blocks(len(gram)):
        part = kernels.coefficients(Q[:, : b.stop], np.ascontiguousarray(Q[:, b]))
        gram[: b.stop, b], gram[b, : b.stop] = part, part.T
    return gram


def _blocks(n: int) -> list[slice]:
    return [slice(start, min(start + _WIDTH, n)) for start in range(0, n, _WIDTH)]

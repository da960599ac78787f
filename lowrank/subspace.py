"""Approximate leading singular directions by a few steps of subspace iteration.

For starting points of iterations, and for filters that do not need exact directions, this is
several times as fast as `truncated_svd`. For a flat spectrum, the subspace also explains more than
`truncated_svd` with a large tolerance.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lowrank import kernels
from lowrank.kernels import Stored
from lowrank.kernels.arrays import Floats, epsilon

_ROWS = 1 << 14  # number of rows of a basis that are replaced at once
_WIDTH = 144  # number of columns in a block of a triangular matrix
_LEAST_ENTRY = 2.0**-40  # squares of smaller ones are near the end of float32


class Directions(NamedTuple):
    """Approximate right singular vectors of a matrix with m columns, and singular values.

    `vectors` has shape (m, k), `values` shape (k,), in descending order.
    """

    vectors: Floats
    values: Floats


@kernels.one_blas_thread()  # idle BLAS threads would spin and take cores from the kernels
def leading_directions(
    A: Stored,
    n_columns: int,
    k: int,
    *,
    steps: int = 3,
    extra: int = 8,
    start: Floats | None = None,
    transpose: Stored | None = None,
    random_state: int | None = 0,
) -> Directions:
    """Approximate the k largest singular values and right vectors of A in the range of (A'A)^q W.

    W is a random matrix with k + `extra` columns, uniform around 0, and q is `steps`. The iteration
    works on the shorter side of A, and orthonormalises by Gram matrices. Values and vectors beyond
    the rank are zero. Passing the `transpose` of A saves time. The columns of `start`, directions
    of a matrix of similar rows, replace those of W; one step is then enough.

    References
    ----------
    Halko, Martinsson and Tropp (2011), "Finding structure with randomness: probabilistic algorithms
    for constructing approximate matrix decompositions", algorithm 4.4.
    """
    n = len(A.indptr) - 1
    dtype = A.dtype
    vectors = np.zeros((n_columns, k), dtype)
    values = np.zeros(k, dtype)
    size = A.bound()
    if size == 0:
        return Directions(vectors, values)
    # Fourth powers must not overflow, and a power of two adds no rounding.
    _, exponent = math.frexp(size)
    size = 2.0 ** (exponent - 1)
    A = A.scaled(1 / size)
    if transpose is not None:
        transpose = transpose.scaled(1 / size)
    width = min(k + extra, n, n_columns)
    # Each product overwrites the previous one, because new memory would take as much time.
    rows = np.empty((n, width), dtype)
    columns = np.empty((n_columns, width), dtype)
    np.random.default_rng(random_state).random(dtype=dtype, out=columns)
    columns -= dtype.type(0.5)
    if start is not None:
        n_given = min(width, start.shape[1])
        # Random columns have such a length, too.
        columns[:, :n_given] = start[:, :n_given]
        columns[:, :n_given] *= dtype.type(math.sqrt(n_columns / 12))

    def of_rows(X: Floats) -> Floats:
        return kernels.csr_matmat(A, X, out=_first(rows, X.shape[1]))

    def of_columns(X: Floats) -> Floats:
        out = _first(columns, X.shape[1])
        if transpose is not None:
            return kernels.csr_matmat(transpose, X, out=out)
        return kernels.csr_rmatmat(A, X, n_columns, out=out)

    Q = columns
    is_wide = n <= n_columns
    if is_wide:
        Q = of_rows(Q)
    for step in range(int(is_wide), steps):
        if not Q.any():
            break
        if step > int(is_wide):  # the first basis is random enough
            Q = orthonormal(_enlarged(Q))
        if is_wide:
            Q = of_rows(of_columns(Q))
        else:
            Q = of_columns(of_rows(Q))
    if is_wide:
        Q = of_columns(Q)
    if not Q.any():  # all entries equal their shifts
        return Directions(vectors, values)
    squares, turn, Q = _ritz(_enlarged(Q), of_rows)
    rows = rows[:0].copy()  # frees the memory of the products
    leading = kernels.multiply(Q, turn[:, :k])
    rank = leading.shape[1]
    vectors[:, :rank] = leading
    values[:rank] = np.sqrt(squares[:k]) * size
    return Directions(vectors, values)


def _enlarged(Q: Floats) -> Floats:
    """Multiply Q by a power of two in its place, if its squares would be too small.

    Entries are tiny where they differ from their shifts by rounding only.
    """
    largest = max(float(Q.max()), -float(Q.min()))
    if largest < _LEAST_ENTRY:
        _, exponent = math.frexp(largest)
        np.ldexp(Q, -exponent, out=Q)
    return Q


def _first(buffer: Floats, width: int) -> Floats:
    """Return the start of a buffer as a matrix of `width` columns."""
    rows = len(buffer)
    return buffer.reshape(-1)[: rows * width].reshape(rows, width)


def _ritz(
    Q: Floats, times: Callable[[Floats], Floats]
) -> tuple[NDArray[np.float64], NDArray[np.float64], Floats]:
    """Return the squared singular values of a matrix in the range of Q, the rotation T, and Q.

    The right vectors are the columns of Q T. The matrix is given by its products, `times`.
    """
    gram = _gram(Q)
    rounding = epsilon(Q.dtype)
    # Half of the digits are enough, because the rotation restores orthogonality.
    inverse = _inverse_factor(gram, math.sqrt(rounding))
    if inverse is None:
        return _ritz(orthonormal(Q, gram), times)
    projected = inverse @ _gram(times(Q)) @ inverse.T
    squares, turn = np.linalg.eigh(projected)
    is_signal = squares > rounding * squares[-1]
    order = np.flatnonzero(is_signal)[::-1]
    return squares[order], inverse.T @ turn[:, order], Q


def orthonormal(Q: Floats, gram: NDArray[np.float64] | None = None) -> Floats:
    """Return a nearly orthonormal basis of the range of Q, without directions of mere rounding.

    The basis may overwrite Q. Passing the Gram matrix of Q saves time.
    """
    if gram is None:
        gram = _gram(Q)
    rounding = epsilon(Q.dtype)
    inverse = _inverse_factor(gram, len(gram) * rounding)
    if inverse is not None:
        return _times_triangle(Q, inverse.T)
    squares, turn = np.linalg.eigh(gram)
    lengths = np.sqrt(np.maximum(squares, rounding * squares[-1]))
    Q = kernels.multiply(Q, turn / lengths)
    # Small directions have grown by now, and noise less.
    squares, turn = np.linalg.eigh(_gram(Q))
    is_signal = squares > len(gram) * rounding * squares[-1]
    turn = turn[:, is_signal] / np.sqrt(squares[is_signal])
    return orthonormal(kernels.multiply(Q, turn))


def _times_triangle(Q: Floats, triangle: NDArray[np.float64]) -> Floats:
    """Return Q times an upper triangular matrix; may overwrite Q."""
    if len(triangle) <= _WIDTH:
        for part in kernels.pieces(len(Q), _ROWS):
            Q[part] = kernels.multiply(Q[part], triangle)
        return Q
    result = np.empty_like(Q)
    for block in kernels.pieces(len(triangle), _WIDTH):
        above = slice(0, block.stop)  # the rows below are zero
        factor = triangle[above, block]
        result[:, block] = kernels.multiply(Q[:, above], factor)
    return result


def _inverse_factor(
    gram: NDArray[np.float64], share: float
) -> NDArray[np.float64] | None:
    """Return the inverse of the Cholesky factor; None if rounding grows by over 1 / `share`."""
    try:
        factor = np.linalg.cholesky(gram)
        inverse: NDArray[np.float64] = np.linalg.inv(factor)
    except np.linalg.LinAlgError:
        return None
    growth = np.max(inverse**2 @ np.diagonal(gram))
    if growth * share >= 1:
        return None
    return inverse


def _gram(Q: Floats) -> NDArray[np.float64]:
    """Return Q'Q by computing one triangle."""
    width = Q.shape[1]
    gram = np.zeros((width, width))
    for block in kernels.pieces(len(gram), _WIDTH):
        above = slice(0, block.stop)
        columns = np.ascontiguousarray(Q[:, block])
        products = kernels.coefficients(Q[:, above], columns)
        gram[above, block] = products
        gram[block, above] = products.T
    return gram

"""Orthonormal bases that survive rank deficiency."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from scipy import linalg

from lowrank import kernels
from lowrank.kernels.arrays import epsilon

if TYPE_CHECKING:
    from lowrank.operators import Float64Array, FloatArray

# Cholesky QR squares the condition number of the normalised columns, which the smallest pivot
# estimates. For smaller pivots, Householder QR is used.
_CHOLESKY_LIMIT = 1e-2
_WELL_CONDITIONED = 0.3  # pivots above which Cholesky QR is orthonormal up to rounding


def extend_basis(
    basis: FloatArray | list[FloatArray],
    block: FloatArray,
    scale: float,
    rng: np.random.Generator,
    *,
    first: int = 0,
    again: bool = True,
    out: FloatArray | None = None,
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Split a block into its projection on a basis and the QR decomposition of the remainder.

    Directions of the remainder that are only rounding errors are dropped from R and replaced by
    random vectors in Q, so that Q is always orthonormal and orthogonal to the basis.

    Parameters
    ----------
    basis : ndarray of shape (n, p), or list of ndarrays of shapes (n, p_i)
        Orthonormal columns, p < n, in one or several panels.
    block : ndarray of shape (n, b)
        Vectors to add; overwritten if in C order.
    scale : float
        Magnitude of the numbers from which the block was computed. Entries below the rounding
        errors of this magnitude, or of the longest vector of the block, are treated as zero.
    rng : numpy.random.Generator
        Source of the random vectors.
    first : int
        Number of panels, from the first, to which the block is already orthogonal up to rounding.
    again : bool
        Project on the whole basis a second time, to remove the rounding errors of the first.
    out : ndarray of shape (n, b), optional
        Memory in C order that Q may use instead of the block's.

    Returns
    -------
    Q : ndarray of shape (n, min(b, n - p))
        Orthonormal columns, orthogonal to the basis.
    inside : ndarray of shape (p, b), float64
    R : ndarray of shape (min(b, n - p), b), float64
        block = basis @ inside + Q @ R up to rounding.

    References
    ----------
    Daniel, Gragg, Kaufman & Stewart (1976), "Reorthogonalization and stable algorithms for updating
    the Gram-Schmidt QR factorization"; Stathopoulos & Wu (2002), "A block orthogonalization
    procedure with constant synchronization requirements".
    """
    rows, width = block.shape
    remainder = np.ascontiguousarray(block)
    inside, gram = kernels.project(basis, remainder, first=first, again=again)
    room = min(width, rows - len(inside))
    Q, R, pivot = _qr(remainder, gram, out)
    eps = epsilon(block.dtype)
    noise = 20 * eps * max(scale, longest(inside, R))
    smallest = np.abs(np.diag(R)).min(initial=np.inf)
    rounds = int(pivot <= _WELL_CONDITIONED)
    if room < width or smallest <= noise:
        Q, R = _without_noise(Q @ R.astype(Q.dtype), room, noise, rng)
        # Random columns are not orthogonal to the basis yet, and may lose digits by it.
        rounds = 3
    for _ in range(rounds):
        correction, gram = kernels.project(basis, Q)
        inside += correction @ R
        Q, step, _ = _qr(Q, gram)
        R = step @ R
    return Q, inside, R


def _without_noise(
    block: FloatArray,
    room: int,
    noise: float,
    rng: np.random.Generator,
) -> tuple[FloatArray, FloatArray]:
    """Return `room` columns Q and R, with random columns for pivots up to `noise`."""
    # Column pivoting orders noise last, so that it can be replaced.
    Q, triangle, order = linalg.qr(
        block,
        mode="economic",
        pivoting=True,
        check_finite=False,
    )
    Q = np.array(Q[:, :room], order="C")
    pivots = np.abs(np.diag(triangle)[:room])
    weak = np.flatnonzero(pivots <= noise)
    triangle[weak] = 0.0
    random = rng.standard_normal((len(Q), weak.size))
    Q[:, weak] = random / np.sqrt(len(Q))
    R = np.empty((room, len(order)))
    R[:, order] = triangle[:room]
    return Q, R


def longest(inside: FloatArray, R: FloatArray) -> float:
    """Return the largest column norm of a block that `extend_basis` has split."""
    squares = np.einsum("ij,ij->j", inside, inside)
    squares += np.einsum("ij,ij->j", R, R)
    return math.sqrt(squares.max(initial=0.0))


def _qr(
    block: FloatArray,
    gram: Float64Array,
    out: FloatArray | None = None,
) -> tuple[FloatArray, FloatArray, float]:
    """Return Q, R and the smallest share of a column outside of the span of the columns before it.

    Cholesky QR, which consists of matrix products, is used if the block is well conditioned. `gram`
    is the Gram matrix of the block. Q may take the memory of `out`, by default that of the block.
    """
    pivot = 0.0
    try:
        R: FloatArray = np.linalg.cholesky(gram).T
        outside = R.diagonal() ** 2 / gram.diagonal()
        pivot = float(outside.min(initial=np.inf)) ** 0.5
    except np.linalg.LinAlgError:
        pass
    if pivot > _CHOLESKY_LIMIT:
        target = block if out is None else out
        Q = kernels.multiply(block, np.linalg.inv(R), out=target)
        return Q, R, pivot
    Q, R = np.linalg.qr(block)
    lengths = np.linalg.norm(R, axis=0)[: len(R)]
    tiny = np.finfo(R.dtype).tiny  # for columns of zeros
    shares = np.abs(R.diagonal()) / np.maximum(lengths, tiny)
    pivot = float(shares.min(initial=np.inf))
    return np.ascontiguousarray(Q), R.astype(np.float64), pivot

"""Orthonormal bases that survive rank deficiency."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy import linalg

from lowrank import kernels

if TYPE_CHECKING:
    from lowrank.operators import FloatArray

# Cholesky QR squares the condition number of the columns at equal lengths, which the smallest pivot
# tells; below this one, Householder QR takes over.
_CHOLESKY_LIMIT = {"float32": 1e-3, "float64": 1e-6}
_WELL_CONDITIONED = 0.3  # pivots above which Cholesky QR is orthonormal up to rounding


def extend_basis(
    basis: FloatArray,
    block: FloatArray,
    scale: float,
    rng: np.random.Generator,
    *,
    first: int = 0,
    whole: bool = True,
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Split a block into its projection on a basis and an orthonormal rest, Q R.

    Directions of the rest that are only rounding errors are dropped from R and their place in Q
    is taken by random vectors, so that Q is always orthonormal and orthogonal to the basis.

    Parameters
    ----------
    basis : ndarray of shape (n, p)
        Orthonormal columns, p < n.
    block : ndarray of shape (n, b)
        Vectors to be added; overwritten, if it is in C order.
    scale : float
        Size of the numbers that the block was computed from: entries below rounding relative to
        it, or to the longest vector of the block, count as zero.
    rng : numpy.random.Generator
        Source of the replacements.
    first : int
        The block is known to be orthogonal, up to rounding, to the basis columns before this one.
    whole : bool
        Whether to project on the whole basis a second time; else what rounding has left stays.

    Returns
    -------
    Q : ndarray of shape (n, min(b, n - p))
        Orthonormal, and orthogonal to the basis.
    inside : ndarray of shape (p, b), float64
    R : ndarray of shape (min(b, n - p), b), float64
        block = basis @ inside + Q @ R up to rounding.

    References
    ----------
    Daniel, Gragg, Kaufman & Stewart (1976), "Reorthogonalization and stable algorithms for updating
    the Gram-Schmidt QR factorization"; Stathopoulos & Wu (2002), "A block orthogonalization
    procedure with constant synchronization requirements".
    """
    room = min(block.shape[1], basis.shape[0] - basis.shape[1])
    rest = np.ascontiguousarray(block)
    inside = np.zeros((basis.shape[1], block.shape[1]))
    inside[first:] = _project_out(basis[:, first:], rest)
    if whole:  # what rounding has left: relative to the block, so far
        inside += _project_out(basis, rest)
    Q, R = _qr(rest)
    noise = 20 * float(np.finfo(block.dtype).eps) * max(scale, longest(inside, R))
    pivots = np.abs(np.diag(R))
    rounds = int(_smallest_pivot(R) <= _WELL_CONDITIONED)
    if room < block.shape[1] or pivots.min(initial=np.inf) <= noise:
        # QR with column pivoting, so that noise comes last and can be replaced.
        Q, triangle, order = linalg.qr(rest, mode="economic", pivoting=True, check_finite=False)
        Q, R, rounds = np.array(Q[:, :room], order="C"), np.empty((room, len(order))), 3
        weak = np.flatnonzero(np.abs(np.diag(triangle)[:room]) <= noise)
        triangle[weak] = 0.0
        Q[:, weak] = rng.standard_normal((Q.shape[0], weak.size)) / np.sqrt(Q.shape[0])
        R[:, order] = triangle[:room]
    for _ in range(rounds):
        inside += _project_out(basis, Q) @ R
        Q, step = _qr(Q)
        R = step @ R
    return Q, inside, R


def _project_out(basis: FloatArray, block: FloatArray) -> FloatArray:
    """Subtract from the block, in place, its projection on the basis; return the coefficients."""
    inside = kernels.coefficients(basis, block)
    kernels.subtract(basis, inside, block)
    return inside.astype(np.float64)


def longest(inside: FloatArray, R: FloatArray) -> float:
    """Return the largest norm of the columns of a block that `extend_basis` has split."""
    return float(np.linalg.norm(np.vstack([inside, R]), axis=0).max(initial=0.0))


def _qr(block: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Cholesky QR, which is all matrix products, where the block is well conditioned."""
    gram = kernels.coefficients(block, block).astype(np.float64)
    try:
        R = np.linalg.cholesky(gram).T
    except np.linalg.LinAlgError:
        R = np.zeros((1, 1))
    if _smallest_pivot(R) <= _CHOLESKY_LIMIT[str(block.dtype)]:
        Q, triangle = np.linalg.qr(block)
        return np.ascontiguousarray(Q), triangle.astype(np.float64)
    return kernels.multiply(block, np.linalg.inv(R)), R


def _smallest_pivot(R: FloatArray) -> float:
    """Return the smallest share of a column, in length, that is not in the span of those before."""
    lengths = np.linalg.norm(R, axis=0)[: len(R)]
    shares = np.abs(np.diag(R)) / np.maximum(lengths, np.finfo(R.dtype).tiny)
    return float(shares.min(initial=np.inf))

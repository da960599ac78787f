"""Orthonormal bases that survive rank deficiency."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from scipy import linalg

from lowrank import kernels

if TYPE_CHECKING:
    from lowrank.operators import Float64Array, FloatArray

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
    again: bool = True,
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
    again : bool
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
    inside, gram = kernels.project(basis, rest, first=first, again=again)
    Q, R, pivot = _qr(rest, gram)
    noise = 20 * float(np.finfo(block.dtype).eps) * max(scale, longest(inside, R))
    rounds = int(pivot <= _WELL_CONDITIONED)
    if room < block.shape[1] or np.abs(np.diag(R)).min(initial=np.inf) <= noise:
        # QR with column pivoting, so that noise comes last and can be replaced.
        Q, triangle, order = linalg.qr(rest, mode="economic", pivoting=True, check_finite=False)
        Q, R, rounds = np.array(Q[:, :room], order="C"), np.empty((room, len(order))), 3
        weak = np.flatnonzero(np.abs(np.diag(triangle)[:room]) <= noise)
        triangle[weak] = 0.0
        Q[:, weak] = rng.standard_normal((Q.shape[0], weak.size)) / np.sqrt(Q.shape[0])
        R[:, order] = triangle[:room]
    for _ in range(rounds):
        more, gram = kernels.project(basis, Q)
        inside += more @ R
        Q, step, _ = _qr(Q, gram)
        R = step @ R
    return Q, inside, R


def longest(inside: FloatArray, R: FloatArray) -> float:
    """Return the largest norm of the columns of a block that `extend_basis` has split."""
    squares = np.einsum("ij,ij->j", inside, inside) + np.einsum("ij,ij->j", R, R)
    return math.sqrt(squares.max(initial=0.0))


def _qr(block: FloatArray, gram: Float64Array) -> tuple[FloatArray, FloatArray, float]:
    """Return Q and R, and the smallest share of a column that is not in the span of those before.

    By Cholesky QR, which is all matrix products, where the block, of this Gram matrix, is well
    conditioned.
    """
    pivot = 0.0
    try:
        R = np.linalg.cholesky(gram).T
        pivot = float((R.diagonal() ** 2 / gram.diagonal()).min(initial=np.inf)) ** 0.5
    except np.linalg.LinAlgError:
        pass
    if pivot > _CHOLESKY_LIMIT[str(block.dtype)]:
        return kernels.multiply(block, np.linalg.inv(R)), R, pivot
    Q, R = np.linalg.qr(block)
    lengths = np.maximum(np.linalg.norm(R, axis=0), np.finfo(R.dtype).tiny)[: len(R)]
    shares = np.abs(R.diagonal()) / lengths
    return np.ascontiguousarray(Q), R.astype(np.float64), float(shares.min(initial=np.inf))

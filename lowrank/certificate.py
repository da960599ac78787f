"""What vouches for a computed SVD: residuals of its triplets, and a bound on what is left out."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lowrank.operators import FloatArray, MatrixOperator

__all__ = ["Certificate", "certify"]

_PROBES = 8  # the products are fastest with a multiple of 8
_ROWS = 1024  # of a difference that is formed at a time: it stays in the cache
# ||B|| <= 10 sqrt(2 / pi) max ||B x_i|| over p normal vectors x_i, but for 1 case in 10**p.
_PROBE_FACTOR = 10 * math.sqrt(2 / math.pi)


@dataclass(frozen=True)
class Certificate:
    """How good k triplets are, measured on the matrix itself.

    Attributes
    ----------
    residuals : ndarray of shape (2, k), float64
        ||A v - s u|| and ||A' u - s v|| of each triplet.
    worst : float
        The largest residual relative to s[0].
    spectral_error_bound : float
        At least ||A - U diag(s) Vt||_2, but for one random draw in a million.
    """

    residuals: NDArray[np.float64]
    worst: float
    spectral_error_bound: float


def certify(
    A: MatrixOperator, U: FloatArray, s: FloatArray, Vt: FloatArray, rng: np.random.Generator
) -> Certificate:
    """Measure residuals and bound the spectral error, by one product with A and one with A'.

    With E = A - U diag(s) Vt and normal random vectors x that go along in the same products,
    ||E x|| bounds ||E||, and ||E' E x|| bounds ||E||^2, each with a factor of about 8; the smaller
    bound is taken. Both exceed ||E|| the more, the flatter its spectrum is.

    References
    ----------
    Halko, Martinsson & Tropp (2011), "Finding structure with randomness", lemma 4.1.
    """
    k = s.size
    probes = rng.standard_normal((A.shape[1], _PROBES)).astype(A.dtype)
    product = A.matmat(np.hstack([Vt.T, probes]))
    left = _distances(product[:, :k], U, s)
    forward = product[:, k:] - U @ (s[:, None] * (Vt @ probes))
    product = A.rmatmat(np.hstack([U, forward]))
    right = _distances(product[:, :k], Vt.T, s)
    back = product[:, k:] - Vt.T @ (s[:, None] * (U.T @ forward))
    once = _PROBE_FACTOR * _norms(forward).max(initial=0.0)
    twice = math.sqrt(_PROBE_FACTOR * _norms(back).max(initial=0.0))
    residuals = np.stack([left, right])
    return Certificate(residuals, _relative(residuals, s), min(once, twice))


def _distances(product: FloatArray, vectors: FloatArray, s: FloatArray) -> NDArray[np.float64]:
    """Return the norm of each column of ``product - vectors * s``, accumulated in float64."""
    squares = np.zeros(s.size)
    for start in range(0, len(product), _ROWS):
        rows = slice(start, start + _ROWS)
        rest = product[rows] - vectors[rows] * s
        squares += np.einsum("ij,ij->j", rest, rest, dtype=np.float64)
    return np.sqrt(squares)


def _norms(block: FloatArray) -> NDArray[np.float64]:
    norms: NDArray[np.float64] = np.linalg.norm(block.astype(np.float64), axis=0)
    return norms


def _relative(residuals: NDArray[np.float64], s: FloatArray) -> float:
    largest = float(residuals.max(initial=0.0))
    if largest == 0.0:
        return 0.0
    return largest / float(s[0]) if s[0] > 0 else math.inf

"""Leading eigenvectors of a symmetric matrix that is known by its products only.

Block Lanczos with full orthogonalisation and thick restarts. The products are passes over the
cluster; everything else happens on the driver, on blocks of vectors as long as a row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowrank.solvers.orthonormal import extend_basis

__all__ = ["Eigenpairs", "block_size", "leading_eigenpairs"]

Doubles = NDArray[np.float64]
Product = Callable[[Doubles], Doubles]

_SPARE = 8  # vectors of a block beyond those wanted: a pass costs the cluster hardly more
_WIDEST = 64
_MOST_PASSES = 60


@dataclass(frozen=True, eq=False)
class Eigenpairs:
    """The k largest eigenvalues, descending, and their vectors in orthonormal columns.

    Attributes
    ----------
    values : ndarray of shape (k,)
    vectors : ndarray of shape (m, k)
    passes : int
        Products that were made.
    """

    values: Doubles
    vectors: Doubles
    passes: int


def block_size(k: int, m: int) -> int:
    """Return the number of vectors that a product is made with."""
    return min(m, k + _SPARE, max(k, _WIDEST))


def leading_eigenpairs(
    product: Product, m: int, k: int, accuracy: float, rng: np.random.Generator
) -> Eigenpairs:
    """Find the k largest eigenpairs of a positive semidefinite matrix G of order m.

    Parameters
    ----------
    product : callable
        From a block of shape (m, b) to G times it.
    m, k : int
        1 <= k <= m.
    accuracy : float
        What ||G v - theta v|| may be, relative to ``theta[0]``, times sqrt(theta / theta[0]).
    rng : Generator
        Source of the start vectors.

    References
    ----------
    Wu and Simon (2000), "Thick-restart Lanczos method for large symmetric eigenvalue problems";
    Golub and Underwood (1977), "The block Lanczos method for computing eigenvalues".
    """
    space = _Space(product, m, k, rng)
    while True:
        space.extend()
        values, rotation, residuals = space.ritz()
        done = min(k, len(values))
        top = max(float(values[0]), 0.0)
        floor = np.sqrt(np.finfo(np.float64).eps) * top
        allowed = accuracy * np.sqrt(top * np.maximum(values[:done], floor))
        converged = len(values) >= k and bool((residuals[:done] <= allowed).all())
        if converged or space.is_exhausted or space.passes >= _MOST_PASSES:
            vectors = space.vectors(rotation[:, :k])
            return Eigenpairs(values[:k], vectors, space.passes)
        if space.is_full:
            space.restart(values, rotation)


class _Space:
    """A basis V with G V = V T + V_next (0 ... 0 tail): `size` columns done, `width` to go on."""

    def __init__(self, product: Product, m: int, k: int, rng: np.random.Generator) -> None:
        self.passes = 0
        self._product, self._rng, self._k = product, rng, k
        self._block = block_size(k, m)
        self._limit = min(m, 2 * k + 4 * self._block)
        self._V: Doubles = np.zeros((m, min(m, self._limit + self._block)))
        self._T: Doubles = np.zeros((self._limit + self._block, self._limit + self._block))
        start = rng.standard_normal((m, self._block))
        first, _, _ = extend_basis(self._V[:, :0], start, 1.0, rng)
        self._size, self._width = 0, first.shape[1]
        self._V[:, : self._width] = first
        self._tail: NDArray[np.floating[Any]] = np.zeros((0, 0))
        self._scale = 0.0

    @property
    def is_exhausted(self) -> bool:
        """Whether the basis spans the whole space."""
        return bool(self._size == self._V.shape[0])

    @property
    def is_full(self) -> bool:
        """Whether another block would exceed the room."""
        return bool(self._size + self._width > self._limit)

    def extend(self) -> None:
        """Multiply the block to go on with, and orthogonalise the product."""
        old, new = self._size, self._size + self._width
        product = self._product(self._V[:, old:new])
        self.passes += 1
        self._scale = max(self._scale, float(np.linalg.norm(product, axis=0).max()))
        following, inside, tail = extend_basis(self._V[:, :new], product, self._scale, self._rng)
        self._T[:new, old:new] = inside
        self._T[old:new, :new] = inside.T
        self._tail, self._last = tail, (old, new)
        self._size, self._width = new, following.shape[1]
        self._V[:, new : new + self._width] = following

    def ritz(self) -> tuple[Doubles, Doubles, Doubles]:
        """Return Ritz values, descending, the rotation to their vectors, and residual norms."""
        T = self._T[: self._size, : self._size]
        values, rotation = np.linalg.eigh((T + T.T) / 2)
        values, rotation = values[::-1], rotation[:, ::-1]
        old, new = self._last
        residuals = np.linalg.norm(self._tail @ rotation[old:new], axis=0)
        return values, rotation, residuals

    def vectors(self, rotation: Doubles) -> Doubles:
        """Return combinations of the basis."""
        combined: Doubles = self._V[:, : self._size] @ rotation
        return combined

    def restart(self, values: Doubles, rotation: Doubles) -> None:
        """Shrink the basis to the best Ritz vectors; the block to go on with stays."""
        keep = min(self._k + self._block, self._size)
        following = self._V[:, self._size : self._size + self._width].copy()
        self._V[:, :keep] = self.vectors(rotation[:, :keep])
        self._V[:, keep : keep + self._width] = following
        self._T[:] = 0.0
        np.fill_diagonal(self._T[:keep, :keep], values[:keep])
        self._size = keep

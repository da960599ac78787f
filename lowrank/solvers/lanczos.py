"""Thick-restarted block Lanczos on the Gram operator A'A: the fast iteration."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from lowrank.solvers.orthonormal import extend_basis, random_block

if TYPE_CHECKING:
    from lowrank.operators import FloatArray, Products

__all__ = ["basis_size", "solve"]

_BLOCK = 16  # vectors per product: a cache line of float32, which sparse products read anyway
_MAX_PASSES = 2000  # products with A or A', then the best result so far is returned


def solve(
    A: Products, k: int, *, tol: float, rng: np.random.Generator
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Lanczos with blocks on x -> A'(A x), for the smaller side, restarted with its Ritz vectors.

    One orthonormal basis is kept, of the smaller side only, where a bidiagonalisation keeps two.
    The price is that singular values below ``sqrt(eps) * s[0]`` drown in the rounding errors of
    the Gram operator: for those, and for `tol` near rounding, `bidiagonal` is the solver.

    The basis has about 2.5 k vectors. When it is full, the Ritz vectors of the largest values are
    kept, and the iteration goes on with the residual block, so that nothing is computed again.
    A singular value of higher multiplicity than the block is wide shows only as many copies as
    the block has columns; so where that many equal values are found, random vectors join the
    basis until no value grows any more.

    Parameters
    ----------
    A : Products of shape (n_rows, n_columns)
    k : int
        1 <= k <= min(A.shape).
    tol : float
        Residual relative to the largest singular value.
    rng : numpy.random.Generator
        Draws the start block.

    Returns
    -------
    U : ndarray of shape (n_rows, k)
    s : ndarray of shape (k,)
    Vt : ndarray of shape (k, n_columns)

    References
    ----------
    Wu & Simon (2000), "Thick-restart Lanczos method for large symmetric eigenvalue problems";
    Golub & Underwood (1977), "The block Lanczos method for computing eigenvalues"; Musco & Musco
    (2015), "Randomized block Krylov methods for stronger and faster approximate singular value
    decomposition", for the block width.
    """
    if A.shape[0] < A.shape[1]:
        V, s, Ut = solve(A.transposed(), k, tol=tol, rng=rng)
        return Ut.T, s, V.T
    space = _LanczosSpace(A, k, rng)
    # Half of tol, as the true residuals are a little above the estimates.
    target = max(tol / 2, 10 * float(np.finfo(A.dtype).eps))
    while True:
        space.fill()
        space.rotate()
        converged = space.residuals(k).max() <= target
        if space.is_complete or space.passes >= _MAX_PASSES:
            break
        if converged and not space.may_miss_copies(k, target):
            break
        space.restart(k)
        if converged:
            space.add_random_directions()
    return space.triplets(k)


def basis_size(k: int, smaller_side: int) -> int:
    """Return the number of vectors that `solve` keeps at most."""
    return min(smaller_side, _round_up(5 * k // 2 + 2 * _BLOCK))


def _round_up(size: int) -> int:
    return -(-size // _BLOCK) * _BLOCK


class _LanczosSpace:
    """A basis V with ``A'A V = V H + V_next (0 ... 0 tail)``, for n_rows >= n_columns.

    `size` columns of V are done; `width` more are the block to go on with.
    """

    def __init__(self, A: Products, k: int, rng: np.random.Generator) -> None:
        columns = A.shape[1]
        self.passes = 0
        self._A, self._rng = A, rng
        self._limit = basis_size(k, columns)
        widest = min(self._limit + 2 * _BLOCK, columns)
        self._V: FloatArray = np.empty((columns, widest), A.dtype)
        self._H: FloatArray = np.zeros((widest, widest))
        self._tail: FloatArray = np.zeros((0, 0))
        self._values: FloatArray = np.zeros(0)
        self._vectors: FloatArray = np.zeros((0, 0))
        self._found: FloatArray | None = None
        self._scale = 0.0  # largest eigenvalue seen: what rounding errors are relative to
        self._size = self._width = 0
        self.add_random_directions()

    @property
    def is_complete(self) -> bool:
        """Whether V spans all columns, so that the result is exact."""
        return bool(self._size == self._V.shape[0])

    def fill(self) -> None:
        """Extend the basis until it is full."""
        while self._size + self._width <= self._limit and not self.is_complete:
            self._extend()

    def _extend(self) -> None:
        old, new = self._size, self._size + self._width
        block = np.ascontiguousarray(self._V[:, old:new])
        product = self._A.rmatmat(self._A.matmat(block))
        self.passes += 2
        self._scale = max(self._scale, float(np.linalg.norm(product, axis=0).max()))
        V, inside, self._tail = extend_basis(self._V[:, :new], product, self._scale, self._rng)
        self._H[:new, old:new] = inside
        self._H[old:new, :old] = inside[:old].T
        self._size, self._width = new, V.shape[1]
        self._V[:, new : new + self._width] = V

    def rotate(self) -> None:
        """Compute the Ritz values and vectors of the present basis, largest first."""
        H = self._H[: self._size, : self._size]
        values, vectors = np.linalg.eigh((H + H.T) / 2)
        self._values, self._vectors = np.maximum(values[::-1], 0.0), vectors[:, ::-1]

    def residuals(self, k: int) -> FloatArray:
        """Return ||A' u - s v|| / s[0] of the first k Ritz triplets, as far as A'A can tell."""
        last = self._vectors[self._size - self._tail.shape[1] :, :k]
        s = np.sqrt(self._values[:k])
        # Below this, a value is rounding error of the Gram operator and no residual can be told.
        visible = np.sqrt(float(np.finfo(self._A.dtype).eps)) * s[0]
        found: FloatArray = np.linalg.norm(self._tail @ last, axis=0) / np.maximum(s, visible)
        return found / s[0] if s[0] > 0 else np.zeros(k)

    def may_miss_copies(self, k: int, target: float) -> bool:
        """Whether as many values are equal as the start block is wide, and more of them may exist.

        False once random directions were added and no value grew.
        """
        s = np.sqrt(self._values[:k])
        if self._found is not None and bool(np.all(s - self._found <= target * s[0])):
            return False
        self._found = s
        span = _BLOCK - 1
        return bool(k > span and np.any(s[:-span] - s[span:] <= target * s[0]))

    def restart(self, k: int) -> None:
        """Shrink the basis to the best Ritz vectors; the block to go on with stays."""
        keep = min(k + max((self._limit - k) // 3, 1), self._size)
        following = self._V[:, self._size : self._size + self._width].copy()
        self._V[:, :keep] = self._ritz_vectors(keep)
        self._V[:, keep : keep + self._width] = following
        self._H[:] = 0.0
        np.fill_diagonal(self._H[:keep, :keep], self._values[:keep])
        self._size = keep

    def add_random_directions(self) -> None:
        """Widen the block to go on with by random vectors, as far as there is room."""
        used = self._size + self._width
        rows = self._V.shape[0]
        count = min(_BLOCK, rows - used)
        block = random_block(self._rng, (rows, count), self._A.dtype)
        V, _, _ = extend_basis(self._V[:, :used], block, 1.0, self._rng)
        self._V[:, used : used + count] = V
        self._width += count

    def _ritz_vectors(self, count: int) -> FloatArray:
        rotation = self._vectors[:, :count].astype(self._A.dtype)
        return self._V[:, : self._size] @ rotation

    def triplets(self, k: int) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return U, s, Vt of A restricted to the k Ritz vectors: accurate to eps * s[0]."""
        V = self._ritz_vectors(k)
        product = self._A.matmat(V)
        U, _, R = extend_basis(product[:, :0], product, self._scale**0.5, self._rng)
        P, s, Tt = np.linalg.svd(R)
        dtype = self._A.dtype
        return U @ P.astype(dtype), s.astype(dtype), Tt.astype(dtype) @ V.T

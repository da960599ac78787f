"""Randomized block Krylov iteration with restarts: reaches any tolerance that the dtype allows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from lowrank.solvers.orthonormal import extend_basis, longest

if TYPE_CHECKING:
    from lowrank.operators import FloatArray, MatrixOperator, Products, Triplets

_MAX_PASSES = 2000  # products with A or A', then the best result so far is returned
_MAX_PROBE_PASSES = 500  # the same for the search for missed triplets


def solve(A: MatrixOperator, k: int, *, tol: float, rng: np.random.Generator) -> Triplets:
    """Krylov space of a random block, Rayleigh-Ritz, thick restarts until `tol` is met.

    Each round extends orthonormal bases V and Q of the smaller and the larger side with
    A V = Q B and takes the SVD of the small matrix B. Both bases are kept orthonormal to working
    precision by full re-orthogonalisation, and are as wide as `basis_size` says at most; then
    the best k and a few more Ritz vectors are kept and extended further.

    A singular value of higher multiplicity than the block is wide would show only as many copies
    as the block has columns, and no residual would tell. So a converged result is probed: the
    same iteration from a new random block looks for the largest singular value of A (I - V V').
    If that is larger than s[k-1], its vectors join the basis and the iteration goes on.

    References
    ----------
    Halko, Martinsson & Tropp (2011), "Finding structure with randomness", section 4.5; Musco &
    Musco (2015), "Randomized block Krylov methods for stronger and faster approximate singular
    value decomposition"; Baglama & Reichel (2005), "Augmented implicitly restarted Lanczos
    bidiagonalization methods", for the restart.
    """
    if A.shape[0] < A.shape[1]:
        V, s, Ut = _solve_tall(A.transposed(), k, tol, rng)
        return Ut.T, s, V.T
    return _solve_tall(A, k, tol, rng)


def _solve_tall(A: Products, k: int, tol: float, rng: np.random.Generator) -> Triplets:
    space = _KrylovSpace(A, k, rng)
    # Half of tol, as the true residuals are a little above the estimates; never below rounding.
    target = max(tol / 2, 10 * float(np.finfo(A.dtype).eps))
    while True:
        space.fill(k, target)
        ritz = space.ritz()
        converged = bool(ritz.residuals[:k].max() <= target * ritz.s[0])
        if space.passes >= _MAX_PASSES or (converged and space.sees_all_copies):
            return space.triplets(ritz, k)
        missed = None
        if converged:
            U, s, Vt = space.triplets(ritz, k)
            missed = _missed_directions(A, s, Vt, target, rng)
            if missed is None:
                return U, s, Vt
        space.restart(ritz, k)
        if missed is not None:
            space.add_directions(missed)


def _missed_directions(
    A: Products, s: FloatArray, Vt: FloatArray, target: float, rng: np.random.Generator
) -> FloatArray | None:
    """Return right vectors, shape (n_columns, b), that belong before the last triplet, if any."""
    probe = _KrylovSpace(_Deflated(A, Vt), 1, rng)
    small = target * float(s[0])
    bound = float(s[-1]) + small
    while True:
        probe.fill(1, target)
        ritz = probe.ritz()
        value, residual = float(ritz.s[0]), float(ritz.residuals[0])
        if value > bound:
            return probe.triplets(ritz, _block_size(1))[2].T
        if value + residual <= bound or residual <= small or probe.passes >= _MAX_PROBE_PASSES:
            return None
        probe.restart(ritz, 1)


def basis_size(k: int, smaller_side: int) -> int:
    """Return the number of vectors that `solve` keeps on each side at most."""
    return min(smaller_side, 5 * k // 2 + 3 * _block_size(k))


def _block_size(k: int) -> int:
    return min(max(k, 8), 16)


class _Ritz:
    """SVD of the small matrix B, with the norm of A' u - s v for each triplet."""

    def __init__(self, B: FloatArray, tail: FloatArray) -> None:
        self.P, self.s, self.Tt = np.linalg.svd(B)
        self.residuals = np.linalg.norm(tail @ self.P[B.shape[0] - tail.shape[1] :], axis=0)


class _Deflated:
    """A (I - V V'), for orthonormal V."""

    def __init__(self, A: Products, Vt: FloatArray) -> None:
        self.shape, self.dtype = A.shape, A.dtype
        self._A, self._Vt = A, Vt

    def matmat(self, X: FloatArray) -> FloatArray:
        return self._A.matmat(self._without(X))

    def rmatmat(self, Y: FloatArray) -> FloatArray:
        return self._without(self._A.rmatmat(Y))

    def gram_product(self, X: FloatArray) -> FloatArray:
        return self._without(self._A.gram_product(self._without(X)))

    def _without(self, X: FloatArray) -> FloatArray:
        return X - self._Vt.T @ (self._Vt @ X)


class _KrylovSpace:
    """Bases with A V = Q B and A' Q = V B' + V_next (0 ... 0 tail), for n_rows >= n_columns.

    `size` columns of V and Q are done; `width` more of V are the block to go on with.
    """

    def __init__(self, A: Products, k: int, rng: np.random.Generator) -> None:
        rows, columns = A.shape
        self.passes = 0
        self._A, self._k, self._rng, self._block = A, k, rng, _block_size(k)
        self._limit = basis_size(k, columns)
        widest = min(self._limit + k + self._block, columns)  # with the block to go on with
        self._V: FloatArray = np.empty((columns, widest), A.dtype)
        self._Q: FloatArray = np.empty((rows, self._limit), A.dtype)
        self._B: FloatArray = np.zeros((self._limit, self._limit))
        self._tail: FloatArray = np.zeros((0, 0))
        self._scale = 0.0  # largest ||A v|| seen: what rounding errors are relative to
        self._size = self._width = self._directions = 0
        start = rng.standard_normal((columns, min(self._block, columns)))
        self.add_directions(start.astype(A.dtype))

    @property
    def sees_all_copies(self) -> bool:
        """Return whether k copies of a singular value would be found, or V spans all columns."""
        return self._directions >= self._k or self._is_complete

    @property
    def _is_complete(self) -> bool:
        return bool(self._size == self._V.shape[0])

    def fill(self, k: int, target: float) -> None:
        """Extend until the bases are full, or nothing is left to be found in their direction."""
        while True:
            old, new = self._size, self._size + self._width
            product = self._A.matmat(self._V[:, old:new])
            Q, inside, R = extend_basis(self._Q[:, :old], product, self._scale, self._rng)
            self._scale = max(self._scale, longest(inside, R))
            self._Q[:, old:new] = Q
            self._B[:old, old:new] = inside
            self._B[old:new, old:new] = R
            self._size = new
            product = self._A.rmatmat(Q)
            V, _, self._tail = extend_basis(self._V[:, :new], product, self._scale, self._rng)
            self._width = V.shape[1]
            self._V[:, new : new + self._width] = V
            self.passes += 2
            exhausted = float(np.linalg.norm(self._tail)) <= target * self._scale
            full = self._size + self._width > self._limit
            if self._is_complete or full or (exhausted and self._size >= k):
                return

    def ritz(self) -> _Ritz:
        """Return the Rayleigh-Ritz approximations from the present bases."""
        return _Ritz(self._B[: self._size, : self._size], self._tail)

    def triplets(self, ritz: _Ritz, k: int) -> Triplets:
        """Return the best k Ritz approximations as U, s, Vt."""
        dtype = self._A.dtype
        U = self._Q[:, : self._size] @ ritz.P[:, :k].astype(dtype)
        Vt = ritz.Tt[:k].astype(dtype) @ self._V[:, : self._size].T
        return U, ritz.s[:k].astype(dtype), Vt

    def restart(self, ritz: _Ritz, k: int) -> None:
        """Shrink the bases to the best Ritz vectors; the block to go on with stays."""
        keep = min(k + self._block, self._size)
        following = self._V[:, self._size : self._size + self._width].copy()
        U, _, Vt = self.triplets(ritz, keep)
        self._Q[:, :keep] = U
        self._V[:, :keep] = Vt.T
        self._V[:, keep : keep + self._width] = following
        self._B[:] = 0.0
        np.fill_diagonal(self._B[:keep, :keep], ritz.s[:keep])
        self._size = keep

    def add_directions(self, block: FloatArray) -> None:
        """Widen the block to go on with by new directions, as far as there is room."""
        used = self._size + self._width
        V, _, _ = extend_basis(self._V[:, :used], block, 1.0, self._rng)
        count = V.shape[1]
        self._V[:, used : used + count] = V
        self._width += count
        self._directions += count

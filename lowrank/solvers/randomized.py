"""Randomized block Krylov iteration with restarts, for every tolerance that the dtype allows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from lowrank.kernels.arrays import epsilon
from lowrank.solvers.orthonormal import extend_basis, longest

if TYPE_CHECKING:
    from lowrank.operators import FloatArray, MatrixOperator, Products, Triplets

_MAX_PASSES = 2000  # maximum number of products before the best result is returned
_MAX_PROBE_PASSES = 500  # the same limit for the search for missed triplets
_PATIENCE = 4  # restarts in which residuals must halve once rounding sets the tolerance
_ROUNDING = 5  # residuals that rounding allows, in machine epsilons of s[0]


def solve(
    A: MatrixOperator,
    k: int,
    *,
    tol: float,
    rng: np.random.Generator,
) -> Triplets:
    """Compute singular triplets in the Krylov space of a random block, with thick restarts.

    Each round extends orthonormal bases V and Q of the smaller and larger dimension, with
    A V = Q B, and computes the SVD of the small matrix B (Rayleigh-Ritz). Full reorthogonalisation
    keeps both bases orthonormal to working precision. When they reach `basis_size` vectors, the
    best k Ritz vectors and a few more are kept and extended again, until `tol` is reached.

    For a singular value whose multiplicity exceeds the width of the block, only as many copies are
    found as the block has columns, which is not visible in the residuals. A converged result is
    therefore tested: the same iteration from a new random block computes the largest singular value
    of A (I - V V'). If it is larger than s[k-1], its vectors are added to the basis, and the
    iteration continues.

    References
    ----------
    Halko, Martinsson & Tropp (2011), "Finding structure with randomness", section 4.5; Musco &
    Musco (2015), "Randomized block Krylov methods for stronger and faster approximate singular
    value decomposition"; Baglama & Reichel (2005), "Augmented implicitly restarted Lanczos
    bidiagonalization methods", for the restart.
    """
    if A.shape[0] < A.shape[1]:
        right, s, left = _solve_tall(A.transposed(), k, tol, rng)
        return left.T, s, right.T
    return _solve_tall(A, k, tol, rng)


def _solve_tall(
    A: Products,
    k: int,
    tol: float,
    rng: np.random.Generator,
) -> Triplets:
    space = _KrylovSpace(A, k, rng)
    # True residuals are slightly above the estimates.
    target = tol / 2
    history: list[float] = []
    while True:
        space.fill(k)
        ritz = space.ritz()
        s = ritz.s[:k]
        residuals = ritz.residuals[:k]
        tolerance = _tolerance(s, target, A.dtype)
        converged = bool(np.all(residuals <= tolerance))
        # Rounding may leave more than estimated: then residuals do not become smaller.
        history.append(float(residuals[-1]))
        is_at_rounding = target * s[-1] < tolerance[-1]
        if is_at_rounding and len(history) > _PATIENCE:
            converged |= 2 * history[-1] > history[-1 - _PATIENCE]
        if space.passes >= _MAX_PASSES:
            return space.triplets(ritz, k)
        if not converged:
            space.restart(ritz, k)
            continue
        U, s, Vt = space.triplets(ritz, k)
        if space.sees_all_copies:
            return U, s, Vt
        missed = _missed_directions(A, s, Vt, target, rng)
        if missed is None:
            return U, s, Vt
        space.restart(ritz, k)
        space.add_directions(missed)


def _missed_directions(
    A: Products,
    s: FloatArray,
    Vt: FloatArray,
    target: float,
    rng: np.random.Generator,
) -> FloatArray | None:
    """Return right vectors of missed triplets, shape (n_columns, b), or None."""
    probe = _KrylovSpace(_Deflated(A, Vt), 1, rng)
    small = float(_tolerance(s, target, A.dtype)[-1])
    bound = float(s[-1]) + small
    while True:
        probe.fill(1)
        ritz = probe.ritz()
        value = float(ritz.s[0])
        residual = float(ritz.residuals[0])
        if value > bound:
            _, _, missed = probe.triplets(ritz, _block_size(1))
            return missed.T
        # The largest value outside is known well enough, or cannot be above the bound.
        if residual <= small or value + residual <= bound:
            return None
        if probe.passes >= _MAX_PROBE_PASSES:
            return None
        probe.restart(ritz, 1)


def _tolerance(
    s: FloatArray,
    target: float,
    dtype: np.dtype[Any],
) -> FloatArray:
    """Return the residual to reach for each singular value, never below rounding."""
    eps = epsilon(dtype)
    floor = _ROUNDING * eps * float(s[0])
    relative = target * s.astype(np.float64)
    return np.maximum(relative, floor)


def basis_size(k: int, smaller_side: int) -> int:
    """Return the maximum number of vectors in each of the two bases of `solve`."""
    # Below 2.5 k, each round repeats too much of the last one.
    vectors = 5 * k // 2 + 3 * _block_size(k)
    return min(smaller_side, vectors)


def _block_size(k: int) -> int:
    return min(max(k, 8), 16)


class _Ritz:
    """SVD of the small matrix B, with the norm of A' u - s v of each triplet."""

    def __init__(self, B: FloatArray, tail: FloatArray) -> None:
        self.P, self.s, self.Tt = np.linalg.svd(B)
        last = self.P[len(B) - tail.shape[1] :]
        self.residuals = np.linalg.norm(tail @ last, axis=0)


class _Deflated:
    """Operator A (I - V V') with orthonormal V."""

    def __init__(self, A: Products, Vt: FloatArray) -> None:
        self.shape = A.shape
        self.dtype = A.dtype
        self._A = A
        self._Vt = Vt

    def matmat(self, X: FloatArray) -> FloatArray:
        outside = self._without(X)
        return self._A.matmat(outside)

    def rmatmat(self, Y: FloatArray) -> FloatArray:
        product = self._A.rmatmat(Y)
        return self._without(product)

    def gram_product(self, X: FloatArray) -> FloatArray:
        return self.rmatmat(self.matmat(X))

    def _without(self, X: FloatArray) -> FloatArray:
        along = self._Vt @ X
        return X - self._Vt.T @ along


class _KrylovSpace:
    """Krylov bases with A V = Q B and A' Q = V B' + V_next (0 ... 0 tail), n_rows >= n_columns.

    The first `size` columns of V and Q are complete. The next `width` columns of V are the next
    block.
    """

    def __init__(
        self,
        A: Products,
        k: int,
        rng: np.random.Generator,
    ) -> None:
        rows, columns = A.shape
        self.passes = 0
        self._A = A
        self._k = k
        self._rng = rng
        self._block = _block_size(k)
        self._limit = basis_size(k, columns)
        # The next block stands behind the basis, with up to k directions that were missed.
        widest = min(self._limit + k + self._block, columns)
        self._V: FloatArray = np.empty((columns, widest), A.dtype)
        self._Q: FloatArray = np.empty((rows, self._limit), A.dtype)
        self._B: FloatArray = np.zeros((self._limit, self._limit))
        self._tail: FloatArray = np.zeros((0, 0))
        # Largest ||A v|| found, the scale of rounding errors.
        self._scale = 0.0
        self._rounding = _ROUNDING * epsilon(A.dtype)
        self._size = 0
        self._width = 0
        self._directions = 0
        width = min(self._block, columns)
        start = rng.standard_normal((columns, width))
        self.add_directions(start.astype(A.dtype))

    @property
    def sees_all_copies(self) -> bool:
        """Return whether k copies of a singular value can be found, or V spans all columns."""
        return self._directions >= self._k or self._is_complete

    @property
    def _is_complete(self) -> bool:
        return bool(self._size == self._V.shape[0])

    def fill(self, k: int) -> None:
        """Extend the bases until they are full, or the Krylov space is exhausted."""
        while True:
            self._extend()
            is_full = self._size + self._width > self._limit
            noise = self._rounding * self._scale
            if self._is_complete or is_full:
                return
            is_exhausted = float(np.linalg.norm(self._tail)) <= noise
            if is_exhausted and self._size >= k:
                return

    def _extend(self) -> None:
        """Add a block to each basis, by a product with A and one with A'."""
        old = self._size
        new = old + self._width
        product = self._A.matmat(self._V[:, old:new])
        basis = self._Q[:, :old]
        Q, inside, R = extend_basis(basis, product, self._scale, self._rng)
        self._scale = max(self._scale, longest(inside, R))
        self._Q[:, old:new] = Q
        self._B[:old, old:new] = inside
        self._B[old:new, old:new] = R
        self._size = new
        product = self._A.rmatmat(Q)
        basis = self._V[:, :new]
        V, _, self._tail = extend_basis(basis, product, self._scale, self._rng)
        self._width = V.shape[1]
        self._V[:, new : new + self._width] = V
        self.passes += 2

    def ritz(self) -> _Ritz:
        """Return the Rayleigh-Ritz approximations from the current bases."""
        B = self._B[: self._size, : self._size]
        return _Ritz(B, self._tail)

    def triplets(self, ritz: _Ritz, k: int) -> Triplets:
        """Return the best k Ritz approximations as U, s, Vt."""
        dtype = self._A.dtype
        left = self._Q[:, : self._size]
        right = self._V[:, : self._size]
        U = left @ ritz.P[:, :k].astype(dtype)
        Vt = ritz.Tt[:k].astype(dtype) @ right.T
        s = ritz.s[:k].astype(dtype)
        return U, s, Vt

    def restart(self, ritz: _Ritz, k: int) -> None:
        """Reduce the bases to the best Ritz vectors, and keep the next block."""
        # Some vectors beyond k speed up the convergence of the k-th.
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
        """Add new directions to the next block, as far as space allows."""
        used = self._size + self._width
        basis = self._V[:, :used]
        V, _, _ = extend_basis(basis, block, 1.0, self._rng)
        count = V.shape[1]
        self._V[:, used : used + count] = V
        self._width += count
        self._directions += count

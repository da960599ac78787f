"""Thick-restart block Lanczos method on the Gram operator A'A, the fast iterative solver."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from lowrank import kernels
from lowrank.kernels.arrays import epsilon
from lowrank.solvers import randomized
from lowrank.solvers.orthonormal import extend_basis, longest

if TYPE_CHECKING:
    from collections.abc import Callable

    from lowrank.operators import FloatArray, MatrixOperator, Products, Triplets

_BLOCK = 16  # vectors per product
_LINE = 64  # bytes of a cache line
# Most vectors between checks, each of which costs about as much as a block; before the first
# restart, up to _FURTHEST times as many.
_CHECK_EVERY = 64
_FURTHEST = 2.5
# maximum number of products with A'A before the best result is returned
_MAX_STEPS = 1000
# Products through which the start block goes first for a sparse matrix in memory. Convergence takes
# hardly more products in total, and the basis has as many blocks fewer.
_POWERS = 3
_COUPLED = 2  # blocks with which a product of the last one has components
_PATIENCE = 3  # checks in which residuals must halve once rounding sets the tolerance
_LEAST_ROUNDING = 0.003  # smallest residual that rounding of A'A leaves, see `loses`


def solve(
    A: MatrixOperator,
    k: int,
    *,
    tol: float,
    rng: np.random.Generator,
) -> Triplets:
    """Compute singular triplets by the block Lanczos method on x -> A'(A x), with thick restarts.

    If A has fewer rows than columns, A' takes the place of A. Only one orthonormal basis is stored,
    for the smaller dimension, where a bidiagonalisation stores two. The drawback is that singular
    values below ``sqrt(eps) * s[0]`` are lost in the rounding errors of the Gram operator; for
    these, and for `tol` near the limit of rounding, use `randomized`.

    In float32, the iteration ends early if these errors are clearly above `tol`; it is then
    repeated in float64.

    A block is orthogonalised against the two blocks before it. It is orthogonalised against the
    whole basis only after a restart, or if the loss of orthogonality may have grown to `tol` / 5.

    The basis has up to 4 k + 96 vectors, or 3 k + 160 for k above 64. When it is full, the Ritz
    vectors of the largest values are kept, and the iteration continues with the residual block
    without repeating work.

    For a singular value whose multiplicity exceeds the width of the block, only as many copies are
    found as the block has columns. If that many equal values are found, the problem is passed to
    `randomized`, which searches for missed copies.

    A block has 16 vectors; for a sparse matrix in memory, its rows fill one cache line (8 vectors
    in float64). The products read whole cache lines in any case, and narrow blocks converge with
    fewer vectors in total. As such products take less time than orthogonalisation, its start block
    is the result of some steps of subspace iteration.

    References
    ----------
    Wu & Simon (2000), "Thick-restart Lanczos method for large symmetric eigenvalue problems";
    Simon (1984), "The Lanczos algorithm with partial reorthogonalization";
    Golub & Underwood (1977), "The block Lanczos method for computing eigenvalues"; Musco & Musco
    (2015), "Randomized block Krylov methods for stronger and faster approximate singular value
    decomposition", for the block width.
    """
    tall: Products = A
    if A.shape[0] < A.shape[1]:
        tall = A.transposed()
    block, powers = _BLOCK, 0
    if A.entries < math.prod(A.shape) and not A.in_blocks:
        block, powers = _LINE // A.dtype.itemsize, _POWERS
    V, _ = leading_eigenvectors(
        tall.gram_product,
        tall.shape[1],
        A.dtype,
        k,
        tol=tol,
        rng=rng,
        max_steps=_MAX_STEPS,
        block=block,
        powers=powers,
    )
    U, s, Vt = triplets(tall, V, rng)
    if has_wide_cluster(s, block):
        return randomized.solve(A, k, tol=tol, rng=rng)
    if tall is A:
        return U, s, Vt
    return Vt.T, s, U.T


def triplets(
    A: Products,
    V: FloatArray,
    rng: np.random.Generator,
) -> Triplets:
    """Return U, s and Vt of A restricted to the span of V, accurate to ``eps * s[0]``.

    V has shape (n_columns, k). Its columns are nearly orthonormal and nearly right singular
    vectors. The left vectors of zero singular values are random.
    """
    U, _, R = extend_basis([], A.matmat(V), 0.0, rng, again=False)
    gram = kernels.coefficients(V, V).astype(np.float64)
    # V turn is orthonormal up to rounding.
    turn = np.linalg.inv(np.linalg.cholesky(gram)).T
    P, s, Tt = np.linalg.svd(R @ turn)
    left = kernels.multiply(U, P, out=U)
    right = kernels.multiply(V, turn @ Tt.T)
    return left, s.astype(U.dtype), right.T


def leading_eigenvectors(
    gram_product: Callable[[FloatArray], FloatArray],
    size: int,
    dtype: np.dtype[Any],
    k: int,
    tol: float,
    rng: np.random.Generator,
    max_steps: int,
    *,
    block: int = _BLOCK,
    powers: int = 0,
) -> tuple[FloatArray, bool]:
    """Compute the eigenvectors of the k largest eigenvalues of A'A, largest first.

    Parameters
    ----------
    gram_product : callable
        Function X -> A'(A X) for a block X of shape (size, b) and `dtype`; returns a new array.
    k : int
        1 <= k <= size.
    tol : float
        Tolerance for the residual of a triplet, relative to its singular value.
    rng : numpy.random.Generator
        Source of the start block.
    max_steps : int
        Maximum number of products, after which the best vectors found are returned.
    block : int
        Number of vectors per product.
    powers : int
        Number of products that the start block goes through first.

    Returns
    -------
    vectors : ndarray of shape (size, k)
        Eigenvectors as columns, orthonormal up to `tol` / 5.
    converged : bool
        True if they reach `tol`, within the accuracy of A'A.
    """
    width = min(block, size)
    start = rng.random((size, width), dtype) - dtype.type(0.5)
    for _ in range(powers):
        start, _, _ = extend_basis([], start, 0.0, rng)
        start = gram_product(start)
    # Below tol, because rounding and the loss of orthogonality add to the estimate.
    eps = epsilon(dtype)
    target = max(0.85 * tol, 10 * eps)
    limit = basis_size(k, size, width)
    # Each panel starts on a cache line, hence up to _LINE numbers more.
    numbers = (size + _LINE) * (limit + width)
    with kernels.workspace(numbers, dtype) as memory:
        space = _LanczosSpace(gram_product, start, k, target, rng, limit, memory)
        converged = _converge(space, tol, max_steps)
        return space.ritz_vectors(k), converged


def _converge(space: _LanczosSpace, tol: float, max_steps: int) -> bool:
    """Extend the basis until the residuals of its Ritz vectors reach the target, or cannot.

    Returns whether they do.
    """
    most = max(_CHECK_EVERY // space.width, 1)
    blocks = most
    checked_at = 0
    history: list[float] = []
    while True:
        space.extend(blocks)
        space.rotate()
        excess = space.excess()
        if excess <= 1 or space.is_complete:
            return True
        if space.steps >= max_steps:
            return False
        is_single = space.dtype == np.float32
        if space.is_full and is_single and loses(space.values, tol, space.dtype):
            return False
        history.append(excess)
        earlier = history[-1 - _PATIENCE] if len(history) > _PATIENCE else math.inf
        if 2 * excess > earlier and space.is_at_rounding:
            return False
        if space.is_full:
            space.restart()
        if len(history) > 1 and excess < history[-2]:
            rate = math.log(history[-2] / excess)
            expected = (space.steps - checked_at) * math.log(excess) / rate
            furthest = most if space.is_restarted else _FURTHEST * most
            # Convergence accelerates until all of the k vectors are in the basis.
            blocks = int(min(max(0.7 * expected, 1), furthest))
        checked_at = space.steps


def has_wide_cluster(s: FloatArray, block: int = _BLOCK) -> bool:
    """Return whether at least `block` values are nearly equal."""
    span = block - 1
    if s.size <= span:
        return False
    eps = epsilon(s.dtype)
    first = s[:-span].astype(np.float64)
    last = s[span:]
    # The Gram operator gives a value v up to eps s[0]**2 / v.
    rounding = eps * first[0] ** 2 / np.maximum(first, 1e-300)
    equal = np.maximum(math.sqrt(eps) * first, rounding)
    return bool(np.any(first - last <= equal))


def loses(
    s: FloatArray,
    tol: float,
    dtype: np.dtype[Any],
) -> bool:
    """Return whether A'A in `dtype` clearly cannot give the last of these values up to `tol`.

    The rounding errors of the products leave residuals of some hundredths of eps s[0]**2 / s[i].
    """
    if not s.size:
        return False
    eps = epsilon(dtype)
    rounding = _LEAST_ROUNDING * eps * float(s[0]) ** 2
    return rounding > tol * float(s[-1]) ** 2


def basis_size(
    k: int,
    smaller_side: int,
    block: int = _BLOCK,
) -> int:
    """Return the maximum number of vectors in the basis."""
    # With fewer, restarts repeat much of the work; with more, a check takes longer than a block.
    vectors = 3 * k + min(k, 64) + 96
    blocks = math.ceil(vectors / block)
    return min(smaller_side, blocks * block)


class _LanczosSpace:
    """Lanczos basis V with ``A'A V = V H + V_next (0 ... 0 tail)``, for n_rows >= n_columns.

    V is stored in panels: the Ritz vectors of the last restart, then one block after the other,
    with `size` columns together. The next block is kept apart. Once it is a panel, the product of
    A'A with it has components only in the last `_COUPLED` panels: a three-term recurrence, except
    for the step after a restart.
    """

    def __init__(
        self,
        gram_product: Callable[[FloatArray], FloatArray],
        start: FloatArray,
        k: int,
        target: float,
        rng: np.random.Generator,
        limit: int,
        memory: FloatArray,
    ) -> None:
        self.dtype = start.dtype
        self.width = start.shape[1]
        self.steps = 0
        self.is_restarted = False
        self._gram_product = gram_product
        self._rng = rng
        self._k = k
        self._target = target
        self._eps = epsilon(start.dtype)
        self._limit = limit
        self._memory = memory
        self._used = 0
        self._panels: list[FloatArray] = []
        widest = limit + self.width
        self._H: FloatArray = np.zeros((widest, widest))
        self._tail: FloatArray = np.zeros((0, 0))
        self._values: FloatArray = np.zeros(0)
        self._vectors: FloatArray = np.zeros((0, 0))
        self._scale = 0.0  # largest eigenvalue found, the scale of rounding errors
        self._size = 0
        # Bounds of the cosines between the last two blocks and the earlier ones. A step without
        # reorthogonalisation multiplies them by at most the growth.
        self._losses = (self._eps, self._eps)
        self._growth = 1.0
        self._block, _, _ = extend_basis([], start, 0.0, rng)

    @property
    def is_complete(self) -> bool:
        """Return whether V spans all columns, so that the result is exact."""
        return bool(self._size == len(self._block))

    @property
    def _largest_loss(self) -> float:
        """Return the cosine between blocks up to which the next one is not reorthogonalised.

        A loss w changes the residual of the i-th eigenvalue by up to w times this value, and by the
        largest one times w squared. Before the first check, the smallest value of the last block
        takes the place of the k-th.
        """
        ratio = 1 / self._growth
        if self._values.size >= self._k and self._values[0] > 0:
            ratio = float(self._values[self._k - 1] / self._values[0])
        loss = min(self._target / 5, 0.1 * math.sqrt(self._target * ratio))
        return max(loss, 2 * self._eps)

    @property
    def is_full(self) -> bool:
        """Return whether there is no space for another block."""
        return bool(self._size + self._block.shape[1] > self._limit)

    def extend(self, steps: int) -> None:
        """Extend the basis by a number of blocks, and to k vectors, as far as space allows."""
        while not self.is_full and not self.is_complete:
            if steps <= 0 and self._size >= self._k:
                return
            steps -= 1
            old = self._size
            new = old + self._block.shape[1]
            self._block = self._stored(self._block)
            inside = self._next_block()
            self._H[:new, old:new] = inside
            self._H[old:new, :old] = inside[:old].T
            self._size = new

    def _next_block(self) -> FloatArray:
        """Replace the block by the next one; return the part of A'A block in the basis."""
        product = self._gram_product(self._block)
        self.steps += 1
        eps = self._eps
        allowed = self._largest_loss
        # Reorthogonalise two blocks in a row, since the loss of a block depends on the two
        # before it; or every other block, if a single step almost reaches the allowed loss.
        loss = self._losses[1]
        if self._growth**2 * eps <= allowed:
            loss = max(self._losses)
        whole = self.is_restarted or 1.2 * self._growth * loss > allowed
        # After a restart the next step uses the whole basis anyway, so a small loss is enough.
        again = whole and not (self.is_restarted and self._growth * eps <= allowed)
        if whole:
            loss = eps
        coupled = self._panels
        if again or not whole:
            coupled = self._panels[-_COUPLED:]
        self._block, inside, self._tail = extend_basis(
            self._panels,
            product,
            self._scale,
            self._rng,
            first=len(self._panels) - len(coupled),
            again=again,
            out=self._vacant(product.shape),
        )
        if not self._values.size:
            self._scale = max(self._scale, longest(inside, self._tail))
        smallest = 0.0
        if self._tail.size:
            smallest = float(np.linalg.norm(self._tail, -2))
        self._growth = self._scale / smallest if smallest else math.inf
        if not again and self._growth * loss > allowed:
            # The loss is larger than estimated before the step.
            self._block, correction, turn = extend_basis(
                self._panels,
                self._block,
                1.0,
                self._rng,
            )
            inside = inside + correction @ self._tail
            self._tail = turn @ self._tail
            again = True
        next_loss = eps if again else self._growth * loss
        self._losses = (self._losses[1], next_loss)
        return inside

    def rotate(self) -> None:
        """Compute the Ritz values and vectors of the current basis, largest first."""
        H = self._H[: self._size, : self._size]
        values, vectors = np.linalg.eigh((H + H.T) / 2)
        self._values = np.maximum(values[::-1], 0.0)
        self._vectors = vectors[:, ::-1]
        self._scale = max(self._scale, float(self._values[0]))

    @property
    def values(self) -> FloatArray:
        """Return the k largest Ritz values, as singular values."""
        return np.sqrt(self._values[: self._k])

    def excess(self) -> float:
        """Return the largest residual of the first k Ritz triplets, in units of its tolerance.

        The tolerance is `target` times the singular value, but not below the rounding errors of the
        vectors, 10 eps s[0], or of the products with A'A.
        """
        s = self.values
        if s[0] == 0:
            return 0.0
        last = self._vectors[self._size - self._tail.shape[1] :, : self._k]
        residuals = np.linalg.norm(self._tail @ last, axis=0)
        allowed = np.maximum(self._target * s**2, self._rounding(s))
        return float((residuals / allowed).max())

    @property
    def is_at_rounding(self) -> bool:
        """Return whether rounding errors set the tolerance of the k-th triplet, not `target`."""
        s = self.values
        rounding = self._rounding(s)
        return bool(self._target * s[-1] ** 2 < rounding[-1])

    def _rounding(self, s: FloatArray) -> FloatArray:
        """Return the residuals of A'A that rounding leaves for some singular values."""
        residuals: FloatArray = self._eps * s[0] * np.maximum(10 * s, 0.1 * s[0])
        return residuals

    def restart(self) -> None:
        """Reduce the basis to the best Ritz vectors, and keep the next block."""
        # Vectors beyond k speed up the convergence of the k-th.
        spare = max((self._limit - self._k) // 5, 1)
        keep = min(self._k + spare, self._size)
        ritz_vectors = self.ritz_vectors(keep)
        self._panels = []
        self._used = 0
        ritz_vectors = self._stored(ritz_vectors)
        # Ritz vectors are less orthogonal than the basis, and each restart adds to the loss.
        gram = kernels.coefficients(ritz_vectors, ritz_vectors).astype(np.float64)
        if np.abs(gram - np.eye(keep)).max() > 20 * self._eps:
            turn = np.linalg.inv(np.linalg.cholesky(gram)).T
            kernels.multiply(ritz_vectors, turn, out=ritz_vectors)
        self._block, _, _ = extend_basis(self._panels, self._block, 1.0, self._rng)
        self._H[:] = 0.0
        np.fill_diagonal(self._H[:keep, :keep], self._values[:keep])
        self._size = keep
        self.is_restarted = True

    def _stored(self, columns: FloatArray) -> FloatArray:
        """Add a panel to the basis; return the copy in its memory."""
        panel = self._vacant(columns.shape)
        if not np.may_share_memory(panel, columns):
            panel[:] = columns
        self._used += math.ceil(panel.size / _LINE) * _LINE
        self._panels.append(panel)
        return panel

    def _vacant(self, shape: tuple[int, ...]) -> FloatArray:
        """Return the memory of the next panel, in which its block is computed."""
        end = self._used + math.prod(shape)
        return self._memory[self._used : end].reshape(shape)

    def ritz_vectors(self, count: int) -> FloatArray:
        """Return the Ritz vectors, which approximate eigenvectors, largest values first."""
        return kernels.multiply(self._panels, self._vectors[:, :count])

"""Solvers of `truncated_svd`, all with the same signature, and the choice between them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from lowrank.solvers import lanczos, lapack, randomized

if TYPE_CHECKING:
    import numpy as np

    from lowrank.operators import MatrixOperator, Triplets

__all__ = ["COMPILED", "HALF_ACCURATE", "SOLVERS", "Solver", "choose_method"]

_SMALL_WORK = 1e8  # n m min(n, m) of a dense array, up to which LAPACK takes a tenth of a second
_GRAM_SIDE = 2000  # of a dense array, up to which the eigenproblem is as fast as the iteration


class Solver(Protocol):
    """The signature of all solvers: checks, signs and warnings are left to `truncated_svd`."""

    def __call__(
        self, A: MatrixOperator, k: int, *, tol: float, rng: np.random.Generator
    ) -> Triplets:
        """Compute the k largest singular triplets, 1 <= k <= min(A.shape).

        `tol` is the residual relative to the largest singular value; `rng` draws start vectors, and
        replacements for vectors of singular values that are 0: U and Vt are always orthonormal.
        """
        ...


SOLVERS: dict[str, Solver] = {
    "dense": lapack.solve_dense,
    "gram": lapack.solve_gram,
    "lanczos": lanczos.solve,
    "randomized": randomized.solve,
    "arpack": lapack.solve_arpack,
}
# The solvers that spend their time in `lowrank.kernels`, on threads of their own.
COMPILED = ("lanczos", "randomized")
# The solvers that square A, and lose small singular values by it.
HALF_ACCURATE = ("gram", "lanczos")


def choose_method(A: MatrixOperator, k: int) -> str:
    """Return the solver that "auto" stands for.

    - "dense" (LAPACK) where a dense copy of A is no larger than the two bases that the iterative
      solver would keep: small matrices, and k so large that the answer is about as big as the
      dense matrix.
    - "dense" also for an array that is dense anyway, if it is small: n m min(n, m) up to 1e8.
    - "gram" for a larger dense array whose smaller side is at most 2,000, or less than four
      times the size of such a basis: its time hardly depends on the spectrum.
    - "gram" for such a matrix that is read by blocks of rows too, if it has no more columns than
      rows: it takes one pass.
    - "gram" also for any other matrix whose smaller side is at most 2,000, if such a basis would
      have more than half as many vectors as that side.
    - "lanczos" for everything else.

    Where "gram" or "lanczos" cannot reach the tolerance, because the Gram matrix has lost the
    digits that it takes, `truncated_svd` goes on to "randomized".

    "arpack" is never chosen: one start vector can miss copies of a multiple singular value, and it
    is slower.
    """
    rows, columns = A.shape
    basis = randomized.basis_size(k, min(rows, columns))
    if rows * columns <= basis * (rows + columns):
        return "dense"
    if A.stored_dense and rows * columns * min(rows, columns) <= _SMALL_WORK:
        return "dense"
    has_blocks = A.stored_dense or (A.in_blocks and columns <= rows)
    if has_blocks and min(rows, columns) <= max(_GRAM_SIDE, 4 * basis):
        return "gram"
    if min(rows, columns) <= min(_GRAM_SIDE, 2 * basis):
        return "gram"
    return "lanczos"

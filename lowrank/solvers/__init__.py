"""The algorithms behind `truncated_svd`, one file each, all with the same signature.

A solver takes a `MatrixOperator` A, a rank k with 1 <= k <= min(A.shape), a tolerance and a random
generator, and returns U of shape (n_rows, k), s of shape (k,) in descending order and Vt of shape
(k, n_columns), with U and Vt orthonormal whatever the rank of A. It checks no arguments, fixes no
signs and gives no warnings: `truncated_svd` does that for all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from lowrank.solvers import arpack, dense, lanczos, randomized

if TYPE_CHECKING:
    import numpy as np

    from lowrank.operators import FloatArray, MatrixOperator

__all__ = ["COMPILED", "SOLVERS", "Solver", "choose_method"]

_SMALL_SIDE = 500  # of a dense array, up to which LAPACK is as fast as the iteration


class Solver(Protocol):
    """What each solver module offers as its function `solve`."""

    def __call__(
        self, A: MatrixOperator, k: int, *, tol: float, rng: np.random.Generator
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return U, s and Vt."""
        ...


SOLVERS: dict[str, Solver] = {
    "dense": dense.solve,
    "lanczos": lanczos.solve,
    "randomized": randomized.solve,
    "arpack": arpack.solve,
}
# The solvers that spend their time in `lowrank.kernels`, on threads of their own.
COMPILED = ("lanczos", "randomized")


def choose_method(A: MatrixOperator, k: int) -> str:
    """Return the solver that "auto" stands for: the rule, and the only place where it is written.

    - "dense" (LAPACK) where a dense copy of A is no larger than the two bases that the iterative
      solver would keep: small matrices, and k so large that the answer is about as big as the
      dense matrix.
    - "dense" also for an array that is dense anyway, if its smaller side is at most 500 or less
      than four times the size of such a basis: the iteration would not be faster.
    - "lanczos" for everything else. Where it cannot reach the tolerance, because the Gram operator
      has lost the digits that it takes, `truncated_svd` goes on to "randomized".

    "arpack" is never chosen: one start vector can miss copies of a multiple singular value, and it
    is slower.

    Parameters
    ----------
    A : MatrixOperator of shape (n_rows, n_columns)
    k : int
        0 <= k <= min(A.shape).

    Returns
    -------
    {"dense", "lanczos"}
    """
    rows, columns = A.shape
    basis = randomized.basis_size(k, min(rows, columns))
    if rows * columns <= basis * (rows + columns):
        return "dense"
    if A.stored_dense and min(rows, columns) <= max(_SMALL_SIDE, 4 * basis):
        return "dense"
    return "lanczos"

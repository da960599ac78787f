"""Solvers of `truncated_svd`, which share one signature, and the choice between them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from lowrank.solvers import lanczos, lapack, randomized

if TYPE_CHECKING:
    import numpy as np

    from lowrank.operators import MatrixOperator, Triplets

__all__ = [
    "COMPILED",
    "HALF_ACCURATE",
    "LAPACK_OF_ALL",
    "SOLVERS",
    "Solver",
    "choose_method",
    "next_method",
]

# Largest n m min(n, m) of a dense array that LAPACK decomposes in 0.1 s.
_SMALL_WORK = 1e8
# Largest min(n, m) for which the eigenproblem is as fast as the iteration.
_GRAM_SIDE = 2000


class Solver(Protocol):
    """Signature of all solvers; `truncated_svd` does the checks, signs and warnings."""

    def __call__(
        self,
        A: MatrixOperator,
        k: int,
        *,
        tol: float,
        rng: np.random.Generator,
    ) -> Triplets:
        """Compute the k largest singular triplets, 1 <= k <= min(A.shape).

        `tol` is the residual of each triplet relative to its singular value; residuals of some
        machine epsilons of the largest value are rounding errors. `rng` draws start vectors, and
        vectors for singular values of 0, so that U and Vt are always orthonormal.
        """
        ...


SOLVERS: dict[str, Solver] = {
    "dense": lapack.solve_dense,
    "gram": lapack.solve_gram,
    "lanczos": lanczos.solve,
    "randomized": randomized.solve,
    "arpack": lapack.solve_arpack,
    "qr": lapack.solve_qr,
}
# Solvers that spend most time in `lowrank.kernels`, which have their own threads.
COMPILED = ("lanczos", "randomized")
# Solvers that use A'A, and therefore lose small singular values.
HALF_ACCURATE = ("gram", "lanczos")
# Solvers that compute all triplets, the smallest ones too, for which float32 is rarely enough.
LAPACK_OF_ALL = ("dense", "qr")


def choose_method(A: MatrixOperator, k: int) -> str:
    """Choose the solver for the method "auto".

    - "dense" (LAPACK) if a dense copy of A is not larger than the two bases of the iterative
      solver: for small matrices, and for k so large that the result is about as large as the dense
      matrix.
    - "dense" also for a small dense array, with n m min(n, m) up to 1e8.
    - "gram" for a larger dense array if min(n, m) is at most 2,000, or less than four times the
      size of such a basis. Its time hardly depends on the spectrum.
    - "gram" for such a matrix that is read in blocks of rows, if it has at most as many columns as
      rows. It takes one pass.
    - "gram" for any other matrix if min(n, m) is at most 2,000, and such a basis would have more
      than min(n, m) / 2 vectors.
    - "lanczos" for everything else.

    If "gram" or "lanczos" does not reach the tolerance because of the digits lost in the Gram
    matrix, `truncated_svd` continues with `next_method`.

    "arpack" is never chosen: it is slower, and with its single start vector it can miss copies of a
    multiple singular value.
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


def next_method(A: MatrixOperator, method: str) -> str:
    """Return the solver that does not lose digits by squaring, as one of `HALF_ACCURATE` does."""
    rows, columns = A.shape
    has_blocks = A.stored_dense or (A.in_blocks and columns <= rows)
    return "qr" if method == "gram" and has_blocks else "randomized"

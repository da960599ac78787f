"""Checks of public arguments: type, shape, dtype, range and extreme values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import LinearOperator

from lowrank.blocks import (
    RowBlocks,
    as_array,
    by_blocks,
    check_not_masked,
    not_finite,
)
from lowrank.errors import (
    ArgumentError,
    ArgumentTypeError,
    check_choice,
    check_positive,
    checked_integer,
    real_matrix,
)
from lowrank.kernels.arrays import epsilon
from lowrank.operators import (
    DenseOperator,
    MatrixOperator,
    ProductOperator,
    SparseOperator,
    canonical,
    checked_sparse,
    safe_exponent,
)
from lowrank.solvers import SOLVERS, choose_method

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from scipy.sparse import sparray, spmatrix

    SparseLike = sparray | spmatrix
    MatrixLike = ArrayLike | SparseLike
    OperatorLike = MatrixLike | LinearOperator | MatrixOperator
    RandomStateLike = int | np.random.Generator | np.random.RandomState | None

_DEFAULT_TOL = {"float32": 1e-4, "float64": 1e-8}
# Tolerance for tol=0, the limit of rounding, in machine epsilons.
_FINEST_TOL = 500


@dataclass(frozen=True)
class Problem:
    """Checked arguments of `truncated_svd`; the matrix to decompose is A * 2**-exponent.

    `is_chosen` tells whether the method was chosen here, so that another one may follow it.
    """

    matrix: MatrixOperator
    k: int
    method: str
    is_chosen: bool
    tol: float
    rng: np.random.Generator
    exponent: int


def validated(
    A: OperatorLike,
    k: int,
    method: str,
    tol: float | None,
    center: ArrayLike | bool | None,
    random_state: RandomStateLike,
) -> Problem:
    """Check the arguments of `truncated_svd` and normalise them.

    Raises
    ------
    TypeError, ValueError
        As `truncated_svd`.
    """
    matrix = as_operator(A)
    matrix.passes = 0
    k = checked_rank(k, min(matrix.shape))
    tol = checked_tol(tol, matrix.dtype)
    rng = checked_generator(random_state)
    row = checked_center(center, matrix.shape[1])
    peak = matrix.peak
    if isinstance(matrix, ProductOperator):
        # Entries are not known; those of a product with a random unit vector are of their size.
        direction = np.random.default_rng(0).standard_normal((matrix.shape[1], 1))
        direction /= np.linalg.norm(direction) or 1.0
        product = matrix.matmat(direction.astype(matrix.dtype))
        peak = float(np.abs(product).max(initial=0.0))
    if isinstance(row, np.ndarray):
        peak = max(peak, float(np.abs(row).max(initial=0.0)))
    exponent = safe_exponent(peak, matrix.dtype)
    if exponent:
        matrix = counted(matrix.scaled(2.0**-exponent), matrix.passes)
    if row is not None:
        subtracted = matrix.column_means() if row is True else row * 2.0**-exponent
        matrix = counted(matrix.centred(subtracted), matrix.passes)
    check_choice(method, ("auto", *SOLVERS))
    if method == "arpack" and 0 < k == min(matrix.shape):
        raise ArgumentError(
            f"k must be below {k} (min(A.shape)) with method='arpack'; got {k}: use method='auto'."
        )
    return Problem(
        matrix=matrix,
        k=k,
        method=choose_method(matrix, k) if method == "auto" else method,
        is_chosen=method == "auto",
        tol=tol,
        rng=rng,
        exponent=exponent,
    )


def counted(matrix: MatrixOperator, passes: int) -> MatrixOperator:
    """Set the number of passes to the number of the matrix behind this one."""
    matrix.passes = passes
    return matrix


def as_operator(A: OperatorLike) -> MatrixOperator:
    """Check a matrix given by the user and wrap it for the solvers.

    Computations are float32 for float32 (and float16) input, and float64 for float64, integers,
    booleans and wider floats. An operator is returned unchanged, and a numpy.memmap above 1 GB as
    RowBlocks.

    Parameters
    ----------
    A : array-like, scipy.sparse matrix or array, or LinearOperator, of shape (n_rows, n_columns)
        Real matrix. It is never modified.

    Raises
    ------
    TypeError, ValueError
        If A is not a real, finite matrix, or is masked; the message has the position of the first
        NaN or infinity in row-major order. (Products of a LinearOperator are checked when they are
        computed.)
    """
    source: Any = by_blocks(A)
    if isinstance(source, MatrixOperator):
        return source
    if hasattr(source, "as_operator"):  # a LowRank, whose module imports this one
        operator: MatrixOperator = source.as_operator()
        return operator
    if isinstance(source, LinearOperator):
        return ProductOperator(source, _working_dtype(source.dtype, source.shape))
    entries: Any
    matrix: SparseOperator | DenseOperator
    is_sparse = sparse.issparse(source)
    if is_sparse:
        dtype = _working_dtype(source.dtype, source.shape)
        source = checked_sparse(source, "A")
        entries = canonical(source).astype(dtype, copy=False)
        matrix = SparseOperator(entries)
    else:
        check_not_masked(source, "A")
        entries = as_array(source)
        dtype = _working_dtype(entries.dtype, entries.shape)
        entries = entries.astype(dtype, copy=False)
        if not (entries.flags.c_contiguous or entries.flags.f_contiguous):
            # BLAS would copy it in every product.
            entries = np.ascontiguousarray(entries)
        matrix = DenseOperator(entries)
    if not np.isfinite(matrix.peak):
        raise not_finite(entries, "A")
    return matrix


def entries_of(matrix: MatrixOperator, hint: str = "") -> Any:
    """Return the dense or CSR array of an operator.

    Raises
    ------
    ArgumentTypeError
        If the operator only has products, or reads blocks of rows.
    """
    if isinstance(matrix, DenseOperator):
        return matrix.array
    if isinstance(matrix, SparseOperator):
        return matrix.csr
    if hasattr(matrix, "matrix"):  # a LowRank
        return matrix.toarray()
    kind = "a LinearOperator" if isinstance(matrix, ProductOperator) else "centred rows"
    if isinstance(matrix, RowBlocks):
        kind = "RowBlocks (a numpy.memmap above 1 GB is read as RowBlocks)"
    raise ArgumentTypeError(
        f"A must be an array or a sparse matrix, since its entries are needed; got {kind}{hint}."
    )


def _working_dtype(
    dtype: np.dtype[Any] | None, shape: tuple[int, ...]
) -> np.dtype[Any]:
    # NumPy's dtype for None is float64.
    return np.dtype(real_matrix(np.dtype(dtype), shape, "A"))


def checked_rank(
    k: Any,
    largest: int,
    limit: str = "min(A.shape)",
    *,
    name: str = "k",
    or_none: bool = False,
) -> int:
    """Return k as an int between 0 and `largest`; `limit` describes this bound in messages.

    With `or_none`, k must be at least 1 or None, and 0 is returned for None.

    Raises
    ------
    TypeError, ValueError
        If k is not an integer or is out of range.
    """
    if or_none and k is None:
        return 0
    least = int(or_none)
    rank = checked_integer(k, name, "an integer or None" if or_none else "an integer")
    if not least <= rank <= largest:
        raise ArgumentError(
            f"{name} must be between {least} and {largest} ({limit}); got {rank}."
        )
    return rank


def checked_tol(tol: float | None, dtype: np.dtype[Any]) -> float:
    """Return the tolerance: the default of the dtype for None, the limit of rounding for 0."""
    if tol is None:
        return _DEFAULT_TOL[str(dtype)]
    check_positive(tol, "tol", or_zero=True)
    return float(tol) or _FINEST_TOL * epsilon(dtype)


def checked_generator(random_state: RandomStateLike) -> np.random.Generator:
    """Return the random generator for a `random_state`.

    Raises
    ------
    TypeError, ValueError
        If `random_state` is not None, a non-negative integer, a Generator or a RandomState.
    """
    if isinstance(random_state, np.random.RandomState):
        return np.random.default_rng(random_state.randint(0, 2**31, size=4))
    message = (
        "random_state must be None, a non-negative integer, a numpy Generator or a RandomState; "
        f"got {random_state!r}."
    )
    try:
        if isinstance(random_state, (bool, np.bool_)):
            raise TypeError
        return np.random.default_rng(random_state)
    except TypeError:
        raise ArgumentTypeError(message) from None
    except ValueError:
        raise ArgumentError(message) from None


def checked_center(center: Any, columns: int) -> Any:
    """Return None, True, or the row to subtract as a float64 array of shape (columns,).

    Raises
    ------
    TypeError, ValueError
        If `center` is not None, a bool, or a finite array of that shape.
    """
    if center is None or isinstance(center, (bool, np.bool_)):
        return True if center else None
    check_not_masked(center, "center")
    row = np.asarray(center)
    if row.dtype.kind not in "fiu":
        raise ArgumentTypeError(
            f"center must be a bool or an array of real numbers; got {center!r}."
        )
    if row.shape != (columns,):
        raise ArgumentError(
            f"center must have one entry for each column, shape ({columns},); got {row.shape}."
        )
    bad = np.flatnonzero(~np.isfinite(row))
    if bad.size:
        raise ArgumentError(
            f"center must be finite; got {row[bad[0]]} at column {bad[0]}."
        )
    return row.astype(np.float64)

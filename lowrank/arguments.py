"""The door of `truncated_svd`: what the user gave is checked here and nowhere else."""

from __future__ import annotations

import math
import numbers
import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from lowrank.operators import (
    CentredDenseOperator,
    DenseOperator,
    MatrixOperator,
    ProductOperator,
    SparseOperator,
)
from lowrank.solvers import SOLVERS, choose_method

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from scipy.sparse import sparray, spmatrix

    SparseLike = sparray | spmatrix
    MatrixLike = ArrayLike | SparseLike
    RandomStateLike = int | np.random.Generator | np.random.RandomState | None

__all__ = [
    "Problem",
    "as_operator",
    "checked_generator",
    "checked_rank",
    "safe_exponent",
    "validated",
]

_DEFAULT_TOL = {"float32": 1e-4, "float64": 1e-8}
_FINEST_TOL = 500  # in units of the machine epsilon: what tol=0 asks for, and rounding allows
# Outside 2**-x ... 2**x the entries are rescaled: the solvers and the certificate sum fourth powers
# of singular values, and of residuals, which must neither overflow nor vanish.
_SAFE_EXPONENT = {"float32": 16, "float64": 160}
_LARGEST_EXPONENT = {"float32": 120, "float64": 1000}


@dataclass(frozen=True)
class Problem:
    """Arguments of `truncated_svd`, checked; what is solved is A * 2**-exponent."""

    matrix: MatrixOperator
    k: int
    method: str
    tol: float
    rng: np.random.Generator
    exponent: int


def validated(A: Any, k: Any, method: Any, tol: Any, center: Any, random_state: Any) -> Problem:
    """Check the arguments of `truncated_svd` and normalise them.

    Parameters
    ----------
    A, k, method, tol, center, random_state
        As the user gave them; see `truncated_svd`.

    Returns
    -------
    Problem

    Raises
    ------
    TypeError, ValueError
        One sentence each: what must be, and what it is.
    """
    matrix = as_operator(A)
    matrix.passes = 0
    k = checked_rank(k, min(matrix.shape))
    tol = _checked_tol(tol, matrix.dtype)
    rng = checked_generator(random_state)
    row = _checked_center(center, matrix.shape[1])
    peak = _probed_peak(matrix) if isinstance(matrix, ProductOperator) else matrix.peak
    if isinstance(row, np.ndarray):
        peak = max(peak, float(np.abs(row).max(initial=0.0)))
    exponent = safe_exponent(peak, matrix.dtype)
    matrix = _conditioned(matrix, exponent, row)
    method = _checked_method(method, matrix, k)
    if k > 0 and _wants_dense_copy(matrix, method):
        matrix = _dense_copy(matrix)
    return Problem(matrix, k, method, tol, rng, exponent)


def as_operator(A: Any) -> MatrixOperator:
    """Check a matrix given by the user and wrap it for the solvers.

    float32 (and float16) input is worked on in float32; float64, integers, booleans and wider
    floats in float64.

    Parameters
    ----------
    A : array-like, scipy.sparse matrix or array, or LinearOperator, of shape (n_rows, n_columns)
        Real matrix. It is never written to.

    Returns
    -------
    MatrixOperator

    Raises
    ------
    TypeError
        If A is complex or not numeric.
    ValueError
        If A is not two-dimensional, is masked, or has a NaN or an infinity; the message names the
        first bad position in row-major order. (The entries of a LinearOperator are not known:
        its products are checked as they are made.)

    Examples
    --------
    >>> as_operator([[1, 2], [3, 4], [5, 6]]).shape
    (3, 2)
    """
    from scipy import sparse
    from scipy.sparse.linalg import LinearOperator

    if isinstance(A, MatrixOperator):
        return A
    if isinstance(A, LinearOperator):
        return ProductOperator(A, _working_dtype(A.dtype))
    if sparse.issparse(A):
        return _sparse_operator(A)
    return _dense_operator(A)


def _dense_operator(A: Any) -> DenseOperator:
    masked = int(np.ma.getmaskarray(A).sum()) if isinstance(A, np.ma.MaskedArray) else 0
    if masked:
        raise ValueError(f"A must have no masked entries; got {masked}: fill them first.")
    given = np.asarray(A)
    dtype = _working_dtype(given.dtype)
    _check_two_dimensional(given.shape)
    array = given.astype(dtype, copy=False)
    if not (array.flags.c_contiguous or array.flags.f_contiguous):
        array = np.ascontiguousarray(array)  # BLAS would copy it at every product
    operator = DenseOperator(array)
    if not np.isfinite(operator.peak):
        bad = ~np.isfinite(array)
        row, column = np.unravel_index(int(np.argmax(bad)), bad.shape)
        raise _not_finite(array[row, column], int(row), int(column))
    return operator


def _sparse_operator(A: Any) -> SparseOperator:
    from scipy import sparse

    dtype = _working_dtype(A.dtype)
    _check_two_dimensional(A.shape)
    csr = sparse.csr_array(A)
    if not csr.has_canonical_format:
        csr = csr.copy()
        csr.sum_duplicates()  # before the change of dtype, as A.toarray() does
    if not csr.data.all():  # stored zeros, which some formats keep and others do not
        csr = csr.copy()
        csr.eliminate_zeros()
    csr = csr.astype(dtype, copy=False)
    operator = SparseOperator(csr)
    if not np.isfinite(operator.peak):
        position = int(np.argmax(~np.isfinite(csr.data)))
        row = int(np.searchsorted(csr.indptr, position, side="right")) - 1
        raise _not_finite(csr.data[position], row, int(csr.indices[position]))
    return operator


def _working_dtype(given: np.dtype[Any] | None) -> np.dtype[Any]:
    dtype = np.dtype(np.float64) if given is None else np.dtype(given)
    if dtype.kind == "c":
        raise TypeError(f"A must be real; got the complex dtype {dtype}.")
    if dtype.kind not in "fiub":
        raise TypeError(f"A must hold real numbers; got dtype {dtype}.")
    single = dtype.kind == "f" and dtype.itemsize <= 4
    return np.dtype(np.float32 if single else np.float64)


def _check_two_dimensional(shape: tuple[int, ...]) -> None:
    if len(shape) == 1:
        raise ValueError(
            f"A must be two-dimensional; got shape {shape}: "
            "use A.reshape(-1, 1) for one column or A.reshape(1, -1) for one row."
        )
    if len(shape) != 2:
        raise ValueError(f"A must be two-dimensional; got shape {shape}.")


def _not_finite(value: Any, row: int, column: int) -> ValueError:
    name = "NaN" if np.isnan(value) else "infinity"
    return ValueError(f"A must be finite; got {name} at row {row}, column {column}.")


def checked_rank(k: Any, largest: int, what: str = "min(A.shape)") -> int:
    """Return k as an int between 0 and the largest allowed, or say what would be right."""
    if isinstance(k, (bool, np.bool_)):
        raise TypeError(f"k must be an integer; got {k!r}.")
    try:
        rank = operator.index(k)
    except TypeError:
        raise TypeError(f"k must be an integer; got {k!r}.") from None
    if not 0 <= rank <= largest:
        raise ValueError(f"k must be between 0 and {largest} ({what}); got {rank}.")
    return rank


def _checked_tol(tol: Any, dtype: np.dtype[Any]) -> float:
    if tol is None:
        return _DEFAULT_TOL[str(dtype)]
    if isinstance(tol, (bool, np.bool_)) or not isinstance(tol, numbers.Real):
        raise TypeError(f"tol must be a number or None; got {tol!r}.")
    if not 0 <= float(tol) < math.inf:
        raise ValueError(f"tol must be finite, 0 or larger, or None; got {tol!r}.")
    return float(tol) or _FINEST_TOL * float(np.finfo(dtype).eps)


def checked_generator(random_state: Any) -> np.random.Generator:
    """Return the generator that a `random_state` stands for, or say what would be right."""
    if isinstance(random_state, np.random.RandomState):
        return np.random.default_rng(random_state.randint(0, 2**31, size=4))
    message = (
        "random_state must be None, a non-negative integer, a numpy Generator or a RandomState; "
        f"got {random_state!r}."
    )
    if isinstance(random_state, (bool, np.bool_)):
        raise TypeError(message)
    try:
        return np.random.default_rng(random_state)
    except (TypeError, ValueError) as error:
        raise type(error)(message) from None


def _checked_center(center: Any, columns: int) -> Any:
    """Return None, True, or the row to subtract as a float64 array of shape (columns,)."""
    if center is None or (isinstance(center, (bool, np.bool_)) and not center):
        return None
    if isinstance(center, (bool, np.bool_)):
        return True
    row = np.asarray(center)
    if row.dtype.kind not in "fiu":
        raise TypeError(f"center must be a bool or an array of real numbers; got {center!r}.")
    if row.shape != (columns,):
        raise ValueError(
            f"center must have one entry for each column, shape ({columns},); got {row.shape}."
        )
    bad = np.flatnonzero(~np.isfinite(row))
    if bad.size:
        raise ValueError(f"center must be finite; got {row[bad[0]]} at column {bad[0]}.")
    return row.astype(np.float64)


def _conditioned(matrix: MatrixOperator, exponent: int, row: Any) -> MatrixOperator:
    """Return (A - 1 row') * 2**-exponent; the products made to get there count as its passes."""
    scaled = matrix.scaled(2.0**-exponent) if exponent else matrix
    scaled.passes = matrix.passes
    if row is None:
        return scaled
    centred = scaled.centred(scaled.column_means() if row is True else row * 2.0**-exponent)
    centred.passes = scaled.passes
    return centred


def _probed_peak(matrix: ProductOperator) -> float:
    """Return the size of the entries of a product with a random vector of length 1."""
    direction = np.random.default_rng(0).standard_normal((matrix.shape[1], 1))
    direction /= np.linalg.norm(direction) or 1.0
    product = matrix.matmat(direction.astype(matrix.dtype))
    return float(np.abs(product).max(initial=0.0))


def safe_exponent(peak: float, dtype: np.dtype[Any]) -> int:
    """Return x such that fourth powers of ``A * 2**-x`` neither overflow nor vanish in a dtype.

    Parameters
    ----------
    peak : float
        The largest absolute entry of A.
    dtype : dtype
        float32 or float64: the dtype of the work.

    Returns
    -------
    int
        0 unless the entries are extreme: below 2**-16 or above 2**16 in float32, 2**-160 or
        2**160 in float64. Multiplication by ``2.0**-x`` is exact.
    """
    exponent = math.frexp(peak)[1]
    if peak == 0.0 or abs(exponent) <= _SAFE_EXPONENT[str(dtype)]:
        return 0
    limit = _LARGEST_EXPONENT[str(dtype)]
    return max(-limit, min(limit, exponent))


def _checked_method(method: Any, matrix: MatrixOperator, k: int) -> str:
    if method == "auto":
        return choose_method(matrix, k)
    if not isinstance(method, str) or method not in SOLVERS:
        names = ", ".join(repr(name) for name in ("auto", *SOLVERS))
        raise ValueError(f"method must be one of {names}; got {method!r}.")
    if method == "arpack" and 0 < k == min(matrix.shape):
        raise ValueError(
            f"k must be below {k} (min(A.shape)) with method='arpack'; got {k}: use method='auto'."
        )
    return method


def _wants_dense_copy(matrix: MatrixOperator, method: str) -> bool:
    """Whether a dense copy is needed, or saves centring an array again for each product."""
    if isinstance(matrix, CentredDenseOperator):
        return method != "gram"
    return method == "dense" and not matrix.stored_dense


def _dense_copy(matrix: MatrixOperator) -> DenseOperator:
    dense = DenseOperator(matrix.toarray())
    dense.passes = matrix.passes - 1  # the solver reads the copy, which is one pass and not two
    return dense

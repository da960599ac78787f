"""Matrices stored as a product of two thin factors, and their algebra."""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from lowrank.arguments import as_operator, entries_of
from lowrank.blocks import RowBlocks, check_not_masked
from lowrank.errors import (
    ArgumentError,
    ArgumentTypeError,
    check_positive,
    real_matrix,
)
from lowrank.kernels import pieces
from lowrank.kernels.arrays import epsilon
from lowrank.operators import (
    MatrixOperator,
    checked_sparse,
    largest_entry,
    safe_exponent,
)

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from lowrank.arguments import MatrixLike
    from lowrank.operators import Float64Array, FloatArray

_CHUNK = 1 << 22  # maximum number of entries of a temporary array


class LowRank:
    """The n x m matrix ``left @ right.T``, stored as its two factors.

    Products, sums, entries and norms are computed from the factors. Dense arrays are created by
    `toarray`, ``np.asarray``, slices, and sums with arrays. Functions such as `truncated_svd` take
    it as an operator. Indexing works as in NumPy: ``B[i, j]``, ``B[i]``, ``B[:, j]``,
    ``B[2:4, [0, 5]]``, and two index arrays select pairs.

    Parameters
    ----------
    left, right : array-like of shape (n, k) and (m, k)
        Real, finite factors, stored as float32 if both are float32 and else as float64.
    error : float, optional
        Frobenius distance to the matrix that is approximated, if known.

    Raises
    ------
    TypeError, ValueError
        If a factor is not a real, finite matrix, or their numbers of columns differ.

    Examples
    --------
    >>> B = LowRank([[1.0], [2.0]], [[3.0], [4.0], [5.0]])
    >>> B
    LowRank(shape=(2, 3), rank=1, dtype=float64)
    >>> float(B[1, 2]), (B + B).compress().rank
    (10.0, 1)
    """

    __array_priority__ = 15.0  # NumPy defers array @ B and array * B to this class

    def __init__(
        self,
        left: ArrayLike,
        right: ArrayLike,
        *,
        error: float | None = None,
    ) -> None:
        first, second = _factor(left, "left"), _factor(right, "right")
        if first.shape[1] != second.shape[1]:
            raise ArgumentError(
                "left and right must have the same number of columns; "
                f"got {first.shape[1]} and {second.shape[1]}."
            )
        dtype = np.result_type(first, second)
        self.left: FloatArray = first.astype(dtype, copy=False)
        self.right: FloatArray = second.astype(dtype, copy=False)
        self.error = error

    def __repr__(self) -> str:
        return f"LowRank(shape={self.shape}, rank={self.rank}, dtype={self.dtype})"

    @property
    def shape(self) -> tuple[int, int]:
        """Shape (n, m)."""
        return self.left.shape[0], self.right.shape[0]

    @property
    def ndim(self) -> int:
        """Number of axes, 2."""
        return 2

    @property
    def rank(self) -> int:
        """Number of columns of the factors, an upper bound of the rank of the matrix."""
        return int(self.left.shape[1])

    @property
    def dtype(self) -> np.dtype[Any]:
        """float32 or float64."""
        return self.left.dtype

    @property
    def storage_saved(self) -> float:
        """Share of memory saved relative to a dense array; negative if the factors need more."""
        stored = self.rank * sum(self.shape)
        return 1.0 - stored / max(1, math.prod(self.shape))

    @property
    def matrix(self) -> LowRank:
        """The matrix itself, as other results name theirs."""
        return self

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """Return the dense array, for ``np.asarray`` and functions of NumPy."""
        if copy is False:
            raise ArgumentError(
                "copy must not be False: the dense array of a LowRank is new."
            )
        return self.toarray().astype(dtype or self.dtype, copy=False)

    @property
    def T(self) -> LowRank:  # noqa: N802
        """The transpose."""
        return LowRank(self.right, self.left)

    def __getitem__(self, key: Any) -> Any:
        rows, columns = key, slice(None)
        if isinstance(key, tuple) and len(key) == 2:
            rows, columns = key
        left = _taken(self.left, rows, "row")
        right = _taken(self.right, columns, "column")
        if isinstance(rows, slice) or isinstance(columns, slice):
            return np.tensordot(left, right, axes=(-1, -1))
        return np.einsum("...k,...k->...", left, right)[()]

    def entries(self, rows: ArrayLike, columns: ArrayLike) -> FloatArray:
        """Return the entries at pairs of positions; `rows`, `columns` and the result are (p,).

        Raises
        ------
        ValueError
            If `rows` and `columns` are not one-dimensional with the same length.
        IndexError
            If a position is outside the matrix.
        """
        first, second = np.asarray(rows), np.asarray(columns)
        if first.ndim != 1 or first.shape != second.shape:
            raise ArgumentError(
                "rows and columns must be one-dimensional and of the same length; "
                f"got shapes {first.shape} and {second.shape}."
            )
        result = np.empty(first.size, self.dtype)
        # Rows of both factors are copied for each pair, so that memory has to be limited.
        for part in _pieces(first.size, self.rank):
            result[part] = self[first[part], second[part]]
        return result

    def __matmul__(self, other: Any) -> Any:
        block = _operand(other, self.shape[1], 0)
        if not isinstance(other, LowRank):
            # a sparse block multiplies from the left
            return self.left @ (block.T @ self.right).T
        # The product keeps the smaller of the two ranks.
        core = self.right.T @ other.left
        if self.rank <= other.rank:
            return LowRank(self.left, other.right @ core.T)
        return LowRank(self.left @ core, other.right)

    def __rmatmul__(self, other: Any) -> Any:
        block = _operand(other, self.shape[0], -1)
        return (self.T @ block.T).T

    def __add__(self, other: Any) -> Any:
        if isinstance(other, numbers.Real):
            other = self._constant(other)
        if not isinstance(other, LowRank):
            dense = _dense_operand(other)
            return NotImplemented if dense is None else self.toarray() + dense
        if self.shape != other.shape:
            raise ArgumentError(
                f"shapes must be equal; got {self.shape} and {other.shape}."
            )
        left = np.hstack([self.left, other.left])
        right = np.hstack([self.right, other.right])
        return LowRank(left, right)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        if isinstance(other, LowRank | numbers.Real):
            return self + -other
        dense = _dense_operand(other)
        return NotImplemented if dense is None else self.toarray() - dense

    def __rsub__(self, other: Any) -> Any:
        return (-self).__add__(other)

    def _constant(self, value: numbers.Real) -> LowRank:
        """Return the matrix of this shape whose entries all have one value."""
        n, m = self.shape
        column = np.full((n, 1), float(value), self.dtype)
        return LowRank(column, np.ones((m, 1), self.dtype))

    def __neg__(self) -> LowRank:
        return LowRank(-self.left, self.right)

    def __mul__(self, factor: Any) -> LowRank:
        if isinstance(factor, LowRank) or np.ndim(factor) != 0:
            raise ArgumentTypeError(
                f"factor must be a number; got {type(factor).__name__}: use @."
            )
        if not isinstance(factor, numbers.Real):
            raise ArgumentTypeError(f"factor must be a real number; got {factor!r}.")
        return LowRank(self.left * self.dtype.type(factor), self.right)

    __rmul__ = __mul__

    def __truediv__(self, divisor: Any) -> LowRank:
        return self.__mul__(1 / divisor)

    def compress(self, tol: float | None = None) -> LowRank:
        """Return the approximation of smallest rank within a tolerance.

        Its left factor has singular vectors times singular values; its right factor is orthonormal.

        Parameters
        ----------
        tol : float, optional
            Allowed Frobenius error relative to the Frobenius norm. By default the size of rounding
            errors, max(n, m) times the machine epsilon.

        Raises
        ------
        ValueError
            If `tol` is negative or not finite.
        """
        if tol is None:
            tol = max(self.shape) * epsilon(self.dtype)
        check_positive(tol, "tol", or_zero=True)
        # left right' = Q (P S') Y', where the SVD of the small core gives that of the product.
        Q, P = np.linalg.qr(self.left)
        Y, S = np.linalg.qr(self.right)
        U, s, Vt = np.linalg.svd(P @ S.T, full_matrices=False)
        scale = float(s.max(initial=0.0)) or 1.0
        # Sums from the smallest value on, in which none is lost by rounding.
        ascending = s[::-1].astype(np.float64) / scale
        squares = np.cumsum(ascending**2)
        tails = np.sqrt(np.append(squares[::-1], 0.0))
        k = int(np.argmax(tails <= tol * tails[0]))
        left = Q @ (U[:, :k] * s[:k])
        right = Y @ Vt[:k].T
        return LowRank(left, right)

    def toarray(self) -> FloatArray:
        """Return the matrix as a dense array of shape (n, m)."""
        return self.left @ self.right.T

    def as_operator(self) -> LowRankOperator:
        """Return the matrix as the solvers see it, given by its products."""
        return LowRankOperator(self)

    def frobenius_norm(self) -> float:
        """Return the Frobenius norm, from QR factorizations, without cancellation."""
        R, S = (
            np.linalg.qr(factor.astype(np.float64))[1]
            for factor in (self.left, self.right)
        )
        core = R @ S.T
        # Squares of large entries overflow.
        exponent = safe_exponent(largest_entry(core), core.dtype)
        norm = np.linalg.norm(np.ldexp(core, -exponent))
        return float(norm) * 2.0**exponent

    def distance_to(self, A: MatrixLike | MatrixOperator) -> float:
        """Return the Frobenius distance ||A - B||_F, accumulated in float64.

        A dense A is compared some rows at a time, RowBlocks block by block. For a sparse A the sum
        runs over its stored entries, and over all others as ||B||_F^2 minus the squares of B at the
        stored ones, with an absolute error of about 1e-8 ||B||_F where B is next to zero off the
        stored entries.

        Raises
        ------
        TypeError, ValueError
            If A is a LinearOperator, has another shape, or is not finite.
        """
        matrix = as_operator(A)
        source = matrix if isinstance(matrix, RowBlocks) else entries_of(matrix)
        if source.shape != self.shape:
            raise ArgumentError(f"A must have shape {self.shape}; got {source.shape}.")
        if isinstance(source, RowBlocks):
            distances = (
                LowRank(self.left[rows], self.right).distance_to(part)
                for rows, part in source._blocks()
            )
            return math.hypot(*distances)
        left = self.left.astype(np.float64)
        wide = LowRank(left, self.right.astype(np.float64))
        norm = wide.frobenius_norm()
        # Squares of extreme entries would overflow or vanish.
        if exponent := safe_exponent(max(matrix.peak, norm), wide.dtype):
            wide = LowRank(np.ldexp(wide.left, -exponent), wide.right)
            return wide.distance_to(matrix.scaled(2.0**-exponent)) * 2.0**exponent
        if not isinstance(source, np.ndarray):
            coo = source.tocoo()
            entries = wide.entries(*coo.coords)
            stored = np.linalg.norm(coo.data - entries)
            others = norm**2 - float(entries @ entries)
            return math.hypot(stored, math.sqrt(max(others, 0.0)))
        differences = (
            source[rows] - wide.left[rows] @ wide.right.T
            for rows in _pieces(*self.shape)
        )
        return math.hypot(*map(np.linalg.norm, differences))


def _pieces(length: int, width: int) -> Iterator[slice]:
    """Yield slices of rows such that the rows fit in a temporary array."""
    return pieces(length, max(1, _CHUNK // max(1, width)))


def _factor(factor: ArrayLike, name: str) -> FloatArray:
    check_not_masked(factor, name)
    array = np.asarray(factor)
    dtype = real_matrix(array.dtype, array.shape, name)
    if not np.isfinite(array).all():
        raise ArgumentError(f"{name} must be finite; got NaN or infinity.")
    return array.astype(dtype, copy=False)


def _taken(
    factor: FloatArray,
    key: Any,
    name: str,
) -> FloatArray:
    if key is None or key is Ellipsis or isinstance(key, tuple):
        raise IndexError(
            f"{name} index must be an integer, a slice or an array; got {key!r}."
        )
    try:
        taken: FloatArray = factor[key]
    except IndexError:
        size = factor.shape[0]
        raise IndexError(
            f"{name} index must be an integer between {-size} and {size - 1}, a slice, or an array "
            f"of such integers or of {size} booleans; got {key!r}."
        ) from None
    return taken


def _dense_operand(other: Any) -> NDArray[Any] | None:
    """Return an operand of a sum as an array, or None if it is something else."""
    check_not_masked(other, "the other operand")
    array = np.asarray(other.toarray() if hasattr(other, "toarray") else other)
    return array if array.ndim and array.dtype.kind in "fiub" else None


def _longest_row(factor: FloatArray) -> float:
    """Return the largest length of a row, without overflow of its squares."""
    if not factor.size:
        return 0.0
    lengths = np.hypot.reduce(factor.astype(np.float64), axis=1)
    return float(lengths.max())


class LowRankOperator(MatrixOperator):
    """A matrix in factored form, as the solvers see it."""

    def __init__(self, matrix: LowRank, dtype: np.dtype[Any] | None = None) -> None:
        super().__init__(matrix.shape, dtype or matrix.dtype)
        self.matrix = matrix
        self._left = np.ascontiguousarray(matrix.left, self.dtype)
        self._right = np.ascontiguousarray(matrix.right, self.dtype)
        self.entries = self._left.size + self._right.size

    @property
    def peak(self) -> float:
        """Largest absolute entry that the factors allow, by the lengths of their rows."""
        return _longest_row(self._left) * _longest_row(self._right)

    def column_squares(self, row: Float64Array) -> Float64Array:
        """Return the sum of squares of each column of A - 1 row'."""
        # The sum over rows is |R v|^2 about the means, plus n times the squared shift of the mean.
        left = self._left.astype(np.float64)
        means = left.mean(axis=0) if len(left) else left.sum(axis=0)
        R = np.linalg.qr(left - means)[1]
        right = self._right.astype(np.float64)
        within = np.square(R @ right.T).sum(axis=0)
        shift = right @ means - row
        squares: Float64Array = within + len(left) * shift**2
        return squares

    def column_means(self) -> Float64Array:
        """Return the mean of each column."""
        right = self._right.astype(np.float64)
        means: Float64Array = right @ self._left.sum(axis=0, dtype=float)
        return means / max(1, self.shape[0])

    def scaled(self, factor: float) -> LowRankOperator:
        """Return the operator of factor * A."""
        return LowRankOperator(self.matrix * factor, self.dtype)

    def wide(self) -> LowRankOperator:
        """Return the operator with vectors, products and sums in float64."""
        return LowRankOperator(self.matrix, np.dtype(np.float64))

    def _matmat(self, X: FloatArray) -> FloatArray:
        return self._left @ (self._right.T @ X)

    def _rmatmat(self, Y: FloatArray) -> FloatArray:
        return self._right @ (self._left.T @ Y)

    def _toarray(self) -> FloatArray:
        product: FloatArray = self._left @ self._right.T
        return product


def _operand(
    other: Any,
    size: int,
    axis: int,
) -> Any:
    """Return an operand of a product, after checking that it has `size` along the summed axis."""
    operand = other
    if hasattr(other, "tocsr"):
        operand = checked_sparse(other, "the other operand")
    elif not isinstance(other, LowRank):
        check_not_masked(other, "the other operand")
        operand = np.asarray(other)
    if len(operand.shape) not in (1, 2) or operand.shape[axis] != size:
        side = "first" if axis == 0 else "last"
        raise ArgumentError(
            f"the other operand of @ must be a vector or a matrix with {side} dimension {size}; "
            f"got shape {operand.shape}."
        )
    return operand

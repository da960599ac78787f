"""Matrices as the solvers use them: dense, sparse, implicitly centred or scaled."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

import numpy as np
from scipy import sparse

from lowrank import kernels
from lowrank.errors import ArgumentError, ArgumentTypeError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    FloatArray = NDArray[np.floating[Any]]
    Float64Array = NDArray[np.float64]
    Triplets = tuple[FloatArray, FloatArray, FloatArray]

_CHUNK = 1 << 17  # number of entries converted to float64 at once: 1 MB
_GATHERED = 1 << 20  # the same for entries of a sparse matrix: 8 MB
# Entries outside 2**-x ... 2**x are rescaled: the solvers and the certificate sum fourth powers of
# singular values and residuals, which must neither overflow nor underflow.
_SAFE_EXPONENT = {"float32": 16, "float64": 160}
_LARGEST_EXPONENT = {"float32": 120, "float64": 1000}
# Sums of entries above 1e290 may overflow: they are divided by 2**64.
_LARGEST_SUMMED = 1e290
_HALVED = 64
# Share of stored entries above which a column of a sparse matrix is centred.
_NEARLY_FULL = 0.9
# number of entries centred at once: full BLAS speed, at most 32 MB
_CENTRED_BLOCK = 1 << 22
_CONVERTED_BLOCK = 1 << 20  # number of entries converted for a product at once: 8 MB
_MOST_INDICES = 2**31 - 1
_IDENTITY_BLOCK = 256  # columns of the identity per product of a LinearOperator


class Products(Protocol):
    """A matrix given by its products with blocks of vectors; each product is a new array."""

    shape: tuple[int, int]
    dtype: np.dtype[Any]

    def matmat(self, X: FloatArray) -> FloatArray:
        """Product A X."""
        ...

    def rmatmat(self, Y: FloatArray) -> FloatArray:
        """Product A' Y."""
        ...

    def gram_product(self, X: FloatArray) -> FloatArray:
        """Product A' (A X)."""
        ...


class MatrixOperator(ABC):
    """A real n x m matrix given by its products, in float32 or float64.

    Attributes
    ----------
    passes : int
        Number of passes over the matrix so far: one for each product with a block of vectors,
        whatever the width of the block.
    entries : int
        Number of entries that a product reads.
    """

    stored_dense: ClassVar[bool] = (
        False  # whether the matrix is stored as a dense array
    )
    in_blocks: ClassVar[bool] = False  # whether each pass reads the entries again
    is_sparse: bool = False

    def __init__(self, shape: tuple[int, int], dtype: np.dtype[Any]) -> None:
        # The sides of a LinearOperator may be numpy.int32, whose products overflow.
        rows, columns = int(shape[0]), int(shape[1])
        self.shape = (rows, columns)
        self.dtype = dtype
        self.entries = rows * columns
        self.passes = 0

    def __array__(self, dtype: Any = None, copy: Any = None) -> NDArray[Any]:
        """Raise an error: NumPy would make an object of it."""
        raise ArgumentTypeError(
            f"{type(self).__name__} cannot be used as an array here; toarray() gives a dense copy."
        )

    @property
    def peak(self) -> float:
        """Largest absolute entry; 1.0 if the entries are not known."""
        return 1.0

    def matmat(self, X: FloatArray) -> FloatArray:
        """Return A X, shape (n_rows, b), for a block X of b vectors in the operator's dtype."""
        self.passes += 1
        return self._matmat(X)

    def rmatmat(self, Y: FloatArray) -> FloatArray:
        """Return A' Y, shape (n_columns, b), for a block Y of b vectors."""
        self.passes += 1
        return self._rmatmat(Y)

    def gram_product(self, X: FloatArray) -> FloatArray:
        """Return A' (A X), shape (n_columns, b), for a block X of b vectors."""
        return self.rmatmat(self.matmat(X))

    def transposed(self) -> Products:
        """Return A' without a copy; its passes are added to the passes of A."""
        return _Transposed(self)

    def toarray(self) -> FloatArray:
        """Return the matrix as a dense array of its dtype; counts as one pass."""
        self.passes += 1
        return self._toarray()

    def dense_blocks(self, axis: int) -> Iterator[FloatArray]:
        """Yield the matrix as contiguous blocks of rows (axis 0) or columns, and count one pass.

        A block may change when the next one is requested.
        """
        yield self.toarray()

    def frobenius_norm(self) -> float | None:
        """Return the Frobenius norm, accumulated in float64; None if only products are known."""
        squares = self.column_squares(np.zeros(self.shape[1]))
        if squares is None:
            return None
        return math.sqrt(squares.sum())

    def centred(self, row: FloatArray) -> MatrixOperator:
        """Return the operator of A - 1 row', for a row vector of shape (n_columns,)."""
        return CentredOperator(self, row)

    @property
    def subtracted(self) -> float:
        """Frobenius norm of what products subtract from larger ones, whose rounding remains."""
        return 0.0

    @abstractmethod
    def wide(self) -> MatrixOperator:
        """Return the operator with vectors, products and sums in float64."""

    @abstractmethod
    def column_squares(self, row: Float64Array) -> Float64Array | None:
        """Return the sum of squares of each column of A - 1 row' in float64; None likewise."""

    @abstractmethod
    def column_means(self) -> Float64Array:
        """Return the mean of each column, shape (n_columns,); zeros if there are no rows."""

    @abstractmethod
    def scaled(self, factor: float) -> MatrixOperator:
        """Return the operator of factor * A."""

    @abstractmethod
    def _matmat(self, X: FloatArray) -> FloatArray: ...

    @abstractmethod
    def _rmatmat(self, Y: FloatArray) -> FloatArray: ...

    @abstractmethod
    def _toarray(self) -> FloatArray: ...


class _Transposed:
    def __init__(self, original: MatrixOperator) -> None:
        rows, columns = original.shape
        self.shape = (columns, rows)
        self.dtype = original.dtype
        self.matmat = original.rmatmat
        self.rmatmat = original.matmat

    def gram_product(self, X: FloatArray) -> FloatArray:
        return self.rmatmat(self.matmat(X))


class DenseOperator(MatrixOperator):
    """A dense array, C or Fortran ordered, float32 or float64, neither copied nor modified.

    The working `dtype` is the array's, or float64 for a float32 array, of which products then
    convert some rows at a time.
    """

    stored_dense = True

    def __init__(
        self,
        array: FloatArray,
        dtype: np.dtype[Any] | None = None,
    ) -> None:
        rows, columns = array.shape
        super().__init__((rows, columns), dtype or array.dtype)
        self.array = array

    @cached_property
    def peak(self) -> float:
        """Largest absolute entry."""
        return largest_entry(self.array)

    def centred(self, row: FloatArray) -> CentredDenseOperator:
        """Return the operator of A - 1 row', for a row vector of shape (n_columns,)."""
        return CentredDenseOperator(self, row)

    def column_squares(self, row: Float64Array) -> Float64Array:
        """Return the sum of squares of each column of A - 1 row'."""
        sums = np.zeros(self.shape[1])
        for part in self._parts(0, _CHUNK):
            difference = self.array[part] - row
            sums += np.einsum("ij,ij->j", difference, difference)
        return sums

    def column_means(self) -> Float64Array:
        """Return the mean of each column, exact for constant columns."""
        means = np.zeros(self.shape[1])
        if not len(self.array):
            return means
        # Sums of differences from the first row neither overflow nor round where all are equal.
        unit = _unit_of_sums(self.peak)
        first = self.array[0] * np.float64(unit)
        for part in self._parts(0, _CHUNK):
            differences = np.multiply(self.array[part], unit, dtype=np.float64)
            differences -= first
            means += differences.sum(axis=0)
        means /= len(self.array)
        means += first
        return means / unit

    def take(self, rows: NDArray[np.intp]) -> DenseOperator:
        """Return some of the rows."""
        return DenseOperator(self.array[rows], self.dtype)

    def scaled(self, factor: float | Float64Array) -> DenseOperator:
        """Return the operator of A with its entries, or each column, multiplied by a factor."""
        return DenseOperator(self.array * np.asarray(factor, self.dtype))

    def wide(self) -> DenseOperator:
        """Return the operator with vectors, products and sums in float64."""
        return DenseOperator(self.array, np.dtype(np.float64))

    def dense_blocks(self, axis: int) -> Iterator[FloatArray]:
        """Yield the array as contiguous blocks of rows (axis 0) or columns, and count one pass."""
        self.passes += 1
        if self.dtype == self.array.dtype:
            yield self.array
            return
        for _, block in self._converted(axis):
            yield block

    def _converted(self, axis: int) -> Iterator[tuple[slice, FloatArray]]:
        """Yield blocks of rows or columns in the working dtype."""
        array = self.array if axis == 0 else self.array.T
        for part in self._parts(axis, _CONVERTED_BLOCK):
            block = array[part].astype(self.dtype)
            yield part, block if axis == 0 else block.T

    def _parts(self, axis: int, entries: int) -> Iterator[slice]:
        """Yield slices of rows or columns that have a number of entries."""
        across = max(1, self.shape[1 - axis])
        step = max(1, entries // across)
        return kernels.pieces(self.shape[axis], step)

    def _matmat(self, X: FloatArray) -> FloatArray:
        if self.dtype == self.array.dtype:
            return self.array @ X
        return _product(self, self._converted(0), X)

    def _rmatmat(self, Y: FloatArray) -> FloatArray:
        if self.dtype == self.array.dtype:
            return self.array.T @ Y
        return _transposed_product(self, self._converted(0), Y)

    def _toarray(self) -> FloatArray:
        return self.array.astype(self.dtype, copy=False)


class SparseOperator(MatrixOperator):
    """A sparse matrix in canonical CSR form, float32 or float64.

    All scipy.sparse formats are converted to this layout, so that results do not depend on the
    format, not even in the last bit. The matrix is neither copied nor modified.
    """

    is_sparse = True

    def __init__(self, csr: Any) -> None:
        rows, columns = csr.shape
        super().__init__((rows, columns), csr.dtype)
        self.csr = csr
        self.entries = int(csr.nnz)

    @cached_property
    def peak(self) -> float:
        """Largest absolute entry."""
        return largest_entry(self.csr.data)

    def frobenius_norm(self) -> float:
        """Return the Frobenius norm, accumulated in float64."""
        total = 0.0
        for part in kernels.pieces(self.entries, _CHUNK):
            data = self.csr.data[part].astype(np.float64)
            # Not by BLAS, whose idle threads would compete with the kernels.
            total += float(np.einsum("i,i->", data, data))
        return math.sqrt(total)

    def column_squares(self, row: Float64Array) -> Float64Array:
        """Return the sum of squares of each column of A - 1 row', with zeros treated separately."""
        n, m = self.shape
        columns = self.csr.indices
        sums: Any = np.zeros(m)
        for part in kernels.pieces(self.entries, _GATHERED):
            places = columns[part]
            differences = self.csr.data[part] - row[places]
            sums += np.bincount(places, differences**2, m)
        zeros = n - np.bincount(columns, minlength=m)
        squares: Float64Array = sums + zeros * row**2
        return squares

    def row_squares(self, row: Float64Array) -> Float64Array:
        """Return the sum of squares of each row of A - 1 row', shape (n_rows,)."""
        n = self.shape[0]
        offset = row[self.csr.indices]
        rows = row_of_entry(self.csr)
        stored: Any = np.bincount(rows, (self.csr.data - offset) ** 2, n)
        zeros = row @ row - np.bincount(rows, offset**2, n)
        squares: Float64Array = stored + np.maximum(zeros, 0.0)
        return squares

    def column_means(self) -> Float64Array:
        """Return the mean of each column, zeros included; exact for constant columns."""
        n, m = self.shape
        columns = self.csr.indices
        unit = _unit_of_sums(self.peak)
        data = self.csr.data * np.float64(unit)
        means = np.bincount(columns, weights=data, minlength=m) / max(1, n)
        # The mean of the differences from a rounded mean corrects it.
        data -= means[columns]
        zeros = n - np.bincount(columns, minlength=m)
        differences = np.bincount(columns, weights=data, minlength=m)
        means += (differences - zeros * means) / max(1, n)
        return means / unit

    def take(self, rows: NDArray[np.intp]) -> Self:
        """Return some of the rows."""
        return type(self)(self.csr[rows])

    def scaled(self, factor: float | Float64Array) -> Self:
        """Return the operator of A with its entries, or each column, multiplied by a factor."""
        factors = np.broadcast_to(factor, self.shape[1:]).astype(self.dtype)
        data = self.csr.data * factors[self.csr.indices]
        return type(self)(with_data(self.csr, data))

    def centred(self, row: FloatArray) -> MatrixOperator:
        """Return the operator of A - 1 row', for a row vector of shape (n_columns,).

        The entries of columns that are nearly full are centred, so that products do not cancel.
        """
        centred, remainder = centred_columns(self.csr, np.asarray(row, np.float64))
        if centred is None:
            return CentredOperator(self, row)
        return CentredOperator(type(self)(centred), remainder, (self, row))

    def wide(self) -> Self:
        """Return the operator with vectors, products and sums in float64; float32 is copied."""
        if self.dtype == np.float64:
            return self
        data = self.csr.data.astype(np.float64)
        return type(self)(with_data(self.csr, data))

    def _matmat(self, X: FloatArray) -> FloatArray:
        return kernels.csr_matmat(self._rows, X)

    def _rmatmat(self, Y: FloatArray) -> FloatArray:
        return kernels.csr_matmat(self._columns, Y)

    @cached_property
    def _rows(self) -> kernels.CsrArrays:
        return kernels.csr_arrays(self.csr).compact()

    @cached_property
    def _columns(self) -> kernels.Stored:
        """The transpose in CSR form: a copy of the entries, with which products only gather."""
        return kernels.transposed(self._rows, self.shape[1])

    def _toarray(self) -> FloatArray:
        array: FloatArray = self.csr.toarray()
        return array


class ProductOperator(MatrixOperator):
    """A scipy LinearOperator, of which only products are known.

    Raises
    ------
    TypeError, ValueError
        From a product, if the LinearOperator has no product with its transpose, or the result is
        not real and finite.
    """

    def __init__(self, linear_operator: Any, dtype: np.dtype[Any]) -> None:
        rows, columns = linear_operator.shape
        super().__init__((rows, columns), dtype)
        self.operator = linear_operator

    def column_squares(self, row: Float64Array) -> None:
        """Return None, because the entries are not known."""
        return

    def column_means(self) -> Float64Array:
        """Return the mean of each column, by one product with a vector of ones."""
        rows = self.shape[0]
        ones = np.ones((rows, 1), self.dtype)
        sums = self.rmatmat(ones)[:, 0].astype(np.float64)
        return sums / max(1, rows)

    def scaled(self, factor: float) -> ProductOperator:
        """Return the operator of factor * A."""
        return ProductOperator(factor * self.operator, self.dtype)

    def wide(self) -> ProductOperator:
        """Return the operator with vectors in float64; its products may be less accurate."""
        return ProductOperator(self.operator, np.dtype(np.float64))

    def _matmat(self, X: FloatArray) -> FloatArray:
        return self._checked(self.operator.matmat(X), "A @ X")

    def _rmatmat(self, Y: FloatArray) -> FloatArray:
        # SciPy raises the first error for a subclass without an adjoint, and the second for an
        # operator made of functions. Both become one error here.
        try:
            product = self.operator.rmatmat(Y)
        except (NotImplementedError, TypeError) as error:
            message = f"A is a LinearOperator without rmatvec or rmatmat, but needs one: {error}"
            raise ArgumentTypeError(message) from error
        return self._checked(product, "A' @ Y")

    def _checked(self, product: Any, name: str) -> FloatArray:
        result = np.asarray(product)
        if np.iscomplexobj(result):
            raise ArgumentTypeError(
                f"A must be real; the LinearOperator's product {name} is complex."
            )
        is_finite = np.isfinite(result).all(axis=1)
        if not is_finite.all():
            row = int(np.argmin(is_finite))
            raise ArgumentError(
                f"A must give finite products; the LinearOperator's {name} "
                f"has NaN or infinity in row {row}."
            )
        # A copy, because solvers overwrite products.
        return result.astype(self.dtype, order="C")

    def _toarray(self) -> FloatArray:
        rows, columns = self.shape
        side = min(rows, columns)
        multiply = self._matmat if columns <= rows else self._rmatmat
        blocks = []
        for part in kernels.pieces(side, _IDENTITY_BLOCK):
            identity = np.eye(side, part.stop - part.start, -part.start, self.dtype)
            blocks.append(multiply(identity))
        array = np.hstack(blocks)
        return array if columns <= rows else array.T


def centred_columns(csr: Any, row: Float64Array) -> tuple[Any, Float64Array]:
    """Return a CSR matrix minus a row in nearly full columns, and the rest of the row.

    The matrix is None if there are no such columns. Where an entry is missing, one is added.
    """
    n, m = csr.shape
    counts = np.bincount(csr.indices, minlength=m)
    full = (counts >= max(1, _NEARLY_FULL * n)) & (row != 0)
    if not full.any():
        return None, row
    columns = np.flatnonzero(full)
    is_stored = np.zeros((n, len(columns)), bool)
    rows = row_of_entry(csr)
    position = np.cumsum(full) - 1
    in_full = full[csr.indices]
    is_stored[rows[in_full], position[csr.indices[in_full]]] = True
    missing_rows, missing = np.nonzero(~is_stored)
    data = csr.data - np.where(in_full, row[csr.indices], 0.0)
    added = columns[missing]
    values = np.concatenate([data, -row[added]]).astype(csr.dtype)
    all_rows = np.concatenate([rows, missing_rows])
    all_columns = np.concatenate([csr.indices, added])
    centred = sparse.csr_array((values, (all_rows, all_columns)), shape=csr.shape)
    return canonical(centred), np.where(full, 0.0, row)


def checked_sparse(matrix: Any, name: str) -> Any:
    """Return a sparse matrix whose indices are in its shape, integers as float64.

    Sums of repeated integers may exceed their type.

    Raises
    ------
    ArgumentError
        If an index is not in the shape, or may be too large for 32 bits: compiled products would
        read other memory.
    """
    if max(matrix.shape) > _MOST_INDICES:
        raise ArgumentError(
            f"{name} must have at most {_MOST_INDICES:,} rows and columns, since it is sparse; "
            f"got shape {matrix.shape}."
        )
    problem = ""
    if hasattr(matrix, "check_format"):
        try:
            # SciPy may change the arrays of the object that it checks.
            type(matrix)(matrix).check_format(full_check=True)
        except ValueError as error:
            problem = str(error)
    elif matrix.format == "coo" and matrix.nnz:
        ranges = [(int(axis.min()), int(axis.max())) for axis in matrix.coords]
        for (first, last), n in zip(ranges, matrix.shape, strict=True):
            if first < 0 or last >= n:
                problem = f"indices from {first} to {last} in shape {matrix.shape}"
    if problem:
        raise ArgumentError(f"{name} must be a valid sparse matrix: {problem}.")
    if np.dtype(matrix.dtype).kind in "iu":
        return matrix.astype(np.float64)
    return matrix


def canonical(matrix: Any) -> Any:
    """Return a sparse matrix as CSR with sorted indices and without duplicates and stored zeros.

    Stored zeros, as in some formats, would change the order of sums in products. The result is a
    copy if it differs.
    """
    # A new array checks the order: scikit-learn's vectorizers mark unsorted rows as sorted.
    csr: Any = sparse.csr_array(matrix)
    if not csr.has_canonical_format or not csr.data.all():
        csr = csr.copy()
        csr.sum_duplicates()
        csr.eliminate_zeros()
    return csr


def largest_entry(entries: FloatArray) -> float:
    """Return the largest absolute entry; NaN or infinity if there is one."""
    if entries.size == 0:
        return 0.0
    with np.errstate(invalid="ignore"):
        highest = abs(entries.max())
        lowest = abs(entries.min())
    return float(max(highest, lowest))


def safe_exponent(peak: float, dtype: np.dtype[Any]) -> int:
    """Return x such that fourth powers of ``A * 2**-x`` neither overflow nor underflow in a dtype.

    It is 0 if the largest absolute entry, `peak`, is between 2**-16 and 2**16 in float32, or
    2**-160 and 2**160 in float64. Multiplication by ``2.0**-x`` is exact.
    """
    _, exponent = math.frexp(peak)
    if peak == 0.0 or abs(exponent) <= _SAFE_EXPONENT[str(dtype)]:
        return 0
    # 2.0**-x itself must be a normal number of the dtype.
    limit = _LARGEST_EXPONENT[str(dtype)]
    return max(-limit, min(limit, exponent))


def rescaled(matrix: MatrixOperator) -> tuple[MatrixOperator, int]:
    """Return A * 2**-x and x, which is not 0 if powers of the entries may overflow or vanish."""
    exponent = safe_exponent(matrix.peak, matrix.dtype)
    if exponent:
        matrix = matrix.scaled(2.0**-exponent)
    return matrix, exponent


def _unit_of_sums(peak: float) -> float:
    """Return the power of two by which entries are multiplied so that their sums are finite."""
    return 2.0**-_HALVED if peak > _LARGEST_SUMMED else 1.0


def row_of_entry(csr: Any) -> NDArray[np.integer[Any]]:
    """Return the row of each stored entry of a CSR matrix."""
    return np.repeat(np.arange(csr.shape[0]), np.diff(csr.indptr))


def with_data(csr: Any, data: NDArray[Any]) -> Any:
    """Return a CSR matrix with other values at the same places."""
    return type(csr)((data, csr.indices, csr.indptr), shape=csr.shape)


def _product(
    A: MatrixOperator,
    blocks: Iterator[tuple[slice, FloatArray]],
    X: FloatArray,
) -> FloatArray:
    """Return A X, where A is given by blocks of rows."""
    product = np.empty((A.shape[0], X.shape[1]), A.dtype)
    for part, block in blocks:
        np.matmul(block, X, out=product[part])
    return product


def _transposed_product(
    A: MatrixOperator,
    blocks: Iterator[tuple[slice, FloatArray]],
    Y: FloatArray,
) -> FloatArray:
    """Return A' Y, where A is given by blocks of rows."""
    product = np.zeros((A.shape[1], Y.shape[1]), A.dtype)
    for part, block in blocks:
        product += block.T @ Y[part]
    return product


class CentredOperator(MatrixOperator):
    """A - 1 row' without forming it: each product is corrected by a rank-one term."""

    def __init__(
        self,
        inner: MatrixOperator,
        row: FloatArray,
        original: tuple[MatrixOperator, FloatArray] | None = None,
    ) -> None:
        super().__init__(inner.shape, inner.dtype)
        self.entries = inner.entries
        self._inner = inner
        self._exact_row = row
        self._row = row.astype(inner.dtype)
        # The matrix and row before some columns were centred.
        self._original = original or (inner, row)

    def column_squares(self, row: Float64Array) -> Float64Array | None:
        """Return the sum of squares of each column of A - 1 (row of this operator + row)'."""
        return self._inner.column_squares(self._exact_row + row)

    def column_means(self) -> Float64Array:
        """Return the mean of each column."""
        means = self._inner.column_means() - self._exact_row
        return means.astype(np.float64, copy=False)

    @property
    def subtracted(self) -> float:
        """Frobenius norm of what products subtract from larger ones, whose rounding remains."""
        length = float(np.linalg.norm(self._exact_row))
        return length * math.sqrt(self.shape[0])

    def scaled(self, factor: float) -> CentredOperator:
        """Return the operator of factor * A."""
        return CentredOperator(self._inner.scaled(factor), self._exact_row * factor)

    def wide(self) -> MatrixOperator:
        """Return the operator with vectors, products and sums in float64."""
        matrix, row = self._original
        return matrix.wide().centred(row)

    def _matmat(self, X: FloatArray) -> FloatArray:
        return self._inner.matmat(X) - self._row @ X

    def _rmatmat(self, Y: FloatArray) -> FloatArray:
        sums = Y.sum(axis=0)
        return self._inner.rmatmat(Y) - np.outer(self._row, sums)

    def _toarray(self) -> FloatArray:
        difference = self._inner.toarray() - self._exact_row
        return difference.astype(self.dtype, copy=False)


class CentredDenseOperator(CentredOperator):
    """A dense array minus a row vector, which is subtracted block by block.

    This is accurate where a rank-one correction would cancel, takes less memory than a centred
    copy, and is faster than a copy for a few products. If the row is small compared with the array,
    nothing cancels, and products are corrected by a rank-one term.
    """

    stored_dense = True

    def __init__(self, inner: DenseOperator, row: FloatArray) -> None:
        super().__init__(inner, row)
        self._array = inner.array
        # Subtracting the rounding error of the row too makes float32 as accurate as float64.
        rounded_off = self._exact_row - self._row
        self._rounded_off = rounded_off.astype(inner.dtype)

    @property
    def subtracted(self) -> float:
        """Frobenius norm of what products subtract; 0, because entries are centred first."""
        return 0.0

    def dense_blocks(self, axis: int) -> Iterator[FloatArray]:
        """Yield blocks of the centred rows, or columns."""
        self.passes += 1
        return (block for _, block in self._blocks(axis))

    def _blocks(self, axis: int) -> Iterator[tuple[slice, FloatArray]]:
        length = self.shape[axis]
        across = self.shape[1 - axis]
        step = min(length, _CENTRED_BLOCK // max(1, across))
        step = max(1, step)
        # One buffer for all blocks, because new memory takes as long as centring.
        buffer = np.empty((step, across), self.dtype)
        for part in kernels.pieces(length, step):
            block = buffer[: part.stop - part.start]
            self._centre(block, axis, part)
            yield part, block if axis == 0 else block.T

    def _centre(
        self,
        block: FloatArray,
        axis: int,
        part: slice,
    ) -> None:
        """Write centred rows, or the transpose of centred columns, into a block."""
        if axis == 0:
            entries = self._array[part]
            row = self._row
            rounded_off = self._rounded_off
        else:
            entries = self._array.T[part]
            row = self._row[part, None]
            rounded_off = self._rounded_off[part, None]
        np.subtract(entries, row, out=block)
        if rounded_off.any():
            block -= rounded_off

    @cached_property
    def _cancels(self) -> bool:
        """Return whether the row accounts for more than a quarter of the sum of squares."""
        if self._array.dtype != self.dtype:  # blocks are converted anyway
            return True
        entries = self._array.ravel(order="K")
        subtracted = self.shape[0] * (self._row @ self._row)
        return bool(4 * subtracted > entries @ entries)

    def _matmat(self, X: FloatArray) -> FloatArray:
        if not self._cancels:
            return super()._matmat(X)
        return _product(self, self._blocks(0), X)

    def _rmatmat(self, Y: FloatArray) -> FloatArray:
        if not self._cancels:
            return super()._rmatmat(Y)
        return _transposed_product(self, self._blocks(0), Y)

    def _toarray(self) -> FloatArray:
        array = np.empty_like(self._array, self.dtype)
        self._centre(array, 0, slice(None))
        return array

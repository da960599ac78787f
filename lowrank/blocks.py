"""Matrices larger than memory, read in blocks of rows."""

from __future__ import annotations

import copy
import math
import mmap
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from scipy import sparse

from lowrank import kernels
from lowrank.errors import (
    ArgumentError,
    ArgumentTypeError,
    check_range,
    checked_integer,
    real_matrix,
)
from lowrank.operators import (
    DenseOperator,
    MatrixOperator,
    SparseOperator,
    checked_sparse,
    largest_entry,
    safe_exponent,
)

if TYPE_CHECKING:
    from os import PathLike

    from numpy.typing import ArrayLike, NDArray
    from scipy.sparse import sparray, spmatrix

    from lowrank.operators import Float64Array, FloatArray

    Block = ArrayLike | sparray | spmatrix

_BLOCK_BYTES = 1 << 26  # size of the blocks of a file
_SHARED_MODES = ("r", "r+", "w+")  # of memory maps whose pages are those of the file
_IN_MEMORY = 1 << 30  # size up to which a memory map is treated as an array


class RowBlocks(MatrixOperator):
    """An n x m matrix that is read in blocks of rows, once per pass.

    `truncated_svd` and the functions built on it, `PCA` and `Whitening` accept it as a matrix. Two
    blocks are in memory at a time (the next one is read during the computation), as well as the
    results, including U with its n rows. The constructor reads all blocks once, for the shape, the
    means and the norm.

    Parameters
    ----------
    blocks : callable or iterable
        Blocks of rows: dense or scipy.sparse arrays with the same number m of columns. Either a
        function without arguments that returns an iterator over them, or an iterable that can be
        iterated repeatedly, such as a list. Each iteration must give the same blocks.

    Attributes
    ----------
    shape : tuple of int
        (n, m).
    dtype : numpy.dtype
        float32 if all blocks are float32, else float64.
    is_sparse : bool
        True if the blocks are sparse; they are never made dense.

    Raises
    ------
    ArgumentTypeError
        If the blocks cannot be iterated again, are not real, or are partly dense and partly sparse.
    ArgumentError
        If there is no block, the numbers of columns differ, or an entry is not finite (the message
        has its row and column).

    Examples
    --------
    >>> import numpy as np
    >>> from lowrank import truncated_svd
    >>> X = np.random.default_rng(0).standard_normal((1000, 20))
    >>> blocks = RowBlocks(lambda: (X[i : i + 100] for i in range(0, 1000, 100)))
    >>> blocks.shape, bool(np.allclose(truncated_svd(blocks, 3).s, truncated_svd(X, 3).s))
    ((1000, 20), True)
    """

    in_blocks: ClassVar[bool] = True

    def __init__(self, blocks: Callable[[], Iterator[Block]] | Iterable[Block]) -> None:
        if callable(blocks):
            self._start = blocks
        elif isinstance(blocks, Iterable) and not isinstance(blocks, Iterator):
            self._start = blocks.__iter__
        else:
            raise ArgumentTypeError(
                "blocks must be a list, or a function that returns an iterator, so that they can "
                f"be read again; got {type(blocks).__name__}."
            )
        self._factors: Float64Array | None = None
        self._row: FloatArray | None = None
        self._means: Float64Array
        self._deviations: Float64Array
        self._look()

    def __repr__(self) -> str:
        kind = "sparse" if self.is_sparse else "dense"
        return f"{type(self).__name__}(shape={self.shape}, dtype={self.dtype}, {kind})"

    @classmethod
    def from_array(cls, array: ArrayLike, rows: int | None = None) -> Self:
        """Split an array, such as a numpy.memmap, into blocks of `rows` rows (default: 64 MB).

        A memory map is read as it is in memory, with changes that are not in the file.
        """
        source: Any = array
        check_not_masked(source, "array")
        step = _rows_per_block(rows, source[:1].nbytes)
        return cls(partial(_blocks_of_array, source, step))

    @classmethod
    def from_csr(
        cls, folder: str | PathLike[str], n_columns: int | None = None
    ) -> Self:
        """Read a CSR matrix from the files indptr.npy, indices.npy and data.npy in a folder.

        The default of `n_columns` is the largest column index plus one.

        Raises
        ------
        ArgumentError, ArgumentTypeError
            If `n_columns` is not a positive integer, or is too small, when the blocks are read.
        """
        path = Path(folder)
        _check_csr(path)
        count = _count(n_columns, "n_columns")
        if not count:
            indices = _opened(path, "indices")
            count = int(indices.max()) + 1 if indices.size else 0
        return cls(partial(_blocks_of_csr, path, count))

    @classmethod
    def from_parquet(cls, path: str | PathLike[str], rows: int | None = None) -> Self:
        """Read Parquet files with numeric columns in blocks of `rows` rows (default: 64 MB).

        `path` is a file, a glob or a folder, as in polars.

        Raises
        ------
        ArgumentTypeError
            If a column is not numeric.
        """
        import polars as pl

        frame = pl.scan_parquet(os.fspath(path))
        schema = frame.collect_schema()
        for name, dtype in schema.items():
            if not (dtype.is_numeric() or dtype == pl.Boolean):
                raise ArgumentTypeError(
                    f"{path}: column {name!r} must have numbers; got {dtype}."
                )
        length = int(frame.select(pl.len()).collect().item())
        step = _rows_per_block(rows, 8 * len(schema))
        return cls(partial(_blocks_of_parquet, os.fspath(path), length, step))

    def _look(self) -> None:
        """Read all blocks once for the shape, dtype, largest entry, means and deviations."""
        rows, peak, dtype = 0, 0.0, np.dtype(np.float32)
        first: Any = None
        for raw in self._start():
            block, largest = _checked(raw, rows)
            if first is None:
                first = block[:0]
                self._means, self._deviations = np.zeros((2, block.shape[1]))
            if block.shape[1] != first.shape[1]:
                raise ArgumentError(
                    f"blocks must have the same number of columns; got {first.shape[1]} in the "
                    f"first, and {block.shape[1]} in the one that begins at row {rows}."
                )
            if _is_sparse(block) != _is_sparse(first):
                raise ArgumentTypeError(
                    "blocks must be all dense or all sparse; got both."
                )
            dtype = np.result_type(dtype, block.dtype)
            peak = max(peak, largest)
            self._add_moments(block, largest, rows)
            rows += block.shape[0]
        if first is None:
            raise ArgumentError("blocks must have at least one block; got none.")
        super().__init__((rows, first.shape[1]), dtype)
        self._peak, self.is_sparse = peak, _is_sparse(first)

    def _add_moments(
        self,
        block: Any,
        largest: float,
        rows: int,
    ) -> None:
        """Update means and norms with a block (Chan, Golub & LeVeque 1983)."""
        count = block.shape[0]
        total = max(1, rows + count)
        matrix = SparseOperator(block) if _is_sparse(block) else DenseOperator(block)
        means = matrix.column_means()
        shift = means - self._means
        # Squares of scaled entries neither overflow nor vanish.
        exponent = safe_exponent(largest, np.dtype(np.float64))
        scale = 2.0**exponent
        unit = matrix.scaled(1 / scale) if exponent else matrix
        squares = unit.column_squares(means / scale)
        largest_norm = float(np.sqrt(squares.max(initial=0.0))) * scale
        check_range(largest_norm, np.dtype(np.float64), "Norms of columns")
        between = shift * (rows * count / total) ** 0.5
        within = np.hypot(self._deviations, scale * np.sqrt(squares))
        self._deviations = np.hypot(within, between)
        self._means = self._means + shift * (count / total)

    @property
    def peak(self) -> float:
        """Largest absolute entry of the blocks; with other factors a bound, by means and norms."""
        return self._peak

    def column_means(self) -> Float64Array:
        """Return the mean of each column."""
        return self._means

    def column_squares(self, row: Float64Array) -> Float64Array:
        """Return the sum of squares of each column of A - 1 row', without a pass over A."""
        shift = self._means - row
        squares: Float64Array = self._deviations**2 + self.shape[0] * shift**2
        return squares

    def row_squares(self, row: Float64Array) -> Float64Array:
        """Return the sum of squares of each row of A - 1 row'."""
        squares = [
            np.einsum("ij,ij->i", block, block, dtype=np.float64)
            for block in self.centred(row).dense_blocks(0)
        ]
        return np.concatenate(squares)

    def centred(self, row: FloatArray) -> Self:
        """Return A - 1 row', computed for dense blocks and kept as a correction for sparse ones."""
        # A copy shares the blocks; each pass scales and centres them.
        result = copy.copy(self)
        result._row = row if self._row is None else self._row + row
        result._means = self._means - row
        return result

    def scaled(self, factor: float | Float64Array) -> Self:
        """Return the matrix with its entries, or each column, multiplied by a factor."""
        factors = np.broadcast_to(np.asarray(factor, np.float64), self.shape[1:])
        result = copy.copy(self)
        result._factors = factors if self._factors is None else self._factors * factors
        result._row = None if self._row is None else self._row * factors
        result._means = self._means * factors
        result._deviations = self._deviations * abs(factors)
        # No entry is further from its mean than the norm of all differences from it.
        bounds = abs(result._means) + result._deviations
        if result._row is not None:
            bounds += abs(result._row)
        largest = self._peak * abs(factors).max(initial=0.0)
        result._peak = float(min(largest, bounds.max(initial=0.0)))
        return result

    def wide(self) -> Self:
        """Return the matrix with vectors, products and sums in float64."""
        result = copy.copy(self)
        result.dtype = np.dtype(np.float64)
        return result

    @property
    def subtracted(self) -> float:
        """Frobenius norm of what products of sparse blocks subtract; 0 for dense blocks."""
        if self._row is None or not self.is_sparse:
            return 0.0
        length = float(np.linalg.norm(self._row))
        return length * math.sqrt(self.shape[0])

    def gram_product(self, X: FloatArray) -> FloatArray:
        """Return A' (A X), in one pass."""
        self.passes += 1
        result = np.zeros((self.shape[1], X.shape[1]), self.dtype)
        for _, block in self._blocks():
            result += block.gram_product(X)
        return result

    def dense_blocks(self, axis: int) -> Iterator[FloatArray]:
        """Yield the rows as dense blocks (axis 0), and count one pass."""
        if axis:
            yield self.toarray()
            return
        self.passes += 1
        for _, block in self._blocks():
            yield block.toarray()

    def _matmat(self, X: FloatArray) -> FloatArray:
        product = np.empty((self.shape[0], X.shape[1]), self.dtype)
        for part, block in self._blocks():
            product[part] = block.matmat(X)
        return product

    def _rmatmat(self, Y: FloatArray) -> FloatArray:
        product = np.zeros((self.shape[1], Y.shape[1]), self.dtype)
        for part, block in self._blocks():
            product += block.rmatmat(Y[part])
        return product

    def _toarray(self) -> FloatArray:
        self.passes -= 1  # toarray has already counted the pass of dense_blocks
        return np.vstack(list(self.dense_blocks(0)))

    def operators(self) -> Iterator[SparseOperator | DenseOperator]:
        """Yield each block of rows, scaled but not centred, and count one pass."""
        self.passes += 1
        return map(self._scaled_block, self._start())

    def _blocks(self) -> Iterator[tuple[slice, MatrixOperator]]:
        """Yield the rows of each block, and the scaled and centred block."""
        start = 0
        blocks = iter(self._start())
        # The thread reads the next block during the computation.
        with ThreadPoolExecutor(1) as reader:
            coming = reader.submit(next, blocks, None)
            while (raw := coming.result()) is not None:
                coming = reader.submit(next, blocks, None)
                block = self._prepared(raw)
                if block.shape[1] != self.shape[1]:
                    raise ArgumentError(
                        "blocks must be the same each time; "
                        f"got {self.shape[1]} columns at first, now {block.shape[1]}."
                    )
                end = start + block.shape[0]
                yield slice(start, end), block
                start = end
        if start != self.shape[0]:
            raise ArgumentError(
                "blocks must be the same each time; "
                f"got {self.shape[0]} rows at first, now {start}."
            )

    def _prepared(self, raw: Any) -> MatrixOperator:
        block = self._scaled_block(raw)
        return block if self._row is None else block.centred(self._row)

    def _scaled_block(self, raw: Any) -> SparseOperator | DenseOperator:
        block: SparseOperator | DenseOperator
        if self.is_sparse:
            csr: Any = sparse.csr_array(checked_sparse(raw, "blocks"))
            csr = csr.astype(self.dtype, copy=False)
            if not csr.has_sorted_indices:
                csr = csr.sorted_indices()
            block = _SparseBlock(csr)
        else:
            block = DenseOperator(as_array(raw).astype(self.dtype, copy=False))
        if self._factors is not None:
            block = block.scaled(self._factors)
        return block


def _blocks_of_array(array: Any, rows: int) -> Iterator[Block]:
    """Yield blocks of `rows` rows of an array."""
    for part in kernels.pieces(len(array), rows):
        yield _copied(array, part)


def _opened(folder: Path, name: str) -> Any:
    """Return one of the arrays of a CSR matrix as a memory map."""
    return np.load(folder / f"{name}.npy", mmap_mode="r")


def _check_csr(folder: Path) -> None:
    """Check the shapes and types of the arrays of a CSR matrix; entries are checked by blocks.

    Raises
    ------
    ArgumentTypeError, ArgumentError
    """
    arrays = {name: _opened(folder, name) for name in ("indptr", "indices", "data")}
    for name, array in arrays.items():
        if array.ndim != 1:
            raise ArgumentError(
                f"{name}.npy must be one-dimensional; got shape {array.shape}."
            )
        if name != "data" and array.dtype.kind not in "iu":
            raise ArgumentTypeError(
                f"{name}.npy must hold integers; got dtype {array.dtype}."
            )
    indptr = arrays["indptr"]
    n_entries = arrays["data"].size
    if arrays["indices"].size != n_entries:
        raise ArgumentError(
            f"indices.npy must have {n_entries} numbers, as data.npy; "
            f"got {arrays['indices'].size}."
        )
    # SciPy would leave out entries before the first row in silence.
    ends = (int(indptr[0]), int(indptr[-1])) if indptr.size else ()
    if ends != (0, n_entries):
        raise ArgumentError(
            f"indptr.npy must begin with 0 and end with {n_entries}, the number of entries; "
            f"got {ends}."
        )


def _blocks_of_csr(folder: Path, n_columns: int) -> Iterator[Block]:
    """Yield blocks of rows of a CSR matrix, whose arrays are files in a folder."""
    indptr = _opened(folder, "indptr")
    indices = _opened(folder, "indices")
    data = _opened(folder, "data")
    most = _BLOCK_BYTES // (indices.itemsize + data.itemsize)
    for rows in kernels.row_blocks(indptr, most):
        start = rows.start
        end = rows.stop
        entries = slice(int(indptr[start]), int(indptr[end]))
        columns = np.array(indices[entries])
        needed = int(columns.max()) + 1 if columns.size else 0
        if needed > n_columns:
            raise ArgumentError(
                f"n_columns must be at least {needed}, as indices.npy says; "
                f"got {n_columns}."
            )
        values = np.array(data[entries])
        starts = indptr[start : end + 1] - indptr[start]
        shape = (end - start, n_columns)
        yield sparse.csr_array((values, columns, starts), shape=shape)


def _blocks_of_parquet(
    path: str,
    length: int,
    rows: int,
) -> Iterator[Block]:
    """Yield blocks of `rows` rows of Parquet files."""
    import polars as pl

    frame = pl.scan_parquet(path)
    for start in range(0, length, rows):
        yield frame.slice(start, rows).collect().to_numpy()


class _SparseBlock(SparseOperator):
    """Sparse rows that are used only once, so that a transposed copy does not pay off."""

    def _rmatmat(self, Y: FloatArray) -> FloatArray:
        # This kernel takes a value for each entry, and not one for all.
        return kernels.csr_rmatmat(kernels.csr_arrays(self.csr), Y, self.shape[1])


def _count(value: Any, name: str) -> int:
    """Return an integer that is at least 1; 0 for None."""
    if value is None:
        return 0
    return checked_integer(value, name, "an integer or None", least=1)


def _rows_per_block(rows: Any, row_bytes: int) -> int:
    """Return the number of rows that the user wants in a block, or that take 64 MB."""
    return _count(rows, "rows") or max(1, _BLOCK_BYTES // max(1, row_bytes))


def by_blocks(matrix: Any) -> Any:
    """Return a large numpy.memmap as RowBlocks, and anything else as it is.

    Raises
    ------
    ArgumentTypeError
        If it is a result that NumPy takes for a single object, such as a Completion.
    """
    is_array = hasattr(matrix, "__array__") or isinstance(matrix, MatrixOperator)
    if hasattr(matrix, "toarray") and not (is_array or _is_sparse(matrix)):
        name = type(matrix).__name__
        raise ArgumentTypeError(
            f"{name} is not taken for an array: its toarray() returns one."
        )
    is_large = (
        isinstance(matrix, np.memmap)
        and matrix.ndim == 2
        and matrix.nbytes > _IN_MEMORY
    )
    return RowBlocks.from_array(matrix) if is_large else matrix


def _copied(array: Any, part: slice) -> Any:
    """Return a copy of some rows; pages of a shared memory map leave the process again."""
    rows = np.array(array[part])
    mapped = getattr(array, "base", None)
    is_shared = isinstance(array, np.memmap) and array.mode in _SHARED_MODES
    if is_shared and isinstance(mapped, mmap.mmap) and hasattr(mapped, "madvise"):
        # The private pages of mode "c" must stay, since they may have been changed.
        width = array[:1].nbytes
        first = array.offset % mmap.ALLOCATIONGRANULARITY + part.start * width
        first -= first % mmap.PAGESIZE
        mapped.madvise(mmap.MADV_DONTNEED, first, len(rows) * width)
    return rows


def _checked(raw: Any, row: int) -> tuple[Any, float]:
    """Check a block, and return it as float32 or float64, dense or CSR, with its largest entry."""
    check_not_masked(raw, "blocks")
    block: Any = as_array(raw) if not _is_sparse(raw) else raw
    dtype = real_matrix(block.dtype, block.shape, "blocks")
    if _is_sparse(raw):
        block = sparse.csr_array(checked_sparse(raw, "blocks"))
    block = block.astype(dtype, copy=False)
    if _is_sparse(block) and not block.has_canonical_format:
        block = block.copy()
        block.sum_duplicates()
    largest = largest_entry(block.data if _is_sparse(block) else block)
    if not np.isfinite(largest):
        raise not_finite(block, "blocks", row)
    return block, largest


def as_array(A: Any) -> NDArray[Any]:
    """Return array-like input as an array, with NaN for missing values of nullable pandas types."""
    array = np.asarray(A)
    # A table of nullable columns becomes an array of objects, with pandas.NA in it.
    if array.dtype == object and array.ndim == 2:
        kinds = {getattr(dtype, "kind", "O") for dtype in getattr(A, "dtypes", "O")}
        if kinds <= set("biuf"):
            return np.asarray(A.to_numpy(np.float64, na_value=np.nan))
    return array


def check_not_masked(A: Any, name: str) -> None:
    """Raise an error for the masked entries of an array, whose values mean nothing."""
    masked = np.count_nonzero(np.ma.getmask(A)) if np.ma.isMaskedArray(A) else 0
    if masked:
        raise ArgumentError(
            f"{name} must have no masked entries; got {masked}: fill them first."
        )


def not_finite(
    A: Any,
    name: str,
    start: int = 0,
) -> ArgumentError:
    """Return the error for the first NaN or infinite entry; rows are counted from `start`."""
    if _is_sparse(A):
        position = np.argmax(~np.isfinite(A.data))
        row = np.searchsorted(A.indptr, position, side="right") - 1
        column, value = A.indices[position], A.data[position]
    else:
        row, column = np.argwhere(~np.isfinite(A))[0]
        value = A[row, column]
    kind = "NaN" if np.isnan(value) else "infinity"
    where = f"row {start + row}, column {column}"
    return ArgumentError(f"{name} must be finite; got {kind} at {where}.")


def _is_sparse(block: Any) -> bool:
    return bool(sparse.issparse(block))

"""The known entries of a matrix: check them and hold some out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
from scipy import sparse

from lowrank.arguments import checked_generator
from lowrank.blocks import as_array, not_finite
from lowrank.errors import ArgumentError, check_share, real_matrix
from lowrank.kernels.arrays import Float64s, Masks
from lowrank.operators import checked_sparse

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from scipy.sparse import csr_array

    from lowrank.arguments import MatrixLike, RandomStateLike
    from lowrank.operators import FloatArray


class Entries(NamedTuple):
    """Some entries of a matrix: their positions and values, each of shape (p,)."""

    rows: NDArray[np.intp]
    columns: NDArray[np.intp]
    values: FloatArray

    @classmethod
    def of(cls, X: csr_array) -> Self:
        """Return the stored entries of a matrix."""
        rows, columns = X.tocoo(copy=False).coords
        return cls(
            rows=rows.astype(np.intp, copy=False),
            columns=columns.astype(np.intp, copy=False),
            values=X.data,
        )

    def where(self, chosen: Masks) -> Self:
        """Return the entries where the mask `chosen`, shape (p,), is true."""
        return type(self)(self.rows[chosen], self.columns[chosen], self.values[chosen])


def observed_entries(X: MatrixLike) -> csr_array:
    """Check a matrix with missing entries; return the known ones as CSR with sorted indices.

    The known entries of a sparse matrix are the stored ones, stored zeros included; in a dense
    array, they are neither NaN nor masked. float32 is kept; other real types become float64. The
    result may share memory with X, which is never written to.

    Raises
    ------
    ArgumentTypeError, ArgumentError
        If X is not a real matrix, has no known entry, stores one twice, or has an infinity (or, if
        sparse, a NaN).

    Examples
    --------
    >>> observed_entries([[1.0, float("nan")], [0.0, 4.0]]).data
    array([1., 0., 4.])
    """
    array: Any = X
    if not sparse.issparse(X):
        array = X if isinstance(X, np.ma.MaskedArray) else as_array(X)
    shape = array.shape
    dtype = real_matrix(array.dtype, shape, "X")
    if sparse.issparse(X):
        coo = checked_sparse(array, "X").tocoo()
        # Sorted entries make duplicates neighbours, and rows contiguous.
        order = np.lexsort((coo.col, coo.row))
        rows, columns, data = coo.row[order], coo.col[order], coo.data[order]
        twice = np.flatnonzero((np.diff(rows) == 0) & (np.diff(columns) == 0))
        if twice.size:
            raise ArgumentError(
                f"X must store each entry once; got row {rows[twice[0]]}, column "
                f"{columns[twice[0]]} more than once: call X.sum_duplicates() to add them up."
            )
    else:
        values = np.ma.getdata(array)
        is_known = ~np.ma.getmaskarray(array)
        if values.dtype.kind == "f":
            is_known &= ~np.isnan(values)
        rows, columns = np.nonzero(is_known)
        data = values[rows, columns]
    if data.size == 0:
        raise ArgumentError(
            f"X must have at least one known entry; got none in shape {shape}."
        )
    indptr = np.searchsorted(rows, np.arange(shape[0] + 1))
    matrix = sparse.csr_array(
        (data.astype(dtype, copy=False), columns, indptr), shape=shape
    )
    if not np.isfinite(data).all():
        raise not_finite(matrix, "X")
    return matrix


def entry_weights(weights: MatrixLike, X: csr_array) -> FloatArray:
    """Check the weights of a matrix with missing entries; return its entries' weights, in order.

    Entries that sparse weights do not store have weight 0. The weights of unknown entries are not
    used, and may be NaN or masked.

    Raises
    ------
    ArgumentTypeError, ArgumentError
        If the weights are not a real matrix in the shape of X, are negative, are not finite at a
        known entry, or are 0 at all of them.
    """
    array: Any = weights
    if isinstance(weights, np.ma.MaskedArray):
        array = np.ma.filled(weights.astype(np.float64), np.nan)
    elif sparse.issparse(weights):
        array = checked_sparse(weights, "weights")
    else:
        array = as_array(weights)
    real_matrix(array.dtype, array.shape, "weights")
    if array.shape != X.shape:
        raise ArgumentError(
            f"weights must have the shape of X, {X.shape}; got {array.shape}."
        )
    check_not_negative(array, "weights")
    rows, columns, _ = Entries.of(X)
    with np.errstate(over="ignore"):  # infinity is an error below
        values = _values_at(array, rows, columns).astype(X.dtype)
    bad = np.flatnonzero(~np.isfinite(values))
    if bad.size:
        raise ArgumentError(
            f"weights must be finite in {X.dtype}; got {values[bad[0]]} at row "
            f"{rows[bad[0]]}, column {columns[bad[0]]}."
        )
    if not values.any():
        raise ArgumentError(
            "weights must be positive at a known entry of X; all are 0."
        )
    return values


def check_not_negative(
    X: Any,
    name: str,
    hint: str = "",
) -> None:
    """Check that no entry of a dense or sparse matrix is negative.

    Raises
    ------
    ArgumentError
        With the first negative entry in row-major order, and its place.
    """
    matrix: Any = X
    if sparse.issparse(X):
        coo = matrix.tocoo()
        negative = coo.data < 0
        rows, columns, values = coo.row[negative], coo.col[negative], coo.data[negative]
    else:
        rows, columns = np.nonzero(X < 0)
        values = X[rows, columns]
    if values.size:
        first = np.lexsort((columns, rows))[0]
        raise ArgumentError(
            f"{name} must not be negative{hint}; got {values[first]} at row {rows[first]}, column "
            f"{columns[first]}."
        )


def _values_at(
    matrix: Any,
    rows: NDArray[np.intp],
    columns: NDArray[np.intp],
) -> Float64s:
    """Return the entries of a dense or sparse matrix at pairs of positions, in row-major order."""
    if not sparse.issparse(matrix):
        return np.asarray(matrix[rows, columns], np.float64)
    sparse_matrix: Any = matrix
    coo = sparse_matrix.tocoo()
    # Row-major order makes the keys ascend.
    keys = rows.astype(np.int64) * coo.shape[1] + columns
    stored = coo.row.astype(np.int64) * coo.shape[1] + coo.col
    positions = np.searchsorted(keys, stored)
    is_wanted = keys[np.minimum(positions, keys.size - 1)] == stored
    # Entries that are stored twice are added up.
    sums: Any = np.bincount(
        positions[is_wanted], coo.data[is_wanted], minlength=keys.size
    )
    return np.asarray(sums, np.float64)


def hold_out(
    X: csr_array,
    test_fraction: float,
    random_state: RandomStateLike,
) -> tuple[csr_array, Entries]:
    """Split the result of `observed_entries` into kept entries and a random held-out sample.

    Raises
    ------
    ArgumentError
        If `test_fraction` is out of its range, or X has fewer than two entries.
    """
    check_share(test_fraction, "test_fraction")
    if test_fraction in (0, 1):
        raise ArgumentError(
            f"test_fraction must be between 0 and 1; got {test_fraction}."
        )
    if X.nnz < 2:
        raise ArgumentError(
            f"X must have at least 2 known entries to hold some out; got {X.nnz}."
        )
    rng = checked_generator(random_state)
    # At least one entry is on either side.
    size = min(max(1, round(test_fraction * X.nnz)), X.nnz - 1)
    is_test = np.zeros(X.nnz, bool)
    is_test[rng.choice(X.nnz, size, replace=False)] = True
    entries = Entries.of(X)
    rows, columns, values = entries.where(~is_test)
    training = sparse.coo_array((values, (rows, columns)), shape=X.shape)
    return training.tocsr(), entries.where(is_test)


def seed_of(random_state: RandomStateLike) -> int:
    """Return a seed that several fits share."""
    generator = checked_generator(random_state)
    if isinstance(random_state, (int, np.integer)):
        return int(random_state)
    return int(generator.integers(2**32))

"""The door of matrix completion: which entries are known, and holding some of them out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lowrank.arguments import checked_generator

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from scipy.sparse import csr_array

    from lowrank.operators import FloatArray

__all__ = ["Entries", "hold_out", "observed_entries"]


class Entries(NamedTuple):
    """Some entries of a matrix: their positions and values, each of shape (p,)."""

    rows: NDArray[np.intp]
    columns: NDArray[np.intp]
    values: FloatArray


def observed_entries(X: Any) -> csr_array:
    """Check a matrix of which some entries are known, and return them as a CSR array.

    Parameters
    ----------
    X : scipy.sparse matrix or array, or array-like, of shape (n, m)
        Of a sparse matrix the stored entries are known, stored zeros too. Of a dense one those that
        are not NaN (and not masked). float32 is kept; other real types become float64.

    Returns
    -------
    csr_array of shape (n, m)
        Sorted indices. It may share memory with X, which is never written to.

    Raises
    ------
    TypeError
        If X is not real.
    ValueError
        If X is not two-dimensional, has no known entry, stores an entry twice, or has an infinity
        (or, if sparse, a NaN).

    Examples
    --------
    >>> X = observed_entries([[1.0, float("nan")], [0.0, 4.0]])
    >>> X.nnz, X.data
    (3, array([1., 0., 4.]))
    """
    from scipy import sparse

    csr = _from_sparse(X) if sparse.issparse(X) else _from_dense(X)
    if csr.nnz == 0:
        raise ValueError(f"X must have at least one known entry; got none in shape {csr.shape}.")
    bad = np.flatnonzero(~np.isfinite(csr.data))
    if bad.size:
        coo = csr.tocoo()
        row, column = (int(axis[bad[0]]) for axis in coo.coords)
        name = "NaN" if np.isnan(csr.data[bad[0]]) else "infinity"
        raise ValueError(
            f"X must have finite known entries; got {name} at row {row}, column {column}."
        )
    return csr


def hold_out(X: csr_array, fraction: float, random_state: Any) -> tuple[csr_array, Entries]:
    """Take a random part of the known entries out of a matrix.

    Parameters
    ----------
    X : csr_array of shape (n, m)
        As `observed_entries` returns it.
    fraction : float
        Share of the entries to take out, above 0 and below 1; at least one is.
    random_state : int, Generator, RandomState or None
        Seed of the choice.

    Returns
    -------
    kept : csr_array of shape (n, m)
    held_out : Entries

    Raises
    ------
    ValueError
        If `fraction` is out of its range, or X has fewer than two entries.
    """
    from scipy import sparse

    if not 0 < fraction < 1:
        raise ValueError(f"held_out must be between 0 and 1; got {fraction}.")
    if X.nnz < 2:
        raise ValueError(f"X must have at least 2 known entries to hold some out; got {X.nnz}.")
    rng = checked_generator(random_state)
    size = min(max(1, round(fraction * X.nnz)), X.nnz - 1)
    taken = np.zeros(X.nnz, bool)
    taken[rng.choice(X.nnz, size, replace=False)] = True
    coo = X.tocoo()
    rows, columns = (axis.astype(np.intp, copy=False) for axis in coo.coords)
    kept = sparse.coo_array((X.data[~taken], (rows[~taken], columns[~taken])), shape=X.shape)
    return kept.tocsr(), Entries(rows[taken], columns[taken], X.data[taken])


def _from_sparse(X: Any) -> csr_array:
    from scipy import sparse

    dtype = _working_dtype(X.dtype)
    _check_two_dimensional(X.shape)
    coo = X.tocoo()
    rows, columns = coo.row, coo.col
    order = np.lexsort((columns, rows))
    rows, columns = rows[order], columns[order]
    twice = np.flatnonzero((np.diff(rows) == 0) & (np.diff(columns) == 0))
    if twice.size:
        raise ValueError(
            f"X must store each entry once; got row {rows[twice[0]]}, column {columns[twice[0]]} "
            "more than once: add them up with X.sum_duplicates() if that is what is meant."
        )
    indptr = np.searchsorted(rows, np.arange(X.shape[0] + 1))
    data = coo.data[order].astype(dtype, copy=False)
    return sparse.csr_array((data, columns, indptr), shape=X.shape)


def _from_dense(X: Any) -> csr_array:
    from scipy import sparse

    array = np.ma.getdata(X) if isinstance(X, np.ma.MaskedArray) else np.asarray(X)
    dtype = _working_dtype(array.dtype)
    _check_two_dimensional(array.shape)
    known = ~np.isnan(array) if array.dtype.kind == "f" else np.ones(array.shape, bool)
    rows, columns = np.nonzero(known & ~np.ma.getmaskarray(X))
    data = array[rows, columns].astype(dtype, copy=False)
    return sparse.coo_array((data, (rows, columns)), shape=array.shape).tocsr()


def _working_dtype(given: np.dtype[Any]) -> np.dtype[Any]:
    if given.kind not in "fiub":
        raise TypeError(f"X must hold real numbers; got dtype {given}.")
    single = given.kind == "f" and given.itemsize <= 4
    return np.dtype(np.float32 if single else np.float64)


def _check_two_dimensional(shape: tuple[int, ...]) -> None:
    if len(shape) != 2:
        raise ValueError(f"X must be two-dimensional; got shape {shape}.")

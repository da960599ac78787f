"""Truncated singular value decompositions on a cluster."""

from __future__ import annotations

import math
import operator
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lowrank.arguments import checked_generator
from lowrank.solvers.orthonormal import extend_basis
from lowrank.spark.rows import (
    Centred,
    Part,
    Rows,
    column_means,
    lists,
    open_rows,
    product,
    table_of,
)
from lowrank.svd import SVD, ConvergenceWarning, with_signs

__all__ = [
    "Decomposed",
    "DistributedSVD",
    "Eigenpairs",
    "block_size",
    "decomposed",
    "leading_eigenpairs",
    "truncated_svd",
]

Doubles = NDArray[np.float64]

_TOL = {True: 1e-4, False: 1e-8}  # by whether the values are float32, as for the local engine
_PROBES = 7
_PROBE_FACTOR = 10 * math.sqrt(2 / math.pi)  # see lowrank.svd
_GRAM_UP_TO = 1000  # columns up to which A'A is formed in one pass
_COLLECTED = 2**30  # bytes of U that are brought to the driver


@dataclass(frozen=True, eq=False, repr=False)
class DistributedSVD(SVD):
    """An `SVD` of a matrix on the cluster.

    Attributes
    ----------
    n_rows : int
        Rows of the matrix.
    left : str or None
        Where U was written, as a table with the columns u (arrays) and order (if there is one);
        the attribute ``U`` then has no rows. None if ``U`` holds it.
    """

    n_rows: int
    left: str | None

    @property
    def shape(self) -> tuple[int, int]:
        """Shape (n, m) of the decomposed matrix."""
        return self.n_rows, self.Vt.shape[1]


@dataclass(frozen=True, eq=False)
class Decomposed:
    """A decomposition with what `lowrank.spark.PCA` needs besides.

    Attributes
    ----------
    svd : DistributedSVD
    row : float64 ndarray of shape (m,)
        What was subtracted from each row.
    means : float64 ndarray of shape (m,)
        Of the columns.
    score_sums : float64 ndarray of shape (k,)
        Sums of the columns of U diag(s).
    total : float
        Sum of squares about the column means.
    """

    svd: DistributedSVD
    row: Doubles
    means: Doubles
    score_sums: Doubles
    total: float


def truncated_svd(
    rows: Any,
    k: int,
    *,
    values: str = "values",
    indices: str | None = None,
    order: str | None = None,
    n_columns: int | None = None,
    tol: float | None = None,
    center: ArrayLike | bool | None = None,
    random_state: int | np.random.Generator | np.random.RandomState | None = None,
    left: str | None = None,
) -> DistributedSVD:
    """Compute the k largest singular values of a matrix on the cluster, with their vectors.

    The right vectors are found as eigenvectors of A'A, by block Lanczos, or directly where there
    are few columns; each product is one pass over the rows. All of it is done in float64. Squaring
    A costs digits of the smallest values: one of relative size r has a relative error of about
    1e-16 / r^2.

    Parameters
    ----------
    rows : DataFrame or str
        A table of Spark with one matrix row per row, or its path in Parquet. It is read once per
        pass: `DataFrame.cache` it if it fits the memory of the cluster.
    k : int
        Rank, from 0 to min(n, m).
    values : str
        Column of arrays of numbers: whole rows, or the entries at `indices`.
    indices : str, optional
        Column of arrays of column indices, for a sparse matrix.
    order : str, optional
        Column by which the rows of U are ordered (it is in the table at `left`). Without it they
        are in the order in which Spark collects the table.
    n_columns : int, optional
        Number of columns m; by default one more than the largest index.
    tol : float, optional
        Largest residual that is accepted, relative to ``s[0]``. By default 1e-8, or 1e-4 if the
        values are float32.
    center : bool or array-like of shape (m,), optional
        True subtracts the column means, an array itself, from each row; sparse rows stay sparse.
    random_state : int, Generator, RandomState or None
        Seed of the start vectors.
    left : str, optional
        Path to write U to, as Parquet, instead of bringing it to the driver.

    Returns
    -------
    DistributedSVD
        As `lowrank.SVD`; float32 where the values were. Since U is computed as A V / s, the first
        row of the residuals is zero.

    Raises
    ------
    ImportError
        If PySpark is not installed.
    TypeError
        If a column is not of the type that it must be.
    ValueError
        If the rows are not those of a finite matrix, an argument is out of its range, or U is too
        large for the driver and `left` is not given.

    Warns
    -----
    ConvergenceWarning
        If a residual is above `tol`.

    References
    ----------
    Halko, Martinsson & Tropp (2011), "Finding structure with randomness"; Golub and Underwood
    (1977), "The block Lanczos method for computing eigenvalues".
    """
    matrix_rows = open_rows(rows, values=values, indices=indices, order=order, n_columns=n_columns)
    return decomposed(
        matrix_rows, k, tol=tol, center=center, random_state=random_state, left=left
    ).svd


def decomposed(
    rows: Rows,
    k: Any,
    *,
    tol: float | None,
    center: Any,
    random_state: Any,
    left: str | None = None,
    with_left: bool = True,
) -> Decomposed:
    """Decompose rows that were checked, as `truncated_svd` does, `with_left` vectors or not."""
    start = time.perf_counter()
    k = _checked_rank(k, min(rows.shape))
    tol = _TOL[rows.is_single] if tol is None else _checked_tol(tol)
    rng = checked_generator(random_state)
    if with_left and left is None and 8 * rows.shape[0] * k > _COLLECTED:
        raise ValueError(
            f"U takes {8 * rows.shape[0] * k / 1e9:.1f} GB, too much for the driver; "
            "give left='PATH' to write it as Parquet."
        )
    means, centre = column_means(rows), None
    if center is not None and center is not False:
        centre = means if center is True else _checked_row(center, rows.shape[1])
    operator_of = Centred(rows, centre)
    V, passes, method = _right_vectors(operator_of, k, tol, rng)
    found = _certified(operator_of, V, rng)
    signed = with_signs(np.zeros((0, k)), found.s, found.V.T)
    s, Vt = (np.ascontiguousarray(each, np.float64) for each in signed[1:])
    worst = float(found.residuals.max(initial=0.0)) / float(s[0]) if k and s[0] > 0 else 0.0
    _warn_if_above(tol, worst, passes + 2, method)
    U = _left_vectors(operator_of, Vt, s, rng, left) if with_left else np.zeros((0, k))
    dtype = np.float32 if rows.is_single else np.float64
    whole = k == min(rows.shape)
    svd = DistributedSVD(
        U=U.astype(dtype),
        s=s.astype(dtype),
        Vt=Vt.astype(dtype),
        residuals=np.stack([np.zeros(k), found.residuals]),
        frobenius_norm=math.sqrt(found.squares),
        spectral_error_bound=0.0 if whole else found.bound,
        passes=passes + 2 + bool(k and with_left),  # the check, and the certificate
        seconds=time.perf_counter() - start,
        method=method,
        n_rows=rows.shape[0],
        left=left,
    )
    row = np.zeros(rows.shape[1]) if centre is None else centre
    off = means - row
    total = found.squares - rows.shape[0] * float(off @ off)
    signs = np.where((Vt * found.V.T).sum(axis=1) < 0, -1.0, 1.0)
    return Decomposed(svd, row, means, found.sums * signs, max(total, 0.0))


@dataclass(frozen=True, eq=False)
class _Certified:
    """Right vectors in the order of falling singular values, and what vouches for them."""

    V: Doubles
    s: Doubles
    residuals: Doubles
    bound: float
    squares: float
    sums: Doubles


def _right_vectors(
    A: Centred, k: int, tol: float, rng: np.random.Generator
) -> tuple[Doubles, int, str]:
    """Return V, shape (m, k), the passes it took and the method."""
    m = A.n_columns
    if k == 0:
        return np.zeros((m, 0)), 1, "gram"
    if m <= _GRAM_UP_TO:
        gram = A.gram_product(np.eye(m))
        _, vectors = np.linalg.eigh((gram + gram.T) / 2)
        return np.ascontiguousarray(vectors[:, ::-1][:, :k]), 2, "gram"
    found = leading_eigenpairs(A.gram_product, m, k, tol, rng)
    return found.vectors, 1 + found.passes, "lanczos"


def _certified(A: Centred, V: Doubles, rng: np.random.Generator) -> _Certified:
    """Measure singular values, residuals, norms and the error bound, all in one pass.

    As `lowrank.svd.certify`: normal vectors from which the directions V are taken out go
    along, so that what A makes of them is what the rank-k approximation leaves out.
    """
    m, k = V.shape
    probes = rng.standard_normal((m, _PROBES))
    probes -= V @ (V.T @ probes)
    width, row = k + _PROBES, A.row
    shared = A.rows.frame.sparkSession.sparkContext.broadcast(np.hstack([V, probes]))
    about = np.zeros(m) if row is None else row

    def part(rows: Part) -> Doubles:
        Y = product(rows, shared.value, row)
        distances = np.zeros((1, width))
        distances[0, 0] = rows.squared_distances(about).sum()
        squares = np.square(Y).sum(axis=0)
        return np.vstack([rows.rmatmat(Y), Y.sum(axis=0), squares, distances, Y[:, :k].T @ Y])

    found = A.rows.summed(part, (m + 3 + k, width))
    shared.destroy()
    back, squares, inner = A.corrected(found[: m + 1]), found[m + 1], found[m + 3 :]
    s = np.sqrt(squares[:k])
    order = np.argsort(-s, kind="stable")
    safe = np.where(s > 0, s, 1.0)
    right = np.linalg.norm(back[:, :k] / safe - V * s, axis=0)
    twice = np.linalg.norm(back[:, k:] - V @ inner[:, k:], axis=0)
    once = _PROBE_FACTOR * float(np.sqrt(squares[k:]).max())
    bound = min(once, math.sqrt(_PROBE_FACTOR * float(twice.max())))
    return _Certified(
        np.ascontiguousarray(V[:, order]),
        s[order],
        right[order],
        bound,
        float(found[m + 2, 0]),
        found[m, :k][order],
    )


def _left_vectors(
    A: Centred, Vt: Doubles, s: Doubles, rng: np.random.Generator, left: str | None
) -> Doubles:
    """Return U = A V / s, or write it; columns of zero singular values are completed on the way.

    Where U is written, such columns are zero: they cannot be completed row by row.
    """
    k = s.size
    negligible = s <= 1e-14 * max(A.rows.shape) * s.max(initial=0.0)
    scaled = Vt.T / np.where(negligible, np.inf, s)
    frame = A.rows.mapped(_left_rows(A, scaled), _left_schema(A.rows))
    if left is not None:
        frame.write.parquet(left)
        return np.zeros((0, k))
    if not k:
        return np.zeros((A.rows.shape[0], 0))
    table = table_of(frame)
    if A.rows.is_ordered:
        table = table.sort_by("order")
    U = _doubles(table)
    if negligible.any():
        kept = np.array(U[:, ~negligible], order="C", copy=True)
        noise = rng.standard_normal((len(U), int(negligible.sum())))
        U[:, negligible] = extend_basis(kept, noise, 1.0, rng)[0]
    return U


def _left_rows(A: Centred, scaled: Doubles) -> Callable[[Part, Any], Iterator[Any]]:
    row, is_ordered, k = A.row, A.rows.is_ordered, scaled.shape[1]

    def run(rows: Part, batch: Any) -> Iterator[Any]:
        import pyarrow as pa

        U = np.ascontiguousarray(product(rows, scaled, row))
        offsets = pa.array(np.arange(len(U) + 1, dtype=np.int32) * k)
        arrays = [pa.ListArray.from_arrays(offsets, pa.array(U.ravel()))]
        names = ["u"]
        if is_ordered:
            arrays.append(batch.column("order"))
            names.append("order")
        yield pa.RecordBatch.from_arrays(arrays, names)

    return run


def _left_schema(rows: Rows) -> str:
    order = f", order {dict(rows.frame.dtypes)['order']}" if rows.is_ordered else ""
    return f"u array<double>{order}"


def _doubles(table: Any) -> Doubles:
    indptr, values = lists(table, "u")
    return values.reshape(len(indptr) - 1, -1).copy()


def _checked_rank(k: Any, largest: int) -> int:
    try:
        rank = operator.index(k)
    except TypeError:
        raise TypeError(f"k must be an integer; got {type(k).__name__}.") from None
    if not 0 <= rank <= largest:
        raise ValueError(f"k must be between 0 and {largest} (min(A.shape)); got {rank}.")
    return rank


def _checked_tol(tol: float) -> float:
    if not 0 < tol < math.inf:
        raise ValueError(f"tol must be positive; got {tol}.")
    return float(tol)


def _checked_row(center: Any, n_columns: int) -> Doubles:
    row = np.asarray(center, np.float64)
    if row.shape != (n_columns,) or not np.isfinite(row).all():
        raise ValueError(
            f"center must be a bool or {n_columns} finite numbers (A.shape[1]); "
            f"got shape {row.shape}."
        )
    return row


def _warn_if_above(tol: float, figure: float, passes: int, method: str) -> None:
    if figure <= tol:
        return
    warnings.warn(
        f"The largest residual is {figure:.1e} relative to s[0], above tol={tol:.1e}, "
        f"after {passes} passes with method={method!r}; ask for a larger tol or a smaller k.",
        ConvergenceWarning,
        stacklevel=4,
    )


Doubles = NDArray[np.float64]
Product = Callable[[Doubles], Doubles]

_SPARE = 8  # vectors of a block beyond those wanted: a pass costs the cluster hardly more
_WIDEST = 64
_MOST_PASSES = 60


@dataclass(frozen=True, eq=False)
class Eigenpairs:
    """The k largest eigenvalues, descending, and their vectors in orthonormal columns.

    Attributes
    ----------
    values : ndarray of shape (k,)
    vectors : ndarray of shape (m, k)
    passes : int
        Products that were made.
    """

    values: Doubles
    vectors: Doubles
    passes: int


def block_size(k: int, m: int) -> int:
    """Return the number of vectors that a product is made with."""
    return min(m, k + _SPARE, max(k, _WIDEST))


def leading_eigenpairs(
    product: Product, m: int, k: int, accuracy: float, rng: np.random.Generator
) -> Eigenpairs:
    """Find the k largest eigenpairs of a positive semidefinite matrix G of order m.

    Parameters
    ----------
    product : callable
        From a block of shape (m, b) to G times it.
    m, k : int
        1 <= k <= m.
    accuracy : float
        What ||G v - theta v|| may be, relative to ``theta[0]``, times sqrt(theta / theta[0]).
    rng : Generator
        Source of the start vectors.

    References
    ----------
    Wu and Simon (2000), "Thick-restart Lanczos method for large symmetric eigenvalue problems";
    Golub and Underwood (1977), "The block Lanczos method for computing eigenvalues".
    """
    space = _Space(product, m, k, rng)
    while True:
        space.extend()
        values, rotation, residuals = space.ritz()
        done = min(k, len(values))
        top = max(float(values[0]), 0.0)
        floor = np.sqrt(np.finfo(np.float64).eps) * top
        allowed = accuracy * np.sqrt(top * np.maximum(values[:done], floor))
        converged = len(values) >= k and bool((residuals[:done] <= allowed).all())
        if converged or space.is_exhausted or space.passes >= _MOST_PASSES:
            vectors = space.vectors(rotation[:, :k])
            return Eigenpairs(values[:k], vectors, space.passes)
        if space.is_full:
            space.restart(values, rotation)


class _Space:
    """A basis V with G V = V T + V_next (0 ... 0 tail): `size` columns done, `width` to go on."""

    def __init__(self, product: Product, m: int, k: int, rng: np.random.Generator) -> None:
        self.passes = 0
        self._product, self._rng, self._k = product, rng, k
        self._block = block_size(k, m)
        self._limit = min(m, 2 * k + 4 * self._block)
        self._V: Doubles = np.zeros((m, min(m, self._limit + self._block)))
        self._T: Doubles = np.zeros((self._limit + self._block, self._limit + self._block))
        start = rng.standard_normal((m, self._block))
        first, _, _ = extend_basis(self._V[:, :0], start, 1.0, rng)
        self._size, self._width = 0, first.shape[1]
        self._V[:, : self._width] = first
        self._tail: NDArray[np.floating[Any]] = np.zeros((0, 0))
        self._scale = 0.0

    @property
    def is_exhausted(self) -> bool:
        """Whether the basis spans the whole space."""
        return bool(self._size == self._V.shape[0])

    @property
    def is_full(self) -> bool:
        """Whether another block would exceed the room."""
        return bool(self._size + self._width > self._limit)

    def extend(self) -> None:
        """Multiply the block to go on with, and orthogonalise the product."""
        old, new = self._size, self._size + self._width
        product = self._product(self._V[:, old:new])
        self.passes += 1
        self._scale = max(self._scale, float(np.linalg.norm(product, axis=0).max()))
        following, inside, tail = extend_basis(self._V[:, :new], product, self._scale, self._rng)
        self._T[:new, old:new] = inside
        self._T[old:new, :new] = inside.T
        self._tail, self._last = tail, (old, new)
        self._size, self._width = new, following.shape[1]
        self._V[:, new : new + self._width] = following

    def ritz(self) -> tuple[Doubles, Doubles, Doubles]:
        """Return Ritz values, descending, the rotation to their vectors, and residual norms."""
        T = self._T[: self._size, : self._size]
        values, rotation = np.linalg.eigh((T + T.T) / 2)
        values, rotation = values[::-1], rotation[:, ::-1]
        old, new = self._last
        residuals = np.linalg.norm(self._tail @ rotation[old:new], axis=0)
        return values, rotation, residuals

    def vectors(self, rotation: Doubles) -> Doubles:
        """Return combinations of the basis."""
        combined: Doubles = self._V[:, : self._size] @ rotation
        return combined

    def restart(self, values: Doubles, rotation: Doubles) -> None:
        """Shrink the basis to the best Ritz vectors; the block to go on with stays."""
        keep = min(self._k + self._block, self._size)
        following = self._V[:, self._size : self._size + self._width].copy()
        self._V[:, :keep] = self.vectors(rotation[:, :keep])
        self._V[:, keep : keep + self._width] = following
        self._T[:] = 0.0
        np.fill_diagonal(self._T[:keep, :keep], values[:keep])
        self._size = keep

"""Truncated singular value decompositions and principal components on a cluster."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lowrank import pca
from lowrank.arguments import checked_center, checked_generator, checked_rank, checked_tol
from lowrank.errors import ArgumentError
from lowrank.samples import negligible_value, require_samples
from lowrank.solvers.lanczos import leading_eigenvectors
from lowrank.solvers.orthonormal import extend_basis
from lowrank.spark.arrow import list_array, lists, map_in_arrow, table_of
from lowrank.spark.rows import Rows, open_rows, product
from lowrank.svd import SVD, ConvergenceWarning, with_signs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from lowrank.arguments import RandomStateLike

Doubles = NDArray[np.float64]

_PROBES = 7
_PROBE_FACTOR = 10 * math.sqrt(2 / math.pi)  # see lowrank.svd
_GRAM_UP_TO = 1000  # maximum number of columns for which A'A is formed in one pass
_COLLECTED = 2**30  # maximum size of U on the driver in bytes
_SPARE = 8  # additional vectors in a block; a pass hardly takes longer with them
_WIDEST = 64  # maximum number of vectors in a block
_MOST_PASSES = 60


@dataclass(frozen=True, eq=False, repr=False)
class DistributedSVD(SVD):
    """An `SVD` of a matrix on the cluster.

    Attributes
    ----------
    n_rows : int
        Number of rows of the matrix.
    left : str or None
        Path of U as Parquet, with the columns u (arrays) and order. If given, ``U`` has no rows.
    """

    n_rows: int
    left: str | None

    @property
    def shape(self) -> tuple[int, int]:
        """Shape (n, m) of the decomposed matrix."""
        return self.n_rows, self.Vt.shape[1]


def truncated_svd(
    rows: DataFrame | str,
    k: int,
    *,
    values: str = "values",
    indices: str | None = None,
    order: str | None = None,
    n_columns: int | None = None,
    tol: float | None = None,
    center: ArrayLike | bool | None = None,
    random_state: RandomStateLike = None,
    left: str | None = None,
) -> DistributedSVD:
    """Compute the k largest singular values and vectors of a matrix on the cluster.

    The right vectors are computed as eigenvectors of A'A in float64: by block Lanczos, where each
    product is one pass over the rows, or directly if there are few columns. A singular value of
    relative size r has a relative error of about 1e-16 / r^2.

    Parameters
    ----------
    rows : DataFrame or str
        A Spark table with one matrix row per row, or its path in Parquet. Each pass reads it:
        `DataFrame.cache` it if it fits in the memory of the cluster.
    k : int
        Rank, from 0 to min(n, m).
    values, indices : str
        Names of array columns. For dense rows, `values` are the rows; for sparse rows, they are the
        entries, and `indices` their columns.
    order : str, optional
        Column by which the rows of U are ordered, by default the order in which Spark collects
        them.
    n_columns : int, optional
        Number of columns m, by default one more than the largest index.
    tol, center, random_state
        As for `lowrank.truncated_svd`; sparse rows stay sparse.
    left : str, optional
        Path to write U to, as Parquet, instead of collecting it on the driver.

    Returns
    -------
    DistributedSVD
        As `lowrank.SVD`; float32 if the values are. Since U is computed as A V / s, the first row
        of the residuals is zero.

    Raises
    ------
    ImportError, TypeError, ValueError
        If PySpark is not installed, a column or an argument has the wrong type, the rows are not
        those of a finite matrix, an argument is out of its range, or U is too large for the driver.

    References
    ----------
    Halko, Martinsson & Tropp (2011), "Finding structure with randomness".
    Golub and Underwood (1977), "The block Lanczos method for computing eigenvalues".
    """
    A = open_rows(rows, values=values, indices=indices, order=order, n_columns=n_columns)
    return decompose(A, k, tol=tol, center=center, random_state=random_state, left=left)[0]


def decompose(
    A: Rows,
    k: Any,
    *,
    tol: float | None,
    center: ArrayLike | bool | None,
    random_state: RandomStateLike,
    left: str | None = None,
    with_left: bool = True,
) -> tuple[DistributedSVD, Doubles, Doubles, Doubles]:
    """Decompose checked rows X.

    Returns the SVD of A = X - 1 row', the row, the column means of X, and the column sums of
    U diag(s).

    Raises
    ------
    ArgumentError
    """
    start = time.perf_counter()
    (n, m), dtype = A.shape, np.dtype(np.float32 if A.is_single else np.float64)
    k, tol = checked_rank(k, min(n, m)), checked_tol(tol, dtype)
    rng, row = checked_generator(random_state), checked_center(center, m)
    if with_left and left is None and 8 * n * k > _COLLECTED:
        raise ArgumentError(
            f"U takes {8 * n * k / 1e9:.1f} GB, too much for the driver; "
            "use left='PATH' to write it as Parquet."
        )
    means = A.column_means()
    A = replace(A, row=means if row is True else row)
    V, passes, method = _right_vectors(A, k, tol, rng)
    V, s, residuals, bound, squares, sums = _certified(A, V, rng)
    passes += 2  # for the means and the certificate
    worst = float(residuals.max(initial=0.0)) / float(s[0]) if k and s[0] > 0 else 0.0
    if worst > tol:
        warnings.warn(
            f"The largest residual is {worst:.1e} relative to s[0], above tol={tol:.1e}, "
            f"after {passes} passes with method={method!r}; use a larger tol or a smaller k.",
            ConvergenceWarning,
            stacklevel=3,
        )
    U = _left_vectors(A, V, s, rng, left) if with_left else np.zeros((0, k))
    svd = DistributedSVD(
        U=U.astype(dtype),
        s=s.astype(dtype),
        Vt=np.ascontiguousarray(V.T, dtype),
        residuals=np.stack([np.zeros(k), residuals]),
        frobenius_norm=math.sqrt(squares),
        spectral_error_bound=0.0 if k == min(n, m) else bound,
        passes=passes + bool(k and with_left),
        seconds=time.perf_counter() - start,
        method=method,
        n_rows=n,
        left=left,
    )
    return svd, np.zeros(m) if A.row is None else A.row, means, sums


def _right_vectors(
    A: Rows, k: int, tol: float, rng: np.random.Generator
) -> tuple[Doubles, int, str]:
    """Return V, shape (m, k), with deterministic signs, the number of passes, and the method."""
    m, passes, method = A.shape[1], 0, "gram" if A.shape[1] <= _GRAM_UP_TO else "lanczos"

    def gram_product(X: Any) -> Doubles:
        nonlocal passes
        passes += 1
        return A.gram_product(X)

    V: Any = np.zeros((m, 0))
    if k and method == "gram":
        gram = gram_product(np.eye(m))
        V = np.linalg.eigh((gram + gram.T) / 2)[1][:, ::-1][:, :k]
    elif k:
        width, double = min(k + _SPARE, max(k, _WIDEST)), np.dtype(np.float64)
        given = gram_product, m, double, k, tol, rng, _MOST_PASSES
        V = np.linalg.qr(leading_eigenvectors(*given, block=width, check_every=1)[0])[0]
    _, _, Vt = with_signs(np.zeros((0, k)), np.zeros(k), V.T)
    return np.ascontiguousarray(Vt.T), passes, method


def _certified(
    A: Rows, V: Doubles, rng: np.random.Generator
) -> tuple[Doubles, Doubles, Doubles, float, float, Doubles]:
    """Compute s, residuals and bounds for V in one pass, with probes as in `lowrank.svd.certify`.

    Returns V, s and the residuals in order of descending singular values, a bound on the spectral
    norm of the remainder, ||A||_F^2, and the column sums of A V.
    """
    m, k = V.shape
    probes = rng.standard_normal((m, _PROBES))
    probes -= V @ (V.T @ probes)
    width, row = k + _PROBES, A.row
    shared = A.frame.sparkSession.sparkContext.broadcast(np.hstack([V, probes]))

    def products(block: Any) -> Doubles:
        Y = product(block, shared.value, row)
        if isinstance(block, np.ndarray):
            squares = np.square(block if row is None else block - row).sum()
        else:  # replace r^2, summed for all columns, by (x - r)^2 at stored entries
            r = 0.0 if row is None else row[block.indices]
            squares = (np.square(block.data - r) - np.square(r)).sum()
            squares += 0.0 if row is None else len(Y) * (row @ row)
        sums = Y.sum(axis=0), np.square(Y).sum(axis=0), np.full(width, squares)
        return np.vstack([block.T @ Y, *sums, Y[:, :k].T @ Y])

    found = A.summed(products, (m + 3 + k, width))
    shared.destroy()
    back, sums, inner = A.corrected(found[: m + 1]), found[m], found[m + 3 :]
    s, beyond = np.sqrt(found[m + 1, :k]), np.sqrt(found[m + 1, k:])
    residuals = np.linalg.norm(back[:, :k] / np.where(s > 0, s, 1.0) - V * s, axis=0)
    twice = np.linalg.norm(back[:, k:] - V @ inner[:, k:], axis=0).max()
    bound = min(_PROBE_FACTOR * float(beyond.max()), math.sqrt(_PROBE_FACTOR * float(twice)))
    order = np.argsort(-s, kind="stable")
    squares = float(found[m + 2, 0])
    return V[:, order], s[order], residuals[order], bound, squares, sums[:k][order]


def _left_vectors(
    A: Rows, V: Doubles, s: Doubles, rng: np.random.Generator, left: str | None
) -> Doubles:
    """Return U = A V / s, or write it; columns of zero singular values are zero."""
    negligible = s <= 1e-14 * max(A.shape) * s.max(initial=0.0)
    scaled, row, read = V / np.where(negligible, np.inf, s), A.row, A.reader()
    types = dict(A.frame.dtypes)
    is_ordered = "order" in types

    def vectors(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        for batch in batches:
            U = np.ascontiguousarray(product(read(batch), scaled, row))
            order = {"order": batch.column("order")} if is_ordered else {}
            yield pa.RecordBatch.from_pydict({"u": list_array(U)} | order)

    order = f", order {types['order']}" if is_ordered else ""
    frame = map_in_arrow(A.frame, vectors, f"u array<double>{order}")
    if left is not None:
        frame.write.parquet(left)
        return np.zeros((0, s.size))
    if not s.size:
        return np.zeros((A.shape[0], 0))
    table = table_of(frame)
    U = lists(table.sort_by("order") if is_ordered else table, "u")[1].reshape(-1, s.size).copy()
    if negligible.any():
        kept = np.array(U[:, ~negligible], order="C")
        noise = rng.standard_normal((len(U), int(negligible.sum())))
        U[:, negligible] = extend_basis(kept, noise, 1.0, rng)[0]
    return U


class PCA(pca.PCA):
    """Principal component analysis of samples on the cluster.

    Once fitted, it is a `lowrank.PCA`, whose methods work on local arrays. The scores of the
    samples on the cluster are ``U diag(s)`` of `lowrank.spark.truncated_svd` with the same centre.

    Parameters
    ----------
    n_components : int
        Number of components k, from 0 to min(n_samples, n_features).
    center : {"exact", False}, default "exact"
        "exact" subtracts the column means; sparse rows stay sparse. False subtracts nothing.
    ddof, whiten, tol, random_state
        As for `lowrank.PCA`.
    """

    def __init__(
        self,
        n_components: int,
        *,
        center: str | bool = "exact",
        ddof: int = 1,
        whiten: bool = False,
        tol: float | None = None,
        random_state: RandomStateLike = None,
    ) -> None:
        rest: dict[str, Any] = {"ddof": ddof, "whiten": whiten, "tol": tol}
        super().__init__(n_components, center=center, random_state=random_state, **rest)

    def fit(
        self,
        rows: DataFrame | str,
        y: Any = None,
        *,
        values: str = "values",
        indices: str | None = None,
        n_columns: int | None = None,
    ) -> Self:
        """Find the components of samples on the cluster.

        Parameters
        ----------
        rows, values, indices, n_columns
            One sample per row, as for `lowrank.spark.truncated_svd`.
        y : ignored

        Raises
        ------
        TypeError, ValueError
            If `lowrank.spark.truncated_svd` raises it, or there are too few samples.
        """
        if self.center != "exact" and self.center is not False:
            raise ArgumentError(f"center must be 'exact' or False; got {self.center!r}.")
        A = open_rows(rows, values=values, indices=indices, order=None, n_columns=n_columns)
        n = A.shape[0]
        require_samples(n, self.ddof)
        svd, row, means, sums = decompose(
            A,
            self.n_components,
            tol=self.tol,
            center=self.center == "exact",
            random_state=self.random_state,
            with_left=False,
        )
        squares = float(svd.frobenius_norm or 0.0) ** 2
        variances = (svd.s.astype(np.float64) ** 2 - np.square(sums) / n) / (n - self.ddof)
        self.n_features_in_ = A.shape[1]
        self._keep(
            pca.Directions(
                components=svd.Vt,
                singular_values=svd.s,
                variances=np.maximum(variances, 0.0).astype(svd.s.dtype),
                row=row,
                alignment=None,
                negligible=negligible_value(svd.s, row, n, svd.residuals.max(initial=0.0)),
                squares=squares,
                total=max(squares - n * float(np.square(means - row).sum()), 0.0),
                means=means,
                n_samples=n,
            )
        )
        return self

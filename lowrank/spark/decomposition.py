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
from lowrank.arguments import (
    checked_center,
    checked_generator,
    checked_rank,
    checked_tol,
)
from lowrank.directions import PrincipalDirections
from lowrank.errors import ArgumentError
from lowrank.samples import require_samples, rounding_limits
from lowrank.solvers.lanczos import leading_eigenvectors
from lowrank.solvers.lapack import lapack_svd
from lowrank.solvers.orthonormal import extend_basis
from lowrank.spark.arrow import list_array, lists, map_in_arrow, table_of
from lowrank.spark.rows import Rows, open_rows, product
from lowrank.svd import (
    SVD,
    ConvergenceWarning,
    residual_excess,
    residual_message,
    with_signs,
)

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
    random_state: RandomStateLike = 0,
    left: str | None = None,
) -> DistributedSVD:
    """Compute the k largest singular values and vectors of a matrix on the cluster.

    The right vectors are computed as eigenvectors of A'A in float64: by block Lanczos, where each
    product is one pass over the rows, or directly if there are up to 1,000 columns. A singular
    value of relative size r then has a relative error of up to about 1e-16 / r^2. If that is above
    `tol` and there are few columns, they are computed from a QR decomposition instead, in two more
    passes, with an error of about 1e-15 / r.

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
    A = open_rows(
        rows, values=values, indices=indices, order=order, n_columns=n_columns
    )
    return decompose(
        A, k, tol=tol, center=center, random_state=random_state, left=left
    ).svd


@dataclass(frozen=True)
class Decomposed:
    """The SVD of A = X - 1 row', and sums over the rows."""

    svd: DistributedSVD
    values: Doubles  # singular values, in float64
    row: Doubles
    means: Doubles  # column means of X
    sums: Doubles  # column sums of U diag(s)
    column_squares: Doubles  # sums of squares of the columns of A


@dataclass(frozen=True)
class _Certified:
    """Right vectors, singular values in descending order, and what one pass measures with them."""

    V: Doubles
    s: Doubles
    residuals: Doubles
    bound: float  # of the spectral norm of the remainder
    sums: Doubles  # column sums of A V
    column_squares: Doubles  # sums of squares of the columns of A

    @property
    def squares(self) -> float:
        """||A||_F^2."""
        return float(self.column_squares.sum())

    def excess(self, tol: float) -> float:
        """Return the largest residual in units of its tolerance."""
        return residual_excess(self.s, self.residuals, tol, np.dtype(np.float64))


def decompose(
    A: Rows,
    k: Any,
    *,
    tol: float | None,
    center: ArrayLike | bool | None,
    random_state: RandomStateLike,
    left: str | None = None,
    with_left: bool = True,
) -> Decomposed:
    """Decompose checked rows.

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
    triplets = _certified(A, V, rng)
    passes += 2  # for the means and the certificate
    if (
        method == "gram"
        and triplets.excess(tol) > 1
        and (R := A.triangle()) is not None
    ):
        method = "qr"
        triplets = _certified(A, _with_signs(lapack_svd(R)[2][:k]), rng)
        passes += 2
    V, s, residuals = triplets.V, triplets.s, triplets.residuals
    if triplets.excess(tol) > 1:
        message = residual_message(s, residuals, tol, passes, method)
        message += "use a larger tol or a smaller k."
        warnings.warn(message, ConvergenceWarning, stacklevel=3)
    U = _left_vectors(A, V, s, rng, left) if with_left else np.zeros((0, k))
    svd = DistributedSVD(
        U=U.astype(dtype),
        s=s.astype(dtype),
        Vt=np.ascontiguousarray(V.T, dtype),
        residuals=np.stack([np.zeros(k), residuals]),
        frobenius_norm=math.sqrt(triplets.squares),
        spectral_error_bound=0.0 if k == min(n, m) else triplets.bound,
        passes=passes + bool(k and with_left),
        seconds=time.perf_counter() - start,
        method=method,
        n_rows=n,
        left=left,
    )
    return Decomposed(
        svd=svd,
        values=s,
        row=np.zeros(m) if A.row is None else A.row,
        means=means,
        sums=triplets.sums,
        column_squares=triplets.column_squares,
    )


def _right_vectors(
    A: Rows, k: int, tol: float, rng: np.random.Generator
) -> tuple[Doubles, int, str]:
    """Return V, shape (m, k), with deterministic signs, the number of passes, and the method."""
    m, passes, method = (
        A.shape[1],
        0,
        "gram" if A.shape[1] <= _GRAM_UP_TO else "lanczos",
    )

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
    return _with_signs(V.T), passes, method


def _with_signs(Vt: Any) -> Doubles:
    """Return V with fixed signs."""
    rows = np.array(Vt, np.float64, order="C")
    with_signs(np.zeros((0, len(rows))), np.zeros(len(rows)), rows)
    return np.ascontiguousarray(rows.T)


def _certified(A: Rows, V: Doubles, rng: np.random.Generator) -> _Certified:
    """Compute s, residuals and bounds for V in one pass, with probes as `lowrank.svd.certify`."""
    m, k = V.shape
    probes = rng.standard_normal((m, _PROBES))
    probes -= V @ (V.T @ probes)
    width, row = k + _PROBES, A.row
    shared = A.frame.sparkSession.sparkContext.broadcast(np.hstack([V, probes]))

    def products(block: Any) -> Doubles:
        Y = product(block, shared.value, row)
        sums = np.zeros((m + 2 + k, width + 1))
        sums[:m, :width] = block.T @ Y
        sums[:m, width] = _column_squares(block, row)
        sums[m, :width] = Y.sum(axis=0)
        sums[m + 1, :width] = np.square(Y).sum(axis=0)
        sums[m + 2 :, :width] = Y[:, :k].T @ Y
        return sums

    added = A.summed(products, (m + 2 + k, width + 1))
    shared.destroy()
    back, sums, inner = (
        A.corrected(added[: m + 1, :width]),
        added[m, :k],
        added[m + 2 :, :width],
    )
    s, beyond = np.sqrt(added[m + 1, :k]), np.sqrt(added[m + 1, k:width])
    residuals = np.linalg.norm(back[:, :k] / np.where(s > 0, s, 1.0) - V * s, axis=0)
    twice = np.linalg.norm(back[:, k:] - V @ inner[:, k:], axis=0).max()
    order = np.argsort(-s, kind="stable")
    return _Certified(
        V=V[:, order],
        s=s[order],
        residuals=residuals[order],
        bound=min(
            _PROBE_FACTOR * float(beyond.max()), math.sqrt(_PROBE_FACTOR * float(twice))
        ),
        sums=sums[order],
        column_squares=added[:m, width],
    )


def _column_squares(block: Any, row: Doubles | None) -> Doubles:
    """Return the sums of squares of the columns of a block minus a row."""
    if isinstance(block, np.ndarray):
        return np.asarray(np.square(block if row is None else block - row).sum(axis=0))
    n, m = block.shape
    # Replace r^2, summed for all rows, by (x - r)^2 at stored entries.
    subtracted = np.zeros(m) if row is None else row
    r = subtracted[block.indices]
    changes: Any = np.bincount(
        block.indices, np.square(block.data - r) - np.square(r), m
    )
    return np.asarray(changes + n * np.square(subtracted))


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
    U = (
        lists(table.sort_by("order") if is_ordered else table, "u")[1]
        .reshape(-1, s.size)
        .copy()
    )
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
        random_state: RandomStateLike = 0,
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
        if self.center not in ("exact", True, False):
            raise ArgumentError(
                f"center must be 'exact' or False; got {self.center!r}."
            )
        A = open_rows(
            rows, values=values, indices=indices, order=None, n_columns=n_columns
        )
        n = A.shape[0]
        require_samples(n, self.ddof)
        result = decompose(
            A,
            self.n_components,
            tol=self.tol,
            center=bool(self.center),
            random_state=self.random_state,
            with_left=False,
        )
        svd, means, row = result.svd, result.means, result.row
        k, squares = len(result.values), result.column_squares
        variances = (result.values**2 - np.square(result.sums) / n) / (n - self.ddof)
        # of X, uncentred
        whole = squares + n * np.square(row) + 2 * n * row * (means - row)
        dtype: np.dtype[Any] = np.dtype(np.float32 if A.is_single else np.float64)
        eps = float(np.finfo(np.float32 if A.is_single else np.float64).eps)
        total = max(float(squares.sum()) - n * float(np.square(means - row).sum()), 0.0)
        left = float(squares.sum()) - float(np.square(result.values).sum())
        unexplained = total - float(variances.sum()) * (n - self.ddof)
        rounding = 4 * eps * max(1.0, k**0.5) * float(squares.sum())
        self.n_features_in_ = A.shape[1]
        self._keep(
            PrincipalDirections(
                components=svd.Vt,
                singular_values=result.values,
                variances=np.maximum(variances, 0.0),
                row=row,
                alignment=None,
                centering="exact" if self.center else "none",
                negligible=rounding_limits(
                    whole, A.shape, dtype, result.values, svd.Vt
                ),
                total=total,
                distortion=left if left > rounding else 0.0,
                unexplained=unexplained if unexplained > rounding else 0.0,
                means=means,
                squares=whole,
                n_samples=n,
                n_rows=n,
            ),
            dtype,
        )
        return self

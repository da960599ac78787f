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
from scipy.linalg import helmert

from lowrank import pca
from lowrank.arguments import (
    checked_center,
    checked_generator,
    checked_rank,
    checked_tol,
)
from lowrank.errors import ArgumentError
from lowrank.kernels.arrays import EPS
from lowrank.samples import require_samples
from lowrank.solvers.orthonormal import extend_basis
from lowrank.spark.arrow import list_array, map_in_arrow, table_of
from lowrank.spark.rows import Rows, open_rows
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

_COLLECTED = 2**30  # maximum size of U on the driver in bytes
_PASSES = 3  # passes over the rows: check, means and A'A


@dataclass(frozen=True, eq=False, repr=False)
class DistributedSVD(SVD):
    """An `SVD` of a matrix on the cluster.

    Attributes
    ----------
    n_rows : int
        Number of rows of the matrix.
    left : str or None
        Path of U as Parquet, with the columns u (arrays) and order. If given, ``U`` has
        no rows.
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

    The right vectors are eigenvectors of A'A, which is summed in float64 in one pass
    over the rows and has up to 4,096 columns. A singular value of relative size r has a
    relative error of up to about 1e-16 / r^2.

    Parameters
    ----------
    rows : DataFrame or str
        A Spark table with one matrix row per row, or its path in Parquet. Each pass
        reads it: `DataFrame.cache` it if it fits in the memory of the cluster.
    k : int
        Rank, from 0 to min(n, m).
    values, indices : str
        Names of array columns. For dense rows, `values` are the rows; for sparse rows,
        they are the entries, and `indices` their columns.
    order : str, optional
        Column by which the rows of U are ordered, by default the order in which Spark
        collects them.
    n_columns : int, optional
        Number of columns m, by default one more than the largest index.
    tol, center, random_state
        As for `lowrank.truncated_svd`; sparse rows stay sparse.
    left : str, optional
        Path to write U to, as Parquet, instead of collecting it on the driver.

    Returns
    -------
    DistributedSVD
        As `lowrank.SVD`; float32 if the values are. Since U is computed as A V / s, the
        first row of the residuals is zero.

    Raises
    ------
    ImportError, TypeError, ValueError
        If PySpark is not installed, a column or an argument has the wrong type, the
        rows do not form a finite matrix, an argument is out of its range, or the matrix
        has too many columns, or U too many entries, for the driver.
    """
    start = time.perf_counter()
    A = open_rows(
        rows, values=values, indices=indices, order=order, n_columns=n_columns
    )
    n, m = A.shape
    k = checked_rank(k, min(n, m))
    if left is None and 8 * n * k > _COLLECTED:
        raise ArgumentError(
            f"U takes {8 * n * k / 1e9:.1f} GB, too much for the driver; "
            "use left='PATH' to write it as Parquet."
        )
    row = checked_center(center, m)
    means = A.column_means()
    if row is not None:
        A = replace(A, row=means if row is True else row)
    gram = A.gram(means)
    squares, vectors = np.linalg.eigh(gram)
    Vt = np.ascontiguousarray(vectors.T[::-1][:k])
    with_signs(np.zeros((0, k)), np.zeros(k), Vt)
    V = np.ascontiguousarray(Vt.T)
    products = gram @ V
    s = np.sqrt(np.maximum(np.einsum("ij,ij->j", V, products), 0))
    # Rounding of A'A adds up to eps times its norm to each eigenvalue.
    rounding = EPS * float(squares[-1:].sum())
    divisors = np.where(s > 0, s, np.inf)
    # U = A V / s, so A' U - V s is A'A V / s - V s.
    residuals = np.linalg.norm(products / divisors - V * s, axis=0)
    residuals += rounding / divisors
    remainder = max(squares[: m - k].max(initial=0.0), 0.0)
    tol = checked_tol(tol, A.dtype)
    if residual_excess(s, residuals, tol, np.dtype(np.float64)) > 1:
        message = residual_message(s, residuals, tol, _PASSES, "gram")
        warnings.warn(
            f"{message}use a larger tol or a smaller k.", ConvergenceWarning, 2
        )
    U = _left_vectors(A, V, s, checked_generator(random_state), left)
    return DistributedSVD(
        U=U.astype(A.dtype),
        s=s.astype(A.dtype),
        Vt=Vt.astype(A.dtype),
        residuals=np.stack([np.zeros(k), residuals]),
        frobenius_norm=math.sqrt(np.trace(gram)),
        spectral_error_bound=(
            0.0 if k == min(n, m) else math.sqrt(remainder + rounding)
        ),
        passes=_PASSES + bool(k),
        seconds=time.perf_counter() - start,
        method="gram",
        n_rows=n,
        left=left,
    )


def _left_vectors(
    A: Rows,
    V: Doubles,
    s: Doubles,
    rng: np.random.Generator,
    left: str | None,
) -> Doubles:
    """Return U = A V / s, or write it; columns of zero singular values are zero."""
    negligible = s <= 1e-14 * max(A.shape) * s.max(initial=0.0)
    scaled = V / np.where(negligible, np.inf, s)
    shift = A.row @ scaled
    read = A.reader()

    def vectors(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        for batch in batches:
            u = list_array(np.ascontiguousarray(read(batch) @ scaled - shift))
            columns = {"u": u}
            if "order" in batch.schema.names:
                columns["order"] = batch.column("order")
            yield pa.RecordBatch.from_pydict(columns)

    schema = "u array<double>"
    types = dict(A.frame.dtypes)
    if "order" in types:
        schema += f", order {types['order']}"
    frame = map_in_arrow(A.frame, vectors, schema)
    if left is not None:
        frame.write.parquet(left)
        return np.zeros((0, s.size))
    if not s.size:
        return np.zeros((A.shape[0], 0))
    table = table_of(frame)
    if "order" in types:
        table = table.sort_by("order")
    entries = table.column("u").combine_chunks().flatten()
    U: Doubles = entries.to_numpy(zero_copy_only=False).reshape(-1, s.size).copy()
    if negligible.any():
        # The vectors of zero singular values are any that are orthogonal to the others.
        basis = np.array(U[:, ~negligible], order="C")
        noise = rng.standard_normal((len(U), int(negligible.sum())))
        U[:, negligible] = extend_basis(basis, noise, 1.0, rng)[0]
    return U


class PCA(pca.PCA):
    """Principal component analysis of samples on the cluster.

    Once fitted, it is a `lowrank.PCA`, whose methods work on local arrays. The scores
    of the samples on the cluster are ``U diag(s)`` of `lowrank.spark.truncated_svd`
    with the same centre.

    Parameters
    ----------
    n_components : int
        Number of components k, from 0 to min(n_samples, n_features).
    center : {"exact", False}, default "exact"
        "exact" subtracts the column means; sparse rows stay sparse. False subtracts
        nothing.
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
        super().__init__(
            n_components,
            center=center,
            ddof=ddof,
            whiten=whiten,
            tol=tol,
            random_state=random_state,
        )

    def fit(  # type: ignore[override]
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
        A = open_rows(rows, values=values, indices=indices, n_columns=n_columns)
        n, m = A.shape
        require_samples(n, self.ddof)
        checked_rank(self.n_components, min(n, m))
        means = A.column_means()
        squares, vectors = np.linalg.eigh(replace(A, row=means).gram(means))
        # A PCA depends on the samples only by their number, means and scatter matrix. At
        # most m + 1 samples of weight n / size have the same ones: the rows of Helmert's
        # matrix are orthonormal, and orthogonal to the means.
        size = max(2, min(n, m + 1))
        spread = np.sqrt(np.maximum(squares, 0.0)[m + 1 - size :] * size / n)
        sides = vectors[:, m + 1 - size :]
        samples = means + (helmert(size).T[:, : len(spread)] * spread) @ sides.T
        super().fit(samples.astype(A.dtype), sample_weight=np.full(size, n / size))
        self.n_samples_ = n
        return self

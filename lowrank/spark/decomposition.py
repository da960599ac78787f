"""Truncated singular value decompositions and principal components on a cluster."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Self

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
from lowrank.solvers.orthonormal import extend_basis
from lowrank.spark.arrow import list_array, lists, map_in_arrow, table_of
from lowrank.spark.rows import Gram, Rows, open_rows
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

_MOST_COLUMNS = 4096  # maximum number of columns; A'A takes 134 MB for them
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

    The right vectors are eigenvectors of A'A, which is summed in float64 in one pass over the rows
    and has up to 4,096 columns. A singular value of relative size r has a relative error of up to
    about 1e-16 / r^2.

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
        those of a finite matrix, an argument is out of its range, or the matrix has too many
        columns, or U too many entries, for the driver.
    """
    start = time.perf_counter()
    A = open_rows(
        rows, values=values, indices=indices, order=order, n_columns=n_columns
    )
    n, m = A.shape
    dtype: np.dtype[Any] = np.dtype(np.float32 if A.is_single else np.float64)
    k = checked_rank(k, min(n, m))
    if left is None and 8 * n * k > _COLLECTED:
        raise ArgumentError(
            f"U takes {8 * n * k / 1e9:.1f} GB, too much for the driver; "
            "use left='PATH' to write it as Parquet."
        )
    A, gram = _with_gram(A, center)
    right = _right_vectors(gram, k)
    tol = checked_tol(tol, dtype)
    if residual_excess(right.s, right.residuals, tol, np.dtype(np.float64)) > 1:
        message = residual_message(right.s, right.residuals, tol, _PASSES, "gram")
        warnings.warn(
            f"{message}use a larger tol or a smaller k.", ConvergenceWarning, 2
        )
    U = _left_vectors(A, right, checked_generator(random_state), left)
    return DistributedSVD(
        U=U.astype(dtype),
        s=right.s.astype(dtype),
        Vt=np.ascontiguousarray(right.V.T, dtype),
        residuals=np.stack([np.zeros(k), right.residuals]),
        frobenius_norm=math.sqrt(np.trace(gram.matrix)),
        spectral_error_bound=0.0 if k == min(n, m) else right.bound,
        passes=_PASSES + bool(k),
        seconds=time.perf_counter() - start,
        method="gram",
        n_rows=n,
        left=left,
    )


def _with_gram(A: Rows, center: ArrayLike | bool | None) -> tuple[Rows, Gram]:
    """Return the centred matrix with its Gram matrix.

    Raises
    ------
    ArgumentError
    """
    m = A.shape[1]
    if m > _MOST_COLUMNS:
        raise ArgumentError(
            f"The matrix has {m:,} columns, and A'A on the driver may have up to "
            f"{_MOST_COLUMNS:,}; lowrank.truncated_svd takes more on one machine."
        )
    row = checked_center(center, m)
    means = A.column_means()
    if row is True:
        A = A.minus(means)
    elif row is not None:
        A = A.minus(row)
    return A, A.gram(means)


class _RightVectors(NamedTuple):
    """Right vectors, singular values in descending order, and their accuracy."""

    V: Doubles
    s: Doubles
    residuals: Doubles
    bound: float  # of the spectral norm of the remainder


def _right_vectors(gram: Gram, k: int) -> _RightVectors:
    """Return the k leading eigenvectors of A'A, with deterministic signs."""
    squares, vectors = np.linalg.eigh(gram.matrix)
    Vt = np.ascontiguousarray(vectors.T[::-1][:k])
    with_signs(np.zeros((0, k)), np.zeros(k), Vt)
    V = np.ascontiguousarray(Vt.T)
    products = gram.matrix @ V
    s = np.sqrt(np.maximum(np.einsum("ij,ij->j", V, products), 0))
    # Rounding of A'A adds up to eps times its norm to each eigenvalue.
    rounding = float(np.finfo(np.float64).eps * squares[-1:].sum())
    divisors = np.where(s > 0, s, np.inf)
    residuals = np.linalg.norm(products / divisors - V * s, axis=0)
    residuals += rounding / divisors
    remainder = squares[: len(squares) - k].max(initial=0.0)
    return _RightVectors(V, s, residuals, math.sqrt(max(remainder, 0.0) + rounding))


def _left_vectors(
    A: Rows, right: _RightVectors, rng: np.random.Generator, left: str | None
) -> Doubles:
    """Return U = A V / s, or write it; columns of zero singular values are zero."""
    s = right.s
    negligible = s <= 1e-14 * max(A.shape) * s.max(initial=0.0)
    scaled = right.V / np.where(negligible, np.inf, s)
    shift = A.row @ scaled
    read = A.reader()
    types = dict(A.frame.dtypes)
    is_ordered = "order" in types

    def vectors(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        for batch in batches:
            columns = {
                "u": list_array(np.ascontiguousarray(read(batch) @ scaled - shift))
            }
            if is_ordered:
                columns["order"] = batch.column("order")
            yield pa.RecordBatch.from_pydict(columns)

    schema = "u array<double>"
    if is_ordered:
        schema += f", order {types['order']}"
    frame = map_in_arrow(A.frame, vectors, schema)
    if left is not None:
        frame.write.parquet(left)
        return np.zeros((0, s.size))
    if not s.size:
        return np.zeros((A.shape[0], 0))
    table = table_of(frame)
    if is_ordered:
        table = table.sort_by("order")
    U = lists(table, "u")[1].reshape(-1, s.size).copy()
    if negligible.any():
        basis = np.array(U[:, ~negligible], order="C")
        noise = rng.standard_normal((len(U), int(negligible.sum())))
        U[:, negligible] = extend_basis(basis, noise, 1.0, rng)[0]
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
        A = open_rows(
            rows, values=values, indices=indices, order=None, n_columns=n_columns
        )
        n, m = A.shape
        require_samples(n, self.ddof)
        k = checked_rank(self.n_components, min(n, m))
        A, gram = _with_gram(A, bool(self.center) or None)
        right = _right_vectors(gram, k)
        row, means = gram.row, gram.means
        squares = np.diag(gram.matrix)
        sum_of_squares = float(squares.sum())
        scores = gram.sums @ right.V  # column sums of the scores
        variances = (right.s**2 - np.square(scores) / n) / (n - self.ddof)
        uncentered = squares + n * np.square(row) + 2 * n * row * (means - row)
        dtype: np.dtype[Any] = np.dtype(np.float32 if A.is_single else np.float64)
        total = max(sum_of_squares - n * float(np.square(means - row).sum()), 0.0)
        left_over = sum_of_squares - float(np.square(right.s).sum())
        unexplained = total - float(variances.sum()) * (n - self.ddof)
        rounding = 4 * float(np.finfo(dtype).eps) * max(1.0, k**0.5) * sum_of_squares
        Vt = np.ascontiguousarray(right.V.T, dtype)
        self.n_features_in_ = m
        self._keep(
            PrincipalDirections(
                components=Vt,
                singular_values=right.s,
                variances=np.maximum(variances, 0.0),
                row=row,
                alignment=None,
                centering="exact" if self.center else "none",
                negligible=rounding_limits(uncentered, A.shape, dtype, right.s, Vt),
                total=total,
                distortion=left_over if left_over > rounding else 0.0,
                unexplained=unexplained if unexplained > rounding else 0.0,
                means=means,
                squares=uncentered,
                n_samples=n,
                n_rows=n,
            ),
            dtype,
        )
        return self

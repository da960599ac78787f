"""Principal component analysis of samples on the cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import numpy as np

from lowrank import pca
from lowrank.errors import ArgumentError
from lowrank.pca import Directions
from lowrank.samples import negligible_value, require_samples
from lowrank.spark.decomposition import decompose
from lowrank.spark.rows import open_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from lowrank.arguments import RandomStateLike


class PCA(pca.PCA):
    """Principal component analysis of a matrix on the cluster, whose samples stay there.

    Once fitted, it is a `lowrank.PCA`, whose `transform` and so on work on local arrays. The scores
    of the samples are ``U diag(s)`` of `lowrank.spark.truncated_svd` with the same centre.

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
            As `lowrank.spark.truncated_svd`, or if there are too few samples.
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
            Directions(
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

"""Principal component analysis of samples on the cluster."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from lowrank import pca
from lowrank.pca import Directions
from lowrank.samples import negligible_value, require_samples
from lowrank.spark.decomposition import decomposed
from lowrank.spark.rows import open_rows

__all__ = ["PCA"]


class PCA(pca.PCA):
    """Principal component analysis of a matrix on the cluster, whose samples stay there.

    Once fitted, it is a `lowrank.PCA`: `transform`, `inverse_transform`, `score_samples` and so on
    work on local arrays. The scores of the samples themselves are ``U diag(s)`` of
    `lowrank.spark.truncated_svd` with the same centre.

    Parameters
    ----------
    n_components : int
        Number of components k, from 0 to min(n_samples, n_features).
    center : {"exact", False}, default "exact"
        "exact" subtracts the column means; sparse rows stay sparse. False subtracts nothing.
    ddof : int, default 1
        Variances have the divisor n_samples - ddof.
    whiten : bool, default False
        Scale the scores to variance 1.
    tol : float, optional
        Accuracy of the singular triplets, as in `lowrank.spark.truncated_svd`.
    random_state : int, Generator, RandomState or None
        Seed of the start vectors.

    See Also
    --------
    lowrank.PCA : The estimator for local data, which describes the fitted attributes.
    """

    def __init__(
        self,
        n_components: int,
        *,
        center: str | bool = "exact",
        ddof: int = 1,
        whiten: bool = False,
        tol: float | None = None,
        random_state: int | np.random.Generator | np.random.RandomState | None = None,
    ) -> None:
        super().__init__(
            n_components,
            center=center,
            ddof=ddof,
            whiten=whiten,
            tol=tol,
            random_state=random_state,
        )

    def fit(
        self,
        rows: Any,
        y: Any = None,
        *,
        values: str = "values",
        indices: str | None = None,
        n_columns: int | None = None,
    ) -> Self:
        """Find the components.

        Parameters
        ----------
        rows : DataFrame or str
            One sample per row, as `lowrank.spark.truncated_svd` takes them.
        y : ignored
        values, indices : str
            Columns of the entries and, for a sparse matrix, of their indices.
        n_columns : int, optional
            Number of features.

        Returns
        -------
        PCA
            The estimator itself.

        Raises
        ------
        TypeError, ValueError
            As `lowrank.spark.truncated_svd`, or if there are too few samples.
        """
        if self.center != "exact" and self.center is not False:
            raise ValueError(f"center must be 'exact' or False; got {self.center!r}.")
        matrix = open_rows(rows, values=values, indices=indices, order=None, n_columns=n_columns)
        n, dtype = matrix.shape[0], np.dtype(np.float32 if matrix.is_single else np.float64)
        require_samples(n, self.ddof)
        centred = True if self.center == "exact" else None
        found = decomposed(
            matrix,
            self.n_components,
            tol=self.tol,
            center=centred,
            random_state=self.random_state,
            with_left=False,
        )
        svd = found.svd
        own_means = n * np.square(found.score_sums / n)
        variances = (svd.s.astype(np.float64) ** 2 - own_means) / (n - self.ddof)
        norm = 0.0 if svd.frobenius_norm is None else svd.frobenius_norm
        directions = Directions(
            components=svd.Vt,
            singular_values=svd.s,
            variances=np.maximum(variances, 0.0).astype(dtype),
            row=found.row,
            alignment=None,
            negligible=negligible_value(svd, found.row),
            squares=norm**2,
            total=found.total,
            means=found.means,
            n_samples=n,
        )
        self.n_features_in_ = matrix.shape[1]
        self._keep(directions)
        return self

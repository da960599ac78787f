"""Principal directions of samples: the computation behind `lowrank.pca.PCA`, by three routes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from lowrank.estimators import negligible_value
from lowrank.svd import SVD, truncated_svd

if TYPE_CHECKING:
    from lowrank.estimators import Float64Array, Samples
    from lowrank.operators import FloatArray

__all__ = [
    "Directions",
    "Search",
    "directions_for_fraction",
    "principal_directions",
]

_FULL_SPECTRUM = 1000  # smaller side of dense data, up to which all singular values are computed
_FIRST_GUESS = 32  # directions that the search for a fraction of the variance starts with


@dataclass(frozen=True, eq=False)
class Directions:
    """Orthonormal directions in an m-dimensional space, with what n samples do along them.

    Attributes
    ----------
    components : ndarray of shape (k, m)
    singular_values : ndarray of shape (k,)
        ||(Y - 1 row') v|| for each direction v.
    variances : ndarray of shape (k,)
        Variance of the samples along each direction, about their own mean.
    row : ndarray of shape (m,), float64
        What is subtracted from each sample.
    alignment : float or None
        |cosine| between the direction that was dropped and the column mean; None if none was.
    negligible : float
        Singular values up to this are rounding errors of 0.
    squares : float
        ||Y - 1 row'||_F^2.
    total : float
        Sum of squares of Y about its column means: total variance times the divisor.
    """

    components: FloatArray
    singular_values: FloatArray
    variances: FloatArray
    row: Float64Array
    alignment: float | None
    negligible: float
    squares: float
    total: float

    def first(self, k: int) -> Directions:
        """Return the first k directions."""
        return replace(
            self,
            components=self.components[:k].copy(),
            singular_values=self.singular_values[:k].copy(),
            variances=self.variances[:k].copy(),
        )


@dataclass(frozen=True)
class Search:
    """How directions are computed.

    Attributes
    ----------
    route : {"centred", "drop-first", "uncentred"}
        Subtract the column means; drop the first direction of the matrix as it is; or keep it.
    ddof : int
        The divisor of the variances is n - ddof.
    tol, random_state
        As `truncated_svd` takes them.
    """

    route: str
    ddof: int
    tol: float | None
    random_state: Any


def principal_directions(samples: Samples, k: int, search: Search) -> Directions:
    """Compute k principal directions.

    Parameters
    ----------
    samples : Samples of shape (n, m)
    k : int
        0 <= k <= min(n, m).
    search : Search

    Returns
    -------
    Directions
    """
    if search.route == "drop-first":
        return _without_first(samples, k, search)
    centred = search.route == "centred"
    row = samples.means if centred else np.zeros(samples.shape[1])
    svd = _svd(samples, k, search, row)
    divisor = samples.shape[0] - search.ddof
    variances = svd.s**2 / svd.s.dtype.type(divisor) if centred else _variances(svd, divisor)
    norm = svd.frobenius_norm
    squares = float(samples.column_squares(row).sum()) if norm is None else norm**2
    total = squares if centred else _total(samples)
    negligible = negligible_value(svd, row)
    return Directions(svd.Vt, svd.s, variances, row, None, negligible, squares, total)


def directions_for_fraction(samples: Samples, fraction: float, search: Search) -> Directions:
    """Compute the fewest principal directions that carry a fraction of the total variance.

    The number of directions is doubled until they suffice. All min(n, m) are returned if no fewer
    do.

    Parameters
    ----------
    samples : Samples of shape (n, m)
    fraction : float
        Between 0 and 1.
    search : Search

    Returns
    -------
    Directions
    """
    largest = min(samples.shape)
    whole = not samples.is_sparse and largest <= _FULL_SPECTRUM
    k = largest if whole else min(_FIRST_GUESS, largest)
    rounding = 4 * float(np.finfo(samples.dtype).eps)
    while True:
        found = principal_directions(samples, k, search)
        total = found.total / (samples.shape[0] - search.ddof)
        carried = np.cumsum(found.variances, dtype=np.float64)
        needed = 1 + int(np.count_nonzero(carried < (fraction - rounding * k) * total))
        if needed <= k or k == largest:
            return found.first(needed)
        k = min(2 * k, largest)


def _svd(samples: Samples, k: int, search: Search, row: Float64Array) -> SVD:
    center = row if row.any() else None
    return truncated_svd(
        samples.matrix, k, tol=search.tol, center=center, random_state=search.random_state
    )


def _total(samples: Samples) -> float:
    return float(samples.column_squares(samples.means).sum())


def _variances(svd: SVD, divisor: int) -> FloatArray:
    """Return the variance of the samples along each right vector, about their own mean."""
    left = svd.U - svd.U.mean(axis=0, dtype=np.float64)
    variances = svd.s**2 * np.einsum("ij,ij->j", left, left) / divisor
    return np.asarray(variances, svd.s.dtype)


def _without_first(samples: Samples, k: int, search: Search) -> Directions:
    """Take the top k + 1 directions of the samples as they are, and drop the first.

    The mean is taken to lie along that direction. When all min(n, m) are wanted there is no k + 1;
    the dropped direction is then the last of them, with the samples' variance about their mean.
    """
    largest = min(samples.shape)
    nothing = np.zeros(samples.shape[1])
    svd = _svd(samples, min(k + 1, largest), search, nothing)
    means = samples.means
    dropped = svd.Vt[0].astype(np.float64)
    along = float(means @ dropped)
    row = along * dropped
    length = float(np.linalg.norm(means))
    variances, values = _variances(svd, samples.shape[0] - search.ddof), svd.s
    order = np.arange(1, k + 1)
    if k == largest:
        order = np.append(order[:-1], 0)
        values = values.copy()
        values[0] = (variances[0] * (samples.shape[0] - search.ddof)) ** 0.5
    return Directions(
        components=svd.Vt[order],
        singular_values=values[order],
        variances=variances[order],
        row=row,
        alignment=min(1.0, abs(along) / length) if length > 0 else 0.0,
        negligible=negligible_value(svd, nothing),
        squares=float(samples.column_squares(row).sum()),
        total=_total(samples),
    )

"""Samples and their statistics, as the estimators use them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from lowrank.arguments import as_operator, checked_generator

if TYPE_CHECKING:
    from lowrank.operators import FloatArray

__all__ = [
    "DenseSamples",
    "NormalModel",
    "Samples",
    "SparseSamples",
    "checked_scores",
    "column_scale",
    "negligible_value",
    "require_samples",
    "samples_of",
]

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lowrank.operators import FloatArray
    from lowrank.svd import SVD

    Float64Array = NDArray[np.float64]


_CHUNK = 1 << 20  # entries that are widened to float64 at a time
_EPS = float(np.finfo(np.float64).eps)


class Samples(ABC):
    """Rows of data, as they are analysed: an n x m matrix Y with statistics in float64."""

    shape: tuple[int, int]
    dtype: np.dtype[Any]
    is_sparse: bool

    @property
    @abstractmethod
    def matrix(self) -> Any:
        """Y as `truncated_svd` takes it."""

    @cached_property
    def means(self) -> Float64Array:
        """The mean of each column, shape (m,)."""
        return self._column_means()

    @abstractmethod
    def _column_means(self) -> Float64Array: ...

    @abstractmethod
    def column_squares(self, row: Float64Array) -> Float64Array:
        """Return the sum of squares of each column of Y - 1 row', shape (m,)."""

    @abstractmethod
    def row_squares(self, row: Float64Array) -> Float64Array:
        """Return the sum of squares of each row of Y - 1 row', shape (n,)."""

    @abstractmethod
    def projected(self, row: Float64Array, components: FloatArray) -> FloatArray:
        """Return (Y - 1 row') components', shape (n, k)."""

    @abstractmethod
    def divided(self, scale: Float64Array | None) -> Samples:
        """Return Y with each column divided by its entry of `scale`; None divides by 1."""


class DenseSamples(Samples):
    """Dense rows.

    Parameters
    ----------
    array : ndarray of shape (n, m)
        float32 or float64; neither copied nor written to.
    """

    is_sparse = False

    def __init__(self, array: FloatArray) -> None:
        self.shape = (array.shape[0], array.shape[1])
        self.dtype = array.dtype
        self._array = array

    @property
    def matrix(self) -> FloatArray:
        """Y."""
        return self._array

    def _column_means(self) -> Float64Array:
        means: Float64Array = self._array.mean(axis=0, dtype=np.float64)
        return means

    def column_squares(self, row: Float64Array) -> Float64Array:
        """Return the sum of squares of each column of Y - 1 row'."""
        sums = np.zeros(self.shape[1])
        step = max(1, _CHUNK // max(1, self.shape[1]))
        for start in range(0, self.shape[0], step):
            difference = self._array[start : start + step] - row
            sums += np.einsum("ij,ij->j", difference, difference)
        return sums

    def row_squares(self, row: Float64Array) -> Float64Array:
        """Return the sum of squares of each row of Y - 1 row'."""
        squares = np.empty(self.shape[0])
        step = max(1, _CHUNK // max(1, self.shape[1]))
        for start in range(0, self.shape[0], step):
            difference = self._array[start : start + step] - row
            squares[start : start + step] = np.einsum("ij,ij->i", difference, difference)
        return squares

    def projected(self, row: Float64Array, components: FloatArray) -> FloatArray:
        """Return (Y - 1 row') components', subtracted before the product: no cancellation."""
        scores = np.empty((self.shape[0], components.shape[0]), self.dtype)
        subtracted = row.astype(self.dtype)
        step = max(256, _CHUNK // max(1, self.shape[1]))
        for start in range(0, self.shape[0], step):
            part = slice(start, start + step)
            np.matmul(self._array[part] - subtracted, components.T, out=scores[part])
        return scores

    def divided(self, scale: Float64Array | None) -> DenseSamples:
        """Return Y with its columns divided by `scale`."""
        return self if scale is None else DenseSamples(self._array / scale.astype(self.dtype))


class SparseSamples(Samples):
    """Sparse rows less a matrix of rank one: ``csr - offsets weights'``.

    Parameters
    ----------
    csr : scipy.sparse.csr_array of shape (n, m)
        float32 or float64, canonical; neither copied nor written to.
    offsets : ndarray of shape (n,), float64, or None
        What is subtracted from each row, if anything.
    weights : ndarray of shape (m,), float64
        Its factor for each column.
    """

    is_sparse = True

    def __init__(self, csr: Any, offsets: Float64Array | None, weights: Float64Array) -> None:
        self.shape = (csr.shape[0], csr.shape[1])
        self.dtype = csr.dtype
        self._csr = csr
        self._offsets = offsets
        self._weights = weights
        self._operator = as_operator(csr)

    @property
    def matrix(self) -> Any:
        """Y: the sparse matrix, or a LinearOperator if something is subtracted from the rows."""
        from lowrank.operators import RowCentred

        if self._offsets is None:
            return self._csr
        return RowCentred(self._csr, self._offsets, self._weights)

    def _column_means(self) -> Float64Array:
        means = self._operator.column_means()
        if self._offsets is not None:
            means = means - self._weights * self._offsets.mean()
        return means

    def column_squares(self, row: Float64Array) -> Float64Array:
        """Return the sum of squares of each column of Y - 1 row', stored entries and zeros apart.

        Summed like this, nothing of the size of the entries cancels against the entries.
        """
        columns, entries, subtracted = self._stored(row)
        length = self.shape[1]
        stored = _sums(columns, (entries - subtracted) ** 2, length)
        if self._offsets is None:
            count = self.shape[0] - np.bincount(columns, minlength=length)
            return stored + count * row**2
        spread, centre = self._offset_spread()
        everywhere = self._weights**2 * spread + self.shape[0] * (self._weights * centre + row) ** 2
        zeros = everywhere - _sums(columns, subtracted**2, length)
        return stored + np.maximum(zeros, 0.0)

    def row_squares(self, row: Float64Array) -> Float64Array:
        """Return the sum of squares of each row of Y - 1 row'."""
        _, entries, subtracted = self._stored(row)
        rows, length = self._row_indices(), self.shape[0]
        stored = _sums(rows, (entries - subtracted) ** 2, length)
        offsets = np.zeros(length) if self._offsets is None else self._offsets
        weights = self._weights
        everywhere = offsets**2 * (weights @ weights) + 2 * offsets * (weights @ row) + row @ row
        zeros = everywhere - _sums(rows, subtracted**2, length)
        return stored + np.maximum(zeros, 0.0)

    def projected(self, row: Float64Array, components: FloatArray) -> FloatArray:
        """Return (Y - 1 row') components', the subtraction as a correction of rank one."""
        matrix = self._operator if self._offsets is None else self.matrix
        scores: FloatArray = matrix.matmat(np.ascontiguousarray(components.T, self.dtype))
        scores -= (components @ row).astype(self.dtype)
        return scores

    def divided(self, scale: Float64Array | None) -> SparseSamples:
        """Return Y with its columns divided by `scale`; it stays sparse."""
        if scale is None:
            return self
        csr = self._csr.copy()
        csr.data /= scale[csr.indices].astype(self.dtype)
        return SparseSamples(csr, self._offsets, self._weights / scale)

    def _row_indices(self) -> NDArray[np.integer[Any]]:
        return np.repeat(np.arange(self.shape[0]), np.diff(self._csr.indptr))

    def _stored(
        self, row: Float64Array
    ) -> tuple[NDArray[np.integer[Any]], Float64Array, Float64Array]:
        """Return the column, the value and what is subtracted of each stored entry."""
        columns = self._csr.indices
        subtracted = row[columns]
        if self._offsets is not None:
            subtracted = subtracted + self._offsets[self._row_indices()] * self._weights[columns]
        return columns, self._csr.data.astype(np.float64), subtracted

    def _offset_spread(self) -> tuple[float, float]:
        """Return the sum of squares of the offsets about their mean, and that mean."""
        offsets = np.zeros(1) if self._offsets is None else self._offsets
        centre = float(offsets.mean())
        return float(((offsets - centre) ** 2).sum()), centre


def samples_of(X: Any, center_samples: bool) -> Samples:
    """Wrap checked data.

    Parameters
    ----------
    X : ndarray or scipy.sparse matrix or array of shape (n, m)
        float32 or float64, finite.
    center_samples : bool
        Whether each row's own mean is subtracted from it.

    Returns
    -------
    Samples
    """
    from scipy import sparse

    if not sparse.issparse(X):
        rows = X - X.mean(axis=1, keepdims=True, dtype=np.float64) if center_samples else X
        return DenseSamples(rows.astype(X.dtype, copy=False))
    given: Any = X
    csr = given.tocsr()
    if not csr.has_canonical_format or not csr.data.all():
        csr = csr.copy()
        csr.sum_duplicates()
        csr.eliminate_zeros()  # block formats store some: they would regroup the sums of products
    offsets = None
    if center_samples:
        rows = np.repeat(np.arange(csr.shape[0]), np.diff(csr.indptr))
        offsets = _sums(rows, csr.data, csr.shape[0]) / csr.shape[1]
    return SparseSamples(csr, offsets, np.ones(csr.shape[1]))


def column_scale(samples: Samples, ddof: int) -> Float64Array:
    """Return the standard deviation of each column, and 1 for a constant one.

    A column counts as constant if its deviation is within the rounding errors of its entries.

    Parameters
    ----------
    samples : Samples of shape (n, m)
    ddof : int
        The divisor is n - ddof.

    Returns
    -------
    ndarray of shape (m,), float64
    """
    count = samples.shape[0]
    deviation = np.sqrt(samples.column_squares(samples.means) / (count - ddof))
    size = np.sqrt(samples.column_squares(np.zeros(samples.shape[1])) / count)
    rounding = 10 * (float(np.finfo(samples.dtype).eps) + _EPS * count**0.5)
    return np.where(deviation <= rounding * size, 1.0, deviation)


def negligible_value(svd: SVD, means: Float64Array) -> float:
    """Return the size below which a singular value of centred data cannot be told from 0.

    It is what rounding leaves of an exact zero, in the data and in the means subtracted from them,
    or the largest residual of the decomposition if that is larger.

    Parameters
    ----------
    svd : SVD of the centred n x m matrix
    means : ndarray of shape (m,)
        The row that was subtracted.

    Returns
    -------
    float
    """
    eps = float(np.finfo(svd.s.dtype).eps)
    largest = float(svd.s.max(initial=0.0))
    subtracted = float(np.linalg.norm(means)) * float(np.sqrt(svd.shape[0]))
    rounding = eps * (max(svd.shape) * largest + 4 * subtracted)
    return max(rounding, float(svd.residuals.max(initial=0.0)))


def checked_scores(X: Any, columns: int, what: str = "n_components_") -> FloatArray:
    """Check what an inverse transform is given, and return it as float32 or float64.

    Raises
    ------
    ValueError
        If X is not finite, or has another number of columns.
    """
    from sklearn.utils.validation import check_array

    dtypes = [np.float64, np.float32]
    scores: FloatArray = check_array(X, input_name="X", dtype=dtypes, ensure_min_features=0)
    if scores.shape[1] != columns:
        raise ValueError(f"X must have {columns} columns ({what}); got {scores.shape[1]}.")
    return scores


def require_samples(count: int, ddof: int) -> None:
    """Check that the divisor of the variances is positive.

    Raises
    ------
    TypeError
        If `ddof` is not an integer.
    ValueError
        If `ddof` is negative, or there are no more samples than `ddof`.
    """
    if isinstance(ddof, (bool, np.bool_)) or not isinstance(ddof, (int, np.integer)):
        raise TypeError(f"ddof must be a non-negative integer; got {ddof!r}.")
    if ddof < 0:
        raise ValueError(f"ddof must be a non-negative integer; got {ddof!r}.")
    if count <= ddof:
        raise ValueError(
            f"X must have more than {ddof} samples, as ddof={ddof}; got n_samples={count}."
        )


def _sums(places: NDArray[np.integer[Any]], values: FloatArray, length: int) -> Float64Array:
    """Return the sum of the values at each of the places 0 ... length - 1."""
    sums: Any = np.bincount(places, weights=values, minlength=length)
    return np.asarray(sums, np.float64)


class NormalModel:
    """What follows from components, variances along them, and one variance everywhere else.

    References
    ----------
    Tipping & Bishop (1999), "Probabilistic principal component analysis", section 3.
    """

    components_: FloatArray
    explained_variance_: FloatArray
    noise_variance_: float
    scale_: FloatArray | None
    n_components_: int
    n_samples_: int
    n_features_in_: int
    random_state: Any
    _location: Float64Array  # mean of the model, in units of scale_
    _negligible_variance: float

    @abstractmethod
    def score_samples(self, X: Any) -> FloatArray:
        """Return the log-likelihood of each sample under the probabilistic model."""

    def get_covariance(self) -> FloatArray:
        """Return the covariance of the probabilistic model, in the units of X.

        It is V' diag(explained_variance_ - noise_variance_) V + noise_variance_ I (Tipping & Bishop
        1999), whether or not the scores are whitened.

        Returns
        -------
        ndarray of shape (n_features, n_features)
        """
        check_is_fitted(self)
        noise = self.noise_variance_
        excess = np.maximum(self.explained_variance_ - noise, 0)
        covariance: FloatArray = (self.components_.T * excess) @ self.components_
        covariance[np.diag_indices_from(covariance)] += noise
        if self.scale_ is not None:
            covariance *= np.outer(self.scale_, self.scale_)
        return covariance

    def get_precision(self) -> FloatArray:
        """Return the inverse of `get_covariance`, without solving a system.

        Returns
        -------
        ndarray of shape (n_features, n_features)

        Raises
        ------
        ValueError
            If the covariance is singular.
        """
        check_is_fitted(self)
        if self._is_degenerate():
            raise ValueError(
                "The covariance must have full rank to be inverted; got one with directions "
                "without variance: use fewer components, so that noise_variance_ is positive."
            )
        variances, noise = self._density_variances()
        base = 1 / noise if noise > 0 else 0.0
        precision: FloatArray = (self.components_.T * (1 / variances - base)) @ self.components_
        precision[np.diag_indices_from(precision)] += base
        if self.scale_ is not None:
            precision /= np.outer(self.scale_, self.scale_)
        return precision

    def _log_likelihoods(self, samples: Samples) -> FloatArray:
        """Return the log-likelihood of each of the prepared samples."""
        if self._is_degenerate():
            return np.full(samples.shape[0], -np.inf, samples.dtype)
        variances, noise = self._density_variances()
        squares = samples.projected(self._location, self.components_).astype(np.float64) ** 2
        distance = (squares / variances).sum(axis=1)
        log_determinant = float(np.log(variances).sum())
        if noise > 0:
            outside = samples.row_squares(self._location) - squares.sum(axis=1)
            distance += np.maximum(outside, 0.0) / noise
            log_determinant += (self.n_features_in_ - self.n_components_) * float(np.log(noise))
        if self.scale_ is not None:
            log_determinant += 2 * float(np.log(self.scale_, dtype=np.float64).sum())
        constant = self.n_features_in_ * float(np.log(2 * np.pi))
        likelihood = -0.5 * (constant + log_determinant + distance)
        return np.asarray(likelihood, samples.dtype)

    def score(self, X: Any, y: Any = None) -> float:
        """Return the mean log-likelihood of samples; see `score_samples`.

        Parameters
        ----------
        X : array-like or scipy.sparse matrix or array of shape (n_samples, n_features)
        y : ignored

        Returns
        -------
        float
        """
        return float(np.mean(self.score_samples(X), dtype=np.float64))

    def sample(self, n_samples: int = 1, *, random_state: Any = None) -> FloatArray:
        """Draw samples from the probabilistic model.

        Parameters
        ----------
        n_samples : int, default 1
        random_state : int, Generator, RandomState or None
            Seed; by default that of the estimator.

        Returns
        -------
        ndarray of shape (n_samples, n_features)
        """
        check_is_fitted(self)
        rng = checked_generator(self.random_state if random_state is None else random_state)
        excess = np.maximum(self.explained_variance_ - self.noise_variance_, 0)
        hidden = rng.standard_normal((n_samples, self.n_components_)) * np.sqrt(excess)
        noise = rng.standard_normal((n_samples, self.n_features_in_)) * self.noise_variance_**0.5
        drawn = self._location + hidden @ self.components_ + noise
        if self.scale_ is not None:
            drawn = drawn * self.scale_
        return np.asarray(drawn, self.components_.dtype)

    def _density_variances(self) -> tuple[Float64Array, float]:
        """Return the variances of the model along the components, and elsewhere."""
        noise = float(self.noise_variance_)
        return np.maximum(self.explained_variance_.astype(np.float64), noise), noise

    def _is_degenerate(self) -> bool:
        """Whether there are directions in which the model has no variance."""
        variances, noise = self._density_variances()
        everywhere = noise > 0 or self.n_components_ == self.n_features_in_
        return not everywhere or bool(np.any(variances <= self._negligible_variance))

"""Rows of data with their statistics, and the Gaussian density shared by the PCA estimators."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import LinearOperator

from lowrank import kernels
from lowrank.arguments import checked_generator
from lowrank.blocks import RowBlocks, by_blocks, check_not_masked, not_finite
from lowrank.errors import ArgumentError, ArgumentTypeError, checked_integer
from lowrank.kernels.arrays import EPS, epsilon
from lowrank.operators import (
    DenseOperator,
    MatrixOperator,
    SparseOperator,
    canonical,
    checked_sparse,
    largest_entry,
    row_of_entry,
    safe_exponent,
    with_data,
)

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from lowrank.arguments import MatrixLike, RandomStateLike
    from lowrank.operators import Float64Array, FloatArray

_CHUNK = 1 << 20  # number of entries that are projected at once
FLOAT_DTYPES = [
    np.float64,
    np.float32,
]  # for validate_data: other dtypes become float64
# Rounding errors, in machine epsilons. Entries that are rounded once have 0.3, float32 products of
# matrices of rank 300 have 3; solvers have some epsilons of the largest singular value.
_CONSTANT = 2  # deviation of a constant column, in machine epsilons of its size
ENTRY_ROUNDING, SOLVER_ROUNDING = 3, 30
_LARGE_MEAN = (
    1e4  # in standard deviations: float32 changes smaller ones by less than 1e-4
)
_CANCELS = 1e-6  # share below which a difference of squares in float64 has lost digits
_SQUARED = 500  # the exponent of entries whose sums of squares might overflow or vanish


class RowCentredSamples(MatrixOperator):
    """Sparse rows minus their means, Y = S - offsets weights', as a low-rank correction.

    `offsets` has shape (n, r) and `weights` (m, r); one-dimensional arrays are columns. For the
    means of rows, r is 1, and the weights are 1 unless columns are scaled.
    """

    is_sparse = True

    def __init__(
        self,
        csr: Any,
        offsets: Float64Array,
        weights: Float64Array,
    ) -> None:
        self._sparse = SparseOperator(csr)
        super().__init__(self._sparse.shape, csr.dtype)
        self.entries = self._sparse.entries
        self._offsets = offsets.reshape(len(offsets), -1)
        self._weights = weights.reshape(len(weights), -1)

    @property
    def peak(self) -> float:
        """Largest absolute entry of S; the means are not larger."""
        return self._sparse.peak

    def column_means(self) -> Float64Array:
        """Return the mean of each column, shape (m,)."""
        subtracted: Float64Array = self._weights @ self._offsets.mean(axis=0)
        return self._sparse.column_means() - subtracted

    def column_squares(self, row: Float64Array) -> Float64Array:
        """Return the sum of squares of each column of Y - 1 row', shape (m,)."""
        # Sums of a matrix without entries, whose rows are -weights offsets': about the mean
        # offset, plus n times the squared mean.
        centre = self._offsets.mean(axis=0)
        about = self._offsets - centre
        without = np.einsum(
            "jr,rs,js->j", self._weights, about.T @ about, self._weights
        )
        without += self.shape[0] * (self._weights @ centre + row) ** 2
        return self._with_entries(without, row, self._sparse.csr.indices)

    def row_squares(self, row: Float64Array) -> Float64Array:
        """Return the sum of squares of each row of Y - 1 row', shape (n,)."""
        # |W o + row|^2 for the offsets o of each row, likewise without entries
        gram = self._weights.T @ self._weights
        without = np.einsum("ir,rs,is->i", self._offsets, gram, self._offsets)
        without += 2 * self._offsets @ (self._weights.T @ row) + row @ row
        return self._with_entries(without, row, row_of_entry(self._sparse.csr))

    def _with_entries(
        self,
        without: Float64Array,
        row: Float64Array,
        places: NDArray[np.integer[Any]],
    ) -> Float64Array:
        """Return sums of squares by row or column, given the sums for a matrix without entries."""
        csr, length = self._sparse.csr, len(without)
        rows = row_of_entry(csr)
        subtracted = row[csr.indices]
        for offsets, weights in zip(self._offsets.T, self._weights.T, strict=True):
            subtracted += offsets[rows] * weights[csr.indices]
        stored = _sums(places, (csr.data - subtracted) ** 2, length)
        return stored + np.maximum(without - _sums(places, subtracted**2, length), 0.0)

    def scaled(self, factor: float | Float64Array) -> RowCentredSamples:
        """Return Y with its entries, or each column, multiplied by a factor."""
        csr = self._sparse.scaled(factor).csr
        factors = np.broadcast_to(factor, len(self._weights))
        return RowCentredSamples(csr, self._offsets, self._weights * factors[:, None])

    def take(self, rows: NDArray[np.intp]) -> RowCentredSamples:
        """Return some of the rows."""
        return RowCentredSamples(
            self._sparse.csr[rows], self._offsets[rows], self._weights
        )

    def weighted(self, roots: Float64Array, row: Float64Array) -> RowCentredSamples:
        """Return diag(roots) (Y - 1 row')."""
        offsets = np.column_stack([self._offsets, np.ones(len(roots))])
        return RowCentredSamples(
            rows_times(self._sparse.csr, roots),
            offsets * roots[:, None],
            np.column_stack([self._weights, row]),
        )

    def weighted_means(self, weights: Float64Array) -> Float64Array:
        """Return the mean of each column with weights of the rows that add up to 1."""
        n, m = self.shape
        csr = self._sparse.csr
        of_entries = weights[row_of_entry(csr)]
        means = _sums(csr.indices, of_entries * csr.data, m)
        # The mean of the differences from a rounded mean corrects it.
        differences = of_entries * (csr.data - means[csr.indices])
        is_full = np.bincount(csr.indices, minlength=m) == n
        zeros = np.where(is_full, 0.0, 1 - _sums(csr.indices, of_entries, m))
        means += _sums(csr.indices, differences, m) - zeros * means
        return means - self._weights @ (weights @ self._offsets)

    @property
    def subtracted(self) -> float:
        """Frobenius norm of what products subtract from larger ones, whose rounding remains."""
        return float(np.linalg.norm(self._offsets) * np.linalg.norm(self._weights))

    def wide(self) -> RowCentredSamples:
        """Return the operator with vectors, products and sums in float64."""
        return RowCentredSamples(self._sparse.wide().csr, self._offsets, self._weights)

    def _matmat(self, X: FloatArray) -> FloatArray:
        correction: FloatArray = self._offsets @ (self._weights.T @ X)
        product: FloatArray = self._sparse.matmat(X) - correction.astype(self.dtype)
        return product

    def _rmatmat(self, Y: FloatArray) -> FloatArray:
        correction: FloatArray = self._weights @ (self._offsets.T @ Y)
        product: FloatArray = self._sparse.rmatmat(Y) - correction.astype(self.dtype)
        return product

    def _toarray(self) -> FloatArray:
        difference = self._sparse.toarray() - self._offsets @ self._weights.T
        return difference.astype(self.dtype, copy=False)


def rows_times(csr: Any, factors: Float64Array) -> Any:
    """Return a CSR matrix in float64 with each row multiplied by a factor."""
    return with_data(csr, csr.data * np.repeat(factors, np.diff(csr.indptr)))


InMemory = DenseOperator | SparseOperator | RowCentredSamples
"""Samples whose rows can be taken and multiplied."""

Samples = InMemory | RowBlocks


def project(
    samples: Samples,
    row: Float64Array,
    components: FloatArray,
) -> FloatArray:
    """Return (Y - 1 row') components', shape (n, k)."""
    # Large entries may overflow in the sums, though the scores do not.
    exponent = safe_exponent(samples.peak, samples.dtype)
    if exponent:
        samples = samples.scaled(2.0**-exponent)
        row = row * 2.0**-exponent
    centred = samples.centred(row) if row.any() else samples
    axes = np.ascontiguousarray(components.T, samples.dtype)
    scores = centred.matmat(axes)
    if exponent:
        scores = scores * scores.dtype.type(2.0**exponent)
    return scores


def validated_samples(
    estimator: Any,
    X: Any,
    *,
    reset: bool = True,
    **settings: Any,
) -> Any:
    """Check data as scikit-learn does; return RowBlocks unchanged.

    Raises
    ------
    ValueError
        If X is not finite, has no samples, or has other features than in `fit`.
    """
    data = by_blocks(X)
    if isinstance(data, LinearOperator):
        raise ArgumentTypeError(
            "X must be an array, a sparse matrix or RowBlocks; got a LinearOperator: for its "
            "principal components, use truncated_svd with center=True."
        )
    if not isinstance(data, RowBlocks):
        return validated_array(estimator, data, reset=reset, **settings)
    if data.is_sparse and "accept_sparse" not in settings:
        raise ArgumentTypeError("X must be dense; got RowBlocks of sparse blocks.")
    if reset:
        estimator.n_features_in_ = data.shape[1]
        vars(estimator).pop("feature_names_in_", None)
    elif data.shape[1] != estimator.n_features_in_:
        expected = estimator.n_features_in_
        raise ArgumentError(f"X must have {expected} features; got {data.shape[1]}.")
    return data


def validated_array(
    estimator: Any,
    X: Any,
    *,
    reset: bool,
    allow_nan: bool = False,
    **settings: Any,
) -> Any:
    """Check data in memory as scikit-learn does, but name the first entry that is not finite.

    Raises
    ------
    ValueError
        As `validated_samples`; NaN and masked entries of dense data are accepted with `allow_nan`.
    """
    from sklearn.utils.validation import (
        validate_data,
    )  # slow, not needed to choose ranks

    if sparse.issparse(X):
        X = checked_sparse(X, "X")
    elif np.asarray(X).dtype.kind in "mMSUV":
        raise ArgumentTypeError(
            f"X must hold real numbers; got dtype {np.asarray(X).dtype}."
        )
    if not allow_nan:
        check_not_masked(X, "X")
    elif np.ma.isMaskedArray(X):  # scikit-learn ignores the mask
        masked: Any = X.astype(np.result_type(X.dtype, np.float32))
        X = masked.filled(np.nan)
    settings |= {"dtype": FLOAT_DTYPES, "reset": reset, "ensure_all_finite": False}
    data = validate_data(estimator, X, **settings)
    is_sparse = sparse.issparse(data)
    if np.isfinite(largest_entry(data.data if is_sparse else data)):
        return data
    if allow_nan and not is_sparse:
        without_nan = np.where(np.isnan(data), 0, data)
        if np.isfinite(without_nan).all():
            return data
        raise not_finite(without_nan, "X")
    raise not_finite(data, "X")


def samples_of(X: Any, center_samples: bool = False) -> Samples:
    """Wrap validated data (finite, float32 or float64), optionally subtracting the row means.

    Raises
    ------
    ArgumentError
        If `center_samples` is set and the rows are read in blocks.
    """
    if isinstance(X, RowBlocks):
        if center_samples:
            raise ArgumentError(
                "center_samples must be False with RowBlocks: subtract the means in the blocks."
            )
        return X
    if not sparse.issparse(X):
        rows = X
        if center_samples:
            rows = X - X.mean(axis=1, keepdims=True, dtype=np.float64)
        # BLAS copies other layouts in every product.
        is_contiguous = rows.flags.c_contiguous or rows.flags.f_contiguous
        order = "K" if is_contiguous else "C"
        return DenseOperator(rows.astype(X.dtype, order, copy=False))
    csr = canonical(X)
    if not center_samples:
        return SparseOperator(csr)
    n, m = csr.shape
    means = _sums(row_of_entry(csr), csr.data, n) / m
    return RowCentredSamples(csr, means, np.ones(m))


def column_scale(samples: Samples, ddof: int) -> tuple[Float64Array, NDArray[np.bool_]]:
    """Return the standard deviation of each column, or 1 where the column is constant, and where.

    Constant means up to rounding. The deviations are rounded to the dtype of the samples, in which
    estimators store them.
    """
    count = samples.shape[0]
    exponent = safe_exponent(samples.peak, np.dtype(np.float64))
    unit = 2.0**exponent if abs(exponent) > _SQUARED else 1.0
    if unit != 1.0:
        samples = samples.scaled(1 / unit)
    zeros = np.zeros(samples.shape[1])
    about_means = samples.column_squares(samples.column_means())
    deviation = np.sqrt(about_means / (count - ddof))
    size = np.sqrt(samples.column_squares(zeros) / count)
    return rounded_scale(deviation, size, samples.dtype, unit)


def standardized(
    samples: Samples,
    scale: Float64Array,
    means: Float64Array,
) -> Samples:
    """Return samples divided by the scale of each column.

    It is done in float64 if a mean is so large that float32 would round away the variation. The
    scale of constant columns is 1.
    """
    if ((np.abs(means) / _LARGE_MEAN > scale) & (scale != 1)).any():
        samples = samples.wide()
    return samples.scaled(1 / scale)


def rounded_scale(
    deviation: Float64Array,
    size: Float64Array,
    dtype: np.dtype[Any],
    unit: float = 1.0,
) -> tuple[Float64Array, NDArray[np.bool_]]:
    """Return the scale of columns from their deviations and root mean squares, in units."""
    is_constant: NDArray[np.bool_] = deviation <= _CONSTANT * epsilon(dtype) * size
    rounded = np.where(is_constant, 1.0, deviation * unit).astype(dtype)
    # Nor can columns be divided by what has no reciprocal.
    is_constant |= rounded < 1 / np.finfo(dtype).max
    scale: Any = np.where(is_constant, 1.0, rounded.astype(np.float64))
    return scale, is_constant


def rounding_limits(
    squares: Float64Array | None,
    shape: tuple[int, int],
    dtype: np.dtype[Any],
    s: FloatArray,
    components: FloatArray,
) -> Float64Array:
    """Return for each direction v the size up to which ||Y v|| may be rounding error, shape (k,).

    Rounding of the entries of a column changes ||Y v|| by its share of their norm: a direction
    without the columns of large entries has small errors. Rounding in the solver is relative to the
    largest singular value, in float64. `squares` are the sums of squares of the columns of Y, whose
    entries are of type `dtype`; without them, all columns count as the largest.
    """
    largest = float(s.max(initial=0.0))
    lengths = np.full(len(components), largest)
    if squares is not None:
        lengths = np.sqrt(np.einsum("ij,ij,j->i", components, components, squares))
    rows, columns = shape
    spread = math.sqrt(max(1.0, columns / max(1, rows)))
    limits: Float64Array = np.maximum(
        ENTRY_ROUNDING * epsilon(dtype) * spread * lengths,
        SOLVER_ROUNDING * EPS * largest,
    )
    return limits


def times_square(
    variances: FloatArray,
    unit: float,
    dtype: np.dtype[Any] | None = None,
) -> FloatArray:
    """Return squares that are in units of a square; inf or 0 where the dtype does not reach."""
    with np.errstate(over="ignore"):
        return (variances * unit * unit).astype(dtype or variances.dtype)


def checked_scores(
    X: ArrayLike,
    columns: int,
    expected: str = "n_components_",
) -> FloatArray:
    """Check the argument of an inverse transform, and return it as float32 or float64.

    Raises
    ------
    ValueError
        If X is not finite, or has the wrong number of columns.
    """
    from sklearn.utils.validation import check_array

    check_not_masked(X, "X")
    scores: FloatArray = check_array(
        X,
        input_name="X",
        dtype=FLOAT_DTYPES,
        ensure_min_features=0,
        ensure_all_finite=False,
    )
    if not np.isfinite(largest_entry(scores)):
        raise not_finite(scores, "X")
    if scores.shape[1] != columns:
        raise ArgumentError(
            f"X must have {columns} columns ({expected}); got {scores.shape[1]}."
        )
    return scores


def require_samples(count: int, ddof: int) -> None:
    """Check `ddof`, and that the divisor of the variances is positive.

    Raises
    ------
    ArgumentTypeError, ArgumentError
        If `ddof` is negative or not an integer, or there are not more samples than `ddof`.
    """
    checked_integer(ddof, "ddof", least=0)
    if count <= ddof:
        raise ArgumentError(
            f"X must have more than {ddof} samples, as ddof={ddof}; got n_samples={count}."
        )


def _sums(
    places: NDArray[np.integer[Any]],
    values: FloatArray,
    length: int,
) -> Float64Array:
    """Return the sum of the values at each position 0, ..., length - 1."""
    sums: Any = np.bincount(places, weights=values, minlength=length)
    return np.asarray(sums, np.float64)


def _squares_by_row(
    samples: Samples,
    location: Float64Array,
    axes: FloatArray,
) -> tuple[Float64Array, Float64Array]:
    """Return the squared scores of Y - 1 location', shape (n, k), and the squares off the axes.

    Everything is in float64. Rows of dense samples are projected, so that nothing cancels, and of
    sparse samples those whose squares would.
    """
    if isinstance(samples, RowBlocks):
        parts = [
            _squares_by_row(block, location, axes) for block in samples.operators()
        ]
        along, beyond = zip(*parts, strict=True)
        return np.vstack(along), np.concatenate(beyond)
    if isinstance(samples, DenseOperator):
        return _projected_squares(samples, location, axes)
    wide = samples.wide().centred(location)
    scores = wide.matmat(np.ascontiguousarray(axes.T, np.float64))
    squares = scores.astype(np.float64, copy=False) ** 2
    whole = samples.row_squares(location)
    outside = whole - squares.sum(axis=1)
    whole += location @ location + samples.subtracted**2
    cancelled = np.flatnonzero(outside < _CANCELS * whole)
    for part in kernels.pieces(len(cancelled), max(1, _CHUNK // samples.shape[1])):
        rows = cancelled[part]
        _, outside[rows] = _projected_squares(samples.take(rows), location, axes)
    return squares, np.maximum(outside, 0.0)


def _projected_squares(
    samples: InMemory,
    location: Float64Array,
    axes: FloatArray,
) -> tuple[Float64Array, Float64Array]:
    """Return the numbers of `_squares_by_row` by dense rows less their projections."""
    wide = samples.wide().centred(location)
    V = np.ascontiguousarray(axes.T, np.float64)
    scores: list[Float64Array] = []
    outside: list[Float64Array] = []
    for block in wide.dense_blocks(0):
        step = _CHUNK // max(1, block.shape[1])
        for part in kernels.pieces(len(block), max(1, step)):
            rows = block[part].astype(np.float64, copy=False)
            along = rows @ V
            beyond = rows - along @ V.T
            scores.append(along)
            outside.append(np.einsum("ij,ij->i", beyond, beyond))
    return np.vstack(scores) ** 2, np.concatenate(outside)


class GaussianDensityMixin:
    """Gaussian density with one variance per component, and one in all other directions.

    References
    ----------
    Tipping & Bishop (1999), "Probabilistic principal component analysis", section 3.
    """

    components_: FloatArray
    explained_variance_: FloatArray
    noise_variance_: float
    scale_: FloatArray | None
    n_components_: int
    n_samples_: float
    n_features_in_: int
    random_state: Any
    _location: Float64Array  # mean of the model, in units of scale_
    _axes: FloatArray  # the components before they were rounded
    # A power of two, and the variances in units of its square, which neither overflow nor vanish.
    _unit: float
    _variances: Float64Array
    _noise: float
    _negligible_variance: Float64Array

    @abstractmethod
    def score_samples(self, X: MatrixLike) -> FloatArray:
        """Return the log-likelihood of each sample under the probabilistic model."""

    def score(self, X: MatrixLike, y: object = None) -> float:
        """Return the mean log-likelihood of samples; see `score_samples`."""
        likelihoods = self.score_samples(X)
        return float(np.mean(likelihoods, dtype=np.float64))

    def get_covariance(self) -> FloatArray:
        """Return the covariance of the model in the units of X, shape (n_features, n_features).

        It is V' diag(explained_variance_ - noise_variance_) V + noise_variance_ I, with or without
        whitening.
        """
        self._require_fit()
        noise = self._noise
        excess = np.maximum(self._variances - noise, 0)
        covariance: FloatArray = (self._axes.T * excess) @ self._axes
        covariance[np.diag_indices_from(covariance)] += noise
        if self.scale_ is not None:
            with np.errstate(over="ignore"):
                covariance *= np.outer(self.scale_, self.scale_)
        return times_square(covariance, self._unit, self.components_.dtype)

    def get_precision(self) -> FloatArray:
        """Return the inverse of `get_covariance`, without solving a system.

        Raises
        ------
        ArgumentError
            If the covariance is singular.
        """
        self._require_fit()
        if self._is_degenerate():
            raise ArgumentError(
                "The covariance must have full rank to be inverted; got one with directions "
                "without variance: use fewer components, so that noise_variance_ is positive."
            )
        # The inverse has the same axes: 1 / variance on them, and 1 / noise elsewhere.
        variances, noise = self._density_variances()
        base = 1 / noise if noise > 0 else 0.0
        precision: FloatArray = (self._axes.T * (1 / variances - base)) @ self._axes
        precision[np.diag_indices_from(precision)] += base
        if self.scale_ is not None:
            with np.errstate(over="ignore", divide="ignore"):
                precision /= np.outer(self.scale_, self.scale_)
        return times_square(precision, 1 / self._unit, self.components_.dtype)

    def sample(
        self, n_samples: int = 1, *, random_state: RandomStateLike = None
    ) -> FloatArray:
        """Draw samples from the probabilistic model, shape (n_samples, n_features).

        The default of `random_state` is the estimator's.

        Raises
        ------
        ArgumentError, ArgumentTypeError
            If `n_samples` is not an integer, or is negative.
        """
        self._require_fit()
        checked_integer(n_samples, "n_samples", least=0)
        rng = checked_generator(
            self.random_state if random_state is None else random_state
        )
        # x = V z + e, with the variance beyond the noise in z, and the noise in e.
        excess = np.maximum(self._variances - self._noise, 0)
        hidden = rng.standard_normal((n_samples, self.n_components_))
        hidden *= np.sqrt(excess)
        noise = rng.standard_normal((n_samples, self.n_features_in_))
        noise *= self._noise**0.5
        drawn = self._location / self._unit + hidden @ self._axes + noise
        drawn *= self._unit
        if self.scale_ is not None:
            drawn = drawn * self.scale_
        return np.asarray(drawn, self.components_.dtype)

    def _require_fit(self) -> None:
        from sklearn.utils.validation import check_is_fitted

        check_is_fitted(self)

    def _log_likelihoods(self, samples: Samples) -> FloatArray:
        """Return the log-likelihood of each preprocessed sample."""
        if self._is_degenerate():
            return np.full(samples.shape[0], -np.inf, samples.dtype)
        variances, noise = self._density_variances()
        location = self._location / self._unit
        if self._unit != 1:
            samples = samples.scaled(1 / self._unit)
        squares, outside = _squares_by_row(samples, location, self._axes)
        distance = (squares / variances).sum(axis=1)
        log_determinant = float(np.log(variances).sum())
        log_determinant += 2 * self.n_features_in_ * math.log(self._unit)
        if noise > 0:
            distance += outside / noise
            others = self.n_features_in_ - self.n_components_
            log_determinant += others * float(np.log(noise))
        if self.scale_ is not None:
            log_determinant += 2 * float(np.log(self.scale_, dtype=np.float64).sum())
        constant = self.n_features_in_ * float(np.log(2 * np.pi))
        likelihood = -0.5 * (constant + log_determinant + distance)
        return np.asarray(likelihood, samples.dtype)

    def _density_variances(self) -> tuple[Float64Array, float]:
        """Return the variances of the model along the components, and elsewhere, in units."""
        noise = float(self._noise)
        return np.maximum(self._variances.astype(np.float64), noise), noise

    def _is_degenerate(self) -> bool:
        """Return whether the model has a direction without variance."""
        variances, noise = self._density_variances()
        everywhere = noise > 0 or self.n_components_ == self.n_features_in_
        return not everywhere or bool(np.any(variances <= self._negligible_variance))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()  # type: ignore[misc]
        tags.input_tags.sparse = True
        return tags

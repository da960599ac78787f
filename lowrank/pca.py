"""Principal component analysis of dense and sparse data."""

from __future__ import annotations

import math
import numbers
import warnings
from dataclasses import KW_ONLY, dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from scipy import linalg
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from lowrank.errors import ArgumentError, check_positive
from lowrank.operators import DenseOperator, safe_exponent
from lowrank.rank import RULES, choose_rank
from lowrank.samples import (
    GaussianDensityMixin,
    checked_scores,
    column_scale,
    negligible_value,
    project,
    require_samples,
    samples_of,
    times_square,
    validated_samples,
)
from lowrank.solvers.lapack import lapack_svd
from lowrank.svd import truncated_svd, with_signs

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from lowrank.arguments import MatrixLike, RandomStateLike
    from lowrank.operators import Float64Array, FloatArray
    from lowrank.samples import Samples

_LEAST_ALIGNMENT = 0.9
_FULL_SPECTRUM = 1000  # largest min(shape) of dense data for computing all singular values
_EXTRA_DIRECTIONS = 10  # partial_fit keeps 2 n_components + this many directions between batches
_SQUARABLE = (
    1e-3  # singular value, next to the largest, that its square in float64 leaves 10 digits
)
_FIRST_GUESS = 32  # initial number of directions in the search for a fraction of the variance


class MeanAlignmentWarning(UserWarning):
    """The direction that ``center="auto"`` drops is far from the mean of the sparse data."""


def _can_follow_batches(pca: PCA) -> bool:
    wanted: Any = pca.n_components
    is_integer = isinstance(wanted, numbers.Integral) and not isinstance(wanted, bool)
    if wanted is not None and not (is_integer and wanted >= 0):
        raise AttributeError(
            f"n_components must be None or an integer for partial_fit; got {wanted!r}."
        )
    if pca.standardize:
        raise AttributeError(
            "standardize must be False for partial_fit, as deviations change with each batch."
        )
    return True


@dataclass(eq=False, repr=False)
class PCA(
    GaussianDensityMixin,
    ClassNamePrefixFeaturesOutMixin,  # type: ignore[misc]
    TransformerMixin,  # type: ignore[misc]
    BaseEstimator,  # type: ignore[misc]
):
    """Principal component analysis (PCA) of dense and sparse data.

    The data are Y = (X - 1 mean_') / scale_, where ``scale_`` is 1 unless `standardize` is set.
    Their best k-dimensional approximation is Z V', with orthonormal directions V' in
    ``components_`` and scores Z = Y V. The attributes have the same meaning for each `center`.

    Parameters
    ----------
    n_components : int, float or str, optional
        Number of components k, from 0 to min(n_samples, n_features); a fraction (between 0 and 1)
        of the total variance, for the smallest k that reaches it; or a rule of
        `lowrank.choose_rank`, such as "elbow" or "parallel". None keeps min(n_samples, n_features).
    center : {"auto", "exact", False}, default "auto"
        "exact" subtracts the column means; on sparse data this is a rank-one correction, without a
        dense copy. "auto" does the same on dense data. On sparse data, "auto" computes the first
        k + 1 directions of X without centring and drops the first, which is assumed to be the
        direction of the mean. ``mean_`` is then the projection of the column mean on the dropped
        direction, so that scores are plain products ``X V``; ``mean_alignment_`` checks the
        assumption. If all min(n_samples, n_features) components are kept, the dropped direction is
        the last. False does not centre (``mean_`` is 0), which gives a truncated SVD.
    standardize : bool, default False
        Divide columns by their standard deviation (PCA of the correlation matrix). Constant columns
        are divided by 1. Sparse data stay sparse.
    center_samples : bool, default False
        First subtract its mean from each row, as for image patches. On sparse data this is a
        rank-one correction, and only the rules "elbow" and "profile" can choose the number of
        components. `inverse_transform` does not add these means again.
    ddof : int, default 1
        Delta degrees of freedom: the divisor of variances is n_samples - ddof.
    whiten : bool, default False
        Scale the scores to variance 1. Scores along directions without variance become 0.
    tol : float, optional
        Tolerance of the singular triplets relative to the largest singular value, as in
        `lowrank.truncated_svd`: by default 1e-8 (1e-4 in float32); 0 is the limit of rounding.
    random_state : int, Generator, RandomState or None
        Seed of the solver's start vectors, of randomized rules and of `sample`.

    Attributes
    ----------
    components_ : ndarray of shape (n_components_, n_features)
        Orthonormal rows with deterministic signs: in each, the first entry whose magnitude is
        within 1% of the largest is positive.
    explained_variance_ : ndarray of shape (n_components_,)
        Variance of each column of the scores, about its own mean: inf or 0 where the dtype has no
        such square, which leaves the ratios, the whitened scores and the density as they are.
    explained_variance_ratio_ : ndarray of shape (n_components_,)
        Fraction of the total variance of the columns of X / scale_ along each component.
    singular_values_ : ndarray of shape (n_components_,)
        Norms of the columns of the (unwhitened) scores.
    distortion_ : float
        Squared reconstruction error of the training data, ||Y - Z V'||_F^2.
    mean_ : ndarray of shape (n_features,)
        Row subtracted from each sample: the column means for "exact", their projection on the
        dropped direction for "auto" on sparse data, zeros for False.
    mean_alignment_ : float or None
        |cosine| between the dropped direction and the column mean; None if no direction is dropped.
    scale_ : ndarray of shape (n_features,) or None
        Standard deviations of the columns, 1 for constant ones; None without `standardize`.
    noise_variance_ : float
        Mean variance of the min(n_samples, n_features) - k discarded directions; 0 if it is only
        rounding error.
    n_components_, n_samples_, n_features_in_ : int
        Numbers of components, samples and features. With forgetting, ``n_samples_`` is the sum of
        the sample weights.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Names of the features. Defined only if X has string column names.

    See Also
    --------
    lowrank.truncated_svd : The decomposition, with its certificate.
    lowrank.whitening.Whitening : PCA and ZCA whitening.

    References
    ----------
    Tipping & Bishop (1999), "Probabilistic principal component analysis", for the density;
    Jolliffe (2002), "Principal Component Analysis".

    Examples
    --------
    >>> import numpy as np
    >>> X = np.array([[1.0, 2.0], [3.0, 6.0], [5.0, 10.0], [7.0, 14.0]])
    >>> pca = PCA(n_components=0.99).fit(X)
    >>> pca.n_components_, pca.mean_
    (1, array([4., 8.]))
    >>> bool(np.allclose(pca.inverse_transform(pca.transform(X)), X))
    True

    Sparse data are never made dense:

    >>> from scipy import sparse
    >>> X = sparse.random_array((2000, 300), density=0.01, rng=0)
    >>> PCA(3, center="exact", random_state=0).fit_transform(X).shape
    (2000, 3)
    """

    n_components: int | float | str | None = None
    _: KW_ONLY
    center: str | bool = "auto"
    standardize: bool = False
    center_samples: bool = False
    ddof: int = 1
    whiten: bool = False
    tol: float | None = None
    random_state: RandomStateLike = None

    def fit(self, X: MatrixLike, y: object = None) -> Self:
        """Find the components.

        Parameters
        ----------
        X : array-like, scipy.sparse matrix or array, or RowBlocks, of shape (n_samples, n_features)
            Training data. Computations are float32 for float32 data, and float64 otherwise.
            RowBlocks, and a numpy.memmap above 1 GB, are read block by block.
        y : ignored

        Raises
        ------
        ArgumentTypeError, ArgumentError, ValueError
            If X is not finite or has too few samples, or a parameter is out of range.

        Warns
        -----
        MeanAlignmentWarning
            If a direction was dropped and ``mean_alignment_`` is below 0.9.
        """
        self._fit(X)
        return self

    def fit_transform(self, X: MatrixLike, y: object = None) -> FloatArray:
        """Find the components and return the scores of X, equal to those of `transform`."""
        return self._scores(self._fit(X))

    @available_if(_can_follow_batches)  # type: ignore[untyped-decorator]
    def partial_fit(self, X: MatrixLike, y: object = None, *, forgetting: float = 1.0) -> Self:
        """Update the fit with a batch of samples.

        Means and the total variance of all samples are exact. The components are approximate: about
        2 `n_components` directions are kept between batches, and variance outside of them is lost.
        Sparse batches are centred exactly, in a dense copy.

        Parameters
        ----------
        X : array-like or scipy.sparse matrix or array of shape (n_samples, n_features)
            The batch, preferably with several times more samples than `n_components`.
        y : ignored
        forgetting : float, default 1.0
            Factor, above 0 and at most 1, of the weights of all earlier samples.

        Raises
        ------
        ArgumentTypeError, ArgumentError, ValueError
            If X is not finite, is empty or has other features than before, if `forgetting` is out
            of range, or if ``center="auto"`` has dropped a direction of sparse data in `fit`.
        AttributeError
            If `standardize` is set, since the standard deviations change with each batch, or if
            `n_components` is a fraction or a rule.

        References
        ----------
        Ross, Lim, Lin & Yang (2008), "Incremental learning for robust visual tracking", for the
        mean; Brand (2006), "Fast low-rank modifications of the thin singular value decomposition".
        """
        before: Directions | None = getattr(self, "_so_far", None)
        data = validated_samples(self, X, accept_sparse="csr", reset=before is None)
        if before is not None and before.alignment is not None:
            raise ArgumentError(
                "center must be 'exact' or False in a fit that partial_fit continues; 'auto' has "
                "dropped a direction of sparse data."
            )
        check_positive(forgetting, "forgetting", or_zero=True)
        if not 0 < forgetting <= 1:
            raise ArgumentError(f"forgetting must be above 0 and at most 1; got {forgetting!r}.")
        samples = samples_of(data, self.center_samples)
        features, exponent = samples.shape[1], safe_exponent(samples.peak, samples.dtype)
        if before is None:
            require_samples(samples.shape[0], self.ddof)
            none = np.zeros((0, features), samples.dtype)
            before = Directions(
                none, none[:, 0], none[:, 0], np.zeros(features), None, 0.0, 0.0, 0.0,
                np.zeros(features), 0, exponent,
            )  # fmt: skip
        else:
            exponent = max(exponent, before.exponent)
            before = before.with_exponent(exponent)
        if exponent:
            samples = samples.scaled(2.0**-exponent)
        wanted = features if self.n_components is None else int(self.n_components)
        self._so_far = self._joined(before, samples, forgetting, 2 * wanted + _EXTRA_DIRECTIONS)
        self._keep(self._so_far.first(wanted))
        return self

    def transform(self, X: MatrixLike) -> FloatArray:
        """Return the scores of samples, shape (n_samples, n_components_)."""
        return self._scores(self._prepared(X))

    def score_samples(self, X: MatrixLike) -> FloatArray:
        """Return the log-likelihood of each sample under the probabilistic model.

        The model is a normal distribution whose mean is the column mean of the training data (for
        every value of `center`), and whose covariance is that of `get_covariance`. The result has
        shape (n_samples,). It is -inf if the covariance is singular.
        """
        return self._log_likelihoods(self._prepared(X))

    def inverse_transform(self, X: ArrayLike) -> FloatArray:
        """Reconstruct samples from scores: ``mean_ + X V' * scale_``, after undoing the whitening.

        ``X`` has shape (n_samples, n_components_).
        """
        check_is_fitted(self)
        scores = checked_scores(X, self.n_components_)
        if self.whiten:
            scores = scores * self._deviations
        samples: FloatArray = scores @ self.components_
        if self.scale_ is not None:
            samples *= self.scale_
        samples += self.mean_
        return samples

    def _fit(self, X: MatrixLike) -> Samples:
        """Set the fitted attributes, and return the preprocessed samples."""
        data = validated_samples(self, X, accept_sparse="csr")
        center: Any = self.center
        is_false = isinstance(center, (bool, np.bool_)) and not center
        if not is_false and not (isinstance(center, str) and center in ("auto", "exact")):
            raise ArgumentError(f"center must be 'auto', 'exact' or False; got {center!r}.")
        samples = samples_of(data, self.center_samples)
        require_samples(samples.shape[0], self.ddof)
        scale = column_scale(samples, self.ddof) if self.standardize else None
        samples = samples if scale is None else samples.scaled(1 / scale)
        wanted = self._wanted(samples)
        if isinstance(wanted, int):
            found = self._directions(samples, wanted)
        else:
            found = self._directions_for_fraction(samples, wanted)
        self._keep(found, scale)
        self._so_far = found
        if found.alignment is not None and found.alignment < _LEAST_ALIGNMENT:
            warnings.warn(
                f"mean_alignment_ is {found.alignment:.3f}, below {_LEAST_ALIGNMENT}: the dropped "
                "first direction does not carry the column mean; use center='exact'.",
                MeanAlignmentWarning,
                stacklevel=3,
            )
        return samples

    def _wanted(self, samples: Samples) -> int | float:
        """Return the requested number of components, or the requested fraction of the variance."""
        wanted, largest = self.n_components, min(samples.shape)
        if wanted is None:
            return largest
        if isinstance(wanted, str) and wanted in RULES:
            center, seed = bool(self.center) or None, self.random_state
            k = choose_rank(samples, wanted, center=center, random_state=seed)
            return min(k, largest)
        if isinstance(wanted, numbers.Real) and not isinstance(wanted, bool):
            if isinstance(wanted, numbers.Integral) and 0 <= wanted <= largest:
                return int(wanted)
            if 0 < wanted < 1:
                return float(wanted)
        raise ArgumentError(
            f"n_components must be an integer between 0 and {largest} (min(X.shape)), a fraction "
            f"between 0 and 1, None or one of {', '.join(map(repr, RULES))}; got {wanted!r}."
        )

    def _directions(self, samples: Samples, k: int) -> Directions:
        """Return k principal directions, 0 <= k <= min(samples.shape)."""
        means, largest = samples.column_means(), min(samples.shape)
        divisor = samples.shape[0] - self.ddof
        drop_first = samples.is_sparse and self.center == "auto"
        centred = bool(self.center) and not drop_first
        row = means if centred else np.zeros(samples.shape[1])
        svd = truncated_svd(
            samples,
            min(k + drop_first, largest),
            tol=self.tol,
            center=row if row.any() else None,
            random_state=self.random_state,
        )
        exponent = safe_exponent(svd.frobenius_norm or 0.0, samples.dtype)
        if exponent:
            samples, svd = samples.scaled(2.0**-exponent), svd._scaled(-exponent)
            means, row = means * 2.0**-exponent, row * 2.0**-exponent
        components, values, alignment = svd.Vt, svd.s, None
        negligible = negligible_value(
            svd.s, row, samples.shape[0], float(svd.residuals.max(initial=0.0))
        )
        if centred:
            variances = values**2 / values.dtype.type(divisor)
        else:  # variance about the mean of the scores
            left = svd.U - svd.U.mean(axis=0, dtype=np.float64)
            squares = values**2 * np.einsum("ij,ij->j", left, left)
            variances = np.asarray(squares / divisor, values.dtype)
        if drop_first:
            first, length = components[0].astype(np.float64), float(np.linalg.norm(means))
            along = float(means @ first)
            row, alignment = along * first, min(1.0, abs(along) / length) if length > 0 else 0.0
            order = np.arange(1, k + 1)
            if k == largest:  # no direction k + 1: the first one, minus the mean, becomes the last
                order[-1:] = 0
                values = values.copy()
                values[:1] = (variances[:1] * divisor) ** 0.5
            components, values, variances = components[order], values[order], variances[order]
        norm = None if drop_first else svd.frobenius_norm
        distance = float(samples.column_squares(row).sum()) if norm is None else norm**2
        total = distance if centred else float(samples.column_squares(means).sum())
        return Directions(
            components, values, variances, row, alignment, negligible, distance, total, means,
            samples.shape[0], exponent,
        )  # fmt: skip

    def _directions_for_fraction(self, samples: Samples, fraction: float) -> Directions:
        """Return the smallest number of principal directions with this share of the variance."""
        largest = min(samples.shape)
        whole = isinstance(samples, DenseOperator) and largest <= _FULL_SPECTRUM
        k = largest if whole else min(_FIRST_GUESS, largest)
        rounding = 4 * float(np.finfo(samples.dtype).eps)
        while True:
            found = self._directions(samples, k)
            total = found.total / (samples.shape[0] - self.ddof)
            carried = np.cumsum(found.variances, dtype=np.float64)
            needed = 1 + int(np.count_nonzero(carried < (fraction - rounding * k) * total))
            if needed <= k or k == largest:
                return found.first(needed)
            k = min(2 * k, largest)

    def _keep(self, found: Directions, scale: Float64Array | None = None) -> None:
        """Set the fitted attributes."""
        (k, features), dtype = found.components.shape, found.components.dtype
        divisor = found.n_samples - self.ddof
        total, discarded = found.total / divisor, min(found.n_samples, features) - k
        self.components_ = found.components
        self._unit = unit = 2.0**found.exponent
        self.singular_values_ = found.singular_values * dtype.type(unit)
        self._variances = found.variances
        self._deviations = np.sqrt(np.maximum(found.variances, 0)) * dtype.type(unit)
        self.explained_variance_ = times_square(found.variances, unit)
        self.explained_variance_ratio_ = found.variances / dtype.type(total or 1.0)
        row = found.row * unit
        self.mean_ = (row if scale is None else row * scale).astype(dtype)
        self.mean_alignment_ = found.alignment
        self.scale_ = None if scale is None else scale.astype(dtype)
        self.n_components_, self.n_samples_ = k, found.n_samples
        self._location = found.means * unit
        self._negligible_variance = found.negligible**2 / divisor
        left = _rest(total, found.variances)
        self._noise = left / discarded if discarded else 0.0
        self.noise_variance_ = self._noise * unit * unit
        self.distortion_ = _rest(found.squares, found.singular_values**2) * unit * unit

    def _joined(
        self, before: Directions, samples: Samples, forgetting: float, k: int
    ) -> Directions:
        """Return at most k directions of the union of earlier samples and a batch."""
        old, new = forgetting * before.n_samples, samples.shape[0]
        batch_means = samples.column_means()
        shift = batch_means - before.means
        means = before.means + shift * (new / (old + new))
        centred = bool(self.center)
        between = math.sqrt(old * new / (old + new)) * shift
        rows = samples.toarray()
        if centred:
            rows = np.vstack([rows - batch_means, between]).astype(samples.dtype)
        values = before.singular_values * math.sqrt(forgetting)
        stack = np.vstack([values[:, None] * before.components, rows])
        s, components = _leading_rows(stack.astype(samples.dtype, copy=False), k)
        total = forgetting * before.total + float(between @ between)
        total += float(samples.column_squares(batch_means).sum())
        squares = total if centred else total + (old + new) * float(means @ means)
        along = components @ means * (not centred)
        variances = (s.astype(np.float64) ** 2 - (old + new) * along**2) / (old + new - self.ddof)
        return Directions(
            components, s, variances.astype(samples.dtype), means * centred, None,
            negligible_value(s, means * centred, old + new), squares, total, means, old + new,
            before.exponent,
        )  # fmt: skip

    def _prepared(self, X: MatrixLike) -> Samples:
        """Check new rows, and preprocess them like the training data."""
        check_is_fitted(self)
        data = validated_samples(self, X, accept_sparse="csr", reset=False)
        samples = samples_of(data, self.center_samples)
        return samples if self.scale_ is None else samples.scaled(1 / self.scale_.astype(float))

    def _scores(self, samples: Samples) -> FloatArray:
        row = self.mean_ if self.scale_ is None else self.mean_ / self.scale_
        scores = project(samples, row.astype(np.float64), self.components_)
        if self.whiten:
            kept = self._variances > self._negligible_variance
            scores *= np.where(kept, 1 / np.where(kept, self._deviations, 1), 0)
        return scores


@dataclass(frozen=True, eq=False)
class Directions:
    """Orthonormal directions in m dimensions, and the variances of n samples along them.

    Arrays have shape (k, m) or (m,); singular values and variances have shape (k,).
    """

    components: FloatArray
    singular_values: FloatArray  # ||(Y - 1 row') v|| for each direction v
    variances: FloatArray  # along each direction, about the samples' own mean
    row: Float64Array  # row vector subtracted from each sample
    alignment: float | None  # |cosine| between the dropped direction (if any) and the column mean
    negligible: float  # singular values up to this limit are rounding errors
    squares: float  # ||Y - 1 row'||_F^2
    total: float  # sum of squares of Y about its means: total variance times the divisor
    means: Float64Array  # column means of Y
    n_samples: float  # sum of the sample weights
    exponent: int = 0  # the numbers above are those of the samples times 2**-exponent

    def first(self, k: int) -> Directions:
        """Return the first k directions with unchanged totals."""
        arrays = (self.components, self.singular_values, self.variances)
        components, values, variances = (array[:k].copy() for array in arrays)
        return replace(self, components=components, singular_values=values, variances=variances)

    def with_exponent(self, exponent: int) -> Directions:
        """Return the same directions in units of 2**exponent."""
        unit = 2.0 ** (self.exponent - exponent)
        lengths = {name: getattr(self, name) * unit for name in ("row", "negligible", "means")}
        squares = {name: getattr(self, name) * unit * unit for name in ("squares", "total")}
        return replace(
            self,
            **lengths,
            **squares,
            singular_values=self.singular_values * self.components.dtype.type(unit),
            variances=times_square(self.variances, unit),
            exponent=exponent,
        )


def _leading_rows(stack: FloatArray, k: int) -> tuple[FloatArray, FloatArray]:
    """Return at most k singular values and right vectors of a few rows, with fixed signs.

    The smaller Gram matrix is used if squaring loses no digits, else LAPACK.
    """
    rows, columns = stack.shape
    if 0 < 2 * k < min(stack.shape):
        wide = stack.astype(np.float64, copy=False)
        values, vectors = np.linalg.eigh(wide @ wide.T if rows <= columns else wide.T @ wide)
        s, vectors = np.sqrt(np.maximum(values[: -k - 1 : -1], 0)), vectors[:, : -k - 1 : -1].T
        if s[-1] > _SQUARABLE * s[0]:
            Vt = vectors @ wide / s[:, None] if rows <= columns else vectors
            _, s, Vt = with_signs(np.ones((1, s.size)), s, Vt)
            return s.astype(stack.dtype), Vt.astype(stack.dtype)
    if rows > columns:  # the R of a QR decomposition has the same values and right vectors
        stack = linalg.qr(stack, mode="r", check_finite=False)[0][:columns]
    _, s, Vt = with_signs(*lapack_svd(stack))
    return s[:k], Vt[:k]


def _rest(total: float, terms: FloatArray) -> float:
    """Return total - sum(terms), or 0 if the difference is only rounding error."""
    rest = total - float(terms.sum(dtype=np.float64))
    rounding = 4 * float(np.finfo(terms.dtype).eps) * total * max(1.0, terms.size**0.5)
    return rest if rest > rounding else 0.0

"""Principal component analysis of dense and sparse data."""

from __future__ import annotations

import numbers
import warnings
from dataclasses import KW_ONLY, dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from lowrank.blocks import RowBlocks
from lowrank.directions import (
    PrincipalDirections,
    Solver,
    directions_about,
    directions_after_the_first,
    joined_directions,
    no_directions,
    weighted_directions,
)
from lowrank.errors import (
    ArgumentError,
    ArgumentTypeError,
    check_choice,
    check_positive,
)
from lowrank.estimator import Estimator
from lowrank.kernels.arrays import epsilon
from lowrank.operators import DenseOperator, safe_exponent
from lowrank.rank import RULES, choose_rank
from lowrank.samples import (
    GaussianDensityMixin,
    checked_scores,
    column_scale,
    project,
    require_samples,
    samples_of,
    standardized,
    times_square,
    validated_samples,
)
from lowrank.solvers import SOLVERS
from lowrank.weighting import (
    WeightedSamples,
    checked_weights,
    weighted_scale,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import ArrayLike

    from lowrank.arguments import MatrixLike, RandomStateLike
    from lowrank.operators import Float64Array, FloatArray
    from lowrank.samples import Samples

_FULL_SPECTRUM = (
    1000  # largest min(shape) of dense data for computing all singular values
)
_EXTRA_DIRECTIONS = (
    10  # partial_fit keeps 2 n_components + this many directions between batches
)
_LEAST_DIVISOR = (
    1e-6  # smallest divisor of the variances, relative to the sum of the weights
)
_FIRST_GUESS = (
    32  # initial number of directions in the search for a fraction of the variance
)


class MeanAlignmentWarning(UserWarning):
    """The direction that ``center="drop"`` drops carries variance about the mean."""


def _can_follow_batches(pca: PCA) -> bool:
    requested: Any = pca.n_components
    is_integer = isinstance(requested, numbers.Integral) and not isinstance(
        requested, bool
    )
    if requested is not None and not (is_integer and requested >= 0):
        raise AttributeError(
            f"n_components must be None or an integer for partial_fit; got {requested!r}."
        )
    if pca.standardize:
        raise AttributeError(
            "standardize must be False for partial_fit, as deviations change with each batch."
        )
    return True


@dataclass(eq=False, repr=False)
class PCA(GaussianDensityMixin, Estimator):
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
    center : {"auto", "exact", "drop", True, False}, default "auto"
        "exact" (or True) subtracts the column means; on sparse data this is a rank-one correction,
        without a dense copy. False does not centre (``mean_`` is 0), which gives a truncated SVD.
        "drop" computes the first k + 1 directions of X without centring and drops the first, the
        direction of the mean. ``mean_`` is then the projection of the column mean on the dropped
        direction, so that scores are plain products ``X V``. If all min(n_samples, n_features)
        components are kept, the dropped direction is the last. "auto" is "exact" on dense data. On
        sparse data it is "drop" for an integer k, if the dropped direction has no more variance
        about the mean than the last component, and if the components together lose at most 1% of
        the variance that "exact" keeps; otherwise "exact". ``centering_`` tells which.
    standardize : bool, default False
        Divide columns by their standard deviation (PCA of the correlation matrix). Columns that are
        constant up to rounding are divided by 1 and left out. Sparse data stay sparse.
    center_samples : bool, default False
        First subtract its mean from each row, as for image patches. On sparse data this is a
        rank-one correction, and only the rule "elbow" can choose the number of components.
        `inverse_transform` does not add these means again.
    ddof : int, default 1
        Delta degrees of freedom: the divisor of variances is n_samples - ddof.
    whiten : bool, default False
        Scale the scores to variance 1. Scores along directions whose variance is only rounding
        error become 0.
    method : str, default "auto"
        Solver, as in `lowrank.truncated_svd`.
    tol : float, optional
        Tolerance of the singular triplets relative to their singular values, as in
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
        dropped direction for "drop", zeros for False.
    centering_ : str
        "exact", "drop", or "none" for ``center=False``.
    mean_alignment_ : float or None
        |cosine| between the column mean and the direction that was dropped, or that "auto" has
        tried to drop; None if there is none.
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
    method: str = "auto"
    tol: float | None = None
    random_state: RandomStateLike = 0

    def fit(
        self,
        X: MatrixLike,
        y: object = None,
        sample_weight: ArrayLike | None = None,
    ) -> Self:
        """Find the components.

        Parameters
        ----------
        X : array-like, scipy.sparse matrix or array, or RowBlocks, of shape (n_samples, n_features)
            Training data. Computations are float32 for float32 data, and float64 otherwise.
            RowBlocks, and a numpy.memmap above 1 GB, are read block by block.
        y : ignored
        sample_weight : array-like of shape (n_samples,), optional
            Weights of the samples, finite and not negative: a weight of 2 stands for a sample
            twice, a weight of 0 for none, and the divisor of variances is their sum minus `ddof`.
            Sparse data are then centred exactly unless `center` is False. Not for RowBlocks and
            rules for `n_components`.

        Raises
        ------
        ArgumentTypeError, ArgumentError, ValueError
            If X is not finite or has too few samples, or a parameter is out of range.

        Warns
        -----
        MeanAlignmentWarning
            If `center` is "drop" and "auto" would not drop the direction.
        ConvergenceWarning
            As `lowrank.truncated_svd`.
        """
        self._fit(X, sample_weight)
        return self

    def fit_transform(
        self,
        X: MatrixLike,
        y: object = None,
        sample_weight: ArrayLike | None = None,
    ) -> FloatArray:
        """Find the components and return the scores of X, equal to `transform`."""
        samples = self._fit(X, sample_weight)
        return self._scores(samples, self.components_.dtype)

    @available_if(_can_follow_batches)  # type: ignore[untyped-decorator]
    def partial_fit(
        self,
        X: MatrixLike,
        y: object = None,
        *,
        forgetting: float = 1.0,
    ) -> Self:
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
            of range, or if a direction of sparse data was dropped in `fit`.
        AttributeError
            If `standardize` is set, since the standard deviations change with each batch, or if
            `n_components` is a fraction or a rule.

        References
        ----------
        Ross, Lim, Lin & Yang (2008), "Incremental learning for robust visual tracking", for the
        mean; Brand (2006), "Fast low-rank modifications of the thin singular value decomposition".
        """
        before: PrincipalDirections | None = getattr(self, "_so_far", None)
        data = validated_samples(self, X, accept_sparse="csr", reset=before is None)
        if before is not None and before.centering == "drop":
            raise ArgumentError(
                "center must be 'exact' or False in a fit that partial_fit continues; "
                f"{self.center!r} has dropped a direction of sparse data."
            )
        check_positive(forgetting, "forgetting", or_zero=True)
        if not 0 < forgetting <= 1:
            raise ArgumentError(
                f"forgetting must be above 0 and at most 1; got {forgetting!r}."
            )
        samples = samples_of(data, self.center_samples)
        features, exponent = (
            samples.shape[1],
            safe_exponent(samples.peak, np.dtype(np.float64)),
        )
        n_components = self._wanted_of_batches(features)
        if before is None:
            require_samples(samples.shape[0], self.ddof)
            centering = self._checked_center()
            before = no_directions(
                features, "none" if centering == "none" else "exact", exponent
            )
        else:
            exponent = max(exponent, before.exponent)
            before = before.with_exponent(exponent)
        weight = forgetting * before.n_samples + samples.shape[0]
        # The variances would be divided by nothing.
        if weight - self.ddof <= _LEAST_DIVISOR * weight:
            raise ArgumentError(
                f"forgetting must leave earlier samples a weight: with {forgetting!r}, the weights "
                f"of all samples add up to {weight:.3g}, not above ddof={self.ddof}."
            )
        dtype = samples.dtype
        if before.n_rows:
            dtype = np.result_type(dtype, self.components_.dtype)
        if exponent:
            samples = samples.scaled(2.0**-exponent)
        self._so_far = joined_directions(
            before,
            samples,
            forgetting=forgetting,
            k=2 * n_components + _EXTRA_DIRECTIONS,
            ddof=self.ddof,
        )
        rank = min(n_components, len(self._so_far.components))
        self._keep(self._so_far.first(rank, weight - self.ddof), dtype)
        return self

    def _wanted_of_batches(self, features: int) -> int:
        """Return the number of components for `partial_fit`, at most one per feature."""
        if self.n_components is None:
            return features
        if int(self.n_components) > features:
            raise ArgumentError(
                f"n_components must be an integer between 0 and {features} (n_features) for "
                f"partial_fit; got {self.n_components!r}."
            )
        return int(self.n_components)

    def transform(self, X: MatrixLike) -> FloatArray:
        """Return the scores of samples, shape (n_samples, n_components_)."""
        return self._scores(*self._prepared(X))

    def score_samples(self, X: MatrixLike) -> FloatArray:
        """Return the log-likelihood of each sample under the probabilistic model.

        The model is a normal distribution whose mean is the column mean of the training data (for
        every value of `center`), and whose covariance is `get_covariance`. The result has
        shape (n_samples,). It is -inf if the covariance is singular.
        """
        samples, dtype = self._prepared(X)
        return self._log_likelihoods(samples).astype(dtype, copy=False)

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

    def _fit(
        self,
        X: MatrixLike,
        sample_weight: ArrayLike | None = None,
    ) -> Samples:
        """Set the fitted attributes, and return the preprocessed samples."""
        data = validated_samples(self, X, accept_sparse="csr")
        centering = self._checked_center()
        check_choice(self.method, ("auto", *SOLVERS))
        samples = samples_of(data, self.center_samples)
        require_samples(samples.shape[0], self.ddof)
        if sample_weight is not None:
            weights = checked_weights(sample_weight, samples.shape[0], "sample_weight")
            return self._fit_weighted(samples, weights, centering)
        scale = None
        is_constant = np.zeros(samples.shape[1], bool)
        if self.standardize:
            scale, is_constant = column_scale(samples, self.ddof)
            samples = standardized(samples, scale, samples.column_means())
        fitted = samples
        if is_constant.any():  # up to rounding, which must not count as variance
            fitted = samples.scaled(np.where(is_constant, 0.0, 1.0))
        requested = self._wanted(fitted)
        if isinstance(requested, int):
            directions = self._directions(fitted, requested, centering)
        else:
            if centering == "auto":  # the cost of dropping is known for one number only
                centering = "exact"
            directions = self._directions_for_fraction(
                fitted,
                requested,
                fitted.shape[0] - self.ddof,
                lambda k: self._directions(fitted, k, centering),
            )
        if fitted is not samples:
            directions = directions.with_means(samples.column_means())
        self._keep(directions, data.dtype, scale)
        self._so_far = directions
        return samples

    def _fit_weighted(
        self,
        samples: Samples,
        weights: Float64Array,
        centering: str,
    ) -> Samples:
        """Set the fitted attributes for weighted samples, and return all, preprocessed."""
        if centering == "drop":
            raise ArgumentError(
                "center must be 'auto', 'exact' or False with sample_weight; got 'drop'."
            )
        if isinstance(samples, RowBlocks):
            raise ArgumentTypeError(
                "X must be an array or a sparse matrix with sample_weight; got RowBlocks."
            )
        total = float(weights.sum())
        if total <= self.ddof:
            raise ArgumentError(
                f"sample_weight must add up to more than ddof={self.ddof}; got {total:g}."
            )
        is_centred = centering != "none"
        weighted = WeightedSamples.of(samples, weights, centred=is_centred)
        scale, means, dtype = None, weighted.means, samples.dtype
        if self.standardize:
            scale, is_constant = weighted_scale(samples, weights, self.ddof)
            samples = standardized(samples, scale, means)
            means = means / scale
            weighted = weighted.scaled(np.where(is_constant, 0.0, 1 / scale))
        if isinstance(self.n_components, str):
            raise ArgumentError(
                "n_components must be an integer, a fraction or None with sample_weight; got "
                f"{self.n_components!r}."
            )
        requested = self._wanted(weighted.matrix)
        solver = Solver(self.ddof, self.method, self.tol, self.random_state)
        if isinstance(requested, int):
            directions = weighted_directions(weighted, requested, solver)
        else:
            directions = self._directions_for_fraction(
                weighted.matrix,
                requested,
                total - self.ddof,
                lambda k: weighted_directions(weighted, k, solver),
            )
        if scale is not None:
            directions = directions.with_means(means)
        self._keep(directions, dtype, scale)
        self._so_far = directions
        return samples

    def _checked_center(self) -> str:
        """Return "auto", "exact", "drop" or "none" for the parameter `center`."""
        center: Any = self.center
        if isinstance(center, (bool, np.bool_)):
            return "exact" if center else "none"
        if isinstance(center, str) and center in ("auto", "exact", "drop"):
            return center
        raise ArgumentError(
            f"center must be 'auto', 'exact', 'drop', True or False; got {center!r}."
        )

    def _wanted(self, samples: Samples) -> int | float:
        """Return the requested number of components, or the requested fraction of the variance."""
        requested = self.n_components
        largest = min(samples.shape)
        if requested is None:
            return largest
        if isinstance(requested, str) and requested in RULES:
            is_centred = self._checked_center() != "none"
            k = choose_rank(
                samples, requested, center=is_centred, random_state=self.random_state
            )
            return min(k, largest)
        if isinstance(requested, numbers.Real) and not isinstance(requested, bool):
            if isinstance(requested, numbers.Integral) and 0 <= requested <= largest:
                return int(requested)
            if 0 < requested < 1:
                return float(requested)
        raise ArgumentError(
            f"n_components must be an integer between 0 and {largest} (min(X.shape)), a fraction "
            f"between 0 and 1, None or one of {', '.join(map(repr, RULES))}; got {requested!r}."
        )

    def _directions(
        self,
        samples: Samples,
        k: int,
        centering: str,
    ) -> PrincipalDirections:
        """Return k principal directions, 0 <= k <= min(samples.shape)."""
        solver = Solver(self.ddof, self.method, self.tol, self.random_state)
        has_others = samples.is_sparse and k < min(samples.shape)
        if centering in ("exact", "none") or (centering == "auto" and not has_others):
            return directions_about(samples, k, solver, centred=centering != "none")
        dropped = directions_after_the_first(samples, k, solver)
        if dropped.is_small:
            return dropped.directions
        alignment = dropped.directions.alignment
        if centering == "auto":  # the alignment says why nothing was dropped
            return replace(
                directions_about(samples, k, solver, centred=True), alignment=alignment
            )
        warnings.warn(
            "The dropped first direction carries variance about the mean: the components may lose "
            f"{dropped.loss:.1%} of the variance that exact centring keeps (mean_alignment_ is "
            f"{alignment:.3f}); use center='exact'.",
            MeanAlignmentWarning,
            stacklevel=4,
        )
        return dropped.directions

    def _directions_for_fraction(
        self,
        samples: Samples,
        fraction: float,
        divisor: float,
        directions_of: Callable[[int], PrincipalDirections],
    ) -> PrincipalDirections:
        """Return the smallest number of principal directions with this share of the variance."""
        largest = min(samples.shape)
        is_complete = isinstance(samples, DenseOperator) and largest <= _FULL_SPECTRUM
        k = largest if is_complete else min(_FIRST_GUESS, largest)
        rounding = 4 * epsilon(samples.dtype)
        while True:
            directions = directions_of(k)
            total = directions.total / divisor
            carried = np.cumsum(directions.variances)
            needed = 1 + int(
                np.count_nonzero(carried < (fraction - rounding * k) * total)
            )
            if needed <= k or k == largest:
                return directions.first(needed, divisor)
            k = min(2 * k, largest)  # the last solve takes about half of all time

    def _keep(
        self,
        directions: PrincipalDirections,
        dtype: np.dtype[Any],
        scale: Float64Array | None = None,
    ) -> None:
        """Set the fitted attributes, in the type of the data."""
        k, features = directions.components.shape
        divisor = directions.n_samples - self.ddof
        total = directions.total / divisor
        # There are at most as many directions as rows, and as columns.
        discarded = min(directions.n_rows, features) - k
        variances = np.maximum(directions.variances, 0.0)  # differences of sums
        self.components_ = directions.components.astype(dtype, copy=False)
        self._unit = unit = 2.0**directions.exponent
        self.singular_values_ = (directions.singular_values * unit).astype(dtype)
        self._variances = variances
        self._deviations = (np.sqrt(variances) * unit).astype(dtype)
        self.explained_variance_ = times_square(variances, unit, dtype)
        self.explained_variance_ratio_ = (variances / (total or 1.0)).astype(dtype)
        # The mean before it is rounded and multiplied by the scale.
        self._row = row = directions.row * unit
        self.mean_ = (row if scale is None else row * scale).astype(dtype)
        self.mean_alignment_ = directions.alignment
        self.centering_ = directions.centering
        self.scale_ = None if scale is None else scale.astype(dtype)
        self.n_components_, self.n_samples_ = k, directions.n_samples
        self._location = directions.means * unit
        self._axes = directions.components
        self._negligible_variance = directions.negligible**2 / divisor
        self._noise = directions.unexplained / divisor / discarded if discarded else 0.0
        self.noise_variance_ = self._noise * unit * unit
        self.distortion_ = directions.distortion * unit * unit

    def _prepared(self, X: MatrixLike) -> tuple[Samples, np.dtype[Any]]:
        """Check new rows, and preprocess them like the training data; return their type, too."""
        check_is_fitted(self)
        data = validated_samples(self, X, accept_sparse="csr", reset=False)
        samples = samples_of(data, self.center_samples)
        if self.scale_ is not None:
            scale = self.scale_.astype(np.float64)
            samples = standardized(samples, scale, self._location * scale)
        return samples, data.dtype

    def _scores(self, samples: Samples, dtype: np.dtype[Any]) -> FloatArray:
        scores = project(samples, self._row, self.components_)
        if self.whiten:
            has_variance = self._variances > self._negligible_variance
            scores[:, ~has_variance] = 0
            scores /= np.where(has_variance, self._deviations, 1)
        return scores.astype(dtype, copy=False)

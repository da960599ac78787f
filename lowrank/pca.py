"""Principal component analysis of dense and sparse data."""

from __future__ import annotations

import numbers
import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from lowrank.samples import (
    NormalModel,
    checked_scores,
    column_scale,
    negligible_value,
    require_samples,
    samples_of,
)
from lowrank.svd import SVD, truncated_svd

if TYPE_CHECKING:
    from lowrank.operators import FloatArray
    from lowrank.samples import Float64Array, Samples

__all__ = [
    "Directions",
    "MeanAlignmentWarning",
    "PCA",
    "Search",
    "directions_for_fraction",
    "principal_directions",
]

_RULES = ("elbow", "gavish-donoho", "parallel", "cv", "mle")
_LEAST_ALIGNMENT = 0.9
_DTYPES = [np.float64, np.float32]


class MeanAlignmentWarning(UserWarning):
    """The direction that ``center="auto"`` drops from sparse data is not that of their mean."""


class PCA(
    NormalModel,
    ClassNamePrefixFeaturesOutMixin,  # type: ignore[misc]
    TransformerMixin,  # type: ignore[misc]
    BaseEstimator,  # type: ignore[misc]
):
    """Principal component analysis (PCA), with every option on dense and on sparse data.

    The data are Y = (X - 1 mean_') / scale_, where ``scale_`` is 1 unless `standardize` is set.
    Their best k-dimensional approximation is Z V', with orthonormal directions V' in
    ``components_`` and scores Z = Y V. What is subtracted depends on `center`; what else is said
    about the fit holds for each way.

    Parameters
    ----------
    n_components : int, float or str, optional
        Number of components k, from 0 to min(n_samples, n_features); the fraction (between 0 and 1)
        of the total variance that they must carry at least; or a rule of `lowrank.rank`: "elbow",
        "gavish-donoho", "parallel", "cv" or "mle". None keeps min(n_samples, n_features).
    center : {"auto", "exact", False}, default "auto"
        "exact" subtracts the column means, from sparse data as a correction of rank one that
        leaves them sparse. "auto" is the same on dense data. On sparse data it takes the
        k + 1 first directions of X as it is and drops the first, which is taken to carry the mean:
        ``mean_`` is then the part of the column mean along the dropped direction, so that scores
        are plain products ``X V``. How far the assumption holds is ``mean_alignment_``. If all
        min(n_samples, n_features) components are kept, the dropped direction is the last.
        False subtracts nothing (``mean_`` is 0): a truncated SVD.
    standardize : bool, default False
        Divide columns by their standard deviation (PCA of the correlations); constant columns are
        divided by 1. Sparse data stay sparse.
    center_samples : bool, default False
        First subtract from each row its own mean, as for image patches; from sparse data as a
        correction of rank one. `inverse_transform` does not restore these means. The rule
        "parallel" then permutes the entries of sparse data before their rows are centred, and
        brings the columns of the result to the length that they have in the data.
    ddof : int, default 1
        Variances have the divisor n_samples - ddof.
    whiten : bool, default False
        Scale the scores to variance 1. Scores along directions without variance become 0.
    tol : float, optional
        Accuracy of the singular triplets, as in `lowrank.truncated_svd`: by default 1e-8 (1e-4 in
        float32) of the largest value, and 0 for all that rounding allows.
    random_state : int, Generator, RandomState or None
        Seed of the solver's start vectors, of the rules that draw random numbers and of `sample`.

    Attributes
    ----------
    components_ : ndarray of shape (n_components_, n_features)
        Orthonormal rows with deterministic signs: in each, the first of the entries that are
        largest to within 1% is positive.
    explained_variance_ : ndarray of shape (n_components_,)
        Variance of each column of the scores, about its own mean.
    explained_variance_ratio_ : ndarray of shape (n_components_,)
        The same as shares of the total variance of the columns of X / scale_.
    singular_values_ : ndarray of shape (n_components_,)
        Norms of the columns of the (unwhitened) scores.
    distortion_ : float
        ||Y - Z V'||_F^2, the squared reconstruction error of the training data.
    mean_ : ndarray of shape (n_features,)
        What is subtracted from each row.
    mean_alignment_ : float or None
        |cosine| between the dropped direction and the column mean; None if none was dropped.
    scale_ : ndarray of shape (n_features,) or None
        Standard deviations of the columns; None without `standardize`.
    noise_variance_ : float
        Mean variance of the min(n_samples, n_features) - k discarded directions; 0 within rounding.
    n_components_, n_samples_, n_features_in_ : int
        Number of components, and shape of the training data.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Only if X has column names.

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

    def __init__(
        self,
        n_components: int | float | str | None = None,
        *,
        center: str | bool = "auto",
        standardize: bool = False,
        center_samples: bool = False,
        ddof: int = 1,
        whiten: bool = False,
        tol: float | None = None,
        random_state: int | np.random.Generator | np.random.RandomState | None = None,
    ) -> None:
        self.n_components = n_components
        self.center = center
        self.standardize = standardize
        self.center_samples = center_samples
        self.ddof = ddof
        self.whiten = whiten
        self.tol = tol
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> Self:
        """Find the components.

        Parameters
        ----------
        X : array-like or scipy.sparse matrix or array of shape (n_samples, n_features)
            Training data; float32 is worked on in float32, everything else in float64.
        y : ignored

        Returns
        -------
        PCA
            The estimator itself.

        Raises
        ------
        TypeError, ValueError
            If X is not finite or has too few samples, or a parameter is out of its range.

        Warns
        -----
        MeanAlignmentWarning
            If a direction was dropped and ``mean_alignment_`` is below 0.9.
        """
        self._fit(X)
        return self

    def fit_transform(self, X: Any, y: Any = None) -> FloatArray:
        """Find the components and return the scores of X, the same as `transform` does.

        Parameters
        ----------
        X : array-like or scipy.sparse matrix or array of shape (n_samples, n_features)
        y : ignored

        Returns
        -------
        ndarray of shape (n_samples, n_components_)
        """
        return self._scores(self._fit(X))

    def transform(self, X: Any) -> FloatArray:
        """Return the scores of samples.

        Parameters
        ----------
        X : array-like or scipy.sparse matrix or array of shape (n_samples, n_features)

        Returns
        -------
        ndarray of shape (n_samples, n_components_)
        """
        return self._scores(self._prepared(X))

    def score_samples(self, X: Any) -> FloatArray:
        """Return the log-likelihood of each sample under the probabilistic model.

        The model is a normal distribution about the column mean of the training data (for each
        value of `center`), with the covariance of `get_covariance`.

        Parameters
        ----------
        X : array-like or scipy.sparse matrix or array of shape (n_samples, n_features)

        Returns
        -------
        ndarray of shape (n_samples,)
            -inf for each sample if the covariance is singular, so that there is no density.
        """
        return self._log_likelihoods(self._prepared(X))

    def inverse_transform(self, X: Any) -> FloatArray:
        """Return the samples that have given scores: ``mean_ + X V' * scale_``, whitening undone.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_components_)
            Scores.

        Returns
        -------
        ndarray of shape (n_samples, n_features)

        Raises
        ------
        ValueError
            If X has not n_components_ columns.
        """
        check_is_fitted(self)
        scores = checked_scores(X, self.n_components_)
        if self.whiten:
            scores = scores * np.sqrt(self.explained_variance_)
        samples: FloatArray = scores @ self.components_
        if self.scale_ is not None:
            samples *= self.scale_
        samples += self.mean_
        return samples

    def _fit(self, X: Any) -> Samples:
        """Set the fitted attributes; return the samples as they were analysed."""
        X = validate_data(self, X, dtype=_DTYPES, accept_sparse="csr")
        search = self._search(X)
        samples = samples_of(X, self.center_samples)
        require_samples(samples.shape[0], self.ddof)
        scale = None
        if self.standardize:
            scale = column_scale(samples, self.ddof)
            samples = samples.divided(scale)
        found = self._directions(samples, search)
        self._keep(samples, scale, found)
        if found.alignment is not None and found.alignment < _LEAST_ALIGNMENT:
            warnings.warn(
                f"mean_alignment_ is {found.alignment:.3f}, below {_LEAST_ALIGNMENT}: the dropped "
                "first direction does not carry the column mean; use center='exact'.",
                MeanAlignmentWarning,
                stacklevel=3,
            )
        return samples

    def _search(self, X: Any) -> Search:
        """Check `center` and return how the directions are computed."""
        if isinstance(self.center, (bool, np.bool_)) and not self.center:
            route = "uncentred"
        elif isinstance(self.center, str) and self.center in ("auto", "exact"):
            dropping = self.center == "auto" and not isinstance(X, np.ndarray)
            route = "drop-first" if dropping else "centred"
        else:
            raise ValueError(f"center must be 'auto', 'exact' or False; got {self.center!r}.")
        return Search(route, self.ddof, self.tol, self.random_state)

    def _directions(self, samples: Samples, search: Search) -> Directions:
        wanted, largest = self.n_components, min(samples.shape)
        if wanted is None:
            return principal_directions(samples, largest, search)
        if isinstance(wanted, str) and wanted in _RULES:
            return principal_directions(samples, self._chosen_rank(samples, search), search)
        if isinstance(wanted, numbers.Integral) and not isinstance(wanted, bool):
            if not 0 <= wanted <= largest:
                raise ValueError(
                    f"n_components must be between 0 and {largest} (min(X.shape)); got {wanted}."
                )
            return principal_directions(samples, int(wanted), search)
        if isinstance(wanted, numbers.Real) and not isinstance(wanted, bool) and 0 < wanted < 1:
            return directions_for_fraction(samples, float(wanted), search)
        rules = ", ".join(repr(rule) for rule in _RULES)
        raise ValueError(
            f"n_components must be an integer between 0 and {largest}, a fraction between 0 and 1, "
            f"None or one of {rules}; got {wanted!r}."
        )

    def _chosen_rank(self, samples: Samples, search: Search) -> int:
        from lowrank.rank import choose_rank

        center = None if search.route == "uncentred" else True
        k = choose_rank(
            samples.matrix, str(self.n_components), center=center, random_state=self.random_state
        )
        return min(k, *samples.shape)

    def _keep(self, samples: Samples, scale: Float64Array | None, found: Directions) -> None:
        (count, features), dtype = samples.shape, samples.dtype
        k, total = found.singular_values.size, found.total / (count - self.ddof)
        row = found.row if scale is None else found.row * scale
        self.components_ = found.components
        self.singular_values_ = found.singular_values
        self.explained_variance_ = found.variances
        self.explained_variance_ratio_ = found.variances / dtype.type(total or 1.0)
        self.mean_ = row.astype(dtype)
        self.mean_alignment_ = found.alignment
        self.scale_ = None if scale is None else scale.astype(dtype)
        self.n_components_, self.n_samples_ = k, count
        self._location = samples.means
        self._negligible_variance = found.negligible**2 / (count - self.ddof)
        self.noise_variance_ = _mean_left(total, found.variances, min(count, features) - k)
        self.distortion_ = _left(found.squares, found.singular_values**2)

    def _prepared(self, X: Any) -> Samples:
        """Check new rows, and prepare them as those of the training data were."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=_DTYPES, accept_sparse="csr", reset=False)
        scale = None if self.scale_ is None else self.scale_.astype(np.float64)
        return samples_of(X, self.center_samples).divided(scale)

    def _scores(self, samples: Samples) -> FloatArray:
        row = self.mean_ if self.scale_ is None else self.mean_ / self.scale_
        scores = samples.projected(row.astype(np.float64), self.components_)
        if self.whiten:
            variances = self.explained_variance_
            kept = variances > self._negligible_variance
            scores *= np.where(kept, 1 / np.sqrt(np.where(kept, variances, 1)), 0)
        return scores

    @property
    def _n_features_out(self) -> int:
        return int(self.components_.shape[0])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        tags.input_tags.sparse = True
        return tags


def _left(total: float, parts: FloatArray) -> float:
    """Return total - sum(parts), and 0 for what is only rounding."""
    rest = total - float(parts.sum(dtype=np.float64))
    rounding = 4 * float(np.finfo(parts.dtype).eps) * total * max(1.0, parts.size**0.5)
    return rest if rest > rounding else 0.0


def _mean_left(total: float, variances: FloatArray, count: int) -> float:
    return _left(total, variances) / count if count else 0.0


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

"""Probabilistic PCA, with support for missing entries."""

from __future__ import annotations

import math
import warnings
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from lowrank.arguments import checked_rank
from lowrank.errors import ArgumentError, check_positive, checked_integer
from lowrank.estimator import Estimator
from lowrank.kernels import pieces
from lowrank.operators import safe_exponent
from lowrank.pca import PCA
from lowrank.samples import (
    GaussianDensityMixin,
    checked_scores,
    project,
    samples_of,
    times_square,
    validated_array,
)
from lowrank.sums import inner, row_dots
from lowrank.svd import ConvergenceWarning, truncated_svd

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import ArrayLike

    from lowrank.arguments import MatrixLike, RandomStateLike
    from lowrank.operators import Float64Array, FloatArray

_DEFAULT = 2  # components by default
_NO_NOISE = 1e-10  # replaces a noise variance of 0 in posteriors, relative to the largest variance
_CHUNK = 1 << 21  # maximum size of a temporary array of a block, in numbers
# Minimum, relative to the mean variance; less makes k x k systems singular.
_LEAST_NOISE = 1e-16


@dataclass(eq=False, repr=False)
class ProbabilisticPCA(GaussianDensityMixin, Estimator):
    """Probabilistic PCA (PPCA), fitted by maximum likelihood; entries may be missing.

    The model of a sample is x = mean_ + W z + e with k latent coordinates z ~ N(0, I) and noise
    e ~ N(0, s2 I), so that x ~ N(mean_, W W' + s2 I). For complete data, dense or sparse, the
    maximum has a closed form: s2 is the mean of the m - k smallest eigenvalues of the covariance
    matrix (with divisor n_samples), and the columns of W are the first k eigenvectors, scaled to
    length sqrt(eigenvalue - s2).

    NaN in dense data marks entries that are missing at random. EM then maximises the likelihood of
    the known entries, which may have several maxima. Rows without known entries are allowed, and
    have no influence.

    Parameters
    ----------
    n_components : int, optional
        Number of latent coordinates k, from 0 to min(n_samples, n_features - 1). By default 2, or 1
        if there are only two features, and 0 with one.
    tol : float, default 1e-7
        EM stops when a step increases the log-likelihood per known entry by at most this amount.
    max_iter : int, default 1000
        Maximum number of EM steps.
    random_state : int, Generator, RandomState or None
        Seed of the solver's start vectors, and of `sample`.

    Attributes
    ----------
    components_ : ndarray of shape (n_components_, n_features)
        Principal axes: orthonormal rows in order of descending variance, with deterministic signs.
    loadings_ : ndarray of shape (n_features, n_components_)
        W, rotated to the principal axes: column j is ``components_[j]`` times
        sqrt(explained_variance_[j] - noise_variance_).
    mean_ : ndarray of shape (n_features,)
        Per-feature mean of the model; for complete data, of the training data.
    noise_variance_ : float
        Noise variance s2. It is 0 if the model fits the known entries up to rounding; the model
        then has no density.
    explained_variance_ : ndarray of shape (n_components_,)
        Variances of the model along the axes, including the noise.
    log_likelihood_ : float
        Log-likelihood of all known entries of the training data; -inf without a density.
    n_iter_ : int
        Number of EM steps; 1 for complete data.
    n_components_, n_samples_, n_features_in_ : int
        Numbers of latent coordinates, and of samples and features of the training data.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Names of the features. Defined only if X has string column names.

    See Also
    --------
    lowrank.pca.PCA : PCA, whose ``score`` takes the noise from min(n, m) - k eigenvalues.

    Notes
    -----
    EM computes in float64 for every dtype. In addition to a float64 copy of the data, it needs
    memory for n_features (k + 1)^2 numbers, and for blocks of a fixed size.

    References
    ----------
    Tipping & Bishop (1999), "Probabilistic principal component analysis", sections 3.2 and 4.3.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((200, 1)) @ [[1.0, 2.0, -1.0]]
    >>> X += 0.01 * rng.standard_normal(X.shape)
    >>> known = X[0, 1]
    >>> X[0, 1] = np.nan
    >>> model = ProbabilisticPCA(1, random_state=0).fit(X)
    >>> bool(abs(model.impute(X)[0, 1] - known) < 0.1)
    True
    """

    scale_ = None  # of GaussianDensityMixin: columns are not scaled

    n_components: int | None = None
    _: KW_ONLY
    tol: float = 1e-7
    max_iter: int = 1000
    random_state: RandomStateLike = 0

    def fit(
        self,
        X: MatrixLike,
        y: object = None,
    ) -> Self:
        """Fit the model.

        Parameters
        ----------
        X : array-like or scipy.sparse matrix or array of shape (n_samples, n_features)
            Training data. NaN marks missing entries of dense data; zeros of sparse data are known.
        y : ignored

        Raises
        ------
        TypeError, ValueError
            If X has an infinity, NaN in sparse data, a column without known entries or fewer than
            two samples, or a parameter has the wrong type or is out of its range.

        Warns
        -----
        ConvergenceWarning
            If EM has not converged after `max_iter` steps.
        """
        data = self._checked(X, reset=True)
        count, features = data.shape
        largest = min(count, features - 1)
        requested = self.n_components
        self.n_components_ = checked_rank(
            min(_DEFAULT, largest) if requested is None else requested,
            largest,
            f"n_samples={count}, below n_features={features}",
            name="n_components",
        )
        self.n_samples_ = count
        check_positive(self.tol, "tol")
        checked_integer(self.max_iter, "max_iter", least=1)
        if _has_missing(data):
            self._fit_incomplete(data)
        else:
            pca, noise = self._closed_form(data)
            self._unit = pca._unit
            self._keep(pca._location, pca._axes, pca._variances, noise, data.dtype)
            self._negligible_variance = pca._negligible_variance
            self.n_iter_ = 1
            densities = self._log_densities(data)
            self.log_likelihood_ = float(densities.sum(dtype=np.float64))
        return self

    def transform(self, X: MatrixLike) -> FloatArray:
        """Return the posterior means of z, given the known entries of each sample.

        The result has shape (n_samples, n_components_). Rows without known entries have the prior
        mean, 0.
        """
        check_is_fitted(self)
        data = self._checked(X)
        if _has_missing(data):
            return self._posterior_means(data).astype(data.dtype)
        scores = project(samples_of(data), self._location, self.components_)
        variances, noise = self._density_variances()
        lengths = np.sqrt(variances - noise)
        factors = np.zeros_like(lengths)
        np.divide(lengths, variances, out=factors, where=lengths > 0)
        scores *= factors / self._unit
        return scores

    def inverse_transform(self, X: ArrayLike) -> FloatArray:
        """Return the expected samples for given coordinates: ``mean_ + X @ loadings_.T``.

        ``X`` has shape (n_samples, n_components_).
        """
        check_is_fitted(self)
        hidden = checked_scores(X, self.n_components_)
        samples: FloatArray = hidden @ self.loadings_.T
        samples += self.mean_
        return samples

    def impute(self, X: ArrayLike) -> FloatArray:
        """Return a copy of dense X with NaN entries replaced by their conditional expectations."""
        check_is_fitted(self)
        filled = self._checked(X, accept_sparse=False, copy=True)
        missing = np.isnan(filled)
        incomplete = missing.any(axis=1)
        if incomplete.any():
            rows = filled[incomplete]
            hidden = self._posterior_means(rows)
            expected = self._location + hidden @ self.loadings_.T.astype(np.float64)
            filled[incomplete] = np.where(missing[incomplete], expected, rows)
        return np.asarray(filled)

    def score_samples(self, X: MatrixLike) -> FloatArray:
        """Return the log-density of the known entries of each sample, shape (n_samples,).

        It is 0 for rows without known entries, and -inf for all rows if noise_variance_ is 0.
        """
        check_is_fitted(self)
        return self._log_densities(self._checked(X))

    def _log_densities(self, X: Any) -> FloatArray:
        """Return the log-density of the known entries of each row of checked data."""
        if not _has_missing(X) or self._is_degenerate():
            return self._log_likelihoods(samples_of(X))
        likelihood = np.empty(X.shape[0])
        for posterior in self._posteriors(X):
            likelihood[posterior.rows] = posterior.log_likelihood
        counts = np.count_nonzero(~np.isnan(X), axis=1)
        likelihood -= counts * math.log(self._unit)
        return likelihood.astype(X.dtype)

    def _closed_form(self, X: Any) -> tuple[PCA, float]:
        """Return the PCA of complete data, and the maximum likelihood noise variance."""
        k = self.n_components_
        count, features = X.shape
        pca = PCA(k, center="exact", ddof=0, random_state=self.random_state)
        pca.fit(X)
        # The noise of PCA is the mean over the directions that the samples span.
        n_spanned = min(count, features) - k
        return pca, pca._noise * n_spanned / (features - k)

    def _fit_incomplete(self, X: FloatArray) -> None:
        """Fit by EM, starting from the model of the data with missing entries at column means."""
        unknown = np.flatnonzero(np.isnan(X).all(axis=0))
        if unknown.size:
            raise ArgumentError(
                f"X must have a known entry in each column; got none in column {unknown[0]}."
            )
        exponent = safe_exponent(float(np.nanmax(np.abs(X))), X.dtype)
        self._unit = 2.0**exponent
        rows = IncompleteRows(X / X.dtype.type(self._unit))
        pca, noise = self._closed_form(rows.values)
        # The filled entries reduce the variances by this factor.
        share = rows.count / X.size / pca._unit**2
        excess = np.maximum((pca._variances - noise) / share, 0)
        start = FactorModel(
            mean=np.zeros(X.shape[1]),
            loadings=pca._axes.T.astype(np.float64) * np.sqrt(excess),
            noise=noise / share,
        )
        steps = em_steps(rows, start)
        model, likelihood = next(steps)
        gain = math.inf
        self.n_iter_ = 0
        while gain > self.tol and self.n_iter_ < self.max_iter:
            previous = likelihood
            model, likelihood = next(steps)
            gain = (likelihood - previous) / rows.count
            self.n_iter_ += 1
        self._negligible_variance = np.zeros(self.n_components_)
        svd = truncated_svd(model.loadings.T, self.n_components_, method="dense")
        noise = model.noise if model.noise > rows.least_noise else 0.0
        location = (rows.location + model.mean) * self._unit
        variances = svd.s.astype(np.float64) ** 2 + noise
        self._keep(location, svd.Vt, variances, noise, X.dtype)
        likelihood -= rows.count * math.log(self._unit)
        self.log_likelihood_ = likelihood if noise > 0 else -math.inf
        if gain > self.tol:
            warnings.warn(
                f"The last EM step raised the log-likelihood per known entry by {gain:.1e}, more "
                f"than tol={self.tol:.1e}, after max_iter={self.max_iter} steps; "
                "increase max_iter or tol.",
                ConvergenceWarning,
                stacklevel=3,
            )

    def _keep(
        self,
        location: Float64Array,
        components: FloatArray,
        variances: Float64Array,
        noise: float,
        dtype: np.dtype[Any],
    ) -> None:
        """Set the fitted attributes; variances and noise are in units."""
        self._location = location
        self._axes = components
        self.mean_ = location.astype(dtype)
        self.components_ = components.astype(dtype, copy=False)
        self._variances = variances
        self._noise = float(noise)
        self.explained_variance_ = times_square(self._variances, self._unit, dtype)
        self.noise_variance_ = self._noise * self._unit * self._unit
        lengths = np.sqrt(np.maximum(self._variances - noise, 0)) * self._unit
        self.loadings_ = (components.T * lengths).astype(dtype)

    def _posteriors(self, X: FloatArray) -> Iterator[Posterior]:
        """Yield the posteriors of rows, with a minimum of noise so that they exist."""
        largest = float(self._variances.max(initial=0.0)) or 1.0
        loadings = self.loadings_.astype(np.float64) / self._unit
        noise = self._noise or _NO_NOISE * largest
        model = FactorModel(np.zeros(len(loadings)), loadings, noise)
        scaled = X / X.dtype.type(self._unit)
        location = self._location / self._unit
        return posteriors(IncompleteRows(scaled, location), model)

    def _posterior_means(self, X: FloatArray) -> Float64Array:
        return np.vstack([posterior.mean for posterior in self._posteriors(X)])

    def _checked(
        self,
        X: Any,
        *,
        reset: bool = False,
        **options: Any,
    ) -> Any:
        """Check samples; NaN is allowed in dense ones."""
        options.setdefault("accept_sparse", "csr")
        options["ensure_min_samples"] = 2 if reset else 1
        return validated_array(self, X, reset=reset, allow_nan=True, **options)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags


def _has_missing(X: Any) -> bool:
    return isinstance(X, np.ndarray) and bool(np.isnan(X).any())


@dataclass(frozen=True, eq=False)
class FactorModel:
    """Model x = mean + W z + e with z ~ N(0, I) and e ~ N(0, noise I); the loadings are W."""

    mean: Float64Array
    loadings: Float64Array
    noise: float


class Posterior(NamedTuple):
    """Posterior distribution of the latent coordinates z of a slice of rows.

    `mean` has shape (r, k), `covariance` (r, k, k). `log_likelihood` of the known
    entries has shape (r,); it is 0 for rows without any.
    """

    rows: slice
    mean: Float64Array
    covariance: Float64Array
    log_likelihood: Float64Array


class IncompleteRows:
    """The rows of a matrix with NaN for missing entries, minus a location.

    The location, shape (m,), is by default the mean of the known entries of each column; each
    column must have one. At missing entries, `values` and `known` are 0. `count` is the number of
    known entries, and `squares` the sum of their squares.
    """

    def __init__(
        self,
        X: FloatArray,
        location: Float64Array | None = None,
    ) -> None:
        is_known = ~np.isnan(X)
        values = np.where(is_known, X, 0).astype(np.float64)
        if location is None:
            location = values.sum(axis=0) / is_known.sum(axis=0)
        np.subtract(values, location, out=values, where=is_known)
        self.values = values
        self.location = location
        self.known = is_known.astype(np.float64)
        self.count = int(is_known.sum())
        self.squares = inner(values, values)

    @property
    def least_noise(self) -> float:
        """Noise variance that is treated as 0, proportional to the mean variance."""
        return _LEAST_NOISE * self.squares / max(1, self.count) or _LEAST_NOISE**10


def posteriors(rows: IncompleteRows, model: FactorModel) -> Iterator[Posterior]:
    """Yield the posterior of all rows, block by block; the mean is relative to `rows.location`."""
    W = model.loadings
    noise = model.noise
    features, k = W.shape
    squares = W[:, :, None] * W[:, None, :]
    squares = squares.reshape(features, k * k)
    step = max(1, _CHUNK // max(1, features, (k + 1) ** 2))
    for part in pieces(len(rows.values), step):
        values = rows.values[part]
        mask = rows.known[part]
        # W'W + noise I over the known entries of each row
        system = (mask @ squares).reshape(len(mask), k, k)
        system += noise * np.eye(k)
        # In units of its diagonal, columns of W of very different lengths do no harm.
        units = 1 / np.sqrt(np.einsum("rii->ri", system))
        units = units[:, :, None] * units[:, None, :]
        inverse: Float64Array = np.linalg.inv(system * units) * units
        right = values @ W - mask @ (model.mean[:, None] * W)
        right = right[:, :, None]
        # The rounding errors of the inverse are relative to its largest entries, 1 / noise, in all
        # directions. A step of iterative refinement removes them.
        first = inverse @ right
        hidden = (first + inverse @ (right - system @ first))[:, :, 0]
        residual = (values - model.mean - hidden @ W.T) * mask
        count = mask.sum(axis=1)
        logarithms = count * math.log(2 * math.pi)
        logarithms += (count - k) * math.log(noise)
        logarithms += np.linalg.slogdet(system)[1]
        distance = row_dots(residual, residual) / noise + row_dots(hidden, hidden)
        yield Posterior(
            rows=part,
            mean=hidden,
            covariance=noise * inverse,
            log_likelihood=-0.5 * (logarithms + distance),
        )


def em_steps(
    rows: IncompleteRows, start: FactorModel
) -> Iterator[tuple[FactorModel, float]]:
    """Maximise the likelihood of the known entries by exact EM steps.

    Yields models, the first of which is the start, with the log-likelihood of all known entries.
    The mean of a model is relative to ``rows.location``. The steps use parameter expansion: the
    latent coordinates z are N(b, S), where W and the mean absorb b and S. The likelihood never
    falls, as in plain EM, but converges in fewer steps.

    References
    ----------
    Tipping & Bishop (1999), "Probabilistic principal component analysis", appendix B.
    Liu, Rubin & Wu (1998), "Parameter expansion to accelerate EM: the PX-EM algorithm".
    """
    features, k = start.loadings.shape
    model = FactorModel(start.mean, start.loadings, max(start.noise, rows.least_noise))
    while True:
        # With 1 (for the mean) appended to each z: sums of E[z z'] over the rows that know each
        # entry, of x_j E[z], and of E[z z'] over all rows with a known entry.
        squares = np.zeros((features, (k + 1) ** 2))
        products = np.zeros((features, k + 1))
        hidden = np.zeros((k + 1, k + 1))
        spreads = np.zeros((features, k * k))
        expected: list[tuple[slice, Float64Array]] = []
        likelihoods = []
        for posterior in posteriors(rows, model):
            mask = rows.known[posterior.rows]
            extended = np.column_stack([posterior.mean, np.ones(len(mask))])
            outer = extended[:, :, None] * extended[:, None, :]
            outer[:, :-1, :-1] += posterior.covariance
            squares += mask.T @ outer.reshape(len(mask), -1)
            spreads += mask.T @ posterior.covariance.reshape(len(mask), -1)
            expected.append((posterior.rows, extended))
            products += rows.values[posterior.rows].T @ extended
            hidden += outer[mask.any(axis=1)].sum(axis=0)
            likelihoods.append(float(posterior.log_likelihood.sum()))
        yield model, math.fsum(likelihoods)
        # One regression for each feature
        systems = squares.reshape(features, k + 1, k + 1)
        solved = np.linalg.solve(systems, products[:, :, None])[:, :, 0]
        W = solved[:, :-1]
        mean = solved[:, -1]
        # A difference of sums of squares would lose the noise next to a large variance.
        spreads = spreads.reshape(features, k, k)
        squared = float(np.einsum("jk,jkl,jl->", W, spreads, W))
        for part, extended in expected:
            errors = (rows.values[part] - extended @ solved.T) * rows.known[part]
            squared += inner(errors, errors)
        noise = squared / rows.count
        # The distribution N(b, S) of z goes into W and the mean.
        n_rows = hidden[-1, -1]
        centre = hidden[:-1, -1] / n_rows
        spread = hidden[:-1, :-1] / n_rows - np.outer(centre, centre)
        root: Float64Array = np.linalg.cholesky(spread).astype(np.float64, copy=False)
        model = FactorModel(mean + W @ centre, W @ root, max(noise, rows.least_noise))

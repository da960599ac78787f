"""The normal distribution that belongs to a PCA: covariance, likelihood and samples."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from lowrank.arguments import checked_generator

if TYPE_CHECKING:
    from lowrank.estimators import Float64Array, Samples
    from lowrank.operators import FloatArray

__all__ = ["NormalModel"]


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

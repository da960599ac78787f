"""Whitening of data to uncorrelated features with variance 1, as a scikit-learn estimator."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from sklearn.base import ClassNamePrefixFeaturesOutMixin, OneToOneFeatureMixin
from sklearn.utils.validation import check_is_fitted

from lowrank.arguments import checked_rank
from lowrank.blocks import RowBlocks
from lowrank.errors import check_choice, check_positive
from lowrank.estimator import Estimator
from lowrank.pca import PCA
from lowrank.samples import checked_scores, validated_array, validated_samples

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from lowrank.operators import FloatArray

_METHODS = ("pca", "zca", "zca-cor")


@dataclass(eq=False, repr=False)
class Whitening(Estimator):
    """PCA, ZCA and ZCA-cor whitening, safe on rank-deficient data.

    Let v_j be the principal directions of the centred data, lambda_j the variances along them, and
    M the mean variance of the features. The whitened coordinates of a sample x are
    y_j = v_j . (x - mean_) / sqrt(lambda_j + epsilon M). "pca" returns these; "zca" and "zca-cor"
    rotate them back to the axes of the features. Directions without variance in the training data,
    up to rounding, are dropped for every `epsilon`. With ``epsilon=0``, the covariance of the
    output in the remaining directions, with divisor n_samples - ddof, is the identity.

    Parameters
    ----------
    method : {"pca", "zca", "zca-cor"}, default "pca"
        "pca" has one output per direction. "zca" multiplies these outputs by the directions; among
        all whitening transforms, its output is closest to the centred data. "zca-cor" applies
        "zca" to standardised data. Its output is closest to the standardised data, and does not
        depend on the units of the features.
    n_components : int, optional
        Maximum number of directions, from 1 to min(n_samples, n_features); by default all.
    epsilon : float, default 0.0
        Constant added to each variance, in units of the mean variance of the features. Directions
        with a much larger variance get variance 1; those with a much smaller one are damped.
    ddof : int, default 1
        Delta degrees of freedom: the divisor of variances is n_samples - ddof.

    Attributes
    ----------
    components_ : ndarray of shape (n_components_, n_features)
        Directions, as orthonormal rows with deterministic signs.
    explained_variance_ : ndarray of shape (n_components_,)
        Variances along the directions, without epsilon.
    mean_ : ndarray of shape (n_features,)
        Mean of each feature in the training data.
    scale_ : ndarray of shape (n_features,) or None
        Standard deviations ("zca-cor" only); 1 for constant columns.
    n_components_, n_features_in_ : int
        Numbers of directions (at most the rank of the centred data) and of features.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Names of the features. Defined only if X has string column names.

    See Also
    --------
    lowrank.pca.PCA : ``PCA(whiten=True, center="exact")`` whitens sparse data.

    References
    ----------
    Bell & Sejnowski (1997), "The independent components of natural scenes are edge filters";
    Kessy, Lewin & Strimmer (2018), "Optimal whitening and decorrelation".

    Examples
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(0).standard_normal((100, 2)) @ [[3.0, 1.0], [0.0, 1.0]]
    >>> Y = Whitening("zca").fit_transform(X)
    >>> bool(np.allclose(np.cov(Y.T), np.eye(2)))
    True
    """

    method: str = "pca"
    _: KW_ONLY
    n_components: int | None = None
    epsilon: float = 0.0
    ddof: int = 1

    def fit(
        self,
        X: ArrayLike,
        y: object = None,
    ) -> Self:
        """Find the directions and their variances.

        Parameters
        ----------
        X : array-like or RowBlocks of shape (n_samples, n_features)
            Dense training data. Computations are float32 for float32 data, and float64 otherwise.
            RowBlocks, and a numpy.memmap above 1 GB, are read block by block.
        y : ignored

        Raises
        ------
        TypeError
            If X or a block is sparse (whitened data would be dense), or a parameter is of another
            type.
        ArgumentError, ValueError
            If X is not finite or has too few samples, or a parameter is out of range.
        """
        data = validated_samples(self, X)
        check_choice(self.method, _METHODS)
        check_positive(self.epsilon, "epsilon", or_zero=True)
        k = checked_rank(
            self.n_components,
            min(data.shape),
            "min(X.shape)",
            name="n_components",
            or_none=True,
        )
        pca = PCA(
            k or None,
            center="exact",
            standardize=self.method == "zca-cor",
            ddof=self.ddof,
            tol=0,
        )
        pca.fit(data)
        # Dividing by mere rounding errors would make noise of variance 1.
        has_variance = pca._variances > pca._negligible_variance
        self.components_ = pca.components_[has_variance]
        self.explained_variance_ = pca.explained_variance_[has_variance]
        mean_square = (
            pca._so_far.total / (pca._so_far.n_samples - self.ddof) / data.shape[1]
        )
        damping = math.sqrt(self.epsilon * mean_square) * pca._unit
        # sqrt(variance + epsilon M) without a square that may overflow
        self._lengths = np.hypot(pca._deviations[has_variance], damping).astype(
            pca.mean_.dtype
        )
        self.mean_, self.scale_ = pca.mean_, pca.scale_
        self.n_components_ = int(np.count_nonzero(has_variance))
        return self

    def transform(self, X: ArrayLike) -> FloatArray:
        """Whiten samples.

        ``X`` has shape (n_samples, n_features); RowBlocks are read block by block.
        """
        check_is_fitted(self)
        if isinstance(X, RowBlocks):
            blocks = validated_samples(self, X, reset=False).dense_blocks(0)
            return np.vstack([self.transform(block) for block in blocks if len(block)])
        data: Any = validated_array(self, X, reset=False)
        centred: FloatArray = data - self.mean_
        if self.scale_ is not None:
            centred /= self.scale_
        # "zca" turns the coordinates back to the axes of the features.
        whitened: FloatArray = (centred @ self.components_.T) / self._lengths
        return whitened if self.method == "pca" else whitened @ self.components_

    def inverse_transform(self, X: ArrayLike) -> FloatArray:
        """Undo the whitening; in dropped directions the result is the mean.

        ``X`` has the shape of the result of `transform`.

        Raises
        ------
        ArgumentError
            If X has the wrong number of columns.
        """
        check_is_fitted(self)
        whitened = checked_scores(X, self._n_features_out, "as whitened data have")
        if self.method != "pca":
            whitened = whitened @ self.components_.T
        samples: FloatArray = (whitened * self._lengths) @ self.components_
        if self.scale_ is not None:
            samples *= self.scale_
        samples += self.mean_
        return samples

    def get_feature_names_out(
        self, input_features: ArrayLike | None = None
    ) -> NDArray[Any]:
        """Return the names of the outputs: the names of the features unless method="pca".

        `input_features` has the names of the features if X had no names.
        """
        check_is_fitted(self)
        mixin = (
            ClassNamePrefixFeaturesOutMixin
            if self.method == "pca"
            else OneToOneFeatureMixin
        )
        names: NDArray[Any] = mixin.get_feature_names_out(self, input_features)
        return names

    @property
    def _n_features_out(self) -> int:
        return int(self.components_.shape[0 if self.method == "pca" else 1])

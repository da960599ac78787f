"""Random projections: fewer coordinates that keep distances, without looking at the data."""

from __future__ import annotations

import math
import numbers
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from lowrank.arguments import as_operator, checked_generator
from lowrank.samples import checked_scores

if TYPE_CHECKING:
    from lowrank.operators import FloatArray

__all__ = ["GaussianProjection", "SparseProjection", "johnson_lindenstrauss_dim"]

_DTYPES = [np.float64, np.float32]


def johnson_lindenstrauss_dim(n_samples: int, eps: float) -> int:
    """Return a number of coordinates that keeps all distances between n points within eps.

    It is the least k >= 4 ln(n) / (eps^2 / 2 - eps^3 / 3). With it there is a linear map to k
    coordinates under which each squared distance changes by a factor between 1 - eps and 1 + eps.
    A random one is such a map with positive probability (a pair fails with one of at most 2 / n^2),
    and one with a few more coordinates almost surely. The dimension of the points plays no part.

    Parameters
    ----------
    n_samples : int
        Number of points n, at least 1.
    eps : float
        Largest relative change of a squared distance, between 0 and 1 (both excluded).

    Returns
    -------
    int
        At least 1.

    Raises
    ------
    ValueError
        If an argument is out of its range.

    References
    ----------
    Dasgupta & Gupta (2003), "An elementary proof of a theorem of Johnson and Lindenstrauss",
    theorem 2.1.

    Examples
    --------
    >>> johnson_lindenstrauss_dim(10_000, 0.2)
    2126
    """
    if isinstance(n_samples, bool) or not isinstance(n_samples, (int, np.integer)) or n_samples < 1:
        raise ValueError(f"n_samples must be an integer, 1 or larger; got {n_samples!r}.")
    if not isinstance(eps, numbers.Real) or not 0 < float(eps) < 1:
        raise ValueError(f"eps must be between 0 and 1, both excluded; got {eps!r}.")
    return max(1, math.ceil(4 * math.log(n_samples) / (eps**2 / 2 - eps**3 / 3)))


class _Projection(
    ClassNamePrefixFeaturesOutMixin,  # type: ignore[misc]
    TransformerMixin,  # type: ignore[misc]
    BaseEstimator,  # type: ignore[misc]
):
    """What the projections share: everything but the draw of ``components_``."""

    n_components: int | str
    eps: float
    random_state: Any
    components_: Any
    n_components_: int
    n_features_in_: int

    @abstractmethod
    def _drawn(self, rng: np.random.Generator, dtype: np.dtype[Any]) -> Any:
        """Return components_, drawn for n_components_ and n_features_in_."""

    def fit(self, X: Any, y: Any = None) -> Self:
        """Draw the projection; of the data only the shape and the dtype matter.

        Parameters
        ----------
        X : array-like or scipy.sparse matrix or array of shape (n_samples, n_features)
        y : ignored

        Returns
        -------
        estimator
            The estimator itself.

        Raises
        ------
        TypeError, ValueError
            If X is not finite, a parameter is out of its range, or n_components="auto" gives more
            than n_features.
        """
        X = validate_data(self, X, dtype=_DTYPES, accept_sparse="csr")
        rng = checked_generator(self.random_state)
        self.n_components_ = self._checked_size(*X.shape)
        self.components_ = self._drawn(rng, X.dtype)
        return self

    def transform(self, X: Any) -> FloatArray:
        """Return the projections ``X @ components_.T``.

        Parameters
        ----------
        X : array-like or scipy.sparse matrix or array of shape (n_samples, n_features)

        Returns
        -------
        ndarray of shape (n_samples, n_components_)
            Dense for any X, and of its dtype.
        """
        check_is_fitted(self)
        X = validate_data(self, X, dtype=_DTYPES, accept_sparse="csr", reset=False)
        return self._projected(X)

    def inverse_transform(self, X: Any) -> FloatArray:
        """Return the shortest samples that have given projections, by the pseudo-inverse.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_components_)
            Projections.

        Returns
        -------
        ndarray of shape (n_samples, n_features)

        Raises
        ------
        ValueError
            If X has not n_components_ columns.
        """
        check_is_fitted(self)
        projected = checked_scores(X, self.n_components_)
        gram = self.components_ @ self.components_.T
        dense = gram if isinstance(gram, np.ndarray) else gram.toarray()
        inverse = np.linalg.pinv(dense.astype(np.float64), hermitian=True)
        return np.asarray(projected @ inverse.astype(dense.dtype) @ self.components_)

    def _projected(self, X: Any) -> FloatArray:
        directions = np.ascontiguousarray(self.components_.T, X.dtype)
        return as_operator(X).matmat(directions)

    def _checked_size(self, samples: int, features: int) -> int:
        k: Any = self.n_components
        if isinstance(k, str) and k == "auto":
            k = johnson_lindenstrauss_dim(samples, self.eps)
            if k > features:
                raise ValueError(
                    f"n_components='auto' is {k} for n_samples={samples} and eps={self.eps}, and "
                    f"must be at most n_features={features}: ask for a larger eps or a number."
                )
            return int(k)
        if isinstance(k, bool) or not isinstance(k, (int, np.integer)) or not 1 <= k <= features:
            raise ValueError(
                f"n_components must be 'auto' or an integer between 1 and n_features={features}; "
                f"got {k!r}."
            )
        return int(k)

    @property
    def _n_features_out(self) -> int:
        return int(self.components_.shape[0])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        tags.input_tags.sparse = True
        return tags


class GaussianProjection(_Projection):
    """Projection on directions with independent normal entries.

    Parameters
    ----------
    n_components : int or "auto", default "auto"
        Number of directions k, from 1 to n_features. "auto" takes `johnson_lindenstrauss_dim` of
        the number of samples and `eps`.
    eps : float, default 0.1
        Largest relative change of a squared distance that "auto" aims at, between 0 and 1.
    scaling : {"distance", "unit"}, default "distance"
        "distance" divides N(0, 1) entries by sqrt(k): squared norms, and so squared distances,
        keep their expectation. "unit" divides each direction by its length instead: outputs are
        coordinates along directions that are uniform on the sphere, and squared norms shrink
        to k / n_features of what they were, on average.
    random_state : int, Generator, RandomState or None
        Seed.

    Attributes
    ----------
    components_ : ndarray of shape (n_components_, n_features)
        Directions, of the dtype of the training data.
    n_components_, n_features_in_ : int
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Only if X has column names.

    See Also
    --------
    SparseProjection : Less memory and time for many features.

    References
    ----------
    Johnson & Lindenstrauss (1984), "Extensions of Lipschitz mappings into a Hilbert space";
    Dasgupta & Gupta (2003), "An elementary proof of a theorem of Johnson and Lindenstrauss".

    Examples
    --------
    >>> import numpy as np
    >>> X = np.eye(50, 5000)
    >>> Y = GaussianProjection(eps=0.3, random_state=0).fit_transform(X)
    >>> Y.shape
    (50, 435)
    >>> bool(abs(((Y[0] - Y[1:]) ** 2).sum(axis=1) / 2 - 1).max() < 0.3)
    True
    """

    def __init__(
        self,
        n_components: int | str = "auto",
        *,
        eps: float = 0.1,
        scaling: str = "distance",
        random_state: int | np.random.Generator | np.random.RandomState | None = None,
    ) -> None:
        self.n_components = n_components
        self.eps = eps
        self.scaling = scaling
        self.random_state = random_state

    def _drawn(self, rng: np.random.Generator, dtype: np.dtype[Any]) -> FloatArray:
        if self.scaling not in ("distance", "unit"):
            raise ValueError(f"scaling must be 'distance' or 'unit'; got {self.scaling!r}.")
        entries = rng.standard_normal((self.n_components_, self.n_features_in_))
        if self.scaling == "unit":
            entries /= np.linalg.norm(entries, axis=1, keepdims=True)
        else:
            entries /= math.sqrt(self.n_components_)
        return entries.astype(dtype, copy=False)


class SparseProjection(_Projection):
    """Projection on directions whose entries are 0 but for a few of one size and either sign.

    An entry is +1 or -1, each with probability density / 2, times 1 / sqrt(density k). Squared
    norms keep their expectation, as with `GaussianProjection`; their spread is larger
    for samples that have few large entries, the more so the smaller the density.

    Parameters
    ----------
    n_components : int or "auto", default "auto"
        Number of directions k, from 1 to n_features. "auto" takes `johnson_lindenstrauss_dim` of
        the number of samples and `eps`.
    eps : float, default 0.1
        Largest relative change of a squared distance that "auto" aims at, between 0 and 1.
    density : float or "auto", default "auto"
        Share of entries that are not 0, above 0 and up to 1. "auto" is 1 / sqrt(n_features) (Li et
        al. 2006); with 1/3 the guarantee of the normal distribution holds (Achlioptas 2003).
    random_state : int, Generator, RandomState or None
        Seed.

    Attributes
    ----------
    components_ : scipy.sparse.csr_array of shape (n_components_, n_features)
        Directions, of the dtype of the training data.
    density_ : float
        Probability of an entry that is not 0.
    n_components_, n_features_in_ : int
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Only if X has column names.

    References
    ----------
    Achlioptas (2003), "Database-friendly random projections"; Li, Hastie & Church (2006), "Very
    sparse random projections".

    Examples
    --------
    >>> from scipy import sparse
    >>> X = sparse.random_array((100, 10_000), density=0.01, rng=0)
    >>> projection = SparseProjection(64, random_state=0).fit(X)
    >>> projection.transform(X).shape, projection.density_
    ((100, 64), 0.01)
    """

    def __init__(
        self,
        n_components: int | str = "auto",
        *,
        eps: float = 0.1,
        density: float | str = "auto",
        random_state: int | np.random.Generator | np.random.RandomState | None = None,
    ) -> None:
        self.n_components = n_components
        self.eps = eps
        self.density = density
        self.random_state = random_state

    def _drawn(self, rng: np.random.Generator, dtype: np.dtype[Any]) -> Any:
        from scipy import sparse

        self.density_ = self._checked_density()
        shape = (self.n_components_, self.n_features_in_)
        counts = rng.binomial(shape[1], self.density_, size=shape[0])
        places = [rng.choice(shape[1], count, replace=False, shuffle=False) for count in counts]
        indptr = np.concatenate([[0], np.cumsum(counts)])
        size = 1 / math.sqrt(self.density_ * shape[0])
        signs = 2 * rng.integers(2, size=indptr[-1]) - 1
        csr = sparse.csr_array(
            ((size * signs).astype(dtype), np.concatenate(places), indptr), shape
        )
        csr.sort_indices()
        return csr

    def _projected(self, X: Any) -> FloatArray:
        product = X @ self.components_.T
        return np.asarray(
            product if isinstance(product, np.ndarray) else product.toarray(), X.dtype
        )

    def _checked_density(self) -> float:
        density: Any = self.density
        if isinstance(density, str) and density == "auto":
            return 1 / math.sqrt(self.n_features_in_)
        if not isinstance(density, numbers.Real) or not 0 < float(density) <= 1:
            raise ValueError(
                f"density must be 'auto' or a number above 0 and up to 1; got {density!r}."
            )
        return float(density)

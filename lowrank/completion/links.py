r"""Vectors of rows whose prior means are predicted from links and features.

An entry is :math:`\mu + b_u + c_i + a_u \cdot m_i` plus Gaussian noise. The link of a sparse matrix
is its 0/1 pattern S with each row divided by the square root of its number of entries, so that
every row has length 1. The prior of a row's vector :math:`(a_u, b_u)` has the mean
:math:`\mu_0 + B's_u + C'f_u`, where :math:`f_u` are features of the row; B and C are ridge
regressions of the vectors (`lowrank.completion.feature_ridge`). Least squares
(`lowrank.completion.linked_als`) and variational Bayes (`lowrank.completion.bayes`) use these
priors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import DTypeLike, NDArray

from lowrank import kernels
from lowrank.completion.als import Observed, stored
from lowrank.completion.feature_ridge import (
    FeatureRidge,
    GroupedFeatures,
    Link,
    ridge_fit,
)
from lowrank.kernels import CodedMatrix, Stored, posteriors, transposed
from lowrank.kernels.arrays import Float64s, Floats, Int64s, Masks
from lowrank.sums import row_dots, weighted_mean

_GATHERED = 128  # covariances that are copied at a time
_SAMPLED_ROWS = 4096  # maximum number of rows from which distributions are learned
# of the step of links in each sweep, which starts from the previous links
_RELAXATION = 1.5


@dataclass(frozen=True, eq=False)
class RowPrior:
    r"""The prior of rows: mean :math:`\mu_0 + B's_u + C'f_u`, precision :math:`n_u^g \Lambda`.

    `link` is the matrix B, shape (n_cols, d), or (0, d) without a link. `features` is the matrix C,
    shape (n_features, d), None without features. `count_power` is the exponent g of the number of
    entries n_u.
    """

    mean: Floats
    precision: Floats
    link: Floats
    count_power: float
    features: Floats | None = None

    def weights(self, counts: Int64s) -> Floats:
        """Return n_u^g; rows without entries count as rows with one."""
        dtype = self.mean.dtype
        positive = np.maximum(counts, 1).astype(dtype)
        weights: Floats = positive ** dtype.type(self.count_power)
        return weights

    def means(
        self,
        link: Link,
        features: kernels.CsrArrays | None = None,
    ) -> Floats:
        """Return the prior mean of each row of `link` and of features, shape (n_rows, d)."""
        if len(self.link):
            means = link.forward(self.link)
            means += self.mean
        else:
            means = np.tile(self.mean, (len(link.scale), 1))
        if features is not None and self.features is not None:
            means += kernels.csr_matmat(features, self.features)
        return means


@dataclass(frozen=True, eq=False)
class Posterior:
    """Independent Gaussian distributions of the vectors of rows, with the bias last.

    `mean` has shape (n, d). `covariance` has shape (n, d (d + 1) / 2) and holds upper triangles by
    rows, see `unpack`; with shape (n, 0) the vectors are known exactly.
    """

    mean: Floats
    covariance: Floats

    @classmethod
    def exactly(cls, vectors: Floats) -> Self:
        """Return vectors that are known exactly."""
        return cls(vectors, np.empty((len(vectors), 0), vectors.dtype))


@cache
def _packed_positions(d: int) -> Int64s:
    """Return the position in a packed triangle of each entry of a matrix, shape (d, d)."""
    positions = np.zeros((d, d), np.int64)
    i, j = np.triu_indices(d)
    positions[i, j] = positions[j, i] = np.arange(len(i))
    return positions


def unpack(packed: Floats, d: int) -> Floats:
    """Return symmetric matrices of shape (n, d, d) from upper triangles by rows."""
    full: Floats = packed.take(_packed_positions(d), axis=1)
    return full


def summed_covariance(rows: Posterior, weight: Floats) -> Float64s:
    """Return the weighted sum of the covariances of rows, shape (d, d)."""
    packed = kernels.coefficients(rows.covariance, weight[:, None]).T
    summed: Float64s = unpack(packed.astype(np.float64), rows.mean.shape[1])[0]
    return summed


def ridge_precision(
    k: int,
    regularization: float,
    scale: float,
    dtype: DTypeLike,
) -> Floats:
    """Return the penalties of `als_sweeps` as a prior precision, for noise of variance 1."""
    penalties = np.full(k + 1, regularization * scale)
    penalties[-1] = regularization
    return np.diag(penalties).astype(dtype)


def posterior_rows(
    entries: kernels.CsrArrays,
    columns: Posterior,
    prior: RowPrior,
    *,
    mean: float,
    noise: float = 1.0,
    features: kernels.CsrArrays | None = None,
) -> Posterior:
    """Return the posterior of rows given their entries and the posterior of the columns.

    The result of a row is the same to the bit whichever rows are solved with it, on any number of
    threads. `noise` is the noise variance times the temperature, 1 for penalised least squares.
    """
    return _half_sweep(
        entries,
        columns.mean,
        prior,
        prior.means(Link.of(entries), features),
        mean=mean,
        noise=noise,
        sums=covariance_sums(entries, columns),
    )[0]


def covariance_sums(entries: kernels.CsrArrays, columns: Posterior) -> Floats | None:
    """Return, for each row, the sum of the covariances of its columns; None if they are exact."""
    if not columns.covariance.shape[1]:
        return None
    ones = entries._replace(data=np.ones_like(entries.data))
    return kernels.csr_matmat(ones, columns.covariance)


class Terms(NamedTuple):
    """The posterior mean of a row as the solution of a system with a sum on its right-hand side.

    Attributes
    ----------
    inverse : float64 ndarray of shape (d, d)
        Inverse of the matrix of the normal equations.
    base : float64 ndarray of shape (d,)
        The term of the mean of all rows.
    values : float64 ndarray of shape (n, d)
        The terms of the values of the entries.
    features : float64 ndarray of shape (n_features, d)
        The terms of the nonzero features.
    links : ndarray of shape (n, d) or (0, d)
        Rows of the prior's link at the entries. Their terms are these times `pull`.
    pull : float64 ndarray of shape (d, d)
        Precision of the prior, divided by the length of the row's pattern.
    """

    inverse: Float64s
    base: Float64s
    values: Float64s
    features: Float64s
    links: Floats
    pull: Float64s

    def solved(self, vectors: Float64s) -> tuple[Float64s, Float64s]:
        """Return the solutions for `vectors`, shape (m, d), and the posterior mean, shape (d,).

        The products of a solution with the terms add up to the product of its vector
        and the mean.
        """
        total = self.base + self.values.sum(axis=0)
        if len(self.features):
            total += self.features.sum(axis=0)
        if len(self.links):
            total += self.links.sum(axis=0, dtype=np.float64) @ self.pull
        return vectors @ self.inverse, total @ self.inverse

    def of_entries(self, solutions: Float64s) -> Float64s:
        """Return the products of solutions with the terms of entries, shape (m, n)."""
        products: Float64s = solutions @ self.values.T
        if len(self.links):
            # Few solutions are multiplied by the precision, instead of many entries.
            products += (solutions @ self.pull) @ self.links.T
        return products


def posterior_terms(
    entries: kernels.CsrArrays,
    means: Floats,
    covariance: Floats,
    prior: RowPrior,
    *,
    mean: float,
    noise: float = 1.0,
    features: kernels.CsrArrays | None = None,
) -> list[Terms]:
    """Return the terms of the posterior mean of each row, given the `entries`.

    `means` has the mean of the column of each entry, `covariance` that of every column. See
    `posterior_rows` for the other parameters.
    """
    n, d = means.shape
    bounds = [slice(*ends) for ends in pairwise(entries.indptr.tolist())]
    counts = np.array([of_row.stop - of_row.start for of_row in bounds], np.int64)
    vectors = means.astype(np.float64)
    data = entries.data.astype(np.float64)
    target = data - vectors[:, -1] - mean
    right = vectors * target[:, None]
    right[:, -1] = target
    packed = np.zeros((len(counts), d * (d + 1) // 2))
    if covariance.shape[1]:
        with_bias = _packed_positions(d)[:-1, -1]
        for sums, of_row in zip(packed, bounds, strict=True):
            for start in range(of_row.start, of_row.stop, _GATHERED):
                part = slice(start, min(start + _GATHERED, of_row.stop))
                of_entries = covariance.take(entries.indices[part], axis=0)
                sums += of_entries.sum(axis=0)
                right[part, :-1] -= of_entries.take(with_bias, axis=1)
    weight = prior.weights(counts).astype(np.float64)
    precision = prior.precision.astype(np.float64) * noise
    # The systems of several rows are inverted in the time of one.
    posteriors.posterior_half_sweep(
        kernels.CsrArrays(entries.indptr, np.arange(n, dtype=np.int32), data),
        vectors,
        prior=precision,
        weight=weight,
        prior_right=np.zeros((len(counts), d)),
        vectors=np.empty((len(counts), d)),
        covariance=packed,
    )
    base = precision @ prior.mean.astype(np.float64)
    features_of_row = np.zeros((0, d))
    terms = []
    for row, inverse in enumerate(unpack(packed, d)):
        pull = precision * weight[row]
        if features is not None and prior.features is not None:
            nonzero = slice(features.indptr[row], features.indptr[row + 1])
            coefficients = prior.features[features.indices[nonzero]]
            values = features.data[nonzero].astype(np.float64)
            features_of_row = (coefficients * values[:, None]) @ pull
        links = np.zeros((0, d), prior.link.dtype)
        if len(prior.link):
            links = prior.link.take(entries.indices[bounds[row]], axis=0)
            pull /= math.sqrt(max(1, counts[row]))
        terms.append(
            Terms(
                inverse,
                base * weight[row],
                right[bounds[row]],
                features_of_row,
                links,
                pull,
            )
        )
    return terms


def sampled_rows(counts: NDArray[np.integer[Any] | np.bool_]) -> Int64s:
    """Return the rows with entries, or a random sample of `_SAMPLED_ROWS` if there are more."""
    rows = np.flatnonzero(counts)
    if len(rows) > _SAMPLED_ROWS:
        rows = np.sort(np.random.default_rng(0).permutation(rows)[:_SAMPLED_ROWS])
    return rows


def exact_posterior(
    entries: kernels.CsrArrays,
    columns: Floats,
    prior: RowPrior,
    prior_means: Floats,
    mean: float,
) -> Posterior:
    """Return the posterior of rows, with covariances, given exact columns and noise variance 1."""
    n, d = prior_means.shape
    # The sums of the covariances of exact columns are zero.
    sums = np.zeros((n, d * (d + 1) // 2), columns.dtype)
    return _half_sweep(entries, columns, prior, prior_means, mean=mean, sums=sums)[0]


def _half_sweep(
    entries: kernels.CsrArrays,
    columns: Floats,
    prior: RowPrior,
    prior_means: Floats,
    *,
    mean: float,
    noise: float = 1.0,
    sums: Floats | None = None,
    only_means: bool = False,
) -> tuple[Posterior, posteriors.RowPosteriors]:
    """Solve for all rows.

    The result has covariances if `sums`, the `covariance_sums`, are given and not `only_means`.
    """
    weight = prior.weights(np.diff(entries.indptr))
    precision = (prior.precision.astype(np.float64) * noise).astype(entries.dtype)
    prior_right = kernels.multiply(prior_means, precision)
    prior_right *= weight[:, None]
    posterior = Posterior.exactly(
        kernels.aligned_zeros(prior_means.shape, entries.dtype)
    )
    if sums is not None and not only_means:
        sums = sums.copy()  # the kernel overwrites them with the covariances of rows
        posterior = replace(posterior, covariance=sums)
    result = posteriors.posterior_half_sweep(
        entries,
        columns,
        prior=precision,
        weight=weight,
        prior_right=prior_right,
        vectors=posterior.mean,
        shift=mean,
        noise_variance=noise,
        covariance=sums,
        invert=not only_means,
    )
    return posterior, result


@dataclass(eq=False)
class Side:
    """The rows (or, transposed, the columns) of a fit: entries, vectors and their prior."""

    data: Floats
    link: Link  # carries the positions of the entries
    vectors: Posterior
    prior: RowPrior
    prior_means: Floats  # shape (n, d)
    weight: Floats  # n_u^g; 0 for rows without entries, so that they do not influence the prior
    typical: float  # mean weight of the rows with entries, the unit of penalties
    features: FeatureRidge | None
    penalty: float  # of B, in units of the prior precision; 0 without a link
    linked: Floats  # term of the links in the prior means, shape (n, d)
    link_squares: Floats | None = None  # the diagonal of S' W S
    # Sums of covariances by row, and the covariances of which they are the sums
    covariance_sums: tuple[Floats, Floats] | None = None

    @classmethod
    def pair(
        cls,
        X: Observed,
        prior: RowPrior,
        link_penalty: float = 0.0,
        row_features: GroupedFeatures | None = None,
        column_features: GroupedFeatures | None = None,
        by_column: Stored | None = None,
    ) -> tuple[Self, Self]:
        """Return the rows and the columns of X, with vectors, B and C of zero."""
        n, m = X.shape
        by_row = stored(X)
        by_column = by_column or transposed(by_row, m)
        rows = cls.of(by_row, m, prior, link_penalty, row_features)
        columns = cls.of(by_column, n, prior, link_penalty, column_features)
        if link_penalty:
            rows.link = replace(rows.link, transpose=columns.link.pattern)
            columns.link = replace(columns.link, transpose=rows.link.pattern)
            rows.link_squares = rows.link.squares(rows.weight)
            columns.link_squares = columns.link.squares(columns.weight)
        return rows, columns

    @classmethod
    def of(
        cls,
        coded: Stored,
        n_columns: int,
        prior: RowPrior,
        link_penalty: float,
        features: GroupedFeatures | None,
    ) -> Self:
        """Return the rows of a matrix, without the squares of the link."""
        entries = coded.arrays if isinstance(coded, CodedMatrix) else coded
        counts = np.diff(entries.indptr)
        n = len(counts)
        d = len(prior.mean)
        dtype = prior.mean.dtype
        weight = np.where(counts > 0, prior.weights(counts), 0).astype(dtype)
        typical = float(weight.sum(dtype=np.float64)) / np.count_nonzero(counts)
        if link_penalty:
            prior = replace(prior, link=np.zeros((n_columns, d), dtype))
        ridge = None
        if features is not None and features.matrix.shape[1]:
            ridge = FeatureRidge.of(features, weight, d)
            prior = replace(prior, features=ridge.coefficients)
        return cls(
            data=entries.data,
            link=Link.of(entries),
            vectors=Posterior.exactly(kernels.aligned_zeros((n, d), dtype)),
            prior=prior,
            prior_means=np.zeros((n, d), dtype),
            weight=weight,
            typical=typical,
            features=ridge,
            # Without a link penalty, an infinite typical weight would make it NaN.
            penalty=link_penalty * typical if link_penalty else 0.0,
            linked=np.zeros((n, d), dtype),
        )

    @property
    def seen(self) -> Masks:
        """Mask of the rows with entries, shape (n,)."""
        return self.weight > 0

    def solve(
        self,
        other: Side,
        mean: float,
        noise: float = 1.0,
        *,
        only_means: bool = False,
    ) -> posteriors.RowPosteriors:
        """Set the vectors to their posterior given the other side's."""
        sums = None
        covariances = other.vectors.covariance
        if covariances.shape[1]:
            cached = self.covariance_sums
            if cached is None or cached[1] is not covariances:
                sums = kernels.csr_matmat(self.link.pattern, covariances)
                self.covariance_sums = cached = sums, covariances
            sums = cached[0]
        posterior, result = _half_sweep(
            self.link.pattern._replace(data=self.data),
            other.vectors.mean,
            self.prior,
            self.prior_means,
            mean=mean,
            noise=noise,
            sums=sums,
            only_means=only_means,
        )
        if only_means:
            posterior = replace(posterior, covariance=self.vectors.covariance)
        self.vectors = posterior
        return result

    def fit_maps(self) -> Floats:
        """Improve B, then C; return their terms of the prior means, for centred features."""
        if self.penalty:
            B, self.linked = ridge_fit(
                self.link,
                self.vectors.mean - self.prior.mean - self.featured,
                ridge=self.penalty,
                weight=self.weight,
                start=self.prior.link,
                steps=1,
                relaxation=_RELAXATION,
                predictions=self.linked,
                squares=self.link_squares,
            )
            self.prior = replace(self.prior, link=B)
        if self.features is None:
            return self.linked
        return self.linked + self.features.fit(self.vectors.mean - self.linked)

    @property
    def featured(self) -> Floats:
        """Term of the features in the prior means, shape (n, d)."""
        if self.features is None:
            return np.zeros_like(self.vectors.mean)
        return kernels.csr_matmat(self.features.design.rows, self.features.coefficients)

    def with_mean(self, mean: Floats) -> RowPrior:
        """Return the prior with C, and with the prior mean `mean` at the mean features."""
        if self.features is None:
            return replace(self.prior, mean=mean)
        prior_mean, coefficients = self.features.map(mean)
        return replace(self.prior, mean=prior_mean, features=coefficients)

    def weighted_mean(self, vectors: Floats) -> Float64s:
        """Return the weighted mean of the vectors of rows, shape (d,)."""
        return weighted_mean(self.weight, vectors)

    def weighted_dots(
        self,
        left: Floats,
        right: Floats,
    ) -> float:
        r"""Return :math:`\sum_u w_u x_u' \Lambda y_u`."""
        pull = kernels.multiply(right, self.prior.precision)
        return float(row_dots(left, pull) @ self.weight.astype(np.float64))

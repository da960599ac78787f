r"""Vectors of rows without entries, predicted from features alone.

A map from features is fitted to the fitted vectors. The prior of the fit is of no use here: with
links, its map from features explains only what the links do not, and rows without entries have no
links. The weight of a row in the regression is the square root of its number of entries.

In addition, each column has its own slopes on the main directions of the features, a random effect
whose distribution is learned. The slopes are fitted to the residuals of the low-rank map, computed
as if all rows were unknown. They are a ridge regression of each column on the features of rows,
pooled over all columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from lowrank import kernels
from lowrank.completion.bayes import VariationalSide, shrinkage_target
from lowrank.completion.feature_ridge import (
    FeatureDesign,
    FeatureRidge,
    GroupedFeatures,
)
from lowrank.completion.links import (
    Posterior,
    RowPrior,
    posterior_rows,
    summed_covariance,
)
from lowrank.kernels.arrays import Float64s, Floats, Int64s
from lowrank.subspace import orthonormal
from lowrank.sums import weighted_mean

N_SLOPES = 32  # maximum number of directions of the features

# Steps of expectation maximisation for the penalties of the map. More steps raise the evidence, but
# rank held-out rows worse.
_MAP_STEPS = 3
# Steps of expectation maximisation for the distribution of the slopes
_SLOPE_STEPS = 10
_EXTRA = 8  # oversampling: columns of the random subspace beyond the directions
_RANGE_STEPS = 6  # steps of subspace iteration for the directions


@dataclass(frozen=True, eq=False)
class ColdMap:
    r"""The distribution of the vector of a row without entries.

    The mean is ``mean + C'f`` for the `coefficients` C, shape (n_features, d). The covariance is
    ``covariance`` times :math:`1 + (f - c)'Q(f - c)`, where c are the mean features, `centre`; the
    second term is the uncertainty of C. The columns of `draws` are draws from N(0, Q).
    """

    mean: Floats
    covariance: Floats
    coefficients: Floats
    draws: Floats
    centre: Floats

    def vectors(self, features: kernels.CsrArrays) -> Posterior:
        """Return the means and covariances of rows with these features."""
        means = kernels.csr_matmat(features, self.coefficients) + self.mean
        upper = self.covariance[np.triu_indices(len(self.mean))]
        return Posterior(means, self.spread(features)[:, None] * upper)

    def spread(self, features: kernels.CsrArrays) -> Floats:
        """Return the factor of the covariance for each row, shape (n,)."""
        off = kernels.csr_matmat(features, self.draws) - self.centre @ self.draws
        factors: Floats = 1 + np.einsum("ij,ij->i", off, off) / off.shape[1]
        return factors


def mean_covariance(vectors: Posterior, counts: Int64s) -> Float64s:
    """Return the mean covariance of vectors, weighted as in `fit_cold_map`."""
    d = vectors.mean.shape[1]
    if not vectors.covariance.shape[1]:
        return np.zeros((d, d))
    weight = np.sqrt(counts).astype(vectors.mean.dtype)
    weight /= weight.sum()
    return summed_covariance(vectors, weight)


def fit_cold_map(
    vectors: Floats,
    counts: Int64s,
    features: GroupedFeatures,
    covariance: Float64s | None = None,
) -> ColdMap:
    """Fit the map from features to the vectors of rows, given each row's number of entries.

    `covariance` is the mean covariance of the vectors; without it they are exact.
    """
    dtype = vectors.dtype
    d = vectors.shape[1]
    weight = np.sqrt(counts).astype(dtype)
    # The sum of the weights is then the effective number of rows.
    weight *= weight.sum() / (weight @ weight)
    total = float(weight.sum(dtype=np.float64))
    ridge = FeatureRidge.of(features, weight, d)
    uncertain = np.zeros((d, d)) if covariance is None else total * covariance
    for _ in range(_MAP_STEPS):
        residual = vectors - ridge.fit(vectors)
        mean = weighted_mean(weight, residual).astype(dtype)
        scaled = (residual - mean) * np.sqrt(weight)[:, None]
        scatter = kernels.coefficients(scaled, scaled) + uncertain + ridge.scatter()
        # A prior with the weight of one row keeps the covariance invertible.
        variances = np.diag(scatter) / total
        scatter += np.diag(variances + np.finfo(dtype).tiny)
        expected = scatter / (total + 1)
        ridge.learn(np.linalg.inv(expected).astype(dtype))
    return ColdMap(
        mean=ridge.map(mean).mean,
        covariance=expected.astype(dtype),
        coefficients=ridge.coefficients,
        draws=ridge.drawn(),
        centre=ridge.design.centre,
    )


def main_directions(
    features: GroupedFeatures,
    counts: Int64s,
    dtype: Any,
) -> Floats:
    """Return the directions of largest variance over entries, scaled to a total variance of 1.

    The result has shape (n_features, r).
    """
    total = max(1, int(counts.sum()))
    weight = (counts / total).astype(dtype)
    design = FeatureDesign.of(features, weight)
    weight = weight[:, None]
    n_features = design.n_features
    r = min(N_SLOPES, n_features)
    width = min(r + _EXTRA, n_features)
    rng = np.random.default_rng(0)
    Q = rng.standard_normal((n_features, width)).astype(dtype)
    with kernels.one_blas_thread():
        for _ in range(_RANGE_STEPS):
            Q = design.backward(weight * design.forward(Q))
            if not Q.any():  # all rows with entries have the same features
                return np.zeros((n_features, r), dtype)
            Q = orthonormal(Q)
        image = design.forward(Q)
        variances, rotation = np.linalg.eigh(
            kernels.coefficients(image, weight * image)
        )
    largest = slice(None, -r - 1, -1)
    total = max(float(variances[largest].sum()), np.finfo(dtype).tiny)
    directions = Q @ rotation[:, largest] / np.sqrt(total)
    return np.ascontiguousarray(directions, dtype)


class Slopes(NamedTuple):
    """The distribution of the slopes of columns, with the intercept last, and their noise."""

    prior: RowPrior
    noise: float

    def of(
        self,
        entries: kernels.CsrArrays,
        directions: Floats,
    ) -> Floats:
        """Return the slopes of columns given their residuals, shape (n, r + 1)."""
        columns = Posterior.exactly(_with_bias(directions))
        rows = posterior_rows(entries, columns, self.prior, mean=0.0, noise=self.noise)
        return rows.mean


def fit_slopes(residuals: kernels.CsrArrays, directions: Floats) -> Slopes:
    """Fit the distribution of slopes to a matrix of residuals, with one set of slopes per row."""
    from scipy import sparse

    d = directions.shape[1] + 1
    dtype = residuals.dtype
    indptr, indices, data = residuals
    shape = len(indptr) - 1, len(directions)
    X = sparse.csr_array((data, indices, indptr), shape=shape)
    noise = float(residuals.data.var(dtype=np.float64)) or 1.0
    target = shrinkage_target(d, noise)
    prior = RowPrior(
        mean=np.zeros(d, dtype),
        precision=np.diag(1 / target).astype(dtype),
        link=np.zeros((0, d), dtype),
        count_power=0.0,
    )
    rows, columns = VariationalSide.pair(X, prior)
    rows.target = target
    n_cells = d * (d + 1) // 2
    covariance = np.zeros((len(directions), n_cells), dtype)
    columns.vectors = Posterior(_with_bias(directions), covariance)
    for _ in range(_SLOPE_STEPS):
        noise = rows.fit_vectors(columns, 0.0, noise) / X.nnz
        rows.fit_prior()
    return Slopes(rows.prior, noise)


def _with_bias(directions: Floats) -> Floats:
    return np.column_stack([directions, np.zeros(len(directions), directions.dtype)])

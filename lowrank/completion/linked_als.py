"""Alternating least squares with prior means predicted from links and features."""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass
from itertools import count

import numpy as np

from lowrank import kernels
from lowrank.completion.als import (
    AlsSweep,
    BiasedFactors,
    Observed,
    biased_start,
    check_problem,
    moments,
    stored,
)
from lowrank.completion.feature_ridge import GroupedFeatures
from lowrank.completion.links import (
    Posterior,
    RowPrior,
    Side,
    exact_posterior,
    ridge_precision,
    sampled_rows,
    summed_covariance,
)
from lowrank.kernels import transposed
from lowrank.kernels.arrays import Float64s, Floats
from lowrank.sums import column_dots, inner

_LEARNING_SWEEPS = 5  # sweeps in which the penalties of features are learned
# Sweeps in which the charge on features is updated; it changes slowly.
_CHARGED_SWEEPS = 0, 3


@dataclass(frozen=True, eq=False)
class LinkedSweep(AlsSweep):
    """An `AlsSweep` with the priors of the vectors of rows and columns."""

    row_prior: RowPrior
    column_prior: RowPrior


def linked_als_sweeps(
    X: Observed,
    k: int,
    *,
    regularization: float,
    link_penalty: float = 0.0,
    row_features: GroupedFeatures | None = None,
    column_features: GroupedFeatures | None = None,
    count_power: float = 0.5,
    random_state: int | None = 0,
    threads: int | None = None,
) -> Generator[LinkedSweep]:
    r"""Fit biased factors as `als_sweeps` does, shrunk to predicted means instead of zero.

    The penalty :math:`n_u^g |a_u|^2` of `als_sweeps` becomes :math:`n_u^g |a_u - a_0 - B's_u -
    C'f_u|^2`, where :math:`s_u` is row u of the link and :math:`f_u` are its features; likewise for
    biases and columns. The mean :math:`\mu` is the entries' mean. The penalties are

    - `link_penalty`, the ridge penalty of B in the same units; 0 means no links;
    - one for each group of features in C, learned in the first 5 sweeps by the evidence of the
      regression of the vectors on features;
    - none for the means :math:`a_0`. Without links, the means of factors are fixed at zero for rows
      with mean features.

    The objective never rises; with features, from the sixth sweep on. For the other parameters see
    `als_sweeps`.

    Raises
    ------
    ArgumentError
        If `check_problem` raises it.

    References
    ----------
    Koren (2008), "Factorization meets the neighborhood", section 4.
    """
    check_problem(X, k, link_penalty=link_penalty, regularization=regularization)
    _, deviation = moments(X)
    precision = ridge_precision(k, regularization, deviation or 1.0, X.dtype)
    none = np.zeros((0, k + 1), X.dtype)
    prior = RowPrior(np.zeros(k + 1, X.dtype), precision, none, count_power)
    with kernels.at_most(threads):
        by_column = transposed(stored(X), X.shape[1])
        start = biased_start(X, k, random_state=random_state, by_column=by_column)
        rows, columns = _LinkedSide.pair(
            X,
            prior,
            link_penalty,
            row_features,
            column_features,
            by_column=by_column,
        )
    mean = start.mean
    columns.vectors.mean[:] = np.column_stack([start.column_factors, start.column_bias])
    for number in count():
        learns = number < _LEARNING_SWEEPS
        with kernels.at_most(threads):
            fitted = rows.fit_vectors(columns, mean)
            half = fitted + rows.map_penalties() + columns.penalties()
            if number in _CHARGED_SWEEPS:
                rows.charge(columns, fitted / X.nnz)
            rows.fit_prior(columns if learns else None, mean, fitted / X.nnz)
            fitted = columns.fit_vectors(rows, mean)
            squares = fitted - columns.vector_penalties()
            if number in _CHARGED_SWEEPS:
                columns.charge(rows, fitted / X.nnz)
            columns.fit_prior(rows if learns else None, mean, fitted / X.nnz)
            penalties = rows.penalties() + columns.penalties()
        w, z = rows.vectors.mean, columns.vectors.mean
        yield LinkedSweep(
            BiasedFactors(mean, w[:, k], z[:, k], w[:, :k], z[:, :k]),
            half_objective=half,
            objective=squares + penalties,
            rmse=math.sqrt(max(squares, 0.0) / X.nnz),
            row_prior=rows.prior,
            column_prior=columns.prior,
        )


class _LinkedSide(Side):
    """The rows (or columns) of a penalised least squares fit."""

    def charge(
        self,
        other: Side,
        noise: float,
    ) -> None:
        """Penalise predictions from features for the uncertainty of the other side's vectors.

        The uncertainty of column i adds :math:`a_u' V_i a_u` to the variance of an entry. The
        penalties of vectors do not cover the part of :math:`a_u` that features predict. Only the
        diagonal of the covariance is used, each factor weighted by its share in the squares of the
        vectors, relative to the noise variance.
        """
        if self.features is None:
            return
        precision = float(self.prior.precision[0, 0])
        other_precision = float(other.prior.precision[0, 0])
        squares = self.vectors.mean[:, :-1] ** 2
        shares = squares.mean(axis=0, dtype=np.float64)
        shares *= noise / max(float(shares.sum()), np.finfo(np.float64).tiny)
        information = kernels.csr_matmat(other.link.pattern, squares)
        information += other_precision * other.weight[:, None]
        variances = np.zeros_like(information)
        np.divide(1, information, out=variances, where=information > 0)
        expected = (variances @ shares).astype(self.data.dtype)[:, None]
        charge = kernels.csr_matmat(self.link.pattern, expected)[:, 0]
        charge /= self.data.dtype.type(precision)
        self.features.weigh(self.weight, charge)

    def fit_vectors(
        self,
        other: Side,
        mean: float,
    ) -> float:
        """Solve for this side's vectors; return the sum of errors and of their penalties."""
        points = self.prior_means
        columns = other.vectors.mean
        entries = self.link.pattern
        dtype = points.dtype
        factors = kernels.aligned_zeros((len(points), points.shape[1] - 1), dtype)
        column_factors = kernels.aligned_zeros(
            (len(columns), columns.shape[1] - 1), dtype
        )
        column_factors[:] = columns[:, :-1]
        bias = np.empty(len(points), dtype)
        precision = np.diag(self.prior.precision)
        shift, column_bias = mean, None
        if self.features is None and not self.penalty:
            # All rows have the same prior mean.
            entries = entries._replace(data=self.data)
            shift = mean + float(points[0, -1])
            column_bias = columns[:, -1].copy()
        else:
            # Relative to their prior means, vectors have plain penalties.
            predicted = kernels.csr_entries(entries, points, columns)
            residual = np.subtract(self.data, predicted, out=predicted)
            entries = entries._replace(data=residual)
        objective = kernels.als_half_sweep(
            entries,
            column_factors,
            other_bias=column_bias,
            shift=shift,
            # The precision of `ridge_precision` is diagonal, with equal factors.
            penalty=self.weight * precision[0],
            bias_penalty=self.weight * precision[-1],
            factors=factors,
            bias=bias,
        )
        self.vectors = Posterior.exactly(np.column_stack([factors, bias]))
        self.vectors.mean[:] += points
        return math.fsum(objective)

    def fit_prior(
        self,
        other: Side | None,
        mean: float,
        noise: float,
    ) -> None:
        """Improve B, C and the prior mean; with the `other` side, learn the penalties of C."""
        dtype = self.data.dtype
        predicted = self.fit_maps()
        residual = self.vectors.mean - predicted
        centre = self.weighted_mean(residual).astype(dtype)
        if not self.penalty:
            # Otherwise, rows with few entries would share a direction and rank high for many.
            centre[:-1] = 0
        previous_means = self.prior_means
        self.prior = self.with_mean(centre)
        self.prior_means = predicted + centre
        if self.features is None or other is None:
            return
        residual -= centre
        squares = column_dots(self.weight[:, None] * residual, residual)
        squares += np.diag(self.features.scatter())
        squares += noise * self.uncertainty(other, previous_means, mean)
        # Equal entries are fitted exactly.
        squares += np.finfo(dtype).tiny / np.finfo(dtype).eps
        precision = np.diag(np.count_nonzero(self.seen) / squares)
        self.features.learn(precision.astype(dtype))

    def uncertainty(
        self,
        other: Side,
        prior_means: Floats,
        mean: float,
    ) -> Float64s:
        """Return the weighted sum of the variances of the rows, relative to the noise variance."""
        rows = sampled_rows(self.seen)
        entries = self.link.pattern._replace(data=self.data).take(rows)
        posterior = exact_posterior(
            entries, other.vectors.mean, self.prior, prior_means[rows], mean
        )
        weight = self.weight[rows]
        scale = self.weight.sum(dtype=np.float64) / weight.sum(dtype=np.float64)
        variances = np.diag(summed_covariance(posterior, weight))
        scaled: Float64s = scale * variances
        return scaled

    def vector_penalties(self) -> float:
        off = self.vectors.mean - self.prior_means
        return self.weighted_dots(off, off)

    def map_penalties(self) -> float:
        """Return the penalties of B and C, with the charge on features."""
        link = self.prior.link
        weighted = kernels.multiply(link, self.prior.precision)
        total = self.penalty * inner(link, weighted)
        if self.features is not None:
            total += float(np.sum(self.features.scatter() * self.prior.precision))
            predicted = self.features.design.forward(self.features.coefficients)
            charge = (1 - self.features.shrinkage) * self.features.weight[:, None]
            pull = kernels.multiply(predicted, self.prior.precision)
            total += inner(charge * predicted, pull)
        return total

    def penalties(self) -> float:
        return self.vector_penalties() + self.map_penalties()

"""Variational Bayes for a matrix with missing entries (the model of `lowrank.completion.links`).

The full precision matrices and the means of the priors are learned, and so is the noise variance.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from lowrank import kernels
from lowrank.completion.als import biased_start, check_problem
from lowrank.completion.links import Posterior, RowPrior, Side, summed_covariance
from lowrank.errors import ArgumentError
from lowrank.kernels.arrays import Float64s, Floats, Floats32, Int64s

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from lowrank.completion.feature_ridge import GroupedFeatures

_SHRINK_TO = 0.05  # prior variance of factors and biases, for entries of variance 1
_START_WIDTH = 2.0  # variances of the first prior, relative to the shrinkage target
# Starting noise variance, relative to the variance of the entries. From a larger one, a fit to few
# entries may end with factors of zero.
_START_NOISE = 0.2
_NOISES = 0.3, 2.0  # range of the calibrated noise, in noise variances of the posterior
_NOISE_ERROR = 0.05  # relative tolerance of the calibrated noise variance
_GRID = 6  # noise variances that are compared at a time
# Updates of the means alone between sweeps that also update covariances
_QUICK_STEPS = 3


def shrinkage_target(d: int, variance: float) -> Float64s:
    """Return the prior variances that learned covariances are shrunk to, shape (d,).

    They have the weight of d rows. `variance` is the entries' variance. The bias comes last; its
    standard deviation scales with the entries, the deviation of a factor with their square root.
    """
    target = np.full(d, _SHRINK_TO * math.sqrt(variance))
    target[-1] = _SHRINK_TO * variance
    return target


def predictive_variance(rows: Posterior, columns: Posterior) -> Floats:
    r"""Return the variance of :math:`b + c + a \cdot m` without noise, for pairs of vectors.

    For independent vectors it is :math:`z'V_w z + w'V_z w + \operatorname{tr} V_{aa} V_{mm}`,
    where :math:`z = (m, 1)` and :math:`w = (a, 1)`.
    """
    d = rows.mean.shape[1]
    i, j = np.triu_indices(d)
    # Covariances store each entry off the diagonal once.
    multiplicity = np.where(i < j, 2, 1).astype(rows.mean.dtype)
    w = rows.mean.copy()
    z = columns.mean.copy()
    w[:, -1] = z[:, -1] = 1
    of_columns = z[:, i] * z[:, j] * multiplicity
    of_rows = w[:, i] * w[:, j] * multiplicity
    multiplicity[j == d - 1] = 0  # biases are not multiplied
    of_both = columns.covariance * multiplicity
    variance: Floats = np.einsum("np,np->n", rows.covariance, of_columns + of_both)
    variance += np.einsum("np,np->n", columns.covariance, of_rows)
    return variance


def leverages(
    counts: Int64s,
    prior: RowPrior,
    covariances: Floats,
) -> Floats32:
    r"""Return the mean leverage of the entries of each row, their weight in their own prediction.

    It is the effective number of parameters :math:`d - \operatorname{tr} V \Lambda` per entry
    (MacKay 1992). `covariances` are packed, shape (n, d (d + 1) / 2).
    """
    d = len(prior.mean)
    # Covariances store each entry off the diagonal once.
    packed_precision = 2 * prior.precision - np.diag(np.diag(prior.precision))
    traces = covariances @ packed_precision[np.triu_indices(d)]
    parameters = np.clip(d - prior.weights(counts) * traces, 0, d)
    parameters[counts == 0] = 0
    return np.minimum(parameters / np.maximum(counts, 1), 1).astype(np.float32)


def calibrated_noise(
    values: Floats,
    scores: Floats,
    spread: Floats,
    noise: float,
) -> float:
    """Return the noise variance that maximises the likelihood of held-out entries.

    The search covers a range around `noise`, the posterior's. `scores` are predictions from
    other entries, and `spread` their variances.
    """

    def loss(log_noise: float) -> float:
        variance = spread + math.exp(log_noise)
        return float((np.log(variance) + (values - scores) ** 2 / variance).mean())

    low, high = math.log(noise) + np.log(_NOISES)
    # The loss has one minimum: narrow the range to the neighbours of the best point.
    while high - low > _NOISE_ERROR:
        grid = np.linspace(low, high, _GRID)
        best = int(np.argmin([loss(log_noise) for log_noise in grid]))
        low = grid[max(best - 1, 0)]
        high = grid[min(best + 1, _GRID - 1)]
    return math.exp((low + high) / 2)


@dataclass(
    frozen=True,
    eq=False,
    kw_only=True,
)
class VariationalSweep:
    """The state after one sweep, which solves the rows, then the columns, and learns the priors.

    Attributes
    ----------
    mean : float
    rows, columns : Posterior
    row_prior, column_prior : RowPrior
    noise_variance : float
    rmse : float
        Root mean squared error over the known entries, expected under the posterior.
    free_energy : float
        Lower bound on the log evidence, up to a constant. No sweep lowers it.
    """

    mean: float
    rows: Posterior
    columns: Posterior
    row_prior: RowPrior
    column_prior: RowPrior
    noise_variance: float
    rmse: float
    free_energy: float


def variational_sweeps(
    X: csr_array,
    k: int,
    *,
    link_penalty: float = 0.0,
    row_features: GroupedFeatures | None = None,
    column_features: GroupedFeatures | None = None,
    count_power: float = 0.0,
    temperature: float = 1.0,
    random_state: int | None = 0,
    threads: int | None = None,
) -> Iterator[VariationalSweep]:
    r"""Fit independent Gaussian posteriors to the stored entries of a sparse matrix.

    The method is mean-field variational Bayes. Each half-sweep computes the exact posterior of
    every row given the columns' posteriors, then learns the prior (link, mean and full precision).
    The noise variance is learned after the columns. The free energy

    .. math:: F = \frac1T E[\log p(x \mid a, b, m, c)] - \text{KL} + \log p(B, \Lambda, \sigma^2)

    never falls. A temperature T above 1 gives each entry the weight 1/T, which keeps the posterior
    from being overconfident if the model is misspecified. Between two sweeps, a few steps update
    means and priors only, because covariances cost most and converge first.

    The prior of B is Gaussian with `link_penalty` times the prior precision of the rows, and its
    posterior has the same column covariance. The same holds for the coefficients C of features,
    with a learned factor for each group.

    Parameters
    ----------
    X, random_state, threads
        As in `als_sweeps`.
    k : int
        Number of factors. Each row and column takes (k + 1)(k + 2) / 2 numbers of memory.
    link_penalty : float
        Positive ridge penalty of the links; 0 means no links.
    row_features, column_features : GroupedFeatures, optional
        Features of rows and columns, which predict the means of their priors.
    count_power : float
        Exponent of a row's number of entries in its prior precision; 0 is the usual model.
    temperature : float
        The temperature T, at least 1.

    Raises
    ------
    ArgumentError
        If `k` or `temperature` is below 1, `link_penalty` is negative, or `X` has no entries.

    References
    ----------
    Lim and Teh (2007), "Variational Bayesian approach to movie rating prediction", section 3.
    Gruenwald and van Ommen (2017), "Inconsistency of Bayesian inference for misspecified linear
    models, and a proposal for repairing it", section 4.
    """
    check_problem(X, k, link_penalty=link_penalty)
    if not 1 <= temperature < math.inf:
        raise ArgumentError(f"temperature must be at least 1; got {temperature}.")
    d = k + 1
    variance = float(X.data.var(dtype=np.float64)) or 1.0
    target = shrinkage_target(d, variance)
    precision = np.diag(1 / (_START_WIDTH * target)).astype(X.dtype)
    prior = RowPrior(
        np.zeros(d, X.dtype), precision, np.zeros((0, d), X.dtype), count_power
    )
    with kernels.at_most(threads):
        start = biased_start(X, k, random_state=random_state)
        rows, columns = VariationalSide.pair(
            X, prior, link_penalty, row_features, column_features
        )
        rows.begin(target)
        columns.begin(target)
        columns.vectors.mean[:] = np.column_stack(
            [start.column_factors, start.column_bias]
        )
        # Both covariances are zero, and so are their sums.
        rows.covariance_sums = (
            np.zeros_like(rows.vectors.covariance),
            columns.vectors.covariance,
        )
    noise = _START_NOISE * variance
    n_quick = 0
    while True:
        with kernels.at_most(threads):
            for _ in range(n_quick):
                rows.solve(columns, start.mean, temperature * noise, only_means=True)
                rows.fit_prior()
                columns.solve(rows, start.mean, temperature * noise, only_means=True)
                columns.fit_prior()
            rows.fit_vectors(columns, start.mean, temperature * noise)
            rows.fit_prior()
            squares = columns.fit_vectors(rows, start.mean, temperature * noise)
            columns.fit_prior()
        n_quick = _QUICK_STEPS
        count = (
            X.nnz / temperature + 1
        )  # the prior of the noise has the weight of one entry
        noise = (squares / temperature + variance) / count
        yield VariationalSweep(
            mean=start.mean,
            rows=rows.vectors,
            columns=columns.vectors,
            row_prior=rows.prior,
            column_prior=columns.prior,
            noise_variance=noise,
            rmse=math.sqrt(max(squares, 0.0) / X.nnz),
            free_energy=rows.free_energy()
            + columns.free_energy()
            - 0.5 * count * math.log(noise),
        )


@dataclass(eq=False)
class VariationalSide(Side):
    """The rows (or columns) of a fit, with Gaussian posteriors and a prior that is learned."""

    target: Floats = field(
        init=False
    )  # variances that the prior covariance is shrunk to
    log_dets: float = field(init=False, default=0.0)

    def begin(self, target: Float64s) -> None:
        """Set the shrinkage target and the first prior for a typical row, covariances to zero."""
        d = len(target)
        self.target = target * self.typical
        precision = self.prior.precision / self.data.dtype.type(self.typical)
        self.prior = replace(self.prior, precision=precision)
        cells = np.zeros((len(self.weight), d * (d + 1) // 2), self.data.dtype)
        self.vectors = replace(self.vectors, covariance=cells)

    def fit_vectors(
        self,
        other: Side,
        mean: float,
        noise: float,
    ) -> float:
        """Update the posterior; return the expected sum of squared errors."""
        result = self.solve(other, mean, noise)
        n_seen = int(np.count_nonzero(self.seen))
        d = len(self.prior.mean)
        self.log_dets = n_seen * d * math.log(noise) - float(
            result.log_det[self.seen].sum()
        )
        vectors = self.vectors.mean
        from_prior = self.weighted_dots(vectors, vectors - 2 * self.prior_means)
        precision = self.prior.precision.astype(np.float64)
        from_prior += float(
            np.sum(precision * summed_covariance(self.vectors, self.weight))
        )
        objective = float(result.objective[self.seen].sum())
        return objective + noise * (d * n_seen - from_prior)

    def fit_prior(self) -> None:
        """Maximise the free energy over this side's prior: B, C, mean, then precision."""
        predicted = self.fit_maps()
        residual = self.vectors.mean - predicted
        mean = self.weighted_mean(residual).astype(self.data.dtype)
        self.prior_means = predicted + mean
        residual -= mean
        residual *= np.sqrt(self.weight)[:, None]
        scatter = kernels.coefficients(residual, residual) + summed_covariance(
            self.vectors, self.weight
        )
        if self.penalty:
            link = np.ascontiguousarray(self.prior.link)
            scatter += self.penalty * kernels.coefficients(link, link)
        if self.features is not None:
            self.features.learn(self.prior.precision)
            scatter += self.features.scatter()
        d = len(mean)
        scatter += d * np.diag(self.target)
        covariance = scatter / (np.count_nonzero(self.seen) + d)
        precision = np.linalg.inv(covariance).astype(self.data.dtype)
        self.prior = replace(
            self.with_mean(mean), precision=(precision + precision.T) / 2
        )

    def free_energy(self) -> float:
        """Return this side's share of the free energy, right after `fit_prior`."""
        d = len(self.prior.mean)
        n_seen = int(np.count_nonzero(self.seen))
        log_det = float(np.linalg.slogdet(self.prior.precision.astype(np.float64))[1])
        learned = 0.0 if self.features is None else self.features.log_evidence
        return 0.5 * ((n_seen + d) * log_det + self.log_dets) + learned

"""Variational Bayes for a matrix with missing entries (the model of `lowrank.completion.links`).

The full precision matrices and the means of the priors are learned, and so is the noise variance.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lowrank import kernels
from lowrank.completion.als import biased_start, check_problem
from lowrank.completion.links import Posterior, RowPrior, Side, Sweep, unpack
from lowrank.completion.ordinal import OrdinalScale
from lowrank.completion.targets import Observed, Targets
from lowrank.errors import ArgumentError
from lowrank.kernels import Floats

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from lowrank.completion.design import GroupedFeatures

_SHRINK_TO = 0.05  # prior variance of factors and biases, for entries of variance 1
_START_WIDTH = 2.0  # variances of the first prior, relative to the shrinkage target
# Starting noise variance, relative to that of the entries. From a larger one, a fit to few entries
# may end with factors of zero.
_START_NOISE = 0.2
_NOISES = (
    0.3,
    2.0,
)  # range of the calibrated noise variance, relative to that of the posterior
_NOISE_ERROR = 0.05  # relative tolerance of the calibrated noise variance
_QUICK_STEPS = (
    3  # updates of the means alone between sweeps that also update covariances
)


def shrinkage_target(d: int, variance: float) -> NDArray[np.float64]:
    """Return the prior variances that learned covariances are shrunk to, shape (d,).

    They have the weight of d rows. `variance` is that of the entries. The bias comes last; its
    standard deviation scales with the entries, that of a factor with their square root.
    """
    target = np.full(d, _SHRINK_TO * math.sqrt(variance))
    target[-1] = _SHRINK_TO * variance
    return target


def predictive_variance(rows: Posterior, columns: Posterior) -> Floats:
    r"""Return the variance of :math:`b + c + a \cdot m` without noise, for pairs of vectors.

    For independent vectors it is :math:`z'V_w z + w'V_z w + \operatorname{tr} V_{aa} V_{mm}`, where
    :math:`z = (m, 1)` and :math:`w = (a, 1)`.
    """
    i, j = np.triu_indices(rows.mean.shape[1])
    twice = np.where(i < j, 2, 1).astype(
        rows.mean.dtype
    )  # off-diagonal entries are stored once
    w, z = rows.mean.copy(), columns.mean.copy()
    w[:, -1] = z[:, -1] = 1
    variance: Floats = np.einsum("np,np->n", rows.covariance, z[:, i] * z[:, j] * twice)
    variance += np.einsum("np,np->n", columns.covariance, w[:, i] * w[:, j] * twice)
    twice[j == len(w[0]) - 1] = 0
    variance += np.einsum("np,np,p->n", rows.covariance, columns.covariance, twice)
    return variance


def leverages(
    counts: NDArray[np.int64], prior: RowPrior, covariances: NDArray[np.floating[Any]]
) -> NDArray[np.float32]:
    r"""Return the mean leverage of the entries of each row, their weight in their own prediction.

    It is the effective number of parameters :math:`d - \operatorname{tr} V \Lambda` per entry
    (MacKay 1992). `covariances` are packed, shape (n, d (d + 1) / 2).
    """
    d = len(prior.mean)
    twice = 2 * prior.precision - np.diag(np.diag(prior.precision))
    freedom = d - prior.weights(counts) * (covariances @ twice[np.triu_indices(d)])
    found = np.where(counts > 0, np.clip(freedom, 0, d) / np.maximum(counts, 1), 0)
    return np.minimum(found, 1).astype(np.float32)


def calibrated_noise(
    values: Floats,
    scores: Floats,
    spread: Floats,
    noise: float,
    scale: OrdinalScale | None,
) -> float:
    """Return the noise variance that maximises the likelihood of held-out entries.

    The search covers a range around `noise`, that of the posterior. `scores` are predictions from
    other entries, and `spread` their variances.
    """

    def loss(log_noise: float) -> float:
        variance = spread + math.exp(log_noise)
        if scale is None:
            return float((np.log(variance) + (values - scores) ** 2 / variance).mean())
        chances = scale.probabilities(scores, variance)
        own = chances[np.arange(len(values)), scale.codes(values)]
        return -float(np.log(np.maximum(own, 1e-12)).mean())

    low, high = math.log(noise) + np.log(_NOISES)
    while high - low > _NOISE_ERROR:
        grid = np.linspace(low, high, 6)
        best = int(np.argmin([loss(each) for each in grid]))
        low, high = grid[max(best - 1, 0)], grid[min(best + 1, 5)]
    return math.exp((low + high) / 2)


@dataclass(frozen=True, eq=False, kw_only=True)
class VariationalSweep(Sweep):
    """The state after one sweep, which solves the rows, then the columns, and learns the priors.

    Attributes
    ----------
    free_energy : float
        Lower bound on the log evidence, up to a constant. No sweep lowers it.
    rmse : float
        Root mean squared error over the known entries, expected under the posterior.
    observed : Observed
        The ordinal scale, if there is one, and the mean variance of the scores.
    """

    free_energy: float
    observed: Observed

    def expected(self, rows: NDArray[np.int64], columns: NDArray[np.int64]) -> Floats:
        """Return the expected entries at pairs of rows and columns, shape (n,)."""
        w, z = self.rows.mean[rows], self.columns.mean[columns]
        scores: Floats = np.einsum("nk,nk->n", w[:, :-1], z[:, :-1])
        scores += w[:, -1] + z[:, -1] + w.dtype.type(self.mean)
        scale, variance = self.observed
        if scale is None:
            return scores
        return scale.expected(scores, self.noise_variance + variance)


def variational_sweeps(
    X: csr_array,
    k: int,
    *,
    link_penalty: float = 0.0,
    row_features: GroupedFeatures | None = None,
    column_features: GroupedFeatures | None = None,
    count_power: float = 0.0,
    temperature: float = 1.0,
    ordinal: bool = False,
    start: VariationalSweep | None = None,
    random_state: int | None = 0,
    threads: int | None = None,
) -> Iterator[VariationalSweep]:
    r"""Fit independent Gaussian posteriors to the stored entries of a sparse matrix.

    The method is mean-field variational Bayes. Each half-sweep computes the exact posterior of
    every row given those of the columns, then learns the prior (link, mean and full precision). The
    noise variance is learned after the columns. The free energy

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
    ordinal : bool
        Whether to model entries as levels of continuous latent numbers.
    start : VariationalSweep, optional
        Starting point: the last sweep of a fit to the same entries, with the same links.

    Raises
    ------
    ArgumentError
        If `k` or `temperature` is below 1, `link_penalty` is negative, `X` has no entries, or all
        entries are equal and `ordinal` is True.

    References
    ----------
    Lim and Teh (2007), "Variational Bayesian approach to movie rating prediction", section 3.
    Gruenwald and van Ommen (2017), "Inconsistency of Bayesian inference for misspecified linear
    models, and a proposal for repairing it", section 4.
    Albert and Chib (1993), "Bayesian analysis of binary and polychotomous response data",
    section 4.
    """
    check_problem(X, k, link_penalty=link_penalty)
    if not 1 <= temperature < math.inf:
        raise ArgumentError(f"temperature must be at least 1; got {temperature}.")
    links: Any = (link_penalty, row_features, column_features)
    with kernels.at_most(threads):
        variance = float(X.data.var(dtype=np.float64)) or 1.0
        target = shrinkage_target(k + 1, variance)
        scale, noise = (
            OrdinalScale.of(X.data) if ordinal else None,
            _START_NOISE * variance,
        )
        if start is None:
            mean, *sides = _fresh_sides(X, target, count_power, random_state, *links)
        else:
            mean, priors = start.mean, (start.row_prior, start.column_prior)
            sides = list(VariationalSide.pair(X, *priors, *links))
            for side, vectors in zip(sides, (start.rows, start.columns), strict=True):
                side.vectors = vectors
            noise = start.noise_variance
            scale = (start.observed.scale or scale) if ordinal else None
        rows, columns = sides
        for side in sides:
            side.target = target * side.typical
        targets = Targets.of(X, scale, noise=noise, temperature=temperature)
        if start is None:
            targets.give(rows, columns)
        else:
            targets.update(rows, columns, mean)
    quick = 0 if start is None else _QUICK_STEPS
    while True:
        with kernels.at_most(threads):
            for step in range(quick):
                for side, other in ((rows, columns), (columns, rows)):
                    side.solve(
                        other, mean, temperature * targets.noise, only_means=True
                    )
                    side.fit_prior()
                if step % 2 == 0:
                    targets.update(rows, columns, mean)
            rows.fit_vectors(columns, mean, temperature * targets.noise)
            rows.fit_prior()
            squares = columns.fit_vectors(rows, mean, temperature * targets.noise)
            columns.fit_prior()
            targets.update(rows, columns, mean, squares)
        quick = _QUICK_STEPS
        state = mean, rows.vectors, columns.vectors, rows.prior, columns.prior
        yield VariationalSweep(
            *state,
            noise_variance=targets.noise,
            free_energy=rows.free_energy()
            + columns.free_energy()
            + targets.free_energy,
            rmse=targets.rmse,
            observed=targets.observed(),
        )


def _fresh_sides(
    X: csr_array,
    target: NDArray[np.float64],
    count_power: float,
    random_state: int | None,
    *links: Any,
) -> tuple[float, VariationalSide, VariationalSide]:
    """Return the mean and both sides, with wide priors, covariances of zero, columns by an SVD."""
    d = len(target)
    start = biased_start(X, d - 1, random_state=random_state)
    precision = np.diag(1 / (_START_WIDTH * target)).astype(X.dtype)
    prior = RowPrior(
        np.zeros(d, X.dtype), precision, np.zeros((0, d), X.dtype), count_power
    )
    rows, columns = VariationalSide.pair(X, prior, prior, *links)
    for side in (rows, columns):
        side.prior = replace(
            side.prior, precision=precision / X.dtype.type(side.typical)
        )
        cells = np.zeros((len(side.weight), d * (d + 1) // 2), X.dtype)
        side.vectors = replace(side.vectors, covariance=cells)
    columns.vectors.mean[:] = np.column_stack([start.column_factors, start.column_bias])
    rows.covariance_sums = (
        np.zeros_like(rows.vectors.covariance),
        columns.vectors.covariance,
    )
    return start.mean, rows, columns


@dataclass(eq=False)
class VariationalSide(Side):
    """The rows (or columns) of a fit, with Gaussian posteriors and a prior that is learned."""

    target: Floats = field(
        init=False
    )  # variances that the prior covariance is shrunk to
    log_dets: float = field(init=False, default=0.0)

    def fit_vectors(self, other: Side, mean: float, noise: float) -> float:
        """Update the posterior; return the expected sum of squared errors."""
        result = self.solve(other, mean, noise)
        n_seen, d = np.count_nonzero(self.seen), len(self.prior.mean)
        self.log_dets = n_seen * d * math.log(noise) - float(
            result.log_det[self.seen].sum()
        )
        vectors = self.vectors.mean
        from_prior = self.weighted_dots(vectors, vectors - 2 * self.prior_means)
        precision = self.prior.precision.astype(np.float64)
        from_prior += float(np.sum(precision * self.summed_covariance()))
        objective = float(result.objective[self.seen].sum())
        return objective + noise * (d * n_seen - from_prior)

    def fit_prior(self) -> None:
        """Maximise the free energy over this side's prior: B, C, mean, then precision."""
        shares = self.fit_maps()
        off = self.vectors.mean - shares
        mean = self.weighted_mean(off).astype(self.data.dtype)
        self.prior_means = shares + mean
        off -= mean
        off *= np.sqrt(self.weight)[:, None]
        scatter = kernels.coefficients(off, off) + self.summed_covariance()
        if self.penalty:
            link = np.ascontiguousarray(self.prior.link)
            scatter += self.penalty * kernels.coefficients(link, link)
        if self.features is not None:
            self.features.learn(self.prior.precision)
            scatter += self.features.scatter()
        d, n_seen = len(mean), np.count_nonzero(self.seen)
        scatter += d * np.diag(self.target)
        precision = np.linalg.inv(scatter / (n_seen + d)).astype(self.data.dtype)
        self.prior = replace(
            self.with_mean(mean), precision=(precision + precision.T) / 2
        )

    def summed_covariance(self) -> NDArray[np.float64]:
        """Return the weighted sum of the covariances of rows with entries."""
        packed = kernels.coefficients(self.vectors.covariance, self.weight[:, None])
        summed: NDArray[np.float64] = unpack(
            packed.T.astype(np.float64), len(self.prior.mean)
        )[0]
        return summed

    def free_energy(self) -> float:
        """Return this side's share of the free energy, right after `fit_prior`."""
        d, n_seen = len(self.prior.mean), np.count_nonzero(self.seen)
        log_det = float(np.linalg.slogdet(self.prior.precision.astype(np.float64))[1])
        learned = 0.0 if self.features is None else self.features.log_evidence
        return 0.5 * ((n_seen + d) * log_det + self.log_dets) + learned

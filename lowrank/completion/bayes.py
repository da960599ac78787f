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
_START_WIDTH = 2.0  # variances of the first prior, in units of those that later ones shrink to
_START_NOISE = 0.2  # share of the entries' variance; with more, few entries may end without factors
_NOISES = 0.3, 2.0  # in units of the posterior's: where the calibrated one is
_NOISE_ERROR = 0.05  # at most, of the calibrated one, as a share of it
_QUICK_STEPS = 3  # of the means, between sweeps that update covariances as well


def shrinkage_target(d: int, variance: float) -> NDArray[np.float64]:
    """Return the prior variances of vectors that fit entries of a given variance, shape (d,).

    The learned prior covariances are shrunk to them, with the weight of d rows. The bias comes
    last; it scales with the entries, a factor with their square root.
    """
    target = np.full(d, _SHRINK_TO * math.sqrt(variance))
    target[-1] = _SHRINK_TO * variance
    return target


def predictive_variance(rows: Posterior, columns: Posterior) -> Floats:
    r"""Return the variance of :math:`b + c + a \cdot m`, row by row of the two, without noise.

    With independent vectors, :math:`\operatorname{var}` is :math:`z'V_w z + w'V_z w +
    \operatorname{tr} V_{aa} V_{mm}` for :math:`z = (m, 1)`, :math:`w = (a, 1)`.
    """
    i, j = np.triu_indices(rows.mean.shape[1])
    twice = np.where(i < j, 2, 1).astype(rows.mean.dtype)  # a triangle stands for both
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
    r"""Return the share of the entries of each row in their own predictions, on average.

    It is the effective number of parameters :math:`d - \operatorname{tr} V \Lambda` per entry
    (MacKay 1992). `covariances` are packed, shape (n, d (d + 1) / 2).
    """
    d = len(prior.mean)
    twice = 2 * prior.precision - np.diag(np.diag(prior.precision))
    freedom = d - prior.weights(counts) * (covariances @ twice[np.triu_indices(d)])
    found = np.where(counts > 0, np.clip(freedom, 0, d) / np.maximum(counts, 1), 0)
    return np.minimum(found, 1).astype(np.float32)


def calibrated_noise(
    values: Floats, scores: Floats, spread: Floats, noise: float, scale: OrdinalScale | None
) -> float:
    """Return the noise variance under which entries are most likely, near that of the posterior.

    The `scores` are predictions that have not seen the entries, and `spread` their variances.
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
    """The state after one sweep: rows solved, then columns, and the priors learned from each.

    Attributes
    ----------
    free_energy : float
        The lower bound on the log evidence that no sweep lowers, up to a constant.
    rmse : float
        Root mean squared error over the known entries, expected under the posterior.
    observed : Observed
        With the ordinal scale, if there is one.
    """

    free_energy: float
    observed: Observed

    def expected(self, rows: NDArray[np.int64], columns: NDArray[np.int64]) -> Floats:
        """Return what is expected of entries, shape (n,), where rows and columns are known."""
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

    Mean-field variational Bayes: in each half-sweep the posterior of every row is exact given
    those of the columns, then the prior (link, mean and full precision) is learned, and the noise
    variance after the columns. The free energy

    .. math:: F = \frac1T E[\log p(x \mid a, b, m, c)] - \text{KL} + \log p(B, \Lambda, \sigma^2)

    never falls. A temperature T above 1 counts each entry as 1/T of one, which keeps the
    posterior from becoming too sure of a model that is not true. Between two sweeps a few steps
    move means and priors alone: covariances cost most, and settle first.

    The prior of B is Gaussian with precision `link_penalty` times the prior precision of the
    rows, and its posterior has that column covariance too. So have those of the coefficients C of
    features, with a factor for each group that is learned.

    Parameters
    ----------
    X, random_state, threads
        As in `als_sweeps`.
    k : int
        Number of factors. Memory grows with (k + 1)(k + 2) / 2 numbers for each row and column.
    link_penalty : float
        Positive ridge penalty of the links; 0 means no links.
    row_features, column_features : GroupedFeatures, optional
        What is known of rows and columns, which the means of their priors depend on.
    count_power : float
        Exponent of a row's number of entries in its prior precision; 0 is the usual model.
    temperature : float
        At least 1.
    ordinal : bool
        Take the entries as levels of latent numbers, which are modelled in their place.
    start : VariationalSweep, optional
        Where to begin: the end of a fit to the same entries, with the same links.

    Raises
    ------
    ArgumentError
        If `k` is below 1, `temperature` below 1, `link_penalty` negative, or
        `X` has no entries, or for an ordinal likelihood only one value.

    References
    ----------
    Lim and Teh (2007), "Variational Bayesian approach to movie rating prediction", section 3.
    Gruenwald and van Ommen (2017), "Inconsistency of Bayesian
    inference for misspecified linear models, and a proposal for repairing it", section 4. Albert
    and Chib (1993), "Bayesian analysis of binary and polychotomous response data", section 4.
    """
    check_problem(X, k, link_penalty=link_penalty)
    if not 1 <= temperature < math.inf:
        raise ArgumentError(f"temperature must be at least 1; got {temperature}.")
    links: Any = (link_penalty, row_features, column_features)
    with kernels.at_most(threads):
        variance = float(X.data.var(dtype=np.float64)) or 1.0
        target = shrinkage_target(k + 1, variance)
        scale, noise = OrdinalScale.of(X.data) if ordinal else None, _START_NOISE * variance
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
                    side.solve(other, mean, temperature * targets.noise, only_means=True)
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
            free_energy=rows.free_energy() + columns.free_energy() + targets.free_energy,
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
    """Return the mean and sides with wide priors and covariances of zero; columns by an SVD."""
    d = len(target)
    start = biased_start(X, d - 1, random_state=random_state)
    precision = np.diag(1 / (_START_WIDTH * target)).astype(X.dtype)
    prior = RowPrior(np.zeros(d, X.dtype), precision, np.zeros((0, d), X.dtype), count_power)
    rows, columns = VariationalSide.pair(X, prior, prior, *links)
    for side in (rows, columns):
        side.prior = replace(side.prior, precision=precision / X.dtype.type(side.typical))
        cells = np.zeros((len(side.weight), d * (d + 1) // 2), X.dtype)
        side.vectors = replace(side.vectors, covariance=cells)
    columns.vectors.mean[:] = np.column_stack([start.column_factors, start.column_bias])
    rows.covariance_sums = np.zeros_like(rows.vectors.covariance), columns.vectors.covariance
    return start.mean, rows, columns


@dataclass(eq=False)
class VariationalSide(Side):
    """A side with Gaussian posteriors and a prior that is learned."""

    target: Floats = field(init=False)  # variances that the prior covariance is shrunk to
    log_dets: float = field(init=False, default=0.0)

    def fit_vectors(self, other: Side, mean: float, noise: float) -> float:
        """Update the posterior; return the expected sum of squared errors."""
        result = self.solve(other, mean, noise)
        n_seen, d = np.count_nonzero(self.seen), len(self.prior.mean)
        self.log_dets = n_seen * d * math.log(noise) - float(result.log_det[self.seen].sum())
        vectors = self.vectors.mean
        from_prior = self.weighted_dots(vectors, vectors - 2 * self.prior_means)
        precision = self.prior.precision.astype(np.float64)
        from_prior += float(np.sum(precision * self.summed_covariance()))
        objective = float(result.objective[self.seen].sum())
        return objective + noise * (d * n_seen - from_prior)

    def fit_prior(self) -> None:
        """Maximise the free energy over this side's prior: in turn B, C, mean and precision."""
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
        self.prior = replace(self.with_mean(mean), precision=(precision + precision.T) / 2)

    def summed_covariance(self) -> NDArray[np.float64]:
        """Return the weighted sum of the covariances of the rows that have entries."""
        packed = kernels.coefficients(self.vectors.covariance, self.weight[:, None])
        summed: NDArray[np.float64] = unpack(packed.T.astype(np.float64), len(self.prior.mean))[0]
        return summed

    def free_energy(self) -> float:
        """Return this side's share of the free energy, right after `fit_prior`."""
        d, n_seen = len(self.prior.mean), np.count_nonzero(self.seen)
        log_det = float(np.linalg.slogdet(self.prior.precision.astype(np.float64))[1])
        learned = 0.0 if self.features is None else self.features.log_evidence
        return 0.5 * ((n_seen + d) * log_det + self.log_dets) + learned

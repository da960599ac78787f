"""Variational Bayes for the model of `lowrank.completion.posterior`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lowrank import kernels
from lowrank.completion.als import rough_start
from lowrank.completion.links import Link, ridge_fit
from lowrank.completion.posterior import Posterior, RowPrior, half_sweep, shrinkage_target, unpack

if TYPE_CHECKING:
    from scipy.sparse import csr_array

__all__ = ["VariationalSweep", "variational_sweeps"]

Floats = NDArray[np.floating[Any]]

_LINK_STEPS = 2  # conjugate gradient steps per sweep: they start from the sweep before
_START_WIDTH = 2.0  # variances of the first prior, in units of what later ones are shrunk to
_START_NOISE = 0.75  # share of the entries' variance


@dataclass(frozen=True, eq=False)
class VariationalSweep:
    """The state after one sweep: rows solved, then columns, and what is learned about each.

    Attributes
    ----------
    mean : float
    rows, columns : Posterior
    row_prior, column_prior : RowPrior
    noise_variance : float
    free_energy : float
        The lower bound on the log evidence that no sweep lowers, up to a constant.
    rmse : float
        Root mean squared error over the known entries, expected under the posterior.
    """

    mean: float
    rows: Posterior
    columns: Posterior
    row_prior: RowPrior
    column_prior: RowPrior
    noise_variance: float
    free_energy: float
    rmse: float


def variational_sweeps(
    X: csr_array,
    k: int,
    *,
    link_penalty: float = 0.0,
    count_power: float = 0.0,
    temperature: float = 1.0,
    random_state: int | None = 0,
    threads: int | None = None,
) -> Iterator[VariationalSweep]:
    r"""Fit independent Gaussian posteriors to the stored entries of a sparse matrix.

    Mean-field variational Bayes: in each half-sweep the posterior of every row is exact given
    those of the columns, then the prior (link, mean and full precision) is learned, and the noise
    variance after the columns. The free energy

    .. math:: F = \frac1T E[\log p(x \mid a, b, m, c)] - \text{KL} + \log p(B, \Lambda, \sigma^2)

    never falls. A temperature T above 1 counts each entry as 1/T of one, which keeps the
    posterior from becoming too sure of a model that is not true.

    The prior of B is Gaussian with precision `link_penalty` times the prior precision of the
    rows, and its posterior has that column covariance too.

    Parameters
    ----------
    X : csr_array of shape (n, m), float32 or float64
        The known entries; every stored entry counts, zeros too. Sorted indices, no duplicates.
    k : int
        Number of factors. Memory grows with (k + 1)(k + 2) / 2 numbers for each row and column.
    link_penalty : float
        Positive ridge penalty of the links; 0 means no links.
    count_power : float
        Exponent of a row's number of entries in its prior precision; 0 is the usual model.
    temperature : float
        At least 1.
    random_state : int, optional
        Seed of the starting SVD.
    threads : int, optional
        All available cores by default; the result is the same on any number.

    Yields
    ------
    VariationalSweep
        After each sweep, without end: the caller decides when to stop.

    Raises
    ------
    ValueError
        If `k` is below 1, `temperature` below 1, `link_penalty` negative, or `X` has no entries.

    References
    ----------
    Lim and Teh (2007), "Variational Bayesian approach to movie rating prediction", section 3.
    Simm et al. (2017), "Macau: scalable Bayesian factorization with high-dimensional side
    information using MCMC", section 3. Gruenwald and van Ommen (2017), "Inconsistency of Bayesian
    inference for misspecified linear models, and a proposal for repairing it", section 4.
    """
    _check(X, k, link_penalty, temperature)
    with kernels.at_most(threads):
        start = rough_start(X, k, random_state=random_state)
        variance = float(X.data.var(dtype=np.float64)) or 1.0
        usual = shrinkage_target(k + 1, variance)
        rows = _Side.of(X, usual, count_power, link_penalty)
        columns = _Side.of(X.T.tocsr(), usual, count_power, link_penalty)
        rows.link = rows.link.with_turned(columns.link)
        columns.link = columns.link.with_turned(rows.link)
        columns.posterior.mean[:, :k] = start.column_factors
        columns.posterior.mean[:, k] = start.column_bias
    noise, n_entries, mean = _START_NOISE * variance, X.nnz, start.mean
    while True:
        with kernels.at_most(threads):
            rows.solve(columns, mean, temperature * noise)
            rows.learn_prior()
            squares = columns.solve(rows, mean, temperature * noise)
            columns.learn_prior()
        # One entry's worth of prior, so that constant entries leave a positive variance.
        total, count = squares / temperature + variance, n_entries / temperature + 1
        noise = total / count
        yield VariationalSweep(
            mean,
            rows.posterior,
            columns.posterior,
            rows.prior,
            columns.prior,
            noise_variance=noise,
            free_energy=rows.free_energy() + columns.free_energy() - 0.5 * count * math.log(noise),
            rmse=math.sqrt(max(squares, 0.0) / n_entries),
        )


def _check(X: csr_array, k: int, link_penalty: float, temperature: float) -> None:
    if k < 1:
        raise ValueError(f"k must be at least 1; got {k}.")
    if not 0 <= link_penalty < math.inf:
        raise ValueError(f"link_penalty must be 0 or positive; got {link_penalty}.")
    if not 1 <= temperature < math.inf:
        raise ValueError(f"temperature must be at least 1; got {temperature}.")
    if X.nnz == 0:
        raise ValueError("X must have at least one stored entry; got none.")


@dataclass(eq=False)
class _Side:
    """The rows (or, transposed, the columns): their posterior, their prior, and its upkeep."""

    data: Floats
    link: Link
    seen: NDArray[np.bool_]
    weight: Floats
    posterior: Posterior
    prior: RowPrior
    prior_means: Floats
    penalty: float  # of the link matrix B, in units of the prior precision; 0: no link
    usual: Floats  # variances that the learned prior covariance is shrunk to, shape (d,)
    log_dets: float = 0.0

    @classmethod
    def of(cls, X: csr_array, usual: Floats, count_power: float, penalty: float) -> _Side:
        entries = kernels.csr_arrays(X)
        dtype, d = X.dtype, len(usual)
        seen = np.diff(entries.indptr) > 0
        prior = RowPrior(
            mean=np.zeros(d, dtype),
            precision=np.diag(1 / (_START_WIDTH * usual)).astype(dtype),
            link=np.zeros((X.shape[1] if penalty else 0, d), dtype),
            count_power=count_power,
        )
        weight = np.where(seen, prior.weights(np.diff(entries.indptr)), 0).astype(dtype)
        typical = float(weight.sum(dtype=np.float64)) / np.count_nonzero(seen)
        prior.precision[:] /= dtype.type(typical)
        cells = np.zeros((X.shape[0], d * (d + 1) // 2), dtype)
        return cls(
            data=entries.data,
            link=Link.of(entries, X.shape[1]),
            seen=seen,
            weight=weight,
            posterior=Posterior(kernels.aligned_zeros((X.shape[0], d), dtype), cells),
            prior=prior,
            prior_means=np.zeros((X.shape[0], d), dtype),
            penalty=penalty * typical,
            usual=usual * typical,
        )

    def solve(self, other: _Side, mean: float, noise: float) -> float:
        """Update the posterior; return the expected sum of squared errors."""
        self.posterior, result = half_sweep(
            self.link, self.data, other.posterior, self.prior, self.prior_means, mean, noise
        )
        n_seen, d = np.count_nonzero(self.seen), len(self.prior.mean)
        self.log_dets = n_seen * d * math.log(noise) - float(result.log_det[self.seen].sum())
        vectors = self.posterior.mean
        pull = kernels.multiply(vectors - 2 * self.prior_means, self.prior.precision)
        squares = np.einsum("ij,ij->i", vectors, pull, dtype=np.float64)
        from_prior = float(np.einsum("i,i->", squares, self.weight.astype(np.float64)))
        precision = self.prior.precision.astype(np.float64)
        from_prior += float(np.sum(precision * self._summed_covariance()))
        objective = float(result.objective[self.seen].sum())
        return objective + noise * (d * n_seen - from_prior)

    def learn_prior(self) -> None:
        """Maximise the free energy over this side's prior, in turn over B, mean and precision."""
        linked = self._fit_link()
        off = self.posterior.mean - linked
        weight = self.weight.astype(np.float64)
        mean = (np.einsum("i,ij->j", weight, off) / weight.sum()).astype(self.data.dtype)
        self.prior_means = linked + mean
        off -= mean
        scatter = _gram(off * np.sqrt(self.weight)[:, None]) + self._summed_covariance()
        if self.penalty:
            scatter += self.penalty * _gram(self.prior.link)
        d, n_seen = len(mean), np.count_nonzero(self.seen)
        scatter += d * np.diag(self.usual)
        precision = np.linalg.inv(scatter / (n_seen + d)).astype(self.data.dtype)
        self.prior = replace(self.prior, mean=mean, precision=(precision + precision.T) / 2)

    def _fit_link(self) -> Floats:
        """Improve B; return its part of the prior means."""
        if not self.penalty:
            return np.zeros_like(self.posterior.mean)
        link = ridge_fit(
            self.link,
            self.posterior.mean - self.prior.mean,
            ridge=self.penalty,
            weight=self.weight,
            start=self.prior.link,
            steps=_LINK_STEPS,
        )
        self.prior = replace(self.prior, link=link)
        return self.link.forward(link)

    def _summed_covariance(self) -> NDArray[np.float64]:
        """Return the weighted sum of the covariances of the rows that have entries."""
        d = len(self.prior.mean)
        packed = kernels.coefficients(self.posterior.covariance, self.weight[:, None])
        summed: NDArray[np.float64] = unpack(packed.T.astype(np.float64), d)[0]
        return summed

    def free_energy(self) -> float:
        """Return this side's part of the free energy, right after `learn_prior`."""
        d, n_seen = len(self.prior.mean), np.count_nonzero(self.seen)
        log_det = float(np.linalg.slogdet(self.prior.precision.astype(np.float64))[1])
        return 0.5 * ((n_seen + d) * log_det + self.log_dets)


def _gram(X: Floats) -> NDArray[np.float64]:
    X = np.ascontiguousarray(X)
    gram = np.empty((X.shape[1], X.shape[1]))
    gram[:] = kernels.coefficients(X, X)
    return gram

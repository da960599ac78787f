r"""Gibbs sampling for the model of `lowrank.completion.bayes`.

One sweep draws the noise variance. Then, for the rows and for the columns, it draws all vectors
given the others, and the prior: the links, and mean and precision under a Normal-Wishart
distribution.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TYPE_CHECKING

import numpy as np

from lowrank import kernels
from lowrank.completion.bayes import shrinkage_target
from lowrank.completion.design import ridge_fit
from lowrank.completion.links import Posterior, Side, Sweep, normal_draws, stream
from lowrank.completion.targets import Targets
from lowrank.kernels import Floats

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from lowrank.completion.bayes import VariationalSweep
    from lowrank.completion.design import GroupedFeatures

_DRAWN_LINK_STEPS = 8  # conjugate gradient steps for each draw of the links


class GibbsSweep(Sweep):
    """One draw: vectors without covariances, under the priors of the previous draw."""


def gibbs_sweeps(
    X: csr_array,
    start: VariationalSweep,
    *,
    link_penalty: float = 0.0,
    row_features: GroupedFeatures | None = None,
    column_features: GroupedFeatures | None = None,
    temperature: float = 1.0,
    random_state: int = 0,
    threads: int | None = None,
) -> Iterator[GibbsSweep]:
    """Sample from the posterior of factors, biases, priors and noise, sweep by sweep, without end.

    Parameters
    ----------
    X : csr_array of shape (n, m), float32 or float64
        The entries that `start` was fitted to.
    start : VariationalSweep
        Starting point of the chain, which sets the number of factors and the count power. If it
        has an ordinal scale, the cut points are kept and the latent numbers drawn.
    link_penalty, row_features, column_features, temperature
        As in `variational_sweeps`. With a penalty, `start` must have links.
    random_state : int
        Seed of all draws. Each half-sweep has its own counter-based generator.
    threads : int, optional
        As in `als_sweeps`.

    References
    ----------
    Salakhutdinov and Mnih (2008), "Bayesian probabilistic matrix factorization using Markov chain
    Monte Carlo", section 3.
    Simm et al. (2017), "Macau: scalable Bayesian factorization with high-dimensional side
    information using MCMC", section 3 (the draw of the links).
    """
    numbers = {"noise": start.noise_variance, "temperature": temperature}
    targets = Targets.of(X, start.observed.scale, **numbers)
    variance = targets.variance
    priors, features = (
        (start.row_prior, start.column_prior),
        (row_features, column_features),
    )
    with kernels.at_most(threads):
        rows, columns = Chain.pair(X, *priors, link_penalty, *features)
    for number, (side, vectors) in enumerate(
        ((rows, start.rows), (columns, start.columns))
    ):
        side.vectors = Posterior.exactly(vectors.mean)
        side.target = shrinkage_target(vectors.mean.shape[1], variance) * side.typical
        side.seed = (random_state, number)
    targets.give(rows, columns)
    squares = start.noise_variance * X.nnz
    shape = (X.nnz / temperature + 1) / 2
    for number in count():
        noise = (squares / temperature + variance) / 2
        noise /= stream((random_state, 2, number)).gamma(shape)
        priors = rows.prior, columns.prior
        targets.noise = noise
        with kernels.at_most(threads):
            targets.draw(rows, columns, start.mean, stream((random_state, 3, number)))
            rows.draw_vectors(columns, start.mean, temperature * noise, number)
            columns.draw_vectors(rows, start.mean, temperature * noise, number)
            squares = columns.squared_error(rows.vectors.mean, start.mean)
            rows.draw_prior(number)
            columns.draw_prior(number)
        yield GibbsSweep(
            start.mean,
            rows.vectors,
            columns.vectors,
            *priors,
            noise_variance=noise,
            rmse=math.sqrt(squares / X.nnz),
        )


@dataclass(eq=False)
class Chain(Side):
    """The rows (or columns) of a fit, whose vectors and prior are drawn."""

    target: Floats = field(
        init=False
    )  # variances at the centre of the Wishart distribution
    seed: tuple[int, ...] = field(init=False)

    def draw_vectors(self, other: Side, mean: float, noise: float, number: int) -> None:
        """Draw all vectors in sweep `number`."""
        draws = normal_draws(
            (*self.seed, number, 0), self.prior_means.shape, self.data.dtype
        )
        self.solve(other, mean, noise, draws)

    def squared_error(self, others: Floats, mean: float) -> float:
        """Return the sum of squared errors over the known entries."""
        scores = kernels.csr_entries(self.link.pattern, self.vectors.mean, others)
        error = self.data - scores - self.data.dtype.type(mean)
        return float(np.einsum("i,i->", error, error, dtype=np.float64))

    def draw_prior(self, number: int) -> None:
        """Draw the links, then precision and mean given the links."""
        rng = stream((*self.seed, number, 1))
        shares = self.draw_maps(rng)
        off = (self.vectors.mean - shares).astype(np.float64)
        weight = self.weight.astype(np.float64)
        centre, d = self.weighted_mean(off), off.shape[1]
        scaled = ((off - centre) * np.sqrt(weight)[:, None]).astype(self.data.dtype)
        scatter = kernels.coefficients(scaled, scaled).astype(np.float64)
        scatter += d * np.diag(self.target)
        freedom = float(np.count_nonzero(weight) + d - 1)
        if self.penalty:
            link = np.ascontiguousarray(self.prior.link)
            scatter += self.penalty * kernels.coefficients(link, link)
            freedom += len(link)
        if self.features is not None:
            scatter += self.features.scatter()
            freedom += self.features.design.n_features
        # The Wishart distribution by Bartlett's decomposition.
        A = np.tril(rng.standard_normal((d, d)), -1)
        A[np.diag_indices(d)] = np.sqrt(rng.chisquare(freedom - np.arange(d)))
        L = np.linalg.cholesky(np.linalg.inv(scatter)) @ A
        precision = L @ L.T
        root = np.linalg.cholesky(np.linalg.inv(precision))
        mean = centre + root @ rng.standard_normal(d) / math.sqrt(weight.sum())
        dtype = self.data.dtype
        prior = self.with_mean(mean.astype(dtype))
        self.prior = replace(prior, precision=precision.astype(dtype))
        self.prior_means = shares + mean.astype(dtype)
        if self.features is not None:
            self.features.draw_penalties(self.prior.precision, rng)

    def draw_maps(self, rng: np.random.Generator) -> Floats:
        """Draw B, then C, by ridge regressions with noise on the targets and on the prior."""
        shares = np.zeros_like(self.vectors.mean)
        if not self.penalty and self.features is None:
            return shares
        root = np.linalg.cholesky(
            np.linalg.inv(self.prior.precision.astype(np.float64))
        ).T

        def noise(shape: tuple[int, ...]) -> Floats:
            drawn = rng.standard_normal(shape, dtype=self.data.dtype)
            return kernels.multiply(drawn, root.astype(self.data.dtype))

        if self.penalty:
            shares = self.draw_link(*map(noise, (shares.shape, self.prior.link.shape)))
        if self.features is not None:
            ridge, off = self.features, self.vectors.mean - shares
            others = np.sqrt(self.weight)[:, None] * off + noise(shares.shape)
            centre = noise(ridge.coefficients.shape) / np.sqrt(ridge.ridge)
            ridge.coefficients = ridge.around(centre, others, ridge.coefficients)
            shares = shares + ridge.design.forward(ridge.coefficients)
        return shares

    def draw_link(self, noise: Floats, centre: Floats) -> Floats:
        """Draw B given draws from N(0, inv(precision)); return its term of the prior means."""
        # With E ~ N(0, I), the solution of (S'WS + p) B = S'W (T + W^-1/2 E R) + p^1/2 E R is a
        # draw. The second term is that of a ridge penalty centred at B0 = p^-1/2 E R.
        centre = centre / self.data.dtype.type(math.sqrt(self.penalty))
        inverse = np.divide(
            1, np.sqrt(self.weight), out=np.zeros_like(noise[:, 0]), where=self.seen
        )
        target = (
            self.vectors.mean
            - self.prior.mean
            - self.featured
            + inverse[:, None] * noise
        )
        shift = self.link.forward(centre)
        B, predictions = ridge_fit(
            self.link,
            target - shift,
            ridge=self.penalty,
            weight=self.weight,
            start=self.prior.link - centre,
            steps=_DRAWN_LINK_STEPS,
            predictions=self.linked - shift,
            squares=self.link_squares,
        )
        self.prior = replace(self.prior, link=centre + B)
        self.linked = shift + predictions
        return self.linked

r"""Gibbs sampling for the model of `lowrank.completion.bayes`.

One sweep draws the noise variance, then for each side all vectors given the other's, and then
that side's prior: its links, and its mean and precision under a Normal-Wishart distribution.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lowrank import kernels
from lowrank.completion.links import Link, ridge_fit
from lowrank.completion.posterior import (
    Posterior,
    RowPrior,
    half_sweep,
    normal_draws,
    shrinkage_target,
)

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from lowrank.completion.bayes import VariationalSweep

__all__ = ["GibbsSweep", "gibbs_sweeps"]

Floats = NDArray[np.floating[Any]]

_LINK_STEPS = 8  # conjugate gradient steps for each draw of the links


@dataclass(frozen=True, eq=False)
class GibbsSweep:
    """One draw of everything.

    Attributes
    ----------
    mean : float
    rows, columns : Posterior
        Drawn vectors, with no covariances.
    row_prior, column_prior : RowPrior
        Under which `rows` and `columns` were drawn.
    noise_variance : float
    rmse : float
        Root mean squared error of these vectors over the known entries.
    """

    mean: float
    rows: Posterior
    columns: Posterior
    row_prior: RowPrior
    column_prior: RowPrior
    noise_variance: float
    rmse: float


def gibbs_sweeps(
    X: csr_array,
    start: VariationalSweep,
    *,
    link_penalty: float = 0.0,
    temperature: float = 1.0,
    random_state: int = 0,
    threads: int | None = None,
) -> Iterator[GibbsSweep]:
    """Sample the posterior of factors, biases, priors and noise by Gibbs sampling.

    Parameters
    ----------
    X : csr_array of shape (n, m), float32 or float64
        The known entries, those that `start` was fitted to.
    start : VariationalSweep
        Where the chain begins; it decides the number of factors and the count power.
    link_penalty, temperature : float
        As in `variational_sweeps`; `start` must have links if there is a penalty.
    random_state : int
        Seed of all draws. They come from counter-based streams, one for each sweep and side.
    threads : int, optional
        All available cores by default; the result is the same on any number.

    Yields
    ------
    GibbsSweep
        After each sweep, without end. The first ones still remember the start.

    References
    ----------
    Salakhutdinov and Mnih (2008), "Bayesian probabilistic matrix factorization using Markov chain
    Monte Carlo", section 3. Simm et al. (2017), "Macau: scalable Bayesian factorization with
    high-dimensional side information using MCMC", section 3, for the draw of the links.
    """
    variance = float(X.data.var(dtype=np.float64)) or 1.0
    rows = _Chain.of(X, start.rows, start.row_prior, link_penalty, variance, (random_state, 0))
    columns = _Chain.of(
        X.T.tocsr(), start.columns, start.column_prior, link_penalty, variance, (random_state, 1)
    )
    rows.link = rows.link.with_turned(columns.link)
    columns.link = columns.link.with_turned(rows.link)
    noise, squares = start.noise_variance, start.rmse**2 * X.nnz
    shape = (X.nnz / temperature + 1) / 2
    for number in count():
        rng = np.random.Generator(
            np.random.Philox(np.random.SeedSequence((random_state, 2, number)))
        )
        noise = (squares / temperature + variance) / 2 / rng.gamma(shape)
        priors = rows.prior, columns.prior
        with kernels.at_most(threads):
            rows.draw(columns.vectors, start.mean, temperature * noise, number)
            columns.draw(rows.vectors, start.mean, temperature * noise, number)
            squares = columns.squared_error(rows.vectors, start.mean)
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
class _Chain:
    """The rows (or, transposed, the columns): their vectors and prior, both drawn."""

    data: Floats
    link: Link
    vectors: Posterior
    prior: RowPrior
    weight: Floats
    penalty: float
    target: Floats  # variances of the Wishart distribution's centre, shape (d,)
    seed: tuple[int, ...]
    prior_means: Floats = field(init=False)

    def __post_init__(self) -> None:
        self.prior_means = self.prior.means(self.link)

    @classmethod
    def of(
        cls,
        X: csr_array,
        start: Posterior,
        prior: RowPrior,
        penalty: float,
        variance: float,
        seed: tuple[int, ...],
    ) -> _Chain:
        entries = kernels.csr_arrays(X)
        counts = np.diff(entries.indptr)
        weight = np.where(counts > 0, prior.weights(counts), 0).astype(X.dtype)
        usual = float(weight.sum(dtype=np.float64)) / np.count_nonzero(counts)
        return cls(
            data=entries.data,
            link=Link.of(entries, X.shape[1]),
            vectors=_exactly(start.mean),
            prior=prior,
            weight=weight,
            penalty=penalty * usual,
            target=shrinkage_target(start.mean.shape[1], variance) * usual,
            seed=seed,
        )

    def draw(self, other: Posterior, mean: float, noise: float, number: int) -> None:
        """Draw all vectors."""
        draws = normal_draws((*self.seed, number, 0), self.prior_means.shape, self.data.dtype)
        self.vectors, _ = half_sweep(
            self.link, self.data, other, self.prior, self.prior_means, mean, noise, draws
        )

    def squared_error(self, other: Posterior, mean: float) -> float:
        """Return the sum of squared errors over the known entries."""
        rows = np.repeat(np.arange(len(self.vectors.mean)), np.diff(self.link.pattern.indptr))
        total = 0.0
        for start in range(0, len(rows), 2**18):
            part = slice(start, start + 2**18)
            w, z = self.vectors.mean[rows[part]], other.mean[self.link.pattern.indices[part]]
            predicted = np.einsum("ij,ij->i", w[:, :-1], z[:, :-1]) + w[:, -1] + z[:, -1]
            error = (self.data[part] - predicted).astype(np.float64) - mean
            total += float(np.einsum("i,i->", error, error))
        return total

    def draw_prior(self, number: int) -> None:
        """Draw links, then precision and mean given them."""
        seed = np.random.SeedSequence((*self.seed, number, 1))
        rng = np.random.Generator(np.random.Philox(seed))
        linked = self._draw_link(rng)
        off = (self.vectors.mean - linked).astype(np.float64)
        weight = self.weight.astype(np.float64)
        d, n_seen, total = off.shape[1], np.count_nonzero(weight), weight.sum()
        middle = np.einsum("i,ij->j", weight, off) / total
        scaled = ((off - middle) * np.sqrt(weight)[:, None]).astype(self.data.dtype)
        scatter = kernels.coefficients(scaled, scaled).astype(np.float64)
        scatter += d * np.diag(self.target)
        freedom = float(n_seen + d - 1)
        if self.penalty:
            link = np.ascontiguousarray(self.prior.link)
            scatter += self.penalty * kernels.coefficients(link, link)
            freedom += len(link)
        precision = _wishart(np.linalg.inv(scatter), freedom, rng)
        root = np.linalg.cholesky(np.linalg.inv(precision))
        mean = middle + root @ rng.standard_normal(d) / math.sqrt(total)
        dtype = self.data.dtype
        self.prior = replace(self.prior, mean=mean.astype(dtype), precision=precision.astype(dtype))
        self.prior_means = linked + self.prior.mean

    def _draw_link(self, rng: np.random.Generator) -> Floats:
        """Draw B by solving its ridge regression with noise on the targets and on its prior."""
        if not self.penalty:
            return np.zeros_like(self.vectors.mean)
        dtype = self.data.dtype
        root = np.linalg.cholesky(np.linalg.inv(self.prior.precision.astype(np.float64))).T
        off = self.vectors.mean - self.prior.mean
        # With E ~ N(0, I), the solution of (S'WS + p) B = S'W (T + W^-1/2 E R) + p^1/2 E R is a
        # draw. The second term is the ridge's pull towards a B0 = p^-1/2 E R.
        noise = kernels.multiply(_normal(rng, off.shape, dtype), root.astype(dtype))
        inverse = np.divide(
            1, np.sqrt(self.weight), out=np.zeros_like(self.weight), where=self.weight > 0
        )
        target = off + inverse[:, None] * noise
        centre = kernels.multiply(_normal(rng, self.prior.link.shape, dtype), root.astype(dtype))
        centre /= dtype.type(math.sqrt(self.penalty))
        link = centre + ridge_fit(
            self.link,
            target - self.link.forward(centre),
            ridge=self.penalty,
            weight=self.weight,
            start=self.prior.link - centre,
            steps=_LINK_STEPS,
        )
        self.prior = replace(self.prior, link=link)
        return self.link.forward(link)


def _normal(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Floats:
    return rng.standard_normal(shape, dtype=np.float32 if dtype == np.float32 else np.float64)


def _exactly(vectors: Floats) -> Posterior:
    return Posterior(vectors, np.empty((len(vectors), 0), vectors.dtype))


def _wishart(
    scale: NDArray[np.floating[Any]], freedom: float, rng: np.random.Generator
) -> NDArray[np.floating[Any]]:
    """Draw from the Wishart distribution by Bartlett's decomposition."""
    d = len(scale)
    A = np.tril(rng.standard_normal((d, d)), -1)
    A[np.diag_indices(d)] = np.sqrt(rng.chisquare(freedom - np.arange(d)))
    L = np.linalg.cholesky(scale) @ A
    return L @ L.T

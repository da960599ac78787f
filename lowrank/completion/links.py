r"""Linear predictors of the vectors of rows from which columns they have, and fits that use them.

An entry is :math:`\mu + b_u + c_i + a_u \cdot m_i` plus Gaussian noise. The link of a sparse matrix
is its 0/1 pattern S with each row divided by the square root of its number of entries, so that
every row has length 1. The prior of a row's vector :math:`(a_u, b_u)` has the mean
:math:`\mu_0 + B's_u`; B is fitted by ridge regression with conjugate gradients, and S is never
multiplied out. Least squares use such priors here, Bayesian fits in `lowrank.completion.bayes` and
`lowrank.completion.gibbs`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import DTypeLike, NDArray

from lowrank import kernels
from lowrank.completion.als import AlsSweep, BiasedFactors, biased_start, check_problem

if TYPE_CHECKING:
    from scipy.sparse import csr_array

__all__ = ["Link", "LinkedSweep", "Posterior", "RowPrior", "Side", "Sweep", "linked_als_sweeps"]
__all__ += ["normal_draws", "posterior_rows", "posterior_terms", "ridge_fit", "ridge_precision"]
__all__ += ["stream", "unpack"]

Floats = NDArray[np.floating[Any]]

LINK_STEPS = 2  # conjugate gradient steps per sweep: they start from the sweep before


@dataclass(frozen=True, eq=False)
class Link:
    """The 0/1 pattern of a sparse matrix, its rows scaled to length 1.

    Attributes
    ----------
    pattern : CsrArrays
        The matrix with ones for data.
    scale : ndarray of shape (n_rows,)
        One over the square root of each row's number of entries; 1 for a row without any.
    turned : CsrArrays or None
        The transposed pattern, through which products are faster where rows are fewer than
        columns: the array that is gathered from, or scattered to, is then the smaller one.
    """

    pattern: kernels.CsrArrays
    scale: Floats
    n_cols: int
    turned: kernels.CsrArrays | None = None

    @classmethod
    def of(cls, entries: kernels.CsrArrays, n_cols: int) -> Link:
        """Return the link of the matrix whose arrays are `entries`."""
        counts = np.maximum(np.diff(entries.indptr), 1)
        dtype = entries.data.dtype
        pattern = entries._replace(data=np.ones_like(entries.data))
        return cls(pattern, (1 / np.sqrt(counts)).astype(dtype), n_cols)

    def with_turned(self, other: Link) -> Link:
        """Return this link, with the pattern of the transposed matrix's link where it helps."""
        helps = len(self.scale) < self.n_cols
        return replace(self, turned=other.pattern if helps else None)

    def forward(self, B: Floats) -> Floats:
        """Return S @ B for B of shape (n_cols, width)."""
        if self.turned is None:
            product = kernels.csr_matmat(self.pattern, B)
        else:
            product = kernels.csr_rmatmat(self.turned, B, len(self.scale))
        product *= self.scale[:, None]
        return product

    def backward(self, Y: Floats) -> Floats:
        """Return S.T @ Y for Y of shape (n_rows, width)."""
        scaled = Y * self.scale[:, None]
        if self.turned is None:
            return kernels.csr_rmatmat(self.pattern, scaled, self.n_cols)
        return kernels.csr_matmat(self.turned, scaled)


def ridge_fit(
    link: Link, target: Floats, *, ridge: float, weight: Floats, start: Floats, steps: int
) -> Floats:
    r"""Improve B towards the minimum of a weighted ridge regression on a link.

    Conjugate gradients on :math:`(S' W S + \rho I) B = S' W T`, all columns of B at once, with
    the diagonal as preconditioner. Every step lowers
    :math:`\sum_u w_u |t_u - B's_u|^2 + \rho |B|^2`, however few there are.

    The targets T have shape (n_rows, width), the weights w (n_rows,), B and its start
    (n_cols, width); the ridge rho is positive.

    References
    ----------
    Simm et al. (2017), "Macau: scalable Bayesian factorization with high-dimensional side
    information using MCMC", section 3.
    """

    def dots(X: Floats, Y: Floats) -> NDArray[np.float64]:
        columns: NDArray[np.float64] = np.einsum("ij,ij->j", X, Y, dtype=np.float64)
        return columns

    def ratio(a: NDArray[np.float64], b: NDArray[np.float64]) -> Floats:
        return np.divide(a, b, out=np.zeros_like(a), where=b > 0).astype(start.dtype)

    w, rho = weight[:, None], start.dtype.type(ridge)
    diagonal = link.backward(w * link.scale[:, None]) + rho
    B = start
    residual = link.backward(w * (target - link.forward(B))) - rho * B
    direction = scaled = residual / diagonal
    size = dots(residual, scaled)
    for _ in range(steps):
        image = link.backward(w * link.forward(direction)) + rho * direction
        step = ratio(size, dots(direction, image))
        B = B + step * direction
        residual = residual - step * image
        scaled = residual / diagonal
        before, size = size, dots(residual, scaled)
        direction = scaled + ratio(size, before) * direction
    return B


@dataclass(frozen=True, eq=False)
class RowPrior:
    r"""The prior of rows: mean :math:`\mu_0 + B's_u`, precision :math:`n_u^g \Lambda`.

    `link` is the matrix B, shape (n_cols, d), with no rows for a prior without a link, and
    `count_power` the exponent g of the number of entries n_u.
    """

    mean: Floats
    precision: Floats
    link: Floats
    count_power: float

    def weights(self, counts: NDArray[np.int64]) -> Floats:
        """Return n_u^g; rows without entries count as rows with one."""
        dtype = self.mean.dtype
        weights: Floats = np.maximum(counts, 1).astype(dtype) ** dtype.type(self.count_power)
        return weights

    def means(self, link: Link) -> Floats:
        """Return the prior mean of each row of `link`, shape (n_rows, d)."""
        if not len(self.link):
            return np.tile(self.mean, (len(link.scale), 1))
        means = link.forward(self.link)
        means += self.mean
        return means


@dataclass(frozen=True, eq=False)
class Posterior:
    """Independent Gaussians: one for the vector of each row, its bias last.

    `mean` has shape (n, d), `covariance` (n, d (d + 1) / 2): upper triangles by rows, see `unpack`.
    With shape (n, 0) the vectors are known exactly.
    """

    mean: Floats
    covariance: Floats

    @classmethod
    def exactly(cls, vectors: Floats) -> Self:
        """Return vectors that are known exactly."""
        return cls(vectors, np.empty((len(vectors), 0), vectors.dtype))


def unpack(packed: Floats, d: int) -> Floats:
    """Return symmetric matrices of shape (n, d, d) from upper triangles by rows."""
    full = np.empty((len(packed), d, d), packed.dtype)
    i, j = np.triu_indices(d)
    full[:, i, j] = packed
    full[:, j, i] = packed
    return full


def ridge_precision(k: int, regularization: float, scale: float, dtype: DTypeLike) -> Floats:
    """Return the penalties of `als_sweeps` as a prior precision, shape (k + 1, k + 1).

    The noise variance is 1, and `scale` the standard deviation of the entries.
    """
    return np.diag(np.append(np.full(k, regularization * scale), regularization)).astype(dtype)


def stream(seed: tuple[int, ...]) -> np.random.Generator:
    """Return a counter-based stream of random numbers."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(seed)))


def normal_draws(seed: tuple[int, ...], shape: tuple[int, ...], dtype: DTypeLike) -> Floats:
    """Return standard normal numbers that depend on `seed` alone."""
    kind = np.float32 if np.dtype(dtype) == np.float32 else np.float64
    return stream(seed).standard_normal(shape, dtype=kind)


def posterior_rows(
    entries: kernels.CsrArrays,
    columns: Posterior,
    prior: RowPrior,
    *,
    mean: float,
    noise: float = 1.0,
    draw_seed: tuple[int, ...] | None = None,
) -> Posterior:
    """Return the posterior of rows given their entries and the posterior of the columns.

    A row gets the same bits whichever rows are solved with it, on any number of threads. `noise` is
    the noise variance, multiplied by the temperature; 1 for penalised least squares. With a
    `draw_seed` the result is draws from the posteriors instead of their means.
    """
    link = Link.of(entries, len(columns.mean))
    means = prior.means(link)
    draws = None if draw_seed is None else normal_draws(draw_seed, means.shape, means.dtype)
    return _half_sweep(link, entries.data, columns, prior, means, mean, noise, draws)[0]


def posterior_terms(
    entries: kernels.CsrArrays,
    columns: Posterior,
    prior: RowPrior,
    *,
    mean: float,
    noise: float = 1.0,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the posterior mean of one row as a sum, with one term for each entry.

    The parameters are those of `posterior_rows`, with one row in `entries`. The term of the prior
    mean, shape (d,), comes first, then those of the entries, by their values and, with a link, by
    being there, shape (n_entries, d).
    """
    indices = entries.indices
    n, d = len(indices), columns.mean.shape[1]
    design = columns.mean[indices].astype(np.float64)
    target = entries.data.astype(np.float64) - mean - design[:, -1]
    design[:, -1] = 1
    right = design * target[:, None]
    system = design.T @ design
    if columns.covariance.shape[1]:
        covariance = unpack(columns.covariance[indices].astype(np.float64), d)
        right[:, :-1] -= covariance[:, :-1, -1]
        system[:-1, :-1] += covariance[:, :-1, :-1].sum(axis=0)
    weight = float(prior.weights(np.array([n]))[0])
    pull = weight * noise * prior.precision.astype(np.float64)
    if len(prior.link):
        right += prior.link[indices].astype(np.float64) @ pull / math.sqrt(max(n, 1))
    inverse = np.linalg.inv(system + pull)
    return inverse @ pull @ prior.mean.astype(np.float64), right @ inverse


def _half_sweep(
    link: Link,
    data: Floats,
    columns: Posterior,
    prior: RowPrior,
    prior_means: Floats,
    mean: float,
    noise: float,
    draws: Floats | None = None,
) -> tuple[Posterior, kernels.RowPosteriors]:
    """Solve all rows, whose pattern `link` carries; with normal `draws`, draw them instead."""
    weight = prior.weights(np.diff(link.pattern.indptr))
    scaled = (prior.precision.astype(np.float64) * noise).astype(data.dtype)
    prior_right = kernels.multiply(prior_means, scaled)
    prior_right *= weight[:, None]
    found = Posterior.exactly(kernels.aligned_zeros(prior_means.shape, data.dtype))
    uncertain = columns.covariance.shape[1] > 0
    if uncertain:
        summed = kernels.csr_matmat(link.pattern, columns.covariance)
        found = replace(found, covariance=summed)
    result = kernels.posterior_half_sweep(
        link.pattern._replace(data=data),
        columns.mean,
        prior=scaled,
        weight=weight,
        prior_right=prior_right,
        vectors=found.mean,
        shift=mean,
        noise_variance=noise,
        covariance=found.covariance if uncertain else None,
        draws=None if draws is None else draws * draws.dtype.type(math.sqrt(noise)),
    )
    return found, result


@dataclass(frozen=True, eq=False)
class Sweep:
    """The state of a Bayesian fit after a sweep; `rmse` is the error over the known entries."""

    mean: float
    rows: Posterior
    columns: Posterior
    row_prior: RowPrior
    column_prior: RowPrior
    noise_variance: float
    rmse: float


@dataclass(eq=False)
class Side:
    """The rows (or, transposed, the columns) of a fit: entries, vectors and their prior."""

    data: Floats
    link: Link  # carries the positions of the entries
    vectors: Posterior
    prior: RowPrior
    prior_means: Floats  # shape (n, d)
    weight: Floats  # n_u^g; 0 for rows without entries, which have no say in the prior
    typical: float  # mean weight of the rows with entries, in units of which penalties count
    penalty: float  # of B, in units of the prior precision; 0 without a link

    @classmethod
    def pair(
        cls, X: csr_array, row_prior: RowPrior, column_prior: RowPrior, link_penalty: float
    ) -> tuple[Self, Self]:
        """Return the rows and the columns of X, all vectors zero.

        A prior without the matrix B that a positive `link_penalty` calls for begins with zeros.
        """
        sides = []
        for matrix, prior in ((X, row_prior), (X.T.tocsr(), column_prior)):
            (n, m), d = matrix.shape, len(prior.mean)
            entries = kernels.csr_arrays(matrix)
            counts, link = np.diff(entries.indptr), Link.of(entries, m)
            weight = np.where(counts > 0, prior.weights(counts), 0).astype(X.dtype)
            typical = float(weight.sum(dtype=np.float64)) / np.count_nonzero(counts)
            if link_penalty and not len(prior.link):
                prior = replace(prior, link=np.zeros((m, d), X.dtype))
            vectors = Posterior.exactly(kernels.aligned_zeros((n, d), X.dtype))
            means, penalty = prior.means(link), link_penalty * typical
            sides.append(cls(entries.data, link, vectors, prior, means, weight, typical, penalty))
        rows, columns = sides
        rows.link = rows.link.with_turned(columns.link)
        columns.link = columns.link.with_turned(rows.link)
        return rows, columns

    @property
    def seen(self) -> NDArray[np.bool_]:
        """Which rows have entries, shape (n,)."""
        return self.weight > 0

    def solve(
        self, other: Side, mean: float, noise: float = 1.0, draws: Floats | None = None
    ) -> kernels.RowPosteriors:
        """Set the vectors to their posterior given the other side's, or draw them from it."""
        self.vectors, result = _half_sweep(
            self.link, self.data, other.vectors, self.prior, self.prior_means, mean, noise, draws
        )
        return result

    def fit_link(self) -> Floats:
        """Improve B; return its share of the prior means."""
        if not self.penalty:
            return np.zeros_like(self.vectors.mean)
        link = ridge_fit(
            self.link,
            self.vectors.mean - self.prior.mean,
            ridge=self.penalty,
            weight=self.weight,
            start=self.prior.link,
            steps=LINK_STEPS,
        )
        self.prior = replace(self.prior, link=link)
        return self.link.forward(link)

    def weighted_mean(self, vectors: Floats) -> NDArray[np.float64]:
        """Return the mean of the vectors of rows by weight, shape (d,)."""
        weight = self.weight.astype(np.float64)
        mean: NDArray[np.float64] = np.einsum("i,ij->j", weight, vectors) / weight.sum()
        return mean

    def weighted_dots(self, left: Floats, right: Floats) -> float:
        r"""Return :math:`\sum_u w_u x_u' \Lambda y_u`."""
        pull = kernels.multiply(right, self.prior.precision)
        dots = np.einsum("ij,ij->i", left, pull, dtype=np.float64)
        return float(np.einsum("i,i->", dots, self.weight.astype(np.float64)))


@dataclass(frozen=True, eq=False)
class LinkedSweep(AlsSweep):
    """An `AlsSweep` with the priors that the vectors of rows and columns are pulled towards."""

    row_prior: RowPrior
    column_prior: RowPrior


def linked_als_sweeps(
    X: csr_array,
    k: int,
    *,
    regularization: float,
    link_penalty: float,
    count_power: float = 0.5,
    start: BiasedFactors | None = None,
    random_state: int | None = 0,
    threads: int | None = None,
) -> Iterator[LinkedSweep]:
    r"""Fit biased factors as `als_sweeps` does, pulled towards linked means instead of zero.

    In its objective a penalty :math:`n_u^g |a_u|^2` becomes :math:`n_u^g |a_u - a_0 - B's_u|^2`,
    where :math:`s_u` is row u of the link, and likewise for biases and columns; B has the ridge
    penalty `link_penalty` in the same units, and the means :math:`a_0` none. The mean :math:`\mu`
    is that of the entries. The objective never rises. The other parameters are those of
    `als_sweeps`.

    Raises
    ------
    ArgumentError
        As `check_problem`.

    References
    ----------
    Koren (2008), "Factorization meets the neighborhood", section 4.
    """
    check_problem(X, k, regularization=regularization, link_penalty=link_penalty)
    with kernels.at_most(threads):
        first = start or biased_start(X, k, random_state=random_state)
    scale = float(X.data.std(dtype=np.float64)) or 1.0
    precision = ridge_precision(k, regularization, scale, X.dtype)
    none = np.zeros((0, k + 1), X.dtype)
    prior = RowPrior(np.zeros(k + 1, X.dtype), precision, none, count_power)
    rows, columns = _LinkedSide.pair(X, prior, prior, link_penalty)
    columns.vectors.mean[:] = np.column_stack([first.column_factors, first.column_bias])
    while True:
        with kernels.at_most(threads):
            half = rows.fit_vectors(columns, first.mean) + rows.link_penalties()
            half += columns.penalties()
            rows.fit_prior()
            fitted = columns.fit_vectors(rows, first.mean)
            squares = fitted - columns.vector_penalties()
            columns.fit_prior()
            penalties = rows.penalties() + columns.penalties()
        (a, b), (m, c) = (np.split(s.vectors.mean, [k], axis=1) for s in (rows, columns))
        yield LinkedSweep(
            BiasedFactors(first.mean, b[:, 0], c[:, 0], a, m),
            half_objective=half,
            objective=squares + penalties,
            rmse=math.sqrt(max(squares, 0.0) / X.nnz),
            row_prior=rows.prior,
            column_prior=columns.prior,
        )


class _LinkedSide(Side):
    """A side of penalised least squares."""

    def fit_vectors(self, other: Side, mean: float) -> float:
        """Minimise over this side's vectors; return the errors and their own penalties."""
        objective = self.solve(other, mean).objective
        # The kernel leaves out the constant term of the prior.
        constant = self.weighted_dots(self.prior_means, self.prior_means)
        return float(objective[self.seen].sum()) + constant

    def fit_prior(self) -> None:
        """Improve B, then set the mean to its best value."""
        linked = self.fit_link()
        mean = self.weighted_mean(self.vectors.mean - linked).astype(self.data.dtype)
        self.prior = replace(self.prior, mean=mean)
        self.prior_means = linked + mean

    def vector_penalties(self) -> float:
        off = self.vectors.mean - self.prior_means
        return self.weighted_dots(off, off)

    def link_penalties(self) -> float:
        link = self.prior.link
        weighted = kernels.multiply(link, self.prior.precision)
        return self.penalty * float(np.einsum("ij,ij->", link, weighted, dtype=np.float64))

    def penalties(self) -> float:
        return self.vector_penalties() + self.link_penalties()

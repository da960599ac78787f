r"""The Bayesian model of a matrix of which only some entries are known: its parts.

An entry is :math:`\mu + b_u + c_i + a_u \cdot m_i` plus Gaussian noise. The vectors
:math:`(a_u, b_u)` and :math:`(m_i, c_i)` have Gaussian priors whose full precision matrices and
means are learned; with links, the prior mean of a row is moreover a linear function of which
columns it has entries in, and likewise for columns. `lowrank.completion.bayes` and `lowrank.completion.gibbs` fit
it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from lowrank import kernels
from lowrank.completion.links import Link

__all__ = [
    "Posterior",
    "RowPrior",
    "half_sweep",
    "normal_draws",
    "predictive_variance",
    "row_terms",
    "shrinkage_target",
    "solve_rows",
    "unpack",
]

Floats = NDArray[np.floating[Any]]

_SHRINK_TO = 0.05  # prior variance of factors and biases, for entries of variance 1


@dataclass(frozen=True, eq=False)
class RowPrior:
    r"""The prior of rows: mean :math:`\mu_0 + B's_u`, precision :math:`n_u^g \Lambda`.

    Attributes
    ----------
    mean : ndarray of shape (d,)
    precision : ndarray of shape (d, d)
    link : ndarray of shape (n_cols, d)
        The matrix B, with no rows where there is no link.
    count_power : float
        The exponent g of the number of entries n_u.
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

    Attributes
    ----------
    mean : ndarray of shape (n, d)
    covariance : ndarray of shape (n, d (d + 1) / 2), or (n, 0)
        Upper triangles by rows; see `unpack`. Without columns, the vectors are known exactly.
    """

    mean: Floats
    covariance: Floats


def unpack(packed: Floats, d: int) -> Floats:
    """Return symmetric matrices of shape (n, d, d) from upper triangles by rows.

    Examples
    --------
    >>> unpack(np.array([[1.0, 2.0, 3.0]]), 2)[0]
    array([[1., 2.],
           [2., 3.]])
    """
    full = np.empty((len(packed), d, d), packed.dtype)
    i, j = np.triu_indices(d)
    full[:, i, j] = packed
    full[:, j, i] = packed
    return full


def predictive_variance(rows: Posterior, columns: Posterior) -> Floats:
    r"""Return the variance of :math:`b + c + a \cdot m`, row by row of the two, without noise.

    With independent vectors, :math:`\operatorname{var}` is :math:`z'V_w z + w'V_z w +
    \operatorname{tr} V_{aa} V_{mm}` for :math:`z = (m, 1)`, :math:`w = (a, 1)`.
    """
    d = rows.mean.shape[1]
    row_cov, column_cov = unpack(rows.covariance, d), unpack(columns.covariance, d)
    w, z = rows.mean.copy(), columns.mean.copy()
    w[:, -1] = z[:, -1] = 1
    variance: Floats = np.einsum("ni,nij,nj->n", z, row_cov, z)
    variance += np.einsum("ni,nij,nj->n", w, column_cov, w)
    variance += np.einsum("nij,nij->n", row_cov[:, :-1, :-1], column_cov[:, :-1, :-1])
    return variance


def solve_rows(
    entries: kernels.CsrArrays,
    columns: Posterior,
    prior: RowPrior,
    *,
    mean: float,
    noise: float,
    draw_seed: tuple[int, ...] | None = None,
) -> Posterior:
    """Return the posterior of rows given their entries and the posterior of the columns.

    The rows of the fit itself get the very same bits as in its last sweep.

    Parameters
    ----------
    entries : CsrArrays
        The rows, in CSR form.
    columns : Posterior
        Of the columns.
    prior : RowPrior
        Of the rows.
    mean : float
        The mean mu.
    noise : float
        The noise variance, times the temperature.
    draw_seed : tuple of int, optional
        Return draws from the posteriors instead of their means.
    """
    link = Link.of(entries, len(columns.mean))
    means = prior.means(link)
    draws = None if draw_seed is None else normal_draws(draw_seed, means.shape, means.dtype)
    return half_sweep(link, entries.data, columns, prior, means, mean, noise, draws)[0]


def row_terms(
    indices: NDArray[np.int32],
    data: Floats,
    columns: Posterior,
    prior: RowPrior,
    *,
    mean: float,
    noise: float,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the posterior mean of one row as a sum, with one term for each entry.

    Parameters
    ----------
    indices, data : ndarrays of shape (n_entries,)
        The row's columns and entries.
    columns, prior, mean, noise
        As in `solve_rows`.

    Returns
    -------
    base : ndarray of shape (d,)
        What the prior mean adds.
    terms : ndarray of shape (n_entries, d)
        What each entry adds, by its value and, with a link, by being there.
    """
    n, d = len(indices), columns.mean.shape[1]
    design = columns.mean[indices].astype(np.float64)
    target = data.astype(np.float64) - mean - design[:, -1]
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


def shrinkage_target(d: int, variance: float) -> NDArray[np.float64]:
    """Return the prior variances of vectors that fit entries of a given variance, shape (d,).

    What the learned prior covariances are shrunk to, with the weight of d rows. The bias comes
    last; it scales with the entries, a factor with their square root.
    """
    target = np.full(d, _SHRINK_TO * math.sqrt(variance))
    target[-1] = _SHRINK_TO * variance
    return target


def normal_draws(seed: tuple[int, ...], shape: tuple[int, ...], dtype: DTypeLike) -> Floats:
    """Return standard normal numbers that depend on `seed` alone, from a counter-based stream."""
    stream = np.random.Generator(np.random.Philox(np.random.SeedSequence(seed)))
    kind = np.float32 if np.dtype(dtype) == np.float32 else np.float64
    return stream.standard_normal(shape, dtype=kind)


def half_sweep(
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
    vectors = kernels.aligned_zeros(prior_means.shape, data.dtype)
    uncertain = columns.covariance.shape[1] > 0
    covariance = (
        kernels.csr_matmat(*link.pattern, columns.covariance)
        if uncertain
        else np.empty((len(vectors), 0), data.dtype)
    )
    result = kernels.posterior_half_sweep(
        link.pattern.indptr,
        link.pattern.indices,
        data,
        columns.mean,
        prior=scaled,
        weight=weight,
        prior_right=prior_right,
        vectors=vectors,
        shift=mean,
        noise_variance=noise,
        covariance=covariance if uncertain else None,
        draws=None if draws is None else draws * draws.dtype.type(math.sqrt(noise)),
    )
    return Posterior(vectors, covariance), result

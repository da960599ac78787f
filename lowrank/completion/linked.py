"""Alternating least squares whose penalties pull towards what the linked entries say."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lowrank import kernels
from lowrank.completion.als import AlsSweep, BiasedFactors, rough_start
from lowrank.completion.links import Link, ridge_fit
from lowrank.completion.posterior import Posterior, RowPrior, half_sweep

if TYPE_CHECKING:
    from scipy.sparse import csr_array

__all__ = ["LinkedSweep", "linked_als_sweeps", "ridge_prior"]

Floats = NDArray[np.floating[Any]]

_LINK_STEPS = 2  # conjugate gradient steps per sweep: they start from the sweep before


@dataclass(frozen=True, eq=False)
class LinkedSweep(AlsSweep):
    """An `AlsSweep` with what the vectors of rows and columns are pulled towards."""

    row_prior: RowPrior
    column_prior: RowPrior


def ridge_prior(
    d: int, *, regularization: float, scale: float, count_power: float, dtype: np.dtype[Any]
) -> RowPrior:
    """Return the ridge penalties of `als_sweeps` as a prior for noise of variance 1.

    Parameters
    ----------
    d : int
        Length of a vector: the number of factors and one for the bias.
    regularization, count_power : float
        As in `als_sweeps`.
    scale : float
        Standard deviation of the entries, by which the penalty of the factors is multiplied.
    dtype : dtype
        Of the vectors.
    """
    precision = np.full(d, regularization * scale)
    precision[-1] = regularization
    none = np.zeros((0, d), dtype)
    return RowPrior(np.zeros(d, dtype), np.diag(precision).astype(dtype), none, count_power)


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
    where :math:`s_u` is row u of the link (see `lowrank.completion.links`), and likewise for biases and
    columns; B has the ridge penalty `link_penalty` in the same units, and the means
    :math:`a_0` none. The mean :math:`\mu` is that of the entries. The objective never rises.

    Parameters
    ----------
    X, k, regularization, count_power, start, random_state, threads
        As in `als_sweeps`.
    link_penalty : float
        Positive ridge penalty of B.

    Yields
    ------
    LinkedSweep
        After each sweep, without end.

    Raises
    ------
    ValueError
        If a penalty is not positive, `k` is below 1, or `X` has no entries.

    References
    ----------
    Koren (2008), "Factorization meets the neighborhood", section 4. Simm et al. (2017), "Macau:
    scalable Bayesian factorization with high-dimensional side information using MCMC".
    """
    for name, value in (("regularization", regularization), ("link_penalty", link_penalty)):
        if not 0 < value < math.inf:
            raise ValueError(f"{name} must be positive and finite; got {value}.")
    if k < 1:
        raise ValueError(f"k must be at least 1; got {k}.")
    if X.nnz == 0:
        raise ValueError("X must have at least one stored entry; got none.")
    with kernels.at_most(threads):
        first = start or rough_start(X, k, random_state=random_state)
    prior = ridge_prior(
        k + 1,
        regularization=regularization,
        scale=float(X.data.std(dtype=np.float64)) or 1.0,
        count_power=count_power,
        dtype=X.dtype,
    )
    rows = _Side.of(X, prior, link_penalty)
    columns = _Side.of(X.T.tocsr(), prior, link_penalty)
    rows.link = rows.link.with_turned(columns.link)
    columns.link = columns.link.with_turned(rows.link)
    columns.vectors[:] = np.column_stack([first.column_factors, first.column_bias])
    while True:
        with kernels.at_most(threads):
            half = rows.solve(columns, first.mean) + rows.link_penalties() + columns.penalties()
            rows.fit_prior()
            fitted = columns.solve(rows, first.mean)
            squares = fitted - columns.row_penalties()
            columns.fit_prior()
        penalties = rows.penalties() + columns.penalties()
        yield LinkedSweep(
            BiasedFactors(
                first.mean,
                rows.vectors[:, -1],
                columns.vectors[:, -1],
                rows.vectors[:, :-1],
                columns.vectors[:, :-1],
            ),
            half_objective=half,
            objective=squares + penalties,
            rmse=math.sqrt(max(squares, 0.0) / X.nnz),
            row_prior=rows.prior,
            column_prior=columns.prior,
        )


@dataclass(eq=False)
class _Side:
    """The rows (or, transposed, the columns): their vectors and what pulls them where."""

    data: Floats
    link: Link
    vectors: Floats
    prior: RowPrior
    prior_means: Floats
    weight: Floats
    penalty: float  # of B, in units of the prior precision

    @classmethod
    def of(cls, X: csr_array, prior: RowPrior, link_penalty: float) -> _Side:
        entries = kernels.csr_arrays(X)
        counts, d = np.diff(entries.indptr), len(prior.mean)
        weight = np.where(counts > 0, prior.weights(counts), 0).astype(X.dtype)
        return cls(
            data=entries.data,
            link=Link.of(entries, X.shape[1]),
            vectors=kernels.aligned_zeros((X.shape[0], d), X.dtype),
            prior=replace(prior, link=np.zeros((X.shape[1], d), X.dtype)),
            prior_means=np.zeros((X.shape[0], d), X.dtype),
            weight=weight,
            penalty=link_penalty * float(weight.sum(dtype=np.float64)) / np.count_nonzero(counts),
        )

    def solve(self, other: _Side, mean: float) -> float:
        """Minimise over this side's vectors; return the errors and their own penalties."""
        columns = Posterior(other.vectors, np.empty((len(other.vectors), 0), self.data.dtype))
        solved, result = half_sweep(
            self.link, self.data, columns, self.prior, self.prior_means, mean, noise=1.0
        )
        self.vectors = solved.mean
        return float(result.objective[self.weight > 0].sum()) + self._size(self.prior_means)

    def fit_prior(self) -> None:
        """Improve B, then set the mean to its best value."""
        link = ridge_fit(
            self.link,
            self.vectors - self.prior.mean,
            ridge=self.penalty,
            weight=self.weight,
            start=self.prior.link,
            steps=_LINK_STEPS,
        )
        linked = self.link.forward(link)
        weight = self.weight.astype(np.float64)
        mean = (np.einsum("i,ij->j", weight, self.vectors - linked) / weight.sum()).astype(
            self.data.dtype
        )
        self.prior = replace(self.prior, link=link, mean=mean)
        self.prior_means = linked + mean

    def row_penalties(self) -> float:
        """Return the penalties of the vectors."""
        return self._size(self.vectors - self.prior_means)

    def link_penalties(self) -> float:
        """Return the penalty of B."""
        link = self.prior.link
        weighted = kernels.multiply(link, self.prior.precision)
        squares = np.einsum("ij,ij->", link, weighted, dtype=np.float64)
        return self.penalty * float(squares)

    def penalties(self) -> float:
        """Return all penalties of this side."""
        return self.row_penalties() + self.link_penalties()

    def _size(self, off: Floats) -> float:
        weighted = kernels.multiply(off, self.prior.precision)
        squares = np.einsum("ij,ij->i", off, weighted, dtype=np.float64)
        return float(np.einsum("i,i->", squares, self.weight.astype(np.float64)))

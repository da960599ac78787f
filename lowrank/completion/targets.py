r"""Targets of the vectors of a Bayesian fit: the entries, or latent numbers.

With an ordinal scale, the entries are levels of latent numbers (`lowrank.completion.ordinal`),
whose posteriors are truncated normal distributions: independent of the vectors, and exact given
their means.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from lowrank import kernels
from lowrank.completion.links import Posterior, RowPrior, posterior_rows
from lowrank.completion.ordinal import OrdinalScale

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from lowrank.completion.links import Side

Floats = NDArray[np.floating[Any]]

LATENT_STEPS = 4  # of new rows and their latent numbers, in turn


class Observed(NamedTuple):
    """How a fit sees the entries: the ordinal scale as learned, the mean variance of scores."""

    scale: OrdinalScale | None
    score_variance: float


@dataclass(eq=False)
class Targets:
    """The entries of a matrix as a fit sees them.

    Vectors are fitted to `data`, in the order of the entries; `turned` is that order in the
    transposed matrix. `noise` is the variance of an entry, or of a latent number, around its score,
    `free_energy` the share of the free energy that is not that of the vectors, and `rmse` the
    expected error over the known entries.
    """

    entries: kernels.CsrArrays
    data: Floats
    turned: NDArray[np.int64]
    scale: OrdinalScale | None
    noise: float
    temperature: float
    variance: float
    codes: NDArray[np.uint16] | None = None
    spread: float = 0.0
    free_energy: float = field(init=False, default=-math.inf)
    rmse: float = field(init=False, default=math.inf)

    @classmethod
    def of(
        cls, X: csr_array, scale: OrdinalScale | None, *, noise: float, temperature: float
    ) -> Self:
        """Return the entries as they are, to begin with."""
        entries, variance = kernels.csr_arrays(X), float(X.data.var(dtype=np.float64)) or 1.0
        turned, codes = np.zeros(0, np.int64), None
        if scale is not None:
            places = X.astype(np.float64)
            places.data = np.arange(X.nnz, dtype=np.float64)
            turned, codes = places.T.tocsr().data.astype(np.int64), scale.codes(X.data)
        return cls(entries, X.data, turned, scale, noise, temperature, variance, codes)

    def update(self, rows: Side, columns: Side, mean: float, squares: float | None = None) -> None:
        """Set the targets given the vectors, and with the expected `squares` also what is learned.

        `squares` is the expected sum of squared errors of the vectors on the targets before.
        """
        if self.scale is None or self.codes is None:
            if squares is not None:
                count = len(self.data) / self.temperature + 1  # one entry's worth of prior
                self.noise = (squares / self.temperature + self.variance) / count
                self.free_energy = -0.5 * count * math.log(self.noise)
                self.rmse = math.sqrt(max(squares, 0.0) / len(self.data))
            return
        pair = rows.vectors.mean, columns.vectors.mean
        scores = kernels.csr_entries(self.entries, *pair) + self.data.dtype.type(mean)
        if squares is not None:
            self.spread = max(squares - _sum_of_squares(self.data - scores), 0.0)
            mean_spread = self.spread / len(self.data)
            given = self.codes, scores, self.noise, mean_spread
            self.scale, self.noise = self.scale.learned(*given)
            off = self.scale.expected(scores, self.noise + mean_spread) - self.entries.data
            self.rmse = math.sqrt(_sum_of_squares(off) / len(off))
        self.data, likelihood = self.scale.latent(self.codes, scores, self.noise)
        likelihood -= self.spread / (2 * self.noise)
        self.free_energy = likelihood / self.temperature
        self.give(rows, columns)

    def draw(self, rows: Side, columns: Side, mean: float, rng: np.random.Generator) -> None:
        """Draw latent numbers given vectors that are known exactly."""
        if self.scale is None or self.codes is None:
            return
        pair = rows.vectors.mean, columns.vectors.mean
        scores = kernels.csr_entries(self.entries, *pair) + self.data.dtype.type(mean)
        self.data = self.scale.drawn(self.codes, scores, self.noise, rng)
        self.give(rows, columns)

    def give(self, rows: Side, columns: Side) -> None:
        """Let the sides be fitted to the targets."""
        if self.scale is not None:
            rows.data = self.data
            columns.data = np.ascontiguousarray(self.data[self.turned])

    def observed(self) -> Observed:
        """Return how entries are seen now."""
        return Observed(self.scale, self.spread / len(self.data))


def settled(
    entries: kernels.CsrArrays,
    columns: Posterior,
    prior: RowPrior,
    scale: OrdinalScale,
    *,
    mean: float,
    noise: float,
    latent_noise: float,
    features: kernels.CsrArrays | None = None,
) -> Floats:
    """Return the latent numbers of the entries of rows that are folded in, shape (nnz,).

    `noise` is that of `posterior_rows`, `latent_noise` the variance of a latent number.
    """
    data, codes, sums = entries.data, scale.codes(entries.data), None
    if columns.covariance.shape[1]:
        ones = entries._replace(data=np.ones_like(data))
        sums = kernels.csr_matmat(ones, columns.covariance)
    for _ in range(LATENT_STEPS):
        found = posterior_rows(
            entries._replace(data=data),
            columns,
            prior,
            mean=mean,
            noise=noise,
            features=features,
            sums=sums,
            only_means=True,
        )
        scores = kernels.csr_entries(entries, found.mean, columns.mean) + data.dtype.type(mean)
        data = scale.latent(codes, scores, latent_noise).means
    return data


def _sum_of_squares(values: Floats) -> float:
    return float(np.einsum("i,i->", values, values, dtype=np.float64))

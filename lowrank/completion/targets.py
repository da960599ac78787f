r"""Targets of a Bayesian fit: the entries, or latent numbers.

With an ordinal scale, the entries are levels of latent numbers (`lowrank.completion.ordinal`).
The posteriors of latent numbers are truncated normal distributions, independent of the vectors, and
exact given the means of the vectors.
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
from lowrank.kernels import Floats

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from lowrank.completion.links import Side

LATENT_STEPS = 2  # alternating updates of new rows and their latent numbers


class Observed(NamedTuple):
    """The learned ordinal scale, None without one, and the mean variance of the scores."""

    scale: OrdinalScale | None
    score_variance: float


@dataclass(eq=False)
class Targets:
    """The numbers that the vectors of a fit are fitted to.

    They are in `data`, in the order of the entries. `noise` is the variance of an entry, or of a
    latent number, around its score. `free_energy` is the free energy without the terms of the
    vectors, and `rmse` the expected error over the known entries.
    """

    entries: kernels.CsrArrays
    data: Floats
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
        cls,
        X: csr_array,
        scale: OrdinalScale | None,
        *,
        noise: float,
        temperature: float,
    ) -> Self:
        """Return the targets to start from: the entries themselves."""
        variance = float(X.data.var(dtype=np.float64)) or 1.0
        codes = None if scale is None else scale.codes(X.data)
        return cls(
            kernels.csr_arrays(X), X.data, scale, noise, temperature, variance, codes
        )

    def update(
        self, rows: Side, columns: Side, mean: float, squares: float | None = None
    ) -> None:
        """Update the targets given the vectors; with the sum of `squares`, learn the noise too."""
        if self.scale is None or self.codes is None:
            if squares is not None:
                # the prior has the weight of 1 entry
                count = len(self.data) / self.temperature + 1
                self.noise = (squares / self.temperature + self.variance) / count
                self.free_energy = -0.5 * count * math.log(self.noise)
                self.rmse = math.sqrt(max(squares, 0.0) / len(self.data))
            return
        pair = rows.vectors.mean, columns.vectors.mean
        scores = kernels.csr_entries(self.entries, *pair) + self.data.dtype.type(mean)
        if squares is not None:
            off = self.data - scores
            self.spread = max(
                squares - float(np.einsum("i,i->", off, off, dtype=np.float64)), 0.0
            )
            given = self.codes, scores, self.noise, self.spread / len(off)
            self.scale, self.noise = self.scale.learned(*given)
        around = scores, self.noise, self.spread / len(scores)
        found = self.scale.latent(self.codes, *around, only_means=squares is None)
        self.data = found.means
        self.give(rows, columns)
        if squares is not None:
            likelihood = found.log_likelihood - self.spread / (2 * self.noise)
            self.free_energy = likelihood / self.temperature
            self.rmse = math.sqrt(found.squares / len(scores))

    def draw(
        self, rows: Side, columns: Side, mean: float, rng: np.random.Generator
    ) -> None:
        """Draw latent numbers given exact vectors."""
        if self.scale is None or self.codes is None:
            return
        pair = rows.vectors.mean, columns.vectors.mean
        scores = kernels.csr_entries(self.entries, *pair) + self.data.dtype.type(mean)
        self.data = self.scale.drawn(self.codes, scores, self.noise, rng)
        self.give(rows, columns)

    def give(self, rows: Side, columns: Side) -> None:
        """Make the targets the data of the rows and of the columns."""
        if self.scale is not None:
            rows.data, n_columns = self.data, len(columns.weight)
            given = self.entries._replace(data=self.data)
            turned = kernels.transposed(given, n_columns)
            assert isinstance(turned, kernels.CsrArrays)
            columns.data = turned.data

    def observed(self) -> Observed:
        """Return the present scale and variance of scores."""
        return Observed(self.scale, self.spread / len(self.data))


def settled(
    entries: kernels.CsrArrays,
    columns: Posterior,
    prior: RowPrior,
    scale: OrdinalScale,
    *,
    mean: float,
    latent_noise: float,
    **options: Any,
) -> Floats:
    """Return the latent numbers of the entries of folded-in rows, shape (nnz,)."""
    data, codes = entries.data, scale.codes(entries.data)
    for _ in range(LATENT_STEPS):
        given = entries._replace(data=data), columns, prior
        found = posterior_rows(*given, mean=mean, **options, only_means=True)
        scores = kernels.csr_entries(
            entries, found.mean, columns.mean
        ) + data.dtype.type(mean)
        data = scale.latent(codes, scores, latent_noise, only_means=True).means
    return data

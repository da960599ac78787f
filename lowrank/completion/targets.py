r"""Targets of the vectors of a Bayesian fit: entries, less drifts, or latent numbers.

With times, drifts of rows and columns are part of an entry (`lowrank.completion.drift`). With an
ordinal scale, the entries are levels of latent numbers (`lowrank.completion.ordinal`), whose
posteriors are truncated normal distributions. Both are independent of the vectors in the posterior,
and exact given their means.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from lowrank import kernels
from lowrank.completion.drift import MOOD, TREND, Drift
from lowrank.completion.links import Posterior, RowPrior, posterior_rows
from lowrank.completion.ordinal import OrdinalScale

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from lowrank.completion.links import Side

__all__ = ["LATENT_STEPS", "Observed", "Settling", "Targets"]

Floats = NDArray[np.floating[Any]]

_SCALES = MOOD, TREND
_FIRST_NOISE = 0.7  # share of what is left of the entries, in the first search
_LEAST = 0.01  # and the least, as a share of the variance of the entries
LATENT_STEPS = 4  # of new rows and their latent numbers, in turn
_DRIFT_STEPS = 2  # of new rows and their drifts


class Observed(NamedTuple):
    """How a fit sees the entries.

    Attributes
    ----------
    scale : OrdinalScale or None
        The ordinal scale as learned, if the likelihood is an ordinal one.
    drifts : tuple of Drift
        Those of rows and of columns; empty without times.
    score_variance : float
        Mean variance of the scores of entries, those of the drifts included.
    """

    scale: OrdinalScale | None
    drifts: tuple[Drift, ...]
    score_variance: float


@dataclass(eq=False)
class Targets:
    """The entries of a matrix as a fit sees them.

    Attributes
    ----------
    entries : CsrArrays
    data : ndarray of shape (nnz,)
        What vectors are fitted to, in the order of the entries.
    turned : int64 ndarray of shape (nnz,)
        The order of the entries in the transposed matrix.
    drifts : list of Drift
    scale : OrdinalScale or None
    noise : float
        Variance of an entry, or of a latent number, around its score.
    free_energy : float
        The share of the free energy that is not that of the vectors.
    rmse : float
        Expected over the known entries.
    """

    entries: kernels.CsrArrays
    data: Floats
    turned: NDArray[np.int64]
    drifts: list[Drift]
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
        times: NDArray[np.int64] | None,
        scale: OrdinalScale | None,
        *,
        noise: float,
        temperature: float,
        drifts: Sequence[Drift] | None = None,
    ) -> Self:
        """Return the entries as they are, to begin with."""
        entries, variance = kernels.csr_arrays(X), float(X.data.var(dtype=np.float64)) or 1.0
        turned, made = np.zeros(0, np.int64), [each.copy() for each in drifts or ()]
        if scale is not None or times is not None or made:
            places = X.astype(np.float64)
            places.data = np.arange(X.nnz, dtype=np.float64)
            turned = places.T.tocsr().data.astype(np.int64)
        if times is not None and not made:
            rows = np.repeat(np.arange(X.shape[0]), np.diff(X.indptr))
            sides = (rows, X.shape[0]), (X.indices, X.shape[1])
            made = [Drift.of(each, n, times, variance, X.dtype) for each, n in sides]
        codes = None if scale is None else scale.codes(X.data)
        found = cls(entries, X.data, turned, made, scale, noise, temperature, variance, codes)
        if made:
            found.data = X.data - found.offset
        return found

    @property
    def is_plain(self) -> bool:
        """Return whether vectors are fitted to the entries themselves."""
        return not self.drifts and self.scale is None

    @property
    def offset(self) -> Floats:
        """Sum of the drifts at each entry, shape (nnz,)."""
        dtype = self.entries.data.dtype
        total: Floats = np.sum([each.means for each in self.drifts], axis=0, dtype=dtype)
        return total

    def update(self, rows: Side, columns: Side, mean: float, squares: float | None = None) -> None:
        """Set the targets given the vectors, and with the expected `squares` also what is learned.

        `squares` is the expected sum of squared errors of the vectors on the targets before.
        """
        count = len(self.data) / self.temperature + 1  # one entry's worth of prior
        if self.is_plain:
            if squares is not None:
                self.noise = (squares / self.temperature + self.variance) / count
                self.free_energy = -0.5 * count * math.log(self.noise)
                self.rmse = math.sqrt(max(squares, 0.0) / len(self.data))
            return
        pair = rows.vectors.mean, columns.vectors.mean
        scores = kernels.csr_entries(self.entries, *pair) + self.data.dtype.type(mean)
        if squares is not None:
            self.spread = max(squares - _sum_of_squares(self.data - scores), 0.0)
        self._fit_drifts(scores, learn=squares is not None)
        offset = self.offset if self.drifts else np.zeros_like(scores)
        spread = self.spread + sum(each.spread for each in self.drifts)
        latent, diverged = self.entries.data, sum(each.divergence for each in self.drifts)
        if self.scale is None or self.codes is None:
            total = _sum_of_squares(latent - offset - scores) + spread
            if squares is not None:
                self.noise = (total / self.temperature + self.variance) / count
                self.free_energy = -0.5 * count * math.log(self.noise) - diverged
                self.rmse = math.sqrt(total / len(self.data))
        else:
            shifted, mean_spread = scores + offset, spread / len(self.data)
            if squares is not None:
                given = self.codes, shifted, self.noise, mean_spread
                self.scale, self.noise = self.scale.learned(*given)
                off = self.scale.expected(shifted, self.noise + mean_spread) - latent
                self.rmse = math.sqrt(_sum_of_squares(off) / len(off))
            latent, likelihood = self.scale.latent(self.codes, shifted, self.noise)
            likelihood -= spread / (2 * self.noise)
            self.free_energy = likelihood / self.temperature - diverged
        self.data = latent - offset
        self.give(rows, columns)

    def _fit_drifts(self, scores: Floats, *, learn: bool) -> None:
        left = self.data - scores  # of latent numbers, the drifts not yet added
        for drift, scales in zip(self.drifts, _SCALES, strict=False):
            residual = left + drift.means
            if learn and self.scale is None and not drift.scale:
                # A noise that still has the drift in it would leave nothing for it to explain.
                most = _FIRST_NOISE * float(residual.var(dtype=np.float64))
                self.noise = min(self.noise, max(most / self.temperature, _LEAST * self.variance))
            noise = self.temperature * self.noise
            if learn:
                drift.learn(residual, noise, scales)
            drift.fit(residual, noise)
            left = residual - drift.means

    def draw(self, rows: Side, columns: Side, mean: float, rng: np.random.Generator) -> None:
        """Draw latent numbers given vectors that are known exactly; the drifts stay."""
        if self.scale is None or self.codes is None:
            return
        pair = rows.vectors.mean, columns.vectors.mean
        scores = kernels.csr_entries(self.entries, *pair) + self.data.dtype.type(mean)
        offset = self.offset if self.drifts else np.zeros_like(scores)
        self.data = self.scale.drawn(self.codes, scores + offset, self.noise, rng) - offset
        self.give(rows, columns)

    def give(self, rows: Side, columns: Side) -> None:
        """Let the sides be fitted to the targets."""
        if not self.is_plain:
            rows.data = self.data
            columns.data = np.ascontiguousarray(self.data[self.turned])

    def observed(self) -> Observed:
        """Return how entries are seen now."""
        spread = self.spread + sum(each.spread for each in self.drifts)
        drifts = tuple(each.copy() for each in self.drifts)
        return Observed(self.scale, drifts, spread / len(self.data))


class Settling(NamedTuple):
    """Targets of rows that are folded in, as far as they are known.

    Attributes
    ----------
    columns, prior, mean, noise : as in `posterior_rows`
    latent_noise : float
        Variance of a latent number, without the temperature.
    scale : OrdinalScale or None
    drift : Drift or None
        Of the rows, with variance and scale set.
    offset : ndarray of shape (nnz,)
        The drifts of the columns at the entries.
    """

    columns: Posterior
    prior: RowPrior
    mean: float
    noise: float
    latent_noise: float
    scale: OrdinalScale | None
    drift: Drift | None
    offset: Floats

    def data(self, entries: kernels.CsrArrays, features: kernels.CsrArrays | None) -> Floats:
        """Return what stands for the entries of the rows; drifts of the rows are fitted.

        Vectors are solved for as if their rows did not drift: so they are those of all times, and
        do not depend on whether times are known.
        """
        values, scale = entries.data, self.scale
        data, codes = values - self.offset, None if scale is None else scale.codes(values)
        sums = None
        if self.columns.covariance.shape[1] and (scale or self.drift):
            ones = entries._replace(data=np.ones_like(values))
            sums = kernels.csr_matmat(ones, self.columns.covariance)

        def scores(wanted: Floats) -> Floats:
            found = posterior_rows(
                entries._replace(data=wanted),
                self.columns,
                self.prior,
                mean=self.mean,
                noise=self.noise,
                features=features,
                sums=sums,
                only_means=True,
            )
            each = kernels.csr_entries(entries, found.mean, self.columns.mean)
            return each + values.dtype.type(self.mean)

        if scale is not None and codes is not None:
            for _ in range(LATENT_STEPS):
                at = scores(data) + self.offset
                data = scale.latent(codes, at, self.latent_noise).means - self.offset
        if self.drift is not None and self.drift.variance:
            for _ in range(_DRIFT_STEPS):
                self.drift.fit(data - scores(data - self.drift.means), self.noise)
        return data


def _sum_of_squares(values: Floats) -> float:
    return float(np.einsum("i,i->", values, values, dtype=np.float64))

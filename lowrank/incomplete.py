"""Factor models x = mean + W z + noise of rows that are known in part: posteriors, likelihood, EM.

Rows that know the same entries share one k x k system, and all systems of a block of rows are
solved as one stack. Everything is computed in float64.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from lowrank.estimators import Float64Array
    from lowrank.operators import FloatArray

__all__ = ["FactorModel", "IncompleteRows", "Posterior", "em_steps", "posteriors"]

_CHUNK = 1 << 21  # numbers that a temporary array of a block may hold
_LEAST_NOISE = 1e-10  # of the mean variance: with less, nothing is left of a k x k system's digits


@dataclass(frozen=True, eq=False)
class FactorModel:
    """Rows x = mean + W z + e with z ~ N(0, I) and e ~ N(0, noise I).

    Attributes
    ----------
    mean : ndarray of shape (m,), float64
    loadings : ndarray of shape (m, k), float64
        W.
    noise : float
        Variance of e, positive.
    """

    mean: Float64Array
    loadings: Float64Array
    noise: float


@dataclass(frozen=True, eq=False)
class _Block:
    """Consecutive rows in order of their pattern.

    ``values`` are 0 where nothing is known, ``known`` has 1 and 0 for each pattern of the block,
    ``pattern`` the one of each row, and pattern p has the rows from ``starts[p]`` on.
    """

    rows: NDArray[np.int64]
    values: Float64Array
    known: Float64Array
    pattern: NDArray[np.int64]
    starts: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Posterior:
    """What some rows tell about their hidden coordinates z.

    Attributes
    ----------
    block : rows that are described; ``block.rows`` are their numbers
    mean : ndarray of shape (r, k)
        Posterior mean of z.
    covariance : ndarray of shape (patterns of the block, k, k)
        Posterior covariance of z, the same for rows that know the same entries.
    log_likelihood : ndarray of shape (r,)
        Log-density of the known entries of each row; 0 for a row without any.
    """

    block: _Block
    mean: Float64Array
    covariance: Float64Array
    log_likelihood: Float64Array


class IncompleteRows:
    """The rows of a matrix with NaN for what is not known, grouped by what they know.

    Parameters
    ----------
    X : ndarray of shape (n, m)
        float32 or float64, otherwise finite. A float64 copy is kept.
    location : ndarray of shape (m,), optional
        Subtracted from each row; by default the means of the known entries of each column, each of
        which must have one.

    Attributes
    ----------
    shape : tuple of int
    count : int
        Number of known entries.
    location : ndarray of shape (m,)
    squares : float
        Sum of squares of the known entries less the location.
    """

    def __init__(self, X: FloatArray, location: Float64Array | None = None) -> None:
        self.shape = (X.shape[0], X.shape[1])
        known = ~np.isnan(X)
        self.count = int(known.sum())
        packed = np.packbits(known, axis=1)
        first, pattern = _distinct_rows(packed)
        self._known = known[first]
        self._order = np.argsort(pattern, kind="stable")
        self._pattern = pattern[self._order]
        ordered_mask = known[self._order]
        values = np.where(ordered_mask, X[self._order], 0).astype(np.float64)
        if location is None:
            location = values.sum(axis=0) / known.sum(axis=0)
        self.location = location
        np.subtract(values, location, out=values, where=ordered_mask)
        self._values = values
        self.squares = float(np.einsum("ij,ij->", values, values))

    @property
    def least_noise(self) -> float:
        """Noise variance that counts as 0: a share of the mean variance."""
        return _LEAST_NOISE * self.squares / max(1, self.count) or _LEAST_NOISE**10

    def filled(self) -> Float64Array:
        """Return the rows less the location, with 0 for what is not known, in their own order."""
        filled = np.empty_like(self._values)
        filled[self._order] = self._values
        return filled

    def blocks(self, rank: int) -> Iterator[_Block]:
        """Yield all rows, as many at a time as may have a rank x rank matrix each."""
        step = max(1, _CHUNK // max(1, self.shape[1], (rank + 1) ** 2))
        for start in range(0, self.shape[0], step):
            part = slice(start, start + step)
            pattern = self._pattern[part] - self._pattern[start]
            last = int(pattern[-1]) + 1
            known = self._known[self._pattern[start] : self._pattern[start] + last]
            starts = np.searchsorted(pattern, np.arange(last))
            yield _Block(
                self._order[part], self._values[part], known.astype(np.float64), pattern, starts
            )


def posteriors(rows: IncompleteRows, model: FactorModel) -> Iterator[Posterior]:
    """Yield the posterior of all rows, block by block.

    Parameters
    ----------
    rows : IncompleteRows of shape (n, m)
    model : FactorModel
        Its mean is relative to ``rows.location``.

    Yields
    ------
    Posterior
    """
    W, mean, noise = model.loadings, model.mean, model.noise
    features, k = W.shape
    squares = (W[:, :, None] * W[:, None, :]).reshape(features, k * k)
    for block in rows.blocks(k):
        system = (block.known @ squares).reshape(len(block.starts), k, k) + noise * np.eye(k)
        inverse: Float64Array = np.linalg.inv(system).astype(np.float64, copy=False)
        right = block.values @ W - (block.known @ (mean[:, None] * W))[block.pattern]
        hidden = _solved(system[block.pattern], inverse[block.pattern], right)
        known = block.known.sum(axis=1)
        constant = known * math.log(2 * math.pi) + (known - k) * math.log(noise)
        constant += np.linalg.slogdet(system)[1]
        distance = _residual_squares(block, model, hidden) / noise + (hidden**2).sum(axis=1)
        likelihood = -0.5 * (constant[block.pattern] + distance)
        yield Posterior(block, hidden, noise * inverse, likelihood)


def em_steps(rows: IncompleteRows, start: FactorModel) -> Iterator[tuple[FactorModel, float]]:
    """Climb to a maximum of the likelihood of the known entries, by exact EM steps.

    Each step is one of EM with the distribution of the hidden coordinates z as further parameters
    (parameter expansion): they are then N(b, S) for any b and S, which W and the mean absorb. The
    likelihood rises at least as surely as in plain EM, in fewer steps.

    Parameters
    ----------
    rows : IncompleteRows of shape (n, m)
    start : FactorModel
        Its mean is relative to ``rows.location``.

    Yields
    ------
    model : FactorModel
    log_likelihood : float
        Of all known entries under the model. The first pair is the start itself.

    References
    ----------
    Tipping & Bishop (1999), "Probabilistic principal component analysis", appendix B; Liu, Rubin &
    Wu (1998), "Parameter expansion to accelerate EM: the PX-EM algorithm".
    """
    model = FactorModel(start.mean, start.loadings, max(start.noise, rows.least_noise))
    while True:
        moments, log_likelihood = _Moments.of(rows, model)
        yield model, log_likelihood
        model = moments.maximised(rows)


@dataclass(eq=False)
class _Moments:
    """Sums over rows that a step needs, with the 1 of the mean appended to each z.

    ``columns[j]`` is the sum of E[z z'] over the rows that know entry j, ``products[j]`` that of
    x_j E[z], and ``hidden`` the sum of E[z z'] over the ``count`` rows that know anything.
    """

    columns: Float64Array
    products: Float64Array
    hidden: Float64Array

    @classmethod
    def of(cls, rows: IncompleteRows, model: FactorModel) -> tuple[_Moments, float]:
        features, side = model.loadings.shape[0], model.loadings.shape[1] + 1
        columns = np.zeros((features, side * side))
        sums = cls(columns, np.zeros((features, side)), np.zeros((side, side)))
        likelihoods = []
        for posterior in posteriors(rows, model):
            sums._add(posterior)
            likelihoods.append(float(posterior.log_likelihood.sum()))
        return sums, math.fsum(likelihoods)

    def _add(self, posterior: Posterior) -> None:
        block = posterior.block
        extended = np.column_stack([posterior.mean, np.ones(len(posterior.mean))])
        outer = extended[:, :, None] * extended[:, None, :]
        by_pattern = np.add.reduceat(outer, block.starts, axis=0)
        counts = by_pattern[:, -1, -1]
        by_pattern[:, :-1, :-1] += counts[:, None, None] * posterior.covariance
        self.columns += block.known.T @ by_pattern.reshape(len(counts), -1)
        self.products += block.values.T @ extended
        self.hidden += by_pattern[block.known.any(axis=1)].sum(axis=0)

    def maximised(self, rows: IncompleteRows) -> FactorModel:
        """Return the model that maximises the expected log-likelihood of the rows."""
        features, side = self.products.shape
        systems = self.columns.reshape(features, side, side)
        solved = np.linalg.solve(systems, self.products[:, :, None])[:, :, 0]
        noise = (rows.squares - float((solved * self.products).sum())) / rows.count
        W, mean = solved[:, :-1], solved[:, -1]
        centre = self.hidden[:-1, -1] / self.hidden[-1, -1]
        spread = self.hidden[:-1, :-1] / self.hidden[-1, -1] - np.outer(centre, centre)
        root: Float64Array = np.linalg.cholesky(spread).astype(np.float64, copy=False)
        return FactorModel(mean + W @ centre, W @ root, max(noise, rows.least_noise))


def _solved(systems: Float64Array, inverses: Float64Array, right: Float64Array) -> Float64Array:
    """Return the solution of each row's system.

    An inverse alone has the errors of its largest entries, 1 / noise, in all directions. The second
    step takes them out where the row is known well.
    """
    first = inverses @ right[:, :, None]
    rest = right[:, :, None] - systems @ first
    return (first + inverses @ rest)[:, :, 0]


def _residual_squares(block: _Block, model: FactorModel, hidden: Float64Array) -> Float64Array:
    """Return ||x - mean - W z||^2 over the known entries of each row."""
    residual = block.values - model.mean
    residual -= hidden @ model.loadings.T
    residual *= block.known[block.pattern]
    squares: Float64Array = np.einsum("ij,ij->i", residual, residual)
    return squares


def _distinct_rows(packed: NDArray[np.uint8]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return where each distinct row first occurs, and for each row which of these it is."""
    width = packed.shape[1]
    keys: Any = np.ascontiguousarray(packed).view(np.dtype((np.void, width)))[:, 0]
    _, first, which = np.unique(keys, return_index=True, return_inverse=True)
    return first, which

r"""Fits whose vectors of rows are pulled towards what links and features predict.

An entry is :math:`\mu + b_u + c_i + a_u \cdot m_i` plus Gaussian noise. The link of a sparse matrix
is its 0/1 pattern S with each row divided by the square root of its number of entries, so that
every row has length 1. The prior of a row's vector :math:`(a_u, b_u)` has the mean
:math:`\mu_0 + B's_u + C'f_u`, where :math:`f_u` are features of the row; B and C are ridge
regressions of the vectors (`lowrank.completion.design`). Least squares use such priors here,
Bayesian fits in `lowrank.completion.bayes` and `lowrank.completion.gibbs`.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import DTypeLike, NDArray

from lowrank import kernels
from lowrank.completion.als import (
    AlsSweep,
    BiasedFactors,
    Known,
    biased_start,
    check_problem,
    moments,
    stored,
)
from lowrank.completion.design import FeatureRidge, GroupedFeatures, Link, ridge_fit
from lowrank.errors import ArgumentError
from lowrank.kernels import CodedMatrix, Stored, posteriors, transposed

Floats = NDArray[np.floating[Any]]

_LEARNING_SWEEPS = 5  # of least squares, in which the penalties of features are chosen
_CHARGED_SWEEPS = 0, 3  # what features are charged changes slowly
_SAMPLED_ROWS = 4096  # that distributions are learned from, at most
_LINK_STEPS = 1  # of conjugate gradients per sweep: they start from the sweep before


@dataclass(frozen=True, eq=False)
class RowPrior:
    r"""The prior of rows: mean :math:`\mu_0 + B's_u + C'f_u`, precision :math:`n_u^g \Lambda`.

    `link` is the matrix B, shape (n_cols, d), with no rows for a prior without a link,
    `features` the matrix C, shape (n_features, d), None without features, and `count_power` the
    exponent g of the number of entries n_u.
    """

    mean: Floats
    precision: Floats
    link: Floats
    count_power: float
    features: Floats | None = None

    def weights(self, counts: NDArray[np.int64]) -> Floats:
        """Return n_u^g; rows without entries count as rows with one."""
        dtype = self.mean.dtype
        weights: Floats = np.maximum(counts, 1).astype(dtype) ** dtype.type(self.count_power)
        return weights

    def means(self, link: Link, features: kernels.CsrArrays | None = None) -> Floats:
        """Return the prior mean of each row of `link` and of features, shape (n_rows, d)."""
        if len(self.link):
            means = link.forward(self.link)
            means += self.mean
        else:
            means = np.tile(self.mean, (len(link.scale), 1))
        if features is not None and self.features is not None:
            means += kernels.csr_matmat(features, self.features)
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
    features: kernels.CsrArrays | None = None,
    draw_seed: tuple[int, ...] | None = None,
    sums: Floats | None = None,
    only_means: bool = False,
) -> Posterior:
    """Return the posterior of rows given their entries and the posterior of the columns.

    A row gets the same bits whichever rows are solved with it, on any number of threads. `noise` is
    the noise variance, multiplied by the temperature; 1 for penalised least squares. The `features`
    of the rows are in CSR form; rows without them have features of zero. With a `draw_seed` the
    result is draws from the posteriors instead of their means. `sums` are those of the covariances
    of the columns by row, if known; with `only_means` the result has no covariances.
    """
    link = Link.of(entries, len(columns.mean))
    means = prior.means(link, features)
    draws = None if draw_seed is None else normal_draws(draw_seed, means.shape, means.dtype)
    kept = np.empty((len(means), 0), means.dtype) if only_means else None
    given = prior, means, mean, noise, draws, sums, kept
    return _half_sweep(link, entries.data, columns, *given)[0]


class Terms(NamedTuple):
    """The posterior mean of a row as a sum.

    Attributes
    ----------
    base : float64 ndarray of shape (d,)
        The term of the mean of all rows.
    entries : float64 ndarray of shape (n_entries, d)
        Those of the entries, by their values and, with a link, by being there.
    features : float64 ndarray of shape (n_stored, d)
        Those of the features that are not zero.
    """

    base: NDArray[np.float64]
    entries: NDArray[np.float64]
    features: NDArray[np.float64]


def posterior_terms(
    entries: kernels.CsrArrays,
    columns: Posterior,
    prior: RowPrior,
    *,
    mean: float,
    noise: float = 1.0,
    features: kernels.CsrArrays | None = None,
) -> Terms:
    """Return the posterior mean of one row as a sum, with one term for each entry.

    The parameters are those of `posterior_rows`, with one row in `entries`.
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
    known = np.zeros((0, d))
    if features is not None and prior.features is not None:
        known = prior.features[features.indices].astype(np.float64) * features.data[:, None] @ pull
    base = inverse @ pull @ prior.mean.astype(np.float64)
    return Terms(base, right @ inverse, known @ inverse)


def sampled_rows(counts: NDArray[np.integer[Any] | np.bool_]) -> NDArray[np.int64]:
    """Return rows with entries that stand for all of them: a random sample of very many."""
    rows = np.flatnonzero(counts)
    if len(rows) > _SAMPLED_ROWS:
        rows = np.sort(np.random.default_rng(0).permutation(rows)[:_SAMPLED_ROWS])
    return rows


def exact_posterior(
    entries: kernels.CsrArrays, columns: Floats, prior: RowPrior, prior_means: Floats, mean: float
) -> Posterior:
    """Return the posterior of rows of noise variance 1, with covariances, given known columns."""
    n, d = prior_means.shape
    weight, dtype = prior.weights(np.diff(entries.indptr)), columns.dtype
    covariance = np.zeros((n, d * (d + 1) // 2), dtype)
    found = Posterior(kernels.aligned_zeros((n, d), dtype), covariance)
    posteriors.posterior_half_sweep(
        entries,
        columns,
        prior=prior.precision,
        weight=weight,
        prior_right=weight[:, None] * kernels.multiply(prior_means, prior.precision),
        vectors=found.mean,
        shift=mean,
        covariance=covariance,
    )
    return found


def _half_sweep(
    link: Link,
    data: Floats,
    columns: Posterior,
    prior: RowPrior,
    prior_means: Floats,
    mean: float,
    noise: float,
    draws: Floats | None = None,
    sums: Floats | None = None,
    kept: Floats | None = None,
) -> tuple[Posterior, posteriors.RowPosteriors]:
    """Solve all rows, whose pattern `link` carries; with normal `draws`, draw them instead.

    `sums` are those of the covariances of the columns by row, if known. Covariances that are
    `kept` are those of the result, which has new means only.
    """
    weight = prior.weights(np.diff(link.pattern.indptr))
    scaled = (prior.precision.astype(np.float64) * noise).astype(data.dtype)
    prior_right = kernels.multiply(prior_means, scaled)
    prior_right *= weight[:, None]
    found = Posterior.exactly(kernels.aligned_zeros(prior_means.shape, data.dtype))
    uncertain, invert = columns.covariance.shape[1] > 0, kept is None
    if uncertain:
        if sums is None:
            sums = kernels.csr_matmat(link.pattern, columns.covariance)
        elif invert:
            sums = sums.copy()  # what takes their place are the covariances of rows
        found = replace(found, covariance=sums if kept is None else kept)
    result = posteriors.posterior_half_sweep(
        link.pattern._replace(data=data),
        columns.mean,
        prior=scaled,
        weight=weight,
        prior_right=prior_right,
        vectors=found.mean,
        shift=mean,
        noise_variance=noise,
        covariance=sums if uncertain else None,
        draws=None if draws is None else draws * draws.dtype.type(math.sqrt(noise)),
        invert=invert,
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
    features: FeatureRidge | None
    penalty: float  # of B, in units of the prior precision; 0 without a link
    linked: Floats  # share of links in the prior means, shape (n, d)
    link_squares: Floats | None = None  # the diagonal of S' W S
    covariance_sums: tuple[Floats, Floats] | None = None  # by row, and the covariances they are of

    @classmethod
    def pair(
        cls,
        X: Known,
        row_prior: RowPrior,
        column_prior: RowPrior,
        link_penalty: float,
        row_features: GroupedFeatures | None = None,
        column_features: GroupedFeatures | None = None,
        by_column: Stored | None = None,
    ) -> tuple[Self, Self]:
        """Return the rows and the columns of X, all vectors zero.

        A prior without the matrix B that a positive `link_penalty` calls for begins with zeros.
        `by_column` is the transpose of X, if it is there.
        """
        by_row = stored(X)
        if by_column is None:
            by_column = transposed(by_row, X.shape[1], kernels.resolve_threads(None))
        sides = []
        for coded, (n, m), prior, features in (
            (by_row, X.shape, row_prior, row_features),
            (by_column, X.shape[::-1], column_prior, column_features),
        ):
            entries, d = coded.arrays if isinstance(coded, CodedMatrix) else coded, len(prior.mean)
            counts, link = np.diff(entries.indptr), Link.of(entries, m)
            weight = np.where(counts > 0, prior.weights(counts), 0).astype(X.dtype)
            typical = float(weight.sum(dtype=np.float64)) / np.count_nonzero(counts)
            if link_penalty and not len(prior.link):
                prior = replace(prior, link=np.zeros((m, d), X.dtype))
            vectors = Posterior.exactly(kernels.aligned_zeros((n, d), X.dtype))
            ridge = known = None
            if features is not None and features.matrix.shape[1]:
                ridge = FeatureRidge.of(features, weight, d)
                if prior.features is not None:
                    ridge.coefficients = prior.features
                prior = replace(prior, features=ridge.coefficients)
                known = ridge.design.rows
            means = prior.means(link, known)
            known_of = entries.data, link, vectors, prior, means, weight, typical
            sides.append(cls(*known_of, ridge, link_penalty * typical, np.zeros_like(means)))
        rows, columns = sides
        rows.link = rows.link.with_turned(columns.link)
        columns.link = columns.link.with_turned(rows.link)
        for side in sides:
            if side.penalty:
                side.link_squares = side.link.squares(side.weight)
                if side.prior.link.any():
                    side.linked = side.link.forward(side.prior.link)
        return rows, columns

    @property
    def seen(self) -> NDArray[np.bool_]:
        """Which rows have entries, shape (n,)."""
        return self.weight > 0

    def solve(
        self,
        other: Side,
        mean: float,
        noise: float = 1.0,
        draws: Floats | None = None,
        *,
        only_means: bool = False,
    ) -> posteriors.RowPosteriors:
        """Set the vectors to their posterior given the other side's, or draw them from it.

        With `only_means` the covariances stay as they are.
        """
        sums, covariances = None, other.vectors.covariance
        if covariances.shape[1]:
            if self.covariance_sums is None or self.covariance_sums[1] is not covariances:
                summed = kernels.csr_matmat(self.link.pattern, covariances)
                self.covariance_sums = summed, covariances
            sums = self.covariance_sums[0]
        kept = self.vectors.covariance if only_means else None
        given = self.prior, self.prior_means, mean, noise, draws, sums, kept
        self.vectors, result = _half_sweep(self.link, self.data, other.vectors, *given)
        return result

    def fit_maps(self) -> Floats:
        """Improve B, then C; return their share of the prior means, of centred features."""
        if self.penalty:
            found = ridge_fit(
                self.link,
                self.vectors.mean - self.prior.mean - self.featured,
                ridge=self.penalty,
                weight=self.weight,
                start=self.prior.link,
                steps=_LINK_STEPS,
                predictions=self.linked,
                squares=self.link_squares,
            )
            self.prior, self.linked = (
                replace(self.prior, link=found.coefficients),
                found.predictions,
            )
        if self.features is None:
            return self.linked
        return self.linked + self.features.fit(self.vectors.mean - self.linked)

    @property
    def featured(self) -> Floats:
        """Share of features in the prior means, shape (n, d)."""
        if self.features is None:
            return np.zeros_like(self.vectors.mean)
        return kernels.csr_matmat(self.features.design.rows, self.features.coefficients)

    def with_mean(self, mean: Floats) -> RowPrior:
        """Return the prior with C, and with `mean` for a row whose features are the mean ones."""
        if self.features is None:
            return replace(self.prior, mean=mean)
        C = self.features.coefficients
        return replace(self.prior, mean=mean - self.features.design.centre @ C, features=C)

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
    X: Known,
    k: int,
    *,
    regularization: float,
    link_penalty: float = 0.0,
    row_features: GroupedFeatures | None = None,
    column_features: GroupedFeatures | None = None,
    count_power: float = 0.5,
    start: BiasedFactors | None = None,
    random_state: int | None = 0,
    threads: int | None = None,
) -> Generator[LinkedSweep]:
    r"""Fit biased factors as `als_sweeps` does, pulled towards predicted means instead of zero.

    In its objective a penalty :math:`n_u^g |a_u|^2` becomes
    :math:`n_u^g |a_u - a_0 - B's_u - C'f_u|^2`, where :math:`s_u` is row u of the link and
    :math:`f_u` its features, and likewise for biases and columns; B has the ridge penalty
    `link_penalty` in the same units (0 means no links), each group of C one that is chosen in the
    first 5 sweeps by the evidence of the regression of the vectors on features, and the means
    :math:`a_0` none (but without links those of factors are zero for rows of mean features). The
    mean :math:`\mu` is that of the entries. The objective never rises, from the sixth sweep on if
    there are features. The other parameters are those of `als_sweeps`.

    Raises
    ------
    ArgumentError
        As `check_problem`, or if `link_penalty` is negative.

    References
    ----------
    Koren (2008), "Factorization meets the neighborhood", section 4.
    """
    check_problem(X, k, regularization=regularization)
    if not 0 <= link_penalty < math.inf:
        raise ArgumentError(f"link_penalty must be 0 or positive; got {link_penalty}.")
    precision = ridge_precision(k, regularization, moments(X).deviation or 1.0, X.dtype)
    none = np.zeros((0, k + 1), X.dtype)
    prior = RowPrior(np.zeros(k + 1, X.dtype), precision, none, count_power)
    features = row_features, column_features
    with kernels.at_most(threads):
        by_column = transposed(stored(X), X.shape[1], kernels.resolve_threads(None))
        first = start or biased_start(X, k, random_state=random_state, by_column=by_column)
        given = prior, prior, link_penalty, *features
        rows, columns = _LinkedSide.pair(X, *given, by_column=by_column)
    columns.vectors.mean[:] = np.column_stack([first.column_factors, first.column_bias])
    for number in count():
        with kernels.at_most(threads):
            learns, fitted = number < _LEARNING_SWEEPS, rows.fit_vectors(columns, first.mean)
            half = fitted + rows.map_penalties() + columns.penalties()
            if number in _CHARGED_SWEEPS:
                rows.charge(columns, fitted / X.nnz)
            rows.fit_prior(columns if learns else None, first.mean, fitted / X.nnz)
            fitted = columns.fit_vectors(rows, first.mean)
            squares = fitted - columns.vector_penalties()
            if number in _CHARGED_SWEEPS:
                columns.charge(rows, fitted / X.nnz)
            columns.fit_prior(rows if learns else None, first.mean, fitted / X.nnz)
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

    def charge(self, other: Side, noise: float) -> None:
        """Let features pay for being multiplied with vectors that are not known exactly.

        The error of an entry has the variance :math:`a_u' V_i a_u`, which the penalties of vectors
        stand for; what is common to many rows would pass them by. Of the covariance of a column
        its diagonal counts, a factor by its share in the vectors of rows; it is in proportion to
        the variance of the noise, most likely the mean of squared errors and penalties.
        """
        if self.features is None:
            return
        own, theirs = (float(side.prior.precision[0, 0]) for side in (self, other))
        squares = self.vectors.mean[:, :-1] ** 2
        shares = squares.mean(axis=0, dtype=np.float64)
        shares *= noise / max(float(shares.sum()), np.finfo(np.float64).tiny)
        known = kernels.csr_matmat(other.link.pattern, squares) + theirs * other.weight[:, None]
        variances = np.divide(1, known, out=np.zeros_like(known), where=known > 0) @ shares
        variances = variances.astype(self.data.dtype)[:, None]
        charge = kernels.csr_matmat(self.link.pattern, variances)[:, 0] / self.data.dtype.type(own)
        self.features.weigh(self.weight, charge)

    def fit_vectors(self, other: Side, mean: float) -> float:
        """Minimise over this side's vectors; return the errors and their own penalties."""
        points, columns, entries = self.prior_means, other.vectors.mean, self.link.pattern
        factors, others = (
            kernels.aligned_zeros((len(each), each.shape[1] - 1), each.dtype)
            for each in (points, columns)
        )
        others[:] = columns[:, :-1]
        bias, precision = np.empty(len(points), points.dtype), np.diag(self.prior.precision)
        options: dict[str, Any] = {"shift": mean}
        if self.features is None and not self.penalty:  # all are pulled towards the same bias
            entries = entries._replace(data=self.data)
            options = {"shift": mean + float(points[0, -1]), "other_bias": columns[:, -1].copy()}
        else:  # off the points that they are pulled towards, vectors have plain penalties
            pulls = kernels.csr_entries(entries, points, columns)
            entries = entries._replace(data=np.subtract(self.data, pulls, out=pulls))
        objective = kernels.als_half_sweep(
            entries,
            others,
            penalty=self.weight * precision[0],
            bias_penalty=self.weight * precision[-1],
            factors=factors,
            bias=bias,
            **options,
        )
        self.vectors = Posterior.exactly(np.column_stack([factors, bias]))
        self.vectors.mean[:] += points
        return math.fsum(objective)

    def fit_prior(self, other: Side | None, mean: float, noise: float) -> None:
        """Improve B and C, then set the prior mean to its best value.

        With the `other` side, the mean of entries and their noise, the penalties of C are learned.
        """
        shares = self.fit_maps()
        off = self.vectors.mean - shares
        centre = self.weighted_mean(off).astype(self.data.dtype)
        if not self.penalty:
            # Factors of rows with few entries would share a direction, and top many rankings.
            centre[:-1] = 0
        self.prior, before = self.with_mean(centre), self.prior_means
        self.prior_means = shares + centre
        if self.features is None or other is None:
            return
        off -= centre
        squares = np.einsum("i,ij,ij->j", self.weight, off, off, dtype=np.float64)
        squares += np.diag(self.features.scatter())
        squares += noise * self.uncertainty(other, before, mean)
        precision = np.diag(np.count_nonzero(self.seen) / squares)
        self.features.learn(precision.astype(self.data.dtype))

    def uncertainty(self, other: Side, prior_means: Floats, mean: float) -> NDArray[np.float64]:
        """Return the weighted sum of the variances of all rows, by that of the noise.

        Of very many rows, it is estimated from a sample.
        """
        rows = sampled_rows(self.seen)
        entries = self.link.pattern._replace(data=self.data).take(rows)
        known = exact_posterior(entries, other.vectors.mean, self.prior, prior_means[rows], mean)
        weight = self.weight[rows, None]
        packed = kernels.coefficients(known.covariance, weight).T.astype(np.float64)
        scale = self.weight.sum(dtype=np.float64) / weight.sum(dtype=np.float64)
        variances: NDArray[np.float64] = scale * np.diag(unpack(packed, prior_means.shape[1])[0])
        return variances

    def vector_penalties(self) -> float:
        off = self.vectors.mean - self.prior_means
        return self.weighted_dots(off, off)

    def map_penalties(self) -> float:
        """Return the penalties of B and C, with what features are charged."""
        link = self.prior.link
        weighted = kernels.multiply(link, self.prior.precision)
        total = self.penalty * float(np.einsum("ij,ij->", link, weighted, dtype=np.float64))
        if self.features is not None:
            total += float(np.sum(self.features.scatter() * self.prior.precision))
            told = self.features.design.forward(self.features.coefficients)
            charge = (1 - self.features.shrinkage) * self.features.weight[:, None]
            pull = kernels.multiply(told, self.prior.precision)
            total += float(np.einsum("ij,ij->", charge * told, pull, dtype=np.float64))
        return total

    def penalties(self) -> float:
        return self.vector_penalties() + self.map_penalties()

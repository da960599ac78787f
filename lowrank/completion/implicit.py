"""Alternating least squares over all entries of a sparse matrix of interactions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np

from lowrank import kernels
from lowrank.completion.als import check_problem
from lowrank.completion.feature_ridge import FeatureMap, FeatureRidge, GroupedFeatures
from lowrank.errors import ArgumentError
from lowrank.kernels.arrays import Float64s, Floats, Int64s, Masks
from lowrank.sums import column_dots, row_dots, weighted_mean

if TYPE_CHECKING:
    from scipy.sparse import csr_array

_START = 0.1  # expected length of a starting factor
_LEARNING_SWEEPS = 8  # sweeps after which the maps from features are fitted again
_BLOCK = 64  # number of factors solved for at once, if there are more
# Minimum ratio of multiplications, exact to blocks, for blocks: they run at a lower rate, and need
# more sweeps.
_BLOCK_GAIN = 3.6
# Entries of a Gram matrix below this many epsilons of the largest are zero.
_ROUNDING = 10

FEATURE_PENALTY = 30.0
"""Ridge penalty of a feature's coefficients: with this many rows, they are shrunk by half."""


@dataclass(frozen=True, eq=False)
class ImplicitSweep:
    """The state after one sweep, which solves the rows, then the columns.

    The factors have shapes (n, k) and (m, k); the next sweep reuses their arrays. `half_objective`
    and `objective` are the objectives after the rows and after the columns. The priors are the next
    sweep's, None without features.
    """

    row_factors: Floats
    column_factors: Floats
    half_objective: float
    objective: float
    row_prior: FeatureMap | None = None
    column_prior: FeatureMap | None = None


def implicit_sweeps(
    W: csr_array,
    k: int,
    *,
    regularization: float,
    unobserved_weight: float,
    count_power: float = 1.0,
    nonnegative: bool = False,
    zeros: csr_array | None = None,
    start: Floats | None = None,
    row_features: GroupedFeatures | None = None,
    column_features: GroupedFeatures | None = None,
    random_state: int | None = 0,
    threads: int | None = None,
) -> Iterator[ImplicitSweep]:
    r"""Fit factors whose products approximate 1 at interactions and 0 elsewhere, sweep by sweep.

    For a sparse matrix of weights w, minimises over the factors of rows and columns

    .. math:: \sum_{(u,i)} w_{ui} (1 - a_u \cdot m_i)^2 + \alpha_0 \sum_{u,i} (a_u \cdot m_i)^2
              + \lambda \sum_u p_u |a_u|^2 + \lambda \sum_i q_i |m_i|^2

    where the first sum is over the stored entries and the second over all pairs, by solving for all
    :math:`a_u`, then for all :math:`m_i`. The objective never rises. The time of a sweep is
    proportional to the number of stored entries, because the second sum needs only the Gram matrix
    of the fixed factors. For a row of total weight :math:`w_u`,
    :math:`p_u = (w_u + \alpha_0 m)^g`.

    A sweep solves for each row exactly. For many factors and long histories it makes one pass over
    blocks of 64 factors instead, with the others fixed, in the order of their share in the sum over
    all pairs. This reaches the same objective sooner (`blocks_are_faster`). With features, the
    solutions are always exact.

    With features f of the rows, the penalty is on :math:`a_u - \mu - C'f_u`; likewise for columns.
    After each of the first 8 sweeps, C becomes the ridge regression of the factors on the features,
    in which all rows with interactions have the same weight. After these sweeps the objective never
    rises. Rows without interactions are left out of the pairs, and have factors of zero.

    With `nonnegative`, no factor is negative. The solutions are then exact, too, and features are
    not supported.

    `zeros` has the weights z of entries with the target 0, such as dislikes, where W has none: they
    add :math:`\sum z_{ui} (a_u \cdot m_i)^2`, and z to the total weights of rows and columns. The
    solutions are then exact, too.

    `W` has sorted indices and no duplicates; `regularization` and `unobserved_weight` are the
    positive numbers lambda and alpha_0, `count_power` is g, and `start` are the starting column
    factors: their strongest k directions if there are more, and random ones added if there are
    fewer. For the other parameters see `als_sweeps`.

    Raises
    ------
    ArgumentError
        If `check_problem` raises it, a weight is negative, or `start` lacks a row of each column;
        with `nonnegative`, if features are given or `start` has a negative number.

    References
    ----------
    Hu, Koren and Volinsky (2008), "Collaborative filtering for implicit feedback datasets".
    Rendle, Krichene, Zhang and Koren (2021), "iALS++: speeding up matrix factorization with
    subspace optimization".
    Rendle, Krichene, Zhang and Koren (2022), "Revisiting the performance of iALS on item
    recommendation benchmarks", section 3.
    """
    check_problem(
        W, k, regularization=regularization, unobserved_weight=unobserved_weight
    )
    if W.data.min() < 0:
        raise ArgumentError(f"Weights must not be negative; got {W.data.min()}.")
    (n, m), dtype = W.shape, W.dtype
    if nonnegative and (row_features is not None or column_features is not None):
        raise ArgumentError("nonnegative=True does not support features.")
    first_factors = _first_factors(m, k, start, nonnegative, random_state, dtype)
    observed = W if zeros is None else (W + zeros).tocsr()
    by_row = kernels.csr_arrays(observed)
    by_column = kernels.csr_arrays(observed.T.tocsr())
    zero_sides: tuple[kernels.CsrArrays | None, ...] = (None, None)
    if zeros is not None:
        zero_sides = kernels.csr_arrays(zeros), kernels.csr_arrays(zeros.T.tocsr())
    counts = np.diff(W.indptr), np.bincount(W.indices, minlength=m)
    # With features, rows without interactions are left out of the pairs.
    n_rows = n if row_features is None else int(np.count_nonzero(counts[0]))
    n_columns = m if column_features is None else int(np.count_nonzero(counts[1]))
    sides = []
    for entries, of_zeros, count_of, features, length, n_others in (
        (by_row, zero_sides[0], counts[0], row_features, m, n_columns),
        (by_column, zero_sides[1], counts[1], column_features, n, n_rows),
    ):
        penalty = _penalties(
            entries, length, n_others, regularization, unobserved_weight, count_power
        )
        ridge = None
        if features is not None:  # only rows with interactions have weight
            weight = (count_of > 0).astype(dtype)
            ridge = FeatureRidge.of(features, weight, k)
            ridge.penalties = np.full(len(ridge.penalties), FEATURE_PENALTY)
        factors = kernels.aligned_zeros((len(penalty), k), dtype)
        side = _Side(entries, penalty, factors, ridge, nonnegative=nonnegative)
        side.zeros = of_zeros
        sides.append(side)
    rows, columns = sides
    is_plain = rows.ridge is None and columns.ridge is None and not nonnegative
    in_blocks = is_plain and zeros is None and blocks_are_faster(counts, k)
    columns.factors[:] = first_factors
    if columns.ridge is not None:
        columns.factors[columns.ridge.weight == 0] = 0
    for number in count():
        # If the columns start from given factors, one pass over blocks is too little for the rows,
        # which start from zero.
        rows.in_blocks = in_blocks and (number > 0 or start is None)
        columns.in_blocks = in_blocks
        with kernels.at_most(threads):
            half = rows.solve(columns, unobserved_weight) + columns.penalties()
            objective = columns.solve(rows, unobserved_weight) + rows.penalties()
            if number < _LEARNING_SWEEPS:
                rows.learn()
                columns.learn()
        yield ImplicitSweep(
            rows.factors, columns.factors, half, objective, rows.prior, columns.prior
        )


def _first_factors(
    m: int,
    k: int,
    start: Floats | None,
    nonnegative: bool,
    random_state: int | None,
    dtype: np.dtype[Any],
) -> Floats:
    """Return random column factors, or the strongest directions of `start` and random ones."""
    factors = np.random.default_rng(random_state).standard_normal((m, k), dtype)
    factors *= dtype.type(_START / math.sqrt(k))
    if nonnegative:
        np.abs(factors, out=factors)
    if start is None:
        return factors
    if start.ndim != 2 or len(start) != m:
        raise ArgumentError(f"start must have {m} rows; got shape {start.shape}.")
    if nonnegative and start.min(initial=0) < 0:
        raise ArgumentError(f"start must not be negative; got {start.min()}.")
    if start.shape[1] > k and nonnegative:
        longest = np.argsort(-column_dots(start, start), kind="stable")
        start = start[:, np.sort(longest[:k])]
    elif start.shape[1] > k:  # all turns are alike: keep the strongest directions
        start = in_principal_axes(start)[:, -k:]
    factors[:, : start.shape[1]] = start  # columns of zeros would stay so
    return factors


@dataclass(eq=False)
class _Side:
    """The rows, or columns, of a fit; `points` are the prior means of their factors."""

    entries: kernels.CsrArrays
    penalty: Floats
    factors: Floats
    ridge: FeatureRidge | None
    prior: FeatureMap | None = None
    points: Floats | None = None
    in_blocks: bool = False
    nonnegative: bool = False
    zeros: kernels.CsrArrays | None = None

    def solve(
        self,
        other: _Side,
        unobserved_weight: float,
    ) -> float:
        """Solve for the factors; return the sum of errors and of this side's penalties."""
        columns = other.factors
        gram = _gram(columns, unobserved_weight)
        if self.ridge is None and other.ridge is None and not self.nonnegative:
            # Rotated factors are equivalent. Rows with few entries are faster to solve with a
            # diagonal Gram matrix.
            values, axes = _principal_axes(gram)
            columns[:] = kernels.multiply(columns, axes)
            if self.in_blocks:
                self.factors[:] = kernels.multiply(self.factors, axes)
                return self._solve_blocks(columns, values)
            gram = np.diag(values).astype(columns.dtype)
        prior = None if self.points is None else self.penalty[:, None] * self.points
        right = _with_zeros(prior, self.zeros, columns)
        objective = kernels.implicit_half_sweep(
            self.entries,
            columns,
            gram=gram,
            penalty=self.penalty,
            factors=self.factors,
            right=right,
            nonnegative=self.nonnegative,
        )
        total = math.fsum(objective)
        if self.points is not None:
            # The kernel leaves out the constant term of the penalty.
            total += _penalty(self.points, self.penalty)
        if self.zeros is not None:
            # z (1 - s)^2 + 2 z s = z + z s^2
            total -= float(self.zeros.data.sum(dtype=np.float64))
        return total

    def _solve_blocks(
        self,
        others: Floats,
        values: Float64s,
    ) -> float:
        """Solve for one block of factors after the other, the rest fixed; return as `solve`."""
        blocks = [*kernels.pieces(others.shape[1], _BLOCK)]
        residual = np.ones_like(self.entries.data)
        for block in blocks:
            # Vectors end with a bias, which is zero here.
            rows = np.pad(self.factors[:, block], ((0, 0), (0, 1)))
            right = np.pad(others[:, block], ((0, 0), (0, 1)))
            residual -= kernels.csr_entries(self.entries, rows, right)
        residual *= np.sqrt(self.entries.data)
        for block in blocks[::-1]:  # the strongest directions first
            factors = np.ascontiguousarray(self.factors[:, block])
            objective = kernels.implicit_half_sweep(
                self.entries,
                np.ascontiguousarray(others[:, block]),
                gram=np.diag(values[block]),
                penalty=self.penalty,
                factors=factors,
                residual=residual,
            )
            self.factors[:, block] = factors
        # The minimum of the last block includes the errors of all blocks, but only its penalties.
        fixed = self.factors[:, _BLOCK:]
        total = math.fsum(objective) + _penalty(fixed, self.penalty)
        return total + float(column_dots(fixed, fixed) @ values[_BLOCK:])

    def learn(self) -> None:
        """Fit the map from features to the factors, zero for rows without interactions."""
        if self.ridge is None:
            return
        weight = self.ridge.weight
        shares = self.ridge.fit(self.factors)
        mean = weighted_mean(weight, self.factors)
        self.points = (shares + mean.astype(shares.dtype)) * weight[:, None]
        prior = self.ridge.map(mean)
        self.prior = prior._replace(mean=prior.mean.astype(shares.dtype))

    def penalties(self) -> float:
        off = self.factors if self.points is None else self.factors - self.points
        return _penalty(off, self.penalty)


def _with_zeros(
    right: Floats | None,
    zeros: kernels.CsrArrays | None,
    columns: Floats,
) -> Floats | None:
    """Return the right-hand sides less the shares of entries whose target is 0.

    The kernel takes the target 1 for all entries, which adds z m_i for each.
    """
    if zeros is None:
        return right
    shares = kernels.csr_matmat(zeros, columns)
    return -shares if right is None else right - shares


def blocks_are_faster(counts: Sequence[Int64s], k: int) -> bool:
    """Return whether blocks of k factors lower the objective sooner than exact solutions.

    `counts` are the numbers of entries of each row, and of each column. Blocks pay for long
    histories only: a row with few entries needs only as many equations as it has entries.
    """
    exact = blocks = 0.0
    for row_counts in counts:
        n = row_counts.astype(np.float64)
        exact += np.where(1.5 * n <= k, n**2 * k + n**3 / 3, n * k**2 + k**3 / 3).sum()
        blocks += k * (n * _BLOCK + _BLOCK**2 / 3).sum()
    return bool(exact > _BLOCK_GAIN * blocks)


def solve_interactions(
    weights: kernels.CsrArrays,
    column_factors: Floats,
    *,
    regularization: float,
    unobserved_weight: float,
    count_power: float = 1.0,
    points: Floats | None = None,
    known: Masks | None = None,
    zeros: kernels.CsrArrays | None = None,
    whole: tuple[Float64s, int] | None = None,
    nonnegative: bool = False,
    threads: int | None = None,
) -> Floats:
    """Solve for rows against fixed columns: a half-sweep of `implicit_sweeps`, or a fold-in.

    Takes column factors of shape (m, k) and returns row factors of shape (n, k). The result of a
    row is the same to the bit whichever rows are solved with it, on any number of threads. Rows
    with fewer entries than factors are solved faster if the column factors are
    `in_principal_axes`. `points` are the prior means of the rows, shape (n, k), by default zero.
    Columns that are not `known`, shape (m,), are left out of the pairs. `zeros` has the entries of
    `weights` whose target is 0. If the columns given are a
    subset, `whole` has the Gram matrix of the factors of all columns, and their number. With
    `nonnegative`, no row factor is negative.
    """
    m, k = column_factors.shape
    used = np.ascontiguousarray(column_factors)
    n_others = m
    if known is not None:
        used = used * known[:, None]
        n_others = int(np.count_nonzero(known))
    with kernels.at_most(threads):
        if whole is None:
            gram = _gram(used, unobserved_weight)
        else:
            gram = used.dtype.type(unobserved_weight) * whole[0].astype(used.dtype)
            n_others = whole[1]
        diagonal = np.diag(np.diag(gram))
        rounding = _ROUNDING * np.finfo(gram.dtype).eps * diagonal.max()
        if np.abs(gram - diagonal).max() <= rounding:
            gram = diagonal
        penalty = _penalties(
            weights, m, n_others, regularization, unobserved_weight, count_power
        )
        factors = kernels.aligned_zeros((len(weights.indptr) - 1, k), used.dtype)
        prior = None if points is None else penalty[:, None] * points
        right = _with_zeros(prior, zeros, used)
        kernels.implicit_half_sweep(
            weights,
            used,
            gram=gram,
            penalty=penalty,
            factors=factors,
            right=right,
            nonnegative=nonnegative,
        )
    return factors


def in_principal_axes(factors: Floats) -> Floats:
    """Rotate factors, shape (n, k), to a diagonal Gram matrix with ascending entries.

    Scores don't change if the factors of the other side are solved for again. `solve_interactions`
    is faster with a diagonal Gram matrix.
    """
    return kernels.multiply(factors, _principal_axes(_gram(factors, 1.0))[1])


def _principal_axes(gram: Floats) -> tuple[Float64s, Float64s]:
    """Return the eigenvalues in ascending order, none negative, and the eigenvectors."""
    with kernels.one_blas_thread():
        values, axes = np.linalg.eigh(gram.astype(np.float64))
    return np.maximum(values, 0), axes


def _gram(factors: Floats, weight: float) -> Floats:
    """Return ``weight * factors.T @ factors``, the same to the bit on any number of threads."""
    return kernels.coefficients(factors, factors) * factors.dtype.type(weight)


def _penalties(
    side: kernels.CsrArrays,
    n_columns: int,
    others: int,
    regularization: float,
    unobserved: float,
    power: float,
) -> Floats:
    """Return the penalty of each row by its total weight, for `others` known columns."""
    totals = kernels.csr_matmat(side, np.ones((n_columns, 1), side.data.dtype))[:, 0]
    penalties: Floats = regularization * (totals + unobserved * others) ** power
    return penalties


def _penalty(factors: Floats, penalty: Floats) -> float:
    return float(row_dots(factors, factors) @ penalty)

"""Non-negative factors of a matrix whose entries are all known, zeros of sparse data included."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse

from lowrank import kernels
from lowrank.arguments import as_operator
from lowrank.svd import ConvergenceWarning, truncated_svd

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lowrank.kernels import Floats
    from lowrank.operators import MatrixOperator

_CHUNK = 1 << 17  # entries converted to float64 at once
_START_TOL = 0.01  # tolerance of the SVD that the factors start from
_PASSES = 2  # of coordinate descent after each product with the matrix
# Sweeps after which the starts with the lowest objectives go on, and their number.
_TRIALS = ((10, 2), (10, 1))
_ROTATIONS = 2  # starts from random rotations


FIRST_STEP, LONGER, SHORTER = 0.5, 1.1, 0.5
"""Length of the extrapolation, and its factors where it was short enough, and too long."""


@dataclass(frozen=True, eq=False)
class Penalties:
    """Penalties of the squares of the factors of each row and of each column."""

    rows: float = 0.0
    columns: float = 0.0

    @classmethod
    def of(cls, X: Any, regularization: float) -> Penalties:
        """Return the penalties of `als_sweeps` without biases, where all entries are known."""
        n, m = X.shape
        size = math.sqrt(sum_of_squares(X) / (n * m))
        return cls(
            rows=regularization * size * math.sqrt(m),
            columns=regularization * size * math.sqrt(n),
        )


@dataclass(frozen=True, eq=False)
class FullMatrix:
    """A matrix of shape (n, m), the sum of its squares, and the penalties of its factors."""

    operator: MatrixOperator
    squares: float
    penalties: Penalties

    def improve(self, W: Floats, H: Floats) -> float:
        """Improve factors (n, k), then (m, k), in place; return the objective."""
        penalties = self.penalties
        products = np.ascontiguousarray(self.operator.matmat(H))
        gram = _with_penalty(kernels.coefficients(H, H), penalties.rows)
        kernels.nonnegative_descent(gram, products, W, passes=_PASSES)
        of_rows = kernels.coefficients(W, W)
        products = np.ascontiguousarray(self.operator.rmatmat(W))
        gram = _with_penalty(of_rows, penalties.columns)
        kernels.nonnegative_descent(gram, products, H, passes=_PASSES)
        of_columns = kernels.coefficients(H, H)
        # |X - W H'|^2 = |X|^2 - 2 <X'W, H> + <W'W, H'H>
        fitted = float(np.einsum("ij,ij->", products, H, dtype=np.float64))
        squares = float(np.einsum("ij,ij->", of_rows, of_columns, dtype=np.float64))
        penalty = penalties.rows * float(np.trace(of_rows, dtype=np.float64))
        penalty += penalties.columns * float(np.trace(of_columns, dtype=np.float64))
        return 0.5 * (self.squares - 2 * fitted + squares + penalty)


class NonnegativeFit:
    r"""Non-negative factors of all entries of a matrix, improved by one sweep at a time.

    A sweep lowers over :math:`W, H \ge 0`

    .. math:: \tfrac12 \|X - W H'\|_F^2 + \tfrac12 \lambda_r \|W\|_F^2
              + \tfrac12 \lambda_c \|H\|_F^2

    by passes of coordinate descent over W, then over H, which need one product with X each. It
    starts from factors that are extrapolated along the previous sweep, or, if the objective would
    rise, from the factors themselves. So the objective never rises.

    Attributes
    ----------
    row_factors, column_factors : ndarrays of shape (n, k) and (m, k)
        The matrices W and H.
    objectives : list of float
        The objective after each sweep.

    References
    ----------
    Cichocki and Phan (2009), "Fast local algorithms for large scale nonnegative matrix and tensor
    factorizations".
    Ang and Gillis (2019), "Accelerating nonnegative matrix factorization algorithms using
    extrapolation".
    """

    def __init__(self, matrix: FullMatrix, W: Floats, H: Floats) -> None:
        self.row_factors, self.column_factors = W, H
        self.objectives: list[float] = []
        self._matrix = matrix
        self._step = FIRST_STEP
        self._previous = W, H

    def sweep(self) -> float:
        """Improve the factors; return the objective."""
        W = self._extrapolated(self.row_factors, self._previous[0])
        H = self._extrapolated(self.column_factors, self._previous[1])
        objective = self._matrix.improve(W, H)
        if self.objectives and objective > self.objectives[-1]:
            W, H = self.row_factors.copy(), self.column_factors.copy()
            objective = min(self._matrix.improve(W, H), self.objectives[-1])
            self._step *= SHORTER
        else:
            self._step = min(1.0, self._step * LONGER)
        self._previous = self.row_factors, self.column_factors
        self.row_factors, self.column_factors = W, H
        self.objectives.append(max(objective, 0.0))
        return self.objectives[-1]

    def _extrapolated(self, factors: Floats, previous: Floats) -> Floats:
        further: Floats = factors + factors.dtype.type(self._step) * (
            factors - previous
        )
        return np.maximum(further, 0)


def best_fit(
    X: Any, k: int, *, penalties: Penalties, max_iter: int, random_state: int = 0
) -> NonnegativeFit:
    """Return the most promising of several fits after a few sweeps, at most `max_iter`.

    X is an ndarray or csr_array of shape (n, m), float32 or float64, without negative entries. A
    sparse matrix never becomes dense.
    """
    matrix = FullMatrix(as_operator(X), sum_of_squares(X), penalties)
    fits = [NonnegativeFit(matrix, W, H) for W, H in starts(X, k, random_state)]
    for sweeps, kept in _TRIALS:
        for fit in fits:
            for _ in range(min(sweeps, max_iter - len(fit.objectives))):
                fit.sweep()
        fits = sorted(fits, key=lambda fit: fit.objectives[-1])[:kept]
    return fits[0]


def starts(X: Any, k: int, random_state: int) -> Iterator[tuple[Floats, Floats]]:
    """Yield starting factors of shapes (n, k) and (m, k), made of the k leading singular triplets.

    They are the larger of the positive and the negative part of each pair of vectors, the same with
    noise of the size of the mean entry, and the absolute values of random rotations of all pairs.

    References
    ----------
    Boutsidis and Gallopoulos (2008), "SVD based initialization: a head start for nonnegative matrix
    factorization".
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        U, s, Vt = truncated_svd(X, k, tol=_START_TOL, random_state=random_state)
    rng = np.random.default_rng(random_state)
    dtype = U.dtype
    parts = larger_parts(U, s, np.ascontiguousarray(Vt.T))
    # A product of numbers of this size in all k factors is as large as an entry.
    mean = float(X.mean(dtype=np.float64))
    size = dtype.type(math.sqrt(max(mean, 0.0) / k))
    yield parts
    noisy = [
        factors + size * rng.random(factors.shape).astype(dtype) for factors in parts
    ]
    yield noisy[0], noisy[1]
    root = np.sqrt(s)
    for _ in range(_ROTATIONS):
        rotation = np.linalg.qr(rng.standard_normal((k, k)))[0].astype(dtype)
        yield np.abs((U * root) @ rotation), np.abs((Vt.T * root) @ rotation)


def larger_parts(U: Floats, s: Floats, V: Floats) -> tuple[Floats, Floats]:
    """Return for each triplet the positive or the negative parts of both vectors, as positive.

    Of u and v, the pair with the larger product of norms is kept, and scaled by the root of this
    product times s. Pairs without one are zero.
    """
    pairs = [(np.maximum(sign * U, 0), np.maximum(sign * V, 0)) for sign in (1, -1)]
    lengths = [[np.linalg.norm(part, axis=0) for part in pair] for pair in pairs]
    sizes = [rows * columns for rows, columns in lengths]
    is_positive = sizes[0] >= sizes[1]
    scale = np.sqrt(s * np.maximum(sizes[0], sizes[1]))
    factors: list[Floats] = []
    for side in (0, 1):
        part = np.where(is_positive, pairs[0][side], pairs[1][side])
        length = np.where(is_positive, lengths[0][side], lengths[1][side])
        factors.append(
            np.ascontiguousarray(part * (scale / np.where(length > 0, length, 1)))
        )
    return factors[0], factors[1]


def solve_nonnegative_rows(X: Any, column_factors: Floats, penalty: float) -> Floats:
    """Return the best non-negative factors of each row for fixed columns, shape (n, k)."""
    n, k = X.shape[0], column_factors.shape[1]
    dtype = column_factors.dtype
    factors = kernels.aligned_zeros((n, k), dtype)
    no_entries = kernels.CsrArrays(
        indptr=np.zeros(n + 1, np.int64),
        indices=np.zeros(0, np.int32),
        data=np.zeros(0, dtype),
    )
    kernels.implicit_half_sweep(
        no_entries,
        column_factors,
        gram=kernels.coefficients(column_factors, column_factors),
        penalty=np.full(n, penalty),
        factors=factors,
        right=as_operator(X).matmat(column_factors),
        nonnegative=True,
    )
    return factors


def sum_of_squares(X: Any) -> float:
    """Return the sum of the squares of all entries, accumulated in float64."""
    values = (X.data if is_sparse(X) else X).reshape(-1)
    parts = (
        values[part].astype(np.float64) for part in kernels.pieces(values.size, _CHUNK)
    )
    return math.fsum(float(np.einsum("i,i->", part, part)) for part in parts)


def is_sparse(X: Any) -> bool:
    """Return whether X is a matrix or array of scipy.sparse."""
    return bool(sparse.issparse(X))


def _with_penalty(gram: Floats, penalty: float) -> Floats:
    return gram + gram.dtype.type(penalty) * np.eye(len(gram), dtype=gram.dtype)

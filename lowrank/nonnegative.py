"""Non-negative factors of a matrix whose entries are all known, zeros of sparse data included."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from scipy import sparse

from lowrank import kernels
from lowrank.arguments import as_operator
from lowrank.sums import inner, sum_of_squares
from lowrank.svd import ConvergenceWarning, truncated_svd

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lowrank.kernels.arrays import Floats
    from lowrank.operators import MatrixOperator

_START_TOL = 0.01  # tolerance of the SVD that the factors start from
_PASSES = 2  # of coordinate descent after each product with the matrix
# Sweeps after which the starts with the lowest objectives go on, and their number.
_TRIALS = ((10, 2), (10, 1))
_ROTATIONS = 2  # starts from random rotations


FIRST_STEP = 0.5
"""Length of the first extrapolation."""
LONGER = 1.1
"""Factor of the length after an extrapolation that was short enough."""
SHORTER = 0.5
"""Factor of the length after an extrapolation that was too long."""


@dataclass(frozen=True, eq=False)
class FullMatrix:
    """A matrix X of shape (n, m), and the penalties of the squares of its factors.

    `squares` is the sum of the squares of all entries.
    """

    operator: MatrixOperator
    squares: float
    row_penalty: float
    column_penalty: float

    @classmethod
    def of(
        cls,
        X: Any,
        regularization: float,
    ) -> Self:
        """Return a matrix with the penalties of `als_sweeps` without biases."""
        n, m = X.shape
        squares = sum_of_squares(X.data if is_sparse(X) else X)
        penalty = regularization * math.sqrt(squares / (n * m))
        return cls(
            operator=as_operator(X),
            squares=squares,
            row_penalty=penalty * math.sqrt(m),
            column_penalty=penalty * math.sqrt(n),
        )

    def improve(
        self,
        W: Floats,
        H: Floats,
    ) -> float:
        """Improve factors (n, k), then (m, k), in place; return the objective."""
        products = np.ascontiguousarray(self.operator.matmat(H))
        gram = _with_penalty(kernels.coefficients(H, H), self.row_penalty)
        kernels.nonnegative_descent(gram, products, W, passes=_PASSES)
        of_rows = kernels.coefficients(W, W)
        products = np.ascontiguousarray(self.operator.rmatmat(W))
        gram = _with_penalty(of_rows, self.column_penalty)
        kernels.nonnegative_descent(gram, products, H, passes=_PASSES)
        of_columns = kernels.coefficients(H, H)
        # |X - W H'|^2 = |X|^2 - 2 <X'W, H> + <W'W, H'H>
        squares = self.squares
        squares -= 2 * inner(products, H)
        squares += inner(of_rows, of_columns)
        penalty = self.row_penalty * float(np.trace(of_rows, dtype=np.float64))
        penalty += self.column_penalty * float(np.trace(of_columns, dtype=np.float64))
        return 0.5 * (squares + penalty)


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

    def __init__(
        self,
        matrix: FullMatrix,
        W: Floats,
        H: Floats,
    ) -> None:
        self.row_factors = W
        self.column_factors = H
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
            W = self.row_factors.copy()
            H = self.column_factors.copy()
            # What it rises from the factors themselves is rounding.
            objective = min(self._matrix.improve(W, H), self.objectives[-1])
            self._step *= SHORTER
        else:
            self._step = min(1.0, self._step * LONGER)
        self._previous = self.row_factors, self.column_factors
        self.row_factors = W
        self.column_factors = H
        self.objectives.append(max(objective, 0.0))
        return self.objectives[-1]

    def _extrapolated(
        self,
        factors: Floats,
        previous: Floats,
    ) -> Floats:
        step = factors.dtype.type(self._step)
        extrapolated: Floats = factors + step * (factors - previous)
        return np.maximum(extrapolated, 0)


def best_fit(
    X: Any,
    k: int,
    *,
    regularization: float,
    max_iter: int,
    random_state: int = 0,
) -> NonnegativeFit:
    """Return the most promising of several fits after a few sweeps, at most `max_iter`.

    X is an ndarray or csr_array of shape (n, m), float32 or float64, without negative entries. A
    sparse matrix never becomes dense.
    """
    matrix = FullMatrix.of(X, regularization)
    first_factors = starts(X, k, random_state)
    fits = [NonnegativeFit(matrix, W, H) for W, H in first_factors]
    for n_sweeps, n_best in _TRIALS:
        for fit in fits:
            for _ in range(min(n_sweeps, max_iter - len(fit.objectives))):
                fit.sweep()
        fits = sorted(fits, key=lambda fit: fit.objectives[-1])[:n_best]
    return fits[0]


def starts(
    X: Any,
    k: int,
    random_state: int,
) -> Iterator[tuple[Floats, Floats]]:
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
    V = Vt.T
    W, H = larger_parts(U, s, V)
    # A product of numbers of this size in all k factors is as large as an entry.
    mean = float(X.mean(dtype=np.float64))
    size = dtype.type(math.sqrt(max(mean, 0.0) / k))
    yield W, H
    row_noise = size * rng.random(W.shape).astype(dtype)
    column_noise = size * rng.random(H.shape).astype(dtype)
    yield W + row_noise, H + column_noise
    root = np.sqrt(s)
    for _ in range(_ROTATIONS):
        Q, _ = np.linalg.qr(rng.standard_normal((k, k)))
        rotation = Q.astype(dtype)
        yield np.abs((U * root) @ rotation), np.abs((V * root) @ rotation)


def larger_parts(
    U: Floats,
    s: Floats,
    V: Floats,
) -> tuple[Floats, Floats]:
    """Return for each triplet the positive or the negative parts of both vectors, as positive.

    Of u and v, the pair with the larger product of norms is kept, and scaled by the root of this
    product times s. Pairs without one are zero.
    """
    positive_U = np.maximum(U, 0)
    positive_V = np.maximum(V, 0)
    negative_U = np.maximum(-U, 0)
    negative_V = np.maximum(-V, 0)
    positive = _norms(positive_U) * _norms(positive_V)
    negative = _norms(negative_U) * _norms(negative_V)
    is_positive = positive >= negative
    lengths = np.sqrt(s * np.maximum(positive, negative))
    rows = np.where(is_positive, positive_U, negative_U)
    columns = np.where(is_positive, positive_V, negative_V)
    return _with_lengths(rows, lengths), _with_lengths(columns, lengths)


def _with_lengths(vectors: Floats, lengths: Floats) -> Floats:
    """Return columns scaled to the given lengths."""
    norms = _norms(vectors)
    factors = lengths / np.where(norms > 0, norms, 1)
    return np.ascontiguousarray(vectors * factors)


def _norms(vectors: Floats) -> Floats:
    """Return the lengths of columns."""
    norms: Floats = np.linalg.norm(vectors, axis=0)
    return norms


def solve_nonnegative_rows(
    X: Any,
    column_factors: Floats,
    penalty: float,
) -> Floats:
    """Return the best non-negative factors of each row for fixed columns, shape (n, k)."""
    n = X.shape[0]
    dtype = column_factors.dtype
    factors = kernels.aligned_zeros((n, column_factors.shape[1]), dtype)
    # All entries are in the Gram matrix and the right-hand sides.
    no_entries = kernels.csr_arrays(
        sparse.csr_array((n, len(column_factors)), dtype=dtype)
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


def is_sparse(X: Any) -> bool:
    """Return whether X is a matrix or array of scipy.sparse."""
    return bool(sparse.issparse(X))


def _with_penalty(gram: Floats, penalty: float) -> Floats:
    total = gram.copy()
    total[np.diag_indices_from(total)] += gram.dtype.type(penalty)
    return total

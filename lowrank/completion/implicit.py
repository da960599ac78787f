"""Alternating least squares over all entries of a sparse matrix of interactions."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lowrank import kernels
from lowrank.completion.als import check_problem
from lowrank.errors import ArgumentError

if TYPE_CHECKING:
    from scipy.sparse import csr_array

__all__ = ["ImplicitSweep", "implicit_sweeps", "solve_interactions"]

Floats = NDArray[np.floating[Any]]

_START = 0.1  # expected length of a factor to start from


@dataclass(frozen=True, eq=False)
class ImplicitSweep:
    """The state after one sweep: rows solved, then columns.

    The factors have shapes (n, k) and (m, k); their arrays are reused by the next sweep.
    `half_objective` and `objective` are after the rows and after the columns were solved.
    """

    row_factors: Floats
    column_factors: Floats
    half_objective: float
    objective: float


def implicit_sweeps(
    W: csr_array,
    k: int,
    *,
    regularization: float,
    unobserved_weight: float,
    count_power: float = 1.0,
    start: Floats | None = None,
    random_state: int | None = 0,
    threads: int | None = None,
) -> Iterator[ImplicitSweep]:
    r"""Fit factors whose products are 1 at interactions and 0 elsewhere, one sweep at a time.

    Minimises, over the factors of the rows and columns of a sparse matrix of weights w,

    .. math:: \sum_{(u,i)} w_{ui} (1 - a_u \cdot m_i)^2 + \alpha_0 \sum_{u,i} (a_u \cdot m_i)^2
              + \lambda \sum_u p_u |a_u|^2 + \lambda \sum_i q_i |m_i|^2

    where the first sum is over the stored entries and the second over all, by solving for all
    :math:`a_u`, then for all :math:`m_i`, each exactly. The objective never rises. A sweep takes
    time in proportion to the stored entries, since the second sum needs the other side's Gram
    matrix alone. For a row of total weight :math:`w_u`, :math:`p_u = (w_u + \alpha_0 m)^g`.

    Parameters
    ----------
    W : csr_array of shape (n, m), float32 or float64
        Weights of the interactions, not negative. Sorted indices, no duplicates.
    k : int
        Number of factors.
    regularization, unobserved_weight : float
        The positive numbers lambda and alpha_0.
    count_power : float
        The exponent g: 0 is plain ridge.
    start : ndarray of shape (m, k), optional
        Column factors to begin with, instead of random ones.
    random_state : int, optional
        Seed of the starting factors.
    threads : int, optional
        All available cores by default; the result is the same on any number.

    Yields
    ------
    ImplicitSweep
        After each sweep, without end.

    Raises
    ------
    ArgumentError
        As `check_problem`; or if a weight is negative, or `start` does not fit the shape of W.

    References
    ----------
    Hu, Koren and Volinsky (2008), "Collaborative filtering for implicit feedback datasets".
    Rendle, Krichene, Zhang and Koren (2022), "Revisiting the performance of iALS on item
    recommendation benchmarks", section 3.
    """
    check_problem(W, k, regularization=regularization, unobserved_weight=unobserved_weight)
    if W.data.min() < 0:
        raise ArgumentError(f"Weights must not be negative; got {W.data.min()}.")
    (n, m), dtype = W.shape, W.dtype
    if start is None:
        deviation = dtype.type(_START / math.sqrt(k))
        start = np.random.default_rng(random_state).standard_normal((m, k), dtype) * deviation
    elif start.shape != (m, k):
        raise ArgumentError(f"start must have shape {(m, k)}; got {start.shape}.")
    both = kernels.csr_arrays(W), kernels.csr_arrays(W.T.tocsr())
    row_penalty, column_penalty = (
        _penalties(side, others, regularization, unobserved_weight, count_power)
        for side, others in zip(both, (m, n), strict=True)
    )
    rows, columns = kernels.aligned_zeros((n, k), dtype), kernels.aligned_zeros((m, k), dtype)
    columns[:] = start

    def solved(side: int, known: Floats, penalty: Floats, factors: Floats) -> float:
        gram = _gram(known, unobserved_weight, threads)
        options: dict[str, Any] = {"penalty": penalty, "factors": factors, "threads": threads}
        return math.fsum(kernels.implicit_half_sweep(both[side], known, gram=gram, **options))

    while True:
        half = solved(0, columns, row_penalty, rows) + _penalty(columns, column_penalty)
        whole = solved(1, rows, column_penalty, columns) + _penalty(rows, row_penalty)
        yield ImplicitSweep(rows, columns, half, whole)


def solve_interactions(
    weights: kernels.CsrArrays,
    column_factors: Floats,
    *,
    regularization: float,
    unobserved_weight: float,
    count_power: float = 1.0,
    threads: int | None = None,
) -> Floats:
    """Solve for rows against fixed columns: a half-sweep of `implicit_sweeps`, or a fold-in.

    Factors of shape (m, k) in, of shape (n, k) out: for each row the same bits whichever rows are
    solved with it, on any number of threads.
    """
    m, k = column_factors.shape
    known = np.ascontiguousarray(column_factors)
    factors = kernels.aligned_zeros((len(weights.indptr) - 1, k), known.dtype)
    kernels.implicit_half_sweep(
        weights,
        known,
        gram=_gram(known, unobserved_weight, threads),
        penalty=_penalties(weights, m, regularization, unobserved_weight, count_power),
        factors=factors,
        threads=threads,
    )
    return factors


def _gram(factors: Floats, weight: float, threads: int | None) -> Floats:
    """Return ``weight * factors' factors``, the same bits on any number of threads."""
    return kernels.coefficients(factors, factors, threads=threads) * factors.dtype.type(weight)


def _penalties(
    side: kernels.CsrArrays, others: int, regularization: float, unobserved: float, power: float
) -> Floats:
    """Return the penalty of each row, by its total weight."""
    totals = kernels.csr_matmat(side, np.ones((others, 1), side.data.dtype))[:, 0]
    penalties: Floats = regularization * (totals + unobserved * others) ** power
    return penalties


def _penalty(factors: Floats, penalty: Floats) -> float:
    return float(np.einsum("ij,ij->i", factors, factors, dtype=np.float64) @ penalty)

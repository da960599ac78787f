"""Inner loops of Bayesian fits: the posteriors of rows, and of processes in time."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lowrank.kernels import Coded, Floats, Int64s, backends, parts, resolve_threads


class RowPosteriors(NamedTuple):
    """Results of `posterior_half_sweep`, one float64 number per row in each.

    `objective` is sum_i (x_ui - shift - c_i)^2 + C_cc - r' A^-1 r, the least penalised sum of
    squares up to the prior's constant term; `log_det` is log det A.
    """

    objective: NDArray[np.float64]
    log_det: NDArray[np.float64]


def posterior_half_sweep(
    matrix: Coded,
    other: Floats,
    *,
    prior: Floats,
    weight: Floats,
    prior_right: Floats,
    vectors: Floats,
    shift: float = 0.0,
    noise_variance: float = 1.0,
    covariance: Floats | None = None,
    draws: Floats | None = None,
    invert: bool = True,
    threads: int | None = None,
) -> RowPosteriors:
    r"""Solve the Gaussian posterior of every row of a sparse matrix against fixed columns.

    A vector has k factors followed by a bias. For each row u with entries :math:`x_{ui}`, columns
    :math:`(m_i, c_i)` and :math:`z_i = (m_i, 1)`, `vectors` receives :math:`w = A^{-1} r` with

    .. math:: A = \sum_i z_i z_i' + C^{mm}_u + \text{weight}_u P, \qquad
              r = \sum_i z_i (x_{ui} - \text{shift} - c_i) - C^{mc}_u + r^0_u

    where :math:`C_u` is the sum over the row's entries of the covariances of their columns'
    vectors.

    Parameters
    ----------
    matrix, shift
        As in `als_half_sweep`.
    other : ndarray of shape (n_cols, k + 1), float32 or float64
        The fixed vectors; their dtype is the working dtype.
    prior, weight : ndarrays of shape (k + 1, k + 1) and (n_rows,)
        The matrix P, the prior precision times the noise variance, and its factor for each row.
    prior_right : ndarray of shape (n_rows, k + 1)
        The prior's right-hand side r0: weight times P times the prior mean.
    vectors : ndarray of shape (n_rows, k + 1)
        Output: the posterior means w, or draws.
    noise_variance : float
        Factor of the covariances.
    covariance : ndarray of shape (n_rows, (k + 1)(k + 2) / 2), optional
        In: C_u as an upper triangle by rows. Out: ``noise_variance * inv(A)``, packed the same way.
        Without it C is zero and no inverse is computed.
    invert : bool
        If false, no inverse is computed either, and `covariance` stays as it is.
    draws : ndarray of shape (n_rows, k + 1), optional
        Standard normal numbers times the noise's standard deviation: with the Cholesky factor
        A = R'R, R^-1 times them is added to w, which makes it a draw from the posterior.
    """
    dtype, none = other.dtype, np.empty((0, 0), other.dtype)  # for the kernel, instead of None
    result = RowPosteriors(np.empty(len(vectors)), np.empty(len(vectors)))
    backends.active.posterior_half_sweep(
        *parts(matrix),
        other,
        float(shift),
        np.ascontiguousarray(prior, dtype),
        np.ascontiguousarray(weight, dtype),
        np.ascontiguousarray(prior_right, dtype),
        float(noise_variance),
        none if draws is None else np.ascontiguousarray(draws, dtype),
        none if covariance is None else covariance,
        vectors,
        *result,
        resolve_threads(threads),
        invert,
    )
    return result


def drift_smooth(
    indptr: Int64s,
    gaps: Floats,
    data: Floats,
    *,
    noise: float,
    variance: float,
    scale: float,
    threads: int | None = None,
) -> tuple[Floats, Floats, float]:
    r"""Smooth one Ornstein-Uhlenbeck process for each row, observed with noise in order of time.

    Processes are independent, of mean zero, and at a distance t in time have the covariance
    :math:`v e^{-t / \ell}`.

    Parameters
    ----------
    indptr : int64 ndarray of shape (n_rows + 1,)
        The observations of row r are at positions indptr[r]:indptr[r + 1].
    gaps, data : ndarrays of shape (nnz,), float32 or float64
        Time since the row's observation before, and what was observed.
    noise, variance, scale : float
        Variance of an observation around the process, v and the positive l.

    Returns
    -------
    means, variances : ndarrays of shape (nnz,)
        Of the process at each observation, given all observations of the row.
    evidence : float
        Logarithm of the density of the data, without the constant
        :math:`-\tfrac12 \log 2 \pi \text{noise}` for each observation.
    """
    means, variances = np.empty_like(data), np.empty_like(data)
    evidence = np.empty(len(indptr) - 1)
    process = float(noise), float(variance), float(scale)
    out = means, variances, evidence
    backends.active.drift_smooth(indptr, gaps, data, *process, *out, resolve_threads(threads))
    return means, variances, math.fsum(evidence)


def drift_evidence(
    indptr: Int64s, gaps: Floats, data: Floats, *, noise: float, variance: float, scale: float
) -> float:
    """Return the evidence of `drift_smooth` alone, which takes half of the time."""
    out = data[:0].copy(), data[:0].copy(), np.empty(len(indptr) - 1)
    process = float(noise), float(variance), float(scale)
    backends.active.drift_smooth(indptr, gaps, data, *process, *out, resolve_threads(None))
    return math.fsum(out[-1])

"""Inner loops of Bayesian fits: the posteriors of rows, and of processes in time."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from lowrank.kernels import Coded, backends, parts, resolve_threads
from lowrank.kernels.arrays import Float64s, Floats, Int64s


class RowPosteriors(NamedTuple):
    """Results of `posterior_half_sweep`: float64 arrays with one number per row.

    `objective` is sum_i (x_ui - shift - c_i)^2 + C_cc - r' A^-1 r, the minimum of the penalised sum
    of squares without the constant term of the prior. `log_det` is log det A.
    """

    objective: Float64s
    log_det: Float64s


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
    invert: bool = True,
    threads: int | None = None,
) -> RowPosteriors:
    r"""Compute the Gaussian posterior of every row of a sparse matrix given fixed columns.

    A vector has k factors followed by a bias. For each row u with entries :math:`x_{ui}`, columns
    :math:`(m_i, c_i)` and :math:`z_i = (m_i, 1)`, `vectors` receives :math:`w = A^{-1} r` with

    .. math:: A = \sum_i z_i z_i' + C^{mm}_u + \text{weight}_u P, \qquad
              r = \sum_i z_i (x_{ui} - \text{shift} - c_i) - C^{mc}_u + r^0_u

    where :math:`C_u` is the sum of the covariances of the vectors of the row's columns.

    Parameters
    ----------
    matrix, shift
        As in `als_half_sweep`.
    other : ndarray of shape (n_cols, k + 1), float32 or float64
        The fixed vectors; their dtype is the working dtype.
    prior, weight : ndarrays of shape (k + 1, k + 1) and (n_rows,)
        The matrix P, the prior precision times the noise variance, and its factor for each row.
    prior_right : ndarray of shape (n_rows, k + 1)
        The right-hand side r0 of the prior: weight times P times the prior mean.
    vectors : ndarray of shape (n_rows, k + 1)
        Output: the posterior means w.
    noise_variance : float
        Factor of the covariances.
    covariance : ndarray of shape (n_rows, (k + 1)(k + 2) / 2), optional
        Input: C_u as an upper triangle by rows. Output: ``noise_variance * inv(A)``, packed the
        same way. Without it C is zero and no inverse is computed.
    invert : bool
        If False, no inverse is computed, and `covariance` is not changed.
    """
    dtype = other.dtype
    if covariance is None:  # the kernel takes no None
        covariance = np.empty((0, 0), dtype)
    result = RowPosteriors(np.empty(len(vectors)), np.empty(len(vectors)))
    backends.active.posterior_half_sweep(
        *parts(matrix),
        other,
        float(shift),
        np.ascontiguousarray(prior, dtype),
        np.ascontiguousarray(weight, dtype),
        np.ascontiguousarray(prior_right, dtype),
        float(noise_variance),
        covariance,
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
    r"""Smooth one Ornstein-Uhlenbeck process for each row, given noisy observations in time order.

    The processes are independent, with mean zero and the covariance :math:`v e^{-t / \ell}` at two
    times t apart.

    Parameters
    ----------
    indptr : int64 ndarray of shape (n_rows + 1,)
        The observations of row r are at positions indptr[r]:indptr[r + 1].
    gaps, data : ndarrays of shape (nnz,), float32 or float64
        Time since the previous observation of the row, and the observed value.
    noise, variance, scale : float
        Variance of an observation around the process, v, and the positive time scale l.

    Returns
    -------
    means, variances : ndarrays of shape (nnz,)
        Mean and variance of the process at each observation, given all observations of the row.
    evidence : float
        Log density of the data, without the constant :math:`-\tfrac12 \log 2 \pi \text{noise}` of
        each observation.
    """
    means = np.empty_like(data)
    variances = np.empty_like(data)
    evidence = np.empty(len(indptr) - 1)
    backends.active.drift_smooth(
        indptr,
        gaps,
        data,
        float(noise),
        float(variance),
        float(scale),
        means,
        variances,
        evidence,
        resolve_threads(threads),
    )
    return means, variances, math.fsum(evidence)


def drift_evidence(
    indptr: Int64s,
    gaps: Floats,
    data: Floats,
    *,
    noise: float,
    variance: float,
    scale: float,
) -> float:
    """Return only the evidence of `drift_smooth`, in half the time."""
    # Without arrays for means, the kernel makes no backward pass.
    none = data[:0].copy()
    evidence = np.empty(len(indptr) - 1)
    backends.active.drift_smooth(
        indptr,
        gaps,
        data,
        float(noise),
        float(variance),
        float(scale),
        none,
        none,
        evidence,
        resolve_threads(None),
    )
    return math.fsum(evidence)

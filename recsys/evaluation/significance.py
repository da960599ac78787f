"""Whether two models differ: paired tests over users.

A sign-flip test: were two models alike, each user's difference could as well have the other sign.
So the sum of the differences is compared with sums under random signs. For RMSE the differences
are of the users' sums of squared errors: with what both models err together being fixed, the
difference of two RMSEs grows with that sum, so this is the test of their difference.

References
----------
Good (2005), "Permutation, parametric and bootstrap tests of hypotheses", section 3.2.
Holm (1979), "A simple sequentially rejective multiple test procedure".
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recsys.evaluation.metrics import Doubles

__all__ = ["FLIPS", "holm", "sign_flip"]

FLIPS = 9999
"""Random choices of signs; the least p value is one in 10,000."""

_BLOCK = 2**20  # signs at a time
_SURE = 9.0  # standard deviations that no sum of random signs reaches (below 6e-18)
_ROUNDING = 1e-5  # of a sum in single precision


def sign_flip(differences: Doubles, flips: int = FLIPS, seed: int = 0) -> Doubles:
    """Return the two-sided p value of each column of differences between two models.

    ``(1 + number of flips with |sum +-d| >= |sum d|) / (1 + flips)``.

    Parameters
    ----------
    differences : float64 ndarray of shape (n_users, n_tests)
        Paired: user by user, the same signs are flipped in all columns. 0 for a user to be left
        out.
    flips : int
    seed : int

    Returns
    -------
    float64 ndarray of shape (n_tests,)

    Notes
    -----
    A sum of n random signs times d_u exceeds ``t |d|`` with a probability of at most
    ``2 exp(-t^2 / 2)`` (Hoeffding), so beyond 9 no flips are tried.

    Examples
    --------
    >>> sign_flip(np.array([[1.0, 0.0], [2.0, 0.0], [3.0, 0.0], [4.0, 0.0]])).round(1)
    array([0.1, 1. ])
    """
    observed = np.abs(differences.sum(axis=0))
    scale = np.sqrt(np.square(differences).sum(axis=0))
    p_values = np.full(differences.shape[1], 1 / (flips + 1))
    p_values[scale == 0] = 1.0
    open_ones = np.flatnonzero((scale > 0) & (observed < _SURE * scale))
    if len(open_ones):
        units = (differences[:, open_ones] / scale[open_ones]).astype(np.float32)
        limit = observed[open_ones] / scale[open_ones] - _ROUNDING
        reached = _count_flips(units, limit, flips, seed)
        p_values[open_ones] = (1 + reached) / (1 + flips)
    return p_values


def holm(p_values: ArrayLike) -> Doubles:
    """Adjust p values of several tests, so that the chance of any false finding stays at the level.

    The i-th smallest of m becomes ``max over j <= i of min(1, (m - j + 1) p_(j))``.

    Parameters
    ----------
    p_values : array_like of shape (n_tests,)

    Examples
    --------
    >>> holm([0.01, 0.04, 0.03])
    array([0.03, 0.06, 0.06])
    """
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p, kind="stable")
    steps = np.minimum(1.0, (len(p) - np.arange(len(p))) * p[order])
    adjusted = np.empty_like(p)
    adjusted[order] = np.maximum.accumulate(steps)
    return adjusted


def _count_flips(
    units: NDArray[np.float32], limit: Doubles, flips: int, seed: int
) -> NDArray[np.int64]:
    """Count the random signs under which a column's sum reaches its limit."""
    n_users = len(units)
    whole = units.sum(axis=0)
    rng = np.random.default_rng(seed)
    reached = np.zeros(units.shape[1], dtype=np.int64)
    row = 4 * math.ceil(n_users / 32)  # bytes are drawn in fours
    step = max(1, _BLOCK // n_users)
    for start in range(0, flips, step):
        n = min(step, flips - start)
        bits = np.frombuffer(rng.bytes(n * row), dtype=np.uint8).reshape(n, row)
        kept = np.unpackbits(bits, axis=1, count=n_users).astype(np.float32)
        sums = 2 * (kept @ units) - whole
        reached += np.count_nonzero(np.abs(sums) >= limit, axis=0)
    return reached

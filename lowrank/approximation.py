"""Rank-k approximation in factored form, exact errors, thresholding and denoising."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from lowrank.arguments import as_operator
from lowrank.errors import (
    ArgumentError,
    check_choice,
    check_positive,
)
from lowrank.low_rank import LowRank
from lowrank.operators import MatrixOperator
from lowrank.rank import noise_unit, threshold_factor, whole_spectrum
from lowrank.svd import SVD, truncated_svd

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from lowrank.arguments import OperatorLike, RandomStateLike
    from lowrank.operators import FloatArray

_FIRST_RANK = 16  # first rank to try; it is then doubled
_METHODS = ("hard", "soft", "shrink")


def approximate(
    A: OperatorLike,
    k: int,
    *,
    method: str = "auto",
    tol: float | None = None,
    center: ArrayLike | bool | None = None,
    random_state: RandomStateLike = 0,
) -> LowRank:
    """Compute the best rank-k approximation of a matrix, ``left = U diag(s)`` and ``right = V``.

    The parameters are as in `truncated_svd`. With `center`, the centred matrix is approximated.

    Examples
    --------
    >>> import numpy as np
    >>> B = approximate(np.diag([3.0, 2.0, 1.0]), 2)
    >>> B.rank, round(B.error, 6)
    (2, 1.0)
    """
    svd = truncated_svd(
        A, k, method=method, tol=tol, center=center, random_state=random_state
    )
    return svd.matrix


def hard_threshold(
    A: SVD | OperatorLike,
    tau: float,
    *,
    random_state: RandomStateLike = 0,
) -> LowRank:
    """Keep the singular values above a threshold unchanged, and drop the others.

    Parameters
    ----------
    A : SVD, or array-like, scipy.sparse matrix or array, or LinearOperator, of shape (n, m)
        A decomposition, or a matrix whose singular values above `tau` are then computed.
    tau : float
        Non-negative threshold.
    random_state
        As in `truncated_svd`.

    Raises
    ------
    ValueError
        If `tau` is negative or not finite, or an SVD does not reach down to it.

    Examples
    --------
    >>> hard_threshold([[3.0, 0.0], [0.0, 1.0]], 2.0).toarray()
    array([[3., 0.],
           [0., 0.]])
    """
    svd = svd_down_to(A, tau, random_state)
    return _shrunk(svd, np.where(svd.s > tau, svd.s, 0))


def soft_threshold(
    A: SVD | OperatorLike,
    tau: float,
    *,
    random_state: RandomStateLike = 0,
) -> LowRank:
    """Subtract a threshold from the singular values, and set negative results to zero.

    The result minimises ||A - B||_F^2 / 2 + tau ||B||_* (the nuclear norm) over B. The parameters
    are as in `hard_threshold`.

    References
    ----------
    Cai, Candes & Shen (2010), "A singular value thresholding algorithm for matrix completion",
    theorem 2.1.
    """
    svd = svd_down_to(A, tau, random_state)
    return _shrunk(svd, np.maximum(svd.s - svd.s.dtype.type(tau), 0))


def optimal_threshold(A: OperatorLike, noise: float | None = None) -> float:
    """Return the hard threshold with the smallest asymptotic mean squared error for white noise.

    Parameters
    ----------
    A : array-like, scipy.sparse matrix or array, or LinearOperator, of shape (n, m)
        A matrix of low rank plus noise. Its entries are needed only if `noise` is not given: the
        level is then estimated from the median of all singular values, for which the smaller Gram
        matrix of a sparse A, or of dense RowBlocks with m <= n, is formed.
    noise : float, optional
        Standard deviation of the noise in each entry.

    Raises
    ------
    TypeError, ValueError
        If `noise` is negative or not finite, or if `noise` is not given and A is a LinearOperator
        or is sparse with min(n, m) > 5,000.

    References
    ----------
    Gavish & Donoho (2014), "The optimal hard threshold for singular values is 4/sqrt(3)",
    equations (3) and (5), with the median of the Marchenko-Pastur law instead of its cubic fit.
    """
    beta, unit = _aspect(as_operator(A), noise)
    return threshold_factor(beta) * unit


def denoise(
    X: OperatorLike,
    noise: float | None = None,
    *,
    method: str = "shrink",
    random_state: RandomStateLike = 0,
) -> LowRank:
    """Estimate a low-rank matrix from an observation with white noise.

    Parameters
    ----------
    X : array-like, scipy.sparse matrix or array, or LinearOperator, of shape (n, m)
        Low-rank signal plus independent noise with mean 0 in each entry.
    noise : float, optional
        Standard deviation of the noise; by default estimated as in `optimal_threshold`.
    method : {"shrink", "hard", "soft"}, default "shrink"
        "hard" keeps the singular values above `optimal_threshold`. "shrink" also corrects their
        inflation by the noise; for the Frobenius error it is the asymptotically optimal function of
        the singular values. "soft" subtracts the largest singular value of the noise.
    random_state
        As in `truncated_svd`.

    Raises
    ------
    TypeError, ValueError
        As `optimal_threshold`, or if the method is unknown.

    References
    ----------
    Gavish & Donoho (2017), "Optimal shrinkage of singular values", equation (7).

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> Z = 3 * np.outer(rng.normal(size=80), rng.normal(size=60))
    >>> B = denoise(Z + rng.normal(size=Z.shape))
    >>> B.rank, bool(B.distance_to(Z) < 0.25 * 80 * 60**0.5)
    (1, True)
    """
    check_choice(method, _METHODS)
    matrix = as_operator(X)
    beta, unit = _aspect(matrix, noise)
    if method == "hard":
        return hard_threshold(
            matrix, threshold_factor(beta) * unit, random_state=random_state
        )
    # Edges of the singular values of the noise.
    low = (1 - math.sqrt(beta)) * unit
    high = (1 + math.sqrt(beta)) * unit
    if method == "soft":
        return soft_threshold(matrix, high, random_state=random_state)
    svd = svd_down_to(matrix, high, random_state)
    # sqrt((y^2 - beta - 1)^2 - 4 beta) / y with y = s / unit, in factors that cannot overflow
    above = svd.s.astype(np.float64)
    above = above[above > high]
    factors = (1 - (high / above) ** 2) * (1 - (low / above) ** 2)
    return _shrunk(svd, above * np.sqrt(np.maximum(factors, 0)))


def _aspect(matrix: MatrixOperator, noise: float | None) -> tuple[float, float]:
    """Return beta = min(n, m) / max(n, m) and sqrt(max(n, m)) sigma."""
    if noise is not None:
        check_positive(noise, "noise", or_zero=True)
    if min(matrix.shape) == 0:
        return 1.0, 0.0
    spectrum = (
        np.zeros(0)
        if noise is not None
        else whole_spectrum(matrix, False, ": give noise")
    )
    return noise_unit(matrix.shape, noise, spectrum)


def svd_down_to(
    A: SVD | OperatorLike,
    tau: float,
    random_state: RandomStateLike,
    k: int = _FIRST_RANK,
) -> SVD:
    """Return a decomposition with all singular values above tau, for a matrix starting at rank k.

    Raises
    ------
    ValueError
        If `tau` is negative or not finite, or an SVD does not reach down to it.
    """
    check_positive(tau, "tau", or_zero=True)
    if isinstance(A, SVD):
        if A.k < min(A.shape) and not (A.k and A.s[-1] <= tau):
            lowest = float(A.s[-1]) if A.k else math.inf
            raise ArgumentError(
                f"tau must be at least {lowest:.6g}, the smallest of the {A.k} singular values of "
                f"this SVD; got {tau}: compute more of them."
            )
        return A
    matrix = as_operator(A)
    largest = min(matrix.shape)
    k = min(k, largest)
    # Doubling costs at most as much again as the last decomposition.
    while True:
        svd = truncated_svd(matrix, k, random_state=random_state)
        if k == largest or svd.s[-1] <= tau:
            return svd
        k = min(2 * k, largest)


def _shrunk(svd: SVD, values: FloatArray) -> LowRank:
    k = int(np.count_nonzero(values))
    return LowRank(svd.U[:, :k] * values[:k].astype(svd.s.dtype), svd.Vt[:k].T)

"""Which singular values to keep: ranks for an error, thresholds, and denoising."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from lowrank.approximation import LowRank, check_not_negative, tail_norms
from lowrank.arguments import as_operator
from lowrank.choosing import marchenko_pastur_median, whole_spectrum
from lowrank.svd import SVD, truncated_svd

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["denoise", "hard_threshold", "optimal_threshold", "rank_for_error", "soft_threshold"]

_FIRST_RANK = 16  # what is tried first, doubling from there
_METHODS = ("hard", "soft", "shrink")


def rank_for_error(A: Any, rtol: float, *, random_state: Any = None) -> int:
    """Return the smallest k with ||A - A_k||_F <= rtol ||A||_F.

    Twice as many singular values are computed until they suffice; all of them where a difference of
    norms could not resolve `rtol` (below about 1e-7 in float64, 1e-3 in float32).

    Parameters
    ----------
    A : array-like or scipy.sparse matrix or array, of shape (n, m)
        Real, finite matrix. `truncated_svd` says when it makes a dense copy of a sparse one.
    rtol : float
        Relative Frobenius error, not negative.
    random_state : int, Generator, RandomState or None
        Passed on to `truncated_svd`.

    Returns
    -------
    int
        From 0 to min(n, m).

    Raises
    ------
    TypeError
        If A is a LinearOperator: its Frobenius norm is not known.
    ValueError
        If `rtol` is negative or not finite, or A is refused by `truncated_svd`.

    Examples
    --------
    >>> import numpy as np
    >>> rank_for_error(np.diag([3.0, 2.0, 1.0]), 0.3)
    2
    """
    from scipy.sparse.linalg import LinearOperator

    check_not_negative(rtol, "rtol")
    if isinstance(A, LinearOperator):
        raise TypeError("A must be an array or a sparse matrix; got a LinearOperator.")
    matrix = as_operator(A)
    largest = min(matrix.shape)
    resolved = rtol >= 8 * math.sqrt(float(np.finfo(matrix.dtype).eps))
    k = _FIRST_RANK if resolved else largest
    while 2 * k < largest:
        svd = truncated_svd(A, k, random_state=random_state)
        tails = _truncated_tails(svd)
        if tails[-1] <= rtol:
            return int(np.argmax(tails <= rtol))
        k *= 2
    tails = tail_norms(truncated_svd(A, largest, random_state=random_state).s)
    return int(np.argmax(tails <= rtol * tails[0]))


def _truncated_tails(svd: SVD) -> NDArray[np.float64]:
    """Return ||A - A_j||_F / ||A||_F for j = 0 ... k from ||A||_F and the k values."""
    norm = svd.frobenius_norm or 1.0
    shares = np.cumsum((svd.s.astype(np.float64) / norm) ** 2)
    return np.sqrt(np.maximum(1.0 - np.append(0.0, shares), 0.0)) * bool(svd.frobenius_norm)


def hard_threshold(A: Any, tau: float, *, random_state: Any = None) -> LowRank:
    """Keep the singular values above a threshold as they are, and drop the others.

    Parameters
    ----------
    A : SVD, or array-like, scipy.sparse matrix or array, or LinearOperator, of shape (n, m)
        A matrix, of which as many singular values are computed as are above `tau`, or its
        decomposition.
    tau : float
        Threshold, not negative.
    random_state : int, Generator, RandomState or None
        Passed on to `truncated_svd`.

    Returns
    -------
    LowRank

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
    svd = _svd_down_to(A, tau, random_state)
    return _shrunk(svd, np.where(svd.s > tau, svd.s, 0))


def soft_threshold(A: Any, tau: float, *, random_state: Any = None) -> LowRank:
    """Lower the singular values by a threshold, to no less than zero.

    The result minimises ||A - B||_F^2 / 2 + tau ||B||_* (the nuclear norm) over B.

    Parameters
    ----------
    A, tau, random_state
        As in `hard_threshold`.

    Returns
    -------
    LowRank

    Raises
    ------
    ValueError
        As `hard_threshold`.

    References
    ----------
    Cai, Candes & Shen (2010), "A singular value thresholding algorithm for matrix completion",
    theorem 2.1.

    Examples
    --------
    >>> soft_threshold([[3.0, 0.0], [0.0, 1.0]], 2.0).toarray()
    array([[1., 0.],
           [0., 0.]])
    """
    svd = _svd_down_to(A, tau, random_state)
    return _shrunk(svd, np.maximum(svd.s - svd.s.dtype.type(tau), 0))


def optimal_threshold(A: Any, noise: float | None = None) -> float:
    """Return the threshold of the least mean squared error under white noise.

    Parameters
    ----------
    A : array-like, scipy.sparse matrix or array, or LinearOperator, of shape (n, m)
        A matrix of low rank plus noise. Its entries are needed only if `noise` is not given: the
        level is then estimated from the median of all singular values, for which the smaller Gram
        matrix of a sparse A is formed.
    noise : float, optional
        Standard deviation of the noise in each entry.

    Returns
    -------
    float

    Raises
    ------
    TypeError
        If A is a LinearOperator and `noise` is not given.
    ValueError
        If `noise` is negative or not finite, or is not given and A is sparse with a smaller side
        above 5,000.

    References
    ----------
    Gavish & Donoho (2014), "The optimal hard threshold for singular values is 4/sqrt(3)",
    equations (3) and (5); the median is that of the Marchenko-Pastur law, not its cubic fit.

    Examples
    --------
    >>> import numpy as np
    >>> round(optimal_threshold(np.zeros((100, 100)), noise=1.0) / 10 * 3**0.5, 12)
    4.0
    """
    beta, unit = _aspect(A, noise)
    spread = math.sqrt(beta**2 + 14 * beta + 1)
    return math.sqrt(2 * (beta + 1) + 8 * beta / (beta + 1 + spread)) * unit


def denoise(
    X: Any, noise: float | None = None, *, method: str = "shrink", random_state: Any = None
) -> LowRank:
    """Estimate a low-rank matrix that was observed with white noise.

    Parameters
    ----------
    X : array-like, scipy.sparse matrix or array, or LinearOperator, of shape (n, m)
        Signal of low rank plus independent noise of mean 0 in each entry.
    noise : float, optional
        Standard deviation of the noise; estimated as in `optimal_threshold` by default.
    method : {"shrink", "hard", "soft"}, default "shrink"
        "hard" keeps the singular values above `optimal_threshold`. "shrink" also corrects those
        that it keeps for their inflation by the noise, which is asymptotically the best of all
        functions of the singular values for the Frobenius error. "soft" lowers them by the largest
        singular value of the noise.
    random_state : int, Generator, RandomState or None
        Passed on to `truncated_svd`.

    Returns
    -------
    LowRank

    Raises
    ------
    TypeError, ValueError
        As `optimal_threshold`, or if there is no such method.

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
    if method not in _METHODS:
        names = ", ".join(repr(name) for name in _METHODS)
        raise ValueError(f"method must be one of {names}; got {method!r}.")
    beta, unit = _aspect(X, noise)
    if method == "hard":
        return hard_threshold(
            X, optimal_threshold(X, _per_entry(X, unit)), random_state=random_state
        )
    edge = (1 + math.sqrt(beta)) * unit
    if method == "soft":
        return soft_threshold(X, edge, random_state=random_state)
    svd = _svd_down_to(X, edge, random_state)
    return _shrunk(svd, _shrinker(svd.s, beta, unit))


def _aspect(A: Any, noise: float | None) -> tuple[float, float]:
    """Return beta = min / max of the shape, and sqrt(max(n, m)) sigma."""
    if noise is not None:
        check_not_negative(noise, "noise")
    matrix = as_operator(A)
    smaller, larger = sorted(matrix.shape)
    if smaller == 0:
        return 1.0, 0.0
    beta = smaller / larger
    if noise is not None:
        return beta, math.sqrt(larger) * noise
    median = float(np.median(whole_spectrum(A, False)))
    return beta, median / math.sqrt(marchenko_pastur_median(beta))


def _per_entry(A: Any, unit: float) -> float:
    return unit / math.sqrt(max(1, *A.shape if hasattr(A, "shape") else np.shape(A)))


def _shrinker(s: NDArray[Any], beta: float, unit: float) -> NDArray[Any]:
    """Return sqrt((y^2 - beta - 1)^2 - 4 beta) / y of y = s / unit, times the unit.

    It is s sqrt((1 - (high / s)^2) (1 - (low / s)^2)) with the edges of the noise's singular
    values, in which no square can overflow.
    """
    wide, root = s.astype(np.float64), math.sqrt(beta)
    kept = wide > (1 + root) * unit
    shares = unit / np.where(kept, wide, math.inf)
    factors = (1 - ((1 + root) * shares) ** 2) * (1 - ((1 - root) * shares) ** 2)
    return np.where(kept, wide * np.sqrt(np.maximum(factors, 0)), 0)


def _svd_down_to(A: Any, tau: float, random_state: Any) -> SVD:
    """Return a decomposition with all singular values above tau."""
    check_not_negative(tau, "tau")
    if isinstance(A, SVD):
        if A.k < min(A.shape) and not (A.k and A.s[-1] <= tau):
            lowest = float(A.s[-1]) if A.k else math.inf
            raise ValueError(
                f"tau must be at least {lowest:.6g}, the smallest of the {A.k} singular values of "
                f"this SVD; got {tau}: compute more of them."
            )
        return A
    largest = min(as_operator(A).shape)
    k = min(_FIRST_RANK, largest)
    svd = truncated_svd(A, k, random_state=random_state)
    while k < largest and svd.s[-1] > tau:
        k = min(2 * k, largest)
        svd = truncated_svd(A, k, random_state=random_state)
    return svd


def _shrunk(svd: SVD, values: NDArray[Any]) -> LowRank:
    k = int(np.count_nonzero(values))
    return LowRank(svd.U[:, :k] * values[:k].astype(svd.s.dtype), svd.Vt[:k].T)

"""Rules for choosing the rank k: functions of a spectrum."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

__all__ = [
    "cumulative_energy",
    "elbow",
    "noise_threshold",
    "profile_likelihood",
    "rank_for_energy",
]


def cumulative_energy(s: ArrayLike, total: float | None = None) -> NDArray[np.float64]:
    """Return the share of the energy in the first 1, 2, ... singular values.

    Parameters
    ----------
    s : array-like of shape (k,)
        Singular values, descending.
    total : float, optional
        Energy of the whole matrix, ||A||_F^2 (``svd.frobenius_norm ** 2``). By default sum s^2,
        which is right if `s` is the complete spectrum.

    Returns
    -------
    ndarray of shape (k,), float64
        Ascending, in [0, 1]; all 1 if the total is 0.

    Raises
    ------
    ValueError
        If `s` is not a descending sequence of finite, non-negative numbers, or `total` is less than
        sum s^2.

    Examples
    --------
    >>> cumulative_energy([2.0, 1.0, 1.0, 0.0])
    array([0.66666667, 0.83333333, 1.        , 1.        ])
    >>> cumulative_energy([2.0, 1.0], total=8.0)
    array([0.5  , 0.625])
    """
    spectrum = _checked_spectrum(s)
    scale = float(spectrum.max(initial=0.0)) or 1.0
    energy = np.cumsum((spectrum / scale) ** 2)
    whole = _checked_total(total, scale, energy)
    return np.minimum(energy / whole, 1.0) if whole > 0 else np.ones_like(energy)


def rank_for_energy(s: ArrayLike, total: float | None, fraction: float) -> int:
    """Return the smallest k whose singular values carry a given fraction of the energy.

    Parameters
    ----------
    s : array-like of shape (k,)
        The largest singular values, descending.
    total : float or None
        Energy of the whole matrix, ||A||_F^2 (``svd.frobenius_norm ** 2``). None for sum s^2.
    fraction : float
        From 0 to 1.

    Returns
    -------
    int
        From 0 to len(s).

    Raises
    ------
    ValueError
        If the arguments are out of their range, or all of `s` carries less than the fraction.

    Examples
    --------
    >>> rank_for_energy([3.0, 2.0, 1.0], None, 0.9)
    2
    """
    if not 0.0 <= fraction <= 1.0:
        raise ValueError(f"fraction must be between 0 and 1; got {fraction}.")
    shares = cumulative_energy(s, total)
    if fraction == 0.0 or shares.size == 0:
        return 0
    wanted = fraction - 4 * np.finfo(np.float64).eps * shares.size  # sums are rounded
    if shares[-1] < wanted:
        raise ValueError(
            f"fraction must be at most {shares[-1]:.4f}, what these {shares.size} singular values "
            f"carry; got {fraction}: compute more of them."
        )
    return int(np.argmax(shares >= wanted)) + 1


def elbow(s: ArrayLike) -> int:
    """Return the number of singular values before the elbow of the scree curve.

    The elbow is the point that lies furthest below the straight line from the first to the last
    point (the chord); k is the number of values before it. A curve that nowhere sags below its
    chord has no elbow, and k is its length.

    Parameters
    ----------
    s : array-like of shape (k,)
        Singular values (or any scree curve), descending. The place of the elbow depends on how
        many of them are given, since the last one is an end of the chord.

    Returns
    -------
    int
        From 0 (for an empty spectrum) to len(s).

    Raises
    ------
    ValueError
        If `s` is not a descending sequence of finite, non-negative numbers.

    References
    ----------
    Satopaa, Albrecht, Irwin & Raghavan (2011), "Finding a 'kneedle' in a haystack", section III,
    without smoothing and with the whole curve given.

    Examples
    --------
    >>> elbow([10.0, 9.0, 8.0, 1.0, 0.9, 0.8])
    3
    >>> elbow([3.0, 2.0, 1.0])
    3
    """
    spectrum = _checked_spectrum(s)
    if spectrum.size < 3 or spectrum[0] == spectrum[-1]:
        return spectrum.size
    height = (spectrum - spectrum[-1]) / (spectrum[0] - spectrum[-1])
    sag = np.linspace(1.0, 0.0, spectrum.size) - height
    return int(np.argmax(sag)) if sag.max() > 1e-9 else spectrum.size


def noise_threshold(s: ArrayLike, level: float) -> int:
    """Count the singular values above a known noise level.

    Parameters
    ----------
    s : array-like of shape (k,)
        Singular values, descending.
    level : float
        Largest singular value that noise alone gives; not negative.

    Returns
    -------
    int
        From 0 to len(s).

    Raises
    ------
    ValueError
        If `s` is not a descending sequence of finite, non-negative numbers, or `level` is negative
        or NaN.

    Examples
    --------
    >>> noise_threshold([5.0, 3.0, 1.0], 2.0)
    2
    """
    if not level >= 0.0:
        raise ValueError(f"level must not be negative; got {level}.")
    return int(np.sum(_checked_spectrum(s) > level))


def profile_likelihood(s: ArrayLike) -> int:
    """Return where the scree curve is best cut into two groups of normal values.

    The first k values and the others have a mean each and a variance in common; k maximises the
    likelihood.

    Parameters
    ----------
    s : array-like of shape (k,)
        Singular values (or any scree curve), descending.

    Returns
    -------
    int
        From 1 to len(s) - 1; len(s) if it is below 2 or all values are equal.

    Raises
    ------
    ValueError
        If `s` is not a descending sequence of finite, non-negative numbers.

    References
    ----------
    Zhu & Ghodsi (2006), "Automatic dimensionality selection from the scree plot via the use of
    profile likelihood", equations (1)-(4).

    Examples
    --------
    >>> profile_likelihood([10.0, 9.0, 8.0, 1.0, 0.9, 0.8])
    3
    """
    spectrum = _checked_spectrum(s)
    if spectrum.size < 2 or spectrum[0] == spectrum[-1]:
        return spectrum.size
    scaled = spectrum / spectrum[0]
    # With the common variance profiled out, the likelihood falls with the pooled sum of squares.
    pooled = [_spread(scaled[:k]) + _spread(scaled[k:]) for k in range(1, scaled.size)]
    return int(np.argmin(pooled)) + 1


def _spread(values: NDArray[np.float64]) -> float:
    return float(np.sum((values - values.mean()) ** 2))


def _checked_spectrum(s: ArrayLike) -> NDArray[np.float64]:
    spectrum = np.asarray(s, dtype=np.float64)
    if spectrum.ndim != 1:
        raise ValueError(f"s must be one-dimensional; got shape {spectrum.shape}.")
    bad = np.flatnonzero(~(np.isfinite(spectrum) & (spectrum >= 0)))
    if bad.size:
        raise ValueError(
            f"s must be finite and not negative; got {spectrum[bad[0]]} at position {bad[0]}."
        )
    rising = np.flatnonzero(np.diff(spectrum) > 0)
    if rising.size:
        raise ValueError(f"s must be descending; it rises after position {rising[0]}.")
    return spectrum


def _checked_total(total: Any, scale: float, energy: NDArray[np.float64]) -> float:
    """Return the total in units of scale^2."""
    known = float(energy[-1]) if energy.size else 0.0
    if total is None:
        return known
    whole = float(total) / scale / scale
    if not known * (1 - 1e-5) <= whole < np.inf:  # float32 spectra are rounded
        raise ValueError(
            f"total must be at least sum s^2 = {known * scale * scale:.6g}; got {total}."
        )
    return whole

"""Choosing the rank from the matrix itself: the rules that need more than a few singular values."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import gammaln

from lowrank.arguments import as_operator, checked_generator
from lowrank.cross_validation import bi_cross_validation
from lowrank.rank import elbow, profile_likelihood, rank_for_energy
from lowrank.row_centred import RowCentred
from lowrank.svd import truncated_svd

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Float64Array = NDArray[np.float64]

__all__ = [
    "RULES",
    "choose_rank",
    "gavish_donoho",
    "marchenko_pastur_median",
    "minka",
    "parallel_analysis",
    "whole_spectrum",
]

_LARGEST_GRAM = 5000  # smaller side up to which a sparse matrix's whole spectrum is computed
_MOST_RANKS = 50  # ranks that parallel analysis and the elbow look at
_PERMUTATIONS = 20
_SAFE_EXPONENT = 30  # of the largest entry: beyond, float32 leaves no room for its fourth power
_QUANTILE = 0.95  # of the permuted singular values, which a real one must exceed


def choose_rank(
    A: Any,
    rule: str = "gavish-donoho",
    *,
    fraction: float = 0.9,
    center: bool | None = None,
    random_state: Any = 0,
) -> int:
    """Choose the rank of a matrix by a named rule.

    Parameters
    ----------
    A : array-like or scipy.sparse matrix or array, of shape (n, m)
        Rows are samples. Sparse input is never made dense.
    rule : {"elbow", "profile", "energy", "gavish-donoho", "parallel", "cv", "mle"}
        See `lowrank.elbow`, `lowrank.profile_likelihood` (of the 50 largest singular
        values), `lowrank.rank_for_energy`, `gavish_donoho`, `parallel_analysis`,
        `bi_cross_validation` and `minka`. "parallel" and "cv" look at ranks up to 50.
    fraction : float
        Of the energy, for the rule "energy".
    center : bool, optional
        Whether the column means are subtracted first.
    random_state : int, Generator, RandomState or None
        Seed of what is random.

    Returns
    -------
    int
        From 0 to min(n, m).

    Raises
    ------
    ValueError
        If there is no such rule, "mle" is given fewer rows than columns, or the rule needs the
        whole spectrum of a sparse matrix whose smaller side is above 5,000.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> A = 10 * rng.normal(size=(100, 2)) @ rng.normal(size=(2, 30)) + rng.normal(size=(100, 30))
    >>> choose_rank(A), choose_rank(A, "parallel", center=True)
    (2, 2)
    """
    if rule not in RULES:
        names = ", ".join(repr(name) for name in RULES)
        raise ValueError(f"rule must be one of {names}; got {rule!r}.")
    if rule == "parallel":
        return parallel_analysis(A, center=center, random_state=random_state)
    if rule == "cv":
        A, _ = _moderate(A)
        errors = bi_cross_validation(A, _MOST_RANKS, center=center, random_state=random_state)
        rounding = 1e3 * float(np.finfo(as_operator(A).dtype).eps) * errors[0]
        return int(np.argmax(errors <= errors.min() + rounding))
    if rule in ("elbow", "profile"):
        k = min(_MOST_RANKS, *as_operator(A).shape)
        leading = truncated_svd(A, k, center=center, random_state=random_state).s
        return elbow(leading) if rule == "elbow" else profile_likelihood(leading)
    s = whole_spectrum(A, bool(center))
    if rule == "energy":
        return rank_for_energy(s, None, fraction)
    rows, columns = as_operator(A).shape
    if rule == "mle":
        if rows < columns:
            raise ValueError(
                f"rule 'mle' needs at least as many samples as features; got {rows} and {columns}."
            )
        eigenvalues = np.zeros(columns)
        unit = math.ldexp(1.0, -math.frexp(s.max(initial=0.0))[1])  # squares must not overflow
        eigenvalues[: s.size] = (s * unit) ** 2 / max(rows - 1, 1)
        return minka(eigenvalues, rows)
    return gavish_donoho(s, (rows, columns))


RULES = ("elbow", "profile", "energy", "gavish-donoho", "parallel", "cv", "mle")


def gavish_donoho(s: Any, shape: tuple[int, int], noise: float | None = None) -> int:
    r"""Count the singular values above the optimal hard threshold for white noise.

    With noise of standard deviation sigma per entry and beta = min(n, m) / max(n, m), the threshold
    is ``lambda(beta) sqrt(max(n, m)) sigma``,
    :math:`\lambda(\beta) = \sqrt{2(\beta+1) + 8\beta / (\beta + 1 + \sqrt{\beta^2+14\beta+1})}`.
    Where sigma is not known, the median singular value stands for that of the noise.

    Parameters
    ----------
    s : array-like of shape (min(n, m),)
        All singular values, descending; the leading ones are enough if `noise` is given.
    shape : tuple of int
        Shape (n, m) of the matrix.
    noise : float, optional
        Standard deviation sigma of the noise.

    Returns
    -------
    int

    References
    ----------
    Gavish & Donoho (2014), "The optimal hard threshold for singular values is 4/sqrt(3)",
    equations (11) and (13)-(14).

    Examples
    --------
    >>> gavish_donoho([40.0, 30.0, 9.0, 8.0], (100, 4), noise=1.0)
    2
    """
    spectrum = np.asarray(s, dtype=np.float64)
    larger = max(shape)
    beta = min(shape) / larger if larger else 1.0
    spread = math.sqrt(beta**2 + 14 * beta + 1)
    factor = math.sqrt(2 * (beta + 1) + 8 * beta / (beta + 1 + spread))
    if noise is not None:
        return int(np.sum(spectrum > factor * math.sqrt(larger) * noise))
    if spectrum.size == 0:
        return 0
    threshold = factor / math.sqrt(marchenko_pastur_median(beta)) * float(np.median(spectrum))
    rounding = spectrum[0] * max(shape) * float(np.finfo(np.float64).eps)
    return int(np.sum(spectrum > max(threshold, rounding)))


def marchenko_pastur_median(beta: float) -> float:
    """Return the median of the Marchenko-Pastur law with ratio beta, 0 < beta <= 1."""
    low, high = (1 - math.sqrt(beta)) ** 2, (1 + math.sqrt(beta)) ** 2
    # x = centre - radius cos(t) turns the square root of the density into a smooth integrand.
    t = np.linspace(0, np.pi, 20_001)
    x = (low + high) / 2 - (high - low) / 2 * np.cos(t)
    density = np.divide(np.sin(t) ** 2, x, out=np.zeros_like(x), where=x > 0)
    if low < 1e-12:
        density[0] = 2 * density[1] - density[2]
    mass = np.concatenate([[0], np.cumsum((density[1:] + density[:-1]) / 2)])
    return float(np.interp(mass[-1] / 2, mass, x))


def minka(eigenvalues: Any, n_samples: int) -> int:
    """Choose the rank with the largest evidence under probabilistic PCA (Laplace's approximation).

    Data that lie in a subspace exactly, up to rounding, have its dimension: without noise the
    evidence is infinite.

    Parameters
    ----------
    eigenvalues : array-like of shape (m,)
        Of the covariance matrix, descending.
    n_samples : int

    Returns
    -------
    int
        From 1 to m - 1 (0 for fewer than two eigenvalues).

    References
    ----------
    Minka (2000), "Automatic choice of dimensionality for PCA", equation (30).
    """
    spectrum = np.asarray(eigenvalues, dtype=np.float64)
    tiny = spectrum.max(initial=0.0) * np.finfo(np.float64).eps * max(n_samples, spectrum.size)
    candidates = [k for k in range(1, spectrum.size) if spectrum[k - 1] > tiny]
    if not candidates:
        return min(1, max(spectrum.size - 1, 0))
    if spectrum[candidates[-1]] <= tiny:
        return candidates[-1]
    return max(candidates, key=lambda k: _log_evidence(spectrum, k, n_samples))


def _log_evidence(spectrum: Float64Array, k: int, n: int) -> float:
    m = spectrum.size
    noise = float(spectrum[k:].mean())
    angles = (m - np.arange(1, k + 1) + 1) / 2
    subspace = float(np.sum(gammaln(angles) - angles * math.log(math.pi))) - k * math.log(2)
    fit = -n / 2 * float(np.log(spectrum[:k]).sum()) - n * (m - k) / 2 * math.log(noise)
    parameters = m * k - k * (k + 1) / 2
    inverse = np.where(np.arange(m) < k, 1 / np.maximum(spectrum, 1e-300), 1 / noise)
    volume = 0.0
    for i in range(k):
        gaps = (spectrum[i] - spectrum[i + 1 :]) * (inverse[i + 1 :] - inverse[i])
        if np.any(gaps <= 0):
            return -math.inf
        volume += float(np.log(gaps).sum()) + math.log(n) * gaps.size
    prior = (parameters + k) / 2 * math.log(2 * math.pi)
    return subspace + fit + prior - volume / 2 - k / 2 * math.log(n)


def parallel_analysis(A: Any, *, center: bool | None = None, random_state: Any = 0) -> int:
    """Count the leading singular values that exceed those of matrices without any structure.

    These have the entries of each column of A in random order (sparse ones stay sparse). A
    singular value counts as long as it and all before it exceed the 95% quantile of 20 such.

    Parameters
    ----------
    A : array-like or scipy.sparse matrix or array, of shape (n, m)
    center : bool, optional
        Whether the column means are subtracted first.
    random_state : int, Generator, RandomState or None
        Seed of the permutations.

    Returns
    -------
    int
        At most 50.

    Raises
    ------
    TypeError
        If A is a LinearOperator: its entries are not known.

    References
    ----------
    Horn (1965), "A rationale and test for the number of factors in factor analysis"; Buja &
    Eyuboglu (1992), "Remarks on parallel analysis", for the permutations.
    """
    rng = checked_generator(random_state)
    k = min(_MOST_RANKS, *as_operator(A).shape)
    real = truncated_svd(A, k, center=center, random_state=0).s
    chance = [
        truncated_svd(_permuted(A, rng, center), k, center=center, tol=1e-3, random_state=0).s
        for _ in range(_PERMUTATIONS)
    ]
    above = real > np.quantile(chance, _QUANTILE, axis=0)
    return int(np.argmin(np.append(above, False)))


def _permuted(A: Any, rng: np.random.Generator, center: bool | None) -> Any:
    """Return a matrix with the entries of each column of A at random rows."""
    from scipy import sparse

    if isinstance(A, RowCentred):  # the permuted rows have other means
        return A.with_entries(_permuted(A.csr, rng, center).tocsr(), bool(center))
    _require_entries(A)
    if not sparse.issparse(A):
        return rng.permuted(np.asarray(A), axis=0)
    csc = _as_csr(A).tocsc()  # a copy, which may be changed
    csc.sum_duplicates()
    counts = np.diff(csc.indptr)
    rows = [rng.choice(csc.shape[0], size=count, replace=False) for count in counts]
    indices = np.concatenate(rows) if rows else csc.indices
    return sparse.csc_array((csc.data, indices, csc.indptr), shape=csc.shape)


def _require_entries(A: Any) -> None:
    from scipy.sparse.linalg import LinearOperator

    if isinstance(A, LinearOperator):
        raise TypeError(
            "A must be an array or a sparse matrix, whose entries this rule needs; "
            "got a LinearOperator: choose the rule 'elbow'."
        )


def _as_csr(A: Any) -> Any:
    from scipy import sparse

    return sparse.csr_array(A)


def whole_spectrum(A: Any, center: bool) -> Float64Array:
    """Return all singular values, descending; of a sparse matrix by its smaller Gram matrix."""
    from scipy import sparse

    known = isinstance(A, RowCentred)
    if not known:
        _require_entries(A)
    A, exponent = _moderate(A)
    if not (known or sparse.issparse(A)):
        mean = as_operator(A).column_means() * center
        dense = np.asarray(A, dtype=np.float64)
        spectrum: Float64Array = np.linalg.svd(dense - mean, compute_uv=False).astype(np.float64)
        return np.ldexp(spectrum, exponent)
    shape = as_operator(A).shape
    if min(shape) > _LARGEST_GRAM:
        raise ValueError(
            f"A is sparse of shape {shape}, and this rule needs its whole spectrum, which takes "
            f"a smaller side of at most {_LARGEST_GRAM}; use 'elbow' or 'parallel'."
        )
    eigenvalues = np.asarray(np.linalg.eigvalsh(_smaller_gram(A, center))[::-1], np.float64)
    rounding = eigenvalues.max(initial=0.0) * max(shape) * np.finfo(np.float64).eps
    return np.ldexp(np.sqrt(np.where(eigenvalues > rounding, eigenvalues, 0.0)), exponent)


def _moderate(A: Any) -> tuple[Any, int]:
    """Return A * 2**-x and x: not 0 if squares of its entries might overflow or vanish."""
    from scipy import sparse

    exponent = math.frexp(as_operator(A).peak)[1]
    if abs(exponent) <= _SAFE_EXPONENT:
        return A, 0
    exponent = max(-1000, min(1000, exponent))
    return (_as_csr(A) if sparse.issparse(A) else np.asarray(A)) * 2.0**-exponent, exponent


def _smaller_gram(A: Any, center: bool) -> Float64Array:
    """Return Y'Y or Y Y', whichever is smaller, of Y = S - L R' with a sparse S."""
    S, L, R = _corrected(A, center)
    if S.shape[1] > S.shape[0]:
        S, L, R = S.T.tocsr(), R, L
    cross = (S.T @ L) @ R.T
    gram: Float64Array = (S.T @ S).toarray() - cross - cross.T + R @ (L.T @ L) @ R.T
    return gram


def _corrected(A: Any, center: bool) -> tuple[Any, Float64Array, Float64Array]:
    """Return the entries of A, and what is subtracted from them as two factors."""
    known = isinstance(A, RowCentred)
    csr = _as_csr(A.csr if known else A).astype(np.float64)
    left, right = np.zeros((2, csr.shape[0])), np.zeros((2, csr.shape[1]))
    left[0], right[0] = 1.0, as_operator(csr).column_means() * center
    if known:
        left[1], right[1] = A.offsets, A.weights
        right[0] -= A.offsets.mean() * A.weights * center
    return csr, left.T, right.T

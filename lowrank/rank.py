"""Rules for choosing the rank k."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import gammaln

from lowrank.arguments import as_operator, checked_generator
from lowrank.samples import SparseSamples
from lowrank.svd import truncated_svd

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

__all__ = [
    "RULES",
    "bi_cross_validation",
    "choose_rank",
    "cumulative_energy",
    "elbow",
    "gavish_donoho",
    "marchenko_pastur_median",
    "minka",
    "noise_threshold",
    "parallel_analysis",
    "profile_likelihood",
    "rank_for_energy",
    "whole_spectrum",
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


def rank_for_energy(s: ArrayLike, fraction: float, total: float | None = None) -> int:
    """Return the smallest k whose singular values carry a given fraction of the energy.

    Parameters
    ----------
    s : array-like of shape (k,)
        The largest singular values, descending.
    fraction : float
        From 0 to 1.
    total : float, optional
        Energy of the whole matrix, ||A||_F^2 (``svd.frobenius_norm ** 2``). By default sum s^2.

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
    >>> rank_for_energy([3.0, 2.0, 1.0], 0.9)
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


if TYPE_CHECKING:
    from numpy.typing import NDArray

    Float64Array = NDArray[np.float64]


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
        return rank_for_energy(s, fraction)
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

    if isinstance(A, SparseSamples):  # the permuted rows have other means
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

    known = isinstance(A, SparseSamples)
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
    known = isinstance(A, SparseSamples)
    csr = _as_csr(A.csr if known else A).astype(np.float64)
    left, right = np.zeros((2, csr.shape[0])), np.zeros((2, csr.shape[1]))
    left[0], right[0] = 1.0, as_operator(csr).column_means() * center
    if known:
        left[1], right[1] = A.offsets, A.weights
        right[0] -= A.offsets.mean() * A.weights * center
    return csr, left.T, right.T


if TYPE_CHECKING:
    from numpy.typing import NDArray

    Float64Array = NDArray[np.float64]


_FOLDS = 3  # parts that the rows and the columns are cut into: 9 held-out blocks


def bi_cross_validation(
    A: Any, max_rank: int = 50, *, center: bool | None = None, random_state: Any = 0
) -> Float64Array:
    """Mean squared error of held-out blocks, predicted from the others at each rank.

    Rows and columns are cut into three random parts each. A block A11 of one part of both is
    predicted by ``A12 (A22)_k^+ A21``, from the blocks beside, diagonal to and below it, where
    ``(A22)_k`` is the rank-k approximation. Unlike the training error, this one rises again when k
    is too large. Sparse blocks and their predictions are never made dense.

    Parameters
    ----------
    A : array-like or scipy.sparse matrix or array, of shape (n, m)
    max_rank : int
        The largest rank that is tried.
    center : bool, optional
        Whether the column means (of all rows) are subtracted first.
    random_state : int, Generator, RandomState or None
        Seed of the parts.

    Returns
    -------
    ndarray of shape (r + 1,), float64
        Errors at the ranks 0 to r, with r at most `max_rank` and as small as the blocks require.
        Its argmin is the rank to choose.

    Raises
    ------
    TypeError
        If A is a LinearOperator: its entries are not known.
    ValueError
        If A has fewer than three rows or columns.

    References
    ----------
    Owen & Perry (2009), "Bi-cross-validation of the SVD and the nonnegative matrix factorization",
    section 3.
    """
    matrix, mean = _indexable(A, center)
    rng = checked_generator(random_state)
    rows, columns = (np.array_split(rng.permutation(size), _FOLDS) for size in matrix.shape)
    kept = [
        size - max(len(part) for part in parts)
        for size, parts in zip(matrix.shape, (rows, columns), strict=True)
    ]
    k = min(max_rank, *kept)
    blocks = [_Blocks(matrix, mean, row, column) for row in rows for column in columns]
    errors = np.sum([block.squared_errors(k) for block in blocks], axis=0)
    result: Float64Array = errors / (matrix.shape[0] * matrix.shape[1])
    return result


def _indexable(A: Any, center: bool | None) -> tuple[Any, Float64Array]:
    """Return A as an array or CSR, checked, and the row vector to subtract from it."""
    from scipy import sparse
    from scipy.sparse.linalg import LinearOperator

    known = isinstance(A, SparseSamples)
    if isinstance(A, LinearOperator) and not known:
        raise TypeError("A must be an array or a sparse matrix; got a LinearOperator.")
    operator = as_operator(A)
    if min(operator.shape) < _FOLDS:
        raise ValueError(
            f"A must have at least {_FOLDS} rows and columns to hold some out; "
            f"got shape {operator.shape}."
        )
    mean = operator.column_means() if center else np.zeros(operator.shape[1])
    matrix: Any = A  # of unknown type: scipy's stubs know no union of its formats
    if not known:
        matrix = sparse.csr_array(matrix) if sparse.issparse(A) else np.asarray(A)
    return matrix, mean


class _Blocks:
    """The four blocks of A - 1 mean' that one part of the rows and one of the columns cut out."""

    def __init__(
        self, A: Any, mean: Float64Array, rows: NDArray[np.intp], columns: NDArray[np.intp]
    ) -> None:
        other_rows = np.setdiff1d(np.arange(A.shape[0]), rows)
        other_columns = np.setdiff1d(np.arange(A.shape[1]), columns)
        upper, lower = A[rows], A[other_rows]
        self.held_out, self.beside = upper[:, columns], upper[:, other_columns]
        self.below, self.diagonal = lower[:, columns], lower[:, other_columns]
        self.mean, self.other_mean = mean[columns], mean[other_columns]

    def squared_errors(self, k: int) -> Float64Array:
        """Return ||A11 - A12 (A22)_j^+ A21||_F^2 for j = 0 ... k, from factors of rank k."""
        U, s, Vt = truncated_svd(self.diagonal, k, center=self.other_mean, random_state=0)
        inverse = np.divide(1, s, out=np.zeros_like(s), where=s > s.max(initial=0) * 1e-6)
        left = (self.beside @ Vt.T - self.other_mean @ Vt.T) * inverse
        right = self.below.T @ U - np.outer(self.mean, U.sum(axis=0))
        overlap = np.einsum("ij,ij->j", left, self.held_out @ right - self.mean @ right)
        gram = (left.T @ left) * (right.T @ right)
        squares = np.array([gram[:j, :j].sum() for j in range(k + 1)])
        total = _squares(self.held_out, self.mean)
        errors: Float64Array = total - 2 * np.append(0, np.cumsum(overlap)) + squares
        return errors


def _squares(A: Any, row: Float64Array) -> float:
    """Return ||A - 1 row'||_F^2."""
    if isinstance(A, SparseSamples):
        return float(A.column_squares(row).sum())
    return (as_operator(A).distance_to_row(row) or 0.0) ** 2

"""Rules for choosing the rank k."""

from __future__ import annotations

import math
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse

from lowrank.arguments import (
    as_operator,
    checked_generator,
    entries_of,
)
from lowrank.blocks import RowBlocks, check_not_masked
from lowrank.errors import (
    ArgumentError,
    ArgumentTypeError,
    check_choice,
    check_number,
    check_positive,
    check_range,
    check_share,
    checked_integer,
)
from lowrank.kernels import pieces
from lowrank.kernels.arrays import EPS, epsilon
from lowrank.operators import centred_columns, rescaled
from lowrank.samples import samples_of
from lowrank.sums import column_dots
from lowrank.svd import truncated_svd

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import ArrayLike

    from lowrank.arguments import OperatorLike, RandomStateLike
    from lowrank.operators import Float64Array, FloatArray, MatrixOperator

RULES = ("elbow", "energy", "gavish-donoho", "parallel", "cv")
"""Rules of `choose_rank`."""

_SQUARABLE = 1e-4  # share of the largest singular value whose square has 8 digits
_LARGEST_WORK = (
    1e12  # largest n m min(n, m) of sparse input for which dense blocks are made
)
_LEAST_ROWS = 1 << 12  # number of rows in such a block
_LARGEST_GRAM = 5000  # largest min(shape) for the whole spectrum of a sparse matrix
_MOST_RANKS = 50  # largest rank considered by "parallel", "cv" and "elbow"
_PERMUTATIONS = 20  # permuted copies of parallel analysis
_QUANTILE = 0.95  # quantile of their singular values to exceed
_ELBOW = ": choose the rule 'elbow'"  # advice for a LinearOperator
_FOLDS = 3  # folds of rows and of columns, which make 9 held-out blocks


def cumulative_energy(s: ArrayLike, total: float | None = None) -> Float64Array:
    """Return the share of the energy in the first 1, 2, ..., k singular values.

    The result has shape (k,). It is all ones if the total is 0.

    Parameters
    ----------
    s : array-like of shape (k,)
        Singular values in descending order.
    total : float, optional
        Energy of the whole matrix, ||A||_F^2 (``svd.frobenius_norm ** 2``). The default, sum s^2,
        is correct if `s` is the complete spectrum.

    Raises
    ------
    ValueError
        If `s` is not descending, finite and non-negative, or `total` is less than sum s^2.

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
    least = float(energy.max(initial=0.0))
    total_energy = least
    if total is not None:
        check_number(total, "total")
        total_energy = float(total) / scale / scale
    if not least * (1 - 1e-5) <= total_energy < np.inf:  # float32 spectra are rounded
        raise ArgumentError(
            f"total must be at least sum s^2 = {least * scale * scale:.6g}; got {total}."
        )
    if total_energy == 0:
        return np.ones_like(energy)
    return np.minimum(energy / total_energy, 1.0)


def rank_for_energy(
    s: ArrayLike,
    fraction: float,
    total: float | None = None,
) -> int:
    """Return the smallest k for which k singular values reach a given fraction of the energy.

    Parameters
    ----------
    s, total
        As in `cumulative_energy`.
    fraction : float
        Fraction between 0 and 1.

    Raises
    ------
    ValueError
        If an argument is out of range, or all of `s` together do not reach the fraction.
    """
    check_share(fraction, "fraction")
    shares = cumulative_energy(s, total)
    if fraction == 0.0 or shares.size == 0:
        return 0
    needed = fraction - 4 * EPS * shares.size  # sums are rounded
    if shares[-1] < needed:
        raise ArgumentError(
            f"fraction must be at most {shares[-1]:.4f}, the share of these {shares.size} singular "
            f"values; got {fraction}: compute more of them."
        )
    return int(np.argmax(shares >= needed)) + 1


def elbow(s: ArrayLike) -> int:
    """Return the number of singular values before the elbow of the scree curve.

    The elbow is the point furthest below the chord from the first to the last point. If no point is
    below the chord, the curve has no elbow, and its length is returned.

    Parameters
    ----------
    s : array-like of shape (k,)
        Singular values, or any other scree curve, in descending order. The elbow depends on the
        length of `s`, since the chord ends at the last value.

    References
    ----------
    Satopaa, Albrecht, Irwin & Raghavan (2011), "Finding a 'kneedle' in a haystack", section III,
    without smoothing and for a complete curve.

    Examples
    --------
    >>> elbow([10.0, 9.0, 8.0, 1.0, 0.9, 0.8]), elbow([3.0, 2.0, 1.0])
    (3, 3)
    """
    spectrum = _checked_spectrum(s)
    if spectrum.size < 3 or spectrum[0] == spectrum[-1]:
        return spectrum.size
    height = spectrum - spectrum[-1]
    height /= height[0]
    sag = np.linspace(1.0, 0.0, spectrum.size) - height
    if sag.max() <= 1e-9:
        return spectrum.size
    return int(np.argmax(sag))


def _checked_spectrum(s: ArrayLike) -> Float64Array:
    check_not_masked(s, "s")
    values = np.asarray(s)
    if values.dtype.kind not in "fiub":
        raise ArgumentTypeError(f"s must hold real numbers; got dtype {values.dtype}.")
    spectrum = values.astype(np.float64)
    if spectrum.ndim != 1:
        raise ArgumentError(f"s must be one-dimensional; got shape {spectrum.shape}.")
    for i in np.flatnonzero(~(np.isfinite(spectrum) & (spectrum >= 0))):
        raise ArgumentError(
            f"s must be finite and not negative; got {spectrum[i]} at position {i}."
        )
    for i in np.flatnonzero(np.diff(spectrum) > 0):
        raise ArgumentError(f"s must be descending; it rises after position {i}.")
    return spectrum


def choose_rank(
    A: OperatorLike,
    rule: str = "gavish-donoho",
    *,
    fraction: float = 0.9,
    center: bool = True,
    random_state: RandomStateLike = 0,
) -> int:
    """Choose the rank of a matrix by a named rule.

    Parameters
    ----------
    A : array-like, scipy.sparse matrix or array, or LinearOperator, of shape (n, m)
        Rows are samples. Sparse input is never made dense. Only the rule "elbow" takes a
        LinearOperator; "parallel" and "cv" take no RowBlocks.
    rule : {"elbow", "energy", "gavish-donoho", "parallel", "cv"}
        See `elbow` (applied to the 50 largest singular values), `rank_for_energy`,
        `gavish_donoho`, `parallel_analysis` and `bi_cross_validation` (both up to rank 50). "cv"
        is the smallest rank whose error is within one standard error of the least.
    fraction : float
        Fraction of the energy for the rule "energy".
    center : bool, default True
        Subtract the column means first, as `lowrank.PCA` does.
    random_state : int, Generator, RandomState or None
        Seed of the start vectors, permutations and folds.

    Raises
    ------
    TypeError, ValueError
        If the rule is unknown or does not accept a LinearOperator, or if it needs the whole
        spectrum of a sparse matrix with min(n, m) > 5,000.

    References
    ----------
    Breiman, Friedman, Olshen & Stone (1984), "Classification and regression trees", section 3.4.3.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> A = 10 * rng.normal(size=(100, 2)) @ rng.normal(size=(2, 30)) + rng.normal(size=(100, 30))
    >>> choose_rank(A), choose_rank(A, "parallel", center=True, random_state=0)
    (2, 2)
    """
    check_choice(rule, RULES, "rule")
    # No rule depends on the scale.
    matrix, _ = rescaled(as_operator(A))
    if rule == "elbow":
        k = min(_MOST_RANKS, *matrix.shape)
        return elbow(
            truncated_svd(matrix, k, center=center, random_state=random_state).s
        )
    if rule == "parallel":
        return parallel_analysis(matrix, center=center, random_state=random_state)
    if rule == "cv":
        return _best_predicting_rank(matrix, center, random_state)
    spectrum = _whole_spectrum(matrix, bool(center), _ELBOW)
    if rule == "energy":
        return rank_for_energy(spectrum, fraction)
    return gavish_donoho(spectrum, matrix.shape)


def gavish_donoho(
    s: ArrayLike,
    shape: tuple[int, int],
    noise: float | None = None,
) -> int:
    r"""Count the singular values above the optimal hard threshold for white noise.

    With noise of standard deviation sigma per entry and beta = min(n, m) / max(n, m), the threshold
    is ``lambda(beta) sqrt(max(n, m)) sigma``,
    :math:`\lambda(\beta) = \sqrt{2(\beta+1) + 8\beta / (\beta + 1 + \sqrt{\beta^2+14\beta+1})}`.
    If sigma is unknown, it is estimated from the median singular value.

    Parameters
    ----------
    s : array-like of shape (min(n, m),)
        All singular values in descending order. The leading ones are enough if `noise` is given.
    shape : tuple of int
        Shape (n, m) of the matrix.
    noise : float, optional
        Standard deviation sigma of the noise.

    Raises
    ------
    ValueError
        If `s` is not descending, finite and non-negative, or is incomplete and `noise` is missing.

    References
    ----------
    Gavish & Donoho (2014), "The optimal hard threshold for singular values is 4/sqrt(3)",
    equations (11) and (13)-(14).

    Examples
    --------
    >>> gavish_donoho([40.0, 30.0, 9.0, 8.0], (100, 4), noise=1.0)
    2
    """
    spectrum = _checked_spectrum(s)
    if noise is not None:
        check_positive(noise, "noise", or_zero=True)
    if noise is None and spectrum.size < min(shape):
        raise ArgumentError(
            f"s must have all {min(shape)} singular values, as their median is needed; got "
            f"{spectrum.size}: compute the others, or give noise."
        )
    if spectrum.size == 0:
        return 0
    beta, unit = noise_unit(shape, noise, spectrum)
    threshold = threshold_factor(beta) * unit
    if noise is None:
        rounding = spectrum[0] * max(shape) * EPS
        threshold = max(threshold, rounding)
    return int(np.sum(spectrum > threshold))


def threshold_factor(beta: float) -> float:
    """Return the optimal hard threshold in units of sqrt(max(n, m)) sigma."""
    root = math.sqrt(beta**2 + 14 * beta + 1)
    return math.sqrt(2 * (beta + 1) + 8 * beta / (beta + 1 + root))


def noise_unit(
    shape: tuple[int, int],
    noise: float | None,
    spectrum: Float64Array,
) -> tuple[float, float]:
    """Return beta and sqrt(max(n, m)) sigma, with sigma given or from the median singular value.

    `spectrum` is the complete spectrum; it is not used if `noise` is given.
    """
    smaller, larger = sorted(shape)
    beta = smaller / larger
    if noise is not None:
        return beta, math.sqrt(larger) * noise
    return beta, float(np.median(spectrum)) / math.sqrt(marchenko_pastur_median(beta))


def marchenko_pastur_median(beta: float) -> float:
    """Return the median of the Marchenko-Pastur law with ratio beta, 0 < beta <= 1."""
    low = (1 - math.sqrt(beta)) ** 2
    high = (1 + math.sqrt(beta)) ** 2
    # x = centre - radius cos(t) turns the square root of the density into a smooth integrand.
    t = np.linspace(0, np.pi, 20_001)
    x = (low + high) / 2 - (high - low) / 2 * np.cos(t)
    density = np.zeros_like(x)
    np.divide(np.sin(t) ** 2, x, out=density, where=x > 0)
    if low < 1e-12:  # the limit of 0 / 0 at x = 0
        density[0] = 2 * density[1] - density[2]
    trapezoids = (density[1:] + density[:-1]) / 2
    mass = np.append(0, np.cumsum(trapezoids))
    return float(np.interp(mass[-1] / 2, mass, x))


def parallel_analysis(
    A: OperatorLike,
    *,
    center: bool = True,
    random_state: RandomStateLike = 0,
) -> int:
    """Count the leading singular values that exceed a matrix with permuted columns.

    Each of 20 permuted matrices has the entries of each column of A in random order; sparse
    matrices stay sparse. Counting ends at 50, or at the first singular value below the 95% quantile
    of the permuted ones. The parameters are as in `choose_rank`.

    References
    ----------
    Horn (1965), "A rationale and test for the number of factors in factor analysis"; Buja &
    Eyuboglu (1992), "Remarks on parallel analysis", for the permutations.
    """
    rng = checked_generator(random_state)
    matrix, _ = rescaled(as_operator(A))
    entries = entries_of(matrix, _ELBOW)
    k = min(_MOST_RANKS, *matrix.shape)
    real = truncated_svd(matrix, k, center=center, random_state=0).s
    chance = []
    for _ in range(_PERMUTATIONS):
        permuted = samples_of(_permuted(entries, rng))
        svd = truncated_svd(permuted, k, center=center, tol=1e-3, random_state=0)
        chance.append(svd.s)
    above = real > np.quantile(chance, _QUANTILE, axis=0)
    return int(np.argmin(np.append(above, False)))


def _permuted(entries: Any, rng: np.random.Generator) -> Any:
    """Return the matrix with the entries of each column moved to random rows."""
    if isinstance(entries, np.ndarray):
        return rng.permuted(entries, axis=0)
    csc = entries.tocsc()
    n_rows = csc.shape[0]
    counts = np.diff(csc.indptr)
    rows = [csc.indices[:0]]
    rows += [rng.choice(n_rows, size=count, replace=False) for count in counts]
    arrays = csc.data, np.concatenate(rows), csc.indptr
    return sparse.csc_array(arrays, shape=csc.shape).tocsr()


def whole_spectrum(
    A: OperatorLike,
    center: bool,
    hint: str = _ELBOW,
) -> Float64Array:
    """Return all singular values in descending order.

    Dense blocks of rows are reduced to a triangle, one after the other. Sparse input uses the
    smaller Gram matrix, and such blocks if squaring has lost the digits of the median.

    Raises
    ------
    TypeError, ValueError
        If A is a LinearOperator, sparse with a smaller side above 5,000, or RowBlocks that are
        sparse or have more columns than rows or than 5,000.
    """
    matrix, exponent = rescaled(as_operator(A))
    spectrum = _whole_spectrum(matrix, center, hint)
    check_range(float(spectrum.max(initial=0.0)) * 2.0**exponent, spectrum.dtype)
    return np.ldexp(spectrum, exponent)


def _whole_spectrum(matrix: MatrixOperator, center: bool, hint: str) -> Float64Array:
    rows, columns = matrix.shape
    is_dense = isinstance(matrix, RowBlocks) and not matrix.is_sparse
    if is_dense and columns <= min(rows, _LARGEST_GRAM):
        blocks = matrix.wide()
        if center:
            blocks = blocks.centred(matrix.column_means())
        return _values_of_blocks(blocks.dense_blocks(0))
    entries = entries_of(matrix, hint)
    mean = matrix.column_means() * center
    if isinstance(entries, np.ndarray):
        centred = entries.astype(np.float64) - mean
        return np.asarray(np.linalg.svd(centred, compute_uv=False))
    if min(matrix.shape) == 0:
        return np.zeros(0)
    if min(matrix.shape) > _LARGEST_GRAM:
        raise ArgumentError(
            f"A is sparse of shape {matrix.shape}, and this rule needs its whole spectrum, for "
            f"which min(A.shape) must be at most {_LARGEST_GRAM}; use 'elbow' or 'parallel'."
        )
    # Y'Y or Y Y', whichever is smaller, for Y = S - 1 mean'
    S = entries.astype(np.float64)
    centred, mean = centred_columns(S, mean)
    if centred is not None:
        S = centred
    if columns <= rows:
        gram = (S.T @ S).toarray() - rows * np.outer(mean, mean)
    else:
        along = (S @ mean)[:, None]
        gram = (S @ S.T).toarray() - along - along.T + mean @ mean
    s = _roots(gram, max(rows, columns))
    is_lost = s[len(s) // 2] < _SQUARABLE * s[0]
    if is_lost and rows * columns * len(s) <= _LARGEST_WORK:
        s = _values_of_blocks(_blocks_of_rows(S, mean))
    return s


def _blocks_of_rows(S: Any, mean: Float64Array) -> Iterator[Float64Array]:
    """Yield dense blocks of rows of Y = S - 1 mean', or of Y' if this has more rows."""
    rows, columns = S.shape
    if columns > rows:
        S = S.T.tocsr()
    for part in pieces(max(rows, columns), max(_LEAST_ROWS, min(rows, columns))):
        block = S[part].toarray()
        yield block - (mean if columns <= rows else mean[part, None])


def _values_of_blocks(blocks: Iterable[FloatArray]) -> Float64Array:
    """Return the singular values of blocks of rows, in which nothing is squared."""
    R: Float64Array | None = None
    for block in blocks:
        stack = block if R is None else np.vstack([R, block])
        R = np.asarray(np.linalg.qr(stack, mode="r"), np.float64)
    if R is None:
        return np.zeros(0)
    s: Float64Array = np.linalg.svd(R, compute_uv=False).astype(np.float64, copy=False)
    return s


def _roots(gram: Float64Array, larger: int) -> Float64Array:
    """Return singular values, given the Gram matrix of the smaller side."""
    eigenvalues = np.linalg.eigvalsh(gram)[::-1]
    rounding = eigenvalues.max(initial=0.0) * larger * EPS
    return np.sqrt(np.where(eigenvalues > rounding, eigenvalues, 0.0))


def bi_cross_validation(
    A: OperatorLike,
    max_rank: int = 50,
    *,
    center: bool = True,
    random_state: RandomStateLike = 0,
) -> Float64Array:
    """Return the mean squared error of predicting held-out blocks from the others, at each rank.

    Rows and columns are split into three random folds each. A block A11 of one fold of both is
    predicted by ``A12 (A22)_k^+ A21``, from the blocks next to, diagonal to and below it, where
    ``(A22)_k`` is the rank-k approximation. Sparse blocks and predictions are never made dense.
    The errors are those at the ranks 0 to r, with r at most `max_rank` and as small as the blocks
    require. Unlike the training error, they rise again beyond the rank of the signal. They are inf
    or 0 where squares of the entries are; the rule "cv" of `choose_rank` works there too.

    Parameters
    ----------
    A, center, random_state
        As in `choose_rank`; `random_state` draws the folds.
    max_rank : int
        Largest rank to try.

    Raises
    ------
    TypeError, ValueError
        If A is a LinearOperator, or has fewer than three rows or columns, or `max_rank` is not an
        integer, or negative.

    References
    ----------
    Owen & Perry (2009), "Bi-cross-validation of the SVD and the nonnegative matrix factorization",
    section 3.
    """
    matrix, exponent = rescaled(as_operator(A))
    errors = _errors_of_blocks(matrix, max_rank, center, random_state).sum(axis=0)
    n, m = matrix.shape
    with np.errstate(over="ignore"):  # inf is right where squares overflow
        means: Float64Array = errors / (n * m) * 2.0**exponent * 2.0**exponent
    return means


def _errors_of_blocks(
    matrix: MatrixOperator,
    max_rank: int,
    center: bool,
    random_state: RandomStateLike,
) -> Float64Array:
    """Return the squared errors of predicting each block at each rank, shape (9, r + 1)."""
    entries = entries_of(matrix, _ELBOW)
    shape = matrix.shape
    if min(shape) < _FOLDS:
        raise ArgumentError(
            f"A must have at least {_FOLDS} rows and columns to hold some out; got shape {shape}."
        )
    checked_integer(max_rank, "max_rank", least=0)
    mean = matrix.column_means() if center else np.zeros(shape[1])
    rng = checked_generator(random_state)
    rows = np.array_split(rng.permutation(shape[0]), _FOLDS)
    columns = np.array_split(rng.permutation(shape[1]), _FOLDS)
    n_other_rows = shape[0] - len(rows[0])
    n_other_columns = shape[1] - len(columns[0])
    k = min(max_rank, n_other_rows, n_other_columns)
    errors = []
    for row_fold, column_fold in product(rows, columns):
        other_columns = np.setdiff1d(np.arange(shape[1]), column_fold)
        other_rows = np.setdiff1d(np.arange(shape[0]), row_fold)
        upper = entries[row_fold]
        lower = entries[other_rows]
        errors_of_block = _block_errors(
            held_out=upper[:, column_fold],
            right=upper[:, other_columns],
            below=lower[:, column_fold],
            diagonal=lower[:, other_columns],
            near=mean[column_fold],
            far=mean[other_columns],
            k=k,
        )
        errors.append(errors_of_block)
    return np.stack(errors)


def _block_errors(
    *,
    held_out: Any,
    right: Any,
    below: Any,
    diagonal: Any,
    near: Float64Array,
    far: Float64Array,
    k: int,
) -> Float64Array:
    """Return ``||A11 - A12 (A22)_j^+ A21||_F^2`` for j = 0 ... k.

    The blocks are A11, A12, A21 and A22; `near` and `far` are the means of their columns.
    """
    U, s, Vt = truncated_svd(samples_of(diagonal), k, center=far, random_state=0)
    is_signal = s > s.max(initial=0) * 1e-6
    inverse = np.divide(1, s, out=np.zeros_like(s), where=is_signal)
    left_factor = (right @ Vt.T - far @ Vt.T) * inverse
    right_factor = below.T @ U - np.outer(near, U.sum(axis=0))
    centred = held_out @ right_factor - near @ right_factor
    # |A11 - L R'|^2 = |A11|^2 - 2 <A11 R, L> + <L'L, R'R>, for the first j columns of L and R
    overlap = np.cumsum(column_dots(left_factor, centred))
    gram = (left_factor.T @ left_factor) * (right_factor.T @ right_factor)
    squares = np.array([gram[:j, :j].sum() for j in range(k + 1)])
    total = float(samples_of(held_out).column_squares(near).sum())
    errors: Float64Array = total - 2 * np.append(0, overlap) + squares
    return errors


def _best_predicting_rank(
    matrix: MatrixOperator,
    center: bool,
    random_state: RandomStateLike,
) -> int:
    """Return the smallest rank whose error is within a standard error of the least.

    The standard error is that of the difference over the blocks, whose least error alone is often
    one of a rank too many by chance.
    """
    errors = _errors_of_blocks(matrix, _MOST_RANKS, center, random_state)
    totals = errors.sum(axis=0)
    differences = errors - errors[:, [np.argmin(totals)]]
    deviations = np.std(differences, axis=0, ddof=1)
    # Exact data have equal errors from their rank on, up to rounding.
    rounding = 1e3 * epsilon(matrix.dtype) * totals[0]
    allowed = math.sqrt(len(errors)) * deviations + rounding
    return int(np.argmax(differences.sum(axis=0) <= allowed))

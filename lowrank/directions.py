"""Principal directions of samples, the variance that they leave, and their update by batches."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from scipy import linalg

from lowrank.arguments import validated
from lowrank.kernels import pieces
from lowrank.kernels.arrays import EPS, epsilon
from lowrank.operators import safe_exponent
from lowrank.samples import ENTRY_ROUNDING, SOLVER_ROUNDING, rounding_limits
from lowrank.solvers.lapack import lapack_svd
from lowrank.svd import solved, with_signs

if TYPE_CHECKING:
    from lowrank.arguments import RandomStateLike
    from lowrank.operators import Float64Array, FloatArray, MatrixOperator
    from lowrank.samples import Samples
    from lowrank.svd import SVD
    from lowrank.weighting import WeightedSamples

    Centering = Literal["exact", "drop", "none"]

# Share of the kept variance that dropping the first direction may cost next to exact centring.
_LARGEST_LOSS = 0.01
# Values of t that are tried in the bound of that loss; each gives a bound.
_DAMPING = np.logspace(-4, -0.001, 60)
# Share of the whole below which a difference of sums of squares has lost digits.
_CANCELS = {"float32": 1e-2, "float64": 1e-6}
# Largest share of the remainder that errors of the directions may be, finest tolerance for that.
_ERROR_OF_REST, _FINEST, _MOST_REFINEMENTS = 1e-3, 1e-14, 3
_OF_DIFFERENCE = (
    1e-12  # rounding of a column's share of the remainder, if it is a difference
)
_COLUMNS = 256  # columns whose remainders are computed at once
_MOST_COLUMNS = 2048  # columns whose remainders are computed at all
_NULL = 30  # size of a zero singular value, in machine epsilons of the largest
_SQUARABLE = 1e-3  # share of the largest value whose square in float64 has 10 digits


@dataclass(frozen=True)
class Solver:
    """Options of the decomposition."""

    ddof: int
    method: str
    tol: float | None
    random_state: RandomStateLike

    def svd(
        self,
        samples: Samples,
        k: int,
        row: Float64Array,
    ) -> SVD:
        """Return the k largest triplets of Y - 1 row', in the precision that they need."""
        center = row if row.any() else None
        problem = validated(
            samples,
            k,
            self.method,
            self.tol,
            center,
            self.random_state,
        )
        return _with_fixed_null_space(solved(problem, stacklevel=2))


def _with_fixed_null_space(svd: SVD) -> SVD:
    """Return triplets whose directions without variance depend on the other directions only.

    Any basis of the null space would do. This one is the same for repeated rows and for their
    weights: the part of fixed random vectors outside of the other directions.
    """
    s, Vt = svd.s, svd.Vt
    if Vt.dtype != np.float64 or not s.size or s[0] == 0:
        return svd
    rank = int(np.count_nonzero(s > _NULL * EPS * s[0]))
    if rank == s.size:
        return svd
    others = np.random.default_rng(0).standard_normal((Vt.shape[1], s.size - rank))
    for _ in range(2):
        others -= Vt[:rank].T @ (Vt[:rank] @ others)
    basis: FloatArray = np.linalg.qr(others)[0].T
    _, _, basis = with_signs(np.ones((1, len(basis))), s[rank:], basis)
    return replace(svd, Vt=np.vstack([Vt[:rank], basis]))


@dataclass(frozen=True, eq=False)
class PrincipalDirections:
    """Orthonormal directions in m dimensions, and the variances of n samples along them.

    Arrays have shape (k, m) or (m,); singular values, variances and limits have shape (k,).
    """

    components: FloatArray
    singular_values: Float64Array  # ||(Y - 1 row') v|| for each direction v
    variances: Float64Array  # along each direction, about the samples' own mean
    row: Float64Array  # row vector subtracted from each sample
    # |cosine| between the dropped direction (if any) and the column mean.
    alignment: float | None
    centering: Centering
    negligible: Float64Array  # singular values up to this limit are rounding errors
    # Sum of squares of Y about its means: total variance times the divisor.
    total: float
    distortion: float  # ||(Y - 1 row') (I - V V')||_F^2, 0 if it is only rounding error
    unexplained: float  # the same for Y about its means
    means: Float64Array  # column means of Y
    squares: Float64Array  # sums of squares of the columns of Y
    n_samples: float  # sum of the sample weights
    n_rows: int  # number of samples
    exponent: int = 0  # the numbers above are those of the samples times 2**-exponent

    def first(self, k: int, divisor: float) -> PrincipalDirections:
        """Return the first k directions; the others are added to the remainder."""
        others = slice(k, None)
        lost = float((self.variances[others] * divisor).sum())
        return replace(
            self,
            components=self.components[:k].copy(),
            singular_values=self.singular_values[:k].copy(),
            variances=self.variances[:k].copy(),
            negligible=self.negligible[:k].copy(),
            distortion=self.distortion
            + float((self.singular_values[others] ** 2).sum()),
            unexplained=self.unexplained + lost,
        )

    def with_means(self, means: Float64Array) -> PrincipalDirections:
        """Return the same directions with other means, which differ where components are 0."""
        scaled = means * 2.0**-self.exponent
        return replace(
            self, means=scaled, row=scaled if self.centering == "exact" else self.row
        )

    def with_exponent(self, exponent: int) -> PrincipalDirections:
        """Return the same directions in units of 2**exponent."""
        unit = 2.0 ** (self.exponent - exponent)
        return replace(
            self,
            singular_values=self.singular_values * unit,
            variances=self.variances * unit * unit,
            row=self.row * unit,
            negligible=self.negligible * unit,
            total=self.total * unit * unit,
            distortion=self.distortion * unit * unit,
            unexplained=self.unexplained * unit * unit,
            means=self.means * unit,
            squares=self.squares * unit * unit,
            exponent=exponent,
        )


def directions_about(
    samples: Samples,
    k: int,
    solver: Solver,
    *,
    centred: bool,
) -> PrincipalDirections:
    """Return the k directions of largest variance about the column means, or about 0."""
    means = samples.column_means()
    row = means if centred else np.zeros(samples.shape[1])
    svd = solver.svd(samples, k, row)
    matrix, svd, exponent = _squarable(samples, svd)
    means = means * 2.0**-exponent
    row = row * 2.0**-exponent
    squares = matrix.column_squares(np.zeros_like(means))
    about_means = matrix.column_squares(means)
    about_row = about_means if centred else squares
    svd, distortion = _refined(
        matrix, row, svd, solver, about_row, squares, samples.dtype
    )
    values = svd.s.astype(np.float64)
    count = samples.shape[0]
    divisor = count - solver.ddof
    variances = values**2 / divisor
    unexplained = distortion
    if not centred:
        variances = _variances_of_scores(svd, divisor)
        lengths = np.sqrt(variances * divisor)
        unexplained = squares_outside(
            matrix, means, svd.Vt, lengths, about_means, squares, samples.dtype
        )
    return PrincipalDirections(
        components=svd.Vt,
        singular_values=values,
        variances=variances,
        row=row,
        alignment=None,
        centering="exact" if centred else "none",
        negligible=rounding_limits(squares, matrix.shape, matrix.dtype, svd.s, svd.Vt),
        total=float(about_means.sum()),
        distortion=distortion,
        unexplained=unexplained,
        means=means,
        squares=squares,
        n_samples=count,
        n_rows=count,
        exponent=exponent,
    )


def _squarable(
    samples: Samples,
    svd: SVD,
) -> tuple[Samples, SVD, int]:
    """Return samples and triplets times 2**-x, whose squares do not overflow, and x."""
    norm = svd.frobenius_norm or 0.0
    exponent = safe_exponent(norm, np.dtype(np.float64))
    if exponent:
        samples = samples.scaled(2.0**-exponent)
        svd = svd._scaled(-exponent)
    return samples, svd, exponent


def _refined(
    samples: Samples,
    row: Float64Array,
    svd: SVD,
    solver: Solver,
    about_row: Float64Array,
    squares: Float64Array,
    dtype: np.dtype[Any],
) -> tuple[SVD, float]:
    """Return triplets whose errors are small next to what they leave, and the squares of that."""
    distortion = squares_outside(samples, row, svd.Vt, svd.s, about_row, squares, dtype)
    for _ in range(_MOST_REFINEMENTS):
        errors = float((svd.residuals**2).sum())
        if errors <= _ERROR_OF_REST * distortion or distortion == 0:
            break
        # What inaccurate directions leave counts as variance of the others.
        is_positive = svd.s > 0
        shares = svd.residuals[:, is_positive] / svd.s[is_positive]
        finer = math.sqrt(_ERROR_OF_REST * distortion / errors) / 2
        finer *= float(shares.max(initial=0.0))
        if finer < _FINEST:
            break
        svd = replace(solver, tol=finer).svd(samples, svd.s.size, row)
        distortion = squares_outside(
            samples, row, svd.Vt, svd.s, about_row, squares, dtype
        )
    return svd, distortion


def weighted_directions(
    samples: WeightedSamples,
    k: int,
    solver: Solver,
) -> PrincipalDirections:
    """Return the k directions of largest weighted variance, as `directions_about`."""
    zeros = np.zeros(samples.matrix.shape[1])
    svd = solver.svd(samples.matrix, k, zeros)
    matrix, svd, exponent = _squarable(samples.matrix, svd)
    unit = 2.0**-exponent
    means = samples.means * unit
    row = samples.row * unit
    squares = samples.squares * unit * unit
    weighted = matrix.column_squares(zeros)
    svd, distortion = _refined(
        matrix, zeros, svd, solver, weighted, weighted, samples.dtype
    )
    values = svd.s.astype(np.float64)
    total = float(weighted.sum())
    sums, unexplained = values**2, distortion
    if not samples.centred:  # about the means, by the rank-one difference
        along = svd.Vt.astype(np.float64) @ means
        length = float(means @ means)
        sums = np.maximum(sums - samples.total * along**2, 0.0)
        total = max(total - samples.total * length, 0.0)
        unexplained = max(
            distortion - samples.total * (length - float(along @ along)), 0.0
        )
    return PrincipalDirections(
        components=svd.Vt,
        singular_values=values,
        variances=sums / (samples.total - solver.ddof),
        row=row,
        alignment=None,
        centering="exact" if samples.centred else "none",
        negligible=rounding_limits(squares, matrix.shape, samples.dtype, svd.s, svd.Vt),
        total=total,
        distortion=distortion,
        unexplained=unexplained,
        means=means,
        squares=squares,
        n_samples=samples.total,
        # Weights that are numbers of repetitions count as rows.
        n_rows=max(matrix.shape[0], math.floor(samples.total)),
        exponent=exponent,
    )


class Dropped(NamedTuple):
    """Directions of Y without centring after the first, and what is lost by dropping the first.

    `loss` is an upper bound of the share of variance that they lose next to exact centring.
    `is_small` tells whether this is little, and the first has no more variance than the last.
    """

    directions: PrincipalDirections
    loss: float
    is_small: bool


def directions_after_the_first(
    samples: Samples,
    k: int,
    solver: Solver,
) -> Dropped:
    """Return the k directions of Y without centring that follow the first, which is dropped."""
    count = samples.shape[0]
    largest = min(samples.shape)
    zeros = np.zeros(samples.shape[1])
    svd = solver.svd(samples, min(k + 1, largest), zeros)
    matrix, svd, exponent = _squarable(samples, svd)
    means = samples.column_means() * 2.0**-exponent
    divisor = count - solver.ddof
    values = svd.s.astype(np.float64)
    variances = _variances_of_scores(svd, divisor)
    loss = 1.0
    if k < largest:
        loss = _loss_of_dropping(count, means, svd, k)
    is_small = loss <= _LARGEST_LOSS and bool(variances[0] <= variances[-1])
    first = svd.Vt[0].astype(np.float64)
    length = float(np.linalg.norm(means))
    along = float(means @ first)
    row = along * first
    order = np.arange(1, k + 1)
    if k == largest:
        # There is no direction k + 1: the first one, minus the mean, becomes the last.
        order[-1:] = 0
        values[:1] = (variances[:1] * divisor) ** 0.5
    components = svd.Vt[order]
    squares = matrix.column_squares(zeros)
    about_means = matrix.column_squares(means)
    about_row = matrix.column_squares(row)
    limits = rounding_limits(squares, matrix.shape, matrix.dtype, svd.s, svd.Vt)
    values = values[order]
    variances = variances[order]
    lengths = np.sqrt(variances * divisor)
    distortion = squares_outside(
        matrix, row, components, values, about_row, squares, matrix.dtype
    )
    unexplained = squares_outside(
        matrix, means, components, lengths, about_means, squares, matrix.dtype
    )
    directions = PrincipalDirections(
        components=components,
        singular_values=values,
        variances=variances,
        row=row,
        alignment=min(1.0, abs(along) / length) if length > 0 else 0.0,
        centering="drop",
        negligible=limits[order],
        total=float(about_means.sum()),
        distortion=distortion,
        unexplained=unexplained,
        means=means,
        squares=squares,
        n_samples=count,
        n_rows=count,
        exponent=exponent,
    )
    return Dropped(directions, loss, is_small)


def _loss_of_dropping(
    count: int,
    means: Float64Array,
    svd: SVD,
    k: int,
) -> float:
    """Bound the share of variance that the directions 2 to k + 1 lose next to the best k.

    The second moment M of the samples is diagonal in its k + 1 leading directions P, and in the
    others Q, where it is at most q, the last of the k + 1. The covariance is M - m m' for the mean
    m = m_P + m_Q. For each t between 0 and 1,

        -m m' <= -(1 - t) m_P m_P' + (1 / t - 1) m_Q m_Q',

    so that the k largest variances are at most those of a (k + 1) x (k + 1) matrix and of
    q + (1 / t - 1) |m_Q|^2.
    """
    moments = svd.s.astype(np.float64) ** 2 / count
    along = svd.Vt.astype(np.float64) @ means
    explained = float((moments[1:] - along[1:] ** 2).sum())
    outside = max(float(means @ means - along @ along), 0.0)
    best = math.inf
    for share in _DAMPING:
        inside = np.linalg.eigvalsh(
            np.diag(moments) - (1 - share) * np.outer(along, along)
        )
        beyond = float(moments[-1]) + (1 / share - 1) * outside
        bounds = np.sort(np.append(inside, np.full(k, beyond)))[::-1]
        best = min(best, float(bounds[:k].sum()))
    return max(0.0, 1 - explained / best) if best > 0 else 0.0


def _variances_of_scores(svd: SVD, divisor: float) -> Float64Array:
    """Return the variance of each column of U diag(s) about its own mean."""
    left = svd.U - svd.U.mean(axis=0, dtype=np.float64)
    variances: Float64Array = svd.s.astype(np.float64) ** 2
    variances *= np.einsum("ij,ij->j", left, left) / divisor
    return variances


def squares_outside(
    samples: Samples,
    row: Float64Array,
    components: FloatArray,
    lengths: FloatArray,
    about_row: Float64Array,
    squares: Float64Array,
    dtype: np.dtype[Any],
) -> float:
    """Return ||(Y - 1 row') (I - V V')||_F^2, or 0 if it is only rounding error in a dtype.

    `components` are the orthonormal V', and `lengths` are ||(Y - 1 row') v||. `about_row` and
    `squares` are the sums of squares of the columns of Y - 1 row' and of Y. The result is the
    difference of two sums of squares. If that loses digits, the columns with most squares are
    computed as the product with (I - V V') e_j.
    """
    if len(components) == min(samples.shape):
        return 0.0
    whole = float(about_row.sum())
    squares_along = lengths.astype(np.float64) ** 2
    outside_total = whole - float(squares_along.sum())
    cancelled = whole
    V = components.T
    shares: Float64Array | None = None
    if outside_total < _CANCELS[str(V.dtype)] * whole:
        wide: MatrixOperator = samples.wide()
        if row.any():
            wide = wide.centred(row)
        if V.dtype == np.float32:
            V = np.linalg.qr(V.astype(np.float64))[0]
            product = wide.matmat(np.ascontiguousarray(V))
            squares_along = np.einsum("ij,ij->j", product, product)
            outside_total = whole - float(squares_along.sum())
        order = np.argsort(-about_row, kind="stable")[:_MOST_COLUMNS]
        shares = about_row - (V**2) @ squares_along
        for part in pieces(len(order), _COLUMNS):
            if outside_total >= _CANCELS["float64"] * cancelled:
                break
            chosen = order[part]
            outside = -(V @ V[chosen].T)
            outside[chosen, np.arange(len(chosen))] += 1.0
            product = wide.matmat(outside)
            shares[chosen] = np.einsum("ij,ij->j", product, product)
            cancelled -= float(about_row[chosen].sum())
            outside_total = float(shares.sum())
    # Constant columns are centred without rounding.
    varied = np.where(about_row == 0, 0.0, squares)
    rounding = _rounding_of_entries(varied, samples.shape, dtype, components)
    # The difference of the sums of the other columns is rounded, too.
    rounding += 4 * EPS * max(cancelled, 0.0) * max(1.0, len(components) ** 0.5)
    if outside_total > rounding:
        return outside_total
    if outside_total <= 0 or shares is None:
        return 0.0
    if _has_more_than_rounding(
        shares, about_row, varied, samples.shape[0], dtype, components
    ):
        return outside_total
    return 0.0


def _has_more_than_rounding(
    shares: Float64Array,
    about_row: Float64Array,
    squares: Float64Array,
    n_rows: int,
    dtype: np.dtype[Any],
    components: FloatArray,
) -> bool:
    """Return whether some column has more squares outside of V than rounding can leave there.

    Rounding of a heavy column stays in the columns that directions outside of V connect with it,
    such as a copy of it. Then the variance of all others is more than rounding.
    """
    n_columns = len(squares)
    if components.dtype == np.float32 or n_columns > _MOST_COLUMNS:
        return False
    V = components.T
    of_entry = ENTRY_ROUNDING * epsilon(dtype)
    of_solver = SOLVER_ROUNDING * EPS
    spread = max(1.0, n_columns / n_rows)
    with np.errstate(over="ignore"):
        of_all = of_solver**2 * float(squares.sum())
        for part in pieces(n_columns, _COLUMNS):
            outside = V @ V[part].T
            outside[part] -= np.eye(len(shares[part]))
            limits = of_entry**2 * spread * (squares @ outside**2)
            limits += of_all + _OF_DIFFERENCE * about_row[part]
            if (shares[part] > limits).any():
                return True
    return False


def _rounding_of_entries(
    squares: Float64Array,
    shape: tuple[int, int],
    dtype: np.dtype[Any],
    components: FloatArray,
) -> float:
    """Return the squares that rounding of the entries and of the solver leaves outside of V."""
    inside = np.einsum("ij,ij->j", components, components, dtype=np.float64)
    n, m = shape
    of_entry = ENTRY_ROUNDING * epsilon(dtype)
    of_solver = SOLVER_ROUNDING * EPS
    # Squares of constant columns may overflow: infinity is right then, but not times 0.
    squares = np.minimum(squares, np.finfo(np.float64).max)
    with np.errstate(over="ignore"):
        outside = float(squares @ np.maximum(1 - inside, 0.0))
        from_entries = of_entry**2 * max(1.0, m / n) * outside
        return from_entries + of_solver**2 * m * float(squares.sum())


def no_directions(
    features: int,
    centering: Centering,
    exponent: int,
) -> PrincipalDirections:
    """Return the directions of no samples, to which batches are joined."""
    none = np.zeros(0)
    return PrincipalDirections(
        components=np.zeros((0, features)),
        singular_values=none,
        variances=none,
        row=np.zeros(features),
        alignment=None,
        centering=centering,
        negligible=none,
        total=0.0,
        distortion=0.0,
        unexplained=0.0,
        means=np.zeros(features),
        squares=np.zeros(features),
        n_samples=0.0,
        n_rows=0,
        exponent=exponent,
    )


def joined_directions(
    before: PrincipalDirections,
    samples: Samples,
    *,
    forgetting: float,
    k: int,
    ddof: int,
) -> PrincipalDirections:
    """Return at most k directions of the union of earlier samples and a batch, in float64."""
    old, new = forgetting * before.n_samples, samples.shape[0]
    n_rows = before.n_rows + new
    batch_means = samples.column_means()
    shift = batch_means - before.means
    means = before.means + shift * (new / (old + new))
    between = math.sqrt(old * new / (old + new)) * shift
    rows = samples.toarray().astype(np.float64)
    is_centred = before.centering == "exact"
    if is_centred:
        rows = np.vstack([rows - batch_means, between])
    earlier = before.singular_values * math.sqrt(forgetting)
    stack = np.vstack([earlier[:, None] * before.components, rows])
    values, components, remainder = _leading_rows(stack, min(k, n_rows))
    squares = forgetting * before.squares
    squares += samples.column_squares(np.zeros(samples.shape[1]))
    outside = forgetting * before.distortion + remainder
    if outside <= _rounding_of_entries(
        squares, (n_rows, len(squares)), samples.dtype, components
    ):
        outside = 0.0
    variances = values.astype(np.float64) ** 2
    unexplained = outside
    if not is_centred:
        along = components @ means
        variances = variances - (old + new) * along**2
        unexplained = max(
            0.0, outside - (old + new) * float(means @ means - along @ along)
        )
    total = forgetting * before.total + float(between @ between)
    total += float(samples.column_squares(batch_means).sum())
    return PrincipalDirections(
        components=components,
        singular_values=values.astype(np.float64),
        variances=variances / (old + new - ddof),
        row=means if is_centred else np.zeros(len(means)),
        alignment=None,
        centering=before.centering,
        negligible=rounding_limits(
            squares, (n_rows, len(squares)), samples.dtype, values, components
        ),
        total=total,
        distortion=outside,
        unexplained=unexplained,
        means=means,
        squares=squares,
        n_samples=old + new,
        n_rows=n_rows,
        exponent=before.exponent,
    )


def _leading_rows(stack: FloatArray, k: int) -> tuple[FloatArray, FloatArray, float]:
    """Return k singular values and right vectors of a few rows, and the squares of the others.

    The smaller Gram matrix is used if squaring loses no digits, else LAPACK. Signs are fixed.
    """
    s: FloatArray
    rows, columns = stack.shape
    if 0 < 2 * k < min(stack.shape):
        gram = stack @ stack.T if rows <= columns else stack.T @ stack
        values, vectors = np.linalg.eigh(gram)
        values = np.maximum(values[::-1], 0)
        vectors = vectors[:, ::-1].T
        remainder = float(values[k:].sum())
        s = np.sqrt(values[:k])
        if min(s[-1], math.sqrt(remainder)) > _SQUARABLE * s[0]:
            Vt: FloatArray = vectors[:k]
            if rows <= columns:
                Vt = Vt @ stack / s[:, None]
            _, s, Vt = with_signs(np.ones((1, s.size)), s, Vt)
            return s, Vt, remainder
    if rows > columns:
        # The R of a QR decomposition has the same values and right vectors.
        stack = linalg.qr(stack, mode="r", check_finite=False)[0][:columns]
    _, s, Vt = with_signs(*lapack_svd(stack))
    return s[:k], Vt[:k], float((s[k:] ** 2).sum())

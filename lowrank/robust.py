"""Robust PCA: a matrix as the sum of a low-rank and a sparse matrix."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse

from lowrank.acceleration import Acceleration
from lowrank.approximation import svd_down_to
from lowrank.arguments import checked_generator
from lowrank.blocks import as_array, not_finite
from lowrank.errors import (
    ArgumentError,
    ArgumentTypeError,
    check_positive,
    check_range,
    checked_integer,
    real_matrix,
)
from lowrank.kernels.arrays import Masks
from lowrank.low_rank import LowRank
from lowrank.sums import inner
from lowrank.svd import ConvergenceWarning, truncated_svd

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from lowrank.arguments import RandomStateLike
    from lowrank.operators import FloatArray

_TOL = {"float32": 1e-5, "float64": 1e-7}
_MARGIN = 5  # number of singular values computed beyond the expected rank
# Iterations between two computations of the gap, each with a spectral norm
_GAP_PERIOD = 5
_FIRST_STEP = 0.03  # step size, in units of ||X||_2
_LARGEST_FACTOR = 10.0  # by which the step size changes at once
_FIRST_BALANCE = 10  # iteration at which the step size first changes
_STILL = 1e-9  # movement below which the ratio of movements is rounding
# Iteration after which it changes by large factors only, and the least of these
_SETTLED = 200
_SETTLED_FACTOR = 3.0
_BEHIND = 100.0  # a gap of so many residuals shows that the step size is too small
_FAILED = 2.0  # growth of the change after which the acceleration starts again


@dataclass(
    frozen=True,
    eq=False,
    repr=False,
)
class RobustPCA:
    """Decomposition of a matrix X as ``low_rank + sparse``, with its accuracy; see `robust_pca`.

    Attributes
    ----------
    low_rank : LowRank of shape (n, m)
        The low-rank part, which also has values at missing entries of X.
    sparse : csr_array of shape (n, m)
        The sparse part, which has no entries at missing entries of X.
    penalty : float
        The weight lambda of the sparse part.
    residual : float
        ||X - low_rank - sparse||_F / ||X||_F over the known entries.
    duality_gap : float
        (P - D) / P, where P is the objective of the decomposition of X into `low_rank` and the
        remainder, and D a lower bound from the multipliers: no decomposition has an objective below
        (1 - duality_gap) P.
    iterations : int
        Number of iterations, each with one truncated SVD.
    """

    low_rank: LowRank
    sparse: sparse.csr_array
    penalty: float
    residual: float
    duality_gap: float
    iterations: int

    @property
    def matrix(self) -> LowRank:
        """The low-rank part, as other results name their matrix."""
        return self.low_rank

    def toarray(self) -> FloatArray:
        """Return the low-rank part as a dense array of shape (n, m)."""
        return self.low_rank.toarray()

    def __repr__(self) -> str:
        share = self.sparse.nnz / max(1, math.prod(self.low_rank.shape))
        return (
            f"RobustPCA(shape={self.low_rank.shape}, rank={self.low_rank.rank}, "
            f"sparse entries={share:.2%}, residual={self.residual:.1e}, "
            f"duality gap={self.duality_gap:.1e}, iterations={self.iterations})"
        )


def robust_pca(
    X: ArrayLike,
    *,
    penalty: float | None = None,
    tol: float | None = None,
    max_iter: int = 3000,
    random_state: RandomStateLike = 0,
) -> RobustPCA:
    """Decompose a matrix into a low-rank and a sparse part, by principal component pursuit.

    The parts L and S minimise ||L||_* + penalty ||S||_1 (the sums of singular values and of
    absolute values) subject to L + S = X at the known entries. Gross errors in a few entries end up
    in S, and do not affect the directions of L as they would affect PCA.

    Parameters
    ----------
    X : array-like of shape (n, m)
        Real data; NaN (or masked) entries are missing. Results are float32 for float32 input,
        otherwise float64. X is not centred: a constant column has rank 1.
    penalty : float, optional
        Weight of the sparse part. By default 1 / sqrt(max(n, m) p), where p is the share of
        known entries: the value for which recovery is proved. With a larger weight, the sparse part
        has fewer entries.
    tol : float, optional
        Largest accepted ``residual`` and ``duality_gap``, by default 1e-7 for float64 and 1e-5 for
        float32.
    max_iter : int, default 3000
        Maximum number of iterations.
    random_state : int, Generator, RandomState or None
        Seed of the truncated SVDs.

    Raises
    ------
    ArgumentTypeError, ArgumentError
        If X is sparse, not a real matrix, has an infinity or no known entries, or another argument
        is out of its range.

    Warns
    -----
    ConvergenceWarning
        If `tol` is not reached in `max_iter` iterations.

    References
    ----------
    Candes, Li, Ma & Wright (2011), "Robust principal component analysis?".
    Eckstein & Bertsekas (1992), "On the Douglas-Rachford splitting method and the proximal point
    algorithm for maximal monotone operators". Walker & Ni (2011), "Anderson acceleration for
    fixed-point iterations". Applegate et al. (2021), "Practical large-scale linear programming
    using primal-dual hybrid gradient" (the step size).

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> L = rng.standard_normal((60, 2)) @ rng.standard_normal((2, 50))
    >>> X = L.copy()
    >>> X[rng.random(X.shape) < 0.05] += 10.0
    >>> result = robust_pca(X)
    >>> result.low_rank.rank, bool(np.allclose(result.low_rank.toarray(), L, atol=1e-4))
    (2, True)
    """
    values, missing = _known_values(X)
    share = 1.0
    if missing is not None:
        share -= float(missing.mean())
    weight = 1 / math.sqrt(max(values.shape) * share) if penalty is None else penalty
    check_positive(weight, "penalty")
    target = _TOL[str(values.dtype)] if tol is None else tol
    check_positive(target, "tol")
    steps = checked_integer(max_iter, "max_iter", least=1)
    scale = float(np.abs(values).max() or 1.0)
    # The point L + t Y would lose the digits of Y in float32.
    wide = values.astype(np.float64) / scale
    pursuit = _Pursuit(wide, missing, weight, checked_generator(random_state))
    gap = math.inf
    while gap > target and pursuit.iterations < steps:
        pursuit.step()
        is_last = pursuit.iterations == steps
        is_due = pursuit.residual <= target and pursuit.iterations % _GAP_PERIOD == 0
        if is_due or is_last:
            gap = max(pursuit.duality_gap(), 0.0)
    if max(gap, pursuit.residual) > target:
        warnings.warn(
            f"The duality gap is {gap:.1e} of the objective and the residual "
            f"{pursuit.residual:.1e} of X after {max_iter} iterations, not both below "
            f"tol={target:.1e}; use a larger max_iter or tol.",
            ConvergenceWarning,
            stacklevel=2,
        )
    check_range(
        float(np.abs(pursuit.factors.left).max(initial=0.0)) * scale, values.dtype
    )
    return RobustPCA(
        low_rank=LowRank(
            (pursuit.factors.left * scale).astype(values.dtype),
            pursuit.factors.right.astype(values.dtype),
        ),
        sparse=sparse.csr_array((pursuit.sparse * scale).astype(values.dtype)),
        penalty=weight,
        residual=pursuit.residual,
        duality_gap=gap,
        iterations=pursuit.iterations,
    )


class _Pursuit:
    """Douglas-Rachford splitting, accelerated.

    The point z = L + t Y is mapped to L + t V. L lowers the singular values of z by the step size
    t. V = (X - (2 L - z)) / t, cut to the range from -penalty to penalty, and 0 at missing entries.
    At a fixed point, V = Y is a subgradient of both terms of the objective.
    """

    def __init__(
        self,
        values: FloatArray,
        missing: Masks | None,
        penalty: float,
        rng: np.random.Generator,
    ) -> None:
        self._X = values
        self._missing = missing
        self._penalty = penalty
        self._rng = rng
        self._norm = float(np.linalg.norm(values)) or 1.0
        self._spectral = float(truncated_svd(values, 1, random_state=rng).s[0]) or 1.0
        largest = float(np.abs(values).max())
        self._step = _FIRST_STEP * self._spectral
        self._multipliers = values / max(self._spectral, largest / penalty)
        self._point = self._step * self._multipliers
        self._acceleration = Acceleration(values.size, growth=_FAILED)
        self._low_rank: FloatArray = np.zeros_like(values)
        self._last_low_rank = self._low_rank
        self._last_subgradient = self._multipliers
        self._next_balance = _FIRST_BALANCE
        self.sparse: FloatArray = np.zeros_like(values)
        self.residual = math.inf
        self.iterations = 0
        self._rank = 0

    def step(self) -> None:
        """Minimise over the low-rank part, then over the sparse part."""
        # A few more singular values than the rank of the last step show where to stop.
        svd = svd_down_to(self._point, self._step, self._rng, self._rank + _MARGIN)
        self._rank = int(np.count_nonzero(svd.s > self._step))
        values = svd.s[: self._rank] - svd.s.dtype.type(self._step)
        self.nuclear_norm = float(values.sum(dtype=np.float64))
        self.factors = LowRank(svd.U[:, : self._rank] * values, svd.Vt[: self._rank].T)
        self._low_rank = self.factors.left @ self.factors.right.T
        remainder = self._X - 2 * self._low_rank + self._point
        level = self._step * self._penalty
        shift = np.clip(remainder, -level, level)
        if self._missing is not None:
            shift[self._missing] = 0.0
            remainder[self._missing] = 0.0
        self.sparse = remainder - shift
        error = float(np.linalg.norm(self._remainder - self.sparse))
        self.residual = error / self._norm
        self._multipliers = shift / self._step
        self.iterations += 1
        image = self._low_rank + shift
        change = float(np.linalg.norm(image - self._point))
        if not self._acceleration.accepts(self._point, image, change):
            self._point = self._acceleration.best_image
        elif self.iterations >= self._next_balance:
            self._balance()
        else:
            self._point = self._acceleration.next_point()

    def _balance(self) -> None:
        """Set the step size to the ratio at which the low-rank part and its subgradient move.

        This is the rule of PDLP for its primal weight (Applegate et al. 2021). It is applied more
        and more rarely, so that the iterations converge.
        """
        subgradient = (self._point - self._low_rank) / self._step
        primal = float(np.linalg.norm(self._low_rank - self._last_low_rank))
        dual = float(np.linalg.norm(subgradient - self._last_subgradient))
        factor = 1.0
        if max(primal / self._spectral, dual) > _STILL:
            ratio = primal / dual if dual else math.inf
            factor = math.sqrt(ratio / self._step)
        if self.iterations > _SETTLED:
            if 1 / _SETTLED_FACTOR < factor < _SETTLED_FACTOR:
                factor = 1.0
            # The multipliers lag behind.
            if self.duality_gap() > _BEHIND * self.residual:
                factor = _LARGEST_FACTOR
        factor = min(max(factor, 1 / _LARGEST_FACTOR), _LARGEST_FACTOR)
        self._step = min(factor * self._step, self._spectral)
        self._last_low_rank = self._low_rank
        self._last_subgradient = subgradient
        self._next_balance = math.ceil(1.5 * self.iterations) + _FIRST_BALANCE
        self._point = self._low_rank + self._step * subgradient
        self._acceleration.restart()

    @property
    def _remainder(self) -> FloatArray:
        """Return X minus the low-rank part at the known entries."""
        remainder = self._X - self._low_rank
        if self._missing is not None:
            remainder[self._missing] = 0.0
        return remainder

    def duality_gap(self) -> float:
        """Return the duality gap of the low-rank part and the remainder of X."""
        objective = self.nuclear_norm
        objective += self._penalty * float(
            np.abs(self._remainder).sum(dtype=np.float64)
        )
        svd = truncated_svd(self._multipliers, 1, random_state=self._rng)
        # Multipliers whose singular values are at most 1 give a lower bound.
        bound = inner(self._X, self._multipliers) / max(float(svd.s[0]), 1.0)
        return 1.0 - bound / objective if objective else 0.0


def _known_values(X: ArrayLike) -> tuple[FloatArray, Masks | None]:
    """Return the values, 0 where missing, and the mask of missing ones, None without any."""
    if sparse.issparse(X):
        raise ArgumentTypeError(
            "X must be dense, because X minus a low-rank part is dense; got a sparse matrix: "
            "use X.toarray() if its zeros are known, and NaN for unknown entries."
        )
    array: Any = X if isinstance(X, np.ma.MaskedArray) else as_array(X)
    values: Any = np.ma.getdata(array).astype(
        real_matrix(array.dtype, array.shape, "X")
    )
    missing: Any = np.isnan(values) | np.ma.getmaskarray(array)
    if missing.all():
        raise ArgumentError(
            f"X must have at least one known entry; got none in {array.shape}."
        )
    values[missing] = 0.0
    if not np.isfinite(values).all():
        raise not_finite(values, "X")
    return values, missing if missing.any() else None

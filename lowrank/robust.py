"""Robust PCA: a matrix as the sum of a low-rank and a sparse matrix."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse

from lowrank.approximation import LowRank, svd_down_to
from lowrank.arguments import checked_count, checked_generator
from lowrank.blocks import as_array, not_finite
from lowrank.errors import ArgumentError, ArgumentTypeError, check_positive, real_matrix
from lowrank.svd import ConvergenceWarning, truncated_svd

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from lowrank.arguments import RandomStateLike
    from lowrank.operators import FloatArray

_TOL = {"float32": 1e-5, "float64": 1e-7}
_FIRST_WEIGHT = 1.25  # starting weight of the augmented term, times ||X||_2
_GROWTH = 1.2  # growth of the weight per iteration; 1.5 is faster, but less close to the optimum
_MARGIN = 5  # number of singular values computed beyond the expected rank


@dataclass(frozen=True, eq=False, repr=False)
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
    max_iter: int = 500,
    random_state: RandomStateLike = 0,
) -> RobustPCA:
    """Decompose a matrix into a low-rank and a sparse part, by principal component pursuit.

    The parts L and S minimise ||L||_* + penalty ||S||_1 (the sums of singular values and of
    absolute values) subject to L + S = X at the known entries. Gross errors in a few entries end up
    in S, and do not affect the directions of L as they would those of PCA.

    Parameters
    ----------
    X : array-like of shape (n, m)
        Real data; NaN (or masked) entries are missing. Computations for float32 are in float32,
        otherwise in float64. X is not centred: a constant column has rank 1.
    penalty : float, optional
        Weight of the sparse part. By default 1 / sqrt(max(n, m) p), where p is the share of
        known entries: the value for which recovery is proved. With a larger weight, the sparse part
        has fewer entries.
    tol : float, optional
        Maximum ``residual``, by default 1e-7 for float64 and 1e-5 for float32.
    max_iter : int, default 500
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
    Lin, Chen & Ma (2010), "The augmented Lagrange multiplier method for exact recovery of corrupted
    low-rank matrices" (the algorithm).

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
    share = 1.0 if missing is None else 1.0 - float(missing.mean())
    weight = 1 / math.sqrt(max(values.shape) * share) if penalty is None else penalty
    check_positive(weight, "penalty")
    target = _TOL[str(values.dtype)] if tol is None else tol
    check_positive(target, "tol")
    steps = checked_count(max_iter, "max_iter")
    scale = values.dtype.type(np.abs(values).max() or 1.0)
    pursuit = _Pursuit(values / scale, missing, weight, checked_generator(random_state))
    while pursuit.residual > target and pursuit.iterations < steps:
        pursuit.step()
    if pursuit.residual > target:
        warnings.warn(
            f"The residual is {pursuit.residual:.1e} after {max_iter} iterations, above "
            f"tol={target:.1e}; use a larger max_iter or tol.",
            ConvergenceWarning,
            stacklevel=2,
        )
    return RobustPCA(
        low_rank=LowRank(pursuit.factors.left * scale, pursuit.factors.right),
        sparse=sparse.csr_array(pursuit.sparse * scale),
        penalty=weight,
        residual=pursuit.residual,
        duality_gap=pursuit.duality_gap(),
        iterations=pursuit.iterations,
    )


class _Pursuit:
    """Alternating minimisation of the augmented Lagrangian with a growing weight mu."""

    def __init__(
        self,
        values: FloatArray,
        missing: NDArray[np.bool_] | None,
        penalty: float,
        rng: np.random.Generator,
    ) -> None:
        self._X, self._missing, self._penalty, self._rng = values, missing, penalty, rng
        self._norm = float(np.linalg.norm(values)) or 1.0
        spectral = float(truncated_svd(values, 1, random_state=rng).s[0]) or 1.0
        self._multipliers = values / max(
            spectral, float(np.abs(values).max()) / penalty
        )
        self._mu = _FIRST_WEIGHT / spectral
        self._low_rank: FloatArray = np.zeros_like(values)
        self.sparse: FloatArray = np.zeros_like(values)
        self.residual, self.iterations = math.inf, 0
        self._rank = 0

    def step(self) -> None:
        """Minimise over the low-rank part, then the sparse part; then update the multipliers."""
        scaled = self._multipliers / self._mu
        target = self._X - self.sparse + scaled
        if self._missing is not None:
            target[self._missing] = self._low_rank[self._missing]
        # Lower the singular values by tau; compute a few more than the rank of the last step.
        tau = 1 / self._mu
        svd = svd_down_to(target, tau, self._rng, self._rank + _MARGIN)
        self._rank = int(np.count_nonzero(svd.s > tau))
        values = svd.s[: self._rank] - svd.s.dtype.type(tau)
        self.nuclear_norm = float(values.sum(dtype=np.float64))
        self.factors = LowRank(svd.U[:, : self._rank] * values, svd.Vt[: self._rank].T)
        np.matmul(self.factors.left, self.factors.right.T, out=self._low_rank)
        moved = self._rest + scaled
        level = self._penalty / self._mu
        self.sparse = moved - np.clip(moved, -level, level)
        difference = self._rest - self.sparse
        self.residual = float(np.linalg.norm(difference)) / self._norm
        self._multipliers += self._mu * difference
        self._mu *= _GROWTH
        self.iterations += 1

    @property
    def _rest(self) -> FloatArray:
        """Return X minus the low-rank part at the known entries."""
        rest = self._X - self._low_rank
        if self._missing is not None:
            rest[self._missing] = 0.0
        return rest

    def duality_gap(self) -> float:
        """Return the duality gap of the low-rank part and the remainder of X."""
        reached = self.nuclear_norm
        reached += self._penalty * float(np.abs(self._rest).sum(dtype=np.float64))
        spectral = float(
            truncated_svd(self._multipliers, 1, random_state=self._rng).s[0]
        )
        largest = float(np.abs(self._multipliers).max()) / self._penalty
        bound = float(np.vdot(self._X, self._multipliers)) / max(spectral, largest, 1.0)
        return max(0.0, 1.0 - bound / reached) if reached else 0.0


def _known_values(X: ArrayLike) -> tuple[FloatArray, NDArray[np.bool_] | None]:
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

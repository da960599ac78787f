r"""Sparse design matrices of prior means, and ridge regressions on them.

The prior means of row vectors are linear in a design matrix with two blocks: who rated what
(`Link`) and features (`FeatureDesign`). Neither becomes dense. Their coefficients are fitted by
weighted ridge regression: for links by a few conjugate gradient steps per sweep, for features
exactly if they are few, else by conjugate gradients. Each group of features has its own ridge
penalty, learned by maximising the evidence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple, Protocol, Self

import numpy as np

from lowrank import kernels
from lowrank.kernels.arrays import Float64s, Floats, Int64s
from lowrank.sums import column_dots, row_dots, weighted_mean

if TYPE_CHECKING:
    from scipy.sparse import csr_array

_EXACT = 1024  # maximum number of features whose Gram matrix is factored
# maximum conjugate gradient steps per sweep; they start from the previous sweep
_STEPS = 6
_CLOSE = 1e-2  # relative change of the coefficients below which the steps end
# maximum weight of the previous direction, against residuals of mere rounding
_MOST_TURN = 10.0
_FIRST_PENALTY = 10.0  # of each group, relative to the typical weight
_DRAWS = 32  # draws of the coefficients that measure their uncertainty
_TRACE_DRAWS = 8  # draws that estimate the trace of their covariance, for many features


class GroupedFeatures(Protocol):
    """Named blocks of features of the rows (or columns) of a matrix.

    `groups` maps the name of each block to its columns; together the blocks cover all columns. The
    mean squared norm of the rows of each block should be near 1.
    """

    @property
    def matrix(self) -> csr_array: ...  # noqa: D102

    @property
    def groups(self) -> Mapping[str, slice]: ...  # noqa: D102


class FeatureMap(NamedTuple):
    """Vectors of rows predicted from features: ``mean + features @ coefficients``."""

    mean: Floats
    coefficients: Floats

    def vectors(
        self,
        features: kernels.CsrArrays | None,
        n_rows: int,
    ) -> Floats:
        """Return the vectors of rows, shape (n_rows, d); without features all are `mean`."""
        vectors = np.tile(self.mean, (n_rows, 1))
        if features is not None:
            vectors += kernels.csr_matmat(features, self.coefficients)
        return vectors


@dataclass(frozen=True, eq=False)
class Link:
    """The 0/1 pattern of a sparse matrix, its rows scaled to length 1.

    `scale` is one over the square root of each row's number of entries, 1 for a row without
    entries. `transpose` is the transposed pattern, which `backward` needs.
    """

    pattern: kernels.CsrArrays
    scale: Floats
    transpose: kernels.CsrArrays | None = None

    @classmethod
    def of(
        cls,
        entries: kernels.CsrArrays,
        transpose: kernels.CsrArrays | None = None,
    ) -> Link:
        """Return the link of the matrix whose arrays are `entries`."""
        counts = np.maximum(np.diff(entries.indptr), 1)
        scale = (1 / np.sqrt(counts)).astype(entries.dtype)
        pattern = entries._replace(data=np.ones_like(entries.data))
        return cls(pattern, scale, transpose)

    def forward(self, B: Floats) -> Floats:
        """Return S @ B for B of shape (n_cols, width)."""
        product = kernels.csr_matmat(self.pattern, B)
        product *= self.scale[:, None]
        return product

    def backward(self, Y: Floats) -> Floats:
        """Return S.T @ Y for Y of shape (n_rows, width)."""
        assert self.transpose is not None
        return kernels.csr_matmat(self.transpose, Y * self.scale[:, None])

    def squares(self, weight: Floats) -> Floats:
        """Return the diagonal of S' W S as a column."""
        return self.backward(weight[:, None] * self.scale[:, None])


@dataclass(frozen=True, eq=False)
class FeatureDesign:
    """Sparse features of rows, centred by their weighted mean without becoming dense.

    `rows` and `columns` are the matrix F of features and its transpose, `groups` the columns that
    share a penalty, and `centre` the mean row, which is subtracted from every row.
    """

    rows: kernels.CsrArrays
    columns: kernels.CsrArrays
    groups: tuple[slice, ...]
    centre: Floats

    @classmethod
    def of(
        cls,
        features: GroupedFeatures,
        weight: Floats,
    ) -> Self:
        """Return features centred by their weighted mean over rows."""
        matrix = features.matrix.astype(weight.dtype, copy=False)
        design = cls(
            rows=kernels.csr_arrays(matrix),
            columns=kernels.csr_arrays(matrix.T.tocsr()),
            groups=tuple(features.groups.values()),
            centre=np.zeros(matrix.shape[1], weight.dtype),
        )
        return design.centred(weight)

    def centred(self, weight: Floats) -> Self:
        """Return the same features, centred by the mean with other weights."""
        sums = self.backward(weight[:, None])[:, 0]
        total = weight.dtype.type(weight.sum(dtype=np.float64))
        return replace(self, centre=sums / total)

    @property
    def n_features(self) -> int:
        """Number of columns."""
        return len(self.centre)

    @property
    def sizes(self) -> Int64s:
        """Number of columns of each group."""
        return np.array([group.stop - group.start for group in self.groups])

    def spread(self, of_groups: Float64s) -> Float64s:
        """Repeat the number of each group for each of its columns."""
        return np.repeat(of_groups, self.sizes)

    def sums(self, of_columns: Float64s) -> Float64s:
        """Return the sum over each group's columns."""
        return np.array([of_columns[group].sum() for group in self.groups])

    def forward(self, B: Floats) -> Floats:
        """Return (F - 1 centre') @ B for B of shape (n_features, width)."""
        B = np.ascontiguousarray(B)
        product = kernels.csr_matmat(self.rows, B)
        product -= kernels.coefficients(self.centre.reshape(-1, 1), B)
        return product

    def backward(self, Y: Floats) -> Floats:
        """Return F.T @ Y for Y of shape (n_rows, width), centred if columns of Y sum to zero."""
        return kernels.csr_matmat(self.columns, Y)

    def squares(self, weight: Floats) -> Floats:
        """Return the diagonal of F' W F as a column, F centred by the mean with these weights."""
        squared = self.columns._replace(data=self.columns.data**2)
        diagonal = kernels.csr_matmat(squared, weight[:, None])[:, 0]
        total = weight.sum(dtype=np.float64)
        diagonal -= self.centre**2 * total.astype(weight.dtype)
        # Rounding may leave less than nothing of a constant feature.
        return np.maximum(diagonal, 0)[:, None]

    def gram(self, weight: Floats) -> Float64s:
        """Return F' W F as a dense matrix, F centred by the mean with these weights."""
        from scipy import sparse

        indptr, indices, data = self.columns
        shape = len(self.centre), len(weight)
        columns = sparse.csr_array(
            (data.astype(np.float64), indices, indptr), shape=shape
        )
        scaled = columns * weight.astype(np.float64)
        full: Float64s = (scaled @ columns.T).toarray()
        centre = self.centre.astype(np.float64)
        full -= np.outer(centre, centre) * float(weight.sum(dtype=np.float64))
        return full


def ridge_fit(
    design: Link | FeatureDesign,
    target: Floats,
    *,
    ridge: float | Floats,
    weight: Floats,
    start: Floats,
    steps: int,
    close: float = 0.0,
    relaxation: float = 1.0,
    predictions: Floats | None = None,
    squares: Floats | None = None,
) -> tuple[Floats, Floats]:
    r"""Improve B towards the minimum of a weighted ridge regression on a design.

    Takes up to `steps` conjugate gradient steps on :math:`(S' W S + \rho I) B = S' W T`, for all
    columns of B at once, with the diagonal as preconditioner. Each step lowers
    :math:`\sum_u w_u |t_u - B's_u|^2 + \rho |B|^2`, and takes one product with S and one with its
    transpose. The steps end when the preconditioned residual is at most `close` times B, in the
    norm of the preconditioner. A `relaxation` between 1 and 2 lengthens the steps beyond the
    minimum along them; this lowers the sum less, but speeds up the convergence over several calls.
    For a centred design, the targets must be centred too. The ridge rho is one number, or one for
    each column, shape (n_cols, 1). Passing the `predictions` of the start and the `squares` of the
    design saves time.

    References
    ----------
    Simm et al. (2017), "Macau: scalable Bayesian factorization with high-dimensional side
    information using MCMC", section 3.
    """
    dtype = start.dtype
    w = weight[:, None]
    rho = np.asarray(ridge, dtype)
    B = start.copy()
    if squares is None:
        squares = design.squares(weight)
    diagonal = squares + rho
    fitted = design.forward(B) if predictions is None else predictions.copy()
    direction = np.zeros_like(B)
    size = np.zeros(B.shape[1])
    scale = float(column_dots(B, diagonal * B).sum()) if close else 0.0
    for _ in range(steps):
        residual = design.backward(w * (target - fitted))
        residual -= rho * B
        preconditioned = residual / diagonal
        previous_size = size
        size = column_dots(residual, preconditioned)
        scale = scale or float(size.sum())
        if size.sum() <= close**2 * scale:
            break
        turn = _ratio(size, previous_size).astype(dtype)
        direction *= np.minimum(turn, _MOST_TURN)
        direction += preconditioned
        image = design.forward(direction)
        curvature = column_dots(image, w * image) + column_dots(
            direction, rho * direction
        )
        step = _ratio(relaxation * column_dots(residual, direction), curvature)
        step = step.astype(dtype)
        B += step * direction
        fitted += step * image
    return B, fitted


def _ratio(a: Float64s, b: Float64s) -> Float64s:
    """Return a / b, or zero where b is zero."""
    return np.divide(a, b, out=np.zeros_like(a), where=b > 0)


@dataclass(eq=False)
class FeatureRidge:
    r"""Weighted ridge regressions of row vectors on features, with one penalty for each group.

    Rows are independent with precision :math:`w_u \Lambda`, and the coefficients C of group g have
    the prior precision :math:`\rho_g \Lambda`. Their posterior covariance is :math:`Q \otimes
    \Lambda^{-1}` with :math:`Q^{-1} = F'WF + \operatorname{diag} \rho`.

    Rows with a `weight` of 0 have no influence. A charge w' adds the penalty :math:`\sum_u w'_u
    |C'f_u|^2` on predictions. It is implemented by adding w' to the weight and multiplying targets
    by `shrinkage`, :math:`w_u / (w_u + w'_u)`. `diagonal` is the diagonal of F'WF. `log_evidence`
    is a lower bound on what learning the penalties has added to the log evidence.
    """

    design: FeatureDesign
    coefficients: Floats
    weight: Floats = field(init=False)
    shrinkage: Floats = field(init=False)
    diagonal: Floats = field(init=False)
    penalties: Float64s = field(init=False)
    draws: Floats | None = None
    log_evidence: float = 0.0
    # Computed when first used: F'WF, and its Cholesky factor with the penalties that it has.
    _gram: Float64s | None = None
    _factored: tuple[Float64s, Float64s] | None = None

    @classmethod
    def of(
        cls,
        features: GroupedFeatures,
        weight: Floats,
        d: int,
    ) -> Self:
        """Return a regression with coefficients of zero."""
        design = FeatureDesign.of(features, weight)
        ridge = cls(design, np.zeros((design.n_features, d), weight.dtype))
        ridge.weigh(weight, np.zeros_like(weight))
        ridge.penalties = np.full(len(design.groups), _FIRST_PENALTY * _typical(weight))
        return ridge

    def weigh(
        self,
        weight: Floats,
        charge: Floats,
    ) -> None:
        """Set the weights of rows and the charge on predictions."""
        self.weight = weight + charge
        self._gram = self._factored = None
        shrinkage = np.ones_like(weight)
        np.divide(weight, self.weight, out=shrinkage, where=weight > 0)
        self.shrinkage = shrinkage[:, None]
        self.design = self.design.centred(self.weight)
        self.diagonal = self.design.squares(self.weight)

    @property
    def is_exact(self) -> bool:
        """True if features are few enough for a factorisation."""
        return self.design.n_features <= _EXACT

    @property
    def ridge(self) -> Floats:
        """The penalty of each column, shape (n_features, 1)."""
        of_columns = self.design.spread(self.penalties)
        return of_columns.astype(self.weight.dtype)[:, None]

    def fit(self, target: Floats) -> Floats:
        """Fit the coefficients to targets; return the predictions, shape (n_rows, d)."""
        self.coefficients = self.solve(self.shrinkage * target, self.coefficients)
        return self.design.forward(self.coefficients)

    def map(self, mean: Floats) -> FeatureMap:
        """Return the fitted map, whose prediction at the mean features is `mean`."""
        offset = self.design.centre @ self.coefficients
        return FeatureMap(mean - offset, self.coefficients)

    def solve(
        self,
        target: Floats,
        start: Floats,
    ) -> Floats:
        """Return the coefficients of targets; iterations begin at `start`."""
        target = target - weighted_mean(self.weight, target).astype(target.dtype)
        if self.is_exact:
            from scipy.linalg import cho_solve

            right = self.design.backward(self.weight[:, None] * target)
            with kernels.one_blas_thread():
                solved = cho_solve((self._root(), True), right.astype(np.float64))
            return np.ascontiguousarray(solved, target.dtype)
        coefficients, _ = ridge_fit(
            self.design,
            target,
            ridge=self.ridge,
            weight=self.weight,
            start=start,
            steps=_STEPS,
            close=_CLOSE,
            squares=self.diagonal,
        )
        return coefficients

    def drawn(self, n_draws: int = _DRAWS) -> Floats:
        """Return draws from N(0, Q), shape (n_features, n_draws), from a fixed seed."""
        n_features, dtype = self.design.n_features, self.weight.dtype
        rng = np.random.default_rng(n_features)
        noise = rng.standard_normal((n_features, n_draws)).astype(dtype)
        if self.is_exact:
            from scipy.linalg import solve_triangular

            with kernels.one_blas_thread():
                draws = solve_triangular(self._root(), noise, trans="T", lower=True)
            return np.ascontiguousarray(draws, dtype)
        # For standard normal E, draws V solve (F'WF + R) V = F'W (W^-1/2 E1) + R (R^-1/2 E2).
        # That is a ridge regression with prior means R^-1/2 E2.
        prior_means = noise / np.sqrt(self.ridge)
        row_noise = rng.standard_normal((len(self.weight), n_draws)).astype(dtype)
        scale = np.zeros_like(self.weight)
        has_weight = self.weight > 0
        scale[has_weight] = 1 / np.sqrt(self.weight[has_weight])
        target = scale[:, None] * row_noise - self.design.forward(prior_means)
        start = np.zeros_like(noise)
        if self.draws is not None and self.draws.shape[1] == n_draws:
            start = self.draws
        self.draws = prior_means + self.solve(target, start - prior_means)
        return self.draws

    def learn(self, precision: Floats) -> None:
        r"""Update the penalties by a step of expectation maximisation of the evidence.

        The step maximises :math:`\sum_g n_g d \log \rho_g - \rho_g (\operatorname{tr} C_g \Lambda
        C_g' + d \operatorname{tr} Q_{gg})`. A prior with the weight of one more feature keeps all
        penalties finite.
        """
        d = self.coefficients.shape[1]
        sizes = self.design.sizes + 1
        if self.is_exact:  # the exact diagonal of Q, otherwise an estimate
            from scipy.linalg.lapack import dtrtri

            with kernels.one_blas_thread():
                inverse, _ = dtrtri(self._root(), lower=True)
            variances = column_dots(inverse, inverse)
        else:
            draws = self.drawn(_TRACE_DRAWS).astype(np.float64)
            variances = np.mean(draws**2, axis=1)
        traces = self.design.sums(variances)
        traces += 1 / (_FIRST_PENALTY * _typical(self.weight))
        previous = self.penalties
        self.penalties = d * sizes / (self.squares(precision) + d * traces)
        gain = float(sizes @ np.log(self.penalties / previous))
        gain -= float((self.penalties - previous) @ traces)
        self.log_evidence += 0.5 * d * gain

    def squares(self, precision: Floats) -> Float64s:
        """Return tr C Lambda C' for each group."""
        C = np.ascontiguousarray(self.coefficients)
        weighted = kernels.multiply(C, precision)
        return self.design.sums(row_dots(C, weighted))

    def scatter(self) -> Float64s:
        """Return C' diag(rho) C, shape (d, d)."""
        C = np.ascontiguousarray(self.coefficients * np.sqrt(self.ridge))
        return kernels.coefficients(C, C).astype(np.float64)

    def _root(self) -> Float64s:
        """Return the Cholesky factor of F'WF + diag(rho), computed once per set of penalties."""
        from scipy.linalg import cholesky

        if self._gram is None:
            self._gram = self.design.gram(self.weight)
        if self._factored is None or self._factored[0] is not self.penalties:
            system = self._gram + np.diag(self.design.spread(self.penalties))
            root: Float64s = cholesky(system, lower=True, overwrite_a=True)
            self._factored = self.penalties, root
        return self._factored[1]


def _typical(weight: Floats) -> float:
    """Return the mean of the nonzero weights, the unit of penalties."""
    return float(weight[weight > 0].mean(dtype=np.float64))

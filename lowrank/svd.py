"""Truncated singular value decomposition with measured accuracy."""

from __future__ import annotations

import math
import time
import warnings
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from lowrank import kernels
from lowrank.arguments import as_operator, checked_rank, counted, validated
from lowrank.errors import ArgumentError, LowRankError, check_positive, check_range
from lowrank.kernels.arrays import epsilon
from lowrank.low_rank import LowRank
from lowrank.operators import (
    CentredDenseOperator,
    DenseOperator,
    SparseOperator,
    largest_entry,
    safe_exponent,
)
from lowrank.solvers import COMPILED, HALF_ACCURATE, LAPACK_OF_ALL, SOLVERS, next_method
from lowrank.solvers.lanczos import loses
from lowrank.solvers.lapack import lapack_svd
from lowrank.weighting import weighted_matrix

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import ArrayLike

    from lowrank.arguments import MatrixLike, OperatorLike, Problem, RandomStateLike
    from lowrank.operators import Float64Array, FloatArray, MatrixOperator, Triplets

_PROBES = 8  # number of random vectors; products are fastest with a multiple of 8
# ||B|| <= 10 sqrt(2 / pi) max ||B x_i|| over p normal vectors x_i, with probability 1 - 10**-p.
_PROBE_FACTOR = 10 * math.sqrt(2 / math.pi)
# Residual that rounding of the products leaves, in machine epsilons of s[0].
_ROUNDING = 20
# Residual that LAPACK leaves, in the same unit: it takes off-diagonal numbers below
# eps**(-1/8) roundoffs, 45 machine epsilons, for zeros.
_ROUNDING_OF_LAPACK = 60
# Largest share of a singular value that rounding of float32 may be.
_LARGEST_ROUNDING = 1e-3
_WIDE = np.dtype(np.float64)


class ConvergenceWarning(UserWarning):
    """The residuals of a solver are above the requested tolerance."""


@dataclass(frozen=True, eq=False, repr=False)
class SVD:
    """The k largest singular triplets of an n x m matrix A; unpacks and indexes as ``U, s, Vt``.

    Attributes
    ----------
    U : ndarray of shape (n, k)
        Left singular vectors, as orthonormal columns.
    s : ndarray of shape (k,)
        Singular values in descending order.
    Vt : ndarray of shape (k, m)
        Right singular vectors, as orthonormal rows. In each, the first entry whose magnitude is at
        least 99% of the largest one is positive; this fixes the signs of U as well.
    residuals : ndarray of shape (2, k), float64
        ||A v - s u|| and ||A' u - s v|| of each triplet, measured by one product each with A and
        A'. The larger of the two bounds the distance from s to a singular value of A. They are
        measured before the arrays are rounded, if float32 input was computed in float64.
    frobenius_norm : float or None
        ||A||_F, accumulated in float64, after centring if A was centred. None if A is a
        LinearOperator without a dense copy, because its entries are unknown.
    spectral_error_bound : float
        Upper bound of ||A - U diag(s) Vt||_2 that fails for at most one random draw in a million
        (Halko, Martinsson & Tropp 2011, lemma 4.1). The best rank-k approximation has the error
        s[k], the first singular value left out.
    passes : int
        Number of passes over A: one for each product of A or A' with a block of vectors, including
        those for the residuals and the error bound, and one for a dense copy. Those of solvers that
        did not reach the tolerance are counted.
    seconds : float
        Elapsed time.
    method : str
        Solver: "dense", "gram", "lanczos", "randomized", "arpack" or "qr"; "update" after
        `updated`.
    """

    U: FloatArray
    s: FloatArray
    Vt: FloatArray
    residuals: Float64Array
    frobenius_norm: float | None
    spectral_error_bound: float
    passes: int
    seconds: float
    method: str

    def __iter__(self) -> Iterator[FloatArray]:
        return iter((self.U, self.s, self.Vt))

    def __len__(self) -> int:
        return 3

    @overload
    def __getitem__(self, index: int) -> FloatArray: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[FloatArray, ...]: ...

    def __getitem__(self, index: int | slice) -> FloatArray | tuple[FloatArray, ...]:
        return (self.U, self.s, self.Vt)[index]

    @property
    def Vh(self) -> FloatArray:  # noqa: N802
        """The right singular vectors under the name that NumPy and SciPy give them, ``Vt``."""
        return self.Vt

    @property
    def matrix(self) -> LowRank:
        """The product ``U diag(s) Vt`` in factored form."""
        return LowRank(self.U * self.s, self.Vt.T, error=self.error)

    def toarray(self) -> FloatArray:
        """Return the product as a dense array of shape (n, m)."""
        return self.matrix.toarray()

    def __repr__(self) -> str:
        return (
            f"SVD(k={self.k}, shape={self.shape}, dtype={self.s.dtype}, method={self.method!r}, "
            f"passes={self.passes}, largest residual={self.residuals.max(initial=0.0):.1e})"
        )

    def _repr_html_(self) -> str:
        energy = self.explained_energy
        facts = {
            "shape": f"{self.shape[0]:,} x {self.shape[1]:,}",
            "k": self.k,
            "dtype": self.s.dtype,
            "explained energy": "unknown" if energy is None else f"{energy:.2%}",
            "singular values": f"{self.s[0]:.6g} ... {self.s[-1]:.6g}"
            if self.k
            else "none",
            "largest residual": f"{self.residuals.max(initial=0.0):.1e}",
            "solver": f"{self.method}, {self.passes} passes, {self.seconds:.2f} s",
        }
        rows = "".join(
            f"<tr><th>{name}</th><td>{fact}</td></tr>" for name, fact in facts.items()
        )
        return f"<table><caption>SVD</caption>{rows}</table>"

    @property
    def k(self) -> int:
        """Number of singular triplets."""
        return self.s.size

    @property
    def shape(self) -> tuple[int, int]:
        """Shape (n, m) of the decomposed matrix."""
        return self.U.shape[0], self.Vt.shape[1]

    @property
    def error(self) -> float | None:
        """Frobenius norm of the approximation error, ||A - U diag(s) Vt||_F (Eckart & Young 1936).

        It is computed as sqrt(||A||_F^2 - sum s^2), and is 0 for k = min(n, m). Cancellation limits
        its accuracy: errors below about 1e-7 ||A||_F (1e-3 ||A||_F in float32) have no correct
        digits. None if ``frobenius_norm`` is None.
        """
        if self.frobenius_norm is None:
            return None
        if self.k == min(self.shape):
            return 0.0
        whole = self.frobenius_norm
        explained = self._kept_norm
        # The root of whole**2 - kept**2, whose squares may overflow.
        return math.sqrt(max(whole - explained, 0.0)) * math.sqrt(whole + explained)

    @property
    def explained_energy(self) -> float | None:
        """Share of ||A||_F^2 in the k triplets; 1 for a zero matrix, None if the norm is None."""
        if self.frobenius_norm is None:
            return None
        if self.frobenius_norm == 0.0 or self.k == min(self.shape):
            return 1.0
        return min(1.0, (self._kept_norm / self.frobenius_norm) ** 2)

    def updated(
        self,
        rows: MatrixLike,
        *,
        k: int | None = None,
        forgetting: float = 1.0,
    ) -> SVD:
        """Return the decomposition of the matrix with new rows appended, without reading A again.

        The new rows are added exactly to the rank-k approximation of A. ``residuals`` and
        ``spectral_error_bound`` are upper bounds that include the error of this approximation.

        Parameters
        ----------
        rows : array-like or scipy.sparse matrix or array of shape (b, m)
            New rows, centred like A. They are converted to the dtype of A.
        k : int, optional
            Rank of the result, at most k + b; by default unchanged.
        forgetting : float, default 1.0
            Positive factor of the rows of A; a value below 1 reduces the weight of old rows.

        Returns
        -------
        SVD
            Decomposition of ``[forgetting * A; rows]``, with ``method`` "update".

        Raises
        ------
        TypeError, ValueError
            If `rows` is not a real, finite matrix with m columns, or another argument is out of
            range.

        References
        ----------
        Brand (2006), "Fast low-rank modifications of the thin singular value decomposition".

        Examples
        --------
        >>> import numpy as np
        >>> A = np.random.default_rng(0).standard_normal((50, 4))
        >>> updated = truncated_svd(A[:40], 4).updated(A[40:])
        >>> bool(np.allclose(updated.s, truncated_svd(A, 4).s)), updated.U.shape
        (True, (50, 4))
        """
        start = time.perf_counter()
        operator = as_operator(rows)
        if operator.shape[1] != self.shape[1]:
            raise ArgumentError(
                f"rows must have {self.shape[1]} columns; got {operator.shape[1]}."
            )
        check_positive(forgetting, "forgetting")
        new = operator.toarray()
        peak = largest_entry(new)
        if peak > float(np.finfo(self.s.dtype).max):
            raise ArgumentError(
                f"rows must be within the range of {self.s.dtype}, the dtype of the decomposition; "
                f"got {peak:.3g}."
            )
        peak = max(peak, forgetting * float(self.s.max(initial=0.0)))
        # Extreme numbers are updated in other units, in which their squares are finite.
        if exponent := safe_exponent(peak, self.s.dtype):
            new = np.ldexp(new, -exponent)
            scaled = self._scaled(-exponent).updated(new, k=k, forgetting=forgetting)
            return scaled._scaled(exponent)
        new = new.astype(self.s.dtype, copy=False)
        largest = min(self.k + len(new), self.shape[1])
        rank = min(self.k, largest)
        if k is not None:
            rank = checked_rank(k, largest, "k + len(rows), m")
        # [U S V'; rows] = [U 0; 0 I] [S V'; rows], whose first factor is orthonormal.
        old = self.s * self.s.dtype.type(forgetting)
        stack = np.vstack([old[:, None] * self.Vt, new])
        G, s, Vt = lapack_svd(stack)
        left_out = float(s[rank]) if rank < s.size else 0.0
        G, s, Vt = with_signs(G[:, :rank], s[:rank], Vt[:rank])
        # The part of a new direction outside of the old ones meets what A has there.
        cosines = np.linalg.norm(Vt @ self.Vt.T, axis=1).astype(np.float64)
        cosines = cosines.clip(max=1.0)
        sines = np.sqrt(1 - cosines**2)
        error = forgetting * self.spectral_error_bound
        of_right, of_left = forgetting * np.linalg.norm(self.residuals, axis=1)
        right = of_right * cosines + error * sines
        left = of_left * np.linalg.norm(G[: self.k], axis=0)
        norm = self.frobenius_norm
        if norm is not None:
            added = float(np.linalg.norm(new.astype(np.float64)))
            norm = math.hypot(forgetting * norm, added)
        return SVD(
            U=np.vstack([self.U @ G[: self.k], G[self.k :]]),
            s=s,
            Vt=np.ascontiguousarray(Vt),
            residuals=np.stack([right, left]),
            frobenius_norm=norm,
            spectral_error_bound=error + left_out,
            passes=operator.passes,
            seconds=time.perf_counter() - start,
            method="update",
        )

    def _rounded(self, dtype: np.dtype[Any]) -> SVD:
        """Return the decomposition with its arrays in a dtype, and the bound of their product."""
        check_range(float(self.s.max(initial=0.0)), dtype)
        bound = self.spectral_error_bound
        if dtype != self.s.dtype:
            # Half a machine epsilon of each entry of U, S and V', in Frobenius norms.
            bound += 1.5 * epsilon(dtype) * self._kept_norm
        return replace(
            self,
            spectral_error_bound=bound,
            U=self.U.astype(dtype, copy=False),
            s=self.s.astype(dtype, copy=False),
            Vt=self.Vt.astype(dtype, copy=False),
        )

    def _scaled(self, exponent: int) -> SVD:
        """Return the decomposition of A * 2**exponent."""
        factor = 2.0**exponent
        check_range(float(self.s.max(initial=0.0)) * factor, self.s.dtype)
        norm = self.frobenius_norm
        return replace(
            self,
            s=self.s * self.s.dtype.type(factor),
            residuals=self.residuals * factor,
            frobenius_norm=None if norm is None else norm * factor,
            spectral_error_bound=self.spectral_error_bound * factor,
        )

    @property
    def _kept_norm(self) -> float:
        return math.hypot(*self.s.tolist())


def truncated_svd(
    A: OperatorLike,
    k: int,
    *,
    method: str = "auto",
    tol: float | None = None,
    center: ArrayLike | bool | None = None,
    row_weights: ArrayLike | None = None,
    random_state: RandomStateLike = 0,
) -> SVD:
    """Compute the k largest singular triplets of a matrix and their accuracy.

    Parameters
    ----------
    A : array-like, scipy.sparse matrix or array, or LinearOperator, of shape (n, m)
        Real, finite matrix with samples as rows. Results are float32 for float32 input, and float64
        for float64, integers and booleans. float32 input is computed in float32 if that reaches
        `tol`, and otherwise in float64, so that values of very different sizes are right. A is
        never modified.
    k : int
        Rank, from 0 to min(n, m).
    method : {"auto", "dense", "gram", "lanczos", "randomized", "arpack", "qr"}, default "auto"
        Solver; "auto" follows `lowrank.solvers.choose_method`. It makes a dense copy of sparse
        input or of a LinearOperator (by products with the identity) only if an iterative solver
        needs as much memory: for small matrices, and for k of the order of min(n, m). "dense" is
        LAPACK on a dense copy, "gram" the eigenproblem of the Gram matrix, and "qr" LAPACK on the
        triangular factor of a QR decomposition of dense blocks. "arpack" needs k < min(n, m), and
        may miss copies of a multiple singular value, which the residuals do not reveal.
    tol : float, optional
        Largest accepted residual of each triplet, relative to its singular value. By default 1e-8
        for float64 and 1e-4 for float32; 0 means the limit of rounding, 500 times the machine
        epsilon. Residuals below some 1e-15 of ``s[0]`` are rounding errors, which limit how
        accurate the smallest values can be. The error of a singular value is at most its residual,
        and about the squared residual if the values are well separated. The error of a vector is
        about its residual divided by the gap to the nearest other singular value.
    center : bool or array-like of shape (m,), optional
        True subtracts the column means; an array is subtracted from each row of A. For sparse input
        and LinearOperators each product is corrected, without a dense copy. A dense array is
        centred block by block if its Gram matrix is computed, and otherwise copied.
    row_weights : array-like of shape (n,), optional
        Weights w of the rows of an array or a sparse matrix, finite and not negative. What is
        decomposed is then diag(w)^(1/2) A, so that a weight of 2 stands for a row twice: s and Vt
        are the same. True for `center` subtracts the weighted means first.
    random_state : int, Generator, RandomState or None
        Seed of the start vectors. The same seed gives the same bits for every sparse format of a
        matrix, and with "lanczos" and "randomized" on any number of threads. None gives a different
        result each time.

    Raises
    ------
    TypeError, ValueError
        If A is not a real, finite matrix (the message has the first bad position), if a
        LinearOperator does not support products with its transpose, or if another argument has the
        wrong type or is out of range.

    Warns
    -----
    ConvergenceWarning
        If a residual is above `tol`; the message gives its size next to its singular value. The
        best result is returned.

    Notes
    -----
    "lanczos" keeps the memory of its basis for the next call, if that is at most 128 MB.

    References
    ----------
    Eckart & Young (1936), "The approximation of one matrix by another of lower rank"; Halko,
    Martinsson & Tropp (2011), "Finding structure with randomness".

    Examples
    --------
    >>> import numpy as np
    >>> A = np.array([[3.0, 0.0], [0.0, -2.0], [0.0, 0.0]])
    >>> U, s, Vt = truncated_svd(A, 2)
    >>> s, round(truncated_svd(A, 1).error, 6)
    (array([3., 2.]), 2.0)

    A sparse matrix is centred without becoming dense:

    >>> from scipy import sparse
    >>> A = sparse.random_array((2000, 300), density=0.01, rng=0)
    >>> result = truncated_svd(A, 5, center=True, random_state=0)
    >>> bool((result.residuals <= 1e-8 * result.s).all())
    True
    """
    matrix = as_operator(A)
    dtype = matrix.dtype
    if row_weights is not None:
        matrix, center = weighted_matrix(matrix, row_weights, center), None
    problem = validated(matrix, k, method, tol, center, random_state)
    return solved(problem, stacklevel=3)._rounded(dtype)


def singular_values(
    A: OperatorLike,
    k: int | None = None,
    *,
    method: str = "auto",
    tol: float | None = None,
    center: ArrayLike | bool | None = None,
    random_state: RandomStateLike = 0,
) -> FloatArray:
    """Return the k largest singular values in descending order, by default all, shape (k,).

    The other parameters, the errors and the warnings are as in `truncated_svd`.

    Examples
    --------
    >>> singular_values([[3.0, 0.0], [0.0, -4.0]])
    array([4., 3.])
    """
    matrix = as_operator(A)
    rank = min(matrix.shape) if k is None else k
    problem = validated(matrix, rank, method, tol, center, random_state)
    return solved(problem, stacklevel=3)._rounded(problem.matrix.dtype).s


def solved(problem: Problem, stacklevel: int) -> SVD:
    """Try one solver after the other until the triplets are accurate; warn if none are.

    The arrays are in float64 wherever float32 is not enough.
    """
    start = time.perf_counter()
    best: _Attempt | None = None
    passes = problem.matrix.passes
    attempts = _attempts(problem)
    for position, (method, is_wide) in enumerate(attempts):
        is_last = position == len(attempts) - 1
        # A solver that squares would lose what the last one has lost.
        is_lost = best is not None and loses(best.s, problem.tol, _WIDE)
        if is_lost and method in HALF_ACCURATE and not is_last:
            continue
        attempt = _attempt(problem, method, is_wide, passes)
        passes = attempt.matrix.passes
        if best is None or attempt.is_better_than(best):
            best = attempt
        if attempt.excess <= 1 and (is_last or attempt.is_beyond_rounding):
            break
    if best is None:
        raise LowRankError("no solver was tried.")
    if best.excess > 1:
        residuals = best.certificate.residuals.max(axis=0)
        message = residual_message(best.s, residuals, problem.tol, passes, best.method)
        message += "use a larger tol, a smaller k, or method='dense'."
        warnings.warn(message, ConvergenceWarning, stacklevel=stacklevel)
    norm = problem.matrix.frobenius_norm()
    result = SVD(
        U=np.ascontiguousarray(best.U),
        s=best.s,
        Vt=np.ascontiguousarray(best.Vt),
        residuals=best.certificate.residuals,
        frobenius_norm=best.matrix.frobenius_norm() if norm is None else norm,
        spectral_error_bound=best.certificate.spectral_error_bound,
        passes=passes,
        seconds=time.perf_counter() - start,
        method=best.method,
    )
    if problem.k == min(problem.matrix.shape):
        result = replace(result, spectral_error_bound=0.0)
    return result._scaled(problem.exponent)


def _attempts(problem: Problem) -> list[tuple[str, bool]]:
    """Return the solvers to try in turn, and whether each works in float64 on float32 input.

    Reading blocks takes so long that they are not read for an attempt in float32.
    """
    matrix = problem.matrix
    methods = [problem.method]
    if problem.is_chosen and problem.method in HALF_ACCURATE:
        methods.append(next_method(matrix, problem.method))
    if matrix.dtype == np.float64:
        return [(method, False) for method in methods]
    wide = [(method, True) for method in methods]
    if problem.k == 0:
        return [(problem.method, False)]
    if problem.method in LAPACK_OF_ALL or matrix.in_blocks:
        return wide
    return [(problem.method, False), *wide]


@dataclass(frozen=True)
class _Attempt:
    """Triplets of one solver, with fixed signs and their certificate."""

    method: str
    matrix: MatrixOperator
    U: FloatArray
    s: FloatArray
    Vt: FloatArray
    certificate: Certificate
    excess: float  # the largest residual in units of its tolerance

    def is_better_than(self, other: _Attempt) -> bool:
        """Return whether this one is more accurate: in float64 after float32, or in residuals."""
        return self.matrix.dtype != other.matrix.dtype or self.excess <= other.excess

    @property
    def is_beyond_rounding(self) -> bool:
        """Return whether rounding errors of the products are far below the smallest value.

        Sums of rounded products change a value by up to their rounding errors, in proportion, which
        no residual shows if all products have them.
        """
        if not self.s.size:
            return True
        rounding = _ROUNDING * epsilon(self.matrix.dtype)
        size = float(self.s[0]) + self.matrix.subtracted
        return rounding * size <= _LARGEST_ROUNDING * float(self.s[-1])


def _attempt(
    problem: Problem,
    method: str,
    is_wide: bool,
    passes: int,
) -> _Attempt:
    """Run one solver."""
    matrix = problem.matrix.wide() if is_wide else problem.matrix
    matrix = counted(matrix, passes)
    copies = method == "dense" and not isinstance(matrix, DenseOperator)
    # Solvers that do not read blocks would centre an array in each product.
    if isinstance(matrix, CentredDenseOperator) and not is_wide:
        copies |= method not in ("gram", "qr")
    if problem.k and copies:
        array = matrix.toarray()
        # The solver reads the copy, which saves a pass.
        matrix = counted(DenseOperator(array), matrix.passes - 1)
    (U, s, Vt), certificate = _decomposed(problem, matrix, method)
    residuals = certificate.residuals.max(axis=0)
    return _Attempt(
        method=method,
        matrix=matrix,
        U=U,
        s=s,
        Vt=Vt,
        certificate=certificate,
        excess=residual_excess(
            s, residuals, problem.tol, matrix.dtype, matrix.subtracted
        ),
    )


def residual_excess(
    s: FloatArray,
    residuals: Float64Array,
    tol: float,
    dtype: np.dtype[Any],
    subtracted: float = 0.0,
) -> float:
    """Return the largest residual in units of its tolerance, `tol` times the singular value.

    In float64, residuals up to some machine epsilons of the largest value, and of the norm that
    products subtract, are rounding errors. They are within the tolerance unless a smaller one was
    requested. In float32 they are not, since float64 leaves smaller ones. `residuals` has shape
    (k,).
    """
    if not s.size:
        return 0.0
    rounding = _ROUNDING * epsilon(dtype)
    wide = s.astype(np.float64)
    allowed = tol * wide
    if tol >= rounding and dtype == np.float64:
        floor = _ROUNDING_OF_LAPACK * epsilon(dtype)
        allowed = np.maximum(allowed, floor * (wide[0] + subtracted))
    return float(_ratios(residuals, allowed).max())


def residual_message(
    s: FloatArray,
    residuals: Float64Array,
    tol: float,
    passes: int,
    method: str,
) -> str:
    """Return the start of a warning about the residual that is largest next to its value."""
    shares = _ratios(residuals, s.astype(np.float64))
    worst = int(np.argmax(shares))
    return (
        f"The largest residual is {shares[worst]:.1e} relative to s[{worst}], above "
        f"tol={tol:.1e}, after {passes} passes with method={method!r}; "
    )


def _ratios(residuals: Float64Array, sizes: Float64Array) -> Float64Array:
    """Return residuals relative to sizes: infinite for a size of 0, unless the residual is 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = residuals / sizes
    ratios[residuals == 0] = 0.0
    return ratios


def _decomposed(
    problem: Problem,
    matrix: MatrixOperator,
    method: str,
) -> tuple[Triplets, Certificate]:
    """Return U, s and Vt with fixed signs, and their certificate."""
    k, rng = problem.k, problem.rng
    rows, columns = matrix.shape
    U: FloatArray = np.zeros((rows, 0), matrix.dtype)
    s: FloatArray = np.zeros(0, matrix.dtype)
    Vt: FloatArray = np.zeros((0, columns), matrix.dtype)
    # Compiled products alternate with small BLAS products, between which idle BLAS threads spin.
    with kernels.one_blas_thread() if method in COMPILED else nullcontext():
        if k:
            U, s, Vt = SOLVERS[method](matrix, k, tol=problem.tol, rng=rng)
        if s.size != k:
            raise LowRankError(
                f"method {method!r} must return {k} triplets; got {s.size}: use method='dense'."
            )
        certificate = certify(matrix, U, s, Vt, rng)
    triplets = U, s, Vt
    if k:
        triplets = with_signs(U, s, Vt)
    return triplets, certificate


def with_signs(
    U: FloatArray,
    s: FloatArray,
    Vt: FloatArray,
) -> Triplets:
    """Make the first of the (nearly) largest entries of each right vector positive.

    Entries within 1% of the largest are treated as equal, so that rounding does not change the
    signs. U is overwritten, and so is Vt if it is in C order.
    """
    rows = Vt
    if not Vt.flags.c_contiguous:
        rows = np.empty(Vt.shape, Vt.dtype)
        kernels.place(np.ascontiguousarray(Vt.T), rows.T)
    highest = rows.max(axis=1, initial=0.0)
    lowest = rows.min(axis=1, initial=0.0)
    large = s.dtype.type(0.99) * np.maximum(highest, -lowest)
    signs = np.where(highest < large, -1, 1).astype(s.dtype)
    # Only rows with large entries of both signs need a search for the first.
    for i in np.flatnonzero((highest >= large) & (-lowest >= large)):
        first = (np.abs(rows[i]) >= large[i]).argmax()
        signs[i] = np.sign(rows[i, first]) or 1
    rows *= signs[:, None]
    U *= signs
    return U, s, rows


@dataclass(frozen=True)
class Certificate:
    """Accuracy of k triplets, measured by products with the matrix; see `SVD`."""

    residuals: Float64Array
    spectral_error_bound: float


def certify(
    A: MatrixOperator,
    U: FloatArray,
    s: FloatArray,
    Vt: FloatArray,
    rng: np.random.Generator,
) -> Certificate:
    """Measure the residuals, and bound the spectral error.

    The residuals take one product with A and one with A'. Let E = A - U diag(s) Vt, and x be normal
    random vectors. Then ||E x|| bounds ||E||, and ||E' E x|| bounds ||E||^2, each up to a factor of
    about 8. The smaller of the two bounds is returned. Both are looser, the flatter the spectrum of
    E is.

    References
    ----------
    Halko, Martinsson & Tropp (2011), "Finding structure with randomness", lemma 4.1.
    """
    U = np.ascontiguousarray(U)
    V = np.ascontiguousarray(Vt.T)
    probes = rng.standard_normal((A.shape[1], _PROBES), A.dtype)
    product, forward = _products(A, A.matmat, V, probes)
    left = kernels.squared_distances(product, U, s)
    # E x = A x - U S V' x
    along = s[:, None] * kernels.coefficients(V, probes)
    kernels.subtract(U, along, forward)
    product, back = _products(A, A.rmatmat, U, forward)
    right = kernels.squared_distances(product, V, s)
    # E' (E x) likewise
    along = s[:, None] * kernels.coefficients(U, forward)
    kernels.subtract(V, along, back)
    once = _PROBE_FACTOR * _largest_norm(forward)
    twice = math.sqrt(_PROBE_FACTOR * _largest_norm(back))
    residuals = np.sqrt([left, right], dtype=np.float64)
    return Certificate(residuals, min(once, twice))


def _products(
    A: MatrixOperator,
    multiply: Callable[[FloatArray], FloatArray],
    left: FloatArray,
    right: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """Return the products with two blocks: in one pass, unless two take less time."""
    if isinstance(A, SparseOperator):
        return multiply(left), multiply(right)
    both = multiply(np.hstack([left, right]))
    width = left.shape[1]
    return both[:, :width], np.ascontiguousarray(both[:, width:])


def _largest_norm(block: FloatArray) -> float:
    lengths = np.linalg.norm(block.astype(np.float64), axis=0)
    return float(lengths.max(initial=0.0))

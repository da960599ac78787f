"""Which columns a row has, as a linear predictor of the row's vector.

The link of a sparse matrix is its 0/1 pattern S with each row divided by the square root of its
number of entries, so that every row has length 1. ``S @ B`` is then what the pattern says about
each row; B is fitted by ridge regression with conjugate gradients, and S is never multiplied out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowrank import kernels

__all__ = ["Link", "ridge_fit"]

Floats = NDArray[np.floating[Any]]


@dataclass(frozen=True, eq=False)
class Link:
    """The 0/1 pattern of a sparse matrix, its rows scaled to length 1.

    Attributes
    ----------
    pattern : CsrArrays
        The matrix with ones for data.
    scale : ndarray of shape (n_rows,)
        One over the square root of each row's number of entries; 1 for a row without any.
    n_cols : int
    turned : CsrArrays or None
        The transposed pattern, through which products are faster where rows are fewer than
        columns: what is gathered from, or scattered to, is then the smaller array.
    """

    pattern: kernels.CsrArrays
    scale: Floats
    n_cols: int
    turned: kernels.CsrArrays | None = None

    @classmethod
    def of(cls, entries: kernels.CsrArrays, n_cols: int) -> Link:
        """Return the link of the matrix whose arrays are `entries`."""
        counts = np.maximum(np.diff(entries.indptr), 1)
        dtype = entries.data.dtype
        pattern = entries._replace(data=np.ones_like(entries.data))
        return cls(pattern, (1 / np.sqrt(counts)).astype(dtype), n_cols)

    def with_turned(self, other: Link) -> Link:
        """Return this link, with the pattern of the transposed matrix's link where it helps."""
        helps = len(self.scale) < self.n_cols
        return replace(self, turned=other.pattern if helps else None)

    def forward(self, B: Floats) -> Floats:
        """Return S @ B for B of shape (n_cols, width)."""
        if self.turned is None:
            product = kernels.csr_matmat(*self.pattern, B)
        else:
            product = kernels.csr_rmatmat(*self.turned, B, len(self.scale))
        product *= self.scale[:, None]
        return product

    def backward(self, Y: Floats) -> Floats:
        """Return S.T @ Y for Y of shape (n_rows, width)."""
        scaled = Y * self.scale[:, None]
        if self.turned is None:
            return kernels.csr_rmatmat(*self.pattern, scaled, self.n_cols)
        return kernels.csr_matmat(*self.turned, scaled)


def ridge_fit(
    link: Link, target: Floats, *, ridge: float, weight: Floats, start: Floats, steps: int
) -> Floats:
    r"""Improve B towards the minimum of a weighted ridge regression on a link.

    Conjugate gradients on :math:`(S' W S + \rho I) B = S' W T`, all columns of B at once, with
    the diagonal as preconditioner. Every step lowers
    :math:`\sum_u w_u |t_u - B's_u|^2 + \rho |B|^2`, however few there are.

    Parameters
    ----------
    link : Link
        S, of shape (n_rows, n_cols).
    target : ndarray of shape (n_rows, width)
        The targets T.
    ridge : float
        The positive penalty rho.
    weight : ndarray of shape (n_rows,)
        The weights w, not negative.
    start : ndarray of shape (n_cols, width)
        Where to begin.
    steps : int
        Number of steps.

    Returns
    -------
    ndarray of shape (n_cols, width)

    References
    ----------
    Simm et al. (2017), "Macau: scalable Bayesian factorization with high-dimensional side
    information using MCMC", section 3.
    """
    w = weight[:, None]
    diagonal = link.backward(w * link.scale[:, None])
    diagonal += diagonal.dtype.type(ridge)

    def normal(B: Floats) -> Floats:
        product = link.backward(w * link.forward(B))
        product += B.dtype.type(ridge) * B
        return product

    B = start
    residual = link.backward(w * (target - link.forward(B)))
    residual -= B.dtype.type(ridge) * B
    scaled = residual / diagonal
    direction = scaled
    size = _dots(residual, scaled)
    for _ in range(steps):
        image = normal(direction)
        step = _ratio(size, _dots(direction, image)).astype(B.dtype)
        B = B + step * direction
        residual = residual - step * image
        scaled = residual / diagonal
        before, size = size, _dots(residual, scaled)
        direction = scaled + _ratio(size, before).astype(B.dtype) * direction
    return B


def _dots(X: Floats, Y: Floats) -> NDArray[np.float64]:
    dots: NDArray[np.float64] = np.einsum("ij,ij->j", X, Y, dtype=np.float64)
    return dots


def _ratio(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.divide(a, b, out=np.zeros_like(a), where=b > 0)

"""From counts of terms to weights: a local part for each count, a global part for each term."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from recsys.errors import DataError

__all__ = ["WEIGHTINGS", "Weighting", "canonical_csr", "row_norms"]

Floats = NDArray[np.floating[Any]]
Float64s = NDArray[np.float64]

WEIGHTINGS = ("tfidf", "log-entropy", "count")


@dataclass(frozen=True, eq=False)
class Weighting:
    """A weighting with the global weights it has learnt.

    ==============  ================================  ==========================================
    name            weight of a count c               global weight of a term
    ==============  ================================  ==========================================
    ``tfidf``       1 + ln c (c itself below 1)       ln((1 + n) / df), df of n documents have it
    ``log-entropy`` ln(1 + c)                         1 + sum p ln p / ln n, p = its shares
    ``count``       c                                 1
    ==============  ================================  ==========================================

    Attributes
    ----------
    name : str
    term_weights : ndarray of shape (n_terms,), float64

    References
    ----------
    Dumais (1991), "Improving the retrieval of information from external sources", for the
    weightings and their effect on latent semantic indexing.
    """

    name: str
    term_weights: Float64s

    @classmethod
    def learn(cls, name: str, counts: Any) -> Self:
        """Learn the global weights from a matrix of counts.

        Parameters
        ----------
        name : {"tfidf", "log-entropy", "count"}
        counts : csr_array of shape (n_documents, n_terms)

        Raises
        ------
        DataError
            If a count is negative and the weighting takes logarithms.
        """
        if name != "count" and counts.nnz and counts.data.min() < 0:
            raise DataError(
                f"The weighting {name!r} needs counts, which are not negative; "
                f"got {counts.data.min():g}. Negative values in data are taken as they are "
                "with weighting='count'."
            )
        return cls(name, _GLOBAL[name](counts))

    def apply(self, counts: Any) -> Any:
        """Return the weighted matrix.

        Rows have length 1 (but for empty ones), so that long documents don't rule the
        decomposition; those of "count" are left as they are.
        """
        weighted = counts.copy()
        weights = self.term_weights[weighted.indices]
        weighted.data = (_LOCAL[self.name](counts.data) * weights).astype(counts.dtype)
        if self.name != "count":
            norms = row_norms(weighted)
            inverse = np.divide(1.0, norms, out=np.zeros_like(norms), where=norms > 0)
            weighted.data *= np.repeat(inverse, np.diff(weighted.indptr)).astype(counts.dtype)
        return weighted


def row_norms(csr: Any) -> Float64s:
    """Return the length of each row of a CSR matrix."""
    rows = np.repeat(np.arange(csr.shape[0]), np.diff(csr.indptr))
    squares = csr.data.astype(np.float64) ** 2
    return np.sqrt(np.bincount(rows, weights=squares, minlength=csr.shape[0]))


def canonical_csr(matrix: Any) -> Any:
    """Return a CSR array of its own memory, with sorted indices, no duplicates, no stored zeros.

    The order of the indices is looked at, not believed: scikit-learn's vectorizers mark matrices as
    sorted that are not.
    """
    from scipy import sparse

    csr = sparse.csr_array(matrix)
    if not np.issubdtype(csr.dtype, np.floating):
        csr = csr.astype(np.float64)
    parts = (csr.data.copy(), csr.indices.copy(), csr.indptr.copy())
    fresh = sparse.csr_array(parts, shape=csr.shape)
    fresh.sum_duplicates()
    fresh.eliminate_zeros()
    return fresh


def _sublinear(counts: Floats) -> Floats:
    """1 + ln c, continued below 1 by c, to which it is tangent."""
    return np.where(counts >= 1, 1 + np.log(np.maximum(counts, 1)), counts)


def _inverse_frequency(counts: Any) -> Float64s:
    frequency = np.bincount(counts.indices, minlength=counts.shape[1])
    weights: Float64s = np.log((1 + counts.shape[0]) / np.maximum(frequency, 1))
    return weights


def _entropy(counts: Any) -> Float64s:
    terms, data = counts.indices, counts.data.astype(np.float64)
    sums = np.bincount(terms, weights=data, minlength=counts.shape[1])
    shares = data / sums[terms]
    information = np.bincount(terms, weights=shares * np.log(shares), minlength=counts.shape[1])
    if counts.shape[0] < 2:
        return np.ones(counts.shape[1])
    weights: Float64s = 1 + information / np.log(counts.shape[0])
    weights[weights <= counts.shape[0] * np.finfo(np.float64).eps] = 0  # rounding has no meaning
    return weights


_LOCAL: dict[str, Callable[[Floats], Floats]] = {
    "tfidf": _sublinear,
    "log-entropy": np.log1p,
    "count": lambda counts: counts,
}
_GLOBAL: dict[str, Callable[[Any], Float64s]] = {
    "tfidf": _inverse_frequency,
    "log-entropy": _entropy,
    "count": lambda counts: np.ones(counts.shape[1]),
}

"""Weights of words: what a count is worth in a document, and a word in a collection."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from recsys.errors import DataError

WEIGHTINGS = ("tfidf", "log-entropy", "count")

Floats = NDArray[np.floating[Any]]
Float64s = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Weighting:
    """Weighting of counts, with the global weights of terms; for `power` see `apply`.

    ==============  ================================  ==========================================
    name            weight of a count c               global weight of a term
    ==============  ================================  ==========================================
    ``tfidf``       1 + ln c (c itself below 1)       ln((1 + n) / df), df of n documents have it
    ``log-entropy`` ln(1 + c)                         1 + sum p ln p / ln n, p = its shares
    ``count``       c                                 1
    ==============  ================================  ==========================================

    References
    ----------
    Dumais (1991), "Improving the retrieval of information from external sources".
    """

    name: str
    term_weights: Float64s
    power: float = 1.0

    @classmethod
    def learn(cls, name: str, counts: Any, power: float = 1.0) -> Self:
        """Learn the global weights from counts, a csr_array of shape (n_documents, n_terms).

        Raises
        ------
        DataError
            If a count is negative and the weighting takes logarithms.
        """
        if name != "count" and counts.nnz and counts.data.min() < 0:
            raise DataError(
                f"The weighting {name!r} needs counts, which are not negative; "
                f"got {counts.data.min():g}. Negative values in data need weighting='count'."
            )
        return cls(name, _GLOBAL[name](counts), power)

    def apply(self, counts: Any) -> Any:
        """Return the weighted matrix.

        Rows are divided by their length to the `power`: with 1 they have length 1 (except empty
        ones), with 1/2 long documents keep some of their weight in a decomposition. Those of
        "count" are not scaled.
        """
        weights = self.term_weights.astype(counts.dtype)[counts.indices]
        weights *= _LOCAL[self.name](counts.data).astype(counts.dtype, copy=False)
        parts = (weights, counts.indices, counts.indptr)
        weighted = sparse.csr_array(parts, shape=counts.shape, copy=False)
        if self.name != "count":
            norms = np.sqrt(weighted.power(2, dtype=np.float64).sum(axis=1))
            inverse = np.zeros_like(norms)
            np.power(norms, -self.power, out=inverse, where=norms > 0)
            weights *= np.repeat(inverse.astype(counts.dtype), np.diff(weighted.indptr))
        return weighted

    def of_query(self, terms: NDArray[np.int64], counts: Floats) -> Floats:
        """Return the weights of the terms of a query, which is not scaled."""
        return (_LOCAL[self.name](counts) * self.term_weights[terms]).astype(counts.dtype)


def canonical_csr(matrix: Any) -> Any:
    """Return a CSR array of its own memory, with sorted indices, no duplicates, no stored zeros."""
    csr = sparse.csr_array(matrix)
    if not np.issubdtype(csr.dtype, np.floating):
        csr = csr.astype(np.float64)
    # A new array checks the order: scikit-learn's vectorizers mark unsorted matrices as sorted.
    parts = (csr.data.copy(), csr.indices.copy(), csr.indptr.copy())
    fresh = sparse.csr_array(parts, shape=csr.shape)
    fresh.sum_duplicates()
    fresh.eliminate_zeros()
    return fresh


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
    # 1 + ln c, continued below 1 by c, to which it is tangent
    "tfidf": lambda c: np.where(c >= 1, 1 + np.log(np.maximum(c, 1)), c),
    "log-entropy": np.log1p,
    "count": lambda c: c,
}
_GLOBAL: dict[str, Callable[[Any], Float64s]] = {
    "tfidf": lambda counts: np.log(
        (1 + counts.shape[0])
        / np.maximum(np.bincount(counts.indices, minlength=counts.shape[1]), 1)
    ),
    "log-entropy": _entropy,
    "count": lambda counts: np.ones(counts.shape[1]),
}

"""Cosines of queries with all documents, in the form that `recsys.topn` takes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from recsys.models.base import FactorForm, pair_dots

__all__ = ["Matches", "inverse_lengths"]

Floats = NDArray[np.float32]
Indices = NDArray[np.int64]


def inverse_lengths(vectors: NDArray[Any]) -> Floats:
    """Return 1 / length of each row, NaN for rows of zeros: they have no direction."""
    lengths = np.sqrt(np.einsum("ij,ij->i", vectors, vectors)).astype(np.float32)
    nan: Floats = np.full(len(lengths), np.nan, dtype=np.float32)
    np.divide(np.float32(1), lengths, out=nan, where=lengths > 0)
    return nan


class Matches:
    """A `recsys.topn.Scorer`: rows of `queries` are its users, rows of `vectors` its items.

    Parameters
    ----------
    queries : float32 ndarray of shape (n_queries, k)
    vectors : float32 ndarray of shape (n_items, k)
    inverse : float32 ndarray of shape (n_items,)
        Their `inverse_lengths`.
    """

    def __init__(self, queries: Floats, vectors: Floats, inverse: Floats) -> None:
        self._queries = queries * inverse_lengths(queries)[:, None]
        self._vectors = vectors
        self._inverse = inverse

    @property
    def n_items(self) -> int:
        """Number of items."""
        return len(self._vectors)

    def predict(self, users: Indices, items: Indices) -> Floats:
        """Cosines of pairs, shape (n_pairs,); NaN beside a vector of zeros."""
        dots = pair_dots(self._queries, self._vectors, users, items)
        dots *= self._inverse[items]
        return dots

    def scores(self, users: Indices) -> Floats:
        """Cosines of some queries with all items, shape (n_block, n_items)."""
        if len(users) == 1:  # BLAS has a faster product for one vector
            one: Floats = self._vectors @ self._queries[users[0]]
            return np.multiply(one, self._inverse, out=one)[None, :]
        block: Any = self._queries[users] @ self._vectors.T
        block *= self._inverse
        scores: Floats = block
        return scores

    def score_error(self, users: Indices) -> Floats:
        """Bound on the rounding of a cosine (as `FactorModel.score_error`)."""
        terms = self._vectors.shape[1] + 3
        return np.full(len(users), 2 * terms * np.finfo(np.float32).eps, dtype=np.float32)

    def factor_form(self, users: Indices) -> FactorForm | None:
        """Return queries and vectors, with what makes cosines of their products.

        None for a single query: a product with one vector is faster than the kernel, which is made
        for many.
        """
        if len(users) == 1:
            return None
        ones = np.ones(max(len(users), self.n_items), dtype=np.float32)
        offset, weight = ones[: len(users)], ones[: self.n_items]
        return FactorForm(self._queries[users], offset, self._vectors, self._inverse, weight)

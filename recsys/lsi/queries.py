"""Queries and the documents that match them."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowrank import kernels
from recsys.errors import DataError
from recsys.lsi.vectorizer import row_norms
from recsys.models.base import FactorForm

__all__ = [
    "Matches",
    "NothingToRankError",
    "Queries",
    "UnknownTermWarning",
    "check_directions",
    "check_words",
    "inverse_lengths",
]

_NAMED = 5
_NOTHING = 1e-5  # of the length of a query: what rounding leaves of a direction outside the space


class NothingToRankError(DataError):
    """No query of those asked has anything to rank documents by."""


class UnknownTermWarning(UserWarning):
    """Words of a query that no document of the index has."""


@dataclass(frozen=True, eq=False)
class Queries:
    """Queries as weighted rows.

    Attributes
    ----------
    labels : list
        The texts, or the positions of vectors.
    rows : csr_array of shape (n_queries, n_terms)
    unknown : list of list of str
        The words of each that are not known; empty lists for vectors.
    single : bool
        Whether one query was asked, not a list.
    """

    labels: list[Any]
    rows: Any
    unknown: list[list[str]]
    single: bool


def check_words(queries: Queries) -> None:
    """Say which words are not known.

    Raises
    ------
    DataError
        If no query has a known word.

    Warns
    -----
    UnknownTermWarning
        If a query has words that are not known, or none that is.
    """
    lost = np.diff(queries.rows.indptr) == 0
    if lost.all():
        raise NothingToRankError(_nothing_known(queries))
    unknown = list(dict.fromkeys(word for words in queries.unknown for word in words))
    if unknown:
        message = f"Not in the index: {_listed(unknown)}."
        if lost.any():
            message += f" {_count(int(lost.sum()))} no known word, and so no results."
        warnings.warn(message, UnknownTermWarning, stacklevel=4)


def check_directions(queries: Queries, directions: NDArray[Any]) -> NDArray[np.float32]:
    """Return directions as float32, those that are but rounding set to zero.

    Raises
    ------
    DataError
        If none is left.
    """
    lengths = np.sqrt(np.einsum("ij,ij->i", directions, directions).astype(np.float64))
    none = lengths <= _NOTHING * row_norms(queries.rows)
    if none.all():
        raise NothingToRankError(
            "The words of the query have no part in the dimensions that are kept, so nothing can "
            "be ranked; use other words, or an index with more dimensions."
        )
    return np.where(none[:, None], 0, directions).astype(np.float32)


def _nothing_known(queries: Queries) -> str:
    words = list(dict.fromkeys(word for words in queries.unknown for word in words))
    if not words:
        return "The query has no words; a word has two letters or more by default."
    return f"No word of the query is in the index: {_listed(words)}."


def _listed(words: Sequence[str]) -> str:
    more = f" and {len(words) - _NAMED:,} more" if len(words) > _NAMED else ""
    return ", ".join(words[:_NAMED]) + more


def _count(n: int) -> str:
    return "One query has" if n == 1 else f"{n:,} queries have"


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
        dots = kernels.pair_dots(self._queries, self._vectors, users, items)
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

    def _score_error(self, users: Indices) -> Floats:
        """Bound on the rounding of a cosine (as `FactorModel._score_error`)."""
        terms = self._vectors.shape[1] + 3
        return np.full(len(users), 2 * terms * np.finfo(np.float32).eps, dtype=np.float32)

    def _factor_form(self, users: Indices) -> FactorForm | None:
        """Return queries and vectors, with what makes cosines of their products.

        None for a single query: a product with one vector is faster than the kernel, which is made
        for many.
        """
        if len(users) == 1:
            return None
        ones = np.ones(max(len(users), self.n_items), dtype=np.float32)
        offset, weight = ones[: len(users)], ones[: self.n_items]
        return FactorForm(self._queries[users], offset, self._vectors, self._inverse, weight)

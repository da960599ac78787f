"""Queries: from texts or vectors to directions, and what is said of words that are not known."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recsys.errors import DataError
from recsys.lsi.weighting import row_norms

__all__ = [
    "NothingToRankError",
    "Queries",
    "UnknownTermWarning",
    "check_directions",
    "check_words",
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

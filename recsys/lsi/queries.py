"""Queries and the documents that match them."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from recsys.data.frames import listed
from recsys.errors import DataError
from recsys.lsi.vectorizer import row_norms
from recsys.topn import Cosine, TopN, top_n

if TYPE_CHECKING:
    from recsys.data.ids import Ids, IdsLike
    from recsys.lsi.collection import Collection

Floats = NDArray[np.floating[Any]]
Indices = NDArray[np.int64]

_NAMED = 5  # unknown words that a message lists
_NOTHING = 1e-5  # of the length of a query: rounding leaves that of a direction outside the space


class NothingToRankError(DataError):
    """No query has a known word, or a direction, to rank documents by."""


class UnknownTermWarning(UserWarning):
    """Words of a query are in no document of the index."""


@dataclass(frozen=True, eq=False)
class Queries:
    """Queries as weighted rows, with the unknown words of each."""

    labels: list[Any]  # the texts, or the positions of vectors
    rows: Any  # csr_array of shape (n_queries, n_terms)
    unknown: list[list[str]]
    single: bool  # whether one query was given, not a list


def check_words(queries: Queries) -> None:
    """Check that queries have known words.

    Raises
    ------
    NothingToRankError
        If no query has a known word.

    Warns
    -----
    UnknownTermWarning
        If a query has unknown words.
    """
    lost = np.diff(queries.rows.indptr) == 0
    unknown = list(dict.fromkeys(word for words in queries.unknown for word in words))
    listed_words = ", ".join(unknown[:_NAMED])
    if len(unknown) > _NAMED:
        listed_words += f" and {len(unknown) - _NAMED:,} more"
    if lost.all():
        raise NothingToRankError(
            f"No word of the query is in the index: {listed_words}."
            if unknown
            else "The query has no words; by default a word has two letters or more."
        )
    if unknown:
        message = f"Not in the index: {listed_words}."
        if lost.any():
            n = int(lost.sum())
            subject = "One query has" if n == 1 else f"{n:,} queries have"
            message += f" {subject} no known word, and so no results."
        warnings.warn(message, UnknownTermWarning, stacklevel=4)


def check_directions(queries: Queries, directions: Floats) -> NDArray[np.float32]:
    """Return directions as float32, with zeros for those that are only rounding errors.

    Raises
    ------
    NothingToRankError
        If none remains.
    """
    lengths = np.sqrt(np.einsum("ij,ij->i", directions, directions).astype(np.float64))
    none = lengths <= _NOTHING * row_norms(queries.rows)
    if none.all():
        raise NothingToRankError(
            "The words of the query have no weight in the dimensions of the index, so nothing can "
            "be ranked; use other words, or an index with more dimensions."
        )
    return np.where(none[:, None], 0, directions).astype(np.float32)


def best_rows(scorer: Cosine, n_queries: int, n: int, exclude: Indices | None = None) -> TopN:
    """Return the n rows with the largest cosine for each query, without row `exclude[q]`."""
    without = None if exclude is None else lambda q: (np.arange(len(q)), exclude[q])
    found = list(top_n(scorer, np.arange(n_queries), n, exclude=without))
    rows, items, ranks, scores = (
        np.concatenate([getattr(block, name) for block in found])
        for name in ("rows", "items", "ranks", "scores")
    )
    return TopN(rows, items, ranks, np.clip(scores, -1, 1))  # rounding may exceed 1


def similar_rows(
    labels: Ids, vectors: NDArray[np.float32], wanted: IdsLike | int | str, n: int
) -> pl.DataFrame:
    """Return the rows most similar to some rows, as a frame: term, similar, rank, score.

    Raises
    ------
    UnknownIdError
        If a label is unknown.
    """
    places = labels.index(listed(wanted))
    top = best_rows(Cosine(vectors, vectors[places]), len(places), n, places)
    return pl.DataFrame(
        [
            labels.values.gather(places[top.rows]).alias(labels.kind),
            labels.values.gather(top.items).alias("similar"),
            pl.Series("rank", top.ranks),
            pl.Series("score", top.scores),
        ]
    )


def contributions(
    terms: Indices, weights: Floats, components: Floats, documents: Collection, place: int
) -> tuple[Floats, Indices | None]:
    """Split the cosine of a query and a document into one term for each word of the query.

    Returns the contributions, whose sum is the cosine, and the term of the document that carries
    most of each (None for a document without words).
    """
    weights = weights.astype(np.float64)
    basis = components[:, terms].T.astype(np.float64)
    target = documents.embedding[place].astype(np.float64)
    scale = np.linalg.norm(weights @ basis) * np.linalg.norm(target)
    shares = weights * (basis @ target) / scale if scale > 0 else np.zeros(len(terms))
    rows = documents.rows
    own = slice(rows.indptr[place], rows.indptr[place + 1])
    if own.start == own.stop:
        return shares, None
    # The document is d'U_k', so each product splits once more, over the document's own terms.
    document_basis = components[:, rows.indices[own]].astype(np.float64) * rows.data[own]
    products = (weights[:, None] * basis) @ document_basis
    signs = np.where(shares < 0, -1, 1)[:, None]
    return shares, rows.indices[own][np.argmax(products * signs, axis=1)]


def has_texts(given: Any) -> bool:
    """Return whether queries are texts, not vectors."""
    if isinstance(given, str):
        return True
    column = isinstance(given, Sequence | pl.Series) or hasattr(given, "tolist")  # pandas, NumPy
    return column and np.ndim(given) == 1 and isinstance(next(iter(given), None), str)

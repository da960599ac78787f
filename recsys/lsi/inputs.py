"""Counts of terms from what an index is given: documents and queries, as texts or matrices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from scipy import sparse

from recsys.data.ids import Ids
from recsys.errors import DataError
from recsys.lsi.collection import Names, NamesCollector, batches_or_none, names_of_matrix
from recsys.lsi.queries import Queries, has_texts
from recsys.lsi.vectorizer import VectorizerEncoder, WordEncoder, checked_text

if TYPE_CHECKING:
    from recsys.data.ids import IdsLike

Encoder: TypeAlias = WordEncoder | VectorizerEncoder
Labels: TypeAlias = "tuple[Sequence[Any] | None, Sequence[str | None] | None]"
"""Ids and titles of documents, where they are given."""
Matrix: TypeAlias = Callable[[Any], Any]
"""Check of a matrix, which returns it as CSR."""


def learned_counts(
    encoder: Encoder, documents: Any, labels: Labels, vocabulary: IdsLike | None, matrix: Matrix
) -> tuple[Names, Any]:
    """Return the names and counts of documents; the encoder learns the terms.

    Raises
    ------
    DataError
        If a vocabulary is of another length than the matrix is wide, or given for texts.
    """
    batches = batches_or_none(documents, *labels)
    if batches is not None:
        if vocabulary is not None:
            raise DataError("vocabulary is for matrices; the terms of texts are found in them.")
        collector = NamesCollector()
        counts = encoder.read(collector.watch(batches))
        return collector.names(), counts
    counts = matrix(documents)
    names = names_of_matrix(counts.shape[0], *labels, 0)
    n_terms = counts.shape[1]
    if vocabulary is not None and len(vocabulary) != n_terms:  # type: ignore[arg-type]
        given = len(vocabulary)  # type: ignore[arg-type]
        raise DataError(f"vocabulary must have one entry for each of {n_terms} terms; got {given}.")
    encoder.terms = Ids(range(n_terms) if vocabulary is None else vocabulary, "term", sort=False)
    return names, counts


def further_counts(
    encoder: Encoder, documents: Any, labels: Labels, first: int, matrix: Matrix
) -> tuple[Names, Any, int]:
    """Return the names and counts of further documents, and the number of words lost.

    Documents without ids are numbered from `first`.
    """
    batches = batches_or_none(documents, *labels, first)
    if batches is None:
        counts = matrix(documents)
        return names_of_matrix(counts.shape[0], *labels, first), counts, 0
    collector = NamesCollector()
    blocks, n_unknown = [], 0
    for texts in collector.watch(batches):
        encoded = encoder.encode(texts)
        blocks.append(encoded.rows if encoded.counts is None else encoded.counts)
        n_unknown += sum(map(len, encoded.unknown))
    return collector.names(), sparse.vstack(blocks, format="csr"), n_unknown


def as_queries(encoder: Encoder, given: Any, matrix: Matrix, *, columns: bool) -> Queries:
    """Return queries as terms with counts and weights.

    With `columns` a matrix has terms in its rows.

    Raises
    ------
    DataError
        If they are neither texts nor vectors, or there are none.
    """
    texts = has_texts(given)
    single = isinstance(given, str) or (np.ndim(given) == 1 and not texts)
    if texts:
        queries = [given] if isinstance(given, str) else list(given)
        for number, text in enumerate(queries):
            checked_text(text, number, "Query")
        return encoder.queries(queries, single)
    if np.ndim(given) == 0:
        kind = type(given).__name__
        raise DataError(f"A query must be a text, several texts, or rows of counts; got {kind}.")
    if single and not len(given):
        raise DataError("There are no queries.")
    rows = np.asarray(given)[None, :] if single else given
    return encoder.queries_of(matrix(rows.T if single and columns else rows), single)

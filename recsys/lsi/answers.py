"""Answers to queries: the documents found for each, by words, by meaning or by both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from recsys.lsi.queries import ROUNDING, Queries, best_rows
from recsys.lsi.search import Query, Ranking, Search

if TYPE_CHECKING:
    from recsys.data.ids import Ids
    from recsys.topn import Cosine

Indices = NDArray[np.int64]


def by_meaning(scorer: Cosine, n_queries: int, n: int) -> tuple[Indices, Ranking]:
    """Return the numbers of queries, and the documents with the largest cosines for each."""
    top = best_rows(scorer, n_queries, n)
    nothing = np.zeros(len(top), np.float32)
    return top.rows, Ranking(top.items, top.scores, nothing, top.scores)


def by_words(
    search: Search, given: Queries, directions: NDArray[Any], n: int, method: str
) -> tuple[Indices, Ranking]:
    """Return the numbers of queries, and the documents found by words ("bm25") or by both."""
    find = search.by_words if method == "bm25" else search.by_both
    numbers = [number for number, terms in enumerate(given.terms) if len(terms)]
    found = [find(as_query(given, directions, number), n) for number in numbers]
    rows = np.repeat(numbers, [len(ranking.documents) for ranking in found])
    if len(found) == 1:
        return rows, found[0]
    return rows, Ranking(*(np.concatenate(parts) for parts in zip(*found, strict=True)))


def as_query(given: Queries, directions: NDArray[Any], number: int) -> Query:
    """Return one of several queries, with a direction of length 1, or 0 if it has none."""
    direction = directions[number].astype(np.float64)
    weights = given.weights[number].astype(np.float64)
    length = float(np.sqrt(direction @ direction))
    if length > ROUNDING * float(np.sqrt(weights @ weights)):
        direction /= length
    else:
        direction[:] = 0
    counts = given.counts[number].astype(np.float32, copy=False)
    return Query(given.terms[number], counts, direction.astype(np.float32))


def matched(names: Ids, counts: Any, given: Queries, rows: Indices, places: Indices) -> pl.Series:
    """Return the terms of the queries that found documents have, with commas between."""
    texts = []
    for row, place in zip(rows.tolist(), places.tolist(), strict=True):
        own = counts.indices[counts.indptr[place] : counts.indptr[place + 1]]
        both = np.intersect1d(own, given.terms[row])
        texts.append(", ".join(map(str, names.values.gather(both))))
    return pl.Series("matched", texts, dtype=pl.String)


def ranks(rows: Indices) -> NDArray[np.int32]:
    """Return the ranks, from 1, of results whose queries have ascending numbers."""
    return (np.arange(1, len(rows) + 1) - np.searchsorted(rows, rows)).astype(np.int32)

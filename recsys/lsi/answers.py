"""Answers to queries: the documents found for each, by words, by meaning or by both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from recsys.lsi.queries import ROUNDING, NothingToRankError, Queries
from recsys.lsi.search import Query, Ranking, Search

if TYPE_CHECKING:
    from collections.abc import Sequence

    from recsys.data.ids import Ids
    from recsys.lsi.collection import Collection

Indices = NDArray[np.int64]


def found_for(
    search: Search, given: Queries, directions: NDArray[Any], n: int, method: str
) -> tuple[Indices, Ranking]:
    """Return the numbers of queries, and the documents that a method finds for each.

    Raises
    ------
    NothingToRankError
        If documents are ranked by meaning and no query has a direction.
    """
    queries = [
        (number, as_query(given, directions, number))
        for number, terms in enumerate(given.terms)
        if len(terms)
    ]
    find = {"bm25": search.by_words, "hybrid": search.by_both, "lsi": search.by_meaning}[method]
    if method == "lsi":
        queries = [each for each in queries if each[1].direction.any()]
    if not queries:
        raise NothingToRankError(
            "The words of the query have no weight in the dimensions of the index, so nothing can "
            "be ranked; use other words, another method, or an index with more dimensions."
        )
    found = [find(query, n) for _, query in queries]
    if len(found) == 1:
        return np.full(len(found[0].documents), queries[0][0]), found[0]
    rows = np.repeat([number for number, _ in queries], [len(each.documents) for each in found])
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


def answered(
    documents: Collection,
    terms: Ids,
    given: Queries,
    labels: Sequence[Any],
    rows: Indices,
    found: Ranking,
    *,
    parts: bool,
) -> pl.DataFrame:
    """Return what was found for queries as a frame: see `LSI.query`."""
    ids, *shown = documents.shown(found.documents)
    ranks = (np.arange(1, len(rows) + 1) - np.searchsorted(rows, rows)).astype(np.int32)
    columns = [ids, pl.Series("rank", ranks), pl.Series("score", found.scores)]
    if parts:
        texts = []
        for row, place in zip(rows.tolist(), found.documents.tolist(), strict=True):
            both = np.intersect1d(documents.counts_of(place).indices, given.terms[row])
            texts.append(", ".join(map(str, terms.values.gather(both))))
        columns += [pl.Series("words", found.words), pl.Series("meaning", found.meaning)]
        columns.append(pl.Series("matched", texts, dtype=pl.String))
    frame = pl.DataFrame([*columns, *shown])
    if given.single:
        return frame
    return frame.select(pl.Series("query", list(labels)).gather(rows), pl.all())

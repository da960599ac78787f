"""Answers to queries: the documents found for each, by words, by meaning or by both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from recsys.lsi.queries import ROUNDING, Queries, best_rows
from recsys.lsi.search import Query, Ranking, Search, best_places
from recsys.topn import Cosine, TopN

if TYPE_CHECKING:
    from recsys.data.ids import Ids

Indices = NDArray[np.int64]

_FEW = 32  # queries, for which a filter is faster than a product of matrices
_CANDIDATES = 1024  # documents that pass it
_AT_MOST = 256  # results from them


def by_meaning(search: Search, directions: NDArray[np.float32], n: int) -> tuple[Indices, Ranking]:
    """Return the numbers of queries, and the documents with the largest cosines for each."""
    inverse = np.where(search.inverse > 0, search.inverse, np.float32(np.nan))
    scorer = Cosine(search.vectors, directions, inverse=inverse)
    top = _by_codes(search, directions, scorer, n) or best_rows(scorer, len(directions), n)
    nothing = np.zeros(len(top), np.float32)
    return top.rows, Ranking(top.items, top.scores, nothing, top.scores)


def _by_codes(
    search: Search, directions: NDArray[np.float32], scorer: Cosine, n: int
) -> TopN | None:
    """Return the same from a large collection for few queries, None where it would be slower."""
    if search.codes is None or len(directions) > _FEW or n > _AT_MOST:
        return None
    found = []
    for number, direction in enumerate(directions):
        length = float(np.linalg.norm(direction))
        if length == 0:
            continue
        places, bound = search.codes.best(direction / length, _CANDIDATES, None, 0.0, 1.0)
        places.sort()
        scores = scorer.predict(np.full(len(places), number), places)
        best = best_places(np.nan_to_num(scores, nan=-np.inf), n)
        if not scores[best[-1]] > bound:  # others might be as good, or there are fewer
            return None
        found.append(
            (np.full(n, number), places[best], np.arange(1, n + 1, dtype=np.int32), scores[best])
        )
    return TopN(*(np.concatenate(parts) for parts in zip(*found, strict=True))) if found else None


def by_words(
    search: Search, given: Queries, directions: NDArray[Any], n: int, method: str
) -> tuple[Indices, Ranking]:
    """Return the numbers of queries, and the documents found by words ("bm25") or by both."""
    find = search.by_words if method == "bm25" else search.by_both
    numbers = [number for number, terms in enumerate(given.terms) if len(terms)]
    found = [find(as_query(given, directions, number), n) for number in numbers]
    if len(found) == 1:
        return np.full(len(found[0].documents), numbers[0]), found[0]
    rows = np.repeat(numbers, [len(ranking.documents) for ranking in found])
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

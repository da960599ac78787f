"""Answers to queries: the documents found for each, by words, by meaning or by both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from recsys.lsi.queries import ROUNDING, Queries, best_rows
from recsys.lsi.search import Query, Ranking, Search
from recsys.topn import Cosine

if TYPE_CHECKING:
    from collections.abc import Sequence

    from recsys.data.ids import Ids
    from recsys.lsi.collection import Collection

Indices = NDArray[np.int64]

_FEW = 32  # queries, for which one by one is faster than a product of matrices


def by_meaning(
    search: Search, documents: Collection, directions: NDArray[np.float32], n: int
) -> tuple[Indices, Ranking]:
    """Return the numbers of queries, and the documents with the largest cosines for each."""
    if len(directions) > _FEW:
        scorer = Cosine(documents.vectors, directions, inverse=documents.inverse)
        top = best_rows(scorer, len(directions), n)
        places = documents.places_of(top.items)
        return top.rows, Ranking(places, top.scores, np.zeros_like(top.scores), top.scores)
    lengths = np.linalg.norm(directions, axis=1)
    numbers = np.flatnonzero(lengths)
    return _together(
        numbers,
        [search.by_meaning(directions[each] / lengths[each], n) for each in numbers],
    )


def by_words(
    search: Search, given: Queries, directions: NDArray[Any], n: int, method: str
) -> tuple[Indices, Ranking]:
    """Return the numbers of queries, and the documents found by words ("bm25") or by both."""
    find = search.by_words if method == "bm25" else search.by_both
    numbers = [number for number, terms in enumerate(given.terms) if len(terms)]
    return _together(numbers, [find(as_query(given, directions, number), n) for number in numbers])


def _together(
    numbers: Sequence[int] | Indices, found: Sequence[Ranking]
) -> tuple[Indices, Ranking]:
    """Return the numbers of queries and the rankings of each as one."""
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

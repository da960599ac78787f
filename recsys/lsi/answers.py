"""Answers to queries, by words, by meaning or by both: documents, and scores word by word."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from recsys.lsi.queries import ROUNDING, NothingToRankError, Queries
from recsys.lsi.search import Fusion, Query, Ranking, Search

if TYPE_CHECKING:
    from collections.abc import Sequence

    from recsys.data.ids import Ids
    from recsys.lsi.collection import Collection

Indices = NDArray[np.int64]
Floats = NDArray[np.floating[Any]]

FEEDBACK = "(best documents)"
"""Row of an explanation for the documents whose mean stands for the meaning of the query."""

AVERAGE = "(average document)"
"""Row of an explanation for what the average document has, which is subtracted."""


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


def contributions(
    terms: Indices, weights: Floats, components: Floats, target: Floats, own: Any
) -> tuple[Floats, Indices | None]:
    """Split the cosine of a query and a document into one share for each word of the query.

    `target` are the coordinates of the document, `own` is its weighted row. With each share comes
    the term of the document that carries most of it; None for a document without words.
    """
    weights = weights.astype(np.float64)
    basis = components[:, terms].T.astype(np.float64)
    target = target.astype(np.float64)
    scale = np.linalg.norm(weights @ basis) * np.linalg.norm(target)
    shares = weights * (basis @ target) / scale if scale > 0 else np.zeros(len(terms))
    if not own.nnz:
        return shares, None
    # The document is d'U_k, so each product splits once more, over the document's own terms.
    document_basis = components[:, own.indices].astype(np.float64) * own.data
    products = (weights[:, None] * basis) @ document_basis
    signs = np.where(shares < 0, -1, 1)[:, None]
    return shares, own.indices[np.argmax(products * signs, axis=1)]


def explained_by_meaning(names: Ids, terms: Indices, parts: tuple[Any, Any]) -> pl.DataFrame:
    """Return the frame of an explanation by meaning: term, contribution, through."""
    shares, through = parts
    frame = {"term": names.values.gather(terms), "contribution": shares}
    frame["through"] = _named(names, through, len(terms))
    return _sorted(pl.DataFrame(frame))


def explained_by_words(names: Ids, search: Search, query: Query, document: int) -> pl.DataFrame:
    """Return the frame of an explanation by BM25: term, contribution."""
    shares = search.word_shares(query, document)
    return _sorted(pl.DataFrame({"term": names.values.gather(query.terms), "contribution": shares}))


def explained_by_both(
    names: Ids,
    search: Search,
    fusion: Fusion,
    query: Query,
    document: int,
    parts: tuple[Any, Any],
    best: pl.Series,
) -> pl.DataFrame:
    """Return the frame of an explanation by both: term, contribution, words, meaning, through.

    The contributions add up to the score. Two rows have other names: `FEEDBACK`, through the ids
    `best`, if the direction is that of these documents; and `AVERAGE`.
    """
    shares, through = parts
    moved = len(best) > 0
    cosine = float(search.unit(document).astype(np.float64) @ fusion.direction)
    frame = pl.DataFrame(
        {
            "term": names.values.gather(query.terms).cast(pl.String),
            "words": fusion.words * search.word_shares(query, document),
            "meaning": shares * (0.0 if moved else fusion.meaning),
            "through": _named(names, None if moved else through, len(query.terms)).cast(pl.String),
        }
    )
    rest = {
        "term": [FEEDBACK, AVERAGE],
        "words": [0.0, -fusion.average_words],
        "meaning": [fusion.meaning * cosine, -fusion.average_meaning],
        "through": [", ".join(best.cast(pl.String)), None],
    }
    others = pl.DataFrame(rest).tail(1 + moved)
    frame = pl.concat([_sorted(frame, "words", "meaning"), others])
    total = (pl.col("words") + pl.col("meaning")).alias("contribution")
    return frame.select("term", total, "words", "meaning", "through")


def _named(names: Ids, places: Indices | None, n: int) -> pl.Series:
    if places is None:
        return pl.Series([None] * n, dtype=names.dtype)
    return names.values.gather(places)


def _sorted(frame: pl.DataFrame, *columns: str) -> pl.DataFrame:
    """Return a frame by the sum of columns, the largest first."""
    total = pl.sum_horizontal(columns or ("contribution",))
    return frame.sort(total, descending=True, maintain_order=True)

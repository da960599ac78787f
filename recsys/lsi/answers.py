"""Answers to queries, by words, by meaning or by both: documents, and scores word by word."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from recsys.lsi.queries import NothingToRankError, Queries, Query
from recsys.lsi.search import Ranking, Search

if TYPE_CHECKING:
    from collections.abc import Sequence

    from recsys.data.ids import Ids
    from recsys.lsi.parts import Collection

Indices = NDArray[np.int64]
Floats = NDArray[np.floating[Any]]

FEEDBACK = "(best documents)"
"""Row of an explanation for the documents whose mean stands for the meaning of the query."""

AVERAGE = "(average document)"
"""Row of an explanation for what the average document has, which is subtracted."""


def found_for(
    search: Search, given: Queries, components: Floats, n: int, method: str
) -> tuple[Indices, Ranking]:
    """Return the numbers of queries, and the documents that a method finds for each.

    Raises
    ------
    NothingToRankError
        If documents are ranked by meaning and no query has a direction.
    """
    queries = [
        (number, query.towards(components))
        for number, query in enumerate(given.each)
        if len(query.terms)
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
            both = np.intersect1d(documents.counts_of(place).indices, given.each[row].terms)
            texts.append(", ".join(map(str, terms.values.gather(both))))
        columns += [pl.Series("words", found.words), pl.Series("meaning", found.meaning)]
        columns.append(pl.Series("matched", texts, dtype=pl.String))
    frame = pl.DataFrame([*columns, *shown])
    if given.single:
        return frame
    return frame.select(pl.Series("query", list(labels)).gather(rows), pl.all())


def explained(
    search: Search,
    components: Floats,
    documents: Collection,
    names: Ids,
    query: Query,
    place: int,
    own: Any,
    method: str,
) -> pl.DataFrame:
    """Return the score of a document word by word: see `LSI.explain`; `own` is its weighted row."""
    terms = names.values.gather(query.terms).alias("term")
    if method == "bm25":
        return _sorted(pl.DataFrame([terms, _shares(search.word_shares(query, place))]))
    cosines, through = _contributions(query, components, search.units(np.array([place]))[0], own)
    nothing = pl.Series("through", [None] * len(terms), dtype=names.dtype)
    via = nothing if through is None else names.values.gather(through).alias("through")
    if method == "lsi":
        return _sorted(pl.DataFrame([terms, _shares(cosines), via]))
    fusion = search.fusion(query)
    best = documents.shown(fusion.best)[0].cast(pl.String)
    words = fusion.words * search.word_shares(query, place)
    meaning = cosines * (0.0 if len(best) else fusion.meaning)
    cosine = float(search.units(np.array([place]))[0].astype(np.float64) @ fusion.direction)
    rest = {
        "term": [FEEDBACK, AVERAGE],
        "contribution": [fusion.meaning * cosine, -fusion.average],
        "words": [0.0, -fusion.average_words],
        "meaning": [fusion.meaning * cosine, -fusion.average_meaning],
        "through": [", ".join(best), None],
    }
    columns = [terms.cast(pl.String), _shares(words + meaning), pl.Series("words", words)]
    columns += [pl.Series("meaning", meaning), (nothing if len(best) else via).cast(pl.String)]
    others = pl.DataFrame(rest, schema_overrides={"through": pl.String})
    return pl.concat([_sorted(pl.DataFrame(columns)), others if len(best) else others[1:]])


def _contributions(
    query: Query, components: Floats, target: Floats, own: Any
) -> tuple[Floats, Indices | None]:
    """Split the cosine of a query and a document into one share for each word of the query.

    With each comes the term of the document that carries most of it; None for one without words.
    """
    weights = query.weights.astype(np.float64)
    basis = components[:, query.terms].T.astype(np.float64)
    target = target.astype(np.float64)
    scale = np.linalg.norm(weights @ basis) * np.linalg.norm(target)
    shares = weights * (basis @ target) / scale if scale > 0 else np.zeros(len(weights))
    if not own.nnz:
        return shares, None
    # The document is d'U_k, so each product splits once more, over the document's own terms.
    document_basis = components[:, own.indices].astype(np.float64) * own.data
    products = (weights[:, None] * basis) @ document_basis
    signs = np.where(shares < 0, -1, 1)[:, None]
    return shares, own.indices[np.argmax(products * signs, axis=1)]


def _shares(values: Floats) -> pl.Series:
    return pl.Series("contribution", values, dtype=pl.Float64)


def _sorted(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.sort("contribution", descending=True, maintain_order=True)

"""Explanations: the score of a document, word by word."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

if TYPE_CHECKING:
    from recsys.data.ids import Ids
    from recsys.lsi.search import Fusion, Query, Search

Floats = NDArray[np.floating[Any]]
Indices = NDArray[np.int64]

FEEDBACK = "(best documents)"
"""Row of an explanation for the documents whose mean stands for the meaning of the query."""

AVERAGE = "(average document)"
"""Row of an explanation for what the average document has, which is subtracted."""


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
    others = {
        "term": [FEEDBACK, AVERAGE],
        "words": [0.0, -fusion.average_words],
        "meaning": [fusion.meaning * cosine, -fusion.average_meaning],
        "through": [", ".join(best.cast(pl.String)), None],
    }
    others = pl.DataFrame(others).tail(1 + moved)
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

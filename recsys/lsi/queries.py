"""Queries and the documents that match them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from recsys.data.frames import listed
from recsys.errors import DataError
from recsys.messages import close_matches, enumerated
from recsys.topn import Cosine, TopN, top_n

if TYPE_CHECKING:
    from recsys.data.ids import Ids, IdsLike

Floats = NDArray[np.floating[Any]]
Indices = NDArray[np.int64]

_NAMED = 5  # maximum number of unknown words in a message
# Maximum difference in length of a similar word, and maximum number of words to compare.
_LONGER, _COMPARED = 2, 5000
ROUNDING = 1e-5
"""Length of a projection, relative to the query, that may be mere rounding error."""


class NothingToRankError(DataError):
    """No query has a known word, or a direction, by which to rank documents."""


class UnknownTermWarning(UserWarning):
    """Some words of a query are in no document of the index."""


class Query(NamedTuple):
    """A query: its terms, their counts and weights, unknown words, and its direction."""

    terms: Indices
    counts: Floats
    weights: Floats
    unknown: Sequence[str] = ()
    direction: NDArray[np.float32] = np.zeros(0, np.float32)

    def towards(self, components: Floats) -> Query:
        """Return the query with its direction q' U_k, of length 1, or 0 if it has none."""
        direction = components[:, self.terms].astype(np.float64) @ self.weights
        length = float(np.sqrt(direction @ direction))
        has_one = length > ROUNDING * float(np.sqrt(self.weights @ self.weights))
        direction *= 1 / length if has_one else 0
        return self._replace(direction=direction.astype(np.float32))


class Queries(NamedTuple):
    """Queries with their texts, or the positions of vectors; `single` unless a list was given."""

    labels: Sequence[Any]
    each: Sequence[Query]
    single: bool

    @classmethod
    def of_rows(
        cls, rows: Any, weigh: Callable[[Indices, Floats], Floats], single: bool
    ) -> Queries:
        """Return the rows of a CSR matrix as queries; `weigh` takes terms and counts."""
        terms = np.split(rows.indices.astype(np.int64), rows.indptr[1:-1])
        counts = np.split(rows.data, rows.indptr[1:-1])
        pairs = zip(terms, counts, strict=True)
        return cls(range(rows.shape[0]), [Query(*pair, weigh(*pair)) for pair in pairs], single)

    def check(self, known: Ids) -> None:
        """Check that queries have known words; see `check_words`."""
        lost = np.array([not len(query.terms) for query in self.each])
        check_words([query.unknown for query in self.each], lost, known, stacklevel=5)


def check_words(
    unknown: Sequence[Sequence[str]],
    lost: NDArray[np.bool_],
    known: Ids | None = None,
    stacklevel: int = 4,
) -> None:
    """Check that queries have known words.

    `unknown` are the unknown words of each query, and `lost` marks queries without a known word.
    For a single query, the message names similar words of `known`.

    Warns
    -----
    UnknownTermWarning
        Once, if queries have unknown words.

    Raises
    ------
    NothingToRankError
        If no query has a known word.
    """
    if not lost.any() and not any(unknown):
        return
    different = list(dict.fromkeys(word for words in unknown for word in words))
    alone = known if len(unknown) == 1 else None
    shown = str if alone is None else partial(_with_similar, known=alone.values)
    listed_words = enumerated(different, _NAMED, shown)
    if lost.all():
        raise NothingToRankError(
            f"No word of the query is in the index: {listed_words}."
            if different
            else "The query has no words, or only stop words; by default a word has at least two "
            "letters."
        )
    if different:
        message = f"Not in the index: {listed_words}."
        if lost.any():
            n = int(lost.sum())
            subject = "One query has" if n == 1 else f"{n:,} queries have"
            message += f" {subject} no known word, and therefore no results."
        warnings.warn(message, UnknownTermWarning, stacklevel=stacklevel)


def _with_similar(word: str, known: pl.Series) -> str:
    """Return a word, with the most similar known word that begins with the same letter."""
    texts = known.cast(pl.String)
    lengths = texts.str.len_chars().cast(pl.Int64)
    alike = texts.filter(texts.str.starts_with(word[:1]) & ((lengths - len(word)).abs() <= _LONGER))
    near = close_matches(word, alike.head(_COMPARED), 1)
    return f"{word} (did you mean {near[0]}?)" if near else word


def best_rows(scorer: Cosine, n_queries: int, n: int, exclude: Indices | None = None) -> TopN:
    """Return the n rows with the largest cosine for each query, without row `exclude[q]`."""
    without = None if exclude is None else lambda q: (np.arange(len(q)), exclude[q])
    found = TopN.joined(top_n(scorer, np.arange(n_queries), n, exclude=without))
    np.clip(found.scores, -1, 1, out=found.scores)  # rounding may exceed 1
    return found


def similar_rows(
    labels: Ids, vectors: NDArray[np.float32], wanted: IdsLike | int | str, n: int
) -> pl.DataFrame:
    """Return the rows most similar to some rows as a frame: term, similar, rank, score."""
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


def has_texts(given: Any) -> bool:
    """Return whether queries are texts, not vectors."""
    if isinstance(given, str):
        return True
    column = isinstance(given, Sequence | pl.Series) or hasattr(given, "tolist")  # pandas, NumPy
    return column and np.ndim(given) == 1 and isinstance(next(iter(given), None), str)

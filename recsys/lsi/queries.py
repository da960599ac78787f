"""Queries and the documents that match them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl

from lowrank.kernels.arrays import Floats, Floats32, Int64s, Masks
from recsys.data.frames import listed
from recsys.errors import DataError
from recsys.messages import close_matches, enumerated
from recsys.ranking.topn import Cosine, CsrPairs, TopN, top_n

if TYPE_CHECKING:
    from recsys.data.ids import Ids, IdsLike


_NAMED = 5  # maximum number of unknown words in a message
_LONGER = 2  # maximum difference in length of a similar word
_COMPARED = 5000  # maximum number of words to compare
ROUNDING = 1e-5
"""Length of a projection, relative to the query, that may be mere rounding error."""


class NothingToRankError(DataError):
    """No query has a known word, or a direction, by which to rank documents."""


class UnknownTermWarning(UserWarning):
    """Some words of a query are in no document of the index."""


class Query(NamedTuple):
    """A query: its terms, their counts and weights, unknown words, and its direction."""

    terms: Int64s
    counts: Floats
    weights: Floats
    unknown: Sequence[str] = ()
    direction: Floats32 = np.zeros(0, np.float32)

    def take(self, terms: Masks) -> Query:
        """Return the query with some of its terms."""
        return self._replace(
            terms=self.terms[terms],
            counts=self.counts[terms],
            weights=self.weights[terms],
        )

    def towards(self, components: Floats) -> Query:
        """Return the query with its direction q' U_k, of length 1, or 0 if it has none."""
        # In double precision, since the sum may cancel to zero (see `ROUNDING`).
        direction = components[:, self.terms].astype(np.float64) @ self.weights
        length = float(np.sqrt(direction @ direction))
        is_rounding = length <= ROUNDING * float(np.sqrt(self.weights @ self.weights))
        direction *= 0 if is_rounding else 1 / length
        return self._replace(direction=direction.astype(np.float32))


class Queries(NamedTuple):
    """Queries with their texts, or the positions of vectors; `is_single` unless in a list."""

    labels: Sequence[Any]
    queries: Sequence[Query]
    is_single: bool

    @classmethod
    def from_rows(
        cls,
        rows: Any,
        weigh: Callable[[Int64s, Floats], Floats],
        is_single: bool,
    ) -> Queries:
        """Return the rows of a CSR matrix as queries; `weigh` takes terms and counts."""
        # np.split takes the inner borders.
        starts = rows.indptr[1:-1]
        terms = np.split(rows.indices.astype(np.int64), starts)
        pairs = zip(terms, np.split(rows.data, starts), strict=True)
        queries = [Query(*pair, weigh(*pair)) for pair in pairs]
        return cls(range(len(queries)), queries, is_single)

    def without_documents(
        self, frequency: Int64s, terms: Ids, *, dropped: bool
    ) -> Queries:
        """Return the queries with terms of no document as unknown words.

        Removed documents leave their terms behind. `dropped` tells whether the queries lose them;
        otherwise they still have a meaning.
        """
        queries = []
        for query in self.queries:
            is_in_none = frequency[query.terms] == 0
            words = map(terms.values.item, query.terms[is_in_none].tolist())
            unknown = [*query.unknown, *map(str, words)]
            if dropped:
                query = query.take(~is_in_none)
            queries.append(query._replace(unknown=unknown))
        return self._replace(queries=queries)

    def check(self, terms: Ids) -> None:
        """Check that queries have known words; see `check_words`."""
        unknown = [query.unknown for query in self.queries]
        is_empty = np.array([not len(query.terms) for query in self.queries])
        is_batch = not self.is_single
        check_words(unknown, is_empty, terms, stacklevel=5, is_batch=is_batch)


def check_words(
    unknown: Sequence[Sequence[str]],
    is_empty: Masks,
    terms: Ids | None = None,
    stacklevel: int = 4,
    *,
    is_batch: bool = False,
) -> None:
    """Check that queries have known words.

    `unknown` are the unknown words of each query, and `is_empty` marks queries without a known
    word. For a single query, the message names similar words of `terms`.

    Warns
    -----
    UnknownTermWarning
        Once, if queries have unknown words, or if queries of a batch have no known word.

    Raises
    ------
    NothingToRankError
        If no query has a known word, unless they are a batch.
    """
    words = list(dict.fromkeys(chain.from_iterable(unknown)))
    shown: Callable[[str], str] = str
    if terms is not None and len(unknown) == 1:
        shown = partial(_with_similar, terms=terms.values)
    listed_words = enumerated(words, _NAMED, shown)
    if is_empty.size and is_empty.all() and not is_batch:
        if words:
            sentence = f"No word of the query is in the index: {listed_words}."
            raise NothingToRankError(sentence)
        raise NothingToRankError(
            "The query has no words, or only stop words; by default a word has at least two "
            "letters."
        )
    sentences = []
    if words:
        sentences.append(f"Not in the index: {listed_words}.")
    if is_empty.any():
        sentences.append(_without_results(int(is_empty.sum()), "known word"))
    if sentences:
        warnings.warn(" ".join(sentences), UnknownTermWarning, stacklevel=stacklevel)


def warn_of_no_direction(count: int) -> None:
    """Warn that queries of a batch have no weight in the dimensions of the index."""
    message = _without_results(count, "weight in the dimensions of the index")
    warnings.warn(message, UnknownTermWarning, stacklevel=4)


def _without_results(count: int, missing: str) -> str:
    """Return a sentence about queries of a batch that have no results."""
    subject = "One query has"
    if count > 1:
        subject = f"{count:,} queries have"
    return f"{subject} no {missing}, and therefore no results."


def _with_similar(word: str, terms: pl.Series) -> str:
    """Return a word, with the most similar term that begins with the same letter."""
    texts = terms.cast(pl.String)
    differences = (texts.str.len_chars().cast(pl.Int64) - len(word)).abs()
    # Comparing with all of a million words would take seconds.
    is_similar = texts.str.starts_with(word[:1]) & (differences <= _LONGER)
    # The word itself is a term if only removed documents had it.
    similar = texts.filter(is_similar & (texts != word))
    matches = close_matches(word, similar.head(_COMPARED), 1)
    if not matches:
        return word
    return f"{word} (did you mean {matches[0]}?)"


def best_rows(
    scorer: Cosine,
    n_queries: int,
    n: int,
    exclude: Int64s | None = None,
) -> TopN:
    """Return the n rows with the largest cosine for each query, without row `exclude[q]`."""
    without = None
    if exclude is not None:
        without = CsrPairs(np.arange(n_queries + 1), exclude.astype(np.int32))
    top = TopN.joined(top_n(scorer, np.arange(n_queries), n, exclude=without))
    np.clip(top.scores, -1, 1, out=top.scores)  # rounding may exceed 1
    return top


def similar_rows(
    labels: Ids,
    vectors: Floats32,
    names: IdsLike | int | str,
    n: int,
) -> pl.DataFrame:
    """Return the rows most similar to some rows as a frame: term, similar, rank, score."""
    rows = labels.index(listed(names))
    top = best_rows(Cosine(vectors, vectors[rows]), len(rows), n, rows)
    return pl.DataFrame(
        [
            labels.values.gather(rows[top.rows]).alias(labels.kind),
            labels.values.gather(top.items).alias("similar"),
            pl.Series("rank", top.ranks),
            pl.Series("score", top.scores),
        ]
    )


def has_texts(queries: Any) -> bool:
    """Return whether queries are texts, not vectors."""
    if isinstance(queries, str):
        return True
    is_list = isinstance(queries, Sequence | pl.Series) or hasattr(queries, "tolist")
    if not is_list or np.ndim(queries) != 1:
        return False
    return has_text(queries)


def has_text(values: Iterable[Any]) -> bool:
    """Return whether some of the values are texts; others may be missing."""
    return any(isinstance(text, str) for text in values)

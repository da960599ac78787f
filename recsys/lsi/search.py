"""Search of an index: exact words by BM25, meaning by LSI, or both together."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

METHODS = ("hybrid", "lsi", "bm25")
"""Exact words and meaning together, meaning alone, exact words alone."""

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Indices = NDArray[np.int64]

_K1, _B = 1.2, 0.75  # saturation of counts, and influence of a document's length, in BM25
_MOST_MEANING = 0.7  # weight of meaning in long documents
_FEW_WORDS = 25  # words of a document at which meaning has half of that
_BEST = 5  # documents whose mean the direction of a query moves to
_RARELY = 40  # documents of a collection for each of them, at least
_PULL = 3.0  # weight of their mean; that of the query is 1
_REORDERED = 4096  # documents that are scored by the moved direction


@dataclass(frozen=True, eq=False)
class Postings:
    """For each term the documents that have it, with its BM25 weight in them but for the idf.

    A count c in a document of length l weighs ``(k1 + 1) c / (c + k1 (1 - b + b l / mean l))`` with
    k1 = 1.2 and b = 0.75, and a term in df of n documents ``ln(1 + (n - df + .5) / (df + .5))``.

    Attributes
    ----------
    indptr : int64 ndarray of shape (n_terms + 1,)
    documents : int32 ndarray of shape (n_entries,)
    weights : float32 ndarray of shape (n_entries,)
    n_documents : int

    References
    ----------
    Robertson & Zaragoza (2009), "The probabilistic relevance framework: BM25 and beyond".
    """

    indptr: Indices
    documents: NDArray[np.int32]
    weights: Floats
    n_documents: int

    @classmethod
    def of(cls, counts: Any) -> Self:
        """Return the postings of counts, a csr_array of shape (n_documents, n_terms)."""
        n = counts.shape[0]
        lengths = np.add.reduceat(np.append(counts.data, 0), counts.indptr[:-1])
        lengths = np.where(np.diff(counts.indptr) > 0, lengths, 0).astype(np.float64)
        saturation = _K1 * (1 - _B + _B * lengths / max(lengths.mean(), 1e-9))
        by_term = counts.astype(np.float32, copy=False).tocsc()
        documents = by_term.indices.astype(np.int32, copy=False)
        c = by_term.data
        weights = (_K1 + 1) * c / (c + saturation.astype(np.float32)[documents])
        return cls(by_term.indptr.astype(np.int64), documents, weights.astype(np.float32), n)

    @classmethod
    def none(cls, shape: tuple[int, int]) -> Self:
        """Return the postings of terms that no document has."""
        empty = np.zeros(0, np.int32), np.zeros(0, np.float32)
        return cls(np.zeros(shape[1] + 1, np.int64), *empty, shape[0])

    @cached_property
    def idf(self) -> Floats:
        """Weight of each term."""
        df = np.diff(self.indptr)
        return np.log1p((self.n_documents - df + 0.5) / (df + 0.5)).astype(np.float32)

    def scores(self, terms: Indices, counts: Floats) -> Doubles:
        """Return the BM25 score of each document for the terms of a query."""
        begin, end = self.indptr[terms].tolist(), self.indptr[terms + 1].tolist()
        slices = [slice(*pair) for pair in zip(begin, end, strict=True)]
        if not slices:
            return np.zeros(self.n_documents)
        documents = np.concatenate([self.documents[each] for each in slices])
        weights = np.concatenate([self.weights[each] for each in slices])
        weights *= np.repeat(self.idf[terms] * counts, self.indptr[terms + 1] - self.indptr[terms])
        return np.bincount(documents, weights, self.n_documents)

    def of_document(self, document: int, terms: Indices, counts: Floats) -> Doubles:
        """Return what each term of a query adds to the score of a document."""
        found = np.zeros(len(terms))
        for number, term in enumerate(terms.tolist()):
            own = self.documents[self.indptr[term] : self.indptr[term + 1]]
            at = int(np.searchsorted(own, document))
            if at < len(own) and own[at] == document:
                weight = self.weights[self.indptr[term] + at]
                found[number] = weight * self.idf[term] * counts[number]
        return found


class Query(NamedTuple):
    """A query: its terms, how often it has each, and its direction, of length 1 or 0."""

    terms: Indices
    counts: Floats
    direction: Floats


class Ranking(NamedTuple):
    """The best documents of a query, best first; a score is words + meaning."""

    documents: Indices
    scores: Floats
    words: Floats
    meaning: Floats


class Fusion(NamedTuple):
    """How words and meaning become one score: ``words * bm25 + meaning * cosine - average``.

    The cosine is that of `direction`, which is `query` (its share of the direction) times the
    direction of the query, and for the rest that of the best documents.
    """

    words: float
    average_words: float
    meaning: float
    average_meaning: float
    direction: Floats
    query: float


@dataclass(frozen=True, eq=False)
class Search:
    r"""Search by exact words and meaning together.

    Both scores are made comparable over the documents of the collection: the standard scores
    (score - mean) / deviation of BM25 and of the cosine are added with the weights w and 1 - w.
    An exact word that few documents have stands far above the mean, so a large collection and a
    short query of rare words are ranked by words without any setting. And

    .. math:: 1 - w = 0.7 \, \frac{l}{l + 25}

    for l words in the mean document: the coordinates of a title say less than those of an abstract.

    The cosine is not that of the query alone: the five best documents by this score show what is
    meant, and the query's direction moves to their mean (Rocchio's feedback among the dimensions
    rather than among the words, where it adds noise).

    Attributes
    ----------
    postings : Postings
    vectors : float32 ndarray of shape (n_documents, k)
        Coordinates of the documents.
    inverse : float32 ndarray of shape (n_documents,)
        1 / length of each, 0 for a document without words.
    weight : float
        Weight w of exact words.

    References
    ----------
    Rocchio (1971), "Relevance feedback in information retrieval"; Lavrenko & Croft (2001),
    "Relevance-based language models", for feedback among words.
    """

    postings: Postings
    vectors: Floats
    inverse: Floats
    weight: float

    def __len__(self) -> int:
        return len(self.inverse)

    @cached_property
    def moments(self) -> tuple[Doubles, Doubles]:
        """Mean of the unit vectors, and mean of their outer products: a cosine's mean and square.

        So no pass over all documents is needed for the standard scores of a query.
        """
        k = self.vectors.shape[1]
        mean, second = np.zeros(k), np.zeros((k, k))
        for start in range(0, len(self), _REORDERED):
            block = self.unit(slice(start, start + _REORDERED))
            mean += block.sum(axis=0)
            second += block.T @ block
        return mean / len(self), second / len(self)

    def unit(self, documents: Any) -> Floats:
        """Return the unit vectors of documents."""
        vectors: Floats = self.vectors[documents] * self.inverse[documents, None]
        return vectors

    def cosines(self, direction: Floats, documents: Any = slice(None)) -> Floats:
        """Return the cosines of documents with a direction of length 1."""
        products: Floats = self.vectors[documents] @ direction
        products *= self.inverse[documents]
        return products

    def spread(self, direction: Floats) -> tuple[float, float]:
        """Return the mean and the deviation of the cosines of all documents."""
        mean, second = self.moments
        average = float(mean @ direction)
        variance = float(direction @ second @ direction) - average**2
        return average, float(np.sqrt(max(variance, 0.0)))

    def by_words(self, query: Query, n: int) -> Ranking:
        """Find the n documents with the best BM25 scores; those without any word are not found."""
        scores = self.postings.scores(query.terms, query.counts).astype(np.float32)
        best = best_places(scores, n)
        best = best[scores[best] > 0]
        return Ranking(best, scores[best], scores[best], np.zeros(len(best), np.float32))

    def by_both(self, query: Query, n: int) -> Ranking:
        """Find the n documents with the best scores of words and meaning."""
        bm25, fusion, candidates = self.fused(query, n)
        words = fusion.words * bm25[candidates] - fusion.average_words
        meaning = fusion.meaning * self.cosines(fusion.direction, candidates)
        meaning -= np.float32(fusion.average_meaning)
        scores = (words + meaning).astype(np.float32)
        scores[self.inverse[candidates] == 0] = -np.inf
        best = best_places(scores, n)
        best = best[scores[best] > -np.inf]
        order = np.lexsort((candidates[best], -scores[best]))
        best = best[order]
        return Ranking(
            candidates[best], scores[best], words[best].astype(np.float32), meaning[best]
        )

    def fused(self, query: Query, n: int) -> tuple[Doubles, Fusion, Indices]:
        """Return the BM25 scores, how a query is scored, and the documents that may be best."""
        bm25 = self.postings.scores(query.terms, query.counts)
        average = float(bm25.sum()) / len(self)
        deviation = float(np.sqrt(max(float(bm25 @ bm25) / len(self) - average**2, 0.0)))
        words = self.weight / deviation if deviation > 0 else 0.0
        mean, spread = self.spread(query.direction)
        meaning = (1 - self.weight) / spread if spread > 0 else 0.0
        first = Fusion(words, words * average, meaning, meaning * mean, query.direction, 1.0)
        n_best = min(_BEST, len(self) // _RARELY)
        n_candidates = max(n, _REORDERED)
        everything = len(self) <= n_candidates
        if not meaning or (everything and not n_best):
            return bm25, first, np.arange(len(self))
        scores = self.cosines(query.direction)
        scores *= np.float32(meaning)
        scores += (words * bm25).astype(np.float32)
        scores[self.inverse == 0] = -np.inf
        if everything:
            candidates, best = np.arange(len(self)), best_places(scores, n_best)
        else:
            candidates = best_places(scores, n_candidates)
            best = candidates[:n_best]
        return bm25, self._moved(first, query.direction, best), candidates

    def _moved(self, fusion: Fusion, direction: Floats, best: Indices) -> Fusion:
        """Return the fusion whose direction has moved to the mean of the best documents."""
        moved = direction + np.float32(_PULL) * self.unit(best).mean(axis=0)
        length = float(np.linalg.norm(moved))
        moved /= np.float32(length)
        mean, spread = self.spread(moved)
        if spread == 0:
            return fusion
        meaning = (1 - self.weight) / spread
        return fusion._replace(
            meaning=meaning, average_meaning=meaning * mean, direction=moved, query=1 / length
        )


def words_weight(mean_length: float) -> float:
    """Return the weight of exact words in a collection of documents of so many words."""
    return 1 - _MOST_MEANING * mean_length / (mean_length + _FEW_WORDS)


def best_places(scores: Floats, n: int) -> Indices:
    """Return the places of the n largest scores, best first; of equal ones the lower place."""
    if n < len(scores):
        cut = np.partition(scores, len(scores) - n)[len(scores) - n]
        above = np.flatnonzero(scores > cut)
        level = np.flatnonzero(scores == cut)[: n - len(above)]
        places = np.concatenate([above, level])
    else:
        places = np.arange(len(scores))
    return places[np.lexsort((places, -scores[places]))]

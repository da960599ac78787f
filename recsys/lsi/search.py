"""Search of an index: exact words by BM25, meaning by LSI, or both together."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from lowrank.kernels.retrieval import best_codes, sum_rows

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
_SMALL = 4096  # documents that are all scored
_CANDIDATES = 1024  # documents of a larger collection that are scored first
_SHARED = 2**25  # bytes from which on several threads read codes
_PADDED = 32  # columns of codes are filled up to a multiple of it
_MOST_CODE, _MOST_QUERY = 127, 2047  # entries of the codes of vectors, and of a query
_ROUNDING = 1e-5  # of float32 sums


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

    def scores(self, terms: Indices, counts: Floats) -> Floats:
        """Return the BM25 score of each document for the terms of a query."""
        matrix = self.indptr, self.documents, self.weights
        return sum_rows(matrix, terms, self.idf[terms] * counts, self.n_documents)

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


class Codes(NamedTuple):
    """Unit vectors as integers, a quarter of their size: a coarse but safe filter.

    Attributes
    ----------
    values : int8 ndarray of shape (n, width)
        The k columns, and zeros up to a multiple of 32.
    scale : float32 ndarray of shape (n,)
        A vector is about ``scale * values``.
    error : float
        The largest distance of a vector from that.
    """

    values: NDArray[np.int8]
    scale: Floats
    error: float

    @classmethod
    def of(cls, vectors: Floats, inverse: Floats) -> Self:
        """Return the codes of vectors, given 1 / length of each, 0 for those without direction."""
        n, k = vectors.shape
        values = np.zeros((n, -(-k // _PADDED) * _PADDED), np.int8)
        scale, error = np.zeros(n, np.float32), 0.0
        for start in range(0, n, _SMALL):
            part = slice(start, start + _SMALL)
            unit = vectors[part] * inverse[part, None]
            scale[part] = np.abs(unit).max(axis=1, initial=0) / _MOST_CODE
            step = np.where(scale[part] > 0, scale[part], 1)[:, None]
            values[part, :k] = np.rint(unit / step)
            lost = unit - values[part, :k] * scale[part, None]
            error = max(error, float(np.sqrt(np.square(lost).sum(axis=1)).max(initial=0)))
        return cls(values, scale, error)

    def best(
        self, direction: Floats, n: int, base: Floats | None, weight: float, meaning: float
    ) -> tuple[Indices, float]:
        """Return the n rows with about the best ``weight * base + meaning * cosine``, and a bound.

        No other row has a score above the bound.
        """
        step = float(np.abs(direction).max()) / _MOST_QUERY
        query = np.zeros(self.values.shape[1], np.int16)
        query[: len(direction)] = np.rint(direction / step)
        lost = float(np.linalg.norm(direction - query[: len(direction)] * step))
        unit = meaning * step
        threads = 1 if self.values.size < _SHARED else None
        how: dict[str, Any] = {"base": base, "weight": weight / unit, "threads": threads}
        rows, scores = best_codes(self.values, self.scale, query, n, **how)
        error = (
            self.error + lost * (1 + self.error) + _ROUNDING * (1 + abs(float(scores[0])) * step)
        )
        bound = unit * float(scores[-1]) + meaning * error if n < len(self.scale) else -np.inf
        return rows.astype(np.int64), bound


class _ByWords(NamedTuple):
    """BM25 scores of all documents, the best ones, and the most that others have."""

    bm25: Floats
    best: Indices | None
    others: float


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
    moments : float64 ndarray of shape (k + 1, k)
        Mean of the unit vectors, and mean of their outer products: the mean and the square of the
        cosines of a direction, without a pass over all documents.
    codes : Codes or None
        Of large collections, by which most documents are left out.

    References
    ----------
    Rocchio (1971), "Relevance feedback in information retrieval"; Lavrenko & Croft (2001),
    "Relevance-based language models", for feedback among words.
    """

    postings: Postings
    vectors: Floats
    inverse: Floats
    weight: float
    moments: Doubles
    codes: Codes | None = None

    @classmethod
    def of(cls, postings: Postings, vectors: Floats, inverse: Floats, weight: float) -> Self:
        """Return the search of documents with these coordinates."""
        n, k = vectors.shape
        moments = np.zeros((k + 1, k))
        for start in range(0, n, _SMALL):
            part = slice(start, start + _SMALL)
            unit = vectors[part] * inverse[part, None]
            moments[0] += unit.sum(axis=0)
            moments[1:] += unit.T @ unit
        codes = Codes.of(vectors, inverse) if n > _SMALL else None
        return cls(postings, vectors, inverse, weight, moments / max(1, n), codes)

    def __len__(self) -> int:
        return len(self.inverse)

    @cached_property
    def empty(self) -> Indices:
        """Places of the documents without words."""
        return np.flatnonzero(self.inverse == 0)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays of a saved index that belong to the search."""
        codes = self.codes or Codes(np.zeros((0, 0), np.int8), np.zeros(0, np.float32), 0.0)
        return {
            "inverse": self.inverse,
            "moments": self.moments,
            "codes": codes.values,
            "code_scale": codes.scale,
            "code_error": np.array([codes.error]),
            "postings_indptr": self.postings.indptr,
            "postings_documents": self.postings.documents,
            "postings_weights": self.postings.weights,
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]], weight: float) -> Self:
        """Return the search that `arrays` of a saved index describe."""
        vectors = np.asarray(arrays["embedding"], np.float32)
        postings = Postings(
            arrays["postings_indptr"],
            arrays["postings_documents"],
            arrays["postings_weights"],
            len(vectors),
        )
        codes = None
        if len(arrays["codes"]):
            codes = Codes(arrays["codes"], arrays["code_scale"], float(arrays["code_error"][0]))
        return cls(postings, vectors, arrays["inverse"], weight, arrays["moments"], codes)

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
        average = float(self.moments[0] @ direction)
        variance = float(direction @ self.moments[1:] @ direction) - average**2
        return average, float(np.sqrt(max(variance, 0.0)))

    def by_words(self, query: Query, n: int) -> Ranking:
        """Find the n documents with the best BM25 scores; those without any word are not found."""
        scores = self.postings.scores(query.terms, query.counts)
        best = best_places(scores, n)
        best = best[scores[best] > 0]
        return Ranking(best, scores[best], scores[best], np.zeros(len(best), np.float32))

    def by_both(self, query: Query, n: int) -> Ranking:
        """Find the n documents with the best scores of words and meaning."""
        scores = self._first(query, n)
        return self._best(self._fusion(query, scores), scores, n)

    def fusion(self, query: Query) -> Fusion:
        """Return how the documents of a query are scored."""
        return self._fusion(query, self._first(query, 1))

    def _first(self, query: Query, n: int) -> _ByWords:
        """Return the BM25 scores, and in a large collection the documents with the best of them."""
        bm25 = self.postings.scores(query.terms, query.counts)
        n_best = max(_CANDIDATES, 4 * n)
        if self.codes is None or n_best > len(self) // 4:
            return _ByWords(bm25, None, 0.0)
        rows = np.argpartition(bm25, len(self) - n_best)[len(self) - n_best :]
        rows.sort()
        return _ByWords(bm25, rows, float(bm25[rows].min()))

    def _fusion(self, query: Query, scores: _ByWords) -> Fusion:
        bm25, n = scores.bm25, len(self)
        average = float(bm25.sum()) / n
        deviation = math.sqrt(max(float(bm25 @ bm25) / n - average**2, 0.0))
        words = self.weight / deviation if deviation > 0 else 0.0
        mean, spread = self.spread(query.direction)
        meaning = (1 - self.weight) / spread if spread > 0 else 0.0
        fusion = Fusion(words, words * average, meaning, meaning * mean, query.direction, 1.0)
        n_best = min(_BEST, n // _RARELY)
        if not meaning or not n_best:
            return fusion
        return self._moved(fusion, self._best(fusion, scores, n_best).documents)

    def _best(self, fusion: Fusion, scores: _ByWords, n: int) -> Ranking:
        """Find the n best documents of all; most are left out by what they can reach at most."""
        bm25, rows = scores.bm25, scores.best
        if rows is None or self.codes is None:
            return self._ranked(fusion, bm25, slice(None), n)
        found = self._ranked(fusion, bm25, rows, n)
        # No cosine is above 1, so others have no more than this.
        reach = fusion.words * scores.others + fusion.meaning
        average = fusion.average_words + fusion.average_meaning - _ROUNDING
        if len(found.scores) == n and found.scores[-1] > reach - average:
            return found
        n_more = min(max(4 * _CANDIDATES, 2 * n), len(self))
        rows, reach = self.codes.best(fusion.direction, n_more, bm25, fusion.words, fusion.meaning)
        found = self._ranked(fusion, bm25, np.sort(rows), n)
        if len(found.scores) == n and found.scores[-1] > reach - average:
            return found
        return self._ranked(fusion, bm25, slice(None), n)

    def _ranked(self, fusion: Fusion, bm25: Floats, documents: Any, n: int) -> Ranking:
        """Return the n best of some documents, ascending places or a slice of all."""
        words = bm25[documents] * np.float32(fusion.words)
        words -= np.float32(fusion.average_words)
        meaning = self.cosines(fusion.direction, documents)
        meaning *= np.float32(fusion.meaning)
        meaning -= np.float32(fusion.average_meaning)
        scores = words + meaning
        if len(self.empty):  # documents without words are below all others
            without = self.empty if isinstance(documents, slice) else self.inverse[documents] == 0
            scores[without] = -np.inf
        best = best_places(scores, n)
        best = best[scores[best] > -np.inf]
        places = best if isinstance(documents, slice) else documents[best].astype(np.int64)
        return Ranking(places, scores[best], words[best], meaning[best])

    def _moved(self, fusion: Fusion, best: Indices) -> Fusion:
        """Return the fusion whose direction has moved to the mean of the best documents."""
        moved = fusion.direction + np.float32(_PULL / len(best)) * (
            self.inverse[best] @ self.vectors[best]
        )
        length = float(np.sqrt(moved @ moved))
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
        least = scores[np.argpartition(scores, len(scores) - n)[-n:]].min()
        places = np.flatnonzero(scores >= least)
        if len(places) > n:  # of those at the cut, the first
            at_cut = scores[places] == least
            at_cut[np.flatnonzero(at_cut)[: n - len(places)]] = False
            places = places[~at_cut]
    else:
        places = np.arange(len(scores))
    return places[np.argsort(-scores[places], kind="stable")]

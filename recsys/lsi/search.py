"""Search of an index: exact words by BM25, meaning by LSI, or both together."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from lowrank.kernels.arrays import Float64s, Floats32, Int64s
from lowrank.kernels.retrieval import largest
from recsys.lsi.bm25 import inverse_document_frequency, saturation, weights_of
from recsys.lsi.collection import Collection
from recsys.lsi.queries import Query

METHODS = ("hybrid", "lsi", "bm25")
"""Methods: exact words and meaning together, meaning alone, exact words alone."""


_MOST_MEANING = 0.8  # weight of meaning in long documents
# Mean document length at which meaning has half that weight, for 8 query words.
_FEW_WORDS = 30
_BEST = 10  # number of best documents whose mean replaces the direction of the query
_RARELY = 40  # minimum number of documents in the collection for each of these
_GATHERED = 16  # vectors are read one by one for less than one in this many documents
_CANDIDATES = 200  # number of documents, best by words, that are scored first
_ROUNDING = 1e-5  # relative rounding error of float32 sums
# Maximum variance, relative to the squared mean, that is taken for rounding error.
_EQUAL = 1e-6


class Ranking(NamedTuple):
    """The best documents of a query, best first; a score is words + meaning."""

    documents: Int64s
    scores: Floats32
    words: Floats32
    meaning: Floats32


class Fusion(NamedTuple):
    """Coefficients of the hybrid score ``words * bm25 + meaning * cosine - average``.

    The cosine is between a document and `direction`: the mean of the `best` documents or, without
    any, the direction of the query.
    """

    words: float
    average_words: float
    meaning: float
    average_meaning: float
    direction: Floats32
    best: Int64s = np.zeros(0, np.int64)

    @property
    def average(self) -> float:
        """Score of the average document, which is subtracted from all."""
        return self.average_words + self.average_meaning


@dataclass(frozen=True, eq=False)
class Search:
    r"""Search by exact words and meaning together.

    The score of a document is the weighted sum of two standard scores, (score - mean) / deviation
    over all documents: BM25 with the weight w, and the cosine with 1 - w, where

    .. math:: 1 - w = 0.8 \, \frac{l}{l + 30 \sqrt{q / 8}}

    for documents of l words on average and a query of q words. The cosine is not with the
    query, but with the mean of the ten documents that score best by words and, with half the
    weight, by the cosine with the query (Rocchio's feedback in the space of dimensions). The weight
    of each of the ten is its score minus the score of the eleventh. See
    docs/howto/lsi.md.

    `mean_length` is the mean number of words of a document. `totals` are `Collection.totals`, which
    give the mean and the variance of the cosines with any direction without a pass over all
    documents.

    References
    ----------
    Rocchio (1971), "Relevance feedback in information retrieval".
    """

    documents: Collection
    mean_length: float
    totals: Float64s

    @cached_property
    def without_direction(self) -> Int64s:
        """Documents without coordinates, which have no cosine."""
        return np.flatnonzero(self.documents.inverse == 0)

    @cached_property
    def empty(self) -> Int64s:
        """Documents without coordinates and without words, which are never found."""
        without_words = np.flatnonzero(np.diff(self.documents.counts.indptr) == 0)
        return np.intersect1d(self.without_direction, without_words)

    @cached_property
    def frequency(self) -> Int64s:
        """Number of documents with each term."""
        return np.diff(self.documents.postings.indptr)

    @cached_property
    def idf(self) -> Floats32:
        """Weight of each term."""
        return inverse_document_frequency(self.frequency, len(self.documents))

    @cached_property
    def saturation(self) -> Floats32:
        """Saturation of counts in each document."""
        lengths = self.documents.lengths
        n_words = float(lengths.sum(dtype=np.float64))
        return saturation(lengths, n_words / max(1, len(self.documents)))

    def bm25(self, query: Query) -> Floats32:
        """Return the BM25 score of each document."""
        scores = np.zeros(len(self.documents), np.float32)
        factors = self.idf[query.terms] * query.counts.astype(np.float32, copy=False)
        self.documents.postings.add(query.terms, factors, self.saturation, scores)
        return scores

    def word_shares(self, query: Query, document: int) -> Float64s:
        """Return the contribution of each term of a query to the BM25 score of a document."""
        row = self.documents.counts[[document]].toarray()[0]
        counts = row[query.terms].astype(np.float32)
        weights = weights_of(counts, self.saturation[[document]])
        return weights.astype(np.float64) * self.idf[query.terms] * query.counts

    def cosines(self, direction: Floats32, documents: Int64s | None = None) -> Floats32:
        """Return the cosines of documents, all by default, with a direction of length 1."""
        if documents is not None:
            return self.documents.unit_vectors(documents) @ direction
        # One pass over all vectors takes as long as reading them from memory.
        products: Floats32 = self.documents.vectors @ direction
        products *= self.documents.inverse
        return products

    def cosine_moments(self, direction: Floats32) -> tuple[float, float]:
        """Return the mean and the standard deviation of the cosines of all documents."""
        means, covariance = self._moments
        mean = float(means @ direction)
        return mean, _deviation(mean, float(direction @ (covariance @ direction)))

    @cached_property
    def _moments(self) -> tuple[Floats32, Floats32]:
        """Mean and covariance of the unit vectors."""
        k = self.totals.shape[1]
        sums = self.totals[: k + 1] / len(self.documents)
        mean = sums[0]
        covariance = sums[1:] - np.outer(mean, mean)
        return mean.astype(np.float32), covariance.astype(np.float32)

    def by_words(self, query: Query, n: int) -> Ranking:
        """Find the n documents with the best BM25 scores, among those with a word of the query."""
        scores = self.bm25(query)
        best = largest(scores, n)
        best = best[scores[best] > 0]
        words = scores[best]
        return Ranking(best, words, words, np.zeros_like(words))

    def by_meaning(self, query: Query, n: int) -> Ranking:
        """Find the n documents with the largest cosines."""
        cosines = self.cosines(query.direction)
        cosines[self.without_direction] = -np.inf
        best = largest(cosines, n)
        scores = np.clip(cosines[best], -1, 1)  # rounding may exceed 1
        return Ranking(best, scores, np.zeros_like(scores), scores)

    def by_both(self, query: Query, n: int) -> Ranking:
        """Find the n documents with the best scores of words and meaning."""
        bm25 = self.bm25(query)
        fusion = self.fusion(query, bm25)
        most = len(bm25) // _GATHERED
        n_candidates = max(_CANDIDATES, 2 * n)
        if not fusion.words or n_candidates > most:
            return self._ranking(fusion, bm25, n)
        candidates = np.sort(largest(bm25, n_candidates))
        scores = self._ranking(fusion, bm25, n, candidates).scores
        if len(scores) < n:
            return self._ranking(fusion, bm25, n)
        # No cosine exceeds 1, so a better document has at least this BM25 score.
        most_of_meaning = fusion.meaning * (1 + _ROUNDING)
        least = float(scores[-1]) + fusion.average - most_of_meaning
        if least <= 0:
            return self._ranking(fusion, bm25, n)
        rivals = np.flatnonzero(bm25 >= least / fusion.words)
        if len(rivals) > most:
            return self._ranking(fusion, bm25, n)
        return self._ranking(fusion, bm25, n, rivals)

    def fusion(self, query: Query, bm25: Floats32 | None = None) -> Fusion:
        """Return the coefficients of the hybrid score for a query with its BM25 scores."""
        scores = self.bm25(query) if bm25 is None else bm25
        n = len(self.documents)
        # A removed document leaves its words behind, which then count as unknown.
        frequency = self.frequency[query.terms]
        weight = words_weight(self.mean_length, int(np.count_nonzero(frequency)))
        average = float(scores.sum()) / n
        deviation = _deviation(average, float(scores @ scores) / n - average**2)
        words = weight / deviation if deviation > 0 else 0.0
        mean, spread = self.cosine_moments(query.direction)
        meaning = (1 - weight) / spread if spread > 0 else 0.0
        fusion = Fusion(
            words, words * average, meaning, meaning * mean, query.direction
        )
        first = np.sort(largest(scores, _CANDIDATES))
        first = first[scores[first] > 0]
        n_best = min(_BEST, n // _RARELY, len(first))
        if not meaning or not n_best:
            return fusion
        units = self.documents.unit_vectors(first)
        # Feedback uses half the weight of meaning.
        factor = np.float32(words * (1 + weight) / (2 * weight))
        ranks = factor * (scores[first] - average)
        ranks += np.float32(meaning / 2) * (units @ query.direction - mean)
        order = largest(ranks, n_best + 1)
        best = order[:n_best]
        next_rank = ranks[order[n_best]] if len(order) > n_best else 0
        total = np.maximum(ranks[best] - next_rank, _ROUNDING) @ units[best]
        length = math.sqrt(float(total @ total))
        direction = total / np.float32(length or 1)
        mean, spread = self.cosine_moments(direction)
        if spread == 0:
            return fusion
        meaning = (1 - weight) / spread
        return fusion._replace(
            meaning=meaning,
            average_meaning=meaning * mean,
            direction=direction,
            best=first[best],
        )

    def _ranking(
        self,
        fusion: Fusion,
        bm25: Floats32,
        n: int,
        documents: Int64s | None = None,
    ) -> Ranking:
        """Return the n best of some documents, given in ascending order, by default of all."""
        meaning = self.cosines(fusion.direction, documents)
        meaning *= np.float32(fusion.meaning)
        meaning -= np.float32(fusion.average_meaning)
        if documents is not None:
            bm25 = bm25[documents]
        words = bm25 * np.float32(fusion.words)
        words -= np.float32(fusion.average_words)
        scores = words + meaning
        if documents is None:
            scores[self.empty] = -np.inf
        elif len(self.empty):
            scores[np.isin(documents, self.empty)] = -np.inf
        best = largest(scores, n)
        rows = best if documents is None else documents[best]
        return Ranking(rows, scores[best], words[best], meaning[best])


def _deviation(mean: float, variance: float) -> float:
    """Return the square root of a variance, 0 if it is mere rounding error."""
    return math.sqrt(variance) if variance > _EQUAL * mean**2 else 0.0


def words_weight(mean_length: float, n_words: int) -> float:
    """Return the weight of exact words, given the lengths of documents and of the query."""
    if not mean_length:
        return 1.0
    few = _FEW_WORDS * math.sqrt(n_words / 8)
    return 1 - _MOST_MEANING * mean_length / (mean_length + few)

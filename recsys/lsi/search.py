"""Search of an index: exact words by BM25, meaning by LSI, or both together."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lowrank.kernels.retrieval import largest
from recsys.lsi.bm25 import inverse_document_frequency, saturation
from recsys.lsi.parts import Collection, Part
from recsys.lsi.queries import Query

METHODS = ("hybrid", "lsi", "bm25")
"""Methods: exact words and meaning together, meaning alone, exact words alone."""

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Indices = NDArray[np.int64]

_MOST_MEANING = 0.8  # weight of meaning in long documents
_FEW_WORDS = 30  # mean document length at which meaning has half that weight, for 8 query words
_BEST = 10  # number of best documents whose mean replaces the direction of the query
_RARELY = 40  # minimum number of documents in the collection for each of these
_GATHERED = 16  # vectors are read one by one for less than one in this many documents, else codes
_CANDIDATES = 200  # number of documents, best by words or by bounds, that are scored first
_ROUNDING = 1e-5  # relative rounding error of float32 sums
_ALIKE = 1e-6  # maximum variance, relative to the squared mean, that is taken for rounding error


class Ranking(NamedTuple):
    """The best documents of a query, best first; a score is words + meaning."""

    documents: Indices
    scores: Floats
    words: Floats
    meaning: Floats


class Fusion(NamedTuple):
    """Coefficients of the hybrid score ``words * bm25 + meaning * cosine - average``.

    The cosine is that of a document with `direction`: the mean of the `best` documents or, without
    any, the direction of the query.
    """

    words: float
    average_words: float
    meaning: float
    average_meaning: float
    direction: Floats
    best: Indices = np.zeros(0, np.int64)

    @property
    def average(self) -> float:
        """Score of the average document, which is subtracted from all."""
        return self.average_words + self.average_meaning


@dataclass(frozen=True, eq=False)
class Search:
    r"""Search by exact words and meaning together.

    The score of a document is the weighted sum of two standard scores, (score - mean) / deviation
    over all documents: that of BM25 with the weight w, that of the cosine with 1 - w, where

    .. math:: 1 - w = 0.8 \, \frac{l}{l + 30 \sqrt{q / 8}}

    for documents of l words on average and a query of q words. The cosine is not that with the
    query, but with the mean of the ten documents that score best by words and, with half the
    weight, by the cosine with the query (Rocchio's feedback in the space of dimensions). The weight
    of each of the ten is the difference of its score and that of the eleventh. See
    docs/howto/lsi.md.

    `mean_length` is the mean number of words of a document. `totals` are the sums of `Part.totals`,
    which give the mean and the variance of the cosines with any direction without a pass over all
    documents.

    References
    ----------
    Rocchio (1971), "Relevance feedback in information retrieval".
    """

    documents: Collection
    mean_length: float
    totals: Doubles

    @cached_property
    def n_places(self) -> int:
        """Number of places, including those of removed documents."""
        return sum(map(len, self.documents.parts))

    @cached_property
    def without_direction(self) -> Indices:
        """Places of documents that are removed or have no coordinates, never found by a cosine."""
        return self._left_out(lambda part, rows: rows)

    @cached_property
    def without_words(self) -> Indices:
        """Places of documents that are removed or have no words, which are never found."""
        return self._left_out(
            lambda part, rows: rows[part.counts.indptr[rows + 1] == part.counts.indptr[rows]]
        )

    def _left_out(self, empty: Callable[[Part, Indices], Indices]) -> Indices:
        """Return places of removed documents, and `empty` rows among those without coordinates."""
        found = [
            own.start + empty(part, np.flatnonzero(part.inverse == 0))
            for part, own in self.documents.slices
        ]
        return np.union1d(self.documents.removed, np.concatenate(found)).astype(np.int64)

    @cached_property
    def is_filtered(self) -> bool:
        """True if codes give upper bounds of scores, by which most documents are skipped."""
        return any(part.codes is not None for part in self.documents.parts)

    @cached_property
    def idf(self) -> Floats:
        """Weight of each term."""
        parts = self.documents.parts
        df = np.zeros(parts[0].counts.shape[1], np.int64)
        for part in parts:
            df += np.diff(part.postings.indptr)
            if len(part.removed) and part.has_counts:
                df -= np.bincount(part.counts[part.removed].indices, minlength=len(df))
        return inverse_document_frequency(df, len(self.documents))

    @cached_property
    def saturation(self) -> Floats:
        """Saturation of counts in the document at each place."""
        lengths = np.concatenate([part.lengths for part in self.documents.parts])
        n_words = lengths.sum(dtype=np.float64)
        n_words -= lengths[self.documents.removed].sum(dtype=np.float64)
        return saturation(lengths, float(n_words) / max(1, len(self.documents)))

    def bm25(self, query: Query) -> Floats:
        """Return the BM25 score of each place."""
        scores = np.zeros(self.n_places, np.float32)
        factors = self.idf[query.terms] * query.counts.astype(np.float32, copy=False)
        for part, own in self.documents.slices:
            part.postings.add(query.terms, factors, self.saturation[own], scores[own])
        scores[self.documents.removed] = 0
        return scores

    def word_shares(self, query: Query, place: int) -> Doubles:
        """Return the contribution of each term of a query to the BM25 score of a document."""
        part, row = self.documents.row_of(place)
        of_part = self.saturation[place - row :]
        weights = part.postings.of_document(row, query.terms, of_part)
        return weights * self.idf[query.terms] * query.counts

    def units(self, places: Indices) -> Floats:
        """Return the unit vectors of some documents, shape (n_places, k), 0 without coordinates."""
        if len(self.documents.parts) == 1:
            part = self.documents.parts[0]
            return part.vectors[places] * part.inverse[places, None]
        found = np.empty((len(places), self.totals.shape[1]), np.float32)
        for part, own in self.documents.slices:
            inside = (places >= own.start) & (places < own.stop)
            rows = places[inside] - own.start
            found[inside] = part.vectors[rows] * part.inverse[rows, None]
        return found

    def cosines(self, direction: Floats, places: Indices | None = None) -> Floats:
        """Return the cosines of documents, all by default, with a direction of length 1."""
        if places is not None:
            return self.units(places) @ direction
        parts = self.documents.parts
        return np.concatenate([(part.vectors @ direction) * part.inverse for part in parts])

    def spread(self, direction: Floats) -> tuple[float, float]:
        """Return the mean and the standard deviation of the cosines of all documents."""
        means, covariance = self._moments
        mean = float(means @ direction)
        return mean, _deviation(mean, float(direction @ (covariance @ direction)))

    @cached_property
    def _moments(self) -> tuple[Floats, Floats]:
        """Mean and covariance of the unit vectors."""
        k, n = self.totals.shape[1], len(self.documents)
        mean, outer = self.totals[0] / n, self.totals[1 : k + 1] / n
        return mean.astype(np.float32), (outer - np.outer(mean, mean)).astype(np.float32)

    def by_words(self, query: Query, n: int) -> Ranking:
        """Find the n documents with the best BM25 scores, among those with a word of the query."""
        scores = self.bm25(query)
        best = largest(scores, n)
        best = best[scores[best] > 0]
        return Ranking(best, scores[best], scores[best], np.zeros(len(best), np.float32))

    def by_meaning(self, query: Query, n: int) -> Ranking:
        """Find the n documents with the largest cosines."""
        found = self._best(Fusion(0.0, 0.0, 1.0, 0.0, query.direction), None, n)
        scores = np.clip(found.meaning, -1, 1)  # rounding may exceed 1
        return found._replace(scores=scores, meaning=scores)

    def by_both(self, query: Query, n: int) -> Ranking:
        """Find the n documents with the best scores of words and meaning."""
        bm25 = self.bm25(query)
        candidates = largest(bm25, max(_CANDIDATES, 2 * n))
        first = np.sort(candidates[:_CANDIDATES])
        units = self.units(first)
        fusion = self._fusion(query, bm25, first, units)
        if not self.is_filtered or not fusion.words:
            return self._best(fusion, bm25, n)
        if len(candidates) > len(first):
            found = self._ranked(fusion, bm25, np.sort(candidates), n)
        else:
            found = self._ranked(fusion, bm25, first, n, units @ fusion.direction)
        if len(found.scores) == n:
            # No cosine exceeds 1, so a better document has at least this BM25 score.
            least = float(found.scores[-1]) + fusion.average - fusion.meaning * (1 + _ROUNDING)
            least /= fusion.words
            if least > bm25[candidates[-1]]:
                return found
            if least > 0 and len(places := np.flatnonzero(bm25 >= least)) < len(bm25) // _GATHERED:
                return self._ranked(fusion, bm25, places, n)
        return self._best(fusion, bm25, n)

    def fusion(self, query: Query) -> Fusion:
        """Return the coefficients of the hybrid score for a query."""
        first = np.sort(largest(bm25 := self.bm25(query), _CANDIDATES))
        return self._fusion(query, bm25, first, self.units(first))

    def _fusion(self, query: Query, bm25: Floats, first: Indices, units: Floats) -> Fusion:
        """Return the fusion of a query; `first` are the documents with the best BM25 scores."""
        n, weight = len(self.documents), words_weight(self.mean_length, len(query.terms))
        average = float(bm25.sum()) / n
        deviation = _deviation(average, float(bm25 @ bm25) / n - average**2)
        words = weight / deviation if deviation > 0 else 0.0
        mean, spread = self.spread(query.direction)
        meaning = (1 - weight) / spread if spread > 0 else 0.0
        fusion = Fusion(words, words * average, meaning, meaning * mean, query.direction)
        own = bm25[first]
        n_best = min(_BEST, n // _RARELY, int(np.count_nonzero(own)))
        if not meaning or not n_best:
            return fusion
        # Feedback uses half the weight of meaning.
        scores = np.float32(words * (1 + weight) / (2 * weight)) * (own - average)
        scores += np.float32(meaning / 2) * (units @ query.direction - mean)
        scores[own == 0] = -np.inf
        best = largest(scores, n_best + 1)
        above = scores[best[:n_best]] - (scores[best[n_best]] if len(best) > n_best else 0)
        total = np.maximum(above, _ROUNDING) @ units[best[:n_best]]
        length = math.sqrt(float(total @ total))
        direction = total / np.float32(length or 1)
        mean, spread = self.spread(direction)
        if spread == 0:
            return fusion
        meaning = (1 - weight) / spread
        about = words, words * average, meaning, meaning * mean, direction
        return Fusion(*about, first[best[:n_best]])

    def _best(self, fusion: Fusion, bm25: Floats | None, n: int) -> Ranking:
        """Find the n best documents; skip those whose upper bounds are too low."""
        if not self.is_filtered:
            return self._ranked(fusion, bm25, None, n)
        bounds = np.empty(self.n_places, np.float32)
        extra = 0.0
        for part, own in self.documents.slices:
            base = None if bm25 is None else bm25[own]
            if part.codes is None:
                bounds[own] = fusion.meaning * (part.vectors @ fusion.direction) * part.inverse
                bounds[own] += 0 if base is None else base * np.float32(fusion.words)
            else:
                how = fusion.direction, base, fusion.words, fusion.meaning, bounds[own]
                extra = max(extra, part.codes.bounds(*how))
        bounds[self.without_direction if bm25 is None else self.without_words] = -np.inf
        first = np.sort(largest(bounds, max(_CANDIDATES, 2 * n)))
        found = self._ranked(fusion, bm25, first, n)
        if len(found.scores) < n:
            return self._ranked(fusion, bm25, None, n)
        least = float(found.scores[-1]) + fusion.average
        least -= extra + _ROUNDING * (abs(least) + fusion.meaning)
        return self._ranked(fusion, bm25, np.flatnonzero(bounds >= least), n)

    def _ranked(
        self,
        fusion: Fusion,
        bm25: Floats | None,
        places: Indices | None,
        n: int,
        cosines: Floats | None = None,
    ) -> Ranking:
        """Return the n best of the documents at ascending `places`, by default of all."""
        meaning = self.cosines(fusion.direction, places) if cosines is None else cosines
        meaning *= np.float32(fusion.meaning)
        meaning -= np.float32(fusion.average_meaning)
        if bm25 is None:
            words = np.zeros(len(meaning), np.float32)
        else:
            words = (bm25 if places is None else bm25[places]) * np.float32(fusion.words)
            words -= np.float32(fusion.average_words)
        scores = words + meaning
        without = self.without_direction if bm25 is None else self.without_words
        if places is None:
            scores[without] = -np.inf
        elif len(without):
            near = np.minimum(np.searchsorted(without, places), len(without) - 1)
            scores[without[near] == places] = -np.inf
        best = largest(scores, n)
        found = best if places is None else places[best]
        return Ranking(found, scores[best], words[best], meaning[best])


def _deviation(mean: float, variance: float) -> float:
    """Return the square root of a variance, 0 if it is mere rounding error."""
    return math.sqrt(variance) if variance > _ALIKE * mean**2 else 0.0


def words_weight(mean_length: float, n_words: int) -> float:
    """Return the weight of exact words, given the lengths of documents and of the query."""
    few = _FEW_WORDS * math.sqrt(n_words / 8)
    return 1 - _MOST_MEANING * mean_length / (mean_length + few) if mean_length else 1.0

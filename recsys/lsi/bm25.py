"""BM25: scores of documents by the exact words of a query."""

from __future__ import annotations

from typing import Any, NamedTuple, Self

import numpy as np

from lowrank.kernels.arrays import Floats, Floats32, Int32s, Int64s
from lowrank.kernels.retrieval import sum_rows

_K1 = 1.2  # saturation of counts
_B = 0.75  # influence of the document length


class Postings(NamedTuple):
    """The documents of each term, with the counts of the term in them.

    The arrays are a CSR matrix of terms by documents. The weight of a count c is
    ``(k1 + 1) c / (c + s)``, with the `saturation` s of the document. It is computed for the terms
    of a query, since every added document changes the mean length.

    References
    ----------
    Robertson & Zaragoza (2009), "The probabilistic relevance framework: BM25 and beyond".
    """

    indptr: Int64s
    documents: Int32s
    counts: Floats32

    @classmethod
    def from_counts(cls, counts: Any) -> Self:
        """Return the postings of counts, a csr_array of shape (n_documents, n_terms)."""
        by_term = counts.astype(np.float32, copy=False).tocsc()
        indptr = by_term.indptr.astype(np.int64)
        documents = by_term.indices.astype(np.int32, copy=False)
        return cls(indptr, documents, by_term.data)

    @classmethod
    def empty(cls, n_terms: int) -> Self:
        """Return postings without documents."""
        indptr = np.zeros(n_terms + 1, np.int64)
        documents = np.zeros(0, np.int32)
        counts = np.zeros(0, np.float32)
        return cls(indptr, documents, counts)

    def add(
        self,
        terms: Int64s,
        factors: Floats32,
        saturation: Floats32,
        out: Floats32,
    ) -> None:
        """Add the weights of terms, each times its factor, to scores of the documents."""
        starts = self.indptr[terms]
        ends = self.indptr[terms + 1]
        indptr = np.append(0, np.cumsum(ends - starts))
        if not indptr[-1]:
            return
        # A small matrix of the terms of the query alone: terms by documents.
        slices = list(map(slice, starts.tolist(), ends.tolist()))
        documents = np.concatenate([self.documents[entries] for entries in slices])
        counts = np.concatenate([self.counts[entries] for entries in slices])
        weights = weights_of(counts, saturation[documents])
        rows = np.arange(len(terms))
        matrix = (indptr, documents, weights)
        sum_rows(matrix, rows, factors, len(out), out=out)


def weights_of(counts: Floats32, saturation: Floats32) -> Floats32:
    """Return the weights of counts in documents, without the idf."""
    weights: Floats32 = (_K1 + 1) * counts / (counts + saturation)
    return weights


def saturation(lengths: Floats, mean_length: float) -> Floats32:
    """Return ``k1 (1 - b + b l / mean l)`` for documents of length l, k1 = 1.2 and b = 0.75."""
    relative = lengths / max(mean_length, 1e-9)
    saturations: Floats32 = _K1 * (1 - _B + _B * relative)
    return saturations.astype(np.float32)


def inverse_document_frequency(df: Int64s, n: int) -> Floats32:
    """Return ln(1 + (n - df + .5) / (df + .5)) for terms that are in df of n documents."""
    odds = (n - df + 0.5) / (df + 0.5)
    idf: Floats32 = np.log1p(odds).astype(np.float32)
    return idf

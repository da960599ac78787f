"""BM25: scores of documents by the exact words of a query."""

from __future__ import annotations

from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from lowrank.kernels.retrieval import sum_rows

Floats = NDArray[np.float32]
Indices = NDArray[np.int64]

_K1, _B = 1.2, 0.75  # saturation of counts, and influence of the document length


class Postings(NamedTuple):
    """The documents of each term, with the BM25 weight of the term in them, without the idf.

    The weight of a count c in a document of length l is
    ``(k1 + 1) c / (c + k1 (1 - b + b l / mean l))`` with k1 = 1.2 and b = 0.75. The arrays are
    those of a CSR matrix of terms by documents.

    References
    ----------
    Robertson & Zaragoza (2009), "The probabilistic relevance framework: BM25 and beyond".
    """

    indptr: Indices
    documents: NDArray[np.int32]
    weights: Floats

    @classmethod
    def of(cls, counts: Any, mean_length: float) -> Self:
        """Return the postings of counts, a csr_array of shape (n_documents, n_terms)."""
        lengths = np.add.reduceat(np.append(counts.data, 0), counts.indptr[:-1])
        lengths = np.where(np.diff(counts.indptr) > 0, lengths, 0)
        saturation = _K1 * (1 - _B + _B * lengths / max(mean_length, 1e-9))
        by_term = counts.astype(np.float32, copy=False).tocsc()
        documents, weights = by_term.indices.astype(np.int32, copy=False), by_term.data
        weights = (_K1 + 1) * weights / (weights + saturation.astype(np.float32)[documents])
        return cls(by_term.indptr.astype(np.int64), documents, weights)

    @classmethod
    def none(cls, n_terms: int) -> Self:
        """Return postings without documents."""
        return cls(np.zeros(n_terms + 1, np.int64), np.zeros(0, np.int32), np.zeros(0, np.float32))

    def add(self, terms: Indices, factors: Floats, out: Floats) -> None:
        """Add the weights of terms, each times its factor, to scores of the documents."""
        sum_rows(self, terms, factors, len(out), out=out)

    def of_document(self, document: int, terms: Indices) -> NDArray[np.float64]:
        """Return the weight of each term in one document."""
        found = np.zeros(len(terms))
        for number, term in enumerate(terms.tolist()):
            own = slice(*self.indptr[term : term + 2])
            at = int(np.searchsorted(self.documents[own], document))
            if document in self.documents[own][at : at + 1]:
                found[number] = self.weights[own][at]
        return found


def inverse_document_frequency(df: Indices, n: int) -> Floats:
    """Return ln(1 + (n - df + .5) / (df + .5)) for terms that are in df of n documents."""
    idf: Floats = np.log1p((n - df + 0.5) / (df + 0.5)).astype(np.float32)
    return idf

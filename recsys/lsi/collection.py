"""Documents of an index: names, counts of terms, coordinates, and what a search needs of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy import sparse

from lowrank.kernels import pieces
from lowrank.kernels.arrays import Float64s, Floats, Floats32, Int64s
from recsys.data.ids import Ids
from recsys.lsi.bm25 import Postings
from recsys.ranking.topn import inverse_lengths

if TYPE_CHECKING:
    from recsys.data.ids import IdsLike


_BLOCK = 4096  # rows of a block of vectors, so that copies stay in the cache
_COLUMNS = ("document", "title", "snippet")


@dataclass(frozen=True, eq=False)
class Collection:
    """Documents of an index; a row is one document.

    `table` has the columns document and, if known, title and snippet. `counts` is a csr_array of
    counts of terms, or the rows of the given matrix. `embedding` are the coordinates V_k S_k.
    `has_counts` is false if the rows are not counts, which BM25 needs.
    """

    table: pl.DataFrame
    counts: Any
    embedding: Floats
    has_counts: bool

    def __len__(self) -> int:
        return len(self.table)

    @cached_property
    def ids(self) -> Ids:
        """Ids of the documents."""
        return Ids(self.table["document"], "document", sort=False)

    @cached_property
    def vectors(self) -> Floats32:
        """Coordinates as float32, for cosines."""
        return np.asarray(self.embedding, dtype=np.float32)

    @cached_property
    def inverse(self) -> Floats32:
        """1 / length of the coordinates of each document, 0 for coordinates of zero."""
        # Documents without coordinates get a cosine of 0, not NaN.
        return np.nan_to_num(inverse_lengths(self.vectors), nan=0.0)

    @cached_property
    def postings(self) -> Postings:
        """The documents of each term."""
        if self.has_counts:
            return Postings.from_counts(self.counts)
        # Weights are not counts, and BM25 needs counts.
        return Postings.empty(self.counts.shape[1])

    @cached_property
    def lengths(self) -> Floats:
        """Number of words of each document."""
        return np.asarray(self.counts.sum(axis=1), self.counts.dtype)

    def unit_vectors(self, rows: Int64s) -> Floats32:
        """Return vectors of length 1, shape (n_rows, k), 0 for documents without coordinates."""
        return self.vectors[rows] * self.inverse[rows, None]

    def totals(self) -> Float64s:
        """Return sums over the documents that give moments of cosines and orthogonality.

        These are, below one another: the sum of unit vectors, of their outer products, and of the
        outer products of coordinates.
        """
        k = self.embedding.shape[1]
        sums = np.zeros((2 * k + 1, k))
        for rows in pieces(len(self), _BLOCK):
            block = np.asarray(self.embedding[rows], np.float64)
            # Single precision, because cosines are computed from the same values.
            unit = block.astype(np.float32) * self.inverse[rows, None]
            sums[0] += unit.sum(axis=0)
            sums[1 : k + 1] += unit.T @ unit
            sums[k + 1 :] += block.T @ block
        return sums

    def columns_of(self, rows: Int64s) -> list[pl.Series]:
        """Return ids and, if known, titles and snippets of some documents."""
        index = pl.Series(rows.astype(np.uint32))  # by far the fastest way
        return [column[index] for column in self.table.get_columns()]

    def take(self, rows: Int64s) -> Collection:
        """Return some of the documents."""
        return Collection(
            self.table[rows], self.counts[rows], self.embedding[rows], self.has_counts
        )

    def extended(self, documents: Collection) -> Collection:
        """Return a collection of these and further documents, which may have further terms."""
        # Only the width changes; the arrays are shared.
        csr = (self.counts.data, self.counts.indices, self.counts.indptr)
        counts = sparse.csr_array(csr, shape=(len(self), documents.counts.shape[1]))
        return Collection(
            _joined(self.table, documents.table),
            sparse.vstack([counts, documents.counts], format="csr"),
            np.concatenate([self.embedding, documents.embedding]),
            self.has_counts,
        )

    def rows_of(self, labels: IdsLike) -> Int64s:
        """Return the rows of documents by their ids."""
        return self.ids.index(labels)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays of a saved index."""
        arrays = {
            "embedding": self.embedding,
            "counts_data": self.counts.data,
            "counts_indices": self.counts.indices,
            "counts_indptr": self.counts.indptr.astype(np.int64),
            "inverse": self.inverse,
            "lengths": self.lengths,
        }
        for name, array in self.postings._asdict().items():
            arrays[f"postings_{name}"] = array
        return arrays

    @classmethod
    def from_arrays(
        cls,
        arrays: Mapping[str, NDArray[Any]],
        table: pl.DataFrame,
        n_terms: int,
        has_counts: bool,
    ) -> Collection:
        """Return the documents that the `arrays` and `table` of a saved index describe."""
        csr = (arrays["counts_data"], arrays["counts_indices"], arrays["counts_indptr"])
        counts = sparse.csr_array(csr, shape=(len(table), n_terms))
        collection = cls(table, counts, arrays["embedding"], has_counts)
        postings = (arrays[f"postings_{name}"] for name in Postings._fields)
        # Cached properties are what was saved.
        vars(collection).update(
            inverse=arrays["inverse"],
            lengths=arrays["lengths"],
            postings=Postings(*postings),
        )
        return collection


def _joined(first: pl.DataFrame, second: pl.DataFrame) -> pl.DataFrame:
    """Concatenate tables of documents; ids of mixed types become strings."""
    tables = [first, second]
    if first.schema["document"] != second.schema["document"]:
        tables = [
            table.with_columns(pl.col("document").cast(pl.String)) for table in tables
        ]
    names = [
        name for name in _COLUMNS if name in first.columns or name in second.columns
    ]
    return pl.concat(tables, how="diagonal").select(names)

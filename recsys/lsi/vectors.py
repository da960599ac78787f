"""Vectors of an index's documents and terms, and which of them are alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from recsys.data.frames import listed
from recsys.lsi.queries import Query, similar_rows

if TYPE_CHECKING:
    from recsys.data.ids import Ids, IdsLike
    from recsys.lsi.collection import Collection
    from recsys.lsi.inputs import Encoder

Floats = NDArray[np.floating[Any]]

_NO_WORDS = Query(np.zeros(0, np.int64), *np.zeros((2, 0)))


class Vectors:
    """Vectors of documents, V_k S_k, and of terms, U_k S_k, by their ids.

    Attributes
    ----------
    components_ : ndarray of shape (n_components_, n_terms)
    singular_values_ : ndarray of shape (n_components_,)
    documents_ : Collection
    terms_ : Ids
    """

    components_: Floats
    singular_values_: Floats
    documents_: Collection
    _encoder: Encoder
    _search: Any

    @property
    def terms_(self) -> Ids:
        """The terms, in the order of the columns of ``components_``."""
        return self._encoder.terms

    def similar_documents(self, documents: IdsLike | int | str, n: int = 10) -> pl.DataFrame:
        """Find the n documents most similar to each of some documents of the index.

        Parameters
        ----------
        documents : id or sequence of ids
        n : int

        Returns
        -------
        polars DataFrame
            Columns document, similar, rank, score, and title and snippet (of `similar`).

        Raises
        ------
        UnknownIdError
            If a document is not in the index.
        """
        check_is_fitted(self)
        frames = []
        for place in self.documents_.places(listed(documents)).tolist():
            unit = self._search.units(np.array([place]))[0]
            found = self._search.by_meaning(_NO_WORDS._replace(direction=unit), n + 1)
            others = np.flatnonzero((found.documents != place) & unit.any())[:n]
            ids, *shown = self.documents_.shown(found.documents[others])
            columns = [
                ids.alias("similar"),
                pl.Series("rank", np.arange(1, len(ids) + 1, dtype=np.int32)),
            ]
            columns += [pl.Series("score", found.scores[others]), *shown]
            label = self.documents_.shown(np.full(len(ids), place))[0]
            frames.append(pl.DataFrame([label, *columns]))
        return pl.concat(frames)

    def similar_terms(self, terms: IdsLike | int | str, n: int = 10) -> pl.DataFrame:
        """Find the n terms most similar to each of some terms: cosines of rows of U_k S_k.

        Parameters
        ----------
        terms : term or sequence of terms
        n : int

        Returns
        -------
        polars DataFrame
            Columns term, similar, rank, score.
        """
        check_is_fitted(self)
        vectors = np.asarray(self.term_vectors(), dtype=np.float32)
        return similar_rows(self.terms_, vectors, terms, n)

    def document_vectors(self, documents: IdsLike | int | str | None = None) -> Floats:
        """Return the rows of V_k S_k of some documents (ids), by default of all."""
        check_is_fitted(self)
        if documents is None:
            return self.documents_.whole.embedding
        return self.documents_.whole.embedding[self.documents_.ids.index(listed(documents))]

    def document_weights(self, documents: IdsLike | int | str | None = None) -> Any:
        """Return the weighted terms of some documents (ids), by default of all, as a csr_array."""
        check_is_fitted(self)
        counts = self.documents_.whole.counts
        if documents is not None:
            counts = counts[self.documents_.ids.index(listed(documents))]
        return self._encoder.weigh(counts)

    def term_vectors(self, terms: IdsLike | int | str | None = None) -> Floats:
        """Return the rows of U_k S_k of some terms, by default of all."""
        check_is_fitted(self)
        chosen = slice(None) if terms is None else self.terms_.index(listed(terms))
        scaled = self.components_[:, chosen] * self.singular_values_[:, None]
        return np.ascontiguousarray(scaled.T)

"""What an index answers: queries, similar documents and terms, explanations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from recsys.errors import DataError
from recsys.lsi.queries import Matches, Queries, check_directions, check_words, inverse_lengths
from recsys.lsi.vectorizer import checked_text
from recsys.topn import TopN, top_n

if TYPE_CHECKING:
    from recsys.lsi.collection import Collection
    from recsys.lsi.labels import Labels
    from recsys.lsi.space import Space
    from recsys.lsi.vectorizer import TermEncoder

__all__ = ["Asking", "listed", "similar_rows"]

Floats = NDArray[np.floating[Any]]
Indices = NDArray[np.int64]


class Asking:
    """The questions that a fitted `LSI` answers."""

    documents_: Collection
    terms_in_rows: bool
    _encoder: TermEncoder

    if TYPE_CHECKING:

        @property
        def terms_(self) -> Labels: ...  # noqa: D102

        @property
        def _space(self) -> Space: ...

        def _rows_of_matrix(self, matrix: Any) -> Any: ...

    def query(
        self, queries: Any, n: int = 10, *, labels: Sequence[Any] | None = None
    ) -> pl.DataFrame:
        """Find the n documents most like a query.

        Parameters
        ----------
        queries : str, sequence of str, or vector or matrix of counts of the terms
            One query, or several.
        n : int
        labels : sequence of int or str, optional
            What the column query says of each of several queries, instead of its text.

        Returns
        -------
        polars DataFrame
            Columns query (the text, or the position of a vector; only if several were asked),
            document, rank (Int32, from 1), score (Float32, the cosine), and title and snippet where
            they are known. Documents without words are never found.

        Raises
        ------
        DataError
            If no word of any query is known, or n is below 1.

        Warns
        -----
        UnknownTermWarning
            If a word is not known; it is left out.
        """
        check_is_fitted(self)
        asked = self._queries(queries)
        check_words(asked)
        directions = check_directions(asked, self._space.project(asked.rows))
        top = self._best_documents(directions, n)
        frame = self._results(top, "document")
        if asked.single:
            return frame
        said = pl.Series("query", asked.labels if labels is None else list(labels))
        return frame.select(said.gather(top.rows), pl.all())

    def similar_documents(self, documents: Any, n: int = 10) -> pl.DataFrame:
        """Find the n documents most like each of some documents of the index.

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
        places = self.documents_.ids.index(listed(documents))
        top = self._best_documents(self.documents_.vectors[places], n, _excluding(places))
        labels = self.documents_.ids.values.gather(places[top.rows]).alias("document")
        return self._results(top, "similar").select(labels, pl.all())

    def similar_terms(self, terms: Any, n: int = 10) -> pl.DataFrame:
        """Find the n terms most like each of some terms: the cosine of rows of U_k S_k.

        Parameters
        ----------
        terms : term or sequence of terms
        n : int

        Returns
        -------
        polars DataFrame
            Columns term, similar, rank, score.

        Raises
        ------
        UnknownIdError
            If a term is not in the index.
        """
        check_is_fitted(self)
        vectors = np.asarray(self.term_vectors(), dtype=np.float32)
        return similar_rows(self.terms_, vectors, listed(terms), n)

    def document_vectors(self, documents: Any = None) -> Floats:
        """Return the rows of V_k S_k of some documents (ids), by default of all.

        Raises
        ------
        UnknownIdError
            If a document is not in the index.
        """
        check_is_fitted(self)
        if documents is None:
            return self.documents_.embedding
        return self.documents_.embedding[self.documents_.ids.index(listed(documents))]

    def term_vectors(self, terms: Any = None) -> Floats:
        """Return the rows of U_k S_k of some terms, by default of all.

        Raises
        ------
        UnknownIdError
            If a term is not in the index.
        """
        check_is_fitted(self)
        chosen = slice(None) if terms is None else self.terms_.index(listed(terms))
        space = self._space
        return np.ascontiguousarray(
            (space.components[:, chosen] * space.singular_values[:, None]).T
        )

    def explain(self, query: Any, document: Any) -> pl.DataFrame:
        """Say which terms made the match of a query with a document.

        Parameters
        ----------
        query : str, or vector of counts of the terms
        document : id

        Returns
        -------
        polars DataFrame
            One row for each known term of the query, with columns term, contribution (Float64;
            together they are the cosine) and through: the term of the document that carries most
            of the contribution, null where the document has no words.

        Raises
        ------
        DataError
            If no word of the query is known, or several queries were given.
        UnknownIdError
            If the document is not in the index.
        """
        check_is_fitted(self)
        asked = self._queries(query)
        if not asked.single:
            raise DataError("explain takes one query, as a text or a vector.")
        check_words(asked)
        place = int(self.documents_.ids.index([document])[0])
        terms, weights = asked.rows.indices, asked.rows.data.astype(np.float64)
        basis = self._space.components[:, terms].T.astype(np.float64)
        target = self.documents_.embedding[place].astype(np.float64)
        scale = np.linalg.norm(weights @ basis) * np.linalg.norm(target)
        shares = weights * (basis @ target) / scale if scale > 0 else np.zeros(len(terms))
        through = self._through(weights[:, None] * basis, shares, place)
        frame = pl.DataFrame(
            {"term": self.terms_.values.gather(terms), "contribution": shares, "through": through}
        )
        return frame.sort("contribution", descending=True, maintain_order=True)

    def _through(self, query_terms: Floats, shares: Floats, place: int) -> pl.Series:
        """Return the term of a document that carries most of each query term's contribution."""
        rows = self.documents_.rows
        own = slice(rows.indptr[place], rows.indptr[place + 1])
        terms, weights = rows.indices[own], rows.data[own].astype(np.float64)
        if not len(terms):
            return pl.Series([None] * len(shares), dtype=self.terms_.values.dtype)
        parts = query_terms @ self._space.components[:, terms].astype(np.float64) * weights
        signs = np.where(shares < 0, -1, 1)[:, None]
        return self.terms_.values.gather(terms[np.argmax(parts * signs, axis=1)])

    def _queries(self, given: Any) -> Queries:
        """Return queries as weighted rows."""
        has_texts = _has_texts(given)
        single = isinstance(given, str) or (np.ndim(given) == 1 and not has_texts)
        if has_texts:
            texts = [given] if isinstance(given, str) else list(given)
            for number, text in enumerate(texts):
                checked_text(text, number, "Query")
            rows, unknown = self._encoder.encode(texts)
            return Queries(texts, rows, unknown, single)
        if np.ndim(given) == 0:
            raise DataError(
                "A query must be a text, several texts, or rows of counts; got "
                f"{type(given).__name__}."
            )
        if single and not len(given):
            raise DataError("There are no queries.")
        matrix = np.asarray(given)[None, :] if single else given
        rows = self._rows_of_matrix(matrix.T if single and self.terms_in_rows else matrix)
        return Queries(list(range(rows.shape[0])), rows, [[]] * rows.shape[0], single)

    def _best_documents(self, directions: Any, n: int, exclude: Any = None) -> TopN:
        documents = self.documents_
        matches = Matches(directions, documents.vectors, documents.inverse)
        return together(top_n(matches, np.arange(len(directions)), n, exclude=exclude))

    def _results(self, top: TopN, name: str) -> pl.DataFrame:
        """Return found documents as a frame."""
        return pl.DataFrame(
            [
                self.documents_.ids.values[top.items].alias(name),  # quicker than gather
                pl.Series("rank", top.ranks),
                pl.Series("score", top.scores),
                *self.documents_.shown(top.items),
            ]
        )


def similar_rows(
    labels: Labels, vectors: NDArray[np.float32], asked: Sequence[Any], n: int
) -> pl.DataFrame:
    """Return the rows most like some rows, as a frame: term, similar, rank, score.

    Raises
    ------
    UnknownIdError
        If a label is unknown.
    """
    places = labels.index(asked)
    matches = Matches(vectors[places], vectors, inverse_lengths(vectors))
    top = together(top_n(matches, np.arange(len(places)), n, exclude=_excluding(places)))
    return pl.DataFrame(
        [
            labels.values.gather(places[top.rows]).alias(labels.noun),
            labels.values.gather(top.items).alias("similar"),
            pl.Series("rank", top.ranks),
            pl.Series("score", top.scores),
        ]
    )


def together(blocks: Any) -> TopN:
    """Return the blocks of `top_n` as one; cosines that rounding took beyond 1 are 1."""
    parts = [TopN.empty(), *blocks]
    rows, items, ranks, scores = (
        np.concatenate([getattr(part, name) for part in parts])
        for name in ("rows", "items", "ranks", "scores")
    )
    return TopN(rows, items, ranks, np.clip(scores, -1, 1))


def listed(given: Any) -> Sequence[Any]:
    """Return a single id as a list of one."""
    if isinstance(given, str | int | np.integer):
        return [given]
    return given.to_list() if isinstance(given, pl.Series) else list(given)


def _has_texts(given: Any) -> bool:
    if isinstance(given, str):
        return True
    column = isinstance(given, Sequence | pl.Series) or hasattr(given, "tolist")  # pandas, NumPy
    return column and np.ndim(given) == 1 and isinstance(next(iter(given), None), str)


def _excluding(places: Indices) -> Callable[[Indices], tuple[Indices, Indices]]:
    """Leave out what each row was asked about; an `exclude` of `top_n`."""
    return lambda rows: (np.arange(len(rows)), places[rows])

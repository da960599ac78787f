"""Search in an index: documents that match a query, similar documents, similar terms."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import polars as pl
from numpy.typing import NDArray

from recsys.data.frames import listed
from recsys.data.ids import Ids
from recsys.data.ratings import check_process
from recsys.errors import DataError, ModelFileError, check_choice
from recsys.lsi.inputs import as_queries
from recsys.lsi.parts import Collection, Part, load_index
from recsys.lsi.queries import NothingToRankError, Queries, Query, similar_rows
from recsys.lsi.search import METHODS, Ranking, Search
from recsys.lsi.space import Space, Weighting
from recsys.lsi.vectorizer import (
    POWER,
    TOKEN_PATTERN,
    Language,
    StopWords,
    WordEncoder,
    check_language,
)
from recsys.topn import check_n

if TYPE_CHECKING:
    from sklearn.base import TransformerMixin

    from lowrank.arguments import MatrixLike, RandomStateLike
    from recsys.data.ids import IdsLike
    from recsys.lsi.inputs import Encoder
    from recsys.storage import Origin

    QueriesLike = str | Sequence[str] | MatrixLike

Floats = NDArray[np.floating[Any]]
Indices = NDArray[np.int64]

FEEDBACK = "(best documents)"
"""Row of an explanation for the best documents, whose mean is the meaning of the query."""

AVERAGE = "(average document)"
"""Row of an explanation for the scores of the average document, which are subtracted."""

_NO_WORDS = Query(np.zeros(0, np.int64), *np.zeros((2, 0)))


class Index:
    """An index for searching, without scikit-learn; `recsys.lsi.LSI` creates it.

    For the parameters see `LSI`.

    Attributes
    ----------
    components_ : ndarray of shape (n_components_, n_terms)
    singular_values_ : ndarray of shape (n_components_,)
    documents_ : Collection
    terms_ : Ids
    training_ : dict
    """

    components_: Floats
    singular_values_: Floats
    documents_: Collection
    training_: dict[str, Any]
    n_features_in_: int
    _encoder: Encoder
    _origin: Origin | None = None

    def __init__(
        self,
        n_components: int | str | None = None,
        weighting: str | TransformerMixin = "tfidf",
        *,
        method: str = "hybrid",
        language: str | None = "auto",
        min_df: int = 1,
        stop_words: StopWords = None,
        token_pattern: str = TOKEN_PATTERN,
        terms_in_rows: bool = False,
        random_state: RandomStateLike = 0,
    ) -> None:
        self.n_components = n_components
        self.weighting = weighting
        self.method = method
        self.language = language
        self.min_df = min_df
        self.stop_words = stop_words
        self.token_pattern = token_pattern
        self.terms_in_rows = terms_in_rows
        self.random_state = random_state

    @classmethod
    def load(cls, path: str | Path, *, verify: bool = False) -> Self:
        """Load a saved index; its arrays are memory-mapped, not read.

        With `verify`, the checksums of an index larger than 64 MB are also verified.

        Raises
        ------
        ModelFileError
            If there is no saved index at `path`, or it is damaged or too new.
        """
        check_process()
        saved, origin = load_index(path, verify=verify)
        arrays = saved.arrays
        try:
            index = cls(**saved.parameters)
            encoder = WordEncoder(index.weighting, index.min_df, token_pattern=index.token_pattern)
            check_language(language := saved.training["language"])
            encoder.language = Language(language, frozenset(saved.stop_words))
            encoder.terms = Ids(saved.terms, "term", sort=False)
            has_counts = index.weighting != "count"
            parts = [Part.of(*part, len(saved.terms), has_counts) for part in saved.parts]
            index.documents_ = Collection(tuple(parts)).without(arrays["removed"])
        except (TypeError, ValueError) as error:
            reason = str(error).rstrip(".")
            raise ModelFileError(f"The saved index {path} is damaged: {reason}.") from None
        encoder.weighting = Weighting(index.weighting, arrays["term_weights"], POWER)
        index._encoder = encoder
        index._set_space(Space(arrays["components"], arrays["singular_values"]))
        index.n_features_in_ = len(encoder.terms)
        index.training_ = saved.training
        index._totals, index._origin = arrays["totals"], origin
        return index

    @property
    def terms_(self) -> Ids:
        """The terms, in the order of the columns of ``components_``."""
        return self._encoder.terms

    def query(
        self,
        queries: QueriesLike,
        n: int = 10,
        *,
        method: str | None = None,
        labels: Sequence[Any] | None = None,
        parts: bool = False,
    ) -> pl.DataFrame:
        """Find the n documents that match a query best.

        Parameters
        ----------
        queries : str, sequence of str, or vector or matrix of counts of the terms
            One query, or several.
        n : int
        method : {"hybrid", "lsi", "bm25"}, optional
            How to rank documents, by default the `method` of the index.
        labels : sequence of int or str, optional
            Values of the column query for several queries, by default their texts.
        parts : bool, default False
            Whether to add the columns words and meaning (Float32), whose sum is the score, and
            matched: the terms of the query that the document contains.

        Returns
        -------
        polars DataFrame
            Columns query (the text, or the position of a vector; only for several queries),
            document, rank (Int32, from 1), score (Float32), and title and snippet if known. The
            score is the cosine ("lsi"), the BM25 score, or a weighted sum of both as standard
            scores ("hybrid"). Documents without words are never found.

        Raises
        ------
        DataError
            If no word of any query is known, n is below 1, or the index lacks the counts that the
            method needs.

        Warns
        -----
        UnknownTermWarning
            If some words are unknown; they are left out.
        """
        self._check_fitted()
        check_n(n)
        method = self._method(method)
        given = self._queries(queries)
        given.check(self.terms_)
        rows, found = self._found(given, n, method)
        ids, *shown = self.documents_.shown(found.documents)
        ranks = (np.arange(1, len(rows) + 1) - np.searchsorted(rows, rows)).astype(np.int32)
        columns = [ids, pl.Series("rank", ranks), pl.Series("score", found.scores)]
        if parts:
            matched = []
            for row, place in zip(rows.tolist(), found.documents.tolist(), strict=True):
                terms = self.documents_.counts_of(place).indices
                both = self.terms_.values.gather(np.intersect1d(terms, given.each[row].terms))
                matched.append(", ".join(map(str, both)))
            columns += [pl.Series("words", found.words), pl.Series("meaning", found.meaning)]
            columns.append(pl.Series("matched", matched, dtype=pl.String))
        frame = pl.DataFrame([*columns, *shown])
        if given.single:
            return frame
        kept = given.labels if labels is None else labels
        return frame.select(pl.Series("query", list(kept)).gather(rows), pl.all())

    def explain(
        self, query: QueriesLike, document: int | str, *, method: str | None = None
    ) -> pl.DataFrame:
        """Explain the score of a document by the words of the query.

        Parameters
        ----------
        query : str, or vector of counts of the terms
        document : id
        method : {"hybrid", "lsi", "bm25"}, optional
            As for `query`.

        Returns
        -------
        polars DataFrame
            One row for each known term of the query, with columns term and contribution (Float64);
            contributions sum to the score. "lsi" adds the column through: the term of the document
            with the largest share in the contribution, null if there is none. "hybrid"
            adds the columns words and meaning, which sum to the contribution, and up to two rows.
            One is that of the best documents (their ids are in through), whose mean is the meaning
            of the query unless there are few documents. The other is that of the average document,
            whose scores are subtracted.

        Raises
        ------
        DataError
            If no word of the query is known, or several queries were given.
        UnknownIdError
            If the document is not in the index.
        """
        self._check_fitted()
        method = self._method(method)
        given = self._queries(query)
        if not given.single:
            raise DataError("explain takes one query, as a text or a vector.")
        given.check(self.terms_)
        wanted = given.each[0].towards(self.components_)
        place = int(self.documents_.places([document])[0])
        terms = self.terms_.values.gather(wanted.terms).alias("term")
        bm25 = self._search.word_shares(wanted, place)
        if method == "bm25":
            return _sorted(pl.DataFrame([terms, pl.Series("contribution", bm25)]))
        cosines, through = self._cosine_shares(wanted, place)
        if method == "lsi":
            return _sorted(pl.DataFrame([terms, pl.Series("contribution", cosines), through]))
        fusion = self._search.fusion(wanted)
        words = fusion.words * bm25
        unit = self._search.units(np.array([place]))[0].astype(np.float64)
        of_best = fusion.meaning * float(unit @ fusion.direction)
        rest = pl.DataFrame(
            {
                "term": [FEEDBACK, AVERAGE],
                "contribution": [of_best, -fusion.average],
                "words": [0.0, -fusion.average_words],
                "meaning": [of_best, -fusion.average_meaning],
                "through": [", ".join(map(str, self.documents_.shown(fusion.best)[0])), None],
            },
            schema_overrides={"through": pl.String},
        )
        if len(fusion.best):  # their mean is the meaning of the query
            cosines, through = np.zeros(len(terms)), through.clear(len(terms))
        meaning = cosines * fusion.meaning
        own = pl.DataFrame({"term": terms.cast(pl.String), "contribution": words + meaning})
        own = own.with_columns(words=words, meaning=meaning, through=through.cast(pl.String))
        return pl.concat([_sorted(own), rest if len(fusion.best) else rest[1:]])

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
        self._check_fitted()
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
        self._check_fitted()
        vectors = np.asarray(self.term_vectors(), dtype=np.float32)
        return similar_rows(self.terms_, vectors, terms, n)

    def document_vectors(self, documents: IdsLike | int | str | None = None) -> Floats:
        """Return the rows of V_k S_k of some documents (ids), by default of all."""
        self._check_fitted()
        if documents is None:
            return self.documents_.whole.embedding
        return self.documents_.whole.embedding[self.documents_.ids.index(listed(documents))]

    def document_weights(self, documents: IdsLike | int | str | None = None) -> Any:
        """Return the weighted terms of some documents (ids), by default of all, as a csr_array."""
        self._check_fitted()
        counts = self.documents_.whole.counts
        if documents is not None:
            counts = counts[self.documents_.ids.index(listed(documents))]
        return self._encoder.weigh(counts)

    def term_vectors(self, terms: IdsLike | int | str | None = None) -> Floats:
        """Return the rows of U_k S_k of some terms, by default of all."""
        self._check_fitted()
        chosen = slice(None) if terms is None else self.terms_.index(listed(terms))
        scaled = self.components_[:, chosen] * self.singular_values_[:, None]
        return np.ascontiguousarray(scaled.T)

    def _set_space(self, space: Space) -> None:
        self.components_ = space.components
        self.singular_values_ = space.singular_values
        self.n_components_ = len(space.singular_values)
        self.__dict__.pop("_search", None)

    @property
    def _has_counts(self) -> bool:
        """True if the index has counts of words, which BM25 needs."""
        return isinstance(self._encoder, WordEncoder) and self.weighting != "count"

    @cached_property
    def _search(self) -> Search:
        facts = self.training_
        length = facts["words"] / max(1, facts["documents"] - facts["empty_documents"])
        return Search(self.documents_, length, self._totals)

    def _found(self, given: Queries, n: int, method: str) -> tuple[Indices, Ranking]:
        """Return the indices of queries, and the documents that a method finds for each."""
        search = self._search
        find = {"bm25": search.by_words, "hybrid": search.by_both, "lsi": search.by_meaning}[method]
        queries = [
            (number, query.towards(self.components_))
            for number, query in enumerate(given.each)
            if len(query.terms)
        ]
        if method == "lsi":
            queries = [each for each in queries if each[1].direction.any()]
        if not queries:
            raise NothingToRankError(
                "The words of the query have no weight in the dimensions of the index, so nothing "
                "can be ranked; use other words, another method, or an index with more dimensions."
            )
        found = [find(query, n) for _, query in queries]
        if len(found) == 1:
            return np.full(len(found[0].documents), queries[0][0]), found[0]
        counts = [len(each.documents) for each in found]
        rows = np.repeat([number for number, _ in queries], counts)
        return rows, Ranking(*(np.concatenate(parts) for parts in zip(*found, strict=True)))

    def _cosine_shares(self, query: Query, place: int) -> tuple[Floats, pl.Series]:
        """Split the cosine of a query and a document into one share for each word of the query.

        Also returns, for each share, the term of the document that contributes most to it; null for
        a document without words, and for a word without weight in the dimensions.
        """
        own = self._encoder.weigh(self.documents_.counts_of(place))
        target = self._search.units(np.array([place]))[0].astype(np.float64)
        weights = query.weights.astype(np.float64)
        basis = self.components_[:, query.terms].T.astype(np.float64)
        scale = np.linalg.norm(weights @ basis) * np.linalg.norm(target)
        shares = weights * (basis @ target) / scale if scale > 0 else np.zeros(len(weights))
        names = self.terms_.values.alias("through")
        if not own.nnz:
            return shares, names.clear(len(shares))
        # The document is d'U_k, so each share splits again over the terms of the document.
        document_basis = self.components_[:, own.indices].astype(np.float64) * own.data
        products = (weights[:, None] * basis) @ document_basis
        products *= np.where(shares < 0, -1, 1)[:, None]
        through = names.gather(own.indices[np.argmax(products, axis=1)])
        has_share = pl.Series(products.max(axis=1) > 0)
        return shares, through.zip_with(has_share, names.clear(len(shares)))

    @cached_property
    def _totals(self) -> NDArray[np.float64]:
        """Sums of `Part.totals` over all documents."""
        parts = [part.totals() for part in self.documents_.parts]
        return np.asarray(np.sum(parts, axis=0))

    def _method(self, given: str | None) -> str:
        """Return the method of a search after checking that the index has the counts for it."""
        check_choice("method", self.method if given is None else given, METHODS)
        if self._has_counts:
            return given or self.method
        if given not in (None, "lsi"):
            raise DataError(
                f"method={given!r} needs counts of words; the weights of this index allow 'lsi'."
            )
        return "lsi"

    def _queries(self, given: Any) -> Queries:
        return as_queries(self._encoder, given, self._matrix, columns=self.terms_in_rows)

    def _matrix(self, matrix: Any) -> Any:
        """Reject queries that are vectors; only `LSI` has scikit-learn's checks for them."""
        raise DataError("Queries of an Index must be texts; use LSI for vectors.")

    def _check_fitted(self) -> None:
        """Check that the index is fitted; scikit-learn's check takes as long as a search."""
        if "components_" not in vars(self):
            from sklearn.utils.validation import check_is_fitted

            check_is_fitted(self)


def _sorted(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.sort("contribution", descending=True, maintain_order=True)

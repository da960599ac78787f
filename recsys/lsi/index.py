"""Search in an index: documents that match a query, similar documents, similar terms."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import polars as pl

from lowrank.kernels.arrays import Float64s, Floats, Int64s
from recsys.data.frames import listed
from recsys.data.ids import Ids
from recsys.data.ratings import check_process
from recsys.errors import DataError, ModelFileError, check_choice, check_flags
from recsys.lsi.collection import Collection
from recsys.lsi.documents import as_queries
from recsys.lsi.files import load_index
from recsys.lsi.queries import (
    NothingToRankError,
    Queries,
    Query,
    similar_rows,
    warn_of_no_direction,
)
from recsys.lsi.search import METHODS, Fusion, Ranking, Search
from recsys.lsi.space import Space, Weighting
from recsys.lsi.vectorizer import (
    POWER,
    TOKEN_PATTERN,
    Language,
    StopWords,
    WordEncoder,
    check_language,
)
from recsys.ranking.topn import check_n

if TYPE_CHECKING:
    from lowrank.arguments import MatrixLike, RandomStateLike
    from recsys.data.ids import IdsLike

    QueriesLike = str | Sequence[str] | MatrixLike


FEEDBACK = "(best documents)"
"""Row of an explanation for the best documents, whose mean is the meaning of the query."""

AVERAGE = "(average document)"
"""Row of an explanation for the scores of the average document, which are subtracted."""

_NO_WORDS = Query(np.zeros(0, np.int64), np.zeros(0), np.zeros(0))


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
    _encoder: WordEncoder

    def __init__(
        self,
        n_components: int | str | None = None,
        weighting: str = "tfidf",
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

        With `verify`, the checksums of files larger than 16 MB are also verified.

        Raises
        ------
        ModelFileError
            If there is no saved index at `path`, or it is damaged or too new.
        """
        # polars hangs in a process that was forked after it was used.
        check_process()
        saved = load_index(path, verify=verify)
        arrays = saved.arrays
        try:
            index = cls(**saved.parameters)
            encoder = WordEncoder(
                index.weighting, index.min_df, token_pattern=index.token_pattern
            )
            language = saved.training["language"]
            check_language(language)
            # The words of the fit, since those of a library may change.
            encoder.language = Language(language, frozenset(saved.stop_words))
            encoder.terms = Ids(saved.terms, "term", sort=False)
            index.documents_ = Collection.from_arrays(
                arrays, saved.documents, len(saved.terms), index.weighting != "count"
            )
        # Checksums pass for a file that was made with other parameters.
        except (TypeError, ValueError) as error:
            reason = str(error).rstrip(".")
            raise ModelFileError(
                f"The saved index {path} is damaged: {reason}."
            ) from None
        encoder.weighting = Weighting(index.weighting, arrays["term_weights"], POWER)
        index._encoder = encoder
        index._set_space(Space(arrays["components"], arrays["singular_values"]))
        index.n_features_in_ = len(encoder.terms)
        index.training_ = saved.training
        # Otherwise the first search would read all vectors twice.
        index._totals = arrays["totals"]
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
            If no word of a single query is known, n is below 1, or the index lacks the counts that
            the method needs.

        Warns
        -----
        UnknownTermWarning
            If some words are unknown; they are left out. Of several queries, those without a known
            word have no rows.
        """
        check_n(n)
        check_flags(parts=parts)
        method = self._checked_method(method)
        checked = self._checked_queries(queries, method)
        rows, ranking = self._rankings(checked, n, method)
        ids, *others = self.documents_.columns_of(ranking.documents)
        # Rows are sorted, so the first place of each begins its ranks.
        ranks = np.arange(1, len(rows) + 1) - np.searchsorted(rows, rows)
        ranks = ranks.astype(np.int32)
        columns = [ids, pl.Series("rank", ranks), pl.Series("score", ranking.scores)]
        if parts:
            columns.append(pl.Series("words", ranking.words))
            columns.append(pl.Series("meaning", ranking.meaning))
            columns.append(self._matched(checked, rows, ranking.documents))
        frame = pl.DataFrame([*columns, *others])
        if checked.is_single:
            return frame
        names = [*(checked.labels if labels is None else labels)]
        if len(names) != len(checked.queries):
            raise DataError(
                f"labels must have one entry for each of {len(checked.queries)} queries; got "
                f"{len(names)}."
            )
        column = pl.Series("query", names, strict=False).gather(rows)
        return frame.select(column, pl.all())

    def _matched(
        self,
        queries: Queries,
        rows: Int64s,
        documents: Int64s,
    ) -> pl.Series:
        """Return the terms of queries that documents contain, joined by commas."""
        matched = []
        for row, document in zip(rows.tolist(), documents.tolist(), strict=True):
            terms = self.documents_.counts[[document]].indices
            shared = np.intersect1d(terms, queries.queries[row].terms)
            matched.append(", ".join(map(str, self.terms_.values.gather(shared))))
        return pl.Series("matched", matched, dtype=pl.String)

    def explain(
        self,
        query: QueriesLike,
        document: int | str,
        *,
        method: str | None = None,
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
            One is from the best documents (their ids are in through), whose mean is the
            meaning of the query unless there are few documents. The other is from the
            average document, whose scores are subtracted.

        Raises
        ------
        DataError
            If no word of the query is known, or several queries were given.
        UnknownIdError
            If the document is not in the index.
        """
        method = self._checked_method(method)
        queries = self._checked_queries(query, method)
        if not queries.is_single:
            raise DataError("explain takes one query, as a text or a vector.")
        directed = queries.queries[0].towards(self.components_)
        row = int(self.documents_.rows_of([document])[0])
        terms = self.terms_.values.gather(directed.terms).alias("term")
        # The other methods need counts, which an index may lack.
        if method == "lsi":
            cosines, through = self._cosine_shares(directed, row)
            return _sorted([terms, pl.Series("contribution", cosines), through])
        words = self._search.word_shares(directed, row)
        if method == "bm25":
            return _sorted([terms, pl.Series("contribution", words)])
        fusion = self._search.fusion(directed)
        words = fusion.words * words
        meaning: Floats = np.zeros(len(terms))
        through = pl.Series("through", [None] * len(terms), pl.String)
        if not len(fusion.best):  # otherwise their mean is the meaning of the query
            cosines, through = self._cosine_shares(directed, row)
            meaning = fusion.meaning * cosines
        shares = _sorted(
            [
                terms.cast(pl.String),
                pl.Series("contribution", words + meaning),
                pl.Series("words", words),
                pl.Series("meaning", meaning),
                through.cast(pl.String),
            ]
        )
        return pl.concat([shares, self._fusion_shares(fusion, row)])

    def _fusion_shares(self, fusion: Fusion, row: int) -> pl.DataFrame:
        """Return the contributions of the best documents, if any, and of the average document."""
        # The same sums as in `Search.fusion`, in double precision.
        unit = self.documents_.unit_vectors(np.array([row]))[0].astype(np.float64)
        of_best = fusion.meaning * float(unit @ fusion.direction)
        best_ids = self.documents_.columns_of(fusion.best)[0]
        shares = pl.DataFrame(
            {
                "term": [FEEDBACK, AVERAGE],
                "contribution": [of_best, -fusion.average],
                "words": [0.0, -fusion.average_words],
                "meaning": [of_best, -fusion.average_meaning],
                "through": [", ".join(map(str, best_ids)), None],
            },
            schema_overrides={"through": pl.String},
        )
        return shares if len(fusion.best) else shares[1:]

    def similar_documents(
        self, documents: IdsLike | int | str, n: int = 10
    ) -> pl.DataFrame:
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
        check_n(n)
        rows = self.documents_.rows_of(listed(documents)).tolist()
        frames = [self._similar_to(row, n) for row in rows]
        return pl.concat(frames) if frames else self._similar_to(0, n).clear()

    def _similar_to(self, row: int, n: int) -> pl.DataFrame:
        """Return the documents similar to one in a row of the index."""
        unit = self.documents_.unit_vectors(np.array([row]))[0]
        query = _NO_WORDS._replace(direction=unit)
        # The document itself is the most similar one.
        ranking = self._search.by_meaning(query, n + 1)
        # Without coordinates, a document is similar to none.
        others = np.flatnonzero((ranking.documents != row) & unit.any())[:n]
        ids, *names = self.documents_.columns_of(ranking.documents[others])
        columns = [
            self.documents_.columns_of(np.full(len(ids), row))[0],
            ids.alias("similar"),
            pl.Series("rank", np.arange(1, len(ids) + 1, dtype=np.int32)),
            pl.Series("score", ranking.scores[others]),
        ]
        return pl.DataFrame([*columns, *names])

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
        # The kernels for cosines need single precision.
        vectors = np.asarray(self.term_vectors(), dtype=np.float32)
        return similar_rows(self.terms_, vectors, terms, n)

    def document_vectors(self, documents: IdsLike | int | str | None = None) -> Floats:
        """Return the rows of V_k S_k of some documents (ids), by default of all."""
        self._check_fitted()
        if documents is None:
            return self.documents_.embedding
        return self.documents_.embedding[self.documents_.rows_of(listed(documents))]

    def document_weights(self, documents: IdsLike | int | str | None = None) -> Any:
        """Return the weighted terms of some documents (ids), by default of all, as a csr_array."""
        self._check_fitted()
        counts = self.documents_.counts
        if documents is not None:
            counts = counts[self.documents_.rows_of(listed(documents))]
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
        # The search has sums over the old coordinates.
        self.__dict__.pop("_search", None)

    @property
    def _has_counts(self) -> bool:
        """True if the index has counts of words, which BM25 needs."""
        return self.weighting != "count"

    @cached_property
    def _search(self) -> Search:
        training = self.training_
        # Empty documents would make the others look long.
        n_with_words = training["documents"] - training["empty_documents"]
        mean_length = training["words"] / max(1, n_with_words)
        return Search(self.documents_, mean_length, self._totals)

    def _rankings(
        self,
        queries: Queries,
        n: int,
        method: str,
    ) -> tuple[Int64s, Ranking]:
        """Return the indices of queries, and the documents that a method finds for each."""
        search = self._search
        find = search.by_both
        if method != "hybrid":
            find = search.by_words if method == "bm25" else search.by_meaning
        numbers = []
        rankings = []
        n_without_direction = 0
        for number, query in enumerate(queries.queries):
            if not len(query.terms):
                continue
            directed = query.towards(self.components_)
            # A cosine with zero would rank the documents by their position.
            if method == "lsi" and not directed.direction.any():
                n_without_direction += 1
                continue
            numbers.append(number)
            rankings.append(find(directed, n))
        if n_without_direction and queries.is_single:
            raise NothingToRankError(
                "The words of the query have no weight in the dimensions of the index, so nothing "
                "can be ranked; use other words, another method, or an index with more dimensions."
            )
        if n_without_direction:
            warn_of_no_direction(n_without_direction)
        if not rankings:
            nothing = np.zeros(0, np.int64)
            no_scores = nothing.astype(np.float32)
            return nothing, Ranking(nothing, no_scores, no_scores, no_scores)
        rows = np.repeat(numbers, [len(ranking.documents) for ranking in rankings])
        return rows, Ranking(*map(np.concatenate, zip(*rankings, strict=True)))

    def _cosine_shares(self, query: Query, row: int) -> tuple[Floats, pl.Series]:
        """Split the cosine of a query and a document into one share for each word of the query.

        Also returns, for each share, the term of the document that contributes most to it; null for
        a document without words, and for a word without weight in the dimensions.
        """
        document = self._encoder.weigh(self.documents_.counts[[row]])
        target = self.documents_.unit_vectors(np.array([row]))[0].astype(np.float64)
        weights = query.weights.astype(np.float64)
        # cos = sum over words t of w_t (u_t' v) / (|q'U| |v|), one share for each t.
        basis = self.components_[:, query.terms].T.astype(np.float64)
        scale = np.linalg.norm(weights @ basis) * np.linalg.norm(target)
        shares = np.zeros(len(weights))
        if scale > 0:
            shares = weights * (basis @ target) / scale
        names = self.terms_.values.alias("through")
        if not document.nnz:
            return shares, names.clear(len(shares))
        # The document is d'U_k, so each share splits again over the terms of the document.
        of_terms = self.components_[:, document.indices].astype(np.float64)
        products = (weights[:, None] * basis) @ (of_terms * document.data)
        # Of a negative share, the most negative part explains most.
        products *= np.where(shares < 0, -1, 1)[:, None]
        through = names.gather(document.indices[np.argmax(products, axis=1)])
        has_share = pl.Series(products.max(axis=1) > 0)
        return shares, through.zip_with(has_share, names.clear(len(shares)))

    @cached_property
    def _totals(self) -> Float64s:
        """Sums over all documents; see `Collection.totals`."""
        return self.documents_.totals()

    def _checked_method(self, method: str | None) -> str:
        """Return the method of a search after checking that the index has the counts for it."""
        self._check_fitted()
        check_choice("method", self.method if method is None else method, METHODS)
        if self._has_counts:
            return method or self.method
        if method not in (None, "lsi"):
            raise DataError(
                f"method={method!r} needs counts of words; the weights of this index allow 'lsi'."
            )
        return "lsi"

    def _queries(self, queries: Any) -> Queries:
        return as_queries(
            self._encoder, queries, self._matrix, in_columns=self.terms_in_rows
        )

    def _checked_queries(self, queries: Any, method: str) -> Queries:
        """Return queries after checking that they have known words."""
        checked = self._queries(queries)
        if method != "lsi":
            frequency = self._search.frequency
            is_exact = method == "bm25"
            checked = checked.without_documents(
                frequency, self.terms_, dropped=is_exact
            )
        checked.check(self.terms_)
        return checked

    def _matrix(self, matrix: Any) -> Any:
        """Reject queries that are vectors; only `LSI` has scikit-learn's checks for them."""
        raise DataError("Queries of an Index must be texts; use LSI for vectors.")

    def _check_fitted(self) -> None:
        """Check that the index is fitted; scikit-learn's check takes as long as a search."""
        if "components_" not in vars(self):
            from sklearn.utils.validation import check_is_fitted

            check_is_fitted(self)


def _sorted(columns: list[pl.Series]) -> pl.DataFrame:
    """Return a frame with the largest contribution first."""
    frame = pl.DataFrame(columns)
    return frame.sort("contribution", descending=True, maintain_order=True)

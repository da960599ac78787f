"""LSI: an index of documents in the space of a truncated SVD."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import polars as pl
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from recsys.data.frames import listed
from recsys.data.ids import Ids
from recsys.errors import DataError, ModelFileError
from recsys.lsi import answers
from recsys.lsi.collection import Collection
from recsys.lsi.inputs import Texts, as_queries, further_counts, learned_counts, text_batches
from recsys.lsi.language import StopWords
from recsys.lsi.parts import Part
from recsys.lsi.queries import Queries
from recsys.lsi.saved_index import SavedIndex, SavedPart, load_index, save_index
from recsys.lsi.search import METHODS, Search
from recsys.lsi.space import (
    DEFAULT_RANK,
    Added,
    Space,
    decompose,
    energy,
    orthogonality_loss,
    outside_share,
    with_documents,
)
from recsys.lsi.vectorizer import POWER, TOKEN_PATTERN, WordEncoder, make_encoder
from recsys.lsi.vectors import Vectors
from recsys.lsi.weighting import Weighting, canonical_csr
from recsys.topn import check_n

if TYPE_CHECKING:
    from lowrank.arguments import MatrixLike, RandomStateLike
    from recsys.data.ids import IdsLike
    from recsys.readers.documents import DocumentBatch
    from recsys.storage import Origin

    DocumentsLike = Iterable[str] | Iterable[DocumentBatch] | MatrixLike
    QueriesLike = str | Sequence[str] | MatrixLike

Floats = NDArray[np.floating[Any]]
_ADDING = ("fold-in", "update")
_DEFAULT = f"default: a third of the documents or terms, at most {DEFAULT_RANK}"


class LSI(
    Vectors,
    ClassNamePrefixFeaturesOutMixin,  # type: ignore[misc]
    TransformerMixin,  # type: ignore[misc]
    BaseEstimator,  # type: ignore[misc]
):
    """Latent semantic indexing: find documents by meaning rather than by their exact words.

    The weighted document-by-term matrix is A ~ V_k S_k U_k'. Documents are the rows of V_k S_k,
    terms those of U_k S_k; a query or new document q becomes q' U_k, and similarity is the cosine.

    Parameters
    ----------
    n_components : int or str, optional
        Number of dimensions k, or a rule of `lowrank.choose_rank`, such as "elbow". By default a
        third of the documents (or terms, if they are fewer), at most 75.
    weighting : {"tfidf", "log-entropy", "count"} or scikit-learn vectorizer, default "tfidf"
        See `recsys.lsi.weighting.Weighting`. "count" keeps the counts of texts, or the values of a
        matrix. A vectorizer weights texts itself, and needs all of them in memory at once.
    method : {"hybrid", "lsi", "bm25"}, default "hybrid"
        What `query` ranks by: exact words and meaning together (see `recsys.lsi.search.Search`),
        meaning alone, or exact words alone. The first and last need counts; with the weighting
        "count" or a vectorizer it is "lsi".
    language : str or None, default "auto"
        One of `recsys.lsi.language.LANGUAGES`, whose stop words are left out and whose words count
        as the same if they have the same stem; None for neither. "auto" finds the language of
        texts by their stop words, and is None where it is not clear.
    min_df : int, default 1
        Minimum number of documents that a word of texts must be in.
    stop_words : str, sequence of str or None
        Words of texts to leave out as well, or the language whose stop words these are.
    token_pattern : str
        Regular expression of a word. By default words are two or more letters or digits of any
        alphabet; in scripts without spaces between words, pairs of characters. See
        `recsys.lsi.vectorizer`.
    terms_in_rows : bool, default False
        Whether matrices are term-by-document instead of document-by-term.
    random_state : int, Generator, RandomState or None, default 0
        Seed of the decomposition.

    Attributes
    ----------
    components_ : ndarray of shape (n_components_, n_terms)
        Directions U_k', orthonormal rows.
    singular_values_ : ndarray of shape (n_components_,)
    n_components_, n_features_in_ : int
        Number of dimensions (fewer than requested if the matrix has a lower rank) and of terms.
    documents_ : Collection
        Ids, titles, snippets, weighted rows and coordinates of the documents.
    terms_ : Ids
    training_ : dict
        Counts and seconds of the fit.

    References
    ----------
    Deerwester, Dumais, Furnas, Landauer & Harshman (1990), "Indexing by latent semantic analysis".

    Examples
    --------
    >>> texts = ["the nurse called the doctor", "the doctor left the hospital",
    ...          "a nurse works in a hospital", "batman drew in a notebook"]
    >>> lsi = LSI(2).fit(texts)
    >>> sorted(lsi.query("doctor", n=3)["document"])  # document 2 does not contain the word
    [0, 1, 2]
    """

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

    # Fit and transform

    _origin: Origin | None = None

    def fit(
        self,
        documents: DocumentsLike,
        y: object = None,
        *,
        vocabulary: Sequence[str] | None = None,
        ids: Sequence[Any] | None = None,
        titles: Sequence[str | None] | None = None,
    ) -> Self:
        """Index documents.

        Parameters
        ----------
        documents : iterable of str or DocumentBatch, or matrix of shape (n_documents, n_terms)
            Texts are read once and not kept, so they may come from an iterator; see
            `recsys.lsi.read_documents`. A dense or sparse matrix has counts (or, with
            ``weighting="count"``, any weights); terms are its rows if `terms_in_rows`.
        y : ignored
        vocabulary : sequence of str, optional
            The terms of a matrix; without it they are numbered from 0, and queries are vectors.
        ids : sequence of int or str, optional
            By default documents are numbered from 0.
        titles : sequence of str or None, optional
            Shown with results, and indexed in front of texts.

        Raises
        ------
        DataError, TypeError, ValueError
            If there are no documents or no words, a document is not a text, ids are not distinct,
            a parameter is out of its range, or a matrix is not finite or has negative counts.
        """
        start = time.perf_counter()
        if self.method not in METHODS:
            raise DataError(f"method must be one of {', '.join(METHODS)}; got {self.method!r}.")
        names = ("min_df", "stop_words", "token_pattern", "language")
        encoder = make_encoder(self.weighting, **{name: getattr(self, name) for name in names})
        matrix = partial(self._matrix, reset=True)
        labels, counts = learned_counts(encoder, documents, (ids, titles), vocabulary, matrix)
        self.n_features_in_ = counts.shape[1]
        self.__dict__.pop("_totals", None)
        rows = encoder.learn(counts)
        self._encoder = encoder
        self._set_space(decompose(rows, self.n_components, self.random_state))
        n_words = _n_words(counts) if self._has_counts else 0
        self.training_ = {"mean_length": n_words / max(1, rows.shape[0])}
        self.documents_ = Collection((self._part(labels, counts, rows),))
        by = "as given" if self.n_components is not None else _DEFAULT
        if isinstance(self.n_components, str):
            by = f"rule: {self.n_components}"
        self.training_ |= {
            "documents": rows.shape[0],
            "empty_documents": _n_empty(counts),
            "terms": rows.shape[1],
            "words": n_words,
            "language": encoder.language.name,
            "dimensions": self.n_components_,
            "dimensions_by": by,
            "share_kept": min(1.0, energy(self.singular_values_) / energy(rows.data)),
            "added": 0,
            "removed": 0,
            "orthogonality_loss": 0.0,
            "seconds": time.perf_counter() - start,
        }
        return self

    def transform(self, documents: DocumentsLike) -> Floats:
        """Return the coordinates q' U_k of texts or of rows of counts, shape (n, n_components_)."""
        check_is_fitted(self)
        batches = text_batches(documents)
        if batches is None:
            return self._space.project(self._encoder.weigh(self._matrix(documents)))
        rows = (self._encoder.encode(texts).rows for texts in Texts(batches))
        return np.concatenate([self._space.project(each) for each in rows])

    def fit_transform(
        self, documents: DocumentsLike, y: object = None, **fit_params: Any
    ) -> Floats:
        """Index documents and return their coordinates, the same as `transform` does."""
        return np.array(self.fit(documents, y, **fit_params).documents_.whole.embedding)

    def add_documents(
        self,
        documents: DocumentsLike,
        *,
        ids: Sequence[Any] | None = None,
        titles: Sequence[str | None] | None = None,
        method: str = "fold-in",
        replace: bool = False,
    ) -> Added:
        """Add documents to the index, with its terms and their weights as they are.

        They become a part of their own, so that adding and saving takes time in proportion to them.

        Parameters
        ----------
        documents, ids, titles : as for `fit`
        method : {"fold-in", "update"}
            "fold-in" gives the documents coordinates; their share outside the present dimensions is
            lost. "update" updates the singular value decomposition, close to a new one, see
            `recsys.lsi.space`; the coordinates of all documents change.
        replace : bool, default False
            Whether documents of the index that have the same id are removed.

        Returns
        -------
        Added
            With the loss of orthogonality, which shows when to index again from scratch.

        Raises
        ------
        DataError
            If there are no documents, an id is in the index already, or there is no such method.
        """
        check_is_fitted(self)
        if method not in _ADDING:
            raise DataError(f"method must be one of {', '.join(_ADDING)}; got {method!r}.")
        given = documents, (ids, titles), len(self.documents_)
        names, counts, n_unknown = further_counts(self._encoder, *given, self._matrix)
        rows = self._encoder.weigh(counts)
        more = self._part(names, counts, rows)
        outside = outside_share(rows, more.embedding)
        old = self.documents_.ids.find(names["document"])
        if not replace and (old >= 0).any():
            label = names["document"][int((old >= 0).argmax())]
            raise DataError(
                f"Document {label!r} is in the index already; it is replaced with --replace "
                "(replace=True)."
            )
        old = self.documents_.places_of(old[old >= 0])
        self._remove(old)
        self._note_change(more, slice(None), 1)
        self.documents_ = self.documents_.extended(more)
        if method == "update":
            whole = self.documents_.whole
            space, embedding = with_documents(
                self._space, self._encoder.weigh(whole.counts), len(more)
            )
            self._set_space(space)
            whole = Part(whole.table, whole.counts, embedding, whole.mean_length)
            self.documents_, self._totals = Collection((whole,)), whole.totals()
        loss = self._note_loss()
        return Added(len(more), method, outside, loss, n_unknown, len(old))

    def remove_documents(self, documents: IdsLike | int | str) -> int:
        """Remove documents from the index, whose terms and dimensions stay as they are.

        Parameters
        ----------
        documents : id or sequence of ids

        Returns
        -------
        int
            Number of removed documents.

        Raises
        ------
        UnknownIdError
            If a document is not in the index.
        DataError
            If no document would be left.
        """
        check_is_fitted(self)
        places = np.unique(self.documents_.places(listed(documents)))
        if len(places) == len(self.documents_):
            raise DataError("An index needs at least one document; no document would be left.")
        self._remove(places)
        self._note_loss()
        return len(places)

    def _remove(self, places: NDArray[np.int64]) -> None:
        for part, rows in self.documents_.owned(places):
            self._note_change(part, rows, -1)
        self.documents_ = self.documents_.without(places)

    def _note_change(self, part: Part, rows: Any, sign: int) -> None:
        """Update the summary of the index with rows of a part that come (1) or go (-1)."""
        counts, facts = part.counts[rows], dict(self.training_)
        self._totals = self._totals + sign * part.totals(rows)
        facts["documents"] += sign * counts.shape[0]
        facts["empty_documents"] += sign * _n_empty(counts)
        facts["words"] += sign * _n_words(counts) if self._has_counts else 0
        facts["added" if sign > 0 else "removed"] += counts.shape[0]
        self.training_ = facts

    def _note_loss(self) -> float:
        gram = self._totals[1 + self.n_components_ :]
        loss = orthogonality_loss(gram, self.singular_values_)
        self.training_ = self.training_ | {"orthogonality_loss": loss}
        self.__dict__.pop("_search", None)
        return loss

    # Search

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
            What to rank by, if not by the index's own `method`.
        labels : sequence of int or str, optional
            Values of the column query for several queries, instead of their texts.
        parts : bool, default False
            Whether to add the columns words and meaning (Float32), whose sum is the score, and
            matched: the terms of the query that the document has.

        Returns
        -------
        polars DataFrame
            Columns query (the text, or the position of a vector; only for several queries),
            document, rank (Int32, from 1), score (Float32), and title and snippet where they are
            known. The score is the cosine ("lsi"), BM25's, or the sum of both as standard scores
            ("hybrid"). Documents without words are never found.

        Raises
        ------
        DataError
            If no word of any query is known, n is below 1, or the index has no counts for the
            method.

        Warns
        -----
        UnknownTermWarning
            If words are not known; they are left out.
        """
        if "components_" not in self.__dict__:  # scikit-learn's check takes as long as a search
            check_is_fitted(self)
        check_n(n)
        method = self._method(method)
        given = self._queries(queries)
        given.check(self.terms_)
        rows, found = answers.found_for(self._search, given, self.components_, n, method)
        kept = labels if labels is not None else given.labels
        return answers.answered(self.documents_, self.terms_, given, kept, rows, found, parts=parts)

    def explain(
        self, query: QueriesLike, document: int | str, *, method: str | None = None
    ) -> pl.DataFrame:
        """Explain the score of a document by the query's words.

        Parameters
        ----------
        query : str, or vector of counts of the terms
        document : id
        method : {"hybrid", "lsi", "bm25"}, optional
            As for `query`.

        Returns
        -------
        polars DataFrame
            One row for each known term of the query, with columns term and contribution (Float64;
            their sum is the score). For "lsi" also through: the term of the document that carries
            most of the contribution, null where the document has no words. For "hybrid" also words
            and meaning, whose sum is the contribution, and two more rows: of the best documents
            (their ids in through), whose mean stands for what the query means unless there are
            few documents, and of the average document, whose scores are subtracted.

        Raises
        ------
        DataError
            If no word of the query is known, or several queries were given.
        UnknownIdError
            If the document is not in the index.
        """
        check_is_fitted(self)
        method = self._method(method)
        given = self._queries(query)
        if not given.single:
            raise DataError("explain takes one query, as a text or a vector.")
        given.check(self.terms_)
        wanted = given.each[0].towards(self.components_)
        place = int(self.documents_.places([document])[0])
        own = self._encoder.weigh(self.documents_.counts_of(place))
        shown = (self._search, self.components_, self.documents_, self.terms_)
        return answers.explained(*shown, wanted, place, own, method)

    # Save and load

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Save the index as a directory of JSON and ``.npy`` files, without pickle.

        Arrays that it has been loaded from, or saved in before, are not written again: they become
        further links to the same files.

        With `overwrite` it replaces a saved index at `path`, but nothing else.

        Raises
        ------
        ModelFileError
            If `path` exists, or cannot be written, or the weighting is a vectorizer.
        """
        check_is_fitted(self)
        parameters = self.get_params(deep=False)
        if not isinstance(self._encoder, WordEncoder):
            raise ModelFileError(
                "An index with a vectorizer of its own cannot be saved without pickle; save the "
                "vectorizer's matrix as you like and index that, or choose a weighting by name."
            )
        if not isinstance(parameters["stop_words"], str | None):
            parameters["stop_words"] = sorted(parameters["stop_words"])
        arrays: dict[str, NDArray[Any]] = {"components": self.components_}
        arrays |= {"singular_values": self.singular_values_, "totals": self._totals}
        arrays |= {"removed": self._search.removed}
        arrays["term_weights"] = self._encoder.weighting.term_weights
        parts = [SavedPart(part.arrays, part.table) for part in self.documents_.parts]
        saved = SavedIndex(parameters, self.training_, arrays, self.terms_.values, parts)
        self._origin = save_index(saved, path, overwrite=overwrite, origin=self._origin)

    @classmethod
    def load(cls, path: str | Path, *, verify: bool = False) -> LSI:
        """Load a saved index; its arrays are mapped from the files, not read.

        With `verify` the checksums of an index larger than 64 MB are verified too.

        Raises
        ------
        ModelFileError
            If there is no saved index at `path`, or it is damaged or too new.
        """
        saved, origin = load_index(path, verify=verify)
        arrays = saved.arrays
        try:
            lsi = cls(**saved.parameters)
            encoder = WordEncoder(
                *(lsi.weighting, lsi.min_df, lsi.stop_words, lsi.token_pattern),
                saved.training["language"],
            )
            encoder.terms = Ids(saved.terms, "term", sort=False)
            has_counts = lsi.weighting != "count"
            mean = saved.training["mean_length"] if has_counts else None
            parts = [Part.of(*part, len(saved.terms), mean) for part in saved.parts]
            lsi.documents_ = Collection(tuple(parts)).without(arrays["removed"])
        except (TypeError, ValueError) as error:
            reason = str(error).rstrip(".")
            raise ModelFileError(f"The saved index {path} is damaged: {reason}.") from None
        encoder.weighting = Weighting(lsi.weighting, arrays["term_weights"], POWER)
        lsi._encoder = encoder
        lsi._set_space(Space(arrays["components"], arrays["singular_values"]))
        lsi.n_features_in_ = len(encoder.terms)
        lsi.training_ = saved.training
        lsi._totals, lsi._origin = arrays["totals"], origin
        return lsi

    @property
    def _space(self) -> Space:
        return Space(self.components_, self.singular_values_)

    @property
    def _n_features_out(self) -> int:
        return self.n_components_

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.positive_only = self.weighting != "count"
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    def _set_space(self, space: Space) -> None:
        self.components_ = space.components
        self.singular_values_ = space.singular_values
        self.n_components_ = len(space.singular_values)
        self.__dict__.pop("_search", None)

    def _part(self, names: pl.DataFrame, counts: Any, rows: Any) -> Part:
        mean = self.training_["mean_length"] if self._has_counts else None
        return Part(names, counts, self._space.project(rows), mean)

    @property
    def _has_counts(self) -> bool:
        """True if the rows of documents are counts, which BM25 needs."""
        return isinstance(self._encoder, WordEncoder) and self.weighting != "count"

    @cached_property
    def _search(self) -> Search:
        facts = self.training_
        length = facts["words"] / max(1, facts["documents"] - facts["empty_documents"])
        return Search(self.documents_.parts, length, self._totals)

    @cached_property
    def _totals(self) -> NDArray[np.float64]:
        """Sums of `Part.totals` over all documents."""
        parts = [part.totals() for part in self.documents_.parts]
        return np.asarray(np.sum(parts, axis=0))

    def _method(self, given: str | None) -> str:
        """Return the method of a search.

        Raises
        ------
        DataError
            If it is none, or the index has no counts for it.
        """
        if given is not None and given not in METHODS:
            raise DataError(f"method must be one of {', '.join(METHODS)}; got {given!r}.")
        if self._has_counts:
            return given or self.method
        if given not in (None, "lsi"):
            raise DataError(
                f"method={given!r} needs counts of words; the weights of this index allow 'lsi'."
            )
        return "lsi"

    def _matrix(self, matrix: Any, *, reset: bool = False) -> Any:
        """Return a checked matrix as CSR, documents in rows."""
        turned = np.asarray(matrix) if isinstance(matrix, list | tuple) else matrix
        checked = validate_data(
            self,
            turned.T if self.terms_in_rows else turned,
            accept_sparse="csr",
            dtype=[np.float64, np.float32],
            reset=reset,
        )
        return canonical_csr(checked)

    def _queries(self, given: Any) -> Queries:
        return as_queries(self._encoder, given, self._matrix, columns=self.terms_in_rows)


def _n_empty(counts: Any) -> int:
    return int(np.sum(np.diff(counts.indptr) == 0))


def _n_words(counts: Any) -> int:
    return int(counts.data.sum(dtype=np.float64))

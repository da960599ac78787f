"""LSI: an index of documents in the space of a truncated SVD."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import polars as pl
from scipy import sparse
from sklearn.base import (
    BaseEstimator,
    ClassNamePrefixFeaturesOutMixin,
    TransformerMixin,
)
from sklearn.utils.validation import validate_data

from lowrank.kernels.arrays import Floats, Int64s
from recsys.data.frames import listed
from recsys.errors import DataError, check_choice, check_flags
from recsys.lsi.collection import Collection
from recsys.lsi.documents import Texts, further_counts, learned_counts, text_batches
from recsys.lsi.files import SavedIndex, save_index
from recsys.lsi.index import Index
from recsys.lsi.search import METHODS
from recsys.lsi.space import (
    DEFAULT_RANK,
    WEIGHTINGS,
    Added,
    Space,
    canonical_csr,
    decompose,
    energy,
    orthogonality_loss,
    outside_share,
    with_documents,
)
from recsys.lsi.vectorizer import WordEncoder

if TYPE_CHECKING:
    from lowrank.arguments import MatrixLike
    from recsys.data.ids import IdsLike
    from recsys.readers.documents import DocumentBatch

    DocumentsLike = Iterable[str] | Iterable[DocumentBatch] | MatrixLike

_ADDING = ("fold-in", "update")
_DEFAULT = f"default: a third of the documents or terms, at most {DEFAULT_RANK}"


class LSI(
    Index,
    ClassNamePrefixFeaturesOutMixin,  # type: ignore[misc]
    TransformerMixin,  # type: ignore[misc]
    BaseEstimator,  # type: ignore[misc]
):
    """Latent semantic indexing: find documents by meaning rather than by their exact words.

    The weighted document-by-term matrix is A ~ V_k S_k U_k'. Documents are the rows of V_k S_k,
    terms of U_k S_k; a query or new document q becomes q' U_k, and similarity is the cosine.

    Parameters
    ----------
    n_components : int or str, optional
        Number of dimensions k, or a rule of `lowrank.choose_rank`, such as "elbow". By default a
        third of the documents (or terms, if they are fewer), at most 75.
    weighting : {"tfidf", "log-entropy", "count"}, default "tfidf"
        See `recsys.lsi.space.Weighting`. "count" keeps the counts of texts, or the values of a
        matrix, such as the output of a vectorizer of scikit-learn.
    method : {"hybrid", "lsi", "bm25"}, default "hybrid"
        How `query` ranks documents: by exact words and meaning together (see
        `recsys.lsi.search.Search`), by meaning ("lsi") or by exact words ("bm25"). "hybrid" and
        "bm25" need counts; with the weighting "count" the method is "lsi".
    language : str or None, default "auto"
        One of `recsys.lsi.vectorizer.LANGUAGES`: its stop words are left out, and words with the
        same stem are one term. None does neither. "auto" detects the language by its stop words,
        and is None if the language is not clear.
    min_df : int, default 1
        Minimum number of documents that contain a term.
    stop_words : str, sequence of str or None
        Further words to leave out, or a language whose stop words to leave out.
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
        Numbers of dimensions (fewer than requested if the matrix has a lower rank) and of terms.
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

    # Fit and transform

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
            Texts are read once and not kept, so that an iterator will do; see
            `recsys.lsi.Documents`. A dense or sparse matrix has counts (or, with
            ``weighting="count"``, any weights).
        y : ignored
        vocabulary : sequence of str, optional
            The terms of a matrix. Without it terms are numbered from 0, and queries are vectors.
        ids : sequence of int or str, optional
            Ids of the documents, by default numbers from 0.
        titles : sequence of str or None, optional
            Titles, which are shown with results and indexed together with the texts.

        Raises
        ------
        DataError, TypeError, ValueError
            If there are no documents or no words, a document is not a text, ids are not unique,
            a parameter is out of its range, or a matrix is not finite or has negative counts.
        """
        start = time.perf_counter()
        check_choice("method", self.method, METHODS)
        check_choice("weighting", self.weighting, WEIGHTINGS)
        # A new one for each fit, since it learns terms and weights.
        encoder = WordEncoder(
            self.weighting,
            self.min_df,
            self.stop_words,
            self.token_pattern,
            self.language,
        )
        # scikit-learn remembers the number of columns of a fit.
        matrix = partial(self._matrix, reset=True)
        table, counts = learned_counts(
            encoder, documents, (ids, titles), vocabulary, matrix
        )
        self.n_features_in_ = counts.shape[1]
        rows = encoder.learn(counts)
        self._encoder = encoder
        self._set_space(decompose(rows, self.n_components, self.random_state))
        self.documents_ = self._collection(table, counts, rows)
        self._totals = self.documents_.totals()
        dimensions_by = "as given"
        if self.n_components is None:
            dimensions_by = _DEFAULT
        elif isinstance(self.n_components, str):
            dimensions_by = f"rule: {self.n_components}"
        self.training_ = {
            **self._summary(),
            "terms": rows.shape[1],
            "terms_outside_dimensions": 0,
            "language": encoder.language.name,
            "dimensions": self.n_components_,
            "dimensions_by": dimensions_by,
            # Rounding may give slightly more than everything.
            "share_kept": min(1.0, energy(self.singular_values_) / energy(rows.data)),
            "added": 0,
            "removed": 0,
            "orthogonality_loss": 0.0,
            "seconds": time.perf_counter() - start,
        }
        return self

    def _summary(self) -> dict[str, Any]:
        """Return the numbers of documents and words."""
        counts = self.documents_.counts
        n_words = 0
        if self._has_counts:
            n_words = int(counts.data.sum(dtype=np.float64))
        return {
            "mean_length": n_words / max(1, counts.shape[0]),
            "documents": counts.shape[0],
            "empty_documents": int(np.sum(np.diff(counts.indptr) == 0)),
            "words": n_words,
        }

    def transform(self, documents: DocumentsLike) -> Floats:
        """Return the coordinates q' U_k of texts or of rows of counts, shape (n, n_components_)."""
        self._check_fitted()
        batches = text_batches(documents)
        if batches is None:
            return self._space.project(self._encoder.weigh(self._matrix(documents)))
        # One batch at a time, so that a stream of texts needs little memory.
        rows = (self._encoder.encode(texts).rows for texts in Texts(batches))
        return np.concatenate(list(map(self._space.project, rows)))

    def fit_transform(
        self,
        documents: DocumentsLike,
        y: object = None,
        **fit_params: Any,
    ) -> Floats:
        """Index documents and return their coordinates, as `transform` would."""
        # A copy, because the caller may write into it.
        return np.array(self.fit(documents, y, **fit_params).documents_.embedding)

    def add_documents(
        self,
        documents: DocumentsLike,
        *,
        ids: Sequence[Any] | None = None,
        titles: Sequence[str | None] | None = None,
        method: str = "fold-in",
        replace: bool = False,
    ) -> Added:
        """Add documents to the index; they are found by all their words at once.

        Exact words (BM25) are ranked as in a new index of all documents: by the same lengths and
        frequencies. New words have no weight in the dimensions, and so no meaning, until the index
        is fitted again; "update" turns the dimensions by the known words only. Without counts (see
        `weighting`) new words are left out. With a `min_df` above 1, a new word must be in as many
        of the documents that are added together. The language stays.

        Parameters
        ----------
        documents, ids, titles : as for `fit`
            By default, ids are numbers after the last one in the index.
        method : {"fold-in", "update"}
            "fold-in" projects the documents on the present dimensions and ignores the rest.
            "update" updates the singular value decomposition (see `recsys.lsi.space`). The result
            is close to a new fit; the coordinates of all documents change.
        replace : bool, default False
            Whether to remove documents of the index that have the same ids.

        Returns
        -------
        Added
            With the loss of orthogonality; if it is large, fit the index again.

        Raises
        ------
        DataError
            If there are no documents, an id is already in the index, or `method` is unknown.
        """
        self._check_fitted()
        check_choice("method", method, _ADDING)
        check_flags(replace=replace)
        labels = (ids, titles)
        table, counts, unknown = further_counts(
            self._encoder, documents, labels, self._next_id(), self._matrix
        )
        replaced = self.documents_.ids.find(table["document"])
        is_there = replaced >= 0
        if not replace and is_there.any():
            label = table["document"][int(is_there.argmax())]
            raise DataError(
                f"Document {label!r} is already in the index; use --replace (replace=True) to "
                "replace it."
            )
        replaced = replaced[is_there]
        counts = self._with_new_terms(counts, unknown)
        rows = self._encoder.weigh(counts)
        added = self._collection(table, counts, rows)
        # Measured before an update, which turns the dimensions.
        outside = outside_share(rows, added.embedding)
        documents_left = self._without(replaced)
        # Sums over all documents are updated, which is faster than a new pass.
        self._totals = self._totals + added.totals()
        self.documents_ = documents_left.extended(added)
        if method == "update":
            weighted = self._encoder.weigh(self.documents_.counts)
            space, embedding = with_documents(self._space, weighted, len(added))
            self._set_space(space)
            self.documents_ = dataclasses.replace(self.documents_, embedding=embedding)
            self._totals = self.documents_.totals()
        self._note_change(n_added=len(added), n_removed=len(replaced))
        return Added(
            n_documents=len(added),
            method=method,
            outside=outside,
            orthogonality_loss=self.training_["orthogonality_loss"],
            unknown_words=sum(map(len, unknown)),
            n_replaced=len(replaced),
        )

    def _next_id(self) -> int:
        """Return the first number that no document has as its id, nor any number after it."""
        numbers = self.documents_.ids.values.cast(pl.Int64, strict=False).drop_nulls()
        largest: list[int] = numbers.top_k(1).to_list()
        return max([len(self.documents_) - 1, *largest]) + 1

    def _with_new_terms(self, counts: Any, unknown: list[list[str]]) -> Any:
        """Return counts including new terms, which are added to the index for BM25.

        Without weight in the dimensions they change neither coordinates nor cosines.
        """
        encoder = self._encoder
        if not (self._has_counts and any(unknown)):
            return counts
        if encoder.terms.values.dtype != pl.String:  # a matrix without a vocabulary
            return counts
        names, further = encoder.new_terms(unknown)
        if not names:
            return counts
        self._encoder = encoder.extended(names)
        self.n_features_in_ = len(self._encoder.terms)
        # Zeros: without a direction, a word has no meaning.
        components = np.pad(self.components_, ((0, 0), (0, len(names))))
        self._set_space(Space(components, self.singular_values_))
        training = dict(self.training_)
        training["terms"] = self.n_features_in_
        training["terms_outside_dimensions"] += len(names)
        self.training_ = training
        # New terms come last, so that the stored counts stay valid.
        return sparse.hstack([counts, further.astype(counts.dtype)], format="csr")

    def remove_documents(self, documents: IdsLike | int | str) -> int:
        """Remove documents from the index without changing its terms and dimensions.

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
            If no document would remain.
        """
        self._check_fitted()
        rows = np.unique(self.documents_.rows_of(listed(documents)))
        if len(rows) == len(self.documents_):
            raise DataError(
                "An index must have at least one document; no document would remain."
            )
        self.documents_ = self._without(rows)
        self._note_change(n_removed=len(rows))
        return len(rows)

    def _without(self, rows: Int64s) -> Collection:
        """Return the documents without some rows, which are subtracted from the totals."""
        if not len(rows):
            return self.documents_
        self._totals = self._totals - self.documents_.take(rows).totals()
        return self.documents_.take(np.delete(np.arange(len(self.documents_)), rows))

    def _note_change(self, n_added: int = 0, n_removed: int = 0) -> None:
        """Update the summary of the index for its documents."""
        gram = self._totals[1 + self.n_components_ :]
        training = {**self.training_, **self._summary()}
        training["added"] += n_added
        training["removed"] += n_removed
        training["orthogonality_loss"] = orthogonality_loss(gram, self.singular_values_)
        self.training_ = training
        self.__dict__.pop("_search", None)

    # Save

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Save the index as a directory of JSON and ``.npy`` files, without pickle.

        With `overwrite`, a saved index at `path` is replaced, but nothing else.

        Raises
        ------
        ModelFileError
            If `path` exists or cannot be written.
        """
        self._check_fitted()
        parameters = self.get_params(deep=False)
        # JSON has no sets, and the file should not depend on their order.
        if not isinstance(parameters["stop_words"], str | None):
            parameters["stop_words"] = sorted(parameters["stop_words"])
        arrays = {
            "components": self.components_,
            "singular_values": self.singular_values_,
            "term_weights": self._encoder.weighting.term_weights,
            "totals": self._totals,
            **self.documents_.arrays(),
        }
        saved = SavedIndex(
            parameters,
            self.training_,
            arrays,
            documents=self.documents_.table,
            terms=self.terms_.values,
            stop_words=sorted(self._encoder.language.stop_words),
        )
        save_index(saved, path, overwrite=overwrite)

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
        # Otherwise check_estimator requires that everything becomes float64.
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    def _collection(
        self,
        table: pl.DataFrame,
        counts: Any,
        rows: Any,
    ) -> Collection:
        return Collection(table, counts, self._space.project(rows), self._has_counts)

    def _matrix(self, matrix: Any, *, reset: bool = False) -> Any:
        """Return a checked matrix as CSR, documents in rows."""
        # Lists have no transpose.
        array = np.asarray(matrix) if isinstance(matrix, list | tuple) else matrix
        checked = validate_data(
            self,
            array.T if self.terms_in_rows else array,
            accept_sparse="csr",
            dtype=[np.float64, np.float32],
            reset=reset,
        )
        return canonical_csr(checked)

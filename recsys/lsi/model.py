"""LSI: an index of documents in the space of a truncated SVD."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy import sparse
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import validate_data

from recsys.data.frames import listed
from recsys.errors import DataError, ModelFileError, check_choice
from recsys.lsi.index import Floats, Index
from recsys.lsi.inputs import Texts, further_counts, learned_counts, text_batches
from recsys.lsi.parts import Collection, Part, SavedIndex, save_index
from recsys.lsi.search import METHODS
from recsys.lsi.space import (
    DEFAULT_RANK,
    Added,
    Space,
    canonical_csr,
    decompose,
    energy,
    orthogonality_loss,
    outside_share,
    with_documents,
)
from recsys.lsi.vectorizer import WordEncoder, make_encoder

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
    terms those of U_k S_k; a query or new document q becomes q' U_k, and similarity is the cosine.

    Parameters
    ----------
    n_components : int or str, optional
        Number of dimensions k, or a rule of `lowrank.choose_rank`, such as "elbow". By default a
        third of the documents (or terms, if they are fewer), at most 75.
    weighting : {"tfidf", "log-entropy", "count"} or scikit-learn vectorizer, default "tfidf"
        See `recsys.lsi.space.Weighting`. "count" keeps the counts of texts, or the values of a
        matrix. A vectorizer weights texts itself, and needs all of them in memory at once.
    method : {"hybrid", "lsi", "bm25"}, default "hybrid"
        How `query` ranks documents: by exact words and meaning together (see
        `recsys.lsi.search.Search`), by meaning ("lsi") or by exact words ("bm25"). "hybrid" and
        "bm25" need counts; with the weighting "count" or a vectorizer the method is "lsi".
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
        self.documents_ = Collection((self._part(labels, counts, rows),))
        by = "as given" if self.n_components is not None else _DEFAULT
        if isinstance(self.n_components, str):
            by = f"rule: {self.n_components}"
        self.training_ = {
            "mean_length": n_words / max(1, rows.shape[0]),
            "documents": rows.shape[0],
            "empty_documents": _n_empty(counts),
            "terms": rows.shape[1],
            "terms_outside_dimensions": 0,
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
        self._check_fitted()
        batches = text_batches(documents)
        if batches is None:
            return self._space.project(self._encoder.weigh(self._matrix(documents)))
        rows = (self._encoder.encode(texts).rows for texts in Texts(batches))
        return np.concatenate([self._space.project(each) for each in rows])

    def fit_transform(
        self, documents: DocumentsLike, y: object = None, **fit_params: Any
    ) -> Floats:
        """Index documents and return their coordinates, as `transform` would."""
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
        """Add documents to the index; they are found by all their words at once.

        Exact words (BM25) are ranked as in a new index of all documents: by the same lengths and
        frequencies. New words have no weight in the dimensions, and so no meaning, until the index
        is fitted again; "update" turns the dimensions by the known words only. Without counts (see
        `weighting`) new words are left out. With a `min_df` above 1, a new word must be in as many
        of the documents that are added together. The language stays. The documents are stored
        separately, so that the time to add and save is nearly proportional to their number.

        Parameters
        ----------
        documents, ids, titles : as for `fit`
        method : {"fold-in", "update"}
            "fold-in" projects the documents on the present dimensions and ignores the rest.
            "update" updates the singular value decomposition (see `recsys.lsi.space`). The result
            is close to that of a new fit; the coordinates of all documents change.
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
        given = documents, (ids, titles), len(self.documents_)
        names, counts, unknown = further_counts(self._encoder, *given, self._matrix)
        old = self.documents_.ids.find(names["document"])
        if not replace and (old >= 0).any():
            label = names["document"][int((old >= 0).argmax())]
            raise DataError(
                f"Document {label!r} is already in the index; use --replace (replace=True) to "
                "replace it."
            )
        old = self.documents_.places_of(old[old >= 0])
        counts = self._with_new_terms(counts, unknown)
        rows = self._encoder.weigh(counts)
        more = self._part(names, counts, rows)
        outside = outside_share(rows, more.embedding)
        self._remove(old)
        self._note_change(more, slice(None), 1)
        self.documents_ = self.documents_.extended(more)
        if method == "update":
            whole = self.documents_.whole
            space, embedding = with_documents(
                self._space, self._encoder.weigh(whole.counts), len(more)
            )
            self._set_space(space)
            whole = Part(whole.table, whole.counts, embedding, whole.has_counts)
            self.documents_, self._totals = Collection((whole,)), whole.totals()
        loss = self._note_loss()
        n_unknown = sum(map(len, unknown))
        return Added(len(more), method, outside, loss, n_unknown, len(old))

    def _with_new_terms(self, counts: Any, unknown: list[list[str]]) -> Any:
        """Return counts with those of new terms, which are added to the index for BM25.

        Without weight in the dimensions they change neither coordinates nor cosines.
        """
        encoder = self._encoder
        if not self._has_counts or not isinstance(encoder, WordEncoder) or not any(unknown):
            return counts
        if encoder.terms.values.dtype != pl.String:  # terms of a matrix without a vocabulary
            return counts
        names, further = encoder.new_terms(unknown)
        if not names:
            return counts
        self._encoder = encoder.extended(names)
        self.n_features_in_ = n_terms = len(self._encoder.terms)
        components = np.pad(self.components_, ((0, 0), (0, len(names))))
        self._set_space(Space(components, self.singular_values_))
        self.documents_ = self.documents_.widened(n_terms)
        outside = self.training_["terms_outside_dimensions"] + len(names)
        facts = {"terms": n_terms, "terms_outside_dimensions": outside}
        self.training_ = self.training_ | facts
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
        places = np.unique(self.documents_.places(listed(documents)))
        if len(places) == len(self.documents_):
            raise DataError("An index must have at least one document; no document would remain.")
        self._remove(places)
        self._note_loss()
        return len(places)

    def _remove(self, places: NDArray[np.int64]) -> None:
        for part, rows in self.documents_.owned(places):
            self._note_change(part, rows, -1)
        self.documents_ = self.documents_.without(places)

    def _note_change(self, part: Part, rows: Any, sign: int) -> None:
        """Update the summary of the index for rows of a part that are added (1) or removed (-1)."""
        counts, facts = part.counts[rows], dict(self.training_)
        self._totals = self._totals + sign * part.totals(rows)
        facts["documents"] += sign * counts.shape[0]
        facts["empty_documents"] += sign * _n_empty(counts)
        facts["words"] += sign * _n_words(counts) if self._has_counts else 0
        facts["added" if sign > 0 else "removed"] += counts.shape[0]
        facts["mean_length"] = facts["words"] / max(1, facts["documents"])
        self.training_ = facts

    def _note_loss(self) -> float:
        gram = self._totals[1 + self.n_components_ :]
        loss = orthogonality_loss(gram, self.singular_values_)
        self.training_ = self.training_ | {"orthogonality_loss": loss}
        self.__dict__.pop("_search", None)
        return loss

    # Save

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Save the index as a directory of JSON and ``.npy`` files, without pickle.

        Unchanged arrays that were loaded or saved before are not written again, but linked to the
        same files. With `overwrite`, a saved index at `path` is replaced, but nothing else.

        Raises
        ------
        ModelFileError
            If `path` exists or cannot be written, or the weighting is a vectorizer.
        """
        self._check_fitted()
        parameters = self.get_params(deep=False)
        if not isinstance(self._encoder, WordEncoder):
            raise ModelFileError(
                "An index with a vectorizer cannot be saved without pickle; index the matrix that "
                "the vectorizer returns, or choose a weighting by name."
            )
        if not isinstance(parameters["stop_words"], str | None):
            parameters["stop_words"] = sorted(parameters["stop_words"])
        arrays: dict[str, NDArray[Any]] = {"components": self.components_}
        arrays |= {"singular_values": self.singular_values_, "totals": self._totals}
        arrays |= {"removed": self.documents_.removed}
        arrays["term_weights"] = self._encoder.weighting.term_weights
        parts = [(part.arrays, part.table) for part in self.documents_.parts]
        stop_words = sorted(self._encoder.language.stop_words)
        terms = self.terms_.values
        saved = SavedIndex(parameters, self.training_, arrays, terms, stop_words, parts)
        self._origin = save_index(saved, path, overwrite=overwrite, origin=self._origin)

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

    def _part(self, names: pl.DataFrame, counts: Any, rows: Any) -> Part:
        return Part(names, counts, self._space.project(rows), self._has_counts)

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


def _n_empty(counts: Any) -> int:
    return int(np.sum(np.diff(counts.indptr) == 0))


def _n_words(counts: Any) -> int:
    return int(counts.data.sum(dtype=np.float64))

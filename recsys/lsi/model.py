"""LSI: an index of documents in the space of a truncated SVD."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from recsys.errors import DataError
from recsys.lsi.asking import Asking
from recsys.lsi.collection import Collection
from recsys.lsi.reading import (
    NamesCollector,
    batches_or_none,
    names_of_matrix,
    terms_of_matrix,
)
from recsys.lsi.space import (
    DEFAULT_RANK,
    Added,
    Space,
    decompose,
    orthogonality_loss,
    outside_share,
    updated,
)
from recsys.lsi.vectorizer import TOKEN_PATTERN, canonical_csr, make_encoder

if TYPE_CHECKING:
    from recsys.lsi.labels import Labels
    from recsys.lsi.reading import Names
    from recsys.lsi.vectorizer import TermEncoder

__all__ = ["LSI"]

Floats = NDArray[np.floating[Any]]
_METHODS = ("fold-in", "update")


class LSI(
    Asking,
    ClassNamePrefixFeaturesOutMixin,  # type: ignore[misc]
    TransformerMixin,  # type: ignore[misc]
    BaseEstimator,  # type: ignore[misc]
):
    """Latent semantic indexing: documents found by meaning rather than by their exact words.

    The weighted document-by-term matrix is A ~ V_k S_k U_k'. Documents are the rows of V_k S_k,
    terms those of U_k S_k; a query or a new document q becomes q' U_k, and likeness is the cosine.

    Parameters
    ----------
    n_components : int or str, optional
        Number of dimensions k, or a rule of `lowrank.choose_rank`, such as "elbow". By default a
        third of the documents (or terms, if they are fewer), at most 200.
    weighting : {"tfidf", "log-entropy", "count"} or scikit-learn vectorizer, default "tfidf"
        See `recsys.lsi.vectorizer.Weighting`. The first two also scale documents to length 1;
        "count" takes texts' counts, or the values of a matrix, as they are. A vectorizer gives
        the weights of texts itself; all of them are then in memory at once.
    min_df : int, default 1
        Terms in fewer documents are left out, of texts.
    stop_words : "english", sequence of str or None
        Terms that are left out, of texts.
    token_pattern : str
        Regular expression of a term. By default terms are two or more letters or digits of any
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
        Number of dimensions (fewer than asked for if the matrix has a lower rank) and of terms.
    documents_ : Collection
        Ids, titles, snippets, weighted rows and coordinates of the documents.
    terms_ : Labels
    training_ : dict
        Counts and seconds of the fit.

    References
    ----------
    Deerwester, Dumais, Furnas, Landauer & Harshman (1990), "Indexing by latent semantic analysis";
    Berry, Dumais & O'Brien (1995), "Using linear algebra for intelligent information retrieval".

    Examples
    --------
    >>> texts = ["the nurse called the doctor", "the doctor left the hospital",
    ...          "a nurse works in a hospital", "batman drew in a notebook"]
    >>> lsi = LSI(2).fit(texts)
    >>> sorted(lsi.query("doctor", n=3)["document"])  # the last one does not have the word
    [0, 1, 2]
    """

    def __init__(
        self,
        n_components: int | str | None = None,
        weighting: Any = "tfidf",
        *,
        min_df: int = 1,
        stop_words: Any = None,
        token_pattern: str = TOKEN_PATTERN,
        terms_in_rows: bool = False,
        random_state: Any = 0,
    ) -> None:
        self.n_components = n_components
        self.weighting = weighting
        self.min_df = min_df
        self.stop_words = stop_words
        self.token_pattern = token_pattern
        self.terms_in_rows = terms_in_rows
        self.random_state = random_state

    # Fitting and transforming

    def fit(
        self,
        documents: Any,
        y: Any = None,
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
            If there are no documents or no words, a document is no text, ids are not distinct, a
            parameter is out of its range, or a matrix is not finite or has negative counts.
        """
        start = time.perf_counter()
        names, counts, encoder = self._read(documents, vocabulary, ids, titles)
        rows = encoder.learn(counts)
        self._encoder = encoder
        self._keep_space(decompose(rows, self.n_components, self.random_state))
        self.documents_ = self._collection(names, rows)
        self.training_ = self._summary(rows, encoder.n_words, time.perf_counter() - start)
        return self

    def transform(self, documents: Any) -> Floats:
        """Return the coordinates q' U_k of documents.

        Parameters
        ----------
        documents : iterable of str, or matrix of shape (n_documents, n_terms)

        Returns
        -------
        ndarray of shape (n_documents, n_components_)
        """
        check_is_fitted(self)
        batches = batches_or_none(documents, None, None, 0)
        if batches is None:
            return self._space.project(self._rows_of_matrix(documents))
        texts = NamesCollector().watch(batches)
        return np.concatenate([self._space.project(self._encoder.encode(t).rows) for t in texts])

    def fit_transform(self, documents: Any, y: Any = None, **fit_params: Any) -> Floats:
        """Index documents and return their coordinates, the same as `transform` does."""
        return np.array(self.fit(documents, y, **fit_params).documents_.embedding)

    def add_documents(
        self,
        documents: Any,
        *,
        ids: Sequence[Any] | None = None,
        titles: Sequence[str | None] | None = None,
        method: str = "update",
    ) -> Added:
        """Add documents to the index, with its terms and their weights as they are.

        Parameters
        ----------
        documents : as for `fit`
        ids, titles : as for `fit`
        method : {"update", "fold-in"}
            "update" updates the singular value decomposition: close to a fresh one in less time,
            see `recsys.lsi.space`. "fold-in" gives the documents coordinates and leaves
            everything else alone: quicker still, but what is new in them has no place.

        Returns
        -------
        Added
            Also with the loss of orthogonality, which tells when it is time to index afresh.

        Raises
        ------
        DataError
            If there are no documents, an id is in the index already, or there is no such method.
        """
        check_is_fitted(self)
        if method not in _METHODS:
            raise DataError(f"method must be one of {', '.join(_METHODS)}; got {method!r}.")
        names, rows, n_unknown = self._rows_to_add(documents, ids, titles)
        more = self._collection(names, rows)
        outside = outside_share(rows, more.embedding)
        self.documents_ = self.documents_.extended(more)
        if method == "update":
            space, embedding = updated(self._space, self.documents_.rows, len(more))
            self._keep_space(space)
            self.documents_ = self.documents_.placed(embedding)
        loss = orthogonality_loss(self.documents_.embedding, self.singular_values_)
        self._note_added(len(more), loss)
        return Added(len(more), method, outside, loss, n_unknown)

    # Saving

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Save the index as a directory of JSON, ``.npy`` and Parquet files, without pickle.

        Parameters
        ----------
        path : str or Path
        overwrite : bool
            Replace a saved index at `path`; anything else there is refused all the same.

        Raises
        ------
        ModelFileError
            If something is in the way, or it cannot be written, or the weights are those of a
            vectorizer.
        """
        from recsys.lsi.storing import save_index

        check_is_fitted(self)
        save_index(self, path, overwrite=overwrite)

    @classmethod
    def load(cls, path: str | Path, *, verify: bool = False) -> LSI:
        """Load a saved index; its arrays are mapped from the files, not read.

        Parameters
        ----------
        path : str or Path
        verify : bool
            Check the checksum of every file, also where they are larger than the 64 MB up to
            which that is done anyway.

        Raises
        ------
        ModelFileError
            If there is no saved index at `path`, or it is damaged or too new.
        """
        from recsys.lsi.storing import load_index

        return load_index(path, verify=verify)

    # Parts

    @property
    def terms_(self) -> Labels:
        """The terms, in the order of the columns of ``components_``."""
        return self._encoder.terms

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

    def _make_encoder(self) -> TermEncoder:
        return make_encoder(
            self.weighting,
            min_df=self.min_df,
            stop_words=self.stop_words,
            token_pattern=self.token_pattern,
        )

    def _keep_space(self, space: Space) -> None:
        self.components_ = space.components
        self.singular_values_ = space.singular_values
        self.n_components_ = len(space.singular_values)

    def _read(
        self,
        documents: Any,
        vocabulary: Sequence[str] | None,
        ids: Sequence[Any] | None,
        titles: Sequence[str | None] | None,
    ) -> tuple[Names, Any, TermEncoder]:
        """Return the names and the counts of documents, and the encoder that knows their terms."""
        encoder = self._make_encoder()
        batches = batches_or_none(documents, ids, titles, 0)
        if batches is None:
            counts = self._matrix(documents, reset=True)
            encoder.terms = terms_of_matrix(vocabulary, counts.shape[1])
            return names_of_matrix(counts.shape[0], ids, titles, 0), counts, encoder
        if vocabulary is not None:
            raise DataError("vocabulary is for matrices; of texts the terms are found.")
        collector = NamesCollector()
        counts = encoder.read(collector.watch(batches))
        self.n_features_in_ = counts.shape[1]
        return collector.names(), counts, encoder

    def _rows_to_add(
        self, documents: Any, ids: Sequence[Any] | None, titles: Sequence[str | None] | None
    ) -> tuple[Names, Any, int]:
        """Return the names and weighted rows of further documents, and the words left out."""
        from scipy import sparse

        first = len(self.documents_)
        batches = batches_or_none(documents, ids, titles, first)
        if batches is None:
            rows = self._rows_of_matrix(documents)
            return names_of_matrix(rows.shape[0], ids, titles, first), rows, 0
        collector = NamesCollector()
        parts, n_unknown = [], 0
        for texts in collector.watch(batches):
            encoded = self._encoder.encode(texts)
            parts.append(encoded.rows)
            n_unknown += sum(map(len, encoded.unknown))
        return collector.names(), sparse.vstack(parts, format="csr"), n_unknown

    def _matrix(self, matrix: Any, *, reset: bool = False) -> Any:
        """Return a checked matrix as CSR, documents in rows."""
        turned = np.asarray(matrix) if isinstance(matrix, list | tuple) else matrix
        given = turned.T if self.terms_in_rows else turned
        checked = validate_data(
            self, given, accept_sparse="csr", dtype=[np.float64, np.float32], reset=reset
        )
        return canonical_csr(checked)

    def _rows_of_matrix(self, matrix: Any) -> Any:
        return self._encoder.weigh(self._matrix(matrix))

    def _collection(self, names: Names, rows: Any) -> Collection:
        embedding = self._space.project(rows)
        return Collection(names.ids, names.titles, names.snippets, rows, embedding)

    def _summary(self, rows: Any, n_words: int, seconds: float) -> dict[str, Any]:
        energy = float(np.sum(rows.data.astype(np.float64) ** 2))
        kept = float(np.sum(self.singular_values_.astype(np.float64) ** 2))
        return {
            "documents": rows.shape[0],
            "empty_documents": int(np.sum(np.diff(rows.indptr) == 0)),
            "terms": rows.shape[1],
            "words": n_words,
            "dimensions": self.n_components_,
            "dimensions_by": _rule_in_words(self.n_components),
            "share_kept": min(1.0, kept / energy),
            "added": 0,
            "orthogonality_loss": 0.0,
            "seconds": seconds,
        }

    def _note_added(self, n: int, loss: float) -> None:
        self.training_ = self.training_ | {
            "documents": len(self.documents_),
            "empty_documents": int(np.sum(np.diff(self.documents_.rows.indptr) == 0)),
            "added": self.training_["added"] + n,
            "orthogonality_loss": loss,
        }


def _rule_in_words(n_components: Any) -> str:
    if n_components is None:
        return f"default: a third of the documents or terms, at most {DEFAULT_RANK}"
    return f"rule: {n_components}" if isinstance(n_components, str) else "as asked"

"""Texts to weighted rows: by our own counting and weighting, or by a scikit-learn vectorizer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from recsys.errors import DataError
from recsys.lsi.counting import Vocabulary, count_known, make_analyzer
from recsys.lsi.labels import Labels
from recsys.lsi.weighting import WEIGHTINGS, Weighting, canonical_csr
from recsys.lsi.words import TOKEN_PATTERN, normalised

__all__ = ["Encoded", "NamedEncoder", "TermEncoder", "VectorizerEncoder", "make_encoder"]


class Encoded(NamedTuple):
    """Weighted rows of texts, and the words of each that are not known."""

    rows: Any
    unknown: list[list[str]]


class TermEncoder(ABC):
    """What turns texts and counts into weighted rows.

    Attributes
    ----------
    terms : Labels
        Known after `read`, or set for a matrix with a vocabulary.
    n_words : int
        Words that `read` has seen.
    """

    terms: Labels
    n_words: int = 0

    @abstractmethod
    def read(self, texts: Iterable[Sequence[str]]) -> Any:
        """Learn the terms from batches of texts; return the rows to `learn` from."""

    @abstractmethod
    def learn(self, counts: Any) -> Any:
        """Learn the global weights; return the weighted rows."""

    @abstractmethod
    def weigh(self, counts: Any) -> Any:
        """Return the weighted rows of counts."""

    @abstractmethod
    def encode(self, texts: Sequence[str]) -> Encoded:
        """Return the weighted rows of texts."""


class NamedEncoder(TermEncoder):
    """Counts, weighted by one of the named weightings.

    Parameters
    ----------
    name : {"tfidf", "log-entropy", "count"}
    min_df : int
    stop_words, token_pattern
        As `LSI` has them.
    """

    def __init__(
        self,
        name: str,
        min_df: int = 1,
        stop_words: Any = None,
        token_pattern: str = TOKEN_PATTERN,
    ) -> None:
        if isinstance(min_df, bool) or not isinstance(min_df, int) or min_df < 1:
            raise DataError(f"min_df must be a positive integer; got {min_df!r}.")
        self._name = name
        self._min_df = min_df
        self._stop_words = stop_words
        self._token_pattern = token_pattern
        self._analyzer = make_analyzer(stop_words, token_pattern)
        self.weighting: Weighting

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_analyzer"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._analyzer = make_analyzer(self._stop_words, self._token_pattern)

    def read(self, texts: Iterable[Sequence[str]]) -> Any:
        """Count the words of batches of texts.

        Raises
        ------
        DataError
            If there are none, or none in `min_df` documents.
        """
        vocabulary = Vocabulary(self._analyzer)
        for batch in texts:
            vocabulary.add(batch)
        terms, counts = vocabulary.finish(self._min_df)
        self.n_words = vocabulary.n_tokens
        if not terms:
            raise DataError(_no_terms(counts.shape[0], self.n_words, self._min_df))
        self.terms = Labels(terms, "term")
        return counts

    def learn(self, counts: Any) -> Any:
        """Learn the global weights; return the weighted rows."""
        self.weighting = Weighting.learn(self._name, counts)
        return self.weighting.apply(counts)

    def weigh(self, counts: Any) -> Any:
        """Return the weighted rows of counts."""
        return self.weighting.apply(counts)

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Return the weighted rows of texts."""
        from scipy import sparse

        parts, unknown = count_known(texts, self._analyzer, self._find)
        counts = sparse.csr_array(parts, shape=(len(texts), len(self.terms)))
        return Encoded(self.weigh(counts), unknown)

    def _find(self, words: Sequence[str]) -> NDArray[np.int64]:
        """Return the places of words, -1 for unknown ones; a vocabulary may have capitals."""
        places = self.terms.find(words)
        for lost in np.flatnonzero(places < 0).tolist():
            places[lost] = self._folded.get(words[lost], -1)
        return places

    @cached_property
    def _folded(self) -> dict[str, int]:
        """The places of terms that texts have in another form, the first of several."""
        found: dict[str, int] = {}
        for place, term in enumerate(map(str, self.terms.values.to_list())):
            plain = normalised(term.lower())
            if plain != term:
                found.setdefault(plain, place)
        return found


class VectorizerEncoder(TermEncoder):
    """Weights as a scikit-learn vectorizer gives them.

    Parameters
    ----------
    vectorizer : vectorizer
        A copy of it is fitted.
    """

    def __init__(self, vectorizer: Any) -> None:
        from sklearn.base import clone

        self._vectorizer = clone(vectorizer)

    def read(self, texts: Iterable[Sequence[str]]) -> Any:
        """Fit the vectorizer to all texts at once."""
        rows = self._vectorizer.fit_transform([text for batch in texts for text in batch])
        names = getattr(self._vectorizer, "get_feature_names_out", None)
        self.terms = Labels(range(rows.shape[1]) if names is None else names(), "term")
        return canonical_csr(rows)

    def learn(self, counts: Any) -> Any:
        """Return the rows as they are."""
        return counts

    def weigh(self, counts: Any) -> Any:
        """Return the rows as they are."""
        return counts

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Return the rows of texts."""
        rows = canonical_csr(self._vectorizer.transform(list(texts)))
        return Encoded(rows, [self._unknown(text) for text in texts])

    def _unknown(self, text: str) -> list[str]:
        """Return the words that the vectorizer does not know, as far as it can tell."""
        known = getattr(self._vectorizer, "vocabulary_", None)
        if known is None:
            return []
        words = dict.fromkeys(self._vectorizer.build_analyzer()(text))
        return [word for word in words if word not in known]


def make_encoder(weighting: Any, **settings: Any) -> TermEncoder:
    """Return the encoder of a weighting's name, or of a vectorizer.

    Raises
    ------
    DataError
        If it is neither.
    """
    if isinstance(weighting, str) and weighting in WEIGHTINGS:
        return NamedEncoder(weighting, **settings)
    if callable(getattr(weighting, "fit_transform", None)) and not isinstance(weighting, type):
        return VectorizerEncoder(weighting)
    raise DataError(
        f"weighting must be one of {', '.join(map(repr, WEIGHTINGS))} or a scikit-learn "
        f"vectorizer; got {weighting!r}."
    )


def _no_terms(n: int, n_words: int, min_df: int) -> str:
    documents = "the document" if n == 1 else f"any of the {n:,} documents"
    if not n_words:
        return f"There are no words in {documents}; a word has two letters or more by default."
    return f"No word is in {min_df} documents or more, as min_df={min_df} asks; lower it."

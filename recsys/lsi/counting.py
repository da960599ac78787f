"""Texts to counts of terms, a batch at a time: the texts are not kept."""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from recsys.errors import DataError
from recsys.lsi.words import TOKEN_PATTERN, words_of

__all__ = [
    "Analyzer",
    "Counted",
    "Vocabulary",
    "checked_text",
    "count_known",
    "make_analyzer",
]

Analyzer = Callable[[str], Iterable[str]]


def make_analyzer(stop_words: Any, token_pattern: str) -> Analyzer:
    """Return scikit-learn's function from a text to its words, in small letters.

    With the default pattern the words are those of `recsys.lsi.words`.

    Raises
    ------
    DataError
        If the stop words or the pattern cannot be used.
    """
    import re

    from sklearn.feature_extraction.text import CountVectorizer

    listed = stop_words if stop_words is None or isinstance(stop_words, str) else list(stop_words)
    by_default = token_pattern == TOKEN_PATTERN
    tokens = {"tokenizer": words_of} if by_default else {"token_pattern": token_pattern}
    try:
        vectorizer = CountVectorizer(stop_words=listed, **tokens)
        analyzer: Analyzer = vectorizer.build_analyzer()
        analyzer("")
    except (re.error, TypeError, ValueError) as error:
        raise DataError(
            "stop_words must be None, 'english' or a list of words, and token_pattern a regular "
            f"expression; {error}."
        ) from None
    return analyzer


class Vocabulary:
    """Counts the terms of texts, and learns the terms on the way.

    Parameters
    ----------
    analyzer : callable
        From a text to its terms.
    """

    def __init__(self, analyzer: Analyzer) -> None:
        self._analyzer = analyzer
        self._places: defaultdict[str, int] = defaultdict()
        self._places.default_factory = self._places.__len__
        self._indices: list[NDArray[np.int32]] = []
        self._counts: list[NDArray[np.float32]] = []
        self._sizes: list[int] = []
        self.n_tokens = 0

    def add(self, texts: Sequence[str]) -> None:
        """Count the terms of some texts.

        Raises
        ------
        DataError
            If one of them is no text.
        """
        indices, counts = array("i"), array("i")
        place = self._places.__getitem__
        for text in texts:
            terms = Counter(self._analyzer(checked_text(text, len(self._sizes))))
            indices.extend(map(place, terms))
            counts.extend(terms.values())
            self._sizes.append(len(terms))
        self._indices.append(np.array(indices, dtype=np.int32))
        self._counts.append(np.array(counts, dtype=np.float32))
        self.n_tokens += sum(counts)

    def finish(self, min_df: int) -> tuple[list[str], Any]:
        """Return the terms in alphabetic order, and the matrix of their counts.

        Parameters
        ----------
        min_df : int
            Terms in fewer documents are left out.

        Returns
        -------
        list of str
        csr_array of shape (n_documents, n_terms), float32
        """
        from scipy import sparse

        terms = np.array(list(self._places), dtype=object)
        indices = np.concatenate([*self._indices, np.zeros(0, np.int32)])
        frequency = np.bincount(indices, minlength=len(terms))
        kept = np.flatnonzero(frequency >= min_df)
        kept = kept[np.argsort(terms[kept], kind="stable")] if kept.size else kept
        target = np.full(len(terms), -1, dtype=np.int32)
        target[kept] = np.arange(len(kept))
        places, stays = target[indices], target[indices] >= 0
        rows = np.repeat(np.arange(len(self._sizes)), self._sizes)[stays]
        sizes = np.bincount(rows, minlength=len(self._sizes))
        data = np.concatenate([*self._counts, np.zeros(0, np.float32)])[stays]
        indptr = np.concatenate([[0], np.cumsum(sizes)])
        shape = (len(self._sizes), len(kept))
        counts = sparse.csr_array((data, places[stays], indptr), shape=shape)
        counts.sort_indices()
        return [str(term) for term in terms[kept]], counts


class Counted(NamedTuple):
    """Counts of the known terms of some texts, and the unknown ones of each."""

    counts: Any
    unknown: list[list[str]]


def count_known(
    texts: Sequence[str], analyzer: Analyzer, find: Callable[[Sequence[str]], NDArray[np.int64]]
) -> Counted:
    """Count the terms of texts that are known.

    Parameters
    ----------
    texts : sequence of str
    analyzer : callable
        From a text to its terms.
    find : callable
        The `find` of the terms' `Labels`.

    Returns
    -------
    Counted
        The counts of all terms, known or not, are rows of a triple (data, indices, indptr).

    Raises
    ------
    DataError
        If one of the texts is no text.
    """
    data: list[NDArray[np.float32]] = [np.zeros(0, np.float32)]
    indices: list[NDArray[np.int64]] = [np.zeros(0, np.int64)]
    indptr, unknown = [0], []
    for number, text in enumerate(texts):
        terms = Counter(analyzer(checked_text(text, number)))
        names, counts = list(terms), np.array(list(terms.values()), dtype=np.float32)
        places = find(names)
        known = places >= 0
        order = np.argsort(places[known])
        data.append(counts[known][order])
        indices.append(places[known][order])
        indptr.append(indptr[-1] + int(known.sum()))
        unknown.append([names[i] for i in np.flatnonzero(~known)])
    return Counted((np.concatenate(data), np.concatenate(indices), np.array(indptr)), unknown)


def checked_text(text: Any, number: int, noun: str = "Document") -> str:
    """Return what must be a text.

    Raises
    ------
    DataError
        If it is none, or has a half of a surrogate pair, which is no character.
    """
    if not isinstance(text, str):
        raise DataError(f"{noun} {number} (from 0) must be a text; got {type(text).__name__}.")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise DataError(
                f"{noun} {number} (from 0) must be a text in Unicode; {text[error.start]!r}, at "
                f"character {error.start}, is none of its characters."
            ) from None
    return text

"""Words of documents, counted and weighted."""

from __future__ import annotations

import re
import unicodedata
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import chain, pairwise
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.base import clone
from sklearn.feature_extraction.text import CountVectorizer

from recsys.data.ids import Ids
from recsys.errors import DataError

TOKEN_PATTERN = r"(?u)\b\w\w+\b"
"""scikit-learn's: two or more letters, digits or underscores, of any alphabet."""

WEIGHTINGS = ("tfidf", "log-entropy", "count")

StopWords = str | Sequence[str] | None
Floats = NDArray[np.floating[Any]]
Float64s = NDArray[np.float64]

_PLAIN_WORDS = re.compile(TOKEN_PATTERN)
# Thai and Lao, Burmese, Khmer, Japanese syllables, Chinese characters.
_UNSPACED = (
    "\u0e01-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3041-\u30ff\u31f0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
_UNSPACED_RUN = re.compile(f"[{_UNSPACED}]+")
_JOINERS = "\u200c\u200d"
_LAST_MARK = 0x1FFFF  # beyond it are variation selectors only


def words_of(text: str) -> list[str]:
    """Return the words of a text, in its own capital and small letters.

    Examples
    --------
    >>> words_of("A nurse, 24 years")
    ['nurse', '24', 'years']
    >>> words_of("\u559d\u8336 tea")  # two Chinese characters are one pair
    ['\u559d\u8336', 'tea']
    """
    text = normalised(text)
    if _is_plain(text):
        return _PLAIN_WORDS.findall(text)
    words: list[str] = []
    end = 0
    for run in _UNSPACED_RUN.finditer(text):
        words += _spaced_words().findall(text, end, run.start())
        characters = run.group()
        words += [first + second for first, second in pairwise(characters)] or [characters]
        end = run.end()
    words += _spaced_words().findall(text, end)
    return words


def normalised(text: str) -> str:
    """Return a text in Unicode's composed form (NFKC), in which words are compared."""
    return text if text.isascii() else unicodedata.normalize("NFKC", text)


def _is_plain(text: str) -> bool:
    """Return whether a text has neither marks nor scripts without spaces; most have neither."""
    if text.isascii():
        return True
    letters = set(text)
    return letters.isdisjoint(_marks()) and not any(map(_UNSPACED_RUN.match, letters))


@cache
def _marks() -> frozenset[str]:
    """Return the marks that belong to the letter before them."""
    points = map(chr, range(0x300, _LAST_MARK))
    return frozenset(c for c in points if unicodedata.category(c)[0] == "M") | {*_JOINERS}


@cache
def _spaced_words() -> re.Pattern[str]:
    """Return the pattern of a word with marks; regular expressions have no class for them."""
    return re.compile(rf"\w[\w{''.join(sorted(_marks()))}]+")


class Encoded(NamedTuple):
    """Weighted rows of texts, and the words of each text that are not known."""

    rows: Any
    unknown: list[list[str]]


class WordEncoder:
    """Counts of words, weighted by a named weighting; `read`, or the caller, sets `terms`."""

    def __init__(
        self,
        weighting: str,
        min_df: int = 1,
        stop_words: StopWords = None,
        token_pattern: str = TOKEN_PATTERN,
    ) -> None:
        if isinstance(min_df, bool) or not isinstance(min_df, int) or min_df < 1:
            raise DataError(f"min_df must be a positive integer; got {min_df!r}.")
        self._weighting_name = weighting
        self._min_df = min_df
        self._words = word_vectorizer(stop_words, token_pattern)
        self.terms: Ids
        self.weighting: Weighting
        self.n_words = 0

    def read(self, texts: Iterable[Sequence[str]]) -> Any:
        """Count the words of batches of texts.

        Raises
        ------
        DataError
            If there are no words, or none in `min_df` documents.
        """
        analyze = self._words.build_analyzer()
        n_texts = 0

        def words() -> Iterator[list[str]]:
            nonlocal n_texts
            for text in chain.from_iterable(texts):
                found = analyze(checked_text(text, n_texts))
                n_texts += 1
                self.n_words += len(found)
                yield found

        counter = CountVectorizer(analyzer=list, dtype=np.float32)
        try:
            counts = counter.fit_transform(words())
        except DataError:
            raise
        except ValueError:  # an empty vocabulary
            raise DataError(_no_terms(n_texts, 0, 1)) from None
        frequency = np.bincount(counts.indices, minlength=counts.shape[1])
        kept = np.flatnonzero(frequency >= self._min_df)
        if not len(kept):
            raise DataError(_no_terms(n_texts, self.n_words, self._min_df))
        self.terms = Ids(counter.get_feature_names_out()[kept].tolist(), "term", sort=False)
        return canonical_csr(counts[:, kept])

    def learn(self, counts: Any) -> Any:
        """Learn the global weights; return the weighted rows."""
        self.weighting = Weighting.learn(self._weighting_name, counts)
        return self.weighting.apply(counts)

    def weigh(self, counts: Any) -> Any:
        """Return the weighted rows of counts."""
        return self.weighting.apply(counts)

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Return the weighted rows of texts, and the words of each that are not known."""
        analyze, places = self._words.build_analyzer(), self._places
        data, indices, indptr, unknown = array("f"), array("q"), array("q", [0]), []
        for number, text in enumerate(texts):
            counts = Counter(analyze(checked_text(text, number)))
            known = sorted((places[word], n) for word, n in counts.items() if word in places)
            indices.extend(place for place, _ in known)
            data.extend(n for _, n in known)
            indptr.append(len(indices))
            unknown.append([word for word in counts if word not in places])
        rows = sparse.csr_array(
            (np.array(data, np.float32), np.array(indices, np.int64), np.array(indptr, np.int64)),
            shape=(len(texts), len(self.terms)),
        )
        return Encoded(self.weigh(rows), unknown)

    @cached_property
    def _places(self) -> dict[str, int]:
        """The place of each word; the vocabulary of a matrix may have capitals, texts have none."""
        terms = list(map(str, self.terms.values.to_list()))
        places = {term: place for place, term in enumerate(terms)}
        for place, term in enumerate(terms):
            places.setdefault(normalised(term.lower()), place)
        return places


class VectorizerEncoder:
    """Weights of a scikit-learn vectorizer; a copy of it is fitted."""

    n_words = 0
    terms: Ids

    def __init__(self, vectorizer: Any) -> None:
        self._vectorizer = clone(vectorizer)

    def read(self, texts: Iterable[Sequence[str]]) -> Any:
        """Fit the vectorizer to all texts at once."""
        rows = self._vectorizer.fit_transform(list(chain.from_iterable(texts)))
        names = getattr(self._vectorizer, "get_feature_names_out", None)
        self.terms = Ids(range(rows.shape[1]) if names is None else names(), "term", sort=False)
        return canonical_csr(rows)

    def learn(self, rows: Any) -> Any:
        """Return the rows as they are."""
        return rows

    weigh = learn

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Return the rows of texts, and the words unknown to a vectorizer with a vocabulary."""
        rows = canonical_csr(self._vectorizer.transform(list(texts)))
        known = getattr(self._vectorizer, "vocabulary_", None)
        if known is None:
            return Encoded(rows, [[] for _ in texts])
        analyze = self._vectorizer.build_analyzer()
        unknown = [[w for w in dict.fromkeys(analyze(text)) if w not in known] for text in texts]
        return Encoded(rows, unknown)


def make_encoder(weighting: Any, **settings: Any) -> WordEncoder | VectorizerEncoder:
    """Return the encoder of a weighting's name, or of a vectorizer.

    Raises
    ------
    DataError
        If `weighting` is neither.
    """
    if isinstance(weighting, str) and weighting in WEIGHTINGS:
        return WordEncoder(weighting, **settings)
    if callable(getattr(weighting, "fit_transform", None)) and not isinstance(weighting, type):
        return VectorizerEncoder(weighting)
    raise DataError(
        f"weighting must be one of {', '.join(map(repr, WEIGHTINGS))} or a scikit-learn "
        f"vectorizer; got {weighting!r}."
    )


def _no_terms(n: int, n_words: int, min_df: int) -> str:
    documents = "the document" if n == 1 else f"any of the {n:,} documents"
    if not n_words:
        return f"There are no words in {documents}; by default a word has two letters or more."
    return f"No word is in min_df={min_df} documents or more; choose a smaller min_df."


def word_vectorizer(stop_words: StopWords, token_pattern: str) -> CountVectorizer:
    """Return a vectorizer whose analyzer splits a text into its words, in small letters.

    With the default pattern the words are those of `words_of`.

    Raises
    ------
    DataError
        If the stop words or the pattern cannot be used.
    """
    listed = stop_words if stop_words is None or isinstance(stop_words, str) else list(stop_words)
    by_default = token_pattern == TOKEN_PATTERN
    tokens = {"tokenizer": words_of} if by_default else {"token_pattern": token_pattern}
    try:
        vectorizer = CountVectorizer(stop_words=listed, **tokens)
        vectorizer.build_analyzer()("")
    except (re.error, TypeError, ValueError) as error:
        raise DataError(
            "stop_words must be None, 'english' or a list of words, and token_pattern a regular "
            f"expression; {error}."
        ) from None
    return vectorizer


def checked_text(text: Any, number: int, noun: str = "Document") -> str:
    """Return a text, checked.

    Raises
    ------
    DataError
        If it is not a string, or has an unpaired surrogate.
    """
    if not isinstance(text, str):
        raise DataError(f"{noun} {number} (from 0) must be a text; got {type(text).__name__}.")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise DataError(
                f"{noun} {number} (from 0) must be valid Unicode; character {error.start} is the "
                f"unpaired surrogate {text[error.start]!r}."
            ) from None
    return text


@dataclass(frozen=True, eq=False)
class Weighting:
    """Weighting of counts, with the global weights of terms.

    ==============  ================================  ==========================================
    name            weight of a count c               global weight of a term
    ==============  ================================  ==========================================
    ``tfidf``       1 + ln c (c itself below 1)       ln((1 + n) / df), df of n documents have it
    ``log-entropy`` ln(1 + c)                         1 + sum p ln p / ln n, p = its shares
    ``count``       c                                 1
    ==============  ================================  ==========================================

    References
    ----------
    Dumais (1991), "Improving the retrieval of information from external sources", for the
    weightings and their effect on latent semantic indexing.
    """

    name: str
    term_weights: Float64s

    @classmethod
    def learn(cls, name: str, counts: Any) -> Self:
        """Learn the global weights from counts, a csr_array of shape (n_documents, n_terms).

        Raises
        ------
        DataError
            If a count is negative and the weighting takes logarithms.
        """
        if name != "count" and counts.nnz and counts.data.min() < 0:
            raise DataError(
                f"The weighting {name!r} needs counts, which are not negative; "
                f"got {counts.data.min():g}. Negative values in data need weighting='count'."
            )
        return cls(name, _GLOBAL[name](counts))

    def apply(self, counts: Any) -> Any:
        """Return the weighted matrix.

        Rows have length 1 (except empty ones), so that long documents do not dominate the
        decomposition; those of "count" are not scaled.
        """
        weighted = counts.copy()
        weights = self.term_weights[weighted.indices]
        weighted.data = (_LOCAL[self.name](counts.data) * weights).astype(counts.dtype)
        if self.name != "count":
            norms = row_norms(weighted)
            inverse = np.divide(1.0, norms, out=np.zeros_like(norms), where=norms > 0)
            weighted.data *= np.repeat(inverse, np.diff(weighted.indptr)).astype(counts.dtype)
        return weighted


def row_norms(csr: Any) -> Float64s:
    """Return the length of each row of a CSR matrix."""
    return np.asarray(sparse.linalg.norm(csr.astype(np.float64), axis=1), np.float64)


def canonical_csr(matrix: Any) -> Any:
    """Return a CSR array of its own memory, with sorted indices, no duplicates, no stored zeros."""
    csr = sparse.csr_array(matrix)
    if not np.issubdtype(csr.dtype, np.floating):
        csr = csr.astype(np.float64)
    # A new array checks the order: scikit-learn's vectorizers mark unsorted matrices as sorted.
    parts = (csr.data.copy(), csr.indices.copy(), csr.indptr.copy())
    fresh = sparse.csr_array(parts, shape=csr.shape)
    fresh.sum_duplicates()
    fresh.eliminate_zeros()
    return fresh


def _entropy(counts: Any) -> Float64s:
    terms, data = counts.indices, counts.data.astype(np.float64)
    sums = np.bincount(terms, weights=data, minlength=counts.shape[1])
    shares = data / sums[terms]
    information = np.bincount(terms, weights=shares * np.log(shares), minlength=counts.shape[1])
    if counts.shape[0] < 2:
        return np.ones(counts.shape[1])
    weights: Float64s = 1 + information / np.log(counts.shape[0])
    weights[weights <= counts.shape[0] * np.finfo(np.float64).eps] = 0  # rounding has no meaning
    return weights


_LOCAL: dict[str, Callable[[Floats], Floats]] = {
    # 1 + ln c, continued below 1 by c, to which it is tangent
    "tfidf": lambda c: np.where(c >= 1, 1 + np.log(np.maximum(c, 1)), c),
    "log-entropy": np.log1p,
    "count": lambda c: c,
}
_GLOBAL: dict[str, Callable[[Any], Float64s]] = {
    "tfidf": lambda counts: np.log(
        (1 + counts.shape[0])
        / np.maximum(np.bincount(counts.indices, minlength=counts.shape[1]), 1)
    ),
    "log-entropy": _entropy,
    "count": lambda counts: np.ones(counts.shape[1]),
}

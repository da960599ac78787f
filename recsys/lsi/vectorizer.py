"""Words of documents, counted and weighted."""

from __future__ import annotations

import re
import unicodedata
from abc import ABC, abstractmethod
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from recsys.errors import DataError
from recsys.lsi.labels import Labels

__all__ = [
    "TOKEN_PATTERN",
    "WEIGHTINGS",
    "Analyzer",
    "Counted",
    "Encoded",
    "NamedEncoder",
    "TermEncoder",
    "VectorizerEncoder",
    "Vocabulary",
    "Weighting",
    "canonical_csr",
    "checked_text",
    "count_known",
    "make_analyzer",
    "make_encoder",
    "normalised",
    "row_norms",
    "words_of",
]

TOKEN_PATTERN = r"(?u)\b\w\w+\b"
"""scikit-learn's: two or more letters, digits or underscores, of any alphabet."""

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
        words += _pairs(run.group())
        end = run.end()
    words += _spaced_words().findall(text, end)
    return words


def normalised(text: str) -> str:
    """Return a text in the form in which words are compared, but for capitals."""
    return text if text.isascii() else unicodedata.normalize("NFKC", text)


def _pairs(run: str) -> Iterator[str]:
    if len(run) == 1:
        yield run
    for first, second in pairwise(run):
        yield first + second


def _is_plain(text: str) -> bool:
    """Whether a text has neither marks nor scripts without spaces; most have none."""
    if text.isascii():
        return True
    letters = set(text)
    return letters.isdisjoint(_marks()) and not any(map(_UNSPACED_RUN.match, letters))


@cache
def _marks() -> frozenset[str]:
    """Return what belongs to the letter before it."""
    points = map(chr, range(0x300, _LAST_MARK))
    return frozenset(c for c in points if unicodedata.category(c)[0] == "M") | {*_JOINERS}


@cache
def _spaced_words() -> re.Pattern[str]:
    """Return the pattern of a word with its marks, for which Python's expressions have no class."""
    return re.compile(rf"\w[\w{''.join(sorted(_marks()))}]+")


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


Analyzer = Callable[[str], Iterable[str]]


def make_analyzer(stop_words: Any, token_pattern: str) -> Analyzer:
    """Return scikit-learn's function from a text to its words, in small letters.

    With the default pattern the words are those of `recsys.lsi.vectorizer`.

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


Floats = NDArray[np.floating[Any]]
Float64s = NDArray[np.float64]

WEIGHTINGS = ("tfidf", "log-entropy", "count")


@dataclass(frozen=True, eq=False)
class Weighting:
    """A weighting with the global weights it has learnt.

    ==============  ================================  ==========================================
    name            weight of a count c               global weight of a term
    ==============  ================================  ==========================================
    ``tfidf``       1 + ln c (c itself below 1)       ln((1 + n) / df), df of n documents have it
    ``log-entropy`` ln(1 + c)                         1 + sum p ln p / ln n, p = its shares
    ``count``       c                                 1
    ==============  ================================  ==========================================

    Attributes
    ----------
    name : str
    term_weights : ndarray of shape (n_terms,), float64

    References
    ----------
    Dumais (1991), "Improving the retrieval of information from external sources", for the
    weightings and their effect on latent semantic indexing.
    """

    name: str
    term_weights: Float64s

    @classmethod
    def learn(cls, name: str, counts: Any) -> Self:
        """Learn the global weights from a matrix of counts.

        Parameters
        ----------
        name : {"tfidf", "log-entropy", "count"}
        counts : csr_array of shape (n_documents, n_terms)

        Raises
        ------
        DataError
            If a count is negative and the weighting takes logarithms.
        """
        if name != "count" and counts.nnz and counts.data.min() < 0:
            raise DataError(
                f"The weighting {name!r} needs counts, which are not negative; "
                f"got {counts.data.min():g}. Negative values in data are taken as they are "
                "with weighting='count'."
            )
        return cls(name, _GLOBAL[name](counts))

    def apply(self, counts: Any) -> Any:
        """Return the weighted matrix.

        Rows have length 1 (but for empty ones), so that long documents don't rule the
        decomposition; those of "count" are left as they are.
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
    rows = np.repeat(np.arange(csr.shape[0]), np.diff(csr.indptr))
    squares = csr.data.astype(np.float64) ** 2
    return np.sqrt(np.bincount(rows, weights=squares, minlength=csr.shape[0]))


def canonical_csr(matrix: Any) -> Any:
    """Return a CSR array of its own memory, with sorted indices, no duplicates, no stored zeros.

    The order of the indices is looked at, not believed: scikit-learn's vectorizers mark matrices as
    sorted that are not.
    """
    from scipy import sparse

    csr = sparse.csr_array(matrix)
    if not np.issubdtype(csr.dtype, np.floating):
        csr = csr.astype(np.float64)
    parts = (csr.data.copy(), csr.indices.copy(), csr.indptr.copy())
    fresh = sparse.csr_array(parts, shape=csr.shape)
    fresh.sum_duplicates()
    fresh.eliminate_zeros()
    return fresh


def _sublinear(counts: Floats) -> Floats:
    """1 + ln c, continued below 1 by c, to which it is tangent."""
    return np.where(counts >= 1, 1 + np.log(np.maximum(counts, 1)), counts)


def _inverse_frequency(counts: Any) -> Float64s:
    frequency = np.bincount(counts.indices, minlength=counts.shape[1])
    weights: Float64s = np.log((1 + counts.shape[0]) / np.maximum(frequency, 1))
    return weights


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
    "tfidf": _sublinear,
    "log-entropy": np.log1p,
    "count": lambda counts: counts,
}
_GLOBAL: dict[str, Callable[[Any], Float64s]] = {
    "tfidf": _inverse_frequency,
    "log-entropy": _entropy,
    "count": lambda counts: np.ones(counts.shape[1]),
}

"""Words of documents: tokenization, language, counts and weights."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import chain, pairwise
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from scipy import sparse

from lowrank.kernels.arrays import Floats, Int64s
from recsys.data.ids import Ids
from recsys.data.markup import plain_text
from recsys.errors import DataError, check_whole
from recsys.lsi.queries import Queries, Query
from recsys.lsi.space import Weighting
from recsys.messages import close_matches, did_you_mean

TOKEN_PATTERN = r"(?u)\b\w\w+\b"
"""scikit-learn's pattern: two or more letters, digits or underscores, of any alphabet."""

POWER = 0.5
"""Power of the length by which the weights of a document are divided: see `Weighting.apply`."""

_UNKNOWN = -1  # in place of the term of a word
_STOP = -2
_REMEMBERED = 1_000_000  # maximum number of words in the cache of terms
_PLAIN_WORDS = re.compile(TOKEN_PATTERN)
# Thai and Lao, Burmese, Khmer, Japanese syllables, Chinese characters.
_UNSPACED = (
    "\u0e01-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3041-\u30ff\u31f0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
_UNSPACED_RUN = re.compile(f"[{_UNSPACED}]+")
_WORD_CHARACTER = re.compile(
    "[\\w\U00020000-\U0003ffff]"
)  # with ideographs of later Unicode
_JOINERS = frozenset("\u200c\u200d")
_IGNORED = "\u00ad\u2060\ufeff"  # soft hyphen, word joiner, space of no width that does not break
# Joiners are part of the spelling in Arabic and Indic scripts, from U+0590 on.
_NEEDLESS_JOINERS = re.compile("(?<![\u0590-\U0003ffff])[\u200c\u200d]+")
_RAISED = frozenset("\u00b9\u00b2\u00b3\u2070\u2074\u2075\u2076\u2077\u2078\u2079")
_RAISED_NUMBER = re.compile(
    rf"(?<=[\w\u0300-\u036f]{{2}})[{''.join(sorted(_RAISED))}]+"
)
_LAST_MARK = 0x1FFFF  # beyond it are variation selectors only
_PLAIN_WORD = r"\b\w\w+\b"  # as `words_of` in texts of ASCII, for polars

_LANGUAGES = (
    "arabic catalan czech danish dutch english finnish french german greek hindi hungarian "
    "indonesian italian norwegian persian polish portuguese romanian russian spanish swedish "
    "turkish"
)
LANGUAGES = tuple(_LANGUAGES.split())
"""Languages with both stop words and a stemmer."""

StopWords = str | Iterable[str] | None

_ENOUGH = 1000  # number of words from which on a language can be detected
_LEAST = 0.12  # minimum share of stop words; in running text it is a third to a half
_RIVAL = 0.65  # maximum share of stop words of another language, relative to the first


def words_of(text: str) -> list[str]:
    """Return the words of a text, in lower case and in Unicode's compatibility form.

    A word is two or more letters, digits or underscores of any alphabet, with their marks. In
    scripts without spaces between words, it is a pair of characters. Other characters, such as
    the sign of a trademark, separate words, but soft hyphens and joiners do not. A raised number
    separates words after two or more letters, where it is mostly that of a note.

    Parameters
    ----------
    text : str

    Returns
    -------
    list of str
        The words in the order of the text, with repetitions.

    Examples
    --------
    >>> words_of("Acme\u2122 caf\u00e9, \uff11\uff10 \ufb01sh, \u559d\u8336")
    ['acme', 'caf\u00e9', '10', 'fish', '\u559d\u8336']
    """
    if text.isascii():
        return _PLAIN_WORDS.findall(text.lower())
    text = normalised(text)
    letters = set(text)
    # Most texts have neither marks nor scripts without spaces.
    if letters.isdisjoint(_marks()) and not any(map(_UNSPACED_RUN.match, letters)):
        return _PLAIN_WORDS.findall(text)
    words: list[str] = []
    end = 0
    for run in _UNSPACED_RUN.finditer(text):
        words += _spaced_words_in(text[end : run.start()])
        characters = run.group()
        pairs = [first + second for first, second in pairwise(characters)]
        words += pairs or [characters]
        end = run.end()
    return words + _spaced_words_in(text[end:])


def normalised(text: str) -> str:
    """Return a text with its words in lower case and compatibility form, for comparison.

    Compatibility forms (NFKC) of signs have letters, and some forms of letters have signs. So signs
    become spaces before, and again after.
    """
    if text.isascii():
        return text.lower()
    separate = _with_spaces(text)
    if not _RAISED.isdisjoint(separate):
        separate = _RAISED_NUMBER.sub(" ", separate)
    form = unicodedata.normalize("NFKC", separate)
    lower = unicodedata.normalize("NFKC", form.lower())
    if form != separate:
        lower = _with_spaces(lower)
    return lower if _JOINERS.isdisjoint(lower) else _NEEDLESS_JOINERS.sub("", lower)


def _with_spaces(text: str) -> str:
    """Return a text with spaces for signs beyond ASCII, and without soft hyphens."""
    if all(_CHARACTERS[ord(character)] == ord(character) for character in set(text)):
        return text
    return text.translate(_CHARACTERS)


class _Characters(dict[int, "int | None"]):
    """Replacement of each character in the search for words: itself, a space, or nothing."""

    def __missing__(self, point: int) -> int | None:
        character = chr(point)
        replacement: int | None = point
        if character in _IGNORED:
            replacement = None
        elif unicodedata.category(character) == "No":
            # A raised 2 can be a part of a word, but one half cannot.
            form = unicodedata.decomposition(character)
            if form and not form.startswith(("<super>", "<sub>")):
                replacement = ord(" ")
        elif not (
            character.isascii()
            or _WORD_CHARACTER.match(character)
            or character in _marks()
        ):
            replacement = ord(" ")
        self[point] = replacement
        return replacement


_CHARACTERS = _Characters()


def _spaced_words_in(text: str) -> list[str]:
    """Return the words of a text whose script has spaces between words."""
    words = _spaced_words().findall(text)
    words = [word.rstrip("\u200c\u200d") for word in words]
    return [word for word in words if len(word) > 1]


@cache
def _marks() -> frozenset[str]:
    """Return the marks that belong to the letter before them."""
    characters = map(chr, range(0x300, _LAST_MARK))
    marks = (c for c in characters if unicodedata.category(c).startswith("M"))
    return _JOINERS.union(marks)


@cache
def _spaced_words() -> re.Pattern[str]:
    """Return the pattern of a word with marks, which have no character class in `re`."""
    return re.compile(rf"\w[\w{''.join(sorted(_marks()))}]+")


class Tokenizer:
    """Function that splits a text into lower-case words, by default with `words_of`."""

    def __init__(self, token_pattern: str = TOKEN_PATTERN) -> None:
        self.is_default = token_pattern == TOKEN_PATTERN
        try:
            self._pattern = re.compile(token_pattern)
        except (re.error, TypeError) as error:
            raise DataError(
                f"token_pattern must be a regular expression; {error}."
            ) from None
        if self._pattern.groups > 1:
            groups = self._pattern.groups
            raise DataError(f"token_pattern must have at most one group; got {groups}.")

    def __call__(self, text: str) -> list[str]:
        """Return the words of a text, without its markup."""
        text = plain_text(text)
        return (
            words_of(text) if self.is_default else self._pattern.findall(text.lower())
        )


def word_frame(texts: pl.Series) -> pl.DataFrame:
    """Return the lower-case words of texts as a frame with columns row (of the text) and word.

    Tags and entities of HTML are not words.
    """
    marked = texts.str.contains("[<&]").fill_null(False).arg_true()
    if len(marked):
        plain_texts = [plain_text(text) for text in texts.gather(marked)]
        texts = texts.scatter(marked, plain_texts)
    rows = pl.DataFrame([pl.Series("row", np.arange(len(texts))), texts.alias("word")])
    is_plain = pl.col("word").str.len_bytes() == pl.col("word").str.len_chars()
    lower = pl.col("word").str.to_lowercase()
    plain = (
        rows.lazy()
        .filter(is_plain)
        .select("row", lower.str.extract_all(_PLAIN_WORD))
        .collect()
    )
    others = rows.filter(~is_plain)
    if len(others):
        words = [words_of(text) for text in others["word"]]
        others = others.with_columns(pl.Series("word", words, dtype=pl.List(pl.String)))
        plain = pl.concat([plain, others])
    return plain.explode("word").drop_nulls()


@dataclass(frozen=True)
class Language:
    """Stop words and stems of a language.

    `name` is one of `LANGUAGES`; without a name words are compared as they are written.
    """

    name: str | None = None
    stop_words: frozenset[str] = frozenset()

    @classmethod
    def named(cls, name: str | None, stop_words: StopWords = None) -> Language:
        """Return a language with `stop_words` in addition to its own."""
        words: frozenset[str] = frozenset()
        if isinstance(stop_words, Iterable) and not isinstance(stop_words, str | bytes):
            words = frozenset(map(str, stop_words))
        elif stop_words is not None:
            words = stop_words_of(stop_words)
        if name is not None:
            words |= stop_words_of(name)
        return cls(name, words)

    def stem(self, word: str) -> str | None:
        """Return the stem of a word, None for a stop word."""
        if word in self.stop_words:
            return None
        return word if self.name is None else _stemmer(self.name)(word)


@cache
def _stemmer(language: str) -> Callable[[str], str]:
    import Stemmer

    stem: Callable[[str], str] = Stemmer.Stemmer(language).stemWord
    return stem


def check_language(name: Any) -> None:
    """Check a language's name.

    Raises
    ------
    DataError
        If it is neither "auto", None nor one of `LANGUAGES`.
    """
    if name is not None and name != "auto" and name not in LANGUAGES:
        hint = did_you_mean(map(repr, close_matches(str(name), LANGUAGES, 2)))
        raise DataError(
            f"language must be 'auto', None, or one of {', '.join(LANGUAGES)}; got {name!r}.{hint}"
        )


@cache
def stop_words_of(language: str) -> frozenset[str]:
    """Return the stop words of a language, from scikit-learn for English, else from `stop_words`.

    Raises
    ------
    DataError
        If the language is not one of `LANGUAGES`.
    """
    if language == "english":
        from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

        return frozenset(ENGLISH_STOP_WORDS)
    if not isinstance(language, str) or language not in LANGUAGES:
        raise DataError(
            "stop_words must be None, a list of words, or one of "
            f"{', '.join(map(repr, LANGUAGES))}; got {language!r}."
        )
    from stop_words import get_stop_words

    return frozenset(get_stop_words(language))


def detect(counts: Mapping[str, float]) -> str | None:
    """Return the language of a collection by its counts of words, None if it is not clear.

    It is the language with the largest share of stop words, if this share is large enough and those
    of all other languages are clearly smaller. The language is not clear between closely related
    languages, such as Danish and Norwegian, or in texts without sentences, such as product names.

    Examples
    --------
    >>> detect({"the": 300, "of": 200, "nurse": 500, "hospital": 400})
    'english'
    """
    total = sum(counts.values())
    if total < _ENOUGH:
        return None
    shares = {
        language: sum(counts.get(word, 0) for word in stop_words_of(language)) / total
        for language in LANGUAGES
    }
    best, second = sorted(shares, key=lambda name: -shares[name])[:2]
    is_clear = shares[best] >= _LEAST and shares[second] <= _RIVAL * shares[best]
    return best if is_clear else None


class Encoded(NamedTuple):
    """Weighted rows of texts, the unknown words of each, and the counts of the known ones."""

    rows: Any
    unknown: list[list[str]]
    counts: Any = None


class WordEncoder:
    """Counts of words, weighted by a named weighting; `read`, or the caller, sets `terms`.

    Words with the same stem are one term, named after the most frequent of them.
    """

    def __init__(
        self,
        weighting: str,
        min_df: int = 1,
        stop_words: StopWords = None,
        token_pattern: str = TOKEN_PATTERN,
        language: str | None = None,
    ) -> None:
        check_language(language)
        self._weighting_name = weighting
        self._min_df = check_whole("min_df", min_df, 1)
        self._stop_words = stop_words
        self._tokenize = Tokenizer(token_pattern)
        self._is_detected = language == "auto"
        self.language = Language.named(
            None if self._is_detected else language, stop_words
        )
        self._remembered: dict[str, int] = {}
        self.terms: Ids
        self.weighting: Weighting

    def read(self, texts: Iterable[Sequence[str]]) -> Any:
        """Count the words of batches of texts; with "auto", detect the language.

        Raises
        ------
        DataError
            If there are words, but none in `min_df` documents.
        """
        counts, words = _word_counts(chain.from_iterable(texts), self._tokenize)
        if self._is_detected:
            totals = counts.sum(axis=0, dtype=np.float64).tolist()
            language = detect(dict(zip(words, totals, strict=True)))
            self.language = Language.named(language, self._stop_words)
        names, merged = self._merged(counts, words)
        if not names and counts.nnz and self._min_df > 1:
            raise DataError(
                f"No word is in at least min_df={self._min_df} documents; choose a smaller min_df."
            )
        self.terms = Ids(names, "term", sort=False)
        return merged

    def _merged(self, counts: Any, words: list[str]) -> tuple[list[str], Any]:
        """Return the terms, words with the same stem in `min_df` texts, and their counts."""
        columns: dict[str, int] = {}  # of stems
        names: list[str] = []
        column_of_word = np.full(len(words), -1)
        totals = counts.sum(axis=0, dtype=np.float64)
        most_frequent_first = np.argsort(-totals, kind="stable")
        for word in most_frequent_first.tolist():
            stem = self.language.stem(words[word])
            if stem is None:
                continue
            if stem not in columns:
                columns[stem] = len(columns)
                names.append(words[word])
            column_of_word[word] = columns[stem]
        merged = _with_columns(counts, column_of_word, len(names))
        frequency = np.bincount(merged.indices, minlength=len(names)).tolist()
        frequent = [at for at in range(len(names)) if frequency[at] >= self._min_df]
        order = sorted(frequent, key=names.__getitem__)
        target = np.full(len(names), -1)
        target[order] = np.arange(len(order))
        terms = [names[column] for column in order]
        return terms, _with_columns(merged, target, len(order))

    def learn(self, counts: Any) -> Any:
        """Learn the global weights; return the weighted rows."""
        self.weighting = Weighting.learn(self._weighting_name, counts, POWER)
        return self.weighting.apply(counts)

    def weigh(self, counts: Any) -> Any:
        """Return the weighted rows of counts."""
        return self.weighting.apply(counts)

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Return the weighted rows of texts, and the unknown words of each."""
        counts, unknown = zip(*map(self.count, texts), strict=True)
        pairs = [sorted(count_of_term.items()) for count_of_term in counts]
        indices = np.array([term for of_text in pairs for term, _ in of_text], np.int32)
        data = np.array(
            [count for of_text in pairs for _, count in of_text], np.float32
        )
        indptr = np.cumsum([0, *map(len, pairs)])
        shape = (len(texts), len(self.terms))
        rows = sparse.csr_array((data, indices, indptr), shape=shape)
        return Encoded(self.weigh(rows), [*unknown], rows)

    def new_terms(self, texts: Sequence[Sequence[str]]) -> tuple[list[str], Any]:
        """Return the terms of unknown words of texts, in alphabetic order, and their counts."""
        counts, words = _word_counts(texts, list)
        return self._merged(counts, words)

    def extended(self, names: Sequence[str]) -> WordEncoder:
        """Return an encoder with further terms, which have no weight in the dimensions."""
        encoder = copy(self)
        encoder.__dict__.pop("_term_of_stem", None)
        encoder._remembered = {}
        encoder.terms = Ids([*self.terms.values.to_list(), *names], "term", sort=False)
        weights = np.pad(self.weighting.term_weights, (0, len(names)))
        encoder.weighting = replace(self.weighting, term_weights=weights)
        return encoder

    def queries(self, texts: Sequence[str], is_single: bool) -> Queries:
        """Return texts as queries."""
        queries = []
        for text in texts:
            count_of_term, unknown = self.count(text)
            # Terms of added documents come last; scores are summed in the order of a new index.
            in_order = sorted(count_of_term, key=self.terms.values.item)
            terms = np.array(in_order, np.int64)
            counts = np.array([count_of_term[term] for term in in_order], np.float64)
            weights = self.query_weights(terms, counts)
            queries.append(Query(terms, counts, weights, unknown))
        return Queries([*texts], queries, is_single)

    def query_weights(self, terms: Int64s, counts: Floats) -> Floats:
        """Return the weights of the terms of a query."""
        return self.weighting.of_query(terms, counts)

    def count(self, text: str) -> tuple[dict[int, float], list[str]]:
        """Return the counts of the terms of a text, and its unknown words."""
        counts = dict[int, float]()
        unknown = list[str]()
        for word, n in Counter(self._tokenize(text)).items():
            term = self._term_of(word)
            if term >= 0:
                counts[term] = counts.get(term, 0) + n
            elif term == _UNKNOWN:
                unknown += [word] * n
        return counts, unknown

    def _term_of(self, word: str) -> int:
        """Return the term of a word, `_UNKNOWN` or `_STOP`."""
        term = self._remembered.get(word)
        if term is None:  # stems take most of the time of an addition
            stem = self.language.stem(word)
            term = _STOP if stem is None else self._term_of_stem.get(stem, _UNKNOWN)
            if len(self._remembered) < _REMEMBERED:
                self._remembered[word] = term
        return term

    @cached_property
    def _term_of_stem(self) -> dict[str, int]:
        """The term of each stem, in lower case: the vocabulary of a matrix may have capitals."""
        names = list(map(str, self.terms.values.to_list()))
        terms: dict[str, int] = {}
        if not self.language.name:
            terms = {name: term for term, name in enumerate(names)}
        for term, name in enumerate(names):
            stem = self.language.stem(normalised(name))
            terms.setdefault(name if stem is None else stem, term)
        return terms


def _word_counts(
    texts: Iterable[Any], analyzer: Callable[[Any], list[str]]
) -> tuple[Any, list[str]]:
    """Return the counts of words in texts, and the words in alphabetic order."""
    # Imported here, because searching does not need it.
    from sklearn.feature_extraction.text import CountVectorizer

    counter = CountVectorizer(analyzer=analyzer, dtype=np.float32)
    try:
        counts = sparse.csr_array(counter.fit_transform(texts))
    except ValueError as error:
        if "empty vocabulary" not in str(error):
            raise
        return sparse.csr_array((0, 0), dtype=np.float32), []
    return counts, counter.get_feature_names_out().tolist()


def _with_columns(
    counts: Any,
    target: Int64s,
    n: int,
) -> Any:
    """Return counts in n columns; column j is the sum of those with target j, -1 drops a column."""
    columns = target.astype(np.int32)[counts.indices]
    inside = columns >= 0
    indptr = np.append(0, np.cumsum(inside))[counts.indptr]
    csr = counts.data[inside], columns[inside], indptr
    merged = sparse.csr_array(csr, shape=(counts.shape[0], n))
    merged.sum_duplicates()
    return merged


def checked_text(
    text: Any,
    number: int,
    noun: str = "Document",
) -> str:
    """Check that `text` is a valid text, and return it.

    Raises
    ------
    DataError
        If it is not a string, or has an unpaired surrogate.
    """
    if not isinstance(text, str):
        raise DataError(
            f"{noun} {number} (from 0) must be a text; got {type(text).__name__}."
        )
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise DataError(
                f"{noun} {number} (from 0) must be valid Unicode; character {error.start} is the "
                f"unpaired surrogate {text[error.start]!r}."
            ) from None
    return text

"""Languages of texts: stop words, stems, and which language a collection is in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

from recsys.errors import DataError
from recsys.messages import close_matches, did_you_mean

LANGUAGES = (
    *("arabic", "catalan", "czech", "danish", "dutch", "english", "finnish", "french", "german"),
    *("greek", "hindi", "hungarian", "indonesian", "italian", "norwegian", "persian", "polish"),
    *("portuguese", "romanian", "russian", "spanish", "swedish", "turkish"),
)
"""Languages with both stop words and a stemmer."""

StopWords = str | Iterable[str] | None

_ENOUGH = 1000  # words from which on a collection shows its language
_LEAST = 0.12  # of all words that must be stop words: in running text a third to a half are
_RIVAL = 0.65  # of that share that another language may reach


@dataclass(frozen=True)
class Language:
    """Stop words of texts, and the stems by which words count as the same.

    Without a name, one of `LANGUAGES`, words are compared as they are written.
    """

    name: str | None = None
    stop_words: frozenset[str] = frozenset()

    @classmethod
    def of(cls, name: str | None, stop_words: StopWords = None) -> Language:
        """Return a language; `stop_words` are left out in addition to its own.

        Raises
        ------
        DataError
            If the language is unknown, or the stop words are neither a language nor a list.
        """
        own: frozenset[str] = frozenset()
        if isinstance(stop_words, str):
            own = stop_words_of(stop_words)
        elif stop_words is not None:
            own = frozenset(map(str, stop_words))
        return cls(name, own if name is None else own | stop_words_of(name))

    def __reduce__(self) -> tuple[Any, ...]:  # a stemmer has no pickled form
        return Language, (self.name, self.stop_words)

    def stem(self, word: str) -> str | None:
        """Return what a word counts as, None for a stop word."""
        return None if word in self.stop_words else self._stem(word)

    @cached_property
    def _stem(self) -> Callable[[str], str]:
        if self.name is None:
            return str
        import Stemmer

        stem: Callable[[str], str] = Stemmer.Stemmer(self.name).stemWord
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
    """Return the stop words of a language: scikit-learn's in English, else of `stop_words`.

    Raises
    ------
    DataError
        If the language is not one of `LANGUAGES`.
    """
    if language == "english":
        from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

        return frozenset(ENGLISH_STOP_WORDS)
    if language not in LANGUAGES:
        raise DataError(
            "stop_words must be None, a list of words, or one of "
            f"{', '.join(map(repr, LANGUAGES))}; got {language!r}."
        )
    from stop_words import get_stop_words

    return frozenset(get_stop_words(language))


def detect(counts: Mapping[str, float]) -> str | None:
    """Return the language of a collection by its counts of words, None where it is not clear.

    It is the one whose stop words make up most of the running text, if they are many and those of
    every other language are clearly fewer. Closely related languages, such as Danish and Norwegian,
    and texts without sentences, such as names of products, are not clear.

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

"""The words of a text, in any script: what the default token pattern means beyond ASCII.

scikit-learn's pattern of a word, two or more letters or digits, knows no combining marks, so that
it breaks the words of Hindi or of decomposed French at each mark, and takes a Chinese sentence for
a single word. Here

- texts are normalised (NFKC), so that composed and decomposed accents, wide and narrow forms and
  ligatures are the same;
- marks and joiners belong to the letter before them;
- runs of scripts without spaces between words are taken as their overlapping pairs of characters, a
  single character as itself.

On ASCII, nothing is different from scikit-learn.

References
----------
Unicode Standard Annex #15, "Unicode normalization forms". Nie, Gao, Zhang & Zhou (2000), "On the
use of words and n-grams for Chinese information retrieval", for pairs of characters.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from functools import cache
from itertools import pairwise

__all__ = ["TOKEN_PATTERN", "normalised", "words_of"]

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

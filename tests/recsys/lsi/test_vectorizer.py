"""What a word is, in every script."""

from __future__ import annotations

import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.feature_extraction.text import CountVectorizer

from recsys.lsi import LSI, words_of
from recsys.lsi.vectorizer import Tokenizer


@given(st.text(st.characters(codec="ascii")))
def test_ascii_words_equal_scikit_learn(text):
    assert Tokenizer()(text) == CountVectorizer().build_analyzer()(text)


@given(st.text())
def test_of_any_text_they_have_two_letters_or_stand_for_one(text):
    words = words_of(text)
    assert all(len(word) > 1 or not word.isascii() for word in words)
    assert words_of(" ".join(words)) == words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("e\u0301cole a\u0300 Paris", ["\u00e9cole", "paris"]),
        ("हिन्दी में", ["हिन्दी", "में"]),
        ("می\u200cخواهم", ["می\u200cخواهم"]),
        ("iPhone手机 很好用 茶", ["iphone", "手机", "很好", "好用", "茶"]),
        ("한국어 검색", ["한국어", "검색"]),
        ("ﬁsh x² ＡＢＣ", ["fish", "x2", "abc"]),
        ("👩\u200d🚀 space", ["space"]),
        ("The Acme\u2122 toaster", ["the", "acme", "toaster"]),
        ("co\u00adope\u2060rate, Zu\u200dsage\u200d", ["cooperate", "zusage"]),
        ("\u0645\u06cc\u200c", ["\u0645\u06cc"]),
        ("As Smith\u00b9 says", ["as", "smith", "says"]),
        (
            "11\u00bd cups of H\u2082O and CO\u2082",
            ["11", "cups", "of", "h2o", "and", "co2"],
        ),
        ("\U0001d412\U0001d41a\U0001d425\U0001d41e \u2163", ["sale", "iv"]),
        (
            "don\u2019t AT&T e-mail v1.5 a_b me@home",
            ["don", "at", "mail", "v1", "a_b", "me", "home"],
        ),
    ],
)
def test_marks_belong_to_letters_and_unspaced_scripts_come_in_pairs(text, words):
    assert words_of(text) == words


def is_sign(character):
    """Return whether a character is no letter, mark or digit, and does not join letters."""
    joins = character in "_\u00ad\u200c\u200d\u2060\ufeff"
    return unicodedata.category(character)[0] not in "LMN" and not joins


BLOCK = 4096
# No character is assigned from 0x40000 to 0xE0000, and all are private from 0xF0000.
BLOCKS = [
    *(start for start in range(0, 0x41000, BLOCK) if not 0xD800 <= start < 0xE000),
    *(0xE0000, 0xF0000, sys.maxunicode + 1 - BLOCK),
]
# Chinese characters alone, the first of them standing for all.
CHINESE = [*range(0x5000, 0x9000, BLOCK), *range(0x21000, 0x3F000, BLOCK)]


@pytest.mark.parametrize(
    "start",
    [
        pytest.param(start, marks=[pytest.mark.long] if start in CHINESE else [])
        for start in BLOCKS
    ],
)
def test_no_sign_joins_a_word_and_no_word_has_a_capital(start):
    characters = list(map(chr, range(start, start + BLOCK)))
    signs = list(filter(is_sign, characters))
    assert words_of(" ".join(f"Acme{sign}" for sign in signs)).count("acme") == len(
        signs
    )
    assert words_of(" ".join(f"{sign}Acme" for sign in signs)).count("acme") == len(
        signs
    )
    assert words_of("".join(f"Acme{sign}" for sign in signs)).count("acme") == len(
        signs
    )
    words = words_of(" ".join(f"a{character}b" for character in characters))
    assert [word for word in words if word != word.lower()] == []
    assert [word for word in words if any(map(str.isupper, word))] == []
    assert words_of(" ".join(words)) == words


def test_a_word_before_a_sign_is_found():
    texts = ["The Acme\u2122 toaster", "A kettle boils", "Kettle\u2120 and more"]
    index = LSI(2, language=None).fit(texts)
    for method in ("bm25", "hybrid"):
        for query in ("acme", "Acme\u2122", "ACME\u00ae"):
            assert index.query(query, n=1, method=method)["document"].to_list() == [0]

"""What a word is, in every script."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.feature_extraction.text import CountVectorizer

from recsys.lsi.vectorizer import Tokenizer, words_of


@given(st.text(st.characters(codec="ascii")))
def test_in_ascii_they_are_those_of_scikit_learn(text):
    assert Tokenizer()(text) == CountVectorizer().build_analyzer()(text)


@given(st.text())
def test_of_any_text_they_have_two_letters_or_stand_for_one(text):
    words = words_of(text)
    assert all(len(word) > 1 or not word.isascii() for word in words)
    assert words_of(" ".join(words)) == words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("e\u0301cole a\u0300 Paris", ["\u00e9cole", "Paris"]),
        ("हिन्दी में", ["हिन्दी", "में"]),
        ("می\u200cخواهم", ["می\u200cخواهم"]),
        ("iPhone手机 很好用 茶", ["iPhone", "手机", "很好", "好用", "茶"]),
        ("한국어 검색", ["한국어", "검색"]),
        ("ﬁsh x² ＡＢＣ", ["fish", "x2", "ABC"]),
        ("👩\u200d🚀 space", ["space"]),
    ],
)
def test_marks_belong_to_letters_and_unspaced_scripts_come_in_pairs(text, words):
    assert words_of(text) == words

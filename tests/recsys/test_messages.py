"""Texts that resemble one another, found as difflib finds them, but in bounded time."""

from __future__ import annotations

import difflib
import random

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recsys import messages
from recsys.messages import close_matches, is_out_of_memory

WORDS = st.text("abc", max_size=8)


@given(WORDS, st.lists(WORDS, max_size=30), st.integers(1, 4))
def test_as_difflib(text, others, n):
    assert close_matches(text, others, n) == difflib.get_close_matches(text, others, n)


@pytest.mark.parametrize("length", [100, 1000, 20_000])
def test_only_so_many_are_looked_at(monkeypatch, length):
    """A hundred thousand titles of two hundred letters took ten minutes, two long ids for ever."""
    compared = []
    ratio = difflib.SequenceMatcher.ratio

    def noted(matcher: difflib.SequenceMatcher[str]) -> float:
        compared.append(len(matcher.a) * len(matcher.b))
        return ratio(matcher)

    monkeypatch.setattr(difflib.SequenceMatcher, "ratio", noted)
    monkeypatch.setattr(messages, "_WORK", 3_000_000)
    letters = random.Random(0)
    others = ("".join(letters.choices("ab", k=length)) for _ in range(100_000))
    close_matches("ab" * (length // 2), others, 3)
    assert sum(compared) <= 3_000_000
    assert next(others, None) is not None


def test_texts_of_the_same_length_that_are_not_alike_count_as_work(monkeypatch):
    monkeypatch.setattr(messages, "_WORK", 25)
    assert close_matches("abcde", ["vwxyz"] * 5 + ["abcdx"], 1) == []
    monkeypatch.setattr(messages, "_WORK", 100)
    assert close_matches("abcde", ["vwxyz"] * 5 + ["abcdx"], 1) == ["abcdx"]


@pytest.mark.parametrize(
    ("name", "there", "meant"),
    [
        ("rating.csv", ["ratings.csv", "ratings.parquet", "x.csv"], "ratings.csv"),
        ("ratings.cs", ["ratings.csv", "ratings.zip"], "ratings.csv"),
        ("mdoel", ["model", ".model.tmp"], "model"),
        ("nope.csv", ["o.csv", ".csv", "one.csv"], None),
    ],
)
def test_file_names_are_compared_without_suffix(tmp_path, name, there, meant):
    for each in there:
        (tmp_path / each).touch()
    hint = f" Did you mean {tmp_path / meant}?" if meant else ""
    sentence = f"There is no file or directory {tmp_path / name}.{hint}"
    assert messages.nothing_at(tmp_path / name) == sentence


def test_tells_memory_errors_that_libraries_replace():
    replaced = SystemError("partition returned a result with an exception set")
    assert not is_out_of_memory(replaced)
    replaced.__cause__ = MemoryError()
    assert is_out_of_memory(replaced)
    of_zstd = "parquet: zstd error: Allocation error : not enough memory"
    assert is_out_of_memory(pl.exceptions.ComputeError(of_zstd))

"""Words that stand in the same places come close."""

import numpy as np
import pytest

from recsys.errors import DataError, NotFittedError, UnknownIdError
from recsys.lsi import LSI, Eigenwords
from recsys.lsi.eigenwords import word_contexts

PEOPLE = {"doctor", "nurse", "cook", "baker"}


@pytest.mark.parametrize("scaling", ["ppmi", "sqrt"])
def test_a_nurse_is_like_those_who_do_the_same_not_like_the_place(everyday, scaling):
    words = Eigenwords(10, scaling=scaling).fit(everyday)
    assert set(words.nearest("nurse", n=3)["similar"]) == PEOPLE - {"nurse"}
    assert words.nearest("hospital", n=1)["similar"].to_list() == ["kitchen"]


def test_in_documents_a_nurse_is_like_the_place(everyday):
    documents = LSI(5, stop_words="english").fit(everyday)
    assert "hospital" in documents.similar_terms("nurse", n=2)["similar"].to_list()


def test_contexts_are_counted_by_place_or_together():
    words, ends = np.array([0, 1, 2, 0, 1]), np.array([3, 5])  # "a b c", "a b"
    apart = word_contexts(words, ends, 3, 1, "apart").toarray()
    before, after = apart[:, :3], apart[:, 3:]
    np.testing.assert_array_equal(before, [[0, 0, 0], [2, 0, 0], [0, 1, 0]])
    np.testing.assert_array_equal(after, before.T)
    merged = word_contexts(words, ends, 3, 1, "merged").toarray()
    np.testing.assert_array_equal(merged, before + after)


def test_a_window_of_two_reaches_over_a_word_but_not_over_the_end_of_a_text():
    words, ends = np.array([0, 1, 2, 3]), np.array([3, 4])
    merged = word_contexts(words, ends, 4, 2, "merged").toarray()
    assert merged[0].tolist() == [0, 1, 1, 0]
    assert merged[3].tolist() == [0, 0, 0, 0]


def test_words_passed_over_keep_their_places():

    with pytest.raises(DataError, match="No word has another word in its window"):
        Eigenwords(1, window=1, min_count=2).fit(["tea hot milk", "tea cold milk"])
    both = Eigenwords(1, window=2, min_count=2).fit(["tea hot milk", "tea cold milk"])
    assert both.terms_.values.to_list() == ["milk", "tea"]


def test_the_scaled_matrix_is_that_of_the_formula():
    texts = ["red tea", "red milk", "cold milk", "cold milk"]
    words = Eigenwords(2, window=1, sides="merged", scaling="sqrt").fit(texts)
    counts = words.counts_.toarray().astype(np.float64)
    scale = np.outer(counts.sum(axis=1), counts.sum(axis=0)) ** 0.25
    expected = np.linalg.svd(np.sqrt(counts) / scale)[1]
    np.testing.assert_allclose(words.singular_values_, expected[:2], rtol=1e-5)


def test_what_cannot_be_learnt_is_rejected():
    with pytest.raises(DataError, match="need texts; got a matrix"):
        Eigenwords().fit(np.eye(3))
    with pytest.raises(DataError, match="No word occurs at least min_count=3 times"):
        Eigenwords(min_count=3).fit(["tea milk"])
    with pytest.raises(
        DataError, match="sides must be one of apart, merged; got 'left'"
    ):
        Eigenwords(sides="left")
    with pytest.raises(DataError, match="scaling must be one of ppmi, sqrt; got 'log'"):
        Eigenwords(scaling="log")
    with pytest.raises(DataError, match="window must be at least 1; got 0"):
        Eigenwords(window=0)


def test_words_that_are_not_known(everyday):
    with pytest.raises(NotFittedError, match="not fitted yet"):
        Eigenwords().nearest("tea")
    with pytest.raises(
        UnknownIdError, match="Unknown word 'nurze'; the nearest id is 'nurse'"
    ):
        Eigenwords().fit(everyday).nearest("nurze")


def test_an_analogy_leaves_out_its_own_words():
    texts = ["a king rules", "a queen rules", "a king is he", "a queen is she"]
    texts += ["a man is he", "a woman is she", "a man works", "a woman works"]
    words = Eigenwords(5).fit(texts)
    found = words.analogy("man", "king", "woman", n=3)
    assert found["word"][0] == "queen"
    assert not {"man", "king", "woman"} & set(found["word"])
    assert found["rank"].to_list() == [1, 2, 3]
    with pytest.raises(UnknownIdError, match="Unknown word 'zebra'"):
        words.analogy("man", "zebra", "woman")

"""Search by exact words and meaning together."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from recsys.errors import DataError
from recsys.lsi import LSI, DocumentBatch
from recsys.lsi.answers import as_query
from recsys.lsi.language import Language, detect, stop_words_of
from recsys.lsi.search import Codes, Postings, best_places, words_weight
from recsys.lsi.space import _bounded, decompose

ENGLISH = "The nurse was in the hospital and she called the doctors who were treating the patient. "


@pytest.fixture
def both(everyday):
    return LSI(5, stop_words="english").fit(everyday * 20)


def test_bm25_is_robertsons_formula():
    counts = np.array([[2, 0, 1], [0, 1, 1], [3, 1, 0], [0, 0, 0]], np.float32)
    postings = Postings.of(sparse.csr_array(counts))
    found = postings.scores(np.array([0, 2]), np.array([1.0, 2.0], np.float32))
    lengths, df, k1, b = counts.sum(axis=1), (counts > 0).sum(axis=0), 1.2, 0.75
    idf = np.log(1 + (4 - df + 0.5) / (df + 0.5))
    saturated = (k1 + 1) * counts
    saturated = saturated / (counts + (k1 * (1 - b + b * lengths / lengths.mean()))[:, None])
    expected = (saturated * idf) @ [1, 0, 2]
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert postings.of_document(2, np.array([0, 2]), np.ones(2)).tolist()[1] == 0


def test_the_score_is_the_sum_of_words_and_meaning(both):
    found = both.query("the nurse and the doctor", n=50, parts=True)
    np.testing.assert_allclose(found["score"], found["words"] + found["meaning"], atol=1e-5)
    assert found["score"].is_sorted(descending=True)
    assert found["matched"][0] == "doctor, nurse"


def test_an_explanation_adds_up_to_the_score(both):
    query = "the nurse called"
    found = both.query(query, n=320)
    for document, score in list(zip(found["document"], found["score"], strict=True))[::40]:
        explained = both.explain(query, document)
        assert explained["contribution"].sum() == pytest.approx(score, abs=1e-4)
        assert explained["term"].to_list()[-2:] == ["(best documents)", "(average document)"]


def test_words_alone_find_only_documents_with_the_words(both):
    found = both.query("washes", n=1000, method="bm25")
    assert set(found["document"] % 16) == {1}
    assert (found["score"] > 0).all()
    explained = both.explain("washes", 1, method="bm25")
    assert explained["contribution"].sum() == pytest.approx(found["score"][0], rel=1e-5)


def test_meaning_adds_documents_without_the_word(both):
    found = both.query("washes", n=100)
    assert set(found["document"] % 16) == {0, 1, 2, 3, 4}  # all paragraphs on the hospital
    assert set(found["document"][:20] % 16) == {1}


def test_queries_are_answered_as_each_alone(both):
    queries = ["the nurse", "red notebook", "black car"]
    together = both.query(queries, n=3)
    for query in queries:
        rows = together.filter(together["query"] == query).drop("query")
        assert rows.equals(both.query(query, n=3))


def test_short_documents_lean_on_exact_words():
    weights = [words_weight(length) for length in (1, 6, 30, 100, 1000)]
    assert weights == sorted(weights, reverse=True)
    assert weights[0] > 0.95
    assert weights[-1] > 0.3


def test_methods_that_an_index_cannot_do_are_rejected(both):
    with pytest.raises(DataError, match="method must be one of hybrid, lsi, bm25; got 'okapi'"):
        both.query("nurse", method="okapi")
    weights = LSI(2, "count").fit(np.eye(3))
    with pytest.raises(DataError, match="method='bm25' needs counts of words"):
        weights.query(np.ones(3), method="bm25")
    assert len(weights.query(np.ones(3), n=2)) <= 2
    with pytest.raises(DataError, match="method must be one of"):
        LSI(method="okapi").fit(["tea"])


def test_words_with_one_stem_are_one_term_named_by_the_most_frequent():
    lsi = LSI(2).fit([ENGLISH * 60, "A doctor helps nurses in the hospitals. " * 20])
    assert lsi.training_["language"] == "english"
    terms = lsi.terms_.values.to_list()
    assert "doctors" in terms
    assert not {"doctor", "the"} & set(terms)
    assert lsi.query("doctor", n=2).equals(lsi.query("doctors", n=2))


def test_the_language_is_left_open_where_it_is_not_clear():
    assert LSI(1).fit([ENGLISH]).training_["language"] is None  # too few words
    assert LSI(1, language="english").fit([ENGLISH]).training_["language"] == "english"
    assert LSI(1, language=None).fit([ENGLISH * 60]).training_["language"] is None
    with pytest.raises(DataError, match=r"got 'englisch'\. Did you mean 'english'"):
        LSI(language="englisch").fit([ENGLISH])


@pytest.mark.parametrize(
    "language", ["german", "french", "italian", "spanish", "russian", "turkish"]
)
def test_a_language_is_known_by_its_stop_words(language):
    words = dict.fromkeys(stop_words_of(language), 30.0)
    assert detect(words | {"usb": 2000.0}) == language


def test_stems_are_those_of_the_library():
    german = Language.of("german")
    assert german.stem("krankenhäuser") == german.stem("krankenhäusern")
    assert german.stem("und") is None


def test_titles_count_thrice_in_texts_that_are_more_than_their_title():
    batch = DocumentBatch([1, 2], ["about tea and milk", "bread"], ["tea", "bread"])
    lsi = LSI(1).fit([batch])
    counts = lsi.documents_.counts.toarray()
    assert counts[0, lsi.terms_.index(["tea"])[0]] == 4
    assert counts[1, lsi.terms_.index(["bread"])[0]] == 1


def test_removed_documents_are_gone_and_replaced_ones_are_new(everyday):
    lsi = LSI(5).fit(everyday)
    assert lsi.remove_documents([0, 3]) == 2
    assert not {0, 3} & set(lsi.query("nurse", n=100)["document"])
    assert lsi.training_["removed"] == 2
    added = lsi.add_documents(["A zoo of nurses and doctors"], ids=[1], replace=True)
    assert added.n_replaced == 1
    assert len(lsi.documents_) == len(everyday) - 2
    with pytest.raises(DataError, match="no document would be left"):
        lsi.remove_documents(lsi.documents_.ids.values)


def test_bm25_after_changes_is_that_of_a_new_index(everyday):
    changed = LSI(5).fit(everyday)
    changed.add_documents(everyday[:3], ids=[100, 101, 102], method="fold-in")
    changed.remove_documents([4, 5])
    texts = [text for i, text in enumerate([*everyday, *everyday[:3]]) if i not in (4, 5)]
    fresh = LSI(5).fit(texts)
    for query in ("nurse", "the hospital"):
        found, expected = (lsi.query(query, 50, method="bm25") for lsi in (changed, fresh))
        np.testing.assert_allclose(found["score"], expected["score"], rtol=1e-5)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=30), st.integers(1, 40))
def test_the_best_places_are_those_of_a_stable_sort(values, n):
    scores = np.array(values, np.float32)
    assert best_places(scores, n).tolist() == np.argsort(-scores, kind="stable")[:n].tolist()


@pytest.fixture(scope="module")
def large():
    """More documents than are reordered, so that codes leave most of them out."""
    rng = np.random.default_rng(0)
    words = np.array([f"word{i}" for i in range(400)])
    topics = rng.integers(0, 400, (40, 12))
    drawn = topics[rng.integers(0, 40, 6000)[:, None], rng.integers(0, 12, (6000, 8))]
    noise = rng.integers(0, 400, (6000, 8))
    drawn = np.where(rng.random((6000, 8)) < 0.3, noise, drawn)
    return LSI(20).fit([" ".join(row) for row in words[drawn]])


def test_a_filter_by_codes_loses_nothing(large):
    search = large._search
    assert search.codes is not None
    whole = dataclasses.replace(search, codes=None)
    for query in ("word1 word2", "word7", "word10 word20 word30 word40"):
        found = large.query(query, n=20)
        asked = large._queries(query)
        ranking = whole.by_both(as_query(asked, asked.directions(large.components_), 0), 20)
        assert found["document"].to_list() == ranking.documents.tolist()
        np.testing.assert_allclose(found["score"], ranking.scores, rtol=1e-4)


def test_meaning_alone_finds_the_same_with_and_without_codes(large):
    found = large.query("word1 word2 word3", n=20, method="lsi")
    queries = ["word1 word2 word3"] * 40  # so many are a product of matrices
    many = large.query(queries, n=20, method="lsi", labels=range(40)).filter(query=0)
    assert found["document"].to_list() == many["document"].to_list()


def test_codes_are_as_close_as_they_say():
    rng = np.random.default_rng(1)
    vectors = rng.standard_normal((500, 37)).astype(np.float32)
    vectors[3] = 0
    inverse = np.append(1 / np.linalg.norm(vectors[:3], axis=1), 0).astype(np.float32)
    inverse = np.append(inverse, 1 / np.linalg.norm(vectors[4:], axis=1)).astype(np.float32)
    codes = Codes.of(vectors, inverse)
    unit = vectors * inverse[:, None]
    lost = np.linalg.norm(unit - codes.values[:, :37] * codes.scale[:, None], axis=1)
    assert lost.max() <= codes.error * 1.0001
    assert codes.error < 0.03
    direction = unit[7]
    rows, bound = codes.best(direction, 50, None, 0.0, 1.0)
    others = np.delete(unit @ direction, rows)
    assert others.max() <= bound


def test_a_bounded_decomposition_is_close_to_a_converged_one(everyday):
    rows = LSI(5).fit(everyday * 40).document_weights()
    noisy = rows.copy()
    noisy.data = noisy.data * np.random.default_rng(0).uniform(0.5, 1.5, noisy.nnz).astype("f4")
    bounded, converged = _bounded(noisy, 5, 0), decompose(noisy, 5, 0)
    np.testing.assert_allclose(bounded.singular_values, converged.singular_values, rtol=1e-3)
    cosines = np.linalg.norm(bounded.components @ converged.components.T, axis=1)
    assert cosines.min() > 0.99

"""Search by exact words and meaning together."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from scipy import sparse

from recsys.errors import DataError
from recsys.lsi import LSI, DocumentBatch
from recsys.lsi import search as searching
from recsys.lsi.collection import Collection
from recsys.lsi.queries import NothingToRankError, Query, UnknownTermWarning
from recsys.lsi.search import Search, words_weight
from recsys.lsi.vectorizer import Language, detect, stop_words_of

ENGLISH = "The nurse was in the hospital and she called the doctors who were treating the patient. "


@pytest.fixture
def both(everyday):
    return LSI(5, stop_words="english").fit(everyday * 20)


def test_bm25_is_robertsons_formula():
    counts = np.array([[2, 0, 1], [0, 1, 1], [3, 1, 0], [0, 0, 0]], np.float32)
    matrix = sparse.csr_array(counts)
    table = pl.DataFrame({"document": range(4)})
    documents = Collection(table, matrix, np.ones((4, 1), np.float32), has_counts=True)
    search = Search(documents, 1.5, documents.totals())
    query = Query(np.array([0, 2]), np.array([1.0, 2.0], np.float32), np.ones(2))
    found = search.bm25(query)
    lengths, df, k1, b = counts.sum(axis=1), (counts > 0).sum(axis=0), 1.2, 0.75
    idf = np.log(1 + (4 - df + 0.5) / (df + 0.5))
    saturated = (k1 + 1) * counts
    saturated = saturated / (
        counts + (k1 * (1 - b + b * lengths / lengths.mean()))[:, None]
    )
    expected = (saturated * idf) @ [1, 0, 2]
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    np.testing.assert_allclose(search.word_shares(query, 0).sum(), found[0], rtol=1e-5)
    assert search.word_shares(query, 2).tolist()[1] == 0


def test_the_score_is_the_sum_of_words_and_meaning(both):
    found = both.query("the nurse and the doctor", n=50, parts=True)
    np.testing.assert_allclose(
        found["score"], found["words"] + found["meaning"], atol=1e-5
    )
    assert found["score"].is_sorted(descending=True)
    assert found["matched"][0] == "doctor, nurse"


@pytest.mark.parametrize("method", ["bm25", "lsi", "hybrid"])
def test_a_query_makes_no_plan_of_polars(both, monkeypatch, method):
    """One plan takes as long as the rest of the search."""
    expected = both.query("the nurse and the doctor", method=method)
    monkeypatch.setattr(pl.DataFrame, "lazy", None)
    again = both.query("the nurse and the doctor", method=method)
    assert again.rows() == expected.rows()


@pytest.mark.parametrize("times", [1, 100])
def test_words_find_a_document_that_no_dimension_has(times):
    texts = [
        *["nurse doctor"] * 30 * times,
        *["cat dog"] * 30 * times,
        "zebra lion",
        "",
    ]
    lsi, place = LSI(1, language=None).fit(texts), 60 * times
    assert not lsi.document_vectors(place).any()
    for method in ("hybrid", "bm25"):
        found = lsi.query("zebra", 2, method=method)
        assert found["document"][0] == place
        explained = lsi.explain("zebra", place, method=method)["contribution"].sum()
        assert explained == pytest.approx(found["score"][0], rel=1e-4)
    ranked = {
        m: lsi.query("cat nurse", 9999, method=m)["document"] for m in ("hybrid", "lsi")
    }
    assert set(ranked["hybrid"]) == {*range(place + 1)}
    assert set(ranked["lsi"]) <= {*range(place)}


def test_documents_that_are_all_alike_have_the_score_of_the_average_document():
    lsi = LSI().fit(["nurse"] * 3)
    assert lsi.query("nurse")["score"].to_list() == [0, 0, 0]
    assert lsi.explain("nurse", 1)["contribution"].sum() == 0


def test_an_explanation_adds_up_to_the_score(both):
    query = "the nurse called"
    found = both.query(query, n=320)
    for document, score in list(zip(found["document"], found["score"], strict=True))[
        ::40
    ]:
        explained = both.explain(query, document)
        assert explained["contribution"].sum() == pytest.approx(score, abs=1e-4)
        assert explained["term"].to_list()[-2:] == [
            "(best documents)",
            "(average document)",
        ]
        best = explained["through"][-2].split(", ")
        assert len(best) == 8  # of 320 documents
        assert {int(each) % 16 for each in best} == {
            4
        }  # "The nurse called the patient"


def test_words_alone_find_only_documents_with_the_words(both):
    found = both.query("washes", n=1000, method="bm25")
    assert set(found["document"] % 16) == {1}
    assert (found["score"] > 0).all()
    explained = both.explain("washes", 1, method="bm25")
    assert explained["contribution"].sum() == pytest.approx(found["score"][0], rel=1e-5)


def test_meaning_adds_documents_without_the_word(both):
    found = both.query("washes", n=100)
    assert set(found["document"] % 16) == {
        0,
        1,
        2,
        3,
        4,
    }  # all paragraphs on the hospital
    assert set(found["document"][:20] % 16) == {1}


def test_queries_are_answered_as_each_alone(both):
    queries = ["the nurse", "red notebook", "black car"]
    together = both.query(queries, n=3)
    for query in queries:
        rows = together.filter(together["query"] == query).drop("query")
        assert rows.equals(both.query(query, n=3))


def test_short_documents_and_long_queries_lean_on_exact_words():
    weights = [words_weight(length, 8) for length in (0, 1, 6, 30, 100, 1000)]
    assert weights == sorted(weights, reverse=True)
    assert weights[1] > 0.95
    assert weights[-1] > 0.2
    assert words_weight(30, 2) < words_weight(30, 8) < words_weight(30, 20)


def test_methods_that_an_index_cannot_do_are_rejected(both):
    with pytest.raises(
        DataError, match="method must be one of hybrid, lsi, bm25; got 'okapi'"
    ):
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


def test_stems_equal_the_library():
    german = Language.named("german")
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
    with pytest.raises(DataError, match="no document would remain"):
        lsi.remove_documents(lsi.documents_.ids.values)


def test_words_of_removed_documents_are_unknown():
    texts = ["red apple pie", "green apple", "blue car", "zebra stripes", "zebra car"]
    lsi = LSI(3, language=None).fit(texts * 2)
    lsi.remove_documents([3, 4, 8, 9])
    remaining = LSI(3, language=None).fit([texts[i % 5] for i in (0, 1, 2, 5, 6, 7)])
    for index in (lsi, remaining):
        with pytest.raises(NothingToRankError, match=r"in the index: zebra\.$"):
            index.query("zebra", method="bm25")
        with pytest.warns(UnknownTermWarning, match="index: zebra. One query has no"):
            lists = index.query(["zebra", "apple"], method="bm25")
        assert set(lists["query"]) == {"apple"}
        with pytest.warns(UnknownTermWarning, match=r"Not in the index: zebra\.$"):
            found = index.query("apple zebra", method="bm25")
        assert found["score"].equals(lists["score"])
        with pytest.warns(UnknownTermWarning, match="Not in the index: zebra"):
            index.explain("apple zebra", 1)
    # A removed word still has a meaning.
    with pytest.warns(UnknownTermWarning, match=r"Not in the index: zebra\.$"):
        assert len(lsi.query("zebra"))


def test_changes_lead_to_the_index_of_the_remaining_documents(everyday, tmp_path):
    changed, n = LSI(5).fit(everyday * 3), 48
    changed.add_documents(everyday[:3], ids=[100, 101, 102])
    changed.remove_documents([4, 5, 101])
    gone = {4, 5, n + 1}
    texts = [
        text for i, text in enumerate([*everyday * 3, *everyday[:3]]) if i not in gone
    ]
    whole = LSI(5).fit(texts)
    # With the terms, weights and space of the changed one:
    for name in ("components_", "singular_values_", "_encoder", "training_"):
        setattr(whole, name, getattr(changed, name))
    rows = changed._encoder.encode(texts)
    whole.documents_ = whole._collection(whole.documents_.table, rows.counts, rows.rows)
    whole._totals = whole.documents_.totals()
    changed.save(tmp_path / "index")
    for lsi in (changed, LSI.load(tmp_path / "index")):
        np.testing.assert_allclose(lsi._totals, whole._totals, atol=1e-4)
        np.testing.assert_allclose(
            lsi.document_vectors(), whole.document_vectors(), atol=1e-5
        )
        ids = np.array([i for i in [*range(n), 100, 101, 102] if i not in (4, 5, 101)])
        assert lsi.documents_.ids.values.to_list() == ids.tolist()
        for method in ("hybrid", "bm25", "lsi"):
            for query in ("nurse", "the hospital"):
                found, expected = (
                    each.query(query, 20, method=method) for each in (lsi, whole)
                )
                np.testing.assert_allclose(found["score"], expected["score"], rtol=1e-4)
        assert lsi.explain("nurse", 102)["contribution"].sum() == pytest.approx(
            lsi.query("nurse", 60).filter(document=102)["score"][0], abs=1e-4
        )
        similar = lsi.similar_documents([102, 6], n=60)
        assert not {4, 5, 101} & set(similar["similar"])
        assert similar.filter(document=102)["similar"][0] in {2, 18, 34}


def test_documents_are_added_and_removed_again_and_again(everyday):
    lsi = LSI(5).fit(everyday)
    for start in range(0, 32, 2):
        lsi.add_documents(everyday[start % 16 : start % 16 + 2])
    assert len(lsi.documents_) == 48
    expected = np.tile(lsi.transform(everyday), (3, 1))
    np.testing.assert_allclose(lsi.document_vectors(), expected, atol=1e-5)
    lsi.remove_documents(range(16))
    np.testing.assert_allclose(lsi.document_vectors(), expected[16:], atol=1e-5)


@pytest.fixture(scope="module")
def large():
    """So many documents that a search looks only at those with enough words."""
    rng = np.random.default_rng(0)
    words = np.array([f"word{i}" for i in range(400)])
    topics = rng.integers(0, 400, (40, 12))
    drawn = topics[rng.integers(0, 40, 6000)[:, None], rng.integers(0, 12, (6000, 8))]
    noise = rng.integers(0, 400, (6000, 8))
    drawn = np.where(rng.random((6000, 8)) < 0.3, noise, drawn)
    frequent = [
        " most" * (i % 6 > 0) + " third" * (i % 3 == 0) + " few" * (i % 20 == 0)
        for i in range(6000)
    ]
    texts = [
        " ".join(row) + more for row, more in zip(words[drawn], frequent, strict=True)
    ]
    return LSI(20, language=None).fit(texts)


def test_looking_only_at_documents_with_enough_words_loses_nothing(large, monkeypatch):
    # The best are among those with the best words, among those with words enough, and among all.
    queries = (
        "word1 word2",
        "word10 word20 word30 word40",
        "few",
        "few most",
        "most",
        "third",
    )
    for query in queries:
        found = large.query(query, n=20)
        with monkeypatch.context() as patch:
            patch.setattr(searching, "_GATHERED", 10**9)  # always all documents
            expected = large.query(query, n=20)
        assert found["document"].to_list() == expected["document"].to_list()
        np.testing.assert_allclose(found["score"], expected["score"], rtol=1e-4)


def test_meaning_alone_finds_the_same_one_by_one_and_together(large):
    found = large.query("word1 word2 word3", n=20, method="lsi")
    queries = ["word1 word2 word3"] * 40  # so many are a product of matrices
    many = large.query(queries, n=20, method="lsi", labels=range(40)).filter(query=0)
    assert found["document"].to_list() == many["document"].to_list()

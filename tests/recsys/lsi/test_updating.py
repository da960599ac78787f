"""Documents that are added later."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from recsys.errors import DataError
from recsys.lsi import LSI
from recsys.lsi import space as updating
from recsys.lsi.queries import UnknownTermWarning
from recsys.lsi.space import Space, orthogonality_loss, outside_share, with_documents


def exact(rows, k):
    _, s, Vt = np.linalg.svd(rows, full_matrices=False)
    return Space(Vt[:k], s[:k])


@given(seed=st.integers(0, 10**6), k=st.integers(1, 5), n_new=st.integers(1, 9))
def test_the_update_of_a_matrix_of_rank_k_is_its_decomposition(seed, k, n_new):
    rng = np.random.default_rng(seed)
    old = rng.normal(size=(12, k)) @ rng.normal(size=(k, 15))
    rows = np.vstack([old, rng.normal(size=(n_new, 15))])
    space, embedding = with_documents(exact(old, k), sparse.csr_array(rows), n_new)
    best = exact(rows, k)
    # The best k directions lie in the span of the old ones and the new rows: nothing is lost.
    np.testing.assert_allclose(space.singular_values, best.singular_values, rtol=1e-6)
    np.testing.assert_allclose(
        np.abs(np.sum(space.components * best.components, axis=1)), 1, atol=1e-5
    )
    np.testing.assert_allclose(
        space.components @ space.components.T, np.eye(k), atol=1e-9
    )
    np.testing.assert_allclose(embedding, rows @ space.components.T, atol=1e-9)


def test_rows_inside_the_space_do_not_turn_it():
    rng = np.random.default_rng(0)
    old = rng.normal(size=(12, 3)) @ rng.normal(size=(3, 15))
    rows = np.vstack([old, old[:2]])
    space, _ = with_documents(exact(old, 3), sparse.csr_array(rows), 2)
    np.testing.assert_allclose(
        space.singular_values, exact(rows, 3).singular_values, rtol=1e-9
    )


def test_many_rows_are_added_in_blocks(monkeypatch):
    monkeypatch.setattr(updating, "_BLOCK", 2)
    rng = np.random.default_rng(0)
    old = rng.normal(size=(12, 3)) @ rng.normal(size=(3, 15))
    rows = np.vstack([old, rng.normal(size=(7, 3)) @ np.linalg.svd(old)[2][:3]])
    space, _ = with_documents(exact(old, 3), sparse.csr_array(rows), 7)
    np.testing.assert_allclose(
        space.singular_values, exact(rows, 3).singular_values, rtol=1e-9
    )


def test_loss_of_orthogonality_and_outside_share():
    U, s, _ = np.linalg.svd(
        np.random.default_rng(0).normal(size=(9, 3)), full_matrices=False
    )
    gram = np.diag(s**2)
    assert orthogonality_loss(gram, s) < 1e-12
    twice = gram + np.outer(U[0] * s, U[0] * s)
    assert orthogonality_loss(twice, s) == pytest.approx(np.sum(U[0] ** 2))
    rows = sparse.csr_array([[3.0, 4.0]])
    assert outside_share(rows, np.array([[3.0]])) == pytest.approx(16 / 25)


def test_folding_in_leaves_the_space_alone(index):
    components, values = index.components_.copy(), index.singular_values_.copy()
    before = index.document_vectors().copy()
    text = "The nurse called the hospital."
    added = index.add_documents([text], method="fold-in")
    assert (added.n_documents, added.method, added.unknown_words) == (1, "fold-in", 0)
    np.testing.assert_array_equal(index.components_, components)
    np.testing.assert_array_equal(index.singular_values_, values)
    np.testing.assert_array_equal(index.document_vectors()[:-1], before)
    np.testing.assert_allclose(
        index.document_vectors(16)[0], index.transform([text])[0], atol=1e-6
    )
    assert added.orthogonality_loss > 0.01
    assert index.training_["documents"] == 17


def test_an_update_restores_orthogonality_and_takes_up_more(index):
    texts = [
        "A tram drives through the town.",
        "The tram stops at the bridge in the town.",
    ]
    added = index.add_documents(texts, method="update")
    assert added.orthogonality_loss < 1e-5
    assert (
        added.unknown_words == 6
    )  # new words: tram and town, twice each, stops, bridge; not "drives"
    np.testing.assert_allclose(
        index.document_vectors(),
        index._space.project(index.document_weights()),
        atol=1e-5,
    )


def test_added_documents_are_found_by_their_ids(everyday):
    lsi = LSI(4).fit(everyday, ids=[f"p{i}" for i in range(16)])
    lsi.add_documents(
        ["The nurse called the hospital."], ids=["new"], titles=["A call"]
    )
    found = lsi.query("nurse hospital", n=17).filter(document="new")
    assert found["title"].to_list() == ["A call"]
    with pytest.raises(DataError, match="'p3' is already in the index"):
        lsi.add_documents(["x ray nurse"], ids=["p3"])
    assert len(lsi.documents_) == 17


def test_matrices_can_be_added():
    rng = np.random.default_rng(0)
    counts = rng.poisson(0.5, size=(30, 12)).astype(float)
    lsi = LSI(3).fit(counts)
    lsi.add_documents(counts[:2], method="update")
    assert lsi.documents_.ids.values.to_list()[-2:] == [30, 31]
    np.testing.assert_allclose(
        lsi.document_vectors()[0], lsi.document_vectors()[30], atol=1e-9
    )


def test_an_unknown_method_is_rejected(index):
    with pytest.raises(
        DataError, match="method must be one of fold-in, update; got 'magic'"
    ):
        index.add_documents(["nurse"], method="magic")


def test_documents_without_known_words_leave_nothing_outside(index, everyday):
    added = index.add_documents(["xyzzy plugh"], method="fold-in")
    assert (added.outside, added.unknown_words) == (0.0, 2)
    assert not index.document_vectors(len(everyday)).any()


def test_numbers_and_names_of_documents_become_names(everyday):
    index = LSI(3).fit(everyday)
    index.add_documents(["the nurse"], ids=["note"])
    assert index.documents_.ids.values.to_list() == [
        *map(str, range(len(everyday))),
        "note",
    ]
    assert index.query("nurse", n=1)["document"].dtype == pl.String
    with pytest.raises(DataError, match="Document '0' is already in the index"):
        index.add_documents(["the nurse"], ids=["0"])


WORDS = [
    "kettle",
    "toaster",
    "boils",
    "burns",
    "bread",
    "water",
    "radio",
    "plays",
    "lamp",
    "caf\u00e9",
]


def random_texts(seed, n, words, longest):
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(words, rng.integers(1, longest))) for _ in range(n)]


@pytest.mark.covering(1)
@pytest.mark.parametrize("method", ["fold-in", "update"])
@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("saved", [False, True])
def test_words_of_added_documents_are_ranked_as_in_a_new_index(
    tmp_path, method, steps, saved
):
    old = random_texts(0, 40, WORDS[:6], 8)
    more = random_texts(1, 60, WORDS, 60)
    index = LSI(3, language=None).fit(old)
    for number, texts in enumerate(np.array_split(np.array(more, object), steps)):
        index.add_documents(texts.tolist(), method=method)
        if saved:
            index.save(tmp_path / f"{number}")
            index = LSI.load(tmp_path / f"{number}", verify=True)
    gone = [3, 50]
    index.remove_documents(gone)
    left = [place for place in range(100) if place not in gone]
    whole = LSI(3, language=None).fit([(old + more)[place] for place in left], ids=left)
    assert sorted(index.terms_.values) == whole.terms_.values.to_list()
    assert index.training_["mean_length"] == whole.training_["mean_length"]
    assert index.training_["terms_outside_dimensions"] == 4
    for query in [*WORDS, *random_texts(2, 8, WORDS, 6)]:
        ours = index.query(query, 98, method="bm25")
        assert ours.equals(whole.query(query, 98, method="bm25"))
        first = ours["document"][0]
        terms = index.explain(query, first, method="bm25")
        assert terms.equals(whole.explain(query, first, method="bm25"))


def test_a_new_word_is_found_and_has_no_meaning_yet(index):
    components, before = index.components_.copy(), index.document_vectors().copy()
    index.add_documents(["A zeppelin, two zeppelins"], ids=["new"])
    for method in ("bm25", "hybrid"):
        assert index.query("zeppelin", n=1, method=method)["document"].to_list() == [
            "new"
        ]
    with pytest.raises(DataError, match="no weight in the dimensions"):
        index.query("zeppelin", method="lsi")
    explained = index.explain("zeppelin nurse", 3, method="lsi").filter(term="zeppelin")
    assert explained.select("contribution", "through").row(0) == (0, None)
    n_new = index.training_["terms_outside_dimensions"]
    assert n_new == len(index.terms_) - components.shape[1] > 0
    np.testing.assert_array_equal(index.components_[:, :-n_new], components)
    assert not index.components_[:, -n_new:].any()
    np.testing.assert_array_equal(index.document_vectors()[:-1], before)


def test_an_index_is_unchanged_if_documents_cannot_be_added(index):
    terms = len(index.terms_)
    with pytest.raises(DataError, match="already in the index"):
        index.add_documents(["A zeppelin"], ids=[3])
    assert len(index.terms_) == terms


@pytest.mark.parametrize("names", [None, [str(7 - i) for i in range(8)]])
def test_added_documents_are_numbered_after_the_index(everyday, names):
    lsi = LSI(2).fit(everyday[:8], ids=names)
    lsi.remove_documents([3, 5])
    lsi.add_documents(everyday[8:10])
    assert list(map(int, lsi.documents_.ids.values[-2:])) == [8, 9]


def test_words_of_removed_documents_count_as_unknown(everyday):
    lsi = LSI(2, language=None).fit(everyday)
    word = lsi.terms_.values[0]
    before = lsi.query(word)
    lsi.add_documents(["unheard"], ids=[100])
    lsi.remove_documents(100)
    with pytest.warns(UnknownTermWarning, match="Not in the index: unheard"):
        after = lsi.query(f"{word} unheard")
    assert after.equals(before)

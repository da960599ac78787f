"""What an index answers, from texts and from matrices."""

from __future__ import annotations

import numpy as np
import pandas as pd
import polars as pl
import pytest
from scipy import sparse
from sklearn.feature_extraction.text import (
    CountVectorizer,
    TfidfVectorizer,
)

import recsys.lsi
from recsys.errors import DataError, UnknownIdError
from recsys.lsi import LSI, DocumentBatch, Eigenwords, UnknownTermWarning
from recsys.ranking.topn import Cosine


def cosines(lsi, words):
    vectors = lsi.term_vectors(words)
    vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors @ vectors.T


def test_words_of_one_topic_come_together_and_others_stay_apart(index):
    similarity = cosines(index, ["hospital", "nurse", "doctor", "notebook", "batman"])
    assert similarity[:3, :3].min() > 0.95
    assert np.abs(similarity[:3, 3:]).max() < 0.2


def test_documents_are_found_without_the_word(index, everyday):
    found = index.query("washes", n=5)  # only the second paragraph has the word
    assert set(found["document"]) == {0, 1, 2, 3, 4}  # all paragraphs on the hospital
    assert found["score"].is_sorted(descending=True)
    assert found["rank"].to_list() == [1, 2, 3, 4, 5]
    assert found.columns == ["document", "rank", "score", "snippet"]


def test_scores_are_the_cosines_of_the_coordinates(index, everyday):
    found = index.query("the doctor and the nurse", n=100)
    query = index.transform(["the doctor and the nurse"])[0]
    documents = index.document_vectors(found["document"])
    lengths = np.linalg.norm(query) * np.linalg.norm(documents, axis=1)
    np.testing.assert_allclose(found["score"], documents @ query / lengths, atol=1e-6)
    assert len(found) == len(everyday)


def test_coordinates_equal_the_singular_value_decomposition(index):
    rows = index.document_weights().toarray().astype(np.float64)
    U, s, Vt = np.linalg.svd(rows, full_matrices=False)
    np.testing.assert_allclose(index.singular_values_, s[:5], rtol=1e-4)
    ours = index.document_vectors() @ index.document_vectors().T
    np.testing.assert_allclose(ours, (U[:, :5] * s[:5] ** 2) @ U[:, :5].T, atol=1e-3)
    terms = index.term_vectors() @ index.term_vectors().T
    np.testing.assert_allclose(terms, (Vt[:5].T * s[:5] ** 2) @ Vt[:5], atol=1e-3)


def test_training_documents_fold_in_at_their_own_place(index, everyday):
    np.testing.assert_allclose(
        index.transform(everyday), index.document_vectors(), atol=1e-6
    )


def test_several_queries_are_answered_as_each_alone(index):
    queries = ["the nurse", "red notebook", "black car"]
    together = index.query(queries, n=3)
    for query in queries:
        alone = index.query(query, n=3)
        rows = together.filter(together["query"] == query).drop("query")
        assert rows.equals(alone)


def test_one_query_has_the_bits_it_has_among_many():
    rng = np.random.default_rng(0)
    lsi = LSI(20, "count").fit(rng.normal(size=(500, 40)))
    vectors = np.asarray(lsi.document_vectors()[:9] @ lsi.components_)
    together = lsi.query(vectors, n=7)
    assert together["score"].max() <= 1
    for number, vector in enumerate(vectors):
        assert (
            together.filter(query=number).drop("query").equals(lsi.query(vector, n=7))
        )


def test_contributions_add_up_to_the_score(index):
    query = "the nurse called the doctor"
    found = index.query(query, n=16)
    for document, score in zip(found["document"], found["score"], strict=True):
        explained = index.explain(query, document)
        assert explained["contribution"].sum() == pytest.approx(score, abs=1e-6)
        assert set(explained["term"]) == {"nurse", "called", "doctor"}


def test_an_explanation_names_the_word_that_is_not_in_the_query(index, everyday):
    place = everyday.index(
        next(text for text in everyday if "thanked the nurse" in text)
    )
    explained = index.explain("tea", place)
    assert explained["term"].to_list() == ["tea"]
    own = index.document_weights(place)
    words, weights = index.terms_.values.gather(own.indices).to_list(), own.data
    tea = index.components_[:, index.terms_.index(["tea"])[0]]
    parts = weights * (tea @ index.components_[:, own.indices])
    assert explained["through"][0] == words[int(np.argmax(parts))]
    assert "tea" not in words


def test_similar_documents_leave_out_the_document_itself(index):
    found = index.similar_documents([0, 13], n=3)
    assert found.columns == ["document", "similar", "rank", "score", "snippet"]
    assert found["document"].to_list() == [0, 0, 0, 13, 13, 13]
    assert not (found["document"] == found["similar"]).any()
    assert set(found["similar"][3:5]) == {14, 15}  # the others on Batman


def test_similar_terms(index):
    found = index.similar_terms("nurse", n=2)
    assert set(found["similar"]) == {"doctor", "hospital"}
    assert found.columns == ["term", "similar", "rank", "score"]


def test_names_unknown_words_and_leaves_them_out(index):
    with pytest.warns(
        UnknownTermWarning, match=r"^Not in the index: zebra, xylophone\.$"
    ):
        found = index.query("zebra nurse xylophone", n=2)
    assert found.equals(index.query("nurse", n=2))


def test_a_query_without_any_known_word_is_rejected(index):
    with pytest.raises(
        DataError, match=r"No word of the query is in the index: zebra, xylophone"
    ):
        index.query("zebra xylophone")
    with pytest.raises(DataError, match="The query has no words"):
        index.query("? !")
    with pytest.raises(DataError, match="No word of the query is in the index: zebra"):
        index.explain("zebra", 0)


def test_among_several_queries_one_without_known_words_has_no_rows(index):
    with pytest.warns(UnknownTermWarning, match="zebra. One query has no known word"):
        found = index.query(["zebra", "nurse"], n=2)
    assert found["query"].to_list() == ["nurse", "nurse"]
    with pytest.warns(UnknownTermWarning, match=r"^One query has no known word"):
        answers = index.query(["?", "nurse"], n=2)
    assert answers["query"].to_list() == ["nurse", "nurse"]


@pytest.mark.parametrize("method", ["hybrid", "lsi", "bm25"])
@pytest.mark.parametrize("queries", [["zebra"], ["zebra xylophone", "?"]])
def test_a_batch_without_known_words_has_no_rows(index, method, queries):
    with pytest.warns(UnknownTermWarning, match="no known word, and therefore"):
        empty = index.query(queries, method=method, parts=True)
    full = index.query(["nurse"], method=method, parts=True)
    assert empty.is_empty()
    assert empty.schema == full.schema


def test_a_batch_outside_the_kept_dimensions_has_no_rows():
    index = LSI(1).fit(["apple pear"] * 5 + ["stone"])
    message = "One query has no weight in the dimensions of the index"
    with pytest.warns(UnknownTermWarning, match=message):
        assert index.query(["stone"], method="lsi").is_empty()
    with pytest.warns(UnknownTermWarning, match=message):
        answers = index.query(["stone", "apple"], method="lsi")
    assert set(answers["query"]) == {"apple"}


def test_a_query_outside_the_kept_dimensions_is_rejected():
    texts = ["apple pear"] * 5 + ["stone"]
    with pytest.raises(DataError, match="no weight in the dimensions of the index"):
        LSI(1).fit(texts).query("stone", method="lsi")


def test_empty_documents_are_kept_and_never_found(everyday):
    lsi = LSI(3).fit([*everyday, "", "?!"])
    assert lsi.training_["documents"] == len(everyday) + 2
    assert lsi.training_["empty_documents"] == 2
    assert lsi.query("nurse", n=100)["document"].max() < len(everyday)
    assert lsi.similar_documents(len(everyday)).is_empty()


def test_ids_and_titles():
    lsi = LSI(2).fit(
        ["tea and milk", "milk"], ids=["a", "b"], titles=["Breakfast", None]
    )
    found = lsi.query("breakfast", n=2)
    assert found["document"].to_list()[0] == "a"
    assert found["title"].to_list()[0] == "Breakfast"
    with pytest.raises(
        UnknownIdError, match="Unknown document 'aa'; the nearest id is 'a'"
    ):
        lsi.similar_documents("aa")


def test_a_word_is_not_an_integer_id():
    lsi = LSI(1).fit(["a ship", "a boat and a ship", "an ocean"], ids=[10, 20, 30])
    with pytest.raises(
        UnknownIdError, match="Unknown document 'ship'; ids look like 10, 20"
    ):
        lsi.similar_documents("ship")


def test_integer_ids_are_found_as_text(index):
    assert index.similar_documents("3", n=2).equals(index.similar_documents(3, n=2))
    assert index.similar_documents([3.0], n=2).equals(index.similar_documents(3, n=2))
    for other in ("0_3", "03"):
        with pytest.raises(UnknownIdError, match=f"Unknown document {other!r}"):
            index.similar_documents([other], n=2)
    for other in (3.5, float("inf")):
        with pytest.raises(
            DataError, match=f"document id {other!r} is neither integer nor string"
        ):
            index.similar_documents([other], n=2)


@pytest.mark.parametrize("container", [np.asarray, sparse.csr_array, sparse.coo_matrix])
def test_texts_and_their_matrix_give_the_same(everyday, index, container):
    vectorizer = CountVectorizer(stop_words="english")
    counts = vectorizer.fit_transform(everyday).toarray().astype(np.float64)
    words = list(vectorizer.get_feature_names_out())
    given = LSI(5, method="lsi").fit(container(counts), vocabulary=words)
    transposed = LSI(5, method="lsi", terms_in_rows=True).fit(
        container(counts.T), vocabulary=words
    )
    expected = index.query("doctor", n=5)
    for lsi in (given, transposed):
        found = lsi.query("doctor", n=5)
        assert found["document"].to_list() == expected["document"].to_list()
        np.testing.assert_allclose(found["score"], expected["score"], atol=1e-4)
    vector = np.zeros(len(words))
    vector[words.index("doctor")] = 1
    assert given.query(vector, n=5).equals(given.query("doctor", n=5))
    assert transposed.query(vector, n=5).equals(transposed.query("doctor", n=5))


def test_texts_may_be_a_column_of_any_frame(everyday, index):
    import pandas as pd
    import polars as pl

    labelled = pd.Series(everyday, index=range(100, 116))
    for column in (pl.Series(everyday), labelled):
        again = LSI(5, method="lsi", stop_words="english").fit(column)
        assert again.query("nurse").equals(index.query("nurse"))


def test_texts_may_come_from_an_iterator_or_in_batches(everyday, index):
    batches = (DocumentBatch([i], [text]) for i, text in enumerate(everyday))
    for documents in (iter(everyday), tuple(everyday), np.array(everyday), batches):
        again = LSI(5, method="lsi", stop_words="english").fit(documents)
        assert again.query("nurse").equals(index.query("nurse"))


def test_other_alphabets():
    texts = [
        "красный трамвай едет",
        "трамвай стоит",
        "η θάλασσα είναι μπλε",
        "ψάρι θάλασσα",
    ]
    lsi = LSI(2).fit(texts)
    assert set(lsi.query("ТРАМВАЙ", n=2)["document"]) == {0, 1}
    assert set(lsi.query("θάλασσα", n=2)["document"]) == {2, 3}


@pytest.mark.parametrize(
    ("texts", "query", "found"),
    [
        (["今天天气很好", "我们喜欢喝茶", "茶 和 牛奶"], "喝茶", {1}),
        (["हिन्दी में खोज", "चाय और दूध"], "खोज", {0}),
        (["cafe\u0301 noir", "caf\u00e9 au lait", "tea"], "CAFE\u0301", {0, 1}),
        (["سلام دنيا", "مرحبا بالعالم"], "مرحبا", {1}),
        (["\ufb01sh and \uff43hips", "tea"], "fish chips", {0}),
        (["\U0001f389 party \U0001f388", "tea"], "\U0001f389 party", {0}),
    ],
    ids=["chinese", "hindi", "accents", "arabic", "forms", "emoji"],
)
def test_words_of_every_script_are_found(texts, query, found):
    best = LSI(len(texts)).fit(texts).query(query, n=3, method="lsi")
    assert set(best.filter(best["score"] > 0.5)["document"]) == found


def test_emoji_alone_are_not_words():
    with pytest.raises(DataError, match="There are no words in any of the 2 documents"):
        LSI().fit(["\U0001f389", "\U0001f388 \U0001f469\u200d\U0001f680"])


def test_half_a_character_is_rejected():
    with pytest.raises(
        DataError,
        match=r"Document 1 .* character 4 is the unpaired surrogate '\\ud800'",
    ):
        LSI(1).fit(["tea", "tea \ud800"])
    with pytest.raises(
        DataError, match=r"Query 0 .* character 3 is the unpaired surrogate '\\udce9'"
    ):
        LSI(1).fit(["tea", "milk"]).query("caf\udce9")


def test_a_vocabulary_may_have_capitals():
    lsi = LSI(3).fit(np.eye(3), vocabulary=["DNA", "Heat", "heat"])
    assert lsi.query("dna", n=1)["document"].to_list() == [0]
    assert lsi.query("HEAT", n=1).equals(lsi.query("heat", n=1))
    assert lsi.explain("dna", 0, method="lsi")["term"].to_list() == ["DNA"]


def test_names_the_default_number_of_dimensions(everyday):
    lsi = LSI().fit(everyday)
    assert lsi.n_components_ == 5
    assert lsi.training_["dimensions_by"].startswith(
        "default: a third of the documents"
    )
    assert LSI("elbow").fit(everyday).training_["dimensions_by"] == "rule: elbow"


def test_more_dimensions_than_the_rank_are_left_out():
    lsi = LSI(3).fit(["tea milk", "tea milk", "bread"])
    assert lsi.n_components_ == 2
    assert lsi.transform(["tea"]).shape == (1, 2)


def test_min_df_leaves_out_rare_words(everyday):
    lsi = LSI(3, min_df=2).fit(everyday)
    frequency = np.bincount(lsi.document_weights().indices, minlength=len(lsi.terms_))
    assert frequency.min() == 2


@pytest.mark.parametrize(
    ("settings", "documents", "message"),
    [
        ({}, "one text", "must be a list of texts or a matrix; got one text"),
        ({}, [], "There are no documents"),
        ({}, ["?", "!"], "There are no words in any of the 2 documents"),
        ({"min_df": 3}, ["tea", "tea"], "No word is in at least min_df=3 documents"),
        ({"min_df": 0}, ["tea"], "min_df must be at least 1; got 0"),
        ({"min_df": True}, ["tea"], "min_df must be a whole number; got True"),
        *(
            ({"n_components": value}, ["tea", "milk"], f"from 1 to 2 .*; got {value!r}")
            for value in (True, np.True_, 1.0)
        ),
        *(
            ({"stop_words": value}, ["tea"], f"stop_words must be None.*; got {value}")
            for value in (5, True, b"the")
        ),
        ({}, [None, "tea"], r"Document 0 \(from 0\) must be a text; got NoneType"),
        ({}, ["tea", None], r"Document 1 \(from 0\) must be a text; got NoneType"),
        ({}, pd.Series([None, "tea"]), r"Document 0 .* must be a text; got float"),
        ({}, np.array([1, "tea"], object), r"must be texts, .*; got items of type int"),
        ({}, [b"tea"], r"must be texts, .*; got items of type bytes"),
        ({}, None, r"must be a list of texts or a matrix; got None"),
        (
            {"n_components": 0},
            ["tea", "milk"],
            "n_components must be an integer from 1 to 2",
        ),
        (
            {"n_components": "knee"},
            ["tea", "milk"],
            "one of 'elbow'.*got 'knee'",
        ),
        (
            {"weighting": "bm25"},
            ["tea"],
            "weighting must be one of tfidf.*got 'bm25'",
        ),
        ({"token_pattern": "("}, ["tea"], "token_pattern must be a regular expression"),
        (
            {"stop_words": "klingon"},
            ["tea"],
            "stop_words must be None, a list of words, or one of",
        ),
        ({}, [DocumentBatch([1], ["a tea", "b"])], "got 1 ids, 1 titles and 2 texts"),
        (
            {},
            [DocumentBatch([1, 2], ["a", "b"], ["t"])],
            "got 2 ids, 1 titles and 2 texts",
        ),
        (
            {},
            {"tea": 1}.items(),
            "must be texts, DocumentBatch or a matrix; got items of type tup",
        ),
    ],
)
def test_what_cannot_be_indexed_is_rejected(settings, documents, message):
    with pytest.raises(DataError, match=message):
        LSI(**settings).fit(documents)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ids": [1]}, "each of 2 documents; got 1"),
        ({"titles": ["a", "b", "c"]}, "each of 2 documents; got 3"),
        ({"ids": [1, 1]}, "Each document needs a distinct id; 1 occurs twice"),
        ({"ids": [1, None]}, "Row 2: the document id is missing"),
        ({"vocabulary": ["tea"]}, "vocabulary is for matrices"),
    ],
)
def test_names_that_do_not_fit_are_rejected(arguments, message):
    with pytest.raises(DataError, match=message):
        LSI(1).fit(["tea", "milk"], **arguments)


def test_a_vocabulary_of_another_length_is_rejected():
    with pytest.raises(DataError, match="one entry for each of 2 terms; got 1"):
        LSI(1).fit(np.eye(2), vocabulary=["tea"])


def test_the_same_seed_gives_the_same_bits(everyday):
    one, other = (LSI(4).fit(everyday).document_vectors() for _ in range(2))
    assert one.tobytes() == other.tobytes()


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (
            lambda lsi: lsi.fit({"a": "tea", "b": "milk"}),
            r"got a mapping. Give its values, and ",
        ),
        (lambda lsi: lsi.fit([1, 2, 3]), r"must be texts, .*; got items of type int\."),
        (
            lambda lsi: lsi.query(5),
            r"A query must be a text, several texts, or .*; got int\.",
        ),
        (lambda lsi: lsi.query({"tea": 1}), r"A query must be a text, .*; got dict\."),
        (
            lambda lsi: lsi.query(pl.DataFrame({"text": ["tea"]})),
            r"A query must be a text, .*; got DataFrame\.",
        ),
        (lambda lsi: lsi.query([None, "tea"]), r"Query 0 .* must be a text; got None"),
        (
            lambda lsi: lsi.similar_documents(99),
            r"Unknown document 99; the nearest ids are 2, 1",
        ),
    ],
)
def test_mistakes_are_answered_with_what_would_be_right(ask, message):
    lsi = LSI(2).fit(["tea and milk", "milk and bread", "bread and tea"])
    with pytest.raises((DataError, UnknownIdError), match=message):
        ask(lsi)


def test_columns_of_coordinates_have_names(index):
    assert list(index.get_feature_names_out()) == [f"lsi{i}" for i in range(5)]


def test_rejects_unknown_parts_of_the_package():
    assert {"LSI", "Documents"} <= set(dir(recsys.lsi))
    with pytest.raises(AttributeError, match=r"No recsys\.lsi attribute lsa"):
        recsys.lsi.lsa  # noqa: B018


def test_one_query_is_explained_at_a_time(index):
    with pytest.raises(
        DataError, match="explain takes one query, as a text or a vector"
    ):
        index.explain(["nurse", "doctor"], 0)


def test_a_document_without_words_explains_nothing(everyday):
    lsi = LSI(3, method="lsi", stop_words="english").fit([*everyday, "..."])
    found = lsi.explain("nurse doctor", len(everyday))
    assert found["contribution"].to_list() == [0.0, 0.0]
    assert found["through"].to_list() == [None, None]


def test_batches_have_names_of_their_own(everyday):
    batch = DocumentBatch(["a", "b"], everyday[:2])
    for given in ({"ids": ["c", "d"]}, {"titles": ["c", "d"]}):
        with pytest.raises(DataError, match="Batches of documents have ids and titles"):
            LSI(1).fit([batch], **given)


def test_names_of_a_matrix_are_as_many_as_its_rows():
    counts = np.array([[2, 0, 1], [0, 1, 0], [1, 0, 3]])
    for name in ("ids", "titles"):
        message = f"{name} must have one entry for each of 3 documents; got 2"
        with pytest.raises(DataError, match=message):
            LSI(1).fit(counts, **{name: ["a", "b"]})


@pytest.mark.parametrize("n_components", [None, 1])
def test_terms_that_are_the_same_everywhere_leave_nothing(n_components):
    with pytest.raises(DataError, match="all terms have weight zero everywhere"):
        LSI(n_components, weighting="log-entropy").fit(
            ["salt ice", "salt ice", "salt ice"]
        )


def test_rows_of_a_vectorizer_are_added_and_asked_as_they_are(everyday):
    rows = TfidfVectorizer().fit_transform(everyday)
    lsi = LSI(5, weighting="count").fit(rows)
    np.testing.assert_allclose(
        lsi.transform(rows[:3]), lsi.document_vectors([0, 1, 2]), atol=1e-12
    )
    lsi.add_documents(rows[:3], method="fold-in")
    n = len(everyday)
    np.testing.assert_allclose(
        lsi.document_vectors([n, n + 1, n + 2]),
        lsi.document_vectors([0, 1, 2]),
        atol=1e-12,
    )


def test_cosines_by_block_and_by_pair_are_the_same():
    rng = np.random.default_rng(0)
    queries, vectors = rng.normal(size=(3, 4)), rng.normal(size=(5, 4))
    vectors[2] = 0
    queries, vectors = queries.astype(np.float32), vectors.astype(np.float32)
    matches = Cosine(vectors, queries)
    block = matches.scores(np.arange(3))
    users, items = np.divmod(np.arange(15), 5)
    np.testing.assert_allclose(
        block.ravel(), matches.pair_scores(users, items), atol=1e-6
    )
    for user in range(3):
        np.testing.assert_allclose(
            block[user], matches.scores(np.array([user]))[0], atol=1e-6
        )
    assert np.isnan(block[:, 2]).all()


@pytest.mark.parametrize(
    "order", [[2, 1, 0], [0, 2], [1]], ids=["reversed", "filtered", "another label"]
)
def test_ids_and_titles_of_pandas_go_by_place(order):
    table = pd.DataFrame(
        {
            "text": ["old ships", "old tea", "new trams"],
            "name": list("abc"),
            "title": list("xyz"),
        }
    ).iloc[order]
    lsi = LSI(1).fit(table["text"], ids=table["name"], titles=table["title"])
    assert lsi.documents_.ids.values.to_list() == table["name"].tolist()
    assert lsi.documents_.table["title"].to_list() == table["title"].tolist()


@pytest.mark.parametrize(
    "queries",
    [
        pd.Series(["ship", "tea"], index=[7, 8]),
        pd.Series(["ship", "tea"], dtype="string"),
        pd.Series(["ship", "tea"], dtype="category"),
        pd.Index(["ship", "tea"]),
        np.array(["ship", "tea"]),
        np.array(["ship", "tea"], dtype=object),
        pl.Series(["ship", "tea"]),
        ("ship", "tea"),
    ],
    ids=lambda queries: f"{type(queries).__module__}-{getattr(queries, 'dtype', '')}",
)
def test_queries_in_any_column(queries):
    lsi = LSI(2).fit(["a ship", "some tea", "a ship of tea"])
    found = lsi.query(queries, n=1)
    assert found.equals(lsi.query(["ship", "tea"], n=1))
    assert found["query"].to_list() == ["ship", "tea"]


@pytest.mark.parametrize(
    "nothing", [[], (), np.array([]), pl.Series([], dtype=pl.String)]
)
def test_no_queries_are_rejected(nothing):
    with pytest.raises(DataError, match=r"There are no queries\."):
        LSI(1).fit(["a ship", "some tea"]).query(nothing)


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame, pl.LazyFrame])
def test_a_frame_of_texts_is_rejected(frame):
    with pytest.raises(
        DataError, match=r"got a frame with columns that are not numbers\. Give its col"
    ):
        LSI(1).fit(frame({"text": ["a ship", "some tea"]}))


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame])
def test_a_frame_of_counts_is_a_matrix(frame):
    counts = {"ship": [1, 0, 1], "tea": [0, 2, 1]}
    assert LSI(1).fit(frame(counts)).document_vectors().shape == (3, 1)


def test_terms_and_words_say_what_they_are():
    lsi = LSI(1).fit(["one ship", "two ships"])
    assert repr(lsi.terms_) == "Ids(term: 4 of String: 'one', 'ship', 'ships', ...)"
    assert repr(lsi.documents_.ids) == "Ids(document: 2 of Int64: 0, 1)"
    words = Eigenwords(1)
    assert repr(words) == "<Eigenwords: not fitted>"
    assert (
        repr(words.fit(["one ship", "two ships"]))
        == "<Eigenwords: 4 words in 1 dimension>"
    )


def test_missing_titles_of_pandas_are_none():
    texts = ["black tea", "green tea", "oat milk"]
    titles = pd.Series([np.nan, "Sencha", None])
    expected = LSI(2).fit(texts, titles=[None, "Sencha", None]).query("tea")
    assert LSI(2).fit(texts, titles=titles).query("tea").equals(expected)
    with pytest.raises(DataError, match=r"Title 1 \(from 0\) must be a text; got int"):
        LSI(2).fit(texts, titles=[None, 5, "Milk"])


def test_labels_of_queries_are_as_many_as_queries(index):
    found = index.query(["nurse", "doctor"], 1, labels=["a", 1])
    assert found["query"].to_list() == ["a", "1"]
    for labels in (["a"], ["a", "b", "c"]):
        message = (
            rf"labels must have one entry for each of 2 queries; got {len(labels)}"
        )
        with pytest.raises(DataError, match=message):
            index.query(["nurse", "doctor"], labels=labels)


def test_no_documents_are_similar_to_none(index):
    empty = index.similar_documents([])
    assert empty.schema == index.similar_documents(0).schema
    assert empty.is_empty()
    with pytest.raises(DataError, match="n must be at least 1; got 0"):
        index.similar_documents(0, n=0)

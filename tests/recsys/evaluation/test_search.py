"""Measures of retrieval on judged queries."""

from __future__ import annotations

import math
import random

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recsys.errors import DataError
from recsys.evaluation.search import evaluate_search
from recsys.lsi import LSI
from recsys.readers.judgements import Judgements, places_of

TEXTS = ["tea", "tea tea milk", "milk bread", "bread", "water"]


def judged(*rows):
    frame = pl.DataFrame(rows, schema=["query", "document", "relevance"], orient="row")
    return Judgements(frame.cast({"relevance": pl.Float64}), "by hand")


def test_measures_equal_their_definitions():
    lsi = LSI(3).fit(TEXTS, ids=[1, 2, 3, 4, 5])
    found = evaluate_search(
        lsi,
        ["a", "b"],
        ["tea", "bread"],
        judged(("a", "1", 1), ("a", "3", 1), ("b", "4", 1), ("b", "5", 0)),
        methods=["bm25"],
    )
    ranked = lsi.query("tea", method="bm25")["document"].to_list()
    # document 3 is not found, and half of the relevant ones is lost
    rank = ranked.index(1) + 1
    values = found.per_user.filter(user="a").row(0, named=True)
    assert values["map@1000"] == pytest.approx(1 / rank / 2)
    assert values["mrr@1000"] == pytest.approx(1 / rank)
    assert values["precision@10"] == pytest.approx(0.1)
    assert values["recall@100"] == 0.5
    gains = 1 / np.log2([2, 3])
    assert values["ndcg@10"] == pytest.approx(1 / np.log2(rank + 1) / gains.sum())
    assert found.table.columns[:3] == ["model", "map@1000", "ndcg@10"]
    assert found.table["queries"].to_list() == [2]


def test_methods_are_compared_by_paired_tests():
    lsi = LSI(3).fit(TEXTS * 10)
    rows = [(str(q), str(d), 1) for q in range(4) for d in range(q, 50, 5)]
    found = evaluate_search(
        lsi, range(4), ["tea", "tea milk", "milk bread", "bread"], judged(*rows)
    )
    assert set(found.comparisons["metric"]) == set(found.metrics["metric"])
    assert found.comparisons.height == 3 * 5
    assert found.comparisons["p_value"].is_between(0, 1).all()


@pytest.mark.parametrize(
    ("wanted", "ids", "places", "how"),
    [
        (["2", "x"], ["x", 2], [1, 0], ""),
        (["CACM-0012", "CACM-7"], [7, 12], [1, 0], "by the numbers they end in"),
        (["01", "7"], [1, 7, 9], [0, 1], "without leading zeros"),
        (["01", "07"], ["1", "7", "9"], [0, 1], "without leading zeros"),
        (["01", "7"], ["1", "7", "9"], [-1, 1], ""),
        (["d1", "x1", "x2"], ["d1", "d2"], [0, -1, -1], ""),
        (["x1", "y1"], ["d1", "d2"], [-1, -1], ""),
        (["x1", "x2"], ["d1", "e1"], [-1, -1], ""),
        (["x1", "x2", "x3"], ["d1", "d7"], [-1, -1, -1], ""),
        (["1", "2", "3"], [1, 2, 4], [0, 1, 2], "in the order of the file"),
        (["1", "2", "5"], [1, 2, 4], [0, 1, -1], ""),
        (["1", "3"], [1, 2, 4], [0, -1], ""),
    ],
)
def test_ids_are_matched(wanted, ids, places, how):
    found, words = places_of(pl.Series(wanted), ids, in_order="order" in how or not how)
    assert (found.tolist(), words) == (places, how)


def of_trec(ranked, relevant):
    """The measures of one query by the definitions of trec_eval, one document after the other."""
    found, precisions, gain = 0, 0.0, 0.0
    first = None
    for rank, document in enumerate(ranked[:1000], 1):
        if document in relevant:
            found += 1
            first = first or rank
            precisions += found / rank
            gain += 1 / math.log2(rank + 1) if rank <= 10 else 0
    ideal = sum(
        1 / math.log2(rank + 1) for rank in range(1, min(10, len(relevant)) + 1)
    )
    return {
        "map@1000": precisions / len(relevant),
        "ndcg@10": gain / ideal,
        "precision@10": len([each for each in ranked[:10] if each in relevant]) / 10,
        "recall@100": len([each for each in ranked[:100] if each in relevant])
        / len(relevant),
        "mrr@1000": 1 / first if first else 0,
    }


@given(st.integers(0, 2**32))
@settings(max_examples=12, deadline=None)
def test_measures_equal_trec_eval_with_missing_documents(seed):
    draw = random.Random(seed)
    words = ["tea", "milk", "bread", "water", "salt", "ice"]
    ids = [f"d{n}" for n in range(30)]
    lsi = LSI(3).fit([" ".join(draw.choices(words, k=3)) for _ in ids], ids=ids)
    missing = [f"x{n}" for n in range(draw.choice([0, 3, 20, 200]))]
    queries = {f"q{n}": " ".join(draw.sample(words, 2)) for n in range(4)}
    relevant = {
        query: draw.sample(ids + missing, draw.randint(1, 8)) for query in queries
    }
    relevant["q0"][0] = "d5"
    rows = [(query, each, 1) for query in queries for each in relevant[query]]
    rows += [("q1", "d7", 0)] * ("d7" not in relevant["q1"])
    found = evaluate_search(
        lsi, [*queries], [*queries.values()], judged(*rows), methods=["lsi"]
    )
    for row in found.per_user.rows(named=True):
        query = row["user"]
        ranked = lsi.query(queries[query], 1000, method="lsi")["document"].to_list()
        expected = of_trec(ranked, {*relevant[query]})
        assert {name: row[name] for name in expected} == pytest.approx(expected)


def test_more_relevant_documents_than_are_searched_all_count():
    lsi = LSI(2).fit(["tea milk"] * 1200 + ["bread"])
    rows = [("q", str(n), 1) for n in range(1200)]
    found = evaluate_search(lsi, ["q"], ["tea"], judged(*rows), methods=["bm25"])
    assert found.per_user["map@1000"].to_list() == pytest.approx([1000 / 1200])


def test_a_reading_of_ids_is_decided_by_all_judgements():
    """The relevant documents x1 and x2 are not there; d1 and d2 are judged as not relevant."""
    lsi = LSI(3).fit(TEXTS, ids=["d1", "d2", "d3", "d4", "d5"])
    rows = [("a", "x1", 1), ("a", "x2", 1), ("a", "d1", 0), ("b", "d3", 1)]
    found = evaluate_search(
        lsi, ["a", "b"], ["tea", "milk"], judged(*rows), methods=["bm25"]
    )
    assert found.per_user.filter(user="a")["recall@100"].to_list() == [0]
    assert "2 relevant documents outside of the index" in found.splits[0].description


def test_judgements_of_nothing_that_is_there_are_rejected():
    lsi = LSI(2).fit(TEXTS, ids=list("abcde"))
    with pytest.raises(DataError, match="ids such as 'q9' and 'z'"):
        evaluate_search(lsi, ["q1"], ["tea"], judged(("q9", "z", 1)))
    with pytest.raises(DataError, match="judgements have no relevant document"):
        evaluate_search(
            lsi, ["q1"], ["tea"], Judgements(judged(("q1", "a", 0)).frame.head(0), "")
        )

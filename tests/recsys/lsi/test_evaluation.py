"""Measures of retrieval on judged queries."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from recsys.errors import DataError
from recsys.lsi import LSI
from recsys.lsi.evaluation import evaluate_search
from recsys.readers.collections import Judgements, places_of

TEXTS = ["tea", "tea tea milk", "milk bread", "bread", "water"]


def judged(*rows):
    frame = pl.DataFrame(rows, schema=["query", "document", "relevance"], orient="row")
    return Judgements(frame.cast({"relevance": pl.Float64}), "by hand")


def test_measures_are_those_of_the_definitions():
    lsi = LSI(3).fit(TEXTS, ids=[1, 2, 3, 4, 5])
    found = evaluate_search(
        lsi,
        ["a", "b"],
        ["tea", "bread"],
        judged(("a", "1", 1), ("a", "3", 1), ("b", "4", 1), ("b", "5", 0)),
        methods=["bm25"],
    )
    ranked = lsi.query("tea", method="bm25")["document"].to_list()
    rank = ranked.index(1) + 1  # document 3 is not found, and half of the relevant ones is lost
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
        (["1", "2", "3"], [1, 2, 4], [0, 1, 2], "in the order of the file"),
    ],
)
def test_ids_are_matched(wanted, ids, places, how):
    found, words = places_of(pl.Series(wanted), ids, in_order="order" in how)
    assert (found.tolist(), words) == (places, how)


def test_judgements_of_nothing_that_is_there_are_rejected():
    lsi = LSI(2).fit(TEXTS, ids=list("abcde"))
    with pytest.raises(DataError, match="ids such as 'q9' and 'z'"):
        evaluate_search(lsi, ["q1"], ["tea"], judged(("q9", "z", 1)))
    with pytest.raises(DataError, match="judgements have no relevant document"):
        evaluate_search(lsi, ["q1"], ["tea"], Judgements(judged(("q1", "a", 0)).frame.head(0), ""))

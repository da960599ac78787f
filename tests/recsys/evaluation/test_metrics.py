"""Metrics worked out by hand, and against the definitions spelled out."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from recsys.errors import DataError
from recsys.evaluation import DEFINITIONS, hit_matrix, mae, ndcg, precision, recall, rmse
from recsys.ratings import Ratings
from recsys.topn import TopN

LOG3 = math.log2(3)


def test_rating_errors_by_hand():
    predicted, actual = np.float32([3, 4, 5]), np.float32([3, 2, 4])
    assert rmse(predicted, actual) == pytest.approx(math.sqrt(5 / 3))
    assert mae(predicted, actual) == pytest.approx(1)


@pytest.mark.parametrize("metric", [rmse, mae])
def test_rating_errors_need_equally_many(metric):
    with pytest.raises(DataError, match=r"must be as many, and some; got shapes \(2,\) and \(3,\)"):
        metric(np.ones(2), np.ones(3))
    with pytest.raises(DataError, match=r"got shapes \(0,\) and \(0,\)"):
        metric(np.ones(0), np.ones(0))


def test_ranking_by_hand():
    hits = np.array(
        [
            [True, False, True],  # 2 of the 3 relevant, at ranks 1 and 3
            [False, True, False],  # the only relevant one, at rank 2
            [False, False, False],  # none of 5
            [True, True, True],  # 3 of 7: as good as a list of 3 can be
        ]
    )
    n_relevant = np.array([3, 1, 5, 7])
    assert precision(hits).tolist() == [2 / 3, 1 / 3, 0, 1]
    assert recall(hits, n_relevant).tolist() == [2 / 3, 1, 0, 3 / 7]
    best_of_three = 1 + 1 / LOG3 + 1 / 2
    expected = [(1 + 1 / 2) / best_of_three, 1 / LOG3, 0, 1]
    np.testing.assert_allclose(ndcg(hits, n_relevant), expected)


def test_precision_divides_by_n_though_less_is_relevant():
    hits = np.array([[True] + [False] * 9])
    assert precision(hits)[0] == 0.1
    assert ndcg(hits, np.array([1]))[0] == 1


def brute_force(recommended, relevant, n):
    """Precision, recall and NDCG of one user, straight from the definitions."""
    found = [item in relevant for item in recommended[:n]]
    gain = sum(1 / math.log2(rank + 1) for rank, hit in enumerate(found, start=1) if hit)
    ideal = sum(1 / math.log2(rank + 1) for rank in range(1, min(n, len(relevant)) + 1))
    return sum(found) / n, sum(found) / len(relevant), gain / ideal


@given(st.data(), st.integers(1, 8), st.integers(1, 6), st.integers(1, 4))
def test_ranking_equals_brute_force(data, n_items, n, n_users):
    items = st.permutations(range(n_items))
    lists = [data.draw(items)[: data.draw(st.integers(0, n))] for _ in range(n_users)]
    relevant = data.draw(hnp.arrays(bool, (n_users, n_items)))
    relevant[:, data.draw(st.integers(0, n_items - 1))] = True
    ratings = Ratings.from_matrix(np.where(relevant, 1.0, np.nan))
    hits = hit_matrix([as_top(lists)], np.arange(n_users), ratings, n)
    n_relevant = relevant.sum(axis=1)
    found = np.column_stack([precision(hits), recall(hits, n_relevant), ndcg(hits, n_relevant)])
    expected = [
        brute_force(listed, set(np.flatnonzero(row)), n)
        for listed, row in zip(lists, relevant, strict=True)
    ]
    np.testing.assert_allclose(found, expected)
    assert ((found >= 0) & (found <= 1 + 1e-12)).all()


def as_top(lists):
    rows = [row for row, items in enumerate(lists) for _ in items]
    ranks = [rank for items in lists for rank in range(1, len(items) + 1)]
    flat = [item for items in lists for item in items]
    return TopN(
        np.array(rows, np.int64),
        np.array(flat, np.int64),
        np.array(ranks, np.int32),
        np.zeros(len(rows), np.float32),
    )


def test_hits_of_some_users_in_blocks():
    ratings = Ratings.from_matrix(np.array([[1, np.nan], [1, np.nan], [np.nan, 1]]))
    users = np.array([2, 0])
    first = TopN(np.array([0]), np.array([1]), np.array([1]), np.zeros(1))
    second = TopN(np.array([1, 1]), np.array([1, 0]), np.array([1, 2]), np.zeros(2))
    hits = hit_matrix([first, second], users, ratings, 3)
    assert hits.tolist() == [[True, False, False], [False, True, False]]


def test_every_metric_has_a_definition_in_words():
    assert set(DEFINITIONS) == {"rmse", "mae", "precision", "recall", "ndcg"}

"""Metrics worked out by hand, and against the definitions spelled out."""

import math

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from recsys.data.ratings import Ratings
from recsys.errors import DataError
from recsys.evaluation import (
    METRICS,
    average_precision,
    evaluate,
    hit_matrix,
    hit_rate,
    mae,
    ndcg,
    precision,
    random_split,
    recall,
    reciprocal_rank,
    rmse,
)
from recsys.evaluation.metrics import grades_of, highest_grades

LOG3 = math.log2(3)


def test_rating_errors_by_hand():
    predicted, actual = np.float32([3, 4, 5]), np.float32([3, 2, 4])
    assert rmse(predicted, actual) == pytest.approx(math.sqrt(5 / 3))
    assert mae(predicted, actual) == pytest.approx(1)


@pytest.mark.parametrize("metric", [rmse, mae])
def test_rating_errors_need_equally_many(metric):
    with pytest.raises(
        DataError,
        match=r"must have the same, non-zero length; got shapes \(2,\) and \(3,\)",
    ):
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


def test_the_other_ranking_metrics_by_hand():
    hits = np.array(
        [
            [True, False, True],  # precision 1 and 2/3 at the hits, of 3 relevant
            [False, True, False],  # the only relevant one, at rank 2
            [False, False, False],
            [True, True, True],  # 3 of 7
        ]
    )
    n_relevant = np.array([3, 1, 5, 7])
    assert hit_rate(hits).tolist() == [1, 1, 0, 1]
    assert reciprocal_rank(hits).tolist() == [1, 1 / 2, 0, 1]
    expected = [(1 + 2 / 3) / 3, 1 / 2, 0, 1]
    np.testing.assert_allclose(average_precision(hits, n_relevant), expected)


def brute_force(recommended, relevant, n):
    """All metrics of one user, straight from the definitions."""
    found = [item in relevant for item in recommended[:n]]
    ranks = [rank for rank, hit in enumerate(found, start=1) if hit]
    gain = sum(1 / math.log2(rank + 1) for rank in ranks)
    ideal = sum(1 / math.log2(rank + 1) for rank in range(1, min(n, len(relevant)) + 1))
    precisions = [sum(found[:rank]) / rank for rank in ranks]
    return (
        sum(found) / n,
        sum(found) / len(relevant),
        float(any(found)),
        sum(precisions) / min(n, len(relevant)),
        1 / ranks[0] if ranks else 0.0,
        gain / ideal,
    )


def measured(hits, n_relevant):
    return np.column_stack(
        [
            precision(hits),
            recall(hits, n_relevant),
            hit_rate(hits),
            average_precision(hits, n_relevant),
            reciprocal_rank(hits),
            ndcg(hits, n_relevant),
        ]
    )


@given(st.data(), st.integers(1, 8), st.integers(1, 6), st.integers(1, 4))
def test_ranking_equals_brute_force(data, n_items, n, n_users):
    items = st.permutations(range(n_items))
    lists = [data.draw(items)[: data.draw(st.integers(0, n))] for _ in range(n_users)]
    relevant = data.draw(hnp.arrays(bool, (n_users, n_items)))
    relevant[:, data.draw(st.integers(0, n_items - 1))] = True
    ratings = Ratings.from_matrix(np.where(relevant, 1.0, np.nan))
    hits = hit_matrix(as_lists(lists, n), np.arange(n_users), ratings)
    expected = [
        [brute_force(listed, set(np.flatnonzero(row)), m) for m in range(1, n + 1)]
        for listed, row in zip(lists, relevant, strict=True)
    ]
    for m in range(1, n + 1):
        found = measured(hits[:, :m], relevant.sum(axis=1))
        np.testing.assert_allclose(found, [row[m - 1] for row in expected], rtol=1e-12)
        assert ((found >= 0) & (found <= 1 + 1e-12)).all()


def as_lists(lists, n):
    padded = np.full((len(lists), n), -1, dtype=np.int32)
    for row, items in enumerate(lists):
        padded[row, : len(items)] = items
    return padded


def test_hits_of_some_users():
    ratings = Ratings.from_matrix(np.array([[1, np.nan], [1, np.nan], [np.nan, 1]]))
    users = np.array([2, 0])
    lists = as_lists([[1], [1, 0]], 3)
    expected = [[True, False, False], [False, True, False]]
    assert hit_matrix(lists, users, ratings).tolist() == expected
    nothing = ratings.take(np.zeros(3, bool))
    assert not hit_matrix(lists, users, nothing).any()


def test_a_rank_without_an_item_is_not_a_hit_of_the_user_before():
    ratings = Ratings.from_matrix(np.array([[np.nan, 1.0], [1.0, np.nan]]))
    assert not hit_matrix(as_lists([[], []], 2), np.array([0, 1]), ratings).any()


def test_every_metric_has_a_definition_in_words_and_a_direction():
    assert all(
        name == metric.name and metric.definition for name, metric in METRICS.items()
    )
    assert {metric.direction for metric in METRICS.values()} == {-1, 0, 1}
    assert {metric.scope for metric in METRICS.values()} == {
        "ratings",
        "user",
        "catalogue",
    }


@pytest.mark.parametrize("n", [1, 3, 8])
def test_graded_metrics_equal_brute_force(n):
    generator = np.random.default_rng(n)
    matrix = generator.integers(0, 6, (20, 9)).astype(float)
    matrix[matrix == 0] = np.nan
    matrix[:, 0] = 1.0  # no user without a rating
    relevant = Ratings.from_matrix(matrix)
    users = np.arange(20)[::2]
    lists = np.stack([generator.permutation(9)[:n] for _ in users]).astype(np.int32)
    lists[0, 1:] = -1
    grades = grades_of(lists, users, relevant)
    ideal = highest_grades(n, users, relevant)
    gains = METRICS["graded_ndcg"].function(grades, ideal)
    reciprocal = METRICS["err"].function(grades, 5.0)
    for row, user in enumerate(users):
        ratings = np.nan_to_num(matrix[user])
        listed = [item for item in lists[row] if item >= 0]
        assert grades[row, : len(listed)].tolist() == ratings[listed].tolist()
        best = sorted(ratings, reverse=True)[:n]
        assert ideal[row].tolist() == best
        dcg = sum(ratings[item] / np.log2(k + 2) for k, item in enumerate(listed))
        highest_dcg = sum(grade / np.log2(k + 2) for k, grade in enumerate(best))
        assert gains[row] == pytest.approx(dcg / highest_dcg)
        expected = 0.0
        reaches = 1.0
        for k, item in enumerate(listed):
            satisfies = (2 ** ratings[item] - 1) / 2**5
            expected += reaches * satisfies / (k + 1)
            reaches *= 1 - satisfies
        assert reciprocal[row] == pytest.approx(expected)


def test_graded_ndcg_equals_scikit_learn():
    from sklearn.metrics import ndcg_score

    generator = np.random.default_rng(0)
    ratings = generator.integers(1, 6, (5, 12)).astype(float)
    scores = generator.random((5, 12))
    lists = np.argsort(-scores, axis=1)[:, :4].astype(np.int32)
    relevant = Ratings.from_matrix(ratings)
    users = np.arange(5)
    graded = METRICS["graded_ndcg"].function(
        grades_of(lists, users, relevant), highest_grades(4, users, relevant)
    )
    assert graded.mean() == pytest.approx(ndcg_score(ratings, scores, k=4))


def test_own_metrics_see_users_and_tables():
    split = random_split(Ratings.from_matrix(np.full((30, 9), 4.0)), random_state=0)
    seen = []

    def first_user(users, train, grades, lists, highest):
        seen.append((train.n_items, grades.max(), highest))
        return users * 1.0

    evaluation = evaluate("popular", split, n=2, metrics=[first_user], resamples=0)
    users = evaluation.per_user
    assert seen == [(9, 4.0, 4.0)]
    measured = users.filter(pl.col("first_user@2").is_not_null())
    assert measured["first_user@2"].to_list() == measured["user"].to_list()

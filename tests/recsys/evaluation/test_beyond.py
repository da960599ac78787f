"""What is measured besides accuracy, by hand and against loops over pairs."""

import math
from itertools import combinations

import numpy as np
import pytest
import scipy.sparse as sp

from recsys.data.ratings import Ratings
from recsys.evaluation.metrics import (
    Catalogue,
    cooccurrence_vectors,
    coverage,
    coverage_influence,
    diversity,
    gini,
    gini_influence,
    novelty,
    popularity_bias,
    recommended_counts,
)

NAN = np.nan


@pytest.fixture
def ratings():
    rng = np.random.default_rng(4)
    return Ratings.from_matrix(sp.random_array((60, 20), density=0.3, rng=rng))


@pytest.fixture
def lists():
    """Lists of up to five of twenty items, some shorter, one empty."""
    rng = np.random.default_rng(8)
    found = np.full((30, 5), -1, dtype=np.int32)
    for row in found:
        length = rng.integers(1, 6)
        row[:length] = rng.permutation(12)[:length]
    found[7] = -1
    return found


def test_novelty_and_popularity_by_hand():
    train = Ratings.from_matrix(
        np.array(
            [[1, 1, NAN, NAN], [1, NAN, NAN, NAN], [1, 1, NAN, NAN], [1, NAN, 1, NAN]]
        )
    )
    known = Catalogue.of(train)
    assert known.popularity.tolist() == [1, 1 / 2, 1 / 4, 0]
    lists = np.array([[2, 3], [1, -1], [-1, -1]], dtype=np.int32)
    assert novelty(lists, known.information)[:2].tolist() == [
        2,
        1,
    ]  # item 3 counts as rated once
    profile = known.profile(train, np.array([0, 1, 2]))
    assert profile.tolist() == [3 / 4, 1, 3 / 4]
    bias = popularity_bias(lists, known.popularity, profile)
    assert bias[:2].tolist() == [1 / 8 - 3 / 4, 1 / 2 - 1]
    assert np.isnan(bias[2])


def test_a_user_without_ratings_is_compared_with_all_ratings():
    train = Ratings.from_matrix(np.array([[1.0, NAN], [1.0, 1.0], [NAN, NAN]]))
    known = Catalogue.of(train)
    assert known.popularity.tolist() == [1, 1 / 2]  # of the two users with ratings
    assert known.profile(train, np.array([2]))[0] == pytest.approx((1 + 1 + 1 / 2) / 3)


def test_coverage_and_gini_by_hand():
    lists = np.array([[0, 1], [0, 2], [0, -1]], dtype=np.int32)
    assert coverage(recommended_counts(lists, 5)) == 3 / 5
    # sorted counts 0, 0, 1, 1, 3 with weights -4, -2, 0, 2, 4
    assert gini(recommended_counts(lists, 5)) == (2 * 1 + 4 * 3) / (5 * 5)
    assert gini(recommended_counts(np.array([[0], [1]], dtype=np.int32), 2)) == 0
    assert gini(recommended_counts(np.array([[-1]], dtype=np.int32), 2)) == 0


def test_gini_is_the_mean_difference_of_all_pairs(lists):
    counts = np.bincount(lists[lists >= 0], minlength=20)
    differences = np.abs(counts[:, None] - counts).mean()
    assert gini(recommended_counts(lists, 20)) == pytest.approx(
        differences / (2 * counts.mean())
    )


def cooccurrence(ratings, i, j):
    raters = [set(np.flatnonzero(~np.isnan(column))) for column in dense(ratings).T]
    if not raters[i] or not raters[j]:
        return 0.0
    return len(raters[i] & raters[j]) / math.sqrt(len(raters[i]) * len(raters[j]))


def dense(ratings):
    table = np.full(ratings.shape, NAN)
    table[ratings.user_index_of_nonzeros(), ratings.indices] = ratings.values
    return table


def test_diversity_is_the_mean_over_pairs_where_the_rank_is_full(ratings, lists):
    kept = ratings.take(ratings.indices != 3)  # an item that nobody has rated
    found = diversity(lists, cooccurrence_vectors(kept))
    for row, value in zip(lists, found, strict=True):
        similarity = [
            cooccurrence(kept, i, j) for i, j in combinations(row[row >= 0], 2)
        ]
        if similarity:
            assert value == pytest.approx(1 - np.mean(similarity), abs=1e-5)
        else:
            assert np.isnan(value)


def test_directions_equal_the_best_approximation(ratings):
    ones = np.nan_to_num(dense(ratings) * 0 + 1)
    u, s, vt = np.linalg.svd(ones)
    low = (u[:, :4] * s[:4]) @ vt[:4]
    low /= np.linalg.norm(low, axis=0)
    vectors = cooccurrence_vectors(ratings, k=4)
    np.testing.assert_allclose(vectors @ vectors.T, low.T @ low, atol=1e-4)


@pytest.mark.parametrize(
    ("metric", "influence"), [(coverage, coverage_influence), (gini, gini_influence)]
)
def test_the_influence_is_the_change_without_each_user(lists, metric, influence):
    counts = recommended_counts(lists, 20)
    rest = [
        metric(recommended_counts(np.delete(lists, user, axis=0), 20))
        for user in range(len(lists))
    ]
    np.testing.assert_allclose(
        influence(lists, counts), rest - np.float64(metric(counts)), atol=1e-12
    )

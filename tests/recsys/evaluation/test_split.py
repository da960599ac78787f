"""Splits: nothing lost, nothing in both, indices that agree."""

import numpy as np
import polars as pl
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from recsys.errors import DataError
from recsys.evaluation import random_split, split_from_pair
from recsys.ratings import Ratings


@pytest.fixture
def ratings():
    matrix = sp.random_array((30, 20), density=0.3, rng=np.random.default_rng(0))
    return Ratings.from_matrix(matrix)


def pairs(ratings):
    return set(ratings.to_frame().select("user", "item").iter_rows())


def frame(rows, **options):
    return Ratings.from_frame(
        pl.DataFrame(rows, schema=["user", "item", "rating"], orient="row"), **options
    )


@given(st.floats(0.01, 0.99), st.integers(0, 10))
def test_random_split_parts_the_ratings(fraction, seed):
    matrix = sp.random_array((30, 20), density=0.3, rng=np.random.default_rng(1))
    ratings = Ratings.from_matrix(matrix)
    train, test = random_split(ratings, fraction, seed)
    assert test.n_ratings == round(ratings.n_ratings * fraction)
    assert pairs(train) | pairs(test) == pairs(ratings)
    assert train.n_ratings + test.n_ratings == ratings.n_ratings
    assert train.users is test.users is ratings.users
    assert train.items is test.items is ratings.items


def test_random_split_is_the_documented_permutation(ratings):
    split = random_split(ratings, test_fraction=0.2, seed=7)
    n = ratings.n_ratings
    chosen = np.sort(np.random.default_rng(7).permutation(n)[: round(n * 0.2)])
    np.testing.assert_array_equal(split.test.values, ratings.values[chosen])
    np.testing.assert_array_equal(split.test.indices, ratings.indices[chosen])


def test_random_split_depends_on_the_seed_alone(ratings):
    first, again, other = (random_split(ratings, seed=seed) for seed in (1, 1, 2))
    assert pairs(first.test) == pairs(again.test) != pairs(other.test)


@pytest.mark.parametrize("fraction", [0, 1, -0.1, 1.5, 1e-9, 1 - 1e-9, float("nan")])
def test_empty_parts_are_refused(ratings, fraction):
    with pytest.raises(
        DataError, match=f"leave ratings for both parts; got {fraction} of 180 ratings"
    ):
        random_split(ratings, fraction)


def test_cold_users_and_items_are_counted():
    train = frame([(1, "a", 5.0), (2, "b", 4.0), (3, "c", 4.0)])
    split = split_from_pair(train, frame([(1, "b", 3.0), (2, "a", 1.0)]))
    assert (split.cold_users, split.cold_items) == (0, 0)
    table = np.array([[1, np.nan, 2], [np.nan, 3, np.nan]])
    whole = Ratings.from_matrix(table)
    held_out = np.array([False, False, True])
    cold = type(split)(whole.take(~held_out), whole.take(held_out))
    assert (cold.cold_users, cold.cold_items) == (1, 1)


def test_a_pair_is_aligned_and_what_is_unknown_counted():
    train = frame([("1", "x", 5.0), ("2", "y", 4.0), ("3", "z", 3.0)])
    test = frame(
        [
            (3, "y", 1.0),
            (1, "z", 2.0),
            (9, "x", 3.0),
            (1, "new", 4.0),
            (8, "old", 5.0),
            (3, "x", 2.5),
        ]
    )
    split = split_from_pair(train, test)
    assert split.train is train
    assert split.test.users is train.users
    assert split.test.to_frame().rows() == [("1", "z", 2.0), ("3", "x", 2.5), ("3", "y", 1.0)]
    assert (split.unknown_users, split.unknown_items, split.unknown_ratings) == (2, 2, 3)
    assert np.all(np.diff(split.test.indptr) == [1, 0, 2])


def test_indices_agree_though_text_sorts_otherwise_than_numbers():
    train = frame([("9", "9", 5.0), ("10", "10", 4.0)])
    test = frame([(9, 10, 1.0), (10, 9, 2.0)])
    aligned = split_from_pair(train, test).test
    assert aligned.to_frame().rows() == [("10", "9", 2.0), ("9", "10", 1.0)]
    test = frame([(9, 10, 1.0), (10, 9, 2.0), (10, 11, 2.0)])
    both = split_from_pair(frame([("10", "8", 1.0), ("9", "9", 1.0), ("9", "11", 1.0)]), test)
    assert both.test.to_frame().rows() == [("10", "11", 2.0), ("10", "9", 2.0)]


def test_times_and_kind_of_feedback_come_along():
    train = frame([(1, 7, 5.0), (2, 8, 4.0)])
    test = Ratings.from_frame(pl.DataFrame({"user": [2, 1], "item": [7, 8], "timestamp": [50, 60]}))
    aligned = split_from_pair(train, test).test
    assert aligned.timestamps.tolist() == [60, 50]
    assert aligned.implicit


def test_an_overlap_is_refused_with_its_first_pair():
    train = frame([("ann", "x", 5.0), ("bob", "y", 4.0), ("cy", "z", 3.0)])
    test = frame([("bob", "y", 1.0), ("cy", "z", 2.0), ("ann", "y", 2.0)])
    with pytest.raises(
        DataError,
        match=r"^2 of the test ratings are training ratings as well, "
        r"the first of user 'bob' for item 'y'",
    ):
        split_from_pair(train, test)


def test_nothing_in_common_is_refused():
    with pytest.raises(
        DataError, match="No test rating has both a user and an item of the training"
    ):
        split_from_pair(frame([(1, 1, 5.0)]), frame([(2, 1, 5.0), (1, 2, 5.0)]))

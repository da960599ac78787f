"""Counts that stand where ratings could."""

import numpy as np
import pytest

from recsys.auto import are_counts, as_implicit
from recsys.data.ratings import Ratings
from recsys.models.item_item import weight_unit

PLAYS = np.round(np.exp(np.random.default_rng(0).normal(2, 1.3, 2000))).clip(1)


@pytest.mark.parametrize(
    "values",
    [PLAYS, [1, 1, 2, 11], [3, 4, 400], [0.1, 2.5, 1.5, 340.5]],
    ids=["plays", "few", "large", "hours"],
)
def test_counts_are_told(values):
    assert are_counts(np.array(values, dtype=np.float32))


@pytest.mark.parametrize(
    "values",
    [
        [1, 2, 3, 4, 5],
        [1, 1, 1, 10],  # the worst grade is given most
        [0, 20, 100, 55],
        [70, 85, 20, 100],
        [1, 2, 1, -50, 50],
        [1, 0, 1, 210],
        [],
    ],
)
def test_ratings_are_no_counts(values):
    assert not are_counts(np.array(values, dtype=np.float32))


def test_counts_weigh_1_on_average_and_grades_their_share_of_the_highest():
    assert weight_unit(Ratings.from_matrix(PLAYS.reshape(50, 40))) == pytest.approx(PLAYS.mean())
    assert weight_unit(Ratings.from_matrix(np.array([[1.0, 5.0], [4.0, 3.0]]))) == 5


def test_as_implicit_leaves_who_has_what():
    ratings = Ratings.from_matrix(np.array([[3.0, np.nan], [40.0, 1.0]]))
    implicit = as_implicit(ratings)
    assert implicit.implicit
    np.testing.assert_array_equal(implicit.values, 1)
    np.testing.assert_array_equal(implicit.indices, ratings.indices)

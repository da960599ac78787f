"""The choice of a model by the data, and counts in place of ratings."""

import numpy as np
import polars as pl
import pytest

from recsys.auto import are_counts, as_implicit, choose_model
from recsys.data.ratings import Ratings
from recsys.models.item_item import weight_unit
from recsys.models.registry import make_model

PLAYS = np.round(np.exp(np.random.default_rng(0).normal(2, 1.3, 2000))).clip(1)


def explicit(shape=(50, 40)):
    return Ratings.from_matrix(1.0 + np.arange(np.prod(shape)).reshape(shape) % 5)


def test_ratings_get_als_with_its_defaults():
    ratings = explicit()
    choice = choose_model(ratings)
    assert choice.model == "als"
    assert choice.ratings is ratings
    assert make_model(choice.model, **choice.params).get_params() == make_model("als").get_params()
    assert choice.reason == "the ratings are between 1 and 5"


def test_factors_are_no_more_than_users_or_items():
    assert choose_model(explicit((50, 7))).params == {"factors": 7}
    assert choose_model(explicit((3, 50))).params == {"factors": 3}


def test_interactions_get_spectral():
    ratings = Ratings.from_frame(pl.DataFrame({"user": [1, 2], "item": [1, 1]}))
    choice = choose_model(ratings)
    assert (choice.model, choice.params, choice.ratings) == ("spectral", {"factors": 1}, ratings)


def test_interactions_get_as_many_factors_as_spectral_has_by_default():
    rng = np.random.default_rng(0)
    table = np.where(rng.random((80, 64)) < 0.2, 1.0, np.nan)
    ratings = Ratings.from_matrix(table, implicit=True)
    choice = choose_model(ratings)
    assert choice.params == {"factors": 4}
    chosen = make_model(choice.model, **choice.params).fit(ratings)
    np.testing.assert_array_equal(
        chosen.item_factors, make_model("spectral").fit(ratings).item_factors
    )


def test_constant_ratings_are_interactions():
    choice = choose_model(Ratings.from_matrix(np.full((3, 2), 5.0)))
    assert choice.model == "spectral"
    assert choice.ratings.implicit
    np.testing.assert_array_equal(choice.ratings.values, 1)
    assert choice.reason == "all ratings are 5, which makes them implicit feedback"


def test_a_single_rating_is_a_rating():
    assert choose_model(Ratings.from_matrix(np.array([[4.0]]))).model == "als"


def test_counts_are_interactions():
    plays = np.array([[1.0, 3, np.nan], [212, 7, 1], [2, np.nan, 40]])
    choice = choose_model(Ratings.from_matrix(plays))
    assert choice.model == "spectral"
    assert choice.ratings.implicit
    np.testing.assert_array_equal(choice.ratings.values, 1)
    assert (
        choice.reason == "the ratings look like counts or amounts, from 1 to 212: implicit feedback"
    )


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

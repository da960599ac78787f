"""The choice of a model by the data."""

import numpy as np
import polars as pl

from recsys.auto import choose_model
from recsys.data.ratings import Ratings
from recsys.models.registry import make_model


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


def test_contacts_get_spectral():
    ratings = Ratings.from_frame(pl.DataFrame({"user": [1, 2], "item": [1, 1]}))
    choice = choose_model(ratings)
    assert (choice.model, choice.params, choice.ratings) == ("spectral", {"factors": 1}, ratings)


def test_contacts_get_as_many_factors_as_spectral_has_by_default():
    rng = np.random.default_rng(0)
    table = np.where(rng.random((80, 64)) < 0.2, 1.0, np.nan)
    ratings = Ratings.from_matrix(table, implicit=True)
    choice = choose_model(ratings)
    assert choice.params == {"factors": 4}
    chosen = make_model(choice.model, **choice.params).fit(ratings)
    np.testing.assert_array_equal(
        chosen.item_factors, make_model("spectral").fit(ratings).item_factors
    )


def test_constant_ratings_are_contacts():
    choice = choose_model(Ratings.from_matrix(np.full((3, 2), 5.0)))
    assert choice.model == "spectral"
    assert choice.ratings.implicit
    np.testing.assert_array_equal(choice.ratings.values, 1)
    assert choice.reason == "all ratings are 5, which makes them implicit feedback"


def test_a_single_rating_is_a_rating():
    assert choose_model(Ratings.from_matrix(np.array([[4.0]]))).model == "als"


def test_counts_are_contacts():
    plays = np.array([[1.0, 3, np.nan], [212, 7, 1], [2, np.nan, 40]])
    choice = choose_model(Ratings.from_matrix(plays))
    assert choice.model == "spectral"
    assert choice.ratings.implicit
    np.testing.assert_array_equal(choice.ratings.values, 1)
    assert (
        choice.reason == "the ratings look like counts or amounts, from 1 to 212: implicit feedback"
    )

"""The choice of a model by the data, and counts in place of ratings."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from recsys.auto import Auto, Candidate, Choice, as_implicit, choose_model
from recsys.data.feedback import judge_values
from recsys.data.ids import Ids
from recsys.data.ratings import Ratings
from recsys.errors import NotFittedError
from recsys.models.item_item import weight_unit
from recsys.models.registry import make_model
from recsys.recommender import Recommender

PLAYS = np.round(np.exp(np.random.default_rng(0).normal(2, 1.3, 2000))).clip(1)


def explicit(shape=(50, 40)):
    return Ratings.from_matrix(1.0 + np.arange(np.prod(shape)).reshape(shape) % 5)


def names_of(choice):
    return [str(each) for each in choice.candidates]


def test_few_ratings_get_als_with_its_defaults():
    ratings = explicit((50, 33))
    choice = choose_model(ratings)
    assert choice.ratings is ratings
    (only,) = choice.candidates
    assert only.unfitted(0, None).get_params() == make_model("als").get_params()
    assert str(choice) == "als, 32 factors: the ratings are between 1 and 5"


def test_has_at_most_as_many_factors_as_users_or_items():
    assert choose_model(explicit((50, 7))).candidates[0].params == {"factors": 7}
    assert choose_model(explicit((3, 50))).candidates[0].params == {"factors": 3}


def test_few_interactions_get_spectral_with_its_defaults():
    ratings = Ratings.from_frame(pl.DataFrame({"user": [1, 2], "item": [1, 1]}))
    choice = choose_model(ratings)
    assert choice.ratings is ratings
    assert str(choice).startswith("spectral, 1 factor: there are no ratings")
    rng = np.random.default_rng(0)
    table = np.where(rng.random((80, 64)) < 0.2, 1.0, np.nan)
    ratings = Ratings.from_matrix(table, implicit=True)
    (only,) = choose_model(ratings).candidates
    np.testing.assert_array_equal(
        only.unfitted(0, None).fit(ratings).item_factors,
        make_model("spectral").fit(ratings).item_factors,
    )


def test_constant_ratings_are_interactions():
    choice = choose_model(Ratings.from_matrix(np.full((3, 2), 5.0)))
    assert names_of(choice) == ["spectral"]
    assert choice.ratings.implicit
    np.testing.assert_array_equal(choice.ratings.values, 1)
    assert choice.reason == "all ratings are 5, which makes them implicit feedback"


def test_a_single_rating_is_a_rating():
    assert names_of(choose_model(Ratings.from_matrix(np.array([[4.0]])))) == ["als"]


def test_counts_are_interactions():
    plays = np.array([[1.0, 3, np.nan], [212, 7, 1], [2, np.nan, 40]])
    choice = choose_model(Ratings.from_matrix(plays))
    assert names_of(choice) == ["spectral"]
    assert choice.ratings.implicit
    np.testing.assert_array_equal(choice.ratings.values, 1)
    assert (
        choice.reason
        == "the ratings look like counts or amounts, from 1 to 212: implicit feedback"
    )


def test_the_candidates_follow_from_kind_and_size():
    ratings = explicit((60, 50))
    assert names_of(choose_model(ratings)) == ["als", "als linked", "bayes"]
    likes = as_implicit(ratings)
    assert names_of(choose_model(likes)) == ["spectral", "ials", "ease"]
    wide = replace(likes, items=Ids(list(range(3000)), "item"))
    assert names_of(choose_model(wide)) == ["spectral", "ials", "sparse-ease"]


def test_given_parameters_narrow_the_choice():
    choice = choose_model(explicit((60, 50)))

    def given(als, bayes):
        return names_of(choice.given({"als": als, "bayes": bayes}))

    assert given({}, {}) == ["als", "als linked", "bayes"]
    assert given({"factors": 3}, {"factors": 3}) == ["als", "als linked", "bayes"]
    assert given({"tol": 0.1}, {}) == ["als", "als linked"]
    assert given({"linked": True}, {}) == ["als linked"]
    assert given({"nonnegative": True}, {}) == ["als nonnegative"]
    assert given({}, {"samples": 4}) == ["bayes"]


def tastes(n_users=200, n_items=60, share=0.5):
    """Interactions of users of three tastes."""
    rng = np.random.default_rng(0)
    same = np.arange(n_users)[:, None] % 3 == np.arange(n_items) % 3
    chance = np.where(same, share, 0.1) * np.linspace(1, 0.4, n_items)
    return Ratings.from_matrix(
        np.where(rng.random((n_users, n_items)) < chance, 1.0, np.nan), implicit=True
    )


def test_auto_fits_the_best_to_everything_and_says_what_it_compared(tmp_path):
    ratings = tastes()
    recommender = Recommender("auto").fit(ratings)
    assert recommender.model.name in ("spectral", "ials", "ease", "blend")
    compared, results, verdict = recommender.training["choice"].split("; ")
    assert (
        compared
        == "compared spectral, ials, ease: there are no ratings, only interactions"
    )
    assert "NDCG@20 on " in results
    assert "ease 0." in results
    assert verdict.startswith("chose ")
    assert "better than" in verdict
    again = Recommender("auto").fit(ratings)
    assert again.training["choice"] == recommender.training["choice"]
    assert again.recommend().equals(recommender.recommend())
    recommender.save(tmp_path / "model")
    assert Recommender.load(tmp_path / "model").training == recommender.training


def test_the_winner_is_the_one_with_the_best_held_out_lists():
    ratings = tastes()
    poor = Candidate("random"), Candidate("popular"), Candidate("ease")
    auto = Auto().among(Choice(poor, ratings, "a test"), blends=False)
    assert auto.compare(ratings) == Candidate("ease")
    assert auto.findings[-1].startswith("chose ease, ")


def test_ratings_are_compared_by_their_error():
    rng = np.random.default_rng(0)
    low_rank = rng.normal(size=(80, 3)) @ rng.normal(size=(3, 50))
    table = np.where(
        rng.random((80, 50)) < 0.7, np.round(np.clip(3 + low_rank, 1, 5)), np.nan
    )
    ratings = Ratings.from_matrix(table)
    candidates = Candidate("bias"), Candidate("als", {"factors": 3})
    auto = Auto().among(Choice(candidates, ratings, "a test"))
    assert auto.compare(ratings).model == "als"
    assert auto.findings[1].startswith("RMSE on ")


def test_without_a_comparison_auto_is_the_only_candidate():
    ratings = explicit((20, 10))
    recommender = Recommender("auto").fit(ratings)
    assert recommender.model.name == "als"
    assert "choice" not in recommender.training
    with pytest.raises(NotFittedError, match="The auto model is not fitted yet"):
        Auto().scores([0])


@pytest.mark.parametrize(
    "values",
    [PLAYS, [1, 1, 2, 11], [3, 4, 400], [0.1, 2.5, 1.5, 340.5]],
    ids=["plays", "few", "large", "hours"],
)
def test_counts_are_told(values):
    assert judge_values(np.array(values)).kind == "counts"


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
def test_ratings_are_not_counts(values):
    assert judge_values(np.array(values)).kind != "counts"


def test_counts_weigh_1_on_average_and_grades_their_share_of_the_highest():
    assert weight_unit(Ratings.from_matrix(PLAYS.reshape(50, 40))) == pytest.approx(
        PLAYS.mean()
    )
    assert weight_unit(Ratings.from_matrix(np.array([[1.0, 5.0], [4.0, 3.0]]))) == 5


def test_as_implicit_leaves_who_has_what():
    ratings = Ratings.from_matrix(np.array([[3.0, np.nan], [40.0, 1.0]]))
    implicit = as_implicit(ratings)
    assert implicit.implicit
    np.testing.assert_array_equal(implicit.values, 1)
    np.testing.assert_array_equal(implicit.indices, ratings.indices)

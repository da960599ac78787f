"""A model beside one more user who stands for all unknown ones."""

import numpy as np
import pytest

from recsys.data.ratings import Ratings
from recsys.models.base import FactorModel
from recsys.models.baselines import Bias, Popular
from recsys.predictions import WithNewUser
from recsys.topn import top_n

N_USERS, N_ITEMS = 5, 60


@pytest.fixture
def ratings():
    return Ratings.from_matrix(np.random.default_rng(0).integers(1, 6, (N_USERS, N_ITEMS)))


@pytest.fixture
def popular(ratings):
    return Popular().fit(ratings)


@pytest.fixture
def factors():
    """Items closer than the rounding of a matrix product."""
    rng = np.random.default_rng(1)
    items = rng.normal(size=33) + rng.normal(scale=3e-7, size=(N_ITEMS, 33))
    arrays = {
        "global_mean": np.array(3.0),
        "user_bias": np.zeros(N_USERS, np.float32),
        "item_bias": np.zeros(N_ITEMS, np.float32),
        "user_factors": rng.normal(size=(N_USERS, 33)).astype(np.float32),
        "item_factors": items.astype(np.float32),
    }
    return FactorModel._from_arrays({}, arrays)


def items_of(scorer, users):
    return [
        (row, item, score)
        for top in top_n(scorer, np.array(users), 7)
        for row, item, score in zip(top.rows, top.items, top.scores, strict=True)
    ]


def test_known_users_get_what_the_model_gives(factors, popular):
    both = WithNewUser(factors, popular)
    among_new = items_of(both, [N_USERS, 3, N_USERS, 1])
    alone = [items_of(factors, [user]) for user in (3, 1)]
    for row, expected in zip((1, 3), alone, strict=True):
        assert [entry[1:] for entry in among_new if entry[0] == row] == [e[1:] for e in expected]


def test_the_new_user_gets_the_most_rated(factors, popular):
    both = WithNewUser(factors, popular)
    found = items_of(both, [N_USERS])
    assert [item for _, item, _ in found] == list(range(7))  # all are rated N_USERS times
    assert {score for _, _, score in found} == {N_USERS}


def test_the_error_is_that_of_the_model_and_none_for_counts(factors, popular, ratings):
    both = WithNewUser(factors, popular)
    error = both._score_error(np.array([2, N_USERS]))
    assert error[0] == factors._score_error([2])[0] > 0
    assert error[1] == 0
    exact = WithNewUser(Bias().fit(ratings), popular)
    assert exact._score_error(np.array([2, N_USERS])) is None
    np.testing.assert_array_equal(exact.scores(np.array([N_USERS]))[0], popular.item_counts)


def test_a_block_of_known_users_is_the_models_own(factors, popular):
    both = WithNewUser(factors, popular)
    np.testing.assert_array_equal(both.scores(np.array([3, 1])), factors.scores([3, 1]))
    among_new = both.scores(np.array([3, N_USERS]))
    np.testing.assert_array_equal(among_new[1], popular.item_counts)

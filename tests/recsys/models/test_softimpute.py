"""The model softimpute: biases, then soft-impute; folding in; explanations."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from lowrank import soft_impute
from recsys.data.ratings import Ratings
from recsys.errors import DataError
from recsys.evaluation.splits import random_split
from recsys.models.histories import Histories
from recsys.models.registry import make_model
from recsys.models.softimpute import SoftImpute


def make_ratings(seed=0, n=80, m=60, rank=2, noise=0.3, known=0.4):
    rng = np.random.default_rng(seed)
    table = 3.5 + 0.5 * rng.normal(size=(n, 1)) + 0.5 * rng.normal(size=m)
    table = table + rng.normal(size=(n, rank)) @ rng.normal(size=(rank, m))
    table += noise * rng.normal(size=table.shape)
    return Ratings.from_matrix(np.where(rng.random(table.shape) < known, table, np.nan))


def rmse(model, ratings):
    error = (
        model.predict(ratings.user_index_of_nonzeros(), ratings.indices)
        - ratings.values
    )
    return float(np.sqrt(np.mean(np.square(error, dtype=np.float64))))


def history_of(ratings, user):
    part = slice(ratings.indptr[user], ratings.indptr[user + 1])
    indptr = np.array([0, part.stop - part.start])
    return Histories(indptr, ratings.indices[part], ratings.values[part])


def item_rows(ratings):
    csc = ratings.matrix.T.tocsr()
    return Histories(
        csc.indptr.astype(np.int64), csc.indices.astype(np.int32), csc.data
    )


@pytest.fixture(scope="module")
def ratings():
    return make_ratings()


@pytest.fixture(scope="module")
def model(ratings):
    return SoftImpute().fit(ratings)


def test_it_is_the_biases_and_soft_impute_of_the_rest(ratings):
    model = SoftImpute(regularization=3.0, tol=3e-4, popularity=0.0).fit(ratings)
    bias = make_model("bias").fit(ratings)
    users, items = np.divmod(np.arange(80 * 60), 60)
    of_biases = bias.predict(users, items).reshape(80, 60)
    dense = ratings.matrix.toarray()
    rest = np.where(dense != 0, dense - of_biases, np.nan)
    expected = of_biases + soft_impute(rest, 3.0, tol=1e-5).matrix.toarray()
    np.testing.assert_allclose(model.scores(np.arange(80)), expected, atol=2e-3)


def test_it_beats_the_biases_on_what_it_has_not_seen(ratings):
    train, test = random_split(ratings, 0.2, random_state=0)
    error = rmse(SoftImpute().fit(train), test)
    assert error < 0.6 * rmse(make_model("bias").fit(train), test)
    far_off = [SoftImpute(regularization=x).fit(train) for x in (0.05, 12.0)]
    assert error < min(rmse(other, test) for other in far_off)


def test_a_regularization_that_is_given_is_taken(ratings, model):
    assert model.regularization is None
    assert model.penalty > 0
    again = SoftImpute(regularization=model.penalty).fit(ratings)
    assert (again.penalty, again.regularization) == (model.penalty, model.penalty)
    np.testing.assert_array_equal(again.user_factors, model.user_factors)


def test_the_seed_chooses_the_held_out_ratings(ratings, model):
    assert SoftImpute(random_state=1).fit(ratings).penalty != model.penalty


def test_the_rank_is_at_most_the_requested_one(ratings):
    assert SoftImpute(regularization=0.5, factors=2).fit(
        ratings
    ).item_factors.shape == (60, 2)
    assert SoftImpute(regularization=0.5).fit(ratings).item_factors.shape[1] > 2


def test_a_penalty_above_the_largest_leaves_the_biases(ratings):
    model = SoftImpute(regularization=1e4).fit(ratings)
    bias = make_model("bias").fit(ratings)
    assert model.item_factors.shape == (60, 1)
    np.testing.assert_allclose(model.scores([0, 5]), bias.scores([0, 5]), rtol=1e-6)


def test_training_users_folded_in_are_what_they_were(ratings, model):
    folded = model.with_users(Histories.of(ratings))
    np.testing.assert_array_equal(folded.user_factors, model.user_factors)
    np.testing.assert_array_equal(folded.user_bias, model.user_bias)
    alone = model.with_users(history_of(ratings, 7))
    assert (alone.n_users, alone.n_items) == (1, 60)
    np.testing.assert_array_equal(alone.user_factors[0], model.user_factors[7])


def test_the_last_ridge_solve_hardly_moves_the_solution(ratings):
    """The solution of soft-impute has its own ridge regressions as factors."""
    model = SoftImpute(regularization=2.0, tol=3e-4)
    before = {}
    model.fit(
        ratings, on_step=lambda step: before.update(users=model.user_factors.copy())
    )
    scale = np.abs(model.user_factors).max()
    np.testing.assert_allclose(model.user_factors, before["users"], atol=5e-3 * scale)


def test_items_folded_in_are_nearly_what_they_were(ratings):
    model = SoftImpute(regularization=2.0, tol=3e-4).fit(ratings)
    folded = model.with_items(item_rows(ratings))
    np.testing.assert_allclose(folded.scores([3, 9]), model.scores([3, 9]), atol=0.02)
    assert folded.n_users == 80


def test_folding_in_leaves_the_model_alone(ratings, model):
    before = {name: array.copy() for name, array in model._arrays().items()}
    model.with_users(history_of(ratings, 3))
    model.with_items(item_rows(ratings))
    for name, array in model._arrays().items():
        np.testing.assert_array_equal(array, before[name])


def test_folds_in_no_users_and_users_without_ratings(model):
    none = np.zeros(0, np.int32), np.zeros(0, np.float32)
    assert model.with_users(Histories(np.zeros(1, np.int64), *none)).n_users == 0
    empty = model.with_users(Histories(np.zeros(3, np.int64), *none))
    assert empty.n_users == 2
    expected = model.global_mean + model.item_bias
    np.testing.assert_allclose(empty.predict([1] * 60, range(60)), expected, rtol=1e-6)


@pytest.mark.parametrize("user", [0, 33, 79])
def test_contributions_add_up_to_the_score(ratings, model, user):
    history = history_of(ratings, user)
    found = model.contributions(history, np.arange(60))
    assert found.base.dtype == found.terms.dtype == np.float32
    assert found.terms.shape == (60, len(history.indices))
    total = found.base + found.popularity + found.terms.sum(axis=1)
    np.testing.assert_allclose(total, model.scores([user])[0], atol=2e-5)


def test_contributions_of_a_user_without_ratings_and_without_damping(ratings):
    model = SoftImpute(regularization=2.0, user_damping=0.0, item_damping=0.0).fit(
        ratings
    )
    nothing = Histories(
        np.zeros(2, np.int64), np.zeros(0, np.int32), np.zeros(0, np.float32)
    )
    found = model.contributions(nothing, [4, 2])
    assert found.terms.shape == (2, 0)
    np.testing.assert_allclose(
        found.base, model.global_mean + model.item_bias[[4, 2]], rtol=1e-6
    )
    history = history_of(ratings, 5)
    found = model.contributions(history, [1])
    assert found.base[0] + found.terms.sum() == pytest.approx(
        model.predict([5], [1])[0], abs=2e-5
    )


def test_an_item_that_is_not_there_has_no_contributions(ratings, model):
    with pytest.raises(
        IndexError, match="item indices must be between 0 and 59; got 60"
    ):
        model.contributions(history_of(ratings, 0), [60])


def test_the_same_bits_on_any_number_of_threads():
    ratings = make_ratings(n=40, m=30)
    one, three = (SoftImpute(threads=threads).fit(ratings) for threads in (1, 3))
    assert one.penalty == three.penalty
    np.testing.assert_array_equal(one.user_factors, three.user_factors)


def test_steps_are_those_on_the_way_to_the_penalty(ratings):
    train, test = random_split(ratings, 0.2, random_state=0)
    steps = []
    model = SoftImpute().fit(train, on_step=steps.append, validation=test)
    assert [step.step for step in steps] == [1, 2, 3, 4, 5]
    assert {step.total for step in steps} == {5}
    train_rmses = [step.train_rmse for step in steps]
    assert train_rmses == sorted(train_rmses, reverse=True)
    assert steps[-1].validation_rmse == pytest.approx(rmse(model, test), rel=0.02)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"regularization": 0.0}, r"regularization must be positive; got 0\.0"),
        ({"regularization": float("nan")}, "regularization must be positive; got nan"),
        ({"factors": 0}, "factors must be at least 1; got 0"),
        ({"tol": 0.0}, r"tol must be positive; got 0\.0"),
        ({"user_damping": -1.0}, r"user_damping must be at least 0; got -1\.0"),
    ],
)
def test_bad_parameters_raise(params, message):
    with pytest.raises(DataError, match=message):
        make_model("softimpute", **params)


@pytest.mark.skipif(
    "RECSYS_DATASETS" not in os.environ, reason="RECSYS_DATASETS is not set"
)
def test_movielens():
    from recsys.readers import read_ratings

    folder = Path(os.environ["RECSYS_DATASETS"]) / "ml-latest-small"
    train, test = random_split(read_ratings(folder), 0.1, random_state=0)
    assert rmse(SoftImpute(factors=30, regularization=14.0).fit(train), test) < 0.85

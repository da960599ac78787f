import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from recsys.data.ratings import Ratings
from recsys.evaluation.splits import random_split
from recsys.models.base import validation_rmse
from recsys.models.baselines import Bias, Clusters
from recsys.models.histories import Histories


def tastes(n_users=80, n_items=45, seed=0):
    """Items of three kinds, and users who like each kind more or less."""
    rng = np.random.default_rng(seed)
    kinds = np.arange(n_items) % 3
    table = 3 + rng.normal(scale=1.2, size=(n_users, 3))[:, kinds]
    table += rng.normal(scale=0.2, size=table.shape)
    table[rng.random(table.shape) < 0.5] = np.nan
    return Ratings.from_matrix(table), kinds


def test_items_of_one_kind_are_found():
    ratings, kinds = tastes()
    groups = Clusters(clusters=3).fit(ratings).item_factors.argmax(axis=1)
    assert len({(kind, group) for kind, group in zip(kinds, groups, strict=True)}) == 3


def test_a_prediction_is_the_bias_and_the_damped_mean_of_the_group():
    ratings, _ = tastes()
    model, bias = Clusters(clusters=3, damping=2.0).fit(ratings), Bias().fit(ratings)
    group = model.item_factors.argmax(axis=1)
    mine = slice(ratings.indptr[7], ratings.indptr[8])
    items, values = ratings.indices[mine], ratings.values[mine]
    same = items[group[items] == group[4]]
    left_over = values[group[items] == group[4]] - bias.predict(np.full(len(same), 7), same)
    expected = bias.predict([7], [4])[0] + left_over.sum() / (len(same) + 2)
    assert model.predict([7], [4])[0] == pytest.approx(expected, rel=1e-5)


def test_one_group_without_damping_adds_nothing_to_undamped_biases():
    ratings, _ = tastes()
    model, bias = Clusters(clusters=1, damping=1e12).fit(ratings), Bias().fit(ratings)
    np.testing.assert_allclose(model.scores([3]), bias.scores([3]), rtol=1e-5)


def test_groups_predict_better_than_biases_alone():
    train, test = random_split(tastes()[0], 0.2)
    errors = [
        validation_rmse(m.fit(train), test) for m in (Clusters(clusters=3, damping=1), Bias())
    ]
    assert errors[0] < 0.7 * errors[1]


def test_the_groups_do_not_depend_on_the_threads_of_the_process():
    ratings, _ = tastes(300, 200)
    with threadpool_limits(limits=1):
        one = Clusters().fit(ratings)
    many = Clusters().fit(ratings)
    np.testing.assert_array_equal(one.item_factors, many.item_factors)


def test_there_are_no_more_groups_than_different_items():
    ratings = Ratings.from_matrix(np.array([[1.0, 1.0, 5.0], [2.0, 2.0, 4.0]]))
    assert Clusters(clusters=3).fit(ratings).item_factors.shape == (3, 2)


def test_steps_carry_the_errors():
    train, test = random_split(tastes()[0], 0.2)
    steps = []
    model = Clusters().fit(train, on_step=steps.append, validation=test)
    assert [step.validation_rmse for step in steps] == [validation_rmse(model, test)]


def test_new_items_join_the_group_that_fits_them_best():
    ratings, _ = tastes()
    model = Clusters(clusters=3).fit(ratings)
    rows = ratings.matrix.T.tocsr()
    items = Histories(rows.indptr.astype(np.int64), rows.indices.astype(np.int32), rows.data)
    folded = model.with_items(items)
    np.testing.assert_array_equal(folded.item_factors, model.item_factors)
    truth = validation_rmse(model, ratings)
    assert validation_rmse(folded, ratings) == pytest.approx(truth, rel=0.05)
    nobody = Histories(np.zeros(2, np.int64), np.zeros(0, np.int32), np.zeros(0, np.float32))
    expected = model.global_mean + model.user_bias
    np.testing.assert_allclose(model.with_items(nobody).scores(range(80))[:, 0], expected)
    with pytest.raises(IndexError, match="user indices must be between 0 and 79; got -1"):
        model.with_items(Histories(np.array([0, 1]), np.array([-1], np.int32), np.ones(1)))


def test_the_group_that_fits_best_is_that_of_least_squares():
    ratings = Ratings.from_matrix(np.random.default_rng(4).integers(1, 11, (30, 200)) / 2)
    model = Clusters(clusters=40, damping=0.0).fit(ratings)
    rows = ratings.matrix.T.tocsr()
    items = Histories(rows.indptr.astype(np.int64), rows.indices.astype(np.int32), rows.data)
    bias = model.global_mean + model.user_bias[:, None] + model.item_bias
    left_over = ratings.matrix.toarray() - bias
    errors = ((left_over[:, :, None] - model.user_factors[:, None, :]) ** 2).sum(axis=0)
    found = model.with_items(items)
    change = np.abs(found.item_bias - model.item_bias).max()
    assert change < 0.01
    np.testing.assert_array_equal(found.item_factors.argmax(axis=1), errors.argmin(axis=1))

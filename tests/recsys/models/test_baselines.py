"""The baselines against their formulas."""

import numpy as np
import polars as pl
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from threadpoolctl import threadpool_limits

import recsys.models.baselines
from recsys.data.ratings import Ratings
from recsys.evaluation.splits import random_split
from recsys.models.base import validation_rmse
from recsys.models.baselines import Bias, Clusters, Popular, Random
from recsys.models.histories import Histories

NAN = np.nan
TABLE = np.array(
    [
        [5.0, 3.0, NAN, 1.0],
        [4.0, NAN, NAN, 1.0],
        [NAN, 1.0, NAN, 5.0],
        [NAN, NAN, 4.0, NAN],
    ]
)


@pytest.fixture
def ratings():
    return Ratings.from_matrix(TABLE)


def penalised_solution(table, user_damping, item_damping):
    """Biases from the normal equations of the whole problem, solved at once."""
    rows, columns = np.nonzero(~np.isnan(table))
    n_users, n_items = table.shape
    design = np.zeros((len(rows), n_users + n_items))
    design[np.arange(len(rows)), rows] = 1
    design[np.arange(len(rows)), n_users + columns] = 1
    values = table[rows, columns]
    penalty = np.diag([user_damping] * n_users + [item_damping] * n_items)
    solution = np.linalg.solve(
        design.T @ design + penalty, design.T @ (values - values.mean())
    )
    return values.mean(), solution[:n_users], solution[n_users:]


tables = hnp.arrays(
    np.float64,
    st.tuples(st.integers(1, 6), st.integers(1, 6)),
    elements=st.sampled_from([NAN, 1, 2, 3.5, 5]),
).filter(lambda table: not np.isnan(table).all())


@given(tables, st.floats(0.5, 30), st.floats(0.5, 30))
def test_bias_solves_the_penalised_least_squares(table, user_damping, item_damping):
    model = Bias(
        user_damping=user_damping, item_damping=item_damping, tol=1e-9, iterations=2000
    )
    model.fit(Ratings.from_matrix(table))
    mean, user_bias, item_bias = penalised_solution(table, user_damping, item_damping)
    assert model.global_mean == pytest.approx(mean)
    np.testing.assert_allclose(model.user_bias, user_bias, atol=1e-5)
    np.testing.assert_allclose(model.item_bias, item_bias, atol=1e-5)


def test_bias_predicts_mean_plus_biases(ratings):
    model = Bias().fit(ratings)
    expected = model.global_mean + model.user_bias[2] + model.item_bias[1]
    assert model.predict([2], [1])[0] == pytest.approx(expected)
    np.testing.assert_array_equal(
        model.scores([2])[0], model.pair_scores([2] * 4, range(4))
    )


def test_bias_without_damping_fits_an_additive_table():
    table = np.add.outer([0.0, 1.0, 2.0], [1.0, 2.0, 3.0])
    model = Bias(user_damping=0, item_damping=0).fit(Ratings.from_matrix(table))
    np.testing.assert_allclose(model.scores([0, 1, 2]), table, atol=1e-5)


def test_bias_of_users_and_items_without_ratings_is_zero():
    matrix = sp.csr_array(([4.0, 2.0], ([0, 0], [0, 1])), shape=(2, 3))
    for damping in (0, 5):
        model = Bias(user_damping=damping, item_damping=damping).fit(
            Ratings.from_matrix(matrix)
        )
        assert model.user_bias[1] == 0
        assert model.item_bias[2] == 0


def test_bias_reports_each_sweep_as_it_is(ratings):
    steps, models = [], []
    model = Bias(iterations=4, tol=0, popularity=0.0)
    validation = ratings.take(np.arange(3))

    def listen(step):
        steps.append(step)
        error = TABLE - model.scores(range(4))
        squares = np.nansum(error**2)
        penalty = 5 * (np.sum(model.user_bias**2) + np.sum(model.item_bias**2))
        held_out = np.sqrt(np.mean(error[~np.isnan(error)][:3] ** 2))
        models.append((squares + penalty, np.sqrt(squares / 8), held_out))

    model.fit(ratings, on_step=listen, validation=validation)
    assert [(step.step, step.total) for step in steps] == [
        (1, 4),
        (2, 4),
        (3, 4),
        (4, 4),
    ]
    found = [(step.objective, step.train_rmse, step.validation_rmse) for step in steps]
    np.testing.assert_allclose(found, models, rtol=1e-5)
    objectives = [step.objective for step in steps]
    assert objectives == sorted(objectives, reverse=True)


def test_bias_stops_when_nothing_moves(ratings):
    steps = []
    Bias().fit(ratings, on_step=steps.append)
    assert 1 < steps[-1].step < 50
    assert steps[-1].validation_rmse is None


def test_sums_in_blocks_are_the_same(ratings, monkeypatch):
    whole = Bias().fit(ratings)
    monkeypatch.setattr(recsys.models.baselines, "_BLOCK", 2)
    parts = Bias().fit(ratings)
    np.testing.assert_allclose(parts.user_bias, whole.user_bias, rtol=1e-6)
    np.testing.assert_allclose(parts.item_bias, whole.item_bias, rtol=1e-6)


def test_popular_counts_and_draws_means_together(ratings):
    model = Popular(damping=2).fit(ratings)
    assert model.scores([0, 3]).tolist() == [[2, 2, 1, 3]] * 2
    mean = 24 / 8
    expected = [
        (9 + 2 * mean) / 4,
        (4 + 2 * mean) / 4,
        (4 + 2 * mean) / 3,
        (7 + 2 * mean) / 5,
    ]
    np.testing.assert_allclose(
        model.predict([0, 1, 2, 3], [0, 1, 2, 3]), expected, rtol=1e-6
    )


def test_popular_without_damping_gives_plain_means_and_zero_to_the_unrated():
    matrix = sp.csr_array(([4.0, 2.0], ([0, 1], [0, 0])), shape=(2, 2))
    model = Popular(damping=0).fit(Ratings.from_matrix(matrix))
    assert model.predict([0, 0], [0, 1]).tolist() == [
        3,
        3,
    ]  # the unrated: the global mean


def test_popular_on_implicit_feedback_predicts_counts():
    pairs = pl.DataFrame({"user": [1, 2, 2], "item": [7, 7, 8]})
    model = Popular().fit(Ratings.from_frame(pairs))
    assert model.predict([0, 0], [0, 1]).tolist() == [2, 1]


def test_random_scores_are_even_over_the_range_of_the_ratings():
    wide = sp.random_array((200, 500), density=0.01, rng=np.random.default_rng(0))
    ratings = Ratings.from_matrix(wide)
    model = Random(random_state=3).fit(ratings)
    scores = model.scores(np.arange(200))
    assert scores.min() >= ratings.values.min()
    assert scores.max() <= ratings.values.max()
    unit = (scores - model.low) / (model.high - model.low)
    histogram = np.histogram(unit, bins=20, range=(0, 1))[0] / scores.size
    np.testing.assert_allclose(histogram, 0.05, atol=0.004)
    assert abs(np.corrcoef(unit[0], unit[1])[0, 1]) < 0.15
    assert abs(np.corrcoef(unit[:, 0], unit[:, 1])[0, 1]) < 0.25


def test_random_scores_depend_on_the_seed(ratings):
    scores = [Random(random_state=seed).fit(ratings).scores([0]) for seed in (0, 1)]
    assert not np.array_equal(*scores)
    assert np.array_equal(scores[0], Random(random_state=0).fit(ratings).scores([0]))


# clusters


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
    left_over = values[group[items] == group[4]] - bias.predict(
        np.full(len(same), 7), same
    )
    expected = bias.predict([7], [4])[0] + left_over.sum() / (len(same) + 2)
    assert model.predict([7], [4])[0] == pytest.approx(expected, rel=1e-5)


def test_one_group_without_damping_adds_nothing_to_undamped_biases():
    ratings, _ = tastes()
    model, bias = Clusters(clusters=1, damping=1e12).fit(ratings), Bias().fit(ratings)
    np.testing.assert_allclose(model.scores([3]), bias.scores([3]), rtol=1e-5)


def test_groups_predict_better_than_biases_alone():
    train, test = random_split(tastes()[0], 0.2)
    errors = [
        validation_rmse(m.fit(train), test)
        for m in (Clusters(clusters=3, damping=1), Bias())
    ]
    assert errors[0] < 0.7 * errors[1]


def test_the_groups_do_not_depend_on_the_threads_of_the_process():
    ratings, _ = tastes(300, 200)
    with threadpool_limits(limits=1):
        one = Clusters().fit(ratings)
    many = Clusters().fit(ratings)
    np.testing.assert_array_equal(one.item_factors, many.item_factors)


def test_has_at_most_as_many_groups_as_different_items():
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
    items = Histories(
        rows.indptr.astype(np.int64), rows.indices.astype(np.int32), rows.data
    )
    folded = model.with_items(items)
    np.testing.assert_array_equal(folded.item_factors, model.item_factors)
    truth = validation_rmse(model, ratings)
    assert validation_rmse(folded, ratings) == pytest.approx(truth, rel=0.05)
    nobody = Histories(
        np.zeros(2, np.int64), np.zeros(0, np.int32), np.zeros(0, np.float32)
    )
    expected = model.global_mean + model.user_bias
    np.testing.assert_allclose(
        model.with_items(nobody).predict(range(80), [0] * 80), expected
    )
    with pytest.raises(
        IndexError, match="user indices must be between 0 and 79; got -1"
    ):
        model.with_items(
            Histories(np.array([0, 1]), np.array([-1], np.int32), np.ones(1))
        )


def test_the_group_that_fits_best_is_that_of_least_squares():
    ratings = Ratings.from_matrix(
        np.random.default_rng(4).integers(1, 11, (30, 200)) / 2
    )
    model = Clusters(clusters=40, damping=0.0).fit(ratings)
    rows = ratings.matrix.T.tocsr()
    items = Histories(
        rows.indptr.astype(np.int64), rows.indices.astype(np.int32), rows.data
    )
    bias = model.global_mean + model.user_bias[:, None] + model.item_bias
    left_over = ratings.matrix.toarray() - bias
    errors = ((left_over[:, :, None] - model.user_factors[:, None, :]) ** 2).sum(axis=0)
    found = model.with_items(items)
    change = np.abs(found.item_bias - model.item_bias).max()
    assert change < 0.01
    np.testing.assert_array_equal(
        found.item_factors.argmax(axis=1), errors.argmin(axis=1)
    )

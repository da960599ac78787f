"""The factor models `als` and `bayes`, beyond the shared behaviour of models."""

from __future__ import annotations

import numpy as np
import pytest

from recsys.data.ratings import Ratings
from recsys.errors import DataError
from recsys.evaluation.splits import random_split
from recsys.models.histories import Histories
from recsys.models.registry import make_model
from recsys.recommender import Recommender

KINDS = {
    "als": ("als", {"factors": 6}),
    "als-linked": ("als", {"factors": 6, "linked": True}),
    "als-nonnegative": ("als", {"factors": 6, "nonnegative": True}),
    "bayes": ("bayes", {"factors": 6}),
    "bayes-plain": ("bayes", {"factors": 6, "linked": False}),
}
every_kind = pytest.mark.parametrize("kind", KINDS)


def make(kind, **params):
    name, own = KINDS[kind]
    return make_model(name, **(own | params))


def make_ratings(n=80, m=50, noise=0.4, density=0.3, seed=0):
    """Ratings of rank 2; the last user and the last item have none."""
    rng = np.random.default_rng(seed)
    table = (
        3
        + rng.normal(size=(n, 2)) @ rng.normal(size=(2, m))
        + noise * rng.normal(size=(n, m))
    )
    table[rng.random((n, m)) > density] = np.nan
    table[-1] = table[:, -1] = np.nan
    return Ratings.from_matrix(table.clip(0).astype(np.float32))


def histories_of(ratings):
    return Histories(ratings.indptr, ratings.indices, ratings.values)


def history_of(ratings, user):
    part = slice(ratings.indptr[user], ratings.indptr[user + 1])
    indices = ratings.indices[part]
    return Histories(np.array([0, len(indices)]), indices, ratings.values[part])


@every_kind
def test_a_training_user_folded_in_gets_the_very_same_vector(kind):
    ratings = make_ratings()
    model = make(kind).fit(ratings)
    again = model.with_users(histories_of(ratings))
    np.testing.assert_array_equal(again.user_factors, model.user_factors)
    np.testing.assert_array_equal(again.user_bias, model.user_bias)
    alone = model.with_users(history_of(ratings, 7))
    assert alone.n_users == 1
    everything = np.arange(model.n_items)
    np.testing.assert_array_equal(
        alone.predict(0 * everything, everything),
        model.predict(0 * everything + 7, everything),
    )


@every_kind
def test_folding_in_leaves_the_model_as_it_was(kind):
    ratings = make_ratings()
    model = make(kind).fit(ratings)
    before = {name: array.copy() for name, array in model._arrays().items()}
    model.with_users(history_of(ratings, 7))
    model.with_items(
        Histories(np.array([0, 1]), np.zeros(1, np.int32), np.ones(1, np.float32))
    )
    for name, array in model._arrays().items():
        np.testing.assert_array_equal(array, before[name], err_msg=name)


@every_kind
def test_a_folded_in_model_is_whole(kind):
    """It scores, saves, and takes a user and an item after one another."""
    ratings = make_ratings()
    model = make(kind).fit(ratings).with_users(history_of(ratings, 3))
    model = model.with_items(
        Histories(np.array([0, 1, 1]), np.zeros(1, np.int32), np.full(1, 5, np.float32))
    )
    assert (model.n_users, model.n_items) == (1, 2)
    again = type(model)._from_arrays(model.get_params(), model._arrays())
    np.testing.assert_array_equal(again.scores([0]), model.scores([0]))
    assert np.isfinite(model.scores([0])).all()
    again = again.with_users(
        Histories(np.array([0, 1]), np.ones(1, np.int32), np.ones(1, "f4"))
    )
    assert np.isfinite(again.scores([0])).all()


@every_kind
def test_an_item_folded_in_is_near_its_fitted_self(kind):
    ratings = make_ratings(n=150)
    model = make(kind).fit(ratings)
    turned = Ratings.from_matrix(ratings.matrix.T.tocsr())
    again = model.with_items(histories_of(turned))
    users = ratings.user_index_of_nonzeros()
    ours = model.predict(users, ratings.indices)
    theirs = again.predict(users, ratings.indices)
    assert np.corrcoef(ours, theirs)[0, 1] > 0.97
    assert np.sqrt(np.mean((ours - theirs) ** 2)) < 0.35


@every_kind
@pytest.mark.parametrize("user", [0, 7, 79])
def test_contributions_add_up_to_the_score(kind, user):
    ratings = make_ratings()
    model = make(kind).fit(ratings)
    items = np.array([4, 0, 49])
    history = history_of(ratings, user)
    base, terms, *_ = model.contributions(history, items)
    assert terms.shape == (3, len(history.indices))
    assert base.dtype == terms.dtype == np.float32
    np.testing.assert_allclose(
        base + terms.sum(axis=1), model.predict(np.full(3, user), items), atol=2e-4
    )


@every_kind
def test_the_same_seed_gives_the_same_bits_on_any_number_of_threads(kind):
    ratings = make_ratings(n=300, m=100)
    one, three = (make(kind, threads=threads).fit(ratings) for threads in (1, 3))
    for name, array in one._arrays().items():
        np.testing.assert_array_equal(array, three._arrays()[name], err_msg=name)


@every_kind
def test_a_history_with_an_item_out_of_range_raises(kind):
    model = make(kind).fit(make_ratings())
    bad = Histories(np.array([0, 1]), np.array([50], np.int32), np.ones(1, np.float32))
    with pytest.raises(
        IndexError, match="item indices must be between 0 and 49; got 50"
    ):
        model.with_users(bad)
    with pytest.raises(
        IndexError, match="item indices must be between 0 and 49; got 50"
    ):
        model.contributions(bad, [0])


@pytest.mark.parametrize("kind", ["als", "als-linked", "bayes"])
def test_the_objective_never_rises(kind):
    steps = []
    make(kind, tol=0.0).fit(make_ratings(), on_step=steps.append)
    objective = np.array([step.objective for step in steps])
    assert len(objective) > 3
    assert (np.diff(objective) <= 1e-5 * np.abs(objective[1:])).all()


@pytest.mark.parametrize("kind", ["als", "als-linked", "bayes"])
def test_a_validation_that_gets_worse_stops_the_fit_at_its_best_sweep(kind):
    train, validation = random_split(make_ratings(noise=1.5), 0.3, random_state=1)
    steps = []
    own = {"regularization": 0.01} if "als" in kind else {"link_penalty": 0.1}
    model = make(kind, tol=0.0, iterations=200, **own)
    model.fit(train, on_step=steps.append, validation=validation)
    rmses = [step.validation_rmse for step in steps]
    assert len(steps) == int(np.argmin(rmses)) + 1 + 3 < 200
    predicted = model.predict(validation.user_index_of_nonzeros(), validation.indices)
    reached = np.sqrt(np.mean((predicted - validation.values) ** 2))
    assert abs(reached - min(rmses)) < abs(reached - rmses[-1])


@pytest.mark.parametrize("kind", ["bayes", "bayes-plain"])
def test_intervals_hold_about_what_they_say(kind):
    train, test = random_split(make_ratings(n=200, m=100), 0.2, random_state=0)
    model = make(kind, temperature=1.0).fit(train)
    pairs = test.user_index_of_nonzeros(), test.indices
    std = model.predict_std(*pairs)
    assert std.dtype == np.float32
    inside = np.mean(np.abs(model.predict(*pairs) - test.values) < 1.645 * std)
    assert 0.83 < inside < 0.97


def test_less_is_known_of_a_user_without_ratings():
    model = make("bayes").fit(make_ratings())
    items = np.arange(49)  # those with ratings
    known, unknown = (
        model.predict_std(np.full(49, user), items).mean() for user in (0, 79)
    )
    assert known < unknown
    with pytest.raises(IndexError, match="user indices"):
        model.predict_std([80], [0])


def test_links_help_where_the_choice_of_items_tells():
    rng = np.random.default_rng(0)
    a, c = rng.normal(size=(300, 1)), rng.normal(size=(80, 1))
    seen = rng.random((300, 80)) < 1 / (1 + np.exp(2.5 - 2 * a @ c.T))
    table = np.where(seen, 3 + a @ c.T + 0.5 * rng.normal(size=seen.shape), np.nan)
    train, test = random_split(
        Ratings.from_matrix(table.astype(np.float32)), 0.3, random_state=0
    )
    pairs = test.user_index_of_nonzeros(), test.indices
    errors = {}
    for kind in KINDS:
        predicted = make(kind).fit(train).predict(*pairs)
        errors[kind] = np.sqrt(np.mean((predicted - test.values) ** 2))
    assert errors["als-linked"] < errors["als"] - 0.01
    assert errors["bayes"] < errors["bayes-plain"] - 0.01


@every_kind
def test_saving_and_loading_changes_nothing(kind, tmp_path):
    name, params = KINDS[kind]
    recommender = Recommender(name, **params).fit(make_ratings())
    recommender.save(tmp_path / "model")
    loaded = Recommender.load(tmp_path / "model")
    for array, value in recommender.model._arrays().items():
        np.testing.assert_array_equal(
            loaded.model._arrays()[array], value, err_msg=array
        )
    assert loaded.recommend(n=5).equals(recommender.recommend(n=5))


@pytest.mark.parametrize("factors", [64, 256])
def test_many_factors_are_solved_exactly(factors):
    """Each user's gradient vanishes at the solution."""
    ratings = make_ratings(n=40, m=300, density=0.5)
    model = make_model("als", factors=factors, iterations=2).fit(ratings)
    penalty = model.regularization * np.sqrt(np.diff(ratings.indptr))[:39]
    for user in (0, 38):
        part = slice(ratings.indptr[user], ratings.indptr[user + 1])
        items = ratings.indices[part]
        factors_of = model.item_factors[items].astype(np.float64)
        error = ratings.values[part] - model.predict(np.full(len(items), user), items)
        pull = penalty[user] * model.rating_std * model.user_factors[user]
        np.testing.assert_allclose(factors_of.T @ error, pull, atol=2e-3)
        assert error.sum() == pytest.approx(
            penalty[user] * model.user_bias[user], abs=2e-3
        )


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"factors": 0}, "factors must be at least 1; got 0"),
        ({"temperature": 0.9}, r"temperature must be at least 1; got 0\.9"),
        ({"link_penalty": 0.0}, r"link_penalty must be positive; got 0\.0"),
    ],
)
def test_parameters_of_bayes_out_of_range_raise(params, message):
    with pytest.raises(DataError, match=message):
        make_model("bayes", **params)


def test_a_link_penalty_of_als_must_be_positive():
    with pytest.raises(DataError, match=r"link_penalty must be positive; got -1\.0"):
        make_model("als", link_penalty=-1.0)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"factors": 0}, "factors must be at least 1; got 0"),
        ({"iterations": 0}, "iterations must be at least 1; got 0"),
        ({"tol": -0.5}, r"tol must be at least 0; got -0\.5"),
        ({"regularization": 0.0}, r"regularization must be positive; got 0\.0"),
    ],
)
def test_parameters_of_als_out_of_range_raise(params, message):
    with pytest.raises(DataError, match=message):
        make_model("als", **params)

"""Behaviour that every model in `MODELS` has."""

import copy
import dataclasses
import json
import subprocess
import sys
from functools import cache

import numpy as np
import polars as pl
import pytest
from sklearn.base import clone

from lowrank import kernels
from recsys.data.ratings import Ratings
from recsys.errors import DataError, NotFittedError, UnknownIdError
from recsys.models.base import Step, check_indices
from recsys.models.registry import MODELS, make_model, model_class, parameters
from recsys.recommender import Recommender

pytestmark = pytest.mark.usefixtures("one_fold")

N_USERS, N_ITEMS = 40, 30

# Other tests have the search for penalties, and a blend of models that search.
OPTIONS = {
    "blend": {"members": "spectral,ease"},
    "ials": {"regularization": 0.01, "unobserved_weight": 0.1},
}

every_model = pytest.mark.parametrize("name", sorted(MODELS))


def make_ratings(*, implicit=False):
    """About a quarter filled; the last user and the last item have no ratings."""
    rng = np.random.default_rng(0)
    table = rng.integers(1, 11, (N_USERS, N_ITEMS)) / 2
    table[rng.random(table.shape) > 0.25] = np.nan
    table[-1] = table[:, -1] = np.nan
    if implicit:
        table = np.where(np.isnan(table), np.nan, 1.0)
    return timed(Ratings.from_matrix(table, implicit=implicit))


def timed(ratings):
    """The ratings with random times, which some models need."""
    times = np.random.default_rng(1).integers(1.5e9, 1.6e9, ratings.n_ratings)
    return dataclasses.replace(ratings, seconds=times)


def unfitted(name, **params):
    return make_model(name, **OPTIONS.get(name, {}), **params)


def unfitted_recommender(name):
    return Recommender(name, **OPTIONS.get(name, {}))


def fit(name, **params):
    return unfitted(name, **params).fit(make_ratings())


@cache
def fitted(name):
    """A fitted model, which no test changes."""
    return fit(name)


@cache
def recommender_of(name):
    """A fitted recommender, which no test changes."""
    return unfitted_recommender(name).fit(make_ratings())


def all_pairs():
    return np.divmod(np.arange(N_USERS * N_ITEMS), N_ITEMS)


@every_model
def test_name_and_documentation(name):
    cls = model_class(name)
    assert cls.name == name
    assert cls.__doc__
    assert cls.summary.endswith(".")
    for declared in parameters(name):
        assert f"\n{declared.name} : " in cls.__doc__
        assert declared.description.endswith(".")
        assert declared.type in (int, float, bool, str)


@every_model
def test_parameters_are_read_and_set_as_scikit_learn_does(name):
    model = make_model(name)
    assert list(model.get_params()) == [declared.name for declared in parameters(name)]
    for declared in parameters(name):
        if declared.type is int:
            assert model.set_params(**{declared.name: 7}) is model
            assert getattr(model, declared.name) == 7
    copied = clone(model)
    assert copied is not model
    assert repr(copied) == repr(model)
    with pytest.raises(
        DataError, match=f"The {name} model has no parameter 'nonsense'"
    ):
        model.set_params(nonsense=1)


@every_model
def test_rejects_values_of_the_wrong_type_or_size_and_names_the_right_one(name):
    for declared in parameters(name):
        with pytest.raises(DataError, match=f"{declared.name} must be .*; got "):
            make_model(
                name, **{declared.name: "nonsense" if declared.type is not str else 3}
            )
        if declared.type in (int, float):
            for bad in (-1, float("nan"), float("inf")):
                with pytest.raises(
                    DataError, match=rf"{declared.name} must be .*; got {bad}\."
                ):
                    model_class(name)(**{declared.name: bad})
        if declared.choices:
            with pytest.raises(
                DataError, match=f"must be one of {declared.choices[0]}, "
            ):
                make_model(name, **{declared.name: "nonsense"})


@every_model
def test_ranges_for_tuning_hold_the_default(name):
    for declared in parameters(name):
        if (found := declared.range) is not None:
            assert declared.default is None or declared.default in found
            assert declared.type is (int if found.integer else float)
            for value in (found.low, found.high):
                make_model(name, **{declared.name: value})


def test_the_names_are_known_without_numpy():
    code = "import sys, recsys.models.registry; assert 'numpy' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@every_model
def test_parameters_survive_json(name):
    model = make_model(name)
    again = type(model)(**json.loads(json.dumps(model.get_params())))
    assert again.get_params() == model.get_params()
    assert repr(again) == repr(model)


@every_model
def test_an_unknown_parameter_is_rejected_with_the_known_ones(name):
    with pytest.raises(
        DataError, match=f"The {name} model has no parameter 'nonsense'; it has "
    ):
        make_model(name, nonsense=1)


@every_model
@pytest.mark.parametrize(
    "ask",
    [
        lambda model: model.predict([0], [0]),
        lambda model: model.scores([0]),
        lambda model: model._arrays(),
        lambda model: model.n_items,
    ],
)
def test_before_fit_says_not_fitted(name, ask):
    with pytest.raises(
        NotFittedError, match=f"The {name} model is not fitted yet; call fit first"
    ):
        ask(make_model(name))


@every_model
def test_an_unknown_attribute_is_missing_as_usual(name):
    model = make_model(name)
    assert not hasattr(model, "nonsense")
    assert repr(copy.deepcopy(model)) == repr(model)


@every_model
def test_fit_returns_the_model_and_knows_the_shape(name):
    model = unfitted(name)
    assert model.fit(make_ratings()) is model
    assert (model.n_users, model.n_items) == (N_USERS, N_ITEMS)


@every_model
def test_shapes_and_types_of_results(name):
    model = fitted(name)
    predicted, scores = model.predict([0, 39, 0], [29, 0, 3]), model.scores([5, 5, 39])
    assert predicted.shape == (3,)
    assert scores.shape == (3, N_ITEMS)
    assert predicted.dtype == scores.dtype == np.float32
    assert model.predict([], []).shape == (0,)
    assert model.scores([]).shape == (0, N_ITEMS)


@every_model
def test_results_are_finite_also_without_any_ratings(name):
    model = fitted(name)
    assert np.isfinite(model.predict(*all_pairs())).all()
    assert np.isfinite(model.scores(np.arange(N_USERS))).all()


@every_model
def test_scores_may_be_overwritten(name):
    model = fitted(name)
    before = model.scores([3])
    model.scores([3])[:] = -np.inf
    np.testing.assert_array_equal(model.scores([3]), before)


@every_model
def test_predictions_of_a_pair_are_the_same_bits_in_any_call(name):
    model = fitted(name)
    users, items = all_pairs()
    whole = model.predict(users, items)
    for start, stop in ((0, 1), (7, 9), (100, 1000)):
        np.testing.assert_array_equal(
            model.predict(users[start:stop], items[start:stop]), whole[start:stop]
        )


@every_model
def test_scores_of_a_user_are_within_the_stated_error_in_any_call(name):
    model = fitted(name)
    users = np.arange(N_USERS)
    whole, error = model.scores(users), model._score_error(users)
    alone = np.concatenate([model.scores([user]) for user in users])
    if error is None:
        np.testing.assert_array_equal(alone, whole)
    else:
        exact = model.pair_scores(*all_pairs()).reshape(whole.shape)
        assert (np.abs(whole - exact).max(axis=1) <= error).all()
        assert (np.abs(alone - exact).max(axis=1) <= error).all()


@every_model
@pytest.mark.parametrize("bad", [-1, N_USERS, 10**12])
def test_an_index_out_of_range_never_wraps(name, bad):
    model = fitted(name)
    with pytest.raises(
        IndexError, match=f"user indices must be between 0 and 39; got {bad}"
    ):
        model.predict([0, bad], [0, 0])
    with pytest.raises(
        IndexError, match=f"user indices must be between 0 and 39; got {bad}"
    ):
        model.scores([bad])
    with pytest.raises(
        IndexError, match="item indices must be between 0 and 29; got -3"
    ):
        model.predict([0], [-3])


@every_model
def test_the_same_seed_gives_the_same_model(name):
    first, second = fitted(name), fit(name)
    second.fit(make_ratings())  # fitting again starts afresh
    for array, value in first._arrays().items():
        np.testing.assert_array_equal(value, second._arrays()[array], err_msg=array)


@every_model
def test_arrays_rebuild_the_model(name):
    model = fitted(name)
    arrays = {key: value.copy() for key, value in model._arrays().items()}
    again = type(model)._from_arrays(model.get_params(), arrays)
    assert (again.n_users, again.n_items) == (N_USERS, N_ITEMS)
    np.testing.assert_array_equal(again.scores([0, 7]), model.scores([0, 7]))
    np.testing.assert_array_equal(again.predict([1], [2]), model.predict([1], [2]))
    own = arrays.keys() & {field.name for field in dataclasses.fields(model)}
    assert all(type(getattr(again, key)) is type(getattr(model, key)) for key in own)


@every_model
def test_arrays_that_are_missing_or_disagree_are_rejected(name):
    model = fitted(name)
    for key, value in model._arrays().items():
        rest = {
            other: array for other, array in model._arrays().items() if other != key
        }
        with pytest.raises(DataError, match=f"needs an array '{key}'"):
            type(model)._from_arrays(model.get_params(), rest)
        with pytest.raises(DataError, match=f"The array '{key}' must have shape"):
            type(model)._from_arrays(model.get_params(), rest | {key: value[None]})


@every_model
def test_sweeps_are_counted_and_validated(name):
    ratings = make_ratings()
    steps = []
    unfitted(name).fit(
        ratings, on_step=steps.append, validation=ratings.take(np.arange(20))
    )
    assert [step.step for step in steps] == list(range(1, len(steps) + 1))
    assert all(isinstance(step, Step) and step.step <= step.total for step in steps)
    if model_class(name).predicts_ratings:
        assert all(step.validation_rmse > 0 for step in steps)


SCORE_BETWEEN = sorted(
    name for name in MODELS if model_class(name)._scores_between_sweeps
)


@pytest.mark.parametrize("name", SCORE_BETWEEN)
def test_models_that_score_between_sweeps_are_all_but_done(name):
    ratings = make_ratings()
    seen, model = [], unfitted(name)
    model.fit(ratings, on_step=lambda _: seen.append(model.predict(*all_pairs())))
    assert len(seen) > 1
    assert not np.array_equal(seen[0], seen[-1])
    final = model.predict(*all_pairs())
    assert np.corrcoef(seen[-1], final)[0, 1] > 0.98
    np.testing.assert_array_equal(fitted(name).predict(*all_pairs()), final)


@every_model
def test_implicit_feedback_is_taken_or_rejected_with_an_alternative(name):
    ratings, model = make_ratings(implicit=True), unfitted(name)
    if not model._needs_values:
        assert np.isfinite(model.fit(ratings).scores([0])).all()
        return
    with pytest.raises(
        DataError, match=rf"The {name} model needs ratings with values.* popular"
    ):
        model.fit(ratings)


@every_model
@pytest.mark.parametrize(
    "table", [[[4.0]], [[3.0, 3.0], [3.0, 3.0]], [[1.0, np.nan], [np.nan, 5.0]]]
)
def test_tiny_and_constant_tables_can_be_fitted(name, table):
    model = unfitted(name).fit(timed(Ratings.from_matrix(np.array(table))))
    scores = model.scores(np.arange(len(table)))
    assert np.isfinite(scores).all()
    if model.predicts_ratings:
        predicted = model.predict([0], [0])
        assert 1 - 1e-4 <= predicted[0] <= 5 + 1e-4


@every_model
def test_the_recommender_never_gives_what_was_seen_and_pads_nothing(name):
    ratings = make_ratings()
    frame = recommender_of(name).recommend(n=N_ITEMS + 5)
    rated = ratings.to_frame().select("user", "item")
    assert frame.join(rated, on=["user", "item"], how="semi").is_empty()
    # An item without ratings or features is in no list.
    n_listed = np.count_nonzero(ratings.counts("item"))
    assert len(frame) == N_USERS * n_listed - ratings.n_ratings
    assert frame["score"].is_finite().all()


@every_model
def test_the_recommender_gives_a_user_the_same_bits_alone(name):
    recommender = recommender_of(name)
    everyone = recommender.recommend(n=7)
    for user in (0, 17, 39):
        assert recommender.recommend(user, n=7).equals(
            everyone.filter(pl.col("user") == user)
        )


@every_model
def test_saving_and_loading_changes_nothing(name, tmp_path):
    recommender = recommender_of(name)
    recommender.save(tmp_path / "model")
    loaded = Recommender.load(tmp_path / "model")
    assert repr(loaded.model) == repr(recommender.model)
    assert loaded.training == recommender.training
    assert loaded.recommend(n=5).equals(recommender.recommend(n=5))
    pairs = pl.DataFrame({"user": [0, 1], "item": [3, 4]})
    assert loaded.predict(pairs).equals(recommender.predict(pairs))


def test_an_unknown_model_is_rejected_with_the_nearest_name():
    with pytest.raises(
        DataError,
        match=r"There is no model 'alss'; did you mean als or ials\? The models are als,",
    ):
        Recommender("alss")
    with pytest.raises(
        DataError, match="There is no model 'xyz'; the models are als, "
    ):
        model_class("xyz")


def test_indices_must_be_integers_in_one_dimension():
    with pytest.raises(
        TypeError,
        match="user indices must be a one-dimensional array of integers; got float64",
    ):
        check_indices([0.5], 3, "user")
    with pytest.raises(TypeError, match=r"got int64 of shape \(1, 1\)"):
        check_indices([[0]], 3, "user")


# The same through the facade, on what breaks recommenders


@every_model
def test_unknown_ids_are_rejected(name):
    recommender = recommender_of(name)
    with pytest.raises(UnknownIdError, match="Unknown user 40"):
        recommender.recommend([3, 40])
    with pytest.raises(UnknownIdError, match="Unknown user -1"):
        recommender.predict(pl.DataFrame({"user": [-1], "item": [0]}))
    with pytest.raises(UnknownIdError, match="Unknown item 30"):
        recommender.predict(pl.DataFrame({"user": [0], "item": [30]}))


@every_model
def test_a_user_without_ratings_is_recommended_something(name):
    frame = recommender_of(name).recommend(N_USERS - 1, n=4)
    assert frame["rank"].to_list() == [1, 2, 3, 4]
    assert frame["score"].is_finite().all()


@every_model
def test_a_user_who_has_seen_everything_gets_nothing(name):
    table = np.tile(np.arange(1.0, 6.0), (4, 1))
    table[1:, 0] = table[2, 3] = np.nan
    recommender = unfitted_recommender(name).fit(timed(Ratings.from_matrix(table)))
    assert recommender.recommend(0).is_empty()
    assert len(recommender.recommend()) == 4


@pytest.mark.covering(1)
@every_model
@pytest.mark.parametrize("shape", [(1, 6), (3, 1), (1, 1), (1, 2)])
def test_one_user_or_one_item(name, shape):
    table = np.arange(1.0, 1 + np.prod(shape)).reshape(shape)
    recommender = unfitted_recommender(name).fit(timed(Ratings.from_matrix(table)))
    frame = recommender.recommend(exclude_seen=False)
    assert len(frame) == table.size
    assert frame["score"].is_finite().all()


@every_model
def test_constant_ratings_are_predicted_constant(name):
    table = np.full((6, 5), 3.0)
    table[np.arange(5), np.arange(5)] = np.nan
    recommender = unfitted_recommender(name).fit(timed(Ratings.from_matrix(table)))
    assert recommender.recommend()["score"].is_finite().all()
    if recommender.model.predicts_ratings:
        predicted = recommender.model.predict(np.arange(6), [0, 1, 2, 3, 4, 0])
        np.testing.assert_allclose(predicted, 3, atol=1e-3)


@every_model
def test_a_rating_that_is_there_twice_counts_once(name):
    once = make_ratings().to_frame()
    twice = pl.concat([once.with_columns(rating=pl.lit(0.5, pl.Float32)), once])
    first, second = (
        unfitted_recommender(name).fit(Ratings.from_frame(frame)).recommend()
        for frame in (once, twice)
    )
    assert first.equals(second)


@every_model
def test_allow_and_block_go_together(name):
    frame = (
        unfitted_recommender(name)
        .fit(make_ratings())
        .recommend(n=N_ITEMS, items=[2, 3, 5, 7], block=[3, 11], exclude_seen=False)
    )
    assert set(frame["item"]) == {2, 5, 7}
    assert len(frame) == 3 * N_USERS


@every_model
def test_the_number_of_threads_changes_nothing(name):
    fits = []
    for threads in (1, 3):
        # Some models have the number as a parameter, the others take the default.
        params = {}
        if "threads" in make_model(name).get_params():
            params = {"threads": threads}
        with kernels.at_most(threads):
            fits.append(fit(name, **params))
    one, three = fits
    for array, value in one._arrays().items():
        np.testing.assert_array_equal(value, three._arrays()[array], err_msg=array)


@every_model
def test_nan_and_infinity_never_reach_a_model(name):
    for bad in (np.nan, np.inf, None):
        frame = pl.DataFrame({"user": [1, 2], "item": [1, 2], "rating": [3.0, bad]})
        with pytest.raises(DataError, match="Row 2: "):
            unfitted_recommender(name).fit(Ratings.from_frame(frame))


@pytest.mark.covering(1)
@pytest.mark.parametrize("scale", [1e30, 1e-30])
@every_model
def test_fits_extreme_ratings_or_names_the_largest(name, scale):
    ratings = make_ratings()
    values = ratings.values * np.float32(scale)
    scaled = dataclasses.replace(ratings.with_values(values), implicit=False)
    overflow = {"als": [1e30], "bayes": [1e30, 1e-30], "clusters": [1e30]}
    overflow["softimpute"] = [1e30]
    if scale in overflow.get(name, []):
        with pytest.raises(DataError, match=r"largest rating is .* of item .* by"):
            unfitted(name).fit(scaled)
        return
    model = unfitted(name).fit(scaled)
    assert np.isfinite(model.scores([0])).all()

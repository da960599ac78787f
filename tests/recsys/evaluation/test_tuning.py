"""Tuning on a validation part of the training ratings, and studies that go on."""

from __future__ import annotations

import dataclasses
import functools
import math
import time
from dataclasses import replace

import numpy as np
import pytest

from recsys.data.ratings import Ratings
from recsys.errors import DataError
from recsys.evaluation import (
    METRICS,
    Split,
    evaluate,
    held_out_users,
    leave_last_split,
    random_split,
    time_split,
)
from recsys.evaluation.metrics import rmse
from recsys.evaluation.tuning import tune
from recsys.models.parameters import Range
from recsys.models.registry import make_model


@pytest.fixture(scope="module")
def ratings():
    """Ratings of rank 2 with noise, 60 x 40, half of them known."""
    rng = np.random.default_rng(0)
    full = (
        3
        + rng.normal(size=(60, 2)) @ rng.normal(size=(2, 40))
        + 0.5 * rng.normal(size=(60, 40))
    )
    full[rng.random(full.shape) < 0.5] = np.nan
    return Ratings.from_matrix(full.clip(1, 5).astype(np.float32))


@pytest.fixture(scope="module")
def interactions(ratings):
    return dataclasses.replace(ratings.with_values(1), implicit=True)


def without_times(found):
    return [dataclasses.replace(trial, seconds=0) for trial in found.trials]


def quick(model, data, **settings):
    return tune(
        model, data, **{"sampler": "random", "trials": 6, "threads": 1, **settings}
    )


@pytest.mark.parametrize("model", ["als", "bayes", "bias", "softimpute"])
def test_the_parameters_give_the_value_that_was_measured(model, ratings):
    found = quick(model, ratings, trials=4)
    split = random_split(ratings, 0.1, 0).without_new()
    fitted = make_model(model, **found.parameters, **threads(model)).fit(split.train)
    predicted = fitted.predict(split.test.user_index_of_nonzeros(), split.test.indices)
    predicted = predicted.clip(split.train.values.min(), split.train.values.max())
    assert rmse(predicted, split.test.values) == found.best.value


def threads(model):
    return {"threads": 1} if "threads" in make_model(model).get_params() else {}


def test_the_first_trial_has_the_defaults_and_the_best_is_the_smallest(ratings):
    found = quick("bias", ratings, trials=10)
    assert found.trials[0].parameters == {"user_damping": 5.0, "item_damping": 5.0}
    values = [trial.value for trial in found.trials if trial.state == "complete"]
    assert found.best.value == min(values) < values[0]
    assert found.metric == "rmse"
    assert found.train_ratings + found.validation_ratings == ratings.n_ratings


def test_where_more_is_better(ratings, interactions):
    found = quick("als", ratings, metric="ndcg@3", fixed={"factors": 2})
    values = [trial.value for trial in found.trials if trial.state == "complete"]
    assert found.best.value == max(values) > min(values)
    found = quick("popular", interactions, metric="recall@5")
    assert found.best.value == max(trial.value for trial in found.trials)
    assert found.best is found.trials[0]  # all are equal: counts are not damped
    split = random_split(interactions, 0.1, 0)
    table = evaluate(["popular"], split, 5).table
    assert found.best.value == table["recall@5"][0]
    assert quick("popular", interactions, trials=1).metric == "ndcg@10"


def test_given_parameters_and_ranges(ratings):
    found = quick(
        "als",
        ratings,
        fixed={"factors": 2},
        ranges={"tol": Range(1e-4, 1e-2, log=True)},
    )
    assert list(found.ranges) == ["regularization", "count_power", "tol"]
    assert found.parameters["factors"] == 2
    assert all(1e-4 <= trial.parameters["tol"] <= 1e-2 for trial in found.trials)


def test_explicit_ratings_by_a_ranking_metric(ratings):
    found = quick("als", ratings, metric="ndcg@5", fixed={"factors": 2}, trials=12)
    assert any(trial.state == "pruned" for trial in found.trials)
    assert "iterations" not in found.parameters, (
        "a ranking metric does not choose the sweeps"
    )


def with_times(ratings):
    rng = np.random.default_rng(5)
    return dataclasses.replace(ratings, seconds=rng.permutation(ratings.n_ratings))


def test_the_newest_ratings_validate_where_there_are_times(ratings):
    timed = with_times(ratings)
    found = quick("bias", timed)
    split = time_split(timed, 0.1).without_new()
    assert found.held_out == split.description
    fitted = make_model("bias", **found.parameters).fit(split.train)
    predicted = fitted.predict(
        split.test.user_index_of_nonzeros(), split.test.indices
    ).clip(1, 5)
    assert rmse(predicted, split.test.values) == found.best.value
    assert quick("bias", ratings).held_out == "10% of the ratings, at random (seed 0)"


def test_any_split_may_validate(ratings, tmp_path):
    timed = with_times(ratings)
    last_two = functools.partial(leave_last_split, k=2)
    found = quick("bias", timed, validation=last_two, study=tmp_path / "s")
    assert found.held_out == "each user's last 2 events whose item is new to the user"
    assert (
        found.validation_ratings
        == leave_last_split(timed, 2).without_new().test.n_ratings
    )
    with pytest.raises(DataError, match="differs in its validation part;"):
        quick("bias", timed, validation=leave_last_split, study=tmp_path / "s")


@pytest.mark.parametrize("metric", ["rmse", "mae", "ndcg@5"])
def test_held_out_users_validate(ratings, metric):
    by_users = functools.partial(held_out_users, user_fraction=0.3, test_fraction=0.3)
    bad = {"regularization": Range(0.5, 500.0, log=True)}
    settings = {"ranges": bad, "fixed": {"factors": 2, "tol": 0.0}, "trials": 12}
    found = quick("als", ratings, metric=metric, validation=by_users, **settings)
    assert any(trial.state == "pruned" for trial in found.trials)
    assert "iterations" not in found.parameters, "no sweep sees the validation users"
    model = make_model("als", **found.parameters, threads=1)
    table = evaluate([model], by_users(ratings), 5, new="drop").table
    assert table[metric][0] == pytest.approx(found.best.value, rel=1e-12)
    with pytest.raises(
        DataError, match="The implicit-bpr model cannot fold in new users"
    ):
        quick("implicit-bpr", ratings, metric="ndcg@5", validation=by_users)


def test_a_validation_part_of_new_users_alone(ratings):
    def of_one_user(data):
        held = data.user_index_of_nonzeros() == 0
        return Split(data.take(~held), data.take(held))

    with pytest.raises(
        DataError, match="has both a user and an item with other ratings"
    ):
        quick("bias", ratings, validation=of_one_user)


def test_a_fit_that_breaks_down_is_given_up(interactions):
    broken = {"regularization": Range(1e3, 1e4)}
    settings = {"ranges": broken, "fixed": {"factors": 4}, "trials": 3}
    found = quick("implicit-bpr", interactions, **settings)
    assert [trial.state for trial in found.trials] == ["complete", "pruned", "pruned"]
    assert found.best is found.trials[0]
    with pytest.raises(DataError, match="The implicit-bpr fit diverged"):
        quick("implicit-bpr", interactions, fixed={"factors": 4, "regularization": 1e4})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"random_state": 1}, "The study .* differs in its seed; choose another file"),
        ({"metric": "mae"}, "differs in its metric;"),
        (
            {"fixed": {"user_damping": 1.0}},
            "differs in its ranges and fixed parameters;",
        ),
        ({"test_fraction": 0.2}, "differs in its validation part;"),
        ({"model": "als"}, "differs in its model and ranges;"),
    ],
)
def test_a_study_of_something_else_raises(ratings, tmp_path, settings, message):
    quick("bias", ratings, trials=1, study=tmp_path / "s")
    with pytest.raises(DataError, match=message):
        quick(**{"model": "bias", "data": ratings, "study": tmp_path / "s", **settings})


def test_a_study_of_other_data_raises(ratings, tmp_path):
    quick("bias", ratings, trials=1, study=tmp_path / "s")
    other = ratings.with_values(ratings.values[::-1])
    with pytest.raises(
        DataError, match=r"The study .* differs in its training data; choose another"
    ):
        quick("bias", other, study=tmp_path / "s")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"trials": 0}, "trials must be at least 1; got 0."),
        (
            {"metric": "auc"},
            r"metric must be one of rmse, mae, precision@N, .*; got 'auc'",
        ),
        ({"metric": "ndcg"}, "got 'ndcg'"),
        ({"metric": "ndcg@0"}, "got 'ndcg@0'"),
        ({"metric": "rmse@5"}, "got 'rmse@5'"),
        (
            {"model": "random"},
            "The random model predicts no ratings, so it has no rmse",
        ),
        ({"model": "random", "metric": "ndcg@5"}, "has no parameter left to tune"),
        (
            {"fixed": {"factors": 2}, "ranges": {"factors": Range(1, 2)}},
            "both fixed and tuned",
        ),
        (
            {"ranges": {"size": Range(1, 2)}},
            "no numeric parameter 'size' to tune; it has factors",
        ),
        (
            {"ranges": {"random_state": Range(1, 2)}},
            "no numeric parameter 'random_state'",
        ),
        (
            {"ranges": {"factors": Range(1.0, 2.5)}},
            "factors must have integer ends; got 1.0 to",
        ),
        (
            {"ranges": {"regularization": Range(-1.0, 2.0)}},
            "regularization must be positive",
        ),
        (
            {"ranges": {"factors": (2, 4)}},
            r"of factors must be a Range\(low, high\); got \(2, 4\)",
        ),
    ],
)
def test_what_cannot_be_tuned(ratings, settings, message):
    with pytest.raises(DataError, match=message):
        quick(**{"model": "als", "data": ratings, "metric": "rmse", **settings})


@pytest.mark.parametrize("model", [{}, ["als"], None, 7])
def test_a_tuned_model_is_a_name_or_an_object(ratings, model):
    message = "model must be a name or a Model with its parameters; got"
    with pytest.raises(DataError, match=message):
        tune(model, ratings)


def test_ratings_that_the_metric_or_model_cannot_use(interactions):
    with pytest.raises(
        DataError, match="The data have no ratings, so rmse is undefined"
    ):
        quick("popular", interactions, metric="rmse")
    with pytest.raises(DataError, match="The als model needs ratings with values"):
        quick("als", interactions)


class Clock:
    """A monotonic clock that stands still until it is told to go."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now

    def __getattr__(self, name):
        return getattr(time, name)


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr("recsys.evaluation.tuning.time", clock)
    return clock


def test_the_time_may_be_over_in_the_middle_of_a_trial(ratings, clock):
    """The trial that it ends in is not kept, whatever it would have been."""
    heard = []

    def on_step(number, step):
        heard.append((number, step.step))
        if heard[-1] == (2, 2):
            clock.now = 11.0

    found = quick("als", ratings, timeout=10, on_step=on_step)
    assert [trial.number for trial in found.trials] == [0, 1]
    assert heard[-1] == (2, 2)


def test_a_grid_has_an_end(ratings):
    """Two values of each of two parameters can be combined in six trials, and the defaults."""
    found = quick("bias", ratings, sampler="grid", trials=7)
    points = {tuple(trial.parameters.values()) for trial in found.trials[1:]}
    assert points == {(low, high) for low in (0.1, 100.0) for high in (0.1, 100.0)}
    assert len(found.trials) == 5


def test_a_tuning_says_what_was_found(ratings):
    found = quick("popular", ratings, trials=2)
    shown = f"<Tuning: popular, rmse {found.best.value:.4g} in 2 trials: {found.parameters}>"
    assert repr(found) == shown


def test_worse_trials_are_pruned(ratings):
    bad = {"regularization": Range(0.5, 500.0, log=True)}
    settings = {
        "ranges": bad,
        "fixed": {"factors": 2, "count_power": 0.5},
        "trials": 20,
    }
    for metric in ("rmse", "mae"):
        found = quick("als", ratings, **settings, metric=metric)
        pruned = [trial for trial in found.trials if trial.state == "pruned"]
        assert pruned
        assert all(trial.value is None and trial.number >= 5 for trial in pruned)


@pytest.mark.parametrize("model", ["implicit-als", "implicit-bpr", "implicit-lmf"])
def test_worse_trials_of_ranking_metrics_are_pruned(model, interactions):
    worse = {"regularization": Range(0.01, 100.0, log=True)}
    settings = {
        "ranges": worse,
        "fixed": {"factors": 4, "iterations": 16},
        "trials": 16,
    }
    heard = []
    found = quick(
        model,
        interactions,
        metric="recall@5",
        on_step=lambda number, step: heard.append((number, step.step)),
        **settings,
    )
    pruned = [trial.number for trial in found.trials if trial.state == "pruned"]
    assert pruned
    last = dict(heard)
    assert {last[number] for number in pruned} <= {2, 4, 8, 16}
    fitted = make_model(model, **found.parameters, **threads(model))
    split = random_split(interactions, 0.1, 0)
    assert evaluate([fitted], split, 5).table["recall@5"][0] == found.best.value


def test_trials_without_a_finite_value_are_pruned(ratings, monkeypatch):
    values = iter([2.0, math.nan, math.inf, 1.0, 3.0, 1.5])
    rmse = METRICS["rmse"]
    monkeypatch.setitem(
        METRICS, "rmse", replace(rmse, function=lambda *_: next(values))
    )
    found = quick("bias", ratings)
    assert [t.value for t in found.trials] == [2.0, None, None, 1.0, 3.0, 1.5]
    assert found.best.number == 3
    monkeypatch.setitem(METRICS, "rmse", replace(rmse, function=lambda *_: math.nan))
    with pytest.raises(DataError, match="with its defaults has no finite rmse"):
        quick("bias", ratings)


def test_out_of_time_after_the_first_trial(ratings):
    assert len(quick("als", ratings, timeout=0).trials) == 1
    assert len(quick("als", ratings, timeout=math.inf).trials) == 6


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_a_study_continues_where_it_ended(ratings, tmp_path, sampler):
    heard = []
    settings = {"sampler": sampler, "trials": 14}
    path = tmp_path / "s"
    quick(
        "bias",
        ratings,
        **settings | {"trials": 12 if sampler == "tpe" else 3},
        study=path,
    )
    with path.open("ab") as file:
        file.write(b'{"op_code": 4, "wor')  # left by a sudden end
    found = quick(
        "bias",
        ratings,
        **settings,
        study=path,
        on_trial=lambda trial, best: heard.append((trial.number, best.number)),
    )
    assert without_times(found) == without_times(quick("bias", ratings, **settings))
    assert heard[-1] == (len(found.trials) - 1, found.best.number)
    again = quick(
        "bias",
        ratings,
        **settings,
        study=path,
        on_trial=lambda *_: pytest.fail("a trial"),
    )
    assert again.trials == found.trials


def test_an_interrupted_trial_is_made_again(ratings, tmp_path):
    def interrupt(number, step):
        if (number, step.step) == (2, 2):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quick("als", ratings, study=tmp_path / "s", on_step=interrupt)
    found = quick("als", ratings, study=tmp_path / "s")
    assert without_times(found) == without_times(quick("als", ratings))
    grid = {
        "sampler": "grid",
        "trials": 5,
        "study": tmp_path / "g",
        "fixed": {"factors": 2},
    }
    with pytest.raises(KeyboardInterrupt):
        quick("als", ratings, on_step=interrupt, **grid)
    points = {
        tuple(trial.parameters.values())
        for trial in quick("als", ratings, **grid).trials
    }
    assert len(points) == 5


def test_places_where_no_study_can_be(ratings, tmp_path):
    with pytest.raises(DataError, match="is not a file; a study is a file"):
        quick("bias", ratings, study=tmp_path)
    with pytest.raises(DataError, match="there is no directory"):
        quick("bias", ratings, study=tmp_path / "nowhere" / "s")
    for text in (
        "[]",
        "a thesis",
        '{"format": "recsys-model"}\n',
        '{"op_code": 0}\n{"a": 1}\n',
    ):
        (tmp_path / "s").write_text(text)
        with pytest.raises(
            DataError, match="s is damaged or not a study; choose another file"
        ):
            quick("bias", ratings, study=tmp_path / "s")
        assert (tmp_path / "s").read_text() == text


def test_a_tuning_is_a_table_in_a_notebook(ratings):
    page = quick("bias", ratings, trials=2)._repr_html_()
    assert "user_damping" in page
    assert "<table" in page


@pytest.mark.parametrize("fixed", [{}, {"nonnegative": np.bool_(True)}])
def test_numbers_of_numpy_are_arguments(ratings, tmp_path, fixed):
    arguments = {"trials": 1, "test_fraction": 0.25, "random_state": 3}
    of_python = tune("als", ratings, study=tmp_path / "study", fixed=fixed, **arguments)
    arguments = {"trials": np.int8(1), "test_fraction": np.float32(0.25)}
    study = tmp_path / "study"
    seed = np.int64(3)
    of_numpy = tune(
        "als", ratings, study=study, fixed=fixed, random_state=seed, **arguments
    )
    assert of_numpy.trials == of_python.trials
    split = random_split(ratings, 0.25, random_state=0)
    table = evaluate("popular", split, random_state=3, relevant_from=4.0).table
    other = evaluate(
        "popular", split, random_state=seed, relevant_from=np.float32(4)
    ).table
    assert table["ndcg@10"].equals(other["ndcg@10"])


@pytest.mark.parametrize("seed", [None, -1, 1.5, "a"])
@pytest.mark.parametrize("function", [evaluate, tune])
def test_seeds_are_whole_numbers(ratings, function, seed):
    with pytest.raises(DataError, match="random_state must be "):
        function("bias", ratings, random_state=seed)

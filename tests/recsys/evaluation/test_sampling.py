"""Where tuning looks next."""

from __future__ import annotations

import importlib.util
import math

import pytest

from recsys.errors import DataError
from recsys.evaluation.tuning import Trial, make_strategy
from recsys.models.base import Range

RANGES = {"k": Range(1, 64, log=True), "x": Range(0.01, 100.0, log=True)}


def trial(number, parameters, value=None):
    state = "complete" if value is not None else "pruned"
    return Trial(number, parameters, state, value, None, (2.0, 1.0), 0.1)


def strategy(name, trials=20, seed=0, minimise=True):
    return make_strategy(name, RANGES, trials=trials, minimise=minimise, seed=seed)


def distance(point):
    """Smallest at k = 8, x = 1."""
    return abs(math.log2(point["k"]) - 3) + abs(math.log10(point["x"]))


def search(name, trials, *, sign=1, seed=0):
    choose, done = strategy(name, trials, seed, minimise=sign > 0), []
    while len(done) < trials and (point := choose(done)) is not None:
        done.append(trial(len(done), point, sign * distance(point)))
    return done


@pytest.mark.parametrize("name", ["random", "tpe", "grid"])
def test_points_depend_on_the_trials_and_the_seed_only(name):
    if name == "tpe":
        pytest.importorskip("optuna")
    done = search(name, 10)
    again = strategy(name, 10)
    assert [again(done[:i]) for i in range(len(done))] == [each.parameters for each in done]
    assert search(name, 10, seed=1) != done
    assert all(each.parameters[p] in RANGES[p] for each in done for p in RANGES)


def test_the_grid_is_walked_once():
    choose, done = strategy("grid", 17), []
    while (point := choose(done)) is not None:
        done.append(trial(len(done), point, 1.0))
    expected = [{"k": k, "x": x} for k in (1, 4, 16, 64) for x in RANGES["x"].grid(4)]
    assert len(done) == len(expected) == 16
    assert all(cell in [each.parameters for each in done] for cell in expected)


@pytest.mark.parametrize("sign", [1, -1])
def test_tpe_learns_from_the_trials(sign):
    pytest.importorskip("optuna")

    def regret(name):
        """What is left to gain after 30 trials, summed over seeds."""
        runs = [search(name, 30, sign=sign, seed=seed) for seed in range(6)]
        return sum(min(abs(each.value) for each in done) for done in runs)

    assert regret("tpe") < 0.8 * regret("random")


def test_tpe_takes_pruned_trials_and_defaults_outside_the_ranges():
    pytest.importorskip("optuna")
    done = [trial(0, {"k": 1000, "x": 1.0}, 1.0), trial(1, {"k": 5, "x": 1.0})]
    assert strategy("tpe")(done).keys() == RANGES.keys()


def test_tpe_needs_optuna(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"needs optuna; install it with .*\[tune\]"):
        strategy("tpe")
    strategy("random")


def test_unknown_strategy():
    with pytest.raises(DataError, match="one of tpe, random, grid; got 'best'"):
        strategy("best")

"""Implicit ALS: its penalties, weights and explanations."""

import os
from pathlib import Path

import numpy as np
import pytest

from lowrank.completion import implicit
from recsys.data.ratings import Ratings
from recsys.models import ials
from recsys.models.base import Progress
from recsys.models.histories import Histories
from recsys.models.ials import IALS


def two_tastes(n_users=80, n_items=30, seed=0):
    """Return interactions of two groups of users, with few across."""
    rng = np.random.default_rng(seed)
    same = np.add.outer(np.arange(n_users), np.arange(n_items)) % 2 == 0
    liked = rng.random(same.shape) < np.where(same, 0.4, 0.03)
    return Ratings.from_matrix(np.where(liked, 1.0, np.nan), implicit=True)


@pytest.fixture(params=["exactly", "by blocks"])
def _solved(request, monkeypatch):
    if request.param == "by blocks":
        monkeypatch.setattr(implicit, "_BLOCK", 4)
        monkeypatch.setattr(implicit, "_BLOCK_GAIN", 0)


def test_a_user_gets_items_of_their_group():
    ratings = two_tastes()
    scores = IALS(factors=4).fit(ratings).scores(np.arange(80))
    same = np.add.outer(np.arange(80), np.arange(30)) % 2 == 0
    assert scores[same].mean() > 3 * scores[~same].mean()


def test_penalties_are_found_unless_given():
    ratings = two_tastes()
    found = IALS(factors=4).fit(ratings)
    given = IALS(
        factors=4, regularization=found.penalty, unobserved_weight=found.pair_weight
    )
    np.testing.assert_array_equal(given.fit(ratings).user_factors, found.user_factors)
    assert IALS(factors=4, regularization=0.7).fit(ratings).penalty == 0.7
    assert IALS(factors=4, unobserved_weight=0.7).fit(ratings).pair_weight == 0.7


@pytest.mark.usefixtures("_solved")
def test_the_search_and_the_fit_are_the_same_on_any_threads(monkeypatch):
    monkeypatch.setattr("recsys.models.ials.REPEATED", 0)  # one fold
    ratings = two_tastes()
    one, three = (IALS(factors=5, threads=n).fit(ratings) for n in (1, 3))
    assert (one.penalty, one.pair_weight) == (three.penalty, three.pair_weight)
    np.testing.assert_array_equal(one.item_factors, three.item_factors)


def test_fits_with_more_factors_search_more_interactions_and_smaller_penalties(
    monkeypatch,
):
    ratings = two_tastes(400, 60)
    monkeypatch.setattr("recsys.models.ials.REPEATED", 0)  # one fold
    monkeypatch.setattr("recsys.models.ials.FIRST_INTERACTIONS", 1000)
    monkeypatch.setattr("recsys.models.ials.INTERACTIONS", 3000)
    trials = []

    def trial_ndcg(_model, folds, penalties, factors):
        train, test = folds[0]
        trials.append((factors, train.nnz + test.nnz, penalties.regularization))
        # Held-out lists are best with the smallest penalty of many factors.
        return -penalties.regularization if factors > 32 else 1.0

    monkeypatch.setattr(IALS, "_trial_ndcg", trial_ndcg)
    model = IALS(factors=40, iterations=1).fit(ratings)
    few = [trial for trial in trials if trial[0] == 32]
    more = [trial for trial in trials if trial[0] == 40]
    assert {size for _, size, _ in few} == {few[0][1]}
    assert few[0][1] <= 1000 < more[0][1] <= 3000
    assert model.penalty == min(penalty for *_, penalty in more) < few[0][2]


def test_found_penalties_rank_held_out_items_better_than_extreme_ones():
    if "RECSYS_DATASETS" not in os.environ:
        pytest.skip("needs RECSYS_DATASETS")
    from recsys.evaluation import evaluate, random_split
    from recsys.readers import read_ratings

    frame = read_ratings(
        Path(os.environ["RECSYS_DATASETS"]) / "ml-latest-small"
    ).to_frame()
    likes = Ratings.from_frame(
        frame.filter(frame["rating"] >= 4).select("user", "item")
    )
    models = {
        "found": IALS(factors=16),
        "large penalty": IALS(factors=16, regularization=1.0),
        "small weight": IALS(factors=16, unobserved_weight=1e-4, regularization=1e-3),
    }
    found = evaluate(models, random_split(likes), 20, metrics=["ndcg"], resamples=0)
    best, *others = found.table["ndcg@20"]
    assert best > 1.1 * max(others)


@pytest.mark.usefixtures("_solved")
def test_contributions_add_up_to_the_score_and_a_history_folds_in_as_it_was_fitted():
    ratings = two_tastes()
    model = IALS(factors=6).fit(ratings)
    history = Histories.of(ratings).take(np.array([3]))
    folded = model.with_users(history).user_factors
    np.testing.assert_array_equal(folded[0], model.user_factors[3])
    found = model.contributions(history, np.arange(30))
    np.testing.assert_allclose(
        found.base + found.terms.sum(axis=1), model.scores([3])[0], atol=1e-5
    )


@pytest.mark.parametrize("factors", [3, 30])
@pytest.mark.parametrize("weight", [0.1, 1e-3])
@pytest.mark.parametrize(
    ("shortest", "iterations"),
    [(256, 40), (0, 40), (0, 0)],
    ids=["dual", "cg", "direct"],
)
def test_contributions_of_short_and_long_histories_solve_the_equations(
    factors, weight, shortest, iterations, monkeypatch
):
    monkeypatch.setattr(ials, "_SHORT_HISTORY", shortest)
    monkeypatch.setattr(ials, "_ITERATIONS", iterations)
    ratings = two_tastes()
    penalties = {"unobserved_weight": weight, "regularization": 0.01}
    model = IALS(factors=factors, iterations=4, **penalties).fit(ratings)
    history = Histories.of(ratings).take(np.array([3]))
    rated = model.item_factors[history.indices].astype(np.float64)
    gram = model.item_factors.astype(np.float64).T @ model.item_factors
    total = len(rated) + model.pair_weight * ratings.n_items
    penalty = model.penalty * total**model.count_power
    system = rated.T @ rated + model.pair_weight * gram
    system += penalty * np.eye(len(gram))
    expected = model.item_factors @ np.linalg.solve(system, rated.T)
    found = model.contributions(history, np.arange(ratings.n_items))
    np.testing.assert_allclose(found.terms, expected, atol=1e-5)


def test_a_heavier_interaction_counts_more():
    ratings = two_tastes()
    values = ratings.values.copy()
    values[0] = 20
    heavier = Ratings(
        ratings.users,
        ratings.items,
        ratings.indptr,
        ratings.indices,
        values,
        implicit=True,
    )
    options = {"factors": 6, "regularization": 0.05, "unobserved_weight": 0.1}
    item = ratings.indices[0]
    before, after = (
        IALS(**options).fit(each).scores([0])[0, item] for each in (ratings, heavier)
    )
    assert after > before


def test_the_fit_to_everything_starts_from_a_trial_and_keeps_the_request():
    ratings = two_tastes()
    trial, steps, cold_steps = IALS(factors=6).fit(ratings), [], []
    model = IALS(factors=6)._fit_checked(
        ratings, Progress(steps.append, trials={"ials": trial})
    )
    IALS(factors=6).fit(ratings, on_step=cold_steps.append)
    assert (model.penalty, model.pair_weight) == (trial.penalty, trial.pair_weight)
    assert len(steps) < len(cold_steps)
    assert model.regularization is None
    again = model.fit(ratings)
    np.testing.assert_array_equal(again.item_factors, trial.item_factors)

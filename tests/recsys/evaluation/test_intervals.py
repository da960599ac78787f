"""Intervals and tests over users: against plain loops, and for what they promise."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from recsys.evaluation import statistics
from recsys.evaluation import statistics as significance
from recsys.evaluation.statistics import (
    Ratio,
    bca,
    bootstrap,
    holm,
    jackknife,
    sign_flip,
)


def test_a_mean_leaves_out_who_has_no_value():
    ratio = Ratio.mean(np.array([1.0, np.nan, 4.0]))
    assert ratio.value == 2.5
    assert np.isnan(Ratio.mean(np.array([np.nan])).value)


def test_rmse_is_over_ratings_and_not_over_users():
    ratio = Ratio(np.array([4.0, 12.0]), np.array([1.0, 3.0]), np.sqrt)
    assert ratio.value == 2


def test_resamples_are_means_over_drawn_users():
    values = np.array([0.0, 1.0, np.nan, 5.0])
    errors, counts = np.array([1.0, 4.0, 9.0, 2.0]), np.array([1.0, 2.0, 3.0, 1.0])
    found = bootstrap(
        [Ratio.mean(values), Ratio(errors, counts, np.sqrt)], 50, random_state=3
    )
    drawn = np.random.default_rng(3).integers(0, 4, (50, 4))
    for row, users in zip(found, drawn, strict=True):
        assert row[0] == pytest.approx(np.nanmean(values[users]), nan_ok=True)
        assert row[1] == pytest.approx(
            np.sqrt(errors[users].sum() / counts[users].sum())
        )


def test_blocks_change_nothing(monkeypatch):
    rng = np.random.default_rng(0)
    ratios = [Ratio.mean(rng.random(30)), Ratio.mean(rng.random(30))]
    differences = rng.normal([0, 0.2, 0.4], size=(24, 3))
    whole = (
        bootstrap(ratios, 40, random_state=1),
        sign_flip(differences, 500, random_state=1),
    )
    monkeypatch.setattr(statistics, "_BLOCK", 90)
    monkeypatch.setattr(significance, "_BLOCK", 240)
    parts = (
        bootstrap(ratios, 40, random_state=1),
        sign_flip(differences, 500, random_state=1),
    )
    np.testing.assert_allclose(parts[0], whole[0], rtol=1e-12)
    np.testing.assert_array_equal(parts[1], whole[1])


def bounds(ratio, resamples=1000, random_state=0, confidence=0.95):
    samples = bootstrap([ratio], resamples, random_state)[:, 0]
    return bca(samples, ratio.value, ratio.leave_one_out(), confidence)


def test_metrics_without_each_user_are_those_of_the_others():
    errors, counts = np.array([1.0, 4.0, 0.0, 2.0]), np.array([1.0, 2.0, 0.0, 1.0])
    left_out = Ratio(errors, counts, np.sqrt).leave_one_out()
    for user in (0, 1, 3):
        others = np.arange(4) != user
        assert left_out[user] == pytest.approx(
            Ratio(errors[others], counts[others], np.sqrt).value
        )
    assert np.isnan(left_out[2])


@pytest.mark.parametrize("skewness", [0.3, 1.2])
def test_intervals_are_those_of_scipy_where_users_are_many(skewness):
    values = np.random.default_rng(0).lognormal(0, skewness, 2000)
    low, high = bounds(Ratio.mean(values), 5000)
    result = stats.bootstrap((values,), np.mean, n_resamples=5000, rng=1, batch=500)
    assert (low, high) == pytest.approx(
        (result.confidence_interval.low, result.confidence_interval.high), rel=6e-3
    )


def test_intervals_of_few_skewed_users_hold_the_truth_more_often_than_percentiles():
    rng = np.random.default_rng(1)
    held = held_by_percentiles = 0
    for trial in range(400):
        ratio = Ratio.mean(rng.lognormal(size=30))
        low, high = bounds(ratio, 400, trial)
        held += low <= np.exp(0.5) <= high
        samples = bootstrap([ratio], 400, trial)
        low, high = np.percentile(samples, [2.5, 97.5])
        held_by_percentiles += low <= np.exp(0.5) <= high
    assert held_by_percentiles + 4 < held <= 380


def test_intervals_without_scatter_or_users_have_no_width():
    assert bounds(Ratio.mean(np.full(5, 0.25))) == (0.25, 0.25)
    assert np.isnan(bounds(Ratio.mean(np.array([1.0, np.nan])))).all()
    low, high = bounds(Ratio.mean(np.array([0.0, 1.0])), confidence=0.999)
    assert (low, high) == (0, 1)


def test_the_jackknife_of_a_mean_is_its_standard_error():
    values = np.random.default_rng(2).normal(size=50)
    without = (values.sum() - values) / 49 - values.mean()
    low, high = jackknife(values.mean(), without, 0.95)
    half = 1.959964 * values.std(ddof=1) / np.sqrt(50)
    assert (low, high) == pytest.approx(
        (values.mean() - half, values.mean() + half), abs=1e-6
    )
    assert np.isnan(jackknife(1.0, np.zeros(1), 0.95)).all()


def exact_p(differences):
    """The two-sided p value over all choices of signs."""
    sums = [
        np.dot(signs, differences)
        for signs in product((-1, 1), repeat=len(differences))
    ]
    return np.mean(np.abs(sums) >= abs(differences.sum()) - 1e-9)


@given(st.lists(st.integers(-3, 3), min_size=2, max_size=9), st.integers(0, 3))
def test_sign_flips_come_near_the_exact_test(values, seed):
    differences = np.array(values, dtype=float)
    found = sign_flip(differences[:, None], 4000, seed)[0]
    assert found == pytest.approx(exact_p(differences), abs=0.04)


def test_a_certain_difference_has_the_least_p_value():
    differences = np.random.default_rng(0).normal(1, 0.1, size=(500, 1))
    assert sign_flip(differences, 999)[0] == 1 / 1000
    assert (
        sign_flip(differences[:30], 99)[0] == 1 / 100
    )  # among 99 tried, the observed is one


def test_alike_models_are_told_apart_as_seldom_as_the_level_says():
    rng = np.random.default_rng(5)
    p_values = sign_flip(rng.normal(size=(40, 2000)), 999, random_state=1)
    assert np.mean(p_values < 0.05) == pytest.approx(0.05, abs=0.02)


def test_holm_by_hand():
    np.testing.assert_allclose(
        holm([0.01, 0.04, 0.03, 0.005]), [0.03, 0.06, 0.06, 0.02]
    )
    assert holm([0.9, 0.8]).tolist() == [1, 1]
    assert holm([]).tolist() == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8), st.floats(0.001, 0.999))
def test_holm_rejects_what_the_stepwise_rule_rejects(p_values, level):
    adjusted = holm(p_values)
    rejected = set()
    for step, place in enumerate(np.argsort(p_values, kind="stable")):
        if p_values[place] * (len(p_values) - step) > level:
            break
        rejected.add(int(place))
    assert rejected == set(np.flatnonzero(adjusted <= level).tolist())

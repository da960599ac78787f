"""The ordered probit model of levels against SciPy's truncated normal distribution."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm, truncnorm

from lowrank.completion.ordinal import OrdinalScale

CUTS = np.array([1.2, 2.1, 3.4, 4.2])
DEVIATION = 0.8


def stars(n=4000, seed=0):
    """Return scores, and the levels 1 to 5 of latent numbers around them."""
    rng = np.random.default_rng(seed)
    scores = rng.normal(3, 1, n)
    latent = scores + DEVIATION * rng.normal(size=n)
    return scores, np.searchsorted(CUTS, latent) + 1.0


def scale_of(cuts=CUTS):
    return OrdinalScale(
        np.arange(1.0, len(cuts) + 2), np.asarray(cuts), (0, len(cuts) - 1)
    )


def ends(scale, codes, scores, deviation):
    edges = np.concatenate([[-np.inf], scale.cuts, [np.inf]])
    return (edges[codes] - scores) / deviation, (edges[codes + 1] - scores) / deviation


def test_cut_points_begin_half_way_between_levels():
    scale = OrdinalScale.of(np.array([0.5, 2, 2, 1, 4, 4, 4], np.float32))
    np.testing.assert_array_equal(scale.levels, [0.5, 1, 2, 4])
    np.testing.assert_array_equal(scale.cuts, [0.75, 1.5, 3])
    low, high = scale.anchors
    assert 0 <= low < high < 3


def test_values_between_levels_belong_to_the_nearest():
    scale = scale_of()
    np.testing.assert_array_equal(
        scale.codes(np.array([0.2, 1, 2.4, 2.6, 7])), [0, 0, 1, 2, 4]
    )


@pytest.mark.parametrize("distance", [0.0, 3.0, 12.0])
def test_latent_means_are_those_of_truncated_normal_numbers(distance):
    scores, values = stars(200)
    scores = scores + distance
    scale, codes = scale_of(), scale_of().codes(values)
    found = scale.latent(codes, scores, DEVIATION**2)
    lower, upper = ends(scale, codes, scores, DEVIATION)
    expected = truncnorm.mean(lower, upper, scores, DEVIATION)
    np.testing.assert_allclose(found.means, expected, atol=3e-6 * (1 + distance**2))
    turned = np.where(
        lower > 0, norm.sf(lower) - norm.sf(upper), norm.cdf(upper) - norm.cdf(lower)
    )
    assert found.log_likelihood == pytest.approx(np.log(turned).sum(), rel=1e-5)
    off = scale.expected(scores, DEVIATION**2) - values
    assert found.squares == pytest.approx(off @ off, rel=1e-4)


def test_draws_have_the_distribution_of_truncated_normal_numbers():
    scale, rng = scale_of(), np.random.default_rng(3)
    codes, scores = np.repeat([0, 2, 4], 20_000).astype(np.uint16), np.full(60_000, 3.9)
    draws = scale.drawn(codes, scores, DEVIATION**2, rng).reshape(3, -1)
    lower, upper = ends(scale, np.array([0, 2, 4]), 3.9, DEVIATION)
    np.testing.assert_allclose(
        draws.mean(axis=1), truncnorm.mean(lower, upper, 3.9, DEVIATION), atol=0.02
    )
    np.testing.assert_allclose(
        draws.std(axis=1), truncnorm.std(lower, upper, 3.9, DEVIATION), atol=0.02
    )


@given(
    cuts=st.lists(
        st.floats(-3, 8), min_size=2, max_size=9, unique_by=lambda cut: round(cut, 2)
    ),
    score=st.floats(-20, 20),
    variance=st.floats(0.01, 10),
)
def test_the_expected_level_is_the_mean_of_the_distribution(cuts, score, variance):
    scale = scale_of(sorted(cuts))
    chances = scale.probabilities(np.array([score]), variance)
    assert chances.min() >= -1e-12
    assert chances.sum() == pytest.approx(1)
    expected = scale.expected(np.array([score]), variance)
    assert expected[0] == pytest.approx(chances[0] @ scale.levels, abs=1e-9)
    higher = scale.expected(np.array([score + 0.1]), variance)
    assert higher[0] >= expected[0] - 1e-12


@given(share=st.floats(0.01, 0.99), score=st.floats(-5, 10))
def test_quantiles_lie_between_the_outer_edges_and_rise(share, score):
    scale = scale_of()
    low, high = (
        scale.quantile(np.array([score]), 0.9, each)[0]
        for each in (share, min(1, share + 0.01))
    )
    assert 0.5 <= low <= high <= 5.5


def test_half_of_a_level_is_below_its_middle():
    """A level that is certain counts as the numbers that are nearest to it, all alike."""
    scale = scale_of()
    np.testing.assert_allclose(
        [
            scale.quantile(np.array([2.7]), 1e-6, share)[0]
            for share in (0.05, 0.5, 0.95)
        ],
        [2.55, 3.0, 3.45],
        atol=1e-6,
    )


def test_cut_points_and_noise_are_learned():
    scores, values = stars(20_000)
    scale, noise = OrdinalScale.of(values), 0.3
    scale = OrdinalScale(scale.levels, np.array([1.2, 2.0, 3.0, 4.2]), (0, 3))
    codes, before = scale.codes(values), -math.inf
    for _ in range(20):
        scale, noise = scale.learned(codes, scores, noise, 0.0)
        after = scale.latent(codes, scores, noise).log_likelihood
        assert after >= before - 1e-6 * len(values)
        before = after
    np.testing.assert_allclose(scale.cuts, CUTS, atol=0.06)
    assert math.sqrt(noise) == pytest.approx(DEVIATION, abs=0.04)


def test_two_levels_have_nothing_to_learn():
    scale = OrdinalScale.of(np.array([0.0, 1.0, 1.0]))
    assert scale.learned(scale.codes(np.array([0.0, 1.0])), np.zeros(2), 0.7, 0.0) == (
        scale,
        0.7,
    )

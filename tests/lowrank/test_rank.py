"""Rules for choosing k: functions of a spectrum."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowrank import cumulative_energy, elbow, rank_for_energy, truncated_svd

spectra = st.lists(st.floats(0, 1e6), max_size=30).map(
    lambda s: sorted(s, reverse=True)
)


@given(spectra)
def test_cumulative_energy_is_a_distribution(s):
    shares = cumulative_energy(s)
    assert shares.shape == (len(s),)
    assert (np.diff(shares) >= 0).all()
    assert ((shares >= 0) & (shares <= 1)).all()
    if s:
        assert shares[-1] == pytest.approx(1.0)


def test_cumulative_energy_of_a_truncated_spectrum():
    matrix = np.random.default_rng(0).standard_normal((30, 20))
    svd = truncated_svd(matrix, 5)
    shares = cumulative_energy(svd.s, svd.frobenius_norm**2)
    assert shares[-1] == pytest.approx(svd.explained_energy, rel=1e-12)
    complete = np.linalg.svd(matrix, compute_uv=False)
    np.testing.assert_allclose(shares, cumulative_energy(complete)[:5], rtol=1e-10)


def test_cumulative_energy_of_a_float32_spectrum():
    matrix = np.random.default_rng(0).standard_normal((30, 20)).astype(np.float32)
    svd = truncated_svd(matrix, 20)
    assert cumulative_energy(svd.s, svd.frobenius_norm**2)[-1] == pytest.approx(
        1.0, rel=1e-6
    )


@pytest.mark.parametrize("size", [1e-200, 1e200])
def test_cumulative_energy_at_extreme_scales(size):
    np.testing.assert_allclose(cumulative_energy([2 * size, size]), [0.8, 1.0])


def test_cumulative_energy_of_nothing():
    assert cumulative_energy([]).shape == (0,)
    np.testing.assert_array_equal(cumulative_energy([0.0, 0.0]), [1.0, 1.0])


@given(spectra, st.floats(0, 1))
def test_rank_for_energy_is_the_smallest(s, fraction):
    k = rank_for_energy(s, fraction)
    shares = np.concatenate([[0.0], cumulative_energy(s)])
    if s:
        assert shares[k] >= fraction - 1e-12
    assert k == 0 or shares[k - 1] < fraction


@pytest.mark.parametrize(
    ("fraction", "k"), [(0.0, 0), (0.5, 1), (0.64, 1), (0.65, 2), (0.96, 3), (1.0, 4)]
)
def test_rank_for_energy_by_hand(fraction, k):
    assert rank_for_energy([8.0, 5.0, 3.0, np.sqrt(2.0)], fraction, 100.0) == k


def test_rank_for_energy_needs_enough_values():
    message = r"fraction must be at most 0\.5000, the share of these 2 singular values; got 0\.9"
    with pytest.raises(ValueError, match=message):
        rank_for_energy([1.0, 1.0], 0.9, 4.0)


@pytest.mark.parametrize("fraction", [-0.1, 1.1, np.nan])
def test_rank_for_energy_bad_fraction(fraction):
    with pytest.raises(ValueError, match=r"fraction must be between 0 and 1; got"):
        rank_for_energy([1.0], fraction)


@pytest.mark.parametrize(
    ("s", "k"),
    [
        ([10, 9, 8, 1, 0.9, 0.8], 3),
        ([100, 5, 4, 3, 2, 1], 1),
        ([5, 5, 5], 3),
        ([3, 2, 1], 3),
        ([10, 9.9, 9.5, 0], 4),
        ([2, 1], 2),
        ([2], 1),
        ([], 0),
    ],
)
def test_elbow_by_hand(s, k):
    assert elbow(s) == k


@pytest.mark.parametrize("rank", [1, 3, 8])
def test_elbow_finds_the_rank_of_a_noisy_matrix(rank):
    rng = np.random.default_rng(rank)
    signal = 5 * rng.standard_normal((200, rank)) @ rng.standard_normal((rank, 60))
    matrix = signal + 0.1 * rng.standard_normal((200, 60))
    assert elbow(truncated_svd(matrix, 40).s) == rank


@given(spectra, st.integers(-20, 20))
def test_elbow_does_not_depend_on_the_scale(s, exponent):
    assert elbow(np.array(s) * 2.0**exponent) == elbow(s)


@pytest.mark.parametrize("function", [cumulative_energy, elbow])
@pytest.mark.parametrize(
    ("s", "message"),
    [
        ([[1.0]], r"s must be one-dimensional; got shape \(1, 1\)\."),
        ([2.0, np.nan], r"s must be finite and not negative; got nan at position 1\."),
        ([2.0, -1.0], r"s must be finite and not negative; got -1\.0 at position 1\."),
        ([3.0, 1.0, 2.0], r"s must be descending; it rises after position 1\."),
    ],
)
def test_bad_spectra(function, s, message):
    with pytest.raises(ValueError, match=message):
        function(s)


@pytest.mark.parametrize("total", [1.0, -1.0, np.nan, np.inf])
def test_bad_totals(total):
    with pytest.raises(ValueError, match=r"total must be at least sum s\^2 = 5; got"):
        cumulative_energy([2.0, 1.0], total)

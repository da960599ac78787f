"""Drifts of biases: Ornstein-Uhlenbeck processes against their Gaussian distribution."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import multivariate_normal

from lowrank import kernels
from lowrank.completion.time_biases import Drift, Knots, fit_drifts
from lowrank.kernels import posteriors

NOISE, VARIANCE, SCALE = 0.3, 0.5, 700.0


@pytest.fixture(autouse=True)
def _restore_kernels():
    active = kernels.backend()
    yield
    kernels.use(active.instruction_set or "reference")


def observations(n=60, n_rows=5, seed=0):
    """Return rows, times and values of observations, in any order; the last row has none."""
    rng = np.random.default_rng(seed)
    return rng.integers(0, n_rows, n), rng.integers(0, 10_000, n), rng.normal(size=n)


def fitted(rows, times, values, n_rows=6, dtype=np.float64):
    drift = Drift.of(rows, n_rows, times, dtype)
    drift.variance, drift.scale, drift.noise = VARIANCE, SCALE, NOISE
    drift.fit(values.astype(dtype))
    return drift


def covariance(times):
    return VARIANCE * np.exp(-np.abs(times[:, None] - times) / SCALE)


@pytest.mark.parametrize("name", kernels.supported())
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_posterior_is_that_of_the_gaussian_vector(name, dtype):
    kernels.use(name)
    rows, times, values = observations()
    drift = fitted(rows, times, values, dtype=dtype)
    variances = np.empty(len(rows))
    variances[drift.order] = drift.variances
    for row in range(5):
        own = rows == row
        K = covariance(times[own].astype(float))
        gain = K @ np.linalg.inv(K + NOISE * np.eye(own.sum()))
        np.testing.assert_allclose(drift.means[own], gain @ values[own], atol=1e-5)
        np.testing.assert_allclose(variances[own], np.diag(K - gain @ K), atol=1e-5)
    assert drift.means.dtype == dtype


@pytest.mark.parametrize("name", kernels.supported())
def test_the_evidence_is_the_density_of_the_data(name):
    kernels.use(name)
    rows, times, values = observations()
    drift = Drift.of(rows, 6, times, np.float64)
    given_ = {"noise": NOISE, "variance": VARIANCE, "scale": SCALE}
    data = values[drift.order]
    found = posteriors.drift_evidence(drift.indptr, drift.gaps, data, **given_)
    expected = 0.0
    for row in range(5):
        own = rows == row
        total = covariance(times[own].astype(float)) + NOISE * np.eye(own.sum())
        expected += multivariate_normal.logpdf(values[own], cov=total)
    expected += len(rows) / 2 * math.log(2 * math.pi * NOISE)
    assert found == pytest.approx(expected, rel=1e-9)


@given(n=st.integers(1, 40), spread=st.integers(1, 3000), seed=st.integers(0, 1000))
def test_knots_give_the_posterior_at_any_time(n, spread, seed):
    """Where each entry has a knot of its own; variances are on the safe side."""
    rng = np.random.default_rng(seed)
    rows, times = rng.integers(0, 3, n), rng.choice(spread * 50, n, replace=False)
    values = rng.normal(size=n)
    drift = fitted(rows, times, values, n_rows=4)
    everything = Knots(
        drift.indptr[:-1],
        np.diff(drift.indptr),
        drift.times,
        drift.means[drift.order].astype(np.float32),
        drift.variances.astype(np.float32),
        VARIANCE,
        SCALE,
        NOISE,
    )
    at_rows, at = rng.integers(0, 4, 20), rng.integers(-1000, spread * 60, 20)
    means, variances = everything.at(at_rows, at)
    for row, time, mean, variance in zip(at_rows, at, means, variances, strict=True):
        own = rows == row
        K = covariance(times[own].astype(float)) + NOISE * np.eye(own.sum())
        across = VARIANCE * np.exp(-np.abs(times[own] - time) / SCALE)
        solved = np.linalg.solve(K, across) if own.any() else across
        assert mean == pytest.approx(solved @ values[own], abs=1e-4)
        assert VARIANCE - solved @ across - 1e-4 < variance < VARIANCE + 1e-4


def test_knots_of_rows_are_taken_and_replaced():
    rows, times, values = observations()
    knots = fitted(rows, times, values).knots()
    others = fitted(rows, times + 300, -values).knots()
    at = np.arange(0, 10_000, 500)

    def of(knots, row):
        return np.array(knots.at(np.full(len(at), row), at))

    taken = knots.take(np.array([3, -1, 0]))
    assert len(taken.times) == knots.counts[[3, 0]].sum()
    for place, row in enumerate([3, 5, 0]):  # the last row has no knots
        np.testing.assert_array_equal(of(taken, place), of(knots, row))
    new = knots.replaced(np.array([4, 1]), others.take(np.array([2, 0])))
    expected = [
        (knots, 0),
        (others, 0),
        (knots, 2),
        (knots, 3),
        (others, 2),
        (knots, 5),
    ]
    for row, (source, place) in enumerate(expected):
        np.testing.assert_array_equal(of(new, row), of(source, place))
    assert len(new.times) == new.counts.sum()
    none = knots.take(np.array([-1, -1]))
    np.testing.assert_array_equal(of(none, 1), of(knots, 5))


def test_close_entries_share_a_knot():
    rows, times = np.zeros(300, np.int64), np.arange(300, dtype=np.int64)
    drift = fitted(rows, times, np.sin(times / 200.0), n_rows=1)
    knots = drift.knots()
    assert len(knots.times) < 10
    off = knots.at(rows, times)[0] - drift.means
    assert np.abs(off).max() < 0.1


def simulated(variance, scale, seed=0, n_rows=200, n=60):
    """Return noisy observations of processes."""
    rng = np.random.default_rng(seed)
    rows = np.repeat(np.arange(n_rows), n)
    times = np.sort(rng.integers(0, int(20 * scale), (n_rows, n)), axis=1)
    values = np.empty((n_rows, n))
    for row, own in enumerate(times):
        K = np.exp(-np.abs(own[:, None] - own) / scale) + 1e-9 * np.eye(n)
        values[row] = math.sqrt(variance) * np.linalg.cholesky(K) @ rng.normal(size=n)
    values += math.sqrt(NOISE) * rng.normal(size=values.shape)
    return rows, times.ravel(), values.ravel()


def test_variance_and_time_scale_are_learned():
    rows, times, values = simulated(0.4, 5000.0)
    drift = Drift.of(rows, 200, times, np.float64)
    for _ in range(4):
        drift.learn(values, (600.0, 86_400.0))
    assert drift.variance == pytest.approx(0.4, rel=0.3)
    assert drift.scale == pytest.approx(5000.0, rel=0.4)
    assert drift.noise == pytest.approx(NOISE, rel=0.3)


def test_drifts_of_rows_and_columns_are_told_apart():
    rows, times, values = simulated(0.4, 5000.0)
    columns = np.random.default_rng(1).integers(0, 30, len(rows))
    of_rows, of_columns = fit_drifts(values, rows, columns, (200, 30), times)
    assert 0.2 < of_rows.variance < 0.6
    assert of_columns.variance < 0.02


def test_finds_no_drift_in_noise():
    rows, times, values = simulated(0.0, 5000.0)
    drift = Drift.of(rows, 200, times, np.float64)
    for _ in range(4):
        drift.learn(values, (600.0, 86_400.0))
    assert drift.variance == 0
    drift.fit(values)
    assert not drift.means.any()
    assert not len(drift.knots().times)

"""Variational Bayes for a matrix with missing entries."""

from __future__ import annotations

import math
from itertools import islice

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from lowrank import kernels
from lowrank.completion.bayes import predictive_variance, variational_sweeps
from lowrank.completion.feature_ridge import Link, ridge_fit
from lowrank.completion.links import (
    Posterior,
    posterior_rows,
    posterior_terms,
    unpack,
)


def observed(n=60, m=40, k=2, density=0.4, noise=0.3, seed=0, dtype=np.float64):
    """Return a noisy low-rank matrix with missing entries, and the whole without noise."""
    rng = np.random.default_rng(seed)
    whole = 3 + rng.normal(size=(n, k)) @ rng.normal(size=(k, m)) / math.sqrt(k)
    whole = whole + rng.normal(size=(n, 1)) * 0.3 + rng.normal(size=m) * 0.3
    seen = rng.random((n, m)) < density
    values = np.where(seen, whole + noise * rng.normal(size=(n, m)), 0)
    return sp.csr_array(values.astype(dtype)), whole, seen


def linked(n=200, m=60, seed=0):
    """Return ratings whose row factors decide which columns are rated."""
    rng = np.random.default_rng(seed)
    a, c = rng.normal(size=(n, 1)), rng.normal(size=(m, 1))
    chance = 1 / (1 + np.exp(2.5 - 2 * a @ c.T))
    seen = rng.random((n, m)) < chance
    return sp.csr_array(
        np.where(seen, 3 + a @ c.T + 0.5 * rng.normal(size=(n, m)), 0)
    ), seen


def run(X, k, sweeps, **options):
    return list(islice(variational_sweeps(X, k, **options), sweeps))


def predicted(sweep):
    rows, columns = sweep.rows.mean, sweep.columns.mean
    return sweep.mean + rows[:, :-1] @ columns[:, :-1].T + rows[:, -1:] + columns[:, -1]


@given(
    n=st.integers(1, 30),
    m=st.integers(1, 30),
    k=st.integers(1, 4),
    density=st.floats(0.05, 1),
    penalty=st.sampled_from([0.0, 0.5, 10.0]),
    power=st.sampled_from([0.0, 0.5]),
    temperature=st.sampled_from([1.0, 1.5]),
    seed=st.integers(0, 1000),
)
def test_the_free_energy_never_falls(
    n, m, k, density, penalty, power, temperature, seed
):
    rng = np.random.default_rng(seed)
    X = sp.random_array((n, m), density=density, rng=rng, format="csr")
    if X.nnz == 0:
        return
    options = {
        "link_penalty": penalty,
        "count_power": power,
        "temperature": temperature,
    }
    sweeps = run(X, k, 8, **options)
    energies = np.array([sweep.free_energy for sweep in sweeps])
    assert np.isfinite(energies).all()
    assert (np.diff(energies) >= -1e-6 * np.abs(energies[1:]) - 1e-6).all()


def test_recovers_missing_entries_and_the_noise():
    X, whole, seen = observed(noise=0.3)
    last = run(X, 4, 60)[-1]
    assert np.sqrt(np.mean((predicted(last) - whole)[~seen] ** 2)) < 0.25
    assert math.sqrt(last.noise_variance) == pytest.approx(0.3, abs=0.05)


def test_few_entries_do_not_end_without_factors():
    """From a start with much noise, all factors shrink to zero here: the error is 0.95."""
    X, whole, seen = observed(n=300, m=200, k=8, density=0.15, noise=0.5, seed=1)
    sweep = run(X, 32, 12, count_power=0.3, temperature=1.3)[-1]
    missing = ~seen
    assert np.std((predicted(sweep) - whole)[missing]) < 0.8 * np.std(whole[missing])


def test_intervals_hold_what_they_say():
    X, whole, seen = observed(n=120, m=80, noise=0.3)
    last = run(X, 2, 40)[-1]
    i, j = np.nonzero(~seen)
    variance = predictive_variance(
        Posterior(last.rows.mean[i], last.rows.covariance[i]),
        Posterior(last.columns.mean[j], last.columns.covariance[j]),
    )
    fresh = whole[i, j] + 0.3 * np.random.default_rng(1).normal(size=len(i))
    z = (fresh - predicted(last)[i, j]) / np.sqrt(variance + last.noise_variance)
    assert 0.86 < np.mean(np.abs(z) < 1.645) < 0.94


def test_the_rmse_is_the_expected_one():
    """By definition: the error of the means plus the variance of each prediction."""
    X, _, seen = observed()
    rows = run(X, 2, 6)[-1]
    i, j = np.nonzero(seen)
    variance = predictive_variance(
        Posterior(rows.rows.mean[i], rows.rows.covariance[i]),
        Posterior(rows.columns.mean[j], rows.columns.covariance[j]),
    )
    error = X.toarray()[i, j] - predicted(rows)[i, j]
    assert rows.rmse**2 == pytest.approx(np.mean(error**2 + variance), rel=1e-9)


def test_float32_agrees_with_float64():
    X, *_ = observed()
    options = {"link_penalty": 3.0, "count_power": 0.3, "temperature": 1.3}
    single, double = (
        run(X.astype(t), 3, 10, **options)[-1] for t in (np.float32, np.float64)
    )
    assert single.rows.mean.dtype == single.rows.covariance.dtype == np.float32
    np.testing.assert_allclose(predicted(single), predicted(double), atol=2e-3)
    assert single.free_energy == pytest.approx(double.free_energy, rel=1e-3)


def test_links_predict_from_what_was_rated():
    """Held-out errors are lower where the set of rated columns depends on the factors."""
    X, seen = linked()
    i, j = np.nonzero(seen)
    out = np.random.default_rng(1).random(len(i)) < 0.3
    train = sp.csr_array((X.toarray()[i, j][~out], (i[~out], j[~out])), shape=X.shape)
    errors = {}
    for penalty in (0.0, 3.0):
        last = run(train, 2, 20, link_penalty=penalty)[-1]
        error = X.toarray()[i, j][out] - predicted(last)[i, j][out]
        errors[penalty] = np.sqrt(np.mean(error**2))
        assert len(last.row_prior.link) == (60 if penalty else 0)
    assert errors[3.0] < errors[0.0] - 0.02


@pytest.mark.parametrize("penalty", [0.0, 2.0])
def test_the_same_bits_on_any_number_of_threads(penalty):
    X, *_ = observed(n=300, m=200, dtype=np.float32)
    one, three = (run(X, 5, 4, link_penalty=penalty, threads=t)[-1] for t in (1, 3))
    np.testing.assert_array_equal(one.rows.mean, three.rows.mean)
    np.testing.assert_array_equal(one.columns.covariance, three.columns.covariance)
    assert one.free_energy == three.free_energy


def test_a_row_is_a_sum_over_its_entries():
    X, *_ = observed()
    last = run(X, 3, 5, link_penalty=2.0, count_power=0.3)[-1]
    entries, noise = kernels.csr_arrays(X), 1.3 * last.noise_variance
    rows = posterior_rows(
        entries, last.columns, last.row_prior, mean=last.mean, noise=noise
    )
    for row in (0, 17):
        part = slice(X.indptr[row], X.indptr[row + 1])
        indices = X.indices[part]
        own = kernels.CsrArrays(np.array([0, len(indices)]), indices, X.data[part])
        (terms,) = posterior_terms(
            own,
            last.columns.mean[indices],
            last.columns.covariance,
            last.row_prior,
            mean=last.mean,
            noise=noise,
        )
        axes = np.eye(len(terms.base))
        solutions, total = terms.solved(axes)
        np.testing.assert_allclose(total, rows.mean[row], rtol=1e-9)
        parts = solutions @ terms.base + terms.of_entries(solutions).sum(axis=1)
        np.testing.assert_allclose(parts, total, rtol=1e-9)


def test_ridge_fit_reaches_the_solution_and_never_moves_away_from_it():
    rng = np.random.default_rng(0)
    A = sp.random_array((50, 30), density=0.2, rng=rng, format="csr")
    transpose = Link.of(kernels.csr_arrays(A.T.tocsr())).pattern
    link = Link.of(kernels.csr_arrays(A), transpose)
    S = (A != 0).toarray() * link.scale[:, None]
    np.testing.assert_allclose(np.linalg.norm(S, axis=1)[np.diff(A.indptr) > 0], 1)
    target, weight = rng.normal(size=(50, 3)), rng.uniform(0, 2, 50)
    start = rng.normal(size=(30, 3))
    exact = np.linalg.solve(
        S.T @ (weight[:, None] * S) + 0.7 * np.eye(30), S.T @ (weight[:, None] * target)
    )

    def loss(B):
        return np.sum(weight[:, None] * (target - S @ B) ** 2) + 0.7 * np.sum(B**2)

    losses = [
        loss(ridge_fit(link, target, ridge=0.7, weight=weight, start=start, steps=s)[0])
        for s in range(8)
    ]
    assert losses[0] == pytest.approx(loss(start))
    assert (np.diff(losses) <= 1e-12).all()
    B, Y = rng.normal(size=(30, 2)), rng.normal(size=(50, 2))
    np.testing.assert_allclose(link.forward(B), S @ B)
    np.testing.assert_allclose(link.backward(Y), S.T @ Y)
    far, _ = ridge_fit(link, target, ridge=0.7, weight=weight, start=start, steps=60)
    np.testing.assert_allclose(far, exact, atol=1e-8)


def test_unpacks_the_upper_triangle():
    packed = np.arange(6.0)[None]
    np.testing.assert_array_equal(
        unpack(packed, 3)[0], [[0, 1, 2], [1, 3, 4], [2, 4, 5]]
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k": 0}, "k must be at least 1; got 0"),
        ({"link_penalty": -1.0}, r"link_penalty must be 0 or positive; got -1\.0"),
        ({"temperature": 0.5}, r"temperature must be at least 1; got 0\.5"),
        (
            {"X": sp.csr_array((3, 3))},
            "X must have at least one stored entry; got none",
        ),
    ],
)
def test_bad_arguments_raise(options, message):
    arguments = {"X": observed()[0], "k": 2} | options
    with pytest.raises(ValueError, match=message):
        next(variational_sweeps(**arguments))

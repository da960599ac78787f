"""Ridge regressions on features, and what fits make of them, against their definitions."""

from __future__ import annotations

import math
from itertools import islice
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from lowrank import kernels
from lowrank.completion import cold_start, feature_ridge, links
from lowrank.completion.bayes import variational_sweeps
from lowrank.completion.cold_start import fit_cold_map, fit_slopes, main_directions
from lowrank.completion.feature_ridge import FeatureDesign, FeatureRidge
from lowrank.completion.linked_als import linked_als_sweeps
from lowrank.completion.links import posterior_rows, posterior_terms


def grouped(matrix, *sizes):
    """Return features in groups of these sizes."""
    ends = np.cumsum(sizes)
    groups = {
        f"g{i}": slice(int(e - s), int(e))
        for i, (s, e) in enumerate(zip(sizes, ends, strict=True))
    }
    return SimpleNamespace(matrix=sp.csr_array(matrix), groups=groups)


def problem(
    n=120, m=80, n_features=4, density=0.15, noise=0.3, seed=0, dtype=np.float64
):
    """Return known entries, all entries, and features of columns that their factors follow."""
    rng = np.random.default_rng(seed)
    F = rng.normal(size=(m, n_features)) / math.sqrt(n_features)
    C = rng.normal(size=(n_features, 2))
    columns = F @ C + 0.2 * rng.normal(size=(m, 2))
    bias = F @ rng.normal(size=n_features) * 0.5
    whole = (
        3 + rng.normal(size=(n, 2)) @ columns.T + bias + 0.3 * rng.normal(size=(n, 1))
    )
    seen = rng.random((n, m)) < density
    X = sp.csr_array(
        np.where(seen, whole + noise * rng.normal(size=(n, m)), 0).astype(dtype)
    )
    return X, whole, grouped(F.astype(dtype), n_features)


def last(sweeps, n):
    return list(islice(sweeps, n))[-1]


def penalised(F, weight, ridge, T):
    """Return coefficients and intercept of a weighted ridge regression, from the formula."""
    A = np.column_stack([F, np.ones(len(F))])
    system = A.T @ (weight[:, None] * A) + np.diag([*ridge, 0.0])
    return np.linalg.solve(system, A.T @ (weight[:, None] * T))


@pytest.mark.parametrize(
    ("settings", "off"),
    [
        ({}, 1e-8),
        ({"_EXACT": 0, "_STEPS": 60, "_CLOSE": 0}, 1e-8),
        ({"_EXACT": 0}, 0.05),
    ],
    ids=["exact", "iterated", "until close"],
)
def test_coefficients_equal_a_ridge_regression_with_an_intercept(
    settings, off, monkeypatch
):
    for name, value in settings.items():
        monkeypatch.setattr(feature_ridge, name, value)
    rng = np.random.default_rng(0)
    F = sp.random_array((50, 12), density=0.3, rng=rng, format="csr")
    T, weight = rng.normal(size=(50, 3)), rng.uniform(0, 2, 50) * (rng.random(50) < 0.8)
    ridge = FeatureRidge.of(grouped(F, 5, 7), weight, 3)
    ridge.penalties = np.array([0.5, 3.0])
    for _ in range(3):  # sweeps, each of which starts from the one before
        predicted = ridge.fit(T)
    expected = penalised(F.toarray(), weight, [0.5] * 5 + [3.0] * 7, T)
    np.testing.assert_allclose(ridge.coefficients, expected[:-1], atol=off)
    centre = weight @ F.toarray() / weight.sum()
    np.testing.assert_allclose(
        predicted, (F.toarray() - centre) @ expected[:-1], atol=off
    )


@pytest.mark.parametrize("exact", [True, False])
def test_draws_have_the_covariance_of_coefficients(exact, monkeypatch):
    if not exact:
        monkeypatch.setattr(feature_ridge, "_EXACT", 0)
    draws = 4000
    rng = np.random.default_rng(1)
    F, weight = rng.normal(size=(30, 3)), rng.uniform(0.5, 2, 30)
    ridge = FeatureRidge.of(grouped(F, 3), weight, 1)
    centred = F - weight @ F / weight.sum()
    system = centred.T @ (weight[:, None] * centred) + ridge.penalties[0] * np.eye(3)
    Q = np.linalg.inv(system)
    np.testing.assert_allclose(np.cov(ridge.drawn(draws)), Q, atol=0.08 * Q.max())


def test_learning_keeps_what_explains_and_shrinks_what_does_not():
    rng = np.random.default_rng(0)
    F = rng.normal(size=(400, 40)) / math.sqrt(20)
    target = F[:, :20] @ rng.normal(size=(20, 3)) + 0.5 * rng.normal(size=(400, 3))
    ridge = FeatureRidge.of(grouped(F, 20, 20), np.ones(400), 3)
    for _ in range(20):
        ridge.fit(target)
        ridge.learn(np.eye(3) / 0.25)
    assert ridge.penalties[1] > 5 * ridge.penalties[0]


@settings(max_examples=10, deadline=None)
@given(
    n=st.integers(2, 25),
    m=st.integers(2, 25),
    density=st.floats(0.1, 1),
    link=st.sampled_from([0.0, 2.0]),
    power=st.sampled_from([0.0, 0.5]),
    seed=st.integers(0, 1000),
)
def test_the_free_energy_never_falls_with_features(n, m, density, link, power, seed):
    rng = np.random.default_rng(seed)
    X = sp.random_array((n, m), density=density, rng=rng, format="csr")
    if X.nnz == 0:
        return
    features = {
        "row_features": grouped(rng.normal(size=(n, 3)), 2, 1),
        "column_features": grouped(rng.random((m, 5)) < 0.4, 5),
    }
    features["column_features"].matrix = features["column_features"].matrix.astype(
        float
    )
    sweeps = variational_sweeps(X, 2, link_penalty=link, count_power=power, **features)
    energies = np.array([sweep.free_energy for sweep in islice(sweeps, 6)])
    assert np.isfinite(energies).all()
    assert (np.diff(energies) >= -1e-7 * np.abs(energies[1:]) - 1e-7).all()


def test_least_squares_fall_once_the_penalties_are_chosen():
    X, _, features = problem()
    path = []
    for sweep in islice(
        linked_als_sweeps(X, 2, regularization=1.0, column_features=features), 12
    ):
        path += [sweep.half_objective, sweep.objective]
    assert (np.diff(path[10:]) <= 1e-9 * np.abs(path[0])).all()


def of_method(name, X, features, k=2):
    if name == "als":
        sweeps = linked_als_sweeps(X, k, regularization=0.3, column_features=features)
        sweep = last(sweeps, 15)
        f = sweep.factors
        rows = np.column_stack([f.row_factors, f.row_bias])
        return f.mean, rows, np.column_stack([f.column_factors, f.column_bias])
    sweep = last(variational_sweeps(X, k, column_features=features), 20)
    return sweep.mean, sweep.rows.mean, sweep.columns.mean


@pytest.mark.parametrize("name", ["als", "variational"])
def test_features_predict_columns_without_entries(name):
    X, whole, features = problem()
    dense = X.toarray()
    dense[:, :15] = 0
    known = sp.csr_array(dense)
    errors = {}
    for given_features in (None, features):
        found = of_method(name, known, given_features)
        mean, rows, columns = found
        if given_features is not None:
            counts = np.diff(known.T.tocsr().indptr)
            cold = fit_cold_map(columns, counts, features)
            columns = cold.vectors(kernels.csr_arrays(features.matrix)).mean
        predicted = (
            mean + rows[:, :-1] @ columns[:15, :-1].T + rows[:, -1:] + columns[:15, -1]
        )
        errors[given_features is not None] = np.sqrt(
            np.mean((predicted - whole[:, :15]) ** 2)
        )
    assert errors[True] < 0.7 * errors[False]


def test_the_cold_map_knows_how_sure_it_is():
    """Vectors of fresh columns are within the covariances that the map says."""
    rng = np.random.default_rng(3)
    F, C = rng.normal(size=(300, 3)) / math.sqrt(3), rng.normal(size=(3, 4))
    root = rng.normal(size=(4, 4)) * 0.3
    vectors = 1 + F @ C + rng.normal(size=(300, 4)) @ root.T
    features, counts = grouped(F, 3), np.full(300, 9)
    cold = fit_cold_map(vectors[:200], counts[:200], grouped(F[:200], 3))
    np.testing.assert_allclose(cold.covariance, root @ root.T, atol=0.15)
    found = cold.vectors(kernels.csr_arrays(features.matrix))
    off = vectors[200:] - found.mean[200:]
    scale = np.sqrt(
        np.diag(cold.covariance)
        * cold.spread(kernels.csr_arrays(features.matrix))[200:, None]
    )
    assert 0.85 < np.mean(np.abs(off / scale) < 1.645) < 0.95


def test_steps_of_the_cold_map_raise_its_evidence_to_the_maximum(monkeypatch):
    rng = np.random.default_rng(7)
    F, counts = 0.5 + rng.normal(size=(150, 9)) / 3, np.full(150, 9)
    C = np.vstack([rng.normal(size=(4, 2)), 0.2 * rng.normal(size=(5, 2))])
    vectors = 1 + F @ C + rng.normal(size=(150, 2)) * [0.4, 0.8]
    features, found = grouped(F, 4, 5), {}

    class Kept(FeatureRidge):
        @classmethod
        def of(cls, *given):
            found["ridge"] = super().of(*given)
            return found["ridge"]

    def evidence(penalties, covariance):
        """Log density of vectors whose mean is free, coefficients summed out."""
        prior = F / np.repeat(penalties, [4, 5]) @ F.T
        basis = np.linalg.qr(np.column_stack([np.ones(150), np.eye(150)[:, 1:]]))[0][
            :, 1:
        ]
        known, Y = basis.T @ (prior + np.eye(150)) @ basis, basis.T @ vectors
        squares = np.linalg.inv(covariance) @ Y.T @ np.linalg.solve(known, Y)
        dets = (
            2 * np.linalg.slogdet(known)[1]
            + len(known) * np.linalg.slogdet(covariance)[1]
        )
        one_more = 2 * np.sum(np.log(penalties) - penalties / 10)
        return (one_more - dets - np.trace(squares)) / 2

    monkeypatch.setattr(cold_start, "FeatureRidge", Kept)
    path = []
    for steps in (1, 2, 3, 40):
        monkeypatch.setattr(cold_start, "_MAP_STEPS", steps)
        cold = fit_cold_map(vectors, counts, features)
        penalties, covariance = found["ridge"].penalties, cold.covariance
        path.append(evidence(penalties, covariance))
    assert (np.diff(path) > 0).all()
    for factor in (1.2, 1 / 1.2):
        assert evidence(penalties * [factor, 1], covariance) < path[-1]
        assert evidence(penalties * [1, factor], covariance) < path[-1]
    for factor in (1.05, 1 / 1.05):
        assert evidence(penalties, covariance * factor) < path[-1]
    off = vectors - cold.vectors(kernels.csr_arrays(features.matrix)).mean
    np.testing.assert_allclose(off.sum(axis=0), 0, atol=1e-9)


def test_slopes_are_each_rows_own_regression():
    rng = np.random.default_rng(4)
    H, W = rng.normal(size=(60, 2)), rng.normal(size=(200, 3))
    seen = rng.random((200, 60)) < 0.4
    whole = W[:, :2] @ H.T + W[:, 2:]
    X = sp.csr_array(np.where(seen, whole + 0.1 * rng.normal(size=whole.shape), 0))
    slopes = fit_slopes(kernels.csr_arrays(X), H)
    assert math.sqrt(slopes.noise) == pytest.approx(0.1, abs=0.02)
    np.testing.assert_allclose(slopes.of(kernels.csr_arrays(X), H), W, atol=0.25)


def test_main_directions_hold_the_variance_of_few_features():
    rng = np.random.default_rng(5)
    F = rng.normal(size=(100, 30)) * np.array([3.0] * 3 + [0.1] * 27)
    counts = rng.integers(1, 9, 100)
    H = F @ main_directions(grouped(F, 30), counts, np.float64)
    centred = H - counts @ H / counts.sum()
    variances = counts @ centred**2 / counts.sum()
    assert variances.sum() == pytest.approx(1)
    assert (np.diff(variances) <= 1e-9).all()
    assert variances[:3].sum() > 0.98


def test_a_row_is_a_sum_over_entries_and_features():
    X, _, features = problem()
    turned = X.T.tocsr()
    sweep = last(
        variational_sweeps(X, 2, link_penalty=2.0, column_features=features), 5
    )
    entries, known = kernels.csr_arrays(turned), kernels.csr_arrays(features.matrix)
    options = {"mean": sweep.mean, "noise": 1.3 * sweep.noise_variance}
    columns = posterior_rows(
        entries, sweep.rows, sweep.column_prior, features=known, **options
    )
    for at in (0, 33):
        part, of = (slice(p[at], p[at + 1]) for p in (entries.indptr, known.indptr))
        indices = entries.indices[part]
        own = kernels.CsrArrays(np.array([0, 4]), known.indices[of], known.data[of])
        of_row = kernels.CsrArrays(
            np.array([0, len(indices)]), indices, entries.data[part]
        )
        (terms,) = posterior_terms(
            of_row,
            sweep.rows.mean[indices],
            sweep.rows.covariance,
            sweep.column_prior,
            features=own,
            **options,
        )
        _, total = terms.solved(np.zeros((0, len(terms.base))))
        np.testing.assert_allclose(total, columns.mean[at], rtol=1e-9)


def test_a_sample_of_many_columns_stands_for_all_of_them(monkeypatch):
    X, _, features = problem(n=60, m=900, n_features=12, density=0.06, noise=1.0)
    found = []
    for most in (900, 850, 300):
        monkeypatch.setattr(links, "_SAMPLED_ROWS", most)
        sweeps = linked_als_sweeps(X, 2, regularization=1.0, column_features=features)
        found.append(last(sweeps, 6).column_prior.features)
    scale = np.abs(found[0]).max()
    assert 0 < np.abs(found[1] - found[0]).max() < 2e-4 * scale
    assert 0 < np.abs(found[2] - found[0]).max() < 5e-3 * scale


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("link_penalty", [0.0, 1.0])
def test_features_of_equal_entries_explain_nothing(link_penalty, dtype):
    X, _, features = problem(dtype=dtype)
    X.data[:] = 3
    options = {
        "regularization": 0.1,
        "link_penalty": link_penalty,
        "column_features": features,
    }
    found = last(linked_als_sweeps(X, 2, **options), 7)
    assert found.rmse == found.objective == 0
    np.testing.assert_array_equal(found.column_prior.features, 0)


def test_the_same_bits_on_any_number_of_threads():
    X, _, features = problem(dtype=np.float32)
    one, three = (
        last(
            variational_sweeps(
                X, 3, link_penalty=2.0, column_features=features, threads=t
            ),
            4,
        )
        for t in (1, 3)
    )
    np.testing.assert_array_equal(one.columns.mean, three.columns.mean)
    assert one.free_energy == three.free_energy


def test_a_design_is_centred_without_being_multiplied_out():
    rng = np.random.default_rng(6)
    F = sp.random_array((20, 7), density=0.4, rng=rng, format="csr")
    weight = rng.uniform(0, 1, 20)
    made = FeatureDesign.of(grouped(F, 3, 4), weight)
    centred = F.toarray() - weight @ F.toarray() / weight.sum()
    B, Y = rng.normal(size=(7, 2)), rng.normal(size=(20, 2))
    Y -= Y.mean(axis=0)
    np.testing.assert_allclose(made.forward(B), centred @ B, atol=1e-12)
    np.testing.assert_allclose(made.backward(Y), centred.T @ Y, atol=1e-12)
    np.testing.assert_allclose(
        made.squares(weight)[:, 0], weight @ centred**2, atol=1e-12
    )
    np.testing.assert_allclose(
        made.gram(weight), centred.T @ (weight[:, None] * centred), atol=1e-12
    )

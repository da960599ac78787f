"""Alternating least squares against its own formula: brute force, monotone descent, scaling."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from lowrank import kernels
from lowrank.completion.als import BiasedFactors, als_sweeps, biased_start


def observed(n=40, m=30, density=0.4, seed=0, rank=2, noise=0.1, dtype=np.float64):
    rng = np.random.default_rng(seed)
    full = 3.5 + rng.normal(size=(n, rank)) @ rng.normal(size=(rank, m))
    full += noise * rng.normal(size=(n, m))
    known = sp.coo_array(rng.random((n, m)) < density)
    rows, columns = known.coords
    return sp.csr_array(
        (full[rows, columns].astype(dtype), (rows, columns)), shape=(n, m)
    ), full


def predictions(f: BiasedFactors) -> np.ndarray:
    return (
        f.mean
        + f.row_bias[:, None]
        + f.column_bias
        + f.row_factors @ f.column_factors.T
    )


def objective(X, f: BiasedFactors, lam, g, weights=None, biases=True) -> float:
    """The penalised sum of squares, written down from the docstring of `als_sweeps`."""
    coo = X.tocoo()
    error = coo.data - predictions(f)[coo.row, coo.col]
    w = np.ones(X.nnz) if weights is None else weights
    mean = np.average(X.data, weights=w) if biases else 0.0
    s = np.sqrt(np.average((X.data - mean) ** 2, weights=w))
    value = w @ error**2
    sides = [(0, f.row_factors, f.row_bias), (1, f.column_factors, f.column_bias)]
    for axis, factors, bias in sides:
        n = np.bincount(coo.coords[axis], weights=w, minlength=len(bias))
        n = np.where(n > 0, n, 1)
        value += lam * (n**g) @ (s * (factors**2).sum(axis=1) + bias**2)
    return float(value)


@pytest.mark.parametrize("g", [0.0, 0.5, 1.0])
def test_objective_is_the_formula_and_never_rises(g):
    X, _ = observed()
    previous = np.inf
    for sweep in islice(als_sweeps(X, 3, regularization=0.4, count_power=g), 15):
        assert sweep.objective == pytest.approx(
            objective(X, sweep.factors, 0.4, g), rel=1e-9
        )
        assert sweep.half_objective <= previous * (1 + 1e-12)
        assert sweep.objective <= sweep.half_objective * (1 + 1e-12)
        previous = sweep.objective


def test_rmse_is_that_of_the_known_entries():
    X, _ = observed()
    sweep = next(als_sweeps(X, 3, regularization=0.4))
    coo = X.tocoo()
    error = coo.data - predictions(sweep.factors)[coo.row, coo.col]
    assert sweep.rmse == pytest.approx(np.sqrt(np.mean(error**2)), rel=1e-9)


def test_a_fixed_point_is_stationary():
    """At convergence the gradient of the formula vanishes in every direction, the mean included."""
    X, _ = observed(n=15, m=12, density=0.6)
    sweep = list(islice(als_sweeps(X, 2, regularization=0.5), 600))[-1]
    f = sweep.factors
    rng, h = np.random.default_rng(0), 1e-5
    for _ in range(10):
        step = BiasedFactors(
            rng.normal(),
            *(rng.normal(size=a.shape) for a in (f.row_bias, f.column_bias)),
            *(rng.normal(size=a.shape) for a in (f.row_factors, f.column_factors)),
        )
        ahead, behind = moved(f, step, h), moved(f, step, -h)
        slope = (objective(X, ahead, 0.5, 0.5) - objective(X, behind, 0.5, 0.5)) / (
            2 * h
        )
        assert abs(slope) < 1e-4 * sweep.objective


def moved(f, step, h):
    names = ("mean", "row_bias", "column_bias", "row_factors", "column_factors")
    return BiasedFactors(*(getattr(f, x) + h * getattr(step, x) for x in names))


def test_recovers_a_low_rank_matrix():
    X, full = observed(n=80, m=60, density=0.5, noise=0.0)
    sweep = list(islice(als_sweeps(X, 2, regularization=1e-3, count_power=0), 100))[-1]
    assert (
        np.sqrt(np.mean((predictions(sweep.factors) - full) ** 2)) < 0.02 * full.std()
    )


@given(factor=st.floats(0.01, 100), shift=st.floats(-50, 50), seed=st.integers(0, 100))
def test_the_solution_scales_with_the_data(factor, shift, seed):
    """Ratings from 1 to 5 or from 0 to 100: the same regularization gives the same predictions."""
    X, _ = observed(seed=seed)
    Y = X.copy()
    Y.data = Y.data * factor + shift
    one, other = (
        list(islice(als_sweeps(Z, 3, regularization=0.3), 3))[-1] for Z in (X, Y)
    )
    np.testing.assert_allclose(
        predictions(other.factors),
        predictions(one.factors) * factor + shift,
        atol=1e-6 * factor + 1e-9 * abs(shift),
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_start_is_near_the_svd_of_the_residual_of_the_biases(dtype):
    X, _ = observed(n=200, m=150, rank=3, dtype=dtype)
    X.data *= dtype(1e4)
    start = biased_start(X, 3)
    rows = np.repeat(np.arange(200), np.diff(X.indptr))
    residual = X.copy()
    residual.data -= start.mean + start.row_bias[rows] + start.column_bias[X.indices]
    _, s, Vt = np.linalg.svd(residual.toarray(), full_matrices=False)
    expected = Vt[:3].T * s[:3] @ Vt[:3]
    found = start.column_factors @ start.column_factors.T
    assert found.dtype == dtype
    assert np.linalg.norm(found - expected) < 0.02 * np.linalg.norm(expected)
    np.testing.assert_array_equal(
        biased_start(X, 3).column_factors, start.column_factors
    )
    other = biased_start(X, 3, random_state=1).column_factors
    assert not np.array_equal(other, start.column_factors)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_works_in_the_dtype_of_the_entries(dtype):
    X, _ = observed(dtype=dtype)
    factors = next(als_sweeps(X, 3, regularization=0.4)).factors
    for name in ("row_bias", "column_bias", "row_factors", "column_factors"):
        assert getattr(factors, name).dtype == dtype


def test_single_precision_agrees_with_double():
    X, _ = observed(n=200, m=100)
    double = list(islice(als_sweeps(X, 4, regularization=0.4), 10))[-1]
    single = list(islice(als_sweeps(X.astype(np.float32), 4, regularization=0.4), 10))[
        -1
    ]
    assert single.objective == pytest.approx(double.objective, rel=1e-4)
    np.testing.assert_allclose(
        predictions(single.factors), predictions(double.factors), atol=2e-2
    )


def test_same_bits_on_any_number_of_threads():
    X, _ = observed(n=300, m=200, dtype=np.float32)
    one, three = (
        list(islice(als_sweeps(X, 8, regularization=0.4, threads=t), 3))[-1].factors
        for t in (1, 3)
    )
    np.testing.assert_array_equal(one.row_factors, three.row_factors)
    np.testing.assert_array_equal(one.column_factors, three.column_factors)
    assert one.mean == three.mean


def test_warm_start_goes_on_where_it_stopped():
    X, _ = observed()
    straight = list(islice(als_sweeps(X, 3, regularization=0.4), 6))[-1]
    first = list(islice(als_sweeps(X, 3, regularization=0.4), 3))[-1]
    resumed = list(
        islice(als_sweeps(X, 3, regularization=0.4, start=first.factors), 3)
    )[-1]
    assert resumed.objective == pytest.approx(straight.objective, rel=1e-10)


def test_rows_and_columns_without_entries_are_zero():
    X = sp.csr_array((np.array([1.0, 2.0, 4.0]), ([0, 0, 2], [1, 3, 3])), shape=(4, 5))
    factors = next(als_sweeps(X, 2, regularization=0.1)).factors
    assert not factors.row_factors[[1, 3]].any()
    assert not factors.row_bias[[1, 3]].any()
    assert not factors.column_factors[[0, 2, 4]].any()
    assert np.isfinite(predictions(factors)).all()


def test_constant_entries_are_reproduced():
    X = sp.csr_array(
        (np.full(6, 4.0), ([0, 0, 1, 1, 2, 2], [0, 1, 1, 2, 0, 2])), shape=(3, 3)
    )
    sweep = list(islice(als_sweeps(X, 2, regularization=0.5), 5))[-1]
    np.testing.assert_allclose(predictions(sweep.factors), 4.0)
    assert sweep.objective == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (7, 1), (2, 2)])
def test_more_factors_than_the_matrix_has_rows(shape):
    X = sp.csr_array(np.arange(1.0, 1 + np.prod(shape)).reshape(shape))
    sweep = list(islice(als_sweeps(X, 5, regularization=0.1), 3))[-1]
    assert np.isfinite(predictions(sweep.factors)).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"k": 0}, "k must be at least 1; got 0"),
        (
            {"regularization": 0.0},
            r"regularization must be positive and finite; got 0\.0",
        ),
        (
            {"regularization": np.inf},
            "regularization must be positive and finite; got inf",
        ),
    ],
)
def test_bad_parameters_raise(arguments, message):
    X, _ = observed()
    with pytest.raises(ValueError, match=message):
        next(als_sweeps(X, **{"k": 2, "regularization": 0.1, **arguments}))


def test_nothing_known_raises():
    with pytest.raises(
        ValueError, match="X must have at least one stored entry; got none"
    ):
        next(als_sweeps(sp.csr_array((3, 3)), 1, regularization=0.1))


def test_a_start_of_another_shape_raises():
    X, _ = observed()
    start = next(als_sweeps(X, 2, regularization=0.4)).factors
    with pytest.raises(
        ValueError, match=r"column factors of shape \(30, 3\); got \(30, 2\)"
    ):
        next(als_sweeps(X, 3, regularization=0.4, start=start))


@pytest.mark.parametrize("nonnegative", [False, True])
@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize("g", [0.0, 0.5, 1.0])
def test_weighted_objective_is_the_formula_and_never_rises(nonnegative, biases, g):
    X, _ = observed()
    np.abs(X.data, out=X.data)
    weights = np.random.default_rng(1).exponential(size=X.nnz)
    options = {"biases": biases, "weights": weights, "nonnegative": nonnegative}
    previous = np.inf
    sweeps = als_sweeps(X, 3, regularization=0.4, count_power=g, **options)
    for sweep in islice(sweeps, 15):
        reached = objective(X, sweep.factors, 0.4, g, weights, biases)
        assert sweep.objective == pytest.approx(reached, rel=1e-9)
        assert sweep.half_objective <= previous * (1 + 1e-12)
        assert sweep.objective <= sweep.half_objective * (1 + 1e-12)
        previous = sweep.objective
        if nonnegative:
            assert sweep.factors.row_factors.min() >= 0
            assert sweep.factors.column_factors.min() >= 0


@pytest.mark.parametrize("biases", [False, True])
def test_a_weight_of_two_is_an_entry_twice(biases):
    X, _ = observed(seed=3)
    twice = np.full(X.nnz, 2.0)
    options = {"regularization": 0.3, "count_power": 1.0, "biases": biases}
    once, weighted = (
        next(islice(als_sweeps(X, 2, weights=w, **options), 300, None))
        for w in (None, twice)
    )
    assert weighted.objective == pytest.approx(2 * once.objective, rel=1e-6)
    np.testing.assert_allclose(
        predictions(weighted.factors), predictions(once.factors), rtol=0, atol=1e-3
    )


def test_entries_of_weight_zero_have_no_influence():
    X, _ = observed(seed=4)
    weights = np.where(np.random.default_rng(2).random(X.nnz) < 0.3, 0.0, 1.0)
    changed = X.copy()
    changed.data[weights == 0] = 1e3
    rows = np.repeat(np.arange(X.shape[0]), np.diff(X.indptr))[weights > 0]
    kept = sp.csr_array(
        (X.data[weights > 0], (rows, X.indices[weights > 0])), shape=X.shape
    )
    kept.sort_indices()
    weighted = next(
        islice(als_sweeps(changed, 2, regularization=0.3, weights=weights), 60, None)
    )
    without = next(islice(als_sweeps(kept, 2, regularization=0.3), 60, None))
    assert weighted.objective == pytest.approx(without.objective, rel=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_nonnegative_factors_of_a_nonnegative_product_are_found(dtype):
    rng = np.random.default_rng(0)
    full = (rng.exponential(size=(60, 3)) @ rng.exponential(size=(3, 40))).astype(dtype)
    X = sp.csr_array(np.where(rng.random(full.shape) < 0.7, full, 0))
    sweeps = als_sweeps(X, 3, regularization=1e-4, biases=False, nonnegative=True)
    sweep = next(islice(sweeps, 200, None))
    assert np.abs(predictions(sweep.factors) - full).max() < 0.05 * full.max()
    assert sweep.factors.row_factors.dtype == dtype


@pytest.mark.parametrize("nonnegative", [False, True])
def test_coded_matrices_take_weights(nonnegative):
    X, _ = observed(dtype=np.float32)
    X.data = np.abs(np.round(X.data))
    levels, codes = np.unique(X.data, return_inverse=True)
    arrays = kernels.csr_arrays(X)
    coded = kernels.CodedMatrix(
        arrays.indptr,
        arrays.indices,
        codes.astype(np.uint8),
        kernels.padded(levels),
        X.shape[1],
    )
    weights = np.random.default_rng(1).exponential(size=X.nnz).astype(np.float32)
    options = {"regularization": 0.4, "weights": weights, "nonnegative": nonnegative}
    plain, from_codes = (
        next(als_sweeps(matrix, 3, **options)) for matrix in (X, coded)
    )
    np.testing.assert_allclose(
        predictions(plain.factors), predictions(from_codes.factors), rtol=1e-4
    )


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.ones(3), r"one number for each entry, shape \(\d+,\); got \(3,\)"),
        (-1.0, r"not negative; got -1.0 at entry 5"),
        (np.nan, r"finite and not negative; got nan at entry 5"),
        (0.0, "at least one positive number; all are 0"),
    ],
)
def test_bad_weights_raise(weights, message):
    X, _ = observed()
    if not isinstance(weights, np.ndarray):
        bad = weights
        weights = np.full(X.nnz, 0.0 if bad == 0 else 1.0)
        weights[5] = bad
    with pytest.raises(ValueError, match=message):
        next(als_sweeps(X, 2, regularization=1.0, weights=weights))

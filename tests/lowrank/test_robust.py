"""Robust PCA finds the parts that a matrix was made of, with a bound on what any others cost."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from lowrank import ArgumentError, ArgumentTypeError, ConvergenceWarning, robust_pca


def parts(shape, rank, share, seed=0):
    rng = np.random.default_rng(seed)
    low_rank = rng.standard_normal((shape[0], rank)) @ rng.standard_normal(
        (rank, shape[1])
    )
    errors = np.where(rng.random(shape) < share, 20 * rng.standard_normal(shape), 0.0)
    return low_rank, errors


def objective(low_rank, rest, penalty):
    return np.linalg.norm(low_rank, "nuc") + penalty * np.abs(rest).sum()


@pytest.mark.parametrize("shape", [(90, 70), (70, 90)])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_both_parts_are_found(shape, dtype):
    low_rank, errors = parts(shape, 3, 0.05)
    result = robust_pca((low_rank + errors).astype(dtype), random_state=0)
    close = 1e-5 if dtype == np.float64 else 1e-2
    assert result.low_rank.rank == 3
    np.testing.assert_allclose(result.low_rank.toarray(), low_rank, atol=close)
    np.testing.assert_allclose(result.sparse.toarray(), errors, atol=close)
    assert result.low_rank.dtype == result.sparse.dtype == dtype
    assert result.residual < (1e-7 if dtype == np.float64 else 1e-5)


def test_gross_errors_turn_the_directions_of_a_pca_only():
    low_rank, errors = parts((80, 60), 2, 0.04)
    directions = np.linalg.svd(low_rank)[2][:2]
    found = np.linalg.svd(
        robust_pca(low_rank + errors, random_state=0).low_rank.toarray()
    )[2][:2]
    plain = np.linalg.svd(low_rank + errors)[2][:2]
    angles = [
        np.linalg.svd(directions @ vectors.T)[1].min() for vectors in (found, plain)
    ]
    assert angles[0] > 1 - 1e-8
    assert angles[1] < 0.99


def test_missing_entries_are_completed():
    low_rank, errors = parts((90, 80), 2, 0.03)
    X = low_rank + errors
    missing = np.random.default_rng(1).random(X.shape) < 0.2
    X[missing] = np.nan
    result = robust_pca(X, random_state=0)
    np.testing.assert_allclose(result.low_rank.toarray(), low_rank, atol=1e-4)
    assert not result.sparse.toarray()[missing].any()
    masked = robust_pca(np.ma.masked_invalid(X), random_state=0)
    np.testing.assert_array_equal(masked.low_rank.left, result.low_rank.left)


@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 10**6), share=st.floats(0, 0.6), rank=st.integers(0, 6))
def test_no_other_decomposition_is_below_the_bound(seed, share, rank):
    """The bound holds where nothing can be recovered as well."""
    low_rank, errors = parts((14, 11), rank, share, seed)
    X = low_rank + errors
    result = robust_pca(X, random_state=0)
    found = result.low_rank.toarray()
    reached = objective(found, X - found, result.penalty)
    bound = (1 - result.duality_gap) * reached - 1e-9 * np.abs(X).sum()
    steps = np.random.default_rng(seed).standard_normal((20, 14, 11))
    for other in (X, 0 * X, low_rank, *(found + 0.1 * step for step in steps)):
        assert objective(other, X - other, result.penalty) >= bound
    assert 0 <= result.duality_gap <= 1e-7


def optimum_of_plain_steps(X, penalty, steps=4000):
    """Return the smallest objective of the alternating direction method with a fixed weight."""
    weight = 4 / np.abs(X).mean()
    sparse_part, multipliers = np.zeros_like(X), np.zeros_like(X)
    best = np.inf
    for step in range(steps):
        U, s, Vt = np.linalg.svd(
            X - sparse_part + multipliers / weight, full_matrices=False
        )
        low_rank = (U * np.maximum(s - 1 / weight, 0)) @ Vt
        moved = X - low_rank + multipliers / weight
        sparse_part = moved - np.clip(moved, -penalty / weight, penalty / weight)
        multipliers += weight * (X - low_rank - sparse_part)
        if step % 100 == 0:
            best = min(best, objective(low_rank, X - low_rank, penalty))
    return best


@pytest.mark.parametrize(
    ("shape", "rank", "share"),
    [((14, 11), 2, 0.38), ((9, 7), 6, 0.6), ((12, 20), 0, 0.5)],
)
def test_the_optimum_is_that_of_a_plain_method(shape, rank, share):
    low_rank, errors = parts(shape, rank, share)
    X = low_rank + errors
    result = robust_pca(X)
    reached = result.low_rank.toarray()
    best = optimum_of_plain_steps(X, result.penalty)
    assert objective(reached, X - reached, result.penalty) <= (1 + 1e-7) * best
    assert result.duality_gap <= 1e-7
    single = robust_pca(X.astype(np.float32))
    assert single.duality_gap <= 1e-5
    assert single.low_rank.dtype == np.float32
    close = robust_pca(X, tol=1e-10)
    assert close.duality_gap <= 1e-10
    assert close.residual <= 1e-10


def test_missing_entries_have_no_gap():
    low_rank, errors = parts((20, 15), 2, 0.3)
    X = low_rank + errors
    X[np.random.default_rng(1).random(X.shape) < 0.25] = np.nan
    result = robust_pca(X)
    assert max(result.duality_gap, result.residual) <= 1e-7
    remainder = np.nan_to_num(X - result.toarray())
    np.testing.assert_allclose(result.sparse.toarray(), remainder, atol=1e-5)


def test_the_penalty_decides_what_counts_as_an_error():
    low_rank, errors = parts((20, 16), 2, 0.05)
    few, many = (
        robust_pca(low_rank + errors, penalty=p, random_state=0) for p in (1.0, 0.05)
    )
    assert few.sparse.nnz < many.sparse.nnz


@pytest.mark.parametrize(
    "X", [np.zeros((5, 4)), np.ones((1, 1)), np.ones((1, 6)), [[1, 2], [2, 4]]]
)
def test_small_matrices(X):
    result = robust_pca(X, random_state=0)
    np.testing.assert_allclose(
        result.low_rank.toarray() + result.sparse.toarray(), X, atol=1e-6
    )
    assert "duality gap" in repr(result)


def test_the_input_stays_as_it_was_and_the_seed_decides():
    low_rank, errors = parts((60, 50), 2, 0.05)
    X = low_rank + errors
    before = X.copy()
    one, two = (robust_pca(X, random_state=3) for _ in range(2))
    np.testing.assert_array_equal(X, before)
    np.testing.assert_array_equal(one.low_rank.left, two.low_rank.left)


def test_too_few_iterations_are_reported():
    low_rank, errors = parts((30, 20), 2, 0.05)
    with pytest.warns(ConvergenceWarning, match="after 2 iterations"):
        assert robust_pca(low_rank + errors, max_iter=2).iterations == 2


@pytest.mark.parametrize(
    ("X", "settings", "error", "message"),
    [
        (sparse.eye(3), {}, ArgumentTypeError, "toarray"),
        ([[1j]], {}, ArgumentTypeError, "real numbers"),
        ([1.0], {}, ArgumentError, "two-dimensional"),
        ([[np.nan]], {}, ArgumentError, "known entry"),
        ([[1.0, np.inf]], {}, ArgumentError, "row 0, column 1"),
        ([[1.0]], {"penalty": 0}, ArgumentError, "penalty"),
        ([[1.0]], {"tol": -1}, ArgumentError, "tol"),
        ([[1.0]], {"max_iter": 0}, ArgumentError, "max_iter must be at least 1; got 0"),
        (
            [[1.0]],
            {"max_iter": None},
            ArgumentTypeError,
            "max_iter must be an integer; got None",
        ),
    ],
)
def test_wrong_arguments(X, settings, error, message):
    with pytest.raises(error, match=message):
        robust_pca(X, **settings)

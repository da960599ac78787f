"""Soft-impute against accelerated proximal gradient steps on dense matrices."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lowrank import ConvergenceWarning
from lowrank.completion.nuclear_norm import (
    choose_regularization,
    largest_regularization,
    soft_impute,
    soft_impute_path,
)
from lowrank.completion.observed import hold_out, observed_entries


def table(seed=0, n=30, m=20, rank=2, noise=0.3, known=0.5):
    """A low-rank matrix plus noise, with NaN for the unknown entries."""
    rng = np.random.default_rng(seed)
    full = rng.normal(size=(n, rank)) @ rng.normal(size=(rank, m))
    full += noise * rng.normal(size=full.shape)
    return np.where(rng.random(full.shape) < known, full, np.nan)


def as_sparse(X):
    rows, columns = np.nonzero(~np.isnan(X))
    return sp.csr_array((X[rows, columns], (rows, columns)), shape=X.shape)


def brute_force(X, lam, tol=1e-12):
    """FISTA with restarts on the dense matrix, until nothing moves."""
    known = ~np.isnan(X)
    filled = np.where(known, X, 0)
    Z = Y = np.zeros_like(filled)
    t = 1.0
    for _ in range(20_000):
        U, s, Vt = np.linalg.svd(np.where(known, filled, Y), full_matrices=False)
        new = (U * np.maximum(s - lam, 0)) @ Vt
        if np.linalg.norm(new - Z) <= tol * np.linalg.norm(new):
            return new
        if np.vdot(Y - new, new - Z) > 0:
            t = 1.0
        ahead = (1 + np.sqrt(1 + 4 * t * t)) / 2
        Z, Y, t = new, new + (t - 1) / ahead * (new - Z), ahead
    raise RuntimeError("The reference has not converged.")


def objective(X, Z, lam):
    error = (X - Z)[~np.isnan(X)]
    return error @ error / 2 + lam * np.linalg.svd(Z, compute_uv=False).sum()


cases = given(
    seed=st.integers(0, 10_000),
    n=st.integers(3, 20),
    m=st.integers(3, 20),
    share=st.floats(0.05, 0.8),
)


@settings(max_examples=3, deadline=None)
@example(seed=5746, n=3, m=3, share=0.7)  # slow: nearly as many unknowns as entries
@given(
    seed=st.integers(0, 10_000),
    n=st.integers(3, 12),
    m=st.integers(3, 12),
    share=st.floats(0.05, 0.8),
)
def test_agrees_with_brute_force(seed, n, m, share):
    X = table(seed, n, m, known=0.6)
    if np.isnan(X).all():
        return
    lam = share * largest_regularization(X)
    expected = brute_force(X, lam, tol=1e-9)
    solution = soft_impute(X, lam, tol=1e-6, max_iter=5000)
    assert solution.objectives[-1] <= objective(X, expected, lam) * (1 + 1e-6)
    assert solution.objectives[-1] == pytest.approx(
        objective(X, expected, lam), rel=1e-6
    )


def test_the_solution_itself_agrees_with_brute_force():
    X = table()
    for share in (0.03, 0.1, 0.4):
        lam = share * largest_regularization(X)
        solution, expected = soft_impute(X, lam, tol=1e-12), brute_force(X, lam)
        np.testing.assert_allclose(
            solution.matrix.toarray(), expected, atol=1e-10 * np.abs(expected).max()
        )
        single = soft_impute(X.astype(np.float32), lam, tol=1e-5)
        np.testing.assert_allclose(
            single.matrix.toarray(), expected, atol=1e-4 * np.abs(expected).max()
        )


@cases
def test_the_objective_is_the_formula_and_never_rises(seed, n, m, share):
    X = table(seed, n, m, known=0.6)
    if np.isnan(X).all():
        return
    lam = share * largest_regularization(X)
    solution = soft_impute(X, lam)
    assert (np.diff(solution.objectives) <= 1e-14 * solution.objectives[0]).all()
    Z = solution.matrix.toarray()
    assert solution.objectives[-1] == pytest.approx(objective(X, Z, lam), rel=1e-10)
    assert solution.rmse == pytest.approx(np.sqrt(np.nanmean((X - Z) ** 2)), rel=1e-9)


def test_the_gap_bounds_the_distance_to_the_minimum():
    X = table()
    lam = 0.1 * largest_regularization(X)
    least = objective(X, brute_force(X, lam), lam)
    for tol in (0.3, 1e-2, 1e-4):
        solution = soft_impute(X, lam, tol=tol)
        assert solution.gap <= tol
        assert solution.objectives[-1] * (1 - solution.gap) <= least * (1 + 1e-9)


def test_optimality_conditions():
    """The residual is a subgradient: U' R V = lambda I, and no singular value is above lambda."""
    X = table(n=60, m=40)
    lam = 0.08 * largest_regularization(X)
    solution = soft_impute(X, lam, tol=1e-12)
    R = np.nan_to_num(X - solution.matrix.toarray())
    U, V = solution.U, solution.Vt.T
    np.testing.assert_allclose(R @ V, lam * U, atol=1e-9 * lam)
    np.testing.assert_allclose(R.T @ U, lam * V, atol=1e-9 * lam)
    assert np.linalg.norm(R, 2) <= lam * (1 + 1e-9)
    np.testing.assert_allclose(U.T @ U, np.eye(solution.rank), atol=1e-10)
    np.testing.assert_allclose(V.T @ V, np.eye(solution.rank), atol=1e-10)
    assert (np.diff(solution.s) <= 0).all()
    assert (solution.s > 0).all()


def test_with_everything_known_it_is_soft_thresholding():
    X = np.random.default_rng(0).normal(size=(12, 9))
    U, s, Vt = np.linalg.svd(X, full_matrices=False)
    solution = soft_impute(X, 2.0, tol=1e-10)
    expected = (U * np.maximum(s - 2, 0)) @ Vt
    np.testing.assert_allclose(solution.matrix.toarray(), expected, atol=1e-8)


def test_the_path_is_that_of_cold_starts():
    X = table(n=40, m=30)
    grid = largest_regularization(X) * np.array([0.1, 0.7, 0.3, 0.05])
    path = list(soft_impute_path(X, grid, tol=1e-10))
    assert [Z.regularization for Z in path] == sorted(grid, reverse=True)
    for warm in path:
        cold = soft_impute(X, warm.regularization, tol=1e-10)
        assert warm.rank == cold.rank
        np.testing.assert_allclose(
            warm.matrix.toarray(), cold.matrix.toarray(), atol=1e-6
        )
        assert warm.objectives[-1] == pytest.approx(cold.objectives[-1], rel=1e-10)


def test_a_warm_start_saves_iterations():
    X = table(n=60, m=40)
    lam = 0.05 * largest_regularization(X)
    near, cold = soft_impute(X, 1.1 * lam), soft_impute(X, lam, tol=1e-5)
    warm = soft_impute(X, lam, start=cold, tol=1e-5)
    assert len(warm.objectives) == 2
    assert soft_impute(X, lam, start=near).objectives[0] < cold.objectives[0]


def test_the_default_path_starts_at_zero_and_the_ranks_grow():
    X = table(noise=0.1)
    path = list(soft_impute_path(X))
    assert len(path) == 20
    assert path[0].rank == 0
    assert path[1].rank >= 1
    assert path[0].regularization == pytest.approx(largest_regularization(X))
    assert path[-1].regularization == pytest.approx(0.01 * path[0].regularization)
    assert (np.diff([Z.rmse for Z in path]) < 0).all()


def test_recovers_a_low_rank_matrix():
    rng = np.random.default_rng(1)
    full = rng.normal(size=(120, 3)) @ rng.normal(size=(3, 80))
    X = np.where(rng.random(full.shape) < 0.4, full, np.nan)
    for solution in soft_impute_path(X):
        last = solution
    assert last.rank == 3
    assert last.matrix.distance_to(full) < 0.02 * np.linalg.norm(full)


def test_the_rank_cap_holds_and_the_objective_falls_under_it():
    X = table(n=60, m=40, noise=1.0)
    lam = 0.02 * largest_regularization(X)
    free, capped = soft_impute(X, lam), soft_impute(X, lam, max_rank=3)
    assert free.rank > 3
    assert capped.rank == 3
    assert (np.diff(capped.objectives) <= 0).all()
    assert capped.objectives[-1] > free.objectives[-1]
    assert capped.gap > 1e-3
    assert capped.objectives[-1] * (1 - capped.gap) <= free.objectives[-1]
    R = np.nan_to_num(X - capped.matrix.toarray())
    norm, squares, product = np.linalg.norm(R, 2), np.sum(R**2), np.nansum(X * R)
    multiple = min(lam / norm, product / squares)
    bound = multiple * product - multiple**2 * squares / 2
    assert capped.gap == pytest.approx(1 - bound / capped.objectives[-1], abs=1e-6)


@pytest.mark.parametrize("kind", [sp.csr_array, sp.csc_array, sp.coo_matrix])
def test_sparse_and_dense_input_are_the_same_bits(kind):
    X = table()
    X[0, 0] = 0.0
    one, other = soft_impute(X, 1.0), soft_impute(kind(as_sparse(X)), 1.0)
    np.testing.assert_array_equal(one.U, other.U)
    np.testing.assert_array_equal(one.s, other.s)


def test_stored_zeros_are_known():
    rows, columns = [0, 0, 1, 1], [0, 1, 0, 1]
    X = sp.csr_array((np.array([0.0, 3.0, 3.0, 3.0]), (rows, columns)), shape=(2, 2))
    with_zero = soft_impute(X, 0.5, tol=1e-6).matrix.toarray()
    np.testing.assert_allclose(with_zero, brute_force(X.toarray(), 0.5), atol=1e-4)
    X.eliminate_zeros()
    assert soft_impute(X, 0.5).matrix[0, 0] > with_zero[0, 0] + 1


def test_transposing_transposes():
    X = table()
    one, other = soft_impute(X, 1.0, tol=1e-6), soft_impute(X.T, 1.0, tol=1e-6)
    np.testing.assert_allclose(
        one.matrix.toarray(), other.matrix.T.toarray(), atol=1e-3
    )


def test_single_precision_stays_single():
    X = table(n=80, m=50)
    one, other = soft_impute(X, 2.0), soft_impute(X.astype(np.float32), 2.0)
    assert (
        other.U.dtype
        == other.s.dtype
        == other.Vt.dtype
        == other.matrix.dtype
        == np.float32
    )
    assert other.objectives.dtype == np.float64
    assert other.rank == one.rank
    assert other.objectives[-1] == pytest.approx(one.objectives[-1], rel=1e-4)


@pytest.mark.filterwarnings("ignore::lowrank.svd.ConvergenceWarning")
def test_a_penalty_that_is_lost_in_rounding_is_as_good_as_none():
    X = table(n=80, m=50).astype(np.float32)
    solution = soft_impute(X, 1e-9)
    assert np.isfinite(solution.matrix.toarray()).all()
    assert (np.diff(solution.objectives) <= 0).all()
    assert solution.rmse < 0.3 * np.nanstd(X)


def test_above_the_largest_penalty_the_solution_is_zero():
    X = table()
    largest = largest_regularization(X)
    assert largest == pytest.approx(np.linalg.norm(np.nan_to_num(X), 2))
    above, below = soft_impute(X, 1.001 * largest), soft_impute(X, 0.99 * largest)
    assert (above.rank, below.rank) == (0, 1)
    assert above.gap == pytest.approx(0, abs=1e-12)
    assert above.matrix.shape == X.shape
    assert not above.matrix.toarray().any()


@pytest.mark.parametrize("shape", [(1, 1), (1, 5), (5, 1), (2, 2)])
def test_tiny_matrices(shape):
    X = np.arange(1.0, 1 + np.prod(shape)).reshape(shape)
    norm = np.linalg.norm(X, 2)
    solution = soft_impute(X, 0.5, tol=1e-8)
    assert np.linalg.norm(solution.matrix.toarray(), 2) == pytest.approx(norm - 0.5)
    assert choose_regularization(np.array([[1.0, 2.0]])).best > 0


def test_zeros_are_completed_by_zeros():
    X = np.array([[0.0, np.nan], [0.0, 0.0]])
    solution = soft_impute(X, 1.0)
    assert solution.rank == 0
    assert solution.gap == 0
    assert len(list(soft_impute_path(X))) == 20


def test_rows_and_columns_without_entries_are_zero():
    X = table()
    X[3], X[:, 4] = np.nan, np.nan
    Z = soft_impute(X, 1.0, tol=1e-6).matrix.toarray()
    assert np.abs(Z[3]).max() < 1e-10
    assert np.abs(Z[:, 4]).max() < 1e-10


def test_nothing_dense_is_made_of_a_large_matrix():
    """30,000 x 25,000 would be 3 GB."""
    rng = np.random.default_rng(0)
    rows, columns = rng.integers(0, 30_000, 1500), rng.integers(0, 25_000, 1500)
    X = sp.coo_array(
        (np.ones(1500, np.float32), (rows, columns)), shape=(30_000, 25_000)
    )
    X.sum_duplicates()
    solution = soft_impute(X, 0.95 * largest_regularization(X), max_rank=3, tol=0.1)
    assert solution.rank >= 1
    assert solution.U.nbytes + solution.Vt.nbytes < 10e6


def test_the_held_out_error_is_what_it_says():
    X, others = hold_out(observed_entries(table()), 0.2, 0)
    grid = [4.0, 2.0, 1.0]
    path = choose_regularization(X, grid, held_out=others, tol=1e-3)
    np.testing.assert_array_equal(path.regularizations, grid)
    for lam, rank, rmse, error in zip(
        path.regularizations, path.ranks, path.rmses, path.held_out_rmses, strict=True
    ):
        Z = soft_impute(X, lam, tol=1e-5)
        expected = others.values - Z.matrix.toarray()[others.rows, others.columns]
        assert error == pytest.approx(np.sqrt(np.mean(expected**2)), rel=1e-2)
        assert (rank, rmse) == (Z.rank, pytest.approx(Z.rmse, rel=1e-2))


def test_the_choice_is_near_the_best_for_unknown_entries():
    rng = np.random.default_rng(2)
    full = rng.normal(size=(90, 2)) @ rng.normal(size=(2, 60))
    X = full + 0.5 * rng.normal(size=full.shape)
    known = rng.random(full.shape) < 0.3
    X[~known] = np.nan
    path = choose_regularization(X, max_rank=20)
    assert (
        len(path.regularizations) < 20
    )  # it stops where the errors have begun to rise
    errors = {
        Z.regularization: np.linalg.norm((Z.matrix.toarray() - full)[~known])
        for Z in soft_impute_path(X, path.regularizations, max_rank=20, tol=1e-2)
    }
    assert errors[path.best] <= 1.05 * min(errors.values())


def test_the_same_seed_gives_the_same_choice():
    X = table()
    one, other = (
        choose_regularization(X, random_state=3),
        choose_regularization(X, random_state=3),
    )
    np.testing.assert_array_equal(one.held_out_rmses, other.held_out_rmses)


def test_warns_of_a_gap_above_the_tolerance():
    X = table(n=60, m=40, noise=1.0)
    lam = 0.02 * largest_regularization(X)
    with pytest.warns(
        ConvergenceWarning, match="The duality gap is .* of the objective, above"
    ):
        solution = soft_impute(X, lam, tol=1e-6, max_iter=1)
    assert solution.gap > 1e-6


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (
            {"regularization": 0.0},
            ValueError,
            r"regularization must be positive .* got 0\.0",
        ),
        (
            {"regularization": np.nan},
            ValueError,
            "regularization must be positive .* got nan",
        ),
        (
            {"max_rank": 0},
            ValueError,
            r"max_rank must be between 1 and 20 \(min\(X.shape\)\); ",
        ),
        ({"max_rank": 21}, ValueError, r"max_rank must be between 1 and 20 .* got 21"),
        (
            {"max_rank": 2.5},
            TypeError,
            r"max_rank must be an integer or None; got 2\.5",
        ),
        ({"tol": 0}, ValueError, "tol must be positive and finite; got 0"),
        ({"max_iter": 0}, ValueError, "max_iter must be at least 1; got 0"),
    ],
)
def test_bad_arguments_raise(arguments, error, message):
    with pytest.raises(error, match=message):
        soft_impute(table(), **{"regularization": 1.0, **arguments})


def test_a_start_of_another_shape_raises():
    with pytest.raises(
        ValueError, match=r"start must have shape \(30, 20\); got \(20, 30\)"
    ):
        soft_impute(table(), 1.0, start=soft_impute(table().T, 1.0))


def test_bad_grids_raise():
    with pytest.raises(
        ValueError, match="regularizations must be a non-empty list; got shape"
    ):
        soft_impute_path(table(), [])
    with pytest.raises(
        ValueError, match=r"regularizations must be positive and finite; got -1\.0"
    ):
        soft_impute_path(table(), [1.0, -1.0])


def test_repr_has_the_certificate():
    text = repr(soft_impute(table(), 1.0))
    assert text.startswith("SoftImputation(shape=(30, 20), rank=")
    assert "gap=" in text


@pytest.mark.parametrize("scale", [1e-200, 1e-30, 1e100, 1e200])
def test_every_scale_is_imputed_in_the_same_way(scale):
    X = table(n=30, m=20)
    plain, scaled = soft_impute(X, 0.5), soft_impute(X * scale, 0.5 * scale)
    assert scaled.rank == plain.rank
    assert scaled.gap == pytest.approx(plain.gap, rel=1e-2)
    assert scaled.rmse / scale == pytest.approx(plain.rmse)
    np.testing.assert_allclose(scaled.toarray() / scale, plain.toarray(), atol=1e-9)
    continued = soft_impute(X * scale, 0.5 * scale, start=scaled)
    expected = soft_impute(X, 0.5, start=plain).toarray()
    np.testing.assert_allclose(continued.toarray() / scale, expected, atol=1e-9)

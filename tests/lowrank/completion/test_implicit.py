"""Implicit ALS against its formula, over all pairs."""

from dataclasses import dataclass
from itertools import islice

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from lowrank import kernels
from lowrank.completion import implicit
from lowrank.completion.implicit import (
    FEATURE_PENALTY,
    blocks_are_faster,
    implicit_sweeps,
    in_principal_axes,
    solve_interactions,
)
from lowrank.errors import ArgumentError


def interactions(n=30, m=20, density=0.2, seed=0, dtype=np.float64):
    rng = np.random.default_rng(seed)
    W = sp.random_array((n, m), density=density, rng=rng, format="csr", dtype=dtype)
    W.sort_indices()
    return W


def objective(W, rows, columns, regularization, weight, power):
    dense, scores = W.toarray(), rows @ columns.T
    penalties = [
        regularization
        * ((dense.sum(axis) + weight * dense.shape[axis]) ** power)
        @ (f**2).sum(1)
        for axis, f in ((1, rows), (0, columns))
    ]
    return (
        (dense * (1 - scores) ** 2).sum() + weight * (scores**2).sum() + sum(penalties)
    )


@given(
    seed=st.integers(0, 1000),
    k=st.integers(1, 9),
    regularization=st.floats(0.01, 3),
    weight=st.floats(0.001, 2),
    power=st.sampled_from([0.0, 0.5, 1.0]),
)
def test_the_objective_is_that_of_the_formula_and_never_rises(
    seed, k, regularization, weight, power
):
    W, previous = interactions(seed=seed), np.inf
    options = {
        "regularization": regularization,
        "unobserved_weight": weight,
        "count_power": power,
    }
    for sweep in islice(implicit_sweeps(W, k, **options, random_state=seed), 4):
        factors = sweep.row_factors, sweep.column_factors
        reached = objective(W, *factors, regularization, weight, power)
        assert sweep.objective == pytest.approx(reached, rel=1e-9)
        assert (
            sweep.objective
            <= sweep.half_objective * (1 + 1e-12)
            <= previous * (1 + 2e-12)
        )
        previous = sweep.objective


def test_blocks_lower_the_objective_and_end_where_exact_solutions_do(monkeypatch):
    W, options = interactions(60, 150, 0.3), {"k": 20, "regularization": 0.1}
    options["unobserved_weight"] = 0.3
    *_, exact = islice(implicit_sweeps(W, **options), 100)
    monkeypatch.setattr(implicit, "_BLOCK", 8)  # of 8, 8 and 4
    monkeypatch.setattr(implicit, "_BLOCK_GAIN", 0)
    previous = np.inf
    for sweep in islice(implicit_sweeps(W, **options), 200):
        reached = objective(W, sweep.row_factors, sweep.column_factors, 0.1, 0.3, 1.0)
        assert sweep.objective == pytest.approx(reached, rel=1e-9)
        assert (
            sweep.objective
            <= sweep.half_objective * (1 + 1e-12)
            <= previous * (1 + 2e-12)
        )
        previous = sweep.objective
    assert sweep.objective == pytest.approx(exact.objective, rel=1e-5)


def test_long_histories_and_many_factors_are_solved_for_in_blocks():
    few, many = np.full(1000, 20), np.full(1000, 500)
    assert [blocks_are_faster([many, many], k) for k in (64, 128, 512)] == [
        False,
        False,
        True,
    ]
    assert not blocks_are_faster([few, few], 512)


def test_a_solved_row_is_the_minimum_over_all_pairs():
    W, rng = interactions(), np.random.default_rng(1)
    columns, weight, power = rng.normal(size=(20, 4)), 0.3, 0.5
    rows = solve_interactions(
        kernels.csr_arrays(W),
        columns,
        regularization=0.2,
        unobserved_weight=weight,
        count_power=power,
    )
    least = objective(W, rows, columns, 0.2, weight, power)
    for _ in range(20):
        moved = rows + 1e-3 * rng.normal(size=rows.shape)
        assert objective(W, moved, columns, 0.2, weight, power) > least


@pytest.mark.parametrize("turned", [False, True])
def test_a_row_has_the_same_bits_alone_and_on_any_threads(turned):
    W = interactions(300, 50, dtype=np.float32)
    columns = np.random.default_rng(0).normal(size=(50, 40)).astype(np.float32)
    columns = in_principal_axes(columns) if turned else columns
    options = {"regularization": 0.1, "unobserved_weight": 0.01}
    together = solve_interactions(kernels.csr_arrays(W), columns, **options, threads=1)
    threaded = solve_interactions(kernels.csr_arrays(W), columns, **options, threads=3)
    alone = solve_interactions(kernels.csr_arrays(W[[7]]), columns, **options)
    np.testing.assert_array_equal(threaded, together)
    np.testing.assert_array_equal(alone[0], together[7])


@pytest.mark.parametrize(("dtype", "tol"), [(np.float32, 1e-4), (np.float64, 1e-11)])
def test_principal_axes_make_the_gram_matrix_diagonal_and_keep_the_scores(
    dtype, tol, monkeypatch
):
    W = interactions(300, 50, dtype=dtype)
    columns = np.random.default_rng(0).normal(size=(50, 40)).astype(dtype)
    turned, grams, half_sweep = (
        in_principal_axes(columns),
        [],
        kernels.implicit_half_sweep,
    )

    def noted(*args, gram, **options):
        grams.append(gram)
        return half_sweep(*args, gram=gram, **options)

    monkeypatch.setattr(kernels, "implicit_half_sweep", noted)
    options = {"regularization": 0.1, "unobserved_weight": 0.01}
    rows, same = (
        solve_interactions(kernels.csr_arrays(W), each, **options)
        for each in (columns, turned)
    )
    np.testing.assert_allclose(same @ turned.T, rows @ columns.T, atol=tol)
    full, diagonal = grams
    assert np.count_nonzero(full) == full.size
    np.testing.assert_array_equal(diagonal, np.diag(np.diag(diagonal)))
    assert (np.diff(np.diag(diagonal)) > 0).all()
    np.testing.assert_allclose(np.diag(diagonal), np.linalg.eigvalsh(full), rtol=tol)


def test_rows_without_interactions_are_zero():
    W = sp.csr_array((np.ones(2), ([0, 2], [1, 0])), shape=(4, 3))
    sweep = next(implicit_sweeps(W, 2, regularization=0.1, unobserved_weight=0.1))
    assert not sweep.row_factors[[1, 3]].any()
    assert not sweep.column_factors[2].any()
    assert np.isfinite(sweep.objective)


@pytest.mark.parametrize("k", [3, 5, 7])
def test_a_start_may_have_fewer_or_more_factors(k):
    W, options = interactions(60, 20), {"regularization": 0.1, "unobserved_weight": 0.1}
    *_, before = islice(implicit_sweeps(W, 5, **options), 30)
    start = before.column_factors.copy()
    first = next(implicit_sweeps(W, k, **options, start=start))
    assert first.objective < next(implicit_sweeps(W, k, **options)).objective
    assert (np.linalg.norm(first.column_factors, axis=0) > 1e-3).all()
    if k < 5:  # as good as the best of as many directions
        U, s, _ = np.linalg.svd(start)
        best = next(implicit_sweeps(W, k, **options, start=U[:, :k] * s[:k]))
        assert first.objective == pytest.approx(best.objective, rel=1e-9)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"k": 0}, "k must be at least 1; got 0"),
        (
            {"regularization": 0.0},
            "regularization must be positive and finite; got 0.0",
        ),
        (
            {"unobserved_weight": -1.0},
            "unobserved_weight must be positive and finite; got -1.0",
        ),
        ({"start": np.ones((3, 3))}, r"start must have 20 rows; got shape \(3, 3\)"),
        ({"W": -interactions()}, "Weights must not be negative; got -0.9"),
    ],
)
def test_bad_arguments_are_named(changed, message):
    given = {
        "W": interactions(),
        "k": 2,
        "regularization": 0.1,
        "unobserved_weight": 0.1,
    } | changed
    with pytest.raises(ArgumentError, match=message):
        next(implicit_sweeps(given.pop("W"), given.pop("k"), **given))


@dataclass(frozen=True)
class Blocks:
    matrix: sp.csr_array

    @property
    def groups(self):
        return {"words": slice(0, self.matrix.shape[1])}


def featured_interactions():
    """Columns of three kinds, which their features tell; the last two have no interactions."""
    rng = np.random.default_rng(1)
    kinds = np.arange(24) % 3
    likes = rng.random((60, 24)) < np.where(
        np.arange(60)[:, None] % 3 == kinds, 0.5, 0.05
    )
    likes[:, -2:] = False
    return sp.csr_array(likes.astype(float)), Blocks(sp.csr_array(np.eye(3)[kinds]))


PENALTIES = {"regularization": 0.3, "unobserved_weight": 0.1}


def test_with_features_the_objective_falls_once_the_maps_are_found():
    W, blocks = featured_interactions()
    sweeps = implicit_sweeps(W, 4, column_features=blocks, **PENALTIES)
    values = [
        v
        for sweep in islice(sweeps, 20)
        for v in (sweep.half_objective, sweep.objective)
    ]
    assert (np.diff(values[18:]) <= 1e-9 * values[-1]).all()


def test_columns_are_pulled_to_the_regression_of_all_on_their_features():
    W, blocks = featured_interactions()
    sweeps = implicit_sweeps(W, 4, column_features=blocks, **PENALTIES)
    *_, last = (
        (sweep.column_factors.copy(), sweep.column_prior) for sweep in islice(sweeps, 8)
    )
    factors, prior = last
    F, known = blocks.matrix.toarray(), W.toarray().any(axis=0)
    assert not factors[~known].any()
    centred = F[known] - F[known].mean(axis=0)
    system = centred.T @ centred + FEATURE_PENALTY * np.eye(3)
    C = np.linalg.solve(system, centred.T @ factors[known])
    np.testing.assert_allclose(prior.coefficients, C, atol=1e-9)
    expected = factors[known].mean(axis=0) + (F - F[known].mean(axis=0)) @ C
    np.testing.assert_allclose(
        prior.vectors(kernels.csr_arrays(blocks.matrix), 24), expected, atol=1e-9
    )


def test_folded_rows_leave_unknown_columns_out_and_are_pulled_to_points():
    W, _ = featured_interactions()
    rng = np.random.default_rng(2)
    columns, points = rng.normal(size=(24, 3)), rng.normal(size=(60, 3))
    known = W.toarray().any(axis=0)
    found = solve_interactions(
        kernels.csr_arrays(W), columns, points=points, known=known, **PENALTIES
    )
    Y = columns[known]
    for row in (0, 7):
        mine = Y[W.toarray()[row, known] > 0]
        penalty = 0.3 * (len(mine) + 0.1 * len(Y))
        system = mine.T @ mine + 0.1 * Y.T @ Y + penalty * np.eye(3)
        right = mine.sum(axis=0) + penalty * points[row]
        np.testing.assert_allclose(
            found[row], np.linalg.solve(system, right), atol=1e-9
        )


@given(
    seed=st.integers(0, 1000),
    k=st.integers(1, 9),
    regularization=st.floats(0.01, 3),
    weight=st.floats(0.001, 2),
)
def test_nonnegative_factors_lower_the_same_objective(seed, k, regularization, weight):
    W, previous = interactions(seed=seed), np.inf
    options = {
        "regularization": regularization,
        "unobserved_weight": weight,
        "nonnegative": True,
    }
    for sweep in islice(implicit_sweeps(W, k, **options, random_state=seed), 4):
        factors = sweep.row_factors, sweep.column_factors
        assert min(side.min() for side in factors) >= 0
        reached = objective(W, *factors, regularization, weight, 1.0)
        assert sweep.objective == pytest.approx(reached, rel=1e-9)
        assert (
            sweep.objective
            <= sweep.half_objective * (1 + 1e-12)
            <= previous * (1 + 2e-12)
        )
        previous = sweep.objective


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_nonnegative_rows_are_solved_again_from_their_interactions(dtype):
    W = interactions(dtype=dtype)
    options = {"regularization": 0.1, "unobserved_weight": 0.2, "nonnegative": True}
    sweep = next(islice(implicit_sweeps(W, 4, **options), 300, None))
    rows = solve_interactions(kernels.csr_arrays(W), sweep.column_factors, **options)
    np.testing.assert_allclose(rows, sweep.row_factors, atol=1e-3)


def test_nonnegative_starts_keep_the_longest_columns_and_must_not_be_negative():
    W = interactions()
    options = {"regularization": 0.1, "unobserved_weight": 0.2, "nonnegative": True}
    start = np.abs(np.random.default_rng(0).normal(size=(20, 6)))
    sweep = next(implicit_sweeps(W, 4, **options, start=start))
    assert sweep.column_factors.shape == (20, 4)
    with pytest.raises(ArgumentError, match="start must not be negative; got -1"):
        next(implicit_sweeps(W, 4, **options, start=-np.ones((20, 4))))

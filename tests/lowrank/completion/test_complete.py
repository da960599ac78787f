"""Matrix completion by `complete`, whichever the method."""

from __future__ import annotations

from functools import cache
from itertools import islice

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from lowrank import ConvergenceWarning, complete, soft_impute
from lowrank.completion.als import BiasedFactors, Biases, als_sweeps
from lowrank.completion.observed import observed_entries

methods = pytest.mark.parametrize("method", ["als", "soft-impute"])


def table(seed=0, n=60, m=40, rank=2, noise=0.1, known=0.5, mean=4.0):
    """Mean, biases and a low-rank matrix plus noise; NaN for the unknown entries."""
    rng = np.random.default_rng(seed)
    full = mean + rng.normal(size=(n, 1)) + rng.normal(size=m)
    full = full + rng.normal(size=(n, rank)) @ rng.normal(size=(rank, m))
    noisy = full + noise * rng.normal(size=full.shape)
    return np.where(rng.random(full.shape) < known, noisy, np.nan), full


def as_sparse(X, kind=sp.csr_array):
    rows, columns = np.nonzero(~np.isnan(X))
    return kind(sp.coo_array((X[rows, columns], (rows, columns)), shape=X.shape))


def rms(values):
    return float(np.sqrt(np.mean(np.square(values))))


@cache
def completed(method, dtype, penalty):
    """Return a small table and its completion, which no test changes."""
    X = table(n=30, m=24)[0].astype(dtype)
    return X, complete(X, method=method, regularization=penalty)


@pytest.mark.covering(1)
@methods
@pytest.mark.parametrize(
    ("size", "dtype"),
    [
        (2.0**-900, np.float64),
        (2.0**900, np.float64),
        (2.0**-120, "f4"),
        (2.0**120, "f4"),
        (2.0**124, "f4"),  # the largest entries are near the largest number there is
    ],
)
@pytest.mark.parametrize("penalty", [None, 0.5])
def test_every_scale_is_completed_in_the_same_way(method, size, dtype, penalty):
    X, plain = completed(method, dtype, penalty)
    scaled = complete((X * size).astype(dtype), method=method, regularization=penalty)
    near = {"rtol": 1e-2, "atol": 1e-4} if X.dtype == np.float32 else {"rtol": 1e-9}
    np.testing.assert_allclose(scaled.toarray() / size, plain.toarray(), **near)
    assert scaled.toarray().dtype == X.dtype
    assert scaled.rmse / size == pytest.approx(plain.rmse, rel=1e-2)
    assert scaled.regularization == pytest.approx(plain.regularization, rel=1e-3)
    if penalty is None:
        assert scaled.held_out_rmse / size == pytest.approx(
            plain.held_out_rmse, rel=1e-2
        )


@methods
def test_an_unreached_tolerance_is_a_warning(method):
    X, _ = table()
    with pytest.warns(
        ConvergenceWarning, match=r"(above|known to be below) tol=1.0e-09"
    ):
        complete(X, 3, method=method, regularization=0.2, tol=1e-9, max_iter=2)


def test_a_tolerance_is_reached_by_soft_impute():
    X, _ = table()
    result = complete(
        X, method="soft-impute", regularization=0.5, biases=False, tol=1e-8
    )
    unit = np.sqrt(np.nanmean(X**2))
    best = soft_impute(X, 0.5 * unit, tol=1e-12, max_iter=1000)
    np.testing.assert_allclose(result.toarray(), best.toarray(), atol=1e-3)


@pytest.mark.parametrize("arguments", [{"tol": 0.0}, {"tol": -1.0}, {"max_iter": 0}])
def test_tolerance_and_iterations_are_checked(arguments):
    with pytest.raises(
        ValueError, match=r"tol must be positive|max_iter must be at least 1"
    ):
        complete(table()[0], 2, **arguments)


def test_a_penalty_that_is_lost_in_rounding_raises():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 30)).astype(np.float32)
    X[rng.random(X.shape) < 0.85] = np.nan
    with pytest.raises(
        ValueError, match=r"larger than 1e-30 for k=10 .* singular in float32\."
    ):
        complete(X, k=10, regularization=1e-30)
    chosen = complete(X, regularization=1e-30).rank  # one of those that can be fitted
    assert complete(X, k=chosen, regularization=1e-30).rank == chosen


def test_an_error_far_below_the_entries_is_not_a_difference_of_sums():
    rng = np.random.default_rng(0)
    X = np.outer(rng.normal(size=60), rng.normal(size=40)).astype(np.float32)
    X[rng.random(X.shape) < 0.3] = np.nan
    result = complete(X, k=2, regularization=1e-3)
    assert result.rmse == pytest.approx(
        np.sqrt(np.nanmean((X - result.toarray()) ** 2)), rel=1e-2
    )


@methods
def test_recovers_unknown_entries(method):
    X, full = table()
    result = complete(X, method=method)
    unknown = np.isnan(X)
    assert rms((result.toarray() - full)[unknown]) < 0.4 * rms(
        (full - np.nanmean(X))[unknown]
    )
    assert result.method == method
    assert result.held_out_rmse < 0.6
    assert result.rmse == pytest.approx(
        np.sqrt(np.nanmean((X - result.toarray()) ** 2)), rel=1e-6
    )


def test_a_low_rank_matrix_without_noise_is_recovered_by_als():
    X, full = table(noise=0.0, n=100)
    result = complete(X, k=2, regularization=1e-3)
    assert rms(result.toarray() - full) < 0.01 * full.std()
    assert result.held_out_rmse is None


def test_the_rank_is_found():
    X, _ = table(n=150, m=100, rank=3)
    assert complete(X).rank == 3


@pytest.mark.covering(1)
@pytest.mark.parametrize("noise", [0.0, 0.1])
@pytest.mark.parametrize("seed", range(3))
def test_the_penalty_is_found_with_the_rank(seed, noise):
    X, full = table(seed, noise=noise, known=0.6)
    chosen, given = (
        rms((complete(X, k).toarray() - full)[np.isnan(X)]) for k in (None, 2)
    )
    assert chosen < 1.1 * given


@methods
def test_names_the_choice_which_gives_the_same_result(method):
    X, _ = table()
    chosen = complete(X, method=method, k=4)
    given = complete(X, method=method, k=4, regularization=chosen.regularization)
    np.testing.assert_array_equal(given.toarray(), chosen.toarray())
    assert given.held_out_rmse is None
    assert given.regularization == chosen.regularization


@methods
def test_the_held_out_error_is_near_the_error_of_unknown_entries(method):
    X, full = table(n=120, m=60)
    result = complete(X, method=method)
    truth = np.hypot(rms((result.toarray() - full)[np.isnan(X)]), 0.1)
    assert result.held_out_rmse == pytest.approx(truth, rel=0.2)


def als_objective(X, mean, row_bias, column_bias, left, right, penalty, biases):
    """Return the objective of `als_sweeps` for dense X with NaN."""
    known = ~np.isnan(X)
    scale = np.std(X[known]) if biases else rms(X[known])
    errors = X - mean - row_bias[:, None] - column_bias - left @ right.T
    rows = penalty * np.sqrt(known.sum(axis=1))
    columns = penalty * np.sqrt(known.sum(axis=0))
    total = np.sum(errors[known] ** 2)
    total += rows @ (scale * np.sum(left**2, axis=1) + row_bias**2)
    return total + columns @ (scale * np.sum(right**2, axis=1) + column_bias**2)


@pytest.mark.covering(1)
@pytest.mark.parametrize("biases", [True, False])
@pytest.mark.parametrize("penalty", [0.001, 0.05, 0.4])
@pytest.mark.parametrize("tol", [1e-4, 1e-8])
def test_als_reaches_a_minimum_of_its_objective(biases, penalty, tol):
    X, _ = table(n=30, m=20)
    n, m = X.shape
    k = 2
    result = complete(
        X, k, regularization=penalty, biases=biases, tol=tol, max_iter=2000
    )
    factors = (result.factors.left, result.factors.right)
    parts = (result.mean, result.row_bias, result.column_bias, *factors)
    reached = als_objective(X, *parts, penalty, biases)

    def objective(vector):
        ends = np.cumsum([1, n, m, n * k])
        mean, row_bias, column_bias, left, right = np.split(vector, ends)
        if not biases:
            mean, row_bias, column_bias = 0, np.zeros(n), np.zeros(m)
        left, right = left.reshape(n, k), right.reshape(m, k)
        return als_objective(
            X, mean, row_bias, column_bias, left, right, penalty, biases
        )

    start = np.concatenate([np.ravel(part) for part in parts])
    assert objective(start) == pytest.approx(reached)
    rng = np.random.default_rng(0)
    least = reached
    for size in 1e-1, 1e-2, 1e-3, 1e-4:
        for _ in range(30):
            moved = start + size * rng.standard_normal(start.size)
            least = min(least, objective(moved))
    assert least >= (1 - 2 * tol) * reached
    entries = observed_entries(X)
    sweeps = als_sweeps(entries, k, regularization=penalty, biases=biases)
    plain = next(islice(sweeps, 1000, None)).objective
    assert reached <= (1 + 2 * tol) * plain


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("nonnegative", [False, True])
def test_more_sweeps_do_not_lower_the_objective(dtype, nonnegative):
    rng = np.random.default_rng(3)
    X = rng.gamma(1.0, size=(40, 25))
    X[rng.random(X.shape) < 0.5] = np.nan
    X = X.astype(dtype)
    options = {"regularization": 0.1, "biases": False, "nonnegative": nonnegative}
    result = complete(X, 4, tol=1e-5, max_iter=3000, **options)
    left, right = result.factors.left, result.factors.right
    assert not nonnegative or min(left.min(), right.min()) >= 0
    zeros = np.zeros(40), np.zeros(25)
    reached = als_objective(X, 0.0, *zeros, left, right, 0.1, False)
    start = BiasedFactors(0.0, *(bias.astype(dtype) for bias in zeros), left, right)
    sweeps = als_sweeps(observed_entries(X), 4, start=start, **options)
    assert reached <= (1 + 1e-4) * next(islice(sweeps, 30, None)).objective


def test_soft_impute_works_on_what_the_biases_leave_over():
    X, _ = table()
    result = complete(X, method="soft-impute", regularization=2.0)
    rest = X - result.mean - result.row_bias[:, None] - result.column_bias
    deviation = np.nanstd(X)
    direct = soft_impute(rest, 2.0 * deviation, tol=1e-6).matrix.toarray()
    np.testing.assert_allclose(result.factors.toarray(), direct, atol=0.05)


@methods
def test_without_biases_there_are_none(method):
    rng = np.random.default_rng(0)
    full = rng.normal(size=(60, 2)) @ rng.normal(size=(2, 40))
    X = np.where(rng.random(full.shape) < 0.5, full, np.nan)
    result = complete(X, method=method, biases=False)
    assert result.mean == 0
    assert not result.row_bias.any()
    assert not result.column_bias.any()
    np.testing.assert_allclose(result.toarray(), result.factors.toarray(), atol=1e-12)
    assert rms(result.toarray() - full) < 0.1 * full.std()


def test_als_without_biases_minimises_plain_ridge():
    """At convergence each row of the factors is its own ridge regression."""
    X, _ = table(n=12, m=10, known=0.7)
    csr = observed_entries(X)
    sweep = list(islice(als_sweeps(csr, 2, regularization=0.3, biases=False), 500))[-1]
    f = sweep.factors
    scale = rms(csr.data)
    for row, values in enumerate(X):
        known = ~np.isnan(values)
        M = f.column_factors[known]
        ridge = 0.3 * scale * np.sqrt(known.sum()) * np.eye(2)
        expected = np.linalg.solve(M.T @ M + ridge, M.T @ values[known])
        np.testing.assert_allclose(f.row_factors[row], expected, atol=1e-6)
    assert (f.mean, f.row_bias.any(), f.column_bias.any()) == (0, False, False)


def test_als_without_biases_takes_none_from_its_start():
    csr = observed_entries(table()[0])
    start = next(als_sweeps(csr, 2, regularization=0.3)).factors
    assert start.column_bias.any()
    sweep = next(als_sweeps(csr, 2, regularization=0.3, biases=False, start=start))
    assert sweep.factors.mean == 0
    assert not sweep.factors.column_bias.any()


@methods
@pytest.mark.parametrize("kind", [sp.csr_array, sp.csc_matrix, sp.coo_array])
def test_sparse_and_dense_input_are_the_same_bits(method, kind):
    X, _ = table()
    X[0, 0] = 0.0
    one = complete(X, method=method, k=2, regularization=1.0)
    other = complete(as_sparse(X, kind), method=method, k=2, regularization=1.0)
    np.testing.assert_array_equal(one.toarray(), other.toarray())


@methods
def test_single_precision_stays_single(method):
    X, _ = table()
    result = complete(X.astype(np.float32), method=method, k=2, regularization=1.0)
    double = complete(X, method=method, k=2, regularization=1.0)
    arrays = (
        result.row_bias,
        result.column_bias,
        result.toarray(),
        result.predict([0], [0]),
    )
    assert all(array.dtype == np.float32 for array in arrays)
    assert result.fill(X.astype(np.float32)).dtype == np.float32
    known = ~np.isnan(X)
    np.testing.assert_array_equal(result.fill(X)[known], X[known])
    np.testing.assert_allclose(result.toarray(), double.toarray(), atol=5e-3)


@methods
def test_the_same_seed_gives_the_same_bits(method):
    X, _ = table()
    one, other = (complete(X, method=method, random_state=5) for _ in range(2))
    np.testing.assert_array_equal(one.toarray(), other.toarray())
    assert one.held_out_rmse == other.held_out_rmse


@methods
def test_the_matrix_has_the_biases_in_it(method):
    X, _ = table()
    result = complete(X, method=method, k=2, regularization=1.0)
    expected = result.mean + result.row_bias[:, None] + result.column_bias
    expected = expected + result.factors.toarray()
    np.testing.assert_allclose(result.matrix.toarray(), expected, rtol=1e-12)
    np.testing.assert_allclose(
        result.predict([0, 59], [39, 3]), expected[[0, 59], [39, 3]]
    )
    assert result.matrix.rank == result.rank + 2
    assert result.shape == X.shape


def test_filling_keeps_known_entries():
    X, _ = table()
    result = complete(X, k=2, regularization=0.1)
    before = X.copy()
    filled = result.fill(X)
    known = ~np.isnan(X)
    np.testing.assert_array_equal(filled[known], X[known])
    np.testing.assert_allclose(filled[~known], result.toarray()[~known])
    np.testing.assert_array_equal(X, before)
    masked = np.ma.masked_invalid(np.where(known, X, -99.0))
    masked.mask = ~known
    np.testing.assert_array_equal(result.fill(masked), filled)


def test_filling_is_for_dense_arrays_of_the_same_shape():
    X, _ = table()
    result = complete(X, k=1, regularization=1.0)
    with pytest.raises(TypeError, match="X must be a dense array"):
        result.fill(as_sparse(X))
    with pytest.raises(
        ValueError, match=r"X must have shape \(60, 40\); got \(40, 60\)"
    ):
        result.fill(X.T)


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 1000), method=st.sampled_from(["als", "soft-impute"]))
def test_permuting_rows_and_columns_permutes_the_result(seed, method):
    X, _ = table(seed, n=20, m=15)
    rng = np.random.default_rng(seed)
    rows, columns = rng.permutation(20), rng.permutation(15)
    one = complete(X, method=method, k=15, regularization=1.0)
    other = complete(X[np.ix_(rows, columns)], method=method, k=15, regularization=1.0)
    np.testing.assert_allclose(
        other.toarray(), one.toarray()[np.ix_(rows, columns)], atol=0.02
    )


@methods
@pytest.mark.parametrize(
    "X", [[[3.0]], [[1.0, 2.0]], [[1.0], [np.nan], [3.0]], [[0.0, np.nan]]]
)
def test_tiny_matrices(method, X):
    result = complete(X, method=method, k=1, regularization=1.0)
    assert np.isfinite(result.toarray()).all()
    assert result.shape == np.shape(X)


@methods
def test_constant_entries_are_completed_by_themselves(method):
    X = np.full((6, 5), 4.0)
    X[0, 0] = np.nan
    np.testing.assert_allclose(complete(X, method=method).toarray(), 4.0, atol=1e-6)


def test_rows_without_entries_get_the_mean_and_the_columns_biases():
    X, _ = table()
    X[7] = np.nan
    for method in ("als", "soft-impute"):
        result = complete(X, method=method, k=2, regularization=1.0)
        np.testing.assert_allclose(
            result.toarray()[7], result.mean + result.column_bias, rtol=1e-9
        )


def test_biases_minimise_their_penalised_squares():
    X, _ = table()
    csr = observed_entries(X)
    found = Biases.of(csr, wanted=True)
    rest = X - found.mean - found.row_bias[:, None] - found.column_bias
    np.testing.assert_allclose(np.nansum(rest, axis=1), 5 * found.row_bias, atol=1e-6)
    np.testing.assert_allclose(
        np.nansum(rest, axis=0), 5 * found.column_bias, atol=1e-4
    )
    np.testing.assert_allclose(found.subtracted(csr).data, rest[~np.isnan(rest)])


def test_nothing_dense_is_made_of_a_large_matrix():
    rng = np.random.default_rng(0)
    rows, columns = rng.integers(0, 30_000, 1500), rng.integers(0, 25_000, 1500)
    X = sp.coo_array(
        (rng.random(1500, np.float32), (rows, columns)), shape=(30_000, 25_000)
    )
    X.sum_duplicates()
    for method in ("als", "soft-impute"):
        result = complete(X, method=method, k=2, regularization=2.0)
        assert result.predict([0, 1], [2, 3]).shape == (2,)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (
            {"X": [[1.0]]},
            ValueError,
            "at least 2 known entries to hold some out; got 1",
        ),
        (
            {"method": "svd"},
            ValueError,
            "method must be one of 'als', 'soft-impute'; got 'svd'",
        ),
        ({"k": 0}, ValueError, r"k must be between 1 and 40 \(min\(X.shape\)\); got 0"),
        (
            {"k": 41},
            ValueError,
            r"k must be between 1 and 40 \(min\(X.shape\)\); got 41",
        ),
        ({"k": 1.5}, TypeError, r"k must be an integer or None; got 1\.5"),
        (
            {"regularization": 0},
            ValueError,
            "regularization must be positive and finite; got 0",
        ),
    ],
)
def test_bad_arguments_raise(arguments, error, message):
    with pytest.raises(error, match=message):
        complete(**{"X": table()[0], **arguments})


def test_repr_says_what_was_done():
    result = complete(table()[0], k=2, regularization=1.0)
    assert repr(result).startswith("Completion(shape=(60, 40), method='als', rank=2, ")


def weights_of(X, seed=5):
    weights = np.random.default_rng(seed).exponential(size=X.shape)
    weights[::4, ::3] = 0
    return weights


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("nonnegative", [False, True])
def test_weights_are_the_same_in_any_container(dtype, nonnegative):
    X = np.abs(table(mean=6.0)[0]).astype(dtype)
    weights = weights_of(X)
    unused = np.where(
        np.isnan(X), np.nan, weights
    )  # weights of unknown entries do not matter
    options = {"regularization": 0.1, "nonnegative": nonnegative}
    expected = complete(X, 2, weights=weights, **options)
    assert expected.toarray().dtype == dtype
    for kind in (sp.csr_array, sp.csc_array, sp.coo_array):
        for given_weights in (weights, unused, kind(weights)):
            result = complete(as_sparse(X, kind), 2, weights=given_weights, **options)
            np.testing.assert_array_equal(result.toarray(), expected.toarray())


def test_an_entry_of_weight_zero_is_unknown():
    X = table()[0]
    weights = (np.random.default_rng(1).random(X.shape) < 0.8).astype(float)
    without = complete(np.where(weights > 0, X, np.nan), 2, regularization=0.1)
    changed = np.where(weights > 0, X, 1e6)
    for weighted in (
        complete(X, 2, weights=weights, regularization=0.1),
        complete(changed, 2, weights=weights, regularization=0.1),
    ):
        np.testing.assert_allclose(weighted.toarray(), without.toarray(), rtol=1e-9)
        assert weighted.rmse == pytest.approx(without.rmse)


@pytest.mark.parametrize("nonnegative", [False, True])
def test_weights_are_repetitions_of_entries(nonnegative):
    """The weighted objective at a solution is that of the repeated entries, and is at its least."""
    X = np.abs(table(n=20, m=15)[0])
    weights = np.random.default_rng(0).integers(1, 4, X.shape).astype(float)
    options = {"regularization": 0.2, "biases": False, "tol": 1e-12, "max_iter": 5000}
    result = complete(X, 2, weights=weights, nonnegative=nonnegative, **options)
    rows, columns = np.nonzero(~np.isnan(X))
    times = weights[rows, columns].astype(int)
    rows, columns = np.repeat(rows, times), np.repeat(columns, times)
    values = X[rows, columns]
    root = np.sqrt(np.mean(values**2))
    assert result.rmse == pytest.approx(rms(values - result.predict(rows, columns)))
    left, right = result.factors.left, result.factors.right

    def objective(left, right):
        error = values - np.einsum("ij,ij->i", left[rows], right[columns])
        penalties = [
            np.sqrt(np.bincount(at, minlength=len(side))) @ (side**2).sum(axis=1)
            for at, side in ((rows, left), (columns, right))
        ]
        return error @ error + 0.2 * root * sum(penalties)

    least = objective(left, right)
    rng = np.random.default_rng(2)
    for _ in range(20):
        moved = [side + 1e-3 * rng.normal(size=side.shape) for side in (left, right)]
        if nonnegative:
            moved = [np.maximum(side, 0) for side in moved]
        assert objective(*moved) >= least * (1 - 1e-9)


@pytest.mark.parametrize("kind", [np.asarray, as_sparse])
@pytest.mark.parametrize("k", [1, 5, 16, 17])
def test_nonnegative_factors_and_completed_matrices(kind, k):
    X = np.abs(table(n=20, m=17)[0])
    result = complete(kind(X), k, nonnegative=True, regularization=0.1)
    assert min(result.factors.left.min(), result.factors.right.min()) >= 0
    assert result.toarray().min() >= 0
    assert result.mean == 0
    assert not result.row_bias.any()
    assert result.rank == k


def test_the_rank_of_nonnegative_factors_is_found():
    rng = np.random.default_rng(0)
    full = rng.gamma(0.5, size=(150, 3)) @ rng.gamma(0.5, size=(3, 90))
    X = np.where(rng.random(full.shape) < 0.5, full, np.nan)
    result = complete(X, nonnegative=True)
    assert 2 <= result.rank <= 4
    unknown = np.isnan(X)
    assert rms((result.toarray() - full)[unknown]) < 0.1 * rms(full[unknown])
    weighted = complete(X, nonnegative=True, weights=np.where(unknown, np.nan, 3.0))
    assert weighted.rank == result.rank
    assert rms((weighted.toarray() - full)[unknown]) < 0.1 * rms(full[unknown])


def test_biases_of_nonnegative_factors_are_fitted_on_request():
    X = table()[0] - 10  # negative entries are then allowed
    result = complete(X, 2, nonnegative=True, biases=True, regularization=0.1)
    assert result.mean < 0
    assert min(result.factors.left.min(), result.factors.right.min()) >= 0


def with_entry(value):
    matrix = np.ones((4, 3))
    matrix[2, 1] = value
    return matrix


@pytest.mark.parametrize("kind", [np.asarray, sp.csr_array, sp.csc_array])
@pytest.mark.parametrize(
    ("X", "weights", "message"),
    [
        (1.0, -2.0, r"weights must not be negative; got -2.0 at row 2, column 1"),
        (1.0, np.nan, r"weights must be finite in float64; got nan at row 2, column 1"),
        (1.0, np.inf, r"weights must be finite in float64; got inf at row 2, column 1"),
        (
            -2.0,
            1.0,
            r"X must not be negative with nonnegative=True; got -2.0 at row 2, column 1",
        ),
        (np.inf, 1.0, "X must be finite; got infinity at row 2, column 1"),
    ],
)
def test_bad_weights_and_negative_entries_are_named_with_their_place(
    kind, X, weights, message
):
    given_weights = kind(with_entry(weights))
    with pytest.raises(ValueError, match=message):
        complete(kind(with_entry(X)), 1, weights=given_weights, nonnegative=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"weights": np.ones((3, 4))},
            r"weights must have the shape of X, \(4, 3\); got \(3, 4\)",
        ),
        (
            {"weights": np.zeros((4, 3))},
            "weights must be positive at a known entry of X",
        ),
        ({"weights": np.ones(3)}, "weights must be two-dimensional"),
        (
            {"weights": np.ones((4, 3)), "method": "soft-impute"},
            "weights must come with method='als'",
        ),
        (
            {"nonnegative": True, "method": "soft-impute"},
            "nonnegative=True must come with",
        ),
    ],
)
def test_arguments_that_do_not_fit_raise(arguments, message):
    with pytest.raises(ValueError, match=message):
        complete(with_entry(2.0), 1, **arguments)


def test_a_decrease_that_is_not_known_has_no_figure():
    with pytest.warns(
        ConvergenceWarning, match="not known to be below tol=1.0e-04, after"
    ):
        complete(np.arange(12.0).reshape(4, 3), 1, regularization=0.1, max_iter=1)


def test_a_masked_weight_is_not_known():
    X = np.eye(4) + 1
    ones = np.ma.masked_array(np.ones((4, 4)), mask=np.eye(4))
    with pytest.raises(ValueError, match="weights must be finite"):
        complete(X, 1, weights=ones)
    unknown = np.where(np.eye(4) == 1, np.nan, X)
    expected = complete(unknown, 1, weights=np.ones((4, 4))).row_bias
    np.testing.assert_array_equal(complete(unknown, 1, weights=ones).row_bias, expected)

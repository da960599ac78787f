"""Non-negative matrix factorisation against brute force and scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import nnls
from sklearn import decomposition

from lowrank import NMF, ConvergenceWarning, kernels

CONTAINERS = {
    "dense": np.asarray,
    "fortran": np.asfortranarray,
    "csr": sp.csr_array,
    "csc": sp.csc_array,
    "coo": sp.coo_array,
    "spmatrix": sp.csr_matrix,
}
ignoring_convergence = pytest.mark.filterwarnings("ignore::lowrank.ConvergenceWarning")


def counts(n=60, m=40, k=4, seed=0, dtype=np.float64):
    rng = np.random.default_rng(seed)
    rates = rng.gamma(0.3, size=(n, k)) @ rng.gamma(0.3, size=(k, m))
    return rng.poisson(4 * rates).astype(dtype)


def with_missing(X, share=0.3, seed=1):
    return np.where(np.random.default_rng(seed).random(X.shape) < share, np.nan, X)


def stored(X, kind=sp.csr_array):
    """Return the known entries as a sparse matrix that stores them, zeros included."""
    rows, columns = np.nonzero(~np.isnan(X))
    return kind(sp.coo_array((X[rows, columns], (rows, columns)), shape=X.shape))


def objective(X, W, H, regularization=0.0):
    known = ~np.isnan(X)
    errors = np.where(known, X - W @ H, 0)
    size = np.sqrt(np.mean(X[known] ** 2))
    penalties = [
        np.sqrt(known.sum(axis=axis)) @ (side**2).sum(axis=1)
        for axis, side in ((1, W), (0, H.T))
    ]
    return 0.5 * (errors**2).sum() + 0.5 * regularization * size * sum(penalties)


@pytest.mark.covering
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("form", CONTAINERS)
@pytest.mark.parametrize("regularization", [0.0, 0.2])
def test_the_objective_is_the_formula_and_never_rises(form, dtype, regularization):
    X = counts(dtype=dtype)
    nmf = NMF(3, regularization=regularization)
    W = nmf.fit_transform(CONTAINERS[form](X))
    assert W.dtype == nmf.components_.dtype == dtype
    assert min(W.min(), nmf.components_.min()) >= 0
    assert (
        np.diff(nmf.objectives_) <= 1e-6 * (X**2).sum() * (dtype == np.float32)
    ).all()
    reached = objective(X, W, nmf.components_, regularization)
    near = 1e-4 if dtype == np.float32 else 1e-6
    assert reached <= nmf.objectives_[-1] * (1 + near)
    assert reached == pytest.approx(nmf.objectives_[-1], rel=10 * near)
    errors = np.linalg.norm(X - W @ nmf.components_)
    assert nmf.reconstruction_err_ == pytest.approx(errors, rel=near)
    dense = NMF(3, regularization=regularization).fit(X)
    np.testing.assert_allclose(
        nmf.components_, dense.components_, atol=0.1 if dtype == np.float32 else 1e-6
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("regularization", [0.0, 0.2])
@ignoring_convergence
def test_missing_entries_are_left_out_of_the_objective(dtype, regularization):
    X = with_missing(counts(dtype=dtype))
    options = {"regularization": regularization, "max_iter": 300}
    nmf = NMF(3, **options)
    W = nmf.fit_transform(X)
    assert W.dtype == dtype
    reached = objective(X, W, nmf.components_, regularization)
    assert reached == pytest.approx(nmf.objectives_[-1], rel=1e-3)
    assert (
        np.diff(nmf.objectives_) <= 1e-6 * np.nansum(X**2) * (dtype == np.float32)
    ).all()
    for kind in (sp.csr_array, sp.csc_array):
        other = NMF(3, unstored="missing", **options)
        np.testing.assert_array_equal(other.fit_transform(stored(X, kind)), W)
        np.testing.assert_array_equal(other.components_, nmf.components_)
    masked = np.ma.MaskedArray(np.nan_to_num(X), np.isnan(X))
    np.testing.assert_array_equal(NMF(3, **options).fit_transform(masked), W)


@given(seed=st.integers(0, 2**32 - 1), k=st.integers(1, 6), missing=st.booleans())
@settings(max_examples=30, deadline=None)
def test_rows_equal_scipy(seed, k, missing):
    """Each transformed row is the non-negative least squares of its known entries."""
    H = np.random.default_rng(seed).gamma(0.5, size=(k, 12)) + 0.01
    nmf = NMF(k, random_state=0)
    X = counts(20, 12, seed=seed)
    nmf.max_iter = 1
    with pytest.warns(ConvergenceWarning):
        nmf.fit(X + 0.1)
    H = nmf.components_
    X = with_missing(X, seed=seed) if missing else X
    W = nmf.transform(X)
    for row, factors in zip(X, W, strict=True):
        known = ~np.isnan(row)
        if not known.any():
            assert not factors.any()
            continue
        best = nnls(H[:, known].T, row[known])[1] ** 2
        reached = np.sum((row[known] - factors @ H[:, known]) ** 2)
        assert reached == pytest.approx(
            best, rel=1e-6, abs=1e-8 * np.sum(row[known] ** 2)
        )


@pytest.mark.parametrize("form", CONTAINERS)
def test_transform_of_the_training_data_is_what_the_fit_returned(form):
    X = CONTAINERS[form](counts())
    nmf = NMF(3)
    W = nmf.fit_transform(X)
    np.testing.assert_allclose(nmf.transform(X), W, atol=1e-9)
    one = nmf.transform(X[[5]] if form != "coo" else X.tocsr()[[5]])
    np.testing.assert_allclose(one, W[[5]], atol=1e-9)
    np.testing.assert_allclose(nmf.inverse_transform(W), W @ nmf.components_)
    assert list(nmf.get_feature_names_out()) == ["nmf0", "nmf1", "nmf2"]


@pytest.mark.parametrize("form", ["dense", "csr"])
def test_objectives_are_at_least_as_low_as_scikit_learn(form):
    """There are many local minima: it is so on average, and up to 0.1% for each matrix."""
    ratios = []
    for seed in range(2):
        X = CONTAINERS[form](counts(150, 80, k=6, seed=seed))
        for k in (2, 5, 10):
            theirs = decomposition.NMF(k, random_state=0, max_iter=1000).fit(X)
            ours = NMF(k).fit(X)
            ratios.append(ours.reconstruction_err_ / theirs.reconstruction_err_)
    assert np.mean(ratios) <= 1 + 1e-5
    assert max(ratios) <= 1.001


@pytest.mark.parametrize("sparse_data", [False, True])
@pytest.mark.parametrize("missing", [False, True])
@ignoring_convergence
def test_same_bits_on_any_number_of_threads(sparse_data, missing, monkeypatch):
    X = counts(300, 90, dtype=np.float32)
    X = with_missing(X) if missing else X
    data = stored(X) if sparse_data else X
    results = []
    for threads in (1, 3):
        with kernels.at_most(threads), kernels.one_blas_thread():
            nmf = NMF(4, unstored="missing" if missing else "zero", max_iter=30)
            results.append((nmf.fit_transform(data), nmf.components_))
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)


@ignoring_convergence
@pytest.mark.parametrize("form", ["dense", "nan", "csr", "missing"])
def test_the_number_of_components_is_found_on_held_out_entries(form):
    rng = np.random.default_rng(0)
    X = rng.gamma(0.3, size=(120, 3)) @ rng.gamma(0.3, size=(3, 80))
    X[X < 0.02] = 0
    data = {
        "dense": X,
        "nan": with_missing(X),
        "csr": sp.csr_array(X),
        "missing": stored(with_missing(X)),
    }[form]
    nmf = NMF(unstored="missing" if form == "missing" else "zero", max_iter=100).fit(
        data
    )
    # Which of several nearly equal errors is the smallest depends on the rounding of BLAS.
    assert 2 <= nmf.n_components_ <= 8
    assert 0 < nmf.held_out_rmse_ < 0.1 * X.std()


def test_limits_of_the_number_of_components():
    X = counts(9, 7)
    for k in (1, 7):
        assert NMF(k).fit(X).components_.shape == (k, 7)
    for k in (0, 8):
        with pytest.raises(
            ValueError, match=rf"n_components must be between 1 and 7 .*; got {k}"
        ):
            NMF(k).fit(X)
    with pytest.raises(
        TypeError, match=r"n_components must be an integer or None; got 2\.0"
    ):
        NMF(2.0).fit(X)


@pytest.mark.parametrize("size", [1e-300, 1e-40, 1e40, 1e300])
def test_every_scale_is_factored_in_the_same_way(size):
    X = counts(20, 15)
    plain, scaled = NMF(3).fit(X), NMF(3).fit(X * size)
    np.testing.assert_allclose(
        scaled.transform(X * size) @ (scaled.components_ / size),
        plain.transform(X) @ plain.components_,
        rtol=1e-6,
        atol=1e-9,
    )
    assert scaled.reconstruction_err_ / size == pytest.approx(plain.reconstruction_err_)


def test_rows_and_columns_without_known_entries_and_zero_matrices():
    X = counts(20, 15)
    X[3], X[:, 4] = np.nan, np.nan
    nmf = NMF(2, regularization=0.1)
    W = nmf.fit_transform(X)
    assert not W[3].any()
    assert not nmf.components_[:, 4].any()
    nothing = NMF(2).fit(np.zeros((5, 4)))
    assert not nothing.components_.any()
    assert nothing.reconstruction_err_ == 0


@pytest.mark.parametrize("kind", [np.asarray, sp.csr_array, sp.csc_array])
@pytest.mark.parametrize(
    ("value", "message"),
    [
        (-2.0, "X must not be negative; got -2.0 at row 2, column 1"),
        (np.inf, "infinity at row 2, column 1"),
    ],
)
def test_bad_entries_are_named_with_their_place(kind, value, message):
    X = counts(9, 7) + 1
    nmf = NMF(2).fit(X)
    X[2, 1] = value
    for method in (NMF(2).fit, nmf.transform):
        with pytest.raises(ValueError, match=message):
            method(kind(X))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"unstored": "nan"}, "unstored must be one of 'zero', 'missing'; got 'nan'"),
        (
            {"regularization": -1},
            "regularization must be finite and not negative; got -1",
        ),
        ({"tol": 0}, "tol must be positive and finite; got 0"),
        ({"max_iter": 0}, "max_iter must be at least 1; got 0"),
    ],
)
def test_bad_parameters_raise(arguments, message):
    with pytest.raises(ValueError, match=message):
        NMF(2, **arguments).fit(counts())


@ignoring_convergence
def test_nothing_dense_is_made_of_a_large_sparse_matrix():
    """A dense copy would take 80 GB."""
    rng = np.random.default_rng(0)
    X = sp.random_array((100_000, 100_000), density=1e-6, rng=rng, format="csr")
    W = NMF(2, max_iter=2).fit_transform(X)
    assert W.shape == (100_000, 2)


def test_an_unreached_tolerance_is_a_warning():
    with pytest.warns(
        ConvergenceWarning, match="has not converged to tol=1.0e-07 after max_iter=3"
    ):
        NMF(2, max_iter=3).fit(counts())

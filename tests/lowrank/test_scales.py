"""Tables with columns of very different units: as exact as LAPACK, in every container."""

import warnings
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mixed_tables import exact_values, mixed_table
from scipy import sparse
from scipy.sparse.linalg import aslinearoperator

from lowrank import (
    PCA,
    ConvergenceWarning,
    ProbabilisticPCA,
    RowBlocks,
    Whitening,
    choose_rank,
    optimal_threshold,
    truncated_svd,
)

EPS = float(np.finfo(np.float64).eps)
HEAVY = {
    "salary": lambda rng, n: rng.normal(5e4, 2e4, n),
    "unix time": lambda rng, n: 1.6e9 + rng.integers(0, 3 * 10**7, n),
    "id": lambda rng, n: rng.integers(1, 10**7, n),
    "price": lambda rng, n: rng.lognormal(8, 2, n),
    "year": lambda rng, n: 2000 + rng.integers(0, 20, n),
}
CONTAINERS = {
    "dense": np.asarray,
    "fortran": np.asfortranarray,
    "csr": sparse.csr_array,
    "csc": sparse.csc_matrix,
    "blocks": lambda X: RowBlocks.from_array(X, rows=max(1, len(X) // 3)),
}


def heavy_table(kind, n=900, m=60, seed=0):
    """Return normal columns and one or two heavy ones."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, m))
    X[:, m // 2] = HEAVY[kind](rng, n)
    return X


@cache
def heavy_case(kind, dtype, n, m):
    """Return a table and its exact singular values, which no test changes."""
    X = heavy_table(kind, n, m).astype(dtype)
    return X, exact_values(X)


def allowed_error(s, dtype):
    if dtype == np.float32:
        return np.full(s.size, 1e-3)
    return np.maximum(1e-8, 100 * EPS * s[0] / s)


@pytest.mark.covering
@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", HEAVY)
@pytest.mark.parametrize(("n", "m", "k"), [(900, 60, 5), (80, 300, 6), (2600, 210, 5)])
def test_pca_with_a_heavy_column_is_that_of_lapack(kind, dtype, container, n, m, k):
    if container in ("csr", "csc"):  # iterations, which fewer rows need as well
        n = min(n, 700)
    X, s = heavy_case(kind, dtype, n, m)
    pca = PCA(k, whiten=True, center="exact").fit(CONTAINERS[container](X))
    allowed = allowed_error(s[:k], dtype)
    assert (np.abs(pca.singular_values_ / s[:k] - 1) <= allowed).all()
    assert (
        np.abs(pca.explained_variance_ / (s[:k] ** 2 / (n - 1)) - 1) <= 2 * allowed
    ).all()
    scores = pca.transform(CONTAINERS[container](X))
    np.testing.assert_allclose(scores.std(axis=0, ddof=1), 1, atol=1e-2)
    rest = (s[k:] ** 2).sum() / (n - 1) / (min(n, m) - k)
    np.testing.assert_allclose(pca.noise_variance_, rest, rtol=5e-3)
    assert pca.components_.dtype == dtype


@pytest.mark.covering(1)
@pytest.mark.parametrize("container", ["dense", "blocks"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", HEAVY)
def test_whitening_keeps_all_directions_with_variance(kind, dtype, container):
    X = heavy_table(kind).astype(dtype)
    whitening = Whitening().fit(CONTAINERS[container](X))
    assert whitening.n_components_ == X.shape[1]
    whitened = whitening.transform(X)
    np.testing.assert_allclose(whitened.std(axis=0, ddof=1), 1, atol=1e-2)


@pytest.mark.covering(1)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", HEAVY)
@pytest.mark.parametrize("convert", [np.asarray, sparse.csr_array])
def test_probabilistic_pca_with_a_heavy_column_has_a_density(kind, dtype, convert):
    X = heavy_table(kind).astype(dtype)
    n, m = X.shape
    s = exact_values(X)
    model = ProbabilisticPCA(5).fit(convert(X))
    noise = (s[5:] ** 2).sum() / n / (m - 5)
    np.testing.assert_allclose(model.noise_variance_, noise, rtol=5e-3)
    variances = s**2 / n
    determinant = np.log(variances[:5]).sum() + (m - 5) * np.log(noise)
    expected = -n / 2 * (m * np.log(2 * np.pi) + determinant + m)
    np.testing.assert_allclose(model.log_likelihood_, expected, rtol=1e-3)
    np.testing.assert_allclose(model.score(convert(X)) * n, expected, rtol=1e-3)


@pytest.mark.covering(1)
@given(seed=st.integers(0, 2**32 - 1))
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("container", ["dense", "csr", "blocks"])
def test_random_tables_agree_with_lapack(container, dtype, seed):
    X = mixed_table(seed)[0].astype(dtype)
    s = exact_values(X)
    k = min(4, X.shape[1] - 1)
    pca = PCA(k, whiten=True, center="exact", random_state=0).fit(
        CONTAINERS[container](X)
    )
    allowed = allowed_error(s[:k], dtype)
    assert (np.abs(pca.singular_values_ / s[:k] - 1) <= allowed).all()
    scores = pca.transform(CONTAINERS[container](X))
    np.testing.assert_allclose(scores.std(axis=0, ddof=1), 1, atol=1e-2)


@pytest.mark.covering(1)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("convert", [np.asarray, sparse.csr_array, aslinearoperator])
@pytest.mark.parametrize("power", [2, 4, 6, 8, 10])
def test_each_triplet_is_judged_by_its_own_value(dtype, convert, power):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((700, 120))
    X[:, 3] *= 10.0**power
    X[:, 7] = 1.2 * X[:, 3] + rng.standard_normal(700)
    X = X.astype(dtype)
    expected = np.linalg.svd(X.astype(np.float64), compute_uv=False)[:6]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = truncated_svd(convert(X), 6, random_state=0)
    assert (np.abs(result.s / expected - 1) <= allowed_error(expected, dtype)).all()
    tolerance = 1e-4 if dtype == np.float32 else 1e-8
    floor = 20 * EPS * expected[0]
    assert (
        result.residuals.max(axis=0) <= np.maximum(tolerance * expected, floor)
    ).all()


@pytest.mark.parametrize("method", ["gram", "lanczos"])
def test_a_residual_above_its_tolerance_is_a_warning_with_the_figure(method):
    X = heavy_table("unix time")
    with pytest.warns(
        ConvergenceWarning, match=rf"relative to s\[\d\], .*method='{method}'"
    ):
        truncated_svd(X, 5, method=method, random_state=0)


@pytest.mark.parametrize(
    "method", ["auto", "dense", "gram", "lanczos", "randomized", "qr"]
)
def test_every_method_is_right_in_float32(method):
    X = heavy_table("salary").astype(np.float32)
    expected = exact_values(X)[:5]
    result = truncated_svd(X, 5, method=method, center=True, random_state=0)
    np.testing.assert_allclose(result.s, expected, rtol=1e-4)


@pytest.mark.parametrize("convert", [np.asarray, sparse.csr_array])
@pytest.mark.parametrize("constant", [0.1, 1e12, 1e16 / 3, 1732616400123456789.0])
def test_constant_columns_of_any_size_have_no_variance(constant, convert):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(71, 5))
    X[:, 2] = constant
    others = np.delete(X, 2, axis=1)
    plain, standardised = PCA(4).fit(others), PCA(2, standardize=True).fit(others)
    found = PCA(4, center="exact").fit(convert(X))
    np.testing.assert_allclose(
        found.explained_variance_, plain.explained_variance_, rtol=1e-9
    )
    assert found.mean_[2] == constant
    scaled = PCA(2, standardize=True, center="exact").fit(convert(X))
    np.testing.assert_allclose(
        scaled.explained_variance_, standardised.explained_variance_
    )
    np.testing.assert_allclose(scaled.components_[:, 2], 0, atol=1e-12)
    assert (scaled.mean_[2], scaled.scale_[2]) == (constant, 1.0)
    if convert is np.asarray:
        assert Whitening().fit(X).n_components_ == 4


def test_columns_that_are_constant_up_to_rounding_are_left_out():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(71, 5))
    X[:, 2] = 1.7e18 + 256 * rng.integers(0, 2, 71)
    scaled = PCA(2, standardize=True).fit(X)
    expected = PCA(2, standardize=True).fit(np.delete(X, 2, axis=1))
    np.testing.assert_allclose(scaled.explained_variance_, expected.explained_variance_)


def test_the_noise_is_not_lost_next_to_a_large_component():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((400, 30))
    X[:, 4:6] = 1e7 * np.outer(rng.standard_normal(400), [0.6, 0.8])
    X[:, 5] += rng.standard_normal(400)
    for convert in (np.asarray, sparse.csr_array):
        for k in (1, 3):
            s = exact_values(X)
            pca = PCA(k, center="exact").fit(convert(X))
            np.testing.assert_allclose(pca.distortion_, (s[k:] ** 2).sum(), rtol=1e-6)


@pytest.mark.parametrize("method", ["pca", "zca", "zca-cor"])
def test_deficient_data_with_a_constant_column(method):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((50, 3)) @ rng.standard_normal((3, 6))
    X[:, 4] = 7.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        whitening = Whitening(method).fit(X)
    assert whitening.n_components_ == 3
    assert PCA(5).fit(X).noise_variance_ == 0


@pytest.mark.parametrize("constant", [1e15, 3.333e15, 1e100, 1.7e308])
def test_the_noise_is_not_lost_next_to_a_constant_column(constant):
    Z = np.random.default_rng(0).standard_normal((60, 6)) * np.arange(1, 7)
    s = np.linalg.svd(Z - Z.mean(axis=0), compute_uv=False)
    result = PCA(3).fit(np.c_[Z, np.full(60, constant)])
    np.testing.assert_allclose(result.singular_values_, s[:3])
    np.testing.assert_allclose(result.noise_variance_, s[3:] @ s[3:] / 59 / 4)


def test_a_table_of_one_large_number_has_no_variance():
    assert PCA(1).fit(np.full((5, 4), 1.7e308)).singular_values_ == 0


def weighted_values(X, weights):
    """Return the singular values of the rows about their weighted mean, by LAPACK."""
    wide = X.astype(np.float64)
    first = wide[np.argmax(weights)]
    centred = wide - first
    centred -= weights @ centred / weights.sum()
    return np.linalg.svd(np.sqrt(weights)[:, None] * centred, compute_uv=False)


@pytest.mark.covering(1)
@pytest.mark.parametrize("container", ["dense", "csr"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", HEAVY)
def test_weighted_tables_agree_with_lapack(kind, dtype, container):
    X = heavy_table(kind, n=300, m=20)
    X[:, 3] = 1e6 + 0.4 * X[:, 3]
    X = X.astype(dtype)
    weights = np.random.default_rng(1).choice([0, 1, 2, 3.5, 0.1], 300)
    k = 20
    pca = PCA(k, whiten=True).fit(CONTAINERS[container](X), sample_weight=weights)
    s = weighted_values(X, weights)[:k]
    assert (np.abs(pca.singular_values_ / s - 1) <= allowed_error(s, dtype)).all()
    scores = pca.transform(CONTAINERS[container](X)).astype(np.float64)
    variances = weights @ (scores - weights @ scores / weights.sum()) ** 2
    np.testing.assert_allclose(variances / (weights.sum() - 1), 1, atol=2e-2)
    svd = truncated_svd(CONTAINERS[container](X), k, row_weights=weights)
    rows = np.sqrt(weights)[:, None] * X.astype(np.float64)
    s = np.linalg.svd(rows, compute_uv=False)[:k]
    assert (np.abs(svd.s / s - 1) <= allowed_error(s, dtype)).all()
    assert (svd.s.dtype, pca.components_.dtype) == (dtype, dtype)


def test_constant_columns_of_weighted_sparse_tables_have_no_variance():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(900, 6)) * 1e-3
    X[:, 2], X[:, 4] = 1.6e9, 1e7
    weights = rng.choice([0, 1, 2, 3.5, 0.1], 900)
    pca = PCA(5, whiten=True).fit(sparse.csr_array(X), sample_weight=weights)
    s = weighted_values(X, weights)
    np.testing.assert_allclose(pca.singular_values_[:4], s[:4], rtol=1e-4)
    assert (pca.mean_[2], pca.mean_[4]) == (1.6e9, 1e7)
    np.testing.assert_array_equal(pca.transform(X)[:, 4], 0)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("estimator", [PCA(3, center="exact"), ProbabilisticPCA(3)])
def test_the_likelihood_of_sparse_tables_is_that_of_dense_ones(estimator, dtype):
    rng = np.random.default_rng(0)
    X = rng.normal(0, 1e-2, (200, 9))
    X[:, 0] += 48
    X[:, 5] = 1.5e9 + rng.integers(0, 3600, 200)
    X = X.astype(dtype)
    expected = estimator.fit(X).score_samples(X)
    csr = sparse.csr_array(X)
    likelihood = estimator.fit(csr).score_samples(csr)
    np.testing.assert_allclose(likelihood, expected, rtol=1e-3, atol=1e-2)
    if isinstance(estimator, PCA):
        blocks = RowBlocks([csr[:70], csr[70:]])
        likelihood = estimator.fit(blocks).score_samples(blocks)
        np.testing.assert_allclose(likelihood, expected, rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", HEAVY)
def test_a_copy_of_a_heavy_column_leaves_the_noise_of_the_others(kind, dtype):
    X = heavy_table(kind, n=400, m=30).astype(dtype)
    X[:, 3] = X[:, 15]
    s = exact_values(X)
    rest = (s[5:] ** 2).sum() / 400
    np.testing.assert_allclose(PCA(5).fit(X).noise_variance_, rest / 25 * 400 / 399)
    model = ProbabilisticPCA(5).fit(X)
    np.testing.assert_allclose(model.noise_variance_, rest / 25, rtol=1e-3)
    assert np.isfinite(model.log_likelihood_)


@pytest.mark.parametrize("container", ["dense", "csr", "blocks"])
@pytest.mark.parametrize("weights", [None, np.ones(500)])
def test_standardised_float32_tables_agree_with_lapack(container, weights):
    if container == "blocks" and weights is not None:
        pytest.skip("weights need rows in memory")
    rng = np.random.default_rng(0)
    X = rng.standard_normal((500, 6))
    X[:, 2] = 1.5e9 + rng.integers(0, 3600, 500)
    X[:, 4] = X[:, 2] + 500 * X[:, 0]
    X[:, 5] = 7.0
    X = X.astype(np.float32)
    wide = X[:, :5].astype(np.float64)
    standard = (wide - wide.mean(axis=0)) / wide.std(axis=0, ddof=1)
    s = np.linalg.svd(standard, compute_uv=False)
    samples = CONTAINERS[container](X)
    pca = PCA(5, standardize=True, center=True, whiten=True)
    pca.fit(samples, sample_weight=weights)
    np.testing.assert_allclose(pca.singular_values_, s, rtol=1e-4)
    scores = pca.transform(samples)
    assert scores.dtype == pca.components_.dtype == np.float32
    np.testing.assert_allclose(scores.mean(axis=0), 0, atol=1e-3)
    if weights is None:
        np.testing.assert_allclose(scores.std(axis=0, ddof=1), 1, atol=1e-3)
        expected = PCA(4, standardize=True, center=True).fit(wide).score(wide)
        score = PCA(4, standardize=True, center=True).fit(X[:, :5]).score(X[:, :5])
        np.testing.assert_allclose(score, expected, rtol=1e-3)


@pytest.mark.covering(1)
@pytest.mark.parametrize("shape", [(400, 30), (40, 60)])
@pytest.mark.parametrize("container", ["csr", "blocks"])
@pytest.mark.parametrize("kind", HEAVY)
def test_rules_for_the_rank_do_not_depend_on_the_container(kind, container, shape):
    X = heavy_table(kind, *shape)
    X[:, 3] = 1e7
    X[:, 1] *= 5
    if container == "blocks" and shape[0] < shape[1]:
        X = X.T
    samples = CONTAINERS[container](X)
    for options in ({}, {"rule": "energy", "fraction": 1 - 1e-9}):
        assert choose_rank(samples, **options) == choose_rank(X, **options)
    np.testing.assert_allclose(optimal_threshold(samples), optimal_threshold(X))


@pytest.mark.covering(1)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", HEAVY)
def test_probabilistic_pca_of_incomplete_tables_keeps_the_noise(kind, dtype):
    X = heavy_table(kind, n=400, m=12).astype(dtype)
    complete = ProbabilisticPCA(3).fit(X)
    rng = np.random.default_rng(1)
    X[rng.random(X.shape) < 0.01] = np.nan
    incomplete = ProbabilisticPCA(3).fit(X)
    np.testing.assert_allclose(
        incomplete.noise_variance_, complete.noise_variance_, rtol=0.03
    )
    np.testing.assert_allclose(
        incomplete.explained_variance_, complete.explained_variance_, rtol=0.05
    )
    assert np.isfinite(incomplete.log_likelihood_)
    imputed = incomplete.impute(X)
    assert np.isfinite(imputed).all()

"""Whitening: identity covariance, safe directions, and the differences of PCA, ZCA and ZCA-cor."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from lowrank.whitening import Whitening

METHODS = ["pca", "zca", "zca-cor"]


def correlated(rows=200, columns=6, seed=0, model=0):
    mixing = np.random.default_rng(model).standard_normal((columns, columns))
    return (
        np.random.default_rng(seed + 100).standard_normal((rows, columns)) @ mixing + 5
    )


def deficient(rows=40, columns=10, rank=3, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((rows, rank)) @ rng.standard_normal((rank, columns)) + 1


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("dtype", "size"), [("f4", 1e20), ("f4", 1e-25), ("f8", 1e160), ("f8", 1e-200)]
)
def test_every_scale_is_whitened_in_the_same_way(method, dtype, size):
    X = correlated().astype(dtype)
    large = X * X.dtype.type(size)
    whitening = Whitening(method, epsilon=0.0)
    expected, whitened = whitening.fit_transform(X), whitening.fit_transform(large)
    near = {"atol": 1e-3} if dtype == "f4" else {"rtol": 1e-7}
    np.testing.assert_allclose(whitened, expected, **near)
    back = whitening.inverse_transform(whitened) / X.dtype.type(size)
    np.testing.assert_allclose(back, X, **near)
    damped = Whitening(method, epsilon=1.0).fit(large).transform(large)
    assert np.isfinite(damped).all()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("ddof", [0, 1])
@given(st.integers(2, 8), st.integers(0, 2**31))
def test_covariance_is_the_identity(method, ddof, columns, seed):
    X = correlated(columns=columns, seed=seed, model=seed)
    Y = Whitening(method, epsilon=0.0, ddof=ddof).fit_transform(X)
    np.testing.assert_allclose(np.cov(Y.T, ddof=ddof), np.eye(columns), atol=1e-8)
    np.testing.assert_allclose(Y.mean(axis=0), 0, atol=1e-7)


@pytest.mark.parametrize("method", METHODS)
def test_new_data_of_the_same_distribution_are_white(method):
    whitening = Whitening(method, epsilon=0.0).fit(correlated(20_000))
    new = whitening.transform(correlated(20_000, seed=1))
    np.testing.assert_allclose(np.cov(new.T), np.eye(6), atol=0.06)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("epsilon", [0.0, 1e-5])
@pytest.mark.parametrize("shape", [(40, 10), (6, 50)])
def test_rank_deficient_data_do_not_blow_up(method, dtype, epsilon, shape):
    X = deficient(*shape).astype(dtype)
    whitening = Whitening(method, epsilon=epsilon)
    Y = whitening.fit_transform(X)
    assert whitening.n_components_ == 3
    assert np.array_equal(Y, whitening.transform(X))
    kept = Y if method == "pca" else Y @ whitening.components_.T
    np.testing.assert_allclose(np.cov(kept.T), np.eye(3), atol=2e-4)
    np.testing.assert_allclose(whitening.inverse_transform(Y), X, atol=1e-4)
    rng = np.random.default_rng(1)
    assert abs(whitening.transform(rng.standard_normal((50, shape[1])))).max() < 100
    outside = np.linalg.svd(X - X.mean(axis=0), full_matrices=True)[2][-1]
    if method != "zca-cor":
        moved = whitening.transform(X + 1e3 * outside)
        np.testing.assert_allclose(moved, Y, atol=1e-2 if dtype == np.float32 else 1e-9)


def test_a_large_offset_does_not_hide_the_rank():
    whitening = Whitening(epsilon=0.0).fit(deficient() + 1e7)
    assert whitening.n_components_ == 3
    assert Whitening(epsilon=0.0).fit(correlated() + 1e7).n_components_ == 6


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("epsilon", [0.0, 1e-5, 0.5])
def test_inverse(method, epsilon):
    X = correlated()
    whitening = Whitening(method, epsilon=epsilon).fit(X)
    np.testing.assert_allclose(
        whitening.inverse_transform(whitening.transform(X)), X, atol=1e-10
    )


@pytest.mark.parametrize("size", [1e-4, 1e4])
def test_epsilon_is_in_units_of_the_mean_variance(size):
    X = correlated()
    expected = Whitening(epsilon=0.1).fit_transform(X)
    np.testing.assert_allclose(Whitening(epsilon=0.1).fit_transform(X * size), expected)
    whitened = Whitening().fit_transform(X * size)
    np.testing.assert_allclose(whitened.std(axis=0, ddof=1), 1)


def test_epsilon_is_added_to_the_variances():
    X = correlated()
    whitening = Whitening(epsilon=0.5).fit(X)
    variances = whitening.transform(X).var(axis=0, ddof=1)
    eigenvalues = np.linalg.eigvalsh(np.cov(X.T))[::-1]
    np.testing.assert_allclose(
        variances, eigenvalues / (eigenvalues + 0.5 * eigenvalues.mean())
    )
    np.testing.assert_allclose(whitening.explained_variance_, eigenvalues)


@given(st.integers(0, 2**31))
def test_zca_is_the_rotation_closest_to_the_data(seed):
    X = correlated(seed=seed % 7, model=seed % 5)
    centred = X - X.mean(axis=0)
    Y = Whitening("zca", epsilon=0.0).fit_transform(X)
    rotation = np.linalg.qr(np.random.default_rng(seed).standard_normal((6, 6)))[0]
    assert np.linalg.norm(Y - centred) <= np.linalg.norm(Y @ rotation - centred) + 1e-9
    np.testing.assert_allclose(
        np.linalg.norm(Y - centred),
        np.linalg.norm(
            Whitening(epsilon=0.0).fit_transform(X) @ _best_rotation(X) - centred
        ),
    )


def _best_rotation(X):
    Y = Whitening(epsilon=0.0).fit_transform(X)
    U, _, Vt = np.linalg.svd(Y.T @ (X - X.mean(axis=0)))
    return U @ Vt


def test_zca_is_the_inverse_root_of_the_covariance():
    X = correlated()
    values, vectors = np.linalg.eigh(np.cov(X.T))
    root = vectors / np.sqrt(values) @ vectors.T
    Y = Whitening("zca", epsilon=0.0).fit_transform(X)
    np.testing.assert_allclose(Y, (X - X.mean(axis=0)) @ root, atol=1e-9)


def test_zca_cor_does_not_depend_on_units():
    X = correlated()
    Y = Whitening("zca-cor").fit_transform(X)
    units = np.array([1.0, 1e3, 1e-3, 7.0, 0.2, 50.0])
    np.testing.assert_allclose(
        Whitening("zca-cor").fit_transform(X * units), Y, atol=1e-8
    )
    other = Whitening("zca", epsilon=0.0).fit_transform(X)
    correlations = [np.trace(np.corrcoef(X.T, Z.T)[:6, 6:]) for Z in (Y, other)]
    assert correlations[0] > correlations[1]


@pytest.mark.parametrize("method", METHODS)
def test_constant_columns_and_a_limited_number_of_components(method):
    X = correlated()
    X[:, 2] = 0.1
    whitening = Whitening(method, n_components=4, epsilon=0.0).fit(X)
    Y = whitening.transform(X)
    assert whitening.n_components_ == 4
    assert Y.shape == ((200, 4) if method == "pca" else (200, 6))
    assert np.linalg.matrix_rank(Y) == 4
    np.testing.assert_allclose(Whitening(method).fit(X).n_components_, 5)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"method": "PCA"},
            ValueError,
            "method must be one of 'pca', 'zca', 'zca-cor'; got 'PCA'",
        ),
        (
            {"epsilon": -1.0},
            ValueError,
            "epsilon must be finite and not negative; got -1.0",
        ),
        ({"epsilon": np.inf}, ValueError, "epsilon must be finite .* got inf"),
        ({"n_components": 0}, ValueError, r"between 1 and 6 \(min\(X.shape\)\); got 0"),
        ({"n_components": 7}, ValueError, r"between 1 and 6 \(min\(X.shape\)\); got 7"),
        (
            {"n_components": 0.5},
            TypeError,
            "n_components must be an integer or None; got 0.5",
        ),
        (
            {"ddof": 200},
            ValueError,
            "more than 200 samples, as ddof=200; got n_samples=200",
        ),
    ],
)
def test_bad_parameters(options, error, message):
    with pytest.raises(error, match=message):
        Whitening(**options).fit(correlated())


def test_sparse_and_not_finite_data_raise():
    with pytest.raises(TypeError, match=r"[Ss]parse"):
        Whitening().fit(sparse.csr_array(correlated()))
    X = correlated()
    X[1, 1] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        Whitening().fit(X)


@pytest.mark.parametrize("seed", [202, 272, 2020])
def test_whitening_does_not_warn_of_the_accuracy_of_lapack(seed):
    rng = np.random.default_rng(seed)
    n, m = int(rng.integers(2, 150)), int(rng.integers(1, 60))
    X = rng.standard_normal((n, m)) + 2
    X[:, rng.integers(m)] *= 10 ** rng.uniform(0, 6)
    Whitening().fit(X)  # warnings are errors in tests

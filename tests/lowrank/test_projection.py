"""Random projections: the bound, distances, unbiased norms, dense = sparse, inverses."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from scipy.spatial.distance import pdist
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.random_projection import johnson_lindenstrauss_min_dim

from lowrank import GaussianProjection, SparseProjection, johnson_lindenstrauss_dim

PROJECTIONS = [
    GaussianProjection(8, random_state=0),
    GaussianProjection(8, scaling="unit", random_state=0),
    SparseProjection(8, random_state=0),
    SparseProjection(8, density=1 / 3, random_state=0),
    SparseProjection(8, density=1, random_state=0),
]
KEEPING = [
    GaussianProjection(random_state=0),
    SparseProjection(random_state=0),
    SparseProjection(density=1 / 3, random_state=0),
]


def points(rows=30, columns=60, seed=0, dtype=np.float64):
    rng = np.random.default_rng(seed)
    mask = rng.random((rows, columns)) < 0.3
    return (rng.standard_normal((rows, columns)) * mask).astype(dtype)


def directions(fitted):
    R = fitted.components_
    return R if isinstance(R, np.ndarray) else R.toarray()


# the bound


@given(st.integers(1, 10**9), st.floats(0.01, 0.99))
def test_dimension_is_that_of_the_peer_rounded_up(samples, eps):
    ours = johnson_lindenstrauss_dim(samples, eps)
    assert 0 <= ours - int(johnson_lindenstrauss_min_dim(samples, eps=eps)) <= 1
    assert ours >= 4 * math.log(samples) / (eps**2 / 2 - eps**3 / 3)


@pytest.mark.parametrize("eps", [0, 1, -0.5, float("nan"), "x"])
def test_eps_out_of_range(eps):
    with pytest.raises(ValueError, match="eps must be between 0 and 1, both excluded; got"):
        johnson_lindenstrauss_dim(10, eps)


@pytest.mark.parametrize("samples", [0, -1, 2.5, True])
def test_number_of_points_out_of_range(samples):
    with pytest.raises(ValueError, match="n_samples must be an integer, 1 or larger; got"):
        johnson_lindenstrauss_dim(samples, 0.1)


@pytest.mark.parametrize("projection", KEEPING)
@pytest.mark.parametrize("seed", range(5))
def test_all_distances_are_kept_within_eps(projection, seed):
    X = points(60, 3000, seed)
    projection = clone(projection).set_params(eps=0.35, random_state=seed)
    Y = projection.fit_transform(X)
    assert projection.n_components_ == johnson_lindenstrauss_dim(60, 0.35) == Y.shape[1]
    change = (pdist(Y) / pdist(X)) ** 2
    assert 0.65 < change.min() < change.max() < 1.35
    assert change.max() > 1.1  # it is not an isometry: these bounds mean something


@pytest.mark.parametrize("projection", PROJECTIONS)
def test_squared_norms_are_unbiased(projection):
    x = points(1, 60)
    squares = [
        (
            clone(projection).set_params(n_components=40, random_state=seed).fit_transform(x) ** 2
        ).sum()
        for seed in range(1000)
    ]
    unit = getattr(projection, "scaling", "") == "unit"
    expected = (x**2).sum() * (40 / 60 if unit else 1)
    error = np.std(squares) / math.sqrt(len(squares))
    assert abs(np.mean(squares) - expected) < 4 * error
    assert error < 0.01 * expected


# the directions


def test_gaussian_scalings():
    X = np.zeros((2, 20_000))
    unit = GaussianProjection(5, scaling="unit", random_state=0).fit(X).components_
    np.testing.assert_allclose(np.linalg.norm(unit, axis=1), 1)
    free = GaussianProjection(5, random_state=0).fit(X).components_
    np.testing.assert_allclose(free.var(axis=1), 1 / 5, rtol=0.05)
    cosines = np.einsum("ij,ij->i", unit, free) / np.linalg.norm(free, axis=1)
    np.testing.assert_allclose(cosines, 1)


@pytest.mark.parametrize(("density", "expected"), [("auto", 0.01), (1 / 3, 1 / 3), (1, 1.0)])
def test_sparse_entries(density, expected):
    projection = SparseProjection(40, density=density, random_state=0).fit(np.zeros((2, 10_000)))
    R = projection.components_
    assert projection.density_ == expected
    np.testing.assert_allclose(R.nnz / (40 * 10_000), expected, rtol=0.06)
    np.testing.assert_allclose(np.unique(abs(R.data)), 1 / math.sqrt(expected * 40))
    assert abs(np.sign(R.data).mean()) < 4 / math.sqrt(R.nnz)
    assert R.has_canonical_format


# the transformers


@pytest.mark.parametrize("projection", PROJECTIONS)
@pytest.mark.parametrize("make", [sparse.csr_array, sparse.csc_matrix, sparse.coo_array])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sparse_equals_dense(projection, make, dtype):
    X = points(dtype=dtype)
    dense, thin = clone(projection), clone(projection)
    Y = dense.fit_transform(X)
    Z = thin.fit_transform(make(X))
    assert isinstance(Z, np.ndarray)
    assert Y.dtype == Z.dtype == dense.components_.dtype == dtype
    np.testing.assert_allclose(Z, Y, atol=1e-5 if dtype == np.float32 else 1e-12)
    R = directions(dense)
    np.testing.assert_allclose(Y, X @ R.T, atol=1e-5 if dtype == np.float32 else 1e-12)


@pytest.mark.parametrize("projection", PROJECTIONS)
def test_new_data_of_the_other_dtype(projection):
    fitted = clone(projection).fit(points())
    for X in (points(dtype=np.float32), sparse.csr_array(points(dtype=np.float32))):
        np.testing.assert_allclose(fitted.transform(X), fitted.transform(points()), atol=1e-5)
        assert fitted.transform(X).dtype == np.float32


@pytest.mark.parametrize("projection", PROJECTIONS)
def test_same_seed_same_bits(projection):
    first, second = clone(projection), clone(projection)
    assert np.array_equal(first.fit_transform(points()), second.fit_transform(points()))
    other = clone(projection).set_params(random_state=1)
    assert not np.array_equal(other.fit_transform(points()), first.transform(points()))
    single = clone(projection).fit(points(dtype=np.float32)).components_
    assert abs(single - first.components_).max() < 1e-7


@pytest.mark.parametrize("projection", PROJECTIONS)
def test_inverse_is_the_shortest_preimage(projection):
    fitted = clone(projection).fit(points())
    Y = fitted.transform(points())
    X = fitted.inverse_transform(Y)
    np.testing.assert_allclose(fitted.transform(X), Y, atol=1e-10)
    np.testing.assert_allclose(X, Y @ np.linalg.pinv(directions(fitted)).T, atol=1e-10)
    single = clone(projection).fit(points(dtype=np.float32))
    assert single.inverse_transform(Y.astype(np.float32)).dtype == np.float32


def test_inverse_of_directions_that_are_zero():
    fitted = SparseProjection(3, density=1e-9, random_state=0).fit(points())
    assert fitted.components_.nnz == 0
    assert np.array_equal(fitted.inverse_transform(fitted.transform(points())), np.zeros((30, 60)))


@settings(deadline=None, max_examples=20)
@given(st.integers(1, 12), st.integers(0, 2**31))
def test_every_size_works(k, seed):
    X = points(5, 12, seed)
    for kind in (GaussianProjection, SparseProjection):
        fitted = kind(k, random_state=seed).fit(X)
        assert fitted.transform(X).shape == (5, k)
        assert fitted.n_components_ == k


def test_names_and_pipeline():
    fitted = make_pipeline(StandardScaler(), SparseProjection(2, random_state=0)).fit(points())
    assert list(fitted.get_feature_names_out()) == ["sparseprojection0", "sparseprojection1"]


@pytest.mark.parametrize("kind", [GaussianProjection, SparseProjection])
def test_size_out_of_range(kind):
    for wrong in (0, 61, 2.5, True, "many"):
        with pytest.raises(
            ValueError, match="'auto' or an integer between 1 and n_features=60; got"
        ):
            kind(wrong).fit(points())
    with pytest.raises(
        ValueError, match=r"n_components='auto' is \d+ for n_samples=30 and eps=0.1"
    ):
        kind().fit(points())
    with pytest.raises(ValueError, match=r"X must have 2 columns \(n_components_\); got 3"):
        kind(2).fit(points()).inverse_transform(np.zeros((1, 3)))


def test_options_out_of_range():
    with pytest.raises(ValueError, match="scaling must be 'distance' or 'unit'; got 'none'"):
        GaussianProjection(2, scaling="none").fit(points())
    for wrong in (0, 1.5, "x"):
        with pytest.raises(ValueError, match="density must be 'auto' or a number above 0"):
            SparseProjection(2, density=wrong).fit(points())

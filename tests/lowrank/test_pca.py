"""PCA: its five definitions, the three ways to centre, every option on dense and sparse data."""

import tracemalloc

import numpy as np
import pytest
import sklearn.decomposition
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse
from scipy.stats import multivariate_normal
from sklearn.preprocessing import StandardScaler

from lowrank.blocks import RowBlocks
from lowrank.errors import ArgumentError
from lowrank.pca import PCA, MeanAlignmentWarning
from lowrank.rank import RULES
from lowrank.whitening import Whitening

shapes = st.tuples(st.integers(3, 25), st.integers(2, 12), st.integers(0, 2**32 - 1))


def gaussian(rows=60, columns=8, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((rows, columns)) * np.linspace(3, 0.3, columns) + 2


def counts(rows=80, columns=12, seed=0):
    """Return non-negative sparse data with a mean that the first direction carries."""
    rng = np.random.default_rng(seed)
    return sparse.csr_array(
        rng.poisson(rng.uniform(0.5, 3, columns), (rows, columns)) * 1.0
    )


def drawn(shape):
    rows, columns, seed = shape
    X = (
        np.random.default_rng(seed).standard_normal((rows, columns))
        * 3 ** np.arange(columns)[::-1]
    )
    k = 1 + seed % min(rows, columns)
    return X / 3.0**columns + 1, k


@pytest.mark.covering
@pytest.mark.parametrize(
    ("dtype", "size"), [("f4", 1e20), ("f4", 1e-25), ("f8", 1e160), ("f8", 1e-200)]
)
@pytest.mark.parametrize("settings", [{}, {"whiten": True}, {"standardize": True}])
@pytest.mark.parametrize("kind", ["dense", "sparse", "blocks", "batches"])
def test_every_scale_is_analysed_in_the_same_way(kind, settings, dtype, size):
    size = np.dtype(dtype).type(size)
    X = (counts().toarray() if kind == "sparse" else gaussian()).astype(dtype)
    wrap = {"sparse": sparse.csr_array, "blocks": lambda A: RowBlocks([A[:20], A[20:]])}
    if kind == "batches" and settings.get("standardize"):
        return
    found = []
    for A in (X * size, X):
        pca, samples = PCA(3, random_state=0, **settings), wrap.get(kind, np.asarray)(A)
        if kind == "batches":
            pca.partial_fit(A[:30]).partial_fit(A[30:])
        else:
            pca.fit(samples)
        found.append((pca, samples))
    (scaled, large), (plain, samples) = found
    unit = 1 if settings else size
    near = (
        {"rtol": 1e-2, "atol": 1e-3} if dtype == "f4" else {"rtol": 1e-7, "atol": 1e-9}
    )
    scores = scaled.transform(large)
    np.testing.assert_allclose(scores / unit, plain.transform(samples), **near)
    ratios = scaled.explained_variance_ratio_, plain.explained_variance_ratio_
    np.testing.assert_allclose(*ratios, **near)
    np.testing.assert_allclose(scaled.components_, plain.components_, **near)
    np.testing.assert_allclose(
        scaled.inverse_transform(scores)[0] / size, X[0], rtol=1, atol=2
    )
    density = scaled.score(large) + X.shape[1] * np.log(float(size))
    np.testing.assert_allclose(density, plain.score(samples), **near)
    drawn = (pca.sample(4, random_state=0) for pca in (scaled, plain))
    np.testing.assert_allclose(next(drawn) / size, next(drawn), **near)


def random_basis(columns, k, seed):
    return np.linalg.qr(np.random.default_rng(seed).standard_normal((columns, k)))[0]


def reconstruction(pca, X):
    return pca.inverse_transform(pca.transform(X))


# The five readings of one problem.


@given(shapes)
def test_reading_1_no_other_directions_have_more_variance(shape):
    X, k = drawn(shape)
    pca = PCA(k).fit(X)
    kept = pca.transform(X).var(axis=0, ddof=1)
    np.testing.assert_allclose(kept, pca.explained_variance_, rtol=1e-9, atol=1e-12)
    other = (X @ random_basis(X.shape[1], k, shape[2])).var(axis=0, ddof=1)
    assert other.sum() <= kept.sum() * (1 + 1e-9)


@given(shapes)
def test_reading_2_no_other_directions_have_less_distortion(shape):
    X, k = drawn(shape)
    pca = PCA(k).fit(X)
    centred = X - X.mean(axis=0)
    distortion = np.linalg.norm(X - reconstruction(pca, X)) ** 2
    total = np.linalg.norm(centred) ** 2
    np.testing.assert_allclose(
        pca.distortion_, distortion, rtol=1e-6, atol=1e-12 * total
    )
    kept = (pca.singular_values_**2).sum()
    np.testing.assert_allclose(kept + distortion, total, rtol=1e-9)
    basis = random_basis(X.shape[1], k, shape[2])
    other = np.linalg.norm(centred - centred @ basis @ basis.T) ** 2
    assert distortion <= other + 1e-9 * total


@given(shapes)
def test_reading_3_the_projection_is_the_most_likely_denoised_matrix(shape):
    X, k = drawn(shape)
    pca = PCA(k).fit(X)
    clean = reconstruction(pca, X)
    assert np.linalg.matrix_rank(clean - X.mean(axis=0), tol=1e-9) <= k
    rng = np.random.default_rng(shape[2])
    # The likelihood of Gaussian noise falls with ||X - Z||; try other Z of rank k near the best.
    scores = pca.transform(X)
    nearby = scores + 0.1 * rng.standard_normal(scores.shape)
    other = np.linalg.norm(X - pca.inverse_transform(nearby))
    assert np.linalg.norm(X - clean) <= other


@given(shapes)
def test_reading_4_the_factors_are_the_truncated_svd_up_to_an_invertible_matrix(shape):
    X, k = drawn(shape)
    pca = PCA(k).fit(X)
    A, M = pca.transform(X), pca.components_.T
    U, s, Vt = np.linalg.svd(X - X.mean(axis=0), full_matrices=False)
    np.testing.assert_allclose(A @ M.T, U[:, :k] * s[:k] @ Vt[:k], atol=1e-9)
    G = np.random.default_rng(shape[2]).standard_normal((k, k)) + 3 * np.eye(k)
    np.testing.assert_allclose((A @ G) @ (M @ np.linalg.inv(G).T).T, A @ M.T, atol=1e-6)


@given(shapes, st.sampled_from([0, 1]))
def test_reading_5_the_components_are_the_top_eigenvectors_of_the_covariance(
    shape, ddof
):
    X, k = drawn(shape)
    pca = PCA(k, ddof=ddof).fit(X)
    covariance = np.atleast_2d(np.cov(X.T, ddof=ddof))
    rotated = pca.components_ @ covariance @ pca.components_.T
    np.testing.assert_allclose(rotated, np.diag(pca.explained_variance_), atol=1e-10)
    eigenvalues = np.linalg.eigvalsh(covariance)[::-1][:k]
    np.testing.assert_allclose(pca.explained_variance_, eigenvalues, atol=1e-10)


def test_reading_5_the_tied_linear_autoencoder_is_stationary_at_the_components():
    X = gaussian()
    W = PCA(3).fit(X).components_
    centred = X - X.mean(axis=0)
    residual = centred - centred @ W.T @ W
    gradient = W @ (centred.T @ residual + residual.T @ centred)
    np.testing.assert_allclose(gradient, 0, atol=1e-9)


# Against scikit-learn on dense data.


@pytest.mark.covering
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("shape", "n_components"),
    [
        *((shape, k) for shape in [(50, 8), (8, 20)] for k in [0, 3, 0.8, None]),
        ((700, 600), 3),
    ],
)
def test_equals_scikit_learn(dtype, shape, n_components):
    rng = np.random.default_rng(1)
    low = rng.standard_normal((shape[0], 5)) @ np.diag([40, 30, 20, 10, 5])
    X = low @ rng.standard_normal((5, shape[1])) + rng.standard_normal(shape) + 3
    X = X.astype(dtype)
    ours = PCA(n_components, random_state=0).fit(X)
    theirs = sklearn.decomposition.PCA(n_components, svd_solver="full").fit(X)
    rtol = 1e-4 if dtype == np.float32 else 1e-9
    assert ours.n_components_ == theirs.n_components_
    assert ours.n_samples_ == shape[0]
    scale = rtol * (theirs.explained_variance_[0] if theirs.n_components_ else 1)
    for name in (
        "explained_variance_",
        "explained_variance_ratio_",
        "mean_",
        "noise_variance_",
    ):
        np.testing.assert_allclose(
            getattr(ours, name), getattr(theirs, name), rtol, scale
        )
    for name in ("components_", "explained_variance_", "explained_variance_ratio_",
                 "singular_values_", "mean_"):  # fmt: skip
        assert getattr(ours, name).dtype == dtype
    if n_components == 3:
        signs = np.sign((ours.components_ * theirs.components_).sum(axis=1))
        np.testing.assert_allclose(
            ours.transform(X) * signs,
            theirs.transform(X),
            atol=20 * rtol * abs(X).max(),
        )


@pytest.mark.parametrize("n_components", [0, 1, 4, 7, 8])
def test_density_equals_scikit_learn(n_components):
    X, new = gaussian(), gaussian(seed=5)
    ours = PCA(n_components).fit(X)
    theirs = sklearn.decomposition.PCA(n_components, svd_solver="full").fit(X)
    np.testing.assert_allclose(
        ours.get_covariance(), theirs.get_covariance(), atol=1e-11
    )
    np.testing.assert_allclose(ours.get_precision(), theirs.get_precision(), atol=1e-11)
    np.testing.assert_allclose(
        ours.score_samples(new), theirs.score_samples(new), rtol=1e-10
    )
    np.testing.assert_allclose(ours.score(new), theirs.score(new), rtol=1e-10)


# The density.


@pytest.mark.parametrize("whiten", [False, True])
@pytest.mark.parametrize("standardize", [False, True])
@pytest.mark.parametrize("convert", [np.asarray, sparse.csr_array])
def test_score_is_the_density_of_the_stated_normal_distribution(
    whiten, standardize, convert
):
    X, new = counts().toarray(), counts(seed=3).toarray()
    pca = PCA(4, center="exact", whiten=whiten, standardize=standardize, random_state=0)
    pca.fit(convert(X))
    model = multivariate_normal(X.mean(axis=0), pca.get_covariance())
    np.testing.assert_allclose(
        pca.score_samples(convert(new)), model.logpdf(new), rtol=1e-9
    )
    identity = pca.get_covariance() @ pca.get_precision()
    np.testing.assert_allclose(identity, np.eye(X.shape[1]), atol=1e-10)


@pytest.mark.parametrize("center", ["auto", False])
def test_score_without_exact_centring_is_about_the_column_mean(center):
    X = counts()
    pca = PCA(4, center=center, random_state=0).fit(X)
    model = multivariate_normal(X.mean(axis=0), pca.get_covariance())
    np.testing.assert_allclose(
        pca.score_samples(X), model.logpdf(X.toarray()), rtol=1e-9
    )


def test_samples_follow_the_model():
    pca = PCA(3, standardize=True, random_state=0).fit(gaussian())
    drawn = pca.sample(40_000)
    np.testing.assert_allclose(drawn.mean(axis=0), pca.mean_, atol=0.1)
    np.testing.assert_allclose(np.cov(drawn.T), pca.get_covariance(), atol=0.3)
    assert np.array_equal(pca.sample(3, random_state=7), pca.sample(3, random_state=7))
    assert not np.array_equal(
        pca.sample(3, random_state=7), pca.sample(3, random_state=8)
    )


def test_noise_variance_of_exact_low_rank_is_zero():
    for seed in range(30):
        rng = np.random.default_rng(seed)
        rows, columns = (int(size) for size in rng.integers(20, 200, 2))
        k = min(rows, columns) // 2
        X = rng.standard_normal((rows, k)) @ rng.standard_normal((k, columns)) + 1
        pca = PCA(k).fit(X)
        assert pca.noise_variance_ == pca.distortion_ == 0, (seed, rows, columns)


def test_degenerate_model_has_no_density():
    X = gaussian(rows=5)
    pca = PCA().fit(X)
    assert pca.noise_variance_ == 0
    assert pca.score(X) == -np.inf
    with pytest.raises(
        ValueError, match=r"covariance must have full rank .* use fewer components"
    ):
        pca.get_precision()


# Centring sparse data.


@pytest.mark.covering
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("standardize", [False, True])
@pytest.mark.parametrize("center_samples", [False, True])
@pytest.mark.parametrize("n_components", [3, 12, 0.7])
def test_exact_sparse_equals_dense(dtype, standardize, center_samples, n_components):
    X = counts().astype(dtype)
    options = {
        "standardize": standardize,
        "center_samples": center_samples,
        "center": "exact",
    }
    dense = PCA(n_components, **options).fit(X.toarray())
    pca = PCA(n_components, **options, random_state=0).fit(X)
    rtol = 2e-3 if dtype == np.float32 else 1e-7
    assert pca.n_components_ == dense.n_components_
    assert pca.mean_alignment_ is None
    for name in (
        "explained_variance_",
        "explained_variance_ratio_",
        "mean_",
        "distortion_",
    ):
        expected = getattr(dense, name)
        largest = 1e3 if name == "distortion_" else 1
        np.testing.assert_allclose(
            getattr(pca, name), expected, rtol, atol=rtol * largest
        )
    k = min(3, pca.n_components_)
    new = counts(seed=4).astype(dtype)
    scores = pca.transform(new)[:, :k]
    assert scores.dtype == dtype
    np.testing.assert_allclose(
        abs(scores), abs(dense.transform(new.toarray())[:, :k]), atol=10 * rtol
    )


def test_drop_leaves_out_the_first_direction_of_the_uncentred_matrix():
    X = counts()
    with pytest.warns(MeanAlignmentWarning, match=r"may lose \d+\.\d% of the variance"):
        pca = PCA(4, center="drop", random_state=0).fit(X)
    assert pca.centering_ == "drop"
    _, s, Vt = np.linalg.svd(X.toarray(), full_matrices=False)
    np.testing.assert_allclose(pca.singular_values_, s[1:5], rtol=1e-7)
    np.testing.assert_allclose(abs(pca.components_ @ Vt[1:5].T), np.eye(4), atol=1e-6)
    mean = X.mean(axis=0)
    np.testing.assert_allclose(
        pca.mean_alignment_, abs(mean @ Vt[0]) / np.linalg.norm(mean)
    )
    np.testing.assert_allclose(pca.mean_, (mean @ Vt[0]) * Vt[0], rtol=1e-7)
    np.testing.assert_allclose(pca.transform(X), X @ pca.components_.T, atol=1e-6)


@pytest.mark.covering
@pytest.mark.parametrize("n_components", [0, 1, 5, 11, 12, None, 0.5, 0.999])
@pytest.mark.parametrize("center", ["auto", "exact", "drop", False])
@pytest.mark.parametrize("standardize", [False, True])
@pytest.mark.filterwarnings("ignore::lowrank.pca.MeanAlignmentWarning")
def test_attributes_mean_what_they_say_on_sparse_data(
    n_components, center, standardize
):
    X = counts()
    pca = PCA(n_components, center=center, standardize=standardize, random_state=0)
    scores = pca.fit_transform(X)
    assert np.array_equal(scores, pca.transform(X))
    scale = pca.scale_ if standardize else np.ones(X.shape[1])
    k = pca.n_components_
    np.testing.assert_allclose(
        pca.components_ @ pca.components_.T, np.eye(k), atol=1e-10
    )
    total = (X.toarray() / scale).var(axis=0, ddof=1).sum()
    np.testing.assert_allclose(
        pca.explained_variance_, scores.var(axis=0, ddof=1), rtol=1e-6
    )
    np.testing.assert_allclose(
        pca.explained_variance_ratio_ * total, pca.explained_variance_
    )
    np.testing.assert_allclose(
        pca.singular_values_, np.linalg.norm(scores, axis=0), rtol=1e-6
    )
    error = np.linalg.norm((X.toarray() - pca.inverse_transform(scores)) / scale) ** 2
    np.testing.assert_allclose(pca.distortion_, error, rtol=1e-6, atol=1e-6)
    if k == 12:
        np.testing.assert_allclose(pca.explained_variance_ratio_.sum(), 1)
        np.testing.assert_allclose(error, 0, atol=1e-9)


def test_warning_when_the_dropped_direction_is_not_the_mean():
    X = sparse.csr_array(gaussian() - 2)
    with pytest.warns(
        MeanAlignmentWarning, match=r"mean_alignment_ is 0\.\d+.*center='exact'"
    ):
        pca = PCA(2, center="drop").fit(X)
    assert pca.mean_alignment_ < 0.9


def test_center_false_is_the_truncated_svd_of_scikit_learn():
    X = counts()
    theirs = sklearn.decomposition.TruncatedSVD(
        4, algorithm="arpack", random_state=0
    ).fit(X)
    ours = PCA(4, center=False, ddof=0, random_state=0).fit(X)
    for name in (
        "explained_variance_",
        "explained_variance_ratio_",
        "singular_values_",
    ):
        np.testing.assert_allclose(
            getattr(ours, name), getattr(theirs, name), rtol=1e-7
        )
    assert not ours.mean_.any()
    np.testing.assert_allclose(
        abs(ours.transform(X)), abs(theirs.transform(X)), atol=1e-5
    )


@pytest.mark.parametrize("center", ["auto", "exact", False])
@pytest.mark.parametrize("center_samples", [False, True])
def test_sparse_data_are_never_made_dense(center, center_samples):
    X = sparse.random_array((20_000, 5_000), density=1e-4, rng=0).tocsr()
    options = {"center": center, "center_samples": center_samples, "standardize": True}
    pca = PCA(3, **options, tol=1e-2, random_state=0)
    tracemalloc.start()
    pca.fit_transform(X)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20_000 * 5_000 * 8 / 8


# Choosing the number of components.


@given(shapes, st.floats(0.05, 0.95), st.booleans())
def test_fraction_takes_the_fewest_components_that_suffice(shape, fraction, as_sparse):
    X, _ = drawn(shape)
    data = sparse.csr_array(X) if as_sparse else X
    pca = PCA(fraction, center="exact", random_state=0).fit(data)
    shares = pca.explained_variance_ratio_.cumsum()
    assert shares[-1] >= fraction - 1e-9
    assert pca.n_components_ == 1 or shares[-2] < fraction


@pytest.mark.parametrize("center", ["exact", False])
@pytest.mark.parametrize("standardize", [False, True])
def test_the_elbow_is_the_same_with_sparse_rows_centred(center, standardize):
    rng = np.random.default_rng(0)
    kept = rng.random((120, 2)) < 0.4
    X = 9 * (kept * rng.random(kept.shape)) @ rng.random((2, 30)) + rng.random(
        (120, 30)
    )
    X[~kept.any(axis=1)] = 0
    options = {"center": center, "center_samples": True, "standardize": standardize}
    dense = PCA("elbow", **options, random_state=0).fit(X)
    pca = PCA("elbow", **options, random_state=0).fit(sparse.csr_array(X))
    assert pca.n_components_ == dense.n_components_ > 0
    with pytest.raises(TypeError, match="got centred rows: choose the rule 'elbow'"):
        PCA("parallel", **options).fit(sparse.csr_array(X))


def test_fraction_is_searched_beyond_the_first_guess():
    X = sparse.csr_array(np.random.default_rng(0).standard_normal((120, 100)))
    pca = PCA(0.95, center="exact", random_state=0).fit(X)
    assert pca.n_components_ == PCA(0.95).fit(X.toarray()).n_components_ > 64


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("convert", [np.asarray, sparse.csr_array])
def test_rules_find_the_planted_rank(rule, convert):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((120, 3)) @ rng.standard_normal((3, 20)) * 10
    X += rng.standard_normal(X.shape)
    pca = PCA(rule, center="exact", random_state=0).fit(convert(X))
    assert pca.n_components_ == 3


@pytest.mark.parametrize(
    "n_components", [-1, 9, 0.0, 1.0, 1.5, -0.5, float("nan"), "best", True, [2]]
)
def test_bad_number_of_components(n_components):
    with pytest.raises(
        ValueError, match=r"n_components must be .*between 0 and 8.*; got"
    ):
        PCA(n_components).fit(gaussian())


# Options.


@pytest.mark.parametrize("convert", [np.asarray, sparse.csr_array])
def test_standardize_is_pca_of_the_standardised_columns(convert):
    X = counts().toarray()
    X[:, 3] = 0.1  # constant, and not exactly representable
    pca = PCA(5, standardize=True, ddof=0, center="exact", random_state=0).fit(
        convert(X)
    )
    expected = PCA(5, ddof=0).fit(StandardScaler().fit_transform(X))
    assert pca.scale_[3] == 1.0
    np.testing.assert_allclose(
        pca.explained_variance_, expected.explained_variance_, rtol=1e-7
    )
    np.testing.assert_allclose(
        pca.explained_variance_ratio_ * 11, pca.explained_variance_
    )
    np.testing.assert_allclose(
        reconstruction(
            PCA(12, standardize=True, center="exact").fit(convert(X)), convert(X)
        ),
        X,
        atol=1e-9,
    )


@pytest.mark.parametrize("convert", [np.asarray, sparse.csr_array])
def test_center_samples_subtracts_the_mean_of_each_row(convert):
    X = counts().toarray()
    rows = X - X.mean(axis=1, keepdims=True)
    pca = PCA(5, center_samples=True, center="exact", random_state=0).fit(convert(X))
    expected = PCA(5).fit(rows)
    np.testing.assert_allclose(
        pca.explained_variance_, expected.explained_variance_, rtol=1e-7
    )
    np.testing.assert_allclose(pca.components_.sum(axis=1), 0, atol=1e-7)
    np.testing.assert_allclose(
        abs(pca.transform(convert(X))), abs(expected.transform(rows)), atol=1e-5
    )
    np.testing.assert_allclose(
        pca.score_samples(convert(X)), expected.score_samples(rows), rtol=1e-6
    )


@pytest.mark.parametrize("ddof", [0, 1])
def test_whitened_scores_are_uncorrelated_with_variance_one(ddof):
    X = gaussian()
    pca = PCA(5, whiten=True, ddof=ddof).fit(X)
    np.testing.assert_allclose(
        np.cov(pca.transform(X).T, ddof=ddof), np.eye(5), atol=1e-10
    )
    np.testing.assert_allclose(reconstruction(pca, X), reconstruction(PCA(5).fit(X), X))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("convert", [np.asarray, sparse.csr_array])
def test_whitening_rank_deficient_data_does_not_blow_up(dtype, convert):
    rng = np.random.default_rng(0)
    X = (rng.standard_normal((40, 3)) @ rng.standard_normal((3, 10)) + 1).astype(dtype)
    pca = PCA(whiten=True, center="exact", random_state=0)
    scores = pca.fit_transform(convert(X))
    assert np.array_equal(scores, pca.transform(convert(X)))
    new = pca.transform(rng.standard_normal((50, 10)))
    assert abs(new).max() < 100
    assert not new[:, 3:].any()
    np.testing.assert_allclose(pca.inverse_transform(scores), X, atol=1e-3)


def test_transform_of_new_rows_is_that_of_the_training_rows():
    X = gaussian()
    pca = PCA(3)
    scores = pca.fit_transform(X)
    assert np.array_equal(scores, pca.transform(X))
    np.testing.assert_allclose(pca.transform(X[7:9]), scores[7:9], rtol=1e-12)


def test_a_large_offset_does_not_cost_digits():
    X = gaussian()
    plain, shifted = PCA(3).fit(X), PCA(3).fit(X + 1e6)
    np.testing.assert_allclose(
        shifted.explained_variance_, plain.explained_variance_, rtol=1e-8
    )
    np.testing.assert_allclose(
        shifted.transform(X + 1e6), plain.transform(X), atol=1e-7
    )


@pytest.mark.parametrize("convert", [np.asarray, sparse.csr_array])
def test_same_seed_same_bits(convert):
    X = convert(np.random.default_rng(0).standard_normal((520, 450)) + 1)
    first, second = (PCA(3, random_state=3, tol=1e-3).fit(X) for _ in range(2))
    assert np.array_equal(first.components_, second.components_)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"center": "mean"},
            ValueError,
            "center must be 'auto', 'exact', 'drop', True or False; got 'mean'",
        ),
        ({"center": 1}, ValueError, "center must be .* True or False; got 1"),
        (
            {"method": "eigen"},
            ValueError,
            "method must be one of 'auto', .*; got 'eigen'",
        ),
        ({"ddof": -1}, ValueError, "ddof must be at least 0; got -1"),
        ({"ddof": 0.5}, TypeError, "ddof must be an integer; got 0.5"),
        (
            {"ddof": 60},
            ValueError,
            "more than 60 samples, as ddof=60; got n_samples=60",
        ),
    ],
)
def test_bad_parameters(options, error, message):
    with pytest.raises(error, match=message):
        PCA(2, **options).fit(gaussian())


@pytest.mark.parametrize("convert", [np.asarray, sparse.csr_array])
def test_nan_raises(convert):
    X = gaussian()
    X[3, 2] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        PCA(2).fit(convert(X))


@pytest.mark.parametrize("fit", [PCA(2).fit, PCA(2).partial_fit, Whitening().fit])
def test_masked_entries_are_not_numbers(fit):
    X = np.ma.masked_greater(gaussian(), 5)
    count = np.ma.count_masked(X)
    message = f"X must have no masked entries; got {count}: fill them first"
    with pytest.raises(ArgumentError, match=message):
        fit(X)
    with pytest.raises(ArgumentError, match=message.replace("X", "blocks")):
        fit(RowBlocks([X]))
    with pytest.raises(ArgumentError, match="X must have no masked entries"):
        PCA().fit(gaussian()).inverse_transform(X)


def test_subnormal_numbers_are_whitened_and_standardized():
    X = gaussian() * 2.0**-1060
    scores = PCA(3, whiten=True).fit_transform(X)
    np.testing.assert_allclose(scores.std(axis=0, ddof=1), 1, rtol=1e-3)
    Y = gaussian()
    Y[:, 3] = X[:, 3]
    scores = PCA(4, standardize=True).fit_transform(Y)
    without = PCA(4, standardize=True).fit_transform(np.delete(Y, 3, axis=1))
    np.testing.assert_allclose(scores, without, atol=1e-9)


def test_score_with_both_corrections_is_the_same_on_sparse_data():
    pca = PCA(4, center_samples=True, standardize=True).fit(counts().toarray())
    new = counts(seed=2)
    np.testing.assert_allclose(
        pca.score_samples(new), pca.score_samples(new.toarray()), rtol=1e-9
    )


def batches_of(X, size=80):
    return [X[start : start + size] for start in range(0, X.shape[0], size)]


def streamed(batches, *args, **settings):
    pca = PCA(*args, **settings)
    for batch in batches:
        pca.partial_fit(batch)
    return pca


def decaying(shape=(500, 30), base=0.7, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal(shape) @ np.diag(base ** np.arange(shape[1])) + 3.0


class TestPartialFit:
    """Batches give what all samples at once give."""

    FITTED = (
        "components_",
        "explained_variance_",
        "explained_variance_ratio_",
        "singular_values_",
        "mean_",
        "noise_variance_",
        "distortion_",
    )

    @pytest.mark.parametrize("center", ["auto", "exact", False])
    @pytest.mark.parametrize("whiten", [False, True])
    def test_all_components_are_exact(self, center, whiten):
        X = decaying((300, 12), 0.9)
        expected = PCA(center=center, whiten=whiten).fit(X)
        pca = streamed(batches_of(X, 37), center=center, whiten=whiten)
        for name in self.FITTED:
            np.testing.assert_allclose(
                getattr(pca, name), getattr(expected, name), atol=1e-9
            )
        np.testing.assert_allclose(pca.transform(X), expected.transform(X), atol=1e-8)
        np.testing.assert_allclose(pca.score(X), expected.score(X))
        assert pca.n_samples_ == 300

    def test_few_components_are_at_least_as_good_as_scikit_learn(self):
        X = decaying((2000, 100), 0.97)
        expected = PCA(5, random_state=0).fit(X)
        pca = streamed(batches_of(X, 50), 5)
        other = sklearn.decomposition.IncrementalPCA(5, batch_size=50).fit(X)
        angles = [
            np.linalg.svd(expected.components_ @ found.components_.T)[1].min()
            for found in (pca, other)
        ]
        assert angles[0] > 0.99
        assert angles[0] >= angles[1]
        np.testing.assert_allclose(pca.mean_, X.mean(axis=0))
        total = pca.explained_variance_[0] / pca.explained_variance_ratio_[0]
        np.testing.assert_allclose(total, X.var(axis=0, ddof=1).sum())

    def test_a_fit_is_continued(self):
        X = decaying()
        pca = PCA(random_state=0).fit(X[:300]).partial_fit(X[300:])
        np.testing.assert_allclose(pca.components_, PCA().fit(X).components_, atol=1e-9)
        assert streamed(batches_of(X), 3).fit(X[:100]).n_samples_ == 100

    def test_sparse_batches_and_float32(self):
        X = sparse.random_array((300, 20), density=0.2, rng=0, format="csr")
        pca = streamed(batches_of(X), center="exact")
        np.testing.assert_allclose(
            pca.components_, PCA().fit(X.toarray()).components_, atol=1e-8
        )
        single = streamed(batches_of(X.astype(np.float32)))
        assert single.components_.dtype == np.float32
        np.testing.assert_allclose(
            single.explained_variance_, pca.explained_variance_, rtol=1e-4
        )

    def test_forgetting_follows_what_changes(self):
        rng = np.random.default_rng(0)
        early, late = (np.outer(rng.standard_normal(400), axis) for axis in np.eye(2))
        pca = PCA(1)
        for batch in batches_of(np.vstack([early, late]), 40):
            pca.partial_fit(batch, forgetting=0.5)
        assert abs(pca.components_[0, 1]) > 0.999
        weights = 0.5 ** np.repeat(np.arange(20)[::-1], 40)
        np.testing.assert_allclose(pca.n_samples_, weights.sum())
        expected = np.average(np.vstack([early, late]), axis=0, weights=weights)
        np.testing.assert_allclose(pca.mean_, expected, atol=1e-12)

    @pytest.mark.parametrize(
        "settings",
        [{"n_components": 0.9}, {"n_components": "elbow"}, {"standardize": True}],
    )
    def test_what_cannot_be_followed(self, settings):
        assert not hasattr(PCA(**settings), "partial_fit")

    def test_wrong_batches(self):
        X = decaying()
        pca = PCA(2).partial_fit(X)
        with pytest.raises(ValueError, match="30 features"):
            pca.partial_fit(X[:, :5])
        with pytest.raises(ArgumentError, match="forgetting"):
            pca.partial_fit(X, forgetting=0)
        with pytest.raises(TypeError, match="forgetting must be a number; got 'x'"):
            pca.partial_fit(X, forgetting="x")
        dropped = PCA(2, center="drop", random_state=0)
        with pytest.warns(MeanAlignmentWarning):
            dropped.fit(sparse.csr_array(X))
        with pytest.raises(ArgumentError, match="dropped a direction"):
            dropped.partial_fit(X)


def test_wrong_numbers_of_samples():
    pca = PCA(2).fit(gaussian())
    assert pca.sample(0).shape == (0, 8)
    with pytest.raises(ArgumentError, match=r"n_samples must be at least 0; got -1\."):
        pca.sample(-1)
    with pytest.raises(TypeError, match=r"n_samples must be an integer; got 1\.5\."):
        pca.sample(1.5)

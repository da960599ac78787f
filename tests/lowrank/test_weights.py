"""Weights of rows in PCA and truncated_svd: integers are repetitions."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from lowrank import PCA, LowRank, truncated_svd

CONTAINERS = {"dense": np.asarray, "csr": sp.csr_array, "csc": sp.csc_array}
ATTRIBUTES = [
    "components_",
    "explained_variance_",
    "explained_variance_ratio_",
    "singular_values_",
    "mean_",
    "noise_variance_",
    "distortion_",
    "n_samples_",
]


def data(n=60, m=9, dtype=np.float64, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.poisson(2, (n, m)) * np.linspace(1, 3, m) + np.arange(m)
    return (X * (rng.random((n, m)) < 0.5)).astype(dtype)


def repetitions(n, seed=1):
    return np.random.default_rng(seed).integers(0, 4, n)


@pytest.mark.covering
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("form", CONTAINERS)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"center": "exact", "ddof": 0},
        {"center": False},
        {"standardize": True, "center": True},
        {"standardize": True, "center": False},
        {"whiten": True, "center": "exact"},
        {"n_components": 0.8, "center": "exact"},
        {"n_components": None, "center": "exact"},
        {"method": "dense", "center": "exact"},
    ],
    ids=str,
)
@pytest.mark.parametrize("shape", [(60, 9), (12, 30)])
def test_integer_weights_are_repeated_rows(form, dtype, options, shape):
    X, weights = data(*shape, dtype=dtype), repetitions(shape[0])
    options = {"n_components": 3} | options
    if options["n_components"] is None and shape[0] < shape[1] and dtype == np.float32:
        pytest.skip("directions without variance are only fixed in float64")
    weighted = PCA(**options).fit(CONTAINERS[form](X), sample_weight=weights)
    repeated = PCA(**{"center": "exact"} | options).fit(np.repeat(X, weights, axis=0))
    near = (
        {"rtol": 2e-3, "atol": 2e-4}
        if dtype == np.float32
        else {"rtol": 1e-7, "atol": 1e-9}
    )
    for name in ATTRIBUTES:
        ours, theirs = getattr(weighted, name), getattr(repeated, name)
        np.testing.assert_allclose(ours, theirs, err_msg=name, **near)
    assert weighted.components_.dtype == dtype
    np.testing.assert_allclose(weighted.transform(X), repeated.transform(X), **near)
    scores = PCA(**options).fit_transform(CONTAINERS[form](X), sample_weight=weights)
    np.testing.assert_allclose(scores, weighted.transform(X), **near)
    if not options.get("whiten"):
        np.testing.assert_allclose(
            weighted.score_samples(X), repeated.score_samples(X), **near
        )


@pytest.mark.parametrize("form", CONTAINERS)
def test_fractional_weights_equal_the_weighted_covariance(form):
    X, weights = data(), np.random.default_rng(2).exponential(size=60)
    pca = PCA(4).fit(CONTAINERS[form](X), sample_weight=weights)
    covariance = (
        np.cov(X.T, aweights=weights, ddof=0) * weights.sum() / (weights.sum() - 1)
    )
    values, vectors = np.linalg.eigh(covariance)
    np.testing.assert_allclose(pca.explained_variance_, values[:-5:-1], rtol=1e-8)
    cosines = np.abs(np.sum(pca.components_ * vectors.T[:-5:-1], axis=1))
    np.testing.assert_allclose(cosines, 1, atol=1e-8)
    np.testing.assert_allclose(pca.mean_, np.average(X, axis=0, weights=weights))


def test_rows_of_extreme_sizes_are_weighted_alike():
    X, weights = data(), repetitions(60)
    plain = PCA(3, center="exact").fit(X, sample_weight=weights)
    for size in (1e-200, 1e150):
        scaled = PCA(3, center="exact").fit(X * size, sample_weight=weights)
        np.testing.assert_allclose(scaled.components_, plain.components_, atol=1e-9)
        np.testing.assert_allclose(scaled.mean_ / size, plain.mean_)
        np.testing.assert_allclose(
            scaled.singular_values_ / size, plain.singular_values_
        )


@pytest.mark.parametrize("form", CONTAINERS)
@pytest.mark.parametrize("center", [None, True, "array"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_row_weights_of_the_svd_are_repeated_rows(form, center, dtype):
    X, weights = data(dtype=dtype), repetitions(60)
    center = np.linspace(0, 2, 9) if center == "array" else center
    weighted = truncated_svd(CONTAINERS[form](X), 4, center=center, row_weights=weights)
    repeated = truncated_svd(np.repeat(X, weights, axis=0), 4, center=center)
    near = (
        {"rtol": 1e-4, "atol": 1e-4}
        if dtype == np.float32
        else {"rtol": 1e-9, "atol": 1e-9}
    )
    assert weighted.s.dtype == dtype
    np.testing.assert_allclose(weighted.s, repeated.s, **near)
    np.testing.assert_allclose(weighted.Vt, repeated.Vt, **near)
    np.testing.assert_allclose(weighted.U.T @ weighted.U, np.eye(4), atol=1e-5)
    row = {True: np.average(X, axis=0, weights=weights), None: 0.0}
    row = center if isinstance(center, np.ndarray) else row[center]
    best = np.sqrt(weights)[:, None] * (X - row)
    np.testing.assert_allclose(
        weighted.U.T @ best, weighted.s[:, None] * weighted.Vt, atol=1e-3
    )


BAD = [
    (np.ones(3), r"must have one number for each row, shape \(60,\); got \(3,\)"),
    (np.where(np.arange(60) == 7, -1.0, 1.0), "not negative; got -1.0 at row 7"),
    (np.where(np.arange(60) == 7, np.nan, 1.0), "must be finite .*; got nan at row 7"),
    (np.zeros(60), "at least one positive number; all weights are zero"),
]


@pytest.mark.parametrize(("weights", "message"), BAD)
def test_bad_weights_are_named_with_their_place(weights, message):
    with pytest.raises(ValueError, match=f"sample_weight .*{message}"):
        PCA(2).fit(data(), sample_weight=weights)
    with pytest.raises(ValueError, match=f"row_weights .*{message}"):
        truncated_svd(data(), 2, row_weights=weights)


@pytest.mark.parametrize(
    ("options", "weights", "message"),
    [
        ({"center": "drop"}, np.ones(60), "center must be 'auto', 'exact' or False"),
        (
            {},
            np.full(60, 1 / 60),
            "sample_weight must add up to more than ddof=1; got 1",
        ),
        (
            {"n_components": "elbow"},
            np.ones(60),
            "n_components must be an integer, a fraction",
        ),
    ],
)
def test_options_that_weights_do_not_support_raise(options, weights, message):
    with pytest.raises(ValueError, match=message):
        PCA(**{"n_components": 2} | options).fit(data(), sample_weight=weights)


def test_operators_have_no_row_weights():
    operator = sp.linalg.aslinearoperator(data())
    with pytest.raises(
        TypeError, match="its entries are needed; got a LinearOperator, with row"
    ):
        truncated_svd(operator, 2, row_weights=np.ones(60))


def test_masked_weights_centres_and_factors_are_errors():
    X = data()
    mask = np.ma.masked_array(np.ones(60), np.arange(60) == 3)
    row = np.ma.masked_array(np.ones(9), np.arange(9) == 3)
    for compute in (
        lambda: PCA(2).fit(X, sample_weight=mask),
        lambda: truncated_svd(X, 2, row_weights=mask),
        lambda: truncated_svd(X, 2, center=row),
        lambda: LowRank(mask[:, None], np.ones((9, 1))),
    ):
        with pytest.raises(ValueError, match="must have no masked entries; got 1"):
            compute()

"""What all results have in common: their matrix, arrays, and use as a matrix."""

import numpy as np
import pytest
from scipy import sparse

from lowrank import (
    PCA,
    LowRank,
    approximate,
    choose_rank,
    complete,
    cur,
    robust_pca,
    select_columns,
    singular_values,
    soft_impute,
    truncated_svd,
)

X = np.random.default_rng(0).standard_normal((40, 15)) + 1


@pytest.mark.parametrize(
    "result",
    [
        truncated_svd(X, 3, random_state=0),
        approximate(X, 3),
        complete(X, 2, regularization=0.1),
        soft_impute(X, 10.0),
        robust_pca(X[:8, :6] * 0 + np.outer(np.arange(8.0), np.ones(6))),
        cur(X, 3),
        select_columns(X, 3),
    ],
    ids=lambda result: type(result).__name__,
)
def test_every_result_has_a_matrix_and_an_array(result):
    assert isinstance(result.matrix, LowRank)
    np.testing.assert_allclose(result.toarray(), result.matrix.toarray())
    np.testing.assert_array_equal(np.asarray(result.matrix), result.matrix.toarray())


def test_an_svd_is_indexed_as_that_of_numpy():
    svd = truncated_svd(X, 3)
    U, s, Vt = svd
    assert len(svd) == 3
    for position, array in enumerate((U, s, Vt)):
        assert svd[position] is array
    assert svd[-1] is svd.Vh is Vt
    assert svd[:2] == (U, s)
    with pytest.raises(IndexError):
        svd[3]


@pytest.mark.parametrize("convert", [np.asarray, sparse.csr_array])
def test_singular_values_alone(convert):
    expected = np.linalg.svd(X, compute_uv=False)
    np.testing.assert_allclose(singular_values(convert(X)), expected)
    np.testing.assert_allclose(singular_values(convert(X), 4), expected[:4])
    centred = np.linalg.svd(X - X.mean(axis=0), compute_uv=False)
    np.testing.assert_allclose(singular_values(convert(X), 2, center=True), centred[:2])
    assert singular_values(convert(X.astype(np.float32)), 2).dtype == np.float32


def test_a_low_rank_matrix_is_an_array_for_numpy():
    B = approximate(X, 15)
    assert np.allclose(B, X)
    dense = B.toarray()
    np.testing.assert_allclose(X - B, X - dense, atol=1e-12)
    np.testing.assert_allclose(B - X, dense - X, atol=1e-12)
    np.testing.assert_allclose(X + B, X + dense)
    np.testing.assert_allclose(B + sparse.csr_array(X), X + dense)
    np.testing.assert_allclose(sparse.csr_array(X) - B, X - dense, atol=1e-12)
    assert np.asarray(B, np.float32).dtype == np.float32
    with pytest.raises(TypeError, match="unsupported operand"):
        B - "x"


@pytest.mark.parametrize("center", [None, True])
@pytest.mark.parametrize("method", ["auto", "lanczos", "gram", "dense"])
def test_a_low_rank_matrix_is_decomposed_by_its_products(method, center):
    rng = np.random.default_rng(1)
    B = LowRank(rng.standard_normal((300, 6)) + 1, rng.standard_normal((200, 6)))
    expected = truncated_svd(B.toarray(), 4, center=center)
    result = truncated_svd(B, 4, method=method, center=center, random_state=0)
    np.testing.assert_allclose(result.s, expected.s)
    np.testing.assert_allclose(result.frobenius_norm, expected.frobenius_norm)
    np.testing.assert_allclose(
        truncated_svd(B * 1e250, 2).s, truncated_svd(B, 2).s * 1e250
    )


def test_a_low_rank_matrix_is_never_made_dense_by_the_solver():
    rng = np.random.default_rng(1)
    B = LowRank(rng.standard_normal((60_000, 3)), rng.standard_normal((50_000, 3)))
    result = truncated_svd(B, 3, random_state=0)
    np.testing.assert_allclose(result.s, np.linalg.svd(
        np.linalg.qr(B.left)[1] @ np.linalg.qr(B.right)[1].T
    )[1])  # fmt: skip


def test_estimators_take_a_low_rank_matrix():
    B = approximate(X, 4)
    pca = PCA(2).fit(B)
    np.testing.assert_allclose(
        pca.explained_variance_, PCA(2).fit(B.toarray()).explained_variance_
    )
    assert choose_rank(B, "energy") == choose_rank(B.toarray(), "energy")


def test_functions_of_numpy_take_a_low_rank_matrix_for_an_array():
    X = np.random.default_rng(0).standard_normal((9, 6))
    matrix = approximate(X, 2)
    dense = matrix.toarray()
    for function in (np.abs, np.sum, np.mean, np.max, np.linalg.norm, np.isfinite):
        np.testing.assert_array_equal(function(matrix), function(dense))
    np.testing.assert_array_equal(np.subtract(X, matrix), X - dense)

"""The solver for dense arrays with one small side."""

import tracemalloc

import numpy as np
import pytest
from scipy import sparse
from scipy.sparse.linalg import aslinearoperator

from lowrank import PCA, ConvergenceWarning, LowRankError, truncated_svd
from lowrank.solvers import SOLVERS


def graded(shape, power, dtype=np.float64):
    rng = np.random.default_rng(1)
    matrix = rng.standard_normal(shape)
    return (matrix * np.arange(1.0, shape[1] + 1) ** -power).astype(dtype)


@pytest.mark.parametrize("k", [1, 7, 50, 120])
@pytest.mark.parametrize("tall", [True, False])
def test_agrees_with_lapack(k, tall):
    matrix = graded((400, 120), 1.0)
    matrix = matrix if tall else matrix.T
    result = truncated_svd(matrix, k, method="gram")
    expected = truncated_svd(matrix, k, method="dense")
    np.testing.assert_allclose(result.s, expected.s, rtol=1e-12)
    np.testing.assert_allclose(
        result.U @ result.Vt, expected.U @ expected.Vt, atol=1e-9
    )


@pytest.mark.parametrize(("shape", "k"), [((1000, 400), 20), ((400, 1000), 20)])
def test_auto_takes_it_for_a_dense_array_of_some_size(shape, k):
    result = truncated_svd(graded(shape, 0.5), k)
    assert (result.method, result.passes) == ("gram", 4)
    assert result.residuals.max() <= 1e-12 * result.s[0]


def test_what_squaring_loses_is_found_by_another_solver():
    matrix = graded((1000, 400), 4.0)
    message = (
        r"largest residual is \d\.\de.\d\d relative to s\[89\], above .* method='gram'"
    )
    with pytest.warns(ConvergenceWarning, match=message):
        truncated_svd(matrix, 90, method="gram", tol=1e-9)
    result = truncated_svd(matrix, 90, tol=1e-9, random_state=0)
    assert result.method == "qr"
    expected = np.linalg.svd(matrix, compute_uv=False)[:90]
    np.testing.assert_allclose(result.s, expected, rtol=1e-7)


def test_a_deficient_matrix_has_orthonormal_vectors_all_the_same():
    rng = np.random.default_rng(0)
    matrix = rng.standard_normal((900, 3)) @ rng.standard_normal((3, 600))
    result = truncated_svd(matrix, 10, method="gram")
    assert result.s[2] > 1
    assert (result.s[3:] < 1e-6).all()
    np.testing.assert_allclose(result.U.T @ result.U, np.eye(10), atol=1e-10)
    np.testing.assert_allclose(result.Vt @ result.Vt.T, np.eye(10), atol=1e-10)


@pytest.mark.covering(1)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("power", [0.0, 1.0])
def test_few_vectors_of_a_large_gram_matrix(dtype, power):
    """Lanczos finds them where the spectrum decays, LAPACK where it is flat."""
    matrix = graded((1050, 1000), power, dtype)
    expected = np.linalg.svd(matrix.astype(np.float64), compute_uv=False)[:20]
    eps = np.finfo(dtype).eps
    for each in (matrix, np.ascontiguousarray(matrix.T)):
        result = truncated_svd(each, 20, method="gram")
        np.testing.assert_allclose(result.s, expected, rtol=50 * eps)
        assert result.residuals.max() <= 100 * eps * result.s[0]


def test_no_copy_of_a_multiple_value_is_missed():
    rng = np.random.default_rng(0)
    left, right = (np.linalg.qr(rng.standard_normal((n, 200)))[0] for n in (1000, 800))
    s = np.repeat([3.0, 2.0, 1.0], [40, 60, 100])
    result = truncated_svd((left * s) @ right.T, 70, method="gram")
    np.testing.assert_allclose(result.s, s[:70], rtol=1e-12)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("shape", [(3000, 150), (150, 3000)])
@pytest.mark.parametrize("mean", [1e4, 0.1])
def test_centred_in_either_order_without_a_centred_copy(
    order, shape, mean, monkeypatch
):
    monkeypatch.setattr("lowrank.operators._CENTRED_BLOCK", 100_000)  # several blocks
    rng = np.random.default_rng(0)
    matrix = (mean + rng.standard_normal(shape)).astype(np.float32)
    exact = matrix.astype(np.float64) - matrix.mean(axis=0, dtype=np.float64)
    result = truncated_svd(
        np.asarray(matrix, order=order), 5, method="gram", center=True
    )
    expected = np.linalg.svd(exact, compute_uv=False)[:5]
    np.testing.assert_allclose(result.s, expected, rtol=1e-5)
    assert result.residuals.max() <= 1e-5 * result.s[0]


def test_centring_takes_little_memory(monkeypatch):
    monkeypatch.setattr("lowrank.operators._CENTRED_BLOCK", 200_000)
    matrix = graded((4_000, 500), 1.0)
    tracemalloc.start()
    truncated_svd(matrix, 5, center=True, random_state=0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 0.75 * matrix.nbytes


@pytest.mark.parametrize("transpose", [False, True])
def test_auto_takes_it_for_many_triplets_of_a_sparse_matrix_with_a_small_side(
    transpose,
):
    matrix = sparse.random_array((400, 5000), density=0.01, rng=0, format="csr")
    matrix = matrix.T if transpose else matrix
    tracemalloc.start()
    result = truncated_svd(matrix, 90, random_state=0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert result.method == "gram"
    expected = np.linalg.svd(matrix.toarray(), compute_uv=False)[:90]
    np.testing.assert_allclose(result.s, expected, rtol=1e-11)
    assert result.residuals.max() <= 1e-11 * result.s[0]
    assert peak < 3 * (400 * 400 + 90 * 5400) * 8 + 256 * 5400 * 8


def test_sparse_centred_and_an_operator_agree_with_dense():
    matrix = sparse.random_array((300, 150), density=0.05, rng=0, format="csr")
    dense = matrix.toarray() - matrix.mean(axis=0)
    for given in (matrix, aslinearoperator(matrix)):
        result = truncated_svd(given, 10, method="gram", center=True)
        expected = np.linalg.svd(dense, compute_uv=False)[:10]
        np.testing.assert_allclose(result.s, expected, rtol=1e-10)


@pytest.mark.parametrize("seed", [7, 10])
def test_there_are_k_triplets_where_all_singular_values_coincide(seed):
    """LAPACK's `evr` finds fewer: for k = 9 in float64, and for k = 20 in float32 at least."""
    matrix = np.linalg.qr(np.random.default_rng(seed).standard_normal((2000, 300)))[0]
    for dtype, k in [(np.float64, 9), (np.float32, 20)]:
        result = truncated_svd(matrix.astype(dtype), k, random_state=0)
        assert (result.method, result.k, result.U.shape[1]) == ("gram", k, k)
        np.testing.assert_allclose(result.s, 1, rtol=1e-5)


def test_pca_of_white_data_has_all_its_components():
    matrix = np.linalg.qr(np.random.default_rng(9).standard_normal((2000, 300)))[0]
    pca = PCA(9, random_state=0).fit(matrix.astype(np.float32))
    assert pca.components_.shape == (9, 300)


def test_a_solver_that_returns_fewer_triplets_is_an_error(monkeypatch):
    solve = SOLVERS["dense"]
    monkeypatch.setitem(
        SOLVERS, "dense", lambda A, k, **options: solve(A, k - 1, **options)
    )
    with pytest.raises(
        LowRankError, match="method 'dense' must return 3 triplets; got 2"
    ):
        truncated_svd(np.eye(4), 3)

"""The solver for dense arrays with one small side."""

import numpy as np
import pytest

from lowrank import ConvergenceWarning, truncated_svd


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
    np.testing.assert_allclose(result.U @ result.Vt, expected.U @ expected.Vt, atol=1e-9)


@pytest.mark.parametrize(("shape", "k"), [((1000, 400), 20), ((400, 1000), 20)])
def test_auto_takes_it_for_a_dense_array_of_some_size(shape, k):
    result = truncated_svd(graded(shape, 0.5), k)
    assert (result.method, result.passes) == ("gram", 3)
    assert result.residuals.max() <= 1e-12 * result.s[0]


def test_what_squaring_loses_is_found_by_another_solver():
    matrix = graded((1000, 400), 4.0)
    with pytest.warns(ConvergenceWarning, match="method='gram'"):
        truncated_svd(matrix, 90, method="gram", tol=1e-9)
    result = truncated_svd(matrix, 90, tol=1e-9, random_state=0)
    assert result.method == "randomized"
    assert result.residuals.max() <= 1e-9 * result.s[0]


def test_a_deficient_matrix_has_orthonormal_vectors_all_the_same():
    rng = np.random.default_rng(0)
    matrix = rng.standard_normal((900, 3)) @ rng.standard_normal((3, 600))
    result = truncated_svd(matrix, 10, method="gram")
    assert result.s[2] > 1
    assert (result.s[3:] < 1e-6).all()
    np.testing.assert_allclose(result.U.T @ result.U, np.eye(10), atol=1e-10)
    np.testing.assert_allclose(result.Vt @ result.Vt.T, np.eye(10), atol=1e-10)

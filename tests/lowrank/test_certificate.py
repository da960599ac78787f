"""The certificate of an SVD, against the error it speaks of."""

import math

import numpy as np
import pytest
from scipy import sparse
from scipy.sparse.linalg import aslinearoperator

from lowrank import truncated_svd
from lowrank.arguments import as_operator
from lowrank.svd import certify

CONTAINERS = [np.asarray, sparse.csr_array, aslinearoperator]


def decaying(n=80, m=60, power=1.0, dtype=np.float64):
    rng = np.random.default_rng(3)
    left = np.linalg.qr(rng.standard_normal((n, m)))[0]
    right = np.linalg.qr(rng.standard_normal((m, m)))[0]
    return ((left * np.arange(1.0, m + 1) ** -power) @ right).astype(dtype)


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("k", [0, 1, 10, 59])
def test_bound_is_above_the_spectral_error_and_near_it(container, dtype, k):
    matrix = decaying(dtype=dtype)
    result = truncated_svd(container(matrix), k, random_state=0)
    error = np.linalg.norm(matrix - (result.U * result.s) @ result.Vt, 2)
    assert error <= result.spectral_error_bound <= 60 * error


@pytest.mark.parametrize("container", CONTAINERS)
def test_bound_includes_rounding_to_float32(container):
    left = np.random.default_rng(0).standard_normal((90, 4))
    matrix = (left @ left[:50].T).astype(np.float32)
    result = truncated_svd(container(matrix), 40)
    product = (result.U.astype(np.float64) * result.s) @ result.Vt
    error = np.linalg.norm(matrix - product, 2)
    assert error <= result.spectral_error_bound <= 60 * error


def test_bound_holds_for_triplets_that_are_not_singular():
    matrix, rng = decaying(), np.random.default_rng(0)
    U, V = (np.linalg.qr(rng.standard_normal((size, 3)))[0] for size in matrix.shape)
    s = np.array([3.0, 2.0, 1.0])
    found = certify(as_operator(matrix), U, s, V.T, rng)
    assert np.linalg.norm(matrix - (U * s) @ V.T, 2) <= found.spectral_error_bound
    left = np.linalg.norm(matrix @ V - U * s, axis=0)
    right = np.linalg.norm(matrix.T @ U - V * s, axis=0)
    np.testing.assert_allclose(found.residuals, [left, right], rtol=1e-12)


def test_bound_of_a_centred_matrix_is_of_what_was_decomposed():
    matrix = decaying() + 5.0
    result = truncated_svd(sparse.csr_array(matrix), 4, center=True, random_state=0)
    rest = matrix - matrix.mean(axis=0) - (result.U * result.s) @ result.Vt
    assert np.linalg.norm(rest, 2) <= result.spectral_error_bound < 3.0


@pytest.mark.parametrize("scale", [1e-200, 1e-88, 1.0, 1e88, 1e200])
def test_bound_scales_with_the_matrix(scale):
    plain = truncated_svd(decaying(), 5, random_state=0).spectral_error_bound
    scaled = truncated_svd(decaying() * scale, 5, random_state=0).spectral_error_bound
    assert scaled == pytest.approx(plain * scale, rel=1e-6)


@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (1, 1), (7, 5)])
def test_nothing_left_out_is_bounded_by_zero(shape):
    matrix = np.arange(1.0, 1 + math.prod(shape)).reshape(shape)
    assert truncated_svd(matrix, min(shape)).spectral_error_bound == 0.0


def test_time_is_told():
    assert truncated_svd(decaying(), 2).seconds > 0

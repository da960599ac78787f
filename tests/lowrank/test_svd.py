"""Accuracy of `truncated_svd` against LAPACK and against spectra known by formula."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse
from scipy.sparse.linalg import aslinearoperator

from lowrank import truncated_svd
from lowrank.solvers import lanczos

METHODS = ["auto", "dense", "gram", "lanczos", "randomized", "arpack"]
# ARPACK starts from a single vector and may miss copies of equal values.
BLOCK_METHODS = ["auto", "dense", "gram", "lanczos", "randomized"]
TOL = {np.float32: 1e-4, np.float64: 1e-8}


def orthonormal(rng, rows, columns):
    return np.linalg.qr(rng.standard_normal((rows, columns)))[0]


def with_spectrum(spectrum, rows, columns, seed=0):
    rng = np.random.default_rng(seed)
    left = orthonormal(rng, rows, len(spectrum))
    right = orthonormal(rng, columns, len(spectrum))
    return (left * spectrum) @ right.T


def check_svd(result, matrix, rtol):
    """Check everything that holds for any result, against LAPACK in float64."""
    k = result.k
    U, s, Vt = result
    expected = np.linalg.svd(np.asarray(matrix, np.float64), compute_uv=False)
    scale = expected[0] if expected.size and expected[0] > 0 else 1.0
    eps = 100 * np.finfo(s.dtype).eps
    assert U.shape == (matrix.shape[0], k)
    assert Vt.shape == (k, matrix.shape[1])
    np.testing.assert_allclose(s, expected[:k], atol=rtol * scale, rtol=0)
    assert (np.diff(s) <= 0).all()
    assert (s >= 0).all()
    np.testing.assert_allclose(U.T @ U, np.eye(k), atol=eps)
    np.testing.assert_allclose(Vt @ Vt.T, np.eye(k), atol=eps)
    wide = np.asarray(matrix, np.float64)
    left = np.linalg.norm(wide @ Vt.T - U * s, axis=0)
    right = np.linalg.norm(wide.T @ U - Vt.T * s, axis=0)
    assert np.stack([left, right]).max(initial=0) <= rtol * scale
    np.testing.assert_allclose(result.residuals, [left, right], atol=eps * scale)
    np.testing.assert_allclose(
        result.frobenius_norm, np.linalg.norm(expected), rtol=1e-6
    )
    tail = np.linalg.norm(expected[k:])
    noise = np.sqrt(eps) * np.linalg.norm(expected)
    np.testing.assert_allclose(result.error, tail, atol=noise, rtol=1e-6)


SPECTRA = {
    "random": lambda r, rng: np.sort(rng.random(r))[::-1],
    "decaying": lambda r, rng: 0.7 ** np.arange(r),
    "steep": lambda r, rng: 10.0 ** -np.arange(r),
    "clustered": lambda r, rng: np.repeat(
        [3.0, 2.0, 1.0], [r // 3, r // 3, r - 2 * (r // 3)]
    ),
    "nearly equal": lambda r, rng: 1 + 1e-7 * np.arange(r)[::-1],
    "equal": lambda r, rng: np.ones(r),
    "deficient": lambda r, rng: np.where(np.arange(r) < max(1, r // 4), 2.0, 0.0),
    "zero": lambda r, rng: np.zeros(r),
}


@st.composite
def problems(draw):
    rows, columns = draw(st.integers(1, 60)), draw(st.integers(1, 60))
    seed = draw(st.integers(0, 2**16))
    kind = draw(st.sampled_from(sorted(SPECTRA)))
    smaller = min(rows, columns)
    spectrum = SPECTRA[kind](smaller, np.random.default_rng(seed))
    size = 10.0 ** draw(st.integers(-3, 3))
    k = draw(st.integers(0, smaller))
    return size * with_spectrum(spectrum, rows, columns, seed), k, seed


@pytest.mark.parametrize("method", ["auto", "dense", "randomized"])  # lanczos squares
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@given(problem=problems())
def test_agrees_with_lapack(method, dtype, problem):
    matrix, k, seed = problem
    matrix = matrix.astype(dtype)
    result = truncated_svd(matrix, k, method=method, random_state=seed)
    assert result.s.dtype == result.U.dtype == result.Vt.dtype == dtype
    check_svd(result, matrix, TOL[dtype])


@pytest.mark.parametrize("kind", ["random", "decaying", "steep"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(70, 30), (30, 70)])
def test_arpack_agrees_with_lapack(kind, dtype, shape):
    spectrum = SPECTRA[kind](30, np.random.default_rng(1))
    matrix = with_spectrum(spectrum, *shape).astype(dtype)
    result = truncated_svd(matrix, 5, method="arpack", random_state=0)
    assert result.method == "arpack"
    check_svd(result, matrix, TOL[dtype])


@pytest.mark.covering(1)
@pytest.mark.parametrize("method", ["lanczos", "randomized", "arpack"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(500, 300), (300, 500)])
def test_restarts_reach_the_tolerance(method, dtype, shape):
    spectrum = 1 / np.sqrt(np.arange(1, 301))
    matrix = with_spectrum(spectrum, *shape).astype(dtype)
    result = truncated_svd(matrix, 20, method=method, random_state=0)
    check_svd(result, matrix, TOL[dtype])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    "spectrum",
    [1 / np.sqrt(np.arange(1, 301)), 0.8 ** np.arange(300), np.repeat([2.0, 1.0], 150)],
    ids=["slow", "fast", "equal"],
)
def test_tolerance_zero_is_all_that_rounding_allows(spectrum, dtype):
    matrix = with_spectrum(spectrum, 500, 300).astype(dtype)
    result = truncated_svd(sparse.csr_array(matrix), 20, tol=0, random_state=0)
    assert result.method != "dense"
    check_svd(result, matrix, 500 * np.finfo(dtype).eps)


@pytest.mark.parametrize("method", METHODS)
def test_spectrum_of_the_bidiagonal_difference_matrix(method):
    n = 300
    difference = sparse.diags_array(
        [np.ones(n), -np.ones(n - 1)], offsets=[0, 1], shape=(n, n)
    )
    expected = 2 * np.cos(np.arange(1, n + 1) * np.pi / (2 * n + 1))
    result = truncated_svd(difference, 6, method=method, random_state=0)
    np.testing.assert_allclose(result.s, expected[:6], rtol=1e-9)
    assert result.frobenius_norm == pytest.approx(np.sqrt(2 * n - 1), rel=1e-14)


@pytest.mark.parametrize("method", METHODS)
def test_spectrum_of_the_second_difference_matrix(method):
    n = 300
    laplacian = sparse.diags_array(
        [np.full(n, 2.0), -np.ones(n - 1), -np.ones(n - 1)], offsets=[0, 1, -1]
    )
    expected = 4 * np.sin(np.arange(n, 0, -1) * np.pi / (2 * n + 2)) ** 2
    result = truncated_svd(laplacian.tocsc(), 4, method=method, random_state=0)
    np.testing.assert_allclose(result.s, expected[:4], rtol=1e-9)
    grid = np.arange(1, n + 1)
    first = np.abs(np.sin(grid * n * np.pi / (n + 1)))
    np.testing.assert_allclose(
        np.abs(result.Vt[0]), first / np.linalg.norm(first), atol=1e-5
    )


@pytest.mark.covering(1)
@pytest.mark.parametrize("method", ["lanczos", "randomized"])
@pytest.mark.parametrize("multiplicity", [10, 40, 100])
def test_finds_every_copy_of_a_multiple_singular_value(multiplicity, method):
    n, rng = 400, np.random.default_rng(0)
    values = np.concatenate(
        [np.full(multiplicity, 5.0), 4.9 * rng.random(n - multiplicity)]
    )
    place = rng.permutation(500)[:n], rng.permutation(n)
    matrix = sparse.csr_array((values, place), shape=(500, n))
    result = truncated_svd(matrix, 60, method=method, random_state=0)
    np.testing.assert_allclose(result.s, np.sort(values)[::-1][:60], rtol=1e-8)


def test_error_is_the_distance_to_the_truncated_product():
    matrix = np.random.default_rng(0).standard_normal((40, 25))
    U, s, Vt = result = truncated_svd(matrix, 7)
    assert result.error == pytest.approx(
        np.linalg.norm(matrix - (U * s) @ Vt), rel=1e-12
    )
    energy = np.linalg.norm((U * s) @ Vt) ** 2 / np.linalg.norm(matrix) ** 2
    assert result.explained_energy == pytest.approx(energy, rel=1e-12)


@pytest.mark.parametrize("method", METHODS)
def test_transpose_swaps_the_vectors(method):
    matrix = with_spectrum(0.8 ** np.arange(30), 80, 30)
    tall = truncated_svd(matrix, 4, method=method, random_state=0)
    wide = truncated_svd(matrix.T, 4, method=method, random_state=0)
    np.testing.assert_allclose(tall.s, wide.s, rtol=1e-10)
    np.testing.assert_allclose(np.abs(tall.U), np.abs(wide.Vt.T), atol=1e-7)


@given(problem=problems(), exponent=st.integers(-6, 6))
def test_scaling_and_permutation(problem, exponent):
    matrix, k, seed = problem
    rng = np.random.default_rng(seed)
    moved = matrix[rng.permutation(matrix.shape[0])][
        :, rng.permutation(matrix.shape[1])
    ]
    plain = truncated_svd(matrix, k, random_state=0)
    changed = truncated_svd(moved * 2.0**exponent, k, random_state=0)
    scale = plain.s.max(initial=0.0)
    np.testing.assert_allclose(
        changed.s, plain.s * 2.0**exponent, atol=1e-7 * scale * 2**exponent
    )


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("size", [1e-290, 1e-160, 1e-85, 1e80, 1e160, 1e290])
def test_extreme_scales_in_float64(method, size):
    matrix = with_spectrum([3.0, 2.0, 1.0, 0.5], 50, 40)
    result = truncated_svd(matrix * size, 3, method=method, random_state=0)
    np.testing.assert_allclose(result.s / size, [3.0, 2.0, 1.0], rtol=1e-12)
    assert result.frobenius_norm / size == pytest.approx(np.sqrt(14.25), rel=1e-12)
    assert result.error / size == pytest.approx(0.5, rel=1e-7)
    assert result.residuals.max() <= 1e-8 * result.s[0]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("size", [1e-40, 1e-30, 1e30])
def test_extreme_scales_in_float32(method, size):
    matrix = (with_spectrum([3.0, 2.0, 1.0], 50, 40) * size).astype(np.float32)
    result = truncated_svd(sparse.csr_array(matrix), 2, method=method, random_state=0)
    np.testing.assert_allclose(result.s / size, [3.0, 2.0], rtol=1e-4)


def test_float32_accumulates_norms_in_float64():
    matrix = np.full((2000, 500), 0.1, np.float32)
    result = truncated_svd(sparse.csr_array(matrix), 1, random_state=0)
    assert result.frobenius_norm == pytest.approx(
        float(np.float32(0.1)) * np.sqrt(1e6), rel=1e-12
    )


@pytest.mark.parametrize("method", ["dense", "lanczos", "randomized"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("power", [-0.9, -0.3, 0.3, 0.9])
def test_extreme_scales_of_a_linear_operator(method, dtype, power):
    size = float(np.finfo(dtype).max) ** power
    matrix = (with_spectrum([3.0, 2.0, 1.0, 0.5], 50, 40) * size).astype(dtype)
    result = truncated_svd(aslinearoperator(matrix), 3, method=method, random_state=0)
    np.testing.assert_allclose(result.s / size, [3.0, 2.0, 1.0], rtol=10 * TOL[dtype])
    assert 0.5 <= 1.001 * result.spectral_error_bound / size <= 20
    assert result.residuals.max() <= TOL[dtype] * result.s[0]


@pytest.mark.parametrize("decades", [0.5, 2, 5])
def test_very_sparse_matrices_reach_the_tolerance_whatever_their_decay(decades):
    A = sparse.random_array((600, 400), density=0.01, rng=0)
    A = sparse.csr_array(A @ sparse.diags_array(10.0 ** -np.linspace(0, decades, 400)))
    check_svd(truncated_svd(A, 20, method="lanczos", random_state=0), A.toarray(), 1e-8)


@pytest.mark.parametrize(("dtype", "tol"), [("float32", 1e-4), ("float64", 1e-8)])
def test_lanczos_vectors_are_orthonormal_to_a_hundredth_of_the_tolerance(dtype, tol):
    values = (1 / np.arange(1.0, 1001)[:, None]).astype(dtype)
    rng, given = np.random.default_rng(0), (1000, values.dtype, 40, tol)
    V, converged = lanczos.leading_eigenvectors(
        values.__mul__, *given, rng, 200, block=8
    )
    assert converged
    assert np.abs(V.T @ V - np.eye(40)).max() < max(
        tol / 100, 100 * np.finfo(dtype).eps
    )


@pytest.mark.parametrize("shape", [(3000, 700), (700, 3000)])
def test_many_restarts_keep_the_basis_of_lanczos_orthonormal(shape):
    """Eigenvalues that hardly decay: each restart multiplied the loss of orthogonality by seven."""
    A = np.random.default_rng(0).normal(size=shape)
    svd = truncated_svd(A, 5, method="lanczos", random_state=0)
    gram = A.T @ A if shape[0] > shape[1] else A @ A.T
    expected = np.sqrt(np.linalg.eigvalsh(gram)[::-1][:5])
    np.testing.assert_allclose(svd.s, expected, rtol=1e-10)
    assert svd.passes < 400

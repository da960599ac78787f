"""Low-rank matrices in factored form, thresholds and denoising."""

import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse
from scipy.sparse.linalg import aslinearoperator

from lowrank import RowBlocks, truncated_svd
from lowrank.approximation import (
    approximate,
    denoise,
    hard_threshold,
    optimal_threshold,
    soft_threshold,
)
from lowrank.low_rank import LowRank
from lowrank.rank import gavish_donoho

FORMATS = ["csr", "csc", "coo", "bsr", "dok", "lil", "dia"]


def random_low_rank(seed, n=7, m=5, k=3, dtype=np.float64):
    rng = np.random.default_rng(seed)
    left, right = rng.standard_normal((n, k)), rng.standard_normal((m, k))
    return LowRank(left.astype(dtype), right.astype(dtype))


def planted(seed=0, shape=(120, 80), rank=3, size=2.0):
    rng = np.random.default_rng(seed)
    signal = (
        size
        * rng.standard_normal((shape[0], rank))
        @ rng.standard_normal((rank, shape[1]))
    )
    return signal, signal + rng.standard_normal(shape)


@given(st.integers(0, 10**6), st.integers(0, 6), st.integers(1, 8), st.integers(1, 8))
def test_algebra_equals_that_of_dense_matrices(seed, k, n, m):
    B, C = random_low_rank(seed, n, m, k), random_low_rank(seed + 1, n, m, 2)
    dense, other = B.toarray(), C.toarray()
    X = np.random.default_rng(seed).standard_normal((m, 4))
    for ours, expected in [
        ((B + C).toarray(), dense + other),
        ((B - C).toarray(), dense - other),
        ((-2.5 * B).toarray(), -2.5 * dense),
        ((B / 4).toarray(), dense / 4),
        (sparse.csr_array(X.T) @ B.T, X.T @ dense.T),
        (B.T.toarray(), dense.T),
        ((B @ C.T).toarray(), dense @ other.T),
        (B @ X, dense @ X),
        (B @ X[:, 0], dense @ X[:, 0]),
        (X.T @ B.T, X.T @ dense.T),
        (X[:, 0] @ B.T, X[:, 0] @ dense.T),
        (B @ sparse.csr_array(X), dense @ X),
        (B.frobenius_norm(), np.linalg.norm(dense)),
        (B.distance_to(other), np.linalg.norm(dense - other)),
        (B.compress().toarray(), dense),
    ]:
        np.testing.assert_allclose(ours, expected, rtol=1e-10, atol=1e-10)
    assert (B + C).rank == k + 2
    assert (B @ C.T).rank == min(k, 2)
    assert B.compress().rank == np.linalg.matrix_rank(dense)


@pytest.mark.parametrize(
    "key",
    [
        np.s_[2, 3],
        np.s_[-1, -2],
        np.s_[2],
        np.s_[2, :],
        np.s_[:, 3],
        np.s_[1:4],
        np.s_[1:4, ::2],
        np.s_[[0, 3], :],
        np.s_[:, [4, 0, 0]],
        np.s_[[0, 3], [1, 2]],
        np.s_[[[0], [3]], [1, 2]],
        np.s_[2, [1, 2]],
        np.s_[[True, False, False, True, False, False, True], 1:3],
        np.s_[[]],
    ],
)
def test_indexing_is_that_of_numpy(key):
    B = random_low_rank(0)
    if key == []:
        key = np.array([], dtype=int)
    np.testing.assert_allclose(B[key], B.toarray()[key], rtol=1e-12, atol=1e-14)
    assert np.shape(B[key]) == B.toarray()[key].shape


def test_rows_columns_and_entries():
    B = random_low_rank(0)
    np.testing.assert_allclose(B.entries([6, 0], [0, 4]), B.toarray()[[6, 0], [0, 4]])


def test_entries_in_pieces(monkeypatch):
    monkeypatch.setattr("lowrank.low_rank._CHUNK", 6)
    B = random_low_rank(0)
    rows, columns = np.divmod(np.arange(35), 5)
    np.testing.assert_allclose(B.entries(rows, columns), B.toarray().ravel())
    A = np.random.default_rng(1).standard_normal((7, 5))
    assert B.distance_to(A) == pytest.approx(np.linalg.norm(A - B.toarray()), rel=1e-13)


def test_size_and_dtype():
    B = random_low_rank(0, 100, 50, 4, np.float32)
    assert (B.shape, B.rank, B.dtype) == ((100, 50), 4, np.float32)
    assert B.storage_saved == pytest.approx(1 - 600 / 5000)
    for other in (2 * B, B + B, B.T, B @ B.T, B.compress()):
        assert other.dtype == np.float32
    assert B[3, 4].dtype == np.float32
    assert LowRank([[1]], [[2]]).dtype == np.float64
    assert repr(B) == "LowRank(shape=(100, 50), rank=4, dtype=float32)"


@pytest.mark.parametrize("tol", [0.05, 0.3, 0.7])
def test_compress_keeps_its_tolerance_and_no_more_rank_than_needed(tol):
    B = random_low_rank(3, 30, 20, 8)
    small = B.compress(tol)
    s = np.linalg.svd(B.toarray(), compute_uv=False)
    assert small.distance_to(B.toarray()) <= tol * np.linalg.norm(s)
    assert np.linalg.norm(s[small.rank - 1 :]) > tol * np.linalg.norm(s)


@given(st.integers(0, 10**6), st.integers(0, 5))
def test_no_matrix_of_the_rank_is_closer(seed, k):
    A = np.random.default_rng(seed).standard_normal((9, 6))
    best = approximate(A, k)
    s = np.linalg.svd(A, compute_uv=False)
    assert best.distance_to(A) == pytest.approx(np.linalg.norm(s[k:]), rel=1e-10)
    assert best.error == pytest.approx(best.distance_to(A), rel=1e-6)
    assert np.linalg.norm(A - best.toarray(), 2) == pytest.approx(s[k], rel=1e-10)
    rng = np.random.default_rng(seed + 1)
    near = LowRank(
        best.left + 1e-2 * rng.standard_normal((9, k)),
        best.right + 1e-2 * rng.standard_normal((6, k)),
    )
    assert near.distance_to(A) >= best.distance_to(A) * (1 - 1e-12)
    assert random_low_rank(seed + 2, 9, 6, k).distance_to(A) >= best.distance_to(A) * (
        1 - 1e-12
    )


@pytest.mark.parametrize("size", [1e200, 1e-200, 1e-300])
@pytest.mark.parametrize("container", [np.asarray, sparse.csr_array])
def test_norms_of_every_scale(container, size):
    B = random_low_rank(0)
    A = np.where(random_low_rank(1).toarray() > 0, 1.0, 0.0)
    scaled = LowRank(B.left * size**0.5, B.right * size**0.5)
    assert scaled.frobenius_norm() / size == pytest.approx(
        B.frobenius_norm(), rel=1e-12
    )
    near = pytest.approx(B.distance_to(A), rel=1e-12)
    assert scaled.distance_to(container(A * size)) / size == near


@pytest.mark.parametrize("container", [np.asarray, sparse.csr_array])
def test_distance_to_blocks_of_rows(container):
    A = random_low_rank(1, 7, 5).toarray().round()
    B = random_low_rank(0, 7, 5)
    blocks = RowBlocks([container(A[:3]), container(A[3:])])
    assert B.distance_to(blocks) == pytest.approx(B.distance_to(A), rel=1e-12)
    with pytest.raises(ValueError, match=r"A must have shape \(5, 7\); got \(7, 5\)"):
        B.T.distance_to(blocks)


@pytest.mark.parametrize("form", FORMATS)
def test_distance_to_sparse(form):
    A = sparse.random_array((50, 30), density=0.2, rng=0)
    B = approximate(A, 4, random_state=0)
    expected = np.linalg.norm(A.toarray() - B.toarray())
    assert B.distance_to(A.asformat(form)) == pytest.approx(expected, rel=1e-12)


def test_distance_to_sparse_with_duplicates():
    A = sparse.csr_array(
        (np.ones(4), np.array([0, 0, 1, 1]), np.array([0, 3, 4])), shape=(2, 2)
    )
    B = random_low_rank(0, 2, 2, 1)
    assert B.distance_to(A) == pytest.approx(np.linalg.norm(A.toarray() - B.toarray()))


def test_distance_to_a_large_sparse_matrix_stays_sparse():
    n = 200_000
    rng = np.random.default_rng(0)
    A = sparse.random_array((n, n), density=5e-6, rng=rng, format="csr")
    B = LowRank(rng.standard_normal((n, 2)), rng.standard_normal((n, 2)))
    tracemalloc.start()
    distance = B.distance_to(A)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    coo = A.tocoo()
    inner = coo.data @ B.entries(*coo.coords)
    squared = B.frobenius_norm() ** 2 - 2 * inner + coo.data @ coo.data
    assert distance == pytest.approx(math.sqrt(squared), rel=1e-10)
    assert peak < 100 * 2**20


def test_thresholds_by_formula():
    A = np.random.default_rng(0).standard_normal((50, 40))
    U, s, Vt = np.linalg.svd(A, full_matrices=False)
    tau = (s[20] + s[21]) / 2
    hard, soft = hard_threshold(A, tau), soft_threshold(A, tau)
    np.testing.assert_allclose(
        hard.toarray(), (U * np.where(s > tau, s, 0)) @ Vt, atol=1e-10
    )
    np.testing.assert_allclose(
        soft.toarray(), (U * np.maximum(s - tau, 0)) @ Vt, atol=1e-10
    )
    assert hard.rank == soft.rank == 21
    svd = truncated_svd(A, 22)
    np.testing.assert_allclose(
        hard_threshold(svd, tau).toarray(), hard.toarray(), atol=1e-10
    )
    message = r"tau must be at least .*, the smallest of the 5 singular values of this SVD; got"
    with pytest.raises(ValueError, match=message):
        soft_threshold(truncated_svd(A, 5), tau)


def test_soft_threshold_minimises_the_nuclear_norm_objective():
    A = np.random.default_rng(0).standard_normal((8, 6))
    best = soft_threshold(A, 1.0).toarray()

    def objective(B):
        return np.linalg.norm(A - B) ** 2 / 2 + np.linalg.norm(B, "nuc")

    rng = np.random.default_rng(1)
    for scale in (1e-3, 1e-1, 1.0):
        assert objective(best + scale * rng.standard_normal(A.shape)) > objective(best)


@pytest.mark.parametrize("shape", [(100, 100), (120, 80), (80, 120), (400, 20)])
@pytest.mark.parametrize("noise", [None, 1.0])
def test_optimal_threshold_is_that_of_the_rank_rule(shape, noise):
    _, X = planted(shape=shape)
    s = np.linalg.svd(X, compute_uv=False)
    tau = optimal_threshold(X, noise)
    assert np.sum(s > tau) == gavish_donoho(s, shape, noise) == 3
    assert tau == pytest.approx(optimal_threshold(X, 1.0), rel=0.1)
    assert optimal_threshold(sparse.csr_array(X), noise) == pytest.approx(tau, rel=1e-8)


@pytest.mark.parametrize("shape", [(0, 4), (4, 0)])
def test_optimal_threshold_of_nothing(shape):
    assert optimal_threshold(np.zeros(shape)) == 0
    assert denoise(np.zeros(shape)).toarray().shape == shape


def test_optimal_threshold_of_a_square_matrix_is_4_over_sqrt_3():
    assert optimal_threshold(np.zeros((49, 49)), 2.0) == pytest.approx(
        4 / 3**0.5 * 7 * 2
    )
    operator = aslinearoperator(np.eye(4))
    assert optimal_threshold(operator, 1.0) == pytest.approx(8 / 3**0.5)


@pytest.mark.parametrize("method", ["hard", "shrink", "soft"])
@pytest.mark.parametrize("noise", [None, 1.0])
def test_denoise_comes_closer_to_the_signal(method, noise):
    signal, X = planted(size=0.6)
    B = denoise(X, noise, method=method, random_state=0)
    assert B.distance_to(signal) < 0.5 * np.linalg.norm(X - signal)
    assert (
        denoise(sparse.csr_array(X), noise, method=method, random_state=0).rank
        == B.rank
    )


def test_shrinkage_is_better_than_the_hard_threshold():
    signal, X = planted(size=0.4)
    errors = [
        denoise(X, 1.0, method=method).distance_to(signal)
        for method in ("shrink", "hard")
    ]
    assert errors[0] < errors[1]


def test_shrinkage_by_formula():
    shape, (larger, beta) = (200, 50), (200, 0.25)
    X = np.zeros(shape)
    X[np.arange(3), np.arange(3)] = np.array([4.0, 2.0, 1.4]) * larger**0.5
    y = np.array([4.0, 2.0])
    expected = np.sqrt((y**2 - beta - 1) ** 2 - 4 * beta) / y * larger**0.5
    B = denoise(X, 1.0, method="shrink")
    assert B.rank == 2
    np.testing.assert_allclose(B.toarray()[[0, 1], [0, 1]], expected, rtol=1e-12)


def test_denoise_of_a_matrix_whose_noise_is_only_rounding():
    signal = np.full((16, 11), 1e6)
    np.testing.assert_allclose(denoise(signal).toarray(), signal, rtol=1e-12)
    far = denoise(np.diag([1.0, 1e-200]), 1e-200)
    assert float(far[0, 0]) == pytest.approx(1.0)


def test_denoise_without_noise_returns_the_matrix():
    signal, _ = planted()
    for method in ("hard", "shrink", "soft"):
        np.testing.assert_allclose(
            denoise(signal, 0.0, method=method).toarray(), signal, atol=1e-9
        )


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda B: LowRank([1.0], [[1.0]]),
            ValueError,
            r"left must be two-dimensional; got shape",
        ),
        (
            lambda B: LowRank([[1j]], [[1.0]]),
            TypeError,
            r"left must hold real numbers; got dtype",
        ),
        (
            lambda B: LowRank([[1.0]], [[np.nan]]),
            ValueError,
            r"right must be finite; got NaN",
        ),
        (
            lambda B: LowRank([[1.0]], [[1.0, 2.0]]),
            ValueError,
            r"columns; got 1 and 2\.",
        ),
        (
            lambda B: B[7, 0],
            IndexError,
            r"row index must be an integer between -7 and 6, .*got 7\.",
        ),
        (
            lambda B: B[0, -6],
            IndexError,
            r"column index must be .* -5 and 4, .* got -6\.",
        ),
        (
            lambda B: B[..., 0],
            IndexError,
            r"row index must be an integer, a slice or an array",
        ),
        (lambda B: B[0, 1, 2], IndexError, r"row index must be .*got \(0, 1, 2\)\."),
        (
            lambda B: B.entries([0], [0, 1]),
            ValueError,
            r"same length; got shapes \(1,\) and \(2,\)",
        ),
        (
            lambda B: B @ np.ones(7),
            ValueError,
            r"first dimension 5; got shape \(7,\)\.",
        ),
        (lambda B: np.ones(5) @ B, ValueError, r"dimension 7; got shape \(5,\)\."),
        (lambda B: B @ B, ValueError, r"first dimension 5; got shape \(7, 5\)\."),
        (
            lambda B: B + B.T,
            ValueError,
            r"shapes must be equal; got \(7, 5\) and \(5, 7\)\.",
        ),
        (lambda B: B + "1", TypeError, r"unsupported operand"),
        (
            lambda B: B * np.ones(5),
            TypeError,
            r"factor must be a number; got ndarray: use @\.",
        ),
        (lambda B: B * B, TypeError, r"factor must be a number; got LowRank: use @\."),
        (
            lambda B: B / np.ones(5),
            TypeError,
            r"factor must be a number; got ndarray: use @\.",
        ),
        (lambda B: B * 1j, TypeError, r"factor must be a real number; got 1j\."),
        (
            lambda B: B.compress(-1.0),
            ValueError,
            r"tol must be finite and not negative; got -1\.0",
        ),
        (
            lambda B: B.distance_to(np.ones((5, 7))),
            ValueError,
            r"A must have shape \(7, 5\); got",
        ),
        (
            lambda B: B.distance_to(np.full((7, 5), np.nan)),
            ValueError,
            r"A must be finite; got NaN",
        ),
        (
            lambda B: B.distance_to(aslinearoperator(np.eye(3))),
            TypeError,
            r"a LinearOperator\.",
        ),
        (
            lambda B: hard_threshold(np.eye(3), np.nan),
            ValueError,
            r"tau must be finite and not neg",
        ),
        (
            lambda B: optimal_threshold(np.eye(3), -1.0),
            ValueError,
            r"noise must be finite and not",
        ),
        (
            lambda B: optimal_threshold(aslinearoperator(np.eye(3))),
            TypeError,
            r"LinearOperator",
        ),
        (
            lambda B: denoise(np.eye(3), method="x"),
            ValueError,
            r"method must be one of 'hard', 'so",
        ),
    ],
)
def test_errors(call, error, message):
    with pytest.raises(error, match=message):
        call(random_low_rank(0))


@pytest.mark.parametrize("number", [1, -2.5, np.float32(3), np.int64(4)])
def test_a_number_is_added_to_each_entry(number):
    rng = np.random.default_rng(0)
    B = LowRank(rng.standard_normal((6, 2)), rng.standard_normal((4, 2)))
    sums = (B + number, number + B, B - number, number - B)
    dense = B.toarray()
    expected = (dense + number, number + dense, dense - number, number - dense)
    for matrix, array in zip(sums, expected, strict=True):
        assert matrix.rank == 3
        np.testing.assert_allclose(matrix.toarray(), array, atol=1e-14)

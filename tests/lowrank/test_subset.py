"""Columns, rows and CUR: searches against brute force, exact errors, dense = sparse."""

import math

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse
from scipy.sparse.linalg import aslinearoperator

from lowrank import CUR, cur, leverage_scores, select_columns
from lowrank.blocks import RowBlocks

METHODS = ["qr", "leverage"]
FORMATS = [sparse.csr_array, sparse.csc_matrix, sparse.coo_array, sparse.bsr_array]


def normal(rows=12, columns=9, seed=0):
    return np.random.default_rng(seed).standard_normal((rows, columns))


def decaying(rows, columns, digits, seed):
    """A matrix whose singular values fall by a constant factor, to 10**-digits of the first."""
    U, s, Vt = np.linalg.svd(normal(rows, columns, seed), full_matrices=False)
    return (U * 10.0 ** (-digits * np.arange(s.size) / s.size)) @ Vt


def deficient(rows=12, columns=9, rank=4, seed=0):
    A = normal(rows, rank, seed) @ normal(rank, columns, seed + 1)
    A[:, 5] = A[:, 2]
    A[:, 7] = 0
    return A


def thin(rows=40, columns=25, seed=0):
    return normal(rows, columns, seed) * (
        np.random.default_rng(seed).random((rows, columns)) < 0.3
    )


def residual_of(A, columns):
    C = A[:, list(columns)]
    if not C.any():
        return A
    U, s, _ = np.linalg.svd(C / np.maximum(np.linalg.norm(C, axis=0), 1e-300))
    U = U[:, : np.count_nonzero(s > 1e-14 * s[0])]
    once = A - U @ (U.T @ A)
    return once - U @ (U.T @ once)


def error_of(A, columns):
    return np.linalg.norm(residual_of(A, columns))


def cases(draw):
    rows, columns, seed = (
        draw(st.integers(1, 9)),
        draw(st.integers(1, 9)),
        draw(st.integers(0, 99)),
    )
    A = decaying(rows, columns, draw(st.sampled_from([0, 2, 8])), seed)
    if draw(st.booleans()):
        A = A * 10.0 ** np.random.default_rng(seed).uniform(-4, 4, columns)
    if draw(st.booleans()):
        A[:, draw(st.integers(0, columns - 1))] = A[:, 0]
    return A


matrices = st.composite(cases)()


# the searches


@given(matrices, st.sampled_from([np.asarray, sparse.csr_array]))
def test_qr_takes_the_column_furthest_from_the_others(A, make):
    columns = select_columns(make(A), A.shape[1], method="qr", random_state=0).columns
    rounding = 1e-11 * np.linalg.norm(A)
    for count, column in enumerate(columns):
        lengths = np.linalg.norm(residual_of(A, columns[:count]), axis=0)
        assert lengths[column] >= lengths.max() * (1 - 1e-6) - rounding


def test_qr_pivots_equal_lapack():
    A = normal(30, 20)
    pivots = scipy.linalg.qr(A, mode="r", pivoting=True)[1]
    assert np.array_equal(select_columns(A, 20, method="qr").columns, pivots)


def test_blocks_do_not_change_the_choice(monkeypatch):
    for A in (decaying(40, 12, 10, 0), deficient(), thin()):
        whole = select_columns(sparse.csr_array(A), 5)
        with monkeypatch.context() as patch:
            patch.setattr("lowrank.subset._CHUNK", 60)
            pieces = select_columns(sparse.csr_array(A), 5)
        assert np.array_equal(pieces.columns, whole.columns)


def test_permuted_columns_give_the_permuted_choice():
    A, order = normal(), np.random.default_rng(1).permutation(9)
    chosen = order[select_columns(A[:, order], 4).columns]
    assert set(chosen) == set(select_columns(A, 4).columns)


def test_of_equal_columns_the_first_are_kept():
    for make in (np.asarray, sparse.csr_array):
        choice = select_columns(make(np.eye(6)), 2)
        assert np.array_equal(choice.columns, [0, 1])


# the result


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("make", [np.asarray, sparse.csr_array])
@pytest.mark.parametrize("k", [0, 1, 4, 9])
def test_error_and_optimum(method, make, k):
    A = thin(12, 9)
    found = select_columns(make(A), k, method=method, random_state=0)
    assert found.columns.dtype == np.int64
    assert len(set(found.columns)) == k == found.columns.size
    tail = np.linalg.norm(np.linalg.svd(A)[1][k:])
    np.testing.assert_allclose(found.error, error_of(A, found.columns), atol=1e-12)
    np.testing.assert_allclose(found.optimum, tail, atol=1e-12)
    np.testing.assert_allclose(found.ratio, found.error / found.optimum if k < 9 else 1)
    assert found.ratio >= 1


@pytest.mark.parametrize("method", METHODS)
def test_entries_that_are_there_twice_are_summed(method):
    A = sparse.csr_array(thin())
    halves = np.repeat(A.data / 2, 2), np.repeat(A.indices, 2), 2 * A.indptr
    twice = sparse.csr_array(halves, shape=A.shape)
    found, expected = (
        select_columns(each, 6, method=method, random_state=0) for each in (twice, A)
    )
    assert np.array_equal(found.columns, expected.columns)
    assert found.error == pytest.approx(expected.error, rel=1e-12)
    assert twice.nnz == 2 * A.nnz  # what was given is left as it was


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("make", FORMATS)
def test_sparse_equals_dense(method, make):
    for A, k in ((thin(), 6), (deficient(), 3), (thin(10, 25), 4)):
        dense = select_columns(A, k, method=method, random_state=0)
        other = select_columns(make(A), k, method=method, random_state=0)
        assert np.array_equal(other.columns, dense.columns)
        np.testing.assert_allclose(
            [other.error, other.optimum], [dense.error, dense.optimum]
        )


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("make", [np.asarray, sparse.csr_array])
def test_rank_deficient(method, make):
    found = select_columns(make(deficient()), 4, method=method, random_state=0)
    assert found.error == found.optimum == 0
    assert found.ratio == 1
    for k in (5, 9):
        found = select_columns(make(deficient()), k, method=method, random_state=0)
        assert len(set(found.columns)) == k
        assert found.error == 0
    assert select_columns(make(deficient()), 3, method=method, random_state=0).ratio > 1


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("make", [np.asarray, sparse.csr_array])
@pytest.mark.parametrize("shape", [(5, 3), (3, 5), (0, 3), (3, 0)])
def test_zero_and_empty_matrices(method, make, shape):
    A = make(np.zeros(shape))
    for k in range(shape[1] + 1):
        found = select_columns(A, k, method=method, random_state=0)
        assert sorted(found.columns) == sorted(set(found.columns))
        assert (found.columns.size, found.error, found.ratio) == (k, 0, 1)
    for k in range(min(shape) + 1):
        assert cur(A, k, method=method, random_state=0).toarray().shape == shape


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("make", [np.asarray, sparse.csr_array])
def test_more_columns_than_rows(method, make):
    A = thin(6, 20)
    found = select_columns(make(A), 15, method=method, random_state=0)
    assert len(set(found.columns)) == 15
    assert found.optimum == 0
    np.testing.assert_allclose(found.error, error_of(A, found.columns), atol=1e-12)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("factor", [2.0**-500, 2.0**500])
@pytest.mark.parametrize("make", [np.asarray, sparse.csr_array])
def test_very_large_and_very_small_entries(method, factor, make):
    plain = select_columns(make(thin()), 5, method=method, random_state=0)
    found = select_columns(make(thin() * factor), 5, method=method, random_state=0)
    assert np.array_equal(found.columns, plain.columns)
    np.testing.assert_allclose(found.error, plain.error * factor)
    approximation = cur(make(thin() * factor), 5, method=method, random_state=0)
    same = cur(make(thin()), 5, method=method, random_state=0)
    np.testing.assert_allclose(approximation.toarray(), same.toarray() * factor)
    np.testing.assert_allclose(approximation.error, same.error * factor)


@pytest.mark.parametrize(
    "A", [np.arange(12).reshape(3, 4), [[1, 2], [3, 5]], normal()[::2, ::-1]]
)
def test_integers_lists_and_strides(A):
    before = np.array(A)
    found = select_columns(A, 2)
    np.testing.assert_allclose(
        found.error, error_of(before.astype(float), found.columns), atol=1e-9
    )
    assert np.array_equal(A, before)


def test_a_big_sparse_matrix_stays_sparse():
    planted = np.array([100.0, 90.0, 80.0, 70.0, 60.0])
    A = sparse.random_array((30_000, 20_000), density=2e-5, rng=0, format="csr")
    A = A + sparse.coo_array((planted, (np.arange(5), np.arange(5))), A.shape)
    for method in ("qr", "leverage"):  # a dense copy would take 5 GB
        found = select_columns(A, 4, method=method, random_state=0)
        assert 1 <= found.ratio < 1.5
        if method != "leverage":
            assert np.array_equal(found.columns, np.arange(4))
    product = cur(A, 4, random_state=0)
    assert product.C.nnz + product.R.nnz < 1000
    assert 1 <= product.ratio < 1.1


# leverage


@pytest.mark.parametrize("make", [np.asarray, sparse.csr_array, aslinearoperator])
@pytest.mark.parametrize("k", [0, 1, 5, 25])
def test_leverage_scores(make, k):
    A = thin()
    Vt = np.linalg.svd(A, full_matrices=False)[2][:k]
    scores = leverage_scores(make(A), k, random_state=0)
    np.testing.assert_allclose(scores, (Vt**2).sum(axis=0), atol=1e-6)
    np.testing.assert_allclose(scores.sum(), k)
    rows = leverage_scores(make(A).T, k, random_state=0)
    U = np.linalg.svd(A, full_matrices=False)[0][:, :k]
    np.testing.assert_allclose(rows, (U**2).sum(axis=1), atol=1e-6)


def test_leverage_counts_no_directions_without_weight():
    scores = leverage_scores(deficient(), 9)
    np.testing.assert_allclose(scores.sum(), 4)
    assert scores[7] < 1e-20
    assert np.array_equal(leverage_scores(np.zeros((4, 3)), 2), np.zeros(3))
    assert leverage_scores(thin().astype(np.float32), 3).dtype == np.float32


def test_leverage_draws_in_proportion():
    A = np.array([[3.0, 4.0, 0.0]])  # leverages 9/25, 16/25 and 0
    drawn = [
        select_columns(A, 1, method="leverage", random_state=seed).columns[0]
        for seed in range(500)
    ]
    assert abs(np.mean(np.equal(drawn, 0)) - 9 / 25) < 0.08
    assert 2 not in drawn
    for seed in range(20):
        assert (
            2 not in select_columns(A, 2, method="leverage", random_state=seed).columns
        )


# CUR


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("make", [np.asarray, *FORMATS])
def test_cur_is_the_best_product_of_its_columns_and_rows(method, make):
    A = thin()
    found = cur(make(A), 6, method=method, random_state=0)
    C, R = A[:, found.columns], A[found.rows]
    assert (
        sparse.issparse(found.C) == sparse.issparse(found.R) == (make is not np.asarray)
    )
    dense = [
        part.toarray() if sparse.issparse(part) else part for part in (found.C, found.R)
    ]
    assert np.array_equal(dense[0], C)
    assert np.array_equal(dense[1], R)
    np.testing.assert_allclose(
        found.U, np.linalg.pinv(C) @ A @ np.linalg.pinv(R), atol=1e-9
    )
    np.testing.assert_allclose(found.toarray(), C @ found.U @ R, atol=1e-12)
    np.testing.assert_allclose(found.error, np.linalg.norm(A - C @ found.U @ R))
    np.testing.assert_allclose(found.optimum, np.linalg.norm(np.linalg.svd(A)[1][6:]))
    assert found.ratio == found.error / found.optimum > 1
    assert found.matrix.rank == 6
    moved = found.U + 1e-3 * normal(6, 6)
    assert np.linalg.norm(A - C @ moved @ R) > found.error
    if method != "leverage":
        other = select_columns(A.T, 6, method=method).columns
        assert np.array_equal(found.rows, other)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("make", [np.asarray, sparse.csr_array])
@pytest.mark.parametrize("k", [4, 6, 9])
def test_cur_of_a_deficient_matrix_is_exact(method, make, k):
    A = deficient()
    found = cur(make(A), k, method=method, random_state=0)
    assert found.error == 0
    assert found.ratio == 1
    np.testing.assert_allclose(found.toarray(), A, atol=1e-10)


def test_cur_of_nothing():
    found = cur(normal(), 0)
    assert isinstance(found, CUR)
    assert (found.C.shape, found.U.shape, found.R.shape) == ((12, 0), (0, 0), (0, 9))
    np.testing.assert_allclose(found.error, np.linalg.norm(normal()))
    assert np.array_equal(found.toarray(), np.zeros((12, 9)))


@pytest.mark.parametrize("make", [np.asarray, sparse.csr_array])
def test_float32_stays(make):
    A = make(thin().astype(np.float32))
    found = cur(A, 5, random_state=0)
    assert (
        found.C.dtype
        == found.U.dtype
        == found.R.dtype
        == found.toarray().dtype
        == np.float32
    )
    wide = cur(A.astype(np.float64), 5, random_state=0)
    assert np.array_equal(found.columns, wide.columns)
    np.testing.assert_allclose(found.error, wide.error)
    np.testing.assert_allclose(found.U, wide.U, rtol=1e-5)


@pytest.mark.parametrize("function", [select_columns, cur])
@pytest.mark.parametrize("method", METHODS)
def test_same_seed_same_result(function, method):
    first, second = (
        function(thin(), 5, method=method, random_state=3) for _ in range(2)
    )
    assert np.array_equal(first.columns, second.columns)
    assert first.error == second.error


def test_results_are_frozen_and_say_what_they_are():
    found = cur(np.diag([2.0, 1.0]), 1)
    assert repr(found) == "CUR(k=1, shape=(2, 2), error=1, ratio=1)"
    with pytest.raises(AttributeError, match="cannot assign"):
        found.error = 0.0
    with pytest.raises(AttributeError, match="cannot assign"):
        select_columns(normal(), 1).columns = None


# the door


@pytest.mark.parametrize("function", [select_columns, cur])
def test_bad_arguments_raise(function):
    with pytest.raises(
        ValueError, match=r"method must be one of 'qr', 'leverage'; got 'best'"
    ):
        function(normal(), 2, method="best")
    with pytest.raises(ValueError, match=r"k must be between 0 and 9 .*; got 10"):
        function(normal(), 10)
    with pytest.raises(ValueError, match=r"k must be between 0 and 9 .*; got -1"):
        function(normal(), -1)
    for wrong in (2.0, True, "2", None):
        with pytest.raises(TypeError, match="k must be an integer; got"):
            function(normal(), wrong)
    for wrapped, kind in (
        (aslinearoperator(normal()), "a LinearOp"),
        (RowBlocks([normal()]), "RowB"),
    ):
        with pytest.raises(
            TypeError, match=f"array or a sparse matrix, .*; got {kind}"
        ):
            function(wrapped, 2)
    with pytest.raises(
        ValueError, match="A must be finite; got NaN at row 1, column 0"
    ):
        function(np.array([[1.0, 2.0], [math.nan, 0.0]]), 1)
    with pytest.raises(ValueError, match="random_state must be"):
        function(normal(), 2, random_state=-1)


def test_more_than_the_rank_allows():
    with pytest.raises(ValueError, match=r"between 0 and 3 \(min\(A.shape\)\); got 4"):
        cur(normal(3, 5), 4)
    with pytest.raises(ValueError, match=r"between 0 and 5 \(columns of A\); got 6"):
        select_columns(normal(3, 5), 6)
    with pytest.raises(ValueError, match=r"between 0 and 3 \(min\(A.shape\)\); got 4"):
        leverage_scores(normal(3, 5), 4)


@pytest.mark.covering(1)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("make", [np.asarray, sparse.csr_array])
@pytest.mark.parametrize(("n", "m", "k"), [(18, 14, 12), (24, 15, 15), (200, 100, 20)])
def test_cur_states_the_error_of_the_matrices_that_it_returns(n, m, k, make, dtype):
    A = (1 / (np.arange(n)[:, None] + np.arange(m) + 1.0)).astype(
        dtype
    )  # a Hilbert matrix
    found = cur(make(A), k, random_state=0)
    C, R = (
        part.toarray() if sparse.issparse(part) else part for part in (found.C, found.R)
    )
    product = C.astype(float) @ found.U.astype(float) @ R.astype(float)
    error, size = np.linalg.norm(A - product), np.linalg.norm(A)
    rounding = 3e-8 if make is sparse.csr_array else 1e-12
    np.testing.assert_allclose(found.error, error, rtol=1e-2, atol=2 * rounding * size)
    assert error <= (1e-3 if dtype == np.float32 else 1e-7) * size


@pytest.mark.parametrize("scale", [1.0, 1e200, 1e-200])
@pytest.mark.parametrize("convert", [np.asarray, sparse.csr_array])
def test_the_matrix_of_a_choice_is_the_projection_on_its_columns(convert, scale):
    A = np.random.default_rng(0).standard_normal((20, 12)) * scale
    result = select_columns(convert(A), 4)
    C = A[:, result.columns]
    projection = C @ np.linalg.lstsq(C, A, rcond=None)[0]
    np.testing.assert_allclose(result.toarray() / scale, projection / scale, atol=1e-12)
    error = np.linalg.norm((A - projection) / scale) * scale
    assert result.error == pytest.approx(error)
    if scale == 1.0:
        single = select_columns(convert(A.astype(np.float32)), 4)
        assert single.matrix.dtype == np.float32


@pytest.mark.parametrize("power", [-300, 200, 300])
def test_leverage_does_not_depend_on_the_scale(power):
    A = np.random.default_rng(0).standard_normal((9, 5))
    scores = leverage_scores(A * 10.0**power, 2)
    np.testing.assert_allclose(scores, leverage_scores(A, 2), rtol=1e-9)

"""Entries of sparse matrices: codes of values, order by row and column, and transposes."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from lowrank import kernels
from lowrank.kernels import entries
from lowrank.kernels.entries import CodedMatrix, Levels

KERNELS = kernels.supported()


@pytest.fixture(autouse=True, params=sorted({KERNELS[0], KERNELS[-1]}))
def kernel(request):
    active = kernels.backend()
    kernels.use(request.param)
    yield request.param
    kernels.use(active.instruction_set or "reference")


def coded(n=40, m=23, seed=0):
    """Return a coded matrix, and the same one in the form of scipy."""
    rng = np.random.default_rng(seed)
    A = sp.random_array((n, m), density=0.3, rng=rng, format="csr", dtype=np.float32)
    A.sort_indices()
    levels = np.float32([0.5, 1, 3, 4.5])
    codes = rng.integers(0, len(levels), A.nnz).astype(np.uint8)
    A.data = levels[codes]
    arrays = kernels.csr_arrays(A)
    return CodedMatrix(*arrays[:2], codes, entries.padded(levels), m), A


@given(st.lists(st.floats(width=32, allow_nan=False) | st.sampled_from([1.0, 2.0]), max_size=40))
def test_codes_stand_for_their_values(values):
    levels = Levels()
    for part in (values[:7], values[7:]):  # as they come, in batches
        codes = levels.codes(np.float32(part))
        assert levels.values[codes].tobytes() == np.float32(part).tobytes()
    assert len(levels.values) == len({np.float32(each).tobytes() for each in values})


def test_more_than_256_levels_are_too_many():
    levels = Levels()
    assert levels.codes(np.arange(256, dtype=np.float32)) is not None
    assert levels.codes(np.float32([7, 256])) is None
    assert list(levels.codes(np.float32([7, 255]))) == [7, 255]


@given(st.lists(st.integers(-50, 50), min_size=1, max_size=60), st.integers(1, 3))
def test_keys_are_told_apart_and_found(keys, threads):
    given = np.int32(keys)
    distinct = entries.distinct_keys(given, min(keys), max(keys), threads)
    expected, inverse = np.unique(keys, return_inverse=True)
    np.testing.assert_array_equal(distinct, expected)
    places = np.arange(len(distinct))[::-1]
    entries.replace_keys(given, distinct, places, threads)
    np.testing.assert_array_equal(given, places[inverse])


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("n", [0, 1, 30, 5000])
def test_entries_are_put_in_order_and_keep_theirs_within_a_row(n, threads):
    rng = np.random.default_rng(n)
    rows, columns = (rng.integers(0, 9, n).astype(np.int32) for _ in range(2))
    numbers = [rng.integers(0, 99, n).astype(t) for t in (np.uint8, np.float32, np.int64)]
    indptr, is_sorted = entries.row_offsets(rows, 9)
    assert is_sorted == bool((np.diff(rows) >= 0).all())
    found = [entries.scatter(rows, indptr, each, threads) for each in (columns, *numbers)]
    by_row = np.argsort(rows, kind="stable")
    for got, before in zip(found, (columns, *numbers), strict=True):
        np.testing.assert_array_equal(got, before[by_row])
    entries.sort_rows(indptr, found[0], found[1:], threads)
    order = np.lexsort((columns, rows))
    for got, before in zip(found, (columns, *numbers), strict=True):
        np.testing.assert_array_equal(got, before[order])


def test_long_rows_of_large_indices_are_sorted():
    rng = np.random.default_rng(3)
    columns = rng.integers(0, 2**31 - 1, 3000).astype(np.int32)
    places = np.arange(3000)
    found = columns.copy(), places.copy()
    entries.sort_rows(np.array([0, 10, 3000]), found[0], [found[1]], 2)
    order = np.concatenate([np.argsort(columns[:10]), 10 + np.argsort(columns[10:])])
    np.testing.assert_array_equal(found[1], order)


@pytest.mark.parametrize("threads", [1, 3])
def test_the_transpose_of_values_and_of_codes(threads):
    matrix, A = coded()
    expected = kernels.csr_arrays(A.T.tocsr())
    for got in (
        entries.transposed(kernels.csr_arrays(A), 23, threads),
        entries.transposed(matrix, 23, threads).arrays,
    ):
        for ours, theirs in zip(got, expected, strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_kernels_take_codes_as_they_take_values():
    matrix, A = coded()
    arrays, rng = kernels.csr_arrays(A), np.random.default_rng(1)
    X, Y = (rng.normal(size=(size, 5)).astype(np.float32) for size in A.shape[::-1])
    np.testing.assert_array_equal(kernels.csr_matmat(matrix, X), kernels.csr_matmat(arrays, X))
    products = (kernels.csr_rmatmat(each, Y, A.shape[1]) for each in (matrix, arrays))
    np.testing.assert_array_equal(*products)
    solved = []
    for each in (matrix, arrays):
        factors, bias = np.empty((len(Y), 5), np.float32), np.empty(len(Y), np.float32)
        ridge = np.ones(len(Y))
        out = {"factors": factors, "bias": bias, "penalty": ridge, "bias_penalty": ridge}
        kernels.als_half_sweep(each, X, shift=2.0, **out)
        solved.append(np.column_stack([factors, bias]))
    np.testing.assert_array_equal(*solved)


def test_shifts_are_subtracted_from_the_values():
    matrix, A = coded()
    rng = np.random.default_rng(2)
    of_rows, of_columns = (rng.normal(size=size).astype(np.float32) for size in A.shape)
    shifted = matrix._replace(row_shift=of_rows, column_shift=of_columns)
    rows, columns = A.nonzero()
    expected = A.data - of_rows[rows] - of_columns[columns]
    np.testing.assert_allclose(shifted.arrays.data, expected, rtol=1e-6)
    assert shifted.bound() >= np.abs(expected).max()
    X = rng.normal(size=(A.shape[1], 5)).astype(np.float32)
    again = sp.csr_array((expected, A.indices, A.indptr), A.shape) @ X
    np.testing.assert_allclose(kernels.csr_matmat(shifted, X), again, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(kernels.csr_matmat(shifted.scaled(2), X), 2 * again, atol=1e-4)

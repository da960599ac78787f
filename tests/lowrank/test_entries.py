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
        codes = np.empty(len(part), np.uint8)
        assert levels.code(np.float32(part), codes)
        assert levels.values[codes].tobytes() == np.float32(part).tobytes()
    assert len(levels.values) == len({np.float32(each).tobytes() for each in values})


def test_more_than_256_levels_are_too_many():
    levels, codes = Levels(), np.empty(256, np.uint8)
    assert levels.code(np.arange(256, dtype=np.float32), codes)
    assert not levels.code(np.float32([7, 256]), codes[:2])
    assert levels.code(np.float32([7, 255]), codes[:2])
    assert list(codes[:2]) == [7, 255]


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@given(keys=st.lists(st.integers(-50, 50), min_size=1, max_size=60), cut=st.integers(0, 60))
def test_keys_are_told_apart_in_the_order_in_which_they_came(dtype, keys, cut):
    found, codes = entries.Keys(), np.empty(len(keys), np.int32)
    given = np.array(keys, dtype) * dtype(2**20)
    for part in (slice(cut), slice(cut, None)):
        found.code(given[part], codes[part])
    assert found.values.tolist() == list(dict.fromkeys(given.tolist()))
    np.testing.assert_array_equal(found.values[codes], given)
    places = np.arange(len(found.values))[::-1]
    expected = places[codes]
    entries.replace_keys(codes, places, 2)
    np.testing.assert_array_equal(codes, expected)


def test_there_is_room_for_any_number_of_keys():
    found, codes = entries.Keys(), np.empty(99_999, np.int32)
    for stride in (1, 1000, 2**16, -(2**45)):
        keys = np.random.default_rng(stride % 7).permutation(99_999) * stride
        found.code(keys, codes)
        np.testing.assert_array_equal(found.values[codes], keys)


def in_text(text, mark=","):
    lines = text.count("\n") + 1
    columns = {0: np.int64, 2: np.float32}
    found = entries.numbers_in_text(text.encode(), mark, 3, columns, lines)
    return None if found is None else [column.tolist() for column in found]


@pytest.mark.parametrize("mark", [",", "::"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("last", [True, False])
def test_plain_numbers_in_text(mark, end, last):
    rows = [(0, "x", 0.5), (-7, "", -3), (10**17, "ab c", 4.35), (1, "é"[:0], 1e-7)]
    text = end.join(f"{a}{mark}{b}{mark}{c:.9g}" for a, b, c in rows[:3]) + end + end
    text += f"12{mark}{mark}0.0000001" + last * end
    assert in_text(text, mark) == [[0, -7, 10**17, 12], np.float32([0.5, -3, 4.35, 1e-7]).tolist()]


@pytest.mark.parametrize(
    "row",
    [
        *("007,a,1", "+7,a,1", "-0,a,1", "7.0,a,1", "1e3,a,1", ",a,1", "9999999999999999999,a,1"),
        *("1,a,", "1,a,.5", "1,a,5.", "1,a,1e3", "1,a,inf", "1,a,0.1234567890123456", "1,a,1 "),
        *("1,a", "1,a,1,2", '1,"a",1', "1,é,1", " 1,a,1", "1,a,1\r2", "1", "1,a,--1", "1,a,1,"),
    ],
)
def test_text_that_is_not_plain_is_in_doubt(row):
    assert in_text("1,a,2") == [[1], [2.0]]
    for text in (row, f"1,a,2\n{row}\n3,b,4"):
        assert in_text(text) is None


@given(st.lists(st.floats(-1e6, 1e6), min_size=1), st.integers(0, 7))
def test_decimals_are_rounded_as_they_are_elsewhere(values, digits):
    texts = [f"{value:.{digits}f}" for value in values]
    found = in_text("\n".join(f"1,,{text}" for text in texts))
    if found is not None:
        assert found[1] == [float(np.float32(text)) for text in texts]


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("n", [0, 1, 30, 5000])
def test_entries_are_put_in_order_and_keep_theirs_within_a_row(n, threads):
    rng = np.random.default_rng(n)
    rows, columns = (rng.integers(0, 9, n).astype(np.int32) for _ in range(2))
    numbers = [rng.integers(0, 99, n).astype(t) for t in (np.uint8, np.float32, np.int64)]
    indptr, is_sorted = entries.row_offsets(rows, 9)
    assert is_sorted == bool((np.diff(rows) >= 0).all())
    columns.flags.writeable = False
    found = entries.scatter(rows, indptr, [columns, *numbers], threads)
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

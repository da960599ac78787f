"""Entries of sparse matrices: codes of values, order by row and column, and transposes."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from lowrank import kernels
from lowrank.kernels import CodedMatrix, backends

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
    return CodedMatrix(*arrays[:2], codes, kernels.padded(levels), m), A


def in_text(text, mark=","):
    lines = text.count("\n") + 1
    found, letters = [np.empty(lines, t) for t in (np.int64, np.float32)], text.encode()
    form = np.frombuffer(letters, np.uint8), mark, 3, [0, 2]
    n_rows = backends.active.read_rows(*form, found)
    return None if n_rows < 0 else [column[:n_rows].tolist() for column in found]


@pytest.mark.parametrize("mark", [",", "::"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("last", [True, False])
def test_plain_numbers_in_text(mark, end, last):
    rows = [(0, "x", 0.5), (-7, "", -3), (10**17, "ab c", 4.35), (1, "é"[:0], 1e-7)]
    text = end.join(f"{a}{mark}{b}{mark}{c:.9g}" for a, b, c in rows[:3]) + end + end
    text += f"12{mark}{mark}0.0000001" + last * end
    assert in_text(text, mark) == [
        [0, -7, 10**17, 12],
        np.float32([0.5, -3, 4.35, 1e-7]).tolist(),
    ]


@pytest.mark.parametrize(
    "row",
    [
        *(
            "007,a,1",
            "+7,a,1",
            "-0,a,1",
            "7.0,a,1",
            "1e3,a,1",
            ",a,1",
            "9999999999999999999,a,1",
        ),
        *(
            "1,a,",
            "1,a,.5",
            "1,a,5.",
            "1,a,1e3",
            "1,a,inf",
            "1,a,0.1234567890123456",
            "1,a,1 ",
        ),
        *(
            "1,a",
            "1,a,1,2",
            '1,"a",1',
            "1,é,1",
            " 1,a,1",
            "1,a,1\r2",
            "1",
            "1,a,--1",
            "1,a,1,",
        ),
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
    numbers = [
        rng.integers(0, 99, n).astype(t) for t in (np.uint8, np.float32, np.int64)
    ]
    indptr = np.empty(10, np.int64)
    assert backends.active.row_offsets(rows, indptr) == bool((np.diff(rows) >= 0).all())
    columns.flags.writeable = False
    found = [np.empty_like(each) for each in (columns, *numbers)]
    backends.active.scatter(rows, indptr, [columns, *numbers], found, threads)
    by_row = np.argsort(rows, kind="stable")
    for got, before in zip(found, (columns, *numbers), strict=True):
        np.testing.assert_array_equal(got, before[by_row])
    backends.active.sort_rows(indptr, found[0], found[1:], threads)
    order = np.lexsort((columns, rows))
    for got, before in zip(found, (columns, *numbers), strict=True):
        np.testing.assert_array_equal(got, before[order])


@pytest.mark.parametrize("threads", [1, 2])
def test_keys_are_replaced_in_place(threads):
    keys = np.random.default_rng(0).integers(0, 7, 1000).astype(np.int32)
    places = np.arange(7, dtype=np.int32)[::-1].copy()
    expected = places[keys]
    backends.active.look_up(keys, places, keys, threads)
    np.testing.assert_array_equal(keys, expected)


def test_long_rows_of_large_indices_are_sorted():
    rng = np.random.default_rng(3)
    columns = rng.integers(0, 2**31 - 1, 3000).astype(np.int32)
    places = np.arange(3000)
    found = columns.copy(), places.copy()
    backends.active.sort_rows(np.array([0, 10, 3000]), found[0], [found[1]], 2)
    order = np.concatenate([np.argsort(columns[:10]), 10 + np.argsort(columns[10:])])
    np.testing.assert_array_equal(found[1], order)


@pytest.mark.parametrize("threads", [1, 3])
def test_the_transpose_of_values_and_of_codes(threads):
    matrix, A = coded()
    expected = kernels.csr_arrays(A.T.tocsr())
    for got in (
        kernels.transposed(kernels.csr_arrays(A), 23, threads),
        kernels.transposed(matrix, 23, threads).arrays,
    ):
        for ours, theirs in zip(got, expected, strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_kernels_take_codes_as_they_take_values():
    matrix, A = coded()
    arrays, rng = kernels.csr_arrays(A), np.random.default_rng(1)
    X, Y = (rng.normal(size=(size, 5)).astype(np.float32) for size in A.shape[::-1])
    np.testing.assert_array_equal(
        kernels.csr_matmat(matrix, X), kernels.csr_matmat(arrays, X)
    )
    products = (kernels.csr_rmatmat(each, Y, A.shape[1]) for each in (matrix, arrays))
    np.testing.assert_array_equal(*products)
    solved = []
    for each in (matrix, arrays):
        factors, bias = np.empty((len(Y), 5), np.float32), np.empty(len(Y), np.float32)
        ridge = np.ones(len(Y))
        out = {
            "factors": factors,
            "bias": bias,
            "penalty": ridge,
            "bias_penalty": ridge,
        }
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
    np.testing.assert_allclose(
        kernels.csr_matmat(shifted, X), again, rtol=1e-4, atol=1e-5
    )
    np.testing.assert_allclose(
        kernels.csr_matmat(shifted.scaled(2), X), 2 * again, atol=1e-4
    )

"""Which entries of a matrix are known, from sparse and from dense input."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from lowrank.completion.observed import hold_out, observed_entries

TABLE = np.array([[1.0, np.nan, 0.0], [np.nan, np.nan, np.nan], [4.0, 5.0, np.nan]])


def as_sparse(table, kind=sp.csr_array):
    rows, columns = np.nonzero(~np.isnan(table))
    return kind(
        sp.coo_array((table[rows, columns], (rows, columns)), shape=table.shape)
    )


def assert_is_table(csr):
    np.testing.assert_array_equal(csr.data, [1.0, 0.0, 4.0, 5.0])
    np.testing.assert_array_equal(csr.indices, [0, 2, 0, 1])
    np.testing.assert_array_equal(csr.indptr, [0, 2, 2, 4])
    assert csr.shape == (3, 3)


@pytest.mark.parametrize(
    "kind",
    [
        sp.csr_array,
        sp.csc_array,
        sp.coo_array,
        sp.lil_array,
        sp.dok_array,
        sp.csr_matrix,
    ],
)
def test_stored_zeros_of_a_sparse_matrix_are_known(kind):
    given = as_sparse(TABLE, kind)
    if given.nnz == 4:  # lil and dok forget stored zeros themselves
        assert_is_table(observed_entries(given))
    else:
        assert observed_entries(given).nnz == given.nnz == 3


def test_entries_of_a_dense_array_are_known_unless_nan():
    assert_is_table(observed_entries(TABLE))
    assert_is_table(observed_entries(TABLE.tolist()))
    assert_is_table(observed_entries(np.asfortranarray(TABLE)))


def test_masked_entries_are_not_known():
    masked = np.ma.masked_invalid(TABLE)
    assert_is_table(observed_entries(masked))
    assert_is_table(
        observed_entries(np.ma.masked_array(np.nan_to_num(TABLE), np.isnan(TABLE)))
    )


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (np.float16, np.float32),
        (np.float32, np.float32),
        (np.float64, np.float64),
        (np.int8, np.float64),
        (bool, np.float64),
    ],
)
def test_dtypes(given, expected):
    array = np.array([[1, 0], [1, 1]], given)
    assert observed_entries(array).dtype == expected
    assert observed_entries(array).nnz == 4
    if given is not np.float16:
        assert observed_entries(sp.csr_array(array)).dtype == expected
        assert observed_entries(sp.csr_array(array)).nnz == 3


def test_unsorted_entries_are_sorted_and_the_input_is_left_alone():
    given = sp.csr_array(
        (np.array([2.0, 1.0]), np.array([1, 0]), np.array([0, 2])), shape=(1, 2)
    )
    result = observed_entries(given)
    np.testing.assert_array_equal(result.indices, [0, 1])
    np.testing.assert_array_equal(given.indices, [1, 0])


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (
            np.full((2, 2), np.nan),
            ValueError,
            "at least one known entry; got none in shape",
        ),
        (
            sp.csr_array((3, 2)),
            ValueError,
            r"at least one known entry; got none in shape \(3, 2\)",
        ),
        (np.array([[1.0, np.inf]]), ValueError, "got infinity at row 0, column 1"),
        (sp.csr_array([[0.0, np.nan]]), ValueError, "got NaN at row 0, column 1"),
        (np.ones(3), ValueError, r"X must be two-dimensional; got shape \(3,\)"),
        (np.array([[1j]]), TypeError, "X must hold real numbers; got dtype complex128"),
        (np.array([["a"]]), TypeError, "X must hold real numbers; got dtype <U1"),
        (
            sp.coo_array(([1.0, 2.0], ([0, 0], [1, 1])), shape=(1, 2)),
            ValueError,
            "X must store each entry once; got row 0, column 1 more than once",
        ),
    ],
)
def test_bad_input_raises(given, error, message):
    with pytest.raises(error, match=message):
        observed_entries(given)


def test_holding_out_divides_the_entries():
    X = observed_entries(np.arange(60.0).reshape(6, 10))
    kept, others = hold_out(X, 0.25, 0)
    assert kept.nnz == 45
    assert kept.shape == X.shape
    np.testing.assert_array_equal(others.values, others.rows * 10.0 + others.columns)
    assert sorted([*kept.data, *others.values]) == list(range(60))
    again, _ = hold_out(X, 0.25, 0)
    np.testing.assert_array_equal(again.data, kept.data)


def test_holding_out_leaves_something_on_both_sides():
    X = observed_entries([[1.0, 2.0]])
    for fraction in (0.01, 0.99):
        kept, others = hold_out(X, fraction, 0)
        assert kept.nnz == len(others.values) == 1


def test_holding_out_needs_a_share_and_two_entries():
    X = observed_entries([[1.0]])
    with pytest.raises(
        ValueError, match=r"test_fraction must be between 0 and 1; got 1\.0"
    ):
        hold_out(X, 1.0, 0)
    with pytest.raises(
        ValueError, match="at least 2 known entries to hold some out; got 1"
    ):
        hold_out(X, 0.5, 0)

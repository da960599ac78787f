"""Distinct numbers, and the positions of numbers."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from recsys.data.arrays import distinct, positions_of

numbers = st.lists(st.integers(-(2**40), 2**40) | st.integers(0, 3))


@given(numbers)
def test_distinct_numbers_are_in_order(values: list[int]) -> None:
    assert distinct(np.array(values, np.int64)).tolist() == sorted(set(values))


@given(numbers, numbers)
def test_positions_tell_which_numbers_are_there(
    values: list[int], others: list[int]
) -> None:
    increasing = sorted(set(others))
    positions = positions_of(np.array(values, np.int64), np.array(increasing, np.int64))
    for value, position in zip(values, positions.tolist(), strict=True):
        expected = increasing.index(value) if value in increasing else -1
        assert position == expected

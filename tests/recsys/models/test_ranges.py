"""Ranges of parameters for tuning."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recsys.errors import DataError
from recsys.models.parameters import Range


@given(st.floats(1e-3, 1e3), st.floats(1.01, 1e4), st.booleans(), st.integers(2, 9))
def test_a_grid_goes_from_end_to_end(low, factor, log, n):
    found = Range(low, low * factor, log=log)
    grid = found.grid(n)
    assert all(value in found for value in grid)
    assert grid[0] == pytest.approx(low, rel=1e-3)
    assert grid[-1] == pytest.approx(found.high, rel=1e-3)


@given(st.integers(1, 50), st.integers(1, 200), st.booleans(), st.integers(1, 9))
def test_integers_stay_integers(low, width, log, n):
    found = Range(low, low + width, log=log)
    assert all(type(value) is int and value in found for value in found.grid(n))


def test_grids():
    assert Range(1, 100, log=True).grid(3) == (1, 10, 100)
    assert Range(0.0, 1.0).grid(1) == (0.0,)
    assert Range(1, 3).grid(9) == (1, 2, 3)


@pytest.mark.parametrize(
    ("ends", "log", "message"),
    [
        ((2, 1), False, "low must be below high, both finite; got 2 to 1."),
        ((1, 1), False, "got 1 to 1"),
        ((0.0, float("inf")), False, "got 0.0 to inf"),
        ((float("nan"), 1.0), False, "got nan to 1.0"),
        ((0.0, 1.0), True, "low must be above 0 in a logarithmic range; got 0.0."),
    ],
)
def test_invalid_ranges_are_rejected(ends, log, message):
    with pytest.raises(DataError, match=message):
        Range(*ends, log=log)

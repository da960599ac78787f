"""Types of arrays of one number per row, user, item or event, and distinct numbers."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
Codes: TypeAlias = NDArray[np.uint8]
Ints: TypeAlias = NDArray[np.int32]
Longs: TypeAlias = NDArray[np.int64]
Hashes: TypeAlias = NDArray[np.uint64]
Floats: TypeAlias = NDArray[np.float32]
Doubles: TypeAlias = NDArray[np.float64]
AnyFloats: TypeAlias = NDArray[np.floating[Any]]
Mask: TypeAlias = NDArray[np.bool_]
Times: TypeAlias = Ints | Longs | Doubles
"""Seconds since 1970-01-01 UTC; float64 if some have a fraction."""


def distinct(numbers: Longs) -> Longs:
    """Return the distinct numbers in ascending order.

    `np.unique` finds them by hashing, which takes up to 80 times as long as sorting.
    """
    ordered = np.sort(numbers)
    is_first = np.ones(len(ordered), np.bool_)
    before = ordered[:-1]
    is_first[1:] = ordered[1:] != before
    return ordered[is_first]


def positions_of(values: Longs, increasing: Longs) -> Longs:
    """Return the positions of values in an increasing array, -1 where it lacks one."""
    if not len(increasing):
        return np.full(values.shape, -1)
    positions = np.searchsorted(increasing, values)
    is_beyond = positions == len(increasing)
    positions[is_beyond] = 0
    is_there = increasing[positions] == values
    return np.where(is_there, positions, -1)

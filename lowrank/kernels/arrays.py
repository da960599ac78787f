"""Types of the arrays that kernels take and return, and their rounding."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

Floats = NDArray[np.floating[Any]]
Floats32 = NDArray[np.float32]
Float64s = NDArray[np.float64]
Ints = NDArray[np.integer[Any]]
Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]
Masks = NDArray[np.bool_]
Codes = NDArray[np.uint8]
Hashes = NDArray[np.uint64]

EPS = float(np.finfo(np.float64).eps)
"""Machine epsilon of float64."""


def epsilon(dtype: DTypeLike) -> float:
    """Return the machine epsilon of a floating-point type."""
    return float(np.finfo(dtype).eps)

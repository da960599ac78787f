"""Sums and means of products, accumulated in float64."""

from __future__ import annotations

import math

import numpy as np

from lowrank.kernels import pieces
from lowrank.kernels.arrays import Float64s, Floats

_CHUNK = 1 << 17  # numbers converted to float64 at once


def inner(
    A: Floats,
    B: Floats,
) -> float:
    """Return the sum of the products of all entries."""
    total = np.einsum("ij,ij->", A, B, dtype=np.float64)
    return float(total)


def row_dots(
    A: Floats,
    B: Floats,
) -> Float64s:
    """Return the dot products of the rows."""
    dots: Float64s = np.einsum("ij,ij->i", A, B, dtype=np.float64)
    return dots


def column_dots(
    A: Floats,
    B: Floats,
) -> Float64s:
    """Return the dot products of the columns."""
    dots: Float64s = np.einsum("ij,ij->j", A, B, dtype=np.float64)
    return dots


def weighted_mean(
    weight: Floats,
    rows: Floats,
) -> Float64s:
    """Return the weighted mean of rows."""
    sums: Float64s = np.einsum("i,ij->j", weight, rows, dtype=np.float64)
    sums /= weight.sum(dtype=np.float64)
    return sums


def sum_of_squares(values: Floats) -> float:
    """Return the sum of the squares of all entries."""
    flat = values.reshape(-1)
    sums = []
    # A copy of all entries in float64 may not fit into memory.
    for part in pieces(flat.size, _CHUNK):
        wide = flat[part].astype(np.float64)
        sums.append(float(wide @ wide))
    return math.fsum(sums)


def root_mean_square(
    values: Floats,
    weights: Floats | None = None,
) -> float:
    """Return the root of the weighted mean of the squares."""
    if weights is None:
        mean = sum_of_squares(values) / values.size
    else:
        squares = values.astype(np.float64) ** 2
        mean = float(np.average(squares, weights=weights))
    return math.sqrt(mean)

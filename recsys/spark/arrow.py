"""Rows of ratings between Spark and NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np

from lowrank.spark.rows import (
    cogroup_in_arrow,
    column,
    lists,
    map_in_arrow,
    matrix,
    table_of,
)
from recsys.models.base import Histories

__all__ = [
    "as_histories",
    "cogroup_in_arrow",
    "column",
    "lists",
    "map_in_arrow",
    "matrix",
    "table_of",
]


def as_histories(batch: Any) -> Histories:
    """Return the rows of a batch with the columns "others" and "values" in CSR form."""
    indptr, indices = lists(batch, "others")
    _, values = lists(batch, "values")
    return Histories(
        indptr, indices.astype(np.int32, copy=False), values.astype(np.float32, copy=False)
    )

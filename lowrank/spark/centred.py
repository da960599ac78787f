"""A matrix on the cluster minus a row, and its products, one pass each."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lowrank.spark.rows import Part, Rows

__all__ = ["Centred", "column_means", "product"]

Doubles = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Centred:
    """The matrix on the cluster, minus a row (None for zeros)."""

    rows: Rows
    row: Doubles | None

    @property
    def n_columns(self) -> int:
        """Number of columns."""
        return self.rows.shape[1]

    def gram_product(self, X: Doubles) -> Doubles:
        """Return A'A X in one pass; A minus the row is a correction of rank one."""
        row, width = self.row, X.shape[1]
        shared = self.rows.frame.sparkSession.sparkContext.broadcast(X)

        def part(rows: Part) -> Doubles:
            Y = product(rows, shared.value, row)
            return np.vstack([rows.rmatmat(Y), Y.sum(axis=0)])

        found = self.rows.summed(part, (self.n_columns + 1, width))
        shared.destroy()
        return self.corrected(found)

    def corrected(self, found: Doubles) -> Doubles:
        """Subtract what the row takes from A'Y, given A'Y above the sums of the columns of Y."""
        product, sums = found[: self.n_columns], found[self.n_columns]
        return product if self.row is None else product - np.outer(self.row, sums)


def product(rows: Part, X: Doubles, row: Doubles | None) -> Doubles:
    """Return (A - 1 row') X for some rows of A."""
    Y = rows.matmat(X)
    return Y if row is None else Y - row @ X


def column_means(rows: Rows) -> Doubles:
    """Return the means of the columns, one pass."""
    sums = rows.summed(lambda part: part.rmatmat(np.ones((part.n_rows, 1))), (rows.shape[1], 1))
    means: Doubles = sums[:, 0] / rows.shape[0]
    return means

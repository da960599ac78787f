"""Weights of rows: each row is scaled by the root of its weight."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse

from lowrank.arguments import checked_center, entries_of
from lowrank.blocks import check_not_masked
from lowrank.errors import ArgumentError, ArgumentTypeError
from lowrank.kernels.arrays import Masks
from lowrank.operators import DenseOperator, SparseOperator, centred_columns
from lowrank.samples import InMemory, RowCentredSamples, rounded_scale, rows_times

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from lowrank.operators import Float64Array, MatrixOperator


@dataclass(frozen=True, eq=False)
class WeightedSamples:
    """Samples X with weights w, as the matrix diag(w)^(1/2) (X - 1 row') in float64.

    `means` are the weighted means of the columns, and `squares` their weighted sums of squares,
    both without centring, shape (n_columns,).
    """

    matrix: InMemory
    means: Float64Array
    row: Float64Array
    squares: Float64Array
    total: float  # sum of the weights
    centred: bool
    dtype: np.dtype[Any]  # of the samples, whose entries are rounded to it

    @classmethod
    def of(
        cls,
        samples: InMemory,
        weights: Float64Array,
        *,
        centred: bool,
    ) -> WeightedSamples:
        """Return samples with positive weights, about their weighted means or about 0.

        Weights that are numbers of repetitions leave as many directions as repeated rows have: up
        to the number of columns, there are as many rows, of weight 0.
        """
        rows = np.flatnonzero(weights > 0)
        n_repeated = int(weights.sum())
        missing = min(n_repeated, samples.shape[1]) - rows.size
        of_rows = weights[rows]
        if missing > 0:
            rows = np.append(rows, np.repeat(rows[:1], missing))
            of_rows = np.append(of_rows, np.zeros(missing))
        samples = samples.take(rows)
        means = weighted_means(samples, of_rows)
        zeros = np.zeros(len(means))
        row = means if centred else zeros
        return cls(
            matrix=weighted_rows(samples, of_rows, row),
            means=means,
            row=row,
            squares=weighted_rows(samples, of_rows, zeros).column_squares(zeros),
            total=float(weights.sum()),
            centred=centred,
            dtype=samples.dtype,
        )

    def scaled(self, factors: Float64Array) -> WeightedSamples:
        """Return the samples with each column multiplied by a factor."""
        return replace(
            self,
            matrix=self.matrix.scaled(factors),
            means=self.means * factors,
            row=self.row * factors,
            squares=self.squares * factors**2,
        )


def weighted_scale(
    samples: InMemory,
    weights: Float64Array,
    ddof: int,
) -> tuple[Float64Array, Masks]:
    """Return `column_scale` of samples with weights."""
    centred = WeightedSamples.of(samples, weights, centred=True)
    squares = centred.matrix.column_squares(np.zeros(samples.shape[1]))
    # sqrt(sum_i w_i (x_i - mean)^2 / (sum_i w_i - ddof))
    deviation = np.sqrt(squares / (centred.total - ddof))
    size = np.sqrt(centred.squares / centred.total)
    return rounded_scale(deviation, size, samples.dtype)


def checked_weights(
    weights: Any,
    count: int,
    name: str,
) -> Float64Array:
    """Return the weights of `count` rows as float64, shape (count,).

    Raises
    ------
    ArgumentTypeError, ArgumentError
        If they are masked, no real numbers, of another number, negative, not finite, or all zero.
    """
    check_not_masked(weights, name)
    array = np.asarray(weights)
    if array.dtype.kind not in "fiub":
        raise ArgumentTypeError(
            f"{name} must be real numbers; got dtype {array.dtype}."
        )
    if array.shape != (count,):
        raise ArgumentError(
            f"{name} must have one number for each row, shape ({count},); got {array.shape}."
        )
    values = array.astype(np.float64)
    bad = np.flatnonzero(~np.isfinite(values) | (values < 0))
    if bad.size:
        raise ArgumentError(
            f"{name} must be finite and not negative; got {values[bad[0]]} at row {bad[0]}."
        )
    if count and not values.any():
        raise ArgumentError(
            f"{name} must have at least one positive number; all weights are zero."
        )
    return values


def weighted_means(samples: InMemory, weights: Float64Array) -> Float64Array:
    """Return the weighted mean of each column, shape (n_columns,)."""
    shares = weights / weights.sum()
    if isinstance(samples, DenseOperator):
        # Sums of differences from a row do not round where all rows are equal.
        first = samples.array[np.argmax(weights)].astype(np.float64)
        means: Float64Array = first + shares @ (samples.array - first)
        return means
    if isinstance(samples, SparseOperator):
        n_rows, n_columns = samples.shape
        samples = RowCentredSamples(
            samples.csr, np.zeros((n_rows, 1)), np.zeros((n_columns, 1))
        )
    return samples.weighted_means(shares)


def weighted_rows(
    samples: InMemory,
    weights: Float64Array,
    row: Float64Array,
) -> InMemory:
    """Return the operator of diag(w)^(1/2) (X - 1 row') for samples X, in float64.

    Products rounded to float32 would have other small singular values.
    """
    # The Gram matrix of these rows is X' diag(w) X.
    roots = np.sqrt(weights)
    if isinstance(samples, DenseOperator):
        centred = samples.array - row if row.any() else samples.array
        return DenseOperator(centred * roots[:, None])
    if isinstance(samples, RowCentredSamples):
        return samples.weighted(roots, row)
    csr = samples.wide().csr
    centred, remainder = centred_columns(csr, row)
    weighted = rows_times(csr if centred is None else centred, roots)
    if not remainder.any():
        return SparseOperator(weighted)
    return RowCentredSamples(weighted, roots, remainder)


def weighted_matrix(
    A: MatrixOperator,
    weights: Any,
    center: ArrayLike | bool | None,
) -> InMemory:
    """Return the matrix that `truncated_svd` decomposes with weights of its rows.

    Raises
    ------
    ArgumentTypeError, ArgumentError
        If A is neither an array nor a sparse matrix, or as `checked_weights`.
    """
    X = entries_of(A, ", with row_weights")
    samples: InMemory = SparseOperator(X) if sparse.issparse(X) else DenseOperator(X)
    of_rows = checked_weights(weights, samples.shape[0], "row_weights")
    row = checked_center(center, samples.shape[1])
    if row is True:
        row = weighted_means(samples, of_rows)
    elif row is None:
        row = np.zeros(samples.shape[1])
    return weighted_rows(samples, of_rows, row)

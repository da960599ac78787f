"""Damped biases of users and items, found on the cluster, and what they leave over."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from recsys.models.base import Histories
from recsys.spark.arrow import as_histories, column, map_in_arrow, table_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Biases", "damped_biases", "residuals"]

Doubles = NDArray[np.float64]

_DAMPING = 5.0  # ratings without a bias that are added to each user and item, as in `Bias`
_ROUNDS = 3


@dataclass(frozen=True, eq=False)
class Biases:
    """The predictions ``mean + b_u + c_i``, of which b_u follows from the user's ratings.

    Attributes
    ----------
    mean : float
    items : float64 ndarray of shape (n_items,)
        The biases c_i.
    """

    mean: float
    items: Doubles

    def left_over(self, rows: Histories) -> Doubles:
        """Return what mean and biases leave over of the ratings of some users, shape (nnz,)."""
        left: Doubles = rows.values - self.mean - self.items[rows.indices]
        sums = np.add.reduceat(np.append(left, 0.0), rows.indptr[:-1])
        user = np.where(rows.counts > 0, sums, 0.0) / (rows.counts + _DAMPING)
        left -= np.repeat(user, rows.counts)
        return left


def damped_biases(spark: SparkSession, users: DataFrame, mean: float, n_items: int) -> Biases:
    """Fit the biases of users and items in turns, each the mean of what the other leaves over.

    Parameters
    ----------
    spark : SparkSession
    users : DataFrame
        Columns index, others and values: one row per user.
    mean : float
        Of all ratings.
    n_items : int
        The biases of all items come to the driver: 8 bytes each.

    References
    ----------
    Koren (2008), "Factorization meets the neighborhood", section 2.1.
    """
    biases = Biases(mean, np.zeros(n_items))
    for _ in range(_ROUNDS):
        shared = spark.sparkContext.broadcast(biases)
        sums = map_in_arrow(users, _summing(shared), "item int, total double, count bigint")
        whole = table_of(sums.groupBy("item").sum("total", "count"))
        found = np.zeros(n_items)
        totals, counts = column(whole, "sum(total)"), column(whole, "sum(count)")
        found[column(whole, "item")] = totals / (counts + _DAMPING)
        shared.destroy()
        biases = Biases(mean, found)
    return biases


def residuals(spark: SparkSession, users: DataFrame, biases: Biases) -> DataFrame:
    """Return a long table of user, item and what the biases leave over of the rating."""
    shared = spark.sparkContext.broadcast(biases)
    return map_in_arrow(users, _leaving(shared), "user int, item int, rating float")


def _summing(shared: Any) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Sum, over the users of a partition, what is left of each item's ratings without its bias."""

    def sums(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        biases: Biases = shared.value
        total, count = np.zeros_like(biases.items), np.zeros(len(biases.items), np.int64)
        for batch in batches:
            rows = as_histories(batch)
            left = biases.left_over(rows) + biases.items[rows.indices]
            total += np.bincount(rows.indices, left, len(total))
            count += np.bincount(rows.indices, minlength=len(total))
        items = np.flatnonzero(count)
        columns = [items.astype(np.int32), total[items], count[items]]
        yield pa.RecordBatch.from_arrays(
            [pa.array(each) for each in columns], ["item", "total", "count"]
        )

    return sums


def _leaving(shared: Any) -> Callable[[Iterator[Any]], Iterator[Any]]:
    def left(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        biases: Biases = shared.value
        for batch in batches:
            rows = as_histories(batch)
            users = np.repeat(column(batch, "index").astype(np.int32), rows.counts)
            columns = [users, rows.indices, biases.left_over(rows).astype(np.float32)]
            yield pa.RecordBatch.from_arrays(
                [pa.array(each) for each in columns], ["user", "item", "rating"]
            )

    return left

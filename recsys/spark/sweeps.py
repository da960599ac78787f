"""Half-sweeps of `als` on the cluster: all users solved given the items, or the other way round.

Each row is solved as `recsys.models.als.ALS` folds it in on one machine, to the last bit. The
vectors of the other side are sent to every worker where they fit there, and joined block by block
where they don't; the result is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from recsys.models.base import Floats, Histories
from recsys.spark.arrow import (
    as_histories,
    cogroup_in_arrow,
    column,
    map_in_arrow,
    matrix,
    table_of,
)
from recsys.spark.files import Place, written

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["SOLVED", "Solver", "dense_vectors", "half_sweep", "no_links"]

SOLVED = "index int, count int, bias float, factors array<float>"
"""Schema of the vectors of users or items."""


@dataclass(frozen=True)
class Solver:
    """What a row is solved with, besides the vectors of the other side.

    Attributes
    ----------
    parameters : dict
        Of `recsys.models.als.ALS`.
    mean, rating_std : float
        Of the training ratings, the mean as corrected by the fit.
    """

    parameters: dict[str, Any]
    mean: float
    rating_std: float

    def solve(self, rows: Histories, others: Floats) -> Floats:
        """Return the vectors of `rows` with their biases last, shape (n, k + 1).

        On one thread: Spark runs a task on each core.

        Parameters
        ----------
        rows : Histories
        others : float32 ndarray of shape (n_others, k + 1)
            Vectors of the other side, their biases last.
        """
        from lowrank.bayesian import Posterior, solve_rows
        from lowrank.kernels import CsrArrays, at_most
        from lowrank.linked import ridge_prior

        prior = ridge_prior(
            others.shape[1],
            regularization=self.parameters["regularization"],
            scale=self.rating_std,
            count_power=self.parameters["count_power"],
            dtype=np.dtype(np.float32),
        )
        known = Posterior(others, np.empty((len(others), 0), np.float32))
        with at_most(1):
            solved: Floats = solve_rows(
                CsrArrays(*rows), known, prior, mean=self.mean, noise=1.0
            ).mean
        return solved


def no_links(k: int) -> dict[str, Floats]:
    """Return the arrays of an `ALS` model without links."""
    d = k + 1
    return {
        "user_prior_mean": np.zeros(d, np.float32),
        "item_prior_mean": np.zeros(d, np.float32),
        "user_link": np.zeros((0, d), np.float32),
        "item_link": np.zeros((0, d), np.float32),
    }


def half_sweep(
    spark: SparkSession,
    rows: DataFrame,
    others: DataFrame | Floats,
    solver: Solver,
    parts: int,
    place: Place,
) -> DataFrame:
    """Solve for the vectors of all rows, write them to `place` and return them.

    Parameters
    ----------
    spark : SparkSession
    rows : DataFrame
        Columns index, others and values.
    others : DataFrame or ndarray of shape (n_others, k + 1)
        Of the other side: a table with the schema `SOLVED`, or, if they fit every worker's memory,
        an array with the biases last.
    solver : Solver
    parts : int
        Number of blocks of rows.
    place : Place
    """
    rows = rows.repartition(parts, "index")
    if isinstance(others, np.ndarray):
        shared = spark.sparkContext.broadcast(others)
        solved = map_in_arrow(rows, _solving(shared, solver), SOLVED)
        solved = written(solved, place)
        shared.destroy()
        return solved
    return written(_blocked(rows, others, solver, parts), place)


def dense_vectors(solved: DataFrame, n: int, k: int) -> Floats:
    """Collect vectors as an array with the biases last; rows that are not there are zero."""
    whole = table_of(solved.select("index", "bias", "factors"))
    vectors = np.zeros((n, k + 1), np.float32)
    if whole.num_rows:
        vectors[column(whole, "index")] = _with_bias(whole)
    return vectors


def _with_bias(table: Any) -> Floats:
    return np.column_stack([matrix(table, "factors"), column(table, "bias")])


def _solving(shared: Any, solver: Solver) -> Callable[[Iterator[Any]], Iterator[Any]]:
    def solve(batches: Iterator[Any]) -> Iterator[Any]:
        others: Floats = shared.value
        for batch in batches:
            rows = as_histories(batch)
            yield from _batch(batch, rows, solver.solve(rows, others)).to_batches()

    return solve


def _blocked(rows: DataFrame, others: DataFrame, solver: Solver, parts: int) -> DataFrame:
    """Bring to each block of rows the vectors that it needs, and no others."""
    from pyspark.sql import functions as sql

    block = sql.pmod(sql.hash("index"), parts).alias("block")
    blocks = rows.select(block, "index", "others", "values")
    needed = blocks.select("block", sql.explode("others").alias("index")).distinct()
    to = sql.col("block").alias("to")
    sent = needed.join(others, "index").select(to, "index", "bias", "factors")

    def solve(left: pa.Table, right: pa.Table) -> pa.Table:
        known = column(right, "index")
        order = np.argsort(known)
        vectors = _with_bias(right)[order]
        given = as_histories(left)
        places = np.searchsorted(known[order], given.indices).astype(np.int32)
        found = Histories(given.indptr, places, given.values)
        return _batch(left, given, solver.solve(found, vectors))

    return cogroup_in_arrow(blocks, sent, ["block"], ["to"], solve, SOLVED)


def _batch(given: Any, rows: Histories, solved: Floats) -> pa.Table:
    import pyarrow as pa

    n, k = len(solved), solved.shape[1] - 1
    offsets = pa.array(np.arange(n + 1, dtype=np.int32) * k)
    columns = [
        pa.array(column(given, "index").astype(np.int32)),
        pa.array(rows.counts.astype(np.int32)),
        pa.array(solved[:, -1].copy()),
        pa.ListArray.from_arrays(offsets, pa.array(solved[:, :-1].ravel())),
    ]
    return pa.Table.from_arrays(columns, ["index", "count", "bias", "factors"])

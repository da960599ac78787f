"""Top-N for all users on the cluster, from saved factors.

The vectors of the items are sent to every worker, where each batch of users is ranked by the
kernel of `recsys.topn`. Items above the broadcast limit are split into blocks, whose lists are
merged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np

from lowrank.kernels import at_most
from lowrank.spark.arrow import column, lists, map_in_arrow, matrix, table_of
from recsys.errors import DataError, UnknownIdError
from recsys.models.base import FactorModel
from recsys.spark.files import Place, staged
from recsys.spark.results import SparkModel
from recsys.spark.session import BROADCAST_LIMIT, spark_session
from recsys.topn import csr_exclusion, top_n

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    IdsLike = Sequence[int | str]

__all__ = ["recommend", "top_items"]

_LEAST_BLOCK = 1000  # items
_NAMED = 3  # unknown ids in a message
_WRITTEN = ["user", "item", "rank", "score"]
_COLUMNS = ["user_index", "item_index", *_WRITTEN]


def recommend(
    model: str,
    out: str,
    n: int = 10,
    *,
    exclude_seen: bool = True,
    items: IdsLike | None = None,
    block: IdsLike | None = None,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    overwrite: bool = False,
    broadcast_limit: int = BROADCAST_LIMIT,
) -> None:
    """Recommend the n best items to each user of a model, as partitioned Parquet.

    Parameters
    ----------
    model : str
        Path of a model that `fit` wrote.
    out : str
        Folder for Parquet files with the columns user, item, rank and score; it appears when it is
        complete.
    n : int
        Largest number of items per user.
    exclude_seen : bool
        Leave out the items that the user has rated.
    items, block : sequence of item ids, optional
        Recommend only these items; never recommend these.
    master, conf
        As `recsys.spark.spark_session` takes them.
    overwrite : bool
        Replace recommendations at `out`, but nothing else.
    broadcast_limit : int
        Bytes of item vectors that are sent to every Python worker at a time.

    Raises
    ------
    DataError
        If n is below 1.
    UnknownIdError
        If an item of `items` or `block` is unknown.
    EngineError
        If Spark is missing, cannot be reached or fails. Nothing is written then.
    ModelFileError
        If there is no such model, or `out` exists and is not replaced.
    """

    def replaceable(place: Place) -> bool:
        """Return whether a folder has recommendations, or nothing."""
        if not place.is_folder():
            return False
        names = [name for name in place.names() if not name.startswith(("_SUCCESS", "."))]
        if not all(name.endswith(".parquet") for name in names):
            return False
        return not names or spark.read.parquet(place.uri).columns == _WRITTEN

    with (
        spark_session(master, conf) as spark,
        staged(spark, out, replaceable, overwrite=overwrite) as folder,
    ):
        found = top_items(
            spark,
            SparkModel.open(spark, model),
            n,
            exclude_seen=exclude_seen,
            items=items,
            block=block,
            broadcast_limit=broadcast_limit,
        )
        found.select(*_WRITTEN).write.parquet(folder.uri)


def top_items(
    spark: SparkSession,
    model: SparkModel,
    n: int,
    *,
    exclude_seen: bool = True,
    items: IdsLike | None = None,
    block: IdsLike | None = None,
    users: DataFrame | None = None,
    broadcast_limit: int = BROADCAST_LIMIT,
) -> DataFrame:
    """Return the n best items of each user as a table of Spark.

    Parameters
    ----------
    spark : SparkSession
    model : SparkModel
    n, exclude_seen, items, block, broadcast_limit
        As for `recommend`.
    users : DataFrame, optional
        Some rows of ``model.users``; by default all.

    Returns
    -------
    DataFrame
        Columns user_index, item_index, user, item, rank and score.

    Raises
    ------
    DataError
        If n is below 1.
    """
    from pyspark.sql import DataFrame, Window
    from pyspark.sql import functions as sql

    if n < 1:
        raise DataError(f"n must be at least 1; got {n}.")
    candidates = model.items(spark).select("index", "id", "bias", "factors")
    candidates = candidates.withColumn("allowed", sql.lit(True))
    for listed, wanted in ((items, True), (block, False)):
        if listed is not None:
            candidates = _marked(candidates, listed, wanted=wanted)
    queries = model.users(spark) if users is None else users
    user, item = (dict(table.dtypes)["id"] for table in (queries, candidates))
    schema = f"user_index int, item_index int, user {user}, item {item}, rank int, score float"
    mean, size = model.global_mean, max(_LEAST_BLOCK, broadcast_limit // (4 * (model.factors + 1)))

    def ranked(first: int) -> DataFrame:
        is_near = sql.col("index").between(first, first + size - 1)
        table = table_of(candidates.where(is_near).sort("index")).combine_chunks()
        shared: Any = spark.sparkContext.broadcast(table)

        def rank(batches: Iterator[Any]) -> Iterator[Any]:
            for batch in batches:
                yield from _ranked(batch, shared.value, mean, n).combine_chunks().to_batches()

        seen = sql.array().cast("array<int>")
        if exclude_seen:
            seen = sql.filter("others", lambda each: each.between(first, first + size - 1))
        rows = queries.select("index", "id", "bias", "factors", seen.alias("others"))
        return map_in_arrow(rows, rank, schema)

    blocks = [ranked(first) for first in range(0, model.n_items, size)]
    if len(blocks) == 1:
        return blocks[0]
    order = Window.partitionBy("user_index").orderBy(sql.desc("score"), "item_index")
    merged = reduce(DataFrame.unionAll, blocks)
    merged = merged.withColumn("rank", sql.row_number().over(order).cast("int"))
    return merged.where(sql.col("rank") <= n)


def _marked(candidates: DataFrame, listed: IdsLike, *, wanted: bool) -> DataFrame:
    """Allow only the listed items where they are wanted, and only the others where they are not."""
    from pyspark.sql import functions as sql

    rows = [(name,) for name in sorted({str(each) for each in listed})]
    table = candidates.sparkSession.createDataFrame(rows, "name string")
    here = sql.col("id").cast("string") == sql.col("name")
    unknown = table.join(candidates, here, "left_anti").sort("name").take(_NAMED + 1)
    if unknown:
        names = ", ".join(repr(row["name"]) for row in unknown[:_NAMED])
        more = ", ..." if len(unknown) > _NAMED else ""
        raise UnknownIdError(f"The model has no item {names}{more}.")
    fits = sql.col("name").isNotNull() if wanted else sql.col("name").isNull()
    marked = candidates.join(sql.broadcast(table), here, "left")
    return marked.withColumn("allowed", sql.col("allowed") & fits).drop("name")


def _ranked(users: Any, candidates: pa.Table, mean: float, n: int) -> pa.Table:
    """Rank consecutive items for a batch of users, as a table with `_COLUMNS`."""
    import pyarrow as pa

    indptr, seen = lists(users, "others")
    allowed = column(candidates, "allowed").astype(bool)
    first = int(column(candidates, "index")[0])
    arrays = {
        "global_mean": np.asarray(mean),
        "user_bias": column(users, "bias"),
        "item_bias": column(candidates, "bias"),
        "user_factors": matrix(users, "factors"),
        "item_factors": matrix(candidates, "factors"),
    }
    with at_most(1):  # Spark runs a task on each core
        tops = top_n(
            FactorModel._from_arrays({}, arrays),
            np.arange(len(indptr) - 1),
            n,
            exclude=csr_exclusion(indptr, (seen - first).astype(np.int32)),
            allowed=None if allowed.all() else allowed,
        )
        found = list(tops)
    rows, items, ranks, scores = (
        np.concatenate([getattr(top, name) for top in found])
        for name in ("rows", "items", "ranks", "scores")
    )
    columns = [
        pa.array(column(users, "index")[rows].astype(np.int32)),
        pa.array((items + first).astype(np.int32)),
        users.column("id").take(pa.array(rows)),
        candidates.column("id").take(pa.array(items)),
        pa.array(ranks),
        pa.array(scores),
    ]
    return pa.Table.from_arrays(columns, _COLUMNS)

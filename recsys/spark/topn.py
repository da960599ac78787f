"""Top-N for all users on the cluster, from saved factors.

Where the vectors of all items fit every worker's memory, they are sent there once and each batch
of users is ranked by the kernel of `recsys.topn`. Otherwise users and items are split into blocks,
each pair of blocks is ranked in the same way, and the lists are merged. The result is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lowrank.kernels import at_most
from lowrank.spark.arrow import cogroup_in_arrow, column, lists, map_in_arrow, matrix, table_of
from recsys.errors import DataError, UnknownIdError
from recsys.models.base import FactorModel, Floats
from recsys.spark.files import Place, staged
from recsys.spark.results import SparkModel
from recsys.spark.session import BROADCAST_LIMIT, spark_session, watching
from recsys.topn import csr_exclusion, top_n

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["recommend", "top_items"]

_LEAST_BLOCK = 1000  # items
_USERS_PER_PART = 100_000
_NAMED = 3  # unknown ids in a message
_WRITTEN = ["user", "item", "rank", "score"]
_COLUMNS = ["user_index", "item_index", "user", "item", "rank", "score"]


def recommend(
    model: str,
    out: str,
    n: int = 10,
    *,
    exclude_seen: bool = True,
    items: Sequence[Any] | None = None,
    block: Sequence[Any] | None = None,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    overwrite: bool = False,
    broadcast_limit: int = BROADCAST_LIMIT,
    say: Callable[[str], None] | None = None,
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
        Bytes up to which the vectors of all items are sent to every Python worker.
    say : callable, optional
        Called with a few words on the progress.

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
        return _is_recommendations(spark, place)

    with (
        spark_session(master, conf) as spark,
        watching(spark, "recommending", say),
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
        rows = folder.child("rows")
        found.select(*_WRITTEN).write.parquet(rows.uri)
        for name in rows.names():
            rows.child(name).move_to(folder.child(name))
        rows.delete()


def top_items(
    spark: SparkSession,
    model: SparkModel,
    n: int,
    *,
    exclude_seen: bool = True,
    items: Sequence[Any] | None = None,
    block: Sequence[Any] | None = None,
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
    from pyspark.sql import functions as sql

    if n < 1:
        raise DataError(f"n must be at least 1; got {n}.")
    candidates = _marked(spark, model.items(spark), items, block)
    queries = model.users(spark) if users is None else users
    seen = sql.col("others") if exclude_seen else sql.array().cast("array<int>")
    queries = queries.select("index", "id", "bias", "factors", seen.alias("others"))
    types = (dict(queries.dtypes)["id"], dict(candidates.dtypes)["id"])
    ranking = _Ranking(model.global_mean, n)
    width = 4 * (model.factors + 1)
    if model.n_items * width <= broadcast_limit:
        whole = _Candidates.of(table_of(candidates.sort("index")))
        shared: Any = spark.sparkContext.broadcast(whole)

        def rank(batches: Iterator[Any]) -> Iterator[Any]:
            for batch in batches:
                yield from ranking.table(batch, shared.value).combine_chunks().to_batches()

        return map_in_arrow(queries, rank, _schema(*types))
    size = max(_LEAST_BLOCK, broadcast_limit // width)
    return _by_blocks(queries, candidates, ranking, model, size, types)


@dataclass(frozen=True, eq=False)
class _Candidates:
    """Consecutive items, and which of them may be recommended."""

    first: int
    factors: Floats
    bias: Floats
    ids: Any
    allowed: NDArray[np.bool_] | None

    @classmethod
    def of(cls, table: pa.Table) -> _Candidates:
        """Return the candidates of a table of consecutive items."""
        allowed = column(table, "allowed").astype(bool)
        return cls(
            int(table.column("index")[0].as_py()),
            matrix(table, "factors"),
            column(table, "bias"),
            table.column("id").combine_chunks(),
            None if allowed.all() else allowed,
        )


@dataclass(frozen=True)
class _Ranking:
    """Mean of the model, and length of the lists."""

    mean: float
    n: int

    def table(self, users: Any, candidates: _Candidates) -> pa.Table:
        """Rank the candidates for a batch of users, as a table with `_COLUMNS`."""
        import pyarrow as pa

        indptr, seen = lists(users, "others")
        arrays = {
            "global_mean": np.asarray(self.mean),
            "user_bias": column(users, "bias"),
            "item_bias": candidates.bias,
            "user_factors": matrix(users, "factors"),
            "item_factors": candidates.factors,
        }
        places = (seen - candidates.first).astype(np.int32)
        with at_most(1):  # Spark runs a task on each core
            tops = top_n(
                FactorModel._from_arrays({}, arrays),
                np.arange(len(indptr) - 1),
                self.n,
                exclude=csr_exclusion(indptr, places),
                allowed=candidates.allowed,
            )
            found = list(tops)
        rows, items, ranks, scores = (
            np.concatenate([getattr(top, name) for top in found])
            for name in ("rows", "items", "ranks", "scores")
        )
        columns = [
            pa.array(column(users, "index")[rows].astype(np.int32)),
            pa.array((items + candidates.first).astype(np.int32)),
            users.column("id").take(pa.array(rows)),
            candidates.ids.take(pa.array(items)),
            pa.array(ranks),
            pa.array(scores),
        ]
        return pa.Table.from_arrays(columns, _COLUMNS)


def _by_blocks(
    users: DataFrame,
    items: DataFrame,
    ranking: _Ranking,
    model: SparkModel,
    size: int,
    types: tuple[str, str],
) -> DataFrame:
    """Rank each block of users against each block of `size` items, and merge."""
    from pyspark.sql import Window
    from pyspark.sql import functions as sql

    spark = users.sparkSession
    blocks = -(-model.n_items // size)
    parts = max(spark.sparkContext.defaultParallelism, -(-model.n_users // _USERS_PER_PART))
    item_block = sql.floor(sql.col("index") / size).cast("int")
    sent_items = items.withColumn("block_to", item_block).crossJoin(
        spark.range(parts).select(sql.col("id").cast("int").alias("part_to"))
    )
    start = sql.col("block") * size
    in_block = sql.filter("others", lambda item: (item >= start) & (item < start + size))
    sent_users = (
        users.withColumn("part", sql.pmod("index", sql.lit(parts)).cast("int"))
        .crossJoin(spark.range(blocks).select(sql.col("id").cast("int").alias("block")))
        .withColumn("others", in_block)
    )

    def rank(left: pa.Table, right: pa.Table) -> pa.Table:
        return ranking.table(left, _Candidates.of(right.sort_by("index")))

    found = cogroup_in_arrow(
        sent_users, sent_items, ["part", "block"], ["part_to", "block_to"], rank, _schema(*types)
    )
    order = Window.partitionBy("user_index").orderBy(sql.desc("score"), "item_index")
    merged = found.withColumn("rank", sql.row_number().over(order).cast("int"))
    return merged.where(sql.col("rank") <= ranking.n).select(*_COLUMNS)


def _marked(
    spark: SparkSession, items: DataFrame, only: Sequence[Any] | None, block: Sequence[Any] | None
) -> DataFrame:
    """Add to the items whether they may be recommended."""
    from pyspark.sql import functions as sql

    marked = items.select("index", "id", "bias", "factors", sql.lit(True).alias("allowed"))
    for listed, wanted in ((only, True), (block, False)):
        if listed is None:
            continue
        names = sorted({str(each) for each in listed})
        table = spark.createDataFrame([(name,) for name in names], "name string")
        here = sql.col("id").cast("string")
        unknown = table.join(marked, table["name"] == here, "left_anti").sort("name")
        missing = [row["name"] for row in unknown.take(_NAMED + 1)]
        if missing:
            more = ", ..." if len(missing) > _NAMED else ""
            raise UnknownIdError(
                f"The model has no item {', '.join(map(repr, missing[:_NAMED]))}{more}."
            )
        listed_here = marked.join(sql.broadcast(table), here == sql.col("name"), "left")
        is_listed = sql.col("name").isNotNull()
        marked = listed_here.withColumn(
            "allowed", sql.col("allowed") & (is_listed if wanted else ~is_listed)
        ).drop("name")
    return marked


def _schema(user: str, item: str) -> str:
    return f"user_index int, item_index int, user {user}, item {item}, rank int, score float"


def _is_recommendations(spark: SparkSession, place: Place) -> bool:
    """Return whether a folder has recommendations, or nothing, so that it may be replaced."""
    if not place.is_folder():
        return False
    names = [name for name in place.names() if not name.startswith(("_SUCCESS", "."))]
    if not all(name.endswith(".parquet") for name in names):
        return False
    return not names or spark.read.parquet(place.uri).columns == _WRITTEN

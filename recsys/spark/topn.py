"""Top-N lists for all users on a cluster, by the kernel of `recsys.topn` in every worker.

Items above the broadcast limit are split into blocks, and the lists of all blocks are merged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np

from lowrank.kernels import at_most
from lowrank.kernels.topk import Ties
from lowrank.spark import arrow
from recsys.errors import DataError, UnknownIdError
from recsys.models.base import FactorModel, obscurity
from recsys.spark.results import Place, SparkModel, staged
from recsys.spark.session import BROADCAST_LIMIT, reported, spark_session
from recsys.topn import CsrPairs, TopN, top_n, user_ties

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    IdsLike = Sequence[int | str]

_LEAST_BLOCK = 1000  # minimum number of items in a block
_NAMED = 3  # maximum number of unknown ids in a message
_LOWEST = np.int64(
    -(2**63)
)  # exclusive or with it converts the order of unsigned integers
_WRITTEN = ["user", "item", "rank", "score"]


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
    say: Callable[[str], None] | None = None,
) -> None:
    """Recommend the n best items to each user of a model, as partitioned Parquet.

    Parameters
    ----------
    model : str
        Path of a model that `fit` wrote.
    out : str
        Folder for Parquet files with the columns user, item, rank and score. It is created when the
        lists are complete, and may replace only other recommendations.
    n : int
        Maximum number of items per user.
    exclude_seen : bool
        Whether to leave out the items that the user has rated.
    items, block : sequence of item ids, optional
        The only items to recommend, and items never to recommend.
    master, conf, overwrite, broadcast_limit, say
        As for `fit`.

    Raises
    ------
    DataError, UnknownIdError
        If n is below 1, or an item of `items` or `block` is unknown.
    EngineError, ModelFileError
        As for `fit`.
    """

    def replaceable(place: Place) -> bool:
        names = place.sizes() if place.is_folder() else {"": 0}
        if not all(name.endswith(".parquet") for name in names):
            return False
        return not names or spark.read.parquet(place.uri).columns == _WRITTEN

    with (
        spark_session(master, conf) as spark,
        reported(spark, say) as begin,
        staged(spark, out, replaceable, overwrite=overwrite) as folder,
    ):
        fitted = SparkModel.open(spark, model)
        options: dict[str, Any] = {
            "exclude_seen": exclude_seen,
            "broadcast_limit": broadcast_limit,
        }
        found = top_items(spark, fitted, n, items=items, block=block, **options)
        begin(f"recommending to {fitted.training['users']:,} users")
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
    by_user: bool = False,
    broadcast_limit: int = BROADCAST_LIMIT,
) -> DataFrame:
    """Return the n best items of each user, as `recommend` writes them.

    The columns are user_index, item_index, user, item, rank and score. `users` are rows of the
    table of users, by default all. The random order of equal scores is the same for all users, or
    differs `by_user`, for an evaluation.

    Raises
    ------
    DataError
        If n is below 1.
    """
    from pyspark.sql import DataFrame, Window
    from pyspark.sql import functions as sql

    if n < 1:
        raise DataError(f"n must be at least 1; got {n}.")
    candidates = model.table(spark, "items").select(
        "index", "id", "count", "bias", "factors"
    )
    most = candidates.agg(sql.max("count")).first()[0]
    weight, std = (
        model.parameters.get("popularity", 0.0),
        model.fitted.get("rating_std", 1.0),
    )
    candidates = candidates.withColumn("allowed", sql.lit(True))
    for listed, wanted in ((items, True), (block, False)):
        if listed is not None:
            candidates = _marked(candidates, listed, wanted=wanted)
    queries = model.table(spark, "users") if users is None else users
    user, item = (dict(table.dtypes)["id"] for table in (queries, candidates))
    schema = f"user_index int, item_index int, user {user}, item {item}, rank int, score float"
    schema += ", tie bigint"
    mean = model.fitted["global_mean"]
    size = max(_LEAST_BLOCK, broadcast_limit // (4 * (model.parameters["factors"] + 1)))

    def ranked(first: int) -> DataFrame:
        is_near = sql.col("index").between(first, first + size - 1)
        table = arrow.table_of(candidates.where(is_near).sort("index")).combine_chunks()
        off = obscurity(np.log1p(arrow.column(table, "count")), most, std)
        bias = arrow.column(table, "bias") - np.float32(weight) * off
        hashes = arrow.hashes(table, "id")
        table = table.drop_columns(["bias", "count"]).append_column("bias", [bias])
        table = table.append_column("hash", [hashes])
        shared: Any = spark.sparkContext.broadcast(table)

        def rank(batches: Iterator[Any]) -> Iterator[Any]:
            for batch in batches:
                found = _ranked(batch, shared.value, mean, n, by_user=by_user)
                yield from found.combine_chunks().to_batches()

        seen = sql.array().cast("array<int>")
        if exclude_seen:
            seen = sql.filter(
                "others", lambda each: each.between(first, first + size - 1)
            )
        rows = queries.select("index", "id", "bias", "factors", seen.alias("others"))
        return arrow.map_in_arrow(rows, rank, schema)

    blocks = [ranked(first) for first in range(0, model.training["items"], size)]
    if len(blocks) == 1:
        return blocks[0].drop("tie")
    order = Window.partitionBy("user_index").orderBy(sql.desc("score"), "tie")
    merged = reduce(DataFrame.unionAll, blocks)
    merged = merged.withColumn("rank", sql.row_number().over(order).cast("int"))
    return merged.where(sql.col("rank") <= n).drop("tie")


def _marked(candidates: DataFrame, listed: IdsLike, *, wanted: bool) -> DataFrame:
    """Allow only the listed items if `wanted`, otherwise only the others."""
    from pyspark.sql import functions as sql

    rows = [(name,) for name in sorted({str(each) for each in listed})]
    table = candidates.sparkSession.createDataFrame(rows, "name string")
    here = sql.col("id").cast("string") == sql.col("name")
    unknown = table.join(candidates, here, "left_anti").sort("name").take(_NAMED + 1)
    if unknown:
        names = ", ".join(repr(row["name"]) for row in unknown[:_NAMED])
        more = ", ..." if len(unknown) > _NAMED else ""
        raise UnknownIdError(f"The model has no item {names}{more}.")
    marked = candidates.join(sql.broadcast(table), here, "left")
    fits = sql.col("name").isNotNull() == sql.lit(wanted)
    return marked.withColumn("allowed", sql.col("allowed") & fits).drop("name")


def _ranked(
    users: Any, candidates: pa.Table, mean: float, n: int, *, by_user: bool
) -> pa.Table:
    """Rank consecutive items for a batch of users."""
    import pyarrow as pa

    indptr, seen = arrow.lists(users, "others")
    allowed = arrow.column(candidates, "allowed").astype(bool)
    first = int(arrow.column(candidates, "index")[0])
    arrays = {
        "global_mean": np.asarray(mean),
        "user_bias": arrow.column(users, "bias"),
        "item_bias": arrow.column(candidates, "bias"),
        "user_factors": arrow.matrix(users, "factors"),
        "item_factors": arrow.matrix(candidates, "factors"),
    }
    ties = Ties(arrow.column(candidates, "hash"))
    if by_user:
        ties = user_ties(ties.items, arrow.hashes(users, "id"))
    with at_most(1):  # Spark runs a task on each core
        tops = top_n(
            FactorModel._from_arrays({}, arrays),
            np.arange(len(indptr) - 1),
            n,
            exclude=CsrPairs(indptr, (seen - first).astype(np.int32)),
            allowed=None if allowed.all() else allowed,
            ties=ties,
        )
        found = TopN.joined(tops)
    columns = {
        "user_index": arrow.column(users, "index")[found.rows].astype(np.int32),
        "item_index": (found.items + first).astype(np.int32),
        "user": users.column("id").take(pa.array(found.rows)),
        "item": candidates.column("id").take(pa.array(found.items)),
        "rank": found.ranks,
        "score": found.scores,
        "tie": ties.places(found.rows, found.items).astype(np.int64) ^ _LOWEST,
    }
    return pa.table(columns)

"""Top-N lists for all users on a cluster: `recsys.ranking.topn` in every worker."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from lowrank.kernels import at_most
from lowrank.kernels.topk import Ties
from lowrank.spark.arrow import map_in_arrow, table_of
from recsys.data.ids import Ids
from recsys.errors import DataError, UnknownIdError
from recsys.ranking.topn import CsrPairs, TopN, top_n, user_ties
from recsys.spark.files import SparkPath, staged
from recsys.spark.results import SparkModel, flat, ordinary_model
from recsys.spark.session import Say, spark_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    IdsLike = Sequence[int | str]

_NAMED = 3  # maximum number of unknown ids in a message
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
    say: Say | None = None,
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
    master, conf, overwrite, say
        As for `fit`.

    Raises
    ------
    DataError, UnknownIdError
        If n is below 1, or an item of `items` or `block` is unknown.
    EngineError, ModelFileError
        As for `fit`.
    """

    def replaceable(folder: SparkPath) -> bool:
        if not folder.is_folder():
            return False
        names = folder.sizes()
        if not all(name.endswith(".parquet") for name in names):
            return False
        return not names or spark.read.parquet(folder.uri).columns == _WRITTEN

    with (
        spark_session(master, conf) as spark,
        staged(spark, out, replaceable, overwrite=overwrite) as folder,
    ):
        fitted = SparkModel.open(spark, model)
        lists = top_items(
            spark, fitted, n, exclude_seen=exclude_seen, items=items, block=block
        )
        if say is not None:
            say(f"recommending to {fitted.training['users']:,} users")
        lists.select(*_WRITTEN).write.parquet(folder.uri)


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
) -> DataFrame:
    """Return the n best items of each user, as `recommend` writes them.

    The columns are user_index, item_index, user, item, rank and score. `users` are rows of the
    table of users, by default all. The random order of equal scores is the same for all users, or
    differs `by_user`, for an evaluation. The vectors of all items are sent to every worker.

    Raises
    ------
    DataError
        If n is below 1.
    """
    if n < 1:
        raise DataError(f"n must be at least 1; got {n}.")
    item_rows = model.table(spark, "items").select(
        "index", "id", "count", "bias", "factors"
    )
    item_table: Any = pl.from_arrow(table_of(item_rows.sort("index")))
    allowed = _allowed(item_table["id"], items, block)
    shared: Any = spark.sparkContext.broadcast(item_table)
    queries = model.table(spark, "users") if users is None else users

    def rank(batches: Iterator[Any]) -> Iterator[Any]:
        candidates = shared.value
        ties = Ties(Ids(candidates["id"], "item", sort=False).hashes)
        for batch in batches:
            table: Any = pl.from_arrow(batch)
            order = ties
            if by_user:
                order = user_ties(
                    ties.items, Ids(table["id"], "user", sort=False).hashes
                )
            lengths = table["others"].list.len().to_numpy() * exclude_seen
            seen = (
                flat(table["others"], np.int32)
                if exclude_seen
                else np.zeros(0, np.int32)
            )
            with at_most(1):  # Spark runs a task on each core
                tops = top_n(
                    ordinary_model(model, table, candidates),
                    np.arange(len(table)),
                    n,
                    exclude=CsrPairs(
                        np.append(0, np.cumsum(lengths)).astype(np.int64), seen
                    ),
                    allowed=allowed,
                    ties=order,
                )
                top = TopN.joined(tops)
            lists = pl.DataFrame(
                {
                    "user_index": table["index"].gather(top.rows),
                    "item_index": top.items.astype(np.int32),
                    "user": table["id"].gather(top.rows),
                    "item": candidates["id"].gather(top.items),
                    "rank": top.ranks,
                    "score": top.scores,
                }
            )
            yield from lists.to_arrow(compat_level=pl.CompatLevel.oldest()).to_batches()

    user, item = (dict(frame.dtypes)["id"] for frame in (queries, item_rows))
    schema = f"user_index int, item_index int, user {user}, item {item}, rank int, score float"
    rows = queries.select("index", "id", "bias", "factors", "others")
    return map_in_arrow(rows, rank, schema)


def _allowed(
    labels: pl.Series, items: IdsLike | None, block: IdsLike | None
) -> np.ndarray[Any, Any] | None:
    """Return which items may be recommended, None for all."""
    if items is None and block is None:
        return None
    names = labels.cast(pl.String)
    allowed = np.ones(len(labels), np.bool_)
    for chosen, is_allowed in ((items, True), (block, False)):
        if chosen is None:
            continue
        texts = pl.Series(sorted({str(item) for item in chosen}), dtype=pl.String)
        unknown = texts.filter(~texts.is_in(names.implode())).to_list()
        if unknown:
            listed = ", ".join(map(repr, unknown[:_NAMED]))
            more = ", ..." if len(unknown) > _NAMED else ""
            raise UnknownIdError(f"The model has no item {listed}{more}.")
        allowed &= names.is_in(texts.implode()).to_numpy() == is_allowed
    return allowed

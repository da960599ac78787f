"""Top-N lists for all users on a cluster: `recsys.ranking.topn` in every worker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from lowrank.kernels import at_most
from lowrank.kernels.topk import Ties
from recsys.data.ids import Ids
from recsys.errors import DataError, check_flags
from recsys.ranking.topn import CsrPairs, TopN, top_n, user_ties
from recsys.spark.files import SparkPath, staged
from recsys.spark.results import SparkModel, flat, item_table, offsets
from recsys.spark.results import ordinary_model as ordinary_model
from recsys.spark.session import Say, spark_session
from recsys.spark.workers import map_frames

IdsLike = Sequence[int | str]

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
        Folder for Parquet files with the columns user, item, rank and score. It is
        created when the lists are complete, and may replace only other recommendations.
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

    if n < 1:
        raise DataError(f"n must be at least 1; got {n}.")
    check_flags(exclude_seen=exclude_seen)
    with (
        spark_session(master, conf) as spark,
        staged(spark, out, replaceable, overwrite=overwrite) as folder,
    ):
        fitted = SparkModel.open(spark, model)
        catalogue = item_table(fitted, spark)
        ids = Ids(catalogue["id"], "item", sort=False)
        allowed = _allowed(ids, items, block)
        # Each worker gets the items once, not once with each of its tasks.
        shared: Any = spark.sparkContext.broadcast(catalogue)

        def ranked(users: pl.DataFrame) -> pl.DataFrame:
            catalogue = shared.value
            top = top_items(
                ordinary_model(fitted, users, catalogue),
                users,
                catalogue["id"],
                n,
                exclude_seen=exclude_seen,
                allowed=allowed,
            )
            return pl.DataFrame(
                {
                    "user": users["id"].gather(top.rows),
                    "item": catalogue["id"].gather(top.items),
                    "rank": top.ranks,
                    "score": top.scores,
                }
            )

        rows = fitted.table(spark, "users")
        rows = rows.select("id", "bias", "factors", "others")
        kinds = [
            dict(fitted.table(spark, side).dtypes)["id"] for side in ("users", "items")
        ]
        types = dict(zip(_WRITTEN, (*kinds, "int", "float"), strict=True))
        if say is not None:
            say(f"recommending to {fitted.training['users']:,} users")
        map_frames(rows, ranked, types).write.parquet(folder.uri)


def top_items(
    model: Any,
    users: pl.DataFrame,
    item_ids: pl.Series,
    n: int,
    *,
    exclude_seen: bool = True,
    allowed: np.ndarray[Any, Any] | None = None,
    by_user: bool = False,
) -> TopN:
    """Return the n best items of each of some users, whom `model` has.

    The random order of equal scores is the same for all users, or differs `by_user`,
    for an evaluation.
    """
    ties = Ties(Ids(item_ids, "item", sort=False).hashes)
    if by_user:
        hashes = Ids(users["id"], "user", sort=False).hashes
        ties = user_ties(ties.items, hashes)
    # The items that each user has had, as rows of a CSR matrix, or no items.
    indptr = offsets(users["others"]) * exclude_seen
    seen = flat(users["others"], np.int32)[: indptr[-1]]
    with at_most(1):  # Spark runs a task on each core
        tops = top_n(
            model,
            np.arange(len(users)),
            n,
            exclude=CsrPairs(indptr, seen),
            allowed=allowed,
            ties=ties,
        )
        return TopN.joined(tops)


def _allowed(
    ids: Ids, items: IdsLike | None, block: IdsLike | None
) -> np.ndarray[Any, Any] | None:
    """Return which items may be recommended, None for all."""
    if items is None and block is None:
        return None
    allowed = np.full(len(ids), items is None)
    if items is not None:
        allowed[ids.index(items)] = True
    if block is not None:
        allowed[ids.index(block)] = False
    return allowed

"""MLlib's alternating least squares: the sweeps that begin a fit of `als`, and implicit ALS."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from recsys.spark.files import Place

__all__ = ["MLlibSettings", "blocks_for", "mllib_factors", "mllib_penalty"]

_RATINGS_PER_BLOCK = 2_000_000
_LEAST_BLOCKS, _MOST_BLOCKS = 4, 2000
_CHECKPOINT_EVERY = 5  # sweeps; a lost executor costs at most so many again


@dataclass(frozen=True)
class MLlibSettings:
    """Parameters of MLlib's ALS.

    Attributes
    ----------
    factors, iterations, seed : int
    penalty : float
        MLlib multiplies it by the number of ratings of a user or item (Zhou et al. 2008).
    blocks : int
        Number of blocks of users, and of items.
    alpha : float or None
        Implicit feedback, with confidence 1 + alpha times the value; None for ratings.
    """

    factors: int
    iterations: int
    seed: int
    penalty: float
    blocks: int
    alpha: float | None = None


def mllib_factors(
    ratings: DataFrame, settings: MLlibSettings, scratch: Place
) -> tuple[DataFrame, DataFrame]:
    """Run MLlib's ALS.

    Parameters
    ----------
    ratings : DataFrame
        Columns user, item and rating.
    settings : MLlibSettings
    scratch : Place
        Where the checkpoints go.

    Returns
    -------
    users, items : DataFrame
        Columns index and factors.
    """
    from pyspark.ml.recommendation import ALS

    ratings.sparkSession.sparkContext.setCheckpointDir(scratch.child("checkpoints").uri)
    als = ALS(
        rank=settings.factors,
        maxIter=settings.iterations,
        regParam=settings.penalty,
        numUserBlocks=settings.blocks,
        numItemBlocks=settings.blocks,
        implicitPrefs=settings.alpha is not None,
        alpha=1.0 if settings.alpha is None else settings.alpha,
        userCol="user",
        itemCol="item",
        ratingCol="rating",
        nonnegative=False,
        coldStartStrategy="drop",
        checkpointInterval=_CHECKPOINT_EVERY,
        seed=settings.seed,
    )
    fitted: Any = als.fit(ratings)
    users, items = fitted.userFactors, fitted.itemFactors
    return users.toDF("index", "factors"), items.toDF("index", "factors")


def blocks_for(n_ratings: int) -> int:
    """Return the number of blocks for so many ratings.

    It depends on nothing else, so that the same seed gives the same result on any cluster: MLlib
    draws its starting point block by block.
    """
    return max(_LEAST_BLOCKS, min(_MOST_BLOCKS, -(-n_ratings // _RATINGS_PER_BLOCK)))


def mllib_penalty(
    regularization: float, rating_std: float, user_weight: float, item_weight: float
) -> float:
    """Return MLlib's penalty, lambda times n, that is nearest to that of `als`, lambda s n^g.

    With a scaled by t and m by 1/t the model is the same, so that only the product of the two
    sides' penalties counts: the geometric mean is taken. For g = 1 they are the same penalties.

    Parameters
    ----------
    regularization, rating_std : float
        lambda and s.
    user_weight, item_weight : float
        n^(g - 1), averaged over the ratings, for users and for items.
    """
    return float(regularization * rating_std * (user_weight * item_weight) ** 0.5)

"""Topics of a model with non-negative factors as data frames."""

from __future__ import annotations

import numpy as np
import polars as pl

from recsys.data.ratings import Ratings
from recsys.errors import DataError
from recsys.models.base import FactorModel, Model
from recsys.models.nonnegative import has_topics
from recsys.models.parts import Floats, Indices
from recsys.ranking.topn import check_n

_NAMED_BY = 3  # number of items that name a topic
_SUPPORT = 10  # number of ratings at which the weight of an item in a topic is halved


class Topics:
    """Topics of a model, numbered from 1, with the items that have the largest weights.

    `ratings` are the ratings that the model was fitted to.

    Raises
    ------
    DataError
        If the model has no topics.
    """

    def __init__(self, model: Model, ratings: Ratings) -> None:
        if not isinstance(model, FactorModel) or not has_topics(model):
            raise DataError(
                f"The {model.name} model has no topics; fit als or ials with nonnegative=True "
                "(-p nonnegative=true)."
            )
        self._model = model
        self._items = ratings.items
        self._titles = ratings.titles
        counts = ratings.counts("item")
        # The mean contribution of a topic to the scores of an item, shrunk as similarities are.
        mean = model._source.user_vectors().mean(axis=0, dtype=np.float64)
        confidence = (counts / (counts + _SUPPORT))[:, None]
        weights = model.item_vectors() * mean * confidence
        self.weights: Floats = weights.astype(np.float32)

    def top_items(self, topic: int, n: int) -> Indices:
        """Return the indices of the n items with the largest positive weights in a topic."""
        weights = self.weights[:, topic]
        order = np.lexsort((self._items.hashes, -weights))[:n]
        return order[weights[order] > 0]

    def name(self, topic: int) -> str:
        """Return the first items of a topic as a text, by titles where these are known."""
        items = self.top_items(topic, _NAMED_BY)
        names = self._items.take(items).cast(pl.String)
        if self._titles is not None:
            names = self._titles[items].fill_null(names)
        return "; ".join(names)

    def frame(self, n: int) -> pl.DataFrame:
        """Return the frame of `Recommender.topics`."""
        check_n(n)
        frames = []
        for topic in range(self.weights.shape[1]):
            items = self.top_items(topic, n)
            columns = {
                "topic": np.full(len(items), topic + 1, np.int32),
                "item": self._items.take(items),
                "rank": np.arange(1, len(items) + 1, dtype=np.int32),
                "weight": self.weights[items, topic],
            }
            if self._titles is not None:
                columns["title"] = self._titles[items]
            frames.append(pl.DataFrame(columns))
        return pl.concat(frames)

    def explained(
        self,
        user: int,
        item: int,
        n: int | None,
    ) -> pl.DataFrame:
        """Return the contributions of topics to a score, as `Recommender.explain` does."""
        if n is not None:
            check_n(n)
        model = self._model
        shares = model.item_vectors()[item] * model.user_vectors()[user]
        order = np.argsort(-shares, kind="stable")[: np.count_nonzero(shares)]
        rows: list[tuple[str, int | None, float, str | None]] = []
        discount = float(model._list_bias[item])
        if discount:
            rows.append(("popularity", None, discount, None))
        for topic in order[:n].tolist():
            share = float(shares[topic])
            rows.append(("topic", topic + 1, share, self.name(topic)))
        smaller = shares[order[len(order[:n]) :]]
        if len(smaller):
            total = float(smaller.sum(dtype=np.float64))
            rows.append(("others", None, total, None))
        schema = {
            "part": pl.String,
            "topic": pl.Int32,
            "contribution": pl.Float32,
            "items": pl.String,
        }
        return pl.DataFrame(rows, schema, orient="row")

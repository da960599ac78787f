"""Topics of a model with non-negative factors as data frames."""

from __future__ import annotations

import numpy as np
import polars as pl

from recsys.data.ratings import Ratings
from recsys.errors import DataError
from recsys.models.base import FactorModel, Model
from recsys.models.nonnegative import has_topics, topic_shares, topic_weights
from recsys.models.parts import Floats, Indices
from recsys.ranking.topn import check_n

_NAMED_BY = 3  # number of items that name a topic


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
        self.weights: Floats = topic_weights(model, counts)

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
        lists = [self.top_items(topic, n) for topic in range(self.weights.shape[1])]
        lengths = [len(items) for items in lists]
        topics = np.repeat(np.arange(len(lists)), lengths)
        items = np.concatenate(lists)
        ranks = [np.arange(1, length + 1) for length in lengths]
        columns = [
            pl.Series("topic", topics + 1, dtype=pl.Int32),
            self._items.take(items).alias("item"),
            pl.Series("rank", np.concatenate(ranks), dtype=pl.Int32),
            pl.Series("weight", self.weights[items, topics]),
        ]
        if self._titles is not None:
            columns.append(self._titles[items].alias("title"))
        return pl.DataFrame(columns)

    def explained(self, user: int, item: int, n: int | None) -> pl.DataFrame:
        """Return the contributions of topics to a score, as `Recommender.explain` does."""
        if n is not None:
            check_n(n)
        model = self._model
        shares = topic_shares(model, user, np.array([item]))[0]
        n_positive = np.count_nonzero(shares)
        order = np.argsort(-shares, kind="stable")[:n_positive].tolist()
        largest = order[:n]
        rows: list[tuple[str, int | None, float, str | None]] = []
        discount = float(model._list_bias[item])
        if discount:
            rows.append(("popularity", None, discount, None))
        rows += [
            ("topic", topic + 1, float(shares[topic]), self.name(topic))
            for topic in largest
        ]
        if len(largest) < len(order):
            remainder = shares[order[len(largest) :]].sum(dtype=np.float64)
            rows.append(("others", None, float(remainder), None))
        schema = {
            "part": pl.String,
            "topic": pl.Int32,
            "contribution": pl.Float32,
            "items": pl.String,
        }
        return pl.DataFrame(rows, schema, orient="row")

"""Predicted ratings: of pairs, of all that is missing, and what each one is made of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from recsys.cold_start import predict_cold
from recsys.data.frames import column, listed, to_polars
from recsys.errors import DataError
from recsys.learning import Learner, inability
from recsys.models.abilities import Explains, HasUncertainty
from recsys.models.base import Floats, Histories, Indices
from recsys.topn import check_n, csr_exclusion
from recsys.training import clip_to_range

__all__ = ["ColdPair", "Predictor", "check_choice"]

ColdPair = Literal["error", "bias", "popular"]

_BLOCK_PAIRS = 2**20  # pairs imputed at a time


class Predictor(Learner):
    """A recommender that says what a rating would be."""

    def predict(
        self, pairs: Any, *, cold_start: ColdPair = "error", std: bool = False
    ) -> pl.DataFrame:
        """Predict the rating of each pair of a user and an item.

        Parameters
        ----------
        pairs : polars or pandas frame, or an object with the Arrow C stream interface
            Columns user and item; others are ignored.
        cold_start : {"error", "bias", "popular"}
            What pairs get whose user or item is unknown: an error; the global mean plus the bias
            of the side that is known; or the damped mean rating of the item (see `Popular`), and
            the mean of all ratings for an unknown item.
        std : bool
            Add the column std (Float32): the standard deviation of each prediction, for models
            that know it; null where the user or item is unknown.

        Returns
        -------
        polars DataFrame
            Columns user and item as they were given, in their order, and prediction (Float32),
            clipped to the range of the training ratings unless these were implicit.

        Raises
        ------
        UnknownIdError
            If a user or item is unknown and `cold_start` is "error".
        DataError
            If a column is missing, an id is null, `cold_start` is "bias" and the model has
            no biases, or `std` is asked of a model that does not know it.
        NotFittedError
            Before `fit`.
        """
        check_choice("cold_start", cold_start, ("error", "bias", "popular"))
        ratings = self.ratings
        frame = to_polars(pairs)
        user, item = column(frame, "user"), column(frame, "item")
        if cold_start == "error":
            users, items = ratings.users.index(user), ratings.items.index(item)
            predicted = self.model.predict(users, items)
        else:
            users, items = ratings.users.find(user), ratings.items.find(item)
            popular = self._popular if cold_start == "popular" else None
            predicted = predict_cold(self.model, popular, users, items)
        if self.model.predicts_ratings:
            predicted = clip_to_range(predicted, self.training)
        found = pl.DataFrame(
            [user.alias("user"), item.alias("item"), pl.Series("prediction", predicted)]
        )
        return found.with_columns(self._std(users, items)) if std else found

    def impute(
        self, users: Any = None, items: Any = None, *, missing_only: bool = True
    ) -> Iterator[pl.DataFrame]:
        """Predict the ratings of whole users, a block of pairs at a time.

        Arguments are checked at once, before the first frame is asked for.

        Parameters
        ----------
        users, items : id or sequence of ids, optional
            Predict for these users, and of these items, each once; all if not given.
        missing_only : bool
            Leave out the pairs that are rated.

        Yields
        ------
        polars DataFrame
            Columns user, item, prediction, as `predict` gives them: users in the order asked, the
            items of each in theirs. About a million pairs at a time are held in memory.

        Raises
        ------
        UnknownIdError
            If a user or item is unknown.
        DataError
            If the model does not predict ratings, or the ratings are implicit.
        NotFittedError
            Before `fit`.
        """
        ratings = self.ratings
        if not self.model.predicts_ratings or ratings.implicit:
            what = "data are implicit feedback" if ratings.implicit else "scores are no ratings"
            raise DataError(
                f"Only ratings can be imputed, and these {what}; fit a model such as "
                "'als' to ratings with values."
            )
        asked_users = np.arange(ratings.n_users) if users is None else _once(ratings.users, users)
        asked_items = np.arange(ratings.n_items) if items is None else _once(ratings.items, items)
        size = max(1, _BLOCK_PAIRS // max(1, len(asked_items)))
        return (
            self._imputed(asked_users[start : start + size], asked_items, missing_only)
            for start in range(0, max(1, len(asked_users)), size)
        )

    def explain(self, user: Any, item: Any, n: int | None = None) -> pl.DataFrame:
        """Take the score of an item for a user apart, into what each rating of the user adds.

        Parameters
        ----------
        user, item : id
        n : int, optional
            Show the n largest contributions, up or down, and the sum of the others; all if not
            given.

        Returns
        -------
        polars DataFrame
            Columns part ("base", "item" or "others"), item, rating (of that item; absent for
            implicit feedback), contribution (Float32) and title where titles are known. The first
            row is the base, what the score would be without the ratings of the user; the largest
            contributions come first, then the sum of the others if there are any. All
            contributions together are the score, to rounding and before it is clipped.

        Raises
        ------
        UnknownIdError
            If the user or the item is unknown.
        DataError
            If n is below 1, the scores of the model are no sums over the items of the user, or
            items were folded in, which users are scored for by other items than these.
        NotFittedError
            Before `fit`.
        """
        ratings = self.ratings
        if not isinstance(self.model, Explains):
            raise inability(self.model, Explains, "take its scores apart")
        if "user" in self._counts_from:
            raise DataError(
                "Scores of folded-in items cannot be taken apart: they are sums over a user's "
                "other items; update(ratings) adds the new ones to the model itself."
            )
        if n is not None:
            check_n(n)
        u, i = int(ratings.users.index([user])[0]), ratings.items.index([item])
        rated = slice(ratings.indptr[u], ratings.indptr[u + 1])
        indices, values = ratings.indices[rated], ratings.values[rated]
        history = Histories(np.array([0, len(indices)], dtype=np.int64), indices, values)
        explanation = self.model.contributions(history, i)
        return self._explained(explanation.base[0], explanation.terms[0], indices, values, n)

    def _std(self, users: Indices, items: Indices) -> pl.Series:
        if not isinstance(self.model, HasUncertainty):
            raise inability(self.model, HasUncertainty, "tell the uncertainty of a prediction")
        known = (users >= 0) & (items >= 0)
        found = np.full(len(users), np.nan, dtype=np.float32)
        found[known] = self.model.predict_std(users[known], items[known])
        return pl.Series("std", found, nan_to_null=True)

    def _imputed(self, users: Indices, items: Indices, missing_only: bool) -> pl.DataFrame:
        wanted = np.ones((len(users), len(items)), dtype=np.bool_)
        if missing_only:
            column_of = np.full(self.ratings.n_items, -1)
            column_of[items] = np.arange(len(items))
            rows, rated = csr_exclusion(self.ratings.indptr, self.ratings.indices)(users)
            columns = column_of[rated]
            wanted[rows[columns >= 0], columns[columns >= 0]] = False
        rows, columns = np.nonzero(wanted)
        predicted = self.model.predict(users[rows], items[columns])
        return pl.DataFrame(
            [
                self.ratings.users.take(users[rows]),
                self.ratings.items.take(items[columns]),
                pl.Series("prediction", clip_to_range(predicted, self.training)),
            ]
        )

    def _explained(
        self,
        base: np.float32,
        terms: Floats,
        rated: NDArray[np.int32],
        values: Floats,
        n: int | None,
    ) -> pl.DataFrame:
        order = np.argsort(-np.abs(terms), kind="stable")
        shown, rest = order[:n], order[n:] if n is not None else order[:0]
        tail = 1 if len(rest) else 0
        parts = ["base", *["item"] * len(shown), *["others"] * tail]
        amounts = [base, *terms[shown], *[terms[rest].sum(dtype=np.float64)] * tail]
        places = pl.Series([None, *rated[shown], *[None] * tail], dtype=pl.Int64)
        columns = [
            pl.Series("part", parts),
            self.ratings.items.values.gather(places).alias("item"),
            pl.Series("contribution", amounts, dtype=pl.Float32),
        ]
        if not self.ratings.implicit:
            given = pl.Series("rating", [None, *values[shown], *[None] * tail], dtype=pl.Float32)
            columns.insert(2, given)
        if self._titles is not None:
            columns.append(self._titles.gather(places).alias("title"))
        return pl.DataFrame(columns)


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Refuse a value that is none of the choices."""
    if value not in choices:
        raise DataError(f"{name} must be one of {', '.join(choices)}; got {value!r}.")


def _once(ids: Any, queries: Any) -> Indices:
    """Return the indices of ids, each once, in the order of the queries."""
    found = ids.index(listed(queries))
    _, first = np.unique(found, return_index=True)
    kept: Indices = found[np.sort(first)]
    return kept

"""Predicted ratings as frames: pairs, whole users, and explanations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import polars as pl

from recsys.cold_start import predict_cold
from recsys.data.frames import FrameLike, as_frame, column, listed
from recsys.data.ids import Ids, IdsLike
from recsys.data.ratings import Ratings
from recsys.errors import DataError
from recsys.models.abilities import Explains, HasUncertainty
from recsys.models.base import Floats, Histories, Indices, Model, Step
from recsys.models.baselines import Popular
from recsys.models.registry import MODELS, model_class
from recsys.topn import check_n, csr_exclusion

_BLOCK_PAIRS = 2**20  # pairs imputed at a time


def training_summary(ratings: Ratings, seconds: float, last: Step | None) -> dict[str, Any]:
    """Return the facts of a fit that are saved with a model."""
    explicit = not ratings.implicit
    return {
        "users": ratings.n_users,
        "items": ratings.n_items,
        "ratings": ratings.n_ratings,
        "implicit": ratings.implicit,
        "rating_min": float(ratings.values.min()) if explicit else None,
        "rating_max": float(ratings.values.max()) if explicit else None,
        "seconds": round(seconds, 3),
        "sweeps": last.step if last else None,
        "train_rmse": last.train_rmse if last else None,
        "validation_rmse": last.validation_rmse if last else None,
    }


def clip_to_range(predicted: Floats, training: Mapping[str, Any]) -> Floats:
    """Clip predictions to the range of the training ratings; implicit feedback has none."""
    if training["implicit"]:
        return predicted
    return np.clip(predicted, training["rating_min"], training["rating_max"])


def predicted_pairs(
    model: Model,
    ratings: Ratings,
    training: Mapping[str, Any],
    pairs: FrameLike,
    cold_start: str,
    popular: Popular | None,
    *,
    std: bool,
) -> pl.DataFrame:
    """Return the predictions of pairs, as `Recommender.predict` describes them.

    Raises
    ------
    DataError
        If a column or id is missing, or the model has no biases, or no standard deviations, where
        they are requested.
    """
    frame = as_frame(pairs)
    user, item = column(frame, "user"), column(frame, "item")
    if cold_start == "error":
        users, items = ratings.users.index(user), ratings.items.index(item)
        predicted = model.predict(users, items)
    else:
        users, items = ratings.users.find(user), ratings.items.find(item)
        predicted = predict_cold(model, popular, users, items)
    if model.predicts_ratings:
        predicted = clip_to_range(predicted, training)
    columns = [user.alias("user"), item.alias("item"), pl.Series("prediction", predicted)]
    if std:
        if not isinstance(model, HasUncertainty):
            raise unsupported(model, HasUncertainty, "tell how uncertain it is")
        known = (users >= 0) & (items >= 0)
        found = np.full(len(users), np.nan, dtype=np.float32)
        found[known] = model.predict_std(users[known], items[known])
        columns.append(pl.Series("std", found, nan_to_null=True))
    return pl.DataFrame(columns)


def imputed(
    model: Model,
    ratings: Ratings,
    training: Mapping[str, Any],
    users: IdsLike | None,
    items: IdsLike | None,
    *,
    missing_only: bool,
) -> Iterator[pl.DataFrame]:
    """Return the frames of `Recommender.impute`; arguments are checked at once.

    Raises
    ------
    DataError
        If the model does not predict ratings, or the ratings are implicit.
    """
    if not model.predicts_ratings or ratings.implicit:
        reason = "the data are implicit feedback"
        if not ratings.implicit:
            reason = f"the scores of the {model.name} model are not ratings"
        raise DataError(
            f"Only ratings can be imputed, and {reason}; fit a model such as 'als' to ratings with "
            "values."
        )
    rows, columns = _distinct(ratings.users, users), _distinct(ratings.items, items)
    return _blocks(model, ratings, training, rows, columns, missing_only)


def _blocks(
    model: Model,
    ratings: Ratings,
    training: Mapping[str, Any],
    users: Indices,
    items: Indices,
    missing_only: bool,
) -> Iterator[pl.DataFrame]:
    size = max(1, _BLOCK_PAIRS // max(1, len(items)))
    column_of = np.full(ratings.n_items, -1)
    column_of[items] = np.arange(len(items))
    for start in range(0, max(1, len(users)), size):
        block = users[start : start + size]
        wanted = np.ones((len(block), len(items)), dtype=np.bool_)
        if missing_only:
            rows, rated = csr_exclusion(ratings.indptr, ratings.indices)(block)
            columns = column_of[rated]
            wanted[rows[columns >= 0], columns[columns >= 0]] = False
        rows, columns = np.nonzero(wanted)
        predicted = clip_to_range(model.predict(block[rows], items[columns]), training)
        ids = ratings.users.take(block[rows]), ratings.items.take(items[columns])
        yield pl.DataFrame([*ids, pl.Series("prediction", predicted)])


def _distinct(ids: Ids, queries: IdsLike | None) -> Indices:
    """Return the indices of ids, each once, in the order of the queries; all without queries."""
    if queries is None:
        return np.arange(len(ids))
    found = ids.index(listed(queries))
    _, first = np.unique(found, return_index=True)
    return found[np.sort(first)]


def explained(
    model: Model,
    ratings: Ratings,
    user: int | str,
    item: int | str,
    n: int | None,
    titles: pl.Series | None,
) -> pl.DataFrame:
    """Return one explained score as a frame: the base, the n largest terms, the sum of the others.

    Raises
    ------
    DataError
        If n is below 1, or the model's scores are not sums over ratings.
    """
    if not isinstance(model, Explains):
        raise unsupported(model, Explains, "explain its scores")
    if n is not None:
        check_n(n)
    u, i = int(ratings.users.index([user])[0]), ratings.items.index([item])
    own = slice(ratings.indptr[u], ratings.indptr[u + 1])
    rated, values = ratings.indices[own], ratings.values[own]
    history = Histories(np.array([0, len(rated)], dtype=np.int64), rated, values)
    explanation = model.contributions(history, i)
    base, terms = explanation.base[0], explanation.terms[0]
    order = np.argsort(-np.abs(terms), kind="stable")
    shown, rest = order[:n], order[n:] if n is not None else order[:0]
    others = [None] if len(rest) else []
    sums = [terms[rest].sum(dtype=np.float64)] if len(rest) else []
    places = pl.Series([None, *rated[shown], *others], dtype=pl.Int64)
    columns = [
        pl.Series("part", ["base", *["item"] * len(shown), *["others"] * len(others)]),
        ratings.items.values.gather(places).alias("item"),
    ]
    if not ratings.implicit:
        columns.append(pl.Series("rating", [None, *values[shown], *others], dtype=pl.Float32))
    columns.append(pl.Series("contribution", [base, *terms[shown], *sums], dtype=pl.Float32))
    if titles is not None:
        columns.append(titles.gather(places).alias("title"))
    return pl.DataFrame(columns)


def unsupported(model: Model, ability: Any, action: str) -> DataError:
    """Return the error of a model without an ability; it names the models that have it."""
    able = ", ".join(name for name in sorted(MODELS) if issubclass(model_class(name), ability))
    return DataError(f"The {model.name} model cannot {action}; these models can: {able or 'none'}.")

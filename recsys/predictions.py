"""Predicted ratings as frames: clipping, imputation, uncertainty and explanations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from recsys.data.ratings import Ratings
from recsys.models.abilities import HasUncertainty
from recsys.models.base import Explanation, Floats, Indices, Model
from recsys.topn import csr_exclusion

__all__ = ["clip_to_range", "explanation_frame", "imputed_batches", "standard_deviations"]

_BLOCK_PAIRS = 2**20  # pairs imputed at a time


def clip_to_range(predicted: Floats, training: Mapping[str, Any]) -> Floats:
    """Clip predictions to the range of the training ratings; implicit feedback has none."""
    if training["implicit"]:
        return predicted
    return np.clip(predicted, training["rating_min"], training["rating_max"])


def standard_deviations(model: HasUncertainty, users: Indices, items: Indices) -> pl.Series:
    """Return the column std of pairs, null where an index is -1."""
    known = (users >= 0) & (items >= 0)
    found = np.full(len(users), np.nan, dtype=np.float32)
    found[known] = model.predict_std(users[known], items[known])
    return pl.Series("std", found, nan_to_null=True)


def imputed_batches(
    model: Model,
    ratings: Ratings,
    training: Mapping[str, Any],
    users: Indices,
    items: Indices,
    *,
    missing_only: bool,
) -> Iterator[pl.DataFrame]:
    """Yield the predictions of all pairs of some users and items, about a million at a time.

    Parameters
    ----------
    model : Model
        Fitted to `ratings`.
    ratings : Ratings
    training : mapping
        Summary of the fit, with the range of the ratings.
    users, items : int64 ndarrays
        Distinct indices.
    missing_only : bool
        Leave out the pairs that are rated.
    """
    size = max(1, _BLOCK_PAIRS // max(1, len(items)))
    for start in range(0, max(1, len(users)), size):
        block = users[start : start + size]
        wanted = np.ones((len(block), len(items)), dtype=np.bool_)
        if missing_only:
            column_of = np.full(ratings.n_items, -1)
            column_of[items] = np.arange(len(items))
            rows, rated = csr_exclusion(ratings.indptr, ratings.indices)(block)
            columns = column_of[rated]
            wanted[rows[columns >= 0], columns[columns >= 0]] = False
        rows, columns = np.nonzero(wanted)
        predicted = model.predict(block[rows], items[columns])
        yield pl.DataFrame(
            [
                ratings.users.take(block[rows]),
                ratings.items.take(items[columns]),
                pl.Series("prediction", clip_to_range(predicted, training)),
            ]
        )


def explanation_frame(
    explanation: Explanation,
    ratings: Ratings,
    rated: NDArray[np.int32],
    values: Floats,
    titles: pl.Series | None,
    n: int | None,
) -> pl.DataFrame:
    """Return one explained score as a frame: the base, the n largest terms, the sum of the others.

    Parameters
    ----------
    explanation : Explanation
        Of one item.
    ratings : Ratings
    rated, values : ndarrays of shape (n_rated,)
        Indices of the items that the user has rated, and the ratings.
    titles : Series or None
        Of all items.
    n : int or None
        All terms if None.
    """
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

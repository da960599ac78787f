"""Folding in: models of new users, from their ratings, with the rest as it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np
import polars as pl

from recsys.cold_start import FeaturesLike, described_user
from recsys.data.csr import Entries, Values, compact_times, encode, to_csr
from recsys.data.features import TableLike
from recsys.data.frames import FrameLike, as_frame, column, column_names
from recsys.data.ids import Ids, as_id_series
from recsys.data.ratings import Ratings, table_of
from recsys.data.rows import rating_problem, rating_values
from recsys.data.times import unix_seconds
from recsys.errors import DataError
from recsys.models.abilities import FoldsInUsers
from recsys.models.base import Model
from recsys.models.histories import Histories
from recsys.predictions import unsupported

if TYPE_CHECKING:
    from recsys.data.encoder import FeatureEncoder

HistoryLike: TypeAlias = "FrameLike | Mapping[Any, float]"

NEW_USER = "new"  # of a history without user ids


def folded_users(
    model: Model,
    known: Ratings,
    histories: HistoryLike | None,
    user_table: TableLike | None = None,
    user_features: FeaturesLike | None = None,
) -> tuple[Model, Ratings]:
    """Return a model of new users, and their ratings; see `Recommender.fold_in`.

    Raises
    ------
    DataError
    """
    if not isinstance(model, FoldsInUsers):
        raise unsupported(model, FoldsInUsers, "fold in new users")
    described = None
    if user_features is not None:
        described = described_user(user_features, model, known)
    elif histories is None:
        raise DataError("New users need histories or user_features; got neither.")
    rated = {} if histories is None else histories
    new = new_users(rated, known, user_table, needs_values=model._needs_values)
    if described is not None:
        if new.n_users != 1:
            raise DataError(f"user_features are of one user; the histories have {new.n_users}.")
        new = replace(new, user_features=described)
    if model.uses_features:
        return cast(Any, model).with_users(Histories.of(new), new.user_features), new
    return model.with_users(Histories.of(new)), new


def new_users(
    source: HistoryLike, known: Ratings, user_table: TableLike | None = None, *, needs_values: bool
) -> Ratings:
    """Return ratings of the known items by the users of `source`; see `Recommender.fold_in`.

    Raises
    ------
    DataError
    """
    frame: pl.DataFrame | Any
    if isinstance(source, Mapping):
        mixed = any(isinstance(each, str) for each in source)
        ids = as_id_series([str(each) if mixed else each for each in source], "item")
        ratings = pl.Series("rating", [*source.values()], dtype=pl.Float64, strict=False)
        for item, value, rating in zip(source, source.values(), ratings, strict=True):
            if rating is None:
                problem = rating_problem(value) or f"rating {value!r} is not a number."
                raise DataError(f"Item {item!r}: {problem}")
        frame = pl.DataFrame([ids, ratings])
        users, user_codes = Ids([NEW_USER], "user"), np.zeros(len(frame), np.int32)
    else:
        try:
            frame = as_frame(source)
        except DataError:
            raise DataError(
                "A history is a mapping of items to ratings, or a frame with the columns user, "
                f"item and rating; got {type(source).__name__}."
            ) from None
        users, user_codes = encode(as_id_series(column(frame, "user"), "user"), "user")
    items = known.items.index(column(frame, "item")).astype(np.int32)
    seconds = None
    if known.seconds is not None and "timestamp" in column_names(frame):
        seconds = compact_times(unix_seconds(column(frame, "timestamp")).to_numpy())
    entries = Entries(user_codes, items, _values(frame, known, needs_values), seconds)
    csr = to_csr(entries, (len(users), len(known.items)))
    table = table_of(user_table, users) or known.user_table
    if table is not None and not (table.rows_of(users) >= 0).any():
        table = None
    encoder: FeatureEncoder | None = getattr(known.user_features, "encoder", None)
    features = None if encoder is None or table is None else encoder.transform(table, users)
    changes: dict[str, Any] = {"users": users, "user_table": table, "user_features": features}
    changes |= {"indptr": csr.indptr, "indices": csr.indices, "seconds": csr.seconds}
    data, levels = csr.values
    return replace(known, **changes, data=data, levels=levels, n_duplicates=csr.n_duplicates)


def _values(frame: Any, known: Ratings, needs_values: bool) -> Values | None:
    """Return the values that count for a model of `known`; None for ones."""
    if "rating" not in column_names(frame):
        if needs_values:
            raise DataError(
                "The model needs ratings with values, but the history has no column 'rating'."
            )
        return None
    values = rating_values(column(frame, "rating")).to_numpy()
    return None if known.implicit and not known.weighted else Values.of(values)

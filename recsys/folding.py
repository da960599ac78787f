"""Folding in of new users and items by their ratings or features, without refitting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np
import polars as pl

from recsys.changes import check_range, encoded_rows
from recsys.data.axis import Axis
from recsys.data.columns import of_roles, usual_column
from recsys.data.csr import CSR, Entries, Values, compact_times, encode, to_csr
from recsys.data.events import Collected, EventRule
from recsys.data.features import Features, TableLike
from recsys.data.frames import FrameLike, as_frame, column_names, to_polars
from recsys.data.ids import Ids, as_id_series, query_series
from recsys.data.ratings import Ratings, ratings_of_frame, table_of, with_collected
from recsys.data.rows import rating_problem, rating_values
from recsys.data.times import unix_seconds
from recsys.errors import DataError
from recsys.models import abilities
from recsys.models.base import Model
from recsys.models.histories import Histories
from recsys.models.parts import Mask
from recsys.predictions import unsupported

if TYPE_CHECKING:
    pass

HistoryLike: TypeAlias = "FrameLike | Mapping[Any, float] | Sequence[Any]"

FeaturesLike: TypeAlias = "str | Mapping[str, Any]"
"""Features of a user: ``"age=30, job=student"``, or a mapping such as ``{"age": 30}``."""

NEW_USER = "new"  # user id of a history without ids


def folded_users(
    model: Model,
    known: Ratings,
    histories: HistoryLike | None,
    user_table: TableLike | None = None,
    user_features: FeaturesLike | None = None,
    reading: Mapping[str, Any] | None = None,
) -> tuple[Model, Ratings]:
    """Return a model of new users, and their ratings; see `Recommender.fold_in`.

    `reading` has the options with which the known ratings were read.

    Raises
    ------
    DataError
    """
    if not isinstance(model, abilities.FoldsInUsers):
        raise unsupported(model, abilities.FoldsInUsers, "fold in new users")
    if histories is user_features is None:
        raise DataError("New users need histories or user_features; got neither.")
    encoder = known.axis("user").encoder
    if user_features is not None and not model.uses_features:
        raise unsupported(model, abilities.KnowsFeatures, "use features of users")
    if user_features is not None and encoder is None:
        raise DataError(
            f"The {model.name} model was fitted without features of users; fit it to ratings with "
            "a table of users (user_table, --user-table)."
        )
    rated = {} if histories is None else histories
    weighted = None if reading is None else _weighted_like(rated, known, reading)
    if weighted is not None:
        new = _of_known_items(weighted, known, user_table)
    else:
        new = new_users(rated, known, user_table, needs_values=model._needs_values)
    if user_features is not None and encoder is not None:
        described = encoder.row(user_features, known.user_table)
        if new.n_users != 1:
            raise DataError(
                f"user_features need a single user; the histories have {new.n_users}."
            )
        new = replace(new, user_features=described)
    return abilities.folded_in(model, "user", Histories.of(new), new.user_features), new


def folded_items(
    model: Model,
    known: Ratings,
    histories: FrameLike,
    item_table: TableLike | None = None,
) -> tuple[Model, Ratings]:
    """Return a model of new items, and their ratings; see `Recommender.fold_in_items`.

    Raises
    ------
    DataError
    """
    if not isinstance(model, abilities.FoldsInItems):
        raise unsupported(model, abilities.FoldsInItems, "fold in new items")
    new, rows = new_items(
        histories, known, item_table, needs_values=model._needs_values
    )
    return abilities.folded_in(model, "item", rows, new.item_features), new


def _weighted_like(
    source: Any, known: Ratings, reading: Mapping[str, Any]
) -> Ratings | None:
    """Return a frame of interactions with weights like the known ratings.

    They come from the kinds, the ages and the quantities of events, as far as the frame has
    such columns. None if it has none of them, or has weights as ratings.
    """
    if not known.implicit or isinstance(source, Mapping | list | tuple):
        return None
    frame = as_frame(cast(FrameLike, source))
    names, like = column_names(frame), {**reading, "implicit": True}
    if "rating" in names:
        return None
    options = {"event": "event_weights", "weight": "weight", "timestamp": "half_life"}
    for role, option in options.items():
        if like.get(option) is not None and not _has_role(names, role, like):
            like[option] = None
    if all(like.get(option) is None for option in options.values()):
        return None
    columns = to_polars(frame, names)
    if "user" not in names and usual_column(names, "user") is None:
        columns = columns.with_columns(pl.lit(NEW_USER).alias("user"))
    ratings = ratings_of_frame(columns, {"implicit": True}, like)
    half_life = ratings.rule.half_life
    if half_life is None or ratings.seconds is None or known.seconds is None:
        return ratings
    if not len(known.seconds) or not len(ratings.seconds):
        return ratings
    later = max(0.0, float(known.seconds.max()) - float(ratings.seconds.max()))
    weights = ratings.values * np.exp2(-later / half_life)
    return ratings.with_values(weights.astype(np.float32))


def _has_role(names: Sequence[str], role: str, reading: Mapping[str, Any]) -> bool:
    """Return whether a frame has the column of a role, by its first name or by a usual one."""
    if reading.get(role) in names:
        return True
    if role == "weight":
        return "value" in names
    return usual_column(names, role) is not None


def _of_known_items(
    ratings: Ratings, known: Ratings, table: TableLike | None
) -> Ratings:
    """Return ratings of new users with the indices of the known items."""
    items = known.items.index(ratings.items.values)[ratings.indices].astype(np.int32)
    entries = Entries(
        ratings.user_index_of_nonzeros(),
        items,
        Values.of(ratings.values.copy()),
        None if known.seconds is None else ratings.seconds,
    )
    csr = to_csr(entries, (ratings.n_users, known.n_items))
    return _ratings(known, ratings.users, known.items, csr, table)


def new_users(
    source: HistoryLike,
    known: Ratings,
    user_table: TableLike | None = None,
    *,
    needs_values: bool,
) -> Ratings:
    """Return ratings of the known items by the users of `source`; see `Recommender.fold_in`.

    Raises
    ------
    DataError
    """
    frame: pl.DataFrame | Any
    if isinstance(source, list | tuple) and not needs_values:
        source = dict.fromkeys(source, 1)
    if isinstance(source, Mapping):
        items = query_series([*source], "item")
        ratings = pl.Series(
            "rating", [*source.values()], dtype=pl.Float64, strict=False
        )
        for item, value, rating in zip(source, source.values(), ratings, strict=True):
            if rating is None:
                problem = rating_problem(value) or f"rating {value!r} is not a number."
                raise DataError(f"Item {item!r}: {problem}")
        frame = pl.DataFrame([items, ratings])
    else:
        try:
            frame = as_frame(cast(FrameLike, source))
        except DataError:
            raise DataError(
                "A history is a mapping of items to ratings, a list of items for a model of "
                "implicit feedback, or a frame with the columns user, item and rating; got "
                f"{type(source).__name__}."
            ) from None
    frame = of_roles(frame, ("item",), ("user", "rating", "timestamp"))
    users, user_codes = Ids([NEW_USER], "user"), np.zeros(len(frame), np.int32)
    if "user" in frame.columns:
        users, user_codes = encode(as_id_series(frame["user"], "user"), "user")
    item_codes = known.items.index(frame["item"]).astype(np.int32)
    entries = _entries(user_codes, item_codes, frame, known, needs_values)
    csr = to_csr(entries, (len(users), len(known.items)))
    return _ratings(known, users, known.items, csr, user_table)


def new_items(
    source: FrameLike,
    known: Ratings,
    item_table: TableLike | None = None,
    *,
    needs_values: bool,
) -> tuple[Ratings, Histories]:
    """Return ratings of the items of `source` by the known users, and their rows by item."""
    frame = of_roles(source, ("item", "user"), ("rating", "timestamp"))
    items, item_codes = encode(as_id_series(frame["item"], "item"), "item")
    user_codes = known.users.index(frame["user"]).astype(np.int32)
    entries = _entries(user_codes, item_codes, frame, known, needs_values)
    values = entries.values and Values(
        entries.values.data.copy(), entries.values.levels
    )
    turned = Entries(item_codes.copy(), user_codes.copy(), values, entries.seconds)
    rows = to_csr(turned, (len(items), len(known.users)))
    csr = to_csr(entries, (len(known.users), len(items)))
    ratings = _ratings(known, known.users, items, csr, item_table)
    return ratings, Histories(rows.indptr, rows.indices, rows.values.at(), rows.seconds)


def _entries(
    users: Any, items: Any, frame: pl.DataFrame, known: Ratings, needs_values: bool
) -> Entries:
    """Return entries with the values and times that a model of `known` uses."""
    entries = Entries(users, items)
    if "rating" in frame.columns:
        values = rating_values(frame["rating"]).to_numpy()
        if needs_values:
            check_range(values, known)
        is_one = known.implicit and not known.weighted
        entries.values = None if is_one else Values.of(values)
    elif needs_values:
        raise DataError(
            "The model needs ratings with values, but the history has no column 'rating'."
        )
    if known.seconds is not None and "timestamp" in frame.columns:
        entries.seconds = compact_times(
            unix_seconds(frame["timestamp"], exact=True).to_numpy()
        )
    return entries


def _ratings(
    known: Ratings, users: Ids, items: Ids, csr: CSR, table: TableLike | None
) -> Ratings:
    """Return ratings of new users or of new items, with `table` as their table."""
    ids = users if items is known.items else items
    fitted = known.axis(ids.kind)
    axis = Axis(ids, table_of(table, ids) or fitted.table)
    if not axis.in_table.any():
        axis = Axis(ids)
    if fitted.encoder is not None and axis.table is not None:
        axis = replace(axis, features=fitted.encoder.transform(axis.table, ids))
    return with_collected(known, Collected(csr, None, EventRule()), axis)


def is_new(ratings: Ratings, rated: Ratings) -> Mask | None:
    """Return a mask of items without ratings, or None if there are none or items have no features.

    `rated` has the training ratings of the items.
    """
    if ratings.item_features is None:
        return None
    mask: Mask = rated.counts("item") == 0
    return mask if mask.any() else None


def with_tables(
    model: Model,
    ratings: Ratings,
    item_table: TableLike | None,
    user_table: TableLike | None,
    *,
    learns: bool,
) -> tuple[Model, Ratings]:
    """Return a model and ratings with other tables; see `Recommender.with_tables`.

    If the model `learns`, unknown items and users in the tables are added to it.
    """
    for side, new_table in (("item", item_table), ("user", user_table)):
        axis = ratings.axis(side)
        table = table_of(new_table, axis.ids)
        if table is None:
            continue
        if axis.table is not None and not (table.rows_of(axis.ids) >= 0).any():
            table = axis.table.updated(table)  # of new ids only
        ratings = ratings.with_axes(replace(axis, table=table))
        if learns:
            model, ratings = extended(model, ratings, table)
    return model, ratings


def extended(model: Model, ratings: Ratings, table: Features) -> tuple[Model, Ratings]:
    """Return a model extended by the new items (or users) of a table, using their features.

    Existing rows do not change. A model without features is returned unchanged.
    """
    side = table.kind
    axis = ratings.axis(side)
    if axis.features is None or not (
        isinstance(model, abilities.KnowsFeatures) and model.knows(side)
    ):
        return model, ratings
    from recsys.data.feature_selection import with_ids  # few models have features

    wider = with_ids(ratings, axis.ids, table)
    ids = wider.axis(side).ids
    features: Any = encoded_rows(axis, table, None, ids)
    if features is None or features is axis.features:
        return model, ratings
    is_added = axis.ids.find(ids.values) < 0
    added_ids = ids.values.filter(is_added)
    order = np.argsort(ids.find(pl.concat([axis.ids.values, added_ids])))
    added = replace(features, matrix=features.matrix[is_added])
    wider = wider.with_axes(Axis(ids, axis.table, features))
    return model.widened(side, order, added), wider

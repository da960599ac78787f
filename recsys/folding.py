"""Folding in of new users and items by their ratings or features, without refitting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import polars as pl

from recsys.changes import check_range, encoded_rows
from recsys.data.axis import Axis
from recsys.data.columns import of_roles, usual_column
from recsys.data.csr import Entries, Values, compact_times, encode, to_csr
from recsys.data.events import Collected, collect, common_kinds
from recsys.data.features import Features, TableLike
from recsys.data.frames import FrameLike, as_frame, column_names, to_polars
from recsys.data.ids import Ids, as_id_series, query_series
from recsys.data.kinds import EventRule
from recsys.data.ratings import Ratings, ratings_of_frame, table_of, with_collected
from recsys.data.rows import rating_problem, rating_values, truths
from recsys.data.times import unix_seconds
from recsys.errors import DataError
from recsys.models import abilities
from recsys.models.base import Model
from recsys.models.histories import Histories
from recsys.models.parts import Mask

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
        raise abilities.unsupported(model, abilities.FoldsInUsers, "fold in new users")
    if histories is user_features is None:
        raise DataError("New users need histories or user_features; got neither.")
    encoder = known.axis("user").encoder
    if user_features is not None and not model.uses_features:
        raise abilities.unsupported(
            model, abilities.KnowsFeatures, "use features of users"
        )
    if user_features is not None and encoder is None:
        raise DataError(
            f"The {model.name} model was fitted without features of users; fit it to ratings with "
            "a table of users (user_table, --user-table)."
        )
    # A user may be described by features alone.
    rated: Any = {} if histories is None else histories
    # Arrays, and Series and Index of polars and pandas, are lists of items; frames are not.
    if isinstance(rated, np.ndarray) or hasattr(rated, "to_list"):
        rated = list(rated)
    weighted = None if reading is None else _weighted_like(rated, known, reading, model)
    # Weighted interactions have the kinds and the ages of events, which a frame of ratings lacks.
    if weighted is None:
        frame = _history_frame(rated, needs_values=model._needs_values)
        new = _new_ratings(model, frame, known, "user", user_table)
    else:
        items = known.items.index(weighted.items.values)[weighted.indices]
        entries = Entries(
            weighted.user_index_of_nonzeros(),
            items.astype(np.int32),
            Values.of(weighted.values.copy()),
            None if known.seconds is None else weighted.seconds,
        )
        new = _with_new(known, weighted.users, entries, user_table)
        if weighted.rule.kinds:
            new = _with_kinds(new, weighted, known.rule)
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
        raise abilities.unsupported(model, abilities.FoldsInItems, "fold in new items")
    frame = of_roles(histories, ("item", "user"), ("rating", "timestamp"))
    new = _new_ratings(model, frame, known, "item", item_table)
    rows = Histories.of_items(new, np.arange(new.n_items))
    return abilities.folded_in(model, "item", rows, new.item_features), new


def _weighted_like(
    source: Any,
    known: Ratings,
    reading: Mapping[str, Any],
    model: Model,
) -> Ratings | None:
    """Return a frame of interactions with weights like the known ratings.

    They come from the kinds, the ages and the quantities of events, as far as the frame has
    such columns. None if it has none of them, or has weights as ratings.
    """
    is_weighted = known.implicit or known.rule.graded
    if not is_weighted or isinstance(source, Mapping | list | tuple):
        return None
    frame = _as_frame(source)
    names = column_names(frame)
    if "rating" in names:
        return None
    like = {**reading, "implicit": True}
    options = {"event": "event_weights", "weight": "weight", "timestamp": "half_life"}
    present = {role for role in options if reading.get(role) in names}
    if "value" in names:
        present.add("weight")
    for role in ("event", "timestamp"):
        if usual_column(names, role) is not None:
            present.add(role)
    for role in options.keys() - present:
        like[options[role]] = None
    has_kinds = "event" in present and bool(known.rule.kinds)
    if not has_kinds and all(like.get(option) is None for option in options.values()):
        return None
    columns = to_polars(frame, names)
    if "user" not in names and usual_column(names, "user") is None:
        columns = columns.with_columns(pl.lit(NEW_USER).alias("user"))
    is_timed = usual_column(names, "timestamp") is not None
    if model.uses_order and known.seconds is not None and not is_timed:
        # Rows without times came one after the other, as if up to the newest event.
        newest = float(known.seconds.max(initial=0))
        times = newest - np.arange(len(columns))[::-1]
        columns = columns.with_columns(timestamp=pl.Series(times))
    ratings = ratings_of_frame(columns, {"implicit": True}, like)
    if known.rule.graded:
        return ratings.with_dislikes_as_grades()
    half_life = ratings.rule.half_life
    if half_life is None or ratings.seconds is None or known.seconds is None:
        return ratings
    if not len(known.seconds) or not len(ratings.seconds):
        return ratings
    # The weights count from the newest event of the model, as those in the model do.
    ends = []
    for part in (known, ratings):
        seconds = part.seconds if part.events is None else part.events.seconds
        assert seconds is not None
        ends.append(float(seconds.max()))
    later = max(0.0, ends[0] - ends[1])
    weights = ratings.values * np.exp2(-later / half_life)
    weighted = ratings.with_values(weights.astype(np.float32))
    return replace(weighted, events=ratings.events, rule=ratings.rule)


def _with_kinds(
    new: Ratings,
    weighted: Ratings,
    known: EventRule,
) -> Ratings:
    """Return ratings of new users with the events behind them, which have kinds.

    The kinds that other users have are known, too.
    """
    assert weighted.events is not None
    users = np.arange(weighted.n_users)
    items = new.items.index(weighted.items.values)
    events = weighted.events.renumbered(users, weighted.n_users, items)
    kinds, weights = common_kinds([known, weighted.rule])
    codes = np.array([kinds.index(kind) for kind in weighted.rule.kinds], np.uint8)
    return replace(
        new,
        events=replace(events, kinds=codes[events.kinds]),
        rule=replace(weighted.rule, kinds=kinds, weights=weights),
    )


def _as_frame(source: Any) -> FrameLike:
    """Return `as_frame` of a frame of histories, or raise an error for other types."""
    try:
        return as_frame(source)
    except DataError:
        raise DataError(
            "A history is a mapping of items to ratings, a list of items for a model of "
            "implicit feedback, or a frame with the columns user, item and rating; got "
            f"{type(source).__name__}."
        ) from None


def _history_frame(source: HistoryLike, *, needs_values: bool) -> pl.DataFrame:
    """Return the histories of users as a frame.

    Raises
    ------
    DataError
    """
    frame: Any = source
    if isinstance(source, list | tuple) and not needs_values:
        # Of interactions, a list of items says everything; an item may come again.
        frame = pl.DataFrame(query_series(source, "item"))
    elif isinstance(source, Mapping):
        items = query_series([*source], "item")
        values = [*source.values()]
        ratings = pl.Series("rating", values, dtype=pl.Float64, strict=False)
        if needs_values:  # True would be the grade 1, the lowest of most scales
            are_flags = [isinstance(value, bool | np.bool_) for value in values]
            ratings = ratings.set(pl.Series(are_flags, dtype=pl.Boolean), None)
        if ratings.null_count():
            row = int(ratings.is_null().arg_max() or 0)
            value = values[row]
            problem = rating_problem(value) or f"rating {value!r} is not a number."
            raise DataError(f"Item {[*source][row]!r}: {problem}")
        frame = pl.DataFrame([items, ratings])
    else:
        frame = _as_frame(source)
    return of_roles(frame, ("item",), ("user", "rating", "timestamp"))


def _new_ratings(
    model: Model,
    frame: pl.DataFrame,
    known: Ratings,
    side: str,
    table: TableLike | None,
) -> Ratings:
    """Return the ratings in a frame by new users of known items, or of new items.

    They have the values and times that the model uses. Where the order counts, rows without
    times came one after the other.

    Raises
    ------
    DataError
    """
    ids = Ids([NEW_USER], "user")
    indices = {"user": np.zeros(len(frame), np.int32)}
    for axis in known.axes:
        kind = axis.ids.kind
        if kind != side:
            indices[kind] = axis.ids.index(frame[kind]).astype(np.int32)
        elif kind in frame.columns:
            ids, indices[kind] = encode(as_id_series(frame[kind], kind), kind)
    entries = Entries(indices["user"], indices["item"])
    if "rating" in frame.columns:
        if model._needs_values and frame["rating"].dtype == pl.Boolean:
            raise DataError("Ratings must be numbers; got Boolean values.")
        column = frame["rating"]
        if known.implicit and (liked := truths(column)) is not None:
            column = liked
        values = rating_values(column).to_numpy()
        if model._needs_values:
            check_range(values, known)
        if not known.implicit or known.weighted:
            entries.values = Values.of(values)
        elif known.feedback is not None:
            # Plain interactions are ones, without an array of values.
            entries = entries.take(values > 0)
            frame = frame.filter(pl.Series(values > 0))
    elif model._needs_values:
        raise DataError(
            "The model needs ratings with values, but the history has no column 'rating'."
        )
    if known.seconds is not None and "timestamp" in frame.columns:
        seconds = unix_seconds(frame["timestamp"], exact=True)
        entries.seconds = compact_times(seconds.to_numpy())
    elif model.uses_order:
        entries.seconds = np.arange(len(frame))
    if known.implicit and entries.values is not None:
        # Like a fit, which leaves out interactions without a positive weight.
        entries = entries.take(entries.values.at() > 0)
    return _with_new(known, ids, entries, table)


def _with_new(
    known: Ratings,
    ids: Ids,
    entries: Entries,
    table: TableLike | None,
) -> Ratings:
    """Return ratings of new users or of new items, with `table` as their table."""
    fitted = known.axis(ids.kind)
    axis = Axis(ids, table_of(table, ids) or fitted.table)
    # The table is of others: features of zeros would say something.
    if not axis.in_table.any():
        axis = Axis(ids)
    if fitted.encoder is not None and axis.table is not None:
        axis = replace(axis, features=fitted.encoder.transform(axis.table, ids))
    n_users, n_items = known.shape
    shape = (len(ids), n_items) if ids.kind == "user" else (n_users, len(ids))
    if entries.seconds is None:
        collected = Collected(to_csr(entries, shape), None, EventRule())
    else:
        # Repetitions are events of their own.
        collected = collect(entries, shape, EventRule(), implicit=False)
    return with_collected(known, collected, axis)


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
            # A table of known ids replaces the old one, which may be wrong.
            table = axis.table.updated(table)  # of new ids only
        ratings = ratings.with_axes(replace(axis, table=table))
        if learns:
            model, ratings = extended(model, ratings, table)
    return model, ratings


def extended(
    model: Model,
    ratings: Ratings,
    table: Features,
) -> tuple[Model, Ratings]:
    """Return a model extended by the new items (or users) of a table, using their features.

    Existing rows do not change. A model without features is returned unchanged.
    """
    side = table.kind
    axis = ratings.axis(side)
    if axis.features is None or not (
        isinstance(model, abilities.KnowsFeatures) and model.knows(side)
    ):
        return model, ratings
    from recsys.features.selection import with_ids  # few models have features

    wider = with_ids(ratings, axis.ids, table)
    ids = wider.axis(side).ids
    features: Any = encoded_rows(axis, table, None, ids)
    if features is None or features is axis.features:
        return model, ratings
    is_added = axis.ids.find(ids.values) < 0
    added_ids = ids.values.filter(is_added)
    # New ids are sorted in between the old ones.
    order = np.argsort(ids.find(pl.concat([axis.ids.values, added_ids])))
    added = replace(features, matrix=features.matrix[is_added])
    wider = wider.with_axes(Axis(ids, axis.table, features))
    return model.widened(side, order, added), wider

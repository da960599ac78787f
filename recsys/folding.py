"""Ratings of new users and items, and the union of old and new ratings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import polars as pl

from recsys.cold_start import FeaturesLike, described_user
from recsys.data.features import Features, TableLike
from recsys.data.frames import FrameLike, as_frame, column, column_names
from recsys.data.ids import Ids, as_id_series, encode
from recsys.data.ratings import Ratings, table_of
from recsys.data.rows import CSR, pair_keys, rating_problem, rating_values, to_csr
from recsys.errors import DataError
from recsys.models.abilities import FoldsInItems, FoldsInUsers, takes_start
from recsys.models.base import Histories, Model
from recsys.models.blend import Blend
from recsys.predictions import unsupported

if TYPE_CHECKING:
    from lowrank.completion.design import GroupedFeatures
    from recsys.data.encoder import FeatureEncoder
    from recsys.models.base import Indices

__all__ = [
    "NEW_USER",
    "HistoryLike",
    "check_scale",
    "folded_items",
    "folded_users",
    "has_grades",
    "merge_ratings",
    "new_items",
    "new_users",
    "reindexed",
    "warm_start",
]

HistoryLike: TypeAlias = "FrameLike | Mapping[Any, float]"

NEW_USER = "new"  # of a history without user ids
_GRADES = 20  # different ratings; of more, the next day may bring a larger one
_AXES = ("n_users", "n_items")
_ROWS = ("indptr", "indices", "values", "timestamps", "n_duplicates")


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


def folded_items(
    model: Model, known: Ratings, histories: FrameLike, item_table: TableLike | None = None
) -> tuple[Model, Ratings]:
    """Return a model of new items, and their ratings; see `Recommender.fold_in_items`.

    Raises
    ------
    DataError
    """
    if not isinstance(model, FoldsInItems):
        raise unsupported(model, FoldsInItems, "fold in new items")
    new, rows = new_items(histories, known, item_table, needs_values=model._needs_values)
    if model.uses_features:
        return cast(Any, model).with_items(rows, new.item_features), new
    return model.with_items(rows), new


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
        frame = _frame_of(source)
    else:
        try:
            frame = as_frame(source)
        except DataError:
            raise DataError(
                "A history is a mapping of items to ratings, or a frame with the columns user, "
                f"item and rating; got {type(source).__name__}."
            ) from None
    users, user_codes = encode(as_id_series(column(frame, "user"), "user"), "user")
    if isinstance(source, Mapping):
        users = Ids([NEW_USER], "user")
    item_codes = known.items.index(column(frame, "item")).astype(np.int32)
    values = _values(frame, known, needs_values)
    shape = len(users), len(known.items)
    csr = to_csr(pair_keys(user_codes, item_codes, shape), shape, values)
    return _ratings(known, users, known.items, csr, user_table)


def new_items(
    source: FrameLike, known: Ratings, item_table: TableLike | None = None, *, needs_values: bool
) -> tuple[Ratings, Histories]:
    """Return ratings of the items of `source` by the known users, and the rows of its items."""
    frame = as_frame(source)
    items, item_codes = encode(as_id_series(column(frame, "item"), "item"), "item")
    user_codes = known.users.index(column(frame, "user")).astype(np.int32)
    values = _values(frame, known, needs_values)
    shape = len(known.users), len(items)
    rows = to_csr(pair_keys(item_codes, user_codes, shape[::-1]), shape[::-1], values)
    csr = to_csr(pair_keys(user_codes, item_codes, shape), shape, values)
    ratings = _ratings(known, known.users, items, csr, item_table)
    return ratings, Histories(rows.indptr, rows.indices, rows.values)


def _frame_of(history: Mapping[Any, Any]) -> pl.DataFrame:
    mixed = any(isinstance(each, str) for each in history)
    items = as_id_series([str(each) if mixed else each for each in history], "item")
    values = list(history.values())
    ratings = pl.Series("rating", values, dtype=pl.Float64, strict=False)
    for item, value, rating in zip(history, values, ratings, strict=True):
        if rating is None:
            problem = rating_problem(value) or f"rating {value!r} is not a number."
            raise DataError(f"Item {item!r}: {problem}")
    users = pl.Series("user", [NEW_USER] * len(items), dtype=pl.String)
    return pl.DataFrame([users, items, ratings])


def _values(frame: Any, known: Ratings, needs_values: bool) -> npt.NDArray[np.float32] | None:
    """Return the values that count for a model of `known`; None for ones."""
    if "rating" not in column_names(frame):
        if needs_values:
            raise DataError(
                "The model needs ratings with values, but the history has no column 'rating'."
            )
        return None
    values = rating_values(column(frame, "rating")).to_numpy()
    return None if known.implicit and bool((known.values == 1).all()) else values


def _ratings(known: Ratings, users: Ids, items: Ids, csr: CSR, table: TableLike | None) -> Ratings:
    """Return ratings of new users or of new items; `table` is what is known of these."""
    side, ids = ("user", users) if items is known.items else ("item", items)
    own = table_of(table, ids) or getattr(known, f"{side}_table")
    if own is not None and not (own.rows_of(ids) >= 0).any():
        own = None
    encoder: FeatureEncoder | None
    encoder = getattr(getattr(known, f"{side}_features"), "encoder", None)
    features = encoder.transform(own, ids) if encoder is not None and own is not None else None
    changes: dict[str, Any] = {f"{side}s": ids, f"{side}_table": own, f"{side}_features": features}
    return replace(known, **changes, **{name: getattr(csr, name) for name in _ROWS})


def check_scale(new: Ratings, old: Ratings, training: Mapping[str, Any]) -> None:
    """Check that new ratings are in the range of the old ones, if these are grades.

    The range is in the summary of the fit, `training`.

    Raises
    ------
    DataError
    """
    low, high = training["rating_min"], training["rating_max"]
    if new.implicit or low is None:
        return
    outside = np.flatnonzero((new.values < low) | (new.values > high))
    if len(outside) and has_grades(old):
        user, item = new.user_index_of_nonzeros()[outside[0]], new.indices[outside[0]]
        raise DataError(
            f"Rating {new.values[outside[0]]:g} of item {new.items.values[int(item)]!r} by "
            f"user {new.users.values[int(user)]!r} is outside of the range of the model's "
            f"ratings, {low:g} to {high:g}; fit to all ratings if the scale is wider."
        )


def has_grades(ratings: Ratings) -> bool:
    """Return whether ratings are grades, of at most 20 different values."""
    return not ratings.implicit and len(np.unique(ratings.values)) <= _GRADES


def merge_ratings(old: Ratings, new: Ratings) -> Ratings:
    """Return the ratings of both; of a pair that is in both, the new one.

    Timestamps are kept if both have them. Of tables, the columns of both are kept, and the new row
    of a user or item that is in both.

    Raises
    ------
    DataError
    """
    if old.implicit != new.implicit:
        kinds = ["implicit" if each.implicit else "explicit" for each in (old, new)]
        raise DataError(
            f"The new ratings must be {kinds[0]}, as those of the model are; got {kinds[1]} ones."
        )
    before, after = old.to_frame(), new.to_frame()
    after = after.with_columns(_id_column(after[kind], old, kind) for kind in ("user", "item"))
    if old.implicit and "rating" in {*before.columns, *after.columns}:
        one = pl.lit(1.0, pl.Float32).alias("rating")
        before, after = (
            frame if "rating" in frame.columns else frame.with_columns(one)
            for frame in (before, after)
        )
    users, items = (
        Ids(pl.concat([mine.values, _id_column(theirs.values, old, mine.kind)]), mine.kind)
        for mine, theirs in ((old.users, new.users), (old.items, new.items))
    )
    old_keys, new_keys = (
        users.find(each["user"]) * len(items) + items.find(each["item"]) for each in (before, after)
    )
    kept = ~np.isin(old_keys, new_keys)
    columns = [name for name in before.columns if name in after.columns]
    rows = pl.concat([before.select(columns).filter(kept), after.select(columns)])
    keys = np.concatenate([old_keys[kept], new_keys])
    csr = to_csr(
        keys,
        (len(users), len(items)),
        rows["rating"].to_numpy() if "rating" in columns else None,
        rows["timestamp"].to_numpy() if "timestamp" in columns else None,
    )
    source = new.source
    if source is not None:
        source = replace(source, name=f"{source.name} and earlier ratings")
    item_table = _both(old.item_table, new.item_table, items)
    user_table = _both(old.user_table, new.user_table, users)
    arrays = csr.indptr, csr.indices, csr.values, csr.timestamps
    whole = Ratings(users, items, *arrays, old.implicit, item_table, user_table, source=source)
    item_features = _refitted(old.item_features, item_table, items)
    user_features = _refitted(old.user_features, user_table, users)
    return replace(whole, item_features=item_features, user_features=user_features)


def _refitted(
    features: GroupedFeatures | None, table: Features | None, ids: Ids
) -> GroupedFeatures | None:
    """Return the features that the same columns of a table have now."""
    encoder: FeatureEncoder | None = getattr(features, "encoder", None)
    if encoder is None or table is None:
        return None
    encoder = encoder.refitted(table, ids)
    return encoder.transform(table, ids) if encoder.blocks else None


def warm_start(model: Model, known: Ratings, whole: Ratings) -> dict[str, Any]:
    """Return the options of a fit to `whole` that begins where that to `known` ended, if it can."""
    if not takes_start(model):
        return {}
    users, items = whole.users.find(known.users.values), whole.items.find(known.items.values)
    return {"start": reindexed(model, users, items, whole.shape)}


def reindexed(model: Any, users: Indices, items: Indices, shape: tuple[int, int]) -> Any:
    """Return `model` with its users and items at other indices, and zeros elsewhere.

    `users` and `items` are the new indices, `shape` the new numbers of users and items. Of a blend,
    only the parts with which a fit can begin are changed.
    """
    if isinstance(model, Blend):
        moved_parts = [
            reindexed(part, users, items, shape) if takes_start(part) else part
            for part in model.parts
        ]
        return model.with_parts(moved_parts)
    places = dict(zip(_AXES, (users, items), strict=True))
    sizes = dict(zip(_AXES, shape, strict=True))
    axes_of = {field.name: field.metadata["axes"] for field in fields(model) if not field.init}
    moved = {}
    for name, array in model._arrays().items():
        for axis, along in enumerate(axes_of[name]):
            if along in places:
                wider = list(array.shape)
                wider[axis] = sizes[along]
                target = np.zeros(wider, array.dtype)
                target[(slice(None),) * axis + (places[along],)] = array
                array = target
        moved[name] = np.asarray(sizes[name]) if name in sizes else array
    return type(model)._from_arrays(model.get_params(), moved)


def _id_column(ids: pl.Series, old: Ratings, kind: str) -> pl.Series:
    found = ids.cast((old.users if kind == "user" else old.items).dtype, strict=False)
    bad = found.is_null() | (found.cast(ids.dtype) != ids).fill_null(False)
    if bad.any():
        raise DataError(
            f"The model has integer {kind} ids; {ids.filter(bad)[0]!r} cannot be among them."
        )
    return found


def _both(old: Features | None, new: Features | None, ids: Ids) -> Features | None:
    return table_of(new if old is None else old.updated(new), ids)

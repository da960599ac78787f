"""Ratings of users or items that a model has not seen, on top of the ids that it has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import polars as pl

from recsys.duplicates import CSR, to_csr
from recsys.errors import DataError
from recsys.frames import (
    column,
    column_names,
    encode,
    rating_problem,
    rating_values,
    to_polars,
)
from recsys.ids import Ids, as_id_series
from recsys.models.protocols import Histories

if TYPE_CHECKING:
    from recsys.ratings import Ratings

__all__ = ["NEW_USER", "new_items", "new_users"]

NEW_USER = "new"
"""What the user of a history without user ids is called."""


def new_users(source: Any, known: Ratings, *, needs_values: bool) -> Ratings:
    """Return ratings of the known items by the users of `source`.

    Parameters
    ----------
    source : frame with the columns user, item[, rating], or mapping of item id to rating
    known : Ratings
        What the model was fitted to.
    needs_values : bool
        Whether the model can do nothing with items that have no rating.

    Raises
    ------
    UnknownIdError
        If an item is unknown.
    DataError
        If a column is missing, an id is null or a rating is not a finite number.
    """
    frame = _frame_of(source) if isinstance(source, Mapping) else _as_frame(source)
    users, user_codes = encode(as_id_series(column(frame, "user"), "user"), "user")
    if isinstance(source, Mapping):
        users = Ids([NEW_USER], "user")
    item_codes = known.items.index(column(frame, "item")).astype(np.int32)
    values = _values(frame, known, needs_values)
    csr = to_csr(user_codes, item_codes, values, None, (len(users), len(known.items)), "last")
    return _ratings(known, users, known.items, csr)


def new_items(source: Any, known: Ratings, *, needs_values: bool) -> tuple[Ratings, Histories]:
    """Return ratings of the items of `source` by the known users, and the rows of its items.

    Raises
    ------
    UnknownIdError
        If a user is unknown.
    DataError
        If a column is missing, an id is null or a rating is not a finite number.
    """
    frame = to_polars(source)
    items, item_codes = encode(as_id_series(column(frame, "item"), "item"), "item")
    user_codes = known.users.index(column(frame, "user")).astype(np.int32)
    values = _values(frame, known, needs_values)
    shape = len(known.users), len(items)
    rows = to_csr(item_codes, user_codes, values, None, shape[::-1], "last")
    ratings = _ratings(
        known, known.users, items, to_csr(user_codes, item_codes, values, None, shape, "last")
    )
    without_info = replace(ratings, item_info=None)
    return without_info, Histories(rows.indptr, rows.indices, rows.values)


def _as_frame(source: Any) -> Any:
    try:
        return to_polars(source)
    except DataError:
        raise DataError(
            "A history is a mapping of items to ratings, or a frame with the columns user, item "
            f"and rating; got {type(source).__name__}."
        ) from None


def _frame_of(history: Mapping[Any, Any]) -> pl.DataFrame:
    items = as_id_series(_plain(list(history)), "item")
    values = list(history.values())
    ratings = pl.Series("rating", values, dtype=pl.Float64, strict=False)
    for item, value, rating in zip(history, values, ratings, strict=True):
        if rating is None:
            problem = rating_problem(value) or f"rating {value!r} is not a number."
            raise DataError(f"Item {item!r}: {problem}")
    users = pl.Series("user", [NEW_USER] * len(items), dtype=pl.String)
    return pl.DataFrame([users, items, ratings])


def _plain(ids: list[Any]) -> list[Any]:
    """Return ids as text where they are mixed."""
    return [str(each) for each in ids] if any(isinstance(each, str) for each in ids) else ids


def _values(frame: Any, known: Ratings, needs_values: bool) -> npt.NDArray[np.float32] | None:
    """Return the values that count for a model of `known`; None for ones."""
    if "rating" not in column_names(frame):
        if needs_values:
            raise DataError(
                "The model needs ratings with values, but the history has no column 'rating'."
            )
        return None
    values = rating_values(column(frame, "rating"))
    only_contacts = known.implicit and bool((known.values == 1).all())
    return None if only_contacts else values


def _ratings(known: Ratings, users: Ids, items: Ids, csr: CSR) -> Ratings:
    return replace(
        known,
        users=users,
        items=items,
        indptr=csr.indptr,
        indices=csr.indices,
        values=csr.values,
        timestamps=None,
        user_info=None,
        n_duplicates=csr.n_duplicates,
    )

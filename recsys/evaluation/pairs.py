"""Splits of two data sets that were read separately."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl

from recsys.errors import DataError
from recsys.evaluation.split import NOTHING_KNOWN, Split
from recsys.fitted import check_ratings
from recsys.ids import Ids
from recsys.ratings import Ratings

__all__ = ["split_from_pair"]


def split_from_pair(
    train: Ratings,
    test: Ratings,
    *,
    history: Ratings | None = None,
    method: str = "given",
    parameters: dict[str, Any] | None = None,
) -> Split:
    """Make a split of data sets that were read separately.

    The parts get the same indices. Users and items that only the test data have stay in, without
    training ratings, until `Split.without_new` drops them.

    Parameters
    ----------
    train, test : Ratings
    history : Ratings, optional
        What else the users of `test` have rated, if they are not in `train`.
    method, parameters
        How the split was made, if that is known; as in `Split`.

    Raises
    ------
    DataError
        If a pair of user and item is in both, or no test rating is of a known user and item.
    """
    for given in (train, test) if history is None else (train, test, history):
        check_ratings(given)
    seen = train if history is None else history
    users = _union(seen.users, test.users)
    parts = [train, test] if history is None else [train, test, history]
    items = train.items
    for part in parts:
        items = _union(items, part.items)
    split = Split(
        _aligned(train, users if history is None else train.users, items),
        _aligned(test, users, items),
        None if history is None else _aligned(history, users, items),
        method,
        dict(parameters or {}),
    )
    if split.new_ratings == split.test.n_ratings:
        raise DataError(NOTHING_KNOWN)
    split.check()
    return split


def _union(known: Ids, others: Ids) -> Ids:
    """Return all ids; those of `known` decide whether they are integers or strings."""
    unknown = others.values.filter(known.find(others.values) < 0)
    if not len(unknown):
        return known
    if unknown.dtype != known.dtype:
        return Ids(pl.concat([known.values.cast(pl.String), unknown.cast(pl.String)]), known.kind)
    return Ids(pl.concat([known.values, unknown]), known.kind)


def _aligned(part: Ratings, users: Ids, items: Ids) -> Ratings:
    """Return the same ratings under the indices of `users` and `items`."""
    if part.users == users and part.items == items:
        return replace(part, users=users, items=items)
    rows = users.find(part.users.values)[part.user_index_of_nonzeros()]
    columns = items.find(part.items.values)[part.indices]
    keys = rows * np.int64(len(items)) + columns
    order = np.arange(len(keys)) if np.all(np.diff(keys) > 0) else np.argsort(keys)
    indptr = np.zeros(len(users) + 1, dtype=np.int64)
    np.cumsum(np.bincount(rows, minlength=len(users)), out=indptr[1:])
    return replace(
        part,
        users=users,
        items=items,
        indptr=indptr,
        indices=columns[order].astype(np.int32),
        values=part.values[order],
        timestamps=None if part.timestamps is None else part.timestamps[order],
    )

"""Parts of ratings: which users and items occur, and ratings restricted to some of them."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recsys.errors import DataError
from recsys.fitted import check_ratings
from recsys.ids import Ids
from recsys.ratings import Ratings

__all__ = ["Mask", "fingerprint", "has_items", "has_ratings", "pair_keys", "restricted", "times_of"]

Mask = NDArray[np.bool_]


def has_ratings(ratings: Ratings) -> Mask:
    """Return which users have ratings, shape (n_users,)."""
    return np.diff(ratings.indptr) > 0


def has_items(ratings: Ratings) -> Mask:
    """Return which items have ratings, shape (n_items,)."""
    found = np.zeros(ratings.n_items, dtype=np.bool_)
    found[ratings.indices] = True
    return found


def pair_keys(ratings: Ratings) -> NDArray[np.int64]:
    """Return one number for each pair of user and item, increasing, shape (nnz,)."""
    return ratings.user_index_of_nonzeros() * np.int64(ratings.n_items) + ratings.indices


def restricted(ratings: Ratings, users: Mask, items: Mask) -> Ratings:
    """Return the ratings of some items by some users, who get indices of their own.

    Parameters
    ----------
    ratings : Ratings
        Returned as they are where nobody and nothing is left out.
    users : bool ndarray of shape (n_users,)
    items : bool ndarray of shape (n_items,)
    """
    if users.all() and items.all():
        return ratings
    part = ratings.take(users[ratings.user_index_of_nonzeros()] & items[ratings.indices])
    index = np.cumsum(items, dtype=np.int32) - np.int32(1)
    return replace(
        part,
        users=_some(ratings.users, users),
        items=_some(ratings.items, items),
        indptr=np.append(part.indptr[:1], part.indptr[1:][users]),
        indices=index[part.indices],
    )


def fingerprint(*parts: Ratings) -> str:
    """Return a SHA-256 over pairs of ids and their values, whatever file they came from.

    Users and items without ratings do not count.
    """
    digest = hashlib.sha256()
    for each in parts:
        part = restricted(each, has_ratings(each), has_items(each))
        for ids in (part.users, part.items):
            digest.update("\n".join(map(str, ids.values.to_list())).encode())
        arrays: tuple[tuple[NDArray[Any], str], ...] = (
            (part.indptr, "<i8"),
            (part.indices, "<i4"),
            (part.values, "<f4"),
        )
        for array, dtype in arrays:
            digest.update(np.ascontiguousarray(array.astype(dtype, copy=False)).data)
    return f"sha256:{digest.hexdigest()}"


def times_of(ratings: Ratings, what: str) -> NDArray[np.int64]:
    """Return the times of the ratings, which `what` needs.

    Raises
    ------
    DataError
        If they have none, or are no `Ratings`.
    """
    check_ratings(ratings)
    if ratings.timestamps is None:
        raise DataError(
            f"{what} needs the times of the ratings, but these have none; part them at random "
            "or by user."
        )
    return ratings.timestamps


def _some(ids: Ids, mask: Mask) -> Ids:
    return ids if mask.all() else Ids(ids.values.filter(mask), ids.kind)

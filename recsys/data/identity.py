"""Identity of ratings: their period, and a fingerprint of pairs and values."""

from __future__ import annotations

import hashlib

import numpy as np
import polars as pl

from lowrank.kernels import pieces
from recsys.data.age import iso_time
from recsys.data.ratings import Ratings

_BLOCK = 1 << 22  # ratings hashed at a time


def period_of(ratings: Ratings) -> tuple[str, str] | None:
    """Return the times of the first and the last rating in UTC, or None without times.

    Examples
    --------
    >>> import polars as pl
    >>> from recsys import Ratings
    >>> times = pl.DataFrame({"user": [1, 2], "item": [1, 1], "time": [0, 86400]})
    >>> period_of(Ratings.from_frame(times))
    ('1970-01-01T00:00:00+00:00', '1970-01-02T00:00:00+00:00')
    """
    times = ratings.seconds
    if times is None or not len(times):
        return None
    try:
        return iso_time(int(times.min())), iso_time(int(times.max()))
    except OverflowError:  # before the year 1
        return None


def fingerprint(*parts: Ratings) -> str:
    """Return the SHA-256 of pairs of ids and their values, ignoring ids without ratings."""
    digest = hashlib.sha256()
    for part in parts:
        blocks = [*pieces(part.n_ratings, _BLOCK)]
        rated_users = part.counts("user") > 0
        rated_items = part.counts("item") > 0
        for ids, is_rated in ((part.users, rated_users), (part.items, rated_items)):
            texts = ids.values.filter(is_rated).cast(pl.String)
            joined = texts.str.join("\n").item() or ""
            digest.update(joined.encode())
        offsets = part.indptr[np.append(True, rated_users)]
        digest.update(offsets.astype("<i8", copy=False).data)
        # The indices of items without those that have no ratings.
        columns = (np.cumsum(rated_items) - 1).astype("<i4")
        for block in blocks:
            digest.update(columns[part.indices[block]].data)
        for block in blocks:
            # Values are decoded if ratings are stored as codes.
            values = np.ascontiguousarray(part.values_at(block), "<f4")
            digest.update(values.data)
    return f"sha256:{digest.hexdigest()}"

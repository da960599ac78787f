"""Identity of ratings: their period, and a fingerprint of pairs and values."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta

import numpy as np
import polars as pl

from lowrank.kernels import pieces
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
    ends = (timedelta(seconds=int(seconds)) for seconds in (times.min(), times.max()))
    try:
        first, last = (datetime(1970, 1, 1, tzinfo=UTC) + seconds for seconds in ends)
    except OverflowError:  # before the year 1
        return None
    return first.isoformat(timespec="seconds"), last.isoformat(timespec="seconds")


def fingerprint(*parts: Ratings) -> str:
    """Return the SHA-256 of pairs of ids and their values, ignoring ids without ratings."""
    digest = hashlib.sha256()
    for part in parts:
        rated, used = np.diff(part.indptr) > 0, np.zeros(part.n_items, np.bool_)
        blocks = [*pieces(part.n_ratings, _BLOCK)]
        for block in blocks:
            used[part.indices[block]] = True
        for ids, mask in ((part.users, rated), (part.items, used)):
            texts = ids.values.filter(mask).cast(pl.String)
            digest.update((texts.str.join("\n").item() or "").encode())
        digest.update(
            part.indptr[np.append(True, rated)].astype("<i8", copy=False).data
        )
        columns = (np.cumsum(used) - 1).astype("<i4")
        for block in blocks:
            digest.update(columns[part.indices[block]].data)
        for block in blocks:  # values, decoded if ratings are stored as codes
            digest.update(np.ascontiguousarray(part.values_at(block), "<f4").data)
    return f"sha256:{digest.hexdigest()}"

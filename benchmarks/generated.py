"""Generated ratings with the shape of MovieLens-25M, for benchmarks at scale."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import scipy.sparse as sp

ML25M_USERS = 162_541
ML25M_ITEMS = 59_047
ML25M_RATINGS = 25_000_000


def movielens_shaped(n_ratings: int = ML25M_RATINGS, seed: int = 0) -> sp.csr_array:
    """Return a CSR float32 matrix of half-star ratings with Zipf-skewed users and items.

    Items are scaled with the square root of the number of ratings, users in proportion to it; at 25
    million it has MovieLens-25M's own shape. A user has at least 20 ratings, log-normally more;
    items are drawn with probability ~ (rank + 40)^-1.2.
    """
    rng = np.random.default_rng(seed)
    activity, columns_of_rank = _shape(rng, n_ratings)
    rows, columns = _draw_pairs(rng, activity, columns_of_rank, n_ratings)
    shape = len(activity), len(columns_of_rank)
    return sp.csr_array((_stars(rng, n_ratings), (rows, columns)), shape=shape)


def movielens_blocks(
    n_ratings: int, seed: int = 0, block: int = 5_000_000
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield users, items and ratings of the same shape, the ones of some users after the others.

    Each block has about `block` ratings, so that a billion take no more memory than a few million.
    """
    rng = np.random.default_rng(seed)
    activity, columns_of_rank = _shape(rng, n_ratings)
    shares = np.cumsum(activity) / activity.sum()
    n_blocks = -(-n_ratings // block)
    firsts = np.searchsorted(shares, np.arange(n_blocks + 1) / n_blocks)
    firsts[-1] = len(activity)
    ends = np.rint(np.arange(n_blocks + 1) * (n_ratings / n_blocks)).astype(np.int64)
    for first, last, n in zip(firsts, firsts[1:], np.diff(ends), strict=False):
        rows, columns = _draw_pairs(rng, activity[first:last], columns_of_rank, int(n))
        yield rows + np.int32(first), columns, _stars(rng, int(n))


def _shape(rng: np.random.Generator, n_ratings: int) -> tuple[np.ndarray, np.ndarray]:
    """Return how active users are, and the columns of items, the most popular ones first."""
    scale = n_ratings / ML25M_RATINGS
    n_users, n_items = (
        round(ML25M_USERS * scale),
        max(2000, round(ML25M_ITEMS * scale**0.5)),
    )
    activity = 20 + rng.lognormal(mean=3.9, sigma=1.35, size=n_users)
    return np.minimum(activity, n_items / 4), rng.permutation(n_items).astype(np.int32)


def _stars(rng: np.random.Generator, n: int) -> np.ndarray:
    stars = rng.standard_normal(n, dtype=np.float32) * np.float32(2.1) + np.float32(7.1)
    return np.clip(np.rint(stars), 1, 10) / 2


def _draw_pairs(
    rng: np.random.Generator, activity: np.ndarray, columns_of_rank: np.ndarray, n: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return n distinct (row, column) pairs, drawn in proportion to activity x popularity."""
    m, keys = len(columns_of_rank), np.empty(0, dtype=np.int64)
    steepest, flattest = 40.0**-0.2, (m + 40.0) ** -0.2
    while len(keys) < n:
        missing = int((n - len(keys)) * 1.3) + 1000
        counts = rng.multinomial(missing, activity / activity.sum())
        drawn = np.repeat(np.arange(len(activity), dtype=np.int64) * m, counts)
        # The inverse of the distribution function of ranks, whose density is ~ (rank + 40)^-1.2.
        ranks = (steepest + rng.random(missing) * (flattest - steepest)) ** -5.0 - 40.0
        drawn += columns_of_rank[np.clip(ranks.astype(np.int32), 0, m - 1)]
        keys = np.sort(np.concatenate([keys, drawn]))
        keys = keys[np.append(True, keys[1:] != keys[:-1])]
    surplus = rng.choice(len(keys), size=len(keys) - n, replace=False, shuffle=False)
    rows, columns = np.divmod(np.delete(keys, surplus), m)
    return rows.astype(np.int32), columns.astype(np.int32)

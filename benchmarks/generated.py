"""Generated ratings in the shape of MovieLens-25M, for benchmarks at scale."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import scipy.sparse as sp

ML25M_USERS = 162_541
ML25M_ITEMS = 59_047
ML25M_RATINGS = 25_000_000


def movielens_shaped(n_ratings: int = ML25M_RATINGS, seed: int = 0) -> sp.csr_array:
    """Return a CSR float32 matrix of half-star ratings with Zipf-skewed users and items.

    Users and items are scaled with the square root of the number of ratings, so that a smaller
    matrix keeps the density pattern; at 25 million it has MovieLens-25M's own shape. A user has
    at least 20 ratings, log-normally more; items are drawn with probability ~ (rank + 40)^-1.2.
    """
    rng = np.random.default_rng(seed)
    activity, popularity = _shape(rng, n_ratings)
    columns_of_rank = rng.permutation(len(popularity))
    rows, cols = _draw_pairs(rng, activity, popularity, columns_of_rank, n_ratings)
    return sp.csr_array(
        (_stars(rng, n_ratings), (rows, cols)), shape=(len(activity), len(popularity))
    )


def movielens_blocks(
    n_ratings: int, seed: int = 0, block: int = 5_000_000
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield users, items and ratings of the same shape, the ones of some users after the others.

    Each block has about `block` ratings, so that a billion take no more memory than a few million.
    """
    rng = np.random.default_rng(seed)
    activity, popularity = _shape(rng, n_ratings)
    columns_of_rank = rng.permutation(len(popularity))
    shares = np.cumsum(activity) / activity.sum()
    n_blocks = -(-n_ratings // block)
    firsts = np.searchsorted(shares, np.arange(n_blocks + 1) / n_blocks)
    firsts[-1] = len(activity)
    ends = np.rint(np.arange(n_blocks + 1) * (n_ratings / n_blocks)).astype(np.int64)
    for first, last, n in zip(firsts, firsts[1:], np.diff(ends), strict=False):
        of_block = activity[first:last], popularity, columns_of_rank, int(n)
        rows, columns = _draw_pairs(rng, *of_block)
        yield rows + np.int32(first), columns, _stars(rng, int(n))


def _shape(rng: np.random.Generator, n_ratings: int) -> tuple[np.ndarray, np.ndarray]:
    """Return how active users and how popular items are, most popular first."""
    scale = n_ratings / ML25M_RATINGS
    n_users, n_items = round(ML25M_USERS * scale), max(2000, round(ML25M_ITEMS * scale**0.5))
    activity = 20 + rng.lognormal(mean=3.9, sigma=1.35, size=n_users)
    return np.minimum(activity, n_items / 4), (np.arange(n_items) + 40.0) ** -1.2


def _stars(rng: np.random.Generator, n: int) -> np.ndarray:
    return np.clip(np.round(rng.normal(7.1, 2.1, size=n)), 1, 10).astype(np.float32) / 2


def _draw_pairs(
    rng: np.random.Generator,
    activity: np.ndarray,
    popularity: np.ndarray,
    columns_of_rank: np.ndarray,
    n: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Return n distinct (row, column) pairs, drawn in proportion to activity x popularity."""
    row_edges = np.cumsum(activity) / activity.sum()
    column_edges = np.cumsum(popularity) / popularity.sum()
    keys = np.empty(0, dtype=np.int64)
    while len(keys) < n:
        missing = int((n - len(keys)) * 1.3) + 1000
        rows = np.minimum(np.searchsorted(row_edges, rng.random(missing)), len(activity) - 1)
        ranks = np.minimum(np.searchsorted(column_edges, rng.random(missing)), len(popularity) - 1)
        drawn = rows * len(popularity) + columns_of_rank[ranks]
        keys = np.unique(np.concatenate([keys, drawn]))
    keys = np.sort(rng.choice(keys, size=n, replace=False))
    return (keys // len(popularity)).astype(np.int32), (keys % len(popularity)).astype(np.int32)

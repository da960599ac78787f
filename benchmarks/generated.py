"""Generated ratings in the shape of MovieLens-25M, for benchmarks at scale."""

from __future__ import annotations

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
    scale = n_ratings / ML25M_RATINGS
    n_users, n_items = round(ML25M_USERS * scale), max(2000, round(ML25M_ITEMS * scale**0.5))
    activity = 20 + rng.lognormal(mean=3.9, sigma=1.35, size=n_users)
    activity = np.minimum(activity, n_items / 4)
    popularity = (np.arange(n_items) + 40.0) ** -1.2
    rows, cols = _draw_pairs(rng, activity, popularity, n_ratings)
    stars = np.clip(np.round(rng.normal(7.1, 2.1, size=n_ratings)), 1, 10).astype(np.float32) / 2
    return sp.csr_array((stars, (rows, cols)), shape=(n_users, n_items))


def _draw_pairs(
    rng: np.random.Generator, activity: np.ndarray, popularity: np.ndarray, n: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return n distinct (row, column) pairs, drawn in proportion to activity x popularity."""
    columns_of_rank = rng.permutation(len(popularity))
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

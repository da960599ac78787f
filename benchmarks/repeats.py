"""Recall of the last basket by models with habits, next to top personal counts.

The purchases are generated with known habits: each user has staples that are bought every
week, every second or every fourth week. In some weeks, one of them is replaced.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import polars as pl
from measuring import table

from recsys import Ratings, Recommender

N = 10
STAPLES = 10
WEEK = 7 * 86400
START = 1_700_000_000


def groceries(
    n_users: int = 400,
    n_items: int = 300,
    n_weeks: int = 30,
    *,
    replaced: float = 0.2,
    seed: int = 0,
) -> pl.DataFrame:
    """Return purchases: user, item, time. `replaced` is the share of weeks with a new staple."""
    rng = np.random.default_rng(seed)
    popularity = np.arange(1, n_items + 1) ** -0.8
    tastes = rng.integers(6, size=n_users)
    shelves = rng.integers(6, size=n_items)
    rows = []
    for user in range(n_users):
        weights = popularity * np.where(shelves == tastes[user], 8, 1)
        weights /= weights.sum()
        staples = rng.choice(n_items, STAPLES, replace=False, p=weights)
        periods = rng.choice([1, 1, 2, 4], STAPLES)
        phases = rng.integers(4, size=STAPLES)
        for week in range(n_weeks):
            if rng.random() < replaced:
                staples[rng.integers(STAPLES)] = rng.choice(n_items, p=weights)
            is_due = (week + phases) % periods == 0
            is_due &= rng.random(STAPLES) < 0.75
            others = rng.choice(n_items, rng.poisson(2), p=weights)
            at = START + week * WEEK + user % 7 * 86400
            basket = {*staples[is_due].tolist(), *others.tolist()}
            rows += [(user, item, at) for item in sorted(basket)]
    return pl.DataFrame(rows, schema=["user", "item", "time"], orient="row")


def without_last(purchases: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the purchases before the last basket of each user, and the last baskets."""
    is_last = pl.col("time") == pl.col("time").max().over("user")
    return purchases.filter(~is_last), purchases.filter(is_last)


def top_counts(purchases: pl.DataFrame) -> pl.DataFrame:
    """Return the items that each user has bought most often."""
    counts = purchases.group_by("user", "item", maintain_order=True).len()
    by_count = counts.sort("len", descending=True, maintain_order=True)
    return by_count.group_by("user", maintain_order=True).head(N)


def recall(lists: pl.DataFrame, baskets: pl.DataFrame) -> float:
    """Return the mean share of a basket that is in the user's list."""
    is_listed = baskets.join(lists, on=["user", "item"], how="left", coalesce=False)
    hits = is_listed.group_by("user").agg(pl.col("user_right").is_not_null().mean())
    return float(hits["user_right"].mean())


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--users", type=int, default=400)
    users = parser.parse_args().users
    models = [
        ("popular", {"habit": 0.9}),
        ("popular", {"habit": 0.5}),
        ("next", {"habit": 0.9}),
        ("next", {"habit": 0.5}),
        ("next", {}),
        ("ease", {}),
    ]
    rows = []
    for replaced in (0.0, 0.2):
        train, baskets = without_last(groceries(users, replaced=replaced))
        name = f"{replaced:.0%}"
        counts = recall(top_counts(train), baskets)
        rows.append([name, "top personal counts", f"{counts:.3f}", ""])
        ratings = Ratings.from_frame(train)
        for model, parameters in models:
            start = time.perf_counter()
            recommender = Recommender(model, **parameters).fit(ratings)
            lists = recommender.recommend(n=N, exclude_seen=False)
            seconds = time.perf_counter() - start
            habit = parameters.get("habit")
            label = model if habit is None else f"{model}, habit {habit:g}"
            rows.append(
                [name, label, f"{recall(lists, baskets):.3f}", f"{seconds:.1f}"]
            )
    print(table(["weeks with a new staple", "model", f"recall@{N}", "seconds"], rows))


if __name__ == "__main__":
    main()

"""Exposure in generated data: corrected metrics, clicks on other lists, gains from dislikes.

All data are generated, so that the truth is known.

Propensity: users like items by three factors, and see an item with a probability that falls with
its rank in popularity. The seen likes are split into a training and a test part. The truth is the
metric on likes that were drawn without regard to exposure. Off-policy: lists of four of twelve
items, half of them in a random order, and clicks by item, user and rank. Another policy's lists
are never shown; its true value is known. Dislikes: likes and dislikes of users by their factors,
and impressions without a click; models are fitted with and without the latter two, and tested on
other likes.

Usage: python benchmarks/exposure.py
"""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
from measuring import table
from numpy.typing import NDArray

from recsys import Ratings, Recommender, evaluate, split_from_pair
from recsys.evaluation.offpolicy import off_policy_value

REPEATS = 20
_METRICS = ["precision", "recall", "ndcg"]
Mask = NDArray[np.bool_]


def frame_of(mask: Mask) -> pl.DataFrame:
    """Return the pairs of a matrix."""
    users, items = np.nonzero(mask)
    return pl.DataFrame({"user": users, "item": items})


def likes_of(generator: np.random.Generator, n_users: int, n_items: int) -> Any:
    """Return which users like which items, and with which probability."""
    users = generator.normal(size=(n_users, 3))
    tastes = users @ generator.normal(size=(3, n_items))
    probability = 1 / (1 + np.exp(1.3 - tastes))
    return generator.random(tastes.shape) < probability, probability


def propensity(seed: int) -> list[float]:
    """Return each metric as measured, corrected, and in truth."""
    generator = np.random.default_rng(seed)
    n_items = 60
    likes, _ = likes_of(generator, 1500, n_items)
    shown = np.arange(1, n_items + 1) ** -0.6
    train = likes & (generator.random(likes.shape) < shown)
    others = likes & ~train
    seen = others & (generator.random(likes.shape) < shown)
    unbiased = others & (generator.random(likes.shape) < seen.sum() / others.sum())
    items = pl.DataFrame({"item": range(n_items), "shown": shown})
    part = Ratings.from_frame(frame_of(train), item_table=items)
    options: dict[str, Any] = {"metrics": _METRICS, "features": False, "resamples": 0}
    biased = evaluate(
        "ials",
        split_from_pair(part, Ratings.from_frame(frame_of(seen))),
        5,
        propensity="shown",
        **options,
    ).table
    truth = evaluate(
        "ials",
        split_from_pair(part, Ratings.from_frame(frame_of(unbiased))),
        5,
        **options,
    ).table
    values = []
    for name in _METRICS:
        values += [biased[f"{name}@5"][0], biased[f"{name}_ips@5"][0]]
        values.append(truth[f"{name}@5"][0])
    return values


def off_policy(seed: int) -> tuple[list[float], list[bool]]:
    """Return the true value and the errors of the estimators, and which intervals have it."""
    generator = np.random.default_rng(seed)
    n_users, n_items, n = 3000, 12, 4
    shape = n_users, n_items
    attraction = generator.beta(2, 5, n_items)
    taste = np.clip(attraction * np.exp(0.5 * generator.normal(size=shape)), 0, 1)
    examination = 1 / np.arange(1, n + 1)
    popular = np.argsort(-attraction)[:n]
    shuffled = np.argsort(generator.random(shape), axis=1)[:, :n]
    is_popular = generator.random((n_users, 1)) < 0.5
    shown = np.where(is_popular, popular, shuffled)
    probability = 0.5 / n_items + 0.5 * (shown == popular)
    other = np.argsort(-taste - 0.05 * generator.normal(size=shape), axis=1)[:, :n]
    rates = np.take_along_axis(taste, shown, 1) * examination
    clicked = (generator.random(shown.shape) < rates).ravel()
    truth = (np.take_along_axis(taste, other, 1) * examination).sum(axis=1).mean()
    users = np.repeat(np.arange(n_users), n)
    ranks = np.tile(np.arange(1, n + 1), n_users)
    user_ids = pl.Series(users.astype(str))
    item_ids = pl.Series(shown.ravel().astype(str))
    lists = pl.DataFrame(
        {
            "list": users.astype(np.uint32),
            "user": user_ids,
            "time": 0,
            "item": item_ids,
            "rank": ranks,
            "probability": probability.ravel(),
        }
    )
    clicks = {"user": user_ids.filter(clicked), "item": item_ids.filter(clicked)}
    target = pl.DataFrame({"user": users, "item": other.ravel(), "rank": ranks})
    values = off_policy_value(lists, clicks, target).values
    bounds = values.select("low", "high").iter_rows()
    covers = [bool(low <= truth <= high) for low, high in bounds]
    return [truth, *(values["value"] - truth)], covers


def dislikes(seed: int) -> dict[str, list[float]]:
    """Return NDCG@10, and the share of items in lists that users would dislike, by model."""
    generator = np.random.default_rng(seed)
    n_items = 200
    likes, probability = likes_of(generator, 1000, n_items)
    shown = generator.random(likes.shape) < np.arange(1, n_items + 1) ** -0.5
    hates = ~likes & (probability < 0.1)
    kinds = np.select([likes, hates], ["like", "dislike"], "impression")
    users, items = np.nonzero(shown)
    frame = pl.DataFrame(
        {
            "user": users,
            "item": items,
            "event": kinds[shown],
            "time": 1_700_000_000 + generator.permutation(len(users)),
        }
    )
    held_out = Ratings.from_frame(frame_of(likes & ~shown))
    values: dict[str, list[float]] = {}
    for name in ("ials", "next", "bayes", "popular"):
        for label, weights, impressions in (
            ("likes", {"like": 1.0, "*": 0.0}, None),
            ("and dislikes", {"like": 1.0, "dislike": -1.0, "*": 0.0}, None),
            ("and impressions", {"like": 1.0, "dislike": -1.0}, "impression"),
        ):
            if name == "bayes" and label != "and dislikes":
                continue  # bayes needs both grades, and leaves out impressions
            train = Ratings.from_frame(
                frame, event_weights=weights, impressions=impressions
            )
            recommender = Recommender(name).fit(train)
            lists = recommender.recommend(n=10)
            split = split_from_pair(recommender.ratings, held_out)
            label_of = f"{name}, {label}"
            found = evaluate(
                {label_of: recommender}, split, 10, metrics=["ndcg"], resamples=0
            )
            is_hated = hates[lists["user"].to_numpy(), lists["item"].to_numpy()]
            values[label_of] = [found.table["ndcg@10"][0], float(is_hated.mean())]
    return values


def main() -> None:
    """Print the three tables."""
    rows = np.array([propensity(seed) for seed in range(REPEATS)]).mean(axis=0)
    shown = []
    for number, name in enumerate(_METRICS):
        cells = [f"{value:.3f}" for value in rows[3 * number : 3 * number + 3]]
        shown.append([name, *cells])
    print(table(["metric@5", "measured", "corrected", "truth"], shown))
    values, covers = zip(
        *(off_policy(seed) for seed in range(2 * REPEATS)), strict=True
    )
    errors = np.array(values)[:, 1:]
    print(f"\ntrue value: {np.mean([row[0] for row in values]):.3f} clicks per list\n")
    shown = [
        [name, f"{mean:+.3f}", f"{deviation:.3f}", f"{share:.0%}"]
        for name, mean, deviation, share in zip(
            ("logged lists", "IPS", "SNIPS", "doubly robust"),
            errors.mean(axis=0),
            errors.std(axis=0),
            np.mean(covers, axis=0),
            strict=True,
        )
    ]
    print(
        table(["estimator", "mean error", "deviation", "truth in the interval"], shown)
    )
    runs = [dislikes(seed) for seed in range(5)]
    shown = []
    for name in runs[0]:
        ndcg, hated = np.mean([run[name] for run in runs], axis=0)
        shown.append([name, f"{ndcg:.4f}", f"{hated:.1%}"])
    print()
    print(table(["model, fitted to", "NDCG@10", "items that the user dislikes"], shown))


if __name__ == "__main__":
    main()

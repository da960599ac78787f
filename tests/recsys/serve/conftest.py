"""A model with titles and features, another of implicit feedback, and an index."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from recsys import Ratings, Recommender, with_features
from recsys.lsi import LSI

GENRES = ("Drama", "Comedy", "Horror")


def some_ratings(
    n_users: int = 60, n_items: int = 40, *, implicit: bool = False
) -> Ratings:
    rng = np.random.default_rng(7)
    pairs = rng.permutation(n_users * n_items)[: n_users * n_items // 3]
    users, items = np.divmod(pairs, n_items)
    stars = 1 + (users * 7 + items * 3 + (users % 3 == items % 3) * 2) % 5
    frame = pl.DataFrame(
        {"user": users + 100, "item": items + 1, "rating": stars.astype(float)}
    )
    table = pl.DataFrame(
        {
            "item": range(1, n_items + 2),  # one that nobody rated
            "title": [f"The Film {n}" for n in range(1, n_items + 1)] + ["A New One"],
            "genre": [GENRES[n % 3] for n in range(n_items + 1)],
            "year": [1980 + n for n in range(n_items + 1)],
        }
    )
    if implicit:
        return Ratings.from_frame(frame.drop("rating"), item_table=table)
    return Ratings.from_frame(frame, item_table=table)


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("served")
    ratings = with_features(some_ratings(), unrated=True)
    Recommender("als", factors=4, iterations=4).fit(ratings).save(folder / "als")
    implicit = some_ratings(implicit=True)
    Recommender("ials", factors=4, iterations=3).fit(implicit).save(folder / "ials")
    texts = [
        "the nurse called the doctor",
        "the doctor left the hospital",
        "a quiet harbour town",
    ]
    LSI(2).fit(texts).save(folder / "index")
    return {name: folder / name for name in ("als", "ials", "index")}

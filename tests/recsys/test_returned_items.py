"""Items whose interactions were all returned or removed: in no list, whatever the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from recsys import Ratings, Recommender, read_ratings
from recsys.errors import DataError
from recsys.features.selection import with_features
from recsys.known_users import lists_of_known_users
from recsys.models.registry import MODELS, model_class
from recsys.serve.responses import Responses

RETURNED = 99
N_ITEMS = 12


@pytest.fixture(scope="module")
def orders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Quantities of 30 customers; the only purchase of one item is returned."""
    rng = np.random.default_rng(0)
    rows = [
        (user, int(item), 1.0, 1_600_000_000 + step)
        for user in range(30)
        for step, item in enumerate(rng.permutation(N_ITEMS)[:5])
    ]
    rows += [(0, RETURNED, 2.0, 1_600_000_100), (0, RETURNED, -2.0, 1_600_000_200)]
    names = ["user", "item", "quantity", "timestamp"]
    path = tmp_path_factory.mktemp("orders") / "orders.csv"
    pl.DataFrame(rows, schema=names, orient="row").write_csv(path)
    return path


def ratings_for(name: str, orders: Path) -> Ratings:
    """The orders as interactions, or, for models of ratings, with grades instead."""
    ratings = read_ratings(orders, weight="quantity")
    assert RETURNED in ratings.items.values
    if not model_class(name).predicts_ratings:
        return ratings
    grades = np.random.default_rng(1).integers(1, 6, ratings.n_ratings)
    table = np.full(ratings.shape, np.nan)
    table[ratings.user_index_of_nonzeros(), ratings.indices] = grades
    return Ratings.from_matrix(table, items=ratings.items.values.to_list())


@pytest.mark.parametrize("name", sorted(MODELS))
def test_returned_items_are_in_no_list(name: str, orders: Path, tmp_path: Path) -> None:
    recommender = Recommender(name).fit(ratings_for(name, orders))
    every = N_ITEMS + 1
    lists = [
        recommender.recommend(5, n=every),
        recommender.recommend(n=every),
        recommender.recommend(777, n=every, cold_start="popular"),
        recommender.recommend(5, n=every, exclude_seen=False, fill="popular"),
        recommender.recommend(5, n=every, block=[0]),
    ]
    try:
        lists.append(recommender.recommend(history={1: 5.0, 2: 3.0}, n=every))
    except DataError:
        assert name in ("random", "implicit-bpr", "implicit-lmf")
    for frame in lists:
        assert len(frame)
        assert RETURNED not in frame["item"]
    recommender.save(tmp_path / "model")
    quick: Any = lists_of_known_users(tmp_path / "model", ["5"], every)
    assert quick is None or RETURNED not in quick.columns["item"]
    (answer,) = Responses(recommender, name).best([5], every)
    assert str(RETURNED) not in [row["item"] for row in answer["items"]]


def test_dislikes_are_no_evidence_for_a_model_of_interactions() -> None:
    rng = np.random.default_rng(2)
    table = np.where(rng.random((20, 8)) < 0.5, 1.0, np.nan)
    table[:, 7] = np.where(rng.random(20) < 0.5, -1.0, np.nan)
    table[:10, 0] = -1.0
    ratings = Ratings.from_matrix(table)
    for name in ("ials", "ease", "spectral"):
        lists = Recommender(name).fit(ratings).recommend(n=8)
        assert 7 not in lists["item"]
        assert 0 in lists["item"]


def test_features_are_evidence_for_models_that_use_them(orders: Path) -> None:
    items = [*range(N_ITEMS), RETURNED]
    table = pl.DataFrame({"item": items, "genre": [*"ab"] * 6 + ["a"]})
    ratings = with_features(read_ratings(orders, weight="quantity", item_table=table))
    assert RETURNED in Recommender("spectral").fit(ratings).recommend(5, n=13)["item"]
    knn = Recommender("implicit-knn").fit(ratings)
    assert RETURNED not in knn.recommend(5, n=13)["item"]
    # A row of the table without a value says nothing.
    table = table.with_columns(genre=pl.when(pl.col("item") != RETURNED).then("genre"))
    ratings = with_features(read_ratings(orders, weight="quantity", item_table=table))
    spectral = Recommender("spectral").fit(ratings)
    assert RETURNED not in spectral.recommend(5, n=13)["item"]

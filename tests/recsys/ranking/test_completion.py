"""Full lists: reserved places, popular items in short lists, and why an item is in a list."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from recsys import Ratings, Recommender
from recsys.errors import DataError
from recsys.ranking import completion

pytestmark = pytest.mark.usefixtures("one_fold")
N_ITEMS = 60
DAY = 20_000 * 86_400


@pytest.fixture(scope="module")
def shop() -> Recommender:
    rng = np.random.default_rng(0)
    chances = np.linspace(0.5, 0.05, N_ITEMS)
    users, items = np.nonzero(rng.random((50, N_ITEMS)) < chances)
    table = pl.DataFrame(
        {
            "item": range(N_ITEMS + 5),  # five that nobody bought
            "brand": [f"b{n % 3}" for n in range(N_ITEMS + 5)],
            "promoted": [n % 2 == 0 for n in range(N_ITEMS + 5)],
        }
    )
    pairs = pl.DataFrame({"user": users, "item": items})
    ratings = Ratings.from_frame(pairs, item_table=table)
    return Recommender("ials", factors=4, iterations=2).fit(ratings)


@pytest.fixture(autouse=True)
def day(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completion, "present", lambda: DAY)


def test_the_last_places_are_for_items_that_meet_a_condition(shop):
    plain = shop.recommend([3, 4], n=10)
    assert "source" not in plain.columns
    lists = shop.recommend([3, 4], n=10, slots=["2:new", "1:promoted"])
    assert lists["rank"].to_list() == [*range(1, 11)] * 2
    for user in (3, 4):
        part = lists.filter(user=user)
        assert part["source"].to_list() == ["model"] * 7 + ["slot"] * 3
        assert part["item"].n_unique() == 10
        best = plain.filter(user=user)["item"].to_list()
        assert part["item"].to_list()[:7] == best[:7]
        assert part.filter(source="slot")["new"].to_list()[:2] == [True, True]
        assert part["item"].to_list()[9] % 2 == 0


def test_a_draw_is_the_same_all_day_and_for_any_number_of_users(shop, monkeypatch):
    def drawn(users: object) -> pl.DataFrame:
        frame = shop.recommend(users, n=8, slots="3:promoted")
        return frame.filter(source="slot")

    all_users = drawn(None)
    assert drawn([3, 7]).equals(all_users.filter(pl.col("user").is_in([3, 7])))
    monkeypatch.setattr(completion, "present", lambda: DAY + 86_399)
    assert drawn(None).equals(all_users)
    monkeypatch.setattr(completion, "present", lambda: DAY + 86_400)
    tomorrow = drawn(None)
    same = tomorrow.join(all_users, on=["user", "item"])
    assert len(same) < len(all_users) / 2
    # Users differ, too: each of the 30 best is drawn for somebody.
    assert all_users["item"].n_unique() > 15


def test_places_without_items_go_to_the_model(shop):
    lists = shop.recommend(3, n=10, slots="8:new")
    assert lists["source"].to_list() == ["model"] * 5 + ["slot"] * 5
    lists = shop.recommend(3, n=10, slots="2:item < 0")
    assert lists["item"].equals(shop.recommend(3, n=10)["item"])
    assert lists["source"].to_list() == ["model"] * 10


def test_reserved_places_obey_the_conditions_of_the_list(shop):
    where = "brand = 'b1' AND NOT new"
    bought = shop.ratings.to_frame().filter(user=3)["item"]
    for options in ({"block": [4, 10]}, {"items": [1, 4, 7, 10, 22]}):
        lists = shop.recommend(3, n=10, where=where, slots="3:promoted", **options)
        assert {item % 3 for item in lists["item"]} == {1}
        assert not set(lists["item"]) & set(bought)
        if "block" in options:
            assert not set(lists["item"]) & {4, 10}
        else:
            assert set(lists["item"]) <= set(options["items"])


@pytest.mark.parametrize("name", ["ials", "implicit-knn"])
def test_popular_items_complete_a_short_list(shop, name):
    ratings = shop.ratings
    if name == "implicit-knn":
        shop = Recommender(name, neighbors=1).fit(ratings)
    options = {"at_most": 1, "per": "brand", "where": "NOT new"}
    short = shop.recommend(3, n=10, **options)
    full = shop.recommend(3, n=10, fill="popular", **options)
    assert len(short) < len(full) == 10
    assert full["item"].to_list()[: len(short)] == short["item"].to_list()
    added = full.filter(source="fill")
    assert len(added) == 10 - len(short)
    counts = ratings.counts("item")
    assert added["score"].to_list() == [counts[item] for item in added["item"]]
    rated = ratings.to_frame().filter(user=3)["item"].to_list()
    others = [
        item
        for item in np.argsort(-counts, kind="stable")
        if item not in (*rated, *short["item"])
    ]
    assert added["score"].to_list() == [counts[item] for item in others[: len(added)]]


def test_conditions_hold_for_popular_items(shop):
    lists = shop.recommend(3, n=30, where="brand = 'b1'", fill="popular")
    assert {item % 3 for item in lists["item"]} == {1}
    assert lists["source"].to_list() == ["model"] * len(lists)


def test_lists_of_similar_items_and_of_unknown_users_are_full_too(shop):
    options = {"at_most": 1, "per": "brand", "fill": "popular", "slots": "2:new"}
    near = shop.similar_items(0, n=8, **options)
    assert near["source"].to_list() == ["model"] * 3 + ["fill"] * 3 + ["slot"] * 2
    assert 0 not in near["similar"]
    strange = shop.recommend("x", n=8, cold_start="popular", **options)
    assert strange["source"].to_list()[:6] == ["model"] * 3 + ["fill"] * 3


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (
            {"slots": "new"},
            "a number of places and a condition on items, such as '2:new'",
        ),
        ({"slots": "0:new"}, "a number of places and a condition"),
        ({"slots": "2:new", "n": 1}, "slots reserve 2 places of lists of 1 items"),
        ({"slots": "2:nowhere"}, "slots: 'nowhere' cannot be used"),
        ({"fill": "random"}, "fill"),
    ],
)
def test_options_that_cannot_be_used_are_errors(shop, options, reason):
    with pytest.raises(DataError, match=reason):
        shop.recommend(3, **options)

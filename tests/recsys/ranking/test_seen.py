"""Which items count as seen: by the kinds of events, and by a condition on items."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from recsys import DataError, Ratings, Recommender

pytestmark = pytest.mark.usefixtures("one_fold")
KINDS = ("view", "cart", "purchase")
WEIGHTS = {"view": 1, "cart": 2, "purchase": 5}


def events(n_users: int = 30, n_items: int = 12, seed: int = 0) -> pl.DataFrame:
    rng = np.random.default_rng(seed)
    n = 8 * n_users
    frame = {
        "user": rng.integers(n_users, size=n),
        "item": [f"item {at}" for at in rng.integers(n_items, size=n)],
        "event": rng.choice(KINDS, n, p=[0.6, 0.2, 0.2]),
        "time": 1_700_000_000 + rng.permutation(n) * 3600,
    }
    return pl.DataFrame(frame)


def table() -> pl.DataFrame:
    names = [f"item {at}" for at in range(12)]
    return pl.DataFrame(
        {"item": names, "consumable": [at % 3 == 0 for at in range(12)]}
    )


def fitted(frame: pl.DataFrame, model: str = "popular") -> Recommender:
    ratings = Ratings.from_frame(frame, event_weights=WEIGHTS, item_table=table())
    return Recommender(model).fit(ratings)


def lists(recommender: Recommender, users=None, **options) -> dict[int, set[str]]:
    rows = recommender.recommend(users, n=100, **options)
    return {user: set(of_user["item"]) for (user,), of_user in rows.group_by("user")}


def of_kinds(frame: pl.DataFrame, *kinds: str) -> dict[int, set[str]]:
    rows = frame.filter(pl.col("event").is_in(kinds))
    return {user: set(of_user["item"]) for (user,), of_user in rows.group_by("user")}


def expected(frame: pl.DataFrame, seen: dict[int, set[str]]) -> dict[int, set[str]]:
    items = set(frame["item"])
    unseen = {user: items - seen.get(user, set()) for user in set(frame["user"])}
    return {user: listed for user, listed in unseen.items() if listed}


@pytest.mark.parametrize("kinds", [("purchase",), ("purchase", "cart"), KINDS])
@pytest.mark.parametrize("model", ["popular", "ials"])
def test_items_of_other_kinds_may_be_recommended(model, kinds):
    frame = events()
    recommender = fitted(frame, model)
    wanted = expected(frame, of_kinds(frame, *kinds))
    assert lists(recommender, seen=kinds) == wanted
    assert lists(recommender, seen=",".join(kinds)) == wanted
    one = lists(recommender, [7], seen=list(kinds))
    assert one == {7: wanted[7]}


def test_a_saved_and_an_updated_model_know_the_kinds(tmp_path):
    frame = events()
    old, new = frame[:200], frame[200:]
    fitted(old).save(tmp_path / "model")
    loaded = Recommender.load(tmp_path / "model")
    assert lists(loaded, seen="purchase") == expected(old, of_kinds(old, "purchase"))
    updated = loaded.update(new)
    wanted = expected(frame, of_kinds(frame, "purchase"))
    assert lists(updated, seen="purchase") == wanted
    without = updated.update(forget=[3])
    del wanted[3]
    assert lists(without, seen="purchase") == wanted


def test_events_of_a_new_user_have_kinds():
    recommender = fitted(events())
    rows = {"item": ["item 1", "item 2"], "event": ["view", "purchase"]}
    items = set(recommender.ratings.items.values)
    found = recommender.recommend(history=pl.DataFrame(rows), n=100, seen="purchase")
    assert set(found["item"]) == items - {"item 2"}
    # No purchase is in this history, but the model knows purchases.
    views = pl.DataFrame({"item": ["item 1"], "event": ["view"]})
    found = recommender.recommend(history=views, n=100, seen="purchase")
    assert set(found["item"]) == items
    with pytest.raises(DataError, match="no kinds of events"):
        recommender.recommend(history=["item 1"], seen="purchase")


def test_a_half_life_keeps_the_kinds_of_a_new_user():
    frame = events()
    ratings = Ratings.from_frame(frame, event_weights=WEIGHTS, half_life="10d")
    recommender = Recommender("popular").fit(ratings)
    rows = {
        "item": ["item 1", "item 2"],
        "event": ["view", "purchase"],
        "time": [1_700_000_000, 1_700_000_001],
    }
    found = recommender.recommend(history=pl.DataFrame(rows), n=100, seen="purchase")
    assert set(found["item"]) == set(frame["item"]) - {"item 2"}


def test_unknown_kinds_are_an_error():
    recommender = fitted(events())
    with pytest.raises(
        DataError, match=r"no kind of event 'buy'.*cart, purchase, view"
    ):
        recommender.recommend(1, seen="buy")
    with pytest.raises(DataError, match="Did you mean purchase"):
        recommender.recommend(1, seen="cart, purchse")
    ratings = Ratings.from_frame(events().drop("event"))
    plain = Recommender("popular").fit(ratings)
    with pytest.raises(DataError, match=r"no kinds of events.*--event-col"):
        plain.recommend(1, seen="purchase")
    with pytest.raises(DataError, match="leave out seen"):
        recommender.recommend(1, seen="purchase", exclude_seen=False)


def test_a_condition_lets_seen_items_come_again():
    frame = events()
    recommender = fitted(frame)
    consumable = set(table().filter("consumable")["item"])
    seen = of_kinds(frame, *KINDS)
    durable = {user: items - consumable for user, items in seen.items()}
    assert lists(recommender, repeat_where="consumable") == expected(frame, durable)
    assert lists(recommender, repeat_where=pl.col("consumable")) == expected(
        frame, durable
    )
    bought = of_kinds(frame, "purchase")
    bought = {user: items - consumable for user, items in bought.items()}
    both = lists(recommender, repeat_where="consumable", seen="purchase")
    assert both == expected(frame, bought)
    with pytest.raises(DataError, match="repeat_where: 'fresh' cannot be used"):
        recommender.recommend(1, repeat_where="fresh")


def test_other_options_still_apply():
    frame = events()
    recommender = fitted(frame)
    block = {7: ["item 1"], 99: ["item 2"]}
    listed = lists(
        recommender, [7, 99], seen="purchase", block=block, cold_start="popular"
    )
    assert listed[7] == expected(frame, of_kinds(frame, "purchase"))[7] - {"item 1"}
    assert listed[99] == set(frame["item"]) - {"item 2"}


def test_weights_that_add_up_to_nothing_are_not_seen():
    rows = {
        "user": [1, 1, 2],
        "item": ["a", "a", "b"],
        "event": ["purchase", "purchase", "purchase"],
        "quantity": [1.0, -1.0, 1.0],
    }
    ratings = Ratings.from_frame(
        pl.DataFrame(rows), weight="quantity", event_weights={"purchase": 1}
    )
    recommender = Recommender("popular").fit(ratings)
    assert lists(recommender, [2], seen="purchase") == lists(recommender, [2])


def test_a_named_column_of_kinds_is_kept_without_weights(tmp_path):
    frame = events()
    old, new = frame[:200], frame[200:]
    ratings = Ratings.from_frame(old, event="event")
    assert ratings.rule.kinds == ("cart", "purchase", "view")
    # All events count the same, as if the column had not been named.
    unnamed = Ratings.from_frame(old)
    assert unnamed.events is None or unnamed.events.kinds is None
    assert ratings.matrix.toarray().tolist() == unnamed.matrix.toarray().tolist()
    recommender = Recommender("popular").fit(ratings)
    assert lists(recommender) == lists(Recommender("popular").fit(unnamed))
    recommender.save(tmp_path / "model")
    updated = Recommender.load(tmp_path / "model").update(new)
    wanted = expected(frame, of_kinds(frame, "purchase"))
    assert lists(updated, seen="purchase") == wanted
    rows = {"item": ["item 1", "item 2"], "event": ["view", "purchase"]}
    found = updated.recommend(history=pl.DataFrame(rows), n=100, seen="purchase")
    assert set(found["item"]) == set(frame["item"]) - {"item 2"}

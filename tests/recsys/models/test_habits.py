"""Habits: shares of a user's baskets, in scores, explanations, saved models and new users."""

from __future__ import annotations

import math
from collections import defaultdict

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recsys import DataError, Ratings, Recommender
from recsys.models.habits import habits
from recsys.models.histories import Histories
from recsys.saving.arrays import DamageError

WEEK = 7 * 86400
START = 1_700_000_000
ROWS = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from("abcd"), st.integers(0, 6)),
    min_size=1,
    max_size=40,
)
MODELS = pytest.mark.parametrize("model", ["popular", "next"])


def purchases(n_users: int = 60, n_weeks: int = 12, seed: int = 0) -> pl.DataFrame:
    """Each user buys four staples in most weeks, two of which change in the middle."""
    rng = np.random.default_rng(seed)
    rows = []
    for user in range(n_users):
        first = rng.choice(40, 4, replace=False)
        second = np.concatenate([first[:2], rng.choice(40, 2, replace=False)])
        for week in range(n_weeks):
            staples = first if week < n_weeks / 2 else second
            basket = set(staples[rng.random(4) < 0.8].tolist())
            basket |= set(rng.choice(40, rng.poisson(0.7)).tolist())
            rows += [(user, item, START + week * WEEK) for item in sorted(basket)]
    return pl.DataFrame(rows, schema=["user", "item", "time"], orient="row")


def without_last(frame: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    is_last = pl.col("time") == pl.col("time").max().over("user")
    return frame.filter(~is_last), frame.filter(is_last)


def recall(lists: pl.DataFrame, baskets: pl.DataFrame) -> float:
    hits = baskets.join(lists, on=["user", "item"], how="semi")
    return len(hits) / len(baskets)


def top_counts(frame: pl.DataFrame, n: int) -> pl.DataFrame:
    counts = frame.group_by("user", "item", maintain_order=True).len()
    by_count = counts.sort("len", descending=True, maintain_order=True)
    return by_count.group_by("user", maintain_order=True).head(n)


@given(ROWS)
def test_shares_equal_dictionary_shares(rows):
    columns = {
        "user": [user for user, _, _ in rows],
        "item": [item for _, item, _ in rows],
        "time": [START + day * 86400 for _, _, day in rows],
    }
    ratings = Ratings.from_frame(pl.DataFrame(columns))
    times: dict[int, set[int]] = defaultdict(set)
    bought: dict[tuple[int, str], set[int]] = defaultdict(set)
    for user, item, day in rows:
        times[user].add(day)
        bought[user, item].add(day)
    expected = []
    for user, item in ratings.to_frame().select("user", "item").iter_rows():
        recency = {
            day: math.exp(-place / 10)
            for place, day in enumerate(sorted(times[user], reverse=True))
        }
        share = sum(recency[day] for day in bought[user, item])
        expected.append(share / sum(recency.values()))
    found = habits(Histories.of(ratings), weighted=False)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@MODELS
def test_planted_habits_come_again(model):
    train, baskets = without_last(purchases())
    ratings = Ratings.from_frame(train)

    def lists(**parameters):
        recommender = Recommender(model, **parameters).fit(ratings)
        return recommender.recommend(n=4, exclude_seen=False)

    of_habits = recall(lists(habit=0.9), baskets)
    assert of_habits > recall(lists(), baskets) + 0.1
    # Staples that are not bought any more count less.
    assert of_habits > recall(top_counts(train, 4), baskets) + 0.03


@MODELS
def test_unseen_items_keep_the_order_of_the_model(model):
    ratings = Ratings.from_frame(purchases(20))
    plain = Recommender(model).fit(ratings)
    habitual = Recommender(model, habit=0.5).fit(ratings)
    items = ratings.n_items
    if model == "next":
        expected = plain.recommend(n=items)["item"].to_list()
        assert habitual.recommend(n=items)["item"].to_list() == expected
    seen = {*ratings.to_frame().select("user", "item").iter_rows()}
    listed = habitual.recommend(n=items)
    assert seen.isdisjoint(listed.select("user", "item").iter_rows())


@MODELS
def test_explanations_add_up(model):
    recommender = Recommender(model, habit=0.7).fit(Ratings.from_frame(purchases(30)))
    listed = recommender.recommend(3, n=8, exclude_seen=False)
    for item, score in listed.select("item", "score").iter_rows():
        parts = recommender.explain(3, item)
        assert parts["contribution"].sum() == pytest.approx(score, rel=1e-4, abs=1e-6)
    best = listed["item"][0]
    own = recommender.explain(3, best).filter(part="item", item=best)
    assert own["contribution"].item() > 0


@MODELS
def test_new_users_have_habits(model):
    frame = purchases(30)
    recommender = Recommender(model, habit=0.7).fit(Ratings.from_frame(frame))
    of_user = frame.filter(user=3).with_columns(user=pl.lit(999))
    listed = recommender.recommend(history=of_user, n=20, exclude_seen=False)
    expected = recommender.recommend(3, n=20, exclude_seen=False)
    if model == "popular":
        assert listed.drop("user").equals(expected.drop("user"))
    # Next leaves the user out of the neighbours, if nobody else is the same.
    assert listed["item"][:3].to_list() == expected["item"][:3].to_list()


@MODELS
def test_saved_models_keep_habits(model, tmp_path):
    recommender = Recommender(model, habit=0.7).fit(Ratings.from_frame(purchases(30)))
    recommender.save(tmp_path / "model")
    loaded = Recommender.load(tmp_path / "model")
    expected = recommender.recommend(n=10, exclude_seen=False)
    assert loaded.recommend(n=10, exclude_seen=False).equals(expected)


@MODELS
def test_an_update_equals_a_new_fit(model):
    frame = purchases(30).sort("time", maintain_order=True)
    old, new = frame[:900], frame[900:]
    updated = Recommender(model, habit=0.7).fit(Ratings.from_frame(old)).update(new)
    refitted = Recommender(model, habit=0.7).fit(Ratings.from_frame(frame))
    expected = refitted.recommend(n=10, exclude_seen=False)
    assert updated.recommend(n=10, exclude_seen=False).equals(expected)


def test_weights_count():
    columns = {
        "user": [1, 1, 1, 2],
        "item": ["a", "b", "b", "c"],
        "event": ["purchase", "view", "view", "view"],
        "time": [START, START, START + 60, START],
    }
    ratings = Ratings.from_frame(
        pl.DataFrame(columns), event_weights={"purchase": 5, "view": 1}
    )
    a, b, c = habits(Histories.of(ratings), weighted=True)
    recency = math.exp(-1 / 10)
    assert a == pytest.approx(5 * recency / (1 + recency))
    assert b == pytest.approx(1)
    assert c == 1


def test_counts_without_times():
    columns = {"user": [1, 1, 1, 2], "item": ["a", "a", "b", "a"]}
    ratings = Ratings.from_frame(pl.DataFrame(columns), duplicates="sum")
    shares = habits(Histories.of(ratings), weighted=True)
    assert shares.tolist() == [1, 0.5, 1]


def test_rejects_shares_of_1_and_above():
    with pytest.raises(DataError, match="habit must be at least 0 and below 1; got 1"):
        Recommender("popular", habit=1).fit(Ratings.from_frame(purchases(5)))


def test_rejects_damaged_habits():
    model = (
        Recommender("popular", habit=0.5).fit(Ratings.from_frame(purchases(9))).model
    )
    arrays = dict(model._arrays())
    arrays["habit_items"] = arrays["habit_items"] + 1000
    with pytest.raises(DamageError):
        type(model)._from_arrays(model.get_params(), arrays)


def test_new_items_need_a_fit():
    recommender = Recommender("popular", habit=0.5).fit(
        Ratings.from_frame(purchases(9))
    )
    with pytest.raises(DataError, match="fit the model again"):
        recommender.fold_in_items(pl.DataFrame({"user": [1], "item": [99]}))


def test_the_page_has_lists_computed_in_advance():
    from recsys.serve.static_page import static_page

    recommender = Recommender("popular", habit=0.5).fit(
        Ratings.from_frame(purchases(9))
    )
    assert "html" in static_page(recommender).html


def test_repeats_in_a_list_of_a_new_user_count():
    frame = purchases(30)
    recommender = Recommender("next", habit=0.9).fit(Ratings.from_frame(frame))
    listed = recommender.recommend(history=[5, 9, 5, 5, 7], n=3, exclude_seen=False)
    assert listed["item"][0] == 5


def test_the_latest_occurrence_in_a_list_gives_the_order():
    recommender = Recommender("next").fit(Ratings.from_frame(purchases(30)))

    def items(history):
        return recommender.recommend(history=history, n=9)["item"].to_list()

    assert items([5, 9, 5]) == items([9, 5]) != items([5, 9])

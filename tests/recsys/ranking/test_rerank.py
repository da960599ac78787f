"""Re-ranking: variety of lists, and few items of each group."""

import numpy as np
import polars as pl
import pytest

from recsys.data.ratings import Ratings
from recsys.errors import DataError
from recsys.evaluation.metrics import cooccurrence_vectors, diversity
from recsys.recommender import Recommender

N_USERS, N_ITEMS = 80, 60


def interactions():
    """Interactions of users of three tastes; items have a taste, some genres and a shop."""
    rng = np.random.default_rng(0)
    same = np.arange(N_USERS)[:, None] % 3 == np.arange(N_ITEMS) % 3
    taken = rng.random(same.shape) < np.where(same, 0.35, 0.1)
    users, items = np.nonzero(taken)
    genres = [
        ["a", "b", "c"][i % 3 : i % 3 + 1] + (["x"] if i % 2 else [])
        for i in range(N_ITEMS)
    ]
    genres[7] = []
    shops = [None if i % 10 == 9 else f"shop {i % 4}" for i in range(N_ITEMS)]
    table = pl.DataFrame({"item": range(N_ITEMS), "genres": genres, "shop": shops})
    frame = pl.DataFrame({"user": users, "item": items})
    return Ratings.from_frame(frame, item_table=table)


@pytest.fixture(scope="module")
def recommender():
    return Recommender("ials", factors=8).fit(interactions(), features=False)


def lists(frame, n):
    found = np.full((N_USERS, n), -1, np.int32)
    found[frame["user"].to_numpy(), frame["rank"].to_numpy() - 1] = frame[
        "item"
    ].to_numpy()
    return found


def test_nothing_changes_without_a_request(recommender):
    assert recommender.recommend(diversity=0.0).equals(recommender.recommend())


def test_more_diversity_makes_lists_more_different_and_keeps_the_best_item(recommender):
    vectors = cooccurrence_vectors(recommender.ratings)
    plain = recommender.recommend(n=8)
    found = []
    for weight in (0.0, 0.3, 0.7, 1.0):
        frame = recommender.recommend(n=8, diversity=weight)
        assert (frame.group_by("user").len()["len"] == 8).all()
        assert frame.select("user", "item").is_duplicated().sum() == 0
        first, best = (each.filter(pl.col("rank") == 1) for each in (frame, plain))
        assert first.equals(best)
        found.append(np.nanmean(diversity(lists(frame, 8), vectors)))
    assert found == sorted(found)
    assert found[2] > found[0] + 0.1


def test_each_next_item_is_the_best_by_relevance_and_similarity(recommender):
    weight, n = 0.4, 5
    pool = recommender.recommend(11, n=N_ITEMS)
    items, scores = pool["item"].to_numpy(), pool["score"].to_numpy()
    vectors = recommender.model.item_vectors()
    vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    relevance = (scores - scores.min()) / (scores.max() - scores.min())
    chosen = [0]
    while len(chosen) < n:
        similar = (vectors[items] @ vectors[items[chosen]].T).max(axis=1)
        value = (1 - weight) * relevance - weight * similar
        value[chosen] = -np.inf
        chosen.append(int(value.argmax()))
    frame = recommender.recommend(11, n=n, diversity=weight)
    assert frame["item"].to_list() == items[chosen].tolist()
    np.testing.assert_array_equal(frame["score"], scores[chosen])


@pytest.mark.parametrize("options", [{"diversity": 0.5}, {"at_most": 1, "per": "shop"}])
def test_a_user_gets_the_same_list_alone(recommender, options):
    everyone = recommender.recommend(n=6, **options)
    for user in (0, 33, 79):
        alone = recommender.recommend(user, n=6, **options)
        assert alone.equals(everyone.filter(pl.col("user") == user))


@pytest.mark.parametrize(
    ("at_most", "column"), [(2, "genres"), (1, "genres"), (3, "shop")]
)
def test_no_group_has_more_items_than_the_limit(recommender, at_most, column):
    table = recommender.ratings.item_table.frame.select("item", column)
    frame = recommender.recommend(n=10, at_most=at_most, per=column)
    groups = (
        frame.join(table, on="item").explode(column) if column == "genres" else None
    )
    groups = frame.join(table, on="item") if groups is None else groups
    counts = groups.drop_nulls(column).group_by("user", column).len()
    assert counts["len"].max() <= at_most
    whole = recommender.recommend(n=N_ITEMS).filter(pl.col("user") == 5)
    taken: dict[str, int] = {}
    expected = []
    for item in whole["item"]:
        own = table.filter(pl.col("item") == item)[column].to_list()[0]
        own = [own] if isinstance(own, str) else list(own or [])
        if all(taken.get(each, 0) < at_most for each in own) and len(expected) < 10:
            expected.append(item)
            taken |= {each: taken.get(each, 0) + 1 for each in own}
    assert frame.filter(pl.col("user") == 5)["item"].to_list() == expected


def test_the_search_goes_deeper_where_groups_leave_a_list_short():
    scores = np.linspace(1, 0, 900)
    table = np.tile(np.where(scores > 0.5, 1.0, np.nan), (3, 1))
    table[:, -1], table[0, :5], table[:, 500:] = 1.0, np.nan, np.nan
    table[1, 500:] = 1.0
    features = pl.DataFrame(
        {"item": range(900), "kind": ["same"] * 850 + ["other"] * 50}
    )
    frame = Ratings.from_matrix(table, implicit=True).to_frame().select("user", "item")
    everything = Ratings.from_frame(frame, item_table=features)
    found = Recommender("popular").fit(everything)
    top = found.recommend(2, n=3, at_most=1, per="KIND", exclude_seen=False)
    assert top.height == 2  # one of each kind, although the other is among the last


def test_requests_are_checked(recommender):
    for options, message in [
        ({"diversity": 1.5}, "diversity must be a number from 0 to 1; got 1.5"),
        ({"diversity": "much"}, "diversity must be a number from 0 to 1; got 'much'"),
        ({"at_most": 2}, "at_most and per go together"),
        ({"per": "genres"}, "at_most and per go together"),
        (
            {"at_most": 0, "per": "genres"},
            "at_most must be at least 1; got 0",
        ),
        (
            {"at_most": 2, "per": "genre"},
            "column 'genre' of items; .* Did you mean genres",
        ),
    ]:
        with pytest.raises(DataError, match=message):
            recommender.recommend(**options)
    with pytest.raises(
        DataError, match="The popular model cannot diversify lists; these models"
    ):
        Recommender("popular").fit(interactions()).recommend(diversity=0.5)

"""Models with non-negative factors, and their topics."""

from __future__ import annotations

import json

import numpy as np
import polars as pl
import pytest
from click.testing import CliRunner

from recsys import Recommender
from recsys.cli.main import cli
from recsys.data.ratings import Ratings
from recsys.errors import DataError
from recsys.evaluation.splits import random_split
from recsys.serve.catalogue import Catalogue

PENALTIES = {"regularization": 0.01, "unobserved_weight": 0.1}
MODELS = {
    "als": {"factors": 4, "nonnegative": True},
    "ials": {"factors": 4, "nonnegative": True, **PENALTIES},
}
every_model = pytest.mark.parametrize("name", MODELS)
N_USERS, N_ITEMS, N_GROUPS = 120, 40, 4


def frame_of_groups() -> pl.DataFrame:
    """Users who like one of four groups of ten items, item 10 g + i in group g."""
    rng = np.random.default_rng(0)
    users, items = np.nonzero(rng.random((N_USERS, N_ITEMS)) < 0.4)
    likes = users % N_GROUPS == items // 10
    is_seen = likes | (rng.random(len(users)) < 0.3)
    ratings = np.where(likes, 5.0, 1.0) - rng.integers(0, 2, len(users)) / 2
    frame = pl.DataFrame({"user": users, "item": items, "rating": ratings})
    return frame.filter(pl.Series(is_seen))


@pytest.fixture(scope="module")
def ratings() -> Ratings:
    titles = pl.DataFrame(
        {
            "item": range(N_ITEMS),
            "title": [f"film {item}" for item in range(N_ITEMS)],
            "genre": [f"genre {item // 10}" for item in range(N_ITEMS)],
        }
    )
    return Ratings.from_frame(frame_of_groups(), item_table=titles)


@pytest.fixture(scope="module")
def recommenders(ratings: Ratings) -> dict[str, Recommender]:
    return {name: Recommender(name, **MODELS[name]).fit(ratings) for name in MODELS}


@every_model
def test_no_factor_and_no_score_without_discount_is_negative(name, recommenders):
    model = recommenders[name].model
    assert model.user_factors.min() >= 0
    assert model.item_factors.min() >= 0
    assert not model.user_bias.any()
    assert not model.item_bias.any()
    assert model.global_mean == 0
    everything = np.divmod(np.arange(N_USERS * N_ITEMS), N_ITEMS)
    assert model.predict(*everything).min() >= 0


@every_model
def test_each_group_of_items_is_a_topic(name, recommenders):
    topics = recommenders[name].topics(5)
    assert topics.columns == ["topic", "item", "rank", "weight", "title"]
    groups = topics.group_by("topic", maintain_order=True).agg(
        (pl.col("item") // 10).unique()
    )
    assert groups["topic"].to_list() == [1, 2, 3, 4]
    assert sorted(map(tuple, groups["item"])) == [(0,), (1,), (2,), (3,)]
    assert topics["rank"].to_list() == [1, 2, 3, 4, 5] * 4
    assert (topics["title"] == "film " + topics["item"].cast(pl.String)).all()
    for _, rows in topics.group_by("topic"):
        assert rows["weight"].is_sorted(descending=True)
        assert rows["weight"].min() > 0


@every_model
def test_a_score_is_the_sum_over_topics_and_over_ratings(name, recommenders):
    recommender = recommenders[name]
    best = recommender.recommend(7, n=1)
    item, score = best["item"][0], best["score"][0]
    topics = recommender.explain(7, item, by="topics")
    assert topics.columns == ["part", "topic", "contribution", "items"]
    for explanation in (topics, recommender.explain(7, item)):
        assert explanation["contribution"].sum() == pytest.approx(score, abs=1e-4)
    largest = topics.filter(pl.col("part") == "topic").row(0, named=True)
    names = recommender.topics(3).filter(pl.col("topic") == largest["topic"])["title"]
    assert largest["items"] == "; ".join(names)
    assert f"film {item // 10}" in largest["items"] or item // 10 == 0
    first = recommender.explain(7, item, 1, by="topics")
    assert first["contribution"].sum() == pytest.approx(score, abs=1e-4)


@every_model
def test_new_users_have_the_same_topics(name, recommenders):
    recommender = recommenders[name]
    new = recommender.fold_in({3: 5.0, 5: 5.0, 12: 1.0})
    assert new.model.user_factors.min() >= 0
    assert new.topics(3).equals(recommender.topics(3))
    score = new.recommend("new", n=1)
    parts = new.explain("new", score["item"][0], by="topics")
    assert parts["contribution"].sum() == pytest.approx(score["score"][0], abs=1e-4)


@every_model
def test_an_update_and_forgotten_users_keep_factors_non_negative(name, ratings):
    recommender = Recommender(name, **MODELS[name]).fit(ratings)
    more = pl.DataFrame({"user": [500, 500, 3], "item": [3, 41, 41], "rating": 5.0})
    updated = recommender.update(more).update(forget=[0])
    assert updated.model.item_factors.min() >= 0
    assert updated.model.user_factors.min() >= 0
    assert updated.recommend(500, n=3).height == 3
    assert updated.topics(2).height == 8


@every_model
def test_features_are_not_used(name, ratings):
    with_features = Recommender(name, **MODELS[name]).fit(ratings)
    without = Recommender(name, **MODELS[name]).fit(ratings, features=False)
    assert not with_features.model.uses_features
    np.testing.assert_array_equal(
        with_features.model.item_factors, without.model.item_factors
    )
    with pytest.raises(DataError, match="cannot use features of users"):
        with_features.recommend(user_features="age=3")


@every_model
def test_as_accurate_as_without_the_constraint_to_a_tenth(name, ratings):
    train, test = random_split(ratings, 0.2, random_state=0)
    pairs = test.user_index_of_nonzeros(), test.indices
    target = test.values if name == "als" else np.ones(test.n_ratings)
    errors = []
    for params in (MODELS[name], MODELS[name] | {"nonnegative": False}):
        model = Recommender(name, **params).fit(train, features=False).model
        errors.append(np.sqrt(np.mean((model.predict(*pairs) - target) ** 2)))
    assert errors[0] < 1.1 * errors[1]


def test_a_negative_rating_is_an_error_with_its_user_and_item():
    frame = pl.DataFrame(
        {"user": ["a", "a", "b"], "item": ["x", "y", "x"], "rating": [2.0, 1.0, -1.5]}
    )
    ratings = Ratings.from_frame(frame)
    with pytest.raises(DataError, match=r"not negative; got -1\.5 of user 'b' for"):
        Recommender("als", nonnegative=True).fit(ratings)


def test_links_and_non_negative_factors_exclude_each_other(ratings):
    with pytest.raises(DataError, match="either linked or nonnegative"):
        Recommender("als", nonnegative=True, linked=True).fit(ratings)


def test_other_models_have_no_topics(ratings):
    recommender = Recommender("als", factors=4).fit(ratings)
    with pytest.raises(DataError, match="The als model has no topics; fit als or ials"):
        recommender.topics()
    with pytest.raises(DataError, match="no topics"):
        recommender.explain(7, 3, by="topics")
    with pytest.raises(
        DataError, match="by must be one of ratings, topics; got 'genres'"
    ):
        recommender.explain(7, 3, by="genres")
    assert "topics" not in Catalogue(recommender, "als").spectrum()


@every_model
def test_the_page_has_the_topics(name, recommenders):
    topics = Catalogue(recommenders[name], name).spectrum()["topics"]
    assert [topic["topic"] for topic in topics] == [1, 2, 3, 4]
    frame = recommenders[name].topics(10)
    titles = [item["title"] for topic in topics for item in topic["items"]]
    assert titles == frame["title"].to_list()


def test_the_command_lists_topics_and_explains_by_them(tmp_path):
    data, model = str(tmp_path / "ratings.csv"), str(tmp_path / "model")
    frame_of_groups().write_csv(data)

    def run(*words: str) -> tuple[str, str]:
        result = CliRunner().invoke(cli, words)
        assert result.exit_code == 0, result.stderr
        return result.stdout, result.stderr

    fit = ["fit", data, "--model", "als", "-p", "nonnegative=true", "--factors", "4"]
    run(*fit, "--out", model)
    document = json.loads(run("topics", model, "-n", "2", "--json")[0])
    assert document["command"] == "topics"
    assert [row["topic"] for row in document["rows"]] == [1, 1, 2, 2, 3, 3, 4, 4]
    table = run("topics", model, "-n", "2", "--format", "table")[0].splitlines()
    first = "; ".join(str(row["item"]) for row in document["rows"][:2])
    assert table[2].split(maxsplit=1) == ["1", first]
    by_rating = run("explain", model, "--user", "7", "--item", "30")
    assert "of the score" in by_rating[1]
    by_topic = run("explain", model, "--user", "7", "--item", "30", "--by", "topics")
    assert by_topic[0].startswith("part,topic,contribution,items\npopularity,,")

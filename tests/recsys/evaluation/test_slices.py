"""Groups of users and items, and their metrics against brute force."""

import json

import numpy as np
import polars as pl
import pytest
from click.testing import CliRunner

from recsys import Ratings, evaluate, random_split
from recsys.cli.main import cli
from recsys.errors import DataError
from recsys.evaluation import Evaluation
from recsys.evaluation.slices import groupings

N_USERS, N_ITEMS = 60, 30


@pytest.fixture(scope="module")
def ratings():
    generator = np.random.default_rng(5)
    rows = [
        (user, int(item))
        for user in range(N_USERS)
        for item in generator.choice(N_ITEMS, 8, replace=False)
    ]
    items = pl.DataFrame(
        {
            "item": range(N_ITEMS),
            "genres": ["|".join(["a", "b"][: 1 + i % 2]) for i in range(N_ITEMS)],
            "price": [float(i) for i in range(N_ITEMS)],
        }
    )
    users = pl.DataFrame(
        {"user": range(N_USERS), "age": [20 + u % 40 for u in range(N_USERS)]}
    )
    frame = pl.DataFrame(rows, schema=["user", "item"], orient="row")
    return Ratings.from_frame(frame, item_table=items, user_table=users)


def test_groups_of_items_equal_brute_force(ratings):
    split = random_split(ratings, 0.3, random_state=1)
    found = evaluate(
        ["popular", "ease"],
        split,
        n=5,
        metrics=["recall", "ndcg"],
        by=["genres", "popularity"],
        features=False,
    )
    genres = dict(
        zip(
            ratings.item_table.frame["item"],
            ratings.item_table.frame["genres"],
            strict=True,
        )
    )
    from recsys import Recommender

    lists = {}
    recommender = Recommender("ease").fit(split.train, features=False)
    relevant = {}
    for user, item in split.test.to_frame().select("user", "item").iter_rows():
        relevant.setdefault(user, set()).add(item)
    for user in relevant:
        lists[user] = recommender.recommend(user, n=5)["item"].to_list()
    for genre in ("a", "b"):
        recalls = []
        exposures = []
        for user, items in relevant.items():
            of_group = {item for item in items if genre in genres[item]}
            if of_group:
                recalls.append(len(of_group & {*lists[user]}) / len(of_group))
                in_group = [genre in genres[item] for item in lists[user]]
                exposures.append(sum(in_group) / len(in_group))
        row = found.slices.filter(
            model="ease", by="genres", group=genre, metric="recall@5"
        ).row(0, named=True)
        assert row["users"] == len(recalls)
        assert row["value"] == pytest.approx(np.mean(recalls))
        assert row["exposure"] == pytest.approx(np.mean(exposures))
        assert row["low"] <= row["value"] <= row["high"]


def test_groups_of_users_equal_the_values_of_users(ratings):
    split = random_split(ratings, 0.3, random_state=1)
    found = evaluate("popular", split, n=5, metrics=["ndcg"], by_user=["age"])
    ages = dict(ratings.user_table.frame.select("user", "age").iter_rows())
    values = dict(found.per_user.select("user", "ndcg@5").drop_nulls().iter_rows())
    for row in found.slices.to_dicts():
        low, _, high = row["group"].partition(" to ")
        if low.startswith("under"):
            bounds = 0, float(low.split()[1])
        elif high:
            bounds = float(low), float(high)
        else:
            bounds = float(low.split()[0]), np.inf
        group = [v for user, v in values.items() if bounds[0] <= ages[user] < bounds[1]]
        others = [
            v for user, v in values.items() if not bounds[0] <= ages[user] < bounds[1]
        ]
        assert row["users"] == len(group)
        assert row["value"] == pytest.approx(np.mean(group))
        assert row["gap"] == pytest.approx(np.mean(group) - np.mean(others))


def test_finds_a_group_for_which_a_model_is_worse():
    generator = np.random.default_rng(2)
    rows = []
    for user in range(400):
        # The users of one country choose at random, the others among the first items.
        n_items = 200 if user % 4 == 0 else 12
        rows += [(user, int(i)) for i in generator.choice(n_items, 8, replace=False)]
    users = pl.DataFrame(
        {
            "user": range(400),
            "country": ["NO" if u % 4 == 0 else "DE" for u in range(400)],
        }
    )
    frame = pl.DataFrame(rows, schema=["user", "item"], orient="row")
    ratings = Ratings.from_frame(frame, user_table=users)
    found = evaluate("popular", random_split(ratings, 0.25), n=5, by_user=["country"])
    worst = found.slices.filter(metric="ndcg@5", group="NO").row(0, named=True)
    assert worst["gap"] < -0.1
    assert worst["adjusted"] < 0.01


def test_popularity_has_thirds_of_the_ratings(ratings):
    (grouping,) = groupings(ratings, ["popularity"], [])
    counts = ratings.counts("item")
    shares = grouping.members @ counts / counts.sum()
    assert grouping.members.sum(axis=0).tolist() == [1] * N_ITEMS
    assert np.abs(shares - 1 / 3).max() < counts.max() / counts.sum()


def test_rejects_a_column_that_the_table_lacks(ratings):
    with pytest.raises(DataError, match=r"by 'genre'; .*Did you mean genres\?"):
        groupings(ratings, ["genre"], [])
    with pytest.raises(DataError, match="groups of users by 'price'"):
        groupings(ratings, [], ["price"])


def test_slices_are_saved(ratings, tmp_path):
    split = random_split(ratings, 0.3, random_state=1)
    found = evaluate("popular", split, n=5, metrics=["ndcg"], by=["price"])
    found.save(tmp_path / "results")
    assert Evaluation.load(tmp_path / "results").slices.equals(found.slices)


def test_command_lists_groups(tmp_path, ratings):
    ratings.to_frame().write_csv(tmp_path / "log.csv")
    ratings.user_table.frame.write_csv(tmp_path / "users.csv")
    words = ["evaluate", tmp_path / "log.csv", "--user-table", tmp_path / "users.csv"]
    options = ["--method", "random", "--model", "popular", "--by-user", "age,activity"]
    command = [*map(str, words), *options, "--by", "popularity", "--json"]
    output = CliRunner().invoke(cli, command).stdout
    (model,) = json.loads(output)["models"]
    by = [entry["by"] for entry in model["slices"]]
    assert set(by) == {"age", "activity", "popularity"}
    first = model["slices"][0]
    assert first["group"] == "head"
    assert set(first["metrics"]["ndcg@10"]) == {
        "value",
        "interval",
        "gap",
        "p_value",
        "adjusted",
    }

"""Why an item is not in the list of a user."""

from __future__ import annotations

import json

import polars as pl
import pytest
from click.testing import CliRunner

from recsys import (
    Ratings,
    Recommender,
    UnknownIdError,
    read_ratings,
    sample_path,
    with_features,
)
from recsys.cli.main import cli


@pytest.fixture(scope="module")
def recommender():
    return Recommender("als", factors=8).fit(read_ratings(sample_path()))


@pytest.fixture(scope="module")
def model(recommender, tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "model"
    recommender.save(path)
    return str(path)


def item_at(recommender: Recommender, rank: int, user: int = 1) -> int:
    items: list[int] = recommender.recommend(user, rank)["item"].to_list()
    return items[-1]


def test_a_listed_item_has_its_rank(recommender):
    place = recommender.placement(1, item_at(recommender, 3))
    assert (place.rank, place.reasons) == (3, ())
    assert place.lacks.is_empty()


def test_an_item_behind_lacks_what_the_first_ones_have(recommender):
    item = item_at(recommender, 100)
    place = recommender.placement(1, item)
    assert place.rank == 100
    seen = recommender.ratings.counts("user")[0]
    assert place.n_ranked == recommender.ratings.n_items - seen
    # What the first ten have more of, from the explanations of their scores.
    frames = [
        recommender.explain(1, other) for other in recommender.recommend(1)["item"]
    ]
    means = pl.concat(frames, how="diagonal_relaxed").filter(part="popularity")
    row = place.lacks.filter(part="popularity").row(0, named=True)
    assert row["of_first"] == pytest.approx(means["contribution"].mean())
    own = recommender.explain(1, item).filter(part="popularity")["contribution"][0]
    assert row["contribution"] == pytest.approx(own)
    differences = place.lacks["of_first"] - place.lacks["contribution"]
    assert differences.min() > 0
    assert differences.is_sorted(descending=True)


@pytest.mark.parametrize(
    ("options", "reasons"),
    [
        ({}, ()),
        ({"items": [1, 2]}, ("items",)),
        ({"where": "year < 1900"}, ("where",)),
        ({"where": "year < 1900", "items": [1, 2]}, ("items", "where")),
        ({"where_user": "1 = 2"}, ("where_user",)),
    ],
)
def test_what_leaves_an_item_out_is_named(recommender, options, reasons):
    item = item_at(recommender, 20)
    place = recommender.placement(1, item, **options)
    assert place.reasons == reasons
    assert (place.rank is None) == bool(reasons)


def test_blocked_and_seen_items(recommender):
    item = item_at(recommender, 20)
    for block in ([item], {1: [item]}):
        assert recommender.placement(1, item, block=block).reasons == ("block",)
    assert recommender.placement(1, item, block={2: [item]}).reasons == ()
    seen = recommender.ratings.to_frame().filter(user=1)["item"][0]
    assert recommender.placement(1, seen).reasons == ("seen",)
    assert recommender.placement(1, seen, block=[seen]).reasons == ("seen", "block")
    assert recommender.placement(1, seen, exclude_seen=False).rank is not None


def test_an_item_without_data_has_no_place():
    items = pl.DataFrame({"item": ["a", "b", "c", "d"], "colour": ["r", "g", "r", "g"]})
    pairs = pl.DataFrame({"user": [1, 1, 2, 3], "item": ["a", "b", "a", "c"]})
    plain = Recommender("popular").fit(pairs)
    with pytest.raises(UnknownIdError):
        plain.placement(1, "d")
    ratings = Ratings.from_frame(pairs, item_table=items)
    ratings = with_features(ratings, unrated=True)
    # The most popular items have no features, and an item without ratings no place.
    popular = Recommender("popular").fit(ratings)
    assert popular.placement(1, "d").reasons == ("no data",)
    assert popular.placement(3, "b").rank == 2


def test_the_command_says_why(model, recommender):
    def run(*words: str) -> str:
        result = CliRunner().invoke(cli, ["explain", model, "--user", "1", *words])
        assert result.exit_code == 0, result.output
        return result.output

    listed = str(item_at(recommender, 2))
    assert "in the list" not in run("--item", listed)
    behind = str(item_at(recommender, 100))
    said = run("--item", behind)
    assert f"item {behind} is number 100 of" in said
    assert "the first 10 have more by" in said
    assert "--where" in run("--item", behind, "--where", "year < 1900")
    document = json.loads(run("--item", behind, "--json", "--quiet"))
    assert document["placement"]["rank"] == 100
    assert document["placement"]["lacks"]
    seen = recommender.ratings.to_frame().filter(user=1)["item"][0]
    assert "the user has seen it" in run("--item", str(seen))


def test_equal_contributions_do_not_differ_by_rounding():
    recommender = Recommender("bias").fit(read_ratings(sample_path()))
    # The ratings of a user contribute the same to all scores.
    for rank in (50, 100, 500):
        place = recommender.placement(1, item_at(recommender, rank))
        assert set(place.lacks["part"]) <= {"base", "popularity"}


def test_a_model_without_explanations_still_tells_the_place_of_an_item(tmp_path):
    Recommender("random").fit(read_ratings(sample_path())).save(tmp_path / "model")
    arguments = ["explain", str(tmp_path / "model"), "--user", "1", "--item", "1"]
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 1
    assert "item 1 is number 364 of 417 in the list" in result.stderr
    assert "random model cannot explain its scores" in result.stderr

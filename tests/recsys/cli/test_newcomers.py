"""Verbs with items that nobody rated and users who are described by their features."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

JOBS = ("soldier", "astronaut")
ABOUT = (
    "soldiers of the army march to the front",
    "robots of the future cross the galaxy",
)
NEW = (0, 1)  # items without ratings, one for each job


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """An als model of ratings with tables: users like the items of their job."""
    import polars as pl

    from recsys import Ratings, Recommender, with_features

    rng = random.Random(0)
    items = [(i, f"T{i}", f"{ABOUT[i % 2]} in take {i}", 10 + i % 5) for i in range(40)]
    users = [(u, JOBS[u % 2], 20 + u) for u in range(60)]
    rows = [
        (u, i, rng.choice([4.0, 5.0] if u % 2 == i % 2 else [1.0, 2.0]))
        for u in range(60)
        for i in rng.sample(range(len(NEW), 40), 12)
    ]
    item_table = pl.DataFrame(items, ["item", "title", "about", "price"], orient="row")
    user_table = pl.DataFrame(users, ["user", "job", "age"], orient="row")
    frame = pl.DataFrame(rows, ["user", "item", "rating"], orient="row")
    folder = tmp_path_factory.mktemp("newcomers")
    for name, table in (
        ("items", item_table),
        ("users", user_table),
        ("ratings", frame),
    ):
        table.write_csv(folder / f"{name}.csv")
    ratings = Ratings.from_frame(frame, item_table=item_table, user_table=user_table)
    known = with_features(ratings, unrated=True)
    Recommender("als", factors=4).fit(known).save(folder / "model")
    return folder


@pytest.fixture
def rows(run):
    def found(*args):
        return json.loads(run(*args, "--json").stdout)["rows"]

    return found


def test_a_table_marks_new_items(run, saved):
    lines = run(
        "recommend", saved / "model", "--user", 3, "-n", 40, "--format", "table"
    ).stdout
    marks = {line.split()[1]: line.split()[-1] for line in lines.splitlines()[2:]}
    assert {item for item, mark in marks.items() if mark == "yes"} == {"0", "1"}
    assert set(marks.values()) == {"yes", "no"}
    only = run(
        "recommend", saved / "model", "--all", "--where", "new", "--format", "csv"
    ).stdout
    assert {line.split(",")[1] for line in only.splitlines()[1:]} == {"0", "1"}


def test_a_file_of_ratings_brings_its_new_items(run, saved):
    tables = ("--item-table", saved / "items.csv", "--user-table", saved / "users.csv")
    asked = ("recommend", saved / "ratings.csv", *tables, "--model", "als", "--user", 3)
    said = run(*asked, "--where", "new")
    assert "; 2 items without ratings known by features only" in said.stderr
    assert len(said.stdout.splitlines()) == 3
    bare = run(*asked, "--no-features", "-n", 40, "--format", "csv").stdout.splitlines()
    assert bare[0] == "user,item,rank,score,title"
    assert {line.split(",")[1] for line in bare[1:]}.isdisjoint(map(str, NEW))


def test_a_table_of_new_items_only_is_added(run, rows, saved):
    arrivals = saved / "arrivals.csv"
    arrivals.write_text(
        "item,title,about,price,tag\n90,New,robots of the future,11,x\n"
    )
    asked = ("recommend", saved / "model", "--user", 3, "--item-table", arrivals)
    found = {each["item"]: each["title"] for each in rows(*asked, "-n", 50)}
    assert (found[90], found[1]) == ("New", "T1")
    assert "arrivals.csv (has 1 without ratings)" in run(*asked).stderr
    arrivals.write_text("item,title\nSKU-90,New\n")
    assert "its ids look like 'SKU-90', theirs like 0" in run(*asked, code=1).output


def test_a_user_is_described(rows, saved):
    described = (
        "recommend",
        saved / "model",
        "--user-features",
        "job=astronaut, age=30",
    )
    assert {each["item"] % 2 for each in rows(*described, "-n", 10)} == {1}
    both = rows(*described, "--like", "T4", "-n", 10)
    assert both[0]["user"] == "new"
    assert 4 not in {each["item"] for each in both}
    options = ("--user-features", "job=soldier", "--item", "0,1")
    liked, other = rows("predict", saved / "model", *options)
    assert (liked["user"], liked["item"]) == ("new", "0")
    assert liked["prediction"] > other["prediction"] + 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["recommend", "--user-features", "jop=soldier"],
            "there are job, age. Did you mean job?",
        ),
        (
            ["recommend", "--user-features", "job=solder"],
            "unknown; did you mean soldier?",
        ),
        (["similar", "--text", "nothing here"], "No word of the query is in the index"),
    ],
)
def test_errors_name_close_matches(run, saved, options, message):
    verb, *rest = options
    error = run(verb, saved / "model", *rest, code=1).output
    assert message in " ".join(error.split())


@pytest.mark.parametrize(
    "options",
    [
        ["--user-features", "job=soldier"],
        ["--user-features", "job=soldier", "--item", "1", "--user", "3"],
    ],
)
def test_a_described_user_needs_only_items(run, saved, options):
    error = run("predict", saved / "model", *options, code=2).output
    assert "--user-features requires --item" in error or "Choose the pairs" in error


@pytest.mark.filterwarnings("default::UserWarning")
def test_similar_items_of_new_ones_and_of_texts(run, rows, saved):
    of_new = rows("similar", saved / "model", "--title", "T1", "-n", 12)
    assert {each["similar"] % 2 for each in of_new} == {1}
    of_text = rows("similar", saved / "model", "--text", "robots", "-n", 12)
    assert {each["similar"] % 2 for each in of_text} == {1}
    assert of_text[0]["text"] == "robots"
    assert of_text[0]["title"].startswith("T")
    said = run("similar", saved / "model", "--text", "opera of robots").stderr
    assert "Not in the index: opera" in said


def test_explanations_of_new_items_add_up(rows, saved):
    parts = rows("explain", saved / "model", "--user", 3, "--item", 1, "-n", 4)
    score = rows("recommend", saved / "model", "--user", 3, "--where", "title = 'T1'")[
        0
    ]["score"]
    assert sum(each["contribution"] for each in parts) == pytest.approx(score, abs=1e-3)
    assert any((each["feature"] or "").startswith("about ~ ") for each in parts)


def test_a_score_of_a_described_user_is_explained(run, rows, saved):
    described = ("--user-features", "job=soldier", "--like", "T4")
    parts = rows("explain", saved / "model", *described, "--item", 1, "-n", 100)
    (top,) = rows("recommend", saved / "model", *described, "--where", "title = 'T1'")
    assert sum(each["contribution"] for each in parts) == pytest.approx(
        top["score"], abs=1e-4
    )
    assert {4} < {each["item"] for each in parts}
    assert "user: job = soldier" in {each["feature"] for each in parts}
    for other in ((), ("--user", 3, *described)):
        said = run("explain", saved / "model", "--item", 1, *other, code=2).stderr
        assert "Choose the user: --user, or --like" in said


def test_the_features_in_use_are_shown(run, saved):
    facts = json.loads(run("info", saved / "model", "--json").stdout)
    assert facts["item features"]["about"].startswith("2 dimensions (words explain ")
    assert facts["item features"]["price"] == "number"
    assert facts["user features"] == {"job": "2 values", "age": "number"}
    table = ("--item-table", saved / "items.csv")
    facts = json.loads(
        run("data", "inspect", saved / "ratings.csv", *table, "--json").stdout
    )
    plan = facts.get("fit would choose") or facts["fit would compare"]
    assert plan["features of items"].startswith("about (2 dimensions; words explain ")
    bare = run(
        "data", "inspect", saved / "ratings.csv", *table, "--json", "--no-features"
    ).stdout
    assert "features of items" not in bare
    assert Path(saved / "model").is_dir()

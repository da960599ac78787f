"""Forgetting by the command: every saved file is that of a model that never saw the person."""

import json
from functools import cache
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from click.testing import CliRunner

from recsys.cli.main import cli

pytestmark = pytest.mark.usefixtures("one_fold")
DAY = 86400
START = 1_600_000_000
SECRET = "quite-a-secret-person"
# Of model.json, what tells one fit from another fit to the same ratings.
IDENTITY = {"created", "checksum", "parent", "source"}
EVENTS = [
    "--event-col",
    "did",
    "--event-weight",
    "buy=5,view=1,*=0.5",
    "--half-life",
    "40d",
]
SHORT = ["--factors", "4", "--iterations", "4"]
# Other cases search for the penalties.
PENALTIES = [
    "--factors",
    "8",
    "--regularization",
    "0.01",
    "-p",
    "unobserved_weight=0.1",
]


def ratings(seed=0, n=900):
    """Ratings of 60 people; one of them decides what others do not."""
    rng = np.random.default_rng(seed)
    users = [f"user-{number}" for number in rng.integers(0, 60, n)]
    items = [f"item-{number}" for number in rng.integers(0, 60, n)]
    rows = pl.DataFrame({"user": users, "item": items})
    rows = rows.with_columns(
        stars=rng.choice([2.0, 3.0, 4.0], n),
        timestamp=START
        + np.arange(n) // 3 * DAY // 3,  # in the order of the rows, with ties
        did=rng.choice(["view", "buy"], n),
    )
    own = {"user": SECRET, "item": [f"item-{n}" for n in (1, 2, 3, 777)]}
    last = START + n // 9 * DAY + DAY
    own |= {
        "stars": [0.5, 1.0, 5.0, 4.5],
        "timestamp": [last, last - 9, last - 1, last - 1],
    }
    own |= {"did": "haggle"}
    return pl.concat([rows, pl.DataFrame(own).cast(rows.schema)])


def people():
    names = [f"user-{number}" for number in range(61)]
    rows = {"user": names, "age": [20 + number % 40 for number in range(61)]}
    rows |= {"job": [["nurse", "smith", "baker"][number % 3] for number in range(61)]}
    rows |= {
        "town": ["Rome", "Oslo"] * 30 + ["Rome"],
        "code": [number % 7 for number in range(61)],
    }
    own = {
        "user": [SECRET, "only-in-the-table"],
        "age": ["99", "unknown"],
        "job": ["spy", "spy"],
    }
    own |= {
        "town": ["Rome|Oslo|Bonn", "Rome"],
        "code": ["a", "b"],
        "phone": ["1234", "1234"],
    }
    table = pl.DataFrame(rows).cast(pl.String)
    return pl.concat([table, pl.DataFrame(own)], how="diagonal")


def written(folder, rows, users):
    """Write a table of ratings, items and users to a folder, and return the folder."""
    folder.mkdir()
    rows.write_csv(folder / "ratings.csv")
    users.write_csv(folder / "users.csv")
    numbers = range(45)
    kinds = [["war", "love", "art"][number % 3] for number in numbers]
    items = pl.DataFrame(
        {"item": [f"item-{number}" for number in numbers], "genre": kinds}
    )
    items.write_csv(folder / "items.csv")
    return folder


@pytest.fixture(scope="module")
def both_folders(tmp_path_factory):
    forgotten = [SECRET, "only-in-the-table"]
    rest = [
        frame.filter(~pl.col("user").is_in(forgotten))
        for frame in (ratings(), people())
    ]
    folder = tmp_path_factory.mktemp("ratings")
    written(folder / "with", ratings(), people())
    written(folder / "without", *rest)
    return folder


@pytest.fixture
def folders(both_folders):
    return both_folders / "with", both_folders / "without"


@pytest.fixture(scope="module")
def fitted_to_others(both_folders):
    """Return a function that fits a model to the others, once for all tests."""

    @cache
    def fit(name):
        path = both_folders / name
        data = both_folders / "without" / "ratings.csv"
        words = ["fit", data, *MODELS[name], "--threads", 2]
        result = CliRunner().invoke(
            cli, [str(word) for word in [*words, "--out", path]]
        )
        assert result.exit_code == 0, result.output
        return path

    return fit


def assert_same_files(one, other):
    """Compare the arrays, and all of model.json but the identity and the summary of the update."""
    names = {path.relative_to(one) for path in Path(one).rglob("*.npy")}
    assert names == {path.relative_to(other) for path in Path(other).rglob("*.npy")}
    different = [
        n
        for n in names
        if (Path(one) / n).read_bytes() != (Path(other) / n).read_bytes()
    ]
    assert different == []
    manifests = [
        json.loads((Path(place) / "model.json").read_text()) for place in (one, other)
    ]
    for manifest in manifests:
        for name in ("seconds", "update", "changes"):
            manifest["training"].pop(name, None)
        manifest["reading"].pop("as_of")
    found, expected = (
        {k: v for k, v in m.items() if k not in IDENTITY} for m in manifests
    )
    assert found == expected


MODELS = {
    "chosen": [],
    "chosen with parameters": [
        "--factors",
        "8",
        "-p",
        "als.linked=true",
        "--no-features",
    ],
    "als": ["--model", "als", *SHORT],
    "linked": ["--model", "als", *SHORT, "-p", "linked=true"],
    "bayes": ["--model", "bayes", *SHORT],
    "without features": ["--model", "als", *SHORT, "--no-features"],
    "some features": ["--features", "job,genre", "--model", "als", *SHORT],
    "interactions": ["--implicit"],
    "ials": ["--model", "ials", "--implicit", "--factors", "4"],
    "blend": [
        "--model",
        "blend",
        "--implicit",
        "-p",
        "members=ials,ease",
        "--seed",
        "3",
    ],
    "events": ["--model", "ials", *PENALTIES, *EVENTS],
    "popular": ["--model", "popular", *EVENTS],
}


# Their options are those of other cases.
LONG = ("chosen with parameters", "linked", "without features", "some features")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.long] if name in LONG else [])
        for name in MODELS
    ],
)
def test_a_refit_leaves_no_trace_of_a_person_in_any_file(
    run, folders, fitted_to_others, name
):
    data = folders[0] / "ratings.csv"
    run("fit", data, *MODELS[name], "--out", "m", "--threads", "2")
    forget = ["--forget-user", SECRET]
    if Path("m/user_table").exists():
        forget += ["--forget-user", "only-in-the-table"]
    said = run("update", "m", *forget, "--refit", "--out", "found").stderr
    assert "fitted again: as requested" in said
    assert_same_files("found", fitted_to_others(name))
    manifest = json.loads(Path("found/model.json").read_text())
    assert manifest["source"].endswith("ratings.csv, without forgotten users")
    assert manifest["training"]["changes"] == "0 new events, users forgotten"


@pytest.mark.parametrize("name", ["chosen", "als", "interactions", "events"])
def test_a_refit_of_a_window_has_the_files_of_a_fit_since_then(
    run, folders, fitted_to_others, name
):
    options = MODELS[name]
    newest = pl.read_csv(folders[1] / "ratings.csv")["timestamp"].max()
    run(
        "fit",
        folders[1] / "ratings.csv",
        *options,
        "--since",
        newest - 40 * DAY,
        "--threads",
        2,
        "--out",
        "n",
    )
    model = fitted_to_others(name)
    run("update", model, "--window", "40d", "--refit", "--out", "found")
    for place in ("n", "found"):
        manifest = json.loads(Path(place, "model.json").read_text())
        manifest["reading"].pop("window", None)
        Path(place, "model.json").write_text(json.dumps(manifest))
    assert_same_files("found", "n")


@pytest.mark.parametrize("name", ["chosen", "als", "interactions", "events"])
def test_a_refit_with_new_ratings_has_the_files_of_one_fit(
    run, folders, fitted_to_others, name
):
    options, rows = MODELS[name], pl.read_csv(folders[1] / "ratings.csv")
    for place, part in (("old", rows.head(700)), ("new", rows.tail(-700))):
        written(Path(place), part, people().head(61))
    run("fit", "old/ratings.csv", *options, "--out", "m", "--threads", 2)
    run("update", "m", "new/ratings.csv", "--refit", "--out", "found")
    assert_same_files("found", fitted_to_others(name))


@pytest.mark.parametrize("name", ["als", "interactions", "events"])
def test_ids_are_integers_again_without_a_person_of_another_kind(run, name):
    """The id of the person, and of an item of the person, make texts of all ids."""
    rows = ratings().with_columns(
        pl.col("user", "item").str.replace(r"^(user|item)-", "")
    )
    others = rows.filter(pl.col("user") != SECRET)
    rows = rows.with_columns(item=pl.col("item").replace("777", "a-song"))
    rows.write_csv("with.csv")
    others.write_csv("without.csv")
    run("fit", "with.csv", *MODELS[name], "--out", "m")
    run("fit", "without.csv", *MODELS[name], "--out", "expected")
    run("update", "m", "--forget-user", SECRET, "--refit", "--out", "found")
    assert_same_files("found", "expected")


def test_a_listed_user_in_another_writing_is_said(run):
    rows = "".join(f"ann{n % 9},{n % 7}\n" for n in range(63))
    Path("plays.csv").write_text(f"user,item\n{rows}")
    run("fit", "plays.csv", "--model", "popular", "--out", "m")
    Path("users.txt").write_text("Ann3\n")
    said = run("update", "m", "--forget-users", "users.txt", "-o", "new").stderr
    assert "not in the model: 'Ann3'; of the 1 new user, 1 differs from known" in said

"""Columns of users in saved models and splits: those in use, or named, and no others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from recsys import Ratings, Recommender
from recsys.data.features import Features
from recsys.errors import DataError
from recsys.evaluation.split_files import save_split
from recsys.evaluation.splits import random_split
from recsys.features.selection import with_features
from recsys.saving.model_file import read_manifest
from recsys.user_columns import named_in, saved_columns

N = 40


@pytest.fixture
def ratings() -> Ratings:
    pairs = {
        "user": [user for user in range(N) for _ in range(5)],
        "item": [(3 * user + 5 * n) % 17 for user in range(N) for n in range(5)],
        "rating": [1.0 + (user * n) % 5 for user in range(N) for n in range(5)],
    }
    people = {
        "user": range(N),
        "email": [f"k{user}@example.org" for user in range(N)],
        "country": ["DE", "FR"] * (N // 2),
        "age": [20 + user % 30 for user in range(N)],
        "plan": ["free"] * N,
    }
    return Ratings.from_frame(pl.DataFrame(pairs), user_table=pl.DataFrame(people))


def columns_in(path: Path) -> list[str]:
    entries = read_manifest(path).columns.get("user_table", [])
    return [entry.name for entry in entries[1:]]


def knows(path: Path, text: bytes = b"k1@example.org") -> bool:
    return any(text in file.read_bytes() for file in path.rglob("*") if file.is_file())


@pytest.mark.parametrize(
    ("model", "features", "keep", "expected"),
    [
        ("als", None, [], []),
        ("als", "all", [], ["country", "age"]),
        ("als", ["country"], [], ["country"]),
        ("als", ["country", "plan"], ["email"], ["email", "country", "plan"]),
        ("popular", None, ["plan"], ["plan"]),
        ("blend", "all", [], ["country", "age"]),
    ],
)
def test_a_saved_model_has_the_columns_of_users_in_use_and_to_keep(
    ratings, tmp_path, model, features, keep, expected
):
    if features is not None:
        ratings = with_features(ratings, None if features == "all" else features)
    recommender = Recommender(model).fit(ratings, features=features is not None)
    recommender.save(tmp_path / "m", keep_columns=keep)
    assert columns_in(tmp_path / "m") == expected
    assert knows(tmp_path / "m") == ("email" in expected)
    assert (
        "email" in recommender.ratings.user_table.kinds
    )  # the object itself stays as it is
    loaded = Recommender.load(tmp_path / "m")
    assert loaded.recommend(3).equals(recommender.recommend(3))


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("email", "k{}@example.org"),
        ("login", "k{}@mail.example.org"),
        ("First Name", "k{}"),
        ("phone", "+49 151 {}"),
        ("Billing_Address", "k{}, High Street"),
    ],
)
def test_columns_that_identify_users_are_not_features(ratings, tmp_path, column, value):
    people = {"user": range(N), column: [value.format(user // 2) for user in range(N)]}
    people["country"] = ["DE", "FR"] * (N // 2)
    ratings = replace(ratings, user_table=Features.of(pl.DataFrame(people), "user"))
    Recommender("als").fit(with_features(ratings, None)).save(tmp_path / "m")
    save_split(random_split(ratings), tmp_path / "split")
    assert columns_in(tmp_path / "m") == ["country"]
    saved = pl.read_parquet(tmp_path / "split" / "users.parquet")
    assert saved.columns == ["user", "country"]
    Recommender("als").fit(with_features(ratings, [column])).save(tmp_path / "named")
    assert columns_in(tmp_path / "named") == [column]


def test_a_column_of_a_mobile_app_is_a_feature(ratings, tmp_path):
    people = {"user": range(N), "mobile": [user % 3 == 0 for user in range(N)]}
    people["plan_name"] = ["free", "pro"] * (N // 2)
    ratings = replace(ratings, user_table=Features.of(pl.DataFrame(people), "user"))
    Recommender("als").fit(with_features(ratings, None)).save(tmp_path / "m")
    assert columns_in(tmp_path / "m") == ["mobile", "plan_name"]


def test_columns_to_keep_are_kept_in_updates(ratings, tmp_path):
    recommender = Recommender("als").fit(ratings, features=False)
    recommender.save(tmp_path / "m", keep_columns=["plan"])
    people = pl.DataFrame(
        {"user": [1, 99], "email": ["k1@example.org", "x"], "plan": "pro"}
    )
    new = pl.DataFrame({"user": [1, 99], "item": [3, 4], "rating": [2.0, 3.0]})
    updated = Recommender.load(tmp_path / "m").update(
        Ratings.from_frame(new, user_table=people)
    )
    updated.save(tmp_path / "m", overwrite=True)
    assert columns_in(tmp_path / "m") == ["plan"]
    assert not knows(tmp_path)
    updated.save(tmp_path / "m", overwrite=True, keep_columns=["email"])
    assert knows(tmp_path)
    Recommender.load(tmp_path / "m").save(tmp_path / "again")
    assert columns_in(tmp_path / "again") == ["plan", "email"]


def test_other_tables_are_saved_in_the_same_way(ratings, tmp_path):
    recommender = Recommender("als").fit(with_features(ratings, ["country"]))
    people = pl.DataFrame(
        {"user": range(N), "email": "k1@example.org", "country": "FR"}
    )
    recommender.with_tables(user_table=people).save(tmp_path / "m")
    assert columns_in(tmp_path / "m") == ["country"]
    assert not knows(tmp_path)


def test_a_column_to_keep_must_exist(ratings, tmp_path):
    recommender = Recommender("als").fit(ratings)
    with pytest.raises(DataError, match="There is no column 'mail' of users to keep"):
        recommender.save(tmp_path / "m", keep_columns=["mail"])
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_a_saved_split_has_the_columns_of_users_that_can_be_features(
    ratings, tmp_path, form
):
    split = random_split(ratings)
    for name, options, expected in (
        ("a", {}, ["country", "age"]),
        ("b", {"features": ["country"]}, ["country"]),
        ("c", {"features": [], "keep_columns": ["email"]}, ["email"]),
    ):
        save_split([split, split], tmp_path / name, form=form, **options)
        saved = pl.read_parquet(tmp_path / name / "fold-2" / "users.parquet")
        assert saved.columns == ["user", *expected]
    save_split(split, tmp_path / "d", form=form, features=[])
    assert not (tmp_path / "d" / "users.parquet").exists()


def test_conditions_name_columns(ratings):
    assert named_in("Age < 30 and country = 'plan'", ratings) == ["country", "age"]
    assert named_in("\"plan\" = 'email' OR Country LIKE 'D%'", ratings) == [
        "country",
        "plan",
    ]


def test_describes_the_saved_columns(ratings):
    sentence = "columns of users that are saved: plan; left out: email, country, age"
    assert str(saved_columns(ratings, ["plan"])).startswith(sentence)
    table = Features.of(pl.DataFrame({"user": [1]}), "user")
    pairs = pl.DataFrame({"user": [1], "item": [1]})
    assert saved_columns(Ratings.from_frame(pairs, user_table=table)) is None


def test_the_command_saves_and_says_the_same(ratings, tmp_path, monkeypatch):
    from click.testing import CliRunner

    from recsys.cli.main import cli

    monkeypatch.chdir(tmp_path)
    ratings.to_frame().write_csv("ratings.csv")
    ratings.user_table.frame.write_csv("people.csv")
    reading = ["ratings.csv", "--user-table", "people.csv"]

    def run(*args: str) -> str:
        result = CliRunner().invoke(cli, [*args])
        assert result.exit_code == 0, result.output
        return " ".join(result.stderr.split())

    said = run("fit", *reading, "--model", "popular", "--out", "m")
    assert (
        "columns of users that are saved: none; left out: email, country, age, plan"
        in said
    )
    said = run(
        "fit", *reading, "--model", "popular", "--features", "age", "--out", "m2"
    )
    assert (
        "columns of users that are saved: age; left out: email, country, plan" in said
    )
    Path("recsys.toml").write_text("[recommend]\nwhere-user = \"plan = 'free'\"\n")
    run("fit", *reading, "--model", "als", "--no-features", "--out", "m3")
    assert columns_in(Path("m3")) == ["plan"]
    run("update", "m3", *reading, "--keep-col", "age", "--force")
    assert columns_in(Path("m3")) == ["plan", "age"]
    said = run("split", *reading, "--out", "s")
    assert (
        "columns of users that are saved: country, age; left out: email, plan" in said
    )
    assert not any(knows(Path(name)) for name in ("m", "m2", "m3", "s"))

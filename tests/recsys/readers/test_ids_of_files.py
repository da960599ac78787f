"""Ids are the same through every door: text, JSON, Parquet, databases, frames, lists and tables."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest

from recsys import Ratings, Recommender, read_ratings
from recsys.data.columns import Request
from recsys.data.ids import Ids
from recsys.errors import DataError
from recsys.readers.id_lists import read_block, read_history, read_ids

USERS, ITEMS = [1, 1, 2, 17, 17], [10, 20, 10, 20, 30]
ROUNDED = "1.23457E+11"


def csv(path: Path, users: list[Any], sep: str = ",") -> Path:
    lines = [f"{user}{sep}{item}" for user, item in zip(users, ITEMS, strict=True)]
    path.write_text("\n".join([f"user{sep}item", *lines, ""]))
    return path


def jsonl(path: Path, users: list[Any]) -> Path:
    rows = [
        {"user": user, "item": item} for user, item in zip(users, ITEMS, strict=True)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def array(path: Path, users: list[Any]) -> Path:
    rows = [
        {"user": user, "item": item} for user, item in zip(users, ITEMS, strict=True)
    ]
    path.write_text(json.dumps(rows))
    return path


def parquet(path: Path, users: list[Any]) -> Path:
    pl.DataFrame({"user": users, "item": ITEMS}).write_parquet(path)
    return path


def sqlite(path: Path, users: list[Any]) -> Path:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DROP TABLE IF EXISTS events")
        connection.execute("CREATE TABLE events (user, item)")
        connection.executemany(
            "INSERT INTO events VALUES (?, ?)", zip(users, ITEMS, strict=True)
        )
    connection.close()
    return path


def frame(_: Path, users: list[Any]) -> Ratings:
    return Ratings.from_frame(pl.DataFrame({"user": users, "item": ITEMS}))


def of_pandas(_: Path, users: list[Any]) -> Ratings:
    return Ratings.from_frame(pd.DataFrame({"user": users, "item": ITEMS}))


WRITERS = {
    "r.csv": csv,
    "r.tsv": lambda path, users: csv(path, users, "\t"),
    "r.jsonl": jsonl,
    "r.json": array,
    "r.parquet": parquet,
    "r.db": sqlite,
    "polars": frame,
    "pandas": of_pandas,
}


@pytest.fixture(params=WRITERS)
def door(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Ratings]:
    """A function that reads the users through one door."""

    def ratings_of(users: list[Any], **options: Any) -> Ratings:
        made = WRITERS[request.param](tmp_path / request.param, users)
        return made if isinstance(made, Ratings) else read_ratings(made, **options)

    return ratings_of


@pytest.mark.parametrize("n_users", [3, 300])
def test_ids_in_formulas_for_excel(tmp_path, n_users):
    users = [f"{n:04}" for n in range(n_users)]
    lines = [f'"=""{user}""",tea,{1 + n % 5}' for n, user in enumerate(users)]
    path = tmp_path / "export.csv"
    path.write_text("\n".join(["user,item,rating", *lines]))
    assert read_ratings(path).users.values.to_list() == users
    (tmp_path / "users.csv").write_text(
        "\n".join(["user,country", *(f'"=""{user}""",DE' for user in users)])
    )
    table = read_ratings(path, user_table=tmp_path / "users.csv").user_table
    assert table is not None
    assert table.frame["user"].to_list() == users


def test_whole_floats_are_integers(door: Callable[..., Ratings]) -> None:
    expected = Ratings.from_frame(pl.DataFrame({"user": USERS, "item": ITEMS}))
    found = door([float(user) for user in USERS])
    assert found.users == expected.users
    assert (found.matrix != expected.matrix).nnz == 0


def test_floats_that_may_be_rounded_are_rejected(door: Callable[..., Ratings]) -> None:
    large = [2.0**53 + 2, 2.0**53 + 4, 1.0, 2.0, 3.0]
    with pytest.raises(DataError, match=r"may be rounded|is a rounded number"):
        door(large)
    assert door([2.0**53, 2.0**53 - 1, 1.0, 2.0, 3.0]).users.values.max() == 2**53


@pytest.mark.parametrize("suffix", ["csv", "tsv", "jsonl", "json", "parquet", "db"])
def test_rounded_numbers_of_spreadsheets_are_named(suffix: str, tmp_path: Path) -> None:
    users = ["123456789012", "123456789099", ROUNDED, ROUNDED, "5"]
    made = WRITERS[f"r.{suffix}"](tmp_path / f"r.{suffix}", users)
    with pytest.raises(
        DataError, match=r"user id '1\.23457E\+11' is a rounded number, as spread"
    ):
        read_ratings(made)
    kept = read_ratings(made, bad_rows=0.5)
    assert kept.n_users == 3
    assert "2 rows, the first" in kept.source.skipped[0]
    assert "rounded number" in kept.source.skipped[0]


def test_a_bad_id_does_not_make_texts_of_the_others(tmp_path: Path) -> None:
    for users in ([1, ROUNDED, 2, "NULL", 3], [1.0, "", 2.0, r"\N", 3.0]):
        kept = read_ratings(csv(tmp_path / "r.csv", users), bad_rows=0.5)
        assert kept.users.values.to_list() == [1, 2, 3]
    kept = read_ratings(
        jsonl(tmp_path / "r.jsonl", [1, "NULL", 2, ROUNDED, 3]), bad_rows=0.5
    )
    assert kept.users.values.to_list() == [1, 2, 3]
    kept = read_ratings(
        jsonl(tmp_path / "r.jsonl", ["1", "NULL", "2", None, "3"]), bad_rows=0.5
    )
    assert kept.users.values.to_list() == ["1", "2", "3"]


def test_texts_that_programs_write_for_a_missing_id_are_named(tmp_path: Path) -> None:
    for text in ("NULL", r"\N", "nan", "None", "<NA>"):
        made = csv(tmp_path / "r.csv", [1, 2, text, 3, 4])
        with pytest.raises(DataError) as caught:
            read_ratings(made)
        assert f"line 4: the user id is missing ({text!r})." in str(caught.value)


def test_a_missing_number_is_a_missing_id() -> None:
    users = [1.0, np.nan, 2.0, 3.0, 4.0]
    for made in (frame, of_pandas):
        with pytest.raises(DataError, match=r"Row 2: the user id is missing\."):
            made(Path(), users)
    kept = Ratings.from_frame(
        pd.DataFrame({"user": users, "item": ITEMS}), bad_rows=0.3
    )
    assert kept.users.values.to_list() == [1, 2, 3, 4]


def test_texts_with_a_point_stay_texts(tmp_path: Path) -> None:
    for users in (
        ["1.0", "1.5", "2.0", "3.0", "4.0"],
        ["1.0", "b", "2.0", "3.0", "4.0"],
    ):
        assert read_ratings(csv(tmp_path / "r.csv", users)).users.dtype == pl.String
    assert Ids(["1.0", "b"], "item").find(["1.0", "1"]).tolist() == [0, -1]


@pytest.mark.parametrize(
    ("series", "expected"),
    [
        (
            pl.Series([Decimal("12345678901234567.00"), Decimal("1.00")]),
            [1, 12345678901234567],
        ),
        (pl.Series([Decimal(10**25), Decimal(1)]), ["1", str(10**25)]),
        (pl.Series([16777216.0, 1.0], dtype=pl.Float32), [1, 16777216]),
    ],
)
def test_exact_numbers_of_other_types(series: pl.Series, expected: list[Any]) -> None:
    assert Ids(series, "user").values.to_list() == expected


@pytest.mark.parametrize(
    ("series", "message"),
    [
        (
            pl.Series([1.0, 16777218.0], dtype=pl.Float32),
            "floats are exact up to 16,777,216 only",
        ),
        (np.array([2048, 2050], np.float16), "floats are exact up to 2,048 only"),
        (pl.Series([1.0, 1e18]), r"Row 2: user id 1e\+18 may be rounded"),
        (pl.Series([Decimal("1.50")]), r"user id 1\.50 is neither integer nor string"),
        (np.array([1234567890123456781.0]), "may be rounded"),
    ],
)
def test_numbers_that_are_not_exact(series: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        Ids(series, "user")


def test_lists_tables_and_histories_have_the_ids_of_the_ratings(tmp_path: Path) -> None:
    ratings = read_ratings(csv(tmp_path / "r.csv", USERS))
    for name, content in {
        "list.txt": "10.0\n30.0\n",
        "list.csv": "item,price\n10.0,3\n30.0,4\n,1\n",
        "plain.txt": "10\n30\n",
    }.items():
        (tmp_path / name).write_text(content)
        assert read_ids(str(tmp_path / name), "item") == [10, 30]
    assert read_block(str(tmp_path / "list.txt"), Request())["item"].to_list() == [
        10,
        30,
    ]
    (tmp_path / "history.csv").write_text("item,price\n10.0,3\n30.0,4\n")
    history = read_history(str(tmp_path / "history.csv"), Request(), ratings.items)
    assert history["item"].to_list() == [10, 30]
    table = tmp_path / "items.csv"
    table.write_text("item,title\n10.0,Tea\n20.0,Cup\n30.0,Pot\n")
    titled = read_ratings(tmp_path / "r.csv", item_table=table)
    assert titled.titles is not None
    assert titled.titles.to_list() == ["Tea", "Cup", "Pot"]
    pandas = pd.DataFrame({"item": [10.0, 20.0, np.nan], "title": ["Tea", "Cup", "x"]})
    titled = read_ratings(tmp_path / "r.csv", item_table=pandas)
    assert titled.item_table is not None
    assert len(titled.item_table) == 2
    (tmp_path / "bad.txt").write_text(f"10\n{ROUNDED}\n")
    with pytest.raises(
        DataError, match=r"bad\.txt: item id '1\.23457E\+11' is a rounded number"
    ):
        read_ids(str(tmp_path / "bad.txt"), "item")


def test_a_test_file_of_floats_is_of_the_same_users(tmp_path: Path) -> None:
    train = read_ratings(csv(tmp_path / "train.csv", USERS))
    test = read_ratings(csv(tmp_path / "test.csv", [f"{user}.0" for user in USERS]))
    assert train.users == test.users
    updated = Recommender("popular").fit(train).update(tmp_path / "test.csv")
    assert updated.ratings.users == train.users


def test_ids_are_a_collection() -> None:
    ids = Ids([30, 10], "user")
    assert [*ids] == [10, 30]
    assert (10 in ids, "10" in ids, np.int64(30) in ids) == (True, True, True)
    assert (20 in ids, "x" in ids, None in ids, 1.5 in ids, True in ids) == (False,) * 5
    assert [*Ids(["b", "a"], "item")] == ["a", "b"]
    assert "a" in Ids(["b", "a"], "item")
    assert len(Ids([], "item")) == 0
    assert [*Ids([], "item")] == []

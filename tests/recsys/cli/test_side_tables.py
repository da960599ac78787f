"""Verbs with tables of items and users: named, kept in models, used in conditions."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

EVENTS = (
    "visitor,product_sku,stars\nu1,a1,5\nu1,b2,3\nu2,a1,4\nu2,c3,1\nu3,b2,2\nu3,c3,5\n"
)
WARES = (
    "product_sku,name,price,kind,since,tags\n"
    "a1,Assam,7.5,tea,2024-01-31,black|strong\n"
    "b2,Beaker,12,glass,2023-05-01,\n"
    "c3,Ceylon,35.5,tea,2022-05-01,black\n"
    "d4,Darjeeling,20,tea,2025-01-01,green\n"
)
PEOPLE = "visitor,age,vip\nu1,25,yes\nu2,40,no\n"
COLUMNS = ("--user-col", "visitor", "--item-col", "product_sku")
READING = (
    "events.csv",
    *COLUMNS,
    "--item-table",
    "wares.csv",
    "--user-table",
    "people.csv",
)


@pytest.fixture(autouse=True)
def shop() -> None:
    for name, text in (("events", EVENTS), ("wares", WARES), ("people", PEOPLE)):
        Path(f"{name}.csv").write_text(text)


def found(result: Any) -> set[tuple[str, str]]:
    rows = map(json.loads, result.stdout.splitlines())
    return {(row["user"], row["item"]) for row in rows}


def everyone(run: Any, *options: str) -> set[tuple[str, str]]:
    return found(
        run("recommend", *options, "--all", "--include-seen", "--format", "jsonl")
    )


def test_conditions_on_a_saved_model(run):
    keep = ("--keep-col", "age", "--keep-col", "vip")
    said = run("fit", *READING, "--out", "m", "--model", "popular", *keep).stderr
    assert (
        "; wares.csv (has 1 without ratings): name (title), price (number), kind (2 values), "
        "since (date), tags (list of 3); people.csv (lacks 1 of 3 users): age (number), vip "
        "(boolean); no duplicates"
    ) in " ".join(said.split())
    cheap = everyone(run, "m", "--where", "price < 30 AND kind = 'tea'")
    assert cheap == {("u1", "a1"), ("u2", "a1"), ("u3", "a1")}
    young = everyone(
        run, "m", "--where", "since > '2023-01-01'", "--where-user", "age < 30 and vip"
    )
    assert young == {("u1", "a1"), ("u1", "b2")}
    black = everyone(
        run, "m", "--where", "array_contains(tags, 'black')", "--where-user", "NOT vip"
    )
    assert (
        black
        == {("u2", "a1"), ("u2", "c3")}
        == everyone(
            run, "m", "--where", "Tags LIKE '%black%'", "--where-user", "vip = false"
        )
    )
    nobody = run("recommend", "m", "--all", "--where-user", "age > 99")
    assert nobody.stdout.count("\n") <= 1
    assert "no user meets --where-user" in nobody.stderr
    wrong = run("recommend", "m", "--all", "--where-user", "price < 3", code=1).stderr
    assert "where_user: 'price < 3' cannot be used: " in " ".join(wrong.split())
    assert "the columns are user (id), age (number), vip (boolean)" in " ".join(
        wrong.split()
    )


def test_tables_are_shown_by_info_and_inspect(run):
    run("fit", *READING, "--out", "m", "--model", "popular", "--keep-col", "vip,age")
    shown = json.loads(run("info", "m", "--json").stdout)
    assert shown["item table"] == {
        "name": "text", "price": "number", "kind": "category", "since": "date", "tags": "list",
    }  # fmt: skip
    assert shown["user table"] == {"age": "number", "vip": "boolean"}
    shown = json.loads(run("data", "inspect", *READING, "--json").stdout)
    assert shown["item table"] == {
        "rows": 4, "not in the table": 0, "unrated": 1, "name": "title", "price": "number",
        "kind": "2 values", "since": "date", "tags": "list of 3",
    }  # fmt: skip
    assert shown["user table"]["not in the table"] == 1


def test_a_data_file_takes_tables_as_well(run):
    cheap = everyone(run, *READING, "--model", "popular", "--where", "price < 10")
    assert cheap == {("u1", "a1"), ("u2", "a1"), ("u3", "a1")}
    Path("new.csv").write_text("visitor,product_sku,stars\nu1,c3,5\nu2,b2,4\nu3,a1,2\n")
    same = ("evaluate", "--test", "new.csv", "--train", *READING, "--model", "popular")
    assert "wares.csv (has 1 without ratings)" in run(*same, "-n", "1").stderr


def test_todays_table_replaces_the_one_that_a_model_has_kept(run):
    run("fit", *READING, "--out", "m", "--model", "popular", "--keep-col", "vip")
    Path("today.csv").write_text("sku,price\na1,70\nb2,5\n")
    cheap = run(
        *("recommend", "m", "--all", "--include-seen", "--format", "jsonl"),
        *("--item-table", "today.csv", "--where", "price < 30", "--where-user", "vip"),
    )
    assert found(cheap) == {("u1", "b2")}
    assert "today.csv (lacks 1 of 3 items): price (number)" in cheap.stderr
    assert ("u1", "a1") in everyone(run, "m", "--where", "price < 30")


def test_an_update_in_another_folder_reads_the_same_table(run, monkeypatch):
    run("fit", *READING, "--out", "m", "--model", "popular")
    Path("other").mkdir()
    wares = WARES.replace("Assam", "Another")
    Path("other/wares.csv").write_text(wares)
    Path("new.csv").write_text("visitor,product_sku,stars\nu1,c3,5\n")
    monkeypatch.chdir("other")
    run("update", "../m", "../new.csv", "--out", "../m2")
    monkeypatch.chdir("..")
    assert "Assam" in run("recommend", "m2", "--user", "u2", "--include-seen").stdout


def test_an_update_does_not_look_for_tables(run):
    Path("wares.csv").unlink()
    run("fit", "events.csv", *COLUMNS, "--out", "m", "--model", "popular")
    Path("products.csv").write_text(WARES)
    Path("new.csv").write_text("visitor,product_sku,stars\nu1,c3,5\n")
    said = run("update", "m", "new.csv", "--out", "m2").stderr
    assert "products.csv" not in said
    assert "item table" not in json.loads(run("info", "m2", "--json").stdout)


def test_an_update_of_new_items_only_reads_the_remembered_table(run):
    Path("wares.csv").write_text(WARES.replace("product_sku", "Artikelnr"))
    run("fit", *READING, "--out", "m", "--model", "popular")
    Path("new.csv").write_text("visitor,product_sku,stars\nu1,new-one,5\n")
    said = run("update", "m", "new.csv", "--out", "m2").stderr
    assert "wares.csv (lacks 1 of 4 items, has 1 without ratings)" in " ".join(
        said.split()
    )
    Path("one.csv").write_text("visitor,product_sku,stars\nu1,77777,5\n")
    run("update", "m", "one.csv", "--out", "m3")


def test_another_table_of_the_same_database(run):
    with closing(sqlite3.connect("shop.db")) as connection:
        connection.execute("CREATE TABLE orders (visitor TEXT, product_sku TEXT)")
        connection.execute("CREATE TABLE wares (sku TEXT, price REAL, title TEXT)")
        rows = [("u1", "a1"), ("u2", "a1"), ("u2", "b2")]
        connection.executemany("INSERT INTO orders VALUES (?, ?)", rows)
        connection.execute(
            "INSERT INTO wares VALUES ('a1', 7.5, 'Assam'), ('b2', 12, 'Beaker')"
        )
        connection.commit()
    source = ("shop.db::orders", *COLUMNS, "--model", "popular")
    for table in ("wares", "shop.db::wares"):
        condition = ("--item-table", table, "--where", "price < 10")
        assert everyone(run, *source, *condition) == {("u1", "a1"), ("u2", "a1")}


def test_tables_that_cannot_be_used_are_one_sentence(run):
    fit = ("fit", "events.csv", *COLUMNS, "--out", "m")
    said = run(*fit, "--item-table", "people.csv", code=1).stderr
    assert "Error: people.csv has no column of items; its columns are 'visitor'" in said
    said = run(*fit, "--item-table", "wears.csv", code=1).stderr
    assert (
        "Error: There is no file or directory wears.csv. Did you mean wares.csv?"
        in said
    )
    assert not Path("m").exists()


def test_features_of_tables_are_used_by_the_models_that_can(run):
    fit = ("fit", *READING, "--out", "m", "--force", "--model")
    said = run(*fit, "als").stderr
    assert "features of items: price (number), kind (2), since (date), tags (2)" in said
    assert "features of users: age (number), vip (2)" in said
    assert "features of" not in run(*fit, "popular").stderr
    assert "features of" not in run(*fit, "als", "--no-features").stderr
    said = run(*fit, "als", "--features", "kind, vip").stderr
    assert (
        "features of items: kind (2); 1 item without ratings known by features only"
        in said
    )
    assert "features of users: vip (2)\n" in said
    assert (
        "popular does not use features"
        in run(*fit, "popular", "--features", "kind").stderr
    )
    explained = run("explain", "m", "--user", "u1", "--item", "a1", "--json").stdout
    assert "kind = " not in explained  # that of popular


def test_features_of_evaluated_models(run):
    Path("new.csv").write_text("visitor,product_sku,stars\nu1,c3,5\nu2,b2,4\nu3,a1,2\n")
    same = (
        "evaluate",
        "--test",
        "new.csv",
        "--train",
        *READING,
        "--model",
        "als,popular",
    )
    assert run(*same).stderr.count("features of items: price") == 1
    assert "features of" not in run(*same, "--no-features").stderr


@pytest.mark.parametrize(
    ("options", "message", "code"),
    [
        (("--features", "prize"), "Did you mean price?", 1),
        (
            ("--features", "price", "--no-features"),
            "--features and --no-features contradict",
            2,
        ),
    ],
)
def test_features_that_cannot_be_used(run, options, message, code):
    fit = ("fit", *READING, "--out", "m", "--model", "als")
    assert message in run(*fit, *options, code=code).stderr


def test_features_need_a_table(run):
    fit = (
        "fit",
        "events.csv",
        *COLUMNS,
        "--out",
        "m",
        "--model",
        "als",
        "--features",
        "price",
    )
    assert (
        "--features takes columns of tables, and there are none"
        in run(*fit, code=1).stderr
    )

"""Recommendations, predictions and the rest go into tables of a database."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from recsys.database import open_database, parse_address


def rows(sql: str, path: str = "shop.db") -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(sql).fetchall()


def test_what_the_verbs_print_goes_into_a_table(run, model):
    for verb in (
        "recommend --user 1",
        "similar --item 101",
        "explain --user 1 --item 101",
    ):
        name, *arguments = verb.split()
        assert run(name, model, *arguments, "-o", f"shop.db::{name}").stdout == ""
        run(name, model, *arguments, "-o", "shown.parquet")
        assert rows(f"SELECT * FROM {name}") == pl.read_parquet("shown.parquet").rows()
    Path("pairs.csv").write_text("user,item\n1,101\n2,102\n")
    said = run("predict", model, "pairs.csv", "-o", "shop.db::predictions").stderr
    assert "Wrote 2 rows to shop.db::predictions." in said
    run("impute", model, "-o", "shop.db::imputed")
    assert rows("SELECT count(*) FROM imputed") == [(40 * 18,)]
    assert rows("SELECT item FROM predictions") == [(101,), (102,)]


def test_a_table_is_replaced_only_when_that_is_wanted(run, model):
    def recommend(*options: str, code: int = 0) -> Any:
        arguments = ("recommend", model, "--all", "-n", "2", "-o", "shop.db::recs")
        return run(*arguments, *options, code=code)

    assert "Wrote 80 rows" in recommend().stderr
    again = recommend(code=1)
    assert (
        "Error: shop.db::recs exists already; use --if-exists append, or --if"
        in again.stderr
    )
    assert rows("SELECT count(*) FROM recs") == [(80,)]
    recommend("--if-exists", "append")
    assert rows("SELECT count(*) FROM recs") == [(160,)]
    recommend("--force")
    assert rows("SELECT count(*) FROM recs") == [(80,)]


def test_a_database_is_tried_before_the_work(run, tmp_path):
    """The ratings, which are missing, would be read first."""
    for place, message in {
        "nowhere/shop.db::recs": "Cannot write nowhere/shop.db: there is no directory nowhere.",
        "shop.db": "shop.db needs the name of a table: --table NAME, or ::NAME at its end.",
        "postgresql://me:hush@localhost:1/x::recs": "postgresql://localhost:1/x cannot be opened: ",
    }.items():
        tried = run("recommend", "missing.csv", "--all", "-o", place, code=1)
        assert message in tried.stderr
        assert "hush" not in tried.stderr
    assert not list(tmp_path.glob("**/*.db"))


def test_formats_and_tables_exclude_each_other(run, model):
    user = ("recommend", model, "--user", "1")
    assert (
        "--format json applies to files"
        in run(*user, "-o", "shop.db::recs", "--json", code=2).stderr
    )
    existing = run(*user, "-o", "x.csv", "--if-exists", "append", code=2)
    assert "require a table of a" in existing.stderr


@pytest.mark.skipif(os.name == "nt", reason="no signals")
def test_an_interrupted_command_leaves_the_old_rows_or_the_new_ones(run, model):
    run("predict", model, "--user", "1", "--item", "101", "-o", "shop.db::predictions")
    command = [
        sys.executable,
        "-m",
        "recsys",
        "impute",
        str(model),
        "-o",
        "shop.db::predictions",
    ]
    with subprocess.Popen(
        [*command, "--force"], stderr=subprocess.PIPE, text=True
    ) as process:
        time.sleep(random.uniform(0.3, 1.2))
        process.send_signal(signal.SIGINT)
        process.communicate()
    assert rows("SELECT count(*) FROM predictions") in ([(1,)], [(40 * 18,)])


def test_postgresql_takes_what_a_verb_writes(run, model, postgres):
    arguments = (
        "recommend",
        model,
        "--all",
        "-n",
        "3",
        "--output",
        postgres,
        "--table",
        "recs",
    )
    try:
        said = run(*arguments).stderr
        assert "Wrote 120 rows to postgresql://localhost:" in said
        assert "exists already" in run(*arguments, code=1).stderr
        run(*arguments, "--if-exists", "replace")
        with open_database(parse_address(postgres), write=True) as database:
            counted = 'SELECT count(*), count(DISTINCT "user"), max(rank), min(title) FROM recs'
            assert database.rows(counted) == [(120, 40, 3, "Film 0, The [0] (1999)")]
    finally:
        with open_database(parse_address(postgres), write=True) as database:
            with database.connection.cursor() as cursor:
                cursor.execute("DROP TABLE IF EXISTS recs")
            database.connection.commit()


def test_columns_are_chosen_renamed_and_added(run, model):
    arguments = ("recommend", model, "--user", "1", "-n", "2")
    columns = "user=customer_id, item=sku,score,model,version,date=day"
    day = datetime.now(UTC).date()
    for name in ("lists.csv", "lists.parquet", "lists.jsonl"):
        run(*arguments, "--columns", columns, "-o", name)
    names = ["customer_id", "sku", "score", "model", "version", "day"]
    frame = pl.read_parquet("lists.parquet")
    assert frame.columns == names
    assert frame["customer_id"].to_list() == [1, 1]
    assert frame["model"].to_list() == ["als", "als"]
    assert frame["version"].str.starts_with("als@").all()
    assert frame["day"].to_list() == [day, day]
    assert Path("lists.csv").read_text().startswith(",".join(names) + "\n1,")
    document = json.loads(
        run(*arguments, "--columns", "item=sku", "--columns", "new", "--json").stdout
    )
    assert document["model"] == "als"
    assert [*document["rows"][0]] == ["sku", "new"]
    assert document["rows"][0]["new"] is False
    similar = run("similar", model, "--item", "101", "--columns", "similar=sku,rank")
    assert similar.stdout.startswith("sku,rank\n")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            "item=sku,price",
            "there is no column 'price'; the columns are user, item, ra",
        ),
        ("item=sku,score=sku", "takes different names, such as user=customer_id,"),
        ("item=", "takes different names, such as user=customer_id,"),
    ],
)
def test_columns_that_do_not_exist_are_an_error(run, model, columns, message):
    tried = run("recommend", model, "--user", "1", "--columns", columns, code=2)
    assert message in tried.stderr


@pytest.mark.parametrize("name", ["shop.db", "shop.duckdb", "postgresql"])
def test_a_table_that_exists_gets_the_columns_that_it_has(run, model, name, request):
    if name == "shop.duckdb":
        pytest.importorskip("duckdb")
    place = f"{Path.cwd() / name}::recs"
    if name == "postgresql":
        place = f"{request.getfixturevalue('postgres')}::recs"
    address = parse_address(place)
    assert address is not None

    def execute(*statements: str) -> None:
        with open_database(address, write=True) as database:
            cursor = database.connection.cursor()
            for statement in statements:
                cursor.execute(statement)
            cursor.close()
            database.connection.commit()

    def counted(sql: str) -> list[tuple[Any, ...]]:
        with open_database(address) as database:
            return database.rows(sql)

    arguments = ("recommend", model, "--all", "-n", "2", "--output", place)
    try:
        execute(
            'CREATE TABLE recs ("user" bigint, item bigint, rank integer, score real)'
        )
        run(*arguments, "--if-exists", "replace")
        assert counted("SELECT count(*), max(rank) FROM recs") == [(80, 2)]
        # A column that is named must exist.
        missing = run(
            *arguments, "--if-exists", "replace", "--columns", "item,title", code=1
        )
        assert "but not 'title'" in missing.stderr
        assert "--columns item=sku" in missing.stderr
        execute(
            "DROP TABLE recs",
            "CREATE TABLE recs (customer_id bigint, sku text, made date)",
        )
        chosen = "user=customer_id,item=sku,date=made"
        run(*arguments, "--if-exists", "append", "--columns", chosen)
        assert counted("SELECT count(*), count(made) FROM recs") == [(80, 80)]
        assert counted("SELECT min(sku) FROM recs") == [("100",)]
    finally:
        execute("DROP TABLE IF EXISTS recs")


def test_ids_of_type_uuid_and_enum_go_into_a_table_of_postgresql(run, postgres):
    address = parse_address(postgres)
    assert address is not None
    people = [f"00000000-0000-0000-0000-00000000000{n}" for n in range(4)]
    pairs = [(person, item) for person in people[:3] for item in ("tea", "pot")]
    frame = pl.DataFrame([*pairs, (people[3], "tea")], ["user", "item"], orient="row")
    frame.write_csv("pairs.csv")
    run("fit", "pairs.csv", "--model", "popular", "--out", "texts")
    try:
        with open_database(address, write=True) as database:
            with database.connection.cursor() as cursor:
                cursor.execute("CREATE TYPE sku AS ENUM ('tea', 'pot')")
                cursor.execute("CREATE TABLE recs (customer_id uuid, item sku)")
            database.connection.commit()
        columns = ("--columns", "user=customer_id,item", "--if-exists", "replace")
        run("recommend", "texts", "--all", "--output", f"{postgres}::recs", *columns)
        with open_database(address) as database:
            written = database.rows("SELECT customer_id::text, item::text FROM recs")
        assert written == [(people[3], "pot")]
    finally:
        with open_database(address, write=True) as database:
            with database.connection.cursor() as cursor:
                cursor.execute("DROP TABLE IF EXISTS recs")
                cursor.execute("DROP TYPE IF EXISTS sku")
            database.connection.commit()


def test_columns_may_be_set_outside_the_command_line(run, model, monkeypatch):
    arguments = ("recommend", model, "--user", "1", "-n", "2")
    monkeypatch.setenv("RECSYS_RECOMMEND_COLUMNS", "item=sku, rank")
    assert run(*arguments).stdout.startswith("sku,rank\n")
    monkeypatch.delenv("RECSYS_RECOMMEND_COLUMNS")
    Path("recsys.toml").write_text('[recommend]\ncolumns = ["user", "item=sku"]\n')
    assert run(*arguments).stdout.startswith("user,sku\n")
    assert run(*arguments, "--columns", "rank").stdout.startswith("rank\n")

"""Recommendations, predictions and the rest go into tables of a database."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import polars as pl
import pytest


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
    from recsys.database import open_database, parse_address

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

"""Processes that change one model or index at a time: none loses what another has saved."""

from __future__ import annotations

import subprocess
from pathlib import Path

import polars as pl
import pytest
from forked_commands import program

from recsys import Recommender
from recsys.database import open_database, parse_address
from recsys.lsi import LSI


def together(*commands: str) -> list[int]:
    """Run commands at the same time, and return their exit codes."""
    started = [
        subprocess.Popen(
            [program(), *command.split(), "--quiet"], stderr=subprocess.DEVNULL
        )
        for command in commands
    ]
    return [process.wait(120) for process in started]


def test_simultaneous_changes_of_an_index_and_of_a_model_are_all_kept(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    LSI(2).fit(["salt and ice", "ice and water", "cats and mice"]).save("index")
    pairs = pl.DataFrame({"user": [1, 1, 2], "item": [1, 2, 2]})
    Recommender("popular").fit(pairs).save("model")
    for number in (7, 8):
        Path(f"{number}.txt").write_text(f"ice and cats {number}\n")
        Path(f"{number}.csv").write_text(f"user,item\n{number},1\n")
    adds = [f"lsi add index {number}.txt" for number in (7, 8)]
    updates = [f"update model {number}.csv --force" for number in (7, 8)]
    assert together(*adds, *updates) == [0, 0, 0, 0]
    assert len(LSI.load("index").documents_) == 5
    assert Recommender.load("model").ratings.users.values.to_list() == [1, 2, 7, 8]


def test_of_two_fits_to_a_new_path_one_is_an_error(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pairs = pl.DataFrame(
        {"user": [n // 9 for n in range(900)], "item": [n % 50 for n in range(900)]}
    )
    pairs.write_csv("pairs.csv")
    fits = [
        f"fit pairs.csv --model {model} --out model" for model in ("popular", "random")
    ]
    assert sorted(together(*fits)) == [0, 1]
    assert Recommender.load("model").model.name in ("popular", "random")


def test_jobs_that_write_to_one_duckdb_at_once_all_succeed(tmp_path, monkeypatch):
    pytest.importorskip("duckdb")
    monkeypatch.chdir(tmp_path)
    pairs = pl.DataFrame({"user": [1, 1, 2], "item": [1, 2, 2]})
    Recommender("popular").fit(pairs).save("model")
    jobs = [
        f"recommend model --all --output shop.duckdb::{name} --if-exists append"
        for name in ("one", "other", "one")
    ]
    assert together(*jobs) == [0, 0, 0]
    address = parse_address("shop.duckdb")
    assert address is not None
    with open_database(address) as database:
        counts = [
            database.rows(f"SELECT count(*) FROM {name}") for name in ("one", "other")
        ]
    assert counts == [[(2,)], [(1,)]]

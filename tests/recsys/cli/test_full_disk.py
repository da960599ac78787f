"""Full disks and read-only folders: one sentence, and nothing is there that was not before."""

from __future__ import annotations

import os
import resource
import shutil
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from recsys.lsi import LSI

TEXTS = [f"word{i} thing{i % 7} salt{i * 7}" for i in range(300)]
COMMANDS = {
    "fit": "fit {ratings} --model bias --out {to}/m",
    "fit over another": "fit {ratings} --model bias --out {to}/old --force",
    "update": "update {model} {ratings} --out {to}/m",
    "recommend": "recommend {model} --all --output {to}/o.csv",
    "recommend, JSON": "recommend {model} --all --output {to}/o.json",
    "recommend, Parquet": "recommend {model} --all --output {to}/o.parquet",
    "recommend, SQLite": "recommend {model} --all --output {to}/o.db::t",
    "recommend, DuckDB": "recommend {model} --all --output {to}/o.duckdb::t",
    "impute": "impute {model} --output {to}/o.jsonl",
    "impute, Parquet": "impute {model} --output {to}/o.parquet",
    "predict": "predict {model} {ratings}/ratings.csv --output {to}/o.tsv",
    "lsi index": "lsi index {texts} -k 3 --out {to}/i",
    "lsi add": "lsi add {index} {texts} --out {to}/i",
    "split": "split {ratings} --out {to}/s",
    "split, Parquet": "split {ratings} --format parquet --out {to}/s",
    "split, folds": "split {ratings} --method k-fold --folds 2 --out {to}/s",
    "tune": "tune {ratings} --model bias --trials 1 --json --output {to}/t.json",
    "tune, study": "tune {ratings} --model bias --trials 1 --study {to}/study",
    "evaluate": "evaluate {ratings} --model popular --json --output {to}/e.json",
    "evaluate, report": "evaluate {ratings} --model popular --report {to}/e.html",
    "evaluate, per user": "evaluate {ratings} --model popular --per-user {to}/e.csv",
    "data sample": "data sample --out {to}/sample",
    "scree": "scree {ratings} --plot {to}/p.png",
}


@pytest.fixture(scope="module")
def places(ratings, model, tmp_path_factory):
    place = tmp_path_factory.mktemp("full")
    (place / "texts.txt").write_text("\n".join(TEXTS) + "\n")
    LSI(3).fit(TEXTS[:100]).save(place / "index")
    return {
        "ratings": ratings,
        "model": model,
        "texts": place / "texts.txt",
        "index": place / "index",
    }


@contextmanager
def room_for(n_bytes):
    """Let no file grow beyond `n_bytes`; the system answers as for a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    compiles, sys.dont_write_bytecode = (
        sys.dont_write_bytecode,
        True,
    )  # not to half a file
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, before[1]))
    try:
        yield
    finally:
        sys.dont_write_bytecode = compiles
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def snapshot(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


def rejected(run, name, places, to):
    result = run(*COMMANDS[name].format(**places, to=to).split(), "--quiet", code=1)
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1
    assert "unexpected" not in result.stderr
    return result.stderr


@pytest.mark.parametrize("name", COMMANDS)
def test_a_full_disk(run, name, places, model, tmp_path):
    if "scree" in name:
        pytest.importorskip("matplotlib")
    to = tmp_path / "to"
    to.mkdir()
    shutil.copytree(model, to / "old")
    before = snapshot(tmp_path)
    for n_bytes in (20, 200):
        with room_for(n_bytes):
            said = rejected(run, name, places, to)
        assert (
            "ile too large" in said
            or "disk is full" in said
            or "disk I/O error" in said
        )
        assert f"{to}/" in said or "study" in name
        assert ".tmp" not in said
        if name == "tune, study":  # what is there of it can be continued
            run(*COMMANDS[name].format(**places, to=to).split(), "--quiet")
            (to / "study").unlink()
        assert snapshot(tmp_path) == before


@pytest.mark.parametrize(
    "name", [name for name in COMMANDS if name != "fit over another"]
)
def test_a_folder_that_is_read_only(run, name, places, tmp_path):
    if "scree" in name:
        pytest.importorskip("matplotlib")
    # root may write almost everywhere
    to = Path("/sys") if os.geteuid() == 0 else tmp_path / "to"
    if os.geteuid() == 0 and not to.is_mount():
        pytest.skip("root, and no read-only /sys")
    to.mkdir(exist_ok=True)
    if os.geteuid():
        to.chmod(0o500)
    said = rejected(run, name, places, to)
    reasons = "ermission denied", "not permitted", "ead-only", "unable to open"
    assert any(reason in said for reason in reasons)
    assert ".tmp" not in said


def test_reading_needs_no_temporary_folder(run, ratings):
    with room_for(0):
        run("data", "inspect", ratings, "--quiet")

"""Signals at random moments: what is at the destination is absent, or whole, or as it was."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import chdir
from functools import partial
from pathlib import Path

import polars as pl
import pytest
from forked_commands import Forked, started

from recsys import Ratings, Recommender
from recsys.database import open_database, parse_address
from recsys.lsi import LSI

TIMES = int(
    os.environ.get("RECSYS_INTERRUPTS", "0")
)  # turns with each signal; 0: one signal
FRAME = pl.DataFrame(
    {
        "user": [user for user in range(200) for _ in range(20)],
        "item": [(7 * user + 13 * n) % 500 for user in range(200) for n in range(20)],
        "rating": [1.0 + (user + n) % 5 for user in range(200) for n in range(20)],
    }
)
WORDS = [
    (f"word{i}", f"thing{i % 13}", f"salt{i % 101}", f"more{i * 31 % 997}")
    for i in range(400)
]
COMMANDS = {
    "fit": "fit ratings.csv --model als --out new --force",
    "recommend": "recommend old --all --output out.csv",
    "parquet": "recommend old --all --output out.parquet",
    "impute": "impute old --output all.csv",
    "index": "lsi index texts.txt -k 9 --out index --force",
    "tune": "tune ratings.csv --model als --trials 2 --study study --output tuned.json",
    "update": "update kept more.csv --force",
    "promote": "versions promote old",
    "sqlite": "recommend old --all --output lists.db::lists --if-exists replace",
    "duckdb": "recommend old --all --output lists.duckdb::lists --if-exists replace",
    "postgresql": "recommend old --all --output POSTGRESQL::lists --if-exists replace",
}
TARGETS = {
    "fit": ["new"],
    "recommend": ["out.csv"],
    "parquet": ["out.parquet"],
    "impute": ["all.csv"],
    "index": ["index"],
    "tune": ["study", "tuned.json"],
    "update": ["kept"],
    "promote": ["latest"],
    "sqlite": ["lists.db"],
    "duckdb": ["lists.duckdb"],
    "postgresql": ["POSTGRESQL"],
}
SIGNALS = [signal.SIGINT, signal.SIGKILL, signal.SIGHUP, signal.SIGTERM]
EXIT_CODES = {signal.SIGINT: 130, signal.SIGHUP: 143, signal.SIGTERM: 143}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("interrupts")
    FRAME.write_csv(place / "ratings.csv")
    (place / "texts.txt").write_text("\n".join(map(" ".join, WORDS)) + "\n")
    FRAME.head(9).with_columns(pl.col("item") + 999).write_csv(place / "more.csv")
    Recommender("als", factors=4).fit(Ratings.from_frame(FRAME)).save(place / "old")
    shutil.copytree(place / "old", place / "kept")
    return place


def begun(args: str, folder: Path) -> Forked | subprocess.Popen[str]:
    """Start a command in a folder."""
    with chdir(folder):
        return started([*args.split(), "--quiet"])


def finished(args: str, folder: Path) -> tuple[int, str]:
    """Run a command to its end; return exit code and messages."""
    with begun(args, folder) as process:
        said = process.stderr.read()
        return process.wait(60), said


def stopped(
    args: str, folder: Path, number: int, after: float, aimed: bool
) -> tuple[int, str]:
    """Start the command, signal it after some seconds; return exit code and messages.

    If `aimed`, the signal comes a moment after something unfinished has appeared.
    """
    with begun(args, folder) as process:
        if aimed:
            while process.poll() is None and not hidden(folder):
                time.sleep(0.002)
            time.sleep(after % 0.01)
        else:
            time.sleep(after)
        process.send_signal(number)
        said = process.stderr.read()
        return process.wait(60), said


def check_whole(target: Path) -> str:
    """Read what is there, if something is, and return what it says in all."""
    if target.name in ("new", "kept"):
        return str(Recommender.load(target, verify=True).ratings)
    if target.name == "index":
        return str(LSI.load(target, verify=True).training_ | {"seconds": 0})
    if target.name == "tuned.json":
        document = json.loads(target.read_bytes())
        return str([trial["parameters"] for trial in document["trials"]])
    if target.name == "latest":
        return Recommender.load(target).model.name
    if target.suffix in (".db", ".duckdb"):
        return number_of_rows(f"{target}::lists")
    if target.suffix == ".parquet":
        return str(len(pl.read_parquet(target)))
    return str(target.stat().st_size)


def number_of_rows(address: str) -> str:
    """Return the number of rows of the table `lists`, and nothing if it does not exist."""
    parsed = parse_address(address)
    assert parsed is not None
    with open_database(parsed, write=True) as database:
        try:
            return str(database.rows("SELECT count(*), min(rank) FROM lists"))
        except Exception as error:
            if "lists" not in str(error):
                raise
            return ""


def drop_lists(address: str) -> None:
    """Drop the table `lists` of a PostgreSQL server."""
    from adbc_driver_postgresql import dbapi

    with (
        dbapi.connect(address, autocommit=True) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute("DROP TABLE IF EXISTS lists")


def removed(target: Path) -> None:
    """Remove a target; for `latest`, let it point to another version."""
    if target.name == "kept":
        return
    if target.name == "latest":
        target.unlink()
        target.symlink_to("kept")
    elif target.is_dir():
        shutil.rmtree(target)
    else:
        target.unlink(missing_ok=True)


def hidden(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir() if each.name.startswith("."))


@pytest.mark.parametrize("verb", COMMANDS)
def test_nothing_half_written_is_taken_for_whole(
    verb: str, folder: Path, request: pytest.FixtureRequest
) -> None:
    rng = random.Random(f"{verb} {TIMES}")
    args = COMMANDS[verb]
    database = ""
    if verb == "postgresql":
        pytest.importorskip("adbc_driver_postgresql")
        database = str(request.getfixturevalue("postgres"))
        # Other tests read the only table of the server.
        request.addfinalizer(partial(drop_lists, database))
        args = args.replace("POSTGRESQL", database)
    if verb == "duckdb":
        pytest.importorskip("duckdb")

    def contents(target: Path) -> str:
        if database:
            return number_of_rows(f"{database}::lists")
        return check_whole(target) if target.exists() else ""

    start = time.monotonic()
    assert finished(args, folder) == (0, "")
    lasts = time.monotonic() - start
    targets = [folder / name for name in TARGETS[verb]]
    first = {target: contents(target) for target in targets if target.name != "study"}
    seen: Counter[str] = Counter()
    one = SIGNALS[list(COMMANDS).index(verb) % len(SIGNALS) :][:1]
    for turn, number in enumerate(SIGNALS * TIMES or one):
        for name in hidden(folder):
            path = folder / name
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        if (
            verb == "tune" or rng.random() < 0.3
        ):  # else there is an old one to be replaced
            for target in targets:
                removed(target)
        before = {target: contents(target) for target in first}
        aimed = verb in ("fit", "update", "index") and (turn // len(SIGNALS)) % 2 == 0
        code, said = stopped(
            args, folder, number, rng.uniform(0.3, 1.05) * lasts, aimed
        )
        assert code in (0, EXIT_CODES.get(number), -number), said
        # Python says a traceback of its own if the signal comes before the command has begun.
        assert "Traceback" not in said or "cli.run()" not in said, said
        if code == 130:
            assert said == "Interrupted.\n"
        if code in EXIT_CODES.values():
            assert hidden(folder) == []
        for target in first:
            # Old or new, and never neither.
            assert contents(target) in (first[target], before[target])
        name = signal.Signals(number).name
        seen[f"{name}, {'done before' if code == 0 else 'stopped'}"] += 1
        if hidden(folder):  # by SIGKILL alone
            seen[f"{name}, leftovers"] += 1
    print(f"\n{verb}: {dict(seen)}")
    if TIMES or hidden(folder):
        assert finished(args, folder) == (0, "")
        assert {target: contents(target) for target in first} == first
        assert hidden(folder) == []
    visible = {each.name for each in folder.iterdir()}
    inputs = {"ratings.csv", "more.csv", "texts.txt", "old", "kept"}
    # A run that SIGKILL ends within a write of optuna leaves its lock, which expires.
    assert visible <= {*inputs, "study.lock", "lists.duckdb.wal"}.union(
        *TARGETS.values()
    )


def test_an_interrupt_while_the_command_is_loaded_is_one_line() -> None:
    code = """if True:
        import runpy, sys
        class Interrupt:
            def find_spec(self, name, *_):
                if name == "click":
                    raise KeyboardInterrupt
        sys.meta_path.insert(0, Interrupt())
        runpy.run_module("recsys", run_name="__main__")
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "Interrupted.\n")

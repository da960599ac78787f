"""Where the command finds ratings: several files, folders, patterns, databases."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

Run = Callable[..., Result]
ROWS = [
    (str(u), str(10 * i), float(u * i % 5 + 1))
    for u in range(1, 9)
    for i in range(1, 7)
    if (u + i) % 3
]


@pytest.fixture
def events(tmp_path: Path) -> Path:
    """A folder of two parts, and a database with the same rows in its table events."""
    folder = tmp_path / "events"
    folder.mkdir()
    for name, part in {"p1": ROWS[:9], "p2": ROWS[9:]}.items():
        lines = [",".join(map(str, row)) for row in part]
        (folder / f"{name}.csv").write_text("\n".join(["user,item,rating", *lines, ""]))
    connection = sqlite3.connect(tmp_path / "orders.db")
    connection.execute("CREATE TABLE events (user, item, rating REAL)")
    connection.execute("CREATE TABLE items (item)")
    connection.executemany("INSERT INTO events VALUES (?, ?, ?)", ROWS)
    connection.execute("INSERT INTO items VALUES ('10')")
    connection.commit()
    connection.close()
    return folder


SOURCES = [
    ["events/"],
    ["events/p1.csv", "events/p2.csv"],
    ["events/*.csv"],
    ["orders.db::events"],
    ["orders.db", "--table", "events"],
    ["sqlite:///orders.db", "--query", "SELECT * FROM events"],
]


@pytest.mark.parametrize("source", SOURCES, ids=" ".join)
@pytest.mark.usefixtures("events")
def test_every_source_has_the_same_ratings(run: Run, source: list[str]) -> None:
    facts = json.loads(run("data", "inspect", *source, "--json").stdout)["ratings"]
    assert (facts["users"], facts["items"], facts["ratings"]) == (8, 6, len(ROWS))


@pytest.mark.parametrize("source", SOURCES[1:5:3], ids=" ".join)
@pytest.mark.usefixtures("events")
def test_every_verb_takes_them(run: Run, source: list[str], tmp_path: Path) -> None:
    run("fit", *source, "--model", "bias", "--out", "model")
    run(
        "split",
        *source,
        "--method",
        "random",
        "--test-fraction",
        "0.2",
        "--out",
        "parts",
    )
    run(
        "evaluate",
        *source,
        "--model",
        "bias",
        "--method",
        "random",
        "--test-fraction",
        "0.2",
    )
    run("scree", *source)
    run("update", "model", *source, "--out", "model2")
    tuned = run(
        "tune", *source, "--model", "bias", "--trials", "1", "--method", "random"
    )
    assert all(word in tuned.stderr for word in source)
    listed = ("--items", "orders.db::items", "--json")
    found = run("recommend", "model", "--user", "2", *listed).stdout
    assert [row["item"] for row in json.loads(found)["rows"]] == [10]
    pairs = run("predict", "model", "orders.db::events", "--json").stdout
    assert len(json.loads(pairs)["rows"]) == len(ROWS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["orders.db"],
            "orders.db holds the tables events, items; name one: orders.db::events, or",
        ),
        (["orders.db::evnts"], "orders.db has no table 'evnts'; did you mean events?"),
        (["events/*.json"], "No file matches the pattern events/*.json."),
        (
            ["events/p1.csv", "--table", "t"],
            "--table applies to databases, and p1.csv is a file.",
        ),
        (["events/p1.csv", "nope.csv"], "There is no file or directory nope.csv."),
        (
            ["postgresql://u:s3cret@127.0.0.1:1/d"],
            "postgresql://127.0.0.1:1/d cannot be opened: no s",
        ),
        (
            ["mysql://u:s3cret@h/d"],
            "mysql:// databases are not supported; use PostgreSQL, SQLite",
        ),
    ],
)
@pytest.mark.usefixtures("events")
def test_mistakes_are_one_sentence_without_a_password(
    run: Run, arguments: list[str], message: str
) -> None:
    said = run("fit", *arguments, "--out", "model", code=1).stderr
    assert message in said
    assert "s3cret" not in said


def test_a_password_is_neither_shown_nor_saved(
    run: Run, postgres: str, tmp_path: Path
) -> None:
    from adbc_driver_postgresql import dbapi

    values = ", ".join(f"({user}, {item}, {rating})" for user, item, rating in ROWS)
    with (
        dbapi.connect(postgres, autocommit=True) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute(
            'CREATE TABLE kept ("user" bigint, item bigint, rating numeric(2, 1))'
        )
        try:
            cursor.execute(f"INSERT INTO kept VALUES {values}")
            done = run("fit", f"{postgres}::kept", "--model", "bias", "--out", "model")
            asked = run(
                "recommend", f"{postgres}::kept", "--model", "bias", "--user", "2"
            )
        finally:
            cursor.execute("DROP TABLE kept")
    assert "a password on the command line is visible" in done.stderr
    shown = f"postgresql://localhost:{postgres.rpartition(':')[2]}::kept: PostgreSQL"
    assert shown in done.stderr
    saved = b"".join(path.read_bytes() for path in (tmp_path / "model").rglob("*.json"))
    assert shown.encode() in saved
    for text in (done.output, asked.output, saved.decode()):
        assert "open-sesame" not in text


def test_training_and_test_ratings_are_read_with_the_user_of_their_addresses(
    run: Run, postgres: str
) -> None:
    from adbc_driver_postgresql import dbapi

    values = ", ".join(f"({user}, {item}, {rating})" for user, item, rating in ROWS)
    with (
        dbapi.connect(postgres, autocommit=True) as connection,
        connection.cursor() as cursor,
    ):
        try:
            for name, remainder in (("old", "= 0"), ("new", "> 0")):
                cursor.execute(
                    f'CREATE TABLE {name} ("user" int, item int, rating real)'
                )
                cursor.execute(
                    f"INSERT INTO {name} SELECT * FROM (VALUES {values}) AS r(u, i, v) "
                    f"WHERE (u + i / 10) % 2 {remainder}"
                )
            old, new = f"{postgres}::old", f"{postgres}::new"
            for model in ("bias", "popular"):
                run("fit", old, "--model", model, "--out", model)
            run("compare", "bias", "popular", "--test", new)
            run("evaluate", "bias", "--test", new)
            run("tune", "--train", old, "--trials", 1, "--model", "bias")
        finally:
            cursor.execute("DROP TABLE IF EXISTS old, new")

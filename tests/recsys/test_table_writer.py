"""Tables of a database are written whole, whatever happens to the writer."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import polars as pl
import pytest

from recsys import DataError, write_table
from recsys.database import open_database, parse_address

FIRST = pl.DataFrame(
    {"user": ["a", "ö"], "item": [1, 2], "rank": [1, 2], "score": [0.5, None], "title": ["T", ""]},
    schema_overrides={"rank": pl.Int32, "score": pl.Float32},
)
SECOND = FIRST.with_columns(user=pl.lit("b"), score=pl.lit(1.5, pl.Float32))


class Place:
    """An address of a table, and the rows that others find there."""

    def __init__(self, address: str) -> None:
        self.address = address

    def run(self, sql: str) -> list[tuple[Any, ...]]:
        parsed = parse_address(self.address)
        if parsed.kind == "sqlite":
            with sqlite3.connect(parsed.place, timeout=60) as connection:
                rows = connection.execute(sql).fetchall()
            connection.close()
            return rows
        with open_database(parsed, write=True) as database:
            connection = database.connection
            cursor = connection.cursor()
            cursor.execute(sql)
            rows = cursor.fetchall() if cursor.description else []
            cursor.close()
            connection.commit() if parsed.kind == "postgresql" else None
        return rows

    def rows(self) -> list[tuple[Any, ...]]:
        return self.run('SELECT * FROM recs ORDER BY "user", item')

    def write(self, frames: Any, if_exists: str = "fail") -> int:
        return write_table(self.address, frames, if_exists=if_exists)


@pytest.fixture(params=["postgresql", "sqlite", "duckdb"])
def place(request, tmp_path) -> Iterator[Place]:
    if request.param != "postgresql":
        pytest.importorskip("duckdb") if request.param == "duckdb" else None
        suffix = {"sqlite": "db", "duckdb": "duckdb"}[request.param]
        yield Place(f"{tmp_path}/shop.{suffix}::recs")
        return
    pytest.importorskip("adbc_driver_postgresql")
    found = Place(f"{request.getfixturevalue('postgres')}::recs")
    yield found
    found.run("DROP TABLE IF EXISTS recs CASCADE")
    left = "SELECT relname FROM pg_class WHERE relname LIKE 'recs%'"
    assert found.run(left) == []


def test_a_table_has_the_rows_and_types_of_the_frames(place):
    assert place.write([FIRST, SECOND]) == 4
    assert place.rows() == sorted([*FIRST.rows(), *SECOND.rows()])
    kinds = {
        "postgresql": ["text", "bigint", "integer", "real", "text"],
        "sqlite": ["TEXT", "INTEGER", "INTEGER", "REAL", "TEXT"],
        "duckdb": ["VARCHAR", "BIGINT", "INTEGER", "FLOAT", "VARCHAR"],
    }
    kind = parse_address(place.address).kind
    found = {
        "postgresql": "SELECT data_type FROM information_schema.columns WHERE table_name = 'recs' "
        "ORDER BY ordinal_position",
        "sqlite": "SELECT type FROM pragma_table_info('recs')",
        "duckdb": "SELECT data_type FROM duckdb_columns() WHERE table_name = 'recs'",
    }
    assert [each for (each,) in place.run(found[kind])] == kinds[kind]


def test_a_table_that_exists_is_an_error_unless_it_may_be_replaced_or_grow(place):
    place.write(FIRST)
    with pytest.raises(DataError, match=r"::recs exists already; add --if-exists replace or app"):
        place.write(SECOND)
    assert place.rows() == FIRST.rows()
    place.write(SECOND, "append")
    assert len(place.rows()) == 4
    place.write(SECOND.to_pandas(), "replace")
    assert place.rows() == SECOND.rows()
    with pytest.raises(DataError, match="if_exists must be fail, replace or append; got 'drop'"):
        place.write(SECOND, "drop")


def test_a_frame_without_rows_empties_the_table_and_no_frame_leaves_it(place):
    place.write(FIRST)
    assert place.write([], "replace") == 0
    assert place.rows() == FIRST.rows()
    assert place.write(FIRST.clear(), "replace") == 0
    assert place.rows() == []


def test_views_and_indexes_on_a_replaced_table_stay(place):
    place.write(FIRST)
    place.run('CREATE UNIQUE INDEX by_user ON recs ("user", rank)')
    place.run("CREATE VIEW best AS SELECT * FROM recs WHERE rank = 1")
    try:
        place.write([SECOND.clear(), SECOND], "replace")
        assert place.run("SELECT * FROM best") == SECOND.filter(pl.col("rank") == 1).rows()
        with pytest.raises(DataError, match=r"(?i)::recs cannot be written: .*(unique|duplicate)"):
            place.write(SECOND, "append")
        with pytest.raises(DataError, match=r"has the columns user, item, .*, but not 'std'"):
            place.write(SECOND.with_columns(std=1.0), "replace")
        with pytest.raises(DataError, match=r"::best is not a table but a view"):
            write_table(place.address.replace("recs", "best"), FIRST, if_exists="replace")
        assert place.rows() == SECOND.rows()
    finally:
        place.run("DROP VIEW best")


def test_a_table_with_nothing_built_on_it_may_get_other_columns(place):
    place.write(FIRST)
    place.write(SECOND.select("item", std=pl.lit(0.25)), "replace")
    assert place.run("SELECT * FROM recs") == [(1, 0.25), (2, 0.25)]


def test_an_error_in_the_middle_leaves_what_was_there(place):
    place.write(FIRST)

    def broken() -> Iterator[pl.DataFrame]:
        yield SECOND
        raise KeyboardInterrupt

    for if_exists in ("replace", "append"):
        with pytest.raises(KeyboardInterrupt):
            place.write(broken(), if_exists)
    with pytest.raises(DataError, match=r"cannot have a column of List.*: 'genres'"):
        place.write(SECOND.with_columns(genres=[["War"]] * 2), "replace")
    assert place.rows() == FIRST.rows()


def test_readers_see_the_old_rows_or_the_new_ones(place):
    if "duckdb" in place.address:
        pytest.skip("DuckDB locks its file for one process")
    old, new = (FIRST.clear().vstack(each).sample(5000, with_replacement=True, seed=0)
                for each in (FIRST, SECOND))  # fmt: skip
    place.write(old)
    seen, over = set(), threading.Event()

    def read() -> None:
        while not over.is_set():
            seen.update(place.run('SELECT count(*), min("user"), max("user") FROM recs'))

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for _ in range(3):
            place.write(new.iter_slices(500), "replace")
            place.write(old.iter_slices(500), "replace")
    finally:
        over.set()
        reader.join()
    assert seen <= {(5000, "a", "ö"), (5000, "b", "b")}


KILLED = """
import sys, time
import polars as pl
from recsys import write_table

def frames():
    for place in range(100):
        yield pl.DataFrame({"user": range(50_000), "item": place})
        print(place, flush=True)
    time.sleep(0.05 * int(sys.argv[2]))  # during the last step, or before it

write_table(sys.argv[1], frames(), if_exists="replace")
"""


@pytest.mark.parametrize("after", [1, 3])
def test_a_killed_writer_leaves_the_old_table(place, after, tmp_path):
    place.write(FIRST)
    command = [sys.executable, "-c", KILLED, place.address, "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=tmp_path) as writer:
        for _ in range(after):
            writer.stdout.readline()
        writer.send_signal(signal.SIGKILL)
    assert place.rows() == FIRST.rows()
    place.write(SECOND, "replace")
    assert place.rows() == SECOND.rows()
    assert [path.suffix for path in tmp_path.glob(".*")] in ([], [".tmp"])

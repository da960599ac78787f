"""Tables of a database are written whole, whatever happens to the writer."""

from __future__ import annotations

import functools
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

import polars as pl
import pytest
from forked_commands import started
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from processes import running

from recsys import DataError, write_table
from recsys.database import open_database, parse_address
from recsys.table_writer import table_writer

FIRST = pl.DataFrame(
    {
        "user": ["a", "ö"],
        "item": [1, 2],
        "rank": [1, 2],
        "score": [0.5, None],
        "title": ["T", ""],
    },
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
            with (
                closing(sqlite3.connect(parsed.place, timeout=60)) as connection,
                connection,
            ):
                rows = connection.execute(sql).fetchall()
            connection.close()
            return rows
        if parsed.kind == "postgresql":
            return answers(connection_to_server(self.address), sql)
        with open_database(parsed, write=True) as database:
            return answers(database.connection, sql)

    def rows(self) -> list[tuple[Any, ...]]:
        return self.run('SELECT * FROM recs ORDER BY "user", item')

    def write(self, frames: Any, if_exists: str = "fail") -> int:
        return write_table(self.address, frames, if_exists=if_exists)


def answers(connection: Any, sql: str) -> list[tuple[Any, ...]]:
    """Run a statement, and return its rows."""
    cursor = connection.cursor()
    cursor.execute(sql)
    rows = cursor.fetchall() if cursor.description else []
    cursor.close()
    connection.commit()
    return rows


# A connection takes a tenth of a second, as the driver reads all types of the server.
SERVERS = ExitStack()


@functools.cache
def connection_to_server(address: str) -> Any:
    """Connect to a server once for all tests of this file."""
    database = open_database(parse_address(address), write=True)
    return SERVERS.enter_context(database).connection


@pytest.fixture(scope="module", autouse=True)
def end_connections() -> Iterator[None]:
    with SERVERS:
        yield
    connection_to_server.cache_clear()


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
    with pytest.raises(
        DataError, match=r"::recs exists already; use --if-exists append, or --"
    ):
        place.write(SECOND)
    assert place.rows() == FIRST.rows()
    place.write(SECOND, "append")
    assert len(place.rows()) == 4
    place.write(SECOND.to_pandas(), "replace")
    assert place.rows() == SECOND.rows()
    with pytest.raises(
        DataError, match="if_exists must be fail, replace or append; got 'drop'"
    ):
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
        assert (
            place.run("SELECT * FROM best") == SECOND.filter(pl.col("rank") == 1).rows()
        )
        with pytest.raises(
            DataError, match=r"(?i)::recs cannot be written: .*(unique|duplicate)"
        ):
            place.write(SECOND, "append")
        with pytest.raises(
            DataError, match=r"has the columns user, item, .*, but not 'std'"
        ):
            place.write(SECOND.with_columns(std=1.0), "replace")
        with pytest.raises(DataError, match=r"::best is not a table but a view"):
            write_table(
                place.address.replace("recs", "best"), FIRST, if_exists="replace"
            )
        assert place.rows() == SECOND.rows()
    finally:
        place.run("DROP VIEW best")


def test_a_table_without_a_column_is_an_error(place):
    place.write(FIRST)
    with pytest.raises(DataError, match="but not 'std'; add it, drop the table, or"):
        place.write(SECOND.select("item", std=pl.lit(0.25)), "replace")
    assert place.rows() == FIRST.rows()


def test_an_error_in_the_middle_leaves_what_was_there(place):
    place.write(FIRST)

    def broken() -> Iterator[pl.DataFrame]:
        yield SECOND
        raise KeyboardInterrupt

    for if_exists in ("replace", "append"):
        with pytest.raises(KeyboardInterrupt):
            place.write(broken(), if_exists)
    with pytest.raises(DataError, match=r"cannot store column 'genres' of type List"):
        place.write(SECOND.with_columns(genres=[["War"]] * 2), "replace")
    assert place.rows() == FIRST.rows()


def test_replacing_takes_a_table_that_another_has_just_created(place):
    with table_writer(parse_address(place.address), "replace") as late:
        late.write(SECOND)
        place.write(FIRST)
    assert place.rows() == SECOND.rows()


def test_says_that_it_waits_for_another_process(tmp_path):
    path = tmp_path / "shop.db"
    holder = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    holder.execute("BEGIN EXCLUSIVE")
    waits: list[int] = []

    def let_go() -> None:
        waits.append(1)
        holder.execute("COMMIT")

    for _ in range(2):  # while the table is looked up, and at the end
        writer = table_writer(parse_address(f"{path}::recs"), "replace")
        writer.on_wait = let_go
        with writer:
            writer.write(FIRST)
            if len(waits) == 1:
                holder.execute("BEGIN EXCLUSIVE")
    holder.close()
    assert len(waits) >= 2
    assert Place(f"{path}::recs").rows() == FIRST.rows()


def test_readers_see_the_old_rows_or_the_new_ones(place):
    if "duckdb" in place.address:
        pytest.skip("DuckDB locks its file for one process")
    old, new = (FIRST.clear().vstack(each).sample(5000, with_replacement=True, seed=0)
                for each in (FIRST, SECOND))  # fmt: skip
    place.write(old)
    seen, over = set(), threading.Event()

    def read() -> None:
        while not over.is_set():
            seen.update(
                place.run('SELECT count(*), min("user"), max("user") FROM recs')
            )

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


STOPPED = """
import sys
import time
import polars as pl
from recsys import write_table

def frames():
    for place in range(4):
        yield pl.DataFrame({"user": range(20_000), "item": place})
        print(place, file=sys.stderr)
    time.sleep(600)  # until it is stopped

write_table(sys.argv[1], frames(), if_exists="replace")
"""


@pytest.mark.parametrize("stop", [signal.SIGKILL, signal.SIGINT])
def test_a_stopped_writer_leaves_the_old_table(place, stop, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    place.write(FIRST)
    with started(["-c", STOPPED, place.address]) as writer:
        steps = [writer.stderr.readline() for _ in range(4)]
        assert steps == ["0\n", "1\n", "2\n", "3\n"]
        writer.send_signal(stop)
        writer.stderr.read()
        assert writer.wait(60) != 0
    assert place.rows() == FIRST.rows()
    place.write(SECOND, "replace")
    assert place.rows() == SECOND.rows()
    assert not list(tmp_path.glob(".*"))


def test_a_writer_that_is_killed_in_the_last_step_leaves_the_old_rows_or_the_new_ones(
    place, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    place.write(FIRST)
    place.run(
        'CREATE INDEX by_user ON recs ("user")'
    )  # so that rows are deleted and inserted
    new = FIRST.sample(100_000, with_replacement=True)
    new.write_parquet("new.parquet")
    with started(["-c", LAST_STEP, place.address]) as writer:
        assert writer.stderr.readline() == "written\n"
        time.sleep(random.uniform(0, 0.2))
        writer.kill()
    assert len(place.rows()) in (2, 100_000)


LAST_STEP = """
import sys
import polars as pl
from recsys import write_table

def frames():
    yield pl.read_parquet("new.parquet")
    print("written", file=sys.stderr)

write_table(sys.argv[1], frames(), if_exists="replace")
"""


def test_what_a_killed_writer_of_sqlite_began_is_rolled_back(tmp_path):
    connection = sqlite3.connect(tmp_path / "shop.db", isolation_level=None)
    for step in ("CREATE TABLE recs (user TEXT)", "PRAGMA cache_size = 1", "BEGIN"):
        connection.execute(step)
    connection.executemany("INSERT INTO recs VALUES (?)", [("a" * 100,)] * 1000)
    for name in ("shop.db", "shop.db-journal"):  # as they would be found after a kill
        shutil.copy(tmp_path / name, tmp_path / name.replace("shop", "left"))
    connection.close()
    assert (
        write_table(f"{tmp_path}/left.db::recs", FIRST[["user"]], if_exists="append")
        == 2
    )
    assert Place(f"{tmp_path}/left.db::recs").run("SELECT * FROM recs") == [
        ("a",),
        ("ö",),
    ]


def test_duckdb_waits_while_another_process_has_the_file_open(tmp_path):
    pytest.importorskip("duckdb")
    place, hold = Place(f"{tmp_path}/shop.duckdb::recs"), "import duckdb, sys; "
    hold += f"c = duckdb.connect({f'{tmp_path}/shop.duckdb'!r}); print('open', flush=True); input()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}

    with ExitStack() as stack:

        def frames() -> Iterator[pl.DataFrame]:
            holder = stack.enter_context(running(sys.executable, "-c", hold, **pipes))
            holder.stdout.readline()
            with pytest.raises(
                DataError, match=r"shop.duckdb::recs cannot be written: .*lock"
            ):
                place.write(SECOND)
            yield FIRST
            end = threading.Timer(0.3, lambda: holder.communicate("\n"))
            end.start()
            stack.callback(end.join)

        place.write(frames())
    assert place.rows() == FIRST.rows()


VALUES = {
    pl.Int64: st.integers(-(2**63), 2**63 - 1),
    pl.UInt16: st.integers(0, 2**16 - 1),
    pl.Float64: st.floats(allow_nan=False),
    pl.Float32: st.floats(allow_nan=False, width=32),
    pl.Boolean: st.booleans(),
    pl.String: st.text(
        st.characters(exclude_categories=["Cs"], exclude_characters="\0")
    ),
}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=5)
@given(data=st.data())
def test_values_come_back_as_they_were(place, data):
    rows = data.draw(st.integers(0, 5))
    columns = {
        f'a "{dtype}" column': pl.Series(
            data.draw(st.lists(st.none() | values, min_size=rows, max_size=rows)),
            dtype=dtype,
        )
        for dtype, values in VALUES.items()
    }
    frame = pl.DataFrame(columns)
    place.write(frame, "replace")
    assert place.run("SELECT * FROM recs") == frame.rows()


def test_names_missing_rights_in_postgresql_at_once(postgres):
    owner = Place(f"{postgres}::recs")
    role = Place(owner.address.replace("//shop:", "//clerk:"))
    owner.write(FIRST)
    setup = "CREATE ROLE clerk LOGIN PASSWORD 'open-sesame'; GRANT SELECT, INSERT ON recs TO clerk"
    for statement in setup.split("; "):
        owner.run(statement)
    try:
        with pytest.raises(
            DataError, match=r"^postgresql://local.*::recs: .* may not delete rows"
        ):
            role.write(SECOND, "replace")
        assert role.write(SECOND, "append") == 2
        owner.run("GRANT DELETE ON recs TO clerk")
        assert role.write(SECOND, "replace") == 2
        assert role.rows() == SECOND.rows()
        owner.run("REVOKE INSERT ON recs FROM clerk")
        with pytest.raises(DataError, match="may not insert rows"):
            role.write(SECOND, "append")
        for table, message in {
            "best": "may not create tables in public",
            "attic.recs": "there is no schema 'attic'",
        }.items():
            with pytest.raises(DataError, match=message):
                write_table(role.address.removesuffix("recs") + table, FIRST)
    finally:
        owner.run("DROP TABLE recs")
        owner.run("DROP ROLE clerk")


def test_a_table_of_postgresql_keeps_its_indexes_constraints_and_rights(
    postgres,
):
    place = Place(f"{postgres}::recs")
    place.write(FIRST)
    facts = {
        "indexes": "SELECT indexdef FROM pg_indexes WHERE tablename = 'recs' ORDER BY 1",
        "columns": "SELECT attname::text, attnotnull, atthasdef FROM pg_attribute "
        "WHERE attrelid = 'recs'::regclass AND attnum > 0 ORDER BY attnum",
        "constraints": "SELECT conname::text, pg_get_constraintdef(oid) FROM pg_constraint "
        "WHERE conrelid = 'recs'::regclass ORDER BY 1",
        "rights": "SELECT relacl::text FROM pg_class WHERE oid = 'recs'::regclass",
    }
    for statement in (
        'CREATE UNIQUE INDEX "By user" ON recs ("user" DESC, rank) WHERE rank < 9',
        'ALTER TABLE recs ADD PRIMARY KEY ("user", item), ADD CHECK (rank > 0)',
        "ALTER TABLE recs ADD made timestamp DEFAULT now(), ADD CONSTRAINT one UNIQUE (made, rank)",
        "CREATE ROLE reader",
        "GRANT SELECT ON recs TO reader, PUBLIC",
    ):
        place.run(statement)
    try:
        (oid,), before = place.run("SELECT 'recs'::regclass::oid::bigint")[0], {}
        before = {name: place.run(sql) for name, sql in facts.items()}
        place.write(SECOND, "replace")
        assert {name: place.run(sql) for name, sql in facts.items()} == before
        names = ", ".join(f'"{name}"' for name in SECOND.columns)
        assert place.run(f"SELECT {names} FROM recs ORDER BY 1, 3") == SECOND.rows()
        assert place.run("SELECT 'recs'::regclass::oid::bigint")[0] == (oid,)
        with pytest.raises(DataError, match="violates check constraint"):
            place.write(
                SECOND.with_columns(pl.lit(0, pl.Int32).alias("rank")), "replace"
            )
        with pytest.raises(DataError, match="duplicate key"):
            place.write(pl.concat([SECOND, SECOND]), "replace")
        assert place.run("SELECT count(*) FROM recs") == [(len(SECOND),)]
    finally:
        place.run("DROP TABLE recs")
        place.run("DROP ROLE reader")


def test_a_table_of_postgresql_keeps_its_own_types_and_further_columns(postgres):
    place = Place(f"{postgres}::sales.Best Sellers")
    place.run("CREATE SCHEMA sales")
    try:
        columns = (
            'rank smallint, "user" varchar(9), item numeric, score float8, title text'
        )
        place.run(
            f'CREATE TABLE sales."Best Sellers" ({columns}, written timestamp DEFAULT now())'
        )
        place.write([FIRST, SECOND], "replace")
        place.write(SECOND, "append")
        rows = place.run(
            'SELECT rank, written IS NULL FROM sales."Best Sellers" ORDER BY 1'
        )
        assert rows == [(1, False)] * 3 + [(2, False)] * 3
        with pytest.raises(DataError, match="cannot be written: smallint out of range"):
            place.write(FIRST.with_columns(rank=70_000), "append")
        with pytest.raises(
            DataError, match="value too long for type character varying"
        ):
            place.write(FIRST.with_columns(user=pl.lit("more than nine")), "append")
    finally:
        place.run("DROP SCHEMA sales CASCADE")


def test_rules_of_an_sqlite_table_stay_when_its_rows_are_replaced(tmp_path):
    place = Place(f"{tmp_path / 'shop.db'}::recs")
    place.run("CREATE TABLE recs (user TEXT NOT NULL, item INTEGER PRIMARY KEY)")
    place.write(FIRST.select("user", "item"), "replace")
    facts = place.run("SELECT \"notnull\", pk FROM pragma_table_info('recs')")
    assert facts == [(1, 0), (0, 1)]
    assert place.rows() == [("a", 1), ("ö", 2)]


def test_a_long_transaction_delays_the_writer_and_nobody_else(postgres):
    place = Place(f"{postgres}::recs")
    place.write(FIRST)
    waits = threading.Event()
    address = parse_address(place.address)

    def replace() -> None:
        with table_writer(address, "replace") as writer:
            writer.on_wait = waits.set
            writer.write(SECOND)

    try:
        with open_database(address, write=True) as database:
            cursor = database.connection.cursor()
            cursor.execute("INSERT INTO recs SELECT * FROM recs LIMIT 1")
            thread = threading.Thread(target=replace)
            thread.start()
            assert waits.wait(30)
            for _ in range(4):  # whoever comes next does not wait behind the writer
                begin = time.monotonic()
                place.run("INSERT INTO recs SELECT * FROM recs LIMIT 1")
                assert time.monotonic() - begin < 5
            assert thread.is_alive()
            cursor.close()
            database.connection.commit()
        thread.join(60)
        assert not thread.is_alive()
        assert place.rows() == SECOND.rows()
    finally:
        place.run("DROP TABLE IF EXISTS recs")


def test_a_writer_gives_up_when_a_transaction_does_not_end(postgres, monkeypatch):
    monkeypatch.setattr("recsys.table_writer._LONG_PATIENCE", 1.0)
    place = Place(f"{postgres}::recs")
    place.write(FIRST)
    try:
        with open_database(parse_address(place.address), write=True) as database:
            cursor = database.connection.cursor()
            cursor.execute("UPDATE recs SET rank = 7")
            with pytest.raises(DataError, match="another transaction has locked it"):
                place.write(SECOND, "replace")
            cursor.close()
            database.connection.rollback()
        assert place.rows() == FIRST.rows()
    finally:
        place.run("DROP TABLE IF EXISTS recs")


def test_two_writers_of_a_new_table_at_once_lose_no_rows(place):
    if "duckdb" in place.address:
        pytest.skip("DuckDB locks its file for one process")
    failures: list[Exception] = []
    start = threading.Barrier(3)

    def append(frame: pl.DataFrame) -> None:
        try:
            with table_writer(parse_address(place.address), "append") as writer:
                writer.write(frame)
                start.wait(60)
        except Exception as error:
            failures.append(error)

    frames = [FIRST, SECOND, FIRST.with_columns(user=pl.lit("c"))]
    for turn in range(4):
        threads = [threading.Thread(target=append, args=(each,)) for each in frames]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        assert len(place.rows()) == 6, turn
        place.run("DROP TABLE recs")

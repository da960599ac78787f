"""Ratings in tables of PostgreSQL, SQLite and DuckDB."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pytest
from adbc_driver_postgresql import dbapi

from recsys import Ratings, read_ratings
from recsys.data.ids import Ids
from recsys.database import open_table, parse_address
from recsys.errors import DataError
from recsys.lsi import Documents
from recsys.ranking.filters import rows_where
from recsys.readers.id_lists import read_history, read_ids

EVENTS = [
    ("ann", 10, 4.5, 1_700_000_000),
    ("bob", 20, 3.0, 1_700_000_100),
    ("ann", 20, 4.0, 1_600_000_000),
]
COLUMNS = "customer text, item_id integer, stars real, ts integer"


def rows(ratings: Ratings) -> list[tuple[Any, ...]]:
    return sorted(ratings.to_frame().rows())


def sqlite(path: Path, **tables: tuple[str, list[tuple[Any, ...]]]) -> Path:
    """Make a database of tables, each given by its columns and rows."""
    with closing(sqlite3.connect(path)) as connection, connection:
        for name, (columns, content) in tables.items():
            connection.execute(f'CREATE TABLE "{name}" ({columns})')
            marks = ", ".join("?" * len(content[0])) if content else ""
            connection.executemany(f'INSERT INTO "{name}" VALUES ({marks})', content)
    connection.close()
    return path


def duck(path: Path, **tables: str) -> Path:
    with duckdb.connect(str(path)) as connection:
        for name, select in tables.items():
            connection.execute(f'CREATE TABLE "{name}" AS {select}')
    return path


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    items = ("sku integer, title text", [(10, "Tea"), (20, "Cup")])
    return sqlite(tmp_path / "shop.db", events=(COLUMNS, EVENTS), items=items)


@pytest.fixture
def run(postgres: str) -> Iterator[Callable[[str], None]]:
    """Run statements on the private server, in a schema that is dropped at the end."""

    def execute(sql: str) -> None:
        with (
            dbapi.connect(postgres, autocommit=True) as connection,
            connection.cursor() as cursor,
        ):
            for statement in filter(str.strip, sql.split(";")):
                cursor.execute(statement)

    yield execute
    execute(
        "DROP SCHEMA public CASCADE; DROP SCHEMA IF EXISTS other CASCADE; CREATE SCHEMA public; "
        "GRANT USAGE ON SCHEMA public TO PUBLIC"
    )


def values(content: list[tuple[Any, ...]]) -> str:
    return ", ".join(
        f"('{user}', {item}, {stars}, {at})" for user, item, stars, at in content
    )


def test_a_table_of_sqlite(shop: Path) -> None:
    ratings = read_ratings(f"{shop}::events")
    assert rows(ratings) == sorted(EVENTS)
    assert str(ratings.source) == (
        f"{shop}::events: SQLite, user = customer, item = item_id, rating = stars, "
        "timestamp = ts; no duplicates"
    )
    assert rows(read_ratings(shop, table="events")) == rows(ratings)
    assert rows(read_ratings(f"sqlite:///{shop}", table="EVENTS")) == rows(ratings)
    assert rows(
        read_ratings(shop, query="select * from events where stars < 4 -- few;")
    ) == [("bob", 20, 3.0, 1_700_000_100)]


def test_a_table_of_duckdb(tmp_path: Path) -> None:
    table = (
        f"SELECT * FROM (VALUES {values(EVENTS)}) AS t(customer, item_id, stars, ts)"
    )
    path = duck(tmp_path / "wh.duckdb", events=table)
    ratings = read_ratings(path)  # its only table
    assert rows(ratings) == sorted(EVENTS)
    assert str(ratings.source).startswith(f"{path}::events: DuckDB, user = customer")
    assert rows(read_ratings(f"{path}::events")) == rows(ratings)
    assert rows(read_ratings(f"duckdb:///{path}::events")) == rows(ratings)
    with duckdb.connect(str(path)) as connection:
        assert rows(Ratings.from_frame(connection.sql("FROM events"))) == rows(ratings)


def test_a_table_of_postgresql(postgres: str, run: Callable[[str], None]) -> None:
    run(f"CREATE TABLE events ({COLUMNS}); INSERT INTO events VALUES {values(EVENTS)}")
    ratings = read_ratings(postgres)
    assert rows(ratings) == sorted(EVENTS)
    assert "::events: PostgreSQL, user = customer" in str(ratings.source)
    assert "open-sesame" not in str(ratings.source)
    assert rows(read_ratings(postgres, table="events")) == rows(ratings)
    assert rows(read_ratings(postgres, query="SELECT * FROM events;")) == rows(ratings)
    run(
        "CREATE SCHEMA other; CREATE TABLE other.events AS SELECT * FROM events LIMIT 1"
    )
    assert rows(read_ratings(f"{postgres}::other.events")) == [EVENTS[0]]


def test_types_of_postgresql(postgres: str, run: Callable[[str], None]) -> None:
    run(
        "CREATE TYPE kind AS ENUM ('film', 'book');"
        "CREATE TABLE t (u uuid, i numeric(20, 0), stars numeric(3, 1), at timestamptz, e kind,"
        "  d date, b bytea, j jsonb, p interval, tags text[]);"
        "INSERT INTO t VALUES ('00000000-0000-0000-0000-00000000000a', 12345678901234567, 4.5,"
        "  '2025-06-09 02:00:00+02', 'film', '2025-06-10', '\\x01', '{}', '1 day', '{a,b}')"
    )
    ratings = read_ratings(postgres, user="u", item="i", timestamp="at")
    user = "00000000-0000-0000-0000-00000000000a"
    assert rows(ratings) == [(user, 12345678901234567, 4.5, 1_749_427_200)]
    ratings = read_ratings(postgres, user="e", item="u", rating="stars", timestamp="d")
    assert rows(ratings) == [("film", user, 4.5, 1_749_513_600)]
    for column, name in {
        "b": "bytea",
        "j": "json",
        "p": "month_day_nano_interval",
    }.items():
        with pytest.raises(
            DataError, match=f"column '{column}' is of the type {name}, and ids"
        ):
            read_ratings(postgres, user=column, item="i")
    with pytest.raises(DataError, match="column 'tags' is of the type list"):
        read_ratings(postgres, user="tags", item="i")


def test_types_of_duckdb(tmp_path: Path) -> None:
    table = "SELECT 7::HUGEINT AS u, 'a'::ENUM('a', 'b') AS item, 4.5::DECIMAL(3, 1) AS rating"
    path = duck(tmp_path / "x.duckdb", t=f"{table}, '\\x01'::BLOB AS b, [1] AS l")
    assert rows(read_ratings(path, user="u")) == [(7, "a", 4.5)]
    for column in ("b", "l"):
        with pytest.raises(
            DataError, match=f"column '{column}' is of the type .*, and ids are"
        ):
            read_ratings(path, user=column)


def test_ratings_of_sqlite_that_are_integers_at_first(tmp_path: Path) -> None:
    content = [(f"u{n}", n % 7, 4) for n in range(70_000)] + [("last", 1, 4.5)]
    path = sqlite(
        tmp_path / "x.db", t=("user text, item integer, rating numeric", content)
    )
    assert read_ratings(path).values.max() == 4.5


def test_texts_that_are_integers_are_ids_of_integers(tmp_path: Path) -> None:
    content = [("7", "007"), ("8", "8")]
    ratings = read_ratings(
        sqlite(tmp_path / "x.db", t=("user text, item text", content))
    )
    assert ratings.users.values.to_list() == [7, 8]
    assert ratings.items.values.to_list() == ["007", "8"]


def test_only_the_needed_columns_are_fetched(shop: Path, tmp_path: Path) -> None:
    address = parse_address(f"{shop}::events")
    assert address is not None
    target, seen = tmp_path / "out.parquet", []

    def pick(names, where):
        return {"user": names.index("customer"), "item": names.index("item_id")}

    with open_table(address, pick) as table:
        table.write(target, lambda n, expected: seen.append((n, expected)))
    assert str(table.address) == f"{shop}::events"
    assert table.names == ("customer", "item_id", "stars", "ts")
    assert pl.read_parquet(target).columns == ["customer", "item_id"]
    assert seen == [(3, None)]


@pytest.mark.parametrize(
    ("place", "options", "message"),
    [
        (
            "shop.db",
            {},
            "holds the tables events, items; name one: .*shop.db::events, or --table",
        ),
        ("shop.db::evnts", {}, r"has no table 'evnts'; did you mean events\?$"),
        ("shop.db::zzz", {}, r"has no table 'zzz'; it holds events, items\.$"),
        (
            "shop.db::events",
            {"user": "who"},
            "::events has no column 'who'; its columns are 'cust",
        ),
        (
            "shop.db::items",
            {},
            "::items has no user column; its columns are 'sku', 'title'",
        ),
        (
            "shop.db",
            {"query": "selec 1"},
            "shop.db: the query cannot be read: .*syntax error",
        ),
        (
            "shop.db",
            {"query": "select x from events"},
            "cannot be read: no such column: x",
        ),
        (
            "shop.db",
            {"query": "select * from events limit 0"},
            r"\(query\) has no rows\.$",
        ),
        (
            "shop.db::events",
            {"query": "select 1"},
            "name one table, with ::TABLE or --table, or",
        ),
        ("other.db::events", {}, r"There is no file .*other\.db\.$"),
        ("shap.db", {}, r"There is no file .*shap\.db\. Did you mean .*shop\.db\?"),
        (
            "text.csv",
            {"table": "events"},
            "--table applies to databases, and text.csv is a file",
        ),
    ],
)
def test_mistakes(
    shop: Path, place: str, options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    (tmp_path / "text.csv").write_text("user,item\n1,2\n")
    with pytest.raises(DataError, match=message):
        read_ratings(shop.parent / place, **options)


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (
            ("/shop?", "/shoop?"),
            {},
            "/shoop cannot be opened: its database does not exist",
        ),
        (
            ("open-sesame", "s3cret"),
            {},
            "cannot be opened: password authentication failed",
        ),
        (
            ("localhost", "nowhere.invalid"),
            {},
            "cannot be opened: its host is not known",
        ),
        (
            ("shop:open-sesame", "shop:s3/cret"),
            {},
            r"^postgresql:\.\.\. is not the address of a",
        ),
        (
            ("shop:open-sesame", "nobody:s3cret"),
            {},
            "cannot be opened: password authentication",
        ),
        (("?", "?service=s3cret&"), {}, "cannot be opened: its service is not defined"),
        (
            ("?", "?sslmode=s3cret&"),
            {},
            "cannot be opened: one of its options is not valid",
        ),
        (
            ("?", "?options=-c%20s3cret=1&"),
            {},
            "cannot be opened: one of its options is not valid",
        ),
        (("", ""), {"table": "evnts"}, r"has no table 'evnts'; did you mean events\?"),
        (
            ("", ""),
            {"query": "selec 1"},
            "the query cannot be read: syntax error at or near",
        ),
        (
            ("", ""),
            {"query": "SELECT 1 / (item_id - 10) AS user, 1 AS item FROM events"},
            "by zero",
        ),
        (("", ""), {"user": "who"}, "::events has no column 'who'"),
    ],
)
def test_mistakes_with_a_server(
    postgres: str,
    run: Callable[[str], None],
    change: tuple[str, str],
    options: dict[str, Any],
    message: str,
) -> None:
    run(f"CREATE TABLE events ({COLUMNS}); INSERT INTO events VALUES {values(EVENTS)}")
    with pytest.raises(DataError, match=message) as caught:
        read_ratings(f"{postgres}?application_name=test".replace(*change), **options)
    said = str(caught.value)
    assert not any(
        secret in said for secret in ("open-sesame", "s3cret", "s3/cret", "cret")
    )
    assert "\n" not in said


def test_a_server_that_does_not_listen() -> None:
    with pytest.raises(
        DataError, match=r"^postgresql://127\.0\.0\.1:1/d cannot be opened: no ser"
    ):
        read_ratings("postgresql://u:s3cret@127.0.0.1:1/d")


def test_an_empty_database(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"x\.db holds no tables\.$"):
        read_ratings(sqlite(tmp_path / "x.db"))
    (tmp_path / "broken.db").write_bytes(b"SQLite format 3\0" + b"\xff" * 200)
    with pytest.raises(
        DataError, match=r"broken\.db cannot be opened: it is not a readable data"
    ):
        read_ratings(tmp_path / "broken.db")


def test_a_missing_driver_names_the_extra(
    shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "adbc_driver_sqlite", None)
    with pytest.raises(
        DataError, match=r"SQLite needs adbc-driver-sqlite; install .*\[sql\]"
    ):
        read_ratings(shop, table="events")


def test_lists_histories_and_documents(shop: Path) -> None:
    assert read_ids(f"{shop}::items", "item") == [10, 20]
    from recsys.data.columns import Request

    history = read_history(f"{shop}::events", Request(), Ids([10, 20], "item"))
    assert sorted(history["item"].to_list()) == [10, 20, 20]
    documents = Documents(shop, query="select sku as id, title as text from items")
    assert [batch.texts for batch in documents] == [["Tea", "Cup"]]
    assert documents.decision.endswith("(query): SQLite, text = text, id = id")
    named = Documents(f"{shop}::items", text_col="title")
    assert [batch.ids for batch in named] == [[10, 20]]


def test_a_query_with_a_password_is_not_quoted(shop: Path) -> None:
    query = "SELECT * FROM dblink('host=h password=s3cret') AS events"
    with pytest.raises(
        DataError, match="the query cannot be read: the driver's message"
    ) as caught:
        read_ratings(shop, query=query)
    assert "s3cret" not in str(caught.value)


def test_a_table_in_the_database_of_the_ratings_is_remembered_by_name(
    postgres: str, run: Callable[[str], None]
) -> None:
    run(
        f"CREATE TABLE events ({COLUMNS}); INSERT INTO events VALUES {values(EVENTS)};"
        "CREATE TABLE items AS SELECT 10 AS sku, 'Tea' AS title"
    )
    ratings = read_ratings(
        f"{postgres}::events", item_table=f"{postgres}::items", item="item_id"
    )
    assert ratings.source is not None
    assert ratings.source.options["item_table"] == "items"
    other = read_ratings(f"{postgres}::events", item_table="items")
    assert other.titles is not None


@pytest.mark.parametrize(
    "text", ["postgresql:/recs", "sqlite:orders.db", "duckdb://events.duckdb"]
)
def test_an_address_without_all_its_slashes(text: str) -> None:
    with pytest.raises(
        DataError, match=r"is not the address of a database; write \w+://"
    ):
        parse_address(text)


@pytest.mark.parametrize("type_", ["timestamptz", "timestamp", "date"])
@pytest.mark.parametrize("far", ["infinity", "-infinity", "9999-12-31"])
def test_a_time_that_never_comes(
    postgres: str, run: Callable[[str], None], type_: str, far: str
) -> None:
    run(
        f"CREATE TABLE visits (u int, i int, at {type_});"
        "INSERT INTO visits SELECT n, n % 3, date '2025-06-01' + n FROM generate_series(1, 9) n;"
        f"INSERT INTO visits VALUES (1, 2, '{far}'), (2, 3, '2025-06-12')"
    )
    ratings = read_ratings(f"{postgres}::visits", user="u", item="i", timestamp="at")
    assert ratings.timestamps is not None
    assert ratings.timestamps.min() == 1_748_822_400
    assert ratings.timestamps.max() == 1_749_686_400
    left_out = '1 row left out whose time means "never" ('
    assert left_out in str(ratings.source)
    assert ", row 10: " in str(ratings.source)


@pytest.mark.parametrize("type_", ["timestamptz", "timestamp", "date"])
def test_items_that_are_offered_for_ever_and_ids_with_blanks(
    postgres: str, run: Callable[[str], None], type_: str
) -> None:
    run(
        f"CREATE TABLE goods (sku char(6), until {type_}, since {type_}, price real);"
        "INSERT INTO goods VALUES ('a1', 'infinity', '-infinity', 2),"
        " ('b2', '2026-02-03', NULL, 3);"
        "CREATE TABLE sold (customer int, sku varchar(6));"
        "INSERT INTO sold VALUES (1, 'a1'), (1, 'b2'), (2, 'a1')"
    )
    ratings = read_ratings(f"{postgres}::sold", item_table=f"{postgres}::goods")
    table = ratings.item_table
    assert table is not None
    assert table.frame["item"].to_list() == ["a1", "b2"]
    met = [
        rows_where(condition, ratings).tolist()
        for condition in ("until > '2026-03-01'", "since < '1990-01-01'")
    ]
    assert met == [[True, False], [True, False]]


def test_bytes_in_a_column_are_shown_as_such(tmp_path):
    with closing(sqlite3.connect(tmp_path / "shop.db")) as base, base:
        base.execute("CREATE TABLE r (user, item, rating, time, mark)")
        rows = [(1, 2, 3.0, 1_700_000_000, 4.0), (2, 2, 4.0, b"late", b"five")]
        base.executemany("INSERT INTO r VALUES (?, ?, ?, ?, ?)", rows)
    source = str(read_ratings(f"{tmp_path}/shop.db::r").source)
    assert "time not used ('bytes' is not a time that can be read" in source
    with pytest.raises(DataError, match=r"Ratings must be numbers; .* CAST the column"):
        read_ratings(f"{tmp_path}/shop.db::r", rating="mark")

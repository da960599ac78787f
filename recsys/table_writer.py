"""Atomic writing of database tables: readers see either all old rows or all new rows.

Frames are written to a staging table. Then the rows of the table are deleted and the new ones
inserted in one transaction, so that the table keeps its types, rights, indexes and views. An
interrupted writer changes nothing that others see. In PostgreSQL, the staging table is temporary;
for SQLite and DuckDB it is a temporary file, and the database is locked for the last step only.
"""

from __future__ import annotations

import os
import re
import sqlite3
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from tempfile import TemporaryFile
from typing import Any, Literal, Self, TypeAlias, cast

import polars as pl

from recsys.addresses import located
from recsys.data.frames import FrameLike, to_polars
from recsys.database import (
    Address,
    Database,
    failures,
    open_database,
    parse_address,
    quoted,
)
from recsys.errors import DataError

IfExists: TypeAlias = Literal["fail", "replace", "append"]
"""Treatment of an existing table: raise an error, replace its rows, or append new rows."""


def write_table(
    address: str,
    frames: FrameLike | Iterable[FrameLike],
    *,
    table: str | None = None,
    if_exists: IfExists = "fail",
) -> int:
    """Write one or several frames to a table of PostgreSQL, SQLite or DuckDB.

    The table is changed atomically: readers see the old rows until all new rows are written, also
    if the writer is killed. A replaced table keeps its types, rights, indexes and views.

    Parameters
    ----------
    address : str
        ``"postgresql://user@host/db"``, ``"recs.db::recs"`` (SQLite) or ``"recs.duckdb::recs"``.
        Keep passwords in ``PGPASSWORD`` or ``~/.pgpass``.
    frames : frame, or iterable of frames
        Frames of polars, pandas or any library with Arrow streams. Only one frame of an iterable is
        in memory at a time.
    table : str, optional
        Name of the table, optionally with a schema, if the address does not end in ``::NAME``.
    if_exists : {"fail", "replace", "append"}
        For an existing table: raise an error, replace its rows, or append the new rows.

    Returns
    -------
    int
        Number of rows written.

    Raises
    ------
    DataError
        If the address does not name a table, the driver is not installed, the database cannot be
        reached or written to, or the table exists (with ``if_exists="fail"``), lacks a column of
        the frames or has a column that cannot store the values.

    Examples
    --------
    >>> import polars as pl, recsys
    >>> recommendations = pl.DataFrame({"user": [1, 1], "item": [20, 10], "rank": [1, 2]})
    >>> recsys.write_table("shop.db::recs", recommendations)  # doctest: +SKIP
    2
    """
    parsed = parse_address(address, table)
    if parsed is None:
        raise DataError(
            f"{located(address)} is not the address of a table, such as postgresql://user@host/db "
            "with table=NAME, shop.db::NAME (SQLite) or shop.duckdb::NAME."
        )
    several = cast("Iterable[FrameLike]", frames)
    if isinstance(frames, pl.LazyFrame) or hasattr(frames, "__arrow_c_stream__"):
        several = [cast("FrameLike", frames)]
    with table_writer(parsed, if_exists) as writer:
        for frame in several:
            writer.write(to_polars(frame))
    return writer.rows


def table_writer(address: Address, if_exists: IfExists = "fail") -> TableWriter:
    """Return a writer of the table at `address`, a context manager.

    Raises
    ------
    DataError
        If the address does not name a table, or `if_exists` is unknown.
    """
    if not address.table:
        raise DataError(
            f"{address} needs the name of a table: --table NAME, or ::NAME at its end."
        )
    if if_exists not in ("fail", "replace", "append"):
        raise DataError(
            f"if_exists must be fail, replace or append; got {if_exists!r}."
        )
    writers: dict[str, Callable[[Address, IfExists], TableWriter]] = {
        "postgresql": _PostgreSQL,
        "sqlite": _SQLite,
        "duckdb": _DuckDB,
    }
    return writers[address.kind](address, if_exists)


class TableWriter(ABC):
    """Writer of a table, frame by frame; the table changes when the context ends.

    Nothing changes if the context ends with an exception or without a frame. Entering the context
    connects to the database, and raises the errors that do not depend on the rows.

    Attributes
    ----------
    rows : int
        Number of rows written so far.
    on_wait : callable
        Called before waiting for another process that has locked the table or its file.
    comment : str
        Comment on the table, set with its rows; SQLite has none.
    optional : set of str
        Columns to leave out if the table exists and does not have them.
    """

    _vector_type = "real[{}]"

    def __init__(self, address: Address, if_exists: IfExists) -> None:
        self.address = address
        self.if_exists = if_exists
        self.on_wait: Callable[[], None] = lambda: None
        self.optional: Collection[str] = ()
        self.rows = 0
        self.comment = ""
        self._table = address.table or ""
        self._schema: dict[str, pl.DataType] = {}
        # Types of the columns of an existing table; None for texts
        self._existing: dict[str, str | None] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(failures(self.address, write=True))
            self._open(stack)
            if self._existing and self.if_exists == "fail":
                raise DataError(
                    f"{self.address} exists already; use --if-exists append, or --if-exists "
                    'replace (--force); in Python, if_exists="append" or "replace".'
                )
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        if error[0] is None and self._schema:
            with self._stack:
                self._put_in_place()
        else:
            self._stack.__exit__(*error)

    def write(self, frame: pl.DataFrame) -> None:
        """Write the rows of a frame; the first frame, even an empty one, determines the columns.

        Raises
        ------
        DataError
            If the table lacks one of the columns, or the type of a column cannot be stored.
        """
        if not self._schema:
            schema = {series.name: _stored(series, self.address) for series in frame}
            if self._existing:
                for name in {*self.optional}.difference(self._existing):
                    schema.pop(name, None)
            self.check_columns(schema)
            self._check_dimensions(schema)
            self._schema = schema
            self._create()
        self._stage(
            frame.select(pl.col(name).cast(t) for name, t in self._schema.items())
        )
        self.rows += len(frame)

    def check_columns(self, names: Iterable[str]) -> None:
        """Check that an existing table has columns with these names.

        Raises
        ------
        DataError
        """
        missing = [name for name in names if name not in self._existing]
        if self._existing and missing:
            raise DataError(
                f"{self.address} has the columns {', '.join(self._existing)}, but not "
                f"{missing[0]!r}; add it, drop the table, or write to another one. "
                "Lists can be written with other columns: --columns item=sku,score."
            )

    def _check_dimensions(self, schema: Mapping[str, pl.DataType]) -> None:
        """Check that vectors have the dimension that an existing table has."""
        for name, dtype in schema.items():
            dimension = _DIMENSION.fullmatch(self._existing.get(name) or "")
            if dimension is None or not isinstance(dtype, pl.Array):
                continue
            if int(dimension[1]) != dtype.size:
                raise DataError(
                    f"{self.address} has vectors of {dimension[1]} dimensions in the column "
                    f"{name!r}; got {dtype.size}. Drop the table, or write to another one."
                )

    def _steps(self, table: str, rows: str) -> list[str]:
        """Return the statements that replace the rows of a table, or append to it, by `rows`."""
        names = ", ".join(map(quoted, self._schema))
        values = ", ".join(map(self._value, self._schema))
        steps = []
        if not self._existing:
            # Another process may have created the table in the meantime.
            exists = "" if self.if_exists == "fail" else "IF NOT EXISTS "
            steps.append(f"CREATE TABLE {exists}{table} ({self._definition()})")
        if self.if_exists == "replace":
            steps.append(f"DELETE FROM {table}")
        steps.append(f"INSERT INTO {table} ({names}) SELECT {values} FROM {rows}")
        if self.comment:
            text = self.comment.replace("'", "''")
            steps.append(f"COMMENT ON TABLE {table} IS '{text}'")
        return steps

    def _value(self, name: str) -> str:
        """Return the SQL of a staged column as the table stores it."""
        return quoted(name)

    def _definition(self) -> str:
        """Return the column definitions for `CREATE TABLE`."""
        columns = [
            f"{quoted(name)} {self._sql_type(t)}" for name, t in self._schema.items()
        ]
        return ", ".join(columns)

    def _sql_type(self, dtype: pl.DataType) -> str:
        """Return the SQL type of a column."""
        if isinstance(dtype, pl.Datetime):
            return f"timestamp {'without' if dtype.time_zone is None else 'with'} time zone"
        if isinstance(dtype, pl.Array):
            return self._vector_type.format(dtype.size)
        return _SQL_TYPES[dtype.base_type()]

    @abstractmethod
    def _open(self, stack: ExitStack) -> None:
        """Connect, and set `_existing`."""

    @abstractmethod
    def _create(self) -> None:
        """Create the staging table for the columns of `_schema`."""

    @abstractmethod
    def _stage(self, frame: pl.DataFrame) -> None:
        """Append rows to the staging table."""

    @abstractmethod
    def _put_in_place(self) -> None:
        """Replace the rows of the table in one transaction."""


_STORED: dict[Any, Any] = {
    **{same: same for same in (pl.Boolean, pl.Float32, pl.Float64, pl.Date)},
    **dict.fromkeys((pl.Int8, pl.Int16, pl.Int32, pl.UInt8, pl.UInt16), pl.Int32),
    **dict.fromkeys((pl.Int64, pl.UInt32, pl.UInt64), pl.Int64),
    **dict.fromkeys((pl.String, pl.Categorical, pl.Enum, pl.Null), pl.String),
    pl.Decimal: pl.Float64,
}
_SQL_TYPES: dict[Any, str] = {
    pl.Boolean: "boolean",
    pl.Int32: "integer",
    pl.Int64: "bigint",
    pl.Float32: "real",
    pl.Float64: "double precision",
    pl.Date: "date",
    pl.String: "text",
}


def _stored(series: pl.Series, address: Address) -> pl.DataType:
    """Return the type in which a column is stored, one of the few that databases share."""
    if isinstance(series.dtype, pl.Datetime):
        return pl.Datetime("us", series.dtype.time_zone)
    if isinstance(series.dtype, pl.Array) and address.kind != "sqlite":
        return pl.Array(pl.Float32, series.dtype.size)
    try:
        stored: pl.DataType = _STORED[series.dtype.base_type()]()
    except KeyError:
        raise DataError(
            f"{address} cannot store column {series.name!r} of type {series.dtype}; "
            "numbers, booleans, dates, times and texts are possible, and vectors in PostgreSQL "
            "and DuckDB."
        ) from None
    return stored


class _PostgreSQL(TableWriter):
    """Writer by COPY into a temporary table, in one transaction."""

    def _open(self, stack: ExitStack) -> None:
        database = stack.enter_context(open_database(self.address, write=True))
        self._database = database
        self._connection = database.connection
        self._cursor = stack.enter_context(database.connection.cursor())
        schema, _, name = self._table.rpartition(".")
        self._name = f"{quoted(schema)}.{quoted(name)}" if schema else quoted(name)
        texts = {
            "table": self._name.replace("'", "''"),
            "schema": schema.replace("'", "''"),
        }
        facts = database.rows(_FACTS.format(**texts))
        if not facts:
            raise DataError(f"{self.address}: there is no schema {schema!r}.")
        namespace, may_create, kind, may_insert, may_delete, has_pgvector = facts[0]
        self._has_pgvector = has_pgvector
        if kind is None:
            if not may_create:
                raise DataError(
                    f"{self.address}: {_MAY_NOT} create tables in {namespace}."
                )
            return
        if kind not in ("r", "p"):
            raise DataError(
                f"{self.address} is not a table but a view; write to another name."
            )
        if self.if_exists != "fail" and not may_insert:
            raise DataError(f"{self.address}: {_MAY_NOT} insert rows.")
        if self.if_exists == "replace" and not may_delete:
            raise DataError(
                f"{self.address}: {_MAY_NOT} delete rows. Replacing rows needs that right."
            )
        self._existing = dict(database.rows(_COLUMNS.format(**texts)))

    def _value(self, name: str) -> str:
        # Texts become ids of type uuid, or values of an enum, by a cast only.
        target = self._existing.get(name)
        if target is not None and self._schema[name] == pl.String:
            return f"CAST({quoted(name)} AS {target})"
        return quoted(name)

    def _create(self) -> None:
        # A temporary table needs neither the right to create nor the log of the server.
        self._staging = f"staging_{os.urandom(4).hex()}"
        definition = self._definition()
        self._cursor.execute(
            f"CREATE TEMP TABLE {quoted(self._staging)} ({definition}) ON COMMIT DROP"
        )
        # Arrays are staged, which become vectors of pgvector in the table.
        if self._has_pgvector:
            self._vector_type = "vector({})"

    def _stage(self, frame: pl.DataFrame) -> None:
        self._cursor.adbc_ingest(self._staging, frame, mode="append", temporary=True)

    def _put_in_place(self) -> None:
        steps = self._steps(self._name, quoted(self._staging))
        if self._existing and self.if_exists == "replace":
            # Blocks other writers, but not readers.
            lock = f"LOCK TABLE {self._name} IN SHARE ROW EXCLUSIVE MODE"
            steps.insert(0, lock)
        self._patiently(steps)
        self._connection.commit()

    def _patiently(self, steps: Sequence[str]) -> None:
        """Execute statements, all of them again while other transactions hold locks.

        Whoever needs the table after this transaction waits for it as long as it waits itself. So
        it stops soon, and tries again after a pause in which others are served.

        Raises
        ------
        DataError
            If another transaction does not end.
        """
        last = time.monotonic() + _LONG_PATIENCE
        pause = _AT_ONCE
        self._cursor.execute(f"SET LOCAL lock_timeout = {1000 * _AT_ONCE:.0f}")
        # An error would end the transaction, and the staged rows with it.
        block = _UNLESS_LOCKED.format(tag=self._staging, steps="; ".join(steps))
        while True:
            self._cursor.execute(block)
            ((outcome,),) = self._database.rows(_OUTCOME)
            if outcome == "done":
                return
            if time.monotonic() + pause > last:
                raise DataError(
                    f"{self.address} cannot be written: another transaction has locked it for "
                    f"{_LONG_PATIENCE / 60:.0f} minutes."
                )
            if pause == _AT_ONCE:
                self.on_wait()
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)


# One line: messages of the driver quote it in front of the reason. Two transactions that create
# one table violate a constraint of the catalogue, or find the type of its rows.
_UNLESS_LOCKED = (
    "DO ${tag}$ BEGIN {steps}; PERFORM set_config('recsys.outcome', 'done', true); "
    "EXCEPTION WHEN lock_not_available OR deadlock_detected OR duplicate_object THEN "
    "PERFORM set_config('recsys.outcome', 'locked', true); "
    "WHEN unique_violation THEN IF position('\"pg_' IN SQLERRM) = 0 THEN RAISE; END IF; "
    "PERFORM set_config('recsys.outcome', 'locked', true); END ${tag}$"
)
_OUTCOME = "SELECT current_setting('recsys.outcome')"
# Arrays of PostgreSQL take vectors of any dimension.
_DIMENSION = re.compile(r"(?:vector\(|FLOAT\[)(\d+)[])]")
_MAY_NOT = "the role of this connection may not"
# Schema of a table, rights on both, and kind.
_FACTS = """
SELECT n.nspname::text, has_schema_privilege(n.oid, 'CREATE'), c.relkind::text,
    has_table_privilege(c.oid, 'INSERT'), has_table_privilege(c.oid, 'DELETE'),
    to_regtype('vector') IS NOT NULL
FROM (SELECT to_regclass('{table}')::oid AS oid) AS t LEFT JOIN pg_class c USING (oid)
JOIN pg_namespace n ON n.oid = coalesce(c.relnamespace, to_regnamespace(
    quote_ident(coalesce(nullif('{schema}', ''), current_schema()::text))))
"""
# Names, and types to which texts are cast: not texts, which a cast would shorten in silence.
_COLUMNS = """
SELECT attname::text,
    CASE WHEN typcategory <> 'S' THEN format_type(atttypid, atttypmod)::text END
FROM pg_attribute JOIN pg_type t ON t.oid = atttypid
WHERE attrelid = to_regclass('{table}') AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""


class _Embedded(TableWriter):
    """Writer by a temporary file; the database is locked for the last step only."""

    def _open(self, stack: ExitStack) -> None:
        path = self.address.path
        if not path.parent.is_dir():
            raise DataError(
                f"Cannot write {path}: there is no directory {path.parent}."
            )
        if not path.exists():
            return
        if not os.access(path, os.W_OK):
            raise DataError(f"Cannot write {path}: permission denied.")
        if self._look_up():
            raise DataError(
                f"{self.address} is not a table but a view; write to another name."
            )

    @abstractmethod
    def _look_up(self) -> bool:
        """Set `_existing`; return whether a view has the name."""


class _SQLite(_Embedded):
    """Writer with the rows staged in a temporary database of SQLite, an unnamed file."""

    def _look_up(self) -> bool:
        uri = f"{self.address.path.resolve().as_uri()}?mode=rw"  # "rw" can finish a rollback
        with closing(sqlite3.connect(uri, uri=True, timeout=_PATIENCE)) as connection:
            self._patiently(connection, "PRAGMA schema_version")
            columns = connection.execute(
                f"PRAGMA table_info({quoted(self._table)})"
            ).fetchall()
            views = connection.execute(_SQLITE_VIEWS, (self._table,)).fetchall()
        self._existing = {name: dtype for _, name, dtype, *_ in columns}
        return bool(views)

    def _sql_type(self, dtype: pl.DataType) -> str:
        if dtype.is_float():
            return "REAL"
        return "INTEGER" if dtype.is_integer() or dtype == pl.Boolean else "TEXT"

    def _create(self) -> None:
        connection = sqlite3.connect("", isolation_level=None, timeout=_PATIENCE)
        self._rows = self._stack.enter_context(closing(connection))
        self._rows.execute("PRAGMA main.synchronous = OFF")
        self._rows.execute(f"CREATE TABLE staging ({self._definition()})")

    def _stage(self, frame: pl.DataFrame) -> None:
        texts = frame.with_columns(pl.col(pl.Date, pl.Datetime).cast(pl.String))
        marks = ", ".join("?" * frame.width)
        self._rows.execute("BEGIN")
        rows = texts.iter_rows(buffer_size=10_000)
        self._rows.executemany(f"INSERT INTO staging VALUES ({marks})", rows)
        self._rows.execute("COMMIT")

    def _put_in_place(self) -> None:
        table = f"target.{quoted(self._table)}"
        path = self.address.path
        is_new = not path.exists()
        self._patiently(self._rows, "ATTACH ? AS target", self.address.place)
        try:
            self._patiently(self._rows, "BEGIN IMMEDIATE")
            for step in (*self._steps(table, "main.staging"), "COMMIT"):
                self._rows.execute(step)
        except (
            BaseException
        ):  # a full disk leaves a journal; reopening rolls the change back
            self._rows.close()
            with suppress(sqlite3.Error), closing(sqlite3.connect(path)) as connection:
                connection.execute("PRAGMA schema_version")
            if is_new and path.exists() and not path.stat().st_size:
                path.unlink()
            raise

    def _patiently(
        self,
        connection: sqlite3.Connection,
        statement: str,
        *values: str,
    ) -> None:
        """Execute a statement; say so before waiting for others that have locked the database."""
        for seconds in (_AT_ONCE, _PATIENCE):
            connection.execute(f"PRAGMA busy_timeout = {1000 * seconds:.0f}")
            try:
                connection.execute(statement, values)
                break
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or seconds == _PATIENCE:
                    raise
                self.on_wait()
        connection.execute(f"PRAGMA busy_timeout = {1000 * _PATIENCE:.0f}")


_PATIENCE = 60.0  # seconds to wait for the lock of another process
_BRIEF_PATIENCE = 5.0
_LONG_PATIENCE = 600.0  # seconds to wait for transactions of a server
_LONGEST_PAUSE = 15.0  # seconds between attempts
_AT_ONCE = 0.5  # seconds too short to report
_SQLITE_VIEWS = """
SELECT name FROM sqlite_master WHERE type = 'view' AND lower(name) = lower(?)
"""


class _DuckDB(_Embedded):
    """Writer with the rows staged as an Arrow stream in an unnamed temporary file."""

    def _look_up(self) -> bool:
        schema, _, name = self._table.rpartition(".")
        names = {"schema": schema or "main", "name": name}
        with ExitStack() as stack:
            # Another job may look at its own table, which is soon over.
            connection = self._unlocked(stack, _BRIEF_PATIENCE).connection
            columns = connection.execute(_DUCKDB_COLUMNS, names).fetchall()
            views = connection.execute(_DUCKDB_VIEWS, names).fetchall()
        self._existing = dict(columns)
        return bool(views)

    def _create(self) -> None:
        from pyarrow import ipc

        folder = (
            self.address.path.resolve().parent
        )  # the disk that needs the space anyway
        self._file = self._stack.enter_context(TemporaryFile(dir=folder))  # noqa: SIM115
        schema = pl.DataFrame(schema=self._schema).to_arrow().schema
        self._stream = self._stack.enter_context(ipc.new_stream(self._file, schema))

    def _stage(self, frame: pl.DataFrame) -> None:
        self._stream.write_table(frame.to_arrow())

    def _put_in_place(self) -> None:
        from pyarrow import ipc

        self._stream.close()
        self._file.seek(0)
        table = ".".join(map(quoted, self._table.split(".")))
        connection = self._unlocked(self._stack, _PATIENCE).connection
        connection.register("staging", ipc.open_stream(self._file))
        for step in ("BEGIN", *self._steps(table, "staging"), "COMMIT"):
            connection.execute(step)

    def _unlocked(self, stack: ExitStack, patience: float) -> Database:
        """Open the database until `stack` is closed, waiting for other processes."""
        last = time.monotonic() + patience
        is_waiting = False
        while True:
            try:
                return stack.enter_context(open_database(self.address, write=True))
            except DataError as error:
                if "lock" not in str(error) or time.monotonic() > last:
                    raise
                if not is_waiting:
                    self.on_wait()
                is_waiting = True
                time.sleep(0.1)


_DUCKDB_COLUMNS = """
SELECT column_name, data_type FROM duckdb_columns()
WHERE schema_name = $schema AND table_name = $name ORDER BY column_index
"""
_DUCKDB_VIEWS = """
SELECT view_name FROM duckdb_views() WHERE schema_name = $schema AND view_name = $name
"""

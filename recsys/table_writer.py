"""Atomic writing of database tables: readers see either all old rows or all new rows.

Frames are written to a staging table, which replaces the table in one transaction at the end. An
interrupted writer changes nothing that others see. In PostgreSQL, the staging table is created in
the same transaction, so it disappears as well. For SQLite and DuckDB it is a temporary file, and
the database is locked for the last step only.

A replaced table keeps its types, rights, indexes and views, in one of three ways:

- If nothing depends on the table, it is dropped and created anew. In PostgreSQL, the staging table
  is renamed, which takes no time.
- In PostgreSQL, the staging table is created like the table, indexed after the rows are written,
  and renamed. This requires that the table has only indexes, primary and unique keys, checks,
  defaults or rights, that the role of the connection owns it, and that column types are the same.
- Otherwise (views, foreign keys, triggers, policies, partitions, other types), rows are deleted and
  inserted in one transaction, which blocks other writers, but not readers of PostgreSQL. With an
  index this takes several times as long.
"""

from __future__ import annotations

import os
import sqlite3
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
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
    is_one = isinstance(frames, pl.LazyFrame) or hasattr(frames, "__arrow_c_stream__")
    each: Iterable[FrameLike] = cast("Any", [frames] if is_one else frames)
    with table_writer(parsed, if_exists) as writer:
        for frame in each:
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
    if address.kind == "postgresql":
        return _PostgreSQL(address, if_exists)
    return (_SQLite if address.kind == "sqlite" else _DuckDB)(address, if_exists)


class TableWriter(ABC):
    """Writer of a table, frame by frame; the table is replaced when the context ends.

    Nothing changes if the context ends with an exception or without a frame. Entering the context
    connects to the database, and raises the errors that do not depend on the rows.

    Attributes
    ----------
    rows : int
        Number of rows written so far.
    on_wait : callable
        Called before waiting for another process that has locked a file of SQLite or DuckDB.
    """

    def __init__(self, address: Address, if_exists: IfExists) -> None:
        self.address, self.if_exists = address, if_exists
        self.on_wait: Callable[[], None] = lambda: None
        self.rows = 0
        self._table = address.table or ""
        self._schema: dict[str, pl.DataType] = {}
        self._types: dict[str, str] = {}  # SQL types
        self._existing: dict[str, str] = {}  # columns and types of an existing table
        self._is_built_on = False  # the table has rights, indexes, views, ... to keep
        self._keeps = False  # the rows are written to the existing table
        self._held = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as held:
            held.enter_context(failures(self.address, write=True))
            self._open(held)
            if self._existing and self.if_exists == "fail":
                raise DataError(
                    f"{self.address} exists already; use --if-exists append, or --if-exists "
                    'replace (--force); in Python, if_exists="append" or "replace".'
                )
            self._held = held.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        if error[0] is None and self._schema:
            with self._held:
                self._put_in_place()
        else:
            self._held.__exit__(*error)

    def write(self, frame: pl.DataFrame) -> None:
        """Write the rows of a frame; the first frame, even an empty one, determines the columns.

        Raises
        ------
        DataError
            If the table lacks one of the columns, or the type of a column cannot be stored.
        """
        if not self._schema:
            self._schema = {
                series.name: _stored(series, self.address) for series in frame
            }
            self._types = {name: self._sql_type(t) for name, t in self._schema.items()}
            missing = [name for name in self._schema if name not in self._existing]
            self._keeps = bool(self._existing) and (
                self.if_exists == "append"
                or self._is_built_on
                or not (missing or self._is_ours())
            )
            if self._keeps and missing:
                raise DataError(
                    f"{self.address} has the columns {', '.join(self._existing)}, but not "
                    f"{missing[0]!r}; add it, or write to another table."
                )
            self._create()
        self._stage(
            frame.select(pl.col(name).cast(t) for name, t in self._schema.items())
        )
        self.rows += len(frame)

    def _is_ours(self) -> bool:
        """Return whether a new table would have the definition of the existing one."""
        return False

    def _definition(self) -> str:
        """Return the column definitions for `CREATE TABLE`."""
        return ", ".join(f"{quoted(name)} {kind}" for name, kind in self._types.items())

    def _sql_type(self, dtype: pl.DataType) -> str:
        """Return the SQL type of a column."""
        if isinstance(dtype, pl.Datetime):
            return f"timestamp {'without' if dtype.time_zone is None else 'with'} time zone"
        return _SQL_TYPES[dtype.base_type()]

    @abstractmethod
    def _open(self, held: ExitStack) -> None:
        """Connect, and set `_existing` and `_is_built_on`."""

    @abstractmethod
    def _create(self) -> None:
        """Create the staging table for the columns of `_schema`."""

    @abstractmethod
    def _stage(self, frame: pl.DataFrame) -> None:
        """Append rows to the staging table."""

    @abstractmethod
    def _put_in_place(self) -> None:
        """Replace the table, or its rows, in one transaction."""


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
    try:
        stored: pl.DataType = _STORED[series.dtype.base_type()]()
    except KeyError:
        raise DataError(
            f"{address} cannot store column {series.name!r} of type {series.dtype}; "
            "numbers, booleans, dates, times and texts are possible."
        ) from None
    return stored


class _PostgreSQL(TableWriter):
    """Writer by COPY into a staging table, in one transaction; a lost connection rolls it back."""

    def _open(self, held: ExitStack) -> None:
        database = held.enter_context(open_database(self.address, write=True))
        self._commit, self._database = database.connection.commit, database
        self._cursor = held.enter_context(database.connection.cursor())
        schema, _, name = self._table.rpartition(".")
        self._name = name
        literal = self._qualified(schema, self._name).replace("'", "''")
        facts = database.rows(
            _FACTS.format(table=literal, schema=schema.replace("'", "''"))
        )
        if not facts:
            raise DataError(f"{self.address}: there is no schema {schema!r}.")
        (
            (
                self._namespace,
                may_create,
                kind,
                may_insert,
                may_delete,
                may_drop,
                built_on,
            ),
            *_,
        ) = facts
        role = "the role of this connection may not"
        if kind is None and not may_create:
            raise DataError(
                f"{self.address}: {role} create tables in {self._namespace}."
            )
        if kind is not None and kind not in ("r", "p"):
            raise DataError(
                f"{self.address} is not a table but a view; write to another name."
            )
        if kind and self.if_exists != "fail" and not may_insert:
            raise DataError(f"{self.address}: {role} insert rows.")
        if kind and self.if_exists == "replace" and not may_delete:
            raise DataError(
                f"{self.address}: {role} delete rows, which replacing them needs."
            )
        self._is_built_on = built_on or not (may_drop and may_create)
        self._existing = (
            dict(database.rows(_COLUMNS.format(table=literal))) if kind else {}
        )
        copied = database.rows(_CAN_BE_COPIED.format(table=literal)) if kind else []
        self._can_be_copied = bool(copied) and may_create

    @staticmethod
    def _qualified(schema: str, name: str) -> str:
        return f"{quoted(schema)}.{quoted(name)}" if schema else quoted(name)

    def _is_ours(self) -> bool:
        return self._types == self._existing

    def _create(self) -> None:
        self._new = f"{self._name[:40]}__{os.urandom(4).hex()}"
        columns = self._definition()
        self._is_alike = (
            self._can_be_copied and self._types.items() <= self._existing.items()
        )
        if self._keeps and self._is_alike and self.if_exists == "replace":
            self._keeps = False
            old = self._qualified(self._namespace, self._name)
            columns = f"LIKE {old} INCLUDING ALL EXCLUDING INDEXES"
        if self._keeps:  # temporary tables need neither the right to create nor the WAL
            create = f"CREATE TEMP TABLE {quoted(self._new)} ({columns}) ON COMMIT DROP"
        else:
            create = f"CREATE TABLE {self._qualified(self._namespace, self._new)} ({columns})"
        self._cursor.execute(create)

    def _stage(self, frame: pl.DataFrame) -> None:
        place = (
            {"temporary": True} if self._keeps else {"db_schema_name": self._namespace}
        )
        self._cursor.adbc_ingest(self._new, frame, mode="append", **place)

    def _put_in_place(self) -> None:
        table = self._qualified(self._namespace, self._name)
        new = self._qualified("" if self._keeps else self._namespace, self._new)
        steps = []
        if self._keeps:
            if self.if_exists == "replace":  # blocks other writers, but not readers
                steps += [
                    f"LOCK TABLE {table} IN SHARE ROW EXCLUSIVE MODE",
                    f"DELETE FROM {table}",
                ]
            names = ", ".join(map(quoted, self._schema))
            steps.append(f"INSERT INTO {table} ({names}) SELECT {names} FROM {new}")
        else:
            before, after = self._parts(new) if self._is_alike else ([], [])
            # also a table that another has just created
            replaces = self.if_exists == "replace"
            steps += [*before, f"DROP TABLE IF EXISTS {table}"] if replaces else []
            steps += [f"ALTER TABLE {new} RENAME TO {quoted(self._name)}", *after]
        for step in steps:
            self._cursor.execute(step)
        self._commit()

    def _parts(self, new: str) -> tuple[list[str], list[str]]:
        """Return SQL that copies indexes and rights to `new`, before and after the table's drop."""
        place = self._qualified(self._namespace, self._name)
        literal = place.replace("'", "''")
        before, after = [], []
        for number, row in enumerate(
            self._database.rows(_INDEXES.format(table=literal))
        ):
            name, is_unique, definition, constraint = row
            own = f"{self._new}_{number}"
            kind = "UNIQUE INDEX" if is_unique else "INDEX"
            before.append(f"CREATE {kind} {quoted(own)} ON {new} {definition}")
            index = self._qualified(self._namespace, own)
            rename = f"ALTER INDEX {index} RENAME TO {quoted(name)}"
            if constraint is not None:
                key = f"{quoted(name)} {constraint} USING INDEX {quoted(own)}"
                rename = f"ALTER TABLE {place} ADD CONSTRAINT {key}"
            after.append(rename)
        rights = self._database.rows(_RIGHTS.format(table=literal))
        before += [f"REVOKE ALL ON {new} FROM CURRENT_USER"] if rights else []
        before += [f"GRANT {right} ON {new} TO {role}" for right, role in rights]
        return before, after


# Schema of a table, rights on both, kind, and whether dropping it would lose anything: dependent
# objects (views, indexes, constraints, defaults, triggers, policies), rights or a comment.
_FACTS = """
SELECT n.nspname::text, has_schema_privilege(n.oid, 'CREATE'), c.relkind::text,
    has_table_privilege(c.oid, 'INSERT'), has_table_privilege(c.oid, 'DELETE'),
    pg_has_role(c.relowner, 'USAGE'),
    c.relkind <> 'r' OR c.relacl IS NOT NULL OR c.relispartition OR c.relhassubclass
        OR EXISTS (SELECT FROM pg_depend d WHERE d.refclassid = 'pg_class'::regclass
                   AND d.refobjid = c.oid AND d.deptype IN ('n', 'a'))
        OR EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0
                   AND (a.attnotnull OR a.attacl IS NOT NULL))
        OR EXISTS (SELECT FROM pg_description t WHERE t.classoid = 'pg_class'::regclass
                   AND t.objoid = c.oid)
FROM (SELECT to_regclass('{table}')::oid AS oid) AS found
LEFT JOIN pg_class c ON c.oid = found.oid
JOIN pg_namespace n ON n.oid = coalesce(
    c.relnamespace, to_regnamespace(coalesce(quote_ident(nullif('{schema}', '')),
                                             quote_ident(current_schema()::text))))
"""
# One row if only keys, checks, defaults and indexes, which can be copied, depend on a table.
_CAN_BE_COPIED = """
SELECT 1 FROM pg_class c WHERE c.oid = to_regclass('{table}') AND c.relkind = 'r'
    AND c.relowner = (SELECT oid FROM pg_roles WHERE rolname = current_user)
    AND c.relpersistence = 'p' AND c.reltablespace = 0 AND c.reloptions IS NULL
    AND c.relreplident = 'd' AND NOT (c.relispartition OR c.relhassubclass OR c.relrowsecurity)
    AND NOT EXISTS (SELECT FROM pg_inherits WHERE inhrelid = c.oid)
    AND NOT EXISTS (SELECT FROM pg_default_acl)
    AND NOT EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0
                    AND (a.attidentity <> '' OR a.attacl IS NOT NULL))
    AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.deptype IN ('n', 'a')
                    AND (d.refobjid IN (c.oid, c.reltype)
                         OR d.refobjid = (SELECT typarray FROM pg_type t WHERE t.oid = c.reltype))
                    AND d.classid <> 'pg_attrdef'::regclass
                    AND NOT EXISTS (SELECT FROM pg_index x WHERE x.indexrelid = d.objid
                                    AND x.indisvalid AND NOT x.indisclustered)
                    AND NOT EXISTS (SELECT FROM pg_constraint k WHERE k.oid = d.objid
                                    AND k.contype IN ('p', 'u', 'c', 'n') AND NOT k.condeferrable))
    AND NOT EXISTS (SELECT FROM pg_description t WHERE t.objsubid = 0
                    AND (t.objoid = c.oid OR t.objoid IN
                         (SELECT indexrelid FROM pg_index WHERE indrelid = c.oid)))
"""
# Name, uniqueness, definition (after the name of the table) and kind of key of each index.
_INDEXES = """
SELECT i.relname::text, x.indisunique, substring(d.sql FROM position(' USING ' IN d.sql)),
    CASE k.contype WHEN 'p' THEN 'PRIMARY KEY' WHEN 'u' THEN 'UNIQUE' END
FROM pg_index x JOIN pg_class i ON i.oid = x.indexrelid
CROSS JOIN LATERAL (SELECT pg_get_indexdef(x.indexrelid) AS sql) AS d
LEFT JOIN pg_constraint k ON k.conindid = x.indexrelid AND k.conrelid = x.indrelid
WHERE x.indrelid = to_regclass('{table}') ORDER BY i.relname
"""
_RIGHTS = """
SELECT a.privilege_type || '', CASE a.grantee WHEN 0 THEN 'PUBLIC'
    ELSE quote_ident(pg_get_userbyid(a.grantee)) END || CASE WHEN a.is_grantable
    THEN ' WITH GRANT OPTION' ELSE '' END
FROM pg_class c, aclexplode(c.relacl) a WHERE c.oid = to_regclass('{table}')
"""
_COLUMNS = """
SELECT attname::text, format_type(atttypid, atttypmod) FROM pg_attribute
WHERE attrelid = to_regclass('{table}') AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""


class _Embedded(TableWriter):
    """Writer by a temporary file; the database is locked for the last step only."""

    def _open(self, held: ExitStack) -> None:
        path = self.address.path
        if not path.parent.is_dir():
            raise DataError(
                f"Cannot write {path}: there is no directory {path.parent}."
            )
        if path.exists() and not os.access(path, os.W_OK):
            raise DataError(f"Cannot write {path}: permission denied.")
        if path.exists():
            self._existing, self._is_built_on = self._look_up()

    @abstractmethod
    def _look_up(self) -> tuple[dict[str, str], bool]:
        """Return columns and types of the table, and whether indexes or views depend on it."""

    def _steps(self, table: str, create: str, rows: str) -> list[str]:
        """Return the statements that replace a table, or append to it, by `rows`."""
        names = ", ".join(map(quoted, self._schema))
        steps = [create]
        if self._keeps:
            steps = [f"DELETE FROM {table}"] if self.if_exists == "replace" else []
        elif self.if_exists == "replace":  # perhaps another process has just created it
            steps = [f"DROP TABLE IF EXISTS {table}", create]
        return [*steps, f"INSERT INTO {table} ({names}) SELECT {names} FROM {rows}"]


class _SQLite(_Embedded):
    """Writer with the rows staged in a temporary database of SQLite, an unnamed file."""

    def _look_up(self) -> tuple[dict[str, str], bool]:
        uri = f"{self.address.path.resolve().as_uri()}?mode=rw"  # "rw" can finish a rollback
        table = self._table
        with closing(sqlite3.connect(uri, uri=True, timeout=_PATIENCE)) as connection:
            self._patiently(connection, "PRAGMA schema_version")
            if connection.execute(_SQLITE_VIEW, (table,)).fetchone():
                raise DataError(
                    f"{self.address} is not a table but a view; write to another name."
                )
            columns = connection.execute(
                f"PRAGMA table_info({quoted(table)})"
            ).fetchall()
            built_on = connection.execute(_SQLITE_BUILT_ON, {"name": table}).fetchone()
        return {name: kind for _, name, kind, *_ in columns}, built_on is not None

    def _sql_type(self, dtype: pl.DataType) -> str:
        if dtype.is_float():
            return "REAL"
        return "INTEGER" if dtype.is_integer() or dtype == pl.Boolean else "TEXT"

    def _create(self) -> None:
        connection = sqlite3.connect("", isolation_level=None, timeout=_PATIENCE)
        self._rows = self._held.enter_context(closing(connection))
        self._rows.execute("PRAGMA main.synchronous = OFF")
        self._rows.execute(f"CREATE TABLE staging ({self._definition()})")

    def _stage(self, frame: pl.DataFrame) -> None:
        texts = frame.with_columns(pl.col(pl.Date, pl.Datetime).cast(pl.String))
        holes = ", ".join("?" * frame.width)
        self._rows.execute("BEGIN")
        rows = texts.iter_rows(buffer_size=10_000)
        self._rows.executemany(f"INSERT INTO staging VALUES ({holes})", rows)
        self._rows.execute("COMMIT")

    def _put_in_place(self) -> None:
        table = f"target.{quoted(self._table)}"
        create = f"CREATE TABLE {table} ({self._definition()})"
        place = self.address.path
        is_new = not place.exists()
        self._patiently(self._rows, "ATTACH ? AS target", self.address.place)
        try:
            self._patiently(self._rows, "BEGIN IMMEDIATE")
            for step in (*self._steps(table, create, "main.staging"), "COMMIT"):
                self._rows.execute(step)
        except (
            BaseException
        ):  # a full disk leaves a journal; reopening rolls the change back
            self._rows.close()
            with suppress(sqlite3.Error), closing(sqlite3.connect(place)) as connection:
                connection.execute("PRAGMA schema_version")
            if is_new and place.exists() and not place.stat().st_size:
                place.unlink()
            raise

    def _patiently(
        self, connection: sqlite3.Connection, statement: str, *values: str
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
_AT_ONCE = 0.5  # seconds too short to report
_SQLITE_VIEW = (
    "SELECT 1 FROM sqlite_master WHERE type = 'view' AND lower(name) = lower(?)"
)
_SQLITE_BUILT_ON = """
SELECT 1 FROM sqlite_master
WHERE (type IN ('index', 'trigger') AND lower(tbl_name) = lower(:name))
    OR (type = 'view' AND instr(lower(sql), lower(:name)))
"""


class _DuckDB(_Embedded):
    """Writer with the rows staged as an Arrow stream in an unnamed temporary file."""

    def _look_up(self) -> tuple[dict[str, str], bool]:
        schema, _, name = self._table.rpartition(".")
        given = {"schema": schema or "main", "name": name}
        with open_database(self.address, write=True) as database:
            connection = database.connection
            if connection.execute(_DUCKDB_VIEW, given).fetchone():
                raise DataError(
                    f"{self.address} is not a table but a view; write to another name."
                )
            columns = connection.execute(_DUCKDB_COLUMNS, given).fetchall()
            built_on = connection.execute(_DUCKDB_BUILT_ON, given).fetchone()
        return dict(columns), built_on is not None

    def _create(self) -> None:
        from pyarrow import ipc

        # the disk that needs the space anyway
        folder = self.address.path.resolve().parent
        self._file = self._held.enter_context(TemporaryFile(dir=folder))  # noqa: SIM115
        schema = pl.DataFrame(schema=self._schema).to_arrow().schema
        self._stream = self._held.enter_context(ipc.new_stream(self._file, schema))

    def _stage(self, frame: pl.DataFrame) -> None:
        self._stream.write_table(frame.to_arrow())

    def _put_in_place(self) -> None:
        from pyarrow import ipc

        self._stream.close()
        self._file.seek(0)
        table = ".".join(map(quoted, self._table.split(".")))
        create = f"CREATE TABLE {table} ({self._definition()})"
        connection = self._unlocked().connection
        connection.register("staging", ipc.open_stream(self._file))
        for step in ("BEGIN", *self._steps(table, create, "staging"), "COMMIT"):
            connection.execute(step)

    def _unlocked(self) -> Database:
        """Open the database for the rest of the context, waiting for other processes."""
        last, is_waiting = time.monotonic() + _PATIENCE, False
        while True:
            try:
                return self._held.enter_context(open_database(self.address, write=True))
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
_DUCKDB_VIEW = (
    "SELECT 1 FROM duckdb_views() WHERE schema_name = $schema AND view_name = $name"
)
_DUCKDB_BUILT_ON = """
SELECT 1 FROM duckdb_indexes() WHERE schema_name = $schema AND table_name = $name
UNION ALL SELECT 1 FROM duckdb_constraints() WHERE schema_name = $schema AND table_name = $name
UNION ALL SELECT 1 FROM duckdb_views() WHERE NOT internal AND contains(lower(sql), lower($name))
"""

"""Databases: addresses of tables in PostgreSQL, SQLite and DuckDB, and reading of their rows."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from recsys.addresses import (
    Location,
    is_postgresql,
    located,
    names_secrets,
    parse_server,
    scheme_of,
    split_table,
    whole,
)
from recsys.data.columns import Roles
from recsys.errors import DataError
from recsys.messages import (
    close_matches,
    enumerated,
    is_full,
    missing_extra,
    nothing_at,
    system_reason,
)

if TYPE_CHECKING:
    import pyarrow as pa

Kind = Literal["postgresql", "sqlite", "duckdb"]
Pick = Callable[[Sequence[str], str], Roles]
"""Choice of columns by their names; the second argument is the name of the table in messages."""
OnRows = Callable[[int, int | None], None]
"""Progress callback: number of rows read, and their expected total (None if unknown)."""

NAMES: dict[Kind, str] = {
    "postgresql": "PostgreSQL",
    "sqlite": "SQLite",
    "duckdb": "DuckDB",
}
MAGIC = re.compile(rb"SQLite format 3\0|.{8}DUCK", re.DOTALL)
"""First bytes of SQLite and DuckDB files."""
SUFFIXES: dict[str, Kind] = {
    **dict.fromkeys((".db", ".sqlite", ".sqlite3"), "sqlite"),
    **dict.fromkeys((".duckdb", ".ddb"), "duckdb"),
}
_DRIVERS = ("adbc_driver_manager", "duckdb", "_duckdb", "pyarrow", "sqlite3")
_PATIENCE = 8  # seconds to wait for a server
_BATCH = 1 << 16  # rows per batch of SQLite; types are inferred from the first batch
_LISTED = 10  # maximum number of table names in messages

_TABLES: dict[Kind, str] = {
    "postgresql": "SELECT CASE WHEN pg_table_is_visible(c.oid) THEN '' ELSE nspname END, relname "
    "FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace "
    "WHERE relkind IN ('r', 'p', 'v', 'm', 'f') AND nspname NOT LIKE 'pg\\_%' "
    "AND nspname <> 'information_schema' ORDER BY 1, 2",
    "sqlite": "SELECT '', name FROM sqlite_master "
    "WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' ORDER BY name",
    "duckdb": "SELECT CASE table_schema WHEN current_schema() THEN '' ELSE table_schema END, "
    "table_name FROM information_schema.tables WHERE table_catalog = current_database() "
    "ORDER BY 1, 2",
}


@dataclass(frozen=True, slots=True)
class Address:
    """Address of a table or query in a database; `str()` has no user, password or options.

    `place` is an address of PostgreSQL, or the path of a file. Without `table` and `query`, it is
    the address of the database itself.
    """

    kind: Kind
    place: str
    table: str | None = None
    query: str | None = None

    @property
    def path(self) -> Path:
        """Path of a SQLite or DuckDB file."""
        return Path(self.place)

    def of_table(self, table: str) -> str:
        """Return the source of another table in the same database."""
        address = whole(self.place)
        scheme = "" if self.kind == "postgresql" else f"{self.kind}:///"
        return located(f"{scheme}{address}::{table}")

    def __str__(self) -> str:
        table = "" if self.table is None else f"::{self.table}"
        query = "" if self.query is None else " (query)"
        return f"{self.place}{table}{query}"

    def __repr__(self) -> str:
        return f"<Address: {self}>"


def parse_address(
    text: str,
    table: str | None = None,
    query: str | None = None,
) -> Address | None:
    """Parse the address of a table in a database; return None if the text is not one.

    An address is ``postgresql://USER@HOST/DATABASE``, ``sqlite:///PATH``, ``duckdb:///PATH``, or
    the path of a SQLite or DuckDB file, which is recognized by its content, or by its suffix if it
    does not exist. ``::TABLE`` may follow.

    Raises
    ------
    DataError
        If more than one table or query is given, or the address cannot be parsed.

    Examples
    --------
    >>> address = parse_address("postgresql://shop:secret@localhost/orders", "events")
    >>> print(address)
    postgresql://localhost/orders::events
    >>> parse_address("orders.db::events").kind
    'sqlite'
    >>> parse_address("events.csv") is None
    True
    """
    source, label = whole(text), located(text)
    if Path(label).exists():
        kind = _kind_of_file(Path(source))
        address = source
        named = None
    else:
        kind, address, named = _parsed(source, label)
    if kind is None:
        return None
    if sum(name is not None for name in (named, table, query)) > 1:
        raise DataError(
            f"{label}: name one table, with ::TABLE or --table, or give one --query."
        )
    return Address(kind, address, named or table, query)


def _parsed(source: str, shown: str) -> tuple[Kind | None, str, str | None]:
    """Return the kind of a database, its place, and the table that its address names."""
    address, table = split_table(source)
    if is_postgresql(address):
        if parse_server(address) is None:
            raise DataError(
                f"{shown} is not the address of a database; write postgresql://USER@HOST:PORT/"
                "DATABASE, with %-codes for special characters of the password (%40 for @)."
            )
        return "postgresql", located(address), table
    scheme = scheme_of(address)
    if scheme in ("sqlite", "duckdb"):
        path = address.lstrip()[len(f"{scheme}:") :]
        is_hidden = isinstance(
            shown, Location
        )  # options, or a user, which files do not have
        if is_hidden or not path.startswith("///"):
            right = "PATH" if is_hidden else path.lstrip("/")
            raise DataError(
                f"{shown} is not the address of a database; write {scheme}:///{right}."
            )
        return cast("Kind", scheme), path.removeprefix("///"), table
    return _kind_of_file(Path(address)), address, table


def _kind_of_file(path: Path) -> Kind | None:
    if path.is_file():
        try:
            with path.open("rb") as stream:
                head = stream.read(16)
        except OSError:  # the reader reports it
            return None
        if MAGIC.match(head):
            return "sqlite" if head.startswith(b"SQLite") else "duckdb"
        # A new SQLite database is an empty file.
        return None if head else SUFFIXES.get(path.suffix.lower())
    return None if path.exists() else SUFFIXES.get(path.suffix.lower())


class Database:
    """Open database for small queries, and for streams of large ones."""

    def __init__(self, address: Address, connection: Any) -> None:
        self.address = address
        self.connection = connection

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """Return the rows of a query with a small result."""
        if self.address.kind == "duckdb":
            return list(self.connection.execute(sql).fetchall())
        with self.connection.cursor() as cursor:
            if self.address.kind == "postgresql":  # COPY does not take an EXPLAIN
                cursor.adbc_statement.set_options(
                    **{"adbc.postgresql.use_copy": "false"}
                )
            cursor.execute(sql)
            return list(cursor.fetchall())

    @contextmanager
    def stream(self, sql: str) -> Iterator[pa.RecordBatchReader]:
        """Run a query, and yield its result as a stream of Arrow batches."""
        import pyarrow as pa

        if self.address.kind == "duckdb":
            yield pa.RecordBatchReader.from_stream(self.connection.sql(sql))
            return
        with self.connection.cursor() as cursor:
            if self.address.kind == "sqlite":
                cursor.adbc_statement.set_options(
                    **{"adbc.sqlite.query.batch_rows": str(_BATCH)}
                )
            cursor.execute(sql)
            yield cursor.fetch_record_batch()


@contextmanager
def open_database(address: Address, *, write: bool = False) -> Iterator[Database]:
    """Connect to a database; `write` creates a missing SQLite or DuckDB file.

    Raises
    ------
    DataError
        If the driver is not installed, the file does not exist, the server cannot be reached or
        rejects the user, or a statement fails within the context. The message has no password.
    """
    if address.kind != "postgresql" and not write and not address.path.exists():
        raise DataError(nothing_at(address.path))
    with failures(address, write=write):
        connection = _connect(address, write)
        try:
            yield Database(address, connection)
        finally:
            connection.close()


def _connect(address: Address, write: bool) -> Any:
    kind = address.kind
    module = "duckdb" if kind == "duckdb" else f"adbc_driver_{kind}"
    try:
        driver = import_module(module)
        import_module("pyarrow")
        dbapi: Any = (
            None if kind == "duckdb" else import_module("adbc_driver_manager.dbapi")
        )
    except ImportError as error:
        missing = str(error.name)
        if (error.name or module).startswith(module):
            missing = module.replace("_", "-")
        raise DataError(f"{NAMES[kind]} {missing_extra(missing, 'sql')}") from None
    if kind == "duckdb":
        return driver.connect(address.place, read_only=not write)
    if kind == "sqlite":
        uri = f"{address.path.resolve().as_uri()}?mode={'rwc' if write else 'ro'}"
    else:
        server = parse_server(whole(address.place))
        assert server is not None  # checked when the address was parsed
        uri = server.connection(connect_timeout=str(_PATIENCE))
    return dbapi.connect(
        driver._driver_path(), db_kwargs={"uri": uri}, autocommit=not write
    )


@contextmanager
def failures(address: Address, *, write: bool = False) -> Iterator[None]:
    """Convert the errors of drivers to a sentence without passwords.

    Raises
    ------
    DataError
        If a driver raises an error.
    """
    try:
        yield
    except Exception as error:
        family, text = type(error).__module__.partition(".")[0], str(error)
        of_stream = isinstance(error, OSError) and text.startswith(
            ("[libpq]", "[SQLite]")
        )
        if write and is_full(error):
            text = (system_reason(error) or text).lower()
        elif not of_stream and family not in _DRIVERS:
            raise
        raise DataError(_sentence(text, address, write=write)) from None


# Reasons of libpq, by a part of its message, in place of the message, which may quote a user, an
# option, or parts of a password.
_REFUSALS = {
    "server running": "no server listens there",
    "could not translate host name": "its host is not known",
    "password authentication failed": "password authentication failed",
    "authentication failed": "the server does not admit this user",
    "no password supplied": "it needs a password, in PGPASSWORD or ~/.pgpass",
    "FATAL:  database": "its database does not exist",
    "permission denied for database": "the user may not open this database",
    "FATAL:  role": "the server has no such user, or does not let it log in",
    "no pg_hba.conf entry": "the server does not admit this user from here (pg_hba.conf)",
    "timeout expired": f"no answer within {_PATIENCE} seconds",
    "too many": "the server has too many connections",
    "connection slots": "the server has too many connections",
    "starting up": "the server is starting up",
    "shutting down": "the server is shutting down",
    "definition of service": "its service is not defined",
    "Network is unreachable": "the network is unreachable",
    "No route to host": "there is no route to its host",
    "certificate": "the certificates of the server and of the address do not match",
    "SSL": "the server and the address do not agree on SSL",
    "closed the connection": "the server has closed the connection",
    "invalid": "one of its options is not valid",
    "unrecognized": "one of its options is not valid",
}
_UNSHOWN = "the driver's message may have parts of an address, and is not shown"


def _sentence(
    text: str,
    address: Address,
    *,
    write: bool,
) -> str:
    where = str(replace(address, table=None, query=None))
    if "Failed to connect" in text:
        reasons = (reason for part, reason in _REFUSALS.items() if part in text)
        return f"{where} cannot be opened: {next(reasons, _UNSHOWN)}."
    if (
        "failed to open" in text
        or "is not a database" in text
        or "Error: Cannot open" in text
    ):
        return f"{where} cannot be opened: it is not a readable database."
    lines = re.sub(r"(?s)\s*(LINE \d+:|Query was|\nquery:).*", "", text).splitlines()
    reason = re.sub(
        r"^.*(ERROR: +|Failed to \w+ query: |\[SQLite\] |\w+ Error: )", "", lines[0]
    )
    reason = reason.strip().rstrip(".!")
    if address.query is not None and names_secrets(whole(address.query)):
        reason = _UNSHOWN
    if write:
        return f"{address} cannot be written: {reason}."
    what = "table" if address.query is None else "query"
    hint = (
        "; CAST it in a --query" if reason.startswith("Type mismatch in column") else ""
    )
    return f"{where}: the {what} cannot be read: {reason}{hint}."


@dataclass(frozen=True, slots=True)
class TableRows:
    """Rows of a table or query in batches, while its database is open."""

    address: Address  # includes the name of the table
    names: tuple[str, ...]  # all columns, whether read or not
    _database: Database
    _source: str
    _columns: tuple[str, ...]

    @contextmanager
    def batches(
        self, on_rows: OnRows | None = None
    ) -> Iterator[Iterator[pa.RecordBatch]]:
        """Run the query, and yield an iterator of batches; `on_rows` is called after each.

        Raises
        ------
        DataError
            If there are no rows.
        """

        def counted() -> Iterator[pa.RecordBatch]:
            n_rows = 0
            for batch in stream:
                if batch.num_rows:
                    n_rows += batch.num_rows
                    yield batch
                    if on_rows is not None:
                        on_rows(n_rows, None)
            if not n_rows:
                raise DataError(f"{self.address} has no rows.")

        columns = ", ".join(self._columns)
        with self._database.stream(f"SELECT {columns} FROM {self._source}") as stream:
            yield counted()

    def write(self, target: Path, on_rows: OnRows | None = None) -> None:
        """Write the rows to a Parquet file, in batches."""
        from pyarrow.parquet import ParquetWriter

        # Without compression and encoding, because the file is read only once, immediately.
        uncompressed: dict[str, Any] = {"compression": "none", "use_dictionary": False}
        with self.batches(on_rows) as batches:
            first = next(batches)
            with ParquetWriter(target, first.schema, **uncompressed) as writer:
                for batch in chain((first,), batches):
                    writer.write_batch(batch)


@contextmanager
def open_table(address: Address, pick: Pick | None = None) -> Iterator[TableRows]:
    """Open a table or query, with the columns that `pick` chooses (by default, all).

    Raises
    ------
    DataError
        As `open_database`; also if a table or column does not exist, the query fails, ids have an
        invalid type, or there are no rows.
    """
    with open_database(address) as database:
        if address.query is None:
            address, source = _resolved(database)
        else:
            query = whole(address.query).strip().rstrip(";")
            source = f"({query}\n) AS q"  # it may end in a comment
        with database.stream(f"SELECT * FROM {source} LIMIT 0") as empty:
            schema = empty.schema
        names = tuple(schema.names)
        roles = dict.fromkeys(range(len(names)), "")
        if pick is not None:
            roles = {
                position: role for role, position in pick(names, str(address)).items()
            }
        columns = []
        for position, role in sorted(roles.items()):
            if (n := names.count(names[position])) > 1:
                raise DataError(
                    f"{address} has {n} columns named {names[position]!r}; rename them with AS."
                )
            columns.append(_expression(schema.field(position), role, address))
        yield TableRows(address, names, database, source, tuple(columns))


def _resolved(database: Database) -> tuple[Address, str]:
    """Return the address with the name of its table, and the quoted name."""
    address = database.address
    tables = database.rows(
        _TABLES[address.kind]
    )  # schema ("" for the default) and name
    by_label = {
        f"{schema}.{name}" if schema else name: (schema, name)
        for schema, name in tables
    }
    listed = enumerated([*by_label], _LISTED)
    if not by_label:
        raise DataError(f"{address} holds no tables.")
    requested = address.table
    if requested is None:
        requested = next(iter(by_label))
        if len(by_label) > 1:
            raise DataError(
                f"{address} holds the tables {listed}; name one: "
                f"{address}::{requested}, or --table {requested}."
            )
    folded = [name for name in by_label if name.casefold() == requested.casefold()]
    if requested not in by_label and len(folded) != 1:
        unqualified = [key for key, (_, name) in by_label.items() if name == requested]
        suggestions = unqualified or close_matches(requested, by_label, 3)
        hint = (
            f"did you mean {' or '.join(suggestions)}?"
            if suggestions
            else f"it holds {listed}."
        )
        raise DataError(
            f"{replace(address, table=None)} has no table {requested!r}; {hint}"
        )
    name = requested if requested in by_label else folded[0]
    return replace(address, table=name), ".".join(
        quoted(part) for part in by_label[name] if part
    )


def quoted(name: str) -> str:
    """Return a name quoted for SQL."""
    return '"' + name.replace('"', '""') + '"'


def _expression(
    field: pa.Field,
    role: str,
    address: Address,
) -> str:
    """Return the SQL for a column, with a type that Arrow, Parquet and polars support."""
    import pyarrow as pa

    kind = field.type
    name = quoted(field.name)
    label = getattr(kind, "type_name", None) or str(kind).removeprefix(
        "extension<arrow."
    )
    label = {"binary": "bytea"}.get(label, label.rstrip(">"))
    is_plain = not isinstance(kind, pa.BaseExtensionType) and not pa.types.is_interval(
        kind
    )
    is_text = label in ("uuid", "numeric")
    unfit = (
        pa.types.is_nested(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_temporal(kind)
    )
    is_id = role in ("user", "item")
    if is_id and (unfit or not (is_plain or is_text)):
        raise DataError(
            f"{address}: column {field.name!r} is of the type {label}, and ids are integers "
            "or texts."
        )
    if address.kind == "sqlite" and role == "rating":  # a column may mix 4 and 4.5
        return f"CASE typeof({name}) WHEN 'integer' THEN 1.0 * {name} ELSE {name} END AS {name}"
    server_type = (field.metadata or {}).get(b"POSTGRESQL:type")
    if server_type in (b"date", b"timestamp", b"timestamptz"):
        # As a number, infinity would be a time long ago.
        return (
            f"CASE {name} WHEN 'infinity' THEN '9999-12-31' "
            f"WHEN '-infinity' THEN '0001-01-01' ELSE {name} END AS {name}"
        )
    # PostgreSQL pads character(n) with blanks, which are not part of the value.
    is_padded = server_type == b"bpchar"
    if is_plain and not is_padded:
        return name
    target = "double precision" if label == "numeric" and not is_id else "text"
    return f"CAST({name} AS {target}) AS {name}"

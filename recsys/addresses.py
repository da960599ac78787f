"""Addresses of data: one parser, which separates what may be shown from what may not.

Host, port, database and path of an address may be shown and saved. The user, the password and all
options may not. An address is parsed, never searched for a password: where it cannot be parsed, any
part of it may be one, and only its scheme is shown.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote, unquote_to_bytes

_SCHEME = re.compile(r"\s*([a-z][a-z0-9+.-]+):", re.IGNORECASE)
_POSTGRESQL = re.compile(r"\s*(postgres(?:ql)?)(?:\+\w+)?:", re.IGNORECASE)
# As libpq reads it: a user ends at the first @ before a slash, and hosts at a slash or "?".
_PARTS = re.compile(
    r"//(?:(?P<user>[^@/]*)@)?(?P<hosts>[^/?]*)(?:/(?P<database>[^?]*))?(?:\?(?P<options>.*))?",
    re.DOTALL,
)
_HOST = re.compile(
    r"(?P<name>\[[0-9a-f:.]+(?:%25\w+)?\]|[\w.%-]*)(?::(?P<port>\d*))?", re.IGNORECASE
)
_LARGEST_PORT = 65535
_PLAIN_HOST = re.compile(r"[\w.-]*|[0-9a-f:.%]+|[/@][\w./-]*", re.IGNORECASE)
_PLAIN_DATABASE = re.compile(r"[\w.$ -]*")
_KEYWORD = re.compile(r"[a-z_]+")
_PERCENT = re.compile(r"%(?![0-9a-f]{2})", re.IGNORECASE)
_URL = re.compile(
    r"(?://(?:[^@/?#]*@)?(?P<host>\[[0-9a-f:.]+\]|[\w.-]*)(?P<port>:\d*)?)(?P<path>[^@?#;]*)"
    r"(?:[?#][^@]*)?",
    re.IGNORECASE | re.DOTALL,
)
_TABLE = re.compile(r"(?P<place>.+)::(?P<table>[^/\]?&]+)", re.DOTALL)
_NOT_OF_TABLES = re.compile(r"[@:=;]")  # but of passwords in an address of a server
_KEYWORDS = re.compile(
    r"\s*(?:host|hostaddr|port|dbname|database|user|service|server|data source|driver)\s*="
    r".*[\s;]\w+\s*=.*",
    re.IGNORECASE | re.DOTALL,
)
_USER = re.compile(r"([^/@:]+|.*//.*):[^@]*@", re.DOTALL)  # and a password
_SECRET_WORDS = (
    "password",
    "passwd",
    "pwd",
    "passfile",
    "secret",
    "token",
    "credential",
)
_DRIVE = re.compile(r"[a-z]:[\\/]", re.IGNORECASE)  # of Windows
_FILES = ("sqlite", "duckdb", "file")
_NAME = re.compile(r"^[\w-]+=(?=[a-z][a-z0-9+.-]*://)", re.IGNORECASE)
UNNAMED = "(address)"
"""Text shown for an address without a scheme."""


class Location(str):
    """Source of data as it may be shown and saved; `whole` is the text to open it with.

    Texts made of a location have only what may be shown.
    """

    whole: str

    def __new__(cls, shown: str, whole: str) -> Location:
        """Return a location that is shown as one text and opened by another."""
        location = super().__new__(cls, shown)
        location.whole = whole
        return location

    def __reduce__(
        self,
    ) -> tuple[type[str], tuple[str]]:  # copies in files have no password
        return str, (self[:],)


def located(source: str) -> str:
    """Return a source as a text that may be shown: a `Location`, or itself if it hides nothing.

    Examples
    --------
    >>> located("postgresql://shop:s3cret@db.example:5433/orders?sslmode=require::events")
    'postgresql://db.example:5433/orders::events'
    >>> located("https://ann:s3cret@example.org/ratings.csv?key=1")
    'https://example.org/ratings.csv'
    >>> located("postgresql://shop:s3/cret@db.example/orders")
    'postgresql:...'
    >>> located("orders.db::events")
    'orders.db::events'
    """
    if isinstance(source, Location):
        return source
    public = _shown(source)
    return source if public == source else Location(public, source)


def shown(source: str) -> str:
    """Return what may be shown of a source, as an ordinary text."""
    return located(source)[:]


def has_password(source: str) -> bool:
    """Return whether an address has a password, or may have one because it cannot be parsed."""
    # Of several models, each names its table: shop=postgresql://...
    location = located(_NAME.sub("", whole(source)))
    if not isinstance(location, Location):
        return False
    address, _ = split_table(location.whole)
    if (server := parse_server(address)) is not None:
        return not {"password", "sslpassword"}.isdisjoint(server.settings)
    if location.endswith("...") or location == UNNAMED:
        return True
    user, at, _ = location.whole.partition("://")[2].partition("@")
    return bool(at) and ":" in user


def whole(source: str) -> str:
    """Return all of a source, to open it."""
    return source.whole if isinstance(source, Location) else source


def scheme_of(source: str) -> str | None:
    """Return the scheme of an address in lower case, or None for a path."""
    match = _SCHEME.match(source)
    return None if match is None else match[1].lower()


def is_postgresql(source: str) -> bool:
    """Return whether a text begins with a scheme of PostgreSQL, also if slashes are missing."""
    return _POSTGRESQL.match(source) is not None


def split_table(source: str) -> tuple[str, str | None]:
    """Return the place and the name of the table in an address that ends in ``::TABLE``.

    Examples
    --------
    >>> split_table("orders.db::events"), split_table("postgresql://[::1]/orders")
    (('orders.db', 'events'), ('postgresql://[::1]/orders', None))
    """
    parts = _TABLE.fullmatch(source)
    if parts is None:
        return source, None
    address = parts["place"]
    table = parts["table"]
    scheme = scheme_of(address)
    if scheme is not None and scheme not in _FILES:
        # Without a slash after the host, the text may be a user and a password.
        hosts, slash, _ = address.partition("://")[2].partition("/")
        if not (slash or "?" in hosts) or _NOT_OF_TABLES.search(table):
            return source, None
    return address, table


@dataclass(frozen=True, slots=True, repr=False)
class Server:
    """Database of a PostgreSQL server; `str()` has its hosts, ports and name only.

    `settings` are the parameters of a connection by the names of libpq, such as "user".
    """

    settings: Mapping[str, str]
    is_plain: bool

    def __str__(self) -> str:
        settings = self.settings
        names = (settings.get("host") or settings.get("hostaddr", "")).split(",")
        ports = settings.get("port", "").split(",")
        if len(ports) == 1:
            ports *= len(names)
        database = settings.get("dbname", "")
        is_plain = self.is_plain and len(ports) == len(names)
        is_plain = is_plain and all(map(_PLAIN_HOST.fullmatch, names))
        is_plain = is_plain and all(port.isdecimal() or not port for port in ports)
        if not (is_plain and _PLAIN_DATABASE.fullmatch(database)):
            return "postgresql:..."
        hosts = []
        for name, port in zip(names, ports, strict=True):
            host = f"[{name}]" if ":" in name else quote(name, safe="")
            hosts.append(f"{host}:{port}" if port else host)
        path = f"/{quote(database)}" if database or not any(hosts) else ""
        return f"postgresql://{','.join(hosts)}{path}"

    def __repr__(self) -> str:
        return f"<Server: {self}>"

    def connection(self, **defaults: str) -> str:
        """Return the parameters in libpq's form ``name='value' ...``, after some defaults."""
        settings = {**defaults, **self.settings}
        return " ".join(f"{name}={_quoted(value)}" for name, value in settings.items())


def parse_server(source: str) -> Server | None:
    """Parse the address of a PostgreSQL database (without a table), or return None.

    The rules follow libpq, so that host and database match the connection. Hosts must
    have the form of names or numbers, and ports be numbers.
    """
    scheme = _POSTGRESQL.match(source)
    parts = (
        None if scheme is None else _PARTS.fullmatch(source[scheme.end() :].rstrip())
    )
    if parts is None:
        return None
    settings: dict[str, str | None] = {}
    if parts["user"] is not None:
        user, has_password, password = parts["user"].partition(":")
        settings["user"] = _decoded(user)
        if has_password:
            settings["password"] = _decoded(password)
    hosts = [_HOST.fullmatch(text) for text in parts["hosts"].split(",")]
    names = []
    ports = []
    for host in hosts:
        name = None if host is None else _decoded(host["name"])
        port = "" if host is None else host["port"] or ""
        if name is None or (port and int(port) > _LARGEST_PORT):
            return None
        names.append(name.removeprefix("[").removesuffix("]"))
        ports.append(port)
    settings |= {"host": ",".join(names), "port": ",".join(ports) if any(ports) else ""}
    settings["dbname"] = _decoded(parts["database"] or "")
    for option in (parts["options"] or "").split("&") if parts["options"] else ():
        name, equals, value = option.partition("=")
        keyword = _decoded(name)
        if not equals or keyword is None or not _KEYWORD.fullmatch(keyword.lower()):
            return None
        decoded = _decoded(value)
        if (keyword, decoded) == ("ssl", "true"):  # of JDBC, which libpq knows as well
            keyword = "sslmode"
            decoded = "require"
        settings[keyword] = decoded
    values: dict[str, str] = {}
    for name, value in settings.items():
        if value is None:
            return None
        if value:
            values[name] = value
    # A password with @ and ? looks like a host with options, one of which has an @.
    is_plain = parts["user"] is None or "@" not in (parts["options"] or "")
    return Server(values, is_plain)


def _decoded(text: str) -> str | None:
    """Return a text without %-codes, or None if one is invalid."""
    if _PERCENT.search(text):
        return None
    try:
        decoded = unquote_to_bytes(text).decode()
    except UnicodeError:
        return None
    return None if "\0" in decoded else decoded


def _quoted(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _shown(source: str) -> str:
    """Return the part of a source that may be shown."""
    if not any(mark in source for mark in ":=@"):
        return source
    address, table = split_table(source)
    if os.path.lexists(source) or os.path.lexists(address):
        return source
    ending = "" if table is None else f"::{table}"
    scheme = scheme_of(address)
    if is_postgresql(address):
        server = parse_server(address)
        public = f"{scheme}:..." if server is None else str(server)
        return public if public.endswith("...") else f"{public}{ending}"
    if scheme in _FILES:
        path = address.lstrip()[len(scheme) + 1 :].partition("?")[0]
        return f"{scheme}:..." if _looks_secret(path) else f"{scheme}:{path}{ending}"
    if scheme is not None and address[len(scheme) + 1 :].startswith("/"):
        return _shown_url(source, scheme)
    return UNNAMED if _looks_secret(source) and not _DRIVE.match(source) else source


def _shown_url(url: str, scheme: str) -> str:
    """Return scheme, host, port and path of a URL."""
    remainder = url.lstrip()[len(scheme) + 1 :]
    parts = _URL.fullmatch(remainder)
    if parts is None:
        return f"{scheme}:..."
    host = parts["host"]
    port = parts["port"] or ""
    path = parts["path"]
    is_valid = port in ("", ":") or int(port[1:]) <= _LARGEST_PORT
    if not is_valid or (path and not path.startswith("/")) or _looks_secret(path):
        return f"{scheme}:..."
    return f"{scheme}://{host}{port}{path}"


def _looks_secret(text: str) -> bool:
    """Return whether a text may have a user with a password, or settings of a connection."""
    has_user = _USER.match(text) is not None
    return has_user or names_secrets(text) or _KEYWORDS.fullmatch(text) is not None


def names_secrets(text: str) -> bool:
    """Return whether a text, such as a query, gives a password or has an address in it."""
    folded = text.casefold()
    gives_one = "=" in text and any(word in folded for word in _SECRET_WORDS)
    return gives_one or "://" in text

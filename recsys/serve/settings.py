"""Settings of the service, free of heavy imports."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from recsys.errors import DataError

LENGTH = 10
"""Default number of items in a list."""

SHARED = "PROMETHEUS_MULTIPROC_DIR"
"""Environment variable with the directory of the counters that workers share."""

_NAME = re.compile(r"\w+", re.ASCII)
_ORIGIN = re.compile(r"\*|null|[a-z][a-z0-9+.-]*://[^/?#\s]+", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on the cost of a request.

    Attributes
    ----------
    body, head : int
        Size in bytes of a body, and of the request line and headers.
    items : int
        Number of items in a list.
    batch : int
        Number of users, pairs, events or ratings in one request.
    seconds : float
        Time for a request to arrive, and for its answer.
    waiting : int
        Number of requests that wait for a thread; further ones are rejected as busy.
    connections, connections_of_client : int
        Number of open connections of a process, and of them from one address; an IPv6
        network of 64 bits counts as one address.
    """

    body: int = 2**20
    head: int = 2**15
    items: int = 1000
    batch: int = 1000
    seconds: float = 10.0
    waiting: int = 100
    connections: int = 800
    connections_of_client: int = 200

    def __post_init__(self) -> None:
        # Zero would switch the whole service off.
        for name in self.__slots__:
            if (value := getattr(self, name)) <= 0:
                raise DataError(f"The limit {name} must be above 0; got {value}.")
        # Otherwise a request without options would exceed the limit.
        if self.items < LENGTH:
            raise DataError(
                f"The limit items must be at least {LENGTH}; got {self.items}."
            )


@dataclass(frozen=True, slots=True)
class Settings:
    """Models of a service, its logs, and its access rules.

    Attributes
    ----------
    model : str
        Path of a saved model, of a link to one, or of a saved index.
    model_b : str, optional
        Second model, for an A/B test with a `share` of the users.
    share : float
    index : str, optional
        Path of a saved index of documents.
    item_table : str, optional
        File, or table of a database, with the items that may be recommended, as they are now.
    refresh : float
        Seconds between two readings of this table.
    conditions : mapping of str to str
        SQL conditions on items by the names with which every request may use them.
    together : str, optional
        Table of `recsys together`: a file, or a table of a database.
    events, log : str, optional
        Files to which events, and recommendations, are appended.
    api_key : str or sequence of str, optional
        Key that requests must send, or several, such as the old and the new one during a change.
    list_key : str or sequence of str, optional
        Key, or several, of clients that may only ask for lists of items.
    host : str, optional
        Address on which the service listens; by default of each connection. On a loopback
        address, data of users are answered without a key.
    allowed_hosts : tuple of str
        Names of the service in addresses, with or without a port, next to names of the loopback
        address.
    cors : tuple of str
        Sites whose pages may use the service.
    limits : Limits
    check_seconds : float
        Time between two checks for a replaced model.
    load_first : bool
        Whether to load the model before accepting requests.

    Raises
    ------
    DataError
        If the share is not between 0 and 1, the time between two readings of a table is not
        positive, the name of a condition has other characters than letters, digits and underscores,
        the directory of a log does not exist, a key is empty, or a site is not an origin, such as
        "https://shop.example".
    """

    model: str
    model_b: str | None = None
    share: float = 0.5
    index: str | None = None
    item_table: str | None = field(default=None, repr=False)
    refresh: float = 60.0
    conditions: Mapping[str, str] = field(default_factory=dict)
    # The address of a database may have a password.
    together: str | None = field(default=None, repr=False)
    events: str | None = None
    log: str | None = None
    api_key: str | tuple[str, ...] | None = field(default=None, repr=False)
    list_key: str | tuple[str, ...] | None = field(default=None, repr=False)
    host: str | None = None
    allowed_hosts: tuple[str, ...] = ()
    cors: tuple[str, ...] = ()
    limits: Limits = field(default_factory=Limits)
    check_seconds: float = 1.0
    load_first: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise DataError(f"share must be between 0 and 1; got {self.share}.")
        if not self.refresh > 0:
            raise DataError(f"refresh must be above 0 seconds; got {self.refresh}.")
        for name in self.conditions:
            if not _NAME.fullmatch(name):
                raise DataError(
                    "The name of a condition must be of letters, digits and underscores, as in "
                    f"available=stock > 0; got {name!r}."
                )
        for name in ("api_key", "list_key"):
            # A frozen class sets its own fields this way only.
            object.__setattr__(self, name, _checked_keys(name, getattr(self, name)))
        if set(self.api_key or ()) & set(self.list_key or ()):
            raise DataError("api_key and list_key must differ; one of them is in both.")
        if self.events is not None:
            _check_log(Path(self.events), ("user", "item"), "events")
        if self.log is not None:
            _check_log(Path(self.log), ("time", "items"), "recommendations")
        for site in self.cors:
            if not _ORIGIN.fullmatch(site):
                expected = "cors takes origins such as https://shop.example"
                raise DataError(
                    f"{expected}, with a scheme and without a path; got {site!r}."
                )


def _check_log(
    path: Path,
    keys: Sequence[str],
    noun: str,
) -> None:
    """Check that a log can be written, and that an existing file is such a log."""
    if path.is_dir():
        raise DataError(f"{path} cannot be written: it is a directory.")
    if not path.parent.is_dir():
        raise DataError(
            f"{path} cannot be written: there is no directory {path.parent}."
        )
    from recsys.serve.event_log import (
        check_journal,
    )  # with imports that the help does not need

    check_journal(path, keys, noun)


def _checked_keys(
    name: str, keys: str | Sequence[str] | None
) -> tuple[str, ...] | None:
    """Return keys as a tuple; an empty key would admit everybody, or nobody."""
    if keys is None:
        return None
    listed = (keys,) if isinstance(keys, str) else tuple(keys)
    for key in listed or ("",):
        is_text = isinstance(key, str) and key.isascii() and key.isprintable()
        if not is_text or not key or key != key.strip():
            raise DataError(
                f"{name} must be of ASCII characters, at least one, without spaces around them; "
                "leave it out for a service without a key."
            )
    return listed

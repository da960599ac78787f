"""Access to the service: API keys, and data of users for requests from this computer.

Anybody may ask for lists of items, as long as the service has no key. Data of users need the API
key; without one, they are only answered on a loopback address, to programs and to the pages of the
service itself. A page of another site could otherwise read them through the browser of somebody who
works on this computer, also under a name of its own that it resolves to 127.0.0.1. On a loopback
address, events without a key are stored for programs, for these pages, and for sites of `cors`.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Collection, Mapping, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from recsys.serve.settings import Settings

Headers: TypeAlias = Sequence[tuple[bytes, bytes]]
Level: TypeAlias = Literal["open", "all", "lists"]
"""Extent of an admitted request: without keys ("open"), by the API key, or by a key for lists."""

_AUTHORITY = re.compile(
    r"(\[[0-9a-f:.]+\]|[^\[\]:/@]+)(?::([0-9]{1,5}))?", re.IGNORECASE
)
_FORWARDED = {
    b"forwarded",
    b"via",
    b"x-forwarded-for",
    b"x-forwarded-host",
    b"x-real-ip",
}
_OTHER_SITES = ("cross-site", "same-site")  # same-site is another port of this computer
_PORTS = {"http": 80, "https": 443}
_SHOWN = 200  # maximum number of characters of a host in a message


class Access:
    """Rules of a service about which requests are answered."""

    def __init__(self, settings: Settings) -> None:
        self._address = settings.host
        self._allowed = {host.lower() for host in settings.allowed_hosts}
        self._named_sites = frozenset(settings.cors)
        self._api_keys = [_digest(key.encode()) for key in settings.api_key or ()]
        self._list_keys = [_digest(key.encode()) for key in settings.list_key or ()]

    def level(self, headers: Headers) -> Level | None:
        """Return the extent of a request by its key, None if a key is missing or wrong."""
        if not (self._api_keys or self._list_keys):
            return "open"
        # All headers count, since a request may have a key of each kind.
        level: Level | None = None
        for name, value in headers:
            key = value if name == b"x-api-key" else b""
            if name == b"authorization" and value[:7].lower() == b"bearer ":
                key = value[7:].strip()
            if _is_among(key, self._api_keys):
                return "all"
            if _is_among(key, self._list_keys):
                level = "lists"
        return level

    def objection(
        self,
        level: Level,
        scope: Mapping[str, Any],
        noun: str = "data of users",
    ) -> str | None:
        """Return a sentence on why a request gets no data of users, or None if it does.

        Conditions (another `noun`) are as trusted, because they may be expensive and reveal what
        lists do not.
        """
        if level == "all":
            return None
        start = "start the service with --api-key (RECSYS_API_KEY, api_key=)"
        if level == "lists":
            hint = "send the API key" if self._api_keys else start
            return f"This key is for lists of items only; for {noun}, {hint}."
        # The address of the connection, which a client cannot choose.
        server = scope.get("server") or ("", None)
        headers = scope["headers"]
        if not is_loopback(self._address or str(server[0])):
            loopback = "or on a loopback address (--host 127.0.0.1)"
            needed = f"{noun.capitalize()} need an API key, and there is none"
            return f"{needed}; {start}, {loopback}."
        # A proxy on this computer makes every client look local.
        if any(name in _FORWARDED for name, _ in headers):
            proxied = "need an API key for requests through a proxy"
            return f"{noun.capitalize()} {proxied}; {start}."
        return self._foreign(scope, noun)

    def objection_to_events(self, level: Level, scope: Mapping[str, Any]) -> str | None:
        """Return a sentence on why a request may not store events, or None if it may.

        Without a key, a page of another site could write through a browser of this computer.
        """
        server = scope.get("server") or ("", None)
        if level == "all" or not is_loopback(self._address or str(server[0])):
            return None
        return self._foreign(scope, "events", self._named_sites)

    def _foreign(
        self,
        scope: Mapping[str, Any],
        noun: str,
        named_sites: Collection[str] = (),
    ) -> str | None:
        """Return a sentence if a request is for another name, or of another site's page."""
        headers: Headers = scope["headers"]
        server = scope.get("server") or ("", None)
        port = server[1] or _PORTS.get(scope["scheme"], 80)
        # Another site may resolve its own name to this computer.
        hosts = [value.decode("latin-1") for name, value in headers if name == b"host"]
        if len(hosts) > 1 or not all(
            self._is_own(host, port, scope["scheme"]) for host in hosts
        ):
            address = ", ".join(hosts)[:_SHOWN]
            return (
                f"Without an API key, {noun} need a loopback name in the address, such as "
                f"localhost:{port}, or one of --allowed-host (allowed_hosts=); got {address!r}."
            )
        origins = {
            value.decode("latin-1") for name, value in headers if name == b"origin"
        }
        is_named = bool(origins) and origins <= {*named_sites}
        if not is_named and self._is_of_another_site(headers, port):
            return (
                f"Pages of other sites need an API key for {noun}; start the service with "
                "--api-key (RECSYS_API_KEY, api_key=)."
            )
        return None

    def _is_own(
        self,
        host: str,
        port: int,
        scheme: str,
    ) -> bool:
        """Return whether an authority, such as "localhost:8000", is one of this service."""
        authority = _AUTHORITY.fullmatch(host)
        if authority is None:
            return False
        name = authority[1].lower()
        if name in self._allowed or host.lower() in self._allowed:
            return True
        return (
            is_loopback(name.strip("[]"))
            and int(authority[2] or _PORTS.get(scheme, 80)) == port
        )

    def _is_of_another_site(self, headers: Headers, port: int) -> bool:
        """Return whether a browser says that a page of another site has sent a request."""
        for name, value in headers:
            text = value.decode("latin-1")
            if name == b"sec-fetch-site" and text in _OTHER_SITES:
                return True
            if name == b"origin":
                scheme, mark, host = text.partition("://")
                if not (mark and scheme in _PORTS and self._is_own(host, port, scheme)):
                    return True
        return False


def is_loopback(host: str) -> bool:
    """Return whether a host is this computer: localhost or a loopback address."""
    if host.lower() == "localhost":
        return True
    address = address_of(host)
    return address is not None and address.is_loopback


def address_of(host: str) -> IPv4Address | IPv6Address | None:
    """Return the IP address in a text, of IPv4 if it is mapped into IPv6; else None."""
    try:
        address = ip_address(host)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _is_among(key: bytes, digests: Sequence[bytes]) -> bool:
    """Return whether a key has one of the digests, in a time that does not depend on which."""
    digest = _digest(key)
    matches = [hmac.compare_digest(digest, key_digest) for key_digest in digests]
    return any(matches)

"""HTTP protocol with limits on the head of a request, and with a fast path for lists.

uvicorn has no such limits. Lists for an id are computed and written here, because the task and the
messages of an ASGI call would take as long as the search itself.
"""

from __future__ import annotations

import asyncio
from functools import partial
from time import perf_counter
from typing import Any

import msgspec
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from recsys.serve.gate import Gate
from recsys.serve.problems import ProblemError

_REPLY = (
    b"HTTP/1.1 %d %s\r\ncontent-type: application/problem+json\r\n"
    b"content-length: %d\r\nconnection: close\r\n\r\n%s"
)
_APART = {b"content-length", b"transfer-encoding", b"expect", b"upgrade", b"origin"}
_NOBODY = asyncio.Event()  # nothing waits for the events of a list


class _List:
    """List that is being computed; it replaces the request-response cycle of uvicorn."""

    __slots__ = (
        "disconnected",
        "keep_alive",
        "more_body",
        "response_complete",
        "route",
        "start",
    )
    message_event = _NOBODY

    def __init__(self, keep_alive: bool) -> None:
        self.start, self.route, self.keep_alive = perf_counter(), "", keep_alive
        self.response_complete = self.disconnected = self.more_body = False


class BoundedProtocol(HttpToolsProtocol):
    """Connection with limits on the time and size of request lines and headers.

    A client that sends them too slowly, or sends too many, gets an error and is disconnected.
    """

    def __init__(self, gate: Gate, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.gate, self.limits = gate, gate.service.limits
        self._head = 0  # size of the current head so far
        self._chunk = 0  # size of the last data, 0 if a head ended in them
        self._is_expected = False  # whether the rest of a head is expected
        self._running: Any = None  # request in the application
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the time limit of the first request."""
        super().connection_made(transport)
        self._is_expected = True
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting and answering; uvicorn would inform only the last of several requests."""
        self._cancel()
        if self._running is not None:
            self._running.disconnected = True
        super().connection_lost(exc)

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def data_received(self, data: bytes) -> None:
        """Receive data; reject a head that is too long (status 431)."""
        self._head += len(data)
        self._chunk = len(data)
        super().data_received(data)
        if self._is_expected:
            if self._deadline is None:
                self._wait()
            if self._head > self.limits.head:
                self._reject(431, "too-large", "The head is too long.")

    def on_message_begin(self) -> None:
        """Start counting the size of a head."""
        super().on_message_begin()
        self._cancel()
        self._is_expected = True
        self._head = self._chunk

    def on_headers_complete(self) -> None:
        """Start a list, or pass the request to the application."""
        self._cancel()
        self._chunk = 0
        if not self._lists():
            super().on_headers_complete()

    def _lists(self) -> bool:
        """Start a list if the request is for one, and return whether it is."""
        path, _, query = self.url.partition(b"?")
        if (
            self.parser.get_method() != b"GET"
            or self.parser.get_http_version() != "1.1"
            or (self.cycle is not None and not self.cycle.response_complete)
            or self.flow.write_paused
            or len(self.connections) >= self.limits.connections
            or any(name in _APART for name, _ in self.headers)
            or not self.url.isascii()
            or self.gate.service.access.level(self.headers) is None
        ):
            return False
        found = _List(self.parser.should_keep_alive())
        found.route = self.gate.make_list(path, query, partial(self._write, found))
        if found.route:
            self.cycle = found  # type: ignore[assignment]
        return bool(found.route)

    def _write(self, cycle: _List, found: bytes | Exception) -> None:
        """Write a list, or the problem with it."""
        status, headers, body = self.gate.reply("GET", self.url, found)
        self.gate.counters.observe(cycle.route, status, perf_counter() - cycle.start)
        content = [STATUS_LINE[status]]
        for name, value in (*self.server_state.default_headers, *headers):
            content += (name, b": ", value, b"\r\n")
        if not cycle.keep_alive:
            content.append(b"connection: close\r\n")
        content.append(b"content-length: %d\r\n\r\n%s" % (len(body), body))
        if not self.transport.is_closing():
            self.transport.write(b"".join(content))
            if not cycle.keep_alive:
                self.transport.close()
        cycle.response_complete = True
        self.on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer data that are not HTTP."""
        self._reject(400, "invalid-request", msg)

    def _wait(self) -> None:
        problem = 408, "slow-request", "The request did not arrive in time."
        self._deadline = self.loop.call_later(
            self.limits.seconds, self._reject, *problem
        )

    def _cancel(self) -> None:
        self._is_expected = False
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _reject(self, status: int, kind: str, detail: str) -> None:
        self._cancel()
        if not self.transport.is_closing():
            document = ProblemError(kind, detail).document() | {"status": status}
            body = msgspec.json.encode(document)
            self.transport.write(
                _REPLY % (status, document["title"].encode(), len(body), body)
            )
            self.transport.close()

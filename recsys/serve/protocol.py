"""HTTP with bounds on the head of a request, which uvicorn has none for."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from recsys.serve.settings import Limits

__all__ = ["BoundedProtocol"]

_REPLY = (
    b"HTTP/1.1 %d %s\r\ncontent-type: application/problem+json\r\n"
    b"content-length: %d\r\nconnection: close\r\n\r\n%s"
)
_DOCUMENT = b'{"type":"/docs#%s","title":"%s","status":%d,"detail":"%s"}'


class BoundedProtocol(HttpToolsProtocol):
    """A connection whose request lines and headers arrive in bounded time and space.

    A client that sends a byte now and then, or headers without an end, is told so and cut off.
    """

    def __init__(self, limits: Limits, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.limits = limits
        self._head = 0  # bytes of the head that is arriving
        self._chunk = 0  # bytes that arrived last, unless a head has ended among them
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._expect()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no longer."""
        self._cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take bytes; too many before the end of a head are a 431."""
        self._head += len(data)
        self._chunk = len(data)
        super().data_received(data)
        if self._deadline is not None and self._head > self.limits.head:
            self._reject(431, b"too-large", b"Head too large", b"The head is too long.")

    def on_message_begin(self) -> None:
        """Begin to wait for the rest of a head."""
        super().on_message_begin()
        self._expect()

    def on_headers_complete(self) -> None:
        """Let the application have the request."""
        self._cancel()
        self._chunk = 0
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP."""
        self._reject(400, b"invalid-request", b"Invalid request", msg.encode())

    def _expect(self) -> None:
        self._cancel()
        self._head = self._chunk
        problem = 408, b"slow-request", b"Request timeout", b"The request did not arrive in time."
        self._deadline = self.loop.call_later(self.limits.seconds, self._reject, *problem)

    def _cancel(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _reject(self, status: int, kind: bytes, title: bytes, detail: bytes) -> None:
        self._cancel()
        if not self.transport.is_closing():
            body = _DOCUMENT % (kind, title, status, detail)
            self.transport.write(_REPLY % (status, title, len(body), body))
            self.transport.close()

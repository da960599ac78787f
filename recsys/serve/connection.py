"""Connections with limits of number, time and size, around the HTTP protocol of uvicorn.

uvicorn limits neither the time and size of a request's head nor the time in which an
answer is read, and it rejects connections beyond its limit with plain text. The class
here passes the events of `asyncio` on to the protocol, and counts bytes and seconds in
between. Of uvicorn it uses the requests that wait, and no other part.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextvars import ContextVar, copy_context
from typing import Any, ClassVar

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from recsys.serve.access import address_of
from recsys.serve.problems import ProblemError
from recsys.serve.settings import Limits

IDLE = 30  # seconds after which a connection without a request is closed
# One read may hold many requests, of 18 bytes, which uvicorn turns into objects of 3 KB.
_READ = 2**11
_PIPELINED = 16  # requests of a connection that wait for the answers before them
_RECEIVED = 2**22  # bytes of all requests, next to one body; objects take 30 times that
_UNREAD = 2**26  # bytes of all answers that clients have not read
_LINGER = 1  # seconds for a client to read why it is rejected
_LINGERING = 100  # rejected connections that are open for that; the oldest are closed
_REJECTION = (
    b"HTTP/1.1 %d %s\r\ncontent-type: application/problem+json\r\n"
    b"content-length: %d\r\nconnection: close\r\n\r\n%s"
)


class BoundedConnection(asyncio.BufferedProtocol):
    """Connection whose requests and answers are limited in time and size.

    The middleware finds it in `CONNECTION`, and reports when the application begins and
    ends to answer: it limits these times itself. The head of a request must arrive within
    `limits.seconds` and `limits.head` bytes. A body is read as fast as the application
    takes it; trailers are not a body, so reading stops after `limits.head` bytes of them. An
    answer must be read within `limits.seconds` where it does not fit into the buffers.
    If all connections together hold too much, the one that holds most is closed.
    """

    opened: ClassVar[set[BoundedConnection]] = set()
    rejected: ClassVar[deque[BoundedConnection]] = deque()
    n_received: ClassVar[int] = 0

    def __init__(self, limits: Limits, **options: Any) -> None:
        self._limits = limits
        self._http = HttpToolsProtocol(**options)
        self._loop = asyncio.get_running_loop()
        self._buffer = memoryview(bytearray(_READ))
        # Tasks of requests inherit the context in which their data are received.
        self._context = copy_context()
        self._context.run(CONNECTION.set, self)
        self._n_untaken = 0  # bytes since the application has last taken some
        self._n_received = 0  # bytes since the last answer
        self._is_answering = False
        self._is_unread = False
        self._is_rejected = False
        self._is_paused = False
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Accept the connection, or reject it if too many are open."""
        self._transport = transport
        self._client = _client_of(transport)
        opened = BoundedConnection.opened
        accepted = [other for other in opened if not other._is_rejected]
        n_of_client = sum(other._client == self._client for other in accepted)
        opened.add(self)
        self._context.run(self._http.connection_made, transport)
        self._expire_after(self._limits.seconds)
        if len(accepted) >= self._limits.connections:
            sentence = f"{self._limits.connections:,} connections are open; try again."
            self._reject("busy", sentence)
        elif n_of_client >= self._limits.connections_of_client:
            sentence = f"{n_of_client:,} connections of this address are open."
            self._reject("busy", sentence)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer for the next read."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Pass received data on, and stop reading if the application takes none of it."""
        if self._is_rejected:  # the rest of the request
            return
        if not (self._n_received or self._is_answering or self._is_unread):
            self._expire_after(self._limits.seconds)  # the head has begun
        self._n_untaken += nbytes
        self._n_received += nbytes
        BoundedConnection.n_received += nbytes
        self._context.run(self._http.data_received, bytes(self._buffer[:nbytes]))
        if len(self._http.pipeline) > _PIPELINED:
            self._transport.abort()
        if BoundedConnection.n_received > _RECEIVED + self._limits.body:
            largest = max(BoundedConnection.opened, key=lambda other: other._n_received)
            # Its bytes count no longer: until it is lost, others are read, and must go, too.
            largest._release()
            largest._transport.abort()
        if self._n_untaken > self._limits.head and not self.is_closing:
            self._transport.pause_reading()
            self._is_paused = True
            # If the head is complete, the application begins before the next call.
            self._loop.call_soon(self._check_head)

    def _check_head(self) -> None:
        if not self._is_answering and self._n_untaken > self._limits.head:
            self._reject("too-large", "The head is too long.", 431)

    def request_started(self) -> None:
        """Leave the limits of time to the application, which has a whole head."""
        self._is_answering = True
        self.body_taken()
        if not self._is_unread:
            self._cancel()

    def body_taken(self) -> None:
        """Continue to read, because the application has taken what was received."""
        self._n_untaken = 0
        if self._is_paused and not self.is_closing:
            self._is_paused = False
            self._transport.resume_reading()

    def request_finished(self) -> None:
        """Limit the time until the next request."""
        if self.is_closing:
            return
        self._is_answering = False
        self._release()
        self.body_taken()
        if not self._is_unread:
            self._expire_after(IDLE)

    @property
    def is_closing(self) -> bool:
        """Return whether nothing can be sent any more."""
        closing: bool = self._transport.is_closing()
        return closing

    def _release(self) -> None:
        """Count what was received no longer, since it is answered."""
        BoundedConnection.n_received -= self._n_received
        self._n_received = 0

    def pause_writing(self) -> None:
        """Limit the time in which the client must read an answer."""
        self._http.pause_writing()
        self._is_unread = True
        self._expire_after(self._limits.seconds)
        transports = [other._transport for other in BoundedConnection.opened]
        sizes = [transport.get_write_buffer_size() for transport in transports]
        if sum(sizes) > _UNREAD:
            transports[sizes.index(max(sizes))].abort()

    def resume_writing(self) -> None:
        """End the limit on reading an answer."""
        self._http.resume_writing()
        self._is_unread = False
        self._cancel()
        if not self._is_answering:
            self._expire_after(IDLE)

    def eof_received(self) -> None:
        """Pass the end of the data on."""
        self._http.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the limits, and wake the application."""
        BoundedConnection.opened.discard(self)
        self._release()
        self._cancel()
        self._context.run(self._http.connection_lost, exc)
        # Objects that refer to one another would keep what was received for long.
        del self._context
        self._http.pipeline.clear()
        if self._http.headers is not None:
            self._http.headers.clear()

    def _expire_after(self, seconds: float) -> None:
        self._cancel()
        self._deadline = self._loop.call_later(seconds, self._expire)

    def _cancel(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _expire(self) -> None:
        """Close the connection; what the client has not read by now is lost."""
        if self._is_rejected or self._transport.get_write_buffer_size():
            self._transport.abort()
        else:
            self._reject("slow-request", "The request did not arrive in time.")

    def _reject(
        self,
        kind: str,
        sentence: str,
        status: int | None = None,
    ) -> None:
        """Answer with a problem, and close the connection."""
        if self.is_closing:
            self._transport.abort()
            return
        self._is_rejected = True
        document = ProblemError(kind, sentence).document()
        if status is not None:
            document["status"] = status
        body = msgspec.json.encode(document)
        title = document["title"].encode()
        self._transport.write(_REJECTION % (document["status"], title, len(body), body))
        # Closing at once would reset the connection, and the answer with it.
        self._transport.write_eof()
        self._expire_after(_LINGER)
        rejected = BoundedConnection.rejected
        rejected.append(self)
        if len(rejected) > _LINGERING:
            rejected.popleft()._transport.abort()


def _client_of(transport: Any) -> str:
    """Return the address of a client, without the half of IPv6 that it may choose."""
    peer = transport.get_extra_info("peername") or ("",)  # if it has gone already
    address = address_of(peer[0])
    if address is None:
        return ""
    groups = address.exploded.split(":")
    return ":".join(groups[:4])


CONNECTION: ContextVar[BoundedConnection | None] = ContextVar(
    "connection", default=None
)
"""Connection of the request that is being answered; None on another server."""

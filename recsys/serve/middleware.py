"""Middleware in front of the routes: keys, limits of requests, counts and lists."""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import suppress
from time import perf_counter
from typing import TYPE_CHECKING, Any, Never

import msgspec

from recsys.serve.access import Headers
from recsys.serve.connection import CONNECTION
from recsys.serve.lists import RECOMMEND, Lists, PendingList
from recsys.serve.problems import MEDIA_TYPE, ProblemError, problem_of, unauthorized
from recsys.serve.service import Service

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

_NEEDS_KEY = ("/v1/", "/metrics")
_JSON = [(b"content-type", b"application/json")]
_PROBLEM = (b"content-type", MEDIA_TYPE.encode())
# Whatever follows the head of such a request is not read: neither body nor trailers.
_CLOSE = (b"connection", b"close")
_HEADERS_OF_STATUS: dict[int, Headers] = {
    401: [(b"www-authenticate", b"Bearer"), _CLOSE],
    408: [_CLOSE],
    413: [_CLOSE],
}

_log = logging.getLogger("recsys.serve")


class Middleware:
    """ASGI middleware around the application.

    It answers the most frequent lists itself (see `Lists`). Every other request is passed
    to the routes with its whole body. Answers are counted before they are sent, because a
    worker may be killed in between.
    """

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service
        self._counters = service.counters
        self._lists = Lists(service)

    async def __call__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        """Answer one request, or pass on the start and end of the application."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        if scope["type"] != "http":
            return
        connection = CONNECTION.get()
        if connection is None:
            await self._answer(scope, receive, send)
            return
        connection.request_started()
        try:
            await self._answer(scope, receive, send)
        except RuntimeError:
            if not connection.is_closing:  # uvloop raises if the client has gone
                raise
        finally:
            connection.request_finished()

    async def _answer(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        start = perf_counter()
        route = ""
        pending: PendingList | None = None
        try:
            self._check_key(scope)
            if scope["method"] == "GET":
                pending = self._lists.of_id(scope)
            if pending is None:
                content, receive = await self._read_body(scope["headers"], receive)
                pending = self._list_of_body(scope, content)
            if pending is not None:
                route = pending.route
                body = await pending.text
                status = 200
                headers: Headers = _JSON
        except Exception as error:
            problem = problem_of(error)
            if problem.kind == "internal":
                _log.error(
                    "%s %r failed", scope["method"], scope["raw_path"], exc_info=error
                )
            # Defects get an answer, too, which does not say what they are.
            status = problem.status
            headers = [_PROBLEM, *_HEADERS_OF_STATUS.get(status, [])]
            body = msgspec.json.encode(problem.document())
        else:
            if pending is None:
                await self._pass_on(scope, receive, send, start)
                return
        self._counters.observe(route, status, perf_counter() - start)
        headers = [(b"content-length", b"%d" % len(body)), *headers]
        await send(
            {"type": "http.response.start", "status": status, "headers": headers}
        )
        await send({"type": "http.response.body", "body": body})

    def _check_key(self, scope: Scope) -> None:
        """Store the access level of a request; raise if it needs a key that is missing."""
        # Before the body is read, which may be large.
        level = self._service.access.level(scope["headers"])
        if level is None and scope["path"].startswith(_NEEDS_KEY):
            raise unauthorized()
        scope.setdefault("state", {})["level"] = level  # the routes check it, too

    def _list_of_body(self, scope: Scope, content: bytes) -> PendingList | None:
        """Return the list that a body asks for; None if the routes must answer."""
        if not content or scope["method"] != "POST":
            return None
        if not _is_json(scope["headers"]):
            way = "send the header `Content-Type: application/json`"
            raise ProblemError("invalid-request", f"The body must be JSON; {way}.")
        pending = None
        if scope["raw_path"] == RECOMMEND and not scope["query_string"]:
            pending = self._lists.of_history(content, scope["headers"])
        if pending is None:
            _check_json(content)
        return pending

    async def _pass_on(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        start: float,
    ) -> None:
        """Let the routes answer, and count the answer."""

        async def send_counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                route = getattr(scope.get("route"), "path", "")
                seconds = perf_counter() - start
                self._counters.observe(route, message["status"], seconds)
            await send(message)

        if scope["path"].startswith("/v1/"):
            # Ids stay escaped, since they may contain a slash.
            scope = {**scope, "path": scope["raw_path"].decode("latin-1")}
        await self._app(scope, receive, send_counted)

    async def _read_body(
        self, headers: Headers, receive: Receive
    ) -> tuple[bytes, Receive]:
        """Read a body in bounded time and space; also return a function that replays it."""
        limits = self._service.limits
        lengths = [value for name, value in headers if name == b"content-length"]
        for length in lengths:
            if not length.isdigit() or int(length) > limits.body:
                raise _too_large(limits.body)
        is_chunked = any(name == b"transfer-encoding" for name, _ in headers)
        if not (is_chunked or any(map(int, lengths))):
            return b"", receive
        connection = CONNECTION.get()
        # In pieces, since a declared length may be a lie.
        content = bytearray()
        is_complete = False
        try:
            async with asyncio.timeout(limits.seconds):
                while not is_complete:
                    message = await receive()
                    if message["type"] != "http.request":  # the client has gone
                        break
                    content += message.get("body", b"")
                    is_complete = not message.get("more_body", False)
                    if len(content) > limits.body:
                        raise _too_large(limits.body)
                    if connection is not None:
                        connection.body_taken()
        except TimeoutError:
            sentence = f"The body did not arrive within {limits.seconds:g} seconds."
            raise ProblemError("slow-request", sentence) from None
        body = bytes(content)
        messages: list[Any] = [{"type": "http.request", "body": body}]

        async def replay() -> Any:
            return messages.pop() if messages else await receive()

        return body, replay


def _is_json(headers: Headers) -> bool:
    """Return whether JSON is declared, which a form of another site in a browser cannot."""
    return any(
        name == b"content-type" and b"json" in value.lower() for name, value in headers
    )


def _check_json(content: bytes) -> None:
    """Check that no object of a body has a key twice, and that its numbers are finite."""
    # Where a body is not JSON, the routes say.
    with suppress(ValueError, RecursionError):
        json.loads(content, object_pairs_hook=_distinct_keys, parse_constant=_no_number)


def _distinct_keys(entries: list[tuple[str, Any]]) -> None:
    keys: set[str] = set()
    for key, _ in entries:
        if key in keys:  # JSON does not say which of the values counts
            raise ProblemError(
                "invalid-request", f"The body has the key {key!r} twice."
            )
        keys.add(key)


def _no_number(name: str) -> Never:
    sentence = f"The body has the value {name}, which is not JSON."
    raise ProblemError("invalid-request", sentence)


def _too_large(limit: int) -> ProblemError:
    return ProblemError("too-large", f"The body may have at most {limit:,} bytes.")

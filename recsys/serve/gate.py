"""The gate before the routes: keys, sizes and times of requests, and the shortest way to a list."""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
from time import perf_counter
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import msgspec

from recsys.serve.batches import Batches
from recsys.serve.problems import MEDIA_TYPE, ProblemError, problem_of
from recsys.serve.service import Service

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["Gate"]

_RECOMMEND = b"/v1/recommend/"
_TEMPLATE = "/v1/recommend/{user}"
_PLAIN = re.compile(rb"(?:n=([1-9][0-9]{0,8}))?")
_GUARDED = (b"/v1/", b"/metrics")
_JSON = (b"content-type", b"application/json")
_PROBLEM = [(b"content-type", MEDIA_TYPE.encode())]
_CLOSE = (b"connection", b"close")  # the rest of the body is not read
_MORE = {401: [(b"www-authenticate", b"Bearer")], 408: [_CLOSE], 413: [_CLOSE]}

_log = logging.getLogger("recsys.serve")


class Gate:
    """ASGI middleware around the application.

    Recommendations to known users without any option but n are answered here: user id, search,
    JSON, and nothing else. Every other request goes to the routes, with its whole body.

    Parameters
    ----------
    app : ASGI application
    service : Service
    """

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self.app, self.service, self.counters = app, service, service.counters
        self._batches = Batches(service.run)
        key = service.settings.api_key
        self._key = None if key is None else key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or hand on the start and end of the application."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        start, path = perf_counter(), scope["raw_path"]
        is_list = path.startswith(_RECOMMEND) and scope["method"] == "GET"
        status, headers = 200, [_JSON]
        try:
            self._check_key(scope["headers"], path)
            body = await self._list(scope, path) if is_list else None
            if body is None:
                receive = await self._whole(scope["headers"], receive)
        except Exception as error:
            problem = problem_of(error)
            if problem.kind == "internal":
                _log.exception("%s %r failed", scope["method"], path)
            status, headers = problem.status, [*_PROBLEM, *_MORE.get(problem.status, [])]
            body = msgspec.json.encode(problem.document())
        if body is None:
            await self._routed(scope, receive, send, start)
            return
        headers = [(b"content-length", str(len(body)).encode()), *headers]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})
        self.counters.observe(_TEMPLATE if is_list else "", status, perf_counter() - start)

    async def _list(self, scope: Scope, path: bytes) -> bytes | None:
        """Return the recommendations to a known user as JSON, None where the routes have to."""
        plain = _PLAIN.fullmatch(scope["query_string"])
        if plain is None or not self.service.models:
            return None
        user = unquote(path[len(_RECOMMEND) :].decode("latin-1"))
        variant = self.service.variant(user)
        answers = self.service.answers(variant)
        place = answers.ratings.users.place(user)
        n = int(plain[1] or 10)
        if place < 0 or n > self.service.limits.items:
            return None
        body = await self._batches.best(answers, place, n)
        if variant is not None:
            body = b'{"variant":"%s",%s' % (variant.encode(), body[1:])
        if self.service.log is not None:
            self.service.log.add(body)
        return body

    async def _routed(self, scope: Scope, receive: Receive, send: Send, start: float) -> None:
        """Let the routes answer, and count the answer."""
        status = 500

        async def counting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        if scope["path"].startswith("/v1/"):  # ids keep their escapes, as they may have a slash
            scope = {**scope, "path": scope["raw_path"].decode("latin-1")}
        try:
            await self.app(scope, receive, counting)
        finally:
            route = getattr(scope.get("route"), "path", "")
            self.counters.observe(route, status, perf_counter() - start)

    def _check_key(self, headers: list[tuple[bytes, bytes]], path: bytes) -> None:
        if self._key is None or not path.startswith(_GUARDED):
            return
        for name, value in headers:
            given = value if name == b"x-api-key" else b""
            if name == b"authorization" and value[:7].lower() == b"bearer ":
                given = value[7:].strip()
            if hmac.compare_digest(given, self._key):
                return
        way = "send it as the header `Authorization: Bearer KEY`"
        raise ProblemError("unauthorized", f"The service needs an API key; {way}.")

    async def _whole(self, headers: list[tuple[bytes, bytes]], receive: Receive) -> Receive:
        """Return what gives the whole body at once, read in bounded time and space."""
        lengths = [value for name, value in headers if name == b"content-length"]
        chunked = any(name == b"transfer-encoding" for name, _ in headers)
        if not chunked and not any(value.strip(b"0") for value in lengths):
            return receive
        most, seconds = self.service.limits.body, self.service.limits.seconds
        if any(not value.isdigit() or int(value) > most for value in lengths):
            raise _too_large(most)
        parts: list[bytes] = []
        size, more = 0, True
        try:
            async with asyncio.timeout(seconds):
                while more:
                    message = await receive()
                    if message["type"] != "http.request":
                        break
                    parts.append(message.get("body", b""))
                    size, more = size + len(parts[-1]), message.get("more_body", False)
                    if size > most:
                        raise _too_large(most)
        except TimeoutError:
            late = f"The body did not arrive within {seconds:g} seconds."
            raise ProblemError("slow-request", late) from None
        messages: list[Any] = [{"type": "http.request", "body": b"".join(parts)}]

        async def replay() -> Any:
            return messages.pop() if messages else await receive()

        return replay


def _too_large(most: int) -> ProblemError:
    return ProblemError("too-large", f"The body may have at most {most:,} bytes.")

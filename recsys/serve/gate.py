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
from recsys.serve.settings import LENGTH

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["Gate"]

_RECOMMEND, _SIMILAR, _STRANGER = b"/v1/recommend/", b"/v1/similar/", b"/v1/recommend"
_PLAIN = re.compile(rb"(?:n=([1-9][0-9]{0,8}))?")
_GUARDED = ("/v1/", "/metrics")
_JSON = (b"content-type", b"application/json")
_PROBLEM = [(b"content-type", MEDIA_TYPE.encode())]
_CLOSE = (b"connection", b"close")  # the rest of the body is not read
_MORE = {401: [(b"www-authenticate", b"Bearer")], 408: [_CLOSE], 413: [_CLOSE]}

_log = logging.getLogger("recsys.serve")


class _Rating(msgspec.Struct, forbid_unknown_fields=True):
    item: int | str
    value: float | None = None


class _History(msgspec.Struct, forbid_unknown_fields=True):
    """A stranger without a name, and n."""

    history: list[_Rating]
    n: int = LENGTH


_HISTORY = msgspec.json.Decoder(_History)


class Gate:
    """ASGI middleware around the application.

    Lists for a known user, an item or a history, without any option but n, are made here: ids,
    search, JSON, and nothing else. Every other request goes to the routes, with its whole body.

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
        status, headers = 200, [_JSON]
        route, body = "", None
        try:
            self._check_key(scope["headers"], scope["path"])
            if scope["method"] == "GET":
                route, body = await self._list(path, scope["query_string"])
            if body is None:
                receive, content = await self._whole(scope["headers"], receive)
                if path == _STRANGER and content and not scope["query_string"]:
                    route, body = "/v1/recommend", await self._of_stranger(content)
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
        self.counters.observe(route, status, perf_counter() - start)

    async def _list(self, path: bytes, query: bytes) -> tuple[str, bytes | None]:
        """Return a route and the JSON of its list for an id; None where the routes have to."""
        plain, service = _PLAIN.fullmatch(query), self.service
        is_similar = path.startswith(_SIMILAR)
        if plain is None or not service.models or not (is_similar or path.startswith(_RECOMMEND)):
            return "", None
        n = int(plain[1] or LENGTH)
        text = unquote(path[len(_SIMILAR if is_similar else _RECOMMEND) :].decode("latin-1"))
        variant = None if is_similar else service.variant(text)
        answers = service.answers(variant)
        ratings, name = answers.ratings, answers.name
        place = (ratings.items if is_similar else ratings.users).place(text)
        if place < 0 or n > service.limits.items:
            return "", None
        if is_similar:
            found = self._batches.ask(answers.neighbours, f"similar {name}", place, n)
            return "/v1/similar/{item}", await found
        body = await self._batches.ask(answers.best, f"best {name}", place, n)
        if variant is not None:
            body = b'{"variant":"%s",%s' % (variant.encode(), body[1:])
        if service.log is not None:
            service.log.add(body)
        return "/v1/recommend/{user}", body

    async def _of_stranger(self, content: bytes) -> bytes | None:
        """Return the JSON of the list of a stranger, None where the routes have to."""
        service = self.service
        if len(service.models) != 1 or service.log is not None:
            return None
        try:
            given = _HISTORY.decode(content)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        if not 1 <= len(given.history) <= service.limits.batch or not (
            1 <= given.n <= service.limits.items
        ):
            return None
        answers = service.answers()
        history = answers.history((each.item, each.value) for each in given.history)
        if history is None:
            return None
        name = f"strangers {answers.name}"
        return await self._batches.ask(answers.for_strangers, name, history, given.n)

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

    def _check_key(self, headers: list[tuple[bytes, bytes]], path: str) -> None:
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

    async def _whole(
        self, headers: list[tuple[bytes, bytes]], receive: Receive
    ) -> tuple[Receive, bytes]:
        """Return the whole body, read in bounded time and space, and what gives it at once."""
        lengths = [value for name, value in headers if name == b"content-length"]
        chunked = any(name == b"transfer-encoding" for name, _ in headers)
        if not chunked and not any(value.strip(b"0") for value in lengths):
            return receive, b""
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
        body = b"".join(parts)
        messages: list[Any] = [{"type": "http.request", "body": body}]

        async def replay() -> Any:
            return messages.pop() if messages else await receive()

        return replay, body


def _too_large(most: int) -> ProblemError:
    return ProblemError("too-large", f"The body may have at most {most:,} bytes.")

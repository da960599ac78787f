"""Gate in front of the routes: keys, limits of requests, and a fast path for lists."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import msgspec

from lowrank import kernels
from recsys.serve.access import Headers
from recsys.serve.facts import Json
from recsys.serve.problems import MEDIA_TYPE, ProblemError, problem_of, unauthorized
from recsys.serve.service import Service, Variant
from recsys.serve.settings import LENGTH

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

_RECOMMEND, _SIMILAR, _STRANGER = b"/v1/recommend/", b"/v1/similar/", b"/v1/recommend"
_PLAIN = re.compile(rb"(?:n=([1-9][0-9]{0,8}))?")
_GUARDED = ("/v1/", "/metrics")
_JSON = [(b"content-type", b"application/json")]
_PROBLEM = [(b"content-type", MEDIA_TYPE.encode())]
_CLOSE = (b"connection", b"close")  # because the rest of the body is not read
_MORE = {401: [(b"www-authenticate", b"Bearer")], 408: [_CLOSE], 413: [_CLOSE]}

_TOGETHER = 32  # maximum number of requests in one search
_QUICK = 0.003  # seconds above which a search runs outside the event loop
_MEMORY = 0.1  # weight of the last search in the running mean of times
_KNOWN = 100  # maximum number of stored mean times

_log = logging.getLogger("recsys.serve")

Answer = Callable[[list[Any], int], list[Json]]
"""Function that returns a list of n items for each query, such as a user or an item."""
Done = Callable[["bytes | Exception"], None]
"""Callback for the JSON of an answer, or for its error."""


class _Rating(msgspec.Struct, forbid_unknown_fields=True):
    item: int | str
    value: float | None = None


class _History(msgspec.Struct, forbid_unknown_fields=True):
    """Request of a new user without a name."""

    history: list[_Rating]
    n: int = LENGTH


_HISTORY = msgspec.json.Decoder(_History)


class Gate:
    """ASGI middleware around the application.

    It computes lists for a known user, an item or a history itself, if n is the only option: ids,
    search and JSON. Every other request is passed to the routes, with its whole body. Answers are
    counted before they are sent, because a worker may be killed in between.
    """

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self.app, self.service, self.counters = app, service, service.counters
        self._batches = Batches(service.run)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or pass on the start and end of the application."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        start, path = perf_counter(), scope["raw_path"]
        route = ""
        answer: bytes | Exception | None = None
        try:
            level = self.service.access.level(scope["headers"])
            if level is None and scope["path"].startswith(_GUARDED):
                raise unauthorized()
            scope.setdefault("state", {})["level"] = level  # the routes check it, too
            if scope["method"] == "GET":
                future, done = _expected()
                if route := self.make_list(path, scope["query_string"], done):
                    answer = await future
            if answer is None:
                receive, content = await self._whole(scope["headers"], receive)
                if (
                    content
                    and scope["method"] == "POST"
                    and not _is_json(scope["headers"])
                ):
                    way = "send the header `Content-Type: application/json`"
                    raise ProblemError(
                        "invalid-request", f"The body must be JSON; {way}."
                    )
                if path == _STRANGER and content and not scope["query_string"]:
                    route, answer = "/v1/recommend", await self._of_stranger(content)
        except Exception as error:
            answer = error
        if answer is None:
            await self._routed(scope, receive, send, start)
            return
        status, headers, body = self.reply(scope["method"], path, answer)
        headers = [(b"content-length", str(len(body)).encode()), *headers]
        self.counters.observe(route, status, perf_counter() - start)
        await send(
            {"type": "http.response.start", "status": status, "headers": headers}
        )
        await send({"type": "http.response.body", "body": body})

    def make_list(self, path: bytes, query: bytes, done: Done) -> str:
        """Start computing the list for an id, pass it to `done` later, and return its route.

        The route is empty if the routes must answer, for example while a model is being loaded.
        """
        plain, service = _PLAIN.fullmatch(query), self.service
        is_similar = path.startswith(_SIMILAR)
        if plain is None or not (is_similar or path.startswith(_RECOMMEND)):
            return ""
        if not (service.models and service.is_ready):
            return ""
        n = int(plain[1] or LENGTH)
        text = unquote(
            path[len(_SIMILAR if is_similar else _RECOMMEND) :].decode("latin-1")
        )
        variant = None if is_similar else service.variant(text)
        answers = service.answers(variant)
        ratings, name = answers.ratings, answers.name
        place = (ratings.items if is_similar else ratings.users).place(text)
        if place < 0 or n > service.limits.items:
            return ""
        if is_similar:
            self._batches.ask(answers.neighbours, f"similar {name}", place, n, done)
            return "/v1/similar/{item}"
        if variant is not None or service.log is not None:
            done = partial(self._recorded, variant, done)
        self._batches.ask(answers.best, f"best {name}", place, n, done)
        return "/v1/recommend/{user}"

    def _recorded(
        self, variant: Variant | None, done: Done, found: bytes | Exception
    ) -> None:
        """Log a list with its variant, and pass it on."""
        if isinstance(found, bytes):
            if variant is not None:
                found = b'{"variant":"%s",%s' % (variant.encode(), found[1:])
            if self.service.log is not None:
                self.service.log.add(found)
        done(found)

    def reply(
        self, method: str, path: bytes, found: bytes | Exception
    ) -> tuple[int, Headers, bytes]:
        """Return the status, the headers and the body of a list, or of an error."""
        if isinstance(found, bytes):
            return 200, _JSON, found
        problem = problem_of(found)
        if problem.kind == "internal":
            _log.error("%s %r failed", method, path, exc_info=found)
        headers = [*_PROBLEM, *_MORE.get(problem.status, [])]
        return problem.status, headers, msgspec.json.encode(problem.document())

    async def _of_stranger(self, content: bytes) -> bytes | None:
        """Return the JSON of the list of a new user; None if the routes must answer."""
        service = self.service
        if len(service.models) != 1 or service.log is not None or not service.is_ready:
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
        future, done = _expected()
        self._batches.ask(answers.for_strangers, name, history, given.n, done)
        return await future

    async def _routed(
        self, scope: Scope, receive: Receive, send: Send, start: float
    ) -> None:
        """Let the routes answer, and count the answer."""

        async def counting(message: Message) -> None:
            if message["type"] == "http.response.start":
                route = getattr(scope.get("route"), "path", "")
                self.counters.observe(route, message["status"], perf_counter() - start)
            await send(message)

        if scope["path"].startswith(
            "/v1/"
        ):  # ids stay escaped, since they may contain a slash
            scope = {**scope, "path": scope["raw_path"].decode("latin-1")}
        await self.app(scope, receive, counting)

    async def _whole(self, headers: Headers, receive: Receive) -> tuple[Receive, bytes]:
        """Read the body in bounded time and space; return a function that replays it, and it."""
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


def _is_json(headers: Headers) -> bool:
    """Return whether a request declares JSON, which a form of another site in a browser cannot."""
    return any(
        name == b"content-type" and b"json" in value.lower() for name, value in headers
    )


def _expected() -> tuple[asyncio.Future[bytes], Done]:
    """Return a future, and the callback that sets it."""
    future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def done(found: bytes | Exception) -> None:
        if future.done():  # the client has gone
            return
        if isinstance(found, bytes):
            future.set_result(found)
        else:
            future.set_exception(found)

    return future, done


def _too_large(most: int) -> ProblemError:
    return ProblemError("too-large", f"The body may have at most {most:,} bytes.")


class Batches:
    """Queries that wait for the next search.

    A search begins when all requests that have arrived are read. A single request therefore does
    not wait, and simultaneous ones share the work. Fast searches run in the event loop, others in a
    thread by `run` (see `Service.run`).
    """

    def __init__(self, run: Callable[..., Any]) -> None:
        self._run = run
        self._waiting: dict[tuple[Answer, str, int], list[tuple[Any, Done]]] = {}
        self._seconds: dict[str, float] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def ask(self, answer: Answer, name: str, question: Any, n: int, done: Done) -> None:
        """Pass the JSON of an answer to `done` later; times are averaged by `name`."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._search)
        self._waiting.setdefault((answer, name, n), []).append((question, done))

    def _search(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for (answer, name, n), requests in waiting.items():
            for start in range(0, len(requests), _TOGETHER):
                batch = requests[start : start + _TOGETHER]
                questions, waiting_for = zip(*batch, strict=True)
                if self._seconds.get(name, 0.0) > _QUICK:
                    search = self._elsewhere(answer, name, questions, n, waiting_for)
                    task = asyncio.create_task(search)
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)
                    continue
                try:
                    found: Any = self._timed(answer, name, questions, n)
                except Exception as error:
                    found = [error] * len(batch)
                for done, each in zip(waiting_for, found, strict=True):
                    done(each)

    async def _elsewhere(
        self,
        answer: Answer,
        name: str,
        questions: Sequence[Any],
        n: int,
        waiting: Sequence[Done],
    ) -> None:
        try:
            found: Any = await self._run(self._timed, answer, name, questions, n)
        except Exception as error:
            found = [error] * len(waiting)
        for done, each in zip(waiting, found, strict=True):
            done(each)

    def _timed(
        self, answer: Answer, name: str, questions: Sequence[Any], n: int
    ) -> list[bytes]:
        start = time.thread_time()  # excludes the time of other threads
        with kernels.at_most(1):  # leave the other cores to other workers
            found = [msgspec.json.encode(each) for each in answer(list(questions), n)]
        seconds = time.thread_time() - start
        mean = self._seconds.get(name, seconds)
        if len(self._seconds) > _KNOWN:  # some are of replaced models
            self._seconds.clear()
        self._seconds[name] = mean + _MEMORY * (seconds - mean)
        return found

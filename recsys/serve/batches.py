"""Batches: requests that arrive together are answered by one search."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import msgspec

from lowrank import kernels
from recsys.serve.facts import Json

__all__ = ["Batches"]

_MOST = 32  # questions of one search
_QUICK = 0.003  # seconds: a search that takes longer leaves the event loop to others
_MEMORY = 0.1  # weight of the last search in the mean time of one
_KNOWN = 100  # mean times that are remembered

Answer = Callable[[list[Any], int], list[Json]]
"""Lists of n items in answer to some questions, such as users or items."""
Waiting = tuple[Any, "asyncio.Future[bytes]"]


class Batches:
    """Questions that wait for the next search.

    A search begins when all requests that have arrived are read: so one alone does not wait, and
    many share the work. It runs in the event loop if it is over in a moment, else in a thread.

    Parameters
    ----------
    run : coroutine function
        Calls a function in a thread; see `Service.run`.
    """

    def __init__(self, run: Callable[..., Any]) -> None:
        self._run = run
        self._waiting: dict[tuple[Answer, str, int], list[Waiting]] = {}
        self._seconds: dict[str, float] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def ask(self, answer: Answer, name: str, question: Any, n: int) -> asyncio.Future[bytes]:
        """Return a future of the JSON of an answer; searches of one name take about as long."""
        loop = asyncio.get_running_loop()
        if not self._waiting:
            loop.call_soon(self._search)
        future: asyncio.Future[bytes] = loop.create_future()
        self._waiting.setdefault((answer, name, n), []).append((question, future))
        return future

    def _search(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for (answer, name, n), requests in waiting.items():
            for start in range(0, len(requests), _MOST):
                batch = requests[start : start + _MOST]
                if self._seconds.get(name, 1.0) > _QUICK:
                    task = asyncio.create_task(self._elsewhere(answer, name, n, batch))
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)
                    continue
                try:
                    _resolve(batch, self._timed(answer, name, n, batch))
                except Exception as error:
                    _fail(batch, error)

    async def _elsewhere(self, answer: Answer, name: str, n: int, batch: list[Waiting]) -> None:
        try:
            _resolve(batch, await self._run(self._timed, answer, name, n, batch))
        except Exception as error:
            _fail(batch, error)

    def _timed(self, answer: Answer, name: str, n: int, batch: list[Waiting]) -> list[bytes]:
        start = time.thread_time()  # not what others take of the processor
        with kernels.at_most(1):  # more threads would take the cores of other workers
            found = [msgspec.json.encode(each) for each in answer([q for q, _ in batch], n)]
        seconds = time.thread_time() - start
        mean = self._seconds.get(name, seconds)
        if len(self._seconds) > _KNOWN:  # of models that are gone
            self._seconds.clear()
        self._seconds[name] = mean + _MEMORY * (seconds - mean)
        return found


def _resolve(batch: list[Waiting], found: list[bytes]) -> None:
    for (_, future), body in zip(batch, found, strict=True):
        if not future.done():  # the client may have gone
            future.set_result(body)


def _fail(batch: list[Waiting], error: Exception) -> None:
    for _, future in batch:
        if not future.done():
            future.set_exception(error)

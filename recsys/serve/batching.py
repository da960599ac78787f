"""Batches of requests: queries that arrive together share one search."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import msgspec

from lowrank import kernels
from recsys.serve.catalogue import Json

Search = Callable[[list[Any], int, str | None], list[Json]]
"""Function that returns a list of n items for each query, such as a user or an item.

The last argument is the name of a condition on the items, if there is one.
"""
Request: TypeAlias = tuple[Any, asyncio.Future[bytes]]
Answers: TypeAlias = Sequence[asyncio.Future[bytes]]

_BATCH = 32  # maximum number of queries of one search
_QUICK = 0.003  # seconds above which a search runs outside the event loop
_MEMORY = 0.1  # weight of the last search in the running mean of times
_MEANS = 100  # maximum number of stored mean times


class Batches:
    """Queries that wait for the next search.

    A search begins when all requests that have arrived are read. A single request
    therefore does not wait, and simultaneous ones share the work. Fast searches run in the
    event loop, others in a thread by `run` (see `Service.run`).
    """

    def __init__(self, run: Callable[..., Any]) -> None:
        self._run = run
        self._waiting: dict[tuple[Search, str, int, str | None], list[Request]] = {}
        self._mean_seconds: dict[str, float] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def ask(
        self,
        search: Search,
        name: str,
        query: Any,
        n: int,
        condition: str | None,
    ) -> asyncio.Future[bytes]:
        """Return the JSON that a search will answer; its times are averaged by `name`."""
        loop = asyncio.get_running_loop()
        if not self._waiting:
            loop.call_soon(self._search_all)
        answer: asyncio.Future[bytes] = loop.create_future()
        requests = self._waiting.setdefault((search, name, n, condition), [])
        requests.append((query, answer))
        return answer

    def _search_all(self) -> None:
        waiting = self._waiting
        self._waiting = {}
        for (search, name, n, condition), requests in waiting.items():
            for start in range(0, len(requests), _BATCH):
                batch = requests[start : start + _BATCH]
                queries, answers = zip(*batch, strict=True)
                work = partial(self._timed, search, name, queries, n, condition)
                if self._mean_seconds.get(name, 0.0) > _QUICK:
                    task = asyncio.create_task(self._search_in_thread(work, answers))
                    self._tasks.add(task)  # the loop itself keeps a weak reference only
                    task.add_done_callback(self._tasks.discard)
                    continue
                try:
                    _set_results(answers, work())
                except Exception as error:
                    _set_error(answers, error)

    async def _search_in_thread(
        self, work: Callable[[], list[bytes]], answers: Answers
    ) -> None:
        try:
            _set_results(answers, await self._run(work))
        except Exception as error:
            _set_error(answers, error)

    def _timed(
        self,
        search: Search,
        name: str,
        queries: Sequence[Any],
        n: int,
        condition: str | None,
    ) -> list[bytes]:
        start = time.thread_time()  # excludes the time of other threads
        with kernels.at_most(1):  # leave the other cores to other workers
            answers = search(list(queries), n, condition)
            texts = [msgspec.json.encode(answer) for answer in answers]
        seconds = time.thread_time() - start
        mean = self._mean_seconds.get(name, seconds)
        if len(self._mean_seconds) > _MEANS:  # some are of replaced models
            self._mean_seconds.clear()
        self._mean_seconds[name] = mean + _MEMORY * (seconds - mean)
        return texts


def _set_results(answers: Answers, texts: Sequence[bytes]) -> None:
    for answer, text in zip(answers, texts, strict=True):
        if not answer.done():  # the client may have gone
            answer.set_result(text)


def _set_error(answers: Answers, error: Exception) -> None:
    for answer in answers:
        if not answer.done():
            answer.set_exception(error)

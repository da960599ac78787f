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

Search: TypeAlias = Callable[..., list[Json]]
"""Function that returns a list of items for each query, such as a user or an item.

The queries come first. The other arguments, such as the length of the lists, are for all of them.
"""
Kind: TypeAlias = tuple[Any, ...]
"""Name of a search, and the arguments that its queries share."""
Request: TypeAlias = tuple[Any, asyncio.Future[bytes]]
Answers: TypeAlias = Sequence[asyncio.Future[bytes]]

_BATCH = 32  # maximum number of queries of one search
_QUICK = 0.003  # seconds above which a search runs outside the event loop
_QUICK_ALONE = 0.005  # of a search for a single request while no other runs
_MEMORY = 0.1  # weight of the last search in the running mean of times
_MEANS = 100  # maximum number of stored mean times


class Batches:
    """Queries that wait for the next search.

    A search begins when all requests that have arrived are read. A single request
    therefore does not wait, and simultaneous ones share the work. Fast searches run in the
    event loop, others in a thread by `run` (see `Service.run`). The change of threads itself
    takes time, so that a request alone stays in the loop for longer.
    """

    def __init__(self, run: Callable[..., Any]) -> None:
        self._run = run
        self._waiting: dict[tuple[Search, Kind], list[Request]] = {}
        self._mean_seconds: dict[Kind, float] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def ask(
        self,
        search: Search,
        name: str,
        query: Any,
        *arguments: Any,
    ) -> asyncio.Future[bytes]:
        """Return the JSON that a search will answer.

        Its times are averaged by `name` and arguments.
        """
        loop = asyncio.get_running_loop()
        if not self._waiting:
            loop.call_soon(self._search_all)
        answer: asyncio.Future[bytes] = loop.create_future()
        requests = self._waiting.setdefault((search, (name, *arguments)), [])
        requests.append((query, answer))
        return answer

    def _search_all(self) -> None:
        waiting = self._waiting
        self._waiting = {}
        n_requests = sum(map(len, waiting.values()))
        is_alone = n_requests == 1 and not self._tasks
        limit = _QUICK_ALONE if is_alone else _QUICK
        for (search, kind), requests in waiting.items():
            for start in range(0, len(requests), _BATCH):
                batch = requests[start : start + _BATCH]
                queries, answers = zip(*batch, strict=True)
                work = partial(self._timed, search, queries, kind)
                if self._mean_seconds.get(kind, 0.0) > limit:
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
        queries: Sequence[Any],
        kind: Kind,
    ) -> list[bytes]:
        start = time.thread_time()  # excludes the time of other threads
        with kernels.at_most(1):  # leave the other cores to other workers
            _, *arguments = kind
            answers = search(list(queries), *arguments)
            texts = [msgspec.json.encode(answer) for answer in answers]
        seconds = time.thread_time() - start
        mean = self._mean_seconds.get(kind, seconds)
        if len(self._mean_seconds) > _MEANS:  # some are of replaced models
            self._mean_seconds.clear()
        self._mean_seconds[kind] = mean + _MEMORY * (seconds - mean)
        return texts


def _set_results(answers: Answers, texts: Sequence[bytes]) -> None:
    for answer, text in zip(answers, texts, strict=True):
        if not answer.done():  # the client may have gone
            answer.set_result(text)


def _set_error(answers: Answers, error: Exception) -> None:
    for answer in answers:
        if not answer.done():
            answer.set_exception(error)

"""Batches: requests that arrive together are answered by one search."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from lowrank import kernels
from recsys.serve.facts import Json

_MOST = 32  # questions of one search
_QUICK = 0.003  # seconds: a search that takes longer leaves the event loop to others
_MEMORY = 0.1  # weight of the last search in the mean time of one
_KNOWN = 100  # mean times that are remembered

Answer = Callable[[list[Any], int], list[Json]]
"""Lists of n items in answer to some questions, such as users or items."""
Done = Callable[["bytes | Exception"], None]
"""Taker of the JSON of an answer, or of the error that it ended in."""


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
        self._waiting: dict[tuple[Answer, str, int], list[tuple[Any, Done]]] = {}
        self._seconds: dict[str, float] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def ask(self, answer: Answer, name: str, question: Any, n: int, done: Done) -> None:
        """Give the JSON of an answer to `done`, later; searches of one name take about as long."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._search)
        self._waiting.setdefault((answer, name, n), []).append((question, done))

    def _search(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for (answer, name, n), requests in waiting.items():
            for start in range(0, len(requests), _MOST):
                batch = requests[start : start + _MOST]
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
        self, answer: Answer, name: str, questions: Sequence[Any], n: int, waiting: Sequence[Done]
    ) -> None:
        try:
            found: Any = await self._run(self._timed, answer, name, questions, n)
        except Exception as error:
            found = [error] * len(waiting)
        for done, each in zip(waiting, found, strict=True):
            done(each)

    def _timed(self, answer: Answer, name: str, questions: Sequence[Any], n: int) -> list[bytes]:
        start = time.thread_time()  # not what others take of the processor
        with kernels.at_most(1):  # more threads would take the cores of other workers
            found = [msgspec.json.encode(each) for each in answer(list(questions), n)]
        seconds = time.thread_time() - start
        mean = self._seconds.get(name, seconds)
        if len(self._seconds) > _KNOWN:  # of models that are gone
            self._seconds.clear()
        self._seconds[name] = mean + _MEMORY * (seconds - mean)
        return found

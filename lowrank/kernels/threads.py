"""The number of threads of the kernels and of BLAS."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Lock
from typing import Any

from threadpoolctl import OpenBLASController, threadpool_limits

__all__ = ["at_most", "available_cores", "one_blas_thread", "resolve_threads"]

_MOST = 1024  # more than any machine makes use of; a wish for a billion is not one for a crash

_limit: ContextVar[int | None] = ContextVar("lowrank_threads", default=None)

_lock = Lock()
_users = 0  # threads inside `one_blas_thread`
_limits: Any = None  # restores the setting from before the first of them
# From threadpoolctl 3.8 on, the setting belongs to the thread that made it, unless it is released.
_release = getattr(OpenBLASController, "clear_controlling_thread", lambda force: None)


def available_cores() -> int:
    """Return the number of cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def resolve_threads(threads: int | None) -> int:
    """Return `threads`, at most 1,024; for None the limit of `at_most`, or the available cores.

    Raises
    ------
    ValueError
        If `threads` is below 1.
    """
    if threads is None:
        return _limit.get() or available_cores()
    if threads < 1:
        raise ValueError(f"threads must be at least 1, or None for all cores; got {threads}.")
    return min(int(threads), _MOST)


@contextmanager
def at_most(threads: int | None) -> Iterator[None]:
    """Set what None means to `resolve_threads` inside the block; None leaves it as it is."""
    token = _limit.set(resolve_threads(threads))
    try:
        yield
    finally:
        _limit.reset(token)


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Keep BLAS to one thread inside the block, for work that runs in threads of its own.

    The setting holds for the whole process and returns when the last thread leaves such a block.
    """
    global _users, _limits
    with _lock:
        if _users == 0:
            _release(force=True)
            _limits = threadpool_limits(limits=1, user_api="blas")
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                _release(force=True)
                _limits.restore_original_limits()
                _release(force=True)

"""How many threads to use, and keeping BLAS out of their way."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["available_cores", "one_blas_thread", "resolve_threads"]


def available_cores() -> int:
    """Return the number of cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def resolve_threads(threads: int | None) -> int:
    """Return `threads`, or the available cores for None.

    Raises
    ------
    ValueError
        If `threads` is below 1.
    """
    if threads is None:
        return available_cores()
    if threads < 1:
        raise ValueError(f"threads must be at least 1, or None for all cores; got {threads}.")
    return int(threads)


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Keep BLAS to one thread inside the block, for work that runs in threads of its own.

    The previous setting returns at the end of the block.
    """
    from threadpoolctl import threadpool_limits

    with threadpool_limits(limits=1, user_api="blas"):
        yield

"""How much memory there is, before something large is asked for, and what is too large for that."""

from __future__ import annotations

import os
from pathlib import Path

from recsys.errors import DataError

__all__ = [
    "absurd",
    "available_memory",
    "gibibytes",
    "machine_memory",
    "over_memory",
    "refuse_absurd",
]

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")
_MOST_ROWS = 2**32 - 1  # that polars counts
_ABSURD_RATIO, _ABSURD_SIZE = 250, 1 << 28  # what expands is refused when it exceeds both


def available_memory() -> int | None:
    """Return the bytes that this process may still take without swapping, None if unknown.

    On Linux what the kernel estimates, and no more than a container's limit leaves; elsewhere all
    the memory that the machine has.

    Examples
    --------
    >>> available_memory() is None or available_memory() > 0
    True
    """
    found = [free for free in (_of_machine(), _of_container()) if free is not None]
    return min(found) if found else None


def machine_memory() -> int | None:
    """Return the bytes of memory that the machine has, None if the system does not tell.

    Examples
    --------
    >>> machine_memory() is None or machine_memory() > 0
    True
    """
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


def gibibytes(size: float) -> str:
    """Write a number of bytes in GiB.

    Examples
    --------
    >>> gibibytes(1.5 * 2**30)
    '1.5 GiB'
    """
    return f"{size / 2**30:.1f} GiB"


def over_memory(rows: int, needed: int, free: int | None) -> str | None:
    """Say why so many rows, or the bytes they need, are too many; None if they may fit."""
    if rows > _MOST_ROWS:
        return f"has more than the {_MOST_ROWS:,} rows that can be read of one file."
    if free is None or needed <= free:
        return None
    return (
        f"has {rows:,} row{'s' * (rows != 1)}, which take at least {gibibytes(needed)} in memory, "
        f"and {gibibytes(free)} are free; split the file, or work on a part of it."
    )


def refuse_absurd(size: int, packed_size: int, name: str, remedy: str = "") -> None:
    """Refuse what expands to a size that it has only to do harm.

    Parameters
    ----------
    size, packed_size : int
        In bytes.
    name : str
        What the message calls it.
    remedy : str
        What the message says in the end.

    Raises
    ------
    DataError
        If both the size and its ratio to the packed one are out of all proportion.
    """
    reason = absurd(size, packed_size)
    if reason is not None:
        raise DataError(f"{name} {reason}{remedy}")


def absurd(size: int, packed_size: int) -> str | None:
    """Say why it is absurd that something expands to a size, None if it is not."""
    if size <= _ABSURD_SIZE or size <= _ABSURD_RATIO * packed_size:
        return None
    return (
        f"expands to more than {_ABSURD_RATIO} times its size; it is damaged or meant to do harm."
    )


def _of_machine() -> int | None:
    try:
        for line in _MEMINFO.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return machine_memory()


def _of_container() -> int | None:
    """Return what the limit of the control group (version 2) leaves; None without one."""
    try:
        limit = int((_CGROUP / "memory.max").read_text())  # "max" where there is no limit
        return max(0, limit - int((_CGROUP / "memory.current").read_text()))
    except (OSError, ValueError):
        return None

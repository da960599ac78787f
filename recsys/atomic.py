"""Temporary files and directories next to their place, renamed when complete; locks of these."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

try:
    import fcntl
except ImportError:  # not on Windows, where a directory cannot be locked
    fcntl = None  # type: ignore[assignment]

__all__ = ["exclusive", "flush", "put_in_place", "unfinished_directory", "unfinished_file"]


@contextmanager
def unfinished_directory(target: Path) -> Iterator[Path]:
    """Yield a new directory next to `target`, which is removed at the end if it is still there."""
    path = _hidden(target)
    path.mkdir()
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def unfinished_file(target: Path) -> Iterator[tuple[Path, IO[bytes]]]:
    """Yield a new file next to `target` and its name; it is removed at the end if still there."""
    path = _hidden(target)
    try:
        with path.open("xb") as stream:
            yield path, stream
    finally:
        path.unlink(missing_ok=True)


def put_in_place(new: Path, target: Path) -> None:
    """Write the directory `new` to the disk and rename it to `target`; one there is removed."""
    with ThreadPoolExecutor() as pool:  # which only wait
        list(pool.map(flush, [*(each for each in new.rglob("*") if not each.is_symlink()), new]))
    if target.exists():
        aside = _hidden(target)
        try:
            target.rename(aside)
            new.rename(target)
        finally:
            if not target.exists():
                aside.rename(target)
            shutil.rmtree(aside, ignore_errors=True)
    else:
        new.rename(target)
    flush(target.parent)


@contextmanager
def exclusive(directory: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Lock a directory for a change of it; other processes that lock it wait for the end.

    `on_wait` is called before waiting. The lock is the system's (`flock`): it leaves no file, and
    ends with the process. Where there is none, as on Windows, nothing is locked.
    """
    with ExitStack() as held:
        while fcntl is not None:
            descriptor = os.open(directory, os.O_RDONLY)
            held.callback(os.close, descriptor)
            try:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    on_wait()
                    fcntl.flock(descriptor, fcntl.LOCK_EX)
                # The one that held the lock may have put another directory in the place.
                if os.path.samestat(os.fstat(descriptor), directory.stat()):
                    break
            except FileNotFoundError:  # it does so at this moment
                continue
            except OSError:  # a file system without locks
                break
        yield


def flush(path: Path) -> None:
    """Write a file or the entries of a directory to the disk."""
    if path.is_dir() and os.name == "nt":  # directories cannot be opened there
        return
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _hidden(target: Path) -> Path:
    return target.with_name(f".{target.name}.{os.urandom(4).hex()}.tmp")

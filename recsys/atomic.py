"""What is written beside its place and renamed when it is complete, and what killed runs left.

Unfinished work has a hidden name, ``.NAME.MARK.tmp``, and is locked by the process at work on it.
A process that is killed leaves it behind without the lock, so that the next one that writes to the
same place knows it, and removes it.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

__all__ = ["old_one_of", "put_in_place", "unfinished_directory", "unfinished_file"]

_AGAIN = 10  # times that a new name is tried, if others remove it before it is locked


@contextmanager
def unfinished_directory(target: Path) -> Iterator[Path]:
    """Yield a new directory beside `target`, which is removed at the end if it is still there."""
    _remove_leftovers(target)
    for _ in range(_AGAIN):
        path = _hidden(target, "tmp")
        try:
            path.mkdir()
            with _locked(path) as is_ours:
                if is_ours:
                    yield path
                    return
        finally:
            shutil.rmtree(path, ignore_errors=True)
    raise FileNotFoundError(2, os.strerror(2), os.fspath(path))


@contextmanager
def unfinished_file(target: Path) -> Iterator[tuple[Path, IO[bytes]]]:
    """Yield a new file beside `target` and its name, which is removed at the end as above."""
    _remove_leftovers(target)
    for _ in range(_AGAIN):
        path = _hidden(target, "tmp")
        try:
            with path.open("xb") as stream, _locked(path) as is_ours:
                if is_ours:
                    yield path, stream
                    return
        finally:
            path.unlink(missing_ok=True)
    raise FileNotFoundError(2, os.strerror(2), os.fspath(path))


def put_in_place(new: Path, target: Path) -> None:
    """Rename the directory `new` to `target`; one that is there is removed.

    Where the system can exchange two names at one stroke (Linux), there is never nothing at
    `target`; elsewhere the old one has a hidden name for a moment, which `old_one_of` finds.
    """
    if not target.exists():
        new.rename(target)
        return
    if _exchange(new, target):
        shutil.rmtree(new, ignore_errors=True)
        return
    aside = _hidden(target, "old")
    try:
        target.rename(aside)
        new.rename(target)
    finally:
        if not target.exists():
            aside.rename(target)
        shutil.rmtree(aside, ignore_errors=True)


def old_one_of(target: Path) -> Path | None:
    """Return what was at `target` when a process was killed that was about to replace it."""
    if target.exists():
        return None
    return next((path for path in _leftovers(target) if path.suffix == ".old"), None)


def _hidden(target: Path, suffix: str) -> Path:
    return target.with_name(f".{target.name}.{os.urandom(4).hex()}.{suffix}")


def _leftovers(target: Path) -> list[Path]:
    """Return all hidden names of work on `target`, whether it is going on or not."""
    pattern = re.compile(rf"\.{re.escape(target.name)}\.[0-9a-f]{{8}}\.(tmp|old)")
    try:
        return sorted(each for each in target.parent.iterdir() if pattern.fullmatch(each.name))
    except OSError:  # a directory in which one may write but not look around
        return []


def _remove_leftovers(target: Path) -> None:
    """Remove what killed processes left; an old one only if there is a new one."""
    for path in _leftovers(target):
        if path.is_symlink() or (path.suffix == ".old" and not target.exists()):
            continue
        with suppress(OSError), _locked(path, wait=False) as is_ours:
            if not is_ours:
                continue
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink()


@contextmanager
def _locked(path: Path, *, wait: bool = True) -> Iterator[bool]:
    """Lock a file or directory; yield whether it is there and locked by nobody else.

    Where nothing can be locked, new work goes on unlocked, and nothing is taken for a leftover.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        yield wait
        return
    try:
        lock = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        yield False
        return
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            is_ours = _is_same(path, lock)
        except OSError:
            is_ours = wait
        yield is_ours
    finally:
        os.close(lock)


def _is_same(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.lstat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _exchange(first: Path, second: Path) -> bool:
    """Exchange two names at one stroke; return whether the system could."""
    try:
        import ctypes

        exchange = ctypes.CDLL(None, use_errno=True).renameat2
    except (ImportError, OSError, TypeError, AttributeError):  # not Linux, or an old C library
        return False
    here, swap = -100, 2  # AT_FDCWD and RENAME_EXCHANGE
    names = os.fsencode(first.absolute()), os.fsencode(second.absolute())
    return bool(exchange(here, names[0], here, names[1], swap) == 0)

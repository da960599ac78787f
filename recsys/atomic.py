"""Atomic changes of files and directories: temporary ones that are renamed, locks and links."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]
try:
    import msvcrt
except ImportError:  # on Windows only
    msvcrt = None  # type: ignore[assignment]

_PAUSE = 0.1  # seconds between attempts to lock a file


@contextmanager
def unfinished_directory(target: Path) -> Iterator[Path]:
    """Yield a new directory next to `target`, and remove it at the end unless it was renamed."""
    path = _hidden(target)
    try:  # includes mkdir, because an interrupt may come directly after it
        path.mkdir()
        yield path
    finally:
        _remove(path)


@contextmanager
def unfinished_file(target: Path) -> Iterator[tuple[Path, IO[bytes]]]:
    """Yield the path and stream of a new file next to `target`; remove it unless renamed."""
    path = _hidden(target)
    try:
        with path.open("xb") as stream:
            yield path, stream
    finally:
        path.unlink(missing_ok=True)


def put_in_place(new: Path, target: Path) -> None:
    """Flush the directory `new` to the disk, and rename it to `target`, which it replaces."""
    from concurrent.futures import ThreadPoolExecutor  # slow to import, and rarely needed

    with ThreadPoolExecutor() as pool:  # the threads mostly wait
        list(pool.map(flush, [*(each for each in new.rglob("*") if not each.is_symlink()), new]))
    if target.exists():
        aside = _hidden(target)
        try:
            target.rename(aside)
            new.rename(target)
        finally:
            if not target.exists():
                aside.rename(target)
            _remove(aside)
    else:
        new.rename(target)
    flush(target.parent)


@contextmanager
def exclusive(directory: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Lock a directory against changes by other processes that use this lock.

    `on_wait` is called before waiting for another process. The lock (`flock`) ends with the
    process. Windows cannot lock directories, so a hidden file next to the directory is locked.
    """
    if fcntl is None and msvcrt is not None:
        with _locked_file(directory.with_name(f".{directory.name}.lock"), on_wait):
            yield
        return
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
                # The previous holder of the lock may have replaced the directory.
                if os.path.samestat(os.fstat(descriptor), directory.stat()):
                    break
            except FileNotFoundError:  # the directory is being replaced
                continue
            except OSError:  # a file system without locks
                break
        yield


@contextmanager
def _locked_file(path: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Lock the first byte of a file on Windows, and remove the file afterwards."""
    lock, unlock = msvcrt.LK_NBLCK, msvcrt.LK_UNLCK  # type: ignore[attr-defined]
    with path.open("ab") as file:
        is_waiting = False
        while True:
            try:
                file.seek(0)
                msvcrt.locking(file.fileno(), lock, 1)  # type: ignore[attr-defined]
                break
            except OSError:
                if not is_waiting:
                    on_wait()
                is_waiting = True
                time.sleep(_PAUSE)
        try:
            yield
        finally:
            file.seek(0)
            msvcrt.locking(file.fileno(), unlock, 1)  # type: ignore[attr-defined]
    with suppress(OSError):  # another process has the file open
        path.unlink()


def move_link(link: Path, name: str) -> None:
    """Let `link` point to `name` in the same directory, atomically.

    The link is relative. If links are not allowed, as for most users of Windows, a text file with
    the name is written instead, which `recsys.resolved` follows.
    """
    new = _hidden(link)
    try:
        new.symlink_to(name, target_is_directory=True)
    except OSError:
        new.write_text(f"{name}\n", encoding="utf-8")
        flush(new)
    try:
        new.replace(link)
    finally:
        with suppress(FileNotFoundError):
            new.unlink()
    flush(link.parent)


def flush(path: Path) -> None:
    """Write a file or the entries of a directory to the disk."""
    if path.is_dir() and os.name == "nt":  # Windows cannot open directories
        return
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(directory: Path) -> None:
    """Remove a directory; an interrupt is raised again after the removal is complete."""
    try:
        shutil.rmtree(directory, ignore_errors=True)
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise


def _hidden(target: Path) -> Path:
    return target.with_name(f".{target.name}.{os.urandom(4).hex()}.tmp")

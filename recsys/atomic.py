"""Temporary files and directories next to their place, renamed when complete; locks and links."""

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

_PAUSE = 0.1  # seconds


@contextmanager
def unfinished_directory(target: Path) -> Iterator[Path]:
    """Yield a new directory next to `target`, which is removed at the end if it is still there."""
    path = _hidden(target)
    try:  # around the making, too: an interrupt may come between it and the next line
        path.mkdir()
        yield path
    finally:
        _remove(path)


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
    from concurrent.futures import ThreadPoolExecutor  # slow to import, for help that is not

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
            _remove(aside)
    else:
        new.rename(target)
    flush(target.parent)


@contextmanager
def exclusive(directory: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Lock a directory for a change of it; other processes that lock it wait for the end.

    `on_wait` is called before waiting. The lock is the system's (`flock`), and ends with the
    process. On Windows, where a directory cannot be locked, a hidden file next to it is.
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
                # The one that held the lock may have put another directory in the place.
                if os.path.samestat(os.fstat(descriptor), directory.stat()):
                    break
            except FileNotFoundError:  # it does so at this moment
                continue
            except OSError:  # a file system without locks
                break
        yield


@contextmanager
def _locked_file(path: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Lock the first byte of a file as Windows does, and remove the file afterwards."""
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
    with suppress(OSError):  # the next one has it open
        path.unlink()


def move_link(link: Path, name: str) -> None:
    """Let `link` point to what is called `name` next to it, from one moment to the next.

    The link is relative. Where links are not allowed, as for most users of Windows, it is a file of
    text with the name, which `recsys.resolved` follows.
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
    if path.is_dir() and os.name == "nt":  # directories cannot be opened there
        return
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(directory: Path) -> None:
    """Remove a directory, and go on after an interrupt, which is raised when that is done."""
    try:
        shutil.rmtree(directory, ignore_errors=True)
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise


def _hidden(target: Path) -> Path:
    return target.with_name(f".{target.name}.{os.urandom(4).hex()}.tmp")

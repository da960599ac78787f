"""Atomic changes of files and directories: temporary ones that are renamed, locks and links.

A process may be killed at any moment. What it leaves is hidden and has a name that only this module
gives, so the next process that writes to the same directory removes it: nobody holds its lock.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import IO

from recsys.errors import DataError

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]
try:
    import msvcrt
except ImportError:  # on Windows only
    msvcrt = None  # type: ignore[assignment]

_PAUSE = 0.1  # seconds between attempts to lock a file
_ATTEMPTS = 10
_ABANDONED = 24 * 3600.0  # age in seconds of remains of others, where locks do not work
_BETWEEN_RENAMES = 60.0  # age in seconds of a directory that was put aside, likewise
_AT_FDCWD = -100  # of renameat2: paths are relative to the current directory
_EXCHANGE = 2  # RENAME_EXCHANGE of Linux, and RENAME_SWAP of macOS
_UNABLE = {errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}
_mine = threading.local()  # identities of what this thread has locked


@contextmanager
def unfinished_directory(target: Path) -> Iterator[Path]:
    """Yield a new directory next to `target`, and remove it at the end unless it was renamed."""
    remove_remains(target)
    with _new_directory(target) as path:
        yield path


@contextmanager
def scratch_directory() -> Iterator[Path]:
    """Yield a private temporary directory, and remove those of killed processes."""
    import tempfile  # slow to import, and rarely needed

    target = Path(tempfile.gettempdir(), "recsys")
    # Other files there are of others, whatever their names are.
    _remove_unused(_remains(target, "tmp"))
    with _new_directory(target, mode=0o700) as path:
        yield path


@contextmanager
def _new_directory(target: Path, mode: int = 0o777) -> Iterator[Path]:
    while True:
        path = _hidden(target)
        try:  # includes mkdir, because an interrupt may come directly after it
            path.mkdir(mode)
            with _claimed(path) as is_mine:
                if is_mine:
                    yield path
                    return
        finally:
            _remove(path)


@contextmanager
def unfinished_file(target: Path) -> Iterator[tuple[Path, IO[bytes]]]:
    """Yield the path and stream of a new file next to `target`; remove it unless renamed."""
    remove_remains(target)
    while True:
        path = _hidden(target)
        try:
            with path.open("xb") as stream, _claimed(path) as is_mine:
                if is_mine:
                    yield path, stream
                    return
        finally:
            path.unlink(missing_ok=True)


def replace_file(new: Path, target: Path) -> None:
    """Flush the file `new` to the disk, and rename it to `target`.

    Otherwise, a power failure could leave an empty file.
    """
    flush(new)
    new.replace(target)
    _flush_name(target)


def put_in_place(
    new: Path,
    target: Path,
    *,
    replace: bool = True,
) -> None:
    """Flush the directory `new` to the disk, and rename it to `target`.

    With `replace`, an existing target is exchanged for the new one in one step, and is then at
    `new`. Where the system cannot do that, it is missing for a moment; if the process is killed
    then, `recover` brings it back.

    Raises
    ------
    FileExistsError
        If there is a target, and it is not to be replaced.
    """
    # Slow to import, and rarely needed.
    from concurrent.futures import ThreadPoolExecutor

    paths = [path for path in new.rglob("*") if not path.is_symlink()]
    with ThreadPoolExecutor() as pool:  # the threads mostly wait
        list(pool.map(flush, [*paths, new]))
    if not replace or not target.exists():
        _rename_to_free_name(new, target)
    else:
        with exclusive(target, lambda: None):  # after an update in progress has ended
            if not _exchange(new, target):
                _replace_in_two_steps(new, target)
    _flush_name(target)


def _rename_to_free_name(new: Path, target: Path) -> None:
    """Rename a directory.

    Raises
    ------
    FileExistsError
    """
    try:
        new.rename(target)
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
            raise
        raise FileExistsError(
            errno.EEXIST, os.strerror(errno.EEXIST), str(target)
        ) from error


def _exchange(one: Path, other: Path) -> bool:
    """Exchange the names of two directories in one step; return False if the system cannot."""
    import ctypes  # slow to import, and rarely needed

    if os.name == "nt":
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    paths = os.fsencode(one), os.fsencode(other)
    if sys.platform == "darwin":
        failed = libc.renamex_np(*paths, _EXCHANGE)
    elif hasattr(libc, "renameat2"):
        failed = libc.renameat2(_AT_FDCWD, paths[0], _AT_FDCWD, paths[1], _EXCHANGE)
    else:
        return False
    number = ctypes.get_errno() if failed else 0
    if number and number not in _UNABLE:
        raise OSError(number, os.strerror(number), str(other))
    return not failed


def _replace_in_two_steps(new: Path, target: Path) -> None:
    """Put a directory aside and rename another one to its name; undo it on failure."""
    aside = _hidden(target).with_suffix(".old")
    try:
        target.rename(aside)
        new.rename(target)
    finally:
        if not target.exists():
            aside.rename(target)
        _remove(aside)


def recover(target: Path) -> bool:
    """Bring a directory back that a killed process has put aside; return whether there was one."""
    if target.exists():
        return False
    for path in _remains(target, "old"):
        with _unused(path, _BETWEEN_RENAMES) as is_unused:
            if is_unused and not target.exists():
                path.rename(target)
                return True
    return False


def remove_remains(target: Path) -> None:
    """Remove what killed processes have left of unfinished writes to the directory of a target.

    Versions have a name each, so nobody would write to the target of a killed process again.
    """
    recover(target)
    # Another target that was put aside may have to be recovered.
    _remove_unused(_remains(target, "tmp", of_any=True))
    _remove_unused(_remains(target, "old"))


def _remove_unused(paths: Iterable[Path]) -> None:
    """Remove temporary files and directories that no process uses."""
    for path in paths:
        if path.is_symlink():
            continue  # see `move_link`
        with suppress(OSError), _unused(path, _ABANDONED) as is_unused:
            if is_unused and path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            elif is_unused:
                path.unlink()


def _remains(
    target: Path,
    suffix: str,
    *,
    of_any: bool = False,
) -> list[Path]:
    """Return temporary files and directories of a target, or of all targets next to it."""
    name = ".+" if of_any else re.escape(target.name)
    pattern = re.compile(_hidden_names(name, suffix))
    try:
        return sorted(
            path for path in target.parent.iterdir() if pattern.fullmatch(path.name)
        )
    except OSError:  # not readable, or missing, which is reported where it is used
        return []


def hidden_names(name: str) -> str:
    """Return a pattern of the temporary names of a target."""
    return _hidden_names(re.escape(name), "tmp")


def _hidden_names(pattern: str, suffix: str) -> str:
    return rf"\.{pattern}\.[0-9a-f]{{8}}\.{suffix}"


@contextmanager
def _claimed(path: Path) -> Iterator[bool]:
    """Lock a new temporary file or directory, which is in use while it is locked.

    Yield False if another process took it for remains just before.
    """
    if fcntl is None:
        yield True
        return
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        yield False
        return
    try:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield is_at(descriptor, path)
    finally:
        os.close(descriptor)


def is_at(descriptor: int, path: Path) -> bool:
    """Return whether an open file or directory is still the one at a path."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


@contextmanager
def _unused(path: Path, age: float) -> Iterator[bool]:
    """Lock a temporary file or directory if nobody uses it; yield whether nobody does.

    Where locks do not work, nobody uses what has not changed for `age` seconds.
    """
    with ExitStack() as stack:
        is_unused = False
        try:
            if fcntl is None:
                is_unused = _is_old(path, age)
            else:
                descriptor = os.open(path, os.O_RDONLY)
                stack.callback(os.close, descriptor)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    is_unused = True
                except BlockingIOError:
                    is_unused = False
                except OSError:  # a file system without locks
                    is_unused = _is_old(path, age)
        except OSError:  # gone, or of somebody else
            is_unused = False
        yield is_unused


def _is_old(path: Path, age: float) -> bool:
    """Return whether a file or directory has not changed for `age` seconds."""
    return time.time() - path.lstat().st_mtime > age


@contextmanager
def exclusive(path: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Lock a directory or file against changes by other processes that use this lock.

    `on_wait` is called before waiting for another process. The lock (`flock`) ends with the
    process. A thread may lock again what it has locked. Windows cannot lock directories, so a
    hidden file next to the directory is locked.

    Raises
    ------
    FileNotFoundError
        If there is nothing at the path.
    """
    with ExitStack() as stack:
        if fcntl is not None:
            key: object = _locked(path, on_wait, stack)
        elif msvcrt is not None:
            key = os.path.realpath(path)
            if key not in _locked_here():
                hidden = path.with_name(f".{path.name}.lock")
                stack.enter_context(_locked_file(hidden, on_wait))
        else:
            key = None
        if key in _locked_here():
            yield
            return
        _locked_here().add(key)
        try:
            yield
        finally:
            _locked_here().discard(key)


def _locked_here() -> set[object]:
    """Return the keys of what this thread has locked."""
    keys: set[object] | None = getattr(_mine, "keys", None)
    if keys is None:
        keys = _mine.keys = set()
    return keys


def _locked(
    path: Path,
    on_wait: Callable[[], None],
    stack: ExitStack,
) -> object:
    """Lock what is at a path until `stack` is closed, and return its identity."""
    attempt = 0
    while True:
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except FileNotFoundError:  # being replaced, in two steps
            attempt += 1
            if attempt == _ATTEMPTS:
                raise
            time.sleep(_PAUSE)
            continue
        stack.callback(os.close, descriptor)
        status = os.fstat(descriptor)
        identity = status.st_dev, status.st_ino
        if identity in _locked_here():
            return identity
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                on_wait()
                fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError:  # a file system without locks
            return identity
        if is_at(descriptor, path):  # the last holder of the lock may have replaced it
            return identity


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
    """Let the relative link `link` point to `name` in the same directory, atomically."""
    directory = (
        exclusive(link.parent, lambda: None) if fcntl is not None else nullcontext()
    )
    with directory:
        for path in _remains(link, "tmp"):
            if fcntl is not None or _is_old(path, _ABANDONED):
                path.unlink(missing_ok=True)
        new = _hidden(link)
        try:
            new.symlink_to(name, target_is_directory=True)
            new.replace(link)
        finally:
            new.unlink(missing_ok=True)
    _flush_name(link)


def flush(path: Path) -> None:
    """Write a file or the entries of a directory to the disk."""
    if path.is_dir() and os.name == "nt":  # Windows cannot open directories
        return
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    except OSError as error:
        error.filename = os.fspath(path)
        raise
    finally:
        os.close(descriptor)


def _flush_name(path: Path) -> None:
    """Write the name of a renamed file to the disk.

    Raises
    ------
    DataError
        If that fails. It says that the file is in place, unlike an error of the system.
    """
    try:
        flush(path.parent)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise DataError(
            f"{path} is written, but a power failure may lose it: its directory could not be "
            f"flushed to the disk ({reason})."
        ) from error


def _remove(directory: Path) -> None:
    """Remove a directory; what fails once, such as an allocation, is tried again.

    An interrupt is raised again after the removal is complete.
    """
    try:
        shutil.rmtree(directory)
    except BaseException as error:
        shutil.rmtree(directory, ignore_errors=True)
        if not isinstance(error, (OSError, MemoryError)):
            raise


def _hidden(target: Path) -> Path:
    return target.with_name(f".{target.name}.{os.urandom(4).hex()}.tmp")

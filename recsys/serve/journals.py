"""Journals: a durable log of events, and a log of recommendations."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from recsys.atomic import flush
from recsys.serve.problems import ProblemError

try:
    import fcntl
except ImportError:  # missing on Windows, where a single process writes
    fcntl = None  # type: ignore[assignment]

_TAIL = 2**20  # bytes searched for the start of a torn line
_LATER = 0.5  # seconds after which recommendations are written to the log
_KEPT = 2**26  # bytes that may wait for a slow disk; further lines are lost

_log = logging.getLogger("recsys.serve")


def append_lines(path: Path, lines: bytes, *, durable: bool) -> None:
    """Append whole lines to a file, all of them or none.

    The file is locked during the write, so that several processes can write to it, and another one
    can replace it. A torn last line, left by a killed process, is removed: it was not acknowledged.

    Raises
    ------
    OSError
        If the lines cannot be written; the file is as before.
    """
    with _locked(path) as descriptor:
        size = _whole_size(descriptor)
        try:
            rest = memoryview(lines)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            if durable:
                os.fsync(descriptor)
        except OSError:
            with suppress(OSError):
                os.ftruncate(descriptor, size)
            raise


@contextmanager
def _locked(path: Path) -> Iterator[int]:
    """Yield a descriptor of the file at the path, locked against other writers."""
    while True:
        is_new = not path.exists()
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o640)
        try:
            if fcntl is not None:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            if _is_at(descriptor, path):  # not replaced or removed since it was opened
                if is_new:
                    flush(path.parent)
                yield descriptor
                return
        finally:
            os.close(descriptor)


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _whole_size(descriptor: int) -> int:
    """Truncate a torn last line, and return the size of the file."""
    size = os.fstat(descriptor).st_size
    start = max(0, size - _TAIL)
    os.lseek(descriptor, start, os.SEEK_SET)
    tail = os.read(descriptor, size - start)
    whole = start + tail.rfind(b"\n") + 1
    if whole < size and (start == 0 or whole > start):
        os.ftruncate(descriptor, whole)
        return whole
    return size


class EventLog:
    """Log of events as JSON lines, which are acknowledged after they are written to disk.

    Requests that wait for the disk share one write.
    """

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        self._writer = ThreadPoolExecutor(1, "recsys-events")
        self._waiting: list[bytes] = []
        self._written: Future[None]
        self._lock = threading.Lock()

    async def store(self, lines: bytes) -> None:
        """Write lines, and return when they are on disk.

        Raises
        ------
        ProblemError
            If they cannot be written; the log then contains none of them.
        """
        with self._lock:
            self._waiting.append(lines)
            if len(self._waiting) == 1:
                self._written = self._writer.submit(self._write)
            written = self._written
        await asyncio.shield(
            asyncio.wrap_future(written)
        )  # the write is shared, so do not cancel it

    def _write(self) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, []
        try:
            append_lines(self.path, b"".join(waiting), durable=True)
        except OSError as error:
            _log.error("%s cannot be written: %s", self.path, error.strerror)
            reason = (error.strerror or "it cannot be written").lower()
            raise ProblemError("not-stored", f"The events are not stored: {reason}.") from None

    def close(self) -> None:
        """Write the remaining lines, and stop."""
        self._writer.shutdown(wait=True)


class RequestLog:
    """Log of recommendations as JSON lines, written in batches with a short delay.

    `on_loss` is called with the number of lines that could not be written.
    """

    def __init__(self, path: str, on_loss: Callable[[int], None]) -> None:
        self.path = Path(path)
        self._on_loss = on_loss
        self._lines: list[bytes] = []
        self._size = 0
        self._writer = ThreadPoolExecutor(1, "recsys-log")
        self._planned: asyncio.TimerHandle | None = None
        self._writing: Future[None] | None = None

    def add(self, answer: bytes) -> None:
        """Log an answer, a JSON object, with the time."""
        if self._size > _KEPT:
            self._on_loss(1)
            return
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        self._lines.append(b'{"time":"%s",%s\n' % (now.encode(), answer[1:]))
        self._size += len(answer)
        if self._planned is None:
            self._planned = asyncio.get_running_loop().call_later(_LATER, self._flush)

    def _flush(self) -> None:
        self._planned = None
        if self._writing is not None and not self._writing.done():  # a slow disk
            self._planned = asyncio.get_running_loop().call_later(_LATER, self._flush)
            return
        lines, self._lines, self._size = self._lines, [], 0
        self._writing = self._writer.submit(self._write, lines)

    def _write(self, lines: list[bytes]) -> None:
        try:
            append_lines(self.path, b"".join(lines), durable=False)
        except OSError as error:
            _log.error("%s cannot be written: %s", self.path, error.strerror)
            self._on_loss(len(lines))

    def close(self) -> None:
        """Write the remaining lines, and stop."""
        if self._planned is not None:
            self._planned.cancel()
        self._writer.submit(self._write, self._lines)
        self._writer.shutdown(wait=True)

"""Journals: a durable log of events, and a log of recommendations."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from recsys.atomic import flush, is_at
from recsys.errors import DataError
from recsys.serve.problems import ProblemError

try:
    import fcntl
except ImportError:  # missing on Windows, where a single process writes
    fcntl = None  # type: ignore[assignment]

_PIECE = 2**16  # bytes to read at a time in search of the last line
_LATER = 0.5  # seconds after which recommendations are written to the log
_KEPT = 2**26  # bytes that may wait for a slow disk; further lines are lost

_log = logging.getLogger("recsys.serve")


def append_lines(path: Path, lines: bytes, *, durable: bool) -> None:
    """Append whole lines to a file, all of them or none.

    The file is locked during the write, so that several processes can write to it, and another one
    can replace it. A last line without a line end gets one. If it is torn, as by a killed process,
    it is moved to a file with the suffix ".torn", because `recsys update` could not read it.

    Raises
    ------
    OSError
        If the lines cannot be written; the file is as before.
    """
    with _locked(path) as descriptor:
        size = _end_last_line(descriptor, path)
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
            if is_at(descriptor, path):  # not replaced or removed since it was opened
                if is_new:
                    flush(path.parent)
                yield descriptor
                return
        finally:
            os.close(descriptor)


def _end_last_line(descriptor: int, path: Path) -> int:
    """Add a missing line end, or move a torn last line to a file of its own; return the size."""
    size = os.fstat(descriptor).st_size
    last = _unended_line(descriptor, size)
    if not last:
        return size
    if not last.strip() or _object(last) is not None:
        os.write(descriptor, b"\n")
        return size + 1
    torn = path.with_name(f"{path.name}.torn")
    with torn.open("ab") as stream:
        stream.write(last + b"\n")
        stream.flush()
        os.fsync(stream.fileno())
    os.ftruncate(descriptor, size - len(last))
    _log.warning("%s ended in a part of a line, which is now in %s", path, torn)
    return size - len(last)


def _unended_line(descriptor: int, size: int) -> bytes:
    """Return the bytes after the last line end."""
    last, start = b"", size
    while start and b"\n" not in last:
        length = min(start, max(_PIECE, len(last)))
        start -= length
        os.lseek(descriptor, start, os.SEEK_SET)
        last = os.read(descriptor, length) + last
    return last[last.rfind(b"\n") + 1 :]


def _object(line: bytes) -> dict[str, Any] | None:
    """Return the JSON object in a line, or None."""
    try:
        return msgspec.json.decode(line, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def check_journal(path: Path, keys: Sequence[str], noun: str) -> None:
    """Check that lines can be appended to a file: it is new or empty, or has such lines already.

    `keys` are those of each line, and `noun` names the lines. Blank lines are of erased users.

    Raises
    ------
    DataError
        If the file is something else, or cannot be read.
    """
    try:
        with path.open("rb") as stream:
            first = next(
                (line for line in iter(stream.readline, b"") if line.strip()), b""
            )
    except FileNotFoundError:
        return
    except OSError as error:
        raise DataError(
            f"{path} cannot be read: {(error.strerror or '').lower()}."
        ) from None
    beginning = b'{"%s":' % keys[0].encode()
    if not first.endswith(b"\n") and beginning.startswith(first[: len(beginning)]):
        return  # empty, or with a torn line only
    if not (_object(first) or {}).keys() >= {*keys}:
        lines = f"JSON lines with the keys {' and '.join(keys)}"
        raise DataError(
            f"{path} is not a log of {noun}, which has {lines}; name another file, or a new one."
        )


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
            raise ProblemError(
                "not-stored", f"The events are not stored: {reason}."
            ) from None

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
        now = (
            datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        )
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

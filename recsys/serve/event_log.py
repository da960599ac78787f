"""Journals: a durable log of events, and a log of recommendations."""

from __future__ import annotations

import asyncio
import logging
import mmap
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from recsys.errors import DataError
from recsys.messages import system_reason
from recsys.saving.atomic import flush, is_at
from recsys.serve.problems import ProblemError

try:
    import fcntl
except ImportError:  # missing on Windows, where a single process writes
    fcntl = None  # type: ignore[assignment]

_MAX_WAITING = 2**26  # bytes that may wait for a slow disk; further lines are lost

_log = logging.getLogger("recsys.serve")


def append_lines(
    path: Path,
    lines: bytes,
    *,
    durable: bool,
) -> None:
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
            unwritten = lines
            while unwritten:
                n_written = os.write(descriptor, unwritten)
                unwritten = unwritten[n_written:]
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
        # O_APPEND: also without locks, no write overwrites another.
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o640)
        try:
            if fcntl is not None:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            if is_at(descriptor, path):  # not replaced or removed since it was opened
                if not os.fstat(descriptor).st_size:
                    # It may be new, or its name may not be on the disk.
                    flush(path.parent)
                yield descriptor
                return
        finally:
            os.close(descriptor)


def _end_last_line(descriptor: int, path: Path) -> int:
    """Add a missing line end, or move a torn last line to a file of its own; return the size."""
    size = os.fstat(descriptor).st_size
    if not size:
        return size
    # The log may be large; the search begins at its end.
    with mmap.mmap(descriptor, size, access=mmap.ACCESS_READ) as contents:
        last = contents[contents.rfind(b"\n") + 1 :]
    if not last:
        return size
    if not last.strip() or _object(last) is not None:
        os.write(descriptor, b"\n")
        return size + 1
    torn = path.with_name(f"{path.name}.torn")
    # It may have been acknowledged on a disk that lost its end.
    with torn.open("ab") as stream:
        stream.write(last + b"\n")
        stream.flush()
        os.fsync(stream.fileno())
    flush(torn.parent)
    os.ftruncate(descriptor, size - len(last))
    _log.warning("%s ended in a part of a line, which is now in %s", path, torn)
    return size - len(last)


def _object(line: bytes) -> dict[str, Any] | None:
    """Return the JSON object in a line, or None."""
    try:
        return msgspec.json.decode(line, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def check_journal(
    path: Path,
    keys: Sequence[str],
    noun: str,
) -> None:
    """Check that lines can be appended to a file: it is new or empty, or has such lines already.

    `keys` are the keys of each line, and `noun` names the lines. Blank lines are of erased users.

    Raises
    ------
    DataError
        If the file is something else, or cannot be read.
    """
    try:
        with path.open("rb") as stream:
            first = next(filter(bytes.strip, stream), b"")
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


class LineLog:
    """Log of JSON lines; lines that wait for the disk share one write.

    `delay` is the time in seconds in which further lines may join a write. `on_loss` is
    called with the number of entries that could not be written.
    """

    def __init__(
        self,
        path: str,
        *,
        durable: bool,
        delay: float = 0.0,
        on_loss: Callable[[int], None] | None = None,
    ) -> None:
        self.path = Path(path)
        self._durable = durable
        self._delay = delay
        self._on_loss = on_loss
        self._writer = ThreadPoolExecutor(1, "recsys-log")
        self._lock = threading.Lock()
        self._waiting: list[bytes] = []
        self._size = 0
        self._written: Future[None] = Future()

    def append(self, lines: bytes) -> Future[None]:
        """Write lines later; the future ends when they are written, all of them or none.

        It raises a `ProblemError` if they cannot be written.
        """
        with self._lock:
            self._waiting.append(lines)
            self._size += len(lines)
            # One write takes all lines that arrive until it begins.
            if len(self._waiting) == 1:
                self._written = self._writer.submit(self._write)
            return self._written

    async def store(self, lines: bytes) -> None:
        """Write lines, and return when they are on disk.

        Raises
        ------
        ProblemError
            If they cannot be written; the log then contains none of them.
        """
        written = asyncio.wrap_future(self.append(lines))
        await asyncio.shield(written)  # the write is shared, so do not cancel it

    def add_with_time(self, answer: bytes) -> None:
        """Log an answer, a JSON object, with the time; it is lost if the disk is too slow."""
        if self._size > _MAX_WAITING:
            self._lose(1)
            return
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        time_text = now.replace("+00:00", "Z").encode()
        self.append(b'{"time":"%s",%s\n' % (time_text, answer[1:]))

    def _write(self) -> None:
        time.sleep(self._delay)
        with self._lock:
            # Lines that arrive from here on have a write of their own.
            waiting = self._waiting
            self._waiting = []
            self._size = 0
        try:
            append_lines(self.path, b"".join(waiting), durable=self._durable)
        except (OSError, MemoryError) as error:
            reason = system_reason(error) or "not enough memory"
            _log.error("%s cannot be written: %s", self.path, reason)
            self._lose(len(waiting))
            sentence = f"The events are not stored: {reason.lower()}."
            raise ProblemError("not-stored", sentence) from None

    def _lose(self, count: int) -> None:
        if self._on_loss is not None:
            self._on_loss(count)

    def close(self) -> None:
        """Write the remaining lines, and stop."""
        self._writer.shutdown(wait=True)

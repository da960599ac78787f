"""Events of the last minutes by user, from the end of the journal of events."""

from __future__ import annotations

import os
import threading
from collections import deque
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

from recsys.serve.catalogue import Id

_LASTING = timedelta(minutes=60)
_TAIL = 2**24  # bytes at the end of an old journal that are read at first
_MOST = 1000  # events of a visitor that count, the latest ones


class StoredEvent(msgspec.Struct):
    """Event in the journal."""

    user: int | str
    item: int | str
    timestamp: datetime
    value: float | None = None
    event: str | None = None
    event_id: str | None = None


_DECODER = msgspec.json.Decoder(StoredEvent)


class RecentEvents:
    """Events of the last hour in a journal, to which all workers write.

    Each call reads what was written since the last one.
    """

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._lock = threading.Lock()
        self._events: dict[str, deque[StoredEvent]] = {}
        self._swept = datetime.now(UTC)
        self._file = (0, 0)  # device and inode
        self._end = 0

    def of(self, user: Id) -> list[StoredEvent]:
        """Return the events of a user, the oldest first, each once."""
        oldest = datetime.now(UTC) - _LASTING
        with self._lock:
            self._read(oldest)
            events = [*self._events.get(str(user), ())]
        # A client may send an event again.
        distinct = {
            event.event_id or (event.item, event.event, event.timestamp): event
            for event in events
            if event.timestamp >= oldest
        }
        return sorted(distinct.values(), key=lambda event: event.timestamp)

    def _read(self, oldest: datetime) -> None:
        """Add the new lines of the journal, and drop old events now and then."""
        try:
            with self._path.open("rb") as stream:
                status = os.fstat(stream.fileno())
                file = (status.st_dev, status.st_ino)
                if file != self._file or status.st_size < self._end:
                    # Another file has replaced the journal.
                    self._events.clear()
                    self._file = file
                    self._end = max(0, status.st_size - _TAIL)
                stream.seek(self._end)
                lines = stream.read()
        except FileNotFoundError:
            return
        # A last line without its end is still being written.
        lines = lines[: lines.rfind(b"\n") + 1]
        self._end += len(lines)
        for line in lines.splitlines():
            try:
                event = _DECODER.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError):
                continue  # an erased or torn line, or the first part of one
            if event.timestamp >= oldest:
                of_user = self._events.setdefault(str(event.user), deque(maxlen=_MOST))
                of_user.append(event)
        if self._swept < oldest:
            self._swept = datetime.now(UTC)
            self._events = {
                user: events
                for user, events in self._events.items()
                if any(event.timestamp >= oldest for event in events)
            }

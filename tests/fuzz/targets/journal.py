"""Bytes as the journal of a service, which appends to it, erases users, and reads it."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from pathlib import Path

from recsys import read_ratings
from recsys.data.ids import Ids
from recsys.errors import DataError
from recsys.serve.event_log import append_lines, check_journal
from recsys.user_logs import WantedUsers, erase_users

LINE = b'{"user":"u1","item":"i2","value":4.0,"timestamp":"2026-01-30T12:00:00Z"}\n'
SEEDS = [
    LINE * 2,
    LINE + b'{"user":2,"item":3}',
    LINE + b"     \n" + LINE[:20],
    b'{"time":"2026-01-30T12:00:00Z","user":"u1","items":[{"item":"i1","score":1.5}]}\n',
    b'{"user":"u1","item":"i2","event":"buy","event_id":"7","context":{"user":"u3"}}\n',
]
FOLDER = Path(tempfile.mkdtemp(prefix="fuzz-"))
WANTED = WantedUsers(Ids(["u1", "u2"], "user"))


def attempt(data: bytes) -> None:
    """Append a line, which is then the last; complete lines stay as they are."""
    path = FOLDER / "events.jsonl"
    path.write_bytes(data)
    with suppress(DataError):
        check_journal(path, ["user", "item"], "events")
    append_lines(path, LINE, durable=False)
    written = path.read_bytes()
    assert written.endswith(LINE)
    assert written.startswith(data[: data.rfind(b"\n") + 1])
    with suppress(DataError):
        read_ratings(path)
    erase_users(path, WANTED)
    assert len(path.read_bytes()) == len(written)

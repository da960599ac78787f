"""Bytes as a client sends them to the service: answers that are no errors of the service."""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any

import uvicorn
from saved.write import SAVED
from serving import Application
from uvicorn.server import ServerState

from recsys.serve import create_app
from recsys.serve.connection import BoundedConnection
from recsys.serve.settings import Limits

HEAD = b"content-type: application/json\r\ncontent-length: %d\r\n\r\n"


def _post(path: str, body: object) -> bytes:
    content = json.dumps(body).encode()
    return f"POST {path} HTTP/1.1\r\n".encode() + HEAD % len(content) + content


SEEDS = [
    b"GET /v1/recommend/u02?n=3&exclude=i1 HTTP/1.1\r\nhost: a\r\n\r\n",
    b"GET /v1/items?q=i&n=2 HTTP/1.1\r\nhost: a\r\n\r\n",
    b"GET /v1/similar/items/i1 HTTP/1.1\r\nauthorization: Bearer x\r\n\r\n",
    b"GET /v1/explain/u02/i1 HTTP/1.0\r\n\r\n" * 2,
    b"GET /metrics HTTP/1.1\r\nhost: a\r\n\r\nGET /openapi.json HTTP/1.1\r\n\r\n",
    _post("/v1/recommend", {"users": ["u02", "u07"], "n": 2, "explain": True}),
    _post("/v1/recommend", {"history": [{"item": "i1", "value": 3.0}], "n": 2}),
    _post(
        "/v1/recommend", {"user": "u02", "where": "genre = 'drama'", "diversity": 0.5}
    ),
    _post("/v1/predict", {"pairs": [{"user": "u02", "item": "i1"}]}),
    _post("/v1/events", {"events": [{"user": "u02", "item": "i1", "value": 4}]}),
    b"POST /v1/events HTTP/1.1\r\ncontent-type: application/json\r\n"
    b'transfer-encoding: chunked\r\n\r\n5\r\n{"eve\r\n0\r\na: b\r\n\r\n',
]

_folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
_limits = Limits(body=20_000, items=50, batch=10, seconds=1000)
_app = create_app(str(SAVED / "als"), events=str(_folder / "events"), limits=_limits)
_service = Application(_app).__enter__().ready()


class Client(asyncio.Transport):
    """A client that keeps what it is answered."""

    def __init__(self) -> None:
        super().__init__()
        self.answer = bytearray()
        self.is_open = True

    def write(self, data: Any) -> None:
        self.answer += data

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name == "peername" else default

    def is_closing(self) -> bool:
        return not self.is_open

    def close(self) -> None:
        self.is_open = False

    def abort(self) -> None:
        self.is_open = False

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0


async def _sent(data: bytes) -> bytes:
    config = uvicorn.Config(_app, log_config=None, access_log=False)
    config.load()
    state = ServerState()
    options = {"config": config, "server_state": state, "app_state": {}}
    connection, client = BoundedConnection(_limits, **options), Client()
    connection.connection_made(client)
    while data and client.is_open:
        buffer = connection.get_buffer(-1)
        n_bytes = min(len(buffer), len(data))
        buffer[:n_bytes] = data[:n_bytes]
        connection.buffer_updated(n_bytes)
        data = data[n_bytes:]
        await asyncio.sleep(0)
    # A body without an end is waited for.
    await asyncio.wait(
        [*state.tasks, asyncio.create_task(asyncio.sleep(0))], timeout=0.2
    )
    connection.connection_lost(None)
    if state.tasks:
        await asyncio.wait([*state.tasks], timeout=20)
    assert not state.tasks
    return bytes(client.answer)


def attempt(data: bytes) -> None:
    """Send the bytes through a connection, which then ends."""
    answer = _service._runner.run(_sent(data))
    assert b"HTTP/1.1 500" not in answer, answer
    assert not answer or answer.startswith(b"HTTP/1.1 "), answer


def close() -> None:
    """End the service, whose task and event loop would outlive the tests."""
    _service.__exit__()

"""The service under test: in this process, or as the command in a process of its own."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import re
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote, unquote

import psutil
from forked_commands import ordinary, started


@dataclass(frozen=True)
class Reply:
    """What the service answered."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def encoded(body: Any) -> bytes:
    return body if isinstance(body, bytes) else json.dumps(body).encode()


class Application:
    """The application in this process, called without a network."""

    def __init__(self, app: Any) -> None:
        self.app = app
        self._runner = asyncio.Runner()
        self._lifespan = app.router.lifespan_context(app)

    def __enter__(self) -> Self:
        self._runner.__enter__()
        self._runner.run(self._lifespan.__aenter__())
        return self

    def __exit__(self, *error: object) -> None:
        self._runner.run(self._lifespan.__aexit__(None, None, None))
        self._runner.__exit__(None, None, None)

    def ready(self) -> Self:
        """Wait until the models are loaded."""
        deadline = time.monotonic() + 120
        while self.get("/health/ready").status != 200:
            assert time.monotonic() < deadline, self.get("/health/ready").body
            self.sleep(0.01)
        return self

    def sleep(self, seconds: float) -> None:
        self._runner.run(asyncio.sleep(seconds))

    def get(self, target: str, headers: Mapping[str, str] | None = None) -> Reply:
        return self.call("GET", target, headers=headers)

    def post(
        self, target: str, body: Any, headers: Mapping[str, str] | None = None
    ) -> Reply:
        named = {"content-type": "application/json", **(headers or {})}
        return self.call("POST", target, encoded(body), named)

    def call(
        self,
        method: str,
        target: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        return self._runner.run(self.request(method, target, body, headers))

    def together(self, *targets: str) -> list[Reply]:
        """Return the answers to requests that arrive at the same time."""

        async def all_of_them() -> list[Reply]:
            return await asyncio.gather(
                *(self.request("GET", target) for target in targets)
            )

        return self._runner.run(all_of_them())

    async def request(
        self,
        method: str,
        target: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        path, _, query = target.partition("?")
        raw = quote(path, safe="/%~:@!$&'()*+,;=-._").encode()
        named = [
            (name.lower().encode(), value.encode())
            for name, value in (headers or {}).items()
        ]
        if body:
            named.append((b"content-length", str(len(body)).encode()))
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": unquote(path),
            "raw_path": raw,
            "query_string": query.encode("utf-8", "surrogatepass"),
            "root_path": "",
            "headers": named,
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80),
            "state": {},
        }
        given = [{"type": "http.request", "body": body, "more_body": False}]
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return given.pop() if given else {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        try:
            await self.app(scope, receive, send)
        except Exception:  # a defect is answered, and then raised
            if not sent:
                raise
        start = sent[0]
        found = {name.decode(): value.decode() for name, value in start["headers"]}
        return Reply(
            start["status"], found, b"".join(m.get("body", b"") for m in sent[1:])
        )


class Command:
    """`recsys serve` in a process of its own, on a port of its own."""

    def __init__(self, *arguments: str | Path, **settings: Any) -> None:
        words = ["serve", *map(str, arguments), "--port", "0"]
        # Several workers are started by Python, and limits are set by the system.
        n_workers = words[words.index("--workers") + 1] if "--workers" in words else "1"
        if n_workers != "1" or "preexec_fn" in settings:
            start: Any = ordinary
        else:
            start = started
        self.process = start(words, **settings)
        assert self.process.stderr is not None
        self.lines: list[str] = []
        for line in self.process.stderr:
            self.lines.append(line)
            if found := re.search(r"http://[\w.\[\]:]+:(\d+)/", line):
                self.port = int(found[1])
                break
        else:
            self.stop()
            raise AssertionError("".join(self.lines))

    def __enter__(self) -> Self:
        deadline = time.monotonic() + 120
        try:
            while True:
                with suppress(OSError, http.client.HTTPException):
                    if self.get("/health/ready").status == 200:
                        return self
                assert self.process.poll() is None, self.lines
                assert time.monotonic() < deadline, self.lines
                time.sleep(0.05)
        except BaseException:
            self.stop(signal.SIGKILL)
            raise

    def __exit__(self, *error: object) -> None:
        self.stop()

    def stop(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """End the service; its exit code, and what it wrote on standard error."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        if self.process.stderr is not None and not self.process.stderr.closed:
            self.lines += self.process.stderr.readlines()
            self.process.stderr.close()
        return self.process.wait(60), "".join(self.lines)

    def workers(self) -> list[int]:
        """Return the processes that serve, where there are several."""
        workers = []
        for child in psutil.Process(self.process.pid).children():
            with suppress(psutil.NoSuchProcess):  # it ends at this moment
                if not any("resource_tracker" in word for word in child.cmdline()):
                    workers.append(child.pid)
        return workers

    def connection(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)

    def get(self, target: str, headers: Mapping[str, str] | None = None) -> Reply:
        return self.call("GET", target, headers=headers)

    def post(
        self, target: str, body: Any, headers: Mapping[str, str] | None = None
    ) -> Reply:
        return self.call("POST", target, encoded(body), headers)

    def call(
        self,
        method: str,
        target: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        connection = self.connection()
        try:
            named = {"content-type": "application/json", **(headers or {})}
            connection.request(method, target, body, named)
            found = connection.getresponse()
            return Reply(
                found.status,
                {k.lower(): v for k, v in found.getheaders()},
                found.read(),
            )
        finally:
            connection.close()


def limited_file_size(most: int) -> Any:
    """Return what makes a child process unable to write files beyond a size."""
    import resource

    def limit() -> None:
        os.environ["PYTHONDONTWRITEBYTECODE"] = (
            "1"  # modules would be compiled to half a file
        )
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))

    return limit


__all__ = ["Application", "Command", "Reply", "encoded", "limited_file_size"]

"""Commands in forked processes: each is a process of its own, without imports of its own.

`python forked_commands.py SOCKET` is a server, which has imported the command and forks for
each request. `program` is `recsys` for scripts, and `started` a process with what tests need
of `subprocess.Popen`. Where there is no Linux, both start ordinary processes.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import json
import os
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn, Self

CAN_FORK = sys.platform == "linux"
# What commands import where they need it. polars is imported, but not used: it would hang
# in a forked process.
MODULES = (
    "recsys.cli.evaluate",
    "recsys.cli.fit",
    "recsys.cli.lsi",
    "recsys.cli.main",
    "recsys.cli.recommend",
    "recsys.cli.serve",
    "recsys.cli.versions",
    "recsys.database",
    "recsys.evaluation",
    "recsys.lsi",
    "recsys.models.als",
    "recsys.readers",
    "recsys.recommender",
    "recsys.refit",
    "recsys.saving.storage",
    "recsys.saving.versions",
    "recsys.serve.app",
    "recsys.serve.server",
    "recsys.table_writer",
    "recsys.update",
)
# Its answers are the number of the process, and its exit code, with a minus for a signal.
CLIENT = """\
import json, os, socket, sys
job = {"words": sys.argv[2:], "folder": os.getcwd(), "environment": dict(os.environ)}
content = json.dumps(job).encode()
with socket.socket(socket.AF_UNIX) as server:
    server.connect(sys.argv[1])
    socket.send_fds(server, [b"%16d" % len(content)], [0, 1, 2])
    server.sendall(content)
    _, code = server.makefile()
if int(code) < 0:
    os.kill(os.getpid(), -int(code))
sys.exit(int(code))
"""


@functools.cache
def address() -> str:
    """Start the server of this process, which ends with it, and return its socket."""
    folder = Path(tempfile.mkdtemp(prefix="recsys-"))  # the path of a socket is short
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = folder / "socket"
    server = subprocess.Popen([sys.executable, __file__, path], stdin=subprocess.PIPE)
    atexit.register(server.communicate)
    while not path.exists():
        assert server.poll() is None
        time.sleep(0.01)
    return str(path)


@functools.cache
def program() -> str:
    """Return the path of a `recsys` for scripts and their `PATH`."""
    words = [sys.executable, "-m", "recsys"]
    path = Path(tempfile.mkdtemp(prefix="recsys-")) / "recsys"
    atexit.register(shutil.rmtree, path.parent, ignore_errors=True)
    if CAN_FORK:
        # The Python that starts soonest.
        words = [sys.executable, "-I", "-S", "-c", CLIENT, address()]
    path.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n', encoding="utf-8")
    path.chmod(0o755)
    return str(path)


def started(
    words: Sequence[str], env: Mapping[str, str] | None = None
) -> Forked | subprocess.Popen[str]:
    """Start a command, or `-c SCRIPT ...` of Python; its messages are in `stderr`."""
    return Forked(words, env) if CAN_FORK else ordinary(words, env=env)


def ordinary(words: Sequence[str], **settings: Any) -> subprocess.Popen[str]:
    """Start a command, or `-c SCRIPT ...`, in a process that is not forked."""
    program = [] if words[0] == "-c" else ["-m", "recsys"]
    command = [sys.executable, *program, *words]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, **settings)


class Forked:
    """A command in a forked process, whose messages are in `stderr`."""

    def __init__(
        self, words: Sequence[str], env: Mapping[str, str] | None = None
    ) -> None:
        job = {
            "words": [*words],
            "folder": str(Path.cwd()),
            "environment": dict(os.environ if env is None else env),
        }
        content = json.dumps(job).encode()
        reading, writing = os.pipe()
        self.stderr = os.fdopen(reading, encoding="utf-8")
        self.returncode: int | None = None
        self._server = socket.socket(socket.AF_UNIX)
        self._server.connect(address())
        with Path(os.devnull).open("r+b") as nothing:
            streams = [nothing.fileno(), nothing.fileno(), writing]
            socket.send_fds(self._server, [b"%16d" % len(content)], streams)
        os.close(writing)
        self._server.sendall(content)
        self._answers = self._server.makefile()
        self.pid = int(self._answers.readline())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.stderr.close()
        self.wait()

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End the process at once."""
        self.send_signal(signal.SIGKILL)

    def poll(self) -> int | None:
        """Return the exit code, or None while the process runs."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the process, and return its exit code."""
        if self.returncode is None:
            if not is_ready(self._server.fileno(), timeout):
                raise subprocess.TimeoutExpired("recsys", timeout or 0)
            self.returncode = int(self._answers.readline())
            self._answers.close()
            self._server.close()
        return self.returncode


def is_ready(descriptor: int, timeout: float | None) -> bool:
    """Wait until a descriptor can be read, for seconds or without end.

    `select.select` takes no numbers from 1,024 on, and a worker may have more files open.
    """
    readable = select.poll()
    readable.register(descriptor, select.POLLIN)
    milliseconds = None if timeout is None else 1000 * timeout
    return bool(readable.poll(milliseconds))


def serve(path: str) -> None:
    """Fork for each request, until the standard input ends."""
    for module in MODULES:
        importlib.import_module(module)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"{path}.new")
    listener.listen()
    Path(f"{path}.new").rename(path)  # it takes requests from now on
    requests = select.poll()
    requests.register(listener, select.POLLIN)
    requests.register(sys.stdin)
    while listener.fileno() in dict(requests.poll()):
        connection, _ = listener.accept()
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if os.fork() == 0:
            listener.close()
            answer(connection)
        connection.close()


def answer(connection: socket.socket) -> NoReturn:
    """Run the command of a request in a forked process, and tell how it ends."""
    head, streams, _, _ = socket.recv_fds(connection, 16, 3)
    with connection.makefile("rb") as stream:
        job = json.loads(stream.read(int(head)))
    # Not only in the command: a pipe ends when nobody has it any more.
    for standard, descriptor in enumerate(streams):
        os.dup2(descriptor, standard)
        os.close(descriptor)
    child = os.fork()
    if child == 0:
        connection.close()
        run(job["words"], job["folder"], job["environment"])
    for standard in range(3):
        os.close(standard)
    connection.sendall(b"%d\n" % child)
    _, status = os.waitpid(child, 0)
    with suppress(OSError):  # the client has been killed
        connection.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))
    os._exit(0)


def run(words: list[str], folder: str, environment: dict[str, str]) -> NoReturn:
    """Be the command, or the script of `-c SCRIPT ...`."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["recsys", *words]
    sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = os.fdopen(2, "w", 1, "utf-8", "backslashreplace", closefd=False)
    code = 70
    try:
        if words[0] == "-c":
            sys.argv = ["-c", *words[2:]]
            exec(words[1], {})
            code = 0
        else:
            importlib.import_module("recsys.cli.main").main()
    except SystemExit as end:
        code = int(end.code or 0)
    except KeyboardInterrupt:  # before the command takes signals, as in Python itself
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    serve(sys.argv[1])

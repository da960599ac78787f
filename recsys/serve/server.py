"""The server: one process, or several that share the port and the files of the model."""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib import import_module
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from types import FrameType
from typing import Any, cast

from recsys.errors import DataError
from recsys.serve.settings import SHARED, Settings

__all__ = ["listening", "serve"]

_BACKLOG = 2048
_DRAIN = 30  # seconds for requests in flight
_IDLE = 30  # seconds until an idle connection is closed
_BREATH = 1.0  # seconds before a worker that has died at once is started again

_PRELOADED = ("anyio._backends._asyncio", "numpy.ma", "uvloop")
_HANGS = 3  # seconds after which polars is known to hang

_log = logging.getLogger("recsys.serve")


def listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens; port 0 is any free one.

    Raises
    ------
    DataError
        If the address cannot be had.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        if sys.platform != "win32":  # where it would let two services share the port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        reason = (error.strerror or str(error)).lower()
        raise DataError(f"The service cannot listen on {host}, port {port}: {reason}.") from None
    listener.setblocking(False)
    return listener


def serve(settings: Settings, listener: socket.socket, workers: int = 1) -> None:
    """Serve until SIGTERM or SIGINT; requests in flight are answered first.

    Parameters
    ----------
    settings : Settings
    listener : socket
    workers : int
        Processes. One that ends is started again.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # requests are the parallel work
    if workers == 1:
        _work(settings, listener)
    else:
        with tempfile.TemporaryDirectory(prefix="recsys-") as shared:
            os.environ[SHARED] = shared
            _Workers(settings, listener, workers).run()


def _server(settings: Settings) -> Any:
    """Return a server of the application, ready to run."""
    logging.basicConfig(
        format="%(asctime)s %(levelname)s %(message)s", level=logging.WARNING, stream=sys.stderr
    )
    _log.setLevel(logging.INFO)
    import uvicorn  # not in a process that starts workers by spawning them

    from recsys.serve.app import create_app
    from recsys.serve.protocol import BoundedProtocol

    app = create_app(settings)
    config = uvicorn.Config(
        app,
        http=cast(Any, partial(BoundedProtocol, app.state.gate)),
        proxy_headers=False,
        log_config=None,
        access_log=False,
        server_header=False,
        backlog=_BACKLOG,
        limit_concurrency=settings.limits.connections,
        timeout_keep_alive=_IDLE,
        timeout_graceful_shutdown=_DRAIN,
    )
    config.load()
    return uvicorn.Server(config)


def _work(settings: Settings, listener: socket.socket, server: Any = None) -> None:
    """Serve in this process; `server` is what was made before a fork."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # not what a process that forks does
    gc.enable()
    if server is not None:
        import_module("recsys.data.ratings").adopt_polars()
    server = server or _server(settings)
    for number in (signal.SIGTERM, signal.SIGINT):  # uvicorn repeats them to these at the end
        signal.signal(number, server.handle_exit)
    server.run([listener])


def _shared_server(settings: Settings) -> Any:
    """Make the server, and load its models, once for all workers.

    Their memory is that of this process until they change it. If polars starts threads to load the
    models, as for large tables, workers load them: threads do not survive a fork, and polars hangs
    without. A child, and a child of it, try that.
    """
    gc.disable()  # it would leave holes, which workers would fill
    for name in _PRELOADED:
        with suppress(ImportError):
            import_module(name)
    server = _server(settings)
    app = server.config.app
    app.openapi()
    app.middleware_stack = app.build_middleware_stack()
    service = app.state.service

    def use_polars() -> None:
        import polars as pl

        signal.alarm(_HANGS)
        pl.DataFrame({"n": [1]}).filter(pl.col("n") > 0)

    def load() -> None:
        logging.disable()
        for slot in service.slots.values():
            slot.check()
        if not _succeeds(use_polars):
            raise ChildProcessError

    if _succeeds(load):
        service.check()
    gc.freeze()  # a collection would write to all objects, and so copy their pages
    return server


def _succeeds(work: Callable[[], None]) -> bool:
    """Return whether a child could do some work."""
    if (child := os.fork()) == 0:
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitpid(child, 0)[1] == 0


class _Workers:
    """Processes that serve, and are replaced when they end."""

    def __init__(self, settings: Settings, listener: socket.socket, number: int) -> None:
        # A worker takes connections once it has loaded: another one may be ready already.
        self._arguments: tuple[Any, ...] = replace(settings, load_first=True), listener
        self._number = number
        self._stopping = False
        self._context: Any = multiprocessing.get_context("spawn")
        if sys.platform == "linux":  # elsewhere libraries do not survive a fork
            self._arguments = (*self._arguments, _shared_server(self._arguments[0]))
            self._context = multiprocessing.get_context("fork")
        self._workers: list[BaseProcess] = []

    def run(self) -> None:
        """Serve until a signal, then let the workers end."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        self._workers = [self._started() for _ in range(self._number)]
        for server in self._arguments[2:]:  # so that files that are replaced can go
            for slot in server.config.app.state.service.slots.values():
                slot.forget()
        while not self._stopping:
            wait([each.sentinel for each in self._workers], timeout=_BREATH)
            for place, process in enumerate(self._workers):
                if process.is_alive() or self._stopping:
                    continue
                _log.error("worker %s ended with code %s", process.pid, process.exitcode)
                time.sleep(_BREATH / 5)
                self._workers[place] = self._started()
        self._terminate()  # also one that was just being started
        deadline = time.monotonic() + _DRAIN
        for each in self._workers:
            each.join(max(0.0, deadline - time.monotonic()))
            if each.is_alive():
                each.kill()
                each.join()

    def _started(self) -> BaseProcess:
        process: BaseProcess = self._context.Process(target=_work, args=self._arguments)
        process.start()
        return process

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        self._stopping = True
        self._terminate()

    def _terminate(self) -> None:
        for each in self._workers:
            with suppress(ProcessLookupError):
                each.terminate()

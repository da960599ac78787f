"""Server of one process, or of several that share the port and the files of the model."""

from __future__ import annotations

import atexit
import logging
import multiprocessing
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any, NoReturn, cast

import msgspec

from recsys.errors import DataError
from recsys.serve import supervisor
from recsys.serve.settings import SHARED, Settings

_BACKLOG = 2048
_IDLE = 30  # seconds after which an idle connection is closed
_SETTINGS = (
    "RECSYS_SERVICE"  # environment variable with the settings for replaced workers
)

_PRELOADED = (
    "anyio._backends._asyncio",
    "fastapi.telemetry._runtime",
    "numpy.ma",
    "uvicorn.loops.auto",
    "uvicorn.loops.uvloop",
)
_HANGS = 3  # seconds after which polars is considered to hang

_log = logging.getLogger("recsys.serve")


def listening(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 selects a free port.

    Raises
    ------
    DataError
        If the address is not available.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        if sys.platform != "win32":  # which would let two services share the port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        reason = (error.strerror or str(error)).lower()
        raise DataError(
            f"The service cannot listen on {host}, port {port}: {reason}."
        ) from None
    listener.setblocking(False)
    return listener


def serve(settings: Settings, listener: socket.socket, workers: int = 1) -> None:
    """Serve until SIGTERM or SIGINT; requests in progress are answered first.

    `workers` is the number of processes. One that ends is replaced, except on Windows.
    """
    os.environ.setdefault(
        "OPENBLAS_NUM_THREADS", "1"
    )  # requests already run in parallel
    if workers == 1:
        _work(settings, listener)
        return
    # Workers accept connections only after loading, since others may already be ready.
    settings = replace(settings, load_first=True)
    os.environ[SHARED] = tempfile.mkdtemp(prefix="recsys-")
    atexit.register(shutil.rmtree, os.environ[SHARED], ignore_errors=True)
    if sys.platform == "win32":
        context = multiprocessing.get_context("spawn")
        for _ in range(workers - 1):
            context.Process(
                target=_work, args=(settings, listener), daemon=True
            ).start()
        _work(settings, listener)
    else:
        _supervise(settings, listener, workers)


def _supervise(settings: Settings, listener: socket.socket, number: int) -> NoReturn:
    """Start workers, and execute their supervisor in this process."""
    own, processes = os.getpid(), []
    if sys.platform == "linux":  # on other systems, libraries do not survive a fork
        work = partial(_work, settings, listener, own, _shared_server(settings))
        signal.pthread_sigmask(signal.SIG_BLOCK, supervisor.ENDING)
        processes = [str(_forked(work)) for _ in range(number)]
    signal.pthread_sigmask(signal.SIG_BLOCK, supervisor.ENDING)
    os.environ[_SETTINGS] = msgspec.json.encode(settings).decode()
    listener.set_inheritable(True)
    words = [
        sys.executable,
        "-I",
        "-S",
        str(supervisor.__file__),
        str(listener.fileno()),
    ]
    os.execv(sys.executable, [*words, str(number), *processes])


def resume() -> None:
    """Serve as a worker started by the supervisor."""
    settings = msgspec.json.decode(os.environ[_SETTINGS], type=Settings)
    _work(settings, socket.socket(fileno=int(sys.argv[1])), os.getppid())


def _server(settings: Settings) -> Any:
    """Return a server of the application, ready to run."""
    logging.basicConfig(
        format="%(asctime)s %(levelname)s %(message)s",
        level=logging.WARNING,
        stream=sys.stderr,
    )
    _log.setLevel(logging.INFO)
    # Requests that are not HTTP would fill the log.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    import uvicorn  # not needed in a process that only spawns workers

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
        timeout_graceful_shutdown=supervisor.DRAIN,
    )
    config.load()
    return uvicorn.Server(config)


def _work(
    settings: Settings,
    listener: socket.socket,
    parent: int | None = None,
    server: Any = None,
) -> None:
    """Serve in this process; a worker also stops when its parent ends.

    `server` is the server made before a fork, if there was one.
    """
    if server is not None:
        import_module("recsys.data.ratings").adopt_polars()
    server = server or _server(settings)

    async def follow() -> None:
        server.should_exit |= os.getppid() != parent

    if parent is not None:
        server.config.callback_notify, server.config.timeout_notify = follow, 1
    for number in (
        signal.SIGTERM,
        signal.SIGINT,
    ):  # uvicorn raises them again at the end
        signal.signal(number, server.handle_exit)
    if parent is not None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, supervisor.ENDING)
    server.run([listener])


def _shared_server(settings: Settings) -> Any:
    """Make the server, and load its models, once for all workers.

    Workers share the memory of this process until they write to it. If polars starts threads while
    loading the models, as for large tables, each worker loads them itself, because polars hangs
    after a fork that its threads do not survive. Child processes test this first.
    """
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
        numbers = pl.DataFrame({"n": [2, 1]}).sort("n")
        numbers.select(pl.col("n").gather([0]), pl.col("n").max().alias("most"))

    def load() -> None:
        logging.disable()
        for slot in service.slots.values():
            slot.check()
        if not _succeeds(use_polars):
            raise ChildProcessError

    if _succeeds(load):
        service.check()
    return server


def _succeeds(work: Callable[[], None]) -> bool:
    """Return whether `work` succeeds in a child process."""
    return os.waitpid(_forked(work), 0)[1] == 0


def _forked(work: Callable[[], None]) -> int:
    """Run `work` in a child process, and return its id."""
    if (child := os.fork()) == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            _log.exception("a worker has failed")
        finally:
            os._exit(1)
    return child

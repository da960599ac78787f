"""Server of one process, or of several that share the port and the files of the model.

uvicorn starts the processes, and replaces one that ends. Each maps the arrays of the model
into its memory, so that all of them share the pages that the system has read.
"""

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
import threading
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from types import FrameType
from typing import Any, NoReturn

import msgspec

from recsys.errors import DataError
from recsys.serve.settings import SHARED, Settings

_BACKLOG = 2048
_SEND_BUFFER = 2**17  # bytes, which Linux doubles
_DRAIN = 30  # seconds for requests in progress at the end
_HEALTH = 60  # seconds without a sign of life after which a worker is replaced
_SETTINGS = "RECSYS_SERVICE"  # environment variable with the settings for workers
_LOG_FORMAT = "%(asctime)s %(levelname)s %(message)s"


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
        # Otherwise the second part of an answer waits for a confirmation of the first.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # Bounds what the system keeps of answers that are not read.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
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


def serve(
    settings: Mapping[str, Settings],
    listener: socket.socket,
    workers: int = 1,
) -> None:
    """Serve until SIGTERM, SIGHUP or SIGINT; requests in progress are answered first.

    The settings are of one model, whose name is empty, or of several. `workers` is the number of
    processes. One that ends is replaced.
    """
    os.environ.setdefault(
        "OPENBLAS_NUM_THREADS", "1"
    )  # requests already run in parallel
    logging.basicConfig(format=_LOG_FORMAT, level=logging.WARNING, stream=sys.stderr)
    if workers > 1:
        # Workers accept connections only after loading, since others may be ready.
        settings = {
            name: replace(part, load_first=True) for name, part in settings.items()
        }
        os.environ[SHARED] = tempfile.mkdtemp(prefix="recsys-")
        atexit.register(shutil.rmtree, os.environ[SHARED], ignore_errors=True)
        logging.getLogger("uvicorn.error").setLevel(logging.INFO)  # workers that end
    # Workers are new processes, which share nothing but this.
    os.environ[_SETTINGS] = msgspec.json.encode(settings).decode()
    # uvicorn raises them again at its end.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _end)
    # uvicorn is imported late, since the help needs none of it.
    import uvicorn
    from uvicorn.supervisors import Multiprocess

    if sys.platform != "win32":
        is_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN  # by nohup
        if not is_ignored:
            signal.signal(signal.SIGHUP, _hang_up)
        # uvicorn would start all workers again when a terminal is closed.
        on_hang_up = _stay if is_ignored else Multiprocess.handle_term
        Multiprocess.handle_hup = on_hang_up  # type: ignore[assignment,method-assign]
    options = _options(next(iter(settings.values())))
    if workers == 1:
        uvicorn.Server(uvicorn.Config(**options)).run([listener])
    elif sys.platform == "win32":  # where processes inherit no descriptors
        host, port = listener.getsockname()[:2]
        listener.close()
        uvicorn.run(host=host, port=port, workers=workers, **options)
    else:
        uvicorn.run(fd=listener.fileno(), workers=workers, **options)


def _options(settings: Settings) -> dict[str, Any]:
    """Return the options of uvicorn."""
    from recsys.serve.connection import IDLE, BoundedConnection

    return {
        "app": f"{__name__}:application",
        "factory": True,
        "http": partial(BoundedConnection, settings.limits),
        "ws": "none",
        "proxy_headers": False,
        "log_config": None,
        "access_log": False,
        "server_header": False,
        "backlog": _BACKLOG,
        "timeout_keep_alive": IDLE,
        "timeout_graceful_shutdown": _DRAIN,
        "timeout_worker_healthcheck": _HEALTH,
    }


def application() -> Any:
    """Return the application of this process, with the settings of the service."""
    logging.basicConfig(format=_LOG_FORMAT, level=logging.WARNING, stream=sys.stderr)
    logging.getLogger("recsys.serve").setLevel(logging.INFO)
    # Requests that are not HTTP, and clients that leave, would fill the log.
    of_uvicorn = logging.getLogger("uvicorn.error")
    of_uvicorn.setLevel(logging.ERROR)
    of_uvicorn.addFilter(lambda record: "without completing" not in str(record.msg))
    parent = multiprocessing.parent_process()
    if parent is not None:
        if sys.platform != "win32":  # the parent ends its workers
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    from recsys.serve.app import application_of

    return application_of(
        msgspec.json.decode(os.environ[_SETTINGS], type=dict[str, Settings])
    )


def _end(_number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(0)


def _hang_up(_number: int, _frame: FrameType | None) -> None:
    signal.raise_signal(signal.SIGTERM)


def _stay(_workers: Any) -> None:
    """Do nothing when the terminal is closed, as `nohup` requests."""


def _end_with(parent: Any) -> None:
    """End this worker when its parent has ended, as after SIGKILL."""
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)

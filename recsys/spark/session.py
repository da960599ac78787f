"""Spark sessions: start, and short messages for failures."""

from __future__ import annotations

import os
import re
import shutil
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from lowrank.spark.arrow import quiet_pandas
from recsys.errors import EngineError, RecsysError
from recsys.messages import missing_extra, shortened

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Say = Callable[[str], None]
"""Function that is called with a short text when a step begins."""

_CONNECT_SECONDS = 5.0
_MASTER = re.compile(r"local(\[(\*|\d+)(,\s*\d+)?\])?|spark://\S+|yarn|k8s://\S+")
_LOGGING = Path(__file__).with_name("log4j2.properties")
# No log messages of Spark in a command, and memory on the driver for vectors up to this limit.
_CONF = {
    "spark.app.name": "recsys",
    "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}",
    "spark.driver.maxResultSize": "2g",
    "spark.sql.session.timeZone": "UTC",  # of times without an offset, as on one machine
    "spark.log.level": "ERROR",
    "spark.ui.showConsoleProgress": "false",
}
_LOCAL_CONF = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "32",  # the default for clusters, 200, is slow on a few cores
}

_LONGEST = 300  # maximum number of characters of a reason
# Messages by a pattern of the failure; they quote its group, or else the first line.
_FAILURES = {
    r"ExecutorLostFailure \(.*?\) Reason: (.*)": "An executor of Spark died, again after every "
    "retry, so the job failed and nothing was written ({}); more memory per executor "
    "(spark.executor.memory, spark.executor.memoryOverhead) or smaller partitions may help.",
    r"OutOfMemoryError": "Spark ran out of memory; give it more with --conf "
    "spark.driver.memory=4g or --conf spark.executor.memory=8g.",
    r"No module named '(?:recsys|lowrank)'": "The executors have no package lowrank-recsys ({}); "
    "install it there, or send an environment along with spark.archives (see docs/spark.md).",
    r"unresponsive|SparkContext was shut down|stopped": "The Spark cluster is gone or has stopped "
    "the application ({}).",
    r"JAVA_GATEWAY_EXITED": "Java could not start Spark; Spark needs Java 17 or newer (see java "
    "-version).",
    r"^ConnectionRefusedError|^\w*Py4JNetworkError": "The Java process of Spark is gone; its log "
    "above may say why.",
}


@contextmanager
def spark_session(
    master: str | None = None, conf: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """Yield a Spark session; stop it at the end if it is new.

    Parameters
    ----------
    master : str, optional
        ``local[N]``, ``local[*]``, ``spark://HOST:PORT``, ``yarn`` or ``k8s://URL``. By default
        the one of `spark-submit` if it started the program, otherwise ``local[*]``.
    conf : mapping of str to str, optional
        Settings of Spark.

    Raises
    ------
    EngineError
        If Spark cannot be started or reached, or fails within the block.
    """
    try:
        import pyspark  # noqa: F401
        from pyspark.sql import SparkSession
    except ImportError:
        raise EngineError(
            f"The Spark engine {missing_extra('PySpark', 'spark')}"
        ) from None
    running = SparkSession.getActiveSession()
    if running is not None and master not in (None, running.sparkContext.master):
        raise EngineError(
            f"A Spark session with the master {running.sparkContext.master} is running, so "
            f"{master} cannot be used; stop it first, or leave the master out."
        )
    with explained():
        spark = running or _start(master, dict(conf or {}))
        try:
            yield spark
        finally:
            if running is None:
                with suppress(Exception):  # the first failure is the one to report
                    spark.stop()


@contextmanager
def explained() -> Iterator[None]:
    """Turn exceptions of PySpark into an `EngineError` with a short message; pass on others.

    Raises
    ------
    EngineError
    """
    try:
        yield
    except RecsysError:
        raise
    except Exception as error:
        package = type(error).__module__.partition(".")[0]
        # If the JVM has ended, connections to it fail.
        if package in ("pyspark", "py4j") or isinstance(error, ConnectionError):
            raise EngineError(_sentence(f"{type(error).__name__}: {error}")) from error
        raise


def _start(master: str | None, conf: dict[str, str]) -> SparkSession:
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

    submitted = SparkConf()
    chosen = (
        master
        or conf.get("spark.master")
        or submitted.get("spark.master")
        or "local[*]"
    )
    if not _MASTER.fullmatch(chosen):
        raise EngineError(
            "The master must be local, local[N], local[*], spark://HOST:PORT, yarn or k8s://URL; "
            f"got {chosen!r}."
        )
    home = os.environ.get("JAVA_HOME")
    if shutil.which("java", path=f"{home}/bin" if home else None) is None:
        where = (
            f"JAVA_HOME, {home}, has no bin/java"
            if home
            else "there is no java on the PATH"
        )
        raise EngineError(
            f"Spark needs Java 17 or newer, but {where}; install it (on Debian: apt install "
            "openjdk-17-jre-headless)."
        )
    if chosen.startswith("spark://"):
        _require_listener(chosen)
    if chosen.startswith("local"):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        conf = _LOCAL_CONF | conf
    builder = SparkSession.builder.master(chosen)
    conf = {
        name: value for name, value in _CONF.items() if not submitted.contains(name)
    } | conf
    for name, value in conf.items():
        builder = builder.config(name, value)
    with quiet_pandas():
        return builder.getOrCreate()


def _require_listener(master: str) -> None:
    """Check that a standalone master answers, because Spark would wait for a minute."""
    reason = ""
    for address in master.removeprefix("spark://").split(","):
        host, _, port = address.rpartition(":")
        try:
            with socket.create_connection((host, int(port)), _CONNECT_SECONDS):
                return
        except (OSError, ValueError) as error:
            reason = str(getattr(error, "strerror", None) or error).lower()
    raise EngineError(
        f"The Spark master {master} cannot be reached ({reason}); "
        "is it running, and are host and port right?"
    )


def _sentence(text: str) -> str:
    reason = text.strip().partition("\n")[0]
    for pattern, sentence in _FAILURES.items():
        match = re.search(pattern, text)
        if match is not None:
            reason = match[1] if match.groups() else reason
            return sentence.format(shortened(reason.strip(), _LONGEST))
    causes = re.findall(
        r"(?:Caused by: |^:? ?)([\w.]+(?:Error|Exception): .+)", text, re.MULTILINE
    )
    return f"Spark failed: {shortened(causes[-1] if causes else reason, _LONGEST)}"

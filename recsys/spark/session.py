"""Starting and stopping Spark, and saying in one sentence what went wrong with it."""

from __future__ import annotations

import os
import re
import shutil
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lowrank.spark.arrow import without_word_of_pandas
from recsys.errors import EngineError, RecsysError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["explained", "spark_session"]

_DEFAULT_MASTER = "local[*]"
_CONNECT_SECONDS = 5.0
_LOCAL_SHUFFLE = "32"  # partitions; 200, as for a cluster, are slow on a few cores
_MASTER = re.compile(r"local(\[(\*|\d+)(,\s*\d+)?\])?|spark://\S+|yarn|k8s://\S+")

_LOGGING = Path(__file__).with_name("log4j2.properties")

# What we set where nobody else does: a command has no use for the chatter of Spark, and vectors up
# to the broadcast limit must be able to come to the driver.
_CONF = {
    "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}",
    "spark.driver.maxResultSize": "2g",
    "spark.log.level": "ERROR",
    "spark.ui.showConsoleProgress": "false",
}


@contextmanager
def spark_session(
    master: str | None = None, conf: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """Yield a Spark session; one that was not there before is stopped at the end.

    Parameters
    ----------
    master : str, optional
        ``local[N]``, ``local[*]``, ``spark://HOST:PORT``, ``yarn`` or ``k8s://URL``. By default
        that of `spark-submit`, if the program was started by it, and ``local[*]`` otherwise.
    conf : mapping of str to str, optional
        Settings of Spark.

    Raises
    ------
    EngineError
        If PySpark or Java is missing, the cluster cannot be reached, a session with another master
        is running, or, within the block, a job fails.
    """
    require_pyspark()
    from pyspark.sql import SparkSession

    running = SparkSession.getActiveSession()
    if running is not None:
        _refuse_other_master(running, master)
        with explained():
            yield running
        return
    with explained():
        spark = _start(master, dict(conf or {}))
        try:
            yield spark
        finally:
            with suppress(Exception):  # what is to be said is the failure before
                spark.stop()


def require_pyspark() -> None:
    """Say how to install PySpark where it is missing.

    Raises
    ------
    EngineError
        Naming the extra.
    """
    try:
        import pyspark  # noqa: F401
    except ImportError:
        raise EngineError(
            "The Spark engine needs PySpark, which is not installed; "
            "install it with: pip install 'lowrank-recsys[spark]'."
        ) from None


@contextmanager
def explained() -> Iterator[None]:
    """Turn a failure of Spark into an `EngineError` of one sentence; others pass unchanged."""
    try:
        yield
    except RecsysError:
        raise
    except Exception as error:
        if not _is_of_spark(error):
            raise
        raise EngineError(_sentence(str(error), type(error).__name__)) from error


def _start(master: str | None, conf: dict[str, str]) -> SparkSession:
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

    submitted = SparkConf()
    chosen = master or conf.get("spark.master") or submitted.get("spark.master")
    chosen = chosen or _DEFAULT_MASTER
    if not _MASTER.fullmatch(chosen):
        raise EngineError(
            "The master must be local, local[N], local[*], spark://HOST:PORT, yarn or k8s://URL; "
            f"got {chosen!r}."
        )
    _require_java()
    if chosen.startswith("spark://"):
        _require_listener(chosen)
    if chosen.startswith("local"):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        conf.setdefault("spark.ui.enabled", "false")
        conf.setdefault("spark.driver.host", "127.0.0.1")
        conf.setdefault("spark.driver.bindAddress", "127.0.0.1")
        conf.setdefault("spark.sql.shuffle.partitions", _LOCAL_SHUFFLE)
    builder = SparkSession.builder.master(chosen)
    if not submitted.contains("spark.app.name"):
        builder = builder.appName("recsys")
    for name, value in conf.items():
        builder = builder.config(name, value)
    for name, value in _CONF.items():
        if name not in conf and not submitted.contains(name):
            builder = builder.config(name, value)
    with without_word_of_pandas():
        return builder.getOrCreate()


def _refuse_other_master(running: SparkSession, master: str | None) -> None:
    now = running.sparkContext.master
    if master is not None and master != now:
        raise EngineError(
            f"A Spark session with the master {now} is running, so {master} cannot be used; "
            "stop it first, or leave the master out."
        )


def _require_java() -> None:
    home = os.environ.get("JAVA_HOME")
    if home is not None:
        if not (Path(home) / "bin" / "java").is_file():
            raise EngineError(f"Spark needs Java 17 or newer; JAVA_HOME is {home}, without a Java.")
    elif shutil.which("java") is None:
        raise EngineError(
            "Spark needs Java 17 or newer, and there is none: no program java on the PATH, and no "
            "JAVA_HOME; install a Java runtime (on Debian: apt install openjdk-17-jre-headless)."
        )


def _require_listener(master: str) -> None:
    """Try the masters of a standalone cluster before Spark waits for them for a minute."""
    reasons = []
    for place in master.removeprefix("spark://").split(","):
        host, _, port = place.rpartition(":")
        try:
            with socket.create_connection((host, int(port)), _CONNECT_SECONDS):
                return
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else None
            reasons.append((reason or str(error)).lower())
    raise EngineError(
        f"The Spark master {master} cannot be reached ({'; '.join(reasons)}); "
        "is it running, and are host and port right?"
    )


def _is_of_spark(error: BaseException) -> bool:
    package = type(error).__module__.partition(".")[0]
    # A JVM that is gone shows itself as a refused connection to it.
    return package in {"pyspark", "py4j"} or isinstance(error, ConnectionError)


def _sentence(text: str, kind: str) -> str:
    """Say in one sentence what a failure of Spark was about."""
    lost = re.search(r"ExecutorLostFailure \((.*?)\) Reason: (.*)", text)
    if lost:
        return (
            "An executor of Spark died, again after every retry, so the job was given up and "
            f"nothing was written ({_first_line(lost[2])}); more memory per executor "
            "(spark.executor.memory, spark.executor.memoryOverhead) or smaller partitions may help."
        )
    if "OutOfMemoryError" in text:
        return (
            "Spark ran out of memory; give it more with --conf spark.driver.memory=4g or "
            "--conf spark.executor.memory=8g."
        )
    if "No module named 'recsys'" in text or "No module named 'lowrank'" in text:
        return (
            "The executors have no package lowrank-recsys; install it there, or send an "
            "environment along with spark.archives (docs/spark.md shows how)."
        )
    if "unresponsive" in text or "SparkContext was shut down" in text or "stopped" in text:
        return f"The Spark cluster is gone or gave the application up ({_first_line(text)})."
    if "JAVA_GATEWAY_EXITED" in text:
        return "Java could not start Spark; Spark needs Java 17 or newer (java -version tells)."
    if kind == "ConnectionRefusedError" or "Py4JNetworkError" in kind:
        return "The Java process of Spark is gone; its log above may say why."
    return f"Spark failed: {_root_cause(text)}"


def _root_cause(text: str) -> str:
    """Return the last line that names a cause, else the first line."""
    causes = re.findall(r"(?:Caused by: |^:? ?)([\w.]+(?:Error|Exception): .+)", text, re.MULTILINE)
    return _first_line(causes[-1] if causes else text)


def _first_line(text: Any) -> str:
    lines = [line.strip() for line in str(text).splitlines() if line.strip()]
    line = lines[0] if lines else "no reason given"
    return line if len(line) <= 300 else f"{line[:297]}..."

"""Spark sessions: start, errors in one sentence, progress."""

from __future__ import annotations

import os
import re
import shutil
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lowrank.spark.rows import without_word_of_pandas
from recsys.errors import EngineError, RecsysError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["BROADCAST_LIMIT", "explained", "require_pyspark", "spark_session", "watching"]

BROADCAST_LIMIT = 2**29
"""Bytes of vectors that are sent to each worker whole."""

_DEFAULT_MASTER = "local[*]"
_CONNECT_SECONDS = 5.0
_LOCAL_SHUFFLE = "32"  # partitions; 200, as for a cluster, are slow on a few cores
_MASTER = re.compile(r"local(\[(\*|\d+)(,\s*\d+)?\])?|spark://\S+|yarn|k8s://\S+")

_LOGGING = Path(__file__).with_name("log4j2.properties")

# Defaults of ours: no log messages of Spark in a command, and room on the driver for vectors up to
# the broadcast limit.
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
    """Yield a Spark session; a new one is stopped at the end.

    Parameters
    ----------
    master : str, optional
        ``local[N]``, ``local[*]``, ``spark://HOST:PORT``, ``yarn`` or ``k8s://URL``. By default
        that of `spark-submit`, if it started the program, and ``local[*]`` otherwise.
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
        now = running.sparkContext.master
        if master is not None and master != now:
            raise EngineError(
                f"A Spark session with the master {now} is running, so {master} cannot be used; "
                "stop it first, or leave the master out."
            )
        with explained():
            yield running
        return
    with explained():
        spark = _start(master, dict(conf or {}))
        try:
            yield spark
        finally:
            with suppress(Exception):  # the first failure is the one to report
                spark.stop()


def require_pyspark() -> None:
    """Check that PySpark is installed.

    Raises
    ------
    EngineError
        If it is not; the message names the extra.
    """
    try:
        import pyspark  # noqa: F401
    except ImportError:
        raise EngineError(
            "The Spark engine needs PySpark, which is not installed; install it with "
            "pip install 'lowrank-recsys[spark]', or in a clone pip install -e '.[spark]'."
        ) from None


@contextmanager
def explained() -> Iterator[None]:
    """Turn a failure of Spark into an `EngineError` of one sentence.

    Raises
    ------
    EngineError
        For any exception of PySpark; others pass unchanged.
    """
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


def _require_java() -> None:
    home = os.environ.get("JAVA_HOME")
    if home is not None:
        if not (Path(home) / "bin" / "java").is_file():
            raise EngineError(f"Spark needs Java 17 or newer; JAVA_HOME, {home}, has no bin/java.")
    elif shutil.which("java") is None:
        raise EngineError(
            "Spark needs Java 17 or newer, but there is no java on the PATH, and no JAVA_HOME; "
            "install a Java runtime (on Debian: apt install openjdk-17-jre-headless)."
        )


def _require_listener(master: str) -> None:
    """Check that a standalone master answers, since Spark would wait for it for a minute."""
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
    """Return the reason for a failure of Spark in one sentence."""
    lost = re.search(r"ExecutorLostFailure \((.*?)\) Reason: (.*)", text)
    if lost:
        return (
            "An executor of Spark died, again after every retry, so the job failed and nothing "
            f"was written ({_first_line(lost[2])}); more memory per executor "
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
        return f"The Spark cluster is gone or has stopped the application ({_first_line(text)})."
    if "JAVA_GATEWAY_EXITED" in text:
        return "Java could not start Spark; Spark needs Java 17 or newer (see java -version)."
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


_SECONDS = 1.0


@contextmanager
def watching(spark: SparkSession, what: str, say: Callable[[str], None] | None) -> Iterator[None]:
    """Call `say` about once a second with the progress of the running jobs."""
    if say is None:
        yield
        return
    say(what)
    over = threading.Event()

    def watch() -> None:
        tracker = spark.sparkContext.statusTracker()
        while not over.wait(_SECONDS):
            with suppress(Exception):  # a missing status is not a failure
                say(f"{what}: {_status(tracker)}")

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _status(tracker: Any) -> str:
    """Return the number of finished stages and of running tasks."""
    done = stages = tasks = 0
    for job in tracker.getActiveJobsIds():
        known = tracker.getJobInfo(job)
        for stage in known.stageIds if known else ():
            info = tracker.getStageInfo(stage)
            stages += 1
            if info is not None and info.numCompletedTasks >= info.numTasks:
                done += 1
            elif info is not None:
                tasks += info.numActiveTasks
    return f"{done} of {stages} stages done, {tasks} tasks running"

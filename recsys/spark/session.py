"""The Spark session."""

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

import numpy as np
import polars as pl
from numpy.typing import NDArray

from lowrank.spark.rows import without_word_of_pandas
from recsys.data.ids import Ids
from recsys.data.ratings import Ratings
from recsys.errors import DataError, EngineError, ModelFileError, RecsysError
from recsys.spark.results import MANIFEST, MODELS, SparkModel, model_class, parse_manifest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from recsys.models.base import Model

__all__ = ["explained", "load_result", "memory_needed", "read_result", "spark_session", "watching"]

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


_SHARE_OF_MEMORY = 0.5
_BYTES_PER_RATING = 8  # index and value
_BYTES_PER_ID = 100  # an id as a string, with room to sort it


def read_result(path: str | Path) -> SparkModel:
    """Read the model.json of a result on a local disk, and check that its files are there.

    Raises
    ------
    ModelFileError
        If it is damaged or too new.
    """
    directory = Path(path)
    try:
        text = (directory / MANIFEST).read_text()
    except (OSError, UnicodeDecodeError):
        raise ModelFileError(f"The model {path} has no {MANIFEST} that can be read.") from None
    result = parse_manifest(text, str(path))
    for name, size in result.files.items():
        file = directory / name
        if not file.is_file():
            raise ModelFileError(f"The model {path} is damaged: {name} is missing.")
        if file.stat().st_size != size:
            raise ModelFileError(
                f"The model {path} is damaged: {name} has {file.stat().st_size:,} bytes instead "
                f"of {size:,}."
            )
    return result


def load_result(path: str | Path) -> tuple[Model, Ratings, dict[str, Any]]:
    """Return the model, its training ratings and the summary of its fit.

    Raises
    ------
    ModelFileError
        If the result is damaged, or too large for the memory of this machine.
    """
    result = read_result(path)
    try:
        _require_memory(result)
        users, items = (_table(result, name) for name in ("users", "items"))
        ratings = _ratings(result, users, items)
        return _model(result, users, items), ratings, result.training
    except ModelFileError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError, pl.exceptions.PolarsError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise ModelFileError(f"The model {path} is damaged: {reason}.") from None


def memory_needed(result: SparkModel) -> int:
    """Return about how many bytes a result takes on one machine."""
    rows = result.n_users + result.n_items
    vectors = rows * (4 * (result.factors + 1) + _BYTES_PER_ID)
    return 2 * (vectors + _BYTES_PER_RATING * int(result.training["ratings"]))


def _require_memory(result: SparkModel) -> None:
    needed = memory_needed(result)
    there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > _SHARE_OF_MEMORY * there:
        raise ModelFileError(
            f"The model {result.path} needs about {needed / 1e9:.1f} GB of memory here, of "
            f"{there / 1e9:.1f} GB; ask it on the cluster (--engine spark)."
        )


def _table(result: SparkModel, name: str) -> pl.DataFrame:
    files = [Path(result.path) / each for each in result.files if each.startswith(f"{name}/")]
    table = pl.concat([_part(file) for file in files]).sort("index")
    if not np.array_equal(table["index"].to_numpy(), np.arange(len(table))):
        raise DataError(f"the {name} are not numbered 0 to {len(table) - 1}")
    return table


def _part(file: Path) -> pl.DataFrame:
    try:
        return pl.read_parquet(file, glob=False)
    except pl.exceptions.PanicException as error:
        raise pl.exceptions.ComputeError(str(error)) from None


def _ratings(result: SparkModel, users: pl.DataFrame, items: pl.DataFrame) -> Ratings:
    lengths = users["others"].list.len().to_numpy()
    indptr = np.zeros(len(users) + 1, np.int64)
    np.cumsum(lengths, out=indptr[1:])
    return Ratings(
        users=Ids(users["id"], "user"),
        items=Ids(items["id"], "item"),
        indptr=indptr,
        indices=_flat(users["others"], np.int32),
        values=_flat(users["values"], np.float32),
        implicit=result.implicit,
    )


def _model(result: SparkModel, users: pl.DataFrame, items: pl.DataFrame) -> Model:
    if result.model not in MODELS:
        raise DataError(f"there is no model {result.model!r} of the Spark engine")
    k = result.factors
    arrays: dict[str, Any] = {name: np.asarray(value) for name, value in result.fitted.items()}
    for side, table in (("user", users), ("item", items)):
        arrays[f"{side}_bias"] = table["bias"].cast(pl.Float32).to_numpy()
        arrays[f"{side}_factors"] = _flat(table["factors"], np.float32).reshape(len(table), k)
    model: Model = model_class(result.model)._from_arrays(result.parameters, arrays)
    return model


def _flat(lists: pl.Series, dtype: type[np.generic]) -> NDArray[Any]:
    """Return the values of all lists of a column, one after another; empty lists add none."""
    values = lists.filter(lists.list.len() > 0).explode()
    return values.to_numpy().astype(dtype, copy=False)


_SECONDS = 1.0


@contextmanager
def watching(spark: SparkSession, what: str, say: Callable[[str], None] | None) -> Iterator[None]:
    """Call `say` about once a second with how far the stages of the running jobs are."""
    if say is None:
        yield
        return
    say(what)
    over = threading.Event()

    def watch() -> None:
        tracker = spark.sparkContext.statusTracker()
        while not over.wait(_SECONDS):
            with suppress(Exception):  # a status that cannot be had is nobody's failure
                say(f"{what}: {_status(tracker)}")

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _status(tracker: Any) -> str:
    """Return how many of the stages of the running jobs are done, and how many tasks run."""
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

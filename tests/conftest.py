"""Settings of all tests; Spark and PostgreSQL for those that need them, where they are there."""

from __future__ import annotations

import gc
import os
import pickle
import shutil
import signal
from collections.abc import Generator, Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import chromium
import postgres as private
import pytest
from _pytest.doctest import DoctestModule
from covering import left_out
from hypothesis import settings

# Several processes share the cores, of which threads of OpenMP that wait would take half.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# No test asserts a time. The same examples are tried every time, so that a failure is of a change;
# HYPOTHESIS_PROFILE=long tries 40 times as many, and others every time.
settings.register_profile("short", deadline=None, max_examples=8, derandomize=True)
settings.register_profile("long", deadline=None, max_examples=320)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "short"))
# Tests that are marked `long`, the rest of what has a representative, run in that profile alone.
IS_LONG = os.environ.get("HYPOTHESIS_PROFILE") == "long"
os.environ.pop("PYTHONUNBUFFERED", None)  # commands write as they do for users
# Under nohup, the commands would ignore a closed terminal, as they should.
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# A Java that lives for a minute has no time for its best compiler, for a threaded collector, and
# for checking classes that come from a package.
QUICK_JAVA = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xmn400m -XX:ReservedCodeCacheSize=200m "
    "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)

# Small data: what Spark saves by compiling and replanning is less than that costs.
SMALL = {
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": QUICK_JAVA,
    "spark.default.parallelism": "2",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.ui.explainMode": "simple",
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    "spark.shuffle.compress": "false",
    "spark.sql.parquet.compression.codec": "uncompressed",
}


# Units (see `unit_of`) of more than ten seconds, the longest first, and a page that would be last.
LONGEST = (
    "spark",
    "tests/test_docs.py",
    "tests/model/test_life.py",
    "tests/recsys/serve/test_faults.py",
    "tests/test_interrupts.py",
    "tests/test_notebooks.py",
    "tests/recsys/serve/test_page.py",
    "tests/recsys/test_table_writer.py",
    "tests/recsys/test_forgetting.py",
    "tests/recsys/cli/test_forgetting.py",
    "tests/recsys/models/test_behaviour.py",
    "tests/recsys/saving/test_storage.py",
    "tests/lowrank/completion/test_complete.py",
    "tests/recsys/cli/test_evaluate.py",
    "tests/test_shipping.py",
    "docs/howto/scikit-learn.md",
)

if "COVERAGE_PROCESS_CONFIG" in os.environ:
    SMALL["spark.python.daemon.module"] = "measured_daemon"
    SMALL["spark.executorEnv.PYTHONPATH"] = str(Path(__file__).parent)


def unit_of(nodeid: str) -> str:
    """Return what one worker runs the whole of: a file, or all files of a service in their name."""
    path = nodeid.partition("::")[0]
    return next((service for service in ("spark", "postgres") if service in path), path)


def pytest_sessionstart() -> None:
    """Do not look for garbage among modules and tests that are there until the end."""
    gc.disable()


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Import another part of each folder first in each worker.

    In a new clone, a module is compiled by the worker that is the first to import it,
    and read by all others. A single process imports only what it runs: the sanitizer
    of threads bears no polars.
    """
    report = yield
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return report
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    n_workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    modules = [node for node in report.result or () if type(node) is pytest.Module]
    for module in modules[worker % n_workers :: n_workers]:
        # What fails or skips does so again, and is reported, when its turn comes.
        with suppress(Exception, pytest.skip.Exception):
            _ = module.obj
    return report


@pytest.hookimpl(wrapper=True)
def pytest_collect_file() -> Generator[None, list[Any], list[Any]]:
    """Look for no doctests in the tests: there are none."""
    collectors = yield
    return [each for each in collectors if not isinstance(each, DoctestModule)]


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.set_threshold(50_000)  # most tests make less that is not freed at once
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Share the tests out by `unit_of`, so that fixtures of files and services are set up once."""
    from xdist.scheduler import LoadFileScheduling

    class ByUnit(LoadFileScheduling):
        _split_scope = staticmethod(unit_of)

        def mark_test_complete(self, node: Any, item_index: int, *args: Any) -> None:
            super().mark_test_complete(node, item_index, *args)
            # All tests of the units that it has are counted after each test.
            units = self.assigned_work[node]
            unit = unit_of(self.registered_collections[node][item_index])
            if all(units[unit].values()):
                del units[unit]

    config.option.loadscopereorder = (
        False  # the order of the tests is that of the units
    )
    return ByUnit(config, log)


def pytest_configure(config: pytest.Config) -> None:
    """Let a worker send what is shown: of a test that passes, one of five messages."""
    plugins = config.pluginmanager.get_plugins()
    workers = [p for p in plugins if type(p).__name__ == "WorkerInteractor"]
    if not workers or config.option.verbose > 0:
        return
    worker: Any = workers[0]
    send = worker.sendevent

    def send_what_is_shown(name: str, **values: Any) -> None:
        if name == "testreport" and "dull" in values["data"]:
            return
        if name not in ("logstart", "logfinish"):
            send(name, **values)

    worker.sendevent = send_what_is_shown


@pytest.hookimpl(tryfirst=True)
def pytest_report_to_serializable(
    config: pytest.Config, report: Any
) -> dict[str, Any] | None:
    """Send the report of a success as one value: xdist takes its time for each."""
    if type(report) is not pytest.TestReport or not report.passed:
        return None
    # `--durations` leaves shorter phases out.
    is_shown = report.when == "call" or report.sections or report.duration > 0.005
    if not is_shown and config.option.verbose <= 0:
        return {"dull": True}
    return {"pickled": pickle.dumps(report)}


@pytest.hookimpl(tryfirst=True)
def pytest_report_from_serializable(data: dict[str, Any]) -> Any:
    """Unpack the report of a success."""
    if "pickled" not in data:
        return None
    report = pickle.loads(data.pop("pickled"))
    vars(report).update(data)
    return report


@pytest.hookimpl(trylast=True)  # after -k, which may ask for any parameters
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Begin with what takes longest, so that no process has it left at the end."""
    if not IS_LONG:
        long_items = {item for item in items if item.get_closest_marker("long")}
        long_items |= left_out([item for item in items if item not in long_items])
        config.hook.pytest_deselected(items=list(long_items))
        items[:] = [item for item in items if item not in long_items]
    last = len(LONGEST)
    places = {unit: place for place, unit in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(unit_of(item.nodeid), last))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say at the end that tests were skipped for want of a database server or a browser."""
    skipped = [
        str(report.longrepr) for report in terminalreporter.stats.get("skipped", ())
    ]
    reasons = {
        "PostgreSQL": private.why_no_postgres(),
        "a browser": chromium.why_no_chromium(),
    }
    for needed, reason in reasons.items():
        if reason and (n := sum(reason in text for text in skipped)):
            line = f"tests that need {needed} were skipped: {n}; {reason}"
            terminalreporter.write_line(line, yellow=True)


def why_no_spark() -> str | None:
    if find_spec("pyspark") is None:
        return "PySpark is not installed (the extra spark)"
    if "JAVA_HOME" not in os.environ and shutil.which("java") is None:
        return "PySpark is installed, but there is no Java"
    return None


@pytest.fixture(scope="module")
def one_fold() -> Iterator[None]:
    """Let `ials` search for penalties on one fold, where it would on five of small data."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("recsys.models.ials.REPEATED", 0)
        yield


@pytest.fixture(scope="session")
def needs_spark() -> None:
    reason = why_no_spark()
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture(scope="session")
def quick_java() -> str:
    return QUICK_JAVA


@pytest.fixture(scope="session")
def spark(needs_spark: None) -> Iterator[Any]:
    from recsys.spark import spark_session

    with spark_session("local[2]", SMALL) as session:
        yield session


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[private.Server]:
    """Start the private server of this run: see `tests/postgres.py`."""
    if reason := private.why_no_postgres():
        pytest.skip(reason)
    with private.server() as server:
        yield server


@pytest.fixture(scope="session")
def postgres(postgres_server: private.Server) -> str:
    """Return the address of a database on the private server, with user and password."""
    return postgres_server.uri

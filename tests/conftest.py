"""Settings of all tests, and a Spark session for those that need one, where there is Spark."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# No test asserts a time. HYPOTHESIS_PROFILE=long tries fifteen times as many examples.
settings.register_profile("short", deadline=None, max_examples=20)
settings.register_profile("long", deadline=None, max_examples=300)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "short"))

# A Java that lives for a minute has no time for its best compiler, for a threaded collector, and
# for checking classes that come from a package.
QUICK_JAVA = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC "
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
}


if "COVERAGE_PROCESS_CONFIG" in os.environ:
    SMALL["spark.python.daemon.module"] = "measured_daemon"
    SMALL["spark.executorEnv.PYTHONPATH"] = str(Path(__file__).parent)


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give the tests that need Spark to one worker, first of all: they share one session."""
    needs_spark = [item for item in items if "spark" in getattr(item, "fixturenames", ())]
    for item in needs_spark:
        item.add_marker(pytest.mark.xdist_group("spark"))
    items.sort(key=lambda item: item not in needs_spark)


def why_no_spark() -> str | None:
    if find_spec("pyspark") is None:
        return "PySpark is not installed (the extra spark)"
    if "JAVA_HOME" not in os.environ and shutil.which("java") is None:
        return "PySpark is installed, but there is no Java"
    return None


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

"""Errors when Spark is missing, out of reach or fails."""

import json
import re
import socket
import sys
from types import SimpleNamespace

import pytest

from recsys.errors import EngineError, ModelFileError
from recsys.saving.model_file import SPARK_FORMAT
from recsys.spark import session
from recsys.spark.session import explained, spark_session


def opened(master=None):
    with spark_session(master):
        raise AssertionError("a session that cannot be")


@pytest.fixture
def no_session(needs_spark, monkeypatch):
    """As if no session were running."""
    from pyspark.sql import SparkSession

    monkeypatch.setattr(SparkSession, "getActiveSession", staticmethod(lambda: None))


def test_pyspark_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(EngineError, match=r"pip install 'lowrank-recsys\[spark\]'"):
        opened()


def test_java_is_missing(no_session, monkeypatch, tmp_path):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        EngineError, match="needs Java 17 or newer, but there is no java"
    ):
        opened("local[1]")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(EngineError, match=r"JAVA_HOME, .*, has no bin/java"):
        opened("local[1]")


def test_the_master_is_out_of_reach(no_session):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        master = f"spark://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(
            EngineError, match=rf"{master} cannot be reached \(connection refused"
        ):
            opened(master)


def test_the_master_is_not_one(no_session):
    with pytest.raises(
        EngineError, match=r"The master must be local, local\[N\].*; got 'moon'"
    ):
        opened("moon")


def test_another_session_is_running(spark):
    with pytest.raises(
        EngineError, match=r"with the master local\[2\] is running, so yarn cannot"
    ):
        opened("yarn")
    with spark_session("local[2]") as same:
        assert same is spark


def test_the_failure_of_a_job_is_one_sentence(spark):
    from lowrank.spark.arrow import map_in_arrow

    def broken(batches):
        raise OverflowError("the well is dry")

    said = pytest.raises(
        EngineError, match=r"Spark failed: .*OverflowError: the well is dry"
    )
    with said as info, explained():
        map_in_arrow(spark.range(2), broken, "id bigint").count()
    assert "\n" not in str(info.value)


def test_errors_of_others_pass_unchanged():
    with pytest.raises(KeyError, match="mine"), explained():
        raise KeyError("mine")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "Job aborted due to stage failure: Task 0 in stage 1.0 failed 4 times, most recent "
            "failure: Lost task 0.3 in stage 1.0 (TID 7) (10.0.0.2 executor 3): "
            "ExecutorLostFailure (executor 3 exited caused by one of the running tasks) Reason: "
            "Command exited with code 137\nDriver stacktrace:",
            r"An executor of Spark died, again after every retry.*\(Command exited with code 137\)",
        ),
        (
            "java.lang.OutOfMemoryError: Java heap space",
            "Spark ran out of memory; give it more",
        ),
        (
            "ModuleNotFoundError: No module named 'recsys'",
            "executors have no package lowrank-recsys .Py4JJava",
        ),
        (
            "Job 3 cancelled because SparkContext was shut down",
            "cluster is gone or has stopped the appl",
        ),
        (
            "[JAVA_GATEWAY_EXITED] Java gateway process exited",
            "Java could not start Spark",
        ),
        (
            "boom\nCaused by: java.io.IOException: No space left",
            "Spark failed: java.io.IOExc.*left",
        ),
    ],
)
def test_sentences(text, sentence):
    found = session._sentence(f"Py4JJavaError: {text}")
    assert re.search(sentence, found)
    assert "\n" not in found


def test_java_is_gone():
    gone = pytest.raises(
        EngineError, match="The Java process of Spark is gone; its log above may"
    )
    with gone, explained():
        raise ConnectionRefusedError(111, "Connection refused")


def test_object_stores_need_no_parent_folder(spark, tmp_path, monkeypatch):
    from recsys.spark import files

    monkeypatch.setattr(files, "_WITH_FOLDERS", ("hdfs",))
    out = str(tmp_path / "no" / "model")
    with files.staged(spark, out, lambda path: True, overwrite=False) as folder:
        folder.child("model.json").write_text("{}")
    assert files.SparkPath(spark, out).sizes() == {"model.json": 2}


def test_the_old_result_is_put_back_where_the_new_one_cannot_be_moved(spark, tmp_path):
    from recsys.spark.files import SparkPath, put_in_place

    class Stuck(SparkPath):
        def move_to(self, other):
            self._files = SimpleNamespace(rename=lambda *_: False)
            super().move_to(other)

    for name in ("new", "target"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "part").write_text(name)
    new, target, aside = (each(spark, str(tmp_path / name)) for each, name in (
        (Stuck, "new"), (SparkPath, "target"), (SparkPath, "aside")
    ))  # fmt: skip
    with pytest.raises(ModelFileError, match=r"new cannot be renamed to .*target\."):
        put_in_place(new, target, aside)
    assert (tmp_path / "target" / "part").read_text() == "target"
    assert not (tmp_path / "aside").exists()


@pytest.mark.parametrize(
    ("content", "expected"),
    [("{", False), ("[]", False), (json.dumps({"format": SPARK_FORMAT}), True)],
)
def test_results_are_known_by_their_manifest(spark, tmp_path, content, expected):
    from recsys.spark.files import SparkPath
    from recsys.spark.results import is_result

    (tmp_path / "model.json").write_text(content)
    assert is_result(SparkPath(spark, str(tmp_path))) is expected


def test_a_failed_job_leaves_nothing_half_written(spark, tmp_path):
    from recsys.spark.files import staged

    def fail():
        with staged(
            spark, str(tmp_path / "out"), lambda path: True, overwrite=False
        ) as folder:
            spark.range(3).write.parquet(folder.child("part").uri)
            assert any(tmp_path.iterdir())
            raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError, match="in the middle"):
        fail()
    assert list(tmp_path.iterdir()) == []

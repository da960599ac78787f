"""A standalone cluster of a master and two workers on loopback, one of which is killed."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest

from recsys.recommender import Recommender

HERE = Path(__file__).parent
PATIENCE = 60  # seconds for the cluster to come up


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def running(home, folder, java_options, name, *arguments):
    """Run a part of the cluster in a process group of its own, and end that at the end.

    What spark-class would start by way of a shell and another Java is started at once.
    """
    java = Path(os.environ["JAVA_HOME"]) / "bin" / "java" if "JAVA_HOME" in os.environ else "java"
    options = [*java_options.split(), "-Xmx256m", "-cp", home / "jars" / "*"]
    command = [java, *options, f"org.apache.spark.deploy.{name}", *arguments]
    surroundings = os.environ | {
        "SPARK_HOME": str(home),
        "SPARK_SCALA_VERSION": "2.13",
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_WORKER_DIR": str(folder),
        "PYSPARK_PYTHON": sys.executable,
    }
    log = (folder / f"{name.rpartition('.')[2]}-{free_port()}.log").open("w")
    process = subprocess.Popen(
        [str(each) for each in command],
        stdout=log,
        stderr=subprocess.STDOUT,
        env=surroundings,
        start_new_session=True,
    )
    try:
        yield process, Path(log.name)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        log.close()


def wait_for(log, text):
    end = time.monotonic() + PATIENCE
    while text not in log.read_text():
        assert time.monotonic() < end, f"no {text!r} in {log.read_text()}"
        time.sleep(0.1)


@contextmanager
def cluster(folder, java_options):
    """Start a master and two workers; yields the master's URL and the second worker's group."""
    import pyspark

    home, port = Path(pyspark.__file__).parent, free_port()
    master = f"spark://127.0.0.1:{port}"
    place = ["--host", "127.0.0.1", "--webui-port", "0"]
    worker = ["worker.Worker", *place, "--cores", "1", "--memory", "600m", master]
    with running(home, folder, java_options, "master.Master", *place, "--port", port) as (_, log):
        wait_for(log, "New state: ALIVE")
        with (
            running(home, folder, java_options, *worker) as (_, first),
            running(home, folder, java_options, *worker) as (second, other),
        ):
            for each in (first, other):
                wait_for(each, "Successfully registered with master")
            yield master, second.pid


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
def test_a_worker_killed_in_the_middle_changes_nothing(toy, toy_fit, quick_java, tmp_path):
    ratings = tmp_path / "ratings.parquet"
    toy.write_parquet(ratings)
    (tmp_path / "out").mkdir()
    with cluster(tmp_path, quick_java) as (master, victim):
        done = subprocess.run(
            [
                sys.executable,
                HERE / "on_a_cluster.py",
                master,
                ratings,
                tmp_path / "out",
                str(victim),
                json.dumps(toy_fit.parameters),
                quick_java,
            ],
            capture_output=True,
            text=True,
            env=os.environ | {"PYSPARK_PYTHON": sys.executable},
            timeout=300,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["executors"] == [2]  # both were at work when one was killed
    assert "An executor of Spark died, again after every retry" in found["failure"]
    assert [each.name for each in (tmp_path / "out").iterdir()] == ["model"]
    disturbed, undisturbed = (
        Recommender.load(path).model for path in (tmp_path / "out" / "model", toy_fit.path)
    )
    for name in ("user_factors", "user_bias", "item_factors", "item_bias"):
        np.testing.assert_allclose(
            getattr(disturbed, name), getattr(undisturbed, name), atol=1e-4, err_msg=name
        )

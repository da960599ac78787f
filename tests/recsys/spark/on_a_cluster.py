"""Run by test_cluster.py in a process of its own: one Spark application on a standalone cluster.

Fits a model while the worker whose process group is VICTIM is killed, then lets a job fail whose
executors die. Prints one JSON document.
"""

import json
import os
import signal
import sys
from pathlib import Path

from recsys.errors import EngineError
from recsys.spark import fit, spark_session

CONF = {
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.ui.enabled": "false",
    "spark.task.maxFailures": "2",
    "spark.shuffle.io.maxRetries": "1",
    "spark.shuffle.io.retryWait": "500ms",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
}


def kill_executor(batches):
    """Kill the Java process above this Python worker."""
    parent = os.getppid()
    fields = Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()
    os.kill(int(fields[1]), signal.SIGKILL)
    yield from batches


def main(master: str, ratings: str, folder: str, victim: int) -> None:
    from lowrank.spark.arrow import map_in_arrow
    from recsys.spark.files import staged

    said, killed = [], []

    def say(text: str) -> None:
        said.append(text)
        if "sweeps of MLlib: " in text and not killed:
            killed.append(session.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1)
            os.killpg(victim, signal.SIGKILL)

    with spark_session(master, CONF) as session:
        fit(ratings, f"{folder}/model", factors=4, iterations=6, say=say)
        failure = ""
        try:
            with (
                spark_session(master),
                staged(session, f"{folder}/failed", lambda _: True, overwrite=False) as place,
            ):
                session.range(4).write.parquet(place.child("first").uri)
                broken = map_in_arrow(session.range(4), kill_executor, "id bigint")
                broken.write.parquet(place.child("second").uri)
        except EngineError as error:
            failure = str(error)
    print(json.dumps({"executors": killed, "failure": failure}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))

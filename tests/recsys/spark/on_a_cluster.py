"""Run by test_cluster.py in a process of its own: one Spark application on a standalone cluster.

Fits a model, with the PARAMETERS that a JSON object gives, while the worker whose process group is
VICTIM is killed, then lets a job fail whose executors die. JAVA are the options of every Java.
Prints one JSON document.
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


def main(master: str, ratings: str, folder: str, victim: int, parameters: dict, java: str) -> None:
    from lowrank.spark.arrow import map_in_arrow
    from recsys.spark.files import staged

    killed = []

    def kill_worker(step) -> None:
        if step.step == 1:
            killed.append(session.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1)
            os.killpg(victim, signal.SIGKILL)

    options = {f"spark.{part}.extraJavaOptions": java for part in ("driver", "executor")}
    with spark_session(master, CONF | options) as session:
        fit(ratings, f"{folder}/model", on_step=kill_worker, **parameters)
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
    main(
        sys.argv[1],
        sys.argv[2],
        sys.argv[3],
        int(sys.argv[4]),
        json.loads(sys.argv[5]),
        sys.argv[6],
    )

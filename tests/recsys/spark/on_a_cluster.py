"""Run by test_cluster.py in a process of its own: one Spark application on a standalone cluster.

The master, and a worker with three executors, run in the Java of the driver. Fits a model, with the
PARAMETERS that a JSON object gives, while an executor is killed, then lets a job fail at which the
others die; none is started again, which takes as long as the rest. JAVA are the options of every
Java. Prints one JSON document.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import pyspark
from pyspark import SparkConf, SparkContext

from recsys.errors import EngineError
from recsys.spark import fit, spark_session

HOST = "127.0.0.1"
EXECUTORS = 3
CONF = {
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.driver.host": HOST,
    "spark.driver.bindAddress": HOST,
    "spark.ui.enabled": "false",
    "spark.task.maxFailures": "2",
    "spark.shuffle.io.maxRetries": "1",
    "spark.shuffle.io.retryWait": "500ms",
    "spark.default.parallelism": "2",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
}


def start_cluster(folder: str, conf: dict[str, str]) -> str:
    """Start a master, and a worker with a core for each executor; return the URL of the master."""
    os.environ["SPARK_HOME"] = str(Path(pyspark.__file__).parent)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    SparkContext._ensure_initialized(
        conf=SparkConf(loadDefaults=False).setAll(list(conf.items()))
    )
    deploy, settings = (
        SparkContext._jvm.org.apache.spark.deploy,
        SparkContext._jvm.SparkConf(True),
    )
    master = deploy.master.Master.startRpcEnvAndEndpoint(HOST, 0, 0, settings)
    urls = SparkContext._gateway.new_array(SparkContext._jvm.java.lang.String, 1)
    urls[0] = f"spark://{HOST}:{master._1().address().port()}"
    nothing = SparkContext._jvm.scala.Option.empty()
    deploy.worker.Worker.startRpcEnvAndEndpoint(
        HOST, 0, 0, EXECUTORS, 600 * EXECUTORS, urls, folder, nothing, settings, nothing
    )
    return urls[0]


def parent_of(process: int) -> int:
    """Return the process above another, 0 if there is none any more."""
    try:
        return int(
            Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1]
        )
    except (FileNotFoundError, ProcessLookupError):
        return 0


def executors() -> list[int]:
    """Return the processes that the worker has started."""
    java = SparkContext._gateway.proc.pid
    processes = [
        int(each.name) for each in Path("/proc").iterdir() if each.name.isdigit()
    ]
    return [process for process in processes if parent_of(process) == java]


def kill_executor(batches):
    """Kill the Java process above this Python worker."""
    os.kill(parent_of(os.getppid()), signal.SIGKILL)
    yield from batches


def main(ratings: str, folder: str, parameters: str, java: str) -> None:
    from lowrank.spark.arrow import map_in_arrow
    from recsys.spark.files import staged

    killed = []

    def kill_one(step: str) -> None:
        if step == "fitting":
            spark = session.sparkContext._jsc.sc()
            while spark.getExecutorMemoryStatus().size() - 1 < EXECUTORS:
                time.sleep(0.1)
            none = session._jvm.scala.collection.immutable.HashMap()
            spark.requestTotalExecutors(0, 0, none)  # more than there are
            killed.append(executors()[0])
            os.kill(killed[0], signal.SIGKILL)

    conf = CONF | {
        f"spark.{part}.extraJavaOptions": java for part in ("driver", "executor")
    }
    master = start_cluster(folder, conf)
    out = Path(folder) / "out"
    with spark_session(master, conf) as session:
        fit(ratings, str(out / "model"), say=kill_one, **json.loads(parameters))
        failure = ""
        try:
            with (
                spark_session(master),
                staged(
                    session, str(out / "failed"), lambda _: True, overwrite=False
                ) as place,
            ):
                session.range(4).write.parquet(place.child("first").uri)
                broken = map_in_arrow(
                    session.range(0, 4, 1, 1), kill_executor, "id bigint"
                )
                broken.write.parquet(place.child("second").uri)
        except EngineError as error:
            failure = str(error)
    print(json.dumps({"killed": len(killed), "failure": failure}))


if __name__ == "__main__":
    main(*sys.argv[1:])

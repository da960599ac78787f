"""What Spark is doing, in a few words, while a job runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["watching"]

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

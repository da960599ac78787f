"""A process that has imported the command, and forks one for each line of its input.

It runs under `shim.c`. A line has the words of a command, the folder, and the call that fails; the
answer has the exit code, what was said, and the numbers of calls and allocations.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import logging
import os
import resource
import select
import signal
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

MODULES = (
    *("cli.main", "cli.fit", "cli.versions", "cli.lsi", "cli.evaluate", "cli.split"),
    *("cli.recommend", "evaluation", "lsi", "models.als", "readers", "recommender"),
    *("saving.storage", "saving.splits", "serve.event_log", "serve.app"),
    *("auto", "update", "refit", "user_logs", "table_writer", "models.baselines"),
)
SECONDS = (
    60  # of a processor, or of sleep; those of waiting for a processor do not count
)


def main() -> None:
    """Answer line by line until the input ends."""
    for module in MODULES:
        importlib.import_module(f"recsys.{module}")
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)


def answer(job: dict[str, Any]) -> dict[str, Any]:
    """Run a job in a forked process."""
    reading, writing = os.pipe()
    counts, counting = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        for standard in (1, 2):
            os.dup2(writing, standard)
        sys.stdout = os.fdopen(1, "w", closefd=False)
        sys.stderr = os.fdopen(2, "w", closefd=False)
        code = 70
        try:
            code = run(job, counting)
        finally:
            with suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)
    os.close(writing)
    os.close(counting)
    said = read_all(reading, child)
    numbers = read_all(counts, child)
    _, status = os.waitpid(child, 0)
    *counted, modules = numbers.decode().split("\n") if numbers else ("0", "0", "")
    for module in modules.split():  # for the next processes
        with suppress(ImportError):
            importlib.import_module(module)
    return {
        "code": os.waitstatus_to_exitcode(status),
        "said": said.decode(errors="replace"),
        "counts": [int(number) for number in counted],
    }


def read_all(descriptor: int, child: int) -> bytes:
    """Return what comes through a pipe; end the process if it only sleeps."""
    content = b""
    asleep = 0
    ticks = ""
    while True:
        if select.select([descriptor], [], [], 1)[0]:
            chunk = os.read(descriptor, 65536)
            if not chunk:
                os.close(descriptor)
                return content
            content += chunk
        before = ticks
        state, ticks = work_of(child)
        asleep = asleep + 1 if (state, ticks) == ("S", before) else 0
        if asleep == SECONDS:
            os.kill(child, signal.SIGXCPU)


def work_of(process: int) -> tuple[str, str]:
    """Return the state of a process, and the time of processors that it has had."""
    status = Path(f"/proc/{process}/stat").read_text()
    _, fields = status.rsplit(")", 1)
    state, *others = fields.split()
    return state, " ".join(others[10:12])


def run(job: dict[str, Any], counting: int) -> int:
    """Run the command, or append to the journal, and return the exit code."""
    shim = ctypes.CDLL(None)
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 1))
    os.chdir(job["folder"])
    in_order()
    before = set(sys.modules)
    log = -1
    if job["log"]:
        log = os.open(job["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    numbers = map(ctypes.c_long, (job["call"], job["allocation"]))
    size = ctypes.c_size_t(job["smallest"])
    folder = os.fsencode(os.path.realpath(job["folder"]))
    shim.shim_arm(folder, log, *numbers, job["fault"], size)
    try:
        code = journal(job["words"]) if job["words"][0] == "journal" else command(job)
    finally:
        shim.shim_disarm()
        modules = " ".join(sys.modules.keys() - before)
        counts = f"{shim.shim_calls()}\n{shim.shim_allocations()}\n{modules}"
        os.write(counting, counts.encode())
    return code


def command(job: dict[str, Any]) -> int:
    """Run a command and return its exit code."""
    from recsys.cli.main import cli

    warnings.simplefilter("ignore")
    try:
        cli.main([*job["words"], "--quiet"])
    except SystemExit as end:
        return int(end.code or 0)


def journal(words: list[str]) -> int:
    """Append a line to the journal of a service, as POST /v1/events does."""
    from recsys.serve.event_log import LineLog
    from recsys.serve.problems import ProblemError

    logging.disable()
    log = LineLog(words[1], durable=True)
    try:
        log.append(words[2].encode() + b"\n").result()
    except ProblemError as problem:
        print(f"Error: {problem}", file=sys.stderr)
        return 1
    finally:
        log.close()
    return 0


def in_order() -> None:
    """Let threads work one after the other, so that the calls have the same numbers each time."""
    one = partial(ThreadPoolExecutor, 1)
    sys.modules["concurrent.futures"].ThreadPoolExecutor = lambda *_, **__: one()
    for name, module in list(sys.modules.items()):
        if name.startswith("recsys.") and hasattr(module, "ThreadPoolExecutor"):
            module.ThreadPoolExecutor = lambda *_, **__: one()


if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).resolve().parents[2])]
    main()

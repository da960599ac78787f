"""Interleaved timing, memory, machine and tables, for all benchmarks."""

from __future__ import annotations

import ctypes
import gc
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np


def processor_seconds() -> float:
    """Return the processor seconds of this process, and of its children that have ended."""
    used = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used)


def interleaved(
    candidates: dict[str, Callable[[], object]],
    repeats: int = 5,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Time each candidate `repeats` times, in turns: the machine's drift hits all alike."""
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(repeats):
        for name, run in candidates.items():
            time.sleep(0.2)  # idle BLAS threads spin for a while after a product
            start = clock()
            run()
            seconds[name].append(clock() - start)
    return seconds


def median(values: Iterable[float]) -> float:
    return statistics.median(values)


def spread(values: Iterable[float]) -> str:
    """Return the least and the largest of measured values, such as "1.29-1.34"."""
    values = list(values)
    return f"{min(values):.3g}-{max(values):.3g}"


def sgemm_rate(n: int = 3000) -> Callable[[], float]:
    """Return a function that runs one n x n x n product and returns nothing; see `SGEMM_FLOPS`."""
    rng = np.random.default_rng(0)
    a = rng.normal(size=(n, n)).astype(np.float32)
    out = np.empty_like(a)
    return lambda: np.matmul(a, a, out=out)


def sgemm_flops(n: int = 3000) -> float:
    return 2.0 * n**3


def peak_memory(command: Sequence[str]) -> tuple[float, int]:
    """Run a command; return its seconds and its peak resident memory in bytes."""
    probe = (
        "import resource, subprocess, sys, time\n"
        "start = time.perf_counter()\n"
        "code = subprocess.call(sys.argv[1:], stdout=subprocess.DEVNULL)\n"
        "kib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss\n"
        "print(time.perf_counter() - start, kib * 1024, code)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", probe, *command],
        capture_output=True,
        text=True,
        check=True,
    )
    seconds, peak, code = done.stdout.split()
    if code != "0":
        raise RuntimeError(f"{' '.join(command)} failed: {done.stderr}")
    return float(seconds), int(peak)


def extra_memory(run: Callable[[], object]) -> int:
    """Return the bytes by which the process grew while `run` ran; Linux only."""
    status = Path("/proc/self/status")

    def resident(peak: bool) -> int:
        name = "VmHWM:" if peak else "VmRSS:"
        line = next(x for x in status.read_text().splitlines() if x.startswith(name))
        return int(line.split()[1]) * 1024

    gc.collect()
    ctypes.CDLL(None).malloc_trim(
        0
    )  # freed memory that is kept would be used again unseen
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here
    before = resident(peak=False)
    run()
    return max(0, resident(peak=True) - before)


def memory_bandwidth(size: int = 256 * 2**20) -> float:
    """Return the bytes per second that a copy of a large array reads and writes."""
    source = np.ones(size // 8)
    target = np.empty_like(source)
    np.copyto(target, source)
    seconds = interleaved({"copy": lambda: np.copyto(target, source)}, 5)["copy"]
    return 2 * size / min(seconds)


def machine() -> str:
    """Return one line: processor, cores, Python and library versions."""
    import scipy

    model = "unknown processor"
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [
            x for x in cpuinfo.read_text().splitlines() if x.startswith("model name")
        ]
        model = names[0].split(":")[1].strip() if names else platform.machine()
    return (
        f"{model}, {len(os.sched_getaffinity(0))} cores; Python {platform.python_version()}, "
        f"NumPy {np.__version__}, SciPy {scipy.__version__}"
    )


def datasets() -> Path:
    """Return the folder of real data that RECSYS_DATASETS names, or end with a sentence."""
    folder = os.environ.get("RECSYS_DATASETS")
    if not folder:
        sys.exit("Set RECSYS_DATASETS to the folder of the data sets first.")
    return Path(folder)


def table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table with aligned columns; floats get three significant digits."""
    cells = [[x if isinstance(x, str) else f"{x:.3g}" for x in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(headers, *cells, strict=True)]

    def line(row: Sequence[str]) -> str:
        return (
            "| "
            + " | ".join(x.ljust(w) for x, w in zip(row, widths, strict=True))
            + " |"
        )

    rule = "|" + "|".join("-" * (w + 2) for w in widths) + "|"
    return "\n".join([line(headers), rule, *map(line, cells)])

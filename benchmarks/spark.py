"""Seconds of a fit of `als` on Spark and on this machine, on the same cores.

Usage: python benchmarks/spark.py [--factors K] [--memory 8g] [RATINGS ...]
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

import polars as pl
from generated import movielens_shaped
from measuring import machine, table

from recsys.models.registry import make_model
from recsys.readers import read_ratings
from recsys.spark import fit, spark_session

SIZES = [1_000_000, 10_000_000, 25_000_000]
SWEEPS = 6


def on_spark(file: Path, factors: int, folder: Path) -> float:
    """Return the seconds of a fit on the running session."""
    start = time.perf_counter()
    fit(str(file), str(folder), factors=factors, iterations=SWEEPS, overwrite=True)
    return time.perf_counter() - start


def on_this_machine(file: Path, factors: int) -> float:
    """Return the seconds of reading and fitting with the local engine."""
    start = time.perf_counter()
    model = make_model("als", factors=factors, iterations=SWEEPS, tol=0)
    model.fit(read_ratings(file))
    return time.perf_counter() - start


def measure(sizes: list[int], factors: int, memory: str) -> None:
    rows = []
    folder = Path(tempfile.mkdtemp())
    try:
        with spark_session(conf={"spark.driver.memory": memory}) as spark:
            cores = spark.sparkContext.defaultParallelism
            for size in sizes:
                file = folder / f"{size}.parquet"
                A = movielens_shaped(size).tocoo()
                columns = {"user": A.coords[0], "item": A.coords[1], "rating": A.data}
                pl.DataFrame(columns).write_parquet(file)
                del A, columns
                here = on_this_machine(file, factors)
                there = on_spark(file, factors, folder / "model")
                rows.append([f"{size:,}", here, there, there / here])
                print(*rows[-1], file=sys.stderr, flush=True)
    finally:
        shutil.rmtree(folder)
    print(
        f"{machine()}\n{factors} factors, {SWEEPS} sweeps, Spark local[*] on {cores} cores\n"
    )
    print(
        table(["ratings", "this machine, s", "Spark, s", "Spark / this machine"], rows)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("ratings", nargs="*", type=int, default=SIZES)
    parser.add_argument("--factors", type=int, default=64)
    parser.add_argument("--memory", default="8g")
    arguments = parser.parse_args()
    measure(arguments.ratings, arguments.factors, arguments.memory)


if __name__ == "__main__":
    main()

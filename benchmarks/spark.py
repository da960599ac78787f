"""Time per sweep of `als` on Spark, in MLlib and in the local engine, on the same cores; sizes.

Usage: python benchmarks/spark.py [--factors K] [--memory 8g] [RATINGS ...]
       python benchmarks/spark.py --sizing [--factors K]
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
from generated import movielens_shaped
from measuring import machine, median, table

from recsys.models.registry import make_model
from recsys.readers import read_ratings
from recsys.spark import fit, spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SIZES = [1_000_000, 10_000_000, 25_000_000]
SWEEPS = 6
RATINGS_PER_BLOCK = 1_000_000  # as in recsys.spark.fitting
ON_PAPER = {  # ratings: users, items
    25_000_000: (162_541, 59_047),
    100_000_000: (480_000, 18_000),
    1_000_000_000: (10_000_000, 1_000_000),
    10_000_000_000: (100_000_000, 10_000_000),
}


def on_spark(file: Path, factors: int, folder: Path) -> dict[str, float]:
    """Fit on the running session; seconds of each stage."""
    start, heard = time.perf_counter(), []
    fit(
        str(file),
        str(folder),
        factors=factors,
        iterations=SWEEPS,
        overwrite=True,
        on_step=lambda _: heard.append(time.perf_counter()),
    )
    end = time.perf_counter()
    sweeps = [after - before for before, after in pairwise(heard)]
    sweep = median(sweeps[:-1])  # the last one solves for the users twice
    return {
        "read": heard[0] - start - sweep,
        "sweep": sweep,
        "write": end - heard[-1],
        "whole": end - start,
    }


def by_mllib(spark: SparkSession, file: Path, factors: int) -> float:
    """Return the seconds of a sweep of MLlib's ALS: a fit with more sweeps minus one with fewer."""
    from pyspark.ml.recommendation import ALS

    ratings = spark.read.parquet(str(file)).cache()
    blocks = max(4, -(-ratings.count() // RATINGS_PER_BLOCK))
    seconds = []
    for sweeps in (1, 1 + SWEEPS):  # the first also warms up
        als = ALS(
            rank=factors, maxIter=sweeps, numUserBlocks=blocks, numItemBlocks=blocks
        )
        start = time.perf_counter()
        als.fit(ratings).itemFactors.count()
        seconds.append(time.perf_counter() - start)
    ratings.unpersist()
    return (seconds[1] - seconds[0]) / SWEEPS


def on_this_machine(file: Path, factors: int) -> dict[str, float]:
    """Fit with the local engine; seconds of reading, of a sweep, and of all."""
    start = time.perf_counter()
    ratings = read_ratings(file)
    read = time.perf_counter()
    heard = [read]
    model = make_model("als", factors=factors, iterations=6, tol=0)
    model.fit(ratings, on_step=lambda _: heard.append(time.perf_counter()))
    sweeps = [after - before for before, after in pairwise(heard)]
    return {"read": read - start, "sweep": median(sweeps[1:])}


def measure(sizes: list[int], factors: int, memory: str) -> None:
    rows = []
    place = Path(tempfile.mkdtemp())
    try:
        with spark_session(conf={"spark.driver.memory": memory}) as spark:
            cores = spark.sparkContext.defaultParallelism
            for size in sizes:
                file = place / f"{size}.parquet"
                A = movielens_shaped(size).tocoo()
                columns = {"user": A.coords[0], "item": A.coords[1], "rating": A.data}
                pl.DataFrame(columns).write_parquet(file)
                del A, columns
                here, there = (
                    on_this_machine(file, factors),
                    on_spark(file, factors, place / "m"),
                )
                mllib = by_mllib(spark, file, factors)
                ratio = there["sweep"] / here["sweep"]
                sweeps = [here["sweep"], there["sweep"], mllib, mllib / there["sweep"]]
                others = [here["read"], there["read"], there["write"], there["whole"]]
                rows.append([f"{size:,}", *sweeps, *others, cores * ratio])
                print(
                    *rows[-1], file=sys.stderr, flush=True
                )  # what a later failure would lose
    finally:
        shutil.rmtree(place)
    print(
        f"{machine()}\n{factors} factors, Spark local[*] on {cores} cores, driver {memory}\n"
    )
    names = [
        "ratings",
        "local sweep s",
        "Spark sweep s",
        "MLlib sweep s",
        "MLlib / Spark",
    ]
    names += [
        "local read s",
        "Spark read s",
        "Spark write s",
        f"Spark fit s, {SWEEPS} sweeps",
    ]
    print(table([*names, "cores for parity"], rows))
    print(
        "\nCores for parity: cores of a cluster at which a sweep would take as long as the local "
        f"one on {cores}, if it scaled without loss. Below that Spark pays off only where the "
        "ratings do not fit one machine."
    )


def sizing(factors: int) -> None:
    """Print memory and shuffle of a fit, by the formulas of docs/spark.md."""
    rows = []
    for ratings, (users, items) in ON_PAPER.items():
        vector, blocks = 4 * (factors + 1), -(-ratings // RATINGS_PER_BLOCK)
        copies = users * min(blocks, ratings / users) + items * min(
            blocks, ratings / items
        )
        counts = [f"{count:,}" for count in (ratings, users, items, blocks)]
        kept = [16 * ratings / 1e9, (users + items) * vector / 1e9]
        moved = [vector * copies / 1e9, vector * items / 1e9]
        rows.append([*counts, *kept, *moved, 2 * ratings * factors**2 / 1e12])
    names = ["ratings", "users", "items", "blocks", "ratings GB", "factors GB"]
    names += ["shuffle per sweep GB", "broadcast of items GB", "Tflop per sweep"]
    print(f"{factors} factors\n")
    print(table(names, rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("ratings", nargs="*", type=int, default=SIZES)
    parser.add_argument("--factors", type=int, default=64)
    parser.add_argument("--memory", default="8g", help="spark.driver.memory")
    parser.add_argument(
        "--sizing", action="store_true", help="print sizes on paper only"
    )
    arguments = parser.parse_args()
    if arguments.sizing:
        sizing(arguments.factors)
    else:
        measure(arguments.ratings, arguments.factors, arguments.memory)


if __name__ == "__main__":
    main()

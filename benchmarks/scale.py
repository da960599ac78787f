"""The main job with 1 million generated ratings or more: seconds and peak memory of each stage.

Ratings are generated block by block, in the shape of MovieLens-25M scaled in both directions, and
stored in Parquet files of up to 100 million each. A billion ratings take 2.7 GB on disk, and the
saved model 7 GB. The stages are those of `recsys fit` and `recsys recommend`: read, fit `als`,
save, load, and the top 20 of 10,000 users. With another model, only interactions are used, and the
top 20 of all users are computed; models except `ials` run with their defaults. Each stage is
printed when it ends: wall seconds, processor seconds, and the peak memory of the whole process,
mapped files included (Linux only).

Usage: python benchmarks/scale.py [--largest N | --ratings N] [--factors K] [--sweeps S]
           [--model NAME] [--data FOLDER]
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
from measuring import machine, table

SIZES = (1_000_000, 3_000_000, 10_000_000, 30_000_000, 100_000_000)
STAGES = ("read", "fit", "save", "load", "top 20")
SWEEPS = 5
SWEPT = ("als", "ials")  # models that take --factors and --sweeps
PART, BLOCK = (
    100_000_000,
    5_000_000,
)  # ratings of a file, and of what is generated at once


def generate(n: int, folder: Path) -> None:
    """Write n ratings as Parquet files of 100 million each, unless they are there."""
    import pyarrow as pa
    from generated import movielens_blocks
    from pyarrow.parquet import ParquetWriter

    folder /= "ratings"
    done = folder / "_done"
    if done.exists() and done.read_text() == str(n):
        return
    folder.mkdir(parents=True, exist_ok=True)
    schema = pa.schema(
        {"userId": pa.int32(), "movieId": pa.int32(), "rating": pa.float32()}
    )
    for part, blocks in enumerate(
        batched(movielens_blocks(n, block=BLOCK), PART // BLOCK)
    ):
        path = folder / f"part-{part:02}.parquet"
        with ParquetWriter(path, schema, compression="zstd") as writer:
            for users, items, stars in blocks:
                writer.write_table(
                    pa.table([users + 1, items + 1, stars], schema=schema)
                )
    done.write_text(str(n))


def batched(blocks: Iterator[Any], size: int) -> Iterator[Iterator[Any]]:
    """Yield iterators of `size` blocks each; each is used up before the next."""
    for first in blocks:
        yield chain((first,), islice(blocks, size - 1))


def measure(name: str, factors: int, sweeps: int, folder: Path) -> None:
    """Run the stages in this process; print the figures of each as JSON."""
    from recsys import Recommender, read_ratings
    from recsys.data.implicit import as_implicit

    found: dict[str, tuple[float, float, int]] = {}

    def stage(name: str, work: Callable[[], Any]) -> Any:
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here
        start, begun = time.perf_counter(), time.process_time()
        result = work()
        found[name] = (
            time.perf_counter() - start,
            time.process_time() - begun,
            peak_now(),
        )
        wall, processor, peak = found[name]
        text = f"{name}: {wall:.1f} s, {processor:.1f} s of processors, peak {peak / 1e9:.2f} GB"
        print(text, file=sys.stderr, flush=True)
        return result

    model = str(folder / "model")
    params = {"factors": factors, "iterations": sweeps} if name in SWEPT else {}
    params |= {"tol": 0.0} if name == "als" else {}
    ratings = [stage("read", lambda: read_ratings(folder / "ratings"))]
    n_users = ratings[0].n_users
    if name != "als":
        ratings = [as_implicit(ratings.pop())]
    fitted = [stage("fit", lambda: Recommender(name, **params).fit(ratings.pop()))]
    stage("save", lambda: fitted.pop().save(model, overwrite=True))
    loaded = stage("load", lambda: Recommender.load(model))
    n_wanted = min(10_000, n_users) if name == "als" else n_users
    users = np.random.default_rng(0).choice(n_users, n_wanted, replace=False)
    ids = loaded.ratings.users.take(np.sort(users))
    stage("top 20", lambda: sum(map(len, loaded.recommend_batches(ids, n=20))))
    print(json.dumps(found))


def peak_now() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(x for x in lines if x.startswith("VmHWM:")).split()[1]) * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--largest", type=int, default=SIZES[-1], metavar="N")
    parser.add_argument(
        "--ratings", type=float, metavar="N", help="this number alone, as 1e9"
    )
    parser.add_argument("--sweeps", type=int, default=SWEEPS, metavar="S")
    parser.add_argument("--factors", type=int, default=64, metavar="K")
    parser.add_argument("--model", default="als", metavar="NAME")
    parser.add_argument(
        "--data",
        type=Path,
        metavar="FOLDER",
        help="generate here, unless the ratings are there",
    )
    parser.add_argument("--generate", type=int, metavar="N", help=argparse.SUPPRESS)
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.generate:
        generate(options.generate, options.data)
    elif options.measure:
        measure(options.model, options.factors, options.sweeps, options.data)
    else:
        sizes = [n for n in SIZES if n <= options.largest]
        sizes = sizes if options.ratings is None else [int(options.ratings)]
        compare(sizes, options.model, options.factors, options.sweeps, options.data)


def compare(
    sizes: list[int], model: str, factors: int, sweeps: int, data: Path | None
) -> None:
    about = f"{factors} factors, {sweeps} sweeps" if model in SWEPT else "defaults"
    print(f"{machine()}\n{model}: {about}\n", flush=True)
    rows = []
    for n in sizes:
        # Not in memory, where /tmp may be.
        with tempfile.TemporaryDirectory(
            dir=Path.cwd() if n > SIZES[-1] else None
        ) as own:
            folder = str(data or own)
            print(f"{n:,} ratings in {folder}", file=sys.stderr, flush=True)
            run("--generate", str(n), "--data", folder)
            options = (
                "--model",
                model,
                "--factors",
                str(factors),
                "--sweeps",
                str(sweeps),
            )
            found = json.loads(run("--measure", "--data", folder, *options))
        seconds, processors, peaks = zip(*(found[name] for name in STAGES), strict=True)
        rows.append([n, seconds, sum(processors), max(peaks)])
    headers = [
        "ratings",
        *(f"{name} s" for name in STAGES),
        "processor s",
        "peak GB",
        "bytes each",
    ]
    shown = [
        [f"{n:,}", *times, cpu, peak / 1e9, peak / n] for n, times, cpu, peak in rows
    ]
    print(table(headers, shown))
    if len(rows) > 1:
        (n, times, cpu, _), (most, last, last_cpu, _) = rows[0], rows[-1]
        grown = math.log(most / n)
        growth = (
            math.log(sum(last) / sum(times)) / grown,
            math.log(last_cpu / cpu) / grown,
        )
        print(
            "\nAll stages grow with the ratings to the power {:.2f} ({:.2f}).".format(
                *growth
            )
        )
        print("In brackets: of processor seconds.")


def run(*arguments: str) -> str:
    command = [sys.executable, __file__, *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


if __name__ == "__main__":
    main()

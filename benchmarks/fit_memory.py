"""Time and peak memory of `recsys fit` on generated ratings, from Parquet and from CSV.

Usage: python benchmarks/fit_memory.py [--ratings N] [--factors K]
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import polars as pl
from generated import movielens_blocks
from measuring import machine, peak_memory, table


def write(ratings: int, folder: Path) -> list[Path]:
    """Write the same ratings as Parquet and as CSV, with times."""
    files, count = [folder / "ratings.parquet", folder / "ratings.csv"], 0
    with files[1].open("wb") as text:
        for number, (users, items, stars) in enumerate(movielens_blocks(ratings)):
            times = 1_000_000_000 + count + np.arange(len(users))
            columns = {"userId": users + 1, "movieId": items + 1, "rating": stars}
            block = pl.DataFrame(columns | {"timestamp": times})
            block.write_csv(text, include_header=number == 0)
            count += len(block)
    pl.scan_csv(files[1], schema_overrides={"rating": pl.Float32}).sink_parquet(
        files[0]
    )
    return files


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ratings", type=int, default=25_000_000)
    parser.add_argument("--factors", type=int, default=64)
    arguments = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for file in write(arguments.ratings, Path(folder)):
            model = str(Path(folder) / "model")
            options = [
                "--factors",
                str(arguments.factors),
                "--iterations",
                "5",
                "--quiet",
            ]
            command = ["recsys", "fit", str(file), "--out", model, "--force", *options]
            seconds, peak = peak_memory(command)
            size = file.stat().st_size
            factors = sum(
                f.stat().st_size for f in Path(model).glob("arrays/*_factors.npy")
            )
            each = [peak / arguments.ratings, (peak - factors) / arguments.ratings]
            rows.append([file.suffix, size / 1e6, seconds, peak / 1e9, *each])
    print(
        f"{machine()}\n{arguments.ratings:,} ratings, {arguments.factors} factors, 5 sweeps\n"
    )
    print(
        table(
            [
                "file",
                "MB",
                "seconds",
                "peak GB",
                "peak bytes per rating",
                "beyond factors",
            ],
            rows,
        )
    )


if __name__ == "__main__":
    main()

"""Time and peak memory of `recsys fit` on generated ratings, from Parquet and from CSV.

Usage: python benchmarks/fit_memory.py [--ratings N] [--factors K]
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import polars as pl
from generated import movielens_shaped
from measuring import machine, peak_memory, table


def write(ratings: int, folder: Path) -> list[Path]:
    """Write the same ratings as Parquet and as CSV, with times."""
    A = movielens_shaped(ratings).tocoo()
    frame = pl.DataFrame(
        {
            "userId": A.coords[0] + 1,
            "movieId": A.coords[1] + 1,
            "rating": A.data,
            "timestamp": 1_000_000_000 + np.arange(A.nnz),
        }
    )
    files = [folder / "ratings.parquet", folder / "ratings.csv"]
    frame.write_parquet(files[0])
    frame.write_csv(files[1])
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
            options = ["--factors", str(arguments.factors), "--iterations", "5", "--quiet"]
            command = ["recsys", "fit", str(file), "--out", model, "--force", *options]
            seconds, peak = peak_memory(command)
            size = file.stat().st_size
            rows.append([file.suffix, size / 1e6, seconds, peak / 1e9, peak / arguments.ratings])
    print(f"{machine()}\n{arguments.ratings:,} ratings, {arguments.factors} factors, 5 sweeps\n")
    print(table(["file", "MB", "seconds", "peak GB", "peak bytes per rating"], rows))


if __name__ == "__main__":
    main()

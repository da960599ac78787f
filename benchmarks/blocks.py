"""Decompositions of a matrix on disk, compared with reading it once, and PCA by batches."""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

import numpy as np
from measuring import extra_memory, machine, table
from sklearn.decomposition import IncrementalPCA

from lowrank import PCA, truncated_svd

COLUMNS, DIRECTIONS, CHUNK = 1000, 20, 20_000


def write(path: Path, rows: int) -> None:
    """Write float32 rows with a decaying spectrum, some at a time."""
    rng = np.random.default_rng(0)
    directions = (rng.standard_normal((COLUMNS, COLUMNS)) / 30).astype(np.float32)
    directions *= 0.9 ** np.arange(COLUMNS, dtype=np.float32)[:, None] + 0.01
    target = np.lib.format.open_memmap(path, "w+", np.float32, (rows, COLUMNS))
    for start in range(0, rows, CHUNK):
        part = target[start : start + CHUNK]
        part[:] = rng.standard_normal(part.shape, dtype=np.float32) @ directions
    target.flush()


def read_plainly(path: Path) -> float:
    """Read the file from the disk, not from the system's memory of it; return the seconds."""
    forget(path)
    start = time.perf_counter()
    with path.open("rb", buffering=0) as file:
        buffer = bytearray(1 << 26)
        while file.readinto(buffer):
            pass
    return time.perf_counter() - start


def forget(path: Path) -> None:
    """Ask the system to drop its copy of the file."""
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def on_disk(rows: int) -> str:
    with tempfile.TemporaryDirectory(dir=".") as folder:
        path = Path(folder) / "matrix.npy"
        write(path, rows)
        gigabytes = path.stat().st_size / 1e9
        plain = read_plainly(path)
        array = np.load(path, mmap_mode="r")
        found = []

        def decompose() -> None:
            found.append(truncated_svd(array, DIRECTIONS, center=True, random_state=0))

        forget(path)
        start = time.perf_counter()
        memory = extra_memory(decompose)
        seconds = time.perf_counter() - start
        readings = found[0].passes + 1  # the first one finds shape, means and norm
        row = (
            f"{gigabytes:.1f}", f"{plain:.1f}", f"{gigabytes / plain:.2f}", found[0].method,
            f"{seconds:.1f}", str(readings), f"{seconds / readings / plain:.2f}",
            f"{memory / 1e9:.2f}",
        )  # fmt: skip
    headers = (
        "GB on disk", "plain read, s", "GB/s", "solver", "truncated_svd, s", "readings",
        "a reading / a plain read", "memory, GB",
    )  # fmt: skip
    return table(headers, [row])


def by_batches(rows: int, k: int) -> str:
    """Compare `partial_fit` with IncrementalPCA: angles to the PCA of all samples, and seconds."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((rows, 300)) @ np.diag(0.98 ** np.arange(300))
    exact = PCA(k, random_state=0).fit(X).components_
    cells = []
    for size in (100, 500):
        seconds, angles = {}, {}
        for name, estimator in (
            ("lowrank", PCA(k)),
            ("scikit-learn", IncrementalPCA(k)),
        ):
            start = time.perf_counter()
            for first in range(0, rows, size):
                estimator.partial_fit(X[first : first + size])
            seconds[name] = time.perf_counter() - start
            angles[name] = largest_angle(exact, estimator.components_)
        ratio = seconds["scikit-learn"] / seconds["lowrank"]
        cells.append(
            (str(size), angles["lowrank"], angles["scikit-learn"], f"{ratio:.2f}")
        )
    headers = ("batch", "angle, lowrank", "angle, scikit-learn", "times as fast")
    return table(headers, cells)


def largest_angle(first: np.ndarray, second: np.ndarray) -> float:
    """Return the largest principal angle between two spaces, in degrees."""
    cosine = np.linalg.svd(first @ second.T)[1].min()
    return float(np.degrees(np.arccos(min(1.0, cosine))))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--rows", type=int, default=1_000_000, help="rows of 4 kB on the disk"
    )
    rows = parser.parse_args().rows
    print(machine())
    print(
        f"\nTruncated SVD with {DIRECTIONS} triplets of {rows:,} x {COLUMNS} float32 on disk:\n"
    )
    print(on_disk(rows))
    print("\nPCA with 10 components of 20,000 x 300 samples, batch by batch:\n")
    print(by_batches(20_000, 10))


if __name__ == "__main__":
    main()

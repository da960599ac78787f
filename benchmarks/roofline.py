"""Rates of the kernels compared with the limits of one core: arithmetic and memory bandwidth.

A kernel with `flops` operations on `bytes` of arrays, each read or written once, cannot be faster
than a copy of as many bytes, nor than sgemm with as many operations: this is the roofline. Times
are minima of the processor time of one core over several runs, which other load affects little.

Usage: RECSYS_DATASETS=... python benchmarks/roofline.py [--out docs/roofline.png]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matrices import gowalla
from measuring import machine, table
from threadpoolctl import threadpool_info

from lowrank import kernels
from lowrank.kernels.retrieval import sum_rows, top_k

HERE = Path(__file__).resolve().parent
SETS = ("avx2", "avx512")
COLOURS = {"avx2": "#e67e22", "avx512": "#3f51b5"}
HEADERS = ("kernel", "instructions", "flops per byte", "Gflop/s", "GB/s", "of the roof")


class Kernel(NamedTuple):
    """A function to be timed, its operations, and the bytes of its arrays."""

    run: Callable[[], object]
    flops: float
    bytes: float


def least(run: Callable[[], object], budget: float) -> float:
    """Return the least processor seconds of a run, of as many as a few seconds allow."""
    best, end, runs = np.inf, time.perf_counter() + budget, 0
    while runs < 5 or time.perf_counter() < end:
        start = time.thread_time()
        run()
        best, runs = min(best, time.thread_time() - start), runs + 1
    return best


def operations(counts: Any, k: int) -> float:
    """Return those of rows with `counts` entries, each in k unknowns or as many as its entries."""
    ways = [
        n * u * (u + 1) + u**3 / 3 + 2 * u * k for u, n in ((k, counts), (counts, k))
    ]
    return float(np.minimum(*ways).sum())


def sparse_kernels(A: Any) -> dict[str, Kernel]:
    """Sweeps, products and searches on the matrix of Gowalla."""
    rng, found = np.random.default_rng(0), {}
    n, m, nnz = *A.shape, A.nnz
    arrays = kernels.csr_arrays(A.astype(np.float32))
    counts = np.diff(A.indptr).astype(np.float32)
    for k in (64, 128):
        other, out = (kernels.aligned_zeros((size, k), np.float32) for size in (m, n))
        other[:] = rng.standard_normal(other.shape) / k**0.5
        found[f"ALS half-sweep, k={k}"] = Kernel(
            lambda other=other, out=out: kernels.als_half_sweep(
                arrays, other, penalty=counts + 1, factors=out
            ),
            operations(counts, k),
            8 * nnz + 4 * k * (n + m),
        )
    X, out = (kernels.aligned_zeros((size, 16), np.float32) for size in (m, n))
    found["sparse x 16 vectors"] = Kernel(
        lambda: kernels.csr_matmat(arrays, X, out=out), 32 * nnz, 8 * nnz + 64 * (n + m)
    )
    users, items = (
        rng.standard_normal((size, 128)).astype(np.float32) for size in (512, m)
    )
    for count in (1, 512):
        found["top 20 of one user" if count == 1 else "top 20 of 512 users"] = Kernel(
            lambda count=count: top_k(users[:count], items, 20, prune=False),
            2 * count * m * 128,
            4 * 128 * (count + m),
        )
    return found


def dense_kernels() -> dict[str, Kernel]:
    """Orthogonalisation, a Gram matrix, and the two scans of a text search."""
    rng = np.random.default_rng(0)
    n, p, w, documents, width = 30_000, 192, 16, 200_000, 128
    V, W = (rng.standard_normal((n, size)).astype(np.float32) for size in (p, w))
    tall = rng.standard_normal((20_000, 512)).astype(np.float32)
    vectors = rng.standard_normal((documents, width)).astype(np.float32)
    query = rng.standard_normal(width).astype(np.float32)
    out = np.ones(documents, np.float32)
    per_word, words = 50_000, 8
    places = [
        np.sort(rng.choice(documents, per_word, replace=False)) for _ in range(words)
    ]
    postings = (
        np.arange(words + 1) * per_word,
        np.concatenate(places).astype(np.int32),
        rng.random(words * per_word, np.float32),
    )
    factors, rows = np.ones(words, np.float32), np.arange(words)
    return {
        "orthogonalisation, V'W": Kernel(
            lambda: kernels.coefficients(V, W), 2 * n * p * w, 4 * n * (p + w)
        ),
        "Gram matrix (BLAS)": Kernel(
            lambda: tall.T @ tall, tall.size * 512.0, tall.nbytes
        ),
        "scan of float32 vectors (BLAS)": Kernel(
            lambda: vectors @ query, 2 * vectors.size, vectors.nbytes
        ),
        "BM25, 8 words": Kernel(
            lambda: sum_rows(postings, rows, factors, documents, out=out),
            2 * per_word * words,
            16 * per_word * words,
        ),
    }


def measure(budget: float) -> dict[str, Any]:
    """Time all kernels of the instruction set that LOWRANK_KERNELS names, on one core."""
    square, source = np.ones((1500, 1500), np.float32), np.ones(1 << 25)
    target, result = np.empty_like(source), np.empty_like(square)
    seconds = partial(least, budget=budget)
    with kernels.one_blas_thread(), kernels.at_most(1):
        found: dict[str, Any] = {
            "copy": 2 * source.nbytes / seconds(lambda: np.copyto(target, source)),
            "sgemm": 2
            * 1500**3
            / seconds(lambda: np.matmul(square, square, out=result)),
            "blas": next(
                x["architecture"] for x in threadpool_info() if "architecture" in x
            ),
        }
        every = sparse_kernels(gowalla()) | dense_kernels()
        found["kernels"] = {
            name: (each.flops, each.bytes, seconds(each.run))
            for name, each in every.items()
        }
    return found


def roof(found: dict[str, Any], intensity: Any) -> Any:
    return np.minimum(found["sgemm"], intensity * found["copy"])


def draw(found: dict[str, dict[str, Any]], path: Path) -> None:
    """Draw the kernels under their roofs."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(9, 6))
    x = np.geomspace(0.05, 2000, 200)
    for name, one in found.items():
        label = f"{name}: copy {one['copy'] / 1e9:.0f} GB/s, sgemm {one['sgemm'] / 1e9:.0f} Gflop/s"
        axes.plot(x, roof(one, x) / 1e9, color=COLOURS[name], label=label)
        for flops, size, seconds in one["kernels"].values():
            axes.plot(flops / size, flops / seconds / 1e9, "o", color=COLOURS[name])
    last = list(found.values())[-1]
    spots = {
        kernel: (
            flops / size,
            [flops / one["kernels"][kernel][2] for one in found.values()],
        )
        for kernel, (flops, size, _) in last["kernels"].items()
    }
    for kernel, (intensity, rates) in spots.items():
        at = intensity, float(np.mean(rates)) / 1e9
        followed = any(  # by another point, where the label would be
            intensity < x < 4 * intensity and 0.9 < max(y) / max(rates) < 1.1
            for x, y in spots.values()
        )
        place = {"xytext": (-8, -20)} if followed else {"xytext": (8, -8)}
        axes.annotate(kernel, at, fontsize=8, textcoords="offset points", **place)
    axes.set(xscale="log", yscale="log", ylim=(1, 400))
    axes.set(xlabel="operations per byte of the arrays", ylabel="Gflop/s on one core")
    axes.legend(loc="lower right", frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120, bbox_inches="tight")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--out", type=Path, default=HERE.parent / "docs" / "roofline.png"
    )
    parser.add_argument(
        "--budget", type=float, default=2.0, help="seconds for each kernel"
    )
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(arguments.budget)))
        return
    found = {}
    for name in (name for name in SETS if name in kernels.supported()):
        environment = os.environ | {"LOWRANK_KERNELS": name}
        command = [sys.executable, __file__, "--one"]
        command += ["--budget", str(arguments.budget)]
        done = subprocess.run(
            command, env=environment, check=True, stdout=subprocess.PIPE
        )
        found[name] = json.loads(done.stdout)
    rows = [
        [
            *(kernel, name, flops / size, flops / seconds / 1e9, size / seconds / 1e9),
            f"{flops / seconds / roof(one, flops / size):.0%}",
        ]
        for kernel in next(iter(found.values()))["kernels"]
        for name, one in found.items()
        for flops, size, seconds in [one["kernels"][kernel]]
    ]
    for name, one in found.items():
        print(
            f"{name}: a copy moves {one['copy'] / 1e9:.1f} GB/s and sgemm does "
            f"{one['sgemm'] / 1e9:.0f} Gflop/s on one core (OpenBLAS's kernels: {one['blas']})"
        )
    print(f"\n{machine()}\n\n{table(HEADERS, rows)}")
    draw(found, arguments.out)


if __name__ == "__main__":
    main()

"""One exact ALS half-sweep at 25 million ratings: compiled kernel, NumPy loop, and the sgemm limit.

The limit is the time of the multiplications of one half-sweep at the rate of this machine's sgemm:
nnz k (k + 1) for the Gram matrices, k^3 / 3 + 2 k^2 for each solve.

Usage: python benchmarks/als_kernel.py [--ratings N] [--repeats N] [K ...]
"""

from __future__ import annotations

import argparse
from functools import partial

import numpy as np
import scipy.sparse as sp
from generated import movielens_shaped
from measuring import (
    interleaved,
    machine,
    median,
    sgemm_flops,
    sgemm_rate,
    spread,
    table,
)

from lowrank import kernels
from lowrank.kernels import reference


def half_sweep(A: sp.csr_array, other: np.ndarray, out: np.ndarray) -> None:
    counts = np.diff(A.indptr).astype(np.float32)
    kernels.als_half_sweep(
        kernels.csr_arrays(A),
        other,
        penalty=np.sqrt(counts),
        bias_penalty=np.sqrt(counts),
        factors=out,
        bias=np.empty(len(counts), np.float32),
    )


def numpy_loop(A: sp.csr_array, other: np.ndarray, out: np.ndarray) -> None:
    counts = np.sqrt(np.diff(A.indptr)).astype(np.float32)
    bias, objective = np.empty_like(counts), np.empty(len(counts))
    zeros = np.zeros(len(other), np.float32)
    arguments = (A.indptr, A.indices, A.data, other, zeros, 0.0, counts, counts, True)
    reference.als_half_sweep(*arguments, out, bias, objective, 1)


def operands(A: sp.csr_array, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return random factors of the columns, and space for factors of the rows."""
    other = kernels.aligned_zeros((A.shape[1], k), np.float32)
    other[:] = np.random.default_rng(k).normal(scale=0.3, size=other.shape)
    return other, kernels.aligned_zeros((A.shape[0], k), np.float32)


def flops(A: sp.csr_array, k: int) -> float:
    """Return the operations of one half-sweep."""
    return A.nnz * k * (k + 1) + A.shape[0] * (k**3 / 3 + 2 * k**2)


def measure(A: sp.csr_array, k: int, repeats: int) -> list[object]:
    other, out = operands(A, k)
    seconds = interleaved(
        {"kernel": partial(half_sweep, A, other, out), "sgemm": sgemm_rate()}, repeats
    )
    loop = interleaved({"loop": partial(numpy_loop, A, other, out)}, 1)["loop"][0]
    kernel = median(seconds["kernel"])
    rate = sgemm_flops() / median(seconds["sgemm"])
    limit = flops(A, k) / rate
    return [
        str(k),
        kernel,
        spread(seconds["kernel"]),
        rate / 1e9,
        limit,
        kernel / limit,
        loop,
        loop / kernel,
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "ranks", nargs="*", type=int, default=[32, 64, 128], metavar="K"
    )
    parser.add_argument("--ratings", type=int, default=25_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    A = movielens_shaped(arguments.ratings)
    print(
        f"{machine()}\nkernels: {kernels.backend()}; {A.shape[0]:,} x {A.shape[1]:,}, {A.nnz:,}\n"
    )
    headers = [
        "k",
        "kernel s",
        "min-max",
        "sgemm GF/s",
        "limit s",
        "kernel/limit",
        "loop s",
    ]
    rows = [measure(A, k, arguments.repeats) for k in arguments.ranks]
    print(table([*headers, "loop/kernel"], rows))


if __name__ == "__main__":
    main()

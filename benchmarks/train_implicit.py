"""Seconds of one full sweep of implicit ALS at 25 million interactions, compared with peers.

`ials` solves users, then items, exactly. `implicit` takes three conjugate gradient steps (its
default) or a Cholesky factorisation, cmfrec conjugate gradients. cmfrec is measured in its own
environment, whose Python is PEERS_PYTHON, as the difference of a fit with three iterations and one
with one. The limit is the time of the multiplications of a sweep at the rate of sgemm. With
--blocks, the times of exact sweeps and of sweeps by blocks of factors to the objective of the third
exact sweep are compared instead.

Usage: [PEERS_PYTHON=...] python benchmarks/train_implicit.py [--interactions N] [--sweeps N] [K..]
       python benchmarks/train_implicit.py --blocks [--interactions N] [K..]
"""

from __future__ import annotations

import argparse
import os
import time
from itertools import islice

import numpy as np
import scipy.sparse as sp
from generated import movielens_shaped
from measuring import machine, median, spread, table
from train import implicit_iterations, limit, peer_epoch

from lowrank import kernels
from lowrank.completion import implicit

PENALTIES = {"regularization": 0.003, "unobserved_weight": 0.01}


def our_sweeps(W: sp.csr_array, k: int, n: int) -> list[float]:
    """Return the seconds of n sweeps, without the transposition before the first."""
    sweeps = implicit.implicit_sweeps(W, k, **PENALTIES)
    ends = [time.perf_counter() for _ in islice(sweeps, n + 1)]
    return list(np.diff(ends))


def measure(
    W: sp.csr_array, k: int, sweeps: int, pythons: list[str]
) -> list[list[object]]:
    found = {
        "recsys ials, exact": our_sweeps(W, k, sweeps),
        "implicit als, conjugate gradient": implicit_iterations(
            W, k, sweeps, use_cg=True
        ),
        "implicit als, Cholesky": implicit_iterations(
            W, k, max(1, sweeps // 3), use_cg=False
        ),
    }
    for python in pythons:
        if seconds := peer_epoch(python, W, k, "implicit"):
            found["cmfrec CMF_implicit"] = seconds
    found["limit at the rate of sgemm"] = [limit(W, k)]
    ours = median(found["recsys ials, exact"])
    return [
        [str(k), name, median(x), spread(x), median(x) / ours]
        for name, x in found.items()
    ]


def race(W: sp.csr_array, k: int) -> list[list[object]]:
    """Return the sweeps and processor seconds to the objective of three exact sweeps."""
    rows: list[list[object]] = []
    goal, exact = -np.inf, 0.0
    for name, gain in (("exact", np.inf), ("blocks of 64", 0.0)):
        implicit._BLOCK_GAIN = gain
        begin = time.process_time()
        for number, sweep in enumerate(implicit.implicit_sweeps(W, k, **PENALTIES), 1):
            if name == "exact" and number == 3:
                goal, exact = sweep.objective, time.process_time() - begin
            if sweep.objective <= goal:
                break
        seconds = time.process_time() - begin
        rows.append([str(k), name, number, sweep.objective, seconds, seconds / exact])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("ranks", nargs="*", type=int, default=[64, 128], metavar="K")
    parser.add_argument("--interactions", type=int, default=25_000_000)
    parser.add_argument("--sweeps", type=int, default=5)
    parser.add_argument("--blocks", action="store_true")
    arguments = parser.parse_args()
    pythons = [p for p in os.environ.get("PEERS_PYTHON", "").split(os.pathsep) if p]
    W = movielens_shaped(arguments.interactions)
    W.data[:] = 1
    print(
        f"{machine()}\nkernels: {kernels.backend()}; {W.shape[0]:,} x {W.shape[1]:,}, {W.nnz:,}\n"
    )
    if arguments.blocks:
        rows = [row for k in arguments.ranks for row in race(W, k)]
        columns = [
            "k",
            "sweeps by",
            "sweeps",
            "objective",
            "cpu seconds",
            "times exact",
        ]
        print(table(columns, rows))
        return
    rows = [
        row for k in arguments.ranks for row in measure(W, k, arguments.sweeps, pythons)
    ]
    print(table(["k", "one sweep", "seconds", "min-max", "times ours"], rows))


if __name__ == "__main__":
    main()

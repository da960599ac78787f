"""Seconds of one full ALS sweep (users, then items) at 25 million ratings, compared with peers.

Ours solves exactly, with biases. `implicit` minimises another objective, over all cells, by three
conjugate gradient steps (its default) or by Cholesky factorisation. Both update users and items
once per iteration. LensKit's BiasedMF is measured in its own environment, whose Python is
PEERS_PYTHON, as the difference of a fit with three epochs and one with one. `spark.py` measures
MLlib.

Usage: [PEERS_PYTHON=...] python benchmarks/train.py [--ratings N] [--sweeps N] [K ...]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path

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
from lowrank.completion.als import als_sweeps


def our_sweeps(A: sp.csr_array, k: int, n: int) -> list[float]:
    """Return the seconds of n sweeps after the first, which includes the start by an SVD."""
    sweeps = islice(als_sweeps(A, k, regularization=1.3), n + 1)
    ends = [time.perf_counter() for _ in sweeps]
    return list(np.diff(ends))


def implicit_iterations(
    A: sp.csr_array, k: int, n: int, *, use_cg: bool
) -> list[float]:
    from implicit.als import AlternatingLeastSquares
    from threadpoolctl import threadpool_limits

    seconds: list[float] = []
    with threadpool_limits(1, "blas"):  # as the library asks for
        model = AlternatingLeastSquares(
            factors=k, iterations=n, use_cg=use_cg, random_state=0
        )
        model.fit(
            sp.csr_matrix(A),
            show_progress=False,
            callback=lambda _, taken, *__: seconds.append(taken),
        )
    return seconds


def peer_epoch(python: str, A: sp.csr_array, k: int, feedback: str) -> list[float]:
    """Return the seconds of one epoch of a peer, nothing if that Python does not have it."""
    script = Path(__file__).with_name("train_peers.py")
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "ratings.npz")
        entries = A.tocoo()
        np.savez(path, users=entries.row, items=entries.col, values=entries.data)
        command = [python, str(script), path, str(k), feedback]
        said = subprocess.run(
            command, check=True, stdout=subprocess.PIPE, text=True
        ).stdout
    return [float(value) for value in said.split()]


def limit(A: sp.csr_array, k: int) -> float:
    """Return the seconds of a sweep's multiplications at this machine's rate of sgemm."""
    rate = sgemm_flops() / median(interleaved({"sgemm": sgemm_rate()}, 5)["sgemm"])
    grams = 2 * A.nnz * (k + 1) * (k + 2)
    return (grams + sum(A.shape) * (k**3 / 3 + 2 * k**2)) / rate


def measure(
    A: sp.csr_array, k: int, sweeps: int, pythons: list[str]
) -> list[list[object]]:
    found = {
        "recsys als, exact": our_sweeps(A, k, sweeps),
        "implicit als, conjugate gradient": implicit_iterations(
            A, k, sweeps, use_cg=True
        ),
        "implicit als, Cholesky": implicit_iterations(
            A, k, max(1, sweeps // 3), use_cg=False
        ),
    }
    for python in pythons:
        if seconds := peer_epoch(python, A, k, "explicit"):
            found["LensKit BiasedMF"] = seconds
    found["limit at the rate of sgemm"] = [limit(A, k)]
    ours = median(found["recsys als, exact"])
    return [
        [str(k), name, median(x), spread(x), median(x) / ours]
        for name, x in found.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("ranks", nargs="*", type=int, default=[64, 128], metavar="K")
    parser.add_argument("--ratings", type=int, default=25_000_000)
    parser.add_argument("--sweeps", type=int, default=5)
    arguments = parser.parse_args()
    pythons = [p for p in os.environ.get("PEERS_PYTHON", "").split(os.pathsep) if p]
    if not pythons:
        print("No LensKit: PEERS_PYTHON names no Python that has it.", file=sys.stderr)
    A = movielens_shaped(arguments.ratings)
    print(
        f"{machine()}\nkernels: {kernels.backend()}; {A.shape[0]:,} x {A.shape[1]:,}, {A.nnz:,}\n"
    )
    rows = [
        row for k in arguments.ranks for row in measure(A, k, arguments.sweeps, pythons)
    ]
    print(table(["k", "one sweep", "seconds", "min-max", "times ours"], rows))


if __name__ == "__main__":
    main()

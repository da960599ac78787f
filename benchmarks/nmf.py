"""Non-negative matrix factorisation of counts against scikit-learn.

All entries count, zeros included, and the objective is half the sum of squared errors. scikit-learn
runs with its defaults (coordinate descent from SVD, tol=1e-4, at most 200 iterations). "objective"
is the median over seeds 0, 1, ..., one for each repeat, in units of that of scikit-learn.

Usage: RECSYS_DATASETS=... python benchmarks/nmf.py [--repeats N] [--threads N] [MATRIX ...]
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp
from matrices import cranfield_counts, rating_counts
from measuring import machine, median, spread, table
from sklearn import decomposition
from threadpoolctl import threadpool_limits

from lowrank import NMF, kernels

MATRICES: dict[str, Callable[[], sp.csr_array]] = {
    "cranfield": cranfield_counts,
    "ml-latest-small": rating_counts,
}
RANKS = (10, 50)
HEADERS = [
    "matrix",
    "dtype",
    "k",
    "solver",
    "seconds",
    "min-max",
    "sweeps",
    "objective",
    "times ours",
]


def measure(name: str, X: sp.csr_array, k: int, repeats: int) -> list[list[Any]]:
    """Return a row for each solver; the repeats are interleaved, and have seeds of their own."""
    seconds: dict[str, list[float]] = {"lowrank": [], "scikit-learn": []}
    objectives: dict[str, list[float]] = {"lowrank": [], "scikit-learn": []}
    sweeps: dict[str, list[int]] = {"lowrank": [], "scikit-learn": []}
    for seed in range(repeats):
        for label, estimator in (
            ("lowrank", NMF(k, random_state=seed)),
            ("scikit-learn", decomposition.NMF(k, random_state=seed)),
        ):
            time.sleep(0.2)  # idle BLAS threads spin for a while after a product
            start = time.perf_counter()
            W = estimator.fit_transform(X)
            seconds[label].append(time.perf_counter() - start)
            objectives[label].append(objective(X, W, estimator.components_))
            sweeps[label].append(estimator.n_iter_)
    ours = median(seconds["lowrank"])
    unit = median(objectives["scikit-learn"])
    rows = []
    for label, times in seconds.items():
        rows.append(
            [
                name,
                X.dtype.name,
                str(k),
                label,
                median(times),
                spread(times),
                f"{median(sweeps[label]):.0f}",
                f"{median(objectives[label]) / unit:.5f}",
                median(times) / ours,
            ]
        )
    return rows


def objective(X: sp.csr_array, W: np.ndarray, H: np.ndarray) -> float:
    """Return half the sum of squared errors of all entries, in float64."""
    W, H = W.astype(np.float64), H.astype(np.float64)
    squares = float((X.data.astype(np.float64) ** 2).sum())
    fitted = float(np.sum((X.astype(np.float64) @ H.T) * W))
    return 0.5 * (squares - 2 * fitted + float(np.sum((W.T @ W) * (H @ H.T))))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "matrices", nargs="*", metavar="MATRIX", help=", ".join(MATRICES)
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--ranks", nargs="*", type=int, default=RANKS, metavar="K")
    parser.add_argument("--threads", type=int, default=None)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")  # scikit-learn's of its 200 iterations
    threads = kernels.resolve_threads(arguments.threads)
    rows = []
    with kernels.at_most(threads), threadpool_limits(threads):
        for name in arguments.matrices or MATRICES:
            matrix = MATRICES[name]()
            for dtype in ("float32", "float64"):
                for k in arguments.ranks:
                    rows += measure(
                        name, sp.csr_array(matrix.astype(dtype)), k, arguments.repeats
                    )
                    print(f"{name}, {dtype}, k={k}: done", file=sys.stderr, flush=True)
    print(f"\n{machine()}; kernels: {kernels.backend()}; threads: {threads}\n")
    print(table(HEADERS, rows))


if __name__ == "__main__":
    main()

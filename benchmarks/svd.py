"""Truncated SVD against ARPACK and scikit-learn, on the Gowalla training matrix.

Each peer gets the loosest setting with which it reaches the residual that `truncated_svd` promises
(1e-4 of s[0] in float32, 1e-8 in float64); the residual that each one reached is printed.

Usage: RECSYS_DATASETS=... python benchmarks/svd.py [--repeats N] [K ...]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp
from measuring import datasets, interleaved, machine, median, table
from scipy.sparse.linalg import svds
from sklearn.utils.extmath import randomized_svd

from lowrank import kernels, truncated_svd
from recsys.readers import read_ratings

Triplets = tuple[np.ndarray, np.ndarray, np.ndarray]
ARPACK_TOL = {"float32": 1e-4, "float64": 1e-8}


def gowalla() -> sp.csr_array:
    return read_ratings(datasets() / "gowalla" / "train.txt").ratings.matrix


def degree_normalised(A: sp.csr_array) -> sp.csr_array:
    left, right = (1 / np.sqrt(np.maximum(A.sum(axis=axis), 1)) for axis in (1, 0))
    return sp.csr_array(sp.diags_array(left) @ A @ sp.diags_array(right))


def residual(A: sp.csr_array, triplets: Triplets) -> float:
    U, s, Vt = triplets
    left = np.linalg.norm(A @ Vt.T - U * s, axis=0)
    right = np.linalg.norm(A.T @ U - Vt.T * s, axis=0)
    return float(max(left.max(), right.max()) / s.max())


def candidates(A: sp.csr_array, k: int, iterations: int) -> dict[str, Callable[[], Any]]:
    found = {
        "truncated_svd": lambda: tuple(truncated_svd(A, k, random_state=0)),
        "ARPACK": lambda: svds(A, k, tol=ARPACK_TOL[A.dtype.name], rng=0),
    }
    if iterations:
        found["randomized_svd"] = lambda: randomized_svd(
            A, k, n_iter=iterations, n_oversamples=k, random_state=0
        )
    return found


def measure(name: str, A: sp.csr_array, k: int, repeats: int, iterations: int) -> list[list[Any]]:
    results: dict[str, Triplets] = {}

    def keep(label: str, run: Callable[[], Any]) -> Callable[[], None]:
        return lambda: results.__setitem__(label, run())

    runs = {label: keep(label, run) for label, run in candidates(A, k, iterations).items()}
    seconds = {label: median(times) for label, times in interleaved(runs, repeats).items()}
    ours = seconds["truncated_svd"]
    return [
        [name, A.dtype.name, str(k), label, time, f"{residual(A, results[label]):.0e}", time / ours]
        for label, time in seconds.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("ranks", nargs="*", type=int, default=[64, 256], metavar="K")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    raw = gowalla()
    rows = []
    for name, A in (("gowalla", raw), ("gowalla, normalised", degree_normalised(raw))):
        for dtype in (np.float32, np.float64):
            for k in arguments.ranks:
                slow = k <= 64 and dtype == np.float32 and name == "gowalla"
                rows += measure(name, A.astype(dtype), k, arguments.repeats, 80 if slow else 0)
    print(f"{machine()}; kernels: {kernels.backend()}\n")
    headers = ["matrix", "dtype", "k", "solver", "seconds", "residual", "times ours"]
    print(table(headers, rows))


if __name__ == "__main__":
    main()

"""Truncated SVD and PCA against SciPy, scikit-learn and gensim, at equal accuracy.

Each peer uses the loosest setting with which it reaches the residual that `truncated_svd` promises
(1e-4 of each s[i] in float32, 1e-8 in float64), or its tightest setting. The residual of each is
printed. "passes s" is the time of as many products with a block of 16 vectors as our solver makes
passes, "read s" that of reading the matrix once from memory.

Usage: RECSYS_DATASETS=... python benchmarks/svd.py [--repeats N] [CASE ...]
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from generated import ML25M_RATINGS
from matrices import cranfield, decaying, degree_normalised, gowalla, movielens_shaped
from measuring import (
    extra_memory,
    interleaved,
    machine,
    median,
    memory_bandwidth,
    spread,
    table,
)
from scipy.sparse.linalg import svds
from sklearn import decomposition
from sklearn.utils.extmath import randomized_svd

from lowrank import PCA, kernels, truncated_svd

Triplets = tuple[np.ndarray, np.ndarray, np.ndarray]
TOL = {"float32": 1e-4, "float64": 1e-8}
POWER_ITERATIONS = {
    "float32": 80
}  # with which randomized_svd reaches 1e-4 on Gowalla, k = 64
HEADERS = [
    *("matrix", "dtype", "k", "solver", "seconds", "min-max", "residual", "times ours"),
    *("peak MB", "passes", "passes s", "read s"),
]


class Case(NamedTuple):
    """One matrix and rank, and the peers that are tried on it."""

    name: str
    matrix: Callable[[], Any]
    ranks: tuple[int, ...]
    peers: tuple[str, ...]
    dtypes: tuple[str, ...] = ("float32", "float64")


CASES = {
    "gowalla": Case(
        "gowalla", gowalla, (64, 256), ("ARPACK", "PROPACK", "PRIMME", "randomized_svd")
    ),
    "normalised": Case(
        "gowalla, normalised",
        lambda: degree_normalised(gowalla()),
        (64, 256),
        ("ARPACK",),
    ),
    "cranfield": Case(
        *("cranfield tf-idf", cranfield, (100, 300)),
        peers=("ARPACK", "TruncatedSVD", "gensim"),
        dtypes=("float64",),
    ),
    "25m": Case(
        "25M entries", movielens_shaped, (64,), ("ARPACK", "TruncatedSVD"), ("float32",)
    ),
    "dense": Case(
        "dense, decaying", decaying, (50,), ("PCA", "PCA covariance", "PCA arpack")
    ),
}


def solver(label: str, A: Any, k: int) -> Callable[[], Triplets]:
    """Return what is timed: the whole of one decomposition by one library."""
    tol = TOL[A.dtype.name]
    sparse = {
        "truncated_svd": lambda: tuple(truncated_svd(A, k, random_state=0)),
        "ARPACK": lambda: svds(A, k, tol=tol, rng=0),
        "PROPACK": lambda: svds(A, k, tol=tol, solver="propack", rng=0),
        "PRIMME": partial(_primme, A, k),
        "randomized_svd": lambda: randomized_svd(
            A, k, n_iter=POWER_ITERATIONS[A.dtype.name], n_oversamples=k, random_state=0
        ),
        "TruncatedSVD": partial(_truncated_svd_of_sklearn, A, k),
        "gensim": partial(_gensim, A, k),
    }
    dense = {
        "lowrank PCA": lambda: _components(PCA(k, random_state=0).fit(A)),
        "PCA": lambda: _components(decomposition.PCA(k, random_state=0).fit(A)),
        "PCA covariance": lambda: _components(
            decomposition.PCA(k, svd_solver="covariance_eigh").fit(A)
        ),
        "PCA arpack": lambda: _components(
            decomposition.PCA(k, svd_solver="arpack", tol=tol).fit(A)
        ),
    }
    return (sparse | dense)[label]


def _components(pca: Any) -> Triplets:
    return np.zeros((0, 0)), pca.singular_values_, pca.components_


def _truncated_svd_of_sklearn(A: Any, k: int) -> Triplets:
    fitted = decomposition.TruncatedSVD(
        k, algorithm="arpack", tol=TOL[A.dtype.name], random_state=0
    ).fit(A)
    return np.zeros((0, 0)), fitted.singular_values_, fitted.components_


def _primme(A: Any, k: int) -> Triplets:
    import primme

    return primme.svds(sp.csr_matrix(A), k, tol=TOL[A.dtype.name])


def _gensim(A: Any, k: int) -> Triplets:
    from gensim.matutils import Sparse2Corpus
    from gensim.models.lsimodel import LsiModel

    corpus = Sparse2Corpus(sp.csr_matrix(A), documents_columns=False)
    model = LsiModel(corpus, num_topics=k, chunksize=A.shape[0], power_iters=4)
    return np.zeros((0, 0)), model.projection.s, model.projection.u.T


def residual(A: Any, found: Triplets) -> float:
    """Return the largest ||A' u - s v|| / s, with u = A v / s where a library keeps no u."""
    _, s, Vt = found
    centre = A.mean(axis=0) if isinstance(A, np.ndarray) else np.zeros(A.shape[1])
    product = A @ Vt.T - centre @ Vt.T
    back = A.T @ product - np.outer(centre, product.sum(axis=0))
    right = np.linalg.norm(back / s - Vt.T * s, axis=0)
    left = np.abs(np.linalg.norm(product, axis=0) - s)
    return float((np.maximum(left, right) / s).max())


def peers_of(case: Case, dtype: str, k: int) -> Iterator[str]:
    """Yield the peers that can do it and take less than minutes."""
    for peer in case.peers:
        if peer == "randomized_svd" and (k > 64 or dtype not in POWER_ITERATIONS):
            continue
        if peer in ("PROPACK", "PRIMME") and k > 64:
            continue
        if peer in ("gensim", "PRIMME") and not find_spec(peer.lower()):
            print(
                f"{peer} is left out: pip install {peer.lower()} adds it to the table."
            )
            continue
        yield peer


def measure(
    case: Case, A: Any, k: int, repeats: int, bandwidth: float
) -> list[list[Any]]:
    """Time our solver and the peers in turns, then each one's memory."""
    ours = "lowrank PCA" if isinstance(A, np.ndarray) else "truncated_svd"
    labels = [ours, *peers_of(case, A.dtype.name, k)]
    results: dict[str, Triplets] = {}
    memory: dict[str, int] = {}

    def keep(label: str) -> None:
        results[label] = solver(label, A, k)()

    for label in labels:
        memory[label] = extra_memory(partial(keep, label))
    times = interleaved({label: partial(keep, label) for label in labels}, repeats)
    seconds = {label: median(values) for label, values in times.items()}
    limits = _limits(A, k, bandwidth)
    return [
        [
            *(
                case.name,
                A.dtype.name,
                str(k),
                label,
                seconds[label],
                spread(times[label]),
            ),
            *(f"{residual(A, results[label]):.0e}", seconds[label] / seconds[ours]),
            *(
                f"{memory[label] / 1e6:.0f}",
                *(limits if label == ours else ["", "", ""]),
            ),
        ]
        for label in labels
    ]


def _limits(A: Any, k: int, bandwidth: float) -> list[Any]:
    """Return our passes, the seconds of as many block products, and of reading A once."""
    center = isinstance(A, np.ndarray) or None
    passes = truncated_svd(A, k, center=center, random_state=0).passes
    if isinstance(A, np.ndarray):
        block = np.ones((A.shape[1], 16), A.dtype)
        one, size = interleaved({"": lambda: A @ block}, 5)[""], A.nbytes
    else:
        arrays = kernels.csr_arrays(A)
        block = np.ones((A.shape[1], 16), A.dtype)
        one = interleaved({"": lambda: kernels.csr_matmat(arrays, block)}, 5)[""]
        size = arrays.data.nbytes + arrays.indices.nbytes
    return [str(passes), passes * median(one), size / bandwidth]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--ranks", nargs="*", type=int, metavar="K", help="instead of the cases' own"
    )
    parser.add_argument(
        "--entries", type=int, default=ML25M_RATINGS, help="of the matrix of 25m"
    )
    parser.add_argument("--rows", type=int, default=20_000, help="of the dense matrix")
    arguments = parser.parse_args()
    matrices = {
        "25m": partial(movielens_shaped, arguments.entries),
        "dense": partial(decaying, arguments.rows),
    }
    cases = dict(CASES)
    for name, matrix in matrices.items():
        cases[name] = CASES[name]._replace(matrix=matrix)
    warnings.simplefilter(
        "ignore"
    )  # what a peer thinks of its convergence is in the table
    bandwidth = memory_bandwidth()
    rows = []
    for name in arguments.cases or CASES:
        case = cases[name]
        matrix = case.matrix()
        for dtype in case.dtypes:
            for k in arguments.ranks or case.ranks:
                rows += measure(
                    case, matrix.astype(dtype), k, arguments.repeats, bandwidth
                )
                print(f"{case.name}, {dtype}, k={k}: done", file=sys.stderr, flush=True)
    print(f"\n{machine()}; kernels: {kernels.backend()}; {bandwidth / 1e9:.0f} GB/s\n")
    print(table(HEADERS, rows))


if __name__ == "__main__":
    main()

"""Top-20 for all users of Gowalla at 128 factors, seen items left out: users per second.

The same factors are used by `recsys.ranking.topn.top_n`, by
`lowrank.kernels.retrieval.top_k` without
pruning (which computes all scores), and by `implicit`, whose `recommend` runs its own threads and
requires one BLAS thread. The limit is sgemm of the scores in blocks, without selection. There are
two sets of factors: the truncated SVD of the training matrix, and the factors of `implicit`'s ALS.
GF/s counts the products of all pairs, whether computed or pruned.

The second part measures the application: a process of `recsys recommend MODEL --all` to Parquet,
and one user at a time in a process with a loaded model.

Usage: RECSYS_DATASETS=... python benchmarks/serve.py [--factors K] [--repeats N]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from implicit.cpu.als import AlternatingLeastSquares
from measuring import datasets, interleaved, machine, median, peak_memory, spread, table
from scipy.sparse import csr_matrix

from lowrank import kernels, truncated_svd
from lowrank.kernels.retrieval import top_k
from recsys import Recommender
from recsys.data.ratings import Ratings
from recsys.models.als import ALS
from recsys.ranking.topn import CsrPairs, top_n
from recsys.readers import read_ratings
from recsys.saving.storage import Saved, save_model

N = 20
SGEMM_BLOCKS = (
    128,
    256,
    512,
    1024,
)  # users; the bare product takes the fastest of them


def svd_factors(ratings: Ratings, k: int) -> tuple[np.ndarray, np.ndarray]:
    U, s, Vt = truncated_svd(ratings.matrix, k, random_state=0)
    return np.ascontiguousarray(U * s), np.ascontiguousarray(Vt.T)


def peer(k: int) -> AlternatingLeastSquares:
    with (
        warnings.catch_warnings()
    ):  # about BLAS threads, which are limited where it runs
        warnings.simplefilter("ignore", RuntimeWarning)
        return AlternatingLeastSquares(factors=k, iterations=10, random_state=0)


def liked(ratings: Ratings) -> csr_matrix:
    """Return the matrix as `implicit` takes it: of the old class, and writable."""
    return csr_matrix(ratings.matrix, copy=True)


def als_factors(ratings: Ratings, k: int) -> tuple[np.ndarray, np.ndarray]:
    model = peer(k)
    with kernels.one_blas_thread():
        model.fit(liked(ratings), show_progress=False)
    return model.user_factors, model.item_factors


def factor_model(X: np.ndarray, Y: np.ndarray) -> ALS:
    """Return a fitted model whose scores are the products of these factors."""
    model = ALS(factors=X.shape[1], popularity=0)
    model.global_mean, model.user_factors, model.item_factors = 0.0, X, Y
    model.user_bias, model.item_bias = (
        np.zeros(len(side), np.float32) for side in (X, Y)
    )
    model.item_obscurity = np.zeros(len(Y), np.float32)
    model.rating_std, model.most_ratings = 1.0, 1
    return model


def sgemm(X: np.ndarray, Y: np.ndarray, size: int) -> Callable[[], None]:
    out = np.empty((size, len(Y)), np.float32)

    def run() -> None:
        for start in range(0, len(X), size):
            block = X[start : start + size]
            np.matmul(block, Y.T, out=out[: len(block)])

    return run


def fastest_sgemm(X: np.ndarray, Y: np.ndarray) -> Callable[[], None]:
    seconds = interleaved(
        {str(size): sgemm(X[:4096], Y, size) for size in SGEMM_BLOCKS}, 3
    )
    return sgemm(X, Y, int(min(seconds, key=lambda size: min(seconds[size]))))


def candidates(
    ratings: Ratings, X: np.ndarray, Y: np.ndarray
) -> dict[str, Callable[[], Any]]:
    model, other = factor_model(X, Y), peer(X.shape[1])
    other.user_factors, other.item_factors = X, Y
    users, known = np.arange(len(X)), liked(ratings)
    exclude = CsrPairs(ratings.indptr, ratings.indices)
    seen = kernels.Seen(users, ratings.indptr, ratings.indices)

    def implicit() -> np.ndarray:
        with kernels.one_blas_thread():
            return other.recommend(users, known, N=N, filter_already_liked_items=True)[
                0
            ]

    return {
        "top_n": lambda: np.concatenate(
            [top.items for top in top_n(model, users, N, exclude=exclude)]
        ),
        "kernel, every score": lambda: top_k(X, Y, N, seen=seen, prune=False),
        "implicit": implicit,
        "sgemm alone": fastest_sgemm(X, Y),
    }


def measure(
    name: str, ratings: Ratings, factors: tuple[np.ndarray, np.ndarray], repeats: int
) -> list[list[Any]]:
    runs = candidates(ratings, *factors)
    same = (runs["top_n"]().reshape(-1, N) == runs["implicit"]()).mean()
    print(f"{name}: {same:.2%} of the items at the same rank as implicit's")
    times = interleaved(runs, repeats)
    seconds = {label: median(values) for label, values in times.items()}
    k = factors[0].shape[1]
    products = 2e-9 * ratings.n_users * ratings.n_items * k
    return [
        [
            name,
            label,
            time,
            spread(times[label]),
            f"{ratings.n_users / time:,.0f}",
            f"{products / time:.0f}",
            seconds["implicit"] / time,
            time / seconds["sgemm alone"],
        ]
        for label, time in seconds.items()
    ]


def one_at_a_time(
    recommend: Callable[[int], Any], n_users: int, times: int = 300
) -> float:
    """Return the median microseconds of an answer to one user."""
    seconds = []
    for user in np.random.default_rng(0).integers(n_users, size=times).tolist():
        start = time.perf_counter()
        recommend(user)
        seconds.append(time.perf_counter() - start)
    return 1e6 * median(seconds)


def python_calls(run: Callable[[], Any]) -> int:
    """Return how many Python functions of this project a call enters."""
    entered = 0

    def count(frame: Any, event: str, argument: object) -> None:
        nonlocal entered
        own = ("/recsys/", "/lowrank/")
        entered += event == "call" and any(x in frame.f_code.co_filename for x in own)

    sys.setprofile(count)
    try:
        run()
    finally:
        sys.setprofile(None)
    return entered


def application(ratings: Ratings, X: np.ndarray, Y: np.ndarray) -> list[list[Any]]:
    other, known = peer(X.shape[1]), liked(ratings)
    other.user_factors, other.item_factors = X, Y
    ids = ratings.users.values.to_list()
    with tempfile.TemporaryDirectory() as folder:
        model, output = f"{folder}/model", f"{folder}/recommendations.parquet"
        training = {
            "users": len(X),
            "items": len(Y),
            "ratings": ratings.nnz,
            "implicit": True,
        }
        training |= dict.fromkeys(("rating_min", "rating_max"), None) | {"seconds": 0.0}
        save_model(Saved(factor_model(X, Y), ratings, training), model)
        command = [
            sys.executable,
            "-m",
            "recsys",
            "recommend",
            model,
            "--all",
            "-n",
            str(N),
        ]
        seconds, peak = peak_memory([*command, "--output", output])
        size = Path(output).stat().st_size
        recommender = Recommender.load(model)
        ours = one_at_a_time(lambda user: recommender.recommend(ids[user], N), len(X))
        calls = python_calls(lambda: recommender.recommend(ids[0], N))
    with kernels.one_blas_thread():
        theirs = one_at_a_time(
            lambda user: other.recommend(user, known[user], N=N), len(X)
        )
    return [
        [
            "recsys recommend --all",
            f"{seconds:.2f} s, {peak / 1e6:.0f} MB, {size / 1e6:.1f} MB file",
        ],
        ["Recommender.recommend(id)", f"{ours:.0f} us, {calls} own Python calls"],
        ["implicit recommend(index)", f"{theirs:.0f} us"],
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--factors", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    ratings = read_ratings(datasets() / "gowalla" / "train.txt")
    rows = []
    for name, fitted in (("SVD", svd_factors), ("ALS", als_factors)):
        rows += measure(
            name, ratings, fitted(ratings, arguments.factors), arguments.repeats
        )
    print(f"\n{machine()}; kernels: {kernels.backend()}; {ratings.n_users:,} users\n")
    headers = [
        "factors",
        "",
        "seconds",
        "min-max",
        "users/s",
        "GF/s",
        "times implicit",
        "/ sgemm",
    ]
    print(table(headers, rows))
    print()
    print(
        table(
            ["application", ""],
            application(ratings, *svd_factors(ratings, arguments.factors)),
        )
    )


if __name__ == "__main__":
    main()

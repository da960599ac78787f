"""Ratios to peers and hardware limits, each with a bound; exit code 1 where one is worse.

Each ratio is measured in a process of its own with one thread, on small data, in processor seconds:
the least of repeats in turns, which other programs on the machine hardly change. A ratio that is
15% worse than its stored figure is measured once more before it fails. Peers that are not installed
are skipped with a message: bm25s, and ranx, which may be in another Python, named by PEERS_PYTHON.

Usage: [PEERS_PYTHON=...] python benchmarks/gate.py [NAME ...]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from itertools import cycle
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl
import scipy.sparse as sp
from generated import movielens_shaped
from measuring import (
    interleaved,
    machine,
    processor_seconds,
    sgemm_flops,
    sgemm_rate,
    table,
)

from recsys import Ratings, Recommender

TOLERANCE = 1.15
REPEATS = 5
ENTRIES = 400_000
FACTORS = 64
# One thread, of libraries that wait for their other threads on a busy processor, too.
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")


class PeerMissingError(Exception):
    """A peer is not installed."""


def ratio(
    ours: Callable[[], object], peer: Callable[[], object], repeats: int = REPEATS
) -> float:
    """Return the least processor seconds of ours over the least of a peer."""
    runs = {"ours": ours, "peer": peer}
    interleaved(runs, 1)  # both are compiled, and their data in memory
    seconds = interleaved(runs, repeats, processor_seconds)
    return min(seconds["ours"]) / min(seconds["peer"])


def generated_ratings() -> Ratings:
    return Ratings.from_matrix(movielens_shaped(ENTRIES))


def interactions() -> sp.csr_array:
    """Return generated interactions, all ones."""
    matrix = movielens_shaped(ENTRIES)
    matrix.data[:] = 1
    return matrix


def decomposition() -> float:
    from svd import solver

    matrix = interactions()
    return ratio(solver("truncated_svd", matrix, 32), solver("ARPACK", matrix, 32), 3)


def half_sweep_and_sgemm() -> float:
    from als_kernel import flops, half_sweep, operands

    matrix = movielens_shaped(5 * ENTRIES)
    other, out = operands(matrix, FACTORS)
    size = 1500
    to_sgemm = ratio(partial(half_sweep, matrix, other, out), sgemm_rate(size))
    return to_sgemm * sgemm_flops(size) / flops(matrix, FACTORS)


def implicit_sweeps() -> float:
    from train import implicit_iterations
    from train_implicit import our_sweeps

    matrix = interactions()
    peer = partial(implicit_iterations, matrix, FACTORS, 4, use_cg=True)
    return ratio(partial(our_sweeps, matrix, FACTORS, 3), peer, 3)


def lists() -> float:
    from serve import candidates, svd_factors

    ratings = generated_ratings()
    runs = candidates(ratings, *svd_factors(ratings, FACTORS))
    return ratio(runs["top_n"], runs["implicit"])


def reading() -> float:
    from sources import measured, write_sources

    with tempfile.TemporaryDirectory() as folder:
        places = write_sources(ENTRIES, Path(folder), None)

        def least(reader: str) -> float:
            found = [measured(reader, "CSV", places["CSV"]) for _ in range(REPEATS)]
            return min(seconds for seconds, *_ in found)

        return least("ours") / least("polars")


def one_user() -> float:
    ratings = generated_ratings()
    recommender = Recommender("als", factors=FACTORS, iterations=1).fit(ratings)
    model = recommender.model
    ids = ratings.users.values.to_list()[:300]
    items = ratings.items.values
    n = 10

    def recommended() -> None:
        for user in ids:
            recommender.recommend(user, n)

    def products() -> None:
        for user in range(len(ids)):
            scores = model.item_factors @ model.user_factors[user] + model.item_bias
            scores[ratings.indices[slice(*ratings.indptr[user : user + 2])]] = -np.inf
            largest = np.argpartition(-scores, n)[:n]
            best = largest[np.argsort(-scores[largest])]
            columns = {"item": items[best], "rank": np.arange(n), "score": scores[best]}
            pl.DataFrame(columns)

    return ratio(recommended, products)


def start(command: str, base: str) -> float:
    from startup import processes

    with tempfile.TemporaryDirectory() as folder:
        runs = processes(Path(folder), models=("als",))
        return ratio(runs[command], runs[base], 11)


def requests() -> float:
    from serve_http import kinds, naive, running, seconds_of_request, serve

    ratings = generated_ratings()
    fitted = Recommender("als", factors=FACTORS, iterations=1).fit(ratings)
    known = cycle(kinds(ratings.n_users, ratings.n_items)["known users"])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        fitted.save(folder / "model")
        with (
            running(serve(folder / "model", 1), folder) as ours,
            running(naive(folder, folder / "model"), folder) as peer,
        ):
            services = ours, peer
            turns = [
                [seconds_of_request(*service, known) for service in services]
                for _ in range(REPEATS)
            ]
    least = np.min(turns[1:], axis=0)  # the first warms them up
    return float(least[0] / least[1])


def search() -> float:
    if not find_spec("bm25s"):
        raise PeerMissingError("bm25s is not installed")
    import bm25s
    from search_scale import Texts

    from recsys.lsi import LSI

    documents = Texts().batch(5000)
    queries = [" ".join(text.split()[:4]) for text in documents[:100]]
    lsi = LSI(20).fit(documents)
    peer = bm25s.BM25()
    words = partial(bm25s.tokenize, stopwords=None, show_progress=False)
    peer.index(words(documents), show_progress=False)

    def retrieved() -> None:
        for query in queries:
            found = words([query], return_ids=False)
            (numbers,), (scores,) = peer.retrieve(found, k=10, show_progress=False)
            columns = {"document": numbers, "rank": np.arange(10), "score": scores}
            pl.DataFrame(columns)

    def queried() -> None:
        for query in queries:
            lsi.query(query, 10, method="bm25")

    return ratio(queried, retrieved)


def metrics_of_lists() -> float:
    from metrics import ACCURACY, N, measured_by
    from topn import fifth_of_each_user

    from recsys.evaluation.measurement import measure_lists
    from recsys.evaluation.metrics import METRICS
    from recsys.evaluation.tasks import RankingTask
    from recsys.models.registry import make_model

    task = RankingTask.of(fifth_of_each_user(generated_ratings(), 0), N)
    listed = task.recommend(make_model("popular").fit(task.split.train))
    pythons = os.environ.get("PEERS_PYTHON", "").split(os.pathsep)
    peers = [measured_by(python or sys.executable, listed, task) for python in pythons]
    theirs = [found["ranx"]["processor"] for found in peers if "ranx" in found]
    if not theirs:
        raise PeerMissingError(
            "ranx is neither installed nor in a Python of PEERS_PYTHON"
        )
    metrics = [METRICS[name] for name in ACCURACY]
    runs = {"ours": lambda: measure_lists(listed, task, (N,), metrics)}
    return min(interleaved(runs, REPEATS, processor_seconds)["ours"]) / float(theirs[0])


def updating() -> float:
    from update import held_back, measure

    base, new = held_back(generated_ratings(), 1000, 0)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "model"
        Recommender("als", factors=FACTORS, iterations=2).fit(base).save(place)
        update, fit = measure(place, new, refit=True)[4:6]
    return update / fit


def what_comes_next() -> float:
    from sequences import generated_events

    from recsys.models.registry import make_model

    events = generated_events(ENTRIES // 16)
    fits = [partial(make_model(name).fit, events) for name in ("next", "ease")]
    return ratio(*fits, 3)


class Case(NamedTuple):
    """A measured ratio, and the figure that it is compared with; less is better."""

    measure: Callable[[], float]
    figure: float


HELP = partial(start, "recsys --help", "import numpy")
RECOMMEND = partial(start, "recsys recommend, als", "import numpy")
CASES = {
    "SVD / ARPACK": Case(decomposition, 0.45),
    # 1.5 on an EPYC with AVX-512, 1.9 on a Xeon, whose sgemm gains more from it.
    "half-sweep of als / sgemm": Case(half_sweep_and_sgemm, 1.9),
    "sweeps of ials / implicit's CG": Case(implicit_sweeps, 0.85),
    "top-N lists / implicit": Case(lists, 0.18),
    "reading CSV / polars": Case(reading, 1.4),
    "recommend(id) / dense product and frame": Case(one_user, 1.7),
    "recsys --help / import numpy": Case(HELP, 1.0),
    "recsys recommend / import numpy": Case(RECOMMEND, 2.5),
    "request / naive application": Case(requests, 0.25),
    "search / bm25s and frame": Case(search, 0.75),
    "metrics / ranx": Case(metrics_of_lists, 0.09),
    "update / fit": Case(updating, 0.75),
    "fit of next / ease": Case(what_comes_next, 20.0),
}


def alone(name: str) -> tuple[float | None, str]:
    """Measure a ratio in a process of its own; return it, or None and why there is none."""
    environment = os.environ | dict.fromkeys(THREADS, "1")
    done = subprocess.run(
        [sys.executable, __file__, "--one", name],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        return None, f"failed with exit code {done.returncode}"
    answer: tuple[float | None, str] = tuple(json.loads(done.stdout.splitlines()[-1]))
    return answer


def one(name: str) -> tuple[float | None, str]:
    try:
        return CASES[name].measure(), ""
    except PeerMissingError as reason:
        return None, f"skipped: {reason}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(CASES))
    parser.add_argument("--one", choices=list(CASES), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(one(arguments.one)))
        return
    if unknown := set(arguments.names) - set(CASES):
        parser.error(f"there is no {sorted(unknown)}; there are {list(CASES)}")
    rows, worse = [], []
    for name in arguments.names or CASES:
        limit = TOLERANCE * CASES[name].figure
        value, message = alone(name)
        if value is not None and value > limit:
            again, _ = alone(name)
            value = min(value, again or value)
        if value is not None:
            message = "" if value <= limit else "worse"
        if message and not message.startswith("skipped"):
            worse.append(name)
        shown = "" if value is None else value
        rows.append([name, shown, CASES[name].figure, limit, message])
        print(*rows[-1], sep="; ", file=sys.stderr, flush=True)
    headers = ["ours / peer", "ratio", "stored figure", "limit", ""]
    print(f"{machine()}\n\n{table(headers, rows)}")
    if worse:
        sys.exit(f"Worse than the stored figure, or failed: {'; '.join(worse)}.")


if __name__ == "__main__":
    main()

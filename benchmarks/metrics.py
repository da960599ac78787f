"""Ranking metrics of all Gowalla users: their time compared with the top-N lists and with peers.

The lists are the top 20 of a factor model (the truncated SVD of the training matrix) for each of
the 29,858 users. The test part is the published one. The first comparison is of the time of the
metrics and that of the top-N lists, measured in turns. The second has the same lists evaluated by
peers: the largest difference in the value of a user, and the time ratio. Times are from lists in
memory to a value per user and metric. The time in which peers build their own structures is listed
separately.

Peers run in their own process: PEERS_PYTHON is the Python that has ranx or lenskit (several are
separated as in PATH).

Usage: RECSYS_DATASETS=FOLDER [PEERS_PYTHON=...] python benchmarks/metrics.py [--repeats N]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from measuring import (
    datasets,
    extra_memory,
    interleaved,
    machine,
    median,
    spread,
    table,
)

from lowrank import truncated_svd
from recsys.evaluation import read_split
from recsys.evaluation.measurement import measure_lists
from recsys.evaluation.metrics import METRICS, Catalogue
from recsys.evaluation.statistics import Ratio, bootstrap, sign_flip
from recsys.evaluation.tasks import RankingTask
from recsys.models.base import FactorModel
from recsys.ranking.topn import CsrPairs, top_n

N = 20
ACCURACY = ("precision", "recall", "hit_rate", "map", "mrr", "ndcg")
EVERYTHING = (*ACCURACY, "coverage", "novelty", "diversity", "gini", "popularity_bias")


class Spectral(FactorModel):
    """Items and users as in the truncated SVD of the training matrix."""

    name = "spectral"


def spectral(train, k: int) -> Spectral:
    svd = truncated_svd(train.matrix, k, random_state=0)
    arrays = {
        "global_mean": np.float32(0),
        "user_bias": np.zeros(train.n_users, np.float32),
        "item_bias": np.zeros(train.n_items, np.float32),
        "user_factors": np.ascontiguousarray(svd.U * svd.s, np.float32),
        "item_factors": np.ascontiguousarray(svd.Vt.T, np.float32),
    }
    return Spectral._from_arrays({}, arrays)


def cost(model: Spectral, task: RankingTask, repeats: int) -> np.ndarray:
    """Print what the parts of an evaluation cost; return the lists."""
    lists = task.recommend(model)
    exclude = CsrPairs(task.split.seen.indptr, task.split.seen.indices)

    def top():
        for _ in top_n(model, task.users, N, exclude=exclude):
            pass

    def measured(kinds, ns):
        return lambda: measure_lists(lists, task, ns, [METRICS[kind] for kind in kinds])

    values, _ = measured(ACCURACY, (N,))()
    ratios = [Ratio.mean(each) for each in values.values()]
    half = np.column_stack([each - each[::-1] for each in values.values()])
    runs = {
        f"top-{N} alone": top,
        f"top-{N} as lists": lambda: task.recommend(model),
        f"accuracy at {N}": measured(ACCURACY, (N,)),
        f"all metrics at {N}": measured(EVERYTHING, (N,)),
        f"all metrics at 5, 10, {N}": measured(EVERYTHING, (5, 10, N)),
        "once per split: the items": lambda: Catalogue.of(task.split.train),
        "1,000 bootstrap samples": lambda: bootstrap(ratios, 1000),
        "9,999 sign flips": lambda: sign_flip(half),
    }
    memory = {name: extra_memory(run) / 2**20 for name, run in runs.items()}
    times = interleaved(runs, repeats)
    seconds = {name: median(values) for name, values in times.items()}
    base = seconds[f"top-{N} alone"]
    rows = [
        [name, seconds[name], spread(times[name]), seconds[name] / base, memory[name]]
        for name in runs
    ]
    print(table(["step", "seconds", "min-max", f"per top-{N}", "extra MB"], rows))
    for kinds in (f"accuracy at {N}", f"all metrics at {N}"):
        whole = seconds[f"top-{N} as lists"] + seconds[kinds]
        print(f"Top-{N} and {kinds}: {whole / base:.2f} times the top-{N} alone")
    return lists


def against_peers(lists: np.ndarray, task: RankingTask, repeats: int) -> None:
    """Print the largest differences from the values of peers, and the time ratios."""
    pythons = [p for p in os.environ.get("PEERS_PYTHON", "").split(os.pathsep) if p]
    if not pythons:
        print("No peers: PEERS_PYTHON names no Python that has them.", file=sys.stderr)
        return
    metrics = [METRICS[kind] for kind in ACCURACY]
    ours, _ = measure_lists(lists, task, (N,), metrics)
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        measure_lists(lists, task, (N,), metrics)
        seconds.append(time.perf_counter() - start)
    rows = []
    for python in pythons:
        for title, theirs in measured_by(python, lists, task).items():
            rows += compared(title, theirs, ours, median(seconds))
    print(
        "\n"
        + table(["peer", "seconds", "time ratio", "metric", "largest difference"], rows)
    )


def measured_by(
    python: str, lists: np.ndarray, task: RankingTask
) -> dict[str, dict[str, np.ndarray]]:
    script = Path(__file__).with_name("metric_peers.py")
    with tempfile.TemporaryDirectory() as folder:
        given, answer = Path(folder) / "given.npz", Path(folder) / "answer.npz"
        np.savez(
            given,
            lists=lists,
            users=task.users,
            test_users=task.relevant.user_index_of_nonzeros(),
            test_items=task.relevant.indices,
        )
        subprocess.run([python, str(script), str(given), str(answer)], check=True)
        found: dict[str, dict[str, np.ndarray]] = {}
        with np.load(answer) as arrays:
            for name in arrays:
                title, _, metric = name.partition("/")
                found.setdefault(title, {})[metric] = arrays[name]
    return found


def compared(title: str, theirs, ours, seconds: float) -> list[list[object]]:
    rows = []
    for metric in ACCURACY:
        off = np.abs(theirs[metric] - ours[f"{metric}@{N}"]).max()
        first = [title, float(theirs["seconds"]), float(theirs["seconds"]) / seconds]
        rows.append([*(first if not rows else ["", "", ""]), metric, f"{off:.1e}"])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--factors", type=int, default=64)
    arguments = parser.parse_args()
    split = read_split(datasets() / "gowalla")
    task = RankingTask.of(split, N, catalogue=True)
    model = spectral(split.train, arguments.factors)
    print(
        f"{machine()}\nGowalla, {len(task.users):,} users, {arguments.factors} factors\n"
    )
    lists = cost(model, task, arguments.repeats)
    against_peers(lists, task, arguments.repeats)


if __name__ == "__main__":
    main()

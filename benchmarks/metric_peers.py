"""Ranking metrics by the peers, for `metrics.py`: run by a Python that has them.

Usage: PYTHON metric_peers.py GIVEN.npz ANSWER.npz

GIVEN has "lists" (users x N, the recommended items), "users" (their users), and the relevant pairs
as "test_users" and "test_items". ANSWER gets the seconds and the values of each user, in the order
of "users", for each installed peer. If a peer defines a metric differently, its values are scaled
to our definition; see the comments.
"""

from __future__ import annotations

import sys
import time
import warnings

import numpy as np

warnings.filterwarnings("ignore")

REPEATS = 3


def timed(run):
    """Return the median of the seconds, the least processor seconds, and the answer."""
    seconds, processor = [], []
    for _ in range(REPEATS):
        start = time.perf_counter(), time.process_time()
        answer = run()
        seconds.append(time.perf_counter() - start[0])
        processor.append(time.process_time() - start[1])
    return (sorted(seconds)[REPEATS // 2], min(processor)), answer


def of_ranx(given, n_relevant):
    from ranx import Qrels, Run, evaluate

    lists, users = given["lists"], given["users"]
    n = lists.shape[1]
    relevant = {str(user): {} for user in users}
    for user, item in zip(given["test_users"], given["test_items"], strict=True):
        relevant[str(user)][str(item)] = 1
    listed = {
        str(user): {str(item): float(n - rank) for rank, item in enumerate(row)}
        for user, row in zip(users, lists, strict=True)
    }
    names = ["precision", "recall", "hit_rate", "map", "mrr", "ndcg"]
    labels = [f"{name}@{n}" for name in names]
    qrels, run = Qrels(relevant), Run(listed)
    evaluate(qrels, run, labels)  # compiles
    seconds, _ = timed(lambda: evaluate(qrels, run, labels, return_mean=False))
    by_user = {
        name: run.scores[label] for name, label in zip(names, labels, strict=True)
    }
    found = {
        name: np.array([values[str(user)] for user in users])
        for name, values in by_user.items()
    }
    found["map"] *= n_relevant / np.minimum(
        n, n_relevant
    )  # it divides by all that are relevant
    return seconds, found


def of_lenskit(given, n_relevant):
    import pandas as pd
    from lenskit.data import ItemListCollection, UserIDKey
    from lenskit.metrics import (
        NDCG,
        Hit,
        LogRankWeight,
        Precision,
        Recall,
        RecipRank,
        RunAnalysis,
    )
    from lenskit.metrics.ranking import AveragePrecision

    lists, users = given["lists"], given["users"]
    n = lists.shape[1]
    run = ItemListCollection.from_df(
        pd.DataFrame(
            {
                "user_id": np.repeat(users, n),
                "item_id": lists.ravel(),
                "rank": np.tile(np.arange(1, n + 1), len(users)),
                "score": np.tile(np.arange(n, 0, -1.0), len(users)),
            }
        ),
        UserIDKey,
    )
    test = ItemListCollection.from_df(
        pd.DataFrame({"user_id": given["test_users"], "item_id": given["test_items"]}),
        UserIDKey,
    )
    metrics = {
        "precision": Precision(n),
        "recall": Recall(n),
        "hit_rate": Hit(n),
        "map": AveragePrecision(n),
        "mrr": RecipRank(n),
        "ndcg": NDCG(n, weight=LogRankWeight(offset=1)),
    }

    def measure():
        analysis = RunAnalysis()
        for name, metric in metrics.items():
            analysis.add_metric(metric, label=name)
        return analysis.measure(run, test).list_metrics()

    seconds, frame = timed(measure)
    frame = frame.loc[users]
    found = {name: frame[name].to_numpy(float) for name in metrics}
    # it divides by N if that is less
    found["recall"] *= np.minimum(n, n_relevant) / n_relevant
    return seconds, found


def main() -> None:
    with np.load(sys.argv[1]) as arrays:
        given = dict(arrays)
    n_relevant = np.bincount(given["test_users"])[given["users"]]
    answer = {}
    for title, module, measure in [
        ("ranx", "ranx", of_ranx),
        ("LensKit RunAnalysis", "lenskit", of_lenskit),
    ]:
        try:
            __import__(module)
        except ImportError:
            continue
        seconds, found = measure(given, n_relevant)
        clock, processor = map(np.array, seconds)
        answer |= {f"{title}/seconds": clock, f"{title}/processor": processor}
        answer |= {f"{title}/{name}": values for name, values in found.items()}
    np.savez(sys.argv[2], **answer)


if __name__ == "__main__":
    main()

"""Models of what comes next: accuracy and seconds of `next`, of its parts, and of others.

Films: the last film of each user of ml-latest-small is held out, and all films that the user has
not rated are ranked. The figures are the hit rate and NDCG at 10. Films without training ratings
count as misses. Clicks: the last 15% of the sessions of yoochoose are held out, and each click but
the first is predicted from those before it in the session, repeated items included. The figures are
the hit rate and MRR at 20.

The parts of `next` are a regression for each decay, the weights without order, those of directions,
and the neighbours, each alone in the scores of the same fit. Transition counts are the number of
times that an item came right after the last one. All models run with their defaults. Seconds are
processor seconds of the process, which depend less on other programs than wall time. SASRec is the
one of RecTools, on the processor, with 64 factors, two blocks and the epochs that are best for the
last training items; PEERS_PYTHON is the Python that has it (several are separated as in PATH).

With `--scale`, the data are generated in the shape of MovieLens-25M, in a random order: seconds of
the fit and of the best 20 items of all users, and the peak of memory.

Usage: RECSYS_DATASETS=FOLDER [PEERS_PYTHON=...] python benchmarks/sequences.py [--data films]
       python benchmarks/sequences.py --scale 25000000
"""

from __future__ import annotations

import argparse
import copy
import os
import resource
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from generated import movielens_shaped
from measuring import datasets, machine, table
from scipy import sparse

from recsys.data.ratings import Ratings
from recsys.evaluation.splits import leave_last_split
from recsys.models.histories import Histories
from recsys.models.registry import make_model
from recsys.models.sequences import sequences_of_events
from recsys.ranking.topn import CsrPairs, top_n

MODELS = ("next", "ease", "ials", "popular")
TEST_SESSIONS = 0.15
BLOCK = 2048
Scores = np.ndarray[Any, np.dtype[np.float32]]


class Trial(NamedTuple):
    """Training ratings, test histories with the place of each item, and the items after them."""

    train: Ratings
    histories: Histories
    targets: np.ndarray[Any, np.dtype[np.int64]]
    n: int
    repeats: bool


def films() -> Trial:
    """Hold out the last film of each user."""
    frame = pl.read_csv(datasets() / "ml-latest-small" / "ratings.csv")
    frame = frame.select(user="userId", item="movieId", timestamp="timestamp")
    split = leave_last_split(Ratings.from_frame(frame, implicit=True))
    train = split.train
    users = train.users.index(split.test.users.values)
    rows = users[split.test.user_index_of_nonzeros()]
    items = train.items.find(split.test.items.values)[split.test.indices]
    return Trial(train, Histories.of(train).take(rows), items, 10, False)


def clicks() -> Trial:
    """Hold out the newest sessions, and predict each click from those before it."""
    frame = pl.read_csv(datasets() / "yoochoose" / "clicks.txt", separator="\t")
    frame = frame.select(
        user="SessionId",
        item="ItemId",
        timestamp="Time",
        last=pl.col("Time").max().over("SessionId"),
    ).sort("last", "user", "timestamp", maintain_order=True)
    sessions = frame["user"].unique(maintain_order=True)
    is_train = frame["user"].is_in(
        sessions[: int(len(sessions) * (1 - TEST_SESSIONS))].implode()
    )
    train = Ratings.from_frame(frame.filter(is_train).drop("last"), implicit=True)
    test = frame.filter(~is_train)
    indices = train.items.find(test["item"])
    places = []
    rows = []
    targets = []
    for session in np.split(
        np.arange(len(test)), np.flatnonzero(np.diff(test["user"])) + 1
    ):
        for at in range(1, len(session)):
            earlier = session[:at][indices[session[:at]] >= 0]
            last = {indices[place]: place for place in earlier}
            rows.append(np.array(sorted(last), np.int32))
            places.append(np.array([last[item] for item in rows[-1]], np.int64))
            targets.append(indices[session[at]])
    indptr = np.append(0, np.cumsum([len(row) for row in rows]))
    items = np.concatenate(rows)
    ones = np.ones(len(items), np.float32)
    histories = Histories(indptr, items, ones, np.concatenate(places))
    return Trial(train, histories, np.array(targets), 20, True)


def figures(trial: Trial, scores: Callable[[Histories], Scores]) -> list[float]:
    """Return the hit rate at n, NDCG or MRR at n, and processor seconds of the scores."""
    ranks = []
    seconds = 0.0
    for start in range(0, len(trial.targets), BLOCK):
        rows = np.arange(start, min(start + BLOCK, len(trial.targets)))
        block = trial.histories.take(rows)
        begin = time.process_time()
        of_block = scores(block)
        seconds += time.process_time() - begin
        targets = trial.targets[rows]
        at = np.arange(len(rows))
        of_targets = of_block[at, targets]
        if not trial.repeats:
            of_block[block.rows, block.indices] = -np.inf
        n_better = np.count_nonzero(of_block > of_targets[:, None], axis=1)
        n_equal = np.count_nonzero(of_block == of_targets[:, None], axis=1) - 1
        ranks.append(n_better + n_equal / 2)
    return [*of_ranks(trial, np.concatenate(ranks)), seconds]


def of_ranks(trial: Trial, ranks: Scores) -> list[float]:
    """Return the hit rate at n, and NDCG or MRR at n, for the places of the test items."""
    is_hit = (ranks < trial.n) & (trial.targets >= 0)
    discount = 1 + ranks if trial.repeats else np.log2(2 + ranks)
    return [float(is_hit.mean()), float((is_hit / discount).mean())]


def folded(model: Any) -> Callable[[Histories], Scores]:
    """Return the scores of a model for histories of new users."""
    return lambda block: model.with_users(block).scores(np.arange(block.n_rows))


def of_peer(python: str, trial: Trial) -> Iterator[list[object]]:
    """Yield the figures of SASRec, if that Python has it."""
    sequences = sequences_of_events(trial.train)
    histories = trial.histories
    order = np.lexsort((histories.times, histories.rows))
    script = Path(__file__).with_name("sequence_peers.py")
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "in.npz"
        result = Path(folder) / "out.npz"
        np.savez(
            source,
            users=sequences.users,
            items=sequences.items,
            rows=histories.rows[order],
            history=histories.indices[order],
            targets=trial.targets,
            n=trial.n,
            repeats=trial.repeats,
        )
        subprocess.run([python, str(script), str(source), str(result)], check=True)
        if result.exists():
            arrays = np.load(result)
            scores, fit = arrays["seconds"].tolist()
            yield [str(arrays["title"]), *of_ranks(trial, arrays["ranks"]), scores, fit]


def rows_of(trial: Trial) -> Iterator[list[object]]:
    """Yield the figures of the models and of the parts of `next`."""
    for name in MODELS:
        begin = time.process_time()
        model = make_model(name).fit(trial.train)
        seconds = time.process_time() - begin
        # The first scores fill caches, which have the shares of this model.
        fitted = copy.copy(model)
        yield [name, *figures(trial, folded(model)), seconds]
        if name != "next":
            continue
        labels = [f"  decay {decay:g}" for decay in model.decays[:-2]]
        labels += ["  without order", "  directions"]
        for at, label in enumerate(labels):
            part = copy.copy(fitted)
            part.shares = np.eye(len(model.decays), dtype=np.float32)[at]
            part.neighbor_share = 0.0
            yield [label, *figures(trial, folded(part)), ""]
        part = copy.copy(fitted)
        part.shares = np.zeros_like(model.shares)
        part.neighbor_share = 1.0
        # A fit whose share is zero has stored weights without those of neighbours.
        vars(part).pop("_stacked_weights", None)
        yield ["  neighbours", *figures(trial, folded(part)), ""]
    sequences = sequences_of_events(trial.train)
    followed = np.flatnonzero(sequences.lags > 1)
    pairs = sequences.items[followed], sequences.items[followed + 1]
    ones = np.ones(len(followed), np.float32)
    n_items = trial.train.n_items
    counts = sparse.coo_array((ones, pairs), shape=(n_items, n_items)).tocsr()

    def after_the_last(block: Histories) -> Scores:
        scores = np.zeros((block.n_rows, n_items), np.float32)
        order = np.lexsort((block.times, block.rows))
        has_items = np.flatnonzero(block.counts)
        last = block.indices[order][block.indptr[1:][has_items] - 1]
        scores[has_items] = counts[last].toarray()
        return scores

    yield ["transition counts", *figures(trial, after_the_last), ""]
    for python in filter(None, os.environ.get("PEERS_PYTHON", "").split(os.pathsep)):
        yield from of_peer(python, trial)


def generated_events(n_events: int) -> Ratings:
    """Return events in the shape of MovieLens-25M, in a random order."""
    matrix = movielens_shaped(n_events).tocoo()
    times = np.random.default_rng(1).permutation(matrix.nnz) + 1_500_000_000
    frame = pl.DataFrame({"user": matrix.row, "item": matrix.col, "timestamp": times})
    del matrix, times
    return Ratings.from_frame(frame, implicit=True)


def scaled(n_events: int) -> list[object]:
    """Return events, items, seconds of the fit and of the lists, and the peak in GB."""
    ratings = generated_events(n_events)
    begin = time.process_time()
    model = make_model("next").fit(ratings)
    fit = time.process_time() - begin
    begin = time.process_time()
    seen = CsrPairs(ratings.indptr, ratings.indices)
    for _ in top_n(model, np.arange(ratings.n_users), 20, exclude=seen):
        pass
    lists = time.process_time() - begin
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    events = f"{ratings.n_ratings:,}"
    return [events, f"{ratings.n_users:,}", f"{ratings.n_items:,}", fit, lists, peak]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", choices=("films", "clicks"), action="append")
    parser.add_argument("--scale", type=int)
    arguments = parser.parse_args()
    print(machine())
    if arguments.scale:
        header = ["events", "users", "items", "fit s", "top 20 of all s", "peak GB"]
        print(table(header, [scaled(arguments.scale)]))
        return
    trials = {"films": films, "clicks": clicks}
    for name in arguments.data or trials:
        trial = trials[name]()
        print(f"\n{name}: {trial.train}, {len(trial.targets):,} test items\n")
        gain = f"MRR@{trial.n}" if trial.repeats else f"NDCG@{trial.n}"
        header = ["model", f"hit rate@{trial.n}", gain, "scores s", "fit s"]
        print(table(header, rows_of(trial)))


if __name__ == "__main__":
    main()

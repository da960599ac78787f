"""Features in models of implicit feedback: liked films of ml-latest-small (4 stars or more).

A tenth of the liked films is held out whole, and a tenth of the other likes. Known: NDCG@20 of the
latter among all known films, with and without features. New: AUC and NDCG@10 of each user's likes
among the films that were held out. All: NDCG@20 of both together, among all films, which is what a
user gets; without features a new film cannot be in the list. Means over the splits with 95%
intervals (of Student); * marks a difference to the same model without features that a paired t test
over the splits calls significant (5%). Our models run with their defaults. LightFM uses the best of
its settings on films held out from the training part; PEERS_PYTHON names the Python that has it.

Usage: RECSYS_DATASETS=FOLDER [PEERS_PYTHON=...] python benchmarks/likes.py [--splits N] [--first S]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
from features import Blocks, Figures, add, film_features, held_out_items
from measuring import datasets, machine, table
from ratings import with_interval
from scipy.stats import rankdata, ttest_rel

from recsys.auto import as_implicit
from recsys.data.ratings import Ratings
from recsys.models.registry import make_model
from recsys.readers import read_ratings

MODELS = ("spectral", "ials", "ease", "blend")
TOP = 20
COLUMNS = {"known": "known NDCG@20", "auc": "new AUC", "ndcg": "new NDCG@10", "all": "all NDCG@20"}


def liked(ratings: Ratings) -> Ratings:
    """Return the likes, without films and users that have none."""
    likes = ratings.take(ratings.values >= 4)
    matrix = likes.matrix.tocsr()
    matrix = matrix[np.diff(matrix.indptr) > 0]
    of_items = np.flatnonzero(np.bincount(likes.indices, minlength=likes.n_items))
    return as_implicit(Ratings.from_matrix(matrix[:, of_items], items=likes.items.values[of_items]))


def gains(scores: np.ndarray, relevant: np.ndarray, top: int) -> np.ndarray:
    """Return the NDCG of each row with relevant columns."""
    rows = np.flatnonzero(relevant.any(axis=1))
    best = np.argsort(-scores[rows], axis=1, kind="stable")[:, :top]
    hits = np.take_along_axis(relevant[rows], best, axis=1)
    discounts = 1 / np.log2(np.arange(2, top + 2))
    ideal = discounts.cumsum()[np.minimum(relevant[rows].sum(axis=1), top) - 1]
    return hits @ discounts / ideal


def aucs(scores: np.ndarray, relevant: np.ndarray) -> np.ndarray:
    """Return for each row with relevant columns how often one of them is above another column."""
    rows = np.flatnonzero(relevant.any(axis=1))
    ranks, n = rankdata(scores[rows], axis=1), relevant[rows].sum(axis=1)
    above = (ranks * relevant[rows]).sum(axis=1) - n * (n + 1) / 2
    return above / (n * (relevant.shape[1] - n))


def figures_of(scores: np.ndarray, train: Ratings, test: Ratings, new: np.ndarray) -> dict:
    """Return the figures of scores of all films for all users."""
    scores, relevant = scores.astype(np.float64), test.matrix.toarray() > 0
    scores[train.matrix.toarray() > 0] = -np.inf
    known = np.setdiff1d(np.arange(train.n_items), new)
    return {
        "known": float(gains(scores[:, known], relevant[:, known], TOP).mean()),
        "auc": float(aucs(scores[:, new], relevant[:, new]).mean()),
        "ndcg": float(gains(scores[:, new], relevant[:, new], 10).mean()),
        "all": float(gains(scores, relevant, TOP).mean()),
    }


def measure_ours(train: Ratings, test: Ratings, new: np.ndarray, blocks, figures: Figures) -> None:
    for name in MODELS:
        for features in (None, blocks):
            start = time.perf_counter()
            model = make_model(name).fit(replace(train, item_features=features))
            seconds = time.perf_counter() - start
            scores = model.scores(np.arange(train.n_users))
            if features is None:
                scores[:, new] = -1e9
            found = figures_of(scores, train, test, new) | {"fit": seconds}
            if features is None:
                del found["auc"], found["ndcg"]
            add(figures[name if features else f"{name}, without features"], found)


def measure_lightfm(python: str, train, test, new, seed: int, blocks: Blocks, figures) -> None:
    inner, validation, inner_new = held_out_items(train, seed)
    with tempfile.TemporaryDirectory() as folder:
        given, answer = Path(folder) / "in.npz", Path(folder) / "out.npz"
        arrays = {"held": np.arange(train.n_items), "inner_held": inner_new}
        names = "inner", "validation", "train", "test", "warm", "warm_test"
        for name, part in zip(names, (inner, validation, train, test, train, test), strict=True):
            arrays[f"{name}_users"] = part.user_index_of_nonzeros()
            arrays[f"{name}_items"] = part.indices
            arrays[f"{name}_values"] = np.full(part.n_ratings, 5.0)
        M = blocks.matrix
        arrays |= {"indptr": M.indptr, "indices": M.indices, "data": M.data, "shape": M.shape}
        arrays["dense"] = M[:, : blocks.groups["tags"].start].toarray()
        np.savez(given, n_users=train.n_users, **arrays)
        script = Path(__file__).with_name("feature_peers.py")
        subprocess.run([python, str(script), str(given), str(answer), "LightFM"], check=True)
        found = np.load(answer)
        scores = figures_of(found["LightFM: scores"], train, test, new)
        add(figures["LightFM"], scores | {"fit": float(found["LightFM: seconds"])})


def shown(figures: Figures, title: str, key: str) -> str:
    """Return the mean with its interval, marked if it differs from that without features."""
    own, other = figures[title], figures.get(f"{title}, without features", {})
    if key not in own:
        return ""
    pairs = len(own[key]) > 1 and key in other
    significant = pairs and ttest_rel(own[key], other[key]).pvalue < 0.05
    return with_interval(own[key]) + "*" * bool(significant)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--first", type=int, default=0, help="seed of the first split")
    arguments = parser.parse_args()
    folder = datasets() / "ml-latest-small"
    likes = liked(read_ratings(folder))
    blocks = film_features(likes, folder)
    figures: Figures = defaultdict(lambda: defaultdict(list))
    for seed in range(arguments.first, arguments.first + arguments.splits):
        known, of_new, new = held_out_items(likes, seed)
        is_test = np.random.default_rng(seed).random(known.n_ratings) < 0.1
        train = known.take(~is_test)
        test = as_implicit(
            Ratings.from_matrix((known.take(is_test).matrix + of_new.matrix).tocsr())
        )
        measure_ours(train, test, new, blocks, figures)
        if python := os.environ.get("PEERS_PYTHON"):
            measure_lightfm(python, train, test, new, seed, blocks, figures)
        print(f"split {seed}: {[(k, dict(each)) for k, each in figures.items()]}", file=sys.stderr)
    print(f"{machine()}\nml-latest-small, {likes.n_ratings:,} likes, {arguments.splits} splits\n")
    rows = [
        [title, *(shown(figures, title, key) for key in COLUMNS), float(np.median(each["fit"]))]
        for title, each in figures.items()
    ]
    print(table(["model", *COLUMNS.values(), "fit s"], rows))


if __name__ == "__main__":
    main()

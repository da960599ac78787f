"""Features of items: ratings of known items, and items that nobody rated, on ml-latest-small.

Features are genres, the year and the users' tags as texts. Warm: 10% of the ratings are held out
at random, RMSE with and without features. Cold: 10% of the items are held out whole; RMSE of their
ratings, and for each user with liked ones (4 stars or more) AUC and NDCG@10 of these among all
held-out items. Means over the splits with 95% intervals (of Student), and the share of ratings
inside the 90% interval where the model has one. Our models run with their defaults. A peer with
several settings uses the best on 10% of the training items, and is then fitted to all of them.

"Ridge per user" is fitted here; other peers run in a process of their own: PEERS_PYTHON names the
Python that has cmfrec, lightfm-next or myfm.

Usage: RECSYS_DATASETS=FOLDER [PEERS_PYTHON=...] python benchmarks/features.py [--splits N]
       python benchmarks/features.py --scale 25000000   # seconds with and without, generated data
"""

from __future__ import annotations

import argparse
import math
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl
from measuring import datasets, machine, table
from ratings import OURS, inside, with_interval
from scipy import sparse
from scipy.stats import rankdata

from recsys.data.ratings import Ratings
from recsys.evaluation.splits import random_split
from recsys.models.registry import make_model
from recsys.readers import read_ratings

LIKED = 4.0
RIDGES = (1.0, 3.0, 10.0, 30.0)
Figures = dict[str, dict[str, list[float]]]


@dataclass(frozen=True)
class Blocks:
    """Features of the items, one block after the other."""

    matrix: sparse.csr_array
    names: tuple[str, ...]
    groups: dict[str, slice]

    @classmethod
    def of(cls, blocks: dict[str, tuple[sparse.csr_array, list[str]]]) -> Blocks:
        """Return blocks of which the rows have mean squared norm 1."""
        scaled, names, groups = [], [], {}
        for name, (block, labels) in blocks.items():
            groups[name] = slice(len(names), len(names) + len(labels))
            names += labels
            scaled.append(block / math.sqrt(block.power(2).sum() / block.shape[0]))
        matrix = sparse.csr_array(sparse.hstack(scaled, format="csr"), dtype=np.float32)
        return cls(matrix, tuple(names), groups)


def film_features(ratings: Ratings, folder: Path) -> Blocks:
    """Return genres, the year and words of tags of the films."""
    films = pl.read_csv(folder / "movies.csv")
    tags = pl.read_csv(folder / "tags.csv")
    place = dict(zip(ratings.items.values.to_list(), range(ratings.n_items), strict=True))
    words = defaultdict(Counter)
    for film, tag in tags.select("movieId", "tag").iter_rows():
        words[film].update("".join(c if c.isalnum() else " " for c in tag.lower()).split())
    genres, years = {}, {}
    for film, title, names in films.iter_rows():
        genres[film] = [name for name in names.split("|") if not name.startswith("(")]
        year = title.strip()[-5:-1]
        years[film] = float(year) if year.isdigit() else math.nan
    frequency = Counter(word for film in words for word in words[film])
    weights = {
        film: {w: (1 + math.log(n)) * math.log(len(words) / frequency[w]) for w, n in own.items()}
        for film, own in words.items()
    }
    return Blocks.of(
        {
            "genres": one_hot({f: dict.fromkeys(g, 1.0) for f, g in genres.items()}, place, 1),
            "year": standardised(years, place),
            "tags": one_hot(weights, place, 2),
        }
    )


def one_hot(rows: dict, place: dict, least: int) -> tuple[sparse.csr_array, list[str]]:
    """Return rows of length 1, without the columns that fewer than `least` rows have."""
    counts = Counter(name for film, row in rows.items() if film in place for name in row)
    names = sorted(name for name, count in counts.items() if count >= least)
    column = {name: j for j, name in enumerate(names)}
    at, to, values = [], [], []
    for film, row in rows.items():
        kept = {name: value for name, value in row.items() if name in column}
        length = math.sqrt(sum(value**2 for value in kept.values()))
        for name, value in kept.items():
            if film in place and length:
                at.append(place[film])
                to.append(column[name])
                values.append(value / length)
    return sparse.csr_array((values, (at, to)), shape=(len(place), len(names))), names


def standardised(numbers: dict, place: dict) -> tuple[sparse.csr_array, list[str]]:
    column = np.full(len(place), np.nan)
    for film, number in numbers.items():
        if film in place:
            column[place[film]] = number
    missing = np.isnan(column)
    column = np.where(missing, 0, (column - np.nanmean(column)) / np.nanstd(column))
    return sparse.csr_array(np.column_stack([column, missing])), ["year", "year missing"]


def held_out_items(ratings: Ratings, seed: int) -> tuple[Ratings, Ratings, np.ndarray]:
    """Return training and test ratings, and the items of the latter, 10% of those with ratings."""
    rated = np.unique(ratings.indices)
    held = np.random.default_rng(seed).permutation(rated)[: round(0.1 * len(rated))]
    is_held = np.isin(ratings.indices, held)
    return ratings.take(~is_held), ratings.take(is_held), np.sort(held)


def cold_figures(scores: np.ndarray, train: Ratings, test: Ratings, held: np.ndarray) -> dict:
    """Return RMSE, AUC and NDCG of predictions of all held-out items, one row per user."""
    users, place = test.user_index_of_nonzeros(), np.searchsorted(held, test.indices)
    clipped = np.clip(scores[users, place], train.values.min(), train.values.max())
    aucs, gains = [], []
    noise = np.random.default_rng(0).random(len(held))  # ties in random order
    for user in np.unique(users[test.values >= LIKED]):
        own = users == user
        liked = np.zeros(len(held), bool)
        liked[place[own & (test.values >= LIKED)]] = True
        n, ranks = liked.sum(), rankdata(scores[user])
        aucs.append((ranks[liked].sum() - n * (n + 1) / 2) / (n * (len(held) - n)))
        best = liked[np.lexsort((noise, -scores[user]))[:10]]
        discounts = 1 / np.log2(np.arange(2, 12))
        gains.append(best @ discounts[: len(best)] / discounts[: min(10, n)].sum())
    rmse = math.sqrt(np.mean((clipped - test.values) ** 2, dtype=float))
    return {"cold rmse": rmse, "auc": float(np.mean(aucs)), "ndcg": float(np.mean(gains))}


def ridge_per_user(train: Ratings, F: np.ndarray, penalty: float, held: np.ndarray) -> np.ndarray:
    """Return predictions of each user's own ridge regression on features, the user's mean free."""
    centre = F[train.indices].mean(axis=0)
    scores = np.empty((train.n_users, len(held)))
    for user in range(train.n_users):
        own = slice(train.indptr[user], train.indptr[user + 1])
        A, y = F[train.indices[own]] - centre, train.values[own].astype(float)
        mean = y.mean() if len(y) else train.values.mean()
        A = np.column_stack([A, np.ones(len(y))])
        system = A.T @ A + penalty * np.diag([1.0] * F.shape[1] + [1e-3])
        found = np.linalg.solve(system, A.T @ (y - mean))
        scores[user] = mean + found[-1] + (F[held] - centre) @ found[:-1]
    return scores


def measure_ridge(train, test, held, inner, blocks: Blocks, figures: Figures) -> None:
    for title, F in {
        "ridge per user, genres": blocks.matrix[:, blocks.groups["genres"]].toarray(),
        "ridge per user, all features": blocks.matrix.toarray(),
    }.items():
        start = time.perf_counter()
        errors = [
            cold_figures(ridge_per_user(inner[0], F, p, inner[2]), *inner)["cold rmse"]
            for p in RIDGES
        ]
        best = RIDGES[int(np.argmin(errors))]
        found = cold_figures(ridge_per_user(train, F, best, held), train, test, held)
        add(figures[title], found | {"fit": (time.perf_counter() - start) / (len(RIDGES) + 1)})


def add(figures: dict[str, list[float]], found: dict[str, float]) -> None:
    for key, value in found.items():
        figures[key].append(value)


def measure_ours(cold: tuple, warm: tuple, blocks: Blocks, figures: Figures) -> None:
    train, test, held = cold
    known = warm[1].user_index_of_nonzeros(), warm[1].indices
    for title, (name, params) in OURS.items():
        for features in (None, blocks):
            label = title if features else f"{title}, without features"
            model = make_model(name, **params).fit(replace(train, item_features=features))
            scores = model.scores(np.arange(train.n_users))[:, held].astype(float)
            found = cold_figures(scores, train, test, held)
            if name == "bayes":
                found["inside cold"] = inside(model, test)
            start = time.perf_counter()
            model = make_model(name, **params).fit(replace(warm[0], item_features=features))
            found["fit"] = time.perf_counter() - start
            off = np.clip(model.predict(*known), 0.5, 5) - warm[1].values
            found["warm rmse"] = math.sqrt(np.mean(off**2, dtype=float))
            if name == "bayes":
                found["inside warm"] = inside(model, warm[1])
            add(figures[label], found)


def measure_peers(python: str, cold: tuple, warm: tuple, inner: tuple, blocks, figures) -> None:
    script = Path(__file__).with_name("feature_peers.py")
    dense = blocks.matrix[:, : blocks.groups["tags"].start].toarray()
    with tempfile.TemporaryDirectory() as folder:
        given, answer = Path(folder) / "in.npz", Path(folder) / "out.npz"
        parts = {"inner": inner[0], "validation": inner[1], "train": cold[0], "test": cold[1]}
        parts |= {"warm": warm[0], "warm_test": warm[1]}
        arrays = {"held": cold[2], "inner_held": inner[2], "dense": dense}
        for name, part in parts.items():
            arrays[f"{name}_users"] = part.user_index_of_nonzeros()
            arrays[f"{name}_items"], arrays[f"{name}_values"] = part.indices, part.values
        M = blocks.matrix
        arrays |= {"indptr": M.indptr, "indices": M.indices, "data": M.data, "shape": M.shape}
        np.savez(given, n_users=cold[0].n_users, **arrays)
        subprocess.run([python, str(script), str(given), str(answer)], check=True)
        found = np.load(answer)
        for title in found["titles"].tolist():
            scores = found[f"{title}: scores"]
            own = cold_figures(scores, *cold)
            if f"{title}: warm" in found:
                off = np.clip(found[f"{title}: warm"], 0.5, 5) - warm[1].values
                own["warm rmse"] = math.sqrt(np.mean(off**2, dtype=float))
            if title not in found["rated"]:
                del own["cold rmse"]  # its scores are not ratings
            add(figures[title], own | {"fit": float(found[f"{title}: seconds"])})


def print_scale(n_ratings: int, models: list[str]) -> None:
    """Print processor seconds of fits with features, of which there are few or very many."""
    from generated import movielens_shaped

    rng = np.random.default_rng(0)
    rows = []
    ratings = Ratings.from_matrix(movielens_shaped(n_ratings))
    n = ratings.n_items
    for n_features in (1_000, 100_000):
        columns = rng.integers(0, n_features, 20 * n)
        matrix = sparse.csr_array(
            (np.full(20 * n, 20**-0.5, np.float32), columns, np.arange(0, 20 * n + 1, 20)),
            shape=(n, n_features),
        )
        blocks = Blocks(matrix, (), {"words": slice(0, n_features)})
        for name in models:
            seconds, unfitted = [], make_model(name)
            if "iterations" in unfitted.get_params():
                unfitted.set_params(iterations=8, tol=0)
            if name == "ials":  # the search for them is the same with and without
                unfitted.set_params(regularization=0.01, unobserved_weight=0.01)
            for features in (None, blocks):
                data = replace(ratings, item_features=features)
                start = time.process_time()
                unfitted.fit(data)
                seconds.append(time.process_time() - start)
            rows.append([name, n_ratings, n_features, *seconds, seconds[1] / seconds[0]])
    print(table(["model", "ratings", "features", "without s", "with s", "ratio"], rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--first", type=int, default=0, help="seed of the first split")
    parser.add_argument("--scale", metavar="RATINGS", type=int)
    parser.add_argument("--models", default="als,bayes,ials,spectral", help="with --scale")
    arguments = parser.parse_args()
    if arguments.scale:
        print_scale(arguments.scale, arguments.models.split(","))
        return
    folder = datasets() / "ml-latest-small"
    ratings = read_ratings(folder)
    blocks = film_features(ratings, folder)
    pythons = [p for p in os.environ.get("PEERS_PYTHON", "").split(os.pathsep) if p]
    if not pythons:
        print("No peers: PEERS_PYTHON names no Python that has them.", file=sys.stderr)
    figures: Figures = defaultdict(lambda: defaultdict(list))
    for seed in range(arguments.first, arguments.first + arguments.splits):
        cold, warm = held_out_items(ratings, seed), tuple(random_split(ratings, 0.1, seed))
        inner = held_out_items(cold[0], seed)
        measure_ours(cold, warm, blocks, figures)
        measure_ridge(*cold, inner, blocks, figures)
        for python in pythons:
            measure_peers(python, cold, warm, inner, blocks, figures)
        done = "; ".join(f"{title} {dict(each)}" for title, each in figures.items())
        print(f"split {seed}: {done}", file=sys.stderr)
    print(f"{machine()}\nml-latest-small, {ratings.n_ratings:,} ratings, ", end="")
    print(f"{blocks.matrix.shape[1]} features, {arguments.splits} splits\n")
    columns, intervals = ("warm rmse", "cold rmse", "auc", "ndcg"), ("inside warm", "inside cold")
    rows = [
        [
            title,
            *(with_interval(found[key]) if key in found else "" for key in columns),
            *(f"{np.mean(found[key]):.1%}" if key in found else "" for key in intervals),
            float(np.median(found["fit"])),
        ]
        for title, found in figures.items()
    ]
    headers = ["model", "warm RMSE", "cold RMSE", "cold AUC", "cold NDCG@10"]
    print(table([*headers, "in 90%, warm", "in 90%, cold", "fit s"], rows))


if __name__ == "__main__":
    main()

"""Features of items: predicted ratings and likes of known items, and of items without ratings.

The data are ml-latest-small; the features are genres, the year and the users' tags as texts. Likes
are ratings of 4 stars or more. In the warm setting, 10% of the ratings are held out at random. The
metrics are RMSE, and NDCG@20 of the likes among all films that a user has not rated, with and
without features. In the cold setting, 10% of the items are held out with all their ratings. The
metrics are the RMSE of these ratings and, for each user with likes among them, AUC and NDCG@10
among all held-out items.

Models of ratings are fitted to the training ratings, models of likes to the likes among them; all
are measured on the same held-out ratings. Figures are means over the splits with 95% intervals (of
Student). For models with intervals, the share of ratings inside the 90% interval is given. A second
table has the change by features for known items, with a paired t test over the splits. Our models
run with their defaults; `auto` is the model that `recsys fit` chooses for likes. Models with
several settings use the best on 10% of the training items of the first split; `auto` chooses there
too.

"Ridge per user" is fitted in this process; other peers run in their own: PEERS_PYTHON is the Python
that has cmfrec, lightfm-next or myfm.

Usage: RECSYS_DATASETS=FOLDER [PEERS_PYTHON=...] python benchmarks/features.py [--splits N]
       python benchmarks/features.py --scale 25000000   # seconds with and without, generated data
"""

from __future__ import annotations

import argparse
import json
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
from scipy.stats import rankdata, ttest_rel

from recsys.data.implicit import as_implicit
from recsys.data.ratings import Ratings
from recsys.evaluation.splits import random_split
from recsys.models.registry import make_model
from recsys.readers import read_ratings

LIKED = 4.0
TOP = 20
OF_LIKES = {
    f"{name}, of likes": (name, {})
    for name in ("spectral", "ials", "sparse-ease", "auto")
}
WITHOUT = ", without features"
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
    place = dict(
        zip(ratings.items.values.to_list(), range(ratings.n_items), strict=True)
    )
    words = defaultdict(Counter)
    for film, tag in tags.select("movieId", "tag").iter_rows():
        words[film].update(
            "".join(c if c.isalnum() else " " for c in tag.lower()).split()
        )
    genres, years = {}, {}
    for film, title, names in films.iter_rows():
        genres[film] = [name for name in names.split("|") if not name.startswith("(")]
        year = title.strip()[-5:-1]
        years[film] = float(year) if year.isdigit() else math.nan
    frequency = Counter(word for film in words for word in words[film])
    weights = {
        film: {
            w: (1 + math.log(n)) * math.log(len(words) / frequency[w])
            for w, n in own.items()
        }
        for film, own in words.items()
    }
    return Blocks.of(
        {
            "genres": one_hot(
                {f: dict.fromkeys(g, 1.0) for f, g in genres.items()}, place, 1
            ),
            "year": standardised(years, place),
            "tags": one_hot(weights, place, 2),
        }
    )


def one_hot(rows: dict, place: dict, least: int) -> tuple[sparse.csr_array, list[str]]:
    """Return rows of length 1, without the columns that fewer than `least` rows have."""
    counts = Counter(
        name for film, row in rows.items() if film in place for name in row
    )
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
    return sparse.csr_array(np.column_stack([column, missing])), [
        "year",
        "year missing",
    ]


def held_out_items(ratings: Ratings, seed: int) -> tuple[Ratings, Ratings, np.ndarray]:
    """Return training and test ratings, and the items of the latter, 10% of those with ratings."""
    rated = np.unique(ratings.indices)
    held = np.random.default_rng(seed).permutation(rated)[: round(0.1 * len(rated))]
    is_held = np.isin(ratings.indices, held)
    return ratings.take(~is_held), ratings.take(is_held), np.sort(held)


def likes_of(ratings: Ratings) -> Ratings:
    """Return the likes among ratings, of the same users and items."""
    return as_implicit(ratings.take(ratings.values >= LIKED))


def aucs(scores: np.ndarray, liked: np.ndarray) -> np.ndarray:
    """Return for each row with liked columns how often one of them is above another column."""
    ranks, n = rankdata(scores, axis=1), liked.sum(axis=1)
    above = (ranks * liked).sum(axis=1) - n * (n + 1) / 2
    return above / (n * (liked.shape[1] - n))


def gains(scores: np.ndarray, liked: np.ndarray, top: int) -> np.ndarray:
    """Return the NDCG of each row with liked columns; ties are in random order."""
    noise = np.broadcast_to(
        np.random.default_rng(0).random(scores.shape[1]), scores.shape
    )
    best = np.lexsort((noise, -scores), axis=1)[:, :top]
    discounts = 1 / np.log2(np.arange(2, top + 2))
    ideal = discounts.cumsum()[np.minimum(liked.sum(axis=1), top) - 1]
    return np.take_along_axis(liked, best, axis=1) @ discounts[: best.shape[1]] / ideal


def cold_figures(
    scores: np.ndarray, train: Ratings, test: Ratings, held: np.ndarray
) -> dict:
    """Return RMSE, AUC and NDCG of scores of all held-out items, one row per user."""
    users, place = test.user_index_of_nonzeros(), np.searchsorted(held, test.indices)
    clipped = np.clip(scores[users, place], train.values.min(), train.values.max())
    liked = likes_of(test).matrix.toarray()[:, held] > 0
    rows = np.flatnonzero(liked.any(axis=1))
    return {
        "cold rmse": math.sqrt(np.mean((clipped - test.values) ** 2, dtype=float)),
        "auc": float(aucs(scores[rows], liked[rows]).mean()),
        "ndcg": float(gains(scores[rows], liked[rows], 10).mean()),
    }


def warm_gain(scores: np.ndarray, train: Ratings, test: Ratings) -> float:
    """Return the NDCG of liked items among all that a user has not rated."""
    liked = likes_of(test).matrix.toarray() > 0
    rows = np.flatnonzero(liked.any(axis=1))
    scores = scores[rows].astype(np.float64)
    scores[train.matrix[rows].toarray() > 0] = -np.inf
    return float(gains(scores, liked[rows], TOP).mean())


def ridge_per_user(
    train: Ratings, F: np.ndarray, penalty: float, held: np.ndarray
) -> np.ndarray:
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


def measure_ridge(
    train, test, held, inner, blocks: Blocks, figures: Figures, chosen: dict
) -> None:
    for title, F in {
        "ridge per user, genres": blocks.matrix[:, blocks.groups["genres"]].toarray(),
        "ridge per user, all features": blocks.matrix.toarray(),
    }.items():
        if title not in chosen:
            tried = [
                ridge_per_user(inner[0], F, penalty, inner[2]) for penalty in RIDGES
            ]
            errors = [cold_figures(scores, *inner)["cold rmse"] for scores in tried]
            chosen[title] = RIDGES[int(np.argmin(errors))]
        start = time.perf_counter()
        scores = ridge_per_user(train, F, chosen[title], held)
        seconds = time.perf_counter() - start
        add(figures[title], cold_figures(scores, train, test, held) | {"fit": seconds})


def add(figures: dict[str, list[float]], found: dict[str, float]) -> None:
    for key, value in found.items():
        figures[key].append(value)


def measure_ours(
    cold: tuple, warm: tuple, blocks: Blocks, figures: Figures, chosen: dict
) -> None:
    everybody = np.arange(cold[0].n_users)
    for title, (name, params) in (OURS | OF_LIKES).items():
        parts = [
            likes_of(part) if title in OF_LIKES else part for part in (cold[0], warm[0])
        ]
        for features in (blocks,) if name == "auto" else (None, blocks):
            own = figures[title if features else f"{title}{WITHOUT}"]
            name, params = chosen.get(title, (name, params))
            model = make_model(name, **params).fit(
                replace(parts[0], item_features=features)
            )
            if name == "auto":
                name, params = chosen[title] = (
                    model.candidate.model,
                    model.candidate.params,
                )
                print(f"auto: {'; '.join(model.findings)}", file=sys.stderr)
                model = model.chosen
            scores = model.scores(everybody)[:, cold[2]].astype(float)
            found = cold_figures(scores, *cold)
            if title not in OF_LIKES:  # whose scores are not ratings
                pairs = cold[1].user_index_of_nonzeros(), cold[1].indices
                found["cold rmse"] = error(model.predict(*pairs), cold[1])
            if name == "bayes":
                found["inside cold"] = inside(model, cold[1])
            start = time.perf_counter()
            model = make_model(name, **params).fit(
                replace(parts[1], item_features=features)
            )
            found["fit"] = time.perf_counter() - start
            found["warm ndcg"] = warm_gain(model.scores(everybody), *warm)
            if title in OF_LIKES:
                del found["cold rmse"]  # its scores are not ratings
            else:
                pairs = warm[1].user_index_of_nonzeros(), warm[1].indices
                found["warm rmse"] = error(model.predict(*pairs), warm[1])
            if name == "bayes":
                found["inside warm"] = inside(model, warm[1])
            add(own, found)


def error(predicted: np.ndarray, test: Ratings) -> float:
    return math.sqrt(
        np.mean((np.clip(predicted, 0.5, 5) - test.values) ** 2, dtype=float)
    )


def measure_peers(
    python, cold: tuple, warm: tuple, inner: tuple, blocks, figures, chosen
) -> None:
    script = Path(__file__).with_name("feature_peers.py")
    dense = blocks.matrix[:, : blocks.groups["tags"].start].toarray()
    with tempfile.TemporaryDirectory() as folder:
        given, answer = Path(folder) / "in.npz", Path(folder) / "out.npz"
        parts = {
            "inner": inner[0],
            "validation": inner[1],
            "train": cold[0],
            "test": cold[1],
        }
        parts |= {"warm": warm[0], "warm_test": warm[1]}
        arrays = {"held": cold[2], "inner_held": inner[2], "dense": dense}
        for name, part in parts.items():
            arrays[f"{name}_users"] = part.user_index_of_nonzeros()
            arrays[f"{name}_items"], arrays[f"{name}_values"] = (
                part.indices,
                part.values,
            )
        M = blocks.matrix
        arrays |= {
            "indptr": M.indptr,
            "indices": M.indices,
            "data": M.data,
            "shape": M.shape,
        }
        np.savez(given, n_users=cold[0].n_users, chosen=json.dumps(chosen), **arrays)
        subprocess.run([python, str(script), str(given), str(answer)], check=True)
        found = np.load(answer)
        chosen |= json.loads(str(found["chosen"]))
        for title in found["titles"].tolist():
            scores = found[f"{title}: scores"]
            own = cold_figures(scores, *cold)
            if f"{title}: warm" in found:
                own["warm rmse"] = error(found[f"{title}: warm"], warm[1])
            if f"{title}: lists" in found:
                own["warm ndcg"] = warm_gain(found[f"{title}: lists"], *warm)
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
            (
                np.full(20 * n, 20**-0.5, np.float32),
                columns,
                np.arange(0, 20 * n + 1, 20),
            ),
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
            rows.append(
                [name, n_ratings, n_features, *seconds, seconds[1] / seconds[0]]
            )
    print(table(["model", "ratings", "features", "without s", "with s", "ratio"], rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--first", type=int, default=0, help="seed of the first split")
    parser.add_argument("--scale", metavar="RATINGS", type=int)
    parser.add_argument(
        "--models", default="als,bayes,ials,spectral", help="with --scale"
    )
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
    chosen: dict = {}  # settings, on the first split
    for seed in range(arguments.first, arguments.first + arguments.splits):
        cold, warm = (
            held_out_items(ratings, seed),
            tuple(random_split(ratings, 0.1, seed)),
        )
        inner = held_out_items(cold[0], seed)
        measure_ours(cold, warm, blocks, figures, chosen)
        measure_ridge(*cold, inner, blocks, figures, chosen)
        for python in pythons:
            measure_peers(python, cold, warm, inner, blocks, figures, chosen)
        done = "; ".join(f"{title} {dict(each)}" for title, each in figures.items())
        print(f"split {seed}: {done}", file=sys.stderr)
    print(f"{machine()}\nml-latest-small, {ratings.n_ratings:,} ratings, ", end="")
    print(f"{blocks.matrix.shape[1]} features, {arguments.splits} splits\n")
    columns = ("warm rmse", "warm ndcg", "cold rmse", "auc", "ndcg")
    intervals = ("inside warm", "inside cold")
    rows = [
        [
            title,
            *(with_interval(found[key]) if key in found else "" for key in columns),
            *(
                f"{np.mean(found[key]):.1%}" if key in found else ""
                for key in intervals
            ),
            float(np.median(found["fit"])),
        ]
        for title, found in figures.items()
    ]
    headers = [
        "model",
        "warm RMSE",
        f"warm NDCG@{TOP}",
        "cold RMSE",
        "cold AUC",
        "cold NDCG@10",
    ]
    print(table([*headers, "in 90%, warm", "in 90%, cold", "fit s"], rows))
    if arguments.splits > 1:
        print_changes(figures)


def print_changes(figures: Figures) -> None:
    """Print what features change for known items, and whether a paired t test calls it a change."""
    rows = []
    for title, found in figures.items():
        for key, sign in (("warm rmse", -1), ("warm ndcg", 1)):
            without = figures.get(f"{title}{WITHOUT}", {}).get(key)
            if without and key in found:
                change = np.subtract(found[key], without)
                p, better = (
                    ttest_rel(found[key], without).pvalue,
                    sign * change.mean() > 0,
                )
                verdict = (
                    ("better" if better else "worse") if p < 0.05 else "no difference"
                )
                rows.append([title, key, with_interval(change), f"{p:.4f}", verdict])
    print(f"\n{table(['model', 'figure', 'with - without features', 'p', ''], rows)}")


if __name__ == "__main__":
    main()

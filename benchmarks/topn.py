"""Accuracy of recommendations from implicit feedback: Recall@20 and NDCG@20, all items ranked.

The data sets are

- Gowalla in its published split (train.txt, test.txt), evaluated as in the literature: means over
  the users of the test file, with all items ranked that are not in the user's training part;
- ml-latest-small, with ratings of at least 4 as likes, of which a seeded fifth is held out for each
  user;
- Last.fm in a published split, without the numbers of plays.

A model with several settings uses those with the best NDCG on a seeded fifth of each user's
training part, and is then fitted to all of it; seconds and memory are those of the last fit. Each
fit runs in its own process, whose peak memory includes the data and the libraries. Published
figures are copied from the papers (LightGCN: He et al. 2020; GF-CF: Shen et al. 2021; BSPM: Choi et
al. 2023; ChebyCF: Kim et al. 2025), not measured here.

Usage: RECSYS_DATASETS=... python benchmarks/topn.py [--data NAME] [--skip MODEL]... [MODEL ...]
"""

from __future__ import annotations

import argparse
import resource
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import numpy as np
import polars as pl
from measuring import datasets, machine, table

from lowrank import kernels
from recsys.data.ratings import Ratings
from recsys.errors import DataError
from recsys.evaluation import Split, evaluate, split_from_pair
from recsys.models.registry import MODELS, make_model
from recsys.readers import read_ratings

N = 20
LIKED = 4  # stars
_ALS = [
    {},
    {"alpha": 10, "regularization": 50},
    {"alpha": 20, "regularization": 50},
    {"alpha": 60, "regularization": 50},
    {"alpha": 100, "regularization": 100},
]
CANDIDATES: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "popular": ("popular", [{}]),
    "spectral": ("spectral", [{}]),
    "ease": ("ease", [{}]),
    "ials": ("ials", [{}]),
    "blend": ("blend", [{}]),
    "auto": ("auto", [{}]),
    "implicit-als, 64": ("implicit-als", [{"factors": 64, **each} for each in _ALS]),
    "implicit-als, 128": ("implicit-als", [{"factors": 128, **each} for each in _ALS]),
    "implicit-knn": ("implicit-knn", [{}, {"neighbors": 100}, {"neighbors": 1000}]),
    "implicit-bpr": ("implicit-bpr", [{}, {"learning_rate": 0.05}]),
}
PUBLISHED = {
    "gowalla": {
        "LightGCN": (0.1830, 0.1554),
        "GF-CF": (0.1849, 0.1518),
        "BSPM": (0.1920, 0.1597),
        "ChebyCF": (0.1941, 0.1616),
    }
}


def gowalla() -> Split:
    folder = datasets() / "gowalla"
    train, test = (read_ratings(folder / f"{part}.txt") for part in ("train", "test"))
    return split_from_pair(train, test)


def ml_latest_small() -> Split:
    ratings = read_ratings(datasets() / "ml-latest-small").to_frame()
    likes = ratings.filter(ratings["rating"] >= LIKED).select("user", "item")
    return fifth_of_each_user(Ratings.from_frame(likes), seed=42)


def fifth_of_each_user(ratings: Ratings, seed: int) -> Split:
    """Hold out a fifth, rounded down, of what each user has."""
    users = ratings.user_index_of_nonzeros()
    order = np.lexsort((np.random.default_rng(seed).random(len(users)), users))
    place = np.empty(len(users), dtype=np.int64)
    place[order] = np.arange(len(users)) - ratings.indptr[users]
    held_out = place < np.diff(ratings.indptr)[users] // 5
    return Split(ratings.take(~held_out), ratings.take(held_out))


def lastfm() -> Split:
    columns = ["user", "item", "weight"]
    parts = [
        pl.read_csv(
            datasets() / "lastfm" / f"{part}.tsv",
            separator="\t",
            has_header=False,
            new_columns=columns,
            infer_schema_length=None,
        )
        for part in ("train", "test")
    ]
    train, test = (Ratings.from_frame(part.select("user", "item")) for part in parts)
    return split_from_pair(train, test)


DATA = {"gowalla": gowalla, "ml-latest-small": ml_latest_small, "lastfm": lastfm}


def figures(name: str, params: dict[str, Any], split: Split) -> dict[str, Any]:
    model = make_model(name, **params)
    found = evaluate([model], split, N, metrics=["recall", "ndcg"], resamples=0)
    return found.table.row(0, named=True)


def choose(title: str, data: str) -> dict[str, Any]:
    """Return the settings that are best on a fifth of the training part."""
    name, settings = CANDIDATES[title]
    if len(settings) == 1:
        return settings[0]
    inner = fifth_of_each_user(DATA[data]().train, seed=1)
    return max(settings, key=lambda params: figures(name, params, inner)[f"ndcg@{N}"])


def run(title: str, data: str, params: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """Return the figures of a model, and the bytes that this process has had at most."""
    found = figures(CANDIDATES[title][0], params, DATA[data]())
    return found, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def alone(function: Callable[..., Any], *arguments: object) -> Any:
    """Call a function in a new process."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def measure(title: str, data: str) -> list[object]:
    params = alone(choose, title, data)
    found, peak = alone(run, title, data, params)
    shown = ", ".join(f"{key} {value}" for key, value in params.items()) or "defaults"
    accuracy = [f"{found[f'{metric}@{N}']:.4f}" for metric in ("recall", "ndcg")]
    seconds = [found["fit_seconds"], found["recommend_seconds"]]
    return [title, shown, *accuracy, *seconds, f"{peak / 1e6:.0f}"]


def compare(data: str, titles: list[str]) -> None:
    train, test = DATA[data]()
    print(f"\n{data}: {train}; {test.n_ratings:,} held out\n", flush=True)
    rows = []
    for title in titles:
        try:
            rows.append(measure(title, data))
        except DataError as error:
            print(f"{title} is left out: {error}", flush=True)
    for title, accuracy in PUBLISHED.get(data, {}).items():
        rows.append(
            [title, "published, not run", *(f"{x:.4f}" for x in accuracy), "", "", ""]
        )
    headers = [
        "model",
        "settings",
        f"Recall@{N}",
        f"NDCG@{N}",
        "fit s",
        "all users s",
        "peak MB",
    ]
    print(table(headers, rows))


def main() -> None:
    known = [
        title for title, (name, _) in CANDIDATES.items() if name in {*MODELS, "auto"}
    ]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("titles", nargs="*", default=known, metavar="MODEL")
    parser.add_argument("--data", action="append", choices=list(DATA))
    parser.add_argument("--skip", action="append", default=[], metavar="MODEL")
    arguments = parser.parse_args()
    print(f"{machine()}; kernels: {kernels.backend()}")
    for data in arguments.data or DATA:
        compare(
            data, [title for title in arguments.titles if title not in arguments.skip]
        )


if __name__ == "__main__":
    main()

"""Accuracy of predicted ratings on five seeded 90/10 splits of ml-latest-small.

The table has RMSE and MAE, means over the splits with 95% intervals (of Student), and the processor
seconds of fitting and predicting. Our models run with their defaults. "times known" are predictions
of `bayes` given the times of the test ratings. A peer with several settings uses the best on a
tenth of the training ratings, and is then fitted to all of them; its seconds are those of the last
fit.

`bayes` also learns from which items a user rated, and from the times of the training ratings. myFM
is given the former ("linked"), or both and the times of the test ratings ("times known"). With the
times of the training ratings alone, its predictions are worse.

Peers run in their own process: PEERS_PYTHON is the Python that has scikit-surprise, lenskit or myfm
(several are separated as in PATH, since the peers need different NumPy versions).

Usage: RECSYS_DATASETS=FOLDER [PEERS_PYTHON=...] python benchmarks/ratings.py [--splits N]
"""

from __future__ import annotations

import argparse
import math
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import numpy as np
from measuring import datasets, machine, table

from recsys.data.ratings import Ratings
from recsys.evaluation.splits import random_split
from recsys.models.registry import make_model
from recsys.readers import read_ratings

OURS = {
    "als": ("als", {}),
    "als, linked": ("als", {"linked": True}),
    "bayes": ("bayes", {}),
    "bayes, no links": ("bayes", {"linked": False}),
}
Figures = dict[str, list[float]]


def triples(ratings: Ratings) -> dict[str, np.ndarray]:
    return {
        "users": ratings.user_index_of_nonzeros(),
        "items": ratings.indices,
        "values": ratings.values,
        "times": ratings.seconds.astype(np.int64),
    }


def errors(predicted: np.ndarray, train: Ratings, test: Ratings) -> dict[str, float]:
    """Return the errors of predictions, clipped to the range of the training ratings."""
    off = np.clip(predicted, train.values.min(), train.values.max()) - test.values
    return {
        "rmse": math.sqrt(np.mean(off.astype(float) ** 2)),
        "mae": float(np.mean(np.abs(off))),
    }


def measure_ours(train: Ratings, test: Ratings, figures: dict[str, Figures]) -> None:
    pairs = test.user_index_of_nonzeros(), test.indices
    for title, (name, params) in OURS.items():
        start = time.process_time()
        model = make_model(name, **params).fit(train)
        fitted = time.process_time()
        timed = [("", {})]
        if name == "bayes":
            timed.append((", times known", {"times": test.timestamps}))
        for known, times in timed:
            begun = time.process_time()
            predicted = model.predict(*pairs, **times)
            seconds = {"fit": fitted - start, "predict": time.process_time() - begun}
            found = errors(predicted, train, test) | seconds
            if name == "bayes":
                found["inside"] = inside(model, test, **times)
            for key, value in found.items():
                figures[f"{title}{known}"][key].append(value)


def inside(model, test: Ratings, **times: np.ndarray) -> float:
    """Return the share of ratings that are in the 90% intervals of a model."""
    pairs = test.user_index_of_nonzeros(), test.indices
    low, high = model.predict_interval(*pairs, 0.9, **times)
    return float(np.mean((low <= test.values) & (test.values <= high)))


def measure_peers(
    python: str, train: Ratings, test: Ratings, figures: dict[str, Figures]
) -> None:
    inner = random_split(train, 0.1, random_state=0)
    script = Path(__file__).with_name("rating_peers.py")
    with tempfile.TemporaryDirectory() as folder:
        paths = [str(Path(folder) / f"{n}.npz") for n in range(4)]
        for path, part in zip(paths, (*inner, test), strict=False):
            np.savez(path, **triples(part))
        subprocess.run([python, str(script), *paths], check=True)
        answer = np.load(paths[3])
        for title, predicted, (fit, predict) in zip(
            answer["titles"], answer["predicted"], answer["seconds"], strict=True
        ):
            found = errors(predicted, train, test) | {"fit": fit, "predict": predict}
            for key, value in found.items():
                figures[str(title)][key].append(float(value))


def with_interval(values: list[float]) -> str:
    from scipy.stats import t

    n = len(values)
    mean = f"{np.mean(values):.4f}"
    if n == 1:
        return mean
    return f"{mean} ±{t.ppf(0.975, n - 1) * np.std(values, ddof=1) / math.sqrt(n):.4f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--splits", type=int, default=5)
    splits = parser.parse_args().splits
    ratings = read_ratings(datasets() / "ml-latest-small")
    pythons = [p for p in os.environ.get("PEERS_PYTHON", "").split(os.pathsep) if p]
    if not pythons:
        print("No peers: PEERS_PYTHON names no Python that has them.", file=sys.stderr)
    figures: dict[str, Figures] = defaultdict(lambda: defaultdict(list))
    for seed in range(splits):
        train, test = random_split(ratings, 0.1, seed)
        measure_ours(train, test, figures)
        for python in pythons:
            measure_peers(python, train, test, figures)
    print(
        f"{machine()}\nml-latest-small, {ratings.n_ratings:,} ratings, {splits} splits\n"
    )
    rows = [
        [
            title,
            with_interval(found["rmse"]),
            with_interval(found["mae"]),
            float(np.median(found["fit"])),
            float(np.median(found["predict"])),
            f"{np.mean(found['inside']):.1%}" if "inside" in found else "",
        ]
        for title, found in figures.items()
    ]
    print(
        table(["model", "RMSE", "MAE", "fit s", "predict s", "in 90% interval"], rows)
    )
    peers = [
        np.mean(f["rmse"])
        for title, f in figures.items()
        if "inside" not in f and title not in OURS
    ]
    if peers:
        print(
            "\nBest peer's RMSE minus ours: "
            + ", ".join(
                f"{title} {min(peers) - np.mean(figures[title]['rmse']):+.4f}"
                for title in OURS
            )
        )


if __name__ == "__main__":
    main()

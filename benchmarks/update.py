"""Seconds of an update next to a new fit, by how much is new and by how large the model is.

Generated ratings in the shape of MovieLens-25M: a model of `als` is fitted to most of them, and
others are added, of users and items drawn as the rest. An update is what `recsys update` does
after reading: load, merge, fold in, save. The columns split its time; "copy" is the time to write
the arrays of the model once more, which an update cannot be faster than. The new fit begins with
the old factors.

Usage: python benchmarks/update.py [--ratings N ...] [--new N ...] [--factors K] [--no-refit]
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from generated import movielens_shaped
from measuring import machine, table

from recsys import Ratings, Recommender
from recsys.atomic import put_in_place
from recsys.changes import change_of
from recsys.update import folded


def held_back(ratings: Ratings, n: int, seed: int) -> tuple[Ratings, Ratings]:
    """Return most of the ratings, and n of them at random, with the users and items of both."""
    chosen = np.zeros(ratings.n_ratings, np.bool_)
    chosen[np.random.default_rng(seed).choice(ratings.n_ratings, n, replace=False)] = True
    return ratings.take(~chosen), ratings.take(chosen)


def least(run: Callable[[], object], repeats: int = 3) -> float:
    """Return the least seconds of some runs: other programs only add to them."""
    taken = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        taken.append(time.perf_counter() - start)
    return min(taken)


def measure(place: Path, new: Ratings, *, refit: bool) -> list[float]:
    """Return the seconds of loading, merging, folding in, saving, all of it, and a new fit."""
    target, fresh = place.with_name("updated"), Ratings.from_frame(new.to_frame())

    def update() -> Recommender:
        return Recommender.load(place).update(fresh)

    loaded = Recommender.load(place)
    change = change_of(loaded.ratings, fresh)
    updated = update()
    stages: list[Callable[[], object]] = [
        lambda: Recommender.load(place),
        lambda: change_of(loaded.ratings, fresh),
        lambda: folded(loaded.model, change),
        lambda: updated.save(target, overwrite=True),
        lambda: update().save(target, overwrite=True),
    ]
    seconds = [least(stage) for stage in stages]
    seconds.append(least(lambda: loaded.update(fresh, refit=True), 1) if refit else float("nan"))
    return seconds


def copying(place: Path) -> float:
    """Return the seconds to write the files of a model once more, to the disk."""

    def copy() -> None:
        new, target = place.with_name("new"), place.with_name("copied")
        shutil.copytree(place, new)
        put_in_place(new, target)

    return least(copy)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--ratings", nargs="*", type=int, default=[1_000_000, 5_000_000, 25_000_000]
    )
    parser.add_argument("--new", nargs="*", type=int, default=[100, 1_000, 10_000, 100_000])
    parser.add_argument("--factors", type=int, default=64)
    parser.add_argument("--no-refit", action="store_true", help="Leave the new fits out.")
    arguments = parser.parse_args()
    print(f"{machine()}\n")
    rows = []
    for n in arguments.ratings:
        everything = Ratings.from_matrix(movielens_shaped(n))
        base, rest = held_back(everything, max(arguments.new), 0)
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder) / "model"
            Recommender("als", factors=arguments.factors, iterations=2).fit(base).save(place)
            copied = copying(place)
            for n_new in arguments.new:
                _, new = held_back(rest, min(n_new, rest.n_ratings), 1)
                found = measure(place, new, refit=not arguments.no_refit)
                rows.append([f"{n:,}", f"{n_new:,}", *found[:5], copied, found[5]])
    head = ["load", "merge", "fold in", "save", "update", "copy", "new fit"]
    print(table(["ratings", "new", *(f"{name} s" for name in head)], rows))


if __name__ == "__main__":
    main()

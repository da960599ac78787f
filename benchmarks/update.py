"""Seconds of an update and of a new fit, by the number of new ratings and the size of the model.

Ratings are generated in the shape of MovieLens-25M. A model of `als` is fitted to most of them,
then others are added, with users and items from the same distribution. An update consists of the
steps of `recsys update` after reading: load, merge, fold in, save. Their columns are processor
seconds of all threads, which other programs hardly affect. "update" is their sum, "new fit" a fit
that starts from the old factors. The last two columns are wall times, disk included.

Usage: python benchmarks/update.py [--ratings N ...] [--new N ...] [--factors K] [--no-refit]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from generated import movielens_shaped
from measuring import machine, table

from recsys import Ratings, Recommender
from recsys.changes import change_of
from recsys.update import folded


def held_back(ratings: Ratings, n: int, seed: int) -> tuple[Ratings, Ratings]:
    """Return most of the ratings, and n of them at random, with the users and items of both."""
    chosen = np.zeros(ratings.n_ratings, np.bool_)
    chosen[np.random.default_rng(seed).choice(ratings.n_ratings, n, replace=False)] = (
        True
    )
    return ratings.take(~chosen), ratings.take(chosen)


def least(run: Callable[[], object], repeats: int = 3) -> tuple[float, float]:
    """Return the least seconds of some runs, on the processor and on the clock."""
    taken = []
    for _ in range(repeats):
        start = time.process_time(), time.perf_counter()
        run()
        taken.append((time.process_time() - start[0], time.perf_counter() - start[1]))
    return min(cpu for cpu, _ in taken), min(wall for _, wall in taken)


def measure(place: Path, new: Ratings, *, refit: bool) -> list[float]:
    """Return the seconds of loading, merging, folding in, saving, an update, and a new fit."""
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
    found = [least(stage) for stage in stages]
    none = float("nan"), float("nan")
    found.append(least(lambda: loaded.update(fresh, refit=True), 1) if refit else none)
    return [cpu for cpu, _ in found] + [wall for _, wall in found[-2:]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--ratings", nargs="*", type=int, default=[1_000_000, 5_000_000, 25_000_000]
    )
    parser.add_argument(
        "--new", nargs="*", type=int, default=[100, 1_000, 10_000, 100_000]
    )
    parser.add_argument("--factors", type=int, default=64)
    parser.add_argument(
        "--no-refit", action="store_true", help="Leave the new fits out."
    )
    arguments = parser.parse_args()
    print(f"{machine()}\n")
    rows = []
    for n in arguments.ratings:
        everything = Ratings.from_matrix(movielens_shaped(n))
        base, rest = held_back(everything, max(arguments.new), 0)
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder) / "model"
            Recommender("als", factors=arguments.factors, iterations=2).fit(base).save(
                place
            )
            for n_new in arguments.new:
                _, new = held_back(rest, min(n_new, rest.n_ratings), 1)
                refit = not arguments.no_refit and n_new == max(arguments.new)
                rows.append([f"{n:,}", f"{n_new:,}", *measure(place, new, refit=refit)])
    head = [
        "load",
        "merge",
        "fold in",
        "save",
        "update",
        "new fit",
        "update",
        "new fit",
    ]
    units = ["s CPU"] * 6 + ["s"] * 2
    names = (f"{name}, {unit}" for name, unit in zip(head, units, strict=True))
    print(table(["ratings", "new", *names], rows).replace("nan", "   "))


if __name__ == "__main__":
    main()

"""The sample's ratings, split in two, and a model fitted to the first part."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from recsys.data.ratings import Ratings
from recsys.evaluation.splits import random_split
from recsys.readers import read_ratings, sample_path

# A program that test_cluster.py runs; its import fails without PySpark.
collect_ignore = ["on_a_cluster.py"]
FACTORS, ITERATIONS = 8, 4


@dataclass(frozen=True)
class Case:
    """A model that Spark fitted, and what it was fitted to and is tested on."""

    path: Path
    train_file: Path
    test_file: Path
    train: Ratings
    test: Ratings


@pytest.fixture(scope="session")
def case(spark, tmp_path_factory):
    from recsys.spark import fit

    folder = tmp_path_factory.mktemp("spark")
    split = random_split(read_ratings(sample_path()), 0.1, random_state=0)
    files = [folder / "train.parquet", folder / "test.csv"]
    split.train.to_frame().write_parquet(files[0])
    split.test.to_frame().write_csv(files[1])
    fit(str(files[0]), str(folder / "model"), factors=FACTORS, iterations=ITERATIONS)
    # What Spark knows are the users and items of the training part alone.
    train = read_ratings(files[0])
    return Case(folder / "model", *files, train, split.test)


@dataclass(frozen=True)
class ToyFit:
    """A fit of the toy ratings, and its parameters."""

    path: Path
    parameters: dict[str, float]


@pytest.fixture(scope="session")
def toy_fit(spark, toy, tmp_path_factory):
    from recsys.spark import fit

    path = tmp_path_factory.mktemp("toy") / "model"
    schema = "user string, item smallint, rating double"
    frame = spark.createDataFrame(toy.to_dicts(), schema)
    parameters = {
        "factors": 3,
        "iterations": 2,
        "test_fraction": 0.2,
        "random_state": 5,
    }
    fit(frame, str(path), **parameters)
    return ToyFit(path, parameters)


@pytest.fixture(scope="session")
def toy():
    """40 x 30, a quarter filled, ids as text, in no order."""
    rng = np.random.default_rng(3)
    users, items = np.nonzero(rng.random((40, 30)) < 0.25)
    import polars as pl

    frame = pl.DataFrame(
        {
            "user": [f"ü{u:02}" for u in users],
            "item": (100 - items).astype(np.int16),
            "rating": rng.integers(1, 11, len(users)) / 2,
        }
    )
    return frame.sample(fraction=1.0, shuffle=True, seed=1)

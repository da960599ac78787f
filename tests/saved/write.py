"""Saved directories that later versions must read, and their answers in expected.json.

After a change of the format version, `python tests/saved/write.py` writes all of them
again.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import polars as pl

import recsys
from recsys.evaluation.tuning import tune
from recsys.models.registry import MODELS, make_model, parameters
from recsys.recommender import Recommender

SAVED = Path(__file__).resolve().parent
EXPECTED = SAVED / "expected.json"
N_USERS, N_ITEMS = 12, 9
SMALL: dict[str, Any] = {
    "clusters": 2,
    "factors": 2,
    "iterations": 3,
    "neighbors": 4,
    "threads": 1,
}
USERS = ("u02", "u07")
TEXTS = (
    "green tea in a paper bag",
    "a cast-iron pot for green tea",
    "the lamp on the table of the garden",
    "a book on gardens and lamps",
    "tea with lemon from the garden",
)
QUERY = "green tea for the garden"


def events() -> pl.DataFrame:
    """Return ratings of two groups of users, who prefer items of a genre each."""
    rows = []
    for user in range(N_USERS):
        for item in range(N_ITEMS):
            noise = (user * user + 3 * user * item + 5 * item) % 7
            if noise < 4:
                grade = 4 - noise / 2 if (user + item) % 2 else 1 + noise / 2
                day = 1 + (user + 4 * item + 2 * noise) % 28
                time = 1_600_000_000 + 86_400 * day + 60 * user
                rows.append((f"u{user:02}", f"i{item}", grade, time))
    columns = ["user", "item", "rating", "timestamp"]
    return pl.DataFrame(rows, schema=columns, orient="row")


def item_table() -> pl.DataFrame:
    """Return the items with their genres, the one column of features."""
    genres = [("drama", "comedy")[item % 2] for item in range(N_ITEMS)]
    return pl.DataFrame(
        {"item": [f"i{item}" for item in range(N_ITEMS)], "genre": genres}
    )


def write_model(path: Path) -> None:
    """Fit and save the model that the folder is named by."""
    name = path.name
    declared = {parameter.name for parameter in parameters(name)}
    small = {key: value for key, value in SMALL.items() if key in declared}
    model = make_model(name, **small)
    frame = events() if model.predicts_ratings else events().drop("rating")
    table = item_table() if model.uses_features else None
    ratings = recsys.Ratings.from_frame(frame, item_table=table)
    Recommender(model).fit(ratings).save(path)


def model_answers(path: Path, scratch: Path) -> dict[str, Any]:
    """Return the whole lists of two users, and predicted ratings.

    A list has all items that the user has not rated, so that items with equal scores may
    change places.
    """
    recommender = Recommender.load(path, verify=True)
    answers: dict[str, Any] = {}
    for user in USERS:
        answers[user] = pairs(recommender.recommend(user, N_ITEMS), "item")
    if recommender.model.predicts_ratings:
        user_items = pl.DataFrame({"user": [*USERS], "item": ["i1", "i4"]})
        answers["predictions"] = recommender.predict(user_items)["prediction"].to_list()
    return answers


def write_index(path: Path) -> None:
    """Index some texts."""
    recsys.LSI(2, language="english").fit(TEXTS).save(path)


def index_answers(path: Path, scratch: Path) -> dict[str, Any]:
    """Return the documents that match a query, by each method."""
    index = recsys.LSI.load(path, verify=True)
    return {
        method: pairs(index.query(QUERY, len(TEXTS), method=method), "document")
        for method in ("hybrid", "lsi", "bm25")
    }


def write_split(path: Path) -> None:
    """Hold out random ratings."""
    ratings = recsys.Ratings.from_frame(events(), item_table=item_table())
    recsys.save_split(recsys.random_split(ratings, 0.2), path)


def split_in(path: Path) -> recsys.Split:
    """Read the saved split."""
    split = recsys.read_split(path)
    assert isinstance(split, recsys.Split)
    return split


def split_answers(path: Path, scratch: Path) -> dict[str, Any]:
    """Return the sizes of both parts, and a sum over the ratings."""
    split = split_in(path)
    return {
        "test fraction": split.parameters["test_fraction"],
        "train": split.train.n_ratings,
        "test": split.test.n_ratings,
        "users": split.train.n_users,
        "items": split.train.n_items,
        "sum of grades": float(split.train.values.sum()),
    }


def tuning(study: Path, trials: int) -> recsys.Tuning:
    """Search until a study has some number of trials."""
    fixed = {"factors": 2, "iterations": 3, "count_power": 0.5}
    return tune(
        "als",
        recsys.Ratings.from_frame(events()),
        trials=trials,
        ranges={"regularization": recsys.Range(0.1, 10.0, log=True)},
        fixed=fixed,
        study=study,
        threads=1,
    )


def write_study(path: Path) -> None:
    """Search for the regularization of a model."""
    path.mkdir()
    tuning(path / "als.study", 3)


def study_answers(path: Path, scratch: Path) -> dict[str, Any]:
    """Return the best trial of a copy, which optuna may write to."""
    copied = scratch / "als.study"
    shutil.copy(path / "als.study", copied)
    read = tuning(copied, 1)  # which has more, so that none is run
    return {
        "trials": len(read.trials),
        "best": read.best.number,
        "value": read.best.value,
        "regularization": read.best.parameters["regularization"],
    }


def write_evaluation(path: Path) -> None:
    """Evaluate two models on the saved split."""
    split = split_in(path.parent / "split")
    recsys.evaluate(["bias", "popular"], split, 3, resamples=20).save(path)


def evaluation_answers(path: Path, scratch: Path) -> dict[str, Any]:
    """Return the errors and the quality of the lists, by model."""
    table = recsys.Evaluation.load(path).table
    columns = table.select("rmse", "ndcg@3").to_dicts()
    return dict(zip(table["model"], columns, strict=True))


def pairs(frame: pl.DataFrame, column: str) -> list[list[Any]]:
    """Return the ids of a list with their scores."""
    return [list(row) for row in frame.select(column, "score").rows()]


OTHERS = {
    "index": (write_index, index_answers),
    "split": (write_split, split_answers),
    "study": (write_study, study_answers),
    "evaluation": (write_evaluation, evaluation_answers),
}
FOLDERS = dict.fromkeys(sorted(MODELS), (write_model, model_answers)) | OTHERS
"""Functions that write a folder, and that read it and return its answers, by its name."""


def answers(name: str, scratch: Path) -> dict[str, Any]:
    """Return the answers of a saved folder; `scratch` is for copies."""
    return FOLDERS[name][1](SAVED / name, scratch)


def main() -> None:
    """Write all folders, and their answers."""
    expected = {}
    for name, (write, _) in FOLDERS.items():
        shutil.rmtree(SAVED / name, ignore_errors=True)
        write(SAVED / name)
        with tempfile.TemporaryDirectory() as scratch:
            expected[name] = answers(name, Path(scratch))
    EXPECTED.write_text(json.dumps(expected, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

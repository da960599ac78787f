"""Models compared on the same held-out ratings."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from recsys.errors import DataError
from recsys.evaluation.metrics import Hits, hit_matrix, mae, ndcg, precision, recall, rmse
from recsys.evaluation.split import Split
from recsys.models.base import Model, Step
from recsys.ratings import Ratings
from recsys.recommender import Recommender
from recsys.topn import csr_exclusion, top_n
from recsys.training import clip_to_range

__all__ = ["Evaluation", "evaluate"]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What `evaluate` found.

    Attributes
    ----------
    table : polars DataFrame
        One row per model: model, rmse, mae, precision@n, recall@n, ndcg@n (means over users),
        fit_seconds, recommend_seconds, users (over whom the ranking metrics are means). rmse and
        mae are null where there is no rating to predict: on implicit feedback, and for models
        that only rank.
    per_user : polars DataFrame
        model, user, precision@n, recall@n, ndcg@n: what the means are means of.
    n : int
        Length of the recommendations.
    counts : dict of str to int
        train_ratings, test_ratings; users_evaluated and users_without_test_items (who are left
        out of the ranking metrics); cold_users and cold_items (with test ratings only; they stay
        in); unknown_users, unknown_items, unknown_ratings (not in the training data, left out).
    """

    table: pl.DataFrame
    per_user: pl.DataFrame
    n: int
    counts: dict[str, int]


def evaluate(
    models: Mapping[str, Model | str] | Iterable[Model | str],
    split: Split,
    n: int = 10,
    *,
    relevant_from: float | None = None,
    on_step: Callable[[str, Step], None] | None = None,
) -> Evaluation:
    """Fit each model to the training part and measure it on the test part.

    Ratings are predicted for every test pair and clipped to the range of the training ratings.
    Recommendations are made to every user with relevant test items, out of all items that the
    user has not rated in the training part.

    Parameters
    ----------
    models : mapping of label to model, or iterable of models
        Names or model objects; the latter are fitted in place.
    split : Split
    n : int
        Length of the recommendations.
    relevant_from : float, optional
        Test items rated at least this are relevant. By default all test items are, whatever
        their rating.
    on_step : callable, optional
        Called with the label of the model and a `Step` after each sweep.

    Raises
    ------
    DataError
        If n is below 1, two models have the same label, no test item is relevant, or a model
        cannot use the ratings.
    """
    labelled = _labelled(models)
    if n < 1:
        raise DataError(f"n must be at least 1; got {n}.")
    ranking = _Ranking.of(split, n, relevant_from)
    rows, per_user = [], []
    for label, model in labelled.items():
        row, of_users = _measure(label, Recommender(model), split, ranking, on_step)
        rows.append(row)
        per_user.append(of_users)
    counts = {
        "train_ratings": split.train.n_ratings,
        "test_ratings": split.test.n_ratings,
        "users_evaluated": len(ranking.users),
        "users_without_test_items": split.train.n_users - len(ranking.users),
        **{name: getattr(split, name) for name in _SPLIT_COUNTS},
    }
    return Evaluation(pl.DataFrame(rows, schema=_schema(n)), pl.concat(per_user), n, counts)


_SPLIT_COUNTS = ("cold_users", "cold_items", "unknown_users", "unknown_items", "unknown_ratings")


def _schema(n: int) -> dict[str, Any]:
    ranking = [f"{name}@{n}" for name in ("precision", "recall", "ndcg")]
    numbers = ["rmse", "mae", *ranking, "fit_seconds", "recommend_seconds"]
    return {"model": pl.String, **dict.fromkeys(numbers, pl.Float64), "users": pl.Int64}


@dataclass(frozen=True, slots=True)
class _Ranking:
    """The ranking task: whom to recommend to, and what they will turn out to like."""

    users: NDArray[np.int64]
    relevant: Ratings
    n: int

    @classmethod
    def of(cls, split: Split, n: int, relevant_from: float | None) -> _Ranking:
        relevant = split.test
        if not relevant.n_ratings:
            raise DataError("There are no test ratings to measure the models on.")
        if relevant_from is not None:
            relevant = relevant.take(relevant.values >= relevant_from)
        users = np.flatnonzero(np.diff(relevant.indptr))
        if not len(users):
            raise DataError(f"No test rating is {relevant_from} or more, so no item is relevant.")
        return cls(users, relevant, n)

    def hits(self, model: Model, train: Ratings) -> Hits:
        """Recommend to all users; which recommendations are relevant, (n_users, n)."""
        seen = csr_exclusion(train.indptr, train.indices)
        tops = top_n(model, self.users, self.n, exclude=seen)
        return hit_matrix(tops, self.users, self.relevant, self.n)


def _measure(
    label: str,
    recommender: Recommender,
    split: Split,
    ranking: _Ranking,
    on_step: Callable[[str, Step], None] | None,
) -> tuple[dict[str, Any], pl.DataFrame]:
    """Fit and test one model; its row of the table, and its values per user."""

    def each(step: Step) -> None:
        if on_step is not None:
            on_step(label, step)

    start = time.perf_counter()
    recommender.fit(split.train, on_step=each)
    fitted = time.perf_counter()
    hits = ranking.hits(recommender.model, split.train)
    recommended = time.perf_counter()
    n_relevant = np.diff(ranking.relevant.indptr)[ranking.users]
    values = {
        f"precision@{ranking.n}": precision(hits),
        f"recall@{ranking.n}": recall(hits, n_relevant),
        f"ndcg@{ranking.n}": ndcg(hits, n_relevant),
    }
    row = {
        "model": label,
        **_rating_errors(recommender, split.test),
        **{name: float(value.mean()) for name, value in values.items()},
        "fit_seconds": fitted - start,
        "recommend_seconds": recommended - fitted,
        "users": len(hits),
    }
    users = split.train.users.take(ranking.users)
    return row, pl.DataFrame({"model": [label] * len(hits), "user": users, **values})


def _rating_errors(recommender: Recommender, test: Ratings) -> dict[str, float | None]:
    """RMSE and MAE, or None where no rating is predicted."""
    model, training = recommender.model, recommender.training
    if training["implicit"] or test.implicit or not model.predicts_ratings:
        return {"rmse": None, "mae": None}
    predicted = model.predict(test.user_index_of_nonzeros(), test.indices)
    predicted = clip_to_range(predicted, training)
    return {"rmse": rmse(predicted, test.values), "mae": mae(predicted, test.values)}


def _labelled(models: Mapping[str, Model | str] | Iterable[Model | str]) -> dict[str, Model | str]:
    if isinstance(models, Mapping):
        return dict(models)
    labelled: dict[str, Model | str] = {}
    for model in models:
        label = model if isinstance(model, str) else model.name
        if label in labelled:
            raise DataError(
                f"Two models are called {label!r}; give a mapping with a label for each."
            )
        labelled[label] = model
    return labelled

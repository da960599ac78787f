"""One model on one split: fitted, asked, and measured user by user."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from recsys.data.ratings import Ratings
from recsys.errors import DataError
from recsys.evaluation import metrics
from recsys.evaluation.metrics import DEFINITIONS, Doubles, Lists
from recsys.evaluation.ranking import Task
from recsys.evaluation.splits import Split
from recsys.evaluation.statistics import coverage_without, gini_without
from recsys.models.abilities import FoldsInUsers
from recsys.models.base import Histories, Model, Step
from recsys.recommender import Recommender
from recsys.training import clip_to_range

__all__ = [
    "CATALOGUE",
    "MEANS",
    "RATING",
    "Asked",
    "Run",
    "Stage",
    "check_folding",
    "ranking_values",
    "run",
    "with_history",
]

RATING = ("rmse", "mae")
MEANS = (
    "precision",
    "recall",
    "hit_rate",
    "map",
    "mrr",
    "ndcg",
    "novelty",
    "diversity",
    "popularity_bias",
)
"""Metrics that are means over users of a value each."""

CATALOGUE = ("coverage", "gini")
"""Metrics of all recommendations together."""

_BEYOND = {"novelty", "diversity", "popularity_bias"}
_BLOCK = 2**20  # recommendations looked at together
_BINS = 40  # of the histogram of residuals


@dataclass(frozen=True, slots=True)
class Asked:
    """What is to be measured.

    Attributes
    ----------
    ns : tuple of int
        Lengths of the recommendations, increasing.
    kinds : tuple of str
        Names in `DEFINITIONS`.
    """

    ns: tuple[int, ...]
    kinds: tuple[str, ...] = tuple(DEFINITIONS)

    def labels(self, kinds: tuple[str, ...]) -> list[str]:
        """Return the columns of some metrics, such as "ndcg@10", if they are asked for."""
        ranked = [kind for kind in kinds if kind in self.kinds]
        return [f"{kind}@{n}" for kind in ranked for n in self.ns]

    @property
    def ranks(self) -> bool:
        """Whether anything is asked that needs recommendations."""
        return not set(self.kinds) <= set(RATING)


@dataclass(frozen=True, slots=True)
class Stage:
    """A split made ready: the same for all models.

    Attributes
    ----------
    split : Split
    task : Task
    users : int64 ndarray of shape (n_users,)
        The users with test ratings; those of `task` are some of them.
    catalogue : Catalogue or None
        None where nothing beyond accuracy is asked for.
    profile : float64 ndarray of shape (n_asked,), or None
        How popular what each user of the task has rated is.
    """

    split: Split
    task: Task
    users: NDArray[np.int64]
    catalogue: metrics.Catalogue | None
    profile: Doubles | None

    @classmethod
    def of(cls, split: Split, task: Task, asked: Asked) -> Stage:
        """Find the users, and look at the training items where that is needed."""
        users = np.flatnonzero(np.diff(split.test.indptr))
        if _BEYOND.isdisjoint(asked.kinds):
            return cls(split, task, users, None, None)
        catalogue = metrics.Catalogue.of(split.train)
        return cls(split, task, users, catalogue, catalogue.profile(split.seen, task.users))


@dataclass(frozen=True, slots=True)
class Run:
    """What came of one model on one split.

    Attributes
    ----------
    values : polars DataFrame
        One row per user with test ratings: user, relevant, ratings, squared_error,
        absolute_error, then the metrics that are means; and for each of those over all
        recommendations, what it changes by without the user.
    overall : dict of str to float
        The metrics over all recommendations.
    residuals : polars DataFrame or None
        low, high, count: the histogram of predicted minus actual ratings.
    steps : tuple of Step
    fit_seconds, recommend_seconds : float
    """

    values: pl.DataFrame
    overall: dict[str, float]
    residuals: pl.DataFrame | None
    steps: tuple[Step, ...]
    fit_seconds: float
    recommend_seconds: float


def run(
    model: Model | str, stage: Stage, asked: Asked, on_step: Callable[[Step], None] | None = None
) -> Run:
    """Fit a model to the training part and measure it on the test part.

    Raises
    ------
    DataError
        If the model cannot use the ratings, or cannot fold in the users of a history.
    """
    recommender = Recommender(model)
    check_folding(recommender.model, stage.split)
    steps: list[Step] = []

    def each(step: Step) -> None:
        steps.append(step)
        if on_step is not None:
            on_step(step)

    start = time.perf_counter()
    recommender.fit(stage.split.train, on_step=each)
    fitted = time.perf_counter()
    served = with_history(recommender.model, stage.split.history)
    lists = stage.task.recommend(served) if asked.ranks else None
    recommended = time.perf_counter()
    predicted = _predictions(served, recommender.training, stage)
    values, overall = _values(lists, predicted, stage, asked)
    return Run(
        values,
        overall,
        None if predicted is None else _residuals(predicted, stage.split, recommender.training),
        tuple(steps),
        fitted - start,
        recommended - fitted,
    )


def check_folding(model: Model, split: Split) -> None:
    """Refuse, before the fit, a model that cannot take in users that it was not fitted to.

    Raises
    ------
    DataError
        If the split asks for that, naming the models that can.
    """
    if split.history is None or isinstance(model, FoldsInUsers):
        return
    from recsys.models.registry import MODELS, model_class

    able = ", ".join(sorted(m for m in MODELS if hasattr(model_class(m), "with_users")))
    raise DataError(
        f"The {model.name} model cannot take in users that it was not fitted to, as a split by "
        f"users asks; these models can: {able}."
    )


def with_history(model: Model, history: Ratings | None) -> Model:
    """Return the model that knows the test users, from their histories if they have any."""
    if history is None or not isinstance(model, FoldsInUsers):
        return model
    return model.with_users(Histories.of(history))


def _predictions(
    model: Model, training: dict[str, Any], stage: Stage
) -> NDArray[np.float32] | None:
    """Return the predicted test ratings, or None where there is nothing to predict."""
    test = stage.split.test
    if training["implicit"] or test.implicit or not model.predicts_ratings:
        return None
    predicted = model.predict(test.user_index_of_nonzeros(), test.indices)
    return clip_to_range(predicted, training)


def _values(
    lists: Lists | None, predicted: NDArray[np.float32] | None, stage: Stage, asked: Asked
) -> tuple[pl.DataFrame, dict[str, float]]:
    """Return the values of each user, and those of all together."""
    split, users = stage.split, stage.users
    n_relevant = np.diff(stage.task.relevant.indptr)[users]
    columns: dict[str, Any] = {
        "user": split.test.users.take(users),
        "relevant": n_relevant,
        "ratings": np.diff(split.test.indptr)[users],
        **_error_sums(predicted, stage),
    }
    overall: dict[str, float] = {}
    if lists is not None:
        ranked, overall = ranking_values(lists, stage, asked)
        places = np.flatnonzero(n_relevant)
        for label, values in ranked.items():
            everyone = np.full(len(users), np.nan)
            everyone[places] = values
            columns[label] = pl.Series(everyone, nan_to_null=True)
    return pl.DataFrame(columns), overall


def _error_sums(predicted: NDArray[np.float32] | None, stage: Stage) -> dict[str, pl.Series]:
    """Return each user's sums of squared and absolute errors."""
    test = stage.split.test
    if predicted is None:
        nothing = pl.Series([None] * len(stage.users), dtype=pl.Float64)
        return {"squared_error": nothing, "absolute_error": nothing}
    errors = np.subtract(predicted, test.values, dtype=np.float64)
    rows = test.user_index_of_nonzeros()

    def sums(values: Doubles) -> pl.Series:
        return pl.Series(np.bincount(rows, values, minlength=test.n_users)[stage.users])

    return {"squared_error": sums(np.square(errors)), "absolute_error": sums(np.abs(errors))}


def ranking_values(
    lists: Lists, stage: Stage, asked: Asked
) -> tuple[dict[str, Doubles], dict[str, float]]:
    """Return the metrics of each list, and those of all lists.

    Users are looked at in blocks, so that what is needed in between stays small.

    Parameters
    ----------
    lists : int32 ndarray of shape (n_asked, N)
        Recommendations to the users of the stage's task.
    stage : Stage
    asked : Asked

    Returns
    -------
    by_user : dict of str to float64 ndarray of shape (n_asked,)
        The metrics that are means over users; and for those of all lists, what they change by
        without each user.
    overall : dict of str to float
    """
    n_items = stage.split.train.n_items
    counts = {n: metrics.recommended_counts(lists[:, :n], n_items) for n in asked.ns}
    step = max(1, _BLOCK // lists.shape[1])
    blocks = []
    for start in range(0, len(lists), step):
        rows = slice(start, start + step)
        functions = _of_block(lists[rows], rows, stage, counts)
        labels = asked.labels((*MEANS, *CATALOGUE))
        pairs = (label.split("@") for label in labels)
        blocks.append([functions[kind](int(n)) for kind, n in pairs])
    by_user = {
        label: np.concatenate([block[place] for block in blocks])
        for place, label in enumerate(asked.labels((*MEANS, *CATALOGUE)))
    }
    whole: dict[str, Callable[[int], float]] = {
        "coverage": lambda n: float(np.count_nonzero(counts[n]) / n_items),
        "gini": lambda n: metrics.gini_of_counts(counts[n]),
    }
    kinds = [kind for kind in CATALOGUE if kind in asked.kinds]
    return by_user, {f"{kind}@{n}": whole[kind](n) for kind in kinds for n in asked.ns}


def _of_block(
    lists: Lists, rows: slice, stage: Stage, counts: dict[int, NDArray[np.int64]]
) -> dict[str, Callable[[int], Doubles]]:
    """Return the metrics of some users as functions of N."""
    task, known = stage.task, stage.catalogue
    users = task.users[rows]
    hits = metrics.hit_matrix(lists, users, task.relevant)
    n_relevant = task.n_relevant[rows]
    functions: dict[str, Callable[[int], Doubles]] = {
        "precision": lambda n: metrics.precision(hits[:, :n]),
        "recall": lambda n: metrics.recall(hits[:, :n], n_relevant),
        "hit_rate": lambda n: metrics.hit_rate(hits[:, :n]),
        "map": lambda n: metrics.average_precision(hits[:, :n], n_relevant),
        "mrr": lambda n: metrics.reciprocal_rank(hits[:, :n]),
        "ndcg": lambda n: metrics.ndcg(hits[:, :n], n_relevant),
        "coverage": lambda n: coverage_without(lists[:, :n], counts[n]),
        "gini": lambda n: gini_without(lists[:, :n], counts[n]),
    }
    if known is None or stage.profile is None:
        return functions
    profile = stage.profile[rows]
    return functions | {
        "novelty": lambda n: metrics.novelty(lists[:, :n], known.information),
        "diversity": lambda n: metrics.diversity(lists[:, :n], known.directions),
        "popularity_bias": lambda n: metrics.popularity_bias(
            lists[:, :n], known.popularity, profile
        ),
    }


def _residuals(
    predicted: NDArray[np.float32], split: Split, training: dict[str, Any]
) -> pl.DataFrame:
    """Count the residuals in bins as wide as a twentieth of the range of the ratings."""
    width = training["rating_max"] - training["rating_min"] or 1.0
    edges = np.linspace(-width, width, _BINS + 1)
    errors = np.clip(predicted - split.test.values, -width, width)
    counts, _ = np.histogram(errors, edges)
    return pl.DataFrame({"low": edges[:-1], "high": edges[1:], "count": counts})

"""Models compared on the same held-out ratings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import polars as pl

from recsys.errors import DataError
from recsys.evaluation.measuring import Asked, Run, Stage, run
from recsys.evaluation.metrics import DEFINITIONS
from recsys.evaluation.ranking import Task
from recsys.evaluation.results import Summary, joined
from recsys.evaluation.splits import NOTHING_KNOWN, Split, fingerprint
from recsys.messages import counted
from recsys.models.base import Model, Step
from recsys.topn import check_n

__all__ = ["Evaluation", "New", "Settings", "evaluate"]

New = Literal["drop", "keep"]
RESAMPLES = 1000
CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Settings:
    """How was measured: what besides models and data a repetition needs.

    Attributes
    ----------
    ns : tuple of int
        Lengths of the recommendations, increasing.
    relevant_from : float or None
        The least rating of a relevant test item; None: all test items are relevant.
    candidates : int or None
        Random items that each user's relevant ones are ranked among; None: all unseen items.
    new : {"drop", "keep"}
        What was done with test ratings of users and items without training ratings.
    resamples : int
        Bootstrap samples.
    confidence : float
        Of the intervals; 1 minus the level of the tests.
    random_state : int
        Of what is random in the evaluation: candidates, bootstrap and tests.
    """

    ns: tuple[int, ...]
    relevant_from: float | None
    candidates: int | None
    new: New
    resamples: int
    confidence: float
    random_state: int


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What `evaluate` found.

    A metric is called by its kind, as in `DEFINITIONS`, and for recommendations the N: "rmse",
    "ndcg@10".

    Attributes
    ----------
    table : polars DataFrame
        One row per model: model, rmse, mae, the other metrics, fit_seconds, recommend_seconds
        (means over folds), users (over whom ranking metrics are means). A metric is null where it
        does not apply, as rmse and mae of a model that only ranks, or on implicit feedback.
    metrics : polars DataFrame
        One row per model and metric that applies: model, metric, kind, n (null for rmse and mae),
        value, low, high (the confidence interval), users (how many have a value).
    comparisons : polars DataFrame
        One row per pair of models and metric that is a ratio of sums over users: metric, kind, n,
        model, other, difference (model minus other), low, high, p_value, adjusted (by Holm's
        method, over the pairs of models of the metric).
    per_user : polars DataFrame
        One row per model and user with test ratings: model, user, relevant (number of relevant
        test items), ratings (number of test ratings), squared_error and absolute_error (sums over
        the latter), and the metrics, null where the user has no value. On several folds, numbers
        and sums are over all, metrics are the user's means.
    residuals : polars DataFrame
        model, low, high, count: the histogram of predicted minus actual ratings.
    steps : dict of str to tuple of Step
        The sweeps of each model, on the first fold.
    settings : Settings
    splits : tuple of Split
        Without the ratings themselves: see `SplitInfo`.
    counts : dict of str to int
        Summed over folds: train_ratings, test_ratings; users_evaluated and
        users_without_test_items (who are left out of the ranking metrics); new_users, new_items,
        new_ratings (test ratings of users or items without training ratings).
    fingerprint : str
        SHA-256 of the data and of how the first split parts them.
    """

    table: pl.DataFrame
    metrics: pl.DataFrame
    comparisons: pl.DataFrame
    per_user: pl.DataFrame
    residuals: pl.DataFrame
    steps: dict[str, tuple[Step, ...]]
    settings: Settings
    splits: tuple[SplitInfo, ...]
    counts: dict[str, int]
    fingerprint: str

    def __repr__(self) -> str:
        return (
            f"<Evaluation: {', '.join(self.table['model'])}; held out: {self.held_out}; "
            f"{counted(self.counts['test_ratings'], 'test rating')}, "
            f"{counted(self.counts['users_evaluated'], 'user')}>"
        )

    @property
    def held_out(self) -> str:
        """What was held out, in words."""
        first, folds = self.splits[0], len(self.splits)
        if folds == 1:
            return first.description
        if first.method == "k-fold":
            random_state = first.parameters["random_state"]
            return f"each of {folds} folds of the ratings in turn, at random (seed {random_state})"
        return f"each of {folds} splits in turn, the first one {first.description}"


@dataclass(frozen=True, slots=True)
class SplitInfo:
    """A split without its ratings.

    Attributes
    ----------
    method, parameters
        As in `Split`.
    description : str
        The same in words.
    counts : dict of str to int
        As in `Evaluation`.
    """

    method: str
    parameters: dict[str, Any]
    description: str
    counts: dict[str, int]


def evaluate(
    models: Mapping[str, Model | str] | Iterable[Model | str] | str,
    split: Split | Iterable[Split],
    n: int | Sequence[int] = 10,
    *,
    relevant_from: float | None = None,
    candidates: int | None = None,
    new: New = "drop",
    metrics: Sequence[str] | None = None,
    resamples: int = RESAMPLES,
    confidence: float = CONFIDENCE,
    random_state: int = 0,
    on_step: Callable[[str, Step], None] | None = None,
) -> Evaluation:
    """Fit each model to the training part and measure it on the test part.

    Ratings are predicted for every test pair and clipped to the range of the training ratings.
    Recommendations are made to every user with relevant test items, out of all items that the
    user has not rated in the training part.

    Parameters
    ----------
    models : mapping of label to model, iterable of models, or name
        Names or model objects; the latter are fitted in place.
    split : Split, or iterable of Split
        Several are folds: each user's metrics are means over the folds in which the user has test
        ratings.
    n : int or sequence of int
        Lengths of the recommendations.
    relevant_from : float, optional
        Test items rated at least this are relevant. By default all test items are, whatever
        their rating.
    candidates : int, optional
        Rank each user's relevant items among so many random ones instead of all. Such metrics are
        not those over all items (see `recsys.evaluation.ranking.sample_candidates`).
    new : {"drop", "keep"}
        Leave out test ratings of users and items without training ratings, or keep them: a model
        knows of these no more than that they are there.
    metrics : sequence of str, optional
        Names in `DEFINITIONS`; all, if not given.
    resamples : int
        Bootstrap samples; with 0, there are no intervals and no tests.
    confidence : float
        Of the intervals.
    random_state : int
        Of the candidates, the bootstrap and the tests.
    on_step : callable, optional
        Called with the label of the model and a `Step` after each sweep.

    Raises
    ------
    DataError
        If n is below 1, two models have the same label, training and test ratings overlap or are
        on the wrong side of the split's cut, no test item is relevant, or a model cannot use the
        ratings.

    Examples
    --------
    >>> import recsys
    >>> ratings = recsys.read_ratings(recsys.sample_path())
    >>> split = recsys.random_split(ratings, random_state=1)
    >>> found = evaluate(["popular", "random"], split, n=[5, 10], metrics=["ndcg"])
    >>> found.table.columns[:3]
    ['model', 'ndcg@5', 'ndcg@10']
    >>> found.comparisons["adjusted"].to_list() == [0.0001, 0.0001]
    True
    """
    labelled = _labelled(models)
    settings = Settings(_ns(n), relevant_from, candidates, new, resamples, confidence, random_state)
    asked = Asked(settings.ns, _kinds(metrics))
    _check(settings, labelled)
    runs: dict[str, list[Run]] = {label: [] for label in labelled}
    splits: list[SplitInfo] = []
    mark = ""
    for each in [split] if isinstance(split, Split) else _several(split):
        stage, info = _prepared(each, settings, asked)
        splits.append(info)
        mark = mark or fingerprint(*each.parts)
        for label, model in labelled.items():
            runs[label].append(run(model, stage, asked, _reporting(label, on_step)))
    if not splits:
        raise DataError("There are no splits to evaluate on.")
    summary = Summary.of({label: joined(mine) for label, mine in runs.items()}, asked, settings)
    return Evaluation(
        summary.table,
        summary.metrics,
        summary.comparisons,
        summary.per_user,
        summary.residuals,
        {label: mine[0].steps for label, mine in runs.items()},
        settings,
        tuple(splits),
        {key: sum(info.counts[key] for info in splits) for key in splits[0].counts},
        mark,
    )


def _prepared(split: Split, settings: Settings, asked: Asked) -> tuple[Stage, SplitInfo]:
    """Check the split, apply the policy on what is new, and count."""
    split.check()
    used = split.without_new() if settings.new == "drop" else split
    if split.test.n_ratings and not used.test.n_ratings:
        raise DataError(NOTHING_KNOWN)
    task = Task.of(
        used, settings.ns[-1], settings.relevant_from, settings.candidates, settings.random_state
    )
    counts = {
        "train_ratings": used.train.n_ratings,
        "test_ratings": used.test.n_ratings,
        "users_evaluated": len(task.users),
        "users_without_test_items": used.seen.n_users - len(task.users),
        "new_users": split.new_users,
        "new_items": split.new_items,
        "new_ratings": split.new_ratings,
    }
    info = SplitInfo(split.method, split.parameters, split.description, counts)
    return Stage.of(used, task, asked), info


def _reporting(
    label: str, on_step: Callable[[str, Step], None] | None
) -> Callable[[Step], None] | None:
    return None if on_step is None else lambda step: on_step(label, step)


def _ns(n: int | Sequence[int]) -> tuple[int, ...]:
    several = list(n) if isinstance(n, Iterable) and not isinstance(n, str) else [n]
    if not several:
        raise DataError("n must be a number or several; got none.")
    for each in several:
        check_n(each)
    return tuple(sorted({int(each) for each in several}))


def _kinds(asked: Sequence[str] | None) -> tuple[str, ...]:
    if asked is None:
        return tuple(DEFINITIONS)
    for kind in asked:
        if kind not in DEFINITIONS:
            raise DataError(f"There is no metric {kind!r}; there are {', '.join(DEFINITIONS)}.")
    return tuple(kind for kind in DEFINITIONS if kind in asked)


def _check(settings: Settings, labelled: Mapping[str, Model | str]) -> None:
    if not labelled:
        raise DataError("There are no models to evaluate.")
    if settings.new not in ("drop", "keep"):
        raise DataError(f"new must be 'drop' or 'keep'; got {settings.new!r}.")
    if settings.resamples < 0:
        raise DataError(f"resamples must not be negative; got {settings.resamples}.")
    if not 0 < settings.confidence < 1:
        raise DataError(f"confidence must lie between 0 and 1; got {settings.confidence}.")


def _several(splits: Iterable[Split]) -> Iterator[Split]:
    """Yield splits, each of which must be one."""
    for each in splits if isinstance(splits, Iterable) else [splits]:
        if not isinstance(each, Split):
            raise DataError(
                f"split must be a Split or several; got {type(each).__name__}. random_split and "
                "others make one of Ratings, split_from_pair of a training and a test part."
            )
        yield each


def _labelled(
    models: Mapping[str, Model | str] | Iterable[Model | str] | str,
) -> dict[str, Model | str]:
    if isinstance(models, Mapping):
        return dict(models)
    labelled: dict[str, Model | str] = {}
    for model in [models] if isinstance(models, str) else models:
        if not isinstance(model, str) and (isinstance(model, type) or not hasattr(model, "name")):
            raise DataError(f"A model is a name or a model with its parameters; got {model!r}.")
        label = model if isinstance(model, str) else model.name
        if label in labelled:
            raise DataError(
                f"Two models are called {label!r}; give a mapping with a label for each."
            )
        labelled[label] = model
    return labelled

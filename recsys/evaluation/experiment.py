"""Evaluation of models on one split or on several folds."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, get_args

from recsys.data.identity import fingerprint
from recsys.data.ratings import Ratings
from recsys.errors import DataError, check_choice, check_whole
from recsys.evaluation.measurement import (
    NO_FEATURES,
    ModelLike,
    measure,
    stale_lists,
)
from recsys.evaluation.metrics import (
    CORRECTED,
    METRICS,
    Metric,
    MetricLike,
    resolve_metrics,
)
from recsys.evaluation.propensity import (
    SAMPLE_SIZE,
    Propensity,
    corrected,
    inverse_propensities,
)
from recsys.evaluation.results import (
    Evaluation,
    Measurement,
    claimed,
    fold_values,
    joined,
    summarize,
)
from recsys.evaluation.settings import Settings, SplitInfo
from recsys.evaluation.slices import Grouping, groupings
from recsys.evaluation.splits import (
    COLD,
    Repeats,
    Split,
    default_split,
)
from recsys.evaluation.staleness import stale_values
from recsys.evaluation.tasks import RankingTask, prepare_lists, prepare_positions
from recsys.models.base import Model, Step
from recsys.models.registry import make_model
from recsys.ranking.topn import (
    check_n,
)
from recsys.recommender import Recommender

_OF_POSITIONS = ("hit_rate", "mrr", "ndcg")


def evaluate(
    models: Mapping[str, ModelLike] | Iterable[ModelLike] | ModelLike,
    split: Split | Ratings | Mapping[str, Split] | Iterable[Split],
    n: int | Sequence[int] = 10,
    *,
    relevant_from: float | None = None,
    candidates: int | None = None,
    new: Literal["drop", "keep"] = "drop",
    diversity: float = 0.0,
    positions: bool = False,
    repeats: Repeats | None = None,
    metrics: Sequence[MetricLike] | None = None,
    by: str | Sequence[str] = (),
    by_user: str | Sequence[str] = (),
    propensity: Propensity | None = None,
    features: bool | Sequence[str] = True,
    resamples: int = 1000,
    confidence: float = 0.95,
    random_state: int = 0,
    on_step: Callable[[str, Step], None] | None = None,
) -> Evaluation:
    """Fit each model to the training part and measure it on the test part.

    Predict a rating for every test pair, clipped to the range of the training ratings. Recommend
    items to every user with relevant test items, among all items that the user has not rated in
    the training part, or among all if the split keeps repeated pairs. If the split holds out whole
    items, recommend only these. Items with equal scores are in a random order, which differs
    between users.

    Parameters
    ----------
    models : mapping of label to model, iterable of models, or model
        Names; model objects, which are fitted in place; or a fitted `Recommender`, which is not
        fitted again: its ratings must be the training part. ``"als:no-features"`` and
        `WithoutFeatures` are fitted without the features of the training part.
    split : Split, Ratings, iterable of Split, or mapping of label to Split
        Ratings are split as the command does: the newest tenth is tested, or a random one
        without timestamps. Several splits are folds: a user's metrics are means over the folds
        that test the user. `time_cuts` makes some that show how fast models go stale. A mapping
        gives each model its own split, all with the same test ratings (see `shared_test`).
    n : int or sequence of int
        Lengths of the recommendations.
    relevant_from : float, optional
        Minimum rating of a relevant test item. By default, all test items are relevant.
    candidates : int, optional
        Number of random items among which each user's relevant items are ranked, by default all.
        Sampled metrics differ from those over all items (see `sample_candidates`).
    new : {"drop", "keep"}
        Whether to keep test ratings of users and items without training ratings. "drop" ignores
        them and never recommends such items; "keep" measures models on them, too.
    diversity : float
        Weight of diversity in the recommendations, from 0 to 1 (see `Recommender.recommend`).
    positions : bool
        Predict each event of each test history from what comes before it. Test users are
        folded in, so that they need no training ratings. With ``new="drop"``, items without
        training ratings are never recommended, and count as misses. A metric is a mean over
        positions; its interval and tests are over users. Always done if the split holds out
        whole sessions (see `sessions_split`).
    repeats : {"drop", "keep"}, optional
        Of `positions`: whether to leave out items that came before in the history, in the
        lists and as events to predict; by default as in the split.
    metrics : sequence of str, Metric or function, optional
        Names in `METRICS`, by default all (of positions, hit_rate, mrr and ndcg), and custom
        metrics: a `Metric`, or a function as it describes, such as ``first_hit`` below, whose
        higher values are better.
    by, by_user : str or sequence of str
        Columns of the table of items (or "popularity"), and of the table of users (or
        "activity"), by whose groups the metrics are listed in `Evaluation.slices`. Without a value
        in the column, a user or item is in no group.
    propensity : str or Ratings, optional
        Probability that a relevant test item was seen: ``"popularity:0.5"`` (that power of the
        number of training ratings, relative to the most popular item), a column of the table of
        items, or probabilities of pairs, as `Ratings`. Adds ndcg_ips and others, as if all items
        had been shown equally often (see `recsys.evaluation.propensity`), and
        effective_sample_size, below 50 of which they have no value (see `Evaluation.remark`).
    features : bool or sequence of str
        Whether models that can use the tables of items and users of the training part, or the
        columns to use, as in `Recommender.fit`.
    resamples : int
        Number of bootstrap samples. With 0, intervals and tests are left out.
    confidence : float
        Confidence level of the intervals.
    random_state : int
        Seed of the candidates, the order of equal scores, the bootstrap and the tests.
    on_step : callable, optional
        Called with the label of the model and a `Step` after each iteration.

    Raises
    ------
    DataError
        If an argument is outside its range, two models have the same label, training and test
        ratings overlap or contradict the split's cut in time, no test item is relevant, or a model
        cannot use the ratings.

    Examples
    --------
    >>> import recsys
    >>> ratings = recsys.read_ratings(recsys.sample_path())
    >>> split = recsys.random_split(ratings, random_state=1)
    >>> def first_hit(hits):
    ...     return hits[:, 0]
    >>> found = evaluate(["popular", "random"], split, n=[5, 10], metrics=["ndcg", first_hit])
    >>> found.table.columns[:5]
    ['model', 'ndcg@5', 'ndcg@10', 'first_hit@5', 'first_hit@10']
    >>> found.comparisons["adjusted"].to_list()[:2]
    [0.0001, 0.0001]
    """
    random_state = check_whole("random_state", random_state, 0)
    if isinstance(split, Ratings):
        split = default_split(split, random_state=random_state)
    positions = positions or _has_sessions(split)
    if repeats is not None:
        check_choice("repeats", repeats, get_args(Repeats))
        if not positions:
            raise DataError(
                "repeats needs positions=True; otherwise the split says what is left out."
            )
    if positions:
        measured = resolve_metrics(metrics or _OF_POSITIONS)
        _check_positions(measured, candidates)
        if by or by_user or propensity is not None:
            raise DataError(
                "Groups and propensities are of users' lists; leave out positions."
            )
    else:
        measured = resolve_metrics(metrics)
    settings = Settings(
        ns=_lengths(n),
        relevant_from=relevant_from,
        candidates=candidates,
        new=new,
        resamples=resamples,
        confidence=confidence,
        random_state=random_state,
        diversity=diversity,
        positions=positions,
        propensity=propensity if isinstance(propensity, str | None) else "of pairs",
    )
    experiment = _Experiment(
        _labelled(models),
        measured,
        settings,
        repeats,
        by,
        by_user,
        propensity,
        features,
        on_step,
    )
    is_single = isinstance(split, Split | Mapping) or not isinstance(split, Iterable)
    is_single |= hasattr(split, "columns")  # a frame, which is an error below
    folds: Iterable[Any] = [split] if is_single else split
    for fold in folds:
        experiment.measure_fold(fold)
    return experiment.evaluation()


def _has_sessions(
    split: Split | Mapping[str, Split] | Iterable[Split],
) -> bool:
    """Return whether a split, or the first of several, holds out whole sessions."""
    if isinstance(split, list | tuple) and split:
        split = split[0]
    return isinstance(split, Split) and split.method == "sessions"


def _lengths(n: int | Sequence[int]) -> tuple[int, ...]:
    """Return the distinct lengths of the lists, in increasing order."""
    lengths = list(n) if isinstance(n, Iterable) and not isinstance(n, str) else [n]
    for length in lengths:
        check_n(length)
    return tuple(sorted({int(length) for length in lengths}))


@dataclass
class _Experiment:
    """Models that are measured fold by fold; arguments as in `evaluate`."""

    models: dict[str, ModelLike]
    metrics: tuple[Metric, ...]
    settings: Settings
    repeats: Repeats | None
    by: str | Sequence[str]
    by_user: str | Sequence[str]
    propensity: Propensity | None
    features: bool | Sequence[str]
    on_step: Callable[[str, Step], None] | None

    def __post_init__(self) -> None:
        self.runs: dict[str, list[Measurement]] = {label: [] for label in self.models}
        self.splits: list[SplitInfo] = []
        self.fingerprints: list[str] = []
        self.groups: list[Grouping] = []
        # Models of the first of several cuts in time, which are measured later, too.
        self.first_cut: dict[str, tuple[Model, RankingTask]] = {}

    def measure_fold(self, fold: Split | Mapping[str, Split]) -> None:
        """Fit and measure each model on a fold, which may have a split for each model."""
        # Models often share a split, which is then prepared once.
        tasks: dict[tuple[int, int], RankingTask] = {}
        for label, model in self.models.items():
            split = fold.get(label) if isinstance(fold, Mapping) else fold
            if not isinstance(split, Split):
                raise DataError(
                    f"split must be a Split or several; got {type(split).__name__} for "
                    f"{label!r}. Make one from Ratings by random_split and others, or from "
                    "training and test ratings by split_from_pair."
                )
            # By position, a fitted model has the items of its own training ratings.
            fitted = None
            if self.settings.positions and isinstance(model, Recommender):
                fitted = model.ratings
            key = id(split), id(fitted)
            if key not in tasks:
                # Training parts of fitted models keep their users and items.
                as_is = isinstance(fold, Mapping) or self._has_fitted(split)
                task, info = self._prepared(split, fitted, as_is=as_is)
                if not tasks:
                    self.splits.append(info)
                    self._check_new(fingerprint(*split.parts))
                tasks[key] = task
            self._measure(label, model, tasks[key])

    def _check_new(self, mark: str) -> None:
        """Check that no earlier fold has the same ratings, and keep their fingerprint."""
        if mark in self.fingerprints:
            raise DataError(
                f"Folds {self.fingerprints.index(mark) + 1} and {len(self.fingerprints) + 1} have "
                "the same ratings; give each fold once."
            )
        self.fingerprints.append(mark)

    def _has_fitted(self, split: Split) -> bool:
        """Return whether a model is fitted to data of the size of the training part."""
        shapes = {
            model.ratings.shape
            for model in self.models.values()
            if isinstance(model, Recommender)
        }
        return split.train.shape in shapes

    def _prepared(
        self, split: Split, fitted: Ratings | None, *, as_is: bool
    ) -> tuple[RankingTask, SplitInfo]:
        """Return the task of a split, with features and propensities, and its description."""
        split = _with_features(split, self.models.values(), self.features)
        if self.settings.positions:
            return prepare_positions(split, self.settings, self.repeats, fitted)
        task, info = prepare_lists(split, self.settings, self.metrics, as_is=as_is)
        if self.propensity is not None:
            inverse = inverse_propensities(
                self.propensity, task.split.train, task.relevant
            )
            task = replace(task, inverse=inverse)
        return task, info

    def _measure(self, label: str, model: ModelLike, task: RankingTask) -> None:
        """Fit and measure a model, and the model of the first cut if there is one."""
        train = task.split.train
        # All models have the groups of the first one, so that tests are paired.
        if label == next(iter(self.models)):
            self.groups = groupings(train, self.by, self.by_user, self.groups)
        groups = [group.aligned(train.axis(group.side).ids) for group in self.groups]
        listen = None if self.on_step is None else partial(self.on_step, label)
        is_first = not self.runs[label]
        run, fitted = measure(
            model,
            task,
            self.settings.ns,
            self.metrics,
            listen,
            groups,
            confidence=self.settings.confidence if is_first else 0.0,
        )
        if label in self.first_cut:
            earlier, earlier_task = self.first_cut[label]
            stale = stale_lists(earlier, earlier_task, task, self.settings.ns)
            run = replace(run, stale=stale.join(run.values, on="user", suffix=" refit"))
        elif self._can_age(task.split):
            # Another fit sets other arrays, and leaves those of the copy.
            self.first_cut[label] = copy.copy(fitted), task
        self.runs[label].append(run)

    def _can_age(self, split: Split) -> bool:
        """Return whether later windows show how fast a model of this split goes stale."""
        return (
            "windows" in split.parameters
            and not self.settings.positions
            and self.settings.candidates is None
            and METRICS["ndcg"] in self.metrics
        )

    def evaluation(self) -> Evaluation:
        """Return the results of all folds."""
        if not self.splits:
            raise DataError("split must hold at least one Split; got none.")
        settings = self.settings
        if self.splits[0].method in COLD:  # these splits test new users or items
            settings = replace(settings, new="keep")
        metrics = self.metrics
        if self.propensity is not None:
            metrics = (*metrics, *corrected(metrics), SAMPLE_SIZE)
        of_folds = {
            label: claimed(joined(runs, weighted=settings.positions))
            for label, runs in self.runs.items()
        }
        each_fold = {
            label: [claimed(run) for run in runs] for label, runs in self.runs.items()
        }
        of_first_cut = {
            label: [run.stale for run in runs] for label, runs in self.runs.items()
        }
        frames = summarize(of_folds, metrics, settings)
        # Without a value, a corrected metric has no row.
        kinds = {*frames["metrics"]["kind"]}
        described = {
            metric.name: metric
            for metric in metrics
            if metric.name in kinds or not metric.name.endswith(CORRECTED)
        }
        return Evaluation(
            **frames,
            folds=fold_values(each_fold, metrics, settings),
            staleness=stale_values(of_first_cut, self.splits, settings),
            steps={label: run.steps for label, run in of_folds.items()},
            measured=described,
            settings=settings,
            splits=tuple(self.splits),
            counts={
                name: sum(info.counts[name] for info in self.splits)
                for name in self.splits[0].counts
            },
            fingerprint=self.fingerprints[0],
            parameters={label: run.parameters for label, run in of_folds.items()},
            timed=tuple(label for label, run in of_folds.items() if run.timed),
        )


def _check_positions(metrics: Sequence[Metric], candidates: int | None) -> None:
    """Check that the metrics of positions are of single lists."""
    if candidates is not None:
        raise DataError("positions are ranked among all items; leave out candidates.")
    for metric in metrics:
        if metric.scope != "user" or metric.uses_catalogue or metric.uses_grades:
            raise DataError(
                f"{metric.name} does not apply to positions; {', '.join(_OF_POSITIONS)} do, "
                "and functions of lists, hits and n_relevant."
            )


def _labelled(
    models: Mapping[str, ModelLike] | Iterable[ModelLike] | ModelLike,
) -> dict[str, ModelLike]:
    labelled: dict[str, Any] = {}
    if isinstance(models, Mapping):
        labelled = dict(models)
    else:
        several = isinstance(models, Iterable) and not isinstance(models, str)
        listed: Any = models if several else [models]
        for model in listed:
            named = model.model if isinstance(model, Recommender) else model
            label = named if isinstance(named, str) else getattr(named, "name", None)
            if label is None or isinstance(model, type):
                raise DataError(
                    "A model must be a name, or a model object whose class has a name "
                    f'(name = "mine"); got {model!r}.'
                )
            if label in labelled:
                raise DataError(
                    f"Two models are named {label!r}; pass a mapping with a label for each."
                )
            labelled[label] = model
    if not labelled:
        raise DataError("models must hold at least one model; got none.")
    return labelled


def _with_features(
    split: Split,
    models: Iterable[ModelLike],
    features: bool | Sequence[str],
) -> Split:
    """Return the split with features of the training part, if a model to fit uses them."""
    train = split.train
    if features is False or (train.item_table is None and train.user_table is None):
        return split
    for model in models:
        if isinstance(model, str) and not model.endswith(NO_FEATURES):
            model = make_model(model)
        if isinstance(model, Model) and model.uses_features:
            from recsys.features.selection import with_usual_features  # slow import

            train = with_usual_features(train, features, unrated=False)
            return replace(split, train=train)
    return split

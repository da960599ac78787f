"""Hyperparameter search with optuna."""

from __future__ import annotations

import itertools
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import polars as pl

from recsys.data.identity import fingerprint
from recsys.data.ratings import Ratings, has_ratings
from recsys.errors import DataError, check_choice, check_whole
from recsys.evaluation.measurement import check_folding, measure_lists, with_history
from recsys.evaluation.metrics import METRICS, Metric, MetricLike, resolve_metrics
from recsys.evaluation.settings import Settings
from recsys.evaluation.splits import RatingsLike, Split, default_split
from recsys.evaluation.tasks import RankingTask, prepare_positions
from recsys.messages import counted
from recsys.models.base import Model, Step, predicted_ratings
from recsys.models.parameters import Range
from recsys.models.registry import make_model, model_class, parameters, request_of
from recsys.readers import as_ratings

if TYPE_CHECKING:
    import optuna

RATING_METRICS = ("rmse", "mae")
RANKING_METRICS = tuple(
    metric.name for metric in METRICS.values() if metric.direction > 0
)

_LENGTH = 10  # of the lists for a metric of one's own
_MOST_USERS = 500  # maximum number of users for ranking metrics during a fit
_COMPARED_WITH = 5  # number of complete trials before pruning begins
_FIRST_DECISIVE = 3  # first iteration whose validation RMSE may prune a trial


@dataclass(frozen=True, slots=True)
class Trial:
    """One set of parameters and its result.

    Trial 0 has the model's defaults; with a parameter of None, the model chooses a value. A pruned
    trial has no value: it was worse than the others, or its fit failed. `iterations` is the
    iteration with the best predictions of the validation ratings, if the model keeps that one.
    """

    number: int
    parameters: dict[str, float | None]
    state: Literal["complete", "pruned"]
    value: float | None
    iterations: int | None
    seconds: float


@dataclass(frozen=True, slots=True)
class Tuning:
    """Result of `tune`.

    `ranges` are the searched ranges, `fixed` the given parameters, and `defaults` all parameters of
    the model with their defaults. `best` is the first complete trial with the best value.
    `fingerprint` is the SHA-256 of the training ratings. `held_out` describes the validation part.
    """

    model: str
    metric: str
    ranges: Mapping[str, Range]
    fixed: dict[str, Any]
    defaults: dict[str, Any]
    trials: tuple[Trial, ...]
    best: Trial
    fingerprint: str
    train_ratings: int
    validation_ratings: int
    held_out: str

    def __repr__(self) -> str:
        return (
            f"<Tuning: {self.model}, {self.metric} {self.best.value:.4g} in "
            f"{counted(len(self.trials), 'trial')}: {self.parameters}>"
        )

    def _repr_html_(self) -> str:
        rows = [
            {"trial": t.number, self.metric: t.value, **t.parameters}
            for t in self.trials
        ]
        table = pl.DataFrame(rows, infer_schema_length=None)._repr_html_()
        return f"<p>{escape(repr(self)[1:-1])}</p>{table}"

    @property
    def parameters(self) -> dict[str, Any]:
        """Parameters for the final fit: the fixed ones, the best ones, and the iterations."""
        values = {**self.fixed, **self.best.parameters}
        iterations = self.best.iterations
        return values if iterations is None else values | {"iterations": iterations}


def tune(
    model: str | Model,
    ratings: RatingsLike,
    *,
    metric: MetricLike | None = None,
    trials: int = 30,
    timeout: float | None = None,
    sampler: Literal["tpe", "random", "grid"] = "tpe",
    ranges: Mapping[str, Range] | None = None,
    fixed: Mapping[str, Any] | None = None,
    test_fraction: float = 0.1,
    validation: Callable[[Ratings], Split] | None = None,
    study: str | Path | None = None,
    random_state: int = 0,
    threads: int | None = None,
    features: bool | Sequence[str] = True,
    relevant_from: float | None = None,
    on_trial: Callable[[Trial, Trial], None] | None = None,
    on_step: Callable[[int, Step], None] | None = None,
) -> Tuning:
    """Find parameters with which a model performs best on held-out ratings.

    A part of `ratings` is held out, without users and items that have no other ratings. Each trial
    fits the model to the rest with different parameters and is measured on the held-out part. The
    first trial has the defaults, so the best one is at least as good.

    A trial is pruned when it is worse than the median of the earlier trials (optuna's
    ``MedianPruner``). For "rmse" and "mae", this is checked by the RMSE after each iteration from
    the third on; for a ranking metric, by that metric on at most 500 validation users after the
    2nd, 4th, 8th, ... iteration.

    Parameters
    ----------
    model : str or Model
        Name in `recsys.models.registry.MODELS`, or a model, also of a class of your own with the
        decorator `model`; its parameters that differ from their defaults are fixed.
    ratings : Ratings, frame or path
        Training ratings, without the test ratings of a later evaluation.
    metric : str, Metric or function, optional
        "rmse", "mae", a ranking metric such as "ndcg@10", or a metric of your own for lists of 10
        items, as `evaluate` takes it. By default "rmse" if the model
        predicts ratings, else "ndcg@10".
    trials : int
        Number of trials, including those already in the study.
    timeout : float, optional
        Time limit in seconds. After it, no trial starts and the current one stops; the first trial
        always finishes.
    sampler : {"tpe", "random", "grid"}
        One of optuna's samplers, or a grid of at most `trials` points in random order.
    ranges : mapping of str to Range, optional
        Ranges that replace the model's own, or add parameters to tune.
    fixed : mapping, optional
        Values of parameters that are not tuned.
    test_fraction : float
        Share of the ratings to hold out: the newest ones, or random ones without timestamps.
    validation : callable, optional
        Function that splits the training ratings instead, such as `leave_last_split`.
    study : str or Path, optional
        File of an optuna ``JournalStorage``. Repeating the call continues an interrupted search,
        with the result of an uninterrupted one.
    random_state : int
        Seed of the validation part, of the models and of the sampler.
    threads : int, optional
        Number of threads, by default all available cores.
    features : bool or sequence of str
        As in `Recommender.fit`.
    relevant_from : float, optional
        Minimum rating of a relevant validation item. By default, all are relevant.
    on_trial, on_step : callable, optional
        `on_trial` is called after each trial with the `Trial` and the best one so far; `on_step`
        after each iteration with the number of the trial and a `Step`.

    Raises
    ------
    DataError
        If an argument is outside its range, the model has nothing to tune, the metric does not
        apply, or the study belongs to a search with other arguments.

    References
    ----------
    Akiba et al. (2019), "Optuna: a next-generation hyperparameter optimization framework".

    Examples
    --------
    >>> import recsys
    >>> ratings = recsys.read_ratings(recsys.sample_path())
    >>> found = tune("als", ratings, sampler="grid", trials=4, fixed={"factors": 8})
    >>> found.best.value < found.trials[0].value
    True
    >>> list(found.parameters)
    ['factors', 'regularization', 'count_power', 'iterations']
    """
    data = as_ratings(ratings)
    trials = check_whole("trials", trials, 1)
    random_state = check_whole("random_state", random_state, 0)
    check_choice("sampler", sampler, ("tpe", "random", "grid"))
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    model, fixed = _as_named(model, fixed or {})
    measure, metric = _metric_of(model, data, metric)
    searched = _search_space(model, metric, ranges or {}, fixed)
    unfitted = make_model(model, **fixed)
    if unfitted.uses_features:
        from recsys.features.selection import with_usual_features  # slow to import

        data = with_usual_features(data, features, unrated=False)
    if validation is None:
        held_out = default_split(data, test_fraction, random_state)
    else:
        held_out = validation(data)
    split = _validation_split(held_out, metric)
    check_folding(unfitted, split)
    common = {"random_state": random_state, "threads": threads}
    declared = {entry.name for entry in parameters(model)}
    objective = _Objective(
        model=model,
        metric=metric,
        measure=measure,
        ranges=searched,
        common={name: common[name] for name in common if name in declared} | fixed,
        split=split,
        sample=_sample_users(split, random_state),
        relevant_from=relevant_from,
    )
    mark = fingerprint(data)
    identity = objective.identity(mark, fixed, random_state)
    search = _Search(
        _open_study(study, identity, objective),
        objective,
        sampler,
        random_state,
        grid=_grid(searched, trials, random_state) if sampler == "grid" else None,
        deadline=math.inf if timeout is None else time.monotonic() + timeout,
    )
    done = search.run(trials, on_trial, on_step)
    return Tuning(
        model,
        metric,
        searched,
        fixed,
        defaults=make_model(model).get_params(),
        trials=tuple(done),
        best=objective.best(done),
        fingerprint=mark,
        train_ratings=split.train.n_ratings,
        validation_ratings=split.test.n_ratings,
        held_out=split.description,
    )


def _as_named(
    model: str | Model, fixed: Mapping[str, Any]
) -> tuple[str, dict[str, Any]]:
    """Return the name of a model, and the fixed parameters with its own."""
    if isinstance(model, str):
        return model, dict(fixed)
    if not isinstance(model, Model):
        raise DataError(
            f"model must be a name or a Model with its parameters; got {model!r}."
        )
    request = request_of(model)
    if request is None:
        raise DataError(
            f"A {type(model).__name__} cannot be tuned: its class needs the decorator @model, "
            f"and a name that no class defined since has, as {model.name!r} may be."
        )
    return request.model, {**request.parameters, **fixed}


def _validation_split(held_out: Split, metric: str) -> Split:
    """Return the split without new users and items, after a check that trials can be measured."""
    held_out.check()
    split = held_out
    if held_out.method != "sessions":  # of which all users are new
        split = held_out.without_new()
    elif metric in RATING_METRICS:
        raise DataError(
            f"{metric} does not apply to sessions; use hit_rate@N, mrr@N or ndcg@N."
        )
    if not split.test.n_ratings:
        raise DataError(
            f"No rating of the validation part ({held_out.description}) has both a "
            "user and an item with other ratings, so no trial can be measured; hold out "
            "fewer ratings, or at random if these are the newest."
        )
    return split


@dataclass(frozen=True, slots=True)
class _Search:
    """Trials of a study, one after the other."""

    study: optuna.Study
    objective: _Objective
    sampler: Literal["tpe", "random", "grid"]
    random_state: int
    grid: list[dict[str, float | None]] | None
    deadline: float

    def run(
        self,
        trials: int,
        on_trial: Callable[[Trial, Trial], None] | None,
        on_step: Callable[[int, Step], None] | None,
    ) -> list[Trial]:
        """Return the finished trials, also of earlier searches in the study."""
        done = _finished(self.study)
        while len(done) < trials:
            number = len(done)
            if number and (time.monotonic() > self.deadline or not self._begin(done)):
                break
            self.study.sampler = self._seeded_sampler(number)
            objective = partial(
                self.objective.run,
                is_first=not number,
                deadline=self.deadline if number else math.inf,
                on_step=None if on_step is None else partial(on_step, number),
            )
            try:
                self.study.optimize(objective, n_trials=1)
            except _OutOfTimeError:
                break
            done = _finished(self.study)
            if on_trial is not None:
                on_trial(done[-1], self.objective.best(done))
        return done

    def _begin(self, done: Sequence[Trial]) -> bool:
        """Enqueue the next point of the grid, if there is one; return False at its end."""
        if self.grid is None:
            return True
        # optuna's GridSampler would not try the point of an interrupted trial again.
        tried = [trial.parameters for trial in done]
        for point in self.grid:
            if point not in tried:
                self.study.enqueue_trial(point)
                return True
        return False

    def _seeded_sampler(self, number: int) -> optuna.samplers.BaseSampler:
        """Return a sampler whose seed is the trial's, as if no study was interrupted before."""
        from optuna.samplers import RandomSampler, TPESampler

        generator = np.random.default_rng([self.random_state, number])
        seed = int(generator.integers(2**32))
        if self.sampler == "tpe":
            return TPESampler(seed=seed, constant_liar=False)
        return RandomSampler(seed=seed)


def _grid(
    ranges: Mapping[str, Range],
    trials: int,
    random_state: int,
) -> list[dict[str, float | None]]:
    """Return the points of a grid, at most one for each trial but the first, in random order."""
    n = max(2, math.floor((trials - 1) ** (1 / len(ranges)) + 1e-9))
    points = list(itertools.product(*(ends.grid(n) for ends in ranges.values())))
    order = np.random.default_rng(random_state).permutation(len(points))
    return [dict(zip(ranges, points[number], strict=True)) for number in order]


def _metric_of(
    model: str,
    data: Ratings,
    metric: MetricLike | None,
) -> tuple[Metric, str]:
    """Return the metric and its name, by default of the model, after a check that it applies."""
    predicts = model_class(model).predicts_ratings
    if metric is None:
        metric = "rmse" if predicts and not data.implicit else "ndcg@10"
    if not isinstance(metric, str):
        (measure,) = resolve_metrics([metric])
        if measure.scope != "user" or measure.uses_catalogue:
            raise DataError(
                f"Models cannot be tuned by {measure.name}: a metric of your own is a function "
                "of the lists of single users, such as hits or grades."
            )
        return measure, f"{measure.name}@{_LENGTH}"
    check_metric_name(metric)
    if metric in RATING_METRICS and data.implicit:
        raise DataError(
            f"The data have no ratings, so {metric} is undefined; tune by ndcg@10."
        )
    if metric in RATING_METRICS and not predicts:
        raise DataError(
            f"The {model} model predicts no ratings, so it has no {metric}; tune it by ndcg@10."
        )
    return METRICS[metric.partition("@")[0]], metric


class _OutOfTimeError(Exception):
    """Time limit reached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Objective:
    """Objective of the search: what all trials have in common."""

    model: str
    metric: str
    measure: Metric
    ranges: Mapping[str, Range]
    common: dict[str, Any]
    split: Split
    sample: Split
    relevant_from: float | None

    @property
    def minimize(self) -> bool:
        return self.measure.direction < 0

    def identity(
        self, training: str, fixed: Mapping[str, Any], random_state: int
    ) -> dict[str, Any]:
        """Return what a search must have in common with an earlier one that it continues."""
        held_out = dict(self.split.parameters)
        for name in ("random_state", "cut"):
            held_out.pop(name, None)
        identity: dict[str, Any] = {
            "training data": training,
            "model": self.model,
            "metric": self.metric,
            "ranges": {
                name: [ends.low, ends.high, ends.log]
                for name, ends in self.ranges.items()
            },
            "fixed parameters": fixed,
            "validation part": {"method": self.split.method, **held_out},
            "seed": random_state,
        }
        if self.relevant_from is not None:
            identity["relevant from"] = self.relevant_from
        return identity

    def run(
        self,
        trial: optuna.Trial,
        *,
        is_first: bool,
        deadline: float,
        on_step: Callable[[Step], None] | None,
    ) -> float:
        """Fit and measure one trial; the first one has the defaults."""
        import optuna

        start = time.perf_counter()
        values = self._defaults() if is_first else self._suggested(trial)
        trial.set_user_attr("parameters", values)
        model = make_model(self.model, **self.common, **values)
        curve: list[float] = []

        def listen(step: Step) -> None:
            if on_step is not None:
                on_step(step)
            is_power_of_two = step.step > 1 and not step.step & (step.step - 1)
            if step.validation_rmse is not None:
                curve.append(step.validation_rmse)
                trial.report(curve[-1], step.step)
            elif model._scores_between_sweeps and is_power_of_two:
                trial.report(self._value(model, self.sample), step.step)
            else:
                return
            if time.monotonic() > deadline:
                raise _OutOfTimeError
            if (not curve or step.step >= _FIRST_DECISIVE) and trial.should_prune():
                raise optuna.TrialPruned

        # The fit accepts validation ratings of training users only.
        sees_test = self.metric in RATING_METRICS and self.split.history is None
        try:
            model.fit(
                self.split.train,
                on_step=listen,
                validation=self.split.test if sees_test else None,
            )
            value = self._value(model, self.split)
            if not math.isfinite(value):
                raise DataError(
                    f"The {self.model} model with its defaults has no finite {self.metric} on "
                    "these ratings; fix some parameters at other values."
                )
        except DataError as error:  # the fit failed
            if is_first:
                raise
            raise optuna.TrialPruned from error
        finally:
            trial.set_user_attr("seconds", round(time.perf_counter() - start, 3))
        if curve and sees_test and model._keeps_best_sweep:
            trial.set_user_attr("iterations", int(np.argmin(curve)) + 1)
        return value

    def _defaults(self) -> dict[str, float | None]:
        """Return the model's own values of the parameters to tune."""
        defaults = make_model(self.model, **self.common).get_params()
        return {name: defaults[name] for name in self.ranges}

    def _suggested(self, trial: optuna.Trial) -> dict[str, float | None]:
        """Return the values that optuna suggests."""
        values: dict[str, float | None] = {}
        for name, ends in self.ranges.items():
            if ends.integer:
                low, high = int(ends.low), int(ends.high)
                values[name] = trial.suggest_int(name, low, high, log=ends.log)
            else:
                number = trial.suggest_float(name, ends.low, ends.high, log=ends.log)
                values[name] = ends.rounded(number)
        return values

    def _value(self, model: Model, split: Split) -> float:
        """Return the metric of a model in its current state."""
        served = with_history(model, split.history)
        if self.metric in RATING_METRICS:
            predicted = predicted_ratings(served, split.test)
            predicted = np.clip(predicted, *split.train.grade_range())
            return float(self.measure.function(predicted, split.test.values))
        n = self.metric.rpartition("@")[2]
        if split.method == "sessions":
            settings = Settings((int(n),), self.relevant_from)
            task, _ = prepare_positions(split, settings, fitted=split.train)
        else:
            task = RankingTask.of(split, int(n), self.relevant_from)
        lists = task.recommend(served)
        values, _ = measure_lists(lists, task, [int(n)], [self.measure])
        return float(np.mean(values[self.metric]))

    def best(self, trials: Sequence[Trial]) -> Trial:
        """Return the best of the complete trials."""
        sign = 1 if self.minimize else -1
        complete = [trial for trial in trials if trial.value is not None]
        return min(complete, key=lambda trial: sign * (trial.value or 0.0))


def _finished(study: optuna.Study) -> list[Trial]:
    """Return the complete and the pruned trials in order."""
    from optuna.trial import TrialState

    states = (TrialState.COMPLETE, TrialState.PRUNED)
    trials: list[Trial] = []
    for run in study.get_trials(deepcopy=False, states=states):
        is_complete = run.state == TrialState.COMPLETE
        trials.append(
            Trial(
                len(trials),
                dict(run.user_attrs["parameters"]),
                "complete" if is_complete else "pruned",
                run.value if is_complete else None,
                run.user_attrs.get("iterations"),
                run.user_attrs.get("seconds", 0.0),
            )
        )
    return trials


def _open_study(
    path: str | Path | None,
    identity: dict[str, Any],
    task: _Objective,
) -> optuna.Study:
    """Open or create the study in a file; without a path, create one in memory."""
    import optuna
    from optuna.storages.journal import JournalFileBackend

    damaged = DataError(f"{path} is damaged or not a study; choose another file.")
    storage = None
    if path is not None:
        path = Path(path)
        if not path.parent.is_dir():
            raise DataError(
                f"Cannot write {path}: there is no directory {path.parent}."
            )
        if path.exists() and not path.is_file():
            raise DataError(
                f"{path} is not a file; a study is a file, such as als.study."
            )
        if path.exists():
            with path.open("r+b") as file:
                text = file.read()
                if text.lstrip()[:1] not in (b"{", b""):
                    raise damaged
                # A killed process leaves an incomplete line, which optuna would continue.
                file.truncate(text.rfind(b"\n") + 1)
    # As they are read again; numbers of NumPy become those of Python.
    identity = json.loads(json.dumps(identity, default=lambda number: number.item()))
    try:
        if path is not None:
            storage = optuna.storages.JournalStorage(JournalFileBackend(str(path)))
        study = optuna.create_study(
            storage=storage,
            study_name="recsys",
            load_if_exists=True,
            pruner=optuna.pruners.MedianPruner(n_startup_trials=_COMPARED_WITH),
            direction="minimize" if task.minimize else "maximize",
        )
        if not _finished(study) and "identity" not in study.user_attrs:
            study.set_user_attr("identity", identity)
        stored = dict(study.user_attrs["identity"])
    except OSError:
        raise
    except Exception as error:  # optuna does not validate a journal
        raise damaged from error
    different = [name for name in identity if stored.get(name) != identity[name]]
    if different:
        raise DataError(
            f"The study {path} differs in its {' and '.join(different)}; choose another file, or "
            "the same arguments as before."
        )
    return study


def _search_space(
    model: str,
    metric: str,
    ranges: Mapping[str, Range],
    fixed: Mapping[str, Any],
) -> dict[str, Range]:
    """Return the ranges of the parameters to tune, after checks of the given ranges."""
    declared = {entry.name: entry for entry in parameters(model)}
    numbers = [
        name
        for name, entry in declared.items()
        if entry.type in (int, float) and name not in ("random_state", "threads")
    ]
    for name, search_range in ranges.items():
        problem = None
        if name in fixed:
            problem = f"{name} cannot be both fixed and tuned; leave out one of them."
        elif name not in numbers:
            listed = ", ".join(numbers) or "none"
            problem = (
                f"The {model} model has no numeric parameter {name!r} to tune; "
                f"it has {listed}."
            )
        elif not isinstance(search_range, Range):
            problem = (
                f"The range of {name} must be a Range(low, high); got {search_range!r}."
            )
        elif declared[name].type is int and not search_range.integer:
            ends = f"{search_range.low} to {search_range.high}"
            problem = f"The range of {name} must have integer ends; got {ends}."
        if problem is not None:
            raise DataError(problem)
    searched = {
        name: entry.range for name, entry in declared.items() if entry.range is not None
    }
    if metric in RATING_METRICS:
        searched.pop("popularity", None)  # affects rankings only
    searched |= ranges
    for name in fixed:
        searched.pop(name, None)
    if not searched:
        raise DataError(f"The {model} model has no parameter left to tune.")
    # A model raises for an end that is out of range.
    make_model(model, **fixed, **{name: ends.low for name, ends in searched.items()})
    make_model(model, **fixed, **{name: ends.high for name, ends in searched.items()})
    return searched


def _sample_users(split: Split, random_state: int) -> Split:
    """Draw at most `_MOST_USERS` test users at random; return the split without the others."""
    users = np.flatnonzero(has_ratings(split.test))
    drawn = np.random.default_rng(random_state).permutation(users)[:_MOST_USERS]

    def of_drawn(ratings: Ratings) -> Ratings:
        return ratings.take(np.isin(ratings.user_index_of_nonzeros(), drawn))

    history = None if split.history is None else of_drawn(split.history)
    return replace(split, test=of_drawn(split.test), history=history)


def check_metric_name(metric: str) -> None:
    """Check that models can be tuned by a metric.

    Raises
    ------
    DataError
        If they cannot; the message lists the possible metrics.
    """
    kind, _, n = metric.partition("@")
    ranks = kind in RANKING_METRICS and n.isdecimal() and int(n) > 0
    if not ranks and metric not in RATING_METRICS:
        ranking = ", ".join(f"{name}@N" for name in RANKING_METRICS)
        raise DataError(
            f"metric must be one of {', '.join(RATING_METRICS)}, {ranking} (as in ndcg@10); "
            f"got {metric!r}."
        )

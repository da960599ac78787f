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

from recsys.atomic import exclusive
from recsys.data.identity import fingerprint
from recsys.data.ratings import Ratings, has_ratings
from recsys.errors import DataError, check_choice
from recsys.evaluation.experiment import (
    RankingTask,
    check_folding,
    measure_lists,
    with_history,
)
from recsys.evaluation.metrics import METRICS, mae, rmse
from recsys.evaluation.splits import RatingsLike, Split, default_split
from recsys.messages import counted
from recsys.models.base import Model, Step, predicted_ratings
from recsys.models.parameters import Range
from recsys.models.registry import make_model, model_class, parameters
from recsys.readers import as_ratings

if TYPE_CHECKING:
    import optuna
    from optuna.storages.journal import JournalFileOpenLock

RATING_METRICS = ("rmse", "mae")
RANKING_METRICS = tuple(
    metric.name for metric in METRICS.values() if metric.direction > 0
)

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
    model: str,
    ratings: RatingsLike,
    *,
    metric: str | None = None,
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
    model : str
        Name in `recsys.models.registry.MODELS`.
    ratings : Ratings, frame or path
        Training ratings, without the test ratings of a later evaluation.
    metric : str, optional
        "rmse", "mae", or a ranking metric such as "ndcg@10". By default "rmse" if the model
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
    >>> found = tune("als", ratings, sampler="grid", trials=9, fixed={"factors": 8})
    >>> found.best.value < found.trials[0].value
    True
    >>> list(found.parameters)
    ['factors', 'regularization', 'count_power', 'iterations']
    """
    data = as_ratings(ratings)
    if trials < 1:
        raise DataError(f"trials must be at least 1; got {trials}.")
    check_choice("sampler", sampler, ("tpe", "random", "grid"))
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    metric = _metric_of(model, data, metric)
    fixed = dict(fixed or {})
    searched = _search_space(model, metric, ranges or {}, fixed)
    if make_model(model).uses_features:
        from recsys.data.feature_selection import with_usual_features  # slow to import

        data = with_usual_features(data, features, unrated=False)
    hold_out = validation or (
        lambda held: default_split(held, test_fraction, random_state)
    )
    all_held_out = hold_out(data)
    all_held_out.check()
    split = all_held_out.without_new()
    if not split.test.n_ratings:
        raise DataError(
            f"No rating of the validation part ({all_held_out.description}) has both a "
            "user and an item with other ratings, so no trial can be measured; hold out "
            "fewer ratings, or at random if these are the newest."
        )
    check_folding(make_model(model, **fixed), split)
    settings = {"random_state": random_state, "threads": threads}
    common = {
        entry.name: settings[entry.name]
        for entry in parameters(model)
        if entry.name in settings
    }
    common |= fixed
    sample = _sample_users(split, random_state)
    task = _Objective(
        model, metric, searched, fixed, common, split, sample, relevant_from
    )
    mark = fingerprint(data)
    opened = _open_study(study, task.identity(mark, random_state), task)
    _search(opened, task, sampler, trials, timeout, random_state, on_trial, on_step)
    finished = tuple(task.finished(opened))
    return Tuning(
        model,
        metric,
        searched,
        fixed,
        defaults=make_model(model).get_params(),
        trials=finished,
        best=task.best(finished),
        fingerprint=mark,
        train_ratings=split.train.n_ratings,
        validation_ratings=split.test.n_ratings,
        held_out=split.description,
    )


def _metric_of(model: str, data: Ratings, metric: str | None) -> str:
    """Return the metric, by default of the model, after a check that it applies."""
    predicts = model_class(model).predicts_ratings
    if metric is None:
        metric = "rmse" if predicts and not data.implicit else "ndcg@10"
    check_metric_name(metric)
    if metric in RATING_METRICS and data.implicit:
        raise DataError(
            f"The data have no ratings, so {metric} is undefined; tune by ndcg@10."
        )
    if metric in RATING_METRICS and not predicts:
        raise DataError(
            f"The {model} model predicts no ratings, so it has no {metric}; tune it by ndcg@10."
        )
    return metric


class _OutOfTimeError(Exception):
    """Time limit reached."""


@dataclass(frozen=True, slots=True)
class _Objective:
    """Objective of the search: what all trials have in common."""

    model: str
    metric: str
    ranges: Mapping[str, Range]
    fixed: dict[str, Any]
    common: dict[str, Any]
    split: Split
    sample: Split
    relevant_from: float | None = None

    @property
    def minimize(self) -> bool:
        return self.metric in RATING_METRICS

    def identity(self, mark: str, random_state: int) -> dict[str, Any]:
        """Return the arguments that identify a study, as JSON values."""
        described = self.split.parameters.items()
        held_out = {
            name: value
            for name, value in described
            if name not in ("random_state", "cut")
        }
        arguments = {
            "training data": mark,
            "model": self.model,
            "metric": self.metric,
            "ranges": {name: [r.low, r.high, r.log] for name, r in self.ranges.items()},
            "fixed parameters": self.fixed,
            "validation part": {"method": self.split.method, **held_out},
            "seed": random_state,
        }
        if self.relevant_from is not None:
            arguments["relevant from"] = self.relevant_from
        return dict(json.loads(json.dumps(arguments)))

    def suggest(self, trial: optuna.Trial, is_first: bool) -> dict[str, float | None]:
        """Return the values of a trial; the first one has the defaults."""
        if is_first:
            defaults = make_model(self.model, **self.common).get_params()
            return {name: defaults[name] for name in self.ranges}
        values: dict[str, float | None] = {}
        for name, search_range in self.ranges.items():
            if search_range.integer:
                number: float = trial.suggest_int(
                    name,
                    int(search_range.low),
                    int(search_range.high),
                    log=search_range.log,
                )
            else:
                number = trial.suggest_float(
                    name, search_range.low, search_range.high, log=search_range.log
                )
            values[name] = search_range.rounded(number)
        return values

    def run(
        self,
        trial: optuna.Trial,
        deadline: float,
        on_step: Callable[[Step], None] | None,
    ) -> float:
        """Fit and measure one trial."""
        import optuna

        start = time.perf_counter()
        is_first = bool(trial.user_attrs.get("is_default"))
        values = self.suggest(trial, is_first)
        trial.set_user_attr("parameters", values)
        model = make_model(self.model, **self.common, **values)
        curve: list[float] = []

        def each(step: Step) -> None:
            if on_step is not None:
                on_step(step)
            if step.validation_rmse is not None:
                curve.append(step.validation_rmse)
                trial.report(curve[-1], step.step)
            elif (
                model._scores_between_sweeps
                and step.step > 1
                and not step.step & (step.step - 1)
            ):
                trial.report(
                    self._value(model, self.sample), step.step
                )  # step 2, 4, 8, ...
            else:
                return
            if time.monotonic() > deadline:
                raise _OutOfTimeError
            if (not curve or step.step >= _FIRST_DECISIVE) and trial.should_prune():
                raise optuna.TrialPruned

        try:
            # The fit accepts validation ratings of training users only.
            held_out = (
                self.split.test
                if self.minimize and self.split.history is None
                else None
            )
            model.fit(self.split.train, on_step=each, validation=held_out)
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
        if (
            curve
            and self.split.history is None
            and self.minimize
            and model._keeps_best_sweep
        ):
            trial.set_user_attr("iterations", int(np.argmin(curve)) + 1)
        return value

    def _value(self, model: Model, split: Split) -> float:
        """Return the metric of a model in its current state."""
        served, test = with_history(model, split.history), split.test
        kind, _, n = self.metric.partition("@")
        if self.minimize:
            predicted = predicted_ratings(served, test)
            predicted = np.clip(predicted, *split.train.grade_range())
            return (rmse if kind == "rmse" else mae)(predicted, test.values)
        task = RankingTask.of(split, int(n), self.relevant_from)
        values, _ = measure_lists(
            task.recommend(served), task, [int(n)], [METRICS[kind]]
        )
        return float(np.mean(values[self.metric]))

    def finished(self, study: optuna.Study) -> list[Trial]:
        """Return the complete and the pruned trials in order."""
        from optuna.trial import TrialState

        done = study.get_trials(
            deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED)
        )
        return [
            Trial(
                number,
                dict(run.user_attrs["parameters"]),
                "complete" if run.state == TrialState.COMPLETE else "pruned",
                run.value if run.state == TrialState.COMPLETE else None,
                run.user_attrs.get("iterations"),
                run.user_attrs.get("seconds", 0.0),
            )
            for number, run in enumerate(done)
        ]

    def best(self, trials: Sequence[Trial]) -> Trial:
        """Return the best of the complete trials."""
        sign = 1 if self.minimize else -1
        complete = [trial for trial in trials if trial.value is not None]
        return min(complete, key=lambda trial: sign * (trial.value or 0.0))


def _search(
    study: optuna.Study,
    task: _Objective,
    sampler: str,
    trials: int,
    timeout: float | None,
    random_state: int,
    on_trial: Callable[[Trial, Trial], None] | None,
    on_step: Callable[[int, Step], None] | None,
) -> None:
    """Run trials until there are enough, the grid is exhausted or the time limit is reached."""
    import optuna

    deadline = math.inf if timeout is None else time.monotonic() + timeout
    n = max(2, math.floor((trials - 1) ** (1 / len(task.ranges)) + 1e-9))
    cells = list(
        itertools.product(
            *(search_range.grid(n) for search_range in task.ranges.values())
        )
    )
    order = np.random.default_rng(random_state).permutation(len(cells))
    while (number := len(done := task.finished(study))) < trials:
        until = deadline if number else math.inf
        if time.monotonic() > until:
            return
        # Each trial has its own seed, so that continuing an interrupted study changes no result.
        seed = int(np.random.default_rng([random_state, number]).integers(2**32))
        if not number:
            study.enqueue_trial({}, user_attrs={"is_default": True})
        elif (
            sampler == "grid"
        ):  # optuna's GridSampler would not repeat an interrupted trial
            tried = {tuple(trial.parameters.values()) for trial in done}
            point = next((cells[i] for i in order if cells[i] not in tried), None)
            if point is None:
                return
            study.enqueue_trial(dict(zip(task.ranges, point, strict=True)))
        if sampler == "tpe":
            study.sampler = optuna.samplers.TPESampler(seed=seed, constant_liar=False)
        else:
            study.sampler = optuna.samplers.RandomSampler(seed=seed)
        report = None if on_step is None else partial(on_step, number)
        try:
            study.optimize(
                partial(task.run, deadline=until, on_step=report), n_trials=1
            )
        except _OutOfTimeError:
            return
        if on_trial is not None:
            done = task.finished(study)
            on_trial(done[-1], task.best(done))


def _open_study(
    path: str | Path | None, identity: dict[str, Any], task: _Objective
) -> optuna.Study:
    """Open or create the study in a file; without a path, create one in memory."""
    import optuna
    from optuna.storages.journal import JournalFileBackend
    from optuna.trial import TrialState

    damaged = DataError(f"{path} is damaged or not a study; choose another file.")
    direction: Literal["minimize", "maximize"] = (
        "minimize" if task.minimize else "maximize"
    )
    pruner = optuna.pruners.MedianPruner(n_startup_trials=_COMPARED_WITH)
    new = partial(optuna.create_study, pruner=pruner, direction=direction)
    if path is None:
        return new()
    path = Path(path)
    if not path.parent.is_dir():
        raise DataError(f"Cannot write {path}: there is no directory {path.parent}.")
    if path.exists():
        if not path.is_file():
            raise DataError(
                f"{path} is not a file; a study is a file, such as als.study."
            )
        with path.open(
            "r+b"
        ) as file:  # drop an incomplete last line, left by a killed process
            text = file.read()
            if text.lstrip()[:1] not in (b"{", b""):
                raise damaged
            file.truncate(text.rfind(b"\n") + 1)
    try:
        storage = optuna.storages.JournalStorage(
            JournalFileBackend(str(path), _lock_of(path))
        )
        study = new(storage=storage, study_name="recsys", load_if_exists=True)
        if not (done := task.finished(study)) and "identity" not in study.user_attrs:
            study.set_user_attr("identity", identity)
        stored = dict(study.user_attrs["identity"])
        different = [
            name for name, value in identity.items() if stored.get(name) != value
        ]
        if not different and any(
            set(trial.parameters) != set(task.ranges) for trial in done
        ):
            raise damaged
        interrupted = study.get_trials(states=(TrialState.RUNNING, TrialState.WAITING))
    except (OSError, DataError):
        raise
    except Exception as error:  # optuna does not validate a journal
        raise damaged from error
    if different:
        raise DataError(
            f"The study {path} differs in its {' and '.join(different)}; choose another file, or "
            "the same arguments as before."
        )
    for trial in interrupted:
        study._storage.set_trial_state_values(trial._trial_id, TrialState.FAIL)
    return study


def _lock_of(path: Path) -> JournalFileOpenLock:
    """Return a system lock, which a killed process releases at once, unlike optuna's."""
    from optuna.storages.journal import JournalFileOpenLock

    class SystemLock(JournalFileOpenLock):
        def acquire(self) -> bool:
            self.held = exclusive(path, lambda: None)
            self.held.__enter__()
            return True

        def release(self) -> None:
            self.held.__exit__(None, None, None)

    return SystemLock(str(path))


def _search_space(
    model: str, metric: str, ranges: Mapping[str, Range], fixed: Mapping[str, Any]
) -> dict[str, Range]:
    """Return the ranges of the parameters to tune, after checks of the given ranges."""
    declared = {entry.name: entry for entry in parameters(model)}
    not_tuned = "random_state", "threads"
    numbers = [
        n
        for n, entry in declared.items()
        if entry.type in (int, float) and n not in not_tuned
    ]
    for name, search_range in ranges.items():
        if name in fixed:
            raise DataError(
                f"{name} cannot be both fixed and tuned; leave out one of them."
            )
        if name not in numbers:
            listed = ", ".join(numbers) or "none"
            raise DataError(
                f"The {model} model has no numeric parameter {name!r} to tune; it has {listed}."
            )
        if not isinstance(search_range, Range):
            raise DataError(
                f"The range of {name} must be a Range(low, high); got {search_range!r}."
            )
        if declared[name].type is int and not search_range.integer:
            ends = f"{search_range.low} to {search_range.high}"
            raise DataError(f"The range of {name} must have integer ends; got {ends}.")
    default_ranges = {
        name: entry.range for name, entry in declared.items() if entry.range is not None
    }
    if metric in RATING_METRICS:
        default_ranges.pop("popularity", None)  # affects rankings only
    searched = {
        name: entry
        for name, entry in (default_ranges | dict(ranges)).items()
        if name not in fixed
    }
    if not searched:
        raise DataError(f"The {model} model has no parameter left to tune.")
    for end in ("low", "high"):  # raises if an end is invalid
        make_model(
            model, **fixed, **{name: getattr(r, end) for name, r in searched.items()}
        )
    return searched


def _sample_users(split: Split, random_state: int) -> Split:
    """Draw at most `_MOST_USERS` test users at random; return the split without the others."""
    users = np.flatnonzero(has_ratings(split.test))
    chosen = np.zeros(split.test.n_users, dtype=np.bool_)
    chosen[np.random.default_rng(random_state).permutation(users)[:_MOST_USERS]] = True

    def kept(ratings: Ratings) -> Ratings:
        return ratings.take(chosen[ratings.user_index_of_nonzeros()])

    history = None if split.history is None else kept(split.history)
    return replace(split, test=kept(split.test), history=history)


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

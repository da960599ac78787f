"""Search for the parameters of a model."""

from __future__ import annotations

import itertools
import json
import math
import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import IO, TYPE_CHECKING, Any, Literal

import numpy as np

from recsys.data.ratings import Ratings
from recsys.errors import DataError
from recsys.evaluation import metrics
from recsys.evaluation.experiment import (
    RankingTask,
    check_folding,
    evaluate,
    measure_lists,
    with_history,
)
from recsys.evaluation.metrics import METRICS, mae, rmse
from recsys.evaluation.splits import Split, default_split, fingerprint, has_ratings, restricted
from recsys.folding import takes_start
from recsys.messages import counted
from recsys.models.base import Model, Range, Step
from recsys.models.registry import make_model, model_class
from recsys.readers import as_ratings

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

__all__ = [
    "MANIFEST",
    "MOST_USERS",
    "RANKING_METRICS",
    "RATING_METRICS",
    "SAMPLERS",
    "TRIALS",
    "Objective",
    "Point",
    "Ranges",
    "Splitter",
    "Strategy",
    "Study",
    "Trial",
    "Tuning",
    "Watch",
    "check_metric_name",
    "is_due",
    "is_hopeless",
    "make_strategy",
    "open_study",
    "tune",
]


@dataclass(frozen=True, slots=True)
class Tuning:
    """What `tune` found.

    Attributes
    ----------
    model : str
    metric : str
        Such as "rmse" or "ndcg@10".
    ranges : mapping of str to Range
        Where was looked.
    fixed : dict
        Parameters that were given.
    defaults : dict
        All parameters of the model, as they are if nobody sets them.
    trials : tuple of Trial
        In the order in which they were made; the first one has the defaults.
    best : Trial
        The complete trial with the best value, the earliest of equals; where trials had a warm
        start, as it is from scratch.
    warm : bool
        Whether the trials but the first started from the fit of the defaults.
    fingerprint : str
        SHA-256 of the training ratings.
    train_ratings, validation_ratings : int
        Numbers of ratings that models were fitted to and measured on.
    held_out : str
        The validation part in words.
    """

    model: str
    metric: str
    ranges: Ranges
    fixed: dict[str, Any]
    defaults: dict[str, Any]
    trials: tuple[Trial, ...]
    best: Trial
    warm: bool
    fingerprint: str
    train_ratings: int
    validation_ratings: int
    held_out: str

    def __repr__(self) -> str:
        return (
            f"<Tuning: {self.model}, {self.metric} {self.best.value:.4g} in "
            f"{counted(len(self.trials), 'trial')}: {self.parameters}>"
        )

    @property
    def parameters(self) -> dict[str, Any]:
        """What to give to the model: the fixed parameters, the best ones, and the sweeps."""
        sweeps = {} if self.best.sweeps is None else {"iterations": self.best.sweeps}
        return {**self.fixed, **self.best.parameters, **sweeps}


def tune(
    model: str,
    ratings: Ratings,
    *,
    metric: str | None = None,
    trials: int = 30,
    timeout: float | None = None,
    sampler: Literal["tpe", "random", "grid"] = "tpe",
    ranges: Mapping[str, Range] | None = None,
    fixed: Mapping[str, Any] | None = None,
    test_fraction: float = 0.1,
    validation: Splitter | None = None,
    study: str | Path | None = None,
    random_state: int = 0,
    threads: int | None = None,
    on_trial: Callable[[Trial, Trial], None] | None = None,
    on_step: Callable[[int, Step], None] | None = None,
) -> Tuning:
    """Find parameters with which a model does well on ratings that it has not seen.

    A part of `ratings` is held out (but for users and items that are then without ratings); each
    trial fits the model to the rest with other parameters and is measured on that part. The first
    trial has the defaults, so the best one is no worse.

    A trial is given up as soon as it is worse, after some sweep, than the median of the earlier
    trials was by then. For "rmse" and "mae" the RMSE counts, from the third sweep on; for a ranking
    metric that metric, of at most 500 validation users, after the 2nd, 4th, 8th, ... sweep. Models
    without sweeps (ease, spectral and others) run every trial to its end.

    Where the number of `factors` is fixed, a model that can (`als`) starts each trial, by "rmse" or
    "mae", from the fit of the defaults, which saves sweeps. What a model learns so depends on more
    than its parameters; therefore the best three trials are fitted again from scratch, and
    `Tuning.best` is the best of these and of the defaults.

    Parameters
    ----------
    model : str
        A name in `recsys.models.registry.MODELS`.
    ratings : Ratings
        Training ratings. What the tuned model will be tested on must not be among them.
    metric : str, optional
        "rmse", "mae", or one of "ndcg", "recall", "precision", "hit_rate", "map" and "mrr" with a
        number of recommendations, as in "ndcg@10". By default "rmse" if the model predicts
        ratings, else "ndcg@10".
    trials : int
        The most trials, those included that the study holds already.
    timeout : float, optional
        Seconds after which no trial begins, and none goes on after its sweep but the first (and
        what is fitted again from scratch).
    sampler : {"tpe", "random", "grid"}
        See `recsys.evaluation.tuning.make_strategy`.
    ranges : mapping of str to Range, optional
        Ranges in place of the model's own, or of further parameters.
    fixed : mapping, optional
        Values of parameters that are not tuned.
    test_fraction : float
        Share of the ratings that is held out: the newest ones if they have times, else random
        ones.
    validation : callable, optional
        Holds out the validation part instead: `leave_last_split` or another function of the
        training ratings that returns a `Split`. Take the kind by which the test part was held
        out.
    study : str or Path, optional
        Directory in which trials are kept: the same call goes on where an interrupted one ended,
        and ends as it would have.
    random_state : int
        Seed of the validation part, of the models and of the sampler.
    threads : int, optional
        All available cores by default.
    on_trial : callable, optional
        Called with each `Trial` that ends, and the best one so far.
    on_step : callable, optional
        Called with the number of the trial and a `Step` after each sweep.

    Raises
    ------
    DataError
        If the model has nothing to tune or a value that it refuses, the metric does not apply,
        or the study is of something else.
    ImportError
        If the sampler "tpe" is asked for and optuna is not installed.

    References
    ----------
    Golovin et al. (2017), "Google Vizier: a service for black-box optimization", section 3.2, for
    stopping by the median.

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
    ratings = as_ratings(ratings)
    if trials < 1:
        raise DataError(f"trials must be at least 1; got {trials}.")
    task = Objective.of(
        model,
        ratings,
        metric,
        ranges or {},
        fixed or {},
        validation or (lambda data: default_split(data, test_fraction, random_state)),
        random_state,
        threads,
    )
    strategy = make_strategy(
        sampler, task.ranges, trials=trials, minimise=task.minimise, seed=random_state
    )
    deadline = math.inf if timeout is None else time.monotonic() + timeout
    with open_study(study, task.identity(random_state)) as kept:
        _search(task, kept, strategy, trials, deadline, on_trial, on_step)
    return Tuning(
        model,
        task.metric,
        task.ranges,
        task.fixed,
        make_model(model).get_params(),
        tuple(kept.trials),
        task.from_scratch(kept.trials) if task.warm else task.best(kept.trials),
        task.warm,
        task.fingerprint,
        task.split.train.n_ratings,
        task.split.test.n_ratings,
        task.split.description,
    )


def _search(
    task: Objective,
    kept: Study,
    strategy: Strategy,
    most: int,
    deadline: float,
    on_trial: Callable[[Trial, Trial], None] | None,
    on_step: Callable[[int, Step], None] | None,
) -> None:
    """Make trials until there are enough, all points are tried or the time is over."""
    warm: Model | None = None
    while len(kept.trials) < most:
        point = strategy(kept.trials) if kept.trials else task.defaults
        if point is None:
            return
        until = deadline if kept.trials else math.inf
        if time.monotonic() > until:
            return
        if task.warm and kept.trials and warm is None:
            warm = task.start()
        done = task.run(point, kept.trials, until, on_step, warm)
        if done is None:
            return
        kept.add(done)
        if on_trial is not None:
            on_trial(done, task.best(kept.trials))


RATING_METRICS = ("rmse", "mae")
RANKING_METRICS = tuple(m.name for m in METRICS.values() if m.direction > 0)

Splitter = Callable[[Ratings], Split]
"""Holds out a validation part of training ratings, as `recsys.time_split` does."""

_FIRST_SWEEPS = 2  # whose validation RMSE decides nothing
_FINALISTS = 3  # fitted again from scratch where trials had a warm start


def _default_metric(model: str, ratings: Ratings) -> str:
    """Return "rmse" where the model predicts the ratings, else "ndcg@10"."""
    predicts = model_class(model).predicts_ratings and not ratings.implicit
    return "rmse" if predicts else "ndcg@10"


class _HopelessError(Exception):
    """The trial is behind the others."""


class _OutOfTimeError(Exception):
    """The time is over."""


@dataclass(frozen=True, slots=True)
class Objective:
    """What each trial does, but for its parameters."""

    model: str
    metric: str
    ranges: Ranges
    fixed: dict[str, Any]
    everywhere: dict[str, Any]
    split: Split
    watch: Watch
    fingerprint: str

    @classmethod
    def of(
        cls,
        model: str,
        ratings: Ratings,
        metric: str | None,
        ranges: Mapping[str, Range],
        fixed: Mapping[str, Any],
        validation: Splitter,
        random_state: int,
        threads: int | None,
    ) -> Objective:
        """Check everything that can be checked before the first trial."""
        cls_ = model_class(model)
        metric = _default_metric(model, ratings) if metric is None else metric
        _check_metric(metric, cls_, ratings)
        known = make_model(model, **fixed).get_params()
        seeds = {"random_state": random_state, "threads": threads}
        tunable = {name: value for name, value in known.items() if name not in seeds}
        own = {p.name: p.range for p in cls_.parameters() if p.range is not None}
        searched = _searched(model, own, ranges, tunable, fixed)
        for end in ("low", "high"):
            make_model(model, **fixed, **{name: getattr(r, end) for name, r in searched.items()})
        split = _inner(validation, ratings)
        check_folding(make_model(model, **fixed), split)
        return cls(
            model,
            metric,
            searched,
            dict(fixed),
            {name: value for name, value in seeds.items() if name in known},
            split,
            Watch.of(metric, split, random_state),
            fingerprint(ratings),
        )

    @property
    def minimise(self) -> bool:
        """Whether smaller values are better."""
        return self.metric in RATING_METRICS

    @property
    def defaults(self) -> Point:
        """The parameters that are tuned, as they are if nobody sets them."""
        known = make_model(self.model, **self.fixed).get_params()
        return {name: known[name] for name in self.ranges}

    def identity(self, seed: int) -> dict[str, Any]:
        """Return what makes trials comparable, as the study keeps it."""
        # A seed or a cut of the split follows from the other keys.
        held_out = {
            k: v for k, v in self.split.parameters.items() if k not in ("random_state", "cut")
        }
        return {
            "fingerprint": self.fingerprint,
            "model": self.model,
            "metric": self.metric,
            "ranges": {name: [r.low, r.high, r.log] for name, r in self.ranges.items()},
            "fixed": self.fixed,
            "validation": {"method": self.split.method, **held_out},
            "seed": seed,
        }

    @property
    def warm(self) -> bool:
        """Whether trials start from the fit of the defaults.

        That takes a model that can, factors of one number, and validation ratings to stop by: a
        fit that ran on to its end would hardly be shorter, and ranks differently.
        """
        return self._reports and "factors" in self.fixed and takes_start(self._made({}))

    def start(self) -> Model:
        """Fit the model with its defaults, for other trials to start from."""
        model = self._made(self.defaults)
        self.measure(model, lambda _: None, None)
        return model

    def run(
        self,
        point: Point,
        before: Sequence[Trial],
        deadline: float,
        on_step: Callable[[int, Step], None] | None,
        warm: Model | None = None,
    ) -> Trial | None:
        """Make a trial, from scratch or from a warm start; None if the time is over."""
        model = self._made(point)
        curve: list[float] = []

        def each(step: Step) -> None:
            if on_step is not None:
                on_step(len(before), step)
            reported = step.validation_rmse
            if reported is not None:
                curve.append(reported)
            elif model._scores_between_sweeps and is_due(step):
                curve.append(self.watch(model))
            if time.monotonic() > deadline:
                raise _OutOfTimeError
            decides = reported is None or len(curve) > _FIRST_SWEEPS
            if decides and is_hopeless(curve, before, minimise=self.minimise):
                raise _HopelessError

        start = time.perf_counter()
        value: float | None = None
        if time.monotonic() > deadline:
            return None
        try:
            value = self.measure(model, each, warm)
        except _OutOfTimeError:
            return None
        except _HopelessError:
            pass
        except DataError:  # the fit broke down
            if not before:
                raise
        if value is not None and not math.isfinite(value):
            _refuse_first(self, before)
            value = None
        seconds = round(time.perf_counter() - start, 3)
        stops = curve and self._reports and model._keeps_best_sweep
        sweeps = int(np.argmin(curve)) + 1 if stops else None
        state: Literal["complete", "pruned"] = "pruned" if value is None else "complete"
        return Trial(len(before), point, state, value, sweeps, tuple(curve), seconds)

    def from_scratch(self, trials: Sequence[Trial]) -> Trial:
        """Fit the best trials again, without a warm start; the best of these and the defaults."""
        found = [trials[0]]
        for trial in self._ranked(trials[1:])[:_FINALISTS]:
            try:
                again = self.run(trial.parameters, (), math.inf, None)
            except DataError:  # the fit broke down
                continue
            if again is not None:
                found.append(replace(again, number=trial.number))
        return self.best(found)

    def _made(self, point: Point) -> Model:
        return make_model(self.model, **{**self.everywhere, **self.fixed, **point})

    def measure(self, model: Any, on_step: Callable[[Step], None], warm: Model | None) -> float:
        """Fit the model to the inner training part and measure it on the validation part."""
        train, test = self.split
        if self.metric not in RATING_METRICS:
            kind, _, n = self.metric.partition("@")
            found = evaluate(
                [model],
                self.split,
                int(n),
                metrics=[kind],
                resamples=0,
                on_step=lambda _, step: on_step(step),
            )
            return float(found.table[self.metric][0])
        settings = {} if warm is None else {"start": warm}
        validation = test if self._reports else None
        model.fit(train, on_step=on_step, validation=validation, **settings)
        served = with_history(model, self.split.history)
        predicted = served.predict(test.user_index_of_nonzeros(), test.indices)
        predicted = np.clip(predicted, train.values.min(), train.values.max())
        error = rmse if self.metric == "rmse" else mae
        return error(predicted, test.values)

    @property
    def _reports(self) -> bool:
        """Whether a fit is given the validation ratings: of its own users, to predict them."""
        return self.minimise and self.split.history is None

    def best(self, trials: Sequence[Trial]) -> Trial:
        """Return the best of the complete trials, the earliest of equals."""
        return self._ranked(trials)[0]

    def _ranked(self, trials: Sequence[Trial]) -> list[Trial]:
        sign = 1 if self.minimise else -1
        complete = [trial for trial in trials if trial.value is not None]
        return sorted(complete, key=lambda trial: sign * (trial.value or 0.0))


def _inner(validation: Splitter, ratings: Ratings) -> Split:
    """Hold out the validation part, but for users and items that are then without ratings."""
    split = validation(ratings)
    split.check()
    known = split.without_new()
    if not known.test.n_ratings:
        raise DataError(
            f"Of the validation part ({split.description}), no rating has both a user and an item "
            "of the rest, so no trial can be measured; hold out another part, such as a random one."
        )
    return known


def _refuse_first(objective: Objective, before: Sequence[Trial]) -> None:
    """Refuse to go on if the defaults, with which all is compared, have no value."""
    if not before:
        raise DataError(
            f"The {objective.model} model with its defaults has no finite {objective.metric} on "
            "these ratings, so there is nothing to start from."
        )


def check_metric_name(metric: str) -> None:
    """Refuse what is no metric to tune by.

    Raises
    ------
    DataError
        Naming those that are.
    """
    kind, _, n = metric.partition("@")
    ranks = kind in RANKING_METRICS and n.isdecimal() and int(n) > 0
    if not ranks and metric not in RATING_METRICS:
        ranking = ", ".join(f"{each}@N" for each in RANKING_METRICS)
        raise DataError(
            f"metric must be one of {', '.join(RATING_METRICS)}, {ranking} (as in ndcg@10); "
            f"got {metric!r}."
        )


def _check_metric(metric: str, model: type[Model], ratings: Ratings) -> None:
    check_metric_name(metric)
    at = "@" in metric
    if not at and ratings.implicit:
        raise DataError(f"The data have no ratings, so there is no {metric}; tune by ndcg@10, say.")
    if not at and not model.predicts_ratings:
        raise DataError(
            f"The {model.name} model predicts no ratings, so it has no {metric}; "
            "tune it by ndcg@10, say."
        )


def _searched(
    model: str,
    own: Ranges,
    asked: Ranges,
    tunable: Mapping[str, Any],
    fixed: Mapping[str, Any],
) -> dict[str, Range]:
    """Return the ranges of the parameters that are not fixed, those asked for checked."""
    numbers = [name for name, value in tunable.items() if type(value) in (int, float, type(None))]
    for name, each in asked.items():
        if name in fixed:
            raise DataError(f"{name} cannot be both fixed and tuned; leave out one of them.")
        if name not in numbers:
            listed = ", ".join(numbers) or "none"
            raise DataError(
                f"The {model} model has no numeric parameter {name!r} to tune; it has {listed}."
            )
        if not isinstance(each, Range):
            raise DataError(f"The range of {name} must be a Range(low, high); got {each!r}.")
        if type(tunable[name]) is int and not each.integer:
            raise DataError(
                f"The range of {name} must have integer ends; got {each.low} to {each.high}."
            )
    searched = {name: each for name, each in {**own, **asked}.items() if name not in fixed}
    if not searched:
        raise DataError(f"The {model} model has no parameter that is left to tune.")
    return searched


Point = dict[str, float | None]
"""Values of parameters; None, which leaves a choice to the model, may be a default."""

Ranges = Mapping[str, Range]
State = Literal["complete", "pruned"]

SAMPLERS = ("tpe", "random", "grid")


@dataclass(frozen=True, slots=True)
class Trial:
    """One choice of parameters, and what came of it.

    Attributes
    ----------
    number : int
        From 0; the first one is the model's defaults.
    parameters : dict
        The values of the parameters that are tuned.
    state : {"complete", "pruned"}
        A pruned trial was given up, since it fell behind the others.
    value : float or None
        The metric on the validation ratings; None if the trial was pruned.
    sweeps : int or None
        The sweep that predicted the validation ratings best, if the model keeps that one.
    curve : tuple of float
        RMSE on the validation ratings after each sweep, where the model tells; else the metric,
        of at most 500 validation users, after the 2nd, 4th, 8th, ... sweep, where the model can
        be asked between sweeps.
    seconds : float
    """

    number: int
    parameters: Point
    state: State
    value: float | None
    sweeps: int | None
    curve: tuple[float, ...]
    seconds: float


Strategy = Callable[[Sequence[Trial]], Point | None]
"""Given the trials so far, the next point; None if all have been tried."""


def make_strategy(name: str, ranges: Ranges, *, trials: int, minimise: bool, seed: int) -> Strategy:
    """Return the strategy called `name`.

    Parameters
    ----------
    name : {"tpe", "random", "grid"}
        TPE is a tree-structured Parzen estimator, by optuna. The grid has as many values of each
        parameter as can be combined in `trials` trials, in random order.
    ranges : mapping of str to Range
    trials : int
    minimise : bool
        Whether smaller values are better.
    seed : int

    Raises
    ------
    DataError
        If there is no such strategy.
    ImportError
        If optuna is needed and not installed.

    References
    ----------
    Bergstra, Bardenet, Bengio and Kégl (2011), "Algorithms for hyper-parameter optimization",
    section 4. Bergstra and Bengio (2012), "Random search for hyper-parameter optimization".
    """
    if name == "random":
        return lambda done: _random(ranges, _generator(seed, done))
    if name == "grid":
        cells = _cells(ranges, trials - 1, seed)
        return lambda done: _untried(cells, done)
    if name == "tpe":
        _require_optuna()
        return lambda done: _tpe(ranges, done, minimise, seed)
    raise DataError(f"sampler must be one of {', '.join(SAMPLERS)}; got {name!r}.")


def _generator(seed: int, done: Sequence[Trial]) -> np.random.Generator:
    return np.random.default_rng([seed, len(done)])


def _random(ranges: Ranges, rng: np.random.Generator) -> Point:
    return {name: each.at(rng.random()) for name, each in ranges.items()}


def _cells(ranges: Ranges, most: int, seed: int) -> list[Point]:
    """Return the grid in random order, so that an early end leaves no corner out."""
    n = max(2, math.floor(most ** (1 / len(ranges)) + 1e-9)) if most > 0 else 1
    axes = [each.grid(n) for each in ranges.values()]
    cells = [dict(zip(ranges, values, strict=True)) for values in itertools.product(*axes)]
    return [cells[i] for i in np.random.default_rng(seed).permutation(len(cells))]


def _untried(cells: Sequence[Point], done: Sequence[Trial]) -> Point | None:
    tried = [trial.parameters for trial in done]
    return next((cell for cell in cells if cell not in tried), None)


def _require_optuna() -> None:
    from importlib.util import find_spec

    if find_spec("optuna") is None:
        raise ImportError(
            "The sampler 'tpe' needs optuna; install it with pip install lowrank-recsys[tune], "
            "or use the sampler 'random' or 'grid'."
        )


def _tpe(ranges: Ranges, done: Sequence[Trial], minimise: bool, seed: int) -> Point:
    """Ask a fresh study that has been told of all trials."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    distributions = {name: _distribution(each) for name, each in ranges.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # optuna calls the joint model of parameters experimental
        own_seed = int(_generator(seed, done).integers(2**32))
        study = optuna.create_study(
            sampler=optuna.samplers.TPESampler(seed=own_seed, multivariate=True),
            direction="minimize" if minimise else "maximize",
        )
        # Trials outside the ranges, as the defaults may be, tell nothing within them.
        within = [t for t in done if all(t.parameters[name] in ranges[name] for name in ranges)]
        study.add_trials([_frozen(trial, distributions) for trial in within])
        found = study.ask(distributions).params
    return {name: each.rounded(found[name]) for name, each in ranges.items()}


def _distribution(each: Range) -> BaseDistribution:
    from optuna.distributions import FloatDistribution, IntDistribution

    if each.integer:
        return IntDistribution(int(each.low), int(each.high), log=each.log)
    return FloatDistribution(each.low, each.high, log=each.log)


def _frozen(trial: Trial, distributions: dict[str, BaseDistribution]) -> FrozenTrial:
    from optuna.trial import TrialState, create_trial

    known: dict[str, Any] = {"params": trial.parameters, "distributions": distributions}
    if trial.state == "complete":
        return create_trial(value=trial.value, **known)
    curve = dict(enumerate(trial.curve))
    return create_trial(state=TrialState.PRUNED, intermediate_values=curve, **known)


MANIFEST = "study.json"
TRIALS = "trials.jsonl"

_FORMAT = {"format": "recsys-study", "format_version": 1}
_CALLED = {
    "fingerprint": "other training data",
    "model": "another model",
    "metric": "another metric",
    "ranges": "other ranges",
    "fixed": "other fixed parameters",
    "validation": "another validation part",
    "seed": "another seed",
}


class Study:
    """The trials so far; `add` keeps one more, on disk if there is a file."""

    def __init__(self, trials: list[Trial], file: IO[bytes] | None) -> None:
        self.trials = trials
        self._file = file

    def add(self, trial: Trial) -> None:
        """Keep a finished trial."""
        if self._file is not None:
            self._file.write(json.dumps(asdict(trial)).encode() + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        self.trials.append(trial)


@contextmanager
def open_study(path: str | Path | None, what: Mapping[str, Any]) -> Iterator[Study]:
    """Open the study in the directory `path`, or begin one; without a path nothing is kept.

    Parameters
    ----------
    path : str or Path, optional
    what : mapping
        What is tuned on what, as JSON can hold it: the keys of `_CALLED`. A study of something
        else is refused.

    Raises
    ------
    DataError
        If `path` is something else, the study is one of something else, it is damaged, or another
        process is at work on it.
    """
    if path is None:
        yield Study([], None)
        return
    directory = Path(path)
    _begin(directory, dict(what))
    with (directory / TRIALS).open("a+b") as file:
        _lock(file, directory)
        yield Study(_read(file, directory, set(what["ranges"])), file)


def _begin(directory: Path, what: dict[str, Any]) -> None:
    """Write study.json, or compare the one that is there."""
    file = directory / MANIFEST
    for each in (file, directory / TRIALS):
        if each.exists() and not each.is_file():
            raise DataError(f"{each} is not a file; choose another directory.")
    if not file.exists():
        _check_free(directory)
        directory.mkdir(exist_ok=True)
        try:
            _write(directory, what)
        except BaseException:  # nothing is left of a study that could not begin
            with suppress(OSError):
                directory.rmdir()
            raise
        return
    try:
        known = json.loads(file.read_bytes())
        is_ours = known["format"] == _FORMAT["format"] and "format_version" in known
    except (ValueError, KeyError, TypeError, RecursionError):
        is_ours = False
    if not is_ours:
        raise DataError(f"{file} is not what `recsys tune` writes; choose another directory.")
    if known["format_version"] != _FORMAT["format_version"]:
        raise DataError(
            f"The study {directory} has format version {known['format_version']}, and this "
            f"version of recsys knows {_FORMAT['format_version']}; choose another directory."
        )
    _compare(directory, known, json.loads(json.dumps(what)))


def _write(directory: Path, what: dict[str, Any]) -> None:
    """Write study.json beside its place, and rename it."""
    beside = directory / f".{MANIFEST}.tmp"
    try:
        with beside.open("wb") as stream:
            stream.write(json.dumps(_FORMAT | what, indent=2).encode() + b"\n")
            stream.flush()
            os.fsync(stream.fileno())
        beside.replace(directory / MANIFEST)
    finally:
        beside.unlink(missing_ok=True)


def _check_free(directory: Path) -> None:
    """Refuse a place where no study can begin; one that was killed while it began is free."""
    if directory.exists() and not directory.is_dir():
        raise DataError(f"{directory} is a file; a study is a directory.")
    if not directory.parent.is_dir():
        raise DataError(f"Cannot write {directory}: there is no directory {directory.parent}.")
    others = [each.name for each in directory.iterdir()] if directory.exists() else []
    if set(others) - {f".{MANIFEST}.tmp"}:
        raise DataError(
            f"{directory} exists and is not a study; choose a new directory or a study."
        )


def _compare(directory: Path, known: Mapping[str, Any], what: Mapping[str, Any]) -> None:
    different = [called for key, called in _CALLED.items() if known.get(key) != what[key]]
    if different:
        raise DataError(
            f"The study {directory} is of {' and '.join(different)}; choose another directory, "
            "or ask for the same as before."
        )


def _lock(file: IO[bytes], directory: Path) -> None:
    """Keep other processes out until the file is closed, however this one ends."""
    try:
        import fcntl
    except ImportError:  # not on Windows
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise DataError(
            f"Another process is at work on the study {directory}; wait for it to end."
        ) from None


def _read(file: IO[bytes], directory: Path, names: set[str]) -> list[Trial]:
    """Read the trials, and cut off a line that was not finished."""
    file.seek(0)
    text = file.read()
    whole = text.rfind(b"\n") + 1
    file.truncate(whole)
    lines = text[:whole].splitlines()
    return [_trial(line, number, directory, names) for number, line in enumerate(lines)]


def _trial(line: bytes, number: int, directory: Path, names: set[str]) -> Trial:
    try:
        found = json.loads(line)
        trial = Trial(**found | {"curve": tuple(found["curve"])})
        is_next = trial.number == number and _is_sound(trial, names)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        is_next = False
    if not is_next:
        raise DataError(
            f"The study {directory} is damaged: line {number + 1} of {TRIALS} is not trial "
            f"{number}; choose another directory."
        )
    return trial


def _is_sound(trial: Trial, names: set[str]) -> bool:
    """Whether a trial has values for the parameters `names`, and a result, as `Trial` says."""
    return (
        set(trial.parameters) == names
        and all(map(_is_number, trial.parameters.values()))
        and trial.state in ("complete", "pruned")
        and (trial.value is None if trial.state == "pruned" else _is_number(trial.value))
        and (trial.sweeps is None or (type(trial.sweeps) is int and trial.sweeps > 0))
        and all(map(_is_number, (*trial.curve, trial.seconds)))
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and abs(value) < float("inf")


MOST_USERS = 500
_COMPARED_WITH = 5  # complete trials before any is pruned
_FIRST = 2  # the first sweep after which is looked


@dataclass(frozen=True, slots=True)
class Watch:
    """Measures a model that is still being fitted.

    Attributes
    ----------
    metric : str
        "rmse", "mae", or a ranking metric such as "ndcg@10".
    split : Split
        Of the test users, some.
    """

    metric: str
    split: Split

    @classmethod
    def of(cls, metric: str, split: Split, seed: int) -> Watch:
        """Choose at most `MOST_USERS` of the users with test ratings, at random."""
        users = np.flatnonzero(has_ratings(split.test))
        chosen = np.zeros(split.test.n_users, dtype=np.bool_)
        chosen[np.random.default_rng(seed).permutation(users)[:MOST_USERS]] = True
        if split.history is None:
            rows = chosen[split.test.user_index_of_nonzeros()]
            return cls(metric, replace(split, test=split.test.take(rows)))
        every = np.ones(split.test.n_items, dtype=np.bool_)
        test, history = (restricted(part, chosen, every) for part in (split.test, split.history))
        return cls(metric, replace(split, test=test, history=history))

    def __call__(self, model: Model) -> float:
        """Return the metric of the model as it is, not clipped to the range of the ratings."""
        served = with_history(model, self.split.history)
        kind, _, n = self.metric.partition("@")
        test = self.split.test
        if not n:
            error = metrics.rmse if kind == "rmse" else metrics.mae
            return error(served.predict(test.user_index_of_nonzeros(), test.indices), test.values)
        task = RankingTask.of(self.split, int(n))
        lists = task.recommend(served)
        values, _ = measure_lists(lists, task, [int(n)], [METRICS[kind]])
        return float(np.mean(values[self.metric]))


def is_due(step: Step) -> bool:
    """Whether to look after this sweep: the 2nd, 4th, 8th, 16th and so on."""
    return step.step >= _FIRST and step.step & (step.step - 1) == 0


def is_hopeless(curve: Sequence[float], before: Sequence[Trial], *, minimise: bool = True) -> bool:
    """Whether the best so far is worse than the median of what complete trials had by then.

    Parameters
    ----------
    curve : sequence of float
        Of the trial that runs.
    before : sequence of Trial
        Five of them at least must be complete and have a curve.
    minimise : bool
        Whether smaller values are better.
    """
    others = [trial.curve for trial in before if trial.state == "complete" and trial.curve]
    if len(others) < _COMPARED_WITH or not curve:
        return False
    best = min if minimise else max
    middle = median(best(other[: len(curve)]) for other in others)
    return best(curve) > middle if minimise else best(curve) < middle

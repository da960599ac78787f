"""Tuning: better parameters of a model, found on a validation part of the training ratings."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from recsys.errors import DataError
from recsys.evaluation.sampling import Ranges, Strategy, Trial, make_strategy
from recsys.evaluation.split import default_split
from recsys.evaluation.study import Study, open_study
from recsys.evaluation.trials import Objective, Splitter
from recsys.fitted import check_ratings
from recsys.models import make_model
from recsys.models.base import Model, Step
from recsys.models.ranges import Range
from recsys.ratings import Ratings
from recsys.wording import counted

__all__ = ["Trial", "Tuning", "tune"]


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
    validation_fraction: float = 0.1,
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
        A name in `recsys.models.MODELS`.
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
        See `recsys.evaluation.sampling.make_strategy`.
    ranges : mapping of str to Range, optional
        Ranges in place of the model's own, or of further parameters.
    fixed : mapping, optional
        Values of parameters that are not tuned.
    validation_fraction : float
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
    >>> ratings = recsys.read_ratings(recsys.sample_path()).ratings
    >>> found = tune("als", ratings, sampler="grid", trials=9, fixed={"factors": 8})
    >>> found.best.value < found.trials[0].value
    True
    >>> list(found.parameters)
    ['factors', 'regularization', 'count_power', 'iterations']
    """
    check_ratings(ratings)
    if trials < 1:
        raise DataError(f"trials must be at least 1; got {trials}.")
    task = Objective.of(
        model,
        ratings,
        metric,
        ranges or {},
        fixed or {},
        validation or (lambda data: default_split(data, validation_fraction, random_state)),
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
        make_model(model).params(),
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

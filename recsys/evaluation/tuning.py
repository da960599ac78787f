"""Tuning: better parameters of a model, found on a validation part of the training ratings."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from recsys.errors import DataError
from recsys.evaluation.sampling import Ranges, Trial, make_strategy
from recsys.evaluation.study import open_study
from recsys.evaluation.trials import Objective
from recsys.models import make_model
from recsys.models.base import Step
from recsys.models.ranges import Range
from recsys.ratings import Ratings

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
        The complete trial with the best value, the earliest of equals.
    fingerprint : str
        SHA-256 of the training ratings.
    train_ratings, validation_ratings : int
        Numbers of ratings that models were fitted to and measured on.
    """

    model: str
    metric: str
    ranges: Ranges
    fixed: dict[str, Any]
    defaults: dict[str, Any]
    trials: tuple[Trial, ...]
    best: Trial
    fingerprint: str
    train_ratings: int
    validation_ratings: int

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
    study: str | Path | None = None,
    random_state: int = 0,
    threads: int | None = None,
    on_trial: Callable[[Trial, Trial], None] | None = None,
    on_step: Callable[[int, Step], None] | None = None,
) -> Tuning:
    """Find parameters with which a model does well on ratings that it has not seen.

    A random part of `ratings` is held out (but for users and items that are then without ratings);
    each trial fits the model to the rest with other parameters and is measured on that part. The
    first trial has the defaults, so the best one is no worse. A trial is given up as soon as its
    RMSE, after some sweep, is above the median of the earlier trials; this needs ``metric="rmse"``
    and a model that sweeps. No trial starts from another's result, since a fit with the parameters
    that are found would then not give what was measured.

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
        Seconds after which no trial begins, and none goes on after its sweep but the first.
    sampler : {"tpe", "random", "grid"}
        See `recsys.evaluation.sampling.make_strategy`.
    ranges : mapping of str to Range, optional
        Ranges in place of the model's own, or of further parameters.
    fixed : mapping, optional
        Values of parameters that are not tuned.
    validation_fraction : float
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
    if trials < 1:
        raise DataError(f"trials must be at least 1; got {trials}.")
    task = Objective.of(
        model,
        ratings,
        metric,
        ranges or {},
        fixed or {},
        validation_fraction,
        random_state,
        threads,
    )
    strategy = make_strategy(
        sampler, task.ranges, trials=trials, minimise=task.minimise, seed=random_state
    )
    deadline = math.inf if timeout is None else time.monotonic() + timeout
    with open_study(study, task.identity(random_state, validation_fraction)) as kept:
        while len(kept.trials) < trials:
            point = strategy(kept.trials) if kept.trials else task.defaults
            if point is None:
                break
            done = task.run(point, kept.trials, deadline if kept.trials else math.inf, on_step)
            if done is None:
                break
            kept.add(done)
            if on_trial is not None:
                on_trial(done, task.best(kept.trials))
    return Tuning(
        model,
        task.metric,
        task.ranges,
        task.fixed,
        make_model(model).params(),
        tuple(kept.trials),
        task.best(kept.trials),
        task.fingerprint,
        task.split.train.n_ratings,
        task.split.test.n_ratings,
    )

"""What a trial does: fit a model with some parameters, and measure it on validation ratings."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

import numpy as np

from recsys.errors import DataError
from recsys.evaluation.experiment import evaluate
from recsys.evaluation.metrics import DIRECTIONS, mae, rmse
from recsys.evaluation.parts import fingerprint
from recsys.evaluation.sampling import Point, Ranges, Trial
from recsys.evaluation.split import Split, random_split
from recsys.models import make_model, model_class
from recsys.models.base import Model, Step
from recsys.models.ranges import Range
from recsys.ratings import Ratings
from recsys.recommender import Recommender
from recsys.training import clip_to_range

__all__ = ["RANKING_METRICS", "RATING_METRICS", "Objective", "is_hopeless"]

RATING_METRICS = ("rmse", "mae")
RANKING_METRICS = tuple(kind for kind, direction in DIRECTIONS.items() if direction > 0)

_COMPARED_WITH = 5  # complete trials before any is pruned
_FIRST_SWEEPS = 2  # in which none is pruned


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
    fingerprint: str

    @classmethod
    def of(
        cls,
        model: str,
        ratings: Ratings,
        metric: str | None,
        ranges: Mapping[str, Range],
        fixed: Mapping[str, Any],
        validation_fraction: float,
        random_state: int,
        threads: int | None,
    ) -> Objective:
        """Check everything that can be checked before the first trial."""
        cls_ = model_class(model)
        metric = _default_metric(model, ratings) if metric is None else metric
        _check_metric(metric, cls_, ratings)
        known = make_model(model, **fixed).params()
        seeds = {"random_state": random_state, "threads": threads}
        tunable = {name: value for name, value in known.items() if name not in seeds}
        searched = _searched(model, cls_.ranges, ranges, tunable, fixed)
        for end in ("low", "high"):
            make_model(model, **fixed, **{name: getattr(r, end) for name, r in searched.items()})
        return cls(
            model,
            metric,
            searched,
            dict(fixed),
            {name: value for name, value in seeds.items() if name in known},
            random_split(ratings, validation_fraction, random_state).without_new(),
            fingerprint(ratings),
        )

    @property
    def minimise(self) -> bool:
        """Whether smaller values are better."""
        return self.metric in RATING_METRICS

    @property
    def defaults(self) -> Point:
        """The parameters that are tuned, as they are if nobody sets them."""
        known = make_model(self.model, **self.fixed).params()
        return {name: known[name] for name in self.ranges}

    def identity(self, seed: int, validation_fraction: float) -> dict[str, Any]:
        """Return what makes trials comparable, as the study keeps it."""
        return {
            "fingerprint": self.fingerprint,
            "model": self.model,
            "metric": self.metric,
            "ranges": {name: [r.low, r.high, r.log] for name, r in self.ranges.items()},
            "fixed": self.fixed,
            "validation_fraction": validation_fraction,
            "seed": seed,
        }

    def run(
        self,
        point: Point,
        before: Sequence[Trial],
        deadline: float,
        on_step: Callable[[int, Step], None] | None,
    ) -> Trial | None:
        """Make a trial; None if the time is over."""
        model = make_model(self.model, **{**self.everywhere, **self.fixed, **point})
        curve: list[float] = []

        def each(step: Step) -> None:
            if on_step is not None:
                on_step(len(before), step)
            if step.validation_rmse is not None:
                curve.append(step.validation_rmse)
            if time.monotonic() > deadline:
                raise _OutOfTimeError
            if self.metric == "rmse" and is_hopeless(curve, before):
                raise _HopelessError

        start = time.perf_counter()
        value: float | None = None
        if time.monotonic() > deadline:
            return None
        try:
            value = self.measure(model, each)
        except _OutOfTimeError:
            return None
        except _HopelessError:
            pass
        if value is not None and not math.isfinite(value):
            _refuse_first(self, before)
            value = None
        seconds = round(time.perf_counter() - start, 3)
        sweeps = int(np.argmin(curve)) + 1 if curve and model.keeps_best_sweep else None
        state: Literal["complete", "pruned"] = "pruned" if value is None else "complete"
        return Trial(len(before), point, state, value, sweeps, tuple(curve), seconds)

    def measure(self, model: Model, on_step: Callable[[Step], None]) -> float:
        """Fit the model to the inner training part and measure it on the validation part."""
        train, validation = self.split
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
        recommender = Recommender(model).fit(train, on_step=on_step, validation=validation)
        predicted = model.predict(validation.user_index_of_nonzeros(), validation.indices)
        predicted = clip_to_range(predicted, recommender.training)
        error = rmse if self.metric == "rmse" else mae
        return error(predicted, validation.values)

    def best(self, trials: Sequence[Trial]) -> Trial:
        """Return the best of the complete trials, the earliest of equals."""
        sign = 1 if self.minimise else -1
        complete = [trial for trial in trials if trial.value is not None]
        return min(complete, key=lambda trial: sign * (trial.value or 0.0))


def _refuse_first(objective: Objective, before: Sequence[Trial]) -> None:
    """Refuse to go on if the defaults, with which all is compared, have no value."""
    if not before:
        raise DataError(
            f"The {objective.model} model with its defaults has no finite {objective.metric} on "
            "these ratings, so there is nothing to start from."
        )


def _check_metric(metric: str, model: type[Model], ratings: Ratings) -> None:
    kind, at, n = metric.partition("@")
    ranks = kind in RANKING_METRICS and n.isdecimal() and int(n) > 0
    if not ranks and metric not in RATING_METRICS:
        ranking = ", ".join(f"{each}@N" for each in RANKING_METRICS)
        raise DataError(
            f"metric must be one of {', '.join(RATING_METRICS)}, {ranking} (as in ndcg@10); "
            f"got {metric!r}."
        )
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
        if type(tunable[name]) is int and not each.integer:
            raise DataError(
                f"The range of {name} must have integer ends; got {each.low} to {each.high}."
            )
    searched = {name: each for name, each in {**own, **asked}.items() if name not in fixed}
    if not searched:
        raise DataError(f"The {model} model has no parameter that is left to tune.")
    return searched


def is_hopeless(curve: Sequence[float], before: Sequence[Trial]) -> bool:
    """Whether the best RMSE so far is above the median of the complete trials at that sweep."""
    others = [trial.curve for trial in before if trial.state == "complete" and trial.curve]
    if len(others) < _COMPARED_WITH or len(curve) <= _FIRST_SWEEPS:
        return False
    return min(curve) > median(min(other[: len(curve)]) for other in others)

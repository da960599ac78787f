"""What a trial does: fit a model with some parameters, and measure it on validation ratings."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from recsys.errors import DataError
from recsys.evaluation.experiment import evaluate
from recsys.evaluation.measuring import check_folding, with_history
from recsys.evaluation.metrics import DIRECTIONS, mae, rmse
from recsys.evaluation.parts import fingerprint
from recsys.evaluation.sampling import Point, Ranges, Trial
from recsys.evaluation.split import Split
from recsys.evaluation.watching import Watch, is_due, is_hopeless
from recsys.merging import takes_start
from recsys.models import make_model, model_class
from recsys.models.base import Model, Step
from recsys.models.ranges import Range
from recsys.ratings import Ratings

__all__ = ["RANKING_METRICS", "RATING_METRICS", "Objective", "Splitter", "check_metric_name"]

RATING_METRICS = ("rmse", "mae")
RANKING_METRICS = tuple(kind for kind, direction in DIRECTIONS.items() if direction > 0)

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
        known = make_model(model, **fixed).params()
        seeds = {"random_state": random_state, "threads": threads}
        tunable = {name: value for name, value in known.items() if name not in seeds}
        searched = _searched(model, cls_.ranges, ranges, tunable, fixed)
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
        known = make_model(self.model, **self.fixed).params()
        return {name: known[name] for name in self.ranges}

    def identity(self, seed: int) -> dict[str, Any]:
        """Return what makes trials comparable, as the study keeps it."""
        # A seed or a cut of the split follows from the other keys.
        held_out = {k: v for k, v in self.split.parameters.items() if k not in ("seed", "cut")}
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
            elif model.scores_between_sweeps and is_due(step):
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
        stops = curve and self._reports and model.keeps_best_sweep
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
